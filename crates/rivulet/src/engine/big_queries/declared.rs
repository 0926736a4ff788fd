//! Sources, sinks and views: declared, recorded, shown, and dropped as long as nothing needs them.
//!
//! Some recorded declarations are *absent*: the server could not enter them when it started, for example because the
//! file that gives the columns of a source did not answer. Queries cannot use them yet. They keep their names, are
//! shown with the reason, can be dropped, and the watch tries them again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rivulet_connectors::connector::{ConnectorContext, Direction, Secrets};
use rivulet_connectors::files::Files;
use rivulet_sql::{
    CreateBigQuery, CreateView, Declared, Model, Name, Scope, SinkDeclaration, SourceDeclaration, SqlError, Statement,
    name_in_sql, plan_query, shown_address, shown_statement, type_name,
};

use crate::engine::outside::OPEN_MAX;
use crate::run::{CONNECTORS, check_sink, check_source, own_columns, read_models};
use crate::service::{ErrorKind, FullName, ServiceError, Tenant};

use super::{Absence, BigQueries, Known, Remembered, Space};

/// The description of a declaration.
pub(in crate::engine) struct Description {
    /// Where rows come from or go to; a view has no address.
    pub address: Option<String>,
    /// Why no query can use it yet.
    pub problem: Option<String>,
    /// Name and SQL type of its columns; none for a sink that accepts any rows.
    pub columns: Vec<(String, String)>,
    /// The names of views and queries that cannot exist without it.
    pub needed_by: Vec<String>,
    /// Probable mistakes in the rows that queries read from a source.
    pub warnings: Vec<String>,
    /// The statement as it was written, without secrets.
    pub text: String,
}

/// A declaring statement: its kind, its name, whether the declaration may exist already, and its text.
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

/// A declaration, with all that had to be read from outside for it.
#[derive(Clone)]
pub(super) enum Ready {
    Source(SourceDeclaration),
    Sink(SinkDeclaration),
    /// With the models that it calls.
    View(Box<CreateView>, Vec<(String, Arc<Model>)>),
}

impl Ready {
    /// Reads the columns of a source from its file, if the file defines them, and the models of a view. The statement
    /// is a declaration.
    fn of(statement: &Statement, files: &Files) -> Result<Self, ServiceError> {
        match statement {
            Statement::CreateSource(create) => Ok(Self::Source(create.declare(own_columns(files))?)),
            Statement::CreateSink(create) => Ok(Self::Sink(create.declare()?)),
            Statement::CreateView(create) => Ok(Self::View(create.clone(), read_models(&create.query, files)?)),
            _ => Err(ServiceError::invalid("the statement declares no source, sink or view")),
        }
    }

    /// Fails if it is evident that it cannot be opened, or not here.
    fn check(&self, host: &ConnectorContext) -> Result<(), ServiceError> {
        match self {
            Self::Source(source) => check_source(source, host),
            Self::Sink(sink) => check_sink(sink, host),
            Self::View(..) => Ok(()),
        }
    }

    fn add(self, scope: &mut Scope) -> Result<(), SqlError> {
        match self {
            Self::Source(source) => scope.add_source(source),
            Self::Sink(sink) => scope.add_sink(sink),
            Self::View(create, models) => {
                scope.add_models(models);
                scope.add_view(&create)
            }
        }
    }
}

/// What a recorded statement declares, and its name.
pub(super) fn declared_by(statement: &Statement) -> Option<(Declared, &str)> {
    Declaration::of(statement).map(|one| (one.what, one.name.text.as_str()))
}

/// The name of what a recorded statement declares, and its text.
pub(super) fn text_of(statement: &Statement) -> Option<(&str, &str)> {
    Declaration::of(statement).map(|one| (one.name.text.as_str(), one.text))
}

