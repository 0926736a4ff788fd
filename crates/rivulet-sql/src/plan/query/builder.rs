//! Adds operators to a dataflow. If an equal step exists, it is not added again, so that what a query says twice is
//! done once.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, DataFusionError};
use datafusion_expr::Expr;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use rivulet_dataflow::{Dataflow, EdgeKind, NodeId, OperatorFactory, Work};
use rivulet_operators::parallel::{AssignWindows, KeyedWindowKind, SetEventTime};
use rivulet_operators::{Filter, NamedExpression, PlanError, Project};

use super::error::{defect, not_yet, refused};
use super::stream::{Attached, Partition, Place, Stream, bounds_schema};
use crate::plan::arithmetic::compile;
use crate::plan::message::plain_message;
use crate::{Position, SqlError};

/// The most windows that a row may be in.
const WINDOWS_OF_ROW_MAX: i64 = 10_000;

/// The dataflow so far.
pub(super) struct Builder {
    pub(super) dataflow: Dataflow,
    /// The nodes by what they do with which inputs.
    known: HashMap<String, NodeId>,
    /// What each operator does, by the indices of columns and not by their names, independent of its inputs.
    pub(super) identities: BTreeMap<NodeId, String>,
    /// For each source and each stateful operator, whether it may retract rows. Any other operator may if its inputs
    /// may.
    pub(super) changes: BTreeMap<NodeId, bool>,
    /// The position of errors that have none of their own.
    pub(super) position: Position,
}

impl Builder {
    pub(super) fn new(position: Position) -> Self {
        let (identities, changes) = (BTreeMap::new(), BTreeMap::new());
        Self { dataflow: Dataflow::default(), known: HashMap::new(), identities, changes, position }
    }

    /// Adds an operator with these inputs, or returns an equal one. `what` distinguishes it from all other operators
    /// with its name.
    pub(super) fn operator(
        &mut self,
        name: &str,
        what: &dyn Debug,
        factory: impl OperatorFactory + 'static,
        schema: SchemaRef,
        inputs: &[(NodeId, usize, EdgeKind)],
    ) -> NodeId {
        let identity = format!("{name} {what:?}");
        let signature = format!("{identity} {inputs:?}");
        if let Some(&node) = self.known.get(&signature) {
            return node;
        }
        let node = self.dataflow.add(Work::Operator(Arc::new(factory)), schema);
        for (from, input, kind) in inputs {
            self.dataflow.connect(*from, node, *input, kind.clone());
        }
        self.known.insert(signature, node);
        self.identities.insert(node, identity);
        node
    }

    pub(super) fn failed(&self, error: PlanError) -> SqlError {
        defect(error, self.position)
    }

