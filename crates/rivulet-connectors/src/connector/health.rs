//! The health of sources and sinks: whether they work, since when they do not, and how much waits.
//!
//! A [`Health`] belongs to one source or sink of one query. Its connector gets it in the
//! [`ConnectorContext`](super::ConnectorContext) when it is opened, and all its instances share it. Code that shows it
//! reads it without waiting for the query.
//!
//! What must hold: rows count as taken when the receiver has acknowledged them, not when they were handed over. However
//! often a connector tries in vain, or its device comes and goes, it causes only a few log lines a minute.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Clock, Sink, SinkError, TransactionalSink};
use serde::{Deserialize, Serialize};

use crate::clock::SystemClock;

/// After this long without success, a source or sink that is retrying is failing.
const FAILING_AFTER: Duration = Duration::from_secs(60);

/// The least time from a log line about trouble to the next log line about retrying.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// The number of queries with a failing receiver that are remembered, and of those of which rows were left out.
const QUERIES_MAX: usize = 1_024;

/// The precision of the time since when the oldest row waits, and the number of such moments that are kept.
const MARK_EVERY: Duration = Duration::from_millis(50);
const MARKS_MAX: usize = 256;

/// The condition of a source or sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// The last attempt succeeded, or there was none.
    #[default]
    Ok,
    /// The last attempt failed, and another one follows.
    Retrying,
    /// It has been retrying for a minute, or has given up.
    Failing,
}

impl Condition {
    /// All conditions, the best first.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Retrying, Self::Failing];

    /// The name in answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Retrying => "retrying",
            Self::Failing => "failing",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The content of a [`Health`] at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// The condition.
    pub condition: Condition,
    /// Since when, microseconds since the epoch.
    pub since_us: i64,
    /// The last error, kept after a recovery; `None` if there never was one.
    pub last_error: Option<String>,
    /// Attempts that failed since the last success.
    pub retries: u64,
    /// Attempts that failed since the start.
    pub failures: u64,
    /// Rows that the receiver of a sink has acknowledged.
    pub rows: u64,
    /// The size of these rows in bytes, as they were sent.
    pub bytes: u64,
    /// Rows that the receiver of a sink has rejected and that were left out.
    pub left_out: u64,
    /// Rows that a sink was given and its receiver has not acknowledged.
    pub waiting_rows: u64,
    /// The bytes on disk of rows that wait, if the sink keeps them there.
    pub waiting_bytes: Option<u64>,
    /// How long the oldest of these has been waiting.
    pub oldest: Option<Duration>,
    /// The number of queries of an application whose own receiver accepts no rows, as far as they are remembered.
    pub failing_queries: usize,
    /// The first of these queries.
    pub failing_query: Option<u64>,
}

/// The health of one source or sink of a query.
#[derive(Debug, Default)]
pub struct Health {
    /// Its name in messages: `sink 'alarms' of the query 'hot'`.
    title: String,
    handed: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    left_out: AtomicU64,
    failures: AtomicU64,
    /// Bytes on disk of rows that wait; 0 if the sink keeps none there.
    kept_bytes: AtomicU64,
    /// Whether the condition is not [`Condition::Ok`]; asked for each message, without the lock.
    is_troubled: AtomicBool,
    course: Mutex<Course>,
    /// The queries of an application whose own receivers accept no rows: the reason, and the number of requests that
    /// waited then.
    queries: Mutex<BTreeMap<u64, (String, usize)>>,
    /// Rows of queries that were left out: their number, and why the last ones were.
    left_out_of: Mutex<BTreeMap<u64, (u64, String)>>,
}

#[derive(Debug, Default)]
struct Course {
    condition: Condition,
    since: Option<Instant>,
    since_us: i64,
    retries: u64,
    /// The number of failed attempts that was last told.
    attempts: Option<u64>,
    last_error: Option<String>,
    /// When trouble was last logged.
    said: Option<Instant>,
    /// Whether the present trouble was logged.
    is_said: bool,
    /// When it was last logged that rows are left out.
    said_left_out: Option<Instant>,
    /// When rows were handed over: the number of the first row, counted from the start, and the moment.
    marks: VecDeque<(u64, Instant)>,
}

