//! The functions an expression may call: our own, and DataFusion's except those that make no sense in a stream.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use datafusion_expr::ScalarUDF;
use rivulet_operators::AggregateFunction;
use rivulet_relational::functions::RANKINGS;

use super::bounded::bounded;
use super::haversine::haversine_m;
use super::scalars;
use crate::{Position, SqlError};

/// The functions that make windows, in GROUP BY only.
pub(super) const WINDOWS: [&str; 6] = ["tumble", "hop", "cumulate", "session", "count_window", "state_window"];

/// The functions over a query's earlier rows.
pub(super) const HISTORY: [&str; 3] = ["lag", "changed", "hysteresis"];

/// Aggregates of other SQL dialects that are not in the language (yet).
const OTHER_AGGREGATES: [&str; 14] = [
    "any_value",
    "approx_median",
    "approx_percentile_cont",
    "every",
    "group_concat",
    "grouping",
    "mode",
    "nth_value",
    "percentile_disc",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_sxx",
    "variance",
];

/// Words for the clock. In an application they mean the column `arrival_time`; a big query refuses them.
pub(super) const CLOCK: [&str; 3] = ["now", "current_timestamp", "localtimestamp"];

/// The aggregate of the language that is similar to one of another dialect.
pub(super) fn instead_of(aggregate: &str) -> Option<&'static str> {
    Some(match aggregate {
        "group_concat" => "string_agg(name, ', ') is",
        "any_value" => "first_value and last_value are",
        "variance" => "var_samp and var_pop are",
        "every" => "bool_and is",
        "approx_median" => "median is",
        "approx_percentile_cont" => "percentile_cont(x, 0.9) is",
        "percentile_disc" => "percentile_cont(x, 0.9) is, between two values interpolated",
        "mode" => "count(*) GROUP BY x is, with row_number() to keep the most frequent value",
        "regr_avgx" | "regr_avgy" => "avg is: avg(x) FILTER (WHERE y IS NOT NULL)",
        "regr_count" => "count is: count(*) FILTER (WHERE x IS NOT NULL AND y IS NOT NULL)",
        _ => return None,
    })
}

/// Functions of other dialects that are not offered, with the reason and what to do instead.
pub(super) const REFUSED: [(&str, &str, &str); 13] = [
    ("now", CLOCK_WHY, ARRIVAL),
    ("current_timestamp", CLOCK_WHY, ARRIVAL),
    ("localtimestamp", CLOCK_WHY, ARRIVAL),
    ("current_date", CLOCK_WHY, "write CAST(arrival_time AS DATE): the day when the event reached the engine"),
    ("today", CLOCK_WHY, "write CAST(arrival_time AS DATE): the day when the event reached the engine"),
    ("current_time", CLOCK_WHY, "write to_char(arrival_time, 'HH24:MI:SS'): when the event reached the engine"),
    ("localtime", CLOCK_WHY, "write to_char(arrival_time, 'HH24:MI:SS'): when the event reached the engine"),
    ("random", "gives another result on every evaluation", "results are a function of the events"),
    ("rand", "gives another result on every evaluation", "results are a function of the events"),
    ("lead", "looks at rows that have not come yet", "lag looks back; a big query has LEAD(x) OVER (ORDER BY ts)"),
    (
        "unnest",
        "makes rows of an array and stands in FROM",
        "write FROM t CROSS JOIN UNNEST(array) WITH ORDINALITY AS e (element, number)",
    ),
    ("file_row_index", "is about files", "an application reads a stream"),
    ("input_file_name", "is about files", "an application reads a stream"),
];
const CLOCK_WHY: &str = "asks for the time of evaluation, which would make results depend on load";
const ARRIVAL: &str = "use the column arrival_time, when the event reached the engine";

/// Why no UUID is made without an argument, and what to do instead.
pub(super) const UUID_OF_NOTHING: (&str, &str) = (
    "gives another result on every evaluation where it has no argument",
    "say of what: uuid(concat_ws('/', device, ts)) is the same for the same values, and another for others",
);

/// Functions of DataFusion's packages that are not offered, with the reason and what to do instead.
pub(super) const LEFT_OUT: [(&[&str], &str, &str); 5] = [
    (
        &[
            "arrow_cast",
            "arrow_field",
            "arrow_metadata",
            "arrow_try_cast",
            "arrow_typeof",
            "cast_to_type",
            "try_cast_to_type",
            "with_metadata",
        ],
        "is about the types of DataFusion",
        "CAST(x AS TYPE) and TRY_CAST(x AS TYPE) give a value another type of SQL",
    ),
    (
        &["get_field", "union_extract", "union_tag"],
        "is about structs and unions of DataFusion",
        "a field of a row is row['field'], and a field of a JSON object is a column: \"radio.rssi\" BIGINT",
    ),
    (&["version"], "is about DataFusion itself", "`rivulet --version` says the version"),
    (
        &[
            "array_any_value",
            "array_avg",
            "array_compact",
            "array_distinct",
            "array_except",
            "array_has_all",
            "array_has_any",
            "array_intersect",
            "array_max",
            "array_min",
            "array_position",
            "array_positions",
            "array_product",
            "array_remove",
            "array_remove_all",
            "array_remove_n",
            "array_replace",
            "array_replace_all",
            "array_replace_n",
            "array_reverse",
            "array_sort",
            "array_sum",
            "array_union",
            "flatten",
        ],
        "is about lists of DataFusion",
        "UNNEST(array) makes a row of each element, and array_agg(x) an array of rows; array_contains looks for one",
    ),
    (
        &[
            "array_add",
            "array_append",
            "array_concat",
            "array_dims",
            "array_distance",
            "array_ndims",
            "array_normalize",
            "array_pop_back",
            "array_pop_front",
            "array_prepend",
            "array_repeat",
            "array_resize",
            "array_scale",
            "array_slice",
            "array_subtract",
            "arrays_zip",
            "cosine_distance",
            "empty",
            "generate_series",
            "inner_product",
            "make_array",
            "map_entries",
            "map_extract",
            "range",
        ],
        "is about lists and maps of DataFusion",
        "arrays and maps are JSON, made by json_array and map; see array[1], map['key'], cardinality, array_contains, \
         array_to_string and map_keys in the reference of functions",
    ),
];

