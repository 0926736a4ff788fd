//! The files of a log: each begins with a header, and has frames behind it.
//!
//! ```text
//! header      magic 8 | version 4 | check of the rest 4 | first position 8 | salt 8
//! version 1   magic 8 | version 4 | nothing 4 | first position 8
//! ```
//!
//! Beside them stands a note of the newest one, `newest`: its first position 8 | check 8. Where files of the end are
//! missing, nothing else says so.
//!
//! The checks of a segment's frames begin with its salt, a number that nobody else knows; in version 1 it is 0. It
//! stands in the name of the file too, so a damaged header costs no frame.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::frame::{Frames, POSITION_END, Part};
use crate::{Disk, DiskFile, StorageError};

/// How a segment begins.
const MAGIC: [u8; 8] = *b"RivLog\0\0";

/// The format that is written.
const VERSION: u32 = 2;

/// What stands in front of the frames.
pub(super) const HEADER_BYTES: usize = 32;

/// The same in version 1, which has no salt.
const HEADER_BYTES_1: usize = 24;

const EXTENSION: &str = "log";

/// The note of the newest segment.
const NEWEST: &str = "newest";

/// What its check begins with.
const NEWEST_SEED: u64 = u64::from_le_bytes(*b"RivNewst");

/// Notes that there is a segment with this first position. What cannot be noted is not missed later.
pub(super) fn note_newest(disk: &dyn Disk, folder: &Path, first: u64) {
    let first = first.to_le_bytes();
    let check = xxh3_64_with_seed(&first, NEWEST_SEED).to_le_bytes();
    let note = disk.create(&folder.join(NEWEST));
    let noted = note.and_then(|note| note.write_at(&[first, check].concat(), 0).and_then(|()| note.sync()));
    if let Err(error) = noted {
        tracing::debug!("the newest segment of the log is not noted: {error}");
    }
}

/// The first position of the newest segment that there was, if the note of it can be read.
fn newest(disk: &dyn Disk, folder: &Path) -> Option<u64> {
    let note = disk.read(&folder.join(NEWEST)).ok()?;
    let (first, check) = note.split_first_chunk::<8>()?;
    (check == xxh3_64_with_seed(first, NEWEST_SEED).to_le_bytes()).then(|| u64::from_le_bytes(*first))
}

/// The first position of the newest segment, and what is to be said of it, if it is not among those that are there.
pub(super) fn missing_newest(disk: &dyn Disk, folder: &Path, segments: &[Segment]) -> Option<(u64, String)> {
    let first = newest(disk, folder)?;
    let is_there = segments.last().is_some_and(|last| last.first >= first);
    (!is_there).then(|| {
        let folder = folder.display();
        (first, format!("{folder}: the newest file is missing, which had the events from position {first} on"))
    })
}

/// A segment on disk.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    /// No position in it is lower.
    pub(super) first: u64,
    /// The salt in its name, which a segment of version 1 does not have.
    pub(super) salt: Option<u64>,
    pub(super) bytes: u64,
}

/// The segments of a folder, oldest first. Other files are passed over.
pub(super) fn list(disk: &dyn Disk, folder: &Path) -> Result<Vec<Segment>, StorageError> {
    let failed = |error| StorageError::from_io(format!("cannot list the log in {}", folder.display()), "", error);
    let mut segments = Vec::new();
    for (path, bytes) in disk.list(folder).map_err(failed)? {
        let is_segment = path.extension().is_some_and(|extension| extension == EXTENSION);
        let named = path.file_stem().and_then(|stem| stem.to_str()).and_then(read_name);
        if let Some((first, salt)) = named.filter(|&(first, _)| is_segment && first < POSITION_END) {
            segments.push(Segment { path, first, salt, bytes });
        }
    }
    segments.sort_unstable_by_key(|segment| (segment.first, segment.salt));
    Ok(segments)
}

/// First position and salt.
fn read_name(stem: &str) -> Option<(u64, Option<u64>)> {
    match stem.split_once('-') {
        Some((first, salt)) => Some((first.parse().ok()?, Some(u64::from_str_radix(salt, 16).ok()?))),
        None => Some((stem.parse().ok()?, None)),
    }
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
    /// What the checks of its frames begin with.
    pub(super) salt: u64,
}

/// The frames of a segment, and its salt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) salt: u64,
}

impl<'b> Body<'b> {
    pub(super) fn frames(self) -> Frames<'b> {
        Frames::new(self.bytes, self.salt)
    }

    fn has_frames(self) -> bool {
        self.frames().any(|part| matches!(part, Part::Frame(_)))
    }
}

/// The check of a header.
fn header_check(version: u32, rest: &[u8]) -> u32 {
    xxh3_64_with_seed(rest, u64::from(version)) as u32
}

