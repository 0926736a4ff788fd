//! A burst worker: it dials a server, and runs tasks of its queries.
//!
//! It plans the script that comes with a task by itself, and gives a place only if its plan is that of the server. The
//! task begins when its state has come, and ends when the server closes its streams.
//!
//! What must hold: a worker that loses its server keeps nothing: the server goes on from its checkpoint.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use rivulet_connectors::links::{Asked, LinkRights, Links, Machine, Outgoing, Peer, Receive, Received, Target};
use rivulet_dataflow::{Clock, Leaps, PartitionState, StageSnapshot, StateFrame, Work};
use rivulet_runtime::{Guest, GuestParts, Partition, Pipe, PipeError, Waker, Word, Workers};
use rivulet_sql::{PlannedSource, QueryPlan};

use super::columns;
use super::message::{self, Control, Hold};
use super::pipe::{CONTROL, Inbound, LinkPipe, Pipes, SEND, What, named, say};
use crate::service::BURST_STREAMS;

/// A query as this process has planned it.
pub struct PlannedQuery {
    /// Its plan.
    pub plan: QueryPlan,
    /// What opens its sources here.
    pub open: Opens,
}

/// Begins to open partitions of a source, where they were when the task that reads them moved.
pub type Opens = Arc<dyn Fn(PlannedSource, Vec<PartitionState>) -> Opening + Send + Sync>;

/// Partitions that are being opened, and then what came of that, once.
pub type Opening = Arc<Mutex<Option<Result<Vec<Partition>, String>>>>;

/// Plans the query of this name in a script.
pub type Planner = Box<dyn Fn(&str, &str) -> Result<PlannedQuery, String> + Send>;

/// What a worker says of itself.
#[derive(Clone, Debug)]
pub struct Me {
    /// Its name.
    pub name: String,
    /// How many tasks it runs at a time.
    pub threads: usize,
    /// When its life ends, if it has a limit; microseconds, by the clock of [`Worker::turn`].
    pub ends_us: Option<i64>,
}

/// The clock of the server, as far as it is known here: by it the windows of a query close.
pub struct ServerClock {
    own: Arc<dyn Clock>,
    ahead_us: AtomicI64,
}

impl ServerClock {
    /// The clock of this process, from which that of the server is told.
    pub fn new(own: Arc<dyn Clock>) -> Self {
        Self { own, ahead_us: AtomicI64::new(0) }
    }

    fn set(&self, now_us: i64) {
        self.ahead_us.store(now_us - self.own.now_us(), Ordering::Relaxed);
    }
}

impl Clock for ServerClock {
    fn now_us(&self) -> i64 {
        self.own.now_us() + self.ahead_us.load(Ordering::Relaxed)
    }

    fn steady_us(&self) -> i64 {
        self.own.steady_us()
    }

    fn leap_count(&self) -> usize {
        self.own.leap_count()
    }

    fn leaps(&self) -> Leaps {
        self.own.leaps()
    }
}

/// A burst worker.
pub struct Worker {
    me: Me,
    links: Arc<Links>,
    peer: Arc<Peer>,
    desk: Arc<Desk>,
    says: Option<Outgoing>,
    planner: Planner,
    /// The last script and query, and its plan.
    planned: Option<(String, String, Arc<PlannedQuery>)>,
    clock: Arc<ServerClock>,
    workers: Arc<Workers>,
    places: BTreeMap<u64, Place>,
    /// Since when it has had nothing to do.
    idle_since_us: Option<i64>,
}

/// A place for a task, and the task from when its state has come.
struct Place {
    hold: Hold,
    planned: Arc<PlannedQuery>,
    pipe: Arc<LinkPipe>,
    /// State that has come: operator, part and frame.
    state: Vec<(usize, usize, StateFrame)>,
    /// From when its state has come until its source, if it has one, is open: where it begins, and the rows of a part.
    begins: Option<(StageSnapshot, usize, Option<Opening>)>,
    guest: Option<Guest>,
    /// The server has been told, and closes its streams.
    has_failed: bool,
}

