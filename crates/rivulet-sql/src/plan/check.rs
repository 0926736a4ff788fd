//! The first pass over an expression. Every name is looked up, and every construct is either known or refused by name.
//! The tree is left in a form that the relational planner plans without guessing.
//!
//! After this pass an expression holds only the constructs listed below. Identifiers are exact (quoted) names of
//! columns, and `$parameters` are quoted identifiers too.

mod calls;
mod earlier_frames;

use datafusion_sql::sqlparser::ast::{self, Expr, Value};
use rivulet_relational::{member_of, row_of_parts};

use super::expression::placed;
use super::walk::{start, try_each_child};
use crate::address::list;
use crate::application::Parameter;
use crate::parse::name_of;
use crate::statement::Name;
use crate::{Position, SqlError, suggest};

/// The implicit column of every input.
pub(super) const ARRIVAL_TIME: &str = "arrival_time";
/// The bounds of a window, behind it.
pub(super) const WINDOW_START: &str = "window_start";
pub(super) const WINDOW_END: &str = "window_end";
/// The bounds of a window, and what they are called in checked expressions where the rows have columns of these names.
pub(super) const BOUNDS: [(&str, &str); 2] =
    [(WINDOW_START, "window_start of the window"), (WINDOW_END, "window_end of the window")];

/// Where an expression is used; this decides what it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// WHERE.
    Where,
    /// A column of the SELECT, or QUALIFY.
    Result,
    /// HAVING.
    Having,
    /// A computed column of an input.
    Computed,
    /// A column of a SELECT in a UNION ALL.
    UnionColumn,
    /// A key of GROUP BY.
    GroupKey,
    /// A length of a window: parameters and constants only.
    WindowLength,
    /// A bound of a JOIN in time: parameters and constants only.
    JoinLength,
    /// The condition of an output, over the columns of the SELECT.
    OutputCondition,
    /// Inside the call of an aggregate.
    AggregateArgument,
    /// FILTER (WHERE ...) of an aggregate.
    AggregateFilter,
    /// Inside the call of a history function, or its PARTITION BY.
    HistoryArgument,
}

/// The meaning of names in the SELECT of one application.
pub(super) struct Scope<'a> {
    pub(super) input: &'a str,
    pub(super) alias: Option<&'a str>,
    /// The columns of the input, including `arrival_time`.
    pub(super) columns: Vec<&'a str>,
    pub(super) parameters: &'a [Parameter],
    /// Whether GROUP BY has a window.
    pub(super) windowed: bool,
    /// The reference tables. Their columns are in `columns` too, as `table.column`.
    pub(super) tables: &'a [ScopeTable],
    /// Whether an unqualified name means a column of the last table first: inside of a LATERAL.
    pub(super) in_table: bool,
}

/// What to write where a computed column asks when its event came.
const COMPUTED_OF: &str = "a column is computed of the event alone: an application has arrival_time in its SELECT, a \
                           big query PROCTIME() as the time of a window";

/// The names of a reference table, or of a joined input.
#[derive(Clone)]
pub(super) struct ScopeTable {
    pub(super) name: String,
    pub(super) columns: Vec<String>,
}

/// The full name of a table's column among all columns.
pub(super) fn full_name(table: &str, column: &str) -> String {
    format!("{table}.{column}")
}

