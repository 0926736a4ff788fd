//! Checked expressions to compiled ones. The planner of big queries plans them, with parameters as columns `$name`. Its
//! errors become ours, about the smallest part that is wrong.

use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::{DFSchema, DFSchemaRef};
use datafusion_expr::{Expr, ExprSchemable};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_sql::sqlparser::ast;
use rivulet_operators::Expressions;
use rivulet_relational::{Catalog, Problem, RelationalError};

use super::arithmetic::compile;
use super::constants::{check_constant_arguments, fold_constants};
use super::functions::REGISTRY;
use super::message::{plain_message, plain_text};
use super::time_constants::{check_interval, check_typed_string};
use super::walk::{for_each_child, start};
use crate::address::list;
use crate::value::{TYPE_NAMES, type_name};
use crate::{Position, SqlError};

/// The functions of applications. Aggregates and windows are taken out of expressions before they are planned.
static FUNCTIONS: LazyLock<Arc<Catalog>> =
    LazyLock::new(|| Arc::new(Catalog::new(REGISTRY.scalars(), [], fold_constants)));

/// Plans expressions over one set of columns.
pub(super) struct ExpressionPlanner(rivulet_relational::ExpressionPlanner);

impl ExpressionPlanner {
    /// Makes a planner over columns with these names and types.
    pub(super) fn new(fields: Vec<Field>) -> Result<Self, SqlError> {
        Ok(Self(over(&Schema::new(fields))?))
    }

    /// Returns the expression with names resolved and types not yet coerced, and its type. It can be coerced without
    /// error over the same columns.
    pub(super) fn plan(&self, expression: &ast::Expr, fallback: Position) -> Result<(Expr, DataType), SqlError> {
        let Typed { planned, data_type, .. } =
            self.typed(expression).map_err(|wrong| self.explain(expression, wrong, fallback))?;
        Ok((planned, data_type))
    }

    /// Returns the expression, planned and coerced, and its type.
    pub(super) fn plan_coerced(
        &self,
        expression: &ast::Expr,
        fallback: Position,
    ) -> Result<(Expr, DataType), SqlError> {
        let Typed { coerced, data_type, .. } =
            self.typed(expression).map_err(|wrong| self.explain(expression, wrong, fallback))?;
        Ok((coerced, data_type))
    }

    /// The column `name` of a planned expression whose values are converted to `data_type`. It is JSON or an array if
    /// the values are.
    pub(super) fn field_of(&self, planned: &Expr, name: &str, data_type: &DataType) -> Field {
        let field = Field::new(name, data_type.clone(), true);
        match planned.to_field(self.0.schema().as_ref()) {
            Ok((_, found)) if data_type.is_string() => field.with_metadata(found.metadata().clone()),
            _ => field,
        }
    }

    /// Returns a planned expression, coerced over these columns, and its type.
    pub(super) fn coerce_planned(&self, planned: Expr, position: Position) -> Result<(Expr, DataType), SqlError> {
        self.0.coerce(planned).map_err(|error| Wrong::constants(error).at(position))
    }

    /// Plans an expression, and makes sure that it can be compiled and that its constants are valid.
    fn typed(&self, expression: &ast::Expr) -> Result<Typed, Wrong> {
        let planned = self.0.plan(expression).map_err(Wrong::types)?;
        check_constant_arguments(&planned).map_err(Wrong::constants)?;
        let (coerced, data_type) = self.0.coerce(planned.clone()).map_err(Wrong::types)?;
        // Some errors, such as casts that do not exist, are found only by compiling.
        compile(&coerced, self.0.schema()).map_err(Wrong::types)?;
        self.0.simplify(coerced.clone()).map_err(Wrong::constants)?;
        Ok(Typed { planned, coerced, data_type })
    }

    /// Finds out what is wrong with an expression that the relational planner refused.
    fn explain(&self, expression: &ast::Expr, wrong: Wrong, fallback: Position) -> SqlError {
        explain(expression, wrong, fallback, &|part| self.typed(part).map(|typed| typed.data_type))
    }
}

/// An expression before and after its types were coerced, and its type.
struct Typed {
    planned: Expr,
    coerced: Expr,
    data_type: DataType,
}

/// Why an expression is refused.
pub(super) struct Wrong {
    error: RelationalError,
    /// Whether the reason is the types of its parts. DataFusion reports these in its own words.
    is_of_types: bool,
}

impl Wrong {
    /// Its types do not go together, unless the error is one of ours, which says what is wrong.
    pub(super) fn types(error: impl Into<RelationalError>) -> Self {
        let error = error.into();
        Self { is_of_types: matches!(error.problem, Problem::Foreign(_)), error }
    }

    /// Its constants are not valid.
    pub(super) fn constants(error: impl Into<RelationalError>) -> Self {
        Self { error: error.into(), is_of_types: false }
    }

