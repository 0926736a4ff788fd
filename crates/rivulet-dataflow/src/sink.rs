//! Where results go: the rows of a big query to a [`Sink`], which may also be a [`TransactionalSink`]; the results of
//! the queries of a group to a [`GroupSink`].
//!
//! What must hold: a sink runs in a task like an operator, so no method waits for a device. A thread of the sink does
//! that, behind a bounded queue. A method that returns a `bool` is called every few milliseconds until it returns true
//! or fails. No row is written in between, and the method is not called again after that.

use crate::{Batch, Refusals, SlotTable};

/// One instance of the sink of a big query.
///
/// A query without checkpoints needs only [`Sink::write`]. Before a checkpoint the sink is drained: rows before the
/// checkpoint are delivered at least once, and rows behind it are written again after a crash. A sink that can make
/// rows final with a checkpoint, or give it the rows that wait, also implements [`Sink::transactional`].
pub trait Sink: Send {
    /// Writes the rows of a batch. The sink may buffer them until [`Sink::flush`].
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError>;

    /// Whether there is room for another batch. While there is none, the task is not scheduled.
    fn has_room(&self) -> bool {
        true
    }

    /// Starts to send what is buffered. Called at the end of each activation, and now and then while no rows come.
    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Whether the device has accepted all rows written, so that a checkpoint may be made. A later write means that the
    /// checkpoint was abandoned.
    fn drain(&mut self) -> Result<bool, SinkError> {
        self.flush().map(|()| true)
    }

    /// Called when no row will follow. Makes the result final, for example gives a file its own name, and returns
    /// whether it is final. A sink that is dropped before it returns true discards what it has not sent.
    fn finish(&mut self) -> Result<bool, SinkError> {
        self.drain()
    }

    /// Whether the result can be continued from a checkpoint. If not, its query makes no checkpoints and begins anew
    /// after a crash.
    fn can_resume(&self) -> bool {
        true
    }

    /// Whether a checkpoint gets the rows that wait: [`TransactionalSink::prepare`] does not wait for the receiver.
    /// Then rows before a barrier are written even while there is no room, and no source is read until there is room
    /// again.
    fn hands_over(&self) -> bool {
        false
    }

    /// The sink as one that takes part in checkpoints; `None` if it has to be drained before each.
    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        None
    }
}

/// A sink whose rows become final with the checkpoint behind them, so that each row appears once despite crashes; or
/// one whose undelivered rows are a part of the checkpoint ([`Sink::hands_over`]), so that none is lost.
///
/// The host calls [`TransactionalSink::prepare`] instead of [`Sink::drain`], keeps the answer in the checkpoint, and
/// calls [`TransactionalSink::commit`] when the checkpoint is durable. After a crash the connector opens the sink with
/// the answers of all its instances. It makes final what the checkpoint covers, and removes what was written behind it;
/// or it delivers the rows of the checkpoint first.
pub trait TransactionalSink: Sink {
    /// Secures the rows written, so that they can be made final even after a crash. Returns what the connector needs
    /// for that, in its own notation, or `None` while it waits for a device.
    fn prepare(&mut self) -> Result<Option<String>, SinkError>;

    /// Called when the last prepared checkpoint is durable, with its number `epoch`. Makes the prepared rows final and
    /// returns whether they are.
    fn commit(&mut self, epoch: u64) -> Result<bool, SinkError> {
        let _ = epoch;
        Ok(true)
    }

    /// Called before the final checkpoint; closes open files so that they commit with it.
    fn close(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Whether rows written between [`TransactionalSink::prepare`] and [`TransactionalSink::commit`] would count for
    /// the prepared checkpoint. If so, the host writes nothing in between.
    fn waits_for_commit(&self) -> bool {
        false
    }

    /// Called after a failure: whether the failure rolled back to the last checkpoint, so that a restart from it is
    /// safe.
    fn has_rolled_back(&mut self) -> bool {
        false
    }
}

/// Where the results of a group go: each row to the output of the query in its slot.
pub trait GroupSink: Send {
    /// Buffers the rows of a batch until [`GroupSink::flush`]. A query in parts has several sinks, which are written to
    /// in parallel and flushed in the order of the events.
    ///
    /// Where checkpoints are made, `numbers` has the number of each row among the results of its slot. Numbers begin at
    /// 1 and continue after a restart that restores the slot, so a result that is repeated keeps its number.
    fn write(&mut self, batch: &Batch, numbers: Option<&[u64]>, slots: &SlotTable) -> Result<(), SinkError>;

    /// Publishes refused rows whose content was kept.
    fn refused(&mut self, refusals: &Refusals, slots: &SlotTable) -> Result<(), SinkError>;

    /// Starts to send what is buffered. Called at the end of each activation.
    fn flush(&mut self) -> Result<(), SinkError>;

    /// Whether there is room for more. While there is none, the group is not scheduled.
    fn has_room(&self) -> bool;
}

/// The error of a sink that could not take a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SinkError(pub String);
