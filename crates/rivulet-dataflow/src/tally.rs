//! Tallies: what became of the events of a few slots, counted only while a user asks.
//!
//! What must hold: where nothing is counted, a batch costs one check. Where something is counted, a row of another slot
//! costs one byte read. The number of counted slots, and what is kept of each, is bounded.

use arrow::array::Array;

use crate::{Batch, Events, InputIndex, Reason, Refusal, Refused, Slot};

/// The most slots that are counted at a time.
pub const TALLIES_MAX: usize = 64;

/// How many bytes of the last refused payload are kept.
pub const REFUSED_BYTES_MAX: usize = 1_024;

/// The slot has no tally.
const NONE: u8 = u8::MAX;

/// What became of the events of one slot.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// When counting began, microseconds since the epoch.
    pub since_us: i64,
    /// Whether counting began with the query.
    pub is_from_start: bool,
    /// Whether it is since the query got other values.
    pub is_from_change: bool,
    /// The events of each input; inputs behind the last one with events are left out.
    pub inputs: Vec<Came>,
    /// Rows that reached each operator of the chain, by the number of operators from it to the end: the last operator
    /// is 1, and the output is 0. Operators before the first that had rows are left out.
    pub reached: Vec<Came>,
    /// Rows refused, by [`Reason`].
    pub refused: [u64; Reason::ALL.len()],
    /// The last refused row whose content was kept; of a payload at most [`REFUSED_BYTES_MAX`].
    pub last_refusal: Option<Refusal>,
    /// Which columns of its decoded rows had a value.
    pub values: Values,
    /// The last result, a batch of one row. Kept while a user asks.
    pub last_result: Option<Batch>,
    /// Until when a user asks.
    until_us: i64,
    /// Whether counting goes on when no user asks.
    is_endless: bool,
}

/// Which columns of decoded rows had a value.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// The number of decoded rows.
    pub rows: u64,
    /// For each column, whether any row had a value there.
    pub seen: Vec<bool>,
    /// The last payload, at most [`REFUSED_BYTES_MAX`] of it. Kept while a column had no value.
    pub payload: Vec<u8>,
}

impl Values {
    fn merge(&mut self, other: Self) {
        self.rows += other.rows;
        self.seen.resize(self.seen.len().max(other.seen.len()), false);
        self.seen.iter_mut().zip(other.seen).for_each(|(mine, theirs)| *mine |= theirs);
        if !other.payload.is_empty() {
            self.payload = other.payload;
        }
    }
}

/// How many rows came, and the times of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// The number of rows.
    pub rows: u64,
    /// The event time of the last row; of an event that is not decoded yet, its arrival.
    pub time_us: i64,
    /// When the last row reached the engine.
    pub arrival_us: i64,
    /// When the last row came here, by the host's clock.
    pub at_us: i64,
}

impl Tally {
    /// A tally that begins now and ends with the last question.
    pub fn new(now_us: i64, until_us: i64) -> Self {
        Self { since_us: now_us, until_us, ..Self::default() }
    }

    /// A tally of a new query's slot, without an end.
    pub fn from_start(now_us: i64) -> Self {
        Self { is_from_start: true, is_endless: true, ..Self::new(now_us, i64::MIN) }
    }

    /// An empty tally with the same end as this one.
    #[must_use]
    pub fn anew(&self, now_us: i64) -> Self {
        Self { is_endless: self.is_endless, ..Self::new(now_us, self.until_us) }
    }

    /// The same where the query has other values from now on: what was counted is of the values before.
    #[must_use]
    pub fn changed(&self, now_us: i64) -> Self {
        Self { is_from_change: true, ..self.anew(now_us) }
    }

    /// The rows that reached an operator; `left` is the number of operators from it to the end.
    pub fn reached(&self, left: usize) -> Came {
        self.reached.get(left).copied().unwrap_or_default()
    }

    /// Extends the tally: a user asks, so it does not end before `until_us`.
    pub fn extend(&mut self, until_us: i64) {
        self.until_us = self.until_us.max(until_us);
    }

    /// Until when events are counted if no user asks again; `None` if counting goes on with the query.
    pub fn until_us(&self) -> Option<i64> {
        (!self.is_endless).then_some(self.until_us)
    }

