//! What outlives the process of a big query: a line of epochs for each. [`super::note`] has what one epoch says.
//!
//! State is cut by key groups into pieces, and a piece that has not changed is neither kept nor written again. So a
//! checkpoint costs time, memory and bytes only for what has changed.
//!
//! What must hold: a query continues from a complete epoch, or not at all. Every problem with the epoch is reported,
//! and the query waits for a user to decide.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_dataflow::{Snapshot, StateError, StateFrame};
use rivulet_runtime::flow::checkpoint::CheckpointError;
use rivulet_sql::QueryPlan;
use rivulet_storage::{Committed, EpochSettings, Epochs, Restored, StorageError, Store};

use super::ends::troubled_sinks;
use super::note::{Note, StatePieces, is_of, state_of};
use crate::data_folder::lines::{numbers, of_query, refused};
use crate::engine::checkpoints::line::{Differences, Failure, Line, LineStatus};
use crate::run::Running;
use crate::service::{ErrorKind, ServiceError};

pub(crate) use super::note::checksum;

/// How long a query may take to come to rest. Until then its sources are not read, and rows in flight are processed.
const REST_MAX: Duration = Duration::from_secs(10);

/// The same if a sink does not work: either its rows go into the checkpoint at once, or there is none.
const TROUBLED_REST_MAX: Duration = Duration::from_secs(4);

/// How long a requested checkpoint waits until the results of the previous one are final.
const FINAL_MAX: Duration = Duration::from_secs(5);

/// A query that did not come to rest gets no further checkpoint during this time: it delays the checkpoints of others,
/// and its own rows.
const SLOW_REST: Duration = Duration::from_secs(60);

/// The pause before saving the end of a query is tried again. It is short, because the end is checked all the time.
const END_REST: Duration = Duration::from_secs(1);

/// The checkpoints of one big query.
pub(super) struct Saved {
    line: Line,
    /// The checksum of the text of the query, which its epochs have too. Epochs of a version before have another one.
    query: u64,
    has_ended: bool,
    /// Whether it was noticed that the input has come to its end, which is to be saved.
    ends: bool,
}

/// The number and snapshot of the epoch to continue from, if there is one; and the problems of newer epochs.
pub(super) type Found = (Option<(u64, Snapshot)>, Vec<String>);

/// The saved state of a query, for tools that look at it without a server.
#[derive(Debug)]
pub(crate) struct Examined {
    /// The newest checkpoint that is intact.
    pub(crate) epoch: Option<u64>,
    pub(crate) made_ms: Option<i64>,
    pub(crate) bytes: u64,
    /// Whether the checkpoint says that the query has come to the end of its input.
    pub(crate) has_ended: bool,
    /// The checksum of the text that it was made for, if it has one.
    pub(crate) text: Option<u64>,
    /// The problems of this checkpoint, and of newer ones.
    pub(crate) problems: Vec<String>,
}

/// Examines what is saved of the query with this number, down to the last byte.
///
/// # Errors
/// The store cannot be read.
pub(crate) fn examine(store: &Arc<Store>, number: u64) -> Result<Examined, StorageError> {
    // This only reads, so the number of retained epochs does not matter.
    let epochs = Epochs::open(store.clone(), &of_query(number), EpochSettings { retained: usize::MAX })?;
    let mut problems = epochs.problems().to_vec();
    let note = epochs.note().cloned().unwrap_or_default();
    let mut note_problem = |what: &str, why: String| problems.push(format!("{what} is not understood: {why}"));
    if let Some(Restored { pieces, note, .. }) = epochs.restore()? {
        if let Err(error) = Note::read(note) {
            note_problem("where it stands", error);
        }
        for (name, bytes) in &pieces {
            for error in bytes.iter().filter_map(|bytes| StateFrame::from_bytes(bytes).err()) {
                note_problem(name, error.to_string());
            }
        }
    }
    Ok(Examined {
        epoch: epochs.newest(),
        made_ms: note["made_ms"].as_i64(),
        bytes: epochs.live_bytes(),
        has_ended: note["has_ended"] == true,
        text: note["query"].as_u64(),
        problems,
    })
}

