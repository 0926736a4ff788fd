//! `FROM t MATCH_RECOGNIZE (...)`: row patterns of the SQL standard, with `WITHIN` as in Apache Flink.
//!
//! The clause is taken out of the SELECT, which is then a SELECT over `t`. We read the clause ourselves on the same
//! tokens, because the parser of DataFusion has neither reluctant quantifiers nor `WITHIN`, and no positions in
//! patterns.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::cursor::Cursor;
use super::select_text::{depth_behind, name_of, not_yet, read};
use crate::lexer::{describe_token, token_is_word};
use crate::statement::{MatchClause, Name, PatternTree, SkipClause};
use crate::{Position, SqlError};

pub(super) const EXAMPLE: &str = "write for example FROM t MATCH_RECOGNIZE (MEASURES B.value AS peak \
    PATTERN (A B+) WITHIN INTERVAL '1 hour' DEFINE A AS value > 3, B AS B.value > LAST(B.value, 1))";

/// The words that begin the clauses, in the order of the clauses.
const CLAUSES: [&[&str]; 10] = [
    &["partition", "by"],
    &["order", "by"],
    &["measures"],
    &["one", "row"],
    &["all", "rows"],
    &["after", "match"],
    &["pattern"],
    &["within"],
    &["subset"],
    &["define"],
];

/// A SELECT without the row pattern that was in its FROM.
pub(super) struct WithoutPattern {
    pub(super) tokens: Vec<TokenWithSpan>,
    pub(super) clause: MatchClause,
}

/// Takes a row pattern out of FROM, if there is one.
pub(super) fn take_out(tokens: &[TokenWithSpan], end: Position) -> Result<Option<WithoutPattern>, SqlError> {
    let is_start =
        |two: &[TokenWithSpan]| token_is_word(&two[0].token, "match_recognize") && two[1].token == Token::LParen;
    let Some(start) = tokens.windows(2).position(is_start) else { return Ok(None) };
    let position = Position::from(tokens[start].span);
    let is_behind_input = match &tokens[..start] {
        [.., from, _] if token_is_word(&from.token, "from") => true,
        // FROM (SELECT ... UNION ALL SELECT ...) AS name
        [.., closing, word, _] => closing.token == Token::RParen && token_is_word(&word.token, "as"),
        _ => false,
    };
    if !is_behind_input {
        return Err(SqlError::new(position, "MATCH_RECOGNIZE stands behind the name of the input in FROM").hint(
            "write FROM t MATCH_RECOGNIZE (...) AS m, with the name of the matches behind it, or \
                 FROM (SELECT ... UNION ALL SELECT ...) AS t MATCH_RECOGNIZE (...)",
        ));
    }
    let Some(closing) = closing(tokens, start + 1) else {
        return Err(SqlError::new(end, "expected ')', found the end of the statement").hint(EXAMPLE));
    };
    let clause = clause(&tokens[start + 2..closing], position, tokens[closing].span.into())?;
    let rest = tokens[..start].iter().chain(&tokens[closing + 1..]).cloned();
    Ok(Some(WithoutPattern { tokens: rest.collect(), clause }))
}

/// Returns the tokens up to the next clause, and moves the cursor behind them.
fn up_to_clause<'a>(cursor: &mut Cursor<'a>) -> (&'a [TokenWithSpan], Position) {
    let rest = cursor.rest();
    let mut depth = 0usize;
    let starts = |index: usize, words: &[&str]| {
        let follows = rest[index..].len() >= words.len()
            && words.iter().zip(&rest[index..]).all(|(word, token)| token_is_word(&token.token, word));
        let next = rest.get(index + words.len()).map(|token| &token.token);
        // WITHIN GROUP belongs to a call, and a word before a dot or AS is a name.
        follows
            && !next.is_some_and(|next| token_is_word(next, "group") || token_is_word(next, "as"))
            && !matches!(next, Some(Token::Period | Token::Comma | Token::RParen))
    };
    let length = (0..rest.len()).find(|&index| {
        depth = depth_behind(&rest[index].token, depth);
        depth == 0 && index > 0 && CLAUSES.iter().any(|words| starts(index, words))
    });
    let length = length.unwrap_or(rest.len());
    (0..length).for_each(|_| cursor.advance());
    (&rest[..length], cursor.position())
}

