//! The intake: routes the messages of a connection into inboxes, packet by packet.
//!
//! The embedded broker reads from its clients, and the client from an external broker; both handle a PUBLISH in the
//! same way. A [`Turn`] holds the differences: what the peer may send, the effects of a message beside its deliveries,
//! and the packets around the messages.
//!
//! What must hold: a message is answered once, in the order in which messages came, and not before it is in all inboxes
//! that want it. A message that an inbox refuses stays in the buffer, with everything behind it. A message that is too
//! large is refused by its beginning; the rest of it is never in memory.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_dataflow::hold::Hold;
use rivulet_dataflow::{Clock, LogPosition, Push};
use tokio::io::AsyncRead;

use super::acknowledge::{Admission, Answer, DedupWindow};
use super::aliases::Aliases;
use super::buffer::ReadBuffer;
use super::codec::{self, CodecError, Frame, PacketKind, Publish, PublishProperties, Qos, Version};
use super::received::Received;
use super::router::{Pending, Router, Routing};
use super::stall::Stall;
use super::wire::QUOTA_EXCEEDED;

/// After reading this many bytes a connection yields to the others.
pub(super) const READ_BYTES_BEFORE_YIELD: usize = 64 << 10;

/// How long messages that were read before the connection ended may wait for room in their inboxes.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(5);

/// The number of packets that are looked at ahead: about as many as memory accesses can be under way at a time.
pub(crate) const AHEAD: usize = 8;

/// Where more was read at once, workers begin before all of it is routed.
const HELD_BYTES_MAX: usize = 8 << 10;

/// The local side of a connection while the packets of one read are processed.
pub(super) trait Turn {
    /// Why the connection ends.
    type End: From<CodecError>;

    /// Prefetches the memory that [`Turn::conclude`] will look at first.
    fn prefetch(&self, _topic: &[u8]) {}

    /// Checks what holds for every packet.
    fn check(&self, _frame: &Frame<'_>) -> Result<(), Self::End> {
        Ok(())
    }

    /// Checks a message and decides its fate. Asked before any inbox has it.
    fn judge(&self, publish: &Publish<'_>, properties: &PublishProperties) -> Result<Verdict, Self::End>;

    /// Notes a message that would be taken, but is larger than allowed: only its beginning was read, and it goes
    /// nowhere.
    fn too_large(&mut self, publish: &Publish<'_>, packet_bytes: usize);

    /// Whether there is room for what [`Turn::conclude`] would keep of a message that is taken.
    fn has_room(&self, _publish: &Publish<'_>) -> bool {
        true
    }

    /// Why a message waits that some inbox, or the log, has no room for. `bytes_behind` it were read.
    fn stuck(&self, _pending: &Pending, _bytes_behind: usize) -> Stuck {
        Stuck::Waits
    }

    /// Asked when the router is closed: whether to skip the message, without an answer, for the sake of the packets
    /// behind it.
    fn passes_over(&mut self, _publish: &Publish<'_>) -> bool {
        false
    }

    /// Carries out the effects of a message beside its deliveries, and returns the reason code of its answer.
    fn conclude(&mut self, publish: &Publish<'_>, properties: &PublishProperties, fate: Fate) -> u8;

    /// Processes any packet but PUBLISH. `acknowledgements` are earlier answers that an answer written here would
    /// overtake; `was_searched` says whether [`Intake::search`] has seen the packet. Returns false if it has to wait.
    fn other(
        &mut self,
        frame: &Frame<'_>,
        was_searched: bool,
        acknowledgements: &mut Vec<u8>,
    ) -> Result<bool, Self::End>;
}

/// What is to be done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes to the inboxes that want it.
    Take,
    /// The inboxes have it already.
    Copy,
    /// It goes nowhere, and is answered with this reason code. If it comes again, it is judged again.
    Refuse(u8),
    /// It goes nowhere and is not answered.
    Ignore,
}

/// What was done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// All inboxes that want it have it, except `given_up` of its events that were abandoned.
    Taken {
        /// Whether any inbox wants it.
        is_wanted: bool,
        given_up: usize,
        /// Its position in the log; 0 if it is not there.
        position: LogPosition,
    },
    /// The inboxes have it already.
    Copy,
    /// It is only answered.
    Refused(u8),
}

/// Why a message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// There will be room.
    Waits,
    /// The room that it waits for may depend on this message.
    InCircle,
    /// There will be no room.
    ForEver,
}

