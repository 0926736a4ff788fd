//! Reference tables: loaded from files, recorded in the catalog, looked up by applications.
//!
//! Tables count as memory of the process and of their tenant, so one that does not fit is refused. Those that the
//! catalog has are loaded in any case: without them, applications would not run.
//!
//! What must hold: a table that applications use has rows, or the applications do not run. A file that cannot be read
//! changes nothing. At the start of the server, lines that cannot be read are omitted, which is reported. A file
//! without any readable line prevents the table and its applications from running, until `REFRESH TABLE` can read it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use parking_lot::Mutex;
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{Format, TableFault, Times, decode_table_in_part};
use rivulet_operators::Table;
use rivulet_operators::application::{Literal, TableUse, Tables};
use rivulet_sql::{CreateTable, Scope, type_name};

use super::memory::MemoryBound;
use super::outside::{OPEN_MAX, Outside};
use super::permitted::Permitted;
use super::texts::{format_error, stored_table};
use crate::catalog::Catalog;
use crate::inline_rows;
use crate::run::CONNECTORS;
use crate::service::{ErrorKind, FullName, Limit, Quotas, ServiceError, TableColumn, TableInfo, Tenant};

/// The reference tables of a server.
///
/// Its lock is taken after that of the applications: no table in use is dropped while the latter is held.
pub(super) struct ReferenceTables {
    catalog: Arc<Catalog>,
    reader: Reader,
    known: Mutex<BTreeMap<Tenant, Known>>,
}

/// Reads the files of tables.
pub(super) struct Reader {
    pub(super) permitted: Arc<Permitted>,
    /// Most bytes of a table, in its file and in memory.
    pub(super) bytes_max: AtomicUsize,
    pub(super) memory: MemoryBound,
    pub(super) quotas: Arc<Quotas>,
    pub(super) outside: Arc<Outside>,
    pub(super) is_stopped: Arc<AtomicBool>,
}

/// How many bytes a table may have, in its file and in memory, and what to do if it has more.
#[derive(Clone, Copy)]
pub(crate) struct TableBound {
    bytes_max: usize,
    hint: &'static str,
}

impl TableBound {
    /// The bound of every table.
    pub(crate) fn of_each(bytes_max: usize) -> Self {
        Self { bytes_max, hint: "table.bytes_max in the configuration says how many a table may have" }
    }

    /// This one, or another one that is lower.
    fn lowered(self, bytes_max: Option<u64>, hint: &'static str) -> Self {
        let bytes_max = bytes_max.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        if bytes_max < self.bytes_max { Self { bytes_max, hint } } else { self }
    }
}

/// The tables of a tenant.
#[derive(Default)]
struct Known {
    /// The declared tables, by name.
    declared: BTreeMap<String, CreateTable>,
    /// The tables that applications can use.
    loaded: Tables,
    /// Tables of which the start of the server could read only a part, and the problem of the rest.
    left_out: BTreeMap<String, String>,
}

/// The tables of a tenant, which may have none.
fn of<'k>(known: &'k BTreeMap<Tenant, Known>, tenant: &Tenant) -> &'k Known {
    static NONE: Known = Known { declared: BTreeMap::new(), loaded: BTreeMap::new(), left_out: BTreeMap::new() };
    known.get(tenant).unwrap_or(&NONE)
}

impl ReferenceTables {
    /// Without tables until [`ReferenceTables::load`].
    pub(super) fn new(catalog: Arc<Catalog>, reader: Reader) -> Self {
        Self { catalog, reader, known: Mutex::default() }
    }

