//! The note of an epoch of a big query: the positions of its sources, what its sinks need, and the state of its
//! operators in pieces.
//!
//! Sources and sinks are found again by their names, operators by the [address](rivulet_dataflow::address) of their
//! state. A piece of state has the name of an address, and so has a watermark. So it does not matter how the dataflow
//! is planned and cut when the query continues. Checkpoints of the first form go by the numbers of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::address::place;
use rivulet_dataflow::{
    Address, Clock, KeyGroups, NodeId, PartitionState, Snapshot, StateError, StateFrame, StatePart, StateSink, Work,
};
use rivulet_sql::QueryPlan;
use rivulet_storage::{Epoch, Epochs, Piece};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::checkpoints::line::Differences;

/// An operator's state with more rows than this is cut into several pieces.
pub(super) const ROWS_OF_ONE_PIECE: usize = 4_096;

/// The position of a partition of a source, and the time of its newest row.
type NotedPartition = (Option<String>, Option<i64>);

/// The form of a note.
const FORM: u32 = 2;
const BY_NODE: u32 = 1;

fn by_node() -> u32 {
    BY_NODE
}

/// What an epoch has besides its pieces.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Note {
    #[serde(default = "by_node")]
    form: u32,
    /// The checksum of the query's text.
    #[serde(default)]
    query: Option<u64>,
    /// In the first form the operators, by node. Empty later, so that no earlier version continues from it.
    operators: Vec<String>,
    /// The operators with state.
    #[serde(default)]
    states: Vec<Address>,
    /// The names of the sources and of the sinks.
    #[serde(default)]
    source_names: Vec<String>,
    #[serde(default)]
    sink_names: Vec<String>,
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
    /// In the first form watermarks and ends, by the first nodes of stages.
    reached_us: BTreeMap<NodeId, i64>,
    ended_stages: Vec<NodeId>,
    /// Watermarks and ends, by the names of sources and of operators with state.
    #[serde(default)]
    reached: BTreeMap<String, i64>,
    #[serde(default)]
    ended: Vec<String>,
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
        let names = names(plan);
        let name = |node: &NodeId| names.iter().find(|(_, other)| *other == node).map(|(name, _)| name.clone());
        let (source_names, sink_names) = ends(plan);
        Self {
            form: FORM,
            query: Some(query),
            states: plan.dataflow.addresses().iter().flatten().map(|address| (**address).clone()).collect(),
            source_names,
            sink_names,
            key_groups: NotedKeyGroups::of(plan.dataflow.key_groups()),
            has_ended: false,
            made_ms: Some(SystemClock.now_us() / 1_000),
            takes_over: None,
            sources: sources.collect(),
            sinks: snapshot.sinks,
            reached: snapshot.reached_us.iter().filter_map(|(node, at_us)| Some((name(node)?, *at_us))).collect(),
            ended: snapshot.ended.iter().filter_map(name).collect(),
            ..Self::default()
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
        let (noted, own) = (&self.key_groups, NotedKeyGroups::of(plan.dataflow.key_groups()));
        if *noted != own {
            let (count, hash) = (noted.count, &noted.hash);
            return Err(format!("its keys are divided into {count} groups by {hash}, and not into {}", own.count));
        }
        let nodes = match self.form {
            BY_NODE if self.operators != operators(plan) => {
                return Err("this version of the program computes it by other operators".into());
            }
            BY_NODE => (0..self.operators.len()).map(|node| (format!("node-{node}"), node)).collect(),
            FORM => self.nodes(plan)?,
            later => return Err(format!("it has form {later}, and this program knows forms up to {FORM}")),
        };
        let mut state: BTreeMap<NodeId, Vec<StateFrame>> = BTreeMap::new();
        for (name, bytes) in pieces {
            let node = name.split('/').next().and_then(|name| nodes.get(name));
            let node = node.ok_or_else(|| format!("'{name}' is not known"))?;
            for bytes in bytes {
                let frame = StateFrame::from_bytes(bytes).map_err(|error| error.to_string())?;
                state.entry(*node).or_default().push(frame);
            }
        }
        let mut snapshot = Snapshot { state, sinks: self.sinks, ..Snapshot::default() };
        for (place, partitions) in self.sources.into_iter().enumerate() {
            snapshot.begins.extend(partitions.is_none().then_some(place));
            let partition = |(position, newest_us)| PartitionState { position, newest_us };
            snapshot.sources.push(partitions.into_iter().flatten().map(partition).collect());
        }
        if self.form == BY_NODE {
            (snapshot.reached_us, snapshot.ended) = (self.reached_us, self.ended_stages);
            return Ok(Some(snapshot.by_node(&plan.dataflow)));
        }
        let node = |name: &String| nodes.get(name).copied();
        snapshot.reached_us = self.reached.iter().filter_map(|(name, at_us)| Some((node(name)?, *at_us))).collect();
        snapshot.ended = self.ended.iter().filter_map(node).collect();
        let (sources, sinks) = ends(plan);
        let (sources, sinks) = (found(&self.source_names, &sources)?, found(&self.sink_names, &sinks)?);
        let begins = |from: &usize| snapshot.begins.contains(from);
        snapshot.begins = (0..sources.len()).filter(|place| begins(&sources[*place])).collect();
        snapshot.sources =
            sources.iter().map(|from| snapshot.sources.get(*from).cloned().unwrap_or_default()).collect();
        snapshot.sinks = sinks.iter().map(|from| snapshot.sinks.get(*from).cloned().unwrap_or_default()).collect();
        Ok(Some(snapshot))
    }

    /// The nodes of a plan by the names that this note has for them.
    fn nodes(&self, plan: &QueryPlan) -> Result<BTreeMap<String, NodeId>, String> {
        let addresses = plan.dataflow.addresses();
        let places = place(&self.states.iter().collect::<Vec<_>>(), addresses)?;
        let is_missing = |(node, address): (usize, &Option<Arc<Address>>)| {
            address.as_ref().filter(|address| !address.is_transient && !places.contains(&Some(node))).cloned()
        };
        if let Some(missing) = addresses.iter().enumerate().find_map(is_missing) {
            return Err(format!("it has no state of '{missing}'"));
        }
        let states = self.states.iter().zip(&places).filter_map(|(state, node)| Some((state.name(), (*node)?)));
        let sources = names(plan).into_iter().filter(|(name, _)| self.source_names.contains(name));
        Ok(states.chain(sources).collect())
    }
}