/// How far the packets of a read could be processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All whole packets were processed.
    NeedsMore,
    /// The next one has to wait.
    Full,
}

/// A message on its way into the inboxes, and how long it has been waiting for room.
pub(crate) struct UnderWay {
    pending: Pending,
    /// Since an inbox was full.
    stall: Option<Box<Stall>>,
    deadlock_after: Duration,
}

impl UnderWay {
    /// Starts with no message. A circle that is stuck for `deadlock_after` is broken.
    pub(crate) fn new(deadlock_after: Duration) -> Self {
        Self { pending: Pending::default(), stall: None, deadlock_after }
    }

    /// Puts a message into every inbox that wants it. Returns the number of its events that were abandoned; `None` if
    /// it has to be offered again.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        routing: &mut Routing<'_>,
        message: &Received<'_>,
        stuck: impl FnOnce(&Pending) -> Stuck,
    ) -> Option<usize> {
        if routing.route(message, &mut self.pending) == Push::Taken {
            if let Some(stall) = &mut self.stall {
                stall.taken();
            }
            return Some(0);
        }
        let stuck = stuck(&self.pending);
        self.full(routing, message, stuck)
    }

    #[cold]
    fn full(&mut self, routing: &mut Routing<'_>, message: &Received<'_>, stuck: Stuck) -> Option<usize> {
        let is_over = match stuck {
            Stuck::Waits => self.stall().full(false),
            Stuck::InCircle => self.stall().full(true),
            Stuck::ForEver => true,
        };
        is_over.then(|| routing.break_circle(message, &mut self.pending)).flatten()
    }

    /// How long to wait before it is offered again.
    pub(crate) fn next_wait(&mut self) -> Duration {
        self.stall().next_wait()
    }

    #[cold]
    fn stall(&mut self) -> &mut Stall {
        self.stall.get_or_insert_with(|| Box::new(Stall::new(self.deadlock_after)))
    }

    /// The position in the log of the last message that was taken; 0 if it is not in the log.
    pub(crate) fn position(&self) -> LogPosition {
        self.pending.position()
    }

    /// Whether any inbox has the last message that was taken.
    pub(crate) fn is_delivered(&self) -> bool {
        self.pending.is_delivered()
    }
}

/// The reading end of a connection.
pub(super) struct Intake<'a> {
    buffer: ReadBuffer,
    /// The number of bytes, of those not processed yet, that were searched; they are whole packets.
    searched: usize,
    messages: Messages<'a>,
}

/// The handling of the messages of a connection.
struct Messages<'a> {
    sender: Sender<'a>,
    /// The arrival time of the next message.
    arrival_us: i64,
    under_way: UnderWay,
    /// Once the peer has set one.
    aliases: Option<Box<Aliases>>,
    /// The messages that wait for the log, if there is one.
    dedup_window: Option<Arc<DedupWindow>>,
    /// Answers to be handed to the writer together.
    acknowledgements: Vec<u8>,
}

/// The peer of a connection, and where its messages go.
pub(super) struct Sender<'a> {
    /// The peer's name in the log.
    pub(super) client: &'a [u8],
    pub(super) version: Version,
    pub(super) packet_bytes_max: usize,
    /// The highest topic alias that the peer may set.
    pub(super) topic_aliases_max: u16,
    /// As in [`UnderWay::new`].
    pub(super) deadlock_after: Duration,
    pub(super) router: &'a Router,
    pub(super) clock: &'a dyn Clock,
}

impl<'a> Intake<'a> {
    /// `buffer` has the bytes that were read behind the first packet of the connection.
    pub(super) fn new(sender: Sender<'a>, buffer: ReadBuffer, dedup_window: Option<Arc<DedupWindow>>) -> Self {
        let (arrival_us, under_way) = (sender.clock.now_us(), UnderWay::new(sender.deadlock_after));
        let acknowledgements = Vec::new();
        let messages = Messages { sender, arrival_us, under_way, aliases: None, dedup_window, acknowledgements };
        Self { buffer, searched: 0, messages }
    }

