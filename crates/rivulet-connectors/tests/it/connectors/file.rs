//! `file:` both ways.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Array, Int64Array, StringArray, TimestampMillisecondArray};
use rivulet_connectors::connector::{Condition, Connectors};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{Polled, Refusals};

use super::support::{
    Drained, batch, drain, fill, finish, flush_until, format, options, poll_all_until, poll_until, sink, sink_error,
    source, source_error,
};

const COLUMNS: &str = "name TEXT, n BIGINT";

fn address(path: &Path) -> String {
    format!("file:{}", path.display())
}

fn rows(range: std::ops::Range<i64>) -> rivulet_dataflow::Batch {
    let names: Vec<String> = range.clone().map(|n| format!("name {}", n % 3)).collect();
    batch(vec![
        ("name", Arc::new(StringArray::from(names)) as ArrayRef),
        ("n", Arc::new(Int64Array::from_iter_values(range))),
    ])
}

fn expected(range: std::ops::Range<i64>) -> Vec<String> {
    let mut rows: Vec<String> = range.map(|n| format!("name {}|{n}", n % 3)).collect();
    rows.sort();
    rows
}

/// All files below a folder, as paths below it, in order.
fn files(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(folder, &mut found);
    let mut names: Vec<String> =
        found.iter().map(|path| path.strip_prefix(folder).unwrap().display().to_string()).collect();
    names.sort();
    names
}

#[test]
fn what_was_written_is_read_in_every_format_and_division() {
    let folder = tempfile::tempdir().unwrap();
    let formats = [("json", "JSON"), ("csv", "CSV header=true delimiter=;"), ("parquet", "PARQUET"), ("avro", "AVRO")];
    for (ending, written) in formats {
        let path = folder.path().join(format!("rows.{ending}"));
        let mut spec = sink(&address(&path), rows(0..1).columns.schema());
        spec.format = Some(format(written));
        fill(&spec, &[rows(0..5000), rows(5000..12_000)]).unwrap();
        let mut spec = source(&address(&path), COLUMNS);
        spec.format = Some(format(written));
        for partitions in [1, 3] {
            let drained = drain(&spec, partitions).unwrap();
            assert_eq!(drained.refused, 0);
            assert_eq!(drained.sorted(), expected(0..12_000), "{written} in {partitions}");
        }
        // Only what is read.
        spec.columns = vec![1];
        assert_eq!(drain(&spec, 1).unwrap().rows[..3], ["0", "1", "2"]);
        spec.columns = vec![];
        assert_eq!(drain(&spec, 2).unwrap().rows.len(), 12_000);
    }
    assert_eq!(files(folder.path()), ["rows.avro", "rows.csv", "rows.json", "rows.parquet"]);
}

#[test]
fn large_files_are_cut_and_partitions_stay_near_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = 0_i64;
    // Where each line begins, as if the files were one.
    let mut begins = Vec::new();
    let mut bytes = 0;
    for part in ["a.json", "b.json"] {
        let mut text = String::new();
        while text.len() < 9 << 20 {
            begins.push((bytes + text.len()) as i64);
            text.push_str(&format!("{{\"name\": \"{}\", \"n\": {all}}}\n", "x".repeat((all % 200) as usize)));
            all += 1;
        }
        bytes += text.len();
        fs::write(folder.path().join(part), text.trim_end()).unwrap();
    }
    let mut spec = source(&address(folder.path()), COLUMNS);
    spec.columns = vec![1];
    spec.format = Some(format("JSON"));
    let mut sources = Connectors::OWN.open_source(&spec, 3).unwrap();
    assert_eq!(sources.len(), 3);
    // Each begins a piece of 4 MiB after the one before, not at a third of everything.
    for (index, source) in sources.iter_mut().enumerate() {
        let mut first = Drained::default();
        poll_until(&mut **source, &mut first, |drained| !drained.rows.is_empty()).unwrap();
        let beyond = begins[first.rows[0].parse::<usize>().unwrap()] - index as i64 * (4 << 20);
        assert!((0..300).contains(&beyond), "{index}: {beyond}");
        assert!(source.progress().unwrap().0 > 0);
    }
    for partitions in [1, 2, 4, 7] {
        let mut numbers: Vec<i64> =
            drain(&spec, partitions).unwrap().rows.iter().map(|row| row.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..all), "{} rows of {all} in {partitions}", numbers.len());
    }
}

