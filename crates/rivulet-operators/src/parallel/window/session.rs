//! Sessions: the rows of a key up to a pause.
//!
//! A session is `[first, last + gap)`. A row belongs to each session that its own `[time, time + gap)` overlaps; if it
//! overlaps two, they become one. A row is late if it overlaps none and the session that it would begin is over.
//!
//! The session of a row is found row by row; the states are then updated by batch. Sessions wait to be closed in
//! buckets of time, and are checked again only when their bucket is due: a session that goes on costs nothing there.

use std::collections::BTreeMap;
use std::sync::Arc;

use rivulet_dataflow::{Batch, Context, Element, Operator, OperatorError, StateByKey, StateError, StateFrame};

use super::bounds::TIME_US_MAX;
use super::pane::{Window, emit_windows};
use super::plan::WindowPlan;
use super::state::{ExportedWindows, Part, Restored};
use crate::aggregate::dense::RowSet;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::groups::GroupStates;
use crate::parallel::keys::{BatchKeys, KeyIndex, NONE};

pub(crate) struct SessionOperator {
    plan: Arc<WindowPlan>,
    gap_us: i64,
    watermark_us: i64,
    index: KeyIndex,
    /// By key: its first session. The others are linked to it.
    first: Vec<u32>,
    sessions: Vec<Session>,
    free: Vec<u32>,
    /// By session.
    states: GroupStates,
    /// Sessions by the bucket in which they may end.
    due: BTreeMap<i64, Vec<u32>>,
    keys: BatchKeys,
    numbers: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Session {
    /// The key; [`NONE`] if there is no session under this number.
    key: u32,
    next: u32,
    start_us: i64,
    /// The time of its last row.
    last_us: i64,
    arrival_us: i64,
    /// The bucket in which it waits.
    due: i64,
}

impl SessionOperator {
    pub(super) fn new(plan: Arc<WindowPlan>, gap_us: i64) -> Self {
        Self {
            gap_us,
            watermark_us: i64::MIN,
            index: plan.keys.index(0),
            first: Vec::new(),
            sessions: Vec::new(),
            free: Vec::new(),
            states: plan.groups.states(),
            due: BTreeMap::new(),
            keys: BatchKeys::default(),
            numbers: Vec::new(),
            plan,
        }
    }

    fn take_in(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() {
            return Err(OperatorError::new("rows that are taken back came to a window aggregation"));
        }
        let plan = self.plan.clone();
        let (batch, values) = plan.groups.evaluate(batch, context)?;
        self.keys.read(&plan.keys, batch.columns.columns())?;
        let mut numbers = std::mem::take(&mut self.numbers);
        self.index.assign(&self.keys, &RowSet::Range(0..batch.rows()), &mut numbers);
        self.first.resize(self.index.numbers(), NONE);
        let (mut rows, mut groups) = (Vec::with_capacity(batch.rows()), Vec::with_capacity(batch.rows()));
        let mut merged = Vec::new();
        for (row, &key) in numbers.iter().enumerate() {
            let time_us = batch.event_time_us[row];
            let found = match (-TIME_US_MAX..=TIME_US_MAX).contains(&time_us) {
                true => self.session_of(key, time_us, batch.arrival_us[row], &mut merged),
                false => None,
            };
            match found {
                Some(session) => {
                    rows.push(row as u32);
                    groups.push(session);
                }
                None => context.refusals.refuse_late(&batch, row, self.watermark_us, "the row's session is over"),
            }
        }
        self.states.grow(&plan.groups, self.sessions.len());
        self.states.update(&plan.groups, &values, &groups, &RowSet::List(&rows), &batch.event_time_us);
        for (session, other) in merged {
            self.states.merge(&plan.groups, session, other);
            self.release(other);
        }
        // A key whose rows were all late has no session.
        numbers.sort_unstable();
        numbers.dedup();
        for &key in &numbers {
            if self.first[key as usize] == NONE {
                self.index.remove(key);
            }
        }
        self.numbers = numbers;
        Ok(())
    }

    /// Returns the session of a row; `None` if the row is late. If the row joins two sessions, the pair is added to
    /// `merged`: the second is part of the first from now on, but its states are still separate.
    #[inline]
    fn session_of(&mut self, key: u32, time_us: i64, arrival_us: i64, merged: &mut Vec<(u32, u32)>) -> Option<u32> {
        let mut found = NONE;
        let mut before = NONE;
        let mut at = self.first[key as usize];
        while at != NONE {
            let session = self.sessions[at as usize];
            if time_us < session.last_us + self.gap_us && session.start_us < time_us + self.gap_us {
                if found == NONE {
                    let session = &mut self.sessions[at as usize];
                    session.start_us = session.start_us.min(time_us);
                    session.last_us = session.last_us.max(time_us);
                    session.arrival_us = session.arrival_us.max(arrival_us);
                    found = at;
                } else {
                    let target = &mut self.sessions[found as usize];
                    target.start_us = target.start_us.min(session.start_us);
                    target.last_us = target.last_us.max(session.last_us);
                    target.arrival_us = target.arrival_us.max(session.arrival_us);
                    merged.push((found, at));
                    self.sessions[at as usize].key = NONE;
                    self.sessions[before as usize].next = session.next;
                    at = session.next;
                    continue;
                }
            }
            before = at;
            at = session.next;
        }
        if found != NONE {
            return Some(found);
        }
        if time_us + self.gap_us <= self.watermark_us {
            return None;
        }
        let state = Session { key, next: NONE, start_us: time_us, last_us: time_us, arrival_us, due: 0 };
        Some(self.begin(state))
    }