/// Reads what stands in the parentheses behind MATCH_RECOGNIZE.
pub(super) fn clause(tokens: &[TokenWithSpan], position: Position, end: Position) -> Result<MatchClause, SqlError> {
    let mut cursor = Cursor::new(tokens, end);
    let expressions = |parser: &mut Parser<'_>| parser.parse_comma_separated(Parser::parse_expr);

    let partition_by = match cursor.eat_words(&["partition", "by"]) {
        true => {
            let (tokens, end) = up_to_clause(&mut cursor);
            read(tokens, end, expressions)?
        }
        false => Vec::new(),
    };
    let order_by = match cursor.eat_words(&["order", "by"]) {
        true => {
            let (tokens, end) = up_to_clause(&mut cursor);
            read(tokens, end, |parser| parser.parse_comma_separated(Parser::parse_order_by_expr))?
        }
        false => Vec::new(),
    };
    if !cursor.eat_word("measures") {
        return Err(out_of_order(&cursor, "MEASURES"));
    }
    let (tokens, section_end) = up_to_clause(&mut cursor);
    let measures = read(&without_semantics(tokens), section_end, |parser| parser.parse_comma_separated(measure))?;
    if cursor.eat_word("one") {
        ["ROW", "PER", "MATCH"].into_iter().try_for_each(|word| cursor.expect_word(word))?;
    } else if cursor.is_word("all") {
        return Err(not_yet(cursor.position(), "ALL ROWS PER MATCH").hint("write ONE ROW PER MATCH, or leave it out"));
    }
    let skip = skip(&mut cursor)?;
    if !cursor.eat_word("pattern") {
        return Err(out_of_order(&cursor, "PATTERN"));
    }
    cursor.expect(&Token::LParen)?;
    let pattern = alternation(&mut cursor)?;
    cursor.expect(&Token::RParen).map_err(|error| error.hint("write for example PATTERN (A B+ (C | D)? E{2,5})"))?;
    let within = match cursor.eat_word("within") {
        true => {
            let (tokens, end) = up_to_clause(&mut cursor);
            Some(read(tokens, end, |parser| parser.parse_expr())?)
        }
        false => None,
    };
    if cursor.is_word("subset") {
        return Err(not_yet(cursor.position(), "SUBSET"));
    }
    if !cursor.eat_word("define") {
        return Err(out_of_order(&cursor, "DEFINE"));
    }
    let (tokens, section_end) = up_to_clause(&mut cursor);
    let define = read(&without_semantics(tokens), section_end, |parser| parser.parse_comma_separated(definition))?;
    if *cursor.peek() != Token::EOF {
        return Err(out_of_order(&cursor, "')'"));
    }
    Ok(MatchClause { position, partition_by, order_by, measures, skip, pattern, within, define })
}

fn out_of_order(cursor: &Cursor<'_>, expected: &str) -> SqlError {
    cursor.expected(expected).hint(
        "the clauses come in this order: PARTITION BY, ORDER BY, MEASURES, ONE ROW PER MATCH, AFTER MATCH SKIP, PATTERN, \
         WITHIN, DEFINE",
    )
}

/// Returns the tokens without the words RUNNING and FINAL before a call: with one row for each match both mean the
/// same.
fn without_semantics(tokens: &[TokenWithSpan]) -> Vec<TokenWithSpan> {
    let is_call = |index: usize| {
        matches!(tokens.get(index).map(|token| &token.token), Some(Token::Word(_)))
            && tokens.get(index + 1).is_some_and(|token| token.token == Token::LParen)
    };
    let is_kept = |(index, token): &(usize, &TokenWithSpan)| {
        let is_semantics = token_is_word(&token.token, "running") || token_is_word(&token.token, "final");
        !(is_semantics && is_call(index + 1))
    };
    tokens.iter().enumerate().filter(is_kept).map(|(_, token)| token.clone()).collect()
}

/// `expression AS name`
fn measure(parser: &mut Parser<'_>) -> Result<(ast::Expr, Name), ParserError> {
    let expression = parser.parse_expr()?;
    parser.expect_keyword(Keyword::AS)?;
    Ok((expression, name_of(&parser.parse_identifier()?)))
}

/// `variable AS condition`
fn definition(parser: &mut Parser<'_>) -> Result<(Name, ast::Expr), ParserError> {
    let name = name_of(&parser.parse_identifier()?);
    parser.expect_keyword(Keyword::AS)?;
    Ok((name, parser.parse_expr()?))
}

fn skip(cursor: &mut Cursor<'_>) -> Result<SkipClause, SqlError> {
    if !cursor.eat_word("after") {
        return Ok(SkipClause::PastLastRow);
    }
    ["MATCH", "SKIP"].into_iter().try_for_each(|word| cursor.expect_word(word))?;
    if cursor.expect_one_of(&["PAST", "TO"])? == 0 {
        ["LAST", "ROW"].into_iter().try_for_each(|word| cursor.expect_word(word))?;
        return Ok(SkipClause::PastLastRow);
    }
    if cursor.eat_words(&["next", "row"]) {
        return Ok(SkipClause::ToNextRow);
    }
    if cursor.eat_word("first") {
        return Ok(SkipClause::ToFirst(cursor.name("a variable of the pattern")?));
    }
    // Without FIRST or LAST, the last row is meant.
    cursor.eat_word("last");
    Ok(SkipClause::ToLast(cursor.name("NEXT ROW, FIRST or LAST and a variable of the pattern")?))
}

