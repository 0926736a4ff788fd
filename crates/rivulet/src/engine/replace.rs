//! `CREATE OR REPLACE APPLICATION`: a new version of an application takes over its queries, with their names, values,
//! topics and, as far as it can use it, their state ([`rivulet_operators::application::migration`]).
//!
//! The steps are those of every [`Upgrade`]. The version before is [suspended](rivulet_runtime::Group::suspend) while
//! its results leave and its changes are saved. The lock of the engine's state is released meanwhile, as it is while
//! waiting events are processed. Then the version before is [quiesced](rivulet_runtime::Group::quiesce), and the new
//! one gets a copy of the state. Waiting events go over first, then inboxes and routes.
//!
//! What must hold: the events of a query keep their order. If queries read something else from then on, events that
//! come while results leave are for the version before if the replacement fails, and for no version otherwise. No input
//! is refused while results leave: their acknowledgements may come after it.

mod bound;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::MutexGuard;
use rivulet_dataflow::{QueryId, Slot};
use rivulet_operators::application::{self, Application, Input, SourceInput, migration};
use rivulet_runtime::{Group, StateMigration};
use rivulet_sql::StateWish;

use super::checkpoints::Paused;
use super::lifecycle::Lifecycle;
use super::queries::checked::LOAD_BATCH;
use super::queries::lifecycle_log::check_not_behind;
use super::queries::{Queries, State};
use super::registry::Entry;
use super::resting::{REST_WAIT_MAX, Resting};
use super::running::{InputShape, Prepared, Running, Warned, topics_of};
use super::topics::Topics;
use super::upgrade::{Upgrade, stays, upgrade};
use crate::catalog::NewApplication;
use crate::service::{ErrorKind, Replacement, ServiceError, Tenant};
use bound::Bound;

const IS_NEW: &str = "the new version is made once";
const IS_STARTED: &str = "the new version was made before";
const IS_LOCKED: &str = "the state of the engine is locked but while it waits";

/// A version of an application that is to take over from the running one.
struct Version<'a> {
    queries: &'a Queries,
    before: Arc<Running>,
    prepared: Option<Prepared>,
    wish: StateWish,
    /// What becomes of the state.
    migration: application::StateMigration,
    bound: Bound,
    /// Whether queries keep reading the same topics, by the same inboxes.
    inputs_stay: bool,
    /// The new version, once it is made.
    after: Option<Running>,
    // In the order in which they are released.
    resting: Resting,
    /// The lock of the engine's state; released while events are processed, and while results leave.
    state: Option<MutexGuard<'a, State>>,
    paused: Option<Paused<'a>>,
}

