//! The line of epochs in which the state of all applications is saved.
//!
//! An application has one name in it. Under that name are a piece with all state, and after it pieces with changes.
//! Before the changes grow more numerous than a limit, or larger than the piece before them, all state is taken once
//! more. So a restart reads little that no longer counts.
//!
//! Results that outputs have not delivered are a piece of their own, in the form of [`outlets`].
//!
//! A piece begins with a mark and the identity of the application's text. Behind them is a piece of a
//! [`GroupSnapshot`]. Further pieces of the same capture begin with another mark alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use rivulet_dataflow::{LogPosition, StateError};
use rivulet_runtime::GroupSnapshot;
use rivulet_storage::{Committed, Epoch, EpochSettings, Epochs, Piece, Restored, StorageError, Store};
use serde_json::json;

use super::line::{Failure, Line};
use crate::catalog::ApplicationNumber;
use crate::data_folder::lines;
use crate::engine::outlet::SavedOutlet;
use crate::engine::outlets;
use crate::engine::running::Running;
use crate::engine::sources::Positions;

/// A piece of the state of an application ends when it has so many bytes.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// The most captures of changes after one of all state.
const CHANGES_MAX: usize = 8;

/// Keys of an epoch's note: the position from which on the log is replayed after the epoch, and the highest position of
/// an event that is in it.
pub(crate) const POSITION: &str = "position";
pub(super) const APPLIED: &str = "applied";

/// Keys of the note if inputs have sources: the positions at which the sources continue, and the position from which on
/// the log may have events beyond these.
const SOURCES: &str = "sources";
const SOURCES_FROM: &str = "sources_from";

/// The beginning of a piece; the last two digits are the version of its form.
const MARK: &[u8; 8] = b"RVAPPL01";
/// The beginning of a piece that goes on with the capture of the piece before it.
const CONTINUED: &[u8; 8] = b"RVAPPL02";
const VERSION: u32 = 2;

/// What was written of an application and still counts.
#[derive(Clone, Debug, Default)]
struct Written {
    /// The identity of the text for which it was written. Only pieces of the same text may stand after it.
    id: String,
    whole_bytes: u64,
    changes_bytes: u64,
    changes: usize,
    /// The saved state does not fit the changes since: the next piece must have all state.
    must_be_whole: bool,
}

/// Why a captured state may not be saved yet.
pub(super) struct NotReady {
    pub(super) what: &'static str,
    pub(super) why: String,
}

impl NotReady {
    /// The state may not contain events that the log could still lose.
    pub(super) fn disk() -> Self {
        Self { what: "the log of events cannot be written", why: "the disk takes too long".into() }
    }
}

impl From<NotReady> for Failure {
    fn from(NotReady { what, why }: NotReady) -> Self {
        let source = io::Error::new(io::ErrorKind::TimedOut, why);
        StorageError::Io { what: what.into(), source }.into()
    }
}

/// The captured state of an application, which is about to be written.
pub(super) struct Taken {
    number: ApplicationNumber,
    id: String,
    pieces: Vec<Bytes>,
    slots: u64,
    position: LogPosition,
    results_to: u64,
    /// Why some results are not delivered yet that would be lost if this state were saved, because they would not be
    /// computed again.
    not_out: Option<String>,
    failures: (usize, Option<String>),
}

impl Taken {
    /// Takes the state that was captured of the application with this text; `None` if nothing changed. The results
    /// before it have numbers below `results_to`. They have not been delivered elsewhere for the reason `not_out`.
    pub(super) fn new(
        number: ApplicationNumber,
        id: &str,
        captured: GroupSnapshot,
        results_to: u64,
        not_out: Option<String>,
    ) -> Option<Self> {
        if captured.pieces.is_empty() && captured.failures.0 == 0 {
            return None;
        }
        let GroupSnapshot { mut pieces, slots, position, failures, .. } = captured;
        if pieces.is_empty() {
            pieces.push(Vec::new());
        }
        let mut head = [MARK, &(id.len() as u16).to_le_bytes()[..], id.as_bytes()].concat();
        let with_head = |mut piece: Vec<u8>| {
            let head = std::mem::replace(&mut head, CONTINUED.to_vec());
            piece.reserve_exact(head.len());
            piece.splice(0..0, head);
            Bytes::from(piece)
        };
        let pieces = pieces.into_iter().map(with_head).collect();
        let (id, slots) = (id.to_owned(), slots as u64);
        Some(Self { number, id, pieces, slots, position, results_to, not_out, failures })
    }

