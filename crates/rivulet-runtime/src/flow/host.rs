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
    #[error("stage {} has no task {}", .0 + 1, .1 + 1)]
    Unknown(usize, usize),
    /// Sinks stay with the flow.
    #[error("stage {} is a sink, and sinks stay on the server", .0 + 1)]
    Sink(usize),
    /// Its refused rows go to a sink.
    #[error("the rows that stage {} refuses go to a sink, so it stays on the server", .0 + 1)]
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
    pub(super) front: StageHost,
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
    /// The operators, until the guest has begun.
    kept: Chain,
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

/// Sends state along a pipe, in parts of up to `rows_max` rows. Returns their number, and the rest of the snapshot.
///
/// # Errors
/// State that cannot be exported, or the other half is lost.
pub(super) fn send_state(
    host: &StageHost,
    pipe: &dyn Pipe,
    rows_max: usize,
) -> Result<(usize, StageSnapshot), StateError> {
    let mut parts = 0;
    let snapshot = host.snapshot(rows_max, &mut |operator, part, frame| {
        parts += 1;
        pipe.say(Word::State { operator, part, frame }).map_err(|error| StateError::Mismatch(error.to_string()))
    })?;
    Ok((parts, snapshot))
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

    /// Whether the state and all output are here, so that the operators can come home.
    pub(super) fn is_back(&self) -> bool {
        let given = self.away.as_ref().and_then(|away| away.given.as_ref());
        given.is_some_and(|given| given.barrier == LEAVE && given.is_answered())
    }

    /// Whether elements may be given: at home always, otherwise one after the other, so that what has no room waits in
    /// the inbox.
    pub(super) fn wants(&self) -> bool {
        self.away.as_ref().is_none_or(|away| !self.front.has_work() && away.has_room())
    }

    /// Whether a step would do anything.
    pub(super) fn has_work(&self) -> bool {
        let Some(away) = &self.away else { return self.front.has_work() };
        let gives = || self.front.has_work() && away.has_room();
        self.lost.is_none() && !self.is_back() && (away.pipe.has_some() || gives())
    }

    /// As [`StageHost::step`]. If the operators are elsewhere: takes what has come of them, and gives them one element.
    pub(super) fn step(&mut self, with: Surroundings<'_>, out: &mut dyn FnMut(Element)) -> Result<(), OperatorError> {
        let Some(away) = &mut self.away else { return self.front.step(with, out) };
        let done = away.step(&mut self.front, out);
        self.note(done);
        Ok(())
    }

    /// Tells the guest a word.
    pub(super) fn tell(&mut self, word: Word) {
        if let Some(away) = &mut self.away {
            let done = away.tell(word);
            self.note(done);
        }
    }

    fn note(&mut self, done: Result<(), PipeError>) {
        self.lost = self.lost.take().or(done.err().map(|error| error.to_string()));
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
        let sent = send_state(&self.front, &*pipe, rows_max);
        let (parts, snapshot) = sent.map_err(|error| error.to_string())?;
        let snapshot = StageSnapshot { partitions, ..snapshot };
        pipe.say(Word::Begin { parts, snapshot, rows_max }).map_err(|error| error.to_string())?;
        self.away = Some(Away {
            unanswered_since_us: Some(clock.steady_us()),
            pipe,
            clock,
            inputs,
            kept: self.front.exchange(Chain::new(Vec::new())),
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

    /// Goes on here: with the state of the guest, which is back, or with the operators that a guest never had.
    ///
    /// # Errors
    /// State of other operators.
    pub(super) fn come_home(&mut self) -> Result<(), StateError> {
        self.lost = None;
        let Some(away) = self.away.take() else { return Ok(()) };
        let Some((snapshot, state)) = away.given.and_then(|given| given.captured) else {
            self.front.exchange(away.kept);
            return Ok(());
        };
        self.front.exchange((self.make)());
        self.front.restore(&snapshot, &whole(self.operators, state)?)
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

    /// State held by the operators, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let away = self.away.as_ref().map_or(0, |away| away.placement.figures.state_bytes);
        self.front.memory_bytes() + usize::try_from(away).unwrap_or(usize::MAX)
    }
}

impl Given {
    fn is_answered(&self) -> bool {
        self.is_back && self.captured.is_some()
    }
}

impl Away {
    /// Whether the guest takes elements.
    fn takes(&self) -> bool {
        self.placement.step == MoveStep::Running && self.given.is_none()
    }

    /// Whether the guest takes elements, and there is room for one.
    fn has_room(&self) -> bool {
        self.takes() && self.pipe.has_room()
    }

    /// Something was given that is answered.
    fn waits(&mut self) {
        self.unanswered_since_us.get_or_insert_with(|| self.clock.steady_us());
    }

    fn turn(&mut self, step: MoveStep) {
        (self.placement.step, self.placement.since_us) = (step, self.clock.now_us());
    }

    /// Takes all words and one element of the guest, and gives it one element.
    fn step(&mut self, front: &mut StageHost, out: &mut dyn FnMut(Element)) -> Result<(), PipeError> {
        let mut has_come = false;
        while let Some(word) = self.pipe.heard()? {
            self.hear(word)?;
            has_come = true;
        }
        if let Some((_, element)) = self.pipe.take()? {
            // The word may be on its way still.
            self.begin();
            match (element, &mut self.given) {
                (Element::Barrier(number), Some(given)) if given.barrier == number => given.is_back = true,
                (Element::Barrier(_), _) => return Err(PipeError::Wrong("the guest has sent another barrier".into())),
                (element, _) => front.pass(element, out),
            }
            has_come = true;
        }
        let owes = self.given.as_ref().is_some_and(|given| !given.is_answered());
        if has_come {
            self.unanswered_since_us = owes.then(|| self.clock.steady_us());
        }
        match &self.given {
            Some(given) if !owes && given.barrier != LEAVE => front.pass(Element::Barrier(given.barrier), out),
            None if front.has_work() && self.has_room() => return self.give(front),
            _ => {}
        }
        Ok(())
    }

    fn hear(&mut self, word: Word) -> Result<(), PipeError> {
        match (word, &mut self.given) {
            (Word::Begun, _) => self.begin(),
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

    /// The guest has begun. What is lost from now on is lost.
    fn begin(&mut self) {
        if self.placement.step == MoveStep::Beginning {
            self.kept = Chain::new(Vec::new());
            self.turn(MoveStep::Running);
        }
    }

    /// Gives the guest the next element.
    fn give(&mut self, front: &mut StageHost) -> Result<(), PipeError> {
        let next = front.take_next().map_err(|error| PipeError::Wrong(error.to_string()))?;
        let Some((input, element)) = next else { return Ok(()) };
        match &element {
            Element::Batch(batch) => {
                assert!(self.inputs > 0, "a source leaves with nothing that it has read");
                self.placement.rows_sent += batch.rows() as u64;
                return self.pipe.push(input, &element);
            }
            // It is processed at home, where it is known what becomes of open windows.
            Element::End => return self.tell(Word::Barrier(LEAVE)),
            Element::Barrier(number) => return self.tell(Word::Barrier(*number)),
            _ => self.waits(),
        }
        self.give_all(&element)
    }

    fn give_all(&self, element: &Element) -> Result<(), PipeError> {
        (0..self.inputs).try_for_each(|input| self.pipe.push(input, element))
    }

    /// Tells the guest a word. A barrier goes along its inputs, if it has any; behind [`LEAVE`] it comes home.
    fn tell(&mut self, word: Word) -> Result<(), PipeError> {
        match word {
            Word::Barrier(barrier) => {
                self.given = Some(Given { barrier, is_back: false, captured: None });
                self.waits();
                match barrier {
                    LEAVE => self.turn(MoveStep::Returning),
                    barrier => self.rests_at = barrier,
                }
                if self.inputs > 0 {
                    return self.give_all(&Element::Barrier(barrier));
                }
            }
            Word::GoOn(_) => self.rests_at = 0,
            Word::Phase(phase) => self.phase_told = Some(phase),
            Word::Others(time_us) => self.others_told = Some(time_us),
            _ => {}
        }
        self.pipe.say(word)
    }
}
