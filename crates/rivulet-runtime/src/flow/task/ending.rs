//! How a task ends: when its input has ended, or because the flow has failed or was cancelled.

use std::sync::atomic::Ordering;

use rivulet_dataflow::Chain;
use rivulet_dataflow::stage::StageHost;

use super::{Core, FlowTask};
use crate::flow::exchange::Outputs;
use crate::flow::host::Host;
use crate::flow::idleness::SourceTime;

impl FlowTask {
    /// The operators have emitted everything: the sink makes its result final, unless it has done so before.
    pub(super) fn finish(core: &mut Core) {
        core.has_ended |= core.had_ended;
        core.is_finishing |= !core.had_ended;
    }

    /// The last step, once the sink is done, which may have to wait for others.
    pub(super) fn complete(core: &mut Core) -> Result<(), String> {
        if !core.has_ended {
            core.has_ended = core.sink.as_mut().map_or(Ok(true), |sink| sink.finish()).map_err(|error| error.0)?;
        }
        Ok(())
    }

    /// Releases everything at the end, regular or not: closes sources, and drops state and what was not written.
    pub(super) fn let_go(&self, core: &mut Core) {
        core.has_ended = true;
        self.final_to.store(u64::MAX, Ordering::Release);
        let mut figures = self.figures.lock();
        figures.progress = core.reader.take().and_then(|reader| reader.progress());
        figures.state_bytes = 0;
        drop(figures);
        core.stage = Host::new(StageHost::new(Chain::new(Vec::new()), Vec::new(), 0), 0, || Chain::new(Vec::new()));
        self.end_move(None);
        core.sink = None;
        self.note_room(core);
        core.outputs = Outputs::default();
        self.inbox.clear();
        self.note_reached(None, SourceTime::Ended);
        self.pool.flow_deadlines.set(self.deadline, i64::MAX);
        self.end_barrier();
        self.flow.task_ended();
    }
}
