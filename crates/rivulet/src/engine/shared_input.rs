//! Topics that many queries read: each event is decoded once, and found to concern some of them by an index.
//!
//! Usually a route leads from a topic to a query's slot, and its group decodes what comes. Where [`QUERIES_MIN`] queries read
//! one topic, of one application or of several with the same declared columns and format, one route leads to a *shared input*
//! instead: a group whose slots are topics. Its sink hands each decoded row on to the queries that it can concern, which the
//! index over their parameters tells ([`rivulet_operators::MatchIndex`]). What cannot be decoded goes to each of them as it
//! came, so that each refuses it in its own way.
//!
//! What must hold: a query gets exactly the events it would get by a route of its own, but for rows that its WHERE does not
//! let through anyhow.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use parking_lot::{Mutex, RwLock};
use rivulet_connectors::mqtt::{InboxId, Route};
use rivulet_dataflow::{Batch, Chain, Decoder, Inbox, Push, Refusals, Refused, Sink, SinkError, Slot, SlotTable};
use rivulet_runtime::{Group, GroupParts, InboxLimits, Overflow, Picked, TaskParts, Workers};
use rivulet_sql::{Match, MatchIndex, MatchKey, match_keys};

use super::{Engine, Running, State};
use crate::catalog::ApplicationNumber;

/// How many queries of one topic make it worth a step of its own.
const QUERIES_MIN: usize = 16;

/// How many events of a batch are handed on together; one row may go beyond.
const PICKED_MAX: usize = 65_536;

/// The most events in a batch of a shared input: few enough that the content of each that is refused is kept.
const BATCH_ROWS_MAX: usize = 256;

/// How the payloads of an input are decoded. Inputs with the same signature decode the same.
pub(super) struct InputShape {
    pub(super) signature: String,
    pub(super) decoder: Box<dyn Fn() -> Box<dyn Decoder> + Send + Sync>,
}

/// The topics that many queries with one kind of input read.
pub(super) struct SharedInput {
    group: Arc<Group>,
    inbox: InboxId,
    /// The slot of each topic in `group`.
    topics: HashMap<Box<str>, Slot>,
    readers: Arc<Readers>,
}

/// Who reads the topics; shared with the sinks of the group.
#[derive(Default)]
struct Readers {
    known: RwLock<Known>,
    /// What sinks could not hand on yet.
    waiting: Mutex<Vec<Weak<Mutex<Waiting>>>>,
}

#[derive(Default)]
struct Known {
    applications: Vec<Option<Reader>>,
    /// By slot of the shared input.
    topics: Vec<Vec<TopicQueries>>,
}

/// An application some of whose queries read shared topics.
struct Reader {
    number: ApplicationNumber,
    group: Arc<Group>,
    matching: Option<Match>,
    queries: usize,
}

/// The queries of one application that read one topic.
struct TopicQueries {
    /// The place of the application among the readers.
    reader: usize,
    index: MatchIndex,
    /// How many there are, those included that no row can concern.
    queries: usize,
}

impl SharedInput {
    /// A shared input without topics; `register` makes its inbox known where messages are routed.
    fn new(
        shape: &Arc<InputShape>,
        limits: InboxLimits,
        workers: &Workers,
        register: impl FnOnce(Arc<Group>) -> InboxId,
    ) -> Self {
        let readers = Arc::<Readers>::default();
        let (shape, of_sinks) = (shape.clone(), readers.clone());
        let make = move || TaskParts {
            decoder: (shape.decoder)(),
            chain: Chain::new(Vec::new()),
            sink: Box::new(FanOut::new(of_sinks.clone())),
        };
        let group = workers.create_group(GroupParts {
            name: "shared input".into(),
            parameters: Arc::new(Schema::empty()),
            make: Box::new(make),
            limits: InboxLimits { overflow: Overflow::Block, ..limits },
            event_time_column: None,
            task_queries_max: None,
            batch_rows_max: Some(BATCH_ROWS_MAX),
        });
        Self { inbox: register(group.clone()), group, topics: HashMap::new(), readers }
    }

    /// The slot of a topic, if it is shared.
    fn topic(&self, topic: &str) -> Option<Slot> {
        self.topics.get(topic).copied()
    }

    /// The number of topics.
    pub(super) fn topics(&self) -> usize {
        self.topics.len()
    }

    /// The number of queries that read them.
    pub(super) fn queries(&self) -> usize {
        self.readers.known.read().applications.iter().flatten().map(|reader| reader.queries).sum()
    }