    /// The number of slots in it.
    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    /// The application.
    pub(super) fn number(&self) -> ApplicationNumber {
        self.number
    }

    /// Whether all state could be captured.
    pub(super) fn is_whole(&self) -> bool {
        self.failures.0 == 0
    }

    /// The highest position in the log of an event that is in the state.
    pub(super) fn position(&self) -> LogPosition {
        self.position
    }

    /// Messages with numbers below this may be results that would not be computed again if this state were saved.
    pub(super) fn results_to(&self) -> u64 {
        // Results of events that are not durable are never computed again anyway.
        if self.position > 0 { self.results_to } else { 0 }
    }
}

impl Taken {
    /// Why results of durable events are not delivered yet; `None` if they are.
    pub(super) fn not_out(&self) -> Option<&str> {
        self.not_out.as_deref().filter(|_| self.position > 0)
    }
}

/// Returns the identity of the text that a piece was written for, which a further piece of a capture does not repeat,
/// and the captured state.
///
/// # Errors
/// The piece is of a later version, or is not a piece of an application.
fn read_piece(piece: &Bytes) -> Result<(Option<&str>, Bytes), StateError> {
    if let Some(found) = later_version(piece) {
        return Err(StateError::Version { operator: "an application".into(), found, known: VERSION });
    }
    if piece.starts_with(CONTINUED) {
        return Ok((None, piece.slice(CONTINUED.len()..)));
    }
    let read = || {
        let (length, rest) = piece.strip_prefix(MARK)?.split_first_chunk::<2>()?;
        let (id, captured) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        Some((Some(std::str::from_utf8(id).ok()?), piece.slice_ref(captured)))
    };
    read().ok_or_else(|| StateError::Corrupt("the beginning of a piece makes no sense".into()))
}

/// Returns the identity of the text for which the pieces of an application were written, and the captured state.
///
/// # Errors
/// One of them is no piece of an application or of a later version, or they do not belong together.
pub(crate) fn read_pieces(pieces: &[Bytes]) -> Result<(&str, Vec<Bytes>), StateError> {
    let (mut of, mut captured) = (None, Vec::with_capacity(pieces.len()));
    for piece in pieces {
        let (id, content) = read_piece(piece)?;
        match (of, id) {
            (None, None) => return Err(StateError::Corrupt("its first piece is missing".into())),
            (Some(of), Some(id)) if of != id => {
                return Err(StateError::Corrupt("its pieces are of different texts".into()));
            }
            _ => of = of.or(id),
        }
        captured.push(content);
    }
    Ok((of.ok_or_else(|| StateError::Corrupt("there is no piece of it".into()))?, captured))
}

/// The version of a piece's form, if it is later than the version of this program.
fn later_version(piece: &[u8]) -> Option<u32> {
    let digits = piece.get(..MARK.len())?.strip_prefix(&MARK[..MARK.len() - 2])?;
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|found| *found > VERSION)
}

/// The line, and what is known of its pieces.
pub(super) struct Applications {
    pub(super) line: Line,
    pub(super) known: Known,
}

