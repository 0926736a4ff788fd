//! What DEFINE and MEASURES read: columns of rows of the match (`B.value`, `LAST(B.value, 1)`), aggregates over them,
//! and the match itself. Each becomes a column, and the rest of the expression is computed from those columns.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Field};
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_operators::pattern::NAVIGATION_ROWS_MAX;
use rivulet_operators::{Navigation, PatternAggregate, Source};

use super::super::aggregate::{unique, widen};
use super::super::call::{call_name, check_argument_count, usage_hint};
use super::super::check::{Place, Scope};
use super::super::expression::ExpressionPlanner;
use super::super::functions::{Found, REGISTRY};
use super::super::history::whole_number;
use super::super::walk::{start, try_each_child};
use crate::parse::name_of;
use crate::statement::Name;
use crate::value::type_name;
use crate::{Position, SqlError};

/// The functions that read the match, besides aggregates.
const FUNCTIONS: [&str; 6] = ["first", "last", "prev", "next", "classifier", "match_number"];

/// The aggregates over rows of a match.
const AGGREGATES: [(&str, PatternAggregate); 5] = [
    ("count", PatternAggregate::Count),
    ("sum", PatternAggregate::Sum),
    ("avg", PatternAggregate::Avg),
    ("min", PatternAggregate::Min),
    ("max", PatternAggregate::Max),
];

/// The function of a part of a value: `A.sensors['t']`, spelled out.
const PART: &str = "array_element";

/// The values that are kept for each row, and the meaning of names.
pub(super) struct References<'a> {
    /// The variables of the pattern.
    pub(super) variables: &'a [Name],
    /// The names in single rows.
    pub(super) scope: &'a Scope<'a>,
    /// Plans over single rows.
    pub(super) rows: &'a ExpressionPlanner,
    /// The values that are kept for each row.
    pub(super) values: Vec<KeptValue>,
}

/// A value that is kept for each row.
pub(super) struct KeptValue {
    pub(super) expression: Expr,
    data_type: DataType,
    /// The marks of JSON of its values.
    marks: HashMap<String, String>,
    pub(super) position: Position,
}

/// The columns that an expression is computed from. A column that is written several times is held once.
pub(super) struct Sources {
    pub(super) found: Vec<(Field, Source)>,
    /// Names of other columns, which columns of sources must not have.
    taken: Vec<String>,
}

impl Sources {
    pub(super) fn new(taken: Vec<String>) -> Self {
        Self { found: Vec::new(), taken }
    }

    /// Returns the name of the column of a source.
    fn column(&mut self, (source, field): (Source, Field), text: String) -> String {
        if let Some((field, _)) = self.found.iter().find(|(_, known)| *known == source) {
            return field.name().clone();
        }
        let name = unique(text.replace('"', ""), &self.taken);
        self.taken.push(name.clone());
        self.found.push((field.with_name(&name), source));
        name
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = Field> + '_ {
        self.found.iter().map(|(field, _)| field.clone())
    }
}