    /// Changes how large a table may be. Those that are loaded stay as they are.
    pub(super) fn set_bytes_max(&self, bytes_max: usize) {
        self.reader.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// The tables that a tenant has now, for planning.
    pub(super) fn loaded(&self, tenant: &Tenant) -> Tables {
        of(&self.known.lock(), tenant).loaded.clone()
    }

    /// The same of each tenant that has any.
    pub(super) fn loaded_by_tenant(&self) -> BTreeMap<Tenant, Tables> {
        self.known.lock().iter().map(|(tenant, known)| (tenant.clone(), known.loaded.clone())).collect()
    }

    /// Loads the tables in the catalog. A table whose file cannot be read is known and does not run.
    pub(super) fn load(&self) -> Result<(), ServiceError> {
        for (full_name, sql) in self.catalog.tables()? {
            let name = full_name.in_log();
            let create = stored_table(&sql).map(|(create, outdated)| {
                outdated.iter().for_each(|one| tracing::warn!(table = name, "{one}"));
                create
            });
            let FullName { tenant, name: own_name } = full_name;
            let bound = self.reader.bound();
            let read = |create| self.reader.read(&tenant, "the table", create, bound, read_table_in_part);
            let loaded = create.clone().and_then(read);
            let mut known = self.known.lock();
            let known = known.entry(tenant).or_default();
            let loaded = loaded.and_then(|(rows, fault)| match fault {
                // The rows of the previous process are gone, and most of the rows are better than none.
                Some(LeftOut(lines)) if rows.num_rows() > 0 => {
                    tracing::error!(table = name, rows = rows.num_rows(), "a table runs without some lines: {lines}");
                    known.left_out.insert(own_name.clone(), lines);
                    Ok(rows)
                }
                Some(fault) => Err(fault.into()),
                None => Ok(rows),
            });
            let loaded = loaded.map_err(|error| {
                tracing::error!(table = name, "a table is not running: {error}");
                error.message
            });
            known.loaded.insert(own_name.clone(), loaded.map(|rows| Arc::new(Table::new(&own_name, rows))));
            if let Ok(create) = create {
                known.declared.insert(own_name, create);
            }
        }
        Ok(())
    }

    /// Loads and records a table. Returns the number of its rows, or `None` if it exists already with the same text.
    pub(super) fn create(&self, tenant: &Tenant, create: CreateTable) -> Result<Option<usize>, ServiceError> {
        let full_name = tenant.named(&create.name.text);
        if create.replaces {
            return self.replace(&full_name, create).map(Some);
        }
        // Checked before the file is read, and again after it, when no other code can intervene.
        if of(&self.known.lock(), tenant).has(&create)? {
            return Ok(None);
        }
        let rows = self.read(tenant, &create)?;
        let mut known = self.known.lock();
        let known = known.entry(tenant.clone()).or_default();
        if known.has(&create)? {
            return Ok(None);
        }
        self.admit(tenant, known, &full_name.name, &rows)?;
        self.catalog.insert_table(&full_name, &create.text)?;
        tracing::info!(table = full_name.in_log(), rows = rows.num_rows(), "created");
        let (name, count) = (full_name.name, rows.num_rows());
        known.loaded.insert(name.clone(), Ok(Arc::new(Table::new(&name, rows))));
        known.declared.insert(name, create);
        Ok(Some(count))
    }

    /// Loads a table and records it in place of the table of its name, if there is one, which has the same columns.
    /// Batches under way see the old rows, later ones the new rows.
    fn replace(&self, full_name: &FullName, create: CreateTable) -> Result<usize, ServiceError> {
        let FullName { tenant, name } = full_name;
        of(&self.known.lock(), tenant).check_columns(&create)?;
        let rows = self.read(tenant, &create)?;
        let mut known = self.known.lock();
        let known = known.entry(tenant.clone()).or_default();
        known.check_columns(&create)?;
        self.admit(tenant, known, name, &rows)?;
        self.catalog.insert_table(full_name, &create.text)?;
        let count = rows.num_rows();
        known.left_out.remove(name);
        match known.loaded.get(name) {
            Some(Ok(table)) => table.replace(rows),
            _ => drop(known.loaded.insert(name.clone(), Ok(Arc::new(Table::new(name, rows))))),
        }
        known.declared.insert(name.clone(), create);
        tracing::info!(table = full_name.in_log(), rows = count, "replaced");
        Ok(count)
    }

    /// Loads the file of a table again. Returns whether the table had no rows before. Batches under way see the old
    /// rows, later ones the new rows.
    pub(super) fn refresh(&self, full_name: &FullName) -> Result<bool, ServiceError> {
        let FullName { tenant, name } = full_name;
        let create = of(&self.known.lock(), tenant).declared(name)?.clone();
        if inline_rows::is_one(&create.address) {
            let message = format!("the table '{name}' has no file to read again: its rows stand in the statement");
            return Err(ServiceError::invalid(message).with_hint(format!(
                "put others in their place with CREATE OR REPLACE TABLE {name}, or rivulet app register --replace"
            )));
        }
        // Without the lock: applications can be planned while a large file is read. The positions in the error would be
        // those of another statement.
        let rows = self.read(tenant, &create).map_err(|error| ServiceError { line: None, column: None, ..error })?;
        let count = rows.num_rows();
        let mut known = self.known.lock();
        let known = known.entry(tenant.clone()).or_default();
        // The table was dropped meanwhile, and perhaps created anew.
        if known.declared(name)?.id != create.id {
            return Err(ServiceError::new(ErrorKind::Conflict, format!("the table '{name}' was replaced meanwhile")));
        }
        self.admit(tenant, known, name, &rows)?;
        known.left_out.remove(name);
        let was_absent = match known.loaded.get(name) {
            Some(Ok(table)) => {
                table.replace(rows);
                false
            }
            _ => {
                known.loaded.insert(name.clone(), Ok(Arc::new(Table::new(name, rows))));
                true
            }
        };
        tracing::info!(table = full_name.in_log(), rows = count, "loaded");
        Ok(was_absent)
    }

    /// Drops a table; a conflict if it has users.
    pub(super) fn remove(&self, full_name: &FullName, users: &[String]) -> Result<(), ServiceError> {
        let FullName { tenant, name } = full_name;
        let mut known = self.known.lock();
        let known = known.entry(tenant.clone()).or_default();
        // A table whose statement cannot be parsed any more can be dropped as well.
        if !known.loaded.contains_key(name) {
            known.declared(name)?;
        }
        if !users.is_empty() {
            let users = users.join(", ");
            let has_rows_in_text = known.declared(name).is_ok_and(|create| inline_rows::is_one(&create.address));
            let rows = match has_rows_in_text {
                true => format!("put other rows in the place of these with CREATE OR REPLACE TABLE {name}"),
                false => "load other rows with REFRESH TABLE".to_owned(),
            };
            return Err(ServiceError::new(ErrorKind::Conflict, format!("the table '{name}' is used by {users}"))
                .with_hint(format!("drop them first, or {rows}")));
        }
        self.catalog.remove_table(full_name)?;
        known.loaded.remove(name);
        known.left_out.remove(name);
        known.declared.remove(name);
        tracing::info!(table = full_name.in_log(), "dropped");
        Ok(())
    }

    /// Fails unless an application was planned with the current tables.
    pub(super) fn check_current(&self, tenant: &Tenant, planned: &[TableUse]) -> Result<(), ServiceError> {
        let known = self.known.lock();
        let known = of(&known, tenant);
        let is_current = |one: &TableUse| match known.loaded.get(one.table.name()) {
            Some(Ok(table)) => Arc::ptr_eq(table, &one.table),
            _ => false,
        };
        match planned.iter().find(|one| !is_current(one)) {
            None => Ok(()),
            Some(one) => {
                let message = format!("the table '{}' was dropped meanwhile", one.table.name());
                Err(ServiceError::new(ErrorKind::Conflict, message))
            }
        }
    }

    /// Adds the tables of a tenant, except `but_for`, to the names that its big queries may use. If a source or view
    /// has the same name, that one stays.
    pub(super) fn add_to(&self, tenant: &Tenant, scope: &mut Scope, but_for: Option<&str>) {
        let known = self.known.lock();
        let known = of(&known, tenant);
        for create in known.declared.values().filter(|create| Some(create.name.text.as_str()) != but_for) {
            if let Some(Ok(table)) = known.loaded.get(&create.name.text) {
                let _ = scope.add_table(&create.name, table.clone());
            }
        }
    }

    /// The description of a table, without the applications that use it.
    pub(super) fn info(&self, name: &FullName) -> Result<TableInfo, ServiceError> {
        let known = self.known.lock();
        let known = of(&known, &name.tenant);
        Ok(known.info(known.declared(&name.name)?))
    }

    /// All tables of a tenant, by name.
    pub(super) fn infos(&self, tenant: &Tenant) -> Vec<TableInfo> {
        let known = self.known.lock();
        let known = of(&known, tenant);
        known.declared.values().map(|create| known.info(create)).collect()
    }

    /// The memory of the tables of these tenants.
    pub(super) fn memory_bytes(&self, is_asked: impl Fn(&Tenant) -> bool) -> Vec<(Tenant, u64)> {
        let known = self.known.lock();
        let asked = known.iter().filter(|(tenant, _)| is_asked(tenant));
        let tables = |known: &Known| known.loaded.values().flatten().cloned().collect::<Vec<_>>();
        let tables: Vec<_> = asked.map(|(tenant, known)| (tenant.clone(), tables(known))).collect();
        drop(known);
        // An index may be made just now, which takes its time.
        tables.into_iter().map(|(tenant, tables)| (tenant, tables.iter().map(|one| memory_of(one)).sum())).collect()
    }

    /// The rows in the file of a table, for which there is memory beside what it may replace.
    fn read(&self, tenant: &Tenant, create: &CreateTable) -> Result<RecordBatch, ServiceError> {
        // The file and its rows are in memory at the same time.
        let left = self.reader.memory.left().map(|left| left / 2);
        let bound = self.reader.bound().lowered(left, "raise memory.bytes_max, or drop tables or queries");
        self.reader.read(tenant, &format!("the table '{}'", create.name), create.clone(), bound, read_table)
    }

    /// Checks that a tenant has memory for the rows of a table, which replace those that it may have. With the tables
    /// locked, so that of two that are read at the same time one is refused if not both fit.
    fn admit(&self, tenant: &Tenant, known: &Known, name: &str, rows: &RecordBatch) -> Result<(), ServiceError> {
        if let Some(bytes_max) = self.reader.memory.exceeded() {
            let message = format!("there is no memory for the table '{name}': {} MiB are in use", bytes_max >> 20);
            let error = ServiceError::new(ErrorKind::LimitReached, message);
            return Err(error.with_hint("raise memory.bytes_max, or drop tables or queries"));
        }
        let quota = self.reader.quotas.of(tenant);
        let Some(most) = quota.most(Limit::StateBytes) else { return Ok(()) };
        let replaced = known.loaded.get(name).and_then(|table| table.as_ref().ok()).map(|table| memory_of(table));
        let used = quota.used(Limit::StateBytes).max(known.memory_bytes()).saturating_sub(replaced.unwrap_or(0));
        let needed = rows.get_array_memory_size() as u64;
        if used + needed > most {
            let kib = |bytes: u64| bytes.div_ceil(1 << 10);
            let (needed, left) = (kib(needed), most.saturating_sub(used) >> 10);
            let message = format!("the table '{name}' takes {needed} KiB, and its tenant may have {left} KiB more");
            return Err(ServiceError::new(ErrorKind::LimitReached, message).with_hint(quota.hint(Limit::StateBytes)));
        }
        Ok(())
    }
}

/// The memory of a table, with the indexes of its rows.
fn memory_of(table: &Table) -> u64 {
    table.rows().memory_bytes() as u64
}

impl Reader {
    /// The bound of every table.
    fn bound(&self) -> TableBound {
        TableBound::of_each(self.bytes_max.load(Ordering::Relaxed))
    }

