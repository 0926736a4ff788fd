//! The operators of a task, and how they are made.

use std::sync::Arc;

use rivulet_dataflow::stage::Stage;
use rivulet_dataflow::{Address, Chain, Dataflow, KeyGroups, NodeId, Operator, OperatorFactory, Watched};

use crate::flow::measure::{Counting, OperatorCounters};

/// What all instances of a stage have of its operators.
#[derive(Clone)]
pub(in crate::flow) struct Operators {
    /// The name of the stage.
    pub(super) title: Arc<str>,
    factories: Vec<Arc<dyn OperatorFactory>>,
    /// The addresses of their state.
    addresses: Vec<Option<Arc<Address>>>,
    /// Their nodes in the dataflow.
    pub(super) nodes: Vec<NodeId>,
    pub(super) names: Vec<String>,
    key_groups: KeyGroups,
}

impl Operators {
    pub(in crate::flow) fn of(stage: &Stage, dataflow: &Dataflow) -> Self {
        let title: Vec<String> = stage.nodes.iter().map(|&node| dataflow.nodes()[node].work.name()).collect();
        Self {
            title: title.join(" > ").into(),
            factories: stage.operators(dataflow).cloned().collect(),
            addresses: stage.operator_nodes(dataflow).map(|node| dataflow.address(node).cloned()).collect(),
            nodes: stage.operator_nodes(dataflow).collect(),
            names: stage.operators(dataflow).map(|factory| factory.describe().operator).collect(),
            key_groups: dataflow.key_groups(),
        }
    }

    /// The operators of an instance.
    pub(super) fn chain(&self, instance: usize, measured: &[Arc<OperatorCounters>]) -> Chain {
        let counting = |(factory, counters): (&Arc<dyn OperatorFactory>, &Arc<OperatorCounters>)| {
            let operator = factory.create_instance(instance);
            Box::new(Watched::new(operator, Counting(counters.clone()))) as Box<dyn Operator>
        };
        let operators = self.factories.iter().zip(measured).map(counting).collect();
        Chain::new(operators).with_addresses(self.addresses.clone()).with_key_groups(self.key_groups)
    }

    /// Their number.
    pub(in crate::flow) fn len(&self) -> usize {
        self.factories.len()
    }
}
