//! A simulation while it runs: the stepped engine, everything around it, and the checks.
//!
//! What is checked:
//!
//! - Each query gives the results of its [`Model`] over the events of its device, in order. After a crash it may go
//!   back, but only to a state that it had reached, and continues from there without a gap: so each event is in its
//!   state exactly once, and each result comes at least once.
//! - A query gets the events that come while it exists and is not paused, even if these are repeated after a crash.
//!   Each event counts with the values that the query had when the event came.
//! - A query that reads the results of another one gets each of them once.
//! - A query that was dropped gives no more results than are on their way.
//! - Once nothing fails any more, everything is completed within a limited number of steps: each message is
//!   acknowledged, and each result has arrived.
//! - The engine starts whenever the disk works, and finds its queries.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet::catalog::Catalog;
use rivulet::config::{CheckpointConfig, Config, DurabilityConfig, Sources};
use rivulet::engine::Engine;
use rivulet::engine::stepped::Environment;
use rivulet::service::{Caller, ErrorKind, ParameterValue, QueryChange, QueryState, Service, ServiceError};
use rivulet_dataflow::{Clock, LogPosition, ManualClock};
use rivulet_sql::Durability;
use rivulet_storage::log::LogSettings;
use rivulet_storage::{Disk, Place, Store};
use serde_json::Value;

use crate::counts::Counts;
use crate::defect::Defect;
use crate::disk::{Crash, Lies, SimulatedDisk};
use crate::model::{Event, Kind, Model, is_same};
use crate::network::{Client, Delivered, EventName, Side};
use crate::objects::Objects;
use crate::plan::{Plan, QueryPlan, Reads, Step, VALUE_END};

/// The file of the catalog.
const CATALOG: &str = "catalog.redb";

/// When simulations begin, in microseconds since the epoch.
const START_US: i64 = 1_766_275_200_000_000;

/// After this time in microseconds no unacknowledged message is repeated any more: longer than the engine expects
/// repeats.
const REST_US: i64 = 11_000_000;

/// The most rounds until everything has to be done, once nothing fails any more.
const ROUNDS_MAX: usize = 300;

/// The most tasks that run in one such round.
const RUNS_MAX: usize = 5_000;

/// A query and what is known of its results.
struct Watched {
    plan: QueryPlan,
    name: String,
    topic: String,
    /// The events of its device before which it was created or resumed (true), or paused (false).
    changes: Vec<(usize, bool)>,
    /// A change that may or may not have happened after a restart.
    unclear: Option<(usize, bool)>,
    /// The events of its device before which it got another bound, and that bound.
    lows: Vec<(usize, i32)>,
    /// A bound that it may or may not have after a restart.
    unclear_low: Option<(usize, i32)>,
    /// Whether other queries read its results.
    is_read: bool,
    /// The expected results for everything that was sent.
    expected: Vec<Value>,
    /// The indices of expected results that may come next. After a crash there may be several, until a result decides.
    next: Vec<usize>,
    /// The number of expected results that have been seen.
    reached: usize,
    life: Life,
    /// The number of its results that were on their way when it was dropped.
    on_way: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    NotYet,
    Lives,
    /// Creating or dropping it failed: it may or may not exist after a restart.
    Unclear,
    Dropped,
}

struct Device {
    client: usize,
    sent: Vec<Event>,
    /// The log positions of its events, as far as the log has them.
    taken: Vec<Option<LogPosition>>,
}

impl Device {
    /// The number of events that have been received and not lost.
    fn received(&self) -> usize {
        self.taken.iter().take_while(|position| position.is_some()).count()
    }
}

impl Watched {
    /// Whether it gets this event of its device.
    fn is_there_at(&self, event: usize) -> bool {
        self.changes.iter().rev().find(|(at, _)| *at <= event).is_some_and(|(_, is_there)| *is_there)
    }

    /// Its current bound.
    fn low(&self) -> i32 {
        self.lows.last().map_or(self.plan.low, |(_, low)| *low)
    }

    fn is_paused(&self) -> bool {
        self.changes.last().is_some_and(|(_, is_there)| !is_there)
    }
}

/// Why a simulation has failed.
pub(crate) type Failure = String;

pub(crate) struct World {
    plan: Plan,
    defect: Option<Defect>,
    config: Config,
    disk: SimulatedDisk,
    clock: Arc<ManualClock>,
    side: Arc<Side>,
    engine: Option<Arc<Engine>>,
    clients: Vec<Client>,
    devices: Vec<Device>,
    watched: Vec<Watched>,
    /// The client of which a message comes while the next change is written.
    meanwhile: Option<usize>,
    /// How the engine ends when the disk goes off.
    crash: Crash,
    pub(crate) history: String,
    pub(crate) counts: Counts,
}