    /// Converts an expression over the columns of the relational plan to one over the rows of a stream.
    pub(super) fn physical(
        &self,
        expression: &Expr,
        schema: &DFSchema,
        columns: &[Place],
        rows: &Schema,
    ) -> Result<Arc<dyn PhysicalExpr>, SqlError> {
        let position = super::error::place_of(expression).or(self.position);
        let failed = |error: DataFusionError| match plain_message(&error) {
            // The optimizer has moved a condition of ON to its side of the join, with a subquery that names the other.
            message if message.starts_with("no field named ") => not_yet(
                position,
                "a subquery in ON that names columns of the other side",
            )
            .hint(
                "write it in WHERE, or join what it leaves: LEFT JOIN (SELECT * FROM b WHERE b.k IN (SELECT ...)) AS b",
            ),
            message => SqlError::new(position, message),
        };
        let is_subquery = |one: &Expr| {
            Ok(matches!(one, Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)))
        };
        if expression.exists(is_subquery).map_err(failed)? {
            return Err(not_yet(position, "a subquery in this place")
                .hint("compute it in a subquery in FROM: SELECT ... FROM (SELECT *, (SELECT ...) AS x FROM t)"));
        }
        let logical = compile(expression, schema).map_err(failed)?;
        let mut missing = None;
        let placed = logical
            .transform_down(|node| {
                let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
                match columns.get(column.index()) {
                    Some(Place::Column(place)) => {
                        let name = rows.field(*place).name();
                        Ok(Transformed::yes(Arc::new(Column::new(name, *place)) as Arc<dyn PhysicalExpr>))
                    }
                    other => {
                        missing = Some((column.name().to_owned(), other.copied()));
                        Ok(Transformed::no(node))
                    }
                }
            })
            .data()
            .map_err(failed)?;
        match missing {
            None => Ok(placed),
            Some((name, Some(Place::Clock))) => {
                Err(refused(position, format!("'{name}' is PROCTIME(), which has no value by itself"))
                    .hint("it is the time of a window: TUMBLE(TABLE t, DESCRIPTOR(p), ...)"))
            }
            Some((name, _)) => Err(SqlError::new(position, format!("the column '{name}' is not there any more"))),
        }
    }

    /// Returns the rows with the columns `kept` and, behind them, computed ones. The columns of the relational plan are
    /// mapped to the columns that are kept.
    pub(super) fn project(
        &mut self,
        stream: &Stream,
        kept: &[usize],
        computed: Vec<(Arc<dyn PhysicalExpr>, String)>,
    ) -> Result<Stream, SqlError> {
        if computed.is_empty() && kept.iter().copied().eq(0..stream.schema.fields().len()) {
            return Ok(stream.clone());
        }
        let keep = kept.iter().map(|&column| {
            let name = stream.schema.field(column).name();
            NamedExpression::new(name, Arc::new(Column::new(name, column)))
        });
        let columns: Vec<NamedExpression> =
            keep.chain(computed.into_iter().map(|(expression, name)| NamedExpression::new(name, expression))).collect();
        let (node, schema) = self.project_node(stream, columns)?;
        Ok(stream.rearranged(node, schema, kept))
    }

    pub(super) fn project_node(
        &mut self,
        stream: &Stream,
        columns: Vec<NamedExpression>,
    ) -> Result<(NodeId, SchemaRef), SqlError> {
        let what = format!("{columns:?}");
        let project =
            Project::new(&stream.schema, &Schema::empty(), vec![], columns).map_err(|error| self.failed(error))?;
        let schema = project.output_schema().clone();
        let inputs = [(stream.node, 0, EdgeKind::Forward)];
        Ok((self.operator("project", &what, project, schema.clone(), &inputs), schema))
    }

    /// Returns the rows for which a condition is true.
    pub(super) fn filter(&mut self, stream: &Stream, condition: Arc<dyn PhysicalExpr>) -> Result<Stream, SqlError> {
        let what = format!("{condition:?}");
        let filter =
            Filter::new(&stream.schema, &Schema::empty(), vec![], condition).map_err(|error| self.failed(error))?;
        let inputs = [(stream.node, 0, EdgeKind::Forward)];
        let node = self.operator("filter", &what, filter, stream.schema.clone(), &inputs);
        Ok(Stream { node, ..stream.clone() })
    }

    /// Returns the rows with their windows as columns, assigning pending windows first.
    pub(super) fn with_windows(&mut self, stream: Stream) -> Result<Stream, SqlError> {
        let Some(pending) = stream.pending.clone() else { return Ok(stream) };
        if matches!(pending.kind, KeyedWindowKind::Count { .. }) {
            return Err(refused(self.position, "windows of so many rows exist in an aggregate only"));
        }
        let (Some(time), has_bounds) = (pending.time, !matches!(pending.kind, KeyedWindowKind::Session { .. })) else {
            return Err(refused(self.position, "windows by the clock exist in an aggregate only")
                .hint("group by window_start, window_end where the window is made"));
        };
        if !has_bounds {
            return Err(refused(
                self.position,
                "sessions exist in an aggregate only, since a later row can join two of them",
            )
            .hint("group by window_start, window_end (and the columns of PARTITION BY) where the session is made"));
        }
        let windows = match pending.kind {
            KeyedWindowKind::Hop { slide_us, width_us, .. } => width_us / slide_us,
            KeyedWindowKind::Cumulate { step_us, width_us, .. } => width_us / step_us,
            _ => 1,
        };
        if windows > WINDOWS_OF_ROW_MAX {
            return Err(refused(
                self.position,
                format!(
                    "each row would come once for each of its {windows} windows, and {WINDOWS_OF_ROW_MAX} is the most"
                ),
            )
            .hint("group by window_start, window_end where the window is made, or let windows begin less often"));
        }
        let assign =
            AssignWindows::new(stream.schema.clone(), pending.kind, time).map_err(|error| self.failed(error))?;
        let schema = assign.output_schema().clone();
        let inputs = [(stream.node, 0, EdgeKind::Forward)];
        let node = self.operator("assign windows", &(pending.kind, time), assign, schema.clone(), &inputs);
        let (start, end) = (stream.schema.fields().len(), stream.schema.fields().len() + 1);
        let columns = stream.columns.iter().map(|place| match place {
            Place::WindowStart => Place::Column(start),
            Place::WindowEnd => Place::Column(end),
            other => *other,
        });
        let mut bounds = stream.bounds.clone();
        bounds.extend(window_bounds(&pending.kind, start, end, pending.behind_us));
        let windowed = Stream {
            node,
            schema,
            columns: columns.collect(),
            time: None,
            bounds,
            pending: None,
            window: Some(Attached { start: Some(start), end, has_fixed_width: has_fixed_width(&pending.kind) }),
            // A row may be in several windows.
            key: None,
            ..stream
        };
        self.held(windowed, &pending.held, [start, end])
    }

    /// Applies conditions on windows that were held back, with the window in the columns `bounds`.
    pub(super) fn held(&mut self, stream: Stream, held: &[Expr], bounds: [usize; 2]) -> Result<Stream, SqlError> {
        let Some(condition) = datafusion_expr::utils::conjunction(held.iter().cloned()) else { return Ok(stream) };
        let failed = |error: DataFusionError| SqlError::new(self.position, plain_message(&error));
        let schema = bounds_schema().map_err(failed)?;
        let condition = self.physical(&condition, &schema, &bounds.map(Place::Column), &stream.schema)?;
        self.filter(&stream, condition)
    }

    /// Returns the rows with this column as their event time.
    pub(super) fn with_event_time(&mut self, stream: Stream, column: usize) -> Result<Stream, SqlError> {
        if stream.time == Some(column) {
            return Ok(stream);
        }
        let set = SetEventTime::new(&stream.schema, column).map_err(|error| self.failed(error))?;
        let inputs = [(stream.node, 0, EdgeKind::Forward)];
        let node = self.operator("set event time", &column, set, stream.schema.clone(), &inputs);
        Ok(Stream { node, time: Some(column), ..stream })
    }

    /// Records by which of its keys the rows of a node are distributed to instances, if by any. Both arguments are
    /// columns of its input.
    pub(super) fn divide(&mut self, node: NodeId, keys: &[usize], partition: &Partition) {
        let Partition::Keys(columns) = partition else { return };
        let places = columns.iter().map(|column| keys.iter().position(|key| key == column));
        if let Some(places) = places.collect::<Option<Vec<_>>>() {
            self.dataflow.divide(node, places);
        }
    }

    /// Returns the kind of edge that brings all rows with equal keys to one instance, and the partition behind that
    /// edge.
    pub(super) fn edge(&self, stream: &Stream, keys: &[usize]) -> (EdgeKind, Partition) {
        if stream.is_partitioned_by(keys) {
            (EdgeKind::Forward, stream.partition.clone())
        } else if keys.is_empty() {
            (EdgeKind::Gather, Partition::One)
        } else {
            (EdgeKind::Hash(keys.to_vec()), Partition::Keys(keys.to_vec()))
        }
    }
}

