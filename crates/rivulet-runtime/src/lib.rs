//! Runs groups: inboxes, tasks, worker threads, ready queue, timers.
//!
//! A [`Group`] is the unit of scheduling: the queries of one application, run as one dataflow over a table of slots. A
//! source pushes raw events into its [`GroupInbox`]; the push that makes the inbox non-empty puts the group on the
//! [`ReadyQueue`]; a worker takes it, drains the whole inbox into one batch and runs the chain depth first.
//!
//! The invariant of this crate: a group is run by one thread at a time, and what it was given is processed in the order
//! in which it came. There is no payload format, no protocol and no SQL here.
//!
//! In reading order:
//! - [`inbox`]: the bounded queue in front of a group;
//! - [`group`]: the queries of an application, and one activation of them;
//! - [`metrics`]: what a group counts, and the latency histogram;
//! - [`ready`]: the queue of groups that have work;
//! - [`workers`]: the threads.

pub mod inbox;
pub mod group;
pub mod metrics;
pub mod ready;
pub mod workers;

pub use group::{Activation, Group, GroupId, GroupParts};
pub use inbox::{GroupInbox, InboxLimits, Overflow};
pub use metrics::{GroupMetrics, Histogram};
pub use ready::ReadyQueue;
pub use workers::Workers;
