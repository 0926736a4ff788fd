//! Sessions and subscriptions by the address of their clients, each tenant for itself.
//!
//! What must hold: an address that opens many sessions displaces its own. A session of another address is displaced
//! only if that address has more sessions than the one that needs room. No session of another tenant is displaced.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;

use super::memory::{Memory, Share};
use super::slab::Slab;
use super::tenants::{Held, Tenant};
use crate::logins::network;

/// The number of a session. It is reused when the session is gone.
pub(super) type SessionKey = u32;

/// The number of an address. It is reused when the address has no session any more.
pub(super) type AddressKey = u32;

/// What the clients of one address hold that are of one tenant, or of none.
pub(super) struct Address {
    address: IpAddr,
    pub(super) tenant: Option<Arc<Tenant>>,
    pub(super) share: Arc<Share>,
    pub(super) sessions: usize,
    pub(super) subscriptions: usize,
    /// Sessions without a connection, in the order in which they lost it.
    away: BTreeMap<u64, SessionKey>,
}

impl Address {
    /// Counts subscriptions.
    pub(super) fn subscribed(&mut self, count: usize) {
        self.subscriptions += count;
        self.tenant.iter().for_each(|tenant| tenant.add(Held::Subscriptions, count));
    }

    /// Takes back [`Address::subscribed`].
    pub(super) fn unsubscribed(&mut self, count: usize) {
        self.subscriptions -= count;
        self.tenant.iter().for_each(|tenant| tenant.subtract(Held::Subscriptions, count));
    }
}

/// An address and its tenant, which is known by its place in memory; 0 for none.
type Place = (usize, IpAddr);

fn place(address: IpAddr, tenant: Option<&Arc<Tenant>>) -> Place {
    (tenant.map_or(0, |tenant| Arc::as_ptr(tenant) as usize), network(address))
}

/// All addresses of sessions.
pub(super) struct Addresses {
    rows: Slab<Address>,
    by_address: HashMap<Place, AddressKey, foldhash::fast::RandomState>,
    /// The number of the next session that loses its connection.
    next: u64,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { rows: Slab::new(), by_address: HashMap::default(), next: 0 }
    }

    /// Counts a session for an address.
    pub(super) fn enter(&mut self, address: IpAddr, tenant: Option<&Arc<Tenant>>, memory: &Arc<Memory>) -> AddressKey {
        let key = *self.by_address.entry(place(address, tenant)).or_insert_with(|| {
            let (address, tenant) = (network(address), tenant.cloned());
            let share = memory.share(tenant.clone());
            self.rows.insert(Address { address, tenant, share, sessions: 0, subscriptions: 0, away: BTreeMap::new() })
        });
        self.get_mut(key).sessions += 1;
        tenant.iter().for_each(|tenant| tenant.add(Held::Sessions, 1));
        key
    }

    /// Takes back [`Addresses::enter`].
    pub(super) fn leave(&mut self, key: AddressKey) {
        let row = self.get_mut(key);
        row.sessions -= 1;
        row.tenant.iter().for_each(|tenant| tenant.subtract(Held::Sessions, 1));
        if row.sessions == 0 {
            let place = place(row.address, row.tenant.as_ref());
            self.rows.remove(key);
            self.by_address.remove(&place);
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

    /// The row of an address and a tenant, if it has sessions.
    pub(super) fn of(&self, address: IpAddr, tenant: Option<&Arc<Tenant>>) -> Option<&Address> {
        self.by_address.get(&place(address, tenant)).and_then(|&key| self.rows.get(key))
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

    /// The session that gives way to a new one of `address` and `tenant`: the oldest session without a connection of
    /// the same address. If there is none, the oldest one of the address with the most sessions, if that has more. It
    /// is of the same tenant.
    pub(super) fn to_evict(&self, address: IpAddr, tenant: Option<&Arc<Tenant>>) -> Option<SessionKey> {
        let own = self.of(address, tenant);
        if let Some((_, &session)) = own.and_then(|own| own.away.first_key_value()) {
            return Some(session);
        }
        let own_sessions = own.map_or(0, |own| own.sessions);
        let is_of_tenant = |row: &&Address| row.tenant.as_ref().map(Arc::as_ptr) == tenant.map(Arc::as_ptr);
        let of_tenant = self.rows.iter().map(|(_, row)| row).filter(is_of_tenant);
        let larger = of_tenant.filter(|row| row.sessions > own_sessions);
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
        let (mut addresses, memory) = (Addresses::new(), Memory::new(1 << 20, 50, 50));
        let [few, many, none] = [address("10.0.0.1"), address("10.0.0.2"), address("10.0.0.3")];
        let mut enter = |from, session| {
            let key = addresses.enter(from, None, &memory);
            addresses.wait(key, session);
        };
        enter(few, 1);
        [2, 3, 4].into_iter().for_each(|session| enter(many, session));
        assert_eq!(addresses.to_evict(few, None), Some(1));
        assert_eq!(addresses.to_evict(many, None), Some(2));
        assert_eq!(addresses.to_evict(none, None), Some(2));
        // None of its three sessions is without a connection: it has as many sessions as any.
        let connected = address("10.0.0.4");
        for _ in 0..3 {
            addresses.enter(connected, None, &memory);
        }
        assert_eq!(addresses.to_evict(connected, None), None);
    }

    #[test]
    fn no_session_of_another_tenant_gives_way() {
        let (mut addresses, memory) = (Addresses::new(), Memory::new(1 << 20, 50, 50));
        let (acme, other) = (Arc::<Tenant>::default(), Arc::<Tenant>::default());
        let shared = address("10.0.0.1");
        for session in 0..3 {
            let key = addresses.enter(shared, Some(&acme), &memory);
            addresses.wait(key, session);
        }
        assert_eq!([addresses.to_evict(shared, Some(&other)), addresses.to_evict(shared, None)], [None; 2]);
        assert_eq!(addresses.to_evict(address("10.0.0.2"), Some(&acme)), Some(0));
        let key = addresses.enter(shared, Some(&other), &memory);
        addresses.wait(key, 9);
        assert_eq!(addresses.to_evict(shared, Some(&other)), Some(9));
        addresses.get_mut(key).subscribed(2);
        assert_eq!([&acme, &other].map(|tenant| tenant.held(Held::Sessions)), [3, 1]);
        assert_eq!([&acme, &other].map(|tenant| tenant.held(Held::Subscriptions)), [0, 2]);
        addresses.get_mut(key).unsubscribed(2);
        addresses.leave(key);
        assert_eq!((other.held(Held::Sessions), other.held(Held::Subscriptions)), (0, 0));
    }

    #[test]
    fn addresses_of_a_network_are_one() {
        let (mut addresses, memory) = (Addresses::new(), Memory::new(1 << 20, 50, 50));
        let key = addresses.enter(address("2001:db8::1"), None, &memory);
        assert_eq!(addresses.enter(address("2001:db8::ffff:2"), None, &memory), key);
        assert_ne!(addresses.enter(address("2001:db8:0:1::1"), None, &memory), key);
        let four = addresses.enter(address("10.0.0.1"), None, &memory);
        assert_eq!(addresses.enter(address("::ffff:10.0.0.1"), None, &memory), four);
        addresses.leave(four);
        addresses.leave(four);
        assert!(addresses.of(address("10.0.0.1"), None).is_none());
    }
}
