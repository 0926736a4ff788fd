//! One file under construction: under a hidden name until it is whole, then under its own.
//!
//! What must hold: a file with its own name is whole and on disk. An abandoned file leaves nothing behind, even if the
//! process that wrote it was killed: the next process that opens a sink there removes it ([`remove_abandoned`]). The
//! hidden file is locked while it is written, which distinguishes it from abandoned files, on other machines and in
//! other containers too. A file that a checkpoint may go on with has a hidden name of another kind, which names its
//! owner ([`Owner`]); only the query that owns it removes it ([`remove_left_over`]).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use rivulet_dataflow::SinkError;
use xxhash_rust::xxh3::xxh3_64;

use crate::files::{Files, words};

/// The rows of a row group of Parquet; rows are held in memory until a group is full.
const ROW_GROUP_ROWS: usize = 128 << 10;

/// The number of bytes that are gathered before they are written to the file.
const WRITE_BYTES: usize = 256 << 10;

/// After this long, gathered bytes are written to the file however few they are.
const WRITE_AFTER: Duration = Duration::from_millis(500);

/// A hidden file that was written to within this time is left alone: its creator may not have locked it yet.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// The endings of hidden names: of files that are written in one go, and of files that a checkpoint may go on with.
const HIDDEN: &str = ".tmp";
const KEPT: &str = ".kept";

/// The size of a file that is written to try whether a folder takes any.
const TRIAL_BYTES: usize = 4 << 10;

/// The owner of files that a checkpoint may go on with: a query of a server, in any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u64);

impl Owner {
    /// The owner for a query of a server; `None` if there is no server that could go on.
    pub(super) fn new(server: &str, query: &str) -> Option<Self> {
        (!server.is_empty()).then(|| Self(xxh3_64(format!("{server}/{query}").as_bytes())))
    }
}

/// The most names that are checked for hidden files.
const NAMES_MAX: usize = 100_000;

/// How the content of Parquet files is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::connector) enum ParquetCompression {
    None,
    Snappy,
    Zstd,
}

/// A file under construction.
pub(super) struct Part {
    content: Content,
    hidden: PathBuf,
    path: PathBuf,
    files: Files,
    is_committed: bool,
    /// Whether it stays when this is dropped: a checkpoint may go on with it.
    is_kept: bool,
    /// The bytes for which room was taken.
    room: u64,
    /// Rows that the system has not taken yet and their bytes, and since when the first of them waits.
    waiting: (usize, usize),
    waiting_since: Option<Instant>,
}

/// A file under construction as a checkpoint stores it: its hidden name, its own name, and its length if it is not
/// whole.
pub(super) type PartText = (PathBuf, PathBuf, Option<u64>);

enum Content {
    Lines { file: File, buffer: Vec<u8>, bytes: u64 },
    Parquet(Box<ArrowWriter<File>>),
}

impl Part {
    /// Begins a file of lines that will be `path`; creates the folders above it.
    pub(super) fn lines(path: PathBuf, files: &Files) -> Result<Self, SinkError> {
        let (file, hidden) = create(&path, files)?;
        Ok(Self::of_lines(file, hidden, path, files))
    }

    fn of_lines(file: File, hidden: PathBuf, path: PathBuf, files: &Files) -> Self {
        let content = Content::Lines { file, buffer: Vec::with_capacity(WRITE_BYTES), bytes: 0 };
        Self::of(content, hidden, path, files)
    }

    fn of(content: Content, hidden: PathBuf, path: PathBuf, files: &Files) -> Self {
        let (files, is_committed, is_kept, waiting) = (files.clone(), false, false, (0, 0));
        Self { content, hidden, path, files, is_committed, is_kept, room: 0, waiting, waiting_since: None }
    }

