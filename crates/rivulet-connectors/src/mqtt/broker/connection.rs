//! One client's connection: its CONNECT, then a reader and a writer in one task.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_dataflow::LogPosition;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::acknowledge::DedupWindow;
use super::super::buffer::ReadBuffer;
use super::super::codec::{self, Version};
use super::super::intake::{DRAIN_MAX, Intake, READ_BYTES_BEFORE_YIELD, Sender, Step};
use super::super::supervise::catch_panic;
use super::addresses::SessionKey;
use super::confirm::Answers;
use super::connect::{Refusal, read_login};
use super::core::Goodbye;
use super::memory::Share;
use super::outbox::Outbox;
use super::packets::{self, Close, Login};
use super::reading::ReadMemory;
use super::rights::Rights;
use super::seats::Seat;
use super::shared::Shared;
use super::turn::{ClientTurn, End};
use crate::rates::{Allowed, Rates, Turn};

/// The time limit for writing the last bytes to a client. It also limits delivering the client's last messages if
/// another connection needs its place.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);

/// The number of bytes read and ignored of a client that is disconnected.
const PASSED_OVER_MAX: usize = 8 << 20;

/// The memory a writer keeps between bursts.
const WRITE_BYTES_KEPT: usize = 64 << 10;

/// Serves a client until it disconnects or is disconnected.
/// `certificate` is the name in its certificate, if TLS has verified one.
///
/// Thousands of connections wait here at a time, so what is awaited for a moment, or at an end, is boxed.
pub(super) async fn serve(
    shared: &Shared,
    seat: &Seat,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    certificate: Option<&str>,
) {
    let Some((connection, buffer)) = Box::pin(log_in(shared, seat, stream, certificate)).await else { return };
    let (mut read_half, write_half) = tokio::io::split(stream);
    let mut reader = Reader::new(shared, &connection, buffer);
    let rates = reader.rates.clone();
    let mut writer = std::pin::pin!(write(shared, &connection, rates.as_deref(), write_half));
    let login_ended = match connection.rights.clone() {
        Some(rights) => rights.ended(),
        None => Box::pin(std::future::pending()),
    };
    let end = {
        let running = std::pin::pin!(async {
            tokio::select! {
                end = reader.run(&mut read_half, seat) => Some(end),
                () = &mut writer => None,
                () = login_ended => {
                    let text = "its login or one of its rights has ended";
                    Some(End::Close(Close::new(packets::Reason::NotAuthorized, text)))
                }
                () = acknowledge(shared, &connection) => None,
                () = connection.answers.serve() => None,
            }
        });
        catch_panic(running).await
    };
    let end = end.unwrap_or_else(|panic| {
        shared.supervisor.note("a client's connection", &panic);
        Some(End::Lost)
    });
    let goodbye = match &end {
        Some(End::Goodbye(goodbye)) => *goodbye,
        // Its rights have ended, and with them that to its will.
        Some(End::Close(Close { reason: packets::Reason::NotAuthorized, .. })) => {
            Goodbye { is_graceful: true, expiry_s: None }
        }
        _ => Goodbye { is_graceful: false, expiry_s: None },
    };
    let Connection { client_id, version, key, outbox, dedup_window, .. } = &connection;
    {
        // Nothing is awaited here: the lock is released at the end of the block.
        let mut core = shared.core.lock();
        if let Some(End::Close(close)) = &end {
            shared.note_close(&mut core, client_id, close);
            outbox.answer(|out| packets::disconnect(*version, close.reason, out));
        }
        core.disconnected(*key, outbox, goodbye);
    }
    // A will may have become due.
    shared.outbound.wake.notify_one();
    if end.is_none() {
        Box::pin(reader.drain(seat)).await;
    }
    // What it has read is not needed any more, and the farewell may take seconds.
    drop(reader);
    if let Some(dedup_window) = dedup_window {
        shared.dedup_windows.end(client_id.as_bytes(), dedup_window);
    }
    if let Some(End::Close(_)) = end
        && !seat.is_hurried()
    {
        outbox.close();
        let farewell = async {
            writer.await;
            pass_over(read_half).await;
        };
        let _ = Box::pin(tokio::time::timeout(LAST_WRITE_MAX, farewell)).await;
    }
}

