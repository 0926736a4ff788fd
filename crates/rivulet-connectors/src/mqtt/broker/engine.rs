//! Publishes the messages of the broker itself: the engine's results, and the wills of clients that have gone.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use rivulet_dataflow::LogPosition;

use super::super::codec::{Publish, Qos};
use super::super::intake::{AHEAD, Stuck, UnderWay};
use super::super::publisher::{PublishBatch, Publisher};
use super::super::received::Received;
use super::super::router::Pending;
use super::message::{self, Message};
use super::shared::Shared;

/// The number of messages that are published before other tasks have their turn.
const MESSAGES_BEFORE_YIELD: usize = 512;

/// The number of batches that may each wait on their own until the journal has them on disk. Further ones wait with the
/// last.
const LEAVING_MAX: usize = 1024;

/// Publishes until the broker is dropped.
pub(super) async fn publish_results(shared: &Shared) {
    let mut results = Results {
        shared,
        unsent: Unsent { shared, messages: 0, bytes: 0, end: 0 },
        under_way: UnderWay::new(Duration::from_millis(shared.options.deadlock_ms)),
        saved_at: 0,
        leaving: VecDeque::new(),
    };
    loop {
        results.report_durable();
        let will = shared.core.lock().take_will();
        if let Some(will) = will {
            // The will's expiry time begins now.
            let expires_at = message::expires_at(will.message_expiry_s);
            results.publish(Source::Will(&will.message, expires_at)).await;
        } else if let Some((first, batch)) = shared.outbound.take() {
            let end = first + batch.len() as u64;
            results.unsent = Unsent { shared, messages: batch.len(), bytes: batch.queued_bytes(), end };
            results.publish(Source::Batch(&batch)).await;
            results.leave(end);
            shared.outbound.give_back(batch);
        } else {
            results.wait_for_more().await;
        }
    }
}

/// The remaining messages of the batch that is being published. If publishing panics, they are removed from the queue
/// and counted as lost, and count as left, so that nothing waits for them.
struct Unsent<'a> {
    shared: &'a Shared,
    messages: usize,
    bytes: usize,
    /// The number of the message behind the batch.
    end: u64,
}

impl Unsent<'_> {
    fn sent(&mut self, messages: usize, bytes: usize) {
        self.messages -= messages;
        self.bytes -= bytes;
        self.shared.outbound.sent(messages, bytes);
    }
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if self.messages > 0 {
            self.shared.core.lock().counters.drops.lost_results += self.messages as u64;
            self.shared.outbound.sent(self.messages, self.bytes);
            self.shared.outbound.left(self.end);
        }
    }
}

/// Messages to be published.
#[derive(Clone, Copy)]
enum Source<'m> {
    /// With the moment when it expires.
    Will(&'m Message, Option<Instant>),
    Batch(&'m PublishBatch),
}

impl<'m> Source<'m> {
    fn len(self) -> usize {
        match self {
            Self::Will(..) => 1,
            Self::Batch(batch) => batch.len(),
        }
    }

    fn topic(self, index: usize) -> Option<&'m [u8]> {
        match self {
            // There is only one message, so nothing is prefetched.
            Self::Will(..) => None,
            Self::Batch(batch) => batch.topic(index),
        }
    }

    /// A message, its identity, the moment when it expires, and the bytes that it counted for in the queue of results.
    fn get(self, index: usize) -> Option<(Publish<'m>, &'m str, Option<Instant>, Option<usize>)> {
        match self {
            Self::Will(will, expires_at) => Some((will.publish(), "", expires_at, None)),
            Self::Batch(batch) => {
                let message = batch.get(index)?;
                let publish = Publish {
                    topic: message.topic.as_bytes(),
                    payload: message.payload,
                    properties: message.properties,
                    qos: message.options.qos.min(Qos::AtLeastOnce),
                    retain: message.options.retain,
                    ..Publish::default()
                };
                let expires_at = message::expires_at(message.options.expiry_s);
                Some((publish, message.id(), expires_at, Some(message.queued_bytes())))
            }
        }
    }
}

