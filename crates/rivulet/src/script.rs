//! A script that runs in this process, without a server: its statements in their order, each planned with the names
//! that earlier statements declared. [`crate::run`] runs the planned queries. Queries of applications run together in
//! the engine of a [trial](crate::trial), when the next statement runs something or the script ends.
//!
//! Statements take effect in their order. `SELECT` and `INSERT` run to the end of their input before the next
//! statement. A statement that reads input without an end, and a query that `CREATE QUERY` starts, continue in parallel
//! until they are stopped.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rivulet_connectors::connector::{ConnectorContext, Secrets};
use rivulet_sql::{
    BigQuery, CreateApplication, CreateBigQuery, CreateSecret, CreateTable, Name, ObjectKind, Position, QueryPlan,
    Scope, Statement, Table, explain_query, parse_script, plan_query,
};

use crate::engine::{TableBound, read_table};
use crate::run::{
    CONNECTORS, check_sink, check_source, create_source, own_columns, read_models, replaced_file, with_files,
};
use crate::service::ServiceError;
use crate::trial::{Trial, beside_script};

/// The most bytes of a reference table.
const TABLE_BYTES_MAX: usize = 1 << 30;

/// A script that was read and not run yet.
pub struct Script {
    statements: std::vec::IntoIter<(Statement, Position)>,
    scope: Scope,
    /// The number of the next query that has no name.
    unnamed: usize,
    /// Files that a query of the script replaces with its result, each with the name of the query.
    replaced: HashMap<PathBuf, String>,
    /// The names of the queries that were created.
    named: HashSet<String>,
    host: ConnectorContext,
    /// The values of secrets, by name.
    secrets: HashMap<String, String>,
    /// The folder of the script, where files of tables are looked for first.
    folder: PathBuf,
    /// Applications, and the declarations that they need to be registered.
    declared: Vec<Declared>,
    /// Applications with queries that have not run yet.
    trial: Option<Box<Trial>>,
}

/// A statement with which each engine of applications begins.
enum Declared {
    Table(Box<CreateTable>),
    Application(Box<CreateApplication>),
}

/// The next thing to do.
pub enum Step {
    /// A query is to be run.
    Run(Planned),
    /// An explanation, or a list of names, to be shown.
    Show(String),
    /// A query is to be run, and then explained with its figures.
    Analyze(Planned),
    /// Queries of applications are to be run.
    Applications(Box<Trial>),
}

/// A query to be run.
pub struct Planned {
    /// Its name, given or generated.
    pub name: String,
    /// Its plan.
    pub plan: QueryPlan,
    /// Whether it continues in parallel with the following statements, as `CREATE QUERY` says.
    pub goes_on: bool,
    /// The file that its result replaces when it ends, if it writes one.
    pub replaces: Option<PathBuf>,
    /// What its sources and sinks find in the process: files, and the secrets of the script so far.
    pub host: ConnectorContext,
}

impl Script {
    /// Reads all statements. Errors anywhere are found before anything runs.
    ///
    /// # Errors
    /// A statement cannot be parsed.
    pub fn parse(text: &str) -> Result<Self, ServiceError> {
        Self::parse_in(text, Path::new(""))
    }

    /// The same for a script in a folder.
    ///
    /// # Errors
    /// A statement cannot be parsed.
    pub fn parse_in(text: &str, folder: &Path) -> Result<Self, ServiceError> {
        let statements = parse_script(text).map_err(ServiceError::from)?;
        Ok(Self {
            statements: statements.into_iter(),
            scope: Scope::new(),
            unnamed: 1,
            replaced: HashMap::new(),
            named: HashSet::new(),
            host: ConnectorContext::of_user(),
            secrets: HashMap::new(),
            folder: folder.to_owned(),
            declared: Vec::new(),
            trial: None,
        })
    }

    /// Whether statements are left.
    pub fn has_more(&self) -> bool {
        !self.statements.as_slice().is_empty()
    }

    /// Whether a statement that is left makes a query of an application.
    pub fn has_queries_of_applications(&self) -> bool {
        self.statements.as_slice().iter().any(|(statement, _)| matches!(statement, Statement::CreateQuery { .. }))
    }

