//! What outlives the process of a big query: a line of epochs for each, with where its sources stand, what its operators hold, and what
//! its sinks need to make final what was written.
//!
//! State is cut by key groups into pieces, and a piece that is what it was is not written again. So a checkpoint costs what has changed.
//!
//! What must hold: a query goes on from an epoch whole, or not at all. Whatever is wrong with it is said, and the query waits for somebody to decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_dataflow::{KEY_GROUPS, NodeId, StateError, StateFrame, StateSelection, Work};
use rivulet_runtime::flow::checkpoint::{CheckpointError, PartitionState, Snapshot};
use rivulet_sql::QueryPlan;
use rivulet_storage::{Committed, Epoch, EpochSettings, Epochs, Piece, Restored, StorageError, Store};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::run::Running;
use crate::service::{ErrorKind, ServiceError};

/// How long a query may take to come to rest. Until then its sources rest, and what it has in hand is processed.
const REST_MAX: Duration = Duration::from_secs(10);

/// How long whoever asks for a checkpoint waits until the results of the one before are final.
const FINAL_MAX: Duration = Duration::from_secs(5);

/// A query that did not come to rest is not asked again before this is over: it holds up the checkpoints of others, and its own rows.
const SLOW_PAUSE: Duration = Duration::from_secs(60);

/// The state of an operator is cut into so many pieces, if it has many rows.
const PIECES: u16 = 16;
const ROWS_OF_ONE_PIECE: usize = 4_096;

/// Where the lines of queries are.
const LINES: &str = "queries";

/// The checkpoints of one big query.
pub(super) struct Saved {
    epochs: Epochs,
    /// The checksum of the text of the query, which its epochs have too.
    query: u64,
    has_ended: bool,
    /// Until when it is left alone, unless somebody asks.
    asked_again: Option<Instant>,
    /// When the newest was made by this process.
    made: Option<Instant>,
    /// Why there is none that is newer.
    problem: Option<String>,
}

/// How the checkpoints of a query stand.
pub(in crate::engine) struct LineStatus {
    pub(in crate::engine) query: String,
    /// The newest one.
    pub(in crate::engine) epoch: Option<u64>,
    pub(in crate::engine) made: Option<Instant>,
    /// Bytes that a restart would read, and those that were written just now, if any were.
    pub(in crate::engine) live_bytes: u64,
    pub(in crate::engine) written_bytes: Option<u64>,
    pub(in crate::engine) problem: Option<String>,
}

/// The number of an epoch and what it says, if there is one to go on from; and what was wrong with newer ones.
pub(super) type Found = (Option<(u64, Snapshot)>, Vec<String>);

/// What an epoch says beside its pieces.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The checksum of the query's text.
    #[serde(default)]
    query: Option<u64>,
    /// The operators, by node, so that state is given to those that wrote it.
    operators: Vec<String>,
    #[serde(default)]
    has_ended: bool,
    /// For each source its partitions: where they stand, and the time of their newest row.
    sources: Vec<Vec<(Option<String>, Option<i64>)>>,
    sinks: Vec<Vec<String>>,
    reached_us: BTreeMap<NodeId, i64>,
    ended_stages: Vec<NodeId>,
}

/// The name of the line of a query.
fn line_of(number: u64) -> String {
    format!("{LINES}/{number}")
}

/// Forgets what was saved of queries that are not in the catalog any more. It has given out numbers up to `next`, and those `known` are there: what has
/// another number is not of this catalog, and stays.
pub(super) fn forget_dropped(store: &Arc<Store>, next: u64, known: &BTreeSet<u64>) {
    let lines = match Epochs::lines(store, LINES) {
        Ok(lines) => lines,
        Err(error) => return tracing::warn!("checkpoints of queries that are gone are left: {error}"),
    };
    let numbers = lines.iter().filter_map(|line| line.rsplit_once('/')?.1.parse().ok());
    for number in numbers.filter(|number| *number < next && !known.contains(number)) {
        tracing::info!(number, "forgets what was saved of a query that was dropped");
        if let Err(error) = forget(store, number) {
            tracing::warn!("they are left for now: {error}");
        }
    }
}

/// Forgets what was saved of a query.
///
/// # Errors
/// The store cannot be reached, or must not be changed now.
pub(super) fn forget(store: &Arc<Store>, number: u64) -> Result<(), ServiceError> {
    let line = Epochs::open(store.clone(), &line_of(number), EpochSettings { retained: 1 });
    line.and_then(Epochs::delete).map_err(|error| refused("checkpoints of another query cannot be deleted", &error))
}

