//! The catalog: the applications and queries that exist, durable in one file of the data folder.
//!
//! What must hold: **an acknowledged change survives `kill -9` and power loss.** Every change is one transaction, and
//! the call returns after its commit reached the disk. So callers change many queries in one call.
//!
//! Layout (tables of one redb file):
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | text | number: format version, next query id, next application number, next number of a statement, next number of an alteration, identity of the server |
//! | `applications` | name | number, id (hash), bytes of its code, kind of code (before format 7 without, and all `sql`) |
//! | `versions` | application number, number of the version | as in `applications`: a version that was replaced |
//! | `queries` | query id | application number, name, parameter values as written |
//! | `paused` | query id | nothing |
//! | `attendance` | number | position in the log of events, first and last query id, what happened to them there |
//! | `alterations` | number | position in the log of events, query id, value of `queries` before the query was altered |
//! | `tables` | name | SQL text of the reference table; its rows stay in its file |
//! | `statements` | number | SQL text of a statement about big queries |
//! | `paused_statements` | number | nothing |
//! | `failed_statements` | number | the error that ended the big query |
//! | `users` | name | record of the user with its tokens, rights and (from format 10 on) password, as JSON: see `crate::accounts` |
//! | `tenants` | name | nothing |
//! | `quotas` | name of the tenant | its limits, as JSON: see `crate::accounts` |
//! | `places` | text | how often the place has changed, the place; for now only that of the checkpoints |
//!
//! Names of applications, tables and users, and statements, are saved with their tenant in the form of
//! [`Tenant::encode`]; before format 8 all of them belong to the default tenant. A query belongs to the tenant of its
//! application.
//!
//! Query ids are given out here and only grow, so inserts append to the tree: dense pages and little write
//! amplification. Pausing would be an update at a random place, so it is a small table of its own.

mod alterations;
mod copy;
mod error;
mod lifecycle_log;
mod queries;
mod record;
mod storage;
mod tables;
mod users;

use std::borrow::Cow;
use std::fs::Permissions;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use redb::backends::InMemoryBackend;
use redb::{ReadTransaction, ReadableDatabase, ReadableTable, TableHandle, WriteTransaction};
use rivulet_dataflow::QueryId;
use rivulet_operators::application::{Application, text_of};

use crate::service::{FullName, Tenant};

pub use alterations::{Alteration, AlteredQuery, StoredRecords, StoredValues};
pub use copy::Used;
pub use error::CatalogError;
pub use lifecycle_log::{Change, LifecycleEntry};
pub use queries::StoredQuery;
use record::ApplicationRecord;
pub use record::{ApplicationNumber, NewQuery};
pub use storage::FILE_NAME;
use storage::{Failure, Storage, guard};
use tables::{
    APPLICATIONS, EachTable, FAILED_STATEMENTS, META, META_APPLICATION_NUMBER_NEXT, META_FORMAT_VERSION,
    META_SERVER_ID, META_STATEMENT_NEXT, MakeTable, PAUSED, PAUSED_STATEMENTS, PLACES, QUERIES, STATEMENTS, TABLES,
    VERSIONS,
};

/// The place of checkpoints in the table of places.
const PLACE_OF_CHECKPOINTS: &str = "checkpoints";

/// The format written by this version. Raise it with every change that older versions would misread.
const FORMAT_VERSION: u64 = 10;

/// Pages kept in memory. Small: the catalog is scanned once at start and appended to.
const CACHE_BYTES: usize = 4 << 20;

/// The most replaced versions of an application that are kept. State that one of them has saved can be read. A
/// checkpoint is made at each replacement, so more than the last version is needed only if that checkpoint is damaged.
pub(crate) const VERSIONS_MAX: usize = 4;

/// The most characters of an error that are kept.
const FAILURE_CHARACTERS_MAX: usize = 2_000;

/// An application as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredApplication {
    /// Its number.
    pub number: ApplicationNumber,
    /// Its name.
    pub name: FullName,
    /// The hash of the content of its code.
    pub id: String,
    /// The kind of its code, for example `sql`.
    pub kind: String,
    /// The code it was registered with; for `sql` the text.
    pub bytes: Vec<u8>,
}