/// What takes the streams of the server.
struct Desk {
    pipes: Arc<Pipes>,
    /// Locked under the lock of a session: nothing that locks a session is called or dropped while it is.
    state: Mutex<Heard>,
    news: Waker,
}

#[derive(Default)]
struct Heard {
    control: Option<Arc<Inbound>>,
    /// Whether the server has not been told yet who this is.
    is_new: bool,
    /// The name of the streams of control words, by which the server answers.
    name: String,
    /// Streams of tickets that are not known yet.
    early: HashMap<u64, Vec<Asked>>,
}

impl Receive for Desk {
    fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<Option<(u64, u64)>, String> {
        if asked.name.starts_with(CONTROL) {
            let mut state = self.state.lock();
            if asked.name != state.name {
                return Err("the worker has begun anew".into());
            }
            let control = Some(Arc::new(Inbound::of(asked.stream)));
            *state = Heard { control, is_new: true, name: std::mem::take(&mut state.name), early: HashMap::new() };
        } else {
            let (ticket, _) = named(&asked.name).ok_or("it has no ticket")?;
            let mut state = self.state.lock();
            match self.pipes.knows(ticket) {
                true => self.pipes.accept(peer, asked)?,
                false => state.early.entry(ticket).or_default().push(asked.clone()),
            }
        }
        (self.news)();
        Ok(None)
    }

    fn arrived(&self, peer: &Arc<Peer>, stream: Received) {
        let control = self.state.lock().control.clone();
        let control = control.filter(|control| control.stream() == Some(stream));
        control.iter().for_each(|control| control.arrived());
        // Elements are for the task, which is woken.
        if !matches!(self.pipes.arrived(peer, stream), Some(What::Channel(_))) {
            (self.news)();
        }
    }

    fn query(&self) -> &str {
        "a burst worker"
    }
}

/// The server that is dialled may send what belongs to bursts.
struct OfServer(String);

impl LinkRights for OfServer {
    fn scope(&self) -> &str {
        &self.0
    }

    fn may_send(&self, stream: &str) -> Result<(), String> {
        if stream == BURST_STREAMS { Ok(()) } else { Err("a burst worker takes no such stream".into()) }
    }
}

