//! The sink of a shared input: hands rows on to the queries they can concern.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::BooleanArray;
use rivulet_dataflow::{Batch, Event, LogPosition, Push, Refusals, Refused, Sink, SinkError, Slot, SlotTable};
use rivulet_runtime::{Group, Picked};

use super::readers::{Known, Readers};

pub(super) struct FanOut {
    readers: Arc<Readers>,
}

/// What is to be handed on.
#[derive(Default)]
pub(super) struct Waiting {
    /// Batches, and from which row on.
    batches: VecDeque<(Batch, usize)>,
    /// Rows for an application whose inbox had no room.
    rows: Vec<(Arc<Group>, Picked)>,
    /// Payloads that could not be decoded.
    undecoded: VecDeque<Undecoded>,
    /// Who has yet to get the first of them.
    targets: Vec<(Arc<Group>, Slot)>,
}

struct Undecoded {
    topic: Slot,
    arrival_us: i64,
    position: LogPosition,
    payload: Box<[u8]>,
    /// Whether `targets` are those of this one.
    has_targets: bool,
}

impl FanOut {
    pub(super) fn new(readers: Arc<Readers>) -> Self {
        Self { readers }
    }
}

impl Sink for FanOut {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        let known = self.readers.known();
        let mut waiting = self.readers.waiting.lock();
        waiting.batches.push_back((batch.clone(), 0));
        waiting.hand_on(&known);
        Ok(())
    }

    fn refused(&mut self, refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        let known = self.readers.known();
        let mut waiting = self.readers.waiting.lock();
        waiting.undecoded.extend(refusals.records().iter().filter_map(|refusal| match &refusal.content {
            Refused::Payload(payload) => Some(Undecoded {
                topic: refusal.slot,
                arrival_us: refusal.arrival_us,
                position: refusal.position,
                payload: payload.clone(),
                has_targets: false,
            }),
            Refused::Row(_) => None,
        }));
        waiting.hand_on(&known);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Whether everything was handed on; tries again what was not.
    fn has_room(&self) -> bool {
        let known = self.readers.known();
        self.readers.waiting.lock().hand_on(&known)
    }
}

impl Waiting {
    /// Hands on as much as there is room for. Whether that was everything.
    fn hand_on(&mut self, known: &Known) -> bool {
        loop {
            self.rows = std::mem::take(&mut self.rows)
                .into_iter()
                .filter_map(|(group, rows)| group.push_rows(rows).map(|rows| (group, rows)))
                .collect();
            if !self.hand_on_undecoded(known) || !self.rows.is_empty() {
                return false;
            }
            let Some((batch, from)) = self.batches.pop_front() else { return true };
            let next = known.pick(&batch, from, &mut self.rows);
            if next < batch.rows() {
                self.batches.push_front((batch, next));
            }
        }
    }

    fn hand_on_undecoded(&mut self, known: &Known) -> bool {
        while let Some(first) = self.undecoded.front_mut() {
            if !first.has_targets {
                self.targets.extend(known.all(first.topic).map(|(group, slot)| (group.clone(), slot)));
                first.has_targets = true;
            }
            while let Some((group, slot)) = self.targets.last() {
                let Undecoded { arrival_us, position, payload, .. } = &*first;
                let event = Event { input: 0, slot: *slot, arrival_us: *arrival_us, position: *position, payload };
                if group.push_event(event, false) == Push::Full {
                    return false;
                }
                self.targets.pop();
            }
            self.undecoded.pop_front();
        }
        true
    }

    /// Forgets what waits for queries that go. `gone` is in ascending order.
    pub(super) fn forget(&mut self, group: &Arc<Group>, gone: &[Slot]) {
        let is_gone = |of: &Arc<Group>, slot: Slot| Arc::ptr_eq(of, group) && gone.binary_search(&slot).is_ok();
        self.targets.retain(|(of, slot)| !is_gone(of, *slot));
        for (of, rows) in &mut self.rows {
            rows.retain_slots(|slot| !is_gone(of, slot));
        }
    }

    /// Forgets what waits for topics that go.
    pub(super) fn forget_topics(&mut self, gone: &[Slot]) {
        self.undecoded.retain(|one| one.has_targets || !gone.contains(&one.topic));
        for (batch, from) in &mut self.batches {
            let rest = batch.slice(*from, batch.rows() - *from);
            let keep: BooleanArray = rest.slots.iter().map(|slot| Some(!gone.contains(slot))).collect();
            (*batch, *from) = (rest.filter(&keep).expect("a bit for each row"), 0);
        }
    }
}
