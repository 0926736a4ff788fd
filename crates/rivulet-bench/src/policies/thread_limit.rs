//! How many threads this process may have, where each task has its own.
//!
//! A process that starts threads until the system has no more gets no error in the end: the thread that cannot protect
//! the end of its stack takes the process with it. So the bound is below what the system allows, from the beginning.

use std::fs;

/// How many threads may be started, and what limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimit {
    /// The most threads in all.
    pub threads_max: usize,
    /// The setting of the system that limits them, for messages.
    pub bounded_by: &'static str,
}

/// Mappings of memory that a thread takes: its stack, its stack for signals, and the page that guards each.
const MAPS_PER_THREAD: usize = 4;

/// The part of what the system would still allow that is used: others start threads, and map memory, too.
const USED: (usize, usize) = (3, 4);

/// What the system says, as text; empty where it does not.
#[derive(Debug, Default)]
struct System {
    threads_max: String,
    pid_max: String,
    loadavg: String,
    max_map_count: String,
    maps: usize,
    limits: String,
    pids_max: String,
    pids_current: String,
}

/// How many threads this process may have, now. Where the system says nothing (it is no Linux) no limit is known.
pub fn of_this_process() -> ThreadLimit {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let folder = control_group(&read("/proc/self/cgroup"));
    let of_group = |file: &str| folder.as_ref().map_or_else(String::new, |folder| read(&format!("{folder}/{file}")));
    limit_of(&System {
        threads_max: read("/proc/sys/kernel/threads-max"),
        pid_max: read("/proc/sys/kernel/pid_max"),
        loadavg: read("/proc/loadavg"),
        max_map_count: read("/proc/sys/vm/max_map_count"),
        maps: read("/proc/self/maps").lines().count(),
        limits: read("/proc/self/limits"),
        pids_max: of_group("pids.max"),
        pids_current: of_group("pids.current"),
    })
}

fn limit_of(system: &System) -> ThreadLimit {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    // Running threads and all threads of the system: `0.52 0.58 0.59 3/602 29345`.
    let running = system.loadavg.split_ascii_whitespace().nth(3).and_then(|part| number(part.split_once('/')?.1));
    let below = |most: Option<usize>, now: Option<usize>| Some(most?.saturating_sub(now.unwrap_or(0)));
    let processes = system.limits.lines().find_map(|line| line.strip_prefix("Max processes"));
    let processes = processes.and_then(|line| number(line.split_ascii_whitespace().next()?));
    let left = [
        (below(number(&system.threads_max), running), "kernel.threads-max"),
        (below(number(&system.pid_max), running), "kernel.pid_max"),
        (
            below(number(&system.max_map_count), Some(system.maps)).map(|maps| maps / MAPS_PER_THREAD),
            "vm.max_map_count",
        ),
        (processes, "the limit of processes of its user (ulimit -u)"),
        (below(number(&system.pids_max), number(&system.pids_current)), "pids.max of its control group"),
    ];
    let least = left.into_iter().filter_map(|(left, name)| Some((left?, name))).min();
    let (left, bounded_by) = least.unwrap_or((usize::MAX / USED.0, "nothing known"));
    ThreadLimit { threads_max: left * USED.0 / USED.1, bounded_by }
}

/// The folder where the control group of a process says how many processes and threads it may have, from its
/// `/proc/self/cgroup`.
fn control_group(membership: &str) -> Option<String> {
    let mut groups = membership.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?.trim_end_matches('/')))
    });
    // Version 1 has a hierarchy for each kind of limit, version 2 one without a name for all.
    let first = groups.clone().find(|(kind, _)| *kind == "pids").map(|(_, path)| format!("/sys/fs/cgroup/pids{path}"));
    first.or_else(|| groups.find(|(kind, _)| kind.is_empty()).map(|(_, path)| format!("/sys/fs/cgroup{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts_and_part_of_it_stays_free() {
        let mut system = System {
            threads_max: "192730\n".into(),
            pid_max: "4194304\n".into(),
            loadavg: "0.00 0.01 0.05 1/730 4567\n".into(),
            max_map_count: "65530\n".into(),
            maps: 130,
            limits: "Max processes             96365                96365                processes\n".into(),
            ..System::default()
        };
        let limit = limit_of(&system);
        assert_eq!((limit.threads_max, limit.bounded_by), (12_262, "vm.max_map_count"));
        (system.pids_max, system.pids_current) = ("1000\n".into(), "200\n".into());
        let limit = limit_of(&system);
        assert_eq!((limit.threads_max, limit.bounded_by), (600, "pids.max of its control group"));
        system.pids_max = "max\n".into();
        system.limits = "Max processes             400                unlimited                processes\n".into();
        assert_eq!(limit_of(&system).threads_max, 300);
        system.limits = "Max processes             unlimited            unlimited            processes\n".into();
        assert_eq!(limit_of(&system).bounded_by, "vm.max_map_count");
        assert!(limit_of(&System::default()).threads_max > 1 << 40);
    }

    #[test]
    fn control_groups_of_both_versions_are_found() {
        assert_eq!(control_group("0::/user.slice/a\n").as_deref(), Some("/sys/fs/cgroup/user.slice/a"));
        assert_eq!(control_group("8:pids:/\n4:memory:/x\n0::/\n").as_deref(), Some("/sys/fs/cgroup/pids"));
        assert_eq!(control_group(""), None);
    }

    #[test]
    fn this_process_may_have_threads() {
        assert!(of_this_process().threads_max > 16);
    }
}
