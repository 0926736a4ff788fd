//! FROM: an input, the latest rows of an input, or a UNION ALL; and what is joined with it.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::ast::Spanned;

use super::select_text::{SelectText, name_of, not_yet};
use crate::lexer::token_is_word;
use crate::statement::{Name, Select};
use crate::{Position, SqlError};

/// How two inputs are joined.
pub(super) const INPUT_FORMS: &str = "inputs are joined with JOIN b ON b.key = a.key AND b.ts BETWEEN a.ts - INTERVAL \
    '1 minute' AND a.ts + INTERVAL '1 minute', or with JOIN LATEST(b) ON b.key = a.key, and put together with UNION ALL";

impl SelectText<'_> {
    /// Reads FROM into a SELECT.
    pub(super) fn take_from(&self, from: Vec<ast::TableWithJoins>, select: &mut Select) -> Result<(), SqlError> {
        let mut from = from.into_iter();
        let Some(ast::TableWithJoins { relation, joins }) = from.next() else {
            return Err(SqlError::new(
                self.end,
                "expected FROM and the name of the input, found the end of the statement",
            ));
        };
        if let Some(second) = from.next() {
            let position = Position::from(second.relation.span()).or(self.locate(&["from"]));
            return Err(not_yet(position, "a list of inputs in FROM").hint(INPUT_FORMS));
        }
        match relation {
            ast::TableFactor::Derived { lateral: false, subquery, alias, sample: None } => {
                (select.from, select.union) = self.take_union(*subquery, alias)?;
            }
            relation => {
                let table = self.take_table(relation)?;
                (select.from, select.alias, select.from_latest) = (table.name, table.alias, table.is_latest);
            }
        }
        select.lookups = joins.into_iter().map(|join| self.take_join(join)).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Reads the name of an input or table, and its alias.
    pub(super) fn take_table(&self, relation: ast::TableFactor) -> Result<TableReference, SqlError> {
        let mut is_latest = false;
        let (name, alias) = match relation {
            ast::TableFactor::Table {
                name,
                alias,
                args,
                with_hints,
                version,
                with_ordinality,
                partitions,
                json_path,
                sample,
                index_hints,
            } => {
                let position = Position::from(name.span());
                let more = !with_hints.is_empty()
                    || version.is_some()
                    || with_ordinality
                    || !partitions.is_empty()
                    || json_path.is_some()
                    || sample.is_some()
                    || !index_hints.is_empty();
                if more {
                    return Err(
                        not_yet(position, "this clause in FROM").hint("write FROM t AS x, and filter rows with WHERE")
                    );
                }
                match args {
                    None => (name, alias),
                    Some(args) => {
                        is_latest = true;
                        (latest_of(&name, args)?, alias)
                    }
                }
            }
            ast::TableFactor::Derived { subquery, .. } => {
                return Err(not_yet(subquery.span(), "a subquery"));
            }
            other => {
                let position = Position::from(other.span()).or(self.locate(&["from"]));
                return Err(not_yet(position, "this form of FROM").hint(
                    "write FROM t, the name of an input; a window stands in GROUP BY: \
                     GROUP BY tumble(ts, INTERVAL '1 minute')",
                ));
            }
        };
        let position = Position::from(name.span());
        let [ast::ObjectNamePart::Identifier(name)] = name.0.as_slice() else {
            return Err(
                not_yet(position, "a name with points in FROM").hint("inputs and tables have no schema: write FROM t")
            );
        };
        let alias = alias.as_ref().map(plain_alias).transpose()?;
        Ok(TableReference { name: name_of(name), alias, is_latest })
    }

    /// The position of the word JOIN before the joined input.
    pub(super) fn join_position(&self, relation: Position) -> Position {
        if !relation.is_known() {
            return self.locate(&["join"]);
        }
        self.tokens
            .iter()
            .rev()
            .find(|token| token_is_word(&token.token, "join") && Position::from(token.span) <= relation)
            .map_or(relation, |token| token.span.into())
    }
}

/// A table or input in FROM.
pub(super) struct TableReference {
    pub(super) name: Name,
    pub(super) alias: Option<Name>,
    /// Whether it is `LATEST(name)`.
    pub(super) is_latest: bool,
}

/// Reads the name in `LATEST(name)`.
fn latest_of(function: &ast::ObjectName, args: ast::TableFunctionArgs) -> Result<ast::ObjectName, SqlError> {
    let position = Position::from(function.span());
    let is_latest = match function.0.as_slice() {
        [ast::ObjectNamePart::Identifier(name)] => name_of(name).text == "latest",
        _ => false,
    };
    if !is_latest {
        return Err(not_yet(position, "a function in FROM other than LATEST")
            .hint("windows stand in GROUP BY: GROUP BY tumble(ts, INTERVAL '1 minute')"));
    }
    match args.args.as_slice() {
        [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(ast::Expr::Identifier(name)))]
            if args.settings.is_none() =>
        {
            Ok(ast::ObjectName::from(vec![name.clone()]))
        }
        _ => Err(SqlError::new(position, "LATEST takes the name of an input").hint(INPUT_FORMS)),
    }
}

pub(super) fn plain_alias(alias: &ast::TableAlias) -> Result<Name, SqlError> {
    if !alias.columns.is_empty() || alias.at.is_some() {
        return Err(not_yet(alias.name.span, "a list of columns after an alias")
            .hint("name the columns with AS: FROM (SELECT value AS a FROM t) AS x"));
    }
    Ok(name_of(&alias.name))
}
