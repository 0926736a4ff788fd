//! What happened in simulations.

use std::ops::AddAssign;

use crate::disk::DiskFaults;

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
    /// How often it was stopped, or a burst worker was killed.
    pub stops: u64,
    /// How often its process was killed.
    pub kills: u64,
    /// How often power was lost.
    pub power_losses: u64,
    /// Connections that were lost.
    pub disconnects: u64,
    /// Queries that were created, altered, paused and resumed while others ran; tasks that moved.
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
