//! Sources of inputs: what applications read that is not a topic, for example Kafka and HTTP.
//!
//! Each such input of an application has a [`Reader`], a thread that puts its messages into the router.
//!
//! What must hold: a source continues at its last position. Checkpoints have the positions ([`Sources::positions`]),
//! and a start looks up later ones in the log ([`Sources::pass`]). No code waits for anything outside of the process
//! under a lock of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_connectors::connector::{ConnectorContext, Health, SourceSpec};
use rivulet_connectors::feed::{Feed, FeedLayout, LoggedPlace, Noted};
use rivulet_connectors::mqtt::{Received, Router};
use rivulet_operators::application::{Application, Input, SourceInput};
use xxhash_rust::xxh3::xxh3_64;

use super::permitted::Permitted;
use super::running::Running;
use super::source_reader::Reader;
use crate::catalog::ApplicationNumber;
use crate::run::{CONNECTORS, option_text, placed_at};
use crate::service::ServiceError;

/// How long a stopping server waits for all readers. A reader that is opening a source ends later by itself, and the
/// router takes no messages any more.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Positions of sources, by their identity.
pub(super) type Positions = BTreeMap<String, Vec<Option<String>>>;

/// The sources of all inputs.
pub(super) struct Sources {
    router: Arc<Router>,
    permitted: Arc<Permitted>,
    server_id: String,
    readers: Mutex<BTreeMap<(ApplicationNumber, String), Arc<Reader>>>,
    /// The positions of sources whose application has not been opened since the start.
    saved: Mutex<Positions>,
    /// Later positions in the log, by identity and partition: the offset after the last message.
    logged: Mutex<BTreeMap<String, BTreeMap<i64, i64>>>,
    /// Whether sources are read: not before the log was looked through.
    has_begun: AtomicBool,
}

/// Whether a connector's senders forget what a source of it has taken: such a stream has one reader.
pub(super) fn is_stream(connector: &str) -> bool {
    CONNECTORS.messages(connector).is_ok_and(|messages| messages.needs_log)
}

/// Checks whether the source of an input can be read, as far as that is known without opening it.
///
/// # Errors
/// It cannot. The error says why, with the position in the text.
pub(super) fn check(input: &Input, host: &ConnectorContext) -> Result<(), ServiceError> {
    let Some(source) = &input.source else { return Ok(()) };
    let place_of = |option: &str| source.options.iter().find(|(name, ..)| name == option).map(|(.., place)| *place);
    Feed::check(CONNECTORS, spec_of(input, source, host))
        .map(drop)
        .map_err(|error| placed_at(&error, input.address.position, None, place_of))
}

fn spec_of(input: &Input, source: &SourceInput, host: &ConnectorContext) -> SourceSpec {
    let options = source.options.iter().map(|(name, value, _)| (name.clone(), option_text(value)));
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

impl Sources {
    /// Without any sources yet.
    pub(super) fn new(router: Arc<Router>, permitted: Arc<Permitted>, server_id: String) -> Self {
        Self {
            router,
            permitted,
            server_id,
            readers: Mutex::default(),
            saved: Mutex::default(),
            logged: Mutex::default(),
            has_begun: AtomicBool::new(false),
        }
    }

    /// Whether an application reads a source whose messages have places.
    pub(super) fn have_places(application: &Application) -> bool {
        let mut sources = application.inputs.iter().filter(|input| input.source.is_some());
        let messages = |input: &Input| CONNECTORS.messages(&input.address.connector).ok();
        sources.any(|input| messages(input).is_some_and(|messages| messages.place.is_some()))
    }

    /// Whether an input has to be in the log, on a server that makes checkpoints.
    pub(super) fn needs_log(Input { source, address, .. }: &Input) -> bool {
        source.is_some() && is_stream(&address.connector)
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
        readers.retain(|_, reader| !reader.has_ended());
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
            let running = Arc::downgrade(running);
            *reader.has_queries.lock() =
                Box::new(move || running.upgrade().is_some_and(|running| running.has_queries()));
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
        self.readers.lock().retain(|(number, _), reader| is_there(*number) || !reader.has_ended());
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
        let host = ConnectorContext {
            query: format!("{}-{}", name.in_log(), input.name),
            confirms: is_logged,
            health: health.clone(),
            server: self.server_id.clone(),
            ..self.permitted.host(&name.tenant)
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
            has_queries: Mutex::new(Box::new(|| false)),
            before: Mutex::default(),
            course: Mutex::default(),
            bell: Condvar::new(),
        })
    }
}
