//! Every operator over decimals beside decimals, DOUBLE and BIGINT, against exact arithmetic and that of DOUBLE.

use std::cmp::Ordering;

use super::{Columns, PATHS, Path, REFUSED, evaluate, none_of, scalar};

/// A kind of operand: how it is written over a column, the type of that column, its digits behind the point if it is
/// exact, and its values.
struct Kind {
    written: &'static str,
    column: &'static str,
    scale: Option<u32>,
    values: &'static [&'static str],
}

const KINDS: [Kind; 4] = [
    Kind {
        written: "CAST($ AS DECIMAL(20, 4))",
        column: "TEXT",
        scale: Some(4),
        values: &["0.0000", "0.0001", "-0.0050", "99.9900", "-99.9900", "1234567890123456.7891", "2.0000"],
    },
    Kind {
        written: "CAST($ AS DECIMAL(4, 2))",
        column: "TEXT",
        scale: Some(2),
        values: &["0.00", "0.01", "-0.05", "99.99", "-99.99", "2.50", "-3.00"],
    },
    Kind {
        written: "$",
        column: "DOUBLE",
        scale: None,
        values: &["0", "1e-17", "-1e-17", "1e15", "1e300", "99.99", "-99.99", "0.1"],
    },
    Kind { written: "$", column: "BIGINT", scale: Some(0), values: &["0", "1", "-7", "3", "9007199254740993"] },
];

/// A number: its digits without the point if it is exact, and the nearest DOUBLE.
#[derive(Clone, Copy)]
struct Number {
    digits: i128,
    double: f64,
}

impl Number {
    fn of(text: &str, kind: &Kind) -> Self {
        let digits = if kind.scale.is_some() { text.replace('.', "").parse().unwrap() } else { 0 };
        Self { digits, double: text.parse().unwrap() }
    }
}

/// Digits as a decimal with so many of them behind the point.
fn written(digits: i128, scale: u32) -> String {
    let (magnitude, power) = (digits.unsigned_abs(), 10_u128.pow(scale));
    let sign = if digits < 0 { "-" } else { "" };
    match scale {
        0 => format!("{sign}{magnitude}"),
        _ => format!("{sign}{}.{:0width$}", magnitude / power, magnitude % power, width = scale as usize),
    }
}

/// A quotient, rounded half away from zero.
fn rounded(dividend: i128, divisor: i128) -> i128 {
    let whole = dividend / divisor;
    let is_half = 2 * (dividend % divisor).abs() >= divisor.abs();
    if is_half { whole + dividend.signum() * divisor.signum() } else { whole }
}

/// The result of each operator; nothing if this test does not say.
fn expected(operator: &str, of: [(&Kind, Number); 2]) -> Option<String> {
    let [(left_kind, left), (right_kind, right)] = of;
    let scales = left_kind.scale.zip(right_kind.scale);
    let order = match scales {
        Some((one, other)) => {
            let scaled = |number: Number, own: u32| number.digits * 10_i128.pow(one.max(other) - own);
            scaled(left, one).cmp(&scaled(right, other))
        }
        None => left.double.total_cmp(&right.double),
    };
    let is = |holds: bool| Some(holds.to_string());
    match operator {
        "=" | "IS NOT DISTINCT FROM" | "IN" | "CASE" => return is(order == Ordering::Equal),
        "<>" | "IS DISTINCT FROM" => return is(order != Ordering::Equal),
        "<" => return is(order == Ordering::Less),
        "<=" | "BETWEEN" => return is(order != Ordering::Greater),
        ">" => return is(order == Ordering::Greater),
        ">=" => return is(order != Ordering::Less),
        _ => {}
    }
    let Some((one, other)) = scales else {
        return Some(match operator {
            "+" => left.double + right.double,
            "-" => left.double - right.double,
            "*" => left.double * right.double,
            "/" => left.double / right.double,
            _ => return None,
        })
        .map(|value| format!("{value:?}"));
    };
    if one == 0 && other == 0 {
        // Whole numbers have tests of their own.
        return None;
    }
    let scale = one.max(other);
    let [left, right] =
        [(left, one), (right, other)].map(|(number, own)| (number.digits, number.digits * 10_i128.pow(scale - own)));
    let product = left.0 * right.0;
    Some(match operator {
        // A decimal has at most 38 digits.
        "*" if product.unsigned_abs() >= 10_u128.pow(38) => REFUSED.to_owned(),
        "+" => written(left.1 + right.1, scale),
        "-" => written(left.1 - right.1, scale),
        "*" => written(product, one + other),
        "/" if right.0 == 0 => REFUSED.to_owned(),
        "/" => written(rounded(left.0 * 10_i128.pow(4 + other), right.0), one + 4),
        _ => return None,
    })
}

/// Whether two results are the same: a DOUBLE may be written in more than one way.
fn is_same(found: &str, expected: &str, is_exact: bool) -> bool {
    match (is_exact, found.parse::<f64>(), expected.parse::<f64>()) {
        (false, Ok(found), Ok(expected)) => found == expected || found.is_nan() && expected.is_nan(),
        _ => found == expected,
    }
}

