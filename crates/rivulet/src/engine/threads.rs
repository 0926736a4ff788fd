//! Threads of an engine that do something periodically, until it stops.
//!
//! What must hold: when [`Threads::end`] returns they hold nothing any more, so that code that drops the engine has its
//! data folder for itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The threads of one engine.
#[derive(Default)]
pub(super) struct Threads {
    is_over: AtomicBool,
    /// Of those that wait in the middle of an act.
    pauses: Bell,
    bells: Mutex<Vec<Arc<Bell>>>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

/// Ends the pause of a thread.
#[derive(Default)]
pub(super) struct Bell {
    has_rung: Mutex<bool>,
    rang: Condvar,
}

impl Bell {
    /// Ends the pause, or the next one if there is none.
    pub(super) fn ring(&self) {
        *self.has_rung.lock() = true;
        self.rang.notify_all();
    }

    fn wait(&self, pause: Duration) {
        let deadline = Instant::now() + pause;
        let mut has_rung = self.has_rung.lock();
        while !*has_rung && !self.rang.wait_until(&mut has_rung, deadline).timed_out() {}
        *has_rung = false;
    }
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
        let mut is_due = false;
        self.start_paced(name, &Arc::default(), move || {
            if std::mem::replace(&mut is_due, true) {
                act();
            }
            pause
        })
    }

    /// Starts a thread that calls `act` again and again, each time after the pause that the call before has returned,
    /// or sooner when the bell rings. So where nothing is to be done, next to nothing is.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start_paced(
        self: &Arc<Self>,
        name: &str,
        bell: &Arc<Bell>,
        mut act: impl FnMut() -> Duration + Send + 'static,
    ) -> io::Result<()> {
        let (threads, of_thread) = (self.clone(), bell.clone());
        let keep_on = move || {
            while !threads.is_over.load(Ordering::Acquire) {
                let pause = act();
                of_thread.wait(pause);
            }
        };
        self.bells.lock().push(bell.clone());
        self.running.lock().push(Builder::new().name(name.into()).spawn(keep_on)?);
        Ok(())
    }

    /// Waits for this long, or until all threads are to end. Returns whether they are.
    pub(super) fn are_over_within(&self, pause: Duration) -> bool {
        if !self.is_over.load(Ordering::Acquire) {
            self.pauses.wait(pause);
        }
        self.is_over.load(Ordering::Acquire)
    }

    /// Ends the threads. It waits until each has finished its current call.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.pauses.ring();
        self.bells.lock().iter().for_each(|bell| bell.ring());
        let running = std::mem::take(&mut *self.running.lock());
        // A panic was reported where it happened.
        running.into_iter().for_each(|thread| drop(thread.join()));
    }
}
