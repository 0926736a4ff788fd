//! The functions that a query calls: those that are not there are refused by name, with what was probably meant.

use rivulet_relational::calls::calls;

use super::error::call_place;
use super::scalars;
use crate::plan::functions::{Found, REGISTRY};
use crate::statement::BigQuery;
use crate::{SqlError, suggest};

/// Functions of windows, which have their own places.
const WINDOWS: [&str; 13] = [
    "tumble",
    "hop",
    "cumulate",
    "session",
    "tumble_start",
    "tumble_end",
    "hop_start",
    "hop_end",
    "cumulate_start",
    "cumulate_end",
    "session_start",
    "session_end",
    "proctime",
];

/// Arguments of windows in FROM that look like calls.
const ARGUMENTS: [&str; 2] = ["descriptor", "partition_by"];

/// Functions that rank or look at other rows, and are not there.
const RANKS: [&str; 8] = ["rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lead", "lag", "nth_value"];

/// Fails at the first call of a function that is not there.
pub(super) fn check(query: &BigQuery) -> Result<(), SqlError> {
    for call in calls(query.query()) {
        let position = call_place(call.place).or(query.position);
        let name = call.name.as_str();
        let is_own =
            WINDOWS.contains(&name) || ARGUMENTS.contains(&name) || name == "row_number" || scalars::is_scalar(name);
        if is_own {
            continue;
        }
        if RANKS.contains(&name) {
            return Err(SqlError::new(position, format!("{name} is not supported yet"))
                .hint("ROW_NUMBER() is, with a condition on it; and aggregates OVER (... ROWS n PRECEDING)"));
        }
        match REGISTRY.find(name) {
            Found::Scalar | Found::Aggregate(_) => {}
            Found::Refused(why, instead) => {
                let instead =
                    if instead.contains("arrival_time") { "use PROCTIME() as the time of a window" } else { instead };
                return Err(SqlError::new(position, format!("{name} {why}")).hint(instead));
            }
            Found::OtherAggregate => {
                return Err(SqlError::new(position, format!("the aggregate {name} is not supported yet")));
            }
            Found::Window => {
                return Err(SqlError::new(position, format!("{name} is not supported yet in queries over sources"))
                    .hint("windows are TUMBLE, HOP, CUMULATE and SESSION"));
            }
            Found::History => {
                return Err(SqlError::new(position, format!("{name} is not supported yet in queries over sources"))
                    .hint("applications have it; here there are aggregates OVER (... ROWS n PRECEDING)"));
            }
            Found::Unknown => {
                let names = REGISTRY.names().chain(WINDOWS).chain(["row_number"]).chain(scalars::NAMES);
                let error = SqlError::new(position, format!("unknown function '{name}'"));
                return Err(error.did_you_mean(suggest::nearest(name, names)));
            }
        }
    }
    Ok(())
}
