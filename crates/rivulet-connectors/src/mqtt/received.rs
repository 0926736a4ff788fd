//! A message that arrives.

/// A message as the engine received it: from a client, from the external broker, or as a result of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received<'m> {
    /// The arrival time, microseconds since the epoch.
    pub arrival_us: i64,
    /// The name of the client that sent it, empty for the external broker. In the log, results of the engine have their
    /// identity here, if they have one, in a form that no client name has.
    pub client: &'m [u8],
    /// The packet identifier whose acknowledgement the sender waits for; 0 if it waits for none.
    pub packet_id: u16,
    /// The topic it was sent to.
    pub topic: &'m [u8],
    /// Its content.
    pub payload: &'m [u8],
}
