//! Migration of a snapshot to another dataflow, for a new version of a big query that continues where the old one was.
//!
//! Sources, sinks and the state of operators go where the [`FlowMap`] says. A stage keeps a watermark in two cases: it
//! begins with a source that continues, or its first operator with state takes over from the first such operator of an
//! old stage. (Operators without state pass the watermark on unchanged.) Otherwise the watermarks of the sources arrive
//! by themselves.
//!
//! What must hold: no stage gets a later watermark than its rows had reached, or rows that count would be late. No
//! stage is marked as ended unless its inputs have ended.

use super::Snapshot;
use crate::stage::{Stage, cut};
use crate::{Dataflow, FlowMap, NodeId, StateFrame, Work};

/// State that cannot be migrated: its stage has ended, but the new version would send it rows again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the part of it with '{0}' has come to the end of its input, and would get rows again")]
pub struct HasEnded(pub String);

impl Snapshot {
    /// Turns this snapshot of `before` into a snapshot of `after`.
    ///
    /// # Errors
    /// An operator that has ended would continue.
    pub fn succeed(&self, before: &Dataflow, after: &Dataflow, map: &FlowMap) -> Result<Self, HasEnded> {
        let (old, new) = (stages_of(before), stages_of(after));
        let mut next = Self::default();
        for (place, from) in map.sources.iter().enumerate() {
            match from {
                Some(from) => next.sources.push(self.sources.get(*from).cloned().unwrap_or_default()),
                None => {
                    next.sources.push(Vec::new());
                    next.begins.insert(place);
                }
            }
        }
        let sink = |from: &Option<usize>| from.and_then(|from| self.sinks.get(from).cloned()).unwrap_or_default();
        next.sinks = map.sinks.iter().map(sink).collect();
        for (node, from) in map.operators.iter().enumerate() {
            if let Some(frames) = from.and_then(|from| self.state.get(&from)) {
                next.state.insert(node, frames.iter().cloned().map(StateFrame::without_address).collect());
            }
        }
        let mut has_ended = vec![false; new.len()];
        for (place, stage) in new.iter().enumerate() {
            let from = predecessor(stage, after, &old, before, map).map(|stage| stage.nodes[0]);
            let had_ended = from.is_some_and(|from| self.ended.contains(&from));
            let comes_nothing = !stage.inputs.is_empty() && stage.inputs.iter().all(|input| has_ended[input.from]);
            let has_state = first_with_state(stage, after).is_some();
            has_ended[place] = match stage.source(after) {
                Some(_) => had_ended,
                None => comes_nothing && (had_ended || !has_state),
            };
            if has_ended[place] {
                next.ended.push(stage.nodes[0]);
            } else if had_ended {
                return Err(HasEnded(after.nodes()[stage.nodes[0]].work.name()));
            } else if let Some(&reached_us) = from.and_then(|from| self.reached_us.get(&from)) {
                next.reached_us.insert(stage.nodes[0], reached_us);
            }
        }
        Ok(next)
    }
}

/// The stages of a dataflow. Fusion does not depend on the number of instances.
fn stages_of(dataflow: &Dataflow) -> Vec<Stage> {
    let sources = dataflow.nodes().iter().filter(|node| matches!(node.work, Work::Source(_))).count();
    cut(dataflow, &vec![1; sources], 1)
}

/// The old stage whose watermark a stage takes over.
fn predecessor<'s>(
    stage: &Stage,
    after: &Dataflow,
    old: &'s [Stage],
    before: &Dataflow,
    map: &FlowMap,
) -> Option<&'s Stage> {
    if let Some(source) = stage.source(after) {
        let from = map.sources.get(source).copied().flatten()?;
        return old.iter().find(|stage| stage.source(before) == Some(from));
    }
    let from = map.operators.get(first_with_state(stage, after)?).copied().flatten()?;
    old.iter().find(|stage| stage.source(before).is_none() && first_with_state(stage, before) == Some(from))
}

