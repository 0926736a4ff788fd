//! Results in files: one file, or a folder of files that grow, are closed and get their names.
//!
//! What must hold: a reader of the folder sees whole files only. A file is committed when it is large enough, when the
//! commit interval is over, or at the end; later rows go to the next file. A single file is committed at the end.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Sink, SinkError, TransactionalSink};

use super::content::Content;
use super::part::{
    Owner, Part, PartText, failed, publish, recover, remove_abandoned, remove_left_over, run_of, sync_names, try_folder,
};
use super::partition::Partitioning;
use super::paths::{Identity, identity};
use crate::connector::Health;
use crate::files::Files;

/// The number of folders that have an open file at a time. If there are more, the file that was begun first is
/// committed.
const OPEN_MAX: usize = 64;

/// The most files that wait for a checkpoint. Each is a name in memory and in the checkpoint.
const WHOLE_MAX: usize = 65_536;

/// The beginning of the names of all files in a folder.
const PREFIX: &str = "part-";

/// When this process began to write files, in microseconds since 1970: files begun later may belong to another sink of
/// the same query.
static BEGUN_US: LazyLock<u128> = LazyLock::new(now_us);

/// When files of a folder are committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commits {
    pub(super) interval: Duration,
    pub(super) bytes: u64,
}

/// Files in a folder, or in folders by the values of columns.
pub(super) struct FolderSink {
    folder: PathBuf,
    content: Content,
    partitioning: Option<Partitioning>,
    commits: Commits,
    /// The open files, by folder below the sink's, in the order in which they were begun.
    open: Vec<(String, Part)>,
    last_commit: Instant,
    /// The common beginning of file names: different from those of all other runs and instances.
    prefix: String,
    ending: &'static str,
    files: u64,
    /// If checkpoints are made, files get their names with them.
    checkpoints: Option<Pending>,
    owner: Option<Owner>,
    allowed: Files,
    health: Arc<Health>,
}

/// Files that wait for a checkpoint.
#[derive(Default)]
pub(super) struct Pending {
    /// The files completed since the last checkpoint.
    whole: Vec<PartText>,
    /// The files that belong to the checkpoint that is being made.
    prepared: Vec<PartText>,
    /// The folders in which files were begun since the last checkpoint.
    folders: BTreeSet<PathBuf>,
}

impl FolderSink {
    #[expect(clippy::too_many_arguments, reason = "each says another thing of the folder")]
    pub(super) fn new(
        folder: PathBuf,
        content: Content,
        partitioning: Option<Partitioning>,
        commits: Commits,
        instance: usize,
        ending: &'static str,
        (owner, checkpoints): (Option<Owner>, Option<&[String]>),
        (allowed, health): (&Files, &Arc<Health>),
    ) -> Result<Self, SinkError> {
        let begun_us = *BEGUN_US;
        if health.is_troubled() {
            try_folder(&folder, allowed)?;
        }
        // The first instance does it for all; folders by values are below.
        if instance == 0 {
            let mut runs: BTreeSet<String> = BTreeSet::new();
            for prepared in checkpoints.unwrap_or_default() {
                let parts = parts_of(prepared, allowed)?;
                runs.extend(parts.iter().filter_map(run_of));
                parts.into_iter().try_for_each(|part| recover(part, allowed))?;
            }
            let depth = partitioning.as_ref().map_or(0, Partitioning::depth);
            remove_abandoned(&folder, depth, allowed, &|name| name.starts_with(PREFIX));
            // Files of the runs of the checkpoint, and of runs that were killed before they had one.
            let is_of_a_run = |name: &str| name.rsplit_once('-').is_some_and(|(run, _)| runs.contains(run));
            let is_over = |name: &str| run_begun_us(name).is_some_and(|run_us| run_us < begun_us);
            remove_left_over(&folder, depth, allowed, &|name, of| {
                is_of_a_run(name) || (owner.is_some() && of == owner && is_over(name))
            });
        }
        let run_us = now_us();
        let prefix = format!("{PREFIX}{run_us:x}-{}-{instance}", std::process::id());
        let last_commit = Instant::now();
        let checkpoints = checkpoints.map(|_| Pending::default());
        let open = Vec::new();
        Ok(Self {
            folder,
            content,
            partitioning,
            commits,
            open,
            last_commit,
            prefix,
            ending,
            files: 0,
            checkpoints,
            owner,
            allowed: allowed.clone(),
            health: health.clone(),
        })
    }

