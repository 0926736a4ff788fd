//! The names that queries may use: sources, views and reference tables to read, sinks to write.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion_expr::LogicalPlan;
use datafusion_physical_expr::PhysicalExpr;
use rivulet_operators::{Model, Table};

use crate::statement::{Declared, FormatSpec, Name};
use crate::value::column_type_name;
use crate::{Literal, Position, SqlError, Statement, parse_stored};

/// A source in force.
#[derive(Clone, Debug)]
pub struct SourceDeclaration {
    /// Its name.
    pub name: Name,
    /// Its columns as queries see them: the declared ones, in the types in which rows carry them, and behind these the
    /// computed ones.
    pub schema: SchemaRef,
    /// The columns as declared, with the bits and digits that they have outside the engine.
    pub declared: SchemaRef,
    /// Compute the columns behind the declared ones from the declared ones.
    pub(crate) computed: Vec<Arc<dyn PhysicalExpr>>,
    /// The indices of the columns that identify a row, of a source of changes that says so.
    pub key: Option<Vec<usize>>,
    /// The index of the event-time column. Without one, the arrival time is the event time.
    pub event_time_column: Option<usize>,
    /// How far a row may be behind the newest one of its partition and still count, microseconds.
    pub lateness_us: i64,
    /// After how long without a row a partition no longer holds back the others. If all are silent, time goes on by the
    /// clock. Without a value, a partition always holds back the others.
    pub idle_timeout_us: Option<i64>,
    /// How far the time of a row may be ahead of its arrival, in microseconds. Without a value, it depends on the
    /// source.
    pub future_limit_us: Option<i64>,
    /// Whether its rows are so few that every instance of a join may have all of them.
    pub is_small: bool,
    /// Whether it gives states of the window of a query that runs in two parts, the first of them in another server.
    pub is_partial: bool,
    /// The sink of rows that come too late. Without one, they are dead letters as other refused rows are.
    pub late: Option<Name>,
    /// The sink of rows that cannot be processed. Without one, they are only counted.
    pub dead_letter: Option<Name>,
    /// Where the rows come from, as `connector:rest`.
    pub address: String,
    /// The position of the address.
    pub address_position: Position,
    /// The format of the rows; `None` leaves it to the connector.
    pub format: Option<FormatSpec>,
    /// The options that remain for the connector.
    pub options: Vec<(Name, Literal, Position)>,
    /// The statement's text as written.
    pub text: String,
}

/// A sink in force.
#[derive(Clone, Debug)]
pub struct SinkDeclaration {
    /// Its name.
    pub name: Name,
    /// Its columns. Without any, they are those of the rows that are written.
    pub schema: Option<SchemaRef>,
    /// Where results go, as `connector:rest`.
    pub address: String,
    /// The position of the address.
    pub address_position: Position,
    /// The format of the results; `None` leaves it to the connector.
    pub format: Option<FormatSpec>,
    /// Whether it takes states of the window of a query, which another server makes results of.
    pub is_partial: bool,
    /// The options that remain for the connector.
    pub options: Vec<(Name, Literal, Position)>,
    /// The statement's text as written.
    pub text: String,
}

impl SourceDeclaration {
    /// Returns a source that no statement declares: its rows have these columns, no event time, and are never late.
    pub fn undeclared(name: Name, schema: SchemaRef, address: String) -> Self {
        Self {
            address_position: name.position,
            name,
            declared: schema.clone(),
            schema,
            computed: Vec::new(),
            key: None,
            event_time_column: None,
            lateness_us: 0,
            idle_timeout_us: None,
            future_limit_us: None,
            is_small: false,
            is_partial: false,
            late: None,
            dead_letter: None,
            address,
            format: None,
            options: Vec::new(),
            text: String::new(),
        }
    }

    /// Whether its rows may be taken back: its format is one of changes.
    pub fn changes(&self) -> bool {
        self.format.as_ref().is_some_and(FormatSpec::has_changes)
    }

