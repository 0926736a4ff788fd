//! What becomes of the events of queries that users ask about ([`Tally`]).
//!
//! What must hold: a host of many queries counts only for those that users ask about. A host of a few queries counts
//! for each of them from the start, if it is made so, because a user who tries an application asks after the events
//! have come.

use super::SlotHost;
use crate::{Chunk, Slot, Tally};

/// A host of at most this many queries counts for each of them.
const FEW_QUERIES: usize = 16;

impl SlotHost {
    fn has_few(&self) -> bool {
        self.slots.live() <= FEW_QUERIES
    }

    /// Begins tallies of new queries, if there are few.
    pub(super) fn tally_new(&mut self, slots: &[Slot], now_us: i64) {
        if !self.counts_few {
            return;
        }
        let has_few = self.has_few();
        let tallies = self.refusals.tallies_mut();
        if has_few {
            let tallies = tallies.get_or_insert_default();
            slots.iter().for_each(|&slot| tallies.set(slot, Tally::from_start(now_us)));
        } else if let Some(tallies) = tallies {
            tallies.retain(|_, tally| {
                tally.limit();
                true
            });
        }
    }

    /// Ends the tallies of removed queries.
    pub(super) fn forget_tallies(&mut self, slots: &[Slot]) {
        if let Some(tallies) = self.refusals.tallies_mut() {
            tallies.retain(|slot, _| !slots.contains(&slot));
            if tallies.is_empty() {
                *self.refusals.tallies_mut() = None;
            }
        }
    }

    /// The tally of a slot, which a user asks about: it goes on at least until `until_us`, and begins now if there is
    /// none.
    pub fn ask(&mut self, slot: Slot, now_us: i64, until_us: i64) -> Option<Tally> {
        let tallies = self.refusals.tallies_mut().get_or_insert_default();
        tallies.expire(now_us);
        if tallies.get(slot).is_none() {
            tallies.set(slot, Tally::new(now_us, until_us));
        }
        let tally = tallies.get_mut(slot)?;
        tally.extend(until_us);
        Some(tally.clone())
    }

    /// A query has other values from now on. Where it shares its slot, all that has changed is where results go.
    pub fn tally_change(&mut self, slot: Slot, now_us: i64) {
        let is_shared = self.slots.queries_in(slot) > 1;
        let tallies = self.refusals.tallies_mut().as_mut().filter(|_| !is_shared);
        if let Some(tally) = tallies.and_then(|tallies| tallies.get_mut(slot)) {
            *tally = tally.changed(now_us);
        }
    }

    /// Puts the tallies of queries that were moved here from another host.
    pub(super) fn put_tallies(&mut self, slots: &[Slot], taken: Vec<Option<Tally>>) {
        let has_few = self.has_few();
        for (&slot, tally) in slots.iter().zip(taken) {
            match tally {
                Some(mut tally) => {
                    if !has_few {
                        tally.limit();
                    }
                    self.refusals.tallies_mut().get_or_insert_default().set(slot, tally);
                }
                // A hot query may be moved to a host of its own without anybody asking about it.
                None => self.forget_tallies(&[slot]),
            }
        }
    }

    /// Counts events that were taken for processing, for the slots that users ask about.
    pub fn tally_events(&mut self, chunk: &Chunk, now_us: i64) {
        let all = self.refusals.tallies_mut();
        let Some(tallies) = all else { return };
        if !tallies.expire(now_us) {
            *all = None;
            return;
        }
        match chunk {
            Chunk::Raw(events) => {
                for (row, &slot) in events.slots().iter().enumerate() {
                    tallies.event(slot, events.input(row), events.arrival_us()[row], now_us);
                }
            }
            Chunk::Rows(picked) => {
                for (&slot, arrival_us) in picked.slots().iter().zip(picked.arrival_us()) {
                    tallies.event(slot, 0, arrival_us, now_us);
                }
            }
        }
    }
}