/// What is known of the content of the line.
pub(super) struct Known {
    written: BTreeMap<ApplicationNumber, Written>,
    /// For each retained epoch the position from which on the log would be replayed, oldest first.
    positions: VecDeque<LogPosition>,
    /// For each retained epoch, oldest first: the number of the next change of values when its state was captured, and
    /// the applications that are incomplete in it.
    altered_before: VecDeque<(u64, BTreeSet<ApplicationNumber>)>,
    retained: usize,
    /// The position from which on the log is replayed after the newest epoch.
    position: LogPosition,
    /// The highest position of an event that is in any state.
    applied: LogPosition,
    /// The positions at which sources of inputs continue, and the position of the log before which it has all events
    /// before these.
    sources: (Positions, LogPosition),
    /// Whether the newest epoch has these positions.
    has_sources: bool,
    /// What the newest epoch has of outputs. `outputs_next` is what the next one is to have.
    outputs: BTreeMap<ApplicationNumber, Bytes>,
    outputs_next: BTreeMap<ApplicationNumber, Bytes>,
}

impl Applications {
    pub(super) fn open(store: Arc<Store>, retained: usize) -> Result<Self, StorageError> {
        let line =
            Line::new(Epochs::open_apart(store, lines::APPLICATIONS, EpochSettings { retained })?, "applications");
        let known = Known {
            written: BTreeMap::new(),
            positions: VecDeque::new(),
            altered_before: VecDeque::new(),
            retained,
            position: 0,
            applied: 0,
            sources: (Positions::new(), 0),
            has_sources: true,
            outputs: BTreeMap::new(),
            outputs_next: BTreeMap::new(),
        };
        Ok(Self { line, known })
    }

    /// Returns the content of the newest epoch, and the problems of newer ones.
    pub(super) fn restore(&mut self) -> Result<(Option<Restored>, Vec<String>), StorageError> {
        let problems = self.line.epochs.problems().to_vec();
        let restored = self.line.epochs.restore()?;
        if let Some(restored) = &restored {
            self.known.enter(restored);
        }
        Ok((restored, problems))
    }
}

impl Known {
    fn enter(&mut self, restored: &Restored) {
        let noted = |note: &serde_json::Value, key| note.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
        // State that is older than the rest lacks more of the log.
        let positions = restored.older.values().chain([&restored.note]).map(|note| noted(note, POSITION));
        self.position = positions.min().unwrap_or(0);
        self.applied = noted(&restored.note, APPLIED);
        let sources = restored.note.get(SOURCES).and_then(|sources| serde_json::from_value(sources.clone()).ok());
        self.sources = (sources.unwrap_or_default(), noted(&restored.note, SOURCES_FROM).min(self.position));
        for (name, pieces) in &restored.pieces {
            if let (Some(number), Some(last)) = (outputs_number_of(name), pieces.last()) {
                // A copy: the piece keeps all in memory that was read together with it.
                self.outputs.insert(number, Bytes::copy_from_slice(last));
            }
            let Some(number) = number_of(name) else { continue };
            let bytes = |pieces: &[Bytes]| pieces.iter().map(|piece| piece.len() as u64).sum();
            let id = read_pieces(pieces).ok().map(|(id, _)| id.to_owned());
            let is_continued = |piece: &&Bytes| piece.starts_with(CONTINUED);
            let (whole, changes) = pieces.split_at(pieces.len().min(1));
            let further = changes.iter().take_while(is_continued).count();
            let (further, changes) = changes.split_at(further);
            let written = Written {
                // No piece may stand after one that cannot be read. No text has this identity.
                id: id.unwrap_or_default(),
                whole_bytes: bytes(whole) + bytes(further),
                changes_bytes: bytes(changes),
                changes: changes.iter().filter(|piece| !is_continued(piece)).count(),
                // Groups that capture changes do not know the queries that came and went since that older epoch.
                must_be_whole: restored.older.contains_key(name),
            };
            self.written.insert(number, written);
        }
    }

    /// The positions at which sources of inputs continue, and the position from which on the log may have events beyond
    /// these.
    pub(super) fn sources(&self) -> (Positions, LogPosition) {
        self.sources.clone()
    }

    /// Gives the next epoch these positions of sources, whose events before them are all before `from` of the log.
    pub(super) fn note_sources(&mut self, positions: Positions, from: LogPosition) {
        self.has_sources &= self.sources.0 == positions;
        self.sources = (positions, from);
    }

