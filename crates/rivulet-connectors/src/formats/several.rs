//! The decoder of an application with several inputs: each event is parsed in the format of its input, and the
//! resulting batch has the columns of all inputs side by side.
//!
//! What must hold: rows are in the order of their events, whichever input these came by.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt8Array, UInt32Array, new_null_array};
use arrow::buffer::ScalarBuffer;
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Batch, Decoder, Events, InputIndex, LogPosition, Refusals, Slot};

use super::decode::{PayloadParser, decode_event};
use super::rows::Rows;
use super::topic::TopicColumns;
use super::{Format, FormatError, Parser, Times};
use crate::mqtt::TopicPart;

/// How the events of an input become rows.
#[derive(Clone, Debug)]
pub struct InputFormat {
    /// The format.
    pub format: Format,
    /// How times are written.
    pub times: Times,
    /// The declared columns.
    pub schema: SchemaRef,
    /// The index of the column that is never null.
    pub event_time_column: Option<usize>,
    /// The columns that come from the topic, by ascending index: `Utf8`; of what stands for a topic where events come
    /// from other sources also `Int64` and `Timestamp(Microsecond, None)`, which may be the event time.
    pub topic_columns: Vec<(usize, TopicPart)>,
}

impl InputFormat {
    /// A decoder of the events of this input alone.
    ///
    /// # Errors
    /// The columns of payloads do not suit the format.
    pub fn decoder(&self) -> Result<Box<dyn Decoder>, FormatError> {
        let (rows, event_time_column) = self.rows()?;
        self.format.decoder_into(rows, event_time_column)
    }

    /// The rows, for a parser that knows only the columns of payloads; and the event time among these.
    fn rows(&self) -> Result<(Rows, Option<usize>), FormatError> {
        let is_of_topic = |column: usize| self.topic_columns.iter().any(|(of_topic, _)| *of_topic == column);
        let of_payload: Vec<usize> = (0..self.schema.fields().len()).filter(|column| !is_of_topic(*column)).collect();
        let schema = Arc::new(self.schema.project(&of_payload).expect("columns of the schema"));
        let event_time_column = self.event_time_column.and_then(|column| of_payload.binary_search(&column).ok());
        self.format.check_input(&schema, event_time_column)?;
        self.times.check(self.format.name(), &schema)?;
        let rows = Rows::new(schema, event_time_column).with_times(&self.times);
        if self.topic_columns.is_empty() {
            return Ok((rows, event_time_column));
        }
        Ok((rows.with_topic(TopicColumns::new(self.schema.clone(), &self.topic_columns)), event_time_column))
    }
}

/// A decoder of events that come by several inputs, into rows of `schema`: the number of the input (`UInt8`), then the
/// columns of all inputs, each nullable; a row is null in those of other inputs.
///
/// Fails if the columns of an input do not suit its format.
///
/// # Panics
/// If `schema` does not consist of these columns.
pub fn several_inputs(inputs: Vec<InputFormat>, schema: SchemaRef) -> Result<Box<dyn Decoder>, FormatError> {
    let columns: usize = inputs.iter().map(|input| input.schema.fields().len()).sum();
    assert_eq!(schema.fields().len(), columns + 1, "the number of the input, and the columns of all inputs");
    let parts = inputs.into_iter().map(|input| {
        let (rows, event_time_column) = input.rows()?;
        let parser: Box<dyn PayloadParser> = match input.format.parser(rows.schema(), event_time_column)? {
            Parser::Json(parser) => Box::new(parser),
            Parser::SenMl(parser) => Box::new(parser),
            Parser::SenMlPivot(parser) => Box::new(parser),
            Parser::Csv(parser) => Box::new(parser),
            Parser::Text(parser) => Box::new(parser),
            Parser::Raw(parser) => Box::new(parser),
        };
        Ok(Part { parser, rows })
    });
    Ok(Box::new(SeveralDecoder { parts: parts.collect::<Result<_, FormatError>>()?, schema }))
}

