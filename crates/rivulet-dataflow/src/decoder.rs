//! What makes rows of the events of a group.

use crate::{Batch, Events, Refusals};

/// Turns payloads into rows.
pub trait Decoder: Send {
    /// Decodes all events into one batch with the declared schema, in order.
    ///
    /// An event that does not fit is refused ([`Reason::Decode`](crate::Reason::Decode)) and gives no row; it does not
    /// affect the others. An event may give several rows. Event times are not assigned here: `event_time_us` equals
    /// `arrival_us`.
    fn decode(&mut self, events: &Events, refusals: &mut Refusals) -> Batch;
}
