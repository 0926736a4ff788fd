//! The threads: workers that run groups, and one timer that notices due deadlines.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_dataflow::Clock;

use crate::{Activation, Group, GroupId, GroupParts, ReadyQueue};

/// How often deadlines are looked at; windows of silent queries close with this precision.
const TIMER_PERIOD: Duration = Duration::from_millis(10);

/// How long a worker sleeps at most before it looks again whether it should stop.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// A fixed pool of worker threads over the groups of this process.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    ready: Arc<ReadyQueue>,
    groups: Mutex<Groups>,
}

#[derive(Default)]
struct Groups {
    all: Vec<Arc<Group>>,
    next_id: GroupId,
    /// Groups whose sink had no room; the timer offers them again.
    blocked: Vec<Arc<Group>>,
}

impl Workers {
    /// Starts `threads` workers (at least one) and the timer.
    pub fn start(threads: usize, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let shared =
            Arc::new(Shared { clock, ready: Arc::new(ReadyQueue::default()), groups: Mutex::new(Groups::default()) });
        let mut handles = Vec::new();
        for index in 0..threads.max(1) {
            let shared = shared.clone();
            handles.push(
                std::thread::Builder::new().name(format!("rivulet-worker-{index}")).spawn(move || work(&shared))?,
            );
        }
        let timed = shared.clone();
        handles.push(std::thread::Builder::new().name("rivulet-timer".into()).spawn(move || keep_time(&timed))?);
        Ok(Self { shared, threads: Mutex::new(handles) })
    }

    /// Creates a group that these workers run.
    pub fn create_group(&self, parts: GroupParts) -> Arc<Group> {
        let mut groups = self.shared.groups.lock();
        let group = Group::new(groups.next_id, parts, self.shared.clock.clone(), self.shared.ready.clone());
        groups.next_id += 1;
        groups.all.push(group.clone());
        group
    }

    /// Forgets a group; its sources must have let go of its inbox already.
    pub fn remove_group(&self, id: GroupId) {
        let mut groups = self.shared.groups.lock();
        groups.all.retain(|group| group.id() != id);
        groups.blocked.retain(|group| group.id() != id);
    }

    /// Every group.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.shared.groups.lock().all.clone()
    }

    /// The number of groups that wait for a worker.
    pub fn ready_groups(&self) -> usize {
        self.shared.ready.len()
    }

    /// Lets the workers finish what is ready, for a bounded time, then joins them. Further calls do nothing.
    pub fn stop(&self) {
        self.shared.ready.close();
        for thread in self.threads.lock().drain(..) {
            // A panic in a worker was caught where it happened; the join has nothing to add.
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work(shared: &Shared) {
    loop {
        match shared.ready.next(SLEEP_MAX) {
            Some(group) => match catch_unwind(AssertUnwindSafe(|| group.run())) {
                Ok(Activation::Ran(_)) => group.inbox().ran(),
                // Stays marked as scheduled, so that no push enqueues it before the timer does.
                Ok(Activation::Blocked) => shared.groups.lock().blocked.push(group),
                Err(_) => {
                    tracing::error!(
                        application = group.name(),
                        "an activation was cut short by a defect in the engine"
                    );
                    group.inbox().ran();
                }
            },
            None if shared.ready.is_closed() => return,
            None => {}
        }
    }
}

fn keep_time(shared: &Shared) {
    while !shared.ready.is_closed() {
        std::thread::sleep(TIMER_PERIOD);
        let now_us = shared.clock.now_us();
        let mut groups = shared.groups.lock();
        for group in groups.blocked.drain(..) {
            shared.ready.push(group);
        }
        for group in &groups.all {
            if group.is_due(now_us) {
                group.inbox().schedule();
            }
        }
    }
}
