//! Migration of a snapshot to another dataflow, for a new version of a big query that continues where the old one was.
//!
//! Sources, sinks and the state of operators go where the [`FlowMap`] says, and each source and operator takes the
//! watermark that its predecessor had reached. Others get one from the sources.
//!
//! What must hold: no operator gets a later watermark than its rows had reached, or rows that count would be late. None
//! is marked as ended unless its inputs have ended.

use super::Snapshot;
use crate::{Dataflow, FlowMap, StateFrame, Work};

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
        let source_of =
            |from: usize| before.nodes().iter().position(|one| matches!(one.work, Work::Source(at) if at == from));
        let mut has_ended: Vec<bool> = Vec::with_capacity(after.nodes().len());
        for (node, one) in after.nodes().iter().enumerate() {
            let mut inputs = after.inputs_of(node).peekable();
            let comes_nothing = inputs.peek().is_some() && inputs.all(|edge| has_ended[edge.from]);
            let (from, is_source) = match &one.work {
                Work::Source(place) => (map.sources.get(*place).copied().flatten().and_then(source_of), true),
                Work::Operator(operator) if operator.is_stateful() => {
                    (map.operators.get(node).copied().flatten(), false)
                }
                _ => {
                    has_ended.push(comes_nothing);
                    continue;
                }
            };
            let had_ended = from.is_some_and(|from| self.ended.contains(&from));
            if had_ended && !is_source && !comes_nothing {
                return Err(HasEnded(one.work.name()));
            }
            has_ended.push(had_ended);
            if had_ended {
                next.ended.push(node);
            } else if let Some(&reached_us) = from.and_then(|from| self.reached_us.get(&from)) {
                next.reached_us.insert(node, reached_us);
            }
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::stage::PartitionState;
    use crate::{Address, Description, EdgeKind, NodeId, Operator, OperatorFactory};
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
