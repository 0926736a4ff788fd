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
use crate::service::{FullName, QueryState, ServiceError};
use crate::times::at;

/// For how many times the slack the policy rests after a statement.
const RESTS: i64 = 10;

impl BigQueries {
    /// Measures all queries that may burst, and moves tasks of one of them if the policy says so. Once a second.
    pub(super) fn look_at_load(&self) {
        let decided = self.bursting().into_iter().find_map(|(name, one)| {
            let reading = self.reading(&name, &one)?;
            let (share, why) = one.automatic.lock().policy.decide(self.opener.burst(), reading)?;
            // A paused query comes back only.
            (share == 0.0 || one.life.state() == QueryState::Running).then_some((name, one, share, why))
        });
        if let Some((name, one, share, why)) = decided {
            self.carry_out(&name, &one, share, &why);
        }
    }

    /// What a query has done so far; `None` if its tasks cannot move.
    fn reading(&self, name: &FullName, one: &OneQuery) -> Option<Reading> {
        let (plan, running) = (one.plan.as_ref()?, one.life.flow()?);
        let (stages, tasks) = (running.flow().stages(), running.flow().report().tasks);
        let (go, _) = moves::redirected((&name.name, plan), stages, &tasks, &Operators::All).unwrap_or_default();
        let away = running.flow().placements().iter().filter(|task| task.step != MoveStep::Home).count();
        let may_go = go.iter().map(|&stage| stages[stage].instances).sum::<usize>().max(away);
        let sum = |of: fn(&TaskReport) -> u64| tasks.iter().map(of).sum::<u64>();
        let rows = sum(|task| if task.has_queue { 0 } else { task.rows_in });
        let (here_us, away_us) = (sum(|task| task.busy_us - task.away_us), sum(|task| task.away_us));
        let busy_us = [self.opener.workers.busy_us(), here_us, away_us];
        let [workers, here, away_us] = busy_us.map(|sum_us| sum_us / self.opener.config.workers.threads as u64);
        let mut known = one.automatic.lock();
        let reading = Reading {
            at_us: SystemClock.steady_us(),
            counts: [rows, workers, here, away_us],
            tasks_us: tasks.iter().filter(|task| task.has_queue).map(|task| task.busy_us + task.ready_us).collect(),
            share: away as f64 / may_go as f64,
            is_other_flow: !std::mem::replace(&mut known.flow, Arc::downgrade(running)).ptr_eq(&known.flow),
            minute: u16::try_from(SystemClock.now_us() / 60_000_000 % i64::from(DAY)).unwrap_or(0),
        };
        // A flow that has failed lets go of its guests: that is no return.
        (running.has_checkpoints() && may_go > 0 && running.flow().ended().is_none()).then_some(reading)
    }

    /// Moves tasks of a query, unless a statement has changed it since it was measured.
    fn carry_out(&self, name: &FullName, one: &OneQuery, share: f64, why: &str) {
        let (Some(_claim), Some(running)) = (self.claim_within(name, Duration::ZERO), one.life.flow()) else { return };
        let is_so = |now: OneQuery| now.life.has_flow_of(&one.life) && now.life.state() == one.life.state();
        if self.opener.is_stopped() || !self.known.lock().query(name).is_some_and(is_so) {
            return;
        }
        // A source that cannot be read again may be one that cannot wait.
        let begins =
            || running.flow().throttle(one.automatic.lock().policy.throttle().filter(|_| running.comes_again()));
        let (what, done) = match share > 0.0 {
            true => (format!("out, {:.0} %", share * 100.0), self.redirect(name, &Operators::All, share, begins)),
            false => ("back".to_owned(), self.bring_back(name, &Operators::All)),
        };
        // What other queries have measured is not so any more.
        let done = done.inspect(|_| self.bursting().iter().for_each(|(_, one)| one.automatic.lock().policy.moved(0.0)));
        let mut known = one.automatic.lock();
        let message = done.inspect(|_| known.policy.moved(share)).or_else(|ServiceError { message, .. }| {
            running.flow().throttle(None);
            known.policy.rests_to_us = SystemClock.steady_us() + self.opener.burst().slack_us;
            // It is tried again and again.
            if known.told.front().is_some_and(|last| last.ends_with(&message)) { Err(()) } else { Ok(message) }
        });
        message.iter().for_each(|message| known.tell(name, &format!("{what}: {why}; {message}")));
    }

    /// What a statement asks for: this part of the tasks goes out, or all come back. The policy leaves the query alone
    /// for a while. Returns what was done, in words.
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
        }?;
        let one = self.known.lock().query(name);
        if let Some(one) = one.filter(|_| self.opener.burst().decides()) {
            let (mut known, rest_us) = (one.automatic.lock(), self.opener.burst().slack_us * RESTS);
            known.policy.rests_to_us = SystemClock.steady_us() + rest_us;
            let until = at(SystemClock.now_us() + rest_us);
            known.tell(name, &format!("a statement has moved tasks, and the policy rests until {until}"));
        }
        Ok(done)
    }
}
