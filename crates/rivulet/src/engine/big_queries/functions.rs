//! Burst workers that the server has started by itself, as functions of a cloud: when, how many, and what they cost.
//!
//! What must hold: a function is invoked only if the budget has all that it may cost, and there are never more than are
//! configured. After a failure none is invoked for a while, whichever query asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::Clock;

use crate::burst::lambda::budget::Budget;
use crate::burst::lambda::{Event, Lambda, START_MAX, WARM, threads};
use crate::burst::roster::{Roster, WorkerInfo};
use crate::config::Config;
use crate::counted::counted;
use crate::data_folder::FUNCTIONS;
use crate::service::{ErrorKind, FunctionStatus, ServiceError};

/// For how long no function is invoked after a failure, and at most; twice as long after each further one.
const RESTS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// How long others are waited for once a function has come. Much less than [`IDLE_S`](crate::burst::lambda::IDLE_S), or
/// that one is gone before it has a task.
const GRACE: Duration = Duration::from_secs(1);

/// The functions of a server.
pub(in crate::engine) struct Functions {
    /// How long a worker may take to answer, and how long before its end its tasks come back.
    answer_max: Duration,
    margin: Duration,
    lambda: Lambda,
    /// Locked before the state, and while the disk is written.
    budget: Mutex<Budget>,
    state: Mutex<State>,
    /// Whether the server stops: what a function costs that ends later stays reserved.
    is_stopped: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    /// The names of functions that run, and since when; `None` if one is only kept warm.
    running: BTreeMap<String, Option<Instant>>,
    warmed: Option<Instant>,
    invoked: u64,
    /// How long the rest after the last failure is, nothing if a function has come as a worker since, and its end.
    rest: Duration,
    rests_until: Option<Instant>,
    last_error: Option<String>,
}

impl State {
    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| Instant::now() < until)
    }
}

/// A function that is invoked. However its thread ends, what it cost is settled.
struct Call {
    functions: Arc<Functions>,
    event: Event,
    reserved: u64,
    /// What [`Lambda::invoke`] returns.
    ended: (Option<Duration>, Result<(), String>),
}

impl Call {
    fn act(mut self, until: Instant) {
        self.ended = (Some(Duration::MAX), Err("the server has failed to invoke it".into()));
        self.ended = self.functions.lambda.invoke(&self.event, until);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let (functions, (billed, done)) = (&*self.functions, &self.ended);
        let cost = billed.map_or(0, |billed| functions.lambda.cost(billed).min(self.reserved));
        if !functions.is_stopped.load(Ordering::Acquire)
            && let Err(problem) = functions.budget.lock().settle(self.reserved, cost, SystemClock.now_us())
        {
            tracing::warn!("{problem}");
        }
        let mut state = functions.state.lock();
        state.running.remove(&self.event.name);
        let Err(problem) = done else { return };
        // The first one of an attempt speaks for all.
        if self.event.margin_s.is_some() && !state.rests() {
            state.rest = (state.rest * 2).clamp(RESTS.0, RESTS.1);
            state.rests_until = Some(Instant::now() + state.rest);
            let why = format!("{problem}; no other one is invoked for {} s", state.rest.as_secs());
            tracing::warn!("{why}");
            state.last_error = Some(why);
        }
        state.last_error.get_or_insert_with(|| problem.clone());
    }
}

impl Functions {
    /// Opens the configured function, if there is one.
    ///
    /// # Errors
    /// This machine cannot speak TLS.
    pub(in crate::engine) fn open(
        config: &Config,
        stopped: &Arc<AtomicBool>,
    ) -> Result<Option<Arc<Self>>, ServiceError> {
        let Some(lambda) = config.burst.lambda.clone() else { return Ok(None) };
        let budget = Budget::open(config.data_dir.join(FUNCTIONS), lambda.cost_max, SystemClock.now_us());
        let failed = |problem| ServiceError::new(ErrorKind::Unavailable, format!("burst.lambda: {problem}"));
        Ok(Some(Arc::new(Self {
            answer_max: config.burst.answer_max,
            margin: config.burst.margin,
            lambda: Lambda::new(lambda).map_err(failed)?,
            budget: Mutex::new(budget),
            state: Mutex::default(),
            is_stopped: stopped.clone(),
        })))
    }

    /// Whether credentials may go to a function: its connection is encrypted, or on this machine.
    pub(super) fn are_private(&self) -> bool {
        let (connect, is_encrypted) = &self.lambda.config.connect;
        *is_encrypted || connect.parse().is_ok_and(|address: std::net::SocketAddr| address.ip().is_loopback())
    }

