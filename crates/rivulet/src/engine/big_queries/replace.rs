//! `CREATE OR REPLACE QUERY`: another version of a big query continues where the version before was, as far as it can
//! ([`rivulet_sql::query_migration`]).
//!
//! The steps are those of every [`Upgrade`]. The version before makes its last checkpoint as at the end of the server.
//! The part of it that the new version can use becomes the next epoch of the same line, which records from which epoch
//! it has taken over. Only then the version before is closed, and the new one starts from its epoch. Until the catalog
//! has the new text, a start of the server goes back to the newest epoch of the text before ([`Saved::open`]).
//!
//! What must hold: rows up to the last checkpoint are processed by the version before, and rows from there on by the
//! new one; or by the version before, if the new one cannot start.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::connector::ConnectorContext;
use rivulet_dataflow::Snapshot;
use rivulet_sql::{
    CreateBigQuery, QueryMigration, QueryPlan, StateWish, Statement, name_in_sql, plan_query, query_migration,
};

use super::begin::Begin;
use super::claim::Claim;
use super::saved::Saved;
use super::{BigQueries, Life, OneQuery, Opener, Remembered, STOP_MAX, close};
use crate::engine::checkpoints::Paused;
use crate::engine::outside::OPEN_MAX;
use crate::engine::upgrade::{Upgrade, state_would_be_lost, stays, upgrade};
use crate::run;
use crate::service::{ErrorKind, FullName, QueryReplacement, ServiceError, Tenant};

/// How long results of the last checkpoint may take to become final.
const FINAL_MAX: Duration = Duration::from_secs(10);

/// A version of a query that is to take over from the current one.
struct Version<'a> {
    all: &'a BigQueries,
    full_name: FullName,
    create: CreateBigQuery,
    plan: Arc<QueryPlan>,
    migration: QueryMigration,
    /// The declarations with which it was planned ([`BigQueries::declarations`]).
    declarations: u64,
    /// The version before.
    before: OneQuery,
    of_before: Arc<QueryPlan>,
    /// Its checkpoints, if any are made: without them the new version begins anew.
    saved: Option<Arc<Mutex<Saved>>>,
    /// Where the version before was, and where this one begins; `None` if the version before had no checkpoint yet.
    handed: Option<Handed>,
    /// Whether the version before is closed. Then its state is that of a query that was not started.
    is_closed: bool,
    /// The flow of the new version, once started.
    running: Option<run::Running>,
    _no_checkpoint: Option<Paused<'a>>,
    _claim: Claim<'a>,
}

/// Where the version before was, and where the new one begins.
struct Handed {
    epoch: u64,
    /// The snapshot from which the version before would continue.
    before: Snapshot,
    /// The snapshot from which the new one begins.
    after: Snapshot,
}

/// A flow that makes its last checkpoint, and continues if that fails.
struct Closing<'r> {
    running: &'r run::Running,
    /// Tells whether the server is stopping: then the flow stays closed.
    opener: &'r Opener,
    was_paused: bool,
    is_final: bool,
}

impl<'r> Closing<'r> {
    fn new(running: &'r run::Running, opener: &'r Opener) -> Self {
        let was_paused = running.flow().is_paused();
        running.flow().close();
        Self { running, opener, was_paused, is_final: false }
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if self.is_final || self.opener.is_stopped() {
            return;
        }
        self.running.flow().resume();
        if self.was_paused {
            self.running.flow().pause();
        }
    }
}

