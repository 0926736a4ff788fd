//! The order of blocks in a task that runs in parts. Blocks of events are taken one after the other, prepared side by
//! side, and handed over in the order in which they were taken.
//!
//! With state by key, handing a block over puts it into the queue of each part. Without state, a part with a prepared
//! block is *parked* until it is that block's turn, and then sends its results.

use std::collections::VecDeque;
use std::sync::Arc;

/// How many blocks may be in progress for each part: enough that no part waits for others, few enough to stay in the
/// caches.
const BLOCKS_PER_PART: usize = 3;

/// The blocks in progress, and where they are. `B` is a prepared block, `R` what a part keeps while it is parked.
pub(super) struct Order<B, R> {
    /// The number of the block that is handed over next.
    turn: u64,
    /// The blocks from that one on that were taken and not handed over.
    taken: VecDeque<Taken<B>>,
    /// For each part the blocks that were handed over and not processed there yet, each with its oldest arrival.
    queues: Vec<VecDeque<(i64, Arc<B>)>>,
    /// For each part its parked block, and what the part keeps of it.
    parked: Vec<Option<(u64, R)>>,
    /// The number of blocks that were handed over and not processed by all parts.
    open: usize,
    /// The events of all blocks in progress.
    rows: usize,
}

struct Taken<B> {
    oldest_us: i64,
    rows: usize,
    /// The prepared block; `Some(None)` for a block that is skipped.
    prepared: Option<Option<Arc<B>>>,
}

impl<B, R> Order<B, R> {
    pub(super) fn new(parts: usize) -> Self {
        Self {
            turn: 0,
            taken: VecDeque::new(),
            queues: (0..parts).map(|_| VecDeque::new()).collect(),
            parked: (0..parts).map(|_| None).collect(),
            open: 0,
            rows: 0,
        }
    }

    /// Whether a part may take another block.
    pub(super) fn may_take(&self, part: usize) -> bool {
        self.parked[part].is_none() && self.taken.len() + self.open < BLOCKS_PER_PART * self.queues.len()
    }

    /// Notes that a block of this many events was taken, the oldest of which came at `oldest_us`; returns its number.
    pub(super) fn take(&mut self, rows: usize, oldest_us: i64) -> u64 {
        self.rows += rows;
        self.taken.push_back(Taken { oldest_us, rows, prepared: None });
        self.turn + self.taken.len() as u64 - 1
    }

    /// A block is prepared, or with `None` skipped. This block and those behind it are handed over as far as it is
    /// their turn. Returns whether any part got a block.
    pub(super) fn hand_over(&mut self, number: u64, block: Option<Arc<B>>) -> bool {
        let place = usize::try_from(number - self.turn).expect("a block is handed over once");
        self.taken[place].prepared = Some(block);
        let mut is_any = false;
        while let Some(Taken { prepared: Some(_), .. }) = self.taken.front() {
            let Some(Taken { oldest_us, rows, prepared }) = self.taken.pop_front() else { break };
            self.turn += 1;
            match prepared.flatten() {
                None => self.rows -= rows,
                Some(block) => {
                    self.open += 1;
                    is_any = true;
                    self.queues.iter_mut().for_each(|queue| queue.push_back((oldest_us, block.clone())));
                }
            }
        }
        is_any
    }

    /// Parks a part with a prepared block, until [`Order::turn_of`] returns what it keeps.
    pub(super) fn park(&mut self, part: usize, number: u64, kept: R) {
        self.parked[part] = Some((number, kept));
    }

    /// The block that the part is parked with, and what it keeps, if it is that block's turn. The turn lasts until the
    /// block is handed over.
    pub(super) fn turn_of(&mut self, part: usize) -> Option<(u64, R)> {
        if self.is_turn_of(part) { self.parked[part].take() } else { None }
    }

