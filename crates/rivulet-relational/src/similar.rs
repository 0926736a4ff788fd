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
    let escape = match escape_char {
        None => Some('\\'),
        Some(escape) => {
            let text = escape.value.clone().into_string().unwrap_or_default();
            let mut signs = text.chars();
            match (signs.next(), signs.next()) {
                (escape, None) => escape,
                _ => return Err(RelationalError::new("ESCAPE names one sign").hint("write ESCAPE '!'")),
            }
        }
    };
    let regex = regular(written, escape).ok_or_else(|| {
        let error = RelationalError::new(format!("'{written}' is no pattern of SIMILAR TO"));
        error.hint("% is any text, _ a sign; | * + ? {2,3} (...) [...] are as in a regular expression")
    })?;
    let op = if *negated { BinaryOperator::PGRegexNotMatch } else { BinaryOperator::PGRegexMatch };
    let left = std::mem::replace(expr, Box::new(Expr::Value(Value::Null.into())));
    let right = Box::new(Expr::Value(Value::SingleQuotedString(regex).into()));
    *expression = Expr::Nested(Box::new(Expr::BinaryOp { left, op, right }));
    Ok(())
}

/// The text of a constant.
pub(crate) fn text_of(pattern: &Expr) -> Option<&str> {
    match pattern {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// The regular expression of a pattern; `None` if it is none.
fn regular(pattern: &str, escape: Option<char>) -> Option<String> {
    let mut regex = "(?s)^(?:".to_owned();
    let literal = |regex: &mut String, sign: char| {
        regex.extend((sign.is_ascii_punctuation() && !"<>".contains(sign)).then_some('\\'));
        regex.push(sign);
    };
    // Whether something may be repeated here, and how many groups are open.
    let (mut may_repeat, mut groups) = (false, 0_usize);
    let mut signs = pattern.chars().peekable();
    while let Some(sign) = signs.next() {
        let repeats = matches!(sign, '*' | '+' | '?' | '{') && Some(sign) != escape;
        if repeats && !may_repeat {
            return None;
        }
        may_repeat = !repeats;
        match sign {
            _ if Some(sign) == escape => literal(&mut regex, signs.next()?),
            '%' => {
                may_repeat = false;
                regex.push_str(".*");
            }
            '_' => regex.push('.'),
            '*' | '+' | '?' => regex.push(sign),
            '{' => {
                regex.push('{');
                let bounds: String = signs.by_ref().take_while(|sign| *sign != '}').collect();
                let mut numbers = bounds.splitn(2, ',');
                let is_number = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
                if !is_number(numbers.next()?) || !numbers.next().is_none_or(|most| most.is_empty() || is_number(most))
                {
                    return None;
                }
                regex.push_str(&bounds);
                regex.push('}');
            }
            '(' => {
                (groups, may_repeat) = (groups + 1, false);
                regex.push_str("(?:");
            }
            ')' => {
                groups = groups.checked_sub(1)?;
                regex.push(')');
            }
            '|' => {
                may_repeat = false;
                regex.push('|');
            }
            '[' => {
                regex.push('[');
                regex.extend(signs.next_if_eq(&'^'));
                loop {
                    match signs.next()? {
                        ']' => break,
                        sign if Some(sign) == escape => literal(&mut regex, signs.next()?),
                        '-' => regex.push('-'),
                        // A class such as [:digit:].
                        '[' if signs.peek() == Some(&':') => {
                            let class: String = signs.by_ref().take_while(|sign| *sign != ']').collect();
                            regex.extend(["[", class.as_str(), "]"]);
                        }
                        sign => literal(&mut regex, sign),
                    }
                }
                regex.push(']');
            }
            sign => literal(&mut regex, sign),
        }
    }
    (groups == 0).then(|| regex + ")$")
}

#[cfg(test)]
mod tests {
    use super::regular;

    #[test]
    fn a_pattern_is_a_regular_expression() {
        let of = |pattern: &str| regular(pattern, Some('\\'));
        assert_eq!(of("a(b|c)%").as_deref(), Some("(?s)^(?:a(?:b|c).*)$"));
        assert_eq!(of("_.5{2,}[^a-c.]+").as_deref(), Some("(?s)^(?:.\\.5{2,}[^a-c\\.]+)$"));
        assert_eq!(of("\\%[[:digit:]x]*").as_deref(), Some("(?s)^(?:\\%[[:digit:]x]*)$"));
        assert_eq!(regular("a!_\\", Some('!')).as_deref(), Some("(?s)^(?:a\\_\\\\)$"));
        for wrong in ["(", "a)", "a**", "*", "(?i)a", "|+", "%+", "a{x}", "a{2", "[a", "a\\"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
