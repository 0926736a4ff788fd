//! The first pass over an expression: every name is looked up, every construct is either known or refused by name, and
//! the tree is left in the form in which DataFusion plans it without guessing.
//!
//! After this pass an expression holds only constructs on the list below; identifiers are exact (quoted) names of
//! columns, `$parameters` are quoted identifiers too, and types in casts are those of the language.

use datafusion_sql::sqlparser::ast::{self, BinaryOperator, Expr, Spanned, UnaryOperator, Value};

use super::functions::{Found, REGISTRY};
use super::lookup::ScopeTable;
use super::walk::try_each_child;
use crate::address::list;
use crate::application::Parameter;
use crate::parse::name_of;
use crate::statement::Name;
use crate::value::{parse_interval, parse_timestamp_us, type_named};
use crate::{Position, SqlError, suggest};

/// Where an expression stands; decides what it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// WHERE.
    Where,
    /// A column of the SELECT, or QUALIFY.
    Result,
    /// HAVING.
    Having,
    /// A key of GROUP BY.
    GroupKey,
    /// A length of a window: parameters and constants only.
    WindowLength,
    /// Inside the call of an aggregate.
    AggregateArgument,
    /// FILTER (WHERE ...) of an aggregate.
    AggregateFilter,
    /// Inside the call of a history function, or its PARTITION BY.
    HistoryArgument,
}

/// What names mean in the SELECT of one application.
pub(super) struct Scope<'a> {
    pub(super) input: &'a str,
    pub(super) alias: Option<&'a str>,
    /// The input's columns, `arrival_time` included.
    pub(super) columns: Vec<&'a str>,
    pub(super) parameters: &'a [Parameter],
    /// Whether there is a window in GROUP BY.
    pub(super) windowed: bool,
    /// The reference tables, whose columns are in `columns` too, with the table's name and a point before.
    pub(super) tables: &'a [ScopeTable],
    /// Whether a name alone is first one of the last table: inside of a LATERAL.
    pub(super) in_table: bool,
}

