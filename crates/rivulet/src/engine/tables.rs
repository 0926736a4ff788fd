//! Reference tables: loaded from files, remembered in the catalog, looked up by applications.
//!
//! What must hold: a table that applications use has rows, or they do not run. A file that cannot be read changes
//! nothing; at the start of the server lines that cannot be read are left out, which is said, and a file without any other keeps the table and
//! its applications from running, until `REFRESH TABLE` finds it in order.

use std::sync::Arc;

use arrow::array::RecordBatch;
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{Format, TableFault, decode_table_in_part};
use rivulet_sql::{CreateTable, Literal, Statement, Table, TableUse, Tables, type_name};

use super::not_running::NotRunning;
use super::outside::OPEN_MAX;
use super::{Engine, State, statements};
use crate::service::{ErrorKind, ServiceError, TableInfo};

impl Engine {
    /// The tables that there are now.
    pub(super) fn known_tables(&self) -> Tables {
        self.state.lock().tables.clone()
    }

    /// Loads and remembers a table; gives the number of its rows, or `None` if it is there already with the same text.
    pub(super) fn register_table(&self, create: CreateTable) -> Result<Option<usize>, ServiceError> {
        let name = create.name.text.clone();
        // Looked at before the file is read, and again after it, when nobody can come between.
        if self.state.lock().has_table(&create)? {
            return Ok(None);
        }
        let rows = self.read_table(&create)?;
        let mut state = self.state.lock();
        if state.has_table(&create)? {
            return Ok(None);
        }
        self.catalog.insert_table(&name, &create.text)?;
        let count = rows.num_rows();
        state.tables.insert(name.clone(), Ok(Arc::new(Table::new(&name, rows))));
        state.declared_tables.insert(name.clone(), create);
        tracing::info!(table = name, rows = count, "created");
        self.start_again(&mut state)?;
        Ok(Some(count))
    }

    /// Loads the file of a table again; gives the number of rows. Batches under way see the old rows, later ones the
    /// new ones.
    pub(super) fn load_again(&self, name: &str) -> Result<usize, ServiceError> {
        let create = self.state.lock().declared_table(name)?.clone();
        // Without the lock: queries are submitted while a large file is read. The places in the error would be those of
        // another statement.
        let rows = self.read_table(&create).map_err(|error| ServiceError { line: None, column: None, ..error })?;
        let count = rows.num_rows();
        let mut state = self.state.lock();
        // Dropped meanwhile, and perhaps created as another.
        if state.declared_table(name)?.id != create.id {
            return Err(ServiceError::new(ErrorKind::Conflict, format!("the table '{name}' was replaced meanwhile")));
        }
        state.lines_left_out.remove(name);
        match state.tables.get(name) {
            Some(Ok(table)) => table.replace(rows),
            _ => {
                state.tables.insert(name.to_owned(), Ok(Arc::new(Table::new(name, rows))));
                self.start_again(&mut state)?;
            }
        }
        tracing::info!(table = name, rows = count, "loaded");
        Ok(count)
    }

    /// Forgets a table that no application uses.
    pub(super) fn remove_table(&self, name: &str) -> Result<(), ServiceError> {
        let big_users = self.big_queries_with_table(name);
        if !big_users.is_empty() {
            let message = format!("the table '{name}' is used by {}", big_users.join(", "));
            return Err(ServiceError::new(ErrorKind::Conflict, message).with_hint("drop these queries first"));
        }
        let mut state = self.state.lock();
        // One whose statement is not understood any more can be dropped as well.
        if !state.tables.contains_key(name) {
            state.declared_table(name)?;
        }
        let users = state.users_of(name);
        if !users.is_empty() {
            let users = users.join(", ");
            return Err(ServiceError::new(ErrorKind::Conflict, format!("the table '{name}' is used by {users}"))
                .with_hint("drop these applications first, or load other rows with REFRESH TABLE"));
        }
        self.catalog.remove_table(name)?;
        state.tables.remove(name);
        state.lines_left_out.remove(name);
        state.declared_tables.remove(name);
        tracing::info!(table = name, "dropped");
        Ok(())
    }

