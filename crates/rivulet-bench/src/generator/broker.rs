//! The broker's side of MQTT, as far as an engine under test needs it: sessions of 3.1.1 and 5 and subscriptions;
//! results are received and counted. There are no retained messages and no stored sessions. Events are delivered at QoS
//! 0, or at QoS 1 as fast as acknowledgements come.
//!
//! One thread listens, and one reads from each connection. The reader (with answers) and the sender (with events) write
//! whole packets to a connection, under the connection's lock.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rivulet_connectors::mqtt::codec::{
    CodecError, Frame, PING_RESPONSE, PacketKind, Publish, Qos, Version, connect_level, decode_v3, decode_v5,
    encode_puback, encode_v3, encode_v5, split_frame,
};
use rmqtt_codec::{types::QoS, v3, v5};

use super::filters::Filters;
use super::results::Results;
use crate::sender::{CHUNK_EVENTS, OUTLETS_MAX, Outlets, write_patiently};

/// The largest packet taken from an engine, in bytes.
const PACKET_BYTES_MAX: usize = 1 << 20;
/// The kind of packet that every connection begins with.
const CONNECT: u8 = 1;
/// How much is read from a connection at a time, in bytes.
const READ_BYTES: usize = 64 << 10;
/// How long a write blocks before the writer checks whether it has to stop.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

/// How long the sender sleeps while a client has acknowledged too little.
const ACKNOWLEDGEMENT_WAIT: Duration = Duration::from_micros(100);
/// A client that accepts fewer unacknowledged messages than are written at a time is not served at QoS 1.
const RECEIVE_MIN: u16 = CHUNK_EVENTS as u16;

/// A running broker; dropping it closes all connections and ends its threads.
pub(super) struct Broker {
    address: SocketAddr,
    state: Arc<State>,
    listener: Option<JoinHandle<()>>,
}

/// What the threads share.
struct State {
    /// The quality of service at which events are delivered.
    qos: Qos,
    /// At most [`OUTLETS_MAX`] connections; the next connection takes the index of one that has gone.
    sessions: Mutex<Vec<Option<Arc<Session>>>>,
    /// Changes whenever connections or subscriptions do.
    version: AtomicU64,
    results: Mutex<Results>,
    is_closing: AtomicBool,
}

struct Session {
    version: Version,
    /// For writing, whole packets only.
    socket: Mutex<TcpStream>,
    /// The same socket, to close it without waiting for a writer.
    closer: TcpStream,
    filters: Mutex<Filters>,
    /// How many messages of QoS 1 it takes before it has acknowledged the first.
    receive_max: u16,
    /// Messages of QoS 1 that were given an identifier, and that it has acknowledged.
    identified: AtomicU64,
    acknowledged: AtomicU64,
    is_over: AtomicBool,
}

impl Session {
    /// Waits until this number of identified messages may be written.
    fn wait_for_room(&self, stop: &AtomicBool) -> io::Result<()> {
        let identified = self.identified.load(Ordering::Relaxed);
        while identified.saturating_sub(self.acknowledged.load(Ordering::Acquire)) > u64::from(self.receive_max) {
            if stop.load(Ordering::Relaxed) || self.is_over.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(ACKNOWLEDGEMENT_WAIT);
        }
        Ok(())
    }
}

