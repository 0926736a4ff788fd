//! Works an open connection: one future reads and routes, one writes, one watches for silence, all in one task.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rmqtt_codec::{v3, v5};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::super::acknowledge::DedupWindow;
use super::super::buffer::ReadBuffer;
use super::super::codec::{self, CodecError, PacketKind, Publish, Qos, Version};
use super::super::intake::{DRAIN_MAX, Intake, READ_BYTES_BEFORE_YIELD, Sender, Step};
use super::super::publisher::PublishBatch;
use super::connect::{Connection, ConnectionError, Terms};
use super::shared::{Count, Shared};
use super::turn::{BrokerTurn, READ_AHEAD_BYTES_MAX, note_acknowledged};

/// The bytes gathered for one write, exceeded by one message at most.
const WRITE_BYTES_AT_ONCE: usize = 256 << 10;

/// The most bytes of acknowledgements that wait for the writer before reading pauses.
const ACKNOWLEDGEMENT_BYTES_MAX: usize = 1 << 20;

/// The rest of a batch of results, kept between connections.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    batch: PublishBatch,
    next: usize,
    /// The number of the first message of the batch.
    first: u64,
}

impl Outgoing {
    /// The number of the next message.
    fn number(&self) -> u64 {
        self.first + self.next as u64
    }
}

/// Why a connection has ended.
pub(super) enum End {
    /// The client was asked to stop, and everything has been sent.
    Stopped,
    /// An error occurred.
    Failed(ConnectionError),
}

/// Works a connection until it ends.
pub(super) async fn run(shared: &Shared, connection: Connection, outgoing: &mut Outgoing) -> End {
    let Connection { stream, buffer, read_bytes, terms } = connection;
    shared.counters.add(Count::BytesIn, read_bytes as u64);
    let (read_half, write_half) = tokio::io::split(stream);
    let life = Life::default();
    let dedup_window = shared.router.log().map(|_| shared.dedup_windows.begin_next(b""));
    if let Some(dedup_window) = dedup_window.as_ref().filter(|_| !terms.session_present) {
        // The broker assigns packet identifiers anew.
        dedup_window.forget_earlier();
    }
    let mut reader = Reader::new(shared, buffer, &life, dedup_window.clone());
    let mut writer = Writer { shared, terms, outgoing, bytes: Vec::new(), messages_unsent: 0 };
    let end = tokio::select! {
        error = reader.run(read_half) => End::Failed(error),
        end = writer.run(write_half) => end,
        silent_s = life.watch(terms.keep_alive_s) => End::Failed(ConnectionError::Silent(silent_s)),
        end = acknowledge(shared, dedup_window.as_deref()) => end,
    };
    if let End::Failed(_) = end {
        shared.counters.add(Count::LostMessages, writer.messages_unsent);
        reader.drain().await;
    }
    end
}

/// Acknowledges the messages that the log has on disk, for as long as it is polled.
async fn acknowledge(shared: &Shared, dedup_window: Option<&DedupWindow>) -> End {
    if let (Some(dedup_window), Some(log)) = (dedup_window, shared.router.log()) {
        let send = |bytes: &mut Vec<u8>| {
            shared.acknowledgements.lock().append(bytes);
            shared.outbound.wake.notify_one();
        };
        dedup_window.serve(&**log, send).await;
    }
    std::future::pending().await
}

/// Watches for silence of the broker.
struct Life {
    start: Instant,
    /// When bytes were last received, in milliseconds since `start`.
    received_ms: AtomicU64,
    /// Whether reading pauses because an inbox is full; then silence means nothing.
    is_paused: AtomicBool,
}

impl Default for Life {
    fn default() -> Self {
        Self { start: Instant::now(), received_ms: AtomicU64::new(0), is_paused: AtomicBool::new(false) }
    }
}

impl Life {
    fn received(&self) {
        self.received_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
        self.received();
    }