impl Scope<'_> {
    /// Checks `expression` and brings it into planned form. `fallback` is a place for errors whose own is not known.
    pub(super) fn check(&self, expression: &mut Expr, place: Place, fallback: Position) -> Result<(), SqlError> {
        let position = start(expression).or(fallback);
        match expression {
            Expr::Identifier(identifier) => {
                let name = self.of_table(name_of(identifier))?;
                self.column(&name, place)?;
                *identifier = exact(&name);
                Ok(())
            }
            Expr::CompoundIdentifier(identifiers) => {
                let [table, column] = identifiers.as_slice() else {
                    return Err(not_yet(position, "a name with several points"));
                };
                let (table, column) = (name_of(table), name_of(column));
                if let Some(column) = self.table_column(&table, &column)? {
                    self.column(&column, place)?;
                    *expression = Expr::Identifier(exact(&column));
                    return Ok(());
                }
                if table.text != self.alias.unwrap_or(self.input) {
                    return Err(SqlError::new(table.position, format!("unknown input '{table}'"))
                        .did_you_mean(Some(self.alias.unwrap_or(self.input))));
                }
                self.column(&column, place)?;
                *expression = Expr::Identifier(exact(&column));
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
                    Value::Number(digits, _) => check_number(digits, position),
                    Value::SingleQuotedString(_) | Value::Null | Value::Boolean(_) => Ok(()),
                    _ => Err(not_yet(position, "this kind of constant")),
                }
            }
            Expr::Interval(interval) => check_interval(interval, position),
            Expr::TypedString(typed) => check_typed_string(typed, position),
            Expr::BinaryOp { op, .. } => {
                check_binary(op, position)?;
                self.children(expression, place, position)
            }
            Expr::UnaryOp { op, .. } => {
                if !matches!(op, UnaryOperator::Plus | UnaryOperator::Minus | UnaryOperator::Not) {
                    return Err(not_yet(position, &format!("the operator '{op}'")));
                }
                self.children(expression, place, position)
            }
            Expr::Cast { kind, data_type, array, format, .. } => {
                if *array || format.is_some() || matches!(kind, ast::CastKind::SafeCast) {
                    return Err(not_yet(position, "this form of CAST"));
                }
                *data_type = cast_type(data_type, position)?;
                self.children(expression, place, position)
            }
            Expr::SimilarTo { .. } => {
                Err(not_yet(position, "SIMILAR TO").hint("use LIKE, or ~ with a regular expression"))
            }
            Expr::Like { any: true, .. } | Expr::ILike { any: true, .. } => Err(not_yet(position, "LIKE ANY")),
            Expr::Like { escape_char: Some(escape), .. } | Expr::ILike { escape_char: Some(escape), .. } => {
                if !matches!(&escape.value, Value::SingleQuotedString(text) if text.chars().count() == 1) {
                    return Err(SqlError::new(escape.span, "ESCAPE takes one character in single quotes"));
                }
                self.children(expression, place, position)
            }
            Expr::Ceil { field, .. } | Expr::Floor { field, .. } => {
                if !matches!(field, ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime)) {
                    return Err(
                        not_yet(position, "CEIL or FLOOR TO").hint("use date_trunc for times, and round for decimals")
                    );
                }
                self.children(expression, place, position)
            }
            Expr::Substring { substring_from: None, substring_for: None, .. } => {
                Err(SqlError::new(position, "substring needs a place to begin")
                    .hint("write substring(text FROM 2 FOR 3) or substr(text, 2, 3)"))
            }
            Expr::Trim { trim_characters: Some(_), .. } => Err(not_yet(position, "this form of TRIM")),
            Expr::Function(_) => self.function(expression, place, position),
            Expr::IsNull(_)
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
            | Expr::Extract { .. }
            | Expr::Position { .. }
            | Expr::Substring { .. }
            | Expr::Trim { .. }
            | Expr::Overlay { .. }
            | Expr::Nested(_)
            | Expr::Case { .. } => self.children(expression, place, position),
            other => Err(refuse(other, position)),
        }
    }

    fn children(&self, expression: &mut Expr, place: Place, position: Position) -> Result<(), SqlError> {
        try_each_child(expression, &mut |child| self.check(child, place, position))
    }

    fn column(&self, name: &Name, place: Place) -> Result<(), SqlError> {
        let text = name.text.as_str();
        if place == Place::WindowLength {
            let error =
                SqlError::new(name.position, format!("the length of a window cannot depend on the column '{name}'"));
            return Err(match self.parameters.iter().any(|parameter| parameter.name == text) {
                true => error.hint(format!("did you mean the parameter '${name}'?")),
                false => error.hint("use constants and parameters, which are the same for the whole query"),
            });
        }
        if self.columns.contains(&text) {
            return Ok(());
        }
        if matches!(text, "window_start" | "window_end") {
            return match place {
                Place::Result | Place::Having | Place::HistoryArgument if self.windowed => Ok(()),
                Place::Result | Place::Having | Place::HistoryArgument => {
                    Err(SqlError::new(name.position, format!("'{name}' needs a window"))
                        .hint("add a window: GROUP BY tumble(ts, INTERVAL '1 minute')"))
                }
                _ => Err(SqlError::new(name.position, format!("'{name}' may stand in the SELECT and in HAVING only"))),
            };
        }
        let error = SqlError::new(name.position, format!("unknown column '{name}'"));
        if self.parameters.iter().any(|parameter| parameter.name == text) {
            return Err(error.hint(format!("did you mean the parameter '${name}'?")));
        }
        let bounds = ["window_start", "window_end"].into_iter().filter(|_| self.windowed);
        Err(match suggest::nearest(text, self.columns.iter().copied().chain(bounds)) {
            Some(near) => error.did_you_mean(Some(near)),
            None => error.hint(format!("the input '{}' has the columns {}", self.input, list(&self.columns))),
        })
    }

    /// The declared name of a `$placeholder`.
    fn parameter(&self, placeholder: &str, position: Position) -> Result<&str, SqlError> {
        let Some(name) = placeholder.strip_prefix('$') else {
            let error = SqlError::new(position, format!("'{placeholder}' is not a parameter"));
            return Err(
                error.hint(format!("parameters are written ${}", placeholder.trim_start_matches(['@', ':', '?'])))
            );
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

    fn function(&self, expression: &mut Expr, place: Place, fallback: Position) -> Result<(), SqlError> {
        let Expr::Function(function) = expression else { return Ok(()) };
        let position = Position::from(function.name.span()).or(fallback);
        let [ast::ObjectNamePart::Identifier(identifier)] = function.name.0.as_slice() else {
            return Err(SqlError::new(position, format!("unknown function '{}'", function.name)));
        };
        let name = name_of(identifier);
        // Not by `==`, which would be compiled for the whole of the syntax tree.
        let plain = !matches!(function.args, ast::FunctionArguments::None);
        if function.uses_odbc_syntax || !matches!(function.parameters, ast::FunctionArguments::None) {
            return Err(not_yet(position, "this form of a call"));
        }
        let found = REGISTRY.find(&name.text);
        if function.over.is_some() && !matches!(found, Found::History | Found::Refused(..)) {
            return Err(not_yet(position, &format!("{name} with OVER")).hint(
                "OVER is for lag, changed and hysteresis; windows stand in GROUP BY: GROUP BY hop(ts, slide, width)",
            ));
        }
        if let Some(treatment) = &function.null_treatment {
            return Err(not_yet(position, &treatment.to_string()));
        }
        match found {
            Found::Aggregate(_) => self.check_aggregate(function, &name, place)?,
            Found::Scalar if !plain => {
                // A word that is a function without parentheses, such as CURRENT_USER.
                return Err(SqlError::new(position, format!("unknown column '{name}'")));
            }
            Found::Scalar | Found::History => {
                if matches!(found, Found::History) {
                    self.check_history(function, &name, place)?;
                }
                if function.filter.is_some() || !function.within_group.is_empty() {
                    return Err(SqlError::new(position, format!("{name} is not an aggregate"))
                        .hint("FILTER and WITHIN GROUP are for aggregates"));
                }
            }
            Found::Window => {
                return Err(match place {
                    Place::GroupKey => SqlError::new(position, format!("{name}() must be a key of GROUP BY by itself"))
                        .hint("select window_start and window_end to see the bounds of the window"),
                    _ => SqlError::new(position, format!("{name}() stands in GROUP BY only"))
                        .hint("select window_start and window_end to see the bounds of the window"),
                });
            }
            Found::Refused(why, instead) => {
                return Err(SqlError::new(position, format!("{name} {why}")).hint(instead));
            }
            Found::OtherAggregate => return Err(not_yet(position, &format!("the aggregate {name}"))),
            Found::Unknown => {
                let near = suggest::nearest(&name.text, REGISTRY.names());
                let error = SqlError::new(position, format!("unknown function '{name}'"));
                return Err(match near {
                    Some(near) => error.did_you_mean(Some(near)),
                    None => error.hint("the functions are those of Apache DataFusion, plus haversine_m"),
                });
            }
        }
        function.name = ast::ObjectName::from(vec![exact(&name)]);
        let inner = match found {
            Found::Aggregate(_) => Place::AggregateArgument,
            Found::History => Place::HistoryArgument,
            _ => place,
        };
        self.arguments(function, &name, inner, position)?;
        if let Some(filter) = &mut function.filter {
            self.check(filter, Place::AggregateFilter, position)?;
        }
        for order in &mut function.within_group {
            self.check(&mut order.expr, Place::AggregateArgument, position)?;
        }
        Ok(())
    }

    fn check_aggregate(&self, function: &ast::Function, name: &Name, place: Place) -> Result<(), SqlError> {
        let refuse = |message: String| SqlError::new(name.position, message);
        match place {
            Place::Result | Place::Having | Place::HistoryArgument if !self.windowed => {
                return Err(refuse(format!("the aggregate {name} needs a window"))
                    .hint("add one: GROUP BY tumble(ts, INTERVAL '1 minute'), hop, session or count_window"));
            }
            Place::Result | Place::Having | Place::HistoryArgument => {}
            Place::Where => {
                return Err(refuse(format!("the aggregate {name} cannot stand in WHERE"))
                    .hint("WHERE looks at single rows; use HAVING"));
            }
            Place::GroupKey => return Err(refuse(format!("the aggregate {name} cannot be a key of GROUP BY"))),
            Place::WindowLength => return Err(refuse("the length of a window cannot be an aggregate".into())),
            Place::AggregateArgument => {
                return Err(refuse(format!("the aggregate {name} stands inside another aggregate"))
                    .hint("aggregates of aggregates are not supported yet"));
            }
            Place::AggregateFilter => {
                return Err(refuse(format!("the aggregate {name} cannot stand in FILTER"))
                    .hint("FILTER looks at single rows; use HAVING or CASE"));
            }
        }
        if !function.within_group.is_empty() && !matches!(name.text.as_str(), "percentile_cont" | "quantile_cont") {
            return Err(refuse(format!("WITHIN GROUP is for percentile_cont only, not for {name}")));
        }
        if let [_, second, ..] = function.within_group.as_slice() {
            return Err(SqlError::new(second.expr.span(), "WITHIN GROUP takes one expression"));
        }
        Ok(())
    }

    fn check_history(&self, function: &mut ast::Function, name: &Name, place: Place) -> Result<(), SqlError> {
        let problem = match place {
            Place::Result => None,
            Place::Where => Some("cannot stand in WHERE"),
            Place::Having => Some("cannot stand in HAVING"),
            Place::GroupKey => Some("cannot be a key of GROUP BY"),
            Place::WindowLength => Some("cannot stand in the length of a window"),
            Place::AggregateArgument | Place::AggregateFilter => Some("cannot stand inside an aggregate"),
            Place::HistoryArgument => Some("cannot stand inside another history function"),
        };
        if let Some(problem) = problem {
            return Err(SqlError::new(name.position, format!("{name} {problem}")).hint(match place {
                Place::AggregateArgument | Place::AggregateFilter => "aggregate first: lag(avg(value))",
                _ => "it is computed after WHERE, GROUP BY and HAVING; to filter on it, use QUALIFY",
            }));
        }
        let named = |position: Position| not_yet(position, "a named window").hint("write OVER (PARTITION BY column)");
        let over = match &mut function.over {
            None => return Ok(()),
            Some(ast::WindowType::NamedWindow(window)) => return Err(named(window.span.into())),
            Some(ast::WindowType::WindowSpec(over)) => over,
        };
        if let Some(window) = &over.window_name {
            return Err(named(window.span.into()));
        }
        if let Some(order) = over.order_by.first() {
            let position = start(&order.expr).or(name.position);
            return Err(not_yet(position, "ORDER BY in OVER").hint("rows are in order of arrival"));
        }
        if over.window_frame.is_some() {
            return Err(not_yet(name.position, "a frame in OVER")
                .hint("lag(value, 3) looks three rows back; for aggregates write GROUP BY count_window(3, 1)"));
        }
        let mut keys = over.partition_by.iter_mut();
        keys.try_for_each(|key| self.check(key, Place::HistoryArgument, name.position))
    }

    fn arguments(
        &self,
        function: &mut ast::Function,
        name: &Name,
        place: Place,
        position: Position,
    ) -> Result<(), SqlError> {
        let arguments = match &mut function.args {
            ast::FunctionArguments::None => return Ok(()),
            ast::FunctionArguments::Subquery(query) => {
                return Err(not_yet(Position::from(query.span()).or(position), "a subquery"));
            }
            ast::FunctionArguments::List(list) => list,
        };
        if matches!(arguments.duplicate_treatment, Some(ast::DuplicateTreatment::Distinct)) {
            if place != Place::AggregateArgument {
                return Err(SqlError::new(position, format!("DISTINCT is for aggregates, and {name} is none")));
            }
            // Of these, every value and the distinct values give the same.
            let indifferent = matches!(name.text.as_str(), "min" | "max" | "bool_and" | "bool_or");
            if indifferent {
                arguments.duplicate_treatment = None;
            } else if name.text != "count" {
                return Err(not_yet(position, &format!("DISTINCT in {name}")).hint("count(DISTINCT ...) is"));
            }
        }
        if let Some(clause) = arguments.clauses.first() {
            let error = not_yet(position, &format!("'{clause}' inside a call"));
            return Err(match name.text.as_str() {
                "first_value" | "last_value" => error.hint(format!("{name} goes by event time")),
                _ => error,
            });
        }
        for argument in &mut arguments.args {
            match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => {
                    self.check(expression, place, position)?;
                }
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard)
                    if name.text == "count" && arguments.duplicate_treatment.is_none() => {}
                ast::FunctionArg::Unnamed(_) => {
                    return Err(SqlError::new(position, format!("'*' is not an argument of {name}"))
                        .hint("only count(*) takes a star"));
                }
                _ => return Err(not_yet(position, "an argument by name")),
            }
        }
        Ok(())
    }
}

