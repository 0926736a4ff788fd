//! Big queries: a SELECT for DataFusion's parser, its sink, and options.
//!
//! Syntax that the parser does not know is converted to a form that it knows, on the same tokens, so that every
//! position is one in the script: `TABLE(TUMBLE(TABLE t PARTITION BY k, DESCRIPTOR(ts), ...))` becomes `TUMBLE(t,
//! PARTITION_BY(k), DESCRIPTOR(ts), ...)`, and `t MATCH_RECOGNIZE (...)` becomes `row_pattern(t, 0)`.

use datafusion_sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan};

use rivulet_dataflow::Fuse;
use rivulet_relational::matches::ROW_PATTERN;

use super::cursor::Cursor;
use super::pattern::{self, closing};
use super::select_text::{check_depth, read};
use crate::lexer::{describe_token, token_is_word};
use crate::statement::{BigQuery, MatchClause, Name};
use crate::value::{interval_text, interval_us, parse_interval};
use crate::{Literal, Position, SqlError, suggest};

/// The longest text of a query, in bytes.
const QUERY_BYTES_MAX: usize = 256 << 10;

/// The functions that make windows of a table.
const WINDOWS: [&str; 4] = ["tumble", "hop", "cumulate", "session"];

type NamedValues = Vec<(Name, Literal, Position)>;

/// Reads a SELECT to the end of the statement, or `INSERT INTO sink SELECT`; `text` is that of the statement.
pub(super) fn select_or_insert(cursor: &mut Cursor<'_>, text: &str) -> Result<BigQuery, SqlError> {
    if !cursor.eat_word("insert") {
        return select(cursor, text);
    }
    cursor.expect_word("INTO")?;
    let sink = cursor.name("the name of a sink")?;
    if *cursor.peek() == Token::LParen && !cursor.rest().get(1).is_some_and(|token| begins_query(&token.token)) {
        return Err(SqlError::new(cursor.position(), "a list of columns in INSERT is not supported yet").hint(
            "leave the list out, and select the columns in the order of the sink: INSERT INTO sink SELECT a, b FROM t",
        ));
    }
    let query = select(cursor, text)?;
    match query.sink {
        Some(second) => Err(SqlError::new(second.position, "the query has two sinks")
            .hint("write INSERT INTO sink SELECT ..., or SELECT ... INTO sink")),
        None => Ok(BigQuery { sink: Some(sink), ..query }),
    }
}

/// Reads a SELECT to the end of the statement, with or without INTO.
pub(super) fn select(cursor: &mut Cursor<'_>, text: &str) -> Result<BigQuery, SqlError> {
    let position = cursor.position();
    if text.len() > QUERY_BYTES_MAX {
        let message = format!("a query has at most {QUERY_BYTES_MAX} bytes of text, this one {}", text.len());
        return Err(SqlError::new(position, message));
    }
    if !begins_query(cursor.peek()) && *cursor.peek() != Token::LParen {
        let near = match cursor.peek() {
            Token::Word(word) => suggest::nearest(&word.value, ["SELECT", "WITH"]),
            _ => None,
        };
        return Err(cursor.expected("SELECT").did_you_mean(near));
    }
    let (tokens, options) = cut_options(cursor.rest())?;
    let (tokens, sink) = cut_into(tokens)?;
    check_depth(tokens)?;
    let (tokens, patterns) = without_patterns(tokens, cursor.end())?;
    let tokens = window_calls(&tokens, cursor.end())?;
    let query = read(&tokens, cursor.end(), |parser| parser.parse_query());
    let query = query.map_err(|error| error.or_at(position))?;
    while *cursor.peek() != Token::EOF {
        cursor.advance();
    }
    let mut query = BigQuery::new(*query, patterns, sink, position, text);
    let joins = tokens.iter().filter(|token| token_is_word(&token.token, "join"));
    query.joins = joins.map(|token| token.span.into()).collect();
    for (name, literal, position) in &options {
        match name.text.as_str() {
            STATE_TTL => query.state_ttl_us = Some(span(name, literal, *position, 1)?),
            FUSE => query.fuse = Some(fuse(literal, *position)?),
            BURST => {
                let Literal::Boolean(is_burst) = literal else {
                    return Err(SqlError::new(*position, "burst is true or false")
                        .hint("with true, tasks of the query may go to burst workers while it runs"));
                };
                query.is_burst = *is_burst;
            }
            other => {
                let error = SqlError::new(name.position, format!("unknown option '{other}' of a query"));
                return Err(error.suggest(other, [STATE_TTL, FUSE, BURST], OPTIONS_HINT));
            }
        }
    }
    Ok(query)
}

