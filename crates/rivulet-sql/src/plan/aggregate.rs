//! Takes the aggregates out of an expression: each call becomes a column of the window's output. The rest of the
//! expression is computed from those columns when a window closes.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::ScalarValue;
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{BinaryExpr, Expr, Operator, ScalarUDF};
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_operators::{AggregateFunction, PlanError};

use super::call::{call_name, check_argument_count, given};
use super::expression::{ExpressionPlanner, no_condition};
use super::functions::{Found, REGISTRY};
use super::scalars::{array_of, json_of, list_key};
use super::types::{cast_to, result_type};
use super::walk::{for_each_child, replace_calls};
use crate::statement::Name;
use crate::value::type_name;
use crate::{Position, SqlError};

/// An aggregate of the SELECT or HAVING.
#[derive(Clone, Debug)]
pub(super) struct Aggregate {
    /// The name of its column.
    pub(super) column: String,
    pub(super) function: AggregateFunction,
    pub(super) arguments: Vec<Expr>,
    pub(super) filter: Option<Expr>,
    /// The column of its results.
    pub(super) field: Field,
    pub(super) position: Position,
}

/// The aggregates of one SELECT. An aggregate that is written several times is held once.
pub(super) struct Aggregates<'a> {
    planner: &'a ExpressionPlanner,
    pub(super) found: Vec<Aggregate>,
    /// Names of other columns, which columns of aggregates must not have.
    taken: Vec<String>,
}

impl<'a> Aggregates<'a> {
    /// Starts without aggregates. `planner` plans over the columns of the input; `taken` are the names of other
    /// columns.
    pub(super) fn new(planner: &'a ExpressionPlanner, taken: Vec<String>) -> Self {
        Self { planner, found: Vec::new(), taken }
    }

    /// Replaces every aggregate in a checked expression by the name of its column.
    pub(super) fn extract(&mut self, expression: &mut ast::Expr) -> Result<(), SqlError> {
        replace_calls(expression, &mut |call| match REGISTRY.find(&call_name(call)) {
            Found::Aggregate(aggregate) if call.over.is_none() => {
                self.register(aggregate, call, call.to_string().replace('"', "")).map(Some)
            }
            _ => Ok(None),
        })
    }

    fn register(
        &mut self,
        aggregate: AggregateFunction,
        call: &ast::Function,
        text: String,
    ) -> Result<String, SqlError> {
        let position = Position::from(call.name.span());
        let ast::FunctionArguments::List(list) = &call.args else {
            return Err(SqlError::new(position, format!("{} needs arguments", aggregate.name())));
        };
        let function = match list.duplicate_treatment {
            Some(ast::DuplicateTreatment::Distinct) => aggregate.over_distinct().unwrap_or(aggregate),
            _ => aggregate,
        };
        let arguments = list.args.iter().filter_map(|argument| match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => Some(expression),
            _ => None,
        });
        let arguments: Vec<&ast::Expr> = arguments.collect();
        let mut planned = Vec::with_capacity(arguments.len());
        for argument in &arguments {
            planned.push(widen(self.planner.plan_coerced(argument, position)?));
        }
        let field_of = |(value, data_type): &(Expr, DataType)| Arc::new(self.planner.field_of(value, "", data_type));
        let values: Vec<FieldRef> = planned.iter().map(field_of).collect();
        if function.is_list() {
            planned = self.list(function, list, planned, position)?;
        }
        if function == AggregateFunction::PercentileCont && planned.len() == 2 {
            planned[1] = fraction(planned[1].clone(), super::walk::start(arguments[1]).or(position))?;
        }
        let types: Vec<DataType> = planned.iter().map(|(_, data_type)| data_type.clone()).collect();
        let data_type = function.result_type(&types).map_err(|error| wrong_call(error, &types, position))?;
        let arguments: Vec<Expr> = planned.into_iter().map(|(expression, _)| expression).collect();
        let filter = match &call.filter {
            Some(condition) => Some(condition_of(self.planner, condition, "FILTER", position)?),
            None => None,
        };
        let same =
            |other: &&Aggregate| other.function == function && other.arguments == arguments && other.filter == filter;
        if let Some(known) = self.found.iter().find(same) {
            return Ok(known.column.clone());
        }
        let column = unique(text, &self.taken);
        self.taken.push(column.clone());
        let field = Field::new(&column, data_type, true);
        let field = match values.first() {
            _ if function.gives_json() => array_of(field, &values),
            Some(value) if function.gives_one_value() => field.with_metadata(value.metadata().clone()),
            _ => field,
        };
        self.found.push(Aggregate { column: column.clone(), function, arguments, filter, field, position });
        Ok(column)
    }
}

