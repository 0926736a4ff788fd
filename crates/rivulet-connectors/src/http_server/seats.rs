//! The places of connections, and which connection gives way when all are taken. A connection that has given way counts
//! until it is closed, and the number of those is bounded: each holds a file descriptor.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::addresses::{ByAddress, Counted, share_of};
use crate::descriptors::{Descriptors, Yield, leaving_max, wait_closed};
use crate::logins::network;

/// The places of a server's connections.
pub(super) struct Seats {
    connections_max: AtomicUsize,
    address_share_percent: AtomicUsize,
    /// The descriptors that are shared with other servers.
    shared: Option<&'static Descriptors>,
    table: Mutex<Table>,
    /// Notified of each connection that has given way and is closed.
    closed: Notify,
}

#[derive(Default)]
struct Table {
    /// The number of connections that are not closed.
    open: usize,
    /// The number of those that have given way.
    leaving: usize,
    /// Connections that wait for their client, with their addresses, the one that has waited longest first.
    waiting: BTreeMap<u64, (IpAddr, Arc<Yield>)>,
    /// The connections of each address, with those that have given way and are not closed.
    by_address: Arc<ByAddress>,
    next_ticket: u64,
}

impl Seats {
    pub(super) fn new(
        connections_max: usize,
        address_share_percent: usize,
        shared: Option<&'static Descriptors>,
    ) -> Arc<Self> {
        let (connections_max, address_share_percent) = (connections_max.into(), address_share_percent.into());
        let (table, closed) = (Mutex::default(), Notify::new());
        Arc::new(Self { connections_max, address_share_percent, shared, table, closed })
    }

    /// Changes the number of places, and how many of them one address may have. Open connections stay.
    pub(super) fn set_bounds(&self, connections_max: usize, address_share_percent: usize) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
        self.address_share_percent.store(address_share_percent, Ordering::Relaxed);
    }

    /// Waits until connections that have given way are closed: a crowd that comes at once must not keep others out by
    /// them.
    pub(super) async fn wait_closed(&self) {
        wait_closed(&self.closed, || self.table.lock().leaving == 0).await;
    }

    /// Takes a place for a new connection of an address, if necessary that of the connection that has waited longest
    /// for its client; where the address has its share, of those of its own.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let mut table = self.table.lock();
        let address = network(address);
        let connections_max = self.connections_max.load(Ordering::Relaxed);
        let share = share_of(connections_max, self.address_share_percent.load(Ordering::Relaxed));
        let has_share = table.by_address.is_full(address, share);
        let has_room = !has_share && table.open - table.leaving < connections_max;
        if !has_room || !self.shared.is_none_or(Descriptors::take) {
            let mut waiting = table.waiting.iter().filter(|(_, (of, _))| !has_share || *of == address);
            let longest = waiting.next().map(|(ticket, _)| *ticket)?;
            let may_leave = table.leaving < leaving_max(connections_max);
            if !may_leave || !self.shared.is_none_or(Descriptors::take_over) {
                return None;
            }
            let (_, longest) = table.waiting.remove(&longest)?;
            longest.tell();
            table.leaving += 1;
        }
        table.open += 1;
        let counted = table.by_address.count(address);
        drop(table);
        let place = Place { seats: self.clone(), address, state: Arc::default(), way: Arc::default() };
        place.change(|_| ());
        Some(Seat(place, counted))
    }
}

/// The place of one connection, which it has until it gives way. It is dropped when the connection is closed.
pub(super) struct Seat(Place, #[expect(dead_code, reason = "it counts until it is dropped")] Counted);

impl Seat {
    pub(super) fn place(&self) -> Place {
        self.0.clone()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Place { seats, state, way, .. } = &self.0;
        let mut table = seats.table.lock();
        let mut state = state.lock();
        state.has_ended = true;
        if let Some(ticket) = state.ticket.take() {
            table.waiting.remove(&ticket);
        }
        table.open -= 1;
        if way.is_told() {
            table.leaving -= 1;
            seats.closed.notify_waiters();
        }
        seats.shared.inspect(|shared| shared.give_back());
    }
}

/// What a connection does: whether it waits for its client.
#[derive(Clone)]
pub(super) struct Place {
    seats: Arc<Seats>,
    address: IpAddr,
    /// Locked behind the table.
    state: Arc<Mutex<State>>,
    way: Arc<Yield>,
}

#[derive(Default)]
struct State {
    has_request: bool,
    awaits_body: bool,
    has_ended: bool,
    /// Its number in the order of connections that wait.
    ticket: Option<u64>,
}

impl Place {
    /// Changes what the connection does. A waiting connection that begins to wait anew goes behind all others.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut table = self.seats.table.lock();
        let mut state = self.state.lock();
        if let Some(ticket) = state.ticket.take() {
            table.waiting.remove(&ticket);
        }
        change(&mut state);
        if (!state.has_request || state.awaits_body) && !state.has_ended && !self.way.is_told() {
            let ticket = table.next_ticket;
            table.next_ticket += 1;
            table.waiting.insert(ticket, (self.address, self.way.clone()));
            state.ticket = Some(ticket);
        }
    }

    /// Begins a request; its turn ends when the answer is written.
    pub(super) fn begin_request(&self) -> Turn {
        self.change(|state| state.has_request = true);
        Turn(self.clone())
    }

    /// Notes whether the server waits for the body of the request.
    pub(super) fn await_body(&self, awaits_body: bool) {
        self.change(|state| state.awaits_body = awaits_body);
    }

    pub(super) fn has_request(&self) -> bool {
        self.state.lock().has_request
    }

    /// Completes when another connection has got the place.
    pub(super) async fn gives_way(&self) {
        self.way.told().await;
    }
}

