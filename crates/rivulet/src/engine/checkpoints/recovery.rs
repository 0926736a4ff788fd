//! Restores saved state at the start of the server, before any event is received.
//!
//! There are two steps around the loading of the catalog. Before it, [`SavedStates`] finds out which queries were saved
//! and which of them shared a slot, because queries with a state of their own may not share a slot now. After it, when
//! every query has its slot, groups restore their state, several at a time.
//!
//! The state of an application that cannot run now is kept ([`Unrestored`]) until the application can run.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use rivulet_dataflow::{Line, LogPosition, QueryId, Slot, StateError, StateMap};
use rivulet_operators::application::migration;
use rivulet_runtime::{Restored, Saved};

use super::applications::{number_of, outputs_number_of, read_pieces};
use super::{Checkpoints, Lines, refused};
use crate::catalog::{ApplicationNumber, Used};
use crate::counted::counted;
use crate::engine::applications::Applications;
use crate::engine::event_log::EventLog;
use crate::engine::not_running::{Refusal, Unrestored};
use crate::engine::outlets::{self, Outlets};
use crate::engine::running::{Prepared, Running};
use crate::service::{ErrorKind, RecoveryStatus, ServiceError};

/// The saved state of applications, after a first reading: by application the identity of its text, and its queries.
#[derive(Default)]
pub(in crate::engine) struct SavedStates {
    by_application: BTreeMap<ApplicationNumber, (String, Saved)>,
    /// For applications whose state was saved by an earlier version: that version's operators, and the way of their
    /// state into the version that runs.
    maps: BTreeMap<ApplicationNumber, (Line, StateMap)>,
    /// The applications whose saved state cannot be read, and why.
    unreadable: BTreeMap<ApplicationNumber, StateError>,
    problems: Vec<String>,
    /// The number of the first change of values that the catalog had not given out.
    altered_next: u64,
}

impl SavedStates {
    /// Nothing; `altered_next` as in [`Unrestored`].
    pub(in crate::engine) fn new(altered_next: u64) -> Self {
        Self { altered_next, ..Self::default() }
    }

    pub(in crate::engine) fn read(unrestored: &Unrestored) -> Self {
        let mut states = Self::new(unrestored.altered_next);
        unrestored.pieces.iter().for_each(|(&number, pieces)| states.add(number, pieces));
        states
    }

    /// Reads the saved state of one more application.
    pub(in crate::engine) fn add(&mut self, number: ApplicationNumber, pieces: &[Bytes]) {
        let read = read_pieces(pieces).and_then(|(id, captured)| Ok((id.to_owned(), Saved::read(captured)?)));
        match read {
            Ok(read) => drop(self.by_application.insert(number, read)),
            Err(error) => {
                // What a later version has written is not lost: the application does not run.
                if !matches!(error, StateError::Version { .. }) {
                    let problem = format!("the state of application {number} is lost: {error}");
                    tracing::error!("{problem}");
                    self.problems.push(problem);
                }
                self.unreadable.insert(number, error);
            }
        }
    }

    /// Whether the state of a query was saved.
    pub(in crate::engine) fn has(&self, running: &Running, query: QueryId) -> bool {
        self.of(running).is_some_and(|(saved, _)| saved.shared(query).is_some())
    }

    /// The number of the last change of values of a query that is in its saved state.
    pub(in crate::engine) fn altered(&self, running: &Running, query: QueryId) -> u64 {
        self.of(running).map_or(0, |(saved, _)| saved.altered(query))
    }

    /// Restores the saved state of an application's queries, except for queries whose state was saved with values that
    /// the catalog does not know. Returns also the number of these; `None` if nothing was saved that can be read. If
    /// this is done once (`releases`), the saved state leaves memory as it is restored.
    fn restore(
        &self,
        running: &Running,
        slot_of: &dyn Fn(QueryId) -> Option<Slot>,
        releases: bool,
    ) -> Option<(Restored, u64)> {
        let (saved, (line, map)) = self.of(running)?;
        let unknown = Cell::new(0);
        let known_slot_of = |query| {
            let slot = slot_of(query)?;
            let is_unknown = saved.altered(query) >= self.altered_next;
            unknown.set(unknown.get() + u64::from(is_unknown));
            (!is_unknown).then_some(slot)
        };
        let restored = running.group.restore_from(saved, line.addresses(), map, &known_slot_of, releases);
        Some((restored, unknown.get()))
    }

