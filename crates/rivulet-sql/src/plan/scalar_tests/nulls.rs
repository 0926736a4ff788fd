//! Three-valued logic: every operator and every function that can be called, with null for each of its arguments, as a
//! constant with and without a type and as a value of a column. The expected values are those of the standard and of
//! PostgreSQL.

use std::collections::BTreeSet;

use super::{Columns, PATHS, REFUSED, evaluate, none_of, scalar};
use crate::plan::functions::REGISTRY;

/// A call with `$1` and so on for its arguments; the arguments (`@...` is a TIMESTAMP, `~...` an INTERVAL, `=...` must
/// be a constant); the result; and for each argument the result if that argument is null, if the result is not null
/// then.
pub(super) type Case = (&'static str, &'static [&'static str], &'static str, &'static [&'static str]);

const NULL: &str = "NULL";

/// Calls that do not accept a null without a type.
const UNTYPED: [&str; 4] = ["EXTRACT", "date_part(", "datepart(", "CEIL($1 TO"];

pub(super) const OPERATORS: &[Case] = &[
    ("$1 = $2", &["1", "1"], "true", &[]),
    ("$1 = $2", &["'a'", "'b'"], "false", &[]),
    ("$1 <> $2", &["1", "1"], "false", &[]),
    ("$1 < $2", &["1.5", "2.5"], "true", &[]),
    ("$1 <= $2", &["1", "1"], "true", &[]),
    ("$1 > $2", &["@2026-11-21", "@2026-11-20"], "true", &[]),
    ("$1 >= $2", &["TRUE", "FALSE"], "true", &[]),
    ("$1 IS DISTINCT FROM $2", &["1", "1"], "false", &["true", "true"]),
    ("$1 <=> $2", &["1", "1"], "true", &["false", "false"]),
    ("$1 IS NOT DISTINCT FROM $2", &["1", "1"], "true", &["false", "false"]),
    ("$1 AND $2", &["TRUE", "TRUE"], "true", &[]),
    ("$1 AND $2", &["FALSE", "FALSE"], "false", &["false", "false"]),
    ("$1 OR $2", &["TRUE", "TRUE"], "true", &["true", "true"]),
    ("$1 OR $2", &["FALSE", "FALSE"], "false", &[]),
    ("NOT $1", &["TRUE"], "false", &[]),
    ("$1 IS NULL", &["1"], "false", &["true"]),
    ("$1 IS NOT NULL", &["1"], "true", &["false"]),
    ("$1 IS TRUE", &["TRUE"], "true", &["false"]),
    ("$1 IS NOT TRUE", &["TRUE"], "false", &["true"]),
    ("$1 IS FALSE", &["TRUE"], "false", &["false"]),
    ("$1 IS NOT FALSE", &["TRUE"], "true", &["true"]),
    ("$1 IS UNKNOWN", &["TRUE"], "false", &["true"]),
    ("$1 IS NOT UNKNOWN", &["TRUE"], "true", &["false"]),
    ("$1 BETWEEN $2 AND $3", &["2", "1", "3"], "true", &[]),
    ("$1 BETWEEN $2 AND $3", &["0", "1", "-1"], "false", &[NULL, "false", "false"]),
    ("$1 NOT BETWEEN $2 AND $3", &["0", "1", "-1"], "true", &[NULL, "true", "true"]),
    ("$1 IN ($2, $3)", &["1", "1", "1"], "true", &[NULL, "true", "true"]),
    ("$1 IN ($2, $3)", &["1", "2", "3"], "false", &[]),
    ("$1 NOT IN ($2, $3)", &["1", "2", "3"], "true", &[]),
    ("$1 NOT IN ($2, $3)", &["1", "1", "1"], "false", &[NULL, "false", "false"]),
    ("$1 LIKE $2", &["'abc'", "'a%'"], "true", &[]),
    ("$1 LIKE '%'", &["'abc'"], "true", &[]),
    ("$1 LIKE '%%'", &["'abc'"], "true", &[]),
    ("$1 NOT LIKE '%'", &["'abc'"], "false", &[]),
    ("$1 LIKE 'abc'", &["'abc'"], "true", &[]),
    ("$1 NOT LIKE $2", &["'abc'", "'a%'"], "false", &[]),
    ("$1 ILIKE $2", &["'abc'", "'A%'"], "true", &[]),
    ("$1 ILIKE '%'", &["'abc'"], "true", &[]),
    ("$1 NOT ILIKE $2", &["'abc'", "'A%'"], "false", &[]),
    ("$1 ~ $2", &["'abc'", "'b'"], "true", &[]),
    ("$1 ~ '.*'", &["'abc'"], "true", &[]),
    ("$1 ~ ''", &["'abc'"], "true", &[]),
    ("$1 ~ '^'", &["'abc'"], "true", &[]),
    ("$1 ~ '^$'", &["'abc'"], "false", &[]),
    ("$1 ~ '^abc$'", &["'abc'"], "true", &[]),
    ("$1 ~ '^(abc|d)$'", &["'abc'"], "true", &[]),
    ("$1 ~ 'abc|d'", &["'abc'"], "true", &[]),
    ("$1 !~ '.*'", &["'abc'"], "false", &[]),
    ("$1 !~ ''", &["'abc'"], "false", &[]),
    ("$1 !~ 'abc|d'", &["'abc'"], "false", &[]),
    ("$1 !~ $2", &["'abc'", "'b'"], "false", &[]),
    ("$1 ~* '.*'", &["'abc'"], "true", &[]),
    ("$1 ~* $2", &["'abc'", "'B'"], "true", &[]),
    ("$1 !~* '.*'", &["'abc'"], "false", &[]),
    ("$1 !~* $2", &["'abc'", "'B'"], "false", &[]),
    ("NOT ($1 ~ '.*')", &["'abc'"], "false", &[]),
    ("($1 ~ '.*') IS NULL", &["'abc'"], "false", &["true"]),
    ("$1 + $2", &["1", "2"], "3", &[]),
    ("$1 - $2", &["1.5", "2"], "-0.5", &[]),
    ("$1 * $2", &["3", "2"], "6", &[]),
    ("$1 * 0", &["3"], "0", &[]),
    ("$1 / $2", &["7", "2"], "3", &[]),
    ("$1 % $2", &["7", "2"], "1", &[]),
    ("$1 & $2", &["6", "3"], "2", &[]),
    ("$1 & 0", &["6"], "0", &[]),
    ("$1 | $2", &["6", "3"], "7", &[]),
    ("$1 - $1", &["6"], "0", &[]),
    ("$1 = $1", &["6"], "true", &[]),
    ("$1 <> $1", &["6"], "false", &[]),
    ("$1 OR NOT $1", &["TRUE"], "true", &[]),
    ("$1 AND NOT $1", &["TRUE"], "false", &[]),
    ("$1 < 3 OR $1 >= 3", &["6"], "true", &[]),
    ("$1 < 3 AND $1 >= 3", &["6"], "false", &[]),
    ("$1 = 3 AND $1 = 4", &["6"], "false", &[]),
    ("$1 <> 3 OR $1 <> 4", &["6"], "true", &[]),
    ("-$1", &["6"], "-6", &[]),
    ("+$1", &["6"], "6", &[]),
    ("$1 ~~ $2", &["'abc'", "'a%'"], "true", &[]),
    ("$1 LIKE '100\\%' ESCAPE '\\'", &["'100%'"], "true", &[]),
    ("$1 || $2", &["'a'", "'b'"], "ab", &[]),
    ("CASE WHEN $1 THEN $2 ELSE $3 END", &["TRUE", "1", "2"], "1", &["2", NULL, "1"]),
    ("CASE WHEN $1 THEN $2 ELSE $3 END", &["FALSE", "1", "2"], "2", &["2", "2", NULL]),
    ("CASE $1 WHEN $2 THEN 'same' ELSE 'other' END", &["1", "1"], "same", &["other", "other"]),
    ("CASE $1 WHEN NULL THEN 'null' ELSE 'other' END", &["1"], "other", &["other"]),
    ("CASE WHEN $1 THEN TRUE ELSE FALSE END", &["TRUE"], "true", &["false"]),
    ("CASE WHEN $1 THEN FALSE ELSE TRUE END", &["TRUE"], "false", &["true"]),
    ("CAST($1 AS TEXT)", &["1"], "1", &[]),
    ("CAST($1 AS DOUBLE)", &["'1.5'"], "1.5", &[]),
    ("CAST($1 AS SMALLINT)", &["1"], "1", &[]),
    ("CAST($1 AS VARCHAR(1))", &["'ab'"], "a", &[]),
    ("TRY_CAST($1 AS BIGINT)", &["'x'"], NULL, &[]),
    ("EXTRACT(YEAR FROM $1)", &["@2026-11-21"], "2026", &[]),
    ("POSITION($1 IN $2)", &["'b'", "'abc'"], "2", &[]),
    ("SUBSTRING($1 FROM $2 FOR $3)", &["'abcd'", "2", "2"], "bc", &[]),
    ("SUBSTRING($1 FOR $2)", &["'abcd'", "2"], "ab", &[]),
    ("TRIM(BOTH $2 FROM $1)", &["'xax'", "'x'"], "a", &[]),
    ("OVERLAY($1 PLACING $2 FROM $3)", &["'abc'", "'X'", "2"], "aXc", &[]),
    ("CEIL($1)", &["1.5"], "2.0", &[]),
    ("FLOOR($1)", &["1.5"], "1.0", &[]),
    ("$1 + INTERVAL '1 day'", &["@2026-11-21"], "2026-11-22T00:00:00", &[]),
    ("FLOOR($1 TO HOUR)", &["@2026-11-21 08:30:30"], "2026-11-21T08:00:00", &[]),
    ("FLOOR($1 TO MONTH)", &["@2026-11-21 08:30:30"], "2026-11-01T00:00:00", &[]),
    ("CEIL($1 TO HOUR)", &["@2026-11-21 08:30:30"], "2026-11-21T09:00:00", &[]),
    ("CEIL($1 TO HOUR)", &["@2026-11-21 08:00:00"], "2026-11-21T08:00:00", &[]),
    ("CEIL($1 TO MONTH)", &["@2026-11-01 00:00:01"], "2026-12-01T00:00:00", &[]),
    ("CEIL($1 TO MONTH)", &["@2026-11-01"], "2026-11-01T00:00:00", &[]),
    ("CEIL($1 TO QUARTER)", &["@2026-11-21"], "2027-01-01T00:00:00", &[]),
    ("CEIL($1 TO WEEK)", &["@2026-11-23"], "2026-11-23T00:00:00", &[]),
    ("CEIL($1 TO YEAR)", &["@2026-11-21"], "2027-01-01T00:00:00", &[]),
    ("$1 AT TIME ZONE 'America/New_York'", &["@2026-03-08 06:59:59"], "2026-03-08T01:59:59", &[]),
    ("$1 AT TIME ZONE 'America/New_York'", &["@2026-03-08 07:00:00"], "2026-03-08T03:00:00", &[]),
    ("from_unixtime($1, 'yyyy-MM-dd HH:mm:ss')", &["60"], "1970-01-01 00:01:00", &[]),
];