impl Broker {
    /// Listens on `address` (port 0 for any), and delivers at a quality of service of at most 1.
    pub(super) fn listen(address: SocketAddr, qos: Qos) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            qos,
            sessions: Mutex::default(),
            version: AtomicU64::default(),
            results: Mutex::default(),
            is_closing: AtomicBool::default(),
        });
        let for_thread = Arc::clone(&state);
        let listener = thread::Builder::new().name("generator-listen".into()).spawn(move || {
            accept(&listener, &for_thread);
        })?;
        Ok(Self { address, state, listener: Some(listener) })
    }

    /// The address where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many clients are connected.
    pub(super) fn connections(&self) -> usize {
        lock(&self.state.sessions).iter().flatten().count()
    }

    /// How many filters all clients have subscribed to.
    pub(super) fn filters(&self) -> usize {
        lock(&self.state.sessions).iter().flatten().map(|session| lock(&session.filters).len()).sum()
    }

    /// Changes whenever connections or subscriptions do.
    pub(super) fn version(&self) -> u64 {
        self.state.version.load(Ordering::Acquire)
    }

    /// What was received since [`Broker::reset_results`].
    pub(super) fn results(&self) -> Results {
        lock(&self.state.results).clone()
    }

    /// Counts results from zero again.
    pub(super) fn reset_results(&self) {
        *lock(&self.state.results) = Results::default();
    }

    /// The connections as a sender sees them, for `queries` queries.
    pub(super) fn outlets(&self, queries: u32) -> Subscribers {
        let (state, version) = (Arc::clone(&self.state), None);
        Subscribers { state, version, sessions: Vec::new(), routes: vec![UNKNOWN; queries as usize] }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.state.is_closing.store(true, Ordering::SeqCst);
        for session in lock(&self.state.sessions).iter().flatten() {
            let _ = session.closer.shutdown(Shutdown::Both);
        }
        // Wakes the listener from accept.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding a lock of the generator")
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    let mut readers: Vec<JoinHandle<()>> = Vec::new();
    for socket in listener.incoming() {
        if state.is_closing.load(Ordering::SeqCst) {
            break;
        }
        readers.retain(|reader| !reader.is_finished());
        // Clients that say nothing are bounded like those that do; twice, because a client may reconnect before its
        // old connection is seen to be gone.
        let Ok(socket) = socket else { continue };
        if readers.len() >= 2 * OUTLETS_MAX {
            continue;
        }
        let state = Arc::clone(state);
        let reader = thread::Builder::new().name("generator-read".into()).spawn(move || {
            // A connection that breaks the protocol or the network is closed, and its client may come again.
            let _ = serve(socket, &state);
        });
        readers.extend(reader);
    }
    for session in lock(&state.sessions).iter().flatten() {
        let _ = session.closer.shutdown(Shutdown::Both);
    }
    for reader in readers {
        let _ = reader.join();
    }
}

/// Why a connection ends.
#[derive(Debug)]
enum End {
    Closed,
    Failed,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Failed
    }
}

impl From<CodecError> for End {
    fn from(_: CodecError) -> Self {
        Self::Failed
    }
}

/// Serves one connection from CONNECT to its end.
fn serve(mut socket: TcpStream, state: &Arc<State>) -> Result<(), End> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
    // A client must not keep a thread without connecting.
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut buffer = vec![0; READ_BYTES];
    let (mut start, mut end) = (0, 0);
    let mut session: Option<Seat> = None;
    let mut answers = Vec::new();
    loop {
        if session.is_none() && end > start && buffer[start] >> 4 != CONNECT {
            return Err(End::Failed);
        }
        while let Some(frame) = split_frame(&buffer[start..end], PACKET_BYTES_MAX)? {
            match &session {
                None => session = Some(connect(&frame, &socket, state, &mut answers)?),
                Some(seat) => {
                    if let Err(end) = answer(&frame, &seat.session, state, &mut answers) {
                        send(&seat.session, &mut answers, state)?;
                        return Err(end);
                    }
                }
            }
            start += frame.whole.len();
        }
        if let Some(seat) = &session {
            send(&seat.session, &mut answers, state)?;
            socket.set_read_timeout(None)?;
        }
        buffer.copy_within(start..end, 0);
        (start, end) = (0, end - start);
        if end == buffer.len() {
            // A packet larger than the buffer; its size was checked against the limit.
            buffer.resize(buffer.len() * 2, 0);
        }
        match socket.read(&mut buffer[end..])? {
            0 => return Ok(()),
            read => end += read,
        }
    }
}

fn send(session: &Session, answers: &mut Vec<u8>, state: &State) -> io::Result<()> {
    if !answers.is_empty() {
        write_patiently(&mut *lock(&session.socket), answers, &state.is_closing)?;
        answers.clear();
    }
    Ok(())
}

/// A session in its place among the sessions, which it leaves when its connection ends.
struct Seat {
    session: Arc<Session>,
    index: usize,
    state: Arc<State>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.state.sessions)[self.index] = None;
        self.session.is_over.store(true, Ordering::Relaxed);
        self.state.version.fetch_add(1, Ordering::AcqRel);
        let _ = self.session.closer.shutdown(Shutdown::Both);
    }
}

