//! Tasks that wait for a worker, by the share whose time they take.
//!
//! What must hold: tasks of several shares that have work all the time get time of this worker by the weights of their
//! shares, however many tasks each has here, and whatever it has elsewhere. Who had none for a while saves nothing up.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::{Runnable, Share};

/// How long a worker stays with a task where there are several shares: so long others wait at least, because a task
/// goes on to the end of its batch.
pub(super) const SLICE: Duration = Duration::from_micros(100);

/// How many lines without tasks are kept, so that their memory is used again.
const SPARE_MAX: usize = 8;

/// The tasks that wait for one worker, first in, first out in each share.
#[derive(Default)]
pub(super) struct Lines {
    /// Those of shares of which tasks wait.
    lines: Vec<Line>,
    spare: Vec<VecDeque<Arc<dyn Runnable>>>,
    waiting: usize,
    /// The time that tasks of shares have had here, by their weights, in nanoseconds: of those that are ahead of
    /// `reached_ns`. All others are there.
    ahead_ns: HashMap<Id, u64>,
    /// How far the share had come that had its turn last.
    reached_ns: u64,
}

struct Line {
    share: Option<Arc<Share>>,
    tasks: VecDeque<Arc<dyn Runnable>>,
}

/// Which share: by its place in memory, and 0 for that of tasks without a share of their own. A share that is gone may
/// leave its time to one that comes in its place, which then waits for that time once.
type Id = usize;

fn id_of(share: Option<&Arc<Share>>) -> Id {
    share.map_or(0, |share| Arc::as_ptr(share) as usize)
}

impl Lines {
    /// The number of waiting tasks.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Enters a task.
    pub(super) fn enter(&mut self, task: Arc<dyn Runnable>) {
        self.waiting += 1;
        let share = task.standing().share();
        let id = id_of(share);
        if let Some(line) = self.lines.iter_mut().find(|line| id_of(line.share.as_ref()) == id) {
            return line.tasks.push_back(task);
        }
        let (share, mut tasks) = (share.cloned(), self.spare.pop().unwrap_or_default());
        tasks.push_back(task);
        self.lines.push(Line { share, tasks });
    }

    /// Takes the oldest task of the share that had the least time here.
    pub(super) fn take(&mut self) -> Option<Arc<dyn Runnable>> {
        let had_ns = |line: &Line| self.had_ns(id_of(line.share.as_ref()));
        let place = match self.lines.len() {
            0 => return None,
            1 => 0,
            count => (0..count).min_by_key(|&place| had_ns(&self.lines[place]))?,
        };
        self.reached_ns = had_ns(&self.lines[place]);
        let task = self.lines[place].tasks.pop_front()?;
        self.waiting -= 1;
        if self.lines[place].tasks.is_empty() {
            let tasks = self.lines.swap_remove(place).tasks;
            if self.spare.len() < SPARE_MAX {
                self.spare.push(tasks);
            }
        }
        task.standing().leave();
        Some(task)
    }

    /// Notes that a task of a share had so much time.
    pub(super) fn took(&mut self, share: Option<&Arc<Share>>, time: Duration) {
        let weighted_ns = share.map_or(time.as_nanos() as u64, |share| share.weighted_ns(time));
        let had_ns = self.had_ns(id_of(share)).saturating_add(weighted_ns);
        self.ahead_ns.insert(id_of(share), had_ns);
        // Those that the others have come to need not be known.
        if self.ahead_ns.len() > 2 * (self.lines.len() + SPARE_MAX) {
            let reached_ns = self.reached_ns;
            self.ahead_ns.retain(|_, had_ns| *had_ns > reached_ns);
        }
    }

    fn had_ns(&self, id: Id) -> u64 {
        self.ahead_ns.get(&id).copied().unwrap_or_default().max(self.reached_ns)
    }
}
