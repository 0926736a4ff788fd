//! State time-to-live: finds the keys that no row has touched for the time-to-live, by the watermark, so that they are
//! forgotten.
//!
//! A key waits in a bucket of event time. Once the watermark has passed the bucket, the key is checked: if no row has
//! touched it since, it is forgotten; otherwise it waits in a later bucket. So a row costs a comparison, a live key one
//! check in each time-to-live, and an expired key its removal. A key is forgotten at most a [`BUCKETS`]th of its
//! time-to-live later than it could be.

use std::collections::BTreeMap;

use arrow::array::BooleanArray;
use arrow::error::ArrowError;
use rivulet_dataflow::{Batch, Context, Reason};

use crate::paged::Paged;

/// The number of buckets in a time-to-live.
const BUCKETS: i64 = 32;
/// The time of the last touch for a key that does not exist.
const NEVER: i64 = i64::MIN;

/// Refuses the retraction of a forgotten row. The results of that row stay; the refusal is counted.
pub(crate) fn refuse_forgotten(batch: &Batch, row: usize, context: &mut Context<'_>) {
    context.refusals.refuse_row(None, batch, row, Reason::Late, || {
        "the row that it takes back is forgotten\nhint: let state_ttl of the query be longer".into()
    });
}

/// When keys, by number, are forgotten.
pub(crate) struct TimeToLive {
    ttl_us: i64,
    bucket_us: i64,
    /// By key: the latest event time of a row that touched it.
    touched_us: Paged<i64>,
    /// By key: whether it is in a bucket. It is in at most one, even if its number is used again.
    waits: Paged<bool>,
    due: BTreeMap<i64, Vec<u32>>,
    watermark_us: i64,
}

impl TimeToLive {
    /// Makes an empty collection, whose keys are to be forgotten after `ttl_us` microseconds.
    pub(crate) fn new(ttl_us: i64) -> Self {
        let bucket_us = (ttl_us / BUCKETS).max(1);
        Self {
            ttl_us,
            bucket_us,
            touched_us: Paged::new(),
            waits: Paged::new(),
            due: BTreeMap::new(),
            watermark_us: i64::MIN,
        }
    }

    /// Notes that rows of these event times have touched these keys.
    pub(crate) fn touch(&mut self, keys: &[u32], times_us: impl IntoIterator<Item = i64>) {
        for (&key, time_us) in keys.iter().zip(times_us) {
            let at = key as usize;
            self.touched_us.grow(at + 1, NEVER);
            self.waits.grow(at + 1, false);
            self.touched_us[at] = self.touched_us[at].max(time_us);
            if !self.waits[at] {
                self.wait(key);
            }
        }
    }

    fn wait(&mut self, key: u32) {
        let expires_us = self.touched_us[key as usize].saturating_add(self.ttl_us);
        self.waits[key as usize] = true;
        self.due.entry(expires_us.div_euclid(self.bucket_us)).or_default().push(key);
    }

    /// Notes that a key was removed for another reason. Its number may be used again.
    pub(crate) fn remove(&mut self, key: u32) {
        if let Some(touched_us) = self.touched_us.get_mut(key as usize) {
            *touched_us = NEVER;
        }
    }

    /// Removes the keys that are to be forgotten at this watermark, and returns them.
    pub(crate) fn expired(&mut self, watermark_us: i64) -> Vec<u32> {
        self.watermark_us = self.watermark_us.max(watermark_us);
        let mut looked_at = Vec::new();
        while let Some(entry) = self.due.first_entry() {
            if entry.key().saturating_add(1).saturating_mul(self.bucket_us) > watermark_us {
                break;
            }
            looked_at.append(&mut entry.remove());
        }
        looked_at.retain(|&key| {
            let at = key as usize;
            self.waits[at] = false;
            let touched_us = self.touched_us[at];
            let is_expired = touched_us.saturating_add(self.ttl_us) < watermark_us;
            match is_expired {
                true => self.touched_us[at] = NEVER,
                false => self.wait(key),
            }
            is_expired && touched_us != NEVER
        });
        looked_at
    }

    /// Removes all keys, and returns them. What is too late afterwards is what was before.
    pub(crate) fn take_all(&mut self) -> Vec<u32> {
        let watermark_us = self.watermark_us;
        let all = self.expired(i64::MAX);
        self.watermark_us = watermark_us;
        all
    }

