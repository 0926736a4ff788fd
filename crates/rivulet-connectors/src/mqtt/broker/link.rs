//! A session's connection: what its client accepts, and how messages become packets for it.

use std::sync::Arc;
use std::time::Instant;

use super::super::codec::{Qos, Version};
use super::message::{Delivery, Manner, Message, encode_kept};
use super::outbox::Outbox;

/// The connection of a session.
pub(super) struct Link {
    pub(super) outbox: Arc<Outbox>,
    pub(super) version: Version,
    /// The largest packet that the client accepts.
    pub(super) packet_bytes_max: usize,
    /// The number of messages of QoS 1 and 2 that may be in flight.
    pub(super) window: usize,
    /// Kept so that the memory is reused.
    packet: Vec<u8>,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    Taken,
    /// The outbox has no room for it.
    Full,
    /// The client does not accept a packet of this size.
    TooLarge,
}

/// The most memory that a link keeps for packets.
const PACKET_BYTES_KEPT: usize = 4 << 10;

impl Link {
    pub(super) fn new(outbox: Arc<Outbox>, version: Version, packet_bytes_max: usize, window: usize) -> Self {
        Self { outbox, version, packet_bytes_max, window, packet: Vec::new() }
    }

    /// Offers a message that is just being published to the outbox. With QoS 0 it has no packet identifier.
    #[inline]
    pub(super) fn deliver(&mut self, delivery: &mut Delivery<'_>, manner: Manner, packet_id: u16) -> Offered {
        // With a subscription identifier the packet is this subscriber's own. The expiry time has just begun, so the
        // common packet has the right value.
        if !manner.identifiers.is_empty() && self.version == Version::V5 {
            return self.offer(&delivery.keep(), manner, (packet_id, false));
        }
        let identity = |id_at| (manner.qos > Qos::AtMostOnce).then_some((id_at, packet_id));
        match delivery.packet(self.version, manner.qos, manner.retain) {
            Some((packet, _)) if packet.len() > self.packet_bytes_max => Offered::TooLarge,
            None => Offered::TooLarge,
            Some((packet, id_at)) if self.outbox.offer(packet, identity(id_at)) => Offered::Taken,
            Some(_) => Offered::Full,
        }
    }

    /// Offers a kept message to the outbox, with its packet identifier (0 with QoS 0) and whether it may have been sent
    /// before.
    pub(super) fn offer(&mut self, message: &Message, manner: Manner, (packet_id, is_again): (u16, bool)) -> Offered {
        match self.encode(message, manner, (packet_id, is_again)) {
            false => Offered::TooLarge,
            true if self.outbox.offer(&self.packet, None) => Offered::Taken,
            true => Offered::Full,
        }
    }

    /// Sends a message again that is in flight, whether there is room or not. Returns false if the client does not
    /// accept a packet of this size.
    pub(super) fn send_again(&mut self, message: &Message, manner: Manner, packet_id: u16) -> bool {
        let fits = self.encode(message, manner, (packet_id, true));
        if fits {
            self.outbox.answer(|out| out.extend_from_slice(&self.packet));
        }
        fits
    }

    fn encode(&mut self, message: &Message, manner: Manner, identity: (u16, bool)) -> bool {
        self.packet.clear();
        self.packet.shrink_to(PACKET_BYTES_KEPT);
        let now = Instant::now();
        encode_kept(message, manner, self.version, identity, self.packet_bytes_max, now, &mut self.packet)
    }
}
