//! A guest: the operators of a task of a flow that runs elsewhere. It is a flow of one task, so timers, refusals,
//! panics and reports are those of every task. What differs is in `task/guest.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_dataflow::stage::Stage;
use rivulet_dataflow::{Dataflow, NodeId, StageSnapshot, StateError};

use super::alignment::Alignment;
use super::exchange::Outputs;
use super::idleness::Idleness;
use super::inbox::FlowLimits;
use super::peer::Peer;
use super::pipe::{Frames, Pipe, Waker, Word, whole};
use super::reader::Partition;
use super::state::{FlowState, Phase};
use super::task::{FlowTask, FlowTaskParts, Operators};
use crate::pool::Pool;

/// The parts of a guest.
pub struct GuestParts {
    /// The name of the query, for messages.
    pub name: String,
    /// All operators of the query, as those of the flow that the guest works for.
    pub dataflow: Dataflow,
    /// The nodes of the stage.
    pub nodes: Vec<NodeId>,
    /// The instance of the stage.
    pub instance: usize,
    /// The inputs of the first operator; 0 if the stage begins with a source.
    pub inputs: usize,
    /// The partitions of that source, opened where the snapshot of [`Word::Begin`] says.
    pub partitions: Option<Vec<Partition>>,
    /// The bounds of its batches.
    pub limits: FlowLimits,
    /// What leads to the flow that it works for.
    pub pipe: Arc<dyn Pipe>,
    /// The snapshot of [`Word::Begin`].
    pub begins: StageSnapshot,
    /// The rows of [`Word::Begin`].
    pub rows_max: usize,
    /// The state before [`Word::Begin`].
    pub state: Frames,
}

/// Operators that run here for a task of a flow elsewhere. They stop when it is dropped.
pub struct Guest {
    state: Arc<FlowState>,
    task: Arc<FlowTask>,
}

impl Guest {
    /// Makes the task, and says that it has begun.
    ///
    /// # Errors
    /// The state is not that of these operators.
    pub(crate) fn start(parts: GuestParts, pool: &Arc<Pool>) -> Result<Self, StateError> {
        let GuestParts { name, dataflow, nodes, instance, inputs, partitions, limits, pipe, begins, rows_max, state } =
            parts;
        let operators = Operators::of(&Stage { nodes, instances: 1, inputs: Vec::new() }, &dataflow);
        let reads = partitions.is_some();
        // The second one stands for all other sources of the flow.
        let times = (Alignment::new([1]), Idleness::new(vec![0, 0]));
        let flow = Arc::new(FlowState::new(name, limits, times, 1));
        if reads {
            flow.turn(Phase::Paused);
        }
        let parts = FlowTaskParts {
            stage: 0,
            state: whole(operators.len(), state)?,
            operators,
            instance,
            worker: pool.place_flow(1).first().copied().unwrap_or(0),
            depth: 0,
            channels: (0..inputs).collect(),
            partitions,
            aligned: reads.then_some(0),
            letters: None,
            is_of_results: false,
            tap: None,
            outputs: Outputs::to(pipe.clone()),
            sink: None,
            guest: Some((pipe.clone(), rows_max)),
            restored: begins,
        };
        let task = FlowTask::new(parts, flow.clone(), pool.clone())?;
        let peer: Arc<dyn Peer> = task.clone();
        let _ = flow.tasks.set(vec![Arc::downgrade(&peer)]);
        // If nobody hears it, the task finds out.
        let _ = pipe.say(Word::Begun);
        pipe.flush();
        task.begin();
        Ok(Self { state: flow, task })
    }

    /// What wakes it when something has come by its pipe, or when there is room again.
    pub fn waker(&self) -> Waker {
        self.task.waker()
    }

    /// Whether its state is back with the flow, or it has failed and said so.
    pub fn has_ended(&self) -> bool {
        self.state.remaining.load(Ordering::Acquire) == 0
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.state.cancel();
    }
}
