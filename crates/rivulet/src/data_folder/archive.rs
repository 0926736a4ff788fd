//! A data folder as one file, for `rivulet backup` and `rivulet restore`.
//!
//! ```text
//! mark (8 bytes) | of each file: length of its name (2), name, length (8), bytes, checksum (8) | 0 (2), number of files (8)
//! ```
//!
//! Numbers are little-endian, checksums XXH3 with 64 bits over name and bytes. Files come and go through a buffer, whatever their size.
//!
//! What must hold: a backup is there as a whole under its name or not at all, and so is what is restored of it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::{CHECKPOINTS, LOG};
use crate::catalog::{self, Catalog, CatalogError};

const MARK: &[u8; 8] = b"RVBACK01";

/// The longest name in an archive, in bytes.
const NAME_BYTES_MAX: usize = 512;

const BUFFER_BYTES: usize = 1 << 20;

/// Why a folder could not be made a file, or a file a folder.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The catalog cannot be used, for example because a server does.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// There is no data in the folder.
    #[error("there is no catalog in {}", .0.display())]
    NoData(PathBuf),
    /// The system refuses.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// The folder has something in it already.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The file is no backup, or not a whole one.
    #[error("{} is not a whole backup: {detail}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it shows.
        detail: String,
    },
}

impl ArchiveError {
    /// What to do about it, in one sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::Catalog(CatalogError::Locked { .. }) => "stop the server first, or make the backup of a copy".into(),
            Self::Catalog(error) => error.hint(),
            Self::NoData(_) => "name the data folder of a server with --data-dir".into(),
            Self::Io { .. } => "make room on the disk, or name a place that can be written".into(),
            Self::NotEmpty(_) => "restore into a new folder, and start the server with that".into(),
            Self::Damaged { .. } => "use another backup; nothing was restored".into(),
        }
    }
}

/// What an archive has in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

fn failed<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> ArchiveError + 'a {
    move |source| ArchiveError::Io { what: format!("{what} {}", path.display()), source }
}

/// Writes the data of a folder, with checkpoints that may be elsewhere, to a new file.
///
/// # Errors
/// A server that runs on the folder, and whatever the system says. There is no file then.
pub fn back_up(folder: &Path, checkpoints: &Path, file: &Path) -> Result<Contents, ArchiveError> {
    if !folder.join(catalog::FILE_NAME).is_file() {
        return Err(ArchiveError::NoData(folder.to_path_buf()));
    }
    // That it can be opened shows that it is whole. Closed again, it is a file like any other; held, no server begins to write to it.
    drop(Catalog::open(folder)?);
    let catalog = folder.join(catalog::FILE_NAME);
    let held = File::open(&catalog).map_err(failed("cannot read", &catalog))?;
    held.try_lock().map_err(|_| CatalogError::Locked { folder: folder.to_path_buf() })?;
    let mut files = vec![(catalog::FILE_NAME.to_owned(), catalog)];
    for (name, path) in [(CHECKPOINTS, checkpoints.to_path_buf()), (LOG, folder.join(LOG))] {
        files_below(name, &path, &mut files).map_err(failed("cannot read", &path))?;
    }
    let partial = with_ending(file, "partial");
    let written = write_all(&files, &partial).and_then(|contents| {
        fs::rename(&partial, file).and_then(|()| sync_parent(file)).map_err(failed("cannot write", file))?;
        Ok(contents)
    });
    if written.is_err() {
        // What is half there is of no use.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// The regular files below a folder, with names that begin with `name`. One that is not there has none.
fn files_below(name: &str, folder: &Path, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut entries: Vec<_> = entries.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let Ok(own) = entry.file_name().into_string() else { continue };
        let name = format!("{name}/{own}");
        match entry.file_type()? {
            kind if kind.is_dir() => files_below(&name, &entry.path(), files)?,
            kind if kind.is_file() => files.push((name, entry.path())),
            _ => {}
        }
    }
    Ok(())
}

fn write_all(files: &[(String, PathBuf)], to: &Path) -> Result<Contents, ArchiveError> {
    let created = OpenOptions::new().write(true).create(true).truncate(true).open(to);
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, created.map_err(failed("cannot write", to))?);
    let mut contents = Contents::default();
    out.write_all(MARK).map_err(failed("cannot write", to))?;
    for (name, path) in files {
        let mut from = File::open(path).map_err(failed("cannot read", path))?;
        let length = from.metadata().map_err(failed("cannot read", path))?.len();
        let mut head = (name.len() as u16).to_le_bytes().to_vec();
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(&length.to_le_bytes());
        out.write_all(&head).map_err(failed("cannot write", to))?;
        let checksum = copy(&mut from, &mut out, length, name)
            .map_err(|source| ArchiveError::Io { what: format!("cannot copy {}", path.display()), source })?;
        out.write_all(&checksum.to_le_bytes()).map_err(failed("cannot write", to))?;
        contents.files += 1;
        contents.bytes += length;
    }
    let end = [&0_u16.to_le_bytes()[..], &contents.files.to_le_bytes()[..]].concat();
    out.write_all(&end).map_err(failed("cannot write", to))?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error).map_err(failed("cannot write", to))?;
    file.sync_all().map_err(failed("cannot write", to))?;
    Ok(contents)
}

