//! Converts the relational plan, node by node, to operators.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion_common::tree_node::TreeNodeRecursion;
use datafusion_common::{DFSchema, ScalarValue};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{BinaryExpr, Expr, Filter, LogicalPlan, Operator, Projection, TableScan, Window};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::Work;
use rivulet_operators::Table;
use rivulet_operators::expression::sql;
use rivulet_operators::parallel::KeyedWindowKind;
use rivulet_relational::{Elements, Matches, Versions, WindowKind, WindowTable};
use sha2::{Digest, Sha256};

use super::apart::{Divided, Part};
use super::builder::Builder;
use super::columns::{is_of_bounds, over_bounds, place_in, unaliased, used_columns, uses_windows};
use super::error::{defect, not_yet, place_of, refused, versions_alone};
use super::planned::PlannedSource;
use super::relations::{ReferenceTable, SourceTable};
use super::stream::{Partition, Pending, Place, Stream};
use crate::value::interval_us;
use crate::{Position, SqlError};

/// The longest name of a computed column, in bytes.
const NAME_BYTES_MAX: usize = 16 << 10;

/// Makes a dataflow of a relational plan.
pub(super) struct Lowering {
    pub(super) builder: Builder,
    pub(super) sources: Vec<PlannedSource>,
    pub(super) tables: Vec<Arc<Table>>,
    /// How long state is remembered that no row uses and nothing else limits.
    pub(super) state_ttl_us: Option<i64>,
    /// Whether an aggregate without keys gives its row before rows have come: on a side of a join, which would wait for
    /// it, for ever if no row comes. By itself such a row comes with the first row, or at the end.
    pub(super) gives_at_once: bool,
    /// Whether tasks may go to burst workers: windows over keys are always computed in two steps, of which the first
    /// sends less than its rows.
    pub(super) is_burst: bool,
    /// The part of the query that runs here, and the windows that were divided for that.
    pub(super) part: Part,
    pub(super) divided: Vec<Divided>,
}

impl Lowering {
    /// Finds the sources of a plan, with the columns that are read from each, and adds them to the dataflow.
    pub(super) fn new(plan: &LogicalPlan, position: Position, state_ttl_us: Option<i64>) -> Result<Self, SqlError> {
        let mut sources: Vec<PlannedSource> = Vec::new();
        let walked = plan.apply_with_subqueries(|node| {
            let LogicalPlan::TableScan(scan) = node else { return Ok(TreeNodeRecursion::Continue) };
            let Some(SourceTable(declaration)) = scan.source.downcast_ref() else {
                return Ok(TreeNodeRecursion::Continue);
            };
            let known = sources.iter().position(|source| Arc::ptr_eq(&source.declaration, declaration));
            let place = known.unwrap_or_else(|| {
                sources.push(PlannedSource {
                    declaration: declaration.clone(),
                    columns: declaration.event_time_column.into_iter().collect(),
                    event_time: None,
                    asked: Vec::new(),
                    computed: None,
                });
                sources.len() - 1
            });
            sources[place].columns.extend(scanned(scan));
            Ok(TreeNodeRecursion::Continue)
        });
        walked.map_err(|error| SqlError::new(position, crate::plan::message::plain_message(&error)))?;
        let mut builder = Builder::new(position);
        for (place, source) in sources.iter_mut().enumerate() {
            source.columns.sort_unstable();
            source.columns.dedup();
            (source.asked, source.computed) = super::computed::asked(&source.declaration, &source.columns)?;
            let time = source.declaration.event_time_column;
            source.event_time = time.and_then(|time| source.columns.iter().position(|column| *column == time));
            let schema =
                source.declaration.schema.project(&source.columns).expect("the columns are those of the source");
            let node = builder.dataflow.add(Work::Source(place), Arc::new(schema));
            builder.changes.insert(node, source.declaration.changes());
        }
        let (part, divided, gives_at_once, is_burst) = (Part::Whole, Vec::new(), false, false);
        Ok(Self { builder, sources, tables: Vec::new(), state_ttl_us, gives_at_once, is_burst, part, divided })
    }

    pub(super) fn position(&self) -> Position {
        self.builder.position
    }

