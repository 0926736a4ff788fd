//! Which events a partition makes, and in which order.
//!
//! Positions 0, 1, 2, ... of the stream go to the partitions in blocks, in turn, so that all advance together and each
//! position is made exactly once. The event at a position has the position's number, unless the stream is disordered:
//! then the events of a group of G stand in the order `position * 953 mod G`, as the benchmark has it. Of every 50
//! events (or another cycle) a source may want some only; the others are jumped over.

/// The step by which disordered groups are walked: a prime, so that every event of a group comes once.
const DISORDER: u64 = 953;

/// The events of every cycle that a source wants: `count` from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) cycle: u64,
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Pattern {
    /// Every event.
    pub(super) const ALL: Self = Self { cycle: 1, first: 0, count: 1 };
}

/// What part of a stream is walked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// How many positions the whole stream has.
    pub(super) events: u64,
    /// How many events are in disorder together; 1 is in order.
    pub(super) disorder: u64,
    /// How many positions a partition takes at a time.
    pub(super) block: u64,
    /// Which partition this is.
    pub(super) partition: u64,
    /// Of how many.
    pub(super) partitions: u64,
    /// The events that are wanted.
    pub(super) pattern: Pattern,
}

/// A partition on its way through the stream.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    part: Part,
    /// The next position; not below `part.events` once all is done.
    next: u64,
    block_end: u64,
}

impl Walk {
    pub(super) fn new(part: Part) -> Self {
        let start = part.partition.saturating_mul(part.block);
        Self { part, next: start, block_end: start.saturating_add(part.block) }
    }

    /// Where it stands: the next position, and where the block ends that it is in.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.next, self.block_end)
    }

    /// The same part, from where a walk stood.
    pub(super) fn at(part: Part, (next, block_end): (u64, u64)) -> Self {
        Self { part, next, block_end }
    }

    /// The part of the stream that is walked.
    pub(super) fn part(&self) -> Part {
        self.part
    }

    /// Whether there is no position left.
    pub(super) fn is_done(&self) -> bool {
        self.next >= self.part.events
    }

    /// The next position, whether or not its event is wanted.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// How many positions of how many are behind this partition, were all as far as it is.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.next.min(self.part.events), self.part.events)
    }

    /// Replaces `numbers` by the next events, at most `rows_max`, at positions below `due`. Returns the position of the
    /// first.
    pub(super) fn fill(&mut self, rows_max: usize, due: u64, numbers: &mut Vec<u64>) -> Option<u64> {
        numbers.clear();
        let limit = due.min(self.part.events);
        let mut first = None;
        while numbers.len() < rows_max && self.next < limit {
            let before = self.next;
            let end = limit.min(self.block_end);
            let room = (rows_max - numbers.len()) as u64;
            let taken =
                if self.part.disorder == 1 { self.run(end, room, numbers) } else { self.shuffled(end, room, numbers) };
            first = first.or(taken);
            debug_assert!(self.next > before && self.next <= end, "a walk goes forward, and not beyond its block");
            if self.next == self.block_end {
                let jump = self.part.block.saturating_mul(self.part.partitions - 1);
                self.next = self.next.saturating_add(jump);
                self.block_end = self.next.saturating_add(self.part.block);
            }
        }
        first
    }

    /// One run of wanted events in order, or the jump to its beginning.
    fn run(&mut self, end: u64, room: u64, numbers: &mut Vec<u64>) -> Option<u64> {
        let Pattern { cycle, first, count } = self.part.pattern;
        let cycle_start = self.next - self.next % cycle;
        if self.next - cycle_start >= first + count {
            self.next = cycle_start.saturating_add(cycle + first).min(end);
            return None;
        }
        let start = self.next.max(cycle_start.saturating_add(first)).min(end);
        // A source that wants everything has no reason to stop at the end of a cycle.
        let run_end = if count == cycle { u64::MAX } else { cycle_start.saturating_add(first + count) };
        let stop = run_end.min(end).min(start.saturating_add(room));
        numbers.extend(start..stop);
        self.next = stop;
        (stop > start).then_some(start)
    }

    /// Events of disordered groups; whether one is wanted is seen by its number.
    fn shuffled(&mut self, end: u64, room: u64, numbers: &mut Vec<u64>) -> Option<u64> {
        let Part { disorder, pattern: Pattern { cycle, first, count }, .. } = self.part;
        let mut first_position = None;
        let mut left = room;
        while self.next < end && left > 0 {
            // Wrapping is no harm: positions beyond 2^54 would take a century.
            let within = self.next.wrapping_mul(DISORDER) % disorder;
            let number = self.next - self.next % disorder + within;
            if (number % cycle).wrapping_sub(first) < count {
                numbers.push(number);
                first_position = first_position.or(Some(self.next));
                left -= 1;
            }
            self.next += 1;
        }
        first_position
    }
}

