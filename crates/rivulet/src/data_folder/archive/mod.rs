//! A data folder as one file, for `rivulet backup` and `rivulet restore`: of a server that does not run ([`back_up`]),
//! and of one that does ([`LiveBackup`]). The form of the file: [`format`].
//!
//! What must hold: a backup exists completely under its name or not at all, and so does a restored data folder.

mod error;
mod format;
mod unpack;
mod version_1;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rivulet_storage::log::HeldLog;
use rivulet_storage::{Hold, Place, Store};

use super::home::refusal_of_place;
use super::{BACKUP, CHECKPOINTS, LOG, MQTT, SECRETS, restored};
use crate::catalog::{self, Catalog, CatalogError, OWNER_ONLY};
use crate::service::Backup;
use error::failed;
pub use error::{ArchiveError, Contents};
pub use format::VERSION as FORMAT;
use format::{Origin, Source};
use unpack::BUFFER_BYTES;

/// Writes the data of a folder, with checkpoints that may be elsewhere, to a new file.
///
/// # Errors
/// A server is running on the folder, checkpoints are not at their place, or the system fails. There is no file then.
pub fn back_up(folder: &Path, checkpoints: &Place, file: &Path) -> Result<Contents, ArchiveError> {
    if !folder.join(catalog::FILE_NAME).is_file() {
        return Err(ArchiveError::NoData(folder.to_path_buf()));
    }
    // Opening it checks that it is intact. Closed again, it is a normal file; while this holds its lock, no server can
    // begin to write to it.
    let opened = Catalog::open(folder)?;
    // Without its checkpoints no server would start with the backup.
    if let Some(refused) = refusal_of_place(folder, checkpoints, &opened) {
        return Err(ArchiveError::Checkpoints(refused));
    }
    drop(opened);
    let catalog = folder.join(catalog::FILE_NAME);
    let held = File::open(&catalog).map_err(failed("cannot read", &catalog))?;
    held.try_lock().map_err(|_| CatalogError::Locked { folder: folder.to_path_buf() })?;
    let mut sources = vec![file_source(catalog::FILE_NAME.to_owned(), catalog)?];
    if !matches!(checkpoints, Place::Folder(folder) if !folder.is_dir()) {
        sources.extend(objects(&Arc::new(Store::open(checkpoints)?))?);
    }
    let secrets = folder.join(SECRETS);
    if secrets.is_file() {
        sources.push(file_source(SECRETS.to_owned(), secrets)?);
    }
    for name in [LOG, MQTT] {
        sources.extend(files_of_log(folder, name)?);
    }
    put(file, |out| format::write(&sources, out))
}

/// Writes a backup from elsewhere to a new file, and reads it to its end to check that it is intact.
///
/// # Errors
/// Errors of `receive` or of the system; or the received data is not a complete backup. There is no file then.
pub fn receive<E: From<ArchiveError>>(
    file: &Path,
    receive: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<Contents, E> {
    completed(file, "received", |partial| {
        put(partial, receive)?;
        Ok(format::read(partial, None)?)
    })
}

/// Makes `write` write to a file that gets its name only when it is complete, and on disk.
fn put<T, E: From<ArchiveError>>(file: &Path, write: impl FnOnce(&mut dyn Write) -> Result<T, E>) -> Result<T, E> {
    completed(file, "partial", |partial| write_to(partial, write))
}

/// Gives `file` its name once `make` has made it with another `ending`. Otherwise an earlier file of that name stays.
fn completed<T, E: From<ArchiveError>>(
    file: &Path,
    ending: &str,
    make: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let partial = with_ending(file, ending);
    let made = make(&partial).and_then(|done| {
        fs::rename(&partial, file).and_then(|()| sync_parent(file)).map_err(failed("cannot write", file))?;
        Ok(done)
    });
    if made.is_err() {
        // A partial file is of no use.
        let _ = fs::remove_file(&partial);
    }
    made
}

fn write_to<T, E: From<ArchiveError>>(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<T, E>) -> Result<T, E> {
    // The file has the catalog, with data that only its owner may read. A file that an earlier backup has left may
    // belong to another user.
    let _ = fs::remove_file(path);
    let created = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(path);
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, created.map_err(failed("cannot write", path))?);
    let done = write(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error).map_err(failed("cannot write", path))?;
    file.sync_all().map_err(failed("cannot write", path))?;
    Ok(done)
}

