//! `CREATE OR REPLACE QUERY`: another version of a big query goes on where the one before was, as far as it can ([`rivulet_sql::query_succession`]).
//!
//! What can be refused is refused while the version before still runs: state that would be lost, a plan that cannot be made. It makes its last checkpoint as at the
//! end of the server, and what of that the new version can use becomes the next epoch of the same line, which says from which one it has taken over. Only
//! then the version before is closed. The new one starts from its epoch, and the catalog is told: from that moment on the new version counts, also after a crash. Until then a
//! start finds the text of the version before, and goes back to the newest epoch that is of it ([`Saved::open`]).
//!
//! What must hold: each row is processed by one of the two versions, up to the last checkpoint by the one and from there on by the other. If the new one
//! cannot start, the version before goes on from that checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::connector::Host;
use rivulet_dataflow::Snapshot;
use rivulet_sql::{
    CreateBigQuery, QueryPlan, QuerySuccession, StateWish, Statement, name_in_sql, plan_query, query_succession,
};

use super::saved::Saved;
use super::settle::Begin;
use super::{Life, OneQuery, STOP_MAX, close};
use crate::engine::Engine;
use crate::engine::outside::OPEN_MAX;
use crate::run;
use crate::service::{ErrorKind, QueryReplacement, ServiceError};

/// How long results of the last checkpoint may take to become final.
const FINAL_MAX: Duration = Duration::from_secs(10);

/// How many losses an error names.
const NAMED_MAX: usize = 3;

/// A version of a query that is to take over.
struct Next {
    create: CreateBigQuery,
    plan: Arc<QueryPlan>,
    succession: QuerySuccession,
    /// What was declared when it was planned ([`Engine::declarations`]).
    declarations: u64,
}

/// Where the version before was, and where the new one begins.
struct Handed {
    epoch: u64,
    /// What the version before would go on with.
    before: Snapshot,
    /// The same for the new one.
    after: Snapshot,
}

/// A flow that makes its last checkpoint, and goes on if nothing comes of that.
struct Closing<'r> {
    running: &'r run::Running,
    /// Whether the server is stopping: then it stays closed.
    is_stopped: &'r AtomicBool,
    was_paused: bool,
    is_final: bool,
}

impl<'r> Closing<'r> {
    fn new(running: &'r run::Running, is_stopped: &'r AtomicBool) -> Self {
        let was_paused = running.flow().is_paused();
        running.flow().close();
        Self { running, is_stopped, was_paused, is_final: false }
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if self.is_final || self.is_stopped.load(Ordering::Acquire) {
            return;
        }
        self.running.flow().resume();
        if self.was_paused {
            self.running.flow().pause();
        }
    }
}

impl Engine {
    /// Creates a big query, or lets it take over from the one of its name.
    ///
    /// # Errors
    /// What creating refuses; state that would be lost, unless that is wished; a query that has come to its end, or of which no checkpoint can be
    /// made. The version before goes on then.
    pub(in crate::engine) fn replace_big_query(
        &self,
        create: CreateBigQuery,
        wish: StateWish,
    ) -> Result<QueryReplacement, ServiceError> {
        let replaced = {
            let _claim = self.big_queries.claim(&create.name.text)?;
            // No backup sees the catalog of the one version with the checkpoint of the other.
            let no_checkpoint = self.checkpoints.as_ref().map(|checkpoints| checkpoints.pause());
            self.check_not_stopping()?;
            let known = self.big_queries.known.lock().query(&create.name.text);
            match known {
                Some(one) => self.replace_one(one, create, wish)?,
                None => {
                    drop(no_checkpoint);
                    QueryReplacement { is_new: self.create_one(create)?, ..QueryReplacement::default() }
                }
            }
        };
        if replaced.is_changed && self.checkpoints.is_some() {
            // If that fails it is in the log and the status, and the epoch with which it began is there.
            let _ = self.checkpoint_of_most();
        }
        Ok(replaced)
    }

