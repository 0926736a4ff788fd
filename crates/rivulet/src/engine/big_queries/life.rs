//! The [lifecycle](Lifecycle) of a big query: what it keeps in each state, and how it goes from one state to the next.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::lifecycle::{Kind, Lifecycle};
use crate::run::Running;

/// The reason given for a query that has come to the end of its input.
const ENDS: &str = "it has come to the end of its input, and that is being saved";

/// The reason given for a query while another version of it is being started.
const IS_REPLACED: &str = "another version of it is being started";

/// The reason given for a query whose source has no room, because its sink takes nothing or it is too slow.
const HOLDS_UP: &str = "its queue is full, so the connection that it reads by waits, for 5 s at most while it takes \
                        nothing, and then it loses the newest messages; look at its sink, or pause it";

/// The kind of query that runs as a flow of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flowing;

/// The lifecycle of a big query.
pub(super) type Life = Lifecycle<Flowing>;

impl Kind for Flowing {
    type Running = Arc<Running>;
    /// `None` if the server was started since the pause: nothing is open then.
    type Paused = Option<Arc<Running>>;
    type Hindrance = Hindrance;
    type Failure = Failure;
    type Ending = Arc<Running>;
    type End = End;
}

/// Why a query does not run although no error has ended it.
#[derive(Clone, Debug)]
pub(super) enum Hindrance {
    /// The query could not be started. The start is tried again unless the query is paused.
    Problem(String),
    /// The query was closed for another version, which is being started.
    IsReplaced,
}

/// An error that has ended a query.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// Whether the catalog has the error.
    pub(super) is_noted: bool,
    /// The flow that failed, if it ran since the server started.
    flow: Option<Arc<Running>>,
}

/// The end of a query's input.
#[derive(Clone)]
pub(super) struct End {
    /// Where its result was written, if the result is no longer there.
    pub(super) result_is_elsewhere: Option<String>,
    /// The flow that ended, if it ran since the server started.
    flow: Option<Arc<Running>>,
}

impl Life {
    /// The state of a query in the catalog, before it is started.
    pub(super) fn stored(is_paused: bool, failure: Option<String>) -> Self {
        match failure {
            Some(reason) => Self::Failed { failure: Failure { reason, is_noted: true, flow: None }, is_paused },
            None if is_paused => Self::Paused(None),
            None => Self::NotRunning { why: Hindrance::Problem("it was not started yet".into()), is_paused },
        }
    }

    /// Its flow, if it was started and not closed.
    pub(super) fn flow(&self) -> Option<&Arc<Running>> {
        match self {
            Self::Running(flow) | Self::Ending(flow) => Some(flow),
            Self::Paused(flow) => flow.as_ref(),
            Self::Failed { failure, .. } => failure.flow.as_ref(),
            Self::Ended(end) => end.flow.as_ref(),
            Self::NotRunning { .. } => None,
        }
    }

    /// The same for a caller that closes it.
    pub(super) fn into_flow(self) -> Option<Arc<Running>> {
        self.flow().cloned()
    }

    /// Enters the state that its flow has reached by itself. If the query `has_line` of checkpoints, its end is still
    /// to be saved.
    pub(super) fn look(&mut self, has_line: bool) {
        let (Self::Running(flow) | Self::Paused(Some(flow))) = self else { return };
        let flow = flow.clone();
        match flow.flow().wait(Duration::ZERO) {
            None => {}
            Some(Err(error)) => {
                let failure = Failure { reason: error.0.replace("\nhint: ", "; "), is_noted: false, flow: Some(flow) };
                *self = Self::Failed { failure, is_paused: self.is_paused() };
            }
            Some(Ok(())) if has_line && !flow.was_stopped() => *self = Self::Ending(flow),
            Some(Ok(())) => self.end(),
        }
    }

    /// The error that prevents it from running.
    pub(super) fn problem(&self) -> &str {
        match self {
            Self::NotRunning { why: Hindrance::Problem(problem), .. } => problem,
            Self::Failed { failure, .. } => &failure.reason,
            _ => "",
        }
    }

    /// Why the query does not run, or what is wrong while it does.
    pub(super) fn reason(&self) -> Option<String> {
        match self {
            Self::Running(flow) => flow.holds_up_others().then(|| HOLDS_UP.to_owned()),
            Self::Paused(_) => None,
            Self::NotRunning { why: Hindrance::Problem(problem), is_paused: false } => {
                Some(format!("{problem}; it is tried again until it starts"))
            }
            Self::NotRunning { why: Hindrance::Problem(problem), is_paused: true } => Some(problem.clone()),
            Self::NotRunning { why: Hindrance::IsReplaced, .. } => Some(IS_REPLACED.to_owned()),
            Self::Failed { failure, .. } => Some(failure.reason.clone()),
            Self::Ending(_) => Some(ENDS.to_owned()),
            Self::Ended(end) => end.result_is_elsewhere.clone(),
        }
    }