    /// Begins a Parquet file that will be `path`; creates the folders above it.
    pub(super) fn parquet(
        path: PathBuf,
        schema: &SchemaRef,
        compression: ParquetCompression,
        files: &Files,
    ) -> Result<Self, SinkError> {
        let (file, hidden) = create(&path, files)?;
        let compression = match compression {
            ParquetCompression::None => Compression::UNCOMPRESSED,
            ParquetCompression::Snappy => Compression::SNAPPY,
            ParquetCompression::Zstd => Compression::ZSTD(ZstdLevel::default()),
        };
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .build();
        let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(|error| {
            // The file has no content yet that could be missed.
            let _ = files.remove(&hidden);
            parquet_failed(&path, &error)
        })?;
        let content = Content::Parquet(Box::new(writer));
        Ok(Self::of(content, hidden, path, files))
    }

    /// Takes room for what is about to be written to the disk, with so many more bytes.
    fn take_room(&mut self, more: usize) -> Result<(), SinkError> {
        let bytes = self.bytes() + more as u64;
        let more = bytes.saturating_sub(self.room);
        if more > 0 {
            self.files.take_room(more).map_err(|error| failed(&self.path, &error))?;
            self.room = bytes;
        }
        Ok(())
    }

    /// Appends lines.
    pub(super) fn write_lines(&mut self, lines: &[u8]) -> Result<(), SinkError> {
        if matches!(&self.content, Content::Lines { buffer, .. } if buffer.len() + lines.len() > WRITE_BYTES) {
            self.take_room(lines.len())?;
        }
        let Content::Lines { file, buffer, bytes } = &mut self.content else {
            unreachable!("lines are written to files of lines")
        };
        *bytes += lines.len() as u64;
        let written = if buffer.len() + lines.len() <= WRITE_BYTES {
            buffer.extend_from_slice(lines);
            Ok(())
        } else {
            file.write_all(buffer).and_then(|()| {
                buffer.clear();
                file.write_all(lines)
            })
        };
        written.map_err(|error| failed(&self.path, &error))
    }

    /// Appends rows.
    pub(super) fn write_rows(&mut self, rows: &RecordBatch) -> Result<(), SinkError> {
        // A row group is in memory until it is whole.
        self.take_room(0)?;
        let Content::Parquet(writer) = &mut self.content else { unreachable!("rows are written to Parquet files") };
        writer.write(rows).map_err(|error| parquet_failed(&self.path, &error))
    }

