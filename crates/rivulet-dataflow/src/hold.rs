//! A thread that gives work to others, piece by piece, wakes each of them once: when it has given all.

use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// The hold of this thread.
    static HELD: RefCell<Held> = const { RefCell::new(Held { is_on: false, sleepers: Vec::new() }) };
}

/// Who is to be woken when the hold ends. Its memory is kept: with a device for each connection there is a hold for
/// each message.
struct Held {
    is_on: bool,
    sleepers: Vec<Arc<dyn Wake>>,
}

/// Somebody who sleeps until there is work.
pub trait Wake: Send + Sync {
    /// Wakes it. Must not call [`wake()`] or begin or end a [`Hold`]: the list of sleepers is borrowed meanwhile.
    fn wake(&self);
}

/// While it lives, nobody is woken by this thread. To be kept for some microseconds.
#[derive(Debug)]
pub struct Hold(());

impl Hold {
    /// Begins; within another hold of this thread it ends that one with its own end.
    pub fn begin() -> Self {
        HELD.with_borrow_mut(|held| held.is_on = true);
        Self(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            held.is_on = false;
            held.sleepers.drain(..).for_each(|sleeper| sleeper.wake());
        });
    }
}

/// Wakes somebody who finds his work already, at once or when the hold of this thread ends.
pub fn wake<W: Wake + 'static>(sleeper: &Arc<W>) {
    let is_held = HELD.with_borrow_mut(|held| {
        let known = Arc::as_ptr(sleeper).cast::<()>();
        if held.is_on && !held.sleepers.iter().any(|other| Arc::as_ptr(other).cast::<()>() == known) {
            held.sleepers.push(sleeper.clone());
        }
        held.is_on
    });
    if !is_held {
        sleeper.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Sleeper(AtomicUsize);

    impl Wake for Sleeper {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_is_woken_once_when_the_hold_ends() {
        let [one, other] = [(); 2].map(|()| Arc::<Sleeper>::default());
        let woken = || [&one, &other].map(|sleeper| sleeper.0.load(Ordering::Relaxed));
        wake(&one);
        assert_eq!(woken(), [1, 0]);
        let hold = Hold::begin();
        [&one, &other, &one, &other].into_iter().for_each(wake);
        assert_eq!(woken(), [1, 0]);
        std::thread::scope(|scope| drop(scope.spawn(|| wake(&one)).join()));
        assert_eq!(woken(), [2, 0], "another thread wakes at once");
        drop(hold);
        assert_eq!(woken(), [3, 1]);
        wake(&other);
        assert_eq!(woken(), [3, 2]);
    }
}
