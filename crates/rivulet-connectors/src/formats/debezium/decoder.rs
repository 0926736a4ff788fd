//! Changes into rows: an insertion for `after`, a retraction for `before`.

use arrow::datatypes::Schema;

use super::super::decode::PayloadParser;
use super::super::fault::{Fault, Problem};
use super::super::json::{JsonParser, Reader};
use super::super::rows::Rows;

/// Reads changes into the declared columns.
pub(crate) struct DebeziumParser {
    rows: JsonParser,
    /// Keys and operations that are written with escapes, decoded. Empty between uses.
    scratch: Vec<u8>,
}

/// Where the members of a change begin, in bytes of the payload.
#[derive(Default)]
struct Change {
    payload: Option<usize>,
    before: Option<usize>,
    after: Option<usize>,
    op: Option<usize>,
}

impl DebeziumParser {
    /// A parser for the columns of `schema`. `Err` with a column's index if its name is nested too deeply.
    pub(crate) fn new(schema: &Schema) -> Result<Self, usize> {
        Ok(Self { rows: JsonParser::new(schema)?, scratch: Vec::new() })
    }

    /// Finds the members of the change that begins here, and checks all of it. `depth` counts the containers around it.
    fn change(&mut self, reader: &mut Reader<'_>, depth: usize) -> Result<Change, Fault> {
        if reader.peek() != b'{' {
            return Err(reader.fault(Problem::ExpectedObject));
        }
        let mut change = Change::default();
        let mut another = reader.enter(b'}');
        while another {
            self.scratch.clear();
            let key = reader.key(&mut self.scratch)?;
            let at = Some(reader.offset());
            match key.of(reader.payload(), &self.scratch) {
                b"payload" => change.payload = at,
                b"before" => change.before = at,
                b"after" => change.after = at,
                b"op" => change.op = at,
                _ => {}
            }
            reader.skip_value(depth + 1)?;
            another = reader.another(b'}')?;
        }
        Ok(change)
    }

    /// The operation that is written at byte `at`.
    fn op(&mut self, payload: &[u8], at: usize) -> Result<u8, Fault> {
        let unknown = Fault::new(Problem::ChangeOperation, at);
        let mut reader = Reader::at(payload, at);
        if reader.peek() != b'"' {
            return Err(unknown);
        }
        self.scratch.clear();
        let text = reader.string_span(&mut self.scratch)?;
        match text.of(payload, &self.scratch) {
            [op @ (b'c' | b'r' | b'u' | b'd')] => Ok(*op),
            _ => Err(unknown),
        }
    }

    /// Reads the row at byte `at`; `lacking` says what is wrong if there is none.
    fn row(
        &mut self,
        payload: &[u8],
        at: Option<usize>,
        (depth, lacking): (usize, Fault),
        rows: &mut Rows,
    ) -> Result<(), Fault> {
        let mut reader = Reader::at(payload, at.ok_or(lacking)?);
        if reader.take_null() {
            return Err(lacking);
        }
        self.rows.row(&mut reader, depth, rows)
    }
}