    /// Returns the rows of a plan. Only its columns in `wanted` are needed.
    pub(super) fn lower(&mut self, plan: &LogicalPlan, wanted: &BTreeSet<usize>) -> Result<Stream, SqlError> {
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::SubqueryAlias(alias) => self.lower(&alias.input, wanted),
            LogicalPlan::Projection(projection) => self.projection(projection, wanted),
            LogicalPlan::Filter(filter) => self.filter(filter, wanted),
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Join(join) => self.join(join, wanted),
            LogicalPlan::Window(window) => self.over(window, wanted),
            LogicalPlan::Union(union) => self.union(union, wanted),
            LogicalPlan::Extension(extension) => {
                let node = extension.node.as_any();
                match (node.downcast_ref::<WindowTable>(), node.downcast_ref::<Elements>()) {
                    (Some(windows), _) => self.windows(windows, wanted),
                    (_, Some(elements)) => self.elements(elements, wanted),
                    _ if node.is::<Versions>() => Err(versions_alone(self.position())),
                    _ => match node.downcast_ref::<Matches>() {
                        Some(matches) => self.matches(matches),
                        None => Err(not_yet(self.position(), "this query")),
                    },
                }
            }
            LogicalPlan::Sort(sort) => {
                let position = sort.expr.first().map(|key| place_of(&key.expr)).unwrap_or_default().or(self.position());
                Err(not_yet(position, "ORDER BY inside of a query").hint(
                    "a stream has no end to sort at: rank rows with ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...)",
                ))
            }
            LogicalPlan::EmptyRelation(_) | LogicalPlan::Values(_) => {
                Err(refused(self.position(), "the query reads nothing").hint("name a source in FROM"))
            }
            LogicalPlan::RecursiveQuery(_) => Err(not_yet(self.position(), "WITH RECURSIVE")),
            LogicalPlan::Subquery(_) => Err(not_yet(self.position(), "this subquery")),
            _ => Err(not_yet(self.position(), "this query")),
        }
    }

    /// How long after its last row an operator may forget a key of these columns. It is 0 if the key has a window that
    /// closes.
    pub(super) fn state_ttl_us(&self, stream: &Stream, keys: &[usize]) -> Option<i64> {
        // The event time of rows of a window is its last microsecond. A row that comes after the window has closed is
        // late.
        let is_of_window = stream.window.is_some_and(|window| {
            keys.contains(&window.end)
                && stream.time.is_none_or(|time| time == window.end)
                && stream.bound_of(window.end).is_some_and(|bound| bound >= 1)
        });
        if is_of_window && !stream.changes { Some(0) } else { self.state_ttl_us }
    }

    /// All columns of a plan.
    pub(super) fn all(plan: &LogicalPlan) -> BTreeSet<usize> {
        (0..plan.schema().fields().len()).collect()
    }

    fn scan(&mut self, scan: &TableScan) -> Result<Stream, SqlError> {
        if scan.source.is::<ReferenceTable>() {
            let hint = match self.sources.is_empty() {
                true => "a table is looked up: FROM source JOIN table ON table.key = source.key",
                false => "join the table itself with the source, and aggregate, unite or join further behind that",
            };
            return Err(
                refused(self.position(), format!("the table '{}' cannot be read alone", scan.table_name)).hint(hint)
            );
        }
        let Some(SourceTable(declaration)) = scan.source.downcast_ref() else {
            return Err(not_yet(self.position(), "this relation"));
        };
        let node = self
            .sources
            .iter()
            .position(|source| Arc::ptr_eq(&source.declaration, declaration))
            .expect("sources were collected from the same plan");
        let source = &self.sources[node];
        let place = |column: usize| source.columns.iter().position(|read| *read == column);
        let key = |columns: &Vec<usize>| columns.iter().map(|column| place(*column)).collect::<Option<Vec<_>>>();
        let columns = scanned(scan).into_iter().map(|column| place(column).map_or(Place::Absent, Place::Column));
        Ok(Stream {
            node,
            schema: self.builder.dataflow.nodes()[node].schema.clone(),
            columns: columns.collect(),
            time: source.event_time,
            bounds: source.event_time.map(|time| (time, 0)).into_iter().collect(),
            pending: None,
            window: None,
            changes: source.declaration.changes(),
            partition: Partition::Any,
            key: source.declaration.key.as_ref().and_then(key),
            // Instances forget rows one by one.
            is_small: source.declaration.is_small && self.state_ttl_us.is_none(),
        })
    }

    fn projection(&mut self, projection: &Projection, wanted: &BTreeSet<usize>) -> Result<Stream, SqlError> {
        let schema = projection.input.schema();
        let asked =
            || projection.expr.iter().enumerate().filter(|(place, _)| wanted.contains(place)).map(|(_, one)| one);
        let used = used_columns(asked(), schema);
        let mut stream = self.lower(&projection.input, &used)?;
        // Other columns are only renamed.
        let is_computed = |expression: &Expr, stream: &Stream| place_in(expression, schema, stream).is_none();
        let computed: Vec<&Expr> = asked().filter(|one| is_computed(one, &stream)).collect();
        if stream.pending.is_some() && uses_windows(computed.iter().copied(), schema, &stream) {
            stream = self.builder.with_windows(stream)?;
        }
        if computed.is_empty() {
            let columns = projection.expr.iter().enumerate();
            let columns = columns.map(|(place, one)| match wanted.contains(&place) {
                true => place_in(one, schema, &stream).unwrap_or(Place::Absent),
                false => Place::Absent,
            });
            return Ok(Stream { columns: columns.collect(), ..stream });
        }
        let mut kept: BTreeSet<usize> = asked()
            .filter_map(|one| match place_in(one, schema, &stream)? {
                Place::Column(column) => Some(column),
                _ => None,
            })
            .collect();
        kept.extend(stream.pending_columns());
        kept.extend(stream.window.iter().flat_map(|window| window.start.into_iter().chain([window.end])));
        let kept: Vec<usize> = kept.into_iter().collect();
        let mut expressions: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        for expression in &computed {
            let physical = self.physical(expression, schema, &stream)?;
            if !expressions.contains(&physical) {
                expressions.push(physical);
            }
        }
        let named = expressions.iter().map(|physical| (physical.clone(), column_name(physical))).collect();
        let projected = self.builder.project(&stream, &kept, named)?;
        let columns = projection.expr.iter().enumerate().map(|(place, expression)| {
            if !wanted.contains(&place) {
                return Ok(Place::Absent);
            }
            if !is_computed(expression, &stream) {
                return Ok(place_in(expression, schema, &projected).unwrap_or(Place::Absent));
            }
            let physical = self.physical(expression, schema, &stream)?;
            let place = expressions.iter().position(|known| known.eq(&physical)).expect("it was computed above");
            Ok(Place::Column(kept.len() + place))
        });
        let columns = columns.collect::<Result<Vec<_>, SqlError>>()?;
        let mut bounds = projected.bounds.clone();
        for (place, expression) in projection.expr.iter().enumerate() {
            if let (Place::Column(column), Some(bound)) = (columns[place], last_of_window(expression, schema, &stream))
            {
                bounds.push((column, bound));
            }
        }
        Ok(Stream { columns, bounds, ..projected })
    }

    fn filter(&mut self, filter: &Filter, wanted: &BTreeSet<usize>) -> Result<Stream, SqlError> {
        let schema = filter.input.schema();
        let conjuncts = split_conjunction(&filter.predicate);
        if let Some((window, columns)) = window_below(&filter.input)
            && let Some(ranked) = self.ranked(window, &columns, schema, &conjuncts, wanted)?
        {
            return Ok(ranked);
        }
        let mut used = wanted.clone();
        used.extend(used_columns([&filter.predicate], schema));
        let stream = self.lower(&filter.input, &used)?;
        self.filtered(stream, &conjuncts, schema)
    }

    /// Returns the rows for which all conditions are true.
    pub(super) fn filtered(
        &mut self,
        mut stream: Stream,
        conjuncts: &[&Expr],
        schema: &DFSchema,
    ) -> Result<Stream, SqlError> {
        // Conditions on windows alone wait until the windows are made.
        let is_held = |conjunct: &Expr| is_of_bounds(conjunct, schema, &stream);
        let (held, conjuncts): (Vec<&Expr>, Vec<&Expr>) = conjuncts.iter().copied().partition(|one| is_held(one));
        let held = held.into_iter().map(|one| over_bounds(one, schema, &stream)).collect::<Vec<_>>();
        if let Some(pending) = &mut stream.pending {
            pending.held.extend(held);
        }
        let Some(condition) = datafusion_expr::utils::conjunction(conjuncts.into_iter().cloned()) else {
            return Ok(stream);
        };
        if let Some(Pending { kind: KeyedWindowKind::Session { .. }, partition, .. }) = &stream.pending {
            // Leaving out a row shortens its session, unless all rows of the key are left out.
            let keys = partition.clone().unwrap_or_default();
            let is_key =
                |column: &usize| matches!(stream.columns[*column], Place::Column(place) if keys.contains(&place));
            if !used_columns([&condition], schema).iter().all(is_key) {
                let position = place_of(&condition).or(self.position());
                return Err(refused(position, "a condition between a session and its aggregate would cut the session")
                    .hint(
                        "put it under the window, TABLE(SESSION(TABLE (SELECT ... WHERE ...) ...)), or into HAVING",
                    ));
            }
        }
        if stream.pending.is_some() && uses_windows([&condition], schema, &stream) {
            stream = self.builder.with_windows(stream)?;
        }
        let condition = self.physical(&condition, schema, &stream)?;
        self.builder.filter(&stream, condition)
    }

    fn windows(&mut self, windows: &WindowTable, wanted: &BTreeSet<usize>) -> Result<Stream, SqlError> {
        let schema = windows.input.schema();
        let rows = schema.fields().len();
        let mut used: BTreeSet<usize> = wanted.iter().copied().filter(|column| *column < rows).collect();
        let partition = windows.partition.iter().flatten();
        used.extend(used_columns(windows.time.iter().chain(partition.clone()), schema));
        let mut stream = self.lower(&windows.input, &used)?;
        stream = self.builder.with_windows(stream)?;
        let position = windows.time.as_ref().map(place_of).unwrap_or_default().or(self.position());
        let place = windows.time.as_ref().map(|time| (time, place_in(time, schema, &stream)));
        let mut behind_us = 0;
        let (kind, time) = match (place, windows.kind) {
            (None, kind) => (keyed(kind), None),
            (Some((_, Some(Place::Clock))), WindowKind::Tumble { width_us, offset_us: 0 }) => {
                (KeyedWindowKind::ProcessingTumble { width_us }, None)
            }
            (Some((_, Some(Place::Clock))), _) => {
                return Err(not_yet(position, "another window by the clock than TUMBLE without offset"));
            }
            (Some((written, Some(Place::Column(time)))), kind) => {
                match stream.bound_of(time).and_then(i64::checked_neg) {
                    // The column is the time of the windows only. Other operators use the watermark.
                    Some(behind) if behind > 0 => {
                        behind_us = behind;
                        stream = Stream { time: None, ..self.builder.with_event_time(stream, time)? };
                    }
                    _ => stream = self.with_time(stream, time, written)?,
                }
                (keyed(kind), Some(time))
            }
            _ => return Err(refused(position, "the time of a window is a column")),
        };
        kind.check(&stream.schema).map_err(|error| defect(error, position))?;
        let partition = match &windows.partition {
            Some(keys) => {
                let keys = keys.iter().map(|key| match place_in(key, schema, &stream) {
                    Some(Place::Column(column)) => Ok(column),
                    _ => Err(refused(place_of(key).or(self.position()), "PARTITION BY names columns")),
                });
                Some(keys.collect::<Result<Vec<_>, SqlError>>()?)
            }
            None => None,
        };
        stream.pending = Some(Pending { kind, time, behind_us, partition, held: Vec::new() });
        stream.columns.extend([Place::WindowStart, Place::WindowEnd]);
        Ok(stream)
    }

    /// Returns the rows with this column as event time, if that is possible.
    pub(super) fn with_time(&mut self, stream: Stream, time: usize, written: &Expr) -> Result<Stream, SqlError> {
        if stream.time == Some(time) {
            return Ok(stream);
        }
        let position = place_of(written).or(self.position());
        let name = stream.schema.field(time).name();
        match stream.bound_of(time) {
            Some(delta) if delta >= 0 => self.builder.with_event_time(stream, time),
            _ => {
                let error = refused(position, format!("'{name}' is not the event time of its rows"));
                Err(match stream.time {
                    Some(event_time) => {
                        let event_time = stream.schema.field(event_time).name();
                        error.hint(format!("write their event time instead: '{event_time}'"))
                    }
                    None => error.hint(
                        "declare it in the source (ts TIMESTAMP EVENT TIME, or WATERMARK FOR ts AS ts - INTERVAL '5' SECOND), or use PROCTIME(). \
                         Behind a join without a bound in time rows may be of any age: make the windows before it, \
                         FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), ...)) JOIN ..., or join a CREATE TABLE ... FROM 'file:...'",
                    ),
                })
            }
        }
    }

    /// Converts an expression to one over the rows of a stream.
    pub(super) fn physical(
        &self,
        expression: &Expr,
        schema: &DFSchema,
        stream: &Stream,
    ) -> Result<Arc<dyn PhysicalExpr>, SqlError> {
        self.builder.physical(unaliased(expression), schema, &stream.columns, &stream.schema)
    }

    /// Returns the rows with each expression as a column, and the indices of these columns. Columns that are not in
    /// `kept` may be lost.
    pub(super) fn with_expressions(
        &mut self,
        stream: Stream,
        expressions: &[&Expr],
        schema: &DFSchema,
        kept: Option<&BTreeSet<usize>>,
    ) -> Result<(Stream, Vec<usize>), SqlError> {
        let mut kept: BTreeSet<usize> = match kept {
            Some(kept) => kept.clone(),
            None => (0..stream.schema.fields().len()).collect(),
        };
        let mut computed: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        let mut found = Vec::with_capacity(expressions.len());
        for expression in expressions {
            match place_in(expression, schema, &stream) {
                Some(Place::Column(column)) => {
                    kept.insert(column);
                    found.push(Ok(column));
                }
                _ => {
                    let physical = self.physical(expression, schema, &stream)?;
                    let known = computed.iter().position(|known| known.eq(&physical));
                    found.push(Err(known.unwrap_or_else(|| {
                        computed.push(physical);
                        computed.len() - 1
                    })));
                }
            }
        }
        let kept: Vec<usize> = kept.into_iter().collect();
        let named = computed.into_iter().map(|physical| (physical.clone(), column_name(&physical))).collect();
        let projected = self.builder.project(&stream, &kept, named)?;
        let place = |found: Result<usize, usize>| match found {
            Ok(column) => kept.iter().position(|old| *old == column).expect("it was kept"),
            Err(computed) => kept.len() + computed,
        };
        Ok((projected, found.into_iter().map(place).collect()))
    }
}

