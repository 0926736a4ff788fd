//! Files that others have written: lines, Parquet, Avro containers. Reading one ends with rows, or with an error that
//! says what is wrong.

use std::sync::Arc;

use arrow::datatypes::Schema;
use rivulet_connectors::connector::{ConnectorContext, Connectors, SourceSpec, infer_file};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{Polled, Refusals};

use super::payload::columns;
use crate::input::Input;
use crate::{Target, scratch};

/// See the module.
pub const TARGET: Target = Target {
    name: "files",
    run,
    words: &[
        "PAR1",
        "Obj\u{1}",
        "avro.codec",
        "deflate",
        "snappy",
        "null",
        "avro.schema",
        "t,v,n,s,f\n",
        "{\"v\":1}\n",
        "\"",
        "\n",
    ],
    mutations: 3_000,
};

/// A file as small as this is read in fewer steps.
const POLLS_MAX: usize = 100_000;

const ROWS_MAX: usize = 1_024;

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (name, format) = input.pick(&[
        ("rows.parquet", None),
        ("rows.avro", None),
        ("rows.csv", Some(("CSV", "header"))),
        ("rows.json", None),
        ("rows.csv", None),
        ("rows.json", Some(("JSON", "multiline"))),
    ]);
    let choice = input.byte();
    let (folder, content) = (scratch::folder(), input.rest());
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("the file can be written");
    let address = path.to_str().expect("the path is text").to_owned();
    // What it is told to be is words or an error.
    let _ = infer_file(&address, &Files::of_user());
    // A Parquet file may bring its columns.
    let own =
        if choice & 2 != 0 { Connectors::OWN.declared_schema("file", &address, &Files::of_user()) } else { Ok(None) };
    let own = own.unwrap_or_default();
    let schema = own.map_or_else(|| columns(choice & 1 != 0), |schema: Schema| Arc::new(schema));
    let mut options = Vec::new();
    let format = format.map(|(format, option)| match option {
        "header" => (format.to_owned(), vec![("header".to_owned(), "true".to_owned())]),
        _ => {
            options.push((option.to_owned(), "true".to_owned()));
            (format.to_owned(), Vec::new())
        }
    });
    let spec = SourceSpec {
        connector: "file".into(),
        address,
        format,
        columns: (0..schema.fields().len()).collect(),
        schema,
        event_time_column: None,
        has_computed_time: false,
        options,
        host: ConnectorContext::of_user(),
        resume: None,
    };
    let Ok(partitions) = Connectors::OWN.open_source(&spec, 1 + usize::from(choice >> 2 & 1)) else { return };
    for mut partition in partitions {
        let mut refusals = Refusals::new(4);
        let mut polls = 0;
        while let Ok(polled) = partition.poll(ROWS_MAX, 0, &mut refusals) {
            if matches!(polled, Polled::End) {
                break;
            }
            partition.position();
            polls += 1;
            assert!(polls < POLLS_MAX, "a file of {} bytes has an end", content.len());
        }
    }
}