struct Part {
    parser: Box<dyn PayloadParser>,
    rows: Rows,
}

struct SeveralDecoder {
    parts: Vec<Part>,
    schema: SchemaRef,
}

impl Decoder for SeveralDecoder {
    fn decode(&mut self, events: &Events, refusals: &mut Refusals) -> Batch {
        let mut expected = vec![0; self.parts.len()];
        (0..events.rows()).for_each(|event| expected[usize::from(events.input(event))] += 1);
        self.parts.iter_mut().zip(&expected).for_each(|(part, events)| part.rows.reserve(*events));
        let mut inputs: Vec<InputIndex> = Vec::with_capacity(events.rows());
        let mut slots: Vec<Slot> = Vec::with_capacity(events.rows());
        let mut arrivals_us: Vec<i64> = Vec::with_capacity(events.rows());
        let mut positions: Vec<LogPosition> = Vec::with_capacity(events.positions().len());
        for event in 0..events.rows() {
            let input = events.input(event);
            let Part { parser, rows } = &mut self.parts[usize::from(input)];
            let added = decode_event(&mut **parser, rows, events, event, Some(input), refusals);
            inputs.extend(std::iter::repeat_n(input, added));
            slots.extend(std::iter::repeat_n(events.slots()[event], added));
            arrivals_us.extend(std::iter::repeat_n(events.arrival_us()[event], added));
            if !events.positions().is_empty() {
                positions.extend(std::iter::repeat_n(events.position(event), added));
            }
        }
        let columns = self.side_by_side(&inputs);
        let options = RecordBatchOptions::new().with_row_count(Some(inputs.len()));
        let columns = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .expect("the schema has the columns of all inputs");
        let arrival_us = ScalarBuffer::from(arrivals_us);
        let positions = (!positions.is_empty()).then(|| ScalarBuffer::from(positions));
        Batch::new(ScalarBuffer::from(slots), arrival_us.clone(), arrival_us, columns).with_positions(positions)
    }
}

