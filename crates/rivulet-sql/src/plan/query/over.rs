//! OVER: the first rows of partitions by `ROW_NUMBER()`, `RANK()` and `DENSE_RANK()`; aggregates over the rows before
//! each row; `LAG()` and `LEAD()`.

use std::collections::BTreeSet;

use datafusion_common::{Column, DFSchema, ScalarValue};
use datafusion_expr::expr::{NullTreatment, Sort, WindowFunction, WindowFunctionParams};
use datafusion_expr::{
    BinaryExpr, Expr, Operator, Window, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition,
};
use rivulet_dataflow::EdgeKind;
use rivulet_operators::AggregateFunction;
use rivulet_operators::parallel::{KeyedOver, KeyedOverSpec, Lag, OverFrame, Ranking, SortKey, TopN, TopNSpec};
use rivulet_relational::functions::{LAG, LEAD};

use super::aggregates::PlannedAggregate;
use super::columns::{place_in, unaliased, used_columns, whole_number};
use super::error::{not_yet, place_of, refused};
use super::letters;
use super::lower::Lowering;
use super::stream::{Place, Stream, WINDOW_END};
use crate::value::{TIMESTAMP, interval_us};
use crate::{Position, SqlError};

const RANK_HINT: &str = "keep the first rows: SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM t) WHERE n <= 10";

/// The most first rows of a window that each instance takes before they are taken together. With more, it would hold
/// back most of them for nothing.
const PARTIAL_MAX: usize = 100;

impl Lowering {
    /// Returns the rows whose rank is at most a constant, if the conditions over window functions limit the rank.
    /// `above` maps the columns of the conditions to those of the window functions.
    pub(super) fn ranked(
        &mut self,
        window: &Window,
        above: &[usize],
        schema: &DFSchema,
        conjuncts: &[&Expr],
        wanted: &BTreeSet<usize>,
    ) -> Result<Option<Stream>, SqlError> {
        let [expression] = window.window_expr.as_slice() else { return Ok(None) };
        let Some((ranking, params)) = ranking(expression) else { return Ok(None) };
        let position = window_position(params).or(self.position());
        let rank = window.input.schema().fields().len();
        // The least bound is the limit. Conditions that say more than a bound stay.
        let mut limit: Option<i64> = None;
        let mut rest: Vec<&Expr> = Vec::new();
        for conjunct in conjuncts {
            match upper_bound(conjunct, |column| {
                schema.maybe_index_of_column(column).is_some_and(|place| above[place] == rank)
            }) {
                Some((bound, is_all)) => {
                    limit = Some(limit.map_or(bound, |known| known.min(bound)));
                    if !is_all {
                        rest.push(conjunct);
                    }
                }
                None => rest.push(conjunct),
            }
        }
        let Some(limit) = limit else {
            return Err(unbounded(ranking.name(), params, position));
        };
        // Ranks begin with 1. With a lower limit, the conditions themselves let no row through.
        if limit < 1 {
            rest = conjuncts.to_vec();
        }
        let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
        let asked = wanted.iter().copied().chain(used_columns(rest.iter().copied(), schema));
        let asked: BTreeSet<usize> = asked.map(|column| above[column]).collect();
        let with_rank = asked.contains(&rank);
        let used: BTreeSet<usize> = asked.into_iter().filter(|column| *column < rank).collect();
        let (stream, partition, order) = self.ordered(window, params, &used, position)?;
        if order.is_empty() {
            let name = ranking.name().to_uppercase();
            return Err(refused(position, format!("{name}() needs an order")).hint(RANK_HINT));
        }
        let what = format!("{partition:?} {order:?} {ranking:?} {limit} {with_rank} {}", stream.changes);
        let spec = TopNSpec {
            input: stream.schema.clone(),
            partition: partition.clone(),
            order,
            ranking,
            limit,
            with_rank,
            input_retracts: stream.changes,
            state_ttl_us: self.state_ttl_us(&stream, &partition),
        };
        let top = TopN::new(spec.clone()).map_err(|error| crate::plan::defect(error, position))?;
        let (rows, is_final) = (top.output_schema().clone(), top.is_final());
        let (edge, divided) = self.builder.edge(&stream, &partition);
        let mut from = stream.node;
        // Of the many rows of a window each instance sends those on that are among its own first ones.
        let is_of_window = is_final && partition.iter().all(|&column| stream.is_window_bound(column));
        let may_be_first = is_of_window && limit <= PARTIAL_MAX && !letters::are_kept(&self.sources);
        if may_be_first && edge != EdgeKind::Forward {
            let first = TopN::partial(spec).map_err(|error| crate::plan::defect(error, position))?;
            let inputs = [(from, 0, EdgeKind::Forward)];
            from = self.builder.operator("partial top-n", &what, first, stream.schema.clone(), &inputs);
        }
        let node = self.builder.operator("top-n", &what, top, rows.clone(), &[(from, 0, edge)]);
        self.builder.changes.insert(node, !is_final);
        self.builder.divide(node, &partition, &divided);
        let rank_place = stream.schema.fields().len();
        let mut key = partition;
        if limit > 1 {
            key.push(rank_place);
        }
        let mut columns = stream.columns.clone();
        columns.push(if with_rank { Place::Column(rank_place) } else { Place::Absent });
        let columns = above.iter().map(|&column| columns[column]).collect();
        let is_numbered = ranking == Ranking::RowNumber;
        let mut bounds = stream.bounds.clone();
        if is_final {
            // Rows wait for the end of their window. Their other times may be behind the watermark then.
            bounds.retain(|(column, _)| stream.is_window_bound(*column));
        } else if with_rank || stream.changes {
            // Otherwise a row comes out on arrival or never. Here it may come out later, when its rank changes.
            bounds.clear();
        }
        let ranked = Stream {
            node,
            schema: rows,
            columns,
            time: stream.time.filter(|_| is_final),
            bounds,
            changes: !is_final,
            partition: divided,
            key: (is_numbered && (limit == 1 || with_rank)).then_some(key),
            ..stream
        };
        self.filtered(ranked, &rest, schema).map(Some)
    }