    /// Makes a topic a shared one and returns its slot. Nobody reads it yet.
    fn add_topic(&mut self, topic: &str) -> Slot {
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let nothing = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options);
        // The number is no query's: it only has to be one.
        let slot = self.group.add(&[0], &nothing.expect("a row without columns"))[0];
        let mut known = self.readers.known.write();
        if known.topics.len() <= slot as usize {
            known.topics.resize_with(slot as usize + 1, Vec::new);
        }
        self.topics.insert(topic.into(), slot);
        slot
    }

    /// Lets queries read shared topics: for each of `slots` the topic beside it, by its slot here.
    fn add(&self, running: &Running, slots: &[Slot], topics: &[Slot]) {
        let matching = running.application.matching;
        let keys = keys_of(running, slots);
        let mut known = self.readers.known.write();
        let known = &mut *known;
        let reader = known.reader(running);
        for ((&slot, &topic), key) in slots.iter().zip(topics).zip(keys) {
            let queries = &mut known.topics[topic as usize];
            let of_reader = queries.iter().position(|queries| queries.reader == reader).unwrap_or_else(|| {
                let index = MatchIndex::new(matching.map(|one| one.comparison));
                queries.push(TopicQueries { reader, index, queries: 0 });
                queries.len() - 1
            });
            queries[of_reader].index.insert(slot, key);
            queries[of_reader].queries += 1;
        }
        known.applications[reader].as_mut().expect("it was just found").queries += slots.len();
    }

    /// Ends what `add` began. When this returns nothing is handed to these slots any more.
    fn remove(&self, running: &Running, slots: &[Slot], topics: &[Slot]) {
        let keys = keys_of(running, slots);
        let mut guard = self.readers.known.write();
        let known = &mut *guard;
        let reader = known.reader(running);
        for ((&slot, &topic), key) in slots.iter().zip(topics).zip(keys) {
            if let Some(queries) = known.topics[topic as usize].iter_mut().find(|queries| queries.reader == reader) {
                queries.index.remove(slot, key);
                queries.queries -= 1;
            }
        }
        let application = known.applications[reader].as_mut().expect("it was just found");
        application.queries -= slots.len();
        let mut of_topics = topics.to_vec();
        of_topics.sort_unstable();
        of_topics.dedup();
        of_topics.iter().for_each(|&topic| known.topics[topic as usize].retain(|one| one.queries > 0));
        if application.queries == 0 {
            known.applications[reader] = None;
        }
        let mut gone = slots.to_vec();
        gone.sort_unstable();
        for waiting in self.readers.waiting.lock().iter().filter_map(Weak::upgrade) {
            waiting.lock().forget(&running.group, &gone);
        }
    }

    /// Gives up those of the topics that nobody reads, and returns them with their slots.
    fn take_unread<'t>(&mut self, topics: impl Iterator<Item = &'t str>) -> Vec<(&'t str, Slot)> {
        let known = self.readers.known.read();
        let is_unread = |slot: Slot| known.topics[slot as usize].is_empty();
        let unread = topics.filter_map(|topic| {
            let slot = self.topic(topic).filter(|&slot| is_unread(slot))?;
            Some((topic, slot))
        });
        let mut unread: Vec<(&str, Slot)> = unread.collect();
        unread.sort_unstable();
        unread.dedup();
        drop(known);
        for (topic, _) in &unread {
            self.topics.remove(*topic);
        }
        unread
    }
}

/// Queries whose topic is shared, with the slot of the topic in the shared input.
#[derive(Default)]
pub(super) struct Shared {
    slots: Vec<Slot>,
    topics: Vec<Slot>,
}

impl State {
    /// Tells apart which of the queries read a shared topic: routes for the others, and those. `topics` are for each slot those of
    /// its inputs.
    pub(super) fn split_shared<'t>(
        &self,
        running: &Running,
        slots: &[Slot],
        topics: &'t [Vec<String>],
    ) -> (Vec<Route<'t>>, Shared) {
        let input = running.shape.as_ref().and_then(|shape| self.shared_inputs.get(&shape.signature));
        let (mut own, mut shared) = (Vec::new(), Shared::default());
        for (&slot, topics) in slots.iter().zip(topics) {
            // Only an application with one input has a shape, and so shares any.
            match input.and_then(|input| input.topic(&topics[0])) {
                Some(of_topic) => {
                    shared.slots.push(slot);
                    shared.topics.push(of_topic);
                }
                None => {
                    let routes = running.inboxes.iter().zip(topics);
                    own.extend(routes.map(|(&inbox, topic)| Route { filter: topic, inbox, slot }));
                }
            }
        }
        (own, shared)
    }

    /// Lets queries read the shared topics that `split_shared` has found.
    pub(super) fn join_shared(&self, running: &Running, shared: &Shared) {
        let input = running.shape.as_ref().and_then(|shape| self.shared_inputs.get(&shape.signature));
        if let Some(input) = input.filter(|_| !shared.slots.is_empty()) {
            input.add(running, &shared.slots, &shared.topics);
        }
    }
}

