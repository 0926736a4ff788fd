//! The names that queries may use: sources, views and reference tables to read, sinks to write.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion_expr::LogicalPlan;
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::carried;
use rivulet_operators::Table;

use crate::address::parse_address;
use crate::plan::query::{check_letters, plan_computed, plan_view};
use crate::statement::{CreateSink, CreateSource, CreateView, FormatSpec, Name};
use crate::value::{TIMESTAMP, declared_type_name, interval_us, type_name};
use crate::{Literal, Position, SqlError, suggest};

/// The longest lateness or timeout, in microseconds: ten years.
const SPAN_US_MAX: i64 = 3650 * 86_400_000_000;

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
    /// The options, all for the connector.
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
            event_time_column: None,
            lateness_us: 0,
            idle_timeout_us: None,
            future_limit_us: None,
            late: None,
            dead_letter: None,
            address,
            format: None,
            options: Vec::new(),
            text: String::new(),
        }
    }

    /// The names of its columns, and their types as they are declared.
    pub fn columns(&self) -> Vec<(String, String)> {
        let computed = &self.schema.fields()[self.declared.fields().len()..];
        let fields = self.declared.fields().iter().chain(computed);
        fields.map(|field| (field.name().clone(), declared_type_name(field.data_type()))).collect()
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

impl SinkDeclaration {
    /// The names of its columns, and their types as they are declared. Empty if the columns are those of the rows that
    /// are written.
    pub fn columns(&self) -> Vec<(String, String)> {
        let fields = self.schema.iter().flat_map(|schema| schema.fields());
        fields.map(|field| (field.name().clone(), declared_type_name(field.data_type()))).collect()
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

fn connector_of(address: &str) -> String {
    address.split(':').next().unwrap_or_default().to_ascii_lowercase()
}

fn rest_of(address: &str) -> &str {
    address.split_once(':').map_or("", |(_, rest)| rest)
}

impl CreateSource {
    /// Returns the declared source. `own_columns` is asked where the statement has no columns: it gets the connector's
    /// name and the part of the address behind the colon, and returns the connector's own columns with the index of the
    /// event time, or an error without a position.
    pub fn declare(
        &self,
        own_columns: impl FnOnce(&str, &str) -> Option<Result<(SchemaRef, Option<usize>), SqlError>>,
    ) -> Result<SourceDeclaration, SqlError> {
        if let Some(error) = &self.unread {
            return Err(error.clone());
        }
        check_address(&self.address, self.address_position)?;
        let (connector, rest) = (connector_of(&self.address), rest_of(&self.address));
        let computed = self.computed.open();
        let (declared, mut event_time_column) = match &self.columns {
            Some(columns) => {
                let fields = columns
                    .iter()
                    .map(|column| Field::new(&column.name.text, column.data_type.clone(), !column.not_null));
                let declared = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
                let of_computed = computed.iter().position(|column| column.event_time);
                let of_declared = columns.iter().position(|column| column.event_time);
                (declared, of_declared.or(of_computed.map(|place| columns.len() + place)))
            }
            None => match own_columns(&connector, rest) {
                Some(own) => own.map_err(|error| error.or_at(self.address_position))?,
                None => {
                    let message = format!("the source '{}' has no columns", self.name);
                    return Err(SqlError::new(self.name.position, message).hint(format!(
                        "declare them: CREATE SOURCE {} (ts TIMESTAMP EVENT TIME, value DOUBLE) FROM ...",
                        self.name
                    )));
                }
            },
        };
        let carried = carried(&declared);
        let (fields, computed) = plan_computed(&self.name, computed, &carried)?;
        let fields: Vec<FieldRef> = carried.fields().iter().cloned().chain(fields.into_iter().map(Arc::new)).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, carried.metadata().clone()));
        let (mut lateness_us, mut idle_timeout_us, mut future_limit_us) = (0, None, None);
        if let Some(watermark) = &self.watermark {
            event_time_column = Some(watermarked_column(&schema, event_time_column, &watermark.column)?);
            lateness_us = watermark.lateness_us;
        }
        let (mut late, mut dead_letter) = (None, None);
        let mut options = Vec::new();
        for (name, literal, position) in &self.options {
            match name.text.as_str() {
                "late" => late = Some(sink_name(name, literal, *position)?),
                "dead_letter" => dead_letter = Some(sink_name(name, literal, *position)?),
                "lateness" if self.watermark.is_some() => {
                    return Err(SqlError::new(name.position, "the lateness is declared twice")
                        .hint("WATERMARK FOR says it already"));
                }
                "lateness" => lateness_us = span(name, literal, *position, 0)?,
                "idle_timeout" => idle_timeout_us = Some(span(name, literal, *position, 1)?),
                "future_limit" => future_limit_us = Some(span(name, literal, *position, 0)?),
                _ => options.push((name.clone(), literal.clone(), *position)),
            }
        }
        // The event time of a row is never null.
        let with_time = |schema: SchemaRef| match event_time_column {
            Some(column) if schema.fields().get(column).is_some_and(|field| field.is_nullable()) => {
                let mut fields = schema.fields().to_vec();
                fields[column] = Arc::new(schema.field(column).clone().with_nullable(false));
                Arc::new(Schema::new(fields))
            }
            _ => schema,
        };
        Ok(SourceDeclaration {
            name: self.name.clone(),
            schema: with_time(schema),
            declared: with_time(declared),
            computed,
            event_time_column,
            lateness_us,
            idle_timeout_us,
            future_limit_us,
            late,
            dead_letter,
            address: self.address.clone(),
            address_position: self.address_position,
            format: self.format.clone(),
            options,
            text: self.text.clone(),
        })
    }
}

/// Reads the sink that an option of a source names.
fn sink_name(option: &Name, literal: &Literal, position: Position) -> Result<Name, SqlError> {
    match literal {
        Literal::Text(text) => Ok(Name { text: text.clone(), position }),
        _ => Err(SqlError::new(position, format!("{option} takes the name of a sink in single quotes"))
            .hint(format!("write for example {option} => 'letters'"))),
    }
}

/// Returns the index of the column in WATERMARK FOR.
fn watermarked_column(schema: &Schema, declared: Option<usize>, name: &Name) -> Result<usize, SqlError> {
    let Ok(place) = schema.index_of(&name.text) else {
        let names = schema.fields().iter().map(|field| field.name().as_str());
        return Err(SqlError::new(name.position, format!("unknown column '{name}'"))
            .did_you_mean(suggest::nearest(&name.text, names)));
    };
    let field = schema.field(place);
    if *field.data_type() != TIMESTAMP {
        return Err(SqlError::new(
            name.position,
            format!("the event time '{name}' must be a TIMESTAMP, not {}", type_name(field.data_type())),
        ));
    }
    match declared {
        Some(other) if other != place => Err(SqlError::new(
            name.position,
            format!("a source has one EVENT TIME, and that is '{}' already", schema.field(other).name()),
        )),
        _ => Ok(place),
    }
}

impl CreateSink {
    /// Returns the declared sink.
    pub fn declare(&self) -> Result<SinkDeclaration, SqlError> {
        if let Some(error) = &self.unread {
            return Err(error.clone());
        }
        check_address(&self.address, self.address_position)?;
        let schema = self.columns.as_ref().map(|columns| {
            let fields =
                columns.iter().map(|column| Field::new(&column.name.text, column.data_type.clone(), !column.not_null));
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        });
        Ok(SinkDeclaration {
            name: self.name.clone(),
            schema,
            address: self.address.clone(),
            address_position: self.address_position,
            format: self.format.clone(),
            options: self.options.clone(),
            text: self.text.clone(),
        })
    }
}

/// Checks the address of a source or sink: `connector:rest`, where the rest may be empty and braces have no meaning.
fn check_address(text: &str, position: Position) -> Result<(), SqlError> {
    let plain: String = text.chars().filter(|character| !"{}".contains(*character)).collect();
    let whole = if plain.ends_with(':') { format!("{plain}-") } else { plain };
    parse_address(&whole, position, &[]).map(|_| ()).map_err(|error| {
        match error.message.starts_with("an address has") {
            true => error,
            false => error.hint("an address is written 'connector:rest', for example 'file:data/bids.csv'"),
        }
    })
}

/// Reads an option that is a time span of at least `least_us`.
pub(crate) fn span(name: &Name, literal: &Literal, position: Position, least_us: i64) -> Result<i64, SqlError> {
    let example = || format!("write for example {name} => INTERVAL '5 seconds'");
    let value = match literal {
        Literal::Interval(value) => *value,
        Literal::Text(text) => crate::value::parse_interval(text)
            .ok_or_else(|| SqlError::new(position, format!("'{text}' is not an interval")).hint(example()))?,
        _ => return Err(SqlError::new(position, format!("{name} is a time span")).hint(example())),
    };
    interval_us(value).filter(|us| (least_us..=SPAN_US_MAX).contains(us)).ok_or_else(|| {
        SqlError::new(position, format!("{name} cannot be {}", crate::interval_text(value)))
            .hint("it is a fixed time span of at most ten years, and not negative")
    })
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
}

impl Scope {
    /// Returns a scope without any names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source.
    pub fn add_source(&mut self, source: SourceDeclaration) -> Result<(), SqlError> {
        self.check_is_free(&source.name)?;
        check_letters(&source, self)?;
        self.relations.insert(source.name.text.clone(), Relation::Source(Arc::new(source)));
        Ok(())
    }

    /// Plans a view over what is in scope, and adds it.
    pub fn add_view(&mut self, create: &CreateView) -> Result<(), SqlError> {
        self.check_is_free(&create.name)?;
        let plan = Arc::new(plan_view(&create.query, self)?);
        let view = View { name: create.name.clone(), text: create.text.clone(), plan };
        self.relations.insert(create.name.text.clone(), Relation::View(Arc::new(view)));
        Ok(())
    }

    /// Adds a view that is planned already. It replaces a view of the same name.
    pub fn add_planned_view(&mut self, view: Arc<View>) {
        self.relations.insert(view.name.text.clone(), Relation::View(view));
    }

    /// Adds a reference table with its rows; `name` has the position of its declaration.
    pub fn add_table(&mut self, name: &Name, table: Arc<Table>) -> Result<(), SqlError> {
        self.check_is_free(name)?;
        self.relations.insert(name.text.clone(), Relation::Table(table));
        Ok(())
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

    fn check_is_free(&self, name: &Name) -> Result<(), SqlError> {
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

    /// Removes a source; returns whether there was one. Views over it stay, because they are planned already.
    pub fn drop_source(&mut self, name: &str) -> bool {
        self.source(name).is_some() && self.relations.remove(name).is_some()
    }

    /// Removes a view; returns whether there was one.
    pub fn drop_view(&mut self, name: &str) -> bool {
        self.view(name).is_some() && self.relations.remove(name).is_some()
    }

    /// Removes a reference table; returns whether there was one.
    pub fn drop_table(&mut self, name: &str) -> bool {
        self.table(name).is_some() && self.relations.remove(name).is_some()
    }

    /// Removes a sink; returns whether there was one.
    pub fn drop_sink(&mut self, name: &str) -> bool {
        self.sinks.remove(name).is_some()
    }

    pub(crate) fn relations(&self) -> impl Iterator<Item = (&str, &Relation)> {
        self.relations.iter().map(|(name, relation)| (name.as_str(), relation))
    }
}
