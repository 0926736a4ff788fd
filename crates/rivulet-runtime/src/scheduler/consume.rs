//! How much of what waits for a task it takes in one turn.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use super::{Budget, Runnable};

/// How much of what waits for a task it takes before it returns its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consume {
    /// As much as the policy says, which is all that waits.
    #[default]
    All,
    /// Half of what waits when the worker takes the task. A task for which nothing is known to wait, such as a task
    /// that polls sources, takes all.
    Half,
    /// At most so many events or rows.
    AtMost(NonZeroUsize),
}

impl FromStr for Consume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "half" => Ok(Self::Half),
            number => number.parse().map(Self::AtMost).map_err(|_| format!("'{text}' is not {}", Self::EXPECTED)),
        }
    }
}

impl fmt::Display for Consume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Half => f.write_str("half"),
            Self::AtMost(events) => events.fmt(f),
        }
    }
}

impl Consume {
    /// How it is written.
    pub const EXPECTED: &'static str = "all, half, or a number of events from 1 on";
}

/// What a scheduler makes budgets of.
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// How long a worker stays with a task while others wait.
    pub time_slice: Duration,
    /// How much of what waits a task takes.
    pub consume: Consume,
}

impl Budgets {
    /// The budget of a task which the policy would give so many events.
    pub fn of(&self, task: &dyn Runnable, events: usize) -> Budget {
        let events = match self.consume {
            Consume::All => events,
            Consume::Half => match task.pending() {
                0 => events,
                pending => events.min(pending.div_ceil(2)),
            },
            Consume::AtMost(most) => events.min(most.get()),
        };
        Budget { events, time: self.time_slice }
    }
}