    /// Returns the next thing to do; `None` at the end.
    ///
    /// # Errors
    /// A statement cannot be carried out. The error has its position.
    pub fn next_step(&mut self) -> Result<Option<Step>, ServiceError> {
        loop {
            if self.runs_next()
                && let Some(trial) = self.trial.take_if(|trial| trial.has_queries())
            {
                return Ok(Some(Step::Applications(trial)));
            }
            let Some((statement, position)) = self.statements.next() else { return Ok(None) };
            if let Some(step) = self.carry_out(statement, position)? {
                return Ok(Some(step));
            }
        }
    }

    /// Whether the next statement may read what queries of applications write, or there is no further statement.
    fn runs_next(&self) -> bool {
        use Statement::{CreateBigQuery, ExplainBigQuery, RunQuery};
        let next = self.statements.as_slice().first().map(|(statement, _)| statement);
        matches!(next, None | Some(RunQuery(_) | CreateBigQuery(_) | ExplainBigQuery { analyze: true, .. }))
    }

    /// The engine of applications, with all declared applications.
    fn trial(&mut self) -> Result<&mut Trial, ServiceError> {
        if self.trial.is_none() {
            let mut trial = Trial::new()?;
            for declared in &self.declared {
                match declared {
                    Declared::Table(create) => trial.create_table((**create).clone(), &self.folder)?,
                    Declared::Application(create) => trial.create_application(create)?,
                }
            }
            self.trial = Some(Box::new(trial));
        }
        Ok(self.trial.as_mut().expect("it was made if it was not there"))
    }

    fn carry_out(&mut self, statement: Statement, position: Position) -> Result<Option<Step>, ServiceError> {
        match statement {
            Statement::CreateSource(create) => {
                let known = self.scope.source(&create.name.text).is_some();
                if !(known && create.if_not_exists) {
                    let source = create.declare(own_columns(&self.host.files))?;
                    check_source(&source, &self.host)?;
                    self.scope.add_source(source)?;
                }
            }
            Statement::CreateSink(create) => {
                let known = self.scope.sink(&create.name.text).is_some();
                if !(known && create.if_not_exists) {
                    let sink = create.declare()?;
                    check_sink(&sink, &self.host)?;
                    self.scope.add_sink(sink)?;
                }
            }
            Statement::CreateSecret(create) => self.create_secret(create)?,
            Statement::CreateView(create) => {
                let known = self.scope.view(&create.name.text).is_some();
                if !(known && create.if_not_exists) {
                    self.scope.add_models(read_models(&create.query, &self.host.files)?);
                    self.scope.add_view(&create)?;
                }
            }
            Statement::CreateTable(create) => self.create_table(*create)?,
            Statement::CreateApplication(create) => {
                self.trial()?.create_application(&create)?;
                self.declared.push(Declared::Application(create));
            }
            Statement::CreateQuery { .. } => self.trial()?.create_query(statement, position)?,
            Statement::RunQuery(query) => return Ok(Some(Step::Run(self.plan_to_run(&query, None)?))),
            Statement::CreateBigQuery(create) => {
                let CreateBigQuery { name, if_not_exists, replaces, query, .. } = *create;
                if self.named.contains(&name.text) {
                    return match if_not_exists {
                        true => Ok(None),
                        false => Err(is_there(&name, replaces.is_some())),
                    };
                }
                let planned = self.plan_to_run(&query, Some(name.text.clone()))?;
                self.named.insert(name.text);
                return Ok(Some(Step::Run(planned)));
            }
            Statement::ExplainBigQuery { query, analyze: false } => {
                let scope = with_files(&query, &self.scope, &self.host)?;
                return Ok(Some(Step::Show(explain_query(&plan_query(&query, &scope)?))));
            }
            Statement::ExplainBigQuery { query, analyze: true } => {
                return Ok(Some(Step::Analyze(self.plan(&query, None)?)));
            }
            Statement::DescribeFile { path, position } => {
                return Ok(Some(Step::Show(create_source(&path, position, &self.host.files)?)));
            }
            Statement::Drop { kind: kind @ (ObjectKind::Table | ObjectKind::Declared(_)), name, if_exists, .. } => {
                let dropped = match kind {
                    ObjectKind::Declared(what) => self.scope.drop(what, &name.text),
                    _ => self.scope.drop_table(&name.text),
                };
                expect_dropped(dropped || if_exists, kind.word(), &name.text, name.position)?;
            }
            _ => {
                return Err(ServiceError::invalid("this statement needs a server")
                    .at(position.line, position.column)
                    .with_hint("start one with rivulet serve, and run the script with rivulet sql"));
            }
        }
        Ok(None)
    }