    /// Plans aggregates over the rows before each row, and LAG and LEAD.
    pub(super) fn over(&mut self, window: &Window, wanted: &BTreeSet<usize>) -> Result<Stream, SqlError> {
        let schema = window.input.schema();
        let columns = schema.fields().len();
        let mut calls = Vec::with_capacity(window.window_expr.len());
        for expression in &window.window_expr {
            let Expr::WindowFunction(call) = unaliased(expression) else {
                return Err(not_yet(self.position(), "this window function"));
            };
            calls.push(self.over_call(call)?);
        }
        // One operator keeps the rows for all calls of LAG, so the longest distance counts.
        let lag_rows = calls.iter().filter_map(|call| match call.function {
            OverFunction::Lag { rows } => Some(u64::from(rows)),
            _ => None,
        });
        let preceding = lag_rows.max();
        for call in calls.iter_mut().filter(|call| matches!(call.function, OverFunction::Lag { .. })) {
            call.frame = OverFrame::Rows { preceding };
        }
        let Some(first) = calls.first() else { return Err(not_yet(self.position(), "this window function")) };
        let position = window_position(first.params).or(self.position());
        let mut used: BTreeSet<usize> = wanted.iter().copied().filter(|column| *column < columns).collect();
        let arguments = calls.iter().flat_map(|call| call.params.args.iter().chain(call.params.filter.as_deref()));
        used.extend(used_columns(arguments, schema));
        let (mut stream, partition, order) = self.ordered(window, first.params, &used, position)?;

        // The values that LAG and LEAD read become columns.
        let lagged: Vec<&Expr> = calls.iter().filter_map(OverCall::lagged).collect();
        let (with_lagged, lagged_places) = self.with_expressions(stream, &lagged, schema, None)?;
        stream = with_lagged;
        let mut lagged_places = lagged_places.into_iter();
        let lagged_places: Vec<Option<usize>> =
            calls.iter().map(|call| call.lagged().and_then(|_| lagged_places.next())).collect();
        let is_lead = |call: &OverCall<'_>| matches!(call.function, OverFunction::Lead { .. });

        // If the order is by event time, rows can wait for their turn. Any other order changes results that were
        // emitted.
        let leading = order.first().filter(|key| !key.descending).map(|key| key.column);
        let leading = leading.filter(|column| *stream.schema.field(*column).data_type() == TIMESTAMP);
        if let Some(time) = leading
            && !stream.changes
            && stream.time != Some(time)
            && stream.bound_of(time).is_some_and(|bound| bound >= 0)
        {
            stream = self.builder.with_event_time(stream, time)?;
        }
        let input_retracts = stream.changes || leading.is_none() || stream.time != leading;
        if let Some(example) = calls.iter().find_map(OverCall::in_order).filter(|_| input_retracts) {
            let name = example.split('(').next().unwrap_or_default();
            let what = match stream.changes {
                true => "over rows that may be taken back",
                false => "in another order than that of the event time",
            };
            let hint = format!(
                "write {example} OVER (PARTITION BY key ORDER BY ts), over a source whose event time is ts; over \
                 results of windows, order by window_end"
            );
            return Err(refused(position, format!("{name} {what} is not supported yet")).hint(hint));
        }
        let ahead_us = leading.and_then(|time| stream.bound_of(time)).map_or(0, |bound| bound.max(0));
        if !input_retracts && ahead_us > 0 {
            // Rows wait for the end of their window. Their other times may be behind the watermark then.
            let is_of_window = stream.window.is_some_and(|window| Some(window.end) == leading);
            let mut bounds = std::mem::take(&mut stream.bounds);
            bounds.retain(|(column, _)| Some(*column) == leading || is_of_window && stream.is_window_bound(*column));
            stream.bounds = bounds;
        }
        let (edge, divided) = self.builder.edge(&stream, &partition);
        let mut edge = Some(edge);
        let mut places: Vec<Option<usize>> = vec![None; calls.len()];
        let mut frames: Vec<OverFrame> = Vec::new();
        calls.iter().filter(|call| !is_lead(call)).for_each(|call| {
            if !frames.contains(&call.frame) {
                frames.push(call.frame)
            }
        });
        for frame in frames {
            let is_of_frame = |call: &usize| calls[*call].frame == frame && !is_lead(&calls[*call]);
            let of_frame: Vec<usize> = (0..calls.len()).filter(is_of_frame).collect();
            let (mut aggregates, mut lags, mut order_of_results) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
            for call in of_frame {
                let WindowFunctionParams { args, distinct, filter, order_by, .. } = calls[call].params;
                match (calls[call].function, lagged_places[call]) {
                    (OverFunction::Lag { rows }, Some(column)) => {
                        let name = format!("lag({}, {rows})", stream.schema.field(column).name());
                        lags.push(Lag { name, column, rows });
                        order_of_results[1].push(call);
                    }
                    (OverFunction::Lag { .. }, None) | (OverFunction::Lead { .. }, _) => {}
                    (OverFunction::Aggregate(function), _) => {
                        let filter = filter.as_deref();
                        // A list is in the order of the rows; different values have an order of their own.
                        let order: &[Sort] = if *distinct { &[] } else { order_by };
                        let function = (function, *distinct);
                        aggregates.push(self.aggregate_of(function, args, order, filter, schema, &stream)?);
                        order_of_results[0].push(call);
                    }
                }
            }
            let what = format!("{partition:?} {order:?} {frame:?} {aggregates:?} {lags:?} {input_retracts}");
            let spec = KeyedOverSpec {
                input: stream.schema.clone(),
                partition: partition.clone(),
                order: order.clone(),
                frame,
                aggregates,
                lags,
                input_retracts: input_retracts || stream.changes,
                state_ttl_us: self.state_ttl_us(&stream, &partition),
            };
            let over = KeyedOver::new(spec).map_err(|error| crate::plan::defect(error, position))?;
            let over = over.with_rows_ahead(ahead_us);
            let (rows, waits) = (over.output_schema().clone(), over.waits());
            let edge = edge.take().unwrap_or(EdgeKind::Forward);
            let node = self.builder.operator("over", &what, over, rows.clone(), &[(stream.node, 0, edge)]);
            self.builder.changes.insert(node, stream.changes || !waits);
            self.builder.divide(node, &partition, &divided);
            for (number, &call) in order_of_results.iter().flatten().enumerate() {
                places[call] = Some(stream.schema.fields().len() + number);
            }
            stream =
                Stream { node, schema: rows, changes: stream.changes || !waits, partition: divided.clone(), ..stream };
        }
        // LEAD comes last, because rows come out only after later ones have come.
        let (mut leads, first) = (Vec::new(), stream.schema.fields().len());
        for (at, call) in calls.iter().enumerate() {
            if let (OverFunction::Lead { rows }, Some(column)) = (call.function, lagged_places[at]) {
                let name = format!("lead({}, {rows})", stream.schema.field(column).name());
                places[at] = Some(first + leads.len());
                leads.push(Lag { name, column, rows });
            }
        }
        if let Some(most) = leads.iter().map(|lead| lead.rows).max() {
            let what = format!("{partition:?} {order:?} leads {leads:?}");
            let spec = KeyedOverSpec {
                input: stream.schema.clone(),
                partition: partition.clone(),
                order: order.clone(),
                frame: OverFrame::Rows { preceding: Some(u64::from(most) - 1) },
                aggregates: Vec::new(),
                lags: Vec::new(),
                input_retracts,
                state_ttl_us: self.state_ttl_us(&stream, &partition),
            };
            let over = KeyedOver::new(spec).and_then(|over| over.with_leads(leads));
            let over = over.map_err(|error| crate::plan::defect(error, position))?.with_rows_ahead(ahead_us);
            let rows = over.output_schema().clone();
            let edge = edge.take().unwrap_or(EdgeKind::Forward);
            let node = self.builder.operator("over", &what, over, rows.clone(), &[(stream.node, 0, edge)]);
            self.builder.changes.insert(node, false);
            self.builder.divide(node, &partition, &divided);
            let partition = divided.clone();
            stream = Stream { node, schema: rows, partition, time: None, bounds: Vec::new(), window: None, ..stream };
        }
        if stream.changes {
            (stream.time, stream.bounds) = (None, Vec::new());
        }
        stream.columns.extend(places.into_iter().map(|place| place.map_or(Place::Absent, Place::Column)));
        Ok(stream)
    }

