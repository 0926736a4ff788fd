//! Rows from other servers.
//!
//! What must hold: of a stream that its sender stores, each buffer counts once, whichever connections and processes
//! brought it; the sender keeps it until a checkpoint covers it, or the log of events has it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Decoder, Element, Polled, Reason, Refusals, Source, SourceError};
use rivulet_wire::{Buffer, Received, WireError};
use serde::{Deserialize, Serialize};

use crate::connector::convert::{Converted, is_readable};
use crate::connector::given_format::format_or_json;
use crate::connector::intake::{Intake, refuse};
use crate::connector::{ConnectorError, Options, SourceSpec};
use crate::formats::{EncodedRows, Format, readable_encoder};
use crate::links::{Asked, Peer, Receive};

/// The name of the connector.
pub(super) const NAME: &str = "link";

/// The wait when there are no rows.
const IDLE: Duration = Duration::from_millis(1);

/// The most stores of which accounts are kept; beyond that, those are forgotten whose senders are away.
const ACCOUNTS_MAX: usize = 65_536;

/// How many streams and buffers without rows are passed over at once.
const LOOKS_MAX: usize = 64;

/// How many rows are made objects at once, if they are small: as text they take more memory than in their buffer.
const OBJECTS_MAX: usize = 1_024;

/// The streams that other servers send.
struct Incoming {
    /// The query that takes them.
    query: String,
    /// The name of the streams.
    name: String,
    /// The columns that are read, as they are declared; none if rows are objects.
    declared: SchemaRef,
    /// Whether rows are read as objects.
    has_objects: bool,
    state: Mutex<State>,
}

struct State {
    streams: BTreeMap<StreamKey, Stream>,
    /// Those of which something may wait, in the order in which it came.
    ready: VecDeque<StreamKey>,
    accounts: Accounts,
    /// Those whose senders do not know all that was given; `None` if the host does not say when that is safe
    /// ([`ConnectorContext::confirms`](crate::connector::ConnectorContext)).
    untold: Option<BTreeSet<StreamKey>>,
}

/// Tells one stream from another: the place of its peer in memory, and its number there.
type StreamKey = (usize, Received);

fn key(peer: &Arc<Peer>, stream: Received) -> StreamKey {
    (Arc::as_ptr(peer).addr(), stream)
}

/// What was taken of stored streams, by their stores.
type Accounts = BTreeMap<u64, Account>;

/// What was taken of a stored stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Account {
    /// Its name, which says who sends it.
    stream: String,
    /// All rows of the buffers up to this one were given, and its checksum; 0 if it was given by nobody here.
    done: u64,
    checksum: u64,
    /// Of the buffer after it, so many rows were given.
    given: usize,
}

#[derive(Clone)]
struct Stream {
    peer: Arc<Peer>,
    id: Received,
    name: Arc<str>,
    /// The number of the store that keeps it, if one does.
    store: Option<u64>,
    /// Where each column that is read stands in its rows.
    places: Arc<[usize]>,
    /// Whether it is among those of which something may wait.
    is_ready: bool,
}

impl State {
    /// Something of a stream may wait.
    fn make_ready(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key)
            && !std::mem::replace(&mut stream.is_ready, true)
        {
            self.ready.push_back(key);
        }
    }
}

impl Receive for Incoming {
    fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<Option<(u64, u64)>, String> {
        let schema = &asked.schema;
        let place = |field: &FieldRef| {
            let found = schema.fields().iter().position(|one| one.name() == field.name())?;
            is_readable(schema.field(found).data_type(), field).then_some(found)
        };
        let places: Option<Arc<[usize]>> = self.declared.fields().iter().map(place).collect();
        let places = places.ok_or_else(|| {
            let told = |schema: &SchemaRef| {
                let column = |field: &FieldRef| format!("{} {}", field.name(), field.data_type());
                schema.fields().iter().map(column).collect::<Vec<_>>().join(", ")
            };
            format!("the stream has the columns ({}), and its source reads ({})", told(schema), told(&self.declared))
        })?;
        if self.has_objects {
            Format::Json.encoder(schema.clone()).map_err(|error| error.to_string())?;
        }
        let store = asked.store;
        let (others, after) = {
            let state = &mut *self.state.lock();
            let is_other = |one: &&Stream| one.name.as_ref() == asked.name || (store.is_some() && one.store == store);
            let others: Vec<Stream> = state.streams.values().filter(is_other).cloned().collect();
            let name = asked.name.as_str().into();
            let stream = Stream { peer: peer.clone(), id: asked.stream, name, store, places, is_ready: false };
            state.streams.insert(key(peer, asked.stream), stream);
            state.make_ready(key(peer, asked.stream));
            state.untold.iter_mut().for_each(|untold| _ = untold.insert(key(peer, asked.stream)));
            // Of stores that are gone nothing comes any more.
            let there: BTreeSet<u64> = state.streams.values().filter_map(|stream| stream.store).collect();
            let is_full = state.accounts.len() >= ACCOUNTS_MAX;
            state.accounts.retain(|store, one| there.contains(store) || !(is_full || one.stream == asked.name));
            let account = store.and_then(|store| state.accounts.get(&store));
            (others, account.map(|account| (account.done, account.checksum)))
        };
        // The session itself tells one stream from another on its connection.
        for other in others.iter().filter(|other| !Arc::ptr_eq(&other.peer, peer)) {
            const WHY: &str = "another process with the same identity sends this stream";
            if store.is_some() && other.store == store {
                // The same store over another connection: its process has begun anew.
                other.peer.replace(other.id);
            } else if other.peer.is_needed() {
                continue;
            } else {
                // Should its process come back, it asks again.
                other.peer.let_go(other.id, WHY);
            }
            self.state.lock().streams.remove(&key(&other.peer, other.id));
        }
        Ok(after)
    }

