//! Times of numbers with a fraction, which are those that the readers of formats give for the same numbers.

use super::{Columns, PATHS, REFUSED, constant, evaluate, none_of, scalar};

/// Numbers since 1970 with up to six digits of a second, and their microseconds.
fn numbers() -> Vec<i64> {
    // A generator of its own, so that each run has the same numbers.
    let mut state = 7_u64;
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as i64
    };
    let mut all: Vec<i64> = (0..4_000).map(|_| 1_500_000_000_000_000 + next(&mut state) * 200_000).collect();
    all.extend((0..2_000).map(|_| 1_770_000_000_000_000 + next(&mut state) % 1_000_000_000_000 / 1_000 * 1_000));
    all.extend((0..2_000).map(|_| next(&mut state) - (1 << 30)));
    all.extend([0, 1, -1, 1_770_797_494_270_000, 1_707_639_094_270_000, -62_135_596_800_000_000 / 8]);
    all
}

#[test]
fn a_number_with_a_fraction_is_the_time_that_its_digits_say() {
    let mut problems = Vec::new();
    let times = numbers();
    for (function, digits) in
        [("to_timestamp", 6), ("to_timestamp_seconds", 6), ("to_timestamp_millis", 3), ("to_timestamp_micros", 0)]
    {
        let power = 10_i64.pow(digits);
        let text = |time_us: i64| {
            let (sign, time_us) = (if time_us < 0 { "-" } else { "" }, time_us.abs());
            format!("{sign}{}.{:0width$}", time_us / power, time_us % power, width = digits.max(1) as usize)
        };
        let texts: Vec<String> = times.iter().map(|time_us| text(*time_us)).collect();
        for (column, written) in [("DOUBLE", "a0"), ("TEXT", "CAST(a0 AS DECIMAL(25, 6))")] {
            let values = texts.iter().map(|text| scalar(column, Some(text))).collect();
            let columns = Columns { types: vec![column], values: vec![values] };
            let expression = format!("CAST({function}({written}) AS BIGINT)");
            for path in PATHS {
                let found = evaluate(path, &format!("CAST({expression} AS TEXT)"), &columns).unwrap();
                for ((found, time_us), text) in found.iter().zip(&times).zip(&texts) {
                    // `to_timestamp` counts nanoseconds.
                    let found_us =
                        found.parse::<i64>().map(|found| if function == "to_timestamp" { found / 1000 } else { found });
                    if found_us != Ok(*time_us) {
                        problems.push(format!("{path:?}: {function}({text}) of {column} is {found}, not {time_us}"));
                    }
                }
            }
        }
    }
    problems.truncate(20);
    none_of(problems);
}

#[test]
fn what_is_no_time_is_an_error_of_its_row() {
    let mut problems = Vec::new();
    for (expression, expected) in [
        ("to_timestamp(1770797494.27)", "2026-02-11T08:11:34.270"),
        ("to_timestamp(0.0000005)", "1970-01-01T00:00:00.000001"),
        ("to_timestamp(-0.0000005)", "1969-12-31T23:59:59.999999"),
        ("to_timestamp_seconds(1770797494.27)", "2026-02-11T08:11:34.270"),
        ("to_timestamp_millis(1770797494270.5)", "2026-02-11T08:11:34.270500"),
        ("to_timestamp_micros(1770797494270000.5)", "2026-02-11T08:11:34.270001"),
        ("to_timestamp(CAST(NULL AS DOUBLE))", "NULL"),
        ("to_timestamp(0.0 / 0)", REFUSED),
        ("to_timestamp(1e300)", REFUSED),
        ("to_timestamp(-1e11)", REFUSED),
        ("to_timestamp_seconds(1.0 / 0)", REFUSED),
        ("to_timestamp_millis(1e17)", REFUSED),
    ] {
        for path in PATHS {
            // A constant that is no time may be an error of the statement.
            let found = constant(path, expression);
            if found.as_deref() != Ok(expected) && !(expected == REFUSED && found.is_err()) {
                problems.push(format!("{path:?}: {expression} is {found:?}, not {expected}"));
            }
        }
    }
    none_of(problems);
}