    /// Refuses the rows that come too late, and returns the others. Only a time-to-live of zero has late rows: its keys
    /// are those of windows, and their rows have the last microsecond of the window as event time. The state of such a
    /// key is forgotten with its window, so a later row would begin anew although results have been emitted. With any
    /// other time-to-live no row is late.
    pub(crate) fn without_late(&self, batch: Batch, context: &mut Context<'_>) -> Result<Batch, ArrowError> {
        let is_late = |&time_us: &i64| time_us < self.watermark_us;
        if self.ttl_us > 0 || !batch.event_time_us.iter().any(is_late) {
            return Ok(batch);
        }
        let in_time: BooleanArray = batch.event_time_us.iter().map(|time_us| Some(!is_late(time_us))).collect();
        for row in (!in_time.values()).set_indices() {
            context.refusals.refuse_late(&batch, row, self.watermark_us, "the row's window is closed");
        }
        batch.filter(&in_time)
    }

    /// The latest event time of a row that touched a key.
    pub(crate) fn touched_us(&self, key: u32) -> i64 {
        self.touched_us.get(key as usize).copied().unwrap_or(NEVER)
    }

    /// Whether a key exists.
    pub(crate) fn knows(&self, key: u32) -> bool {
        self.touched_us(key) != NEVER
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.touched_us.memory_bytes()
            + self.waits.memory_bytes()
            + self.due.values().map(|keys| keys.capacity() * 4).sum::<usize>()
    }
}

/// What `EXPLAIN` says about state that only a time-to-live bounds.
pub(crate) fn state_text(ttl_us: Option<i64>, what: &str) -> String {
    match ttl_us {
        Some(0) => "state: until the window closes".to_owned(),
        Some(ttl_us) => format!("state: forgotten {} after {what}", span_text(ttl_us)),
        None => "state: unbounded".to_owned(),
    }
}

/// A span of time as `EXPLAIN` shows it: in seconds, or in microseconds if it is less than a millisecond.
pub(crate) fn span_text(span_us: i64) -> String {
    if span_us != 0 && span_us.unsigned_abs() < 1000 {
        format!("{span_us} us")
    } else {
        format!("{} s", span_us as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a check of every key at every watermark.
        #[test]
        fn a_key_is_forgotten_soon_after_its_time_and_never_before(
            ttl_us in 1i64..200,
            steps in prop::collection::vec((0..6u32, 0i64..30, 0..4u8), 1..200),
        ) {
            let mut ttl = TimeToLive::new(ttl_us);
            let mut known: BTreeMap<u32, i64> = BTreeMap::new();
            // A number that is used again waits in the bucket of its previous key.
            let mut latest: BTreeMap<u32, i64> = BTreeMap::new();
            let mut now_us = 0i64;
            for (key, ahead_us, what) in steps {
                match what {
                    0 => {
                        now_us += ahead_us;
                        for key in ttl.expired(now_us) {
                            let touched_us = known.remove(&key);
                            prop_assert!(touched_us.is_some_and(|touched_us| touched_us + ttl_us < now_us));
                        }
                        let reach_us = ttl_us + (ttl_us / BUCKETS).max(1);
                        prop_assert!(known.keys().all(|key| latest[key] + reach_us >= now_us));
                    }
                    1 if known.remove(&key).is_some() => ttl.remove(key),
                    _ => {
                        ttl.touch(&[key], [now_us + ahead_us]);
                        let touched_us = known.entry(key).or_insert(i64::MIN);
                        *touched_us = (*touched_us).max(now_us + ahead_us);
                        prop_assert_eq!(ttl.touched_us(key), *touched_us);
                        let latest = latest.entry(key).or_insert(i64::MIN);
                        *latest = (*latest).max(*touched_us);
                    }
                }
            }
            let entries: usize = ttl.due.values().map(Vec::len).sum();
            prop_assert!(entries <= 6, "a number waits once");
        }
    }

    #[test]
    fn times_at_the_end_of_time_do_not_overflow() {
        let mut ttl = TimeToLive::new(i64::MAX);
        ttl.touch(&[0, 1], [i64::MAX, i64::MIN + 1]);
        assert!(ttl.expired(i64::MAX - 1).len() <= 1);
        ttl.expired(i64::MAX);
    }

    #[test]
    fn short_spans_are_shown_in_microseconds() {
        assert_eq!([-1, 0, 1500, 60_000_000].map(span_text), ["-1 us", "0 s", "0.0015 s", "60 s"]);
    }
}
