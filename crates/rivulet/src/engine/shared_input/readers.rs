//! The queries that read each shared topic.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rivulet_dataflow::{Batch, LogPosition, Picked, Slot};
use rivulet_operators::{Match, MatchIndex, MatchKey, match_keys};
use rivulet_runtime::Group;

use crate::catalog::ApplicationNumber;
use crate::engine::running::Running;

/// About how many rows are handed on together; the readers of one row may be more.
const PICKED_MAX: usize = 65_536;

/// The queries that read the topics of a shared input, and what its sink has yet to hand on. Locked in this order.
#[derive(Default)]
pub(super) struct Readers {
    known: RwLock<Known>,
    pub(super) waiting: Mutex<Waiting>,
}

/// Rows and payloads that are to be handed on.
#[derive(Default)]
pub(super) struct Waiting {
    /// Batches, each with the first row that is still to be handed on.
    pub(super) batches: VecDeque<(Batch, usize)>,
    /// Rows for an application whose inbox had no room.
    pub(super) rows: Vec<(Arc<Group>, Picked)>,
    /// Payloads that could not be decoded.
    pub(super) undecoded: VecDeque<Undecoded>,
    /// The queries that have yet to get the first of these payloads.
    pub(super) targets: Vec<(Arc<Group>, Slot)>,
}

pub(super) struct Undecoded {
    pub(super) topic: Slot,
    pub(super) arrival_us: i64,
    pub(super) position: LogPosition,
    /// The parts of its topic, for a query may refuse the event for these alone.
    pub(super) event_topic: Box<[u8]>,
    pub(super) payload: Box<[u8]>,
    /// Whether `targets` belong to this payload.
    pub(super) has_targets: bool,
}

#[derive(Default)]
pub(super) struct Known {
    applications: Vec<Option<Reader>>,
    /// By slot of the shared input.
    topics: Vec<Vec<TopicQueries>>,
}

/// An application whose queries, or some of them, read shared topics.
struct Reader {
    number: ApplicationNumber,
    group: Arc<Group>,
    matching: Option<Match>,
    queries: usize,
}

/// The queries of one application that read one topic.
struct TopicQueries {
    /// The index of the application among the readers.
    reader: usize,
    index: MatchIndex,
}

impl Readers {
    pub(super) fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read()
    }

    pub(super) fn queries(&self) -> usize {
        self.known.read().applications.iter().flatten().map(|reader| reader.queries).sum()
    }

    pub(super) fn is_unread(&self, topic: Slot) -> bool {
        self.known.read().topics[topic as usize].is_empty()
    }

    pub(super) fn add_topic(&self, topic: Slot) {
        let mut known = self.known.write();
        if known.topics.len() <= topic as usize {
            known.topics.resize_with(topic as usize + 1, Vec::new);
        }
    }

    /// Makes queries read topics: each of `slots` reads the topic with the same index.
    pub(super) fn add(&self, running: &Running, slots: &[Slot], topics: &[Slot]) {
        let matching = running.application.matching;
        let keys = keys_of(running, slots);
        let known = &mut *self.known.write();
        let reader = known.reader(running);
        for ((&slot, &topic), key) in slots.iter().zip(topics).zip(keys) {
            let queries = &mut known.topics[topic as usize];
            let of_reader = queries.iter().position(|queries| queries.reader == reader).unwrap_or_else(|| {
                queries.push(TopicQueries { reader, index: MatchIndex::new(matching.map(|one| one.comparison)) });
                queries.len() - 1
            });
            queries[of_reader].index.insert(slot, key);
        }
        known.applications[reader].as_mut().expect("it was just found").queries += slots.len();
    }

    /// Ends what `add` began. When this returns nothing is handed to these slots any more.
    pub(super) fn remove(&self, running: &Running, slots: &[Slot], topics: &[Slot]) {
        let keys = keys_of(running, slots);
        let known = &mut *self.known.write();
        let reader = known.reader(running);
        for ((&slot, &topic), key) in slots.iter().zip(topics).zip(keys) {
            let queries = &mut known.topics[topic as usize];
            if let Some(place) = queries.iter().position(|queries| queries.reader == reader) {
                queries[place].index.remove(slot, key);
                if queries[place].index.is_empty() {
                    queries.swap_remove(place);
                }
            }
        }
        let application = known.applications[reader].as_mut().expect("it was just found");
        application.queries -= slots.len();
        if application.queries == 0 {
            known.applications[reader] = None;
        }
        let mut gone = slots.to_vec();
        gone.sort_unstable();
        self.waiting.lock().forget(&running.group, &gone);
    }

    /// Makes the next version of an application read what the version before reads, by queries in the same slots. The
    /// version before is quiesced. Rows that wait for it go to the next one.
    pub(super) fn succeed(&self, before: &Running, after: &Running) {
        let known = &mut *self.known.write();
        let of_it = |reader: &Option<Reader>| reader.as_ref().is_some_and(|reader| reader.number == before.number);
        let Some(place) = known.applications.iter().position(of_it) else { return };
        let matching = after.application.matching;
        for queries in known.topics.iter_mut().flatten().filter(|queries| queries.reader == place) {
            let slots: Vec<Slot> = queries.index.all().collect();
            queries.index = MatchIndex::new(matching.map(|one| one.comparison));
            for (&slot, key) in slots.iter().zip(keys_of(after, &slots)) {
                queries.index.insert(slot, key);
            }
        }
        let reader = known.applications[place].as_mut().expect("it was just found");
        (reader.group, reader.matching) = (after.group.clone(), matching);
        self.waiting.lock().succeed(&before.group, &after.group);
    }

    /// The lowest position of the log of what is yet to be handed on to a query in a slot, which reads this topic.
    pub(super) fn oldest_for(&self, group: &Arc<Group>, slot: Slot, topic: Slot) -> Option<LogPosition> {
        let waiting = self.waiting.lock();
        let of_batch = |(batch, from): &(Batch, usize)| {
            let rows = (*from..batch.rows()).filter(|&row| batch.slots[row] == topic);
            rows.map(|row| batch.position(row)).collect::<Vec<_>>()
        };
        let of_rows = |(_, rows): &(Arc<Group>, Picked)| {
            let meant = rows.slots().iter().enumerate().filter(|(_, of)| **of == slot);
            meant.map(|(row, _)| rows.position(row)).collect::<Vec<_>>()
        };
        let is_target = || waiting.targets.iter().any(|(of, target)| Arc::ptr_eq(of, group) && *target == slot);
        let undecoded = waiting.undecoded.iter().filter(|one| one.topic == topic);
        let undecoded = undecoded.filter(|one| !one.has_targets || is_target()).map(|one| one.position);
        let picked = waiting.rows.iter().filter(|(of, _)| Arc::ptr_eq(of, group)).flat_map(of_rows);
        let all = waiting.batches.iter().flat_map(of_batch).chain(picked).chain(undecoded);
        all.filter(|&position| position > 0).min()
    }

    /// Waits until no rows are being handed on.
    pub(super) fn await_rows(&self) {
        drop(self.known.write());
    }

    /// Drops what waits for topics that no query reads.
    pub(super) fn forget_topics(&self, topics: &[Slot]) {
        let _still = self.known.write();
        self.waiting.lock().forget_topics(topics);
    }
}