impl Aggregates<'_> {
    /// Plans the arguments of `array_agg` or `string_agg`: values as JSON or texts, the separator, and the key of ORDER
    /// BY.
    fn list(
        &self,
        function: AggregateFunction,
        call: &ast::FunctionArgumentList,
        mut arguments: Vec<(Expr, DataType)>,
        position: Position,
    ) -> Result<Vec<(Expr, DataType)>, SqlError> {
        let (name, usage, count) = match function.gives_json() {
            true => ("array_agg", "array_agg(value)", 1),
            false => ("string_agg", "string_agg(name, ', ')", 2),
        };
        check_argument_count(name, arguments.len(), count..=count, usage, position)?;
        if let Some((separator, _)) = arguments.get(1)
            && let Some(column) = separator.column_refs().iter().find(|column| !column.name.starts_with('$'))
        {
            let message = format!("the separator of string_agg cannot depend on the column '{}'", column.name);
            return Err(SqlError::new(position, message).hint("use a constant or a parameter"));
        }
        let value = arguments[0].0.clone();
        if function.gives_json() {
            let (value, data_type) = arguments.remove(0);
            if result_type(&data_type).is_none() {
                return Err(SqlError::new(position, format!("array_agg does not take {}", type_name(&data_type)))
                    .hint("convert it with CAST(... AS TEXT)"));
            }
            arguments.push((called(json_of(), vec![value]), DataType::Utf8));
        }
        let is_distinct = function.is_over_distinct();
        let orders = call.clauses.iter().filter_map(|clause| match clause {
            ast::FunctionArgumentClause::OrderBy(orders) => Some(orders),
            _ => None,
        });
        let (mut keys, mut options) = (Vec::new(), Vec::new());
        for order in orders.flatten() {
            let place = super::walk::start(&order.expr).or(position);
            let (key, data_type) = widen(self.planner.plan_coerced(&order.expr, place)?);
            if result_type(&data_type).is_none() {
                return Err(SqlError::new(place, format!("values are not ordered by {}", type_name(&data_type))));
            }
            if is_distinct && key != value {
                return Err(SqlError::new(place, format!("{name}(DISTINCT x) is ordered by x alone"))
                    .hint(format!("a value may come with several others; write {name}(DISTINCT x ORDER BY x DESC)")));
            }
            keys.push(key);
            options.push(sort_options(&order.options));
        }
        if is_distinct && keys.is_empty() {
            (keys, options) = (vec![value], vec![SortOptions::default()]);
        }
        if !keys.is_empty() {
            arguments.push((called(list_key(options), keys), DataType::Binary));
        }
        Ok(arguments)
    }
}

/// The order of values. Nulls are last in ascending and first in descending order, unless the clause says otherwise.
pub(super) fn sort_options(written: &ast::OrderByOptions) -> SortOptions {
    let descending = written.asc == Some(false);
    SortOptions { descending, nulls_first: written.nulls_first.unwrap_or(descending) }
}

fn called(function: Arc<ScalarUDF>, arguments: Vec<Expr>) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(function, arguments))
}

/// Returns `wanted`, followed by a number if that name is taken.
pub(super) fn unique(wanted: String, taken: &[String]) -> String {
    let is_free = |name: &String| !taken.contains(name);
    if is_free(&wanted) {
        return wanted;
    }
    (2..).map(|number| format!("{wanted} #{number}")).find(is_free).unwrap_or(wanted)
}

