//! Columns that come from the topic of an event and not from its payload.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringBuilder};
use arrow::datatypes::SchemaRef;

use super::fault::{Fault, Problem};
use crate::mqtt::TopicPart;

/// The columns from topics of a batch under construction.
pub(super) struct TopicColumns {
    /// All columns, those of payloads among them.
    schema: SchemaRef,
    columns: Vec<TopicColumn>,
}

struct TopicColumn {
    /// Among all columns.
    place: usize,
    part: TopicPart,
    values: StringBuilder,
}

impl TopicColumns {
    /// None of the columns of `schema` has a value yet; `parts` are those that come from topics, by ascending place.
    pub(super) fn new(schema: SchemaRef, parts: &[(usize, TopicPart)]) -> Self {
        let column = |&(place, part)| TopicColumn { place, part, values: StringBuilder::new() };
        Self { schema, columns: parts.iter().map(column).collect() }
    }

    /// Appends what the rows of one event have, or nothing if that is too much text for a column.
    pub(super) fn append(&mut self, topic: &[u8], rows: usize) -> Result<(), Fault> {
        let fits = |column: &TopicColumn| {
            let bytes = topic.len().checked_mul(rows)?.checked_add(column.values.values_slice().len())?;
            i32::try_from(bytes).ok()
        };
        if self.columns.iter().any(|column| fits(column).is_none()) {
            return Err(Fault::new(Problem::TooMuchText, 0));
        }
        for TopicColumn { part, values, .. } in &mut self.columns {
            let text = part.of_bytes(topic);
            (0..rows).for_each(|_| values.append_value(text));
        }
        Ok(())
    }

    /// The rows with all columns, those of their payloads given; nothing is left here.
    pub(super) fn finish(&mut self, payload: &RecordBatch) -> RecordBatch {
        let (mut of_payload, mut of_topic) = (payload.columns().iter(), self.columns.iter_mut().peekable());
        let columns = (0..self.schema.fields().len()).map(|place| -> ArrayRef {
            match of_topic.next_if(|column| column.place == place) {
                Some(column) => Arc::new(column.values.finish()),
                None => of_payload.next().expect("a column of the payload or of the topic").clone(),
            }
        });
        let options = RecordBatchOptions::new().with_row_count(Some(payload.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns.collect(), &options)
            .expect("text in the columns of topics, and a value for each row")
    }
}
