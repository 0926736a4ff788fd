//! Sources that go on where they were, and files that become final with checkpoints.

use std::fs;
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use rivulet_connectors::connector::{SourceSpec, open_sink, open_source};
use rivulet_dataflow::{Batch, Polled, Refusals, SlotTable, Source};

use super::support::{columns, format, options, sink, source, texts};

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

/// What is there to be read now of files that never end.
fn followed(sources: &mut [Box<dyn Source>]) -> Vec<String> {
    let mut rows = Vec::new();
    for source in sources {
        for _ in 0..5 {
            if let Polled::Rows { columns, .. } = source.poll(100, 0, &mut Refusals::new(1)).unwrap() {
                rows.extend(texts(&columns));
            }
        }
    }
    rows.sort();
    rows
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
    let mut sources = open_source(&spec, 1).unwrap();
    assert_eq!(followed(&mut sources), ["1", "2"]);
    let positions = sources.iter_mut().map(|source| source.position()).collect();
    drop(sources);
    fs::write(folder.path().join("a.json"), "{\"id\":1}\n{\"id\":2}\n{\"id\":3}\n").unwrap();
    fs::write(folder.path().join("b.json"), "{\"id\":9}\n").unwrap();
    let mut sources = open_source(&SourceSpec { resume: Some(positions), ..spec }, 1).unwrap();
    assert_eq!(followed(&mut sources), ["3", "9"]);
}

#[test]
fn a_copied_file_goes_on_and_another_one_of_its_name_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (kept, other) = (folder.path().join("kept.json"), folder.path().join("other.json"));
    let lines = |from: i64, to: i64| (from..to).map(|id| format!("{{\"id\":{id}}}\n")).collect::<String>();
    fs::write(&kept, lines(0, 100)).unwrap();
    fs::write(&other, lines(100, 200)).unwrap();
    let mut spec = source(&format!("file:{}", folder.path().display()), "id BIGINT");
    (spec.format, spec.options) = (Some(format("JSON")), options(&[("follow", "true")]));
    let mut sources = open_source(&spec, 1).unwrap();
    assert_eq!(followed(&mut sources).len(), 200);
    let positions = sources.iter_mut().map(|source| source.position()).collect();
    drop(sources);
    // As after a disk was changed; and a file of the same length and name that says something else.
    for (path, text) in [(&kept, lines(0, 101)), (&other, lines(300, 401))] {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }
    let mut sources = open_source(&SourceSpec { resume: Some(positions), ..spec }, 1).unwrap();
    let rows = followed(&mut sources);
    let expected: Vec<String> = [100].into_iter().chain(300..401).map(|id| id.to_string()).collect();
    assert_eq!(rows, expected);
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

/// Rows of one column.
fn ids(ids: &[i64]) -> Batch {
    let column = arrow::array::Int64Array::from(ids.to_vec());
    batch(RecordBatch::try_new(columns("id BIGINT"), vec![std::sync::Arc::new(column)]).unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_that_were_taken_away_do_not_keep_their_query_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = sink(&format!("file:{}/", folder.path().display()), columns("id BIGINT"));
    (spec.format, spec.checkpoints) = (Some(format("JSON")), Some(Vec::new()));
    spec.options = options(&[("roll_bytes", "1")]);
    let mut first = open_sink(&spec, 0, 1).unwrap();
    first.write(&ids(&[1]), &no_slots()).unwrap();
    first.write(&ids(&[2]), &no_slots()).unwrap();
    let prepared = first.prepare().unwrap().unwrap();
    first.commit(1).unwrap();
    drop(first);
    assert_eq!(names(folder.path()).len(), 2);
    names(folder.path()).iter().for_each(|name| fs::remove_file(folder.path().join(name)).unwrap());
    spec.checkpoints = Some(vec![prepared]);
    let mut second = open_sink(&spec, 0, 1).unwrap();
    second.write(&ids(&[3]), &no_slots()).unwrap();
    second.finish().unwrap();
    assert_eq!(names(folder.path()).len(), 1);
}

#[test]
fn what_a_killed_run_had_begun_behind_its_last_checkpoint_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = sink(&format!("file:{}/", folder.path().display()), columns("id BIGINT"));
    (spec.format, spec.checkpoints) = (Some(format("JSON")), Some(Vec::new()));
    spec.options = options(&[("roll_bytes", "1")]);
    let mut other = open_sink(&spec, 0, 1).unwrap();
    other.write(&ids(&[7]), &no_slots()).unwrap();
    let of_other = names(folder.path());
    let mut first = open_sink(&spec, 0, 1).unwrap();
    first.write(&ids(&[1]), &no_slots()).unwrap();
    let prepared = first.prepare().unwrap().unwrap();
    for id in 2..5 {
        first.write(&ids(&[id]), &no_slots()).unwrap();
    }
    drop(first);
    assert_eq!(names(folder.path()).len(), 5, "a file each, all of them hidden");
    spec.checkpoints = Some(vec![prepared]);
    drop(open_sink(&spec, 0, 1).unwrap());
    let left = names(folder.path());
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.contains(&of_other[0]), "that of another query, which waits for a checkpoint and is not open");
    assert!(left.iter().any(|name| name.starts_with("part-")), "that of the checkpoint has its name");
}