    /// The names of its columns, and their types as they are declared.
    pub fn columns(&self) -> Vec<(String, String)> {
        let computed = &self.schema.fields()[self.declared.fields().len()..];
        let fields = self.declared.fields().iter().chain(computed);
        fields.map(|field| (field.name().clone(), column_type_name(field))).collect()
    }

    /// The connector, in lower case: the part of the address before the colon.
    pub fn connector(&self) -> String {
        connector_of(&self.address)
    }

    /// Whether its statement has its columns. If not, they are those of its connector or of a file.
    pub fn declares_columns(&self) -> bool {
        let stored = parse_stored(&self.text).map(|stored| stored.statement);
        matches!(stored, Ok(Statement::CreateSource(create)) if create.columns.is_some())
    }

    /// The part of the address behind the colon.
    pub fn rest(&self) -> &str {
        rest_of(&self.address)
    }
}

impl SinkDeclaration {
    /// The names of its columns, and their types as they are declared. Empty if the columns are those of the rows that
    /// are written.
    pub fn columns(&self) -> Vec<(String, String)> {
        let fields = self.schema.iter().flat_map(|schema| schema.fields());
        fields.map(|field| (field.name().clone(), column_type_name(field))).collect()
    }

    /// The connector, in lower case: the part of the address before the colon.
    pub fn connector(&self) -> String {
        connector_of(&self.address)
    }

    /// The part of the address behind the colon.
    pub fn rest(&self) -> &str {
        rest_of(&self.address)
    }
}

pub(crate) fn connector_of(address: &str) -> String {
    address.split(':').next().unwrap_or_default().to_ascii_lowercase()
}

pub(crate) fn rest_of(address: &str) -> &str {
    address.split_once(':').map_or("", |(_, rest)| rest)
}

/// A view in force.
#[derive(Clone)]
pub struct View {
    /// Its name.
    pub name: Name,
    /// The statement's text as written.
    pub text: String,
    pub(crate) plan: Arc<LogicalPlan>,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("name", &self.name).field("text", &self.text).finish_non_exhaustive()
    }
}

impl View {
    /// Its columns and their types.
    pub fn columns(&self) -> Vec<(String, DataType)> {
        let fields = self.plan.schema().fields().iter();
        fields.map(|field| (field.name().clone(), field.data_type().clone())).collect()
    }
}

/// What a name in FROM stands for.
#[derive(Clone, Debug)]
pub(crate) enum Relation {
    Source(Arc<SourceDeclaration>),
    View(Arc<View>),
    Table(Arc<Table>),
}

/// The names of sources, views, tables and sinks that are in force. A clone is cheap.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    relations: BTreeMap<String, Relation>,
    sinks: BTreeMap<String, Arc<SinkDeclaration>>,
    models: BTreeMap<String, Arc<Model>>,
}

impl Scope {
    /// Returns a scope without any names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a view that is planned already. It replaces a view of the same name.
    pub fn add_planned_view(&mut self, view: Arc<View>) {
        self.relations.insert(view.name.text.clone(), Relation::View(view));
    }

    pub(crate) fn insert(&mut self, name: &Name, relation: Relation) {
        self.relations.insert(name.text.clone(), relation);
    }

    /// Adds a reference table with its rows; `name` has the position of its declaration.
    pub fn add_table(&mut self, name: &Name, table: Arc<Table>) -> Result<(), SqlError> {
        self.check_is_free(name)?;
        self.relations.insert(name.text.clone(), Relation::Table(table));
        Ok(())
    }

    /// Adds models by the names of their files, in the place of earlier ones of these names.
    pub fn add_models(&mut self, models: impl IntoIterator<Item = (String, Arc<Model>)>) {
        self.models.extend(models);
    }

    pub(crate) fn models(&self) -> Vec<(String, Arc<Model>)> {
        self.models.iter().map(|(file, model)| (file.clone(), model.clone())).collect()
    }