    fn arrived(&self, peer: &Arc<Peer>, stream: Received) {
        self.state.lock().make_ready(key(peer, stream));
    }

    fn query(&self) -> &str {
        &self.query
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let why = format!("no source reads the stream '{}'", self.name);
        self.state.get_mut().streams.values().for_each(|stream| stream.peer.let_go(stream.id, &why));
    }
}

/// The decoder of the objects that rows are read as; `None` if the source has the columns of streams.
///
/// # Errors
/// The format does not suit the columns.
pub(super) fn decoder(spec: &SourceSpec) -> Result<Option<Box<dyn Decoder>>, ConnectorError> {
    if spec.format.is_none() {
        return Ok(None);
    }
    let format = format_or_json(spec.format.as_ref(), &spec.host.files)?;
    Ok(Some(format.decoder(&spec.schema, &spec.columns, spec.event_time_column)?))
}

pub(super) fn open(
    spec: &SourceSpec,
    _options: &Options,
    _wanted: usize,
) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let failed = |problem: &str, hint: &str| ConnectorError::open(NAME, &spec.address, problem, hint);
    if spec.host.only_looks {
        let hint = "write a query that inserts into a sink, and look at what it writes";
        return Err(failed("cannot be looked at without taking its rows from the query that reads it", hint));
    }
    let Some((links, scope)) = &spec.host.links else {
        let hint = "start a server with link.address in its configuration, and create the source there";
        return Err(failed("is received by a server", hint));
    };
    let objects = decoder(spec)?.map(Intake::new);
    let declared = match &objects {
        Some(_) => Schema::empty(),
        None => spec.schema.project(&spec.columns).expect("columns that are read are declared"),
    };
    let accounts = spec.resumed::<Accounts>(NAME)?.and_then(|resumed| resumed.into_iter().next()).unwrap_or_default();
    let untold = spec.host.confirms.then(BTreeSet::new);
    let state = State { streams: BTreeMap::new(), ready: VecDeque::new(), accounts, untold };
    let incoming = Arc::new(Incoming {
        name: spec.address.clone(),
        query: spec.host.query.clone(),
        declared: Arc::new(declared),
        has_objects: objects.is_some(),
        state: Mutex::new(state),
    });
    let receiver: Arc<dyn Receive> = incoming.clone();
    let hint = "drop the other query, or the application that reads it";
    links.receive(scope, &spec.address, &receiver).map_err(|problem| failed(&problem, hint))?;
    Ok(vec![Box::new(LinkSource {
        incoming,
        objects,
        schema: spec.read_schema(),
        taken: VecDeque::new(),
        under_way: None,
        makes_checkpoints: spec.host.makes_checkpoints.clone(),
        stated: BTreeMap::new(),
    })])
}

struct LinkSource {
    incoming: Arc<Incoming>,
    /// Makes messages of objects, if rows are read as objects.
    objects: Option<Intake>,
    /// The schema of polled rows.
    schema: SchemaRef,
    /// The batches of the buffer that was taken last, its stream, and its number and checksum.
    taken: VecDeque<Batch>,
    under_way: Option<(Stream, (u64, u64))>,
    makes_checkpoints: Arc<AtomicBool>,
    /// What was taken of each store when the position was last stated.
    stated: BTreeMap<u64, u64>,
}