    /// Whether it is the turn of the block that the part is parked with.
    pub(super) fn is_turn_of(&self, part: usize) -> bool {
        self.parked[part].as_ref().is_some_and(|(number, _)| *number == self.turn)
    }

    /// The part parked with the block whose turn it is.
    pub(super) fn next_in_turn(&self) -> Option<usize> {
        (0..self.parked.len()).find(|&part| self.is_turn_of(part))
    }

    /// The next block in the queue of a part.
    pub(super) fn next_of(&mut self, part: usize) -> Option<Arc<B>> {
        self.queues[part].pop_front().map(|(_, block)| block)
    }

    /// Whether the queue of a part has a block.
    pub(super) fn has_next(&self, part: usize) -> bool {
        !self.queues[part].is_empty()
    }

    /// All parts have processed a block of this many events.
    pub(super) fn done(&mut self, rows: usize) {
        self.open -= 1;
        self.rows -= rows;
    }

    /// The oldest arrival of the events in progress for a part; `i64::MAX` if there are none.
    pub(super) fn oldest_us(&self, part: usize) -> i64 {
        let taken = self.taken.iter().map(|one| one.oldest_us);
        taken.chain(self.queues[part].iter().map(|(oldest_us, _)| *oldest_us)).min().unwrap_or(i64::MAX)
    }

    /// The number of events in progress.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_handed_over_in_the_order_in_which_they_were_taken() {
        let mut order: Order<u64, ()> = Order::new(2);
        let numbers: Vec<u64> = (0..4).map(|n| order.take(10, 100 + n)).collect();
        assert!(!order.hand_over(numbers[2], Some(Arc::new(2))), "two are before it");
        assert!(!order.hand_over(numbers[1], None), "one is before it, and it is forgotten");
        assert_eq!((order.next_of(0), order.oldest_us(0), order.rows()), (None, 100, 40));
        assert!(order.hand_over(numbers[0], Some(Arc::new(0))));
        assert_eq!(
            (order.next_of(1).as_deref(), order.next_of(1).as_deref(), order.next_of(1)),
            (Some(&0), Some(&2), None)
        );
        assert_eq!((order.oldest_us(0), order.oldest_us(1), order.rows()), (100, 103, 30));
        order.done(10);
        order.done(10);
        assert!(order.hand_over(numbers[3], Some(Arc::new(3))) && order.has_next(1));
        order.done(10);
        assert_eq!(order.rows(), 0);
    }

    #[test]
    fn only_so_many_are_under_way() {
        let mut order: Order<u64, ()> = Order::new(2);
        let numbers: Vec<u64> = std::iter::from_fn(|| order.may_take(0).then(|| order.take(1, 0))).collect();
        assert_eq!(numbers.len(), 2 * BLOCKS_PER_PART);
        order.hand_over(0, Some(Arc::new(0)));
        assert!(!order.may_take(1), "it is not processed yet");
        order.done(1);
        assert!(order.may_take(1));
    }

    #[test]
    fn who_is_parked_waits_for_its_turn() {
        let mut order: Order<(), &str> = Order::new(3);
        let numbers: Vec<u64> = (0..3).map(|_| order.take(1, 0)).collect();
        order.park(2, numbers[1], "second");
        order.park(0, numbers[2], "third");
        assert_eq!((order.turn_of(2), order.next_in_turn(), order.may_take(2)), (None, None, false));
        order.park(1, numbers[0], "first");
        assert_eq!((order.next_in_turn(), order.turn_of(1), order.next_in_turn()), (Some(1), Some((0, "first")), None));
        assert_eq!(order.turn_of(2), None, "the results of the first are being sent");
        order.hand_over(0, None);
        assert_eq!((order.next_in_turn(), order.turn_of(0), order.turn_of(2)), (Some(2), None, Some((1, "second"))));
        order.hand_over(1, None);
        assert_eq!(order.turn_of(0), Some((2, "third")));
        order.hand_over(2, None);
        assert!(order.rows() == 0 && order.may_take(0));
    }
}