    /// The position from which on the log is replayed after the newest epoch.
    pub(super) fn position(&self) -> LogPosition {
        self.position
    }

    /// The highest position that may not be given to another event: the highest position of an event that may be in any
    /// state, or the last one before the replay begins.
    pub(super) fn reached(&self) -> LogPosition {
        self.applied.max(self.position.saturating_sub(1))
    }

    /// Whether all state of an application with this text is to be captured, and not only the changes.
    pub(super) fn wants_everything(&self, number: ApplicationNumber, id: &str) -> bool {
        let is_enough =
            |one: &Written| one.changes >= CHANGES_MAX || (one.changes > 0 && one.changes_bytes >= one.whole_bytes);
        self.written.get(&number).is_none_or(|one| one.must_be_whole || one.id != id || is_enough(one))
    }

    /// The same of an application that runs.
    pub(super) fn wants_all_of(&self, running: &Running) -> bool {
        self.wants_everything(running.number, &running.application.id)
    }

    /// All state of an application is to be captured the next time.
    pub(super) fn want_everything(&mut self, number: ApplicationNumber) {
        if let Some(written) = self.written.get_mut(&number) {
            written.must_be_whole = true;
        }
    }

    /// Whether the captured state replaces what was written before. It does not if some queries could not be captured,
    /// because their state is only in what was written before. It does replace state of another text, because the two
    /// could not be read together.
    fn replaces(&self, taken: &Taken) -> bool {
        let is_whole = self.wants_everything(taken.number, &taken.id) && taken.failures.0 == 0;
        is_whole || self.written.get(&taken.number).is_none_or(|one| one.id != taken.id)
    }

    /// The log may be deleted before this position. The positions of epochs that another process has made are unknown,
    /// so the log is kept until this process has made as many epochs as are retained.
    pub(super) fn needed_from(&self) -> LogPosition {
        match self.positions.front() {
            Some(&position) if self.positions.len() >= self.retained => position,
            _ => 0,
        }
    }

    /// Notes that an epoch has all changes of values with numbers below `number`, except changes of applications that
    /// are `incomplete` in it. Returns the number from which on changes are still needed, and the applications whose
    /// earlier changes are needed too. Returns `None` until this process has made as many epochs as are retained, for
    /// it does not know this of others.
    pub(super) fn altered_before(
        &mut self,
        number: u64,
        incomplete: BTreeSet<ApplicationNumber>,
    ) -> Option<(u64, BTreeSet<ApplicationNumber>)> {
        self.altered_before.push_back((number, incomplete));
        while self.altered_before.len() > self.retained {
            self.altered_before.pop_front();
        }
        let (needed_from, _) = self.altered_before.front().filter(|_| self.altered_before.len() == self.retained)?;
        let incomplete = self.altered_before.iter().flat_map(|(_, incomplete)| incomplete).copied().collect();
        Some((*needed_from, incomplete))
    }

    /// Sets what the next epoch is to have of the outputs of an application.
    pub(super) fn note_outputs(&mut self, number: ApplicationNumber, outputs: Vec<SavedOutlet>) {
        if !outputs.is_empty() || self.outputs.contains_key(&number) {
            self.outputs_next.insert(number, outlets::saved(outputs).into());
        }
    }

    /// The applications of which any state is written.
    pub(super) fn applications(&self) -> impl Iterator<Item = ApplicationNumber> {
        self.written.keys().copied()
    }