#[test]
fn what_killed_processes_have_left_is_removed_by_the_query_that_it_is_of() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = sink(&format!("file:{}/", folder.path().display()), columns("id BIGINT"));
    (spec.format, spec.checkpoints) = (Some(format("JSON")), Some(Vec::new()));
    spec.options = options(&[("roll_bytes", "1")]);
    for (server, query) in [("0123", "means"), ("0123", "others"), ("4567", "means")] {
        (spec.host.server, spec.host.query) = (server.into(), query.into());
        let mut killed = open_sink(&spec, 0, 1).unwrap();
        killed.write(&ids(&[1]), &no_slots()).unwrap();
        drop(killed);
    }
    let began_now = names(folder.path());
    assert_eq!(began_now.len(), 3, "{began_now:?}");
    (spec.host.server, spec.host.query) = ("0123".into(), "means".into());
    drop(open_sink(&spec, 0, 1).unwrap());
    assert_eq!(names(folder.path()), began_now, "they may be of another sink of this process");
    // As if the processes had begun in 1970; none of them came to a checkpoint.
    for (number, name) in began_now.iter().enumerate() {
        let (_, behind) = name.split_once("part-").unwrap().1.split_once('-').unwrap();
        fs::rename(folder.path().join(name), folder.path().join(format!(".part-{number:x}-{behind}"))).unwrap();
    }
    drop(open_sink(&spec, 0, 1).unwrap());
    let left = names(folder.path());
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left[0].starts_with(".part-1-") && left[1].starts_with(".part-2-"), "those of others stay: {left:?}");
}

#[test]
fn a_file_that_got_its_name_at_the_end_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.json");
    let mut spec = sink(&format!("file:{}", path.display()), columns("id BIGINT"));
    (spec.format, spec.checkpoints) = (Some(format("JSON")), Some(Vec::new()));
    // One that was killed before its first checkpoint leaves nothing to the next.
    drop(open_sink(&spec, 0, 1).unwrap());
    let mut first = open_sink(&spec, 0, 1).unwrap();
    assert_eq!(names(folder.path()).len(), 1);
    first.write(&ids(&[1]), &no_slots()).unwrap();
    let prepared = first.prepare().unwrap().unwrap();
    first.write(&ids(&[2]), &no_slots()).unwrap();
    first.finish().unwrap();
    drop(first);
    // Killed before the end was noted: what came behind the checkpoint comes again.
    spec.checkpoints = Some(vec![prepared]);
    for _ in 0..2 {
        let mut again = open_sink(&spec, 0, 1).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2, "until then it stays as it was");
        again.write(&ids(&[2]), &no_slots()).unwrap();
        again.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"id\":1}\n{\"id\":2}\n");
        assert_eq!(names(folder.path()), ["one.json"]);
    }
    fs::write(&path, "{}\n").unwrap();
    let error = open_sink(&spec, 0, 1).map(drop).unwrap_err().to_string();
    assert!(error.contains("it has 3 bytes, and had 9") && error.contains("\nhint: drop the query"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn files_that_wait_for_a_checkpoint_are_not_open() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = sink(&format!("file:{}/", folder.path().display()), columns("id BIGINT"));
    (spec.format, spec.checkpoints) = (Some(format("JSON")), Some(Vec::new()));
    spec.options = options(&[("roll_bytes", "1")]);
    let mut sink = open_sink(&spec, 0, 1).unwrap();
    (0..100).for_each(|id| sink.write(&ids(&[id]), &no_slots()).unwrap());
    let inside = fs::canonicalize(folder.path()).unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    assert_eq!(
        open.filter_map(|one| fs::read_link(one.path()).ok()).filter(|path| path.starts_with(&inside)).count(),
        0
    );
    assert!(names(folder.path()).iter().all(|name| name.starts_with('.')));
    sink.prepare().unwrap().unwrap();
    sink.commit(1).unwrap();
    assert_eq!(names(folder.path()).iter().filter(|name| name.starts_with("part-")).count(), 100);
}

#[test]
fn what_is_open_at_the_last_checkpoint_gets_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = sink(&format!("file:{}/", folder.path().display()), columns("id BIGINT"));
    (spec.format, spec.checkpoints) = (Some(format("JSON")), Some(Vec::new()));
    let mut sink = open_sink(&spec, 0, 1).unwrap();
    sink.write(&ids(&[1]), &no_slots()).unwrap();
    sink.prepare().unwrap().unwrap();
    sink.commit(1).unwrap();
    assert!(names(folder.path())[0].starts_with('.'), "it is gone on with");
    sink.close().unwrap();
    sink.prepare().unwrap().unwrap();
    sink.commit(1).unwrap();
    assert!(names(folder.path())[0].starts_with("part-"));
}
