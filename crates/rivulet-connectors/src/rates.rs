//! Rates: how many events and bytes a second the clients of one owner may send and get.
//!
//! What must hold: a client over a rate waits, and nothing of it is lost: its connection is not read, so TCP slows it
//! down. Nobody waits for another owner. As long as no rate is reached, a connection asks by two loads of memory for
//! each time that it has read; there is no lock and no allocation.
//!
//! A rate is a bucket that holds what is allowed in a second ("generic cell rate algorithm", ITU-T I.371). What was
//! read counts even if there was less in the bucket: then the next one waits until that is made up for. Connections
//! that wait stand in line, so that each gets its turn, and one timer serves all of them.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rivulet_dataflow::LogPosition;
use tokio::sync::{Mutex, MutexGuard, Notify};

/// No limit.
const NONE: u64 = u64::MAX;

/// How much a bucket holds, in nanoseconds of its rate.
const HELD_NS: u64 = 1_000_000_000;

/// Who waits goes on when there is this part of a second in the bucket, so that few turns do much.
const TURNS_PER_SECOND: u64 = 100;

/// How often is looked whether what is held for another reason than a rate may go on.
const HELD_LOOK: Duration = Duration::from_millis(20);

/// Nanoseconds since the first use.
fn now_ns() -> u64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Enough for 584 years.
    BEGUN.elapsed().as_nanos() as u64
}

/// A bucket of what may be used in a second, and how much was used.
#[derive(Debug)]
pub struct Bucket {
    per_second: AtomicU64,
    /// When the bucket will be full again if nothing more is used: nanoseconds on the clock of this process.
    full_at: AtomicU64,
    used: AtomicU64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { per_second: AtomicU64::new(NONE), full_at: AtomicU64::new(0), used: AtomicU64::new(0) }
    }
}

impl Bucket {
    /// Sets the rate; `None` for no limit. If it is another one, what was used too much before is forgotten.
    pub fn set(&self, per_second: Option<u64>) {
        let per_second = per_second.unwrap_or(NONE).max(1);
        if self.per_second.swap(per_second, Ordering::AcqRel) != per_second {
            self.full_at.fetch_min(now_ns() + HELD_NS, Ordering::AcqRel);
        }
    }

    /// The rate; `None` for no limit.
    pub fn per_second(&self) -> Option<u64> {
        Some(self.per_second.load(Ordering::Relaxed)).filter(|&per_second| per_second != NONE)
    }

    /// How much was used since the start.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Uses so much, whether there is as much in the bucket or not.
    pub fn charge(&self, count: u64) {
        if count == 0 {
            return;
        }
        self.used.fetch_add(count, Ordering::Relaxed);
        if let Some(per_second) = self.per_second() {
            let (cost, now) = (cost_ns(count, per_second), now_ns());
            let charged = |full_at: u64| Some(full_at.max(now).saturating_add(cost));
            let _ = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, charged);
        }
    }

    /// The same, but not so much that it would not be full again after `most`.
    pub fn owe(&self, count: u64, most: Duration) {
        self.used.fetch_add(count, Ordering::Relaxed);
        let Some(per_second) = self.per_second() else { return };
        let (cost, now, most) = (cost_ns(count, per_second), now_ns(), most.as_nanos() as u64);
        let owed =
            |full_at: u64| Some(full_at.max(now.saturating_add(most)).min(full_at.max(now).saturating_add(cost)));
        let _ = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, owed);
    }

    /// How much is in it; [`u64::MAX`] without a limit.
    pub fn available(&self) -> u64 {
        let Some(per_second) = self.per_second() else { return u64::MAX };
        let left_ns = (now_ns() + HELD_NS).saturating_sub(self.full_at.load(Ordering::Acquire)).min(HELD_NS);
        (u128::from(left_ns) * u128::from(per_second) / u128::from(HELD_NS)) as u64
    }

    /// Uses so much if there is as much in the bucket.
    ///
    /// # Errors
    /// How long it takes until there is.
    pub fn take(&self, count: u64) -> Result<(), Duration> {
        if let Some(per_second) = self.per_second() {
            let (cost, now) = (cost_ns(count, per_second), now_ns());
            let taken = |full_at: u64| {
                let full_at = full_at.max(now).saturating_add(cost);
                (full_at <= now + HELD_NS).then_some(full_at)
            };
            if let Err(full_at) = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, taken) {
                let wait_ns = full_at.max(now).saturating_add(cost).saturating_sub(now + HELD_NS);
                return Err(Duration::from_nanos(wait_ns));
            }
        }
        self.used.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// How long a connection has to wait for its turn; `None` if there is anything in the bucket.
    fn wait(&self) -> Option<Duration> {
        let per_second = self.per_second()?;
        if self.available() > 0 {
            return None;
        }
        let cost = cost_ns((per_second / TURNS_PER_SECOND).max(1), per_second);
        let wait_ns = self.full_at.load(Ordering::Acquire).saturating_add(cost).saturating_sub(now_ns() + HELD_NS);
        // Rounded up, so that there is something then.
        Some(Duration::from_nanos(wait_ns) + Duration::from_micros(1))
    }
}

