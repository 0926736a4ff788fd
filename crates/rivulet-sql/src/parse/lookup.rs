//! Reference tables in FROM: only `JOIN table ON key = value` and `CROSS JOIN LATERAL (SELECT ... FROM table ...)`.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::ast::Spanned;

use super::from::{TableReference, plain_alias};
use super::select_text::{SelectText, not_yet};
use crate::statement::{Lateral, LookupClause, LookupKind, Select};
use crate::{Position, SqlError};

/// What may stand behind the input in FROM.
pub(super) const FORMS: &str = "look up a table with JOIN rooms AS r ON r.id = t.room (LEFT JOIN keeps rows \
    without a partner), or with CROSS JOIN LATERAL (SELECT ... FROM rooms WHERE ... ORDER BY ... LIMIT 3) AS near; \
    join two inputs with JOIN LATEST(b) AS b ON b.key = a.key";

impl SelectText<'_> {
    /// Reads a join of a FROM.
    pub(super) fn take_join(&self, join: ast::Join) -> Result<LookupClause, SqlError> {
        use ast::{JoinConstraint as Constraint, JoinOperator as Join};
        let ast::Join { relation, global, join_operator } = join;
        let position = self.join_position(relation.span().into());
        let refuse = |what: &str| Err(not_yet(position, what).hint(FORMS));
        let is_left = matches!(join_operator, Join::Left(_) | Join::LeftOuter(_));
        let is_of_cross_join = matches!(join_operator, Join::CrossJoin(_));
        let constraint = match join_operator {
            _ if global => return refuse("GLOBAL JOIN"),
            Join::CrossJoin(Constraint::None) => match relation {
                ast::TableFactor::Table { args: Some(_), .. } => Constraint::None,
                ast::TableFactor::Derived { lateral: true, subquery, alias, sample: None } => {
                    return self.take_lateral(*subquery, alias, position);
                }
                ast::TableFactor::Derived { .. } => return refuse("CROSS JOIN of a subquery without LATERAL"),
                _ => return refuse("CROSS JOIN without LATERAL (SELECT ...)"),
            },
            Join::Join(one) | Join::Inner(one) | Join::Left(one) | Join::LeftOuter(one) => one,
            Join::Right(_) | Join::RightOuter(_) => return refuse("RIGHT JOIN"),
            Join::FullOuter(_) => return refuse("FULL JOIN"),
            _ => return refuse("this kind of JOIN"),
        };
        if matches!(relation, ast::TableFactor::Derived { .. }) {
            return refuse("JOIN of a subquery without LATERAL");
        }
        let on = match constraint {
            Constraint::On(on) => Some(Box::new(on)),
            Constraint::None if is_of_cross_join => None,
            Constraint::Using(_) => return refuse("USING"),
            Constraint::Natural => return refuse("NATURAL JOIN"),
            Constraint::None => {
                return Err(SqlError::new(position, "this JOIN has no ON").hint(FORMS));
            }
        };
        let TableReference { name: table, alias, is_latest } = self.take_table(relation)?;
        let alias = alias.unwrap_or_else(|| table.clone());
        Ok(LookupClause { table, alias, kind: LookupKind::Join { on, is_left, is_latest, position } })
    }

    fn take_lateral(
        &self,
        query: ast::Query,
        alias: Option<ast::TableAlias>,
        position: Position,
    ) -> Result<LookupClause, SqlError> {
        let Some(alias) = alias else {
            return Err(SqlError::new(position, "this LATERAL has no name").hint("write LATERAL (SELECT ...) AS near"));
        };
        let alias = plain_alias(&alias)?;
        let position = Position::from(query.span()).or(position);
        // SELECT count(*) FROM (SELECT ...): the inner SELECT is over the table, and the outer one has only aggregates.
        let (query, around) = match split_around(query) {
            (query, None) => (query, None),
            (inner, Some(Around { query, alias })) => {
                let alias = alias.as_ref().map(plain_alias).transpose()?;
                if query.order_by.is_some() || query.limit_clause.is_some() {
                    return Err(SqlError::new(position, "ORDER BY and LIMIT stand in the inner SELECT of a LATERAL")
                        .hint("write (SELECT count(*) AS n FROM (SELECT ... ORDER BY ... LIMIT 3)) AS near"));
                }
                let ast::SetExpr::Select(select) = *query.body else { unreachable!("it was taken apart as a SELECT") };
                let around = self.take_clauses(*select)?;
                refuse_clauses(&around, true, position)?;
                (inner, Some((around.projection, alias)))
            }
        };
        let mut query = query;
        let order_by = match query.order_by.take().map(|order| (order.kind, order.interpolate)) {
            None => Vec::new(),
            Some((ast::OrderByKind::Expressions(keys), None)) if keys.iter().all(|key| key.with_fill.is_none()) => keys,
            Some(_) => return Err(not_yet(position, "this form of ORDER BY")),
        };
        let limit = match query.limit_clause.take() {
            None => None,
            Some(ast::LimitClause::LimitOffset { limit, offset: None, limit_by }) if limit_by.is_empty() => limit,
            Some(_) => {
                return Err(not_yet(position, "OFFSET in a LATERAL").hint("leave OFFSET out, and write LIMIT 3 alone"));
            }
        };
        let select = self.take_apart(query)?;
        refuse_clauses(&select, false, position)?;
        if !select.lookups.is_empty() {
            return Err(not_yet(position, "a JOIN inside of a LATERAL").hint("join in the SELECT around the LATERAL"));
        }
        if select.from_latest || !select.union.is_empty() {
            return Err(not_yet(select.from.position, "LATEST or UNION ALL inside of a LATERAL")
                .hint("read one table there: LATERAL (SELECT count(*) AS n FROM rooms) AS r"));
        }
        let Select { projection, from: table, alias: table_alias, filter, .. } = select;
        let table_alias = table_alias.unwrap_or_else(|| table.clone());
        let lateral = Lateral { position, table_alias, projection, filter, order_by, limit, around };
        Ok(LookupClause { table, alias, kind: LookupKind::Lateral(Box::new(lateral)) })
    }
}