    /// Returns when the broker has been silent for one and a half intervals, with that time in seconds.
    async fn watch(&self, keep_alive_s: u16) -> u64 {
        if keep_alive_s == 0 {
            return std::future::pending().await;
        }
        let limit_ms = u64::from(keep_alive_s) * 1500;
        loop {
            tokio::time::sleep(Duration::from_millis(limit_ms / 3)).await;
            let silent_ms =
                (self.start.elapsed().as_millis() as u64).saturating_sub(self.received_ms.load(Ordering::Relaxed));
            if silent_ms >= limit_ms && !self.is_paused.load(Ordering::Relaxed) {
                return silent_ms / 1000;
            }
        }
    }
}

struct Reader<'a> {
    shared: &'a Shared,
    life: &'a Life,
    intake: Intake<'a>,
    /// Packet identifiers the broker has acknowledged.
    acknowledged: Vec<u16>,
}

impl<'a> Reader<'a> {
    fn new(shared: &'a Shared, buffer: ReadBuffer, life: &'a Life, dedup_window: Option<Arc<DedupWindow>>) -> Self {
        let sender = Sender {
            client: b"",
            version: shared.options.version,
            packet_bytes_max: shared.options.packet_bytes_max,
            topic_aliases_max: 0,
            deadlock_after: Duration::from_millis(shared.options.deadlock_ms),
            router: &shared.router,
            clock: &*shared.clock,
        };
        Self { shared, life, intake: Intake::new(sender, buffer, dedup_window), acknowledged: Vec::new() }
    }

    async fn run(&mut self, mut socket: impl AsyncRead + Send + Unpin) -> ConnectionError {
        let mut read_bytes = 0;
        loop {
            if let Err(error) = self.process_all(Some(&mut socket)).await {
                return error;
            }
            if read_bytes >= READ_BYTES_BEFORE_YIELD {
                read_bytes = 0;
                tokio::task::yield_now().await;
            }
            match self.intake.read(&mut socket).await {
                Ok(0) => return ConnectionError::Closed,
                Ok(bytes) => {
                    read_bytes += bytes;
                    self.shared.counters.add(Count::BytesIn, bytes as u64);
                }
                Err(error) => return error.into(),
            }
            self.life.received();
        }
    }

    /// Processes every whole packet that was read, waiting for full inboxes. If the log waits for acknowledgements,
    /// reads ahead from the socket, if there is one, to find them.
    async fn process_all(
        &mut self,
        mut socket: Option<&mut (dyn AsyncRead + Send + Unpin)>,
    ) -> Result<(), ConnectionError> {
        while self.process()? == Step::Full || self.writer_is_behind() {
            self.life.pause(true);
            let wait = self.intake.next_wait();
            match socket.as_mut().filter(|_| self.waits_for_acknowledgements()) {
                None => tokio::time::sleep(wait).await,
                Some(ahead) => match tokio::time::timeout(wait, self.intake.read(ahead)).await {
                    Ok(Ok(bytes)) if bytes > 0 => self.shared.counters.add(Count::BytesIn, bytes as u64),
                    // The bytes that have arrived are processed first; the end of the connection is noticed after that.
                    Ok(_) => socket = None,
                    Err(_) => {}
                },
            }
            self.search();
            self.life.pause(false);
            self.intake.waited();
        }
        Ok(())
    }

    /// Whether the log gets room only when results have left whose acknowledgements may come next.
    fn waits_for_acknowledgements(&self) -> bool {
        self.intake.waits_for_log()
            && self.intake.bytes_behind() < READ_AHEAD_BYTES_MAX
            && !self.shared.in_flight.lock().is_empty()
    }

    /// Takes acknowledgements that came behind an event for which the log has no room.
    fn search(&mut self) {
        if !self.intake.waits_for_log() {
            return;
        }
        let (shared, acknowledged) = (self.shared, &mut self.acknowledged);
        self.intake.search(|frame| {
            frame.kind() != PacketKind::PubAck || note_acknowledged(shared, frame, acknowledged).is_ok()
        });
        self.hand_over();
    }

    fn writer_is_behind(&self) -> bool {
        self.shared.acknowledgements.lock().len() > ACKNOWLEDGEMENT_BYTES_MAX
    }