    /// Whether the query should run, could not be started, and the start is tried again.
    pub(super) fn waits_to_start(&self) -> bool {
        matches!(self, Self::NotRunning { why: Hindrance::Problem(_), is_paused: false })
    }

    /// Whether its flow is that of `then`: the query was not started again since.
    pub(super) fn has_flow_of(&self, then: &Self) -> bool {
        self.flow().zip(then.flow()).is_some_and(|(now, then)| Arc::ptr_eq(now, then))
    }

    /// The query could not be started. A failed query keeps the reason of its failure.
    pub(super) fn hinder(&mut self, problem: String) {
        if !matches!(self, Self::Failed { .. }) {
            *self = Self::NotRunning { why: Hindrance::Problem(problem), is_paused: self.is_paused() };
        }
    }

    /// The query is closed, and another version of it will be started.
    pub(super) fn replace(&mut self) {
        *self = Self::NotRunning { why: Hindrance::IsReplaced, is_paused: self.is_paused() };
    }

    /// Forgets the flow of a failed query, so that it can be closed before another is started.
    pub(super) fn forget_flow(&mut self) {
        if let Self::Failed { failure, .. } = self {
            failure.flow = None;
        }
    }

    /// The error that has ended the query took back the rows that were written since the last checkpoint: the query is
    /// started again from there.
    pub(super) fn retry(&mut self) {
        if let Self::Failed { failure, is_paused } = self {
            let why = Hindrance::Problem(std::mem::take(&mut failure.reason));
            *self = Self::NotRunning { why, is_paused: *is_paused };
        }
    }

    /// An error has ended the query, and the catalog has the error. The caller closes what the query had open.
    pub(super) fn fail(&mut self, reason: String) {
        let failure = Failure { reason, is_noted: true, flow: None };
        *self = Self::Failed { failure, is_paused: self.is_paused() };
    }

    /// The catalog has the error that has ended the query.
    pub(super) fn note(&mut self) {
        if let Self::Failed { failure, .. } = self {
            failure.is_noted = true;
        }
    }

    /// The input has come to its end, and that is saved, if the query has checkpoints.
    pub(super) fn end(&mut self) {
        *self = Self::Ended(End { result_is_elsewhere: None, flow: self.flow().cloned() });
    }
}

/// The outcome of resuming a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Resumed {
    /// The query continued with its state, or was not paused.
    GoesOn,
    /// The query was started from its last checkpoint.
    FromCheckpoint(u64),
    /// The query was started anew.
    FromTheStart,
}

/// The outcome of starting a query.
pub(super) enum Started {
    Runs(Resumed, Arc<Running>),
    /// The query has come to the end of its input, which was not known before.
    HasEnded,
}

impl Started {
    /// Enters the outcome into the lifecycle of the query.
    pub(super) fn enter(self, life: &mut Life) {
        match self {
            Self::Runs(_, running) => life.start(running),
            Self::HasEnded => life.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::QueryState::{Ended, Failed, NotRunning, Paused};

    /// State, reason, whether it is paused, and whether it is tried again.
    fn told(life: &Life) -> (crate::service::QueryState, Option<String>, bool, bool) {
        (life.state(), life.reason(), life.is_paused(), life.waits_to_start())
    }

    #[test]
    fn what_happens_to_a_query_that_has_nothing_open_is_told_in_these_words() {
        let why = |text: &str| Some(text.to_owned());
        for is_paused in [false, true] {
            let mut life = Life::stored(is_paused, why("no disk"));
            life.hinder("no broker".into());
            assert_eq!(told(&life), (Failed, why("no disk"), is_paused, false), "the first reason stays");
            life.retry();
            let reason = if is_paused { "no disk" } else { "no disk; it is tried again until it starts" };
            assert_eq!(told(&life), (NotRunning, why(reason), is_paused, !is_paused));
            life.replace();
            assert_eq!(told(&life), (NotRunning, why(IS_REPLACED), is_paused, false), "by nobody else meanwhile");
            assert_eq!(life.problem(), "", "nothing is wrong");
            life.fail("no memory".into());
            assert_eq!(told(&life), (Failed, why("no memory"), is_paused, false));
            life.end();
            assert_eq!(told(&life), (Ended, None, false, false));
        }
        let mut life = Life::stored(true, None);
        assert_eq!(told(&life), (Paused, None, true, false));
        life.hinder("no broker".into());
        assert_eq!(told(&life), (NotRunning, why("no broker"), true, false), "until somebody resumes it");
        assert!(Life::stored(false, None).waits_to_start());
    }
}