/// A client that has logged in, and its session.
struct Connection {
    client_id: Box<str>,
    version: Version,
    marks_repeats: bool,
    /// How long the client has asked to keep its session, in seconds.
    expiry_s: u32,
    silence_max: Option<Duration>,
    rights: Rights,
    key: SessionKey,
    outbox: Arc<Outbox>,
    /// The share of its address.
    share: Arc<Share>,
    answers: Answers,
    dedup_window: Option<Arc<DedupWindow>>,
}

/// Reads the CONNECT of a client and begins its session. Also returns what was read behind it. `None` if the client was
/// refused, or has to give way.
async fn log_in(
    shared: &Shared,
    seat: &Seat,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    certificate: Option<&str>,
) -> Option<(Connection, ReadBuffer)> {
    let address = seat.address();
    let mut buffer = ReadBuffer::new(shared.options.read_buffer_bytes);
    let limit = Duration::from_millis(shared.options.connect_timeout_ms);
    let admitted = tokio::select! {
        admitted = tokio::time::timeout(limit, read_login(shared, (address, certificate), stream, &mut buffer)) => admitted,
        () = seat.gives_way() => return None,
    };
    let (login, rights) = match admitted {
        Ok(Ok(admitted)) => admitted,
        Ok(Err(Refusal { answer, counts })) => {
            if counts {
                shared.core.lock().counters.drops.protocol_errors += 1;
            }
            // The client may or may not read the reason; nothing depends on it.
            let _ = tokio::time::timeout(LAST_WRITE_MAX, async {
                stream.write_all(&answer).await?;
                stream.shutdown().await
            })
            .await;
            return None;
        }
        Err(_) => return None,
    };
    seat.logged_in();
    let Some(Begun { key, session_present, outbox, share, held }) = begin(shared, &login, address, &rights) else {
        shared.notices.say(|| {
            tracing::warn!(
                client_id = login.client_id, %address,
                "a client was refused: there is no room for it, or its tenant or its address has its share, in which \
                 a message counts for each session (mqtt.embedded.sessions_max, memory_bytes_max, \
                 tenant_share_percent, address_share_percent)"
            );
        });
        let mut answer = Vec::new();
        packets::refuse(login.version, packets::Refused::Busy, &mut answer);
        let _ = tokio::time::timeout(LAST_WRITE_MAX, stream.write_all(&answer)).await;
        return None;
    };
    let dedup_window = shared.router.log().map(|_| shared.dedup_windows.begin(login.client_id.as_bytes()));
    if let Some(dedup_window) = dedup_window.as_ref().filter(|_| login.wants_session() && !session_present) {
        dedup_window.lost_session();
    }
    let answers = Answers::new(outbox.clone(), shared.journal.get().cloned());
    if let Some((saved_at, packet_ids)) = held {
        answers.answer(saved_at, |out| packet_ids.iter().for_each(|id| codec::encode_pubrel(*id, true, out)));
    }
    let keep_alive_s = login.keep_alive_s(shared.options.limits.keep_alive_s_max);
    let connection = Connection {
        version: login.version,
        marks_repeats: login.marks_repeats,
        expiry_s: login.expiry_s,
        silence_max: (keep_alive_s > 0).then(|| Duration::from_millis(u64::from(keep_alive_s) * 1500)),
        client_id: login.client_id.into(),
        rights,
        key,
        outbox,
        share,
        answers,
        dedup_window,
    };
    Some((connection, buffer))
}

/// Reads and ignores bytes until the client has closed its side too. If the connection were closed before everything
/// was read, the client's system could discard what it was told.
async fn pass_over(mut socket: impl AsyncRead + Unpin) {
    let (mut bytes, mut passed) = (vec![0; 4 << 10], 0);
    while let Ok(count @ 1..) = socket.read(&mut bytes).await {
        passed += count;
        if passed > PASSED_OVER_MAX {
            return;
        }
    }
}

