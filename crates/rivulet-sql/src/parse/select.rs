//! The SELECT of an application. DataFusion's parser parses it, and then it is taken apart clause by clause, so that
//! everything that is not supported is refused by its name and never ignored.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::from;
use super::pattern;
use super::subquery::Chain;
use super::window_table::{self, WithoutWindow};
use crate::lexer::{RivuletDialect, describe_token, lower_first, token_is_word};
use crate::statement::{Name, Select, TopClause};
use crate::{Position, SqlError, suggest};

/// How many SELECTs may be combined with the first one: each becomes a level of a tree.
const UNIONS_MAX: usize = 15;
/// How deep parentheses, calls and CASEs may nest.
pub(super) const NESTING_MAX: usize = 50;
/// How many operators may follow each other in one expression, including those around it. They become a tree of that
/// depth, and all code that walks a tree recurses.
const OPERATORS_MAX: usize = 200;

/// The words that begin or join clauses, for suggestions.
const CLAUSE_WORDS: [&str; 17] = [
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "HAVING", "QUALIFY", "EMIT", "ON", "CHANGE", "CASE", "WHEN", "THEN",
    "ELSE", "END", "FILTER", "BETWEEN",
];

/// Reads a SELECT and what follows it.
pub(super) fn parse(tokens: &[TokenWithSpan], end: Position) -> Result<Select, SqlError> {
    let start = tokens.first().map_or(end, |token| token.span.into());
    check_depth(tokens)?;
    parse_tokens(tokens, end, &mut Chain::default()).map_err(|error| error.or_at(start))
}

/// Reads a SELECT, with the WITH before it and the SELECTs that it reads.
fn parse_tokens(tokens: &[TokenWithSpan], end: Position, chain: &mut Chain) -> Result<Select, SqlError> {
    let named_before = chain.named();
    let tokens = chain.cut_with(tokens, end)?;
    let Some(first) = tokens.first() else {
        return Err(SqlError::new(end, "expected SELECT, found the end of the statement"));
    };
    let starts = |word: &str| token_is_word(&first.token, word);
    if first.token == Token::LParen {
        return Err(not_yet(first.span, "a SELECT in parentheses"));
    }
    if !starts("select") {
        let error = SqlError::new(first.span, format!("expected SELECT, found {}", describe_token(&first.token)));
        return Err(match &first.token {
            Token::Word(word) => error.did_you_mean(suggest::nearest(&word.value, ["SELECT"])),
            _ => error,
        });
    }
    if let Some(asof) =
        tokens.windows(2).find(|two| token_is_word(&two[0].token, "asof") && token_is_word(&two[1].token, "join"))
    {
        return Err(not_yet(asof[0].span, "ASOF JOIN").hint(from::INPUT_FORMS));
    }
    let (tokens, emit_on_change) = cut_emit(tokens)?;
    let of_body = |chain: &mut Chain, body: &[TokenWithSpan], end| parse_tokens(body, end, chain);
    let (around, subquery) = chain.take_subquery(tokens, end, of_body)?.unzip();
    let tokens = around.as_deref().unwrap_or(tokens);
    let without_pattern = pattern::take_out(tokens, end)?;
    let tokens = without_pattern.as_ref().map_or(tokens, |without| &without.tokens);
    let without_window = window_table::take_out(tokens, end)?;
    let tokens = without_window.as_ref().map_or(tokens, |without| &without.tokens);
    let (around, named) = match subquery {
        None => chain.take_named(tokens, of_body)?.unzip(),
        Some(_) => (None, None),
    };
    chain.refuse_unread(named_before)?;
    let tokens = around.as_deref().unwrap_or(tokens);
    let text = SelectText { tokens, end };

    let mut parser =
        Parser::new(&RivuletDialect).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens.to_vec());
    let query = parser.parse_query().map_err(|error| text.open_case().unwrap_or_else(|| text.syntax_error(error)))?;
    let next = parser.peek_token();
    if next.token != Token::EOF {
        return Err(text.open_case().unwrap_or_else(|| text.unexpected(next.span.into(), &next.token)));
    }
    let mut select = text.take_apart(*query)?;
    select.emit_on_change = emit_on_change;
    select.subquery = subquery.or(named.flatten()).map(Box::new);
    select.pattern = without_pattern.map(|without| without.clause);
    if let Some(WithoutWindow { call, .. }) = &without_window {
        let text = SelectText { tokens: call, end };
        select.window = Some(window_table::parse_call(call).map_err(|error| text.syntax_error(error))?);
    }
    Ok(select)
}