fn file_source(name: String, path: PathBuf) -> Result<Source, ArchiveError> {
    let bytes = fs::metadata(&path).map_err(failed("cannot read", &path))?.len();
    Ok(Source { name, bytes, origin: Origin::File(path) })
}

/// The current objects of a store.
fn objects(store: &Arc<Store>) -> Result<Vec<Source>, ArchiveError> {
    let source = |(name, bytes): (String, u64)| {
        let origin = Origin::Object(store.clone(), name.clone());
        Source { name: format!("{CHECKPOINTS}/{name}"), bytes, origin }
    };
    // A server writes no empty objects; the mark of a folder in a bucket is empty.
    Ok(store.names()?.into_iter().filter(|(_, bytes)| *bytes > 0).map(source).collect())
}

/// The files of a log in this folder of a data folder, which no server has open; none if the folder does not exist.
fn files_of_log(data: &Path, log: &str) -> Result<Vec<Source>, ArchiveError> {
    let folder = &data.join(log);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("cannot read", folder)(error)),
    };
    let mut sources = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed("cannot read", folder))?;
        let is_file = entry.file_type().map_err(failed("cannot read", folder))?.is_file();
        if let (true, Ok(name)) = (is_file, entry.file_name().into_string()) {
            sources.push(file_source(format!("{log}/{name}"), entry.path())?);
        }
    }
    sources.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(sources)
}

/// The data that a backup of a running server needs for itself, in a folder of the data folder: a copy of the catalog,
/// and additional names of the logs' files. Under these names the files stay although the logs delete them meanwhile: a
/// client that receives a backup slowly must not prevent a log from being shortened. The folder is deleted when this is
/// dropped.
pub(crate) struct Copies(PathBuf);