/// The names by which a note of this plan has watermarks and ends, and the nodes that they are for.
fn names(plan: &QueryPlan) -> BTreeMap<String, NodeId> {
    let (sources, _) = ends(plan);
    let nodes = plan.dataflow.nodes().iter().enumerate();
    let names = nodes.filter_map(|(node, one)| match one.work {
        Work::Source(place) => Some((sources[place].clone(), node)),
        _ => plan.dataflow.address(node).map(|address| (address.name(), node)),
    });
    names.collect()
}

/// The names of the sources and of the sinks of a plan, as its notes have them.
fn ends(plan: &QueryPlan) -> (Vec<String>, Vec<String>) {
    let sources = plan.sources.iter().map(|source| format!("the source '{}'", source.declaration.name.text));
    let result = plan.output.sink.as_ref().map_or_else(String::new, |sink| format!("the sink '{}'", sink.name.text));
    let letters = plan.letters.iter().map(|sink| format!("refused rows in the sink '{}'", sink.name.text));
    (sources.collect(), std::iter::once(result).chain(letters).collect())
}

/// For each name where it was noted.
fn found(noted: &[String], now: &[String]) -> Result<Vec<usize>, String> {
    if let Some(gone) = noted.iter().find(|name| !now.contains(name)) {
        return Err(format!("{gone} has no place in it any more"));
    }
    let place = |name: &String| noted.iter().position(|other| other == name);
    now.iter().map(|name| place(name).ok_or_else(|| format!("it has nothing of {name}"))).collect()
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
        let StatePart { instance, part, .. } = part;
        let name = name_of(&frame)?;
        let mut bytes = frame.to_bytes()?;
        // The piece may be kept until everything is written.
        bytes.shrink_to_fit();
        let piece = Piece::whole(format!("{name}/{instance}/{part}"), bytes);
        if let Some(pieces) = &mut *self.0.lock() {
            pieces.add(piece);
        }
        Ok(())
    }
}