impl Scope<'_> {
    /// Checks `expression` and brings it into the form for planning. `fallback` is the position of errors whose own
    /// position is not known.
    pub(super) fn check(&self, expression: &mut Expr, place: Place, fallback: Position) -> Result<(), SqlError> {
        rivulet_relational::spell_out_times(expression).map_err(|error| placed(error, fallback))?;
        rivulet_relational::check_expression(expression).map_err(|error| placed(error, fallback))?;
        self.names(expression, place, fallback)
    }

    fn names(&self, expression: &mut Expr, place: Place, fallback: Position) -> Result<(), SqlError> {
        let position = start(expression).or(fallback);
        match expression {
            Expr::Identifier(identifier) => {
                let name = name_of(identifier);
                if let Some(bound) = self.bound(&name, place)? {
                    *identifier = exact(&bound);
                    return Ok(());
                }
                let name = self.of_table(name)?;
                if !self.columns.contains(&name.text.as_str())
                    && let Some(row) = row_of_parts(&name.text, &[], self.columns.iter().copied())
                {
                    *expression = row;
                    return self.names(expression, place, position);
                }
                self.column(&name, place)?;
                *identifier = exact(&name);
                Ok(())
            }
            Expr::CompoundIdentifier(identifiers) => {
                let (column, parts) = self.column_with_parts(identifiers)?;
                let parts = identifiers[identifiers.len() - parts..].to_vec();
                let known = self.columns.contains(&column.text.as_str());
                let row = row_of_parts(&column.text, &[], self.columns.iter().copied());
                if let (Some(row), false) = (row, known || !parts.is_empty()) {
                    *expression = row;
                    return self.names(expression, place, position);
                }
                self.column(&column, place)?;
                *expression = Expr::Identifier(exact(&column));
                if !parts.is_empty() {
                    *expression = parts.iter().fold(expression.clone(), member_of);
                    return self.names(expression, place, position);
                }
                Ok(())
            }
            Expr::Value(value) => {
                let position = Position::from(value.span).or(position);
                match &value.value {
                    Value::Placeholder(placeholder) => {
                        let name = self.parameter(placeholder, position)?;
                        let quoted = ast::Ident::with_quote_and_span('"', value.span, format!("${name}"));
                        *expression = Expr::Identifier(quoted);
                        Ok(())
                    }
                    Value::Number(..) | Value::SingleQuotedString(_) | Value::Null | Value::Boolean(_) => Ok(()),
                    _ => Err(not_yet(position, "this kind of constant")),
                }
            }
            Expr::Interval(_) | Expr::TypedString(_) => Ok(()),
            Expr::Trim { trim_characters: Some(_), .. } => Err(not_yet(position, "this form of TRIM")),
            Expr::Function(_) => self.function(expression, place, position),
            Expr::BinaryOp { .. }
            | Expr::UnaryOp { .. }
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsTrue(_)
            | Expr::IsNotTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsNotFalse(_)
            | Expr::IsUnknown(_)
            | Expr::IsNotUnknown(_)
            | Expr::IsDistinctFrom(..)
            | Expr::IsNotDistinctFrom(..)
            | Expr::InList { .. }
            | Expr::Between { .. }
            | Expr::Like { .. }
            | Expr::ILike { .. }
            | Expr::Ceil { .. }
            | Expr::Floor { .. }
            | Expr::Extract { .. }
            | Expr::Position { .. }
            | Expr::Substring { .. }
            | Expr::Trim { .. }
            | Expr::Overlay { .. }
            | Expr::Nested(_)
            | Expr::Cast { .. }
            | Expr::Case { .. } => self.children(expression, place, position),
            other => Err(refuse(other, position)),
        }
    }

    /// The column that a name with points means, and how many names of parts stand behind it: `input.column`,
    /// `table.column`, `row.field` where `"row.field"` is a column, and `column.part`.
    fn column_with_parts(&self, identifiers: &[ast::Ident]) -> Result<(Name, usize), SqlError> {
        let names: Vec<Name> = identifiers.iter().map(name_of).collect();
        let joined = |names: &[Name]| Name {
            text: names.iter().map(|name| name.text.as_str()).collect::<Vec<_>>().join("."),
            position: names[0].position,
        };
        let is_column = |name: &Name| self.columns.contains(&name.text.as_str());
        if let Some(table) = self.tables.iter().find(|table| table.name == names[0].text) {
            let behind = &names[1..];
            for length in (1..=behind.len()).rev() {
                let Name { text, position } = joined(&behind[..length]);
                if table.columns.contains(&text) {
                    return Ok((Name { text: full_name(&table.name, &text), position }, behind.len() - length));
                }
            }
            let (row, prefix) = (joined(&names), format!("{}.", joined(&names).text));
            if self.columns.iter().any(|column| column.starts_with(&prefix)) {
                return Ok((row, 0));
            }
        }
        if let Some(column) = self.table_column(&names[0], &names[1])? {
            return Ok((column, names.len() - 2));
        }
        let own = self.alias.unwrap_or(self.input);
        let is_own = names[0].text == own;
        let behind = if is_own { &names[1..] } else { &names[..] };
        for length in (1..=behind.len()).rev() {
            let name = joined(&behind[..length]);
            let column = if is_own { name } else { self.of_table(name)? };
            if is_column(&column) {
                return Ok((column, behind.len() - length));
            }
        }
        let prefix = format!("{}.", names[0]);
        if is_own || self.columns.iter().any(|column| column.starts_with(&prefix)) {
            return Ok((joined(behind), 0));
        }
        let error = SqlError::new(names[0].position, format!("unknown input '{}'", names[0]));
        Err(error.did_you_mean(Some(own)))
    }

    fn children(&self, expression: &mut Expr, place: Place, position: Position) -> Result<(), SqlError> {
        try_each_child(expression, &mut |child| self.names(child, place, position))
    }

    fn column(&self, name: &Name, place: Place) -> Result<(), SqlError> {
        let text = name.text.as_str();
        if matches!(place, Place::WindowLength | Place::JoinLength) {
            let what = if place == Place::JoinLength { "a bound of a JOIN" } else { "the length of a window" };
            let error = SqlError::new(name.position, format!("{what} cannot depend on the column '{name}'"));
            return Err(match self.parameters.iter().any(|parameter| parameter.name == text) {
                true => error.hint(format!("did you mean the parameter '${name}'?")),
                false => error.hint("use constants and parameters, which are the same for the whole query"),
            });
        }
        if self.columns.contains(&text) {
            return Ok(());
        }
        if matches!(text, WINDOW_START | WINDOW_END) {
            return match place {
                Place::Result | Place::Having | Place::HistoryArgument if !self.windowed => {
                    Err(SqlError::new(name.position, format!("'{name}' needs a window"))
                        .hint("add a window: GROUP BY tumble(ts, INTERVAL '1 minute')"))
                }
                _ => Err(SqlError::new(name.position, format!("'{name}' may stand in the SELECT and in HAVING only"))
                    .hint(
                        "compute with it in a SELECT around: FROM (SELECT window_end FROM t GROUP BY tumble(ts, \
                         INTERVAL '1 minute')) AS w",
                    )),
            };
        }
        let error = SqlError::new(name.position, format!("unknown column '{name}'"));
        if self.parameters.iter().any(|parameter| parameter.name == text) {
            return Err(error.hint(format!("did you mean the parameter '${name}'?")));
        }
        if text == ARRIVAL_TIME && place == Place::Computed {
            return Err(error.hint(COMPUTED_OF));
        }
        let bounds = [WINDOW_START, WINDOW_END].into_iter().filter(|_| self.windowed);
        let owner = match place {
            Place::OutputCondition => "the SELECT".to_owned(),
            _ => format!("the input '{}'", self.input),
        };
        let hint = format!("{owner} has the columns {}", list(&self.columns));
        Err(error.suggest(text, self.columns.iter().copied().chain(bounds), hint))
    }

    /// Resolves a name alone: to itself, or to the column of a table that it means.
    pub(super) fn of_table(&self, name: Name) -> Result<Name, SqlError> {
        let full = |table: &ScopeTable| Name { text: full_name(&table.name, &name.text), position: name.position };
        let has = |table: &&ScopeTable| table.columns.contains(&name.text);
        if let Some(table) = self.tables.last().filter(|table| self.in_table && has(table)) {
            return Ok(full(table));
        }
        let mut tables = self.tables.iter().filter(has);
        let Some(table) = tables.next() else { return Ok(name) };
        let other = if self.columns.contains(&name.text.as_str()) {
            Some(self.alias.unwrap_or(self.input))
        } else {
            tables.next().map(|other| other.name.as_str())
        };
        match other {
            None => Ok(full(table)),
            Some(other) => Err(SqlError::new(name.position, format!("the column '{name}' is ambiguous"))
                .hint(format!("write {other}.{name} or {}.{name}", table.name))),
        }
    }

    /// Resolves a column with the name of its table; `None` if there is no table with that name.
    pub(super) fn table_column(&self, table: &Name, column: &Name) -> Result<Option<Name>, SqlError> {
        let Some(found) = self.tables.iter().find(|one| one.name == table.text) else { return Ok(None) };
        if found.columns.contains(&column.text) {
            return Ok(Some(Name { text: full_name(&found.name, &column.text), position: column.position }));
        }
        let error = SqlError::new(column.position, format!("unknown column '{table}.{column}'"));
        if column.text == ARRIVAL_TIME && self.columns.contains(&ARRIVAL_TIME) {
            return Err(error.hint(format!("write {ARRIVAL_TIME} alone: when the event came that gave the result")));
        }
        let names: Vec<&str> = found.columns.iter().map(String::as_str).collect();
        let hint = format!("'{table}' has the columns {}", list(&names));
        Err(error.suggest(&column.text, names, hint))
    }

    /// The table of a column's full name.
    pub(super) fn table_of(&self, full: &str) -> Option<&str> {
        let is_of = |table: &&ScopeTable| table.columns.iter().any(|column| full_name(&table.name, column) == full);
        self.tables.iter().find(is_of).map(|table| table.name.as_str())
    }

    /// A column's own name.
    pub(super) fn plain_name<'n>(&self, full: &'n str) -> &'n str {
        self.table_of(full).map_or(full, |table| &full[table.len() + 1..])
    }

    /// Resolves a name alone that means a bound of the window; `None` if it means a column, or nothing.
    fn bound(&self, name: &Name, place: Place) -> Result<Option<Name>, SqlError> {
        let bound = BOUNDS.iter().find(|(bound, _)| self.windowed && *bound == name.text);
        let Some((bound, marked)) = bound else { return Ok(None) };
        match place {
            Place::Result | Place::Having | Place::HistoryArgument => {
                let text = if self.columns.contains(bound) { marked } else { bound };
                Ok(Some(Name { text: (*text).to_owned(), ..name.clone() }))
            }
            // Keys and aggregates look like results of the window, but are expressions over its rows.
            Place::GroupKey | Place::AggregateArgument | Place::AggregateFilter => {
                self.refuse_as_bound(name).map(|()| None)
            }
            _ => Ok(None),
        }
    }

    /// Refuses a name alone if it is that of a column of the rows and of a bound of the window.
    pub(super) fn refuse_as_bound(&self, name: &Name) -> Result<(), SqlError> {
        let own = self.columns.contains(&name.text.as_str()).then(|| self.alias.unwrap_or(self.input));
        let mut tables = self.tables.iter().filter(|table| table.columns.contains(&name.text));
        match own.or_else(|| tables.next().map(|table| table.name.as_str())) {
            None => Ok(()),
            Some(owner) => Err(SqlError::new(
                name.position,
                format!("'{name}' is ambiguous: a column and a bound of the window have this name"),
            )
            .hint(format!("write {} for the column", full_name(owner, &name.text)))),
        }
    }

    /// Returns the declared name of a `$placeholder`.
    fn parameter(&self, placeholder: &str, position: Position) -> Result<&str, SqlError> {
        let Some(name) = placeholder.strip_prefix('$') else {
            let error = SqlError::new(position, format!("'{placeholder}' is not a parameter"));
            return Err(error.hint(
                "a parameter is declared, and written with a dollar sign: CREATE APPLICATION name (low DOUBLE), and \
                 WHERE value > $low",
            ));
        };
        let folded = name.to_lowercase();
        if let Some(parameter) =
            self.parameters.iter().find(|parameter| parameter.name == name || parameter.name == folded)
        {
            return Ok(&parameter.name);
        }
        let error = SqlError::new(position, format!("unknown parameter '{placeholder}'"));
        let names: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        Err(match suggest::nearest(name, names.iter().copied()) {
            Some(near) => error.did_you_mean(Some(format!("${near}"))),
            None => error.hint(format!(
                "declare it after the application's name: CREATE APPLICATION name ({} DOUBLE)",
                if name.is_empty() { "limit" } else { &folded }
            )),
        })
    }
}