impl BigQueries {
    /// Creates a big query, or makes it take over from the query of its name.
    ///
    /// # Errors
    /// Creating the query fails; state would be lost and the statement does not allow that; the query has come to its
    /// end; or no checkpoint of it can be made. Then the version before continues.
    pub(in crate::engine) fn replace(
        &self,
        tenant: &Tenant,
        create: CreateBigQuery,
        wish: StateWish,
    ) -> Result<QueryReplacement, ServiceError> {
        let name = tenant.named(&create.name.text);
        let claim = self.claim(&name)?;
        // Otherwise a backup could get the catalog of one version with the checkpoint of the other.
        let no_checkpoint = self.checkpoints.as_ref().map(|checkpoints| checkpoints.pause());
        self.opener.check_not_stopping()?;
        let Some(before) = self.known.lock().query(&name) else {
            drop(no_checkpoint);
            return Ok(QueryReplacement { is_new: self.create_one(&name, create)?, ..QueryReplacement::default() });
        };
        let is_same =
            |statement: &Statement| matches!(statement, Statement::CreateBigQuery(one) if one.id == create.id);
        let is_same = self.known.lock().remembered.get(&before.number).is_some_and(|one| is_same(&one.statement));
        // The same text may call other versions of its models.
        let is_read_again = || {
            let plan = plan_query(&create.query, &self.scope_of(tenant, &create.query)?)?;
            Ok::<_, ServiceError>(!before.plan.as_ref().is_some_and(|before| before.is_same(&plan)))
        };
        if is_same && (create.query.models().is_empty() || !is_read_again()?) {
            return Ok(QueryReplacement::default());
        }
        let version = self.check_version(&name, before, create, wish, claim, no_checkpoint)?;
        let replaced = upgrade(version)?;
        tracing::info!(query = name.in_log(), "{}", replaced.text(&name.name));
        Ok(replaced)
    }

    /// Checks everything that can be refused.
    fn check_version<'a>(
        &'a self,
        full_name: &FullName,
        before: OneQuery,
        create: CreateBigQuery,
        wish: StateWish,
        claim: Claim<'a>,
        no_checkpoint: Option<Paused<'a>>,
    ) -> Result<Version<'a>, ServiceError> {
        let FullName { tenant, name } = full_name;
        let declarations = self.declarations(tenant);
        let plan = Arc::new(plan_query(&create.query, &self.scope_of(tenant, &create.query)?)?);
        self.check_query(full_name, &plan)?;
        if matches!(before.life, Life::Ending(_) | Life::Ended(_)) {
            return Err(has_ended(name));
        }
        let Some(of_before) = before.plan.clone() else {
            let message = format!("'{name}' is not replaced, for its own text cannot be planned any more");
            return Err(ServiceError::new(ErrorKind::Conflict, message)
                .with_hint("DESCRIBE QUERY says why; declare what it lacks, or drop it and create it anew"));
        };
        let mut migration = query_migration(&of_before, &plan);
        let has_checkpoints = before.life.flow().is_none_or(|running| running.has_checkpoints());
        let saved = self.saved_of(full_name).map_err(|error| stays(name, error))?.filter(|_| has_checkpoints);
        if wish == StateWish::Keep {
            if saved.is_none() {
                return Err(has_no_checkpoints(name));
            }
            if !migration.lost.is_empty() {
                return Err(state_would_be_lost(name, "it", &migration.lost, &discarding(name)));
            }
            if migration.takes_back_others {
                return Err(takes_back_others(name));
            }
        }
        if migration.takes_back_others {
            migration.discard_state();
        }
        if saved.is_some() && migration.keeps_result() {
            let host = self.opener.host_of(full_name);
            let (name, before, plan) = (name.clone(), of_before.clone(), plan.clone());
            let check = move || check_file(&name, &before, &plan, &host);
            self.opener.call("looking at the file of the result", OPEN_MAX, check)?;
        }
        Ok(Version {
            all: self,
            full_name: full_name.clone(),
            create,
            plan,
            migration,
            declarations,
            before,
            of_before,
            saved,
            handed: None,
            is_closed: false,
            running: None,
            _no_checkpoint: no_checkpoint,
            _claim: claim,
        })
    }
}

