//! How a task comes to the barrier of a checkpoint, and how it goes on where another run was.

use std::sync::atomic::Ordering;

use rivulet_dataflow::{Element, StateSelection};

use super::{Core, FlowTask, transactional};
use crate::flow::checkpoint::Captured;
use crate::flow::feed::Feed;
use crate::flow::inbox::Message;
use crate::flow::watermark::Watermarks;

/// What a task knows of checkpoints.
pub(super) struct Checkpoints {
    /// The newest barrier that has come by each channel.
    came: Vec<u64>,
    /// The newest barrier at which it has captured its state.
    captured: u64,
    /// That for which its sink prepares.
    preparing: Option<u64>,
    /// The newest of which its sink was told to make the checkpoint final, and the number of that checkpoint while
    /// the sink is still at it.
    committed: u64,
    committing: Option<u64>,
    /// How it begins; nothing once it has.
    begins: Option<Begin>,
}

/// Where another run was.
struct Begin {
    reached_us: Option<i64>,
    has_ended: bool,
}

impl Checkpoints {
    pub(super) fn new(channels: usize, reached_us: Option<i64>, has_ended: bool) -> Self {
        let begins = (reached_us.is_some() || has_ended).then_some(Begin { reached_us, has_ended });
        Self { came: vec![0; channels], captured: 0, preparing: None, committed: 0, committing: None, begins }
    }

    /// A barrier has come by a channel.
    pub(super) fn came_by(&mut self, channel: usize, number: u64) {
        self.came[channel] = number;
    }

    /// The barrier that has come by all channels that are open, if its state was not captured there.
    pub(super) fn complete(&self, watermarks: &Watermarks) -> Option<u64> {
        let open = (0..self.came.len()).filter(|&channel| !watermarks.is_ended(channel));
        open.map(|channel| self.came[channel]).min().filter(|&number| number > self.captured)
    }

    pub(super) fn is_preparing(&self) -> bool {
        self.preparing.is_some()
    }

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
    /// Whether sources are to rest.
    pub(super) fn is_resting(&self) -> bool {
        self.flow.barrier.wanted() != 0
    }

    /// What is to be done before anything else: going on where another run was, and making final what a checkpoint has.
    pub(super) fn go_on(&self, core: &mut Core) -> Result<(), String> {
        if let Some(Begin { reached_us, has_ended }) = core.checkpoints.begins.take() {
            let now_us = self.host.clock.now_us();
            // Operators know how far time is before the first row comes, and so do those behind them.
            if reached_us.is_some() {
                match &mut core.feed {
                    Some(feed) => feed.begin_at(reached_us),
                    None => core.watermarks.begin_at(reached_us),
                }
                self.watermark(core, reached_us, now_us)?;
            }
            if has_ended {
                core.outputs.tell(&Message::End);
                core.has_ended = true;
                return Ok(());
            }
        }
        let committed = self.flow.barrier.committed_barrier();
        if core.checkpoints.committed < committed && core.checkpoints.captured == committed {
            core.checkpoints.committed = committed;
            core.checkpoints.committing = Some(self.flow.barrier.committed_checkpoint());
            self.commit(core)?;
        }
        Ok(())
    }

    /// Looks whether the sink has made final what it was told to; whether nothing is left of that.
    pub(super) fn commit(&self, core: &mut Core) -> Result<bool, String> {
        let Some(epoch) = core.checkpoints.committing else { return Ok(true) };
        let is_done = transactional(&mut core.sink).map_or(Ok(true), |sink| sink.commit(epoch));
        let is_done = is_done.map_err(|error| error.0)?;
        if is_done {
            core.checkpoints.committing = None;
            self.final_to.store(core.checkpoints.committed, Ordering::Release);
        }
        Ok(is_done)
    }

    /// A task of sources rests, behind its barrier.
    pub(super) fn rest(&self, core: &mut Core, now_us: i64) -> Result<Option<usize>, String> {
        let wanted = self.flow.barrier.wanted();
        if core.checkpoints.lacks(wanted) && !core.checkpoints.is_preparing() {
            self.reach_barrier(core, wanted, now_us)?;
        }
        Ok(None)
    }

    /// All rows before the barrier have come, and none behind it.
    pub(super) fn reach_barrier(&self, core: &mut Core, number: u64, now_us: i64) -> Result<(), String> {
        self.process(core, 0, Element::Barrier(number), now_us)?;
        core.checkpoints.preparing = Some(number);
        self.prepare(core).map(drop)
    }

    /// Has the sink prepare, and then captures what there is; whether that was done.
    pub(super) fn prepare(&self, core: &mut Core) -> Result<bool, String> {
        let Some(number) = core.checkpoints.preparing else { return Ok(true) };
        if self.flow.barrier.wanted() != number {
            // It was given up, and sources go on.
            core.checkpoints.preparing = None;
            return Ok(true);
        }
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
        core.checkpoints.preparing = None;
        core.checkpoints.captured = number;
        let frames = core.chain.export_state(&StateSelection::All);
        let captured = frames.map(|frames| Captured {
            partitions: core.feed.as_mut().map(Feed::positions),
            sink: prepared,
            frames,
            reached_us: core.reached_us(),
            has_ended: false,
        });
        core.outputs.tell(&Message::Barrier(number));
        self.flow.barrier.capture(number, self.place(), captured);
        Ok(true)
    }

    /// Its end, for those who wait for it at a barrier.
    pub(super) fn end_barrier(&self) {
        self.flow.barrier.end(self.place());
    }
}
