//! What is known of one query for users who ask why it gives its results: what became of its events, and what it waits
//! for.
//!
//! What must hold: a question costs a look at one slot. The counting that it starts ends by itself.

use std::sync::Arc;

use rivulet_connectors::formats::encode_row_as_json;
use rivulet_dataflow::{Batch, QueryId, Reason, Refusal, Refused, Slot};
use rivulet_runtime::Examined;

use super::Queries;
use super::nulls::null_columns;
use crate::engine::running::{Running, by_reason, topics_of};
use crate::service::{InputActivity, QueryActivity, QueryRefusal, StepActivity};

/// How long events of a query are counted after the last question about it, and after its window has closed.
const COUNTED_US: i64 = 600_000_000;

/// The most characters that are shown of a payload or row.
const CONTENT_MAX: usize = 1_024;

impl Queries {
    /// What is known of a query that runs or is paused; `None` if it was dropped meanwhile, or runs in parts.
    pub(super) fn activity(&self, running: &Arc<Running>, slot: Slot, id: QueryId) -> Option<QueryActivity> {
        let found = running.group.examine(slot, id, COUNTED_US)?;
        let topics = topics_of(running, &[slot]).pop().unwrap_or_default();
        let counted_us = found.tally.until_us().map_or(COUNTED_US, |until_us| until_us.saturating_sub(found.now_us));
        let inputs = running.application.inputs.iter().zip(topics).enumerate().map(|(place, (input, topic))| {
            let came = found.tally.inputs.get(place).copied().unwrap_or_default();
            let topic_events = self.routing.events_of_shared(running, &topic, counted_us);
            let last_us = (came.rows > 0).then_some(came.arrival_us);
            let topic = running.topics.inputs[place].shown(input, topic);
            InputActivity { name: input.name.clone(), topic, events: came.rows, last_us, topic_events }
        });
        let inputs = inputs.collect();
        Some(QueryActivity { inputs, ..of_examined(running, &found) })
    }
}

fn of_examined(running: &Running, found: &Examined) -> QueryActivity {
    let (tally, application) = (&found.tally, &running.application);
    let operators = application.dataflow.operators();
    let names: Vec<String> = operators.iter().map(|factory| factory.describe().operator).collect();
    let reached = |place: usize| tally.reached(names.len() - place);
    let steps = names.iter().enumerate();
    let steps = steps.map(|(place, name)| StepActivity { operator: name.clone(), rows: reached(place).rows }).collect();
    let of_filter = |place: usize| reached(place).rows.saturating_sub(reached(place + 1).rows);
    let filters = names.iter().enumerate().filter(|(_, name)| *name == "filter");
    let filtered_out = filters.map(|(place, _)| of_filter(place)).sum::<u64>();
    let timed = names.iter().position(|name| name == "assign time").map(|place| reached(place + 1));
    let timed = timed.filter(|came| came.rows > 0 && application.inputs.iter().any(|input| input.event_time.is_some()));
    let results = tally.reached(0);
    let mut activity = QueryActivity {
        now_us: found.now_us,
        counted_since_us: tally.since_us,
        counted_until_us: tally.until_us(),
        is_from_start: tally.is_from_start,
        is_from_change: tally.is_from_change,
        waiting: found.waiting,
        is_spilled: found.is_spilled,
        refused: by_reason(&tally.refused),
        last_refusal: tally.last_refusal.as_ref().map(refusal),
        steps,
        null_columns: null_columns(application, tally, &names),
        filtered_out: filtered_out.saturating_sub(tally.refused[Reason::Expression as usize]),
        results: results.rows,
        results_ever: found.results,
        last_result_us: (results.rows > 0).then_some(results.at_us),
        last_result: tally.last_result.as_ref().map(|row| cut_off(encode_row_as_json(&shown(running, row), 0))),
        last_event_time_us: timed.map(|came| (came.time_us, came.arrival_us)),
        next_timer_us: found.timer_us,
        ..QueryActivity::default()
    };
    for holding in found.holdings.iter().flatten() {
        activity.clock_us = activity.clock_us.max(holding.newest_us);
        activity.watermark_us = activity.watermark_us.max(holding.watermark_us);
        activity.window_us = activity.window_us.or(holding.window);
        activity.open_windows += holding.open_keys;
        activity.rows_of = activity.rows_of.or(holding.rows_of);
        activity.joined_sides = activity.joined_sides.or(holding.sides);
        activity.has_more_keys |= holding.has_more_keys;
    }
    activity
}

/// A result without the column that names its outputs.
fn shown(running: &Running, row: &Batch) -> Batch {
    let columns = row.columns.num_columns() - usize::from(running.application.has_output_bits);
    row.columns.project(&(0..columns).collect::<Vec<_>>()).map_or_else(|_| row.clone(), |shown| row.with_columns(shown))
}

fn refusal(refusal: &Refusal) -> QueryRefusal {
    let content = match &refusal.content {
        Refused::Payload(payload) => String::from_utf8_lossy(payload).into_owned(),
        Refused::Row(row) => encode_row_as_json(row, 0),
    };
    QueryRefusal {
        reason: refusal.reason.name().to_owned(),
        detail: refusal.detail.clone(),
        content: cut_off(content),
        is_row: matches!(refusal.content, Refused::Row(_)),
        at_us: refusal.arrival_us,
    }
}

/// The first characters of a text.
fn cut_off(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(CONTENT_MAX) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}