#[test]
fn headers_are_found_by_name_in_every_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("1.csv"), "N,other,name\n1,x,a\nwarm,x,b\n").unwrap();
    fs::write(folder.path().join("2.csv"), "\u{feff}name;n\r\nc,d;2").unwrap();
    fs::write(folder.path().join("3.csv"), "").unwrap();
    let mut spec = source(&address(&folder.path().join("[1]*.csv")), COLUMNS);
    spec.address = folder.path().join("?.csv").display().to_string();
    spec.format = Some(format("CSV header=true"));
    assert!(drain(&spec, 1).unwrap_err().ends_with("2.csv: the header 'name;n' does not name the column 'name'"));
    fs::write(folder.path().join("2.csv"), "\u{feff}name,n\r\n\"c,d\",2").unwrap();
    let drained = drain(&spec, 2).unwrap();
    assert_eq!((drained.refused, drained.details.len()), (1, 1));
    assert_eq!(drained.details[0], "field 'n' at byte 0: expected a number, found warm");
    assert_eq!(drained.sorted(), ["a|1", "c,d|2"]);
}

#[test]
fn fields_with_line_breaks_are_read_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, "\"a\nb\",1\n\"c\"\"\n\",2\n").unwrap();
    let mut spec = source(&address(&path), COLUMNS);
    assert_eq!(drain(&spec, 1).unwrap().refused, 4);
    spec.options = options(&[("multiline", "true")]);
    assert_eq!(drain(&spec, 4).unwrap().rows, ["a\nb|1", "c\"\n|2"]);
    spec.format = Some(format("JSON"));
    assert!(source_error(&spec).contains("'multiline' of 'file:' is of CSV alone"));
}

#[test]
fn files_that_grow_are_followed_through_renames_and_cuts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    fs::write(&path, "a,1\nb,2\nhalf").unwrap();
    let mut spec = source(&address(&folder.path().join("*.csv")), COLUMNS);
    spec.options = options(&[("follow", "true")]);
    // One for the file, and one that finds others.
    let mut sources = Connectors::OWN.open_source(&spec, 4).unwrap();
    assert_eq!(sources.len(), 2);
    let mut drained = Drained::default();
    let mut until = |drained: &mut Drained, rows: usize| {
        poll_all_until(&mut sources, drained, |drained| drained.rows.len() >= rows);
    };
    until(&mut drained, 2);
    let append = |text: &str| {
        fs::OpenOptions::new().append(true).create(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
    };
    append(",3\n");
    until(&mut drained, 3);
    // Renamed away to a name outside of the pattern, its last line not ended; another one in its place.
    append("d,4");
    fs::rename(&path, folder.path().join("log.old")).unwrap();
    fs::write(&path, "e,5\n\n\n").unwrap();
    until(&mut drained, 5);
    // Cut short and written again.
    fs::write(&path, "").unwrap();
    append("f,6\n");
    until(&mut drained, 6);
    // A new file, and one that goes.
    fs::write(folder.path().join("new.csv"), "g,7\n").unwrap();
    fs::remove_file(&path).unwrap();
    until(&mut drained, 7);
    assert_eq!(sources.len(), 2, "the file that is gone has ended");
    assert_eq!(drained.rows, ["a|1", "b|2", "half|3", "d|4", "e|5", "f|6", "g|7"]);
}