    /// Completes a file, which takes no more rows. While it waits for a checkpoint only its names are held: there may
    /// be thousands.
    fn complete(&mut self, index: usize) -> Result<(), SinkError> {
        let part = self.open.remove(index).1;
        let (rows, bytes) = part.waiting();
        let Some(pending) = &mut self.checkpoints else {
            part.commit()?;
            self.health.take(rows, bytes);
            return Ok(());
        };
        pending.whole.push(part.into_whole()?);
        self.health.take(rows, bytes);
        if pending.whole.len() + pending.prepared.len() > WHOLE_MAX {
            let folder = self.folder.display();
            return Err(SinkError(format!(
                "more than {WHOLE_MAX} files in {folder} wait for a checkpoint\nhint: make checkpoints more often (checkpoint.interval_s), \
                 write fewer and larger files, and see with `rivulet status` whether checkpoints fail"
            )));
        }
        Ok(())
    }

    fn write_to(&mut self, folder: &str, batch: &Batch) -> Result<(), SinkError> {
        let index = match self.open.iter().position(|(other, _)| other == folder) {
            Some(index) => index,
            None => {
                if self.open.len() >= OPEN_MAX {
                    self.complete(0)?;
                }
                let name = format!("{}-{}.{}", self.prefix, self.files, self.ending);
                self.files += 1;
                let inside = self.folder.join(folder);
                let part = self.content.begin(inside.join(name), &self.allowed)?;
                let part = match &mut self.checkpoints {
                    Some(pending) => {
                        pending.folders.insert(inside);
                        part.keep(self.owner)?
                    }
                    None => part,
                };
                self.open.push((folder.to_owned(), part));
                self.open.len() - 1
            }
        };
        let part = &mut self.open[index].1;
        self.content.prepare(batch)?.write(part)?;
        take(part, &self.health);
        if part.bytes() >= self.commits.bytes {
            self.complete(index)?;
        }
        Ok(())
    }

    fn close_all(&mut self) -> Result<(), SinkError> {
        self.last_commit = Instant::now();
        // If one fails, the others are completed all the same.
        (0..self.open.len()).rev().map(|index| self.complete(index)).fold(Ok(()), Result::and)
    }
}

/// Counts the rows that the system has taken of a file.
fn take(part: &mut Part, health: &Health) {
    let (rows, bytes) = part.taken();
    if rows > 0 {
        health.take(rows, bytes);
    }
}

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros())
}

/// When the run began that named a file.
fn run_begun_us(name: &str) -> Option<u128> {
    u128::from_str_radix(name.strip_prefix(PREFIX)?.split('-').next()?, 16).ok()
}

/// Makes the files of a checkpoint final. If a file fails, the others are made final all the same; it is tried again at
/// the next start from that checkpoint.
fn publish_all(parts: &mut Vec<PartText>, files: &Files) -> Result<(), SinkError> {
    parts.drain(..).map(|(hidden, path, _)| publish(&hidden, &path, files)).fold(Ok(()), Result::and)
}

/// The files that an instance had when it prepared.
fn parts_of(prepared: &str, files: &Files) -> Result<Vec<PartText>, SinkError> {
    if prepared.is_empty() {
        return Ok(Vec::new());
    }
    let mut parts: Vec<PartText> = serde_json::from_str(prepared)
        .map_err(|error| SinkError(format!("a checkpoint has files '{prepared}', which is not understood: {error}")))?;
    for path in parts.iter_mut().flat_map(|(hidden, path, _)| [hidden, path]) {
        *path = files.locate(&*path).map_err(|error| failed(path, &error))?;
    }
    Ok(parts)
}

fn text_of(parts: &[PartText]) -> Result<String, SinkError> {
    serde_json::to_string(parts).map_err(|error| SinkError(format!("the name of a file is not Unicode: {error}")))
}

impl Sink for FolderSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        if batch.is_empty() {
            return Ok(());
        }
        match &mut self.partitioning {
            None => self.write_to("", batch)?,
            Some(partitioning) => {
                let parts = partitioning.split(batch);
                parts.iter().try_for_each(|(folder, part)| self.write_to(folder, part))?;
            }
        }
        // A batch that fails is given once more, and is not to be counted twice.
        self.health.hand(batch.rows());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        if self.last_commit.elapsed() >= self.commits.interval {
            return self.close_all();
        }
        for (_, part) in &mut self.open {
            part.write_waiting()?;
            take(part, &self.health);
        }
        // It is open, and a failed write would have closed it; rows that wait have not been tried.
        if self.open.iter().all(|(_, part)| part.waiting().0 == 0) {
            self.health.recover();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        self.close_all()?;
        let Some(pending) = &mut self.checkpoints else { return Ok(true) };
        pending.prepared.append(&mut pending.whole);
        publish_all(&mut pending.prepared, &self.allowed).map(|()| true)
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        if self.checkpoints.is_some() { Some(self) } else { None }
    }
}