impl LinkSource {
    /// Takes the next buffer that has rows, if one waits: one of each stream after the other.
    fn take(&mut self) {
        for _ in 0..LOOKS_MAX {
            // Peers are locked before this state, never after it.
            let (key, stream) = {
                let state = &mut *self.incoming.state.lock();
                let Some(key) = state.ready.pop_front() else { return };
                let stream = state.streams.get_mut(&key).map(|stream| {
                    stream.is_ready = false;
                    stream.clone()
                });
                (key, stream)
            };
            let Some(stream) = stream else { continue };
            let Some(buffer) = stream.peer.take(stream.id) else {
                if !stream.peer.has(stream.id) {
                    self.incoming.state.lock().streams.remove(&key);
                }
                continue;
            };
            // It is asked once more in any case: only then does this buffer count as taken.
            self.incoming.state.lock().make_ready(key);
            let named = (buffer.number(), stream.store.map_or(0, |_| buffer.checksum()));
            match batches(buffer) {
                Ok(batches) => self.begin(&stream, named, batches),
                Err(error) => stream.peer.give_up(stream.id, &error),
            }
            if !self.taken.is_empty() {
                return;
            }
        }
    }

    /// Begins with a buffer, if it is the next one of its stream.
    fn begin(&mut self, stream: &Stream, named: (u64, u64), batches: Vec<Batch>) {
        let (number, mut given) = (named.0, 0);
        if let Some(store) = stream.store {
            let State { accounts, untold, .. } = &mut *self.incoming.state.lock();
            let done = number.saturating_sub(1);
            let fresh = || Account { stream: stream.name.to_string(), done, checksum: 0, given: 0 };
            let account = accounts.entry(store).or_insert_with(fresh);
            if number <= account.done {
                // An earlier connection has brought it.
                untold.iter_mut().for_each(|untold| _ = untold.insert(key(&stream.peer, stream.id)));
                return;
            }
            given = account.given;
        }
        for batch in batches {
            let rest = batch.rows().saturating_sub(given);
            given = given.saturating_sub(batch.rows());
            if rest > 0 {
                self.taken.push_back(batch.slice(batch.rows() - rest, rest));
            }
        }
        self.under_way = Some((stream.clone(), named));
        self.note_given(0);
    }

    /// Notes that rows of the buffer under way were given, and whether those were all.
    fn note_given(&mut self, rows: usize) {
        let Some((Stream { peer, id, store: Some(store), .. }, (number, checksum))) = &self.under_way else { return };
        let is_done = self.taken.is_empty();
        let mut is_safe = is_done && !self.makes_checkpoints.load(Ordering::Relaxed);
        {
            let State { accounts, untold, .. } = &mut *self.incoming.state.lock();
            if let Some(account) = accounts.get_mut(store) {
                account.given += rows;
                if is_done {
                    (account.done, account.checksum, account.given) = (*number, *checksum, 0);
                }
            }
            if let (true, Some(untold)) = (is_done, untold) {
                is_safe = false;
                untold.insert(key(peer, *id));
            }
        }
        if is_safe {
            peer.confirm(*id, *number);
        }
    }

    /// The columns that are read, of a batch of a stream.
    fn rows(
        &self,
        batch: &Batch,
        places: &[usize],
        now_us: i64,
        refusals: &mut Refusals,
    ) -> Result<Polled, SourceError> {
        let mut converted = Converted::new(batch.rows());
        for (column, (field, place)) in self.incoming.declared.fields().iter().zip(places).enumerate() {
            converted.push(field, batch.column(*place)).map_err(SourceError)?;
            if !field.is_nullable() {
                converted.refuse_nulls(column, field.name());
            }
        }
        let columns = converted.finish(&self.schema, |detail, rows| {
            refuse(refusals, now_us, &[], || detail);
            refusals.count(Reason::Decode, rows - 1);
        });
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(Duration::ZERO),
            // The clock of the other server may be wrong.
            _ => Polled::Rows { columns, retracts: None, arrival_us: now_us },
        })
    }
}

/// The batches of a buffer. What else comes is for operators; a source gives rows.
fn batches(buffer: Buffer) -> Result<Vec<Batch>, WireError> {
    let (mut elements, mut batches) = (buffer.elements()?, Vec::new());
    while let Some(element) = elements.next_element()? {
        if let Element::Batch(batch) = element {
            batches.push(batch);
        }
    }
    Ok(batches)
}