#[test]
fn a_file_that_is_renamed_within_its_folder_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let append = |name: &str, text: &str| {
        fs::OpenOptions::new().append(true).create(true).open(path(name)).unwrap().write_all(text.as_bytes()).unwrap();
    };
    append("x.csv", "a,1\n");
    let mut spec = source(&address(&path("*.csv*")), COLUMNS);
    spec.options = options(&[("follow", "true")]);
    let mut sources = Connectors::OWN.open_source(&spec, 4).unwrap();
    let mut drained = Drained::default();
    let mut until = |drained: &mut Drained, rows: usize| {
        poll_all_until(&mut sources, drained, |drained| drained.rows.len() >= rows);
    };
    until(&mut drained, 1);
    // As who rotates files does it, twice; somebody still writes to the one that was renamed first.
    append("x.csv", "b,2\n");
    fs::rename(path("x.csv"), path("x.csv.1")).unwrap();
    append("x.csv", "c,3\n");
    until(&mut drained, 3);
    append("x.csv.1", "d,4\n");
    until(&mut drained, 4);
    fs::rename(path("x.csv.1"), path("x.csv.2")).unwrap();
    fs::rename(path("x.csv"), path("x.csv.1")).unwrap();
    append("x.csv", "e,5\n");
    append("x.csv.2", "f,6\n");
    until(&mut drained, 6);
    // New ones are found later than what was read twice would have come.
    append("y.csv", "g,7\n");
    until(&mut drained, 7);
    drained.rows.sort_unstable();
    assert_eq!(drained.rows, ["a|1", "b|2", "c|3", "d|4", "e|5", "f|6", "g|7"]);
}

#[test]
fn following_may_begin_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    fs::write(&path, "a,1\nb,2\n").unwrap();
    let mut spec = source(&address(&path), COLUMNS);
    spec.options = options(&[("follow", "true"), ("start", "end")]);
    let mut sources = Connectors::OWN.open_source(&spec, 1).unwrap();
    let mut drained = Drained::default();
    let refusals = &mut Refusals::new(0);
    assert!(matches!(sources[0].poll(10, 0, refusals).unwrap(), Polled::Aside(_)));
    assert!(matches!(sources[1].poll(10, 0, refusals).unwrap(), Polled::Nothing(_)));
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"c,3\n").unwrap();
    poll_all_until(&mut sources, &mut drained, |drained| !drained.rows.is_empty());
    assert_eq!(drained.rows, ["c|3"]);
    spec.options = options(&[("start", "end")]);
    assert!(source_error(&spec).contains("of files that are followed"));
}

#[test]
fn each_file_is_a_source_where_rows_have_a_time() {
    let folder = tempfile::tempdir().unwrap();
    const FILES: i64 = 150;
    const ROWS: i64 = 3000;
    let rows = |file: i64| rows(file * ROWS..(file + 1) * ROWS);
    for (ending, written) in [("csv", "CSV header=true"), ("parquet", "PARQUET"), ("avro", "AVRO")] {
        for file in 0..FILES {
            let mut spec = sink(&address(&folder.path().join(format!("{file:03}.{ending}"))), rows(0).columns.schema());
            spec.format = Some(format(written));
            fill(&spec, &[rows(file)]).unwrap();
        }
        let mut spec = source(&address(&folder.path().join(format!("*.{ending}"))), "name TEXT, n TIMESTAMP");
        spec.schema = super::support::columns(if ending == "csv" { "name TEXT, n TIMESTAMP" } else { COLUMNS });
        spec.format = Some(format(written));
        assert_eq!(Connectors::OWN.open_source(&spec, 4).unwrap().len(), 4);
        spec.event_time_column = Some(1);
        let mut sources = Connectors::OWN.open_source(&spec, 4).unwrap();
        assert_eq!(sources.len(), FILES as usize);
        // In turn, so that all are under way at a time; and yet few files are open.
        let (mut drained, mut files_open) = (Drained::default(), 0);
        while !sources.is_empty() {
            let refusals = &mut Refusals::new(0);
            sources.retain_mut(|source| match source.poll(700, 0, refusals).unwrap() {
                Polled::Rows { columns, .. } => {
                    drained.rows.extend(super::support::texts(&columns.project(&[0]).unwrap()));
                    true
                }
                Polled::End => {
                    let (done, all) = source.progress().unwrap();
                    assert_eq!(done, all);
                    false
                }
                _ => true,
            });
            files_open = files_open.max(open_files_below(folder.path()));
        }
        assert_eq!(drained.rows.len() as i64, FILES * ROWS, "{written}");
        assert!(!cfg!(target_os = "linux") || (1..=64).contains(&files_open), "{written}: {files_open} files are open");
        let names = drained.sorted();
        assert!(
            (0..3)
                .all(|name| names.iter().filter(|row| **row == format!("name {name}")).count() as i64
                    == FILES * ROWS / 3)
        );
    }
}