    /// Gives an endless tally an end: the last question, or now if no user asked.
    pub fn limit(&mut self) {
        self.is_endless = false;
    }

    /// Adds the counts of another instance for the same slot.
    pub fn merge(&mut self, other: Self) {
        for (mine, theirs) in [(&mut self.inputs, other.inputs), (&mut self.reached, other.reached)] {
            mine.resize(mine.len().max(theirs.len()), Came::default());
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                let rows = mine.rows + theirs.rows;
                *mine = Came { rows, ..if theirs.at_us > mine.at_us { theirs } else { *mine } };
            }
        }
        for (mine, theirs) in self.refused.iter_mut().zip(other.refused) {
            *mine += theirs;
        }
        let is_later =
            |theirs: &Refusal| self.last_refusal.as_ref().is_none_or(|last| last.arrival_us <= theirs.arrival_us);
        if let Some(refusal) = other.last_refusal.filter(is_later) {
            self.last_refusal = Some(refusal);
        }
        self.values.merge(other.values);
        self.last_result = other.last_result.or(self.last_result.take());
    }
}

/// The tallies of a few slots.
#[derive(Clone, Debug, Default)]
pub struct Tallies {
    /// For each slot the index of its tally; slots behind the highest one with a tally are left out.
    places: Vec<u8>,
    tallies: Vec<(Slot, Tally)>,
}

impl Tallies {
    /// The tally of a slot, if it has one.
    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Tally> {
        match self.places.get(slot as usize) {
            None | Some(&NONE) => None,
            Some(&place) => Some(&mut self.tallies[usize::from(place)].1),
        }
    }

    /// The tally of a slot, to be read.
    pub fn get(&self, slot: Slot) -> Option<&Tally> {
        self.tallies.iter().find(|(of, _)| *of == slot).map(|(_, tally)| tally)
    }

    /// Gives a slot a tally. If there are too many, the one that nobody has asked about for longest ends.
    pub fn set(&mut self, slot: Slot, tally: Tally) {
        if let Some(known) = self.get_mut(slot) {
            *known = tally;
            return;
        }
        if self.tallies.len() == TALLIES_MAX {
            let oldest =
                self.tallies.iter().enumerate().min_by_key(|(_, (_, tally))| (tally.is_endless, tally.until_us));
            let oldest = oldest.map_or(0, |(place, _)| place);
            self.tallies.remove(oldest);
        }
        self.tallies.push((slot, tally));
        self.place();
    }

