//! The note of an epoch of a big query: the positions of its sources, what its sinks need, and the state of its
//! operators in pieces.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::{
    Clock, KeyGroups, NodeId, PartitionState, Snapshot, StateError, StateFrame, StatePart, StateSink, Work,
};
use rivulet_sql::QueryPlan;
use rivulet_storage::{Epoch, Epochs, Piece};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::checkpoints::line::Differences;

/// An operator's state with more rows than this is cut into several pieces.
const ROWS_OF_ONE_PIECE: usize = 4_096;

/// The position of a partition of a source, and the time of its newest row.
type NotedPartition = (Option<String>, Option<i64>);

/// What an epoch has besides its pieces.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Note {
    /// The checksum of the query's text.
    #[serde(default)]
    query: Option<u64>,
    /// The operators, by node, so that state is given to the operators that wrote it.
    operators: Vec<String>,
    /// How the keys of the state are divided.
    #[serde(default)]
    pub(super) key_groups: NotedKeyGroups,
    #[serde(default)]
    has_ended: bool,
    /// When it was made, in milliseconds since 1970, for users who look at it later.
    #[serde(default)]
    made_ms: Option<i64>,
    /// The epoch of the version before, if the query continues from that epoch with this one: no row was processed
    /// between the two. If several versions followed each other and none processed a row, it is the epoch of the first.
    #[serde(default)]
    pub(super) takes_over: Option<u64>,
    /// For each source its partitions; `None` for a source that has yet to be opened for the first time.
    sources: Vec<Option<Vec<NotedPartition>>>,
    sinks: Vec<Vec<String>>,
    reached_us: BTreeMap<NodeId, i64>,
    ended_stages: Vec<NodeId>,
}

/// How keys are divided among key groups, as a checkpoint records it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotedKeyGroups {
    pub(super) count: u16,
    hash: String,
}

impl NotedKeyGroups {
    pub(super) fn of(key_groups: KeyGroups) -> Self {
        Self { count: key_groups.count(), hash: KeyGroups::HASH.into() }
    }
}

impl Default for NotedKeyGroups {
    /// The key groups of checkpoints that do not name them.
    fn default() -> Self {
        Self { count: 256, hash: "xxh3".into() }
    }
}