impl Health {
    /// The health of a source or sink with this name in the log.
    pub fn new(title: impl Into<String>) -> Self {
        let course = Course { since_us: SystemClock.now_us(), ..Course::default() };
        Self { title: title.into(), course: Mutex::new(course), ..Self::default() }
    }

    /// Notes that the sink was given rows for its receiver. Called once a batch.
    pub fn hand(&self, rows: usize) {
        self.hand_late(rows, Duration::ZERO);
    }

    /// The same with rows that have been waiting for this long.
    pub fn hand_late(&self, rows: usize, waited: Duration) {
        if rows == 0 {
            return;
        }
        let mut course = self.course.lock();
        let handed = self.handed.fetch_add(rows as u64, Ordering::Relaxed) + rows as u64;
        course.forget_marks(self.settled());
        let now = Instant::now();
        let now = now.checked_sub(waited).unwrap_or(now);
        let is_full = course.marks.len() >= MARKS_MAX;
        match course.marks.back_mut() {
            Some((until, since)) if is_full || now - *since < MARK_EVERY => *until = handed,
            _ => course.marks.push_back((handed, now)),
        }
    }

    /// Notes how long the oldest row has been waiting, of rows that were handed over late together.
    pub fn age(&self, waited: Duration) {
        let (mut course, since) = (self.course.lock(), Instant::now().checked_sub(waited));
        course.marks.front_mut().zip(since).into_iter().for_each(|(mark, since)| mark.1 = since);
    }

    /// Notes that the receiver has acknowledged this many rows and bytes.
    pub fn take(&self, rows: usize, bytes: usize) {
        self.take_some(rows, bytes);
        self.recover();
    }

