//! Whether there is room for more queries: threads, where each task has its own, and connections, where each query has.
//!
//! Both are for comparison with engines that work so. What the system does not have is refused to the one who asks for
//! it, before the catalog remembers the query; the others go on.

use rivulet_runtime::{Group, ThreadLimit};

use super::Engine;
use crate::service::{ErrorKind, ServiceError};

/// What is left for more queries. It is a count of the moment: who holds it holds the state of the engine.
pub(super) struct Room {
    threads: Option<(usize, ThreadLimit)>,
    /// Queries that can still have their connections, and how many could if there were none.
    connections: Option<(usize, usize)>,
}

impl Engine {
    pub(super) fn room(&self) -> Room {
        Room { threads: self.workers.threads_left(), connections: self.messaging.queries_left() }
    }
}

impl Room {
    /// Takes what one more query of a group needs, when `taken` others have been let in and are not yet there.
    pub(super) fn take(&mut self, group: &Group, taken: usize) -> Result<(), ServiceError> {
        let threads = group.new_tasks_for(taken + 1) - group.new_tasks_for(taken);
        if let Some((left, limit)) = &self.threads
            && *left < threads
        {
            let most = limit.threads_max;
            return Err(ServiceError::new(
                ErrorKind::Unavailable,
                format!("there is no thread left for this query: the system allows {most}, by {}", limit.bounded_by),
            )
            .with_hint(
                "scheduler.policy = \"dedicated\" starts a thread for each task; \"group\" runs any number of queries on a few",
            ));
        }
        if let Some((0, most)) = self.connections {
            return Err(ServiceError::new(
                ErrorKind::Unavailable,
                format!("there is no connection left for this query: the limit of open files allows {most} queries"),
            )
            .with_hint(
                "mqtt.broker.connections = \"per-query\" takes two of them for each query: raise `ulimit -n`, or set it to \"shared\"",
            ));
        }
        if let Some((left, _)) = &mut self.threads {
            *left -= threads;
        }
        if let Some((left, _)) = &mut self.connections {
            *left -= 1;
        }
        Ok(())
    }
}
