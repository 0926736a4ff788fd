//! The lifecycle of a query: one type for queries of applications and for big queries. Each variant holds what its
//! state keeps, and statements, the API and the metrics name the states of both kinds in the same words.
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
//! What must hold: whether a query is paused is kept until the query ends. So a query that fails or cannot be started
//! while it is paused is still paused when it can run again.

use std::convert::Infallible;

use rivulet_dataflow::Slot;

use crate::service::QueryState;

/// What a kind of query keeps in each state. A kind that never has a state keeps [`Infallible`] there.
pub(super) trait Kind {
    /// What a running query keeps.
    type Running: Clone;
    /// What remains of that while the query is paused.
    type Paused: Clone + From<Self::Running> + Into<Option<Self::Running>>;
    /// Why the query does not run.
    type Hindrance;
    /// What remains of the query after an error, and the error.
    type Failure;
    /// What a query keeps whose input has ended, while this is not saved yet: after a restart the end would not be
    /// known.
    type Ending;
    /// What a query keeps whose input has ended, once that is saved.
    type End;
}

/// The state of a query between its creation and its end.
#[derive(Clone, Debug)]
pub(super) enum Lifecycle<K: Kind> {
    /// Its events or rows are processed.
    Running(K::Running),
    /// A statement has paused the query.
    Paused(K::Paused),
    /// It cannot run now.
    NotRunning { why: K::Hindrance, is_paused: bool },
    /// An error has ended the query. It runs again when a user resumes it.
    Failed { failure: K::Failure, is_paused: bool },
    /// Its input has come to its end, and that is being saved.
    Ending(K::Ending),
    /// Its input has come to its end, and that is saved.
    Ended(K::End),
}

impl<K: Kind> Lifecycle<K> {
    /// The name of the state.
    pub(super) fn state(&self) -> QueryState {
        match self {
            Self::Running(_) | Self::Ending(_) => QueryState::Running,
            Self::Paused(_) => QueryState::Paused,
            Self::NotRunning { .. } => QueryState::NotRunning,
            Self::Failed { .. } => QueryState::Failed,
            Self::Ended(_) => QueryState::Ended,
        }
    }

    /// Whether a statement has paused the query and none has resumed it. The catalog records the same.
    pub(super) fn is_paused(&self) -> bool {
        match self {
            Self::Paused(_) => true,
            Self::NotRunning { is_paused, .. } | Self::Failed { is_paused, .. } => *is_paused,
            Self::Running(_) | Self::Ending(_) | Self::Ended(_) => false,
        }
    }

    /// The query was started: it runs, or is paused if it was paused before.
    pub(super) fn start(&mut self, running: K::Running) {
        *self = if self.is_paused() { Self::Paused(running.into()) } else { Self::Running(running) };
    }

    /// Pauses a running query.
    pub(super) fn pause(&mut self) {
        if let Self::Running(running) = self {
            *self = Self::Paused(running.clone().into());
        }
    }

    /// Resumes a paused query that still has what it needs to run.
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
    /// The log names the reason once for each query: reasons of a million queries would take too much memory.
    type Hindrance = ();
    type Failure = Infallible;
    type Ending = Infallible;
    type End = Infallible;
}

impl Lifecycle<Slotted> {
    /// The state of a query without a slot yet.
    pub(super) const fn without_slot(is_paused: bool) -> Self {
        Self::NotRunning { why: (), is_paused }
    }

    /// The slot of the query in the group of its application; `None` if the query cannot run.
    pub(super) fn slot(&self) -> Option<Slot> {
        match self {
            Self::Running(slot) | Self::Paused(slot) => Some(*slot),
            _ => None,
        }
    }

    /// The query has this slot from now on.
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
