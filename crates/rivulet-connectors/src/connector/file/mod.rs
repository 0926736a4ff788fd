//! `file:` rows in files, read one after another or many at a time, and files that results are written to.
//!
//! - [`paths`]: the files that an address means; [`chunks`]: their pieces, and which partition reads which;
//! - [`source`]: rows from the lines of a piece, and how many sources hold files open; [`parquet`]: rows from row
//!   groups, [`avro`]: rows from containers;
//! - [`follow`]: files that grow; [`infer`]: format and columns of a file, by a sample;
//! - [`part`]: one file under construction; [`content`]: how rows become content; [`partition`]: folders by values;
//!   [`sink`]: all of them together.

mod avro;
mod chunks;
mod content;
mod error;
mod follow;
mod infer;
mod parquet;
mod part;
mod partition;
mod paths;
mod sink;
mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow::datatypes::{Schema, SchemaRef};
use rivulet_dataflow::{Sink, SinkError, Source};

use super::description::{Check, Instance, Opening};
use super::lines::{LINE_BYTES_MAX, MULTILINE, Reading};
use super::outgoing::only_appends;
use super::{
    ConnectorDescription, ConnectorError, DirectionDescription, FormatText, Guarantee, OptionDescription, OptionKind,
    Options, SinkSpec, SourceSpec,
};
use crate::files::{Files, is_refusal};
use crate::formats::{Format, RowFormat};
use avro::{AvroSource, PlaceText};
use chunks::{Chunk, ChunkText, Piece};
pub(super) use content::Content;
use error::{NAME, cannot_open, unreadable};
pub use infer::{InferredFile, infer_file};
use parquet::{ParquetSource, Wanted};
use part::{Owner, ParquetCompression};
use partition::Partitioning;
use paths::{Found, locate_all};
use sink::{AppendSink, Commits, FileSink, FolderSink};
use source::{Holding, LineSource};

/// The description of the connector.
pub(super) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Files on this machine: lines of JSON, CSV and other text, Apache Parquet, Apache Avro.",
    address: "a path. To read: a file, a folder (all files in it and below it, by name), or a pattern with `*` and `?`; names \
              that begin with a dot or an underscore are passed over. To write: a file, or a folder, whose name ends in `/`",
    source: Some(DirectionDescription {
        help: "Files of lines are cut into pieces of 4 MiB and Parquet files into row groups; these are dealt to parallel readers. Where rows have an \
               event time, each file is a partition with a watermark of its own, and that which is furthest behind is read first; without one, \
               files are read in the order of their names. Files of FORMAT DEBEZIUM are not cut, and read one after \
               the other. At most 64 files are kept open; of more, each is opened anew for each read. Columns that the query \
               does not \
               use are neither decoded nor checked. Columns of \
               Parquet and Avro files, and of CSV files with a header, are found by name; an Avro file brings its schema. Values of Parquet files that \
               do not fit the declared type are refused: a text that is no number, a number with a fraction as BIGINT.",
        formats: &["JSON", "DEBEZIUM", "CSV", "PARQUET", "AVRO", "TEXT", "RAW", "SENML", "SENML_PIVOT"],
        guarantees: &[("", Guarantee::ExactlyOnce)],
        options: &[
            OptionDescription {
                name: "follow",
                kind: OptionKind::Boolean,
                default: Some("false"),
                help: "Whether to go on when the end is reached, and read what is added, and files that are new. Files that are \
                       renamed away or cut short are noticed; one whose new name is meant as well is not read again. Rows of a file that appears later are late where time is beyond them.",
            },
            OptionDescription {
                name: "start",
                kind: OptionKind::Choice(&["beginning", "end"]),
                default: Some("beginning"),
                help: "Where to begin in files that are followed and that are there at the start.",
            },
            MULTILINE,
            LINE_BYTES_MAX,
        ],
    }),
    sink: Some(DirectionDescription {
        help: "Files are written under a hidden name and get their own when they are whole. A file alone is committed when the query \
               ends. Files in a folder are committed when they are large enough, when the commit interval is over, and at the end; \
               their names never repeat. Who reads a folder passes over names that begin with a dot: those are files under construction, which `.kept` ones are until a \
               checkpoint has them. What a killed server has left of them is finished or removed when its query starts again; of a query that was dropped they may be \
               deleted. A result that changes has a first column `op`: `+` for a row that came, `-` for one that \
               was taken back; FORMAT DEBEZIUM has its own `op`, and Parquet files cannot take it.",
        formats: &["JSON", "DEBEZIUM", "CSV", "PARQUET", "AVRO", "TEXT", "RAW", "SENML", "SENML_PIVOT"],
        guarantees: &[("", Guarantee::ExactlyOnce), ("`append => true`", Guarantee::AtLeastOnce)],
        options: &[
            OptionDescription {
                name: "partition_by",
                kind: OptionKind::Names,
                default: None,
                help: "Columns that become folders, as in `dt=2026-11-21/hm=08-30`, and are not in the files. The address is then a folder.",
            },
            OptionDescription {
                name: "commit_interval",
                kind: OptionKind::Duration,
                default: Some("1 minute"),
                help: "After how long the files of a folder are committed.",
            },
            OptionDescription {
                name: "roll_bytes",
                kind: OptionKind::Bytes,
                default: Some("128 MiB"),
                help: "How large a file of a folder becomes before it is committed.",
            },
            OptionDescription {
                name: "append",
                kind: OptionKind::Boolean,
                default: Some("false"),
                help: "Whether lines are added to the end of the file at once, under its own name. If somebody renames or removes the file, later lines go to a new one.",
            },
            OptionDescription {
                name: "compression",
                kind: OptionKind::Choice(&["none", "snappy", "zstd"]),
                default: Some("snappy"),
                help: "How Parquet files are compressed.",
            },
        ],
    }),
    example: "CREATE SOURCE bids (auction BIGINT, price BIGINT, at TIMESTAMP EVENT TIME) FROM 'file:data/bids-*.json';\n\
              CREATE SINK totals TO 'file:results/' FORMAT PARQUET;",
    open: Opening {
        source: Some(open_source),
        sink: Some(open_sink),
        columns: Some(columns),
        check: Check { source: Some(check_source), sink: Some(check_sink) },
        replaced: Some(replaced),
        address_is_path: true,
        ..Opening::NONE
    },
};