/// Reads the condition of an output.
pub(super) fn parse_condition(tokens: &[TokenWithSpan], end: Position) -> Result<ast::Expr, SqlError> {
    if tokens.is_empty() {
        return Err(SqlError::new(end, "expected a condition after WHEN")
            .hint("write for example WHEN severity >= 3, over the columns of the SELECT"));
    }
    check_depth(tokens)?;
    let text = SelectText { tokens, end };
    let mut parser =
        Parser::new(&RivuletDialect).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens.to_vec());
    let condition =
        parser.parse_expr().map_err(|error| text.open_case().unwrap_or_else(|| text.syntax_error(error)))?;
    match parser.peek_token() {
        next if next.token == Token::EOF => Ok(condition),
        next => Err(SqlError::new(
            next.span,
            format!("expected OUTPUT or AS after the condition, found {}", describe_token(&next.token)),
        )),
    }
}

/// Reads a part of a statement with DataFusion's parser, which must use all of its tokens.
pub(super) fn read<T>(
    tokens: &[TokenWithSpan],
    end: Position,
    read: impl FnOnce(&mut Parser<'_>) -> Result<T, ParserError>,
) -> Result<T, SqlError> {
    let text = SelectText { tokens, end };
    let mut parser =
        Parser::new(&RivuletDialect).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens.to_vec());
    let found = read(&mut parser).map_err(|error| text.open_case().unwrap_or_else(|| text.syntax_error(error)))?;
    let next = parser.peek_token();
    if next.token != Token::EOF {
        let message = format!("expected ',' or the next clause, found {}", describe_token(&next.token));
        return Err(text.open_case().unwrap_or_else(|| SqlError::new(next.span, message)));
    }
    Ok(found)
}

/// Cuts `EMIT ON CHANGE` off the end.
fn cut_emit(tokens: &[TokenWithSpan]) -> Result<(&[TokenWithSpan], bool), SqlError> {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            emit if depth == 0 && token_is_word(emit, "emit") => {
                let after = |steps: usize| tokens.get(index + steps).map(|token| &token.token);
                let follows = |steps: usize, word: &str| after(steps).is_some_and(|token| token_is_word(token, word));
                let is_clause = index + 1 == tokens.len()
                    || ["on", "changes", "change", "final", "after", "every"].iter().any(|word| follows(1, word));
                if !is_clause {
                    continue;
                }
                if !(follows(1, "on") && follows(2, "change")) {
                    return Err(SqlError::new(token.span, "expected EMIT ON CHANGE")
                        .hint("without EMIT a row is emitted whenever a window closes"));
                }
                return match tokens.get(index + 3) {
                    None => Ok((&tokens[..index], true)),
                    Some(more) => Err(SqlError::new(
                        more.span,
                        format!("expected the end of the statement, found {}", describe_token(&more.token)),
                    )
                    .hint("EMIT ON CHANGE is the last clause")),
                };
            }
            _ => {}
        }
    }
    Ok((tokens, false))
}

/// Refuses text that would become too deep a tree, before a tree is made.
pub(super) fn check_depth(tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    // For each open parenthesis (or CASE), the number of operators since the last comma or clause.
    let mut open = vec![0usize];
    let mut operators = 0usize;
    let mut unions = 0usize;
    for token in tokens {
        if ["union", "intersect", "except", "minus"].iter().any(|word| token_is_word(&token.token, word)) {
            unions += 1;
            if unions > UNIONS_MAX {
                return Err(SqlError::new(token.span, format!("a SELECT has at most {UNIONS_MAX} UNION ALL")));
            }
        }
        let opens = match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => true,
            word => token_is_word(word, "case"),
        };
        let closes = match &token.token {
            Token::RParen | Token::RBracket | Token::RBrace => true,
            word => token_is_word(word, "end"),
        };
        const SEPARATORS: [&str; 12] = [
            "select", "from", "where", "group", "having", "qualify", "when", "then", "else", "measures", "pattern",
            "define",
        ];
        const OPERATORS: [&str; 8] = ["and", "or", "not", "is", "like", "ilike", "between", "in"];
        if opens {
            open.push(0);
            if open.len() > NESTING_MAX {
                return Err(SqlError::new(token.span, format!("expressions nest at most {NESTING_MAX} deep")));
            }
        } else if closes {
            if open.len() > 1 {
                operators -= open.pop().unwrap_or(0);
            }
        } else {
            let is_operator = match &token.token {
                Token::Word(word) if word.quote_style.is_none() => {
                    if SEPARATORS.iter().any(|separator| word.value.eq_ignore_ascii_case(separator)) {
                        operators -= open.last().copied().unwrap_or(0);
                        if let Some(last) = open.last_mut() {
                            *last = 0;
                        }
                    }
                    OPERATORS.iter().any(|operator| word.value.eq_ignore_ascii_case(operator))
                }
                Token::Comma => {
                    operators -= open.last().copied().unwrap_or(0);
                    if let Some(last) = open.last_mut() {
                        *last = 0;
                    }
                    false
                }
                Token::Word(_)
                | Token::Number(..)
                | Token::SingleQuotedString(_)
                | Token::Placeholder(_)
                | Token::Period => false,
                _ => true,
            };
            if is_operator {
                operators += 1;
                if let Some(last) = open.last_mut() {
                    *last += 1;
                }
                if operators > OPERATORS_MAX {
                    return Err(SqlError::new(
                        token.span,
                        format!("an expression has at most {OPERATORS_MAX} operators in a row"),
                    )
                    .hint("use IN (...) for many alternatives, and parentheses or CASE to group the rest"));
                }
            }
        }
    }
    Ok(())
}

