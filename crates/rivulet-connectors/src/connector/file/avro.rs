//! Rows from Avro's object container files, one file after another. The files contain their schema; columns are found
//! by name.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Polled, Reason, Refusals, Source, SourceError};

use super::source::Holding;
use crate::connector::SourceSpec;
use crate::connector::intake::refuse;
use crate::files::Files;
use crate::formats::{BlockDecoder, ContainerReader};

/// What all partitions share.
#[derive(Debug)]
pub(super) struct Wanted {
    declared: SchemaRef,
    read: Vec<usize>,
    event_time_column: Option<usize>,
    files: Files,
}

impl Wanted {
    pub(super) fn new(spec: &SourceSpec) -> Self {
        Self {
            declared: spec.schema.clone(),
            read: spec.columns.clone(),
            event_time_column: spec.event_time_column,
            files: spec.host.files.clone(),
        }
    }

    /// Opens a file. The error says what is wrong with it.
    fn open(&self, Place { path, block }: Place) -> Result<Open, String> {
        let failed = |problem: String| format!("{}: {problem}", path.display());
        let file = self.files.open(&path).map_err(|error| failed(error.to_string()))?;
        let mut reader = ContainerReader::open(BufReader::with_capacity(256 << 10, file)).map_err(failed)?;
        let decoder = reader.decoder(&self.declared, &self.read, self.event_time_column).map_err(failed)?;
        let (block, records, at) = block.unwrap_or_default();
        if records > 0 {
            reader.seek(block).map_err(failed)?;
            reader.next_block().map_err(failed)?;
        } else if block > 0 {
            reader.seek(block).map_err(failed)?;
        }
        Ok(Open { path, reader, decoder, block, records, at })
    }

    /// Checks that a file can be read as it is declared.
    pub(super) fn check(&self, path: &Path) -> Result<(), String> {
        self.open(Place { path: path.to_owned(), block: None }).map(|_| ())
    }
}

/// One partition: its files, first to last.
pub(super) struct AvroSource {
    wanted: Arc<Wanted>,
    holding: Holding,
    /// The remaining files, last to first.
    waiting: Vec<Place>,
    open: Option<Open>,
    files: u64,
}

/// Where reading begins, as a checkpoint stores it.
pub(super) type PlaceText = (PathBuf, Option<(u64, u64, usize)>);

/// Where reading begins.
struct Place {
    path: PathBuf,
    /// The byte at which the block begins, the number of its records that are left, and the byte of the first of these;
    /// `None` at the beginning.
    block: Option<(u64, u64, usize)>,
}

/// A file that is being read.
struct Open {
    path: PathBuf,
    reader: ContainerReader<BufReader<File>>,
    decoder: BlockDecoder,
    /// The byte at which the block begins.
    block: u64,
    /// Records left in the block, from this byte on.
    records: u64,
    at: usize,
}

impl AvroSource {
    pub(super) fn new(wanted: Arc<Wanted>, holding: Holding, files: Vec<PathBuf>) -> Self {
        Self::resume(wanted, holding, files.into_iter().map(|path| (path, None)).collect())
    }

    /// A source that goes on at saved positions.
    pub(super) fn resume(wanted: Arc<Wanted>, holding: Holding, places: Vec<PlaceText>) -> Self {
        let files = places.len() as u64;
        let waiting = places.into_iter().rev().map(|(path, block)| Place { path, block }).collect();
        Self { wanted, holding, waiting, open: None, files }
    }

    /// Closes the file; the rest of it waits.
    fn close(&mut self) -> Result<(), String> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        if open.records == 0 {
            open.block = open.reader.position().map_err(|problem| format!("{}: {problem}", open.path.display()))?;
        }
        self.waiting.push(Place { path: open.path, block: Some((open.block, open.records, open.at)) });
        Ok(())
    }
}

impl Source for AvroSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let failed = |problem: String| SourceError(format!("cannot read {problem}"));
        let holds = self.holding.may_hold();
        let open = match &mut self.open {
            Some(open) => open,
            None => match self.waiting.pop() {
                Some(path) => self.open.insert(self.wanted.open(path).map_err(failed)?),
                None => return Ok(Polled::End),
            },
        };
        if open.records == 0 {
            let in_file = |problem| failed(format!("{}: {problem}", open.path.display()));
            open.block = open.reader.position().map_err(in_file)?;
            let Some(records) = open.reader.next_block().map_err(in_file)? else {
                self.open = None;
                return Ok(Polled::Nothing(Duration::ZERO));
            };
            (open.records, open.at) = (records, 0);
        }
        let limit = open.records.min(rows_max.max(1) as u64);
        let (columns, at, read, fault) = open.decoder.decode(open.reader.block(), open.at, limit);
        (open.at, open.records) = (at, open.records - read);
        if let Some(fault) = fault {
            let lost = open.records - 1;
            refuse(refusals, now_us, &[], || {
                format!("{fault} (in a block of {}; {lost} records behind it are lost)", open.path.display())
            });
            refusals.count(Reason::Decode, lost);
            open.records = 0;
        }
        if !holds {
            self.close().map_err(failed)?;
        }
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(Duration::ZERO),
            _ => Polled::Rows { columns, retracts: None, arrival_us: now_us },
        })
    }

    fn position(&mut self) -> Option<String> {
        if let Some(open) = self.open.as_mut().filter(|open| open.records == 0) {
            open.block = open.reader.position().ok()?;
        }
        let open = self.open.as_ref().map(|open| (&open.path, Some((open.block, open.records, open.at))));
        let waiting = self.waiting.iter().rev().map(|place| (&place.path, place.block));
        serde_json::to_string(&open.into_iter().chain(waiting).collect::<Vec<_>>()).ok()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        let left = self.waiting.len() as u64 + u64::from(self.open.is_some());
        Some((self.files - left, self.files))
    }
}