/// The text of a declaration for another process, and whether it has credentials. It has those alone of the source that
/// the other process `reads`.
pub(super) fn told(statement: &Statement, reads: Option<&str>, secrets: &Secrets) -> Option<(String, bool)> {
    let Declaration { what, name, text, .. } = Declaration::of(statement)?;
    let shown = if what == Declared::View { text.to_owned() } else { shown_statement(text, &shown_option) };
    let named = statement.secrets();
    if what != Declared::Source || reads != Some(&name.text) || (shown == text && named.is_empty()) {
        return Some((shown, false));
    }
    let values = named.into_iter().filter_map(|(name, _)| Some((name_in_sql(name), secrets.get(name)?)));
    let create =
        |(name, value): (_, String)| format!("CREATE OR REPLACE SECRET {name} AS '{}';\n", value.replace('\'', "''"));
    Some((values.map(create).collect::<String>() + text, true))
}

/// What a recorded statement creates, in words: `source 'bids'`.
pub(super) fn title(statement: &Statement) -> String {
    match (statement, Declaration::of(statement)) {
        (_, Some(Declaration { what, name, .. })) => format!("{} '{name}'", what.word()),
        (Statement::CreateBigQuery(create), None) => format!("query '{}'", create.name),
        _ => "statement".to_owned(),
    }
}

/// A copy of a tenant's declarations. It can be read for a long time, as planning does, and no lock is held meanwhile.
struct Declarations {
    scope: Scope,
    remembered: BTreeMap<u64, Statement>,
    absent: BTreeMap<u64, Absence>,
}

impl Known {
    fn declarations(&self, tenant: &Tenant) -> Declarations {
        let remembered = self.remembered.iter().filter(|(_, one)| one.tenant == *tenant);
        let remembered: BTreeMap<u64, Statement> =
            remembered.map(|(number, one)| (*number, one.statement.clone())).collect();
        let absent = self.absent.iter().filter(|(number, _)| remembered.contains_key(number));
        let absent = absent.map(|(number, absence)| (*number, absence.clone())).collect();
        let scope = self.spaces.get(tenant).map(|space| space.scope.clone()).unwrap_or_default();
        Declarations { scope, remembered, absent }
    }

    /// Why a tenant's source, sink or view of this name is absent; `None` if it is not.
    fn absence(&self, tenant: &Tenant, what: Declared, name: &str) -> Option<&str> {
        let is_it = |number: &u64| {
            let remembered = self.remembered.get(number).filter(|one| one.tenant == *tenant);
            let declaration = remembered.and_then(|one| Declaration::of(&one.statement));
            declaration.is_some_and(|one| one.name.text == name && one.what.is_read() == what.is_read())
        };
        self.absent.iter().find(|(number, _)| is_it(number)).map(|(_, absence)| absence.problem.as_str())
    }
}

impl Declarations {
    /// The number of the statement that declares this; `None` if there is no such declaration.
    fn number(&self, what: Declared, name: &str) -> Option<u64> {
        let is_it = |statement: &Statement| {
            Declaration::of(statement).is_some_and(|one| one.what == what && one.name.text == name)
        };
        self.remembered.iter().find(|(_, statement)| is_it(statement)).map(|(number, _)| *number)
    }

    /// Adds a declaration to another scope.
    fn add_again(&self, statement: &Statement, scope: &mut Scope) -> Result<(), SqlError> {
        match statement {
            // Its columns are known: nothing is read from outside again.
            Statement::CreateSource(create) => {
                self.scope.source(&create.name.text).map_or(Ok(()), |source| scope.add_source((**source).clone()))
            }
            Statement::CreateSink(create) => scope.add_sink(create.declare()?),
            // Its models are not read again.
            Statement::CreateView(create) if calls_models(statement) => {
                if let Some(view) = self.scope.view(&create.name.text) {
                    scope.add_planned_view(view.clone());
                }
                Ok(())
            }
            Statement::CreateView(create) => scope.add_view(create),
            _ => Ok(()),
        }
    }