/// The first operator of a stage that has state.
fn first_with_state(stage: &Stage, dataflow: &Dataflow) -> Option<NodeId> {
    let is_stateful = |node: &NodeId| dataflow.nodes()[*node].work.factory().is_some_and(|one| one.is_stateful());
    stage.nodes.iter().copied().find(is_stateful)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::stage::PartitionState;
    use crate::{Address, Description, EdgeKind, Operator, OperatorFactory};
    use arrow::datatypes::Schema;

    struct Named(&'static str, bool);

    impl OperatorFactory for Named {
        fn create(&self) -> Box<dyn Operator> {
            unreachable!("only cut")
        }

        fn describe(&self) -> Description {
            Description { operator: self.0.into(), ..Description::default() }
        }

        fn state(&self) -> Option<Address> {
            self.1.then(|| Address::of(self.0))
        }
    }

    /// A dataflow of this many sources, joined in a window, whose rows are filtered and written.
    fn windowed(sources: usize, filters: bool) -> Dataflow {
        let columns = || Arc::new(Schema::empty());
        let mut dataflow = Dataflow::default();
        let mut nodes: Vec<NodeId> = (0..sources).map(|source| dataflow.add(Work::Source(source), columns())).collect();
        if filters {
            nodes = nodes
                .into_iter()
                .map(|node| dataflow.then(node, EdgeKind::Forward, Arc::new(Named("filter", false)), columns()))
                .collect();
        }
        let window = dataflow.add(Work::Operator(Arc::new(Named("window", true))), columns());
        nodes.into_iter().for_each(|node| dataflow.connect(node, window, 0, EdgeKind::Hash(vec![0])));
        let sink = dataflow.add(Work::Sink(0), columns());
        dataflow.connect(window, sink, 0, EdgeKind::Forward);
        dataflow
    }

    fn at(position: &str) -> Vec<PartitionState> {
        vec![PartitionState { position: Some(position.into()), newest_us: Some(7) }]
    }

    #[test]
    fn each_goes_on_where_its_predecessor_was_and_what_is_new_begins() {
        let (before, after) = (windowed(2, false), windowed(3, true));
        let snapshot = Snapshot {
            sources: vec![at("a"), at("b")],
            sinks: vec![vec!["files".into()]],
            reached_us: [(0, 10), (1, 20), (2, 10)].into(),
            ..Snapshot::default()
        };
        let mut map = FlowMap {
            sources: vec![Some(1), None, Some(0)],
            operators: vec![None; after.nodes().len()],
            sinks: vec![Some(0)],
        };
        map.operators[6] = Some(2);
        let next = snapshot.succeed(&before, &after, &map).unwrap();
        assert_eq!(next.sources, [at("b"), vec![], at("a")]);
        assert_eq!((next.begins.clone(), next.sinks.clone()), (BTreeSet::from([1]), snapshot.sinks.clone()));
        assert_eq!(next.reached_us, [(0, 20), (2, 10), (6, 10)].into());
        // A window and a sink that begin anew take nothing over.
        let anew = FlowMap { operators: vec![None; after.nodes().len()], sinks: vec![None], ..map };
        let next = snapshot.succeed(&before, &after, &anew).unwrap();
        assert_eq!((next.reached_us, next.sinks), ([(0, 20), (2, 10)].into(), vec![Vec::<String>::new()]));
    }

    #[test]
    fn what_has_ended_stays_so_unless_something_comes_again() {
        let before = windowed(1, false);
        let ended = Snapshot { sources: vec![vec![]], ended: vec![0, 1], ..Snapshot::default() };
        let map = |sources: Vec<Option<usize>>, after: &Dataflow, window: NodeId| {
            let mut operators = vec![None; after.nodes().len()];
            operators[window] = Some(1);
            FlowMap { sources, operators, sinks: vec![Some(0)] }
        };
        let filtered = windowed(1, true);
        let next = ended.succeed(&before, &filtered, &map(vec![Some(0)], &filtered, 2)).unwrap();
        assert_eq!((next.ended, next.begins.len()), (vec![0, 2], 0));
        let both = windowed(2, false);
        let refused = ended.succeed(&before, &both, &map(vec![Some(0), None], &both, 2)).unwrap_err();
        assert!(refused.to_string().contains("'window' has come to the end"), "{refused}");
    }
}
