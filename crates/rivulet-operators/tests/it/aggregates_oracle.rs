//! Aggregates against DataFusion's own functions: what a window gives is what the function of the same name gives over
//! the window's rows, nulls, NaN and infinities included. (approx_distinct is left out: it is another sketch.)

use std::sync::Arc;

use crate::common::*;
use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use datafusion_expr::AggregateUDF;
use datafusion_functions_aggregate as df;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::aggregate::AggregateExprBuilder;
use proptest::prelude::*;
use rivulet_dataflow::Element;
use rivulet_operators::AggregateFunction as F;

/// A function, its arguments (columns v, n, s), its counterpart, and whether that is to be DISTINCT.
type Pair = (F, Vec<Arc<dyn PhysicalExpr>>, Arc<AggregateUDF>, bool);

/// The columns v, n, s of a row.
type Values = (Option<f64>, Option<i64>, Option<&'static str>);

fn pairs() -> Vec<Pair> {
    let (v, n, s) = (|| column(0), || column(1), || column(2));
    vec![
        (F::Count, vec![v()], df::count::count_udaf(), false),
        (F::CountDistinct, vec![n()], df::count::count_udaf(), true),
        (F::CountDistinct, vec![s()], df::count::count_udaf(), true),
        (F::Sum, vec![v()], df::sum::sum_udaf(), false),
        (F::Sum, vec![n()], df::sum::sum_udaf(), false),
        (F::Avg, vec![v()], df::average::avg_udaf(), false),
        (F::Min, vec![v()], df::min_max::min_udaf(), false),
        (F::Max, vec![v()], df::min_max::max_udaf(), false),
        (F::Min, vec![n()], df::min_max::min_udaf(), false),
        (F::Max, vec![s()], df::min_max::max_udaf(), false),
        (F::StddevSamp, vec![v()], df::stddev::stddev_udaf(), false),
        (F::StddevPop, vec![v()], df::stddev::stddev_pop_udaf(), false),
        (F::VarSamp, vec![v()], df::variance::var_samp_udaf(), false),
        (F::VarPop, vec![v()], df::variance::var_pop_udaf(), false),
        (F::Median, vec![v()], df::median::median_udaf(), false),
        (F::CovarSamp, vec![v(), n()], df::covariance::covar_samp_udaf(), false),
        (F::CovarPop, vec![v(), n()], df::covariance::covar_pop_udaf(), false),
        (F::RegrSlope, vec![v(), n()], df::regr::regr_slope_udaf(), false),
        (F::RegrIntercept, vec![v(), n()], df::regr::regr_intercept_udaf(), false),
        (F::RegrR2, vec![v(), n()], df::regr::regr_r2_udaf(), false),
        (F::Corr, vec![v(), n()], df::correlation::corr_udaf(), false),
    ]
}

/// The columns as DataFusion sees them: two-argument functions there take floating point numbers.
fn oracle(rows: &[Row], udaf: &Arc<AggregateUDF>, arguments: &[Arc<dyn PhysicalExpr>], distinct: bool) -> Value {
    let arrays: Vec<ArrayRef> = arguments
        .iter()
        .map(|argument| -> ArrayRef {
            match argument.to_string().as_str() {
                "v@0" => Arc::new(rows.iter().map(|row| row.v).collect::<Float64Array>()),
                "n@1" if arguments.len() > 1 => {
                    Arc::new(rows.iter().map(|row| row.n.map(|n| n as f64)).collect::<Float64Array>())
                }
                "n@1" => Arc::new(rows.iter().map(|row| row.n).collect::<Int64Array>()),
                _ => Arc::new(rows.iter().map(|row| row.s).collect::<StringArray>()),
            }
        })
        .collect();
    let fields: Vec<_> = arrays
        .iter()
        .enumerate()
        .map(|(index, array)| arrow::datatypes::Field::new(format!("a{index}"), array.data_type().clone(), true))
        .collect();
    let columns = (0..fields.len()).map(|index| {
        let column = datafusion_physical_expr::expressions::Column::new(&format!("a{index}"), index);
        Arc::new(column) as Arc<dyn PhysicalExpr>
    });
    let mut builder = AggregateExprBuilder::new(udaf.clone(), columns.collect())
        .schema(Arc::new(arrow::datatypes::Schema::new(fields)))
        .alias("a");
    if distinct {
        builder = builder.distinct();
    }
    let mut accumulator = builder.build().unwrap().create_accumulator().unwrap();
    accumulator.update_batch(&arrays).unwrap();
    value(accumulator.evaluate().unwrap().to_array().unwrap().as_ref(), 0)
}

/// Equal, or floating point numbers that are close; a value at the edge of what 64 bits resolve may be null or zero.
fn same(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Float(found), Value::Float(expected)) => {
            let (found, expected) = (f64::from_bits(*found), f64::from_bits(*expected));
            found.to_bits() == expected.to_bits()
                || found == expected
                || (found - expected).abs() <= 1e-9 * found.abs().max(expected.abs()).max(1.0)
        }
        _ => found == expected,
    }
}

