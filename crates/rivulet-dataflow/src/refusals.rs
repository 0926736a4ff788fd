//! The refusals of one activation: rows that could not be processed. They are always counted, by reason. Their content
//! is kept only on request, so that a flood of broken events costs no more than counting.

use std::fmt;

use crate::times::{at, span};
use crate::{Batch, Event, InputIndex, Reason, Refusal, Refused, Slot, Tallies};

/// What details of errors begin with that a library has noticed, and nobody wants to know.
const LIBRARY: &str = "Arrow error: ";

/// Times that are most likely seconds since 1970 but were read as milliseconds, so that they lie in January 1970. Their
/// rows are accepted all the same, and their windows never close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seconds {
    /// The number of rows.
    pub rows: u64,
    /// One of these times as it was read, microseconds since the epoch.
    pub time_us: i64,
}

impl Seconds {
    /// A time read as milliseconds counts as seconds if, taken as seconds, it is at most this far from the arrival,
    const NEAR_US: i64 = 10 * 366 * 86_400_000_000;

    /// and, as it was read, at least this far before the arrival.
    const FAR_US: i64 = 30 * 366 * 86_400_000_000;

    /// Whether a time of a row that arrived at `arrival_us` is most likely seconds.
    pub fn are(time_us: i64, arrival_us: i64) -> bool {
        let meant_us = time_us.saturating_mul(1_000);
        arrival_us.saturating_sub(time_us) > Self::FAR_US
            && meant_us.saturating_sub(arrival_us).saturating_abs() < Self::NEAR_US
    }

    /// Adds the counts of another instance.
    pub fn add(&mut self, other: Self) {
        self.rows += other.rows;
        if other.rows > 0 {
            self.time_us = other.time_us;
        }
    }

    /// Adds this to the entry at `place` of a list, which grows only as far as needed.
    pub fn add_to(self, all: &mut Vec<Self>, place: usize) {
        if self.rows > 0 {
            all.resize(all.len().max(place + 1), Self::default());
            all[place].add(self);
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, ms) = (self.rows, self.time_us / 1_000);
        let events = if rows == 1 { "1 event has a time" } else { "events have times" };
        if rows != 1 {
            write!(f, "{rows} ")?;
        }
        write!(
            f,
            "{events} of January 1970, such as {ms} ms, decades behind the arrival: a TIMESTAMP that is a number counts milliseconds since \
             1970, and this is probably one of seconds; declare the format with (timestamp => 'seconds'), or send \
             milliseconds or a text such as '2026-01-31T12:00:00Z'"
        )
    }
}

/// How long rows waited for something that is no work: for the end of their window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Results that had to wait.
    pub rows: u64,
    /// All that they waited, microseconds.
    pub sum_us: u64,
    /// The longest wait, microseconds.
    pub max_us: u64,
}

impl Waits {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.max_us = self.max_us.max(other.max_us);
    }

    /// How long a result waited on average, microseconds; `None` if none had to.
    pub fn mean_us(&self) -> Option<u64> {
        self.sum_us.checked_div(self.rows)
    }
}

/// The refusals of one activation of a task, and what else its operators have to tell.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: [u64; Reason::ALL.len()],
    /// Rows that were accepted with times that are most likely wrong, by input; empty while there are none.
    seconds: Vec<Seconds>,
    /// How long results waited for the end of their window.
    waits: Waits,
    records: Vec<Refusal>,
    /// How many records are kept beside the counts; 0 if none are wanted.
    records_max: usize,
    /// The slot of each refused row, where queries share slots: a refusal counts for each query of the slot.
    slots: Option<Vec<(Reason, Slot)>>,
    /// Tallies of the slots that users ask about.
    tallies: Option<Box<Tallies>>,
}

/// The size of [`Refusals`] at one moment.
pub(crate) struct Mark {
    counts: [u64; Reason::ALL.len()],
    seconds: Vec<Seconds>,
    waits: Waits,
    records: usize,
    slots: usize,
    tallies: Option<Box<Tallies>>,
}