    /// Processes what was read after the connection has ended: the queries still get these events.
    async fn drain(&mut self) {
        // An error in these bytes was reported already, or does not matter any more.
        let _ = tokio::time::timeout(DRAIN_MAX, self.process_all(None)).await;
        self.shared.counters.add(Count::UnreadMessages, self.intake.pass_over_rest());
    }

    /// Processes whole packets until none is left or one has to wait.
    fn process(&mut self) -> Result<Step, ConnectionError> {
        let shared = self.shared;
        let mut turn = BrokerTurn {
            shared,
            acknowledged: &mut self.acknowledged,
            // Without overlapping filters there are no copies to look for.
            may_be_copy: shared.has_overlaps.load(Ordering::Relaxed),
            messages: 0,
            given_up: 0,
            copies: 0,
            unread: 0,
            retained: 0,
        };
        let step = self.intake.process(&mut turn);
        shared.options.linger.note(turn.messages);
        shared.counters.add(Count::MessagesIn, turn.messages);
        shared.counters.add(Count::DeadlockEvents, turn.given_up);
        shared.counters.add(Count::CopiedMessages, turn.copies);
        shared.counters.add(Count::UnreadMessages, turn.unread);
        shared.counters.add(Count::RetainedMessages, turn.retained);
        self.hand_over();
        step
    }

    /// Hands the collected acknowledgements to the writer.
    fn hand_over(&mut self) {
        let acknowledgements = self.intake.acknowledgements();
        if !acknowledgements.is_empty() {
            self.shared.acknowledgements.lock().append(acknowledgements);
            self.shared.outbound.wake.notify_one();
        }
        if !self.acknowledged.is_empty() {
            let (mut messages, mut bytes) = (0, 0);
            let mut in_flight = self.shared.in_flight.lock();
            for packet_id in self.acknowledged.drain(..) {
                if let Some(queued_bytes) = in_flight.acknowledge(packet_id) {
                    messages += 1;
                    bytes += queued_bytes;
                }
            }
            drop(in_flight);
            self.shared.outbound.sent(messages, bytes);
            self.shared.outbound.wake.notify_one();
        }
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    terms: Terms,
    outgoing: &'a mut Outgoing,
    /// The bytes that are being written.
    bytes: Vec<u8>,
    /// The number of messages of QoS 0 in them, which are lost if the write fails.
    messages_unsent: u64,
}

impl Writer<'_> {
    async fn run(&mut self, mut socket: impl AsyncWrite + Unpin) -> End {
        match self.run_until_stopped(&mut socket).await {
            Ok(()) => {
                let _ = socket.shutdown().await;
                End::Stopped
            }
            Err(error) => End::Failed(error),
        }
    }

    async fn run_until_stopped(&mut self, socket: &mut (impl AsyncWrite + Unpin)) -> Result<(), ConnectionError> {
        let shared = self.shared;
        let mut stop = shared.stop.subscribe();
        let ping_interval = match self.terms.keep_alive_s {
            0 => Duration::from_secs(u64::from(u32::MAX)),
            seconds => Duration::from_millis(u64::from(seconds) * 500),
        };
        let mut next_ping = tokio::time::Instant::now() + ping_interval;
        loop {
            self.collect()?;
            if tokio::time::Instant::now() >= next_ping {
                self.bytes.extend_from_slice(&codec::PING_REQUEST);
                next_ping = tokio::time::Instant::now() + ping_interval;
            }
            if !self.bytes.is_empty() {
                self.write(socket).await?;
                continue;
            }
            let stop_at = *stop.borrow_and_update();
            let is_idle = shared.outbound.queued_messages() == 0 && shared.in_flight.lock().is_empty();
            if let Some(deadline) = stop_at
                && (is_idle || tokio::time::Instant::now() >= deadline)
            {
                self.disconnect(socket).await?;
                return Ok(());
            }
            tokio::select! {
                () = shared.outbound.wake.notified() => {}
                () = tokio::time::sleep_until(stop_at.map_or(next_ping, |deadline| deadline.min(next_ping))) => {}
                _ = stop.changed() => {}
            }
        }
    }

