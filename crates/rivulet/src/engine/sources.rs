//! Sources of inputs: what applications read that is not a topic, for example Kafka and HTTP.
//!
//! Each such input of an application has a [`Reader`]: a thread that opens the source of a connector and puts its
//! messages into the router ([`rivulet_connectors::mqtt::feed`]). It reads as long as the application has queries, and
//! opens the source again when it fails.
//!
//! What must hold: a source continues at its last position. Checkpoints have the positions ([`Sources::positions`]),
//! and a start looks up later ones in the log ([`Sources::pass`]). A reader that replaces another waits for its end. No
//! code waits for anything outside of the process under a lock of the engine.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::connector::{Condition, Direction, Health, Host, Messages, SourceSpec};
use rivulet_connectors::mqtt::feed::{Feed, FeedCounts, FeedLayout, LoggedPlace, Noted, Turned};
use rivulet_connectors::mqtt::{Received, Router};
use rivulet_dataflow::{Clock, panic_text};
use rivulet_operators::application::{Input, SourceInput};
use rivulet_sql::{is_input_option, shown_application};
use xxhash_rust::xxh3::xxh3_64;

use super::running::Running;
use crate::catalog::ApplicationNumber;
use crate::counted::counted;
use crate::run::{CONNECTORS, placed_at};
use crate::service::{EndHealth, ServiceError};

/// How long a reader waits before it opens a source again that did not open, or failed; it doubles up to the second
/// constant.
const REOPEN_MIN: Duration = Duration::from_millis(200);
const REOPEN_MAX: Duration = Duration::from_secs(30);

/// How long a reader without queries waits before it checks again.
const REST: Duration = Duration::from_millis(20);

/// How long a reader waits for the end of the reader that it replaces.
const END_MAX: Duration = Duration::from_secs(20);

/// How long a stopping server waits for all readers. A reader that is opening a source ends later by itself, and the
/// router takes no messages any more.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Positions of sources, by their identity.
pub(super) type Positions = BTreeMap<String, Vec<Option<String>>>;

/// The sources of all inputs.
pub(super) struct Sources {
    router: Arc<Router>,
    host: Host,
    readers: Mutex<BTreeMap<(ApplicationNumber, String), Arc<Reader>>>,
    /// The positions of sources whose application has not been opened since the start.
    saved: Mutex<Positions>,
    /// Later positions in the log, by identity and partition: the offset after the last message.
    logged: Mutex<BTreeMap<String, BTreeMap<i64, i64>>>,
    /// Whether sources are read: not before the log was looked through.
    has_begun: AtomicBool,
}

/// The source of one input, while it is read.
pub(super) struct Reader {
    /// The name of the input.
    input: String,
    address: String,
    spec: SourceSpec,
    layout: FeedLayout,
    messages: Messages,
    /// Distinguishes the source from all others in the log and in checkpoints: another address is another source.
    id: String,
    /// How the source is opened; readers of the same source may differ in it.
    signature: SourceInput,
    is_logged: bool,
    noted: Arc<Mutex<Noted>>,
    health: Arc<Health>,
    /// The running version of the application.
    running: Mutex<Weak<Running>>,
    /// The reader that this one replaces.
    before: Mutex<Option<Arc<Self>>>,
    course: Mutex<Course>,
    bell: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Course {
    has_begun: bool,
    is_to_end: bool,
    has_ended: bool,
}

/// Checks whether the source of an input can be read, as far as that is known without opening it.
///
/// # Errors
/// It cannot. The error says why, with the position in the text.
pub(super) fn check(input: &Input, host: &Host) -> Result<(), ServiceError> {
    let Some(source) = &input.source else { return Ok(()) };
    let place_of = |option: &str| source.options.iter().find(|(name, ..)| name == option).map(|(.., place)| *place);
    Feed::check(CONNECTORS, spec_of(input, source, host))
        .map(drop)
        .map_err(|error| placed_at(&error, input.address.position, None, place_of))
}

fn spec_of(input: &Input, source: &SourceInput, host: &Host) -> SourceSpec {
    let options = source.options.iter().map(|(name, value, _)| (name.clone(), value.plain_text()));
    SourceSpec {
        connector: input.address.connector.clone(),
        address: input.address.template.clone(),
        format: None,
        schema: Arc::new(arrow::datatypes::Schema::empty()),
        columns: Vec::new(),
        event_time_column: None,
        has_computed_time: false,
        options: options.collect(),
        host: host.clone(),
        resume: None,
    }
}

/// The text of an application without the secrets of its sources and of its outputs.
pub(super) fn shown_sql(text: &str) -> String {
    shown_application(text, |connector, is_sink, name, value| match is_sink {
        true => CONNECTORS.shown_option(connector, Direction::Sink, name, value),
        false if is_input_option(name) || connector == "mqtt" => value.into(),
        false => CONNECTORS.shown_option(connector, Direction::Source, name, value),
    })
}

impl Sources {
    /// Without any sources yet.
    pub(super) fn new(router: Arc<Router>, host: Host) -> Self {
        Self {
            router,
            host,
            readers: Mutex::default(),
            saved: Mutex::default(),
            logged: Mutex::default(),
            has_begun: AtomicBool::new(false),
        }
    }

