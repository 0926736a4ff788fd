//! A reader: a thread that opens the source of an input and puts its messages into the router
//! ([`rivulet_connectors::feed`]). It reads as long as the application has queries, and opens the source again when
//! it fails.
//!
//! What must hold: a reader that replaces another waits for its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::connector::{Condition, Direction, Health, Messages, SourceSpec};
use rivulet_connectors::feed::{Feed, FeedCounts, FeedLayout, Noted, Turned};
use rivulet_connectors::mqtt::Router;
use rivulet_dataflow::{Clock, panic_text};
use rivulet_operators::application::SourceInput;

use crate::counted::counted;
use crate::run::CONNECTORS;
use crate::service::EndHealth;

/// How long a reader waits before it opens a source again that did not open, or failed; it doubles up to the second
/// constant.
const REOPEN_MIN: Duration = Duration::from_millis(200);
const REOPEN_MAX: Duration = Duration::from_secs(30);

/// How long a reader without queries waits before it checks again.
const REST: Duration = Duration::from_millis(20);

/// How long a reader that ends waits for the disk, so that its senders need not send again what it has read.
const SAFE_MAX: Duration = Duration::from_secs(1);

/// How long a reader waits for the end of the reader that it replaces.
const END_MAX: Duration = Duration::from_secs(20);

/// The source of one input, while it is read.
pub(super) struct Reader {
    /// The name of the input.
    pub(super) input: String,
    pub(super) address: String,
    pub(super) spec: SourceSpec,
    pub(super) layout: FeedLayout,
    pub(super) messages: Messages,
    /// Distinguishes the source from all others in the log and in checkpoints: another address is another source.
    pub(super) id: String,
    /// How the source is opened; readers of the same source may differ in it.
    pub(super) signature: SourceInput,
    pub(super) is_logged: bool,
    pub(super) noted: Arc<Mutex<Noted>>,
    pub(super) health: Arc<Health>,
    /// Whether the running version of the application has queries that may want the messages.
    pub(super) has_queries: Mutex<Box<dyn Fn() -> bool + Send + Sync>>,
    /// The reader that this one replaces.
    pub(super) before: Mutex<Option<Arc<Self>>>,
    pub(super) course: Mutex<Course>,
    pub(super) bell: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Course {
    has_begun: bool,
    is_to_end: bool,
    has_ended: bool,
}

impl Reader {
    /// Whether another reader would read the same source in the same way.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        !self.course.lock().is_to_end
            && self.id == other.id
            && self.signature == other.signature
            && self.is_logged == other.is_logged
            && (&self.layout.key, self.layout.has_columns, self.layout.needs)
                == (&other.layout.key, other.layout.has_columns, other.layout.needs)
    }

    /// Continues at the position of an earlier reader, if that reads the same source.
    pub(super) fn go_on_from(&self, before: &Self) {
        if before.id == self.id {
            self.noted.lock().succeed(&before.noted.lock());
        }
    }

    /// Where it goes on. While a reader before it reads the same source yet, that one knows.
    pub(super) fn positions(&self) -> Vec<Option<String>> {
        let before = self.before.lock().clone().filter(|before| before.id == self.id);
        match before {
            Some(before) => before.positions(),
            None => self.noted.lock().positions(&self.messages),
        }
    }

