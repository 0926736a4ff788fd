//! Queries that were created, paused or resumed after the last checkpoint. After a restart the log is replayed, and
//! each query must get the events that were for it, and only these.
//!
//! The catalog records at which positions of the log that happened ([`LifecycleEntry`]). A query that was created since
//! skips all events before its creation ([`Group::begin_behind`]). A query that was paused gets no event of that time
//! ([`Absences`]); if it is still paused it is routed to until the replay is over. No query may be paused or resumed
//! before that.
//!
//! What must hold: after a restart a query has seen the events that it had seen before, and no others. Events that come
//! while a statement is carried out may count as received before it or after it.
//!
//! [`Group::begin_behind`]: rivulet_runtime::Group::begin_behind

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rivulet_dataflow::slot_host::Absences;
use rivulet_dataflow::{LogPosition, QueryId, Slot};

use super::{Queries, State};
use crate::catalog::{Alteration, ApplicationNumber, Change, LifecycleEntry};
use crate::engine::checkpoints::{Checkpoints, SavedStates};
use crate::engine::running::Running;
use crate::service::{ErrorKind, FullName, Parameter, ServiceError};

/// How long the decoding of events that came before a query is paused may take, where many queries share their topic.
const PASS_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long it may stand still at the end of a replay, when queries that are paused have their last events.
const REPLAY_PATIENCE: Duration = Duration::from_secs(10);

/// Marks the numbers of queries that were created later, beside those of queries whose state was saved. The numbers
/// tell which queries may share a slot.
const CAME_LATER: u64 = 1 << 63;
const IS_ALONE: u64 = 1 << 62;

/// The queries that were created or paused after the position at which the replay begins.
#[derive(Debug, Default)]
pub(in crate::engine) struct LifecycleLog {
    /// Queries that were created together, by the first: the last, and the position since which they exist.
    created: BTreeMap<QueryId, (QueryId, LogPosition)>,
    /// For each query that was paused or resumed: the positions of the log while it was paused.
    away: BTreeMap<QueryId, Vec<Range<LogPosition>>>,
    /// The recorded changes of values of each query, oldest change first.
    alterations: BTreeMap<QueryId, Vec<Alteration>>,
}

impl LifecycleLog {
    /// The same log with changes of values.
    pub(in crate::engine) fn with_alterations(mut self, alterations: Vec<Alteration>) -> Self {
        for alteration in alterations {
            self.alterations.entry(alteration.query).or_default().push(alteration);
        }
        self
    }

    /// The changes of values of the queries for which `is_meant` holds.
    pub(super) fn alterations_of(&self, is_meant: impl Fn(&QueryId) -> bool) -> BTreeMap<QueryId, Vec<Alteration>> {
        let meant = self.alterations.iter().filter(|(query, _)| is_meant(query));
        meant.map(|(query, alterations)| (*query, alterations.clone())).collect()
    }

    /// Makes the log from entries, oldest first.
    pub(super) fn new(all: &[LifecycleEntry]) -> Self {
        let mut created: BTreeMap<QueryId, (QueryId, LogPosition)> = BTreeMap::new();
        let mut changes: BTreeMap<QueryId, Vec<(LogPosition, Change)>> = BTreeMap::new();
        for &LifecycleEntry { position, first, last, change } in all {
            match change {
                Change::Created => note_created(&mut created, first, last, position),
                Change::Paused | Change::Resumed => {
                    (first..=last).for_each(|query| changes.entry(query).or_default().push((position, change)));
                }
            }
        }
        let mut this = Self { created, ..Self::default() };
        for (query, changes) in changes {
            let away = this.absences(query, &changes);
            this.away.insert(query, away);
        }
        this
    }

    fn absences(&self, query: QueryId, changes: &[(LogPosition, Change)]) -> Vec<Range<LogPosition>> {
        let mut away = Vec::new();
        let was_paused = changes.first().is_some_and(|(_, change)| *change == Change::Resumed);
        let mut since = was_paused.then_some(0);
        if let Some(came) = self.since(query) {
            away.push(0..came);
            since = None;
        }
        for &(position, change) in changes {
            match change {
                // Where two entries say so, the second one was carried out, or has the exact position.
                Change::Paused => since = Some(position),
                _ => match since.take() {
                    Some(since) => away.push(since..position),
                    None => away.last_mut().into_iter().for_each(|away| away.end = position),
                },
            }
        }
        away.extend(since.map(|since| since..LogPosition::MAX));
        away
    }