struct Results<'a> {
    shared: &'a Shared,
    unsent: Unsent<'a>,
    under_way: UnderWay,
    /// The position that the journal must have on disk before the published messages count as left.
    saved_at: LogPosition,
    /// The ends of batches that have not left, each with the position it waits for.
    leaving: VecDeque<(u64, LogPosition)>,
}

impl Results<'_> {
    /// Notes that all messages before the number `end` are published. They have left when the journal has them on disk
    /// for the sessions that outlive the process.
    fn leave(&mut self, end: u64) {
        let is_full = self.leaving.len() >= LEAVING_MAX;
        match self.leaving.back_mut() {
            Some(last) if is_full || last.1 == self.saved_at => *last = (end, self.saved_at),
            _ => self.leaving.push_back((end, self.saved_at)),
        }
        self.report_durable();
    }

    /// Reports the batches as left that the journal has on disk.
    fn report_durable(&mut self) {
        let durable = self.shared.journal.get().map_or(LogPosition::MAX, |journal| journal.durable());
        while let Some((end, _)) = self.leaving.pop_front_if(|(_, saved_at)| *saved_at <= durable) {
            self.shared.outbound.left(end);
        }
    }

    /// Waits for something to publish.
    async fn wait_for_more(&mut self) {
        let wake = &self.shared.outbound.wake;
        if self.leaving.is_empty() {
            return wake.notified().await;
        }
        tokio::select! {
            () = wake.notified() => {}
            () = self.wait_until_committed() => {}
        }
    }

    async fn wait_until_committed(&mut self) {
        let Some(journal) = self.shared.journal.get() else { return };
        let mut committed = std::pin::pin!(journal.committed().notified());
        // Enabled before looking, so that no commit from here on is missed.
        committed.as_mut().enable();
        let before = self.leaving.len();
        self.report_durable();
        if self.leaving.len() == before {
            committed.await;
            self.report_durable();
        }
    }

    async fn publish(&mut self, source: Source<'_>) {
        let mut next = 0;
        while next < source.len() {
            let (published, is_full) = self.publish_some(source, next..source.len().min(next + MESSAGES_BEFORE_YIELD));
            next += published;
            if is_full {
                // A result for another query waits for its inbox. Later results wait too, and `has_room()` reports it.
                tokio::time::sleep(self.under_way.next_wait()).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Publishes messages until an inbox is full. Returns the number of published messages, and whether an inbox is
    /// full.
    fn publish_some(&mut self, source: Source<'_>, range: Range<usize>) -> (usize, bool) {
        let shared = self.shared;
        let arrival_us = shared.clock.now_us();
        let (mut published, mut is_full) = (0, false);
        let (mut sent_messages, mut sent_bytes) = (0, 0);
        let mut core = shared.core.lock();
        core.begin_turn();
        let mut routing = shared.router.read_for_results();
        for index in range {
            if let Some(topic) = source.topic(index + AHEAD) {
                routing.prefetch(topic);
                core.prefetch(topic);
            }
            let Some((publish, id, expires_at, queued_bytes)) = source.get(index) else { break };
            if !core.has_room_to_save()
                && core.will_have_room_to_save()
                && (publish.retain || publish.qos != Qos::AtMostOnce)
            {
                is_full = true;
                break;
            }
            // A result that the log has from before a crash still goes to the subscribers: the crash may have come
            // before they got it.
            routing.of_result(id);
            let Publish { topic, payload, .. } = publish;
            let message = Received { arrival_us, topic, payload, ..Received::default() };
            let stuck = |_: &Pending| match shared.outbound.has_room() {
                // While the engine stops, an inbox may never have room again.
                _ if shared.router.is_closed() => Stuck::ForEver,
                true => Stuck::Waits,
                false => Stuck::InCircle,
            };
            let Some(given_up) = self.under_way.offer(&mut routing, &message, stuck) else {
                is_full = true;
                break;
            };
            core.counters.drops.deadlock_events += given_up as u64;
            self.saved_at = core.publish(&publish, None, expires_at).saved_at.max(self.saved_at);
            published += 1;
            if let Some(bytes) = queued_bytes {
                sent_messages += 1;
                sent_bytes += bytes;
            }
        }
        drop(routing);
        drop(core);
        if sent_messages > 0 {
            self.unsent.sent(sent_messages, sent_bytes);
        }
        (published, is_full)
    }
}
