//! The models that the papers compare, as ways to run the same server.

use std::fmt;
use std::str::FromStr;

use super::baselines::Baseline;
use crate::bench::policies::{HAS_BASELINES, without_baselines};
use crate::config::Config;
use crate::engine::Extensions;
use crate::service::ServiceError;

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
        self.baseline().is_some_and(|baseline| baseline.has_own_connections)
    }

    /// How another engine works, if the model is that of one.
    fn baseline(self) -> Option<Baseline> {
        let (has_threads, has_own_code, has_own_connections) = match self {
            Self::Group | Self::GroupRows => return None,
            Self::PoolNc => (false, false, false),
            Self::PoolN => (false, true, false),
            Self::Pool => (false, true, true),
            Self::ThreadNc => (true, false, false),
            Self::ThreadN => (true, true, false),
            Self::Thread => (true, true, true),
        };
        Some(Baseline { has_threads, has_own_code, has_own_connections })
    }

    /// Has a server that is started with this configuration and these extensions execute queries so.
    ///
    /// # Errors
    /// There is no thread for connections.
    pub fn apply(self, config: &mut Config) -> Result<Extensions, ServiceError> {
        match self.baseline() {
            // A program without baselines has none of their code: nothing else uses it.
            Some(baseline) if HAS_BASELINES => baseline.apply(config),
            _ => {
                config.batch_rows_max = (self == Self::GroupRows).then_some(1);
                Ok(Extensions::default())
            }
        }
    }

    fn named(name: &str, has_baselines: bool) -> Result<Self, String> {
        let model = Self::ALL.into_iter().find(|model| model.name() == name);
        match model
            .ok_or_else(|| format!("'{name}' is no model; there are {}", Self::ALL.map(Self::name).join(", ")))?
        {
            model if model.baseline().is_some() && !has_baselines => Err(without_baselines(name)),
            model => Ok(model),
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
        Self::named(name, HAS_BASELINES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_baselines_refuses_them_and_says_where_they_are() {
        for model in Model::ALL {
            assert_eq!(Model::named(model.name(), true), Ok(model));
            let without = Model::named(model.name(), false);
            match model {
                Model::Group | Model::GroupRows => assert_eq!(without, Ok(model)),
                _ => assert!(without.unwrap_err().contains("--features baselines"), "{model}"),
            }
        }
        assert!(Model::named("storm", false).unwrap_err().contains("there are group, group-rows, tp+nc"));
    }
}