    /// Returns the rows with the columns in `used` and those of PARTITION BY and ORDER BY, and the indices of the
    /// latter.
    fn ordered(
        &mut self,
        window: &Window,
        params: &WindowFunctionParams,
        used: &BTreeSet<usize>,
        position: Position,
    ) -> Result<(Stream, Vec<usize>, Vec<SortKey>), SqlError> {
        let schema = window.input.schema();
        let keys: Vec<&Expr> = params.partition_by.iter().chain(params.order_by.iter().map(|key| &key.expr)).collect();
        let mut used = used.clone();
        used.extend(used_columns(keys.iter().copied(), schema));
        let stream = self.lower(&window.input, &used)?;
        let stream = self.builder.with_windows(stream)?;
        if keys.iter().any(|key| place_in(key, schema, &stream) == Some(Place::Clock)) {
            return Err(not_yet(position, "an order by PROCTIME()").hint("order by the event time"));
        }
        let mut kept: BTreeSet<usize> = used
            .iter()
            .filter_map(|column| match stream.columns[*column] {
                Place::Column(place) => Some(place),
                _ => None,
            })
            .collect();
        kept.extend(stream.window.iter().flat_map(|window| window.start.into_iter().chain([window.end])));
        let (stream, places) = self.with_expressions(stream, &keys, schema, Some(&kept))?;
        let (partition, order) = places.split_at(params.partition_by.len());
        let order = order.iter().zip(&params.order_by).map(|(&column, Sort { asc, nulls_first, .. })| SortKey {
            column,
            descending: !asc,
            nulls_first: *nulls_first,
        });
        let mut partition = partition.to_vec();
        partition.dedup();
        let order = order.collect();
        Ok((stream, partition, order))
    }

