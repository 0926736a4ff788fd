//! Columns that come from the topic of an event and not from its payload.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringBuilder};
use arrow::datatypes::SchemaRef;

use super::fault::{Fault, Problem};
use crate::mqtt::TopicPart;

/// How many bytes the topic of one event may be in all rows of it: each has all of it in each column, so an event of
/// half a megabyte could be gigabytes.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Whether an event with this topic may have so many rows.
pub(crate) fn is_too_much(topic: &[u8], rows: usize) -> bool {
    topic.len().saturating_mul(rows) > EVENT_BYTES_MAX
}

/// What is said of it if not.
pub(crate) fn too_much() -> String {
    format!("the topic is too long for so many rows ({} MiB of it in one column)", EVENT_BYTES_MAX >> 20)
}

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

    /// Appends what the rows of one event have, or nothing if that is too much text.
    pub(super) fn append(&mut self, topic: &[u8], rows: usize) -> Result<(), Fault> {
        // One without a topic is handed on by a shared input, which has refused it already: if not for its payload,
        // then for its topic, so the longest that there can be stands for it.
        let is_unknown = topic.is_empty() && rows.saturating_mul(usize::from(u16::MAX)) > EVENT_BYTES_MAX;
        if is_unknown || is_too_much(topic, rows) {
            return Err(Fault::new(Problem::TooMuchTopic, 0));
        }
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

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    #[test]
    fn a_topic_in_many_rows_is_bounded_and_takes_no_memory_before() {
        let schema = Arc::new(Schema::new(vec![Field::new("topic", DataType::Utf8, false)]));
        let mut columns = TopicColumns::new(schema, &[(0, TopicPart::Whole)]);
        let topic = [b'x'; 1 << 10];
        let before = columns.columns[0].values.values_slice().len();
        for rows in [(4 << 10) + 1, 1 << 16, usize::MAX] {
            assert_eq!(columns.append(&topic, rows), Err(Fault::new(Problem::TooMuchTopic, 0)));
            assert_eq!(columns.columns[0].values.values_slice().len(), before);
        }
        assert_eq!(columns.append(&topic, 4 << 10), Ok(()));
        assert_eq!(columns.append(b"", 64), Ok(()));
        assert_eq!(columns.append(b"", 65), Err(Fault::new(Problem::TooMuchTopic, 0)));
        assert_eq!(columns.columns[0].values.values_slice().len(), 4 << 20);
    }
}