fn check(rows: &[Row], width: i64, slide: i64) -> Result<(), TestCaseError> {
    let aggregates = pairs().into_iter().map(|(function, arguments, ..)| aggregate(function, arguments)).collect();
    let mut hand = Hand::new(spec(hop(), false, aggregates), &[(width, slide)]);
    hand.rows(rows);
    hand.element(Element::End);
    for window in &hand.windows {
        let inside: Vec<Row> =
            rows.iter().filter(|row| (window.start..window.end).contains(&row.time)).cloned().collect();
        for ((function, arguments, udaf, distinct), found) in pairs().iter().zip(&window.values) {
            let expected = match *function == F::RegrR2 && is_flat(&inside) {
                // DataFusion has null there; the standard and PostgreSQL have 1.
                true => Value::Float(1.0_f64.to_bits()),
                false => oracle(&inside, udaf, arguments, *distinct),
            };
            prop_assert!(same(found, &expected), "{function}: {found:?} is not {expected:?} over {inside:?}");
        }
    }
    Ok(())
}

/// Whether all y are equal over different x.
fn is_flat(rows: &[Row]) -> bool {
    let pairs: Vec<(f64, i64)> = rows.iter().filter_map(|row| Some((row.v?, row.n?))).collect();
    let Some((v, n)) = pairs.first() else { return false };
    pairs.iter().all(|pair| pair.0 == *v) && pairs.iter().any(|pair| pair.1 != *n)
}

fn rows(values: &[Values]) -> Vec<Row> {
    values.iter().enumerate().map(|(time, &(v, n, s))| Row { v, n, s, ..row(0, time as i64, 0.0) }).collect()
}

#[test]
fn nothing_one_value_and_equal_values() {
    let cases: [&[Values]; 6] = [
        &[(None, None, None)],
        &[(Some(1.5), Some(2), Some("a"))],
        &[(Some(1.5), None, Some("")), (None, Some(2), None)],
        &[(Some(2.0), Some(3), None), (Some(2.0), Some(3), None)],
        &[(Some(2.0), Some(3), None), (Some(2.0), Some(4), None)],
        &[(Some(2.0), Some(3), None), (Some(5.0), Some(3), None), (Some(7.0), Some(3), None)],
    ];
    for case in cases {
        check(&rows(case), 100, 100).unwrap();
    }
}

#[test]
fn infinities_and_nan_in_minimum_maximum_and_sums() {
    let nan_sign = f64::from_bits(f64::NAN.to_bits() | 1 << 63);
    for special in [f64::NAN, nan_sign, f64::INFINITY, f64::NEG_INFINITY, -0.0] {
        for others in [vec![], vec![1.0], vec![f64::INFINITY, 3.0]] {
            let all: Vec<Row> =
                [special].iter().chain(&others).enumerate().map(|(t, v)| row(0, t as i64, *v)).collect();
            let functions = [F::Sum, F::Avg, F::Max, F::Count];
            let specs = functions.iter().map(|function| aggregate(*function, vec![column(0)])).collect();
            let mut hand = Hand::new(spec(tumble(), false, specs), &[(100, 100)]);
            hand.rows(&all);
            hand.element(Element::End);
            let udafs =
                [df::sum::sum_udaf(), df::average::avg_udaf(), df::min_max::max_udaf(), df::count::count_udaf()];
            for ((function, udaf), found) in functions.iter().zip(&udafs).zip(&hand.windows[0].values) {
                // DataFusion takes a NaN with its sign bit set for the least number; here NaN is one value, the
                // greatest.
                if *function == F::Max && special.to_bits() == nan_sign.to_bits() {
                    assert_eq!(found, &Value::float(f64::NAN));
                    continue;
                }
                let expected = oracle(&all, udaf, &[column(0)], false);
                assert!(same(found, &expected), "{function} of {special} and {others:?}: {found:?}, not {expected:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_rows(
        values in prop::collection::vec(
            (
                prop::option::weighted(0.8, -1000.0..1000.0f64),
                prop::option::weighted(0.8, -100..100i64),
                prop::option::weighted(0.8, prop_oneof![Just("a"), Just("b"), Just("a longer text than eight")]),
            ),
            0..60,
        ),
        width in 1..50i64,
        slide in 1..30i64,
    ) {
        check(&rows(&values), width, slide)?;
    }
}
