//! Casts, with the details of their types: each written detail is applied, or refused by name.

use super::{PATHS, REFUSED, constant, none_of};

#[test]
fn casts_do_what_their_types_say() {
    let mut problems = Vec::new();
    for (expression, expected) in [
        ("CAST('abcdef' AS VARCHAR(3))", "abc"),
        ("CAST('äöüß' AS VARCHAR(3))", "äöü"),
        ("'abcdef'::VARCHAR(3)", "abc"),
        ("CAST(12345 AS VARCHAR(3))", "123"),
        ("CAST('ab' AS CHARACTER VARYING(3))", "ab"),
        ("CAST('abcdef' AS VARCHAR)", "abcdef"),
        ("CAST('abcdef' AS STRING)", "abcdef"),
        ("CAST(NULL AS VARCHAR(3))", "NULL"),
        ("CAST(70000 AS SMALLINT)", REFUSED),
        ("CAST(-32768 AS SMALLINT)", "-32768"),
        ("CAST(128 AS TINYINT)", REFUSED),
        ("CAST(3000000000 AS INT)", REFUSED),
        ("CAST(3000000000 AS INTEGER)", REFUSED),
        ("CAST(3000000000 AS BIGINT)", "3000000000"),
        ("CAST('70000' AS SMALLINT)", REFUSED),
        ("TRY_CAST(70000 AS SMALLINT)", "NULL"),
        ("CAST(30000 AS SMALLINT) + CAST(30000 AS SMALLINT)", "60000"),
        ("CAST(70000.7 AS SMALLINT)", REFUSED),
        ("CAST(0.1 AS REAL)", "0.1"),
        ("CAST(0.1 AS FLOAT)", "0.1"),
        ("CAST(0.1 AS FLOAT(53))", "0.1"),
        ("CAST(0.1 AS DOUBLE PRECISION)", "0.1"),
        ("CAST(1.235 AS DECIMAL(10, 2))", "1.24"),
        ("CAST(CAST(12.5 AS DECIMAL(3)) AS TEXT)", "13"),
        ("CAST(CAST(1.1 AS DECIMAL(3, 1)) * 1.1 AS TEXT)", "1.21"),
        ("CAST(1234567.89 AS DECIMAL(10, 2)) = 1234567.89", "true"),
        ("CAST(1234567.89 AS DECIMAL(10, 2)) BETWEEN 1234567.89 AND 1234567.891", "true"),
        ("CAST(0.3 AS DECIMAL(10, 2)) IN (0.1, 0.3)", "true"),
        ("CAST(1234.5 AS DECIMAL(3, 1))", REFUSED),
        ("CAST(1 AS BOOLEAN)", "true"),
        ("CAST(TIMESTAMP '2026-11-21 08:30:00.123456' AS TIMESTAMP(6))", "2026-11-21T08:30:00.123456"),
        ("CAST('2026-11-21' AS DATE)", "2026-11-21"),
        ("CAST('08:30' AS TIME)", "08:30:00"),
        ("CAST(TIMESTAMP '2026-11-21 08:30:00.25' AS TIME)", "08:30:00.250"),
        ("TIME '08:30:00' < CAST('09:00' AS TIME)", "true"),
        ("CAST('25:00' AS TIME)", REFUSED),
        ("TIMESTAMP '2026-11-21 08:30:00' + -INTERVAL '1 hour 20 minutes'", "2026-11-21T07:10:00"),
        ("TIMESTAMP '2026-11-21 08:30:00' + INTERVAL -'1 hour 20 minutes'", "2026-11-21T07:10:00"),
        ("TIMESTAMP '2026-11-21 08:30:00' - -INTERVAL '90' MINUTE", "2026-11-21T10:00:00"),
    ] {
        for path in PATHS {
            // A constant that cannot be converted is an error of the statement.
            let found = constant(path, expression);
            let is_refused = expected == REFUSED && found.as_ref().is_err_and(|error| !error.contains("not supported"));
            if !is_refused && found.as_deref() != Ok(expected) {
                problems.push(format!("{path:?}: {expression} is {found:?}, not {expected}"));
            }
        }
    }
    none_of(problems);
}

#[test]
fn details_that_are_not_done_are_refused_by_name_and_place() {
    let mut problems = Vec::new();
    for name in [
        "CHAR",
        "CHAR(3)",
        "CHARACTER(3)",
        "VARCHAR(0)",
        "VARCHAR(3 OCTETS)",
        "INT(11)",
        "BIGINT(20)",
        "DOUBLE(10,2)",
        "FLOAT(54)",
        "FLOAT(10,2)",
        "TIMESTAMP(0)",
        "TIMESTAMP(3)",
        "TIMESTAMP(9)",
        "TIMESTAMP WITH TIME ZONE",
        "TIMESTAMPTZ",
        "TIME(3)",
        "TIME WITH TIME ZONE",
        "INTERVAL DAY",
        "INTERVAL DAY TO SECOND",
        "DECIMAL(0)",
        "DECIMAL(40,2)",
        "DECIMAL(3,5)",
        "DECIMAL(3,-1)",
        "NUMERIC(39)",
        "INT UNSIGNED",
        "UUID",
        "JSON",
        "BYTEA",
        "BLOB",
        "BIT(3)",
        "DATETIME",
        "INTEGER ARRAY",
    ] {
        for path in PATHS {
            match constant(path, &format!("CAST(a0 AS {name})").replace("a0", "id")) {
                Ok(found) => problems.push(format!("{path:?}: a cast to {name} gives {found}")),
                Err(error) => {
                    let is_named = name.split([' ', '(']).any(|word| error.contains(word.trim_end_matches("TZ")));
                    if !(is_named || error.contains("form of CAST")) || !error.contains("at line 1, column") {
                        problems.push(format!("{path:?}: {name}: {error}"));
                    }
                }
            }
        }
    }
    none_of(problems);
}
