//! GROUP BY: over windows, over rows that carry their window, or over all rows so far.

use std::collections::BTreeSet;

use arrow::datatypes::DataType;
use datafusion_common::{DFSchema, ScalarValue};
use datafusion_expr::expr::{AggregateFunctionParams, Sort};
use datafusion_expr::{Aggregate, Expr};
use datafusion_physical_expr::expressions::Column;
use rivulet_dataflow::EdgeKind;
use rivulet_operators::expression::sql;
use rivulet_operators::parallel::{
    KeyedAggregate, KeyedAggregateSpec, KeyedWindow, KeyedWindowKind, KeyedWindowSpec, Phase,
};
use rivulet_operators::{AggregateFunction, AggregateSpec, LAST_VALUES_MAX};

use super::PlannedSource;
use super::aggregates::PlannedAggregate;
use super::apart::{Divided, Part};
use super::builder::{has_fixed_width, window_bounds};
use super::columns::{place_in, unaliased, used_columns, uses_windows};
use super::error::{not_yet, place_of, refused};
use super::lower::Lowering;
use super::stream::{Attached, Partition, Pending, Place, Stream};
use super::{letters, lists};
use crate::plan::functions::one_by_one;
use crate::{Position, SqlError};

/// The kind of a key of GROUP BY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// The key with this index.
    Column(usize),
    WindowStart,
    WindowEnd,
}

impl Lowering {
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Stream, SqlError> {
        let schema = aggregate.input.schema();
        let all = || aggregate.group_expr.iter().chain(&aggregate.aggr_expr);
        let mut stream = self.lower(&aggregate.input, &used_columns(all(), schema))?;
        let is_bound = |key: &Expr, stream: &Stream| {
            matches!(place_in(key, schema, stream), Some(Place::WindowStart | Place::WindowEnd))
        };
        if let Some(pending) = &stream.pending {
            let has =
                |bound: Place| aggregate.group_expr.iter().any(|key| place_in(key, schema, &stream) == Some(bound));
            // A bound that does not tell one window from all others is an ordinary key, and rows need it as a column.
            let by_window = match pending.kind {
                KeyedWindowKind::Cumulate { .. } => has(Place::WindowEnd),
                _ => has(Place::WindowStart) || has(Place::WindowEnd),
            };
            let others = all().filter(|one| !is_bound(one, &stream));
            if !by_window || uses_windows(others, schema, &stream) {
                stream = self.builder.with_windows(stream)?;
            }
        }
        match stream.pending.clone() {
            Some(pending) => self.windowed(aggregate, stream, pending),
            None => match self.attached(aggregate, &stream) {
                Some(window) if !stream.changes => self.by_attached_window(aggregate, stream, window),
                _ => self.ungrouped_by_window(aggregate, stream),
            },
        }
    }

    /// Returns the window that the keys name, if rows carry it.
    fn attached(&self, aggregate: &Aggregate, stream: &Stream) -> Option<Attached> {
        let window = stream.window?;
        let has = |column: usize| {
            let place = Some(Place::Column(column));
            aggregate.group_expr.iter().any(|key| place_in(key, aggregate.input.schema(), stream) == place)
        };
        match (window.start.filter(|start| has(*start)), has(window.end)) {
            (start, true) => Some(Attached { start, ..window }),
            (Some(start), false) if window.has_fixed_width => Some(Attached { start: Some(start), ..window }),
            _ => None,
        }
    }