impl StoredApplication {
    /// The code in a form that users can read.
    pub fn text(&self) -> Cow<'_, str> {
        text_of(&self.kind, &self.bytes)
    }

    fn read(name: FullName, record: &[u8]) -> Result<Self, Failure> {
        let ApplicationRecord { number, id, bytes, kind } = record::read_application(record)?;
        Ok(Self { number, name, id: id.to_owned(), kind: kind.to_owned(), bytes: bytes.to_vec() })
    }
}

/// An application to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewApplication<'a> {
    /// The tenant that it belongs to.
    pub tenant: &'a Tenant,
    /// Its name.
    pub name: &'a str,
    /// The hash of the content of its code.
    pub id: &'a str,
    /// The kind of its code.
    pub kind: &'a str,
    /// Its code.
    pub bytes: &'a [u8],
}

impl<'a> NewApplication<'a> {
    /// An application of the engine.
    pub fn of(tenant: &'a Tenant, application: &'a Application) -> Self {
        let Application { name, id, kind, bytes, .. } = application;
        Self { tenant, name, id, kind, bytes }
    }

    /// An application in SQL, of the default tenant.
    pub fn sql(name: &'a str, id: &'a str, sql: &'a str) -> Self {
        Self { tenant: Tenant::of_operator(), name, id, kind: rivulet_sql::SQL, bytes: sql.as_bytes() }
    }

    fn key(&self) -> Cow<'a, str> {
        self.tenant.encode(self.name)
    }

    fn record(&self, number: ApplicationNumber) -> Vec<u8> {
        let Self { id, kind, bytes, .. } = *self;
        record::write_application(ApplicationRecord { number, id, bytes, kind })
    }
}

/// A statement about big queries as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStatement {
    /// Its number; those of later statements are higher.
    pub number: u64,
    /// The tenant that it belongs to.
    pub tenant: Tenant,
    /// The text as it was written.
    pub sql: String,
    /// Whether it creates a query that is paused.
    pub paused: bool,
    /// The error that has ended the query that it creates.
    pub failure: Option<String>,
}

/// The place of the checkpoints of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPlace {
    /// How often the place has changed: the mark there has the same number, or a higher one.
    pub generation: u64,
    /// Its name in messages.
    pub place: String,
}

/// The open catalog. Reads run in parallel with each other and with a write; writes wait for each other.
#[derive(Debug)]
pub struct Catalog {
    storage: Storage,
    path: PathBuf,
    /// How often something was written since it was opened.
    changes: AtomicU64,
}

/// Makes a file readable for its owner only: statements in it may have passwords and tokens.
pub(crate) fn keep_to_owner(path: &Path) {
    if let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(OWNER_ONLY)) {
        tracing::warn!("others may be able to read {}: {error}", path.display());
    }
}

/// The mode of files that only their owner can read and write.
pub(crate) const OWNER_ONLY: u32 = 0o600;

