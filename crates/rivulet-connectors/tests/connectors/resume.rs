//! Sources that go on where they were, and files that become final with checkpoints.

use std::fs;
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use rivulet_connectors::connector::{SourceSpec, open_sink, open_source};
use rivulet_dataflow::{Batch, Polled, Refusals, SlotTable, Source};

use crate::support::{columns, format, options, sink, source, texts};

/// A few rows of each source at a time; after each round all are opened anew where they were.
fn in_rounds(spec: &SourceSpec, partitions: usize, polls: usize) -> Vec<String> {
    let mut rows = Vec::new();
    let mut sources = open_source(spec, partitions).unwrap();
    for _ in 0..10_000 {
        let mut left: Vec<Box<dyn Source>> = Vec::new();
        'sources: for mut source in sources {
            for _ in 0..polls {
                match source.poll(7, 0, &mut Refusals::new(10)).unwrap() {
                    Polled::Rows { columns, .. } => rows.extend(texts(&columns)),
                    Polled::End => continue 'sources,
                    Polled::Nothing(_) | Polled::Aside(_) => {}
                }
            }
            left.push(source);
        }
        if left.is_empty() {
            rows.sort();
            return rows;
        }
        let positions: Vec<Option<String>> = left.iter_mut().map(|source| source.position()).collect();
        assert!(positions.iter().all(Option::is_some));
        drop(left);
        sources = open_source(&SourceSpec { resume: Some(positions), ..spec.clone() }, partitions).unwrap();
    }
    panic!("it does not end");
}

fn whole(spec: &SourceSpec) -> Vec<String> {
    in_rounds(spec, 1, usize::MAX)
}

fn write(path: &Path, format_name: &str, rows: std::ops::Range<i64>) {
    let schema = columns("id BIGINT, name TEXT");
    let mut spec = sink(&format!("file:{}", path.display()), schema.clone());
    spec.format = Some(format(format_name));
    let mut sink = open_sink(&spec, 0, 1).unwrap();
    for id in rows {
        let id_column = arrow::array::Int64Array::from(vec![id]);
        let name = arrow::array::StringArray::from(vec![format!("name {id}")]);
        let columns =
            RecordBatch::try_new(schema.clone(), vec![std::sync::Arc::new(id_column), std::sync::Arc::new(name)]);
        sink.write(&batch(columns.unwrap()), &no_slots()).unwrap();
    }
    sink.finish().unwrap();
    while !sink.is_finished().unwrap() {}
}

fn batch(columns: RecordBatch) -> Batch {
    let rows = columns.num_rows();
    Batch::new(vec![0; rows].into(), vec![0; rows].into(), vec![0; rows].into(), columns)
}

fn no_slots() -> SlotTable {
    SlotTable::new(std::sync::Arc::new(Schema::empty()))
}

#[test]
fn files_are_read_on_where_a_checkpoint_was_made() {
    for (name, ending) in
        [("JSON", "json"), ("CSV", "csv"), ("CSV header=true", "csv"), ("PARQUET", "parquet"), ("AVRO", "avro")]
    {
        let folder = tempfile::tempdir().unwrap();
        for file in 0..3 {
            write(&folder.path().join(format!("{file}.{ending}")), name, file * 40..file * 40 + 40);
        }
        let mut spec = source(&format!("file:{}", folder.path().display()), "id BIGINT, name TEXT");
        spec.format = Some(format(name));
        let expected = whole(&spec);
        assert_eq!(expected.len(), 120, "{name}");
        for (partitions, polls) in [(1, 1), (2, 1), (2, 3), (3, 2)] {
            assert_eq!(in_rounds(&spec, partitions, polls), expected, "{name}, {partitions} partitions, {polls} polls");
        }
    }
}