/// How many files below a folder this process has open.
fn open_files_below(folder: &Path) -> usize {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return 0 };
    let open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    open.filter(|path| path.starts_with(folder)).count()
}

#[test]
fn a_null_in_the_only_column_of_csv_is_a_row() {
    let folder = tempfile::tempdir().unwrap();
    for written in ["CSV", "CSV header=true"] {
        let path = folder.path().join("rows.csv");
        let rows = batch(vec![("n", Arc::new(Int64Array::from(vec![Some(1), None, None, Some(4)])) as ArrayRef)]);
        let mut to = sink(&address(&path), rows.columns.schema());
        to.format = Some(format(written));
        fill(&to, &[rows]).unwrap();
        let mut from = source(&address(&path), "n BIGINT");
        from.format = Some(format(written));
        let drained = drain(&from, 2).unwrap();
        assert_eq!((drained.rows, drained.refused), (["1", "", "", "4"].map(String::from).to_vec(), 0));
    }
    // Of several fields it is an empty line, also where one of them alone is declared.
    fs::write(folder.path().join("rows.csv"), "n,other\n1,a\n\n2,b\n").unwrap();
    let mut from = source(&address(&folder.path().join("rows.csv")), "n BIGINT");
    from.format = Some(format("CSV header=true"));
    let drained = drain(&from, 1).unwrap();
    assert_eq!((drained.rows, drained.refused), (["1", "2"].map(String::from).to_vec(), 0));
}

#[test]
fn values_of_parquet_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let rows = batch(vec![
        ("a", Arc::new(StringArray::from(vec!["1", "abc", "3", "4"])) as ArrayRef),
        ("b", Arc::new(Float32Array::from(vec![1.0, 2.0, 2.5, 4.0]))),
    ]);
    fill(&sink(&address(&path), rows.columns.schema()), &[rows]).unwrap();
    let drained = drain(&source(&address(&path), "a BIGINT, b BIGINT"), 1).unwrap();
    assert_eq!((&drained.rows[..], drained.refused), (&["1|1".to_owned(), "4|4".into()][..], 2));
    assert!(drained.details.iter().any(|detail| detail.contains("field 'b': a number with a fraction")), "{drained:?}");
    assert!(source_error(&source(&address(&path), "b TIMESTAMP")).contains("cannot be read as Timestamp"));
}