    pub(super) fn begin(self: &Arc<Self>, router: &Arc<Router>) {
        {
            let mut course = self.course.lock();
            if course.has_begun || course.is_to_end {
                return;
            }
            course.has_begun = true;
        }
        let (reader, router) = (self.clone(), router.clone());
        let run = move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| reader.run(&router))) {
                reader.health.fail(&format!("a defect of the server: {}", panic_text(&*panic)));
            }
            reader.course.lock().has_ended = true;
            reader.bell.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("rivulet-source".into()).spawn(run) {
            self.health.fail(&format!("no thread can be started: {error}"));
            self.course.lock().has_ended = true;
        }
    }

    pub(super) fn end(&self) {
        let mut course = self.course.lock();
        course.is_to_end = true;
        course.has_ended |= !course.has_begun;
        self.bell.notify_all();
    }

    pub(super) fn await_end(&self, until: Instant) {
        let mut course = self.course.lock();
        while course.has_begun && !course.has_ended && !self.bell.wait_until(&mut course, until).timed_out() {}
    }

    /// Waits for this long, or until the reader is to end. Returns whether it is.
    fn is_to_end_within(&self, pause: Duration) -> bool {
        let mut course = self.course.lock();
        if pause.is_zero() {
            return course.is_to_end;
        }
        let until = Instant::now() + pause;
        while !course.is_to_end && !self.bell.wait_until(&mut course, until).timed_out() {}
        course.is_to_end
    }

    fn run(&self, router: &Router) {
        let before = self.before.lock().clone();
        if let Some(before) = before {
            before.await_end(Instant::now() + END_MAX);
            self.go_on_from(&before);
            *self.before.lock() = None;
        }
        let mut pause = REOPEN_MIN;
        while !self.is_to_end_within(Duration::ZERO) {
            let is_new = self.noted.lock().positions(&self.messages).is_empty();
            match Feed::open(CONNECTORS, self.spec.clone(), self.layout.clone(), self.id.clone(), &self.noted) {
                Ok(mut feed) => {
                    self.health.recover();
                    if is_new && self.is_logged && self.messages.place.is_some() {
                        feed.log_begin(router, SystemClock.now_us());
                    }
                    let begun = Instant::now();
                    match self.read(&mut feed, router) {
                        Some(problem) => self.health.retry(&problem),
                        None => return,
                    }
                    if begun.elapsed() > REOPEN_MAX {
                        pause = REOPEN_MIN;
                    }
                }
                Err(error) => self.health.retry(&error.to_string()),
            }
            if self.is_to_end_within(pause) {
                return;
            }
            pause = (pause * 2).min(REOPEN_MAX);
        }
    }

    /// Reads until the source fails, and returns why; `None` if the reader is to end, or the source has come to its
    /// end.
    fn read(&self, feed: &mut Feed, router: &Router) -> Option<String> {
        let mut pause = Duration::ZERO;
        loop {
            if self.is_to_end_within(pause) {
                let until = Instant::now() + SAFE_MAX;
                while !feed.confirm(router) && Instant::now() < until {
                    thread::sleep(REST);
                }
                return None;
            }
            if !(self.has_queries.lock())() {
                pause = REST;
                continue;
            }
            pause = match feed.turn(router, SystemClock.now_us()) {
                Turned::GoesOn => Duration::ZERO,
                Turned::Waits(wait) => wait,
                Turned::Ended => return None,
                Turned::Failed(problem) => return Some(problem),
            };
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.course.lock().has_ended
    }

    /// The counters of the source.
    pub(super) fn counts(&self) -> FeedCounts {
        self.noted.lock().counts()
    }

    /// The name of the input, the condition of its source, and the counters of the source.
    pub(super) fn figures(&self) -> (String, Condition, FeedCounts) {
        (self.input.clone(), self.health.report().condition, self.counts())
    }

    /// The health of the source.
    pub(super) fn health(&self) -> EndHealth {
        let counts = self.counts();
        let health = EndHealth::new(&self.input, Direction::Source, self.health.report());
        EndHealth { rows: counts.events, rejected_rows: counts.refused, ..health }
    }

    /// The problem of the source, in a sentence; `None` if it works.
    pub(super) fn trouble(&self) -> Option<String> {
        let health = self.health();
        (health.condition != Condition::Ok).then(|| health.text())
    }

    /// The problem of the source or of its messages; `None` if there is none.
    pub(super) fn concern(&self) -> Option<String> {
        self.trouble().or_else(|| self.warning())
    }

    /// A warning for its owner if messages come and no query gets them.
    pub(super) fn warning(&self) -> Option<String> {
        let FeedCounts { events, unwanted, without_key, refused, last_refusal, .. } = self.counts();
        let (input, address) = (&self.input, &self.address);
        if refused > 0 && events == 0 {
            let why = last_refusal.unwrap_or_default();
            return Some(format!(
                "input '{input}': all {} of '{address}' were refused: {why}",
                counted(refused, "message")
            ));
        }
        if events == 0 || unwanted < events {
            return None;
        }
        let came = counted(events, "message");
        Some(match without_key == events {
            true => format!("input '{input}': {came} of '{address}' came, and none has a key: no query gets them"),
            false => format!("input '{input}': {came} of '{address}' came, and none has the key of a query"),
        })
    }
}
