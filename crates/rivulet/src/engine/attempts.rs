//! Attempts at something that may fail: when the next one is due, and whether the error is news.
//!
//! What must hold: attempts that fail become rarer, but there is one each minute at least.

use std::time::{Duration, Instant};

/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Attempts at one thing. The first is due at once.
#[derive(Default)]
pub(super) struct Attempts {
    /// When the next one is due; `None` if at once.
    next: Option<Instant>,
    /// The number of failures in a row.
    failed: u32,
    /// The error of the last attempt.
    problem: Option<String>,
}

impl Attempts {
    /// The first attempt is due after this pause. The attempt before it counts as failed.
    pub(super) fn after(pause: Duration) -> Self {
        Self { next: Some(Instant::now() + pause), failed: 1, problem: None }
    }

    pub(super) fn is_due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// An attempt has failed. The next is due after `pause`, which doubles with each failure in a row, up to a minute.
    /// Returns whether the problem differs from the last one.
    pub(super) fn fail(&mut self, problem: &str, pause: Duration) -> bool {
        self.put_off(pause);
        let is_news = !self.problem.as_ref().is_some_and(|before| is_the_same(before, problem));
        self.problem = Some(problem.to_owned());
        is_news
    }

    /// An attempt has begun well, and may still fail: the next is due as late as after a failure.
    pub(super) fn begin(&mut self, pause: Duration) {
        self.put_off(pause);
        self.problem = None;
    }

    fn put_off(&mut self, pause: Duration) {
        let pause = pause.saturating_mul(1 << self.failed.min(16)).min(PAUSE_MAX);
        self.next = (!pause.is_zero()).then(|| Instant::now() + pause);
        self.failed += 1;
    }

    /// An attempt has succeeded. Returns whether the one before had failed.
    pub(super) fn succeed(&mut self) -> bool {
        std::mem::take(self).problem.is_some()
    }

    /// No attempt is made for this long.
    pub(super) fn rest(&mut self, pause: Duration) {
        self.next = Some(Instant::now() + pause);
    }

    /// The next attempt is at something else than what has failed: it is due at once.
    pub(super) fn begin_anew(&mut self) {
        (self.next, self.failed) = (None, 0);
    }

    /// The error of the last attempt.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Whether the next attempt was due so long ago that the last one that was begun counts as successful.
    pub(super) fn are_past(&self) -> bool {
        self.next.is_none_or(|next| next.elapsed() >= 2 * PAUSE_MAX)
    }
}

/// Whether two texts are the same except for numbers in them.
fn is_the_same(one: &str, other: &str) -> bool {
    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|character: char| character.is_ascii_digit()).filter(|part| !part.is_empty())
    }
    words(one).eq(words(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_names_another_file_is_no_news() {
        let full = "the disk is full: cannot write applications/000000000009.pack in c";
        assert!(is_the_same(full, &full.replace("09", "10")) && is_the_same(full, full));
        assert!(!is_the_same(full, "the disk is full: cannot write applications/000000000009.manifest in c"));
        assert!(!is_the_same(full, ""));
    }

    #[test]
    fn what_is_tried_in_vain_is_tried_less_often_and_said_once() {
        let pause = Duration::from_secs(1);
        let mut attempts = Attempts::after(pause);
        assert!(!attempts.is_due());
        assert!(attempts.fail("refused", pause), "news");
        for _ in 0..20 {
            assert!(!attempts.fail("refused", pause), "no news");
        }
        assert!(attempts.fail("timed out", pause), "news");
        let left = attempts.next.expect("a pause").saturating_duration_since(Instant::now());
        assert!(left <= PAUSE_MAX && left > PAUSE_MAX / 2 && !attempts.are_past());
        attempts.begin_anew();
        assert!(attempts.is_due() && attempts.problem() == Some("timed out"));
        assert!(attempts.succeed() && !attempts.succeed() && attempts.problem().is_none());
    }
}