impl Catalog {
    /// Opens the catalog of a data folder; makes folder and catalog if they do not exist.
    ///
    /// # Errors
    /// Each way in which the file can be unusable is a [`CatalogError`] of its own. Nothing was changed then.
    pub fn open(folder: &Path) -> Result<Self, CatalogError> {
        let folder_error = |source| CatalogError::Folder { folder: folder.to_path_buf(), source };
        std::fs::create_dir_all(folder).map_err(folder_error)?;
        let path = folder.join(FILE_NAME);
        // The mode is read instead of trying to write: the administrator's account could write nevertheless, and an
        // administrator who marks a catalog read-only means it.
        let existed = match std::fs::metadata(&path) {
            Ok(metadata) if metadata.permissions().readonly() => return Err(CatalogError::ReadOnly { path }),
            Ok(metadata) if !metadata.is_file() => {
                return Err(CatalogError::Corrupt { path, detail: "it is not a file".into() });
            }
            // A crash of the file system may leave an empty file. If it were taken for a new catalog, everything would
            // be forgotten.
            Ok(metadata) if metadata.len() == 0 => {
                return Err(CatalogError::Corrupt { path, detail: "it is empty".into() });
            }
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(CatalogError::from_io(&path, error)),
        };
        if !existed && std::fs::metadata(folder).map_err(folder_error)?.permissions().readonly() {
            return Err(CatalogError::ReadOnly { path: folder.to_path_buf() });
        }
        let file = path.clone();
        let open = move || {
            let mut database = redb::Builder::new().set_cache_size(CACHE_BYTES).create(&file)?;
            keep_to_owner(&file);
            // Some damage would remain unnoticed otherwise: a page that seems to have no rows loses queries silently.
            if existed && !database.check_integrity()? {
                tracing::warn!("what the storage library notes about {} had to be put right", file.display());
            }
            Ok(database)
        };
        let catalog = Self::with_storage(path, open)?;
        if !existed {
            // The file's name in its folder must be as durable as its content.
            std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(folder_error)?;
        }
        Ok(catalog)
    }

    /// Whether a folder has a catalog, in whatever condition.
    pub fn is_there(folder: &Path) -> bool {
        folder.join(FILE_NAME).exists()
    }

    /// A catalog in memory, for runs that leave no data.
    ///
    /// # Errors
    /// None that memory could cause, but the same type as [`Catalog::open`].
    pub fn in_memory() -> Result<Self, CatalogError> {
        let memory = || {
            let mut builder = redb::Builder::new();
            Ok(builder.set_cache_size(CACHE_BYTES).create_with_backend(InMemoryBackend::new())?)
        };
        Self::with_storage(PathBuf::from("(memory)"), memory)
    }

    /// A catalog in a file that is not on this machine, for simulations. `open` opens it, and is called again after a
    /// failed write.
    ///
    /// # Errors
    /// As [`Catalog::open`] has.
    pub fn on<B: redb::StorageBackend>(
        path: PathBuf,
        open: impl Fn() -> io::Result<B> + Send + Sync + 'static,
    ) -> Result<Self, CatalogError> {
        Self::with_storage(path, move || {
            Ok(redb::Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(open()?)?)
        })
    }

    /// A catalog in the storage that `open` opens. `open` is called again after a failed write.
    fn with_storage(
        path: PathBuf,
        open: impl Fn() -> Result<redb::Database, redb::Error> + Send + Sync + 'static,
    ) -> Result<Self, CatalogError> {
        let storage = Storage::open(open).map_err(|failure| failure.into_error(&path))?;
        let catalog = Self { storage, path, changes: AtomicU64::new(0) };
        catalog.prepare()?;
        Ok(catalog)
    }

