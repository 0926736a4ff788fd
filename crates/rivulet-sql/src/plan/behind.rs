//! What the SELECT around another one needs to know of its results: their event time, the columns that only tell the
//! time of a window, its keys, and whether its rows can be compared.

use datafusion_common::Column;
use datafusion_expr::Expr;
use rivulet_operators::WindowSpec;

use super::check::{ARRIVAL_TIME, WINDOW_END, WINDOW_START};
use super::lookup::PlannedLookup;
use super::operators::Operators;
use super::planner::SelectPlanner;
use super::results::{Behind, ResultsOf, is_column};
use super::steps::Output;
use super::window::{EventTime, Window};
use super::window_results::Key;
use crate::SqlError;

const NO_WINDOW_END: EventTime = EventTime::Missing(
    "the results of the subquery have no event time",
    "select window_end in it: the time of a result is the last moment of its window",
);
const NO_EVENT_TIME: EventTime =
    EventTime::Missing("the results of the subquery have no event time", "select the event time in it, as it is");

impl SelectPlanner<'_> {
    /// The columns that distinguish the rows of one window of the SELECT that this one reads.
    pub(super) fn keys_of_results(&self) -> Result<Vec<Expr>, SqlError> {
        let keys = self.source.results.iter().flat_map(|results| &results.keys);
        let keys = keys.map(|key| match key {
            Ok(name) => Ok(Expr::Column(Column::new_unqualified(name))),
            Err(text) => Err(SqlError::new(
                self.select.position,
                format!(
                    "EMIT ON CHANGE compares with the last row of the same '{text}', which the subquery does not have"
                ),
            )
            .hint(format!("select it in the subquery: SELECT {text}, ..."))),
        });
        keys.collect()
    }

    /// The planned SELECT. `output` are its columns and the expressions they are; a window has bounds and keys.
    pub(super) fn behind(&self, mut operators: Operators, output: Output, window: Option<(&Window, &[Key])>) -> Behind {
        let Output { columns, expressions, texts } = output;
        let source = self.source;
        let with = |name: &str| {
            expressions.iter().find(|(_, expression)| is_column(expression, name)).map(|(column, _)| column.clone())
        };
        let event_time = match (&window, &source.event_time) {
            (Some(_), _) => with(WINDOW_END).map_or(NO_WINDOW_END, EventTime::Column),
            (None, EventTime::Column(name)) => with(name).map_or(NO_EVENT_TIME, EventTime::Column),
            (None, EventTime::Arrival) => with(ARRIVAL_TIME).map_or(NO_EVENT_TIME, EventTime::Column),
            (None, EventTime::Missing(..)) => source.event_time.clone(),
        };
        let bounds = expressions.iter().filter(|(_, expression)| self.is_made_of_bounds(expression));
        let before = source.results.as_ref();
        let keys = match window {
            Some((_, keys)) => keys.iter().map(|key| with(key.name()).ok_or_else(|| key.name().clone())).collect(),
            None => before.map_or_else(Vec::new, |results| {
                let key = |key: &Result<String, String>| {
                    key.as_ref().map_err(String::clone).and_then(|name| with(name).ok_or_else(|| name.clone()))
                };
                results.keys.iter().map(key).collect()
            }),
        };
        let of_window = window.map_or_else(String::new, |(window, _)| format!("{}: ", window.text));
        let of_before = before.map_or_else(String::new, |results| format!(", over {}", results.text));
        let was_of_windows = before.is_some_and(|results| results.of_windows);
        let is_ranked = match window {
            Some((window, _)) => {
                !matches!(window.spec, WindowSpec::Count { .. } | WindowSpec::Session { .. } | WindowSpec::State)
            }
            None => before.is_some_and(|results| results.can_be_ranked) && self.keeps_batches(),
        };
        let has_bounds = [WINDOW_START, WINDOW_END].iter().all(|bound| with(bound).as_deref() == Some(*bound));
        let results = ResultsOf {
            can_be_ranked: is_ranked && has_bounds,
            // Windows of rows over the results of windows by time close in the order of these.
            of_windows: window.map_or(was_of_windows, |(window, _)| window.is_time() || was_of_windows),
            bounds: bounds.map(|(column, _)| column.clone()).collect(),
            keys,
            text: format!("{of_window}{}{of_before}", texts.join(", ")),
        };
        operators.name_results(&expressions);
        operators.tables.extend(self.lookups.iter().map(PlannedLookup::table_use));
        operators.bound_checks.extend_from_slice(source.checks());
        if let Some((window, _)) = window {
            operators.window = Some(window.text.clone());
            operators.checks.push(window.check.clone());
        }
        Behind {
            operators,
            input: (source.name.to_owned(), source.alias.map(str::to_owned)),
            columns,
            event_time,
            lateness_us: source.lateness_us,
            idle_timeout_us: source.idle_timeout_us,
            by_arrival: source.by_arrival,
            results,
            row_schema: source.row_schema.clone(),
        }
    }
}
