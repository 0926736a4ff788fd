//! Functions on empty texts, extremes, negative counts and times that are out of range. The expected values are
//! PostgreSQL's if it has the function.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use super::nulls::{FUNCTIONS, argument, filled, literal};
use super::{Columns, PATHS, Path, REFUSED, evaluate, none_of, scalar};

/// A call as in the table of nulls, its arguments, and its result.
type Case = (&'static str, &'static [&'static str], &'static str);

const CASES: &[Case] = &[
    ("substr($1, $2)", &["'hello'", "0"], "hello"),
    ("substr($1, $2)", &["'hello'", "-3"], "hello"),
    ("substr($1, $2)", &["'hello'", "10"], ""),
    ("substr($1, $2, $3)", &["'hello'", "0", "3"], "he"),
    ("substr($1, $2, $3)", &["'hello'", "-1", "3"], "h"),
    ("substr($1, $2, $3)", &["'hello'", "2", "-1"], REFUSED),
    ("substr($1, $2, $3)", &["'hello'", "2", "0"], ""),
    ("substr($1, $2, $3)", &["'äöü'", "2", "1"], "ö"),
    ("substr($1, $2, $3)", &["'hello'", "2", "9223372036854775807"], "ello"),
    ("left($1, $2)", &["'hello'", "-2"], "hel"),
    ("left($1, $2)", &["'hello'", "0"], ""),
    ("left($1, $2)", &["'hello'", "-9"], ""),
    ("left($1, $2)", &["'hello'", "-9223372036854775808"], ""),
    ("left($1, $2)", &["'äöü'", "2"], "äö"),
    ("right($1, $2)", &["'hello'", "-2"], "llo"),
    ("right($1, $2)", &["'hello'", "0"], ""),
    ("right($1, $2)", &["'hello'", "-9"], ""),
    ("right($1, $2)", &["'hello'", "-9223372036854775808"], ""),
    ("lpad($1, $2)", &["'hello'", "2"], "he"),
    ("lpad($1, $2)", &["'hello'", "-2"], ""),
    ("lpad($1, $2, $3)", &["'hi'", "5", "''"], "hi"),
    ("lpad($1, $2, $3)", &["'hi'", "6", "'xyz'"], "xyzxhi"),
    ("rpad($1, $2)", &["'hello'", "2"], "he"),
    ("rpad($1, $2)", &["'hello'", "-2"], ""),
    ("rpad($1, $2, $3)", &["'hi'", "5", "''"], "hi"),
    ("repeat($1, $2)", &["'a'", "-1"], ""),
    ("repeat($1, $2)", &["''", "5"], ""),
    ("split_part($1, $2, $3)", &["'a,b'", "','", "3"], ""),
    ("split_part($1, $2, $3)", &["'a,b'", "','", "-1"], "b"),
    ("split_part($1, $2, $3)", &["'a,b'", "','", "-3"], ""),
    ("split_part($1, $2, $3)", &["'a,b'", "','", "0"], REFUSED),
    ("split_part($1, $2, $3)", &["''", "','", "1"], ""),
    ("split_part($1, $2, $3)", &["'a,b'", "''", "1"], "a,b"),
    ("split_part($1, $2, $3)", &["'a,b'", "''", "2"], ""),
    ("split_index($1, $2, $3)", &["'a,b'", "','", "-1"], "NULL"),
    ("split_index($1, $2, $3)", &["'a,b'", "','", "2"], "NULL"),
    ("replace($1, $2, $3)", &["'abc'", "''", "'x'"], "abc"),
    ("replace($1, $2, $3)", &["''", "'a'", "'x'"], ""),
    ("translate($1, $2, $3)", &["'abc'", "''", "'x'"], "abc"),
    ("translate($1, $2, $3)", &["'abc'", "'ab'", "'x'"], "xc"),
    ("translate($1, $2, $3)", &["'abc'", "'aa'", "'xy'"], "xbc"),
    ("strpos($1, $2)", &["'abc'", "''"], "1"),
    ("strpos($1, $2)", &["''", "''"], "1"),
    ("strpos($1, $2)", &["''", "'a'"], "0"),
    ("strpos($1, $2)", &["'äbc'", "'c'"], "3"),
    ("starts_with($1, $2)", &["'abc'", "''"], "true"),
    ("ends_with($1, $2)", &["'abc'", "''"], "true"),
    ("contains($1, $2)", &["'abc'", "''"], "true"),
    ("ascii($1)", &["''"], "0"),
    ("ascii($1)", &["'ä'"], "228"),
    ("chr($1)", &["-1"], REFUSED),
    ("chr($1)", &["1114112"], REFUSED),
    ("initcap($1)", &["'hi THOMAS o-neil'"], "Hi Thomas O-Neil"),
    ("initcap($1)", &["''"], ""),
    ("reverse($1)", &["''"], ""),
    ("length($1)", &["''"], "0"),
    ("length($1)", &["'äö'"], "2"),
    ("octet_length($1)", &["'ä'"], "2"),
    ("bit_length($1)", &["''"], "0"),
    ("trim($1)", &["''"], ""),
    ("btrim($1, $2)", &["'abc'", "''"], "abc"),
    ("concat_ws($1, $2, $3)", &["','", "''", "'b'"], ",b"),
    ("overlay($1, $2, $3)", &["'abc'", "'X'", "10"], "abcX"),
    ("overlay($1, $2, $3)", &["'abc'", "'X'", "0"], REFUSED),
    ("overlay($1, $2, $3, $4)", &["'abc'", "'X'", "2", "0"], "aXbc"),
    ("overlay($1, $2, $3, $4)", &["'abc'", "'X'", "2", "-1"], "aXabc"),
    ("regexp_replace($1, $2, $3)", &["'abc'", "''", "'X'"], "Xabc"),
    ("regexp_replace($1, $2, $3)", &["'abb'", "'b'", "'X'"], "aXb"),
    ("regexp_count($1, $2)", &["'abc'", "''"], "4"),
    ("regexp_count($1, $2)", &["''", "'a'"], "0"),
    ("regexp_like($1, $2)", &["''", "''"], "true"),
    ("regexp_instr($1, $2)", &["'abc'", "'z'"], "0"),
    ("$1 ~ $2", &["'abc'", "'('"], REFUSED),
    ("$1 LIKE $2", &["'abc'", "''"], "false"),
    ("$1 LIKE $2", &["''", "''"], "true"),
    ("$1 LIKE $2", &["''", "'%'"], "true"),
    ("$1 LIKE $2", &["'a%'", "'a\\%'"], "true"),
    ("$1 LIKE $2", &["'ab'", "'a\\%'"], "false"),
    ("$1 LIKE $2", &["'a\nb'", "'a%'"], "true"),
    ("to_hex($1)", &["-1"], "ffffffffffffffff"),
    ("to_hex($1)", &["0"], "0"),
    ("encode($1, $2)", &["''", "='hex'"], ""),
    ("encode($1, $2)", &["'ab'", "='base64'"], "YWI="),
    ("CAST(decode($1, $2) AS TEXT)", &["'YWI='", "='base64'"], "ab"),
    ("CAST(decode($1, $2) AS TEXT)", &["'zz'", "='hex'"], REFUSED),
    ("levenshtein($1, $2)", &["''", "'abc'"], "3"),
    ("substr_index($1, $2, $3)", &["'a.b.c'", "'.'", "-2"], "b.c"),
    ("substr_index($1, $2, $3)", &["'a.b.c'", "'.'", "0"], ""),
    ("substr_index($1, $2, $3)", &["'a.b.c'", "''", "1"], ""),
    ("count_char($1, $2)", &["''", "'a'"], "0"),
    (
        "digest($1, $2)",
        &["'abc'", "'SHA512'"],
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
      2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    ),
    ("digest($1, $2)", &["'abc'", "'blake3'"], REFUSED),
    ("uuid($1)", &["''"], "e3b0c442-98fc-8c14-9afb-f4c8996fb924"),
    ("to_date($1)", &["'2026-02-30'"], REFUSED),
    ("to_time($1)", &["'25:00'"], REFUSED),
    ("nullif($1, $2)", &["''", "''"], "NULL"),
    ("round($1)", &["-0.4"], "0.0"),
    ("round($1)", &["1.5"], "2.0"),
    ("round($1, $2)", &["1234.5", "-2"], "1200.0"),
    ("round($1, $2)", &["1e305", "5"], "1e305"),
    ("round($1, $2)", &["1.5", "400"], "1.5"),
    ("round($1, $2)", &["1.5", "-400"], "0.0"),
    ("trunc($1)", &["-1.5"], "-1.0"),
    ("trunc($1, $2)", &["1e305", "5"], "1e305"),
    ("ceil($1)", &["-0.5"], "0.0"),
    ("signum($1)", &["0.0"], "0.0"),
    ("sqrt($1)", &["-1.0"], REFUSED),
    // Outside of their domain, functions of DOUBLE return what IEEE 754 defines, where PostgreSQL has errors.
    ("ln($1)", &["0.0"], "-inf"),
    ("ln($1)", &["-1.0"], "NaN"),
    ("log($1)", &["0.0"], "-inf"),
    ("log10($1)", &["-1.0"], "NaN"),
    ("log2($1)", &["0.0"], "-inf"),
    ("power($1, $2)", &["0.0", "-1.0"], REFUSED),
    ("power($1, $2)", &["-8.0", "0.5"], "NaN"),
    ("power($1, $2)", &["0.0", "0.0"], "1.0"),
    ("exp($1)", &["1000.0"], "inf"),
    ("acos($1)", &["2.0"], "NaN"),
    ("asin($1)", &["2.0"], "NaN"),
    ("acosh($1)", &["0.5"], "NaN"),
    ("atanh($1)", &["2.0"], "NaN"),
    ("factorial($1)", &["-1"], REFUSED),
    ("factorial($1)", &["21"], REFUSED),
    ("factorial($1)", &["0"], "1"),
    ("gcd($1, $2)", &["0", "0"], "0"),
    ("gcd($1, $2)", &["-12", "8"], "4"),
    ("gcd($1, $2)", &["-9223372036854775808", "0"], REFUSED),
    ("lcm($1, $2)", &["0", "5"], "0"),
    ("lcm($1, $2)", &["9223372036854775807", "2"], REFUSED),
    ("mod($1, $2)", &["5", "0"], REFUSED),
    ("mod($1, $2)", &["-7", "2"], "-1"),
    ("mod($1, $2)", &["-9223372036854775808", "-1"], "0"),
    ("$1 / $2", &["5", "0"], REFUSED),
    ("$1 / $2", &["-7", "2"], "-3"),
    ("$1 + $2", &["9223372036854775807", "1"], REFUSED),
    ("$1 + $2", &["9223372036854775807", "1.0"], "9.223372036854776e18"),
    ("date_part($1, $2)", &["='dow'", "@2026-11-22"], "0"),
    ("date_part($1, $2)", &["='isodow'", "@2026-11-22"], "7"),
    ("date_part($1, $2)", &["='doy'", "@2026-02-01"], "32"),
    ("date_part($1, $2)", &["='week'", "@2026-01-01"], "1"),
    ("date_part($1, $2)", &["='quarter'", "@2026-11-22"], "4"),
    ("date_part($1, $2)", &["='epoch'", "@1970-01-01 00:00:01.5"], "1.5"),
    // PostgreSQL returns the fraction too. Here seconds are whole numbers, as in other stream engines.
    ("date_part($1, $2)", &["='second'", "@1970-01-01 00:00:31.5"], "31"),
    ("date_part($1, $2)", &["='millisecond'", "@1970-01-01 00:00:31.5"], "31500"),
    ("date_part($1, $2)", &["='year'", "@1700-01-01"], "1700"),
    ("second($1)", &["@1970-01-01 00:00:31.5"], "31"),
    ("date_part($1, $2)", &["='fortnight'", "@2026-11-22"], REFUSED),
    ("date_trunc($1, $2)", &["='week'", "@2026-11-22 08:00:00"], "2026-11-16T00:00:00"),
    ("date_trunc($1, $2)", &["='month'", "@1969-11-22 08:00:00"], "1969-11-01T00:00:00"),
    ("date_trunc($1, $2)", &["='day'", "@1969-11-22 08:00:00"], "1969-11-22T00:00:00"),
    ("date_trunc($1, $2)", &["='second'", "@1969-11-22 08:00:00.5"], "1969-11-22T08:00:00"),
    ("date_trunc($1, $2)", &["='fortnight'", "@2026-11-22"], REFUSED),
    ("date_bin(INTERVAL '15 minutes', $1)", &["@1969-12-31 23:59:59"], "1969-12-31T23:45:00"),
    ("make_date($1, $2, $3)", &["2026", "2", "30"], REFUSED),
    ("make_date($1, $2, $3)", &["2026", "13", "1"], REFUSED),
    ("make_time($1, $2, $3)", &["25", "0", "0"], REFUSED),
    ("$1 + INTERVAL '1 month'", &["@2026-01-31"], "2026-02-28T00:00:00"),
    ("to_timestamp_seconds($1)", &["9223372036854775807"], REFUSED),
    ("to_timestamp_millis($1)", &["9223372036854775807"], REFUSED),
    ("to_timestamp_seconds($1)", &["-1"], "1969-12-31T23:59:59"),
    ("to_timestamp($1)", &["9223372036854775807"], REFUSED),
    ("to_timestamp($1)", &["'yesterday-ish'"], REFUSED),
    ("from_unixtime($1)", &["9223372036854775807"], REFUSED),
    ("to_unixtime($1)", &["@1969-12-31 23:59:59"], "-1"),
    ("to_char($1, 'YYYY-MM-DD HH24:MI:SS.US')", &["@1969-12-31 23:59:59.5"], "1969-12-31 23:59:59.500000"),
    ("CAST($1 AS BIGINT)", &["'5.7'"], REFUSED),
    ("CAST($1 AS BIGINT)", &["''"], REFUSED),
    ("CAST($1 AS BIGINT)", &["'9223372036854775808'"], REFUSED),
    ("CAST($1 AS BIGINT)", &["1e300"], REFUSED),
    ("CAST($1 AS DOUBLE)", &["'abc'"], REFUSED),
    ("CAST($1 AS DOUBLE)", &["''"], REFUSED),
    ("CAST($1 AS DOUBLE)", &["'-inf'"], "-inf"),
    ("CAST($1 AS BOOLEAN)", &["'maybe'"], REFUSED),
    ("CAST($1 AS BOOLEAN)", &["'t'"], "true"),
    ("CAST($1 AS TIMESTAMP)", &["'noon'"], REFUSED),
    ("CAST($1 AS DATE)", &["'2026-02-30'"], REFUSED),
    ("CAST(CAST($1 AS DOUBLE) AS BIGINT)", &["'NaN'"], REFUSED),
];

/// An event has one arrival time, so processing it again has the same result.
#[test]
fn the_clock_of_an_application_is_the_arrival() {
    for word in ["now()", "NOW()", "current_timestamp", "localtimestamp"] {
        let found = evaluate(Path::Application, word, &Columns::default());
        assert_eq!(found.as_deref(), Ok(&["1970-01-01T00:00:00".to_owned()][..]), "{word}");
        let refused = evaluate(Path::BigQuery, word, &Columns::default()).unwrap_err();
        assert!(refused.contains("use PROCTIME()"), "{refused}");
    }
    for (path, call) in PATHS.into_iter().flat_map(|path| ["now(3)", "uuid()"].map(|call| (path, call))) {
        let refused = evaluate(path, call, &Columns::default()).unwrap_err();
        assert!(refused.contains("of evaluation") || refused.contains("say of what: uuid("), "{refused}");
    }
}

#[test]
fn functions_at_their_edges_give_what_postgresql_gives() {
    let mut problems = Vec::new();
    for (template, arguments, expected) in CASES {
        let literals: Vec<String> = arguments.iter().map(|one| literal(one)).collect();
        let (mut columns, mut written) = (Columns::default(), literals.clone());
        for (place, one) in arguments.iter().enumerate().filter(|(_, one)| !one.starts_with('=')) {
            let (name, text) = argument(one);
            written[place] = format!("a{}", columns.types.len());
            columns.types.push(name);
            columns.values.push(vec![scalar(name, Some(text))]);
        }
        for path in PATHS {
            for (expression, columns) in
                [(filled(template, &literals), &Columns::default()), (filled(template, &written), &columns)]
            {
                let found = evaluate(path, &expression, columns);
                let found = found.as_ref().map_or_else(|error| format!("{REFUSED}: {error}"), |found| found[0].clone());
                let is_as_expected = if *expected == REFUSED { found.starts_with(REFUSED) } else { found == *expected };
                if !is_as_expected {
                    problems.push(format!("{path:?}: {expression} of {arguments:?} gives {found}, not {expected}"));
                }
            }
        }
    }
    none_of(problems);
}

thread_local! {
    /// The panics of this thread, while they are counted.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// The panics of `run` in this thread. The chain turns them into refusals, so they are not visible otherwise.
fn panics_of(run: impl FnOnce()) -> Vec<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let other = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_counted = PANICS.with_borrow_mut(|panics| {
                panics.as_mut().map(|panics| panics.push(info.to_string().replace('\n', " "))).is_some()
            });
            if !is_counted {
                other(info);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
    let _ = panic::catch_unwind(AssertUnwindSafe(run));
    PANICS.take().unwrap_or_default()
}

/// Values that a malicious device may send, by type.
fn hostile(type_name: &str) -> Vec<String> {
    let values: &[&str] = match type_name {
        "BIGINT" => &["-9223372036854775808", "9223372036854775807", "-1", "0", "4294967296", "-2147483649"],
        "DOUBLE" => &["NaN", "inf", "-inf", "-0.0", "1.7976931348623157e308", "5e-324", "-1e308"],
        "TIMESTAMP" => &["0001-01-01", "9999-12-31 23:59:59.999999", "1677-09-21", "2262-04-12", "1969-12-31 23:59:59"],
        "BOOLEAN" => &["true", "false"],
        _ => &["", "%", "\\", "(", "[", "$1", "\u{0}", "\u{10ffff}e\u{301}", "9223372036854775807", "-", ",,,"],
    };
    let long = (type_name == "TEXT").then(|| "ab,\u{e4}".repeat(1_500));
    values.iter().map(|value| (*value).to_owned()).chain(long).collect()
}

#[test]
fn no_function_panics_whatever_a_device_sends() {
    let mut problems = Vec::new();
    for (template, arguments, ..) in FUNCTIONS {
        let places: Vec<usize> = (0..arguments.len()).filter(|place| !arguments[*place].starts_with('=')).collect();
        // One argument at a time, and then all of them.
        for varied in places.iter().map(|place| vec![*place]).chain([places.clone()]) {
            let mut written: Vec<String> = arguments.iter().map(|one| literal(one)).collect();
            let mut columns = Columns::default();
            for (shift, &place) in varied.iter().enumerate() {
                let (name, _) = argument(arguments[place]);
                let values = hostile(name);
                written[place] = format!("a{}", columns.types.len());
                columns.types.push(name);
                let value = |row: usize| scalar(name, Some(values[(row + shift) % values.len()].as_str()));
                columns.values.push((0..12).map(value).collect());
            }
            let expression = filled(template, &written);
            let panics = panics_of(|| drop(evaluate(Path::Application, &expression, &columns)));
            problems.extend(panics.first().map(|panic| format!("{expression} of {varied:?}: {panic}")));
        }
    }
    none_of(problems);
}