    /// Writes an epoch with the captured state, after which the log is replayed from `position`. Drops what was written
    /// of applications that are not among `all`. Writes nothing if nothing has changed.
    pub(super) fn commit(
        &mut self,
        line: &mut Line,
        taken: Vec<Taken>,
        all: &BTreeSet<ApplicationNumber>,
        position: LogPosition,
    ) -> Result<Option<Committed>, Failure> {
        for Taken { number, failures, .. } in &taken {
            if let (failures, Some(error)) = failures {
                tracing::error!(application = number, queries = failures, "queries are not saved for now: {error}");
            }
        }
        let gone = self.applications().filter(|one| !all.contains(one)).map(name_of);
        let is_empty = |number: &ApplicationNumber| self.outputs_next.get(number).is_some_and(Bytes::is_empty);
        let without_outputs = self.outputs.keys().filter(|number| !all.contains(number) || is_empty(number));
        let gone: Vec<String> = gone.chain(without_outputs.map(|number| outputs_name_of(*number))).collect();
        let is_other = |(number, bytes): &(&ApplicationNumber, &Bytes)| {
            all.contains(number) && !bytes.is_empty() && self.outputs.get(number) != Some(bytes)
        };
        let outputs = self.outputs_next.iter().filter(is_other);
        let outputs: Vec<Piece> =
            outputs.map(|(number, bytes)| Piece::whole(outputs_name_of(*number), bytes.clone())).collect();
        // Epochs are made even where no events come, until all retained ones have this position: a full log is
        // shortened only then, and takes in no events before that.
        let is_new = position > 1
            && (self.positions.len() < self.retained || self.positions.front().is_none_or(|&first| position > first));
        if taken.is_empty() && gone.is_empty() && outputs.is_empty() && !is_new && self.has_sources {
            return Ok(None);
        }
        let applied = taken.iter().map(Taken::position).fold(self.applied, LogPosition::max);
        let pieces = taken.iter().flat_map(|one| {
            let replaces = self.replaces(one);
            one.pieces.iter().enumerate().map(move |(index, piece)| match replaces && index == 0 {
                true => Piece::whole(name_of(one.number), piece.clone()),
                false => Piece::delta(name_of(one.number), piece.clone()),
            })
        });
        let mut note = json!({ POSITION: position, APPLIED: applied });
        let (sources, sources_from) = &self.sources;
        let mut needed_from = position;
        if !sources.is_empty() {
            note[SOURCES] = json!(sources);
            note[SOURCES_FROM] = json!(sources_from);
            needed_from = needed_from.min(*sources_from);
        }
        let epoch = Epoch { note, pieces: pieces.chain(outputs).collect(), dropped: gone };
        let committed = line.commit(epoch).inspect_err(|_| self.give_up(&taken))?;
        for one in taken {
            let bytes = one.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
            let replaces = self.replaces(&one);
            let written = self.written.entry(one.number).or_default();
            let before = if replaces { Written::default() } else { std::mem::take(written) };
            *written = Written { id: one.id, must_be_whole: one.failures.0 > 0, ..before };
            match replaces {
                true => written.whole_bytes = bytes,
                false => {
                    written.changes_bytes += bytes;
                    written.changes += 1;
                }
            }
        }
        self.written.retain(|number, _| all.contains(number));
        self.outputs.append(&mut self.outputs_next);
        self.outputs.retain(|number, bytes| all.contains(number) && !bytes.is_empty());
        (self.position, self.applied, self.has_sources) = (position, applied, true);
        self.positions.push_back(needed_from);
        while self.positions.len() > self.retained {
            self.positions.pop_front();
        }
        Ok(Some(committed))
    }

    /// The captured state was not written, and its groups will not give these changes again by themselves.
    pub(super) fn give_up(&mut self, taken: &[Taken]) {
        taken.iter().for_each(|one| self.want_everything(one.number));
    }
}

/// The name under which the undelivered results of an application's outputs are saved.
fn outputs_name_of(number: ApplicationNumber) -> String {
    format!("outputs-{number}")
}

/// The application whose undelivered results are saved under a name.
pub(crate) fn outputs_number_of(name: &str) -> Option<ApplicationNumber> {
    name.strip_prefix("outputs-")?.parse().ok()
}

fn name_of(number: ApplicationNumber) -> String {
    format!("application-{number}")
}

