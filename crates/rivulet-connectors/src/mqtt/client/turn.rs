//! What a broker may send to its client, and the effects of its packets.

use std::sync::atomic::Ordering;

use rmqtt_codec::{v3, v5};

use super::super::codec::{self, CodecError, Frame, PacketKind, Publish, PublishProperties, Qos, Version};
use super::super::intake::{Fate, Stuck, Turn, Verdict};
use super::super::publisher::Publisher;
use super::super::router::Pending;
use super::super::topic;
use super::connect::ConnectionError;
use super::shared::{Count, Shared};

/// The most bytes that are read behind an event for which the log has no room, to find acknowledgements of results:
/// only when the results have left can a checkpoint be made, and only a checkpoint makes room.
pub(super) const READ_AHEAD_BYTES_MAX: usize = 16 << 20;

/// Notes which of our messages the broker has acknowledged.
pub(super) fn note_acknowledged(
    shared: &Shared,
    frame: &Frame<'_>,
    acknowledged: &mut Vec<u16>,
) -> Result<(), CodecError> {
    let (packet_id, reason) = codec::decode_puback(shared.options.version, frame)?;
    acknowledged.push(packet_id);
    shared.counters.add(Count::RefusedMessages, u64::from(reason >= 0x80));
    Ok(())
}

/// Processes the packets of the broker in one read.
pub(super) struct BrokerTurn<'a> {
    pub(super) shared: &'a Shared,
    pub(super) acknowledged: &'a mut Vec<u16>,
    /// Whether the broker may send a message once for each of several filters.
    pub(super) may_be_copy: bool,
    pub(super) messages: u64,
    pub(super) given_up: u64,
    pub(super) copies: u64,
    pub(super) unread: u64,
    pub(super) retained: u64,
}

impl Turn for BrokerTurn<'_> {
    type End = ConnectionError;

    #[inline]
    fn judge(&self, publish: &Publish<'_>, properties: &PublishProperties) -> Result<Verdict, ConnectionError> {
        if publish.qos == Qos::ExactlyOnce {
            return Err(ConnectionError::Protocol("it sends with QoS 2, which was not asked for"));
        }
        if properties.topic_alias.is_some() {
            return Err(ConnectionError::Protocol("it uses a topic alias, which was not offered"));
        }
        // The flag of a delivery says that the message is older than the subscription. The broker sends it after each
        // SUBSCRIBE, so it may have counted before; and a query that subscribes anew is younger than the message.
        if publish.retain {
            return Ok(Verdict::Refuse(0));
        }
        let is_copy = self.may_be_copy && self.shared.subscriptions.lock().is_copy(publish.topic, publish.properties);
        Ok(if is_copy { Verdict::Copy } else { Verdict::Take })
    }

    fn too_large(&mut self, publish: &Publish<'_>, packet_bytes: usize) {
        let Shared { options, counters, notices, .. } = self.shared;
        counters.add(Count::TooLargeEvents, 1);
        notices.say(|| {
            tracing::warn!(
                broker = %options.address, topic = %topic::in_log(publish.topic), packet_bytes,
                packet_bytes_max = options.packet_bytes_max,
                "a message was passed over: it is larger than mqtt.broker.message_bytes_max allows"
            );
        });
    }

    /// Acknowledgements of results may come behind a message. A full log gets shorter only after them, so they are read
    /// ahead, up to a bound.
    fn stuck(&self, pending: &Pending, bytes_behind: usize) -> Stuck {
        let shared = self.shared;
        let is_circle = match pending.waits_for_log() {
            true => bytes_behind >= READ_AHEAD_BYTES_MAX && !shared.in_flight.lock().is_empty(),
            false => shared.waits_for_acknowledgements.load(Ordering::Relaxed) && !shared.outbound.has_room(),
        };
        if is_circle { Stuck::InCircle } else { Stuck::Waits }
    }

    /// The packets behind it may be the acknowledgements that the last results wait for.
    fn passes_over(&mut self, publish: &Publish<'_>) -> bool {
        self.unread += u64::from(publish.qos == Qos::AtMostOnce);
        true
    }

    #[inline]
    fn conclude(&mut self, publish: &Publish<'_>, _: &PublishProperties, fate: Fate) -> u8 {
        self.messages += 1;
        match fate {
            Fate::Taken { given_up, .. } => {
                self.given_up += given_up as u64;
                0
            }
            Fate::Copy => {
                self.copies += 1;
                0
            }
            Fate::Refused(reason) => {
                self.retained += u64::from(publish.retain);
                reason
            }
        }
    }

    fn other(&mut self, frame: &Frame<'_>, was_searched: bool, _: &mut Vec<u8>) -> Result<bool, ConnectionError> {
        match frame.kind() {
            PacketKind::PubAck if was_searched => {}
            PacketKind::PubAck => note_acknowledged(self.shared, frame, self.acknowledged)?,
            _ => process_control(self.shared, self.shared.options.version, frame)?,
        }
        Ok(true)
    }
}

fn process_control(shared: &Shared, version: Version, frame: &Frame<'_>) -> Result<(), ConnectionError> {
    const UNEXPECTED: ConnectionError = ConnectionError::Protocol("it sends a packet that only a client sends");
    match version {
        Version::V3 => match codec::decode_v3(frame)? {
            v3::Packet::SubscribeAck { packet_id, status } => {
                let refusal = |code: &v3::SubscribeReturnCode| match code {
                    v3::SubscribeReturnCode::Success(_) => None,
                    v3::SubscribeReturnCode::Failure => Some("the broker does not say why".to_owned()),
                };
                shared.subscribed(packet_id.get(), &status.iter().map(refusal).collect::<Vec<_>>())
            }
            v3::Packet::UnsubscribeAck { packet_id } => shared.unsubscribed(packet_id.get()),
            v3::Packet::PingResponse => Ok(()),
            _ => Err(UNEXPECTED),
        },
        Version::V5 => match codec::decode_v5(frame)? {
            v5::Packet::SubscribeAck(answer) => {
                let refusal = |code: &v5::SubscribeAckReason| match u8::from(*code) {
                    0..=2 => None,
                    _ => Some(format!("{code:?}")),
                };
                shared.subscribed(answer.packet_id.get(), &answer.status.iter().map(refusal).collect::<Vec<_>>())
            }
            v5::Packet::UnsubscribeAck(answer) => shared.unsubscribed(answer.packet_id.get()),
            v5::Packet::PingResponse => Ok(()),
            v5::Packet::Disconnect(packet) if packet.reason_code == v5::DisconnectReasonCode::SessionTakenOver => {
                Err(ConnectionError::TakenOver(shared.options.client_id.clone()))
            }
            v5::Packet::Disconnect(packet) => {
                let said = packet.reason_string.as_deref().map(|text| format!(" ({text})")).unwrap_or_default();
                Err(ConnectionError::Disconnected(format!("{:?}{said}", packet.reason_code)))
            }
            _ => Err(UNEXPECTED),
        },
    }
}