/// Reads a CONNECT and answers it.
fn connect(frame: &Frame<'_>, socket: &TcpStream, state: &Arc<State>, answers: &mut Vec<u8>) -> Result<Seat, End> {
    if frame.kind() != PacketKind::Connect {
        return Err(End::Failed);
    }
    let version = match connect_level(frame.body)? {
        3 | 4 => Version::V3,
        5 => Version::V5,
        _ => return Err(End::Failed),
    };
    let mut receive_max = u16::MAX;
    match version {
        Version::V3 => {
            let v3::Packet::Connect(_) = decode_v3(frame)? else { return Err(End::Failed) };
            let return_code = v3::ConnectAckReason::ConnectionAccepted;
            encode_v3(v3::Packet::ConnectAck(v3::ConnectAck { return_code, session_present: false }), answers)?;
        }
        Version::V5 => {
            let v5::Packet::Connect(connect) = decode_v5(frame)? else { return Err(End::Failed) };
            receive_max = connect.receive_max.map_or(u16::MAX, NonZeroU16::get);
            if state.qos == Qos::AtLeastOnce && receive_max < RECEIVE_MIN {
                return Err(End::Failed);
            }
            let acknowledgement = v5::ConnectAck {
                max_qos: QoS::AtLeastOnce,
                max_packet_size: Some(PACKET_BYTES_MAX as u32),
                assigned_client_id: connect.client_id.is_empty().then(|| "generated".into()),
                retain_available: false,
                subscription_identifiers_available: false,
                shared_subscription_available: false,
                ..v5::ConnectAck::default()
            };
            encode_v5(v5::Packet::ConnectAck(Box::new(acknowledgement)), answers)?;
        }
    }
    let session = Arc::new(Session {
        version,
        socket: Mutex::new(socket.try_clone()?),
        closer: socket.try_clone()?,
        filters: Mutex::default(),
        receive_max,
        identified: AtomicU64::new(0),
        acknowledged: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let mut sessions = lock(&state.sessions);
    let index = match sessions.iter().position(Option::is_none) {
        Some(index) => index,
        None if sessions.len() < OUTLETS_MAX => {
            sessions.push(None);
            sessions.len() - 1
        }
        None => return Err(End::Failed),
    };
    sessions[index] = Some(Arc::clone(&session));
    drop(sessions);
    if state.is_closing.load(Ordering::SeqCst) {
        return Err(End::Closed);
    }
    state.version.fetch_add(1, Ordering::AcqRel);
    Ok(Seat { session, index, state: Arc::clone(state) })
}

/// Reads any later packet and appends the answer.
fn answer(frame: &Frame<'_>, session: &Session, state: &State, answers: &mut Vec<u8>) -> Result<(), End> {
    match frame.kind() {
        PacketKind::Publish => {
            let publish = Publish::decode(session.version, frame.first_byte, frame.body)?;
            lock(&state.results).take(publish.payload);
            match publish.qos {
                Qos::AtMostOnce => {}
                Qos::AtLeastOnce => encode_puback(publish.packet_id, 0, answers),
                Qos::ExactlyOnce => return Err(End::Failed),
            }
            Ok(())
        }
        PacketKind::PubAck => {
            session.acknowledged.fetch_add(1, Ordering::Release);
            Ok(())
        }
        PacketKind::Connect => Err(End::Failed),
        PacketKind::Other => match session.version {
            Version::V3 => answer_v3(decode_v3(frame)?, session, state, answers),
            Version::V5 => answer_v5(decode_v5(frame)?, session, state, answers),
        },
    }
}

fn answer_v3(packet: v3::Packet, session: &Session, state: &State, answers: &mut Vec<u8>) -> Result<(), End> {
    match packet {
        v3::Packet::Subscribe { packet_id, topic_filters } => {
            let status = change(Filters::add, topic_filters.iter().map(|(filter, _)| filter.as_ref()), session, state)
                .map(|is_taken| match is_taken {
                    true if state.qos == Qos::AtMostOnce => v3::SubscribeReturnCode::Success(QoS::AtMostOnce),
                    true => v3::SubscribeReturnCode::Success(QoS::AtLeastOnce),
                    false => v3::SubscribeReturnCode::Failure,
                })
                .collect();
            encode_v3(v3::Packet::SubscribeAck { packet_id, status }, answers)?;
        }
        v3::Packet::Unsubscribe { packet_id, topic_filters } => {
            change(Filters::remove, topic_filters.iter().map(AsRef::as_ref), session, state).for_each(drop);
            encode_v3(v3::Packet::UnsubscribeAck { packet_id }, answers)?;
        }
        v3::Packet::PingRequest => answers.extend_from_slice(&PING_RESPONSE),
        v3::Packet::Disconnect => return Err(End::Closed),
        _ => return Err(End::Failed),
    }
    Ok(())
}

fn answer_v5(packet: v5::Packet, session: &Session, state: &State, answers: &mut Vec<u8>) -> Result<(), End> {
    match packet {
        v5::Packet::Subscribe(v5::Subscribe { packet_id, topic_filters, .. }) => {
            let status = change(Filters::add, topic_filters.iter().map(|(filter, _)| filter.as_ref()), session, state)
                .zip(&topic_filters)
                .map(|(is_taken, (filter, _))| match is_taken {
                    true if state.qos == Qos::AtMostOnce => v5::SubscribeAckReason::GrantedQos0,
                    true => v5::SubscribeAckReason::GrantedQos1,
                    false if filter.starts_with("$share/") => v5::SubscribeAckReason::SharedSubscriptionNotSupported,
                    false => v5::SubscribeAckReason::TopicFilterInvalid,
                })
                .collect();
            let packet = v5::SubscribeAck { packet_id, properties: Vec::new(), reason_string: None, status };
            encode_v5(v5::Packet::SubscribeAck(packet), answers)?;
        }
        v5::Packet::Unsubscribe(v5::Unsubscribe { packet_id, topic_filters, .. }) => {
            let status = change(Filters::remove, topic_filters.iter().map(AsRef::as_ref), session, state)
                .map(|was_there| match was_there {
                    true => v5::UnsubscribeAckReason::Success,
                    false => v5::UnsubscribeAckReason::NoSubscriptionExisted,
                })
                .collect();
            let packet = v5::UnsubscribeAck { packet_id, properties: Vec::new(), reason_string: None, status };
            encode_v5(v5::Packet::UnsubscribeAck(packet), answers)?;
        }
        v5::Packet::PingRequest => answers.extend_from_slice(&PING_RESPONSE),
        v5::Packet::Disconnect(_) => return Err(End::Closed),
        _ => return Err(End::Failed),
    }
    Ok(())
}

/// Adds or removes filters; returns for each whether it was accepted, or existed.
fn change<'a>(
    how: fn(&mut Filters, &str) -> bool,
    filters: impl Iterator<Item = &'a str>,
    session: &Session,
    state: &State,
) -> impl Iterator<Item = bool> {
    let mut subscribed = lock(&session.filters);
    let changed: Vec<bool> = filters.map(|filter| how(&mut subscribed, filter)).collect();
    drop(subscribed);
    state.version.fetch_add(1, Ordering::AcqRel);
    changed.into_iter()
}

/// The route of a query that has not been looked up since subscriptions changed: no set of outlets has this bit.
const UNKNOWN: u16 = 1 << OUTLETS_MAX;

/// The connections as outlets of a sender: an event goes to every connection that has subscribed to its topic.
pub(super) struct Subscribers {
    state: Arc<State>,
    version: Option<u64>,
    sessions: Vec<Option<Arc<Session>>>,
    /// For each query, the outlets that have subscribed to it; an outlet that has one of its topics has both.
    routes: Vec<u16>,
}

impl Subscribers {
    /// The outlets that want a topic.
    pub(super) fn look_up(&self, topic: &[u8]) -> u16 {
        let mut targets = 0;
        for (index, session) in self.sessions.iter().enumerate() {
            if session.as_ref().is_some_and(|session| lock(&session.filters).matches(topic)) {
                targets |= 1 << index;
            }
        }
        targets
    }
}

impl Outlets for Subscribers {
    fn refresh(&mut self) {
        let version = self.state.version.load(Ordering::Acquire);
        if self.version != Some(version) {
            self.version = Some(version);
            self.sessions.clone_from(&lock(&self.state.sessions));
            self.routes.fill(UNKNOWN);
        }
    }

    #[inline]
    fn targets(&mut self, query: u32, topic: &[u8]) -> u16 {
        let route = self.routes[query as usize];
        if route != UNKNOWN {
            return route;
        }
        let route = self.look_up(topic);
        self.routes[query as usize] = route;
        route
    }

    fn version(&self, outlet: usize) -> Version {
        self.sessions[outlet].as_ref().map_or(Version::V3, |session| session.version)
    }

    #[inline]
    fn next_packet_id(&mut self, outlet: usize) -> Option<NonZeroU16> {
        if self.state.qos == Qos::AtMostOnce {
            return None;
        }
        let session = self.sessions[outlet].as_ref()?;
        // One that comes again was acknowledged long before: no more are under way than there are identifiers.
        let number = session.identified.fetch_add(1, Ordering::Relaxed);
        NonZeroU16::new((number % u64::from(u16::MAX)) as u16 + 1)
    }

    fn write(&mut self, outlet: usize, packets: &[u8], stop: &AtomicBool) -> io::Result<()> {
        let session = self.sessions[outlet].as_ref().ok_or(io::ErrorKind::NotConnected)?;
        session.wait_for_room(stop)?;
        let written = write_patiently(&mut *lock(&session.socket), packets, stop);
        if written.is_err() {
            // A packet may have been cut: nothing more can be said on this connection.
            let _ = session.closer.shutdown(Shutdown::Both);
        }
        written
    }
}
