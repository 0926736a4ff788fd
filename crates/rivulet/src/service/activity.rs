//! What becomes of the events of one query of an application, for users who ask why it gives its results.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What became of a query's events, and what it waits for. Times are microseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryActivity {
    /// When this was read, by the server's clock.
    pub now_us: i64,
    /// Since when events, rows and results are counted.
    pub counted_since_us: i64,
    /// Until when, if no user asks again; `None` if counting goes on with the query.
    pub counted_until_us: Option<i64>,
    /// Whether that is since the query was created, or the server started.
    pub is_from_start: bool,
    /// Whether it is since the query got other values.
    pub is_from_change: bool,
    /// Each input, in the order of declaration.
    pub inputs: Vec<InputActivity>,
    /// Events that wait to be processed.
    pub waiting: u64,
    /// Whether its state waits on disk for the next event.
    pub is_spilled: bool,
    /// Refused rows by reason; reasons without refusals are left out.
    pub refused: BTreeMap<String, u64>,
    /// The last refused row of which the content was kept.
    pub last_refusal: Option<QueryRefusal>,
    /// Rows that reached each operator, in their order.
    pub steps: Vec<StepActivity>,
    /// Declared columns of its inputs that were null in all events, though a condition or an aggregate reads them.
    pub null_columns: Vec<NullColumn>,
    /// Rows that WHERE and HAVING did not let through.
    pub filtered_out: u64,
    /// Results.
    pub results: u64,
    /// Results that the query has ever given, if that number outlives the process.
    pub results_ever: Option<u64>,
    /// When the last result was given.
    pub last_result_us: Option<i64>,
    /// The last result as JSON; kept while a user asks about the query.
    pub last_result: Option<String>,
    /// The time of the last event, as its input declares it, and when that event arrived.
    pub last_event_time_us: Option<(i64, i64)>,
    /// The latest event time that its windows or its join have seen.
    pub clock_us: Option<i64>,
    /// The event time up to which its windows are closed.
    pub watermark_us: Option<i64>,
    /// Begin and end of the open window that closes first. Where a row decides when it closes, there is no end yet.
    pub window_us: Option<(i64, Option<i64>)>,
    /// The number of keys with open windows; 1 without keys.
    pub open_windows: u64,
    /// For a window of rows: how many rows have come since the last one closed, and how many close it.
    pub rows_of: Option<(u64, u64)>,
    /// For a join: how many rows wait on each side.
    pub joined_sides: Option<[u64; 2]>,
    /// Whether it has so many keys that not all were looked at: there are more windows, and rows of a join, than these.
    pub has_more_keys: bool,
    /// When the next timer is due, if no event comes.
    pub next_timer_us: Option<i64>,
}

/// The events of one input of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputActivity {
    /// Its name.
    pub name: String,
    /// The topic that the query reads.
    pub topic: String,
    /// Events.
    pub events: u64,
    /// When the last one came.
    pub last_us: Option<i64>,
    /// For a topic that many queries read: its events, including those that the query's WHERE cannot let through.
    pub topic_events: Option<u64>,
}

/// How many rows reached an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = QueryStep)]
pub struct StepActivity {
    /// What it does, as `EXPLAIN` says it.
    #[schema(example = "filter")]
    pub operator: String,
    /// Rows that reached it.
    pub rows: u64,
}

/// A column that was null in all events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NullColumn {
    /// Its name.
    pub name: String,
    /// The number of rows.
    pub rows: u64,
    /// The fields that the last payload has instead; empty if it has the field, or is not known to be a JSON object.
    pub instead: Vec<String>,
}

/// A row that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryRefusal {
    /// The kind of reason.
    pub reason: String,
    /// What was wrong, in words.
    pub detail: String,
    /// The payload as text, or the row as JSON; cut off if it is long.
    pub content: String,
    /// Whether the content is a decoded row.
    pub is_row: bool,
    /// When the event came.
    pub at_us: i64,
}

/// Since when events are counted, in words.
pub(crate) fn counted_from(is_from_start: bool, is_from_change: bool) -> &'static str {
    match (is_from_start, is_from_change) {
        (true, _) => "the start of the query",
        (_, true) => "the last change of its values",
        _ => "the first question",
    }
}

impl QueryActivity {
    /// All events.
    pub fn events(&self) -> u64 {
        self.inputs.iter().map(|input| input.events).sum()
    }

    /// All refused rows.
    pub fn refused_rows(&self) -> u64 {
        self.refused.values().sum()
    }
}
