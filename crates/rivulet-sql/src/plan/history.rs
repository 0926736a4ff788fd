//! Takes the history functions (`lag`, `changed`, `hysteresis`, aggregates with OVER) out of an expression: each call
//! becomes a column that an operator appends to the rows. The rest of the expression is computed from those columns.

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_operators::history::LAG_ROWS_MAX;
use rivulet_operators::{
    AggregateFunction, AggregateSpec, History, HistoryColumn, HistoryFunction, NamedExpression, PlanError,
};

use super::aggregate::{check_condition, constant, unique, widen, wrong_call};
use super::call::{call_name, check_argument_count, usage_hint};
use super::expression::Compiler;
use super::functions::{Found, REGISTRY};
use super::results::is_column;
use super::types::{cast_to, result_type};
use super::walk::{replace_calls, start, try_each_child};
use super::window_results::Computed;
use crate::value::type_name;
use crate::{Position, SqlError};

/// Plans a checked expression over the rows that history functions read, and over the columns of other history
/// functions. The position is for errors whose own position is not known.
pub(super) type PlanExpression<'a> = dyn Fn(&ast::Expr, Position, &[Field]) -> Result<Computed, SqlError> + 'a;

/// The history functions of one SELECT. A function that is written several times is held once.
pub(super) struct Histories {
    partitions: Vec<Partition>,
    /// Names of other columns, which columns of history functions must not have.
    taken: Vec<String>,
    orders: Vec<RowOrder>,
}

/// An order in which history functions can have their rows.
pub(super) struct RowOrder {
    /// The column that ORDER BY names.
    pub(super) column: String,
    /// Whether this is the event time. Otherwise it is the order of arrival.
    pub(super) is_event_time: bool,
}

/// The functions with the same PARTITION BY and ORDER BY. They are one operator.
struct Partition {
    /// Whether rows are in order of event time, and not of arrival.
    by_event_time: bool,
    /// How deep history functions are nested in one of them, at most.
    depth: usize,
    keys: Vec<(String, Computed)>,
    calls: Vec<Call>,
}

struct Call {
    /// The name of its column.
    column: String,
    function: Function,
    arguments: Vec<Computed>,
    /// FILTER (WHERE ...) of an aggregate.
    filter: Option<Computed>,
    /// The type of its result.
    data_type: DataType,
    position: Position,
}

impl Call {
    fn expressions(&self) -> impl Iterator<Item = &Expr> {
        self.arguments.iter().chain(&self.filter).map(|argument| &argument.expression)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Over { aggregate: AggregateFunction, preceding: Option<usize> },
    Lag { rows: usize },
    Changed,
    Hysteresis,
}

impl Histories {
    /// Starts without functions; `taken` are the names of other columns, and `orders` those in which rows can be.
    pub(super) fn new(taken: Vec<String>, orders: Vec<RowOrder>) -> Self {
        Self { partitions: Vec::new(), taken, orders }
    }