#[test]
fn parquet_columns_are_brought_to_the_declared_types() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let rows = batch(vec![
        ("at", Arc::new(TimestampMillisecondArray::from(vec![Some(1), None, Some(3)])) as ArrayRef),
        ("N", Arc::new(Int32Array::from(vec![Some(1), Some(2), None]))),
        ("value", Arc::new(Float32Array::from(vec![0.5, 1.5, 2.5]))),
    ]);
    let spec = sink(&address(&path), rows.columns.schema());
    fill(&spec, std::slice::from_ref(&rows)).unwrap();
    let declared_of = |path: &str| Connectors::OWN.declared_schema("file", path, &Files::of_user());
    let declared = declared_of(&path.display().to_string()).unwrap().unwrap();
    // One that is not there, or is none, is told so; what may have its columns declared brings none.
    let missing = path.with_file_name("missing.parquet").display().to_string();
    let error = declared_of(&missing).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot open 'file:{missing}': ")) && error.contains("hint: "), "{error}");
    std::fs::write(&missing, "no Parquet").unwrap();
    let error = declared_of(&missing).unwrap_err().to_string();
    assert!(error.contains("is it a whole Parquet file?"), "{error}");
    assert_eq!(declared_of(&path.with_file_name("missing.csv").display().to_string()).unwrap(), None);
    let types: Vec<String> = declared.fields().iter().map(|field| field.data_type().to_string()).collect();
    assert_eq!(types, ["Timestamp(µs)", "Int64", "Float64"]);
    let mut spec = source(&address(&path), "value DOUBLE, n BIGINT, at TIMESTAMP");
    assert_eq!(drain(&spec, 2).unwrap().rows[0], "0.5|1|1970-01-01T00:00:00.001");
    spec.event_time_column = Some(2);
    let drained = drain(&spec, 2).unwrap();
    assert_eq!((drained.refused, &drained.details[..]), (1, &["field 'at' may not be null".to_owned()][..]));
    assert_eq!(drained.rows, ["0.5|1|1970-01-01T00:00:00.001", "2.5||1970-01-01T00:00:00.003"]);
    spec = source(&address(&path), "price DOUBLE");
    assert!(source_error(&spec).contains("there is no column 'price'; the columns are at, N, value"));
    fs::write(&path, "PAR1 no").unwrap();
    assert!(source_error(&spec).contains("rows.parquet"));
}

#[test]
fn avro_files_of_others_are_read_whatever_their_compression() {
    use arrow_avro::compression::CompressionCodec;
    use arrow_avro::writer::{AvroWriter, WriterBuilder, format::AvroOcfFormat};

    let folder = tempfile::tempdir().unwrap();
    let rows = rows(0..3000).columns;
    let codecs =
        [None, Some(CompressionCodec::Deflate), Some(CompressionCodec::Snappy), Some(CompressionCodec::ZStandard)];
    for (index, codec) in codecs.into_iter().enumerate() {
        let file = fs::File::create(folder.path().join(format!("{index}.avro"))).unwrap();
        let mut writer: AvroWriter<fs::File> = WriterBuilder::new((*rows.schema()).clone())
            .with_compression(codec)
            .build::<_, AvroOcfFormat>(file)
            .unwrap();
        writer.write(&rows.slice(0, 1000)).unwrap();
        writer.write(&rows.slice(1000, 2000)).unwrap();
        writer.finish().unwrap();
    }
    let spec = source(&address(folder.path()), "n BIGINT");
    let mut numbers: Vec<i64> = drain(&spec, 3).unwrap().rows.iter().map(|row| row.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq((0..3000).flat_map(|n| [n; 4])));
    // And ours by another.
    let path = folder.path().join("ours.avro");
    fill(&sink(&address(&path), rows.schema()), &[self::rows(0..100), self::rows(100..150)]).unwrap();
    let file = std::io::BufReader::new(fs::File::open(&path).unwrap());
    let read = arrow_avro::reader::ReaderBuilder::new().build(file).unwrap();
    assert_eq!(read.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 150);
    // Broken ones are told, whatever is broken; what comes before is read.
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let spec = source(&address(&path), COLUMNS);
        match drain(&spec, 1) {
            Ok(drained) => assert!(drained.rows.len() % 50 == 0, "{length}: {} rows", drained.rows.len()),
            Err(error) => assert!(error.contains("ours.avro"), "{error}"),
        }
    }
}