/// The application whose state is saved under a name.
pub(crate) fn number_of(name: &str) -> Option<ApplicationNumber> {
    name.strip_prefix("application-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_read_as_it_was_written_and_a_later_one_is_told_from_a_broken_one() {
        let pieces = vec![vec![1, 2, 3], vec![4], vec![5]];
        let captured = GroupSnapshot { pieces, slots: 1, position: 7, ..GroupSnapshot::default() };
        let taken = Taken::new(3, "abc", captured, 9, None).expect("something was captured");
        let (id, captured) = read_pieces(&taken.pieces).expect("they are whole");
        assert_eq!((id, captured.concat()), ("abc", vec![1, 2, 3, 4, 5]));
        let mut later = taken.pieces[0].to_vec();
        later[7] = b'3';
        let error = read_piece(&later.clone().into()).expect_err("a later one").to_string();
        assert!(error.contains("version 3") && error.contains("hint:"), "{error}");
        for broken in [&later[..6], &b"RVAPPLxx"[..], &taken.pieces[0][..10], b""] {
            let broken = Bytes::copy_from_slice(broken);
            assert!(matches!(read_piece(&broken), Err(StateError::Corrupt(_))), "{broken:?}");
        }
        assert!(matches!(read_pieces(&taken.pieces[1..]), Err(StateError::Corrupt(_))), "the first one is missing");
        assert!(Taken::new(3, "abc", GroupSnapshot::default(), 0, None).is_none());
    }

    #[test]
    fn further_pieces_of_a_capture_are_no_changes() {
        let store = Arc::new(Store::in_memory().expect("a store"));
        let mut line = Applications::open(store.clone(), 2).expect("a line");
        let taken = |pieces: usize| {
            let pieces = vec![vec![7; 100]; pieces];
            let captured = GroupSnapshot { pieces, slots: 1, position: 1, ..GroupSnapshot::default() };
            Taken::new(3, "one", captured, 0, None).expect("something")
        };
        line.commit(vec![taken(CHANGES_MAX * 2)], &[3], 1);
        line.commit(vec![taken(2)], &[3], 1);
        for is_restarted in [false, true] {
            if is_restarted {
                line = Applications::open(store.clone(), 2).expect("a line");
                line.restore().expect("it can be read");
            }
            let written = &line.known.written[&3];
            let (of_first, of_others) = (MARK.len() + 2 + "one".len() + 100, CONTINUED.len() + 100);
            assert_eq!(written.whole_bytes as usize, of_first + (CHANGES_MAX * 2 - 1) * of_others);
            assert_eq!((written.changes, written.changes_bytes as usize), (1, of_first + of_others));
            assert!(!line.known.wants_everything(3, "one"), "restarted: {is_restarted}");
        }
    }

    #[test]
    fn what_was_captured_is_not_copied() {
        let mut bytes = Vec::with_capacity(1_000);
        bytes.resize(900, 7);
        let memory = bytes.as_ptr();
        let captured = GroupSnapshot { pieces: vec![bytes], slots: 1, ..GroupSnapshot::default() };
        let taken = Taken::new(3, "abc", captured, 0, None).expect("something was captured");
        let [piece] = &taken.pieces[..] else { panic!("it is one") };
        assert_eq!((piece.as_ptr(), piece.len()), (memory, 900 + MARK.len() + 2 + 3));
        assert_eq!(read_piece(piece).expect("it is whole"), (Some("abc"), vec![7; 900].into()));
    }

    fn captured(bytes: &[u8], position: LogPosition, failures: usize) -> GroupSnapshot {
        GroupSnapshot {
            pieces: vec![bytes.to_vec()],
            slots: 1,
            position,
            failures: (failures, (failures > 0).then(String::new)),
            ..GroupSnapshot::default()
        }
    }

    impl Applications {
        fn commit(&mut self, taken: Vec<Taken>, all: &[ApplicationNumber], position: LogPosition) {
            let all = all.iter().copied().collect();
            self.known.commit(&mut self.line, taken, &all, position).expect("it is written");
        }
    }

    fn texts(store: &Arc<Store>) -> Vec<String> {
        let mut line = Applications::open(store.clone(), 2).expect("a line");
        let restored = line.restore().expect("it can be read").0.expect("an epoch");
        let pieces = restored.pieces["application-3"].iter();
        pieces.map(|piece| read_piece(piece).expect("it is whole").0.expect("a text").to_owned()).collect()
    }

    #[test]
    fn nothing_is_written_behind_what_is_of_another_text() {
        let store = Arc::new(Store::in_memory().expect("a store"));
        let mut line = Applications::open(store.clone(), 2).expect("a line");
        let mut save = |id: &str, failures: usize| {
            let everything = line.known.wants_everything(3, id);
            let taken = Taken::new(3, id, captured(b"state", 1, failures), 0, None).expect("something");
            line.commit(vec![taken], &[3], 1);
            everything
        };
        assert!(save("one", 0) && !save("one", 0));
        assert_eq!(texts(&store), ["one", "one"]);
        assert!(save("two", 1), "nothing of it is there");
        assert_eq!(texts(&store), ["two"], "also where a part of it could not be taken");
        assert!(save("two", 1), "that part is missing");
        assert_eq!(texts(&store), ["two", "two"], "what could be taken before stays");
        assert!(save("two", 0) && texts(&store) == ["two"]);
        // The same after a restart.
        let mut line = Applications::open(store.clone(), 2).expect("a line");
        line.restore().expect("it can be read");
        assert!(!line.known.wants_everything(3, "two") && line.known.wants_everything(3, "one"));
    }

    #[test]
    fn what_came_back_from_an_older_epoch_stays_where_only_others_are_saved() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || {
            let store = Arc::new(Store::folder(folder.path()).expect("a folder"));
            let mut line = Applications::open(store, 2).expect("a line");
            let (restored, problems) = line.restore().expect("it can be read");
            (line, restored.map(|restored| restored.pieces).unwrap_or_default(), problems)
        };
        let taken = |number, bytes: &[u8], position| {
            Taken::new(number, "one", captured(bytes, position, 0), 0, None).expect("something was captured")
        };
        let (mut line, ..) = open();
        for (text, position) in [("<first>", 5), ("<second>", 9)] {
            let both = [3, 4].map(|number| taken(number, format!("{text} of {number}").as_bytes(), position));
            line.known.want_everything(3);
            line.commit(both.into(), &[3, 4], position);
        }
        let pack = folder.path().join(lines::APPLICATIONS).join("000000000002.pack");
        let mut bytes = std::fs::read(&pack).expect("the second");
        let text = b"<second> of 3";
        let place = bytes.windows(text.len()).position(|window| window == text).expect("it is there");
        bytes[place] ^= 1;
        std::fs::write(&pack, bytes).expect("damaged");
        // The log is replayed from the position of the application that lacks more of it, until that one is saved too.
        let (mut line, found, _) = open();
        assert_eq!((line.known.position(), found.len(), line.known.wants_everything(3, "one")), (5, 2, true));
        line.commit(vec![taken(4, b"<third> of 4", 12)], &[3, 4], line.known.position());
        let (mut line, found, problems) = open();
        assert!(problems.is_empty() && found["application-3"][0].ends_with(b"<first> of 3"), "{problems:?}");
        assert_eq!((line.known.position(), found.len()), (5, 2));
        line.commit(vec![], &[4], 13);
        let (line, found, _) = open();
        assert_eq!((line.known.position(), found.len(), found.contains_key("application-4")), (13, 1, true));
    }

    #[test]
    fn positions_from_which_the_log_is_replayed_are_given_to_nothing_else() {
        let store = Arc::new(Store::in_memory().expect("a store"));
        let mut line = Applications::open(store.clone(), 2).expect("a line");
        let taken = Taken::new(3, "one", captured(b"state", 4, 0), 0, None).expect("something");
        // Events up to 9 came, and have changed nothing of the saved state.
        line.commit(vec![taken], &[3], 10);
        let mut line = Applications::open(store, 2).expect("a line");
        line.restore().expect("it can be read");
        assert_eq!((line.known.position(), line.known.reached()), (10, 9));
    }
}
