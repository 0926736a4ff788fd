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
    /// For those that wait in the middle of an act.
    ended: Condvar,
    bells: Mutex<Vec<Arc<Bell>>>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

/// Ends the pause of the one thread that has it.
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
        self.start_paced(name, &Arc::default(), pause, move || {
            act();
            pause
        })
    }

    /// The same with a pause that each call returns, after a `first` one. It ends sooner when the bell rings. So where
    /// nothing is to be done, next to nothing is.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start_paced(
        self: &Arc<Self>,
        name: &str,
        bell: &Arc<Bell>,
        first: Duration,
        mut act: impl FnMut() -> Duration + Send + 'static,
    ) -> io::Result<()> {
        let (threads, of_thread) = (self.clone(), bell.clone());
        let keep_on = move || {
            of_thread.wait(first);
            while !*threads.is_over.lock() {
                let pause = act();
                of_thread.wait(pause);
            }
        };
        self.bells.lock().push(bell.clone());
        self.running.lock().push(Builder::new().name(name.into()).spawn(keep_on)?);
        Ok(())
    }

    /// Starts a thread of this name that does something once.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start_once(&self, name: &str, act: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let started = Builder::new().name(name.into()).spawn(act)?;
        let mut running = self.running.lock();
        running.retain(|thread| !thread.is_finished());
        running.push(started);
        Ok(())
    }

    /// Waits for this long, or until all threads are to end. Returns whether they are.
    pub(super) fn are_over_within(&self, pause: Duration) -> bool {
        let deadline = Instant::now() + pause;
        let mut is_over = self.is_over.lock();
        while !*is_over && !self.ended.wait_until(&mut is_over, deadline).timed_out() {}
        *is_over
    }

    /// Ends the threads. It waits until each has finished its current call.
    pub(super) fn end(&self) {
        *self.is_over.lock() = true;
        self.ended.notify_all();
        self.bells.lock().iter().for_each(|bell| bell.ring());
        // One of them may start another meanwhile.
        let next = || self.running.lock().pop();
        while let Some(thread) = next() {
            // A panic was reported where it happened.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_end_ends_every_pause() {
        let (threads, (done, ended)) = (Arc::<Threads>::default(), mpsc::channel());
        for _ in 0..3 {
            let (threads, done) = (threads.clone(), done.clone());
            std::thread::spawn(move || done.send(threads.are_over_within(Duration::from_secs(3_600))));
        }
        // They are likely to wait by then; what must hold does so in any case.
        assert!(ended.recv_timeout(Duration::from_millis(200)).is_err());
        threads.end();
        for _ in 0..3 {
            assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true));
        }
    }

    #[test]
    fn a_first_pause_comes_before_the_first_act() {
        let (threads, (acts, acted)) = (Arc::<Threads>::default(), mpsc::channel());
        let later = acts.clone();
        threads
            .start("later", Duration::from_secs(3_600), move || later.send("later").unwrap_or(()))
            .expect("a thread");
        let (bell, at_once) = (Arc::<Bell>::default(), move || {
            let _ = acts.send("at once");
            Duration::from_secs(3_600)
        });
        threads.start_paced("at once", &bell, Duration::ZERO, at_once).expect("a thread");
        let next = || acted.recv_timeout(Duration::from_secs(60));
        assert_eq!(next(), Ok("at once"));
        bell.ring();
        assert_eq!(next(), Ok("at once"));
        threads.end();
        assert!(next().is_err());
    }
}
