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
//! queries.

pub mod plan;
pub mod model;
pub mod disk;
mod objects;
mod network;
mod world;
pub mod flows;
pub mod shrink;

use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};

use disk::DiskFaults;
use plan::Plan;
use world::World;

/// A deliberate defect, to test that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Messages are acknowledged when the log has them in memory only.
    AcknowledgesBeforeSync,
    /// Repeated messages are not recognised.
    DuplicatesAreNew,
    /// Syncs of the log's files do nothing.
    LogIsNotSynced,
    /// Syncs of the checkpoints' files do nothing: files get their names before their content.
    CheckpointsAreNotSynced,
    /// Syncs of folders do nothing.
    NamesAreNotSynced,
    /// The catalog forgets when queries were created, paused and resumed.
    LifecycleLogIsForgotten,
    /// The catalog forgets the earlier values of altered queries.
    AlterationsAreForgotten,
    /// Repeated results are not recognised by their identity.
    ResultsHaveNoIdentity,
}

impl Defect {
    /// All defects.
    pub const ALL: [Self; 8] = [
        Self::AcknowledgesBeforeSync,
        Self::DuplicatesAreNew,
        Self::LogIsNotSynced,
        Self::CheckpointsAreNotSynced,
        Self::NamesAreNotSynced,
        Self::LifecycleLogIsForgotten,
        Self::AlterationsAreForgotten,
        Self::ResultsHaveNoIdentity,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::AcknowledgesBeforeSync => "acknowledges-before-sync",
            Self::DuplicatesAreNew => "duplicates-are-new",
            Self::LogIsNotSynced => "log-is-not-synced",
            Self::CheckpointsAreNotSynced => "checkpoints-are-not-synced",
            Self::NamesAreNotSynced => "names-are-not-synced",
            Self::LifecycleLogIsForgotten => "lifecycle-log-is-forgotten",
            Self::AlterationsAreForgotten => "alterations-are-forgotten",
            Self::ResultsHaveNoIdentity => "results-have-no-identity",
        }
    }
}

/// Counts of what happened in simulations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps.
    pub steps: u64,
    /// Events that devices sent.
    pub events: u64,
    /// Results that arrived, including repeated ones.
    pub results: u64,
    /// Messages that were acknowledged to their sender.
    pub acknowledged: u64,
    /// Repeated messages that were recognised.
    pub recognised: u64,
    /// How often there was no room for a message.
    pub full: u64,
    /// How often the engine started.
    pub starts: u64,
    /// How often it was stopped.
    pub stops: u64,
    /// How often its process was killed.
    pub kills: u64,
    /// How often power was lost.
    pub power_losses: u64,
    /// Connections that were lost.
    pub disconnects: u64,
    /// Queries that were created, altered, paused and resumed while others ran.
    pub changes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Checkpoints that could not be made.
    pub checkpoints_failed: u64,
    /// Disk operations that change anything.
    pub disk_operations: u64,
    /// Faults of the disk.
    pub faults: DiskFaults,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        let pairs = [
            (&mut self.steps, other.steps),
            (&mut self.events, other.events),
            (&mut self.results, other.results),
            (&mut self.acknowledged, other.acknowledged),
            (&mut self.recognised, other.recognised),
            (&mut self.full, other.full),
            (&mut self.starts, other.starts),
            (&mut self.stops, other.stops),
            (&mut self.kills, other.kills),
            (&mut self.power_losses, other.power_losses),
            (&mut self.disconnects, other.disconnects),
            (&mut self.changes, other.changes),
            (&mut self.checkpoints, other.checkpoints),
            (&mut self.checkpoints_failed, other.checkpoints_failed),
            (&mut self.disk_operations, other.disk_operations),
            (&mut self.faults.full, other.faults.full),
            (&mut self.faults.sync, other.faults.sync),
            (&mut self.faults.cut_short, other.faults.cut_short),
            (&mut self.faults.lost, other.faults.lost),
            (&mut self.faults.torn, other.faults.torn),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum += more);
    }
}

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
