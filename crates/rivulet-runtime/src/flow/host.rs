//! The operators of a task, here or elsewhere.
//!
//! A task that has moved keeps its *front*: the host that joins batches, merges watermarks and aligns barriers. What
//! the front would give to the operators goes through a [`Pipe`] to the *guest*, and what the guest gives leaves the
//! task here. So the flow knows nothing of the move.
//!
//! A move is a barrier of one task. To go out, the operators emit what they hold back and their state is sent; the
//! chain stays here until the guest says that it has begun. To come back, the guest gets the barrier [`LEAVE`]. No
//! other task takes part: this one is the only receiver of its inbox and the only sender of its outputs.
//!
//! What must hold: elements go to the guest only between [`Word::Begun`] and [`LEAVE`]. Until it has begun, nothing is
//! lost with it. Behind a barrier nothing is given before both its echo and its state have come.

use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rivulet_dataflow::stage::StageHost;
use rivulet_dataflow::{
    Chain, Clock, Element, OperatorError, PartitionState, StageSnapshot, StateError, StateFrame, Surroundings,
};

use super::idleness::SourceTime;
use super::pipe::{Frames, GuestFigures, Pipe, PipeError, Word, whole};
use super::state::Phase;

/// The last barrier that a guest gets: its state comes home, and it ends.
pub(super) const LEAVE: u64 = u64::MAX;

/// How far a move has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoveStep {
    /// The guest is wanted, or is about to begin. What is lost before it has begun costs nothing.
    #[default]
    Beginning,
    /// The guest runs the operators.
    Running,
    /// The state is on its way home.
    Returning,
    /// The operators run here again.
    Home,
}

/// Why a task does not move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// There is no such task.
    #[error("stage {0} has no task {1}")]
    Unknown(usize, usize),
    /// Sinks stay with the flow.
    #[error("stage {0} is a sink, and sinks stay on the server")]
    Sink(usize),
    /// Its refused rows go to a sink.
    #[error("the rows that stage {0} refuses go to a sink, so it stays on the server")]
    Letters(usize),
    /// It is away, or a move has begun.
    #[error("the task is away already")]
    Away,
    /// It is not away.
    #[error("the task is at home")]
    Home,
    /// It has ended.
    #[error("the task has ended")]
    Ended,
}

/// Where a task that was moved runs.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Its stage.
    pub stage: usize,
    /// Its instance.
    pub instance: usize,
    /// How far its move has come.
    pub step: MoveStep,
    /// Since when, microseconds since the epoch.
    pub since_us: i64,
    /// Rows that were sent to the guest.
    pub rows_sent: u64,
    /// What the guest has done, as it said last.
    pub figures: GuestFigures,
    /// For how long the guest has left unanswered what it must answer, microseconds.
    pub unanswered_us: Option<i64>,
    /// Of a source that comes home: where to open its partitions, for [`Flow::reopened`](super::Flow::reopened).
    pub reopens: Option<Vec<PartitionState>>,
    /// Why the move did not begin.
    pub why: Option<String>,
}

/// A host whose operators may be elsewhere.
pub(super) struct Host {
    front: StageHost,
    make: Box<dyn Fn() -> Chain + Send>,
    operators: usize,
    /// The guest, if the operators are elsewhere or about to be.
    pub(super) away: Option<Away>,
    /// Why the guest is lost.
    pub(super) lost: Option<String>,
}

/// What the front knows of its guest.
pub(super) struct Away {
    pub(super) pipe: Arc<dyn Pipe>,
    clock: Arc<dyn Clock>,
    /// The inputs of the first operator; none if it is a source.
    inputs: usize,
    pub(super) placement: Placement,
    /// Since when something is unanswered, on the steady clock.
    pub(super) unanswered_since_us: Option<i64>,
    /// The barrier that was given, until the task has been at it.
    given: Option<Given>,
    /// The barrier of a checkpoint at which the guest rests, or is about to; 0 if there is none.
    pub(super) rests_at: u64,
    pub(super) phase_told: Option<Phase>,
    pub(super) others_told: Option<i64>,
    /// Of an idle source.
    pub(super) reached: Option<SourceTime>,
    /// The lateness of its source, microseconds.
    pub(super) lateness_us: i64,
    arriving: Frames,
    /// What of its figures was counted already.
    pub(super) counted: GuestFigures,
}