/// The state in a snapshot of this plan as pieces, one for each frame.
pub(super) fn state_of(epochs: &Epochs, plan: &QueryPlan, snapshot: &Snapshot) -> Result<Differences, StateError> {
    let mut state = Differences::new(epochs);
    for (node, frames) in &snapshot.state {
        for (place, frame) in frames.iter().enumerate() {
            let frame = StateFrame { address: plan.dataflow.address(*node).cloned(), ..frame.clone() };
            // No name that a task of the query gives to its pieces.
            state.add(Piece::whole(format!("{}/taken-over/{place}", name_of(&frame)?), frame.to_bytes()?));
        }
    }
    Ok(state)
}

/// The name of state: that of its address.
fn name_of(frame: &StateFrame) -> Result<String, StateError> {
    let address = frame.address.as_ref().map(|address| address.name());
    address.ok_or_else(|| StateError::Mismatch(format!("state of '{}' has no address", frame.operator)))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt16Array, UInt32Array};
    use rivulet_dataflow::{Chain, StateSelection};
    use rivulet_sql::{Scope, Statement, parse_script, plan_query};
    use rivulet_storage::{EpochSettings, Store};
    use serde_json::json;

    use super::*;

    fn frame(value: i64) -> StateFrame {
        let columns: [(&str, ArrayRef, bool); 3] = [
            ("slot", Arc::new(UInt32Array::from(vec![0])), false),
            ("key_group", Arc::new(UInt16Array::from(vec![0])), false),
            ("value", Arc::new(Int64Array::from(vec![value])), false),
        ];
        let rows = RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length");
        StateFrame { address: Some(Arc::new(Address::of("sum"))), ..StateFrame::new("sum", 1, rows) }
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
        let name = |part| format!("{}/1/{part}", Address::of("sum").name());
        assert_eq!(checkpoint(&[1, 2]), [name(0), name(1)]);
        assert_eq!(checkpoint(&[1, 2]), [""; 0]);
        assert_eq!(checkpoint(&[1, 3]), [name(1)]);
        assert_eq!(checkpoint(&[1]), [""; 0]);
        let pieces = epochs.restore().expect("it is read").expect("an epoch").pieces;
        let (first, bytes) = pieces.first_key_value().expect("one");
        assert_eq!((pieces.len(), first), (1, &name(0)), "what is not given any more is gone");
        assert_eq!(StateFrame::from_bytes(&bytes[0]).expect("a frame"), frame(1));
    }

    fn plan(select: &str) -> QueryPlan {
        let script = format!(
            "CREATE SINK late TO 'x:late'; CREATE SOURCE t (k BIGINT, v BIGINT) FROM 'x:t' WITH (dead_letter => 'late'); \
             CREATE SOURCE u (k BIGINT, v BIGINT) FROM 'x:u'; CREATE SINK s TO 'x:s'; CREATE QUERY q AS {select} INTO s"
        );
        let mut scope = Scope::new();
        for (statement, _) in parse_script(&script).expect("a script") {
            match statement {
                Statement::CreateSource(one) => {
                    scope.add_source(one.declare(|_, _| None).expect("it is")).expect("new")
                }
                Statement::CreateSink(one) => scope.add_sink(one.declare().expect("it is")).expect("new"),
                Statement::CreateBigQuery(one) => {
                    return plan_query(&one.query, &scope).unwrap_or_else(|error| panic!("{error}: {select}"));
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("no query")
    }

    /// What continues with `after` of a query planned as `before`: each of its operators with state had been given as
    /// many rows as the number of its node says, and had reached a time of that number; source 0 was at "t" or "u".
    fn continued(before: &QueryPlan, after: &QueryPlan) -> Result<Snapshot, String> {
        let names = before.sources.iter().map(|source| source.declaration.name.text.clone());
        let position = |position| vec![PartitionState { position: Some(position), newest_us: None }];
        let mut snapshot = Snapshot {
            sources: names.map(position).collect(),
            sinks: (0..=before.letters.len()).map(|sink| vec![sink.to_string()]).collect(),
            ..Snapshot::default()
        };
        let mut pieces: BTreeMap<String, Vec<Bytes>> = BTreeMap::new();
        for (node, one) in before.dataflow.nodes().iter().enumerate() {
            let Work::Operator(factory) = &one.work else {
                if let Work::Source(_) = one.work {
                    snapshot.reached_us.insert(node, node as i64);
                }
                continue;
            };
            let Some(address) = before.dataflow.address(node) else { continue };
            snapshot.reached_us.insert(node, node as i64);
            let frame = factory.create().export_state(&StateSelection::All).expect("exported").expect("state");
            let frame = StateFrame { address: Some(address.clone()), ..frame };
            // Told from others by how often it is there.
            pieces.insert(format!("{}/0/0", address.name()), vec![frame.to_bytes().expect("a frame").into(); node]);
        }
        let note = serde_json::to_value(Note::of(1, before, snapshot)).expect("JSON");
        Note::read(note).expect("a note").snapshot(&pieces, after).map(|found| found.expect("it has not ended"))
    }

    /// The nodes with state, and the nodes whose state they have.
    fn moved(before: &str, after: &str) -> Result<Vec<(NodeId, NodeId)>, String> {
        let (before, after) = (plan(before), plan(after));
        let found = continued(&before, &after)?;
        for (node, frames) in &found.state {
            let Work::Operator(factory) = &after.dataflow.nodes()[*node].work else { panic!("an operator") };
            let chain = Chain::new(vec![factory.create()]);
            let mut chain = chain.with_addresses(vec![after.dataflow.address(*node).cloned()]);
            frames.iter().for_each(|frame| chain.import_state(&[Some(frame.clone())]).expect("it fits"));
            assert_eq!(found.reached_us[node], frames.len() as i64, "the watermark goes with it");
        }
        Ok(found.state.iter().map(|(node, frames)| (*node, frames.len())).collect())
    }

    const COUNT: &str = "SELECT k, count(*) AS n FROM t GROUP BY k";

    #[test]
    fn stateless_operators_come_go_and_change_places() {
        let many =
            "SELECT k + 1 AS k, n * 2 AS n FROM (SELECT k, count(*) AS n FROM t WHERE v > 1 GROUP BY k) WHERE n > 5";
        let other = "SELECT k * 2 AS k, n + 1 AS n FROM (SELECT k, count(*) AS n FROM (SELECT k, v * 3 AS v FROM t) \
                     WHERE v < 9 GROUP BY k)";
        let place = |select: &str| moved(select, select).expect("itself")[0].0;
        for (before, after) in [(COUNT, many), (many, COUNT), (many, other), (other, many), (other, COUNT)] {
            assert_eq!(moved(before, after), Ok(vec![(place(after), place(before))]), "{before}: {after}");
        }
        assert!(place(many) != place(COUNT), "its place has changed");
    }

    fn both(one: &str, other: &str) -> String {
        let of = |condition: &str| format!("SELECT k, count(*) AS n FROM t WHERE {condition} GROUP BY k");
        format!("{} UNION ALL {}", of(one), of(other))
    }

    #[test]
    fn two_equal_operators_that_change_places_are_told_apart_or_refused() {
        let (few, many) = ("v > 100", "v > 1");
        let same = moved(&both(few, many), &both(few, many)).expect("itself");
        let [(first, _), (second, _)] = same[..] else { panic!("{same:?}") };
        assert_eq!(same, [(first, first), (second, second)]);
        assert_eq!(moved(&both(few, many), &both(many, few)), Ok(vec![(first, second), (second, first)]));
        // One that is as it was leaves one place for the other.
        assert_eq!(moved(&both(few, many), &both("v > 2", few)), Ok(vec![(first, second), (second, first)]));
        let refused = moved(&both(few, many), &both("v > 2", "v > 99")).expect_err("two that may be either");
        assert!(refused.contains("several operators do what 'keyed aggregate (by k; count(*))' does"), "{refused}");
    }

    #[test]
    fn what_has_no_place_is_refused_by_name() {
        for (after, why) in [
            (
                "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k",
                "the state of 'keyed aggregate (by k; count(*))'",
            ),
            ("SELECT k, v FROM t", "the state of 'keyed aggregate (by k; count(*))'"),
            ("SELECT k, count(*) AS n FROM u GROUP BY k", "the state of 'keyed aggregate (by k; count(*))'"),
            (
                "SELECT k, n FROM (SELECT k, count(*) AS n FROM t GROUP BY k) WHERE n IN (SELECT v FROM u)",
                "no state of 'keyed",
            ),
        ] {
            let error = moved(COUNT, after).expect_err(after);
            assert!(error.contains(why), "{after}: {error}");
        }
        let error = moved("SELECT k, v FROM t", "SELECT k, v FROM u").expect_err("another source");
        assert!(error.contains("the source 't'"), "{error}");
    }

    #[test]
    fn sources_and_sinks_are_found_by_name() {
        let union = |one: &str, other: &str| plan(&format!("SELECT k FROM {one} UNION ALL SELECT k FROM {other}"));
        let (before, after) = (union("t", "u"), union("u", "t"));
        let names = |plan: &QueryPlan| -> Vec<String> {
            plan.sources.iter().map(|one| one.declaration.name.text.clone()).collect()
        };
        assert_ne!(names(&before), names(&after));
        let found = continued(&before, &after).expect("the same sources");
        let positions: Vec<_> = found.sources.iter().map(|one| one[0].position.clone().expect("noted")).collect();
        assert_eq!((positions, found.sinks), (names(&after), vec![vec!["0".to_owned()], vec!["1".to_owned()]]));
        let node = |plan: &QueryPlan, source: usize| {
            plan.dataflow.nodes().iter().position(|one| matches!(one.work, Work::Source(at) if at == source))
        };
        for source in [0, 1] {
            let (now, then) = (node(&after, source).expect("a source"), node(&before, 1 - source).expect("a source"));
            assert_eq!(found.reached_us[&now], then as i64);
        }
    }

    #[test]
    fn the_first_form_goes_by_nodes() {
        let plan = plan(COUNT);
        let at = plan.dataflow.addresses().iter().position(Option::is_some).expect("an aggregate");
        let note = json!({
            "operators": operators(&plan), "sources": [[["t", null]]], "sinks": [["a"], ["b"]],
            "reached_us": {"0": 5, at.to_string(): 7}, "ended_stages": [],
        });
        let pieces = [(format!("node-{at}/0/0"), vec![frame(1).to_bytes().expect("a frame").into()])].into();
        let found =
            Note::read(note.clone()).expect("a note").snapshot(&pieces, &plan).expect("found").expect("a state");
        assert_eq!((found.state[&at].len(), found.reached_us), (1, [(0, 5), (at, 7)].into()));
        let other = Note::read(note.clone()).expect("a note").snapshot(&pieces, &self::plan("SELECT k FROM t"));
        assert!(other.expect_err("other operators").contains("by other operators"));
        let mut later = serde_json::to_value(Note::of(1, &plan, Snapshot::default())).expect("JSON");
        later["form"] = json!(3);
        let later = Note::read(later).expect("a note").snapshot(&pieces, &plan).expect_err("a later form");
        assert!(later.contains("form 3"), "{later}");
    }
}
