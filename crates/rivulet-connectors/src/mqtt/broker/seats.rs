//! The places of connections, and which connection gives way when all places are taken.
//!
//! What must hold: an address that opens many connections takes no place from addresses with few. When all places are
//! taken, a new connection gets a place of the address with the most connections, if that address still has more with
//! the new one counted. Of that address the newest connection gives way, so clients that stay keep their connections
//! when others crowd in from their address. Where clients need credentials, only connections without a login give way:
//! a stranger displaces no client that has logged in. There, if no address has so many more, the oldest connection of
//! such an address gives way, so that strangers with one address each keep nobody out who has a login: whoever has one
//! logs in soon, and stays. An address that has the most itself displaces only its own. A connection that has given way
//! counts until it is closed, and the number of those is bounded: each holds a file descriptor.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::descriptors::{Yield, leaving_max, wait_closed};
use crate::logins::network;

/// The places of a broker's connections.
pub(super) struct Seats {
    connections_max: AtomicUsize,
    /// Whether clients need credentials, so that a client that logs in keeps its place.
    keeps_logins: bool,
    table: Mutex<Table>,
    /// Notified of each connection that has given way and is closed.
    closed: Notify,
}

/// What happened to connections when all places were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeatCounts {
    /// New connections that were refused.
    pub(super) refused: u64,
    /// Older connections that gave way.
    pub(super) evicted: u64,
}

#[derive(Default)]
struct Table {
    open: usize,
    /// Connections that have given way and are not closed yet. They are not in `open`.
    leaving: usize,
    /// The connections of each address that may have to give way, oldest first, each with its signal to do so.
    by_address: HashMap<IpAddr, BTreeMap<u64, Arc<Way>>, foldhash::fast::RandomState>,
    /// The addresses, ordered by the number of these connections; of those with as many, the one with the oldest of all
    /// is the last.
    by_count: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
    next: u64,
    counts: SeatCounts,
}

/// How a connection gives way.
#[derive(Default)]
struct Way {
    told: Yield,
    /// Whether it is closed without telling the client why, because many others are being told already.
    is_hurried: AtomicBool,
}

impl Table {
    /// Changes the connections of an address.
    fn change<R>(&mut self, address: IpAddr, change: impl FnOnce(&mut BTreeMap<u64, Arc<Way>>) -> R) -> R {
        let order = |seats: &BTreeMap<u64, Arc<Way>>| {
            seats.first_key_value().map(|(oldest, _)| (seats.len(), Reverse(*oldest), address))
        };
        let seats = self.by_address.entry(address).or_default();
        let before = order(seats);
        let changed = change(seats);
        let after = order(seats);
        if let Some(before) = before {
            self.by_count.remove(&before);
            self.open -= before.0;
        }
        if let Some(after) = after {
            self.by_count.insert(after);
            self.open += after.0;
        } else {
            self.by_address.remove(&address);
        }
        changed
    }

    /// Makes a connection give way to one of `address`. Returns whether there is one that may have to, and fewer than
    /// `leaving_max` others are giving way. `keeps_logins` is whether those in the table have not logged in.
    fn make_room(&mut self, address: IpAddr, leaving_max: usize, keeps_logins: bool) -> bool {
        if self.leaving >= leaving_max {
            return false;
        }
        let own = self.by_address.get(&address).map_or(0, BTreeMap::len);
        let Some(&(most, _, largest)) = self.by_count.last() else { return false };
        let gone = if most > own + 1 {
            self.change(largest, BTreeMap::pop_last)
        } else if keeps_logins {
            self.change(if most > own { largest } else { address }, BTreeMap::pop_first)
        } else {
            None
        };
        let Some((_, gone)) = gone else { return false };
        // Telling a client why may take seconds. Half of the bound is kept for connections that close at once.
        gone.is_hurried.store(self.leaving >= leaving_max / 2, Ordering::Relaxed);
        gone.told.tell();
        self.leaving += 1;
        self.counts.evicted += 1;
        true
    }
}

impl Seats {
    pub(super) fn new(connections_max: usize, keeps_logins: bool) -> Arc<Self> {
        let connections_max = AtomicUsize::new(connections_max);
        Arc::new(Self { connections_max, keeps_logins, table: Mutex::default(), closed: Notify::new() })
    }