#[test]
fn generators_go_on_where_a_checkpoint_was_made() {
    for (address, declared) in
        [("nexmark:bid", "auction BIGINT, price BIGINT"), ("sensors:", "device BIGINT, temperature DOUBLE")]
    {
        let mut spec = source(address, declared);
        spec.options = options(&[("events", "1000"), ("block", "17")]);
        let expected = whole(&spec);
        assert!(expected.len() > 900, "{address}");
        for (partitions, polls) in [(1, 1), (2, 2), (3, 5)] {
            assert_eq!(in_rounds(&spec, partitions, polls), expected, "{address}");
        }
    }
}

#[test]
fn a_followed_file_goes_on_and_new_ones_are_found() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.json"), "{\"id\":1}\n{\"id\":2}\n").unwrap();
    let mut spec = source(&format!("file:{}", folder.path().display()), "id BIGINT");
    (spec.format, spec.options) = (Some(format("JSON")), options(&[("follow", "true")]));
    let read = |sources: &mut Vec<Box<dyn Source>>| {
        let mut rows = Vec::new();
        for source in sources.iter_mut() {
            for _ in 0..5 {
                if let Polled::Rows { columns, .. } = source.poll(100, 0, &mut Refusals::new(1)).unwrap() {
                    rows.extend(texts(&columns));
                }
            }
        }
        rows.sort();
        rows
    };
    let mut sources = open_source(&spec, 1).unwrap();
    assert_eq!(read(&mut sources), ["1", "2"]);
    let positions = sources.iter_mut().map(|source| source.position()).collect();
    drop(sources);
    fs::write(folder.path().join("a.json"), "{\"id\":1}\n{\"id\":2}\n{\"id\":3}\n").unwrap();
    fs::write(folder.path().join("b.json"), "{\"id\":9}\n").unwrap();
    let mut sources = open_source(&SourceSpec { resume: Some(positions), ..spec }, 1).unwrap();
    assert_eq!(read(&mut sources), ["3", "9"]);
}

#[test]
fn a_position_that_is_not_understood_is_an_error_that_says_what_to_do() {
    let mut spec = source("nexmark:bid", "auction BIGINT");
    spec.resume = Some(vec![Some("nonsense".into())]);
    let error = open_source(&spec, 1).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("'nonsense', which is not understood") && error.contains("create it again"), "{error}");
}

#[test]
fn what_was_written_after_a_checkpoint_goes_and_what_belongs_to_it_stays() {
    let folder = tempfile::tempdir().unwrap();
    let schema = columns("id BIGINT");
    let rows = |ids: &[i64]| {
        let column = arrow::array::Int64Array::from(ids.to_vec());
        batch(RecordBatch::try_new(schema.clone(), vec![std::sync::Arc::new(column)]).unwrap())
    };
    let ids = || {
        let mut ids: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'))
            .flat_map(|path| fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        ids.sort();
        ids
    };
    for (address, is_folder) in [("out/", true), ("one.json", false)] {
        let _ = fs::remove_dir_all(folder.path());
        fs::create_dir(folder.path()).unwrap();
        let at = if is_folder {
            folder.path().display().to_string() + "/"
        } else {
            folder.path().join(address).display().to_string()
        };
        let mut spec = sink(&format!("file:{at}"), schema.clone());
        (spec.format, spec.checkpoints) = (Some(format("JSON")), Some(Vec::new()));
        let mut first = open_sink(&spec, 0, 1).unwrap();
        first.write(&rows(&[1, 2]), &no_slots()).unwrap();
        let prepared = first.prepare().unwrap().unwrap();
        // Written after the checkpoint, then killed.
        first.write(&rows(&[3]), &no_slots()).unwrap();
        let _ = first.prepare().unwrap();
        drop(first);
        assert!(ids().is_empty(), "nobody sees what is not final");
        spec.checkpoints = Some(vec![prepared]);
        let mut second = open_sink(&spec, 0, 1).unwrap();
        second.write(&rows(&[4]), &no_slots()).unwrap();
        second.finish().unwrap();
        assert_eq!(ids(), ["{\"id\":1}", "{\"id\":2}", "{\"id\":4}"], "{address}");
    }
}