/// Deletes the checkpoints of queries that are no longer in the catalog. The catalog has given out numbers below
/// `next`, and has the queries `known`. Checkpoints with numbers that it has not given out do not belong to this
/// catalog, and stay.
pub(super) fn forget_dropped(store: &Arc<Store>, next: u64, known: &BTreeSet<u64>) {
    let numbers = match numbers(store) {
        Ok(numbers) => numbers,
        Err(error) => return tracing::warn!("checkpoints of queries that are gone are left: {error}"),
    };
    for number in numbers.into_iter().filter(|number| *number < next && !known.contains(number)) {
        tracing::info!(number, "forgets what was saved of a query that was dropped");
        if let Err(error) = forget(store, number) {
            tracing::warn!("they are left for now: {error}");
        }
    }
}

/// Deletes the checkpoints of a query.
///
/// # Errors
/// The store cannot be reached, or must not be changed now.
pub(super) fn forget(store: &Arc<Store>, number: u64) -> Result<(), ServiceError> {
    let line = Epochs::open(store.clone(), &of_query(number), EpochSettings { retained: 1 });
    line.and_then(Epochs::delete).map_err(|error| refused("checkpoints of another query cannot be deleted", &error))
}

impl Saved {
    /// Opens the checkpoints of the query with this name, number and text in the catalog.
    pub(super) fn open(
        store: &Arc<Store>,
        name: &str,
        number: u64,
        text: &str,
        retained: usize,
    ) -> Result<Self, ServiceError> {
        // In a crash the results of the newest may not be final: then the one before it is needed.
        let settings = EpochSettings { retained: retained.max(2) };
        let failed = |error| refused("its checkpoints cannot be opened", &error);
        let query = checksum(text);
        let mut epochs = Epochs::open(store.clone(), &of_query(number), settings).map_err(failed)?;
        let (own, newest) = (newest_of(&epochs, query), epochs.newest());
        // If there are only epochs of another version, a new beginning would write again what both versions have
        // written. The catalog may be an older copy.
        match (own, newest) {
            (None, Some(newest)) => match epochs.problems().first() {
                Some(problem) => {
                    let message = format!("its checkpoints cannot be used: {problem}");
                    return Err(ServiceError::new(ErrorKind::Unavailable, message)
                        .with_hint("restore them, or drop the query and create it again to begin anew"));
                }
                None => return Err(of_another_version(newest)),
            },
            (own, newest) if own != newest => {
                tracing::warn!(number, "a query was not replaced by another version of it after all, and goes on");
                epochs.go_back(own).map_err(failed)?;
            }
            _ => {}
        }
        let has_ended = epochs.note().is_some_and(|note| note["has_ended"] == true);
        Ok(Self { line: Line::new(epochs, format!("the query '{name}'")), query, has_ended, ends: false })
    }

    /// The status of the line, with the epoch that was just written.
    pub(super) fn status(&self, committed: Option<&Committed>) -> LineStatus {
        self.line.status(committed)
    }

    /// When this process made the newest epoch.
    pub(super) fn made(&self) -> Option<Instant> {
        self.line.made()
    }

    /// Whether the line belongs to the query with this text, and not to a version that has taken over from it.
    pub(super) fn is_of(&self, text: &str) -> bool {
        self.query == checksum(text)
    }

