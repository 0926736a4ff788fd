//! Changes of values that are newer than the saved state: they are made again.
//!
//! What must hold: each change is made at its position of the log, when all events before that position are processed
//! and none behind it is handed over.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::RandomState;
use rivulet_dataflow::{LogPosition, QueryId, Slot};

use super::change::{Change, Effect, for_each_changed};
use super::checked::{Checked, Chunk, LOAD_BATCH, ReplayedChange, param_value};
use super::lifecycle_log::behind;
use super::{Queries, State};
use crate::catalog::{Alteration, ApplicationNumber};
use crate::engine::checkpoints::SavedStates;
use crate::engine::running::{Running, topics_of};
use crate::service::ServiceError;

impl State {
    /// Whether there are changes of an application's queries that are yet to be made again.
    pub(in crate::engine) fn has_changes_to_make_of(&self, application: ApplicationNumber) -> bool {
        self.replayed_changes.iter().any(|change| change.checked.running.number == application)
    }
}

impl Queries {
    /// Prepares the changes of values that are newer than the saved state: queries get these values again at their
    /// positions of the log. Until then the queries have the values of the saved state, and that state. Changes before
    /// the position that a replay has reached, and changes of queries that read no log, are made at once.
    pub(super) fn expect_changes(
        &self,
        state: &mut State,
        saved: &SavedStates,
        alterations: &BTreeMap<QueryId, Vec<Alteration>>,
    ) -> Result<(), ServiceError> {
        let mut changes = self.changes_behind(state, saved, alterations)?;
        // The changes that wait already are of other queries. Groups of these queries take no events in meanwhile.
        let next = self.event_log.next();
        let later = changes.split_off(changes.partition_point(|change| change.position <= next));
        self.make_at_once(state, changes);
        self.await_topics(state, &later);
        let replayed = &mut state.replayed_changes;
        replayed.extend(later);
        replayed.make_contiguous().sort_by_key(|change| (change.position, change.number));
        self.note_next_change(state);
        Ok(())
    }

    /// Has what comes on topics that these changes lead to wait in the log: nobody may read them yet, or while others
    /// are made.
    fn await_topics(&self, state: &mut State, changes: &VecDeque<ReplayedChange>) {
        let mut by_application: BTreeMap<ApplicationNumber, Vec<&ReplayedChange>> = BTreeMap::new();
        for change in changes {
            by_application.entry(change.checked.running.number).or_default().push(change);
        }
        let topics = |change: &ReplayedChange| change.checked.inputs[change.row].clone();
        for changes in by_application.into_values() {
            let running = changes[0].checked.running.clone();
            let slot_of = |change: &ReplayedChange| state.registry.get(change.query)?.life.slot();
            let (slots, mut changes): (Vec<Slot>, Vec<&ReplayedChange>) =
                changes.into_iter().filter_map(|change| Some((slot_of(change)?, change))).unzip();
            let moves = changes.iter().zip(topics_of(&running, &slots));
            let moves = moves.filter(|(change, now)| change.checked.inputs[change.row] != *now);
            let moving: HashSet<QueryId, RandomState> = moves.map(|(change, _)| change.query).collect();
            changes.retain(|change| moving.contains(&change.query));
            if !changes.is_empty() {
                let awaited: Vec<Vec<String>> = changes.into_iter().map(topics).collect();
                self.routing.await_routes(&running, &awaited, true);
                state.awaited_topics.push((running, awaited));
            }
        }
    }

    /// The log is replayed: makes the remaining changes at once.
    pub(super) fn make_changes_left(&self, state: &mut State) {
        let left = std::mem::take(&mut state.replayed_changes);
        self.make_at_once(state, left);
        self.note_next_change(state);
        for (running, topics) in std::mem::take(&mut state.awaited_topics) {
            self.routing.await_routes(&running, &topics, false);
        }
    }

    /// The changes of queries that are newer than the saved state, by position. Their values are bound to the version
    /// that runs.
    fn changes_behind(
        &self,
        state: &State,
        saved: &SavedStates,
        alterations: &BTreeMap<QueryId, Vec<Alteration>>,
    ) -> Result<VecDeque<ReplayedChange>, ServiceError> {
        let end = self.event_log.end();
        let mut chunks: BTreeMap<ApplicationNumber, Chunk<(QueryId, u64, LogPosition)>> = BTreeMap::new();
        let mut changes = Vec::new();
        for (&query, of_query) in alterations {
            let entry = state.registry.get(query).filter(|entry| entry.life.slot().is_some());
            let running = entry.and_then(|entry| self.applications.numbered(entry.application));
            let Some(running) = running else { continue };
            let pending = behind(of_query, saved.altered(&running, query));
            if pending.is_empty() {
                continue;
            }
            let last = self.catalog.read_records([query])?;
            let Some(last) = last.values().next().flatten() else { continue };
            let values = pending.iter().skip(1).map(|one| &one.before).chain([&last.parameters]);
            let chunk = chunks.entry(running.number).or_insert_with(|| Chunk::new(running.clone()));
            for (one, values) in pending.iter().zip(values) {
                let position = if running.reads_log() { one.position.min(end) } else { 0 };
                let values = values.iter().map(|(name, value)| (name.as_ref(), param_value(value)));
                match chunk.values.push(values) {
                    Ok(()) => chunk.queries.push((query, one.number, position)),
                    // These are values between two versions of the application.
                    Err(error) => tracing::warn!(query, "a change of its values is not replayed: {error}"),
                }
            }
            if chunk.queries.len() >= LOAD_BATCH {
                take_changes(chunk, &mut changes);
            }
        }
        chunks.values_mut().for_each(|chunk| take_changes(chunk, &mut changes));
        changes.sort_by_key(|change| (change.position, change.number));
        Ok(changes.into())
    }

