//! Rows that cannot be processed. They are always counted, by reason; their content is kept only where somebody asked
//! for it, so that a flood of broken events costs counting and nothing else.

use crate::{Batch, Event, InputIndex, LogPosition, Slot};

/// Why a row was not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Reason {
    /// The payload does not fit the declared format and schema.
    Decode,
    /// The row's event time lies further in the future than the input allows.
    Future,
    /// The row came after its window was closed.
    Late,
    /// An expression failed on the row, for example a division by zero.
    Expression,
    /// The inbox was full and the input says to drop.
    Overflow,
    /// The query was dropped while the event waited.
    Removed,
    /// The group itself failed on the batch: a defect of the engine.
    Internal,
}

impl Reason {
    /// Every reason, in order of discriminant.
    pub const ALL: [Self; 7] =
        [Self::Decode, Self::Future, Self::Late, Self::Expression, Self::Overflow, Self::Removed, Self::Internal];

    /// The name in metrics and dead letters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Future => "future",
            Self::Late => "late",
            Self::Expression => "expression",
            Self::Overflow => "overflow",
            Self::Removed => "removed",
            Self::Internal => "internal",
        }
    }
}

/// What was refused, and why.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The query it was meant for.
    pub slot: Slot,
    /// The input it came by; `None` if it was refused where inputs had come together already.
    pub input: Option<InputIndex>,
    /// The kind of reason.
    pub reason: Reason,
    /// The reason in words, for a person: what was wrong and where.
    pub detail: String,
    /// When the event reached the engine, microseconds since the epoch.
    pub arrival_us: i64,
    /// Where the event stands in the log; 0 if in none, or if that does not matter any more.
    pub position: LogPosition,
    /// What was refused.
    pub content: Refused,
}

/// The content of a refusal.
#[derive(Clone, Debug)]
pub enum Refused {
    /// The raw payload.
    Payload(Box<[u8]>),
    /// A decoded row: a batch with exactly one row.
    Row(Box<Batch>),
}

/// The refusals of one activation of a task.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: [u64; Reason::ALL.len()],
    records: Vec<Refusal>,
    /// How many records are kept beside the counts; 0 where nobody asked for them.
    records_max: usize,
    /// The slot of each refused row, where queries share slots: what is refused is so for each of them.
    slots: Option<Vec<(Reason, Slot)>>,
}

impl Refusals {
    /// Counts refusals and keeps the content of at most `records_max` of them until [`Refusals::clear`].
    pub fn new(records_max: usize) -> Self {
        Self { records_max, ..Self::default() }
    }

    /// From now on the slot of each refused row is kept until [`Refusals::clear`], or is not.
    pub fn keep_slots(&mut self, keeps: bool) {
        if keeps != self.slots.is_some() {
            self.slots = keeps.then(Vec::new);
        }
    }

    /// The slots of refused rows that were kept.
    pub fn slots(&self) -> &[(Reason, Slot)] {
        self.slots.as_deref().unwrap_or_default()
    }

    /// Whether the content of one more refusal would be kept. Ask before building it.
    pub fn wants_content(&self) -> bool {
        self.records.len() < self.records_max
    }

    /// Counts `rows` refused rows without content.
    pub fn count(&mut self, reason: Reason, rows: u64) {
        self.counts[reason as usize] += rows;
    }

    /// Counts one refused row; `content` is called only if it is to be kept.
    pub fn refuse(&mut self, slot: Slot, reason: Reason, arrival_us: i64, content: impl FnOnce() -> (String, Refused)) {
        self.refuse_from(None, slot, reason, arrival_us, content);
    }

    /// The same for what is known to have come by one of the inputs.
    pub fn refuse_from(
        &mut self,
        input: Option<InputIndex>,
        slot: Slot,
        reason: Reason,
        arrival_us: i64,
        content: impl FnOnce() -> (String, Refused),
    ) {
        self.count(reason, 1);
        if let Some(slots) = &mut self.slots {
            slots.push((reason, slot));
        }
        if self.wants_content() {
            let (detail, content) = content();
            self.records.push(Refusal { slot, input, reason, detail, arrival_us, position: 0, content });
        }
    }

    /// Counts an event that cannot be decoded, and keeps its payload, with `detail`, if content is to be kept.
    pub fn refuse_event(&mut self, input: Option<InputIndex>, event: Event<'_>, detail: impl FnOnce() -> String) {
        let kept = self.records.len();
        self.refuse_from(input, event.slot, Reason::Decode, event.arrival_us, || {
            (detail(), Refused::Payload(event.payload.into()))
        });
        self.records[kept..].iter_mut().for_each(|record| record.position = event.position);
    }

    /// Counts a refused row of `batch` and keeps it, with `detail`, if content is to be kept.
    pub fn refuse_row(
        &mut self,
        input: Option<InputIndex>,
        batch: &Batch,
        row: usize,
        reason: Reason,
        detail: impl FnOnce() -> String,
    ) {
        self.refuse_from(input, batch.slots[row], reason, batch.arrival_us[row], || {
            (detail(), Refused::Row(Box::new(batch.slice(row, 1))))
        });
    }

    /// How many rows were refused for `reason` since the last [`Refusals::clear`].
    pub fn counted(&self, reason: Reason) -> u64 {
        self.counts[reason as usize]
    }

    /// The kept records, oldest first.
    pub fn records(&self) -> &[Refusal] {
        &self.records
    }

    /// Whether nothing was refused.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Forgets counts and records.
    pub fn clear(&mut self) {
        self.counts = Default::default();
        self.records.clear();
        if let Some(slots) = &mut self.slots {
            slots.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_everything_and_keeps_what_was_asked_for() {
        let mut refusals = Refusals::new(1);
        for slot in 0..3 {
            refusals
                .refuse(slot, Reason::Decode, 5, || ("not a number".into(), Refused::Payload(b"x".as_slice().into())));
        }
        assert_eq!(refusals.counted(Reason::Decode), 3);
        assert_eq!(refusals.records().len(), 1);
        refusals.keep_slots(true);
        refusals.refuse(7, Reason::Late, 5, || (String::new(), Refused::Payload(Box::default())));
        assert_eq!(refusals.slots(), [(Reason::Late, 7)]);
        refusals.clear();
        assert!(refusals.is_empty() && refusals.slots().is_empty());
    }

    #[test]
    fn reasons_are_in_order_of_discriminant() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }
}
