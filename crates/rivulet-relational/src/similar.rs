//! `text SIMILAR TO 'a(b|c)%'`: the pattern of the standard as the regular expression of the operator `~`. `%` is any
//! text and `_` a sign; `|`, `*`, `+`, `?`, `{2,3}`, `(...)` and `[...]` are as there. The whole text fits, or nothing.

use datafusion_sql::sqlparser::ast::{BinaryOperator, Expr, Value};

use crate::error::RelationalError;

/// Spells out one expression.
pub(crate) fn spell_out(expression: &mut Expr) -> Result<(), RelationalError> {
    let Expr::SimilarTo { negated, expr, pattern, escape_char } = expression else { return Ok(()) };
    let Some(written) = text_of(pattern) else {
        let error = RelationalError::new("SIMILAR TO takes a constant pattern");
        return Err(error.hint("write for example device SIMILAR TO 'lamp-(a|b)%'; LIKE takes a pattern of a column"));
    };
    let escape = escape_char.as_ref().map_or(Some("\\".to_owned()), |escape| escape.value.clone().into_string());
    let regex = regular(written, escape.as_deref().unwrap_or_default()).ok_or_else(|| {
        let error = RelationalError::new(format!("'{written}' is no pattern of SIMILAR TO"));
        error.hint(
            "% is any text, _ a sign; | * + ? {2,3} (...) [...] are as in a regular expression; ESCAPE is one sign",
        )
    })?;
    let op = if *negated { BinaryOperator::PGRegexNotMatch } else { BinaryOperator::PGRegexMatch };
    let left = std::mem::replace(expr, Box::new(Expr::Value(Value::Null.into())));
    let right = Box::new(Expr::Value(Value::SingleQuotedString(regex).into()));
    *expression = Expr::Nested(Box::new(Expr::BinaryOp { left, op, right }));
    Ok(())
}

/// The text of a constant.
fn text_of(pattern: &Expr) -> Option<&str> {
    let Expr::Value(value) = pattern else { return None };
    if let Value::SingleQuotedString(text) = &value.value { Some(text) } else { None }
}

/// The regular expression of a pattern; `None` if one cannot be made of it. Whether it is one is seen where it is
/// compiled.
fn regular(pattern: &str, escape: &str) -> Option<String> {
    let mut regex = "(?s)^(?:".to_owned();
    let literal = |regex: &mut String, sign: char| {
        regex.extend((sign.is_ascii_punctuation() && !"<>".contains(sign)).then_some('\\'));
        regex.push(sign);
    };
    let (mut in_brackets, mut in_class, mut in_braces, mut before) = (false, false, false, ' ');
    let mut signs = pattern.chars();
    while let Some(sign) = signs.next() {
        match sign {
            _ if escape.chars().count() > 1 => return None,
            _ if escape.starts_with(sign) => literal(&mut regex, signs.next()?),
            // Within brackets `^`, `-` and the colons of [:digit:] are themselves, and everything within braces is.
            // Two hyphens would be a difference of sets.
            '-' if in_brackets && before == '-' => literal(&mut regex, sign),
            ']' | '^' | '-' | ':' if in_brackets => regex.push(sign),
            '[' if in_brackets && signs.as_str().starts_with(':') => regex.push(sign),
            '[' if !in_brackets => regex.push(sign),
            _ if in_braces => regex.push(sign),
            _ if in_brackets => literal(&mut regex, sign),
            '%' => regex.push_str(".*"),
            '_' => regex.push('.'),
            // There it would make the quantifier before it a lazy one.
            '?' if matches!(before, '*' | '+' | '?' | '}') => return None,
            '(' => regex.push_str("(?:"),
            '*' | '+' | '?' | '{' | ')' | '|' => regex.push(sign),
            sign => literal(&mut regex, sign),
        }
        in_braces = (in_braces || sign == '{' && !in_brackets) && sign != '}';
        let ends_class = in_class && sign == ']';
        in_class = in_class && !ends_class || in_brackets && sign == '[' && signs.as_str().starts_with(':');
        in_brackets = (in_brackets || sign == '[') && (sign != ']' || ends_class);
        before = sign;
    }
    Some(regex + ")$")
}

#[cfg(test)]
mod tests {
    use super::regular;

    #[test]
    fn a_pattern_is_a_regular_expression() {
        let of = |pattern: &str| regular(pattern, "\\");
        assert_eq!(of("a(b|c)%").as_deref(), Some("(?s)^(?:a(?:b|c).*)$"));
        assert_eq!(of("_.5{2,}[^a-c.[]+").as_deref(), Some("(?s)^(?:.\\.5{2,}[^a-c\\.\\[]+)$"));
        assert_eq!(of("\\%[[:digit:]x]*_").as_deref(), Some("(?s)^(?:\\%[[:digit:]x]*.)$"));
        assert_eq!(of("[+--]").as_deref(), Some("(?s)^(?:[\\+-\\-])$"));
        assert_eq!(of("[a:]%").as_deref(), Some("(?s)^(?:[a:].*)$"));
        assert_eq!(regular("a!_\\", "!").as_deref(), Some("(?s)^(?:a\\_\\\\)$"));
        assert_eq!(of("(?i)a").as_deref(), Some("(?s)^(?:(?:?i)a)$"), "which is none");
        for wrong in ["a*?", "a{2}?", "a\\"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