    /// Reads the file of a table with `read`, which waits for a file system.
    fn read<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        table: &str,
        create: CreateTable,
        bound: TableBound,
        read: fn(&CreateTable, TableBound, &Files) -> Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        let files = self.permitted.files(tenant);
        let what = format!("reading the file of {table}");
        self.outside.call(&what, OPEN_MAX, &self.is_stopped, move || read(&create, bound, &files))
    }
}

/// The rows in the file of a table.
pub(crate) fn read_table(create: &CreateTable, bound: TableBound, files: &Files) -> Result<RecordBatch, ServiceError> {
    match read_table_in_part(create, bound, files)? {
        (rows, None) => Ok(rows),
        (_, Some(fault)) => Err(fault.into()),
    }
}

/// The lines of a file that cannot be read, and their problems.
struct LeftOut(String);

impl From<LeftOut> for ServiceError {
    fn from(LeftOut(lines): LeftOut) -> Self {
        Self::from_text(ErrorKind::Invalid, &format!("the table cannot be loaded: {lines}"))
    }
}

/// The rows of the readable lines, and the other lines, if there are any.
fn read_table_in_part(
    create: &CreateTable,
    TableBound { bytes_max, hint }: TableBound,
    files: &Files,
) -> Result<(RecordBatch, Option<LeftOut>), ServiceError> {
    let place = create.address_position;
    let (format, times, has_header) = format_of(create)?;
    let too_large = |what: &str| {
        let message = format!("{what} of the table '{}' has more than {bytes_max} bytes", create.name);
        ServiceError::new(ErrorKind::LimitReached, message).with_hint(hint)
    };
    let (bytes, path) = match inline_rows::is_one(&create.address) {
        true => {
            let rows = inline_rows::rows_of(&create.address);
            let refused = |what| ServiceError::invalid(format!("these are no rows: {what}"));
            (rows.map_err(|what| refused(what).at(place.line, place.column))?, "the rows in the statement")
        }
        false => {
            let Some(path) = CONNECTORS.path_of(&create.address).filter(|path| !path.is_empty()) else {
                let message = format!("a table is read from a local file, and '{}' is none", create.address);
                return Err(ServiceError::invalid(message)
                    .at(place.line, place.column)
                    .with_hint("write for example FROM 'file:data/rooms.csv', or 'data:,' and the rows"));
            };
            let bytes = files.read(path, bytes_max as u64).map_err(|error| match error.kind() {
                std::io::ErrorKind::FileTooLarge => too_large("the file"),
                _ => {
                    let error = ServiceError::from_text(ErrorKind::Invalid, &format!("cannot read {path}: {error}"));
                    match error.hint {
                        Some(_) => error.at(place.line, place.column),
                        None => error.with_hint("a server takes relative paths from the first folder of files.allow"),
                    }
                }
            })?;
            (bytes, path)
        }
    };
    let decoded = decode_table_in_part(format, &times, has_header, create.schema.clone(), &bytes);
    let (rows, fault) = decoded.map_err(|fault| match &fault {
        TableFault::Format(error) => format_error(error, &create.format),
        _ => LeftOut(format!("{path}: {fault}")).into(),
    })?;
    if rows.get_array_memory_size() > bytes_max {
        return Err(too_large("the content"));
    }
    Ok((rows, fault.map(|fault| LeftOut(format!("{path}: {fault}")))))
}