    /// Loads the tables that the catalog remembers. One whose file cannot be read is known and does not run.
    pub(super) fn load_tables(&self, state: &mut State) -> Result<(), ServiceError> {
        for (name, sql) in self.catalog.tables()? {
            let create = statements::stored_table(&sql).map(|(create, outdated)| {
                outdated.iter().for_each(|one| tracing::warn!(table = name, "{one}"));
                create
            });
            let bytes_max = self.config.table_bytes_max;
            let files = self.files.clone();
            let read = move |create: CreateTable| {
                let read = move || read_table_in_part(&create, bytes_max, &files);
                self.outside.call("reading the file of the table", OPEN_MAX, &self.is_stopped, read)
            };
            let loaded = create.clone().and_then(read);
            let loaded = loaded.and_then(|(rows, fault)| match fault {
                // What the server had before is gone with it, and most of the rows are better than none.
                Some(LeftOut(lines)) if rows.num_rows() > 0 => {
                    tracing::error!(table = name, rows = rows.num_rows(), "a table runs without some lines: {lines}");
                    state.lines_left_out.insert(name.clone(), lines);
                    Ok(rows)
                }
                Some(fault) => Err(fault.into()),
                None => Ok(rows),
            });
            let loaded = loaded.map_err(|error| {
                tracing::error!(table = name, "a table is not running: {error}");
                error.message
            });
            state.tables.insert(name.clone(), loaded.map(|rows| Arc::new(Table::new(&name, rows))));
            if let Ok(create) = create {
                state.declared_tables.insert(name, create);
            }
        }
        Ok(())
    }

    /// The rows in the file of a table.
    fn read_table(&self, create: &CreateTable) -> Result<RecordBatch, ServiceError> {
        let (create, bytes_max, files) = (create.clone(), self.config.table_bytes_max, self.files.clone());
        let what = format!("reading the file of the table '{}'", create.name);
        self.outside.call(&what, OPEN_MAX, &self.is_stopped, move || read_table(&create, bytes_max, &files))
    }

    /// Starts what could not run because of a table.
    fn start_again(&self, state: &mut State) -> Result<(), ServiceError> {
        let mut started = Vec::new();
        for (name, other) in std::mem::take(&mut state.not_running) {
            match self.start_application(state, &other.stored) {
                Ok(()) => started.push(other.stored.number),
                Err(error) => {
                    state.not_running.insert(name, NotRunning::new(other.stored, &error));
                }
            }
        }
        if started.is_empty() {
            return Ok(());
        }
        for number in &started {
            state.queries_not_running.remove(number);
        }
        self.start_queries_of(state, &started)
    }
}

/// The rows in the file of a table, which may have so many bytes.
pub(crate) fn read_table(create: &CreateTable, bytes_max: usize, files: &Files) -> Result<RecordBatch, ServiceError> {
    match read_table_in_part(create, bytes_max, files)? {
        (rows, None) => Ok(rows),
        (_, Some(fault)) => Err(fault.into()),
    }
}

/// Lines of a file that cannot be read, and what is wrong with them.
struct LeftOut(String);

impl From<LeftOut> for ServiceError {
    fn from(LeftOut(lines): LeftOut) -> Self {
        Self::invalid(format!("the table cannot be loaded: {lines}"))
    }
}