pub(super) fn not_yet(position: impl Into<Position>, what: &str) -> SqlError {
    SqlError::new(position, format!("{what} is not supported yet"))
}

pub(super) struct SelectText<'a> {
    pub(super) tokens: &'a [TokenWithSpan],
    pub(super) end: Position,
}

impl SelectText<'_> {
    /// The position of these words, one after the other, outside of parentheses if possible. If they are not found, the
    /// beginning of the SELECT.
    pub(super) fn locate(&self, words: &[&str]) -> Position {
        let mut depth = 0usize;
        let mut inside = None;
        for (index, token) in self.tokens.iter().enumerate() {
            match token.token {
                Token::LParen => depth += 1,
                Token::RParen => depth = depth.saturating_sub(1),
                _ => {}
            }
            let rest = &self.tokens[index..];
            if rest.len() >= words.len()
                && words.iter().zip(rest).all(|(word, token)| token_is_word(&token.token, word))
            {
                if depth == 0 {
                    return token.span.into();
                }
                inside = inside.or(Some(token.span.into()));
            }
        }
        inside.unwrap_or_else(|| self.tokens.first().map_or(self.end, |token| token.span.into()))
    }

    /// An error for a CASE without END. The parser takes the CASE for a name, and complains about what follows it.
    fn open_case(&self) -> Option<SqlError> {
        let mut open = Vec::new();
        for token in self.tokens {
            if token_is_word(&token.token, "case") {
                open.push(token.span);
            } else if token_is_word(&token.token, "end") {
                open.pop();
            }
        }
        let span = open.pop()?;
        Some(SqlError::new(span, "this CASE has no END").hint("write CASE WHEN condition THEN value ELSE value END"))
    }

    /// An error of the parser in our words. Its message ends with the position.
    fn syntax_error(&self, error: ParserError) -> SqlError {
        let message = match error {
            ParserError::RecursionLimitExceeded => {
                let start = self.tokens.first().map_or(self.end, |token| token.span.into());
                return SqlError::new(start, format!("expressions nest at most {NESTING_MAX} deep"));
            }
            ParserError::ParserError(message) | ParserError::TokenizerError(message) => message,
        };
        let (message, position) = match message.rsplit_once(" at Line: ") {
            Some((message, place)) => {
                let number = |text: &str| text.trim().parse::<u32>().ok();
                let position = place
                    .split_once(", Column: ")
                    .and_then(|(line, column)| Some(Position { line: number(line)?, column: number(column)? }));
                (message, position.unwrap_or_default())
            }
            None => (message.as_str(), Position::default()),
        };
        if let Some(kind) = message.strip_prefix("No infix parser for token ") {
            let token = self.tokens.get(self.index_at(position));
            let operator = token.map_or_else(|| kind.to_owned(), |token| token.token.to_string());
            return not_yet(position.or(self.end), &format!("the operator '{operator}'"));
        }
        let expectation = message.strip_prefix("Expected: ").or(message.strip_prefix("Expected "));
        let (expected, found) = match expectation.and_then(|rest| rest.split_once(", found: ")) {
            Some((expected, found)) => (expected, found),
            None => return SqlError::new(position.or(self.end), lower_first(message)),
        };
        if found == "EOF" {
            let message = format!("expected {}, found the end of the statement", plain(expected));
            return self.with_word_hint(SqlError::new(self.end, message), self.tokens.len());
        }
        let mut index = self.index_at(position);
        // Sometimes the position is that of the token behind the one found.
        let stands_at = |index: usize| self.tokens.get(index).is_some_and(|token| token.token.to_string() == found);
        if !stands_at(index) && index > 0 && stands_at(index - 1) {
            index -= 1;
        }
        let position = self.tokens.get(index).map_or(position, |token| token.span.into());
        let found = self.tokens.get(index).map_or_else(|| format!("'{found}'"), |token| describe_token(&token.token));
        let error = SqlError::new(position.or(self.end), format!("expected {}, found {found}", plain(expected)));
        self.with_word_hint(error, index)
    }

    fn unexpected(&self, position: Position, token: &Token) -> SqlError {
        for (words, what) in [
            (["limit", "offset", "fetch"].as_slice(), "this form of LIMIT"),
            (["union", "intersect", "except", "minus"].as_slice(), "UNION"),
        ] {
            if words.iter().any(|word| token_is_word(token, word)) {
                return not_yet(position, what);
            }
        }
        let error =
            SqlError::new(position, format!("expected the end of the statement, found {}", describe_token(token)));
        self.with_word_hint(error, self.index_at(position))
    }

    fn index_at(&self, position: Position) -> usize {
        self.tokens.iter().position(|token| Position::from(token.span) >= position).unwrap_or(self.tokens.len())
    }

    /// Adds a hint for a misspelt word of a clause. It is often read as a name, so the error comes a word later.
    fn with_word_hint(&self, error: SqlError, index: usize) -> SqlError {
        let near = [index, index.wrapping_sub(1), index.wrapping_sub(2)].into_iter().find_map(|index| {
            let Token::Word(word) = &self.tokens.get(index)?.token else { return None };
            if word.quote_style.is_some() || CLAUSE_WORDS.iter().any(|known| known.eq_ignore_ascii_case(&word.value)) {
                return None;
            }
            suggest::nearest(&word.value, CLAUSE_WORDS).filter(|near| near.len() > 2).map(|near| (near, &word.value))
        });
        match near {
            Some((near, word)) => error.hint(format!("did you mean {near} instead of '{word}'?")),
            None => error,
        }
    }

    pub(super) fn take_apart(&self, query: ast::Query) -> Result<Select, SqlError> {
        let ast::Query {
            with,
            body,
            order_by,
            limit_clause,
            fetch,
            locks,
            for_clause,
            settings,
            format_clause,
            pipe_operators,
        } = query;
        if with.is_some() {
            return Err(not_yet(self.locate(&["with"]), "WITH (common table expressions)"));
        }
        let select = match *body {
            ast::SetExpr::Select(select) => *select,
            ast::SetExpr::SetOperation { op, .. } => {
                let name = op.to_string();
                let error = not_yet(self.locate(&[&name]), &format!("{name} of two SELECTs by themselves"));
                return Err(error.hint(super::union::FORM));
            }
            _ => return Err(not_yet(self.locate(&["select"]), "anything but a plain SELECT")),
        };
        let top = self.take_top(order_by, limit_clause)?;
        if fetch.is_some() {
            return Err(not_yet(self.locate(&["fetch"]), "FETCH").hint("write LIMIT 3"));
        }
        if !locks.is_empty() || for_clause.is_some() {
            return Err(not_yet(self.locate(&["for"]), "FOR"));
        }
        if settings.is_some() || format_clause.is_some() || !pipe_operators.is_empty() {
            return Err(not_yet(self.locate(&["select"]), "a clause after the SELECT"));
        }
        Ok(Select { top, ..self.take_select(select)? })
    }

    fn take_top(
        &self,
        order_by: Option<ast::OrderBy>,
        limit: Option<ast::LimitClause>,
    ) -> Result<Option<TopClause>, SqlError> {
        let words: &[&str] = if order_by.is_some() { &["order", "by"] } else { &["limit"] };
        let position = self.locate(words);
        let order_by = match order_by.map(|order| (order.kind, order.interpolate)) {
            None => Vec::new(),
            Some((ast::OrderByKind::Expressions(keys), None)) if keys.iter().all(|key| key.with_fill.is_none()) => keys,
            Some(_) => return Err(not_yet(position, "this form of ORDER BY")),
        };
        let limit = match limit {
            None => None,
            Some(ast::LimitClause::LimitOffset { limit, offset: None, limit_by }) if limit_by.is_empty() => limit,
            Some(_) => {
                let words = ["offset", "by", "limit"].into_iter();
                let mut words = words.filter(|word| self.tokens.iter().any(|token| token_is_word(&token.token, word)));
                return Err(not_yet(self.locate(&[words.next().unwrap_or("limit")]), "OFFSET").hint(
                    "LIMIT gives the first rows of each window; QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, \
                     window_end ORDER BY ...) > 3 leaves them out",
                ));
            }
        };
        let is_written = !order_by.is_empty() || limit.is_some();
        Ok(is_written.then_some(TopClause { position, order_by, limit }))
    }

    fn take_select(&self, mut select: ast::Select) -> Result<Select, SqlError> {
        let mut from = std::mem::take(&mut select.from);
        let unnest = self.take_unnest(&mut from)?;
        let mut select = self.take_clauses(select)?;
        select.unnest = unnest;
        self.take_from(from, &mut select)?;
        Ok(select)
    }

    /// Reads a SELECT without its FROM.
    pub(super) fn take_clauses(&self, select: ast::Select) -> Result<Select, SqlError> {
        let ast::Select {
            select_token,
            optimizer_hints,
            distinct,
            select_modifiers,
            top,
            top_before_distinct: _,
            projection,
            exclude,
            into,
            from: _,
            lateral_views,
            prewhere,
            selection,
            connect_by,
            group_by,
            cluster_by,
            distribute_by,
            sort_by,
            having,
            named_window,
            qualify,
            window_before_qualify: _,
            value_table_mode,
            flavor,
        } = select;
        let position = Position::from(select_token.0.span).or(self.locate(&["select"]));
        let distinct = match distinct {
            None | Some(ast::Distinct::All) => None,
            Some(ast::Distinct::Distinct) => Some(self.locate(&["distinct"])),
            Some(ast::Distinct::On(_)) => {
                return Err(not_yet(self.locate(&["distinct"]), "DISTINCT ON").hint(
                    "write QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end, key ORDER BY ...) = 1",
                ));
            }
        };
        let refusals = [
            (top.is_some(), "TOP", "top"),
            (into.is_some(), "SELECT INTO", "into"),
            (!lateral_views.is_empty(), "LATERAL VIEW", "lateral"),
            (prewhere.is_some(), "PREWHERE", "prewhere"),
            (!connect_by.is_empty(), "CONNECT BY", "connect"),
            (!cluster_by.is_empty(), "CLUSTER BY", "cluster"),
            (!distribute_by.is_empty(), "DISTRIBUTE BY", "distribute"),
            (!sort_by.is_empty(), "SORT BY", "sort"),
            (!named_window.is_empty(), "WINDOW", "window"),
            (exclude.is_some(), "EXCLUDE", "exclude"),
            (!optimizer_hints.is_empty(), "an optimizer hint", "select"),
            (select_modifiers.is_some(), "this modifier of SELECT", "select"),
            (value_table_mode.is_some(), "SELECT AS VALUE", "as"),
            (!matches!(flavor, ast::SelectFlavor::Standard), "FROM before SELECT", "from"),
        ];
        for (present, what, word) in refusals {
            if present {
                return Err(not_yet(self.locate(&[word]), what));
            }
        }
        if projection.is_empty() {
            return Err(SqlError::new(position, "the SELECT has no columns"));
        }
        let group_by = match group_by {
            ast::GroupByExpr::Expressions(expressions, modifiers) if modifiers.is_empty() => expressions,
            ast::GroupByExpr::Expressions(..) => {
                return Err(not_yet(self.locate(&["with"]), "WITH ROLLUP, CUBE or TOTALS"));
            }
            ast::GroupByExpr::All(_) => return Err(not_yet(self.locate(&["all"]), "GROUP BY ALL")),
        };
        Ok(Select {
            position,
            distinct,
            projection,
            from: Name { text: String::new(), position },
            alias: None,
            from_latest: false,
            subquery: None,
            union: Vec::new(),
            window: None,
            pattern: None,
            lookups: Vec::new(),
            unnest: None,
            filter: selection,
            group_by,
            having_position: self.locate(&["having"]),
            having,
            qualify_position: self.locate(&["qualify"]),
            qualify,
            top: None,
            emit_on_change: false,
            output_conditions: Vec::new(),
            computed: Vec::new(),
        })
    }
}

/// Returns the name of an identifier: in lower case unless quoted.
pub(crate) fn name_of(identifier: &ast::Ident) -> Name {
    let text = match identifier.quote_style {
        Some(_) => identifier.value.clone(),
        None => identifier.value.to_lowercase(),
    };
    Name { text, position: identifier.span.into() }
}

/// What the parser expected, without its jargon.
fn plain(expected: &str) -> String {
    match expected {
        "end of statement" => "the end of the statement".to_owned(),
        "an expression" | "an expression:" => "an expression".to_owned(),
        "identifier" => "a name".to_owned(),
        mark if !mark.chars().any(char::is_alphanumeric) => format!("'{mark}'"),
        other => other.to_owned(),
    }
}
