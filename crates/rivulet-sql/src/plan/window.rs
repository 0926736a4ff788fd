//! `tumble`, `hop`, `cumulate`, `session`, `count_window` and `state_window` of GROUP BY, and the check of their
//! lengths for each query.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion_common::ScalarValue;
use datafusion_expr::Expr;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_operators::{LengthError, Lengths, WindowSpec, check_lengths};

use super::call::{call_name, check_argument_count, usage_hint};
use super::check::{ARRIVAL_TIME, Place, Scope};
use super::defect::split_hint;
use super::expression::{Compiler, ExpressionPlanner, parameter_fields};
use super::functions::WINDOWS;
use super::types::cast_to;
use super::walk::start;
use crate::application::Parameter;
use crate::binding::BindError;
use crate::parse::name_of;
use crate::statement::Name;
use crate::value::{INTERVAL, format_us, parse_interval, scalar_of, type_name};
use crate::{Position, SqlError};

/// Returns the call of a window function, if the key of GROUP BY is one.
pub(super) fn window_call(key: &ast::Expr) -> Option<&ast::Function> {
    match key {
        ast::Expr::Nested(inner) => window_call(inner),
        ast::Expr::Function(function) if WINDOWS.contains(&call_name(function).as_str()) => Some(function),
        _ => None,
    }
}

/// A planned window.
pub(super) struct Window {
    pub(super) spec: WindowSpec,
    /// The conditions of a window of a state, over single rows, as written.
    pub(super) conditions: Vec<ast::Expr>,
    pub(super) check: LengthCheck,
    /// Its text for users: `hop(ts, INTERVAL '1 second', $width)`.
    pub(super) text: String,
}

impl Window {
    /// Whether its bounds are times, and not decided by rows.
    pub(super) fn is_time(&self) -> bool {
        !matches!(self.spec, WindowSpec::Count { .. } | WindowSpec::State)
    }
}

/// The time that windows over the rows use.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EventTime {
    /// This column.
    Column(String),
    /// The arrival time: no input has an event time.
    Arrival,
    /// None, with the reason and what to do.
    Missing(&'static str, &'static str),
}

/// What is needed to plan a window.
pub(super) struct WindowPlanner<'a> {
    pub(super) scope: &'a Scope<'a>,
    pub(super) parameter_schema: &'a SchemaRef,
    /// The event time that windows use.
    pub(super) event_time: &'a EventTime,
}