    /// Whether the query has come to the end of its input.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The number and snapshot of the epoch that the query continues from, unless it begins anew; and the problems of
    /// newer epochs.
    pub(super) fn restore(&mut self, plan: &QueryPlan) -> Result<Found, ServiceError> {
        self.go_back_to_own()?;
        self.ends = false;
        let problems = self.line.epochs.problems().to_vec();
        let restored = self.line.epochs.restore().map_err(|error| refused("its checkpoint cannot be read", &error))?;
        let Some(Restored { epoch, note, pieces, .. }) = restored else { return Ok((None, problems)) };
        let not_this = |problem: String| {
            ServiceError::new(ErrorKind::Unavailable, format!("it cannot go on from its checkpoint {epoch}: {problem}"))
                .with_hint("drop the query and create it again to begin anew, or run the version that wrote it")
        };
        let snapshot = Note::read(note).and_then(|note| note.snapshot(&pieces, plan)).map_err(not_this)?;
        Ok((snapshot.map(|snapshot| (epoch, snapshot)), problems))
    }

    /// Goes back to the newest epoch of the current version. Newer ones are of a version that did not take over after
    /// all.
    fn go_back_to_own(&mut self) -> Result<(), ServiceError> {
        let (own, newest) = (newest_of(&self.line.epochs, self.query), self.line.epochs.newest());
        match (own, newest) {
            (None, Some(newest)) => Err(of_another_version(newest)),
            (own, newest) if own != newest => self.go_back(own).map(drop),
            _ => Ok(()),
        }
    }

    /// The newest epoch that has taken over from `epoch` of a version before, if there is one.
    pub(super) fn taken_over(&self, epoch: u64) -> Option<u64> {
        let first = self.first_of(epoch);
        let takes_over = |note: &serde_json::Value| note["takes_over"].as_u64() == Some(first);
        self.line.epochs.kept().filter(|(_, note)| takes_over(note)).map(|(next, _)| next).max()
    }

    /// The epoch up to which rows were processed when `epoch` was made: `epoch`, or the one it takes over from.
    fn first_of(&self, epoch: u64) -> u64 {
        let note = self.line.epochs.kept().find(|(kept, _)| *kept == epoch).map(|(_, note)| note);
        note.and_then(|note| note["takes_over"].as_u64()).unwrap_or(epoch)
    }

    /// The epoch from which the query began to write to its sink, if that is not its own beginning: the query has
    /// replaced a version that wrote elsewhere.
    pub(super) fn begin_of_sink(&self) -> Option<u64> {
        let is_empty = |sink: &serde_json::Value| sink.as_array().is_some_and(Vec::is_empty);
        let has_said = |note: &serde_json::Value| !note["sinks"].as_array().is_some_and(|all| all.iter().all(is_empty));
        let begins = |note: &serde_json::Value| !note["takes_over"].is_null() && !has_said(note);
        self.line.epochs.kept().filter(|(_, note)| begins(note)).map(|(epoch, _)| epoch).max()
    }