impl Version<'_> {
    fn name(&self) -> &str {
        &self.full_name.name
    }

    /// Changes what is known of the query.
    fn change(&self, change: impl FnOnce(&mut OneQuery)) {
        self.all.known.lock().change(&self.full_name, change);
    }

    /// Makes the last checkpoint of the version before, and turns it into the epoch that the new one begins with;
    /// `None` if there is no checkpoint yet. The version before is suspended then.
    fn hand_over(&mut self, saved: &mut Saved) -> Result<Option<Handed>, ServiceError> {
        let all = self.all;
        // The query may have come to its end since that was checked. What it has written since its last checkpoint
        // would come twice.
        self.before.look();
        let name = &self.create.name.text;
        if saved.has_ended() || matches!(self.before.life, Life::Ending(_)) {
            return Err(has_ended(name));
        }
        // A failed query has nothing left that could be saved.
        let running = self.before.life.flow().filter(|running| running.flow().ended().is_none());
        let mut closing = running.map(|running| Closing::new(running, &all.opener));
        let unavailable = |why: &str| stays(name, ServiceError::from_text(ErrorKind::Unavailable, why));
        if let Some(running) = running {
            let made = saved.save(&self.of_before, running, true).map_err(|failure| unavailable(&failure.text))?;
            if saved.has_ended() {
                all.known.lock().note_end(&self.full_name, self.before.number);
                return Err(has_ended(name));
            }
            if made.is_none() {
                return Err(unavailable("it comes to its end just now"));
            }
            if !running.flow().wait_committed(FINAL_MAX) {
                return Err(unavailable("the results of its last checkpoint are not final yet"));
            }
        }
        let (found, problems) = saved.restore(&self.of_before).map_err(|error| stays(name, error))?;
        let begin = match running {
            Some(_) => Ok(Begin::At(found)),
            None => all.begin_where_final(&self.of_before, &self.full_name, saved, found),
        };
        all.note_damage(&self.full_name, &problems, &begin);
        let (epoch, snapshot) = match begin.map_err(|error| stays(name, error))? {
            Begin::At(Some(found)) => found,
            Begin::At(None) => {
                saved.rename(&self.create.query.text);
                return Ok(None);
            }
            Begin::HasEnded => {
                self.change(|one| one.life.end());
                return Err(has_ended(name));
            }
        };
        let after = snapshot.succeed(&self.of_before.dataflow, &self.plan.dataflow, &self.migration.map);
        let after = after.map_err(|error| {
            let message = format!("'{name}' is not replaced: {error}");
            ServiceError::new(ErrorKind::Conflict, message).with_hint("create another query for what is new")
        })?;
        saved.take_over(&self.plan, &self.create.query.text, epoch, &after).map_err(|error| stays(name, error))?;
        if let Some(closing) = &mut closing {
            closing.is_final = true;
        }
        Ok(Some(Handed { epoch, before: snapshot, after }))
    }

    /// Closes the version before. If a later step fails it is started again, unless an error had ended it.
    fn close_before(&mut self) {
        self.before.look();
        let failure = match &self.before.life {
            // A query whose results were taken back would be started again by itself.
            Life::Failed { failure, .. } if !self.before.is_undone() => Some(failure.reason.clone()),
            _ => None,
        };
        let without_flow = Life::stored(self.before.life.is_paused(), failure);
        self.change(|one| one.life.replace());
        self.is_closed = true;
        let Some(running) = std::mem::replace(&mut self.before.life, without_flow).into_flow() else { return };
        if self.saved.is_none() {
            running.stop();
            if running.wait(STOP_MAX).is_none() {
                tracing::warn!(query = self.full_name.in_log(), "replaced before all of it was written");
            }
        }
        running.cancel();
        close(running);
    }

    /// Writes the new version to the catalog, unless something it reads or writes was declared anew since it was
    /// planned.
    fn store_text(&self) -> Result<(), ServiceError> {
        let (all, number) = (self.all, self.before.number);
        let _changing = all.changing.lock();
        if all.declarations(&self.full_name.tenant) != self.declarations {
            let message = "what it reads or writes was declared anew meanwhile";
            return Err(ServiceError::new(ErrorKind::Conflict, message).with_hint("replace it once more"));
        }
        all.catalog.replace_statement(number, &self.create.query.text)?;
        // At once, so that nothing is dropped that the new version needs.
        let statement = Statement::CreateBigQuery(Box::new(self.create.clone()));
        let remembered = Remembered { tenant: self.full_name.tenant.clone(), statement };
        all.known.lock().remembered.insert(number, remembered);
        Ok(())
    }

    /// The answer to the statement.
    fn told(&self) -> QueryReplacement {
        let Self { plan, migration, handed, .. } = self;
        let is_lost = |place: &usize| {
            let Some(Handed { after, .. }) = handed else { return false };
            // One without partitions has come to its end. Of a source that has places, a partition without one has read
            // nothing.
            let partitions = &after.sources[*place];
            !(after.begins.contains(place) || partitions.is_empty())
                && partitions.iter().all(|partition| partition.position.is_none())
        };
        let name = |place: usize| plan.sources[place].declaration.name.text.clone();
        let mut state_discarded = migration.lost.clone();
        if self.saved.is_none() {
            state_discarded.insert(0, "where its sources were: no checkpoints are made of it".into());
        }
        QueryReplacement {
            is_new: false,
            is_changed: true,
            epoch: handed.as_ref().map(|handed| handed.epoch),
            is_paused: self.before.life.is_paused(),
            state_kept: if handed.is_some() { migration.kept.clone() } else { Vec::new() },
            state_discarded,
            sources_new: migration.sources_new.clone(),
            sources_gone: migration.sources_gone.clone(),
            sources_not_repeated: (0..plan.sources.len()).filter(is_lost).map(name).collect(),
        }
    }
}