    fn over_call<'e>(&self, call: &'e WindowFunction) -> Result<OverCall<'e>, SqlError> {
        let position = window_position(&call.params).or(self.position());
        let function = match &call.fun {
            WindowFunctionDefinition::AggregateUDF(function) => function.inner().downcast_ref::<PlannedAggregate>(),
            WindowFunctionDefinition::WindowUDF(function) if [LAG, LEAD].contains(&function.name()) => {
                let rows = rows_away(function.name(), &call.params, position)?;
                let (function, preceding) = match function.name() {
                    LAG => (OverFunction::Lag { rows }, rows),
                    _ => (OverFunction::Lead { rows }, rows - 1),
                };
                let frame = OverFrame::Rows { preceding: Some(preceding.into()) };
                return Ok(OverCall { function, params: &call.params, frame });
            }
            WindowFunctionDefinition::WindowUDF(function) => {
                return Err(unbounded(function.name(), &call.params, position));
            }
        };
        let Some(PlannedAggregate { function, .. }) = function else {
            return Err(not_yet(position, "this window function"));
        };
        if call.params.null_treatment == Some(NullTreatment::RespectNulls) {
            return Err(not_yet(position, &format!("RESPECT NULLS in {function}")));
        }
        let frame = self.frame(&call.params.window_frame, position)?;
        if function.is_sequence() && !matches!(frame, OverFrame::Rows { preceding: None }) {
            let problem = format!("{function} follows all rows of a partition, and this frame has not all");
            return Err(refused(position, problem).hint("write ROWS UNBOUNDED PRECEDING behind ORDER BY ts"));
        }
        Ok(OverCall { function: OverFunction::Aggregate(*function), params: &call.params, frame })
    }

    fn frame(&self, frame: &WindowFrame, position: Position) -> Result<OverFrame, SqlError> {
        const HINT: &str = "write ROWS BETWEEN 10 PRECEDING AND CURRENT ROW, or RANGE BETWEEN INTERVAL '1 minute' PRECEDING AND CURRENT ROW";
        match frame.end_bound {
            WindowFrameBound::CurrentRow => {}
            // One of ROWS is a LAG by now, unless it ends before it begins.
            WindowFrameBound::Preceding(_) => {
                let hint =
                    "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING are the three rows before; a RANGE ends with its row";
                return Err(not_yet(position, "this frame, which ends before its own row,").hint(hint));
            }
            WindowFrameBound::Following(_) => {
                let problem = "a frame that ends behind its own row would look at rows that have not come yet";
                return Err(refused(position, problem).hint(HINT));
            }
        }
        let WindowFrameBound::Preceding(preceding) = &frame.start_bound else {
            return Err(not_yet(position, "a frame that begins at its own row").hint(HINT));
        };
        match (frame.units, preceding) {
            (WindowFrameUnits::Rows, ScalarValue::UInt64(rows)) => Ok(OverFrame::Rows { preceding: *rows }),
            (WindowFrameUnits::Range, value) if value.is_null() => Ok(OverFrame::Range { preceding_us: None }),
            (WindowFrameUnits::Range, ScalarValue::IntervalMonthDayNano(Some(value))) => match interval_us(*value) {
                Some(us) => Ok(OverFrame::Range { preceding_us: Some(us) }),
                None => Err(refused(position, "the length of a frame has months in it").hint("write it in days")),
            },
            _ => Err(not_yet(position, "this frame").hint(HINT)),
        }
    }
}

