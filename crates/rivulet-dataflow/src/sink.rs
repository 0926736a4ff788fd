//! Where results go: the rows of a big query to a [`Sink`], which may also be a [`TransactionalSink`]; the results of
//! the queries of a group to a [`GroupSink`].
//!
//! What must hold: a sink runs in a task like an operator, so no method waits for a device. A thread of the sink does
//! that, behind a bounded queue. A method that answers with a `bool` is called every few milliseconds until it answers
//! true or fails. No row is written meanwhile, and it is not called again after that.

use std::fmt;

use crate::{Batch, Refusals, SlotTable};

/// One instance of the sink of a big query.
///
/// A query without checkpoints needs [`Sink::write`] alone. Before a checkpoint the sink is drained, so that rows
/// before the checkpoint are delivered at least once, and rows behind it are written again after a crash. A sink that
/// can make rows final with a checkpoint gives [`Sink::transactional`] as well.
pub trait Sink: Send {
    /// Takes the rows of a batch. It may keep them until [`Sink::flush`].
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError>;

    /// Whether there is room for another batch. While there is none, the task is not scheduled.
    fn has_room(&self) -> bool {
        true
    }

    /// Sends what is buffered on its way. Called at the end of each activation, and now and then while no rows come.
    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Whether the device has taken all that was written, so that a checkpoint may be made. A write after that means
    /// that the checkpoint was given up.
    fn drain(&mut self) -> Result<bool, SinkError> {
        self.flush().map(|()| true)
    }

    /// No row will follow: makes the result final, for example under its own name, and answers whether it is. A sink
    /// that is dropped before it answers true gives up what is still on its way.
    fn finish(&mut self) -> Result<bool, SinkError> {
        self.drain()
    }

    /// Whether the result can be continued from a checkpoint. A query with a sink that cannot has no checkpoints:
    /// after a crash it begins anew.
    fn can_resume(&self) -> bool {
        true
    }

    /// The sink as one that makes rows final with checkpoints; `None` if rows are final as soon as they are written.
    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        None
    }
}

/// A sink whose rows become final with the checkpoint behind them, so that each is there once whatever crashes.
///
/// The host calls [`TransactionalSink::prepare`] instead of [`Sink::drain`], keeps the answer in the checkpoint, and
/// calls [`TransactionalSink::commit`] when the checkpoint is durable. After a crash the connector opens the sink
/// with the answers of all its instances; it makes final what the checkpoint has, and takes back what was written
/// behind it.
pub trait TransactionalSink: Sink {
    /// Secures what was written so that it can be made final after a crash. Returns what the connector needs for
    /// that, in its own words, or `None` while it waits for a device.
    fn prepare(&mut self) -> Result<Option<String>, SinkError>;

    /// The checkpoint that was prepared last is durable and has the number `epoch`: makes final what was prepared,
    /// and answers whether it is.
    fn commit(&mut self, epoch: u64) -> Result<bool, SinkError> {
        let _ = epoch;
        Ok(true)
    }

    /// Called before the final checkpoint; closes open files so that they commit with it.
    fn close(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Whether rows that are written between [`TransactionalSink::prepare`] and [`TransactionalSink::commit`] would
    /// count for the checkpoint before them. Nothing is written in between then.
    fn waits_for_commit(&self) -> bool {
        false
    }

    /// Asked after a failure: whether it took back all that was written since the last checkpoint, so that a restart
    /// from there is safe.
    fn has_rolled_back(&mut self) -> bool {
        false
    }
}

/// Where the results of a group go: each row to the output of the query in its slot.
pub trait GroupSink: Send {
    /// Takes the rows of a batch, and buffers them until [`GroupSink::flush`]: of a query in parts the sinks are
    /// written to side by side, and flushed in the order of the events.
    ///
    /// `numbers` has the number of each row among the results of its slot, where checkpoints are made: counted from
    /// 1, and continued after a restart that restores the slot, so that a result which is given once more has the
    /// number it had.
    fn write(&mut self, batch: &Batch, numbers: Option<&[u64]>, slots: &SlotTable) -> Result<(), SinkError>;

    /// Takes refused rows whose content was kept.
    fn refused(&mut self, refusals: &Refusals, slots: &SlotTable) -> Result<(), SinkError>;

    /// Sends what is buffered on its way. Called at the end of each activation.
    fn flush(&mut self) -> Result<(), SinkError>;

    /// Whether there is room for more. While there is none, the group is not scheduled.
    fn has_room(&self) -> bool;
}

/// A sink that could not take a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkError(pub String);

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SinkError {}