/// The SELECT around a subquery, without the subquery.
struct Around {
    query: ast::Query,
    alias: Option<ast::TableAlias>,
}

/// Takes the subquery out of `SELECT ... FROM (SELECT ...)`: the inner query and the one around it.
fn split_around(mut query: ast::Query) -> (ast::Query, Option<Around>) {
    let ast::SetExpr::Select(select) = query.body.as_mut() else { return (query, None) };
    let is_subquery = match select.from.as_slice() {
        [ast::TableWithJoins { relation: ast::TableFactor::Derived { lateral: false, .. }, joins }] => joins.is_empty(),
        _ => false,
    };
    if !is_subquery {
        return (query, None);
    }
    match select.from.pop().map(|from| from.relation) {
        Some(ast::TableFactor::Derived { subquery, alias, .. }) => (*subquery, Some(Around { query, alias })),
        _ => unreachable!("it was seen above"),
    }
}

fn refuse_clauses(select: &Select, is_around: bool, position: Position) -> Result<(), SqlError> {
    let refused = [
        (
            !select.group_by.is_empty(),
            "GROUP BY",
            "a LATERAL gives one row of aggregates for each event, or rows as they are",
        ),
        (select.having.is_some(), "HAVING", "filter in the WHERE around the LATERAL"),
        (select.distinct.is_some(), "DISTINCT", "it gives the rows of the table as they are"),
        (is_around && select.filter.is_some(), "WHERE around a subquery", "put the condition into the inner SELECT"),
    ];
    match refused.into_iter().find(|(is_there, ..)| *is_there) {
        Some((_, what, hint)) => Err(not_yet(position, &format!("{what} in a LATERAL")).hint(hint)),
        None => Ok(()),
    }
}