    /// The catalog's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How often it was changed since it was opened: as long as this number stays, so does the content.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Distinguishes this server from others, for as long as the catalog exists. A copy of the catalog has the same id.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn server_id(&self) -> Result<u64, CatalogError> {
        self.look(|transaction| {
            let id = transaction.open_table(META)?.get(META_SERVER_ID)?.map(|id| id.value());
            id.ok_or_else(|| Failure::Damage("it does not say which server it belongs to".into()))
        })
    }

    /// The place of its checkpoints when a server last ran on it; `None` if there were none, or if a version ran that
    /// did not record it.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn checkpoint_place(&self) -> Result<Option<CheckpointPlace>, CatalogError> {
        self.look(|transaction| {
            let place = transaction.open_table(PLACES)?.get(PLACE_OF_CHECKPOINTS)?;
            Ok(place.map(|place| {
                let (generation, place) = place.value();
                CheckpointPlace { generation, place: place.to_owned() }
            }))
        })
    }

    /// Records the place of its checkpoints.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn set_checkpoint_place(&self, place: &CheckpointPlace) -> Result<(), CatalogError> {
        self.write(|transaction| {
            let mut places = transaction.open_table(PLACES)?;
            places.insert(PLACE_OF_CHECKPOINTS, (place.generation, place.place.as_str()))?;
            Ok(())
        })
    }

    /// Fails if the disk prevented the last change from being written.
    ///
    /// # Errors
    /// Nothing is written now; the next change tries again.
    pub fn check_writable(&self) -> Result<(), CatalogError> {
        match self.storage.has_failed() {
            true => Err(Failure::Storage(redb::Error::PreviousIo).into_error(&self.path)),
            false => Ok(()),
        }
    }

    /// Tries whether a write succeeds after the last one failed.
    ///
    /// # Errors
    /// It still fails.
    pub fn try_to_write(&self) -> Result<(), CatalogError> {
        self.prepare()
    }

    /// Every application, by tenant and name.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn applications(&self) -> Result<Vec<StoredApplication>, CatalogError> {
        self.look(|transaction| {
            let table = transaction.open_table(APPLICATIONS)?;
            let mut applications = Vec::new();
            for entry in table.iter()? {
                let (name, value) = entry?;
                applications.push(StoredApplication::read(full_name(name.value())?, value.value())?);
            }
            Ok(applications)
        })
    }

    /// Stores an application under a name that is free (the caller has checked) and returns its number.
    ///
    /// # Errors
    /// Disk errors, and damage; the application is not stored then.
    pub fn insert_application(&self, application: NewApplication<'_>) -> Result<ApplicationNumber, CatalogError> {
        self.insert_applications(&[application])
    }

    /// Stores applications, all or none, in one transaction. Returns the number of the first; the others follow.
    ///
    /// # Errors
    /// Disk errors, and damage; none is stored then.
    pub fn insert_applications(&self, applications: &[NewApplication<'_>]) -> Result<ApplicationNumber, CatalogError> {
        self.write(|transaction| {
            let mut meta = transaction.open_table(META)?;
            let next = meta.get(META_APPLICATION_NUMBER_NEXT)?.map_or(0, |next| next.value());
            let first = ApplicationNumber::try_from(next);
            let (Ok(first), Some(end)) = (first, ApplicationNumber::try_from(next + applications.len() as u64).ok())
            else {
                return Err(Failure::Damage("application numbers are used up".into()));
            };
            meta.insert(META_APPLICATION_NUMBER_NEXT, u64::from(end))?;
            let mut table = transaction.open_table(APPLICATIONS)?;
            for (number, application) in (first..end).zip(applications) {
                if table.insert(&*application.key(), application.record(number).as_slice())?.is_some() {
                    // The transaction is dropped, not committed.
                    return Err(Failure::Damage(format!("the application {} was stored already", application.name)));
                }
            }
            Ok(first)
        })
    }

    /// Stores another version of an application under its name and number, and keeps the version before. Deletes the
    /// parameters in `dropped` from those of its queries that give them. All of it is one transaction.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn replace_application(
        &self,
        application: NewApplication<'_>,
        dropped: &[&str],
        queries: impl IntoIterator<Item = QueryId>,
    ) -> Result<(), CatalogError> {
        self.write(|transaction| {
            let mut table = transaction.open_table(APPLICATIONS)?;
            let (name, key) = (application.name, application.key());
            let before = table.get(&*key)?.map(|value| value.value().to_vec());
            let Some(before) = before else {
                return Err(Failure::Damage(format!("the application {name} is not stored")));
            };
            let number = record::read_application(&before)?.number;
            table.insert(&*key, application.record(number).as_slice())?;
            let mut versions = transaction.open_table(VERSIONS)?;
            let known = versions_of(&versions, number)?;
            let next = known.last().map_or(0, |last| last + 1);
            versions.insert((number, next), before.as_slice())?;
            for outdated in known.iter().rev().skip(VERSIONS_MAX - 1) {
                versions.remove((number, *outdated))?;
            }
            if dropped.is_empty() {
                return Ok(());
            }
            let mut table = transaction.open_table(QUERIES)?;
            let mut buffer = Vec::new();
            for id in queries {
                let Some(value) = table.get(id)?.map(|value| value.value().to_vec()) else { continue };
                let mut parameters = Vec::new();
                let record::QueryHead { application, name, label } = record::read_query(&value, &mut parameters)?;
                let given = parameters.len();
                parameters.retain(|(name, _)| !dropped.contains(&&**name));
                if parameters.len() < given {
                    let query = NewQuery { application, name, parameters: &parameters, label };
                    record::write_query(&mut buffer, &query);
                    table.insert(id, buffer.as_slice())?;
                }
            }
            Ok(())
        })
    }

    /// The replaced versions of an application, oldest first.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn versions(&self, number: ApplicationNumber) -> Result<Vec<StoredApplication>, CatalogError> {
        self.look(|transaction| {
            let table = transaction.open_table(VERSIONS)?;
            let mut versions = Vec::new();
            for entry in table.range((number, 0)..=(number, u64::MAX))? {
                let (_, value) = entry?;
                versions.push(StoredApplication::read(Tenant::default().named(""), value.value())?);
            }
            Ok(versions)
        })
    }

    /// Removes an application and these queries of it, all or nothing.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is removed then.
    pub fn remove_application(&self, name: &FullName, queries: &[QueryId]) -> Result<(), CatalogError> {
        self.write(|transaction| {
            let key = name.tenant.encode(&name.name);
            let removed = transaction.open_table(APPLICATIONS)?.remove(&*key)?.map(|value| value.value().to_vec());
            if let Some(removed) = removed {
                let number = record::read_application(&removed)?.number;
                let mut versions = transaction.open_table(VERSIONS)?;
                for version in versions_of(&versions, number)? {
                    versions.remove((number, version))?;
                }
            }
            remove_queries(transaction, queries)
        })
    }

    /// Every reference table: its name and the text it was created with, by tenant and name.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn tables(&self) -> Result<Vec<(FullName, String)>, CatalogError> {
        self.look(|transaction| {
            let table = transaction.open_table(TABLES)?;
            let mut tables = Vec::new();
            for entry in table.iter()? {
                let (name, sql) = entry?;
                tables.push((full_name(name.value())?, sql.value().to_owned()));
            }
            Ok(tables)
        })
    }

    /// Stores a reference table under a name that is free (the caller has checked).
    ///
    /// # Errors
    /// Disk errors, and damage; the table is not stored then.
    pub fn insert_table(&self, name: &FullName, sql: &str) -> Result<(), CatalogError> {
        let key = name.tenant.encode(&name.name);
        self.write(|transaction| Ok(transaction.open_table(TABLES)?.insert(&*key, sql).map(drop)?))
    }

    /// Removes a reference table.
    ///
    /// # Errors
    /// Disk errors, and damage; it is not removed then.
    pub fn remove_table(&self, name: &FullName) -> Result<(), CatalogError> {
        let key = name.tenant.encode(&name.name);
        self.write(|transaction| Ok(transaction.open_table(TABLES)?.remove(&*key).map(drop)?))
    }

    /// Every statement about big queries, in the order in which they were stored.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn statements(&self) -> Result<Vec<StoredStatement>, CatalogError> {
        self.look(|transaction| {
            let table = transaction.open_table(STATEMENTS)?;
            let paused = transaction.open_table(PAUSED_STATEMENTS)?;
            let failed = transaction.open_table(FAILED_STATEMENTS)?;
            let mut statements = Vec::new();
            for entry in table.iter()? {
                let (number, sql) = entry?;
                let number = number.value();
                let paused = paused.get(number)?.is_some();
                let failure = failed.get(number)?.map(|failure| failure.value().to_owned());
                let (tenant, sql) = decoded(sql.value())?;
                statements.push(StoredStatement { number, tenant, sql: sql.to_owned(), paused, failure });
            }
            Ok(statements)
        })
    }

    /// Stores a tenant's statement about big queries after the existing ones, and returns its number.
    ///
    /// # Errors
    /// Disk errors, and damage; the statement is not stored then.
    pub fn insert_statement(&self, tenant: &Tenant, sql: &str) -> Result<u64, CatalogError> {
        self.write(|transaction| {
            let mut meta = transaction.open_table(META)?;
            let mut table = transaction.open_table(STATEMENTS)?;
            let number = statement_next(&meta, &table)?;
            meta.insert(META_STATEMENT_NEXT, number + 1)?;
            table.insert(number, &*tenant.encode(sql))?;
            Ok(number)
        })
    }

    /// Replaces the text of a stored statement about big queries. An error that had ended its query is deleted.
    ///
    /// # Errors
    /// Disk errors, and damage; the statement is unchanged then.
    pub fn replace_statement(&self, number: u64, sql: &str) -> Result<(), CatalogError> {
        self.write(|transaction| {
            let mut table = transaction.open_table(STATEMENTS)?;
            let tenant = table.get(number)?.map(|before| Ok::<_, Failure>(decoded(before.value())?.0)).transpose()?;
            let Some(tenant) = tenant else {
                return Err(Failure::Damage(format!("the statement {number} is not stored")));
            };
            table.insert(number, &*tenant.encode(sql))?;
            transaction.open_table(FAILED_STATEMENTS)?.remove(number)?;
            Ok(())
        })
    }

    /// The number of the next statement that is stored. Lower numbers are not given out again.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn statement_next(&self) -> Result<u64, CatalogError> {
        self.look(|transaction| statement_next(&transaction.open_table(META)?, &transaction.open_table(STATEMENTS)?))
    }

    /// Removes a statement about big queries.
    ///
    /// # Errors
    /// Disk errors, and damage; it is not removed then.
    pub fn remove_statement(&self, number: u64) -> Result<(), CatalogError> {
        self.write(|transaction| {
            transaction.open_table(STATEMENTS)?.remove(number)?;
            transaction.open_table(PAUSED_STATEMENTS)?.remove(number)?;
            transaction.open_table(FAILED_STATEMENTS)?.remove(number)?;
            Ok(())
        })
    }

    /// Records the error that has ended the big query of a statement, cut to a maximum length; or that the query runs
    /// again.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn set_statement_failure(&self, number: u64, failure: Option<&str>) -> Result<(), CatalogError> {
        self.write(|transaction| {
            let mut table = transaction.open_table(FAILED_STATEMENTS)?;
            match failure {
                Some(failure) => {
                    let end = failure.char_indices().nth(FAILURE_CHARACTERS_MAX).map_or(failure.len(), |(end, _)| end);
                    table.insert(number, &failure[..end]).map(drop)?;
                }
                None => table.remove(number).map(drop)?,
            }
            Ok(())
        })
    }

    /// Marks the big query of a statement as paused or not.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn set_statement_paused(&self, number: u64, paused: bool) -> Result<(), CatalogError> {
        self.write(|transaction| {
            let mut table = transaction.open_table(PAUSED_STATEMENTS)?;
            match paused {
                true => table.insert(number, ()).map(drop)?,
                false => table.remove(number).map(drop)?,
            }
            Ok(())
        })
    }

    /// Checks the format version, and makes the tables of a new file.
    fn prepare(&self) -> Result<(), CatalogError> {
        let found = self.write(|transaction| {
            // One table after the other. At some damaged pages the storage library panics while it opens a table. If
            // another table is open then, closing it panics once more, and the process would end.
            let others = transaction.list_tables()?.filter(|table| table.name() != META.name()).count();
            let meta = transaction.open_table(META)?;
            let found = meta.get(META_FORMAT_VERSION)?.map(|version| version.value());
            drop(meta);
            match found {
                None if others > 0 => {
                    return Err(Failure::Damage("it holds tables that Rivulet did not write".into()));
                }
                Some(version) if version > FORMAT_VERSION => return Ok(version),
                // Data of older versions is read unchanged: tables were only added.
                _ => {}
            }
            MakeTable(transaction).all()?;
            let mut meta = transaction.open_table(META)?;
            if found != Some(FORMAT_VERSION) {
                meta.insert(META_FORMAT_VERSION, FORMAT_VERSION)?;
            }
            if meta.get(META_SERVER_ID)?.is_none() {
                meta.insert(META_SERVER_ID, RandomState::new().build_hasher().finish())?;
            }
            Ok(FORMAT_VERSION)
        })?;
        if found > FORMAT_VERSION {
            return Err(CatalogError::LaterVersion { path: self.path.clone(), found, supported: FORMAT_VERSION });
        }
        Ok(())
    }

    /// Runs `change` in a transaction and commits it, or leaves everything unchanged.
    fn write<T>(&self, change: impl FnOnce(&WriteTransaction) -> Result<T, Failure>) -> Result<T, CatalogError> {
        let had_failed = self.storage.has_failed();
        let done = self.storage.write(|database| {
            let mut transaction = database.begin_write()?;
            // Without this, opening after a crash reads the whole file.
            transaction.set_quick_repair(true);
            let done = change(&transaction)?;
            transaction.commit()?;
            Ok(done)
        });
        self.changes.fetch_add(1, Ordering::AcqRel);
        let path = self.path.display();
        match (had_failed, &done) {
            (true, Ok(_)) => tracing::info!("the catalog {path} is written again"),
            (false, Err(Failure::Storage(error))) => {
                tracing::error!("the catalog {path} was not written, so a change is refused: {error}");
            }
            _ => {}
        }
        done.map_err(|failure| failure.into_error(&self.path))
    }

    /// Runs `look` on a snapshot. All of it is one call of the storage library to [`guard`].
    fn look<T>(&self, look: impl FnOnce(&ReadTransaction) -> Result<T, Failure>) -> Result<T, CatalogError> {
        self.read(|transaction| guard(|| look(transaction)))
    }

    /// Runs `look` on a snapshot. `look` wraps its calls of the storage library in [`guard`].
    fn read<T>(&self, look: impl FnOnce(&ReadTransaction) -> Result<T, Failure>) -> Result<T, CatalogError> {
        let done = self.storage.read(|database| look(&guard(|| Ok(database.begin_read()?))?));
        done.map_err(|failure| failure.into_error(&self.path))
    }
}

