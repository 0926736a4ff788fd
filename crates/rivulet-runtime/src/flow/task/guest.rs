//! A guest: a task that runs the operators of a task of a flow elsewhere. Elements come to it by a pipe, and leave by
//! it.

use std::sync::atomic::Ordering;

use rivulet_dataflow::{Element, StageSnapshot};

use super::{Core, FlowTask};
use crate::flow::host::{LEAVE, send_state};
use crate::flow::idleness::SourceTime;
use crate::flow::pipe::{GuestFigures, PipeError, Word};
use crate::flow::reader::Reader;

/// How often a guest says what it has done, at most.
const FIGURES_PERIOD_US: i64 = 500_000;

/// The place of all other sources in the idleness of a guest, which is alone in its flow.
const OTHERS: usize = 1;

impl FlowTask {
    /// Does what the flow says that the guest works for.
    pub(super) fn hear_as_guest(&self, core: &mut Core) -> Result<(), String> {
        let Some((pipe, _)) = &self.guest else { return Ok(()) };
        // A source answers each barrier that it has heard of, before it hears what became of it.
        while !(core.reader.is_some() && core.checkpoints.lacks(self.flow.barrier.wanted()))
            && let Some(word) = pipe.heard().map_err(text)?
        {
            match word {
                Word::Barrier(number) => self.flow.barrier.rest_at(number),
                Word::GoOn(number) => {
                    core.checkpoints.gone_on = number;
                    if self.flow.barrier.wanted() == number {
                        self.flow.barrier.lower();
                    }
                }
                Word::Durable => core.reader.iter_mut().for_each(Reader::confirm),
                Word::Phase(phase) => self.flow.turn(phase),
                Word::Others(time_us) => {
                    let _ = self.flow.idleness.reached(OTHERS, SourceTime::Active(time_us));
                }
                _ => return Err("the flow has said a word out of place".into()),
            }
        }
        Ok(())
    }

    /// Gives the stage what has come by the pipe. Returns the number of rows, or `None` if nothing has.
    pub(super) fn give_of_pipe(&self, core: &mut Core, rows_max: usize) -> Result<Option<usize>, String> {
        let Some((pipe, _)) = &self.guest else { return Ok(None) };
        let mut given = None;
        while given < Some(self.flow.limits.batch_rows.min(rows_max))
            && let Some((channel, element)) = pipe.take().map_err(text)?
        {
            let rows = if let Element::Batch(batch) = &element { batch.rows() } else { 0 };
            given = Some(given.unwrap_or(0) + rows);
            core.stage.front.give(channel, element);
        }
        self.counters.rows_in.fetch_add(given.unwrap_or(0) as u64, Ordering::Relaxed);
        Ok(given)
    }

    /// Sends the state at a barrier, and the barrier behind it. Timers rest until the flow goes on, since their output
    /// would count twice; behind the last barrier the guest ends.
    pub(super) fn capture_as_guest(&self, core: &mut Core, number: u64) -> Result<(), String> {
        let Some((pipe, rows_max)) = &self.guest else { return Ok(()) };
        let sent = send_state(&core.stage.front, &**pipe, *rows_max);
        let (parts, snapshot) = sent.map_err(|error| error.to_string())?;
        let snapshot = StageSnapshot { partitions: core.reader.as_mut().map(Reader::positions), ..snapshot };
        core.checkpoints.captured = number;
        if number > core.checkpoints.gone_on {
            self.flow.barrier.rest_at(number);
        }
        pipe.say(Word::Figures(self.guest_figures(core))).map_err(text)?;
        pipe.say(Word::Captured { barrier: number, parts, snapshot }).map_err(text)?;
        core.has_ended = number == LEAVE;
        let Core { stage, outputs, .. } = core;
        stage.front.pass_barrier(&mut |element| outputs.tell(&element));
        Ok(())
    }

    /// Says now and then what it has done, how far an idle source is, and sends on what it has given.
    pub(super) fn tell_as_guest(&self, core: &mut Core) -> Result<(), String> {
        let Some((pipe, _)) = &self.guest else { return Ok(()) };
        let now_us = self.pool.clock.steady_us();
        if now_us - core.told_at_us >= FIGURES_PERIOD_US && !core.has_ended {
            core.told_at_us = now_us;
            pipe.say(Word::Figures(self.guest_figures(core))).map_err(text)?;
        }
        let is_told = |time: Option<SourceTime>| matches!(time, Some(SourceTime::Idle(_) | SourceTime::Ended));
        let reached = core.reader.as_ref().map(Reader::reached);
        let told = std::mem::replace(&mut core.told_reached, reached);
        if let Some(time) = reached.filter(|_| reached != told && (is_told(reached) || is_told(told))) {
            pipe.say(Word::Reached(time)).map_err(text)?;
        }
        pipe.flush();
        Ok(())
    }

    fn guest_figures(&self, core: &Core) -> GuestFigures {
        GuestFigures {
            rows_in: self.counters.rows_in.load(Ordering::Relaxed),
            rows_out: self.counters.rows_out.load(Ordering::Relaxed),
            busy_us: self.times.busy_us.load(Ordering::Relaxed),
            state_bytes: core.stage.memory_bytes() as u64,
            refused: self.figures.lock().refused,
        }
    }
}

fn text(error: PipeError) -> String {
    error.to_string()
}
