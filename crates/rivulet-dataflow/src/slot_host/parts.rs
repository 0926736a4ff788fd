//! Several hosts side by side over the same queries: one busy query is processed by several threads ([`Cut`]).
//!
//! All hosts get all events. Each has the state of its own key groups, or none at all; so together they do what one
//! host does. The driver decides which host prepares which events, and hands them on in order.
//!
//! [`Cut`]: crate::Cut

use super::SlotHost;
use crate::operator::caught;
use crate::{
    Batch, Chain, Control, Decoder, GroupSink, KeyGroup, KeyGroups, Slot, SlotTable, StateError, StateFrame,
    StateSelection, Surroundings,
};

impl SlotHost {
    /// A host beside this one, with its queries and without state. As long as it exists, no query is added, removed or
    /// changed.
    #[must_use]
    pub fn fork(&self, decoder: Box<dyn Decoder>, chain: Chain, now_us: i64, sink: &mut dyn GroupSink) -> Self {
        let mut fork = Self::over(self.slots.clone(), decoder, chain);
        *fork.refusals.tallies_mut() = self.refusals.tallies().map(|tallies| Box::new(tallies.fork()));
        fork.control(Control::AddSlots(self.slots.slots().collect::<Vec<Slot>>()), now_us, sink);
        fork
    }

    /// How keys are divided among key groups.
    pub fn key_groups(&self) -> KeyGroups {
        self.chain.key_groups()
    }

    /// Makes this host one of several: it goes on with the operators and the state of `part`, which was forked from it.
    pub fn become_part(&mut self, part: Self) {
        self.chain = part.chain;
        // Changes of parts are not tracked by slot: there are few slots, and all are busy.
        if let Some(progress) = &mut self.progress {
            progress.change_all(self.slots.slots());
        }
    }

    /// Gives this host the state of all hosts beside it, which are dropped next.
    ///
    /// # Errors
    /// State that cannot be exported or imported.
    pub fn take_state_of(&mut self, others: &[&Self]) -> Result<(), StateError> {
        let mut of_hosts = vec![self.chain.export_state(&StateSelection::All)?.into_iter()];
        for other in others {
            of_hosts.push(other.chain.export_state(&StateSelection::All)?.into_iter());
        }
        let operators = of_hosts[0].len();
        let together = (0..operators).map(|_| {
            let frames: Vec<StateFrame> = of_hosts.iter_mut().filter_map(|frames| frames.next().flatten()).collect();
            StateFrame::concat(&frames)
        });
        let together = together.collect::<Result<Vec<_>, StateError>>()?;
        self.chain.import_state(&together)
    }

    /// Adds the counts of a host beside this one, which is dropped next.
    pub fn take_tallies_of(&mut self, other: &mut Self) {
        let of_other = other.refusals.tallies_mut().take();
        if let (Some(tallies), Some(of_other)) = (self.refusals.tallies_mut(), of_other) {
            tallies.merge(*of_other);
        }
    }

    /// This host is the only one again: none of its queries counts as silent.
    pub fn end_parts(&mut self) {
        self.idle.note_all();
    }

    /// Runs rows up to the operator at `place`. Returns the rows that it accepts, with the key group of each.
    pub fn prepare(&mut self, place: usize, batch: Batch, now_us: i64) -> Vec<(Batch, Vec<KeyGroup>)> {
        let rows = batch.rows() as u64;
        let Self { chain, slots, refusals, .. } = self;
        let slots: &SlotTable = slots;
        let outcome = caught(|| {
            let (mut reached, mut prepared) = (Vec::new(), Vec::new());
            let with = Surroundings { now_us, slots, refusals: &mut *refusals };
            let mut result = chain.process_before(place, batch, with, &mut |batch| reached.push(batch));
            for batch in reached {
                let with = Surroundings { now_us, slots, refusals: &mut *refusals };
                match chain.key_groups_of(place, batch, with) {
                    Ok((batch, _)) if batch.is_empty() => {}
                    Ok(with_key_groups) => prepared.push(with_key_groups),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            Ok((prepared, result))
        });
        let (prepared, result) = outcome.unwrap_or_else(|error| (Vec::new(), Err(error)));
        if let Err(error) = result {
            self.failed(error, rows);
        }
        prepared
    }

    /// Runs the rows `own` of a batch, ascending, through the operators from `place` on. The other rows belong to the
    /// hosts beside this one.
    pub fn process_own(&mut self, place: usize, batch: &Batch, own: &[u32], now_us: i64, sink: &mut dyn GroupSink) {
        let run = |chain: &mut Chain, with: Surroundings<'_>, out: &mut dyn FnMut(Batch)| {
            chain.process_own(place, batch, own, with, out)
        };
        self.run(own.len() as u64, now_us, sink, run);
    }
}
