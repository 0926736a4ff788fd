//! For applications that read the log behind the others: the targets of a message of the log, and moments at which no
//! message is being routed.

use rivulet_dataflow::{LogPosition, Slot};

use super::Router;
use super::routes::{InboxId, Routes};

/// The routes, locked.
pub struct Targets<'a>(&'a Routes);

impl Targets<'_> {
    /// Calls `each` with every inbox and slot that messages of a topic go to.
    pub fn for_each(&self, topic: &[u8], mut each: impl FnMut(InboxId, Slot)) {
        self.0.for_each(topic, |delivery| each(delivery.target.inbox_id(), delivery.target.slot));
    }
}

impl Router {
    /// Looks up targets; messages are routed meanwhile.
    pub fn with_targets<R>(&self, look: impl FnOnce(&Targets<'_>) -> R) -> R {
        look(&Targets(&self.routes.read()))
    }

    /// Calls `change` between two messages, with the position of the next message of the log that looks for its
    /// targets: during a replay, of the next one that is replayed.
    pub fn between_messages<R>(&self, change: impl FnOnce(LogPosition, &Targets<'_>) -> R) -> R {
        let routes = self.routes.write();
        change(self.log_end(), &Targets(&routes))
    }
}
