//! How much processor time processes may have together: a control group of the kernel's controller `cpu`, version 1.

use std::fs;
use std::path::{Path, PathBuf};

/// The time in which a group may use what it has, in microseconds: short, so that a group that has used it up does not
/// stand still for long.
const PERIOD_US: u32 = 10_000;

/// A group. Dropping it removes it; its processes must have ended.
pub(super) struct Limit(PathBuf);

impl Limit {
    /// Makes a group that may use so many cores.
    ///
    /// # Errors
    /// The machine has no such controller, or this process may not make groups.
    pub(super) fn new(name: &str, cores: f64) -> Result<Self, String> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let root = root(&read("/proc/self/mounts"), &read("/proc/self/cgroup"));
        let root = root.ok_or("the controller 'cpu' of control groups, version 1, is not mounted")?;
        let folder = Path::new(&root).join(format!("rivulet-bench-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let limit = Self(folder);
        limit.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
        limit.set(Some(cores))?;
        Ok(limit)
    }

    /// Changes how many cores it may use; `None`: all.
    pub(super) fn set(&self, cores: Option<f64>) -> Result<(), String> {
        let quota_us = cores.map_or(-1.0, |cores| (cores * f64::from(PERIOD_US)).round());
        self.write("cpu.cfs_quota_us", &quota_us.to_string())
    }

    /// Takes a process into it.
    pub(super) fn add(&self, process_id: u32) -> Result<(), String> {
        self.write("cgroup.procs", &process_id.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let file = self.0.join(file);
        fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // What cannot be removed is empty, and limits nobody.
        let _ = fs::remove_dir(&self.0);
    }
}

/// The folder of the control group of a process, from its mounts and its groups.
fn root(mounts: &str, groups: &str) -> Option<String> {
    let is_cpu = |options: &str| options.split(',').any(|option| option == "cpu");
    let mount = mounts.lines().find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        [_, folder, "cgroup", options, ..] if is_cpu(options) => Some(folder),
        _ => None,
    })?;
    let group = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        parts.next().filter(|controllers| is_cpu(controllers)).and(parts.next())
    });
    Some(format!("{mount}{}", group.unwrap_or_default().trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_this_process_is_found_in_the_hierarchy_of_the_controller() {
        let mounts = "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup /cpu cgroup rw,cpu,cpuacct 0 0\n";
        assert_eq!(root(mounts, "3:cpuset:/x\n1:cpuacct,cpu:/a/b\n").as_deref(), Some("/cpu/a/b"));
        assert_eq!(root(mounts, "1:cpu:/\n").as_deref(), Some("/cpu"));
        assert_eq!(root("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/\n"), None);
    }
}
