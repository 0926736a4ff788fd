//! Placeholder functions: they stand for something until the plan is made. They have names and types, and are never
//! evaluated.

use std::fmt;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::{Result, not_impl_err};
use datafusion_expr::function::{AccumulatorArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, PartitionEvaluator, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, WindowUDF, WindowUDFImpl,
};

use crate::times::TIMESTAMP;

/// The name of the function that stands for the time by the clock.
pub const PROCTIME: &str = "proctime";

/// The bounds of windows in GROUP BY: `tumble_start`, `tumble_end` and so on.
pub(crate) const BOUNDS: [(&str, &str, bool); 10] = [
    ("tumble_start", "tumble", false),
    ("tumble_end", "tumble", true),
    ("hop_start", "hop", false),
    ("hop_end", "hop", true),
    ("cumulate_start", "cumulate", false),
    ("cumulate_end", "cumulate", true),
    ("session_start", "session", false),
    ("session_end", "session", true),
    ("count_window_start", COUNT_WINDOW, false),
    ("count_window_end", COUNT_WINDOW, true),
];

/// The functions that make windows of time.
pub(crate) const WINDOWS: [&str; 4] = ["tumble", "hop", "cumulate", "session"];
/// The function that makes windows of a number of rows, in GROUP BY only.
pub(crate) const COUNT_WINDOW: &str = "count_window";

/// `PROCTIME()`: the time by the clock, for windows only.
pub fn proctime() -> Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| placeholder(PROCTIME));
    FUNCTION.clone()
}

/// `GROUPING(a, b)`: which of these keys of GROUP BY are missing in a set of keys.
pub const GROUPING: &str = "grouping";

/// The aggregate of that name. It becomes a number in the plan.
pub(crate) fn grouping() -> (String, Arc<AggregateUDF>) {
    let signature = Signature::variadic_any(Volatility::Immutable);
    (GROUPING.to_owned(), Arc::new(AggregateUDF::from(Grouping { signature })))
}

/// The functions that give rows numbers.
pub const RANKINGS: [&str; 3] = ["row_number", "rank", "dense_rank"];
/// `LAG(x, rows)`.
pub const LAG: &str = "lag";
/// `LEAD(x, rows)`.
pub const LEAD: &str = "lead";

/// The aggregates for which the planner asks for window functions of the same name.
pub(crate) const VALUES: [&str; 2] = ["first_value", "last_value"];

/// The functions over other rows of a partition that are not aggregates: [`RANKINGS`], [`LAG`] and [`LEAD`]; and
/// [`VALUES`], which the planner looks for among these. They are planned as the aggregates of the same names.
pub(crate) fn over_functions() -> impl Iterator<Item = (String, Arc<WindowUDF>)> {
    let function = |name: &'static str| {
        let signature = match name {
            LAG | LEAD | "first_value" | "last_value" => Signature::variadic_any(Volatility::Immutable),
            _ => Signature::nullary(Volatility::Immutable),
        };
        (name.to_owned(), Arc::new(WindowUDF::from(OverPlaceholder { name, signature })))
    };
    RANKINGS.into_iter().chain([LAG, LEAD]).chain(VALUES).map(function)
}

/// The name of the condition that a version is the one at a time. Its arguments are the time, of the rows that ask, and
/// a column of the version.
pub const SYSTEM_TIME: &str = "system_time_as_of";

/// The condition of that name. No query calls it.
pub(crate) fn system_time() -> Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| placeholder(SYSTEM_TIME));
    FUNCTION.clone()
}

/// The name of the mark of a key for which null equals null. Its argument is the key.
pub(crate) const NULL_SAFE: &str = "null_safe";

/// The mark of that name. No query calls it.
pub(crate) fn null_safe() -> Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| placeholder(NULL_SAFE));
    FUNCTION.clone()
}

/// All placeholder functions that a query may call.
pub(crate) fn placeholders() -> Vec<Arc<ScalarUDF>> {
    BOUNDS.iter().map(|(name, ..)| placeholder(name)).chain([proctime()]).collect()
}

fn placeholder(name: &'static str) -> Arc<ScalarUDF> {
    // Volatile, so that no rule moves or computes it.
    let signature = match name {
        PROCTIME => Signature::nullary(Volatility::Volatile),
        // It may move to where both sides are at hand.
        SYSTEM_TIME => Signature::any(2, Volatility::Immutable),
        NULL_SAFE => Signature::any(1, Volatility::Immutable),
        _ => Signature::variadic_any(Volatility::Volatile),
    };
    Arc::new(ScalarUDF::from(Placeholder { name, signature }))
}

#[derive(PartialEq, Eq, Hash)]
struct Placeholder {
    name: &'static str,
    signature: Signature,
}

impl fmt::Debug for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl ScalarUDFImpl for Placeholder {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(match (self.name, arguments) {
            (SYSTEM_TIME, _) => DataType::Boolean,
            (NULL_SAFE, [key]) => key.clone(),
            _ => TIMESTAMP,
        })
    }

    fn invoke_with_args(&self, _arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        not_impl_err!("{} has no value by itself", self.name)
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Grouping {
    signature: Signature,
}

impl AggregateUDFImpl for Grouping {
    fn name(&self) -> &str {
        GROUPING
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn is_nullable(&self) -> bool {
        false
    }

    fn accumulator(&self, _arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        not_impl_err!("{GROUPING} is not evaluated here")
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OverPlaceholder {
    name: &'static str,
    signature: Signature,
}

impl WindowUDFImpl for OverPlaceholder {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn partition_evaluator(&self, _arguments: PartitionEvaluatorArgs) -> Result<Box<dyn PartitionEvaluator>> {
        not_impl_err!("{} is not evaluated here", self.name)
    }

    fn field(&self, arguments: WindowUDFFieldArgs) -> Result<FieldRef> {
        Ok(Arc::new(match arguments.input_fields().first() {
            Some(value) if [LAG, LEAD].contains(&self.name) => {
                value.as_ref().clone().with_name(arguments.name()).with_nullable(true)
            }
            _ => Field::new(arguments.name(), DataType::Int64, false),
        }))
    }
}
