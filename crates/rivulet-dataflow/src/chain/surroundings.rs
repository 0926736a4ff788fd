//! What rows are processed with.

use crate::{Batch, Context, Refusals, SlotTable};

/// The context in which rows are processed: the clock, the queries, and the target of refused rows.
pub struct Surroundings<'a> {
    /// The host's clock, read once for the batch: microseconds since the epoch.
    pub now_us: i64,
    /// The queries of the group and their parameters.
    pub slots: &'a SlotTable,
    /// Where refused rows go.
    pub refusals: &'a mut Refusals,
}

impl Surroundings<'_> {
    /// A second borrow, for a call within this one.
    pub fn again(&mut self) -> Surroundings<'_> {
        Surroundings { now_us: self.now_us, slots: self.slots, refusals: &mut *self.refusals }
    }

    /// The context of one operator that emits to `output`.
    pub fn context<'a>(&'a mut self, output: &'a mut Vec<Batch>) -> Context<'a> {
        Context::new(self.now_us, self.slots, self.refusals, output)
    }
}