impl WindowPlanner<'_> {
    /// Plans the call of a window function.
    pub(super) fn plan(&self, call: &ast::Function) -> Result<Window, SqlError> {
        let name = call_name(call);
        let position = Position::from(call.name.span());
        let (usage, least, most) = match name.as_str() {
            "tumble" => ("tumble(ts, INTERVAL '1 minute')", 2, 3),
            "hop" => ("hop(ts, INTERVAL '1 second', INTERVAL '30 seconds')", 3, 4),
            "cumulate" => ("cumulate(ts, INTERVAL '1 minute', INTERVAL '1 hour')", 3, 4),
            "session" => ("session(ts, INTERVAL '30 seconds')", 2, 2),
            "state_window" => ("state_window(celsius > 30, celsius < 25)", 2, 2),
            _ => ("count_window(100) or count_window(100, 10)", 1, 2),
        };
        let arguments = plain_arguments(call).ok_or_else(|| {
            SqlError::new(position, format!("this form of {name} is not supported")).hint(usage_hint(usage))
        })?;
        if name == "state_window" {
            return self.state_window(call, arguments, usage, position);
        }
        check_argument_count(&name, arguments.len(), least..=most, usage, position)?;
        let lengths = match name.as_str() {
            "count_window" => {
                if let [ast::Expr::Identifier(identifier), ..] = arguments.as_slice() {
                    let name = name_of(identifier);
                    return Err(SqlError::new(name.position, "count_window takes numbers of rows, not a time")
                        .hint(usage_hint(usage)));
                }
                arguments
            }
            _ => {
                let (time, lengths) = (arguments[0], arguments[1..].to_vec());
                self.check_time(time, &name, position)?;
                lengths
            }
        };
        let mut compiled: Vec<Arc<dyn PhysicalExpr>> = Vec::with_capacity(lengths.len());
        let mut uses_parameters = Vec::new();
        for (index, length) in lengths.iter().enumerate() {
            let what = match (name.as_str(), index) {
                ("hop", 0) => "slide",
                ("cumulate", 0) => "step",
                ("tumble", 1) | ("hop" | "cumulate", 2) => "offset",
                ("session", _) => "gap",
                ("count_window", 0) => "number of rows",
                ("count_window", _) => "slide in rows",
                _ => "width",
            };
            let (expression, physical) = self.length(length, what, name == "count_window", position)?;
            uses_parameters.extend(expression.column_refs().iter().map(|column| column.name[1..].to_owned()));
            compiled.push(physical);
        }
        let mut compiled = compiled.into_iter();
        let (Some(first), second, third) = (compiled.next(), compiled.next(), compiled.next()) else {
            return Err(SqlError::new(position, format!("{name} needs a length")).hint(usage_hint(usage)));
        };
        let (window, offset) = match (name.as_str(), second) {
            ("tumble", offset) => (WindowSpec::Tumble { width: first }, offset),
            ("hop", Some(width)) => (WindowSpec::Hop { slide: first, width }, third),
            ("cumulate", Some(width)) => (WindowSpec::Cumulate { step: first, width }, third),
            ("session", _) => (WindowSpec::Session { gap: first }, None),
            (_, slide_rows) => (WindowSpec::Count { rows: first, slide_rows }, None),
        };
        let spec = match offset {
            Some(offset) => WindowSpec::Shifted { window: Box::new(window), offset },
            None => window,
        };
        let place = lengths.first().map_or(position, |length| start(length).or(position));
        let check = self.checked(spec.clone(), uses_parameters, false, place)?;
        Ok(Window { spec, conditions: Vec::new(), check, text: call.to_string() })
    }

    /// Plans a window from a row that meets a condition to one that meets another.
    fn state_window(
        &self,
        call: &ast::Function,
        arguments: Vec<&ast::Expr>,
        usage: &str,
        position: Position,
    ) -> Result<Window, SqlError> {
        if let [one] = arguments.as_slice() {
            return Err(SqlError::new(start(one).or(position), "state_window takes two conditions, and one is given")
                .hint(ONE_STATE));
        }
        check_argument_count("state_window", arguments.len(), 2..=2, usage, position)?;
        let check = self.checked(WindowSpec::State, Vec::new(), false, position)?;
        let conditions = arguments.into_iter().cloned().collect();
        Ok(Window { spec: WindowSpec::State, conditions, check, text: call.to_string() })
    }

    /// Plans the length of `WITHIN` in a row pattern.
    pub(super) fn within(
        &self,
        length: &ast::Expr,
        fallback: Position,
    ) -> Result<(Arc<dyn PhysicalExpr>, LengthCheck), SqlError> {
        let (expression, physical) = self.length(length, "time after WITHIN", false, fallback)?;
        let parameters = expression.column_refs().iter().map(|column| column.name[1..].to_owned()).collect();
        let spec = WindowSpec::Session { gap: physical.clone() };
        Ok((physical, self.checked(spec, parameters, true, start(length).or(fallback))?))
    }

    /// Returns the check of the lengths, after the defaults of parameters have passed it.
    fn checked(
        &self,
        spec: WindowSpec,
        mut parameters: Vec<String>,
        is_within: bool,
        position: Position,
    ) -> Result<LengthCheck, SqlError> {
        parameters.sort_unstable();
        parameters.dedup();
        let check = LengthCheck { spec, parameters, is_within };
        check
            .run_defaults(self.parameter_schema, self.scope.parameters)
            .map_err(|(message, hint)| SqlError { hint, ..SqlError::new(position, message) })?;
        Ok(check)
    }

    /// Checks that the first argument of a time window is the input's event time, and nothing else.
    fn check_time(&self, time: &ast::Expr, window: &str, position: Position) -> Result<(), SqlError> {
        let expected = match self.event_time {
            EventTime::Column(name) => name,
            EventTime::Arrival => ARRIVAL_TIME,
            EventTime::Missing(message, hint) => return Err(SqlError::new(position, *message).hint(*hint)),
        };
        let name = match time {
            ast::Expr::Identifier(identifier) => name_of(identifier),
            ast::Expr::CompoundIdentifier(identifiers) if identifiers.len() == 2 => {
                let mut checked = time.clone();
                self.scope.check(&mut checked, Place::Where, position)?;
                let ast::Expr::Identifier(identifier) = checked else { unreachable!("a name was checked") };
                Name { text: identifier.value, position: start(time) }
            }
            other => {
                return Err(SqlError::new(
                    start(other).or(position),
                    format!("the first argument of {window} is the column with the time"),
                )
                .hint(format!("write {window}({expected}, ...)")));
            }
        };
        if name.text == *expected {
            return Ok(());
        }
        // Reports unknown columns by name.
        let mut checked = time.clone();
        self.scope.check(&mut checked, Place::Where, position)?;
        if matches!(&checked, ast::Expr::Identifier(identifier) if identifier.value == *expected) {
            return Ok(());
        }
        let name = Name { text: self.scope.plain_name(&name.text).to_owned(), position: name.position };
        Err(match self.event_time {
            EventTime::Column(_) => SqlError::new(name.position, format!("windows go by the event time, '{expected}'"))
                .hint(format!("write {window}({expected}, ...)")),
            _ => SqlError::new(name.position, format!("'{name}' is not declared as the event time")).hint(format!(
                "write EVENT TIME behind '{name}' in the INPUT, a TIMESTAMP or computed as one, or write \
                     {window}(arrival_time, ...)"
            )),
        })
    }

    fn length(
        &self,
        length: &ast::Expr,
        what: &str,
        rows: bool,
        fallback: Position,
    ) -> Result<(Expr, Arc<dyn PhysicalExpr>), SqlError> {
        let position = start(length).or(fallback);
        let mut checked = length.clone();
        self.scope.check(&mut checked, Place::WindowLength, fallback)?;
        let planner = ExpressionPlanner::new(parameter_fields(self.parameter_schema).collect())?;
        let (expression, data_type) = planner.plan_coerced(&checked, fallback)?;
        let wrong_type = |expected: &str, hint: &str| {
            Err(SqlError::new(
                position,
                format!("the {what} must be {expected}, and this is {}", type_name(&data_type)),
            )
            .hint(hint))
        };
        let expression = match (&expression, &data_type) {
            (_, found) if rows && found.is_integer() => cast_to(expression, &data_type, &DataType::Int64),
            _ if rows => return wrong_type("a whole number", "write for example count_window(100)"),
            (_, DataType::Interval(_) | DataType::Duration(_)) => cast_to(expression, &data_type, &INTERVAL),
            (Expr::Literal(ScalarValue::Utf8(Some(text)), _), _) => match parse_interval(text) {
                Some(interval) => Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), None),
                None => return wrong_type("an INTERVAL", "write for example INTERVAL '30 seconds'"),
            },
            _ => {
                return wrong_type(
                    "an INTERVAL",
                    "write for example INTERVAL '30 seconds', or declare the parameter as INTERVAL",
                );
            }
        };
        let physical = Compiler::over_parameters(self.parameter_schema)?.compile(expression.clone(), position)?;
        Ok((expression, physical))
    }
}