    /// Notes that the receiver has acknowledged this many rows and bytes; whether other receivers accept rows is not
    /// known.
    pub fn take_some(&self, rows: usize, bytes: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes how many bytes of rows that wait an instance had on disk, and has now.
    pub fn keep(&self, before: u64, bytes: u64) {
        self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.kept_bytes.fetch_sub(before, Ordering::Relaxed);
    }

    /// Notes that a query's own receiver accepts no rows, and how many requests wait for it.
    pub fn fail_query(&self, query: u64, problem: &str, requests: usize) {
        let mut queries = self.queries.lock();
        if queries.len() < QUERIES_MAX || queries.contains_key(&query) {
            queries.insert(query, (problem.to_owned(), requests));
        }
    }

    /// Notes that the receiver of a query accepts rows again, or that nothing waits for it any more.
    pub fn recover_query(&self, query: u64) {
        self.queries.lock().remove(&query);
    }

    /// Why the receiver of a query accepts no rows, if it accepts none, and how many requests waited for it when it was
    /// tried last.
    pub fn problem_of_query(&self, query: u64) -> Option<(String, usize)> {
        self.queries.lock().get(&query).cloned()
    }

    /// The number of a query's rows that were left out, and why the last ones were; `None` if there are none, or if
    /// there are too many such queries.
    pub fn left_out_of_query(&self, query: u64) -> Option<(u64, String)> {
        self.left_out_of.lock().get(&query).cloned()
    }

    /// Whether rows were left out that are noted of their queries.
    pub fn has_left_out_of_queries(&self) -> bool {
        !self.left_out_of.lock().is_empty()
    }

    /// Notes rows that have arrived when they are handed over: for sinks that need not wait.
    pub fn hand_and_take(&self, rows: usize, bytes: usize) {
        self.handed.fetch_add(rows as u64, Ordering::Relaxed);
        self.take(rows, bytes);
    }

    /// Notes that the receiver has rejected this many rows, which are left out.
    pub fn leave_out(&self, rows: usize, problem: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let left_out = self.left_out.fetch_add(rows as u64, Ordering::Relaxed) + rows as u64;
        let mut course = self.course.lock();
        course.last_error = Some(problem.to_owned());
        if course.is_to_say_left_out(Instant::now()) {
            tracing::warn!(left_out, "the {} leaves rows out: {problem}", self.title);
        }
    }

    /// Notes of which query rows are that are left out.
    pub fn leave_out_of(&self, query: u64, rows: usize, problem: &str) {
        let mut queries = self.left_out_of.lock();
        if queries.len() < QUERIES_MAX || queries.contains_key(&query) {
            let (left_out, last) = queries.entry(query).or_default();
            *left_out += rows as u64;
            problem.clone_into(last);
        }
    }

    /// Notes that an attempt failed, and that another one follows.
    pub fn retry(&self, problem: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut course = self.course.lock();
        course.retries += 1;
        self.note(&mut course, Condition::Retrying, problem);
    }

    /// Notes that nothing can be sent at present, and how many attempts have failed so far, of which those since the
    /// last call count; at least one has failed since the last success.
    pub fn stand(&self, problem: &str, attempts: u64) {
        let mut course = self.course.lock();
        let before = course.attempts.replace(attempts).unwrap_or(attempts);
        let more = attempts.saturating_sub(before).max(u64::from(course.retries == 0));
        self.failures.fetch_add(more, Ordering::Relaxed);
        course.retries += more;
        self.note(&mut course, Condition::Retrying, problem);
    }

    /// Notes that the source or sink has given up.
    pub fn fail(&self, problem: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.note(&mut self.course.lock(), Condition::Failing, problem);
    }

    /// Notes that an attempt succeeded.
    pub fn recover(&self) {
        if !self.is_troubled.load(Ordering::Acquire) {
            return;
        }
        let mut course = self.course.lock();
        let retries = std::mem::take(&mut course.retries);
        if course.condition != Condition::Ok {
            let (title, for_s) = (&self.title, course.since.map_or(0, |since| since.elapsed().as_secs()));
            course.change(Condition::Ok);
            self.is_troubled.store(false, Ordering::Release);
            if std::mem::take(&mut course.is_said) {
                tracing::info!(retries, "the {title} works again, after {for_s} s");
            }
        }
    }

    /// Whether it does not work at present.
    pub fn is_troubled(&self) -> bool {
        self.is_troubled.load(Ordering::Acquire)
    }

    /// How long the oldest row has been waiting that the receiver has not acknowledged.
    pub fn oldest(&self) -> Option<Duration> {
        let mut course = self.course.lock();
        course.forget_marks(self.settled());
        course.marks.front().map(|(_, since)| since.elapsed())
    }

    /// The present state.
    pub fn report(&self) -> HealthReport {
        let oldest = self.oldest();
        let (failing_queries, failing_query) = {
            let queries = self.queries.lock();
            (queries.len(), queries.keys().next().copied())
        };
        let course = self.course.lock();
        let handed = self.handed.load(Ordering::Relaxed);
        HealthReport {
            condition: course.condition,
            since_us: course.since_us,
            last_error: course.last_error.clone(),
            retries: course.retries,
            failures: self.failures.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            left_out: self.left_out.load(Ordering::Relaxed),
            waiting_rows: handed.saturating_sub(self.settled()),
            waiting_bytes: Some(self.kept_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0),
            oldest,
            failing_queries,
            failing_query,
        }
    }

    /// The number of rows that need no further work.
    fn settled(&self) -> u64 {
        self.rows.load(Ordering::Relaxed) + self.left_out.load(Ordering::Relaxed)
    }

    fn note(&self, course: &mut Course, condition: Condition, problem: &str) {
        let is_long = course.since.is_some_and(|since| since.elapsed() >= FAILING_AFTER);
        let condition = match (course.condition, condition) {
            (Condition::Failing, _) => Condition::Failing,
            (Condition::Retrying, Condition::Retrying) if is_long => Condition::Failing,
            (_, condition) => condition,
        };
        if course.last_error.as_deref() != Some(problem) {
            course.last_error = Some(problem.to_owned());
        }
        if course.condition == condition {
            return;
        }
        let waiting_rows = self.handed.load(Ordering::Relaxed).saturating_sub(self.settled());
        let (title, before) = (&self.title, course.condition);
        // The time counts from the first failed attempt, whatever the condition is called now.
        match before {
            Condition::Ok => course.change(condition),
            _ => course.condition = condition,
        }
        self.is_troubled.store(true, Ordering::Release);
        if course.begin_to_say(condition, Instant::now()) {
            tracing::warn!(waiting_rows, "the {title} is {condition}: {problem}");
        }
    }
}

impl Course {
    fn change(&mut self, condition: Condition) {
        self.condition = condition;
        self.since_us = SystemClock.now_us();
        self.since = Some(Instant::now());
    }

