//! Burst workers that the server has started by itself, as functions of a cloud: when, how many, and what they cost.
//!
//! What must hold: a function is invoked only if the budget has all that it may cost, and there are never more than are
//! configured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::Clock;

use crate::burst::lambda::budget::{Budget, in_dollars};
use crate::burst::lambda::{Event, Lambda, Run, START_MAX, WARM};
use crate::burst::roster::Roster;
use crate::config::{BurstConfig, Config};
use crate::data_folder::FUNCTIONS;
use crate::service::{ErrorKind, FunctionStatus, ServiceError};

/// The functions of a server.
pub(in crate::engine) struct Functions {
    lambda: Lambda,
    budget: Mutex<Budget>,
    state: Mutex<State>,
    /// Whether the server stops: what a function costs that ends later stays reserved.
    is_stopped: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    running: usize,
    invoked: u64,
    last_error: Option<String>,
    warmed: Option<Instant>,
}

/// Hears that functions have ended, by their names, and why if they have failed.
type Ended = mpsc::Sender<(String, Option<String>)>;

impl Functions {
    /// Those that are configured, if any are.
    ///
    /// # Errors
    /// It is not known what they have cost, or this machine cannot speak TLS.
    pub(in crate::engine) fn open(
        config: &Config,
        is_stopped: &Arc<AtomicBool>,
    ) -> Result<Option<Arc<Self>>, ServiceError> {
        let Some(lambda) = config.burst.lambda.clone() else { return Ok(None) };
        let budget = Budget::open(config.data_dir.join(FUNCTIONS), lambda.cost_max);
        let opened = budget.and_then(|budget| Ok((Mutex::new(budget), Lambda::new(lambda)?)));
        let (budget, lambda) =
            opened.map_err(|problem| ServiceError::new(ErrorKind::Unavailable, format!("burst.lambda: {problem}")))?;
        Ok(Some(Arc::new(Self { lambda, budget, state: Mutex::default(), is_stopped: is_stopped.clone() })))
    }

    /// Has functions started that have room for so many tasks, and waits until they have come as workers, as long as a
    /// worker may take to answer. Returns why some have not come, in words.
    pub(super) fn fetch(self: &Arc<Self>, tasks: usize, roster: &Roster, burst: &BurstConfig) -> Vec<String> {
        const LOOK_PERIOD: Duration = Duration::from_millis(10);
        let (config, deadline) = (&self.lambda.config, Instant::now() + burst.answer_max);
        let run = Run {
            connect: config.connect.0.clone(),
            tls: config.connect.1,
            name: String::new(),
            threads: self.lambda.threads(),
            idle_s: config.idle.as_secs(),
            limit_s: config.limit.as_secs(),
            margin_s: burst.margin.as_secs(),
        };
        let (ended, ends) = mpsc::channel();
        let room = config.workers_max.saturating_sub(self.state.lock().running);
        let count = tasks.div_ceil(run.threads).min(room.max(1));
        let started = (0..count).map(|_| self.start(Some(&run), config.limit, deadline, &ended));
        let (mut waited, mut why) = (Vec::new(), Vec::new());
        started.for_each(|started| started.map_or_else(|problem| why.push(problem), |name| waited.push(name)));
        while !waited.is_empty() && Instant::now() < deadline && !self.is_stopped.load(Ordering::Acquire) {
            let come = roster.workers();
            waited.retain(|name| !come.iter().any(|one| one.name == *name));
            for (name, problem) in ends.try_iter() {
                waited.retain(|one| *one != name);
                why.extend(problem);
            }
            thread::sleep(LOOK_PERIOD);
        }
        if !waited.is_empty() {
            why.push(format!("{} of the function '{}' did not come in time", waited.len(), config.function));
        }
        self.state.lock().last_error = why.last().cloned();
        why.dedup();
        why
    }

    /// Invokes functions so that some stay warm, if it is time to.
    pub(super) fn keep_warm(self: &Arc<Self>) {
        let config = &self.lambda.config;
        let lacks = {
            let mut state = self.state.lock();
            if state.warmed.is_some_and(|since| since.elapsed() < config.warm_period) {
                return;
            }
            state.warmed = Some(Instant::now());
            config.warm.saturating_sub(state.running)
        };
        let (ended, _) = mpsc::channel();
        let problem = (0..lacks).find_map(|_| self.start(None, WARM, Instant::now(), &ended).err());
        problem.into_iter().for_each(|problem| self.state.lock().last_error = Some(problem));
    }

    /// Invokes a function in a thread of its own, which may take up to `limit`. Returns its name.
    fn start(
        self: &Arc<Self>,
        run: Option<&Run>,
        limit: Duration,
        until: Instant,
        ended: &Ended,
    ) -> Result<String, String> {
        let (reserved, config, mut state) =
            (self.lambda.cost(limit + START_MAX), &self.lambda.config, self.state.lock());
        if state.running >= config.workers_max {
            return Err(format!("burst.lambda.workers_max is {}, and as many functions run", config.workers_max));
        }
        self.budget.lock().reserve(reserved, SystemClock.now_us())?;
        state.running += 1;
        state.invoked += 1;
        // Another server may have had as many.
        let name = format!("{}-{:x}-{}", config.function, SystemClock.now_us() / 1_000, state.invoked);
        drop(state);
        let run = run.map(|run| Run { name: name.clone(), ..run.clone() });
        let event = Event { version: env!("CARGO_PKG_VERSION").into(), run };
        let (functions, ended, of_thread) = (self.clone(), ended.clone(), name.clone());
        let act = move || {
            let (billed, done) = functions.lambda.invoke(&event, until);
            functions.end(reserved, billed, done.as_ref().err());
            // Nobody may wait for it any more.
            let _ = ended.send((of_thread, done.err()));
        };
        let started = thread::Builder::new().name("rivulet-function".into()).spawn(act);
        started.map(|_| name).map_err(|error| {
            let problem = format!("no thread can be started: {error}");
            self.end(reserved, None, Some(&problem));
            problem
        })
    }

    /// A function has ended, took so long if it was invoked, and failed if there is a reason.
    fn end(&self, reserved: u64, billed: Option<Duration>, problem: Option<&String>) {
        let cost = billed.map_or(0, |billed| self.lambda.cost(billed).min(reserved));
        if !self.is_stopped.load(Ordering::Acquire)
            && let Err(problem) = self.budget.lock().settle(reserved, cost, SystemClock.now_us())
        {
            tracing::warn!("{problem}");
        }
        let mut state = self.state.lock();
        state.running -= 1;
        if let Some(problem) = problem {
            tracing::warn!("a function has failed: {problem}");
            state.last_error = Some(problem.clone());
        }
    }

    /// What is shown of them.
    pub(in crate::engine) fn status(&self) -> FunctionStatus {
        let spent = self.budget.lock().today(SystemClock.now_us());
        let state = self.state.lock();
        FunctionStatus {
            function: self.lambda.config.function.clone(),
            running: state.running as u64,
            invoked: state.invoked,
            spent_today: in_dollars(spent),
            spent_today_microdollars: spent / 1_000_000,
            cost_max: in_dollars(self.lambda.config.cost_max),
            last_error: state.last_error.clone(),
        }
    }
}