/// What to write for a window that lasts while a value stays the same.
const ONE_STATE: &str = "write when a window opens and with which row it closes: \
                         state_window(celsius > 30, celsius < 25); one row for each time that a value stays the same \
                         is MATCH_RECOGNIZE (ORDER BY ts MEASURES FIRST(ts) AS began, LAST(ts) AS ended, a.state AS \
                         state PATTERN (a b*) DEFINE b AS state = PREV(state))";

/// The arguments of a call that has no other parts.
fn plain_arguments(call: &ast::Function) -> Option<Vec<&ast::Expr>> {
    let ast::FunctionArguments::List(list) = &call.args else { return None };
    let extras = list.duplicate_treatment.is_some()
        || !list.clauses.is_empty()
        || call.filter.is_some()
        || call.over.is_some()
        || call.null_treatment.is_some()
        || !call.within_group.is_empty();
    if extras {
        return None;
    }
    list.args
        .iter()
        .map(|argument| match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => Some(expression),
            _ => None,
        })
        .collect()
}

/// Checks that the lengths of a window are usable with given parameters.
#[derive(Clone, Debug)]
pub(crate) struct LengthCheck {
    spec: WindowSpec,
    /// The parameters in the lengths.
    parameters: Vec<String>,
    /// Whether the length is that of WITHIN in a row pattern, and not of a window.
    is_within: bool,
}

