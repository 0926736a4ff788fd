//! Texts that grow: a row whose text would become too long is refused, and the other rows of its batch are not
//! affected.

use super::{Columns, PATHS, REFUSED, evaluate, none_of, scalar};

/// The lengths of the texts in column `a0`, in bytes.
const LENGTHS: [Option<usize>; 6] = [Some(0), Some(2), Some(8_000), Some(9_000), Some(20_000), None];

/// An expression, and for each length of `a0` the length of its text, or that the row is refused.
const CASES: &[(&str, [&str; 6])] = &[
    ("a0 || a0", ["0", "4", "16000", REFUSED, REFUSED, "NULL"]),
    ("a0 || 'x' || 1", ["2", "4", "8002", "9002", "20002", "NULL"]),
    ("CASE WHEN length(a0) < 5 THEN a0 || a0 ELSE a0 END", ["0", "4", "8000", "9000", "20000", "NULL"]),
    ("concat(a0, a0)", ["0", "4", "16000", REFUSED, REFUSED, "0"]),
    ("concat(a0, NULL, 'x', a0)", ["1", "5", "16001", REFUSED, REFUSED, "1"]),
    ("concat(a0, 'x', 'y', 'z')", ["3", "5", "8003", "9003", "20003", "3"]),
    ("concat_ws('-', a0, a0)", ["1", "5", "16001", REFUSED, REFUSED, "0"]),
    ("concat_ws(a0, 'x', 'y', 'z')", ["3", "7", "16003", REFUSED, REFUSED, "NULL"]),
    ("overlay(a0 PLACING a0 FROM octet_length(a0) + 1)", ["0", "4", "16000", REFUSED, REFUSED, "NULL"]),
    ("replace(a0, 'b', a0)", ["0", "2", "8000", "9000", "20000", "NULL"]),
    ("replace(a0 || 'b', 'b', a0)", ["0", "4", "16000", REFUSED, REFUSED, "NULL"]),
];

#[test]
fn texts_that_take_too_long_to_compare_are_refused_alone() {
    let text = |length: usize| scalar("TEXT", Some(&"a".repeat(length)));
    let columns = Columns { types: vec!["TEXT"], values: vec![vec![text(10), text(3_000), text(20_000)]] };
    for path in PATHS {
        for (expression, expected) in [
            ("levenshtein(a0, a0)", ["0", "0", REFUSED]),
            ("btrim(a0, 'b' || a0)", ["", "", REFUSED]),
            ("octet_length(btrim(a0, 'b'))", ["10", "3000", "20000"]),
        ] {
            assert_eq!(evaluate(path, expression, &columns).unwrap(), expected, "{path:?}: {expression}");
        }
    }
}

#[test]
fn a_row_whose_text_grows_too_long_is_refused_alone() {
    let text = |length: &Option<usize>| scalar("TEXT", length.map(|length| "a".repeat(length)).as_deref());
    let columns = Columns { types: vec!["TEXT"], values: vec![LENGTHS.iter().map(text).collect()] };
    let mut problems = Vec::new();
    for (expression, expected) in CASES {
        for path in PATHS {
            let found = evaluate(path, &format!("octet_length({expression})"), &columns);
            if found.as_ref().map(|found| found.as_slice()) != Ok(&expected.map(str::to_owned)) {
                problems.push(format!("{path:?}: {expression} gives {found:?}, not {expected:?}"));
            }
        }
    }
    none_of(problems);
}