/// A barrier that the guest is at, or is about to come to.
struct Given {
    barrier: u64,
    /// Whether it has come back, behind all output before it.
    is_back: bool,
    /// The state there.
    captured: Option<(StageSnapshot, Frames)>,
}

impl Given {
    fn is_answered(&self) -> bool {
        self.is_back && self.captured.is_some()
    }
}

impl Deref for Host {
    type Target = StageHost;

    fn deref(&self) -> &StageHost {
        &self.front
    }
}

impl DerefMut for Host {
    fn deref_mut(&mut self) -> &mut StageHost {
        &mut self.front
    }
}

impl Host {
    /// Makes a host from its front, which has its operators, and from what makes them anew: so many.
    pub(super) fn new(front: StageHost, operators: usize, make: impl Fn() -> Chain + Send + 'static) -> Self {
        Self { front, make: Box::new(make), operators, away: None, lost: None }
    }

    /// How far the move has come, if the operators are elsewhere or about to be.
    pub(super) fn step_of_move(&self) -> Option<MoveStep> {
        self.away.as_ref().map(|away| away.placement.step)
    }

    /// Whether the guest runs and waits at no barrier.
    pub(super) fn is_running(&self) -> bool {
        self.away.as_ref().is_some_and(Away::takes)
    }

    /// Whether elements may be given: at home always, otherwise one after the other, so that what has no room waits in
    /// the inbox.
    pub(super) fn wants(&self) -> bool {
        self.away.as_ref().is_none_or(|away| away.takes() && !self.front.has_work() && away.pipe.has_room())
    }

    /// Whether a step would do anything.
    pub(super) fn has_work(&self) -> bool {
        let Some(away) = &self.away else { return self.front.has_work() };
        self.lost.is_none() && !self.is_back() && (away.pipe.has_some() || self.gives())
    }

    /// Whether the guest is given an element now.
    fn gives(&self) -> bool {
        self.away.as_ref().is_some_and(|away| away.takes() && self.front.has_work() && away.pipe.has_room())
    }

    /// As [`StageHost::step`]. If the operators are elsewhere: takes what has come of them, and gives them one element.
    pub(super) fn step(&mut self, with: Surroundings<'_>, out: &mut dyn FnMut(Element)) -> Result<(), OperatorError> {
        if self.away.is_none() {
            return self.front.step(with, out);
        }
        let taken = self.take(out);
        self.note(taken);
        if self.lost.is_none()
            && self.gives()
            && let Some((input, element)) = self.front.take_next()?
        {
            let given = self.give_away(input, &element);
            self.note(given);
        }
        Ok(())
    }

    fn note(&mut self, done: Result<(), PipeError>) {
        self.lost = self.lost.take().or(done.err().map(|error| error.to_string()));
    }

    /// Takes all words and one element of the guest.
    fn take(&mut self, out: &mut dyn FnMut(Element)) -> Result<(), PipeError> {
        let Self { front, away: Some(away), .. } = self else { return Ok(()) };
        let mut has_come = false;
        while let Some(word) = away.pipe.heard()? {
            away.hear(word, front)?;
            has_come = true;
        }
        if let Some((_, element)) = away.pipe.take()? {
            // The word may be on its way still.
            away.begin(front);
            match (element, &mut away.given) {
                (Element::Barrier(number), Some(given)) if given.barrier == number => given.is_back = true,
                (Element::Barrier(_), _) => return Err(PipeError::Wrong("the guest has sent another barrier".into())),
                (element, _) => front.pass(element, out),
            }
            has_come = true;
        }
        if has_come {
            away.unanswered_since_us = None;
            if away.given.as_ref().is_some_and(|given| !given.is_answered()) {
                away.waits();
            }
        }
        if let Some(given) = away.given.as_ref().filter(|given| given.is_answered() && given.barrier != LEAVE) {
            front.pass(Element::Barrier(given.barrier), out);
        }
        Ok(())
    }

