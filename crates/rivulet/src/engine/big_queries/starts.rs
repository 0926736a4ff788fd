//! Big queries that have been started and have not yet shown that they can run. A query that ends the process would
//! otherwise do so again at every start.
//!
//! The data folder has a note of them, `starts`. A query has shown that it can run when a checkpoint of it was made, or
//! after [`PROVEN_AFTER`]; an orderly stop empties the note. If the process crashed or the kernel ended it for lack of
//! memory, the next start counts that against every query in the note. Other deaths, as by `kill -9` or with the
//! machine, say nothing about queries. A query that was in the note at [`DEATHS_MAX`] such deaths in a row is held if
//! it was there alone; several are started one after the other.
//!
//! The kernel counts the processes that it has ended in the control group of the process, or on the whole machine where
//! it does not. The note has the count as it was a moment before the process died, so earlier deaths of other processes
//! do not count.
//!
//! What must hold: the note outlives the process, not the machine, so no code waits for the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::crash;

/// After this many deaths in a row a query is not started together with others.
const DEATHS_MAX: u32 = 2;

/// After this time a query has shown that it can run, even without a checkpoint.
const PROVEN_AFTER: Duration = Duration::from_secs(60);

/// The most control groups inside each other.
const GROUPS_MAX: usize = 64;

const NOTE: &str = "starts";

/// What the start of the server does with a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Starts,
    /// The process may have died of this query or another. It is started when all others have shown that they can run.
    Waits,
    /// The process died when only this query had just been started.
    IsHeld,
}

/// The number of processes that the kernel has ended for lack of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kernel {
    /// The boot since which the kernel counts; empty if that is unknown.
    boot: String,
    /// On the whole machine.
    oom_kills: u64,
    /// In the control groups (version 2) that this process is in, its own first.
    #[serde(default)]
    groups: Vec<ControlGroup>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ControlGroup {
    /// No two groups of a boot have the same number.
    number: u64,
    /// Includes the processes of the groups inside it.
    oom_kills: u64,
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    kernel: Kernel,
    /// By the number of the query's statement, how many processes in a row have started it, this one included.
    starts: BTreeMap<u64, u32>,
}

/// The queries that have yet to show that they can run.
#[derive(Default)]
pub(in crate::engine) struct Starts {
    /// The folder of the note; `None` if no note is kept.
    folder: Option<PathBuf>,
    /// The root of the system whose kernel counts.
    system: PathBuf,
    /// The number of queries that the last process had in its note when it died.
    suspects: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// For queries that this process has not started yet, by number: how often in a row the process has died soon after
    /// it started the query.
    deaths: BTreeMap<u64, u32>,
    /// For queries that run: how many processes in a row have started it, and when this one did.
    unproven: BTreeMap<u64, (u32, Instant)>,
    written: Note,
    is_closed: bool,
}

impl Kernel {
    /// The current counts, from the files of the system with this root.
    fn now(system: &Path) -> Self {
        let boot = std::fs::read_to_string(system.join("proc/sys/kernel/random/boot_id")).unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            oom_kills: oom_kills_in(&system.join("proc/vmstat")).unwrap_or(0),
            groups: control_groups(system),
        }
    }

    /// Whether the kernel has ended a process like this one since `then`: a process in the nearest control group that
    /// has both this process and the previous one. A service manager may make a new group for each start, whose counts
    /// begin at 0.
    fn has_killed_since(&self, then: &Self) -> bool {
        if self.boot.is_empty() || self.boot != then.boot {
            return false;
        }
        let of_both = |then: &ControlGroup| {
            let now = self.groups.iter().find(|now| now.number == then.number)?;
            Some(now.oom_kills > then.oom_kills)
        };
        then.groups.iter().find_map(of_both).unwrap_or(self.oom_kills > then.oom_kills)
    }
}

/// The count in a file of the kernel.
fn oom_kills_in(file: &Path) -> Option<u64> {
    let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
    std::fs::read_to_string(file).ok()?.lines().find_map(count)
}

/// The control groups (version 2) that this process is in and that count, its own first.
#[cfg(unix)]
fn control_groups(system: &Path) -> Vec<ControlGroup> {
    use std::os::unix::fs::MetadataExt;

    let groups = std::fs::read_to_string(system.join("proc/self/cgroup")).unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let counts = |group: &Path| {
        let folder = system.join("sys/fs/cgroup").join(group);
        let number = std::fs::metadata(&folder).ok()?.ino();
        Some(ControlGroup { number, oom_kills: oom_kills_in(&folder.join("memory.events"))? })
    };
    own.into_iter().flat_map(|own| Path::new(own).ancestors()).take(GROUPS_MAX).filter_map(counts).collect()
}

#[cfg(not(unix))]
fn control_groups(_system: &Path) -> Vec<ControlGroup> {
    Vec::new()
}

impl Starts {
    /// Reads what the last process on this data folder has left. `system` is the root of the system, `/`.
    pub(in crate::engine) fn open(folder: &Path, system: &Path) -> Self {
        let note: Note = std::fs::read(folder.join(NOTE))
            .ok()
            .and_then(|note| serde_json::from_slice(&note).ok())
            .unwrap_or_default();
        let has_crashed = crash::was_noted(folder);
        let died = !note.starts.is_empty() && (has_crashed || Kernel::now(system).has_killed_since(&note.kernel));
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
        let (folder, system) = (Some(folder.to_owned()), system.to_owned());
        Self { folder, system, suspects: note.starts.len(), known: Mutex::new(known) }
    }