/// Plans a condition; `clause` is the word for messages.
pub(super) fn condition_of(
    planner: &ExpressionPlanner,
    condition: &ast::Expr,
    clause: &str,
    position: Position,
) -> Result<Expr, SqlError> {
    let (planned, data_type) = planner.plan_coerced(condition, position)?;
    check_condition(&data_type, clause, super::walk::start(condition).or(position))?;
    Ok(planned)
}

/// Fails unless values of this type are true or false.
pub(super) fn check_condition(data_type: &DataType, clause: &str, position: Position) -> Result<(), SqlError> {
    if matches!(data_type, DataType::Boolean | DataType::Null) {
        return Ok(());
    }
    Err(no_condition(clause, data_type).at(position))
}

/// Converts an argument to a type that operators keep: decimals to floating-point numbers, and so on.
pub(super) fn widen((expression, data_type): (Expr, DataType)) -> (Expr, DataType) {
    let kept = match &data_type {
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            DataType::Float64
        }
        DataType::Null => DataType::Float64,
        DataType::UInt64 => DataType::Int64,
        other => other.clone(),
    };
    (cast_to(expression, &data_type, &kept), kept)
}

/// Reads the fraction of `percentile_cont`: a constant, or an expression over parameters, from 0 to 1.
fn fraction((expression, data_type): (Expr, DataType), position: Position) -> Result<(Expr, DataType), SqlError> {
    if !data_type.is_numeric() {
        let message =
            format!("the fraction of percentile_cont must be a number, and this is {}", type_name(&data_type));
        return Err(SqlError::new(position, message).hint("write for example percentile_cont(value, 0.95)"));
    }
    if let Some(column) = expression.column_refs().iter().find(|column| !column.name.starts_with('$')) {
        let message = format!("the fraction of percentile_cont cannot depend on the column '{}'", column.name);
        return Err(SqlError::new(position, message).hint("use a constant or a parameter"));
    }
    if constant(&expression).is_some_and(|constant| !(0.0..=1.0).contains(&constant)) {
        return Err(SqlError::new(position, "the fraction of percentile_cont lies between 0 and 1")
            .hint("write for example percentile_cont(value, 0.95)"));
    }
    Ok((cast_to(expression, &data_type, &DataType::Float64), DataType::Float64))
}

/// Returns the number if the expression is a constant one, or the difference of two.
pub(super) fn constant(expression: &Expr) -> Option<f64> {
    match expression {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Minus, right }) => Some(constant(left)? - constant(right)?),
        Expr::Literal(ScalarValue::Float64(value), _) => *value,
        Expr::Literal(ScalarValue::Int64(value), _) => value.map(|value| value as f64),
        _ => None,
    }
}

/// Converts an operator's error about a call to an error with SQL's names of types.
pub(super) fn wrong_call(error: PlanError, types: &[DataType], position: Position) -> SqlError {
    match error {
        PlanError::ArgumentCount { function, expected, found, example } => {
            let arguments = if expected == 1 { "argument" } else { "arguments" };
            SqlError::new(position, format!("{function} takes {expected} {arguments}, and {}", given(found)))
                .hint(format!("write for example {example}"))
        }
        PlanError::ArgumentType { function, hint, .. } => {
            let names: Vec<String> = types.iter().map(type_name).collect();
            SqlError::new(position, format!("{function} does not take {}", names.join(", "))).hint(hint)
        }
        other => super::defect(other, position),
    }
}

/// Finds the name `name` in a checked expression, outside of aggregates, with its position.
pub(super) fn place_of(expression: &ast::Expr, name: &str) -> Option<Name> {
    fn search(expression: &mut ast::Expr, name: &str, found: &mut Option<Name>) {
        match expression {
            ast::Expr::Identifier(identifier) if identifier.value == name => {
                *found = found.take().or_else(|| Some(crate::parse::name_of(identifier)));
            }
            other => for_each_child(other, &mut |child| {
                search(child, name, found);
                if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }),
        }
    }
    let mut found = None;
    search(&mut expression.clone(), name, &mut found);
    found
}
