//! Folders by the values of columns, as Hive has them: `dt=2026-11-21/hm=08-30`.

use std::fmt::Write;
use std::ops::Range;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use hashbrown::HashMap;
use rivulet_dataflow::Batch;

use super::super::ConnectorError;
use super::super::Options;

/// The folder's value for rows whose value is null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The columns that become folders, and those that stay in the files.
pub(super) struct Partitioning {
    /// Name and index of the columns that become folders.
    by: Vec<(String, usize)>,
    /// The indices of the others.
    rest: Vec<usize>,
    /// The folders of one batch, end to end; empty between batches.
    folders: String,
    ranges: Vec<Range<usize>>,
}

impl Partitioning {
    /// Reads the option `partition_by`; `None` without it.
    pub(super) fn new(options: &Options, schema: &Schema) -> Result<Option<Self>, ConnectorError> {
        const OPTION: &str = "partition_by";
        let names = options.names(OPTION);
        if names.is_empty() {
            return Ok(None);
        }
        let mut by: Vec<(String, usize)> = Vec::with_capacity(names.len());
        for name in names {
            let is_it = |field: &str| field == name || field.to_lowercase() == name.to_lowercase();
            let Some(place) = schema.fields().iter().position(|field| is_it(field.name())) else {
                let columns: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                let problem = format!("names '{name}', which is no column");
                return Err(options.wrong(OPTION, problem, format!("the columns are {}", columns.join(", "))));
            };
            if by.iter().any(|(_, other)| *other == place) {
                return Err(options.wrong(OPTION, format!("names '{name}' twice"), "name it once"));
            }
            by.push((schema.field(place).name().clone(), place));
        }
        let rest: Vec<usize> =
            (0..schema.fields().len()).filter(|place| by.iter().all(|(_, other)| other != place)).collect();
        if rest.is_empty() {
            return Err(options.wrong(OPTION, "leaves no column for the files", "name fewer columns"));
        }
        Ok(Some(Self { by, rest, folders: String::new(), ranges: Vec::new() }))
    }

    /// The number of nested folders.
    pub(super) fn depth(&self) -> usize {
        self.by.len()
    }

    /// The columns that stay in the files.
    pub(super) fn schema(&self, schema: &Schema) -> SchemaRef {
        std::sync::Arc::new(schema.project(&self.rest).expect("columns of the schema"))
    }

    /// Splits the batch by folder; each part has the columns that stay in the files. Rows keep their order within a
    /// folder.
    pub(super) fn split(&mut self, batch: &Batch) -> Vec<(String, Batch)> {
        self.write_folders(&batch.columns);
        let rest = batch.columns.project(&self.rest).expect("columns of the schema");
        let batch = batch.with_columns(rest);
        let mut order: Vec<Range<usize>> = Vec::new();
        let mut rows_of: HashMap<&str, Vec<u32>> = HashMap::new();
        for (row, range) in self.ranges.iter().enumerate() {
            let rows = rows_of.entry(&self.folders[range.clone()]).or_insert_with(|| {
                order.push(range.clone());
                Vec::new()
            });
            rows.push(row as u32);
        }
        let mut parts = Vec::with_capacity(order.len());
        for range in order {
            let folder = &self.folders[range];
            let Some(rows) = rows_of.remove(folder) else { continue };
            let part = match rows.len() == batch.rows() {
                true => batch.clone(),
                false => batch.take(&rows).expect("rows of the batch"),
            };
            parts.push((folder.to_owned(), part));
        }
        parts
    }