/// The same of what can be read, and the other lines, if there are any.
fn read_table_in_part(
    create: &CreateTable,
    bytes_max: usize,
    files: &Files,
) -> Result<(RecordBatch, Option<LeftOut>), ServiceError> {
    let place = create.address_position;
    let Some(path) = create.address.strip_prefix("file:").filter(|path| !path.is_empty()) else {
        let message = format!("a table is read from a local file, and '{}' is none", create.address);
        return Err(ServiceError::invalid(message)
            .at(place.line, place.column)
            .with_hint("write for example FROM 'file:data/rooms.csv'"));
    };
    let (format, has_header) = format_of(create)?;
    let too_large = |what: &str| {
        let message = format!("{what} of the table '{}' has more than {bytes_max} bytes", create.name);
        ServiceError::new(ErrorKind::LimitReached, message)
            .with_hint("table.bytes_max in the configuration says how many a table may have")
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
    let decoded = decode_table_in_part(format, has_header, create.schema.clone(), &bytes);
    let (rows, fault) = decoded.map_err(|fault| match &fault {
        TableFault::Format(error) => statements::format_error(error, &create.format),
        _ => LeftOut(format!("{path}: {fault}")).into(),
    })?;
    if rows.get_array_memory_size() > bytes_max {
        return Err(too_large("the content"));
    }
    Ok((rows, fault.map(|fault| LeftOut(format!("{path}: {fault}")))))
}

/// How the rows of a table are written, and whether a header stands before them.
fn format_of(create: &CreateTable) -> Result<(Format, bool), ServiceError> {
    let spec = &create.format;
    let at = |error: ServiceError| error.at(spec.position.line, spec.position.column);
    let is_header = |name: &str| spec.name.eq_ignore_ascii_case("csv") && name == "header";
    let has_header = match spec.options.iter().find(|(name, _)| is_header(name)) {
        None => false,
        Some((_, Literal::Boolean(has_header))) => *has_header,
        Some(_) => return Err(at(ServiceError::invalid("header is true or false"))),
    };
    let options = spec.options.iter().filter(|(name, _)| !is_header(name));
    let options: Vec<(&str, String)> =
        options.map(|(name, value)| (name.as_str(), statements::literal_text(value))).collect();
    let format = Format::parse(&spec.name, options.iter().map(|(name, value)| (*name, value.as_str())))
        .map_err(|error| statements::format_error(&error, spec))?;
    match format {
        Format::Csv { .. } | Format::Json => Ok((format, has_header)),
        _ => Err(at(ServiceError::invalid(format!("a table cannot be written in {format}"))
            .with_hint("FORMAT CSV (header => true), or FORMAT JSON with an object on each line"))),
    }
}

impl State {
    /// Whether a table is there with the same text; one with another text is an error.
    fn has_table(&self, create: &CreateTable) -> Result<bool, ServiceError> {
        let name = &create.name.text;
        match (self.declared_tables.get(name), self.tables.contains_key(name)) {
            (Some(known), _) if known.id == create.id => Ok(true),
            (None, false) => Ok(false),
            _ => Err(ServiceError::new(ErrorKind::AlreadyExists, format!("a table '{name}' with another text exists"))
                .with_hint(format!("create it under another name, or drop the old one first: DROP TABLE {name}"))),
        }
    }

    /// What a table was declared as.
    pub(super) fn declared_table(&self, name: &str) -> Result<&CreateTable, ServiceError> {
        self.declared_tables.get(name).ok_or_else(|| {
            let error = ServiceError::not_found(format!("there is no table '{name}'"));
            match rivulet_sql::nearest(name, self.declared_tables.keys().map(String::as_str)) {
                Some(near) => error.with_hint(format!("did you mean '{near}'?")),
                None => error.with_hint("SHOW TABLES lists them"),
            }
        })
    }

    /// Fails unless an application was planned with the tables that there are now.
    pub(super) fn check_tables(&self, planned: &[TableUse]) -> Result<(), ServiceError> {
        let is_current = |one: &TableUse| match self.tables.get(one.table.name()) {
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

    /// The applications that look events up in a table, whether they run or not.
    fn users_of(&self, name: &str) -> Vec<String> {
        let uses = |sql: &str| match rivulet_sql::parse_stored(sql).map(|stored| stored.statement) {
            Ok(Statement::CreateApplication(create)) => create.table_names().contains(&name),
            _ => false,
        };
        let running = self.applications.values().filter(|one| uses_table(&one.application, name));
        let not_running = self.not_running.values().filter(|one| uses(&one.stored.sql));
        let names = running.map(|one| &one.application.name).chain(not_running.map(|one| &one.stored.name));
        let mut names: Vec<String> = names.cloned().collect();
        names.sort();
        names
    }

    pub(super) fn table_info(&self, create: &CreateTable) -> TableInfo {
        let name = &create.name.text;
        let (rows, not_running) = match self.tables.get(name) {
            Some(Ok(table)) => (Some(table.rows()), None),
            Some(Err(reason)) => (None, Some(reason.clone())),
            None => (None, None),
        };
        let columns = create.schema.fields().iter();
        TableInfo {
            name: name.clone(),
            sql: create.text.clone(),
            file: create.address.strip_prefix("file:").unwrap_or(&create.address).to_owned(),
            columns: columns.map(|field| (field.name().clone(), type_name(field.data_type()))).collect(),
            rows: rows.as_ref().map_or(0, |rows| rows.columns().num_rows() as u64),
            bytes: rows.as_ref().map_or(0, |rows| rows.columns().get_array_memory_size() as u64),
            applications: self.users_of(name),
            not_running,
            left_out: self.lines_left_out.get(name).cloned(),
        }
    }
}

fn uses_table(application: &rivulet_sql::Application, name: &str) -> bool {
    application.tables.iter().any(|used| used.table.name() == name)
}
