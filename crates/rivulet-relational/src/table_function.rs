//! Windows in FROM: `TUMBLE(t, DESCRIPTOR(ts), INTERVAL '1 minute')`, over a name, a subquery or another window, with
//! arguments by position or by name (`DATA => t, TIMECOL => DESCRIPTOR(ts), SIZE => ...`).

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{DFSchema, ExprSchema, Result};
use datafusion_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_sql::sqlparser::ast::{
    self, FunctionArg, FunctionArgExpr, FunctionArgOperator, FunctionArguments, ObjectName, Spanned, TableFactor,
    TableVersion,
};

use crate::error::{RelationalError, place_of};
use crate::functions::WINDOWS;
use crate::matches::{Matches, ROW_PATTERN, RowPattern};
use crate::unnest;
use crate::versions;
use crate::window::{WindowKind, WindowTable, interval_us};

const EXAMPLE: &str = "write for example TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 minute')";

/// Plans what stands in FROM beside names and subqueries: windows, row patterns, UNNEST, and versions.
#[derive(Debug, Default)]
pub(crate) struct TableFunctions {
    /// The row patterns of the query.
    pub(crate) patterns: Vec<Arc<dyn RowPattern>>,
}

impl TableFunctions {
    /// Plans `row_pattern(t, 0)`.
    fn plan_pattern(&self, args: Vec<FunctionArg>, context: &mut dyn RelationPlannerContext) -> Result<LogicalPlan> {
        let fail = || RelationalError::new("MATCH_RECOGNIZE stands behind the name of a relation in FROM").boxed();
        let mut values = args.into_iter().filter_map(|argument| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
            _ => None,
        });
        let (Some(rows), Some(number)) = (values.next().and_then(relation_of), values.next()) else {
            return Err(fail());
        };
        let pattern = number.to_string().parse::<usize>().ok().and_then(|number| self.patterns.get(number));
        let rows = Arc::new(context.plan(rows)?);
        Ok(Matches::new(rows, pattern.ok_or_else(fail)?.clone())?.into_plan())
    }
}

impl RelationPlanner for TableFunctions {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        match relation {
            TableFactor::Table { name, alias, args: Some(args), .. } => {
                let plan = match name.to_string() == ROW_PATTERN {
                    true => self.plan_pattern(args.args, context)?,
                    false => plan_call(&name, args.args, context)?.into_plan(),
                };
                Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
            }
            TableFactor::Table { name, alias, version: Some(TableVersion::ForSystemTimeAsOf(time)), .. } => {
                let plan = versions::plan(table(name, None), time, context)?;
                Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
            }
            unnest @ TableFactor::UNNEST { .. } => {
                let plan = unnest::plan(unnest, context)?;
                Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, None))))
            }
            other => Ok(RelationPlanning::Original(Box::new(other))),
        }
    }
}

/// The arguments of a window.
#[derive(Default)]
struct Arguments {
    data: Option<ast::Expr>,
    time: Option<ast::Expr>,
    partition: Option<Vec<ast::Expr>>,
    lengths: Vec<ast::Expr>,
    /// By name: step or slide, size, gap, offset.
    named: Vec<(String, ast::Expr)>,
}

fn plan_call(
    name: &ObjectName,
    args: Vec<FunctionArg>,
    context: &mut dyn RelationPlannerContext,
) -> Result<WindowTable> {
    let span = name.span().start;
    let at = |mut error: RelationalError| {
        error.place = error.place.or((span.line > 0).then_some((span.line, span.column)));
        error.boxed()
    };
    let fail = |message: String| at(RelationalError::new(message).hint(EXAMPLE));
    let window = name.to_string().to_lowercase();
    if !WINDOWS.contains(&window.as_str()) {
        return Err(fail(format!("unknown table function '{window}'")));
    }
    let arguments = read(args).map_err(fail)?;
    let data = arguments.data.ok_or_else(|| fail(format!("{window} needs a table")))?;
    let data_text = data.to_string();
    let relation = relation_of(data).ok_or_else(|| fail(format!("{window} takes a table, not {data_text}")))?;
    let input = Arc::new(context.plan(relation)?);

    let time = arguments.time.ok_or_else(|| fail(format!("{window} needs DESCRIPTOR with the column of the time")))?;
    let time = context.sql_to_expr(time, input.schema())?;
    let partition = match arguments.partition {
        None => None,
        Some(_) if window != "session" => {
            return Err(at(RelationalError::new(format!("{window} has no PARTITION BY"))
                .hint("add the columns to GROUP BY, beside window_start and window_end")));
        }
        Some(keys) => {
            Some(keys.into_iter().map(|key| context.sql_to_expr(key, input.schema())).collect::<Result<Vec<_>>>()?)
        }
    };
    let mut lengths = Vec::new();
    for length in arguments.lengths.into_iter().chain(in_order(&window, arguments.named).map_err(fail)?) {
        let text = length.to_string();
        let planned = context.sql_to_expr(length, &DFSchema::empty())?;
        lengths.push(
            interval_us(&planned).ok_or_else(|| {
                fail(format!("the length {text} of the window is no constant INTERVAL of fixed length"))
            })?,
        );
    }
    let kind = WindowKind::new(&window, &lengths).map_err(|error| at(error.into()))?;
    check_time(&time, input.schema()).map_err(&at)?;
    // Without PARTITION BY all rows are in one sequence of sessions.
    let partition = partition.or(Some(Vec::new()));
    WindowTable::new(input, kind, Some(time), partition, ["window_start".into(), "window_end".into()])
        .map_err(|error| at(error.into()))
}