#[test]
fn folders_get_whole_files_by_partition() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    let mut spec = sink(&address(&results), rows(0..1).columns.schema());
    spec.format = Some(format("CSV header=true"));
    spec.options = options(&[("partition_by", "name"), ("roll_bytes", "100"), ("commit_interval", "1 hour")]);
    let mut sink = Connectors::OWN.open_sink(&spec, 1, 2).unwrap();
    sink.write(&rows(0..3)).unwrap();
    sink.flush().unwrap();
    assert!(files(&results).iter().all(|name| name.split('/').next_back().unwrap().starts_with('.')));
    sink.write(&rows(3..300)).unwrap();
    sink.write(&rows(300..303)).unwrap();
    assert!(sink.finish().unwrap());
    let names = files(&results);
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("name=name ") && name.ends_with(".csv")), "{names:?}");
    let mut read = source(&address(&results), "n BIGINT");
    read.format = Some(format("CSV header=true"));
    let mut numbers: Vec<i64> = drain(&read, 2).unwrap().rows.iter().map(|row| row.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..303));
    // What is in the names of folders would be null: it is said.
    let mut read = source(&address(&results), COLUMNS);
    read.format = Some(format("CSV header=true"));
    let error = source_error(&read);
    assert!(error.contains("the column 'name' is in the names of folders") && error.contains("hint: "), "{error}");
}

#[test]
fn one_file_is_shared_by_instances_and_committed_by_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    fs::write(&path, "old").unwrap();
    let spec = sink(&address(&path), rows(0..1).columns.schema());
    let mut sinks: Vec<_> = (0..3).map(|instance| Connectors::OWN.open_sink(&spec, instance, 3).unwrap()).collect();
    assert!(sink_error(&spec).contains("another query is writing it"));
    for (index, sink) in sinks.iter_mut().enumerate() {
        sink.write(&rows(index as i64 * 10..index as i64 * 10 + 10)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(sink.finish().unwrap());
    }
    assert_eq!(drain(&source(&address(&path), COLUMNS), 1).unwrap().sorted(), expected(0..30));
    drop(sinks);
    // One that does not finish leaves what was there.
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&rows(0..1)).unwrap();
    drop(sink);
    assert_eq!(drain(&source(&address(&path), COLUMNS), 1).unwrap().rows.len(), 30);
    assert_eq!(files(folder.path()), ["rows.json"]);
}

#[test]
fn lines_may_be_appended_and_changes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    let mut spec = sink(&address(&path), rows(0..1).columns.schema());
    spec.changes = true;
    spec.format = Some(format("CSV header=true"));
    spec.options = options(&[("append", "true")]);
    let changing = rows(0..2).with_retracts(Some(vec![false, true].into()));
    fill(&spec, &[changing]).unwrap();
    fill(&spec, &[rows(2..3)]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "op,name,n\n+,name 0,0\n-,name 1,1\n+,name 2,2\n");
    spec.format = Some(format("PARQUET"));
    assert!(sink_error(&spec).contains("cannot take rows back\nhint: write JSON or CSV"));
}

#[test]
fn lines_are_appended_to_the_file_that_has_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/deep/rows.csv");
    let mut spec = sink(&address(&path), rows(0..1).columns.schema());
    spec.format = Some(format("CSV header=true"));
    spec.options = options(&[("append", "true")]);
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&rows(0..1)).unwrap();
    let rotated = path.with_file_name("rows.csv.1");
    fs::rename(&path, &rotated).unwrap();
    sink.write(&rows(1..2)).unwrap();
    sink.write(&rows(2..3)).unwrap();
    assert_eq!(fs::read_to_string(&rotated).unwrap(), "name,n\nname 0,0\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), "name,n\nname 1,1\nname 2,2\n");
    fs::remove_dir_all(folder.path().join("new")).unwrap();
    sink.write(&rows(3..4)).unwrap();
    assert!(sink.drain().unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), "name,n\nname 0,3\n", "what was removed is not missed");
    // As a full disk leaves it.
    fs::write(&path, "name,n\nname 0,3\nname").unwrap();
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&rows(4..5)).unwrap();
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&rows(5..6)).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, "name,n\nname 0,3\nname\nname 1,4\nname 2,5\n", "a line that was cut short spoils no other");
    fs::write(&path, "name,").unwrap();
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&rows(6..7)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "name,n\nname 0,6\n", "a header that was cut short is written anew");
    fs::write(&path, "a,1").unwrap();
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&rows(7..8)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "a,1\nname 1,7\n", "rows of others stay");
}

