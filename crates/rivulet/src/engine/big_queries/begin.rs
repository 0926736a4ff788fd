//! Where a query goes on whose sink makes results final by itself, as in a transaction: at its newest checkpoint whose
//! results are. A crash between a checkpoint and the transaction that belongs to it leaves one whose results are not,
//! and never came.
//!
//! What must hold: results up to where a query goes on are final, and none behind that; otherwise it does not go on,
//! and what to do is said.

use rivulet_connectors::connector::FinalUpTo;
use rivulet_dataflow::Snapshot;
use rivulet_sql::QueryPlan;

use super::saved::Saved;
use crate::service::{ErrorKind, ServiceError};

/// How a query begins.
pub(super) enum Begin {
    /// From a checkpoint, or anew.
    At(Option<(u64, Snapshot)>),
    /// Not at all: it has come to the end of its input.
    HasEnded,
}

/// Where a query goes on of which `found` is the newest checkpoint. Those behind that are given up.
/// `final_up_to` asks the sink up to where results are final.
pub(super) fn begin_where_final(
    plan: &QueryPlan,
    query: &str,
    saved: &mut Saved,
    found: Option<(u64, Snapshot)>,
    final_up_to: &dyn Fn(&Snapshot) -> Result<FinalUpTo, ServiceError>,
) -> Result<Begin, ServiceError> {
    let Some((epoch, snapshot)) = found else { return Ok(Begin::At(None)) };
    let final_up_to = match final_up_to(&snapshot)? {
        // What is final up to the end of the version before is so up to where this one begins.
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
        // Of a query that wrote elsewhere before, all that it has written here.
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
    match to {
        Some(to) => tracing::warn!(query, "results behind checkpoint {to} were not final, and are computed once more"),
        None => tracing::warn!(query, "its first results were not final, and are computed once more"),
    }
    Ok(Begin::At(saved.restore(plan)?.0))
}
