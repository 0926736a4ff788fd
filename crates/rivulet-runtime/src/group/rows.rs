//! Brings decoded rows to their queries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_dataflow::{Batch, LogPosition, Picked, Slot};

use super::Group;
use crate::Task;

impl Group {
    /// Puts decoded rows into the inboxes of their queries. Either all rows find room, or none is accepted and all are
    /// returned, to be offered again later.
    ///
    /// Rows of a removed query are counted and dropped, as events are.
    pub fn push_rows(&self, rows: Picked) -> Option<Picked> {
        let mut rows = rows;
        let position = (!rows.is_empty()).then(|| rows.position(0))?;
        if self.settings.standstill.leaves(position) {
            return None;
        }
        // A thread that quiesces the group waits for pushes that have passed this check.
        if self.settings.rest.is_quiesced() {
            return Some(rows);
        }
        if self.places.get().is_none() {
            let Some(task) = self.tasks.get(0) else {
                self.strays.fetch_add(rows.len() as u64, Ordering::Relaxed);
                return None;
            };
            let queue = task.inbox().lock();
            // A second task may have been made while this thread waited for the inbox.
            if self.places.get().is_none() {
                if !task.inbox().has_room_for_rows(&queue) {
                    drop(queue);
                    return self.refuse_rows(rows, position);
                }
                task.push_rows(queue, rows);
                return None;
            }
        }
        let has_room = |task: &Arc<Task>| task.inbox().has_room_for_rows(&task.inbox().lock());
        if !self.all_tasks().all(|(_, task)| has_room(task)) {
            return self.refuse_rows(rows, position);
        }
        for (index, task) in self.all_tasks() {
            // Looked up under the lock of the inbox: only then the query cannot move.
            let queue = task.inbox().lock();
            let here = rows
                .extract(|slot| self.place(slot).filter(|place| place.task as usize == index).map(|place| place.slot));
            if !here.is_empty() {
                task.push_rows(queue, here);
            }
        }
        // The remaining rows belong to queries that moved meanwhile to a task already passed, or were removed.
        while !rows.is_empty() {
            let one = rows.split_front(1);
            self.push_row(one.slots()[0], one.to_batch());
        }
        None
    }

    /// Returns rows that find no room, unless nobody may wait for this group: then they are dropped and counted.
    fn refuse_rows(&self, rows: Picked, position: LogPosition) -> Option<Picked> {
        // Only an application with one input gets rows.
        if position != 0 || !self.settings.standstill.drops(0) {
            return Some(rows);
        }
        self.settings.standstill.given_up.fetch_add(rows.len() as u64, Ordering::Relaxed);
        None
    }

    /// Puts one row into the inbox of its query, wherever the query is.
    fn push_row(&self, slot: Slot, row: Batch) {
        loop {
            let Some((place, task)) = self.place(slot).and_then(|place| Some((place, self.task(place.task as usize)?)))
            else {
                self.strays.fetch_add(1, Ordering::Relaxed);
                return;
            };
            let queue = task.inbox().lock();
            if self.place(slot) == Some(place) {
                task.push_rows(queue, Picked::new(&row, vec![0], vec![place.slot]));
                return;
            }
        }
    }
}
