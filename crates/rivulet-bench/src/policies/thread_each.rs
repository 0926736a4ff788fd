//! A thread for each task, as Storm has for each operator, and other engines for each query.
//!
//! A task's thread is started when the task is ready for the first time, and waits for it from then on. Beyond the
//! limit of threads the workers run what is ready, first in, first out; otherwise they have nothing to do.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, RwLock};
use rivulet_runtime::scheduler::{Budgets, Closing, Scheduler, SchedulerSetup, Shared};
use rivulet_runtime::{Belonging, Budget, Policy, Runnable};

use super::pool::Queue;
use super::thread_limit::{ThreadLimit, of_this_process};

/// A thread for each task.
pub static THREAD_EACH: Policy = Policy {
    name: "thread-each",
    help: "a thread for each task",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |setup| Box::new(ThreadEach::new(setup, of_this_process())),
};

/// The stack of a thread: there may be very many. No huge page has room in it, so memory is used for what was touched.
const STACK_BYTES: usize = 1 << 20;

/// The place of a task for which there was no thread.
const WITHOUT_THREAD: u64 = u64::MAX;

/// Runs a task within a budget, and hands it back.
type Run = Arc<dyn Fn(Arc<dyn Runnable>, Budget) + Send + Sync>;

/// The threads of the tasks. The [place](rivulet_runtime::scheduler::Standing::place) of a task is one more than the
/// index of its thread, or [`WITHOUT_THREAD`]; 0 before it is ready for the first time.
struct ThreadEach {
    threads: RwLock<Threads>,
    /// Tasks without a thread.
    others: Shared<Queue<true>>,
    limit: ThreadLimit,
    closing: Arc<Closing>,
    budgets: Budgets,
    run: Run,
}

#[derive(Default)]
struct Threads {
    all: Vec<Thread>,
    /// Threads whose tasks are gone.
    free: Vec<usize>,
    /// With so many threads they are looked for.
    look_at: usize,
    /// Whether no task is run any more.
    are_over: bool,
}

struct Thread {
    of: Weak<dyn Runnable>,
    desk: Arc<Desk>,
    handle: JoinHandle<()>,
}

/// Where a thread finds its task when that is ready.
#[derive(Default)]
struct Desk {
    next: Mutex<Next>,
    came: Condvar,
}

#[derive(Default)]
struct Next {
    task: Option<Arc<dyn Runnable>>,
    is_over: bool,
}

impl ThreadEach {
    fn new(setup: SchedulerSetup, limit: ThreadLimit) -> Self {
        let (closing, budgets, run) = (setup.closing.clone(), setup.budgets, setup.run.clone());
        Self { threads: RwLock::default(), others: Shared::new(setup), limit, closing, budgets, run }
    }

    /// The place of a task that is ready for the first time: that of a thread whose task is gone, or of a new one.
    fn place(&self, task: &Arc<dyn Runnable>) -> u64 {
        let threads = &mut *self.threads.write();
        let count = threads.all.len();
        if threads.free.is_empty() && (count >= threads.look_at || count >= self.limit.threads_max) {
            let is_gone = |index: &usize| threads.all[*index].of.strong_count() == 0;
            threads.free = (0..count).filter(is_gone).collect();
            threads.look_at = 2 * (count - threads.free.len()).max(8);
        }
        if let Some(index) = threads.free.pop() {
            threads.all[index].of = Arc::downgrade(task);
            return index as u64 + 1;
        }
        if count >= self.limit.threads_max || threads.are_over {
            return WITHOUT_THREAD;
        }
        let desk = Arc::<Desk>::default();
        let (own, closing, budgets, run) = (desk.clone(), self.closing.clone(), self.budgets, self.run.clone());
        let builder = std::thread::Builder::new().name(format!("rivulet-task-{count}")).stack_size(STACK_BYTES);
        match builder.spawn(move || own.work(&closing, budgets, &run)) {
            Ok(handle) => threads.all.push(Thread { of: Arc::downgrade(task), desk, handle }),
            Err(error) => {
                tracing::warn!("a task shares workers with others, for no thread can be started: {error}");
                return WITHOUT_THREAD;
            }
        }
        count as u64 + 1
    }
}

impl Desk {
    fn work(&self, closing: &Closing, budgets: Budgets, run: &Run) {
        while let Some(task) = self.take() {
            if !closing.is_over() {
                let budget = budgets.of(&*task, usize::MAX);
                run(task, budget);
            }
        }
    }

    /// Waits for the task; `None` if it does not come any more.
    fn take(&self) -> Option<Arc<dyn Runnable>> {
        let mut next = self.next.lock();
        while next.task.is_none() && !next.is_over {
            self.came.wait(&mut next);
        }
        let task = next.task.take()?;
        task.standing().leave();
        Some(task)
    }
}