    /// What the start of the server does with a query.
    pub(super) fn verdict(&self, number: u64) -> Verdict {
        match self.known.lock().deaths.get(&number) {
            Some(&deaths) if deaths >= DEATHS_MAX && self.suspects == 1 => Verdict::IsHeld,
            Some(&deaths) if deaths >= DEATHS_MAX => Verdict::Waits,
            _ => Verdict::Starts,
        }
    }

    /// Whether a query must still wait until all others have shown that they can run.
    pub(super) fn has_to_wait(&self, number: u64) -> bool {
        self.verdict(number) == Verdict::Waits && self.has_unproven()
    }

    /// Records that a query is about to be started.
    pub(super) fn begin(&self, number: u64) {
        let known = &mut *self.known.lock();
        let deaths = known.deaths.remove(&number).unwrap_or(0);
        known.unproven.insert(number, (deaths + 1, Instant::now()));
        self.write(known);
    }

    /// Forgets the queries that have shown that they can run, and those that no longer run. `running` has for each
    /// running query when this process made its newest checkpoint.
    pub(super) fn keep(&self, running: &BTreeMap<u64, Option<Instant>>) {
        let known = &mut *self.known.lock();
        known.unproven.retain(|number, (_, begun)| {
            let made = running.get(number);
            made.is_some_and(|made| made.is_none_or(|made| made < *begun)) && begun.elapsed() < PROVEN_AFTER
        });
        self.write(known);
    }

    /// Whether any query has yet to show that it can run.
    pub(super) fn has_unproven(&self) -> bool {
        !self.known.lock().unproven.is_empty()
    }

    /// The server stops in an orderly way: if the process ends now, no query is the cause.
    pub(super) fn close(&self) {
        let known = &mut *self.known.lock();
        known.unproven.clear();
        self.write(known);
        known.is_closed = true;
    }

    fn write(&self, known: &mut Known) {
        let Some(folder) = self.folder.as_ref().filter(|_| !known.is_closed) else { return };
        let starts = known.unproven.iter().map(|(number, (starts, _))| (*number, *starts)).collect();
        // Processes that the kernel has ended up to now did not include this one.
        let note = Note { kernel: Kernel::now(&self.system), starts };
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

    /// The files of a system whose kernel has counted `oom_kills` on the whole machine.
    fn system(folder: &Path, oom_kills: u64) -> PathBuf {
        let system = folder.join("system");
        let random = system.join("proc/sys/kernel/random");
        std::fs::create_dir_all(&random).unwrap();
        std::fs::write(random.join("boot_id"), "a boot\n").unwrap();
        std::fs::write(system.join("proc/vmstat"), format!("nr_free 7\noom_kill {oom_kills}\n")).unwrap();
        system
    }

    /// Puts the process into a control group, with one group for each part of the path. Each has counted `oom_kills`.
    fn group(system: &Path, path: &str, oom_kills: u64) {
        std::fs::create_dir_all(system.join("proc/self")).unwrap();
        std::fs::write(system.join("proc/self/cgroup"), format!("1:name=systemd:/other\n0::/{path}\n")).unwrap();
        for group in Path::new(path).ancestors().filter(|group| !group.as_os_str().is_empty()) {
            let folder = system.join("sys/fs/cgroup").join(group);
            std::fs::create_dir_all(&folder).unwrap();
            let events = format!("low 0\noom 3\noom_kill {oom_kills}\noom_group_kill 9\n");
            std::fs::write(folder.join("memory.events"), events).unwrap();
        }
    }

    /// The verdicts on the queries 1 to 3 at the next start. It starts those queries that may start.
    fn start(folder: &Path, oom_kills: u64) -> (Starts, [Verdict; 3]) {
        let starts = Starts::open(folder, &system(folder, oom_kills));
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

    /// Whether the deaths of all processes up to now were counted against the queries that they had started.
    fn counts(folder: &Path, oom_kills: u64) -> bool {
        start(folder, oom_kills).0.known.lock().unproven.values().all(|(starts, _)| *starts > 1)
    }

    #[test]
    fn those_that_died_in_the_same_control_group_count() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let system = system(folder, 0);
        group(&system, "system.slice/rivulet.service", 5);
        assert!(!counts(folder, 0));
        assert!(!counts(folder, 1), "somebody died elsewhere on the machine, and the server was killed");
        group(&system, "system.slice/rivulet.service", 6);
        assert!(counts(folder, 2), "it died in the group of the server");
        // A new group of the same name counts from 0, so the group around it decides.
        let own = system.join("sys/fs/cgroup/system.slice/rivulet.service");
        std::fs::rename(&own, own.with_extension("gone")).unwrap();
        group(&system, "system.slice/rivulet.service", 0);
        let around = system.join("sys/fs/cgroup/system.slice/memory.events");
        std::fs::write(&around, "oom_kill 6\n").unwrap();
        assert!(!counts(folder, 3));
        std::fs::rename(&own, own.with_extension("gone too")).unwrap();
        group(&system, "system.slice/rivulet.service", 0);
        std::fs::write(&around, "oom_kill 7\n").unwrap();
        assert!(counts(folder, 3));
        // The process was in no group before.
        std::fs::remove_dir_all(system.join("sys")).unwrap();
        assert!(!counts(folder, 3));
        assert!(counts(folder, 4), "the machine says it");
    }

    #[test]
    fn what_others_died_of_while_the_server_ran_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let (starts, _) = start(folder.path(), 0);
        system(folder.path(), 1);
        starts.keep(&(1..4).map(|number| (number, None)).collect());
        drop(starts);
        assert!(!counts(folder.path(), 1));
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
