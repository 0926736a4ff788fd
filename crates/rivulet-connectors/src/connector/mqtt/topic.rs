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
use crate::mqtt::topic::check_filter;

/// A part of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// All of it.
    Whole,
    /// The level at this place.
    Level(usize),
    /// Everything from the level at this place on; nothing where the topic ends before it.
    Rest(usize),
}

impl Part {
    /// What the wildcards of a filter stand for, in their order.
    fn of_wildcards(filter: &str) -> Vec<Self> {
        let wildcard = |(place, level)| match level {
            "+" => Some(Self::Level(place)),
            "#" => Some(Self::Rest(place)),
            _ => None,
        };
        filter.split('/').enumerate().filter_map(wildcard).collect()
    }

    fn of(self, topic: &str) -> &str {
        match self {
            Self::Whole => topic,
            Self::Level(place) => topic.split('/').nth(place).unwrap_or_default(),
            Self::Rest(place) => topic.splitn(place + 1, '/').nth(place).unwrap_or_default(),
        }
    }
}

/// Which columns come from where.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    columns: message::Layout<Part>,
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
            named.add(spec, options, ("topic_column", name), Part::Whole, &DataType::Utf8)?;
        }
        let (names, parts) = (options.names("level_columns"), Part::of_wildcards(filter));
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
        let Messages { events, topics, .. } = messages;
        let column = |part: Part, messages: &[Slot]| -> ArrayRef {
            let mut column = StringBuilder::new();
            messages.iter().for_each(|&message| column.append_value(part.of(topics.get(message as usize))));
            Arc::new(column.finish())
        };
        let rows = self.columns.decode(decoder, events, refusals, column);
        topics.clear();
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_parts_of_topics() {
        let parts = Part::of_wildcards("home/+/room/+/#");
        let of = |topic: &'static str| parts.iter().map(|part| part.of(topic)).collect::<Vec<_>>();
        assert_eq!(of("home/7/room/bath/temperature/mean"), ["7", "bath", "temperature/mean"]);
        assert_eq!(of("home/7/room/bath"), ["7", "bath", ""], "'#' stands for nothing as well");
        assert_eq!(of("home//room//"), ["", "", ""]);
        assert_eq!(Part::of_wildcards("home/7/a+b"), []);
        assert_eq!(Part::of_wildcards("#")[0].of("a/b"), "a/b");
        assert_eq!(Part::Whole.of("a/b"), "a/b");
    }
}