/// A session that has begun.
struct Begun {
    key: SessionKey,
    session_present: bool,
    outbox: Arc<Outbox>,
    /// The share of its client's address.
    share: Arc<Share>,
    /// The packet identifiers to release when the journal is durable up to the position.
    held: Option<(LogPosition, Vec<u16>)>,
}

/// Begins a session.
fn begin(shared: &Shared, login: &Login, address: IpAddr, rights: &Rights) -> Option<Begun> {
    let (mut is_present, mut held) = (false, None);
    let mut request = login.request(address);
    if let Some(will) = &mut request.will {
        will.rights.clone_from(rights);
    }
    let mut core = shared.core.lock();
    core.keep_permitted(&login.client_id, rights);
    let share = core.share(address, &login.client_id);
    let outbox = Arc::new(Outbox::new(shared.options.connection_bytes_max, share));
    let key = core.connect(
        request,
        &outbox,
        |version, out| packets::disconnect(version, packets::Reason::SessionTakenOver, out),
        |session_present, expiry_s, out| {
            is_present = session_present;
            packets::accept(login, session_present, expiry_s, &shared.options, out);
        },
        |saved_at, packet_ids| held = Some((saved_at, packet_ids)),
    );
    // Now there is one, also for the first session of an address.
    let share = core.share(address, &login.client_id);
    drop(core);
    shared.outbound.wake.notify_one();
    key.map(|key| Begun { key, session_present: is_present, outbox, share, held })
}

struct Reader<'a> {
    shared: &'a Shared,
    connection: &'a Connection,
    intake: Intake<'a>,
    /// What the client may send, together with others.
    rates: Option<Arc<Rates>>,
    memory: ReadMemory,
}

impl<'a> Reader<'a> {
    fn new(shared: &'a Shared, connection: &'a Connection, buffer: ReadBuffer) -> Self {
        let sender = Sender {
            client: connection.client_id.as_bytes(),
            version: connection.version,
            packet_bytes_max: shared.options.packet_bytes_max,
            topic_aliases_max: shared.options.limits.topic_aliases_max,
            // A client's messages never wait for themselves; only the engine's own results can.
            deadlock_after: Duration::MAX,
            router: &shared.router,
            clock: &*shared.clock,
        };
        Self {
            shared,
            connection,
            intake: Intake::new(sender, buffer, connection.dedup_window.clone()),
            rates: connection.rights.as_ref().and_then(|rights| rights.rates()),
            memory: ReadMemory::new(connection.share.clone(), shared.options.read_buffer_bytes),
        }
    }

    /// Reads until the connection is over, or has to give way to another one.
    async fn run(&mut self, socket: impl AsyncRead + Unpin, seat: &Seat) -> End {
        tokio::select! {
            end = self.run_until_over(socket) => return end,
            () = seat.gives_way() => {}
        }
        Box::pin(self.drain(seat)).await;
        End::Close(Close::new(
            packets::Reason::QuotaExceeded,
            "it gives way: there are as many connections as allowed, and its address has the most",
        ))
    }

    async fn run_until_over(&mut self, mut socket: impl AsyncRead + Unpin) -> End {
        let mut read_bytes = 0;
        Box::pin(self.intake.take_over()).await;
        loop {
            match self.process_in_turn().await {
                Ok(Step::NeedsMore) => {
                    if let Err(close) = self.memory.count(&mut self.intake) {
                        return End::Close(close);
                    }
                }
                Err(end) => return end,
                Ok(Step::Full) => {
                    // Nothing is read meanwhile, so TCP slows the client down.
                    self.wait_for_room().await;
                    continue;
                }
            }
            while self.connection.outbox.is_overfull() {
                self.connection.outbox.emptied.notified().await;
            }
            if read_bytes >= READ_BYTES_BEFORE_YIELD {
                read_bytes = 0;
                tokio::task::yield_now().await;
            }
            let read = match self.connection.silence_max {
                None => self.intake.read(&mut socket).await,
                Some(limit) => match tokio::time::timeout(limit, self.intake.read(&mut socket)).await {
                    Ok(read) => read,
                    Err(_) => {
                        return End::Close(Close::new(
                            packets::Reason::KeepAliveTimeout,
                            "it has been silent for too long",
                        ));
                    }
                },
            };
            match read {
                Ok(0) | Err(_) => return End::Lost,
                Ok(bytes) => {
                    read_bytes += bytes;
                    self.shared.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
                    self.rates.iter().for_each(|rates| rates.bytes.charge(bytes as u64));
                }
            }
        }
    }

