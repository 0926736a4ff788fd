//! A row that cannot be processed, and why.

use crate::{Batch, InputIndex, LogPosition, Slot};

/// Why a row was not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Reason {
    /// The payload does not fit the declared format and schema.
    Decode,
    /// The row's event time lies further in the future than the input allows.
    Future,
    /// The row came after its window was closed.
    Late,
    /// An expression failed on the row, for example a division by zero.
    Expression,
    /// The inbox was full and the input says to drop.
    Overflow,
    /// The query was dropped while the event waited.
    Removed,
    /// The group itself failed on the batch: a defect of the engine.
    Internal,
    /// The application's own code failed on the rows of the query.
    UserCode,
}

impl Reason {
    /// Every reason, in order of discriminant.
    pub const ALL: [Self; 8] = [
        Self::Decode,
        Self::Future,
        Self::Late,
        Self::Expression,
        Self::Overflow,
        Self::Removed,
        Self::Internal,
        Self::UserCode,
    ];

    /// Its name in metrics and dead letters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Future => "future",
            Self::Late => "late",
            Self::Expression => "expression",
            Self::Overflow => "overflow",
            Self::Removed => "removed",
            Self::Internal => "internal",
            Self::UserCode => "user_code",
        }
    }
}

/// A refused event or row, and why it was refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The slot of the query it was for.
    pub slot: Slot,
    /// The input it came by; `None` if it was refused behind the point where inputs come together.
    pub input: Option<InputIndex>,
    /// The kind of reason.
    pub reason: Reason,
    /// The reason in words, for a user: what was wrong and where.
    pub detail: String,
    /// When the event reached the engine, microseconds since the epoch.
    pub arrival_us: i64,
    /// The event's position in the log; 0 if it is not in the log, or the position does not matter any more.
    pub position: LogPosition,
    /// The refused payload or row.
    pub content: Refused,
    /// Of a payload, the topic that came with it; empty where the input declares no columns of that.
    pub topic: Box<[u8]>,
}

/// The content of a refusal.
#[derive(Clone, Debug)]
pub enum Refused {
    /// The raw payload.
    Payload(Box<[u8]>),
    /// A decoded row: a batch with exactly one row.
    Row(Box<Batch>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_order_of_discriminant() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }
}