/// Checks that the format of the files is known.
fn check_sink(spec: &SinkSpec, options: &Options) -> Result<(), ConnectorError> {
    if spec.address.is_empty() {
        return Err(no_name());
    }
    check_allowed(&spec.address, &spec.host.files)?;
    let is_folder = is_folder(&spec.address, options, &spec.host.files);
    let example = if is_folder { "" } else { &spec.address };
    format_of(&spec.address, spec.format.as_ref(), example, &spec.host.files).map(drop)
}

/// Checks that the files of a source may be read, as far as its address tells.
fn check_source(spec: &SourceSpec, _options: &Options) -> Result<(), ConnectorError> {
    check_allowed(paths::without_patterns(&spec.address), &spec.host.files)
}

/// Refuses an address that may not be used. Any other problem with it may be solved before it is opened.
fn check_allowed(address: &str, files: &Files) -> Result<(), ConnectorError> {
    match files.locate(address) {
        Err(error) if is_refusal(&error) => Err(unreadable(address, &error)),
        _ => Ok(()),
    }
}

/// The path of an address.
fn located(address: &str, files: &Files) -> Result<PathBuf, ConnectorError> {
    files.locate(address).map_err(|error| unreadable(address, &error))
}

fn is_folder(address: &str, options: &Options, files: &Files) -> bool {
    let is_there = || files.locate(address).is_ok_and(|path| path.is_dir());
    !options.names("partition_by").is_empty() || address.ends_with('/') || is_there()
}

/// The file that is replaced when a query ends: one that is neither a folder nor appended to.
fn replaced(spec: &SinkSpec, options: &Options) -> Option<PathBuf> {
    let (address, files) = (&spec.address, &spec.host.files);
    let is_replaced = !is_folder(address, options, files) && !options.boolean("append");
    let path = is_replaced.then(|| files.locate(address).ok()).flatten()?;
    Some(std::path::absolute(&path).unwrap_or(path))
}

/// The columns of a Parquet file. Other files have none, whether they exist or not.
fn columns(address: &str, files: &Files) -> Result<Option<Schema>, ConnectorError> {
    let is_parquet = |path: &str| ending_of(path).as_deref() == Some("parquet");
    let paths = match paths::expand(address, files) {
        Ok(found) => found.files,
        Err(error) if is_parquet(address) => return Err(unreadable(address, &error)),
        Err(_) => return Ok(None),
    };
    let Some(first) = paths.first().filter(|path| is_parquet(&path.to_string_lossy())) else { return Ok(None) };
    let columns = parquet::declared_columns(first, files);
    columns.map(Some).map_err(|problem| cannot_open(address, problem, "is it a whole Parquet file?"))
}

