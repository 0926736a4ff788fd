//! The files that statements name: the one way to them for connectors, formats and tables.
//!
//! A statement on the command line has the rights of its user ([`Files::of_user`]). One that comes over the network
//! reads and writes regular files below folders that the configuration allows, and never data of the server
//! ([`Files::below`]). Without either nothing is allowed.
//!
//! What must hold: links are resolved before it is decided whether a file is allowed, and what was opened is looked at
//! once more, because a name may mean something else by then. Opening never waits for the other end of a pipe.

use std::fmt;
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The files that statements may name. By default none.
#[derive(Clone, Debug, Default)]
pub struct Files(Rights);

/// Says whether files may grow: what they take is bounded.
pub trait Room: fmt::Debug + Send + Sync {
    /// Has files take so many more bytes.
    ///
    /// # Errors
    /// They may not: [`io::ErrorKind::QuotaExceeded`], with a hint that says what to do.
    fn take(&self, bytes: u64) -> io::Result<()>;
}

#[derive(Clone, Debug, Default)]
enum Rights {
    #[default]
    None,
    OfUser,
    Below(Arc<Bounds>),
}

/// Folders, absolute and without links.
#[derive(Debug)]
struct Bounds {
    /// At least one. Relative paths begin in the first.
    allowed: Vec<PathBuf>,
    /// Files and folders of the server, which are never allowed.
    kept: Vec<PathBuf>,
    /// A folder that is allowed though a folder above it is in `kept`.
    exchange: PathBuf,
    /// What is asked before a file grows.
    room: Option<Arc<dyn Room>>,
}

impl Files {
    /// All files that the user of this process may read and write.
    pub fn of_user() -> Self {
        Self(Rights::OfUser)
    }

    /// Files below the folders `allowed`, and by default below `exchange` alone. Relative paths begin in the first
    /// folder. What is below `kept` is never allowed, unless it is below `exchange`. `room` is asked before files grow.
    ///
    /// # Errors
    /// The path of a folder cannot be resolved.
    pub fn below(
        allowed: &[PathBuf],
        kept: &[PathBuf],
        exchange: &Path,
        room: Option<Arc<dyn Room>>,
    ) -> io::Result<Self> {
        let exchange = resolved(exchange)?;
        let mut allowed = allowed.iter().map(|folder| resolved(folder)).collect::<io::Result<Vec<_>>>()?;
        if allowed.is_empty() {
            allowed.push(exchange.clone());
        }
        let kept = kept.iter().map(|path| resolved(path)).collect::<io::Result<Vec<_>>>()?;
        Ok(Self(Rights::Below(Arc::new(Bounds { allowed, kept, exchange, room }))))
    }

    /// The path of the file or folder that is meant, whether it exists or not: absolute, or as it was written where the
    /// rights are those of the user. Links in it stay.
    ///
    /// # Errors
    /// It is not allowed; or a folder above it cannot be read.
    pub fn locate(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        match &self.0 {
            Rights::None => Err(nothing_allowed(path)),
            Rights::OfUser => Ok(path.to_owned()),
            Rights::Below(bounds) => bounds.resolve(path).map(|_| bounds.allowed[0].join(path)),
        }
    }

    /// The path without links of a file that others open by its name: it is there, and is a regular file.
    ///
    /// # Errors
    /// As with [`Files::locate`] and [`Files::open`].
    pub fn locate_file(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        match &self.0 {
            Rights::Below(bounds) => {
                bounds.open(OpenOptions::new().read(true), path)?;
                bounds.resolve(path)
            }
            _ => self.locate(path),
        }
    }

    /// The path of an entry of a folder that was located.
    ///
    /// # Errors
    /// As with [`Files::locate`].
    pub fn entry(&self, entry: &DirEntry) -> io::Result<PathBuf> {
        // A file is where its folder is, and is checked when it is opened; there may be many.
        match entry.file_type()?.is_file() {
            true => Ok(entry.path()),
            false => self.locate(entry.path()),
        }
    }

