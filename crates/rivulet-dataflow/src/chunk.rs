//! Events that go to a group as one batch: as payloads, or as rows that several queries read.

use crate::event::stamp;
use crate::{Events, InputIndex, LogPosition, Picked, Slot};

/// Events that are processed as one batch.
#[derive(Debug)]
pub enum Chunk {
    /// Payloads as they arrived.
    Raw(Events),
    /// Decoded rows.
    Rows(Picked),
}

impl Chunk {
    /// The number of events.
    #[inline]
    pub fn rows(&self) -> usize {
        match self {
            Self::Raw(events) => events.rows(),
            Self::Rows(picked) => picked.len(),
        }
    }

    /// The size of the events where payload bytes are bounded.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Raw(events) => events.payload_bytes(),
            Self::Rows(picked) => picked.bytes(),
        }
    }

    /// The slot of each event.
    #[inline]
    pub fn slots(&self) -> &[Slot] {
        match self {
            Self::Raw(events) => events.slots(),
            Self::Rows(picked) => picked.slots(),
        }
    }

    /// The input of each event; empty if all came by the first.
    #[inline]
    pub fn inputs(&self) -> &[InputIndex] {
        match self {
            Self::Raw(events) => events.inputs(),
            Self::Rows(_) => &[],
        }
    }

    /// The order of the event at `row` among all: see [`stamp`].
    #[inline]
    pub fn stamp(&self, row: usize) -> u64 {
        match self {
            Self::Raw(events) => stamp(self.position(row), events.input(row)),
            Self::Rows(_) => stamp(self.position(row), 0),
        }
    }

    /// How many of the oldest events must go to free `bytes`; all of them if that is not enough.
    pub fn rows_to_free(&self, bytes: usize) -> usize {
        match self {
            Self::Raw(events) => events.rows_to_free(bytes),
            Self::Rows(picked) => picked.rows_to_free(bytes),
        }
    }

    /// Removes the oldest `rows` events.
    pub fn drop_front(&mut self, rows: usize) {
        match self {
            Self::Raw(events) => events.drop_front(rows),
            Self::Rows(picked) => drop(picked.split_front(rows)),
        }
    }

    /// Keeps only the events whose slot satisfies `keep`, in order.
    pub fn retain_slots(&mut self, keep: impl Fn(Slot) -> bool) {
        match self {
            Self::Raw(events) => events.retain_slots(keep),
            Self::Rows(picked) => picked.retain_slots(keep),
        }
    }

    /// The log position of the event at `row`; 0 if it is not in the log.
    #[inline]
    pub fn position(&self, row: usize) -> LogPosition {
        match self {
            Self::Raw(events) => events.position(row),
            Self::Rows(picked) => picked.position(row),
        }
    }

    /// Whether any event may be in the log.
    #[inline]
    pub fn has_positions(&self) -> bool {
        match self {
            Self::Raw(events) => !events.positions().is_empty(),
            Self::Rows(picked) => picked.has_positions(),
        }
    }

    /// The lowest log position; `None` if no event is in the log.
    pub fn oldest_position(&self) -> Option<LogPosition> {
        if !self.has_positions() {
            return None;
        }
        (0..self.rows()).map(|row| self.position(row)).filter(|&position| position > 0).min()
    }

    /// Keeps only the rows for which `keep` holds, in order.
    pub fn retain_rows(&mut self, keep: impl Fn(usize) -> bool) {
        match self {
            Self::Raw(events) => {
                let mut kept = Events::default();
                (0..events.rows()).filter(|&row| keep(row)).for_each(|row| kept.push_event(events.event(row)));
                *events = kept;
            }
            Self::Rows(picked) => picked.retain_rows(keep),
        }
    }

    /// When each event reached the engine, microseconds since the epoch. `of_batch` is the same for the rows of the
    /// batch that was made of these events: of payloads some may have been refused, of decoded rows none.
    pub fn arrival_us<'a>(&'a self, of_batch: &'a [i64]) -> &'a [i64] {
        match self {
            Self::Raw(events) => events.arrival_us(),
            Self::Rows(_) => of_batch,
        }
    }

    /// The arrival of the oldest event.
    pub fn oldest_arrival_us(&self) -> Option<i64> {
        match self {
            Self::Raw(events) => events.arrival_us().iter().copied().min(),
            Self::Rows(picked) => picked.arrival_us().min(),
        }
    }

    /// Memory held, in bytes. Shared rows count in full.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Raw(events) => events.memory_bytes(),
            Self::Rows(picked) => picked.memory_bytes(),
        }
    }
}
