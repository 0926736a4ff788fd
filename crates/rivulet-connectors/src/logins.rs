//! Failed logins: logged with their address, and slowed down by the pair of address and user, by the address, or by
//! whatever else they have in common.
//!
//! What must hold: clients with old passwords make no user behind their address wait that has logged in there before,
//! and few of them make nobody wait; made-up names give nobody further guesses. Callers let right credentials through
//! at once that cannot be guessed, like tokens.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Whether anybody waits, in this process.
static SLOWS_DOWN: AtomicBool = AtomicBool::new(true);

/// Says whether those who have failed are slowed down, in this process.
pub fn slow_down(is_on: bool) {
    SLOWS_DOWN.store(is_on, Ordering::Relaxed);
}

/// Pairs (or others) that are remembered. The one that failed least often is forgotten for a new one; of several, the
/// one that failed longest ago.
pub const REMEMBERED_MAX: usize = 4_096;

/// The failures of a pair that are free, because users mistype.
const FAILURES_FREE: u32 = 5;

/// The failures of all named users of an address that are free in [`FORGOTTEN_AFTER`]. A client with an old password
/// makes 25 at most, because what waits is not counted. They are far fewer than are remembered.
const ADDRESS_FAILURES_FREE: u32 = 240;

/// How long one that has failed waits after the next failure; twice as long after each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// One that has not failed for this long begins anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15 * 60);

/// The least time between two lines in the log.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// Who has failed how often. Some failures are free; after those each one waits, for longer and longer.
#[derive(Debug)]
pub struct Failures<K> {
    free: u32,
    by_key: Mutex<HashMap<K, Failed>>,
}

#[derive(Debug)]
struct Failed {
    count: u32,
    last: Instant,
}

impl Failed {
    /// Whether it begins anew with the next failure.
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) > FORGOTTEN_AFTER
    }
}

impl<K: Clone + Eq + Hash> Failures<K> {
    /// None yet, of which so many are free.
    pub fn new(free: u32) -> Self {
        Self { free, by_key: Mutex::default() }
    }

    /// How long one still has to wait, if it has to. Until then its logins are not checked, right or wrong.
    pub fn must_wait(&self, key: &K) -> Option<Duration> {
        self.must_wait_at(key, Instant::now())
    }

    /// Notes a failure.
    pub fn note(&self, key: K) {
        self.note_at(key, Instant::now());
    }

    fn must_wait_at(&self, key: &K, now: Instant) -> Option<Duration> {
        let by_key = self.by_key.lock();
        let failed = by_key.get(key).filter(|_| SLOWS_DOWN.load(Ordering::Relaxed))?;
        let left = (failed.last + self.pause(failed)).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn note_at(&self, key: K, now: Instant) {
        let mut by_key = self.by_key.lock();
        if by_key.len() >= REMEMBERED_MAX && !by_key.contains_key(&key) {
            // Otherwise many names, each guessed once, would have one forgotten that is being guessed.
            let rank = |failed: &Failed| (if failed.is_over(now) { 0 } else { failed.count }, failed.last);
            let least = by_key.iter().min_by_key(|(_, failed)| rank(failed)).map(|(key, _)| key.clone());
            least.and_then(|least| by_key.remove(&least));
        }
        let failed = by_key.entry(key).or_insert(Failed { count: 0, last: now });
        if failed.is_over(now) {
            failed.count = 0;
        }
        failed.count = failed.count.saturating_add(1);
        failed.last = now;
    }

    fn pause(&self, failed: &Failed) -> Duration {
        match failed.count.checked_sub(self.free) {
            None | Some(0) => Duration::ZERO,
            Some(more) => PAUSE_MAX.min(PAUSE_MIN * 2_u32.saturating_pow(more - 1)),
        }
    }
}

/// Who has logged in, the latest last: those wait for no failures of others. A new one has the first forgotten when
/// there are [`REMEMBERED_MAX`].
#[derive(Debug)]
pub struct Proven<K>(Mutex<VecDeque<K>>);

impl<K> Default for Proven<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq> Proven<K> {
    /// Whether it is remembered.
    pub fn has(&self, one: &K) -> bool {
        self.0.lock().contains(one)
    }