impl Queries {
    /// Registers an application, or makes it take over the queries of the application of its name. If it was made from
    /// a running application, it takes over from that one only.
    ///
    /// # Errors
    /// Registering it fails; queries do not fit it; state would be lost and the statement does not allow that; or the
    /// disk does not take what is to be saved. Then the version before continues.
    pub(super) fn replace(
        &self,
        tenant: &Tenant,
        application: Application,
        wish: StateWish,
        made_of: Option<&Running>,
    ) -> Result<(Arc<Running>, Replacement), ServiceError> {
        let prepared = self.applications.prepare(tenant, application)?;
        let name = tenant.named(&prepared.application.name);
        let known = {
            let known = self.applications.named(&name);
            let known = known.filter(|before| before.application.id != prepared.application.id);
            // Errors that are known already are returned first.
            known.as_ref().map(|_| self.check_replaceable(tenant, &prepared.application)).transpose()?;
            known
        };
        if let Some(before) = known {
            self.way_out.wait_for_results_of(&before)?;
        }
        let paused = self.checkpoints.as_ref().map(|checkpoints| checkpoints.pause());
        let state = self.state.lock();
        let before = self.applications.named(&name);
        let is_made_of = |one: &Running| before.as_ref().is_some_and(|now| now.application.id == one.application.id);
        if made_of.is_some_and(|one| !is_made_of(one)) {
            return Err(changed_meanwhile(&prepared.application.name));
        }
        let before = match before {
            Some(before) if before.application.id == prepared.application.id => {
                return Ok((before, Replacement::default()));
            }
            Some(before) if before.group.rests() => {
                let message = format!("the application '{}' is being replaced", before.application.name);
                return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint("try again in a moment"));
            }
            Some(before) => before,
            None => {
                drop(state);
                drop(paused);
                let (running, is_new) = self.applications.register(tenant, prepared.application)?;
                return Ok((running, Replacement { is_new, ..Replacement::default() }));
            }
        };
        self.check_replaceable(tenant, &prepared.application)?;
        let migration = migration(&before.application, &prepared.application);
        let bound = self.bind_again(&state, &before, &prepared, wish, &migration)?;
        let inputs_stay = inputs_stay(&before, &prepared);
        let (told, after) = upgrade(Version {
            queries: self,
            resting: Resting::new(before.group.clone()),
            before,
            prepared: Some(prepared),
            wish,
            migration,
            bound,
            inputs_stay,
            after: None,
            state: Some(state),
            paused,
        })?;
        tracing::info!(application = name.in_log(), queries = told.queries, "a new version has taken over");
        Ok((after, told))
    }

    /// Fails if an application may not be replaced now by this one.
    fn check_replaceable(&self, tenant: &Tenant, application: &Application) -> Result<(), ServiceError> {
        self.tables.check_current(tenant, &application.tables)?;
        if self.companion.is_some() {
            let message =
                format!("'{}' stays as it was: what goes along with its queries is of one version", application.name);
            return Err(ServiceError::new(ErrorKind::Conflict, message)
                .with_hint("register the new version under another name, or drop the application first"));
        }
        if self.event_log.is_replaying() {
            return Err(ServiceError::new(
                ErrorKind::Unavailable,
                "the log of events is being replayed since the start",
            )
            .with_hint("try again in a moment: /health/ready tells when it is over"));
        }
        match self.applications.hashed(tenant, &application.id) {
            Some(other) => {
                let message = format!("this text is registered already, as '{}'", other.application.name);
                Err(ServiceError::new(ErrorKind::AlreadyExists, message))
            }
            None => Ok(()),
        }
    }

    /// Fails if an application no longer is the running one, or may not be replaced, after other code could change
    /// things.
    fn check_unchanged(&self, before: &Arc<Running>, application: &Application) -> Result<(), ServiceError> {
        match self.applications.numbered(before.number) {
            Some(now) if Arc::ptr_eq(&now, before) => self.check_replaceable(&before.tenant, application),
            _ => Err(changed_meanwhile(&before.application.name)),
        }
    }

    /// Routes events to the new version, waiting ones first.
    fn switch(&self, state: &State, before: &Arc<Running>, after: &Arc<Running>, inputs_stay: bool) {
        if inputs_stay {
            before.group.hand_over(&after.group);
            self.routing.succeed(before, after);
            // Events that came meanwhile and could not be refused.
            before.group.hand_over(&after.group);
            self.applications.succeed(before, after);
        } else {
            // Events that came meanwhile for inputs that no longer exist are dropped with them.
            let slots = state.running_slots(before);
            self.routing.remove_routes(before, &slots);
            self.routing.close(before);
            self.applications.succeed(before, after);
            self.routing.open(after);
            let topics = topics_of(after, &slots);
            for (slots, topics) in slots.chunks(LOAD_BATCH).zip(topics.chunks(LOAD_BATCH)) {
                self.routing.add_routes(after, slots, topics);
            }
            // After the routes: otherwise the log could have a result that no query got, and it would come after a
            // crash.
            self.routing.keep_results(after, true);
            self.routing.sources().begin_of(after);
        }
        for (now, then) in after.outputs.rows.iter().zip(&before.outputs.rows) {
            now.fetch_add(then.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        after.group.go_on();
    }
}

impl Version<'_> {
    /// Events up to now are not for queries that read something else from now on.
    fn pass(&self, group: &Group) {
        if !self.inputs_stay {
            group.pass(self.queries.event_log.next().saturating_sub(1));
        }
    }

    fn name(&self) -> &str {
        &self.before.application.name
    }

    /// Queries that share a slot and are not equal in the new version.
    fn unequal(&self) -> Vec<(Slot, QueryId)> {
        let (state, prepared) = (self.state.as_ref().expect(IS_LOCKED), self.prepared.as_ref().expect(IS_NEW));
        self.bound.unequal(state, &self.before, &prepared.application)
    }

    /// Locks the state of the engine again, and repeats the checks that can refuse the version: other code could change
    /// things meanwhile.
    fn lock_again(&mut self) -> Result<(), ServiceError> {
        let (queries, prepared) = (self.queries, self.prepared.as_ref().expect(IS_NEW));
        let state = self.state.insert(queries.state.lock());
        queries.check_unchanged(&self.before, &prepared.application)?;
        self.bound = queries.bind_again(state, &self.before, prepared, self.wish, &self.migration)?;
        Ok(())
    }
}

