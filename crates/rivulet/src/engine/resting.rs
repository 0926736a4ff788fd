//! Groups that stand still, so that something can change between two events of their queries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_runtime::Group;

use super::routing::Routing;
use super::running::Running;
use crate::service::{ErrorKind, ServiceError};

/// How long events that wait may take to be processed, where what comes next could not take them over.
pub(super) const REST_WAIT_MAX: Duration = Duration::from_secs(10);

/// How often it is looked whether they are.
const REST_LOOK_PERIOD: Duration = Duration::from_millis(1);

/// What stands still, to go on when this is dropped: the group of an application, and behind it those that it has part
/// in.
pub(super) struct Resting(Vec<Arc<Group>>);

impl Resting {
    /// Has a group go on when this is dropped, however it is brought to rest.
    pub(super) fn new(group: Arc<Group>) -> Self {
        Self(vec![group])
    }

    /// What others read too goes on.
    pub(super) fn let_shared_go_on(&mut self) {
        self.0.drain(1..).for_each(|group| group.go_on());
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        self.0.iter().for_each(|group| group.go_on());
    }
}

impl Routing {
    /// Has everything that waits for the queries of an application processed, while nothing new comes; this may take so
    /// long. Only one at a time has what is decoded for several applications rest.
    pub(super) fn let_rest(
        &self,
        running: &Running,
        resting: &mut Resting,
        wait_max: Duration,
    ) -> Result<(), ServiceError> {
        let until = Instant::now() + wait_max;
        let shared = self.shared_group_of(running);
        if shared.as_ref().is_some_and(|shared| !shared.close_intake_first()) {
            let name = &running.application.name;
            let message = format!("'{name}' stays as it was: another one that reads the same topics is being changed");
            return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint("try again in a moment"));
        }
        resting.0.extend(shared.clone());
        for group in shared.iter().chain([&running.group]) {
            group.close_intake();
            self.await_routing();
            while !is_idle_and_quiesced(group) {
                if Instant::now() >= until {
                    let name = &running.application.name;
                    let message = format!("'{name}' stays as it was: events that wait for it are not processed");
                    return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint(
                        "try again when its results find their way out: SHOW APPLICATIONS and the status say more",
                    ));
                }
                std::thread::sleep(REST_LOOK_PERIOD);
            }
        }
        Ok(())
    }

    /// Whether nothing waits for the queries of an application, nor where events are decoded for many queries together.
    /// Unless its group is suspended, an activation may still be under way.
    pub(super) fn is_idle(&self, running: &Running) -> bool {
        // What is handed on waits at its queries then.
        self.shared_group_of(running).is_none_or(|shared| shared.is_idle()) && running.group.is_idle()
    }

    /// Whether nothing waits for the queries in these slots, nor where events are decoded for many queries together.
    /// The group of the application is suspended, and what is received meanwhile waits.
    pub(super) fn is_at_rest(&self, running: &Running, slots: &[rivulet_dataflow::Slot]) -> bool {
        self.shared_group_of(running).is_none_or(|shared| shared.is_idle()) && !running.group.has_waiting(slots)
    }
}

/// Quiesces a group whose intake is closed if it has nothing to do: an activation under way may have taken events out
/// that are yet to be handed on, so it is looked once more when that has ended.
fn is_idle_and_quiesced(group: &Group) -> bool {
    if !group.is_idle() {
        return false;
    }
    group.quiesce();
    let is_idle = group.is_idle();
    if !is_idle {
        group.close_intake();
    }
    is_idle
}