    /// The names of declarations and queries that could not be carried out without the statement with this number.
    /// `scope` has the reference tables, `whole` all names.
    fn need(&self, number: u64, scope: Scope, whole: &Scope) -> Vec<String> {
        let name = self.remembered.get(&number).and_then(Declaration::of).map_or("", |one| &one.name.text);
        self.need_name(name, Some(number), scope, whole)
    }

    /// The names of declarations and queries that could not be carried out without this name, which the statement with
    /// this number declares, or which is a reference table. `scope` has the other tables, `whole` all names. A
    /// statement that cannot be carried out with the name either counts if its text has the name.
    fn need_name(&self, name: &str, number: Option<u64>, mut scope: Scope, whole: &Scope) -> Vec<String> {
        let mut needing = Vec::new();
        let mut queries = Vec::new();
        let names_it = |text: &str| names(text, name);
        for (other, statement) in self.remembered.iter().filter(|(other, _)| Some(**other) != number) {
            match (statement, Declaration::of(statement)) {
                // Queries may use declarations that were made after them.
                (Statement::CreateBigQuery(create), _) => queries.push(create),
                (_, Some(declaration))
                    if self.add_again(statement, &mut scope).is_err()
                        && (!self.absent.contains_key(other) || names_it(declaration.text))
                        || calls_models(statement) && names_it(declaration.text) =>
                {
                    needing.push(declaration.name.text.clone());
                }
                _ => {}
            }
        }
        let fails = |create: &CreateBigQuery, scope: &Scope| plan_query(&create.query, scope).is_err();
        let lack = queries
            .iter()
            .filter(|create| fails(create, &scope) && (names_it(&create.query.text) || !fails(create, whole)));
        needing.extend(lack.map(|create| create.name.text.clone()));
        needing
    }

    /// Fails if anything needs the statement with this number. The error names it.
    fn check_without(&self, number: u64, scope: Scope, whole: &Scope) -> Result<(), ServiceError> {
        match self.need(number, scope, whole).first() {
            None => Ok(()),
            Some(what) => Err(ServiceError::new(ErrorKind::Conflict, format!("'{what}' needs it"))
                .with_hint(format!("drop '{what}' first"))),
        }
    }
}

/// Whether a statement declares a view that calls models.
fn calls_models(statement: &Statement) -> bool {
    matches!(statement, Statement::CreateView(create) if !create.query.models().is_empty())
}

/// Whether a name occurs in a text of SQL, ignoring case.
pub(super) fn names(text: &str, name: &str) -> bool {
    let is_plain = |sign: char| sign.is_alphanumeric() || sign == '_';
    match name.chars().all(is_plain) {
        true => text.split(|sign| !is_plain(sign)).any(|word| word.eq_ignore_ascii_case(name)),
        false => text.contains(name),
    }
}

/// The part of an option's value of a source or sink that may be shown.
fn shown_option<'v>(connector: &str, is_sink: bool, name: &str, value: &'v str) -> Cow<'v, str> {
    let direction = if is_sink { Direction::Sink } else { Direction::Source };
    match name {
        // Options of the planner, which the connector does not know.
        "lateness" | "idle_timeout" | "future_limit" | "size" | "late" | "dead_letter" => value.into(),
        _ => CONNECTORS.shown_option(connector, direction, name, value),
    }
}