    /// Makes the epoch with which another version of the query continues, after `epoch`. From now on the line belongs
    /// to that version.
    pub(super) fn take_over(
        &mut self,
        plan: &QueryPlan,
        text: &str,
        epoch: u64,
        snapshot: &Snapshot,
    ) -> Result<Committed, ServiceError> {
        let failed = |error: StateError| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string());
        let state = state_of(&self.line.epochs, plan, snapshot).map_err(failed)?;
        let query = checksum(text);
        let mut note = Note::of(query, plan, snapshot.clone());
        note.takes_over = Some(self.first_of(epoch));
        let committed = self.line.commit(note.epoch(state));
        let committed =
            committed.map_err(|error| refused("its checkpoint for the new version cannot be written", &error))?;
        self.query = query;
        Ok(committed)
    }

    /// The line belongs to the version with this text again, with the newest epoch of that version.
    pub(super) fn rename(&mut self, text: &str) {
        self.query = checksum(text);
    }

    /// Goes back to a checkpoint, or to before all of them. Returns whether the checkpoint exists and is not of another
    /// version.
    pub(super) fn go_back(&mut self, to: Option<u64>) -> Result<bool, ServiceError> {
        let is_to = |epoch: u64, note| Some(epoch) == to && is_of(note, self.query);
        if to.is_some() && !self.line.epochs.kept().any(|(epoch, note)| is_to(epoch, note)) {
            return Ok(false);
        }
        self.line.epochs.go_back(to).map_err(|error| refused("its checkpoints cannot be changed", &error))
    }

    /// Records that the query has come to the end of its input.
    pub(super) fn end(&mut self, plan: &QueryPlan) -> Result<(), ServiceError> {
        let ended = commit_end(&mut self.line, self.query, plan);
        ended.map_err(|error| refused("that it has come to its end cannot be written", &error))?;
        self.has_ended = true;
        Ok(())
    }

    /// Saves the state of a query, or that it has come to its end; `None` if there is nothing to save now. After a slow
    /// checkpoint the next ones are skipped for a while, unless a user asks.
    ///
    /// # Errors
    /// The query continues, and the checkpoint before stays in force.
    pub(super) fn save(
        &mut self,
        plan: &QueryPlan,
        running: &Running,
        is_asked: bool,
    ) -> Result<Option<Committed>, Failure> {
        let Self { line, query, has_ended, ends } = self;
        let flow = running.flow();
        // The end does not wait because a checkpoint was slow: what was written since then would come twice.
        if !*ends && matches!(flow.wait(Duration::ZERO), Some(Ok(()))) {
            *ends = true;
            line.begin_anew();
        }
        line.save(is_asked, |line| {
            match flow.wait(Duration::ZERO) {
                Some(Ok(())) if !*has_ended && !running.was_stopped() => {
                    let ended = commit_end(line, *query, plan)
                        .map_err(|error| Failure { text: error.to_string(), rest: END_REST })?;
                    *has_ended = true;
                    return Ok(Some(ended));
                }
                Some(_) => return Ok(None),
                None if !running.has_checkpoints() => return Ok(None),
                // The query would not come to rest. A requested checkpoint may follow directly after another one, and
                // waits.
                None if !flow.wait_committed(if is_asked { FINAL_MAX } else { Duration::ZERO }) => {
                    return Err("the results of the last one are not final yet".to_owned().into());
                }
                None => {}
            }
            let number = line.epochs.next();
            let state = Arc::new(StatePieces::new(&line.epochs));
            let rest_max = if troubled_sinks(running).is_some() { TROUBLED_REST_MAX } else { REST_MAX };
            let snapshot = match flow.checkpoint(number, rest_max, state.clone()) {
                Ok(snapshot) => snapshot,
                Err(CheckpointError::Ending) => return Ok(None),
                Err(error @ CheckpointError::Slow(within, _)) => {
                    let because = |sinks| format!("the query did not come to rest within {within:?}, because {sinks}");
                    let text = troubled_sinks(running).map_or_else(|| error.to_string(), because);
                    return Err(Failure { text, rest: SLOW_REST });
                }
                Err(error) => return Err(error.to_string().into()),
            };
            let written = line.commit(Note::of(*query, plan, snapshot).epoch(state.take_all()));
            match &written {
                Ok(_) => flow.committed(number),
                Err(_) => flow.give_up(),
            }
            Ok(Some(written?))
        })
    }
}

/// The newest epoch of the query whose text has this checksum.
fn newest_of(epochs: &Epochs, query: u64) -> Option<u64> {
    epochs.kept().filter(|(_, note)| is_of(note, query)).map(|(epoch, _)| epoch).max()
}

/// The error for a query that has checkpoints, but none of its text.
fn of_another_version(newest: u64) -> ServiceError {
    let message = format!("its checkpoint {newest} is of another version, and none of its own is left");
    ServiceError::new(ErrorKind::Unavailable, message).with_hint("drop the query and create it again to begin anew")
}

/// Writes the epoch that says that a query has come to the end of its input.
fn commit_end(line: &mut Line, query: u64, plan: &QueryPlan) -> Result<Committed, StorageError> {
    let state = Differences::new(&line.epochs);
    line.commit(Note::end(query, plan).epoch(state))
}

