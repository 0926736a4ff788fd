//! Scripts as tokens with their places: tokenised once, split at `;`, and put into the canonical form that identifies
//! an application.

use std::collections::BTreeSet;

use datafusion_sql::sqlparser::ast::Expr;
use datafusion_sql::sqlparser::dialect::Dialect;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};
use sha2::{Digest, Sha256};

use crate::{Position, SqlError};

/// The longest script, in bytes.
pub const SCRIPT_BYTES_MAX: usize = 64 << 20;

/// The lexical rules of Rivulet's SQL: those of the standard, `$name` for parameters, comments may nest.
///
/// The permissive dialects of the parser are not used because they read code out of comments (`/*! ... */`) and have
/// dollar-quoted strings, which would swallow a script from one `$parameter` to the next.
#[derive(Debug)]
pub(crate) struct RivuletDialect;

impl Dialect for RivuletDialect {
    fn is_delimited_identifier_start(&self, character: char) -> bool {
        matches!(character, '"' | '`')
    }

    fn is_identifier_start(&self, character: char) -> bool {
        character.is_alphabetic() || character == '_'
    }

    fn is_identifier_part(&self, character: char) -> bool {
        character.is_alphanumeric() || character == '_'
    }

    fn supports_dollar_placeholder(&self) -> bool {
        true
    }

    fn supports_nested_comments(&self) -> bool {
        true
    }

    fn supports_filter_during_aggregation(&self) -> bool {
        true
    }

    fn supports_table_versioning(&self) -> bool {
        true
    }

    fn supports_group_by_expr(&self) -> bool {
        true
    }

    /// The parser takes all that follows `IS [NOT] DISTINCT FROM` as its right side, up to the end of an AND or OR; here it ends where that of a
    /// comparison does.
    fn parse_infix(&self, parser: &mut Parser<'_>, left: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
        let operator: fn(Box<Expr>, Box<Expr>) -> Expr =
            if parser.parse_keywords(&[Keyword::IS, Keyword::DISTINCT, Keyword::FROM]) {
                Expr::IsDistinctFrom
            } else if parser.parse_keywords(&[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM]) {
                Expr::IsNotDistinctFrom
            } else {
                return None;
            };
        let right = parser.parse_subexpr(precedence);
        Some(right.map(|right| operator(Box::new(left.clone()), Box::new(right))))
    }

    // The following are understood so that they can be refused by name.
    fn supports_group_by_with_modifier(&self) -> bool {
        true
    }

    fn supports_window_function_null_treatment_arg(&self) -> bool {
        true
    }
}

/// One statement of a script: its tokens without blanks and comments, and its text.
#[derive(Debug)]
pub(crate) struct StatementTokens<'a> {
    pub(crate) tokens: Vec<TokenWithSpan>,
    /// From the first token to the last, without the closing `;`.
    pub(crate) text: &'a str,
    /// Where the `;` or the end of the script stands.
    pub(crate) end: Position,
}

/// Splits a script into its statements. Empty statements vanish.
pub(crate) fn split(script: &str) -> Result<Vec<StatementTokens<'_>>, SqlError> {
    if script.len() > SCRIPT_BYTES_MAX {
        return Err(SqlError::new(
            Position { line: 1, column: 1 },
            format!("the script has {} bytes, and at most {SCRIPT_BYTES_MAX} are accepted", script.len()),
        )
        .hint("cut it into several scripts"));
    }
    let tokens = Tokenizer::new(&RivuletDialect, script).tokenize_with_location().map_err(|error| {
        let message = match error.message.as_str() {
            "Unterminated string literal" => "this string is not closed".to_owned(),
            "Unexpected EOF while in a multi-line comment" => "this comment is not closed".to_owned(),
            other => lower_first(other),
        };
        SqlError::new(error.location, message)
    })?;

    let mut statements = Vec::new();
    let mut offsets = Offsets::new(script);
    let mut current: Vec<TokenWithSpan> = Vec::new();
    let mut finish = |tokens: &mut Vec<TokenWithSpan>, end: Option<Location>| {
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else { return };
        let text_start = offsets.of(first.span.start);
        let text_end = offsets.of(last.span.end);
        let end = Position::from(end.unwrap_or(last.span.end));
        statements.push(StatementTokens { tokens: std::mem::take(tokens), text: &script[text_start..text_end], end });
    };
    for token in tokens {
        match token.token {
            Token::Whitespace(_) => {}
            Token::SemiColon => finish(&mut current, Some(token.span.start)),
            _ => current.push(token),
        }
    }
    finish(&mut current, None);
    Ok(statements)
}

/// Byte offsets of places, asked for in ascending order.
struct Offsets<'a> {
    script: &'a str,
    line: u64,
    column: u64,
    offset: usize,
}

impl<'a> Offsets<'a> {
    fn new(script: &'a str) -> Self {
        Self { script, line: 1, column: 1, offset: 0 }
    }

    fn of(&mut self, location: Location) -> usize {
        for character in self.script[self.offset..].chars() {
            if (self.line, self.column) >= (location.line, location.column) {
                break;
            }
            self.offset += character.len_utf8();
            if character == '\n' {
                self.line += 1;
                self.column = 1;
            } else {
                self.column += 1;
            }
        }
        self.offset
    }
}

