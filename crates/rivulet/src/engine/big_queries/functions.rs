//! Burst workers that the server has started by itself, as functions of a cloud: when, how many, and what they cost.
//!
//! What must hold: a function is invoked only if the budget has all that it may cost, and there are never more than are
//! configured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::Clock;

use crate::burst::lambda::budget::{Budget, in_dollars};
use crate::burst::lambda::{Event, Lambda, Run, START_MAX, WARM};
use crate::burst::roster::Roster;
use crate::config::Config;
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
    /// The names of those that run.
    running: BTreeSet<String>,
    /// Why those have failed that somebody waits for.
    failed: BTreeMap<String, String>,
    invoked: u64,
    billed: Duration,
    last_error: Option<String>,
    warmed: Option<Instant>,
}

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

    /// Has functions started that have room for so many tasks, and waits until they have come as workers, at most for
    /// `timeout`. Returns why some have not come, in words.
    pub(super) fn fetch(self: &Arc<Self>, tasks: usize, roster: &Roster, timeout: Duration) -> Vec<String> {
        const LOOK_PERIOD: Duration = Duration::from_millis(10);
        let (config, deadline) = (&self.lambda.config, Instant::now() + timeout);
        let (mut waited, mut why) = (Vec::new(), Vec::new());
        for _ in 0..tasks.div_ceil(self.lambda.threads()) {
            let name = self.lambda.config.function.clone();
            let run = Run {
                connect: config.connect.0.clone(),
                tls: config.connect.1,
                name,
                threads: self.lambda.threads(),
                idle_s: config.idle.as_secs(),
                limit_s: config.limit.as_secs(),
            };
            match self.start(Some(run), config.limit, deadline) {
                Ok(name) => waited.push(name),
                Err(problem) => {
                    why.push(problem);
                    break;
                }
            }
        }
        while !waited.is_empty() && Instant::now() < deadline && !self.is_stopped.load(Ordering::Acquire) {
            let come = roster.workers();
            let mut state = self.state.lock();
            waited.retain(|name| {
                why.extend(state.failed.remove(name));
                state.running.contains(name) && !come.iter().any(|one| one.name == *name)
            });
            drop(state);
            std::thread::sleep(LOOK_PERIOD);
        }
        if !waited.is_empty() {
            why.push(format!("{} of the function '{}' did not come in time", waited.len(), config.function));
        }
        why.iter().for_each(|why| tracing::warn!("a function is no burst worker: {why}"));
        self.state.lock().last_error = why.last().cloned();
        why.dedup();
        why
    }

    /// Invokes functions so that some stay warm, if it is time to.
    pub(super) fn keep_warm(self: &Arc<Self>) {
        let config = &self.lambda.config;
        let wanted = {
            let mut state = self.state.lock();
            if state.warmed.is_some_and(|since| since.elapsed() < config.warm_period) {
                return;
            }
            state.warmed = Some(Instant::now());
            config.warm.saturating_sub(state.running.len())
        };
        for _ in 0..wanted {
            if let Err(problem) = self.start(None, WARM, Instant::now()) {
                self.state.lock().last_error = Some(problem);
                return;
            }
        }
    }

    /// Invokes a function in a thread of its own, which may take up to `limit`. Returns its name.
    fn start(self: &Arc<Self>, run: Option<Run>, limit: Duration, until: Instant) -> Result<String, String> {
        let reserved = self.lambda.cost(limit + START_MAX);
        let name = {
            let (config, mut state) = (&self.lambda.config, self.state.lock());
            if state.running.len() >= config.workers_max {
                return Err(format!("burst.lambda.workers_max is {}, and as many functions run", config.workers_max));
            }
            self.budget.lock().reserve(reserved, SystemClock.now_us())?;
            state.invoked += 1;
            // Another server may have had as many.
            let name = format!("{}-{:x}-{}", config.function, SystemClock.now_us() / 1_000, state.invoked);
            state.running.insert(name.clone());
            name
        };
        let is_awaited = run.is_some();
        let run = run.map(|run| Run { name: name.clone(), ..run });
        let event = Event { version: env!("CARGO_PKG_VERSION").into(), run };
        let (functions, of_thread) = (self.clone(), name.clone());
        let act = move || {
            let (billed, done) = functions.lambda.invoke(&event, until);
            functions.end(&of_thread, reserved, billed, done.err().map(|why| (why, is_awaited)));
        };
        if let Err(error) = std::thread::Builder::new().name("rivulet-function".into()).spawn(act) {
            self.end(&name, reserved, None, None);
            return Err(format!("no thread can be started: {error}"));
        }
        Ok(name)
    }

    /// A function has ended, took so long if it was invoked, and failed if there is a reason.
    fn end(&self, name: &str, reserved: u64, billed: Option<Duration>, failed: Option<(String, bool)>) {
        let most = |billed: Duration| self.lambda.cost(billed).min(reserved);
        if !self.is_stopped.load(Ordering::Acquire)
            && let Err(problem) = self.budget.lock().settle(reserved, billed.map_or(0, most), SystemClock.now_us())
        {
            tracing::warn!("{problem}");
        }
        let mut state = self.state.lock();
        state.running.remove(name);
        state.billed += billed.unwrap_or_default().min(self.lambda.config.limit + START_MAX);
        if let Some((why, is_awaited)) = failed {
            tracing::warn!(name, "a function has failed: {why}");
            state.last_error = Some(why.clone());
            if is_awaited {
                state.failed.insert(name.to_owned(), why);
            }
        }
        // Of those that nobody waits for any more.
        while state.failed.len() > self.lambda.config.workers_max {
            state.failed.pop_first();
        }
    }

    /// What is shown of them.
    pub(in crate::engine) fn status(&self) -> FunctionStatus {
        let spent = self.budget.lock().today(SystemClock.now_us());
        let state = self.state.lock();
        FunctionStatus {
            function: self.lambda.config.function.clone(),
            running: state.running.len() as u64,
            invoked: state.invoked,
            billed_ms: u64::try_from(state.billed.as_millis()).unwrap_or(u64::MAX),
            spent_today: in_dollars(spent),
            spent_today_microdollars: spent / 1_000_000,
            cost_max: in_dollars(self.lambda.config.cost_max),
            last_error: state.last_error.clone(),
        }
    }
}
