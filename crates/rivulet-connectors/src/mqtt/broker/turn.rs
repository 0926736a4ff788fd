//! What a client of the broker may send, and the effects of its packets.

use parking_lot::MutexGuard;
use rivulet_dataflow::LogPosition;

use super::super::acknowledge::DedupWindow;
use super::super::codec::{self, CodecError, Frame, PacketKind, Publish, PublishProperties, Qos, Version};
use super::super::intake::{Fate, Turn, Verdict};
use super::super::topic::{self, TopicError};
use super::addresses::SessionKey;
use super::confirm::Answers;
use super::core::{Core, Goodbye, Published};
use super::incoming::Arrival;
use super::message;
use super::packets::{self, Close, Control};
use super::rights::{Rights, may_publish};
use super::session::Received;
use super::system::SYSTEM;
use crate::rates::Allowed;

/// The reason code of a PUBACK for a message without subscribers.
const NO_SUBSCRIBERS: u8 = 0x10;

/// The reason code of a PUBACK for a message that the client may not publish.
const NOT_AUTHORIZED: u8 = 0x87;

/// Reason codes from this one on are errors.
const ERRORS: u8 = 0x80;

/// Why the reader has ended.
pub(super) enum End {
    /// The client has sent a DISCONNECT.
    Goodbye(Goodbye),
    /// The connection is lost.
    Lost,
    /// The broker disconnects the client.
    Close(Close),
}

impl<E: Into<Close>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Close(error.into())
    }
}

/// Processes the packets of a client, while the broker's state is locked.
pub(super) struct ClientTurn<'a> {
    pub(super) core: MutexGuard<'a, Core>,
    pub(super) is_owner: bool,
    pub(super) key: SessionKey,
    pub(super) version: Version,
    /// As [`Login::marks_repeats`](packets::Login::marks_repeats).
    pub(super) marks_repeats: bool,
    pub(super) answers: &'a Answers,
    pub(super) expiry_s: u32,
    pub(super) rights: &'a Rights,
    pub(super) dedup_window: Option<&'a DedupWindow>,
    /// The messages that were concluded.
    pub(super) messages: u64,
    /// The highest position in the log of events of these messages, and the bytes that went there.
    pub(super) logged: (LogPosition, u64),
    /// The last message that was larger than allowed: its topic as in the log, and its bytes.
    pub(super) too_large: Option<(String, usize)>,
    /// How many messages, and bytes for the log, the client may send at present. Messages that are refused count, and
    /// do not wait.
    pub(super) allowed: Allowed,
}

impl Turn for ClientTurn<'_> {
    type End = End;

    #[inline]
    fn prefetch(&self, topic: &[u8]) {
        self.core.prefetch(topic);
    }

    fn check(&self, frame: &Frame<'_>) -> Result<(), End> {
        match self.version == Version::V5 && !frame.has_shortest_length() {
            true => Err(CodecError::Malformed("the length in the header has more bytes than it needs").into()),
            false => Ok(()),
        }
    }

    fn has_room(&self, publish: &Publish<'_>) -> bool {
        let is_saved = publish.qos > Qos::AtMostOnce || publish.retain;
        !self.is_spent() && (!is_saved || self.core.has_room_to_save())
    }

    #[inline]
    fn judge(&self, publish: &Publish<'_>, properties: &PublishProperties) -> Result<Verdict, End> {
        check_publish(publish, properties)?;
        let may = !publish.topic.starts_with(SYSTEM.as_bytes()) && may_publish(self.rights, publish.topic);
        Ok(match may {
            true if publish.qos == Qos::ExactlyOnce => return self.judge_once(publish),
            true => Verdict::Take,
            // A client of version 3 cannot be told (MQTT 3.1.1, 3.3.5).
            false if self.version == Version::V3 => Verdict::Refuse(0),
            false => Verdict::Refuse(NOT_AUTHORIZED),
        })
    }

    fn too_large(&mut self, publish: &Publish<'_>, packet_bytes: usize) {
        self.core.counters.drops.too_large_received += 1;
        self.too_large = Some((topic::in_log(publish.topic), packet_bytes));
    }

    /// The message has been offered to the engine before: its queries are no subscribers.
    #[inline]
    fn conclude(&mut self, publish: &Publish<'_>, properties: &PublishProperties, fate: Fate) -> u8 {
        self.core.counters.messages_in += 1;
        self.messages += 1;
        let (reason, saved_at) = match fate {
            // The first one may not be on disk yet.
            Fate::Copy => (0, self.core.saved_to(self.key)),
            Fate::Refused(reason) => (reason, self.refuse(publish, reason)),
            Fate::Taken { is_wanted, position, .. } => {
                if position > 0 {
                    self.logged = (position, self.logged.1 + (publish.topic.len() + publish.payload.len()) as u64);
                }
                let expires_at = message::expires_at(properties.message_expiry_s);
                let published = match publish.qos {
                    Qos::ExactlyOnce if self.is_owner => {
                        self.core.publish_once(self.key, publish, expires_at, position)
                    }
                    // It began to wait for an inbox while this connection was the owner. The client gets no answer
                    // here, and sends it again through its newer connection.
                    Qos::ExactlyOnce => Published { has_subscribers: true, saved_at: 0 },
                    _ => self.core.publish(publish, self.is_owner.then_some(self.key), expires_at),
                };
                let is_lost = !is_wanted && !published.has_subscribers;
                (if is_lost && self.version == Version::V5 { NO_SUBSCRIBERS } else { 0 }, published.saved_at)
            }
        };
        if publish.qos > Qos::AtMostOnce {
            self.answers.expect(saved_at);
        }
        reason
    }

    fn other(&mut self, frame: &Frame<'_>, _: bool, acknowledgements: &mut Vec<u8>) -> Result<bool, End> {
        if !self.is_owner {
            return Ok(true);
        }
        if frame.kind() == PacketKind::PubAck {
            self.core.acknowledge(self.key, packets::acknowledged(self.version, frame)?);
            return Ok(true);
        }
        if packets::is_saved(frame) && !self.core.has_room_to_save() {
            return Ok(false);
        }
        // Answers keep the order of the requests, except those that wait for a disk.
        self.answers.acknowledge(acknowledgements);
        let frame = if self.marks_repeats { &packets::without_mark(frame) } else { frame };
        self.control(packets::control(self.version, frame, self.expiry_s)?).map(|()| true)
    }
}