    /// Reads available bytes, and returns their number; 0 if the peer has closed the connection.
    pub(super) async fn read(&mut self, socket: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        let bytes = self.buffer.fill(socket).await?;
        self.waited();
        if let Some(dedup_window) = &self.messages.dedup_window {
            dedup_window.heard(Instant::now());
        }
        Ok(bytes)
    }

    /// How long to wait before the waiting message is tried again.
    pub(super) fn next_wait(&mut self) -> Duration {
        self.messages.under_way.next_wait()
    }

    /// Notes that a wait is over, and sets the arrival time anew. With the time before the wait the message could be
    /// late, for windows over arrival time may be closed by now.
    pub(super) fn waited(&mut self) {
        self.messages.arrival_us = self.messages.sender.clock.now_us();
    }

    /// Whether a message waits for room in the log.
    pub(super) fn waits_for_log(&self) -> bool {
        self.messages.under_way.pending.waits_for_log()
    }

    /// Abandons what was read and not processed, because the connection is over. Returns the number of lost messages:
    /// those of QoS 0, for the others are sent again.
    pub(super) fn pass_over_rest(&mut self) -> u64 {
        let (mut at, mut lost) = (0, 0);
        let data = self.buffer.data();
        while let Ok(Some(frame)) = codec::split_frame(&data[at..], self.messages.sender.packet_bytes_max) {
            // The bits of its QoS.
            lost += u64::from(frame.kind() == PacketKind::Publish && frame.first_byte & 0b110 == 0);
            at += frame.whole.len();
        }
        self.buffer.consume(data.len());
        self.searched = 0;
        self.messages.under_way.pending.abandon();
        lost
    }

    /// The number of bytes that were read behind the message that waits.
    pub(super) fn bytes_behind(&self) -> usize {
        let waiting = codec::split_frame(self.buffer.data(), self.messages.sender.packet_bytes_max);
        waiting.ok().flatten().map_or(0, |frame| self.read_bytes() - frame.whole.len())
    }

    /// The number of bytes that were read and not processed.
    pub(super) fn read_bytes(&self) -> usize {
        self.buffer.data().len()
    }

    /// The memory of what was read.
    pub(super) fn memory_bytes(&self) -> usize {
        self.buffer.memory_bytes()
    }

    /// From now on reads at most so much at a time.
    pub(super) fn limit_buffer(&mut self, read_bytes_max: usize) {
        self.buffer.limit(read_bytes_max);
    }

    /// The answers that have been collected since they were last taken out of here.
    pub(super) fn acknowledgements(&mut self) -> &mut Vec<u8> {
        &mut self.messages.acknowledgements
    }

    /// Waits until the messages that an earlier connection of the client has read are in the log, so that they are
    /// recognised when they come again.
    pub(super) async fn take_over(&self) {
        if let Some(dedup_window) = &self.messages.dedup_window {
            dedup_window.take_over().await;
        }
    }

