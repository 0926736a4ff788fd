//! The SELECT of an application. DataFusion's parser parses it, and then it is taken apart clause by clause, so that
//! everything that is not supported is refused by its name and never ignored.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::from;
use super::pattern;
use super::select_text::{SelectText, check_depth, not_yet, outside};
use super::subquery::Chain;
use super::window_table::{self, WithoutWindow};
use crate::lexer::{describe_token, token_is_word};
use crate::statement::{Name, Select, TopClause};
use crate::{Position, SqlError, suggest};

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
        return Err(not_yet(first.span, "a SELECT in parentheses").hint("leave the parentheses out"));
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
    let (query, next) = text.parse(|parser| parser.parse_query())?;
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
    match (SelectText { tokens, end }).parse(|parser| parser.parse_expr())? {
        (condition, next) if next.token == Token::EOF => Ok(condition),
        (_, next) => Err(SqlError::new(
            next.span,
            format!("expected OUTPUT or AS after the condition, found {}", describe_token(&next.token)),
        )),
    }
}

/// Cuts `EMIT ON CHANGE` off the end.
fn cut_emit(tokens: &[TokenWithSpan]) -> Result<(&[TokenWithSpan], bool), SqlError> {
    for index in outside(tokens).filter(|&index| token_is_word(&tokens[index].token, "emit")) {
        let after = |steps: usize| tokens.get(index + steps).map(|token| &token.token);
        let follows = |steps: usize, word: &str| after(steps).is_some_and(|token| token_is_word(token, word));
        let is_clause = index + 1 == tokens.len()
            || ["on", "changes", "change", "final", "after", "every"].iter().any(|word| follows(1, word));
        if !is_clause {
            continue;
        }
        if !(follows(1, "on") && follows(2, "change")) {
            return Err(SqlError::new(tokens[index].span, "expected EMIT ON CHANGE")
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
    Ok((tokens, false))
}

impl SelectText<'_> {
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
                let error = not_yet(self.locate(&[&name]), &format!("{name} of two whole SELECTs"));
                return Err(error.hint(super::union::FORM));
            }
            _ => {
                return Err(
                    not_yet(self.locate(&["select"]), "this kind of query").hint("write SELECT columns FROM input")
                );
            }
        };
        let top = self.take_top(order_by, limit_clause)?;
        if fetch.is_some() {
            return Err(not_yet(self.locate(&["fetch"]), "FETCH").hint("write LIMIT 3"));
        }
        if !locks.is_empty() || for_clause.is_some() {
            return Err(not_yet(self.locate(&["for"]), "FOR").hint("leave it out: a query only reads"));
        }
        if settings.is_some() || format_clause.is_some() || !pipe_operators.is_empty() {
            return Err(not_yet(self.locate(&["select"]), "a clause after the SELECT")
                .hint("leave it out; the last clauses are ORDER BY, LIMIT and EMIT ON CHANGE"));
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
            (top.is_some(), "TOP", "top", "write LIMIT 3 at the end"),
            (into.is_some(), "SELECT INTO", "into", "leave it out: results go to the OUTPUT of the application"),
            (!lateral_views.is_empty(), "LATERAL VIEW", "lateral", "write CROSS JOIN UNNEST(array) AS u (element)"),
            (prewhere.is_some(), "PREWHERE", "prewhere", "write WHERE"),
            (!connect_by.is_empty(), "CONNECT BY", "connect", "leave it out"),
            (!cluster_by.is_empty(), "CLUSTER BY", "cluster", "leave it out"),
            (!distribute_by.is_empty(), "DISTRIBUTE BY", "distribute", "leave it out"),
            (!sort_by.is_empty(), "SORT BY", "sort", "leave it out"),
            (!named_window.is_empty(), "WINDOW", "window", "write OVER (PARTITION BY column) at each call"),
            (exclude.is_some(), "EXCLUDE", "exclude", "write SELECT * EXCEPT (column)"),
            (!optimizer_hints.is_empty(), "an optimizer hint", "select", "leave it out"),
            (select_modifiers.is_some(), "this modifier of SELECT", "select", "leave it out"),
            (value_table_mode.is_some(), "SELECT AS VALUE", "as", "write SELECT columns FROM t"),
            (
                !matches!(flavor, ast::SelectFlavor::Standard),
                "FROM before SELECT",
                "from",
                "write SELECT columns FROM t",
            ),
        ];
        for (present, what, word, hint) in refusals {
            if present {
                return Err(not_yet(self.locate(&[word]), what).hint(hint));
            }
        }
        if projection.is_empty() {
            return Err(SqlError::new(position, "the SELECT has no columns"));
        }
        let group_by = match group_by {
            ast::GroupByExpr::Expressions(expressions, modifiers) if modifiers.is_empty() => expressions,
            ast::GroupByExpr::Expressions(..) => {
                return Err(not_yet(self.locate(&["with"]), "WITH ROLLUP, CUBE or TOTALS").hint(
                    "write an application for each set of keys; a big query has GROUP BY ROLLUP (a, b), CUBE and \
                     GROUPING SETS",
                ));
            }
            ast::GroupByExpr::All(_) => {
                return Err(not_yet(self.locate(&["all"]), "GROUP BY ALL")
                    .hint("name the keys: GROUP BY device, tumble(ts, INTERVAL '1 minute')"));
            }
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