/// A function over other rows, for each row.
#[derive(Clone, Copy)]
enum OverFunction {
    Aggregate(AggregateFunction),
    /// The value this many rows before.
    Lag {
        rows: u32,
    },
    /// The value this many rows behind.
    Lead {
        rows: u32,
    },
}

struct OverCall<'e> {
    function: OverFunction,
    params: &'e WindowFunctionParams,
    frame: OverFrame,
}

impl<'e> OverCall<'e> {
    /// The expression whose value is read from another row.
    fn lagged(&self) -> Option<&'e Expr> {
        self.params.args.first().filter(|_| !matches!(self.function, OverFunction::Aggregate(_)))
    }

    /// An example of the call, if the function follows rows in their order.
    fn in_order(&self) -> Option<&'static str> {
        match self.function {
            OverFunction::Lag { .. } => Some("LAG(x)"),
            OverFunction::Lead { .. } => Some("LEAD(x)"),
            OverFunction::Aggregate(AggregateFunction::FirstValue) => Some("first_value(x)"),
            OverFunction::Aggregate(AggregateFunction::LastValue) => Some("last_value(x)"),
            OverFunction::Aggregate(AggregateFunction::Kalman) => Some("kalman(x, 0.125, 0.32)"),
            OverFunction::Aggregate(AggregateFunction::AvgLast) => Some("avg_last(x, 5)"),
            OverFunction::Aggregate(_) => None,
        }
    }
}