/// Whether every event of a disordered group of this size comes exactly once.
pub(super) fn is_disorder(group: u64) -> bool {
    group > 0 && !group.is_multiple_of(DISORDER)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_of(part: Part, rows_max: usize) -> Vec<u64> {
        let mut walk = Walk::new(part);
        let (mut all, mut numbers) = (Vec::new(), Vec::new());
        while !walk.is_done() {
            let first = walk.fill(rows_max, u64::MAX, &mut numbers);
            assert_eq!(first.is_some(), !numbers.is_empty());
            assert!(numbers.len() <= rows_max);
            all.extend_from_slice(&numbers);
        }
        all
    }

    proptest! {
        /// Whatever the blocks, partitions and pattern: each wanted event comes exactly once, and in order if there is
        /// no disorder.
        #[test]
        fn every_wanted_event_comes_once(
            events in 0u64..700, disorder in prop_oneof![Just(1), 2u64..120], block in 1u64..90, partitions in 1u64..5,
            (cycle, first, count) in (1u64..60).prop_flat_map(|cycle| (Just(cycle), 0..cycle))
                .prop_flat_map(|(cycle, first)| (Just(cycle), Just(first), 1..=cycle - first)),
            rows_max in 1usize..100,
        ) {
            // A stream that ends within a group lacks those of the group that would come later.
            let events = events - events % disorder;
            let pattern = Pattern { cycle, first, count };
            let mut all = Vec::new();
            for partition in 0..partitions {
                let part = Part { events, disorder, block, partition, partitions, pattern };
                let numbers = all_of(part, rows_max);
                prop_assert!(disorder > 1 || numbers.is_sorted());
                all.extend(numbers);
            }
            all.sort_unstable();
            let wanted: Vec<u64> = (0..events).filter(|n| (first..first + count).contains(&(n % cycle))).collect();
            prop_assert_eq!(all, wanted);
        }
    }

    #[test]
    fn disorder_stays_within_its_group() {
        let part = Part { events: 1_000, disorder: 100, block: 64, partition: 0, partitions: 1, pattern: Pattern::ALL };
        let numbers = all_of(part, 64);
        assert!(!numbers.is_sorted());
        assert!(numbers.iter().enumerate().all(|(position, number)| position as u64 / 100 == number / 100));
        assert!(is_disorder(100) && !is_disorder(953) && !is_disorder(0));
    }

    #[test]
    fn what_is_not_due_waits() {
        let part = Part { events: 100, disorder: 1, block: 10, partition: 0, partitions: 1, pattern: Pattern::ALL };
        let mut walk = Walk::new(part);
        let mut numbers = Vec::new();
        assert_eq!((walk.fill(50, 7, &mut numbers), numbers.len(), walk.next()), (Some(0), 7, 7));
        assert_eq!((walk.fill(50, 7, &mut numbers), numbers.len()), (None, 0));
        assert_eq!((walk.fill(50, 12, &mut numbers), numbers.len()), (Some(7), 5));
        assert_eq!(walk.progress(), (12, 100));
    }
}
