//! Threads of an engine that do something periodically, until it stops.
//!
//! What must hold: when [`Threads::end`] returns they hold nothing any more, so that code that drops the engine has its
//! data folder for itself.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The threads of one engine.
#[derive(Default)]
pub(super) struct Threads {
    is_over: Mutex<bool>,
    bell: Condvar,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Starts a thread of this name that calls `act` again and again, each time after `pause`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(
        self: &Arc<Self>,
        name: &str,
        pause: Duration,
        mut act: impl FnMut() + Send + 'static,
    ) -> io::Result<()> {
        let threads = self.clone();
        let keep_on = move || {
            while !threads.are_over_within(pause) {
                act();
            }
        };
        self.running.lock().push(Builder::new().name(name.into()).spawn(keep_on)?);
        Ok(())
    }

    /// Waits for this long, or until all threads are to end. Returns whether they are.
    pub(super) fn are_over_within(&self, pause: Duration) -> bool {
        let deadline = Instant::now() + pause;
        let mut is_over = self.is_over.lock();
        while !*is_over && !self.bell.wait_until(&mut is_over, deadline).timed_out() {}
        *is_over
    }

    /// Ends the threads. It waits until each has finished its current call.
    pub(super) fn end(&self) {
        *self.is_over.lock() = true;
        self.bell.notify_all();
        let running = std::mem::take(&mut *self.running.lock());
        // A panic was reported where it happened.
        running.into_iter().for_each(|thread| drop(thread.join()));
    }
}
