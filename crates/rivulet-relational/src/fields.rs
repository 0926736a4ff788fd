//! Columns that are fields of objects: `radio.rssi` is the column of that name, as if it were in quotes, unless an
//! input `radio` is meant; and `radio` is an object of all these columns.

use datafusion_sql::sqlparser::ast::{self, Expr, Ident};

use crate::error::KnownColumn;
use crate::subscripts::row_of_parts;
use crate::walk::{NodeMut, change_query};

/// If the planner did not find a name with points and it means one of `columns`, names that column everywhere in a
/// query. Returns false if it means none of them.
pub(crate) fn name_column(name: &str, columns: &[KnownColumn], query: &mut ast::Query) -> bool {
    let means = |column: &&KnownColumn| {
        let input = name.strip_suffix(&column.name).map(|before| before.strip_suffix('.').unwrap_or(before));
        column.name.contains('.')
            && input.is_some_and(|input| input.is_empty() || column.inputs.iter().any(|one| one == input))
    };
    let Some(column) = columns.iter().find(means) else { return name_row(name, columns, query) };
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

/// If a name, which may have that of an input before it, is that of a row whose parts are columns, puts them together
/// everywhere in a query. Returns false if it is not.
fn name_row(name: &str, columns: &[KnownColumn], query: &mut ast::Query) -> bool {
    // The first name may be that of an input.
    let behind_input = name.split_once('.').map(|(input, row)| (Some(input), row));
    let is_put = |(input, row)| put_row(name, (input, row), columns, query);
    std::iter::once((None, name)).chain(behind_input).any(is_put)
}

/// Puts the parts of a row, of this input if it is named, together where a query has its name.
fn put_row(name: &str, (input, row): (Option<&str>, &str), columns: &[KnownColumn], query: &mut ast::Query) -> bool {
    let known = columns.iter().filter(|column| input.is_none_or(|input| column.inputs.iter().any(|one| one == input)));
    let known = known.map(|column| column.name.as_str());
    let mut is_found = false;
    let mut put = |expression: &mut Expr| {
        let idents = match &*expression {
            Expr::Identifier(ident) => std::slice::from_ref(ident),
            Expr::CompoundIdentifier(idents) => idents.as_slice(),
            _ => return false,
        };
        if text(idents) != name {
            return false;
        }
        let Some(whole) = row_of_parts(row, &idents[..usize::from(input.is_some())], known.clone()) else {
            return false;
        };
        *expression = whole;
        is_found = true;
        true
    };
    change_query(query, &mut |node, _| match node {
        // A selected row keeps its name.
        NodeMut::Query(query) => {
            let ast::SetExpr::Select(select) = query.body.as_mut() else { return };
            for item in &mut select.projection {
                if let ast::SelectItem::UnnamedExpr(expression) = item
                    && put(expression)
                {
                    let (expr, alias) = (expression.clone(), Ident::with_quote('"', row));
                    *item = ast::SelectItem::ExprWithAlias { expr, alias };
                }
            }
        }
        NodeMut::Expr(expression) => {
            put(expression);
        }
        NodeMut::TableFactor(_) => {}
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