impl BigQueries {
    /// Declares a source, sink or view and records it. Returns what was done, in words.
    pub(in crate::engine) fn declare(&self, tenant: &Tenant, statement: Statement) -> Result<String, ServiceError> {
        let Some(Declaration { what, name, if_not_exists, text }) = Declaration::of(&statement) else {
            return Err(ServiceError::invalid("the statement declares no source, sink or view"));
        };
        let is_there = format!("{} {name} exists, nothing was done", what.word());
        let exists = || {
            let known = self.known.lock();
            let is_in_use = || known.spaces.get(tenant).is_some_and(|space| space.scope.has(what, &name.text));
            match known.absence(tenant, what, &name.text) {
                Some(problem) if if_not_exists => Ok(Some(format!("{is_there}; it is not in use: {problem}"))),
                Some(problem) => Err(is_absent(what, name, problem)),
                None => Ok((if_not_exists && is_in_use()).then(|| is_there.clone())),
            }
        };
        if let Some(is_there) = exists()? {
            return Ok(is_there);
        }
        let ready = self.ready(tenant, &statement, true, OPEN_MAX)?;
        let _changing = self.changing.lock();
        if let Some(is_there) = exists()? {
            return Ok(is_there);
        }
        // Added to a copy first: errors are found before the statement is recorded.
        ready.clone().add(&mut self.scope(tenant))?;
        let full_name = tenant.named(&name.text);
        let is_new = what.is_read() && {
            let taken = self.queries.state.lock().take_relation(&full_name, what.word());
            taken.map_err(|error| error.at(name.position.line, name.position.column))?
        };
        let done = format!("{} {name} created", what.word());
        let recorded = self.catalog.insert_statement(tenant, text);
        let number = recorded.inspect_err(|_| {
            if is_new {
                self.queries.state.lock().give_relation_back(&full_name);
            }
        })?;
        self.enter(tenant, ready)?;
        let remembered = Remembered { tenant: tenant.clone(), statement };
        self.known.lock().remembered.insert(number, remembered);
        Ok(done)
    }

    /// The declaration of a statement, checked if it is new.
    pub(super) fn ready(
        &self,
        tenant: &Tenant,
        statement: &Statement,
        is_new: bool,
        limit: Duration,
    ) -> Result<Ready, ServiceError> {
        if !is_new && !matches!(statement, Statement::CreateSource(_)) && !calls_models(statement) {
            return Ready::of(statement, &Files::default());
        }
        let host = self.opener.permitted.host(tenant);
        let statement = statement.clone();
        self.opener.call("looking at what is declared", limit, move || {
            let ready = Ready::of(&statement, &host.files)?;
            if is_new {
                ready.check(&host)?;
            }
            Ok(ready)
        })
    }

    /// Adds a declaration to the tenant's names. Reference tables, which views may read, are known for this and not
    /// added.
    pub(super) fn enter(&self, tenant: &Tenant, ready: Ready) -> Result<(), ServiceError> {
        let mut full = self.scope(tenant);
        ready.clone().add(&mut full)?;
        // Another name does not change an existing plan: this does not count as a change of what queries read.
        let mut known = self.known.lock();
        let scope = &mut known.spaces.entry(tenant.clone()).or_default().scope;
        match ready {
            Ready::View(create, _) => {
                let view = full.view(&create.name.text).expect("it was just added").clone();
                scope.add_planned_view(view);
                Ok(())
            }
            ready => Ok(ready.add(scope)?),
        }
    }

    /// Enters the declaration of the statement with this number. Returns false if it was dropped meanwhile. If entering
    /// fails, the declaration is absent; `is_tried_again` says whether the reason may pass.
    pub(super) fn enter_remembered(
        &self,
        number: u64,
        Remembered { tenant, statement }: &Remembered,
        is_tried_again: bool,
        limit: Duration,
    ) -> Result<bool, ServiceError> {
        let ready = self.ready(tenant, statement, false, limit);
        let _changing = self.changing.lock();
        if !self.known.lock().remembered.contains_key(&number) {
            return Ok(false);
        }
        let entered = ready.and_then(|ready| self.enter(tenant, ready));
        let mut known = self.known.lock();
        match &entered {
            Ok(()) => known.absent.remove(&number),
            Err(error) => known.absent.insert(number, Absence { problem: error.message.clone(), is_tried_again }),
        };
        entered.map(|()| true)
    }