#[cfg(test)]
mod tests {
    use rivulet_dataflow::{KeyGroups, PartitionState};
    use rivulet_sql::{Scope, Statement, parse_script, plan_query};
    use tempfile::TempDir;

    use super::super::note::NotedKeyGroups;
    use super::*;

    fn plan() -> QueryPlan {
        let script =
            "CREATE SOURCE t (a BIGINT) FROM 'x:y'; CREATE SINK s TO 'x:z'; CREATE QUERY q AS SELECT a FROM t INTO s";
        let mut scope = Scope::new();
        for (statement, _) in parse_script(script).unwrap() {
            match statement {
                Statement::CreateSource(create) => scope.add_source(create.declare(|_, _| None).unwrap()).unwrap(),
                Statement::CreateSink(create) => scope.add_sink(create.declare().unwrap()).unwrap(),
                Statement::CreateBigQuery(create) => return plan_query(&create.query, &scope).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        panic!("no query")
    }

    fn at(position: &str, sink: &str) -> Snapshot {
        let partition = PartitionState { position: Some(position.into()), newest_us: None };
        Snapshot { sources: vec![vec![partition]], sinks: vec![vec![sink.into()]], ..Snapshot::default() }
    }

    fn commit(saved: &mut Saved, note: &Note) {
        let epoch = note.epoch(Differences::new(&saved.line.epochs));
        saved.line.commit(epoch).unwrap();
    }

    struct Query {
        folder: TempDir,
        plan: QueryPlan,
    }

    impl Query {
        fn open(&self, text: &str) -> Result<Saved, ServiceError> {
            let store = Store::folder(self.folder.path()).unwrap();
            Saved::open(&Arc::new(store), "q", 7, text, 2)
        }

        fn save(&self, saved: &mut Saved, snapshot: Snapshot) {
            let note = Note::of(saved.query, &self.plan, snapshot);
            commit(saved, &note);
        }

        /// The epoch that a text continues from, and its position.
        fn found(&self, saved: &mut Saved) -> Option<(u64, Option<String>)> {
            let found = saved.restore(&self.plan).unwrap().0;
            found.map(|(epoch, snapshot)| (epoch, snapshot.sources[0].first().and_then(|one| one.position.clone())))
        }
    }

    #[test]
    fn each_text_goes_on_from_its_own_newest_epoch() {
        let line = Query { folder: TempDir::new().unwrap(), plan: plan() };
        let mut saved = line.open("old").unwrap();
        line.save(&mut saved, at("1", "a"));
        line.save(&mut saved, at("2", "b"));
        let begins = Snapshot { sources: vec![vec![]], begins: [0].into(), sinks: vec![vec![]], ..Snapshot::default() };
        let taken = saved.take_over(&line.plan, "new", 2, &begins).unwrap().epoch;
        assert_eq!((taken, saved.taken_over(2), saved.taken_over(1)), (3, Some(3), None));
        // With the catalog that has the new text.
        let mut new = line.open("new").unwrap();
        assert_eq!((line.found(&mut new), new.begin_of_sink()), (Some((3, None)), Some(3)));
        assert!(new.restore(&line.plan).unwrap().0.unwrap().1.begins.contains(&0), "it has yet to be opened");
        // With the catalog that still has the old text. Numbers are not given out again while the process lives.
        let mut old = line.open("old").unwrap();
        assert_eq!((line.found(&mut old), old.begin_of_sink()), (Some((2, Some("2".into()))), None));
        line.save(&mut old, at("3", "c"));
        // With a catalog that is older than both, or newer.
        for text in ["new", "before both"] {
            let error = line.open(text).map(drop).unwrap_err();
            assert!(error.message.contains("of another version") && error.hint.is_some(), "{error:?}");
        }
        assert_eq!(line.found(&mut line.open("old").unwrap()), Some((4, Some("3".into()))), "nothing was deleted");
    }

    #[test]
    fn state_with_other_key_groups_is_not_taken_over_and_older_notes_have_256() {
        let line = Query { folder: TempDir::new().unwrap(), plan: plan() };
        let mut saved = line.open("text").unwrap();
        let mut note = Note::of(saved.query, &line.plan, at("1", ""));
        note.key_groups.count = 128;
        commit(&mut saved, &note);
        let error = saved.restore(&line.plan).unwrap_err();
        assert!(error.message.contains("divided into 128 groups by xxh3") && error.hint.is_some(), "{error:?}");
        let mut older = serde_json::to_value(Note::of(saved.query, &line.plan, at("2", ""))).unwrap();
        older.as_object_mut().unwrap().remove("key_groups");
        let older: Note = serde_json::from_value(older).unwrap();
        assert_eq!(older.key_groups, NotedKeyGroups::of(KeyGroups::default()));
    }

    #[test]
    fn versions_that_processed_nothing_go_on_where_the_first_one_was() {
        let line = Query { folder: TempDir::new().unwrap(), plan: plan() };
        let mut saved = line.open("first").unwrap();
        line.save(&mut saved, at("1", ""));
        line.save(&mut saved, at("2", ""));
        // Two epochs are retained: that of the first version is gone at last.
        for (text, epoch) in [("second", 3), ("third", 4), ("fourth", 5)] {
            assert_eq!(saved.take_over(&line.plan, text, epoch - 1, &at("2", "")).unwrap().epoch, epoch);
            for mut one in [line.open(text).unwrap(), line.open(text).unwrap()] {
                assert_eq!((one.taken_over(2), one.taken_over(1)), (Some(epoch), None), "results are final up to 2");
                assert!(!one.go_back(Some(epoch - 1)).unwrap(), "of another version");
                assert_eq!(line.found(&mut one), Some((epoch, Some("2".into()))));
            }
        }
        let mut last = line.open("fourth").unwrap();
        assert_eq!(last.taken_over(4), Some(5), "of those that are kept each one leads there");
        line.save(&mut last, at("3", ""));
        line.save(&mut last, at("4", ""));
        assert_eq!(last.taken_over(6), None);
        assert!(last.go_back(Some(6)).unwrap());
    }

    #[test]
    fn a_version_that_could_not_start_gives_back_what_it_was_given() {
        let line = Query { folder: TempDir::new().unwrap(), plan: plan() };
        let mut saved = line.open("old").unwrap();
        line.save(&mut saved, at("1", ""));
        let taken = saved.take_over(&line.plan, "new", 1, &at("1", "")).unwrap().epoch;
        saved.rename("old");
        assert_eq!(line.found(&mut saved), Some((1, Some("1".into()))));
        line.save(&mut saved, at("2", ""));
        assert!(saved.line.epochs.newest() > Some(taken), "no number is used twice");
        assert_eq!(line.found(&mut line.open("old").unwrap()), Some((3, Some("2".into()))));
    }

    #[test]
    fn behind_a_damaged_beginning_nothing_begins_anew_by_itself() {
        let line = Query { folder: TempDir::new().unwrap(), plan: plan() };
        let mut saved = line.open("old").unwrap();
        line.save(&mut saved, at("1", ""));
        saved.take_over(&line.plan, "new", 1, &at("1", "")).unwrap();
        let folder = line.folder.path().join("queries/7");
        let manifests = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let newest =
            manifests.filter(|path| path.extension().is_some_and(|ending| ending == "manifest")).max().unwrap();
        std::fs::write(newest, "{").unwrap();
        let error = line.open("new").map(|_| ()).unwrap_err();
        assert!(error.message.contains("cannot be used") && error.hint.is_some(), "{error:?}");
        assert!(line.open("old").is_ok());
    }
}