    fn windowed(&mut self, aggregate: &Aggregate, stream: Stream, pending: Pending) -> Result<Stream, SqlError> {
        let schema = aggregate.input.schema();
        if stream.changes {
            let problem = match pending.kind {
                // Overlapping windows are assigned before the aggregate, so that a row can be retracted from each of
                // them.
                KeyedWindowKind::Hop { .. } | KeyedWindowKind::Cumulate { .. } => {
                    let stream = self.builder.with_windows(stream)?;
                    return match self.attached(aggregate, &stream) {
                        Some(window) => self.by_attached_window(aggregate, stream, window),
                        None => Err(not_yet(self.position(), "this window over rows that may be taken back")),
                    };
                }
                KeyedWindowKind::Session { .. } => Some("a session over rows that may be taken back would fall apart"),
                KeyedWindowKind::Count { .. } => {
                    Some("count_window over rows that may be taken back has no order of rows")
                }
                KeyedWindowKind::ProcessingTumble { .. } => {
                    Some("a window by the clock takes a row back when the row's own window is long over")
                }
                KeyedWindowKind::Tumble { .. } | KeyedWindowKind::Attached { .. } => None,
            };
            if let Some(problem) = problem {
                return Err(refused(self.position(), problem)
                    .hint("use TUMBLE, HOP or CUMULATE by the event time, or make the window first, and join or rank its results"));
            }
        }
        let is_bound =
            |key: &&Expr| matches!(place_in(key, schema, &stream), Some(Place::WindowStart | Place::WindowEnd));
        let keys: Vec<&Expr> = aggregate.group_expr.iter().filter(|key| !is_bound(key)).collect();
        if let (KeyedWindowKind::Session { .. }, Some(partition)) = (pending.kind, &pending.partition) {
            let named: BTreeSet<Option<Place>> = keys.iter().map(|key| place_in(key, schema, &stream)).collect();
            let wanted: BTreeSet<Option<Place>> = partition.iter().map(|key| Some(Place::Column(*key))).collect();
            if named != wanted {
                let position = keys.first().map(|key| place_of(key)).unwrap_or_default().or(self.position());
                return Err(refused(position, "GROUP BY has other keys than PARTITION BY of the session")
                    .hint("write SESSION(TABLE t PARTITION BY key, DESCRIPTOR(ts), ...) with the keys of GROUP BY, or GROUP BY key, session(ts, ...)"));
            }
        }
        let bounds: Vec<Option<Key>> = aggregate
            .group_expr
            .iter()
            .map(|key| match place_in(key, schema, &stream) {
                Some(Place::WindowStart) => Some(Key::WindowStart),
                Some(Place::WindowEnd) => Some(Key::WindowEnd),
                _ => None,
            })
            .collect();
        let (stream, places) = self.grouped(aggregate, stream, &keys, &BTreeSet::new())?;
        let windows = self.keyed_window(aggregate, stream, (pending.kind, pending.behind_us), &places, &bounds)?;
        // The columns of the window are behind the keys.
        let start = windows.schema.fields().len() - aggregate.aggr_expr.len() - 2;
        self.builder.held(windows, &pending.held, [start, start + 1])
    }

    fn by_attached_window(
        &mut self,
        aggregate: &Aggregate,
        stream: Stream,
        window: Attached,
    ) -> Result<Stream, SqlError> {
        let schema = aggregate.input.schema();
        let bounds: Vec<Option<Key>> = aggregate
            .group_expr
            .iter()
            .map(|key| match place_in(key, schema, &stream) {
                Some(Place::Column(column)) if column == window.end => Some(Key::WindowEnd),
                Some(Place::Column(column)) if Some(column) == window.start => Some(Key::WindowStart),
                _ => None,
            })
            .collect();
        let keys: Vec<&Expr> =
            aggregate.group_expr.iter().zip(&bounds).filter(|(_, bound)| bound.is_none()).map(|(key, _)| key).collect();
        // Windows of rows that came behind the watermark can end behind it.
        let behind_us = stream.bound_of(window.end).map_or(0, |bound| 1_i64.saturating_sub(bound).max(0));
        let kept: BTreeSet<usize> = window.start.into_iter().chain([window.end]).collect();
        let (stream, places) = self.grouped(aggregate, stream, &keys, &kept)?;
        let Some(Attached { start, end, .. }) = stream.window else {
            return Err(not_yet(self.position(), "this window"));
        };
        // Only a start that the keys name distinguishes windows. An aggregate may read the start without that.
        let start = window.start.and(start).unwrap_or(end);
        let kind = KeyedWindowKind::Attached { start, end };
        self.keyed_window(aggregate, stream, (kind, behind_us), &places, &bounds)
    }

