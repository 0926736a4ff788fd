//! The whole engine on a simulated clock, network, disk and scheduler, compared with a simple model.
//!
//! A seed becomes a [`Plan`]: queries, and some hundred steps of all kinds, including crashes and faults. It runs on
//! one thread in a [stepped engine](rivulet::engine::stepped), which does nothing between two calls; so the same seed
//! has the same history, byte for byte. A plan that fails is run again with steps left out, until every remaining step
//! is needed ([`shrink`]).
//!
//! Real: catalog, statements, routes, deduplication windows, inboxes, groups and their operators, snapshots, splits and
//! merges, log, epochs, checkpoints, recovery, replay. Simulated: the clock; the [`disk`], down to unsynced bytes and
//! names; the connections of clients; which task runs next.
//!
//! Deliberate defects ([`Defect`]) test that the simulation finds errors. Each is found within some hundred seeds, most
//! within the first ten. The simulation has found these real errors, which are fixed: folders whose own names were not
//! synced, so that a loss of power took whole lines of epochs; a segment of the log that prevented the start because
//! its header had not reached the disk; frames that a killed process had written and not synced, and that the next
//! process took for durable; messages that the log forgot while their senders could still send them again; results that
//! were events of other queries, lost because they were sent before the log was on disk.
//!
//! Queries are created, altered, paused, resumed and dropped while others run, and some read the results of others. Not
//! simulated: results on their way to a broker (they are sent as soon as their receiver has room), spilled queries,
//! shared inputs.
//!
//! In reading order: [`plan`], [`model`], [`disk`], `network`, `world`, [`shrink`]; [`flows`] is the same for big
//! queries, [`links`] for two of them in two processes with a link between them, and [`bursts`] for one whose tasks
//! move to other processes and back; `ways` has the connections of both.

pub mod plan;
pub mod model;
pub mod disk;
mod objects;
mod counts;
mod defect;
mod network;
mod world;
pub mod flows;
mod ways;
pub mod links;
pub mod bursts;
pub mod shrink;

use std::panic::{AssertUnwindSafe, catch_unwind};

use plan::Plan;
use world::World;

pub use counts::Counts;
pub use defect::Defect;

/// The outcome of a simulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The whole history, one line for each event.
    pub history: String,
    /// The counts.
    pub counts: Counts,
    /// The error, if there was one.
    pub failure: Option<String>,
}

/// Runs a plan, with a defect if one is given.
pub fn run(plan: &Plan, defect: Option<Defect>) -> Outcome {
    let mut world = World::new(plan, defect);
    let failure = failure_of(|| world.run());
    Outcome { history: std::mem::take(&mut world.history), counts: world.counts, failure }
}

/// Returns the error of a run; a panic is one too.
fn failure_of(run: impl FnOnce() -> Result<(), String>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
            Some(format!("a panic: {}", text.unwrap_or("without words")))
        }
    }
}