fn exact(name: &Name) -> ast::Ident {
    let location =
        datafusion_sql::sqlparser::tokenizer::Location::of(name.position.line.into(), name.position.column.into());
    ast::Ident::with_quote_and_span(
        '"',
        datafusion_sql::sqlparser::tokenizer::Span::new(location, location),
        name.text.clone(),
    )
}

fn not_yet(position: Position, what: &str) -> SqlError {
    SqlError::new(position, format!("{what} is not supported yet"))
}

/// Makes the error for a construct that is not on the list.
fn refuse(expression: &Expr, position: Position) -> SqlError {
    match expression {
        Expr::InSubquery { .. } | Expr::Exists { .. } => not_yet(position, "a subquery").hint(
            "write a join: JOIN places AS p ON p.room = t.room of a reference table, or JOIN LATEST(b) ON b.key = a.key of \
             an input; a big query has IN and EXISTS",
        ),
        Expr::Subquery(_) | Expr::AnyOp { .. } | Expr::AllOp { .. } => not_yet(position, "a subquery").hint(
            "join it: JOIN LATEST(b) ON b.key = a.key has the latest row of an input, JOIN places AS p ON ... a row of a \
             reference table; a big query has subqueries as values",
        ),
        Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) => {
            not_yet(position, "GROUPING SETS, CUBE or ROLLUP").hint(
                "write an application for each set of keys; a big query has GROUP BY ROLLUP (a, b), CUBE and \
                 GROUPING SETS",
            )
        }
        Expr::Tuple(_) | Expr::Struct { .. } | Expr::Named { .. } | Expr::Dictionary(_) | Expr::Map(_) => {
            not_yet(position, "a structured value").hint("write ROW(a, b), or select its parts one by one")
        }
        Expr::Wildcard(_) | Expr::QualifiedWildcard(..) => SqlError::new(position, "'*' cannot stand here"),
        _ => not_yet(position, "this kind of expression"),
    }
}