/// Whether a header was written in this version, which may be a later one: what stands in it up to the salt stays where
/// it is.
fn has_check_of(version: u32, bytes: &[u8]) -> bool {
    bytes.get(16..HEADER_BYTES).is_some_and(|rest| header_check(version, rest).to_le_bytes() == bytes[12..16])
}

/// What stands behind a header that is as it was written in this version.
fn whole(bytes: &[u8]) -> Option<Body<'_>> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let salt = u64::from_le_bytes([24, 25, 26, 27, 28, 29, 30, 31].map(|at| header[at]));
    // With its check it is whole, whatever stands in front of that.
    let is_whole = header_check(VERSION, &header[16..]).to_le_bytes() == header[12..16];
    is_whole.then_some(Body { bytes: rest, salt })
}

/// The frames of a segment; none if it was never begun. Frames have checks of their own, so a damaged header costs none
/// of them.
///
/// # Errors
/// It is of a later version, or no segment.
pub(super) fn body<'b>(segment: &Segment, bytes: &'b [u8]) -> Result<Body<'b>, StorageError> {
    if let Some(body) = whole(bytes) {
        return Ok(body);
    }
    if !is_begun(segment, bytes) {
        return Ok(Body { bytes: &[], salt: 0 });
    }
    let what = || segment.path.display().to_string();
    let (is_ours, version) = match bytes.first_chunk::<12>() {
        Some(begin) => (begin[..8] == MAGIC, u32::from_le_bytes([begin[8], begin[9], begin[10], begin[11]])),
        None => (false, 0),
    };
    match (is_ours, segment.salt) {
        (true, None) if version == 1 => Ok(Body { bytes: bytes.get(HEADER_BYTES_1..).unwrap_or_default(), salt: 0 }),
        // Its header is damaged, and nothing is missing if it has frames.
        (_, salt) if damaged(bytes, salt).has_frames() => Ok(damaged(bytes, salt)),
        (true, salt) if version > VERSION && (salt.is_none() || has_check_of(version, bytes)) => {
            Err(StorageError::Version { what: what(), found: version, known: VERSION })
        }
        (true, Some(_)) => Ok(damaged(bytes, segment.salt)),
        _ => Err(StorageError::damaged(&what(), "it does not begin like a segment of a log")),
    }
}

/// A segment whose header says nothing.
fn damaged(bytes: &[u8], salt: Option<u64>) -> Body<'_> {
    Body { bytes, salt: salt.unwrap_or(0) }
}

/// Whether the header of a segment was ever on disk, as far as its bytes tell: it is synced before the first frame, so
/// a file that has neither was being begun.
pub(super) fn is_begun(segment: &Segment, bytes: &[u8]) -> bool {
    let header_bytes = if segment.salt.is_some() { HEADER_BYTES } else { HEADER_BYTES_1 };
    if bytes.len() < header_bytes {
        return false;
    }
    let is_written = bytes[..8] == MAGIC && bytes[8..12] != [0; 4];
    is_written || whole(bytes).is_some() || damaged(bytes, segment.salt).has_frames()
}

/// Looks through a segment.
pub(super) fn look_through(segment: &Segment, bytes: &[u8]) -> Result<Contents, StorageError> {
    let body = body(segment, bytes)?;
    let begin = bytes.len() - body.bytes.len();
    let mut contents = Contents { end: begin.min(HEADER_BYTES), salt: body.salt, ..Contents::default() };
    let mut parts = body.frames();
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
    pub(super) salt: u64,
    /// Where the last whole frame ends.
    pub(super) bytes: u64,
}

impl Open {
    /// Begins a segment for positions from `first` on. One of that name has no record that counts, and is written anew.
    /// Its name is not final before the folder is synced.
    pub(super) fn create(disk: &dyn Disk, folder: &Path, first: u64, salt: u64) -> io::Result<Self> {
        let path = folder.join(format!("{first:020}-{salt:016x}.{EXTENSION}"));
        let file = disk.create(&path)?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&first.to_le_bytes());
        header[24..].copy_from_slice(&salt.to_le_bytes());
        let check = header_check(VERSION, &header[16..]);
        header[12..16].copy_from_slice(&check.to_le_bytes());
        file.write_at(&header, 0)?;
        // Else frames could be there without it, and the name be lost although what is in the file is not.
        file.sync()?;
        Ok(Self { file, path, first, salt, bytes: HEADER_BYTES as u64 })
    }

    /// Goes on with a segment that ends at `end`; what stands behind that is cut off, and what stands before it is made
    /// final: a process that was killed may have written it and not synced, and whoever reads it takes it for durable.
    pub(super) fn resume(disk: &dyn Disk, segment: &Segment, salt: u64, end: u64) -> io::Result<Self> {
        let file = disk.open(&segment.path)?;
        if end < segment.bytes {
            file.set_len(end)?;
        }
        file.sync()?;
        segment.path.parent().map_or(Ok(()), |folder| disk.sync_folder(folder))?;
        Ok(Self { file, path: segment.path.clone(), first: segment.first, salt, bytes: end })
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
