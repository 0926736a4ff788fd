//! The state of applications at one moment, for an epoch of their line: what changed is captured group by group, and it
//! is saved when it is true after a restart that replays the log.
//!
//! What must hold: state that is saved knows of no event that the log could still lose, and has given no result that is
//! still on its way and would not be computed again.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_dataflow::LogPosition;
use rivulet_runtime::GroupSnapshot;

use super::Checkpoints;
use super::applications::{Applications, NotReady, Taken};
use super::line::LineStatus;
use crate::catalog::ApplicationNumber;
use crate::engine::Engine;
use crate::engine::running::Running;

/// How long a checkpoint waits for the log to be on disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long a checkpoint of which a part has to wait looks whether the rest has to wait for the log.
const LOGGED_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long a checkpoint waits for the results of what it has captured to leave.
const WAY_OUT_MAX: Duration = Duration::from_secs(10);

impl Engine {
    /// Saves the state of applications. Returns how their line stands, and how many slots were saved.
    pub(super) fn save_applications(
        &self,
        checkpoints: &Checkpoints,
        Applications { line, known }: &mut Applications,
        rest: &mut dyn FnMut(Duration),
        is_asked: bool,
    ) -> (LineStatus, u64) {
        // First: what comes from now on may be in what is captured, but need not.
        let position = self.replayed_from();
        // Nobody is between an application that could not run and the state of its queries: what is saved of it would
        // lack those that have yet to come.
        let (running, all) = {
            let _queries = self.queries.state.lock();
            self.applications.all()
        };
        let all: BTreeSet<ApplicationNumber> = all.into_iter().collect();
        // Of those that run it was noted before they did.
        checkpoints.take_unfit(known);
        let mut slots = 0;
        let saved = line.save(is_asked, |line| {
            let captured = running.iter().filter(|running| running.group.is_checkpointed());
            let taken = captured
                .filter_map(|running| self.take(running, running.group.snapshot(known.wants_all_of(running), rest)));
            let taken: Vec<Taken> = taken.collect();
            slots = taken.iter().map(Taken::slots).sum();
            match self.wait_for_both_ends(&taken, position) {
                Ok(()) => known.commit(line, taken, &all, position),
                Err(not_ready) => {
                    // What gave nothing behind durable events, and what was captured before anything got stuck, is
                    // saved. The others lack what they lacked before: the log is replayed from there.
                    let (ready, waiting) = self.divide(taken);
                    known.give_up(&waiting);
                    known.commit(line, ready, &all, known.position()).and(Err(not_ready.into()))
                }
            }
        });
        if saved.is_ok() {
            let needed_from = known.needed_from();
            self.event_log.forget_before(needed_from);
            self.event_log.forget_repeats_at(position, &self.messaging);
            if let Err(error) = self.catalog.forget_lifecycle(needed_from) {
                tracing::warn!("the catalog keeps what no replay needs any more, and it is tried again: {error}");
            }
        }
        (line.status(saved.ok().flatten().as_ref()), slots)
    }

    /// What was captured of an application just now.
    pub(super) fn take(&self, running: &Running, captured: GroupSnapshot) -> Option<Taken> {
        // What it has given until then was submitted before it was captured.
        let results_to = self.messaging.publisher().next();
        Taken::new(running.number, &running.application.id, captured, results_to)
    }

    /// Waits for what was taken to be true after a restart that replays the log from `position` on: state may not know
    /// of events that the log could still lose and would give their positions to others, nor have given results that
    /// nobody would compute again and that are still on their way.
    pub(super) fn wait_for_both_ends(&self, taken: &[Taken], position: LogPosition) -> Result<(), NotReady> {
        let applied = taken.iter().map(Taken::position).fold(position.saturating_sub(1), LogPosition::max);
        if !self.event_log.wait_durable(applied, DISK_WAIT_MAX) {
            return Err(NotReady::disk());
        }
        self.wait_for_way_out(taken.iter().map(Taken::results_to).max().unwrap_or(0))
    }

    /// Waits until results with numbers below `until` have left.
    pub(super) fn wait_for_way_out(&self, until: u64) -> Result<(), NotReady> {
        // While the server stops, what could be sent is sent.
        let is_stopped = || self.is_stopped.load(Ordering::Acquire);
        if self.messaging.publisher().wait_until_left(until, WAY_OUT_MAX, &is_stopped) {
            // Where one query's result is another's event, it has left when the log has it.
            return match until == 0 || self.event_log.wait_all_durable(DISK_WAIT_MAX) {
                true => Ok(()),
                false => Err(NotReady::disk()),
            };
        }
        let connection = self.messaging.ready().err().map_or_else(String::new, |error| format!(": {}", error.message));
        Err(NotReady {
            what: "results of durable events have not left, and saved state would not give them again",
            why: format!(
                "the broker does not take them{connection}\nhint: look whether it is there; the log keeps the events until it does"
            ),
        })
    }

    /// Divides what was taken into what is true after a restart, as things are now, and what is not.
    fn divide(&self, taken: Vec<Taken>) -> (Vec<Taken>, Vec<Taken>) {
        let first_left = self.messaging.publisher().first_left();
        // What has left by then may be an event itself.
        let is_logged = self.event_log.wait_all_durable(LOGGED_WAIT_MAX);
        let is_ready = |one: &Taken| one.position() == 0 || (is_logged && one.results_to() <= first_left);
        taken.into_iter().partition(is_ready)
    }

    /// From where on the log would be replayed after a restart that finds what is captured from now on.
    fn replayed_from(&self) -> LogPosition {
        // In the order in which events go: what has left one place by now is found at the next.
        let next = self.event_log.next();
        let (shared, running) = (self.routing.shared_groups(), self.applications.running());
        let groups = shared.iter().chain(running.iter().map(|running| &running.group));
        groups.filter_map(|group| group.oldest_position()).fold(next, LogPosition::min)
    }
}
