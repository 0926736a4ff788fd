//! Every policy processes everything, in order; also one that is made outside of the runtime.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_dataflow::{Inbox, Push};
use rivulet_runtime::scheduler::{Closing, SchedulerSetup, Shared, Waiting};
use rivulet_runtime::{Belonging, Budget, Policy, Runnable, Scheduler, WorkerSettings, Workers};

use crate::flows::{Collected, Repeats, RunningClock, TIMES, Then, finish, numbers, repeating};
use crate::support::{Bench, homes};

/// The task that became ready last is the first.
static STACK: Policy = Policy {
    name: "stack",
    help: "last in, first out",
    belonging: Belonging::Nobody,
    follows_pending: true,
    make: |setup| Box::new(Shared::<Stack>::new(setup)),
};

/// A thread of the policy runs every task; the workers have nothing to do.
static ELSEWHERE: Policy = Policy {
    name: "elsewhere",
    help: "a thread of its own",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |setup| Box::new(Elsewhere::new(setup)),
};

struct Elsewhere {
    tasks: Mutex<Option<mpsc::Sender<Arc<dyn Runnable>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    closing: Arc<Closing>,
}

impl Elsewhere {
    fn new(SchedulerSetup { closing, budgets, run, .. }: SchedulerSetup) -> Self {
        let (tasks, came) = mpsc::channel::<Arc<dyn Runnable>>();
        let own = closing.clone();
        let thread = std::thread::spawn(move || {
            for task in came {
                task.standing().leave();
                if !own.is_over() {
                    let budget = budgets.of(&*task, usize::MAX);
                    run(task, budget);
                }
            }
        });
        Self { tasks: Mutex::new(Some(tasks)), thread: Mutex::new(Some(thread)), closing }
    }
}

impl Scheduler for Elsewhere {
    fn ready(&self, task: Arc<dyn Runnable>, _pending: usize) {
        if let Some(tasks) = self.tasks.lock().as_ref().filter(|_| task.standing().enter()) {
            tasks.send(task).unwrap();
        }
    }

    fn next(&self, _worker: usize) -> Option<(Arc<dyn Runnable>, Budget)> {
        while !self.closing.has_begun() {
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    fn waiting(&self) -> usize {
        0
    }

    fn add_worker(&self) -> usize {
        0
    }

    fn wake_all(&self) {}

    fn clear(&self) {
        drop(self.tasks.lock().take());
        if let Some(thread) = self.thread.lock().take() {
            thread.join().unwrap();
        }
    }
}

#[derive(Default)]
struct Stack(Vec<Arc<dyn Runnable>>);

impl Waiting for Stack {
    fn enter(&mut self, task: Arc<dyn Runnable>, _pending: usize) {
        if task.standing().enter() {
            self.0.push(task);
        }
    }

    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        let task = self.0.pop()?;
        task.standing().leave();
        Some((task, 7))
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}

/// In the order of their coming, a step at a time; notes of which tasks something was known to wait.
static STEPS: Policy = Policy {
    name: "steps",
    help: "a step of each in turn",
    belonging: Belonging::Nobody,
    follows_pending: true,
    make: |setup| Box::new(Shared::<Steps>::new(setup)),
};

static WITH_WORK: AtomicUsize = AtomicUsize::new(0);

#[derive(Default)]
struct Steps(VecDeque<Arc<dyn Runnable>>);

impl Waiting for Steps {
    fn enter(&mut self, task: Arc<dyn Runnable>, pending: usize) {
        if task.standing().enter() {
            WITH_WORK.fetch_add(usize::from(pending > 0), Ordering::Relaxed);
            self.0.push_back(task);
        }
    }

    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        let task = self.0.pop_front()?;
        task.standing().leave();
        Some((task, 0))
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn what_lies_in_the_stage_of_a_big_query_counts_as_waiting() {
    let settings = WorkerSettings { threads: 1, policy: &STEPS, ..Default::default() };
    let workers = Workers::start(settings, Arc::new(RunningClock(Instant::now()))).unwrap();
    // One batch, of which a hundred become.
    let (sink, repeats) = (Collected::default(), Repeats::default());
    let flow = workers.start_flow(repeating(vec![numbers(0..100, Then::End)], 1, &sink, &repeats)).unwrap();
    finish(&flow);
    workers.stop();
    assert_eq!(sink.rows.lock().len(), 100 * TIMES);
    let with_work = WITH_WORK.load(Ordering::Relaxed);
    assert!(with_work >= TIMES - 1, "something was known to wait {with_work} times");
}

fn policies() -> impl Iterator<Item = &'static Policy> {
    Policy::ALL.into_iter().chain([&STACK, &ELSEWHERE])
}

#[test]
fn workers_process_everything_in_order_and_stop() {
    for policy in policies() {
        let benches: Vec<Bench> = (0..20).map(|_| Bench::new()).collect();
        let settings = WorkerSettings { threads: 3, policy, pins: true, ..Default::default() };
        let workers = Workers::start(settings, benches[0].clock.clone()).unwrap();
        let groups: Vec<_> = benches.iter().map(|bench| workers.create_group(bench.parts())).collect();
        for group in &groups {
            group.add(&[1], &homes(&["a"]));
        }
        for value in 0..5_000i64 {
            for group in &groups {
                assert_eq!(group.push(0, 0, value.to_string().as_bytes()), Push::Taken);
            }
        }
        workers.stop();
        for (group, bench) in groups.iter().zip(&benches) {
            let (values, is_numbered) = bench.sink.of(1);
            assert!(values.into_iter().eq(0..5_000) && is_numbered, "{policy:?}: in order, none lost, none doubled");
            assert_eq!(group.waiting(), (0, 0));
        }
    }
}

#[test]
fn stopping_waits_for_room_in_the_sink_and_for_nothing_else() {
    for policy in policies() {
        let bench = Bench::new();
        let workers = Workers::start(WorkerSettings { policy, ..Default::default() }, bench.clock.clone()).unwrap();
        assert_eq!(workers.stop(), 0, "{policy:?}: there is nothing to wait for");

        let workers = Workers::start(WorkerSettings { policy, ..Default::default() }, bench.clock.clone()).unwrap();
        let group = workers.create_group(bench.parts());
        let slot = group.add(&[1], &homes(&["a"]))[0];
        bench.sink.0.lock().is_full = true;
        for value in 0..10_000 {
            assert_eq!(group.push(slot, 0, value.to_string().as_bytes()), Push::Taken);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                bench.sink.0.lock().is_full = false;
            });
            assert_eq!(workers.stop(), 0, "{policy:?}");
        });
        assert!(bench.sink.of(1).0.into_iter().eq(0..10_000), "{policy:?}");
        // What comes after the end waits, and keeps nobody alive.
        assert_eq!(group.push(slot, 0, b"7"), Push::Taken);
        assert_eq!(group.waiting().0, 1);
    }
}

