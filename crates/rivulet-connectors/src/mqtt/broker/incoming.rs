//! The messages of QoS 2 that a client has sent and not released: each of their packet identifiers stands for one
//! message until the client's PUBREL, and a PUBLISH that comes with it again is only answered (MQTT 5, 4.3.3).

use std::collections::VecDeque;

use rivulet_dataflow::LogPosition;

/// A message of QoS 2 that is not released yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreleased {
    pub(super) packet_id: u16,
    /// Its position in the log of events; 0 if it is not there, [`LOST`] if it is not there and its process has ended.
    pub(super) position: LogPosition,
}

/// The position of a message that subscribers have, and inboxes have not: it was in memory, or on its way to the log.
pub(super) const LOST: LogPosition = LogPosition::MAX;

impl Unreleased {
    /// The message as it is after a start whose log of events has the positions before `log_end`.
    pub(super) fn restored(self, log_end: LogPosition) -> Self {
        match (1..log_end).contains(&self.position) {
            true => self,
            false => Self { position: LOST, ..self },
        }
    }
}

/// What is known of a message of QoS 2 that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    New,
    /// It was taken before.
    Repeat,
    /// It was taken by an earlier process: sessions that outlive it have the message, and inputs have not.
    Lost,
}

/// The unreleased messages of one session, by packet identifier.
#[derive(Debug, Default)]
pub(super) struct Incoming(VecDeque<Unreleased>);

/// Memory of one of them, in bytes.
pub(super) const UNRELEASED_BYTES: usize = 2 * size_of::<Unreleased>();

impl Incoming {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a message with this packet identifier was taken before.
    pub(super) fn arrival(&self, packet_id: u16) -> Arrival {
        match self.place(packet_id) {
            Ok(place) if self.0[place].position == LOST => Arrival::Lost,
            Ok(_) => Arrival::Repeat,
            Err(_) => Arrival::New,
        }
    }

    /// Notes a message that was taken. Returns whether it is new.
    pub(super) fn take(&mut self, taken: Unreleased) -> bool {
        match self.place(taken.packet_id) {
            Ok(place) => self.0[place] = taken,
            // Clients count identifiers up, so this is mostly the end, and the start once in 65,535 messages.
            Err(place) => {
                self.0.insert(place, taken);
                return true;
            }
        }
        false
    }

    /// Forgets a message. Returns whether it was known.
    pub(super) fn release(&mut self, packet_id: u16) -> bool {
        let place = self.place(packet_id);
        place.is_ok_and(|place| self.0.remove(place).is_some())
    }

    /// Adds a message that an earlier process took, whose log of events has the positions before `log_end`.
    pub(super) fn restore(&mut self, unreleased: Unreleased, log_end: LogPosition) {
        self.take(unreleased.restored(log_end));
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Unreleased> {
        self.0.iter()
    }

    fn place(&self, packet_id: u16) -> Result<usize, usize> {
        self.0.binary_search_by_key(&packet_id, |unreleased| unreleased.packet_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_stands_for_one_message_until_it_is_released() {
        let mut incoming = Incoming::default();
        let taken = |packet_id| Unreleased { packet_id, position: 0 };
        for packet_id in [65_534, 65_535, 1, 2] {
            assert_eq!(incoming.arrival(packet_id), Arrival::New);
            assert!(incoming.take(taken(packet_id)));
            assert_eq!(incoming.arrival(packet_id), Arrival::Repeat);
            assert!(!incoming.take(taken(packet_id)));
        }
        assert!(incoming.release(65_535) && !incoming.release(65_535));
        assert_eq!((incoming.arrival(65_535), incoming.len()), (Arrival::New, 3));
    }

    #[test]
    fn a_message_that_the_log_lost_is_taken_again() {
        let mut incoming = Incoming::default();
        for (packet_id, position) in [(1, 0), (2, 9), (3, 10)] {
            incoming.restore(Unreleased { packet_id, position }, 10);
        }
        let arrivals = [1, 2, 3].map(|packet_id| incoming.arrival(packet_id));
        assert_eq!(arrivals, [Arrival::Lost, Arrival::Repeat, Arrival::Lost]);
        assert!(!incoming.take(Unreleased { packet_id: 3, position: 10 }));
        assert_eq!(incoming.arrival(3), Arrival::Repeat);
    }
}