/// Whether all windows of this kind have the same length.
pub(super) fn has_fixed_width(kind: &KeyedWindowKind) -> bool {
    matches!(
        kind,
        KeyedWindowKind::Tumble { .. } | KeyedWindowKind::Hop { .. } | KeyedWindowKind::ProcessingTumble { .. }
    )
}

/// How far behind the watermark the bounds of windows can be, if rows come at the last microsecond of their window or
/// at most `behind_us` later.
pub(super) fn window_bounds(
    kind: &KeyedWindowKind,
    start: usize,
    end: usize,
    behind_us: i64,
) -> impl Iterator<Item = (usize, i64)> {
    let bounds = match *kind {
        KeyedWindowKind::Tumble { width_us, .. }
        | KeyedWindowKind::Hop { width_us, .. }
        | KeyedWindowKind::Cumulate { width_us, .. } => vec![(end, 1), (start, 1_i64.saturating_sub(width_us))],
        KeyedWindowKind::Session { .. } => vec![(end, 1)],
        KeyedWindowKind::Attached { .. } => vec![(end, 1)],
        KeyedWindowKind::ProcessingTumble { .. } | KeyedWindowKind::Count { .. } => Vec::new(),
    };
    bounds.into_iter().map(move |(column, bound): (usize, i64)| (column, bound.saturating_sub(behind_us)))
}
