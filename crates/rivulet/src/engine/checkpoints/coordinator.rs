//! Makes checkpoints of everything: on a timer, on request, and at the end of the server.
//!
//! It goes through all lines of epochs, each by the same steps ([`super::line`]): the line of the catalog where it is
//! saved too, the line of all applications, and the line of each big query. Groups of applications are captured one
//! after the other, each with its changes since the last time, and no group waits for another
//! ([`rivulet_runtime::Group::snapshot`]). On the timer it pauses between captures, so that events are not delayed.
//! Together they give one epoch, which is written completely or not at all.
//!
//! What must hold: a checkpoint that fails harms nothing. The checkpoint before it stays in force, the failure is
//! reported, and the next checkpoint also saves what this one would have saved.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_dataflow::LogPosition;

use super::applications::{Applications as OfApplications, PIECE_BYTES, Taken};
use super::line::LineStatus;
use super::way_out::WayOut;
use super::{Checkpoints, Lines};
use crate::catalog::{ApplicationNumber, Catalog};
use crate::engine::applications::Applications;
use crate::engine::big_queries::BigQueries;
use crate::engine::event_log::EventLog;
use crate::engine::messaging::Messaging;
use crate::engine::queries::Queries;
use crate::engine::routing::Routing;
use crate::engine::sources::Positions;
use crate::engine::threads::{Bell, Threads};
use crate::service::{CheckpointInfo, ErrorKind, ServiceError};

/// After capturing some queries, a checkpoint of the timer leaves the machine to others for this many times as long as
/// the capture took.
const RESTS: u32 = 4;

/// The shortest pause after a checkpoint of the timer, however nearly full the log is.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// How long a checkpoint waits until the events of sources are on disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(10);

/// Makes the checkpoints of a server.
pub(in crate::engine) struct Coordinator {
    /// `None` if state is not saved.
    pub(in crate::engine) checkpoints: Option<Arc<Checkpoints>>,
    pub(in crate::engine) way_out: Arc<WayOut>,
    pub(in crate::engine) catalog: Arc<Catalog>,
    pub(in crate::engine) event_log: Arc<EventLog>,
    pub(in crate::engine) messaging: Arc<Messaging>,
    pub(in crate::engine) routing: Arc<Routing>,
    pub(in crate::engine) applications: Arc<Applications>,
    pub(in crate::engine) queries: Arc<Queries>,
    pub(in crate::engine) big_queries: Arc<BigQueries>,
    /// Rings as long as the log is nearly full: it is shortened to where the oldest retained checkpoint begins.
    pub(in crate::engine) log_waits: Arc<Bell>,
}

