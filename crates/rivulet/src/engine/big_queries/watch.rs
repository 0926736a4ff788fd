//! Watches big queries in the background. It reports and records that a query has failed. It tries again to start a
//! query whose source or sink could not be opened, as after a power cut, when everything comes up in any order, or
//! whose results since the last checkpoint were lost. Before the queries, it tries again to enter the sources and views
//! that are absent.
//!
//! What must hold: code that starts a query claims its name before the start, or at least before the query becomes
//! known as running. Attempts that fail become rarer. A call that does not answer delays only further attempts, which
//! have a thread of their own.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_sql::{Statement, plan_query};

use super::declared::title;
use super::life::Started;
use super::memory::Ended;
use super::{BigQueries, Life, OneQuery, Remembered, close};
use crate::engine::attempts::Attempts;
use crate::engine::outside::OPEN_MAX;
use crate::engine::threads::Threads;
use crate::service::{FullName, ServiceError};

/// How often all queries are checked.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// How often it checks whether a query has come to its end. Until that is saved, rows that the query has written since
/// its last checkpoint would come twice after a crash.
const END_LOOK_PERIOD: Duration = Duration::from_millis(25);

/// How often it looks where there are no queries and none that is absent.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// How often it checks the times of rows.
const SLOW_LOOK_PERIOD: Duration = Duration::from_secs(10);

/// The pause before the second attempt; it doubles.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The pause after an attempt with a source, sink or view that did not return in time.
const STUCK_PAUSE: Duration = Duration::from_secs(3_600);

/// The state of the thread that keeps bounds.
#[derive(Default)]
struct Watch {
    looked: Option<Instant>,
    /// When the times of rows were last checked.
    looked_at_times: Option<Instant>,
    /// The queries for which it has warned that their times are probably in another unit.
    warned: HashSet<u64>,
    ended: Ended,
}

impl Watch {
    fn look(&mut self, queries: &BigQueries) {
        queries.save_ends();
        let is_due = |at: &mut Option<Instant>, period| {
            let is_due = at.is_none_or(|at| at.elapsed() >= period);
            if is_due {
                *at = Some(Instant::now());
            }
            is_due
        };
        if queries.opener.is_stopped() || !is_due(&mut self.looked, LOOK_PERIOD) {
            return;
        }
        queries.note_failures();
        if is_due(&mut self.looked_at_times, SLOW_LOOK_PERIOD) {
            queries.warn_of_seconds(&mut self.warned);
        }
        queries.keep_memory(&mut self.ended);
    }
}

/// The state of the thread that makes attempts.
#[derive(Default)]
struct Waiting {
    declared: HashMap<u64, Attempts>,
    queries: HashMap<u64, Attempts>,
}

impl Waiting {
    fn look(&mut self, queries: &BigQueries) {
        if queries.opener.is_stopped() {
            return;
        }
        // In this thread, so that a query whose start is under way does not count as one that does not run.
        queries.note_those_that_run();
        if queries.enter_those_that_wait(&mut self.declared) {
            // Queries that wait for these declarations need not wait any longer.
            self.queries.clear();
        }
        queries.start_those_that_wait(&mut self.queries);
    }
}

impl BigQueries {
    /// Starts the threads that watch big queries: one that keeps bounds, and one that makes attempts, each of which may
    /// take as long as [`OPEN_MAX`].
    pub(in crate::engine) fn watch(self: &Arc<Self>, threads: &Arc<Threads>) -> io::Result<()> {
        let (watched, mut watch) = (self.clone(), Watch::default());
        let pause = |queries: &Self, period, idle| if queries.has_none() { idle } else { period };
        threads.start_paced("rivulet-watch", &self.has_some[0], Duration::ZERO, move || {
            watch.look(&watched);
            pause(&watched, END_LOOK_PERIOD, IDLE_PERIOD)
        })?;
        let (attempted, mut waiting) = (self.clone(), Waiting::default());
        threads.start_paced("rivulet-attempts", &self.has_some[1], Duration::ZERO, move || {
            waiting.look(&attempted);
            pause(&attempted, LOOK_PERIOD, 2 * IDLE_PERIOD)
        })
    }