    fn replace_one(
        &self,
        one: OneQuery,
        create: CreateBigQuery,
        wish: StateWish,
    ) -> Result<QueryReplacement, ServiceError> {
        let name = create.name.text.clone();
        let is_same =
            |statement: &Statement| matches!(statement, Statement::CreateBigQuery(one) if one.id == create.id);
        if self.big_queries.known.lock().remembered.get(&one.number).is_some_and(is_same) {
            return Ok(QueryReplacement::default());
        }
        let declarations = self.declarations();
        let plan = Arc::new(plan_query(&create.query, &self.scope())?);
        if matches!(one.life, Life::Ending(_) | Life::Ended(_)) {
            return Err(has_ended(&name));
        }
        let Some(before) = one.plan.clone() else {
            let message = format!("'{name}' is not replaced, for its own text cannot be planned any more");
            return Err(ServiceError::new(ErrorKind::Conflict, message)
                .with_hint("DESCRIBE QUERY says why; declare what it lacks, or drop it and create it anew"));
        };
        let mut succession = query_succession(&before, &plan);
        let has_checkpoints = one.life.flow().is_none_or(|running| running.has_checkpoints());
        let saved = self.saved_of(&name).map_err(|error| stays(&name, error))?.filter(|_| has_checkpoints);
        if wish == StateWish::Keep {
            if saved.is_none() {
                return Err(has_no_checkpoints(&name));
            }
            if !succession.lost.is_empty() {
                return Err(state_would_be_lost(&name, &succession.lost));
            }
            if succession.takes_back_others {
                return Err(takes_back_others(&name));
            }
        }
        if succession.takes_back_others {
            succession.discard_state();
        }
        if saved.is_some() && succession.keeps_sink() {
            let (name, before, plan, host) = (name.clone(), before.clone(), plan.clone(), self.host_of(&name));
            let check = move || check_file(&name, &before, &plan, &host);
            self.outside.call("looking at the file of the result", OPEN_MAX, &self.is_stopped, check)?;
        }
        let next = Next { create, plan, succession, declarations };
        let replaced = match saved {
            Some(saved) => self.take_over(&name, one, &before, &saved, next)?,
            None => self.begin_anew(&name, one, next)?,
        };
        tracing::info!(query = name, "{}", replaced.text(&name));
        Ok(replaced)
    }

    /// Has the next version go on where the last checkpoint of the one before is made.
    fn take_over(
        &self,
        name: &str,
        mut one: OneQuery,
        before: &Arc<QueryPlan>,
        saved: &Arc<Mutex<Saved>>,
        next: Next,
    ) -> Result<QueryReplacement, ServiceError> {
        let handed = self.hand_over(name, &mut one, before, saved, &next)?;
        // From here on the version before is not there any more: whatever fails has it started again.
        one.look();
        let failure = match &one.life {
            // One whose results were taken back would be started again by itself.
            Life::Failed { failure, .. } if !one.is_undone() => Some(failure.reason.clone()),
            _ => None,
        };
        let is_paused = one.life.is_paused();
        self.big_queries.known.lock().change(name, |one| one.life.replace());
        if let Some(running) = one.life.into_flow() {
            running.cancel();
            close(running);
        }
        let started = match &handed {
            Some(handed) if !next.succession.keeps_sink() => {
                let (before, host, at) = (before.clone(), self.host_of(name), handed.before.clone());
                let what = format!("making final what '{name}' has written");
                let finish = move || run::finish_sink(&before, &host, &at);
                self.outside.call(&what, OPEN_MAX, &self.is_stopped, finish)
            }
            _ => Ok(()),
        };
        let after = handed.as_ref().map(|handed| handed.after.clone());
        let started = started.and_then(|()| match is_paused {
            true => Ok(None),
            false => self.start_flow(&next.plan, name, after).map(Some),
        });
        let stored = started.and_then(|running| match self.store_version(one.number, &next) {
            Ok(()) => Ok(running),
            Err(error) => {
                give_up(running);
                Err(error)
            }
        });
        match stored {
            Ok(running) => {
                let replaced = replacement(&next, handed.as_ref(), is_paused);
                self.enter_version(name, one.number, next, Some(saved.clone()), running);
                Ok(replaced)
            }
            Err(error) => {
                self.take_back(name, (one.number, &one.query.text), Life::stored(is_paused, failure), before, saved);
                Err(stays(name, error))
            }
        }
    }

