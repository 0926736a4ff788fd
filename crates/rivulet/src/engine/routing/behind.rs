//! Applications that read the log behind the others, because their results found no way out.

use rivulet_connectors::mqtt::{Received, Targets};
use rivulet_dataflow::{InputIndex, LogPosition, LoggedEvent, Slot};

use super::super::running::Running;
use super::super::shared_input::SharedInputs;
use super::Routing;

/// The queries that read a topic, each with the input that it is for.
type Found = Vec<(InputIndex, Slot)>;

impl Routing {
    /// From now on an application gets the events of its durable inputs from the log.
    pub(in crate::engine) fn fall_behind(&self, running: &Running) {
        let position = self.messaging.router().between_messages(|position, _| {
            let position = position.max(self.event_log.next());
            running.group.fall_behind(position);
            position
        });
        running.group.expect_repeats(position);
    }

    /// Whether rows of a shared topic may be on their way that came before an application fell behind at `fell_at`.
    pub(in crate::engine) fn has_earlier_rows(&self, running: &Running, fell_at: LogPosition) -> bool {
        let oldest = self.shared_group_of(running).and_then(|shared| shared.oldest_position());
        oldest.is_some_and(|oldest| oldest < fell_at)
    }

    /// Hands a message of the log to the queries of an application that is behind. Returns whether there was room.
    /// `found` is a buffer.
    pub(in crate::engine) fn catch_up(
        &self,
        running: &Running,
        found: &mut Found,
        message: &Received<'_>,
        position: LogPosition,
    ) -> bool {
        self.find_targets(running, message.topic, found);
        hand_over(running, found, message, position)
    }

    /// Finds the queries of an application that read a topic, each with the input that it is for.
    pub(in crate::engine) fn find_targets(&self, running: &Running, topic: &[u8], found: &mut Found) {
        // In this order: which topics are shared does not change before the routes are looked at.
        let shared = self.shared.lock();
        self.messaging.router().with_targets(|targets| find(running, &shared, targets, topic, found));
        drop(shared);
        found.sort_unstable();
    }

    /// Hands over what is left of the log from a position on, while no message is routed. If that is all, and there is
    /// room, the application gets events as they come from now on. What is not in memory has to be handed over before:
    /// nothing is read from disk meanwhile. Queries expect repeats of events before `repeats_to`.
    pub(in crate::engine) fn end_catch_up(&self, running: &Running, from: LogPosition, repeats_to: LogPosition) {
        let shared = self.shared.lock();
        self.messaging.router().between_messages(|end, targets| {
            let mut found = Found::new();
            let next = self.event_log.read_pending(from, end, &mut |message, position| {
                find(running, &shared, targets, message.topic, &mut found);
                found.sort_unstable();
                hand_over(running, &found, message, position)
            });
            if (end..=repeats_to).contains(&next) {
                running.group.end_catch_up();
            }
        });
    }
}

fn find(running: &Running, shared: &SharedInputs, targets: &Targets<'_>, topic: &[u8], found: &mut Found) {
    found.clear();
    targets.for_each(topic, |inbox, slot| {
        match running.inboxes.iter().position(|own| *own == inbox) {
            Some(input) if running.topics.inputs[input].is_logged => found.push((input as InputIndex, slot)),
            Some(_) => {}
            // Only an application with one input has shared topics.
            None => shared.for_each_reader(running, inbox, slot, |slot| found.push((0, slot))),
        }
    });
}

fn hand_over(running: &Running, found: &[(InputIndex, Slot)], message: &Received<'_>, position: LogPosition) -> bool {
    let &Received { arrival_us, topic, payload, .. } = message;
    let event = LoggedEvent { slot: 0, arrival_us, position, topic, payload };
    running.group.catch_up(found, &event)
}