/// The format of a table's rows, and whether a header comes before them.
fn format_of(create: &CreateTable) -> Result<(Format, Times, bool), ServiceError> {
    let spec = &create.format;
    let at = |error: ServiceError| error.at_place(spec.position);
    let is_header = |name: &str| spec.name.eq_ignore_ascii_case("csv") && name == "header";
    let has_header = match spec.options.iter().find(|(name, _)| is_header(name)) {
        None => false,
        Some((_, Literal::Boolean(has_header))) => *has_header,
        Some(_) => return Err(at(ServiceError::invalid("header is true or false"))),
    };
    let options = spec.options.iter().filter(|(name, _)| !is_header(name));
    let options: Vec<(&str, String)> = options.map(|(name, value)| (name.as_str(), value.plain_text())).collect();
    let (format, times) = Format::parse(&spec.name, options.iter().map(|(name, value)| (*name, value.as_str())))
        .map_err(|error| format_error(&error, spec))?;
    match format {
        Format::Csv { .. } | Format::Json | Format::NestedJson => Ok((format, times, has_header)),
        _ => Err(at(ServiceError::invalid(format!("a table cannot be written in {format}"))
            .with_hint("FORMAT CSV (header => true), or FORMAT JSON with an object on each line"))),
    }
}

impl Known {
    /// The memory of all tables.
    fn memory_bytes(&self) -> u64 {
        self.loaded.values().flatten().map(|table| memory_of(table)).sum()
    }