    /// The position since which a query exists, if it was created after the replay begins.
    fn since(&self, query: QueryId) -> Option<LogPosition> {
        let (_, &(last, since)) = self.created.range(..=query).next_back()?;
        (query <= last).then_some(since)
    }

    /// Whether a query was paused or resumed after the position at which the replay begins. If it is paused now, it may
    /// still have events to get from the replay.
    pub(in crate::engine) fn is_replayed(&self, query: QueryId) -> bool {
        self.away.contains_key(&query)
    }

    /// A number that is equal for queries that may share a slot; `None` for queries that are not in this log.
    pub(in crate::engine) fn shared(&self, query: QueryId) -> Option<u64> {
        match self.away.contains_key(&query) {
            true => Some(CAME_LATER | IS_ALONE | query),
            false => self.since(query).map(came_at),
        }
    }
}

/// Notes since which position queries exist. An entry about some of the queries of an earlier one has their exact
/// position.
fn note_created(
    created: &mut BTreeMap<QueryId, (QueryId, LogPosition)>,
    first: QueryId,
    last: QueryId,
    position: LogPosition,
) {
    if let Some((&from, &(to, before))) = created.range(..=first).next_back().filter(|(_, (to, _))| first <= *to) {
        if from < first {
            created.insert(from, (first - 1, before));
        }
        if last < to {
            created.insert(last + 1, (to, before));
        }
    }
    created.insert(first, (last, position));
}

/// The number of queries that were created at this position: they share a slot only with each other.
pub(super) fn came_at(position: LogPosition) -> u64 {
    CAME_LATER | position
}

/// The changes of a query, oldest first, that are newer than the change `saved`, the last one in the saved state.
pub(super) fn behind(alterations: &[Alteration], saved: u64) -> &[Alteration] {
    &alterations[alterations.partition_point(|one| one.number <= saved)..]
}

/// How queries of the catalog are started.
pub(in crate::engine) struct Loading<'a> {
    /// The saved state of the queries.
    pub(in crate::engine) saved: &'a SavedStates,
    /// The queries that were created or paused since.
    pub(in crate::engine) lifecycle_log: &'a LifecycleLog,
    /// The checkpoints, if each query gets its saved state before its first event, because events are coming already.
    pub(in crate::engine) restores_at_once: Option<&'a Checkpoints>,
}

impl Loading<'_> {
    /// The values with which a query made its saved state, if it has got other values since.
    pub(super) fn values_before(&self, running: &Running, query: QueryId) -> Option<&[Parameter<'static>]> {
        let alterations = self.lifecycle_log.alterations.get(&query)?;
        behind(alterations, self.saved.altered(running, query)).first().map(|first| first.before.as_slice())
    }

    /// A number that is equal for the queries with which a query may share a slot. A query whose state was saved may
    /// share with those that shared its slot then. A query that was created since may share with those that were
    /// created with it. `None` for a query of which neither is known.
    pub(in crate::engine) fn shared(&self, running: &Running, query: QueryId) -> Option<u64> {
        if self.values_before(running, query).is_some() {
            return Some(CAME_LATER | IS_ALONE | query);
        }
        let saved = || self.saved.of(running)?.0.shared(query);
        let attended = self.lifecycle_log.shared(query);
        attended.filter(|_| self.lifecycle_log.is_replayed(query)).or_else(saved).or(attended)
    }
}

impl State {
    pub(in crate::engine) fn has_absences_of(&self, application: ApplicationNumber) -> bool {
        self.absences.iter().any(|(running, _)| running.number == application)
    }

    /// Whether paused queries of an application that was behind when a replay ended have all that is for them.
    pub(in crate::engine) fn has_absences_to_end(&self) -> bool {
        self.absences.iter().any(|(running, _)| !running.group.is_behind())
    }
}

impl Queries {
    /// What happened to queries after the position from which on the log is replayed.
    pub(in crate::engine) fn lifecycle_log(&self, replayed_from: LogPosition) -> Result<LifecycleLog, ServiceError> {
        self.catalog.clip_lifecycle(self.event_log.end())?;
        self.catalog.clip_alterations(self.event_log.end())?;
        let log = LifecycleLog::new(&self.catalog.lifecycle_after(replayed_from)?);
        Ok(log.with_alterations(self.catalog.alterations()?))
    }

