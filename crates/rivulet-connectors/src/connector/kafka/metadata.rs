//! Columns that come from a message itself: its key, partition, offset and time.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, StringBuilder, TimestampMicrosecondBuilder};
use arrow::datatypes::{DataType, TimeUnit};
use rivulet_dataflow::{Batch, Decoder, Events, Reason, Refusals, Refused, Slot};

use super::block::Block;
use crate::connector::message::{self, Named};
use crate::connector::{ConnectorError, Options, SourceSpec};
use crate::formats::{FormatError, RowFormat};

/// The part of a message that a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Key,
    Partition,
    Offset,
    Timestamp,
}

impl Kind {
    const ALL: [(&'static str, Self); 4] = [
        ("key_column", Self::Key),
        ("partition_column", Self::Partition),
        ("offset_column", Self::Offset),
        ("timestamp_column", Self::Timestamp),
    ];

    fn data_type(self) -> DataType {
        match self {
            Self::Key => DataType::Utf8,
            Self::Partition | Self::Offset => DataType::Int64,
            Self::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
        }
    }
}

/// The origins of the columns.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    columns: message::Layout<Kind>,
    /// Whether messages without a value are tombstones, which say nothing more than the deletion before them.
    has_tombstones: bool,
}

impl Layout {
    /// Reads the options that name columns.
    pub(super) fn new(spec: &SourceSpec, options: &Options, format: &RowFormat) -> Result<Self, ConnectorError> {
        let mut named = Named::none(spec);
        for (option, kind) in Kind::ALL {
            if let Some(name) = options.text(option) {
                if format.has_changes() && matches!(kind, Kind::Offset | Kind::Timestamp) {
                    let problem = format!("does not go with FORMAT {}", format.name());
                    let hint = "a row comes and is taken back by two messages, whose offsets and times differ; declare \
                                a column of the row";
                    return Err(options.wrong(option, problem, hint));
                }
                named.add(spec, options, (option, name), kind, &kind.data_type())?;
            }
        }
        Ok(Self { columns: message::Layout::new(spec, named, format)?, has_tombstones: format.has_changes() })
    }

    /// Makes the decoder of payloads.
    pub(super) fn decoder(&self, format: &RowFormat) -> Result<Box<dyn Decoder>, FormatError> {
        self.columns.decoder(format)
    }

    /// The rows of the messages of `block` from `first` up to `end`; `events` is empty before and after.
    pub(super) fn rows(
        &self,
        block: &Block,
        messages: std::ops::Range<usize>,
        decoder: &mut dyn Decoder,
        events: &mut Events,
        now_us: i64,
        refusals: &mut Refusals,
    ) -> Batch {
        for index in messages {
            let message = block.message(index);
            let lacking = self.columns.required().iter().find(|(kind, _)| lacks(&message, *kind));
            match (message.payload, lacking) {
                (Some(payload), None) => events.push(self.columns.slot(index), now_us, payload),
                (None, _) if self.has_tombstones => {}
                (payload, _) => refusals.refuse(0, Reason::Decode, now_us, || {
                    let detail = match lacking {
                        Some((_, name)) if payload.is_some() => {
                            format!("the message has nothing for the column '{name}'")
                        }
                        _ => "the message has no value".to_owned(),
                    };
                    (detail, Refused::Payload(payload.unwrap_or_default().into()))
                }),
            }
        }
        self.columns.decode(decoder, events, refusals, |kind, _, messages| message_column(kind, block, messages))
    }
}

fn message_column(kind: Kind, block: &Block, messages: &[Slot]) -> ArrayRef {
    let messages = messages.iter().map(|&index| block.message(index as usize));
    match kind {
        Kind::Key => {
            let mut column = StringBuilder::new();
            messages.for_each(|message| column.append_option(key_text(message.key)));
            Arc::new(column.finish())
        }
        Kind::Partition | Kind::Offset => {
            let mut column = Int64Builder::new();
            messages.for_each(|message| {
                column.append_value(if kind == Kind::Offset { message.offset } else { i64::from(message.partition) });
            });
            Arc::new(column.finish())
        }
        Kind::Timestamp => {
            let mut column = TimestampMicrosecondBuilder::new();
            messages.for_each(|message| column.append_option(time_us(message.time_ms)));
            Arc::new(column.finish())
        }
    }
}

/// A key as text; bytes that are not text count as no key.
fn key_text(key: Option<&[u8]>) -> Option<&str> {
    std::str::from_utf8(key?).ok()
}

fn time_us(time_ms: Option<i64>) -> Option<i64> {
    time_ms?.checked_mul(1000)
}

fn lacks(message: &super::block::Received<'_>, kind: Kind) -> bool {
    match kind {
        Kind::Key => key_text(message.key).is_none(),
        Kind::Timestamp => time_us(message.time_ms).is_none(),
        Kind::Partition | Kind::Offset => false,
    }
}