impl Known {
    /// The index of an application among the readers.
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

    /// Every query that reads a topic, with its group.
    pub(super) fn all(&self, topic: Slot) -> impl Iterator<Item = (&Arc<Group>, Slot)> {
        self.topics[topic as usize].iter().flat_map(|queries| {
            let reader = self.applications[queries.reader].as_ref();
            reader.into_iter().flat_map(|reader| queries.index.all().map(|slot| (&reader.group, slot)))
        })
    }

    /// Picks rows from `from` on for the queries that they can concern, until there are many. Returns the first row
    /// that was not looked at.
    pub(super) fn pick(&self, batch: &Batch, from: usize, picked: &mut Vec<(Arc<Group>, Picked)>) -> usize {
        let columns: Vec<Option<_>> = batch
            .columns
            .columns()
            .iter()
            .enumerate()
            .map(|(column, values)| {
                let is_used =
                    self.applications.iter().flatten().any(|one| one.matching.is_some_and(|one| one.column == column));
                is_used.then(|| match_keys(values))
            })
            .collect();
        let mut by_reader: Vec<(Vec<u32>, Vec<Slot>)> = vec![Default::default(); self.applications.len()];
        let (mut count, mut row) = (0, from);
        // The rows of one event of the log are handed on together.
        let goes_on =
            |row: usize| row > from && batch.position(row) != 0 && batch.position(row) == batch.position(row - 1);
        while row < batch.rows() && (count < PICKED_MAX || goes_on(row)) {
            for queries in &self.topics[batch.slots[row] as usize] {
                let Some(reader) = &self.applications[queries.reader] else { continue };
                let key = reader.matching.and_then(|one| columns[one.column].as_ref().and_then(|keys| keys(row)));
                let (rows, slots) = &mut by_reader[queries.reader];
                slots.extend(queries.index.candidates(key));
                count += slots.len() - rows.len();
                rows.resize(slots.len(), row as u32);
            }
            row += 1;
        }
        for (reader, (rows, slots)) in self.applications.iter().zip(by_reader) {
            if let Some(reader) = reader.as_ref().filter(|_| !rows.is_empty()) {
                picked.push((reader.group.clone(), Picked::new(batch, rows, slots)));
            }
        }
        row
    }
}

/// For each query the key of the parameter by which it is found; `None` if the application has no such parameter.
fn keys_of(running: &Running, slots: &[Slot]) -> Vec<Option<MatchKey>> {
    let Some(matching) = running.application.matching else { return vec![None; slots.len()] };
    let keys = running.group.with_queries(slots, |table, row| match_keys(&table.gather(matching.parameter, &[row]))(0));
    keys.into_iter().map(Option::flatten).collect()
}