    /// The number of places.
    pub(super) fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::Relaxed)
    }

    /// Changes the number of places. Open connections stay.
    pub(super) fn set_connections_max(&self, connections_max: usize) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
    }

    /// If too many connections are giving way, waits until one of them is closed.
    pub(super) async fn wait_closed(&self) {
        wait_closed(&self.closed, || self.table.lock().leaving < leaving_max(self.connections_max())).await;
    }

    /// Takes a place for a new connection, if one is free or another connection gives way.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        {
            let mut table = self.table.lock();
            let leaving_max = leaving_max(self.connections_max());
            let is_full = table.open >= self.connections_max();
            if is_full && !table.make_room(network(address), leaving_max, self.keeps_logins) {
                table.counts.refused += 1;
                return None;
            }
        }
        Some(self.add(address))
    }

    /// Takes a place beyond the bound: for connections of this process.
    pub(super) fn add(self: &Arc<Self>, address: IpAddr) -> Seat {
        let way = Arc::new(Way::default());
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        table.change(network(address), |seats| seats.insert(number, way.clone()));
        Seat { seats: self.clone(), address, number, way, is_kept: AtomicBool::new(false) }
    }

    pub(super) fn counts(&self) -> SeatCounts {
        self.table.lock().counts
    }
}

/// The place of one connection, which it has until it gives way. It is dropped when the connection is closed.
pub(super) struct Seat {
    seats: Arc<Seats>,
    address: IpAddr,
    number: u64,
    way: Arc<Way>,
    /// Whether it no longer gives way.
    is_kept: AtomicBool,
}

impl Seat {
    /// Notes that the client has logged in.
    pub(super) fn logged_in(&self) {
        let mut table = self.seats.table.lock();
        // A connection that was told to give way still does so.
        if self.seats.keeps_logins && table.change(network(self.address), |seats| seats.remove(&self.number)).is_some()
        {
            self.is_kept.store(true, Ordering::Relaxed);
            table.open += 1;
        }
    }

    /// Counts the connection for another address: its proxy has said where it comes from.
    pub(super) fn move_to(&mut self, address: IpAddr) {
        let mut table = self.seats.table.lock();
        let (number, before) = (self.number, network(self.address));
        // A connection that was told to give way still does so.
        if let Some(way) = table.change(before, |seats| seats.remove(&number)) {
            table.change(network(address), |seats| seats.insert(number, way));
        }
        drop(table);
        self.address = address;
    }

    /// The address of the client.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Completes when another connection has got the place, and from then on at once.
    pub(super) fn gives_way(&self) -> impl Future<Output = ()> + Send {
        self.way.told.told()
    }