pub(super) const FUNCTIONS: &[Case] = &[
    ("abs($1)", &["-5"], "5", &[]),
    ("abs($1)", &["-5.5"], "5.5", &[]),
    ("acos($1)", &["1.0"], "0.0", &[]),
    ("acosh($1)", &["1.0"], "0.0", &[]),
    ("array_contains($1, $2)", &["'[1,2.5]'", "2.5"], "true", &[]),
    ("array_contains($1, $2)", &["'[1,2.5]'", "2"], "false", &[]),
    ("array_contains($1, $2)", &["'[\"a\",1]'", "'1'"], "false", &[]),
    ("array_contains($1, true)", &["'[\"a\",true]'"], "true", &[]),
    ("array_element($1, $2)", &["'[\"a\",[1, 2]]'", "2"], "[1, 2]", &[]),
    ("array_element($1, $2)", &["'[\"a\",null]'", "2"], NULL, &[]),
    ("array_element($1, $2)", &[r#"'{"a":1,"b":{"c":[2]}}'"#, "'b'"], r#"{"c":[2]}"#, &[]),
    ("array_has($1, $2)", &["'[\"a\"]'", "'a'"], "true", &[]),
    ("array_join($1, $2)", &["'[1,null,\"b\"]'", "'; '"], "1; b", &[]),
    ("array_length($1)", &["'[]'"], "0", &[]),
    ("array_length($1)", &["'no array'"], NULL, &[]),
    ("array_to_string($1, $2)", &["'[]'", "','"], "", &[]),
    ("array_to_string(string_to_array($1, $2), '+')", &["'a,b\"'", "','"], "a+b\"", &[]),
    ("ascii($1)", &["'a'"], "97", &[]),
    ("asin($1)", &["0.0"], "0.0", &[]),
    ("asinh($1)", &["0.0"], "0.0", &[]),
    ("atan($1)", &["0.0"], "0.0", &[]),
    ("atan2($1, $2)", &["0.0", "1.0"], "0.0", &[]),
    ("atanh($1)", &["0.0"], "0.0", &[]),
    ("bit_length($1)", &["'ab'"], "16", &[]),
    ("btrim($1)", &["' a '"], "a", &[]),
    ("btrim($1, $2)", &["'xax'", "'x'"], "a", &[]),
    ("cardinality($1)", &["'[1, [2, 3], {}]'"], "3", &[]),
    ("cardinality($1)", &[r#"'{"a":1,"b":2}'"#], "2", &[]),
    ("cbrt($1)", &["8.0"], "2.0", &[]),
    ("ceil($1)", &["1.5"], "2.0", &[]),
    ("char_length($1)", &["'abc'"], "3", &[]),
    ("character_length($1)", &["'abc'"], "3", &[]),
    ("chr($1)", &["65"], "A", &[]),
    ("coalesce($1, $2)", &["1", "2"], "1", &["2", "1"]),
    ("concat($1, $2)", &["'a'", "'b'"], "ab", &["b", "a"]),
    ("concat($1)", &["'a'"], "a", &[""]),
    ("concat_ws($1, $2, $3)", &["'-'", "'a'", "'b'"], "a-b", &[NULL, "b", "a"]),
    ("contains($1, $2)", &["'abc'", "'b'"], "true", &[]),
    ("cos($1)", &["0.0"], "1.0", &[]),
    ("cosh($1)", &["0.0"], "1.0", &[]),
    ("cot($1)", &["0.5"], "1.830487721712452", &[]),
    ("count_char($1, $2)", &["'aba'", "'a'"], "2", &[]),
    ("json_array($1, $2)", &["1.5", "'say \"a\"'"], r#"[1.5,"say \"a\""]"#, &[r#"[null,"say \"a\""]"#, "[1.5,null]"]),
    ("json_array($1)", &["@2026-11-21"], "[1795219200000]", &["[null]"]),
    ("json_exists($1, $2)", &[r#"'{"a":[1,null]}'"#, "='$.a[1]'"], "true", &[]),
    ("json_length($1, $2)", &[r#"'{"a":[1,null]}'"#, "='$.a'"], "2", &[]),
    ("json_query($1, $2)", &[r#"'{"a":{"b":[1, 2]}}'"#, "='$.a.b'"], "[1, 2]", &[]),
    ("json_value($1, $2)", &[r#"'{"a":[{"b":"x"}]}'"#, "='$.a[0].b'"], "x", &[]),
    ("json_object($1, $2)", &["'n'", "1"], r#"{"n":1}"#, &[NULL, r#"{"n":null}"#]),
    (
        "json_object('a', json_array($1), 'b', $2)",
        &["TRUE", "'x'"],
        r#"{"a":[true],"b":"x"}"#,
        &[r#"{"a":[null],"b":"x"}"#, r#"{"a":[true],"b":null}"#],
    ),
    ("element_at($1, $2)", &["'[7,8]'", "-1"], "8", &[]),
    ("map($1, $2)", &["'n'", "1"], r#"{"n":1}"#, &[NULL, r#"{"n":null}"#]),
    ("map('b', $1, 'a', 2, 'b', 3)", &["1"], r#"{"a":2,"b":3}"#, &[r#"{"a":2,"b":3}"#]),
    ("map_contains_key($1, $2)", &[r#"'{"a":null}'"#, "'a'"], "true", &[]),
    ("map_keys($1)", &[r#"'{"a":1,"b":[]}'"#], r#"["a","b"]"#, &[]),
    ("map_keys($1)", &["'[1]'"], NULL, &[]),
    ("map_values($1)", &[r#"'{"a":1,"b":[]}'"#], "[1,[]]", &[]),
    (
        "named_struct('rssi', $1, 'ok', $2)",
        &["1", "TRUE"],
        r#"{"rssi":1,"ok":true}"#,
        &[r#"{"rssi":null,"ok":true}"#, r#"{"rssi":1,"ok":null}"#],
    ),
    ("row($1 + 1)", &["1"], r#"{"c0":2}"#, &[r#"{"c0":null}"#]),
    (
        "struct($1 + 1, $2 || '!')",
        &["1", "'a'"],
        r#"{"c0":2,"c1":"a!"}"#,
        &[r#"{"c0":null,"c1":"a!"}"#, r#"{"c0":2,"c1":null}"#],
    ),
    ("date_bin(INTERVAL '1 minute', $1)", &["@2026-11-21 08:30:30"], "2026-11-21T08:30:00", &[]),
    ("date_bin(INTERVAL '1 minute', $1, $2)", &["@2026-11-21 08:30:30", "=@2026-11-21"], "2026-11-21T08:30:00", &[]),
    ("date_format($1, $2)", &["@2026-11-21", "='yyyy'"], "2026", &[]),
    ("date_part($1, $2)", &["='year'", "@2026-11-21"], "2026", &[]),
    ("datepart($1, $2)", &["='year'", "@2026-11-21"], "2026", &[]),
    ("date_trunc($1, $2)", &["='hour'", "@2026-11-21 08:30:30"], "2026-11-21T08:00:00", &[]),
    ("datetrunc($1, $2)", &["='hour'", "@2026-11-21 08:30:30"], "2026-11-21T08:00:00", &[]),
    ("digest($1, $2)", &["'abc'", "'md5'"], "900150983cd24fb0d6963f7d28e17f72", &[]),
    ("dayofmonth($1)", &["@2026-11-21"], "21", &[]),
    ("CAST(decode($1, $2) AS TEXT)", &["'6162'", "='hex'"], "ab", &[]),
    ("degrees($1)", &["0.0"], "0.0", &[]),
    ("encode($1, $2)", &["'ab'", "='hex'"], "6162", &[]),
    ("ends_with($1, $2)", &["'abc'", "'c'"], "true", &[]),
    ("exp($1)", &["0.0"], "1.0", &[]),
    ("factorial($1)", &["5"], "120", &[]),
    ("find_in_set($1, $2)", &["'b'", "'a,b'"], "2", &[]),
    ("floor($1)", &["1.5"], "1.0", &[]),
    ("from_unixtime($1)", &["60"], "1970-01-01T00:01:00", &[]),
    ("gcd($1, $2)", &["12", "8"], "4", &[]),
    ("greatest($1, $2)", &["1", "2"], "2", &["2", "1"]),
    ("haversine_m($1, $2, $3, $4)", &["0.0", "0.0", "0.0", "0.0"], "0.0", &[]),
    ("hour($1)", &["@2026-11-21 08:30:30"], "8", &[]),
    ("if($1, $2, $3)", &["TRUE", "1", "2"], "1", &["2", NULL, "1"]),
    ("ifnull($1, $2)", &["1", "2"], "1", &["2", "1"]),
    ("initcap($1)", &["'ab'"], "Ab", &[]),
    ("instr($1, $2)", &["'abc'", "'b'"], "2", &[]),
    ("isnan($1)", &["1.0"], "false", &[]),
    ("iszero($1)", &["1.0"], "false", &[]),
    ("lcm($1, $2)", &["4", "6"], "12", &[]),
    ("least($1, $2)", &["1", "2"], "1", &["2", "1"]),
    ("left($1, $2)", &["'abc'", "2"], "ab", &[]),
    ("length($1)", &["'abc'"], "3", &[]),
    ("levenshtein($1, $2)", &["'abc'", "'abd'"], "1", &[]),
    ("ln($1)", &["1.0"], "0.0", &[]),
    ("log($1)", &["100.0"], "2.0", &[]),
    ("log($1, $2)", &["2.0", "8.0"], "3.0", &[]),
    ("log10($1)", &["100.0"], "2.0", &[]),
    ("log2($1)", &["8.0"], "3.0", &[]),
    ("lower($1)", &["'AB'"], "ab", &[]),
    ("lpad($1, $2)", &["'a'", "3"], "  a", &[]),
    ("lpad($1, $2, $3)", &["'a'", "3", "'x'"], "xxa", &[]),
    ("ltrim($1)", &["' a'"], "a", &[]),
    ("ltrim($1, $2)", &["'xa'", "'x'"], "a", &[]),
    ("make_date($1, $2, $3)", &["2026", "11", "21"], "2026-11-21", &[]),
    ("make_time($1, $2, $3)", &["8", "30", "0"], "08:30:00", &[]),
    ("md5($1)", &["'abc'"], "900150983cd24fb0d6963f7d28e17f72", &[]),
    ("minute($1)", &["@2026-11-21 08:30:30"], "30", &[]),
    ("mod($1, $2)", &["7", "2"], "1", &[]),
    ("month($1)", &["@2026-11-21"], "11", &[]),
    ("nanvl($1, $2)", &["1.0", "2.0"], "1.0", &[NULL, "1.0"]),
    ("nullif($1, $2)", &["1", "2"], "1", &[NULL, "1"]),
    ("nullif($1, $2)", &["1", "1"], NULL, &[NULL, "1"]),
    ("nvl($1, $2)", &["1", "2"], "1", &["2", "1"]),
    ("nvl2($1, $2, $3)", &["1", "2", "3"], "2", &["3", NULL, "2"]),
    ("octet_length($1)", &["'ab'"], "2", &[]),
    ("overlay($1, $2, $3)", &["'abc'", "'X'", "2"], "aXc", &[]),
    ("overlay($1, $2, $3, $4)", &["'abc'", "'X'", "2", "2"], "aX", &[]),
    ("pi()", &[], "3.141592653589793", &[]),
    ("pow($1, $2)", &["2.0", "3.0"], "8.0", &[]),
    ("power($1, $2)", &["2.0", "3.0"], "8.0", &[]),
    ("power($1, $2)", &["2", "3"], "8.0", &[]),
    ("power($1, 0)", &["2.0"], "1.0", &[]),
    ("power($1, 1)", &["2.0"], "2.0", &[]),
    ("radians($1)", &["0.0"], "0.0", &[]),
    ("regexp_count($1, $2)", &["'aba'", "'a'"], "2", &[]),
    ("regexp_count($1, $2, $3)", &["'aba'", "'a'", "2"], "1", &[]),
    ("regexp_extract($1, $2)", &["'abc'", "='b'"], "b", &[]),
    ("regexp_extract($1, $2, $3)", &["'abc'", "='(b)'", "=1"], "b", &[]),
    ("regexp_instr($1, $2)", &["'abc'", "'b'"], "2", &[]),
    ("regexp_like($1, $2)", &["'abc'", "'b'"], "true", &[]),
    ("regexp_like($1, '.*')", &["'abc'"], "true", &[]),
    ("regexp_like($1, '')", &["'abc'"], "true", &[]),
    ("regexp_like($1, $2, $3)", &["'abc'", "'B'", "='i'"], "true", &[]),
    ("regexp_match($1, $2) IS NOT NULL", &["'abc'", "'b'"], "true", &["false", "false"]),
    ("regexp_replace($1, $2, $3)", &["'abc'", "'b'", "'X'"], "aXc", &[]),
    ("regexp_replace($1, $2, $3, $4)", &["'abb'", "'b'", "'X'", "='g'"], "aXX", &[]),
    ("repeat($1, $2)", &["'ab'", "2"], "abab", &[]),
    ("replace($1, $2, $3)", &["'abc'", "'b'", "'X'"], "aXc", &[]),
    ("reverse($1)", &["'abc'"], "cba", &[]),
    ("right($1, $2)", &["'abc'", "2"], "bc", &[]),
    ("round($1)", &["1.25"], "1.0", &[]),
    ("round($1, $2)", &["1.25", "1"], "1.3", &[]),
    ("rpad($1, $2)", &["'a'", "3"], "a  ", &[]),
    ("rpad($1, $2, $3)", &["'a'", "3", "'x'"], "axx", &[]),
    ("rtrim($1)", &["'a '"], "a", &[]),
    ("rtrim($1, $2)", &["'ax'", "'x'"], "a", &[]),
    ("second($1)", &["@2026-11-21 08:30:31"], "31", &[]),
    ("sha224($1)", &["'abc'"], "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7", &[]),
    ("sha256($1)", &["'abc'"], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", &[]),
    (
        "sha384($1)",
        &["'abc'"],
        "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
        &[],
    ),
    (
        "sha512($1)",
        &["'abc'"],
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
         2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        &[],
    ),
    ("sign($1)", &["-2.5"], "-1.0", &[]),
    ("signum($1)", &["-2.5"], "-1.0", &[]),
    ("sin($1)", &["0.0"], "0.0", &[]),
    ("sinh($1)", &["0.0"], "0.0", &[]),
    ("split_index($1, $2, $3)", &["'a,b'", "','", "1"], "b", &[]),
    ("split_part($1, $2, $3)", &["'a,b'", "','", "2"], "b", &[]),
    ("sqrt($1)", &["4.0"], "2.0", &[]),
    ("starts_with($1, $2)", &["'abc'", "'a'"], "true", &[]),
    ("strpos($1, $2)", &["'abc'", "'b'"], "2", &[]),
    ("position($2 IN $1)", &["'abc'", "'b'"], "2", &[]),
    ("string_to_array($1, $2)", &["'a,,b'", "','"], r#"["a","","b"]"#, &[]),
    ("string_to_array($1, $2)", &["'a,b'", "''"], r#"["a,b"]"#, &[]),
    ("string_to_array($1, $2)", &["''", "','"], "[]", &[]),
    ("substr($1, $2)", &["'abc'", "2"], "bc", &[]),
    ("substr($1, $2, $3)", &["'abc'", "2", "1"], "b", &[]),
    ("substring($1, $2)", &["'abc'", "2"], "bc", &[]),
    ("substr_index($1, $2, $3)", &["'a.b.c'", "'.'", "2"], "a.b", &[]),
    ("substring_index($1, $2, $3)", &["'a.b.c'", "'.'", "2"], "a.b", &[]),
    ("tan($1)", &["0.0"], "0.0", &[]),
    ("tanh($1)", &["0.0"], "0.0", &[]),
    ("to_char($1, $2)", &["@2026-11-21", "'YYYY-MM'"], "2026-11", &[]),
    ("to_char($1, '%Y')", &["@2026-11-21"], "2026", &[]),
    ("to_date($1)", &["'2026-11-21'"], "2026-11-21", &[]),
    ("to_time($1)", &["'08:30:00'"], "08:30:00", &[]),
    ("to_hex($1)", &["255"], "ff", &[]),
    ("timestampadd(month, $1, $2)", &["1", "@2026-01-31"], "2026-02-28T00:00:00", &[]),
    ("timestampadd(HOUR, $1, $2)", &["-2", "@2026-11-21 08:30:30"], "2026-11-21T06:30:30", &[]),
    ("timestampdiff(day, $1, $2)", &["@2026-11-21 08:00:00", "@2026-11-23"], "1", &[]),
    ("timestampdiff(MINUTE, $1, $2)", &["@2026-11-21 08:30:30", "@2026-11-21 08:28:00"], "-2", &[]),
    ("to_local_time($1)", &["@2026-11-21"], "2026-11-21T00:00:00", &[]),
    ("to_local_time($1, $2)", &["@2026-07-01", "='Europe/Berlin'"], "2026-07-01T02:00:00", &[]),
    ("to_local_time($1, $2)", &["@2026-11-21", "='-03:30'"], "2026-11-20T20:30:00", &[]),
    ("to_timestamp($1)", &["'2026-11-21T00:00:00'"], "2026-11-21T00:00:00", &[]),
    ("to_timestamp($1)", &["60"], "1970-01-01T00:01:00", &[]),
    ("to_timestamp_micros($1)", &["60000000"], "1970-01-01T00:01:00", &[]),
    ("to_timestamp_millis($1)", &["60000"], "1970-01-01T00:01:00", &[]),
    ("to_timestamp_nanos($1)", &["60000000000"], "1970-01-01T00:01:00", &[]),
    ("to_timestamp_seconds($1)", &["60"], "1970-01-01T00:01:00", &[]),
    ("to_unixtime($1)", &["@1970-01-01 00:01:00"], "60", &[]),
    ("translate($1, $2, $3)", &["'abc'", "'b'", "'X'"], "aXc", &[]),
    ("trim($1)", &["' a '"], "a", &[]),
    ("trunc($1)", &["1.5"], "1.0", &[]),
    ("trunc($1, $2)", &["1.25", "1"], "1.2", &[]),
    ("unix_timestamp($1)", &["@1970-01-01 00:01:00"], "60", &[]),
    ("uuid($1)", &["'abc'"], "ba7816bf-8f01-8fea-8141-40de5dae2223", &[]),
    ("upper($1)", &["'ab'"], "AB", &[]),
    ("year($1)", &["@2026-11-21"], "2026", &[]),
];

/// The type of an argument, and its value as text.
pub(super) fn argument(written: &'static str) -> (&'static str, &'static str) {
    let written = written.strip_prefix('=').unwrap_or(written);
    if let Some(time) = written.strip_prefix('@') {
        ("TIMESTAMP", time)
    } else if let Some(interval) = written.strip_prefix('~') {
        ("INTERVAL", interval)
    } else if let Some(text) = written.strip_prefix('\'') {
        ("TEXT", text.trim_end_matches('\''))
    } else if written == "TRUE" || written == "FALSE" {
        ("BOOLEAN", written)
    } else if written.contains(['.', 'e']) {
        ("DOUBLE", written)
    } else {
        ("BIGINT", written)
    }
}

pub(super) fn literal(written: &'static str) -> String {
    match argument(written) {
        (name @ ("TIMESTAMP" | "INTERVAL"), text) => format!("{name} '{text}'"),
        ("TEXT", text) => format!("'{text}'"),
        (_, number) if number.starts_with('-') => format!("({number})"),
        (_, value) => value.to_owned(),
    }
}

pub(super) fn filled(template: &str, arguments: &[String]) -> String {
    let all = arguments.iter().enumerate().rev();
    all.fold(template.to_owned(), |text, (place, argument)| text.replace(&format!("${}", place + 1), argument))
}

/// Fails if a call has another result than expected.
fn check(cases: &[Case]) {
    let mut problems = Vec::new();
    for (template, arguments, expected, with_null) in cases {
        let with_null = |place: usize| with_null.get(place).copied().unwrap_or(NULL);
        let literals: Vec<String> = arguments.iter().map(|one| literal(one)).collect();
        for path in PATHS {
            let mut compare = |expression: &str, found: Result<Vec<String>, String>, expected: &[&str]| {
                let found = found.as_ref().map(|found| found.iter().map(String::as_str).collect::<Vec<_>>());
                if found.as_deref() != Ok(expected) {
                    problems.push(format!("{path:?}: {expression} gives {found:?}, not {expected:?}"));
                }
            };
            let all = filled(template, &literals);
            compare(&all, evaluate(path, &all, &Columns::default()), &[expected]);
            for place in (0..arguments.len()).filter(|place| !arguments[*place].starts_with('=')) {
                let (name, _) = argument(arguments[place]);
                for null in [format!("CAST(NULL AS {name})"), "NULL".to_owned()] {
                    let mut literals = literals.clone();
                    literals[place] = null.clone();
                    let expression = filled(template, &literals);
                    let found = evaluate(path, &expression, &Columns::default());
                    // A null without a type may be refused, but must never be taken for something else.
                    let is_refused = found.as_ref().map_or(true, |found| found[0] == REFUSED);
                    if !(null == NULL && is_refused && UNTYPED.iter().any(|call| template.starts_with(call))) {
                        compare(&expression, found, &[with_null(place)]);
                    }
                }
            }
            // Row by row: first with all arguments, then with null for each of them.
            let places: Vec<usize> = (0..arguments.len()).filter(|place| !arguments[*place].starts_with('=')).collect();
            let mut columns = Columns::default();
            let mut written = literals.clone();
            for (column, &place) in places.iter().enumerate() {
                let (name, text) = argument(arguments[place]);
                columns.types.push(name);
                let value = |row: usize| scalar(name, (row != column + 1).then_some(text));
                columns.values.push((0..=places.len()).map(value).collect());
                written[place] = format!("a{column}");
            }
            if !places.is_empty() {
                let expression = filled(template, &written);
                let answers: Vec<&str> =
                    std::iter::once(*expected).chain(places.iter().map(|&place| with_null(place))).collect();
                compare(&expression, evaluate(path, &expression, &columns), &answers);
            }
        }
    }
    none_of(problems);
}

#[test]
fn operators_have_three_valued_logic() {
    check(OPERATORS);
}

#[test]
fn functions_have_three_valued_logic() {
    check(FUNCTIONS);
}

#[test]
fn every_function_that_can_be_called_is_in_the_table() {
    let written: BTreeSet<&str> = FUNCTIONS
        .iter()
        .map(|(template, ..)| template.strip_prefix("CAST(").unwrap_or(template))
        .map(|call| &call[..call.find('(').unwrap_or(call.len())])
        .collect();
    let missing: Vec<String> =
        REGISTRY.scalars().map(|(name, _)| name).filter(|name| !written.contains(&**name)).collect();
    assert!(missing.is_empty(), "no answers for {missing:?}");
}