#[test]
fn every_operator_over_decimals_and_other_numbers() {
    const COMPARISONS: [&str; 8] = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"];
    let mut operators: Vec<(&str, String)> = COMPARISONS.map(|operator| (operator, format!("$1 {operator} $2"))).into();
    operators.extend(["+", "-", "*", "/"].map(|operator| (operator, format!("$1 {operator} $2"))));
    operators.extend([
        ("IN", "$1 IN ($2, $2)".to_owned()),
        ("BETWEEN", "$1 BETWEEN $1 AND $2".to_owned()),
        ("CASE", "CASE $1 WHEN $2 THEN TRUE ELSE FALSE END".to_owned()),
    ]);
    let mut problems = Vec::new();
    for [left, right] in KINDS.iter().flat_map(|left| KINDS.iter().map(move |right| [left, right])) {
        if left.column == "BIGINT" && right.column == "DOUBLE" || left.column == "DOUBLE" && right.column == "BIGINT" {
            continue;
        }
        let pairs = || left.values.iter().flat_map(|one| right.values.iter().map(move |other| [*one, *other]));
        let values =
            [0, 1].map(|side| pairs().map(|pair| scalar([left, right][side].column, Some(pair[side]))).collect());
        let columns = Columns { types: vec![left.column, right.column], values: values.to_vec() };
        let [one, other] = [left.written.replace('$', "a0"), right.written.replace('$', "a1")];
        for (operator, template) in &operators {
            let expression = template.replace("$1", &one).replace("$2", &other);
            for path in PATHS {
                let found = evaluate(path, &format!("CAST({expression} AS TEXT)"), &columns)
                    .unwrap_or_else(|error| panic!("{expression}: {error}"));
                for (found, [one, other]) in found.iter().zip(pairs()) {
                    let of = [(left, Number::of(one, left)), (right, Number::of(other, right))];
                    let Some(expected) = expected(operator, of) else { continue };
                    if !is_same(found, &expected, left.scale.is_some() && right.scale.is_some()) {
                        problems.push(format!(
                            "{path:?}: {template} of {one} ({}) and {other} ({}) is {found}, not {expected}",
                            left.written, right.written
                        ));
                    }
                }
            }
        }
    }
    problems.truncate(100);
    none_of(problems);
}

/// What gives one of its arguments gives a DOUBLE where one of them is, and a decimal where all are exact.
#[test]
fn what_gives_one_of_its_arguments_has_room_for_all() {
    let columns = Columns {
        types: vec!["DOUBLE", "TEXT"],
        values: vec![vec![scalar("DOUBLE", Some("1e20"))], vec![scalar("TEXT", Some("2.50"))]],
    };
    let mut problems = Vec::new();
    for (template, expected) in [
        ("greatest($1, $2)", 1e20),
        ("least($1, $2)", 2.5),
        ("coalesce($1, $2)", 1e20),
        ("nullif($1, $2)", 1e20),
        ("CASE WHEN TRUE THEN $1 ELSE $2 END", 1e20),
        ("if(FALSE, $1, $2)", 2.5),
        ("CASE WHEN $1 > $2 THEN $1 END", 1e20),
    ] {
        let expression = template.replace("$1", "a0").replace("$2", "CAST(a1 AS DECIMAL(4, 2))");
        for path in PATHS {
            let found = evaluate(path, &expression, &columns);
            let number = found.as_ref().ok().and_then(|found| found[0].parse::<f64>().ok());
            if number != Some(expected) {
                problems.push(format!("{path:?}: {expression} is {found:?}, not {expected}"));
            }
        }
    }
    none_of(problems);
}

#[test]
fn functions_of_one_decimal_have_room_for_their_results() {
    let mut problems = Vec::new();
    for (expression, expected) in [
        ("floor(CAST('-99.99' AS DECIMAL(4, 2)))", "-100.00"),
        ("ceil(CAST('99.99' AS DECIMAL(4, 2)))", "100.00"),
        ("FLOOR(CAST('99.99' AS DECIMAL(4, 2)))", "99.00"),
        ("CEIL(CAST('-99.99' AS DECIMAL(4, 2)))", "-99.00"),
        ("floor(CAST('-7' AS DECIMAL(4, 0)))", "-7"),
        ("floor(CAST('-0.5' AS DECIMAL(38, 1)))", "-1.0"),
        ("floor(CAST(NULL AS DECIMAL(4, 2)))", "NULL"),
        ("round(CAST('99.99' AS DECIMAL(4, 2)))", "100"),
        ("round(CAST('-99.99' AS DECIMAL(4, 2)), 1)", "-100.0"),
        ("abs(CAST('-99.99' AS DECIMAL(4, 2)))", "99.99"),
        ("-CAST('99.99' AS DECIMAL(4, 2))", "-99.99"),
        ("CAST('1' AS DECIMAL(4, 2)) / 3", "0.333333"),
        ("CAST('2' AS DECIMAL(4, 2)) / 3", "0.666667"),
        ("CAST('-2' AS DECIMAL(4, 2)) / 3", "-0.666667"),
        ("CAST('0.01' AS DECIMAL(4, 2)) / 20000", "0.000001"),
    ] {
        for path in PATHS {
            let found = evaluate(path, &format!("CAST({expression} AS TEXT)"), &Columns::default());
            if found.as_ref().map(|found| found[0].as_str()) != Ok(expected) {
                problems.push(format!("{path:?}: {expression} is {found:?}, not {expected}"));
            }
        }
    }
    none_of(problems);
    assert_eq!(PATHS, [Path::Application, Path::BigQuery]);
}
