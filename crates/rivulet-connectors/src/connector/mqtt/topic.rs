//! Columns that come from the topic of a message: all of it, or what its wildcards stand for.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringBuilder};
use arrow::datatypes::DataType;
use rivulet_dataflow::{Decoder, Refusals, Slot};

use super::inbox::Messages;
use super::no_topic;
use crate::connector::message::{self, Named};
use crate::connector::{ConnectorError, Options, SourceSpec};
use crate::formats::{FormatError, RowFormat};
use crate::mqtt::topic::{TopicPart, check_filter};

/// Which columns come from where.
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

    /// Decodes payloads.
    pub(super) fn decoder(&self) -> Result<Box<dyn Decoder>, FormatError> {
        self.columns.decoder(&self.format)
    }

    /// The slot for the message with this number among those that wait.
    pub(super) fn slot(&self, message: usize) -> Slot {
        self.columns.slot(message)
    }

    /// The rows of messages, which are gone then.
    pub(super) fn rows(
        &self,
        messages: &mut Messages,
        decoder: &mut dyn Decoder,
        refusals: &mut Refusals,
    ) -> RecordBatch {
        self.columns.decode(decoder, &mut messages.events, refusals, |part, events, rows| -> ArrayRef {
            let mut column = StringBuilder::new();
            rows.iter().for_each(|&message| column.append_value(part.of_bytes(events.topic(message as usize))));
            Arc::new(column.finish())
        })
    }
}
