//! Sessions and subscriptions by the address of their clients.
//!
//! What must hold: an address that opens many sessions displaces its own. A session of another address is displaced
//! only if that address has more sessions than the one that needs room.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;

use super::memory::{Memory, Share};
use super::slab::Slab;
use crate::logins::network;

/// The number of a session. It is reused when the session is gone.
pub(super) type SessionKey = u32;

/// The number of an address. It is reused when the address has no session any more.
pub(super) type AddressKey = u32;

/// What the clients of one address hold.
pub(super) struct Address {
    address: IpAddr,
    pub(super) share: Arc<Share>,
    pub(super) sessions: usize,
    pub(super) subscriptions: usize,
    /// Sessions without a connection, in the order in which they lost it.
    away: BTreeMap<u64, SessionKey>,
}

/// All addresses of sessions.
pub(super) struct Addresses {
    rows: Slab<Address>,
    by_address: HashMap<IpAddr, AddressKey, foldhash::fast::RandomState>,
    /// The number of the next session that loses its connection.
    next: u64,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { rows: Slab::new(), by_address: HashMap::default(), next: 0 }
    }

    /// Counts a session for an address.
    pub(super) fn enter(&mut self, address: IpAddr, memory: &Arc<Memory>) -> AddressKey {
        let address = network(address);
        let key = *self.by_address.entry(address).or_insert_with(|| {
            let share = memory.share();
            self.rows.insert(Address { address, share, sessions: 0, subscriptions: 0, away: BTreeMap::new() })
        });
        self.get_mut(key).sessions += 1;
        key
    }

    /// Takes back [`Addresses::enter`].
    pub(super) fn leave(&mut self, key: AddressKey) {
        let row = self.get_mut(key);
        row.sessions -= 1;
        if row.sessions == 0 {
            let address = row.address;
            self.rows.remove(key);
            self.by_address.remove(&address);
        }
    }

    /// The row of an address that has sessions.
    pub(super) fn get_mut(&mut self, key: AddressKey) -> &mut Address {
        self.rows.get_mut(key).expect("an address is there for as long as sessions have come from it")
    }

    /// The address with a number.
    pub(super) fn address(&self, key: AddressKey) -> IpAddr {
        self.rows.get(key).expect("an address is there for as long as sessions have come from it").address
    }

    /// The row of an address, if it has sessions.
    pub(super) fn of(&self, address: IpAddr) -> Option<&Address> {
        self.by_address.get(&network(address)).and_then(|&key| self.rows.get(key))
    }

    /// Notes that a session has lost its connection. Returns the number under which it waits.
    pub(super) fn wait(&mut self, key: AddressKey, session: SessionKey) -> u64 {
        let number = self.next;
        self.next += 1;
        self.get_mut(key).away.insert(number, session);
        number
    }

    /// Notes that a session has a connection again, or ends.
    pub(super) fn wait_no_more(&mut self, key: AddressKey, number: u64) {
        self.get_mut(key).away.remove(&number);
    }

    /// The session that gives way to a new one of `address`: the oldest session without a connection of the same
    /// address. If there is none, the oldest one of the address with the most sessions, if that has more.
    pub(super) fn to_evict(&self, address: IpAddr) -> Option<SessionKey> {
        let own = self.of(address);
        if let Some((_, &session)) = own.and_then(|own| own.away.first_key_value()) {
            return Some(session);
        }
        let own_sessions = own.map_or(0, |own| own.sessions);
        let larger = self.rows.iter().map(|(_, row)| row).filter(|row| row.sessions > own_sessions);
        let oldest = |row: &Address| row.away.first_key_value().map(|(&number, &session)| (number, session));
        let of_largest = larger.filter_map(|row| Some((row.sessions, oldest(row)?)));
        let largest = of_largest.max_by_key(|&(sessions, (number, _))| (sessions, std::cmp::Reverse(number)));
        largest.map(|(_, (_, session))| session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_opens_many_sessions_pushes_out_its_own() {
        let (mut addresses, memory) = (Addresses::new(), Memory::new(1 << 20, 50));
        let [few, many, none] = [address("10.0.0.1"), address("10.0.0.2"), address("10.0.0.3")];
        let mut enter = |from, session| {
            let key = addresses.enter(from, &memory);
            addresses.wait(key, session);
        };
        enter(few, 1);
        [2, 3, 4].into_iter().for_each(|session| enter(many, session));
        assert_eq!(addresses.to_evict(few), Some(1));
        assert_eq!(addresses.to_evict(many), Some(2));
        assert_eq!(addresses.to_evict(none), Some(2));
        // None of its three sessions is without a connection: it has as many sessions as any.
        let connected = address("10.0.0.4");
        for _ in 0..3 {
            addresses.enter(connected, &memory);
        }
        assert_eq!(addresses.to_evict(connected), None);
    }

    #[test]
    fn addresses_of_a_network_are_one() {
        let (mut addresses, memory) = (Addresses::new(), Memory::new(1 << 20, 50));
        let key = addresses.enter(address("2001:db8::1"), &memory);
        assert_eq!(addresses.enter(address("2001:db8::ffff:2"), &memory), key);
        assert_ne!(addresses.enter(address("2001:db8:0:1::1"), &memory), key);
        let four = addresses.enter(address("10.0.0.1"), &memory);
        assert_eq!(addresses.enter(address("::ffff:10.0.0.1"), &memory), four);
        addresses.leave(four);
        addresses.leave(four);
        assert!(addresses.of(address("10.0.0.1")).is_none());
    }
}