    fn give_away(&mut self, input: usize, element: &Element) -> Result<(), PipeError> {
        let Some(away) = &mut self.away else { return Ok(()) };
        match element {
            Element::Batch(batch) => {
                assert!(away.inputs > 0, "a source leaves with nothing that it has read");
                away.placement.rows_sent += batch.rows() as u64;
                return away.pipe.push(input, element);
            }
            // It is processed at home, where it is known what becomes of open windows.
            Element::End => return self.call_back(),
            Element::Barrier(number) => away.note(&Word::Barrier(*number)),
            _ => away.waits(),
        }
        (0..away.inputs).try_for_each(|input| away.pipe.push(input, element))
    }

    /// Sends the state to a guest. The operators have given all that they hold back.
    ///
    /// # Errors
    /// Why the operators stay here.
    pub(super) fn leave(
        &mut self,
        (pipe, rows_max, bytes_max): (Arc<dyn Pipe>, usize, usize),
        (placement, partitions, inputs): (Placement, Option<Vec<PartitionState>>, usize),
        clock: Arc<dyn Clock>,
    ) -> Result<(), String> {
        let bytes = self.front.memory_bytes();
        if bytes > bytes_max {
            return Err(format!("it has {bytes} bytes of state, and at most {bytes_max} move"));
        }
        let mut parts = 0;
        let snapshot = self.front.snapshot(rows_max, &mut |operator, part, frame| {
            parts += 1;
            pipe.say(Word::State { operator, part, frame }).map_err(|error| StateError::Mismatch(error.to_string()))
        });
        let snapshot = StageSnapshot { partitions, ..snapshot.map_err(|error| error.to_string())? };
        pipe.say(Word::Begin { parts, snapshot, rows_max }).map_err(|error| error.to_string())?;
        let placement = Placement { since_us: clock.now_us(), ..placement };
        self.away = Some(Away {
            unanswered_since_us: Some(clock.steady_us()),
            pipe,
            clock,
            inputs,
            placement,
            given: None,
            rests_at: 0,
            phase_told: None,
            others_told: None,
            reached: None,
            lateness_us: 0,
            arriving: Vec::new(),
            counted: GuestFigures::default(),
        });
        Ok(())
    }

    /// Asks the guest for the state. It runs and waits at no barrier.
    fn call_back(&mut self) -> Result<(), PipeError> {
        let Some(away) = &mut self.away else { return Ok(()) };
        away.note(&Word::Barrier(LEAVE));
        away.turn(MoveStep::Returning);
        match away.inputs {
            0 => away.pipe.say(Word::Barrier(LEAVE)),
            inputs => (0..inputs).try_for_each(|input| away.pipe.push(input, &Element::Barrier(LEAVE))),
        }
    }

    /// Asks the guest for the state, because the task is to come home. It runs and waits at no barrier.
    pub(super) fn come_back(&mut self) {
        let asked = self.call_back();
        self.note(asked);
    }

    /// Says a word to the guest.
    pub(super) fn say(&mut self, word: Word) {
        let said = self.away.as_ref().map_or(Ok(()), |away| away.pipe.say(word));
        self.note(said);
    }

    /// Whether the state and all output are here, so that the operators can come home.
    pub(super) fn is_back(&self) -> bool {
        let given = self.away.as_ref().and_then(|away| away.given.as_ref());
        given.is_some_and(|given| given.barrier == LEAVE && given.is_answered())
    }

    /// Goes on here with the state of the guest, which is back. Returns its placement.
    ///
    /// # Errors
    /// State of other operators.
    pub(super) fn come_home(&mut self) -> Result<Option<Placement>, StateError> {
        self.lost = None;
        let Some(mut away) = self.away.take() else { return Ok(None) };
        if let Some((snapshot, state)) = away.given.take().and_then(|given| given.captured) {
            self.front.exchange((self.make)());
            self.front.restore(&snapshot, &whole(self.operators, state)?)?;
        }
        away.turn(MoveStep::Home);
        Ok(Some(Placement { reopens: None, ..away.placement }))
    }