    /// Whether a table with the same text exists; one with another text is an error.
    fn has(&self, create: &CreateTable) -> Result<bool, ServiceError> {
        let name = &create.name.text;
        match (self.declared.get(name), self.loaded.contains_key(name)) {
            (Some(known), _) if known.id == create.id => Ok(true),
            (None, false) => Ok(false),
            _ => Err(ServiceError::new(ErrorKind::AlreadyExists, format!("a table '{name}' with another text exists"))
                .with_hint(format!(
                    "write CREATE OR REPLACE TABLE {name} to put these rows in the place of those, or take another name"
                ))),
        }
    }

    /// Fails if a table with the name of a new one has other columns: applications were planned with those.
    fn check_columns(&self, create: &CreateTable) -> Result<(), ServiceError> {
        let name = &create.name;
        match self.declared.get(&name.text) {
            Some(known) if known.schema != create.schema => {
                let message = format!("the table '{name}' has other columns, and only its rows are replaced");
                Err(ServiceError::new(ErrorKind::Conflict, message)
                    .with_hint(format!("create it under another name, or drop the old one first: DROP TABLE {name}")))
            }
            _ => Ok(()),
        }
    }

    /// The declaration of a table.
    fn declared(&self, name: &str) -> Result<&CreateTable, ServiceError> {
        self.declared.get(name).ok_or_else(|| {
            let error = ServiceError::not_found(format!("there is no table '{name}'"));
            error.suggesting(name, self.declared.keys().map(String::as_str), "SHOW TABLES lists them")
        })
    }

    fn info(&self, create: &CreateTable) -> TableInfo {
        let name = &create.name.text;
        let (rows, not_running) = match self.loaded.get(name) {
            Some(Ok(table)) => (Some(table.rows()), None),
            Some(Err(reason)) => (None, Some(reason.clone())),
            None => (None, None),
        };
        let columns = create.schema.fields().iter();
        TableInfo {
            name: name.clone(),
            sql: inline_rows::shown(&create.text, &create.address),
            file: match inline_rows::is_one(&create.address) {
                true => "none, its rows stand in the statement".into(),
                false => CONNECTORS.path_of(&create.address).unwrap_or(&create.address).to_owned(),
            },
            columns: columns
                .map(|field| TableColumn { name: field.name().clone(), data_type: type_name(field.data_type()) })
                .collect(),
            rows: rows.as_ref().map_or(0, |rows| rows.columns().num_rows() as u64),
            bytes: rows.as_ref().map_or(0, |rows| rows.memory_bytes() as u64),
            applications: Vec::new(),
            needed_by: Vec::new(),
            not_running,
            left_out: self.left_out.get(name).cloned(),
        }
    }
}
