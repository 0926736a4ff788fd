//! Applications that read the log behind the others, because their results found no way out.

use rivulet_connectors::mqtt::{Received, Targets};
use rivulet_dataflow::{InputIndex, LogPosition, LoggedEvent, Slot};

use super::super::running::Running;
use super::super::shared_input::SharedInputs;
use super::Routing;

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
    pub(in crate::engine) fn catch_up(&self, running: &Running, message: &Received<'_>, position: LogPosition) -> bool {
        hand_over(running, &self.targets(running, message.topic), message, position, false)
    }

    /// The queries of an application that read a topic, each with the input that it is for.
    pub(in crate::engine) fn targets(&self, running: &Running, topic: &[u8]) -> Vec<(InputIndex, Slot)> {
        // In this order: which topics are shared does not change before the routes are looked at.
        let shared = self.shared.lock();
        self.messaging.router().with_targets(|targets| targets_of(running, &shared, targets, topic))
    }

    /// Calls `read` between two messages, with the end of the log, to hand over what is left of it. If it returns true,
    /// that was all: the application gets events as they come from now on.
    pub(in crate::engine) fn end_catch_up(
        &self,
        running: &Running,
        read: impl FnOnce(LogPosition, &mut dyn FnMut(&Received<'_>, LogPosition)) -> bool,
    ) {
        let shared = self.shared.lock();
        self.messaging.router().between_messages(|end, targets| {
            let is_all = read(end, &mut |message, position| {
                let found = targets_of(running, &shared, targets, message.topic);
                hand_over(running, &found, message, position, true);
            });
            if is_all {
                running.group.end_catch_up();
            }
        });
    }
}

fn targets_of(
    running: &Running,
    shared: &SharedInputs,
    targets: &Targets<'_>,
    topic: &[u8],
) -> Vec<(InputIndex, Slot)> {
    let mut found = Vec::new();
    targets.for_each(topic, |inbox, slot| {
        match running.inboxes.iter().position(|own| *own == inbox) {
            Some(input) if running.topics.inputs[input].is_logged => found.push((input as InputIndex, slot)),
            Some(_) => {}
            // Only an application with one input has shared topics.
            None => shared.for_each_reader(running, inbox, slot, |slot| found.push((0, slot))),
        }
    });
    found.sort_unstable();
    found
}

fn hand_over(
    running: &Running,
    found: &[(InputIndex, Slot)],
    message: &Received<'_>,
    position: LogPosition,
    must_fit: bool,
) -> bool {
    let &Received { arrival_us, topic, payload, .. } = message;
    let event = LoggedEvent { slot: 0, arrival_us, position, topic, payload };
    running.group.catch_up(found, &event, must_fit)
}