/// A request under way.
pub(super) struct Turn(Place);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.change(|state| (state.has_request, state.awaits_body) = (false, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn is_told(seat: &Seat) -> bool {
        seat.0.way.is_told()
    }

    #[test]
    fn who_has_waited_longest_gives_way_and_nobody_else() {
        let seats = Seats::new(3, 100, None);
        let (first, second, third) =
            (seats.take(OTHER).unwrap(), seats.take(OTHER).unwrap(), seats.take(OTHER).unwrap());
        let turn = first.place().begin_request();
        let fourth = seats.take(OTHER).unwrap();
        assert!(!is_told(&first) && is_told(&second) && !is_told(&third));
        drop(second);
        drop(turn);
        // A body that does not come counts as waiting, from then on.
        let _turns = [third.place().begin_request(), fourth.place().begin_request()];
        third.place().await_body(true);
        let fifth = seats.take(OTHER).unwrap();
        assert!(is_told(&first) && !is_told(&third));
        let _turn = fifth.place().begin_request();
        let _sixth = seats.take(OTHER).unwrap();
        assert!(is_told(&third) && !is_told(&fourth) && !is_told(&fifth));
    }

    #[test]
    fn those_that_have_given_way_and_are_not_closed_count() {
        const MAX: usize = 64;
        static SHARED: Descriptors = Descriptors::new(48);
        for (shared, max) in [(None, MAX), (Some(&SHARED), 48)] {
            let seats = Seats::new(MAX, 100, shared);
            // None of them is served, so none is closed.
            let mut taken: Vec<Seat> = (0..1_000).filter_map(|_| seats.take(OTHER)).collect();
            assert_eq!(taken.len(), max + leaving_max(max));
            let gone = taken.iter().position(is_told).unwrap();
            drop(taken.remove(gone));
            assert!(seats.take(OTHER).is_some());
            drop(taken);
            let table = seats.table.lock();
            assert_eq!((table.open, table.leaving), (0, 0));
        }
    }

    #[test]
    fn an_address_that_has_its_share_takes_places_of_its_own_alone() {
        let seats = Seats::new(8, 50, None);
        let crowd: Vec<Seat> = (0..4).map(|_| seats.take(OTHER).unwrap()).collect();
        let quiet: Vec<Seat> = (0..2).map(|_| seats.take([10, 0, 0, 2].into()).unwrap()).collect();
        // Two places are free, and the share is used up: the first of its own gives way.
        let _fifth = seats.take(OTHER).unwrap();
        assert!(is_told(&crowd[0]) && !quiet.iter().any(is_told));
        let turns: Vec<Turn> = crowd[1..].iter().map(|seat| seat.place().begin_request()).collect();
        let _turn = _fifth.place().begin_request();
        assert!(seats.take(OTHER).is_none(), "all of its own are busy");
        let _third = seats.take([10, 0, 0, 3].into()).unwrap();
        assert!(!quiet.iter().any(is_told));
        drop(turns);
        // This machine has no share.
        let seats = Seats::new(8, 50, None);
        let local: Vec<Seat> = (0..8).map(|_| seats.take([127, 0, 0, 1].into()).unwrap()).collect();
        assert!(!local.iter().any(is_told));
    }

    #[test]
    fn where_everybody_is_busy_nobody_gives_way() {
        let seats = Seats::new(2, 100, None);
        let taken = [seats.take(OTHER).unwrap(), seats.take(OTHER).unwrap()];
        let turns = taken.each_ref().map(|seat| seat.place().begin_request());
        assert!(seats.take(OTHER).is_none());
        drop(turns);
        drop(taken);
        assert_eq!(seats.table.lock().open, 0);
        assert!(seats.table.lock().waiting.is_empty());
        assert!(seats.take(OTHER).is_some());
    }
}
