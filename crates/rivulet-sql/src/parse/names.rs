//! Names that are words of the language: `limit`, `end`, `order`.
//!
//! Such a word is a name where an expression has to begin, if what follows it can only follow an expression:
//! `max(end)`, `value > limit AND`, `t.order`. There it is put in double quotes before anything else is read, in lower
//! case as other names are. Everywhere else it keeps its meaning. It also does in a text that cannot be read with the
//! names found this way.
//!
//! What must hold: the number of tokens and their positions stay the same.

use std::borrow::Cow;

use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use crate::lexer::token_is_word;

/// The words that may be names without quotes where only a name is possible.
const NAMES: [&str; 23] = [
    "any", "between", "by", "create", "else", "emit", "end", "exists", "group", "having", "if", "in", "interval", "is",
    "join", "like", "limit", "on", "order", "table", "then", "union", "when",
];

/// Words before an expression. They are reserved, so they are no columns without quotes.
const BEFORE: [&str; 15] = [
    "select", "distinct", "where", "and", "or", "when", "then", "else", "by", "on", "having", "between", "like", "as",
    "from",
];

/// Words behind an expression.
const BEHIND: [&str; 29] = [
    "from", "where", "and", "or", "is", "not", "in", "between", "like", "ilike", "when", "then", "else", "end", "as",
    "group", "having", "order", "limit", "offset", "qualify", "asc", "desc", "nulls", "emit", "union", "into", "on",
    "output",
];

/// The tokens of a statement as they are.
pub(super) fn as_written(tokens: &[TokenWithSpan]) -> Cow<'_, [TokenWithSpan]> {
    Cow::Borrowed(tokens)
}

/// The tokens of a statement with such names in quotes.
pub(super) fn quoted(tokens: &[TokenWithSpan]) -> Cow<'_, [TokenWithSpan]> {
    let mut all = Cow::Borrowed(tokens);
    for index in 0..tokens.len() {
        let Token::Word(word) = &tokens[index].token else { continue };
        if !NAMES.iter().any(|name| token_is_word(&tokens[index].token, name)) {
            continue;
        }
        let before = index.checked_sub(1).map(|before| &all[before].token);
        let behind = tokens.get(index + 1).map(|behind| &behind.token);
        // In `t.from` and `t.as` the word before the token is a name itself.
        let is_behind_name = index >= 2 && all[index - 2].token == Token::Period;
        let takes_name = token_is_word(&tokens[index].token, "table") && matches!(behind, Some(Token::Word(_)));
        // A sign behind INTERVAL belongs to its number, and INTERVAL behind AS is the type of a cast.
        let is_of_interval = word.keyword == Keyword::INTERVAL
            && (matches!(behind, Some(Token::Plus | Token::Minus))
                || before.is_some_and(|before| token_is_word(before, "as")));
        let is_name = match before {
            Some(Token::Period) => behind != Some(&Token::LParen),
            before => {
                let may_be_name = !is_behind_name && !takes_name && !is_of_interval;
                may_be_name && before.is_some_and(begins_behind) && behind.is_none_or(ends_before)
            }
        };
        if is_name {
            let name = Word { value: word.value.to_lowercase(), quote_style: Some('"'), keyword: Keyword::NoKeyword };
            all.to_mut()[index].token = Token::Word(name);
        }
    }
    all
}

/// Whether an expression has to begin behind this token.
fn begins_behind(token: &Token) -> bool {
    match token {
        Token::Comma | Token::LParen | Token::LBracket => true,
        Token::Word(_) => BEFORE.iter().any(|word| token_is_word(token, word)),
        // Behind `=>` there is a constant, or an expression in which such names need quotes.
        token => is_operator(token),
    }
}

/// Whether an expression has to have ended before this token.
fn ends_before(token: &Token) -> bool {
    match token {
        Token::Comma | Token::RParen | Token::RBracket | Token::Period | Token::DoubleColon | Token::EOF => true,
        Token::Word(_) => BEHIND.iter().any(|word| token_is_word(token, word)),
        token => is_operator(token),
    }
}