/// Where an expression begins; unknown for those of which the parser keeps no place.
pub(super) fn start(expression: &Expr) -> Position {
    match expression {
        // The span of these does not count what stands before the first inner expression.
        Expr::Function(function) => Position::from(function.name.span()),
        Expr::Exists { subquery, .. } | Expr::Subquery(subquery) => Position::from(subquery.span()),
        other => Position::from(other.span()),
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

/// The refusal of a construct that is not on the list.
fn refuse(expression: &Expr, position: Position) -> SqlError {
    match expression {
        Expr::Subquery(_) | Expr::InSubquery { .. } | Expr::Exists { .. } | Expr::AnyOp { .. } | Expr::AllOp { .. } => {
            not_yet(position, "a subquery")
        }
        Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) => not_yet(position, "GROUPING SETS, CUBE or ROLLUP"),
        Expr::Array(_) | Expr::InUnnest { .. } => not_yet(position, "an array"),
        Expr::Tuple(_) | Expr::Struct { .. } | Expr::Named { .. } | Expr::Dictionary(_) | Expr::Map(_) => {
            not_yet(position, "a structured value")
        }
        Expr::AtTimeZone { .. } => {
            not_yet(position, "AT TIME ZONE").hint("timestamps are in UTC; add an INTERVAL to shift them")
        }
        Expr::CompoundFieldAccess { .. } | Expr::JsonAccess { .. } => not_yet(position, "access to a part of a value"),
        Expr::RLike { .. } => not_yet(position, "RLIKE").hint("use the operator ~ or regexp_like"),
        Expr::Collate { .. } => not_yet(position, "COLLATE"),
        Expr::Wildcard(_) | Expr::QualifiedWildcard(..) => SqlError::new(position, "'*' cannot stand here"),
        _ => not_yet(position, "this kind of expression"),
    }
}

fn check_binary(operator: &BinaryOperator, position: Position) -> Result<(), SqlError> {
    match operator {
        BinaryOperator::Plus
        | BinaryOperator::Minus
        | BinaryOperator::Multiply
        | BinaryOperator::Divide
        | BinaryOperator::Modulo
        | BinaryOperator::StringConcat
        | BinaryOperator::Gt
        | BinaryOperator::Lt
        | BinaryOperator::GtEq
        | BinaryOperator::LtEq
        | BinaryOperator::Eq
        | BinaryOperator::NotEq
        | BinaryOperator::And
        | BinaryOperator::Or
        | BinaryOperator::BitwiseAnd
        | BinaryOperator::BitwiseOr
        | BinaryOperator::PGRegexMatch
        | BinaryOperator::PGRegexIMatch
        | BinaryOperator::PGRegexNotMatch
        | BinaryOperator::PGRegexNotIMatch => Ok(()),
        BinaryOperator::BitwiseXor | BinaryOperator::PGExp => {
            Err(not_yet(position, "the operator '^'").hint("use power(base, exponent)"))
        }
        other => Err(not_yet(position, &format!("the operator '{other}'"))),
    }
}

fn check_number(digits: &str, position: Position) -> Result<(), SqlError> {
    let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    let fits = if is_whole { digits.parse::<i64>().is_ok() } else { digits.parse::<f64>().is_ok_and(f64::is_finite) };
    if fits {
        return Ok(());
    }
    Err(SqlError::new(position, format!("the number {digits} is out of range")))
}

/// The constant of an INTERVAL with its unit, `5 minutes`; nothing if it is not a constant.
pub(super) fn interval_text(interval: &ast::Interval) -> Option<String> {
    let Expr::Value(value) = interval.value.as_ref() else { return None };
    let (Value::SingleQuotedString(amount) | Value::Number(amount, _)) = &value.value else { return None };
    Some(match &interval.leading_field {
        Some(unit) => format!("{amount} {unit}"),
        None => amount.clone(),
    })
}

fn check_interval(interval: &mut ast::Interval, position: Position) -> Result<(), SqlError> {
    let example = "write for example INTERVAL '5 minutes'";
    if interval.leading_precision.is_some()
        || interval.last_field.is_some()
        || interval.fractional_seconds_precision.is_some()
    {
        return Err(not_yet(position, "this form of INTERVAL").hint(example));
    }
    if let Expr::Value(value) = interval.value.as_ref()
        && let Value::Placeholder(placeholder) = &value.value
    {
        return Err(SqlError::new(position, format!("INTERVAL takes a constant, not '{placeholder}'"))
            .hint(format!("declare the parameter as INTERVAL and write {placeholder} alone")));
    }
    let Some(text) = interval_text(interval) else {
        return Err(SqlError::new(position, "INTERVAL takes a string").hint(example));
    };
    match parse_interval(&text) {
        Some(_) => Ok(()),
        None => Err(SqlError::new(position, format!("'{text}' is not an interval")).hint(example)),
    }
}

fn check_typed_string(typed: &mut ast::TypedString, position: Position) -> Result<(), SqlError> {
    let Value::SingleQuotedString(text) = &typed.value.value else {
        return Err(SqlError::new(position, "expected a string in single quotes"));
    };
    match &typed.data_type {
        ast::DataType::Timestamp(_, zone) if !is_zoned(*zone) => {
            if parse_timestamp_us(text).is_none() {
                return Err(SqlError::new(position, format!("'{text}' is not a timestamp"))
                    .hint("write for example TIMESTAMP '2026-11-21 08:30:00'"));
            }
        }
        ast::DataType::Date => {
            if parse_timestamp_us(text).is_none() {
                return Err(SqlError::new(position, format!("'{text}' is not a date"))
                    .hint("write for example DATE '2026-11-21'"));
            }
        }
        other => return Err(not_yet(position, &format!("a constant of type {other}"))),
    }
    typed.data_type = cast_type(&typed.data_type, position)?;
    Ok(())
}

fn is_zoned(zone: ast::TimezoneInfo) -> bool {
    matches!(zone, ast::TimezoneInfo::WithTimeZone | ast::TimezoneInfo::Tz)
}

/// The type that a cast to `data_type` has in the language: the same as that of a column declared so. DataFusion would
/// take FLOAT as a number of 32 bits and TIMESTAMP as nanoseconds.
fn cast_type(data_type: &ast::DataType, position: Position) -> Result<ast::DataType, SqlError> {
    use ast::DataType;
    Ok(match data_type {
        DataType::Timestamp(_, zone) if !is_zoned(*zone) => DataType::Timestamp(Some(6), ast::TimezoneInfo::None),
        DataType::Timestamp(..) => {
            return Err(not_yet(position, "TIMESTAMP WITH TIME ZONE").hint("TIMESTAMP is always in UTC"));
        }
        DataType::DoublePrecision => DataType::Double(ast::ExactNumberInfo::None),
        DataType::Date | DataType::Numeric(_) | DataType::Decimal(_) | DataType::Interval { fields: None, .. } => {
            data_type.clone()
        }
        other => {
            let name = other.to_string();
            let word: String = name.chars().take_while(|character| character.is_alphanumeric()).collect();
            let known = type_named(&word).filter(|_| !name.contains(['<', '[']) && !name.contains("UNSIGNED"));
            match known {
                Some(arrow::datatypes::DataType::Utf8) => DataType::Text,
                Some(arrow::datatypes::DataType::Int64) => DataType::BigInt(None),
                Some(arrow::datatypes::DataType::Float64) => DataType::Double(ast::ExactNumberInfo::None),
                Some(arrow::datatypes::DataType::Boolean) => DataType::Boolean,
                _ => {
                    let error = SqlError::new(position, format!("unknown type '{name}'"));
                    return Err(match suggest::nearest(&name, crate::value::TYPE_NAMES) {
                        Some(near) => error.did_you_mean(Some(near)),
                        None => error.hint("types are TEXT, BIGINT, DOUBLE, BOOLEAN, TIMESTAMP, DATE and INTERVAL"),
                    });
                }
            }
        }
    })
}
