//! Rows to another server.

use std::sync::Arc;

use rivulet_dataflow::{Batch, Element, Sink, SinkError};
use rivulet_wire::Taken;

use crate::connector::Health;
use crate::links::Outgoing;

pub(super) struct LinkSink {
    outgoing: Outgoing,
    health: Arc<Health>,
    /// What the other side is known to have taken, as far as the health knows it.
    told: Taken,
}

impl LinkSink {
    pub(super) fn new(outgoing: Outgoing, health: Arc<Health>) -> Self {
        Self { outgoing, health, told: Taken::default() }
    }

    /// Notes what the other side has taken, and what is wrong. Returns whether it has all.
    fn look(&mut self) -> bool {
        let (taken, is_all) = self.outgoing.taken();
        let Taken { rows, bytes } = taken;
        if taken != self.told {
            self.health.take_some((rows - self.told.rows) as usize, (bytes - self.told.bytes) as usize);
            self.told = taken;
        }
        match self.outgoing.problem() {
            Some(problem) => self.health.stand(&problem, self.outgoing.attempts()),
            None => self.health.recover(),
        }
        is_all
    }
}

impl Sink for LinkSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.health.hand(batch.rows());
        self.outgoing.push(&Element::Batch(batch.clone())).map_err(|error| SinkError(error.to_string()))
    }

    fn has_room(&self) -> bool {
        self.outgoing.has_room()
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.look();
        Ok(())
    }

    fn drain(&mut self) -> Result<bool, SinkError> {
        self.outgoing.flush();
        Ok(self.look())
    }
}
