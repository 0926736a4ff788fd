//! The burst workers of one tenant: who they are, and which tasks they have a place for.
//!
//! A worker opens a stream for control words, the roster answers with one, and the worker says who it is. A task gets a
//! [ticket](super::pipe) of a worker, and with that the worker's word that it can run the task; it moves when the flow
//! is given the pipe of the ticket. A worker that was without a connection for too long is lost, and so are the pipes
//! of its tickets, for good: should it come back, it begins anew.
//!
//! What must hold: what a worker sends counts only for tickets that were given to it.

use std::collections::BTreeMap;
use std::iter;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use parking_lot::{Condvar, Mutex};
use rivulet_connectors::links::{Asked, Links, Outgoing, Peer, Receive, Received};
use rivulet_runtime::{PipeError, Waker};

use super::message::{self, Control, Hold};
use super::pipe::{CONTROL, Inbound, LinkPipe, Pipes, SEND, named, say};
use crate::service::BURST_STREAMS;

/// What is known of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Its number, which no other worker ever has.
    pub number: u64,
    /// Its name, which no other worker has meanwhile.
    pub name: String,
    /// The address from which it is connected.
    pub address: Option<IpAddr>,
    /// How many tasks it runs at a time.
    pub threads: usize,
    /// The places that it has given, or was asked for.
    pub tickets: usize,
    /// Those of them that a task has taken.
    pub tasks: usize,
    /// When its life ends, if that has a limit; microseconds, by the clock of [`Roster::turn`].
    pub ends_us: Option<i64>,
    /// Whether credentials may go to it: its connection is encrypted, or on this machine.
    pub is_private: bool,
}

/// The burst workers of a tenant.
pub struct Roster {
    links: Arc<Links>,
    /// A worker without a connection for longer than this is lost.
    lost_after_us: i64,
    desk: Arc<Desk>,
}

/// What takes the streams of workers.
struct Desk {
    pipes: Pipes,
    /// Locked under the lock of a session: no session is locked and no stream is dropped while it is.
    state: Mutex<State>,
    changed: Condvar,
    /// Called when [`Roster::turn`] has something to do.
    news: Waker,
}

#[derive(Default)]
struct State {
    workers: BTreeMap<u64, Worker>,
    next: u64,
    tickets: BTreeMap<u64, Ticket>,
}

#[derive(Clone)]
struct Worker {
    peer: Arc<Peer>,
    hears: Arc<Inbound>,
    /// The name of both streams of control words.
    answers: String,
    says: Option<Arc<Outgoing>>,
    /// Name, threads, and when its life ends; `None` before it has said so.
    is: Option<(String, usize, Option<i64>)>,
    away_since_us: Option<i64>,
}

struct Ticket {
    worker: u64,
    /// Whether the worker has a place, or why not; `None` before it has answered.
    outcome: Option<Result<(), String>>,
    /// Until a task takes it.
    held: Option<Arc<LinkPipe>>,
    pipe: Weak<LinkPipe>,
}

impl Receive for Desk {
    fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<Option<(u64, u64)>, String> {
        let mut state = self.state.lock();
        if asked.name.starts_with(CONTROL) {
            if asked.schema != message::schema() {
                return Err("control words have other columns".into());
            }
            // If it had another one, that is closed, and the worker has begun anew: what it had before is lost first.
            let before = state.workers.values().filter(|worker| Arc::ptr_eq(&worker.peer, peer));
            before.for_each(|worker| worker.hears.arrived());
            let number = state.next;
            state.next += 1;
            let hears = Arc::new(Inbound::of(asked.stream));
            let answers = asked.name.clone();
            let worker = Worker { peer: peer.clone(), hears, answers, says: None, is: None, away_since_us: None };
            state.workers.insert(number, worker);
            drop(state);
            (self.news)();
            return Ok(None);
        }
        let ticket = named(&asked.name).and_then(|(ticket, _)| state.tickets.get(&ticket));
        let worker = ticket.and_then(|ticket| state.workers.get(&ticket.worker));
        if !worker.is_some_and(|worker| Arc::ptr_eq(&worker.peer, peer)) {
            return Err("the worker has no such ticket".into());
        }
        drop(state);
        self.pipes.accept(peer, asked).map(|()| None)
    }

    fn arrived(&self, peer: &Arc<Peer>, stream: Received) {
        let is_it = |worker: &&Worker| Arc::ptr_eq(&worker.peer, peer) && worker.hears.stream() == Some(stream);
        let hears = self.state.lock().workers.values().find(is_it).map(|worker| worker.hears.clone());
        match hears {
            Some(hears) => {
                hears.arrived();
                (self.news)();
            }
            None => _ = self.pipes.arrived(peer, stream),
        }
    }

    fn query(&self) -> &str {
        "burst workers"
    }
}

