//! The functions an expression may call: DataFusion's, less those that make no sense in a stream, and our own.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use datafusion_expr::ScalarUDF;
use rivulet_operators::AggregateFunction;

use super::bounded::bounded;
use super::haversine::haversine_m;
use super::query::scalars;

/// The functions that make windows, in GROUP BY only.
pub(super) const WINDOWS: [&str; 4] = ["tumble", "hop", "session", "count_window"];

/// The functions over a query's earlier rows.
pub(super) const HISTORY: [&str; 3] = ["lag", "changed", "hysteresis"];

/// Aggregates that SQL users know from elsewhere and that are not in the language (yet).
const OTHER_AGGREGATES: [&str; 17] = [
    "any_value",
    "approx_median",
    "approx_percentile_cont",
    "array_agg",
    "every",
    "group_concat",
    "grouping",
    "listagg",
    "mode",
    "nth_value",
    "percentile_disc",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_sxx",
    "string_agg",
    "variance",
];

/// Functions that are known elsewhere and not offered, with the reason and what to do instead.
pub(super) const REFUSED: [(&str, &str, &str); 13] = [
    ("now", "asks for the time of evaluation, which would make results depend on load", ARRIVAL),
    ("current_timestamp", "asks for the time of evaluation, which would make results depend on load", ARRIVAL),
    ("current_date", "asks for the time of evaluation, which would make results depend on load", ARRIVAL),
    ("current_time", "asks for the time of evaluation, which would make results depend on load", ARRIVAL),
    ("today", "asks for the time of evaluation, which would make results depend on load", ARRIVAL),
    ("localtimestamp", "asks for the time of evaluation, which would make results depend on load", ARRIVAL),
    ("localtime", "asks for the time of evaluation, which would make results depend on load", ARRIVAL),
    ("random", "gives another result on every evaluation", "results are a function of the events"),
    ("rand", "gives another result on every evaluation", "results are a function of the events"),
    ("uuid", "gives another result on every evaluation", "results are a function of the events"),
    ("lead", "looks at rows that have not come yet", "lag looks back; a big query has LEAD(x) OVER (ORDER BY ts)"),
    ("file_row_index", "is about files", "an application reads a stream"),
    ("input_file_name", "is about files", "an application reads a stream"),
];
const ARRIVAL: &str = "use the column arrival_time, when the event reached the engine";

/// Scalar functions about DataFusion itself or types the language does not have.
const INTERNAL: [&str; 17] = [
    "arrow_cast",
    "arrow_field",
    "arrow_metadata",
    "arrow_try_cast",
    "arrow_typeof",
    "cast_to_type",
    "get_field",
    "named_struct",
    "row",
    "struct",
    "to_date",
    "to_time",
    "try_cast_to_type",
    "union_extract",
    "union_tag",
    "version",
    "with_metadata",
];

/// What a function name stands for.
pub(super) enum Found {
    Scalar,
    Aggregate(AggregateFunction),
    Window,
    History,
    /// Known and not offered: why, and what to do instead.
    Refused(&'static str, &'static str),
    /// An aggregate that is not in the language (yet).
    OtherAggregate,
    Unknown,
}

/// The functions.
pub(super) struct Registry {
    scalars: HashMap<String, Arc<ScalarUDF>>,
}

/// Made once for the process: there is nothing in it that changes.
pub(super) static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

impl Registry {
    fn new() -> Self {
        let mut scalars = HashMap::new();
        // Later ones take the place of earlier ones: DataFusion's `to_char` gives back a format that it does not know.
        let functions = datafusion_functions::all_default_functions().into_iter().chain([haversine_m()]);
        for function in functions.chain(scalars::scalars()).map(bounded) {
            for name in function.aliases().iter().map(String::as_str).chain([function.name()]) {
                if !INTERNAL.contains(&name) && !REFUSED.iter().any(|(refused, ..)| *refused == name) {
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

    /// The scalar function called `name` (in lower case).
    pub(super) fn scalar(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalars.get(name).cloned()
    }

    /// What `name` (in lower case) stands for.
    pub(super) fn find(&self, name: &str) -> Found {
        if self.scalars.contains_key(name) {
            Found::Scalar
        } else if let Some(function) = AggregateFunction::from_name(name) {
            Found::Aggregate(function)
        } else if WINDOWS.contains(&name) {
            Found::Window
        } else if HISTORY.contains(&name) {
            Found::History
        } else if let Some((_, why, instead)) = REFUSED.iter().find(|(refused, ..)| *refused == name) {
            Found::Refused(why, instead)
        } else if OTHER_AGGREGATES.contains(&name) {
            Found::OtherAggregate
        } else {
            Found::Unknown
        }
    }

    /// All names a user may call, for suggestions.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        // The aggregates first: of two names equally near, that is the more likely one.
        let mut names: Vec<&str> = AggregateFunction::ALL.into_iter().map(AggregateFunction::name).collect();
        names.extend(WINDOWS);
        names.extend(HISTORY);
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
        assert!(matches!(REGISTRY.find("array_agg"), Found::OtherAggregate));
        assert!(matches!(REGISTRY.find("now"), Found::Refused(..)));
        assert!(matches!(REGISTRY.find("tumble"), Found::Window));
        assert!(matches!(REGISTRY.find("lag"), Found::History));
        assert!(matches!(REGISTRY.find("coalesce"), Found::Scalar));
        assert!(matches!(REGISTRY.find("nonsense"), Found::Unknown));
    }
}