    /// Opens a file to be read.
    ///
    /// # Errors
    /// It is not allowed, or no regular file; or what the system says.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_with(OpenOptions::new().read(true), path)
    }

    /// Opens a file as `options` say.
    ///
    /// # Errors
    /// As with [`Files::open`].
    pub fn open_with(&self, options: &mut OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        match &self.0 {
            Rights::OfUser => options.open(path),
            Rights::None => Err(nothing_allowed(path)),
            Rights::Below(bounds) => bounds.open(options, path),
        }
    }

    /// The content of a file, which may have at most `bytes_max` bytes.
    ///
    /// # Errors
    /// As with [`Files::open`]; [`io::ErrorKind::FileTooLarge`] if it has more bytes.
    pub fn read(&self, path: impl AsRef<Path>, bytes_max: u64) -> io::Result<Vec<u8>> {
        let path = path.as_ref();
        // A user's pipe is not read either, because it may have no end.
        if !fs::metadata(self.locate(path)?)?.is_file() {
            return Err(no_file(path));
        }
        let mut bytes = Vec::new();
        self.open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > bytes_max {
            true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes"))),
            false => Ok(bytes),
        }
    }

    /// Makes a folder, with those above it.
    ///
    /// # Errors
    /// It is not allowed, or what the system says.
    pub fn make_folder(&self, path: impl AsRef<Path>) -> io::Result<()> {
        fs::create_dir_all(self.locate(path)?)
    }

    /// Asks whether files may take so many more bytes, before they are written.
    ///
    /// # Errors
    /// [`Room::take`].
    pub fn take_room(&self, bytes: u64) -> io::Result<()> {
        match &self.0 {
            Rights::Below(bounds) => bounds.room.as_ref().map_or(Ok(()), |room| room.take(bytes)),
            _ => Ok(()),
        }
    }

    /// Renames a file, replacing the file that has the new name.
    ///
    /// # Errors
    /// One of them is not allowed, or what the system says.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        fs::rename(self.locate_name(from)?, self.locate_name(to)?)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// It is not allowed, or what the system says.
    pub fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        fs::remove_file(self.locate_name(path)?)
    }

    /// A name in its folder. Renaming and removing affect the name itself, not the target of a link with this name.
    fn locate_name(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        match (&self.0, path.parent(), path.file_name()) {
            (Rights::Below(bounds), Some(folder), Some(name)) => {
                bounds.check(&bounds.resolve(folder)?.join(name), path)
            }
            _ => self.locate(path),
        }
    }
}

impl Bounds {
    /// The path without links, whether it exists or not.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        // An absolute path replaces the folder.
        let from_first = self.allowed[0].join(path);
        match resolved(&from_first) {
            Ok(real) => self.check(&real, path),
            // The error does not reveal whether a path outside exists.
            Err(_) if path.components().any(|part| part == Component::ParentDir) => Err(self.outside(path)),
            Err(error) => self.check(&from_first, path).and(Err(error)),
        }
    }

    /// Refuses a path, absolute and without links, that is not allowed; `given` is what the statement says.
    fn check(&self, real: &Path, given: &Path) -> io::Result<PathBuf> {
        let is_kept = |kept: &PathBuf| {
            real.starts_with(kept) && !(self.exchange.starts_with(kept) && real.starts_with(&self.exchange))
        };
        if self.kept.iter().any(is_kept) {
            return Err(refused(given, "it belongs to the server itself", "choose another folder"));
        }
        match self.allowed.iter().any(|folder| real.starts_with(folder)) {
            true => Ok(real.to_owned()),
            false => Err(self.outside(given)),
        }
    }

    fn outside(&self, given: &Path) -> io::Error {
        let folders: Vec<String> = self.allowed.iter().map(|folder| folder.display().to_string()).collect();
        let hint = format!(
            "put the file below {}, where relative paths begin, or have files.allow in the configuration of the \
             server name its folder",
            folders.join(" or ")
        );
        refused(given, "it is outside of the folders that the server allows", &hint)
    }

    fn open(&self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        let real = self.resolve(path)?;
        // Opening some devices has effects, so they are recognised before, if possible.
        if let Ok(metadata) = fs::symlink_metadata(&real)
            && !metadata.is_file()
        {
            return Err(no_file(path));
        }
        let (Some(folder), Some(name)) = (real.parent(), real.file_name()) else { return Err(no_file(path)) };
        let file = by_folder::open(options, folder, name, &|opened| self.check(opened, path).map(drop))?;
        if !file.metadata()?.is_file() {
            return Err(no_file(path));
        }
        Ok(file)
    }
}

