//! Columns that come from the topic of an event and not from its payload.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int64Builder, RecordBatch, RecordBatchOptions, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, Field, SchemaRef};

use super::fault::{Fault, Problem};
use crate::mqtt::TopicPart;
use crate::mqtt::topic::level_text;

/// The most bytes that the topic of one event may take in all its rows: each row has the topic in each column, so an
/// event of half a megabyte could become gigabytes.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Whether the topic is too long for an event with this many rows.
pub(crate) fn is_too_much(topic: &[u8], rows: usize) -> bool {
    topic.len().saturating_mul(rows) > EVENT_BYTES_MAX
}

/// The message if it is.
pub(crate) fn too_much() -> String {
    format!("the topic is too long for so many rows ({} MiB of it in one column)", EVENT_BYTES_MAX >> 20)
}

/// The topic columns of a batch under construction.
pub(super) struct TopicColumns {
    /// All columns, including those of payloads.
    schema: SchemaRef,
    columns: Vec<TopicColumn>,
}

struct TopicColumn {
    /// Its index among all columns.
    place: usize,
    part: TopicPart,
    values: Values,
}

/// The values of such a column: text of a topic, or, where a key takes the place of a topic, also numbers and times.
struct Values {
    is_nullable: bool,
    of: ValuesOf,
}

enum ValuesOf {
    Text(StringBuilder),
    Number(Int64Builder),
    /// Microseconds since the epoch.
    Time(TimestampMicrosecondBuilder),
}

impl Values {
    fn new(field: &Field) -> Self {
        let of = match field.data_type() {
            DataType::Int64 => ValuesOf::Number(Int64Builder::new()),
            DataType::Timestamp(..) => ValuesOf::Time(TimestampMicrosecondBuilder::new()),
            _ => ValuesOf::Text(StringBuilder::new()),
        };
        Self { is_nullable: field.is_nullable(), of }
    }

    /// The number of bytes of its text.
    fn text_bytes(&self) -> usize {
        match &self.of {
            ValuesOf::Text(values) => values.values_slice().len(),
            ValuesOf::Number(_) | ValuesOf::Time(_) => 0,
        }
    }

    /// Whether it can have this text of a topic as its value.
    fn takes(&self, text: &str) -> bool {
        self.is_nullable || matches!(self.of, ValuesOf::Text(_)) || text.parse::<i64>().is_ok()
    }

    fn append(&mut self, part: TopicPart, text: &str, rows: usize) {
        match &mut self.of {
            ValuesOf::Text(values) => match part {
                TopicPart::Key(_) if text.is_empty() && self.is_nullable => values.append_nulls(rows),
                TopicPart::Key(_) => (0..rows).for_each(|_| values.append_value(level_text(text))),
                _ => (0..rows).for_each(|_| values.append_value(text)),
            },
            ValuesOf::Number(values) => (0..rows).for_each(|_| values.append_option(text.parse().ok())),
            ValuesOf::Time(values) => (0..rows).for_each(|_| values.append_option(text.parse().ok())),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match &mut self.of {
            ValuesOf::Text(values) => Arc::new(values.finish()),
            ValuesOf::Number(values) => Arc::new(values.finish()),
            ValuesOf::Time(values) => Arc::new(values.finish()),
        }
    }
}

impl TopicColumns {
    /// None of the columns of `schema` has a value yet; `parts` are those that come from topics, by ascending place.
    pub(super) fn new(schema: SchemaRef, parts: &[(usize, TopicPart)]) -> Self {
        let column = |&(place, part)| TopicColumn { place, part, values: Values::new(schema.field(place)) };
        let columns = parts.iter().map(column).collect();
        Self { schema, columns }
    }

    /// Appends the values for the rows of one event, or nothing if that is too much text.
    pub(super) fn append(&mut self, topic: &[u8], rows: usize) -> Result<(), Fault> {
        if is_too_much(topic, rows) {
            return Err(Fault::new(Problem::TooMuchTopic, 0));
        }
        let fits = |column: &TopicColumn| {
            let bytes = topic.len().checked_mul(rows)?.checked_add(column.values.text_bytes())?;
            i32::try_from(bytes).ok()
        };
        if self.columns.iter().any(|column| fits(column).is_none()) {
            return Err(Fault::new(Problem::TooMuchText, 0));
        }
        // Messages of before may have been those of an input without this column.
        if !self.columns.iter().all(|column| column.values.takes(column.part.of_bytes(topic))) {
            return Err(Fault::new(Problem::NotInMessage, 0));
        }
        for TopicColumn { part, values, .. } in &mut self.columns {
            values.append(*part, part.of_bytes(topic), rows);
        }
        Ok(())
    }

    /// The rows with all columns, given those of their payloads; nothing is left here.
    pub(super) fn finish(&mut self, payload: &RecordBatch) -> RecordBatch {
        let (mut of_payload, mut of_topic) = (payload.columns().iter(), self.columns.iter_mut().peekable());
        let columns = (0..self.schema.fields().len()).map(|place| -> ArrayRef {
            match of_topic.next_if(|column| column.place == place) {
                Some(column) => column.values.finish(),
                None => of_payload.next().expect("a column of the payload or of the topic").clone(),
            }
        });
        let options = RecordBatchOptions::new().with_row_count(Some(payload.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns.collect(), &options)
            .expect("the declared types, and a value for each row")
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
        let before = columns.columns[0].values.text_bytes();
        for rows in [(4 << 10) + 1, 1 << 16, usize::MAX] {
            assert_eq!(columns.append(&topic, rows), Err(Fault::new(Problem::TooMuchTopic, 0)));
            assert_eq!(columns.columns[0].values.text_bytes(), before);
        }
        assert_eq!(columns.append(&topic, 4 << 10), Ok(()));
        assert_eq!(columns.append(b"", 1 << 16), Ok(()));
        assert_eq!(columns.columns[0].values.text_bytes(), 4 << 20);
    }

    #[test]
    fn numbers_and_times_of_a_message_are_there_or_it_is_refused() {
        let time = DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, None);
        let fields = [("key", DataType::Utf8, true), ("place", DataType::Int64, true), ("sent", time, false)];
        let fields = fields.map(|(name, of, is_nullable)| Field::new(name, of, is_nullable));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let parts = [(0, TopicPart::Key(1)), (1, TopicPart::Level(2)), (2, TopicPart::Level(3))];
        let mut columns = TopicColumns::new(schema, &parts);
        assert_eq!(columns.append(b"x/a%2Fb/7/5", 2), Ok(()));
        assert_eq!(columns.append(b"x///6", 1), Ok(()));
        for topic in [&b"x/a/7/"[..], b"x/a", b"", b"x/a/7/soon"] {
            assert_eq!(columns.append(topic, 1), Err(Fault::new(Problem::NotInMessage, 0)));
        }
        let rows = columns.finish(
            &RecordBatch::try_new_with_options(
                Arc::new(Schema::empty()),
                Vec::new(),
                &RecordBatchOptions::new().with_row_count(Some(3)),
            )
            .unwrap(),
        );
        let text = arrow::util::pretty::pretty_format_batches(&[rows]).unwrap().to_string();
        assert!(text.contains("| a/b | 7     | 1970-01-01T00:00:00.000005 |"), "{text}");
        assert!(text.contains("|     |       | 1970-01-01T00:00:00.000006 |"), "{text}");
    }
}