impl Scheduler for ThreadEach {
    fn ready(&self, task: Arc<dyn Runnable>, pending: usize) {
        if !task.standing().enter() {
            return;
        }
        // Whoever has entered it is the only one that sets and reads its place.
        if task.standing().place() == 0 {
            task.standing().set_place(self.place(&task));
        }
        let threads = self.threads.read();
        match task.standing().place() {
            WITHOUT_THREAD if !threads.are_over => self.others.ready(task, pending),
            place => {
                // At the end there is no thread any more.
                let Some(thread) = threads.all.get(place as usize - 1) else { return };
                thread.desk.next.lock().task = Some(task);
                thread.desk.came.notify_one();
            }
        }
    }

    fn next(&self, worker: usize) -> Option<(Arc<dyn Runnable>, Budget)> {
        self.others.next(worker)
    }

    fn waiting(&self) -> usize {
        let threads = self.threads.read();
        let of_threads = threads.all.iter().filter(|thread| thread.desk.next.lock().task.is_some()).count();
        of_threads + self.others.waiting()
    }

    fn add_worker(&self) -> usize {
        self.others.add_worker()
    }

    fn wake_all(&self) {
        self.others.wake_all();
    }

    fn clear(&self) {
        let all = {
            let mut threads = self.threads.write();
            threads.are_over = true;
            threads.free.clear();
            std::mem::take(&mut threads.all)
        };
        for thread in &all {
            let mut next = thread.desk.next.lock();
            next.is_over = true;
            let task = next.task.take();
            drop(next);
            drop(task);
            thread.desk.came.notify_one();
        }
        // Not under the lock: a thread that still runs may report another task.
        for thread in all {
            // A panic of a task was caught and reported where it happened.
            let _ = thread.handle.join();
        }
        self.others.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use rivulet_runtime::scheduler::Standing;
    use rivulet_runtime::{Activation, Consume};

    use super::*;

    /// Notes the threads that run it.
    #[derive(Default)]
    struct Noting {
        standing: Standing,
        ran_by: Mutex<Vec<String>>,
    }

    impl Runnable for Noting {
        fn name(&self) -> &str {
            "noting"
        }

        fn worker(&self) -> usize {
            0
        }

        fn standing(&self) -> &Standing {
            &self.standing
        }

        fn pending(&self) -> usize {
            1
        }

        fn run(&self, _budget: Budget) -> Activation {
            self.ran_by.lock().push(std::thread::current().name().unwrap_or_default().to_owned());
            Activation::Ran(1)
        }

        fn has_work(&self) -> bool {
            false
        }
    }

    /// A scheduler with so many threads at most, and how many tasks it has run.
    fn scheduler(threads_max: usize) -> (ThreadEach, Arc<AtomicUsize>) {
        let ran = Arc::<AtomicUsize>::default();
        let counted = ran.clone();
        let setup = SchedulerSetup {
            closing: Arc::default(),
            nodes: Vec::new(),
            budgets: Budgets { time_slice: Duration::from_secs(1), consume: Consume::All },
            run: Arc::new(move |task, budget| {
                task.run(budget);
                drop(task);
                counted.fetch_add(1, Ordering::Release);
            }),
        };
        (ThreadEach::new(setup, ThreadLimit { threads_max, bounded_by: "the test" }), ran)
    }

    fn claimed() -> Arc<Noting> {
        let task = Arc::<Noting>::default();
        assert!(task.standing.claim());
        task
    }

    fn wait_for(ran: &AtomicUsize, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while ran.load(Ordering::Acquire) < count {
            assert!(Instant::now() < deadline, "{count} have not run");
            std::thread::yield_now();
        }
    }

    #[test]
    fn each_task_has_its_thread_and_beyond_the_limit_workers_run_them() {
        let (scheduler, ran) = scheduler(2);
        let tasks = [claimed(), claimed(), claimed()];
        tasks.iter().for_each(|task| scheduler.ready(task.clone(), 1));
        wait_for(&ran, 2);
        assert_eq!(scheduler.waiting(), 1);
        let (other, budget) = scheduler.next(0).expect("one is for the workers");
        assert!(std::ptr::addr_eq(Arc::as_ptr(&other), Arc::as_ptr(&tasks[2])));
        assert_eq!(budget, Budget::of_time(Duration::from_secs(1)));
        scheduler.clear();
        assert_eq!(tasks.map(|task| task.ran_by.lock().join(" ")), ["rivulet-task-0", "rivulet-task-1", ""]);
    }

    #[test]
    fn a_thread_whose_task_is_gone_serves_another() {
        let (scheduler, ran) = scheduler(1);
        for number in 1..=20 {
            let task = claimed();
            scheduler.ready(task.clone(), 1);
            wait_for(&ran, number);
            assert_eq!(task.ran_by.lock().join(" "), "rivulet-task-0");
        }
        scheduler.clear();
        // What comes later is kept by nobody.
        let late = claimed();
        scheduler.ready(late.clone(), 1);
        assert_eq!((Arc::strong_count(&late), scheduler.waiting()), (1, 0));
    }
}
