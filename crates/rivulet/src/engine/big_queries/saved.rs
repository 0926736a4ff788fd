//! What outlives the process of a big query: a line of epochs for each, with where its sources stand, what its operators hold, and what
//! its sinks need to make final what was written.
//!
//! State is cut by key groups into pieces, and a piece that is what it was is not written again. So a checkpoint costs what has changed.
//!
//! What must hold: a query goes on from an epoch whole, or not at all. Whatever is wrong with it is said, and the query waits for somebody to decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rivulet_dataflow::{KEY_GROUPS, NodeId, StateError, StateFrame, StateSelection, Work};
use rivulet_runtime::flow::checkpoint::{CheckpointError, PartitionState, Snapshot};
use rivulet_sql::QueryPlan;
use rivulet_storage::{Epoch, EpochSettings, Epochs, Piece, Restored, StorageError, Store};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::run::Running;
use crate::service::{ErrorKind, ServiceError};

/// How long a query may take to come to rest. Until then its sources rest, and what it has in hand is processed.
const REST_MAX: Duration = Duration::from_secs(10);

/// A query that did not come to rest is not asked again before this is over: it holds up the checkpoints of others, and its own rows.
const SLOW_PAUSE: Duration = Duration::from_secs(60);

/// The state of an operator is cut into so many pieces, if it has many rows.
const PIECES: u16 = 16;
const ROWS_OF_ONE_PIECE: usize = 4_096;

/// The checkpoints of one big query.
pub(super) struct Saved {
    epochs: Epochs,
    /// The checksums of the pieces that count.
    written: BTreeMap<String, u64>,
    has_ended: bool,
    /// Until when it is left alone.
    asked_again: Option<Instant>,
}

/// The number of an epoch and what it says, if there is one to go on from; and what was wrong with newer ones.
pub(super) type Found = (Option<(u64, Snapshot)>, Vec<String>);

/// What a checkpoint came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) epoch: u64,
    pub(super) written_bytes: u64,
    pub(super) live_bytes: u64,
}

/// What an epoch says beside its pieces.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
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
    format!("queries/{number}")
}

/// Forgets what was saved of a query.
pub(super) fn forget(store: &Arc<Store>, number: u64) {
    let line = Epochs::open(store.clone(), &line_of(number), EpochSettings { retained: 1 });
    if let Err(error) = line.and_then(Epochs::delete) {
        tracing::warn!("checkpoints of a query that is gone are left: {error}");
    }
}

impl Saved {
    /// What there is of the query with this number in the catalog.
    pub(super) fn open(store: &Arc<Store>, number: u64, retained: usize) -> Result<Self, ServiceError> {
        let epochs = Epochs::open(store.clone(), &line_of(number), EpochSettings { retained });
        let epochs = epochs.map_err(|error| refused("its checkpoints cannot be opened", &error))?;
        let has_ended = epochs.note().is_some_and(|note| note["has_ended"] == true);
        Ok(Self { epochs, written: BTreeMap::new(), has_ended, asked_again: None })
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
                self.written.insert(name.clone(), xxh3_64(bytes));
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

    /// Saves where a query is; `None` if there is nothing to save now.
    ///
    /// # Errors
    /// In words. The query goes on, and what was saved before counts.
    pub(super) fn save(&mut self, plan: &QueryPlan, running: &Running) -> Result<Option<Written>, String> {
        let flow = running.flow();
        match flow.wait(Duration::ZERO) {
            Some(Ok(())) if !self.has_ended && !running.was_stopped() => {
                let note = Note {
                    operators: operators(plan),
                    has_ended: true,
                    sources: Vec::new(),
                    sinks: Vec::new(),
                    reached_us: BTreeMap::new(),
                    ended_stages: Vec::new(),
                };
                let written = self.commit(&note, BTreeMap::new()).map_err(|error| error.to_string())?;
                self.has_ended = true;
                return Ok(Some(written));
            }
            Some(_) => return Ok(None),
            None if !running.has_checkpoints() || self.asked_again.is_some_and(|at| Instant::now() < at) => {
                return Ok(None);
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
            Ok(pieces) => self.commit(&Note::of(plan, snapshot), pieces).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match &written {
            Ok(_) => flow.committed(number),
            Err(_) => flow.give_up(),
        }
        written.map(Some)
    }

    fn commit(&mut self, note: &Note, pieces: BTreeMap<String, Bytes>) -> Result<Written, StorageError> {
        let note = serde_json::to_value(note).expect("numbers and texts are always JSON");
        let checksums: BTreeMap<String, u64> =
            pieces.iter().map(|(name, bytes)| (name.clone(), xxh3_64(bytes))).collect();
        let dropped: BTreeSet<&String> = self.written.keys().filter(|name| !checksums.contains_key(*name)).collect();
        let epoch = Epoch {
            note,
            dropped: dropped.into_iter().cloned().collect(),
            pieces: pieces
                .into_iter()
                .filter(|(name, _)| self.written.get(name) != checksums.get(name))
                .map(|(name, bytes)| Piece { name, is_delta: false, bytes })
                .collect(),
        };
        let committed = self.epochs.commit(epoch)?;
        self.written = checksums;
        Ok(Written { epoch: committed.epoch, written_bytes: committed.written_bytes, live_bytes: committed.live_bytes })
    }
}

impl Note {
    fn of(plan: &QueryPlan, snapshot: Snapshot) -> Self {
        let partition = |state: PartitionState| (state.position, state.newest_us);
        let sources = snapshot.sources.into_iter().map(|partitions| partitions.into_iter().map(partition).collect());
        Self {
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
fn pieces_of(state: &BTreeMap<NodeId, Vec<StateFrame>>) -> Result<BTreeMap<String, Bytes>, StateError> {
    let mut pieces = BTreeMap::new();
    for (node, frames) in state {
        let Some(all) = StateFrame::concat(frames)? else { continue };
        if all.rows.num_rows() <= ROWS_OF_ONE_PIECE {
            pieces.insert(format!("node-{node}"), all.to_bytes()?.into());
            continue;
        }
        let groups = KEY_GROUPS / PIECES;
        for piece in 0..PIECES {
            let part = all.select(&StateSelection::KeyGroups(piece * groups..(piece + 1) * groups))?;
            if part.rows.num_rows() > 0 {
                pieces.insert(format!("node-{node}/{piece}"), part.to_bytes()?.into());
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