/// Opens files through a handle of their folder, so that a folder that was checked cannot be replaced by a link.
#[cfg(target_os = "linux")]
mod by_folder {
    use std::ffi::OsStr;
    use std::fs::{self, File, OpenOptions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};

    use nix::libc;

    /// Opens the file `name` in `folder` once `check` has agreed with where the folder and the file really are.
    pub(super) fn open(
        options: &mut OpenOptions,
        folder: &Path,
        name: &OsStr,
        check: &dyn Fn(&Path) -> io::Result<()>,
    ) -> io::Result<File> {
        let folder = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(folder)?;
        check(&fs::read_link(in_proc(&folder))?.join(name))?;
        // A link of this name is not followed: the path was free of links.
        let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(in_proc(&folder).join(name))?;
        check(&fs::read_link(in_proc(&file))?)?;
        Ok(file)
    }

    fn in_proc(file: &File) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }
}

/// On other systems a file is only checked before it is opened.
#[cfg(not(target_os = "linux"))]
mod by_folder {
    use std::ffi::OsStr;
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    use nix::libc;

    pub(super) fn open(
        options: &mut OpenOptions,
        folder: &Path,
        name: &OsStr,
        _check: &dyn Fn(&Path) -> io::Result<()>,
    ) -> io::Result<File> {
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(folder.join(name))
    }
}

/// A path as the system has it, absolute and without links. A missing file is resolved to where it would be created.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match (path.parent(), path.file_name()) {
            // A link to nothing is resolved to its target. Circles are another error, so this ends.
            (Some(folder), Some(_)) if path.is_symlink() => resolved(&folder.join(fs::read_link(&path)?)),
            (Some(folder), Some(name)) => Ok(resolved(folder)?.join(name)),
            _ => Err(error),
        },
        other => other,
    }
}

