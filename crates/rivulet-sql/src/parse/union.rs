//! `FROM (SELECT ts, value FROM a UNION ALL SELECT ts, value FROM b) AS both`: rows of several inputs as rows of one.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::ast::Spanned;

use super::from::plain_alias;
use super::select_text::{SelectText, not_yet};
use crate::statement::{Name, Select, UnionBranch};
use crate::{Position, SqlError};

/// The supported form of a union, for messages.
pub(super) const FORM: &str =
    "write SELECT ... FROM (SELECT ts, value FROM a UNION ALL SELECT ts, value FROM b) AS both";

/// What to write instead of a subquery that is neither a SELECT nor a union.
const ALONE: &str = "write FROM (SELECT ...) AS m, without parentheses around the SELECT inside";

impl SelectText<'_> {
    /// Reads the alias of a subquery in FROM, and its branches.
    pub(super) fn take_union(
        &self,
        query: ast::Query,
        alias: Option<ast::TableAlias>,
    ) -> Result<(Name, Vec<UnionBranch>), SqlError> {
        let position = Position::from(query.span()).or(self.locate(&["select"]));
        let name = match &alias {
            Some(alias) => plain_alias(alias)?,
            None => Name { text: "union".to_owned(), position },
        };
        if !matches!(*query.body, ast::SetExpr::SetOperation { .. }) {
            return Err(not_yet(position, "a subquery other than a SELECT or a UNION ALL of inputs").hint(ALONE));
        }
        let mut branches = Vec::new();
        self.take_branches(query, &mut branches)?;
        Ok((name, branches))
    }

    fn take_branches(&self, query: ast::Query, branches: &mut Vec<UnionBranch>) -> Result<(), SqlError> {
        let is_union = matches!(*query.body, ast::SetExpr::SetOperation { .. });
        if !is_union {
            let select = self.take_apart(query)?;
            branches.push(branch(select)?);
            return Ok(());
        }
        // Clauses behind the SELECTs of a union are refused by the same rules as clauses behind one SELECT.
        let ast::Query { body, .. } = query.clone();
        let ast::SetExpr::SetOperation { op, set_quantifier, left, right } = *body else {
            unreachable!("it was seen above")
        };
        let around = |body: Box<ast::SetExpr>| ast::Query { body, ..query.clone() };
        if op != ast::SetOperator::Union || set_quantifier != ast::SetQuantifier::All {
            let what = match set_quantifier {
                ast::SetQuantifier::None => op.to_string(),
                quantifier => format!("{op} {quantifier}"),
            };
            return Err(not_yet(self.locate(&[&op.to_string()]), &what).hint(format!("UNION ALL is: {FORM}")));
        }
        self.take_branches(around(left), branches)?;
        self.take_branches(around(right), branches)
    }
}

fn branch(select: Select) -> Result<UnionBranch, SqlError> {
    let Select { position, projection, from, alias, filter, .. } = select;
    let refused = [
        (!select.group_by.is_empty(), "GROUP BY"),
        (select.having.is_some(), "HAVING"),
        (select.qualify.is_some(), "QUALIFY"),
        (select.distinct.is_some(), "DISTINCT"),
        (select.top.is_some(), "ORDER BY or LIMIT"),
        (!select.lookups.is_empty(), "JOIN"),
        (select.from_latest, "LATEST"),
        (!select.union.is_empty(), "a subquery"),
    ];
    match refused.into_iter().find(|(is_there, _)| *is_there) {
        Some((_, what)) => Err(not_yet(position, &format!("{what} in a SELECT of a UNION ALL"))
            .hint("columns and WHERE stand there, everything else in the SELECT around")),
        None => Ok(UnionBranch { position, projection, from, alias, filter }),
    }
}