/// The numbers of an application's replaced versions, ascending.
fn versions_of(
    versions: &impl ReadableTable<(ApplicationNumber, u64), &'static [u8]>,
    number: ApplicationNumber,
) -> Result<Vec<u64>, Failure> {
    let range = versions.range((number, 0)..=(number, u64::MAX))?;
    range.map(|entry| Ok(entry?.0.value().1)).collect()
}

/// The tenant and the text of a saved text.
fn decoded(saved: &str) -> Result<(Tenant, &str), Failure> {
    Tenant::decode(saved).ok_or_else(|| Failure::Damage("it does not say whose a name or statement is".into()))
}

fn full_name(saved: &str) -> Result<FullName, Failure> {
    decoded(saved).map(|(tenant, name)| tenant.named(name))
}

/// The number of the next statement. Catalogs of earlier versions do not have it, and gave numbers out again.
fn statement_next(
    meta: &impl ReadableTable<&'static str, u64>,
    statements: &impl ReadableTable<u64, &'static str>,
) -> Result<u64, Failure> {
    let behind_last = statements.last()?.map_or(0, |(last, _)| last.value() + 1);
    Ok(meta.get(META_STATEMENT_NEXT)?.map_or(behind_last, |next| next.value().max(behind_last)))
}

fn remove_queries(transaction: &WriteTransaction, queries: &[QueryId]) -> Result<(), Failure> {
    let mut table = transaction.open_table(QUERIES)?;
    let mut paused = transaction.open_table(PAUSED)?;
    for id in queries {
        table.remove(id)?;
        paused.remove(id)?;
    }
    Ok(())
}

impl Failure {
    fn into_error(self, path: &Path) -> CatalogError {
        match self {
            Self::Storage(error) => CatalogError::from_redb(path, error),
            Self::Damage(detail) => CatalogError::Corrupt { path: path.to_path_buf(), detail },
        }
    }
}

#[cfg(test)]
mod tests;
