//! Another process: the streams in both directions, and what works a connection to it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use rivulet_dataflow::{Clock, Element};
use rivulet_storage::{Disk, RealDisk};
use rivulet_wire::{
    Asked, Buffer, Connection, Event, Packed, ReceiveOptions, Received, SendOptions, Session, StreamId, Taken,
    WireError,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::rights::LinkRights;
use crate::clock::SystemClock;
use crate::tls::Fault;

/// The bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

/// How long the other side may take to say who it is.
pub(super) const GREETING_MAX: Duration = Duration::from_secs(10);

/// How long the last word to the other side may take.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// What takes the streams of a name.
pub trait Receive: Send + Sync {
    /// A process sends such a stream. Returns the number and the checksum of the buffer after which one that is stored
    /// goes on, if some of it was taken before.
    ///
    /// # Errors
    /// Why the stream cannot be taken.
    fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<Option<(u64, u64)>, String>;

    /// Something of a stream that was accepted waits to be taken, or it does not go on.
    fn arrived(&self, peer: &Arc<Peer>, stream: Received);

    /// The query that takes them, for errors.
    fn query(&self) -> &str;
}

/// Keeps the buffers of a stream until they are durable on the other side, also when this process ends.
pub trait Store: Send + Sync {
    /// Hands over the buffers from this number on, one after the other, while `take` returns true; from the first that
    /// it keeps, if the number is 0. Called on the thread of all links.
    fn read(&self, from: u64, take: &mut dyn FnMut(u64, Packed<'_>) -> bool);

    /// The other side has taken the buffer with this number, which has this checksum there. Called before more is read.
    fn verify(&self, number: u64, checksum: u64);

    /// The other side has made all durable up to this buffer.
    fn forget(&self, number: u64);
}

/// A number that no other process has.
pub(super) fn random() -> u64 {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).expect("the system gives random numbers");
    u64::from_le_bytes(bytes)
}

/// Called when a stream that is sent may have room again.
pub type OnRoom = Option<Arc<dyn Fn() + Send + Sync>>;

/// What links have of their machine. A simulation gives another one.
#[derive(Clone)]
pub struct Machine {
    /// The disk for spools.
    pub disk: Arc<dyn Disk>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Gives a number that no other process has.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Whether links have no threads: the caller carries the bytes of their connections ([`Worked::step`]) and keeps
    /// their spools ([`super::Links::keep_once`]).
    pub is_stepped: bool,
}

impl Machine {
    /// The machine that this process runs on.
    pub fn real() -> Self {
        let (disk, clock, random) = (Arc::new(RealDisk), Arc::new(SystemClock), Arc::new(random));
        Self { disk, clock, random, is_stepped: false }
    }
}

/// What the peers of a process have in common.
pub(super) struct Common {
    /// The name of this process, and its number for those that dial it.
    pub(super) name: String,
    pub(super) run: u64,
    pub(super) clock: Arc<dyn Clock>,
    /// What takes streams, by scope and name.
    pub(super) receivers: Mutex<HashMap<(String, String), Weak<dyn Receive>>>,
    pub(super) on_room: OnRoom,
}

impl Common {
    /// The time since some moment, microseconds.
    pub(super) fn now_us(&self) -> i64 {
        self.clock.steady_us()
    }

    fn receiver(&self, scope: &str, name: &str) -> Option<Arc<dyn Receive>> {
        self.receivers.lock().get(&(scope.to_owned(), name.to_owned()))?.upgrade()
    }
}

/// Another process.
pub struct Peer {
    /// What it may send; `None` if this process dials it, and takes nothing from it.
    pub(super) rights: Mutex<Option<Arc<dyn LinkRights>>>,
    is_private: bool,
    /// From where it dialled last.
    pub(super) address: Mutex<Option<IpAddr>>,
    session: Mutex<Session>,
    woken: Notify,
    /// Who takes the streams of the other side.
    takers: Mutex<HashMap<Received, Weak<dyn Receive>>>,
    /// The stores of streams that are stored.
    stores: Mutex<HashMap<StreamId, Arc<dyn Store>>>,
    /// Whether streams may have found somebody who takes them.
    has_news: AtomicBool,
    state: Mutex<State>,
}

/// Why there is no connection, and whether a retry is pointless before somebody changes something.
pub(super) type Failure = (String, bool);

/// What is known of a peer and of streams to it.
#[derive(Default)]
struct State {
    /// The number of the last connection: an earlier one ends.
    connection: u64,
    is_connected: bool,
    /// Why there is no connection.
    problem: Option<String>,
    /// Whether no further attempt helps.
    lasts: bool,
    /// How many attempts have failed, and connections have ended.
    attempts: u64,
    /// Why the other side does not take a stream of this side.
    refused: HashMap<StreamId, String>,
}

impl Peer {
    pub(super) fn new(rights: Option<Arc<dyn LinkRights>>, is_private: bool) -> Self {
        Self {
            rights: Mutex::new(rights),
            is_private,
            address: Mutex::default(),
            session: Mutex::default(),
            woken: Notify::new(),
            takers: Mutex::default(),
            stores: Mutex::default(),
            has_news: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Whether it is connected, or rows that it sent wait to be taken.
    pub fn is_needed(&self) -> bool {
        self.state.lock().is_connected || !self.session.lock().is_idle()
    }

    /// Whether it is connected.
    pub fn is_connected(&self) -> bool {
        self.state.lock().is_connected
    }

    /// From where it has dialled this process last.
    pub fn address(&self) -> Option<IpAddr> {
        *self.address.lock()
    }

    /// Whether it dials this process, and each of its connections is encrypted or on this machine.
    pub fn is_private(&self) -> bool {
        self.is_private
    }

    /// Whether it may send a stream of this name, by its present rights.
    ///
    /// # Errors
    /// Why it may not.
    pub fn may_send(&self, stream: &str) -> Result<(), String> {
        let rights = self.rights.lock().clone();
        rights.map_or_else(
            || Err("this server takes no streams from a server that it dials".into()),
            |rights| rights.may_send(stream),
        )
    }

    /// Stores may have more.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// There may be somebody who takes streams that nobody took.
    pub(super) fn tell_news(&self) {
        self.has_news.store(true, Ordering::Release);
        self.woken.notify_one();
    }

    /// Notes why there is no connection.
    pub(super) fn fail(&self, (problem, lasts): Failure) {
        let mut state = self.state.lock();
        (state.problem, state.lasts, state.attempts) = (Some(problem), lasts, state.attempts + 1);
    }

    /// The next buffer of a stream that this peer sends; `None` if none waits. The buffer before counts as taken.
    pub fn take(&self, stream: Received) -> Option<Buffer> {
        let mut session = self.session.lock();
        let was_handed = session.is_handed(stream);
        let buffer = session.take(stream);
        drop(session);
        // The sender is told what was taken.
        if buffer.is_some() || was_handed {
            self.woken.notify_one();
        }
        buffer
    }

    /// Tells this peer that what it sends of a stream is durable here up to this buffer.
    pub fn confirm(&self, stream: Received, number: u64) {
        self.session.lock().confirm(stream, number);
        self.woken.notify_one();
    }

    /// Another process goes on with a stream that this peer sends: what waits of it here is not needed.
    pub fn replace(&self, stream: Received) {
        self.end(stream, "another process with the same identity sends this stream");
    }

    /// A stream that this peer sends is not needed any more, and neither is what waits of it here.
    pub fn forget(&self, stream: Received) {
        self.end(stream, "it is not needed any more");
    }

    fn end(&self, stream: Received, why: &str) {
        let mut session = self.session.lock();
        session.refuse(stream, why);
        session.abandon(stream);
        self.takers.lock().remove(&stream);
        self.woken.notify_one();
    }

    /// Whether a stream that this peer sends goes on, or something of it waits.
    pub fn has(&self, stream: Received) -> bool {
        let is_there = self.session.lock().is_there(stream);
        if !is_there {
            self.takers.lock().remove(&stream);
        }
        is_there
    }

    /// A buffer of a stream was not what it says: the connection ends, and the stream begins anew.
    pub fn give_up(&self, stream: Received, error: &WireError) {
        let mut session = self.session.lock();
        session.abandon(stream);
        session.detach();
        let mut state = self.state.lock();
        (state.connection, state.is_connected, state.problem) = (state.connection + 1, false, Some(error.to_string()));
        self.woken.notify_one();
    }

    /// Nobody takes a stream any more; what waits of it stays.
    pub fn let_go(&self, stream: Received, why: &str) {
        self.session.lock().refuse(stream, why);
        self.tell_news();
    }

    /// Works a connection whose other side is known, until it ends, and says why it has ended.
    pub(super) async fn work(
        self: &Arc<Self>,
        common: &Arc<Common>,
        connection: Connection,
        rest: Vec<u8>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> String {
        // Also where this future is dropped, or panics.
        let mut worked = Worked::begin(common, self, connection);
        worked.end = match self.received(common, worked.number, &rest) {
            Ok(()) => self.exchange(common, stream, worked.number).await,
            Err(error) => error.to_string(),
        };
        worked.end.clone()
    }

    /// The session, if a connection is the last one.
    fn session_of(&self, number: u64) -> Result<parking_lot::MutexGuard<'_, Session>, WireError> {
        let session = self.session.lock();
        match self.state.lock().connection == number {
            true => Ok(session),
            false => {
                // What woke this one may have been meant for that one.
                self.woken.notify_one();
                Err(WireError::Refused("another connection has taken its place".into()))
            }
        }
    }

    async fn exchange(
        self: &Arc<Self>,
        common: &Common,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        number: u64,
    ) -> String {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (mut read, mut out, mut written, mut is_flushed) = (vec![0; READ_BYTES], Vec::new(), 0, true);
        loop {
            // This task has two, and a table of those that dial this process has one.
            if Arc::strong_count(self) == 2 {
                return "nobody needs it any more".into();
            }
            let may_take = written == out.len();
            if may_take {
                out.clear();
                written = 0;
            }
            let due_us = match self.turn(common, number, &mut out) {
                Ok(due_us) => due_us,
                Err(error) => return error.to_string(),
            };
            let write = async {
                match written < out.len() {
                    true => writer.write(&out[written..]).await.map(|bytes| (bytes, false)),
                    false => writer.flush().await.map(|()| (0, true)),
                }
            };
            let due = Duration::from_micros(due_us.clamp(100, 10_000_000) as u64);
            tokio::select! {
                bytes = reader.read(&mut read) => match bytes {
                    Ok(0) => return "the other side has closed the connection".into(),
                    Ok(bytes) => if let Err(error) = self.received(common, number, &read[..bytes]) {
                        self.take_leave(&mut writer, &error).await;
                        return error.to_string();
                    },
                    Err(error) => return told(&error).0,
                },
                outcome = write, if written < out.len() || !is_flushed => match outcome {
                    Ok((bytes, flushed)) => (written, is_flushed) = (written + bytes, flushed),
                    Err(error) => return error.to_string(),
                },
                () = self.woken.notified() => {}
                () = tokio::time::sleep(due) => {}
            }
        }
    }

    /// Does what is due on a connection. If `out` is empty, it gets what is to be sent. Returns when to come again at
    /// the latest, in microseconds from now.
    fn turn(self: &Arc<Self>, common: &Common, number: u64, out: &mut Vec<u8>) -> Result<i64, WireError> {
        let now_us = common.now_us();
        self.refill();
        // These may be dropped here, which needs the session.
        let mut asked = Vec::new();
        let mut session = self.session_of(number)?;
        if self.has_news.swap(false, Ordering::AcqRel) {
            asked = self.settle(common, &mut session);
        }
        session.tick(now_us)?;
        let may_take = out.is_empty();
        if may_take {
            session.connection().expect("it is attached").take_to_send(out, now_us);
        }
        let due_us = session.due_us().saturating_sub(now_us);
        drop(session);
        drop(asked);
        if may_take && !out.is_empty() {
            common.on_room.iter().for_each(|on_room| on_room());
        }
        Ok(due_us)
    }

    /// Takes buffers from the stores of streams that want some. They are read without the lock of the session, which
    /// tasks wait for.
    fn refill(&self) {
        if self.stores.lock().is_empty() {
            return;
        }
        let wanted = self.session.lock().wants();
        for (stream, number) in wanted {
            let store = self.stores.lock().get(&stream).cloned();
            store.into_iter().for_each(|store| {
                store.read(number, &mut |number, packed| self.session.lock().supply(stream, number, packed));
            });
        }
    }

    /// Tells the other side what is wrong with what it sent.
    async fn take_leave(&self, writer: &mut (impl AsyncWrite + Unpin), error: &WireError) {
        if matches!(error, WireError::Refused(_)) {
            return;
        }
        let mut last = Vec::new();
        let mut connection = Connection::new(0);
        // The greeting was sent when the connection was made.
        connection.take_to_send(&mut last, 0);
        last.clear();
        connection.say_bye(&error.to_string());
        connection.take_to_send(&mut last, 0);
        let farewell = async {
            writer.write_all(&last).await?;
            writer.flush().await
        };
        let _ = timeout(FAREWELL_MAX, farewell).await;
    }

    /// Takes in what was received, and does what the other side asks for.
    fn received(self: &Arc<Self>, common: &Common, number: u64, bytes: &[u8]) -> Result<(), WireError> {
        let mut session = self.session_of(number)?;
        // What came before an error is there to be taken.
        let outcome = session.receive(bytes, common.now_us());
        let (mut taken, mut durable, mut arrived, mut has_room) = (Vec::new(), Vec::new(), Vec::new(), false);
        while let Some(event) = session.event() {
            let mut state = self.state.lock();
            match event {
                Event::Accepted { stream, after } => {
                    has_room = true;
                    state.refused.remove(&stream);
                    taken.extend(after.map(|after| (stream, after)));
                }
                Event::Refused { stream, why } => _ = state.refused.insert(stream, why),
                Event::Durable { stream, number } => durable.push((stream, number)),
                Event::Arrived { stream } => arrived.push((stream, session.is_there(stream))),
            }
        }
        let is_asked = outcome.is_ok() && session.has_asked();
        let asked = if is_asked { self.settle(common, &mut session) } else { Vec::new() };
        drop(session);
        drop(asked);
        let store_of = |stream: StreamId| self.stores.lock().get(&stream).cloned();
        for (stream, (number, checksum)) in taken {
            store_of(stream).into_iter().for_each(|store| store.verify(number, checksum));
        }
        if !durable.is_empty() {
            // Where the other side goes on may have come with it, and stores believe nobody to have more than that.
            self.refill();
        }
        for (stream, number) in durable {
            store_of(stream).into_iter().for_each(|store| store.forget(number));
        }
        if has_room {
            common.on_room.iter().for_each(|on_room| on_room());
        }
        for (stream, is_there) in arrived {
            let mut takers = self.takers.lock();
            let taker = if is_there { takers.get(&stream).cloned() } else { takers.remove(&stream) };
            drop(takers);
            taker.and_then(|taker| taker.upgrade()).iter().for_each(|taker| taker.arrived(self, stream));
        }
        outcome
    }

    /// Accepts streams that the other side wants to send, or says why not. Returns who was asked: without the lock of
    /// the session they may be dropped.
    fn settle(self: &Arc<Self>, common: &Common, session: &mut Session) -> Vec<Arc<dyn Receive>> {
        let (rights, mut receivers) = (self.rights.lock().clone(), Vec::new());
        let receiver = |name: &str| rights.as_ref().and_then(|rights| common.receiver(rights.scope(), name));
        for asked in session.asked() {
            let name = base(&asked.name);
            let accepted = self.may_send(name).and_then(|()| match receiver(name) {
                Some(receiver) => {
                    let accepted = receiver.accept(self, &asked);
                    self.takers.lock().insert(asked.stream, Arc::downgrade(&receiver));
                    receivers.push(receiver);
                    accepted
                }
                None => Err(format!("no source reads the stream '{name}'")),
            });
            match accepted {
                Ok(after) => session.accept(asked.stream, after, ReceiveOptions::default()),
                Err(why) => session.refuse(asked.stream, &why),
            }
        }
        receivers
    }
}

/// A connection that is being worked; when it is dropped, the peer has none, unless a later one has taken its place.
pub struct Worked {
    common: Arc<Common>,
    peer: Arc<Peer>,
    number: u64,
    end: String,
}

impl Worked {
    /// Goes on over a connection whose other side is known. An earlier one ends.
    pub(super) fn begin(common: &Arc<Common>, peer: &Arc<Peer>, connection: Connection) -> Self {
        let mut session = peer.session.lock();
        session.attach(connection);
        let mut state = peer.state.lock();
        let (connection, attempts) = (state.connection + 1, state.attempts);
        *state = State { connection, attempts, is_connected: true, ..State::default() };
        peer.woken.notify_one();
        let (common, number) = (common.clone(), state.connection);
        Self { common, peer: peer.clone(), number, end: "the connection has ended".into() }
    }

    /// Takes in what was received, does what is due, and gives what is to be sent to `out`, which is empty. For links
    /// that are stepped.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn step(&self, received: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        self.peer.received(&self.common, self.number, received)?;
        self.peer.turn(&self.common, self.number, out).map(drop)
    }
}

impl Drop for Worked {
    fn drop(&mut self) {
        let mut session = self.peer.session.lock();
        let mut state = self.peer.state.lock();
        if state.connection == self.number {
            session.detach();
            (state.is_connected, state.problem) = (false, Some(std::mem::take(&mut self.end)));
        }
    }
}

/// The name of a stream without the query that sends it.
fn base(name: &str) -> &str {
    name.split_once('#').map_or(name, |(base, _)| base)
}

/// Exchanges greetings on a connection that was just made: sends what waits, and reads until the other side has said
/// who it is. Returns what came after that.
pub(super) async fn greet(
    connection: &mut Connection,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    common: &Common,
) -> Result<Vec<u8>, Failure> {
    use WireError::{Refused, Stranger, Version};
    let wrong = |error: WireError| (error.to_string(), matches!(error, Stranger | Version { .. } | Refused(_)));
    let greeted = async {
        say(connection, stream, common).await.map_err(|error| told(&error))?;
        let mut bytes = vec![0; 4 << 10];
        loop {
            let length = stream.read(&mut bytes).await.map_err(|error| told(&error))?;
            let mut rest = &bytes[..length];
            connection.greet(&mut rest, common.now_us()).map_err(wrong)?;
            match length {
                0 => return Err(("the other side has closed the connection".into(), false)),
                _ if connection.them().is_some() => return Ok(rest.to_vec()),
                _ => {}
            }
        }
    };
    let late = |_| Err(("the other side does not say who it is".into(), false));
    timeout(GREETING_MAX, greeted).await.unwrap_or_else(late)
}

/// What is wrong with a connection. The side that dials may learn only after its handshake that it should have shown a
/// certificate.
pub(super) fn told(error: &io::Error) -> Failure {
    let problem = match Fault::of(error) {
        Some(fault) => {
            format!("{}: {}", fault.problem(), fault.hint("ca_file or --ca", "certificate_file or --cert"))
        }
        // It closed without a close_notify.
        None if error.kind() == io::ErrorKind::UnexpectedEof => "the other side has closed the connection".into(),
        None => error.to_string(),
    };
    // TLS and its files fail with these kinds, the network with others.
    (problem, matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Other))
}

/// Sends what waits to be sent.
pub(super) async fn say(
    connection: &mut Connection,
    stream: &mut (impl AsyncWrite + Unpin),
    common: &Common,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    connection.take_to_send(&mut bytes, common.now_us());
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// A stream to another process, until it is dropped.
pub struct Outgoing {
    peer: Arc<Peer>,
    clock: Arc<dyn Clock>,
    stream: StreamId,
}

/// How a stream is kept until the other side has it.
pub enum Keep {
    /// In memory: it ends with this process.
    InMemory(SendOptions),
    /// In a store with this number, which no other store has.
    InStore(u64, Arc<dyn Store>),
}

impl Outgoing {
    pub(super) fn open(peer: Arc<Peer>, clock: Arc<dyn Clock>, name: String, schema: SchemaRef, keep: Keep) -> Self {
        let stream = match keep {
            Keep::InMemory(options) => peer.session.lock().open(name, schema, options),
            Keep::InStore(number, store) => {
                let mut stores = peer.stores.lock();
                let stream = peer.session.lock().open_stored(name, schema, number);
                stores.insert(stream, store);
                stream
            }
        };
        peer.woken.notify_one();
        Self { peer, clock, stream }
    }

    /// The process that it is sent to.
    pub(super) fn peer(&self) -> Weak<Peer> {
        Arc::downgrade(&self.peer)
    }

    /// Whether there is room for another element. There is none before the other side has taken the stream.
    pub fn has_room(&self) -> bool {
        self.peer.session.lock().has_room(self.stream)
    }

    /// Sends an element. While there is no room it waits in memory all the same.
    ///
    /// # Errors
    /// Columns of a type that no stream has.
    pub fn push(&self, element: &Element) -> Result<(), WireError> {
        let pushed = self.peer.session.lock().push(self.stream, element, self.clock.steady_us());
        self.peer.woken.notify_one();
        pushed
    }

    /// Sends what was pushed without waiting for more.
    pub fn flush(&self) {
        self.peer.session.lock().flush(self.stream);
        self.peer.woken.notify_one();
    }

    /// What the other side is known to have taken, and whether that is all.
    pub fn taken(&self) -> (Taken, bool) {
        self.peer.session.lock().taken(self.stream)
    }

    /// How many attempts to connect have failed, and connections have ended, since this process dials the other one.
    pub fn attempts(&self) -> u64 {
        self.peer.state.lock().attempts
    }

    /// Whether there is a connection; the error says why not, and whether no further attempt helps before somebody
    /// changes something. `None` before the first attempt has an end.
    pub fn connection(&self) -> Option<Result<(), (String, bool)>> {
        let state = self.peer.state.lock();
        match state.is_connected {
            true => Some(Ok(())),
            false => state.problem.clone().map(|problem| Err((problem, state.lasts))),
        }
    }

    /// Why the other side does not take the stream, if that is so.
    pub fn refused(&self) -> Option<String> {
        self.peer.state.lock().refused.get(&self.stream).cloned()
    }

    /// Why nothing is sent at present, if that is so.
    pub fn problem(&self) -> Option<String> {
        let state = self.peer.state.lock();
        match state.is_connected {
            true => state.refused.get(&self.stream).cloned(),
            false => Some(state.problem.clone().unwrap_or_else(|| "it is not connected yet".into())),
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.peer.session.lock().close(self.stream);
        self.peer.stores.lock().remove(&self.stream);
        // The connection ends with the last of its streams.
        self.peer.woken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_without_a_word_of_tls_is_told_as_any_other() {
        let error = io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed connection without sending close_notify");
        assert_eq!(told(&error), ("the other side has closed the connection".into(), false));
    }
}
