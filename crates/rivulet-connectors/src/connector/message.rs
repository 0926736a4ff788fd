//! Columns that come from a message itself and not from its payload: a key, a topic, a time.
//!
//! What must hold: a row has what its message has, however many rows the payload gave.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, SchemaRef};
use rivulet_dataflow::{Decoder, Events, Reason, Refusals, Slot};

use super::{ConnectorError, Options, SourceSpec};
use crate::formats::{FormatError, RowFormat};

/// Where a column that is read comes from.
#[derive(Clone, Copy, Debug)]
enum Origin<K> {
    /// The column of the decoded payload at this place.
    Payload(usize),
    /// The message.
    Message(K),
}

/// Which declared columns are which part (`K`) of a message.
#[derive(Debug)]
pub(crate) struct Named<K> {
    kinds: Vec<Option<K>>,
}

impl<K: Copy> Named<K> {
    /// None of the columns of `spec` yet.
    pub(crate) fn none(spec: &SourceSpec) -> Self {
        Self { kinds: vec![None; spec.schema.fields().len()] }
    }

    /// The column `name`, which an option names, is this part of a message, of the type `wanted`.
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
                let problem = format!("names '{name}' as another does");
                Err(options.wrong(option, problem, "use one column for one of them"))
            }
        }
    }
}

/// Which columns come from where.
#[derive(Clone, Debug)]
pub(crate) struct Layout<K> {
    /// The rows that come out.
    schema: SchemaRef,
    origins: Vec<Origin<K>>,
    /// The declared columns that payloads have.
    payload: SchemaRef,
    /// Those of them that are read, and the event time among the former.
    payload_read: Vec<usize>,
    payload_event_time: Option<usize>,
    has_metadata: bool,
    /// What a message may not lack, and the name of its column.
    required: Vec<(K, String)>,
}

impl<K: Copy> Layout<K> {
    /// The columns of `spec`, of which `named` come from messages.
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

    /// Decodes payloads.
    pub(crate) fn decoder(&self, format: &RowFormat) -> Result<Box<dyn Decoder>, FormatError> {
        format.decoder(&self.payload, &self.payload_read, self.payload_event_time)
    }

    /// What a message may not lack, and the name of its column.
    pub(crate) fn required(&self) -> &[(K, String)] {
        &self.required
    }

    /// Whether there are columns that come from messages themselves.
    pub(crate) fn has_metadata(&self) -> bool {
        self.has_metadata
    }

    /// The slot with which the payload of the message with this number is put among the events: it tells which message
    /// a row is of.
    pub(crate) fn slot(&self, message: usize) -> Slot {
        if self.has_metadata { message as Slot } else { 0 }
    }

    /// The rows of `events`, which are gone then. `column` makes the column of a part of messages, given the events and
    /// the message of each row.
    pub(crate) fn decode(
        &self,
        decoder: &mut dyn Decoder,
        events: &mut Events,
        refusals: &mut Refusals,
        mut column: impl FnMut(K, &Events, &[Slot]) -> ArrayRef,
    ) -> RecordBatch {
        if !self.has_metadata {
            let columns = decoder.decode(events, refusals).columns;
            events.clear();
            return columns;
        }
        // Refusals get back the slot of the one query that there is.
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
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &count)
            .expect("declared types, and null only where it may be")
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