impl ClientTurn<'_> {
    /// Takes back what is known of a message that the client may not publish. A PUBREC with an error ends its exchange,
    /// so the client may use the packet identifier for another message; it may have been taken before, when the client
    /// had the right. Returns the position that the journal must have on disk before the answer.
    #[cold]
    fn refuse(&mut self, publish: &Publish<'_>, reason: u8) -> LogPosition {
        if publish.qos != Qos::ExactlyOnce || reason < ERRORS || !self.is_owner {
            return 0;
        }
        match self.core.release(self.key, publish.packet_id) {
            (true, saved_at) => saved_at,
            (false, _) => 0,
        }
    }

    /// Whether the client has sent as much as it may at present.
    pub(super) fn is_spent(&self) -> bool {
        self.messages >= self.allowed.messages || self.logged.1 >= self.allowed.log_bytes
    }

    /// Decides the fate of a message of QoS 2 that the client may publish.
    fn judge_once(&self, publish: &Publish<'_>) -> Result<Verdict, End> {
        if !self.is_owner {
            // The client sends it again through its newer connection, for it gets no answer through this one.
            return Ok(Verdict::Ignore);
        }
        match self.core.arrival(self.key, publish.packet_id) {
            Some(Arrival::New | Arrival::Lost) => Ok(Verdict::Take),
            Some(Arrival::Repeat) => Ok(Verdict::Copy),
            None => Err(Close::new(
                packets::Reason::ReceiveMaximumExceeded,
                "it has sent as many messages of QoS 2 as it may without releasing them",
            )
            .into()),
        }
    }

    /// Processes any packet but PUBLISH and PUBACK.
    fn control(&mut self, control: Control) -> Result<(), End> {
        match control {
            Control::Ping => self.answers.answer(0, |out| out.extend_from_slice(&codec::PING_RESPONSE)),
            Control::Subscribe(subscribe) => {
                self.core.subscribe(self.key, &subscribe.requests(), self.rights, |codes, saved_at| {
                    self.answers.answer(saved_at, |out| subscribe.answer(codes, out));
                });
            }
            Control::Unsubscribe(unsubscribe) => {
                let removed: Vec<_> =
                    unsubscribe.filters().map(|filter| self.core.unsubscribe(self.key, filter)).collect();
                let saved_at = removed.iter().flatten().copied().max().unwrap_or(0);
                let removed: Vec<bool> = removed.iter().map(Option::is_some).collect();
                self.answers.answer(saved_at, |out| unsubscribe.answer(&removed, out));
            }
            Control::Received { packet_id, is_refused } => {
                let (received, saved_at) = self.core.received(self.key, packet_id, is_refused);
                if !matches!(received, Received::Refused(_)) {
                    // Version 3 has no word for an identifier that is not known.
                    let is_known = received != Received::Unknown || self.version == Version::V3;
                    self.answers.answer(saved_at, |out| codec::encode_pubrel(packet_id, is_known, out));
                }
            }
            Control::Release(packet_id) => {
                let (is_known, saved_at) = self.core.release(self.key, packet_id);
                if is_known && let Some(dedup_window) = self.dedup_window {
                    dedup_window.forget(packet_id);
                }
                let is_known = is_known || self.version == Version::V3;
                self.answers.answer(saved_at, |out| codec::encode_pubcomp(packet_id, is_known, out));
            }
            Control::Completed(packet_id) => self.core.completed(self.key, packet_id),
            Control::Disconnect(goodbye) => return Err(End::Goodbye(goodbye)),
        }
        Ok(())
    }
}

/// Checks that a client may send a message of this kind at all.
#[inline]
fn check_publish(publish: &Publish<'_>, properties: &PublishProperties) -> Result<(), Close> {
    if publish.qos == Qos::AtMostOnce && publish.duplicate {
        return Err(CodecError::Malformed("a message of QoS 0 that is marked as a duplicate").into());
    }
    if properties.has_subscription_identifier {
        return Err(CodecError::Protocol("a client sends a subscription identifier with a message").into());
    }
    match topic::check_topic(publish.topic) {
        Ok(_) => Ok(()),
        Err(TopicError::Empty) => Err(CodecError::Protocol("a message has neither a topic nor an alias").into()),
        Err(TopicError::Wildcard { .. }) => {
            Err(Close::new(packets::Reason::TopicNameInvalid, "it publishes to a topic with a wildcard"))
        }
        Err(_) => Err(CodecError::Malformed("the topic is no text").into()),
    }
}
