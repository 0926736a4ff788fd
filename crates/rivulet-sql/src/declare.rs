//! Sources, views and sinks from their statements, and into the scope.

use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use rivulet_dataflow::carried;

use crate::address::parse_address;
use crate::parse::span;
use crate::plan::query::{check_letters, plan_computed, plan_view};
use crate::scope::{Relation, connector_of, rest_of};
use crate::statement::{ColumnDeclaration, CreateSink, CreateSource, CreateView, FormatSpec, Name};
use crate::value::{TIMESTAMP, type_name};
use crate::{Literal, Position, Scope, SinkDeclaration, SourceDeclaration, SqlError, View, suggest};

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
                let is_key = |name: &Name| self.key.iter().flatten().any(|key| key.text == name.text);
                // A row without a key could not be told from others.
                let fields = columns.iter().map(|column| match is_key(&column.name) {
                    true => column.field().with_nullable(false),
                    false => column.field(),
                });
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
        let key = self.key.as_ref().map(|names| names.iter().map(|name| key_column(&declared, name)).collect());
        let carried = carried(&declared);
        let (fields, computed) = plan_computed(&self.name, computed, &carried)?;
        let fields: Vec<FieldRef> = carried.fields().iter().cloned().chain(fields.into_iter().map(Arc::new)).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, carried.metadata().clone()));
        let (mut lateness_us, mut idle_timeout_us, mut future_limit_us) = (0, None, None);
        if let Some(watermark) = &self.watermark {
            event_time_column = Some(watermarked_column(&schema, event_time_column, &watermark.column)?);
            lateness_us = watermark.lateness_us;
        }
        let (mut late, mut dead_letter, mut is_small, mut is_partial) = (None, None, false, false);
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
                "future_limit" if self.format.as_ref().is_some_and(FormatSpec::has_changes) => {
                    return Err(SqlError::new(name.position, "future_limit does not go with FORMAT DEBEZIUM").hint(
                        "leave it out: a row that is refused now may be within the limit when it is taken back later",
                    ));
                }
                "future_limit" => future_limit_us = Some(span(name, literal, *position, 0)?),
                "size" if matches!(literal, Literal::Text(text) if text == "small") => is_small = true,
                "size" => {
                    return Err(SqlError::new(*position, "size takes 'small'").hint(
                        "leave it out where all rows of the source may not fit the memory once for each instance",
                    ));
                }
                PARTIAL => is_partial = partial(&self.address, literal, *position)?,
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
            key: key.transpose()?,
            event_time_column,
            lateness_us,
            idle_timeout_us,
            future_limit_us,
            is_small,
            is_partial,
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

/// Returns the index of a column of PRIMARY KEY.
fn key_column(declared: &Schema, name: &Name) -> Result<usize, SqlError> {
    declared.index_of(&name.text).map_err(|_| {
        let names = declared.fields().iter().map(|field| field.name().as_str());
        let hint = "the columns of a key are declared ones";
        SqlError::new(name.position, format!("unknown column '{name}'")).suggest(&name.text, names, hint)
    })
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
            let fields = columns.iter().map(ColumnDeclaration::field);
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        });
        let (mut options, mut is_partial) = (self.options.clone(), false);
        if let Some(place) = options.iter().position(|(name, ..)| name.text == PARTIAL) {
            let (name, literal, position) = options.remove(place);
            is_partial = partial(&self.address, &literal, position)?;
            if is_partial && schema.is_some() {
                return Err(SqlError::new(name.position, "a sink with `partial` has the columns of states")
                    .hint("leave its columns out"));
            }
            // A state that came twice would count twice, and nobody could see that.
            if is_partial && options.iter().all(|(name, ..)| name.text != "delivery") {
                let name = Name { text: "delivery".into(), ..name };
                options.push((name, Literal::Text("exactly_once".into()), position));
            }
        }
        Ok(SinkDeclaration {
            name: self.name.clone(),
            schema,
            address: self.address.clone(),
            address_position: self.address_position,
            format: self.format.clone(),
            is_partial,
            options,
            text: self.text.clone(),
        })
    }
}

/// The option of a source or sink of states.
const PARTIAL: &str = "partial";

/// Reads its value.
fn partial(address: &str, literal: &Literal, position: Position) -> Result<bool, SqlError> {
    match literal {
        Literal::Boolean(value) if connector_of(address) == "link" => Ok(*value),
        Literal::Boolean(_) => Err(SqlError::new(position, "`partial` goes with 'link:', from one server to another")
            .hint("leave it out: within a server the planner decides by itself")),
        _ => Err(SqlError::new(position, "`partial` is true or false").hint("write partial => true")),
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

impl Scope {
    /// Adds a source.
    pub fn add_source(&mut self, source: SourceDeclaration) -> Result<(), SqlError> {
        self.check_is_free(&source.name)?;
        check_letters(&source, self)?;
        let name = source.name.clone();
        self.insert(&name, Relation::Source(Arc::new(source)));
        Ok(())
    }

    /// Plans a view over what is in scope, and adds it.
    pub fn add_view(&mut self, create: &CreateView) -> Result<(), SqlError> {
        self.check_is_free(&create.name)?;
        let plan = Arc::new(plan_view(&create.query, self)?);
        let view = View { name: create.name.clone(), text: create.text.clone(), plan };
        self.insert(&create.name, Relation::View(Arc::new(view)));
        Ok(())
    }
}