    /// Whether an application with this text may read a source whose messages have places.
    pub(super) fn may_be_in(text: &str) -> bool {
        let has_places = |messages: Messages| messages.place.is_some();
        let mut connectors = CONNECTORS.all().filter(|one| one.open.messages.is_some_and(has_places));
        let text = text.to_ascii_lowercase();
        connectors.any(|one| text.contains(&format!("{}:", one.name)))
    }

    /// Sets the positions of a checkpoint. To be called before any application is opened.
    pub(super) fn restore(&self, positions: Positions) {
        *self.saved.lock() = positions;
    }

    /// Takes note of a message in the log that is newer than the checkpoints. To be called before any application is
    /// opened.
    pub(super) fn pass(&self, message: &Received<'_>) {
        match LoggedPlace::read(message.client) {
            Some(LoggedPlace::At(id, partition, offset)) => {
                let mut logged = self.logged.lock();
                if !logged.contains_key(id) {
                    logged.insert(id.to_owned(), BTreeMap::new());
                }
                let next = logged.get_mut(id).map(|one| one.entry(partition).or_default());
                next.into_iter().for_each(|next| *next = (*next).max(offset + 1));
            }
            Some(LoggedPlace::Begins(id)) => {
                let mut saved = self.saved.lock();
                if let (false, Ok(positions)) = (saved.contains_key(id), serde_json::from_slice(message.payload)) {
                    saved.insert(id.to_owned(), positions);
                }
            }
            None => {}
        }
    }

    /// Sources are read from now on.
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
        let readers: Vec<Arc<Reader>> = self.readers.lock().values().cloned().collect();
        readers.iter().for_each(|reader| reader.begin(&self.router));
    }

    /// An application runs: its sources continue, or begin with [`Sources::begin_of`].
    pub(super) fn open(&self, running: &Arc<Running>) {
        let mut readers = self.readers.lock();
        readers.retain(|_, reader| !reader.course.lock().has_ended);
        let inputs = running.application.inputs.iter().zip(&running.topics.inputs);
        let of_inputs = inputs.filter_map(|(input, topics)| {
            let (source, layout) = (input.source.as_ref()?, topics.source.as_ref()?);
            let key = (running.number, input.name.clone());
            let before = readers.get(&key).cloned();
            let new = self.reader(running, input, source, layout, topics.is_logged)?;
            let reader = match before {
                Some(before) if before.is_same(&new) => before,
                before => {
                    if let Some(before) = &before {
                        before.end();
                        // The new reader adds the positions that the old one still reaches before its end.
                        new.go_on_from(before);
                    }
                    *new.before.lock() = before;
                    let new = Arc::new(new);
                    readers.insert(key, new.clone());
                    new
                }
            };
            *reader.running.lock() = Arc::downgrade(running);
            Some(reader)
        });
        // An application is opened only once.
        let _ = running.sources.set(of_inputs.collect());
    }

    /// The queries of an opened application have their routes: its sources are read.
    pub(super) fn begin_of(&self, running: &Running) {
        if self.has_begun.load(Ordering::Acquire) {
            running.sources().iter().for_each(|reader| reader.begin(&self.router));
        }
    }

    /// An application no longer runs in this form.
    pub(super) fn close(&self, running: &Running) {
        running.sources().iter().for_each(|reader| reader.end());
    }

