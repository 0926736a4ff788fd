//! How many of something each address has, so that none has more than its share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::logins::network;

/// The numbers by address: in IPv6 by network, for a host can use all addresses of it. Without those that have none.
#[derive(Debug, Default)]
pub struct ByAddress(Mutex<HashMap<IpAddr, usize>>);

/// One that counts for its address until it is dropped.
#[derive(Debug)]
pub struct Counted {
    all: Arc<ByAddress>,
    address: IpAddr,
}

impl ByAddress {
    /// Counts one more, whatever the share of the address is.
    pub fn count(self: &Arc<Self>, address: IpAddr) -> Counted {
        let address = network(address);
        *self.0.lock().entry(address).or_default() += 1;
        Counted { all: self.clone(), address }
    }

    /// Whether one more would be more than so many. Programs of this machine, also a proxy, have no share.
    pub fn is_full(&self, address: IpAddr, share: usize) -> bool {
        let address = network(address);
        !address.is_loopback() && self.0.lock().get(&address).is_some_and(|count| *count >= share)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// The share of an address of so many in all: at least one.
pub fn share_of(all: usize, percent: usize) -> usize {
    (all.saturating_mul(percent) / 100).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_network_has_its_share_and_this_machine_has_none() {
        let all = Arc::<ByAddress>::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let taken: Vec<Counted> =
            ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "2001:db8::2", "127.0.0.1", "127.0.0.1"]
                .map(|text| all.count(address(text)))
                .into();
        for (text, is_full) in [("10.0.0.1", true), ("10.0.0.2", false), ("2001:db8::9", true), ("127.0.0.1", false)] {
            assert_eq!(all.is_full(address(text), 2), is_full, "{text}");
        }
        drop(taken);
        assert!(all.0.lock().is_empty());
        assert_eq!((share_of(2048, 50), share_of(1, 50), share_of(7, 100)), (1024, 1, 7));
    }
}
