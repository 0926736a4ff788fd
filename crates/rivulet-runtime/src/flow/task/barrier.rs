//! What a task does at the barrier of a checkpoint, and when the checkpoint is durable.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rivulet_dataflow::{StageSnapshot, StatePart};

use super::checkpoints::Checkpoints;
use super::{Core, FlowTask, transactional};
use crate::flow::pipe::Word;
use crate::flow::reader::Reader;
use crate::flow::state::Phase;

/// How long the rows that wait in sources may take before the last checkpoint.
const LAST_ROWS_MAX: Duration = Duration::from_secs(3);

impl FlowTask {
    /// Checks whether another checkpoint has become durable. If so, the sink must commit it before anything else, by
    /// [`FlowTask::commit`].
    pub(super) fn go_on(&self, core: &mut Core) -> bool {
        let committed = self.flow.barrier.committed_barrier();
        let is_new = core.checkpoints.committed < committed && core.checkpoints.captured == committed;
        if is_new {
            core.checkpoints.committed = committed;
            core.checkpoints.committing = Some(self.flow.barrier.committed_checkpoint());
        }
        is_new
    }

    /// Lets the sink go on committing; returns whether it is done. Sources are told that the checkpoint is durable.
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
            core.reader.iter_mut().for_each(Reader::confirm);
            if self.aligned.is_some() && core.stage.is_running() {
                core.stage.tell(Word::Durable);
            }
            core.checkpoints.committing = None;
            self.final_to.store(core.checkpoints.committed, Ordering::Release);
        }
        Ok(is_done)
    }

    /// Makes the sink prepare, and then captures the state; returns whether both are done.
    pub(super) fn prepare(&self, core: &mut Core) -> Result<bool, String> {
        let Some(number) = core.stage.front.barrier() else { return Ok(true) };
        if self.guest.is_some() {
            return self.capture_as_guest(core, number).map(|()| true);
        }
        let Some(into) = self.flow.barrier.state_sink(number) else {
            // The checkpoint was abandoned, and sources go on.
            core.stage.give_up_barrier();
            return Ok(true);
        };
        let mut prepared = None;
        if let Some(sink) = &mut core.sink {
            let outcome = match sink.transactional() {
                Some(sink) => match self.flow.phase() == Phase::Closing {
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
            into.take(StatePart { node: self.operators.nodes[operator], instance: self.instance, part }, frame)
        };
        let captured = core.stage.snapshot(into.rows_max(), take).map(|snapshot| StageSnapshot {
            partitions: core.reader.as_mut().map(Reader::positions).or(snapshot.partitions),
            sink: prepared,
            ..snapshot
        });
        let Core { stage, outputs, .. } = core;
        stage.front.pass_barrier(&mut |element| outputs.tell(&element));
        self.flow.barrier.capture(number, self.place(), captured);
        Ok(true)
    }

    /// Whether the barrier of the last checkpoint waits for rows that nobody could read again. They are polled up to a
    /// limit: a source may still be sent rows.
    pub(super) fn takes_last_rows(&self, reader: &Reader, checkpoints: &mut Checkpoints) -> bool {
        if self.flow.phase() != Phase::Closing {
            checkpoints.last_rows_since = None;
            return false;
        }
        let waits = checkpoints.lacks(self.flow.barrier.wanted()) && reader.holds_rows();
        waits && checkpoints.last_rows_since.get_or_insert_with(Instant::now).elapsed() < LAST_ROWS_MAX
    }

    /// Whether its sink, if it has one, may be given rows: there is room, or a barrier is to pass that takes along what
    /// waits.
    pub(super) fn may_write(&self, core: &mut Core) -> bool {
        let Some(sink) = &core.sink else { return true };
        if sink.has_room() {
            self.note_room(core);
            return true;
        }
        let passes = sink.hands_over() && core.checkpoints.lacks(self.flow.barrier.wanted());
        if passes && !std::mem::replace(&mut core.is_overfull, true) {
            self.flow.overfull.fetch_add(1, Ordering::AcqRel);
        }
        passes
    }

    /// Its sink has room, or is gone.
    pub(super) fn note_room(&self, core: &mut Core) {
        if std::mem::take(&mut core.is_overfull) && self.flow.overfull.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.flow.wake_sources();
        }
    }

    /// Reports the end of this task to a checkpoint that waits for it.
    pub(super) fn end_barrier(&self) {
        self.flow.barrier.end(self.place());
    }
}
