//! The whole engine on a simulated clock, network, disk and scheduler, against a simple model.
//!
//! A seed becomes a [`Plan`]: queries, and some hundred steps of all kinds, crashes and faults among them. It is run on
//! one thread by an engine [by hand](rivulet::engine::stepped), which does nothing between two calls; so the same seed
//! has the same history, byte for byte. What fails is run again with steps left out, until none can be spared
//! ([`shrink`]).
//!
//! Real: catalog, statements, routes, deduplication windows, inboxes, groups and their operators, capture, splits
//! and merges, log, epochs, checkpoints, recovery, replay. Simulated: the clock; the [`disk`], down to unsynced bytes
//! and names; the connections of clients; who runs next.
//!
//! That it bites is tested with defects on purpose ([`Defect`]); each is found within some hundred seeds, most within
//! the first ten. What it has found in earnest, now mended: folders whose own names were not synced, so that the loss
//! of power took whole lines of checkpoints; a segment of the log that stopped the start because its header had not
//! come to the disk; frames that a killed process had written and not synced, taken for durable by the next; messages
//! forgotten by the log while their senders could still send them again; results that were events of other queries,
//! lost because they had left before the log was on disk.
//!
//! Queries are created, altered, paused, resumed and dropped while others run, and some read the results of others.
//!
//! Not simulated: results on their way to a broker (they leave as soon as who reads them has room), shelves of silent
//! queries, shared inputs.
//!
//! In reading order: [`plan`], [`model`], [`disk`], `network`, `world`, [`shrink`]; [`flows`] are the same for big
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

/// Something that is wrong on purpose, to see whether that is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Messages are acknowledged when they are in the log's memory.
    AcknowledgesBeforeSync,
    /// Messages that come again are not recognised.
    DuplicatesAreNew,
    /// Syncs of the log's files do nothing.
    LogIsNotSynced,
    /// Syncs of the checkpoints' files do nothing: they get their names before their content.
    CheckpointsAreNotSynced,
    /// Syncs of folders do nothing.
    NamesAreNotSynced,
    /// The catalog forgets when queries were created, paused and resumed.
    LifecycleLogIsForgotten,
    /// The catalog forgets which values queries had before they got others.
    AlterationsAreForgotten,
    /// Results that are given once more are not known by their identity.
    ResultsHaveNoIdentity,
}

impl Defect {
    /// All of them.
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

/// What happened in simulations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps.
    pub steps: u64,
    /// Events that devices sent.
    pub events: u64,
    /// Results that came, those that came again included.
    pub results: u64,
    /// Messages whose sender was told that they are there.
    pub acknowledged: u64,
    /// Messages that came again and were recognised.
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
    /// Operations of the disk that change anything.
    pub disk_operations: u64,
    /// What went wrong there.
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

/// What came of a simulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// All that happened, a line each.
    pub history: String,
    /// What was counted.
    pub counts: Counts,
    /// What was wrong.
    pub failure: Option<String>,
}

/// Runs a plan, with a defect if one is given.
pub fn run(plan: &Plan, defect: Option<Defect>) -> Outcome {
    let mut world = World::new(plan, defect);
    let failure = failure_of(|| world.run());
    Outcome { history: std::mem::take(&mut world.history), counts: world.counts, failure }
}

/// What goes wrong in a run, a panic included.
fn failure_of(run: impl FnOnce() -> Result<(), String>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
            Some(format!("a panic: {}", text.unwrap_or("without words")))
        }
    }
}