    /// Whether the reason is a name.
    pub(super) fn is_of_name(&self) -> bool {
        !matches!(self.error.problem, Problem::UnknownType(_) | Problem::Other(_) | Problem::Foreign(_))
    }

    fn message(&self) -> String {
        let message = self.error.to_string();
        if matches!(self.error.problem, Problem::Foreign(_)) { plain_text(&message) } else { message }
    }

    /// The error at this position.
    pub(super) fn at(self, position: Position) -> SqlError {
        let sql_error = SqlError::new(position, self.message());
        match (self.error.hint, &self.error.problem) {
            (Some(hint), _) => sql_error.hint(hint),
            (None, Problem::UnknownType(name)) => {
                let hint = "types are TEXT, BIGINT, DOUBLE, DECIMAL, BOOLEAN, TIMESTAMP, DATE, TIME and INTERVAL";
                sql_error.suggest(name, TYPE_NAMES, hint)
            }
            (None, _) => sql_error,
        }
    }
}

/// Converts an error of the relational planner, with its own position if it has one.
pub(super) fn placed(error: RelationalError, fallback: Position) -> SqlError {
    let position = error.place.map(Position::from).unwrap_or_default().or(fallback);
    Wrong::constants(error).at(position)
}

/// The error for an expression that is not boolean where a condition is needed.
pub(super) fn no_condition(clause: &str, found: &DataType) -> Wrong {
    Wrong::constants(RelationalError {
        problem: Problem::Other(format!("{clause} needs a condition, and this is {}", type_name(found))),
        place: None,
        hint: Some("a condition is true or false, for example value > 3".into()),
    })
}