    /// Whether there is no query, and nothing absent that one may wait for.
    fn has_none(&self) -> bool {
        let known = self.known.lock();
        known.queries.is_empty() && known.absent.is_empty()
    }

    pub(super) fn that(&self, is_wanted: impl Fn(&OneQuery) -> bool) -> Vec<(FullName, OneQuery)> {
        let mut known = self.known.lock();
        known.queries.values_mut().for_each(OneQuery::look);
        let wanted = known.queries.iter().filter(|(_, one)| is_wanted(one));
        wanted.map(|(name, one)| (name.clone(), one.clone())).collect()
    }

    /// The sources, sinks and views that are absent for a reason that may pass, in the order of their statements.
    fn absent_for_now(&self) -> Vec<(u64, Remembered)> {
        let known = self.known.lock();
        let wanted = known.absent.iter().filter(|(_, absence)| absence.is_tried_again);
        wanted.filter_map(|(number, _)| Some((*number, known.remembered.get(number)?.clone()))).collect()
    }

    /// Records the queries that have shown that they can run.
    fn note_those_that_run(&self) {
        if !self.starts.has_unproven() {
            return;
        }
        let made = |one: &OneQuery| one.saved.as_ref().and_then(|saved| saved.try_lock()?.made());
        let claimed = self.claimed.lock().clone();
        // A query that is being changed may be about to run.
        let begun =
            self.that(|_| true).into_iter().filter(|(name, one)| one.life.flow().is_some() || claimed.contains(name));
        self.starts.keep(&begun.map(|(_, one)| (one.number, made(&one))).collect());
    }

    /// Warns once for each query whose rows have times that are probably in another unit.
    fn warn_of_seconds(&self, warned: &mut HashSet<u64>) {
        for (name, one) in self.that(|one| one.life.flow().is_some()) {
            let found = one.seconds_by_source();
            if !found.is_empty() && warned.insert(one.number) {
                let name = name.in_log();
                found.iter().for_each(|(source, seconds)| tracing::warn!(query = name, source, "{seconds}"));
            }
        }
    }

    /// Saves the end of each query that has come to the end of its input.
    fn save_ends(&self) {
        for (name, one) in self.that(|one| matches!(one.life, Life::Ending(_))) {
            // If a checkpoint of it is under way, that saves the end as well.
            if let Some(mut saved) = one.saved.as_ref().and_then(|saved| saved.try_lock()) {
                self.save(&name, &one, &mut saved, false);
            }
        }
    }

    /// Reports each query that an error has ended since the last call, and records that in the catalog.
    pub(super) fn note_failures(&self) {
        let is_news = |one: &OneQuery| matches!(&one.life, Life::Failed { failure, .. } if !failure.is_noted);
        for (name, one) in self.that(is_news) {
            let reason = one.life.problem();
            // A change that is under way may take long; then it is reported the next time.
            let Some(_claim) = self.claim_within(&name, Duration::ZERO) else { continue };
            // The query may have been resumed or dropped meanwhile.
            if !self.known.lock().query(&name).is_some_and(|now| now.life.has_flow_of(&one.life)) {
                continue;
            }
            if one.is_undone() {
                tracing::warn!(
                    query = name.in_log(),
                    "a query has failed, and is started again from its last checkpoint: {reason}"
                );
                self.known.lock().change(&name, |now| now.life.retry());
                one.life.into_flow().into_iter().for_each(close);
                self.has_some[1].ring();
                continue;
            }
            tracing::error!(query = name.in_log(), "a query has failed, and runs again with RESUME QUERY: {reason}");
            if let Err(error) = self.catalog.set_statement_failure(one.number, Some(reason)) {
                tracing::warn!(query = name.in_log(), "after a restart the query will run again: {error}");
            }
            self.known.lock().change(&name, |now| now.life.note());
        }
    }