/// If an expression is the last moment of a window, `window_end - INTERVAL '1 microsecond'`, returns its bound relative
/// to the watermark. Usually it is not behind the watermark, so it can be the event time of rows from the window.
fn last_of_window(expression: &Expr, schema: &DFSchema, stream: &Stream) -> Option<i64> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Minus, right }) = unaliased(expression) else { return None };
    let Some(Place::Column(column)) = place_in(left, schema, stream) else { return None };
    let (Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(length)), _), Some(window)) = (&**right, stream.window)
    else {
        return None;
    };
    let is_last = column == window.end && interval_us(*length) == Some(1);
    stream.bound_of(column).filter(|_| is_last)?.checked_sub(1)
}

/// The columns of its relation that a scan reads, in order.
fn scanned(scan: &TableScan) -> Vec<usize> {
    match &scan.projection {
        Some(projection) => projection.clone(),
        None => (0..scan.source.schema().fields().len()).collect(),
    }
}

/// Returns the window functions below nodes that only rename and choose columns, and for each column of the plan the
/// index of the window functions' column.
fn window_below(plan: &LogicalPlan) -> Option<(&Window, Vec<usize>)> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => window_below(&alias.input),
        LogicalPlan::Projection(projection) => {
            let (window, columns) = window_below(&projection.input)?;
            let schema = projection.input.schema();
            let column = |one: &Expr| match unaliased(one) {
                Expr::Column(column) => schema.maybe_index_of_column(column).map(|place| columns[place]),
                _ => None,
            };
            Some((window, projection.expr.iter().map(column).collect::<Option<_>>()?))
        }
        LogicalPlan::Window(window) => Some((window, (0..window.schema.fields().len()).collect())),
        _ => None,
    }
}

/// The name of a computed column: its text, which contains the names of the columns it is computed from. In a chain of
/// views each name could be a multiple of the previous one, so it is cut.
fn column_name(expression: &Arc<dyn PhysicalExpr>) -> String {
    let text = sql(expression);
    if text.len() <= NAME_BYTES_MAX {
        return text;
    }
    // The name is part of saved state, so the hash function must never change.
    let hash: String = Sha256::digest(&text)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}... {hash}", &text[..text.floor_char_boundary(NAME_BYTES_MAX)])
}

fn keyed(kind: WindowKind) -> KeyedWindowKind {
    match kind {
        WindowKind::Tumble { width_us, offset_us } => KeyedWindowKind::Tumble { width_us, offset_us },
        WindowKind::Hop { slide_us, width_us, offset_us } => KeyedWindowKind::Hop { slide_us, width_us, offset_us },
        WindowKind::Cumulate { step_us, width_us, offset_us } => {
            KeyedWindowKind::Cumulate { step_us, width_us, offset_us }
        }
        WindowKind::Session { gap_us } => KeyedWindowKind::Session { gap_us },
        WindowKind::Count { rows, slide_rows } => KeyedWindowKind::Count { rows, slide_rows },
    }
}
