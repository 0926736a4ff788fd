//! The sink of a task: encodes result rows, addresses each by its slot's parameters, and hands them over in one piece.

use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::formats::{EncodedRows, Encoder, encode_row_as_json, json_escape};
use rivulet_connectors::mqtt::{PublishBatch, PublishError, PublishOptions, Publisher, Template};
use rivulet_dataflow::{Batch, QueryId, Reason, Refusal, Refusals, Refused, Sink, SinkError, Slot, SlotTable};

use super::taps::Taps;
use crate::catalog::Catalog;
use crate::service::generated_name;

/// Writes the topic of a slot into `topic`, replacing what was there.
pub(super) fn write_topic(template: &Template, slots: &SlotTable, slot: Slot, topic: &mut String) {
    topic.clear();
    template.write(topic, |parameter, out| slots.write_text(parameter, slot, out));
}

/// Where the rows of an application go; shared by the sinks of its tasks.
pub(super) struct Outputs {
    pub(super) application: String,
    /// Whether the encoder writes JSON, so that live results are the same bytes.
    pub(super) is_json: bool,
    pub(super) result: Template,
    pub(super) late: Option<Template>,
    pub(super) dead_letter: Option<Template>,
    pub(super) options: PublishOptions,
    pub(super) publisher: Arc<dyn Publisher>,
    pub(super) taps: Arc<Taps>,
    /// For the names of queries in dead letters.
    pub(super) catalog: Arc<Catalog>,
    pub(super) last_refusal: Arc<Mutex<Option<String>>>,
}

/// The sink of one task.
pub(super) struct TaskSink {
    outputs: Arc<Outputs>,
    encoder: Box<dyn Encoder>,
    rows: EncodedRows,
    messages: PublishBatch,
    topic: String,
}

impl TaskSink {
    pub(super) fn new(outputs: Arc<Outputs>, encoder: Box<dyn Encoder>) -> Self {
        Self { outputs, encoder, rows: EncodedRows::default(), messages: PublishBatch::default(), topic: String::new() }
    }

    /// What a dead letter says: everything a person needs to find out what went wrong.
    fn dead_letter(&self, refusal: &Refusal, slots: &SlotTable) -> String {
        let mut letter = format!("{{\"application\":\"{}\"", json_escape(&self.outputs.application));
        if let Some(id) = slots.query(refusal.slot) {
            let _ = write!(letter, ",\"query\":\"{}\",\"query_id\":{id}", json_escape(&self.name(id)));
        }
        let _ = write!(
            letter,
            ",\"reason\":\"{}\",\"detail\":\"{}\",\"arrival_ms\":{}",
            refusal.reason.name(),
            json_escape(detail(refusal)),
            refusal.arrival_us / 1_000,
        );
        match &refusal.content {
            Refused::Payload(payload) => match std::str::from_utf8(payload) {
                Ok(text) => {
                    let _ = write!(letter, ",\"payload\":\"{}\"", json_escape(text));
                }
                Err(_) => {
                    letter.push_str(",\"payload_hex\":\"");
                    payload.iter().for_each(|byte| {
                        let _ = write!(letter, "{byte:02x}");
                    });
                    letter.push('"');
                }
            },
            Refused::Row(row) => {
                letter.push_str(",\"row\":");
                letter.push_str(&encode_row_as_json(row, 0));
            }
        }
        letter.push('}');
        letter
    }

    /// A query's name. From the catalog, because the engine's state may not be locked here.
    fn name(&self, id: QueryId) -> String {
        match self.outputs.catalog.read_query(id, |stored| stored.name.to_owned()) {
            Ok(Some(name)) if !name.is_empty() => name,
            _ => generated_name(id),
        }
    }
}

impl Sink for TaskSink {
    fn write(&mut self, batch: &Batch, slots: &SlotTable) -> Result<(), SinkError> {
        self.rows.clear();
        self.encoder.encode(batch, &mut self.rows);
        let is_watching = self.outputs.taps.is_watching();
        let mut failure = Ok(());
        for (row, &slot) in batch.slots.iter().enumerate() {
            let Some(query) = slots.query(slot) else { continue };
            write_topic(&self.outputs.result, slots, slot, &mut self.topic);
            // A row that cannot be published must not cost the rows of other queries.
            if let Err(error) = self.messages.push(&self.topic, self.rows.row(row), self.outputs.options) {
                failure = Err(sink_error(error));
                continue;
            }
            if is_watching {
                self.outputs.taps.send(query, || {
                    if self.outputs.is_json {
                        String::from_utf8_lossy(self.rows.row(row)).into_owned()
                    } else {
                        encode_row_as_json(batch, row)
                    }
                });
            }
        }
        failure
    }

    fn refused(&mut self, refusals: &Refusals, slots: &SlotTable) -> Result<(), SinkError> {
        for refusal in refusals.records() {
            let late = self.outputs.late.as_ref().filter(|_| refusal.reason == Reason::Late);
            match (late, &refusal.content, &self.outputs.dead_letter) {
                (Some(topic), Refused::Row(row), _) => {
                    write_topic(topic, slots, refusal.slot, &mut self.topic);
                    let row = encode_row_as_json(row, 0);
                    self.messages.push(&self.topic, row.as_bytes(), self.outputs.options).map_err(sink_error)?;
                }
                (_, _, Some(topic)) => {
                    write_topic(topic, slots, refusal.slot, &mut self.topic);
                    let letter = self.dead_letter(refusal, slots);
                    self.messages.push(&self.topic, letter.as_bytes(), self.outputs.options).map_err(sink_error)?;
                }
                _ => {}
            }
        }
        if let Some(last) = refusals.records().last() {
            *self.outputs.last_refusal.lock() = Some(format!("{}: {}", last.reason.name(), detail(last)));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        if !self.messages.is_empty() {
            self.outputs.publisher.submit(&mut self.messages);
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.outputs.publisher.has_room()
    }
}

/// What was wrong, without the name of the library that noticed it.
fn detail(refusal: &Refusal) -> &str {
    refusal.detail.strip_prefix("Arrow error: ").unwrap_or(&refusal.detail)
}

fn sink_error(error: PublishError) -> SinkError {
    SinkError(error.to_string())
}
