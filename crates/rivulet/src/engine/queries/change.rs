//! A change of the values of queries: what it does to them, and how it is made.
//!
//! Whoever makes a change has suspended the group of its queries, and no event waits that came before the change:
//! [`alter`](super::alter) where values change, [`replayed_changes`](super::replayed_changes) after a restart.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::kernels::cmp::distinct;
use rivulet_dataflow::{QueryId, Slot};
use rivulet_operators::application;
use rivulet_runtime::Alter;

use super::{Queries, State};
use crate::engine::lifecycle::Lifecycle;
use crate::engine::running::Running;
use crate::service::{AlterationEffect, ErrorKind, ServiceError};

/// What a change of certain parameters does to a query.
pub(super) struct Effect {
    pub(super) told: Arc<AlterationEffect>,
    pub(super) state: application::Alteration,
    /// Whether the query reads other topics afterwards.
    reads_else: bool,
    /// Whether the query has another key afterwards, by which it is found among the queries that share its topic.
    pub(super) has_other_key: bool,
    /// Whether the query computes something else, so that it can no longer share a slot with the queries it was equal
    /// to.
    pub(super) computes_else: bool,
}

/// A change that is to be made.
pub(super) struct Change<'a> {
    pub(super) query: QueryId,
    pub(super) slot: Slot,
    pub(super) row: usize,
    pub(super) effect: &'a Effect,
    pub(super) number: u64,
    /// Whether its routes change.
    pub(super) reroutes: bool,
}

impl Queries {
    /// Gives queries their values, and routes the events for these values to them. Their group is suspended; routes
    /// that they get may be open already.
    pub(super) fn make(
        &self,
        state: &State,
        running: &Running,
        rows: &RecordBatch,
        inputs: &[Vec<String>],
        changes: &[Change<'_>],
        are_routes_open: bool,
    ) {
        let is_replayed_paused = |change: &&Change<'_>| state.replayed_paused.contains(&change.query);
        let is_routed = |change: &&Change<'_>| {
            let life = state.registry.get(change.query).map(|entry| &entry.life);
            matches!(life, Some(Lifecycle::Running(_))) || is_replayed_paused(change)
        };
        let routed: Vec<&Change<'_>> = changes.iter().filter(|change| change.reroutes).filter(is_routed).collect();
        let slots: Vec<Slot> = routed.iter().map(|change| change.slot).collect();
        let topics: Vec<Vec<String>> = routed.iter().map(|change| inputs[change.row].clone()).collect();
        let queries: Vec<QueryId> = routed.iter().map(|change| change.query).collect();
        let alters = changes.iter().map(|change| Alter {
            slot: change.slot,
            query: change.query,
            row: change.row,
            map: change.effect.state.map.as_ref(),
            number: change.number,
        });
        let alters: Vec<Alter<'_>> = alters.collect();
        let alter = || {
            if let Err(error) = running.group.alter(&alters, rows) {
                let application = &running.application.name;
                tracing::error!(application, "queries with other values begin anew, for their state is lost: {error}");
            }
        };
        if slots.is_empty() {
            alter();
        } else {
            self.companion_ends(&queries);
            if !are_routes_open {
                self.routing.open_routes(running, &slots, &topics);
            }
            self.routing.change_routes(running, &slots, &topics, alter);
            self.companion_begins(&queries, &topics);
            let log_only = routed.iter().filter(|change| is_replayed_paused(change)).map(|change| change.slot);
            self.routing.route_log_only(running, &log_only.collect::<Vec<_>>());
        }
    }

    /// Gives a slot of their own to queries that shared one and are no longer equal. If their routes or their keys
    /// change at once, no topic becomes shared by that: its readers would be found by the keys of before. Returns
    /// whether any query has got a slot.
    pub(in crate::engine) fn part(
        &self,
        state: &mut State,
        running: &Running,
        queries: &[(Slot, QueryId)],
        routes_change: bool,
    ) -> Result<bool, ServiceError> {
        let (parted, done) = running.group.part_all(queries);
        let mut has_any = false;
        for (&(shared, query), parted) in queries.iter().zip(parted).filter(|((slot, _), parted)| slot != parted) {
            has_any = true;
            if let Some(entry) = state.registry.get_mut(query) {
                entry.life.move_to(parted);
            }
            self.routing.add_routes_of_parted(running, shared, parted, routes_change);
        }
        done.map(|()| has_any).map_err(|error| {
            let message = format!("'{}' stays as it was: {error}", running.application.name);
            ServiceError::from_text(ErrorKind::Unavailable, &message)
        })
    }
}

impl Effect {
    /// Whether routes of a query change, given whether it shares its topic: they stay where it reads no other topic,
    /// and is not found by a key.
    pub(super) fn reroutes(&self, shares_topic: bool) -> bool {
        self.reads_else || (self.has_other_key && shares_topic)
    }

    pub(super) fn new(running: &Running, changed: &[usize]) -> Self {
        let application = &running.application;
        let state = application::alteration(application, changed);
        let names = |places: &[usize]| places.iter().map(|&one| application.parameters[one].name.clone()).collect();
        let told = AlterationEffect {
            state_kept: names(&state.kept),
            state_reset: names(&state.reset),
            begun_anew: state.lost.clone(),
        };
        let in_input =
            |one: &usize| application.inputs.iter().any(|input| input.address_parameters().any(|other| other == *one));
        let is_key = |one: &usize| application.matching.is_some_and(|matching| matching.parameter == *one);
        Self {
            told: Arc::new(told),
            state,
            reads_else: changed.iter().any(in_input),
            has_other_key: changed.iter().any(is_key),
            computes_else: changed.iter().any(|one| application.deciding_parameters.contains(one)),
        }
    }
}

/// Calls `each` for each row, in order, with the columns that differ.
pub(super) fn for_each_changed(before: &RecordBatch, after: &RecordBatch, mut each: impl FnMut(&[usize])) {
    let columns = before.columns().iter().zip(after.columns());
    let differ = columns.map(|(before, after)| distinct(before, after).expect("both have the type of the parameter"));
    let differ: Vec<BooleanArray> = differ.collect();
    let mut changed = Vec::with_capacity(differ.len());
    for row in 0..after.num_rows() {
        changed.clear();
        changed.extend((0..differ.len()).filter(|&place| differ[place].value(row)));
        each(&changed);
    }
}