#[test]
fn the_group_with_the_longest_queue_is_run_first_though_it_was_ready_last() {
    let (busy, bench) = (Bench::new(), Bench::new());
    let policy = "congestion".parse().unwrap();
    let workers =
        Workers::start(WorkerSettings { threads: 1, policy, ..Default::default() }, bench.clock.clone()).unwrap();
    let [busy_group, short, long] = [&busy, &bench, &bench].map(|bench| workers.create_group(bench.parts()));
    let [busy_slot, short_slot, long_slot] =
        [(&busy_group, 1), (&short, 1), (&long, 2)].map(|(group, id)| group.add(&[id], &homes(&["a"]))[0]);
    {
        // Its sink is asked for room by the only worker, which waits for the answer.
        let _kept_waiting = busy.sink.0.lock();
        assert_eq!(busy_group.push(busy_slot, 0, b"7"), Push::Taken);
        while workers.waiting_tasks() > 0 {
            std::thread::yield_now();
        }
        for value in 0..5i64 {
            assert_eq!(short.push(short_slot, 0, value.to_string().as_bytes()), Push::Taken);
        }
        for value in 0..500i64 {
            assert_eq!(long.push(long_slot, 0, value.to_string().as_bytes()), Push::Taken);
        }
        assert_eq!(workers.waiting_tasks(), 2, "however often they were told to have more");
    }
    assert_eq!(workers.stop(), 0);
    let queries: Vec<u64> = bench.sink.0.lock().rows.iter().map(|row| row.0).collect();
    assert_eq!(queries, [[2].repeat(500), [1].repeat(5)].concat());
}

#[test]
fn new_groups_go_to_workers_with_fewer() {
    let bench = Bench::new();
    // When loads are measured, groups that were placed before are counted no more.
    let settings =
        WorkerSettings { threads: 4, balance_period: Some(Duration::from_secs(3_600)), ..Default::default() };
    let workers = Workers::start(settings, bench.clock.clone()).unwrap();
    for _ in 0..40 {
        workers.create_group(bench.parts()).add(&[1], &homes(&["a"]));
    }
    let mut tasks: Vec<usize> = workers.status().iter().map(|worker| worker.tasks).collect();
    assert_eq!(tasks.iter().sum::<usize>(), 40);
    tasks.sort_unstable();
    // One of the two with the fewest is taken by lot, so one worker may have few, but never does one have many.
    assert!(tasks[0] > 0 && tasks[3] - tasks[1] <= 1, "{tasks:?}");
}

#[test]
fn policies_go_by_name() {
    for policy in Policy::ALL {
        assert_eq!(policy.name.parse::<&Policy>(), Ok(policy));
    }
    assert!("round-robin".parse::<&Policy>().unwrap_err().contains("congestion"));
}

#[test]
fn groups_with_a_label_in_common_begin_on_one_worker() {
    let bench = Bench::new();
    let settings = WorkerSettings { threads: 4, balance_period: None, ..Default::default() };
    let workers = Workers::start(settings, bench.clock.clone()).unwrap();
    let begin = |labels: &[&str]| {
        let group = workers.create_group(bench.parts());
        labels.iter().for_each(|label| group.expect_label(label));
        group.add(&[1], &homes(&["a"]));
        group.tasks().next().unwrap().worker()
    };
    let together: HashSet<usize> = (0..20).map(|_| begin(&["home 42", "home 43"])).collect();
    assert_eq!(together.len(), 1, "the first label counts");
    let apart: HashSet<usize> = (0..20).map(|_| begin(&[])).collect();
    assert!(apart.len() > 1, "without a label they are spread");
}