    /// Notes how many rows were written last.
    pub(super) fn note_rows(&mut self, rows: usize, bytes: usize) {
        self.waiting = (self.waiting.0 + rows, self.waiting.1 + bytes);
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    /// Writes what has waited for [`WRITE_AFTER`] to the file, so that a full disk is noticed soon. Row groups wait
    /// until they are whole.
    pub(super) fn write_waiting(&mut self) -> Result<(), SinkError> {
        if self.waiting_since.is_none_or(|since| since.elapsed() < WRITE_AFTER) {
            return Ok(());
        }
        self.take_room(0)?;
        let Content::Lines { file, buffer, .. } = &mut self.content else { return Ok(()) };
        file.write_all(buffer).map_err(|error| failed(&self.path, &error))?;
        buffer.clear();
        Ok(())
    }

    /// Rows and bytes that the system has not taken; it has taken all when the file is whole.
    pub(super) fn waiting(&self) -> (usize, usize) {
        self.waiting
    }

    /// Rows and bytes that the system has taken since the last call.
    pub(super) fn taken(&mut self) -> (usize, usize) {
        if !matches!(&self.content, Content::Lines { buffer, .. } if buffer.is_empty()) {
            return (0, 0);
        }
        self.waiting_since = None;
        std::mem::take(&mut self.waiting)
    }

    /// The size of the file in bytes, about, including what is not written yet.
    pub(super) fn bytes(&self) -> u64 {
        match &self.content {
            Content::Lines { bytes, .. } => *bytes,
            Content::Parquet(writer) => (writer.bytes_written() + writer.in_progress_size()) as u64,
        }
    }

    /// Opens the file of lines that a checkpoint goes on with, cut to its length at the checkpoint. It stays when this
    /// is dropped.
    pub(super) fn resume(hidden: PathBuf, path: PathBuf, length: u64, files: &Files) -> Result<Self, SinkError> {
        let opened = files.open_with(OpenOptions::new().read(true).write(true), &hidden).and_then(|mut file| {
            let _ = file.try_lock();
            check_length(&file.metadata()?, length)?;
            file.set_len(length)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        });
        let mut part = Self::of_lines(opened.map_err(|error| failed(&hidden, &error))?, hidden, path, files);
        if let Content::Lines { bytes, .. } = &mut part.content {
            *bytes = length;
        }
        part.room = length;
        part.is_kept = true;
        Ok(part)
    }

    /// The same, even if the file has got its name since: its query came to its end but could not report it. The
    /// content up to the checkpoint is copied from the published file, which stays until this one replaces it.
    pub(super) fn resume_published(
        hidden: PathBuf,
        path: PathBuf,
        length: u64,
        files: &Files,
    ) -> Result<Self, SinkError> {
        if !hidden.exists() {
            // In one step, so that a crash leaves all of it under the hidden name or nothing.
            let copy = hidden.with_extension("copy");
            let copied = files.open(&path).and_then(|mut published| {
                check_length(&published.metadata()?, length)?;
                let mut options = OpenOptions::new();
                io::copy(
                    &mut published,
                    &mut files.open_with(options.write(true).create(true).truncate(true), &copy)?,
                )?;
                files.rename(&copy, &hidden)
            });
            copied.map_err(|error| {
                let _ = files.remove(&copy);
                let hint = "drop the query and create it again to begin anew";
                SinkError(format!(
                    "cannot go on with {}: what was written of it is not there any more, neither under that name nor as {}: {error}\nhint: {hint}",
                    path.display(),
                    hidden.display()
                ))
            })?;
        }
        Self::resume(hidden, path, length, files)
    }

    /// Makes a file that was just begun stay when it is dropped, until its owner finds that no checkpoint has it.
    pub(super) fn keep(mut self, owner: Option<Owner>) -> Result<Self, SinkError> {
        let ending = owner.map_or_else(|| KEPT[1..].to_owned(), |Owner(owner)| format!("{owner:016x}{KEPT}"));
        let kept = self.hidden.with_extension(ending);
        self.files.rename(&self.hidden, &kept).map_err(|error| failed(&self.path, &error))?;
        self.hidden = kept;
        self.is_kept = true;
        Ok(self)
    }

    /// Whether it is a file of lines, which can be resumed.
    pub(super) fn is_of_lines(&self) -> bool {
        matches!(self.content, Content::Lines { .. })
    }

    /// Makes the file whole and durable, still under its hidden name; a file of lines as far as it is written.
    pub(super) fn sync(&mut self) -> Result<(), SinkError> {
        self.take_room(0)?;
        match &mut self.content {
            Content::Lines { file, buffer, .. } => {
                let written = file.write_all(buffer).and_then(|()| file.sync_data());
                written.map_err(|error| failed(&self.path, &error))?;
                buffer.clear();
            }
            Content::Parquet(writer) => {
                writer.finish().map_err(|error| parquet_failed(&self.path, &error))?;
                writer.inner().sync_data().map_err(|error| failed(&self.path, &error))?;
            }
        }
        Ok(())
    }

    /// The file as a checkpoint stores it while it grows.
    pub(super) fn to_text(&self) -> PartText {
        (self.hidden.clone(), self.path.clone(), Some(self.bytes()))
    }

    /// Makes the file whole, and keeps only its names. To be called only if it is kept.
    pub(super) fn into_whole(mut self) -> Result<PartText, SinkError> {
        debug_assert!(self.is_kept, "it would be removed");
        self.sync()?;
        Ok((self.hidden.clone(), self.path.clone(), None))
    }

    /// Makes the file whole and gives it its name.
    pub(super) fn commit(mut self) -> Result<(), SinkError> {
        self.sync()?;
        self.is_committed = true;
        publish(&self.hidden, &self.path, &self.files)
    }
}

/// Checks that nothing was lost that a checkpoint relies on.
fn check_length(metadata: &fs::Metadata, length: u64) -> io::Result<()> {
    match metadata.len() {
        bytes if bytes >= length => Ok(()),
        bytes => Err(io::Error::other(format!("it has {bytes} bytes, and had {length} at the checkpoint"))),
    }
}

/// Gives a whole file its name, replacing a file with that name.
pub(super) fn publish(hidden: &Path, path: &Path, files: &Files) -> Result<(), SinkError> {
    files.rename(hidden, path).map_err(|error| failed(path, &error))?;
    path.parent().into_iter().for_each(sync_names);
    Ok(())
}

/// Makes the names in a folder durable. Systems that have no such call for folders do it by themselves.
pub(super) fn sync_names(folder: &Path) {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

/// Makes a file of a checkpoint final, as often as it is called: the file gets its name, and what was written after the
/// checkpoint is removed.
pub(super) fn recover((hidden, path, length): PartText, files: &Files) -> Result<(), SinkError> {
    if !hidden.exists() {
        // It was made final, and a reader of the folder may have taken it away.
        if !path.exists() {
            tracing::info!("{} is not there any more; it was taken away when it had got its name", path.display());
        }
        return Ok(());
    }
    match length {
        Some(0) => files.remove(&hidden).map_err(|error| failed(&path, &error)),
        Some(length) => Part::resume(hidden, path, length, files)?.commit(),
        None => publish(&hidden, &path, files),
    }
}

/// The common beginning of the names of all files of the run that wrote this file for a checkpoint: the name up to its
/// last number.
pub(super) fn run_of((_, path, _): &PartText) -> Option<String> {
    Some(path.file_name()?.to_str()?.rsplit_once('-')?.0.to_owned())
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_committed && !self.is_kept {
            // This frees the disk if it is full; an error cannot be reported here.
            let _ = self.files.remove(&self.hidden);
        }
    }
}

/// Creates the file under its hidden name.
fn create(path: &Path, files: &Files) -> Result<(File, PathBuf), SinkError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let hidden = path.with_file_name(format!(".{name}.{}{HIDDEN}", std::process::id()));
    let created = path
        .parent()
        .map_or(Ok(()), |folder| files.make_folder(folder))
        .and_then(|()| files.open_with(OpenOptions::new().write(true).create(true).truncate(true), &hidden))
        .inspect(|file| {
            // Where files cannot be locked, they are never removed as abandoned either.
            if let Err(error) = file.try_lock() {
                tracing::debug!("{} is not locked: {error}", hidden.display());
            }
        });
    created.map(|file| (file, hidden.clone())).map_err(|error| failed(path, &error))
}

