//! Tasks of big queries on burst workers: what the statements about them do.
//!
//! What must hold: a statement moves tasks only of a query that was created for it and that has checkpoints, because
//! the checkpoint is what remains of the state of a worker that is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::datatypes::Field;
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::{Clock, PartitionState};
use rivulet_runtime::{Flow, FlowLimits, MoveError, MoveStep, Placement};
use rivulet_sql::{Operators, QueryPlan, Table, name_in_sql, type_name};

use super::declared::{names, text_of, told};
use super::note::ROWS_OF_ONE_PIECE;
use super::{BigQueries, OneQuery, Opener, Remembered, run};
use crate::burst::message::Hold;
use crate::burst::pipe::LinkPipe;
use crate::burst::roster::WorkerInfo;
use crate::burst::{On, columns, moves};
use crate::counted::counted;
use crate::engine::threads::Threads;
use crate::service::{ErrorKind, FullName, QueryState, ServiceError, Tenant};

/// How often burst workers are looked at, and how often if there are none.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// The most bytes of state of a task on a worker: all of it crosses the wire at each checkpoint.
const STATE_BYTES_MAX: usize = 256 << 20;

/// A task that has a place: where it is, the pipe to the place, and who gives it.
type Held = ((usize, usize), Arc<LinkPipe>, On);

/// Tasks of a stage of a query, of which some are or were on burst workers: a row of SHOW BURSTS.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Burst {
    /// The name of the query.
    pub(in crate::engine) query: String,
    /// The number of the stage, from 1.
    pub(in crate::engine) stage: usize,
    /// The numbers of its operators in EXPLAIN.
    pub(in crate::engine) operators: String,
    /// The number of its tasks, and of those that are away.
    pub(in crate::engine) tasks: usize,
    pub(in crate::engine) away: usize,
    /// The names of the workers that have them.
    pub(in crate::engine) workers: Vec<String>,
    /// Since when the first of them is away, microseconds since the epoch.
    pub(in crate::engine) since_us: Option<i64>,
    /// State that came with them or with their last checkpoint, in bytes.
    pub(in crate::engine) state_bytes: u64,
    /// Rows that were sent and are not answered.
    pub(in crate::engine) in_flight_rows: u64,
    /// Why a task of it did not go, and what was decided last.
    pub(in crate::engine) why: String,
}

/// A running query, and stages of it by their indices.
struct Meant {
    number: u64,
    text: String,
    plan: Arc<QueryPlan>,
    running: Arc<run::Running>,
    stages: Vec<usize>,
    /// Why other stages stay.
    stay: Vec<String>,
}

impl Meant {
    fn flow(&self) -> &Flow {
        self.running.flow()
    }

    /// The tasks of the stages that are elsewhere, or on the way.
    fn away(&self) -> Vec<Placement> {
        let is_away = |one: &Placement| self.stages.contains(&one.stage) && one.step != MoveStep::Home;
        self.flow().placements().into_iter().filter(is_away).collect()
    }