impl Saved {
    /// What there is of the query with this number and text in the catalog.
    pub(super) fn open(store: &Arc<Store>, number: u64, text: &str, retained: usize) -> Result<Self, ServiceError> {
        // Of the newest the results may not be final when a crash comes: the one before is needed.
        let settings = EpochSettings { retained: retained.max(2) };
        let failed = |error| refused("its checkpoints cannot be opened", &error);
        let query = xxh3_64(text.as_bytes());
        let open = || Epochs::open(store.clone(), &line_of(number), settings).map_err(failed);
        let mut epochs = open()?;
        // Versions that did not note the text gave numbers out again.
        let is_of_another = |note: &serde_json::Value| note["query"].as_u64().is_some_and(|noted| noted != query);
        if epochs.note().is_some_and(is_of_another) {
            tracing::warn!(number, "what was saved under the number of a query is of another, and is forgotten");
            epochs.delete().map_err(failed)?;
            epochs = open()?;
        }
        let has_ended = epochs.note().is_some_and(|note| note["has_ended"] == true);
        Ok(Self { epochs, query, has_ended, asked_again: None, made: None, problem: None })
    }

    /// How they stand, and what was `written` just now.
    pub(super) fn status(&self, query: &str, written: Option<u64>) -> LineStatus {
        LineStatus {
            query: query.to_owned(),
            epoch: self.epochs.newest(),
            made: self.made,
            live_bytes: self.epochs.live_bytes(),
            written_bytes: written,
            problem: self.problem.clone(),
        }
    }

    /// Whether the query had come to the end of its input.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Where the query was, and the number of that epoch, unless it begins; and what was wrong with newer epochs.
    pub(super) fn restore(&mut self, plan: &QueryPlan) -> Result<Found, ServiceError> {
        let problems = self.epochs.problems().to_vec();
        let restored = self.epochs.restore().map_err(|error| refused("its checkpoint cannot be read", &error))?;
        let Some(Restored { epoch, note, pieces }) = restored else { return Ok((None, problems)) };
        let not_this = |problem: String| {
            ServiceError::new(ErrorKind::Unavailable, format!("it cannot go on from its checkpoint {epoch}: {problem}"))
                .with_hint("drop the query and create it again to begin anew, or run the version that wrote it")
        };
        let note: Note = serde_json::from_value(note).map_err(|error| not_this(error.to_string()))?;
        if note.has_ended {
            return Ok((None, problems));
        }
        if note.operators != operators(plan) {
            return Err(not_this("this version of the program computes it by other operators".into()));
        }
        let mut state: BTreeMap<NodeId, Vec<StateFrame>> = BTreeMap::new();
        for (name, bytes) in &pieces {
            let Some(node) = node_of(name) else { return Err(not_this(format!("'{name}' is not known"))) };
            for bytes in bytes {
                let frame = StateFrame::from_bytes(bytes).map_err(|error| not_this(error.to_string()))?;
                state.entry(node).or_default().push(frame);
            }
        }
        let partition = |(position, newest_us)| PartitionState { position, newest_us };
        let sources = note.sources.into_iter().map(|partitions| partitions.into_iter().map(partition).collect());
        let snapshot = Snapshot {
            sources: sources.collect(),
            sinks: note.sinks,
            state,
            reached_us: note.reached_us,
            ended: note.ended_stages,
        };
        Ok((Some((epoch, snapshot)), problems))
    }

    /// Goes back to a checkpoint, or to before all of them; whether it is there.
    pub(super) fn go_back(&mut self, to: Option<u64>) -> Result<bool, ServiceError> {
        self.epochs.go_back(to).map_err(|error| refused("its checkpoints cannot be changed", &error))
    }

    /// Notes that the query has come to the end of its input.
    pub(super) fn end(&mut self, plan: &QueryPlan) -> Result<(), ServiceError> {
        let ended = self.commit_end(plan).map(drop);
        ended.map_err(|error| refused("that it has come to its end cannot be written", &error))
    }

    fn commit_end(&mut self, plan: &QueryPlan) -> Result<Committed, StorageError> {
        let note = Note {
            query: Some(self.query),
            operators: operators(plan),
            has_ended: true,
            sources: Vec::new(),
            sinks: Vec::new(),
            reached_us: BTreeMap::new(),
            ended_stages: Vec::new(),
        };
        let committed = self.commit(&note, Vec::new())?;
        self.has_ended = true;
        Ok(committed)
    }

    /// Saves where a query is; `None` if there is nothing to save now. One that was slow is left alone for a while, unless somebody asks.
    ///
    /// # Errors
    /// In words. The query goes on, and what was saved before counts.
    pub(super) fn save(
        &mut self,
        plan: &QueryPlan,
        running: &Running,
        is_asked: bool,
    ) -> Result<Option<Committed>, String> {
        if !is_asked && self.asked_again.is_some_and(|at| Instant::now() < at) {
            return Ok(None);
        }
        let saved = self.save_now(plan, running, is_asked);
        self.problem = saved.as_ref().err().cloned();
        saved
    }

