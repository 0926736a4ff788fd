//! The server moves tasks of big queries by itself: what it measures for the [burst policy](crate::burst::policy), and
//! how it carries out what that decides.
//!
//! What must hold: one thread measures, decides and moves, one query at a time. A decision is for one flow in one
//! state, and holds for no other. A statement that moves tasks wins for a while.

use std::sync::Arc;
use std::time::Duration;

use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::Clock;
use rivulet_runtime::{MoveStep, TaskReport};
use rivulet_sql::Operators;

use super::{BigQueries, OneQuery};
use crate::burst::moves;
use crate::burst::policy::{DAY, Reading};
use crate::service::{ErrorKind, FullName, QueryState, ServiceError};

/// For how many times the slack the policy rests after a statement.
const RESTS: i64 = 10;

impl BigQueries {
    /// Measures all queries that may burst, and moves tasks of one of them if the policy says so. Once a second.
    pub(super) fn look_at_load(&self) {
        let decide = |(name, one): (FullName, OneQuery)| {
            let reading = self.reading(&name, &one)?;
            let mut known = one.automatic.lock();
            let rested_to_us = known.policy.rests_to_us;
            let decision = known.policy.decide(&self.opener.burst().policy, reading);
            if known.policy.rests_to_us > rested_to_us {
                known.tell_rest(&name, "the query started again with tasks away");
            }
            drop(known);
            let (share, why) = decision?;
            // A paused query comes back only.
            (share == 0.0 || one.life.state() == QueryState::Running).then_some((name, one, share, why))
        };
        // All are measured before one of them moves.
        let decided: Vec<_> = self.bursting().into_iter().filter_map(decide).collect();
        for (name, one, share, why) in decided {
            if self.carry_out(&name, &one, share, &why) {
                break;
            }
        }
    }

    /// What a query has done so far; `None` if its tasks cannot move.
    fn reading(&self, name: &FullName, one: &OneQuery) -> Option<Reading> {
        let (at_us, plan) = (SystemClock.steady_us(), one.plan.as_ref()?);
        let running = one.life.flow().filter(|running| running.has_checkpoints())?;
        // Tasks that run long are not waited for: all that counts here is told at once.
        let (stages, tasks) = (running.flow().stages(), running.flow().report_within(Duration::ZERO).tasks);
        let (go, _) = moves::redirected((&name.name, plan), stages, &tasks, &Operators::All).unwrap_or_default();
        let mut away = running.flow().placements();
        away.retain(|task| task.step != MoveStep::Home);
        let may_go = go.iter().map(|&stage| stages[stage].instances).sum::<usize>();
        let gone = away.iter().filter(|task| go.contains(&task.stage)).count();
        let sum = |of: fn(&TaskReport) -> u64| tasks.iter().map(of).sum::<u64>();
        let mean = |sum_us: u64| sum_us / self.opener.config.workers.threads as u64;
        let queued = tasks.iter().filter(|task| task.has_queue);
        let mut known = one.automatic.lock();
        let before = std::mem::replace(&mut known.flow, Arc::downgrade(running));
        // A flow that has failed lets go of its guests: that is no return.
        running.flow().ended().is_none().then(|| Reading {
            at_us,
            rows: sum(|task| if task.has_queue { 0 } else { task.rows_in }),
            workers_us: mean(self.opener.workers.busy_us()),
            here_us: mean(sum(|task| task.busy_us - task.away_us)),
            away_us: mean(sum(|task| task.away_us)),
            tasks_us: queued.map(|task| (task.busy_us + task.ready_us, go.contains(&task.stage))).collect(),
            share: if may_go == 0 { 1.0 } else { gone as f64 / may_go as f64 },
            is_away: !away.is_empty(),
            is_other_flow: !before.ptr_eq(&known.flow),
            minute: u16::try_from(SystemClock.now_us() / 60_000_000 % i64::from(DAY)).unwrap_or(0),
        })
    }

    /// Moves tasks of a query. False if it is being changed, or was since it was measured.
    fn carry_out(&self, name: &FullName, one: &OneQuery, share: f64, why: &str) -> bool {
        let (claim, now) = (self.claim_within(name, Duration::ZERO), self.known.lock().query(name));
        let is_so = now.is_some_and(|now| now.life.has_flow_of(&one.life) && now.life.state() == one.life.state());
        let may_move = claim.is_some() && is_so && !self.opener.is_stopped();
        let Some(running) = one.life.flow().filter(|_| may_move) else { return false };
        // Sources without positions, such as MQTT, may be unable to wait.
        let begins =
            || running.flow().throttle(one.automatic.lock().policy.throttle().filter(|_| running.comes_again()));
        let (what, done) = match share > 0.0 {
            true => (format!("out, {:.0} %", share * 100.0), self.redirect(name, &Operators::All, share, begins)),
            false => ("back".to_owned(), self.bring_back(name, &Operators::All)),
        };
        match done {
            Ok(message) => {
                self.moved(name, share);
                one.automatic.lock().tell(name, &format!("{what}: {why}; {message}"));
            }
            Err(ServiceError { message, .. }) => {
                running.flow().throttle(None);
                let mut known = one.automatic.lock();
                known.policy.rest(SystemClock.steady_us() + self.opener.burst().policy.slack_us);
                // It is tried again and again.
                if !known.told.front().is_some_and(|last| last.ends_with(&message)) {
                    known.tell(name, &format!("{what}: {why}; {message}"));
                }
            }
        }
        true
    }

    /// Tasks of a query moved, up to this share: what was read of any query before does not count any more.
    fn moved(&self, name: &FullName, share: f64) {
        for (other, one) in self.bursting() {
            one.automatic.lock().policy.moved(if other == *name { share } else { 0.0 });
        }
    }

    /// Moves tasks for a statement: this part out, or all back. The policy leaves the query alone for a while. Returns
    /// what was done, in words.
    ///
    /// # Errors
    /// Those of [`BigQueries::redirect`] and [`BigQueries::bring_back`].
    pub(in crate::engine) fn move_tasks(
        &self,
        name: &FullName,
        operators: &Operators,
        ratio: Option<f64>,
    ) -> Result<String, ServiceError> {
        let _claim = self.claim(name)?;
        let done = match ratio {
            Some(ratio) => self.redirect(name, operators, ratio, || {}),
            None => self.bring_back(name, operators),
        };
        let (one, policy) = (self.known.lock().query(name), &self.opener.burst().policy);
        // Tasks that are not back in time come back all the same.
        let is_late = |error: &ServiceError| ratio.is_none() && error.kind == ErrorKind::Unavailable;
        let has_moved = done.as_ref().err().is_none_or(is_late);
        if let Some(one) = one.filter(|_| has_moved) {
            self.moved(name, ratio.unwrap_or(0.0));
            let (mut known, message) = (one.automatic.lock(), done.as_ref().unwrap_or_else(|error| &error.message));
            if policy.decides() {
                tracing::info!(query = name.in_log(), "{message}");
                known.policy.rest(SystemClock.steady_us() + policy.slack_us * RESTS);
                known.tell_rest(name, "a statement has moved tasks");
            } else {
                known.tell(name, &format!("a statement: {message}"));
            }
        }
        done
    }
}
