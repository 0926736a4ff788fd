//! What a task does at the barrier of a checkpoint, and when the checkpoint is durable.

use std::sync::atomic::Ordering;

use rivulet_dataflow::{StageSnapshot, StatePart};

use super::{Core, FlowTask, transactional};
use crate::flow::feed::Feed;

/// What a task knows of checkpoints.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// The newest barrier at which it has captured its state.
    captured: u64,
    /// The newest of which its sink was told to make the checkpoint final, and the number of that checkpoint while
    /// the sink is still at it.
    committed: u64,
    committing: Option<u64>,
}

impl Checkpoints {
    /// Whether its sink makes a checkpoint final, so that nothing may be written yet.
    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    /// Whether its state has yet to be captured at this barrier, the newest.
    pub(super) fn lacks(&self, wanted: u64) -> bool {
        self.captured < wanted
    }

    /// Whether its state was captured at this barrier, the newest.
    pub(super) fn has_captured(&self, wanted: u64) -> bool {
        wanted != 0 && self.captured == wanted
    }
}

impl FlowTask {
    /// Looks whether a checkpoint is durable since it was looked last: what it has is to be made final before anything
    /// else, by [`FlowTask::commit`].
    pub(super) fn go_on(&self, core: &mut Core) -> bool {
        let committed = self.flow.barrier.committed_barrier();
        let is_new = core.checkpoints.committed < committed && core.checkpoints.captured == committed;
        if is_new {
            core.checkpoints.committed = committed;
            core.checkpoints.committing = Some(self.flow.barrier.committed_checkpoint());
        }
        is_new
    }

    /// Looks whether the sink has made final what it was told to; whether nothing is left of that.
    pub(super) fn commit(&self, core: &mut Core) -> Result<bool, String> {
        let Some(epoch) = core.checkpoints.committing else { return Ok(true) };
        // Where the query goes on after a crash is up to the sink of its results. What else it writes is final behind
        // these, or it would come twice.
        if self.writes && !self.is_of_results && !self.flow.has_final_results(core.checkpoints.committed) {
            return Ok(false);
        }
        let is_done = transactional(&mut core.sink).map_or(Ok(true), |sink| sink.commit(epoch));
        let is_done = is_done.map_err(|error| error.0)?;
        if is_done {
            core.checkpoints.committing = None;
            self.final_to.store(core.checkpoints.committed, Ordering::Release);
        }
        Ok(is_done)
    }

    /// Has the sink prepare, and then captures what there is; whether that was done.
    pub(super) fn prepare(&self, core: &mut Core) -> Result<bool, String> {
        let Some(number) = core.stage.barrier() else { return Ok(true) };
        let Some(into) = self.flow.barrier.state_sink(number) else {
            // The checkpoint was given up, and sources go on.
            core.stage.give_up_barrier();
            return Ok(true);
        };
        let mut prepared = None;
        if let Some(sink) = &mut core.sink {
            let outcome = match sink.transactional() {
                Some(sink) => match self.flow.closing.load(Ordering::Acquire) {
                    true => sink.close().and_then(|()| sink.prepare()),
                    false => sink.prepare(),
                },
                None => sink.drain().map(|is_done| is_done.then(String::new)),
            };
            prepared = outcome.map_err(|error| error.0)?;
            if prepared.is_none() {
                return Ok(false);
            }
        }
        core.checkpoints.captured = number;
        let take = &mut |operator: usize, part, frame| {
            into.take(StatePart { node: self.nodes[operator], instance: self.instance, part }, frame)
        };
        let captured = core.stage.snapshot(into.rows_max(), take).map(|snapshot| StageSnapshot {
            partitions: core.feed.as_mut().map(Feed::positions),
            sink: prepared,
            ..snapshot
        });
        let Core { stage, outputs, .. } = core;
        stage.pass_barrier(&mut |element| outputs.tell(&element));
        self.flow.barrier.capture(number, self.place(), captured);
        Ok(true)
    }

    /// Its end, for those who wait for it at a barrier.
    pub(super) fn end_barrier(&self) {
        self.flow.barrier.end(self.place());
    }
}