    /// Calls `each` with the packets that it has not seen yet, until it returns false.
    pub(super) fn search(&mut self, mut each: impl FnMut(&Frame<'_>) -> bool) {
        let packet_bytes_max = self.messages.sender.packet_bytes_max;
        // An error in a packet is reported when the packet is processed.
        while let Ok(Some(frame)) = codec::split_frame(&self.buffer.data()[self.searched..], packet_bytes_max)
            && each(&frame)
        {
            self.searched += frame.whole.len();
        }
    }

    /// Processes whole packets until none is left, one has to wait, or the connection is over.
    pub(super) fn process<T: Turn>(&mut self, turn: &mut T) -> Result<Step, T::End> {
        match self.messages.dedup_window.as_ref().map_or(Admission::Open, |dedup_window| dedup_window.admission()) {
            Admission::Open => {}
            Admission::Full => return Ok(Step::Full),
            Admission::TakenOver => return Ok(Step::NeedsMore),
        }
        let Sender { router, packet_bytes_max, .. } = self.messages.sender;
        let data = self.buffer.data();
        // Workers that sleep are woken by the last of a few messages, not by the first.
        let _hold = (data.len() <= HELD_BYTES_MAX).then(Hold::begin);
        let (mut consumed, mut unread) = (0, 0);
        let mut ahead = LookAhead::default();
        let mut routing = router.read();
        let result = loop {
            ahead.advance(data, packet_bytes_max, |topic| {
                routing.prefetch(topic);
                turn.prefetch(topic);
            });
            let frame = match codec::split_frame(&data[consumed..], packet_bytes_max) {
                Ok(Some(frame)) => frame,
                Ok(None) => break Ok(Step::NeedsMore),
                Err(CodecError::TooLarge { packet_bytes, .. }) if codec::is_publish(data[consumed]) => {
                    let beginning = &data[consumed..];
                    match self.messages.refuse(turn, &mut routing, beginning, packet_bytes) {
                        Ok(true) => {}
                        Ok(false) => break Ok(Step::NeedsMore),
                        Err(end) => break Err(end),
                    }
                    let held = packet_bytes.min(beginning.len());
                    (consumed, unread) = (consumed + held, packet_bytes - held);
                    ahead.packets -= 1;
                    continue;
                }
                Err(error) => break Err(error.into()),
            };
            if let Err(end) = turn.check(&frame) {
                break Err(end);
            }
            let bytes_behind = data.len() - consumed - frame.whole.len();
            let processed = match frame.kind() {
                PacketKind::Publish => self.messages.take(turn, &mut routing, &frame, bytes_behind),
                _ => turn.other(&frame, consumed < self.searched, &mut self.messages.acknowledgements),
            };
            match processed {
                Ok(true) => {}
                Ok(false) => break Ok(Step::Full),
                Err(end) => break Err(end),
            }
            consumed += frame.whole.len();
            ahead.packets -= 1;
        };
        drop(routing);
        self.buffer.pass_over(consumed + unread);
        self.searched = self.searched.saturating_sub(consumed);
        result
    }
}

impl Messages<'_> {
    /// Handles a PUBLISH; returns false if it has to wait.
    #[inline]
    fn take<T: Turn>(
        &mut self,
        turn: &mut T,
        routing: &mut Routing<'_>,
        frame: &Frame<'_>,
        bytes_behind: usize,
    ) -> Result<bool, T::End> {
        let decoded = Publish::decode(self.sender.version, frame.first_byte, frame.body)?;
        self.take_decoded(turn, routing, decoded, bytes_behind, None)
    }

