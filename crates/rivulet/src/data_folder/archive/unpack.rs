//! A backup that is read from its beginning to its end, and the files that are made from it. Data passes through a
//! buffer, so files may have any size.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::error::{ArchiveError, Contents, failed};
use crate::catalog::{self, OWNER_ONLY};
use crate::data_folder::{CHECKPOINTS, LOG, MQTT, SECRETS};

pub(super) const BUFFER_BYTES: usize = 1 << 20;

pub(super) struct Unpacking<'a> {
    file: &'a Path,
    from: BufReader<File>,
    /// The size of the backup file: no part of it is larger.
    size: u64,
    /// The folder for the files, if files are made.
    to: Option<&'a Path>,
    folders: BTreeSet<PathBuf>,
    /// The files so far, as paths, because a name has several spellings.
    files: BTreeSet<PathBuf>,
    contents: Contents,
}

impl<'a> Unpacking<'a> {
    /// Opens a backup whose files are made in `to`, a folder that is made if it does not exist.
    pub(super) fn open(file: &'a Path, to: Option<&'a Path>) -> Result<Self, ArchiveError> {
        let opened = File::open(file).map_err(failed("cannot read", file))?;
        let size = opened.metadata().map_err(failed("cannot read", file))?.len();
        let from = BufReader::with_capacity(BUFFER_BYTES, opened);
        let mut folders = BTreeSet::new();
        if let Some(to) = to {
            fs::create_dir_all(to).map_err(failed("cannot make", to))?;
            folders.insert(to.to_path_buf());
        }
        Ok(Self { file, from, size, to, folders, files: BTreeSet::new(), contents: Contents::default() })
    }

    pub(super) fn damaged(&self, detail: &str) -> ArchiveError {
        ArchiveError::Damaged { path: self.file.to_path_buf(), detail: detail.to_owned() }
    }

    /// Whether the next bytes are these, at most as many as the buffer has. No byte is consumed.
    pub(super) fn starts_with(&mut self, bytes: &[u8]) -> Result<bool, ArchiveError> {
        Ok(self.from.fill_buf().map_err(failed("cannot read", self.file))?.starts_with(bytes))
    }

    /// The next bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<Vec<u8>, ArchiveError> {
        if length as u64 > self.size {
            return Err(self.damaged("it ends early"));
        }
        let mut bytes = vec![0; length];
        self.from.read_exact(&mut bytes).map_err(|_| self.damaged("it ends early"))?;
        Ok(bytes)
    }

    /// The next bytes, at most 8, as a little-endian number.
    pub(super) fn number(&mut self, length: usize) -> Result<u64, ArchiveError> {
        Ok(self.take(length)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// Makes a file from the next bytes, and adds them to `hash`.
    pub(super) fn unpack(&mut self, name: &str, bytes: u64, hash: &mut Xxh3) -> Result<(), ArchiveError> {
        if !is_ours(name) {
            return Err(self.damaged("it has a file that no data folder has"));
        }
        if bytes > self.size {
            return Err(self.damaged("it ends early"));
        }
        if !self.files.insert(Path::new(name).components().collect()) {
            return Err(self.damaged(&format!("it has {name} twice")));
        }
        match self.to.map(|to| to.join(name)) {
            Some(path) => {
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).map_err(failed("cannot make", parent))?;
                    self.folders.insert(parent.to_path_buf());
                }
                let opened = File::options().write(true).create_new(true).mode(OWNER_ONLY).open(&path);
                let mut out = opened.map_err(failed("cannot write", &path))?;
                let copied = copy(&mut self.from, &mut out, bytes, hash).and_then(|()| out.sync_all());
                copied.map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => self.damaged("it ends early"),
                    _ => failed("cannot write", &path)(error),
                })?;
            }
            None => copy(&mut self.from, &mut io::sink(), bytes, hash).map_err(|_| self.damaged("it ends early"))?,
        }
        self.contents.files += 1;
        self.contents.bytes += bytes;
        Ok(())
    }

    /// Fails if there are more bytes. When it returns, the files are on disk.
    pub(super) fn end(mut self) -> Result<Contents, ArchiveError> {
        if !self.from.fill_buf().map_err(failed("cannot read", self.file))?.is_empty() {
            return Err(self.damaged("something follows its end"));
        }
        for folder in self.folders {
            File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed("cannot write", &folder))?;
        }
        Ok(self.contents)
    }
}

/// Copies exactly `length` bytes, and adds them to `hash`.
pub(super) fn copy(
    from: &mut impl Read,
    to: &mut (impl Write + ?Sized),
    length: u64,
    hash: &mut Xxh3,
) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(length).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES)];
    let mut left = length;
    while left > 0 {
        let part = &mut buffer[..usize::try_from(left).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES)];
        from.read_exact(part)?;
        hash.update(part);
        to.write_all(part)?;
        left -= part.len() as u64;
    }
    Ok(())
}

/// Whether a data folder has files of this name: a file from outside must not be able to write anywhere else.
pub(super) fn is_ours(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_first_ours = match parts.next() {
        Some(Component::Normal(first)) if first == catalog::FILE_NAME || first == SECRETS => {
            return parts.next().is_none();
        }
        Some(Component::Normal(first)) => [CHECKPOINTS, LOG, MQTT].iter().any(|ours| first == *ours),
        _ => false,
    };
    let rest: Vec<Component<'_>> = parts.collect();
    is_first_ours && !rest.is_empty() && rest.iter().all(|part| matches!(part, Component::Normal(_)))
}
