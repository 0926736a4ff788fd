//! What a client of the broker may send, and the effects of its packets.

use parking_lot::MutexGuard;

use super::super::codec::{self, CodecError, Frame, PacketKind, Publish, PublishProperties, Qos, Version};
use super::super::intake::{Fate, Turn, Verdict};
use super::super::topic::{self, TopicError};
use super::addresses::SessionKey;
use super::confirm::Answers;
use super::core::{Core, Goodbye};
use super::message;
use super::packets::{self, Close, Control};
use super::rights::{Rights, may_publish};

/// The reason code of a PUBACK for a message without subscribers.
const NO_SUBSCRIBERS: u8 = 0x10;

/// The reason code of a PUBACK for a message that the client may not publish.
const NOT_AUTHORIZED: u8 = 0x87;

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
    pub(super) answers: &'a Answers,
    pub(super) expiry_s: u32,
    pub(super) rights: &'a Rights,
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
        (publish.qos == Qos::AtMostOnce && !publish.retain) || self.core.has_room_to_save()
    }

    #[inline]
    fn judge(&self, publish: &Publish<'_>, properties: &PublishProperties) -> Result<Verdict, End> {
        check_publish(self.version, publish, properties)?;
        Ok(match may_publish(self.rights, publish.topic) {
            true => Verdict::Take,
            // A client of version 3 cannot be told (MQTT 3.1.1, 3.3.5).
            false if self.version == Version::V3 => Verdict::Refuse(0),
            false => Verdict::Refuse(NOT_AUTHORIZED),
        })
    }

    /// The message has been offered to the engine before: its queries are no subscribers.
    #[inline]
    fn conclude(&mut self, publish: &Publish<'_>, properties: &PublishProperties, fate: Fate) -> u8 {
        self.core.counters.messages_in += 1;
        let (reason, saved_at) = match fate {
            Fate::Copy => (0, 0),
            Fate::Refused(reason) => (reason, 0),
            Fate::Taken { is_wanted, .. } => {
                let publish = Publish { qos: publish.qos.min(Qos::AtLeastOnce), ..*publish };
                let expires_at = message::expires_at(properties.message_expiry_s);
                let published = self.core.publish(&publish, self.is_owner.then_some(self.key), expires_at);
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
        self.control(packets::control(self.version, frame, self.expiry_s)?).map(|()| true)
    }
}

impl ClientTurn<'_> {
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
            // The message was processed when it arrived; a client of version 5 has sent none.
            Control::Release(packet_id) => {
                self.answers.answer(0, |out| codec::encode_pubcomp(packet_id, self.version == Version::V3, out));
            }
            Control::Disconnect(goodbye) => return Err(End::Goodbye(goodbye)),
        }
        Ok(())
    }
}

/// Checks that a client may send a message of this kind at all.
#[inline]
fn check_publish(version: Version, publish: &Publish<'_>, properties: &PublishProperties) -> Result<(), Close> {
    if publish.qos == Qos::AtMostOnce && publish.duplicate {
        return Err(CodecError::Malformed("a message of QoS 0 that is marked as a duplicate").into());
    }
    if publish.qos == Qos::ExactlyOnce && version == Version::V5 {
        // The client was told so when it connected. One of version 3 cannot be told, and would send the message for
        // ever.
        return Err(Close::new(
            packets::Reason::QosNotSupported,
            "it publishes with QoS 2, and was told that 1 is the most",
        ));
    }
    if properties.topic_alias.is_some() {
        return Err(Close::new(packets::Reason::TopicAliasInvalid, "it uses a topic alias, and none is offered"));
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