    /// Returns the rows with only the columns that an aggregate needs, and the indices of its keys.
    fn grouped(
        &mut self,
        aggregate: &Aggregate,
        stream: Stream,
        keys: &[&Expr],
        kept: &BTreeSet<usize>,
    ) -> Result<(Stream, Vec<usize>), SqlError> {
        let schema = aggregate.input.schema();
        let mut kept = kept.clone();
        kept.extend(used_columns(&aggregate.aggr_expr, schema).iter().filter_map(|column| {
            match stream.columns[*column] {
                Place::Column(place) => Some(place),
                _ => None,
            }
        }));
        self.with_expressions(stream, keys, schema, Some(&kept))
    }

    fn keyed_window(
        &mut self,
        aggregate: &Aggregate,
        stream: Stream,
        (kind, behind_us): (KeyedWindowKind, i64),
        places: &[usize],
        bounds: &[Option<Key>],
    ) -> Result<Stream, SqlError> {
        let (keys, group) = distinct(places, bounds);
        let aggregates = self.aggregates(aggregate, &stream)?;
        let spec = KeyedWindowSpec {
            input: stream.schema.clone(),
            keys: keys.clone(),
            window: kind,
            aggregates,
            phase: Phase::Whole,
            input_retracts: stream.changes,
            state_ttl_us: self.state_ttl_us,
        };
        let part = |phase| {
            let part = KeyedWindow::new(KeyedWindowSpec { phase, ..spec.clone() });
            part.map(|part| part.with_rows_behind(behind_us)).map_err(|error| self.builder.failed(error))
        };
        let whole = part(Phase::Whole)?;
        let schema = whole.output_schema().clone();
        let behind = if behind_us > 0 { format!(" behind {behind_us}") } else { String::new() };
        let what = |phase: Phase| {
            format!("{:?} {kind:?} {keys:?} {:?} {}{behind}", phase, spec.aggregates, spec.input_retracts)
        };
        let end = keys.len() + 1;
        // If rows carry their windows, each window is in one instance. A window that is made of panes needs all its
        // panes in one instance.
        let is_attached = matches!(kind, KeyedWindowKind::Attached { .. });
        let apart = match kind {
            KeyedWindowKind::Attached { end, .. } if keys.is_empty() => vec![end],
            _ => keys.clone(),
        };
        let (edge, partition) = self.builder.edge(&stream, &apart);
        // Partial states are sent instead of rows: always if all rows go to one instance; for keys as long as there is
        // less to send, which the operator measures. Finding a text among the states costs more than sending its row,
        // however few states there are.
        let is_cheap = |key: &usize| !stream.schema.field(*key).data_type().is_string();
        // If a sink takes refused rows, each late row must arrive by itself.
        let is_worthwhile = || {
            let is_less = !is_attached && !spec.aggregates.is_empty() && keys.iter().all(is_cheap);
            edge != EdgeKind::Forward && (keys.is_empty() || is_less)
        };
        let is_apart = self.part != Part::Whole || (self.is_burst && edge != EdgeKind::Forward);
        let is_reduced_first =
            !letters::are_kept(&self.sources) && whole.can_be_split() && (is_apart || is_worthwhile());
        // States are divided by all of the key.
        let partition = match is_reduced_first && edge == EdgeKind::Forward {
            true if apart.is_empty() => Partition::One,
            true => Partition::Keys(apart.clone()),
            false => partition,
        };
        let node = if is_reduced_first {
            let (partial, last) = (part(Phase::Partial)?, part(Phase::Final)?);
            let partial_schema = partial.partial_schema();
            let inputs = [(stream.node, 0, EdgeKind::Forward)];
            let node = self.builder.operator("window", &what(Phase::Partial), partial, partial_schema, &inputs);
            // In partial states the keys have the same indices as in the result, and the window is behind them.
            let edge = match (keys.len(), is_attached) {
                (0, false) => EdgeKind::Gather,
                (0, true) => EdgeKind::Hash(vec![end]),
                (keys, _) => EdgeKind::Hash((0..keys).collect()),
            };
            let inputs = [(node, 0, edge)];
            let states = self.builder.operator("window", &what(Phase::Final), last, schema.clone(), &inputs);
            let is_of_end = matches!(kind, KeyedWindowKind::Attached { start, end } if start == end);
            self.divided.push(Divided { rows: node, states, keys: keys.len(), is_of_end });
            states
        } else {
            self.builder.operator("window", &what(Phase::Whole), whole, schema.clone(), &[(stream.node, 0, edge)])
        };
        self.builder.changes.insert(node, false);
        let carried = match kind {
            KeyedWindowKind::Attached { start, end } => vec![start, end],
            _ => Vec::new(),
        };
        self.builder.divide(node, &[keys.as_slice(), &carried].concat(), &partition);
        let new = |column: usize| match kind {
            KeyedWindowKind::Attached { end: old, .. } if column == old => Some(end),
            KeyedWindowKind::Attached { start: old, .. } if column == old => Some(end - 1),
            _ => keys.iter().position(|key| *key == column),
        };
        let partition = match partition {
            Partition::Keys(columns) => {
                columns.into_iter().map(new).collect::<Option<Vec<_>>>().map_or(Partition::Any, Partition::Keys)
            }
            other => other,
        };
        let has_start = !matches!(kind, KeyedWindowKind::Attached { start, end } if start == end);
        let mut columns: Vec<Place> = group
            .iter()
            .map(|key| match *key {
                Key::Column(key) => Place::Column(key),
                Key::WindowStart => Place::Column(end - 1),
                Key::WindowEnd => Place::Column(end),
            })
            .collect();
        columns.extend((0..aggregate.aggr_expr.len()).map(|place| Place::Column(end + 1 + place)));
        let is_of_rows = matches!(kind, KeyedWindowKind::Count { .. });
        let by_event_time = !is_of_rows && !matches!(kind, KeyedWindowKind::ProcessingTumble { .. });
        let is_fixed = match (kind, stream.window) {
            (KeyedWindowKind::Attached { .. }, Some(window)) => window.has_fixed_width,
            _ => has_fixed_width(&kind),
        };
        let mut key: Vec<usize> = (0..keys.len()).collect();
        key.push(end);
        Ok(Stream {
            node,
            schema,
            columns,
            time: None,
            bounds: window_bounds(&kind, end - 1, end, behind_us).collect(),
            pending: None,
            window: by_event_time.then_some(Attached {
                start: has_start.then_some(end - 1),
                end,
                has_fixed_width: is_fixed,
            }),
            changes: false,
            partition,
            // Two windows of a number of rows may begin and end at the same times.
            key: (!is_of_rows).then_some(key),
            is_small: false,
        })
    }