    /// Invokes functions that have room for so many tasks, and waits until they have come as workers: for the first one
    /// as long as a worker may take to answer, for the others a moment longer. Returns why some have not come.
    pub(super) fn fetch(self: &Arc<Self>, tasks: usize, roster: &Roster, is_over: impl Fn() -> bool) -> Option<String> {
        let (config, answer_max) = (&self.lambda.config, self.answer_max);
        let mut deadline = Instant::now() + answer_max;
        let coming = |workers: &[WorkerInfo]| {
            let is_coming = |(name, since): &(&String, &Option<Instant>)| {
                since.is_some_and(|since| since.elapsed() < answer_max) && !workers.iter().any(|one| one.name == **name)
            };
            Vec::from_iter(self.state.lock().running.iter().filter(is_coming).map(|(name, _)| name.clone()))
        };
        let state = self.state.lock();
        if state.rests() {
            return state.last_error.clone();
        }
        drop(state);
        let count = tasks.div_ceil(threads(config.memory_mb)).saturating_sub(coming(&roster.workers()).len());
        self.start(count, Some(self.margin), deadline);
        let mut waited = coming(&roster.workers());
        while !waited.is_empty() && Instant::now() < deadline && !is_over() {
            thread::sleep(Duration::from_millis(10));
            let workers = roster.workers();
            if waited.iter().any(|name| workers.iter().any(|one| one.name == *name)) {
                deadline = deadline.min(Instant::now() + GRACE);
                self.state.lock().rest = Duration::ZERO;
            }
            waited = coming(&workers);
        }
        let mut state = self.state.lock();
        if state.last_error.is_none() && !waited.is_empty() {
            let functions = counted(waited.len() as u64, "function");
            state.last_error = Some(format!("{functions} '{}' did not connect in time", config.function));
        }
        state.last_error.clone()
    }

    /// Invokes functions so that some stay warm, if it is time to.
    pub(super) fn keep_warm(self: &Arc<Self>) {
        let ((warm, period), mut state) = (self.lambda.config.warm, self.state.lock());
        let count = warm.saturating_sub(state.running.len());
        if count == 0 || state.rests() || state.warmed.is_some_and(|since| since.elapsed() < period) {
            return;
        }
        state.warmed = Some(Instant::now());
        let functions = self.clone();
        // The caller hears workers, and does not wait for the disk.
        let start = move || functions.start(count, None, Instant::now());
        let _ = thread::Builder::new().name("rivulet-warm".into()).spawn(start);
    }

    /// Invokes so many functions, each in a thread of its own, as far as there is room: as workers that end their tasks
    /// this long before their own end, or only to be kept warm.
    fn start(self: &Arc<Self>, count: usize, margin: Option<Duration>, until: Instant) {
        let config = &self.lambda.config;
        let reserved = self.lambda.cost(margin.map_or(WARM, |_| config.limit) + START_MAX);
        // Locked until all are counted: two that start functions do not find the same room.
        let (mut budget, state) = (self.budget.lock(), self.state.lock());
        // After a failure one shows whether it is over.
        let count = if state.rest.is_zero() { count } else { count.min(1) };
        let room =
            margin.map_or(count, |_| config.workers_max.saturating_sub(state.running.values().flatten().count()));
        drop(state);
        let (granted, why) = budget.reserve(reserved, count.min(room), SystemClock.now_us());
        let is_full = || format!("burst.lambda.workers_max is {}, and more are needed", config.workers_max);
        let mut state = self.state.lock();
        state.last_error = why.or_else(|| (count > room).then(is_full));
        let mut call = || {
            state.invoked += 1;
            // Another server may have had as many.
            let name = format!("{}-{:x}-{}", config.function, SystemClock.now_us() / 1_000, state.invoked);
            state.running.insert(name.clone(), margin.map(|_| Instant::now()));
            let (version, connect) = (env!("CARGO_PKG_VERSION").into(), config.connect.clone());
            let (memory_mb, limit_s, margin_s) =
                (config.memory_mb, config.limit.as_secs(), margin.map(|one| one.as_secs()));
            let event = Event { version, connect, name, memory_mb, limit_s, margin_s };
            Call { functions: self.clone(), event, reserved, ended: (None, Err("no thread can be started".into())) }
        };
        let calls = Vec::from_iter((0..granted).map(|_| call()));
        drop((state, budget));
        for call in calls {
            // Without a thread the call is dropped, and says so.
            let _ = thread::Builder::new().name("rivulet-function".into()).spawn(move || call.act(until));
        }
    }

    /// What is shown of them.
    pub(in crate::engine) fn status(&self) -> FunctionStatus {
        let (today, reserved) = {
            let mut budget = self.budget.lock();
            (budget.today(SystemClock.now_us()), budget.reserved())
        };
        let state = self.state.lock();
        FunctionStatus {
            function: self.lambda.config.function.clone(),
            running: state.running.len() as u64,
            invoked: state.invoked,
            spent_today_microdollars: (today - reserved) / 1_000_000,
            reserved_microdollars: reserved / 1_000_000,
            cost_max_microdollars: self.lambda.config.cost_max / 1_000_000,
            last_error: state.last_error.clone(),
        }
    }
}
