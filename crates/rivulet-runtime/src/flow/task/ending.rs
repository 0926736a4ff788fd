//! How a task comes to its end: well, when nothing will follow; or because the flow has failed or is not wanted any more.

use std::sync::atomic::Ordering;

use rivulet_dataflow::{Chain, Element};

use super::{Core, FlowTask};
use crate::flow::exchange::Outputs;
use crate::flow::inbox::Message;

impl FlowTask {
    /// The end: what is open comes out, unless the flow was stopped and what is open is not wanted.
    pub(super) fn end(&self, core: &mut Core, now_us: i64) -> Result<(), String> {
        if core.has_ended || core.is_finishing {
            return Ok(());
        }
        let is_wanted = !self.flow.stopping.load(Ordering::Acquire) || self.flow.drains.load(Ordering::Acquire);
        if is_wanted && !core.is_ending {
            core.is_ending = true;
            self.process_once(core, 0, Element::End, now_us)?;
        }
        // A task with a queue goes on with it when there is room for more.
        core.is_unfinished = core.chain.has_more() && core.feed.is_none();
        if core.is_unfinished {
            return Ok(());
        }
        while core.chain.has_more() {
            self.run_chain(core, |chain, slots, refusals, take| chain.go_on(now_us, slots, refusals, take))?;
        }
        core.is_finishing = true;
        Self::complete(core)
    }

    /// The end of the end: once the sink is done, which may have to wait for others.
    pub(super) fn complete(core: &mut Core) -> Result<(), String> {
        if core.has_ended {
            return Ok(());
        }
        let is_done = core.sink.as_mut().map_or(Ok(true), |sink| sink.finish()).map_err(|error| error.0)?;
        if is_done {
            core.outputs.tell(&Message::End);
            core.has_ended = true;
        }
        Ok(())
    }

    /// The end, well or not: sources are closed, state and what was not written are given up.
    pub(super) fn let_go(&self, core: &mut Core) {
        core.has_ended = true;
        self.final_to.store(u64::MAX, Ordering::Release);
        let mut figures = self.figures.lock();
        figures.progress = core.feed.take().and_then(|feed| feed.progress());
        figures.state_bytes = 0;
        drop(figures);
        core.pending.clear();
        core.is_unfinished = false;
        core.advancing_us = None;
        core.chain = Chain::new(Vec::new());
        core.sink = None;
        core.outputs = Outputs::default();
        self.inbox.clear();
        self.note_reached(None);
        self.host.flow_deadlines.set(self.deadline, i64::MAX);
        self.end_barrier();
        self.flow.task_ended();
    }
}
