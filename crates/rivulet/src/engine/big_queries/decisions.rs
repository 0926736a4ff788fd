//! What is remembered of a query that may burst: its [policy](crate::burst::policy), and the last decisions.

use std::collections::VecDeque;
use std::sync::Weak;

use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::Clock;

use crate::burst::policy::Policy;
use crate::run::Running;
use crate::service::FullName;
use crate::times::at;

/// How many decisions about a query SHOW BURSTS tells.
const TOLD_MAX: usize = 3;

/// What is remembered of a query that may burst.
#[derive(Default)]
pub(super) struct Automatic {
    /// When its tasks go and come.
    pub(super) policy: Policy,
    /// The flow that was measured.
    pub(super) flow: Weak<Running>,
    /// The last decisions, the newest first.
    pub(super) told: VecDeque<String>,
}

impl Automatic {
    /// Notes a decision, and logs it.
    pub(super) fn tell(&mut self, name: &FullName, text: &str) {
        tracing::info!(query = name.in_log(), "burst policy: {text}");
        self.told.push_front(format!("{}: {text}", at(SystemClock.now_us())));
        self.told.truncate(TOLD_MAX);
    }

    /// Notes why the policy rests.
    pub(super) fn tell_rest(&mut self, name: &FullName, why: &str) {
        let until = at(SystemClock.now_us() + self.policy.rests_to_us - SystemClock.steady_us());
        self.tell(name, &format!("{why}, and the policy rests until {until}"));
    }
}
