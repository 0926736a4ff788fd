//! Time spans that may be read in two ways. A new statement may not have them; texts in a catalog keep them.

use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::SqlError;
use crate::lexer::token_is_word;

/// Fails if a constant INTERVAL has the unit `m`, which may be minutes or months. Behind hours it is minutes.
pub(super) fn check(tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    let pairs = tokens.windows(2).filter(|pair| token_is_word(&pair[0].token, "interval"));
    for pair in pairs {
        let Token::SingleQuotedString(text) = &pair[1].token else { continue };
        let mut units = text.split(|sign: char| !sign.is_alphabetic()).filter(|unit| !unit.is_empty());
        let first = units.find(|unit| ["h", "hr", "hrs", "hour", "hours", "m"].contains(&&*unit.to_lowercase()));
        if first.is_some_and(|unit| unit.eq_ignore_ascii_case("m")) {
            let message = format!("'{text}' is minutes or months: its unit is 'm'");
            return Err(SqlError::new(pair[1].span, message).hint("write minutes (or min), or months (or mon)"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{parse_script, parse_stored};

    #[test]
    fn a_unit_that_may_be_two_is_refused_and_read_in_a_catalog() {
        let view =
            |length: &str| format!("CREATE VIEW v AS SELECT count(*) AS n FROM t\nGROUP BY tumble(ts, {length})");
        for length in ["INTERVAL '10 m'", "interval '10m'", "INTERVAL '1 day 10 M'"] {
            let error = parse_script(&view(length)).unwrap_err();
            assert_eq!((error.line, error.column), (2, 30), "{length}: {error}");
            assert!(error.hint.is_some_and(|hint| hint.contains("minutes")), "{length}");
            assert!(parse_stored(&view(length)).unwrap().error.is_none(), "{length}");
        }
        for length in
            ["INTERVAL '10 min'", "INTERVAL '10'", "INTERVAL '1h 10m'", "INTERVAL '10 ms'", "INTERVAL '1 mon'"]
        {
            assert!(parse_script(&view(length)).is_ok(), "{length}");
        }
        assert!(parse_script("SELECT 'm' AS interval FROM t").is_ok());
    }
}
