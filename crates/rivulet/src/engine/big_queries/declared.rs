//! Sources, sinks and views: declared, remembered, shown, and dropped as long as nothing needs them.

use arrow::datatypes::{DataType, SchemaRef};
use rivulet_sql::{Name, Scope, SqlError, Statement, plan_query, type_name};

use crate::engine::Engine;
use crate::run::{check_sink, check_source, own_columns};
use crate::service::{ErrorKind, ServiceError};

use super::Known;

/// What is declared for big queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Declared {
    Source,
    Sink,
    View,
}

/// What there is to know of something that is declared.
pub(in crate::engine) struct Description {
    /// Where rows come from or go to; a view has none.
    pub address: Option<String>,
    /// Name and SQL type of its columns; none of a sink that takes whatever is written.
    pub columns: Vec<(String, String)>,
    /// The names of views and queries that could not be without it.
    pub needed_by: Vec<String>,
    /// The statement as it was written.
    pub text: String,
}

/// A statement that declares something: what, its name, whether it may be there already, and its text.
struct Declaration<'s> {
    what: Declared,
    name: &'s Name,
    if_not_exists: bool,
    text: &'s str,
}

impl<'s> Declaration<'s> {
    fn of(statement: &'s Statement) -> Option<Self> {
        let (what, name, if_not_exists, text) = match statement {
            Statement::CreateSource(one) => (Declared::Source, &one.name, one.if_not_exists, &one.text),
            Statement::CreateSink(one) => (Declared::Sink, &one.name, one.if_not_exists, &one.text),
            Statement::CreateView(one) => (Declared::View, &one.name, one.if_not_exists, &one.text),
            _ => return None,
        };
        Some(Self { what, name, if_not_exists, text })
    }
}

impl Declared {
    pub(in crate::engine) fn word(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Sink => "sink",
            Self::View => "view",
        }
    }

    fn is_in(self, scope: &Scope, name: &str) -> bool {
        match self {
            Self::Source => scope.source(name).is_some(),
            Self::Sink => scope.sink(name).is_some(),
            Self::View => scope.view(name).is_some(),
        }
    }
}

/// Adds what a statement declares to the names that there are.
fn declare(statement: &Statement, scope: &mut Scope) -> Result<(), SqlError> {
    match statement {
        Statement::CreateSource(create) => scope.add_source(create.declare(own_columns)?),
        Statement::CreateSink(create) => scope.add_sink(create.declare()?),
        Statement::CreateView(create) => scope.add_view(create),
        _ => Ok(()),
    }
}

/// Fails if it can be seen that what is declared cannot be opened, or not here.
fn check(statement: &Statement) -> Result<(), ServiceError> {
    let (connector, place) = match statement {
        Statement::CreateSource(create) => {
            let source = create.declare(own_columns)?;
            check_source(&source)?;
            (source.connector(), source.address_position)
        }
        Statement::CreateSink(create) => {
            let sink = create.declare()?;
            check_sink(&sink)?;
            (sink.connector(), sink.address_position)
        }
        _ => return Ok(()),
    };
    match connector.as_str() {
        "stdin" | "stdout" => {
            Err(ServiceError::invalid(format!("a server has no '{connector}:': nobody sits in front of it"))
                .at(place.line, place.column)
                .with_hint("run the script with `rivulet run`, or use a file, a topic or HTTP"))
        }
        _ => Ok(()),
    }
}

impl Known {
    /// The names of what could not be carried out without the statement with this number; `scope` has the reference tables.
    fn need(&self, number: u64, mut scope: Scope) -> Vec<String> {
        let mut needing = Vec::new();
        let mut queries = Vec::new();
        for (_, statement) in self.remembered.iter().filter(|(other, _)| **other != number) {
            match (statement, Declaration::of(statement)) {
                // They may use what was declared after them.
                (Statement::CreateBigQuery(create), _) => queries.push(create),
                (_, Some(declaration)) if declare(statement, &mut scope).is_err() => {
                    needing.push(declaration.name.text.clone());
                }
                _ => {}
            }
        }
        let lack = queries.iter().filter(|create| plan_query(&create.query, &scope).is_err());
        needing.extend(lack.map(|create| create.name.text.clone()));
        needing
    }

    /// That nothing needs the statement with this number; an error says what does.
    fn check_without(&self, number: u64, scope: Scope) -> Result<(), ServiceError> {
        match self.need(number, scope).first() {
            None => Ok(()),
            Some(what) => Err(ServiceError::new(ErrorKind::Conflict, format!("'{what}' needs it"))
                .with_hint(format!("drop '{what}' first"))),
        }
    }
}