impl Upgrade for Version<'_> {
    type Told = (Replacement, Arc<Running>);

    fn quiesce(&mut self) -> Result<(), ServiceError> {
        let (queries, before) = (self.queries, self.before.clone());
        let comes_to_rest = !self.inputs_stay || !self.unequal().is_empty();
        if comes_to_rest || self.state.as_ref().expect(IS_LOCKED).has_absences_of(before.number) {
            // Why a version that keeps the inputs has to wait all the same.
            let why = match comes_to_rest {
                true => "the new version tells queries apart that were computed as one",
                false => "queries were paused or resumed shortly before a restart",
            };
            let hint = format!("try again when its output delivers again, as DESCRIBE APPLICATION says: {why}");
            check_not_behind(&before).map_err(|error| if self.inputs_stay { error.with_hint(hint) } else { error })?;
        }
        if comes_to_rest {
            // Before other code can lock the state, so that no other change brings the group to rest.
            before.group.close_intake();
            self.state = None;
            queries.routing.let_rest(&before, &mut self.resting, REST_WAIT_MAX)?;
            self.lock_again()?;
        }
        let unequal = self.unequal();
        queries.part(self.state.as_mut().expect(IS_LOCKED), &before, &unequal, false)?;
        if self.paused.is_some() && before.group.is_checkpointed() {
            // No event may come between those that were passed over and those that wait.
            before.group.quiesce();
            self.pass(&before.group);
            // Results that are leaving may have to pass through this very application, and their acknowledgements come
            // after events for it.
            before.group.suspend();
            self.resting.let_shared_go_on();
            self.state = None;
            self.paused.as_mut().map_or(Ok(()), |paused| paused.save(&queries.way_out, &before))?;
            self.lock_again()?;
            if !self.unequal().is_empty() {
                return Err(changed_meanwhile(self.name()));
            }
        }
        before.group.quiesce();
        queries.routing.await_shared_rows(&before);
        Ok(())
    }

    fn start(&mut self) -> Result<(), ServiceError> {
        let Prepared { tenant, application, topics, outputs, shape, parts, shown, warnings } =
            self.prepared.take().expect(IS_NEW);
        let group = self.queries.applications.create_group(&tenant, parts);
        // Its timers, too, have to wait until the version counts.
        group.quiesce();
        let after = self.after.insert(Running {
            number: self.before.number,
            tenant,
            application,
            group: group.clone(),
            inboxes: self.before.inboxes.clone(),
            topics,
            outputs,
            event_log: self.queries.event_log.clone(),
            shape,
            queries_running: AtomicU64::new(self.before.queries_running.load(Ordering::Relaxed)),
            queries_paused: AtomicU64::new(self.before.queries_paused.load(Ordering::Relaxed)),
            queries_not_running: AtomicU64::new(self.before.queries_not_running.load(Ordering::Relaxed)),
            shown,
            warnings,
            warned: Warned::default(),
            sources: OnceLock::new(),
        });
        let parameters = |queries: &[QueryId]| self.bound.rows(queries);
        let migration = StateMigration { state: &self.migration.map, parameters: &parameters };
        let taken = after.group.migrate_from(&self.before.group, &migration);
        self.pass(&group);
        taken.map_err(|error| stays(self.name(), ServiceError::from_text(ErrorKind::Unavailable, &error.to_string())))
    }

    fn store(&mut self) -> Result<(), ServiceError> {
        let dropped: Vec<&str> = self.bound.dropped.iter().map(String::as_str).collect();
        let queries = self.bound.places.iter().map(|(query, ..)| *query);
        let Running { tenant, application, .. } = self.after.as_ref().expect(IS_STARTED);
        let new = NewApplication::of(tenant, application);
        Ok(self.queries.catalog.replace_application(new, &dropped, queries)?)
    }

    fn switch(mut self) -> Self::Told {
        let (queries, before) = (self.queries, &self.before);
        let mut after = self.after.take().expect(IS_STARTED);
        if !self.inputs_stay {
            after.inboxes = queries.routing.register_inboxes(&after.group, &after.topics);
        }
        let after = Arc::new(after);
        after.log_warnings();
        queries.switch(self.state.as_mut().expect(IS_LOCKED), before, &after, self.inputs_stay);
        before.group.retire();
        queries.applications.workers.remove_group(before.group.id());
        if let Some(paused) = &mut self.paused {
            paused.outdated(before.number);
        }
        let replaced = Replacement {
            is_new: false,
            is_changed: true,
            queries: self.bound.places.len() as u64,
            parameters_dropped: std::mem::take(&mut self.bound.dropped).into_iter().collect(),
            state_discarded: std::mem::take(&mut self.migration.lost),
        };
        (replaced, after)
    }

    fn roll_back(self, error: ServiceError) -> ServiceError {
        if let Some(after) = &self.after {
            self.queries.applications.workers.remove_group(after.group.id());
        }
        error
    }
}

