//! The keys of messages.
//!
//! What must hold: for a changing result, in which the newest row of each key counts, no two keys are written alike.
//! Bare text could be: an empty text looks like no key. So a key that is null, or begins as an object does, is written
//! as an object.

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Schema};
use hashbrown::HashSet;
use rivulet_dataflow::Batch;

use super::client::NAME;
use crate::connector::{ConnectorError, Options, SinkSpec};
use crate::formats::{EncodedRows, Encoder, Format, object_encoder};

/// Writes the key of each row: the bare text of one column, a JSON object of several.
pub(super) struct KeyEncoder {
    columns: Vec<usize>,
    encoder: Box<dyn Encoder>,
    keys: EncodedRows,
    /// For results whose bare keys could be alike.
    objects: Option<Objects>,
}

/// Writes keys as objects, for batches in which some keys need it.
struct Objects {
    encoder: Box<dyn Encoder>,
    all: EncodedRows,
    mixed: EncodedRows,
}

impl KeyEncoder {
    /// Reads the option `key`; `None` if messages have none. With `has_changes` all rows of a result that changes are
    /// messages, and not the newest of each key alone.
    pub(super) fn new(spec: &SinkSpec, options: &Options, has_changes: bool) -> Result<Option<Self>, ConnectorError> {
        let mut columns = columns_of(options, &spec.schema)?;
        // A row and what takes it back have equal values, so any key keeps them in order.
        let any_key_will_do = has_changes && spec.key.is_none() && !columns.is_empty();
        if spec.changes && !any_key_will_do {
            let Some(key) = &spec.key else {
                return Err(ConnectorError::Changes {
                    connector: NAME,
                    hint: match has_changes {
                        true => {
                            "say by which columns the changes of a row stay in order: WITH (key => 'columns')".into()
                        }
                        false => {
                            "the result needs a key by which its newest rows are told, as GROUP BY gives one; or write \
                                  all changes, as FORMAT DEBEZIUM with a key of your own"
                                .into()
                        }
                    },
                });
            };
            // The newest row of a key is kept, so the key must identify rows.
            let given: HashSet<usize> = columns.iter().copied().collect();
            let needed: HashSet<usize> = key.iter().copied().collect();
            if columns.is_empty() {
                columns.clone_from(key);
            } else if given != needed {
                let name = |&column: &usize| spec.schema.field(column).name().as_str();
                let names: Vec<&str> = key.iter().map(name).collect();
                return Err(options.wrong(
                    "key",
                    "is not the key of the result, which changes",
                    format!("it is {}", names.join(", ")),
                ));
            }
        }
        if columns.is_empty() && !spec.changes {
            return Ok(None);
        }
        let schema = std::sync::Arc::new(spec.schema.project(&columns).expect("columns of the schema"));
        let is_text = |column: usize| {
            matches!(spec.schema.field(column).data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
        };
        let objects = match spec.changes && columns.len() == 1 && is_text(columns[0]) {
            true => Some(Objects {
                encoder: Format::Json.encoder(schema.clone())?,
                all: EncodedRows::default(),
                mixed: EncodedRows::default(),
            }),
            false => None,
        };
        let encoder = match columns.len() {
            // The one row of a result without GROUP BY.
            0 => object_encoder(&schema),
            1 => Format::Text.encoder(schema)?,
            _ => Format::Json.encoder(schema)?,
        };
        Ok(Some(Self { columns, encoder, keys: EncodedRows::default(), objects }))
    }

    /// The key of each row, until the next call.
    pub(super) fn encode(&mut self, batch: &Batch) -> &EncodedRows {
        let columns: RecordBatch = batch.columns.project(&self.columns).expect("columns of the schema");
        self.keys.clear();
        let batch = batch.with_columns(columns);
        self.encoder.encode(&batch, &mut self.keys);
        let Some(objects) = &mut self.objects else { return &self.keys };
        let column = batch.column(0);
        let is_object = |row: usize, key: &[u8]| column.is_null(row) || key.first() == Some(&b'{');
        if !self.keys.iter().enumerate().any(|(row, key)| is_object(row, key)) {
            return &self.keys;
        }
        let Objects { encoder, all, mixed } = objects;
        all.clear();
        mixed.clear();
        encoder.encode(&batch, all);
        for (row, key) in self.keys.iter().enumerate() {
            let key = if is_object(row, key) { all.row(row) } else { key };
            mixed.bytes_mut().extend_from_slice(key);
            mixed.end_row();
        }
        mixed
    }
}

/// The columns that the option names.
fn columns_of(options: &Options, schema: &Schema) -> Result<Vec<usize>, ConnectorError> {
    let mut columns = Vec::new();
    for name in options.names("key") {
        let is_it = |field: &str| field == name || field.to_lowercase() == name.to_lowercase();
        match schema.fields().iter().position(|field| is_it(field.name())) {
            Some(column) if !columns.contains(&column) => columns.push(column),
            Some(_) => return Err(options.wrong("key", format!("names '{name}' twice"), "name it once")),
            None => {
                let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                let hint = format!("the columns are {}", names.join(", "));
                return Err(options.wrong("key", format!("names '{name}', which is no column"), hint));
            }
        }
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::datatypes::Field;

    use super::*;
    use crate::connector::{ConnectorContext, Direction};

    fn encoder(key: &str, changes: bool) -> Result<Option<KeyEncoder>, String> {
        let schema = Schema::new(vec![
            Field::new("device", DataType::Utf8, true),
            Field::new("n", DataType::Int64, true),
            Field::new("total", DataType::Int64, true),
        ]);
        let spec = SinkSpec {
            connector: "kafka".into(),
            address: "x".into(),
            format: None,
            schema: Arc::new(schema),
            changes,
            key: changes.then(|| vec![0]),
            options: Vec::new(),
            host: ConnectorContext::default(),
            checkpoints: None,
            output: None,
        };
        let given = if key.is_empty() { vec![] } else { vec![("key".to_owned(), key.to_owned())] };
        let options = super::super::CONNECTOR.check_options(Direction::Sink, &given).unwrap();
        KeyEncoder::new(&spec, &options, false).map_err(|error| error.to_string())
    }

    fn batch() -> Batch {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("device", Arc::new(StringArray::from(vec!["a", "b", "a"]))),
            ("n", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("total", Arc::new(Int64Array::from(vec![4, 5, 6]))),
        ];
        let columns = RecordBatch::try_from_iter(columns).unwrap();
        Batch::new(vec![0; 3].into(), vec![0; 3].into(), vec![0; 3].into(), columns)
    }

    #[test]
    fn keys_as_text_and_as_objects() {
        let mut one = encoder("DEVICE", false).unwrap().unwrap();
        let keys = one.encode(&batch());
        assert_eq!(keys.iter().collect::<Vec<_>>(), [b"a", b"b", b"a"]);
        let mut two = encoder("n, device", false).unwrap().unwrap();
        assert_eq!(two.encode(&batch()).row(1), br#"{"n":2,"device":"b"}"#);
        assert!(encoder("", false).unwrap().is_none());
        assert!(encoder("x", false).map(|_| ()).unwrap_err().contains("the columns are device, n, total"));
    }

    #[test]
    fn no_two_keys_of_a_changing_result_are_alike() {
        let texts = vec![Some("a"), None, Some(""), Some(r#"{"device":null}"#), Some("null")];
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("device", Arc::new(StringArray::from(texts))),
            ("n", Arc::new(Int64Array::from(vec![1; 5]))),
            ("total", Arc::new(Int64Array::from(vec![4; 5]))),
        ];
        let columns = RecordBatch::try_from_iter(columns).unwrap();
        let batch = Batch::new(vec![0; 5].into(), vec![0; 5].into(), vec![0; 5].into(), columns);
        let mut encoder = encoder("", true).unwrap().unwrap();
        for _ in 0..2 {
            let keys = encoder.encode(&batch).iter().map(|key| std::str::from_utf8(key).unwrap()).collect::<Vec<_>>();
            let object = r#"{"device":"{\"device\":null}"}"#;
            assert_eq!(keys, ["a", r#"{"device":null}"#, "", object, "null"]);
        }
        assert_eq!(encoder.encode(&super::tests::batch()).row(0), b"a");
    }

    #[test]
    fn a_changing_result_has_its_own_key() {
        assert_eq!(encoder("", true).unwrap().unwrap().columns, [0]);
        assert!(encoder("n", true).map(|_| ()).unwrap_err().contains("hint: it is device"));
    }
}