/// Copies exactly `length` bytes; returns the checksum of `name` and these.
fn copy(from: &mut impl Read, to: &mut impl Write, length: u64, name: &str) -> io::Result<u64> {
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

/// Makes a data folder of a file that [`back_up`] wrote. The folder must not be there, or be empty.
///
/// # Errors
/// A file that is no whole backup, a folder with something in it, and whatever the system says. The folder is as it was then.
pub fn restore(file: &Path, folder: &Path) -> Result<Contents, ArchiveError> {
    match fs::read_dir(folder) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(ArchiveError::NotEmpty(folder.to_path_buf()));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("cannot read", folder)(error)),
    }
    let partial = with_ending(folder, "partial");
    if fs::exists(&partial).map_err(failed("cannot read", &partial))? {
        return Err(ArchiveError::NotEmpty(partial));
    }
    let restored = read_all(file, &partial).and_then(|contents| {
        // An empty folder gives way to one with everything in it.
        fs::rename(&partial, folder).and_then(|()| sync_parent(folder)).map_err(failed("cannot make", folder))?;
        Ok(contents)
    });
    if restored.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    restored
}

fn read_all(file: &Path, to: &Path) -> Result<Contents, ArchiveError> {
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
    let (mut contents, mut folders) = (Contents::default(), BTreeSet::from([to.to_path_buf()]));
    fs::create_dir_all(to).map_err(failed("cannot make", to))?;
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
        let path = to.join(&name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed("cannot make", parent))?;
            folders.insert(parent.to_path_buf());
        }
        let mut out = File::create_new(&path).map_err(failed("cannot write", &path))?;
        let checksum = copy(&mut from, &mut out, bytes, &name).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it ends early"),
            _ => failed("cannot write", &path)(error),
        })?;
        from.read_exact(&mut number).map_err(ends_early)?;
        if u64::from_le_bytes(number) != checksum {
            return Err(damaged(&format!("the checksum of {name} is wrong")));
        }
        out.sync_all().map_err(failed("cannot write", &path))?;
        contents.files += 1;
        contents.bytes += bytes;
    }
    for folder in folders {
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed("cannot write", &folder))?;
    }
    Ok(contents)
}

/// Whether a data folder has files of this name: a file from outside must not be able to write anywhere else.
fn is_ours(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_first_ours = match parts.next() {
        Some(Component::Normal(first)) if first == catalog::FILE_NAME => return parts.next().is_none(),
        Some(Component::Normal(first)) => first == CHECKPOINTS || first == LOG,
        _ => false,
    };
    let rest: Vec<Component<'_>> = parts.collect();
    is_first_ours && !rest.is_empty() && rest.iter().all(|part| matches!(part, Component::Normal(_)))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(folder: &Path) {
        drop(Catalog::open(folder).unwrap());
        fs::create_dir_all(folder.join("checkpoints/applications")).unwrap();
        fs::write(folder.join("checkpoints/applications/1.pack"), b"state").unwrap();
        fs::write(folder.join("spill.tmp"), b"not of interest").unwrap();
    }

    #[test]
    fn a_folder_comes_back_as_it_was_and_nothing_is_overwritten() {
        let place = tempfile::tempdir().unwrap();
        let (folder, file, copy) = (place.path().join("data"), place.path().join("backup"), place.path().join("copy"));
        data(&folder);
        let written = back_up(&folder, &folder.join(CHECKPOINTS), &file).unwrap();
        assert_eq!(written.files, 2);
        assert_eq!(restore(&file, &copy).unwrap(), written);
        assert_eq!(fs::read(copy.join("checkpoints/applications/1.pack")).unwrap(), b"state");
        assert_eq!(fs::read(copy.join("catalog.redb")).unwrap(), fs::read(folder.join("catalog.redb")).unwrap());
        assert!(matches!(restore(&file, &copy), Err(ArchiveError::NotEmpty(_))));
        assert!(matches!(back_up(place.path(), place.path(), &file), Err(ArchiveError::NoData(_))));
        let _server = Catalog::open(&folder).unwrap();
        let error = back_up(&folder, &folder.join(CHECKPOINTS), &place.path().join("other")).unwrap_err();
        assert!(error.hint().contains("stop the server"), "{error}");
        assert!(!place.path().join("other").exists());
    }

    #[test]
    fn a_broken_backup_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let (folder, file, copy) = (place.path().join("data"), place.path().join("backup"), place.path().join("copy"));
        fs::create_dir_all(folder.join(CHECKPOINTS)).unwrap();
        fs::write(folder.join(catalog::FILE_NAME), b"short").unwrap();
        fs::write(folder.join("checkpoints/one"), b"and another").unwrap();
        let mut files = vec![(catalog::FILE_NAME.to_owned(), folder.join(catalog::FILE_NAME))];
        files_below(CHECKPOINTS, &folder.join(CHECKPOINTS), &mut files).unwrap();
        write_all(&files, &file).unwrap();
        let whole = fs::read(&file).unwrap();
        for place in 0..whole.len() {
            let mut broken = whole.clone();
            broken[place] ^= 0x10;
            fs::write(&file, &broken).unwrap();
            assert!(restore(&file, &copy).is_err(), "byte {place}");
            fs::write(&file, &whole[..place]).unwrap();
            assert!(restore(&file, &copy).is_err(), "cut at {place}");
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
        fs::write(&file, &whole).unwrap();
        assert_eq!(restore(&file, &copy).unwrap(), Contents { files: 2, bytes: 16 });
    }

    #[test]
    fn names_lead_nowhere_else() {
        for name in ["catalog.redb", "checkpoints/applications/1.pack", "log/1"] {
            assert!(is_ours(name), "{name}");
        }
        for name in [
            "../catalog.redb",
            "/etc/passwd",
            "checkpoints/../../x",
            "checkpoints",
            "log/",
            "other/x",
            "catalog.redb/x",
            "",
        ] {
            assert!(!is_ours(name), "{name}");
        }
    }
}