    /// Has the version before make its last checkpoint, and makes of it the epoch that the next one begins with; nothing if there is none yet. The version before
    /// stands still then.
    fn hand_over(
        &self,
        name: &str,
        one: &mut OneQuery,
        before: &Arc<QueryPlan>,
        saved: &Arc<Mutex<Saved>>,
        next: &Next,
    ) -> Result<Option<Handed>, ServiceError> {
        let mut saved = saved.lock();
        // It may have come to its end since that was looked at. What it has written since its last checkpoint would come twice.
        one.look();
        if saved.has_ended() || matches!(one.life, Life::Ending(_)) {
            return Err(has_ended(name));
        }
        // One that has failed has nothing left that could be saved.
        let running = one.life.flow().filter(|running| running.flow().ended().is_none()).map(|running| &**running);
        let mut closing = running.map(|running| Closing::new(running, &self.is_stopped));
        let unavailable = |why: &str| stays(name, ServiceError::from_text(ErrorKind::Unavailable, why));
        if let Some(running) = running {
            let made = saved.save(before, running, true).map_err(|failure| unavailable(&failure.text))?;
            if saved.has_ended() {
                self.big_queries.known.lock().note_end(name, one.number);
                return Err(has_ended(name));
            }
            if made.is_none() {
                return Err(unavailable("it comes to its end just now"));
            }
            if !running.flow().wait_committed(FINAL_MAX) {
                return Err(unavailable("the results of its last checkpoint are not final yet"));
            }
        }
        let (found, problems) = saved.restore(before).map_err(|error| stays(name, error))?;
        let begin = match running {
            Some(_) => Ok(Begin::At(found)),
            None => self.settle(before, name, &mut saved, found),
        };
        self.note_damage(name, &problems, &begin);
        let (epoch, snapshot) = match begin.map_err(|error| stays(name, error))? {
            Begin::At(Some(found)) => found,
            Begin::At(None) => {
                saved.rename(&next.create.query.text);
                return Ok(None);
            }
            Begin::HasEnded => {
                self.big_queries.known.lock().change(name, |one| one.life.end());
                return Err(has_ended(name));
            }
        };
        let after = snapshot.succeed(&before.dataflow, &next.plan.dataflow, &next.succession.map);
        let after = after.map_err(|error| {
            let message = format!("'{name}' is not replaced: {error}");
            ServiceError::new(ErrorKind::Conflict, message).with_hint("create another query for what is new")
        })?;
        saved.take_over(&next.plan, &next.create.query.text, epoch, &after).map_err(|error| stays(name, error))?;
        if let Some(closing) = &mut closing {
            closing.is_final = true;
        }
        Ok(Some(Handed { epoch, before: snapshot, after }))
    }

    /// The version before goes on from its last checkpoint, if it ran: `life` is what it has without its flow.
    fn take_back(
        &self,
        name: &str,
        (number, text): (u64, &str),
        mut life: Life,
        before: &Arc<QueryPlan>,
        saved: &Arc<Mutex<Saved>>,
    ) {
        saved.lock().rename(text);
        // It may have failed so lately that nobody has said so.
        if matches!(life, Life::Failed { .. })
            && let Err(error) = self.catalog.set_statement_failure(number, Some(life.problem()))
        {
            tracing::warn!(query = name, "after a restart the query will run again: {error}");
        }
        if life.waits_to_start() {
            match self.start_saved(name, text, before, Some(saved)) {
                Ok(started) => started.enter(&mut life),
                Err(error) => {
                    tracing::error!(
                        query = name,
                        "the version before cannot go on either, and is tried again: {error}"
                    );
                    life.hinder(error.message);
                }
            }
        }
        self.big_queries.known.lock().change(name, |one| one.life = life);
    }

    /// Has the next version begin as a new query: nothing is known of where the one before was.
    fn begin_anew(&self, name: &str, one: OneQuery, next: Next) -> Result<QueryReplacement, ServiceError> {
        let is_paused = one.life.is_paused();
        let failure = matches!(one.life, Life::Failed { .. }).then(|| one.life.problem().to_owned());
        self.big_queries.known.lock().change(name, |one| one.life.replace());
        if let Some(running) = one.life.into_flow() {
            running.stop();
            if running.wait(STOP_MAX).is_none() {
                tracing::warn!(query = name, "replaced before all of it was written");
                running.cancel();
            }
            close(running);
        }
        let started = match is_paused {
            true => Ok(None),
            false => self.start_flow(&next.plan, name, None).map(Some),
        };
        let stored = started.and_then(|running| match self.store_anew(one.number, &one.query.text, &next) {
            Ok(saved) => Ok((saved, running)),
            Err(error) => {
                give_up(running);
                Err(error)
            }
        });
        match stored {
            Ok((saved, running)) => {
                let mut replaced = replacement(&next, None, is_paused);
                replaced.state_discarded.insert(0, "where its sources were: no checkpoints are made of it".into());
                self.enter_version(name, one.number, next, saved, running);
                Ok(replaced)
            }
            Err(error) => {
                let why = format!("it was stopped to be replaced, and begins anew: {}", error.message);
                let mut life = Life::stored(is_paused, failure);
                life.hinder(why);
                self.big_queries.known.lock().change(name, |one| one.life = life);
                Err(stays(name, error))
            }
        }
    }