    /// Plans GROUP BY and DISTINCT without a window.
    fn ungrouped_by_window(&mut self, aggregate: &Aggregate, stream: Stream) -> Result<Stream, SqlError> {
        let keys: Vec<&Expr> = aggregate.group_expr.iter().collect();
        let (stream, places) = self.grouped(aggregate, stream, &keys, &BTreeSet::new())?;
        let (keys, group) = distinct(&places, &vec![None; places.len()]);
        let aggregates = self.aggregates(aggregate, &stream)?;
        let at_once = if self.gives_at_once { " at once" } else { "" };
        let what = format!("{keys:?} {aggregates:?} {}{at_once}", stream.changes);
        let spec = KeyedAggregateSpec {
            input: stream.schema.clone(),
            keys: keys.clone(),
            aggregates,
            input_retracts: stream.changes,
            state_ttl_us: self.state_ttl_us(&stream, &keys),
        };
        // A result for a key follows a row of that key, so the bounds of keys hold for results. The greatest of times
        // is at least that of the row.
        let greatest = |aggregate: &AggregateSpec| match aggregate.arguments.as_slice() {
            [argument] if aggregate.function == AggregateFunction::Max && aggregate.filter.is_none() => {
                stream.bound_of(argument.downcast_ref::<Column>()?.index())
            }
            _ => None,
        };
        let bounds = keys.iter().map(|&key| stream.bound_of(key)).chain(spec.aggregates.iter().map(greatest));
        let bounds = bounds.enumerate().filter_map(|(column, bound)| Some((column, bound?))).collect();
        let mut keyed = KeyedAggregate::new(spec).map_err(|error| self.builder.failed(error))?;
        if self.gives_at_once {
            keyed = keyed.at_once();
        }
        let (schema, changes) = (keyed.output_schema().clone(), keyed.output_retracts());
        let (edge, partition) = self.builder.edge(&stream, &keys);
        let node = self.builder.operator("aggregate", &what, keyed, schema.clone(), &[(stream.node, 0, edge)]);
        self.builder.changes.insert(node, changes);
        self.builder.divide(node, &keys, &partition);
        let partition = match partition {
            Partition::Keys(columns) => {
                let new = |column: &usize| keys.iter().position(|key| key == column);
                columns.iter().map(new).collect::<Option<Vec<_>>>().map_or(Partition::Any, Partition::Keys)
            }
            other => other,
        };
        let mut columns: Vec<Place> = group
            .iter()
            .map(|key| match *key {
                Key::Column(key) => Place::Column(key),
                _ => Place::Absent,
            })
            .collect();
        columns.extend((0..aggregate.aggr_expr.len()).map(|place| Place::Column(keys.len() + place)));
        Ok(Stream {
            node,
            schema,
            columns,
            time: None,
            bounds,
            pending: None,
            window: None,
            changes,
            partition,
            key: Some((0..keys.len()).collect()),
            is_small: stream.is_small,
        })
    }

