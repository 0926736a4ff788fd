//! Failed logins: logged with their address, and slowed down by address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Addresses that are remembered; the one that failed longest ago is forgotten for a new one.
const ADDRESSES_MAX: usize = 4_096;

/// The failures of an address that are free, because users mistype.
const FAILURES_FREE: u32 = 5;

/// How long an address waits after the next failure; twice as long after each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// An address that has not failed for this long begins anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15 * 60);

/// The least time between two lines in the log.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// The addresses that have failed, and how often.
#[derive(Debug, Default)]
pub struct FailedLogins(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_address: HashMap<IpAddr, Failures>,
    last_notice: Option<Instant>,
    /// Failures since then.
    untold: u64,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn pause(&self) -> Duration {
        match self.count.checked_sub(FAILURES_FREE) {
            None | Some(0) => Duration::ZERO,
            Some(more) => PAUSE_MAX.min(PAUSE_MIN * 2_u32.saturating_pow(more - 1)),
        }
    }
}

impl FailedLogins {
    /// How long an address still has to wait, if it has to. Until then its logins are not checked, right or wrong.
    pub fn must_wait(&self, address: IpAddr) -> Option<Duration> {
        self.must_wait_at(address, Instant::now())
    }

    /// Notes that a login of an address has failed, and logs it, unless another failure was logged a moment ago.
    /// `where_to` is what the login was for.
    pub fn note(&self, address: IpAddr, where_to: &str) {
        if let Some(failures) = self.note_at(address, Instant::now()) {
            tracing::warn!(%address, failures, "logins at {where_to} failed; the last one came from this address");
        }
    }

    fn must_wait_at(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let table = self.0.lock();
        let failures = table.by_address.get(&network(address))?;
        let left = (failures.last + failures.pause()).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// The number of failures to log, if it is time for that.
    fn note_at(&self, address: IpAddr, now: Instant) -> Option<u64> {
        let mut table = self.0.lock();
        let network = network(address);
        if table.by_address.len() >= ADDRESSES_MAX && !table.by_address.contains_key(&network) {
            let oldest = table.by_address.iter().min_by_key(|(_, failures)| failures.last).map(|(address, _)| *address);
            oldest.and_then(|oldest| table.by_address.remove(&oldest));
        }
        let failures = table.by_address.entry(network).or_insert(Failures { count: 0, last: now });
        if now.saturating_duration_since(failures.last) > FORGOTTEN_AFTER {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        table.untold += 1;
        if table.last_notice.is_some_and(|last| now.saturating_duration_since(last) < NOTICE_INTERVAL) {
            return None;
        }
        table.last_notice = Some(now);
        Some(std::mem::take(&mut table.untold))
    }
}

/// What counts as one address: in IPv6 the network of 64 bits, for a host can use all addresses of it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

/// Whether the given text is the secret; takes the same time whichever byte differs.
pub fn is_secret(given: &[u8], secret: &[u8]) -> bool {
    let different = given.iter().zip(secret).fold(0, |different, (a, b)| std::hint::black_box(different | (a ^ b)));
    given.len() == secret.len() && different == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_guesses_waits_longer_and_longer_and_others_do_not() {
        let logins = FailedLogins::default();
        let (guesser, other): (IpAddr, IpAddr) = ("2001:db8::1".parse().unwrap(), "2001:db9::1".parse().unwrap());
        let mut now = Instant::now();
        for _ in 0..FAILURES_FREE {
            assert_eq!(logins.must_wait_at(guesser, now), None);
            logins.note_at(guesser, now);
        }
        let mut pauses = Vec::new();
        for _ in 0..8 {
            logins.note_at(guesser, now);
            let pause = logins.must_wait_at("2001:db8::2".parse().unwrap(), now).unwrap();
            pauses.push(pause.as_secs());
            assert_eq!(logins.must_wait_at(other, now), None);
            now += pause;
            assert_eq!(logins.must_wait_at(guesser, now), None);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += FORGOTTEN_AFTER * 2;
        logins.note_at(guesser, now);
        assert_eq!(logins.must_wait_at(guesser, now), None);
    }

    #[test]
    fn what_is_remembered_and_told_is_bounded() {
        let logins = FailedLogins::default();
        let now = Instant::now();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let told: Vec<_> = (0..10_000).filter_map(|number| logins.note_at(address(number), now)).collect();
        assert_eq!(told, [1]);
        assert_eq!(logins.0.lock().by_address.len(), ADDRESSES_MAX);
        assert_eq!(logins.note_at(address(1), now + NOTICE_INTERVAL), Some(10_000), "none is forgotten in the log");
    }

    #[test]
    fn secrets_are_compared_whole() {
        assert!(is_secret(b"rose", b"rose") && is_secret(b"", b""));
        assert!(!is_secret(b"ros", b"rose") && !is_secret(b"rosee", b"rose") && !is_secret(b"rosy", b"rose"));
    }
}