/// The option for how long state is remembered that no row uses.
const STATE_TTL: &str = "state_ttl";
/// The option for which operators run together.
const FUSE: &str = "fuse";
/// The option for whether tasks may go to burst workers.
const BURST: &str = "burst";
/// The options that WITH behind a query may have, for messages.
pub(super) const OPTIONS_HINT: &str = "the options of a query are state_ttl, fuse and burst, at its end: SELECT ... INTO sink \
                                       WITH (state_ttl => INTERVAL '1 hour', fuse => 'none')";

fn fuse(literal: &Literal, position: Position) -> Result<Fuse, SqlError> {
    match literal {
        Literal::Text(text) if text.eq_ignore_ascii_case("auto") => Ok(Fuse::Auto),
        Literal::Text(text) if text.eq_ignore_ascii_case("none") => Ok(Fuse::None),
        _ => Err(SqlError::new(position, "fuse is 'auto' or 'none'")
            .hint("'auto' runs operators together where rows keep their partition, 'none' runs each by itself")),
    }
}

/// Cuts `WITH (option => value, ...)` off the end.
fn cut_options(tokens: &[TokenWithSpan]) -> Result<(&[TokenWithSpan], NamedValues), SqlError> {
    let Some(open) = opening(tokens) else { return Ok((tokens, Vec::new())) };
    match tokens[..open].split_last() {
        Some((with, query)) if !query.is_empty() && token_is_word(&with.token, "with") => {
            let mut cursor = Cursor::new(&tokens[open..], with.span.into());
            Ok((query, cursor.named_values("the name of an option")?))
        }
        _ => Ok((tokens, Vec::new())),
    }
}