    /// Replaces every history function in a checked expression by the name of its column.
    pub(super) fn extract(&mut self, expression: &mut ast::Expr, plan: &PlanExpression<'_>) -> Result<(), SqlError> {
        replace_calls(expression, &mut |call| match REGISTRY.find(&call_name(call)).looks_back(call.over.is_some()) {
            true => self.register(call, plan).map(Some),
            false => Ok(None),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Orders the operators so that each has the columns that it reads.
    pub(super) fn order(&mut self) {
        self.partitions.sort_by_key(|partition| partition.depth);
    }

    /// The columns of the functions.
    pub(super) fn fields(&self) -> Vec<Field> {
        let calls = self.partitions.iter().flat_map(|partition| &partition.calls);
        let field = |call: &Call| {
            let field = Field::new(&call.column, call.data_type.clone(), true);
            match (call.function, call.arguments.first()) {
                (Function::Lag { .. } | Function::Over { .. }, Some(value)) if call.data_type.is_string() => {
                    field.with_metadata(value.marks.clone())
                }
                _ => field,
            }
        };
        calls.map(field).collect()
    }

    /// All expressions over the rows that the functions read.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &Expr> {
        self.partitions.iter().flat_map(Partition::expressions)
    }

    /// The keys of each operator, in order.
    pub(super) fn keys(&self) -> Vec<Vec<Expr>> {
        self.partitions.iter().map(|one| one.keys.iter().map(key_expression).cloned().collect()).collect()
    }

    /// Makes the operators, in order, each with its description in SQL. `columns` are the input of the first one.
    pub(super) fn operators(
        &self,
        columns: &SchemaRef,
        parameter_schema: &SchemaRef,
    ) -> Result<Vec<(History, Vec<String>)>, SqlError> {
        let mut operators: Vec<(History, Vec<String>)> = Vec::with_capacity(self.partitions.len());
        for partition in &self.partitions {
            let columns = operators.last().map_or(columns, |(history, _)| history.output_schema());
            let history = partition.operator(columns, parameter_schema)?;
            operators.push((history, partition.calls.iter().map(|call| call.column.clone()).collect()));
        }
        Ok(operators)
    }

    /// What each operator does, in order. `meaning` writes the expressions.
    pub(super) fn meanings(&self, meaning: impl Fn(&Expr) -> String) -> Vec<Vec<String>> {
        let of_partition = |partition: &Partition| {
            let keys = partition.keys.iter().map(|key| format!("by {}", meaning(key_expression(key))));
            let keys = keys.chain(partition.by_event_time.then(|| "in order of event time".to_owned()));
            let calls = partition.calls.iter().map(|call| {
                let arguments: Vec<String> = call.expressions().map(&meaning).collect();
                let filtered = if call.filter.is_some() { "filtered " } else { "" };
                format!("{filtered}{:?}({})", call.function, arguments.join(", "))
            });
            keys.chain(calls).collect()
        };
        self.partitions.iter().map(of_partition).collect()
    }

    fn register(&mut self, call: &ast::Function, plan: &PlanExpression<'_>) -> Result<String, SqlError> {
        let position = Position::from(call.name.span());
        // History functions inside this one become columns first.
        let mut call = ast::Expr::Function(call.clone());
        try_each_child(&mut call, &mut |child| self.extract(child, plan))?;
        let ast::Expr::Function(call) = &call else { unreachable!("a call stays one") };
        let inner = self.fields();
        let plan = &|one: &ast::Expr, fallback: Position| plan(one, fallback, &inner);
        let (function, arguments, data_type) = match REGISTRY.find(&call_name(call)) {
            Found::Aggregate(aggregate) => over(aggregate, call, plan, position)?,
            _ => {
                let (function, arguments) = arguments(call, plan, position)?;
                let data_type = match function {
                    Function::Lag { .. } => arguments[0].data_type.clone(),
                    _ => DataType::Boolean,
                };
                (function, arguments, data_type)
            }
        };
        let filter = call.filter.as_ref().map(|filter| {
            let condition = plan(filter, position)?;
            check_condition(&condition.data_type, "FILTER", start(filter).or(position))?;
            Ok::<_, SqlError>(condition)
        });
        let keys = keys(call, plan, position)?;
        let by_event_time = self.is_by_event_time(call, plan, position)?;
        let column = unique(call.to_string().replace('"', ""), &self.taken);
        let new = Call { column, function, arguments, filter: filter.transpose()?, data_type, position };
        let used = keys.iter().map(key_expression).chain(new.expressions());
        let used: Vec<&str> =
            used.flat_map(|expression| expression.column_refs()).map(|column| column.name.as_str()).collect();
        let inside = self
            .partitions
            .iter()
            .filter(|partition| partition.calls.iter().any(|call| used.contains(&call.column.as_str())));
        let depth = inside.map(|partition| partition.depth + 1).max().unwrap_or(0);
        let same_keys = |partition: &&mut Partition| {
            (partition.depth, partition.by_event_time) == (depth, by_event_time)
                && partition.keys.iter().map(key_expression).eq(keys.iter().map(key_expression))
        };
        let partition = match self.partitions.iter_mut().find(same_keys) {
            Some(partition) => partition,
            None => {
                self.partitions.push(Partition { by_event_time, depth, keys, calls: Vec::new() });
                self.partitions.last_mut().expect("one was just added")
            }
        };
        let same = |other: &&Call| {
            (other.function, other.filter.is_some()) == (new.function, new.filter.is_some())
                && other.expressions().eq(new.expressions())
        };
        if let Some(known) = partition.calls.iter().find(same) {
            return Ok(known.column.clone());
        }
        let column = new.column.clone();
        self.taken.push(column.clone());
        partition.calls.push(new);
        Ok(column)
    }

    /// Whether ORDER BY in OVER names the event time. Rows are in order of arrival otherwise.
    fn is_by_event_time(
        &self,
        call: &ast::Function,
        plan: &dyn Fn(&ast::Expr, Position) -> Result<Computed, SqlError>,
        fallback: Position,
    ) -> Result<bool, SqlError> {
        let Some(ast::WindowType::WindowSpec(over)) = &call.over else { return Ok(false) };
        let Some(first) = over.order_by.first() else { return Ok(false) };
        let position = start(&first.expr).or(fallback);
        let Computed { expression, .. } = plan(&first.expr, position)?;
        let known = self.orders.iter().find(|order| is_column(&expression, &order.column));
        match known {
            Some(order)
                if over.order_by.len() == 1 && first.options.asc != Some(false) && first.with_fill.is_none() =>
            {
                Ok(order.is_event_time)
            }
            _ => {
                let message = "earlier rows are in order of arrival or of event time, ascending";
                let columns: Vec<&str> = self.orders.iter().map(|order| order.column.as_str()).collect();
                let instead = columns.join(" or ORDER BY ");
                Err(SqlError::new(position, message).hint(match columns.is_empty() {
                    true => "leave ORDER BY out; rows are in order of arrival".to_owned(),
                    false => format!("write ORDER BY {instead}, or leave it out; rows are in order of arrival then"),
                }))
            }
        }
    }
}

impl Partition {
    fn expressions(&self) -> impl Iterator<Item = &Expr> {
        self.keys.iter().map(key_expression).chain(self.calls.iter().flat_map(Call::expressions))
    }

    fn operator(&self, columns: &SchemaRef, parameter_schema: &SchemaRef) -> Result<History, SqlError> {
        let compiler = Compiler::new(columns, parameter_schema, self.expressions())?;
        let compile = |one: &Computed| compiler.compile(one.expression.clone(), one.position);
        let keys = self.keys.iter().map(|(name, key)| Ok(NamedExpression::new(name, compile(key)?)));
        let keys = keys.collect::<Result<Vec<_>, SqlError>>()?;
        let compile_call = |call: &Call| {
            let function = match (call.function, call.arguments.as_slice()) {
                (Function::Lag { rows }, [value]) => HistoryFunction::Lag { value: compile(value)?, rows },
                (Function::Changed, [value]) => HistoryFunction::Changed { value: compile(value)? },
                (Function::Hysteresis, [value, low, high]) => {
                    HistoryFunction::Hysteresis { value: compile(value)?, low: compile(low)?, high: compile(high)? }
                }
                (Function::Over { aggregate, preceding }, arguments) => {
                    let aggregate = AggregateSpec {
                        name: call.column.clone(),
                        function: aggregate,
                        arguments: arguments.iter().map(compile).collect::<Result<_, _>>()?,
                        filter: call.filter.as_ref().map(compile).transpose()?,
                    };
                    HistoryFunction::Over { aggregate, preceding }
                }
                _ => unreachable!("the number of arguments was checked"),
            };
            Ok(HistoryColumn { name: call.column.clone(), function })
        };
        let calls = self.calls.iter().map(compile_call).collect::<Result<Vec<_>, SqlError>>()?;
        let failed = |error: PlanError| super::defect(error, self.calls[0].position);
        let history =
            History::new(columns, parameter_schema, compiler.parameters.clone(), keys, calls).map_err(failed)?;
        Ok(if self.by_event_time { history.in_order_of_time() } else { history })
    }
}

fn key_expression((_, key): &(String, Computed)) -> &Expr {
    &key.expression
}

/// Reads what a call computes, and from which values.
fn arguments(
    call: &ast::Function,
    plan: &dyn Fn(&ast::Expr, Position) -> Result<Computed, SqlError>,
    position: Position,
) -> Result<(Function, Vec<Computed>), SqlError> {
    let name = call_name(call);
    let mut arguments = argument_list(call);
    let (usage, count) = match name.as_str() {
        "lag" => ("lag(value) or lag(value, 3)", 1..=2),
        "changed" => ("changed(value)", 1..=1),
        _ => ("hysteresis(value, 18, 22)", 3..=3),
    };
    check_argument_count(&name, arguments.len(), count, usage, position)?;
    let function = match name.as_str() {
        "lag" => Function::Lag { rows: arguments.get(1).map_or(Ok(1), |rows| lag_rows(rows, position))? },
        "changed" => Function::Changed,
        _ => Function::Hysteresis,
    };
    if let Function::Lag { .. } = function {
        arguments.truncate(1);
    }
    let planned = arguments.into_iter().map(|argument| {
        let place = start(argument).or(position);
        let Computed { expression, data_type, marks, .. } = plan(argument, position)?;
        let (expression, data_type) = widen((expression, data_type));
        let is_taken = match (function, &data_type) {
            (_, number) if number.is_numeric() => true,
            (Function::Hysteresis, _) => false,
            (_, DataType::Boolean | DataType::Timestamp(..) | DataType::Date32) => true,
            (_, other) => other.is_string(),
        };
        if !is_taken {
            return Err(
                SqlError::new(place, format!("{name} does not take {}", type_name(&data_type))).hint(usage_hint(usage))
            );
        }
        Ok(Computed { expression, data_type, position: place, marks })
    });
    let planned = planned.collect::<Result<Vec<_>, SqlError>>()?;
    if let [_, low, high] = planned.as_slice()
        && let (Some(low_value), Some(high_value)) = (constant(&low.expression), constant(&high.expression))
        && low_value > high_value
    {
        let message = format!("the low limit {low_value} of hysteresis lies above the high limit {high_value}");
        return Err(SqlError::new(low.position, message).hint("did you swap them? write hysteresis(value, low, high)"));
    }
    Ok((function, planned))
}

/// Reads an aggregate over earlier rows: what it computes, its arguments, and the type of its result.
fn over(
    aggregate: AggregateFunction,
    call: &ast::Function,
    plan: &dyn Fn(&ast::Expr, Position) -> Result<Computed, SqlError>,
    position: Position,
) -> Result<(Function, Vec<Computed>, DataType), SqlError> {
    let planned = argument_list(call).into_iter().map(|argument| {
        let Computed { expression, data_type, marks, .. } = plan(argument, position)?;
        let (expression, data_type) = widen((expression, data_type));
        Ok(Computed { expression, data_type, position: start(argument).or(position), marks })
    });
    let planned = planned.collect::<Result<Vec<_>, SqlError>>()?;
    let types: Vec<DataType> = planned.iter().map(|one| one.data_type.clone()).collect();
    let not_yet = |what: String| {
        Err(SqlError::new(position, format!("{what} with OVER is not supported yet")).hint(
            "count, min, max, and of numbers sum, avg, stddev and var are; lag(value, 4) is the value four rows before; for \
             others write GROUP BY count_window(5, 1)",
        ))
    };
    // The first and the last value go by event time, and not by the order of the rows.
    if aggregate.is_list() || matches!(aggregate, AggregateFunction::FirstValue | AggregateFunction::LastValue) {
        return not_yet(aggregate.name().to_owned());
    }
    let data_type = aggregate.result_type(&types).map_err(|error| wrong_call(error, &types, position))?;
    let is_extreme = matches!(aggregate, AggregateFunction::Min | AggregateFunction::Max);
    let is_extreme_text = is_extreme && types.iter().all(DataType::is_string);
    if !is_extreme_text && !aggregate.is_kept_in_numbers(&types) {
        let names: Vec<String> = types.iter().map(type_name).collect();
        return not_yet(format!("{} of {}", aggregate.name(), names.join(", ")));
    }
    let preceding = preceding_rows(call, position)?;
    Ok((Function::Over { aggregate, preceding }, planned, data_type))
}

/// The rows before its own that an aggregate sees; `None`: all.
fn preceding_rows(call: &ast::Function, position: Position) -> Result<Option<usize>, SqlError> {
    use ast::{WindowFrameBound as Bound, WindowFrameUnits as Units};
    const EXAMPLE: &str = "write for example OVER (PARTITION BY room ROWS 4 PRECEDING), over five rows, or ROWS \
                           UNBOUNDED PRECEDING, over all; for the rows of some time write GROUP BY hop(ts, slide, \
                           width)";
    let refuse = |message: String| Err(SqlError::new(position, message).hint(EXAMPLE));
    let Some(ast::WindowType::WindowSpec(over)) = &call.over else { return Ok(None) };
    let Some(frame) = &over.window_frame else {
        return refuse(format!("{} with OVER needs a frame, which says over how many rows", call_name(call)));
    };
    if !matches!(frame.units, Units::Rows) {
        return refuse(format!("a frame of {} is not supported yet", frame.units));
    }
    match (&frame.start_bound, &frame.end_bound) {
        (Bound::Preceding(None), None | Some(Bound::CurrentRow)) => Ok(None),
        (Bound::Preceding(Some(rows)), None | Some(Bound::CurrentRow)) => {
            match whole_number(rows).filter(|rows| *rows <= LAG_ROWS_MAX) {
                Some(rows) => Ok(Some(rows)),
                None => refuse(format!("a frame begins a constant number of rows before, 0 to {LAG_ROWS_MAX}")),
            }
        }
        (Bound::CurrentRow, None | Some(Bound::CurrentRow)) => Ok(Some(0)),
        _ => refuse("a frame begins before its row and ends with it or before it: later rows are not known".to_owned()),
    }
}

/// The arguments of a call that are expressions.
fn argument_list(call: &ast::Function) -> Vec<&ast::Expr> {
    let ast::FunctionArguments::List(list) = &call.args else { return Vec::new() };
    let expressions = list.args.iter().filter_map(|argument| match argument {
        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => Some(expression),
        _ => None,
    });
    expressions.collect()
}

pub(super) fn whole_number(expression: &ast::Expr) -> Option<usize> {
    match expression {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::Number(digits, _) => digits.parse::<usize>().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// The number of rows that `lag` looks back.
fn lag_rows(rows: &ast::Expr, fallback: Position) -> Result<usize, SqlError> {
    whole_number(rows).filter(|rows| (1..=LAG_ROWS_MAX).contains(rows)).ok_or_else(|| {
        let message = format!("lag looks back a constant number of rows, 1 to {LAG_ROWS_MAX}");
        SqlError::new(start(rows).or(fallback), message).hint("write for example lag(value, 3)")
    })
}

/// The keys of `OVER (PARTITION BY ...)`, with their texts.
fn keys(
    call: &ast::Function,
    plan: &dyn Fn(&ast::Expr, Position) -> Result<Computed, SqlError>,
    fallback: Position,
) -> Result<Vec<(String, Computed)>, SqlError> {
    let Some(ast::WindowType::WindowSpec(over)) = &call.over else { return Ok(Vec::new()) };
    let planned = over.partition_by.iter().map(|key| {
        let position = start(key).or(fallback);
        let Computed { expression, data_type, .. } = plan(key, position)?;
        let Some(kept) = result_type(&data_type) else {
            let message = format!("{} cannot be a key of PARTITION BY", type_name(&data_type));
            return Err(SqlError::new(position, message));
        };
        let expression = cast_to(expression, &data_type, &kept);
        Ok((key.to_string().replace('"', ""), Computed::new(expression, kept, position)))
    });
    planned.collect()
}