impl Worker {
    /// Dials a server. `workers` run its tasks, by `clock`; `news` is called when [`Worker::turn`] has something to do.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn join(
        me: Me,
        (machine, target): (Machine, Target),
        (workers, clock): (Arc<Workers>, Arc<ServerClock>),
        planner: Planner,
        news: Waker,
    ) -> io::Result<Self> {
        let (pipes, state) = (Arc::<Pipes>::default(), Mutex::default());
        let with_room = pipes.clone();
        let links = Arc::new(Links::on(machine, &me.name, None, Some(Arc::new(move || with_room.look_for_room()))));
        let desk = Arc::new(Desk { pipes, state, news });
        let (scope, receiver) = (target.scope.clone(), desk.clone() as Arc<dyn Receive>);
        links.receive(&scope, BURST_STREAMS, &receiver).map_err(io::Error::other)?;
        let peer = links.join(target, Arc::new(OfServer(scope)))?;
        let (says, planned, places, idle_since_us) = Default::default();
        Ok(Self { me, links, peer, desk, says, planner, planned, clock, workers, places, idle_since_us })
    }

    /// Its links, which work its connection.
    pub fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Since when it has had no task or no server, microseconds by the clock of [`Worker::turn`].
    pub fn idle_since_us(&self) -> Option<i64> {
        self.idle_since_us
    }

    /// Whether it reaches the server; the error says why not, and whether no further attempt helps. `None` before the
    /// first attempt has an end.
    pub(crate) fn reaches(&self) -> Option<Result<(), (String, bool)>> {
        let says = self.says.as_ref()?;
        // A server that has answered may have taken this worker for lost since, and takes it anew.
        let refused = says.refused().filter(|_| self.desk.state.lock().control.is_none());
        refused.map_or_else(|| says.connection(), |why| Some(Err((why, true))))
    }

    /// The number of its tasks.
    pub(crate) fn tasks(&self) -> usize {
        self.places.len()
    }

    /// Its life ends now: the server gives it no more tasks, and takes back those that it has.
    pub(crate) fn end(&mut self, now_us: i64) {
        self.me.ends_us = Some(now_us);
        self.desk.state.lock().is_new = true;
    }

    /// Says that it has ended.
    pub(crate) fn leave(&self) {
        self.say(&Control::Bye { why: "it has ended".into() });
    }

    /// Whether the server has heard all, or hears nothing.
    pub(crate) fn is_heard(&self) -> bool {
        self.says.as_ref().is_none_or(|says| says.problem().is_some() || says.taken().1)
    }

    /// Hears the server, and starts tasks whose state has come.
    ///
    /// # Errors
    /// Why the server does not need this worker.
    pub fn turn(&mut self, now_us: i64) -> Result<(), String> {
        if self.says.is_none() {
            let name = format!("{CONTROL}{:016x}", self.links.random());
            self.desk.state.lock().name.clone_from(&name);
            self.says = Some(self.links.open_to(&self.peer, name, message::schema(), SEND));
        }
        self.hear(now_us)?;
        let desk = self.desk.clone();
        self.places.retain(|_, place| !place.pipe.is_over());
        desk.pipes.tidy();
        for place in self.places.values_mut() {
            if let Err(error) = place.turn(&self.workers) {
                // If even that cannot be said, the server has gone away.
                let _ = place.pipe.say(Word::Failed(error.to_string()));
                (place.has_failed, place.guest) = (true, None);
            }
        }
        let is_idle = self.places.is_empty() || !self.peer.is_connected();
        self.idle_since_us = is_idle.then(|| self.idle_since_us.unwrap_or(now_us));
        Ok(())
    }

    fn hear(&mut self, now_us: i64) -> Result<(), String> {
        let (control, is_new) = {
            let mut heard = self.desk.state.lock();
            (heard.control.clone(), std::mem::take(&mut heard.is_new))
        };
        let Some(control) = control else { return Ok(()) };
        if is_new {
            let limit_s = self.me.ends_us.map(|ends_us| (ends_us - now_us).max(0).unsigned_abs() / 1_000_000);
            let Me { name, threads, .. } = self.me.clone();
            self.say(&Control::Hello { version: env!("CARGO_PKG_VERSION").into(), name, threads, limit_s });
        }
        loop {
            match control.next(&self.peer) {
                Ok(None) => return Ok(()),
                Ok(Some(element)) => match Control::read(&element).map_err(|error| error.to_string())? {
                    Control::Hold(hold) => {
                        let ticket = hold.ticket;
                        let answer = match self.hold(*hold) {
                            Ok(()) => Control::Held { ticket },
                            Err(why) => {
                                self.desk.state.lock().early.remove(&ticket);
                                Control::Refused { ticket, why }
                            }
                        };
                        self.say(&answer);
                    }
                    Control::Bye { why } => return Err(why),
                    other => return Err(format!("the server has said {other:?}")),
                },
                Err(_) => {
                    // It has taken this worker for lost, or is another process: all begins anew.
                    tracing::warn!("the server does not know this worker any more");
                    self.desk.state.lock().control.take_if(|now| Arc::ptr_eq(now, &control));
                    self.places.clear();
                    self.says = None;
                    return Ok(());
                }
            }
        }
    }

    fn say(&self, word: &Control) {
        self.says.iter().for_each(|stream| say(stream, word));
    }

    /// Makes a place for a task.
    fn hold(&mut self, hold: Hold) -> Result<(), String> {
        let planned = self.plan(&hold)?;
        let dataflow = &planned.plan.dataflow;
        if hold.nodes.is_empty() || hold.nodes.iter().any(|&node| node >= dataflow.nodes().len()) {
            return Err("the query has no such operators".into());
        }
        if self.places.is_empty() {
            self.clock.set(hold.now_us);
        }
        let (takes, gives) = columns(dataflow, &hold.nodes);
        let pipe = Arc::new(LinkPipe::open(&self.links, &self.peer, hold.ticket, vec![gives], takes));
        self.desk.pipes.add(hold.ticket, &pipe);
        // From here on its streams come to the pipe.
        let early = self.desk.state.lock().early.remove(&hold.ticket).unwrap_or_default();
        early.iter().try_for_each(|asked| self.desk.pipes.accept(&self.peer, asked))?;
        tracing::info!(query = hold.query, nodes = ?hold.nodes, instance = hold.instance, "has a place");
        let (state, begins, guest, has_failed) = Default::default();
        self.places.insert(hold.ticket, Place { hold, planned, pipe, state, begins, guest, has_failed });
        Ok(())
    }

    /// The plan of a task, which is that of the server.
    fn plan(&mut self, hold: &Hold) -> Result<Arc<PlannedQuery>, String> {
        let planned = match &self.planned {
            Some((script, query, planned)) if *script == hold.script && *query == hold.query => planned.clone(),
            _ => Arc::new((self.planner)(&hold.script, &hold.query)?),
        };
        if planned.plan.fingerprint() != hold.fingerprint {
            return Err("the worker plans the query in another way: is its program the same?".into());
        }
        self.planned = Some((hold.script.clone(), hold.query.clone(), planned.clone()));
        Ok(planned)
    }
}