    fn aggregates(&self, aggregate: &Aggregate, stream: &Stream) -> Result<Vec<AggregateSpec>, SqlError> {
        let schema = aggregate.input.schema();
        aggregate.aggr_expr.iter().map(|call| self.aggregate_spec(call, schema, stream)).collect()
    }

    fn aggregate_spec(&self, call: &Expr, schema: &DFSchema, stream: &Stream) -> Result<AggregateSpec, SqlError> {
        let position = place_of(call).or(self.position());
        let Expr::AggregateFunction(call) = unaliased(call) else {
            return Err(not_yet(position, "this aggregate"));
        };
        let Some(PlannedAggregate { function, .. }) = call.func.inner().downcast_ref() else {
            return Err(not_yet(position, &format!("the aggregate {}", call.func.name())));
        };
        let AggregateFunctionParams { args, distinct, filter, order_by, null_treatment } = &call.params;
        if function.is_sequence() {
            return Err(one_by_one(*function, position));
        }
        if stream.changes && !function.takes_back() {
            let problem = format!("{function} cannot take back a row, and rows of this input may be taken back");
            let hint = match function {
                AggregateFunction::ApproxDistinct => {
                    "write count(DISTINCT x), or aggregate where rows are final, for example in windows"
                }
                _ => "aggregate where rows are final, for example in windows",
            };
            return Err(refused(position, problem).hint(hint));
        }
        // Without an event time, a retraction has the time of its own arrival, and not that of its row.
        let lacks_time = |source: &PlannedSource| source.declaration.changes() && source.event_time.is_none();
        if stream.changes && function.goes_by_time() && !distinct && self.sources.iter().any(lacks_time) {
            let hint = match function.is_list() {
                true => format!("declare an EVENT TIME in the source; or write {function}(DISTINCT x)"),
                false => "declare an EVENT TIME in the source".into(),
            };
            let problem = format!("{function} goes by event time, and rows that may be taken back have none here");
            return Err(refused(position, problem).hint(hint));
        }
        if !function.is_list() && !order_by.is_empty() || null_treatment.is_some() {
            let hint = match function {
                AggregateFunction::FirstValue | AggregateFunction::LastValue => {
                    "it goes by event time; for another order keep the first row: SELECT ... FROM (SELECT *, \
                     ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM t) WHERE n = 1"
                }
                _ => "leave it out: the order of the values makes no difference, and null is no value",
            };
            return Err(not_yet(position, &format!("ORDER BY or IGNORE NULLS in {function}")).hint(hint));
        }
        self.aggregate_of((*function, *distinct), args, order_by, filter.as_deref(), schema, stream)
    }

