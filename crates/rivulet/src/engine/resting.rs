//! Groups that rest, so that something can change between two events of their queries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_runtime::Group;

use super::routing::Routing;
use super::running::Running;
use crate::service::{ErrorKind, ServiceError};

/// How long the processing of waiting events may take, if the next version could not take them over.
pub(super) const REST_WAIT_MAX: Duration = Duration::from_secs(10);

/// How often it checks whether they are processed.
const REST_LOOK_PERIOD: Duration = Duration::from_millis(1);

/// Groups that rest until this is dropped: the group of an application, and after it the groups that decode its shared
/// topics.
pub(super) struct Resting(Vec<Arc<Group>>);

impl Resting {
    /// Makes a group continue when this is dropped, however the group is brought to rest.
    pub(super) fn new(group: Arc<Group>) -> Self {
        Self(vec![group])
    }

    /// Makes the groups continue whose events other applications read too.
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
    /// Waits, at most for the given time, until all waiting events for the queries of an application are processed; no
    /// new events come meanwhile. Only one caller at a time brings the decoding for several applications to rest.
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

    /// Quiesces the group of an application until the returned value is dropped. The group does not rest yet. When this
    /// returns, no event and no row of a shared topic is on its way to it.
    pub(super) fn quiesced(&self, running: &Running) -> Resting {
        let resting = Resting::new(running.group.clone());
        running.group.quiesce();
        self.await_routing();
        self.await_shared_rows(running);
        resting
    }

    /// Whether no events wait for the queries of an application, nor in the group that decodes events for many queries
    /// together. Unless its group is suspended, an activation may still be under way.
    pub(super) fn is_idle(&self, running: &Running) -> bool {
        // In this order: events that are handed on after the first check wait at the queries.
        self.shared_group_of(running).is_none_or(|shared| shared.is_idle()) && running.group.is_idle()
    }

    /// Whether no events wait for the queries in these slots, nor in the group that decodes events for many queries
    /// together. The group of the application is suspended, and events that are received meanwhile wait.
    pub(super) fn is_at_rest(&self, running: &Running, slots: &[rivulet_dataflow::Slot]) -> bool {
        self.shared_group_of(running).is_none_or(|shared| shared.is_idle()) && !running.group.has_waiting(slots)
    }
}

/// Quiesces a group with closed intake if it has nothing to do. An activation under way may have taken out events that
/// are yet to be handed on, so this checks once more when that has ended.
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
