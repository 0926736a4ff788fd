//! `CROSS JOIN UNNEST(string_to_array(text, ',')) [WITH ORDINALITY] AS alias (element [, number])` at the end of FROM.

use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::ast::Spanned;

use super::select::{SelectText, name_of, not_yet};
use crate::statement::{Name, UnnestClause};
use crate::{Position, SqlError};

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
            return Err(not_yet(position, "another JOIN of UNNEST than CROSS JOIN").hint(EXAMPLE));
        }
        let [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))] = args.args.as_slice() else {
            return Err(SqlError::new(position, "UNNEST takes one argument").hint(EXAMPLE));
        };
        let (text, delimiter) = split(argument, position)?;
        let alias = alias.ok_or_else(|| SqlError::new(position, "this UNNEST has no name").hint(EXAMPLE))?;
        let mut columns = alias.columns.iter().map(|column| name_of(&column.name));
        let wrong = || Err(SqlError::new(alias.name.span, "the columns of this UNNEST have no names").hint(EXAMPLE));
        let (Some(element), number) = (columns.next(), columns.next()) else { return wrong() };
        if number.is_some() != with_ordinality || columns.next().is_some() {
            return wrong();
        }
        Ok(Some(UnnestClause { position, text, delimiter, alias: name_of(&alias.name), element, number }))
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

/// The text and the delimiter of `string_to_array(text, delimiter)`.
fn split(argument: &ast::Expr, fallback: Position) -> Result<(ast::Expr, ast::Expr), SqlError> {
    let position = Position::from(argument.span()).or(fallback);
    let refused = || not_yet(position, "UNNEST of anything but string_to_array(text, delimiter)").hint(EXAMPLE);
    let ast::Expr::Function(call) = argument else { return Err(refused()) };
    let Name { text: name, .. } = match call.name.0.as_slice() {
        [ast::ObjectNamePart::Identifier(name)] => name_of(name),
        _ => return Err(refused()),
    };
    let ast::FunctionArguments::List(list) = &call.args else { return Err(refused()) };
    match list.args.as_slice() {
        [
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(text)),
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(delimiter)),
        ] if name == "string_to_array" && list.clauses.is_empty() && list.duplicate_treatment.is_none() => {
            Ok((text.clone(), delimiter.clone()))
        }
        _ => Err(refused()),
    }
}