    /// Whether trouble that begins now is to be logged, and notes that it was. A device that comes and goes would fill
    /// the log.
    fn begin_to_say(&mut self, condition: Condition, now: Instant) -> bool {
        let is_early = self.said.is_some_and(|said| now.duration_since(said) < SAID_EVERY);
        if is_early && condition != Condition::Failing {
            return false;
        }
        (self.said, self.is_said) = (Some(now), true);
        true
    }

    /// Whether it is to be logged that rows are left out, and notes that it was.
    fn is_to_say_left_out(&mut self, now: Instant) -> bool {
        let is_early = self.said_left_out.is_some_and(|said| now.duration_since(said) < SAID_EVERY);
        self.said_left_out = self.said_left_out.filter(|_| is_early).or(Some(now));
        !is_early
    }

    /// Forgets when settled rows were handed over.
    fn forget_marks(&mut self, settled: u64) {
        while self.marks.front().is_some_and(|(until, _)| *until <= settled) {
            self.marks.pop_front();
        }
    }
}

/// A sink whose errors, which end its query, are noted in its health.
pub(super) struct Noted {
    sink: Box<dyn Sink>,
    health: Arc<Health>,
    waits_for_commit: bool,
}

impl Noted {
    pub(super) fn new(mut sink: Box<dyn Sink>, health: Arc<Health>) -> Self {
        let waits_for_commit = sink.transactional().is_some_and(|sink| sink.waits_for_commit());
        Self { sink, health, waits_for_commit }
    }

    fn note<T>(&mut self, act: impl FnOnce(&mut dyn Sink) -> Result<T, SinkError>) -> Result<T, SinkError> {
        act(&mut *self.sink).inspect_err(|error| self.health.fail(&error.0))
    }

    fn note_transactional<T>(
        &mut self,
        act: impl FnOnce(&mut dyn TransactionalSink) -> Result<T, SinkError>,
    ) -> Result<T, SinkError> {
        let transactional = self.sink.transactional().expect("it was asked whether it is");
        act(transactional).inspect_err(|error| self.health.fail(&error.0))
    }
}

impl Sink for Noted {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.note(|sink| sink.write(batch))
    }

    fn has_room(&self) -> bool {
        self.sink.has_room()
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.note(|sink| sink.flush())
    }

    fn drain(&mut self) -> Result<bool, SinkError> {
        self.note(|sink| sink.drain())
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        self.note(|sink| sink.finish())
    }

    fn can_resume(&self) -> bool {
        self.sink.can_resume()
    }

    fn hands_over(&self) -> bool {
        self.sink.hands_over()
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        if self.sink.transactional().is_some() { Some(self) } else { None }
    }
}

