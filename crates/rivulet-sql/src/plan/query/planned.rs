//! A planned big query: its sources, its dataflow and its output.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use rivulet_dataflow::{Dataflow, EdgeKind, NodeId};
use rivulet_operators::Table;
use rivulet_operators::parallel::ComputedColumns;
use sha2::{Digest, Sha256};

use crate::scope::{SinkDeclaration, SourceDeclaration};

/// A planned big query.
pub struct QueryPlan {
    /// The sources that it reads, each once; [`rivulet_dataflow::Work::Source`] is an index in this list.
    pub sources: Vec<PlannedSource>,
    /// The reference tables in which it looks rows up.
    pub tables: Vec<Arc<Table>>,
    /// The operators, from the sources to the one sink.
    pub dataflow: Dataflow,
    /// Its output.
    pub output: PlannedOutput,
    /// The sinks of refused rows. They have the indices of [`rivulet_dataflow::Work::Sink`] from 1 on, and take rows of
    /// [`letter_schema`](super::letter_schema).
    pub letters: Vec<Arc<SinkDeclaration>>,
    /// Whether its tasks may go to burst workers.
    pub is_burst: bool,
    /// What each operator does, by node. It uses the indices of columns, because several columns may have one name.
    pub(crate) identities: BTreeMap<NodeId, String>,
    /// For each stateful operator, whether it may retract rows. Any other operator may if its inputs may.
    pub(crate) changes: BTreeMap<NodeId, bool>,
    /// The models that it may call, as the identities of operators name their versions.
    pub(crate) versions: Vec<String>,
}

impl QueryPlan {
    /// Whether another plan of the same text does the same: it has the same versions of all models.
    pub fn is_same(&self, other: &Self) -> bool {
        self.identities == other.identities
    }

    /// What every process that plans the same text in the same way finds too, in 64 hexadecimal digits: operators, how
    /// rows travel between them, and where state belongs. It is compared and never saved.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(env!("CARGO_PKG_VERSION"));
        for (id, node) in self.dataflow.nodes().iter().enumerate() {
            let types: Vec<_> =
                node.schema.fields().iter().map(|field| (field.data_type(), field.is_nullable())).collect();
            let (identity, address) = (self.identities.get(&id), self.dataflow.address(id));
            digest.update(format!("{} {identity:?} {types:?} {:?} {address:?}\n", node.work.name(), node.divided_by));
        }
        let digest = digest.chain_update(format!("{:?} {:?}", self.dataflow.edges(), self.dataflow.fuse())).finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Why an operator only runs in the process that has planned it, in words that follow its number: it uses what that
    /// process has read. `None` if it may run in another process that has planned the same.
    pub fn stays(&self, node: NodeId) -> Option<String> {
        if self.dataflow.inputs_of(node).any(|edge| edge.kind == EdgeKind::Broadcast) {
            return Some("has its small side in every instance".into());
        }
        if self.dataflow.outputs_of(node).any(|edge| matches!(edge.kind, EdgeKind::Refused { .. })) {
            return Some("sends the rows that it refuses to a sink".into());
        }
        let described = self.dataflow.nodes()[node].work.factory()?.describe();
        let is_of = |name: &str| described.shared.iter().any(|text| text.contains(&format!("rows of {name} ")));
        if described.operator == "lookup" {
            let table = self.tables.iter().map(|table| table.name()).find(|name| is_of(name)).unwrap_or_default();
            return Some(format!("looks rows up in the table '{table}', which a worker has not"));
        }
        self.calls_model(node).then(|| "uses a model, whose file is on the server only".into())
    }

    /// Whether an operator calls a model.
    pub fn calls_model(&self, node: NodeId) -> bool {
        let identity = self.identities.get(&node);
        identity.is_some_and(|identity| self.versions.iter().any(|version| identity.contains(version)))
    }
}

/// A source that a query reads.
#[derive(Clone, Debug)]
pub struct PlannedSource {
    /// The source.
    pub declaration: Arc<SourceDeclaration>,
    /// The columns that are read, in ascending order: declared ones, and behind these computed ones.
    pub columns: Vec<usize>,
    /// The index of the event time among these columns.
    pub event_time: Option<usize>,
    /// The declared columns that the source must read, in ascending order.
    pub asked: Vec<usize>,
    /// Makes `columns` from the columns that are asked. Without it, both are the same.
    pub computed: Option<Arc<ComputedColumns>>,
}

/// The output of a query.
#[derive(Clone, Debug)]
pub struct PlannedOutput {
    /// The sink; without one, results go to the caller.
    pub sink: Option<Arc<SinkDeclaration>>,
    /// The columns.
    pub schema: SchemaRef,
    /// Whether rows may be retracted.
    pub changes: bool,
    /// Columns whose values identify a row, if there are such.
    pub key: Option<Vec<usize>>,
    /// The outermost ORDER BY, for the final result of bounded input.
    pub order: Vec<SortKey>,
    /// How many of the columns are selected. The columns behind them are there only for ORDER BY.
    pub selected: usize,
    /// The outermost LIMIT, for the final result of bounded input.
    pub limit: Option<usize>,
    /// The outermost OFFSET, for the final result of bounded input.
    pub offset: usize,
}

impl PlannedOutput {
    /// The columns that are selected.
    pub fn selected_schema(&self) -> SchemaRef {
        match self.selected == self.schema.fields().len() {
            true => self.schema.clone(),
            false => Arc::new(Schema::new(self.schema.fields()[..self.selected].to_vec())),
        }
    }
}

/// A column of ORDER BY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The index of the column.
    pub column: usize,
    /// Whether the greatest value comes first.
    pub descending: bool,
    /// Whether null comes first.
    pub nulls_first: bool,
}

impl fmt::Debug for QueryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryPlan")
            .field("sources", &self.sources)
            .field("dataflow", &self.dataflow)
            .field("output", &self.output)
            .finish_non_exhaustive()
    }
}