/// Fails if no file can be written in the folder.
pub(super) fn try_folder(folder: &Path, files: &Files) -> Result<(), SinkError> {
    let path = folder.join("part-trial");
    let (mut file, hidden) = create(&path, files)?;
    let written = file.write_all(&[0; TRIAL_BYTES]).and_then(|()| file.sync_data());
    let removed = match files.remove(&hidden) {
        // Another sink tried the folder at the same moment, and has removed the file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    written.and(removed).map_err(|error| failed(&path, &error))
}

/// Removes hidden files of killed processes below `folder`, `depth` folders deep: those whose name, without the hidden
/// part, `is_ours`. Files that cannot be removed stay; they do no harm.
pub(super) fn remove_abandoned(folder: &Path, depth: usize, files: &Files, is_ours: &dyn Fn(&str) -> bool) {
    let is_gone = |name: &str, path: &Path| hidden_name(name, HIDDEN).is_some_and(is_ours) && is_abandoned(path, files);
    remove_in(folder, depth, files, &is_gone, &mut { NAMES_MAX });
}

/// Removes hidden files of ended runs that were kept for a checkpoint. `is_left` decides by the file's own name and its
/// owner. Files that belong to the checkpoint have their names already.
pub(super) fn remove_left_over(
    folder: &Path,
    depth: usize,
    files: &Files,
    is_left: &dyn Fn(&str, Option<Owner>) -> bool,
) {
    let is_gone = |name: &str, path: &Path| {
        kept_name(name).is_some_and(|(name, owner)| is_left(name, owner))
            && files.open(path).is_ok_and(|file| file.try_lock().is_ok())
    };
    remove_in(folder, depth, files, &is_gone, &mut { NAMES_MAX });
}

fn remove_in(
    folder: &Path,
    depth: usize,
    files: &Files,
    is_gone: &dyn Fn(&str, &Path) -> bool,
    names_left: &mut usize,
) {
    let Ok(entries) = files.locate(folder).and_then(fs::read_dir) else { return };
    for entry in entries.flatten() {
        if *names_left == 0 {
            return;
        }
        *names_left -= 1;
        let (path, name) = (entry.path(), entry.file_name());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && depth > 0 {
            remove_in(&path, depth - 1, files, is_gone, names_left);
        } else if !is_folder && is_gone(&name.to_string_lossy(), &path) {
            match files.remove(&path) {
                Ok(()) => tracing::info!("removed {}, which a process that is gone did not finish", path.display()),
                Err(error) => tracing::debug!("{} is not removed: {error}", path.display()),
            }
        }
    }
}

/// The own name of a file, from its hidden name.
fn hidden_name<'n>(name: &'n str, ending: &str) -> Option<&'n str> {
    let (name, process) = name.strip_prefix('.')?.strip_suffix(ending)?.rsplit_once('.')?;
    let is_number = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(name)
}

