//! Columns that come from a message itself: its key, partition, offset and time.
//!
//! What must hold: a row has the metadata of the message it came from, however many rows its payload gave.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int64Builder, RecordBatch, RecordBatchOptions, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use rivulet_dataflow::{Decoder, Events, Reason, Refusals, Refused, Slot};

use super::fetch::Block;
use crate::connector::{ConnectorError, Options, SourceSpec};
use crate::formats::{FormatError, RowFormat};

/// What a column is.
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

/// Where a column that is read comes from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// The column of the decoded payload at this place.
    Payload(usize),
    /// The message.
    Message(Kind),
}

/// Which columns come from where.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The rows that come out.
    schema: SchemaRef,
    origins: Vec<Origin>,
    /// The declared columns that payloads have.
    payload: SchemaRef,
    /// Those of them that are read, and the event time among the former.
    payload_read: Vec<usize>,
    payload_event_time: Option<usize>,
    has_metadata: bool,
    /// What a message may not lack, and the name of its column.
    required: Vec<(Kind, String)>,
}

impl Layout {
    /// Reads the options that name columns.
    pub(super) fn new(spec: &SourceSpec, options: &Options, format: &RowFormat) -> Result<Self, ConnectorError> {
        let mut kinds: Vec<Option<Kind>> = vec![None; spec.schema.fields().len()];
        for (option, kind) in Kind::ALL {
            let Some(name) = options.text(option) else { continue };
            let is_it = |field: &str| field == name || field.to_lowercase() == name.to_lowercase();
            let Some(place) = spec.schema.fields().iter().position(|field| is_it(field.name())) else {
                let hint = "the column has to be declared as well";
                return Err(options.wrong(option, format!("names '{name}', which is no column"), hint));
            };
            let (field, wanted) = (spec.schema.field(place), kind.data_type());
            if *field.data_type() != wanted {
                let problem = format!("names '{name}' of type {}", field.data_type());
                return Err(options.wrong(option, problem, format!("its type has to be {wanted}")));
            }
            if kinds[place].replace(kind).is_some() {
                return Err(options.wrong(
                    option,
                    format!("names '{name}' as another does"),
                    "use one column for one of them",
                ));
            }
        }
        let in_payload: Vec<usize> = (0..kinds.len()).filter(|&column| kinds[column].is_none()).collect();
        let place_in_payload = |column: usize| in_payload.binary_search(&column).ok();
        let payload = Arc::new(spec.schema.project(&in_payload).expect("columns of the schema"));
        let payload_read: Vec<usize> = spec.columns.iter().filter_map(|&column| place_in_payload(column)).collect();
        let origins: Vec<Origin> = spec
            .columns
            .iter()
            .map(|&column| match (kinds[column], place_in_payload(column)) {
                (None, Some(place)) => Origin::Payload(payload_read.binary_search(&place).unwrap_or_default()),
                (kind, _) => Origin::Message(kind.expect("a column of the payload or of the message")),
            })
            .collect();
        let is_required = |place: usize| {
            let column = spec.columns[place];
            !spec.schema.field(column).is_nullable() || spec.event_time_column == Some(column)
        };
        let required = origins.iter().enumerate().filter_map(|(place, origin)| match origin {
            Origin::Message(kind) if is_required(place) => {
                Some((*kind, spec.schema.field(spec.columns[place]).name().clone()))
            }
            _ => None,
        });
        let layout = Self {
            schema: spec.read_schema(),
            required: required.collect(),
            payload,
            payload_read,
            payload_event_time: spec.event_time_column.and_then(place_in_payload),
            has_metadata: origins.iter().any(|origin| matches!(origin, Origin::Message(_))),
            origins,
        };
        layout.decoder(format)?;
        Ok(layout)
    }

    /// Decodes payloads.
    pub(super) fn decoder(&self, format: &RowFormat) -> Result<Box<dyn Decoder>, FormatError> {
        format.decoder(&self.payload, &self.payload_read, self.payload_event_time)
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
    ) -> RecordBatch {
        for index in messages {
            let message = block.message(index);
            let lacking = self.required.iter().find(|(kind, _)| lacks(&message, *kind));
            match (message.payload, lacking) {
                (Some(payload), None) => {
                    // The slot says which message a row comes from.
                    let slot = if self.has_metadata { index as Slot } else { 0 };
                    events.push(slot, now_us, payload);
                }
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
        if !self.has_metadata {
            let columns = decoder.decode(events, refusals).columns;
            events.clear();
            return columns;
        }
        // Refusals get back the slot of the one query that there is.
        let mut own = Refusals::new(if refusals.wants_content() { 16 } else { 0 });
        let batch = decoder.decode(events, &mut own);
        events.clear();
        pass_on(&own, refusals);
        let columns = self.origins.iter().map(|origin| match origin {
            Origin::Payload(place) => batch.columns.column(*place).clone(),
            Origin::Message(kind) => self.message_column(*kind, block, &batch.slots),
        });
        let count = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns.collect(), &count)
            .expect("declared types, and null only where it may be")
    }

    fn message_column(&self, kind: Kind, block: &Block, messages: &[Slot]) -> ArrayRef {
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
                    column.append_value(if kind == Kind::Offset {
                        message.offset
                    } else {
                        i64::from(message.partition)
                    });
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
}

/// A key as text; one that is none counts as no key.
fn key_text(key: Option<&[u8]>) -> Option<&str> {
    std::str::from_utf8(key?).ok()
}

fn time_us(time_ms: Option<i64>) -> Option<i64> {
    time_ms?.checked_mul(1000)
}

fn lacks(message: &super::fetch::Received<'_>, kind: Kind) -> bool {
    match kind {
        Kind::Key => key_text(message.key).is_none(),
        Kind::Timestamp => time_us(message.time_ms).is_none(),
        Kind::Partition | Kind::Offset => false,
    }
}

/// Counts refusals once more, as those of the one query that there is.
fn pass_on(own: &Refusals, refusals: &mut Refusals) {
    for one in own.records() {
        refusals.refuse(0, one.reason, one.arrival_us, || (one.detail.clone(), one.content.clone()));
    }
    for reason in Reason::ALL {
        let told = own.records().iter().filter(|one| one.reason == reason).count() as u64;
        refusals.count(reason, own.counted(reason) - told);
    }
}
