//! The pause of the thread that receives messages, so that they are noticed several at a time.
//!
//! At some thousand messages a second, each of them would find everybody asleep: the thread that receives, a worker,
//! and the thread again for the result. Being woken costs several times what a message costs. So the thread pauses
//! before it sleeps, for at most [`PAUSE_MAX`], and then takes all that came meanwhile.
//!
//! What must hold: results leave at once, a message behind a silence waits for nothing, and there are no pauses while
//! most messages come from senders that wait for an answer before they send more.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So long is a pause at most.
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// With fewer messages a second than this, a pause would gather too few.
const RATE_MIN: f64 = 2_000.0;

/// So many messages make a pause worth while. Where as many come without one, there is none.
const MESSAGES_WANTED: f64 = 32.0;

/// The rate is the mean over about this long, and what is longer is a silence.
const MEMORY: Duration = Duration::from_millis(20);

/// When messages come less than half as fast because of the pauses, there are none for twice as long as the last time,
/// from the minimum to the maximum. After pauses for as long as the maximum there are none for the minimum, and so the
/// rate without them is known again.
const REST_MIN: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_secs(2);

/// The pauses of one thread.
#[derive(Debug, Default)]
pub struct Linger {
    /// Messages received since the thread last had nothing to do.
    came: AtomicU64,
    /// Whether results wait to be sent.
    has_results: AtomicBool,
    is_pausing: AtomicBool,
    is_over: AtomicBool,
    /// The thread that pauses.
    thread: OnceLock<Thread>,
    rhythm: Mutex<Rhythm>,
}

impl Linger {
    /// Pauses, if that is worth while. For the thread that receives, whenever it has nothing to do.
    pub fn pause(&self) {
        let now = Instant::now();
        let until = self.rhythm.lock().pause_until(now, self.came.swap(0, Ordering::Relaxed));
        let Some(until) = until else { return };
        self.thread.get_or_init(std::thread::current);
        // In this order, and the other way round in `note_results` and `wake`.
        self.is_pausing.store(true, Ordering::SeqCst);
        while !self.has_results.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
        self.is_pausing.store(false, Ordering::SeqCst);
    }

    /// There are no pauses any more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Notes that messages were received.
    pub(super) fn note(&self, messages: u64) {
        self.came.fetch_add(messages, Ordering::Relaxed);
    }

    /// Notes whether results wait to be sent.
    pub(super) fn note_results(&self, are_any: bool) {
        self.has_results.store(are_any, Ordering::SeqCst);
    }

    /// Ends the pause of the thread, if it pauses, because results wait.
    pub(super) fn wake(&self) {
        if self.is_pausing.load(Ordering::SeqCst) {
            self.thread.get().inspect(|thread| thread.unpark());
        }
    }
}

/// How fast messages come, with pauses and without.
#[derive(Debug, Default)]
struct Rhythm {
    /// When messages were last noticed.
    last: Option<Instant>,
    /// Messages, and the time in which they came; what is longer ago than [`MEMORY`] counts little.
    messages: f64,
    seconds: f64,
    /// The end of the present pause.
    until: Option<Instant>,
    /// Since when there are pauses, and the rate without them.
    since: Option<(Instant, f64)>,
    /// No pause before this moment.
    rests_until: Option<Instant>,
    rest: Duration,
}