/// Why a function of DataFusion's packages is not offered, and what to do instead.
fn left_out(name: &str) -> Option<(&'static str, &'static str)> {
    LEFT_OUT.iter().find(|(names, ..)| names.contains(&name)).map(|(_, why, instead)| (*why, *instead))
}

/// The error for an aggregate that follows rows one by one, over rows without an order.
pub(super) fn one_by_one(function: AggregateFunction, position: Position) -> SqlError {
    let arguments = if function == AggregateFunction::Kalman { "x, 0.125, 0.32" } else { "x, 5" };
    SqlError::new(position, format!("{function} follows rows one by one")).hint(format!(
        "in a big query write {function}({arguments}) OVER (PARTITION BY k ORDER BY ts ROWS UNBOUNDED PRECEDING)"
    ))
}

/// The meaning of a function name.
pub(super) enum Found {
    Scalar,
    Aggregate(AggregateFunction),
    Window,
    History,
    Rank,
    /// Known and not offered: the reason, and what to do instead.
    Refused(&'static str, &'static str),
    /// An aggregate that is not in the language (yet).
    OtherAggregate,
    Unknown,
}

impl Found {
    /// Whether a call looks at earlier rows; `is_over` says that it has OVER.
    pub(super) fn looks_back(&self, is_over: bool) -> bool {
        matches!(self, Self::History) || is_over && matches!(self, Self::Aggregate(_))
    }
}

/// The functions.
pub(super) struct Registry {
    scalars: HashMap<String, Arc<ScalarUDF>>,
}

/// Made once for the process, because nothing in it changes.
pub(super) static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

impl Registry {
    fn new() -> Self {
        let mut scalars = HashMap::new();
        // Later functions replace earlier ones of the same name. For example, DataFusion's `to_char` returns a format
        // that it does not know as the result.
        let functions = datafusion_functions::all_default_functions().into_iter().chain([haversine_m()]);
        for function in functions.chain(scalars::scalars()).map(bounded) {
            for name in function.aliases().iter().map(String::as_str).chain([function.name()]) {
                if left_out(name).is_none() && !REFUSED.iter().any(|(refused, ..)| *refused == name) {
                    scalars.insert(name.to_owned(), function.clone());
                }
            }
        }
        Self { scalars }
    }

    /// All scalar functions, by all their names.
    pub(super) fn scalars(&self) -> impl Iterator<Item = (String, Arc<ScalarUDF>)> + '_ {
        self.scalars.iter().map(|(name, function)| (name.clone(), function.clone()))
    }

    /// Returns the meaning of `name` (in lower case).
    pub(super) fn find(&self, name: &str) -> Found {
        if self.scalars.contains_key(name) {
            Found::Scalar
        } else if let Some(function) = AggregateFunction::from_name(name) {
            Found::Aggregate(function)
        } else if WINDOWS.contains(&name) {
            Found::Window
        } else if HISTORY.contains(&name) {
            Found::History
        } else if RANKINGS.contains(&name) {
            Found::Rank
        } else if let Some((_, why, instead)) = REFUSED.iter().find(|(refused, ..)| *refused == name) {
            Found::Refused(why, instead)
        } else if let Some((why, instead)) = left_out(name) {
            Found::Refused(why, instead)
        } else if OTHER_AGGREGATES.contains(&name) {
            Found::OtherAggregate
        } else {
            Found::Unknown
        }
    }

    /// All names a user may call, for suggestions.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        // Aggregates come first: of two names that are equally near, the aggregate is the more likely one.
        let mut names: Vec<&str> = AggregateFunction::all().map(AggregateFunction::name).collect();
        names.extend(WINDOWS);
        names.extend(HISTORY);
        names.extend(RANKINGS);
        let mut scalars: Vec<&str> = self.scalars.keys().map(String::as_str).collect();
        scalars.sort_unstable();
        names.extend(scalars);
        names.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use datafusion_expr::Volatility;

    use super::*;

    #[test]
    fn every_function_offered_depends_on_its_arguments_only() {
        for (name, function) in &REGISTRY.scalars {
            assert_eq!(function.signature().volatility, Volatility::Immutable, "{name}");
        }
    }

    #[test]
    fn names_are_told_apart() {
        assert!(matches!(REGISTRY.find("mean"), Found::Aggregate(AggregateFunction::Avg)));
        assert!(matches!(REGISTRY.find("array_agg"), Found::Aggregate(AggregateFunction::ArrayAgg)));
        assert!(matches!(REGISTRY.find("group_concat"), Found::OtherAggregate));
        assert!(matches!(REGISTRY.find("now"), Found::Refused(..)));
        assert!(matches!(REGISTRY.find("arrow_typeof"), Found::Refused(..)));
        assert!(matches!(REGISTRY.find("tumble"), Found::Window));
        assert!(matches!(REGISTRY.find("lag"), Found::History));
        assert!(matches!(REGISTRY.find("coalesce"), Found::Scalar));
        assert!(matches!(REGISTRY.find("nonsense"), Found::Unknown));
    }
}