/// The hint stands behind the message, as in all texts of errors.
fn refused(path: &Path, why: &str, hint: &str) -> io::Error {
    let message = format!("{} may not be used: {why}\nhint: {hint}", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

fn nothing_allowed(path: &Path) -> io::Error {
    refused(path, "statements may not name files here", "run the script with `rivulet run`")
}

fn no_file(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a file", path.display()))
}

/// The words of an error and its hint, if it has one.
pub(crate) fn words(error: &io::Error) -> (String, Option<String>) {
    let text = error.to_string();
    match text.split_once("\nhint: ") {
        Some((problem, hint)) => (problem.to_owned(), Some(hint.to_owned())),
        None => (text, None),
    }
}

/// Whether an error says that a file may not be used, and not what the system says of it.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && words(error).1.is_some()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A server's folder `data` with the folder `files` in it, and a folder `other` beside it that is allowed, too.
    fn folders() -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data/files/deep", "data/log", "other"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        for name in ["data/files/in.csv", "data/log/segment", "other/rows.csv", "secret"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let (data, other) = (folder.path().join("data"), folder.path().join("other"));
        let exchange = data.join("files");
        let files = Files::below(&[exchange.clone(), other.clone()], &[data, other.join("config")], &exchange, None);
        (folder, files.unwrap())
    }

    #[test]
    fn files_are_opened_below_allowed_folders_and_nowhere_else() {
        let (folder, files) = folders();
        let at = |name: &str| folder.path().join(name);
        symlink(at("secret"), at("data/files/link")).unwrap();
        symlink(at("data/log"), at("data/files/log")).unwrap();
        symlink("/", at("other/root")).unwrap();
        symlink(at("made-by-link"), at("other/dangling")).unwrap();
        symlink(at("other/rows.csv"), at("data/files/good-link")).unwrap();
        fs::write(at("other/config"), "secret").unwrap();
        let read = |path: &Path| files.read(path, 100).map(|bytes| String::from_utf8(bytes).unwrap());
        for good in ["in.csv", "deep/../in.csv", "good-link"] {
            assert!(read(Path::new(good)).is_ok(), "{good}");
        }
        assert_eq!(read(&at("other/rows.csv")).unwrap(), "other/rows.csv");
        let outside = [
            at("secret"),
            "../../secret".into(),
            "link".into(),
            at("other/root/etc/passwd"),
            "/etc/passwd".into(),
            "/no/such/file".into(),
            at("other/../secret"),
            at("other/dangling"),
        ];
        let own = [at("data/log/segment"), "log/segment".into(), "../log/segment".into(), at("other/config")];
        for (paths, why) in [(&outside[..], "outside of the folders"), (&own[..], "belongs to the server")] {
            for path in paths {
                let mut create = OpenOptions::new();
                let opened = [files.open(path), files.open_with(create.create(true).append(true), path)];
                for error in opened.map(|opened| opened.map(drop).unwrap_err()) {
                    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{}: {error}", path.display());
                    assert!(error.to_string().contains(why), "{}: {error}", path.display());
                }
                assert!(files.rename("in.csv", path).is_err() || path.ends_with("link"), "{}", path.display());
                assert!(files.make_folder(path.join("new")).is_err(), "{}", path.display());
            }
        }
        let error = files.open_with(OpenOptions::new().write(true).create(true), at("other/dangling")).unwrap_err();
        assert!(!at("made-by-link").exists(), "{error}");
        for path in [at("secret"), at("data/log/segment")] {
            assert!(files.remove(&path).is_err() && path.exists());
        }
        assert!(Files::default().open(at("other/rows.csv")).is_err());
        assert!(Files::of_user().open(at("secret")).is_ok());
    }

    #[test]
    fn what_is_no_file_is_refused_and_nothing_waits_for_it() {
        let (folder, files) = folders();
        let pipe = folder.path().join("other/pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let socket = folder.path().join("other/socket");
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        symlink("/dev/null", folder.path().join("other/null")).unwrap();
        for path in [&pipe, &socket, &folder.path().join("other")] {
            for error in [
                files.open(path).unwrap_err(),
                files.open_with(OpenOptions::new().append(true).create(true), path).unwrap_err(),
                files.locate_file(path).unwrap_err(),
                files.read(path, 10).unwrap_err(),
            ] {
                assert!(error.to_string().contains("is not a file"), "{}: {error}", path.display());
            }
        }
        assert!(files.open("../../other/null").is_err());
        // A pipe that takes the place of a file after it was looked at.
        let opened =
            by_folder::open(OpenOptions::new().read(true), pipe.parent().unwrap(), pipe.file_name().unwrap(), &|_| {
                Ok(())
            });
        assert!(!opened.unwrap().metadata().unwrap().is_file());
        let error = files.read(folder.path().join("other/rows.csv"), 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_was_opened_is_checked_and_not_what_was_meant() {
        let (folder, files) = folders();
        let Rights::Below(bounds) = &files.0 else { unreachable!("they are bounded") };
        // A folder that is replaced by a link after it was resolved.
        symlink(folder.path(), folder.path().join("other/swapped")).unwrap();
        let check = |opened: &Path| bounds.check(opened, Path::new("x")).map(drop);
        let mut create = OpenOptions::new();
        let swapped = folder.path().join("other/swapped");
        let error = by_folder::open(create.write(true).create(true), &swapped, "new".as_ref(), &check).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(!folder.path().join("new").exists(), "nothing was made");
        // A file that is made, written and published.
        let mut file = files.open_with(OpenOptions::new().write(true).create_new(true), "deep/.new").unwrap();
        file.write_all(b"rows").unwrap();
        files.rename("deep/.new", "deep/new").unwrap();
        assert_eq!(files.read("deep/new", 10).unwrap(), b"rows");
    }
}
