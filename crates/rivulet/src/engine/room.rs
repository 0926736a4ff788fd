//! Whether there is room for more queries: threads, where each task has its own, and connections, where each query has.
//!
//! Both are for comparison with engines that work so (`rivulet bench many --model`). A query for which the system has no
//! thread or connection is refused before the catalog remembers it; the others go on.

use rivulet_runtime::{Group, ThreadLimit, Workers};

use super::messaging::Messaging;
use crate::service::{ErrorKind, ServiceError};

/// What is left for more queries. It is a count of the moment: who holds it holds the lock of the queries.
pub(super) struct Room {
    threads: Option<(usize, ThreadLimit)>,
    /// Queries that can still have their connections, and how many could if there were none.
    connections: Option<(usize, usize)>,
}

impl Room {
    /// What there is now.
    pub(super) fn now(workers: &Workers, messaging: &Messaging) -> Self {
        Self { threads: workers.threads_left(), connections: messaging.queries_left() }
    }

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
                "this model starts a thread for each task; `--model group` runs any number of queries on a few",
            ));
        }
        if let Some((0, most)) = self.connections {
            return Err(ServiceError::new(
                ErrorKind::Unavailable,
                format!("there is no connection left for this query: the limit of open files allows {most} queries"),
            )
            .with_hint(
                "this model takes two of them for each query: raise `ulimit -n`, or take a model that shares one (+n)",
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