impl Refusals {
    /// Counts refusals and keeps the content of at most `records_max` of them until [`Refusals::clear`].
    pub fn new(records_max: usize) -> Self {
        Self { records_max, ..Self::default() }
    }

    /// Sets whether the slot of each refused row is kept until [`Refusals::clear`].
    pub fn keep_slots(&mut self, keeps: bool) {
        if keeps != self.slots.is_some() {
            self.slots = keeps.then(Vec::new);
        }
    }

    /// The slots of refused rows, where they are kept.
    pub fn slots(&self) -> &[(Reason, Slot)] {
        self.slots.as_deref().unwrap_or_default()
    }

    /// Whether the content of another refusal would be kept. Ask before building it.
    pub fn wants_content(&self) -> bool {
        self.records.len() < self.records_max
    }

    /// How many more refusals would have their content kept.
    pub fn room(&self) -> usize {
        self.records_max.saturating_sub(self.records.len())
    }

    /// A result is given at `now_us` whose last row arrived at `arrival_us`: it waited in between.
    pub fn note_wait(&mut self, arrival_us: i64, now_us: i64) {
        let wait_us = now_us.saturating_sub(arrival_us).max(0).unsigned_abs();
        self.waits.add(Waits { rows: 1, sum_us: wait_us, max_us: wait_us });
    }

    /// How long results waited since the last [`Refusals::clear`].
    pub fn waits(&self) -> Waits {
        self.waits
    }

    /// Counts `rows` refused rows without content.
    pub fn count(&mut self, reason: Reason, rows: u64) {
        self.counts[reason as usize] += rows;
    }

    /// Counts one refused row; `content` is called only if it is kept.
    pub fn refuse(&mut self, slot: Slot, reason: Reason, arrival_us: i64, content: impl FnOnce() -> (String, Refused)) {
        self.refuse_from(None, slot, reason, arrival_us, content);
    }