impl Engine {
    /// Makes those of the topics shared that many queries with inputs of this shape read.
    pub(super) fn share_crowded<'t>(
        &self,
        state: &mut State,
        shape: &Arc<InputShape>,
        topics: impl Iterator<Item = &'t str>,
    ) {
        let router = self.messaging.router();
        let mut crowded = router.crowded(topics, QUERIES_MIN);
        crowded.sort_unstable();
        crowded.dedup();
        for topic in crowded {
            let reads_so = |inbox: InboxId| {
                let running = state.by_inbox.get(&inbox)?;
                running.shape.as_ref().filter(|one| one.signature == shape.signature).map(|_| running.clone())
            };
            let mut routes = router.routes_of(topic);
            routes.sort_unstable();
            let routes: Vec<(InboxId, Slot)> =
                routes.into_iter().filter(|&(inbox, _)| reads_so(inbox).is_some()).collect();
            if routes.len() < QUERIES_MIN {
                continue;
            }
            let readers: Vec<(Arc<Running>, Vec<Slot>)> = routes
                .chunk_by(|(one, _), (other, _)| one == other)
                .filter_map(|of_one| Some((reads_so(of_one[0].0)?, of_one.iter().map(|(_, slot)| *slot).collect())))
                .collect();
            let limits = InboxLimits {
                rows_max: self.config.inbox_rows_max,
                bytes_max: self.config.inbox_bytes_max,
                ..InboxLimits::default()
            };
            let input = state.shared_inputs.entry(shape.signature.clone()).or_insert_with(|| {
                SharedInput::new(shape, limits, &self.workers, |group| router.register_inbox(group))
            });
            let slot = input.add_topic(topic);
            for (running, slots) in readers {
                input.add(&running, &slots, &vec![slot; slots.len()]);
            }
            let through = Route { filter: topic, inbox: input.inbox, slot };
            if let Err(error) = router.reroute(&routes, through) {
                tracing::error!(topic, "its events stay with each query (a defect): {error}");
            }
        }
    }

    /// Ends what `share_crowded` or `join_shared` began, for some queries of one application.
    pub(super) fn leave_shared(&self, state: &mut State, running: &Running, shared: &Shared, topics: &[Vec<String>]) {
        let Some(shape) = running.shape.as_ref().filter(|_| !shared.slots.is_empty()) else { return };
        let Some(input) = state.shared_inputs.get_mut(&shape.signature) else { return };
        input.remove(running, &shared.slots, &shared.topics);
        let router = self.messaging.router();
        router.forget_rerouted(running.inboxes[0], &shared.slots);
        let unread = input.take_unread(topics.iter().flatten().map(String::as_str));
        let (routes, slots): (Vec<Route<'_>>, Vec<Slot>) =
            unread.into_iter().map(|(filter, slot)| (Route { filter, inbox: input.inbox, slot }, slot)).unzip();
        router.remove(&routes);
        input.group.remove(&slots);
        if input.topics.is_empty() {
            router.unregister_inbox(input.inbox);
            self.workers.remove_group(input.group.id());
            state.shared_inputs.remove(&shape.signature);
        }
    }
}

impl Known {
    /// The place of an application among the readers.
    fn reader(&mut self, running: &Running) -> usize {
        let of_it = |reader: &Option<Reader>| reader.as_ref().is_some_and(|reader| reader.number == running.number);
        if let Some(place) = self.applications.iter().position(of_it) {
            return place;
        }
        let reader = Some(Reader {
            number: running.number,
            group: running.group.clone(),
            matching: running.application.matching,
            queries: 0,
        });
        match self.applications.iter().position(Option::is_none) {
            Some(place) => {
                self.applications[place] = reader;
                place
            }
            None => {
                self.applications.push(reader);
                self.applications.len() - 1
            }
        }
    }
}

/// For each query the key of the parameter by which it is found; nothing where the application has no such parameter.
fn keys_of(running: &Running, slots: &[Slot]) -> Vec<Option<MatchKey>> {
    let Some(matching) = running.application.matching else { return vec![None; slots.len()] };
    let keys = running.group.with_queries(slots, |table, row| match_keys(&table.gather(matching.parameter, &[row]))(0));
    keys.into_iter().map(Option::flatten).collect()
}

/// The sink of a task of a shared input.
struct FanOut {
    readers: Arc<Readers>,
    waiting: Arc<Mutex<Waiting>>,
}