    /// Processes what was read, as far as the rates allow. While a rate is reached, the connection waits here: nothing
    /// is read, so TCP slows the client down.
    async fn process_in_turn(&mut self) -> Result<Step, End> {
        let Some(rates) = self.rates.clone() else { return Ok(self.process(Allowed::ALL)?.0) };
        loop {
            let turn = match rates.may_read() {
                true => None,
                false => Some(Box::pin(rates.turn_to_read()).await),
            };
            if turn.is_some() {
                self.intake.waited();
            }
            let (step, is_spent) = self.process(rates.allowed())?;
            if step == Step::NeedsMore || !is_spent {
                return Ok(step);
            }
        }
    }

    /// Delivers the last messages of a connection that is closed from this side; they may wait for room. If another
    /// connection needs the place, there is less time for that. Messages that cannot be delivered, and that the client
    /// does not send again, count as dropped.
    async fn drain(&mut self, seat: &Seat) {
        let limit = async {
            tokio::select! {
                () = tokio::time::sleep(DRAIN_MAX) => {}
                () = seat.gives_way() => {
                    let limit = if seat.is_hurried() { Duration::ZERO } else { LAST_WRITE_MAX };
                    tokio::time::sleep(limit).await;
                }
            }
        };
        tokio::select! {
            // Even in a hurry, messages for which there is room are delivered.
            biased;
            () = self.process_rest() => {}
            () = limit => {}
        }
        self.shared.core.lock().counters.drops.unread_messages += self.intake.pass_over_rest();
    }

    async fn process_rest(&mut self) {
        self.intake.take_over().await;
        // What was read is not held back any more.
        while let Ok((Step::Full, _)) = self.process(Allowed::ALL)
            && !self.shared.router.is_closed()
        {
            self.wait_for_room().await;
        }
    }

    async fn wait_for_room(&mut self) {
        tokio::time::sleep(self.intake.next_wait()).await;
        self.intake.waited();
    }

    #[cold]
    fn note_too_large(&self, topic: &str, packet_bytes: usize) {
        let (client_id, packet_bytes_max) = (&self.connection.client_id, self.shared.options.packet_bytes_max);
        self.shared.notices.say(|| {
            tracing::warn!(
                client_id, %topic, packet_bytes, packet_bytes_max,
                "a client's message was refused: it is larger than mqtt.embedded.message_bytes_max allows"
            );
        });
    }

    /// Processes whole packets until none is left, one has to wait, or the connection is over. Returns also whether the
    /// client has sent as much as is `allowed`.
    fn process(&mut self, allowed: Allowed) -> Result<(Step, bool), End> {
        let Connection { answers, outbox, key, .. } = self.connection;
        if answers.is_full() {
            return Ok((Step::Full, false));
        }
        let mut core = self.shared.core.lock();
        core.begin_turn();
        // Another connection may have taken the session over. Messages that were read still count, but the other
        // packets no longer affect the session.
        let is_owner = core.owns(*key, outbox);
        let mut turn = ClientTurn {
            core,
            is_owner,
            key: *key,
            version: self.connection.version,
            marks_repeats: self.connection.marks_repeats,
            answers,
            expiry_s: self.connection.expiry_s,
            rights: &self.connection.rights,
            dedup_window: self.connection.dedup_window.as_deref(),
            messages: 0,
            logged: (0, 0),
            too_large: None,
            allowed,
        };
        let step = self.intake.process(&mut turn);
        let (messages, (logged_to, logged_bytes), is_spent) = (turn.messages, turn.logged, turn.is_spent());
        let too_large = turn.too_large.take();
        drop(turn);
        self.shared.options.linger.note(messages);
        if let Some((topic, packet_bytes)) = too_large {
            self.note_too_large(&topic, packet_bytes);
        }
        if let Some(rates) = &self.rates {
            rates.events.charge(messages);
            if logged_bytes > 0 {
                rates.logged(logged_to, logged_bytes);
            }
        }
        answers.acknowledge(self.intake.acknowledgements());
        Ok((step?, is_spent))
    }
}

