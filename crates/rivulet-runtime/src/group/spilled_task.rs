//! The task of the silent queries of a group: their parameters are in memory, their state is on disk.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use rivulet_dataflow::{Address, Chain, Operator};

use crate::Task;
use crate::spill::alarms::Alarms;
use crate::spill::file::SpillFile;
use crate::spill::spilled::SpilledState;

/// The silent queries of a group.
pub(super) struct SpilledTask {
    pub(super) task: Arc<Task>,
    pub(super) alarms: Arc<Mutex<Alarms>>,
    pub(super) file: Arc<SpillFile>,
    /// The number of operators of the application.
    pub(super) operators: usize,
    /// The addresses of their state.
    pub(super) addresses: Vec<Option<Arc<Address>>>,
    pub(super) spilled: AtomicU64,
    pub(super) woken: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) lost: AtomicU64,
}

impl SpilledTask {
    pub(super) fn chain(
        file: &Arc<SpillFile>,
        operators: usize,
        addresses: &[Option<Arc<Address>>],
        alarms: &Arc<Mutex<Alarms>>,
    ) -> Chain {
        let state = |index| -> Box<dyn Operator> {
            Box::new(SpilledState::new(file.clone(), (index == 0).then(|| alarms.clone())))
        };
        Chain::new((0..operators).map(state).collect()).with_addresses(addresses.to_vec())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.alarms.lock().memory_bytes()
    }
}