    /// Makes the changes up to a position of the log, before the event at that position is handed over, if all events
    /// before it are processed. Returns the position of the first change that is yet to be made, or the highest
    /// position there can be.
    pub(in crate::engine) fn make_changes(&self, position: LogPosition) -> LogPosition {
        let next = self.next_change.load(Ordering::Acquire);
        if next > position {
            return next;
        }
        let state = &mut *self.state.lock();
        self.make_changes_now(state, position);
        self.next_change.load(Ordering::Acquire)
    }

    /// Whether there are changes that are yet to be made again.
    pub(in crate::engine) fn has_changes_to_make(&self) -> bool {
        self.next_change.load(Ordering::Acquire) < LogPosition::MAX
    }

    fn make_changes_now(&self, state: &mut State, position: LogPosition) {
        while let Some(first) = state.replayed_changes.front().filter(|change| change.position <= position) {
            let running = self.applications.numbered(first.checked.running.number);
            if running.as_ref().is_some_and(|running| !self.routing.is_idle(running)) {
                return;
            }
            let _suspended = running.as_ref().map(|running| running.group.suspended());
            // Checked once more, now that no activation is under way.
            if running.as_ref().is_some_and(|running| !self.routing.is_idle(running)) {
                return;
            }
            let together = take_together(&mut state.replayed_changes, position);
            self.make_together(state, &together);
            self.note_next_change(state);
        }
    }

    /// Makes changes for which no earlier event is replayed. Groups of these queries take no events in meanwhile.
    fn make_at_once(&self, state: &State, mut changes: VecDeque<ReplayedChange>) {
        while !changes.is_empty() {
            let together = take_together(&mut changes, LogPosition::MAX);
            self.make_together(state, &together);
        }
    }

    /// Makes changes that were checked together, unless the application was dropped.
    fn make_together(&self, state: &State, changes: &[ReplayedChange]) {
        let Some(batch) = changes.first().map(|first| &first.checked) else { return };
        if let Some(running) = self.applications.numbered(batch.running.number) {
            let _suspended = running.group.suspended();
            self.make_replayed(state, &running, batch, changes);
        }
    }

    fn make_replayed(
        &self,
        state: &State,
        running: &Running,
        batch: &Checked<(QueryId, u64, LogPosition)>,
        changes: &[ReplayedChange],
    ) {
        let slot_of = |change: &ReplayedChange| state.registry.get(change.query)?.life.slot();
        let placed: Vec<(Slot, &ReplayedChange)> =
            changes.iter().filter_map(|change| Some((slot_of(change)?, change))).collect();
        let places: Vec<(Slot, QueryId)> = placed.iter().map(|(slot, change)| (*slot, change.query)).collect();
        let before = running.group.with_each(&places, |table, row| table.parameters(&[row]));
        let effects = placed.iter().zip(before).map(|((_, change), before)| {
            let mut effect = None;
            for_each_changed(&before?, &batch.rows.slice(change.row, 1), |changed| {
                effect = Some(Effect::new(running, changed));
            });
            effect
        });
        let effects: Vec<Option<Effect>> = effects.collect();
        let are_shared = self.routing.are_shared(running, &batch.inputs);
        let made = placed.iter().zip(&effects).filter_map(|((slot, change), effect)| {
            let ReplayedChange { query, row, number, .. } = **change;
            let effect = effect.as_ref()?;
            Some(Change { query, slot: *slot, row, effect, number, reroutes: effect.reroutes(are_shared[row]) })
        });
        self.make(state, running, &batch.rows, &batch.inputs, &made.collect::<Vec<_>>(), false);
    }

    fn note_next_change(&self, state: &State) {
        let next = state.replayed_changes.front().map_or(LogPosition::MAX, |change| change.position);
        self.next_change.store(next, Ordering::Release);
    }
}

/// Takes out the first of some changes, and the changes after it that belong with it, each query once.
fn take_together(changes: &mut VecDeque<ReplayedChange>, position: LogPosition) -> Vec<ReplayedChange> {
    let Some(first) = changes.front() else { return Vec::new() };
    let mut queries: HashSet<QueryId, RandomState> = HashSet::default();
    let comes_too = |change: &&ReplayedChange| {
        let is_meant = change.position <= position && Arc::ptr_eq(&change.checked, &first.checked);
        is_meant && queries.insert(change.query)
    };
    let count = changes.iter().take_while(comes_too).count();
    changes.drain(..count).collect()
}

/// Takes changes whose values were bound out of a chunk.
fn take_changes(chunk: &mut Chunk<(QueryId, u64, LogPosition)>, changes: &mut Vec<ReplayedChange>) {
    let checked = Arc::new(chunk.take_checked(|(query, ..), error| {
        tracing::warn!(query, "a change of its values is not replayed: {error}");
    }));
    let of_rows = checked.queries.iter().enumerate();
    changes.extend(of_rows.map(|(row, &(query, number, position))| ReplayedChange {
        position,
        number,
        query,
        checked: checked.clone(),
        row,
    }));
}