    /// Writes the folder of each row. A row with the same folder as the previous row shares its text.
    fn write_folders(&mut self, columns: &RecordBatch) {
        self.folders.clear();
        self.ranges.clear();
        let options = FormatOptions::new();
        let values: Vec<(&str, &dyn Array, Option<ArrayFormatter>)> = self
            .by
            .iter()
            .map(|(name, place)| {
                let column = columns.column(*place).as_ref();
                (name.as_str(), column, ArrayFormatter::try_new(column, &options).ok())
            })
            .collect();
        let mut text = String::new();
        for row in 0..columns.num_rows() {
            let start = self.folders.len();
            for (index, (name, column, formatter)) in values.iter().enumerate() {
                if index > 0 {
                    self.folders.push('/');
                }
                escape(name, &mut self.folders);
                self.folders.push('=');
                text.clear();
                // A value that has no text counts as null.
                let has_text = formatter.as_ref().is_some_and(|values| write!(text, "{}", values.value(row)).is_ok());
                escape(if has_text && column.is_valid(row) { &text } else { "" }, &mut self.folders);
            }
            match self.ranges.last() {
                Some(last) if self.folders[last.clone()] == self.folders[start..] => {
                    let last = last.clone();
                    self.folders.truncate(start);
                    self.ranges.push(last);
                }
                _ => self.ranges.push(start..self.folders.len()),
            }
        }
    }
}

/// Appends a name or a value; characters with a meaning in paths become `%` and two digits.
fn escape(text: &str, out: &mut String) {
    if text.is_empty() {
        // Hive has no empty value; it reads one as null.
        out.push_str(NULL);
    }
    for character in text.chars() {
        match character {
            '"' | '#' | '%' | '\'' | '*' | '/' | ':' | '=' | '?' | '\\' | '{' | '}' | '[' | ']' | '^' | '\u{7f}' => {
                append_escaped(character, out);
            }
            control if control < ' ' => append_escaped(control, out),
            // A value of dots alone would lead to another folder if the name and `=` were not before it.
            other => out.push(other),
        }
    }
}

fn append_escaped(character: char, out: &mut String) {
    // Writing to memory does not fail.
    let _ = write!(out, "%{:02X}", u32::from(character));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Int64Type};

    use super::super::super::Direction;
    use super::super::CONNECTOR;
    use super::*;

    fn partitioning(by: &str) -> Result<Partitioning, String> {
        let options = [("partition_by".to_owned(), by.to_owned())];
        let options = CONNECTOR.check_options(Direction::Sink, &options).unwrap();
        Partitioning::new(&options, &schema()).map(Option::unwrap).map_err(|error| error.to_string())
    }

    fn schema() -> Schema {
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        Schema::new(vec![field("dt", DataType::Utf8), field("n", DataType::Int64), field("hm", DataType::Int64)])
    }

    #[test]
    fn rows_go_to_the_folders_of_their_values() {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(vec![Some("a/b"), Some("c"), Some("a/b"), None, Some("")])),
            Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5])),
            Arc::new(Int64Array::from(vec![9, 9, 9, 9, 9])),
        ];
        let columns = RecordBatch::try_new(Arc::new(schema()), columns).unwrap();
        let batch = Batch::new(vec![0; 5].into(), vec![0; 5].into(), vec![0; 5].into(), columns);
        let parts = partitioning("DT, hm").unwrap().split(&batch);
        let found: Vec<(&str, Vec<i64>)> = parts
            .iter()
            .map(|(folder, part)| {
                assert_eq!(part.columns.num_columns(), 1);
                (folder.as_str(), part.column(0).as_primitive::<Int64Type>().values().to_vec())
            })
            .collect();
        let null = "dt=__HIVE_DEFAULT_PARTITION__/hm=9";
        assert_eq!(found, [("dt=a%2Fb/hm=9", vec![1, 3]), ("dt=c/hm=9", vec![2]), (null, vec![4, 5])]);
        assert_eq!(parts[0].1.column(0).len(), 2);
    }

    #[test]
    fn columns_are_checked() {
        assert!(partitioning("day").map(|_| ()).unwrap_err().contains("hint: the columns are dt, n, hm"));
        assert!(partitioning("dt, DT").map(|_| ()).unwrap_err().contains("twice"));
        assert!(partitioning("dt, n, hm").map(|_| ()).unwrap_err().contains("no column for the files"));
    }
}
