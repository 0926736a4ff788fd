//! How a task moves to a guest and back.

use std::sync::atomic::Ordering;

use super::moves::{Asked, Wish};
use super::{Core, FlowTask, SOURCES_READY};
use crate::flow::host::{LEAVE, MoveError, MoveStep, Placement};
use crate::flow::idleness::SourceTime;
use crate::flow::pipe::Word;
use crate::flow::reader::Reader;
use crate::flow::state::Phase;

impl FlowTask {
    /// See [`Flow::redirect`](crate::Flow::redirect).
    pub(in crate::flow) fn redirect(&self, wish: Wish) -> Result<(), MoveError> {
        // What its operators give comes back, and is written here.
        if self.writes && self.operators.nodes.is_empty() {
            return Err(MoveError::Sink(self.stage));
        }
        if self.letters.is_some() {
            return Err(MoveError::Letters(self.stage));
        }
        let mut asked = self.asked.lock();
        if asked.away().is_some() {
            return Err(MoveError::Away);
        }
        // Who ends looks at the wish behind this.
        if self.final_to() == u64::MAX {
            return Err(MoveError::Ended);
        }
        let ((stage, instance), since_us) = (self.place(), self.pool.clock.now_us());
        let placement = Some(Placement { stage, instance, since_us, ..Placement::default() });
        *asked = Asked { wish: Some(wish), placement, ..Asked::default() };
        self.is_moving.store(true, Ordering::Release);
        drop(asked);
        self.schedule();
        Ok(())
    }

    /// See [`Flow::bring_back`](crate::Flow::bring_back).
    pub(in crate::flow) fn bring_back(&self) -> Result<(), MoveError> {
        let mut asked = self.asked.lock();
        let (wish, away) = (asked.wish.take(), asked.away().ok_or(MoveError::Home)?);
        match wish {
            Some(Wish::Out(..)) => {
                away.step = MoveStep::Home;
                self.is_moving.store(false, Ordering::Release);
            }
            _ => asked.wish = Some(Wish::Back),
        }
        drop(asked);
        self.schedule();
        Ok(())
    }

    /// Asks something of a task that moves.
    pub(in crate::flow) fn ask(&self, asks: impl FnOnce(&mut Asked)) {
        asks(&mut self.asked.lock());
        self.schedule();
    }

    /// Where the task runs, if it was ever moved.
    pub(in crate::flow) fn placement(&self) -> Option<Placement> {
        let asked = self.asked.lock();
        let (placement, unanswered) = (asked.placement.clone()?, asked.unanswered.clone());
        // No lock is held while a pipe is asked, which has locks of its own.
        drop(asked);
        // An answer that waits until there is room for it has come in time.
        let unanswered = unanswered.filter(|(_, pipe)| !pipe.has_some());
        let unanswered_us = unanswered.map(|(since_us, _)| self.pool.clock.steady_us() - since_us);
        Some(Placement { unanswered_us, ..placement })
    }

    /// Goes on with a move, and tells the guest what it must know.
    pub(super) fn move_on(&self, core: &mut Core) -> Result<(), String> {
        if !self.is_moving.load(Ordering::Acquire) {
            return Ok(());
        }
        let has_begun = !matches!(core.stage.step_of_move(), None | Some(MoveStep::Beginning));
        match self.why_lost(core) {
            Some(why) if has_begun => return self.fail_as_crash(why),
            Some(why) => return self.stay(core, Some(why)),
            None => {}
        }
        if has_begun {
            self.follow(core);
        }
        while let Some(word) = self.news(core) {
            core.stage.tell(word);
        }
        if !self.may_come_home(core) {
            return Ok(());
        }
        if self.aligned.is_some() {
            let reopened = self.asked.lock().reopened.take();
            core.reader = Some(Reader::new(reopened.unwrap_or_default()));
            // What is durable of the reader before says nothing of this one.
            core.checkpoints.captured = 0;
        }
        self.stay(core, None)
    }

    /// Follows what the guest has told.
    fn follow(&self, core: &mut Core) {
        let reached_us = core.stage.front.reached_us();
        let Some(away) = &mut core.stage.away else { return };
        let (figures, counted) = (&away.placement.figures, &away.counted);
        let more = figures.refused.iter().zip(&counted.refused).map(|(now, before)| now.saturating_sub(*before));
        let mut own = self.figures.lock();
        own.refused.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        own.away_busy_us += figures.busy_us.saturating_sub(counted.busy_us);
        drop(own);
        if self.aligned.is_some() {
            self.counters.rows_in.fetch_add(figures.rows_in.saturating_sub(counted.rows_in), Ordering::Relaxed);
            if let Some(reader) = core.reader.take() {
                away.lateness_us = reader.lateness_us();
            }
            let active = || SourceTime::Active(reached_us.map_or(i64::MIN, |us| us.saturating_add(away.lateness_us)));
            let idle = away.reached.filter(|reached| matches!(reached, SourceTime::Idle(_)));
            self.note_reached(None, idle.unwrap_or_else(active));
        }
        away.counted = away.placement.figures.clone();
    }