    /// Refuses a PUBLISH of `packet_bytes`, which are too many, by its `beginning`; returns false if that is not all
    /// there.
    #[cold]
    fn refuse<T: Turn>(
        &mut self,
        turn: &mut T,
        routing: &mut Routing<'_>,
        beginning: &[u8],
        packet_bytes: usize,
    ) -> Result<bool, T::End> {
        let Sender { version, packet_bytes_max, .. } = self.sender;
        let beginning = &beginning[..packet_bytes.min(beginning.len())];
        match codec::beginning_of_publish(version, beginning) {
            Ok(publish) => self.take_decoded(turn, routing, publish, 0, Some(packet_bytes)),
            // What is in front of the payload may be as long as a whole packet.
            Err(CodecError::CutShort(_)) if beginning.len() < packet_bytes_max => Ok(false),
            Err(CodecError::CutShort(_)) => Err(CodecError::TooLarge { packet_bytes, packet_bytes_max }.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Handles a message; returns false if it has to wait. If it is `too_large`, a number of bytes, its payload is cut
    /// short.
    #[inline]
    fn take_decoded<T: Turn>(
        &mut self,
        turn: &mut T,
        routing: &mut Routing<'_>,
        decoded: Publish<'_>,
        bytes_behind: usize,
        too_large: Option<usize>,
    ) -> Result<bool, T::End> {
        let Sender { client, version, .. } = self.sender;
        let properties = &match decoded.properties.is_empty() {
            true => PublishProperties::default(),
            false => PublishProperties::parse(decoded.properties)?,
        };
        let publish = &match properties.topic_alias {
            None => decoded,
            Some(alias) => resolve(&mut self.aliases, self.sender.topic_aliases_max, &decoded, alias)?,
        };
        let Publish { topic, payload, packet_id, qos, .. } = *publish;
        let mut verdict = match self.under_way.pending.is_empty() {
            true => turn.judge(publish, properties)?,
            // A message that some inboxes have must go to the others too.
            false => Verdict::Take,
        };
        if let (Some(packet_bytes), Verdict::Take | Verdict::Copy) = (too_large, verdict) {
            turn.too_large(publish, packet_bytes);
            // Version 3 has no word for it. Without an answer the peer would send the message again and again.
            verdict = Verdict::Refuse(if version == Version::V5 { QUOTA_EXCEEDED } else { 0 });
        }
        if verdict == Verdict::Take && !turn.has_room(publish) {
            return Ok(false);
        }
        let dedup_window = self.dedup_window.as_deref().filter(|_| qos > Qos::AtMostOnce);
        // A message of QoS 2 that was taken before is a repeat, however it is marked.
        let is_repeat = publish.duplicate || (verdict == Verdict::Copy && qos == Qos::ExactlyOnce);
        let known_at =
            dedup_window.and_then(|dedup_window| dedup_window.known_at(is_repeat, packet_id, topic, payload));
        let mut position = known_at.unwrap_or(0);
        let fate = match verdict {
            Verdict::Copy => Fate::Copy,
            Verdict::Refuse(reason) => Fate::Refused(reason),
            Verdict::Ignore => return Ok(true),
            Verdict::Take if known_at.is_some() => Fate::Taken { is_wanted: true, given_up: 0, position },
            Verdict::Take => {
                if routing.is_closed() && turn.passes_over(publish) {
                    self.under_way.pending.abandon();
                    return Ok(true);
                }
                let message = Received { arrival_us: self.arrival_us, client, packet_id, topic, payload };
                let offered = self.under_way.offer(routing, &message, |pending| turn.stuck(pending, bytes_behind));
                let Some(given_up) = offered else { return Ok(false) };
                position = self.under_way.pending.position();
                Fate::Taken { is_wanted: self.under_way.pending.is_delivered(), given_up, position }
            }
        };
        let reason = turn.conclude(publish, properties, fate);
        if qos > Qos::AtMostOnce {
            let answer = Answer { qos, packet_id, reason };
            let out = &mut self.acknowledgements;
            match (dedup_window, fate) {
                (Some(dedup_window), Fate::Refused(_)) => dedup_window.refuse(answer, out),
                (Some(dedup_window), _) => dedup_window.acknowledge(position, answer, (topic, payload), out),
                (None, _) => answer.encode(out),
            }
        }
        Ok(true)
    }
}

/// As [`Aliases::resolve`], with aliases that are made when the peer sets the first.
#[cold]
fn resolve<'a>(
    aliases: &'a mut Option<Box<Aliases>>,
    max: u16,
    publish: &Publish<'a>,
    alias: u16,
) -> Result<Publish<'a>, CodecError> {
    aliases.get_or_insert_with(|| Box::new(Aliases::new(max))).resolve(publish, alias)
}

/// Looks a few packets ahead, so that the data of their topics is in the cache when they are processed.
#[derive(Default)]
struct LookAhead {
    /// The bytes that were looked at.
    at: usize,
    /// The packets that were looked at and not processed yet.
    packets: usize,
}

impl LookAhead {
    #[inline]
    fn advance(&mut self, data: &[u8], packet_bytes_max: usize, prefetch: impl Fn(&[u8])) {
        while self.packets < AHEAD {
            // An error in a packet is reported when the packet is processed.
            let Ok(Some(frame)) = codec::split_frame(&data[self.at..], packet_bytes_max) else {
                // No more can be seen: the next packet is this one or comes with the next read.
                self.packets = usize::MAX;
                return;
            };
            if frame.kind() == PacketKind::Publish
                && let Some(topic) = codec::topic_of_publish(frame.body)
            {
                prefetch(topic);
            }
            self.at += frame.whole.len();
            self.packets += 1;
        }
    }
}
