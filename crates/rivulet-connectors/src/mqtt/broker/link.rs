//! A session's connection: what its client accepts, and how messages become packets for it.

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;

use super::super::codec::{Qos, Version};
use super::message::{Alias, Delivery, Header, Manner, Message, encode_kept};
use super::outbox::Outbox;

/// The connection of a session.
pub(super) struct Link {
    pub(super) outbox: Arc<Outbox>,
    pub(super) terms: Terms,
    /// The topics that have an alias, each with it; `None` before the first.
    aliases: Option<Box<HashMap<Box<[u8]>, u16>>>,
    /// Kept so that the memory is reused.
    packet: Vec<u8>,
}

/// What a client accepts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) version: Version,
    /// The largest packet.
    pub(super) packet_bytes_max: usize,
    /// The number of messages of QoS 1 and 2 that may be in flight.
    pub(super) window: usize,
    /// The highest topic alias.
    pub(super) aliases_max: u16,
}

/// The longest topic that gets an alias, in bytes: a bound for what a connection keeps of topics.
const ALIASED_BYTES_MAX: usize = 1024;

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
    pub(super) fn new(outbox: Arc<Outbox>, terms: Terms) -> Self {
        Self { outbox, terms, aliases: None, packet: Vec::new() }
    }

    /// Offers a message that is just being published to the outbox. With QoS 0 it has no packet identifier.
    #[inline]
    pub(super) fn deliver(&mut self, delivery: &mut Delivery<'_>, manner: Manner, packet_id: u16) -> Offered {
        // With a subscription identifier or an alias the packet is this subscriber's own. The expiry time has just
        // begun, so the common packet has the right value.
        let Terms { version, packet_bytes_max, aliases_max, .. } = self.terms;
        if version == Version::V5 && (!manner.identifiers.is_empty() || aliases_max > 0) {
            return self.offer(&delivery.keep(), manner, (packet_id, false));
        }
        let identity = |id_at| (manner.qos > Qos::AtMostOnce).then_some((id_at, packet_id));
        match delivery.packet(version, manner.qos, manner.retain) {
            Some((packet, _)) if packet.len() > packet_bytes_max => Offered::TooLarge,
            None => Offered::TooLarge,
            Some((packet, id_at)) if self.outbox.offer(packet, identity(id_at)) => Offered::Taken,
            Some(_) => Offered::Full,
        }
    }

    /// Offers a kept message to the outbox, with its packet identifier (0 with QoS 0) and whether it may have been sent
    /// before.
    pub(super) fn offer(&mut self, message: &Message, manner: Manner, (packet_id, is_again): (u16, bool)) -> Offered {
        let alias = self.alias(&message.topic);
        if !self.encode(message, manner, Header { alias, packet_id, is_again }) {
            return Offered::TooLarge;
        }
        if !self.outbox.offer(&self.packet, None) {
            return Offered::Full;
        }
        if let Alias::New(alias) = alias {
            self.aliases.get_or_insert_default().insert(message.topic.clone(), alias);
        }
        Offered::Taken
    }

    /// The alias of a topic; the first topics get one.
    fn alias(&self, topic: &[u8]) -> Alias {
        let known = self.aliases.as_deref();
        let next = known.map_or(0, HashMap::len) + 1;
        match known.and_then(|known| known.get(topic)) {
            Some(&alias) => Alias::Known(alias),
            None if next <= usize::from(self.terms.aliases_max) && topic.len() <= ALIASED_BYTES_MAX => {
                Alias::New(next as u16)
            }
            None => Alias::None,
        }
    }

    /// Sends a message again that is in flight, whether there is room or not. Returns false if the client does not
    /// accept a packet of this size.
    pub(super) fn send_again(&mut self, message: &Message, manner: Manner, packet_id: u16) -> bool {
        let fits = self.encode(message, manner, Header { alias: Alias::None, packet_id, is_again: true });
        if fits {
            self.outbox.answer(|out| out.extend_from_slice(&self.packet));
        }
        fits
    }

    fn encode(&mut self, message: &Message, manner: Manner, header: Header) -> bool {
        self.packet.clear();
        self.packet.shrink_to(PACKET_BYTES_KEPT);
        let Terms { version, packet_bytes_max, .. } = self.terms;
        let encoded = encode_kept(message, manner, header, version, Instant::now(), &mut self.packet);
        encoded && self.packet.len() <= packet_bytes_max
    }
}