/// Explains what is wrong with an expression: finds the smallest part that is refused by itself. `type_of` returns the
/// type of a part.
pub(super) fn explain(
    expression: &ast::Expr,
    wrong: Wrong,
    fallback: Position,
    type_of: &dyn Fn(&ast::Expr) -> Result<DataType, Wrong>,
) -> SqlError {
    let (mut culprit, mut wrong) = (expression.clone(), wrong);
    let mut position = start(&culprit).or(fallback);
    loop {
        let mut inner = None;
        for_each_child(&mut culprit, &mut |child| match type_of(child) {
            Err(wrong) if !wrong.is_of_name() => {
                inner = Some((child.clone(), wrong));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        match inner {
            Some(found) => (culprit, wrong) = found,
            None => break,
        }
        position = start(&culprit).or(position);
    }
    let mut types: Vec<DataType> = Vec::new();
    match &culprit {
        ast::Expr::Case { operand: None, conditions, .. } if !wrong.is_of_types => {
            let is_condition =
                |one: &&ast::CaseWhen| matches!(type_of(&one.condition), Ok(DataType::Boolean | DataType::Null));
            let other = conditions.iter().find(|one| !is_condition(one));
            position = other.map(|one| start(&one.condition)).unwrap_or_default().or(position);
        }
        // These are CASE in other words.
        ast::Expr::Function(_)
            if !wrong.is_of_types && called_name(&culprit).is_some_and(|name| name.eq_ignore_ascii_case("if")) =>
        {
            for_each_child(&mut culprit.clone(), &mut |condition| {
                position = start(condition).or(position);
                ControlFlow::Break(())
            });
        }
        // In a CASE the results must go together, not the conditions.
        ast::Expr::Case { conditions, else_result, .. } => {
            let results = conditions.iter().map(|when| &when.result).chain(else_result.as_deref());
            types.extend(results.filter_map(|result| type_of(result).ok()));
        }
        _ => for_each_child(&mut culprit.clone(), &mut |child| {
            types.extend(type_of(child).ok());
            ControlFlow::Continue(())
        }),
    }
    let names: Vec<String> = types.iter().map(type_name).collect();
    let message = match &culprit {
        ast::Expr::Interval(interval) => {
            let error = check_interval(interval, position);
            return error.err().unwrap_or_else(|| wrong.at(position));
        }
        ast::Expr::TypedString(typed) => {
            let error = check_typed_string(typed, position);
            return error.err().unwrap_or_else(|| wrong.at(position));
        }
        _ if !wrong.is_of_types => return wrong.at(position),
        ast::Expr::BinaryOp { op, .. } if names.len() == 2 => {
            format!("the operator {op} does not take {} and {}", names[0], names[1])
        }
        ast::Expr::UnaryOp { op, .. } if names.len() == 1 => {
            format!("the operator {op} does not take {}", names[0])
        }
        called if called_name(called).is_some() => match (called_name(called).unwrap_or_default(), names.len()) {
            (name, 0) => format!("{name} needs arguments"),
            (name, _) => format!("{name} does not take ({})", names.join(", ")),
        },
        ast::Expr::Cast { data_type, .. } if names.len() == 1 => {
            format!("{} cannot be converted to {data_type}", names[0])
        }
        ast::Expr::Case { .. } => format!("the types in this CASE do not go together: {}", list(&names)),
        ast::Expr::Between { .. } | ast::Expr::InList { .. } => {
            format!("values of these types cannot be compared: {}", list(&names))
        }
        ast::Expr::Like { .. } | ast::Expr::ILike { .. } => format!("LIKE compares TEXT, not {}", list(&names)),
        _ => wrong.message(),
    };
    SqlError { hint: type_hint(&types).map(str::to_owned), ..SqlError::new(position, message) }
}

/// A hint for values of these types, which do not go together.
fn type_hint(types: &[DataType]) -> Option<&'static str> {
    let any = |test: fn(&DataType) -> bool| types.iter().any(test);
    if any(DataType::is_string) && any(DataType::is_numeric) {
        Some("write numbers without quotes; convert with CAST(... AS DOUBLE) or CAST(... AS TEXT)")
    } else if any(|data_type| matches!(data_type, DataType::Timestamp(..))) && any(DataType::is_numeric) {
        Some("write TIMESTAMP '...' for a time and INTERVAL '...' for a time span")
    } else {
        None
    }
}

/// The name of the function, also for functions that have a syntax of their own.
fn called_name(expression: &ast::Expr) -> Option<String> {
    Some(match expression {
        ast::Expr::Function(function) => function.name.to_string().trim_matches('"').to_owned(),
        ast::Expr::Extract { .. } => "extract".to_owned(),
        ast::Expr::Ceil { .. } => "ceil".to_owned(),
        ast::Expr::Floor { .. } => "floor".to_owned(),
        ast::Expr::Position { .. } => "position".to_owned(),
        ast::Expr::Substring { .. } => "substring".to_owned(),
        ast::Expr::Trim { .. } => "trim".to_owned(),
        ast::Expr::Overlay { .. } => "overlay".to_owned(),
        _ => return None,
    })
}

pub(super) fn df_schema(schema: &Schema) -> Result<DFSchemaRef, SqlError> {
    DFSchema::try_from(schema.clone())
        .map(Arc::new)
        .map_err(|error| SqlError::new(Position { line: 1, column: 1 }, plain_message(&error)))
}

/// Makes a planner over these columns.
fn over(schema: &Schema) -> Result<rivulet_relational::ExpressionPlanner, SqlError> {
    Ok(rivulet_relational::ExpressionPlanner::new(df_schema(schema)?, FUNCTIONS.clone()))
}

/// The columns for which an operator's expressions are compiled: its input columns, and the parameters they use.
pub(super) struct Compiler {
    columns: rivulet_relational::ExpressionPlanner,
    /// The used parameters, as indices in the slot table's schema.
    pub(super) parameters: Vec<usize>,
}

impl Compiler {
    /// Makes a compiler for expressions over the columns of `input` and the parameters that any of `expressions` uses.
    pub(super) fn new<'e>(
        input: &Schema,
        parameter_schema: &Schema,
        expressions: impl IntoIterator<Item = &'e Expr>,
    ) -> Result<Self, SqlError> {
        let mut used = vec![false; parameter_schema.fields().len()];
        for expression in expressions {
            for column in expression.column_refs() {
                if let Some(parameter) = parameter_index(parameter_schema, &column.name) {
                    used[parameter] = true;
                }
            }
        }
        let parameters: Vec<usize> = (0..used.len()).filter(|&parameter| used[parameter]).collect();
        let schema = Expressions::evaluation_schema(input, parameter_schema, &parameters);
        Ok(Self { columns: over(&schema)?, parameters })
    }

    /// Makes a compiler for expressions over all parameters and nothing else.
    pub(super) fn over_parameters(parameter_schema: &Schema) -> Result<Self, SqlError> {
        let parameters: Vec<usize> = (0..parameter_schema.fields().len()).collect();
        let schema = Expressions::evaluation_schema(&Schema::empty(), parameter_schema, &parameters);
        Ok(Self { columns: over(&schema)?, parameters })
    }

    /// Folds constants in a coerced expression, and compiles it for evaluation.
    pub(super) fn compile(&self, expression: Expr, position: Position) -> Result<Arc<dyn PhysicalExpr>, SqlError> {
        let simplified = self.columns.simplify(expression).map_err(|error| Wrong::constants(error).at(position))?;
        compile(&simplified, self.columns.schema()).map_err(|error| Wrong::constants(error).at(position))
    }
}

/// The index of the parameter whose column has this name.
pub(super) fn parameter_index(parameter_schema: &Schema, column: &str) -> Option<usize> {
    let name = column.strip_prefix('$')?;
    parameter_schema.index_of(name).ok()
}

/// The columns `$name` of all parameters.
pub(super) fn parameter_fields(parameter_schema: &SchemaRef) -> impl Iterator<Item = Field> + '_ {
    parameter_schema
        .fields()
        .iter()
        .map(|parameter| Field::new(format!("${}", parameter.name()), parameter.data_type().clone(), true))
}