/// Reads alternatives, up to a closing parenthesis.
fn alternation(cursor: &mut Cursor<'_>) -> Result<PatternTree, SqlError> {
    let mut parts = vec![sequence(cursor)?];
    while cursor.eat(&Token::Pipe) {
        parts.push(sequence(cursor)?);
    }
    Ok(if parts.len() == 1 { parts.remove(0) } else { PatternTree::Alternation(parts) })
}

fn sequence(cursor: &mut Cursor<'_>) -> Result<PatternTree, SqlError> {
    let mut parts = Vec::new();
    while !matches!(cursor.peek(), Token::RParen | Token::Pipe | Token::EOF) {
        parts.push(factor(cursor)?);
    }
    match parts.len() {
        0 => Err(cursor.expected("a variable of the pattern")),
        1 => Ok(parts.remove(0)),
        _ => Ok(PatternTree::Sequence(parts)),
    }
}

/// Reads a variable or a group, with its quantifier.
fn factor(cursor: &mut Cursor<'_>) -> Result<PatternTree, SqlError> {
    let position = cursor.position();
    let pattern = match cursor.peek() {
        Token::LParen => {
            cursor.advance();
            let inner = alternation(cursor)?;
            cursor.expect(&Token::RParen)?;
            inner
        }
        Token::Word(_) => {
            let is_permute =
                cursor.is_word("permute") && cursor.rest().get(1).is_some_and(|next| next.token == Token::LParen);
            if is_permute {
                return Err(not_yet(position, "PERMUTE").hint("write the orders as alternatives: (A B | B A)"));
            }
            PatternTree::Variable(cursor.name("a variable of the pattern")?)
        }
        Token::LBrace => {
            return Err(not_yet(position, "an exclusion {- ... -}")
                .hint("leave the braces out: a match gives what MEASURES names, and no other row"));
        }
        Token::Caret => {
            return Err(
                not_yet(position, "an anchor in a pattern").hint("leave ^ out: a stream has no first row to match")
            );
        }
        other => {
            return Err(SqlError::new(
                position,
                format!("expected a variable of the pattern, found {}", describe_token(other)),
            ));
        }
    };
    let (min, max) = match cursor.peek() {
        Token::Mul => (0, None),
        Token::Plus => (1, None),
        token if is_question(token) => (0, Some(1)),
        Token::LBrace => {
            cursor.advance();
            let bounds = counted(cursor)?;
            if *cursor.peek() != Token::RBrace {
                return Err(cursor.expected("'}'").hint("write for example A{2}, A{2,} or A{2,5}"));
            }
            bounds
        }
        _ => return Ok(pattern),
    };
    let quantifier = cursor.position();
    cursor.advance();
    let reluctant = is_question(cursor.peek());
    if reluctant {
        cursor.advance();
    }
    if max.is_some_and(|max| max == 0 || max < min) {
        return Err(SqlError::new(
            position,
            "the upper bound of a repetition is at least 1, and at least the lower bound",
        )
        .hint("write for example A{2,5}"));
    }
    if matches!(cursor.peek(), Token::Mul | Token::Plus | Token::LBrace) || is_question(cursor.peek()) {
        return Err(SqlError::new(cursor.position(), "a variable has one quantifier")
            .hint("put the first one in parentheses: (B+)+"));
    }
    let pattern = Box::new(pattern);
    Ok(PatternTree::Repeat { pattern, min, max, greedy: !reluctant, position: quantifier })
}

fn is_question(token: &Token) -> bool {
    matches!(token, Token::Placeholder(mark) if mark == "?")
}

/// Reads the numbers in `{2}`, `{2,}`, `{,5}` and `{2,5}`.
fn counted(cursor: &mut Cursor<'_>) -> Result<(u32, Option<u32>), SqlError> {
    let number = |cursor: &mut Cursor<'_>| {
        let Token::Number(digits, _) = cursor.peek() else { return Ok(None) };
        let number = digits.parse::<u32>().map_err(|_| cursor.expected("a small whole number"))?;
        cursor.advance();
        Ok::<_, SqlError>(Some(number))
    };
    let min = number(cursor)?;
    if !cursor.eat(&Token::Comma) {
        let exactly = min.ok_or_else(|| cursor.expected("a number"))?;
        return Ok((exactly, Some(exactly)));
    }
    let max = number(cursor)?;
    if min.is_none() && max.is_none() {
        return Err(cursor.expected("a number"));
    }
    Ok((min.unwrap_or(0), max))
}

/// The index of the parenthesis that closes the one at `open`.
pub(super) fn closing(tokens: &[TokenWithSpan], open: usize) -> Option<usize> {
    let mut depth = 0;
    let mut closes = |token: &TokenWithSpan| {
        depth = depth_behind(&token.token, depth);
        depth == 0
    };
    Some(open + tokens[open..].iter().position(&mut closes)?)
}
