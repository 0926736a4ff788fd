//! The places of connections, and which connection gives way when all are taken. A connection that has given way counts
//! until it is closed, and the number of those is bounded: each holds a file descriptor.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::descriptors::{Descriptors, Yield, leaving_max, wait_closed};

/// The places of a server's connections.
pub(super) struct Seats {
    connections_max: AtomicUsize,
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
    /// Connections that wait for their client, the one that has waited longest first.
    waiting: BTreeMap<u64, Arc<Yield>>,
    next_ticket: u64,
}

impl Seats {
    pub(super) fn new(connections_max: usize, shared: Option<&'static Descriptors>) -> Arc<Self> {
        let connections_max = AtomicUsize::new(connections_max);
        Arc::new(Self { connections_max, shared, table: Mutex::default(), closed: Notify::new() })
    }

    /// Changes the number of places. Open connections stay.
    pub(super) fn set_connections_max(&self, connections_max: usize) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
    }

    /// Waits until connections that have given way are closed: a crowd that comes at once must not keep others out by
    /// them.
    pub(super) async fn wait_closed(&self) {
        wait_closed(&self.closed, || self.table.lock().leaving == 0).await;
    }

    /// Takes a place for a new connection, if necessary that of the connection that has waited longest for its client.
    pub(super) fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut table = self.table.lock();
        let connections_max = self.connections_max.load(Ordering::Relaxed);
        let is_free = table.open - table.leaving < connections_max && self.shared.is_none_or(Descriptors::take);
        if !is_free {
            let may_leave = table.leaving < leaving_max(connections_max) && !table.waiting.is_empty();
            if !may_leave || !self.shared.is_none_or(Descriptors::take_over) {
                return None;
            }
            let (_, longest) = table.waiting.pop_first()?;
            longest.tell();
            table.leaving += 1;
        }
        table.open += 1;
        drop(table);
        let place = Place { seats: self.clone(), state: Arc::default(), way: Arc::default() };
        place.change(|_| ());
        Some(Seat(place))
    }
}

/// The place of one connection, which it has until it gives way. It is dropped when the connection is closed.
pub(super) struct Seat(Place);

impl Seat {
    pub(super) fn place(&self) -> Place {
        self.0.clone()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Place { seats, state, way } = &self.0;
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
            table.waiting.insert(ticket, self.way.clone());
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

    fn is_told(seat: &Seat) -> bool {
        seat.0.way.is_told()
    }

    #[test]
    fn who_has_waited_longest_gives_way_and_nobody_else() {
        let seats = Seats::new(3, None);
        let (first, second, third) = (seats.take().unwrap(), seats.take().unwrap(), seats.take().unwrap());
        let turn = first.place().begin_request();
        let fourth = seats.take().unwrap();
        assert!(!is_told(&first) && is_told(&second) && !is_told(&third));
        drop(second);
        drop(turn);
        // A body that does not come counts as waiting, from then on.
        let _turns = [third.place().begin_request(), fourth.place().begin_request()];
        third.place().await_body(true);
        let fifth = seats.take().unwrap();
        assert!(is_told(&first) && !is_told(&third));
        let _turn = fifth.place().begin_request();
        let _sixth = seats.take().unwrap();
        assert!(is_told(&third) && !is_told(&fourth) && !is_told(&fifth));
    }

    #[test]
    fn those_that_have_given_way_and_are_not_closed_count() {
        const MAX: usize = 64;
        static SHARED: Descriptors = Descriptors::new(48);
        for (shared, max) in [(None, MAX), (Some(&SHARED), 48)] {
            let seats = Seats::new(MAX, shared);
            // None of them is served, so none is closed.
            let mut taken: Vec<Seat> = (0..1_000).filter_map(|_| seats.take()).collect();
            assert_eq!(taken.len(), max + leaving_max(max));
            let gone = taken.iter().position(is_told).unwrap();
            drop(taken.remove(gone));
            assert!(seats.take().is_some());
            drop(taken);
            let table = seats.table.lock();
            assert_eq!((table.open, table.leaving), (0, 0));
        }
    }

    #[test]
    fn where_everybody_is_busy_nobody_gives_way() {
        let seats = Seats::new(2, None);
        let taken = [seats.take().unwrap(), seats.take().unwrap()];
        let turns = taken.each_ref().map(|seat| seat.place().begin_request());
        assert!(seats.take().is_none());
        drop(turns);
        drop(taken);
        assert_eq!(seats.table.lock().open, 0);
        assert!(seats.table.lock().waiting.is_empty());
        assert!(seats.take().is_some());
    }
}
