//! `FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 minute'))`, the form of the SQL standard and of Apache
//! Flink.
//!
//! It is read as `FROM t` and the call `tumble(ts, INTERVAL '1 minute')`, on the same tokens, so that both forms have
//! one plan and every position is one in the script.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::cursor::Cursor;
use super::select_text::{NESTING_MAX, depth_behind, outside};
use crate::lexer::{RivuletDialect, token_is_word};
use crate::{Position, SqlError};

const EXAMPLE: &str = "write for example FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 minute'))";

/// A SELECT without the window that was in its FROM.
pub(super) struct WithoutWindow {
    /// The tokens of the SELECT, with the name of the input in FROM.
    pub(super) tokens: Vec<TokenWithSpan>,
    /// The tokens of the window, as the same call in GROUP BY.
    pub(super) call: Vec<TokenWithSpan>,
}

/// Takes a window out of FROM, if there is one.
pub(super) fn take_out(tokens: &[TokenWithSpan], end: Position) -> Result<Option<WithoutWindow>, SqlError> {
    let Some(start) = find(tokens) else { return Ok(None) };
    let mut cursor = Cursor::new(&tokens[start..], end);
    cursor.expect_word("TABLE")?;
    cursor.expect(&Token::LParen)?;
    let mut call = vec![window_name(&mut cursor)?];
    let opening = cursor.rest().first().cloned();
    cursor.expect(&Token::LParen).map_err(|error| error.hint(EXAMPLE))?;
    if cursor.rest().get(1).is_some_and(|next| next.token == Token::RArrow) {
        return Err(SqlError::new(cursor.position(), "an argument by name is not supported yet").hint(EXAMPLE));
    }
    cursor.expect_word("TABLE").map_err(|error| error.hint(EXAMPLE))?;
    let input = cursor.rest().first().cloned();
    cursor.name("the name of the input")?;
    if cursor.is_word("partition") {
        return Err(SqlError::new(cursor.position(), "PARTITION BY in a window is not supported yet")
            .hint("add the columns to GROUP BY: GROUP BY window_start, window_end, device"));
    }
    let comma = cursor.rest().first().cloned();
    cursor.expect(&Token::Comma).map_err(|error| error.hint(EXAMPLE))?;
    cursor.expect_word("DESCRIPTOR").map_err(|error| error.hint(EXAMPLE))?;
    cursor.expect(&Token::LParen)?;
    let time = cursor.rest().first().cloned();
    cursor.name("the column with the time")?;
    cursor.expect(&Token::RParen)?;
    call.extend(opening.into_iter().chain(time));
    if *cursor.peek() == Token::Comma {
        cursor.advance();
        call.extend(comma);
    }
    let lengths = inside_parentheses(cursor.rest())
        .ok_or_else(|| SqlError::new(cursor.end(), "expected ')', found the end of the statement"))?;
    call.extend_from_slice(lengths);
    lengths.iter().for_each(|_| cursor.advance());
    call.extend(cursor.rest().first().cloned());
    cursor.expect(&Token::RParen)?;
    cursor.expect(&Token::RParen)?;
    let before = tokens[..start].iter().cloned();
    let tokens = before.chain(input).chain(cursor.rest().iter().cloned()).collect();
    Ok(Some(WithoutWindow { tokens, call }))
}

/// Parses the call as an expression.
pub(super) fn parse_call(call: &[TokenWithSpan]) -> Result<ast::Expr, ParserError> {
    let mut parser =
        Parser::new(&RivuletDialect).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(call.to_vec());
    let expression = parser.parse_expr()?;
    parser.expect_token(&Token::EOF)?;
    Ok(expression)
}

/// The index of TABLE in `FROM TABLE (`, outside of parentheses.
fn find(tokens: &[TokenWithSpan]) -> Option<usize> {
    let is_word = |index: usize, word: &str| tokens.get(index).is_some_and(|one| token_is_word(&one.token, word));
    let opens = |index: usize| tokens.get(index).is_some_and(|one| one.token == Token::LParen);
    let from =
        outside(tokens).find(|&index| is_word(index, "from") && is_word(index + 1, "table") && opens(index + 2))?;
    Some(from + 1)
}

/// Reads the name of the window function; returns it in lower case.
fn window_name(cursor: &mut Cursor<'_>) -> Result<TokenWithSpan, SqlError> {
    const WINDOWS: [&str; 4] = ["TUMBLE", "HOP", "CUMULATE", "SESSION"];
    let (position, token) = (cursor.position(), cursor.rest().first());
    let name = cursor.name("TUMBLE, HOP, CUMULATE or SESSION")?;
    match (token, name.text.as_str()) {
        (Some(token), "tumble" | "hop" | "cumulate" | "session") => {
            Ok(TokenWithSpan { token: Token::make_word(&name.text, None), span: token.span })
        }
        (_, other) => {
            let error = SqlError::new(position, format!("unknown window function '{other}'"));
            Err(error.suggest(&other.to_uppercase(), WINDOWS, EXAMPLE))
        }
    }
}

/// The tokens up to the parenthesis that closes one opened before them.
fn inside_parentheses(tokens: &[TokenWithSpan]) -> Option<&[TokenWithSpan]> {
    let mut depth = 1;
    let end = tokens.iter().position(|token| {
        depth = depth_behind(&token.token, depth);
        depth == 0
    })?;
    Some(&tokens[..end])
}
