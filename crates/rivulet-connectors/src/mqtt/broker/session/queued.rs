//! A message on its way to the client of a session, and what its PUBREC was for.

use std::sync::Arc;

use super::super::super::codec::Qos;
use super::super::message::{Manner, Message};

/// A message that waits for a client.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) message: Arc<Message>,
    pub(super) manner: Manner,
    /// Its packet identifier since it was sent first; 0 if it was not sent.
    pub(super) packet_id: u16,
    /// Whether it may have been sent before.
    pub(super) is_again: bool,
}

impl Queued {
    /// Whether another session may get it: it is of a shared subscription, and not of QoS 2 and sent.
    pub(super) fn may_go(&self) -> bool {
        let is_sent = self.packet_id > 0 || self.is_again;
        self.manner.is_shared && (self.manner.qos == Qos::AtLeastOnce || !is_sent)
    }
}

/// What a PUBREC was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Received {
    /// No message in flight has this packet identifier.
    Unknown,
    /// The client has refused the message with this number in the journal; 0 if it is not there.
    Refused(u64),
    /// The client has the message with this number in the journal: 0 if it is not there, or was taken off before.
    Taken(u64),
}
