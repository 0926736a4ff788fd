//! When state of applications may be saved: once it is true after a restart that replays the log.
//!
//! What must hold: saved state contains no event that the log could still lose. It also has given no result that is
//! still in flight and would not be computed again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rivulet_dataflow::LogPosition;
use rivulet_runtime::GroupSnapshot;

use super::applications::{Known, NotReady, Taken};
use crate::engine::event_log::EventLog;
use crate::engine::messaging::Messaging;
use crate::engine::outlets::Outlets;
use crate::engine::running::Running;
use crate::service::{ErrorKind, ServiceError};

/// How long a checkpoint waits for the log to be on disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long a checkpoint waits for the log if a part of its state has to wait for other things. It finds out whether
/// the rest may be saved.
const LOGGED_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long a checkpoint waits for the results of the captured state to leave.
const WAY_OUT_MAX: Duration = Duration::from_secs(10);

const NOT_OUT: &str = "results of durable events have not left, and saved state would not give them again";

/// The log that events come into, and the outputs by which results leave.
pub(in crate::engine) struct WayOut {
    messaging: Arc<Messaging>,
    event_log: Arc<EventLog>,
    outlets: Arc<Outlets>,
    is_stopped: Arc<AtomicBool>,
}

impl WayOut {
    pub(in crate::engine) fn new(
        messaging: Arc<Messaging>,
        event_log: Arc<EventLog>,
        outlets: Arc<Outlets>,
        is_stopped: Arc<AtomicBool>,
    ) -> Self {
        Self { messaging, event_log, outlets, is_stopped }
    }

    /// The captured state of an application, ready to be saved. `known` gets what its outputs have to keep.
    pub(super) fn take(&self, running: &Running, captured: GroupSnapshot, known: &mut Known) -> Option<Taken> {
        // Its results until then were submitted before its state was captured.
        let results_to = self.messaging.publisher().next();
        let not_out = match self.outlets.capture(running.number, running.reads_log()) {
            Some(Ok(outputs)) => {
                known.note_outputs(running.number, outputs);
                None
            }
            Some(Err(why)) => Some(why),
            None => {
                known.note_outputs(running.number, Vec::new());
                None
            }
        };
        Taken::new(running.number, &running.application.id, captured, results_to, not_out)
    }

    /// The captured state is saved, with this epoch.
    pub(super) fn commit(&self, epoch: u64) {
        self.outlets.commit(epoch);
    }

    /// Waits until the captured state is true after a restart that replays the log from `position` on. The state may
    /// not contain events that the log could still lose, because their positions would go to other events. It may not
    /// have given results that are still in flight and would not be computed again.
    pub(super) fn wait_for_both_ends(&self, taken: &[Taken], position: LogPosition) -> Result<(), NotReady> {
        let applied = taken.iter().map(Taken::position).fold(position.saturating_sub(1), LogPosition::max);
        if !self.event_log.wait_durable(applied, DISK_WAIT_MAX) {
            return Err(NotReady::disk());
        }
        if let Some(why) = taken.iter().find_map(Taken::not_out) {
            let why = format!("{why}\nhint: look at DESCRIBE APPLICATION; the log keeps the events until it does");
            return Err(NotReady { what: NOT_OUT, why });
        }
        self.wait_until_left(taken.iter().map(Taken::results_to).max().unwrap_or(0))
    }

    /// Waits until results with numbers below `until` have left.
    fn wait_until_left(&self, until: u64) -> Result<(), NotReady> {
        // When the server stops, all results that could be sent are sent already.
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
            what: NOT_OUT,
            why: format!(
                "the broker does not take them{connection}\nhint: look whether it is there; the log keeps the events until it does"
            ),
        })
    }

    /// Waits until the results that an application has given so far have left, if saved state would not give them
    /// again. The application continues meanwhile: where results cannot leave, it is not held up just to find that out.
    ///
    /// # Errors
    /// Results cannot leave.
    pub(in crate::engine) fn wait_for_results_of(&self, running: &Running) -> Result<(), ServiceError> {
        if !running.group.is_checkpointed() || !running.reads_log() {
            return Ok(());
        }
        self.wait_until_left(self.messaging.publisher().next()).map_err(|NotReady { what, why }| {
            let name = &running.application.name;
            ServiceError::from_text(ErrorKind::Unavailable, &format!("'{name}' stays as it was: {what}: {why}"))
        })
    }

    /// Divides captured states into those that would be true after a restart now, and those that would not.
    pub(super) fn divide(&self, taken: Vec<Taken>) -> (Vec<Taken>, Vec<Taken>) {
        let first_left = self.messaging.publisher().first_left();
        // Results that have left by then may be events themselves.
        let is_logged = self.event_log.wait_all_durable(LOGGED_WAIT_MAX);
        let is_ready = |one: &Taken| {
            one.position() == 0 || (is_logged && one.not_out().is_none() && one.results_to() <= first_left)
        };
        taken.into_iter().partition(is_ready)
    }
}