/// The same for a file that a checkpoint may go on with, and its owner; earlier versions did not store the owner.
fn kept_name(name: &str) -> Option<(&str, Option<Owner>)> {
    let owned = || {
        let (rest, owner) = name.strip_suffix(KEPT)?.rsplit_once('.')?;
        let owner = u64::from_str_radix(owner, 16).ok().filter(|_| owner.len() == 16)?;
        Some((hidden_name(rest, "")?, Some(Owner(owner))))
    };
    owned().or_else(|| Some((hidden_name(name, KEPT)?, None)))
}

/// Whether no process writes to a file any more.
fn is_abandoned(path: &Path, files: &Files) -> bool {
    let Ok(file) = files.open(path) else { return false };
    let age = file.metadata().and_then(|metadata| metadata.modified()).map(|modified| modified.elapsed());
    matches!(age, Ok(Ok(age)) if age >= ABANDONED_AFTER) && file.try_lock().is_ok()
}

fn parquet_failed(path: &Path, error: &ParquetError) -> SinkError {
    let problem = match error {
        ParquetError::External(inner) => match inner.downcast_ref::<io::Error>() {
            Some(inner) => return failed(path, inner),
            None => inner.to_string(),
        },
        other => other.to_string(),
    };
    SinkError(format!("cannot write {}: {problem}", path.display()))
}