    async fn write(&mut self, socket: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        socket.write_all(&self.bytes).await?;
        // TLS may still hold bytes back.
        socket.flush().await?;
        self.shared.counters.add(Count::BytesOut, self.bytes.len() as u64);
        self.shared.counters.add(Count::MessagesOut, self.messages_unsent);
        self.messages_unsent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(2 * WRITE_BYTES_AT_ONCE);
        Ok(())
    }

    async fn disconnect(&mut self, socket: &mut (impl AsyncWrite + Unpin)) -> Result<(), ConnectionError> {
        match self.shared.options.version {
            Version::V3 => codec::encode_v3(v3::Packet::Disconnect, &mut self.bytes)?,
            Version::V5 => codec::encode_v5(v5::Packet::Disconnect(v5::Disconnect::default()), &mut self.bytes)?,
        }
        Ok(self.write(socket).await?)
    }

    /// Collects what is to be written: acknowledgements, subscriptions, results.
    fn collect(&mut self) -> Result<(), ConnectionError> {
        let shared = self.shared;
        self.bytes.append(&mut shared.acknowledgements.lock());
        let qos = shared.options.qos.min(self.terms.qos_max);
        shared.subscriptions.lock().encode(shared.options.version, qos, &mut self.bytes)?;
        self.collect_results();
        Ok(())
    }

    fn collect_results(&mut self) {
        let shared = self.shared;
        let (mut sent_messages, mut sent_bytes) = (0, 0);
        let mut waits_for_acknowledgements = false;
        let mut in_flight = shared.in_flight.lock();
        while self.bytes.len() < WRITE_BYTES_AT_ONCE {
            if in_flight.has_unsent() {
                if !in_flight.has_room(self.terms.receive_max) {
                    waits_for_acknowledgements = true;
                    break;
                }
                in_flight.resend_next(self.terms.session_present, &mut self.bytes);
                continue;
            }
            let Some(message) = self.outgoing.batch.get(self.outgoing.next) else {
                let Some((first, batch)) = shared.outbound.take() else { break };
                shared.outbound.give_back(std::mem::replace(&mut self.outgoing.batch, batch));
                (self.outgoing.next, self.outgoing.first) = (0, first);
                continue;
            };
            let qos = message.options.qos.min(self.terms.qos_max);
            if qos == Qos::AtLeastOnce && !in_flight.has_room(self.terms.receive_max) {
                waits_for_acknowledgements = true;
                break;
            }
            let number = self.outgoing.number();
            self.outgoing.next += 1;
            let publish = Publish {
                topic: message.topic.as_bytes(),
                payload: message.payload,
                properties: message.properties,
                packet_id: if qos == Qos::AtMostOnce { 0 } else { in_flight.next_id() },
                qos,
                retain: message.options.retain && self.terms.retain_available,
                ..Publish::default()
            };
            let start = self.bytes.len();
            let encoded = match publish.packet_bytes(shared.options.version) {
                packet_bytes if packet_bytes > self.terms.packet_bytes_max => {
                    Err(CodecError::TooLarge { packet_bytes, packet_bytes_max: self.terms.packet_bytes_max })
                }
                _ => publish.encode(shared.options.version, &mut self.bytes),
            };
            match encoded {
                Ok(()) if qos == Qos::AtLeastOnce => {
                    // It counts as queued until it is acknowledged.
                    in_flight.push(self.bytes[start..].into(), message.queued_bytes(), number);
                    self.messages_unsent += 1;
                    continue;
                }
                Ok(()) => self.messages_unsent += 1,
                Err(_) => shared.counters.add(Count::TooLargeMessages, 1),
            }
            sent_messages += 1;
            sent_bytes += message.queued_bytes();
        }
        shared.outbound.left(in_flight.first_number().unwrap_or(self.outgoing.number()));
        drop(in_flight);
        shared.waits_for_acknowledgements.store(waits_for_acknowledgements, Ordering::Relaxed);
        if sent_messages > 0 {
            shared.outbound.sent(sent_messages, sent_bytes);
        }
    }
}