impl World {
    pub(crate) fn new(plan: &Plan, defect: Option<Defect>) -> Self {
        let lies = match defect {
            Some(Defect::LogIsNotSynced) => Lies { syncs_nothing_in: Some("log"), ..Lies::default() },
            Some(Defect::CheckpointsAreNotSynced) => Lies { syncs_nothing_in: Some("checkpoints"), ..Lies::default() },
            Some(Defect::NamesAreNotSynced) => Lies { forgets_names: true, ..Lies::default() },
            _ => Lies::default(),
        };
        let devices = (0..plan.devices()).map(|device| Device {
            client: device % plan.clients,
            sent: Vec::new(),
            taken: Vec::new(),
        });
        let is_read = |number| plan.queries.iter().any(|other| other.reads == Reads::Query(number));
        let watched = plan.queries.iter().map(|query| Watched {
            plan: *query,
            name: format!("q{}", query.number),
            topic: format!("out/r{}", query.number),
            changes: if query.comes_later { Vec::new() } else { vec![(0, true)] },
            unclear: None,
            lows: Vec::new(),
            unclear_low: None,
            is_read: is_read(query.number),
            expected: Vec::new(),
            next: vec![0],
            reached: 0,
            life: if query.comes_later { Life::NotYet } else { Life::Lives },
            on_way: 0,
        });
        let clock = Arc::new(ManualClock::new(START_US));
        Self {
            plan: plan.clone(),
            defect,
            config: config(plan),
            disk: SimulatedDisk::new(plan.seed, lies),
            side: Arc::new(Side::new(clock.clone(), defect)),
            clock,
            engine: None,
            clients: (0..plan.clients).map(Client::new).collect(),
            devices: devices.collect(),
            watched: watched.collect(),
            meanwhile: None,
            crash: Crash::Process,
            history: String::new(),
            counts: Counts::default(),
        }
    }

