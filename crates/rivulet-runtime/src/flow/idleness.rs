//! The time of an idle source: that of the sources whose rows its own rows meet.
//!
//! A task whose partitions are all idle holds nothing up. It says so by its watermark, which goes on with the other
//! sources, or with the clock if all of them are idle. The watermark travels in order with rows, through every stage
//! between. So each stage waits for all its channels, and results that such a watermark releases are in front of it. A
//! stage that left out channels would have to know what is still on its way to the senders of these.
//!
//! What must hold: an idle task never passes the time of a task that is not idle and whose rows it meets, less its own
//! lateness, unless its own clock is further.

use parking_lot::Mutex;

/// How far a task that reads sources has come: the time of its newest row, or of the partition that is furthest behind,
/// microseconds since the epoch; `i64::MIN` before its first row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceTime {
    /// Its rows are waited for.
    Active(i64),
    /// All its partitions are idle. The time goes on by the clock.
    Idle(i64),
    /// All its partitions have ended.
    Ended,
}

/// How far the tasks that read sources have come.
pub(super) struct Idleness {
    /// For each task the number of its group: tasks whose rows meet have the same.
    groups: Vec<usize>,
    times: Mutex<Vec<SourceTime>>,
}

impl Idleness {
    /// Makes it for tasks of these groups, which have not read anything yet.
    pub(super) fn new(groups: Vec<usize>) -> Self {
        let times = Mutex::new(vec![SourceTime::Active(i64::MIN); groups.len()]);
        Self { groups, times }
    }

    /// A task has come this far. Returns whether idle tasks of its group should check again.
    #[must_use]
    pub(super) fn reached(&self, task: usize, time: SourceTime) -> bool {
        if self.group(task).count() == 1 {
            return false;
        }
        let mut times = self.times.lock();
        let before = std::mem::replace(&mut times[task], time);
        before != time && self.group(task).any(|other| other != task && matches!(times[other], SourceTime::Idle(_)))
    }

    /// The time that an idle task goes on to: that of the active task furthest behind, or of the foremost if all are
    /// idle. `None` as long as it is unknown.
    pub(super) fn time_us(&self, task: usize) -> Option<i64> {
        let times = self.times.lock();
        let times: &[SourceTime] = &times;
        let of = |wanted: fn(SourceTime) -> Option<i64>| self.group(task).filter_map(move |task| wanted(times[task]));
        let active = of(|time| if let SourceTime::Active(time_us) = time { Some(time_us) } else { None });
        let idle = of(|time| if let SourceTime::Idle(time_us) = time { Some(time_us) } else { None });
        active.min().or_else(|| idle.max()).filter(|&time_us| time_us != i64::MIN)
    }

    /// The tasks whose rows meet those of a task, with itself.
    fn group(&self, task: usize) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(move |&other| self.groups[other] == self.groups[task])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use SourceTime::{Active, Ended, Idle};

    #[test]
    fn an_idle_task_goes_on_with_the_one_that_is_furthest_behind_or_with_the_clock() {
        let idleness = Idleness::new(vec![0, 0, 0, 1]);
        assert!(!idleness.reached(0, Active(50)) && !idleness.reached(3, Active(5)));
        assert!(!idleness.reached(1, Idle(i64::MIN)), "no other one is idle");
        assert_eq!(idleness.time_us(1), None, "one has not read yet");
        assert!(idleness.reached(2, Active(20)));
        assert_eq!(idleness.time_us(1), Some(20));
        assert!(!idleness.reached(2, Active(20)) && idleness.reached(2, Active(70)));
        assert_eq!(idleness.time_us(1), Some(50), "the one of another group does not count");
        assert!(idleness.reached(0, Idle(60)) && idleness.reached(2, Ended));
        assert_eq!((idleness.time_us(0), idleness.time_us(1)), (Some(60), Some(60)));
        assert!(idleness.reached(1, Active(10)));
        assert_eq!(idleness.time_us(0), Some(10));
    }

    #[test]
    fn nothing_is_asked_of_a_task_that_is_alone() {
        let idleness = Idleness::new(vec![0, 1]);
        assert!(!idleness.reached(1, Idle(0)) && !idleness.reached(0, Active(5)));
    }
}