impl Source for LinkSource {
    fn poll(&mut self, _rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        if self.taken.is_empty() {
            self.take();
        }
        let Some(batch) = self.taken.pop_front() else { return Ok(Polled::Nothing(IDLE)) };
        let Some(intake) = &mut self.objects else {
            self.note_given(batch.rows());
            let places = self.under_way.as_ref().map(|(stream, _)| stream.places.clone()).unwrap_or_default();
            return self.rows(&batch, &places, now_us, refusals);
        };
        let (mut encoder, mut rows) = (readable_encoder(&batch.columns.schema()), 0);
        while rows < batch.rows() && intake.has_room(OBJECTS_MAX) {
            // As many as so far, so that of large rows only few are made beyond the bound of bytes.
            let (more, mut objects) = (rows.clamp(1, batch.rows() - rows), EncodedRows::default());
            encoder.encode(&batch.slice(rows, more), &mut objects);
            objects.iter().for_each(|object| intake.push(now_us, object));
            rows += more;
        }
        let polled = intake.decode_for(now_us, refusals);
        if rows < batch.rows() {
            self.taken.push_front(batch.slice(rows, batch.rows() - rows));
        }
        self.note_given(rows);
        Ok(polled.unwrap_or(Polled::Nothing(Duration::ZERO)))
    }

    fn is_live(&self) -> bool {
        true
    }

    fn holds_rows(&self) -> bool {
        // Those of a store come again. Others are still with their sender.
        self.under_way.as_ref().is_some_and(|(stream, _)| stream.store.is_none()) && !self.taken.is_empty()
    }

    fn position(&mut self) -> Option<String> {
        let accounts = &self.incoming.state.lock().accounts;
        self.stated = accounts.iter().map(|(store, account)| (*store, account.done)).collect();
        serde_json::to_string(accounts).ok()
    }

    fn confirm(&mut self) {
        let told: Vec<(Stream, u64)> = {
            let State { streams, accounts, untold, .. } = &mut *self.incoming.state.lock();
            let given = |stream: &Stream| Some((stream.clone(), accounts.get(&stream.store?)?.done));
            let stated = |stream: &Stream| Some((stream.clone(), *self.stated.get(&stream.store?)?));
            match untold {
                Some(untold) => std::mem::take(untold).iter().filter_map(|key| given(streams.get(key)?)).collect(),
                None => streams.values().filter_map(stated).collect(),
            }
        };
        told.iter().for_each(|(stream, done)| stream.peer.confirm(stream.id, *done));
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
    use arrow::datatypes::{DataType, Field};

    use super::*;
    use crate::connector::intake::BYTES_AT_ONCE;
    use crate::files::Files;

    /// How many rows of a buffer are given at once as objects, if each has a text of this length.
    fn rows_at_once(text_bytes: usize, rows: usize) -> Vec<usize> {
        let schema = Arc::new(Schema::new(vec![Field::new("object", DataType::Utf8, false)]));
        let format = format_or_json(Some(&("RAW".into(), Vec::new())), &Files::default()).unwrap();
        let state = State { streams: BTreeMap::new(), ready: VecDeque::new(), accounts: BTreeMap::new(), untold: None };
        let incoming = Incoming {
            query: "q".into(),
            name: "s".into(),
            declared: Arc::new(Schema::empty()),
            has_objects: true,
            state: Mutex::new(state),
        };
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..).take(rows)));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(text_bytes); rows]));
        let columns = RecordBatch::try_from_iter([("n", numbers), ("text", texts)]).unwrap();
        let zeros = || vec![0; rows].into();
        let mut source = LinkSource {
            incoming: Arc::new(incoming),
            objects: Some(Intake::new(format.decoder(&schema, &[0], None).unwrap())),
            schema,
            taken: [Batch::new(vec![0; rows].into(), zeros(), zeros(), columns)].into(),
            under_way: None,
            makes_checkpoints: Arc::default(),
            stated: BTreeMap::new(),
        };
        let (mut given, mut next) = (Vec::new(), 0);
        while let Polled::Rows { columns, .. } = source.poll(1, 0, &mut Refusals::new(0)).unwrap() {
            let objects = columns.column(0).as_string::<i32>();
            for object in objects.iter().flatten() {
                assert!(object.starts_with(&format!("{{\"n\":{next},")), "{object:.40}");
                next += 1;
            }
            given.push(columns.num_rows());
        }
        given
    }

    #[test]
    fn of_large_rows_few_are_made_objects_at_once() {
        assert_eq!(rows_at_once(1, 2_500), [OBJECTS_MAX, OBJECTS_MAX, 452]);
        assert_eq!(rows_at_once(BYTES_AT_ONCE / 4, 20), [4, 4, 4, 4, 4]);
        assert_eq!(rows_at_once(BYTES_AT_ONCE, 3), [1, 1, 1]);
    }
}