    /// Makes queries skip the replayed events that are not for them. The queries have their slots and their saved
    /// state.
    pub(in crate::engine) fn expect_replayed(
        &self,
        saved: &SavedStates,
        lifecycle_log: LifecycleLog,
    ) -> Result<(), ServiceError> {
        let state = &mut *self.state.lock();
        let mut came: BTreeMap<(ApplicationNumber, LogPosition), Vec<Slot>> = BTreeMap::new();
        // Slots of queries whose state was saved: the position at which the first of the slot's new queries was
        // created, and how many new ones it has.
        let mut saved_since: BTreeMap<(ApplicationNumber, Slot), (LogPosition, usize)> = BTreeMap::new();
        for (&first, &(last, since)) in &lifecycle_log.created {
            for query in (first..=last).filter(|query| !lifecycle_log.away.contains_key(query)) {
                let Some(entry) = state.registry.get(query) else { continue };
                let (Some(slot), Some(running)) = (entry.life.slot(), self.applications.numbered(entry.application))
                else {
                    continue;
                };
                if saved.has(&running, query) {
                    let (lowest, count) = saved_since.entry((entry.application, slot)).or_insert((LogPosition::MAX, 0));
                    (*lowest, *count) = (since.min(*lowest), *count + 1);
                    continue;
                }
                came.entry((entry.application, since)).or_default().push(slot);
            }
        }
        // The saved state tells up to which event a slot has come, unless it had no event of the log. A new query that
        // shares a slot with an older one gets the events of that one.
        let applications: BTreeSet<ApplicationNumber> =
            saved_since.keys().map(|(application, _)| *application).collect();
        for application in applications {
            let mut queries: BTreeMap<Slot, usize> = BTreeMap::new();
            for slot in
                state.registry.of_application(application).filter_map(|query| state.registry.get(query)?.life.slot())
            {
                *queries.entry(slot).or_default() += 1;
            }
            for (&(_, slot), &(since, count)) in saved_since.range((application, Slot::MIN)..=(application, Slot::MAX))
            {
                if queries.get(&slot) == Some(&count) {
                    came.entry((application, since)).or_default().push(slot);
                }
            }
        }
        for ((number, since), slots) in came {
            if let Some(running) = self.applications.numbered(number).filter(|running| running.reads_log()) {
                running.group.begin_behind(&slots, since.saturating_sub(1));
            }
        }
        let mut absences: BTreeMap<ApplicationNumber, Absences> = BTreeMap::new();
        for (query, away) in lifecycle_log.away {
            let Some(entry) = state.registry.get(query) else { continue };
            let of_application = absences.entry(entry.application).or_default();
            away.into_iter().for_each(|positions| of_application.add(query, positions));
        }
        for (number, absences) in absences {
            if let Some(running) = self.applications.numbered(number) {
                running.group.set_absences(absences.clone());
                state.absences.push((running, absences));
            }
        }
        self.expect_changes(state, saved, &lifecycle_log.alterations)
    }

    /// The log is replayed: paused queries stop getting events. Events that come meanwhile are not for them either.
    /// Those of applications that are behind still get what came before they were paused, and stop with a later call.
    pub(in crate::engine) fn end_absences(&self) {
        // Waits without the lock. No query is paused or resumed before the replay is over, but one may be dropped.
        let paused = |state: &State, query: QueryId| {
            let is_paused = state.registry.get(query).is_some_and(|entry| entry.life.is_paused());
            is_paused.then(|| self.place(state, query).ok()).flatten()
        };
        let applications: BTreeMap<ApplicationNumber, Arc<Running>> = {
            let state = self.state.lock();
            let running = state.replayed_paused.iter().filter_map(|&query| paused(&state, query));
            let running = running.filter(|(running, _)| !running.group.is_behind());
            running.map(|(running, _)| (running.number, running)).collect()
        };
        let let_pass = |running: &Arc<Running>| self.routing.let_pass(running, Duration::MAX, REPLAY_PATIENCE);
        applications.values().for_each(let_pass);
        let mut state = self.state.lock();
        // Changes of queries that were started while the last events were handed over.
        self.make_changes_left(&mut state);
        // None falls behind as long as the state is locked.
        let (behind, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.absences).into_iter().partition(|(running, _)| running.group.is_behind());
        state.absences = behind;
        for query in std::mem::take(&mut state.replayed_paused) {
            let Some((running, slot)) = paused(&state, query) else { continue };
            match state.has_absences_of(running.number) {
                true => _ = state.replayed_paused.insert(query),
                false => _ = self.routing.remove_routes(&running, &[slot]),
            }
        }
        let end = self.event_log.end();
        for (running, mut absences) in ended {
            absences.end_at(end);
            running.group.set_absences(absences);
        }
    }