impl State {
    /// The slots of an application's queries that get events, each once.
    fn running_slots(&self, running: &Running) -> Vec<Slot> {
        let queries = self.registry.of_application(running.number).filter_map(|query| self.registry.get(query));
        let slot_of = |entry: &Entry| match entry.life {
            Lifecycle::Running(slot) => Some(slot),
            _ => None,
        };
        let mut slots: Vec<Slot> = queries.filter_map(slot_of).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

/// Whether queries keep reading the same topics, by the same inboxes.
fn inputs_stay(running: &Running, prepared: &Prepared) -> bool {
    fn signature(shape: &Option<Arc<InputShape>>) -> Option<&str> {
        shape.as_ref().map(|shape| &*shape.signature)
    }
    let (before, after) = (&running.application, &prepared.application);
    let is_same = |(one, other): (&Input, &Input)| {
        // A parameter that was not given may have another value now.
        let parameters = one.address_parameters().zip(other.address_parameters());
        let mut parameters = parameters.map(|(one, other)| (&before.parameters[one], &after.parameters[other]));
        (&one.address.connector, &one.address.template) == (&other.address.connector, &other.address.template)
            && one.source.as_ref().map(SourceInput::without_places)
                == other.source.as_ref().map(SourceInput::without_places)
            && parameters.all(|(one, other)| one == other)
    };
    let are_logged = |topics: &Topics| topics.inputs.iter().map(|input| input.is_logged).collect::<Vec<_>>();
    before.inputs.len() == after.inputs.len()
        && before.inputs.iter().zip(&after.inputs).all(is_same)
        && are_logged(&running.topics) == are_logged(&prepared.topics)
        && signature(&running.shape) == signature(&prepared.shape)
}

fn changed_meanwhile(name: &str) -> ServiceError {
    let message = format!("'{name}' stays as it was: it was changed meanwhile by somebody else");
    ServiceError::new(ErrorKind::Conflict, message).with_hint("try again")
}