/// The error for a failure to write the file.
pub(super) fn failed(path: &Path, error: &io::Error) -> SinkError {
    let hint = match error.kind() {
        _ if words(error).1.is_some() => "",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "\nhint: the disk is full; files that have got their names are whole"
        }
        io::ErrorKind::PermissionDenied => "\nhint: the folder has to be writable",
        _ => "",
    };
    SinkError(format!("cannot write {}: {error}{hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_once_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/a.json");
        let mut part = Part::lines(path.clone(), &Files::of_user()).unwrap();
        part.write_lines(b"one\n").unwrap();
        part.write_lines(&vec![b'x'; 2 * WRITE_BYTES]).unwrap();
        assert_eq!(part.bytes(), 4 + 2 * WRITE_BYTES as u64);
        let hidden = names(path.parent().unwrap());
        assert!(hidden.len() == 1 && hidden[0].starts_with(".a.json."), "{hidden:?}");
        part.commit().unwrap();
        assert_eq!(names(path.parent().unwrap()), ["a.json"]);
        assert!(fs::read(&path).unwrap().starts_with(b"one\nxxx"));
        // A file that is dropped leaves the earlier file unchanged.
        let mut part = Part::lines(path.clone(), &Files::of_user()).unwrap();
        part.write_lines(b"two\n").unwrap();
        drop(part);
        assert_eq!(names(path.parent().unwrap()), ["a.json"]);
        assert!(fs::read(&path).unwrap().starts_with(b"one\n"));
    }

    #[test]
    fn several_sinks_may_try_a_folder_at_the_same_moment() {
        let folder = tempfile::tempdir().unwrap();
        let try_often = || (0..200).try_for_each(|_| try_folder(folder.path(), &Files::of_user()));
        std::thread::scope(|scope| {
            let tries = [(); 4].map(|()| scope.spawn(try_often));
            tries.into_iter().for_each(|tried| tried.join().unwrap().unwrap());
        });
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("dt=1");
        fs::create_dir(&below).unwrap();
        let old = |name: &str| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - 2 * ABANDONED_AFTER).unwrap();
            file
        };
        for name in
            [".part-1.json.77.tmp", "dt=1/.part-2.json.77.tmp", ".other.json.77.tmp", ".part-3.json.tmp", "part-4.json"]
        {
            old(name);
        }
        File::create(folder.path().join(".part-5.json.77.tmp")).unwrap();
        // A file that is being written, and has been silent for long.
        let part = Part::lines(folder.path().join("part-6.json"), &Files::of_user()).unwrap();
        File::options().write(true).open(&part.hidden).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        let written = part.hidden.file_name().unwrap().to_string_lossy().into_owned();
        remove_abandoned(folder.path(), 1, &Files::of_user(), &|name| name.starts_with("part-"));
        let mut left =
            [".other.json.77.tmp", ".part-3.json.tmp", ".part-5.json.77.tmp", &written, "dt=1", "part-4.json"];
        left.sort_unstable();
        assert_eq!(names(folder.path()), left);
        assert!(names(&below).is_empty());
        part.commit().unwrap();
    }

    #[test]
    fn the_name_of_one_that_stays_says_whose_it_is() {
        let owner = Owner::new("0123", "means").unwrap();
        assert_eq!((Owner::new("", "means"), Owner::new("0123", "means")), (None, Some(owner)));
        assert_ne!(Some(owner), Owner::new("0123", "others"));
        let folder = tempfile::tempdir().unwrap();
        for owner in [Some(owner), None] {
            let part =
                Part::lines(folder.path().join("part-1-2-0-3.json"), &Files::of_user()).unwrap().keep(owner).unwrap();
            let name = part.hidden.file_name().unwrap().to_str().unwrap();
            assert_eq!(kept_name(name), Some(("part-1-2-0-3.json", owner)), "{name}");
        }
        for name in
            [".part-1.json.77.tmp", "part-1.json.77.kept", ".part-1.json.kept", ".part-1.json.x.0123456789abcdef.kept"]
        {
            assert_eq!(kept_name(name), None, "{name}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_told_and_leaves_what_was_committed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        fs::write(&path, "whole").unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut part = Part::of_lines(full, folder.path().join(".a.json.tmp"), path.clone(), &Files::of_user());
        part.write_lines(b"one\n").unwrap();
        let error = part.commit().unwrap_err().0;
        assert!(error.contains("No space left") && error.contains("hint: the disk is full"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }
}
