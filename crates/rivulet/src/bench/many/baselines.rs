//! The schedulers of the engines that Rivulet is compared with (the ladder of Pluto), and how many queries these can
//! have. No configuration names them.

use std::collections::VecDeque;
use std::sync::Arc;

use rivulet_dataflow::QueryId;
use rivulet_runtime::scheduler::{Owned, Shared, Waiting};
use rivulet_runtime::{Belonging, Policy, Runnable, ThreadLimit};

use super::own_connections::OwnConnections;
use super::threads::of_this_process;
use crate::engine::Companion;
use crate::service::{ErrorKind, ServiceError};

/// One queue for all workers, first in, first out.
pub static POOL: Policy = Policy {
    name: "pool",
    help: "first in, first out",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |setup| Box::new(Shared::<Queue>::new(setup)),
};

/// A thread for each task.
pub static DEDICATED: Policy = Policy {
    name: "dedicated",
    help: "a thread for each task",
    belonging: Belonging::Own(of_this_process),
    follows_pending: false,
    make: |setup| Box::new(Owned::new(false, setup)),
};

/// Tasks in the order in which they came.
#[derive(Default)]
struct Queue(VecDeque<Arc<dyn Runnable>>);

impl Waiting for Queue {
    fn enter(&mut self, task: Arc<dyn Runnable>, _pending: usize) {
        if task.standing().enter() {
            self.0.push_back(task);
        }
    }

    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        let task = self.0.pop_front()?;
        task.standing().leave();
        Some((task, usize::MAX))
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}

/// Refuses queries for which the system has no thread or connection, before the catalog remembers them; the others go
/// on. Each query is a task.
pub(super) struct Bounds {
    /// Where each task has its own.
    pub(super) threads: Option<ThreadLimit>,
    /// Where each query has its own.
    pub(super) connections: Option<Arc<OwnConnections>>,
}

impl Companion for Bounds {
    fn admit(&self, queries: usize) -> Result<(), ServiceError> {
        if let Some(limit) = self.threads.filter(|limit| queries > limit.threads_max) {
            let most = limit.threads_max;
            let message =
                format!("there is no thread left for this query: the system allows {most}, by {}", limit.bounded_by);
            return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint(
                "this model starts a thread for each task; `--model group` runs any number of queries on a few",
            ));
        }
        self.connections.as_ref().map_or(Ok(()), |connections| connections.admit(queries))
    }

    fn begin(&self, queries: &[QueryId], topics: &[Vec<String>]) {
        if let Some(connections) = &self.connections {
            connections.begin(queries, topics);
        }
    }

    fn end(&self, queries: &[QueryId]) {
        if let Some(connections) = &self.connections {
            connections.end(queries);
        }
    }
}
