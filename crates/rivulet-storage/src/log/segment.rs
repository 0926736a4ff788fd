//! The files of a log: each begins with a header, and has frames behind it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::frame::{Frames, Part};
use crate::StorageError;

/// How a segment begins.
const MAGIC: [u8; 8] = *b"RivLog\0\0";

/// The format that is written.
const VERSION: u32 = 1;

/// Magic, version, nothing, first position.
pub(super) const HEADER_BYTES: usize = 24;

const EXTENSION: &str = "log";

/// A segment on disk.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    /// No position in it is lower.
    pub(super) first: u64,
    pub(super) bytes: u64,
}

/// The segments of a folder, oldest first. Other files are passed over.
pub(super) fn list(folder: &Path) -> Result<Vec<Segment>, StorageError> {
    let failed = |error| StorageError::from_io(format!("cannot list the log in {}", folder.display()), "", error);
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let is_segment = path.extension().is_some_and(|extension| extension == EXTENSION);
        let first = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if let Some(first) = first.filter(|_| is_segment) {
            segments.push(Segment { bytes: entry.metadata().map_err(failed)?.len(), path, first });
        }
    }
    segments.sort_unstable_by_key(|segment| segment.first);
    Ok(segments)
}

/// What of a segment can be used.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The position behind its last record; `None` without any.
    pub(super) next: Option<u64>,
    /// Where its last frame ends.
    pub(super) end: usize,
    /// Records in it.
    pub(super) records: u64,
    /// What is damaged in the middle of it, in bytes.
    pub(super) damaged_bytes: usize,
}

/// The frames of a segment, as bytes; nothing if it was never begun.
///
/// # Errors
/// It is of a later version, or no segment.
pub(super) fn frames<'b>(path: &Path, bytes: &'b [u8]) -> Result<&'b [u8], StorageError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(&[]) };
    let what = || path.display().to_string();
    if header[..8] != MAGIC {
        return Err(StorageError::damaged(&what(), "it does not begin like a segment of a log"));
    }
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if version != VERSION {
        return Err(StorageError::Version { what: what(), found: version, known: VERSION });
    }
    Ok(rest)
}

/// Looks through a segment.
pub(super) fn look_through(path: &Path, bytes: &[u8]) -> Result<Contents, StorageError> {
    let all = frames(path, bytes)?;
    let begin = bytes.len() - all.len();
    let mut contents = Contents { end: begin.min(HEADER_BYTES), ..Contents::default() };
    let mut parts = Frames::new(all);
    while let Some(part) = parts.next() {
        match part {
            Part::Frame(frame) => {
                contents.records += frame.next() - frame.first;
                contents.next = contents.next.max(Some(frame.next()));
                contents.end = begin + parts.at();
            }
            Part::Garbage { bytes, is_last: false } => contents.damaged_bytes += bytes,
            Part::Garbage { .. } => {}
        }
    }
    Ok(contents)
}

/// The segment that is written to.
pub(super) struct Open {
    file: File,
    pub(super) path: PathBuf,
    pub(super) first: u64,
    /// Where the last whole frame ends.
    pub(super) bytes: u64,
}

impl Open {
    /// Begins a segment for positions from `first` on. One of that name has no record that counts, and is written anew.
    pub(super) fn create(folder: &Path, first: u64) -> io::Result<Self> {
        let path = folder.join(format!("{first:020}.{EXTENSION}"));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..].copy_from_slice(&first.to_le_bytes());
        file.write_all_at(&header, 0)?;
        // Else the name could be lost although what is in the file is not.
        File::open(folder)?.sync_all()?;
        Ok(Self { file, path, first, bytes: HEADER_BYTES as u64 })
    }

    /// Goes on with a segment that ends at `end`; what stands behind that is cut off.
    pub(super) fn resume(segment: &Segment, end: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(&segment.path)?;
        if end < segment.bytes {
            file.set_len(end)?;
            file.sync_all()?;
        }
        Ok(Self { file, path: segment.path.clone(), first: segment.first, bytes: end })
    }

    /// Writes a frame behind the last one, not yet for good.
    pub(super) fn write(&self, frame: &[u8]) -> io::Result<()> {
        self.file.write_all_at(frame, self.bytes)
    }

    /// Makes what was written final: `frame_bytes` more.
    pub(super) fn sync(&mut self, frame_bytes: usize) -> io::Result<()> {
        self.file.sync_data()?;
        self.bytes += frame_bytes as u64;
        Ok(())
    }

    /// Cuts off what was not written in full.
    pub(super) fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.bytes)
    }
}
