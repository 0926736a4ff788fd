//! `radio.*` where `radio` is a row and no input: each of its fields, as a column with its name.

use arrow::datatypes::DataType;
use datafusion_common::DFSchemaRef;
use datafusion_sql::sqlparser::ast::{self, Expr, Ident, SelectItem};
use rivulet_dataflow::held_type;

use crate::walk::{NodeMut, change_query};

/// The beginning of the planner's refusal of a name before `.*`.
const REFUSAL: &str = "Invalid qualifier ";

/// Spells out every `name.*` of which the planner said that no input has the name, if it is that of a row. `schema_of`
/// plans a query. Returns whether there is any.
pub(crate) fn spell_out(
    message: &str,
    query: &mut ast::Query,
    schema_of: impl Fn(&ast::Query) -> Option<DFSchemaRef>,
) -> bool {
    let Some((_, name)) = message.split_once(REFUSAL) else { return false };
    let name = name.trim_end_matches('.');
    let (with, mut is_changed) = (query.with.clone(), false);
    change_query(query, &mut |node, _| {
        let NodeMut::Query(query) = node else { return };
        // What the SELECT is beside its columns does not change what the row is.
        let mut probe = query.clone();
        probe.with = probe.with.or_else(|| with.clone());
        (probe.order_by, probe.limit_clause, probe.fetch) = (None, None, None);
        change_selects(&mut query.body, &mut |select| {
            let fields = |path: &[Ident]| {
                let (mut probe, mut alone) = (probe.clone(), select.clone());
                let row = SelectItem::ExprWithAlias { expr: column(path), alias: Ident::with_quote('"', "row") };
                alone.projection = vec![row];
                (alone.distinct, alone.having, alone.qualify) = (None, None, None);
                alone.group_by = ast::GroupByExpr::Expressions(Vec::new(), Vec::new());
                *probe.body = ast::SetExpr::Select(Box::new(alone));
                match held_type(schema_of(&probe)?.field(0))? {
                    DataType::Struct(fields) => Some(fields),
                    _ => None,
                }
            };
            let items = select.projection.iter().flat_map(|item| {
                let found = path_of(item).filter(|path| text(path) == name);
                let found = found.and_then(|path| fields(&path).map(|fields| (path, fields)));
                let Some((path, fields)) = found else { return vec![item.clone()] };
                is_changed = true;
                let field = |name: &str| {
                    let name = Ident::with_quote_and_span('"', path[0].span, name);
                    let path: Vec<Ident> = path.iter().cloned().chain([name.clone()]).collect();
                    SelectItem::ExprWithAlias { expr: column(&path), alias: name }
                };
                fields.iter().map(|one| field(one.name())).collect()
            });
            let items: Vec<SelectItem> = items.collect();
            select.projection = items;
        });
    });
    is_changed
}

fn change_selects(body: &mut ast::SetExpr, change: &mut impl FnMut(&mut ast::Select)) {
    match body {
        ast::SetExpr::Select(select) => change(select),
        ast::SetExpr::SetOperation { left, right, .. } => {
            change_selects(left, change);
            change_selects(right, change);
        }
        // The walk comes to it by itself.
        _ => {}
    }
}

/// What stands before `.*` without anything behind it.
fn path_of(item: &SelectItem) -> Option<Vec<Ident>> {
    use ast::SelectItemQualifiedWildcardKind::ObjectName;
    match item {
        SelectItem::QualifiedWildcard(ObjectName(name), options) if options.opt_except.is_none() => {
            name.0.iter().map(|part| part.as_ident().cloned()).collect()
        }
        _ => None,
    }
}

fn column(path: &[Ident]) -> Expr {
    match path {
        [alone] => Expr::Identifier(alone.clone()),
        path => Expr::CompoundIdentifier(path.to_vec()),
    }
}

fn text(path: &[Ident]) -> String {
    let name = |ident: &Ident| match ident.quote_style {
        None => ident.value.to_lowercase(),
        Some(_) => ident.value.clone(),
    };
    path.iter().map(name).collect::<Vec<_>>().join(".")
}