fn open_source(
    spec: &SourceSpec,
    options: &Options,
    partitions_wanted: usize,
) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let files = &spec.host.files;
    let unreadable = |error: std::io::Error| unreadable(&spec.address, &error);
    let follow = options.boolean("follow");
    let paths = match paths::expand(&spec.address, files) {
        // Followed files may be created later.
        Err(error) if follow && error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => {
            let Found { files, passed_over } = other.map_err(unreadable)?;
            if let Some(why) = passed_over {
                tracing::warn!(query = spec.host.query, "not all of 'file:{}' is read: {why}", spec.address);
            }
            files
        }
    };
    if paths.is_empty() && !follow && spec.resume.is_none() {
        let hint = "a folder needs files in it, and a pattern files that match";
        return Err(cannot_open(&spec.address, "there is no such file".into(), hint));
    }
    if let Some(column) = paths.first().and_then(|path| folder_column(spec, path)) {
        let problem = format!("the column '{column}' is in the names of folders ('{column}=...'), which are not read");
        let hint = "leave it out of the query; or write it into the files, without partition_by";
        return Err(cannot_open(&spec.address, problem, hint));
    }
    let example = paths.first().map_or_else(|| spec.address.clone(), |path| path.to_string_lossy().into_owned());
    let format = format_of(&spec.address, spec.format.as_ref(), &example, files)?;
    if !format.is_text() {
        for option in ["follow", MULTILINE.name] {
            if options.boolean(option) {
                return Err(options.wrong(option, "is of files of lines alone", "leave it out"));
            }
        }
    }
    match format {
        RowFormat::Parquet => return open_parquet(spec, paths, partitions_wanted),
        RowFormat::Avro(_) => return open_avro(spec, paths, partitions_wanted),
        _ => {}
    }
    let from_end = options.text("start") == Some("end");
    if from_end && !follow {
        return Err(options.wrong("start", "is of files that are followed", "add follow => true, or leave it out"));
    }
    let reading = Arc::new(Reading::new(format, spec, options)?);
    if follow && let Some(resumed) = spec.resume.clone() {
        return follow::resume(&reading, spec, paths, resumed);
    }
    if follow {
        return Ok(follow::sources(&reading, spec.address.clone(), paths, from_end, partitions_wanted));
    }
    if let Some(mut resumed) = spec.resumed::<Vec<ChunkText>>(NAME)? {
        locate_all(spec, resumed.iter_mut().flatten().map(|chunk| &mut chunk.0))?;
        return Ok(resumed_sources(resumed, |holding, chunks| {
            LineSource::new(reading.clone(), holding, chunks.into_iter().map(Chunk::of_text).collect())
        }));
    }
    // A change takes back what an earlier one brought, in this file or in one before it.
    let has_order = reading.format.has_changes();
    let chunk_bytes = (!reading.rule.has_quotes && !has_order).then_some(chunks::CHUNK_BYTES);
    let chunks = chunks::cut_lines(paths, chunk_bytes).map_err(unreadable)?;
    let source = |holding, chunks| LineSource::new(reading.clone(), holding, chunks);
    Ok(match has_order {
        true => vec![Box::new(source(Holding::new(&Arc::default()), chunks))],
        false => sources(spec, chunks, partitions_wanted, source),
    })
}

/// The sources of a query that goes on, each at its saved position.
fn resumed_sources<T, S: Source + 'static>(
    resumed: Vec<T>,
    mut source: impl FnMut(Holding, T) -> S,
) -> Vec<Box<dyn Source>> {
    let holders = Arc::<AtomicUsize>::default();
    resumed.into_iter().map(|one| Box::new(source(Holding::new(&holders), one)) as Box<dyn Source>).collect()
}

/// The column that is read and that a folder of the file has in its name, as `partition_by` writes them: it would be
/// null in all rows.
fn folder_column<'s>(spec: &'s SourceSpec, path: &Path) -> Option<&'s str> {
    let folders = path.parent()?.components();
    let mut names = folders.filter_map(|folder| folder.as_os_str().to_str()?.split_once('=').map(|(name, _)| name));
    names.find_map(|name| {
        let mut read = spec.columns.iter().map(|&column| spec.schema.field(column).name().as_str());
        read.find(|column| column.eq_ignore_ascii_case(name))
    })
}

