//! Scripts as tokens with their positions. A script is tokenised piece by piece, split at `;`, and put into the
//! canonical form that identifies an application.
//!
//! What must hold: reading a script takes memory for one statement, however long the script is, and the size of a
//! statement is limited. A token takes some 100 bytes, and every blank is a token, so a text of some MiB would take a
//! GiB if it were tokenised as a whole.

use std::collections::{BTreeSet, VecDeque};

use datafusion_sql::sqlparser::ast::Expr;
use datafusion_sql::sqlparser::dialect::Dialect;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer};
use sha2::{Digest, Sha256};

use crate::{Position, SqlError};

/// The longest script, in bytes.
pub const SCRIPT_BYTES_MAX: usize = 64 << 20;

/// The longest statement, in tokens: words, numbers, strings and signs.
pub const STATEMENT_TOKENS_MAX: usize = 100_000;

/// How much code is tokenised at once, in bytes.
const PIECE_BYTES: usize = if cfg!(test) { 8 } else { 4 << 10 };

/// The longest code without a blank, comma, parenthesis or `;`, in bytes.
const RUN_BYTES_MAX: usize = 64 << 10;

/// The lexical rules of Rivulet's SQL: those of the standard, with `$name` for parameters and nested comments.
///
/// The permissive dialects of the parser are not used. They read code out of comments (`/*! ... */`), and they have
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

    /// `SELECT * EXCEPT (column, ...)`.
    fn supports_select_wildcard_except(&self) -> bool {
        true
    }

    /// The parser takes everything behind `IS [NOT] DISTINCT FROM` as its right side, up to the end of an AND or OR.
    /// Here the right side ends where that of a comparison does.
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

    // The following are parsed so that they can be refused by name.
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
    /// The position of the `;` or of the end of the script.
    pub(crate) end: Position,
}

/// Returns the statements of a script, one after the other, without empty ones. Ends behind the first error.
pub(crate) fn statements(script: &str) -> Statements<'_> {
    let too_long = (script.len() > SCRIPT_BYTES_MAX).then(|| {
        let message = format!("the script has {} bytes, and at most {SCRIPT_BYTES_MAX} are accepted", script.len());
        SqlError::new(Position { line: 1, column: 1 }, message).hint("cut it into several scripts")
    });
    Statements {
        script,
        pieces: Pieces { script, offset: 0, place: Location { line: 1, column: 1 } },
        offsets: Offsets::new(script),
        ready: VecDeque::new(),
        current: Vec::new(),
        error: too_long,
        has_ended: false,
    }
}

/// Whether the text before a quote ends with the X of X'...': at its beginning, behind a sign, or behind a number. In
/// `ax'...'` the X is of a name.
fn begins_hexadecimal(before: &str) -> bool {
    let Some(before) = before.strip_suffix(['x', 'X']) else { return false };
    let word = before.trim_end_matches(|sign| RivuletDialect.is_identifier_part(sign));
    let (digits, exponent) = match before[word.len()..].split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent),
        None => (&before[word.len()..], "0"),
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    before.len() == word.len() || (is_number(digits) && is_number(exponent))
}

/// See [`statements`].
pub(crate) struct Statements<'a> {
    script: &'a str,
    pieces: Pieces<'a>,
    offsets: Offsets<'a>,
    /// The statements of the pieces that are tokenised.
    ready: VecDeque<StatementTokens<'a>>,
    /// The tokens of the statement that has begun.
    current: Vec<TokenWithSpan>,
    /// The error that comes behind the ready statements.
    error: Option<SqlError>,
    has_ended: bool,
}

impl<'a> Iterator for Statements<'a> {
    type Item = Result<StatementTokens<'a>, SqlError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(statement) = self.ready.pop_front() {
                return Some(Ok(statement));
            }
            if self.has_ended {
                return None;
            }
            if let Some(error) = self.error.take() {
                self.has_ended = true;
                return Some(Err(error));
            }
            match self.pieces.next() {
                Some(piece) => self.error = piece.and_then(|piece| self.tokenise(&piece)).err(),
                None => {
                    self.has_ended = true;
                    self.finish(None);
                }
            }
        }
    }
}

