//! Columns that are fields of objects: `radio.rssi` is the column of that name, as if it were in quotes, unless an
//! input `radio` is meant.

use datafusion_sql::sqlparser::ast::{self, Expr, Ident};

use crate::error::KnownColumn;
use crate::walk::{NodeMut, change_query};

/// If the planner did not find a name with points and it means one of `columns`, names that column everywhere in a
/// query. Returns false if it means none of them.
pub(crate) fn name_column(name: &str, columns: &[KnownColumn], query: &mut ast::Query) -> bool {
    let means = |column: &&KnownColumn| {
        let input = name.strip_suffix(&column.name).map(|before| before.strip_suffix('.').unwrap_or(before));
        column.name.contains('.')
            && input.is_some_and(|input| input.is_empty() || column.inputs.iter().any(|one| one == input))
    };
    let Some(column) = columns.iter().find(means) else { return false };
    let parts = column.name.split('.').count();
    let mut is_found = false;
    change_query(query, &mut |node, _| {
        let NodeMut::Expr(expression) = node else { return };
        let Expr::CompoundIdentifier(idents) = expression else { return };
        if text(idents) != name {
            return;
        }
        is_found = true;
        let fields = idents.split_off(idents.len() - parts);
        let column = Ident::with_quote_and_span('"', fields[0].span, &column.name);
        match idents.is_empty() {
            true => *expression = Expr::Identifier(column),
            false => idents.push(column),
        }
    });
    is_found
}

/// A name with points, as the planner reads it.
fn text(idents: &[Ident]) -> String {
    let part = |ident: &Ident| match ident.quote_style {
        None => ident.value.to_lowercase(),
        Some(_) => ident.value.clone(),
    };
    idents.iter().map(part).collect::<Vec<_>>().join(".")
}