    /// What the guest is to be told next.
    fn news(&self, core: &Core) -> Option<Word> {
        let away = core.stage.away.as_ref().filter(|away| away.placement.step == MoveStep::Running)?;
        let wanted = self.flow.barrier.wanted();
        let phase = match self.flow.phase() {
            // A sink has more than it has room for.
            Phase::Running if !self.flow.may_poll() => Phase::Paused,
            phase => phase,
        };
        // Before it goes on behind a barrier.
        if self.aligned.is_some() && away.phase_told != Some(phase) && !phase.ends() {
            return Some(Word::Phase(phase));
        }
        if away.rests_at != 0 && away.rests_at != wanted {
            return Some(Word::GoOn(away.rests_at));
        }
        let place = self.aligned?;
        if away.rests_at != wanted && core.checkpoints.lacks(wanted) && core.stage.is_running() {
            return Some(Word::Barrier(wanted));
        }
        away.reached.filter(|reached| matches!(reached, SourceTime::Idle(_)))?;
        let time_us = self.flow.idleness.time_us(place)?;
        // It answers by its watermark, and hears the next time then.
        let is_answered =
            |told_us: i64| core.stage.front.reached_us() >= Some(told_us.saturating_sub(away.lateness_us));
        let may_hear = away.others_told.is_none_or(|told_us| told_us < time_us && is_answered(told_us));
        may_hear.then_some(Word::Others(time_us))
    }

    /// Whether [`FlowTask::move_on`] has something to do.
    pub(super) fn moves_on(&self, core: &Core) -> bool {
        let moves_on = || self.why_lost(core).is_some() || self.may_come_home(core) || self.news(core).is_some();
        self.is_moving.load(Ordering::Acquire) && moves_on()
    }

    /// Why the guest is lost. It is not waited for if the flow ends before it has begun.
    fn why_lost(&self, core: &Core) -> Option<String> {
        let is_too_late = core.stage.step_of_move() == Some(MoveStep::Beginning) && self.flow.phase().ends();
        let lost = self.asked.lock().lost.clone().or_else(|| core.stage.lost.clone());
        lost.or_else(|| is_too_late.then(|| "the query is coming to its end".into()))
    }

    /// Whether a wanted move may begin: between two elements, and while no checkpoint is made, so that moves and
    /// checkpoints need not know of each other.
    pub(super) fn may_begin_move(&self, core: &Core) -> bool {
        if !self.is_moving.load(Ordering::Acquire) || self.flow.barrier.wanted() != 0 {
            return false;
        }
        match &self.asked.lock().wish {
            Some(Wish::Out(..)) => {
                // What a source has read is part of its position.
                let is_processed = self.aligned.is_none() || !core.stage.has_work();
                core.stage.away.is_none() && core.stage.front.is_between() && is_processed && !self.flow.phase().ends()
            }
            Some(Wish::Back) => core.stage.is_running(),
            None => core.stage.is_running() && self.is_over(core),
        }
    }

    /// Whether its source, which is read elsewhere, ends or has ended. It comes home for that.
    fn is_over(&self, core: &Core) -> bool {
        let has_ended = || core.stage.away.as_ref().is_some_and(|away| away.reached == Some(SourceTime::Ended));
        self.aligned.is_some() && (self.flow.phase().ends() || has_ended())
    }

    /// Whether the state is back, and so are its partitions if it is still to read any.
    fn may_come_home(&self, core: &Core) -> bool {
        let is_open = || self.aligned.is_none() || self.asked.lock().reopened.is_some();
        core.stage.is_back() && (self.is_over(core) || is_open())
    }

    /// Begins a wanted move, if it may begin now.
    pub(super) fn begin_move(&self, core: &mut Core) -> Result<(), String> {
        if !self.may_begin_move(core) {
            return Ok(());
        }
        let mut asked = self.asked.lock();
        let (wish, placement) = (asked.wish.take(), asked.placement.clone());
        drop(asked);
        let (Some(Wish::Out(pipe, rows_max, bytes_max)), Some(placement)) = (wish, placement) else {
            core.stage.tell(Word::Barrier(LEAVE));
            return Ok(());
        };
        self.run_stage(core, self.pool.clock.now_us(), |host, with, out| host.front.flush(with, out))?;
        let partitions = core.reader.as_mut().map(Reader::positions);
        // A checkpoint that was captured before does not have these positions.
        core.checkpoints.captured = 0;
        self.sources_at_us.store(i64::MAX, Ordering::Release);
        let clock = self.pool.clock.clone();
        let left = core.stage.leave((pipe, rows_max, bytes_max), (placement, partitions, self.inputs), clock);
        left.or_else(|why| self.stay(core, Some(why)))
    }

    /// What the guest had is lost, as in a crash.
    fn fail_as_crash(&self, why: String) -> Result<(), String> {
        self.flow.fail(why.clone(), true);
        Err(why)
    }

    /// The operators are at home, where they came back to or never left.
    fn stay(&self, core: &mut Core, why: Option<String>) -> Result<(), String> {
        if core.reader.is_some() {
            self.sources_at_us.store(SOURCES_READY, Ordering::Release);
        }
        core.stage.come_home().or_else(|error| self.fail_as_crash(error.to_string()))?;
        self.end_move(why);
        Ok(())
    }

    /// The task is at home, or has ended wherever it ran.
    pub(super) fn end_move(&self, why: Option<String>) {
        let mut asked = self.asked.lock();
        let (step, since_us) = (MoveStep::Home, self.pool.clock.now_us());
        let placement = asked.placement.take();
        let placement = placement.map(|placement| Placement { step, since_us, reopens: None, why, ..placement });
        *asked = Asked { placement, ..Asked::default() };
        self.is_moving.store(false, Ordering::Release);
    }

    /// Sends on what the guest is given, and notes how far the move is.
    pub(super) fn note_placement(&self, core: &Core) {
        let Some(away) = &core.stage.away else { return };
        away.pipe.flush();
        let mut asked = self.asked.lock();
        asked.placement = Some(away.placement.clone());
        asked.unanswered = away.unanswered_since_us.map(|since_us| (since_us, away.pipe.clone()));
    }
}
