//! Columns that come from the topic of a message: the whole topic, or the parts that its wildcards match.
//!
//! What must hold: a message is refused if its topic, repeated in all its rows, is too much text, or if it is too much
//! for a column together with the messages before it.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, StringBuilder};
use arrow::datatypes::DataType;
use rivulet_dataflow::{Batch, Decoder, Events, Refusals, Slot};

use crate::connector::message::{self, Named};
use crate::connector::{ConnectorError, Options, SourceSpec};
use crate::formats::{FormatError, RowFormat, topic};
use crate::mqtt::topic::{TopicPart, check_filter};

/// The name of the connector.
pub(super) const NAME: &str = "mqtt";

/// The most bytes of topics that all rows of one batch may have.
const BATCH_BYTES_MAX: usize = 1 << 30;

/// The origins of the columns.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    columns: message::Layout<TopicPart>,
    format: RowFormat,
}

impl Layout {
    /// Reads the options that name columns, and checks the filter.
    pub(super) fn new(
        spec: &SourceSpec,
        options: &Options,
        filter: &str,
        format: &RowFormat,
    ) -> Result<Self, ConnectorError> {
        check_filter(filter).map_err(|error| no_topic(&spec.address, &error.to_string()))?;
        let mut named = Named::none(spec);
        if let Some(name) = options.text("topic_column") {
            named.add(spec, options, ("topic_column", name), TopicPart::Whole, &DataType::Utf8)?;
        }
        let (names, parts) = (options.names("level_columns"), TopicPart::of_wildcards(filter));
        if names.len() > parts.len() {
            let problem = format!("names {} columns, and '{filter}' has {} wildcards", names.len(), parts.len());
            return Err(options.wrong("level_columns", problem, "name a column for each '+' and '#', in their order"));
        }
        for (name, part) in names.iter().zip(parts) {
            named.add(spec, options, ("level_columns", name), part, &DataType::Utf8)?;
        }
        Ok(Self { columns: message::Layout::new(spec, named, format)?, format: format.clone() })
    }

    /// Makes the decoder of payloads.
    pub(super) fn decoder(&self) -> Result<Box<dyn Decoder>, FormatError> {
        self.columns.decoder(&self.format)
    }

    /// The slot for the message with this number among those that wait.
    pub(super) fn slot(&self, message: usize) -> Slot {
        self.columns.slot(message)
    }

    /// Decodes messages to rows, and removes them.
    pub(super) fn rows(&self, messages: &mut Events, decoder: &mut dyn Decoder, refusals: &mut Refusals) -> Batch {
        let mut bounded = Bounded { decoder };
        let decoder: &mut dyn Decoder = match self.columns.has_metadata() {
            true => &mut bounded,
            false => bounded.decoder,
        };
        self.columns.decode(decoder, messages, refusals, |part, events, rows| -> ArrayRef {
            let mut column = StringBuilder::new();
            rows.iter().for_each(|&message| column.append_value(part.of_bytes(events.topic(message as usize))));
            Arc::new(column.finish())
        })
    }
}

/// A decoder that refuses messages whose topics would be too much text. The slot of a message is its number.
struct Bounded<'a> {
    decoder: &'a mut dyn Decoder,
}

impl Decoder for Bounded<'_> {
    fn decode(&mut self, events: &Events, refusals: &mut Refusals) -> Batch {
        let batch = self.decoder.decode(events, refusals);
        let mut rows = vec![0; events.rows()];
        batch.slots.iter().for_each(|&message| rows[message as usize] += 1);
        let (mut bytes, mut is_refused) = (0, false);
        let keeps: Vec<bool> = (0..events.rows())
            .map(|message| {
                let (topic, rows) = (events.topic(message), rows[message]);
                let keep = !topic::is_too_much(topic, rows) && bytes + topic.len() * rows <= BATCH_BYTES_MAX;
                match keep {
                    true => bytes += topic.len() * rows,
                    false => refusals.refuse_event(None, events.event(message), topic::too_much),
                }
                is_refused |= !keep;
                keep
            })
            .collect();
        if !is_refused {
            return batch;
        }
        let keep: BooleanArray = batch.slots.iter().map(|&message| Some(keeps[message as usize])).collect();
        batch.filter(&keep).expect("a bit for each row")
    }
}

/// The error for an address that is no topic or filter; errors about topics have their hint behind them.
pub(super) fn no_topic(address: &str, error: &str) -> ConnectorError {
    let (problem, hint) = error.split_once("\nhint: ").unwrap_or((error, "write 'mqtt:home/+/temperature'"));
    ConnectorError::address(NAME, address, format!("is not a topic: {problem}"), hint)
}
