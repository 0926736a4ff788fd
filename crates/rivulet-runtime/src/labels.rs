//! Makes groups whose queries have a label in common, for example those of one home, begin on one worker.
//!
//! This is only a preference at the beginning: a busy worker gets no more tasks because of a label, and the balancer
//! moves tasks regardless of labels.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

/// How many labels are remembered. Beyond that all are forgotten, and later groups begin together anew.
const LABELS_MAX: usize = 1 << 16;

/// The hash of a label.
pub(crate) type LabelHash = u64;

/// The worker on which the groups of each label began.
#[derive(Default)]
pub(crate) struct Labels {
    hasher: RandomState,
    workers: Mutex<HashMap<LabelHash, usize>>,
}

impl Labels {
    pub(crate) fn hash(&self, label: &str) -> LabelHash {
        self.hasher.hash_one(label)
    }

    /// The worker of the groups with this label, if there are any.
    pub(crate) fn worker(&self, label: LabelHash) -> Option<usize> {
        self.workers.lock().get(&label).copied()
    }

    /// Notes that a group with this label is on a worker. The first worker counts.
    pub(crate) fn note(&self, label: LabelHash, worker: usize) {
        let mut workers = self.workers.lock();
        if workers.len() >= LABELS_MAX && !workers.contains_key(&label) {
            workers.clear();
        }
        workers.entry(label).or_insert(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_of_a_label_counts_and_labels_are_bounded() {
        let labels = Labels::default();
        let home = labels.hash("home 42");
        assert_eq!(labels.worker(home), None);
        labels.note(home, 3);
        labels.note(home, 1);
        assert_eq!(labels.worker(home), Some(3));
        (0..2 * LABELS_MAX as u64).for_each(|label| labels.note(label, 0));
        assert!(labels.workers.lock().len() <= LABELS_MAX);
    }
}