    /// Has the catalog have another text, and only then forgets what was saved of the one before. A crash between the two leaves checkpoints of another version, and that is said
    /// ([`Saved::open`]).
    fn store_anew(&self, number: u64, before: &str, next: &Next) -> Result<Option<Arc<Mutex<Saved>>>, ServiceError> {
        let known_before = self.big_queries.known.lock().remembered.get(&number).cloned();
        self.store_version(number, next)?;
        self.new_line(&next.create.name.text, number, &next.create.query.text).inspect_err(|_| {
            if let Some(statement) = known_before {
                self.big_queries.known.lock().remembered.insert(number, statement);
            }
            if let Err(error) = self.catalog.replace_statement(number, before) {
                tracing::error!(number, "after a restart the version of a query counts that could not begin: {error}");
            }
        })
    }

    /// Has the catalog have the new version, unless what that reads or writes was declared anew since it was planned.
    fn store_version(&self, number: u64, next: &Next) -> Result<(), ServiceError> {
        let _changing = self.big_queries.changing.lock();
        if self.declarations() != next.declarations {
            let message = "what it reads or writes was declared anew meanwhile";
            return Err(ServiceError::new(ErrorKind::Conflict, message).with_hint("replace it once more"));
        }
        self.catalog.replace_statement(number, &next.create.query.text)?;
        // At once, so that nothing is dropped that the new version needs.
        let statement = Statement::CreateBigQuery(Box::new(next.create.clone()));
        self.big_queries.known.lock().remembered.insert(number, statement);
        Ok(())
    }

    /// The new version is that which is known from now on.
    fn enter_version(
        &self,
        name: &str,
        number: u64,
        next: Next,
        saved: Option<Arc<Mutex<Saved>>>,
        running: Option<run::Running>,
    ) {
        // Whoever stops the server may not have waited for this one: nothing is written after its last checkpoint.
        let running = match self.is_stopped.load(Ordering::Acquire) {
            true => {
                give_up(running);
                None
            }
            false => running,
        };
        let mut known = self.big_queries.known.lock();
        known.change(name, |one| {
            one.query = next.create.query.clone();
            (one.plan, one.saved) = (Some(next.plan), saved);
            match running {
                Some(running) => one.life.start(Arc::new(running)),
                None => one.life = Life::stored(one.life.is_paused(), None),
            }
        });
        known.remembered.insert(number, Statement::CreateBigQuery(Box::new(next.create)));
    }
}

/// Closes a flow that is not to be after all.
fn give_up(running: Option<run::Running>) {
    if let Some(running) = running {
        running.cancel();
        close(Arc::new(running));
    }
}

/// What is told of a version that has taken over.
fn replacement(next: &Next, handed: Option<&Handed>, is_paused: bool) -> QueryReplacement {
    let Next { plan, succession, .. } = next;
    let is_lost = |place: &usize| {
        let Some(Handed { after, .. }) = handed else { return false };
        !after.begins.contains(place) && after.sources[*place].iter().any(|partition| partition.position.is_none())
    };
    let name = |place: usize| plan.sources[place].declaration.name.text.clone();
    QueryReplacement {
        is_new: false,
        is_changed: true,
        epoch: handed.map(|handed| handed.epoch),
        is_paused,
        state_kept: if handed.is_some() { succession.kept.clone() } else { Vec::new() },
        state_discarded: succession.lost.clone(),
        sources_new: succession.sources_new.clone(),
        sources_gone: succession.sources_gone.clone(),
        sources_not_repeated: (0..plan.sources.len()).filter(is_lost).map(name).collect(),
    }
}

fn stays(name: &str, error: ServiceError) -> ServiceError {
    ServiceError { message: format!("'{name}' stays as it was: {}", error.message), ..error }
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

/// Refuses rows of another form behind those that are in a file already: whoever reads it believes what its head says of all of them.
fn check_file(name: &str, before: &QueryPlan, after: &QueryPlan, host: &Host) -> Result<(), ServiceError> {
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

fn state_would_be_lost(name: &str, lost: &[String]) -> ServiceError {
    let shown = lost.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    ServiceError::new(ErrorKind::Conflict, format!("'{name}' is not replaced, for it would lose state: {shown}"))
        .with_hint(format!("leave these parts as they are, or let them begin anew: {}", discarding(name)))
}