impl Roster {
    /// The workers that come to these links in a scope. `news` is called when [`Roster::turn`] has something to do.
    ///
    /// # Errors
    /// Something else takes the streams of workers.
    pub fn new(links: &Arc<Links>, scope: &str, lost_after_us: i64, news: Waker) -> Result<Arc<Self>, String> {
        let (pipes, state, changed) = Default::default();
        let desk = Arc::new(Desk { pipes, state, changed, news });
        let receiver: Arc<dyn Receive> = desk.clone();
        links.receive(scope, BURST_STREAMS, &receiver)?;
        Ok(Arc::new(Self { links: links.clone(), lost_after_us, desk }))
    }

    /// Whether no worker has come that is not lost.
    pub(crate) fn is_empty(&self) -> bool {
        self.desk.state.lock().workers.is_empty()
    }

    /// The workers that can be given tasks.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let state = self.desk.state.lock();
        let known = state.workers.iter().filter(|(_, worker)| worker.away_since_us.is_none());
        let info = |(&number, worker): (&u64, &Worker)| {
            let (name, threads, ends_us) = worker.is.clone()?;
            let given = || state.tickets.values().filter(|ticket| ticket.worker == number);
            let is_taken = |ticket: &&Ticket| ticket.held.is_none() && ticket.pipe.strong_count() > 0;
            let (tickets, tasks) = (given().count(), given().filter(is_taken).count());
            let (address, is_private) = (worker.peer.address(), worker.peer.is_private());
            Some(WorkerInfo { number, name, address, threads, tickets, tasks, ends_us, is_private })
        };
        known.filter_map(info).collect()
    }

    /// Asks a worker for a place for a task. `sends` has the columns of what it is sent, by input, and `takes` those of
    /// what it gives, by output; `waker` wakes the task. Returns the ticket; `None` if the worker is gone.
    pub fn hold(
        &self,
        worker: u64,
        hold: Hold,
        (sends, takes): (Vec<SchemaRef>, Vec<SchemaRef>),
        waker: Waker,
    ) -> Option<u64> {
        let Worker { peer, says, .. } = self.desk.state.lock().workers.get(&worker)?.clone();
        let (ticket, says) = (self.links.random(), says?);
        let pipe = Arc::new(LinkPipe::open(&self.links, &peer, ticket, sends, takes));
        pipe.wake_by(waker);
        self.desk.pipes.add(ticket, &pipe);
        let entry = Ticket { worker, outcome: None, pipe: Arc::downgrade(&pipe), held: Some(pipe) };
        self.desk.state.lock().tickets.insert(ticket, entry);
        say(&says, &Control::Hold(Box::new(Hold { ticket, ..hold })));
        Some(ticket)
    }

    /// Whether the worker has a place for a task, or why not; `None` before it has answered.
    pub fn outcome(&self, ticket: u64) -> Option<Result<(), String>> {
        match self.desk.state.lock().tickets.get(&ticket) {
            Some(ticket) => ticket.outcome.clone(),
            None => Some(Err("the place was given back".into())),
        }
    }

    /// Waits until all of these tickets have an outcome, at most for `timeout`, or until `is_over`.
    pub(crate) fn wait(&self, tickets: &[u64], timeout: Duration, is_over: impl Fn() -> bool) {
        const LOOK_PERIOD: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + timeout;
        let mut state = self.desk.state.lock();
        let is_open = |state: &State, ticket: &u64| state.tickets.get(ticket).is_some_and(|one| one.outcome.is_none());
        while tickets.iter().any(|ticket| is_open(&state, ticket)) && Instant::now() < deadline && !is_over() {
            self.desk.changed.wait_for(&mut state, LOOK_PERIOD);
        }
    }

    /// The pipe of a ticket, once. Dropping it gives the place back.
    pub fn take(&self, ticket: u64) -> Option<Arc<LinkPipe>> {
        self.desk.state.lock().tickets.get_mut(&ticket)?.held.take()
    }

    /// Streams may have room.
    pub fn look_for_room(&self) {
        self.desk.pipes.look_for_room();
    }

    /// Hears workers, and notes which are lost.
    pub fn turn(&self, now_us: i64) {
        self.desk.pipes.tidy();
        let workers = {
            let mut state = self.desk.state.lock();
            state.tickets.retain(|_, ticket| ticket.held.is_some() || ticket.pipe.strong_count() > 0);
            state.workers.clone()
        };
        for (number, worker) in workers {
            if let Err(why) = self.hear(number, &worker, now_us) {
                self.lose(number, &why);
            }
        }
        self.desk.changed.notify_all();
    }

    /// Hears a worker.
    ///
    /// # Errors
    /// Why it is lost.
    fn hear(&self, number: u64, worker: &Worker, now_us: i64) -> Result<(), String> {
        let change = |change: &mut dyn FnMut(&mut Worker)| {
            self.desk.state.lock().workers.get_mut(&number).into_iter().for_each(change);
        };
        let says = worker.says.clone().unwrap_or_else(|| {
            let says = self.links.open_to(&worker.peer, worker.answers.clone(), message::schema(), SEND);
            let says = Arc::new(says);
            change(&mut |worker| worker.says = Some(says.clone()));
            says
        });
        let told = |error: PipeError| error.to_string();
        worker.peer.may_send(BURST_STREAMS)?;
        while let Some(element) = worker.hears.next(&worker.peer).map_err(told)? {
            match Control::read(&element).map_err(told)? {
                Control::Hello { version, name, threads, limit_s } => {
                    let own = env!("CARGO_PKG_VERSION");
                    if version != own {
                        let why = format!("the worker is of version {version}, and the server of {own}");
                        tracing::warn!(worker = name, "a burst worker is refused: {why}");
                        say(&says, &Control::Bye { why });
                        continue;
                    }
                    let ends_us =
                        limit_s.map(|limit_s| now_us.saturating_add_unsigned(limit_s.saturating_mul(1_000_000)));
                    let name = match &worker.is {
                        Some((name, ..)) => {
                            tracing::info!(worker = name, "a burst worker ends, and gives its tasks back");
                            name.clone()
                        }
                        None => {
                            let name = self.name_of(&name);
                            tracing::info!(worker = name, threads, "a burst worker has come");
                            name
                        }
                    };
                    change(&mut |worker| worker.is = Some((name.clone(), threads, ends_us)));
                }
                Control::Held { ticket } => self.settle(number, ticket, Ok(())),
                Control::Refused { ticket, why } => self.settle(number, ticket, Err(why)),
                Control::Bye { why } => return Err(why),
                Control::Hold(_) => return Err("it asks for a place".into()),
            }
        }
        let away_since_us = match worker.peer.is_connected() {
            true => None,
            false => Some(worker.away_since_us.unwrap_or(now_us)),
        };
        if away_since_us != worker.away_since_us {
            // While it was away, another one may have come by its name.
            let name = worker.is.as_ref().filter(|_| away_since_us.is_none()).map(|(name, ..)| self.name_of(name));
            change(&mut |worker| {
                worker.away_since_us = away_since_us;
                worker.is.iter_mut().zip(&name).for_each(|((is, ..), name)| is.clone_from(name));
            });
        }
        match away_since_us {
            Some(since_us) if now_us - since_us > self.lost_after_us => Err("it has no connection".into()),
            _ => Ok(()),
        }
    }

    /// The name by which a new worker is known: with a number, if one that is connected has its own.
    fn name_of(&self, own: &str) -> String {
        let state = self.desk.state.lock();
        let connected = || state.workers.values().filter(|worker| worker.away_since_us.is_none());
        let is_free = |name: &String| !connected().any(|worker| worker.is.as_ref().is_some_and(|(is, ..)| is == name));
        let numbered = (2..).map(|count: u64| format!("{own}-{count}"));
        let name = iter::once(own.to_owned()).chain(numbered).find(is_free).unwrap_or_default();
        if name != own {
            tracing::warn!("there is a burst worker '{own}' already, so another one of that name is '{name}'");
        }
        name
    }

    /// Notes what a worker has answered.
    fn settle(&self, worker: u64, ticket: u64, outcome: Result<(), String>) {
        let mut state = self.desk.state.lock();
        let Some(ticket) = state.tickets.get_mut(&ticket).filter(|ticket| ticket.worker == worker) else { return };
        let refused = if outcome.is_err() { ticket.held.take() } else { None };
        ticket.outcome.get_or_insert(outcome);
        drop(state);
        drop(refused);
    }

    /// A worker is gone for good.
    fn lose(&self, number: u64, why: &str) {
        let mut state = self.desk.state.lock();
        let lost = state.workers.remove(&number);
        let name = lost.as_ref().and_then(|worker| worker.is.as_ref()).map_or("", |(name, ..)| name);
        let gone = format!("the burst worker '{name}' has gone: {why}");
        let why = format!("the burst worker '{name}' was lost: {why}");
        let mut pipes = Vec::new();
        for ticket in state.tickets.values_mut().filter(|ticket| ticket.worker == number) {
            ticket.outcome.get_or_insert_with(|| Err(why.clone()));
            pipes.extend(ticket.held.take().or_else(|| ticket.pipe.upgrade()));
        }
        drop(state);
        // One without a name had not come yet.
        match name {
            "" => {}
            _ if pipes.is_empty() => tracing::info!("{gone}"),
            _ => tracing::warn!("{why}"),
        }
        // Should it come back, it opens another.
        lost.iter().for_each(|worker| worker.hears.stream().iter().for_each(|stream| worker.peer.forget(*stream)));
        pipes.iter().for_each(|pipe| pipe.lose(&why));
    }
}
