//! What a task tells of a query when a user asks: what became of its events ([`Tally`]), and what its operators hold.
//!
//! What must hold: a task with many queries counts only for those that users ask about. A task with a few queries
//! counts for each of them from the start, because a user who tries an application asks after the events have come.

use rivulet_dataflow::{Chunk, Holding, QueryId, Slot, Tally};

use super::{Core, Task};

/// A task with at most this many queries counts for each of them.
const FEW_QUERIES: usize = 16;

/// The answer to a user's question about a query.
#[derive(Clone, Debug)]
pub struct Examined {
    /// What became of its events since counting began.
    pub tally: Tally,
    /// What each operator holds for it, in chain order.
    pub holdings: Vec<Option<Holding>>,
    /// When its next timer is due, microseconds since the epoch.
    pub timer_us: Option<i64>,
    /// Whether its state is spilled.
    pub is_spilled: bool,
    /// The number of its events that wait.
    pub waiting: u64,
    /// Whether its task waits because the sink has no room.
    pub is_blocked: bool,
    /// The number of all its results, where that outlives the process.
    pub results: Option<u64>,
    /// The host's clock, microseconds since the epoch.
    pub now_us: i64,
}

impl Task {
    /// A query has other values from now on. Where it shares its slot, all that has changed is where results go.
    pub(crate) fn tally_change(&self, core: &mut Core, slot: Slot) {
        let is_shared = core.slots.queries_in(slot) > 1;
        let tallies = core.refusals.tallies_mut().as_mut().filter(|_| !is_shared);
        if let Some(tally) = tallies.and_then(|tallies| tallies.get_mut(slot)) {
            *tally = tally.changed(self.host.clock.now_us());
        }
    }

    /// Tells what is known of the query in a slot; `None` if the query is not there, or runs in parts. From now on its
    /// events are counted, until `for_us` after the last question.
    pub(crate) fn examine(&self, slot: Slot, query: QueryId, for_us: i64) -> Option<Examined> {
        let mut core = self.core.lock();
        if self.parts() > 1 {
            return None;
        }
        core.slots.find(slot, query)?;
        let now_us = self.host.clock.now_us();
        let until_us = now_us.saturating_add(for_us);
        let tallies = core.refusals.tallies_mut().get_or_insert_default();
        tallies.expire(now_us);
        if tallies.get(slot).is_none() {
            tallies.set(slot, Tally::new(now_us, until_us));
        }
        let tally = tallies.get_mut(slot)?;
        tally.extend(until_us);
        Some(Examined {
            tally: tally.clone(),
            holdings: core.chain.holdings(slot),
            timer_us: core.chain.slot_deadline_us(slot),
            is_spilled: self.is_spilled_task(),
            waiting: self.inbox.lock().slots().filter(|of| *of == slot).count() as u64,
            is_blocked: !core.sink.has_room(),
            results: core.progress.as_ref().map(|progress| progress.mark(slot).results),
            now_us,
        })
    }
}

impl Core {
    /// Begins tallies of new queries, in a group that counts for few.
    pub(super) fn tally_new(&mut self, slots: &[Slot], now_us: i64) {
        let has_few = self.slots.live() <= FEW_QUERIES;
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

    /// The tally of a slot, to be moved to another task.
    pub(crate) fn tally(&self, slot: Slot) -> Option<Tally> {
        self.refusals.tallies()?.get(slot).cloned()
    }

    /// Puts the tallies of queries that were moved here from another task.
    pub(crate) fn put_tallies(&mut self, slots: &[Slot], taken: Vec<Option<Tally>>) {
        let has_few = self.slots.live() <= FEW_QUERIES;
        for (&slot, tally) in slots.iter().zip(taken) {
            match tally {
                Some(mut tally) => {
                    if !has_few {
                        tally.limit();
                    }
                    self.refusals.tallies_mut().get_or_insert_default().set(slot, tally);
                }
                // A hot query may be moved to a task of its own without anybody asking about it.
                None => self.forget_tallies(&[slot]),
            }
        }
    }

    /// Counts taken events, for the slots that users ask about.
    pub(super) fn tally_events(&mut self, chunk: &Chunk, now_us: i64) {
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

    /// Adds the counts of a part of the task.
    pub(super) fn take_tallies(&mut self, part: &mut Self) {
        let of_part = part.refusals.tallies_mut().take();
        if let (Some(tallies), Some(of_part)) = (self.refusals.tallies_mut(), of_part) {
            tallies.merge(*of_part);
        }
    }
}
