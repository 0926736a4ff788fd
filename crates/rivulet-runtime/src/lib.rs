//! Runs groups and big queries: inboxes, tasks, schedulers, worker threads, balancing of load.
//!
//! A [`Group`] holds the queries of one application, run as one dataflow over a table of slots. A source pushes raw
//! events into the group; an event goes to the inbox of the [`Task`] where its query is. The push that makes an inbox
//! non-empty hands the task to the [`Scheduler`]. A worker takes the task, drains the inbox batch by batch and runs the
//! chain depth first. A group has one task until the balancer finds that one worker is not enough for it.
//!
//! The invariant of this crate: the events of a query are processed by one thread at a time, in the order in which they
//! came, wherever the query is moved; for a query in parts this holds for the events of each key. There is no payload
//! format, no protocol and no SQL here.
//!
//! In reading order:
//! - `inbox`: the bounded queue in front of a task;
//! - [`task`]: queries that are processed together, one activation of them, and how several workers share that;
//! - [`group`]: the queries of an application, and how they move between its tasks;
//! - [`flow`]: a big query as parallel tasks;
//! - [`spill`]: silent queries leave memory;
//! - [`metrics`]: counters, and the latency histogram;
//! - [`scheduler`]: which task runs next, and where;
//! - `balance`: which tasks are moved, split, merged, cut and joined; `labels`: which groups begin on one worker;
//! - `pool` and [`workers`]: what a process has once, and its threads;
//! - [`numa`]: the cores and memory nodes of the threads.

mod balance;
pub mod flow;
pub mod group;
mod inbox;
mod labels;
pub mod metrics;
pub mod numa;
mod pool;
pub mod scheduler;
pub mod spill;
pub mod task;
pub mod workers;

pub use flow::{
    Flow, FlowError, FlowLimits, FlowParts, FlowReport, Guest, GuestFigures, GuestParts, Letters, MoveError, MoveStep,
    OperatorReport, Partition, Phase, Pipe, PipeError, Placement, SourceTime, Tap, TaskReport, Usage, Waker, Word,
};
pub use group::{
    Alter, Group, GroupId, GroupInput, GroupParts, GroupSnapshot, Joined, Restored, Saved, StateMigration, Suspended,
};
pub use inbox::{InboxLimits, Overflow};
pub use metrics::{GroupMetrics, Histogram};
pub use numa::{Numa, Topology, WorkerCore};
pub use scheduler::{
    Activation, Belonging, Budget, Consume, Policy, Rank, Runnable, Scheduler, Share, WEIGHT, WEIGHT_MAX,
};
pub use spill::{Spill, SpillStatus};
pub use task::{Examined, Task, TaskParts};
pub use workers::{WorkerSettings, WorkerStatus, Workers};
