//! One zero, one NaN, and results that do not fit.

use super::{Columns, PATHS, REFUSED, constant, evaluate, none_of, scalar};

/// Columns `a0` and `a1`, DOUBLE, with every pair of these numbers.
fn pairs() -> (Columns, Vec<[f64; 2]>) {
    let numbers = ["-Infinity", "-1.5", "-0.0", "0.0", "1.5", "Infinity", "NaN", "-NaN"];
    let value = |text: &str| match text {
        "-NaN" => f64::from_bits(f64::NAN.to_bits() | 1 << 63),
        text => text.parse().unwrap(),
    };
    let all: Vec<[f64; 2]> =
        numbers.iter().flat_map(|one| numbers.iter().map(move |other| [value(one), value(other)])).collect();
    let values =
        [0, 1].map(|at| all.iter().map(|pair| datafusion_common::ScalarValue::Float64(Some(pair[at]))).collect());
    (Columns { types: vec!["DOUBLE", "DOUBLE"], values: values.to_vec() }, all)
}

/// The order of numbers in PostgreSQL: NaN is equal to itself and greater than every other number.
fn order(one: f64, other: f64) -> std::cmp::Ordering {
    one.partial_cmp(&other).unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()))
}

#[test]
fn there_is_one_zero_and_one_nan_in_every_comparison() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let (columns, pairs) = pairs();
    // No source has such numbers, but an expression may make them: half of twice a number is the number.
    let [one, other] = ["(a0 * 2.0 / 2.0)", "(a1 * 2.0 / 2.0)"];
    type Expected = fn(f64, f64) -> String;
    fn min(one: f64, other: f64) -> f64 {
        if order(one, other) == Less { one } else { other }
    }
    fn max(one: f64, other: f64) -> f64 {
        if order(one, other) == Greater { one } else { other }
    }
    fn shown(value: f64) -> String {
        let array = arrow::array::Float64Array::from(vec![value + 0.0]);
        arrow::util::display::array_value_to_string(&array, 0).unwrap()
    }
    let cases: [(&str, Expected); 16] = [
        ("$1 = $2", |one, other| (order(one, other) == Equal).to_string()),
        ("$1 <> $2", |one, other| (order(one, other) != Equal).to_string()),
        ("$1 < $2", |one, other| (order(one, other) == Less).to_string()),
        ("$1 <= $2", |one, other| (order(one, other) != Greater).to_string()),
        ("$1 > $2", |one, other| (order(one, other) == Greater).to_string()),
        ("$1 >= $2", |one, other| (order(one, other) != Less).to_string()),
        ("$1 IS DISTINCT FROM $2", |one, other| (order(one, other) != Equal).to_string()),
        ("$1 IS NOT DISTINCT FROM $2", |one, other| (order(one, other) == Equal).to_string()),
        ("$1 BETWEEN $2 AND $2", |one, other| (order(one, other) == Equal).to_string()),
        ("$1 IN ($2, 77.0)", |one, other| (order(one, other) == Equal).to_string()),
        ("$1 NOT IN ($2, 77.0)", |one, other| (order(one, other) != Equal).to_string()),
        ("CASE $1 WHEN $2 THEN 'same' ELSE 'other' END", |one, other| {
            if order(one, other) == Equal { "same" } else { "other" }.to_owned()
        }),
        ("nullif($1, $2) IS NULL", |one, other| (order(one, other) == Equal).to_string()),
        ("least($1, $2)", |one, other| shown(min(one, other))),
        ("greatest($1, $2)", |one, other| shown(max(one, other))),
        ("coalesce($1, $2)", |one, _| shown(one)),
    ];
    let mut problems = Vec::new();
    for (template, expected) in cases {
        let expression = template.replace("$1", one).replace("$2", other);
        for path in PATHS {
            let found = evaluate(path, &expression, &columns).unwrap_or_else(|error| panic!("{expression}: {error}"));
            for (found, [one, other]) in found.iter().zip(&pairs) {
                let expected = expected(*one, *other);
                if *found != expected {
                    problems.push(format!("{path:?}: {template} of {one:?} and {other:?} is {found}, not {expected}"));
                }
            }
        }
    }
    none_of(problems);
}

#[test]
fn numbers_are_in_form_wherever_they_come_from() {
    let mut problems = Vec::new();
    for zero in [
        "-0.0",
        "-(0.0)",
        "0.0 * -1",
        "-1.0 * 0",
        "-1e-300 * 1e-300",
        "0.0 / -1",
        "-4.0 % 2",
        "round(-0.4)",
        "ceil(-0.5)",
        "trunc(-0.5)",
        "CAST('-0' AS DOUBLE)",
        "signum(-0.0)",
        "coalesce(NULL, -0.0)",
        "CASE WHEN TRUE THEN -0.0 END",
    ] {
        for path in PATHS {
            let found = constant(path, zero);
            if found != Ok("0.0".to_owned()) {
                problems.push(format!("{path:?}: {zero} is {found:?}"));
            }
        }
    }
    let nan = ["0.0 / 0.0", "CAST('NaN' AS DOUBLE)", "-CAST('NaN' AS DOUBLE)", "1e308 * 10 - 1e308 * 10"];
    for nan in nan {
        // A NaN, which is equal to any other NaN and greater than infinity.
        for (test, expected) in [("$ > 1e308 * 10", "true"), ("$ = CAST('NaN' AS DOUBLE)", "true")] {
            let columns = Columns { types: vec!["DOUBLE"], values: vec![vec![scalar("DOUBLE", Some("0.0"))]] };
            let expression = test.replace('$', &format!("(a0 + {nan})"));
            for path in PATHS {
                let found = evaluate(path, &expression, &columns);
                if found != Ok(vec![expected.to_owned()]) {
                    problems.push(format!("{path:?}: {expression} is {found:?}"));
                }
            }
        }
    }
    none_of(problems);
}

#[test]
fn what_does_not_fit_is_an_error_of_its_row() {
    const LEAST: &str = "-9223372036854775808";
    let columns = Columns {
        types: vec!["BIGINT"],
        values: vec![vec![scalar("BIGINT", Some(LEAST)), scalar("BIGINT", Some("5")), scalar("BIGINT", None)]],
    };
    let mut problems = Vec::new();
    for (expression, five) in [
        ("-a0", "-5"),
        ("-(a0)", "-5"),
        ("abs(a0)", "5"),
        ("0 - a0", "-5"),
        ("a0 * -1", "-5"),
        ("a0 / -1", "-5"),
        ("a0 - 1", "4"),
        ("CAST(a0 AS INT)", "5"),
        ("CAST(a0 AS SMALLINT)", "5"),
        ("CAST(a0 AS TINYINT)", "5"),
    ] {
        for path in PATHS {
            let found = evaluate(path, expression, &columns);
            if found != Ok(vec![REFUSED.to_owned(), five.to_owned(), "NULL".to_owned()]) {
                problems.push(format!("{path:?}: {expression} gives {found:?}"));
            }
        }
    }
    none_of(problems);
}
