//! Rows to another server, which are on disk until they are durable there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_dataflow::{Batch, Element, Sink, SinkError, TransactionalSink};

use crate::connector::Health;
use crate::links::{Delivery, Prepared, Spooled};

pub(super) struct SpooledSink {
    /// Its own, which rows are written to, and those of instances that are no more.
    spooled: Vec<Spooled>,
    delivery: Delivery,
    health: Arc<Health>,
    /// Rows that are durable on the other side or were dropped, and bytes that were sent, as far as the health knows
    /// them.
    settled: u64,
    sent_bytes: u64,
    kept_bytes: u64,
    /// How many rows wait since before the start, and when their age was last taken.
    late: (u64, Instant),
    prepared: Vec<Prepared>,
}

impl SpooledSink {
    pub(super) fn new(spooled: Vec<Spooled>, delivery: Delivery, health: Arc<Health>) -> Self {
        let (late, prepared) = ((0, Instant::now()), Vec::new());
        let mut sink = Self { spooled, delivery, health, settled: 0, sent_bytes: 0, kept_bytes: 0, late, prepared };
        let (handed, settled) = sink.rows();
        sink.settled = settled;
        sink.late.0 = handed.saturating_sub(settled);
        sink.health.hand_late(usize::try_from(sink.late.0).unwrap_or(usize::MAX), sink.oldest());
        sink
    }

    /// How long the oldest row on disk has been waiting.
    fn oldest(&self) -> Duration {
        self.spooled.iter().filter_map(|spooled| spooled.spool.oldest()).max().unwrap_or_default()
    }

    /// Rows that were handed over, and those that need no further work.
    fn rows(&self) -> (u64, u64) {
        let each = self.spooled.iter().map(|spooled| spooled.spool.rows());
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Notes what the other side has made durable, and what is wrong.
    fn look(&mut self) {
        let dropped: u64 = self.spooled.iter().map(|spooled| spooled.spool.make_room()).sum();
        if dropped > 0 {
            self.health.leave_out(usize::try_from(dropped).unwrap_or(usize::MAX), "the spool is full");
        }
        let (_, settled) = self.rows();
        let sent_bytes: u64 = self.spooled.iter().map(Spooled::sent_bytes).sum();
        let durable = settled.saturating_sub(self.settled + dropped);
        let bytes = sent_bytes.saturating_sub(self.sent_bytes);
        self.health.take_some(usize::try_from(durable).unwrap_or(usize::MAX), usize::try_from(bytes).unwrap_or(0));
        self.late.0 = self.late.0.saturating_sub(settled.saturating_sub(self.settled));
        if self.late.0 > 0 && self.late.1.elapsed() >= Duration::from_secs(1) {
            self.late.1 = Instant::now();
            self.health.age(self.oldest());
        }
        (self.settled, self.sent_bytes) = (settled, sent_bytes);
        let kept_bytes = self.spooled.iter().map(|spooled| spooled.spool.bytes()).sum();
        self.health.keep(std::mem::replace(&mut self.kept_bytes, kept_bytes), kept_bytes);
        while let Some(done) = self.spooled.iter().skip(1).position(|spooled| spooled.spool.is_done()) {
            let done = self.spooled.remove(done + 1);
            self.settled = self.settled.saturating_sub(done.spool.rows().1);
            self.sent_bytes = self.sent_bytes.saturating_sub(done.sent_bytes());
            done.remove();
        }
        match self.spooled.iter().find_map(|spooled| Some((spooled.problem()?, spooled.attempts()))) {
            Some((problem, attempts)) => self.health.stand(&problem, attempts),
            None => self.health.recover(),
        }
    }

    fn is_on_disk(&mut self) -> bool {
        self.look();
        // All of them are sealed.
        self.spooled.iter().filter(|spooled| !spooled.spool.is_on_disk()).count() == 0
    }
}

impl Sink for SpooledSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.health.hand(batch.rows());
        self.spooled[0].spool.push(&Element::Batch(batch.clone())).map_err(|error| SinkError(error.to_string()))
    }

    fn has_room(&self) -> bool {
        self.spooled[0].spool.has_room()
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.look();
        Ok(())
    }

    fn drain(&mut self) -> Result<bool, SinkError> {
        Ok(self.is_on_disk())
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        if !self.is_on_disk() {
            return Ok(false);
        }
        // No checkpoint follows: all may be sent.
        if self.delivery == Delivery::ExactlyOnce && self.prepare()?.is_some() {
            self.commit(0)?;
        }
        Ok(self.spooled.iter().all(|spooled| spooled.spool.is_done()))
    }

    fn hands_over(&self) -> bool {
        // What waits is on disk: no checkpoint waits for the receiver.
        true
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        match self.delivery {
            Delivery::AtLeastOnce => None,
            Delivery::ExactlyOnce => Some(self),
        }
    }
}

impl Drop for SpooledSink {
    fn drop(&mut self) {
        self.health.keep(self.kept_bytes, 0);
    }
}

impl TransactionalSink for SpooledSink {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        if !self.is_on_disk() {
            return Ok(None);
        }
        self.prepared = self.spooled.iter().map(|spooled| spooled.spool.prepare()).collect();
        serde_json::to_string(&self.prepared).map(Some).map_err(|error| SinkError(error.to_string()))
    }

    fn commit(&mut self, _epoch: u64) -> Result<bool, SinkError> {
        self.spooled.iter().for_each(|spooled| spooled.spool.commit(&self.prepared));
        Ok(true)
    }
}