impl Rhythm {
    /// Until when to pause, if at all, when so many messages came since the last call.
    fn pause_until(&mut self, now: Instant, came: u64) -> Option<Instant> {
        if came == 0 {
            // Results have left, or a timer was due.
            return self.until.filter(|until| *until > now);
        }
        let gap = self.last.map_or(REST_MAX, |last| now.saturating_duration_since(last));
        self.last = Some(now);
        self.until = None;
        if gap > MEMORY {
            (self.messages, self.seconds) = (came as f64, MEMORY.as_secs_f64());
            (self.since, self.rests_until) = (None, Some(now + 2 * MEMORY));
            return None;
        }
        let fades_to = MEMORY.as_secs_f64() / (MEMORY + gap).as_secs_f64();
        self.messages = self.messages * fades_to + came as f64;
        self.seconds = self.seconds * fades_to + gap.as_secs_f64();
        let rate = self.messages / self.seconds;
        if let Some((since, rate_before)) = self.since {
            // Senders wait for answers.
            let is_slower = rate < rate_before / 2.0;
            if is_slower || now.saturating_duration_since(since) > REST_MAX {
                self.rest = if is_slower { (2 * self.rest).clamp(REST_MIN, REST_MAX) } else { REST_MIN };
                (self.since, self.rests_until) = (None, Some(now + self.rest));
            }
        }
        let pause = PAUSE_MAX.min(Duration::from_secs_f64(MESSAGES_WANTED / rate));
        let is_crowded = came as f64 >= 2.0 * MESSAGES_WANTED || pause < PAUSE_MAX / 8;
        if rate < RATE_MIN || is_crowded || self.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        self.since.get_or_insert((now, rate));
        self.until = Some(now + pause);
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender that sends `burst` messages at once every `every_us`, for a second: how many batches were noticed in
    /// the second half, and the longest wait of a message in microseconds.
    fn sends(rhythm: &mut Rhythm, from: Instant, every_us: u64, burst: u64) -> (u64, u64) {
        let (mut at_us, mut next_us, mut batches, mut wait_us) = (0, 0, 0, 0);
        while at_us < 1_000_000 {
            at_us = at_us.max(next_us);
            wait_us = wait_us.max(at_us - next_us);
            let mut came = 0;
            while next_us <= at_us {
                (came, next_us) = (came + burst, next_us + every_us);
            }
            batches += u64::from(at_us >= 500_000);
            // It takes so long to process them.
            at_us += 10 + came;
            let now = from + Duration::from_micros(at_us);
            if let Some(until) = rhythm.pause_until(now, came) {
                assert_eq!(rhythm.pause_until(now, 0), Some(until), "after results have left, it goes on");
                at_us += (until - now).as_micros() as u64;
            }
        }
        (batches, wait_us)
    }

    #[test]
    fn pauses_are_made_where_they_gather_something() {
        let from = Instant::now();
        for (every_us, burst, batches, wait_us_max) in [
            // Few messages, and none waits.
            (1_000_000, 1, 0..=1, 0),
            (1_000, 1, 500..=501, 0),
            // 10,000 and 30,000 a second.
            (100, 1, 230..=350, 2_100),
            (33, 1, 400..=600, 1_400),
            // They come in batches already.
            (10, 5, 10_000..=60_000, 300),
            (1_000, 100, 500..=501, 0),
        ] {
            let (noticed, wait_us) = sends(&mut Rhythm::default(), from, every_us, burst);
            assert!(batches.contains(&noticed), "{burst} every {every_us} us: {noticed} batches");
            assert!(wait_us <= wait_us_max, "{burst} every {every_us} us: {wait_us} us");
        }
    }

    #[test]
    fn the_first_messages_behind_a_silence_do_not_wait() {
        let (mut rhythm, from) = (Rhythm::default(), Instant::now());
        sends(&mut rhythm, from, 100, 1);
        for (second, messages) in [(2, 20), (60, 30)] {
            for message in 0..messages {
                let now = from + Duration::from_secs(second) + message * Duration::from_micros(200);
                assert_eq!(rhythm.pause_until(now, 1), None, "message {message} at {second} s");
            }
        }
    }

    #[test]
    fn who_waits_for_an_answer_is_not_held_up() {
        let from = Instant::now();
        for window in [1, 4, 20] {
            let mut rhythm = Rhythm::default();
            let (mut at, mut paused) = (Duration::ZERO, Duration::ZERO);
            while at < Duration::from_secs(10) {
                // It answers a window, and the next one comes.
                at += Duration::from_micros(100 + 5 * window);
                if let Some(until) = rhythm.pause_until(from + at, window) {
                    let pause = until - (from + at);
                    (at, paused) = (at + pause, paused + pause);
                }
            }
            assert!(paused < Duration::from_millis(500), "{window} at a time: {paused:?} of pauses in 10 s");
        }
    }

    #[test]
    fn results_end_a_pause_and_so_does_the_end() {
        for is_end in [false, true] {
            let linger = Linger::default();
            let now = Instant::now();
            linger.rhythm.lock().until = Some(now + Duration::from_secs(60));
            std::thread::scope(|scope| {
                scope.spawn(|| match is_end {
                    true => linger.end(),
                    false => {
                        linger.note_results(true);
                        linger.wake();
                    }
                });
                linger.pause();
            });
            linger.pause();
            assert!(now.elapsed() < Duration::from_secs(60));
        }
    }
}
