//! The intake: what is read from a connection goes into the inboxes, packet by packet.
//!
//! The embedded broker reads from its clients, and the client from an external broker; both take a PUBLISH in the same
//! way. What differs is a [`Turn`]: what the other side may send, what a message brings about beside its deliveries,
//! and the packets around the messages.
//!
//! What must hold: a message is answered once, in the order in which messages came, and not before it is in all inboxes
//! that want it. One that an inbox refuses stays in the buffer, with everything behind it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_dataflow::{Clock, LogPosition, Push};
use tokio::io::AsyncRead;

use super::acknowledge::{Admission, Answer, DedupWindow};
use super::buffer::ReadBuffer;
use super::codec::{self, CodecError, Frame, PacketKind, Publish, PublishProperties, Qos, Version};
use super::router::{Pending, Received, Router, Routing};
use super::stall::Stall;

/// After reading this many bytes a connection lets the others have their turn.
pub(super) const READ_BYTES_BEFORE_YIELD: usize = 64 << 10;

/// How long messages that were read before the connection ended may wait for room in their inboxes.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How many packets are looked at ahead: about as many as memory can be asked for at a time.
pub(super) const AHEAD: usize = 8;

/// One side of a connection while the packets of one read are processed.
pub(super) trait Turn {
    /// Why the connection ends.
    type End: From<CodecError>;

    /// Asks for the memory that [`Turn::conclude`] will look at first, without waiting for it.
    fn prefetch(&self, _topic: &[u8]) {}

    /// Checks what holds for every packet.
    fn check(&self, _frame: &Frame<'_>) -> Result<(), Self::End> {
        Ok(())
    }

    /// Checks a message, and says what is to become of it. Asked before any inbox has it.
    fn judge(&self, publish: &Publish<'_>, properties: &PublishProperties) -> Result<Verdict, Self::End>;

    /// Whether there is room for what [`Turn::conclude`] would keep of a message that is taken.
    fn has_room(&self, _publish: &Publish<'_>) -> bool {
        true
    }

    /// Why a message waits for which inboxes, or the log, have no room. `read_bytes` were read and not processed.
    fn stuck(&self, _pending: &Pending, _read_bytes: usize) -> Stuck {
        Stuck::Waits
    }

    /// The router is closed. Whether to pass the message over, without an answer, for the sake of what is behind it.
    fn passes_over(&mut self, _publish: &Publish<'_>) -> bool {
        false
    }

    /// Does what a message brings about beside its deliveries, and returns the reason code of its answer.
    fn conclude(&mut self, publish: &Publish<'_>, properties: &PublishProperties, fate: Fate) -> u8;

    /// Processes any packet but PUBLISH. `acknowledgements` are what it would overtake with an answer of its own;
    /// `was_searched` says whether [`Intake::search`] has seen it. False if it has to wait.
    fn other(
        &mut self,
        frame: &Frame<'_>,
        was_searched: bool,
        acknowledgements: &mut Vec<u8>,
    ) -> Result<bool, Self::End>;
}

/// What is to become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes to the inboxes that want it.
    Take,
    /// The inboxes have it already.
    Copy,
    /// It goes nowhere, and is answered with this reason code. If it comes again, it is judged again.
    Refuse(u8),
}

/// What has become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The inboxes that want it have it, but for so many that were given up.
    Taken {
        /// Whether any wants it.
        is_wanted: bool,
        given_up: usize,
    },
    /// They have it already.
    Copy,
    /// It is only answered.
    Refused(u8),
}

/// Why a message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// There will be room.
    Waits,
    /// What it waits for may be waiting for this message.
    InCircle,
    /// There will be no room.
    ForEver,
}

/// How far the packets of a read could be processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All whole packets are.
    NeedsMore,
    /// The next one has to wait.
    Full,
}

/// A message on its way into the inboxes, and for how long it has been waiting for room.
pub(super) struct UnderWay {
    pending: Pending,
    stall: Stall,
}

impl UnderWay {
    /// Nothing waits. A circle that stands still for `deadlock_after` is broken.
    pub(super) fn new(deadlock_after: Duration) -> Self {
        Self { pending: Pending::default(), stall: Stall::new(deadlock_after) }
    }

