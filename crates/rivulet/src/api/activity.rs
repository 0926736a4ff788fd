//! What became of the events of one query, as it goes over the wire. Times are milliseconds since the epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::service::{self, StepActivity};

/// What became of a query's events, and what it waits for. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryActivity {
    /// When this was found, by the server's clock.
    pub now_ms: i64,
    /// Since when events, rows and results are counted.
    pub counted_since_ms: i64,
    /// Until when they are counted if nobody asks again. Without it counting goes on with the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_until_ms: Option<i64>,
    /// Whether that is since the query was created, or the server started.
    pub is_from_start: bool,
    /// Whether that is since the query got other values.
    #[serde(default)]
    pub is_from_change: bool,
    /// Each input, in the order of declaration.
    pub inputs: Vec<QueryInput>,
    /// Events that wait to be processed.
    pub waiting: u64,
    /// Whether its state waits on disk for the next event.
    #[serde(default)]
    pub is_spilled: bool,
    /// Refused rows by reason.
    pub refused: BTreeMap<String, u64>,
    /// The last refused row of which the content was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<QueryRefusal>,
    /// Rows that reached each operator, in their order.
    pub steps: Vec<StepActivity>,
    /// Columns that were null in all events, though a condition or an aggregate reads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub null_columns: Vec<String>,
    /// Rows that WHERE and HAVING did not let through.
    pub filtered_out: u64,
    /// Results.
    pub results: u64,
    /// Results that the query has ever given, where that outlives the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results_ever: Option<u64>,
    /// When the last result was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_result_ms: Option<i64>,
    /// The last result as JSON; kept while somebody asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_result: Option<String>,
    /// The time of the last event, as its input declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event_time_ms: Option<i64>,
    /// The latest event time that its windows or its join have seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<i64>,
    /// Up to where its windows are closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark_ms: Option<i64>,
    /// Begin of the open window that closes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_start_ms: Option<i64>,
    /// Its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_end_ms: Option<i64>,
    /// How many keys have open windows; 1 without keys.
    pub open_windows: u64,
    /// Whether the query has so many keys that not all were looked at: more windows are open than this says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_more_keys: bool,
    /// When something is due although no event comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_timer_ms: Option<i64>,
}

/// What came by one input of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryInput {
    /// Its name.
    #[schema(example = "temperature")]
    pub name: String,
    /// The topic that the query reads.
    #[schema(example = "home/42/temperature")]
    pub topic: String,
    /// Events.
    pub events: u64,
    /// When the last one came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ms: Option<i64>,
    /// Of a topic that many queries read: its events, also those that the query's WHERE cannot let through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_events: Option<u64>,
}

/// A row that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryRefusal {
    /// The kind of reason.
    #[schema(example = "decode")]
    pub reason: String,
    /// What was wrong, in words.
    pub detail: String,
    /// The payload as text, or the row as JSON; cut off if it is long.
    pub content: String,
    /// When the event came.
    pub at_ms: i64,
}

impl From<service::QueryActivity> for QueryActivity {
    fn from(activity: service::QueryActivity) -> Self {
        let ms = |us: i64| us.div_euclid(1_000);
        let input = |input: service::InputActivity| {
            let service::InputActivity { name, topic, events, last_us, topic_events } = input;
            QueryInput { name, topic, events, last_ms: last_us.map(ms), topic_events }
        };
        let refusal = |refusal: service::QueryRefusal| {
            let service::QueryRefusal { reason, detail, content, at_us, is_row: _ } = refusal;
            QueryRefusal { reason, detail, content, at_ms: ms(at_us) }
        };
        Self {
            now_ms: ms(activity.now_us),
            counted_since_ms: ms(activity.counted_since_us),
            counted_until_ms: activity.counted_until_us.map(ms),
            is_from_start: activity.is_from_start,
            is_from_change: activity.is_from_change,
            inputs: activity.inputs.into_iter().map(input).collect(),
            waiting: activity.waiting,
            is_spilled: activity.is_spilled,
            refused: activity.refused,
            last_refusal: activity.last_refusal.map(refusal),
            steps: activity.steps,
            null_columns: activity.null_columns.into_iter().map(|column| column.name).collect(),
            filtered_out: activity.filtered_out,
            results: activity.results,
            results_ever: activity.results_ever,
            last_result_ms: activity.last_result_us.map(ms),
            last_result: activity.last_result,
            last_event_time_ms: activity.last_event_time_us.map(|(time_us, _)| ms(time_us)),
            clock_ms: activity.clock_us.map(ms),
            watermark_ms: activity.watermark_us.map(ms),
            window_start_ms: activity.window_us.map(|(start_us, _)| ms(start_us)),
            window_end_ms: activity.window_us.and_then(|(_, end_us)| end_us).map(ms),
            open_windows: activity.open_windows,
            has_more_keys: activity.has_more_keys,
            next_timer_ms: activity.next_timer_us.map(ms),
        }
    }
}
