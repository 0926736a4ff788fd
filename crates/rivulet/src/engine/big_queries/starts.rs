//! Which big queries have been started and have not yet shown that they can run: a query that ends the process would otherwise do so again at
//! every start.
//!
//! The data folder has a note of them, `starts`. A query has shown that it can run when a checkpoint of it was made, or after
//! [`PROVEN_AFTER`]; an orderly stop empties the note. If the process crashed or the kernel ended it for want of memory, the next start counts
//! that against every query in the note. Other deaths, as by `kill -9` or with the machine, say nothing of queries. A query that was in the note
//! at [`DEATHS_MAX`] such deaths in a row is held if it was there alone; several are started one after the other.
//!
//! What must hold: the note outlives the process, not the machine, so nothing waits for the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::crash;

/// After so many deaths in a row a query is not started together with others.
const DEATHS_MAX: u32 = 2;

/// A query has shown that it can run after so long without a checkpoint.
const PROVEN_AFTER: Duration = Duration::from_secs(60);

const NOTE: &str = "starts";

/// What is done with a query when the server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Starts,
    /// It is one of several at which the process may have died, and is started when all others have shown that they can run.
    Waits,
    /// The process died when nothing but this query had just been started.
    IsHeld,
}

/// What the kernel says of processes that it has ended for want of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kernel {
    /// The boot since which it counts; empty if it does not say.
    boot: String,
    oom_kills: u64,
}

/// What is in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    kernel: Kernel,
    /// By the number of the query's statement, how often in a row a process has begun to run it, this one included.
    starts: BTreeMap<u64, u32>,
}

/// The queries that have yet to show that they can run.
#[derive(Default)]
pub(super) struct Starts {
    /// Where the note is; `None` where none is kept.
    folder: Option<PathBuf>,
    kernel: Kernel,
    /// How many queries the last process had in its note when it died.
    suspects: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By number, how often in a row the process has died soon after a query was started that this process has not started yet.
    deaths: BTreeMap<u64, u32>,
    /// Those that run: how often in a row they were begun, and when.
    unproven: BTreeMap<u64, (u32, Instant)>,
    written: Note,
    is_closed: bool,
}

impl Kernel {
    /// As it is now.
    pub(super) fn now() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
        Self {
            boot: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
            oom_kills: read("/proc/vmstat").lines().find_map(count).unwrap_or(0),
        }
    }

    fn has_killed_since(&self, then: &Self) -> bool {
        !self.boot.is_empty() && self.boot == then.boot && self.oom_kills > then.oom_kills
    }
}

impl Starts {
    /// Reads what the last process on this data folder has left.
    pub(super) fn open(folder: &Path, kernel: Kernel) -> Self {
        let note: Note = std::fs::read(folder.join(NOTE))
            .ok()
            .and_then(|note| serde_json::from_slice(&note).ok())
            .unwrap_or_default();
        let has_crashed = crash::was_noted(folder);
        let died = !note.starts.is_empty() && (has_crashed || kernel.has_killed_since(&note.kernel));
        let deaths = if died { note.starts.clone() } else { BTreeMap::new() };
        if died {
            let why = if has_crashed { "crashed" } else { "was ended for want of memory" };
            tracing::warn!(
                queries = deaths.len(),
                "the server {why} before big queries that it had started made a checkpoint; after {DEATHS_MAX} times in a row they are \
                 not started together"
            );
        }
        crash::forget(folder);
        let known = Known { deaths, written: note.clone(), ..Known::default() };
        Self { folder: Some(folder.to_owned()), kernel, suspects: note.starts.len(), known: Mutex::new(known) }
    }

    /// What is done with a query when the server starts.
    pub(super) fn verdict(&self, number: u64) -> Verdict {
        match self.known.lock().deaths.get(&number) {
            Some(&deaths) if deaths >= DEATHS_MAX && self.suspects == 1 => Verdict::IsHeld,
            Some(&deaths) if deaths >= DEATHS_MAX => Verdict::Waits,
            _ => Verdict::Starts,
        }
    }

    /// Whether a query is still to wait until all others have shown that they can run.
    pub(super) fn has_to_wait(&self, number: u64) -> bool {
        self.verdict(number) == Verdict::Waits && self.has_unproven()
    }