impl Place {
    /// Hears what comes before the task, and starts the task. It hears the rest itself, up to its end.
    fn turn(&mut self, workers: &Workers) -> Result<(), PipeError> {
        let has_ended = self.has_failed || self.guest.as_ref().is_some_and(Guest::has_ended);
        // What nobody hears would hide that the server has closed its streams.
        while has_ended && let Ok(Some(_)) = self.pipe.heard() {}
        while self.guest.is_none() && self.begins.is_none() && !self.has_failed {
            match self.pipe.heard()? {
                None => break,
                Some(Word::State { operator, part, frame }) => self.state.push((operator, part, frame)),
                Some(Word::Begin { parts, snapshot, rows_max }) if parts == self.state.len() => {
                    let opening = self.open(&snapshot);
                    self.begins = Some((snapshot, rows_max, opening));
                }
                Some(_) => return Err(PipeError::Wrong("a word that does not stand before a task".into())),
            }
        }
        let is_open = |(.., opening): &mut (_, _, Option<Opening>)| {
            opening.as_ref().is_none_or(|opening| opening.lock().is_some())
        };
        if let Some((snapshot, rows_max, opening)) = self.begins.take_if(is_open) {
            let opened = opening.and_then(|opening| opening.lock().take()).transpose().map_err(PipeError::Wrong)?;
            let guest = workers.start_guest(self.parts(snapshot, rows_max, opened));
            let guest = guest.map_err(|error| PipeError::Wrong(error.to_string()))?;
            self.pipe.wake_by(guest.waker());
            self.guest = Some(guest);
        }
        Ok(())
    }

    /// Begins to open the source of the task, if it has one, where it was.
    fn open(&self, begins: &StageSnapshot) -> Option<Opening> {
        let plan = &self.planned.plan;
        let Work::Source(source) = plan.dataflow.nodes()[self.hold.nodes[0]].work else { return None };
        Some((self.planned.open)(plan.sources[source].clone(), begins.partitions.clone().unwrap_or_default()))
    }

    fn parts(&mut self, begins: StageSnapshot, rows_max: usize, partitions: Option<Vec<Partition>>) -> GuestParts {
        let (Hold { nodes, instance, limits, query, .. }, plan) = (&self.hold, &self.planned.plan);
        GuestParts {
            name: query.clone(),
            dataflow: plan.dataflow.clone(),
            nodes: nodes.clone(),
            instance: *instance,
            inputs: columns(&plan.dataflow, nodes).0.len(),
            partitions,
            limits: *limits,
            pipe: self.pipe.clone(),
            begins,
            rows_max,
            state: std::mem::take(&mut self.state),
        }
    }
}