    /// Adds a sink.
    pub fn add_sink(&mut self, sink: SinkDeclaration) -> Result<(), SqlError> {
        if self.sinks.contains_key(&sink.name.text) {
            return Err(SqlError::new(sink.name.position, format!("there is a sink '{}' already", sink.name))
                .hint(format!("DROP SINK {} first, or write IF NOT EXISTS", crate::name_in_sql(&sink.name.text))));
        }
        self.sinks.insert(sink.name.text.clone(), Arc::new(sink));
        Ok(())
    }

    /// Whether a source, a view or a table has this name.
    pub fn has_relation(&self, name: &str) -> bool {
        self.relations.contains_key(name)
    }

    /// Fails if a source, a view or a table has this name.
    pub(crate) fn check_is_free(&self, name: &Name) -> Result<(), SqlError> {
        let (what, word) = match self.relations.get(&name.text) {
            None => return Ok(()),
            Some(Relation::Source(_)) => ("source", "SOURCE"),
            Some(Relation::View(_)) => ("view", "VIEW"),
            Some(Relation::Table(_)) => ("table", "TABLE"),
        };
        Err(SqlError::new(name.position, format!("there is a {what} '{name}' already"))
            .hint(format!("DROP {word} {} first, or write IF NOT EXISTS", crate::name_in_sql(&name.text))))
    }

    /// Returns the source of that name.
    pub fn source(&self, name: &str) -> Option<&Arc<SourceDeclaration>> {
        match self.relations.get(name) {
            Some(Relation::Source(source)) => Some(source),
            _ => None,
        }
    }

    /// Returns the view of that name.
    pub fn view(&self, name: &str) -> Option<&Arc<View>> {
        match self.relations.get(name) {
            Some(Relation::View(view)) => Some(view),
            _ => None,
        }
    }

    /// Returns the reference table of that name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        match self.relations.get(name) {
            Some(Relation::Table(table)) => Some(table),
            _ => None,
        }
    }

    /// Returns the sink of that name.
    pub fn sink(&self, name: &str) -> Option<&Arc<SinkDeclaration>> {
        self.sinks.get(name)
    }

    /// The sources, by name.
    pub fn sources(&self) -> impl Iterator<Item = &Arc<SourceDeclaration>> {
        self.relations.values().filter_map(|relation| match relation {
            Relation::Source(source) => Some(source),
            _ => None,
        })
    }

    /// The views, by name.
    pub fn views(&self) -> impl Iterator<Item = &Arc<View>> {
        self.relations.values().filter_map(|relation| match relation {
            Relation::View(view) => Some(view),
            _ => None,
        })
    }

    /// The sinks, by name.
    pub fn sinks(&self) -> impl Iterator<Item = &Arc<SinkDeclaration>> {
        self.sinks.values()
    }

    /// Whether there is a source, sink or view of that name.
    pub fn has(&self, what: Declared, name: &str) -> bool {
        match what {
            Declared::Source => self.source(name).is_some(),
            Declared::Sink => self.sink(name).is_some(),
            Declared::View => self.view(name).is_some(),
        }
    }

    /// Removes a source, sink or view; returns whether there was one. Views over a source stay, because they are
    /// planned already.
    pub fn drop(&mut self, what: Declared, name: &str) -> bool {
        match what {
            Declared::Sink => self.sinks.remove(name).is_some(),
            _ => self.has(what, name) && self.relations.remove(name).is_some(),
        }
    }

    /// Removes a reference table; returns whether there was one.
    pub fn drop_table(&mut self, name: &str) -> bool {
        self.table(name).is_some() && self.relations.remove(name).is_some()
    }

    pub(crate) fn relations(&self) -> impl Iterator<Item = (&str, &Relation)> {
        self.relations.iter().map(|(name, relation)| (name.as_str(), relation))
    }
}