    /// Drops a tenant's source, sink or view that nothing needs. Returns whether there was one.
    pub(in crate::engine) fn drop_declared(
        &self,
        tenant: &Tenant,
        what: Declared,
        name: &Name,
    ) -> Result<bool, ServiceError> {
        let _changing = self.changing.lock();
        let mut tables = Scope::new();
        self.tables.add_to(tenant, &mut tables, None);
        let declared = self.known.lock().declarations(tenant);
        let Some(number) = declared.number(what, &name.text) else { return Ok(false) };
        declared.check_without(number, tables, &self.scope(tenant)).map_err(|error| ServiceError {
            message: format!("the {} '{name}' cannot be dropped: {}", what.word(), error.message),
            ..error
        })?;
        self.catalog.remove_statement(number)?;
        if what.is_read() {
            self.queries.state.lock().give_relation_back(&tenant.named(&name.text));
        }
        let mut known = self.known.lock();
        known.remembered.remove(&number);
        let was_absent = known.absent.remove(&number).is_some();
        let Space { scope, changes } = known.spaces.entry(tenant.clone()).or_default();
        *changes += 1;
        if !was_absent {
            scope.drop(what, &name.text);
        }
        Ok(true)
    }

    /// Drops a reference table that nothing uses. A query that is planned with it meanwhile is planned anew.
    pub(in crate::engine) fn drop_table(&self, full_name: &FullName) -> Result<(), ServiceError> {
        let _changing = self.changing.lock();
        self.queries.drop_table(full_name, self.users_of_table(full_name))?;
        self.known.lock().spaces.entry(full_name.tenant.clone()).or_default().changes += 1;
        Ok(())
    }

    /// The names of views and big queries that cannot exist without a reference table.
    pub(in crate::engine) fn users_of_table(&self, FullName { tenant, name }: &FullName) -> Vec<String> {
        let mut others = Scope::new();
        self.tables.add_to(tenant, &mut others, Some(name));
        let declared = self.known.lock().declarations(tenant);
        declared.need_name(name, None, others, &self.scope(tenant))
    }

    /// The secrets that declarations of a tenant name, each with what names it.
    pub(in crate::engine) fn uses_of_secrets(&self, tenant: &Tenant) -> Vec<(String, String)> {
        let known = self.known.lock();
        let own = known.remembered.values().filter(|one| one.tenant == *tenant);
        let of = |one: &Remembered| {
            let user = title(&one.statement);
            let secrets = one.statement.secrets().into_iter();
            secrets.map(|(secret, _)| (secret.to_owned(), user.clone())).collect::<Vec<_>>()
        };
        own.flat_map(of).collect()
    }

    /// The description of a source, sink or view; `None` if there is none of this name.
    pub(in crate::engine) fn describe_declared(&self, what: Declared, full_name: &FullName) -> Option<Description> {
        let FullName { tenant, name } = full_name;
        let mut tables = Scope::new();
        self.tables.add_to(tenant, &mut tables, None);
        let declared = self.known.lock().declarations(tenant);
        let number = declared.number(what, name)?;
        let problem = declared.absent.get(&number).map(|absence| absence.problem.clone());
        let (address, columns, text) = match what {
            _ if problem.is_some() => {
                let text = Declaration::of(declared.remembered.get(&number)?)?.text;
                let text = if what == Declared::View { text.to_owned() } else { shown_statement(text, &shown_option) };
                (None, Vec::new(), text)
            }
            Declared::Source => {
                let one = declared.scope.source(name)?;
                (Some(shown_address(&one.address).into()), one.columns(), shown_statement(&one.text, &shown_option))
            }
            Declared::Sink => {
                let one = declared.scope.sink(name)?;
                (Some(shown_address(&one.address).into()), one.columns(), shown_statement(&one.text, &shown_option))
            }
            Declared::View => {
                let one = declared.scope.view(name)?;
                let columns = one.columns().into_iter().map(|(name, data_type)| (name, type_name(&data_type)));
                (None, columns.collect(), one.text.clone())
            }
        };
        let warnings = if what == Declared::Source { self.warnings_of_source(full_name) } else { Vec::new() };
        let needed_by = declared.need(number, tables, &self.scope(tenant));
        Some(Description { address, problem, columns, needed_by, warnings, text })
    }