/// The index of the parenthesis that the last token closes.
fn opening(tokens: &[TokenWithSpan]) -> Option<usize> {
    let mut depth = 0usize;
    for (place, token) in tokens.iter().enumerate().rev() {
        match token.token {
            Token::RParen => depth += 1,
            Token::LParen if depth == 1 => return Some(place),
            Token::LParen => depth = depth.checked_sub(1)?,
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Whether a query begins with this word.
pub(super) fn begins_query(token: &Token) -> bool {
    token_is_word(token, "select") || token_is_word(token, "with")
}

/// Cuts `INTO sink` off the end.
fn cut_into(tokens: &[TokenWithSpan]) -> Result<(&[TokenWithSpan], Option<Name>), SqlError> {
    refuse_sinks(tokens)?;
    let [rest @ .., into, _] = tokens else { return Ok((tokens, None)) };
    // Elsewhere INTO means a new table, as in other engines. The parser reads it and the planner refuses it.
    if !token_is_word(&into.token, "into") || rest.is_empty() {
        return Ok((tokens, None));
    }
    let mut cursor = Cursor::new(&tokens[rest.len() + 1..], into.span.into());
    Ok((rest, Some(cursor.name("the name of a sink")?)))
}

/// Takes the row patterns out: `t MATCH_RECOGNIZE (...)` becomes `row_pattern(t, 0)`, with the number of the pattern.
fn without_patterns(
    tokens: &[TokenWithSpan],
    end: Position,
) -> Result<(Vec<TokenWithSpan>, Vec<MatchClause>), SqlError> {
    let (mut rest, mut patterns) = (tokens.to_vec(), Vec::new());
    let is_start =
        |two: &[TokenWithSpan]| token_is_word(&two[0].token, "match_recognize") && two[1].token == Token::LParen;
    while let Some(start) = rest.windows(2).position(is_start) {
        let span = rest[start].span;
        let begin = relation_before(&rest, start).ok_or_else(|| {
            SqlError::new(span, "MATCH_RECOGNIZE stands behind the name of a relation in FROM")
                .hint("a name for the matches stands behind it: FROM t MATCH_RECOGNIZE (...) AS m")
        })?;
        let Some(closing) = closing(&rest, start + 1) else {
            return Err(SqlError::new(end, "expected ')', found the end of the statement").hint(pattern::EXAMPLE));
        };
        let clause = pattern::clause(&rest[start + 2..closing], span.into(), rest[closing].span.into())?;
        let at = |token: Token| TokenWithSpan { token, span };
        let number = Token::Number(patterns.len().to_string(), false);
        let before = [at(Token::make_word(ROW_PATTERN, None)), at(Token::LParen)];
        let behind = [at(Token::Comma), at(number), at(Token::RParen)];
        let called = before.into_iter().chain(rest[begin..start].iter().cloned()).chain(behind).collect::<Vec<_>>();
        rest.splice(begin..=closing, called);
        patterns.push(clause);
    }
    Ok((rest, patterns))
}

/// The index of the first token of the relation that ends before `end`: a name, a subquery or a call. It stands in FROM
/// if FROM, JOIN or a comma comes before it.
fn relation_before(tokens: &[TokenWithSpan], end: usize) -> Option<usize> {
    let last = end.checked_sub(1)?;
    let mut begin = match &tokens[last].token {
        Token::Word(_) => last,
        Token::RParen => {
            let opening = opening(&tokens[..=last])?;
            let is_query = tokens.get(opening + 1).is_some_and(|token| begins_query(&token.token));
            if is_query { opening } else { opening.checked_sub(1)? }
        }
        _ => return None,
    };
    while begin >= 2 && tokens[begin - 1].token == Token::Period {
        begin -= 2;
    }
    let before = &tokens[begin.checked_sub(1)?].token;
    let is_in_from = token_is_word(before, "from") || token_is_word(before, "join") || *before == Token::Comma;
    is_in_from.then_some(begin)
}

/// Refuses `INTO sink, sink` at the end.
fn refuse_sinks(tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    let (mut names, mut second) = (tokens, None);
    while let [rest @ .., comma, name] = names
        && comma.token == Token::Comma
        && matches!(name.token, Token::Word(_))
    {
        (names, second) = (rest, Some(name));
    }
    match (names, second) {
        ([_, .., into, _], Some(second)) if token_is_word(&into.token, "into") => {
            Err(SqlError::new(second.span, "a query has one sink").hint(
                "make a view, and a query for each sink: CREATE VIEW v AS SELECT ...; CREATE QUERY q AS SELECT * FROM \
                 v INTO sink",
            ))
        }
        _ => Ok(()),
    }
}

/// Converts the windows of tables to calls that the parser reads.
fn window_calls(tokens: &[TokenWithSpan], end: Position) -> Result<Vec<TokenWithSpan>, SqlError> {
    let mut calls = Vec::with_capacity(tokens.len());
    // The indices of the closing parentheses whose `TABLE(` was removed.
    let mut dropped = Vec::new();
    let word = |index: usize, word: &str| tokens.get(index).is_some_and(|token| token_is_word(&token.token, word));
    let is = |index: usize, token: &Token| tokens.get(index).is_some_and(|found| found.token == *token);
    let is_window = |index: usize| WINDOWS.iter().any(|window| word(index, window)) && is(index + 1, &Token::LParen);
    let mut index = 0;
    while index < tokens.len() {
        if dropped.contains(&index) {
            index += 1;
            continue;
        }
        if word(index, "table") && is(index + 1, &Token::LParen) && !is_window(index + 2) {
            check_table_function(tokens.get(index + 2))?;
        }
        if word(index, "table") && is(index + 1, &Token::LParen) && is_window(index + 2) {
            let closing = closing(tokens, index + 1)
                .ok_or_else(|| SqlError::new(end, "expected ')', found the end of the statement"))?;
            dropped.push(closing);
            index += 2;
            continue;
        }
        // `TABLE t` or `TABLE (SELECT ...)` as an argument.
        let is_argument = index > 0 && (is(index - 1, &Token::LParen) || is(index - 1, &Token::RArrow));
        if word(index, "table") && is_argument && index + 1 < tokens.len() {
            index += 1;
            continue;
        }
        if word(index, "partition") && word(index + 1, "by") && is_inside_window(tokens, index) {
            index = partition_by(tokens, index, end, &mut calls)?;
            continue;
        }
        calls.push(tokens[index].clone());
        index += 1;
    }
    Ok(calls)
}

/// Refuses a token in `TABLE(...)` that is no window.
fn check_table_function(token: Option<&TokenWithSpan>) -> Result<(), SqlError> {
    let Some(token) = token else { return Ok(()) };
    let Token::Word(word) = &token.token else { return Ok(()) };
    let error = SqlError::new(token.span, format!("unknown table function {}", describe_token(&token.token)));
    let example = "write for example FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 minute'))";
    if begins_query(&token.token) {
        return Ok(());
    }
    Err(error.suggest(&word.value, ["TUMBLE", "HOP", "CUMULATE", "SESSION"], example))
}

/// Whether the innermost open parenthesis at `index` is that of a window's call.
fn is_inside_window(tokens: &[TokenWithSpan], index: usize) -> bool {
    let mut depth = 0usize;
    for place in (0..index).rev() {
        match tokens[place].token {
            Token::RParen => depth += 1,
            Token::LParen if depth > 0 => depth -= 1,
            Token::LParen => {
                return place > 0 && WINDOWS.iter().any(|window| token_is_word(&tokens[place - 1].token, window));
            }
            _ => {}
        }
    }
    false
}

/// Converts `PARTITION BY a, b,` before DESCRIPTOR to the argument `, PARTITION_BY(a, b),`. Returns the index of the
/// token behind it.
fn partition_by(
    tokens: &[TokenWithSpan],
    index: usize,
    end: Position,
    calls: &mut Vec<TokenWithSpan>,
) -> Result<usize, SqlError> {
    let (mut depth, mut stop) = (0usize, None);
    for (place, token) in tokens.iter().enumerate().skip(index + 2) {
        let begins_next = |place: usize| {
            let next = tokens.get(place + 1);
            next.is_some_and(|next| token_is_word(&next.token, "descriptor"))
                || tokens.get(place + 2).is_some_and(|arrow| arrow.token == Token::RArrow)
        };
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen if depth == 0 => break,
            Token::RParen => depth -= 1,
            Token::Comma if depth == 0 && begins_next(place) => {
                stop = Some(place);
                break;
            }
            _ => {}
        }
    }
    let Some(stop) = stop else {
        return Err(SqlError::new(
            tokens.get(index).map_or(end, |token| token.span.into()),
            "expected DESCRIPTOR after PARTITION BY",
        )
        .hint("write for example SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '10' SECOND)"));
    };
    let at = |token: Token, span: Span| TokenWithSpan { token, span };
    let span = tokens[index].span;
    calls.extend([at(Token::Comma, span), at(Token::make_word("partition_by", None), span), at(Token::LParen, span)]);
    calls.extend_from_slice(&tokens[index + 2..stop]);
    calls.push(at(Token::RParen, tokens[stop].span));
    Ok(stop)
}

/// The longest lateness or timeout, in microseconds: ten years.
const SPAN_US_MAX: i64 = 3650 * 86_400_000_000;

/// Reads an option that is a time span of at least `least_us`.
pub(crate) fn span(name: &Name, literal: &Literal, position: Position, least_us: i64) -> Result<i64, SqlError> {
    let example = || format!("write for example {name} => INTERVAL '5 seconds'");
    let value = match literal {
        Literal::Interval(value) => *value,
        Literal::Text(text) => parse_interval(text)
            .ok_or_else(|| SqlError::new(position, format!("'{text}' is not an interval")).hint(example()))?,
        _ => return Err(SqlError::new(position, format!("{name} is a time span")).hint(example())),
    };
    interval_us(value).filter(|us| (least_us..=SPAN_US_MAX).contains(us)).ok_or_else(|| {
        SqlError::new(position, format!("{name} cannot be {}", interval_text(value)))
            .hint("it is a fixed time span of at most ten years, and not negative")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer;

    fn rewritten(script: &str) -> String {
        let statements = lexer::statements(script).collect::<Result<Vec<_>, _>>().unwrap();
        let tokens = window_calls(&statements[0].tokens, Position::default()).unwrap();
        tokens.iter().map(|token| token.token.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn windows_of_tables_become_calls() {
        assert_eq!(
            rewritten("SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) AS w"),
            "SELECT * FROM TUMBLE ( t , DESCRIPTOR ( ts ) , INTERVAL '1' MINUTE ) AS w"
        );
        assert_eq!(
            rewritten(
                "FROM TABLE(SESSION(DATA => TABLE t PARTITION BY a, f(b, c), DESCRIPTOR(ts), INTERVAL '1' MINUTE))"
            ),
            "FROM SESSION ( DATA => t , partition_by ( a , f ( b , c ) ) , DESCRIPTOR ( ts ) , INTERVAL '1' MINUTE )"
        );
        assert_eq!(
            rewritten("FROM HOP(TABLE (SELECT a FROM t), DESCRIPTOR(ts), x, y)"),
            "FROM HOP ( ( SELECT a FROM t ) , DESCRIPTOR ( ts ) , x , y )"
        );
    }

    #[test]
    fn what_is_no_window_stays() {
        let text = "SELECT sum ( a ) OVER ( PARTITION BY b ORDER BY c ) FROM t";
        assert_eq!(rewritten(text), text);
    }

    #[test]
    fn options_behind_the_query_are_cut_off() {
        let cut = |script: &str| {
            let statements = lexer::statements(script).collect::<Result<Vec<_>, _>>().unwrap();
            let tokens = &statements[0].tokens;
            cut_options(tokens).map(|(rest, options)| (tokens.len() - rest.len(), options.len()))
        };
        assert_eq!(cut("SELECT a FROM t INTO s WITH (state_ttl => '1 h')").unwrap(), (6, 1));
        assert_eq!(cut("SELECT a FROM t WITH ()").unwrap(), (3, 0));
        assert_eq!(cut("SELECT f(a, (b))").unwrap(), (0, 0));
        assert_eq!(cut("WITH (state_ttl => '1 h')").unwrap(), (0, 0), "that is no query");
        assert!(cut("SELECT a FROM t WITH (state_ttl = '1 h')").unwrap_err().to_string().contains("'=>'"));
    }

    #[test]
    fn a_sink_behind_the_query_is_cut_off() {
        let statements = lexer::statements("SELECT a FROM t INTO results").collect::<Result<Vec<_>, _>>().unwrap();
        let (tokens, sink) = cut_into(&statements[0].tokens).unwrap();
        assert_eq!((tokens.len(), sink.unwrap().text), (4, "results".to_owned()));
    }
}