impl References<'_> {
    /// Replaces every part of an expression that reads the match by the name of its column.
    pub(super) fn extract(
        &mut self,
        expression: &mut ast::Expr,
        sources: &mut Sources,
        fallback: Position,
    ) -> Result<(), SqlError> {
        let position = start(expression).or(fallback);
        let text = expression.to_string();
        let read = match expression {
            ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_) => {
                self.value_in(expression.clone(), Navigation::Last(0), position)?
            }
            // Of a value of one row its part is kept, and not all of it.
            ast::Expr::Function(call) if call_name(call) == PART && self.is_of_one_variable(expression) => {
                self.value_in(expression.clone(), Navigation::Last(0), position)?
            }
            ast::Expr::Function(call) => match self.call(call, position)? {
                Some(found) => found,
                None => return self.extract_children(expression, sources, position),
            },
            _ => return self.extract_children(expression, sources, position),
        };
        let column = sources.column(read, text);
        *expression = ast::Expr::Identifier(ast::Ident::with_quote_and_span('"', expression.span(), column));
        Ok(())
    }

    fn extract_children(
        &mut self,
        expression: &mut ast::Expr,
        sources: &mut Sources,
        position: Position,
    ) -> Result<(), SqlError> {
        try_each_child(expression, &mut |child| self.extract(child, sources, position))
    }

    /// Whether all columns of an expression are those of one variable.
    fn is_of_one_variable(&self, expression: &ast::Expr) -> bool {
        let mut variables = Vec::new();
        let stripped = self.strip(&mut expression.clone(), &mut variables, Position::default());
        stripped.is_ok() && variables.windows(2).all(|two| two[0] == two[1]) && !variables.is_empty()
    }

    /// A value of a row, and its column, whose name does not matter.
    fn value_in(
        &mut self,
        expression: ast::Expr,
        navigation: Navigation,
        position: Position,
    ) -> Result<(Source, Field), SqlError> {
        let (variable, value) = self.value(expression, position)?;
        let KeptValue { data_type, marks, .. } = &self.values[value];
        let field = Field::new("", data_type.clone(), true).with_metadata(marks.clone());
        Ok((Source::Value { value, variable, navigation }, field))
    }

    /// Returns what a call reads, and its column, whose name does not matter; `None` if it is an ordinary function.
    fn call(&mut self, call: &ast::Function, fallback: Position) -> Result<Option<(Source, Field)>, SqlError> {
        let position = Position::from(call.name.span()).or(fallback);
        let name = call_name(call);
        if let Some((_, aggregate)) = AGGREGATES.iter().find(|(known, _)| *known == name) {
            return self.aggregate(*aggregate, &name, call, position).map(Some);
        }
        if !FUNCTIONS.contains(&name.as_str()) {
            return match REGISTRY.find(&name) {
                Found::Aggregate(_) | Found::OtherAggregate => {
                    let known: Vec<&str> = AGGREGATES.iter().map(|(known, _)| *known).collect();
                    Err(SqlError::new(position, format!("the aggregate {name} in a row pattern is not supported yet"))
                        .hint(format!("{} are", known.join(", "))))
                }
                Found::History | Found::Rank => {
                    Err(SqlError::new(position, format!("{name} cannot stand in a row pattern")).hint(
                        "PREV(value) is the value of the row before, LAST(A.value, 1) that of the row of A before",
                    ))
                }
                _ => Ok(None),
            };
        }
        let arguments = plain_arguments(call)
            .ok_or_else(|| SqlError::new(position, format!("this form of {name} is not supported")))?;
        let usage = match name.as_str() {
            "classifier" | "match_number" => {
                check_argument_count(&name, arguments.len(), 0..=0, &format!("{}()", name.to_uppercase()), position)?;
                let found = match name.as_str() {
                    "classifier" => (Source::Classifier, Field::new("", DataType::Utf8, true)),
                    _ => (Source::MatchNumber, Field::new("", DataType::Int64, true)),
                };
                return Ok(Some(found));
            }
            "next" => {
                return Err(SqlError::new(position, "next looks at rows that have not come yet")
                    .hint("add a variable to the pattern for the next row"));
            }
            "first" => "FIRST(A.value) or FIRST(A.value, 1)",
            "last" => "LAST(A.value) or LAST(A.value, 1)",
            _ => "PREV(value) or PREV(value, 2)",
        };
        check_argument_count(&name, arguments.len(), 1..=2, usage, position)?;
        let least = usize::from(name == "prev");
        let rows = match arguments.get(1) {
            None => least,
            Some(rows) => number_of_rows(rows, least, &name, usage, position)?,
        };
        let navigation = match name.as_str() {
            "first" => Navigation::First(rows),
            "last" => Navigation::Last(rows),
            _ => Navigation::Previous(rows),
        };
        self.value_in(arguments[0].clone(), navigation, position).map(Some)
    }

    fn aggregate(
        &mut self,
        aggregate: PatternAggregate,
        name: &str,
        call: &ast::Function,
        position: Position,
    ) -> Result<(Source, Field), SqlError> {
        let usage = format!("{name}(A.value)");
        let refuse = |what: &str| {
            Err(SqlError::new(position, format!("{what} in a row pattern is not supported yet"))
                .hint(usage_hint(&usage)))
        };
        let ast::FunctionArguments::List(list) = &call.args else { return refuse("this form of an aggregate") };
        if list.duplicate_treatment.is_some() {
            return refuse("DISTINCT");
        }
        if call.filter.is_some() || call.over.is_some() || !call.within_group.is_empty() || !list.clauses.is_empty() {
            return refuse("FILTER, OVER or WITHIN GROUP");
        }
        check_argument_count(name, list.args.len(), 1..=1, &usage, position)?;
        let ast::FunctionArg::Unnamed(argument) = &list.args[0] else { return refuse("an argument by name") };
        let (variable, value) = match argument {
            ast::FunctionArgExpr::Wildcard if aggregate == PatternAggregate::Count => (None, None),
            ast::FunctionArgExpr::QualifiedWildcard(of) if aggregate == PatternAggregate::Count => {
                let [ast::ObjectNamePart::Identifier(of)] = of.0.as_slice() else {
                    return refuse("a name with points");
                };
                (Some(self.variable(&name_of(of))?), None)
            }
            ast::FunctionArgExpr::Expr(expression) => {
                let (variable, value) = self.value(expression.clone(), position)?;
                (variable, Some(value))
            }
            _ => return refuse("this argument"),
        };
        let of = value.map(|value| &self.values[value]);
        let data_type = match (aggregate, of.map(|of| &of.data_type)) {
            (PatternAggregate::Count, _) => DataType::Int64,
            (PatternAggregate::Avg, Some(of)) if of.is_numeric() => DataType::Float64,
            (PatternAggregate::Sum, Some(of)) if of.is_floating() => DataType::Float64,
            (PatternAggregate::Sum, Some(of)) if of.is_numeric() => DataType::Int64,
            (PatternAggregate::Min | PatternAggregate::Max, Some(of))
                if of.is_numeric() || matches!(of, DataType::Timestamp(..) | DataType::Date32) =>
            {
                of.clone()
            }
            (_, other) => {
                let found = other.map_or_else(|| "'*'".to_owned(), type_name);
                return Err(SqlError::new(position, format!("{name} does not take {found}")).hint(usage_hint(&usage)));
            }
        };
        Ok((Source::Aggregate { aggregate, value, variable }, Field::new("", data_type, true)))
    }

    /// Returns the variable of an argument, or `None` for all rows, and the index of the kept value.
    fn value(&mut self, mut expression: ast::Expr, fallback: Position) -> Result<(Option<usize>, usize), SqlError> {
        let position = start(&expression).or(fallback);
        let mut variables = Vec::new();
        self.strip(&mut expression, &mut variables, position)?;
        let variable = match variables.as_slice() {
            [] => {
                return Err(SqlError::new(position, "this looks at no column").hint("write for example LAST(A.value)"));
            }
            [first, rest @ ..] => match rest.iter().any(|other| other != first) {
                false => *first,
                true => {
                    return Err(SqlError::new(position, "the columns of one argument are of one variable")
                        .hint("compute outside of the call: LAST(A.value) - LAST(B.value)"));
                }
            },
        };
        self.scope.check(&mut expression, Place::Where, position)?;
        let (expression, data_type) = self.rows.plan_coerced(&expression, position)?;
        let marks = self.rows.field_of(&expression, "", &data_type).metadata().clone();
        let (expression, data_type) = widen((expression, data_type));
        if matches!(data_type, DataType::Interval(_) | DataType::Duration(_)) {
            let message = format!("a row pattern does not look at values of type {}", type_name(&data_type));
            return Err(SqlError::new(position, message).hint("look at a number, text, boolean or time"));
        }
        let known = self.values.iter().position(|value| value.expression == expression);
        let value = known.unwrap_or_else(|| {
            self.values.push(KeptValue { expression, data_type, marks, position });
            self.values.len() - 1
        });
        Ok((variable, value))
    }

    /// Removes the variables from the columns of an expression over single rows.
    pub(super) fn strip(
        &self,
        expression: &mut ast::Expr,
        variables: &mut Vec<Option<usize>>,
        fallback: Position,
    ) -> Result<(), SqlError> {
        match expression {
            ast::Expr::Identifier(_) => variables.push(None),
            ast::Expr::CompoundIdentifier(names) if self.is_row(&name_of(&names[0])) => variables.push(None),
            ast::Expr::CompoundIdentifier(names) => {
                variables.push(Some(self.variable(&name_of(&names[0]))?));
                *expression = match &names[1..] {
                    [column] => ast::Expr::Identifier(column.clone()),
                    column_with_parts => ast::Expr::CompoundIdentifier(column_with_parts.to_vec()),
                };
            }
            ast::Expr::Function(call) if self.is_about_match(call) => {
                let position = Position::from(call.name.span()).or(fallback);
                return Err(SqlError::new(
                    position,
                    format!("{} cannot stand inside of another call", call_name(call)),
                )
                .hint("compute outside of the call: LAST(A.value) - PREV(A.value)"));
            }
            other => return try_each_child(other, &mut |child| self.strip(child, variables, fallback)),
        }
        Ok(())
    }

    /// Whether a name before a point is no variable but a column with parts: `radio.rssi`.
    fn is_row(&self, name: &Name) -> bool {
        let is_row = |column: &&str| {
            column.strip_prefix(&name.text).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        !self.variables.iter().any(|variable| variable.text == name.text) && self.scope.columns.iter().any(is_row)
    }

    /// Whether a call reads more than one row.
    fn is_about_match(&self, call: &ast::Function) -> bool {
        let name = call_name(call);
        FUNCTIONS.contains(&name.as_str())
            || matches!(
                REGISTRY.find(&name),
                Found::Aggregate(_) | Found::OtherAggregate | Found::History | Found::Rank
            )
    }

    /// Whether a condition of variable `own` reads only the row that is tried.
    pub(super) fn is_about_row(&self, expression: &ast::Expr, own: usize) -> bool {
        let mut expression = expression.clone();
        let mut variables = Vec::new();
        let stripped = self.strip(&mut expression, &mut variables, Position::default());
        stripped.is_ok() && variables.iter().all(|variable| variable.is_none_or(|one| one == own))
    }

    /// The number of a variable.
    pub(super) fn variable(&self, name: &Name) -> Result<usize, SqlError> {
        if let Some(index) = self.variables.iter().position(|variable| variable.text == name.text) {
            return Ok(index);
        }
        let error = SqlError::new(name.position, format!("'{name}' is no variable of the pattern"));
        let names = self.variables.iter().map(|variable| variable.text.as_str());
        let hint = format!("the pattern has {}", names.clone().collect::<Vec<_>>().join(", "));
        Err(error.suggest(&name.text, names, hint))
    }
}

fn plain_arguments(call: &ast::Function) -> Option<Vec<&ast::Expr>> {
    let ast::FunctionArguments::List(list) = &call.args else { return None };
    if list.duplicate_treatment.is_some() || !list.clauses.is_empty() || call.over.is_some() || call.filter.is_some() {
        return None;
    }
    let arguments = list.args.iter().map(|argument| match argument {
        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => Some(expression),
        _ => None,
    });
    arguments.collect()
}

/// A constant number of rows.
fn number_of_rows(
    rows: &ast::Expr,
    least: usize,
    name: &str,
    usage: &str,
    fallback: Position,
) -> Result<usize, SqlError> {
    whole_number(rows).filter(|rows| (least..=NAVIGATION_ROWS_MAX).contains(rows)).ok_or_else(|| {
        let message = format!("{name} looks a constant number of rows away, {least} to {NAVIGATION_ROWS_MAX}");
        SqlError::new(start(rows).or(fallback), message).hint(usage_hint(usage))
    })
}