/// The checksum of the text of a query, as its checkpoints record it.
pub(crate) fn checksum(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

impl Note {
    /// The note of the epoch with which a query ends.
    pub(super) fn end(query: u64, plan: &QueryPlan) -> Self {
        Self { has_ended: true, ..Self::of(query, plan, Snapshot::default()) }
    }

    /// The next epoch of a line, with this note and this state.
    pub(super) fn epoch(&self, state: Differences) -> Epoch {
        state.epoch(serde_json::to_value(self).expect("numbers and texts are always JSON"))
    }

    /// The note of the next epoch of the query whose text has this checksum.
    pub(super) fn of(query: u64, plan: &QueryPlan, snapshot: Snapshot) -> Self {
        let partition = |state: PartitionState| (state.position, state.newest_us);
        let sources = snapshot.sources.into_iter().enumerate().map(|(place, partitions)| {
            let is_open = !snapshot.begins.contains(&place);
            is_open.then(|| partitions.into_iter().map(partition).collect())
        });
        Self {
            query: Some(query),
            operators: operators(plan),
            key_groups: NotedKeyGroups::of(plan.dataflow.key_groups()),
            has_ended: false,
            made_ms: Some(SystemClock.now_us() / 1_000),
            takes_over: None,
            sources: sources.collect(),
            sinks: snapshot.sinks,
            reached_us: snapshot.reached_us,
            ended_stages: snapshot.ended,
        }
    }

    /// Reads the note of an epoch, of this or an earlier version of the program.
    pub(super) fn read(note: serde_json::Value) -> Result<Self, String> {
        serde_json::from_value(note).map_err(|error| error.to_string())
    }

    /// The snapshot from which a query with this plan continues, out of the epoch with this note and these pieces,
    /// unless the query has come to its end. The error says why it cannot continue.
    pub(super) fn snapshot(
        self,
        pieces: &BTreeMap<String, Vec<Bytes>>,
        plan: &QueryPlan,
    ) -> Result<Option<Snapshot>, String> {
        if self.has_ended {
            return Ok(None);
        }
        if self.operators != operators(plan) {
            return Err("this version of the program computes it by other operators".into());
        }
        let (noted, own) = (&self.key_groups, NotedKeyGroups::of(plan.dataflow.key_groups()));
        if *noted != own {
            let (count, hash) = (noted.count, &noted.hash);
            return Err(format!("its keys are divided into {count} groups by {hash}, and not into {}", own.count));
        }
        let mut state: BTreeMap<NodeId, Vec<StateFrame>> = BTreeMap::new();
        for (name, bytes) in pieces {
            let node = node_of(name).ok_or_else(|| format!("'{name}' is not known"))?;
            for bytes in bytes {
                let frame = StateFrame::from_bytes(bytes).map_err(|error| error.to_string())?;
                state.entry(node).or_default().push(frame);
            }
        }
        let partition = |(position, newest_us)| PartitionState { position, newest_us };
        let begins = self.sources.iter().enumerate().filter(|(_, partitions)| partitions.is_none());
        let begins = begins.map(|(place, _)| place).collect();
        let sources = self.sources.into_iter().map(Option::unwrap_or_default);
        Ok(Some(Snapshot {
            sources: sources.map(|partitions| partitions.into_iter().map(partition).collect()).collect(),
            begins,
            sinks: self.sinks,
            state,
            reached_us: self.reached_us,
            ended: self.ended_stages,
        }))
    }
}

/// Whether an epoch with this note belongs to the query whose text has this checksum.
pub(super) fn is_of(note: &serde_json::Value, query: u64) -> bool {
    note["query"].as_u64().is_none_or(|noted| noted == query)
}

/// The kinds of a plan's nodes.
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

/// The pieces of a query's state, as its tasks deliver them.
pub(super) struct StatePieces(Mutex<Option<Differences>>);

impl StatePieces {
    pub(super) fn new(epochs: &Epochs) -> Self {
        Self(Mutex::new(Some(Differences::new(epochs))))
    }

    /// Takes the pieces that were added up to now. No more are added later.
    pub(super) fn take_all(&self) -> Differences {
        self.0.lock().take().expect("it is taken once")
    }
}

impl StateSink for StatePieces {
    fn rows_max(&self) -> usize {
        ROWS_OF_ONE_PIECE
    }

    fn take(&self, part: StatePart, frame: StateFrame) -> Result<(), StateError> {
        let StatePart { node, instance, part } = part;
        let mut bytes = frame.to_bytes()?;
        // The piece may be kept until everything is written.
        bytes.shrink_to_fit();
        let piece = Piece::whole(format!("node-{node}/{instance}/{part}"), bytes);
        if let Some(pieces) = &mut *self.0.lock() {
            pieces.add(piece);
        }
        Ok(())
    }
}

/// The state in a snapshot as pieces, one for each frame.
pub(super) fn state_of(epochs: &Epochs, snapshot: &Snapshot) -> Result<Differences, StateError> {
    let mut state = Differences::new(epochs);
    for (node, frames) in &snapshot.state {
        for (place, frame) in frames.iter().enumerate() {
            state.add(Piece::whole(format!("node-{node}/{place}"), frame.to_bytes()?));
        }
    }
    Ok(state)
}

/// The node whose state has a name.
fn node_of(name: &str) -> Option<NodeId> {
    name.strip_prefix("node-")?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt16Array, UInt32Array};
    use rivulet_storage::{EpochSettings, Store};
    use serde_json::json;

    use super::*;

    fn frame(value: i64) -> StateFrame {
        let columns: [(&str, ArrayRef, bool); 3] = [
            ("slot", Arc::new(UInt32Array::from(vec![0])), false),
            ("key_group", Arc::new(UInt16Array::from(vec![0])), false),
            ("value", Arc::new(Int64Array::from(vec![value])), false),
        ];
        StateFrame::new("sum", 1, RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length"))
    }

    #[test]
    fn state_that_is_as_it_was_is_not_kept_and_what_comes_late_is_forgotten() {
        let store = Arc::new(Store::in_memory().expect("a store"));
        let mut epochs = Epochs::open(store, "line", EpochSettings { retained: 2 }).expect("a line");
        let mut checkpoint = |values: &[i64]| {
            let state = StatePieces::new(&epochs);
            let take = |part, value| state.take(StatePart { node: 3, instance: 1, part }, frame(value));
            values.iter().enumerate().for_each(|(part, &value)| take(part, value).expect("it is taken"));
            let epoch = state.take_all().epoch(json!({}));
            take(9, 9).expect("nobody wants it any more");
            let written: Vec<String> = epoch.pieces.iter().map(|piece| piece.name().to_owned()).collect();
            epochs.commit(epoch).expect("it is written");
            written
        };
        assert_eq!(checkpoint(&[1, 2]), ["node-3/1/0", "node-3/1/1"]);
        assert_eq!(checkpoint(&[1, 2]), [""; 0]);
        assert_eq!(checkpoint(&[1, 3]), ["node-3/1/1"]);
        assert_eq!(checkpoint(&[1]), [""; 0]);
        let pieces = epochs.restore().expect("it is read").expect("an epoch").pieces;
        let (name, bytes) = pieces.first_key_value().expect("one");
        assert_eq!((pieces.len(), node_of(name)), (1, Some(3)), "what is not given any more is gone");
        assert_eq!(StateFrame::from_bytes(&bytes[0]).expect("a frame"), frame(1));
        assert_eq!((node_of("node-3"), node_of("node-3/15")), (Some(3), Some(3)), "as earlier versions wrote them");
    }
}