    /// Waits until this is so of each of the tasks at these places, as long as a worker may take to answer, and returns
    /// where they are.
    fn wait(&self, places: &[(usize, usize)], opener: &Opener, is_so: fn(&Placement) -> bool) -> Vec<Placement> {
        const LOOK_PERIOD: Duration = Duration::from_millis(2);
        let deadline = Instant::now() + opener.burst().answer_max;
        loop {
            let mut placements = self.flow().placements();
            placements.retain(|one| places.contains(&(one.stage, one.instance)));
            let is_over = opener.is_stopped() || self.flow().ended().is_some() || Instant::now() >= deadline;
            if is_over || placements.iter().all(is_so) {
                return placements;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
    }
}

impl BigQueries {
    /// Sends tasks of a query to burst workers: of each stage that is meant the part `ratio`, above 0 and at most 1,
    /// rounded up. It calls `begins` before the first of them goes. For a caller that has claimed the name. Returns
    /// what it has done, in words.
    ///
    /// # Errors
    /// There is no such query or operator; it stays on the server; or there is no worker for it.
    pub(in crate::engine) fn redirect(
        &self,
        name: &FullName,
        operators: &Operators,
        ratio: f64,
        begins: impl FnOnce(),
    ) -> Result<String, ServiceError> {
        let meant = self.to_burst(name, operators)?;
        let away = meant.away();
        let mut wanted = Vec::new();
        for &stage in &meant.stages {
            let instances = meant.flow().stages()[stage].instances;
            let is_away =
                |&(_, one): &(usize, usize)| away.iter().any(|task| (task.stage, task.instance) == (stage, one));
            let (gone, here): (Vec<_>, Vec<_>) = (0..instances).map(|one| (stage, one)).partition(is_away);
            let count = (1..=instances).find(|&count| count as f64 >= ratio * instances as f64).unwrap_or(instances);
            wanted.extend(here.into_iter().take(count.saturating_sub(gone.len())));
        }
        if wanted.is_empty() {
            return Ok("so much of it is on burst workers already, nothing was done".into());
        }
        let (held, mut why) = self.hold(name, &meant, &wanted)?;
        begins();
        let mut moved = Vec::new();
        for (place, pipe, on) in held {
            // Who looks at tasks sees the move and its worker, or neither.
            let mut all = self.on_workers.lock();
            match meant.flow().redirect(place, pipe, ROWS_OF_ONE_PIECE, STATE_BYTES_MAX) {
                Ok(()) => {
                    all.insert((meant.number, place.0, place.1), on);
                    moved.push(place);
                }
                Err(error) => why.push(error.to_string()),
            }
        }
        let placements = meant.wait(&moved, &self.opener, |one| one.step != MoveStep::Beginning);
        let begun = placements.iter().filter(|one| one.step == MoveStep::Running).count();
        let stayed = placements.iter().filter(|one| one.step == MoveStep::Home);
        why.extend(stayed.filter_map(|one| one.why.clone()));
        why.dedup();
        why.extend(meant.stay.iter().cloned());
        let waiting = placements.iter().filter(|one| one.step == MoveStep::Beginning).count();
        if begun + waiting == 0 {
            if why.is_empty() {
                why.push("the query has ended".into());
            }
            let hint = format!("EXPLAIN QUERY {} says of each stage whether it may go", name_in_sql(&name.name));
            return Err(ServiceError::new(ErrorKind::Unavailable, why.join("; ")).with_hint(hint));
        }
        let all: usize = meant.stages.iter().map(|&stage| meant.flow().stages()[stage].instances).sum();
        let mut away = meant.away();
        away.retain(|one| one.step == MoveStep::Running);
        let (on, away_count) = (self.on_workers.lock(), away.len());
        let names = away.iter().filter_map(|one| on.get(&(meant.number, one.stage, one.instance)));
        let workers = Vec::from_iter(names.map(|on| &*on.name).collect::<BTreeSet<_>>()).join(", ");
        let moved = if (1..away_count).contains(&begun) { format!(" ({begun} moved)") } else { String::new() };
        let mut rest = if waiting > 0 { format!("; {waiting} more go as soon as they can") } else { String::new() };
        if !why.is_empty() {
            rest.push_str(&format!("; not the others: {}", why.join("; ")));
        }
        let all = counted(all as u64, "task");
        Ok(format!("{away_count} of {all} are on burst workers now: {workers}{moved}{rest}"))
    }

    /// Asks workers for places for these tasks. Returns those that it got, and why it did not get others.
    fn hold(
        &self,
        name: &FullName,
        meant: &Meant,
        wanted: &[(usize, usize)],
    ) -> Result<(Vec<Held>, Vec<String>), ServiceError> {
        let roster = self.opener.permitted.links().roster();
        let mut workers = roster.workers();
        let may_stay = |one: &WorkerInfo| !self.ends_soon(one.ends_us);
        let free = workers.iter().filter(|one| may_stay(one)).map(|one| one.threads.saturating_sub(one.tickets));
        let script = |&stage: &usize| (stage, self.script_of(name, meant, stage));
        let (scripts, fingerprint) =
            (meant.stages.iter().map(script).collect::<BTreeMap<_, _>>(), meant.plan.fingerprint());
        let is_over = || self.opener.is_stopped() || meant.flow().ended().is_some();
        let (mut asked, mut why) = (Vec::new(), Vec::new());
        if let Some(functions) = &self.functions {
            let may_go = |(stage, _): &&(usize, usize)| scripts[stage].1.is_none() || functions.are_private();
            let lacks = wanted.iter().filter(may_go).count().saturating_sub(free.sum());
            if lacks > 0 {
                why.extend(functions.fetch(lacks, roster, is_over));
                workers = roster.workers();
            }
        }
        let none = match workers.is_empty() {
            true => "no burst worker is connected",
            false => "the burst workers that are connected end too soon",
        };
        workers.retain(may_stay);
        if workers.is_empty() {
            why.insert(0, none.into());
            return Err(ServiceError::new(ErrorKind::Unavailable, why.join("; "))
                .with_hint("start one on another machine: rivulet burst-worker --connect HOST:PORT"));
        }
        // More tasks than threads may be what somebody wants who starts workers. Functions are started by the thread.
        let has_room = |one: &WorkerInfo| self.functions.is_none() || one.tickets < one.threads;
        let is_private = workers.iter().any(|one| one.is_private);
        for &place in wanted {
            let (script, with_credentials) = &scripts[&place.0];
            // The one that has the least to do.
            let may_know = workers.iter_mut().filter(|one| with_credentials.is_none() || one.is_private);
            let worker =
                may_know.filter(|one| has_room(one)).min_by_key(|one| (one.tickets + 1) * 1_000 / one.threads.max(1));
            let Some(worker) = worker else {
                why.push(match with_credentials.as_ref().filter(|_| !is_private) {
                    Some(source) => {
                        format!(
                            "the source '{source}' has credentials, and no burst worker has an encrypted connection"
                        )
                    }
                    None => "the burst workers have no thread free".into(),
                });
                continue;
            };
            worker.tickets += 1;
            let nodes = meant.flow().stages()[place.0].nodes.clone();
            let (inputs, output) = columns(&meant.plan.dataflow, &nodes);
            let hold = Hold {
                ticket: 0,
                query: name.name.clone(),
                script: script.clone(),
                fingerprint: fingerprint.clone(),
                nodes,
                instance: place.1,
                now_us: SystemClock.now_us(),
                limits: FlowLimits::default(),
            };
            let Ok(waker) = meant.flow().waker(place) else { continue };
            match roster.hold(worker.number, hold, (inputs, vec![output]), waker) {
                Some(ticket) => {
                    let (worker, name) = (worker.number, worker.name.clone());
                    let on = On { worker, name, comes_home: false, reopens: false };
                    asked.push((place, ticket, on));
                }
                None => why.push(format!("the burst worker '{}' is gone", worker.name)),
            }
        }
        let tickets: Vec<u64> = asked.iter().map(|(_, ticket, _)| *ticket).collect();
        roster.wait(&tickets, self.opener.burst().answer_max, is_over);
        let mut held = Vec::new();
        for (place, ticket, on) in asked {
            let outcome = roster.outcome(ticket);
            // A place that is not taken is given back.
            let pipe = roster.take(ticket);
            match outcome.unwrap_or_else(|| Err("it does not answer".into())) {
                Ok(()) => held.extend(pipe.map(|pipe| (place, pipe, on))),
                Err(problem) => why.push(format!("the burst worker '{}': {problem}", on.name)),
            }
        }
        Ok((held, why))
    }

    /// The statements that create a query, and declare what a worker needs to plan it and to run one of its stages; and
    /// the name of the source with which the stage begins, if they have its credentials. They have no others.
    fn script_of(&self, name: &FullName, meant: &Meant, stage: usize) -> (String, Option<String>) {
        let source = meant.flow().stages()[stage].source(&meant.plan.dataflow);
        let source = source.map(|source| &*meant.plan.sources[source].declaration.name.text);
        let secrets = self.opener.host_of(name).secrets;
        let known = self.known.lock();
        let is_usable =
            |(number, one): &(&u64, &Remembered)| one.tenant == name.tenant && !known.absent.contains_key(number);
        let usable = known.remembered.iter().filter(is_usable);
        let declared: Vec<_> = usable.filter_map(|(_, one)| Some((&one.statement, text_of(&one.statement)?))).collect();
        // What a statement names may name more.
        let (mut needed, mut wanted) = (BTreeSet::new(), vec![&*meant.text]);
        while let Some(text) = wanted.pop() {
            for (place, (_, (name, other))) in declared.iter().enumerate() {
                if names(text, name) && needed.insert(place) {
                    wanted.push(other);
                }
            }
        }
        let told = needed.into_iter().filter_map(|place| told(declared[place].0, source, &secrets));
        let (told, have): (Vec<String>, Vec<bool>) = told.unzip();
        let texts = meant.plan.tables.iter().map(|table| without_rows(table)).chain(told);
        let script = texts.chain([meant.text.clone()]).collect::<Vec<_>>().join(";\n");
        (script, source.filter(|_| have.contains(&true)).map(str::to_owned))
    }

    /// Brings tasks of a query back from burst workers, for a caller that has claimed the name. Returns what it has
    /// done, in words.
    ///
    /// # Errors
    /// There is no such query or operator; or the worker does not give them back in time.
    pub(in crate::engine) fn bring_back(&self, name: &FullName, operators: &Operators) -> Result<String, ServiceError> {
        let meant = self.away_of(name, operators)?;
        let places: Vec<_> = meant.away().iter().map(|one| (one.stage, one.instance)).collect();
        if places.is_empty() {
            return Ok("nothing of it is on a burst worker, nothing was done".into());
        }
        let failed = |error: MoveError| ServiceError::new(ErrorKind::Conflict, error.to_string());
        places.iter().try_for_each(|&place| meant.flow().bring_back(place).map_err(failed))?;
        let left = meant.wait(&places, &self.opener, |one| one.step == MoveStep::Home);
        let left = left.iter().filter(|one| one.step != MoveStep::Home).count();
        if left > 0 {
            let message = format!("{} of {} are not back yet", left, counted(places.len() as u64, "task"));
            return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint("SHOW BURSTS shows when they are"));
        }
        Ok(format!("{} came back", counted(places.len() as u64, "task")))
    }

    /// Opens the partitions of a task that comes home, in a thread of its own: that may take a while.
    fn reopen(
        self: &Arc<Self>,
        threads: &Threads,
        name: &FullName,
        (plan, running): (&Arc<QueryPlan>, &Arc<run::Running>),
        place: (usize, usize),
        was_at: Vec<PartitionState>,
    ) {
        /// How often it is tried, before the query goes on from its checkpoint.
        const ATTEMPTS_MAX: usize = 3;
        let (queries, name, plan, flow) = (self.clone(), name.clone(), plan.clone(), running.clone());
        let open = move || {
            let (opener, flow) = (&queries.opener, flow.flow());
            let source = flow.stages()[place.0].source(&plan.dataflow);
            let Some(source) = source.and_then(|source| plan.sources.get(source)).cloned() else { return };
            let open = || {
                let (host, source, was_at) = (opener.host_of(&name), source.clone(), was_at.clone());
                let open = move || run::open_partitions(&source, &host, &was_at);
                opener.call(&format!("opening a source of '{name}' again"), opener.limit(), open)
            };
            // If the flow has ended meanwhile, that is no matter.
            let _ = match (1..ATTEMPTS_MAX).fold(open(), |opened, _| opened.or_else(|_| open())) {
                Ok(partitions) => flow.reopened(place, partitions),
                // A query whose server stops has not failed.
                Err(_) if opener.is_stopped() => Ok(()),
                Err(error) => {
                    flow.lose(place, &format!("a source that comes home cannot be opened: {}", error.message))
                }
            };
        };
        if let Err(error) = threads.start_once("rivulet-reopen", open) {
            let _ = running.flow().lose(place, &format!("a source that comes home cannot be opened: {error}"));
        }
    }

    /// What of a tenant's queries is on burst workers, by query and stage.
    pub(in crate::engine) fn bursts(&self, tenant: &Tenant) -> Vec<Burst> {
        let mut bursts = Vec::new();
        for (name, one) in self.bursting().into_iter().filter(|(name, _)| name.tenant == *tenant) {
            let Some(running) = one.life.flow() else { continue };
            let (placements, decisions) = (running.flow().placements(), one.automatic.lock().told.clone());
            for (index, stage) in running.flow().stages().iter().enumerate() {
                let moved: Vec<&Placement> = placements.iter().filter(|task| task.stage == index).collect();
                let away: Vec<&Placement> = moved.iter().copied().filter(|task| task.step != MoveStep::Home).collect();
                let on = self.on_workers.lock();
                let name_of = |task: &&Placement| on.get(&(one.number, index, task.instance)).map(|on| on.name.clone());
                let in_flight = |task: &&Placement| task.rows_sent.saturating_sub(task.figures.rows_in);
                let before = on.range((one.number, index, 0)..(one.number, index + 1, 0));
                let before = before.filter(|((.., place), _)| moved.iter().all(|task| task.instance != *place));
                let before = Vec::from_iter(before.map(|(_, on)| &*on.name).collect::<BTreeSet<_>>()).join(", ");
                let anew = || format!("its tasks came back from {before} when the query went on from its checkpoint");
                let anew = (!before.is_empty()).then(anew);
                let why = moved.iter().filter_map(|task| task.why.clone()).next_back().or(anew);
                let told = decisions.iter().filter(|_| index == 0 || !moved.is_empty());
                let why = why.iter().chain(told).cloned().collect::<Vec<_>>().join("; before: ");
                if away.is_empty() && why.is_empty() {
                    continue;
                }
                bursts.push(Burst {
                    query: name.name.clone(),
                    stage: index + 1,
                    operators: moves::numbers(stage),
                    tasks: stage.instances,
                    away: away.len(),
                    workers: away.iter().filter_map(name_of).collect::<BTreeSet<_>>().into_iter().collect(),
                    since_us: away.iter().map(|task| task.since_us).min(),
                    state_bytes: away.iter().map(|task| task.figures.state_bytes).sum(),
                    in_flight_rows: away.iter().map(in_flight).sum(),
                    why,
                });
            }
        }
        bursts
    }

    /// Whether a worker gives its tasks back, because its life ends then.
    fn ends_soon(&self, ends_us: Option<i64>) -> bool {
        let margin_us = us(self.opener.burst().margin);
        ends_us.is_some_and(|ends_us| ends_us - margin_us <= SystemClock.steady_us())
    }

    /// The running queries that may burst.
    pub(super) fn bursting(&self) -> Vec<(FullName, OneQuery)> {
        self.that(|one| one.life.flow().is_some() && one.plan.as_ref().is_some_and(|plan| plan.is_burst))
    }

    /// Starts the thread that hears burst workers, if they have a door, and the one that moves tasks by itself.
    pub(in crate::engine) fn watch_bursts(self: &Arc<Self>, threads: &Arc<Threads>) -> io::Result<()> {
        let (queries, links, of_reopening) = (self.clone(), self.opener.permitted.links(), threads.clone());
        if !links.has_door() {
            return Ok(());
        }
        if self.opener.burst().policy.decides() {
            let queries = self.clone();
            threads.start("rivulet-policy", Duration::from_secs(1), move || queries.look_at_load())?;
        }
        let look = move || queries.look_at_bursts(&of_reopening);
        threads.start_paced("rivulet-bursts", &links.burst_news, Duration::ZERO, look)
    }

    /// Hears burst workers, and takes for lost or brings home what has to be. Returns the pause until the next call.
    fn look_at_bursts(self: &Arc<Self>, threads: &Threads) -> Duration {
        let (roster, answer_max) = (self.opener.permitted.links().roster(), self.opener.burst().answer_max);
        roster.turn(SystemClock.steady_us());
        let (workers, bursting) = (roster.workers(), self.bursting());
        // Those of a query that starts again say where its tasks were.
        let mut on = self.on_workers.lock();
        if !on.is_empty() {
            let known: BTreeSet<u64> = self.known.lock().queries.values().map(|one| one.number).collect();
            on.retain(|(number, ..), _| known.contains(number));
        }
        drop(on);
        if let Some(functions) = self.functions.as_ref().filter(|_| !bursting.is_empty()) {
            functions.keep_warm();
        }
        for (name, one) in bursting {
            let (Some(running), Some(plan)) = (one.life.flow(), &one.plan) else { continue };
            let (mut all, mut reopens) = (self.on_workers.lock(), Vec::new());
            for task in running.flow().placements() {
                let place = (task.stage, task.instance);
                let key = (one.number, place.0, place.1);
                // Of a flow that has ended it says where its tasks were.
                if task.step == MoveStep::Home && running.flow().ended().is_none() {
                    all.remove(&key);
                }
                let Some(on) = all.get_mut(&key).filter(|_| task.step != MoveStep::Home) else { continue };
                if task.unanswered_us.is_some_and(|since_us| since_us > us(answer_max)) {
                    let _ = running.flow().lose(place, &format!("the burst worker '{}' does not answer", on.name));
                }
                let ends_us = workers.iter().find(|one| one.number == on.worker).and_then(|one| one.ends_us);
                let is_large = task.figures.state_bytes > STATE_BYTES_MAX as u64;
                if (is_large || self.ends_soon(ends_us)) && task.step == MoveStep::Running {
                    if !std::mem::replace(&mut on.comes_home, true) {
                        let why = if is_large { "it has too much state" } else { "its worker ends soon" };
                        let (stage, task) = (place.0 + 1, place.1 + 1);
                        tracing::info!(query = name.in_log(), stage, task, worker = on.name, "comes back: {why}");
                    }
                    // It is tried again.
                    let _ = running.flow().bring_back(place);
                }
                if let Some(was_at) = task.reopens.filter(|_| !std::mem::replace(&mut on.reopens, true)) {
                    reopens.push((place, was_at));
                }
            }
            drop(all);
            for (place, was_at) in reopens {
                self.reopen(threads, &name, (plan, running), place, was_at);
            }
        }
        // Without workers, a bell rings when one comes.
        if roster.is_empty() { IDLE_PERIOD } else { LOOK_PERIOD }
    }

    /// The flow of a query, and the stages that may go to workers if `operators` are redirected.
    ///
    /// # Errors
    /// There is no such query, or it does not run; or what it has or its operators do stays on the server.
    fn to_burst(&self, name: &FullName, operators: &Operators) -> Result<Meant, ServiceError> {
        self.meant_stages(name, |plan, running| {
            let stays = |message: String| ServiceError::new(ErrorKind::Conflict, message);
            if !plan.is_burst {
                return Err(stays(format!("'{name}' was not created with burst => true")).with_hint(format!(
                    "CREATE OR REPLACE QUERY {} AS SELECT ... INTO sink WITH (burst => true)",
                    name_in_sql(&name.name)
                )));
            }
            if let Some(error) = self.stays(&name.tenant, Some(running)) {
                return Err(error);
            }
            let (flow, tasks) = (running.flow(), running.report().tasks);
            moves::redirected((&name.name, plan), flow.stages(), &tasks, operators)
        })
    }

    /// The flow of a query, and the stages of `operators`.
    ///
    /// # Errors
    /// There is no such query or operator, or the query does not run.
    fn away_of(&self, name: &FullName, operators: &Operators) -> Result<Meant, ServiceError> {
        self.meant_stages(name, |plan, running| {
            Ok((moves::meant((&name.name, plan), running.flow().stages(), operators)?, Vec::new()))
        })
    }

    /// Why nothing of a query of a tenant goes to burst workers; `running` is the query, if it runs.
    pub(super) fn stays(&self, tenant: &Tenant, running: Option<&run::Running>) -> Option<ServiceError> {
        let stays = |message: &str| Some(ServiceError::new(ErrorKind::Conflict, message));
        // A worker is of the tenant of its token, and only an administrator of the server may have one.
        if !tenant.is_default() {
            return stays("burst workers are of the default tenant, and the query is of another one");
        }
        if self.opener.makes_checkpoints() && running.is_none_or(run::Running::has_checkpoints) {
            return None;
        }
        let hint =
            "set checkpoint.enabled and checkpoint.interval_s, and write to a sink that goes on from checkpoints";
        stays("the query makes no periodic checkpoints, so a lost worker would lose its state")
            .map(|error| error.with_hint(hint))
    }

    fn meant_stages(
        &self,
        name: &FullName,
        stages: impl FnOnce(&QueryPlan, &run::Running) -> Result<(Vec<usize>, Vec<String>), ServiceError>,
    ) -> Result<Meant, ServiceError> {
        let Some(one) = self.known.lock().query(name) else {
            return Err(ServiceError::not_found(format!("there is no query '{name}' with a text of its own"))
                .with_hint("those that say AS SELECT may burst; SHOW QUERIES lists all"));
        };
        let is_open = matches!(one.life.state(), QueryState::Running | QueryState::Paused);
        let (Some(plan), Some(running)) = (&one.plan, one.life.flow().filter(|_| is_open)) else {
            let problem = if one.life.state() == QueryState::Ended { "has ended" } else { "does not run" };
            return Err(ServiceError::new(ErrorKind::Conflict, format!("'{name}' {problem}"))
                .with_hint(format!("DESCRIBE QUERY {} says why", name_in_sql(&name.name))));
        };
        let (stages, stay) = stages(plan, running)?;
        let (number, text, plan, running) = (one.number, one.query.text.clone(), plan.clone(), running.clone());
        Ok(Meant { number, text, plan, running, stages, stay })
    }
}

/// A statement that declares a table. A worker needs no rows of it: what looks them up stays on the server.
fn without_rows(table: &Table) -> String {
    let column = |field: &Arc<Field>| {
        let not_null = if field.is_nullable() { "" } else { " NOT NULL" };
        format!("{} {}{not_null}", name_in_sql(field.name()), type_name(field.data_type()))
    };
    let columns = table.schema().fields().iter().map(column).collect::<Vec<_>>().join(", ");
    format!("CREATE TABLE {} ({columns}) FROM 'data:,' FORMAT CSV", name_in_sql(table.name()))
}

/// Microseconds.
fn us(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
