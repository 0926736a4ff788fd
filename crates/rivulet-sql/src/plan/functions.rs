//! The functions an expression may call: DataFusion's, less those that make no sense in a stream, and our own.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;
use datafusion_common::config::ConfigOptions;
use datafusion_common::{Result, TableReference, plan_err};
use datafusion_expr::planner::{ContextProvider, ExprPlanner};
use datafusion_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, TableSource, WindowUDF};
use datafusion_functions::core::planner::CoreFunctionPlanner;
use datafusion_functions::datetime::planner::DatetimeFunctionPlanner;
use datafusion_functions::unicode::planner::UnicodeFunctionPlanner;
use rivulet_operators::AggregateFunction;

use super::haversine::haversine_m;

/// The functions that make windows, in GROUP BY only.
pub(super) const WINDOWS: [&str; 4] = ["tumble", "hop", "session", "count_window"];

/// Aggregates that SQL users know from elsewhere and that are not in the language (yet).
const OTHER_AGGREGATES: [&str; 20] = [
    "any_value",
    "approx_median",
    "approx_percentile_cont",
    "array_agg",
    "bit_and",
    "bit_or",
    "bit_xor",
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

/// Scalar functions of DataFusion that are not offered, with the reason and what to do instead.
const REFUSED: [(&str, &str, &str); 12] = [
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
    /// Known and not offered: why, and what to do instead.
    Refused(&'static str, &'static str),
    /// An aggregate that is not in the language (yet).
    OtherAggregate,
    Unknown,
}

/// The functions, and the rest of what DataFusion's planner asks its surroundings for.
pub(super) struct Registry {
    scalars: HashMap<String, Arc<ScalarUDF>>,
    planners: Vec<Arc<dyn ExprPlanner>>,
    pub(super) options: Arc<ConfigOptions>,
}

/// Made once for the process: there is nothing in it that changes.
pub(super) static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

impl Registry {
    fn new() -> Self {
        let mut scalars = HashMap::new();
        for function in datafusion_functions::all_default_functions().into_iter().chain([haversine_m()]) {
            for name in function.aliases().iter().map(String::as_str).chain([function.name()]) {
                if !INTERNAL.contains(&name) && !REFUSED.iter().any(|(refused, ..)| *refused == name) {
                    scalars.insert(name.to_owned(), function.clone());
                }
            }
        }
        Self {
            scalars,
            planners: vec![
                Arc::new(CoreFunctionPlanner::default()),
                Arc::new(DatetimeFunctionPlanner),
                Arc::new(UnicodeFunctionPlanner),
            ],
            options: Arc::new(ConfigOptions::default()),
        }
    }

    /// What `name` (in lower case) stands for.
    pub(super) fn find(&self, name: &str) -> Found {
        if self.scalars.contains_key(name) {
            Found::Scalar
        } else if let Some(function) = AggregateFunction::from_name(name) {
            Found::Aggregate(function)
        } else if WINDOWS.contains(&name) {
            Found::Window
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
        let mut scalars: Vec<&str> = self.scalars.keys().map(String::as_str).collect();
        scalars.sort_unstable();
        names.extend(scalars);
        names.into_iter()
    }
}

impl ContextProvider for Registry {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        plan_err!("unknown input '{name}'")
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalars.get(name).cloned()
    }

    fn get_higher_order_meta(&self, _name: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    // Aggregates never reach DataFusion's planner: they are taken out of the tree before, and computed by our own
    // operators.
    fn get_aggregate_meta(&self, _name: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _name: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _variable_names: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.scalars.keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
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
        assert!(matches!(REGISTRY.find("coalesce"), Found::Scalar));
        assert!(matches!(REGISTRY.find("nonsense"), Found::Unknown));
    }
}