    /// As [`StageHost::snapshot`]; if the operators are elsewhere, with what has come of them, and the positions of
    /// their partitions.
    pub(super) fn snapshot(
        &mut self,
        rows_max: usize,
        into: &mut dyn FnMut(usize, usize, StateFrame) -> Result<(), StateError>,
    ) -> Result<StageSnapshot, StateError> {
        let Some(away) = &mut self.away else { return self.front.snapshot(rows_max, into) };
        let captured = away.given.take().and_then(|given| given.captured);
        let missing = || StateError::Mismatch("the state of the guest has not come".into());
        let (snapshot, state) = captured.ok_or_else(missing)?;
        state.into_iter().try_for_each(|(operator, part, frame)| into(operator, part, frame))?;
        Ok(snapshot)
    }

    /// As [`StageHost::give_up_barrier`].
    pub(super) fn give_up_barrier(&mut self) {
        self.away.iter_mut().for_each(|away| away.given = None);
        self.front.give_up_barrier();
    }

    /// As [`StageHost::tick`]. A guest has timers of its own.
    pub(super) fn tick(&mut self, with: Surroundings<'_>, out: &mut dyn FnMut(Element)) -> Result<(), OperatorError> {
        if self.away.is_some() { Ok(()) } else { self.front.tick(with, out) }
    }

    /// As [`StageHost::deadline_us`].
    pub(super) fn deadline_us(&self) -> Option<i64> {
        if self.away.is_some() { None } else { self.front.deadline_us() }
    }

    /// State held by the operators, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let away = self.away.as_ref().map_or(0, |away| away.placement.figures.state_bytes);
        self.front.memory_bytes() + usize::try_from(away).unwrap_or(usize::MAX)
    }
}

impl Away {
    /// Notes what the guest is told.
    pub(super) fn note(&mut self, word: &Word) {
        match word {
            Word::GoOn(_) => self.rests_at = 0,
            Word::Phase(phase) => self.phase_told = Some(*phase),
            Word::Others(time_us) => self.others_told = Some(*time_us),
            Word::Barrier(number) => {
                self.rests_at = *number;
                self.given = Some(Given { barrier: *number, is_back: false, captured: None });
                self.waits();
            }
            _ => {}
        }
    }

    /// Whether the guest takes elements.
    fn takes(&self) -> bool {
        self.placement.step == MoveStep::Running && self.given.is_none()
    }

    /// Something was given that is answered.
    fn waits(&mut self) {
        self.unanswered_since_us.get_or_insert_with(|| self.clock.steady_us());
    }

    fn turn(&mut self, step: MoveStep) {
        (self.placement.step, self.placement.since_us) = (step, self.clock.now_us());
    }

    /// The guest has begun. What is lost from now on is lost.
    fn begin(&mut self, front: &mut StageHost) {
        if self.placement.step == MoveStep::Beginning {
            front.exchange(Chain::new(Vec::new()));
            self.turn(MoveStep::Running);
        }
    }

    fn hear(&mut self, word: Word, front: &mut StageHost) -> Result<(), PipeError> {
        match (word, &mut self.given) {
            (Word::Begun, _) => self.begin(front),
            (Word::State { operator, part, frame }, _) => self.arriving.push((operator, part, frame)),
            (Word::Captured { barrier, parts, snapshot }, Some(given))
                if parts == self.arriving.len() && given.barrier == barrier =>
            {
                if barrier == LEAVE {
                    self.placement.reopens.clone_from(&snapshot.partitions);
                }
                given.captured = Some((snapshot, take(&mut self.arriving)));
            }
            (Word::Figures(figures), _) => self.placement.figures = figures,
            (Word::Reached(time), _) => self.reached = Some(time),
            (Word::Failed(why), _) => return Err(PipeError::Lost(why)),
            _ => return Err(PipeError::Wrong("the guest has said a word out of place".into())),
        }
        Ok(())
    }
}