    /// The highest numbers that identify anything in the saved states.
    pub(in crate::engine) fn used(&self) -> Used {
        let query = self.by_application.values().filter_map(|(_, saved)| saved.last()).max();
        let application = self.by_application.keys().chain(self.unreadable.keys()).max().copied();
        let alteration = self.by_application.values().filter_map(|(_, saved)| saved.altered_max()).max();
        Used { query, application, statement: None, alteration }
    }

    /// The saved state of an application, the operators that saved it, and the way into the version that runs, if that
    /// is a later one.
    pub(in crate::engine) fn of<'s>(&'s self, running: &'s Running) -> Option<(&'s Saved, WayIn<'s>)> {
        let (id, saved) = self.by_application.get(&running.number)?;
        match *id == running.application.id {
            true => Some((saved, (&running.application.dataflow, None))),
            false => self.maps.get(&running.number).map(|(line, map)| (saved, (line, Some(map)))),
        }
    }

    /// Finds the way of saved state into an application that is about to start. An earlier version may have saved it:
    /// the server may have ended before this one made a checkpoint.
    ///
    /// # Errors
    /// The state has no place in it, or its version cannot be read. Then it must not run, because its next checkpoint
    /// would replace that state.
    pub(in crate::engine) fn fit(
        &mut self,
        applications: &Applications,
        number: ApplicationNumber,
        prepared: &Prepared,
    ) -> Result<(), Refusal> {
        if let Some(error @ StateError::Version { .. }) = self.unreadable.get(&number) {
            return Err(without_place(error));
        }
        let Some((id, saved)) = self.by_application.get(&number) else { return Ok(()) };
        if *id == prepared.application.id {
            return saved.fits(&mut prepared.application.dataflow.chain()).map_err(|error| without_place(&error));
        }
        // If the catalog has forgotten that version, the log says so when the state is missed.
        let Some((line, map)) = map_from(applications, number, prepared, id)? else { return Ok(()) };
        saved.fits(&mut line.chain()).map_err(|error| without_place(&error))?;
        self.maps.insert(number, (line, map));
        Ok(())
    }
}

fn without_place(error: &StateError) -> Refusal {
    let refused = ServiceError::from_text(ErrorKind::Conflict, &format!("its saved state has no place in it: {error}"));
    let refused = match refused.hint {
        Some(_) => refused,
        None => refused.with_hint("start the version of the program that saved it"),
    };
    // Other tables may give it other operators, and none of them reads what a later version has written.
    Refusal { error: refused, is_final: matches!(error, StateError::Version { .. }) }
}

/// Writes to the log what was wrong with an application's state, and keeps the part of it that any user may know.
fn note_problem(running: &Running, problem: impl Fn(&str) -> String, found: &mut RecoveryStatus) {
    let name = running.full_name();
    tracing::error!("{}", problem(&format!("'{}'", name.in_log())));
    found.problems.push(problem(&name.in_public()));
}

/// The operators that saved state, and the way of that state into a later version.
type WayIn<'s> = (&'s Line, Option<&'s StateMap>);

/// The operators of the version `id` of an application, and the way of their state into the version that starts; `None`
/// if the catalog has forgotten that version.
fn map_from(
    applications: &Applications,
    number: ApplicationNumber,
    Prepared { tenant, application, .. }: &Prepared,
    id: &str,
) -> Result<Option<(Line, StateMap)>, Refusal> {
    let planned = applications.versions_since(number, tenant, id)?;
    let after = planned.iter().skip(1).chain([application]);
    let maps = planned.iter().zip(after).map(|(before, after)| migration(before, after).map);
    let map = maps.reduce(|map, next| map.then(&next));
    Ok(planned.first().map(|first| first.dataflow.clone()).zip(map))
}

impl Checkpoints {
    /// Reads the saved states, and the position in the log from which on events may be missing in them; nothing and 0
    /// if nothing was saved.
    pub(in crate::engine) fn read(
        &self,
        event_log: &EventLog,
        outlets: &Outlets,
    ) -> Result<(Unrestored, RecoveryStatus, LogPosition), ServiceError> {
        let mut found = RecoveryStatus::default();
        let mut lines = self.lock();
        let Some(Lines { applications, .. }) = lines.as_mut() else { return Ok((Unrestored::default(), found, 0)) };
        let restored = applications.restore();
        let (restored, problems) = restored.map_err(|error| refused("the checkpoints cannot be read", &error))?;
        for problem in &problems {
            tracing::error!("a checkpoint is damaged, and an older one counts if there is any: {problem}");
        }
        found.problems = problems;
        let Some(restored) = restored else { return Ok((Unrestored::default(), found, 0)) };
        found.epoch = Some(restored.epoch);
        let mut undelivered = BTreeMap::new();
        for (name, pieces) in &restored.pieces {
            let (Some(number), Some(piece)) = (outputs_number_of(name), pieces.last()) else { continue };
            match outlets::read(piece) {
                Ok(outputs) => _ = undelivered.insert(number, outputs),
                Err(error) => {
                    let problem = format!("rows that wait to be delivered are lost: {error}");
                    tracing::error!(application = number, "{problem}");
                    found.problems.push(problem);
                }
            }
        }
        outlets.expect(undelivered);
        let pieces = restored.pieces.into_iter();
        let pieces = pieces.filter_map(|(name, pieces)| Some((number_of(&name)?, pieces))).collect();
        // In case the log was lost: new events must have positions after all events in the state, and are replayed.
        event_log.pass(applications.known.reached());
        Ok((Unrestored { pieces, ..Unrestored::default() }, found, applications.known.position()))
    }