/// The text of one statement with other values of options in the place of those that begin at these places, in their order.
/// A value ends before the `,` or `)` behind it.
pub(crate) fn with_values(text: &str, values: impl Iterator<Item = (Position, String)>) -> String {
    let statement = split(text).ok().and_then(|mut statements| statements.pop());
    let tokens = statement.map(|statement| statement.tokens).unwrap_or_default();
    let (mut offsets, mut written, mut out) = (Offsets::new(text), 0, String::new());
    for (position, value) in values {
        let Some(first) = tokens.iter().position(|token| Position::from(token.span.start) == position) else {
            continue;
        };
        let is_behind = |token: &&TokenWithSpan| matches!(token.token, Token::Comma | Token::RParen);
        let length = tokens[first..].iter().take_while(|token| !is_behind(token)).count().max(1);
        let (from, to) = (offsets.of(tokens[first].span.start), offsets.of(tokens[first + length - 1].span.end));
        out.push_str(&text[written..from]);
        out.push_str(&value);
        written = to;
    }
    out.push_str(&text[written..]);
    out
}

/// The identity of an application: SHA-256 (hex) of its tokens, unquoted words in lower case, with single blanks.
///
/// Comments, layout and the case of keywords and unquoted names do not count, and neither does `IF NOT EXISTS`, which
/// is about the registration and not about the application.
pub(crate) fn canonical_id(tokens: &[TokenWithSpan]) -> String {
    let mut hash = Sha256::new();
    let is_word = |index: usize, word: &str| tokens.get(index).is_some_and(|token| token_is_word(&token.token, word));
    let mut index = 0;
    while index < tokens.len() {
        if index == 2 && is_word(2, "if") && is_word(3, "not") && is_word(4, "exists") {
            index = 5;
            continue;
        }
        match &tokens[index].token {
            Token::Word(word) if word.quote_style.is_none() => hash.update(word.value.to_lowercase()),
            Token::Placeholder(name) => hash.update(name.to_lowercase()),
            // The tokens of strings and quoted names hold what stands between the quotes with the doubled ones
            // undone; escaping them again keeps one token from looking like two.
            Token::Word(word) => hash.update(format!("{:?}", word.value)),
            Token::SingleQuotedString(text) => hash.update(format!("'{}'", text.replace('\'', "''"))),
            other => hash.update(other.to_string()),
        }
        hash.update(b" ");
        index += 1;
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The names of parameters that stand in a statement as `$name`, in lower case.
pub(crate) fn parameters_used(tokens: &[TokenWithSpan]) -> BTreeSet<String> {
    let names = tokens.iter().filter_map(|token| match &token.token {
        Token::Placeholder(name) => Some(name.trim_start_matches('$').to_lowercase()),
        _ => None,
    });
    names.collect()
}

/// Whether a token is this unquoted word, in any case.
pub(crate) fn token_is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(found) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
}

/// A token as it is named in messages.
pub(crate) fn describe_token(token: &Token) -> String {
    match token {
        Token::EOF => "the end of the statement".to_owned(),
        Token::SingleQuotedString(text) => format!("the string '{}'", shorten(text)),
        other => format!("'{}'", shorten(&other.to_string())),
    }
}

fn shorten(text: &str) -> String {
    const SHOWN_CHARACTERS_MAX: usize = 40;
    match text.char_indices().nth(SHOWN_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

pub(crate) fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    // An abbreviation keeps its capitals.
    match (characters.next(), characters.clone().next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => {
            first.to_lowercase().collect::<String>() + characters.as_str()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(script: &str) -> Vec<&str> {
        split(script).unwrap().into_iter().map(|statement| statement.text).collect()
    }

    #[test]
    fn a_script_is_split_at_semicolons_that_are_code() {
        assert_eq!(
            texts("a ';' b; -- c;\n/* d; /* nested; */ */ \"e;\" 'it''s; ü'  ;; \n ; f"),
            ["a ';' b", "\"e;\" 'it''s; ü'", "f"]
        );
        assert!(texts(" -- nothing\n;;").is_empty());
        assert!(texts("").is_empty());
    }

    #[test]
    fn places_are_lines_and_characters() {
        let statements = split("ü ü\n  b;\nc").unwrap();
        let place = |statement: usize, token: usize| Position::from(statements[statement].tokens[token].span);
        assert_eq!(place(0, 1), Position { line: 1, column: 3 });
        assert_eq!(place(0, 2), Position { line: 2, column: 3 });
        assert_eq!(statements[0].end, Position { line: 2, column: 4 });
        assert_eq!(place(1, 0), Position { line: 3, column: 1 });
    }

    #[test]
    fn open_strings_and_comments_are_errors() {
        assert_eq!(split("a 'b").unwrap_err().to_string(), "error at line 1, column 3: this string is not closed");
        assert!(split("a /* b").unwrap_err().to_string().contains("this comment is not closed"));
        assert!(split("a \"b").is_err());
    }

    #[test]
    fn comments_are_not_code() {
        let statements = split("a /*! b */ /*+ c */ -- d").unwrap();
        assert_eq!(statements[0].tokens.len(), 1);
    }

    #[test]
    fn dollars_are_parameters_only() {
        let statements = split("value>$lo AND $hi<$lo").unwrap();
        assert_eq!(statements[0].tokens[2].token, Token::Placeholder("$lo".into()));
        assert_eq!(statements[0].tokens.len(), 7);
    }

    #[test]
    fn identity_is_that_of_the_code() {
        let id = |script: &str| canonical_id(&split(script).unwrap()[0].tokens);
        let same = id("CREATE APPLICATION x (Home TEXT) SELECT $Home, 'A'");
        assert_eq!(same, id("create  application X -- comment\n (home text)\nselect $home, 'A';"));
        assert_eq!(same, id("CREATE APPLICATION IF NOT EXISTS x (home TEXT) SELECT $home, 'A'"));
        assert_ne!(same, id("CREATE APPLICATION x (home TEXT) SELECT $home, 'a'"));
        assert_ne!(same, id("CREATE APPLICATION \"X\" (home TEXT) SELECT $home, 'A'"));
        assert_ne!(id("a 'b'' ''c'"), id("a 'b' 'c'"));
        assert_eq!(same.len(), 64);
    }
}