impl TransactionalSink for FolderSink {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        // Row groups cannot be resumed, lines can.
        for index in (0..self.open.len()).rev() {
            match self.open[index].1.is_of_lines() {
                true => {
                    let part = &mut self.open[index].1;
                    part.sync()?;
                    take(part, &self.health);
                }
                false => self.complete(index)?,
            }
        }
        let Some(pending) = &mut self.checkpoints else { return Ok(Some(String::new())) };
        pending.prepared.append(&mut pending.whole);
        // A name is durable when its folder is, and the folder when the one above it is.
        let begun = std::mem::take(&mut pending.folders);
        let above = |folder: &PathBuf| folder.ancestors().take_while(|one| one.starts_with(&self.folder)).count();
        let folders = begun.iter().flat_map(|folder| folder.ancestors().take(above(folder) + 1));
        folders.collect::<BTreeSet<_>>().into_iter().for_each(sync_names);
        let open = self.open.iter().map(|(_, part)| part.to_text());
        text_of(&pending.prepared.iter().cloned().chain(open).collect::<Vec<_>>()).map(Some)
    }

    fn commit(&mut self, _epoch: u64) -> Result<bool, SinkError> {
        let Some(pending) = &mut self.checkpoints else { return Ok(true) };
        publish_all(&mut pending.prepared, &self.allowed).map(|()| true)
    }

    fn close(&mut self) -> Result<(), SinkError> {
        self.close_all()
    }
}

/// A file that all instances of a sink write to.
pub(super) struct SharedFile {
    part: Option<Part>,
    path: PathBuf,
    has_rows: bool,
    /// Instances that will still be opened.
    to_open: usize,
    /// Instances that have not finished.
    to_finish: usize,
}

/// The files that are being written, by their absolute path.
static OPEN_FILES: LazyLock<Mutex<HashMap<PathBuf, Weak<Mutex<SharedFile>>>>> = LazyLock::new(Mutex::default);

/// One file for all rows.
pub(super) struct FileSink {
    content: Content,
    file: Arc<Mutex<SharedFile>>,
    health: Arc<Health>,
}

impl FileSink {
    /// Opens an instance of `instances`, which share the file. Fails if another sink writes to it.
    pub(super) fn open(
        path: &Path,
        content: Content,
        instances: usize,
        (owner, checkpoints): (Option<Owner>, Option<&[String]>),
        (allowed, health): (&Files, &Arc<Health>),
    ) -> Result<Self, SinkError> {
        let health = health.clone();
        let path = std::path::absolute(path).map_err(|error| failed(path, &error))?;
        let mut files = OPEN_FILES.lock();
        files.retain(|_, file| file.strong_count() > 0);
        if let Some(file) = files.get(&path).and_then(Weak::upgrade) {
            let mut shared = file.lock();
            if shared.to_open == 0 {
                let name = path.display();
                return Err(SinkError(format!("cannot write {name}: another query is writing it")));
            }
            shared.to_open -= 1;
            drop(shared);
            return Ok(Self { content, file, health });
        }
        // Each instance has stated the length of the file when it prepared; others may have written after that.
        let prepared = checkpoints.unwrap_or_default().iter().map(|prepared| parts_of(prepared, allowed));
        let prepared = prepared.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().max_by_key(|part| part.2);
        let part = match prepared {
            Some((hidden, path, Some(length))) => Part::resume_published(hidden, path, length, allowed)?,
            _ => {
                if let (Some(folder), Some(own)) = (path.parent(), path.file_name()) {
                    remove_abandoned(folder, 0, allowed, &|name| own == name);
                    // A hidden file of a run that was killed before its first checkpoint.
                    remove_left_over(folder, 0, allowed, &|name, _| own == name);
                }
                let part = content.begin(path.clone(), allowed)?;
                if checkpoints.is_some() && part.is_of_lines() { part.keep(owner)? } else { part }
            }
        };
        let part = Some(part);
        let file = Arc::new(Mutex::new(SharedFile {
            part,
            path: path.clone(),
            has_rows: false,
            to_open: instances - 1,
            to_finish: instances,
        }));
        files.insert(path, Arc::downgrade(&file));
        Ok(Self { content, file, health })
    }
}

