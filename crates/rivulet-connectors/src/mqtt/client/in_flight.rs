//! Messages of QoS 1 that the broker has not acknowledged yet.

use std::collections::VecDeque;

/// Packet identifiers of publishes go from 1 to this; higher ones belong to subscriptions.
const PACKET_ID_MAX: u16 = 60_000;

/// The DUP flag in the first byte of a PUBLISH.
const DUPLICATE: u8 = 0b1000;

/// Messages that were sent and not acknowledged, oldest first, under consecutive packet identifiers.
#[derive(Debug)]
pub(super) struct InFlight {
    /// `None` if the message was acknowledged before an older one.
    entries: VecDeque<Option<Entry>>,
    /// The packet identifier of the first entry.
    first_id: u16,
    /// The number of entries that were sent on this connection, from the front.
    sent: usize,
    /// The number of those that are not acknowledged.
    unacknowledged: usize,
}

#[derive(Debug)]
struct Entry {
    packet: Box<[u8]>,
    queued_bytes: usize,
    /// Its number among all messages.
    number: u64,
    /// Whether it was sent on an earlier connection.
    is_resent: bool,
}

impl InFlight {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), first_id: 1, sent: 0, unacknowledged: 0 }
    }

    /// Whether nothing waits for an acknowledgement.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether one more may be sent to a broker that accepts `receive_max` at a time.
    pub(super) fn has_room(&self, receive_max: u16) -> bool {
        self.unacknowledged < usize::from(receive_max) && self.entries.len() < usize::from(PACKET_ID_MAX)
    }

    /// The number of the oldest message that is not acknowledged.
    pub(super) fn first_number(&self) -> Option<u64> {
        // The first entry is unacknowledged: acknowledged entries are removed as soon as they are first.
        self.entries.front()?.as_ref().map(|entry| entry.number)
    }

    /// The packet identifier of the next message.
    pub(super) fn next_id(&self) -> u16 {
        id_after(self.first_id, self.entries.len())
    }

    /// Keeps a message that was just sent under [`InFlight::next_id`].
    ///
    /// # Panics
    /// If older messages are still to be sent again.
    pub(super) fn push(&mut self, packet: Box<[u8]>, queued_bytes: usize, number: u64) {
        assert_eq!(self.sent, self.entries.len(), "messages go out in order");
        self.entries.push_back(Some(Entry { packet, queued_bytes, number, is_resent: false }));
        self.sent += 1;
        self.unacknowledged += 1;
    }

    /// Notes that a message was acknowledged. Returns the bytes it was queued for; `None` if the identifier is not one
    /// of ours.
    pub(super) fn acknowledge(&mut self, packet_id: u16) -> Option<usize> {
        if packet_id == 0 || packet_id > PACKET_ID_MAX {
            return None;
        }
        let [id, first, ids] = [packet_id, self.first_id, PACKET_ID_MAX].map(usize::from);
        let index = (id + ids - first) % ids;
        let entry = self.entries.get_mut(index).filter(|_| index < self.sent)?.take()?;
        self.unacknowledged -= 1;
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first_id = id_after(self.first_id, 1);
            self.sent -= 1;
        }
        Some(entry.queued_bytes)
    }

    /// Notes a new connection: all messages are to be sent again.
    pub(super) fn connected(&mut self) {
        self.sent = 0;
        self.unacknowledged = 0;
        self.entries.iter_mut().flatten().for_each(|entry| entry.is_resent = true);
    }

    /// Whether any message is to be sent again.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.entries.len()
    }

    /// Appends the next message to be sent again. `session_present` says whether the broker may know it.
    pub(super) fn resend_next(&mut self, session_present: bool, out: &mut Vec<u8>) {
        let Some(entry) = self.entries.get(self.sent) else { return };
        self.sent += 1;
        if let Some(entry) = entry {
            let start = out.len();
            out.extend_from_slice(&entry.packet);
            if entry.is_resent && session_present {
                out[start] |= DUPLICATE;
            }
            self.unacknowledged += 1;
        }
    }
}

fn id_after(id: u16, steps: usize) -> u16 {
    ((usize::from(id) - 1 + steps) % usize::from(PACKET_ID_MAX)) as u16 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(in_flight: &mut InFlight) -> u16 {
        let id = in_flight.next_id();
        in_flight.push(vec![0x32, id as u8].into(), 10, u64::from(id));
        id
    }

    #[test]
    fn acknowledgements_may_come_in_any_order_and_only_once() {
        let mut in_flight = InFlight::new();
        let ids: Vec<u16> = (0..4).map(|_| push(&mut in_flight)).collect();
        assert!(!in_flight.has_room(4) && in_flight.has_room(5));
        for index in [2, 0, 3, 1] {
            assert_eq!(in_flight.acknowledge(ids[index]), Some(10));
            assert_eq!(in_flight.acknowledge(ids[index]), None);
        }
        assert!(in_flight.is_empty());
        assert_eq!(in_flight.acknowledge(0), None);
        assert_eq!(in_flight.acknowledge(u16::MAX), None);
    }

    #[test]
    fn identifiers_go_round_below_those_of_subscriptions() {
        let mut in_flight = InFlight::new();
        for round in 0..150_000u32 {
            let id = push(&mut in_flight);
            assert_eq!(u32::from(id), round % u32::from(PACKET_ID_MAX) + 1);
            if round >= 10 {
                let oldest = (round - 10) % u32::from(PACKET_ID_MAX) + 1;
                assert!(in_flight.acknowledge(oldest as u16).is_some());
            }
        }
    }

    #[test]
    fn an_acknowledgement_may_come_before_those_of_thousands_of_older_messages() {
        let mut in_flight = InFlight::new();
        let last = (0..10_000).map(|_| push(&mut in_flight)).last().unwrap();
        assert_eq!((last, in_flight.acknowledge(last)), (10_000, Some(10)));
        assert_eq!(in_flight.acknowledge(last), None);
    }

    #[test]
    fn after_a_reconnect_everything_is_sent_again_within_the_window() {
        let mut in_flight = InFlight::new();
        let ids: Vec<u16> = (0..5).map(|_| push(&mut in_flight)).collect();
        in_flight.acknowledge(ids[1]);
        in_flight.connected();
        assert_eq!(in_flight.acknowledge(ids[2]), None, "it was not sent on this connection");
        let mut out = Vec::new();
        while in_flight.has_unsent() && in_flight.has_room(2) {
            in_flight.resend_next(true, &mut out);
        }
        assert_eq!(out, [0x3a, ids[0] as u8, 0x3a, ids[2] as u8]);
        assert!(in_flight.acknowledge(ids[0]).is_some() && in_flight.has_room(2));
        while in_flight.has_unsent() {
            in_flight.resend_next(false, &mut out);
        }
        assert_eq!(out[4..], [0x32, ids[3] as u8, 0x32, ids[4] as u8]);
    }
}
