//! Rows that a query refuses, in the form of an application's dead letters: the query, the source, the reason, and the
//! content.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringBuilder};
use rivulet_connectors::formats::encode_row_as_json;
use rivulet_dataflow::{Batch, Refusal, Refused};
use rivulet_runtime::Letters;
use rivulet_sql::{QueryPlan, letter_schema};

/// The dead letters of one query.
pub(super) struct QueryLetters {
    query: String,
    /// The names of its sources.
    sources: Vec<String>,
}

impl QueryLetters {
    pub(super) fn of(plan: &QueryPlan, query: &str) -> Arc<dyn Letters> {
        let sources = plan.sources.iter().map(|source| source.declaration.name.text.clone()).collect();
        Arc::new(Self { query: query.to_owned(), sources })
    }
}

impl Letters for QueryLetters {
    fn rows(&self, refusals: &[&Refusal], sources: &[usize]) -> Result<Batch, String> {
        // If several sources have been joined, the source of the row is unknown.
        let source = match sources {
            [one] => self.sources.get(*one).map(String::as_str),
            _ => None,
        };
        let mut texts: [StringBuilder; 7] = Default::default();
        let [queries, of_sources, reasons, details, payloads, hex, rows] = &mut texts;
        for refusal in refusals {
            queries.append_value(&self.query);
            of_sources.append_option(source);
            reasons.append_value(refusal.reason.name());
            // What was wrong and what to do, on one line.
            details.append_value(refusal.detail.replace("\nhint: ", "; "));
            let (mut payload, mut payload_hex, mut row) = (None, None, None);
            match &refusal.content {
                Refused::Payload(bytes) => match std::str::from_utf8(bytes) {
                    Ok(text) => payload = Some(text),
                    Err(_) => payload_hex = Some(hex::encode(bytes)),
                },
                Refused::Row(batch) => row = Some(encode_row_as_json(batch, 0)),
            }
            payloads.append_option(payload);
            hex.append_option(payload_hex);
            rows.append_option(row);
        }
        let [queries, of_sources, reasons, details, payloads, hex, rows] =
            texts.each_mut().map(|column| Arc::new(column.finish()) as ArrayRef);
        let arrivals_ms = Int64Array::from_iter_values(refusals.iter().map(|refusal| refusal.arrival_us / 1_000));
        let columns = vec![queries, of_sources, reasons, details, Arc::new(arrivals_ms), payloads, hex, rows];
        let columns = RecordBatch::try_new(letter_schema(), columns).map_err(|error| error.to_string())?;
        let arrivals_us: Vec<i64> = refusals.iter().map(|refusal| refusal.arrival_us).collect();
        Ok(Batch::new(vec![0; refusals.len()].into(), arrivals_us.clone().into(), arrivals_us.into(), columns))
    }
}