/// What is to be handed on.
#[derive(Default)]
struct Waiting {
    /// Batches, and from which row on.
    batches: VecDeque<(Batch, usize)>,
    /// Rows for an application whose inbox had no room.
    rows: Vec<(Arc<Group>, Picked)>,
    /// Payloads that could not be decoded, for each query that reads their topic.
    payloads: VecDeque<Undecoded>,
}

struct Undecoded {
    group: Arc<Group>,
    slot: Slot,
    arrival_us: i64,
    payload: Arc<[u8]>,
}

impl FanOut {
    fn new(readers: Arc<Readers>) -> Self {
        let waiting = Arc::<Mutex<Waiting>>::default();
        let mut all = readers.waiting.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&waiting));
        drop(all);
        Self { readers, waiting }
    }
}

impl Sink for FanOut {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        let known = self.readers.known.read();
        let mut waiting = self.waiting.lock();
        waiting.batches.push_back((batch.clone(), 0));
        waiting.hand_on(&known);
        Ok(())
    }

    fn refused(&mut self, refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        let known = self.readers.known.read();
        let mut waiting = self.waiting.lock();
        for refusal in refusals.records() {
            let Refused::Payload(payload) = &refusal.content else { continue };
            let payload: Arc<[u8]> = payload.as_ref().into();
            for queries in &known.topics[refusal.slot as usize] {
                let Some(reader) = &known.applications[queries.reader] else { continue };
                waiting.payloads.extend(queries.index.all().map(|slot| Undecoded {
                    group: reader.group.clone(),
                    slot,
                    arrival_us: refusal.arrival_us,
                    payload: payload.clone(),
                }));
            }
        }
        waiting.hand_on(&known);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Whether everything was handed on; tries again what was not.
    fn has_room(&self) -> bool {
        let known = self.readers.known.read();
        self.waiting.lock().hand_on(&known)
    }
}

impl Waiting {
    /// Hands on as much as there is room for. Whether that was everything.
    fn hand_on(&mut self, known: &Known) -> bool {
        loop {
            self.rows = std::mem::take(&mut self.rows)
                .into_iter()
                .filter_map(|(group, rows)| group.push_rows(rows).map(|rows| (group, rows)))
                .collect();
            while let Some(one) = self.payloads.front() {
                if one.group.push(one.slot, one.arrival_us, &one.payload) == Push::Full {
                    return false;
                }
                self.payloads.pop_front();
            }
            if !self.rows.is_empty() {
                return false;
            }
            let Some((batch, from)) = self.batches.pop_front() else { return true };
            let next = pick(&batch, from, known, &mut self.rows);
            if next < batch.rows() {
                self.batches.push_front((batch, next));
            }
        }
    }

    /// Forgets what waits for queries that go. `gone` is in ascending order.
    fn forget(&mut self, group: &Arc<Group>, gone: &[Slot]) {
        let is_gone = |of: &Arc<Group>, slot: Slot| Arc::ptr_eq(of, group) && gone.binary_search(&slot).is_ok();
        self.payloads.retain(|one| !is_gone(&one.group, one.slot));
        for (of, rows) in &mut self.rows {
            rows.retain_slots(|slot| !is_gone(of, slot));
        }
    }
}

/// Picks rows from `from` on for the queries they can concern, until these are many; returns the first row that was not looked at.
fn pick(batch: &Batch, from: usize, known: &Known, picked: &mut Vec<(Arc<Group>, Picked)>) -> usize {
    let columns: Vec<Option<_>> = batch
        .columns
        .columns()
        .iter()
        .enumerate()
        .map(|(column, values)| {
            let is_used =
                known.applications.iter().flatten().any(|one| one.matching.is_some_and(|one| one.column == column));
            is_used.then(|| match_keys(values))
        })
        .collect();
    let mut by_reader: Vec<(Vec<u32>, Vec<Slot>)> = vec![Default::default(); known.applications.len()];
    let (mut count, mut row) = (0, from);
    while row < batch.rows() && count < PICKED_MAX {
        for queries in &known.topics[batch.slots[row] as usize] {
            let Some(reader) = &known.applications[queries.reader] else { continue };
            let key = reader.matching.and_then(|one| columns[one.column].as_ref().and_then(|keys| keys(row)));
            let (rows, slots) = &mut by_reader[queries.reader];
            slots.extend(queries.index.candidates(key));
            count += slots.len() - rows.len();
            rows.resize(slots.len(), row as u32);
        }
        row += 1;
    }
    for (reader, (rows, slots)) in known.applications.iter().zip(by_reader) {
        if let Some(reader) = reader.as_ref().filter(|_| !rows.is_empty()) {
            picked.push((reader.group.clone(), Picked::new(batch, rows, slots)));
        }
    }
    row
}