/// The most rows that LAG may look back, as in applications, and LEAD may look ahead.
const ROWS_AWAY_MAX: i64 = 100;

/// How many rows a call of LAG looks back, or a call of LEAD looks ahead.
fn rows_away(name: &str, params: &WindowFunctionParams, position: Position) -> Result<u32, SqlError> {
    let name = name.to_uppercase();
    if params.null_treatment.is_some() || params.filter.is_some() || params.distinct {
        return Err(not_yet(position, &format!("IGNORE NULLS, FILTER or DISTINCT in {name}")));
    }
    let rows = match params.args.as_slice() {
        [_] => Some(1),
        [_, rows] => whole_number(rows),
        _ => {
            return Err(not_yet(position, &format!("a default in {name}"))
                .hint(format!("write COALESCE({name}(x, 1) OVER (...), default)")));
        }
    };
    let rows = rows.filter(|rows| (1..=ROWS_AWAY_MAX).contains(rows)).and_then(|rows| u32::try_from(rows).ok());
    rows.ok_or_else(|| {
        let way = if name == "LAG" { "back" } else { "ahead" };
        refused(position, format!("{name} looks 1 to {ROWS_AWAY_MAX} rows {way}"))
            .hint(format!("write for example {name}(x, 3)"))
    })
}

fn unbounded(name: &str, params: &WindowFunctionParams, position: Position) -> SqlError {
    let name = name.to_uppercase();
    // The bound of a window in GROUP BY is called by its function: `tumble_end(...)`.
    let is_bound = |name: &str| name == WINDOW_END || name.contains("_end(");
    let is_end = |key: &Expr| matches!(unaliased(key), Expr::Column(column) if is_bound(&column.name));
    match params.partition_by.iter().any(is_end) {
        true => refused(position, format!("{name}() needs a bound, also within a window")).hint(format!(
            "any number will do: SELECT ... FROM (SELECT *, {name}() OVER (PARTITION BY window_start, window_end \
             ORDER BY v DESC) AS n FROM m) WHERE n <= 1000, where m is the query with the window"
        )),
        false => refused(position, format!("{name}() without a bound would number rows without end")).hint(RANK_HINT),
    }
}

/// The ranking function of an expression, and its OVER.
fn ranking(expression: &Expr) -> Option<(Ranking, &WindowFunctionParams)> {
    let Expr::WindowFunction(call) = unaliased(expression) else { return None };
    let WindowFunctionDefinition::WindowUDF(function) = &call.fun else { return None };
    let rankings = [Ranking::RowNumber, Ranking::Rank, Ranking::DenseRank];
    let ranking = rankings.into_iter().find(|ranking| ranking.name() == function.name())?;
    Some((ranking, &call.params))
}

/// The position of a window function: that of the first column of its OVER.
fn window_position(params: &WindowFunctionParams) -> Position {
    let keys = params.args.iter().chain(&params.partition_by).chain(params.order_by.iter().map(|key| &key.expr));
    keys.map(place_of).find(|position| position.is_known()).unwrap_or_default()
}

/// The greatest rank that a condition lets through, and whether it lets all ranks up to that through.
fn upper_bound(condition: &Expr, is_rank: impl Fn(&Column) -> bool) -> Option<(i64, bool)> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = condition else { return None };
    let is_rank = |one: &Expr| matches!(unaliased(one), Expr::Column(column) if is_rank(column));
    let (op, number) = match (is_rank(left), is_rank(right)) {
        (true, false) => (*op, whole_number(right)?),
        (false, true) => (op.swap()?, whole_number(left)?),
        _ => return None,
    };
    match op {
        Operator::LtEq => Some((number, true)),
        Operator::Lt => Some((number.checked_sub(1)?, true)),
        Operator::Eq => Some((number, number == 1)),
        _ => None,
    }
}
