//! What a process offers that has a connection to a broker, or is one.

use std::sync::Arc;

use crate::mqtt::{Publisher, Router};

/// Messages in and out, for sources and sinks of big queries.
pub trait MqttHost: Send + Sync {
    /// The routes of what is received.
    fn router(&self) -> &Arc<Router>;

    /// Where messages are handed over.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Why messages do not come and go at present, if they do not.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Asks the broker for what matches a filter. Filters are counted: each call is taken back by one of
    /// [`MqttHost::unsubscribe`].
    fn subscribe(&self, filter: &str);

    /// Takes back a subscription.
    fn unsubscribe(&self, filter: &str);

    /// Waits, for a bounded time, until the broker has agreed to a subscription, where it is worth waiting for.
    ///
    /// # Errors
    /// It has not, and why.
    fn await_subscription(&self, filter: &str) -> Result<(), String>;

    /// Nothing more will be published: begins to bring what is left on its way, where nobody else does, and waits for
    /// nothing.
    fn finish(&self);

    /// Whether that is done; after a bounded time it is, well or not.
    ///
    /// # Errors
    /// Something was not sent, and why.
    fn is_finished(&self) -> Result<bool, String>;
}
