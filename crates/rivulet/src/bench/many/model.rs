//! The models that the papers compare, as ways to run the same server.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::baselines::{Bounds, DEDICATED, POOL};
use super::own_connections::OwnConnections;
use super::threads::of_this_process;
use crate::config::{Baseline, Config};
use crate::engine::Extensions;
use crate::engine::stepped::Network;
use crate::service::{ErrorKind, ServiceError};

/// How queries are executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// Rivulet as it is: a group is one vectorised dataflow over its queries.
    #[default]
    Group,
    /// Groups, and every event a batch of its own.
    GroupRows,
    /// A task for each query, run by a fixed pool of threads; connection and code shared.
    PoolNc,
    /// The same, and each query has its own plan.
    PoolN,
    /// A thread for each query; connection and code shared.
    ThreadNc,
    /// The same, and each query has its own plan.
    ThreadN,
    /// A thread pool; each query has its own plan and its own connections.
    Pool,
    /// A thread, a plan and connections for each query.
    Thread,
}

impl Model {
    /// Every model.
    pub const ALL: [Self; 8] = [
        Self::Group,
        Self::GroupRows,
        Self::PoolNc,
        Self::PoolN,
        Self::Pool,
        Self::ThreadNc,
        Self::ThreadN,
        Self::Thread,
    ];

    /// The name on the command line. In the papers TP is a thread pool, TPQ a thread per query, +N a shared connection,
    /// +C shared code.
    pub fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::GroupRows => "group-rows",
            Self::PoolNc => "tp+nc",
            Self::PoolN => "tp+n",
            Self::ThreadNc => "tpq+nc",
            Self::ThreadN => "tpq+n",
            Self::Pool => "tp",
            Self::Thread => "tpq",
        }
    }

    /// Whether queries have connections of their own, so that the generator must take very many.
    pub(super) fn has_own_connections(self) -> bool {
        matches!(self, Self::Pool | Self::Thread)
    }

    /// Has a server that is started with this configuration and these extensions execute queries so.
    ///
    /// # Errors
    /// There is no thread for connections.
    pub fn apply(self, config: &mut Config) -> Result<Extensions, ServiceError> {
        let is_pool = matches!(self, Self::PoolNc | Self::PoolN | Self::Pool);
        let has_threads = matches!(self, Self::ThreadNc | Self::ThreadN | Self::Thread);
        if is_pool {
            config.workers.policy = &POOL;
        } else if has_threads {
            config.workers.policy = &DEDICATED;
        }
        config.baseline = Baseline {
            task_queries_max: (is_pool || has_threads).then_some(1),
            batch_rows_max: (self == Self::GroupRows).then_some(1),
            has_own_code: matches!(self, Self::PoolN | Self::ThreadN) || self.has_own_connections(),
        };
        let connections = match self.has_own_connections() {
            true => OwnConnections::new(config).map_err(|error| {
                ServiceError::new(ErrorKind::Unavailable, format!("cannot start the MQTT thread: {error}"))
            })?,
            false => None,
        };
        let bounds = Bounds { threads: has_threads.then(of_this_process), connections: connections.clone() };
        Ok(Extensions {
            network: connections.map(|connections| connections as Arc<dyn Network>),
            companion: Some(Arc::new(bounds)),
            ..Extensions::default()
        })
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|model| model.name() == name)
            .ok_or_else(|| format!("'{name}' is no model; there are {}", Self::ALL.map(Self::name).join(", ")))
    }
}
