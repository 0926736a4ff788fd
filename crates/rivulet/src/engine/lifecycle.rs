//! The lifecycle of a query: one type for queries of applications and for big queries. What a state keeps is in its
//! variant, and a statement, the API and the metrics tell both kinds in the same words.
//!
//! ```text
//!                  pause
//!      Running --------------> Paused
//!      |  ^  ^                 |  |
//!      |  |  +---- resume -----+  |
//!      |  +-- start -- NotRunning |      hinder: NotRunning
//!      |                  ^       |
//!      +--- error --------+-------+----> Failed
//!      +--- end of input ----> Ending -> Ended
//! ```
//!
//! What must hold: whether a query is paused outlives everything but its end, so a query that fails or cannot be
//! started while it is paused is paused when it is well again.

use std::convert::Infallible;

use rivulet_dataflow::Slot;

use crate::service::QueryState;

/// What a kind of query keeps in each state. A state that it never has keeps [`Infallible`].
pub(super) trait Kind {
    /// What it runs as.
    type Running: Clone;
    /// What is left of that while it is paused.
    type Paused: Clone + From<Self::Running> + Into<Option<Self::Running>>;
    /// Why it does not run.
    type Hindrance;
    /// What an error has left of it, and which error.
    type Failure;
    /// What has come to the end of its input, which a restart would not know.
    type Ending;
    /// The same when a restart knows.
    type End;
}

/// Where a query is between its creation and its end.
#[derive(Clone, Debug)]
pub(super) enum Lifecycle<K: Kind> {
    /// Its events or rows are processed.
    Running(K::Running),
    /// A statement has paused it.
    Paused(K::Paused),
    /// It cannot run now.
    NotRunning { why: K::Hindrance, is_paused: bool },
    /// An error has ended it; it runs again when somebody resumes it.
    Failed { failure: K::Failure, is_paused: bool },
    /// Its input has come to its end, and that is being saved.
    Ending(K::Ending),
    /// Its input has come to its end.
    Ended(K::End),
}

impl<K: Kind> Lifecycle<K> {
    /// The word for it.
    pub(super) fn state(&self) -> QueryState {
        match self {
            Self::Running(_) | Self::Ending(_) => QueryState::Running,
            Self::Paused(_) => QueryState::Paused,
            Self::NotRunning { .. } => QueryState::NotRunning,
            Self::Failed { .. } => QueryState::Failed,
            Self::Ended(_) => QueryState::Ended,
        }
    }

    /// Whether a statement has paused it and none has resumed it, as the catalog has it.
    pub(super) fn is_paused(&self) -> bool {
        match self {
            Self::Paused(_) => true,
            Self::NotRunning { is_paused, .. } | Self::Failed { is_paused, .. } => *is_paused,
            Self::Running(_) | Self::Ending(_) | Self::Ended(_) => false,
        }
    }

    /// It was started: it runs, or is paused if it was paused before.
    pub(super) fn start(&mut self, running: K::Running) {
        *self = if self.is_paused() { Self::Paused(running.into()) } else { Self::Running(running) };
    }

    /// Pauses one that runs.
    pub(super) fn pause(&mut self) {
        if let Self::Running(running) = self {
            *self = Self::Paused(running.clone().into());
        }
    }

    /// Resumes one that is paused and still has what it runs as.
    pub(super) fn resume(&mut self) {
        if let Self::Paused(paused) = self
            && let Some(running) = paused.clone().into()
        {
            *self = Self::Running(running);
        }
    }
}

/// A query of an application: it has a slot, or its values do not fit this version of its application.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slotted;

impl Kind for Slotted {
    type Running = Slot;
    type Paused = Slot;
    /// The log says it once for each query: a reason in memory for each of a million would be too much.
    type Hindrance = ();
    type Failure = Infallible;
    type Ending = Infallible;
    type End = Infallible;
}

impl Lifecycle<Slotted> {
    /// That of a query without a slot yet.
    pub(super) const fn without_slot(is_paused: bool) -> Self {
        Self::NotRunning { why: (), is_paused }
    }

    /// Its row in the group of its application; `None` if it cannot run.
    pub(super) fn slot(&self) -> Option<Slot> {
        match self {
            Self::Running(slot) | Self::Paused(slot) => Some(*slot),
            _ => None,
        }
    }

    /// It has this slot from now on.
    pub(super) fn move_to(&mut self, slot: Slot) {
        if let Self::Running(now) | Self::Paused(now) = self {
            *now = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_is_paused_stays_so_until_it_is_resumed() {
        let mut life = Lifecycle::<Slotted>::without_slot(true);
        assert_eq!((life.state(), life.slot()), (QueryState::NotRunning, None));
        life.resume();
        assert!(life.is_paused(), "there is nothing to resume");
        life.start(7);
        assert_eq!((life.state(), life.slot()), (QueryState::Paused, Some(7)));
        life.move_to(8);
        life.resume();
        assert_eq!((life.state(), life.slot()), (QueryState::Running, Some(8)));
        life.pause();
        life.pause();
        assert!(life.is_paused() && life.slot() == Some(8));
        assert_eq!(size_of::<Lifecycle<Slotted>>(), 8, "a million queries have one each");
    }
}
