//! The sink of a shared input: hands rows on to the queries that they can concern.
//!
//! What must hold: events of the log are handed on in the order of their positions, and undecoded ones have their place
//! in this order. So nothing is handed on before an activation has delivered both.

use std::sync::Arc;

use arrow::array::BooleanArray;
use rivulet_dataflow::{Batch, Event, GroupSink, Push, Refusals, Refused, SinkError, Slot, SlotTable};
use rivulet_runtime::Group;

use super::readers::{Known, Readers, Undecoded, Waiting};

pub(super) struct FanOut {
    readers: Arc<Readers>,
}

impl FanOut {
    pub(super) fn new(readers: Arc<Readers>) -> Self {
        Self { readers }
    }
}

impl GroupSink for FanOut {
    fn write(&mut self, batch: &Batch, _numbers: Option<&[u64]>, _slots: &SlotTable) -> Result<(), SinkError> {
        self.readers.waiting.lock().batches.push_back((batch.clone(), 0));
        Ok(())
    }

    fn refused(&mut self, refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        let mut waiting = self.readers.waiting.lock();
        waiting.undecoded.extend(refusals.records().iter().filter_map(|refusal| match &refusal.content {
            Refused::Payload(payload) => Some(Undecoded {
                topic: refusal.slot,
                arrival_us: refusal.arrival_us,
                position: refusal.position,
                event_topic: refusal.topic.clone(),
                payload: payload.clone(),
                has_targets: false,
            }),
            Refused::Row(_) => None,
        }));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        // Rows that find no room are handed on by `has_room`.
        self.has_room();
        Ok(())
    }

    /// Tries again to hand on what is left. Returns whether everything is handed on.
    fn has_room(&self) -> bool {
        let known = self.readers.known();
        self.readers.waiting.lock().hand_on(&known)
    }
}

impl Waiting {
    /// Hands on as much as there is room for. Returns whether that was everything.
    fn hand_on(&mut self, known: &Known) -> bool {
        loop {
            self.rows = std::mem::take(&mut self.rows)
                .into_iter()
                .filter_map(|(group, rows)| group.push_rows(rows).map(|rows| (group, rows)))
                .collect();
            if !self.rows.is_empty() {
                return false;
            }
            while self.batches.pop_front_if(|(batch, from)| *from >= batch.rows()).is_some() {}
            let row_at = self.batches.front().map(|(batch, from)| batch.position(*from));
            let undecoded_at = self.undecoded.front().map(|first| first.position);
            match undecoded_at {
                // Events at position 0 are in no log, and have no order.
                Some(at) if at == 0 || row_at.is_none_or(|row_at| at < row_at) => {
                    if !self.hand_on_undecoded(known) {
                        return false;
                    }
                }
                _ => {
                    let Some((batch, from)) = self.batches.pop_front() else { return true };
                    let end = match undecoded_at {
                        Some(at) => (from..batch.rows()).find(|&row| batch.position(row) > at),
                        None => None,
                    };
                    let end = end.unwrap_or(batch.rows());
                    let next = from + known.pick(&batch.slice(from, end - from), 0, &mut self.rows);
                    if next < batch.rows() {
                        self.batches.push_front((batch, next));
                    }
                }
            }
        }
    }

    /// Hands on the first undecoded payload, as far as there is room.
    fn hand_on_undecoded(&mut self, known: &Known) -> bool {
        let Some(first) = self.undecoded.front_mut() else { return true };
        if !first.has_targets {
            self.targets.extend(known.all(first.topic).map(|(group, slot)| (group.clone(), slot)));
            first.has_targets = true;
        }
        while let Some((group, slot)) = self.targets.last() {
            let Undecoded { arrival_us, position, event_topic: topic, payload, .. } = &*first;
            // A batch cannot have too much text of topics: 256 events of at most 4 MiB are below 2 GiB.
            let (slot, arrival_us, position) = (*slot, *arrival_us, *position);
            let event = Event { input: 0, slot, arrival_us, position, topic, payload };
            if group.hand_event(event) == Push::Full {
                return false;
            }
            self.targets.pop();
        }
        self.undecoded.pop_front();
        true
    }

    /// Drops what waits for queries that go. `gone` is in ascending order.
    pub(super) fn forget(&mut self, group: &Arc<Group>, gone: &[Slot]) {
        let is_gone = |of: &Arc<Group>, slot: Slot| Arc::ptr_eq(of, group) && gone.binary_search(&slot).is_ok();
        self.targets.retain(|(of, slot)| !is_gone(of, *slot));
        for (of, rows) in &mut self.rows {
            rows.retain_slots(|slot| !is_gone(of, slot));
        }
    }

    /// Rows and payloads that wait for queries of one group go to the queries in the same slots of another one.
    pub(super) fn succeed(&mut self, before: &Arc<Group>, after: &Arc<Group>) {
        let of_rows = self.rows.iter_mut().map(|(of, _)| of);
        for of in of_rows.chain(self.targets.iter_mut().map(|(of, _)| of)).filter(|of| Arc::ptr_eq(of, before)) {
            *of = after.clone();
        }
    }

    /// Drops what waits for topics that go.
    pub(super) fn forget_topics(&mut self, gone: &[Slot]) {
        self.undecoded.retain(|one| one.has_targets || !gone.contains(&one.topic));
        for (batch, from) in &mut self.batches {
            let rest = batch.slice(*from, batch.rows() - *from);
            let keep: BooleanArray = rest.slots.iter().map(|slot| Some(!gone.contains(slot))).collect();
            (*batch, *from) = (rest.filter(&keep).expect("a bit for each row"), 0);
        }
    }
}