impl PayloadParser for DebeziumParser {
    fn parse(&mut self, payload: &[u8], _arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        let mut reader = Reader::new(payload);
        reader.skip_whitespace();
        // A tombstone follows a deletion, for brokers that keep the newest message of each key.
        if reader.take_null() {
            return reader.finish();
        }
        let mut at = reader.offset();
        let mut change = self.change(&mut reader, 0)?;
        reader.finish()?;
        let mut depth = 1;
        if let (None, Some(inner)) = (change.op, change.payload) {
            let mut reader = Reader::at(payload, inner);
            if reader.take_null() {
                return Ok(());
            }
            (at, depth) = (inner, 2);
            change = self.change(&mut reader, 1)?;
        }
        let Some(op) = change.op else { return Err(Fault::new(Problem::NoChange, at)) };
        let op = self.op(payload, op)?;
        if matches!(op, b'u' | b'd') {
            self.row(payload, change.before, (depth, Fault::new(Problem::NoBefore, at)), rows)?;
            rows.retract();
        }
        if op != b'd' {
            self.row(payload, change.after, (depth, Fault::new(Problem::NoAfter, at)), rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, RecordBatch};
    use arrow::datatypes::{DataType, Field, Int64Type};
    use rivulet_dataflow::{Batch, Events, Reason, Refusals};

    use super::super::super::RowFormat;
    use super::*;
    use crate::files::Files;

    fn decode(payloads: &[&str]) -> (Batch, Vec<String>) {
        let declared = Schema::new(vec![
            Field::new("id", DataType::Int64, false),
            Field::new("city", DataType::Utf8, true),
            Field::new("unread", DataType::Int64, true),
        ]);
        let format = RowFormat::parse("debezium", [], &Files::default()).unwrap();
        let mut decoder = format.decoder(&declared.into(), &[0, 1], None).unwrap();
        let mut events = Events::default();
        payloads.iter().for_each(|payload| events.push(0, 7, payload.as_bytes()));
        let mut refusals = Refusals::new(100);
        let batch = decoder.decode(&events, &mut refusals);
        assert_eq!(refusals.counted(Reason::Decode) as usize, refusals.records().len());
        (batch, refusals.records().iter().map(|one| one.detail.clone()).collect())
    }

    /// The rows as `+1 city`.
    fn shown(batch: &Batch) -> Vec<String> {
        let columns: &RecordBatch = &batch.columns;
        let (ids, cities) = (columns.column(0).as_primitive::<Int64Type>(), columns.column(1).as_string::<i32>());
        let mark = |row| if batch.is_retraction(row) { '-' } else { '+' };
        let city = |row| if arrow::array::Array::is_null(cities, row) { "?" } else { cities.value(row) };
        (0..batch.rows()).map(|row| format!("{}{} {}", mark(row), ids.value(row), city(row))).collect()
    }

    #[test]
    fn changes_are_insertions_and_retractions() {
        let (batch, refused) = decode(&[
            r#"{"before":null,"after":{"id":1,"city":"Ulm"},"source":{"ts_ms":5,"snapshot":"true"},"op":"r"}"#,
            r#"{"op":"c","after":{"id":2,"city":null,"other":[{}]},"ts_ms":7,"transaction":null}"#,
            r#"{"before":{"id":1,"city":"Ulm"},"after":{"id":1,"city":"Bonn"},"op":"u"}"#,
            r#" {"schema":{"type":"struct","op":"x"},"payload":{"op":"\u0064","before":{"id":2},"after":null}} "#,
            r#"{"schema":null,"payload":null}"#,
            "null",
            r#"{"after":{"city":"Kiel","id":3},"op":"u","before":{"city":"Jena","id":3}}"#,
        ]);
        assert_eq!(refused, [""; 0]);
        assert_eq!(shown(&batch), ["+1 Ulm", "+2 ?", "-1 Ulm", "+1 Bonn", "-2 ?", "-3 Jena", "+3 Kiel"]);
        let (batch, refused) = decode(&[r#"{"op":"c","after":{"id":1}}"#, "null"]);
        assert!(batch.retracts.is_none() && refused.is_empty() && batch.rows() == 1);
    }

    #[test]
    fn a_broken_change_is_refused_as_a_whole_and_harms_no_other() {
        let good = r#"{"op":"d","before":{"id":9}}"#;
        for (broken, expected) in [
            (
                r#"{"op":"u","before":{"id":1},"after":{"id":"x"}}"#,
                "field 'id' at byte 42: expected a number, found \"x\" (a column of type TEXT takes it, and CAST makes a \
                 number of it)",
            ),
            (r#"{"op":"u","before":{"id":1},"after":{}}"#, "field 'id' is missing"),
            (r#"{"op":"u","before":null,"after":{"id":1}}"#, "at byte 0: an update or a deletion without 'before'"),
            (r#"{"op":"d","after":null}"#, "at byte 0: an update or a deletion without 'before'"),
            (r#"{"payload":{"op":"c","after":null}}"#, "at byte 11: a change without 'after'"),
            (r#"{"op":"t"}"#, "at byte 6: expected 'op' \"c\", \"r\", \"u\" or \"d\", found \"t\""),
            (r#"{"op":7}"#, "at byte 6: expected 'op' \"c\", \"r\", \"u\" or \"d\", found 7"),
            (r#"{"id":1,"city":"Ulm"}"#, "at byte 0: the payload is no change: it has no 'op'"),
            (r#"{"payload":{"id":1}}"#, "at byte 11: the payload is no change: it has no 'op'"),
            (r#"{"payload":[1]}"#, "at byte 11: expected an object, found an array"),
            (r#"{"op":"c","after":[{"id":1}]}"#, "at byte 18: expected an object, found an array"),
            (r#"{"op":"c","after":{"id":1}"#, "at byte 26: expected ',' or '}', found the end"),
            (r#"{"op":"c","after":{"id":1}} x"#, "at byte 28: expected the end of the payload, found 'x'"),
            (r#"{"op":"c","after":{"id":1},"ts":01}"#, "at byte 32: malformed number 01"),
            ("nulls", "at byte 4: expected the end of the payload, found 's'"),
            ("[]", "at byte 0: expected an object, found an array"),
            ("", "the payload is empty"),
        ] {
            let (batch, refused) = decode(&[good, broken, good]);
            assert_eq!(shown(&batch), ["-9 ?", "-9 ?"], "{broken}");
            assert!(refused.len() == 1 && refused[0].starts_with(expected), "{broken}: {refused:?}");
        }
    }
}
