//! Tasks of big queries on burst workers: what the statements about them do.
//!
//! What must hold: a statement moves tasks only of a query that was created for it and that has checkpoints, because
//! the checkpoint is what remains of the state of a worker that is lost.

use std::sync::Arc;

use rivulet_sql::{Operators, name_in_sql};

use super::{BigQueries, Engine, run};
use crate::burst::moves;
use crate::service::{ErrorKind, FullName, QueryState, ServiceError, Tenant};

/// Tasks of a stage of a query, of which some are or were on burst workers: a row of SHOW BURSTS.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Burst {
    /// The name of the query.
    pub(in crate::engine) query: String,
    /// The number of the stage, from 1.
    pub(in crate::engine) stage: usize,
    /// The numbers of its operators in EXPLAIN.
    pub(in crate::engine) operators: String,
    /// The number of its tasks, and of those that are away.
    pub(in crate::engine) tasks: usize,
    pub(in crate::engine) away: usize,
    /// The names of the workers that have them.
    pub(in crate::engine) workers: Vec<String>,
    /// Since when the first of them is away, microseconds since the epoch.
    pub(in crate::engine) since_us: Option<i64>,
    /// State that came with them or with their last checkpoint, in bytes.
    pub(in crate::engine) state_bytes: u64,
    /// Rows that were sent and are not answered.
    pub(in crate::engine) in_flight_rows: u64,
    /// What was last decided about it.
    pub(in crate::engine) why: String,
}

impl Engine {
    /// Sends tasks of a query to burst workers: of each stage that is meant the part `ratio`, above 0 and at most 1,
    /// rounded up. Returns what it has done, in words.
    ///
    /// # Errors
    /// There is no such query or operator; it stays on the server; or there is no worker for it.
    pub(in crate::engine) fn redirect_query(
        &self,
        name: &FullName,
        operators: &Operators,
        ratio: f64,
    ) -> Result<String, ServiceError> {
        let _ = (self.big_queries.to_burst(name, operators)?, ratio);
        Err(ServiceError::new(ErrorKind::Unavailable, "no burst worker is connected")
            .with_hint("start one on another machine: rivulet burst-worker --connect HOST:PORT"))
    }

    /// Brings tasks of a query back from burst workers. Returns what it has done, in words.
    ///
    /// # Errors
    /// There is no such query or operator; or the worker does not give them back in time.
    pub(in crate::engine) fn bring_query_back(
        &self,
        name: &FullName,
        operators: &Operators,
    ) -> Result<String, ServiceError> {
        self.big_queries.from_burst(name, operators)?;
        Ok("nothing of it is on a burst worker, nothing was done".into())
    }

    /// What of a tenant's queries is on burst workers, by query and stage.
    pub(in crate::engine) fn bursts(&self, _tenant: &Tenant) -> Vec<Burst> {
        Vec::new()
    }
}

/// The flow of a running query, and stages of it by their indices.
type Meant = (Arc<run::Running>, Vec<usize>);

impl BigQueries {
    /// The flow of a query, and the stages that may go to workers if `operators` are redirected.
    ///
    /// # Errors
    /// There is no such query, or it does not run; or what it has or its operators do stays on the server.
    pub(super) fn to_burst(&self, name: &FullName, operators: &Operators) -> Result<Meant, ServiceError> {
        self.meant_stages(name, |plan, running| {
            let stays = |message: String| ServiceError::new(ErrorKind::Conflict, message);
            if !plan.is_burst {
                return Err(stays(format!("'{name}' was not created with burst => true")).with_hint(format!(
                    "CREATE OR REPLACE QUERY {} AS SELECT ... INTO sink WITH (burst => true)",
                    name_in_sql(&name.name)
                )));
            }
            if !running.has_checkpoints() {
                let message =
                    format!("no checkpoints are made of '{name}', and what a lost worker has would be lost with it");
                return Err(stays(message)
                    .with_hint("set checkpoint.enabled, and let it write to a sink that goes on from checkpoints"));
            }
            let (flow, tasks) = (running.flow(), running.report().tasks);
            moves::redirected((&name.name, plan), flow.stages(), &tasks, operators)
        })
    }

    /// The flow of a query, and the stages of `operators`.
    ///
    /// # Errors
    /// There is no such query or operator, or the query does not run.
    pub(super) fn from_burst(&self, name: &FullName, operators: &Operators) -> Result<Meant, ServiceError> {
        self.meant_stages(name, |plan, running| moves::meant((&name.name, plan), running.flow().stages(), operators))
    }

    fn meant_stages(
        &self,
        name: &FullName,
        stages: impl FnOnce(&rivulet_sql::QueryPlan, &run::Running) -> Result<Vec<usize>, ServiceError>,
    ) -> Result<Meant, ServiceError> {
        let Some(one) = self.known.lock().query(name) else {
            return Err(ServiceError::not_found(format!("there is no query '{name}' with a text of its own"))
                .with_hint("those that say AS SELECT may burst; SHOW QUERIES lists all"));
        };
        let is_open = matches!(one.life.state(), QueryState::Running | QueryState::Paused);
        let (Some(plan), Some(running)) = (&one.plan, one.life.flow().filter(|_| is_open)) else {
            return Err(ServiceError::new(ErrorKind::Conflict, format!("'{name}' does not run"))
                .with_hint(format!("DESCRIBE QUERY {} says why", name_in_sql(&name.name))));
        };
        Ok((running.clone(), stages(plan, running)?))
    }
}