    /// Whether it must close without telling the client why.
    pub(super) fn is_hurried(&self) -> bool {
        self.way.is_hurried.load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.seats.table.lock();
        if self.way.told.is_told() {
            table.leaving -= 1;
            self.seats.closed.notify_waiters();
        } else if self.is_kept.load(Ordering::Relaxed) {
            table.open -= 1;
        } else {
            table.change(network(self.address), |seats| seats.remove(&self.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_told(seat: &Seat) -> bool {
        seat.way.told.is_told()
    }

    #[test]
    fn the_newest_of_the_address_with_the_most_gives_way_to_those_that_have_fewer() {
        let seats = Seats::new(4, false);
        let [many, few] = [address("10.0.0.1"), address("10.0.0.2")];
        let mut crowd: Vec<Seat> = (0..4).map(|_| seats.take(many).unwrap()).collect();
        assert!(seats.take(many).is_none(), "it takes no place of its own");
        let first = seats.take(few).unwrap();
        assert!(is_told(&crowd[3]) && !is_told(&crowd[2]));
        crowd.pop();
        let second = seats.take(few).unwrap();
        assert!(is_told(&crowd[2]) && !is_told(&crowd[1]));
        assert!(seats.take(few).is_none() && seats.take(many).is_none(), "both have as many");
        let third = seats.take(address("10.0.0.3"));
        assert!(third.is_some());
        assert_eq!(seats.counts(), SeatCounts { refused: 3, evicted: 3 });
        // The place of a connection that gave way becomes free only once.
        crowd.drain(2..);
        assert!(seats.take(many).is_none());
        drop((crowd, first, second, third));
        let table = seats.table.lock();
        assert!(table.open == 0 && table.leaving == 0 && table.by_address.is_empty() && table.by_count.is_empty());
    }

    #[test]
    fn those_that_are_still_being_told_count_and_the_last_of_them_go_at_once() {
        const MAX: usize = 64;
        let (seats, leaving_max) = (Seats::new(MAX, false), leaving_max(MAX));
        let mut crowd: Vec<Seat> = (0..MAX).map(|_| seats.take(address("10.0.0.1")).unwrap()).collect();
        // No connection of the crowd is closed.
        let come = |network: u8| move |host: usize| address(&format!("10.{network}.{}.{}", host / 200, host % 200));
        let others: Vec<Seat> = (0..1_000).map(come(1)).filter_map(|from| seats.take(from)).collect();
        assert_eq!(others.len(), leaving_max, "no more than that hold a descriptor beyond the bound");
        let told = |hurried: bool| crowd.iter().filter(|seat| is_told(seat) && seat.is_hurried() == hurried).count();
        assert_eq!((told(false), told(true)), (leaving_max / 2, leaving_max - leaving_max / 2));
        // As soon as one is closed, another may give way.
        let gone = crowd.iter().position(is_told).unwrap();
        drop(crowd.remove(gone));
        let others: Vec<Seat> = (0..10).map(come(2)).filter_map(|from| seats.take(from)).collect();
        assert_eq!(others.len(), 1);
    }

    #[test]
    fn a_stranger_throws_out_no_client_that_has_logged_in() {
        let seats = Seats::new(3, true);
        let (many, few) = (address("10.0.0.1"), address("10.0.0.2"));
        let crowd: Vec<Seat> = (0..3).map(|_| seats.take(many).unwrap()).collect();
        crowd[2].logged_in();
        let other = seats.take(few).expect("one without a login gives way");
        assert!(is_told(&crowd[1]) && !is_told(&crowd[0]));
        other.logged_in();
        crowd[0].logged_in();
        assert!(seats.take(address("10.0.0.3")).is_none(), "all have logged in");
        drop((crowd, other));
        let table = seats.table.lock();
        assert!(table.open == 0 && table.by_address.is_empty() && table.by_count.is_empty());
    }

    #[test]
    fn strangers_with_an_address_each_keep_out_nobody_who_has_a_login() {
        const MAX: usize = 64;
        let seats = Seats::new(MAX, true);
        let stays = seats.take(address("10.1.0.1")).unwrap();
        stays.logged_in();
        let mut strangers: Vec<Seat> =
            (0..MAX - 1).map(|host| seats.take(address(&format!("10.2.0.{host}"))).unwrap()).collect();
        // The one that has not logged in for the longest time gives way, and the one that has logged in does not.
        let client = seats.take(address("10.1.0.2")).expect("a stranger gives way");
        assert!(is_told(&strangers[0]) && strangers.iter().skip(1).all(|seat| !is_told(seat)));
        assert!(!is_told(&stays) && !is_told(&client));
        strangers.remove(0);
        // More strangers come before it has logged in: older ones give way, and it logs in meanwhile.
        for host in 0..10 {
            strangers.push(seats.take(address(&format!("10.3.0.{host}"))).expect("the oldest gives way"));
            assert!(is_told(&strangers.remove(0)) && !is_told(&client));
        }
        client.logged_in();
        for host in 0..2 * MAX {
            strangers.push(seats.take(address(&format!("10.4.0.{host}"))).expect("the oldest gives way"));
            assert!(is_told(&strangers.remove(0)));
        }
        assert!(!is_told(&client) && !is_told(&stays));
        drop((strangers, client, stays));
        let table = seats.table.lock();
        assert!(table.open == 0 && table.leaving == 0 && table.by_address.is_empty() && table.by_count.is_empty());
    }

    #[test]
    fn an_address_with_the_most_displaces_its_own_oldest_and_no_other() {
        let seats = Seats::new(4, true);
        let few = seats.take(address("10.0.0.2")).unwrap();
        let crowd: Vec<Seat> = (0..3).map(|_| seats.take(address("10.0.0.1")).unwrap()).collect();
        let _client = seats.take(address("10.0.0.1")).expect("it may have the login");
        assert!(is_told(&crowd[0]) && !is_told(&crowd[1]) && !is_told(&crowd[2]) && !is_told(&few));
        // Without logins nobody can tell who stays, so nobody is displaced.
        let seats = Seats::new(2, false);
        let _both = [seats.take(address("10.0.0.1")).unwrap(), seats.take(address("10.0.0.2")).unwrap()];
        assert!(seats.take(address("10.0.0.3")).is_none() && seats.take(address("10.0.0.1")).is_none());
    }

    #[test]
    fn a_connection_through_a_proxy_counts_for_the_address_that_it_comes_from() {
        let seats = Seats::new(4, false);
        let [proxy, many, few] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(address);
        let moved = |to| {
            let mut seat = seats.take(proxy)?;
            seat.move_to(to);
            Some(seat)
        };
        let crowd: Vec<Seat> = (0..4).map(|_| moved(many).unwrap()).collect();
        let other = moved(few).expect("the crowd gives way");
        assert!(is_told(&crowd[3]) && !is_told(&crowd[2]) && !is_told(&other));
        drop((crowd, other));
        let table = seats.table.lock();
        assert!(table.open == 0 && table.leaving == 0 && table.by_address.is_empty() && table.by_count.is_empty());
    }

    #[test]
    fn a_network_of_version_6_is_one_address() {
        let seats = Seats::new(2, false);
        let _crowd = [seats.take(address("2001:db8::1")).unwrap(), seats.take(address("2001:db8::2")).unwrap()];
        assert!(seats.take(address("2001:db8::3")).is_none());
        assert!(seats.take(address("2001:db8:0:1::1")).is_some());
    }
}
