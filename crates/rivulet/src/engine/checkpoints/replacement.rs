//! Checkpoints while a new version of an application takes over its queries.
//!
//! Just before that, everything that the version before has done is saved; only then the catalog records the new
//! version. So after a crash at any moment the log is replayed from the position where the one version ended and the
//! other began: the events before it were processed by the version before, and are not processed once more.

use parking_lot::MutexGuard;

use super::applications::{Applications, PIECE_BYTES};
use super::way_out::WayOut;
use super::{Checkpoints, Lines};
use crate::catalog::ApplicationNumber;
use crate::counted::counted;
use crate::engine::running::Running;
use crate::service::{ErrorKind, ServiceError};

/// No other code makes a checkpoint while this is held. Its lock is taken before the state of the engine.
pub(in crate::engine) struct Paused<'a> {
    checkpoints: &'a Checkpoints,
    lines: MutexGuard<'a, Option<Lines>>,
}

impl Checkpoints {
    /// Waits for the checkpoint under way, and prevents others from being made.
    pub(in crate::engine) fn pause(&self) -> Paused<'_> {
        let _waits = self.await_one();
        Paused { checkpoints: self, lines: self.lock() }
    }
}

impl Paused<'_> {
    /// Saves the changes of an application since it was last saved. The application processes nothing meanwhile. This
    /// waits for the disk, and until its results have left. No other code may have to wait for that, so the state of
    /// the engine must not be locked.
    ///
    /// # Errors
    /// The disk fails, results cannot leave, or the server stops; the checkpoint before it stays in force.
    pub(in crate::engine) fn save(&mut self, way_out: &WayOut, running: &Running) -> Result<(), ServiceError> {
        let Some(Lines { applications: Applications { line, known }, .. }) = self.lines.as_mut() else {
            return Err(ServiceError::new(ErrorKind::Unavailable, "the server is stopping"));
        };
        self.checkpoints.take_unfit(known);
        let saved = line.save(true, |line| {
            let captured = running.group.snapshot(known.wants_all_of(running), PIECE_BYTES, &mut |_| {});
            if let (failures @ 1.., Some(error)) = &captured.failures {
                known.want_everything(running.number);
                return Err(format!("of {}: {error}", counted(*failures as u64, "query")).into());
            }
            let taken: Vec<_> = way_out.take(running, captured, known).into_iter().collect();
            if let Err(not_ready) = way_out.wait_for_both_ends(&taken, 0) {
                known.give_up(&taken);
                return Err(not_ready.into());
            }
            // The events that other applications lack are still to be replayed.
            let (all, position) = (known.applications().chain([running.number]).collect(), known.position());
            known.commit(line, taken, &all, position)
        });
        if let Ok(Some(committed)) = &saved {
            way_out.commit(committed.epoch);
        }
        saved.map(drop).map_err(|failure| {
            let why = format!("the state of its queries cannot be saved: {}", failure.text);
            ServiceError::from_text(ErrorKind::Unavailable, &why)
        })
    }

    /// The saved state of an application is that of an earlier version: all state is saved the next time.
    pub(in crate::engine) fn outdated(&mut self, number: ApplicationNumber) {
        if let Some(lines) = self.lines.as_mut() {
            lines.applications.known.want_everything(number);
        }
    }
}
