//! What a host of queries tells its driver.

use crate::{OperatorError, Reason, SinkError};

/// How many failures a report has in words; the rows that all of them cost are counted.
const FAILURES_MAX: usize = 16;

/// What the calls of a host have done since its last report. A row of a shared slot counts once for each query of it.
#[derive(Debug, Default)]
pub struct SlotReport {
    /// Rows handed to the sink.
    pub results: u64,
    /// Rows refused, by [`Reason`].
    pub refused: [u64; Reason::ALL.len()],
    /// What failed, in order; of many failures the first ones.
    pub failures: Vec<Failure>,
}

/// What failed in a call. The host goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An operator or the decoder failed or panicked, which cost this many rows. For user code these were refused one
    /// by one, and the number is 0.
    Operator(OperatorError, u64),
    /// The sink did not take results.
    Results(SinkError),
    /// The sink did not take refused rows.
    Refused(SinkError),
    /// The sink did not send what it had taken.
    Flush(SinkError),
}

impl SlotReport {
    pub(super) fn add(&mut self, failure: Failure) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure);
        }
    }
}