impl Upgrade for Version<'_> {
    type Told = QueryReplacement;

    fn quiesce(&mut self) -> Result<(), ServiceError> {
        if let Some(saved) = self.saved.clone() {
            self.handed = self.hand_over(&mut saved.lock())?;
        }
        self.close_before();
        Ok(())
    }

    fn start(&mut self) -> Result<(), ServiceError> {
        let all = self.all;
        if let Some(handed) = self.handed.as_ref().filter(|_| !self.migration.sinks_gone.is_empty()) {
            let (before, host) = (self.of_before.clone(), all.opener.host_of(&self.full_name));
            let (what, at) = (format!("making final what '{}' has written", self.name()), handed.before.clone());
            let gone = self.migration.sinks_gone.clone();
            let finish = move || run::finish_sinks(&before, &gone, &host, &at);
            all.opener.call(&what, OPEN_MAX, finish)?;
        }
        if !self.before.life.is_paused() {
            let after = self.handed.as_ref().map(|handed| handed.after.clone());
            let tap = all.tap_of(&self.full_name, &self.plan);
            self.running = Some(all.opener.start(&self.plan, &self.full_name, after, tap)?);
        }
        Ok(())
    }

    /// If the new version begins anew, the checkpoints of the version before are deleted only when the catalog has the
    /// new one. A crash between the two leaves checkpoints of another version, which is reported ([`Saved::open`]).
    fn store(&mut self) -> Result<(), ServiceError> {
        let (all, number) = (self.all, self.before.number);
        let known_before = all.known.lock().remembered.get(&number).cloned();
        self.store_text()?;
        if self.saved.is_some() {
            return Ok(());
        }
        let line = all.new_line(&self.full_name, number, &self.create.query.text).inspect_err(|_| {
            if let Some(statement) = known_before {
                all.known.lock().remembered.insert(number, statement);
            }
            if let Err(error) = all.catalog.replace_statement(number, &self.before.query.text) {
                tracing::error!(number, "after a restart the version of a query counts that could not begin: {error}");
            }
        })?;
        self.change(|one| one.saved = line);
        Ok(())
    }

    fn switch(mut self) -> QueryReplacement {
        let told = self.told();
        let mut life = Life::stored(self.before.life.is_paused(), None);
        match self.running.take() {
            // The server may stop without having waited for this replacement: nothing may be written after the last
            // checkpoint.
            Some(running) if self.all.opener.is_stopped() => give_up(running),
            Some(running) => life.start(Arc::new(running)),
            None => {}
        }
        self.change(|one| {
            one.query = self.create.query.clone();
            (one.plan, one.life, one.automatic) = (Some(self.plan.clone()), life, Default::default());
        });
        told
    }

    /// Makes the version before continue from its last checkpoint, if it ran.
    fn roll_back(mut self, error: ServiceError) -> ServiceError {
        if let Some(running) = self.running.take() {
            give_up(running);
        }
        if !self.is_closed {
            return error;
        }
        let (all, OneQuery { number, query, mut life, .. }) = (self.all, self.before.clone());
        let name = self.name();
        match &self.saved {
            None => life.hinder(format!("it was stopped to be replaced, and begins anew: {}", error.message)),
            Some(saved) => saved.lock().rename(&query.text),
        }
        // The query may have failed so recently that the failure is not recorded yet.
        if matches!(life, Life::Failed { .. })
            && let Err(error) = all.catalog.set_statement_failure(number, Some(life.problem()))
        {
            tracing::warn!(query = self.full_name.in_log(), "after a restart the query will run again: {error}");
        }
        if life.waits_to_start() && self.saved.is_some() {
            match all.start_saved(&self.full_name, &query.text, &self.of_before, self.saved.as_ref()) {
                Ok(started) => started.enter(&mut life),
                Err(error) => {
                    tracing::error!(
                        query = self.full_name.in_log(),
                        "the version before cannot go on either, and is tried again: {error}"
                    );
                    life.hinder(error.message);
                }
            }
        }
        self.change(|one| one.life = life);
        stays(name, error)
    }
}