    /// Notes that one has logged in.
    pub fn note(&self, one: K) {
        let mut proven = self.0.lock();
        proven.retain(|other| *other != one);
        if proven.len() >= REMEMBERED_MAX {
            proven.pop_front();
        }
        proven.push_back(one);
    }
}

/// The pairs of an address and a user that have failed, and the addresses. Users without a name are one.
#[derive(Debug)]
pub struct FailedLogins {
    by_pair: Failures<(IpAddr, u64)>,
    /// By the address and the number of the span of [`FORGOTTEN_AFTER`]: in each it begins anew.
    by_address: Failures<(IpAddr, u64)>,
    /// Pairs that have logged in, which do not wait because of others at their address.
    proven: Proven<(IpAddr, u64)>,
    begun: Instant,
    /// Names may be long, so their keyed hashes are kept.
    hash: RandomState,
    notices: Mutex<Notices>,
}

#[derive(Debug, Default)]
struct Notices {
    last: Option<Instant>,
    /// Failures since then.
    untold: u64,
}

impl Default for FailedLogins {
    fn default() -> Self {
        let [by_pair, by_address] = [FAILURES_FREE, ADDRESS_FAILURES_FREE].map(Failures::new);
        let (proven, notices) = (Proven::default(), Mutex::default());
        Self { by_pair, by_address, proven, begun: Instant::now(), hash: RandomState::new(), notices }
    }
}

impl FailedLogins {
    /// How long a user at an address still has to wait, if it has to. Until then what it gives is not checked, right or
    /// wrong, if it can be guessed.
    pub fn must_wait(&self, address: IpAddr, user: Option<&str>) -> Option<Duration> {
        self.must_wait_at(address, user, Instant::now())
    }

    /// Notes that a login of a user at an address has failed, and logs it, unless another failure was logged a moment
    /// ago. `where_to` is what the login was for.
    pub fn note(&self, address: IpAddr, user: Option<&str>, where_to: &str) {
        if let Some(failures) = self.note_at(address, user, Instant::now()) {
            tracing::warn!(%address, failures, "logins at {where_to} failed; the last one came from this address");
        }
    }

    /// Notes that a named user has given the right password at an address.
    pub fn note_right(&self, address: IpAddr, user: &str) {
        self.proven.note(self.pair(address, Some(user)));
    }

    fn pair(&self, address: IpAddr, user: Option<&str>) -> (IpAddr, u64) {
        (network(address), self.hash.hash_one(user))
    }

    fn span(&self, address: IpAddr, now: Instant) -> (IpAddr, u64) {
        (network(address), now.saturating_duration_since(self.begun).as_secs() / FORGOTTEN_AFTER.as_secs())
    }

    fn must_wait_at(&self, address: IpAddr, user: Option<&str>, now: Instant) -> Option<Duration> {
        let pair = self.pair(address, user);
        let of_address = user.and_then(|_| self.by_address.must_wait_at(&self.span(address, now), now));
        self.by_pair.must_wait_at(&pair, now).max(of_address.filter(|_| !self.proven.has(&pair)))
    }