impl Statements<'_> {
    /// Takes the tokens of a piece.
    fn tokenise(&mut self, piece: &Piece<'_>) -> Result<(), SqlError> {
        let mut tokens = Vec::new();
        let outcome = Tokenizer::new(&RivuletDialect, piece.text).tokenize_with_location_into_buf(&mut tokens);
        for TokenWithSpan { token, span } in tokens {
            let span = Span::new(piece.place_of(span.start), piece.place_of(span.end));
            match token {
                Token::Whitespace(_) => {}
                Token::SemiColon => self.finish(Some(span.start)),
                _ if self.current.len() == STATEMENT_TOKENS_MAX => {
                    let message = format!("the statement has more than {STATEMENT_TOKENS_MAX} words and signs");
                    let begin = self.current[0].span.start;
                    return Err(SqlError::new(begin, message).hint("cut it into several statements"));
                }
                _ => self.current.push(TokenWithSpan { token, span }),
            }
        }
        outcome.map_err(|error| {
            let message = match error.message.as_str() {
                "Unterminated string literal" => "this string is not closed".to_owned(),
                "Unexpected EOF while in a multi-line comment" => "this comment is not closed".to_owned(),
                other => lower_first(other),
            };
            SqlError::new(piece.place_of(error.location), message)
        })
    }

    /// Ends the statement that has begun, if one has.
    fn finish(&mut self, end: Option<Location>) {
        let tokens = std::mem::take(&mut self.current);
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else { return };
        let text_start = self.offsets.of(first.span.start);
        let text_end = self.offsets.of(last.span.end);
        let end = Position::from(end.unwrap_or(last.span.end));
        self.ready.push_back(StatementTokens { text: &self.script[text_start..text_end], tokens, end });
    }
}

/// A part of a script in which no token is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece<'a> {
    text: &'a str,
    /// Where it begins.
    place: Location,
}

impl Piece<'_> {
    /// Converts a location in the piece to one in the script.
    fn place_of(&self, inside: Location) -> Location {
        match inside.line {
            // The location is unknown.
            0 => inside,
            1 => Location { line: self.place.line, column: self.place.column + inside.column - 1 },
            line => Location { line: self.place.line + line - 1, column: inside.column },
        }
    }
}

/// Cuts a script behind blanks and behind signs that are tokens by themselves, but never inside strings, quoted names
/// and comments.
struct Pieces<'a> {
    script: &'a str,
    offset: usize,
    place: Location,
}

/// What the cutter is inside of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Code,
    /// In quotes up to this sign, and whether a backslash escapes the next sign.
    Quotes(char, bool),
    Line,
    /// In comments nested this deep.
    Comment(usize),
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<Piece<'a>, SqlError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.script[self.offset..];
        if rest.is_empty() {
            return None;
        }
        let begin = self.place;
        let mut inside = Inside::Code;
        // Bytes of code: since the last place where the script could be cut, and in all.
        let (mut run_bytes, mut code_bytes) = (0, 0);
        let mut signs = rest.char_indices().peekable();
        let mut end = rest.len();
        while let Some((offset, sign)) = signs.next() {
            let mut step = |sign: char| match sign {
                '\n' => self.place = Location { line: self.place.line + 1, column: 1 },
                _ => self.place.column += 1,
            };
            step(sign);
            let next = signs.peek().map(|(_, next)| *next);
            let mut pass = || {
                if let Some((_, sign)) = signs.next() {
                    step(sign);
                }
            };
            let was = inside;
            match (inside, sign) {
                (Inside::Code, '\'') => {
                    // X'...' is the only string in which a backslash is an escape.
                    inside = Inside::Quotes(sign, begins_hexadecimal(&rest[..offset]));
                }
                (Inside::Code, '"' | '`') => inside = Inside::Quotes(sign, false),
                (Inside::Code, '-') if next == Some('-') => inside = Inside::Line,
                // An operator; the `/` begins no comment.
                (Inside::Code, '|') if next == Some('/') => pass(),
                (Inside::Code, '/') if next == Some('*') => {
                    pass();
                    inside = Inside::Comment(1);
                }
                (Inside::Quotes(_, true), '\\') => pass(),
                // A doubled quote does not end the string.
                (Inside::Quotes(quote, _), sign) if sign == quote && next == Some(quote) => pass(),
                (Inside::Quotes(quote, _), sign) if sign == quote => inside = Inside::Code,
                (Inside::Line, '\n') => inside = Inside::Code,
                (Inside::Comment(depth), '/') if next == Some('*') => {
                    pass();
                    inside = Inside::Comment(depth + 1);
                }
                (Inside::Comment(depth), '*') if next == Some('/') => {
                    pass();
                    inside = if depth == 1 { Inside::Code } else { Inside::Comment(depth - 1) };
                }
                _ => {}
            }
            if (was, inside) != (Inside::Code, Inside::Code) {
                run_bytes = 0;
                continue;
            }
            (run_bytes, code_bytes) = (run_bytes + sign.len_utf8(), code_bytes + sign.len_utf8());
            if sign.is_whitespace() || matches!(sign, ';' | ',' | '(' | ')') {
                run_bytes = 0;
                if code_bytes >= PIECE_BYTES {
                    end = offset + sign.len_utf8();
                    break;
                }
            }
            if run_bytes > RUN_BYTES_MAX {
                self.offset = self.script.len();
                let message = format!("there are more than {RUN_BYTES_MAX} bytes without a blank");
                return Some(Err(SqlError::new(begin, message)));
            }
        }
        self.offset += end;
        Some(Ok(Piece { text: &rest[..end], place: begin }))
    }
}

