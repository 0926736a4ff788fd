//! The addresses of the operators of a plan: what each does, behind what, and how its rows are computed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Dataflow, Line, NodeId, OperatorFactory, Work};
use crate::Address;
use crate::address::hash;

/// What leaves a node, as far as addresses behind it depend on it.
#[derive(Clone, Default)]
struct Front {
    /// The sources and operators with state whose rows leave here.
    from: BTreeSet<u64>,
    exact: u64,
    words: u64,
}

impl Front {
    fn of_source(name: &str) -> Self {
        let hash = hash(&("source", name));
        Self { from: [hash].into(), exact: hash, words: hash }
    }

    /// The address of an operator with these inputs, if it has state, and what leaves it; identity and
    /// versions as in [`Dataflow::with_addresses`].
    fn behind(
        factory: &dyn OperatorFactory,
        (identity, versions): (&str, &[String]),
        inputs: &[(usize, &Self)],
    ) -> (Option<Address>, Self) {
        let mut behind: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        inputs.iter().for_each(|(input, front)| behind.entry(*input).or_default().extend(&front.from));
        let of_inputs = |of: fn(&Self) -> u64| inputs.iter().map(|(input, one)| (*input, of(one))).collect::<Vec<_>>();
        let described = factory.describe();
        let bare = |text: String| versions.iter().fold(text, |text, version| text.replace(version, ""));
        let shared: Vec<String> = described.shared.into_iter().map(bare).collect();
        let words = hash(&(described.operator, shared, of_inputs(|front| front.words)));
        let exact = hash(&(identity, words, of_inputs(|front| front.exact)));
        let address = factory.state().map(|own| Address { behind: hash(&behind), exact, words, ..own });
        let from = match &address {
            Some(address) if !address.is_transient => [hash(&address.alike())].into(),
            _ => behind.into_values().flatten().collect(),
        };
        (address, Self { from, exact, words })
    }
}

impl Line {
    /// Makes a line of these operators, first to last.
    pub fn new(factories: Vec<Arc<dyn OperatorFactory>>) -> Self {
        let mut front = Front::default();
        let addresses = factories.iter().map(|factory| {
            let (address, next) = Front::behind(&**factory, ("", &[]), &[(0, &front)]);
            front = next;
            address.map(Arc::new)
        });
        Self { addresses: addresses.collect(), factories }
    }
}

impl Dataflow {
    /// Gives operators with state their addresses, when the dataflow is complete. `sources` are the names of its
    /// sources; `identities` says what operators do whose words of `EXPLAIN` do not say everything. `versions` are
    /// texts in these words that other versions of the same files do not have: they only count exactly.
    #[must_use]
    pub fn with_addresses(self, sources: &[&str], identities: &BTreeMap<NodeId, String>, versions: &[String]) -> Self {
        let mut fronts: Vec<Front> = Vec::with_capacity(self.nodes.len());
        let mut addresses = Vec::with_capacity(self.nodes.len());
        for (id, node) in self.nodes.iter().enumerate() {
            let inputs: Vec<(usize, &Front)> =
                self.inputs_of(id).map(|edge| (edge.input, &fronts[edge.from])).collect();
            let identity = identities.get(&id).map_or("", String::as_str);
            let (address, front) = match &node.work {
                Work::Source(source) => (None, Front::of_source(sources[*source])),
                Work::Operator(factory) => Front::behind(&**factory, (identity, versions), &inputs),
                Work::Sink(_) => (None, Front::default()),
            };
            fronts.push(front);
            addresses.push(address.map(Arc::new));
        }
        Self { addresses, ..self }
    }
}