    fn plan(&mut self, query: &BigQuery, name: Option<String>) -> Result<Planned, ServiceError> {
        let plan = plan_query(query, &with_files(query, &self.scope, &self.host)?)?;
        let goes_on = name.is_some();
        let name = name.unwrap_or_else(|| {
            self.unnamed += 1;
            format!("query_{}", self.unnamed - 1)
        });
        Ok(Planned { name, plan, goes_on, replaces: None, host: self.host.clone() })
    }

    /// The same for a query that is to be run. No two may write one file: the second would replace the result of the
    /// first.
    fn plan_to_run(&mut self, query: &BigQuery, name: Option<String>) -> Result<Planned, ServiceError> {
        let planned = self.plan(query, name)?;
        let Some(file) = planned.plan.output.sink.as_ref().and_then(|sink| replaced_file(sink, &self.host)) else {
            return Ok(planned);
        };
        if let Some(other) = self.replaced.insert(file.clone(), planned.name.clone()) {
            let position = query.sink.as_ref().map_or(query.position, |sink| sink.position);
            let message = format!("{} is what '{other}' writes, and this query would replace it", file.display());
            return Err(ServiceError::invalid(message).at(position.line, position.column).with_hint(
                "write both in one: INSERT INTO sink SELECT ... UNION ALL SELECT ...; or to a folder ('file:results/'), or with append => true",
            ));
        }
        Ok(Planned { replaces: Some(file), ..planned })
    }

    /// A secret lasts as long as the script.
    fn create_secret(&mut self, create: CreateSecret) -> Result<(), ServiceError> {
        let CreateSecret { name, if_not_exists, replaces, value } = create;
        if self.secrets.contains_key(&name.text) && !replaces {
            let message = format!("there is a secret '{name}' already");
            let error = ServiceError::invalid(message).with_hint("CREATE OR REPLACE SECRET gives it another value");
            return if if_not_exists { Ok(()) } else { Err(error.at(name.position.line, name.position.column)) };
        }
        self.secrets.insert(name.text, value.0);
        let known = self.secrets.clone();
        self.host.secrets = Secrets::found_by(move |name| known.get(name).cloned());
        Ok(())
    }

    fn create_table(&mut self, mut create: CreateTable) -> Result<(), ServiceError> {
        let name = create.name.text.clone();
        if create.if_not_exists && self.scope.table(&name).is_some() {
            return Ok(());
        }
        if let Some(path) = CONNECTORS.path_of(&create.address).filter(|path| !path.is_empty()) {
            create.address = format!("file:{}", beside_script(&self.folder, path).display());
        }
        let rows = read_table(&create, TableBound::of_each(TABLE_BYTES_MAX), &self.host.files)?;
        self.scope.add_table(&create.name, Arc::new(Table::new(&name, rows)))?;
        if let Some(trial) = &mut self.trial {
            trial.create_table(create.clone(), &self.folder)?;
        }
        self.declared.push(Declared::Table(Box::new(create)));
        Ok(())
    }
}

/// The error for a second query of a name. Each query begins when its statement is reached, so there is none that could
/// be replaced.
fn is_there(name: &Name, replaces: bool) -> ServiceError {
    let error = match replaces {
        true => {
            ServiceError::invalid(format!("the query '{name}' runs already, and without a server none is replaced"))
                .with_hint("leave the first one out; a server replaces queries: rivulet serve, and rivulet sql")
        }
        false => ServiceError::invalid(format!("there is a query '{name}' already"))
            .with_hint("give it another name, or write IF NOT EXISTS"),
    };
    error.at(name.position.line, name.position.column)
}

fn expect_dropped(done: bool, what: &str, name: &str, position: Position) -> Result<(), ServiceError> {
    match done {
        true => Ok(()),
        false => Err(ServiceError::not_found(format!("there is no {what} '{name}'"))
            .at(position.line, position.column)
            .with_hint(format!("write DROP {} IF EXISTS where that is no mistake", what.to_uppercase()))),
    }
}
