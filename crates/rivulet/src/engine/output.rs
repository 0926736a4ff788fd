//! The sink of a group: encodes result rows, addresses each by its slot's parameters, and hands them over in one piece.

use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::formats::{EncodedRows, Encoder, encode_row_as_json, json_escape};
use rivulet_connectors::mqtt::{PublishBatch, PublishError, PublishOptions, Publisher, Template};
use rivulet_dataflow::{Batch, Reason, Refusal, Refusals, Refused, Sink, SinkError, Slot, SlotTable};

use super::taps::Taps;

/// Writes the topic of a slot into `topic`, replacing what was there.
pub(super) fn write_topic(template: &Template, slots: &SlotTable, slot: Slot, topic: &mut String) {
    topic.clear();
    template.write(topic, |parameter, out| slots.write_text(parameter, slot, out));
}

/// What a sink is made of.
pub(super) struct Outputs {
    pub(super) application: String,
    pub(super) encoder: Box<dyn Encoder>,
    /// Whether the encoder writes JSON, so that live results are the same bytes.
    pub(super) is_json: bool,
    pub(super) result: Template,
    pub(super) late: Option<Template>,
    pub(super) dead_letter: Option<Template>,
    pub(super) options: PublishOptions,
    pub(super) publisher: Arc<dyn Publisher>,
    pub(super) taps: Arc<Taps>,
    pub(super) last_refusal: Arc<Mutex<Option<String>>>,
}

/// The sink of one group.
pub(super) struct GroupSink {
    outputs: Outputs,
    rows: EncodedRows,
    messages: PublishBatch,
    topic: String,
}

impl GroupSink {
    pub(super) fn new(outputs: Outputs) -> Self {
        Self { outputs, rows: EncodedRows::default(), messages: PublishBatch::default(), topic: String::new() }
    }

    /// What a dead letter says: everything a person needs to find out what went wrong.
    fn dead_letter(&self, refusal: &Refusal, slots: &SlotTable) -> String {
        let mut letter = format!(
            "{{\"application\":\"{}\",\"query_id\":{},\"reason\":\"{}\",\"detail\":\"{}\",\"arrival_ms\":{}",
            json_escape(&self.outputs.application),
            slots.query(refusal.slot).unwrap_or_default(),
            refusal.reason.name(),
            json_escape(&refusal.detail),
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
}

impl Sink for GroupSink {
    fn write(&mut self, batch: &Batch, slots: &SlotTable) -> Result<(), SinkError> {
        self.rows.clear();
        self.outputs.encoder.encode(batch, &mut self.rows);
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
            *self.outputs.last_refusal.lock() = Some(format!("{}: {}", last.reason.name(), last.detail));
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

fn sink_error(error: PublishError) -> SinkError {
    SinkError(error.to_string())
}
