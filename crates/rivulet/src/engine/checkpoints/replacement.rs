//! Checkpoints while a new version of an application takes over its queries.
//!
//! Just before that, all that the version before has done is saved; only then the catalog is told of the new one. So after a crash at
//! any moment the log is replayed from where the one ended and the other began: what comes before was processed by the version
//! before, and is not processed once more.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::line::{Line, NotReady, Taken};
use super::{Checkpoints, DISK_WAIT_MAX, refused};
use crate::catalog::ApplicationNumber;
use crate::engine::Running;
use crate::engine::event_log::EventLog;
use crate::service::{ErrorKind, ServiceError};

/// No checkpoint is made by anybody else as long as this is held. Its lock is taken before the state of the engine.
pub(in crate::engine) struct Paused<'a> {
    checkpoints: &'a Checkpoints,
    line: MutexGuard<'a, Option<Line>>,
}

impl Checkpoints {
    /// Waits for the checkpoint under way, and keeps others from being made.
    pub(in crate::engine) fn pause(&self) -> Paused<'_> {
        // The one under way hurries.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let line = self.line.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Paused { checkpoints: self, line }
    }
}

impl Paused<'_> {
    /// Saves what has happened to an application, which stands still, since it was saved the last time.
    ///
    /// # Errors
    /// The disk, or the server stops; the checkpoint before stays in force.
    pub(in crate::engine) fn save(&mut self, log: &EventLog, running: &Running) -> Result<(), ServiceError> {
        let Some(line) = self.line.as_mut() else {
            return Err(ServiceError::new(ErrorKind::Unavailable, "the server is stopping"));
        };
        self.checkpoints.unfit.lock().drain(..).for_each(|number| line.want_everything(number));
        let captured = running.group.capture(line.wants_everything(running.number), &mut |_| {});
        if let (failures @ 1.., Some(error)) = &captured.failures {
            let why = format!("the state of {failures} queries cannot be saved: {error}");
            line.want_everything(running.number);
            return Err(ServiceError::from_text(ErrorKind::Unavailable, &why));
        }
        let Some(taken) = Taken::new(running.number, &running.application.id, captured) else { return Ok(()) };
        let saved = match log.wait_durable(taken.position(), DISK_WAIT_MAX) {
            true => line.commit_one(taken).map(drop),
            false => Err(line.give_up(&[taken], NotReady::DISK)),
        };
        saved.map_err(|error| refused("the state of its queries cannot be saved", &error))
    }

    /// What is saved of an application is that of a version before: everything is taken the next time.
    pub(in crate::engine) fn outdated(&mut self, number: ApplicationNumber) {
        if let Some(line) = self.line.as_mut() {
            line.want_everything(number);
        }
    }
}
