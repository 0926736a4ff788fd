//! Results in files: one file, or a folder of files that grow, are closed and get their names.
//!
//! What must hold: whoever reads the folder sees whole files only. A file is committed when it is large enough, when the commit
//! interval is over, or at the end; what comes after it goes to the next one. One file alone is committed at the end.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Refusals, Sink, SinkError, SlotTable};

use super::content::Content;
use super::part::{Part, failed, remove_abandoned};
use super::partition::Partitioning;

/// How many folders have a file open at a time. When there are more, the file that was begun first is committed.
const OPEN_MAX: usize = 64;

/// What the names of all files in a folder begin with.
const PREFIX: &str = "part-";

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
    /// By folder below the sink's, in the order in which they were begun.
    open: Vec<(String, Part)>,
    last_commit: Instant,
    /// What the names of files have in common: unlike those of any other run or instance.
    prefix: String,
    ending: &'static str,
    files: u64,
}

impl FolderSink {
    pub(super) fn new(
        folder: PathBuf,
        content: Content,
        partitioning: Option<Partitioning>,
        commits: Commits,
        instance: usize,
        ending: &'static str,
    ) -> Self {
        // The first one does it for all; folders by values are below.
        if instance == 0 {
            let depth = partitioning.as_ref().map_or(0, Partitioning::depth);
            remove_abandoned(&folder, depth, &|name| name.starts_with(PREFIX));
        }
        let run_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let prefix = format!("{PREFIX}{run_us:x}-{}-{instance}", std::process::id());
        let last_commit = Instant::now();
        Self { folder, content, partitioning, commits, open: Vec::new(), last_commit, prefix, ending, files: 0 }
    }

    fn write_to(&mut self, folder: &str, batch: &Batch) -> Result<(), SinkError> {
        let index = match self.open.iter().position(|(other, _)| other == folder) {
            Some(index) => index,
            None => {
                if self.open.len() >= OPEN_MAX {
                    self.open.remove(0).1.commit()?;
                }
                let name = format!("{}-{}.{}", self.prefix, self.files, self.ending);
                self.files += 1;
                self.open.push((folder.to_owned(), self.content.begin(self.folder.join(folder).join(name))?));
                self.open.len() - 1
            }
        };
        let part = &mut self.open[index].1;
        self.content.prepare(batch)?.write(part)?;
        if part.bytes() >= self.commits.bytes {
            self.open.remove(index).1.commit()?;
        }
        Ok(())
    }

    fn commit_all(&mut self) -> Result<(), SinkError> {
        self.last_commit = Instant::now();
        // One that fails does not take the others along.
        self.open.drain(..).map(|(_, part)| part.commit()).fold(Ok(()), Result::and)
    }
}

impl Sink for FolderSink {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        if batch.is_empty() {
            return Ok(());
        }
        match &mut self.partitioning {
            None => self.write_to("", batch),
            Some(partitioning) => {
                let parts = partitioning.split(batch);
                parts.iter().try_for_each(|(folder, part)| self.write_to(folder, part))
            }
        }
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        if self.last_commit.elapsed() >= self.commits.interval { self.commit_all() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.commit_all()
    }

    fn has_room(&self) -> bool {
        true
    }
}

/// A file that all instances of a sink write to.
pub(super) struct SharedFile {
    part: Option<Part>,
    /// Instances that will still be opened.
    to_open: usize,
    /// Instances that have not finished.
    to_finish: usize,
}

/// The files that are written to now, by their absolute path.
static OPEN_FILES: LazyLock<Mutex<HashMap<PathBuf, Weak<Mutex<SharedFile>>>>> = LazyLock::new(Mutex::default);

/// One file for all rows.
pub(super) struct FileSink {
    content: Content,
    file: Arc<Mutex<SharedFile>>,
}

impl FileSink {
    /// An instance of `instances`, which share the file. Fails if somebody else writes to it.
    pub(super) fn open(path: &Path, content: Content, instances: usize) -> Result<Self, SinkError> {
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
            return Ok(Self { content, file });
        }
        if let (Some(folder), Some(own)) = (path.parent(), path.file_name()) {
            remove_abandoned(folder, 0, &|name| own == name);
        }
        let part = Some(content.begin(path.clone())?);
        let file = Arc::new(Mutex::new(SharedFile { part, to_open: instances - 1, to_finish: instances }));
        files.insert(path, Arc::downgrade(&file));
        Ok(Self { content, file })
    }
}

impl Sink for FileSink {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        let prepared = self.content.prepare(batch)?;
        match &mut self.file.lock().part {
            Some(part) => prepared.write(part),
            None => Err(SinkError("rows came after the end (a defect of the engine)".into())),
        }
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        let mut file = self.file.lock();
        file.to_finish = file.to_finish.saturating_sub(1);
        if file.to_finish > 0 {
            return Ok(());
        }
        file.part.take().map_or(Ok(()), Part::commit)
    }

    fn has_room(&self) -> bool {
        true
    }
}

/// Lines at the end of a file that others may read and write meanwhile.
pub(super) struct AppendSink {
    content: Content,
    file: File,
    path: PathBuf,
}

impl AppendSink {
    pub(super) fn open(path: PathBuf, content: Content) -> Result<Self, SinkError> {
        let opened = File::options().create(true).append(true).open(&path).and_then(|mut file| {
            if file.metadata()?.len() == 0 {
                file.write_all(content.header())?;
            }
            Ok(file)
        });
        let file = opened.map_err(|error| failed(&path, &error))?;
        Ok(Self { content, file, path })
    }
}

impl Sink for AppendSink {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        // In one piece, so that lines of several instances stay whole.
        let lines = self.content.lines(batch)?;
        self.file.write_all(lines).map_err(|error| failed(&self.path, &error))
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.file.sync_data().map_err(|error| failed(&self.path, &error))
    }

    fn has_room(&self) -> bool {
        true
    }
}