    /// Waits until a query that is about to be paused has the events that came before, including those that are yet to
    /// be decoded for many queries together. The state of the engine is not locked meanwhile.
    pub(super) fn let_arrive(&self, query: &FullName) {
        let place = {
            let state = self.state.lock();
            state.query(query).and_then(|id| self.place(&state, id))
        };
        if let Ok((running, _)) = place {
            self.routing.let_pass(&running, PASS_WAIT_MAX, PASS_WAIT_MAX);
        }
    }

    /// Whether queries of an application may be paused or resumed now.
    pub(super) fn check_replayed(&self, state: &State, running: &Running) -> Result<(), ServiceError> {
        check_not_behind(running)?;
        let is_replaying = self.event_log.is_replaying() || state.has_absences_of(running.number);
        if !is_replaying || !running.reads_log() {
            return Ok(());
        }
        Err(ServiceError::new(ErrorKind::Unavailable, "the log of events is being replayed since the start")
            .with_hint("try again in a moment: /health/ready tells when it is over"))
    }
}

/// Fails if an application has events to read from the log before it may change.
pub(in crate::engine) fn check_not_behind(running: &Running) -> Result<(), ServiceError> {
    if !running.group.is_behind() {
        return Ok(());
    }
    let name = &running.application.name;
    let message = format!("'{name}' stays as it was: it has events to read from the log first");
    Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint(
        "try again when its output delivers again, as DESCRIBE APPLICATION says; a new version that reads the same \
             inputs in the same way, and has another output, may take over at once",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(position: LogPosition, first: QueryId, last: QueryId, change: Change) -> LifecycleEntry {
        LifecycleEntry { position, first, last, change }
    }

    #[test]
    fn absences_are_what_lies_between_changes() {
        let all = [
            of(5, 10, 19, Change::Created),
            of(6, 1, 1, Change::Paused),
            of(7, 2, 2, Change::Resumed),
            of(7, 20, 29, Change::Created),
            of(8, 12, 12, Change::Paused),
            of(9, 1, 1, Change::Paused),
            of(11, 2, 2, Change::Paused),
            of(12, 12, 12, Change::Resumed),
            of(13, 2, 2, Change::Resumed),
        ];
        let lifecycle_log = LifecycleLog::new(&all);
        let away = |query| lifecycle_log.away[&query].as_slice();
        assert_eq!(away(1), std::slice::from_ref(&(9..LogPosition::MAX)), "the pause was made good by its second note");
        assert_eq!(away(2), [0..7, 11..13]);
        assert_eq!(away(12), [0..5, 8..12]);
        assert_eq!(
            [9, 10, 19, 20, 29, 30].map(|query| lifecycle_log.since(query)),
            [None, Some(5), Some(5), Some(7), Some(7), None]
        );
        assert!(lifecycle_log.is_replayed(1) && !lifecycle_log.is_replayed(10));
    }

    #[test]
    fn later_entries_have_the_exact_positions() {
        let all = [
            of(5, 1, 9, Change::Created),
            of(6, 10, 10, Change::Created),
            of(7, 1, 2, Change::Created),
            of(7, 5, 5, Change::Created),
            of(8, 9, 9, Change::Created),
            of(9, 3, 3, Change::Paused),
            of(10, 3, 3, Change::Paused),
            of(12, 3, 3, Change::Resumed),
            of(13, 3, 3, Change::Resumed),
            of(14, 20, 20, Change::Resumed),
            of(15, 20, 20, Change::Resumed),
        ];
        let lifecycle_log = LifecycleLog::new(&all);
        let since: Vec<_> = (0..=11).map(|query| lifecycle_log.since(query)).collect();
        let since_of_created = [7, 7, 5, 5, 7, 5, 5, 5, 8, 6].map(Some);
        assert_eq!((since[0], &since[1..=10], since[11]), (None, &since_of_created[..], None));
        assert_eq!(lifecycle_log.away[&3], [0..5, 10..13]);
        assert_eq!(lifecycle_log.away[&20], std::slice::from_ref(&(0..15)));
    }

    #[test]
    fn only_who_came_together_shares() {
        let all = [of(5, 1, 3, Change::Created), of(6, 4, 4, Change::Created), of(6, 3, 3, Change::Paused)];
        let lifecycle_log = LifecycleLog::new(&all);
        let shared = |query| lifecycle_log.shared(query);
        assert_eq!((shared(1), shared(1) == shared(2)), (Some(came_at(5)), true));
        assert!(shared(3) != shared(1) && shared(4) != shared(1) && shared(3).is_some());
        assert_eq!(shared(5), None);
    }
}