    /// Puts a message into every inbox that wants it. Returns how many of its events were given up for that; `None` if
    /// it has to be offered again.
    #[inline]
    pub(super) fn offer(
        &mut self,
        routing: &mut Routing<'_>,
        message: &Received<'_>,
        stuck: impl FnOnce(&Pending) -> Stuck,
    ) -> Option<usize> {
        if routing.route(message, &mut self.pending) == Push::Taken {
            self.stall.taken();
            return Some(0);
        }
        let stuck = stuck(&self.pending);
        self.full(routing, message, stuck)
    }

    #[cold]
    fn full(&mut self, routing: &mut Routing<'_>, message: &Received<'_>, stuck: Stuck) -> Option<usize> {
        let is_over = match stuck {
            Stuck::Waits => self.stall.full(false),
            Stuck::InCircle => self.stall.full(true),
            Stuck::ForEver => true,
        };
        is_over.then(|| routing.break_circle(message, &mut self.pending)).flatten()
    }

    /// How long to wait before it is offered again.
    pub(super) fn next_wait(&mut self) -> Duration {
        self.stall.next_wait()
    }

    /// Where the message that was taken last stands in the log; 0 if in none.
    pub(super) fn position(&self) -> LogPosition {
        self.pending.position()
    }

    /// Whether an inbox has the message that was taken last.
    pub(super) fn is_delivered(&self) -> bool {
        self.pending.is_delivered()
    }
}

/// The reading end of a connection.
pub(super) struct Intake<'a> {
    buffer: ReadBuffer,
    /// So many of the bytes that are not processed yet, all of them whole packets, were searched.
    searched: usize,
    messages: Messages<'a>,
}

/// What becomes of the messages of a connection.
struct Messages<'a> {
    sender: Sender<'a>,
    /// When the next one counts as arrived.
    arrival_us: i64,
    under_way: UnderWay,
    /// What waits for the log, if there is one.
    dedup_window: Option<Arc<DedupWindow>>,
    /// Answers to be handed to the writer together.
    acknowledgements: Vec<u8>,
}

/// The other side of a connection, and where its messages go.
pub(super) struct Sender<'a> {
    /// The name that the log gives to it.
    pub(super) client: &'a [u8],
    pub(super) version: Version,
    pub(super) packet_bytes_max: usize,
    /// As [`UnderWay::new`] has it.
    pub(super) deadlock_after: Duration,
    pub(super) router: &'a Router,
    pub(super) clock: &'a dyn Clock,
}

impl<'a> Intake<'a> {
    /// In `buffer` is what was read behind the first packet of the connection.
    pub(super) fn new(sender: Sender<'a>, buffer: ReadBuffer, dedup_window: Option<Arc<DedupWindow>>) -> Self {
        let (arrival_us, under_way) = (sender.clock.now_us(), UnderWay::new(sender.deadlock_after));
        let messages = Messages { sender, arrival_us, under_way, dedup_window, acknowledgements: Vec::new() };
        Self { buffer, searched: 0, messages }
    }

    /// Reads what there is, and returns how many bytes; 0 if the other side has closed.
    pub(super) async fn read(&mut self, socket: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        let bytes = self.buffer.fill(socket).await?;
        self.waited();
        if let Some(dedup_window) = &self.messages.dedup_window {
            dedup_window.heard(Instant::now());
        }
        Ok(bytes)
    }

    /// How long to wait before what waits is tried again.
    pub(super) fn next_wait(&mut self) -> Duration {
        self.messages.under_way.next_wait()
    }

    /// A wait is over. Had the message that waits arrived before it, windows over arrival time may be closed by now,
    /// and it would be late.
    pub(super) fn waited(&mut self) {
        self.messages.arrival_us = self.messages.sender.clock.now_us();
    }

    /// Whether a message waits for room in the log.
    pub(super) fn waits_for_log(&self) -> bool {
        self.messages.under_way.pending.waits_for_log()
    }

    /// Gives up on what was read and not processed: the connection is over. Returns how many messages are lost by that,
    /// those of QoS 0: the others are sent again.
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

    /// How many bytes were read and not processed.
    pub(super) fn read_bytes(&self) -> usize {
        self.buffer.data().len()
    }