    /// Adds a session to its key.
    fn begin(&mut self, session: Session) -> u32 {
        let due = self.bucket(session.last_us + self.gap_us);
        let first = &mut self.first[session.key as usize];
        let session = Session { next: *first, due, ..session };
        let number = match self.free.pop() {
            Some(number) => {
                self.sessions[number as usize] = session;
                number
            }
            None => {
                self.sessions.push(session);
                self.sessions.len() as u32 - 1
            }
        };
        *first = number;
        self.due.entry(due).or_default().push(number);
        number
    }

    /// Adds a session from a saved state. Its key is known.
    fn restore(&mut self, key: u32, start_us: i64, end_us: i64, arrival_us: i64) -> u32 {
        self.first.resize(self.index.numbers(), NONE);
        let last_us = end_us - self.gap_us;
        let number = self.begin(Session { key, next: NONE, start_us, last_us, arrival_us, due: 0 });
        self.states.grow(&self.plan.groups, self.sessions.len());
        number
    }

    fn bucket(&self, end_us: i64) -> i64 {
        end_us.div_euclid((self.gap_us / 64).max(1))
    }

    fn release(&mut self, session: u32) {
        self.sessions[session as usize].key = NONE;
        self.states.clear_group(&self.plan.groups, session);
        self.free.push(session);
    }

    fn close(&mut self, watermark_us: i64, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if watermark_us <= self.watermark_us {
            return Ok(());
        }
        self.watermark_us = watermark_us;
        let newest = self.bucket(watermark_us);
        let (mut closed, mut waiting) = (Vec::new(), Vec::new());
        while let Some(entry) = self.due.first_entry().filter(|entry| *entry.key() <= newest) {
            let due = *entry.key();
            for number in entry.remove() {
                let session = self.sessions[number as usize];
                if session.key == NONE || session.due != due {
                    continue;
                }
                match session.last_us + self.gap_us <= watermark_us {
                    true => closed.push(number),
                    false => waiting.push(number),
                }
                // In any case, the session no longer waits in this bucket.
                self.sessions[number as usize].due = i64::MIN;
            }
        }
        for number in waiting {
            let due = self.bucket(self.sessions[number as usize].last_us + self.gap_us);
            self.sessions[number as usize].due = due;
            self.due.entry(due).or_default().push(number);
        }
        for closed in closed.chunks(OUTPUT_ROWS) {
            self.emit(closed, context)?;
        }
        for &number in &closed {
            self.end(number);
        }
        Ok(())
    }

    fn emit(&self, numbers: &[u32], context: &mut Context<'_>) -> Result<(), OperatorError> {
        let sessions = || numbers.iter().map(|&number| self.sessions[number as usize]);
        let keys: Vec<u32> = sessions().map(|session| session.key).collect();
        let windows: Vec<Window> = sessions()
            .map(|session| Window {
                start_us: session.start_us,
                end_us: session.last_us + self.gap_us,
                arrival_us: session.arrival_us,
            })
            .collect();
        let columns = self.index.columns(&self.plan.keys, &keys)?;
        emit_windows(&self.plan, columns, &self.states, numbers, &windows, context)
    }

    /// Removes a session, and its key if it was the last session of the key.
    fn end(&mut self, number: u32) {
        let Session { key, next, .. } = self.sessions[number as usize];
        let mut at = self.first[key as usize];
        if at == number {
            self.first[key as usize] = next;
        } else {
            while self.sessions[at as usize].next != number {
                at = self.sessions[at as usize].next;
            }
            self.sessions[at as usize].next = next;
        }
        if self.first[key as usize] == NONE {
            self.index.remove(key);
        }
        self.release(number);
    }
}

impl Operator for SessionOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(batch, context),
            Element::Watermark(watermark_us) => self.close(self.plan.passed_us(watermark_us), context),
            Element::End => self.close(i64::MAX, context),
            Element::Barrier(_) | Element::Control(_) | Element::Clocks(_) => Ok(()),
        }
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        let live = self.sessions.iter().enumerate().filter(|(_, session)| session.key != NONE);
        let (groups, sessions): (Vec<u32>, Vec<&Session>) =
            live.map(|(number, session)| (number as u32, session)).unzip();
        let keys = sessions.iter().map(|session| session.key).collect();
        let windows = sessions
            .iter()
            .map(|session| (session.start_us, session.last_us + self.gap_us, session.arrival_us))
            .collect();
        let (states, sets) = (&self.states, self.states.distinct_values());
        let part = Part { index: &self.index, keys, states, groups, sets, rows: &[], windows };
        Ok(Some(Box::new(ExportedWindows::new(&self.plan, self.watermark_us, vec![part])?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let plan = self.plan.clone();
        let restored = Restored::new(&plan, frame)?;
        let mut numbers = Vec::new();
        for row in 0..restored.rows() {
            let [start_us, end_us, arrival_us, watermark_us] = restored.times(row);
            self.index.assign(&restored.keys, &RowSet::Range(row..row + 1), &mut numbers);
            let session = self.restore(numbers[0], start_us, end_us, arrival_us);
            restored.decode(&plan, &mut self.states, session, row)?;
            self.watermark_us = self.watermark_us.max(watermark_us);
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.states.memory_bytes()
            + self.sessions.capacity() * size_of::<Session>()
            + (self.first.capacity() + self.free.capacity()) * 4
            + self.due.values().map(|numbers| numbers.capacity() * 4).sum::<usize>()
    }
}