fn cost_ns(count: u64, per_second: u64) -> u64 {
    let cost = u128::from(count) * u128::from(HELD_NS) / u128::from(per_second);
    u64::try_from(cost).unwrap_or(u64::MAX)
}

/// Connections that wait for their turn.
#[derive(Debug, Default)]
struct Line {
    /// Given in the order in which it is asked for.
    first: Mutex<()>,
    waiting: AtomicUsize,
}

/// The least bytes of the log that are forgotten together.
const PIECE_BYTES: u64 = 64 << 10;

/// The events of an owner that are in the log and that nothing else has yet.
#[derive(Debug)]
struct InLog {
    bytes_max: AtomicU64,
    bytes: AtomicU64,
    /// The same in pieces, oldest first: the last position of each, and its bytes.
    pieces: parking_lot::Mutex<VecDeque<(LogPosition, u64)>>,
}

impl Default for InLog {
    fn default() -> Self {
        Self { bytes_max: AtomicU64::new(NONE), bytes: AtomicU64::new(0), pieces: parking_lot::Mutex::default() }
    }
}

/// How much a connection may send at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Messages.
    pub messages: u64,
    /// Bytes of messages that go to the log.
    pub log_bytes: u64,
}

impl Allowed {
    /// Everything.
    pub const ALL: Self = Self { messages: u64::MAX, log_bytes: u64::MAX };
}

/// The rates of one owner of connections.
#[derive(Debug, Default)]
pub struct Rates {
    /// Messages that are published.
    pub events: Bucket,
    /// Bytes that are received.
    pub bytes: Bucket,
    /// Bytes that are sent.
    pub bytes_out: Bucket,
    /// Whether nothing is received for another reason.
    is_held: AtomicBool,
    in_log: InLog,
    readers: Line,
    writers: Line,
    /// Notified when a rate has changed.
    changed: Notify,
    /// For how long somebody has waited to be read, in microseconds.
    waited_us: AtomicU64,
}

/// The turn of a connection that has waited.
#[derive(Debug)]
pub struct Turn<'r> {
    _first: MutexGuard<'r, ()>,
    _waiting: Waiting<'r>,
}

#[derive(Debug)]
struct Waiting<'r>(&'r AtomicUsize);

impl<'r> Waiting<'r> {
    fn in_line(line: &'r Line) -> Self {
        line.waiting.fetch_add(1, Ordering::AcqRel);
        Self(&line.waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Rates {
    /// Sets the rates a second: messages and bytes that are received, and bytes that are sent.
    pub fn set(&self, events: Option<u64>, bytes: Option<u64>, bytes_out: Option<u64>) {
        self.events.set(events);
        self.bytes.set(bytes);
        self.bytes_out.set(bytes_out);
        self.changed.notify_waiters();
    }

    /// Receives nothing more, whatever the rates allow, or goes on.
    pub fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Release);
    }

    /// Whether nothing is received for another reason than a rate or the log.
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Sets how many bytes of events may be in the log; `None` for no limit. Beyond it nothing more is received.
    pub fn set_log(&self, bytes_max: Option<u64>) {
        self.in_log.bytes_max.store(bytes_max.unwrap_or(NONE), Ordering::Release);
    }

    /// Notes that so many bytes of events went to the log, the last of them with this position.
    pub fn logged(&self, position: LogPosition, bytes: u64) {
        let mut pieces = self.in_log.pieces.lock();
        match pieces.back_mut().filter(|(_, piece)| *piece < PIECE_BYTES) {
            Some((last, piece)) => (*last, *piece) = (position.max(*last), *piece + bytes),
            None => pieces.push_back((position, bytes)),
        }
        self.in_log.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// The log needs no event before this position any more.
    pub fn forget_log_before(&self, position: LogPosition) {
        if self.log_bytes() == 0 {
            return;
        }
        let mut pieces = self.in_log.pieces.lock();
        while let Some((_, bytes)) = pieces.pop_front_if(|(last, _)| *last < position) {
            self.in_log.bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// The bytes of events in the log.
    pub fn log_bytes(&self) -> u64 {
        self.in_log.bytes.load(Ordering::Acquire)
    }

    /// How much the next connection may send.
    pub fn allowed(&self) -> Allowed {
        Allowed { messages: self.events.available(), log_bytes: self.log_room() }
    }

    fn log_room(&self) -> u64 {
        match self.in_log.bytes_max.load(Ordering::Acquire) {
            NONE => NONE,
            bytes_max => bytes_max.saturating_sub(self.log_bytes()),
        }
    }

    /// For how long somebody has waited to be read since the start.
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.waited_us.load(Ordering::Relaxed))
    }

    /// Whether a connection may be read without waiting.
    pub fn may_read(&self) -> bool {
        let is_open = self.readers.waiting.load(Ordering::Acquire) == 0 && !self.is_held() && self.log_room() > 0;
        is_open && self.events.available() > 0 && self.bytes.available() > 0
    }

    /// Waits in line until a connection may be read. While the turn is kept, no other one that waits is read.
    pub async fn turn_to_read(&self) -> Turn<'_> {
        let turn = Turn { _waiting: Waiting::in_line(&self.readers), _first: self.readers.first.lock().await };
        let begun = Instant::now();
        let wait = || match self.is_held() || self.log_room() == 0 {
            true => Some(HELD_LOOK),
            false => self.events.wait().max(self.bytes.wait()),
        };
        self.until_none(wait).await;
        self.waited_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        turn
    }

    /// Whether a connection may be written to without waiting.
    pub fn may_write(&self) -> bool {
        self.writers.waiting.load(Ordering::Acquire) == 0 && self.bytes_out.available() > 0
    }

    /// Waits in line until a connection may be written to.
    pub async fn turn_to_write(&self) -> Turn<'_> {
        let turn = Turn { _waiting: Waiting::in_line(&self.writers), _first: self.writers.first.lock().await };
        self.until_none(|| self.bytes_out.wait()).await;
        turn
    }

