//! `CROSS JOIN UNNEST(array) [WITH ORDINALITY] AS alias (element [, number])` at the end of FROM; a map has two columns
//! in place of the element, and an array of rows may have one for each field.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::ast::Spanned;

use super::select_text::{SelectText, name_of, not_yet};
use crate::SqlError;
use crate::statement::UnnestClause;

const EXAMPLE: &str =
    "write for example CROSS JOIN UNNEST(string_to_array(readings, ',')) WITH ORDINALITY AS r (reading, number)";

impl SelectText<'_> {
    /// Takes an UNNEST from the end of FROM.
    pub(super) fn take_unnest(&self, from: &mut [ast::TableWithJoins]) -> Result<Option<UnnestClause>, SqlError> {
        let [ast::TableWithJoins { joins, .. }] = from else { return Ok(None) };
        let Some(index) = joins.iter().position(|join| is_unnest(&join.relation)) else { return Ok(None) };
        let position = self.join_position(joins[index].relation.span().into());
        if index + 1 < joins.len() {
            return Err(not_yet(position, "UNNEST before another JOIN").hint("put it last"));
        }
        let Some(ast::Join { relation, global: false, join_operator }) = joins.pop() else {
            return Err(not_yet(position, "this JOIN of UNNEST").hint(EXAMPLE));
        };
        let is_cross = matches!(join_operator, ast::JoinOperator::CrossJoin(ast::JoinConstraint::None));
        let ast::TableFactor::Table { args: Some(args), alias, with_ordinality, .. } = relation else {
            return Err(not_yet(position, "this form of UNNEST").hint(EXAMPLE));
        };
        if !is_cross {
            return Err(not_yet(position, "a JOIN of UNNEST other than CROSS JOIN").hint(EXAMPLE));
        }
        let [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))] = args.args.as_slice() else {
            return Err(SqlError::new(position, "UNNEST takes one argument").hint(EXAMPLE));
        };
        let array = argument.clone();
        let alias = alias.ok_or_else(|| SqlError::new(position, "this UNNEST has no name").hint(EXAMPLE))?;
        let mut columns: Vec<_> = alias.columns.iter().map(|column| name_of(&column.name)).collect();
        let number = if with_ordinality { columns.pop() } else { None };
        if columns.is_empty() {
            return Err(SqlError::new(alias.name.span, "the columns of this UNNEST have no names").hint(EXAMPLE));
        }
        Ok(Some(UnnestClause { position, array, alias: name_of(&alias.name), columns, number }))
    }
}

fn is_unnest(relation: &ast::TableFactor) -> bool {
    match relation {
        ast::TableFactor::Table { name, args: Some(_), .. } => matches!(
            name.0.as_slice(),
            [ast::ObjectNamePart::Identifier(name)] if name_of(name).text == "unnest"
        ),
        _ => false,
    }
}
