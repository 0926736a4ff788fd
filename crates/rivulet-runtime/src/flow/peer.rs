//! A task of a flow, as the other tasks know it.

use rivulet_dataflow::Element;

/// A task that others send to and wake.
pub(super) trait Peer: Send + Sync {
    /// Puts an element into the inbox, and schedules the task if it must be.
    fn push(&self, channel: usize, element: Element);

    /// Whether the inbox has room. A task without room wakes its senders when it has some.
    fn has_room(&self) -> bool;

    /// Makes the task check whether it can go on or must release its resources. Workers that are stopping would not run
    /// it.
    fn wake(&self);

    /// Whether it reads sources, moves or has a guest: it must hear when sources go on behind a barrier.
    fn rests(&self) -> bool;

    /// Of a task that ends with the sink of results: the newest barrier whose checkpoint the sink has committed,
    /// [`u64::MAX`] once the task has ended.
    fn results_final_to(&self) -> Option<u64>;
}