    /// Tries again to enter the absent sources, sinks and views. Returns whether any was entered.
    fn enter_those_that_wait(&self, waiting: &mut HashMap<u64, Attempts>) -> bool {
        let absent = self.absent_for_now();
        waiting.retain(|number, _| absent.iter().any(|(other, _)| other == number));
        let mut has_entered = false;
        for (number, remembered) in absent {
            let statement = &remembered.statement;
            let attempts = waiting.entry(number).or_insert_with(|| Attempts::after(PAUSE_MIN));
            // A view may have waited for the source before it.
            let is_freed = has_entered && matches!(statement, Statement::CreateView(_));
            if !attempts.is_due() && !is_freed {
                continue;
            }
            let title = title(statement);
            let begin = Instant::now();
            let entered = self.enter_remembered(number, &remembered, true, OPEN_MAX);
            // A call that was abandoned may still hold its thread, so attempts must not add up to many such threads.
            let is_stuck = begin.elapsed() >= OPEN_MAX;
            match entered {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!("the {title} is in use");
                    has_entered = true;
                }
                Err(error) if attempts.fail(&error.message, PAUSE_MIN) => {
                    tracing::warn!("the {title} is not in use yet, and is tried again: {}", error.message);
                }
                Err(error) => tracing::debug!("the {title} is not in use yet: {}", error.message),
            }
            if is_stuck {
                attempts.rest(STUCK_PAUSE);
            }
        }
        has_entered
    }

    /// Tries again to start queries that could not be started.
    fn start_those_that_wait(&self, waiting: &mut HashMap<u64, Attempts>) {
        let queries = self.that(|one| one.life.waits_to_start());
        waiting.retain(|number, attempts| !attempts.are_past() || queries.iter().any(|(_, one)| one.number == *number));
        for (name, one) in queries {
            // A lost burst worker says nothing against a start.
            let is_burst = one.plan.as_ref().is_some_and(|plan| plan.is_burst);
            let begin = || if is_burst { Attempts::default() } else { Attempts::after(PAUSE_MIN) };
            let attempts = waiting.entry(one.number).or_insert_with(begin);
            if !attempts.is_due() || self.starts.has_to_wait(one.number) {
                continue;
            }
            match self.try_to_start(&name, &one) {
                Ok(()) => attempts.begin(PAUSE_MIN),
                Err(error) if attempts.fail(&error.message, PAUSE_MIN) => {
                    tracing::warn!(
                        query = name.in_log(),
                        "not started yet, and tried again until it is: {}",
                        error.message
                    );
                }
                Err(error) => tracing::debug!(query = name.in_log(), "not started yet: {}", error.message),
            }
        }
    }

    fn try_to_start(&self, name: &FullName, one: &OneQuery) -> Result<(), ServiceError> {
        let plan = Arc::new(plan_query(&one.query, &self.scope_of(&name.tenant, &one.query)?)?);
        let is_wanted = || {
            if self.opener.is_stopped() {
                return false;
            }
            let now = self.known.lock().query(name);
            now.is_some_and(|now| {
                now.number == one.number && now.query.text == one.query.text && now.life.waits_to_start()
            })
        };
        let saved = {
            let Some(_claim) = self.claim_within(name, Duration::ZERO) else { return Ok(()) };
            if !is_wanted() {
                return Ok(());
            }
            self.saved_of(name)?
        };
        self.starts.begin(one.number);
        // No caller waits for this, so a source or sink may take its time to answer.
        let started = self.start_saved(name, &one.query.text, &plan, saved.as_ref());
        let claim = self.claim_within(name, LOOK_PERIOD);
        if claim.is_none() || !is_wanted() {
            // The query was dropped, paused, resumed or replaced meanwhile, or the server stops. Nothing of this start
            // is final: a resumed query writes the same, and a replacement that came before the position was read has
            // excluded this start.
            if let Ok(Started::Runs(_, running)) = started {
                running.cancel();
                close(running);
            }
            return Ok(());
        }
        let mut known = self.known.lock();
        match started {
            Ok(started) => {
                if matches!(started, Started::Runs(..)) {
                    tracing::info!(query = name.in_log(), "runs");
                }
                known.change(name, |one| {
                    one.plan = Some(plan);
                    started.enter(&mut one.life);
                });
                Ok(())
            }
            Err(error) => {
                known.change(name, |one| one.life.hinder(error.message.clone()));
                Err(error)
            }
        }
    }
}