    async fn until_none(&self, wait: impl Fn() -> Option<Duration>) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let Some(wait) = wait() else { return };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = changed => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_a_second_and_what_was_used_too_much_is_made_up_for() {
        let bucket = Bucket::default();
        assert_eq!((bucket.available(), bucket.take(1 << 40)), (u64::MAX, Ok(())), "there is no limit");
        assert!(bucket.wait().is_none());
        bucket.set(Some(1_000));
        assert_eq!(bucket.available(), 1_000, "it begins full");
        bucket.charge(500);
        assert!((500..=600).contains(&bucket.available()));
        bucket.charge(5_500);
        assert_eq!(bucket.available(), 0);
        let wait = bucket.wait().expect("it is empty");
        assert!(wait > Duration::from_millis(4_500) && wait < Duration::from_millis(5_100), "{wait:?}");
        let wait = bucket.take(1_000).expect_err("it is empty");
        assert!(wait > Duration::from_millis(5_500) && wait < Duration::from_millis(6_100), "{wait:?}");
        bucket.set(Some(2_000));
        assert!(bucket.wait().is_none_or(|wait| wait < Duration::from_millis(20)), "a new rate begins anew");
        assert_eq!(bucket.used(), (1 << 40) + 6_000);
        bucket.set(None);
        assert!(bucket.wait().is_none());
    }

    #[test]
    fn a_rate_of_one_a_second_lets_one_through() {
        let bucket = Bucket::default();
        bucket.set(Some(1));
        assert_eq!(bucket.take(1), Ok(()));
        assert!(bucket.take(1).is_err() && bucket.available() == 0);
        assert!(bucket.wait().is_some_and(|wait| wait <= Duration::from_secs(1) + Duration::from_millis(1)));
    }

    #[tokio::test]
    async fn those_that_wait_are_read_in_their_order_and_a_change_wakes_them() {
        let rates = Rates::default();
        assert!(rates.may_read() && rates.may_write());
        rates.set(Some(1), None, Some(1));
        rates.events.charge(3_600);
        rates.bytes_out.charge(3_600);
        assert!(!rates.may_read() && !rates.may_write());
        let order = parking_lot::Mutex::new(Vec::new());
        let reader = async |number: u32| {
            let turn = rates.turn_to_read().await;
            order.lock().push(number);
            tokio::task::yield_now().await;
            drop(turn);
        };
        let change = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(order.lock().is_empty(), "all of them wait for an hour");
            rates.set(None, None, None);
        };
        tokio::join!(reader(1), reader(2), reader(3), async { drop(rates.turn_to_write().await) }, change);
        assert_eq!(*order.lock(), [1, 2, 3]);
        assert!(rates.may_read() && rates.may_write() && rates.waited() >= Duration::from_millis(10));
    }

    #[test]
    fn what_is_in_the_log_counts_until_it_is_not_needed_there() {
        let rates = Rates::default();
        rates.logged(3, 1_000);
        assert!(rates.may_read());
        rates.set_log(Some(1_000));
        assert!(!rates.may_read());
        rates.logged(9, PIECE_BYTES);
        rates.logged(12, 7);
        rates.forget_log_before(3);
        assert_eq!(rates.log_bytes(), PIECE_BYTES + 1_007);
        // A piece is forgotten as a whole.
        rates.forget_log_before(9);
        assert_eq!(rates.log_bytes(), PIECE_BYTES + 1_007);
        rates.forget_log_before(10);
        assert!(rates.log_bytes() == 7 && rates.may_read());
        rates.forget_log_before(13);
        assert_eq!(rates.log_bytes(), 0);
    }

    #[tokio::test]
    async fn who_gives_up_its_place_keeps_nobody_waiting() {
        let rates = Rates::default();
        rates.hold(true);
        let waits = tokio::time::timeout(Duration::from_millis(30), rates.turn_to_read());
        assert!(waits.await.is_err() && !rates.may_read());
        assert_eq!(rates.readers.waiting.load(Ordering::Acquire), 0);
        rates.hold(false);
        assert!(rates.may_read());
        drop(rates.turn_to_read().await);
    }
}
