//! Rows that a query refuses, in the form of an application's dead letters: the query, the source, the reason, and the
//! content.

use std::borrow::Cow;
use std::iter;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringBuilder, TimestampMicrosecondArray};
use arrow::datatypes::{Field, FieldRef, Schema};
use rivulet_connectors::formats::encode_row_as_json;
use rivulet_dataflow::{Batch, Reason, Refusal, Refused};
use rivulet_runtime::Letters;
use rivulet_sql::{PlannedSource, QueryPlan, letter_schema};

/// The dead letters of one query.
pub(super) struct QueryLetters {
    query: String,
    sources: Vec<Named>,
}

/// The names of a source and of the column of its event time.
struct Named {
    source: String,
    time: Option<String>,
}

impl QueryLetters {
    pub(super) fn of(plan: &QueryPlan, query: &str) -> Arc<dyn Letters> {
        let named = |source: &PlannedSource| {
            let declaration = &source.declaration;
            let time = declaration.event_time_column.map(|column| declaration.schema.field(column).name().clone());
            Named { source: declaration.name.text.clone(), time }
        };
        Arc::new(Self { query: query.to_owned(), sources: plan.sources.iter().map(named).collect() })
    }
}

impl Letters for QueryLetters {
    fn rows(&self, refusals: &[&Refusal], sources: &[usize]) -> Result<Batch, String> {
        // If several sources have been joined, the source of the row is unknown.
        let source = match sources {
            [one] => self.sources.get(*one),
            _ => None,
        };
        let time = source.and_then(|source| source.time.as_deref());
        let mut texts: [StringBuilder; 7] = Default::default();
        let [queries, of_sources, reasons, details, payloads, hex, rows] = &mut texts;
        for refusal in refusals {
            queries.append_value(&self.query);
            of_sources.append_option(source.map(|source| &source.source));
            reasons.append_value(refusal.reason.name());
            // What was wrong and what to do, on one line.
            details.append_value(refusal.detail.replace("\nhint: ", "; "));
            let (mut payload, mut payload_hex, mut row) = (None, None, None);
            match &refusal.content {
                Refused::Payload(bytes) => match std::str::from_utf8(bytes) {
                    Ok(text) => payload = Some(text),
                    Err(_) => payload_hex = Some(hex::encode(bytes)),
                },
                Refused::Row(batch) => {
                    let time = time.filter(|_| refusal.reason == Reason::Late);
                    row = Some(encode_row_as_json(&with_time(batch, time), 0));
                }
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

/// A row with the column of its event time, which an operator that needs only the times of rows does not get.
fn with_time<'a>(batch: &'a Batch, time: Option<&str>) -> Cow<'a, Batch> {
    let schema = batch.columns.schema_ref();
    let Some(time) = time.filter(|time| schema.index_of(time).is_err()) else { return Cow::Borrowed(batch) };
    let times = TimestampMicrosecondArray::from(batch.event_time_us.to_vec());
    let fields = iter::once(Arc::new(Field::new(time, times.data_type().clone(), false)));
    let fields: Vec<FieldRef> = fields.chain(schema.fields().iter().cloned()).collect();
    let columns = iter::once(Arc::new(times) as ArrayRef).chain(batch.columns.columns().iter().cloned());
    match RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.collect()) {
        Ok(columns) => Cow::Owned(batch.with_columns(columns)),
        Err(_) => Cow::Borrowed(batch),
    }
}
