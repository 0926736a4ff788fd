//! What a task knows of moves: as one that moves, and as a guest.

use std::sync::Arc;

use crate::flow::host::{MoveStep, Placement};
use crate::flow::pipe::Pipe;
use crate::flow::reader::Partition;

/// What is asked of a task that is to move, or has.
#[derive(Default)]
pub(in crate::flow) struct Asked {
    pub(super) wish: Option<Wish>,
    /// Why its guest is lost.
    pub(in crate::flow) lost: Option<String>,
    /// Its partitions, opened again.
    pub(in crate::flow) reopened: Option<Vec<Partition>>,
    pub(super) placement: Option<Placement>,
    /// Since when its guest has left something unanswered, on the steady clock, and by which pipe.
    pub(super) unanswered: Option<(i64, Arc<dyn Pipe>)>,
}

impl Asked {
    /// Where the task is, if it is away or about to go.
    pub(super) fn away(&mut self) -> Option<&mut Placement> {
        self.placement.as_mut().filter(|placement| placement.step != MoveStep::Home)
    }
}

/// A move that is wanted.
pub(in crate::flow) enum Wish {
    /// To the guest behind the pipe: rows of a part of its state, and bytes of state at most.
    Out(Arc<dyn Pipe>, usize, usize),
    Back,
}

/// What leads from a guest to the flow that it works for. State goes along it in parts of up to so many rows.
pub(super) type Outlet = (Arc<dyn Pipe>, usize);