    /// The same for a row that came by a known input.
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
        if let Some(tallies) = &mut self.tallies {
            tallies.refused(slot, reason);
        }
        if self.wants_content() {
            let (mut detail, content) = content();
            if detail.starts_with(LIBRARY) {
                detail.drain(..LIBRARY.len());
            }
            let topic = Box::default();
            self.records.push(Refusal { slot, input, reason, detail, arrival_us, position: 0, content, topic });
        }
    }

    /// Counts an event that cannot be decoded, and keeps its payload and `detail` if content is kept.
    pub fn refuse_event(&mut self, input: Option<InputIndex>, event: Event<'_>, detail: impl FnOnce() -> String) {
        let kept = self.records.len();
        self.refuse_from(input, event.slot, Reason::Decode, event.arrival_us, || {
            (detail(), Refused::Payload(event.payload.into()))
        });
        for record in &mut self.records[kept..] {
            (record.position, record.topic) = (event.position, event.topic.into());
        }
    }

    /// Counts a refused row of `batch` and keeps it with `detail` if content is kept.
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

    /// Refuses a row of a big query that came too late; `what` is why it is of no use any more.
    pub fn refuse_late(&mut self, batch: &Batch, row: usize, watermark_us: i64, what: &str) {
        self.refuse_row(None, batch, row, Reason::Late, || {
            let time_us = batch.event_time_us[row];
            format!(
                "{what}: its event time, {}, is {} behind the watermark\nhint: allow more lateness where the source is \
                 declared, or a longer idle_timeout if it has one",
                at(time_us),
                span(watermark_us.saturating_sub(time_us))
            )
        });
    }

    /// The number of rows refused for `reason` since the last [`Refusals::clear`].
    pub fn counted(&self, reason: Reason) -> u64 {
        self.counts[reason as usize]
    }

    /// Counts rows that arrived at `arrival_us` whose times are most likely seconds that were read as milliseconds.
    /// `inputs` has the input of each row; without it there is only one input. If all times are plausible, this costs
    /// one look at the earliest.
    pub fn note_times(&mut self, inputs: Option<&[InputIndex]>, times_us: &[i64], arrival_us: i64) {
        if !times_us.iter().min().is_some_and(|&earliest_us| Seconds::are(earliest_us, arrival_us)) {
            return;
        }
        for (row, &time_us) in times_us.iter().enumerate().filter(|(_, time_us)| Seconds::are(**time_us, arrival_us)) {
            let input = inputs.map_or(0, |inputs| usize::from(inputs[row]));
            Seconds { rows: 1, time_us }.add_to(&mut self.seconds, input);
        }
    }

    /// By input, rows whose times are most likely seconds that were read as milliseconds. Inputs behind the last one
    /// with such rows are left out.
    pub fn seconds(&self) -> &[Seconds] {
        &self.seconds
    }

    /// The kept records, oldest first.
    pub fn records(&self) -> &[Refusal] {
        &self.records
    }

    /// Whether nothing was refused or noted.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0) && self.seconds.is_empty() && self.waits.rows == 0
    }

    /// The current size, for [`Refusals::go_back_to`].
    pub(crate) fn mark(&self) -> Mark {
        let (records, slots) = (self.records.len(), self.slots().len());
        let (counts, seconds, waits, tallies) = (self.counts, self.seconds.clone(), self.waits, self.tallies.clone());
        Mark { counts, seconds, waits, records, slots, tallies }
    }

    /// Forgets what was refused since a mark. The mark must be newer than the last [`Refusals::clear`].
    pub(crate) fn go_back_to(&mut self, mark: Mark) {
        (self.counts, self.seconds, self.tallies) = (mark.counts, mark.seconds, mark.tallies);
        self.waits = mark.waits;
        self.records.truncate(mark.records);
        if let Some(slots) = &mut self.slots {
            slots.truncate(mark.slots);
        }
    }

    /// Tallies of the slots that users ask about. [`Refusals::clear`] keeps them.
    pub fn tallies(&self) -> Option<&Tallies> {
        self.tallies.as_deref()
    }

    /// The tallies, to be changed.
    pub fn tallies_mut(&mut self) -> &mut Option<Box<Tallies>> {
        &mut self.tallies
    }

    /// Counts rows that reached an operator; `left` is the number of operators from it to the end of the chain, 0 for
    /// rows that have left the chain.
    #[inline]
    pub(crate) fn reached(&mut self, left: usize, batch: &Batch, now_us: i64) {
        if let Some(tallies) = &mut self.tallies {
            tallies.reached(left, batch, now_us);
        }
    }

    /// Forgets counts and records.
    pub fn clear(&mut self) {
        self.counts = Default::default();
        self.seconds.clear();
        self.waits = Waits::default();
        if let Some(tallies) = &mut self.tallies {
            tallies.take_records(&mut self.records);
        }
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
        let mut of_library = Refusals::new(1);
        of_library.refuse(0, Reason::Expression, 5, || {
            ("Arrow error: Divide by zero error".into(), Refused::Payload(Box::default()))
        });
        assert_eq!(of_library.records()[0].detail, "Divide by zero error");
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
    fn seconds_that_were_taken_for_milliseconds_are_found() {
        let arrival_us = 1_800_000_000_000_000;
        let mut refusals = Refusals::new(0);
        refusals.note_times(None, &[arrival_us, 0, 5_000_000, 86_400_000_000, i64::MIN, i64::MAX], arrival_us);
        assert!(refusals.is_empty(), "times of any other kind may be meant");
        let times_us = [arrival_us, 1_800_000_000_000, 1_799_999_000_000];
        refusals.note_times(None, &times_us, arrival_us);
        let both = Seconds { rows: 2, time_us: 1_799_999_000_000 };
        assert_eq!(refusals.seconds(), [both]);
        assert!(both.to_string().starts_with("2 events have times of January 1970"));
        refusals.clear();
        assert!(refusals.is_empty() && refusals.seconds().is_empty());
        refusals.note_times(Some(&[1, 0, 2]), &times_us, arrival_us);
        let one = |time_us| Seconds { rows: 1, time_us };
        assert_eq!(refusals.seconds(), [one(1_800_000_000_000), Seconds::default(), one(1_799_999_000_000)]);
    }
}