    /// Restores the saved state of queries of running applications, on this many threads, and adds the outcome to
    /// `found`. `slot_of` returns the slot of a query.
    pub(in crate::engine) fn restore_all(
        &self,
        saved: &SavedStates,
        applications: &Applications,
        slot_of: &(dyn Fn(QueryId) -> Option<Slot> + Sync),
        threads: usize,
        found: &mut RecoveryStatus,
    ) {
        let begun = Instant::now();
        found.problems.extend(saved.problems.iter().cloned());
        self.note_unfitting(saved);
        let mut of_groups: Vec<(&Running, &Saved)> = Vec::new();
        let (running, _) = applications.all();
        for running in &running {
            match saved.of(running) {
                Some((of_group, _)) => of_groups.push((running, of_group)),
                None if saved.by_application.contains_key(&running.number) => {
                    let problem = |name: &str| {
                        format!("the state of the application {name} is lost: it was saved for another text")
                    };
                    note_problem(running, problem, found);
                    self.note_unfit(running.number);
                }
                None => {}
            }
        }
        // The largest first, so that no thread begins it when the others are done.
        of_groups.sort_by_key(|(_, saved)| std::cmp::Reverse(saved.queries()));
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, of_groups.len().max(1)) {
                scope.spawn(|| {
                    while let Some((running, _)) = of_groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let restored = saved.restore(running, slot_of, true);
                        results.lock().extend(restored.map(|restored| (*running, restored)));
                    }
                });
            }
        });
        for (running, restored) in results.into_inner() {
            self.note_restored(running, restored, found);
        }
        found.duration_ms += begun.elapsed().as_millis() as u64;
    }

    /// Reports the outcome of the recovery at the start.
    pub(in crate::engine) fn report_recovery(&self, found: RecoveryStatus) {
        if let Some(epoch) = found.epoch {
            let RecoveryStatus { queries, lost, duration_ms, .. } = found;
            tracing::info!(epoch, queries, lost, elapsed_ms = duration_ms, "state is restored");
        }
        if found.epoch.is_some() || !found.problems.is_empty() {
            self.report.lock().recovered = Some(found);
        }
    }

    /// Records the outcome of [`SavedStates::restore`].
    fn note_restored(&self, running: &Running, restored: (Restored, u64), found: &mut RecoveryStatus) {
        let (Restored { slots, lost, error }, unknown) = restored;
        found.queries += slots as u64;
        let unknown = (unknown > 0).then(|| (unknown, "the catalog does not know their values".to_owned()));
        for (lost, error) in error.map(|error| (lost as u64, error)).into_iter().chain(unknown) {
            found.lost += lost;
            let lost = counted(lost, "query");
            let problem = |name: &str| format!("{lost} of the application {name} must begin anew: {error}");
            note_problem(running, problem, found);
            self.note_unfit(running.number);
        }
    }

    /// Changes must not be written after pieces that cannot be read, nor after pieces in the form of an earlier
    /// version.
    pub(in crate::engine) fn note_unfitting(&self, saved: &SavedStates) {
        saved.unreadable.keys().chain(saved.maps.keys()).for_each(|&number| self.note_unfit(number));
    }

    /// Records that the saved state of an application does not fit its current state.
    fn note_unfit(&self, number: ApplicationNumber) {
        self.unfit.lock().push(number);
    }

    /// Restores queries that are started while events come already, before they get any event.
    pub(in crate::engine) fn restore_at_once(&self, saved: &SavedStates, running: &Running, slots: &[(QueryId, Slot)]) {
        let slots: HashMap<QueryId, Slot> = slots.iter().copied().collect();
        if let Some(restored) = saved.restore(running, &|query| slots.get(&query).copied(), false) {
            self.note_restored(running, restored, &mut RecoveryStatus::default());
        }
    }
}
