//! The files of a log. Each begins with a header, followed by frames.
//!
//! ```text
//! header      magic 8 | version 4 | check of the rest 4 | first position 8 | salt 8
//! version 1   magic 8 | version 4 | nothing 4 | first position 8
//! ```
//!
//! The file `newest` beside them notes the newest segment: its first position 8 | check 8. Nothing else shows that
//! files at the end are missing.
//!
//! The checks of a segment's frames are seeded with its salt, a number that is not known elsewhere; in version 1 it is
//! 0. The salt is part of the file name too, so a damaged header costs no frame.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::frame::{Frames, POSITION_END, Part};
use crate::{Disk, DiskFile, StorageError};

/// The first bytes of a segment.
const MAGIC: [u8; 8] = *b"RivLog\0\0";

/// The format version that is written.
pub const VERSION: u32 = 2;

/// The size of the header.
pub(super) const HEADER_BYTES: usize = 32;

/// The size of the header in version 1, which has no salt.
const HEADER_BYTES_1: usize = 24;

const EXTENSION: &str = "log";

/// The note of the newest segment.
const NEWEST: &str = "newest";

/// The seed of its check.
const NEWEST_SEED: u64 = u64::from_le_bytes(*b"RivNewst");

/// Notes that the segment with this first position exists. If the note cannot be written, a later loss of the segment
/// is not noticed.
pub(super) fn note_newest(disk: &dyn Disk, folder: &Path, first: u64) {
    let first = first.to_le_bytes();
    let check = xxh3_64_with_seed(&first, NEWEST_SEED).to_le_bytes();
    let note = disk.create(&folder.join(NEWEST));
    let noted = note.and_then(|note| note.write_at(&[first, check].concat(), 0).and_then(|()| note.sync()));
    if let Err(error) = noted {
        tracing::debug!("the newest segment of the log is not noted: {error}");
    }
}

/// The first position of the newest segment, as noted; `None` if the note cannot be read.
fn newest(disk: &dyn Disk, folder: &Path) -> Option<u64> {
    let note = disk.read(&folder.join(NEWEST)).ok()?;
    let (first, check) = note.split_first_chunk::<8>()?;
    (check == xxh3_64_with_seed(first, NEWEST_SEED).to_le_bytes()).then(|| u64::from_le_bytes(*first))
}

/// If the noted newest segment is not in the folder: its first position, and the message about it.
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

/// The segments in a folder, oldest first. Other files are ignored.
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

/// The first position and the salt in the name of a segment.
fn read_name(stem: &str) -> Option<(u64, Option<u64>)> {
    match stem.split_once('-') {
        Some((first, salt)) => Some((first.parse().ok()?, Some(u64::from_str_radix(salt, 16).ok()?))),
        None => Some((stem.parse().ok()?, None)),
    }
}

/// The usable content of a segment.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The position behind its last record; `None` if it has no records.
    pub(super) next: Option<u64>,
    /// Where its last frame ends.
    pub(super) end: usize,
    /// The number of records.
    pub(super) records: u64,
    /// Damaged bytes between intact frames.
    pub(super) damaged_bytes: usize,
    /// The seed of the checks of its frames.
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

/// Whether a header was written in this version, which may be a later one: the fields up to the salt keep their places.
fn has_check_of(version: u32, bytes: &[u8]) -> bool {
    bytes.get(16..HEADER_BYTES).is_some_and(|rest| header_check(version, rest).to_le_bytes() == bytes[12..16])
}

/// The body behind an intact header of this version.
fn whole(bytes: &[u8]) -> Option<Body<'_>> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let salt = u64::from_le_bytes([24, 25, 26, 27, 28, 29, 30, 31].map(|at| header[at]));
    // The header is intact if its check fits, whatever the bytes in front of the check are.
    let is_whole = header_check(VERSION, &header[16..]).to_le_bytes() == header[12..16];
    is_whole.then_some(Body { bytes: rest, salt })
}

/// The frames of a segment; none if the process had only begun to make it. Frames have checks of their own, so a
/// damaged header costs no frame.
///
/// # Errors
/// The segment is of a later version, or the file is not a segment.
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
        // The header is damaged; if frames follow, nothing is lost.
        (_, salt) if damaged(bytes, salt).has_frames() => Ok(damaged(bytes, salt)),
        (true, salt) if version > VERSION && (salt.is_none() || has_check_of(version, bytes)) => {
            Err(StorageError::Version { what: what(), found: version, known: VERSION })
        }
        (true, Some(_)) => Ok(damaged(bytes, segment.salt)),
        _ => Err(StorageError::damaged(&what(), "it does not begin like a segment of a log")),
    }
}

/// The body of a segment with an unreadable header.
fn damaged(bytes: &[u8], salt: Option<u64>) -> Body<'_> {
    Body { bytes, salt: salt.unwrap_or(0) }
}

/// Whether the header of a segment was ever on disk, as far as its bytes tell. It is synced before the first frame, so
/// a file with neither is one that the process had only begun to make.
pub(super) fn is_begun(segment: &Segment, bytes: &[u8]) -> bool {
    let header_bytes = if segment.salt.is_some() { HEADER_BYTES } else { HEADER_BYTES_1 };
    if bytes.len() < header_bytes {
        return false;
    }
    let is_written = bytes[..8] == MAGIC && bytes[8..12] != [0; 4];
    is_written || whole(bytes).is_some() || damaged(bytes, segment.salt).has_frames()
}

/// Checks all frames of a segment.
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

/// The segment that is being written.
pub(super) struct Open {
    file: Box<dyn DiskFile>,
    pub(super) path: PathBuf,
    pub(super) first: u64,
    pub(super) salt: u64,
    /// The end of the last intact frame.
    pub(super) bytes: u64,
}

impl Open {
    /// Makes a segment for positions from `first` on. An existing file of that name has no live record and is
    /// overwritten. The name is durable when the folder is synced.
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
        // Without this sync, frames could be on disk without the header, and the name be lost although the content is
        // not.
        file.sync()?;
        Ok(Self { file, path, first, salt, bytes: HEADER_BYTES as u64 })
    }

    /// Continues a segment that ends at `end`. The bytes behind `end` are cut off. The bytes before it are synced: a
    /// process that was killed may have written them without a sync, and readers take them for durable.
    pub(super) fn resume(disk: &dyn Disk, segment: &Segment, salt: u64, end: u64) -> io::Result<Self> {
        let file = disk.open(&segment.path)?;
        if end < segment.bytes {
            file.set_len(end)?;
        }
        file.sync()?;
        segment.path.parent().map_or(Ok(()), |folder| disk.sync_folder(folder))?;
        Ok(Self { file, path: segment.path.clone(), first: segment.first, salt, bytes: end })
    }

    /// Writes a frame behind the last one, without a sync.
    pub(super) fn write(&self, frame: &[u8]) -> io::Result<()> {
        self.file.write_at(frame, self.bytes)
    }

    /// Makes the written frame of `frame_bytes` durable.
    pub(super) fn sync(&mut self, frame_bytes: usize) -> io::Result<()> {
        self.file.sync()?;
        self.bytes += frame_bytes as u64;
        Ok(())
    }

    /// Cuts off a frame that was not written in full.
    pub(super) fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.bytes)
    }
}
