//! How the engines work that Rivulet is compared with (the ladder of Pluto), and how many queries these can have. Only
//! a program that was built with the feature `baselines` has them.

use std::sync::Arc;

use rivulet_bench::policies::thread_limit::{self, ThreadLimit};
use rivulet_bench::policies::{POOL, THREAD_EACH};
use rivulet_dataflow::QueryId;
use rivulet_operators::application::{Application, Tables};
use rivulet_runtime::{GroupParts, TaskParts};

use super::own_connections::OwnConnections;
use crate::config::Config;
use crate::engine::stepped::Network;
use crate::engine::{Companion, Extensions, Languages};
use crate::service::{ErrorKind, ServiceError};

/// An engine that executes each query as a task of its own, and what else a query has there for itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Baseline {
    /// A thread; otherwise a pool of threads runs the tasks.
    pub(super) has_threads: bool,
    /// A plan.
    pub(super) has_own_code: bool,
    /// Connections.
    pub(super) has_own_connections: bool,
}

impl Baseline {
    /// Has a server that is started with this configuration and these extensions execute queries so.
    ///
    /// # Errors
    /// There is no thread for connections.
    pub(super) fn apply(self, config: &mut Config) -> Result<Extensions, ServiceError> {
        let Self { has_threads, has_own_code, has_own_connections } = self;
        config.workers.policy = if has_threads { &THREAD_EACH } else { &POOL };
        let connections = match has_own_connections {
            true => OwnConnections::new(config).map_err(|error| {
                ServiceError::new(ErrorKind::Unavailable, format!("cannot start the MQTT thread: {error}"))
            })?,
            false => None,
        };
        let threads = has_threads.then(thread_limit::of_this_process);
        let alone = Alone { threads, connections: connections.clone(), has_own_code };
        Ok(Extensions {
            network: connections.map(|connections| connections as Arc<dyn Network>),
            companion: Some(Arc::new(alone)),
            ..Extensions::default()
        })
    }
}

/// Makes each query a task, and refuses queries for which the system has no thread or connection, before the catalog
/// remembers them; the others go on.
struct Alone {
    /// Where each task has its own.
    threads: Option<ThreadLimit>,
    /// Where each query has its own.
    connections: Option<Arc<OwnConnections>>,
    /// Whether each task has a plan of its own.
    has_own_code: bool,
}

impl Companion for Alone {
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

    fn regroup(&self, languages: &Languages, application: &Application, parts: GroupParts) -> GroupParts {
        let parts = GroupParts { task_queries_max: Some(1), ..parts };
        if !self.has_own_code {
            return parts;
        }
        let tables = application.tables.iter().map(|one| (one.table.name().to_owned(), Ok(one.table.clone())));
        let (tables, languages): (Tables, _) = (tables.collect(), languages.clone());
        let (kind, code, make) = (application.kind, application.bytes.clone(), parts.make);
        let make = move || match languages.load(kind, &code, &tables) {
            Ok(own) => TaskParts { chain: own.dataflow.chain(), ..make() },
            Err(_) => make(),
        };
        GroupParts { make: Box::new(make), ..parts }
    }
}