    /// Ends all readers: the router takes no messages any more.
    pub(super) fn stop(&self) {
        let readers: Vec<Arc<Reader>> = self.readers.lock().values().cloned().collect();
        readers.iter().for_each(|reader| reader.end());
        let until = Instant::now() + STOP_MAX;
        readers.iter().for_each(|reader| reader.await_end(until));
    }

    /// Whether any input reads a source.
    pub(super) fn are_any(&self) -> bool {
        !self.readers.lock().is_empty() || !self.saved.lock().is_empty()
    }

    /// The positions at which all sources continue. Messages that went to the log before this call are before these
    /// positions.
    pub(super) fn positions(&self) -> Positions {
        let mut positions = self.saved.lock().clone();
        let readers: Vec<Arc<Reader>> = self.readers.lock().values().cloned().collect();
        for reader in readers {
            let of_reader = reader.positions();
            if !of_reader.is_empty() {
                positions.insert(reader.id.clone(), of_reader);
            }
        }
        positions
    }

    /// Forgets the positions of sources of applications that no longer exist.
    pub(super) fn keep(&self, is_there: impl Fn(ApplicationNumber) -> bool) {
        let number = |id: &str| id.split('/').next().and_then(|number| number.parse().ok());
        self.saved.lock().retain(|id, _| number(id).is_some_and(&is_there));
        self.readers.lock().retain(|(number, _), reader| is_there(*number) || !reader.course.lock().has_ended);
    }

    fn reader(
        &self,
        running: &Running,
        input: &Input,
        source: &SourceInput,
        layout: &FeedLayout,
        is_logged: bool,
    ) -> Option<Reader> {
        let messages = CONNECTORS.messages(&input.address.connector).ok()?;
        let name = running.full_name();
        let title = format!("source of the input '{}' of the application '{}'", input.name, name.in_log());
        let health = Arc::new(Health::new(title));
        let host = Host {
            query: format!("{}-{}", name.in_log(), input.name),
            confirms: is_logged,
            health: health.clone(),
            ..self.host.clone()
        };
        let address = input.address.to_string();
        let id = format!("{}/{:016x}", running.number, xxh3_64(format!("{}\0{address}", input.name).as_bytes()));
        let mut positions = self.saved.lock().remove(&id).unwrap_or_default();
        for (partition, offset) in self.logged.lock().remove(&id).into_iter().flatten() {
            messages.place.iter().for_each(|place| (place.go_on)(&mut positions, partition, offset));
        }
        Some(Reader {
            input: input.name.clone(),
            address,
            spec: spec_of(input, source, &host),
            layout: layout.clone(),
            messages,
            id,
            signature: source.without_places(),
            is_logged,
            noted: Arc::new(Mutex::new(Noted::begin(positions))),
            health,
            running: Mutex::default(),
            before: Mutex::default(),
            course: Mutex::default(),
            bell: Condvar::new(),
        })
    }
}

impl Reader {
    /// Whether another reader would read the same source in the same way.
    fn is_same(&self, other: &Self) -> bool {
        !self.course.lock().is_to_end
            && self.id == other.id
            && self.signature == other.signature
            && self.is_logged == other.is_logged
            && (&self.layout.key, self.layout.has_columns, self.layout.needs)
                == (&other.layout.key, other.layout.has_columns, other.layout.needs)
    }

    /// Continues at the position of an earlier reader, if that reads the same source.
    fn go_on_from(&self, before: &Self) {
        if before.id == self.id {
            self.noted.lock().succeed(&before.noted.lock());
        }
    }

    /// Where it goes on. While a reader before it reads the same source yet, that one knows.
    fn positions(&self) -> Vec<Option<String>> {
        let before = self.before.lock().clone().filter(|before| before.id == self.id);
        match before {
            Some(before) => before.positions(),
            None => self.noted.lock().positions(&self.messages),
        }
    }

    fn begin(self: &Arc<Self>, router: &Arc<Router>) {
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

    fn end(&self) {
        let mut course = self.course.lock();
        course.is_to_end = true;
        course.has_ended |= !course.has_begun;
        self.bell.notify_all();
    }

    fn await_end(&self, until: Instant) {
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
                return None;
            }
            if !self.has_queries() {
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

    /// Whether there are queries that may want the messages.
    fn has_queries(&self) -> bool {
        let running = self.running.lock().upgrade();
        running.is_some_and(|running| {
            [&running.queries_running, &running.queries_paused].iter().any(|count| count.load(Ordering::Relaxed) > 0)
        })
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