/// Acknowledges the messages that the log has on disk, for as long as it is polled.
async fn acknowledge(shared: &Shared, connection: &Connection) {
    let (Some(dedup_window), Some(log)) = (&connection.dedup_window, shared.router.log()) else {
        return std::future::pending().await;
    };
    // Boxed once something waits: most clients send nothing to the log.
    if !dedup_window.has_waiting() {
        dedup_window.filled().await;
    }
    Box::pin(dedup_window.serve(&**log, |bytes| connection.answers.acknowledge(bytes))).await;
}

/// Writes the content of the outbox, until it is closed or the connection is lost.
async fn write(shared: &Shared, connection: &Connection, rates: Option<&Rates>, mut socket: impl AsyncWrite + Unpin) {
    if write_until_closed(shared, connection, rates, &mut socket).await.is_ok() {
        return;
    }
    // If the client accepts nothing any more, its own packets may still be on their way: the reader decides when the
    // connection is over.
    let mut bytes = Vec::new();
    while !connection.outbox.take(&mut bytes) {
        bytes.clear();
        connection.outbox.filled.notified().await;
    }
}

/// Waits in line until the rate allows to write, or the outbox is closed: then its last bytes wait no longer.
async fn turn_to_write<'r>(rates: &'r Rates, outbox: &Outbox) -> Option<Turn<'r>> {
    tokio::select! {
        turn = rates.turn_to_write() => Some(turn),
        () = outbox.closed.notified() => {
            // For who writes.
            outbox.closed.notify_one();
            None
        }
    }
}

async fn write_until_closed(
    shared: &Shared,
    connection: &Connection,
    rates: Option<&Rates>,
    socket: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (outbox, mut bytes) = (&connection.outbox, Vec::new());
    loop {
        // What waits for a turn is in the outbox and the session, within their bounds.
        let turn = match rates.filter(|rates| !rates.may_write()) {
            Some(rates) => Box::pin(turn_to_write(rates, outbox)).await,
            None => None,
        };
        let is_closed = outbox.take(&mut bytes);
        rates.iter().for_each(|rates| rates.bytes_out.charge(bytes.len() as u64));
        drop(turn);
        let goes_on =
            outbox.is_starved.swap(false, Ordering::AcqRel) && shared.core.lock().pump(connection.key, outbox);
        if goes_on {
            tokio::task::yield_now().await;
        }
        if bytes.is_empty() {
            if is_closed {
                return Box::pin(tokio::time::timeout(LAST_WRITE_MAX, socket.shutdown())).await?;
            }
            if goes_on {
                continue;
            }
            outbox.filled.notified().await;
            continue;
        }
        {
            let mut writing = std::pin::pin!(async {
                socket.write_all(&bytes).await?;
                // TLS may still hold bytes back.
                socket.flush().await
            });
            tokio::select! {
                written = &mut writing => written?,
                () = outbox.closed.notified() => Box::pin(tokio::time::timeout(LAST_WRITE_MAX, writing)).await??,
            }
        }
        shared.bytes_out.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        bytes.clear();
        let before = bytes.capacity();
        bytes.shrink_to(WRITE_BYTES_KEPT);
        outbox.freed(before - bytes.capacity());
    }
}