    /// Notes that a query is about to be started.
    pub(super) fn begin(&self, number: u64) {
        let known = &mut *self.known.lock();
        let deaths = known.deaths.remove(&number).unwrap_or(0);
        known.unproven.insert(number, (deaths + 1, Instant::now()));
        self.write(known);
    }

    /// Forgets the queries that have shown that they can run, and those that do not run any more. Of each that runs it is said when its
    /// newest checkpoint was made by this process.
    pub(super) fn keep(&self, running: &BTreeMap<u64, Option<Instant>>) {
        let known = &mut *self.known.lock();
        known.unproven.retain(|number, (_, begun)| {
            let made = running.get(number);
            made.is_some_and(|made| made.is_none_or(|made| made < *begun)) && begun.elapsed() < PROVEN_AFTER
        });
        self.write(known);
    }

    /// Whether there is any query that has yet to show that it can run.
    pub(super) fn has_unproven(&self) -> bool {
        !self.known.lock().unproven.is_empty()
    }

    /// The server is stopped in order: whatever ends the process now was no query.
    pub(super) fn close(&self) {
        let known = &mut *self.known.lock();
        known.unproven.clear();
        self.write(known);
        known.is_closed = true;
    }

    fn write(&self, known: &mut Known) {
        let Some(folder) = self.folder.as_ref().filter(|_| !known.is_closed) else { return };
        let starts = known.unproven.iter().map(|(number, (starts, _))| (*number, *starts)).collect();
        let note = Note { kernel: self.kernel.clone(), starts };
        if note == known.written {
            return;
        }
        let partial = folder.join(format!("{NOTE}.partial"));
        let bytes = serde_json::to_vec(&note).unwrap_or_default();
        match std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, folder.join(NOTE))) {
            Ok(()) => known.written = note,
            Err(error) => tracing::debug!("which big queries were started is not noted: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(oom_kills: u64) -> Kernel {
        Kernel { boot: "a boot".into(), oom_kills }
    }

    /// The verdicts on the queries 1 to 3 at the next start, of which those that may are begun.
    fn start(folder: &Path, oom_kills: u64) -> (Starts, [Verdict; 3]) {
        let starts = Starts::open(folder, kernel(oom_kills));
        let verdicts = [1, 2, 3].map(|number| starts.verdict(number));
        (1..)
            .zip(verdicts)
            .filter(|(_, verdict)| *verdict == Verdict::Starts)
            .for_each(|(number, _)| starts.begin(number));
        (starts, verdicts)
    }

    #[test]
    fn the_query_at_which_the_process_dies_is_found_and_held() {
        use Verdict::{IsHeld, Starts, Waits};
        let folder = tempfile::tempdir().unwrap();
        for oom_kills in 0..2 {
            assert_eq!(start(folder.path(), oom_kills).1, [Starts; 3]);
        }
        let (starts, verdicts) = start(folder.path(), 2);
        assert_eq!(verdicts, [Waits; 3]);
        assert!(!starts.has_to_wait(1));
        starts.begin(1);
        assert!(starts.has_to_wait(2), "they are started one after the other");
        starts.keep(&BTreeMap::from([(1, Some(Instant::now()))]));
        assert!(!starts.has_to_wait(2), "the first has made a checkpoint");
        starts.begin(2);
        drop(starts);
        assert_eq!(start(folder.path(), 3).1, [Starts, IsHeld, Starts]);
    }

    #[test]
    fn only_deaths_by_crash_or_memory_soon_after_a_start_count() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..5 {
            assert_eq!(start(folder.path(), 7).1, [Verdict::Starts; 3], "kill -9 says nothing of queries");
        }
        for oom_kills in 8..12 {
            let (starts, verdicts) = start(folder.path(), oom_kills);
            assert_eq!(verdicts, [Verdict::Starts; 3], "all had made a checkpoint, or were stopped in order");
            match oom_kills % 2 {
                0 => starts.keep(&(1..4).map(|number| (number, Some(Instant::now()))).collect()),
                _ => starts.close(),
            }
        }
        std::fs::write(folder.path().join(NOTE), "no note").unwrap();
        assert_eq!(start(folder.path(), 20).1, [Verdict::Starts; 3]);
    }
}