impl Engine {
    /// Declares a source, sink or view and remembers it; what was done, in words.
    pub(in crate::engine) fn declare(&self, statement: Statement) -> Result<String, ServiceError> {
        let Some(Declaration { what, name, if_not_exists, text }) = Declaration::of(&statement) else {
            return Err(ServiceError::invalid("the statement declares no source, sink or view"));
        };
        let _changing = self.big_queries.changing.lock();
        if if_not_exists && what.is_in(&self.big_queries.known.lock().scope, &name.text) {
            return Ok(format!("{} {name} exists, nothing was done", what.word()));
        }
        // Where it is only tried, what is wrong is found before it is remembered.
        declare(&statement, &mut self.scope())?;
        check(&statement)?;
        let done = format!("{} {name} created", what.word());
        let number = self.catalog.insert_statement(text)?;
        self.enter(&statement)?;
        self.big_queries.known.lock().remembered.insert(number, statement);
        Ok(done)
    }

    /// Adds what a statement declares to the names that there are. Tables, which views may read, are known and do not stay.
    pub(super) fn enter(&self, statement: &Statement) -> Result<(), SqlError> {
        let mut full = self.scope();
        declare(statement, &mut full)?;
        let scope = &mut self.big_queries.known.lock().scope;
        match statement {
            Statement::CreateView(create) => {
                scope.add_planned_view(full.view(&create.name.text).expect("it was just added").clone());
                Ok(())
            }
            _ => declare(statement, scope),
        }
    }

    /// Forgets a source, sink or view that nothing needs; whether there was one.
    pub(in crate::engine) fn drop_declared(&self, what: Declared, name: &Name) -> Result<bool, ServiceError> {
        let _changing = self.big_queries.changing.lock();
        let mut tables = Scope::new();
        self.add_tables(&mut tables);
        let mut known = self.big_queries.known.lock();
        let is_it = |statement: &Statement| {
            Declaration::of(statement).is_some_and(|one| one.what == what && one.name.text == name.text)
        };
        let found = known.remembered.iter().find(|(_, statement)| is_it(statement)).map(|(number, _)| *number);
        let Some(number) = found else { return Ok(false) };
        known.check_without(number, tables).map_err(|error| ServiceError {
            message: format!("the {} '{name}' cannot be dropped: {}", what.word(), error.message),
            ..error
        })?;
        self.catalog.remove_statement(number)?;
        match what {
            Declared::Source => known.scope.drop_source(&name.text),
            Declared::Sink => known.scope.drop_sink(&name.text),
            Declared::View => known.scope.drop_view(&name.text),
        };
        known.remembered.remove(&number);
        Ok(true)
    }

    /// What there is to know of a source, sink or view; `None` if there is no such thing.
    pub(in crate::engine) fn describe_declared(&self, what: Declared, name: &str) -> Option<Description> {
        let columns_of = |schema: &SchemaRef| -> Vec<(String, DataType)> {
            schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
        };
        let mut tables = Scope::new();
        self.add_tables(&mut tables);
        let known = self.big_queries.known.lock();
        let (address, columns, text) = match what {
            Declared::Source => {
                let one = known.scope.source(name)?;
                (Some(one.address.clone()), columns_of(&one.schema), one.text.clone())
            }
            Declared::Sink => {
                let one = known.scope.sink(name)?;
                let columns = one.schema.as_ref().map(columns_of).unwrap_or_default();
                (Some(one.address.clone()), columns, one.text.clone())
            }
            Declared::View => {
                let one = known.scope.view(name)?;
                (None, one.columns(), one.text.clone())
            }
        };
        let is_it = |statement: &Statement| {
            Declaration::of(statement).is_some_and(|one| one.what == what && one.name.text == name)
        };
        let number = known.remembered.iter().find(|(_, statement)| is_it(statement)).map(|(number, _)| *number)?;
        let columns = columns.into_iter().map(|(name, data_type)| (name, type_name(&data_type))).collect();
        Some(Description { address, columns, needed_by: known.need(number, tables), text })
    }

    /// Name and address, or text, of the sources, sinks or views.
    pub(in crate::engine) fn declared(&self, what: Declared) -> Vec<(String, String)> {
        let scope = &self.big_queries.known.lock().scope;
        match what {
            Declared::Source => scope.sources().map(|one| (one.name.text.clone(), one.address.clone())).collect(),
            Declared::Sink => scope.sinks().map(|one| (one.name.text.clone(), one.address.clone())).collect(),
            Declared::View => scope.views().map(|one| (one.name.text.clone(), one.text.clone())).collect(),
        }
    }
}