impl Coordinator {
    /// Makes checkpoints on the timer, as long as these threads run.
    pub(in crate::engine) fn start(self: &Arc<Self>, threads: &Arc<Threads>) -> Result<(), ServiceError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let Some(interval) = checkpoints.begin() else { return Ok(()) };
        let (coordinator, until) = (self.clone(), threads.clone());
        let make = move || {
            let begun = Instant::now();
            // At most half of the interval, so that the next checkpoint has as much to save as this one.
            let mut left = interval / 2;
            let mut rest = |worked: Duration| {
                let is_awaited = coordinator.checkpoints.iter().any(|checkpoints| checkpoints.are_awaited());
                if !is_awaited && !coordinator.event_log.is_nearly_full() {
                    let rest = left.min(worked * RESTS);
                    left -= rest;
                    until.are_over_within(rest);
                }
            };
            // Its failure is in the report and the log.
            let _ = coordinator.make(&mut rest, false);
            // Only what is left of the interval after this can be cut short.
            let pause = PAUSE_MIN.max(begun.elapsed() * RESTS).min(interval);
            until.are_over_within(pause);
            interval - pause
        };
        threads.start_paced("rivulet-checkpoint", &self.log_waits, interval, make).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("cannot start the thread of checkpoints: {error}"))
        })
    }

    /// Makes a checkpoint now, if the server makes any, and fails unless it has everything.
    pub(in crate::engine) fn make_whole(&self) -> Result<CheckpointInfo, ServiceError> {
        let (info, failures) = self.make_of_most()?;
        if failures.is_empty() {
            return Ok(info);
        }
        let message = format!("the checkpoint is not whole: {}", failures.join("; "));
        Err(ServiceError::new(ErrorKind::Unavailable, message)
            .with_hint("everything else is saved; see with DESCRIBE QUERY whether its sink takes what it has"))
    }

    /// Makes a checkpoint now, for callers to whom older checkpoints of some big queries will do. Returns for each big
    /// query of which none could be made why not.
    pub(in crate::engine) fn make_of_most(&self) -> Result<(CheckpointInfo, Vec<String>), ServiceError> {
        let _waits = self.checkpoints.as_ref().map(|checkpoints| checkpoints.await_one());
        self.make(&mut |_| {}, true)
    }

    /// Makes a checkpoint after a new version has taken over. If that fails, the failure is in the log and the status,
    /// and the saved state of the version before can still be read.
    pub(in crate::engine) fn make_behind_upgrade(&self) {
        if self.checkpoints.is_some() {
            let _ = self.make_of_most();
        }
    }

    /// Makes the last checkpoint. It runs in a thread of its own: an engine may be dropped by a task of an asynchronous
    /// runtime, which may not wait for the disk.
    pub(in crate::engine) fn end(&self) {
        let Some(checkpoints) = &self.checkpoints else { return };
        let save = || {
            if checkpoints.are_active()
                && let Ok((last, _)) = self.make(&mut |_| {}, true)
            {
                tracing::info!(epoch = last.epoch, elapsed_ms = last.duration_ms, "state is saved");
            }
            checkpoints.close();
        };
        // A panic was reported where it happened, and nothing is left to do about it.
        let _ = std::thread::scope(|scope| scope.spawn(save).join());
    }

    /// Saves big queries for the last time. In a thread of its own, as [`Coordinator::end`].
    pub(in crate::engine) fn save_big_queries_at_the_end(&self) {
        let Some(checkpoints) = &self.checkpoints else { return };
        let save = || {
            // One that is being made is waited for.
            let _lines = checkpoints.lock();
            checkpoints.report.lock().big_queries = self.big_queries.save_all(true);
        };
        let _ = std::thread::scope(|scope| scope.spawn(save).join());
    }

    /// Makes a checkpoint; `rest` as in [`rivulet_runtime::Group::snapshot`]. With `is_asked` all queries should be in
    /// it. Returns of which big queries none could be made, and why.
    fn make(
        &self,
        rest: &mut dyn FnMut(Duration),
        is_asked: bool,
    ) -> Result<(CheckpointInfo, Vec<String>), ServiceError> {
        let Some(checkpoints) = &self.checkpoints else {
            return Err(ServiceError::new(ErrorKind::Conflict, "this server makes no checkpoints")
                .with_hint("set checkpoint.enabled to true"));
        };
        let mut lines = checkpoints.lock();
        let Some(Lines { applications, catalog }) = lines.as_mut() else {
            return Err(ServiceError::new(ErrorKind::Unavailable, "the server is stopping"));
        };
        let begun = Instant::now();
        // First: state of a version that the saved catalog lacks cannot be restored. No version takes over meanwhile.
        let catalog = catalog.as_mut().map(|line| line.save(&self.catalog, is_asked));
        let (of_applications, queries) = self.save_applications(checkpoints, applications, rest, is_asked);
        let of_big = self.big_queries.save_all(is_asked);
        let epoch = of_applications.epoch.unwrap_or(0);
        let of_server: Vec<LineStatus> = [of_applications].into_iter().chain(catalog).collect();
        let duration_ms = begun.elapsed().as_millis() as u64;
        let info = CheckpointInfo { epoch, queries, duration_ms, ..CheckpointInfo::default() };
        checkpoints.report.lock().enter(info, &of_server, of_big)
    }

    /// Saves the state of applications. Returns the status of their line, and the number of slots that were saved.
    fn save_applications(
        &self,
        checkpoints: &Checkpoints,
        OfApplications { line, known }: &mut OfApplications,
        rest: &mut dyn FnMut(Duration),
        is_asked: bool,
    ) -> (LineStatus, u64) {
        // Taken first: events that come from now on may be in the captured state, but need not.
        let position = self.replayed_from();
        let sources = self.positions_of_sources();
        // The lock makes sure that no application is being started again whose queries have not all got their state:
        // what is saved of it would lack these queries.
        // The captured state has every change of values that was noted by now. Queries of an application that does not
        // run get no changes.
        let (running, all, altered_to) = {
            let _queries = self.queries.state.lock();
            let (running, all) = self.applications.all();
            let has_all = !self.queries.has_changes_to_make();
            let altered_to = has_all.then(|| self.catalog.alteration_next()).and_then(Result::ok);
            (running, all, altered_to)
        };
        for running in &running {
            running.group.forget_absences(position);
        }
        let all: BTreeSet<ApplicationNumber> = all.into_iter().collect();
        let numbers: BTreeSet<ApplicationNumber> = running.iter().map(|running| running.number).collect();
        let mut incomplete: BTreeSet<ApplicationNumber> = all.difference(&numbers).copied().collect();
        // For the applications that run it was noted before they started.
        checkpoints.take_unfit(known);
        let mut slots = 0;
        let saved = line.save(is_asked, |line| {
            if let Some((positions, from)) = sources {
                known.note_sources(positions, from);
            }
            let captured = running.iter().filter(|running| running.group.is_checkpointed());
            let taken = captured.filter_map(|running| {
                let captured = running.group.snapshot(known.wants_all_of(running), PIECE_BYTES, rest);
                self.way_out.take(running, captured, known)
            });
            let taken: Vec<Taken> = taken.collect();
            slots = taken.iter().map(Taken::slots).sum();
            incomplete.extend(taken.iter().filter(|one| !one.is_whole()).map(Taken::number));
            match self.way_out.wait_for_both_ends(&taken, position) {
                Ok(()) => known.commit(line, taken, &all, position),
                Err(not_ready) => {
                    // Saves states without durable events, and states that were captured before something got stuck.
                    // The others lack what they lacked before: the log is replayed from there.
                    let (ready, waiting) = self.way_out.divide(taken);
                    known.give_up(&waiting);
                    known.commit(line, ready, &all, known.position()).and(Err(not_ready.into()))
                }
            }
        });
        if let Ok(Some(committed)) = &saved {
            self.way_out.commit(committed.epoch);
        }
        if saved.is_ok() {
            let needed_from = known.needed_from();
            self.event_log.forget_before(needed_from);
            self.event_log.forget_repeats_at(position, &self.messaging);
            if let Err(error) = self.catalog.forget_lifecycle(needed_from) {
                tracing::warn!("the catalog keeps what no replay needs any more, and it is tried again: {error}");
            }
        }
        if let Ok(Some(_)) = &saved
            && let Some(altered_to) = altered_to
            && let Some((needed_from, kept)) = known.altered_before(altered_to, incomplete)
            && let Err(error) = self.catalog.forget_alterations(needed_from, &kept)
        {
            tracing::warn!("the catalog keeps values that no state was made with, and it is tried again: {error}");
        }
        (line.status(saved.ok().flatten().as_ref()), slots)
    }

    /// The positions at which sources of inputs continue, and the position of the log before which it has all events
    /// before these. `None` if the events of sources are not on disk yet, so that the log could lose them.
    fn positions_of_sources(&self) -> Option<(Positions, LogPosition)> {
        let sources = self.routing.sources();
        if !sources.are_any() {
            return Some((Positions::new(), 0));
        }
        let from = self.event_log.end();
        let (_, numbers) = self.applications.all();
        sources.keep(|number| numbers.contains(&number));
        let positions = sources.positions();
        self.event_log.wait_all_durable(DISK_WAIT_MAX).then_some((positions, from))
    }

    /// The position from which on the log would be replayed after a restart with the state that is captured from now
    /// on.
    fn replayed_from(&self) -> LogPosition {
        // In the order in which events move: an event that has left one place by now is found at the next.
        let next = self.event_log.next();
        let (shared, running) = (self.routing.shared_groups(), self.applications.running());
        let groups = shared.iter().chain(running.iter().map(|running| &running.group));
        groups.filter_map(|group| group.oldest_position()).fold(next, LogPosition::min)
    }
}
