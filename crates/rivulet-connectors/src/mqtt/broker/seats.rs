//! The places of connections, and which connection gives way when there are no more.
//!
//! What must hold: whoever opens many connections takes no place from those who have few. Where all places are taken, a
//! new connection gets that of the address with the most, if it has more even then. Of that address the newest gives
//! way, so clients that stay keep their connections when others of their address crowd in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::addresses::network;

/// The places of a broker's connections.
pub(super) struct Seats {
    connections_max: usize,
    table: Mutex<Table>,
}

/// How connections fared that came when all places were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeatCounts {
    /// New ones that were refused.
    pub(super) refused: u64,
    /// Older ones that gave way.
    pub(super) evicted: u64,
}

#[derive(Default)]
struct Table {
    open: usize,
    /// The connections of each address, oldest first, with what tells them to give way.
    by_address: HashMap<IpAddr, BTreeMap<u64, Arc<Notify>>, foldhash::fast::RandomState>,
    /// How many these are.
    by_count: BTreeSet<(usize, IpAddr)>,
    next: u64,
    counts: SeatCounts,
}

impl Table {
    /// Changes the connections of an address.
    fn change<R>(&mut self, address: IpAddr, change: impl FnOnce(&mut BTreeMap<u64, Arc<Notify>>) -> R) -> R {
        let seats = self.by_address.entry(address).or_default();
        let before = seats.len();
        let changed = change(seats);
        let after = seats.len();
        self.by_count.remove(&(before, address));
        if after == 0 {
            self.by_address.remove(&address);
        } else {
            self.by_count.insert((after, address));
        }
        self.open = self.open - before + after;
        changed
    }

    /// Has a connection of the address with the most give way to one of `address`. Returns whether there is such a one.
    fn make_room(&mut self, address: IpAddr) -> bool {
        let own = self.by_address.get(&address).map_or(0, BTreeMap::len);
        let Some(&(_, largest)) = self.by_count.last().filter(|(most, _)| *most > own + 1) else { return false };
        let Some((_, newest)) = self.change(largest, BTreeMap::pop_last) else { return false };
        newest.notify_one();
        self.counts.evicted += 1;
        true
    }
}

impl Seats {
    pub(super) fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self { connections_max, table: Mutex::default() })
    }

    /// A place for a new connection, if there is one, or another connection has to give way.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        {
            let mut table = self.table.lock();
            if table.open >= self.connections_max && !table.make_room(network(address)) {
                table.counts.refused += 1;
                return None;
            }
        }
        Some(self.add(address))
    }

    /// A place beyond the bound: for connections of this process.
    pub(super) fn add(self: &Arc<Self>, address: IpAddr) -> Seat {
        let way = Arc::new(Notify::new());
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        table.change(network(address), |seats| seats.insert(number, way.clone()));
        Seat { seats: self.clone(), address, number, way }
    }

    pub(super) fn counts(&self) -> SeatCounts {
        self.table.lock().counts
    }
}

/// The place of one connection, which it has until this is dropped or it gives way.
pub(super) struct Seat {
    seats: Arc<Seats>,
    address: IpAddr,
    number: u64,
    way: Arc<Notify>,
}

impl Seat {
    /// Where the client comes from.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Completes when another connection has got the place.
    pub(super) async fn gives_way(&self) {
        self.way.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.table.lock().change(network(self.address), |seats| seats.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_told(seat: &Seat) -> bool {
        !seat.seats.table.lock().by_address.values().any(|seats| seats.contains_key(&seat.number))
    }

    #[test]
    fn the_newest_of_the_address_with_the_most_gives_way_to_those_that_have_fewer() {
        let seats = Seats::new(4);
        let [many, few] = [address("10.0.0.1"), address("10.0.0.2")];
        let mut crowd: Vec<Seat> = (0..4).map(|_| seats.take(many).unwrap()).collect();
        assert!(seats.take(many).is_none(), "it takes no place of its own");
        let first = seats.take(few).unwrap();
        assert!(is_told(&crowd[3]) && !is_told(&crowd[2]));
        let second = seats.take(few).unwrap();
        assert!(is_told(&crowd[2]) && !is_told(&crowd[1]));
        assert!(seats.take(few).is_none() && seats.take(many).is_none(), "both have as many");
        let third = seats.take(address("10.0.0.3"));
        assert!(third.is_some());
        assert_eq!(seats.counts(), SeatCounts { refused: 3, evicted: 3 });
        // The place of one that gave way is free only once.
        crowd.drain(2..);
        assert!(seats.take(many).is_none());
        drop((crowd, first, second, third));
        let table = seats.table.lock();
        assert!(table.open == 0 && table.by_address.is_empty() && table.by_count.is_empty());
    }

    #[test]
    fn a_network_of_version_6_is_one_address() {
        let seats = Seats::new(2);
        let _crowd = [seats.take(address("2001:db8::1")).unwrap(), seats.take(address("2001:db8::2")).unwrap()];
        assert!(seats.take(address("2001:db8::3")).is_none());
        assert!(seats.take(address("2001:db8:0:1::1")).is_some());
    }
}