/// Finds the byte offsets of locations, which must be asked for in ascending order.
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

/// Returns the text of one statement with new values of options. Each new value comes with the position of the old one,
/// in ascending order. A value ends before the `,` or `)` behind it.
pub(crate) fn with_values(text: &str, values: impl Iterator<Item = (Position, String)>) -> String {
    let statement = statements(text).last().and_then(Result::ok);
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
/// Comments, layout and the case of keywords and unquoted names do not count. `IF NOT EXISTS` does not count either,
/// because it concerns the registration and not the application.
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
            // Tokens of strings and quoted names hold the text between the quotes, in which doubled quotes are already
            // single. They are escaped again, so that one token cannot look like two.
            Token::Word(word) => hash.update(format!("{:?}", word.value)),
            Token::SingleQuotedString(text) => hash.update(format!("'{}'", text.replace('\'', "''"))),
            other => hash.update(other.to_string()),
        }
        hash.update(b" ");
        index += 1;
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The names of parameters that a statement uses as `$name`, in lower case.
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

/// A token in the words of messages.
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
    use proptest::prelude::*;

    use super::*;

    fn split(script: &str) -> Result<Vec<StatementTokens<'_>>, SqlError> {
        statements(script).collect()
    }

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

    /// The tokens of a script with their locations, tokenised as a whole. `None` if the script is no SQL.
    fn whole(script: &str) -> Option<Vec<TokenWithSpan>> {
        let tokens = Tokenizer::new(&RivuletDialect, script).tokenize_with_location().ok()?;
        let is_code = |token: &TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::SemiColon);
        Some(tokens.into_iter().filter(is_code).collect())
    }

    #[test]
    fn a_doubled_quote_leaves_the_escapes_of_a_string() {
        for script in [r"x'''\''x'select x'x'x'", r"1e5x'\''x'select x'", r"12x'\''", r"b1x'\', 1ex'\', 'x'"] {
            assert_eq!(split(script).ok().map(|found| found[0].tokens.clone()), whole(script), "{script}");
        }
    }

    proptest! {
        #[test]
        fn pieces_are_tokens_as_the_whole_is(script in "([ab1xX.;,()'\"`\\\\*/$=<>|+ü\r\n -]|--|/\\*|\\*/|x'|''|select |1e5|a\\._b){0,60}") {
            let pieces: Result<Vec<_>, _> = statements(&script).map(|statement| Ok(statement?.tokens)).collect();
            let pieces: Option<Vec<_>> = pieces.map_err(|_: SqlError| ()).ok().map(|all| all.concat());
            let shown = |tokens: Option<Vec<TokenWithSpan>>| {
                tokens.map(|tokens| tokens.into_iter().map(|token| (token.token, token.span)).collect::<Vec<_>>())
            };
            prop_assert_eq!(shown(pieces), shown(whole(&script)));
        }
    }

    #[test]
    fn what_a_statement_may_be_is_bounded() {
        let error = |script: &str| split(script).unwrap_err();
        let long = |sign: &str| format!("a;\n b {}", sign.repeat(STATEMENT_TOKENS_MAX + 1));
        for sign in ["(", ")", "a ", "+ ", ", "] {
            let error = error(&long(sign));
            assert!(error.message.contains("more than 100000 words and signs"), "{error}");
            assert_eq!((error.line, error.column), (2, 2));
        }
        assert!(error(&"+".repeat(RUN_BYTES_MAX + 1)).message.contains("without a blank"));
        assert!(split(&";".repeat(4 << 20)).unwrap().is_empty());
        // Strings and comments are one token or none, however long they are.
        let text = "();,+-* ".repeat(100_000);
        assert_eq!(split(&format!("a '{text}' /* {text} */ \"{text}\"")).unwrap()[0].tokens.len(), 3);
    }
}
