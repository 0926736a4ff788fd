//! The functions that a query calls. Functions that do not exist are refused by name, with what was probably meant.

use rivulet_relational::calls::calls;
use rivulet_relational::functions::{GROUPING, LAG, LEAD, RANKINGS};

use crate::plan::functions::{Found, REGISTRY, UUID_OF_NOTHING, instead_of};
use crate::plan::synonyms;
use crate::statement::{BigQuery, PREDICT};
use crate::{Position, SqlError};

/// Functions of windows, which may only be called in their own places.
const WINDOWS: [&str; 14] = [
    "tumble",
    "hop",
    "cumulate",
    "session",
    "count_window",
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

/// Functions that rank or read other rows and are not supported.
const RANKS: [&str; 4] = ["percent_rank", "cume_dist", "ntile", "nth_value"];

/// Fails at the first call of a function that does not exist.
pub(super) fn check(query: &BigQuery) -> Result<(), SqlError> {
    for call in calls(query.query()?) {
        let position = Position::from(call.place).or(query.position);
        let name = call.name.as_str();
        let is_over = RANKINGS.contains(&name) || [LAG, LEAD].contains(&name);
        if is_over && !call.is_over {
            let argument = if RANKINGS.contains(&name) { "" } else { "x" };
            let example = format!("{}({argument}) OVER (PARTITION BY key ORDER BY ts)", name.to_uppercase());
            return Err(SqlError::new(position, format!("{name} needs OVER, which says among which rows"))
                .hint(format!("write {example}")));
        }
        if name == GROUPING && (call.is_over || call.is_filtered || call.is_distinct) {
            return Err(SqlError::new(position, "GROUPING takes keys of GROUP BY, and nothing else")
                .hint("write for example GROUPING(a) behind GROUP BY ROLLUP (a, b)"));
        }
        let is_own = is_over || name == GROUPING || WINDOWS.contains(&name) || ARGUMENTS.contains(&name);
        if is_own {
            continue;
        }
        if call.has_star && (name != "count" || call.is_distinct) {
            return Err(
                SqlError::new(position, format!("'*' is not an argument of {name}")).hint("only count(*) takes a star")
            );
        }
        if RANKS.contains(&name) {
            return Err(SqlError::new(position, format!("{name} is not supported yet"))
                .hint("ROW_NUMBER(), RANK() and DENSE_RANK() are, with a condition on them; LAG(x, n) and LEAD(x, n); and aggregates OVER (... ROWS n PRECEDING)"));
        }
        if name == "uuid" && !call.has_arguments {
            let (why, instead) = UUID_OF_NOTHING;
            return Err(SqlError::new(position, format!("{name} {why}")).hint(instead));
        }
        match if name == PREDICT { Found::Scalar } else { REGISTRY.find(name) } {
            Found::Scalar if call.is_over || call.is_filtered || call.is_distinct => {
                let what = match (call.is_over, call.is_filtered) {
                    (true, _) => "OVER is",
                    (_, true) => "FILTER and WITHIN GROUP are",
                    _ => "DISTINCT is",
                };
                return Err(SqlError::new(position, format!("{name} is not an aggregate"))
                    .hint(format!("{what} for aggregates: leave it out")));
            }
            Found::Scalar | Found::Aggregate(_) | Found::Rank => {}
            Found::Refused(why, instead) => {
                let instead =
                    if instead.contains("arrival_time") { "use PROCTIME() as the time of a window" } else { instead };
                return Err(SqlError::new(position, format!("{name} {why}")).hint(instead));
            }
            Found::OtherAggregate => {
                let error = SqlError::new(position, format!("the aggregate {name} is not supported yet"));
                return Err(match instead_of(name) {
                    Some(instead) => error.hint(instead),
                    None => error,
                });
            }
            Found::Window => {
                return Err(SqlError::new(position, format!("{name} is not supported yet in queries over sources"))
                    .hint("windows are TUMBLE, HOP, CUMULATE, SESSION and count_window"));
            }
            Found::History => {
                return Err(SqlError::new(position, format!("{name} is not supported yet in queries over sources"))
                    .hint(
                        "applications have it; here there are LAG(x, n) and aggregates OVER (... ROWS n PRECEDING)",
                    ));
            }
            Found::Unknown => {
                let names = REGISTRY.names().chain(WINDOWS).chain(RANKINGS).chain([LAG, LEAD, PREDICT]);
                let error = SqlError::new(position, format!("unknown function '{name}'"));
                return Err(match synonyms::instead(name) {
                    Some(instead) => error.hint(instead),
                    None => error.suggest(name, names, "SHOW FUNCTIONS lists those that there are"),
                });
            }
        }
    }
    Ok(())
}