/// Makes a source for each reader of the files; if rows have a time, for each file.
fn sources<C: Piece, S: Source + 'static>(
    spec: &SourceSpec,
    pieces: Vec<C>,
    readers: usize,
    mut source: impl FnMut(Holding, Vec<C>) -> S,
) -> Vec<Box<dyn Source>> {
    let has_time =
        spec.has_computed_time || spec.event_time_column.is_some_and(|column| spec.columns.contains(&column));
    let dealt = match has_time {
        true if !pieces.is_empty() => chunks::deal_by_file(pieces, readers),
        _ => chunks::deal(pieces, readers),
    };
    let holders = Arc::<AtomicUsize>::default();
    dealt.into_iter().map(|pieces| Box::new(source(Holding::new(&holders), pieces)) as Box<dyn Source>).collect()
}

fn open_parquet(
    spec: &SourceSpec,
    paths: Vec<PathBuf>,
    partitions_wanted: usize,
) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let schema = Arc::new(spec.schema.project(&spec.columns).expect("columns that are read are declared"));
    let is_event_time = |place: usize| spec.event_time_column == Some(spec.columns[place]);
    let required =
        (0..schema.fields().len()).filter(|&place| is_event_time(place) || !schema.field(place).is_nullable());
    let wanted = Arc::new(Wanted {
        required: required.collect(),
        schema,
        carried: spec.read_schema(),
        files: spec.host.files.clone(),
    });
    let groups_of = |paths| {
        parquet::row_groups(paths, &wanted).map_err(|problem| {
            cannot_open(&spec.address, problem, "columns are found by their names; declare those that are in the file")
        })
    };
    if let Some(mut resumed) = spec.resumed::<(usize, Vec<(PathBuf, usize)>)>(NAME)? {
        locate_all(spec, resumed.iter_mut().flat_map(|(_, left)| left).map(|(path, _)| path))?;
        let mut paths: Vec<PathBuf> = resumed.iter().flat_map(|(_, left)| left).map(|(path, _)| path.clone()).collect();
        paths.sort();
        paths.dedup();
        let groups = groups_of(paths)?;
        let group = |(path, index): (PathBuf, usize)| {
            let found = groups.iter().find(|group| group.path() == path && group.index() == index).cloned();
            found.ok_or_else(|| {
                let problem = format!("{} is not the file any more that it was", path.display());
                cannot_open(&spec.address, problem, "drop the query and create it again to begin anew")
            })
        };
        let resumed = resumed.into_iter().map(|(rows_taken, left)| {
            Ok((rows_taken, left.into_iter().map(group).collect::<Result<Vec<_>, ConnectorError>>()?))
        });
        let resumed = resumed.collect::<Result<Vec<_>, ConnectorError>>()?;
        return Ok(resumed_sources(resumed, |holding, (rows_taken, groups)| {
            ParquetSource::new(wanted.clone(), holding, groups).behind(rows_taken)
        }));
    }
    let groups = groups_of(paths)?;
    Ok(sources(spec, groups, partitions_wanted, |holding, groups| ParquetSource::new(wanted.clone(), holding, groups)))
}

fn open_avro(
    spec: &SourceSpec,
    paths: Vec<PathBuf>,
    partitions_wanted: usize,
) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let wanted = Arc::new(avro::Wanted::new(spec));
    if let Some(mut resumed) = spec.resumed::<Vec<PlaceText>>(NAME)? {
        locate_all(spec, resumed.iter_mut().flatten().map(|place| &mut place.0))?;
        return Ok(resumed_sources(resumed, |holding, places| AvroSource::resume(wanted.clone(), holding, places)));
    }
    // Later files are checked when their turn comes; there may be many.
    if let Some(first) = paths.first() {
        wanted.check(first).map_err(|problem| {
            cannot_open(&spec.address, problem, "columns are found by their names; declare those that are in the file")
        })?;
    }
    Ok(sources(spec, paths, partitions_wanted, |holding, files| AvroSource::new(wanted.clone(), holding, files)))
}

