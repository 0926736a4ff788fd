//! The models that the papers compare, as settings of the same server.

use std::fmt;
use std::str::FromStr;

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

    /// The name on the command line. In the papers TP is a thread pool, TPQ a thread per query, +N a shared connection, +C
    /// shared code.
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

    /// What the server is told, as environment variables.
    pub(super) fn settings(self) -> &'static [(&'static str, &'static str)] {
        const ONE_QUERY: (&str, &str) = ("RIVULET_SCHEDULER_TASK_QUERIES_MAX", "1");
        const ONE_ROW: (&str, &str) = ("RIVULET_SCHEDULER_BATCH_ROWS_MAX", "1");
        const POOL: (&str, &str) = ("RIVULET_SCHEDULER_POLICY", "pool");
        const THREADS: (&str, &str) = ("RIVULET_SCHEDULER_POLICY", "dedicated");
        const OWN_CODE: (&str, &str) = ("RIVULET_SCHEDULER_SHARE_CODE", "false");
        const OWN_CONNECTIONS: (&str, &str) = ("RIVULET_MQTT_BROKER_CONNECTIONS", "per-query");
        match self {
            Self::Group => &[],
            Self::GroupRows => &[ONE_ROW],
            Self::PoolNc => &[ONE_QUERY, POOL],
            Self::PoolN => &[ONE_QUERY, POOL, OWN_CODE],
            Self::ThreadNc => &[ONE_QUERY, THREADS],
            Self::ThreadN => &[ONE_QUERY, THREADS, OWN_CODE],
            Self::Pool => &[ONE_QUERY, POOL, OWN_CODE, OWN_CONNECTIONS],
            Self::Thread => &[ONE_QUERY, THREADS, OWN_CODE, OWN_CONNECTIONS],
        }
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