#[test]
fn a_sink_that_is_opened_anew_works_again_before_the_next_row() {
    for (name, append) in [("rows.json", "true"), ("rows/", "false")] {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("in");
        let mut spec = sink(&address(&inside.join(name)), rows(0..1).columns.schema());
        spec.format = Some(format("JSON"));
        spec.options = options(&[("append", append)]);
        let health = spec.host.health.clone();
        // No folder can be made there.
        fs::write(&inside, "").unwrap();
        health.retry(&sink_error(&spec));
        fs::remove_file(&inside).unwrap();
        let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
        sink.flush().unwrap();
        assert_eq!(health.report().condition, Condition::Ok, "{name}");
        health.retry("once more");
        sink.write(&rows(0..1)).unwrap();
        flush_until(&mut *sink, &health, |health| health.condition == Condition::Ok && health.rows == 1);
        finish(&mut *sink).unwrap();
        assert_eq!(files(&inside).len(), 1, "{name}: nothing is left of a trial");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let spec = source(&address(&folder.path().join("none.json")), COLUMNS);
    assert!(source_error(&spec).contains("No such file"));
    let spec = source(&address(&folder.path().join("*.json")), COLUMNS);
    assert!(source_error(&spec).contains("there is no such file\nhint: a folder needs files"));
    fs::write(folder.path().join("data.bin"), "x").unwrap();
    let spec = source(&address(&folder.path().join("data.bin")), COLUMNS);
    assert!(source_error(&spec).contains("hint: say it: FORMAT JSON"));
    let spec = source("file:/dev/zero", COLUMNS);
    assert!(source_error(&spec).contains("neither a file nor a folder"));
    let mut spec = source(&address(&folder.path().join("data.bin")), COLUMNS);
    spec.format = Some(format("YAML"));
    assert!(source_error(&spec).contains("cannot use the format YAML\nhint: it takes JSON, DEBEZIUM, CSV, PARQUET"));
    let schema = rows(0..1).columns.schema();
    let spec = sink("file:/proc/none/x.json", schema);
    assert!(sink_error(&spec).starts_with("cannot open 'file:/proc/none/x.json': cannot write /proc/none/x.json"));
}

#[test]
fn rows_count_when_the_system_has_taken_them() {
    let folder = tempfile::tempdir().unwrap();
    for (name, is_soon) in [("lines/", true), ("one.json", true), ("blocks/", false)] {
        let mut spec = sink(&address(&folder.path().join(name)), rows(0..1).columns.schema());
        spec.format = Some(format(if is_soon { "JSON" } else { "PARQUET" }));
        let health = spec.host.health.clone();
        let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
        sink.write(&rows(0..5)).unwrap();
        assert_eq!((health.report().rows, health.report().waiting_rows), (0, 5), "{name}: they are in memory");
        if is_soon {
            flush_until(&mut *sink, &health, |health| health.rows == 5);
        }
        finish(&mut *sink).unwrap();
        let told = health.report();
        assert_eq!((told.rows, told.waiting_rows, told.condition), (5, 0, Condition::Ok), "{name}");
        assert!(told.bytes > 0, "{name}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_takes_no_rows() {
    let mut spec = sink("file:/dev/full", rows(0..1).columns.schema());
    spec.format = Some(format("JSON"));
    spec.options = options(&[("append", "true")]);
    let error = fill(&spec, &[rows(0..3)]).unwrap_err();
    let told = spec.host.health.report();
    assert_eq!((told.condition, told.rows), (Condition::Failing, 0));
    assert!(error.contains("the disk is full") && told.last_error == Some(error), "{told:?}");
}