    /// Returns an aggregate over the rows of a stream: a function, and whether it is over distinct values. `order` is
    /// that of the values of a list.
    pub(super) fn aggregate_of(
        &self,
        (function, distinct): (AggregateFunction, bool),
        args: &[Expr],
        order: &[Sort],
        filter: Option<&Expr>,
        schema: &DFSchema,
        stream: &Stream,
    ) -> Result<AggregateSpec, SqlError> {
        use AggregateFunction as F;
        let position = args.first().map(place_of).unwrap_or_default().or(self.position());
        let function = match (function, distinct.then(|| function.over_distinct())) {
            (function, None) => function,
            (_, Some(Some(function))) => function,
            (function, Some(None)) => {
                return Err(not_yet(position, &format!("DISTINCT in {function}")).hint(format!(
                    "take the different values first: SELECT {function}(x) FROM (SELECT DISTINCT x FROM t)"
                )));
            }
        };
        if function.is_sequence() {
            check_constants(function, args, position)?;
        }
        // The count of a constant is the count of rows.
        let counts_rows = function == F::Count
            && matches!(args, [Expr::Literal(value, _)] if !matches!(value, ScalarValue::Null) && !value.is_null());
        let arguments = match counts_rows {
            true => Vec::new(),
            false if function.is_list() => lists::arguments(function, args, order, position)?,
            false => args.to_vec(),
        };
        let arguments: Vec<_> =
            arguments.iter().map(|one| self.physical(one, schema, stream)).collect::<Result<_, _>>()?;
        let filter = filter.map(|filter| self.physical(filter, schema, stream)).transpose()?;
        let texts: Vec<String> = arguments.iter().map(sql).collect();
        let name = match (function, texts.is_empty()) {
            (function, _) if function.is_over_distinct() => function.call(&texts.join(", ")),
            (_, true) => format!("{function}(*)"),
            (_, false) => format!("{function}({})", texts.join(", ")),
        };
        Ok(AggregateSpec { name, function, arguments, filter })
    }
}

/// Checks the constants of an aggregate that follows rows one by one.
fn check_constants(function: AggregateFunction, args: &[Expr], position: Position) -> Result<(), SqlError> {
    let fits = |argument: &Expr| {
        let Expr::Literal(value, _) = unaliased(argument) else { return false };
        match (function, value.cast_to(&DataType::Float64)) {
            (AggregateFunction::AvgLast, Ok(ScalarValue::Float64(Some(count)))) => {
                count.fract() == 0.0 && (1.0..=LAST_VALUES_MAX as f64).contains(&count)
            }
            (_, Ok(ScalarValue::Float64(Some(variance)))) => variance > 0.0 && variance.is_finite(),
            _ => false,
        }
    };
    if args.iter().skip(1).all(fits) {
        return Ok(());
    }
    Err(match function {
        AggregateFunction::AvgLast => {
            refused(position, format!("avg_last takes the last 1 to {LAST_VALUES_MAX} values, a constant number"))
                .hint("write for example avg_last(x, 5)")
        }
        _ => refused(position, "the variances of kalman are constants above 0")
            .hint("write for example kalman(x, 0.125, 0.32)"),
    })
}

/// Returns the distinct keys, and for each key of GROUP BY its kind. `places` are the indices of the keys that are no
/// bounds.
fn distinct(places: &[usize], bounds: &[Option<Key>]) -> (Vec<usize>, Vec<Key>) {
    let (mut keys, mut group) = (Vec::new(), Vec::with_capacity(bounds.len()));
    let mut places = places.iter();
    for bound in bounds {
        group.push(match bound {
            Some(bound) => *bound,
            None => {
                let place = *places.next().expect("there is a place for each key that is no bound");
                Key::Column(keys.iter().position(|known| *known == place).unwrap_or_else(|| {
                    keys.push(place);
                    keys.len() - 1
                }))
            }
        });
    }
    (keys, group)
}