impl TransactionalSink for Noted {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        self.note_transactional(|sink| sink.prepare())
    }

    fn commit(&mut self, epoch: u64) -> Result<bool, SinkError> {
        self.note_transactional(|sink| sink.commit(epoch))
    }

    fn close(&mut self) -> Result<(), SinkError> {
        self.note_transactional(|sink| sink.close())
    }

    fn waits_for_commit(&self) -> bool {
        self.waits_for_commit
    }

    fn has_rolled_back(&mut self) -> bool {
        self.sink.transactional().is_some_and(|sink| sink.has_rolled_back())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_what_the_receiver_has_not_acknowledged() {
        let health = Health::new("sink 's'");
        health.hand(3);
        std::thread::sleep(2 * MARK_EVERY);
        health.hand(4);
        let all = health.report();
        assert_eq!((all.rows, all.waiting_rows), (0, 7));
        health.take(2, 20);
        let oldest = health.oldest().unwrap();
        health.take(1, 10);
        health.leave_out(1, "no");
        assert!(health.oldest().unwrap() < oldest, "the first three are settled");
        health.take(3, 0);
        let report = health.report();
        assert_eq!((report.rows, report.bytes, report.left_out, report.waiting_rows), (6, 30, 1, 0));
        assert_eq!((report.oldest, report.last_error.as_deref()), (None, Some("no")));
        assert_eq!(report.condition, Condition::Ok);
    }

    #[test]
    fn rows_that_waited_before_the_start_are_as_old_as_they_are() {
        let health = Health::new("sink 's'");
        let waited = Duration::from_secs(3_600);
        health.hand_late(2, waited);
        health.hand(1);
        assert!(health.oldest() >= Some(waited));
        health.take(1, 0);
        health.age(waited / 2);
        assert!(health.oldest() >= Some(waited / 2) && health.oldest() < Some(waited));
        health.take(1, 0);
        assert!(health.oldest() < Some(waited / 2));
    }

    #[test]
    fn a_condition_lasts_until_an_attempt_goes_well() {
        let health = Health::new("sink 's'");
        health.hand(1);
        (0..3).for_each(|_| health.retry("refused"));
        let troubled = health.report();
        assert_eq!((troubled.condition, troubled.retries, troubled.failures), (Condition::Retrying, 3, 3));
        health.stand("refused", 1);
        let known = HealthReport { oldest: None, ..health.report() };
        assert_eq!(known, HealthReport { oldest: None, ..troubled }, "it is known already");
        health.take(1, 1);
        let well = health.report();
        health.stand("refused", 1);
        health.stand("refused", 4);
        let stood = health.report();
        assert_eq!((stood.condition, stood.retries, stood.failures), (Condition::Retrying, 4, 7));
        health.recover();
        // It was up and down again meanwhile.
        health.stand("refused", 7);
        let flapped = health.report();
        assert_eq!((flapped.retries, flapped.failures), (3, 10));
        health.recover();
        assert_eq!((well.condition, well.retries, well.failures), (Condition::Ok, 0, 3));
        assert_eq!(well.last_error.as_deref(), Some("refused"));
        health.course.lock().change(Condition::Retrying);
        health.course.lock().since = Instant::now().checked_sub(FAILING_AFTER);
        health.retry("refused");
        assert_eq!(health.report().condition, Condition::Failing, "for a minute in vain");
    }

    #[test]
    fn a_device_that_comes_and_goes_does_not_fill_the_log() {
        let health = Health::new("sink 's'");
        let is_said = || health.course.lock().is_said;
        health.retry("refused");
        assert!(is_said());
        health.recover();
        for _ in 0..3 {
            health.retry("refused");
            assert!(health.is_troubled() && !is_said(), "a minute is not over");
            health.recover();
        }
        health.retry("refused");
        health.fail("given up");
        assert!(is_said(), "it has given up");
        health.recover();
        let mut course = Course::default();
        let now = Instant::now();
        let later = |s: u64| now + Duration::from_secs(s);
        let said = [0, 59, 60, 61, 119, 120].map(|s| course.begin_to_say(Condition::Retrying, later(s)));
        assert_eq!(said, [true, false, true, false, false, true]);
        let said = [0, 1, 59, 60, 61].map(|s| course.is_to_say_left_out(later(s)));
        assert_eq!(said, [true, false, false, true, false], "a receiver may reject each row");
    }
}
