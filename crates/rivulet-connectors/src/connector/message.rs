//! Columns that come from a message itself and not from its payload: a key, a topic, a time.
//!
//! What must hold: each row has the values of its own message, however many rows the payload gave.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, SchemaRef};
use rivulet_dataflow::{Batch, Decoder, Events, Reason, Refusals, Slot};

use super::{ConnectorError, Options, SourceSpec};
use crate::formats::{FormatError, RowFormat};

/// The origin of a column that is read.
#[derive(Clone, Copy, Debug)]
enum Origin<K> {
    /// The column with this index of the decoded payload.
    Payload(usize),
    /// The message.
    Message(K),
}

/// The declared columns that are parts (`K`) of a message.
#[derive(Debug)]
pub(crate) struct Named<K> {
    kinds: Vec<Option<K>>,
}

impl<K: Copy> Named<K> {
    /// None of the columns of `spec` yet.
    pub(crate) fn none(spec: &SourceSpec) -> Self {
        Self { kinds: vec![None; spec.schema.fields().len()] }
    }

    /// Makes the column `name`, which an option names, this part of a message, with the type `wanted`.
    pub(crate) fn add(
        &mut self,
        spec: &SourceSpec,
        options: &Options,
        (option, name): (&str, &str),
        kind: K,
        wanted: &DataType,
    ) -> Result<(), ConnectorError> {
        let is_it = |field: &str| field == name || field.to_lowercase() == name.to_lowercase();
        let Some(place) = spec.schema.fields().iter().position(|field| is_it(field.name())) else {
            let hint = "the column has to be declared as well";
            return Err(options.wrong(option, format!("names '{name}', which is no column"), hint));
        };
        let field = spec.schema.field(place);
        if field.data_type() != wanted {
            let problem = format!("names '{name}' of type {}", field.data_type());
            return Err(options.wrong(option, problem, format!("its type has to be {wanted}")));
        }
        match self.kinds[place].replace(kind) {
            None => Ok(()),
            Some(_) => {
                let problem = format!("names '{name}', which another option names too");
                Err(options.wrong(option, problem, "use one column for one of them"))
            }
        }
    }
}

/// The origins of all columns.
#[derive(Clone, Debug)]
pub(crate) struct Layout<K> {
    /// The schema of the resulting rows.
    schema: SchemaRef,
    origins: Vec<Origin<K>>,
    /// The declared columns that payloads have.
    payload: SchemaRef,
    /// The columns of `payload` that are read, and the index of the event time in `payload`.
    payload_read: Vec<usize>,
    payload_event_time: Option<usize>,
    has_metadata: bool,
    /// The parts that a message must have, each with the name of its column.
    required: Vec<(K, String)>,
}

impl<K: Copy> Layout<K> {
    /// The columns of `spec`; those in `named` come from messages.
    ///
    /// # Errors
    /// The others do not suit the format.
    pub(crate) fn new(spec: &SourceSpec, named: Named<K>, format: &RowFormat) -> Result<Self, FormatError> {
        let kinds = named.kinds;
        let in_payload: Vec<usize> = (0..kinds.len()).filter(|&column| kinds[column].is_none()).collect();
        let place_in_payload = |column: usize| in_payload.binary_search(&column).ok();
        let payload = Arc::new(spec.schema.project(&in_payload).expect("columns of the schema"));
        let payload_read: Vec<usize> = spec.columns.iter().filter_map(|&column| place_in_payload(column)).collect();
        let origins: Vec<Origin<K>> = spec
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

    /// Makes the decoder of payloads.
    pub(crate) fn decoder(&self, format: &RowFormat) -> Result<Box<dyn Decoder>, FormatError> {
        format.decoder(&self.payload, &self.payload_read, self.payload_event_time)
    }

    /// The parts that a message must have, each with the name of its column.
    pub(crate) fn required(&self) -> &[(K, String)] {
        &self.required
    }

    /// Whether there are columns that come from messages themselves.
    pub(crate) fn has_metadata(&self) -> bool {
        self.has_metadata
    }

    /// The slot under which the payload of the message with this number is put among the events: it tells which message
    /// a row belongs to.
    pub(crate) fn slot(&self, message: usize) -> Slot {
        if self.has_metadata { message as Slot } else { 0 }
    }

    /// Decodes `events` to rows, and removes them. `column` makes the column of a part of messages, given the events
    /// and the message of each row. The slots of the rows have no meaning behind this.
    pub(crate) fn decode(
        &self,
        decoder: &mut dyn Decoder,
        events: &mut Events,
        refusals: &mut Refusals,
        mut column: impl FnMut(K, &Events, &[Slot]) -> ArrayRef,
    ) -> Batch {
        if !self.has_metadata {
            let batch = decoder.decode(events, refusals);
            events.clear();
            return batch;
        }
        // Refusals must have the slot of the only query.
        let mut own = Refusals::new(refusals.room());
        let batch = decoder.decode(events, &mut own);
        pass_on(&own, refusals);
        let columns = self.origins.iter().map(|origin| match origin {
            Origin::Payload(place) => batch.columns.column(*place).clone(),
            Origin::Message(kind) => column(*kind, events, &batch.slots),
        });
        let count = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
        let columns: Vec<ArrayRef> = columns.collect();
        events.clear();
        let columns = RecordBatch::try_new_with_options(self.schema.clone(), columns, &count)
            .expect("declared types, and null only where it may be");
        batch.with_columns(columns)
    }
}

/// Counts refusals once more, as those of the only query.
fn pass_on(own: &Refusals, refusals: &mut Refusals) {
    for one in own.records() {
        refusals.refuse(0, one.reason, one.arrival_us, || (one.detail.clone(), one.content.clone()));
    }
    for reason in Reason::ALL {
        let told = own.records().iter().filter(|one| one.reason == reason).count() as u64;
        refusals.count(reason, own.counted(reason) - told);
    }
}