    /// The answers that have come together since they were last taken out of here.
    pub(super) fn acknowledgements(&mut self) -> &mut Vec<u8> {
        &mut self.messages.acknowledgements
    }

    /// What an earlier connection of the client has read goes into the log first, and is known when it comes again.
    pub(super) async fn take_over(&self) {
        if let Some(dedup_window) = &self.messages.dedup_window {
            dedup_window.take_over().await;
        }
    }

    /// Calls `each` with the packets that it was not called with yet, until it says false.
    pub(super) fn search(&mut self, mut each: impl FnMut(&Frame<'_>) -> bool) {
        let packet_bytes_max = self.messages.sender.packet_bytes_max;
        // What is wrong with a packet is said when it is its turn.
        while let Ok(Some(frame)) = codec::split_frame(&self.buffer.data()[self.searched..], packet_bytes_max)
            && each(&frame)
        {
            self.searched += frame.whole.len();
        }
    }

    /// Processes whole packets until there is none left, one has to wait, or the connection is over.
    pub(super) fn process<T: Turn>(&mut self, turn: &mut T) -> Result<Step, T::End> {
        match self.messages.dedup_window.as_ref().map_or(Admission::Open, |dedup_window| dedup_window.admission()) {
            Admission::Open => {}
            Admission::Full => return Ok(Step::Full),
            Admission::TakenOver => return Ok(Step::NeedsMore),
        }
        let Sender { router, packet_bytes_max, .. } = self.messages.sender;
        let data = self.buffer.data();
        let mut consumed = 0;
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
                Err(error) => break Err(error.into()),
            };
            if let Err(end) = turn.check(&frame) {
                break Err(end);
            }
            let processed = match frame.kind() {
                PacketKind::Publish => self.messages.take(turn, &mut routing, &frame, data.len()),
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
        self.buffer.consume(consumed);
        self.searched = self.searched.saturating_sub(consumed);
        result
    }
}

impl Messages<'_> {
    /// Takes a PUBLISH; false if it has to wait.
    #[inline]
    fn take<T: Turn>(
        &mut self,
        turn: &mut T,
        routing: &mut Routing<'_>,
        frame: &Frame<'_>,
        read_bytes: usize,
    ) -> Result<bool, T::End> {
        let Sender { client, version, .. } = self.sender;
        let publish = &Publish::decode(version, frame.first_byte, frame.body)?;
        let properties = &match publish.properties.is_empty() {
            true => PublishProperties::default(),
            false => PublishProperties::parse(publish.properties)?,
        };
        let Publish { topic, payload, packet_id, qos, .. } = *publish;
        // What some inboxes have, the others get.
        let verdict = match self.under_way.pending.is_empty() {
            true => turn.judge(publish, properties)?,
            false => Verdict::Take,
        };
        if verdict == Verdict::Take && !turn.has_room(publish) {
            return Ok(false);
        }
        let dedup_window = self.dedup_window.as_deref().filter(|_| qos > Qos::AtMostOnce);
        let known_at =
            dedup_window.and_then(|dedup_window| dedup_window.known_at(publish.duplicate, packet_id, topic, payload));
        let mut position = known_at.unwrap_or(0);
        let fate = match verdict {
            Verdict::Copy => Fate::Copy,
            Verdict::Refuse(reason) => Fate::Refused(reason),
            Verdict::Take if known_at.is_some() => Fate::Taken { is_wanted: true, given_up: 0 },
            Verdict::Take => {
                if routing.is_closed() && turn.passes_over(publish) {
                    self.under_way.pending.abandon();
                    return Ok(true);
                }
                let message = Received { arrival_us: self.arrival_us, client, packet_id, topic, payload };
                let offered = self.under_way.offer(routing, &message, |pending| turn.stuck(pending, read_bytes));
                let Some(given_up) = offered else { return Ok(false) };
                position = self.under_way.pending.position();
                Fate::Taken { is_wanted: self.under_way.pending.is_delivered(), given_up }
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

/// Looks a few packets ahead, so that what their topics lead to is in the cache when it is their turn.
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
            // What is wrong with a packet is said when it is its turn.
            let Ok(Some(frame)) = codec::split_frame(&data[self.at..], packet_bytes_max) else {
                // Nothing more can be seen: whatever is left is this one or comes with the next read.
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
