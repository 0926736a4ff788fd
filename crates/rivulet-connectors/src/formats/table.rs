//! The content of a table's file: every record decoded, or the lines that cannot be.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Events, Refusals};

use super::csv_header::csv_fields;
use super::{Format, FormatError, InputFormat, RowFormat, Times};

/// The number of wrong lines that are described.
const FAULTS_MAX: usize = 3;

/// Why a file is not the content of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableFault {
    /// The columns do not suit the format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The header does not name the columns, and how.
    #[error("line 1: {0}\nhint: declare the columns by their names in the header, in any order")]
    Header(String),
    /// Lines that cannot be read: the first few with what is wrong, and how many there are.
    #[error("{}", describe(.first, *.count))]
    Lines {
        /// Number of the line, from 1, and what is wrong with it.
        first: Vec<(u32, String)>,
        /// How many lines are wrong.
        count: u64,
    },
}

fn describe(first: &[(u32, String)], count: u64) -> String {
    let mut text: Vec<String> = first.iter().map(|(line, fault)| format!("line {line}: {fault}")).collect();
    if count > first.len() as u64 {
        let more = count - first.len() as u64;
        text.push(format!("and {more} more line{}", if more == 1 { "" } else { "s" }));
    }
    text.join("; ")
}

/// The rows in `bytes`: a record on each line (in CSV a quoted field may span several). Empty lines are skipped. With
/// `has_header` the first line of `Format::Csv` has names, by which columns are found; other fields are skipped.
pub fn decode_table(
    format: Format,
    has_header: bool,
    schema: SchemaRef,
    bytes: &[u8],
) -> Result<RecordBatch, TableFault> {
    match decode_table_in_part(format, &Times::default(), has_header, schema, bytes)? {
        (rows, None) => Ok(rows),
        (_, Some(fault)) => Err(fault),
    }
}

/// The same for a file with errors: the rows that can be read, and the lines that cannot be, if there are any.
pub fn decode_table_in_part(
    format: Format,
    times: &Times,
    has_header: bool,
    schema: SchemaRef,
    bytes: &[u8],
) -> Result<(RecordBatch, Option<TableFault>), TableFault> {
    let mut decoder = InputFormat {
        format,
        times: times.clone(),
        schema: schema.clone(),
        event_time_column: None,
        topic_columns: Vec::new(),
    }
    .decoder()?;
    let mut bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut line = 1;
    if let (Format::Csv { delimiter }, true) = (format, has_header) {
        let (header, rest) = split_record(bytes, true);
        let fields = csv_fields(header, delimiter, &schema).map_err(TableFault::Header)?;
        let read: Vec<usize> = (0..schema.fields().len()).collect();
        let rows = RowFormat::Plain { format, times: times.clone(), has_header };
        decoder = rows.csv_decoder(&schema, &fields, &read, None)?;
        line += lines(bytes, rest);
        bytes = rest;
    }
    // Each record is an event whose slot is its line number, so that a refusal names its line.
    let mut events = Events::default();
    while !bytes.is_empty() {
        let (record, rest) = split_record(bytes, matches!(format, Format::Csv { .. }));
        if !record.trim_ascii().is_empty() {
            events.push(line, 0, record);
        }
        line += lines(bytes, rest);
        bytes = rest;
    }
    let mut refusals = Refusals::new(FAULTS_MAX);
    let batch = decoder.decode(&events, &mut refusals);
    let count = refusals.counted(rivulet_dataflow::Reason::Decode);
    let fault = (count > 0).then(|| {
        let first = refusals.records().iter().map(|one| (one.slot, one.detail.clone())).collect();
        TableFault::Lines { first, count }
    });
    Ok((batch.columns, fault))
}

/// The first record without its line break, and what follows it.
fn split_record(bytes: &[u8], has_quotes: bool) -> (&[u8], &[u8]) {
    let mut is_quoted = false;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' if has_quotes => is_quoted = !is_quoted,
            b'\n' if !is_quoted => {
                let record = &bytes[..at];
                return (record.strip_suffix(b"\r").unwrap_or(record), &bytes[at + 1..]);
            }
            _ => {}
        }
    }
    (bytes, &[])
}

/// How many line breaks there are before `rest`.
fn lines(bytes: &[u8], rest: &[u8]) -> u32 {
    let before = &bytes[..bytes.len() - rest.len()];
    u32::try_from(before.iter().filter(|&&byte| byte == b'\n').count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Float64Type, Schema};

    use super::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("name", DataType::Utf8, true),
            Field::new("price", DataType::Float64, false),
        ]))
    }

    const CSV: Format = Format::Csv { delimiter: b',' };

    #[test]
    fn records_become_rows() {
        let text = "Name,price\r\nA,1.5\r\n\r\n\"B, \"\"the\nsecond\"\"\",2\n";
        let rows = decode_table(CSV, true, schema(), text.as_bytes()).unwrap();
        assert_eq!(rows.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["A", "B, \"the\nsecond\""]);
        assert_eq!(rows.column(1).as_primitive::<Float64Type>().values().as_ref(), [1.5, 2.0]);
        let lines = b"{\"name\": \"A\", \"price\": 1}\n{\"price\": 2}";
        assert_eq!(decode_table(Format::Json, false, schema(), lines).unwrap().num_rows(), 2);
        assert_eq!(decode_table(CSV, true, schema(), b"name,price").unwrap().num_rows(), 0);
    }

    #[test]
    fn a_header_names_the_columns_in_any_order() {
        let text = "\"who, what\",Price,\"name\"\nx,1.5,A\n\n\"y, z\",2,\"B\n\"\n";
        let rows = decode_table(CSV, true, schema(), text.as_bytes()).unwrap();
        assert_eq!(rows.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["A", "B\n"]);
        assert_eq!(rows.column(1).as_primitive::<Float64Type>().values().as_ref(), [1.5, 2.0]);
        let fault = decode_table(CSV, true, schema(), b"price,id,name\n1,2,A\nx,2,A\n").unwrap_err().to_string();
        assert!(fault.starts_with("line 3: field 'price' at byte 0: expected a number"), "{fault}");
    }

    #[test]
    fn wrong_lines_are_told_by_their_numbers() {
        let text = "name,price\n\"A\nB\",1\nC,cheap\nD\nE,1\nF,\nG,x\n";
        let fault = decode_table(CSV, true, schema(), text.as_bytes()).unwrap_err();
        let TableFault::Lines { first, count } = &fault else { panic!("{fault}") };
        assert_eq!(first.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 5, 7]);
        assert_eq!(*count, 4);
        assert!(fault.to_string().starts_with("line 4: field 'price' at byte 2: expected a number"), "{fault}");
        assert!(fault.to_string().ends_with("and 1 more line"), "{fault}");
        let (rows, fault) = decode_table_in_part(CSV, &Times::default(), true, schema(), text.as_bytes()).unwrap();
        assert_eq!(
            rows.column(1).as_primitive::<Float64Type>().values().as_ref(),
            [1.0, 1.0],
            "the lines that can be read"
        );
        assert!(matches!(fault, Some(TableFault::Lines { count: 4, .. })));
        let fault = decode_table(CSV, false, schema(), b"name,price\nA,1\n").unwrap_err().to_string();
        assert!(fault.contains("found price, its name") && fault.contains("(header => true)"), "{fault}");
        let fault = decode_table(CSV, true, schema(), b"price,other\n").unwrap_err().to_string();
        assert!(
            fault.starts_with("line 1: the header 'price,other' does not name the column 'name'\nhint: "),
            "{fault}"
        );
    }
}