    /// Runs all steps.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let outcome = self.run_all();
        self.counts.faults = self.disk.faults();
        self.counts.disk_operations = self.disk.operations();
        if let Err(failure) = &outcome {
            self.note(&format!("FAILED: {failure}"));
        }
        outcome
    }

    fn run_all(&mut self) -> Result<(), Failure> {
        self.create()?;
        for place in 0..self.plan.steps.len() {
            let step = self.plan.steps[place];
            self.counts.steps += 1;
            self.step(step)?;
            self.look()?;
        }
        self.note("-- nothing fails any more");
        self.run_until_idle()?;
        self.note("-- once more from what is on disk");
        // Often enough that the log no longer has the first events: only the saved state has them.
        for value in [11, 77, 30] {
            for device in 0..self.devices.len() {
                self.send(device, value, 6);
            }
            self.run_until_idle()?;
            self.rest();
            self.checkpoint(true)?;
        }
        self.end_process(Crash::Power);
        for device in 0..self.devices.len() {
            for value in [70, 0, 40] {
                self.send(device, value, 4);
            }
        }
        self.run_until_idle()
    }

    fn note(&mut self, text: &str) {
        let _ = writeln!(self.history, "{text}");
    }

    /// Registers applications and queries, on a disk that works.
    fn create(&mut self) -> Result<(), Failure> {
        self.start()?;
        let Some(engine) = self.engine.clone() else { return Err("the engine does not start".into()) };
        let queries = self.plan.queries.clone();
        let mut script = vec![Kind::Filter.sql()];
        // Events that no query reads are not in the log, and repeats of them come behind later events. So each device
        // has a query that always reads it and never has a result.
        script.extend((0..self.devices.len()).map(|device| {
            format!(
                "CREATE QUERY reader{device} FROM APPLICATION filter_queries WITH (device => 'd{device}', low => {VALUE_END}.0, \
                 result => 'none')"
            )
        }));
        for (place, query) in queries.iter().enumerate() {
            let is_known = query.kind == Kind::Filter || queries[..place].iter().any(|other| other.kind == query.kind);
            if !is_known {
                script.push(query.kind.sql());
            }
            if !query.comes_later {
                script.push(creation(query));
            }
            self.note(&format!("q{} is {query}", query.number));
        }
        for statement in &script {
            for answer in engine.session(Caller::local_operator()).execute(statement) {
                answer.map_err(|error| format!("{statement}: {error}"))?;
            }
        }
        Ok(())
    }

    /// Starts the engine, if that is possible now.
    fn start(&mut self) -> Result<(), Failure> {
        if self.engine.is_some() {
            return Ok(());
        }
        self.side = Arc::new(Side::new(self.clock.clone(), self.defect));
        match self.open() {
            Ok(engine) => self.engine = Some(engine),
            Err(_) if self.disk.is_off() => {
                self.end_process(self.crash);
                return Ok(());
            }
            Err(error) if self.disk.is_sick() => {
                self.note(&format!("the engine does not start: {error}"));
                return Ok(());
            }
            Err(error) => return Err(format!("the engine does not start: {error}")),
        }
        self.counts.starts += 1;
        let Some(engine) = self.engine.clone() else { return Ok(()) };
        self.side.route_to(engine.router());
        // Lost events are sent again, behind everything that has happened.
        let found_to = engine.found_to();
        for device in &mut self.devices {
            let is_lost = |position: &&mut Option<LogPosition>| position.is_some_and(|position| position > found_to);
            device.taken.iter_mut().filter(is_lost).for_each(|position| *position = None);
        }
        for watched in &mut self.watched {
            watched.on_way = 0;
            let found = engine.session(Caller::local_operator()).query(&watched.name).ok();
            match (watched.life, &found) {
                (Life::Unclear, Some(_)) => watched.life = Life::Lives,
                (Life::Unclear, None) => {
                    watched.life = Life::Dropped;
                    // A query whose results are read cannot be dropped, so it was never created.
                    watched.changes.retain(|_| !watched.is_read);
                }
                (Life::Lives, None) if self.counts.starts > 1 => {
                    return Err(format!("{} is not there any more", watched.name));
                }
                (Life::Dropped | Life::NotYet, Some(_)) => {
                    return Err(format!("{} is there, and was dropped or not created yet", watched.name));
                }
                _ => {}
            }
            if let (Reads::Device(device), Some(found)) = (watched.plan.reads, found) {
                let received = self.devices[device].received();
                let is_paused = found.state == QueryState::Paused;
                let unclear = watched.unclear.take().filter(|(_, is_there)| *is_there != is_paused);
                watched.changes.extend(unclear.filter(|(_, is_there)| *is_there == watched.is_paused()));
                watched.changes.iter_mut().for_each(|(at, _)| *at = received.min(*at));
                let low = found.parameters.get("low").and_then(Value::as_f64);
                let has = |other: i32| low == Some(f64::from(other));
                let altered = watched.unclear_low.take().filter(|(_, other)| has(*other) && *other != watched.low());
                watched.lows.extend(altered);
                watched.lows.iter_mut().for_each(|(at, _)| *at = received.min(*at));
                if !has(watched.low()) {
                    return Err(format!("{} has the bound {low:?}, and not {}", watched.name, watched.low()));
                }
                if watched.is_paused() != is_paused {
                    return Err(format!("{} is {}paused", watched.name, if is_paused { "" } else { "not " }));
                }
            }
        }
        self.expect();
        self.watched.iter_mut().for_each(|watched| watched.next = (0..=watched.reached).collect());
        let line = format!("the engine starts, the log is on disk up to {}", engine.logged_to());
        self.note(&line);
        Ok(())
    }

    fn open(&self) -> Result<Arc<Engine>, String> {
        let (disk, file) = (self.disk.clone(), PathBuf::from(CATALOG));
        let path = file.clone();
        let catalog = Catalog::on(file, move || disk.open_or_create(&path)).map_err(|error| error.to_string())?;
        if self.defect == Some(Defect::AlterationsAreForgotten) {
            catalog.forget_alterations(u64::MAX, &BTreeSet::new()).map_err(|error| error.to_string())?;
        }
        if self.defect == Some(Defect::LifecycleLogIsForgotten) {
            catalog.forget_lifecycle(LogPosition::MAX).map_err(|error| error.to_string())?;
        }
        let folder = Path::new("checkpoints");
        let objects = Objects::new(self.disk.clone(), folder);
        self.disk.make_folder(folder).map_err(|error| error.to_string())?;
        let root = Some((Arc::new(self.disk.clone()) as Arc<_>, folder.to_owned()));
        let store = Store::over(Arc::new(objects), root, "checkpoints".into()).map_err(|error| error.to_string())?;
        let log = LogSettings { segment_bytes: self.plan.segment_bytes, ..LogSettings::default() };
        let environment = Environment {
            clock: self.clock.clone(),
            disk: Arc::new(self.disk.clone()),
            log,
            store: Arc::new(store),
            catalog,
            network: self.side.clone(),
        };
        Engine::stepped(self.config.clone(), environment).map_err(|error| error.to_string())
    }

    /// Ends the engine's process; everything in memory is lost.
    fn end_process(&mut self, crash: Crash) {
        match crash {
            Crash::Power => self.counts.power_losses += 1,
            Crash::Process => self.counts.kills += 1,
        }
        // What the engine does while it ends no longer reaches the disk.
        self.disk.go_off_after(0);
        self.drop_engine();
        self.disk.after_crash(crash);
        self.note(match crash {
            Crash::Power => "-- the power is lost",
            Crash::Process => "-- the process is killed",
        });
    }

    fn drop_engine(&mut self) {
        self.clients.iter_mut().for_each(|client| client.lose_connection(None));
        self.engine = None;
    }

    fn step(&mut self, step: Step) -> Result<(), Failure> {
        if let Step::Send { device, value, gap_s } = step {
            self.send(device, value, gap_s);
            return Ok(());
        }
        match step {
            Step::Disk { is_full } => self.disk.set_full(is_full),
            Step::Syncs { fail } => self.disk.fail_to_sync(fail),
            _ => {}
        }
        self.start()?;
        let Some(engine) = self.engine.clone() else { return Ok(()) };
        match step {
            Step::Deliver { client, messages } => {
                for _ in 0..messages {
                    if !self.deliver(&engine, client) {
                        break;
                    }
                }
            }
            Step::Acknowledge { client } => self.acknowledge(&engine, client),
            Step::Disconnect { client } => {
                self.counts.disconnects += 1;
                self.note(&format!("client {client} loses its connection"));
                self.clients[client].lose_connection(Some(&*self.side));
            }
            Step::Run { choose, is_short } => {
                let slice = if is_short { Duration::ZERO } else { Duration::MAX };
                if engine.run_one(|ready| usize::from(choose) % ready, slice) {
                    self.note("a task runs");
                }
            }
            Step::Tick { by_ms } => {
                self.clock.advance_us(i64::from(by_ms) * 1_000);
                engine.keep_time_once();
            }
            Step::Rest => {
                for client in 0..self.clients.len() {
                    while self.deliver(&engine, client) {}
                }
                engine.commit_log();
                for client in 0..self.clients.len() {
                    self.acknowledge(&engine, client);
                }
                self.rest();
                engine.keep_time_once();
            }
            Step::Commit => {
                let is_done = engine.commit_log();
                let line = format!(
                    "the log is written up to {}{}",
                    engine.logged_to(),
                    if is_done { "" } else { ", not all" }
                );
                self.note(&line);
            }
            Step::Checkpoint => self.checkpoint(false)?,
            Step::Replay { events, ends } => {
                if !engine.replay_some(events.into(), ends) {
                    self.note("some of the log is replayed");
                }
            }
            Step::Rebalance { choose, merges } => self.rebalance(&engine, choose.into(), merges)?,
            Step::Receivers { are_away } => self.side.keep_away(are_away),
            Step::Create { query } => self.create_query(&engine, query)?,
            Step::Pause { query, is_paused } => self.pause(&engine, query, is_paused)?,
            Step::Alter { query, low } => self.alter(&engine, query, low, false)?,
            Step::AlterAll { query, low } => self.alter(&engine, query, low, true)?,
            Step::Meanwhile { client } => self.meanwhile = Some(client),
            Step::Drop { query } => self.drop_query(&engine, query)?,
            Step::Crash { crash, operations } => {
                self.crash = crash;
                match operations {
                    0 => self.end_process(crash),
                    operations => self.disk.go_off_after(operations.into()),
                }
                return Ok(());
            }
            Step::Restart => {
                self.note("-- the engine is stopped");
                self.counts.stops += 1;
                self.checkpoint(false)?;
                if !self.disk.is_off() {
                    // What is lost shows in the results.
                    let _ = engine.shutdown();
                    drop(engine);
                    self.drop_engine();
                }
            }
            Step::Send { .. } | Step::Disk { .. } | Step::Syncs { .. } => {}
        }
        Ok(())
    }

    /// Called after each step: takes the results, and ends the process if the disk is off.
    fn look(&mut self) -> Result<(), Failure> {
        self.take_results()?;
        if self.disk.is_off() {
            self.end_process(self.crash);
        }
        Ok(())
    }

    fn take_results(&mut self) -> Result<(), Failure> {
        for (topic, payload) in self.side.take_results() {
            let text = String::from_utf8_lossy(&payload).into_owned();
            let Some(watched) = self.watched.iter_mut().find(|watched| watched.topic == topic) else {
                return Err(format!("a result for {topic}, which nobody asked for: {text}"));
            };
            let found: Value = serde_json::from_str(&text).map_err(|error| format!("{text}: {error}"))?;
            if matches!(watched.life, Life::NotYet | Life::Dropped) {
                let left = watched.on_way.checked_sub(1);
                watched.on_way = left.ok_or_else(|| format!("{} is not there and gives {text}", watched.name))?;
            }
            self.counts.results += 1;
            let before = watched.next.clone();
            watched.next.retain(|&next| watched.expected.get(next).is_some_and(|expected| is_same(expected, &found)));
            watched.next.iter_mut().for_each(|next| *next += 1);
            watched.reached = watched.next.iter().copied().fold(watched.reached, usize::max);
            let line = format!("{} gives {text}", watched.name);
            if watched.next.is_empty() {
                let expected: Vec<String> = before
                    .iter()
                    .rev()
                    .take(4)
                    .map(|&next| watched.expected.get(next).map_or("nothing yet".into(), Value::to_string))
                    .collect();
                return Err(format!("{line}, and not {}", expected.join(" or ")));
            }
            self.note(&line);
        }
        Ok(())
    }

    fn send(&mut self, device: usize, value: i32, gap_s: u8) {
        let Device { client, sent, taken } = &mut self.devices[device];
        let client = &mut self.clients[*client];
        if !client.has_room() {
            return;
        }
        let last_s = sent.last().map_or(0, |last| last.at_s);
        let event = Event { number: sent.len() as i64 + 1, at_s: last_s + i64::from(gap_s), value: value.into() };
        let name = EventName { device, index: sent.len() };
        sent.push(event);
        taken.push(None);
        let at_ms = START_US / 1_000 + event.at_s * 1_000;
        let payload = format!("{{\"ts\":{at_ms},\"n\":{},\"v\":{value}}}", event.number);
        client.send(name, format!("in/d{device}"), payload.clone());
        self.expect();
        self.counts.events += 1;
        self.note(&format!("device {device} sends {payload}"));
    }

    /// Computes the expected results of all queries for everything that was sent. Events that are not received yet come
    /// behind all others. An event that was lost before its acknowledgement may have had results that are no longer
    /// expected.
    fn expect(&mut self) {
        let expected: Vec<Vec<Value>> = self.watched.iter().map(|watched| self.expected_of(&watched.plan)).collect();
        for (watched, expected) in self.watched.iter_mut().zip(expected) {
            let same = watched.expected.iter().zip(&expected).take_while(|(then, now)| then == now).count();
            watched.expected = expected;
            watched.reached = watched.reached.min(same);
            watched.next.iter_mut().for_each(|next| *next = same.min(*next));
            watched.next.dedup();
        }
    }

    fn expected_of(&self, query: &QueryPlan) -> Vec<Value> {
        let find = |number| self.watched.iter().find(|watched| watched.plan.number == number);
        let watched = find(query.number);
        let events: Vec<(usize, Event)> = match query.reads {
            Reads::Device(device) => {
                let all = self.devices[device].sent.iter().copied().enumerate();
                all.filter(|(event, _)| watched.is_some_and(|watched| watched.is_there_at(*event))).collect()
            }
            Reads::Query(number) => {
                let results = find(number).map(|watched| self.expected_of(&watched.plan)).unwrap_or_default();
                let number = |result: &Value, name: &str| result[name].as_f64().unwrap_or_default();
                let event =
                    |result: &Value| Event { number: number(result, "n") as i64, at_s: 0, value: number(result, "v") };
                results.iter().map(event).enumerate().collect()
            }
        };
        let mut model = Model::new(query.kind, f64::from(query.low));
        let mut lows = watched.map_or(&[][..], |watched| watched.lows.as_slice()).iter().peekable();
        let see = |(place, event): (usize, Event)| {
            while let Some((_, low)) = lows.next_if(|(at, _)| *at <= place) {
                model.alter(f64::from(*low));
            }
            model.see(event)
        };
        events.into_iter().filter_map(see).collect()
    }

    /// Delivers a message; returns whether it was accepted.
    fn deliver(&mut self, engine: &Engine, client: usize) -> bool {
        let again = self.clients[client].connect(&self.side);
        if again > 0 {
            self.note(&format!("client {client} comes back and sends {again} again"));
        }
        let delivered = self.clients[client].deliver(engine, self.clock.now_us(), self.defect);
        self.note_delivered(client, delivered)
    }

    fn note_delivered(&mut self, client: usize, delivered: Delivered) -> bool {
        match delivered {
            Delivered::Nothing => return false,
            Delivered::Full => {
                self.counts.full += 1;
                self.note(&format!("there is no room for client {client}"));
                return false;
            }
            Delivered::New(EventName { device, index }, position) => {
                self.devices[device].taken[index] = Some(position);
                self.note(&format!("from client {client} comes {position}"));
            }
            Delivered::Again(EventName { device, index }, position) => {
                self.devices[device].taken[index] = Some(position);
                self.counts.recognised += 1;
                self.note(&format!("from client {client} comes {position} again"));
            }
        }
        true
    }

    /// Makes a change of queries, and delivers a message while it is written if the plan says so. There is none during
    /// a change that fails: it would not be known whether the message came before it.
    fn change<R>(&mut self, engine: &Arc<Engine>, change: impl FnOnce(&Engine) -> R) -> R {
        let Some(client) = self.meanwhile.take_if(|_| self.disk.is_well()) else { return change(engine) };
        let again = self.clients[client].connect(&self.side);
        if again > 0 {
            self.note(&format!("client {client} comes back and sends {again} again"));
        }
        let taken = std::mem::replace(&mut self.clients[client], Client::new(client));
        let taken = Arc::new(Mutex::new((taken, None)));
        let (of_disk, of_engine, now_us, defect) = (taken.clone(), engine.clone(), self.clock.now_us(), self.defect);
        let deliver = move || {
            let (client, delivered) = &mut *of_disk.lock();
            *delivered = Some(client.deliver(&of_engine, now_us, defect));
        };
        self.disk.at_sync(Some((PathBuf::from(CATALOG), Box::new(deliver))));
        let changed = change(engine);
        self.disk.at_sync(None);
        let (taken, delivered) = Arc::into_inner(taken).expect("the disk has dropped its own").into_inner();
        self.clients[client] = taken;
        if let Some(delivered) = delivered {
            self.note("while the catalog is written:");
            self.note_delivered(client, delivered);
        }
        changed
    }

    fn acknowledge(&mut self, engine: &Engine, client: usize) {
        let acknowledged = self.clients[client].acknowledge(engine, self.defect);
        self.counts.acknowledged += acknowledged as u64;
        if acknowledged > 0 {
            self.note(&format!("client {client} hears of {acknowledged}"));
        }
    }

    fn checkpoint(&mut self, must_work: bool) -> Result<(), Failure> {
        let Some(engine) = self.engine.clone() else { return Ok(()) };
        match engine.session(Caller::local_operator()).checkpoint() {
            Ok(made) => {
                self.counts.checkpoints += 1;
                self.note(&format!("checkpoint {} of {} queries", made.epoch, made.queries));
            }
            Err(error) if must_work || !(self.disk.is_sick() || self.disk.is_off() || !self.side.has_sent_all()) => {
                return Err(format!("a checkpoint fails: {error}"));
            }
            Err(_) => {
                self.counts.checkpoints_failed += 1;
                self.note("a checkpoint fails");
            }
        }
        Ok(())
    }

    fn rebalance(&mut self, engine: &Engine, choose: usize, merges: bool) -> Result<(), Failure> {
        let groups = engine.groups();
        let Some(group) = groups.get(choose % groups.len().max(1)) else { return Ok(()) };
        let tasks: Vec<_> = group.tasks().filter(|task| task.queries() > 0).cloned().collect();
        let done = match tasks.as_slice() {
            [one, other, ..] if merges => group.merge(one, other),
            [_, ..] => group.split(&tasks[choose % tasks.len()]).map(drop),
            [] => return Ok(()),
        };
        self.note(&format!("{} {}", group.name(), if merges { "is merged" } else { "is split" }));
        done.map_err(|error| format!("queries cannot be moved: {error}"))
    }

    /// Returns the index of a query that was not left out, if its life is as given.
    fn place(&self, number: usize, life: Life) -> Option<usize> {
        self.watched.iter().position(|watched| watched.plan.number == number && watched.life == life)
    }

    fn create_query(&mut self, engine: &Arc<Engine>, query: usize) -> Result<(), Failure> {
        let Some(place) = self.place(query, Life::NotYet) else { return Ok(()) };
        let Reads::Device(device) = self.watched[place].plan.reads else { return Ok(()) };
        let statement = creation(&self.watched[place].plan);
        let before = self.devices[device].received();
        // During a replay, what comes while the catalog is written is replayed for it.
        let status = engine.session(Caller::local_operator()).status(false).map_err(|error| error.to_string())?;
        let is_replaying = status.log.is_some_and(|log| log.is_replaying);
        let created = self.change(engine, |engine| execute(engine, &statement));
        let is_unwell = self.disk.is_sick() || self.disk.is_off();
        let at = if is_replaying { before } else { self.devices[device].received() };
        let watched = &mut self.watched[place];
        watched.changes.push((at, true));
        watched.life = match created {
            Ok(()) => Life::Lives,
            Err(_) if is_unwell => Life::Unclear,
            Err(error) => return Err(format!("{} cannot be created: {error}", watched.name)),
        };
        let line = format!("{} is created", watched.name);
        self.counts.changes += 1;
        self.note(&line);
        self.expect();
        Ok(())
    }

    fn pause(&mut self, engine: &Arc<Engine>, query: usize, is_paused: bool) -> Result<(), Failure> {
        let Some(place) = self.place(query, Life::Lives) else { return Ok(()) };
        let watched = &self.watched[place];
        let Reads::Device(device) = watched.plan.reads else { return Ok(()) };
        if watched.unclear.is_some() || watched.is_paused() == is_paused {
            return Ok(());
        }
        let name = watched.name.clone();
        let done = self.change(engine, |engine| match is_paused {
            true => engine.session(Caller::local_operator()).pause(&name),
            false => engine.session(Caller::local_operator()).resume(&name),
        });
        // Routes change after the catalog, whatever comes meanwhile.
        let change = (self.devices[device].received(), !is_paused);
        let is_unwell = self.disk.is_sick() || self.disk.is_off();
        let watched = &mut self.watched[place];
        match done {
            Ok(()) => watched.changes.push(change),
            // This is refused until the log is replayed.
            Err(error) if error.kind == ErrorKind::Unavailable && error.message.contains("replayed") => return Ok(()),
            Err(_) if is_unwell => watched.unclear = Some(change),
            Err(error) => return Err(format!("{} cannot be paused or resumed: {error}", watched.name)),
        }
        let line = format!("{} is {}", watched.name, if is_paused { "paused" } else { "resumed" });
        self.counts.changes += 1;
        self.note(&line);
        self.expect();
        Ok(())
    }

    /// Gives a query another bound, or `all` queries of its application with one call.
    fn alter(&mut self, engine: &Arc<Engine>, query: usize, low: i32, all: bool) -> Result<(), Failure> {
        let Some(place) = self.place(query, Life::Lives) else { return Ok(()) };
        let kind = self.watched[place].plan.kind;
        let altered = self.watched.iter().enumerate().filter(|(_, one)| {
            let is_meant = one.plan.number == query || (all && one.plan.kind == kind && one.life == Life::Lives);
            is_meant && one.unclear_low.is_none() && one.low() != low
        });
        let altered = altered.filter_map(|(place, one)| match one.plan.reads {
            Reads::Device(device) => Some((place, (self.devices[device].received(), low))),
            Reads::Query(_) => None,
        });
        let altered: Vec<(usize, (usize, i32))> = altered.collect();
        if altered.is_empty() || self.side.is_away() {
            return Ok(());
        }
        // The statement waits until earlier events are processed, and nothing else processes them here.
        engine.keep_time_once();
        let mut runs = 0;
        while engine.run_one(|_| 0, Duration::MAX) {
            runs += 1;
            if runs > RUNS_MAX {
                return Err("tasks are ready for ever".into());
            }
        }
        let names: Vec<String> = altered.iter().map(|(place, _)| self.watched[*place].name.clone()).collect();
        // What comes while the catalog is written waits for the new bound.
        let answers: Vec<Result<(), ServiceError>> = self.change(engine, |engine| {
            let session = engine.session(Caller::local_operator());
            if !all {
                return vec![execute(engine, &format!("ALTER QUERY {} SET (low => {low}.0)", names[0]))];
            }
            let parameters = [("low".into(), ParameterValue::Float(low.into()))];
            let change = |name| QueryChange { name, parameters: &parameters, label: None, whole_of: None };
            let changes: Vec<QueryChange<'_>> = names.iter().map(|name| change(name.as_str())).collect();
            session.alter(&changes).into_iter().map(|answer| answer.map(drop)).collect()
        });
        let is_unwell = self.disk.is_sick() || self.disk.is_off();
        for ((place, change), answer) in altered.into_iter().zip(answers) {
            let watched = &mut self.watched[place];
            match answer {
                Ok(()) => watched.lows.push(change),
                // This is refused until the log is replayed and waiting events are processed.
                Err(error) if ["replayed", "not processed"].iter().any(|why| error.message.contains(why)) => continue,
                Err(_) if is_unwell => watched.unclear_low = Some(change),
                Err(error) => return Err(format!("{} cannot be altered: {error}", watched.name)),
            }
            let line = format!("{} has the bound {low}", watched.name);
            self.counts.changes += 1;
            self.note(&line);
        }
        self.expect();
        Ok(())
    }

    fn drop_query(&mut self, engine: &Engine, query: usize) -> Result<(), Failure> {
        let Some(place) = self.place(query, Life::Lives).filter(|&place| !self.watched[place].is_read) else {
            return Ok(());
        };
        // Its earlier results count.
        let name = self.watched[place].name.clone();
        let dropped = engine.session(Caller::local_operator()).drop_query(&name);
        self.take_results()?;
        self.watched[place].on_way = self.side.waiting_for(&self.watched[place].topic);
        let is_unwell = self.disk.is_sick() || self.disk.is_off();
        self.watched[place].life = match dropped {
            Ok(()) => Life::Dropped,
            Err(_) if is_unwell => Life::Unclear,
            Err(error) => return Err(format!("{name} cannot be dropped: {error}")),
        };
        self.note(&format!("{name} is dropped"));
        Ok(())
    }

    /// If all messages are acknowledged, lets so much time pass that no client repeats any of them.
    fn rest(&mut self) {
        if self.clients.iter().all(Client::is_done) {
            self.clock.advance_us(REST_US);
            self.note("a while passes");
        }
    }

    /// Runs until everything is completed, while nothing fails any more.
    fn run_until_idle(&mut self) -> Result<(), Failure> {
        self.disk.stay_on();
        self.disk.set_full(false);
        self.disk.fail_to_sync(false);
        for _ in 0..ROUNDS_MAX {
            self.start()?;
            let Some(engine) = self.engine.clone() else { continue };
            self.side.keep_away(false);
            self.clock.advance_us(1_000);
            for client in 0..self.clients.len() {
                while self.deliver(&engine, client) {}
            }
            let is_replayed = engine.replay_some(u64::MAX, true);
            engine.keep_time_once();
            let mut runs = 0;
            while engine.run_one(|_| 0, Duration::MAX) {
                runs += 1;
                if runs > RUNS_MAX {
                    return Err("tasks are ready for ever".into());
                }
            }
            let is_logged = engine.commit_log();
            for client in 0..self.clients.len() {
                self.acknowledge(&engine, client);
            }
            let results = self.counts.results;
            self.look()?;
            let is_quiet = runs == 0 && self.counts.results == results && self.side.has_sent_all();
            if is_replayed && is_logged && is_quiet && self.clients.iter().all(Client::is_done) {
                return self.check_complete();
            }
        }
        Err("it does not come to its end".into())
    }

    /// Whether it is known which events a query reads.
    fn is_certain(&self, query: &QueryPlan) -> bool {
        let Reads::Query(number) = query.reads else { return true };
        let read = self.watched.iter().find(|watched| watched.plan.number == number);
        read.is_none_or(|read| read.life != Life::Unclear && self.is_certain(&read.plan))
    }

    /// Checks that each living query has given all of its results.
    fn check_complete(&self) -> Result<(), Failure> {
        for watched in self.watched.iter().filter(|one| matches!(one.life, Life::Lives | Life::Unclear)) {
            let all = watched.expected.len();
            let has_ended = watched.next.contains(&all) && watched.reached == all;
            if !has_ended && watched.life == Life::Lives && self.is_certain(&watched.plan) {
                return Err(format!(
                    "{} has given {} of {all} results, the next is {}",
                    watched.name,
                    watched.reached,
                    watched.expected.get(watched.reached).map_or("none".into(), Value::to_string)
                ));
            }
        }
        Ok(())
    }
}

fn execute(engine: &Engine, statement: &str) -> Result<(), ServiceError> {
    engine.session(Caller::local_operator()).execute(statement).into_iter().try_for_each(|one| one.map(drop))
}

/// Returns the statement that creates a query.
fn creation(query: &QueryPlan) -> String {
    let QueryPlan { number, kind, reads, low, .. } = query;
    let read = match reads {
        Reads::Device(device) => format!("d{device}"),
        Reads::Query(query) => format!("r{query}"),
    };
    format!(
        "CREATE QUERY q{number} FROM APPLICATION {}_queries WITH (device => '{read}', low => {low}.0, result => 'r{number}')",
        kind.name()
    )
}

fn config(plan: &Plan) -> Config {
    let loaded = rivulet::config::load(&Sources::default()).expect("what is not configured has its default");
    let mut config = loaded.config;
    config.workers.threads = 1;
    config.inbox_rows_max = plan.inbox_rows_max;
    config.memory_bytes_max = None;
    config.spill_after = None;
    config.checkpoint =
        Some(CheckpointConfig { interval: None, place: Place::Folder("checkpoints".into()), retained: 2 });
    config.durability = DurabilityConfig { default: Durability::Log, ..config.durability };
    config
}