    /// Keeps only the tallies for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(Slot, &mut Tally) -> bool) {
        let before = self.tallies.len();
        self.tallies.retain_mut(|(slot, tally)| keep(*slot, tally));
        if self.tallies.len() != before {
            self.place();
        }
    }

    /// Ends the tallies that nobody asks about any more. Returns whether any is left.
    pub fn expire(&mut self, now_us: i64) -> bool {
        let goes_on = |tally: &Tally| tally.is_endless || tally.until_us > now_us;
        if !self.tallies.iter().all(|(_, tally)| goes_on(tally)) {
            self.retain(|_, tally| goes_on(tally));
        }
        !self.is_empty()
    }

    /// Whether no slot is counted.
    pub fn is_empty(&self) -> bool {
        self.tallies.is_empty()
    }

    /// Empty tallies of the same slots, for another instance.
    pub fn fork(&self) -> Self {
        let fork = |(slot, tally): &(Slot, Tally)| (*slot, tally.anew(tally.since_us));
        Self { places: self.places.clone(), tallies: self.tallies.iter().map(fork).collect() }
    }

    /// Adds the counts of other instances.
    pub fn merge(&mut self, other: Self) {
        for (slot, tally) in other.tallies {
            if let Some(known) = self.get_mut(slot) {
                known.merge(tally);
            }
        }
    }

    /// Counts an event of a slot.
    #[inline]
    pub fn event(&mut self, slot: Slot, input: InputIndex, arrival_us: i64, now_us: i64) {
        if let Some(tally) = self.get_mut(slot) {
            note(
                &mut tally.inputs,
                usize::from(input),
                Came { rows: 1, time_us: arrival_us, arrival_us, at_us: now_us },
            );
        }
    }

    /// Notes which columns of decoded rows have values. `events` are the payloads they come from, if they are known.
    pub(crate) fn decoded(&mut self, rows: &Batch, events: Option<&Events>) {
        for row in 0..rows.rows() {
            let Some(tally) = self.get_mut(rows.slots[row]) else { continue };
            let values = &mut tally.values;
            values.rows += 1;
            values.seen.resize(rows.columns.num_columns(), false);
            for (seen, column) in values.seen.iter_mut().zip(rows.columns.columns()) {
                *seen = *seen || column.is_valid(row);
            }
        }
        let Some(events) = events else { return };
        for (slot, Tally { values, .. }) in &mut self.tallies {
            if values.seen.iter().all(|seen| *seen) {
                values.payload = Vec::new();
            } else if let Some(row) = events.slots().iter().rposition(|of| of == slot) {
                let payload = events.payload(row);
                values.payload.clear();
                values.payload.extend_from_slice(&payload[..payload.len().min(REFUSED_BYTES_MAX)]);
            }
        }
    }

    /// Counts rows that reached an operator; `left` is the number of operators from it to the end, 0 for rows that have
    /// left the chain.
    pub(crate) fn reached(&mut self, left: usize, batch: &Batch, now_us: i64) {
        for row in 0..batch.rows() {
            let Some(tally) = self.get_mut(batch.slots[row]) else { continue };
            let (time_us, arrival_us) = (batch.event_time_us[row], batch.arrival_us[row]);
            note(&mut tally.reached, left, Came { rows: 1, time_us, arrival_us, at_us: now_us });
        }
        if left > 0 {
            return;
        }
        // The row is copied, so that it does not keep the rest of the batch in memory; and only while a user asks.
        for (slot, tally) in self.tallies.iter_mut().filter(|(_, tally)| tally.until_us > now_us) {
            if let Some(row) = batch.slots.iter().rposition(|of| of == slot) {
                tally.last_result = batch.take(&[row as u32]).ok();
            }
        }
    }

    /// Counts a refused row of a slot.
    pub(crate) fn refused(&mut self, slot: Slot, reason: Reason) {
        if let Some(tally) = self.get_mut(slot) {
            tally.refused[reason as usize] += 1;
        }
    }

    /// Takes the kept contents of refused rows, oldest first.
    pub(crate) fn take_records(&mut self, records: &mut Vec<Refusal>) {
        for (slot, tally) in &mut self.tallies {
            let Some(place) = records.iter().rposition(|record| record.slot == *slot) else { continue };
            let mut last = records.remove(place);
            last.content = match last.content {
                Refused::Payload(payload) => Refused::Payload(payload[..payload.len().min(REFUSED_BYTES_MAX)].into()),
                Refused::Row(row) => Refused::Row(Box::new(row.take(&[0]).unwrap_or(*row))),
            };
            tally.last_refusal = Some(last);
        }
    }

    fn place(&mut self) {
        let slots = self.tallies.iter().map(|(slot, _)| *slot as usize + 1).max().unwrap_or(0);
        self.places.clear();
        self.places.resize(slots, NONE);
        self.places.shrink_to(slots);
        for (place, (slot, _)) in self.tallies.iter().enumerate() {
            self.places[*slot as usize] = place as u8;
        }
    }
}