fn is_operator(token: &Token) -> bool {
    matches!(
        token,
        Token::Eq
            | Token::Neq
            | Token::Lt
            | Token::Gt
            | Token::LtEq
            | Token::GtEq
            | Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::Mod
            | Token::StringConcat
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer;

    /// A statement in which the names that were found are in quotes.
    fn shown(text: &str) -> String {
        let statement = lexer::statements(text).next().expect("a statement").expect("tokens");
        let tokens = quoted(&statement.tokens);
        assert!(tokens.iter().zip(&statement.tokens).all(|(one, other)| one.span == other.span));
        tokens.iter().map(|token| token.token.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn words_are_names_where_nothing_else_can_stand() {
        for (text, names) in [
            ("SELECT Limit , end FROM t", "SELECT \"limit\" , \"end\" FROM t"),
            ("SELECT max ( end ) AS order FROM t", "SELECT max ( \"end\" ) AS \"order\" FROM t"),
            ("SELECT t . group FROM t", "SELECT t . \"group\" FROM t"),
            ("x > limit AND y < end", "x > \"limit\" AND y < \"end\""),
            ("x BETWEEN limit AND end", "x BETWEEN \"limit\" AND \"end\""),
            ("CASE WHEN end > 3 THEN end ELSE end END", "CASE WHEN \"end\" > 3 THEN \"end\" ELSE \"end\" END"),
            ("SELECT a FROM t GROUP BY group", "SELECT a FROM t GROUP BY \"group\""),
            ("SELECT a FROM t ORDER BY order LIMIT 3", "SELECT a FROM t ORDER BY \"order\" LIMIT 3"),
            ("SELECT interval * 2 , in - on FROM t", "SELECT \"interval\" * 2 , \"in\" - \"on\" FROM t"),
        ] {
            assert_eq!(shown(text), names);
        }
    }

    #[test]
    fn words_stay_what_they_are_where_they_can() {
        for text in [
            "SELECT count ( * ) OVER ( ORDER BY ts ) FROM t GROUP BY a HAVING b LIMIT 5",
            "SELECT CASE WHEN a THEN b ELSE c END FROM t",
            "SELECT CASE a WHEN 1 THEN 2 END , x NOT LIKE 'a' AND y NOT IN ( 1 , 2 ) FROM t",
            "SELECT INTERVAL '1' , INTERVAL - 1 , a IS NOT NULL , EXISTS ( SELECT 1 )",
            "CREATE QUERY IF NOT EXISTS q AS SELECT a FROM t JOIN u ON t.a = u.a EMIT ON CHANGE",
            "SELECT a BETWEEN 1 AND 2 OR b IN ( 3 ) FROM t ORDER BY a DESC LIMIT 1",
            "SHOW QUERIES LIKE 'a' LIMIT 10",
            "SELECT CAST ( a AS INTERVAL ) FROM t",
            "SELECT count ( ALL a ) FROM TABLE ( TUMBLE ( TABLE t , 1 ) ) UNION ALL SELECT 1 FROM t GROUP BY ALL",
            "CREATE OR REPLACE QUERY q AS SELECT a FROM t WHERE NOT EXISTS ( SELECT 1 FROM u )",
            "SELECT CASE WHEN x > 0 THEN t . from END AS y FROM t WHERE t . from IS NOT NULL AND t . as IS NOT NULL",
            "SELECT CASE WHEN x > 0 THEN qualify END AS y FROM t WHERE qualify IS NOT NULL",
            "SELECT a FROM TUMBLE ( TABLE output , 1 ) , HOP ( TABLE offset , 1 ) , HOP ( TABLE nulls , 1 )",
        ] {
            let plain: Vec<&str> = text.split(' ').collect();
            let plain = plain.join(" ").replace("t.a", "t . a").replace("u.a", "u . a");
            assert_eq!(shown(text), plain);
        }
    }
}