fn open_sink(spec: &SinkSpec, options: &Options, instance: Instance) -> Result<Box<dyn Sink>, ConnectorError> {
    let files = &spec.host.files;
    let path = located(&spec.address, files)?;
    let partitioning = Partitioning::new(options, &spec.schema)?;
    let is_folder = is_folder(&spec.address, options, files);
    let example = if is_folder { "" } else { &spec.address };
    let format = format_of(&spec.address, spec.format.as_ref(), example, files)?;
    if matches!(format, RowFormat::Parquet) {
        only_appends(NAME, spec, "write JSON or CSV, where each row says in 'op' whether it came or was taken back")?;
    }
    if spec.address.is_empty() {
        return Err(no_name());
    }
    let compression = match options.text("compression") {
        Some("none") => ParquetCompression::None,
        Some("zstd") => ParquetCompression::Zstd,
        _ => ParquetCompression::Snappy,
    };
    let content = |schema: &SchemaRef| Content::new(&format, schema, spec.changes, compression);
    let append = options.boolean("append");
    if append && (is_folder || !format.is_text()) {
        return Err(options.wrong("append", "is of a single file of lines", "leave it out"));
    }
    let failed = |error: SinkError| match error.0.split_once("\nhint: ") {
        Some((problem, hint)) => cannot_open(&spec.address, problem.into(), hint),
        None => {
            cannot_open(&spec.address, error.0, "the folder has to be writable, or the one in which it is to be made")
        }
    };
    let goes_on = (Owner::new(&spec.host.server, &spec.host.query), spec.checkpoints.as_deref());
    let allowed = (files, &spec.host.health);
    if !is_folder {
        let content = content(&spec.schema)?;
        return Ok(match append {
            true => Box::new(AppendSink::open(path, content, allowed).map_err(failed)?),
            false => {
                let opened = FileSink::open(&path, content, instance.of, goes_on, allowed);
                Box::new(opened.map_err(failed)?)
            }
        });
    }
    let content = match &partitioning {
        Some(partitioning) => content(&partitioning.schema(&spec.schema))?,
        None => content(&spec.schema)?,
    };
    let commits = Commits {
        interval: options.duration("commit_interval").unwrap_or_default(),
        bytes: options.count("roll_bytes").unwrap_or(usize::MAX) as u64,
    };
    if instance.number == 0 && goes_on.1.is_some_and(|prepared| !prepared.is_empty()) && !path.is_dir() {
        tracing::warn!(
            query = spec.host.query,
            "the folder {} is not there, and the query goes on behind what it has written to it: that is where it ran before, or lost; to have all of it here, drop \
             the query and create it again",
            path.display()
        );
    }
    files.make_folder(&path).map_err(|error| failed(part::failed(&path, &error)))?;
    let sink =
        FolderSink::new(path, content, partitioning, commits, instance.number, ending(&format), goes_on, allowed);
    Ok(Box::new(sink.map_err(failed)?))
}

fn no_name() -> ConnectorError {
    let hint = "write for example 'file:result.json', or 'file:results/' for a folder";
    ConnectorError::address(NAME, "", "names no file", hint)
}

/// The text behind the last dot of a name, in lower case.
fn ending_of(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase())
}

/// The file name extension of this format.
fn ending(format: &RowFormat) -> &'static str {
    match format {
        RowFormat::Plain { format: Format::Csv { .. }, .. } => "csv",
        RowFormat::Plain { format: Format::Json | Format::NestedJson | Format::SenMl | Format::SenMlPivot, .. }
        | RowFormat::Debezium { .. } => "json",
        RowFormat::Parquet => "parquet",
        RowFormat::Avro(_) => "avro",
        _ => "txt",
    }
}

/// The format that was given, or the one of the file name's extension.
fn format_of(
    address: &str,
    given: Option<&FormatText>,
    path: &str,
    files: &Files,
) -> Result<RowFormat, ConnectorError> {
    if let Some((name, options)) = given {
        let options = options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        return Ok(RowFormat::parse(name, options, files)?);
    }
    let name = match ending_of(path).as_deref() {
        Some("json" | "jsonl" | "ndjson") => "JSON",
        Some("csv") => "CSV",
        Some("parquet") => "PARQUET",
        Some("avro") => "AVRO",
        Some("txt" | "log") => "RAW",
        _ => {
            let problem = "does not tell by its ending how it is written";
            return Err(ConnectorError::address(NAME, address, problem, "say it: FORMAT JSON, CSV, PARQUET or AVRO"));
        }
    };
    Ok(RowFormat::parse(name, [], files)?)
}
