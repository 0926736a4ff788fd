//! Where a query continues: at its newest checkpoint. If its sink makes results final by itself, as in a transaction,
//! it continues at the newest checkpoint whose results are final. A crash between a checkpoint and the transaction that
//! belongs to it leaves a checkpoint whose results never became final.
//!
//! What must hold: results up to where a query continues are final, and none after that. Otherwise the query does not
//! continue, and the error says what to do.

use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::connector::FinalUpTo;
use rivulet_dataflow::Snapshot;
use rivulet_sql::QueryPlan;

use super::BigQueries;
use super::life::{Resumed, Started};
use super::saved::Saved;
use crate::run;
use crate::service::{ErrorKind, FullName, ServiceError};

/// How a query begins.
pub(super) enum Begin {
    /// From a checkpoint, or anew without one.
    At(Option<(u64, Snapshot)>),
    /// Not at all: the query has come to the end of its input.
    HasEnded,
}

impl BigQueries {
    /// Starts a query from its last checkpoint, or from the start if it has none. `text` is the text it was planned
    /// with; another version may have taken over since.
    pub(super) fn start_saved(
        &self,
        name: &FullName,
        text: &str,
        plan: &Arc<QueryPlan>,
        saved: Option<&Arc<Mutex<Saved>>>,
    ) -> Result<Started, ServiceError> {
        let mut found = None;
        if let Some(saved) = saved {
            let mut saved = saved.lock();
            if !saved.is_of(text) {
                let message = format!("another version of '{name}' has taken over");
                return Err(ServiceError::new(ErrorKind::Conflict, message));
            }
            let (newest, problems) = saved.restore(plan)?;
            let begin = self.begin_where_final(plan, name, &mut saved, newest);
            self.note_damage(name, &problems, &begin);
            found = match begin? {
                Begin::At(found) => found,
                Begin::HasEnded => return Ok(Started::HasEnded),
            };
        }
        let (resumed, snapshot) = match found {
            Some((epoch, snapshot)) => (Resumed::FromCheckpoint(epoch), Some(snapshot)),
            None => (Resumed::FromTheStart, None),
        };
        let running = Arc::new(self.opener.start(plan, name, snapshot, self.tap_of(name, plan))?);
        if let Resumed::FromCheckpoint(epoch) = resumed {
            tracing::info!(query = name.in_log(), epoch, "goes on from its checkpoint");
        }
        Ok(Started::Runs(resumed, running))
    }

    /// Reports damaged checkpoints of a query, if there are any, and what that means for how it begins.
    pub(super) fn note_damage(&self, name: &FullName, problems: &[String], begin: &Result<Begin, ServiceError>) {
        if problems.is_empty() {
            return;
        }
        let goes_on = match begin {
            Ok(Begin::At(Some((epoch, _)))) => {
                format!("it goes on from checkpoint {epoch}, and what was written since then may come twice")
            }
            Ok(Begin::At(None)) => "it begins anew, and what was written before may come twice".to_owned(),
            Ok(Begin::HasEnded) => "it has come to the end of its input all the same".to_owned(),
            Err(_) => "it does not run".to_owned(),
        };
        let problem =
            |query: &str| format!("checkpoints of the query {query} are damaged: {}; {goes_on}", problems.join("; "));
        tracing::error!("{}", problem(&format!("'{}'", name.in_log())));
        self.checkpoints.iter().for_each(|checkpoints| checkpoints.note_damage(problem(&name.in_public())));
    }

    /// Where a query continues whose newest checkpoint is `found`. Checkpoints after that point are abandoned.
    pub(super) fn begin_where_final(
        &self,
        plan: &Arc<QueryPlan>,
        name: &FullName,
        saved: &mut Saved,
        found: Option<(u64, Snapshot)>,
    ) -> Result<Begin, ServiceError> {
        let Some((epoch, snapshot)) = found else { return Ok(Begin::At(None)) };
        let ask = {
            let (plan, host, snapshot) = (plan.clone(), self.opener.host_of(name), snapshot.clone());
            move || run::final_up_to(&plan, &host, &snapshot)
        };
        let what = format!("asking the sink of '{name}' where it is");
        let final_up_to = match self.opener.call(&what, self.opener.limit(), ask)? {
            // If results are final up to the end of the version before, they are final up to where this one begins.
            FinalUpTo::Epoch { number, set_by } => {
                FinalUpTo::Epoch { number: saved.taken_over(number).unwrap_or(number), set_by }
            }
            final_up_to => final_up_to,
        };
        let to = match final_up_to {
            FinalUpTo::Any => return Ok(Begin::At(Some((epoch, snapshot)))),
            FinalUpTo::Epoch { number, .. } if number == epoch => return Ok(Begin::At(Some((epoch, snapshot)))),
            FinalUpTo::Ended => {
                saved.end(plan)?;
                return Ok(Begin::HasEnded);
            }
            FinalUpTo::Epoch { number: final_up_to, set_by } if final_up_to > epoch => {
                let message = format!(
                    "its results are final up to checkpoint {final_up_to}, and the newest that can be used is {epoch}: what came between would come twice"
                );
                return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint(format!(
                    "restore checkpoint {final_up_to}; or, to go on all the same, {set_by} to {epoch}"
                )));
            }
            FinalUpTo::Epoch { number, .. } => Some(number),
            // If the query wrote elsewhere before, all that it has written here is computed again.
            FinalUpTo::Nothing => saved.begin_of_sink(),
        };
        if !saved.go_back(to)? {
            let message = format!(
                "its results are final up to checkpoint {}, which is not there, or of another version",
                to.unwrap_or_default()
            );
            return Err(ServiceError::new(ErrorKind::Unavailable, message)
                .with_hint("drop the query and create it again to begin anew"));
        }
        let query = name.in_log();
        match to {
            Some(to) => {
                tracing::warn!(query, "results behind checkpoint {to} were not final, and are computed once more")
            }
            None => tracing::warn!(query, "its first results were not final, and are computed once more"),
        }
        Ok(Begin::At(saved.restore(plan)?.0))
    }
}