impl Copies {
    /// Makes the folder, without content. What a process has left that ended during a backup is deleted.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn new(data: &Path) -> Result<Self, ArchiveError> {
        Self::forget(data);
        let copies = Self(data.join(BACKUP));
        fs::create_dir(&copies.0).map_err(failed("cannot make", &copies.0))?;
        Ok(copies)
    }

    /// Deletes what a process has left that ended during a backup.
    pub(crate) fn forget(data: &Path) {
        let _ = fs::remove_dir_all(data.join(BACKUP));
    }

    /// The path of the copy of the catalog.
    pub(crate) fn catalog(&self) -> PathBuf {
        self.0.join(catalog::FILE_NAME)
    }

    /// The path of the copy of the secrets, if there are any.
    pub(crate) fn secrets(&self) -> PathBuf {
        self.0.join(SECRETS)
    }

    /// The held files of the log in a folder with this name.
    fn of_log(&self, name: &str, log: &HeldLog) -> Result<Vec<Source>, ArchiveError> {
        let folder = self.0.join(name);
        fs::create_dir(&folder).map_err(failed("cannot make", &folder))?;
        let mut sources = Vec::new();
        for (path, bytes) in log.files() {
            let Some(file) = path.file_name().and_then(|file| file.to_str()) else { continue };
            let copy = folder.join(file);
            // Some file systems allow only one name for each file.
            let copied = fs::hard_link(path, &copy).or_else(|_| fs::copy(path, &copy).map(drop));
            copied.map_err(failed("cannot copy", path))?;
            sources.push(Source { name: format!("{name}/{file}"), bytes: *bytes, origin: Origin::File(copy) });
        }
        Ok(sources)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Everything of a running server at one moment, ready to be written while the server continues. Checkpoints are not
/// deleted as long as this exists; logs are shortened.
pub(crate) struct LiveBackup {
    sources: Vec<Source>,
    /// Notes for the user who asked for it.
    notices: Vec<String>,
    _held: (Copies, Option<Hold>, Arc<()>),
}

impl LiveBackup {
    /// The objects in the store of checkpoints, if there is one, the held files of logs, each with the name of its
    /// folder, and the copies of the catalog and of the secrets. At the end `copies` are deleted and `token` is
    /// released. `notices` are kept with the backup.
    ///
    /// # Errors
    /// Something cannot be read.
    pub(crate) fn new(
        copies: Copies,
        store: Option<(&Arc<Store>, Hold)>,
        logs: &[(&'static str, HeldLog)],
        token: Arc<()>,
        notices: Vec<String>,
    ) -> Result<Self, ArchiveError> {
        let mut sources = Vec::new();
        for (name, log) in logs {
            sources.extend(copies.of_log(name, log)?);
        }
        let (store, hold) = store.unzip();
        sources.extend(store.map_or_else(|| Ok(Vec::new()), objects)?);
        sources.push(file_source(catalog::FILE_NAME.to_owned(), copies.catalog())?);
        if copies.secrets().is_file() {
            sources.push(file_source(SECRETS.to_owned(), copies.secrets())?);
        }
        Ok(Self { sources, notices, _held: (copies, hold, token) })
    }
}

impl Backup for LiveBackup {
    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<(u64, u64)> {
        let Contents { files, bytes } = format::write(&self.sources, out).map_err(io::Error::other)?;
        Ok((files, bytes))
    }
}

/// Makes a data folder from a file that [`back_up`] wrote, and puts the checkpoints at their place, which may be
/// elsewhere. The folder and the place must not exist, or be empty.
///
/// # Errors
/// The file is not a complete backup, the folder or place is not empty, or the system fails. Both are unchanged then.
pub fn restore(file: &Path, folder: &Path, checkpoints: &Place) -> Result<Contents, ArchiveError> {
    restore_changed(file, folder, checkpoints, |_| Ok(()))
}

/// The same with a change, of the folder that it is given, before there is anything that a server would start with.
///
/// # Errors
/// Those of [`restore`] and of the change. Then nothing is left behind.
pub fn restore_changed(
    file: &Path,
    folder: &Path,
    checkpoints: &Place,
    change: impl FnOnce(&Path) -> Result<(), ArchiveError>,
) -> Result<Contents, ArchiveError> {
    // An existing folder stays: it may be a volume, which has a name of its own.
    let partial = match fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            Some(_) => return Err(ArchiveError::NotEmpty(folder.to_path_buf())),
            None => folder.join("restore.partial"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => with_ending(folder, "partial"),
        Err(error) => return Err(failed("cannot read", folder)(error)),
    };
    if fs::exists(&partial).map_err(failed("cannot read", &partial))? {
        return Err(ArchiveError::NotEmpty(partial));
    }
    let inside = inside_of(folder, checkpoints);
    let elsewhere = match &inside {
        Some(_) => None,
        None => {
            let store = Store::open(checkpoints)?;
            if !store.names()?.is_empty() {
                return Err(ArchiveError::PlaceNotEmpty(checkpoints.to_string()));
            }
            Some(store)
        }
    };
    let restored = format::read(file, Some(&partial)).and_then(|contents| {
        change(&partial)?;
        restored::note(&partial).map_err(failed("cannot write to", &partial))?;
        let from = partial.join(CHECKPOINTS);
        match elsewhere {
            Some(store) => move_objects(&from, &store, || move_all(&partial, folder))?,
            None => {
                move_folder(&from, &partial.join(inside.as_deref().unwrap_or(Path::new(CHECKPOINTS))))?;
                move_all(&partial, folder)?;
            }
        }
        Ok(contents)
    });
    if restored.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    restored
}

/// The path of a place within a folder, if it is inside, in whatever way the two are written.
pub fn inside_of(folder: &Path, place: &Place) -> Option<PathBuf> {
    let Place::Folder(place) = place else { return None };
    let absolute = |path: &Path| path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    absolute(place).strip_prefix(absolute(folder)).map(Path::to_path_buf).ok()
}

/// Moves the content of a folder into a store, removes the folder, and calls `finish` for the rest. If that fails, the
/// store is emptied.
fn move_objects(
    folder: &Path,
    store: &Store,
    finish: impl FnOnce() -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    if !folder.is_dir() {
        return finish();
    }
    let names = Store::folder(folder)?.names()?.into_iter().map(|(name, _)| name).collect();
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read(&path).map(Bytes::from).map_err(failed("cannot read", &path))
    };
    store.fill(names, read, || {
        fs::remove_dir_all(folder).map_err(failed("cannot remove", folder))?;
        finish()
    })
}

/// Moves the content of `partial` to `folder`, which does not exist, or is the empty folder around it. After an error
/// it is unchanged.
fn move_all(partial: &Path, folder: &Path) -> Result<(), ArchiveError> {
    if partial.parent() != Some(folder) {
        fs::rename(partial, folder).map_err(failed("cannot make", folder))?;
        return sync_parent(folder).map_err(|error| {
            let _ = fs::rename(folder, partial);
            failed("cannot make", folder)(error)
        });
    }
    let mut moved = Vec::new();
    let done = names_in(partial).and_then(|mut names| {
        // The catalog comes last: without it the folder does not count as a data folder.
        names.sort_by_key(|name| name == catalog::FILE_NAME);
        for name in names {
            let to = folder.join(&name);
            fs::rename(partial.join(&name), &to)?;
            moved.push(to);
        }
        fs::remove_dir(partial)?;
        File::open(folder)?.sync_all()
    });
    done.map_err(|error| {
        for path in moved.iter().rev() {
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        failed("cannot make", folder)(error)
    })
}

fn names_in(folder: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

fn move_folder(from: &Path, to: &Path) -> Result<(), ArchiveError> {
    if from == to || !from.is_dir() {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(failed("cannot make", parent))?;
    }
    fs::rename(from, to).and_then(|()| sync_parent(to)).map_err(failed("cannot make", to))
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
        let written = back_up(&folder, &Place::Folder(folder.join(CHECKPOINTS)), &file).unwrap();
        assert_eq!(written.files, 2);
        assert_eq!(restore(&file, &copy, &Place::Folder(copy.join(CHECKPOINTS))).unwrap(), written);
        assert_eq!(fs::read(copy.join("checkpoints/applications/1.pack")).unwrap(), b"state");
        assert_eq!(fs::read(copy.join("catalog.redb")).unwrap(), fs::read(folder.join("catalog.redb")).unwrap());
        assert!(matches!(
            restore(&file, &copy, &Place::Folder(copy.join(CHECKPOINTS))),
            Err(ArchiveError::NotEmpty(_))
        ));
        assert!(matches!(
            back_up(place.path(), &Place::Folder(place.path().into()), &file),
            Err(ArchiveError::NoData(_))
        ));
        let _server = Catalog::open(&folder).unwrap();
        let error =
            back_up(&folder, &Place::Folder(folder.join(CHECKPOINTS)), &place.path().join("other")).unwrap_err();
        assert!(error.hint().contains("--server"), "{error}");
        assert!(!place.path().join("other").exists());
    }

    #[test]
    fn a_log_is_shortened_while_a_backup_is_written_and_is_in_it_as_it_was() {
        use rivulet_storage::log::{Appended, Log, LogSettings, Record};
        let place = tempfile::tempdir().unwrap();
        let (folder, file, copy) = (place.path().join("data"), place.path().join("backup"), place.path().join("copy"));
        data(&folder);
        let settings = LogSettings { segment_bytes: 1 << 10, ..LogSettings::default() };
        let log = Log::open(&folder.join(MQTT), settings).unwrap().0;
        let append = |records: u64| {
            for _ in 0..records {
                let record =
                    Record { position: 0, arrival_us: 0, client: b"", packet_id: 0, topic: b"", payload: &[7; 500] };
                let Appended::At(position) = log.append(&record, false, |_| true) else { panic!("there is room") };
                assert!(log.wait_durable(position, std::time::Duration::from_secs(60)));
            }
        };
        append(20);
        // As an earlier process may have left it.
        fs::create_dir_all(folder.join(BACKUP).join(MQTT)).unwrap();
        let copies = Copies::new(&folder).unwrap();
        fs::copy(folder.join(catalog::FILE_NAME), copies.catalog()).unwrap();
        let backup = LiveBackup::new(copies, None, &[(MQTT, log.hold())], Arc::default(), Vec::new()).unwrap();
        let before = log.disk_bytes();
        append(1);
        assert!(log.forget_before(20), "nobody holds it");
        assert!(log.disk_bytes() < before / 2);
        let written = put(&file, |out| format::write(&backup.sources, out)).unwrap();
        drop((backup, log));
        assert!(!folder.join(BACKUP).exists());
        assert_eq!(restore(&file, &copy, &Place::Folder(copy.join(CHECKPOINTS))).unwrap(), written);
        let restored = Log::open(&copy.join(MQTT), settings).unwrap().0;
        let mut positions = Vec::new();
        let read = restored.read(0, u64::MAX, &mut |record| {
            positions.push(record.position);
            true
        });
        assert_eq!((read.unwrap().lost, positions), (0, (1..=20).collect()));
    }

    #[test]
    fn a_path_that_is_not_there_has_a_hint_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let [missing, folder] = ["missing", "data"].map(|name| place.path().join(name));
        let error = restore(&missing, &folder, &Place::Folder(folder.join(CHECKPOINTS))).unwrap_err();
        assert!(error.hint().contains("look at the path") && !folder.exists(), "{error}");
        data(&folder);
        let error = back_up(&folder, &Place::Folder(folder.join(CHECKPOINTS)), &missing.join("file")).unwrap_err();
        assert!(error.hint().contains("look at the path"), "{error}");
    }

    #[test]
    fn checkpoints_go_where_they_are_to_be() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let (folder, file) = (path("data"), path("backup"));
        data(&folder);
        fs::write(folder.join("checkpoints/applications/000000000001.manifest"), b"that it is there").unwrap();
        let written = back_up(&folder, &Place::Folder(folder.join(CHECKPOINTS)), &file).unwrap();
        assert_eq!(written.files, 3);
        let read = |folder: &Path| fs::read(folder.join("applications/1.pack")).ok();

        let (copy, elsewhere) = (path("copy"), path("elsewhere"));
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("mine"), b"").unwrap();
        let error = restore(&file, &copy, &Place::Folder(elsewhere.clone())).unwrap_err();
        assert!(
            matches!(error, ArchiveError::PlaceNotEmpty(_)) && error.hint().contains("checkpoint.folder"),
            "{error}"
        );
        assert!(!copy.exists());
        fs::remove_file(elsewhere.join("mine")).unwrap();
        assert_eq!(restore(&file, &copy, &Place::Folder(elsewhere.clone())).unwrap(), written);
        assert_eq!((read(&elsewhere).as_deref(), copy.join(CHECKPOINTS).exists()), (Some(&b"state"[..]), false));
        assert!(elsewhere.join("applications/000000000001.manifest").is_file());
        assert_eq!(back_up(&copy, &Place::Folder(elsewhere), &path("again")).unwrap(), written);

        let (copy, inside) = (path("other"), path("other/saved/here"));
        restore(&file, &copy, &Place::Folder(inside.clone())).unwrap();
        assert_eq!((read(&inside).as_deref(), copy.join(CHECKPOINTS).exists()), (Some(&b"state"[..]), false));

        // A failed restore leaves nothing in either place.
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        let (copy, elsewhere) = (path("third"), path("its checkpoints"));
        assert!(restore(&file, &copy, &Place::Folder(elsewhere.clone())).is_err());
        assert_eq!((copy.exists(), fs::read_dir(&elsewhere).unwrap().count()), (false, 0));
    }

    #[test]
    fn a_folder_that_is_there_is_filled_and_none_is_put_in_its_place() {
        use std::os::unix::fs::MetadataExt;
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        data(&path("data"));
        let written = back_up(&path("data"), &Place::Folder(path("data/checkpoints")), &path("backup")).unwrap();
        let (volume, number) = (path("volume"), || fs::metadata(path("volume")).unwrap().ino());
        fs::create_dir(&volume).unwrap();
        let before = number();
        assert_eq!(restore(&path("backup"), &volume, &Place::Folder(path("volume/in/here"))).unwrap(), written);
        let mut names = names_in(&volume).unwrap();
        names.sort();
        assert_eq!((number(), names), (before, vec!["catalog.redb".into(), "in".into(), "restored".into()]));
        assert_eq!(fs::read(volume.join("in/here/applications/1.pack")).unwrap(), b"state");

        // A failed restore leaves it unchanged.
        fs::remove_dir_all(&volume).unwrap();
        fs::create_dir(&volume).unwrap();
        let whole = fs::read(path("backup")).unwrap();
        fs::write(path("backup"), &whole[..whole.len() - 1]).unwrap();
        assert!(restore(&path("backup"), &volume, &Place::Folder(path("volume/checkpoints"))).is_err());
        assert!(names_in(&volume).unwrap().is_empty());

        // So does one that cannot be moved completely, because another process has put something there meanwhile.
        let partial = volume.join("restore.partial");
        fs::create_dir_all(volume.join("log")).unwrap();
        fs::write(volume.join("log/mine"), b"").unwrap();
        for name in ["checkpoints", "log"] {
            fs::create_dir_all(partial.join(name)).unwrap();
            fs::write(partial.join(name).join("1"), b"").unwrap();
        }
        let error = move_all(&partial, &volume).unwrap_err();
        assert!(matches!(error, ArchiveError::Io { .. }) && !volume.join(CHECKPOINTS).exists(), "{error}");
        assert!(volume.join("log/mine").exists());
    }

    #[test]
    fn what_was_put_into_a_store_goes_again_if_the_folder_cannot_be_made() {
        let place = tempfile::tempdir().unwrap();
        let (folder, data) = (place.path().join("checkpoints"), place.path().join("data"));
        fs::create_dir_all(folder.join("applications")).unwrap();
        fs::write(folder.join("applications/000000000001.manifest"), b"that it is there").unwrap();
        fs::create_dir(&data).unwrap();
        fs::write(data.join("mine"), b"").unwrap();
        let store = Store::in_memory().unwrap();
        let seen = std::cell::Cell::new(0);
        let done = move_objects(&folder, &store, || {
            seen.set(store.names()?.len());
            move_all(&place.path().join("data.partial"), &data)
        });
        assert!(matches!(done, Err(ArchiveError::Io { .. })));
        assert_eq!((seen.get(), store.names().unwrap().len(), data.join("mine").exists()), (1, 0, true));
    }

    #[test]
    fn a_place_is_inside_however_it_is_written() {
        let here = std::env::current_dir().unwrap();
        let inside = |folder: &Path, place: PathBuf| inside_of(folder, &Place::Folder(place));
        for folder in ["data".into(), "./data/".into(), here.join("data")] {
            let folder: PathBuf = folder;
            for place in ["data/a/b".into(), "./data//a/b".into(), here.join("data/./a/b")] {
                assert_eq!(inside(&folder, place).as_deref(), Some(Path::new("a/b")));
            }
            assert_eq!(inside(&folder, here.join("database")), None);
        }
    }

    #[test]
    fn a_broken_backup_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let (folder, file, copy) = (place.path().join("data"), place.path().join("backup"), place.path().join("copy"));
        fs::create_dir_all(folder.join(CHECKPOINTS)).unwrap();
        fs::write(folder.join(catalog::FILE_NAME), b"short").unwrap();
        fs::write(folder.join("checkpoints/one"), b"and another").unwrap();
        let mut sources = vec![file_source(catalog::FILE_NAME.into(), folder.join(catalog::FILE_NAME)).unwrap()];
        sources.extend(objects(&Arc::new(Store::folder(&folder.join(CHECKPOINTS)).unwrap())).unwrap());
        put(&file, |out| format::write(&sources, out)).unwrap();
        let whole = fs::read(&file).unwrap();
        let not_restored = |bytes: &[u8], what: &str| {
            fs::write(&file, bytes).unwrap();
            assert!(format::read(&file, None).is_err(), "{what}");
        };
        for place in 0..whole.len() {
            let mut broken = whole.clone();
            broken[place] ^= 1 << (place % 8);
            not_restored(&broken, &format!("byte {place}"));
            not_restored(&whole[..place], &format!("cut at {place}"));
        }
        not_restored(&[&whole[..], b"\0"].concat(), "longer");
        not_restored(&[&whole[..], &whole].concat(), "twice");
        for cut in (0..whole.len()).step_by(500) {
            fs::write(&file, &whole[..cut]).unwrap();
            assert!(restore(&file, &copy, &Place::Folder(copy.join(CHECKPOINTS))).is_err(), "cut at {cut}");
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
        fs::write(&file, &whole).unwrap();
        assert_eq!(
            restore(&file, &copy, &Place::Folder(copy.join(CHECKPOINTS))).unwrap(),
            Contents { files: 2, bytes: 16 }
        );
    }

    #[test]
    fn a_backup_with_a_file_twice_is_none() {
        let place = tempfile::tempdir().unwrap();
        let (folder, file, copy) = (place.path().join("data"), place.path().join("backup"), place.path().join("copy"));
        data(&folder);
        let source = |name: &str| file_source(name.to_owned(), folder.join(catalog::FILE_NAME)).unwrap();
        let sources = [source(catalog::FILE_NAME), source("log/1"), source("log/1")];
        put(&file, |out| format::write(&sources, out)).unwrap();
        let restored = restore(&file, &copy, &Place::Folder(copy.join(CHECKPOINTS))).map(drop);
        for refused in [format::read(&file, None).map(drop), restored] {
            let Err(ArchiveError::Damaged { detail, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(detail, "it has log/1 twice");
        }
        assert!(!copy.exists());
    }

    #[test]
    fn what_is_received_is_whole_or_not_there() {
        let place = tempfile::tempdir().unwrap();
        let (folder, file, copy) = (place.path().join("data"), place.path().join("backup"), place.path().join("copy"));
        data(&folder);
        let written = back_up(&folder, &Place::Folder(folder.join(CHECKPOINTS)), &file).unwrap();
        let whole = fs::read(&file).unwrap();
        let received = |file: &Path, bytes: &[u8]| {
            receive(file, |out| out.write_all(bytes).map_err(failed("cannot write", Path::new("copy"))))
        };
        assert_eq!(received(&copy, &whole).unwrap(), written);
        let half = place.path().join("half");
        for file in [&half, &copy] {
            assert!(matches!(received(file, &whole[..whole.len() - 1]), Err(ArchiveError::Damaged { .. })));
        }
        assert!(!half.exists());
        assert_eq!(fs::read(&copy).unwrap(), whole, "the one before stays");
    }

    #[test]
    fn a_backup_is_a_tar() {
        let place = tempfile::tempdir().unwrap();
        let (folder, file, copy) = (place.path().join("data"), place.path().join("backup"), place.path().join("copy"));
        data(&folder);
        let long = format!("checkpoints/{}/{}", "a".repeat(90), "b".repeat(90));
        fs::create_dir_all(folder.join(&long).parent().unwrap()).unwrap();
        fs::write(folder.join(&long), vec![7; 512]).unwrap();
        let written = back_up(&folder, &Place::Folder(folder.join(CHECKPOINTS)), &file).unwrap();
        fs::create_dir(&copy).unwrap();
        let tar = std::process::Command::new("tar").current_dir(&copy).arg("-xf").arg(&file).output().unwrap();
        assert!(tar.status.success(), "{tar:?}");
        let manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(copy.join("manifest.json")).unwrap()).unwrap();
        let files = manifest["files"].as_array().unwrap();
        assert_eq!(files.len() as u64, written.files);
        for entry in files {
            let name = entry["name"].as_str().unwrap();
            let bytes = fs::read(copy.join(name)).unwrap();
            assert_eq!(bytes, fs::read(folder.join(name)).unwrap());
            assert_eq!(entry["bytes"], bytes.len());
            let checksum = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes));
            assert_eq!(entry["xxh3"], checksum);
        }
        assert!(files.iter().any(|entry| entry["name"] == *long));
    }

    #[test]
    fn a_backup_of_a_later_version_is_named() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("backup");
        data(&place.path().join("data"));
        back_up(&place.path().join("data"), &Place::Folder(place.path().join("data/checkpoints")), &file).unwrap();
        let mut bytes = fs::read(&file).unwrap();
        let at = bytes.windows(13).position(|part| part == br#"{"version":2}"#).unwrap();
        bytes[at + 11] = b'4';
        fs::write(&file, bytes).unwrap();
        let error = format::read(&file, None).unwrap_err();
        assert!(matches!(error, ArchiveError::LaterVersion { found: 4, .. }), "{error}");
        assert!(error.to_string().contains("formats up to 3"), "{error}");
    }

    #[test]
    fn names_lead_nowhere_else() {
        for name in ["catalog.redb", "checkpoints/applications/1.pack", "log/1", "mqtt/1", "secrets"] {
            assert!(unpack::is_ours(name), "{name}");
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
            assert!(!unpack::is_ours(name), "{name}");
        }
    }
}