    fn save_now(&mut self, plan: &QueryPlan, running: &Running, is_asked: bool) -> Result<Option<Committed>, String> {
        let flow = running.flow();
        match flow.wait(Duration::ZERO) {
            Some(Ok(())) if !self.has_ended && !running.was_stopped() => {
                return self.commit_end(plan).map(Some).map_err(|error| error.to_string());
            }
            Some(_) => return Ok(None),
            None if !running.has_checkpoints() => return Ok(None),
            // It would not come to rest. Whoever asks may do so just behind another one.
            None if !flow.wait_committed(if is_asked { FINAL_MAX } else { Duration::ZERO }) => {
                return Err("the results of the last one are not final yet".into());
            }
            None => {}
        }
        let number = self.epochs.next();
        let snapshot = match flow.checkpoint(number, REST_MAX) {
            Ok(snapshot) => snapshot,
            Err(CheckpointError::Ending) => return Ok(None),
            Err(error) => {
                self.asked_again = matches!(error, CheckpointError::Slow(..)).then(|| Instant::now() + SLOW_PAUSE);
                return Err(error.to_string());
            }
        };
        let written = match pieces_of(&snapshot.state) {
            Ok(pieces) => {
                let note = Note::of(self.query, plan, snapshot);
                self.commit(&note, pieces).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match &written {
            Ok(_) => flow.committed(number),
            Err(_) => flow.give_up(),
        }
        written.map(Some)
    }

    fn commit(&mut self, note: &Note, pieces: Vec<Piece>) -> Result<Committed, StorageError> {
        let note = serde_json::to_value(note).expect("numbers and texts are always JSON");
        let written = self.epochs.checksums();
        let named: BTreeSet<&str> = pieces.iter().map(Piece::name).collect();
        let dropped = written.keys().filter(|name| !named.contains(*name)).map(|&name| name.to_owned()).collect();
        let is_new = |piece: &Piece| written.get(piece.name()) != Some(&piece.checksum());
        let epoch = Epoch { note, dropped, pieces: pieces.into_iter().filter(is_new).collect() };
        let committed = self.epochs.commit(epoch)?;
        self.made = Some(Instant::now());
        Ok(committed)
    }
}

impl Note {
    fn of(query: u64, plan: &QueryPlan, snapshot: Snapshot) -> Self {
        let partition = |state: PartitionState| (state.position, state.newest_us);
        let sources = snapshot.sources.into_iter().map(|partitions| partitions.into_iter().map(partition).collect());
        Self {
            query: Some(query),
            operators: operators(plan),
            has_ended: false,
            sources: sources.collect(),
            sinks: snapshot.sinks,
            reached_us: snapshot.reached_us,
            ended_stages: snapshot.ended,
        }
    }
}

/// What the nodes of a plan are.
fn operators(plan: &QueryPlan) -> Vec<String> {
    let nodes = plan.dataflow.nodes().iter();
    nodes
        .map(|node| match &node.work {
            Work::Source(_) => "source".into(),
            Work::Operator(factory) => factory.describe().operator,
            Work::Sink(_) => "sink".into(),
        })
        .collect()
}

/// State as pieces by name.
fn pieces_of(state: &BTreeMap<NodeId, Vec<StateFrame>>) -> Result<Vec<Piece>, StateError> {
    let mut pieces = Vec::new();
    for (node, frames) in state {
        let Some(all) = StateFrame::concat(frames)? else { continue };
        if all.rows.num_rows() <= ROWS_OF_ONE_PIECE {
            pieces.push(Piece::whole(format!("node-{node}"), all.to_bytes()?));
            continue;
        }
        let groups = KEY_GROUPS / PIECES;
        for piece in 0..PIECES {
            let part = all.select(&StateSelection::KeyGroups(piece * groups..(piece + 1) * groups))?;
            if part.rows.num_rows() > 0 {
                pieces.push(Piece::whole(format!("node-{node}/{piece}"), part.to_bytes()?));
            }
        }
    }
    Ok(pieces)
}

/// The node whose state stands under a name.
fn node_of(name: &str) -> Option<NodeId> {
    name.strip_prefix("node-")?.split('/').next()?.parse().ok()
}

/// What `error` means to whoever asked; its hint goes along.
fn refused(what: &str, error: &StorageError) -> ServiceError {
    ServiceError::from_text(ErrorKind::Unavailable, &format!("{what}: {error}"))
}