impl LengthCheck {
    /// Sets the error of every row that has unusable lengths and no error yet.
    pub(crate) fn run(&self, rows: &RecordBatch, results: &mut [Result<(), BindError>]) {
        if self.parameters.is_empty() {
            return;
        }
        let verdicts = match check_lengths(&self.spec, rows) {
            Ok(verdicts) => verdicts,
            Err(error) => {
                let error = BindError::new(None, error.to_string());
                results.iter_mut().filter(|result| result.is_ok()).for_each(|result| *result = Err(error.clone()));
                return;
            }
        };
        for (result, verdict) in results.iter_mut().zip(verdicts) {
            if let (Ok(()), Some((message, hint))) = (&result, self.complaint(verdict)) {
                let parameter = match self.parameters.as_slice() {
                    [only] => Some(only.as_str()),
                    _ => None,
                };
                *result = Err(BindError { hint, ..BindError::new(parameter, message) });
            }
        }
    }

    /// Checks lengths that use no parameters, or only parameters with defaults. Returns the message and hint if they
    /// are unusable.
    fn run_defaults(
        &self,
        parameter_schema: &SchemaRef,
        parameters: &[Parameter],
    ) -> Result<(), (String, Option<String>)> {
        let given = |name: &String| parameters.iter().any(|one| one.name == *name && one.default.is_some());
        if !self.parameters.iter().all(given) {
            return Ok(());
        }
        let failed = |error: String| (error, None);
        let columns = parameters
            .iter()
            .map(|parameter| match &parameter.default {
                Some(default) => scalar_of(default, &parameter.data_type).to_array(),
                None => Ok(new_null_array(&parameter.data_type, 1)),
            })
            .collect::<Result<_, _>>()
            .map_err(|error: datafusion_common::DataFusionError| failed(error.to_string()))?;
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let one_row = RecordBatch::try_new_with_options(parameter_schema.clone(), columns, &options)
            .map_err(|error| failed(error.to_string()))?;
        let verdicts = check_lengths(&self.spec, &one_row).map_err(|error| split_hint(&error.to_string()))?;
        match verdicts.into_iter().next().and_then(|verdict| self.complaint(verdict)) {
            Some(complaint) if self.parameters.is_empty() => Err(complaint),
            Some((message, hint)) => Err((format!("by the defaults of the parameters, {message}"), hint)),
            None => Ok(()),
        }
    }

    /// Returns what is wrong with the lengths of one query, and a hint. A slide longer than the window is wrong: rows
    /// would fall between windows, and nearly always the two are swapped.
    fn complaint(&self, verdict: Result<Lengths, LengthError>) -> Option<(String, Option<String>)> {
        match verdict {
            Err(error) => Some(self.describe(&error)),
            Ok(Lengths { width, slide, .. }) if slide > width => {
                let (slide, width, call) = match self.spec {
                    WindowSpec::Count { .. } => {
                        (format!("of {slide} rows"), format!("of {width} rows"), "count_window(rows, slide)")
                    }
                    _ => (format_us(slide), format_us(width), "hop(ts, slide, width)"),
                };
                let message = format!("the slide {slide} is longer than the width {width}, so rows would be lost");
                Some((message, Some(format!("did you swap them? write {call}"))))
            }
            Ok(_) => None,
        }
    }

    /// The operators' error in the words of this window.
    fn describe(&self, error: &LengthError) -> (String, Option<String>) {
        let is_count = matches!(self.spec, WindowSpec::Count { .. });
        if let LengthError::NotPositive { what, value } = error {
            let what = match (&self.spec, *what) {
                (WindowSpec::Session { .. }, _) => "gap",
                (WindowSpec::Count { .. }, "slide") => "slide in rows",
                (WindowSpec::Count { .. }, _) => "number of rows",
                (_, what) => what,
            };
            let value = if is_count { value.to_string() } else { format_us(*value) };
            let example = if is_count { "count_window(100)" } else { "INTERVAL '30 seconds'" };
            let message = format!("the {what} of the window must be greater than zero, and it is {value}");
            return (self.worded(message), Some(format!("write for example {example}")));
        }
        let (message, hint) = split_hint(&error.to_string());
        (self.worded(message), hint)
    }

    /// Changes a message about a gap to one about the time after WITHIN, where that is meant.
    fn worded(&self, message: String) -> String {
        if self.is_within { message.replace("gap of the window", "time after WITHIN") } else { message }
    }
}