/// Closes a flow that is not used after all.
fn give_up(running: run::Running) {
    running.cancel();
    close(Arc::new(running));
}

fn has_ended(name: &str) -> ServiceError {
    let message = format!("'{name}' is not replaced, for it has come to the end of its input");
    ServiceError::new(ErrorKind::Conflict, message).with_hint("drop it, and create it with its new text")
}

fn discarding(name: &str) -> String {
    format!("CREATE OR REPLACE QUERY {} WITH (state => 'discard') AS ...", name_in_sql(name))
}

fn has_no_checkpoints(name: &str) -> ServiceError {
    let message = format!(
        "'{name}' is not replaced, for no checkpoints are made of it: it would begin anew, without state and from the start of its sources"
    );
    let hint = format!("see SHOW CHECKPOINTS and its sink; or let it begin anew: {}", discarding(name));
    ServiceError::new(ErrorKind::Conflict, message).with_hint(hint)
}

/// Refuses rows of another form after rows that are already in a file: a reader applies the file's header to all rows.
fn check_file(name: &str, before: &QueryPlan, after: &QueryPlan, host: &ConnectorContext) -> Result<(), ServiceError> {
    let (one, other) = (&before.output, &after.output);
    let Some(file) = one.sink.as_ref().and_then(|sink| run::replaced_file(sink, host)) else { return Ok(()) };
    let given = one.sink.as_ref().and_then(|sink| sink.format.as_ref()).map(|format| format.name.as_str());
    let format = given.or_else(|| file.extension()?.to_str()).unwrap_or_default();
    let has_head = ["avro", "csv"].iter().any(|one| format.eq_ignore_ascii_case(one));
    if !has_head || (one.schema.fields(), one.changes) == (other.schema.fields(), other.changes) {
        return Ok(());
    }
    let message = format!(
        "'{name}' is not replaced, for its results are in {}, and the new ones have other columns or may be taken back: they do not fit behind those",
        file.display()
    );
    Err(ServiceError::new(ErrorKind::Conflict, message)
        .with_hint("let it write to another file, or to a folder, where each file has its own columns"))
}

fn takes_back_others(name: &str) -> ServiceError {
    let message = format!(
        "'{name}' is not replaced, for its result takes rows back, and the new text would take back rows that the text before has never \
         given"
    );
    let hint = format!(
        "write its result to another sink; or let it begin anew, without a word to what the sink has: {}",
        discarding(name)
    );
    ServiceError::new(ErrorKind::Conflict, message).with_hint(hint)
}
