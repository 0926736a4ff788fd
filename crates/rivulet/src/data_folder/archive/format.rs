//! The form of an archive.
//!
//! ```text
//! mark (8 bytes) | of each file: length of its name (2), name, length (8), bytes, checksum (8) | 0 (2), number of files (8)
//! ```
//!
//! Numbers are little-endian, checksums XXH3 with 64 bits over name and bytes. Files come and go through a buffer, whatever their size.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};
use std::sync::Arc;

use rivulet_storage::Store;
use xxhash_rust::xxh3::Xxh3;

use super::{ArchiveError, Contents, failed};
use crate::catalog::{self, OWNER_ONLY};
use crate::data_folder::{CHECKPOINTS, LOG, MQTT};

const MARK: &[u8; 8] = b"RVBACK01";

/// The longest name in an archive, in bytes.
const NAME_BYTES_MAX: usize = 512;

const BUFFER_BYTES: usize = 1 << 20;

/// So much of an object is read at once.
const OBJECT_PART_BYTES: u64 = 8 << 20;

/// What is to be a file of an archive.
#[derive(Debug)]
pub(super) struct Source {
    /// Its name in the archive.
    pub(super) name: String,
    /// How many bytes of it count: a file that is written to may have more by now.
    pub(super) bytes: u64,
    pub(super) origin: Origin,
}

/// Where it is now.
#[derive(Debug)]
pub(super) enum Origin {
    File(std::path::PathBuf),
    /// An object of this name.
    Object(Arc<Store>, String),
}

/// Writes an archive.
pub(super) fn write(sources: &[Source], out: &mut dyn Write) -> Result<Contents, ArchiveError> {
    let cannot_write = |source| ArchiveError::Io { what: "cannot write the backup".into(), source };
    let mut contents = Contents::default();
    out.write_all(MARK).map_err(cannot_write)?;
    for Source { name, bytes, origin } in sources {
        let mut head = (name.len() as u16).to_le_bytes().to_vec();
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(&bytes.to_le_bytes());
        out.write_all(&head).map_err(cannot_write)?;
        let checksum = match origin {
            Origin::File(path) => {
                let mut file = File::open(path).map_err(failed("cannot read", path))?;
                copy(&mut file, out, *bytes, name).map_err(failed("cannot copy", path))?
            }
            Origin::Object(store, object) => {
                let mut hash = Xxh3::new();
                hash.update(name.as_bytes());
                let mut at = 0;
                while at < *bytes {
                    let part = store.read(object, at..(at + OBJECT_PART_BYTES).min(*bytes))?;
                    hash.update(&part);
                    out.write_all(&part).map_err(cannot_write)?;
                    at += part.len() as u64;
                }
                hash.digest()
            }
        };
        out.write_all(&checksum.to_le_bytes()).map_err(cannot_write)?;
        contents.files += 1;
        contents.bytes += bytes;
    }
    let end = [&0_u16.to_le_bytes()[..], &contents.files.to_le_bytes()[..]].concat();
    out.write_all(&end).and_then(|()| out.flush()).map_err(cannot_write)?;
    Ok(contents)
}

/// Copies exactly `length` bytes; returns the checksum of `name` and these.
fn copy(from: &mut impl Read, to: &mut (impl Write + ?Sized), length: u64, name: &str) -> io::Result<u64> {
    let mut hash = Xxh3::new();
    hash.update(name.as_bytes());
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut left = length;
    while left > 0 {
        let part = &mut buffer[..usize::try_from(left).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES)];
        from.read_exact(part)?;
        hash.update(part);
        to.write_all(part)?;
        left -= part.len() as u64;
    }
    Ok(hash.digest())
}

/// Reads an archive to its end, and makes its files in a new folder, if there is one.
pub(super) fn read(file: &Path, to: Option<&Path>) -> Result<Contents, ArchiveError> {
    let opened = File::open(file).map_err(failed("cannot read", file))?;
    let size = opened.metadata().map_err(failed("cannot read", file))?.len();
    let mut from = BufReader::with_capacity(BUFFER_BYTES, opened);
    let damaged = |detail: &str| ArchiveError::Damaged { path: file.to_path_buf(), detail: detail.to_owned() };
    let ends_early = |_| damaged("it ends early");
    let mut mark = [0; 8];
    from.read_exact(&mut mark).map_err(ends_early)?;
    if &mark != MARK {
        return Err(damaged("it does not begin as one does"));
    }
    let (mut contents, mut folders) = (Contents::default(), BTreeSet::new());
    if let Some(to) = to {
        fs::create_dir_all(to).map_err(failed("cannot make", to))?;
        folders.insert(to.to_path_buf());
    }
    loop {
        let mut length = [0; 2];
        from.read_exact(&mut length).map_err(ends_early)?;
        let length = usize::from(u16::from_le_bytes(length));
        let mut number = [0; 8];
        if length == 0 {
            from.read_exact(&mut number).map_err(ends_early)?;
            if u64::from_le_bytes(number) != contents.files {
                return Err(damaged("files are missing"));
            }
            if from.read(&mut [0]).map_err(failed("cannot read", file))? > 0 {
                return Err(damaged("something follows its end"));
            }
            break;
        }
        let mut name = vec![0; length.min(NAME_BYTES_MAX)];
        from.read_exact(&mut name).map_err(ends_early)?;
        let name = String::from_utf8(name).ok().filter(|name| length <= NAME_BYTES_MAX && is_ours(name));
        let name = name.ok_or_else(|| damaged("it has a file that no data folder has"))?;
        from.read_exact(&mut number).map_err(ends_early)?;
        let bytes = u64::from_le_bytes(number);
        if bytes > size {
            return Err(damaged("it ends early"));
        }
        let path = to.map(|to| to.join(&name));
        let mut out = match &path {
            Some(path) => {
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).map_err(failed("cannot make", parent))?;
                    folders.insert(parent.to_path_buf());
                }
                Some(
                    File::options()
                        .write(true)
                        .create_new(true)
                        .mode(OWNER_ONLY)
                        .open(path)
                        .map_err(failed("cannot write", path))?,
                )
            }
            None => None,
        };
        let copied = match &mut out {
            Some(out) => copy(&mut from, out, bytes, &name),
            None => copy(&mut from, &mut io::sink(), bytes, &name),
        };
        let checksum = copied.map_err(|error| match (error.kind(), &path) {
            (io::ErrorKind::UnexpectedEof, _) | (_, None) => damaged("it ends early"),
            (_, Some(path)) => failed("cannot write", path)(error),
        })?;
        from.read_exact(&mut number).map_err(ends_early)?;
        if u64::from_le_bytes(number) != checksum {
            return Err(damaged(&format!("the checksum of {name} is wrong")));
        }
        if let (Some(out), Some(path)) = (out, &path) {
            out.sync_all().map_err(failed("cannot write", path))?;
        }
        contents.files += 1;
        contents.bytes += bytes;
    }
    for folder in folders {
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed("cannot write", &folder))?;
    }
    Ok(contents)
}

/// Whether a data folder has files of this name: a file from outside must not be able to write anywhere else.
pub(super) fn is_ours(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_first_ours = match parts.next() {
        Some(Component::Normal(first)) if first == catalog::FILE_NAME => return parts.next().is_none(),
        Some(Component::Normal(first)) => [CHECKPOINTS, LOG, MQTT].iter().any(|ours| first == *ours),
        _ => false,
    };
    let rest: Vec<Component<'_>> = parts.collect();
    is_first_ours && !rest.is_empty() && rest.iter().all(|part| matches!(part, Component::Normal(_)))
}
