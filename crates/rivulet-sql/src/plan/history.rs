//! Takes the history functions (`lag`, `changed`, `hysteresis`) out of an expression: each call becomes a column that
//! an operator appends to the rows. The rest of the expression is computed from those columns.

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_operators::history::LAG_ROWS_MAX;
use rivulet_operators::{History, HistoryColumn, HistoryFunction, NamedExpression, PlanError};

use super::aggregate::{constant, unique, widen};
use super::call::{call_name, check_argument_count, usage_hint};
use super::expression::Compiler;
use super::functions::{Found, REGISTRY};
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
}

/// The functions with the same PARTITION BY. They are one operator.
struct Partition {
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
    /// The type of its result.
    data_type: DataType,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Lag { rows: usize },
    Changed,
    Hysteresis,
}

impl Histories {
    /// Starts without functions; `taken` are the names of other columns.
    pub(super) fn new(taken: Vec<String>) -> Self {
        Self { partitions: Vec::new(), taken }
    }

    /// Replaces every history function in a checked expression by the name of its column.
    pub(super) fn extract(&mut self, expression: &mut ast::Expr, plan: &PlanExpression<'_>) -> Result<(), SqlError> {
        replace_calls(expression, &mut |call| match REGISTRY.find(&call_name(call)) {
            Found::History => self.register(call, plan).map(Some),
            _ => Ok(None),
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
        calls.map(|call| Field::new(&call.column, call.data_type.clone(), true)).collect()
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
            let calls = partition.calls.iter().map(|call| {
                let arguments: Vec<String> = call.arguments.iter().map(|one| meaning(&one.expression)).collect();
                format!("{:?}({})", call.function, arguments.join(", "))
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
        let (function, arguments) = arguments(call, plan, position)?;
        let data_type = match function {
            Function::Lag { .. } => arguments[0].data_type.clone(),
            Function::Changed | Function::Hysteresis => DataType::Boolean,
        };
        let keys = keys(call, plan, position)?;
        let used = keys.iter().map(key_expression).chain(arguments.iter().map(|argument| &argument.expression));
        let used: Vec<&str> =
            used.flat_map(|expression| expression.column_refs()).map(|column| column.name.as_str()).collect();
        let inside = self
            .partitions
            .iter()
            .filter(|partition| partition.calls.iter().any(|call| used.contains(&call.column.as_str())));
        let depth = inside.map(|partition| partition.depth + 1).max().unwrap_or(0);
        let same_keys = |partition: &&mut Partition| {
            partition.depth == depth && partition.keys.iter().map(key_expression).eq(keys.iter().map(key_expression))
        };
        let partition = match self.partitions.iter_mut().find(same_keys) {
            Some(partition) => partition,
            None => {
                self.partitions.push(Partition { depth, keys, calls: Vec::new() });
                self.partitions.last_mut().expect("one was just added")
            }
        };
        let same = |other: &&Call| {
            other.function == function
                && other.arguments.iter().map(|one| &one.expression).eq(arguments.iter().map(|one| &one.expression))
        };
        if let Some(known) = partition.calls.iter().find(same) {
            return Ok(known.column.clone());
        }
        let column = unique(call.to_string().replace('"', ""), &self.taken);
        self.taken.push(column.clone());
        partition.calls.push(Call { column: column.clone(), function, arguments, data_type });
        Ok(column)
    }
}

impl Partition {
    fn expressions(&self) -> impl Iterator<Item = &Expr> {
        let arguments = self.calls.iter().flat_map(|call| &call.arguments);
        self.keys.iter().map(key_expression).chain(arguments.map(|argument| &argument.expression))
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
                _ => unreachable!("the number of arguments was checked"),
            };
            Ok(HistoryColumn { name: call.column.clone(), function })
        };
        let calls = self.calls.iter().map(compile_call).collect::<Result<Vec<_>, SqlError>>()?;
        let failed = |error: PlanError| super::defect(error, self.calls[0].arguments[0].position);
        History::new(columns, parameter_schema, compiler.parameters.clone(), keys, calls).map_err(failed)
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
    let mut arguments: Vec<&ast::Expr> = Vec::new();
    if let ast::FunctionArguments::List(list) = &call.args {
        arguments.extend(list.args.iter().filter_map(|argument| match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => Some(expression),
            _ => None,
        }));
    }
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
        let Computed { expression, data_type, .. } = plan(argument, position)?;
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
        Ok(Computed { expression, data_type, position: place })
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

/// The number of rows that `lag` looks back.
fn lag_rows(rows: &ast::Expr, fallback: Position) -> Result<usize, SqlError> {
    let given = match rows {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::Number(digits, _) => digits.parse::<usize>().ok(),
            _ => None,
        },
        _ => None,
    };
    given.filter(|rows| (1..=LAG_ROWS_MAX).contains(rows)).ok_or_else(|| {
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
        Ok((key.to_string().replace('"', ""), Computed { expression, data_type: kept, position }))
    });
    planned.collect()
}