/// Fails unless the time is a column of type TIMESTAMP.
pub(crate) fn check_time(time: &Expr, schema: &DFSchema) -> Result<(), RelationalError> {
    let place = place_of(time);
    let Expr::Column(column) = time else {
        let error = RelationalError::new("the time of a window is a column");
        return Err(RelationalError { place, ..error }.hint("compute it in a subquery, under a name"));
    };
    match schema.field_from_column(column) {
        Ok(field) if matches!(field.data_type(), DataType::Timestamp(..)) => Ok(()),
        Ok(_) => Err(RelationalError {
            place,
            ..RelationalError::new(format!("the time '{}' of a window must be a TIMESTAMP", column.name))
        }
        .hint("declare it in the source: ts TIMESTAMP EVENT TIME")),
        Err(error) => Err(RelationalError { place, ..error.into() }),
    }
}

/// Sorts the arguments by what they mean.
fn read(args: Vec<FunctionArg>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    for argument in args {
        let (name, value) = match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => (None, value),
            FunctionArg::Named {
                name,
                arg: FunctionArgExpr::Expr(value),
                operator: FunctionArgOperator::RightArrow,
            } => (Some(name.value.to_lowercase()), value),
            FunctionArg::ExprNamed {
                name: ast::Expr::Identifier(name),
                arg: FunctionArgExpr::Expr(value),
                operator: FunctionArgOperator::RightArrow,
            } => (Some(name.value.to_lowercase()), value),
            other => return Err(format!("'{other}' is no argument of a window")),
        };
        let called = |value: &ast::Expr, word: &str| match value {
            ast::Expr::Function(function) => function.name.to_string().eq_ignore_ascii_case(word),
            _ => false,
        };
        match name.as_deref() {
            _ if called(&value, "partition_by") => arguments.partition = Some(arguments_of(value)),
            None | Some("timecol") if called(&value, "descriptor") => match arguments_of(value).as_slice() {
                [time] => arguments.time = Some(time.clone()),
                _ => return Err("DESCRIPTOR has one column".to_owned()),
            },
            None if arguments.data.is_none() => arguments.data = Some(value),
            Some("data") => arguments.data = Some(value),
            None => arguments.lengths.push(value),
            Some(name @ ("slide" | "step" | "size" | "gap" | "offset")) => {
                arguments.named.push((name.to_owned(), value))
            }
            Some(other) => return Err(format!("unknown argument '{other}' of a window")),
        }
    }
    Ok(arguments)
}

/// The arguments of a call.
fn arguments_of(call: ast::Expr) -> Vec<ast::Expr> {
    let ast::Expr::Function(ast::Function { args: FunctionArguments::List(list), .. }) = call else {
        return Vec::new();
    };
    let value = |argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
        _ => None,
    };
    list.args.into_iter().filter_map(value).collect()
}

/// The named lengths, in the order in which they are written without names.
fn in_order(window: &str, mut named: Vec<(String, ast::Expr)>) -> Result<Vec<ast::Expr>, String> {
    let order: &[&str] = match window {
        "tumble" => &["size", "offset"],
        "hop" => &["slide", "size", "offset"],
        "cumulate" => &["step", "size", "offset"],
        _ => &["gap"],
    };
    let mut lengths = Vec::with_capacity(named.len());
    for name in order {
        if let Some(place) = named.iter().position(|(found, _)| found == name) {
            lengths.push(named.swap_remove(place).1);
        }
    }
    match named.first() {
        Some((name, _)) => Err(format!("{window} has no argument '{name}'")),
        None => Ok(lengths),
    }
}

/// The relation that an argument names.
fn relation_of(data: ast::Expr) -> Option<TableFactor> {
    Some(match data {
        ast::Expr::Identifier(name) => table(ObjectName::from(vec![name]), None),
        ast::Expr::CompoundIdentifier(names) => table(ObjectName::from(names), None),
        ast::Expr::Subquery(subquery) => TableFactor::Derived { lateral: false, subquery, alias: None, sample: None },
        ast::Expr::Function(ast::Function { name, args: FunctionArguments::List(list), .. }) => {
            table(name, Some(ast::TableFunctionArgs { args: list.args, settings: None }))
        }
        ast::Expr::Nested(inner) => return relation_of(*inner),
        _ => return None,
    })
}

fn table(name: ObjectName, args: Option<ast::TableFunctionArgs>) -> TableFactor {
    TableFactor::Table {
        name,
        alias: None,
        args,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}
