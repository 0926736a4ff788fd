//! Creates, pauses, resumes and drops queries, thousands at a time.

use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use foldhash::fast::RandomState;
use rivulet_connectors::mqtt::ROUTES_AT_ONCE;
use rivulet_dataflow::{LogPosition, QueryId, Slot};
use rivulet_runtime::Joined;
use rivulet_sql::ParameterRows;

use super::alter::check_not_replaced;
use super::checked::{Checked, Chunk, LOAD_BATCH, bind_error, check_label, param_value};
use super::lifecycle_log::{LifecycleLog, Loading, came_at};
use super::{Queries, State, ambiguous};
use crate::catalog::{ApplicationNumber, NewQuery, StoredQuery};
use crate::engine::checkpoints::SavedStates;
use crate::engine::lifecycle::Lifecycle;
use crate::engine::registry::Entry;
use crate::engine::resting::Resting;
use crate::engine::running::{Running, topics_of};
use crate::engine::taps::Watched;
use crate::service::{ErrorKind, FullName, Limit, Parameter, QueryRequest, ServiceError, Tenant, generated_id};

/// The longest name of a query, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// An answer for each request, once it is known.
type Answers = [Option<Result<QueryId, ServiceError>>];

impl Queries {
    /// Submits a batch; see [`crate::service::Service::submit`].
    pub(in crate::engine) fn submit(
        &self,
        tenant: &Tenant,
        requests: &[QueryRequest<'_>],
    ) -> Vec<Result<QueryId, ServiceError>> {
        let mut answers: Vec<Option<Result<QueryId, ServiceError>>> = requests.iter().map(|_| None).collect();
        // Checks everything that can be checked before it takes the lock of the state, for which others wait.
        let bound = self.bind(tenant, requests, &mut answers);
        let mut refuse = |index: usize, error| answers[index] = Some(Err(error));
        let mut chunks: Vec<Checked<usize>> =
            bound.into_iter().map(|mut chunk| chunk.take_checked(&mut refuse)).collect();
        let mut state = self.state.lock();
        let mut names = HashSet::default();
        let mut queries = state.registry.count();
        let (quota, mut of_tenant) = (self.quotas.of(tenant), state.registry.count_of(tenant) as u64);
        for chunk in &mut chunks {
            let running = chunk.running.clone();
            let name = &running.application.name;
            let gone = match self.applications.numbered(running.number) {
                None => Some(ServiceError::not_found(format!("the application '{name}' was dropped meanwhile"))),
                Some(now) if !Arc::ptr_eq(&now, &running) => {
                    let message = format!("the application '{name}' was replaced meanwhile");
                    Some(ServiceError::new(ErrorKind::Conflict, message).with_hint("submit the query again"))
                }
                Some(_) => None,
            };
            let check = |_, index: usize, _: &mut Vec<String>| {
                if let Some(gone) = &gone {
                    return Err(gone.clone());
                }
                check_label(requests[index].label)?;
                quota.admit(Limit::Queries, of_tenant)?;
                quota.admit_measured(Limit::StateBytes)?;
                check_name(&state, &mut names, tenant, &requests[index])?;
                if let Some(companion) = &self.companion {
                    companion.admit(queries + 1)?;
                }
                queries += 1;
                of_tenant += 1;
                Ok(())
            };
            chunk.retain(check, &mut refuse);
        }
        self.start(&mut state, &chunks, requests, &mut answers);
        answers.into_iter().map(|answer| answer.expect("every request was answered")).collect()
    }

    /// Sorts requests by application and binds their parameters. A request that cannot be bound is answered.
    fn bind(&self, tenant: &Tenant, requests: &[QueryRequest<'_>], answers: &mut Answers) -> Vec<Chunk<usize>> {
        let mut chunks: Vec<Chunk<usize>> = Vec::new();
        let mut by_name: HashMap<&str, Result<usize, ServiceError>, RandomState> = HashMap::default();
        for (index, request) in requests.iter().enumerate() {
            let chunk = by_name.entry(request.application).or_insert_with(|| {
                let running = self.applications.find(&tenant.named(request.application))?;
                chunks.push(Chunk::new(running));
                Ok(chunks.len() - 1)
            });
            let chunk = match chunk {
                Ok(chunk) => &mut chunks[*chunk],
                Err(error) => {
                    answers[index] = Some(Err(error.clone()));
                    continue;
                }
            };
            let values = request.parameters.iter().map(|(name, value)| (name.as_ref(), param_value(value)));
            match chunk.values.push(values) {
                Ok(()) => chunk.queries.push(index),
                Err(error) => answers[index] = Some(Err(bind_error(error))),
            }
        }
        chunks
    }

    /// Records queries in the catalog, all in one transaction, then starts them.
    fn start(
        &self,
        state: &mut State,
        chunks: &[Checked<usize>],
        requests: &[QueryRequest<'_>],
        answers: &mut Answers,
    ) {
        let stored: Vec<NewQuery<'_>> = chunks
            .iter()
            .flat_map(|chunk| chunk.queries.iter().map(|&index| (chunk.running.number, &requests[index])))
            .map(|(application, request)| NewQuery {
                application,
                name: request.name.unwrap_or_default(),
                parameters: request.parameters,
                label: request.label,
            })
            .collect();
        if stored.is_empty() {
            return;
        }
        let parameter_bytes = chunks.iter().map(|chunk| chunk.rows.get_array_memory_size()).sum();
        let admitted = self.memory.admit(stored.len(), parameter_bytes);
        // Before this position they get no event, also after a crash.
        let since = self.event_log.end();
        let is_logged = |chunk: &Checked<usize>| !chunk.queries.is_empty() && chunk.running.reads_log();
        let remembered = chunks.iter().any(is_logged).then_some(since);
        let mut next = match admitted.and_then(|()| Ok(self.catalog.insert_queries(&stored, remembered)?)) {
            Ok(first) => first,
            Err(error) => {
                let indices = chunks.iter().flat_map(|chunk| &chunk.queries);
                indices.for_each(|&index| answers[index] = Some(Err(error.clone())));
                return;
            }
        };
        let mut later = Vec::new();
        for Checked { running, rows, inputs, queries: indices } in chunks.iter().filter(|one| !one.queries.is_empty()) {
            let queries: Vec<QueryId> = (next..).take(indices.len()).collect();
            next += queries.len() as u64;
            let labels = indices.iter().filter_map(|&index| requests[index].label);
            labels.for_each(|label| running.group.expect_label(label));
            let joined = self.join(running, &queries, rows, since);
            self.companion_begins(&queries, inputs);
            // Between two pieces events may come, which only the queries of the first piece get.
            let at_once = (ROUTES_AT_ONCE / running.inboxes.len()).max(1);
            for (piece, inputs) in joined.chunks(at_once).zip(inputs.chunks(at_once)) {
                let new: Vec<Slot> = piece.iter().filter(|one| one.is_new).map(|one| one.slot).collect();
                let add_routes = || self.routing.add_routes_of_new(running, piece, inputs);
                let begin_behind = |position| running.group.begin_behind(&new, position);
                let from = self.route_since(running, since, add_routes, begin_behind);
                if running.reads_log() && from != since {
                    later.extend(ranges_in(&queries, &joined, &new).map(|(first, last)| (first, last, from)));
                }
            }
            for ((&id, joined), &index) in queries.iter().zip(&joined).zip(indices) {
                let name = (&running.tenant, requests[index].name);
                state.registry.insert(id, name, running.number, Lifecycle::Running(joined.slot));
                answers[index] = Some(Ok(id));
            }
            running.queries_running.fetch_add(joined.len() as u64, Ordering::Relaxed);
        }
        // They have no event that came while the catalog was written, and are to get none after a crash.
        if !later.is_empty()
            && let Err(error) = self.catalog.note_created(&later)
        {
            tracing::warn!("after a crash, new queries may get events that came while they were written: {error}");
        }
    }

    /// Routes events to slots that got none so far, by `add_routes`. Returns the position of the log from which on they
    /// get events: `since`, or a higher one. `begin_behind` makes them skip events up to a position.
    fn route_since(
        &self,
        running: &Running,
        since: LogPosition,
        add_routes: impl FnOnce() -> LogPosition,
        begin_behind: impl FnOnce(LogPosition),
    ) -> LogPosition {
        let may_be_earlier = running.group.is_behind() || self.routing.shared_group_of(running).is_some();
        if !running.reads_log() || !may_be_earlier {
            return add_routes().max(since);
        }
        // Rows of shared topics may be of earlier events. None is processed until it is known which these are.
        let _suspended = running.group.suspended();
        let from = add_routes().max(since);
        begin_behind(from.saturating_sub(1));
        from
    }

    /// Gives new queries slots, in which they get no event of the log before `since`.
    fn join(&self, running: &Running, queries: &[QueryId], rows: &RecordBatch, since: LogPosition) -> Vec<Joined> {
        // Queries that exist already may have yet to get earlier events: from the replay, or from a topic that many
        // queries read.
        let is_replayed = running.reads_log() && (self.event_log.is_replaying() || running.group.is_behind());
        let is_behind = self.routing.shared_group_of(running).is_some_and(|shared| !shared.is_idle());
        if !is_replayed && !is_behind {
            return running.group.join(queries, rows);
        }
        let joined = running.group.join_restored(queries, rows, &|_| Some(came_at(since)));
        if !is_replayed {
            return joined;
        }
        let new: Vec<Slot> = joined.iter().filter(|one| one.is_new).map(|one| one.slot).collect();
        running.group.begin_behind(&new, since.saturating_sub(1));
        joined
    }

    /// Ends queries of one application that are no longer in the catalog.
    pub(in crate::engine) fn end(&self, state: &mut State, application: ApplicationNumber, queries: &[QueryId]) {
        let (mut paused, mut routed, mut not_running) = (Vec::new(), Vec::new(), 0);
        // Queries that are paused, and routed to until the log is replayed.
        let mut replayed = Vec::new();
        self.companion_ends(queries);
        for &id in queries {
            match state.registry.remove(id) {
                // The query is alone in its slot.
                Some(Entry { life: Lifecycle::Paused(slot), .. }) => {
                    paused.push(slot);
                    replayed.extend(state.replayed_paused.contains(&id).then_some(slot));
                }
                Some(Entry { life: Lifecycle::Running(slot), .. }) => routed.push((slot, id)),
                Some(_) => not_running += 1,
                None => {}
            }
            self.taps.forget(&Watched::Query(id));
        }
        if not_running > 0 {
            self.applications.forget_left_out(application, not_running);
        }
        if let Some(running) = self.applications.numbered(application) {
            running.queries_running.fetch_sub(routed.len() as u64, Ordering::Relaxed);
            running.queries_paused.fetch_sub(paused.len() as u64, Ordering::Relaxed);
            let mut slots = running.group.leave(&routed);
            self.routing.remove_routes(&running, &slots);
            if !replayed.is_empty() {
                self.routing.remove_routes(&running, &replayed);
            }
            slots.append(&mut paused);
            running.group.remove(&slots);
        }
    }

    /// Drops one query.
    pub(in crate::engine) fn drop_query(&self, name: &FullName) -> Result<(), ServiceError> {
        let mut state = self.state.lock();
        let id = state.query(name)?;
        let application = state.registry.get(id).expect("the query was found by name").application;
        self.catalog.remove_queries(&[id])?;
        self.end(&mut state, application, &[id]);
        Ok(())
    }

    /// Pauses or resumes one query; doing so twice does nothing.
    pub(in crate::engine) fn set_paused(&self, name: &FullName, is_paused: bool) -> Result<(), ServiceError> {
        // What comes from here on may count as received before the pause or after it.
        let asked_at = self.event_log.end();
        if is_paused {
            self.let_arrive(name);
        }
        let mut state = self.state.lock();
        let id = state.query(name)?;
        let (running, slot) = self.place(&state, id)?;
        let entry = state.registry.get(id).expect("the query was found by name");
        if entry.life.is_paused() == is_paused {
            return Ok(());
        }
        self.check_replayed(&state, &running)?;
        // Events that it shares with other queries, by its slot or its topic, reach it from there.
        let shares =
            is_paused && running.reads_log() && (running.group.is_shared(slot) || self.routing.shares(&running, slot));
        if shares {
            check_not_replaced(&running)?;
        }
        let at = running.reads_log().then(|| self.event_log.end());
        self.catalog.set_paused(&[id], is_paused, at)?;
        let (from, to) = if is_paused {
            // None reaches it until its last one is known.
            let resting = shares.then(|| self.routing.quiesced(&running));
            let passed = shares.then(|| self.routing.passed_to(&running, slot));
            if passed.is_some_and(|passed| passed < asked_at) {
                self.catalog.set_paused(&[id], false, at)?;
                let message = format!("'{name}' is not paused: events that came before are yet to be decoded for it");
                return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint(
                    "try again in a moment; SHOW APPLICATIONS and the status say which application takes none",
                ));
            }
            // The slot that it shared stays for the other queries.
            let own = match running.group.part(slot, id) {
                Ok(own) => own,
                Err(error) => {
                    self.catalog.set_paused(&[id], false, at)?;
                    return Err(ServiceError::new(ErrorKind::Unavailable, format!("'{name}' is not paused: {error}")));
                }
            };
            self.companion_ends(&[id]);
            let removed = match own == slot {
                true => self.routing.remove_routes(&running, &[slot]),
                false => {
                    state.registry.get_mut(id).expect("the query was found by name").life.move_to(own);
                    LogPosition::MAX
                }
            };
            // The query has the events that came since the catalog was written, but none that still waits elsewhere.
            let end = at.map(|_| passed.unwrap_or(removed));
            drop(resting);
            if let Some(end) = end.filter(|end| Some(*end) != at)
                && let Err(error) = self.catalog.set_paused(&[id], true, Some(end))
            {
                let name = name.in_log();
                tracing::warn!(query = name, "after a crash the last events before the pause may be missing: {error}");
            }
            (&running.queries_running, &running.queries_paused)
        } else {
            let topics = topics_of(&running, &[slot]);
            self.companion_begins(&[id], &topics);
            let add_routes = || self.routing.add_routes(&running, &[slot], &topics);
            // What waits now came before the pause. Once there are routes, other events wait there too.
            let waiting_to = running.group.waiting_to(slot);
            let go_on_behind = |position| running.group.go_on_behind((slot, id), waiting_to, position);
            let from = self.route_since(&running, at.unwrap_or_default(), add_routes, go_on_behind);
            // The query has none of the events that came while the catalog was written.
            if at.is_some_and(|at| at != from)
                && let Err(error) = self.catalog.set_paused(&[id], false, Some(from))
            {
                let name = name.in_log();
                tracing::warn!(query = name, "after a crash it may get events of before it resumed: {error}");
            }
            (&running.queries_paused, &running.queries_running)
        };
        from.fetch_sub(1, Ordering::Relaxed);
        to.fetch_add(1, Ordering::Relaxed);
        let life = &mut state.registry.get_mut(id).expect("the query was found by name").life;
        if is_paused {
            life.pause()
        } else {
            life.resume()
        }
        Ok(())
    }

    /// Starts all queries in the catalog that can run, and returns their number. The others stay in the registry, so
    /// that they are listed and their names are taken.
    pub(in crate::engine) fn load(&self, loading: &Loading<'_>) -> Result<u64, ServiceError> {
        let state = &mut *self.state.lock();
        let mut waiting: HashMap<ApplicationNumber, Chunk<QueryId>> = HashMap::new();
        let mut loaded = 0;
        let (tenants, of_nobody) = (self.applications.tenants(), Tenant::default());
        self.catalog.scan_queries(|query| {
            let name = (!query.name.is_empty()).then_some(query.name);
            let tenant = tenants.get(&query.application).unwrap_or(&of_nobody);
            state.restored_to = query.id;
            // In order of number, as the registry requires. The slots follow, application by application.
            state.registry.insert(query.id, (tenant, name), query.application, Lifecycle::without_slot(query.paused));
            loaded += self.load_query(state, &mut waiting, &query, loading);
        })?;
        for chunk in waiting.values_mut() {
            loaded += self.start_loaded(state, chunk, loading);
        }
        Ok(loaded)
    }

    /// Adds a query of the registry to the queries of its application that are about to be started, and starts these
    /// once they are many. Returns the number of queries that it started.
    fn load_query(
        &self,
        state: &mut State,
        waiting: &mut HashMap<ApplicationNumber, Chunk<QueryId>>,
        query: &StoredQuery<'_>,
        loading: &Loading<'_>,
    ) -> u64 {
        let chunk = match waiting.entry(query.application) {
            Place::Occupied(chunk) => chunk.into_mut(),
            Place::Vacant(place) => match self.applications.numbered(query.application) {
                Some(running) => place.insert(Chunk::new(running)),
                None => {
                    self.applications.leave_out(query.application);
                    return 0;
                }
            },
        };
        // Changes that are newer than the saved state are made after it is restored.
        let push = |values: &mut ParameterRows, parameters: &[Parameter<'_>]| {
            values.push(parameters.iter().map(|(name, value)| (name.as_ref(), param_value(value)))).map_err(bind_error)
        };
        let pushed = match loading.values_before(&chunk.running, query.id) {
            Some(before) => push(&mut chunk.values, before).or_else(|error| {
                note_values_skipped(query.id, &error);
                push(&mut chunk.values, query.parameters)
            }),
            None => push(&mut chunk.values, query.parameters),
        };
        if let Err(error) = pushed {
            self.leave_out(query.application, query.id, &error);
            return 0;
        }
        if let Some(label) = query.label {
            chunk.running.group.expect_label(label);
        }
        chunk.queries.push(query.id);
        if chunk.queries.len() == LOAD_BATCH { self.start_loaded(state, chunk, loading) } else { 0 }
    }

    /// Starts applications, and their queries, that could not run because a table or a secret was missing.
    pub(in crate::engine) fn start_again(&self) -> Result<(), ServiceError> {
        let state = &mut *self.state.lock();
        let applications = &self.applications;
        let mut saved = SavedStates::new(applications.altered_next());
        let applications = applications.start_again(&mut |number, prepared, pieces| {
            pieces.into_iter().for_each(|pieces| saved.add(number, pieces));
            saved.fit(applications, number, prepared)
        });
        if applications.is_empty() {
            return Ok(());
        }
        self.checkpoints.iter().for_each(|checkpoints| checkpoints.note_unfitting(&saved));
        let lifecycle_log = LifecycleLog::default().with_alterations(self.catalog.alterations()?);
        let loading =
            Loading { saved: &saved, lifecycle_log: &lifecycle_log, restores_at_once: self.checkpoints.as_deref() };
        let started =
            |query: &QueryId| state.registry.get(*query).is_some_and(|entry| applications.contains(&entry.application));
        let alterations = lifecycle_log.alterations_of(started);
        // Events that come meanwhile are newer than all changes of values. The changes are made before the events are
        // taken in.
        let mut still = Vec::new();
        if !alterations.is_empty() {
            for running in applications.iter().filter_map(|number| self.applications.numbered(*number)) {
                still.push(Resting::new(running.group.clone()));
                running.group.quiesce();
            }
        }
        let mut waiting = HashMap::new();
        self.catalog.scan_queries(|query| {
            if applications.contains(&query.application) && state.registry.get(query.id).is_some() {
                self.load_query(state, &mut waiting, &query, &loading);
            }
        })?;
        for chunk in waiting.values_mut() {
            self.start_loaded(state, chunk, &loading);
        }
        self.expect_changes(state, &saved, &alterations)
    }

    /// Starts the queries that fit this version, and returns their number.
    fn start_loaded(&self, state: &mut State, chunk: &mut Chunk<QueryId>, loading: &Loading<'_>) -> u64 {
        let (application, running) = (chunk.running.number, chunk.running.clone());
        let mut again = Vec::new();
        let checked = chunk.take_checked(|query, error| match loading.values_before(&running, query) {
            Some(_) => again.push((query, error)),
            None => self.leave_out(application, query, &error),
        });
        let mut started = self.start_checked(state, checked, loading);
        if again.is_empty() {
            return started;
        }
        // The values in the records may fit where the values of before do not.
        let stored = self.catalog.read_records(again.iter().map(|(query, _)| *query)).unwrap_or_default();
        let stored = stored.values().chain(std::iter::repeat(None));
        for ((query, error), stored) in again.into_iter().zip(stored) {
            let values = stored.unwrap_or_default().parameters;
            let values = values.iter().map(|(name, value)| (name.as_ref(), param_value(value)));
            match chunk.values.push(values) {
                Ok(()) => {
                    note_values_skipped(query, &error);
                    chunk.queries.push(query);
                }
                Err(_) => self.leave_out(application, query, &error),
            }
        }
        if !chunk.queries.is_empty() {
            let checked = chunk.take_checked(|query, error| self.leave_out(application, query, &error));
            started += self.start_checked(state, checked, loading);
        }
        started
    }

    fn start_checked(&self, state: &mut State, mut checked: Checked<QueryId>, loading: &Loading<'_>) -> u64 {
        let is_paused = |id: &QueryId| state.registry.get(*id).is_some_and(|entry| entry.life.is_paused());
        let is_paused: Vec<bool> = checked.queries.iter().map(is_paused).collect();
        // A query that was paused after the replay begins gets the events before its pause.
        let reads_log = checked.running.reads_log();
        let is_replayed = |id: &QueryId| reads_log && loading.lifecycle_log.is_replayed(*id);
        let replayed: Vec<bool> = checked.queries.iter().map(is_replayed).collect();
        // No query shares the slot of a query that gets no events.
        let paused = checked.take_out(|row| is_paused[row] && !replayed[row]);
        let is_paused = |id: &QueryId| state.registry.get(*id).is_some_and(|entry| entry.life.is_paused());
        let replayed_paused: BTreeSet<QueryId> = checked.queries.iter().copied().filter(is_paused).collect();
        let mut placed = Vec::with_capacity(checked.queries.len() + paused.queries.len());
        let mut place = |id, slot| {
            state.registry.get_mut(id).expect("the query was inserted when it was read").life.start(slot);
            placed.push((id, slot));
        };
        let slots = paused.running.group.add(&paused.queries, &paused.rows);
        paused.queries.iter().zip(slots).for_each(|(&id, slot)| place(id, slot));
        let Checked { running, rows, inputs, queries } = checked;
        let joined = running.group.join_restored(&queries, &rows, &|query| loading.shared(&running, query));
        queries.iter().zip(&joined).for_each(|(&id, joined)| place(id, joined.slot));
        let restores = loading.restores_at_once.iter();
        restores.for_each(|checkpoints| checkpoints.restore_at_once(loading.saved, &running, &placed));
        self.companion_begins(&queries, &inputs);
        self.routing.add_routes_of_new(&running, &joined, &inputs);
        let of_paused = queries.iter().zip(&joined).filter(|(query, _)| replayed_paused.contains(query));
        let of_paused: Vec<(Slot, QueryId)> = of_paused.map(|(query, joined)| (joined.slot, *query)).collect();
        // They are alone, and no later query shares the slot of a query that will get no events.
        let (slots, _) = running.group.part_all(&of_paused);
        self.routing.route_log_only(&running, &slots);
        let all_paused = paused.queries.len() + replayed_paused.len();
        running.queries_running.fetch_add((queries.len() - replayed_paused.len()) as u64, Ordering::Relaxed);
        running.queries_paused.fetch_add(all_paused as u64, Ordering::Relaxed);
        state.replayed_paused.extend(replayed_paused);
        (queries.len() + paused.queries.len()) as u64
    }
}

impl Queries {
    /// Records that a query does not fit this version. It stays in the registry, without a slot.
    fn leave_out(&self, application: ApplicationNumber, query: QueryId, error: &ServiceError) {
        tracing::error!(query, "a registered query is not running: {error}");
        self.applications.leave_out(application);
    }
}

/// Warns that a query begins with the values of its record, though its saved state was made with others.
fn note_values_skipped(query: QueryId, error: &ServiceError) {
    tracing::warn!(query, "its values before a change do not fit, and those behind it count from the start: {error}");
}

/// The ranges of queries whose slots are among `new`: first and last.
fn ranges_in(queries: &[QueryId], joined: &[Joined], new: &[Slot]) -> impl Iterator<Item = (QueryId, QueryId)> + use<> {
    let new: HashSet<Slot, RandomState> = new.iter().copied().collect();
    let mut ranges: Vec<(QueryId, QueryId)> = Vec::new();
    for (&query, _) in queries.iter().zip(joined).filter(|(_, one)| new.contains(&one.slot)) {
        match ranges.last_mut().filter(|(_, last)| last + 1 == query) {
            Some((_, last)) => *last = query,
            None => ranges.push((query, query)),
        }
    }
    ranges.into_iter()
}

fn check_name<'a>(
    state: &State,
    names: &mut HashSet<&'a str, RandomState>,
    tenant: &Tenant,
    request: &QueryRequest<'a>,
) -> Result<(), ServiceError> {
    let Some(name) = request.name else { return Ok(()) };
    check_free(state, tenant, name)?;
    if names.insert(name) { Ok(()) } else { Err(taken("query", name)) }
}

/// Fails if a new query of a tenant cannot have this name.
pub(in crate::engine) fn check_free(state: &State, tenant: &Tenant, name: &str) -> Result<(), ServiceError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(ServiceError::invalid(format!(
            "a query's name has 1 to {NAME_BYTES_MAX} bytes and no control characters"
        )));
    }
    if generated_id(name).is_some() {
        return Err(ServiceError::invalid(format!("'{name}' has the form of a generated name"))
            .with_hint("choose another name, or none to have one generated"));
    }
    let is_of_big = !state.big_query_names.is_empty() && state.big_query_names.contains(&tenant.named(name));
    match (state.registry.contains(tenant, name), is_of_big) {
        (true, _) => Err(taken("query", name)),
        (_, true) => Err(taken("big query", name)),
        _ => match state.relation(tenant, name) {
            Some(what) => Err(ambiguous(&format!("a {what} '{name}' exists"), "query")),
            None => Ok(()),
        },
    }
}

fn taken(what: &str, name: &str) -> ServiceError {
    ServiceError::new(ErrorKind::AlreadyExists, format!("a {what} '{name}' exists"))
        .with_hint(format!("choose another name, or drop it first: DROP QUERY {}", rivulet_sql::name_in_sql(name)))
}