    /// The number of failures to log, if it is time for that.
    fn note_at(&self, address: IpAddr, user: Option<&str>, now: Instant) -> Option<u64> {
        self.by_pair.note_at(self.pair(address, user), now);
        user.iter().for_each(|_| self.by_address.note_at(self.span(address, now), now));
        let mut notices = self.notices.lock();
        notices.untold += 1;
        if notices.last.is_some_and(|last| now.saturating_duration_since(last) < NOTICE_INTERVAL) {
            return None;
        }
        notices.last = Some(now);
        Some(std::mem::take(&mut notices.untold))
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
    fn who_guesses_waits_longer_and_longer_and_others_do_not() {
        let logins = FailedLogins::default();
        let kim = Some("kim");
        let (guesser, other): (IpAddr, IpAddr) = ("2001:db8::1".parse().unwrap(), "2001:db9::1".parse().unwrap());
        let mut now = Instant::now();
        for _ in 0..FAILURES_FREE {
            assert_eq!(logins.must_wait_at(guesser, kim, now), None);
            logins.note_at(guesser, kim, now);
        }
        let mut pauses = Vec::new();
        for _ in 0..8 {
            logins.note_at(guesser, kim, now);
            let pause = logins.must_wait_at("2001:db8::2".parse().unwrap(), kim, now).unwrap();
            pauses.push(pause.as_secs());
            assert_eq!(logins.must_wait_at(other, kim, now), None);
            for user in [None, Some(""), Some("alex")] {
                assert_eq!(logins.must_wait_at(guesser, user, now), None, "{user:?} is behind the same address");
            }
            now += pause;
            assert_eq!(logins.must_wait_at(guesser, kim, now), None);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += FORGOTTEN_AFTER * 2;
        logins.note_at(guesser, kim, now);
        assert_eq!(logins.must_wait_at(guesser, kim, now), None);
    }

    #[test]
    fn what_is_remembered_and_told_is_bounded() {
        let logins = FailedLogins::default();
        let now = Instant::now();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let guessed = address(20_000);
        (0..=FAILURES_FREE).for_each(|_| _ = logins.note_at(guessed, Some("kim"), now - NOTICE_INTERVAL));
        let told: Vec<_> = (0..10_000).filter_map(|number| logins.note_at(address(number), None, now)).collect();
        assert_eq!(told, [u64::from(FAILURES_FREE) + 1]);
        assert_eq!(logins.by_pair.by_key.lock().len(), REMEMBERED_MAX);
        assert!(logins.must_wait_at(guessed, Some("kim"), now - NOTICE_INTERVAL).is_some(), "it failed most often");
        let untold = logins.note_at(address(1), None, now + NOTICE_INTERVAL);
        assert_eq!(untold, Some(10_000), "none is forgotten in the log");
    }

    #[test]
    fn names_that_one_address_makes_up_give_it_no_further_guesses() {
        let (logins, now) = (FailedLogins::default(), Instant::now());
        let [guesser, other]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        let guess = |address, user: &str, now| {
            let is_looked_at = logins.must_wait_at(address, Some(user), now).is_none();
            if is_looked_at {
                logins.note_at(address, Some(user), now);
            }
            u32::from(is_looked_at)
        };
        // So many names, twice each, that one which is guessed for the first time would be forgotten for the next.
        let filled: u32 =
            (0..2 * REMEMBERED_MAX).map(|number| guess(guesser, &format!("name {}", number / 2), now)).sum();
        let guesses: Vec<_> = (0..100)
            .map(|number| (guess(guesser, "kim", now), guess(guesser, &format!("new {number}"), now)))
            .collect();
        let of_kim: u32 = guesses.iter().map(|(of_kim, _)| of_kim).sum();
        assert!(of_kim <= FAILURES_FREE + 1, "{of_kim} guesses of one password");
        assert_eq!(filled, ADDRESS_FAILURES_FREE + 1, "each may cost a hash");
        assert_eq!(guess(other, "kim", now), 1);
        assert_eq!(logins.must_wait_at(guesser, None, now), None, "tokens have no name");
        assert_eq!(guess(guesser, "kim", now + FORGOTTEN_AFTER), 1);
    }

    #[test]
    fn clients_with_old_passwords_keep_no_other_user_out_behind_their_address() {
        let (logins, begun) = (FailedLogins::default(), Instant::now());
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        // They try again each second, for hours.
        for now in (0..3 * FORGOTTEN_AFTER.as_secs()).map(|second| begun + Duration::from_secs(second)) {
            for user in ["1", "2", "3", "4", "5", "6", "7", "8", "9"] {
                if logins.must_wait_at(address, Some(user), now).is_none() {
                    logins.note_at(address, Some(user), now);
                }
            }
            assert_eq!(logins.must_wait_at(address, Some("alex"), now), None, "after {:?}", now - begun);
        }
    }

    #[test]
    fn whoever_has_logged_in_waits_for_nobody_else_behind_its_address() {
        let (logins, now) = (FailedLogins::default(), Instant::now());
        let [address, elsewhere]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        logins.note_right(address, "alex");
        for number in 0..REMEMBERED_MAX {
            logins.note_at(address, Some(&format!("name {number}")), now);
            logins.note_at(elsewhere, Some(&format!("name {number}")), now);
        }
        let waits = |address, user| logins.must_wait_at(address, Some(user), now).is_some();
        assert!(!waits(address, "alex") && waits(address, "robin") && waits(elsewhere, "alex"));
        (0..=FAILURES_FREE).for_each(|_| _ = logins.note_at(address, Some("alex"), now));
        assert!(waits(address, "alex"), "for its own wrong ones");
        logins.note_right(elsewhere, "robin");
        for number in 0..2 * REMEMBERED_MAX {
            logins.note_right(elsewhere, &format!("name {number}"));
            logins.note_right(elsewhere, "alex");
        }
        assert!(!waits(elsewhere, "alex"), "the latest are remembered");
        assert!(waits(elsewhere, "robin"), "what is remembered is bounded");
    }

    #[test]
    fn secrets_are_compared_whole() {
        assert!(is_secret(b"rose", b"rose") && is_secret(b"", b""));
        assert!(!is_secret(b"ros", b"rose") && !is_secret(b"rosee", b"rose") && !is_secret(b"rosy", b"rose"));
    }
}
