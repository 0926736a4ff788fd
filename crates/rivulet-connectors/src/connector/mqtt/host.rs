//! What a process offers that has a connection to a broker, or is one.

use std::sync::Arc;

use crate::mqtt::{Publisher, Router};

/// Messages in and out, for sources and sinks of big queries.
pub trait MqttHost: Send + Sync {
    /// The routes of what is received.
    fn router(&self) -> &Arc<Router>;

    /// Where messages are handed over.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Asks the broker for what matches a filter. Filters are counted: each call is taken back by one of
    /// [`MqttHost::unsubscribe`].
    fn subscribe(&self, filter: &str);

    /// Takes back a subscription.
    fn unsubscribe(&self, filter: &str);

    /// Waits, for a bounded time, until the broker has agreed to a subscription, where it is worth waiting for.
    ///
    /// # Errors
    /// It has not, and why.
    fn settle(&self, filter: &str) -> Result<(), String>;

    /// Nothing more will be published: waits, for a bounded time, until all of it is sent, where nobody else does.
    ///
    /// # Errors
    /// Something was not sent, and why.
    fn finish(&self) -> Result<(), String>;
}