impl Sink for FileSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let prepared = self.content.prepare(batch)?;
        let mut file = self.file.lock();
        file.has_rows |= !batch.is_empty();
        match &mut file.part {
            Some(part) => {
                self.health.hand(batch.rows());
                prepared.write(part)?;
                take(part, &self.health);
                Ok(())
            }
            None => Err(SinkError("rows came after the end (a defect of the engine)".into())),
        }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let Some(part) = &mut self.file.lock().part else { return Ok(()) };
        part.write_waiting()?;
        take(part, &self.health);
        Ok(())
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        let mut file = self.file.lock();
        file.to_finish = file.to_finish.saturating_sub(1);
        if file.to_finish > 0 {
            return Ok(true);
        }
        if !file.has_rows && std::fs::metadata(&file.path).is_ok_and(|metadata| metadata.len() > 0) {
            tracing::warn!("no row was written; {}, which had some, has none any more", file.path.display());
        }
        if let Some(part) = file.part.take() {
            let (rows, bytes) = part.waiting();
            part.commit()?;
            self.health.take(rows, bytes);
        }
        Ok(true)
    }

    /// Parquet has its index at the end, so a file cannot be continued.
    fn can_resume(&self) -> bool {
        self.file.lock().part.as_ref().is_none_or(Part::is_of_lines)
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        Some(self)
    }
}

/// The file gets its name at the end; a checkpoint has its length.
impl TransactionalSink for FileSink {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        let mut file = self.file.lock();
        let Some(part) = &mut file.part else { return Ok(Some(String::new())) };
        part.sync()?;
        take(part, &self.health);
        let text = part.to_text();
        file.path.parent().into_iter().for_each(sync_names);
        text_of(&[text]).map(Some)
    }
}

/// Appends lines to a file that other processes may read and write meanwhile, and rename or remove: then later lines go
/// to a new file of that name.
pub(super) struct AppendSink {
    content: Content,
    file: File,
    /// Which file that is.
    identity: Option<Identity>,
    path: PathBuf,
    allowed: Files,
    health: Arc<Health>,
}

impl AppendSink {
    pub(super) fn open(
        path: PathBuf,
        content: Content,
        (allowed, health): (&Files, &Arc<Health>),
    ) -> Result<Self, SinkError> {
        let (file, identity) = appended(&path, &content, allowed)?;
        Ok(Self { content, file, identity, path, allowed: allowed.clone(), health: health.clone() })
    }

    /// Whether the file has its name still. Another file may have it, or none.
    fn has_name(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| identity(&metadata) == self.identity)
    }
}

/// Opens a file to append lines to it; makes it, and the folders above it, if it is not there. Returns which it is,
/// too.
fn appended(path: &Path, content: &Content, allowed: &Files) -> Result<(File, Option<Identity>), SinkError> {
    let made = path.parent().map_or(Ok(()), |folder| allowed.make_folder(folder));
    let opened = made.and_then(|()| {
        let mut file = allowed.open_with(File::options().create(true).append(true), path)?;
        let (metadata, header) = (file.metadata()?, content.header());
        let is_begun = || allowed.read(path, header.len() as u64).is_ok_and(|begun| header.starts_with(&begun));
        // A disk that was full, or a crash, may have cut the header short.
        let missing = usize::try_from(metadata.len()).ok().and_then(|length| header.get(length..));
        if let Some(missing) = missing.filter(|missing| !missing.is_empty() && (metadata.len() == 0 || is_begun())) {
            file.write_all(missing)?;
        } else if metadata.len() > 0 && !ends_a_line(path, allowed) {
            // A disk that was full, or a crash, has cut a line short. Its row comes again, in a line of its own.
            file.write_all(b"\n")?;
        }
        Ok((file, identity(&metadata)))
    });
    opened.map_err(|error| failed(path, &error))
}

/// Whether the last line of a file is whole. One that cannot be read is taken to be.
fn ends_a_line(path: &Path, allowed: &Files) -> bool {
    let mut last = [b'\n'];
    let read = allowed.open_with(File::options().read(true), path).and_then(|mut file| {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)
    });
    read.is_err() || last == *b"\n"
}

impl Sink for AppendSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        if !self.has_name() {
            // What the file has by now is not synced by a later drain.
            self.drain()?;
            (self.file, self.identity) = appended(&self.path, &self.content, &self.allowed)?;
        }
        // In one piece, so that lines of several instances stay whole.
        let lines = self.content.lines(batch)?;
        self.file.write_all(lines).map_err(|error| failed(&self.path, &error))?;
        self.health.hand_and_take(batch.rows(), lines.len());
        Ok(())
    }

    /// The file is open, and has taken all rows that came.
    fn flush(&mut self) -> Result<(), SinkError> {
        self.health.recover();
        Ok(())
    }

    /// Later lines may come again after a crash: other processes may have written behind them, so they cannot be
    /// removed.
    fn drain(&mut self) -> Result<bool, SinkError> {
        self.file.sync_data().map(|()| true).map_err(|error| failed(&self.path, &error))
    }
}