impl SeveralDecoder {
    /// The finished rows of all inputs, given the input of each row: the number of the input, and all columns.
    fn side_by_side(&mut self, inputs: &[InputIndex]) -> Vec<ArrayRef> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt8Array::from(inputs.to_vec()))];
        for (number, part) in self.parts.iter_mut().enumerate() {
            let rows = part.rows.finish();
            if rows.num_rows() == inputs.len() {
                columns.extend(rows.columns().iter().cloned());
            } else if rows.num_rows() == 0 {
                let fields = rows.schema_ref().fields().iter();
                columns.extend(fields.map(|field| new_null_array(field.data_type(), inputs.len())));
            } else {
                let mut next = 0..;
                let place = |&input: &InputIndex| (usize::from(input) == number).then(|| next.next()).flatten();
                let places: UInt32Array = inputs.iter().map(place).collect();
                columns.extend(rows.columns().iter().map(|column| take(column, &places, None).expect("known places")));
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{DataType, Field, Float64Type, Schema, UInt8Type};
    use rivulet_dataflow::{Event, Refused};

    use super::*;

    fn decoder() -> Box<dyn Decoder> {
        let input = |format: Format, name: &str, data_type: DataType| InputFormat {
            format,
            times: Times::default(),
            schema: Arc::new(Schema::new(vec![Field::new(name, data_type, false)])),
            event_time_column: None,
            topic_columns: Vec::new(),
        };
        let inputs = vec![input(Format::Json, "value", DataType::Float64), input(Format::Text, "word", DataType::Utf8)];
        let schema = Schema::new(vec![
            Field::new("input", DataType::UInt8, false),
            Field::new("a.value", DataType::Float64, true),
            Field::new("b.word", DataType::Utf8, true),
        ]);
        several_inputs(inputs, Arc::new(schema)).unwrap()
    }

    #[test]
    fn rows_stand_in_the_order_of_their_events() {
        let mut events = Events::default();
        events.push_from(1, 7, 10, b"one");
        events.push_from(0, 8, 11, br#"[{"value": 1}, {"value": 2}]"#);
        events.push_from(0, 8, 12, b"broken");
        events.push_from(1, 8, 13, b"");
        events.push_from(1, 9, 14, b"two");
        let mut refusals = Refusals::new(9);
        let batch = decoder().decode(&events, &mut refusals);
        assert_eq!(batch.column(0).as_primitive::<UInt8Type>().values().as_ref(), [1, 0, 0, 1]);
        let values: Vec<_> = batch.column(1).as_primitive::<Float64Type>().iter().collect();
        assert_eq!(values, [None, Some(1.0), Some(2.0), None]);
        let words: Vec<_> = batch.column(2).as_string::<i32>().iter().collect();
        assert_eq!(words, [Some("one"), None, None, Some("two")]);
        assert_eq!((batch.slots.as_ref(), batch.arrival_us.as_ref()), (&[7, 8, 8, 9][..], &[10, 11, 11, 14][..]));
        let refused: Vec<_> = refusals.records().iter().map(|one| (one.input, one.arrival_us)).collect();
        assert_eq!(refused, [(Some(0), 12), (Some(1), 13)]);
    }

    #[test]
    fn columns_come_from_topics() {
        let fields = ["device", "value", "topic"].map(|name| match name {
            "value" => Field::new(name, DataType::Float64, false),
            _ => Field::new(name, DataType::Utf8, true),
        });
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let topic_columns = vec![(0, TopicPart::Level(1)), (2, TopicPart::Whole)];
        let (format, times) = (Format::Json, Times::default());
        let input = InputFormat { format, times, schema, event_time_column: None, topic_columns };
        let mut events = Events::default();
        let payloads = [
            ("home/7/t", r#"{"value": 1, "device": 5}"#),
            ("home/8/t", "broken"),
            ("x", r#"[{"value": 2}, {"value": 3}]"#),
        ];
        for (topic, payload) in payloads {
            let (topic, payload) = (topic.as_bytes(), payload.as_bytes());
            events.push_event(Event { input: 0, slot: 1, arrival_us: 9, position: 0, topic, payload });
        }
        let row_schema = Schema::new(
            std::iter::once(Field::new("input", DataType::UInt8, false))
                .chain(input.schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)))
                .collect::<Vec<_>>(),
        );
        let several = several_inputs(vec![input.clone()], Arc::new(row_schema)).unwrap();
        for (mut decoder, first) in [(input.decoder().unwrap(), 0), (several, 1)] {
            let mut refusals = Refusals::new(9);
            let batch = decoder.decode(&events, &mut refusals);
            let texts = |column: usize| -> Vec<_> { batch.column(first + column).as_string::<i32>().iter().collect() };
            assert_eq!(texts(0), [Some("7"), Some(""), Some("")]);
            assert_eq!(texts(2), [Some("home/7/t"), Some("x"), Some("x")]);
            assert_eq!(batch.column(first + 1).as_primitive::<Float64Type>().values().as_ref(), [1.0, 2.0, 3.0]);
            let Refused::Payload(payload) = &refusals.records()[0].content else { panic!("a payload") };
            assert_eq!(&**payload, b"broken", "a dead letter is the payload alone");
        }
    }

    #[test]
    fn a_batch_of_one_input_alone_has_all_columns() {
        let mut events = Events::default();
        events.push_from(1, 7, 10, b"one");
        let mut decoder = decoder();
        let batch = decoder.decode(&events, &mut Refusals::new(0));
        assert_eq!((batch.rows(), batch.column(1).null_count()), (1, 1));
        assert_eq!(decoder.decode(&Events::default(), &mut Refusals::new(0)).rows(), 0);
    }
}
