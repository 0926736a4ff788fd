//! The files of a log: each begins with a header, and has frames behind it.

use std::io;
use std::path::{Path, PathBuf};

use super::frame::{Frames, POSITION_END, Part};
use crate::{Disk, DiskFile, StorageError};

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
pub(super) fn list(disk: &dyn Disk, folder: &Path) -> Result<Vec<Segment>, StorageError> {
    let failed = |error| StorageError::from_io(format!("cannot list the log in {}", folder.display()), "", error);
    let mut segments = Vec::new();
    for (path, bytes) in disk.list(folder).map_err(failed)? {
        let is_segment = path.extension().is_some_and(|extension| extension == EXTENSION);
        let first = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if let Some(first) = first.filter(|&first| is_segment && first < POSITION_END) {
            segments.push(Segment { path, first, bytes });
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

/// The frames of a segment, as bytes; nothing if it was never begun. Frames have checks of their own, so a damaged header costs none of them.
///
/// # Errors
/// It is of a later version, or no segment.
pub(super) fn frames<'b>(path: &Path, bytes: &'b [u8]) -> Result<&'b [u8], StorageError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>().filter(|_| is_begun(bytes)) else {
        return Ok(&[]);
    };
    let what = || path.display().to_string();
    if header[..8] != MAGIC {
        if Frames::new(bytes).any(|part| matches!(part, Part::Frame(_))) {
            return Ok(bytes);
        }
        return Err(StorageError::damaged(&what(), "it does not begin like a segment of a log"));
    }
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if version != VERSION {
        return Err(StorageError::Version { what: what(), found: version, known: VERSION });
    }
    Ok(rest)
}

/// Whether the header of a segment was ever on disk, as far as its bytes tell: it is synced before the first frame, so a file that has neither
/// was being begun.
pub(super) fn is_begun(bytes: &[u8]) -> bool {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return false };
    let is_written = header[..8] == MAGIC && header[8..12] != [0; 4];
    is_written || Frames::new(rest).any(|part| matches!(part, Part::Frame(_)))
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
    file: Box<dyn DiskFile>,
    pub(super) path: PathBuf,
    pub(super) first: u64,
    /// Where the last whole frame ends.
    pub(super) bytes: u64,
}

impl Open {
    /// Begins a segment for positions from `first` on. One of that name has no record that counts, and is written anew.
    pub(super) fn create(disk: &dyn Disk, folder: &Path, first: u64) -> io::Result<Self> {
        let path = folder.join(format!("{first:020}.{EXTENSION}"));
        let file = disk.create(&path)?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..].copy_from_slice(&first.to_le_bytes());
        file.write_at(&header, 0)?;
        // Else frames could be there without it, and the name be lost although what is in the file is not.
        file.sync()?;
        disk.sync_folder(folder)?;
        Ok(Self { file, path, first, bytes: HEADER_BYTES as u64 })
    }

    /// Goes on with a segment that ends at `end`; what stands behind that is cut off, and what stands before it is made final: a process that was
    /// killed may have written it and not synced, and whoever reads it takes it for durable.
    pub(super) fn resume(disk: &dyn Disk, segment: &Segment, end: u64) -> io::Result<Self> {
        let file = disk.open(&segment.path)?;
        if end < segment.bytes {
            file.set_len(end)?;
        }
        file.sync()?;
        segment.path.parent().map_or(Ok(()), |folder| disk.sync_folder(folder))?;
        Ok(Self { file, path: segment.path.clone(), first: segment.first, bytes: end })
    }

    /// Writes a frame behind the last one, not yet for good.
    pub(super) fn write(&self, frame: &[u8]) -> io::Result<()> {
        self.file.write_at(frame, self.bytes)
    }

    /// Makes what was written final: `frame_bytes` more.
    pub(super) fn sync(&mut self, frame_bytes: usize) -> io::Result<()> {
        self.file.sync()?;
        self.bytes += frame_bytes as u64;
        Ok(())
    }

    /// Cuts off what was not written in full.
    pub(super) fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.bytes)
    }
}