#[inline]
fn note(all: &mut Vec<Came>, place: usize, one: Came) {
    if place >= all.len() {
        all.resize(place + 1, Came::default());
    }
    let rows = all[place].rows + one.rows;
    all[place] = Came { rows, ..one };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};

    use super::*;
    use crate::Refusals;

    fn batch(slots: &[Slot]) -> Batch {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(slots.iter().map(|&slot| i64::from(slot))));
        let times: Vec<i64> = (0..slots.len() as i64).collect();
        let columns = RecordBatch::try_from_iter([("v", values)]).unwrap();
        Batch::new(slots.to_vec().into(), times.clone().into(), times.into(), columns)
    }

    #[test]
    fn slots_with_a_tally_are_counted_and_no_others() {
        let mut tallies = Tallies::default();
        tallies.set(3, Tally::new(10, 100));
        tallies.set(1, Tally::from_start(10));
        for (slot, input) in [(3, 0), (2, 0), (3, 1), (9, 0), (1, 1)] {
            tallies.event(slot, input, 11, 12);
        }
        tallies.reached(1, &batch(&[3, 2, 3, 1]), 13);
        tallies.reached(0, &batch(&[3, 2, 3, 1]), 14);
        let three = tallies.get(3).unwrap();
        assert_eq!(three.inputs.iter().map(|input| input.rows).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(three.reached(1), Came { rows: 2, time_us: 2, arrival_us: 2, at_us: 13 });
        assert_eq!(three.last_result.as_ref().unwrap().event_time_us.as_ref(), &[2]);
        let one = tallies.get(1).unwrap();
        assert_eq!((one.reached(0).rows, one.reached(7).rows, one.last_result.is_none()), (1, 0, true));
        assert!(tallies.get(2).is_none());
    }

    #[test]
    fn columns_without_any_value_are_known_with_the_last_payload() {
        let mut tallies = Tallies::default();
        tallies.set(1, Tally::new(0, i64::MAX));
        let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(2), None]));
        let rows = Batch { columns: RecordBatch::try_from_iter([("v", nulls)]).unwrap(), ..batch(&[1, 2, 1]) };
        let mut events = Events::default();
        [(1, "a"), (2, "b"), (1, "c")].into_iter().for_each(|(slot, payload)| events.push(slot, 5, payload.as_bytes()));
        tallies.decoded(&rows, Some(&events));
        let values = &tallies.get(1).unwrap().values;
        assert_eq!((values.rows, values.seen.as_slice(), values.payload.as_slice()), (2, &[false][..], &b"c"[..]));
        tallies.decoded(&batch(&[1]), Some(&events));
        let values = &tallies.get(1).unwrap().values;
        assert_eq!((values.rows, values.seen.as_slice(), values.payload.is_empty()), (3, &[true][..], true));
    }

    #[test]
    fn there_is_a_bound_and_an_end() {
        let mut tallies = Tallies::default();
        tallies.set(0, Tally::from_start(0));
        for slot in 1..=TALLIES_MAX as Slot {
            tallies.set(slot, Tally::new(0, 100 + i64::from(slot)));
        }
        assert!(tallies.get(1).is_none(), "the one that was asked about first has made room");
        assert!(tallies.get(0).is_some() && tallies.get_mut(64).is_some());
        assert!(tallies.expire(150) && tallies.get(50).is_none() && tallies.get(51).is_some());
        tallies.retain(|slot, _| slot != 0);
        assert!(!tallies.expire(1_000));
    }

    #[test]
    fn what_instances_beside_it_count_is_added() {
        let mut tallies = Tallies::default();
        tallies.set(5, Tally::new(1, i64::MAX));
        tallies.event(5, 0, 2, 2);
        let mut beside = tallies.fork();
        beside.event(5, 0, 3, 3);
        beside.reached(2, &batch(&[5]), 4);
        beside.refused(5, Reason::Late);
        tallies.merge(beside);
        let tally = tallies.get(5).unwrap();
        assert_eq!((tally.inputs[0].rows, tally.inputs[0].arrival_us), (2, 3));
        assert_eq!((tally.reached(2).rows, tally.refused[Reason::Late as usize], tally.since_us), (1, 1, 1));
    }

    #[test]
    fn the_last_refusal_is_kept_in_part() {
        let mut refusals = Refusals::new(8);
        refusals.tallies_mut().get_or_insert_default().set(2, Tally::new(0, 100));
        for (slot, text) in [(2, "a"), (1, "b"), (2, "c")] {
            let payload = text.repeat(REFUSED_BYTES_MAX + 1);
            refusals.refuse(slot, Reason::Decode, 5, || (text.into(), Refused::Payload(payload.as_bytes().into())));
        }
        refusals.clear();
        let tally = refusals.tallies().unwrap().get(2).unwrap();
        assert_eq!(tally.refused[Reason::Decode as usize], 2);
        let last = tally.last_refusal.as_ref().unwrap();
        assert!(
            last.detail == "c" && matches!(&last.content, Refused::Payload(kept) if kept.len() == REFUSED_BYTES_MAX)
        );
    }
}