    /// Name and address, or text, of the sources, sinks or views of a tenant.
    pub(in crate::engine) fn declared(&self, tenant: &Tenant, what: Declared) -> Vec<(String, String)> {
        let Declarations { scope, remembered, absent } = self.known.lock().declarations(tenant);
        let mut declared: Vec<(String, String)> = match what {
            Declared::Source => {
                scope.sources().map(|one| (one.name.text.clone(), shown_address(&one.address).into())).collect()
            }
            Declared::Sink => {
                scope.sinks().map(|one| (one.name.text.clone(), shown_address(&one.address).into())).collect()
            }
            Declared::View => scope.views().map(|one| (one.name.text.clone(), one.text.clone())).collect(),
        };
        for (number, absence) in &absent {
            if let Some(one) = remembered.get(number).and_then(Declaration::of).filter(|one| one.what == what) {
                declared.push((one.name.text.clone(), format!("not in use: {}", absence.problem)));
            }
        }
        declared.sort();
        declared
    }
}

/// The error for declaring under the name of an absent declaration.
fn is_absent(what: Declared, name: &Name, problem: &str) -> ServiceError {
    let drop = format!("DROP {} {}", what.word().to_uppercase(), rivulet_sql::name_in_sql(&name.text));
    ServiceError::new(ErrorKind::AlreadyExists, format!("'{name}' is declared already, and not in use: {problem}"))
        .at(name.position.line, name.position.column)
        .with_hint(format!("mend what is wrong there; to declare it anew, {drop} first"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_told_the_credentials_of_the_source_that_it_reads_and_no_others() {
        let secrets = Secrets::found_by(|name| (name == "s").then(|| "it's a rose".into()));
        let password = "properties.sasl.password";
        let source = format!(
            "CREATE SOURCE one (a BIGINT) FROM 'kafka:h:1/t' FORMAT JSON WITH ({password} => SECRET s); \
             CREATE SOURCE two (a BIGINT) FROM 'kafka:h:1/t' FORMAT JSON WITH ({password} => 'thorn'); \
             CREATE SOURCE three (a BIGINT) FROM 'kafka:h:1/t' FORMAT JSON; \
             CREATE SINK four TO 'kafka:h:1/u' FORMAT JSON WITH ({password} => 'thorn')"
        );
        let statements = rivulet_sql::parse_script(&source).expect("statements");
        let said = |reads: &str| {
            let said = statements.iter().map(|(statement, _)| told(statement, Some(reads), &secrets).expect("told"));
            let (texts, have): (Vec<String>, Vec<bool>) = said.unzip();
            (texts.join(";\n"), have)
        };
        let (text, have) = said("one");
        assert!(text.starts_with("CREATE OR REPLACE SECRET s AS 'it''s a rose';\nCREATE SOURCE one"), "{text}");
        assert!(have == [true, false, false, false] && !text.contains("thorn"), "{text}");
        let (text, have) = said("two");
        assert!(have == [false, true, false, false] && text.matches("thorn").count() == 1, "{text}");
        let (text, have) = said("three");
        assert!(have == [false; 4] && !text.contains("thorn") && !text.contains("rose"), "{text}");
        let (text, _) = said("four");
        assert!(!text.contains("thorn") && !text.contains("rose"), "{text}");
        rivulet_sql::parse_script(&text).expect("what is shown can be read");
    }

    #[test]
    fn a_name_is_a_word_of_a_text() {
        let text = "CREATE QUERY q AS SELECT a FROM Bids INTO out";
        assert!(names(text, "bids") && names(text, "out") && names("SELECT * FROM \"my source\"", "my source"));
        assert!(!names(text, "s") && !names(text, "in") && !names(text, "bid"));
    }
}
