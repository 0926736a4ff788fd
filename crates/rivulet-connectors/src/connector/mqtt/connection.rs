//! The services of a process that has a connection to a broker, or is one.

use std::sync::Arc;

use crate::mqtt::{Publisher, Router};

/// Messages in and out, for sources and sinks of big queries.
pub trait MqttConnection: Send + Sync {
    /// The routes of received messages.
    fn router(&self) -> &Arc<Router>;

    /// The publisher of messages.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Why no messages come and go at present, if that is so.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Whether the broker is in another process, so that messages may wait for it.
    fn may_be_away(&self) -> bool {
        true
    }

    /// Subscribes to a filter at the broker. Filters are counted: each call is taken back by one of
    /// [`MqttConnection::unsubscribe`].
    fn subscribe(&self, filter: &str);

    /// Takes back a subscription.
    fn unsubscribe(&self, filter: &str);

    /// Waits, for a bounded time, until the broker has agreed to a subscription, if it is worth waiting for.
    ///
    /// # Errors
    /// The broker has not agreed, and why.
    fn await_subscription(&self, filter: &str) -> Result<(), String>;

    /// Notes that nothing more will be published: if nothing else sends the remaining messages, begins to send them,
    /// without waiting.
    fn finish(&self);

    /// Whether that is done; after a bounded time it is, successfully or not.
    ///
    /// # Errors
    /// A message was not sent, and why.
    fn is_finished(&self) -> Result<bool, String>;
}
