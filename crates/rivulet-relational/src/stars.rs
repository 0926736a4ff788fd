//! `radio.*` where `radio` is a row and no input: each of its fields, as a column with its name, without those that
//! `EXCEPT (...)` behind it names.

use arrow::datatypes::DataType;
use datafusion_common::DFSchemaRef;
use datafusion_sql::sqlparser::ast::{self, Expr, Ident, SelectItem};
use rivulet_dataflow::held_type;

use crate::error::{KnownColumn, Problem, RelationalError};
use crate::walk::{NodeMut, change_query};

/// The beginning of the planner's refusal of a name before `.*`.
const REFUSAL: &str = "Invalid qualifier ";

/// Spells out every `name.*` of which the planner said that no input has the name, if it is that of a row. `schema_of`
/// plans a query. Returns whether there is any.
///
/// # Errors
/// What stands behind a star names a field that the row does not have.
pub(crate) fn spell_out(
    message: &str,
    query: &mut ast::Query,
    schema_of: impl Fn(&ast::Query) -> Option<DFSchemaRef>,
) -> Result<bool, RelationalError> {
    let Some((_, name)) = message.split_once(REFUSAL) else { return Ok(false) };
    let name = name.trim_end_matches('.');
    let (with, mut is_changed, mut wrong) = (query.with.clone(), false, None);
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
                let found = path_of(item).filter(|(path, _)| text(path) == name);
                let found = found.and_then(|(path, options)| fields(&path).map(|fields| (path, options, fields)));
                let Some((path, options, fields)) = found else { return vec![item.clone()] };
                is_changed = true;
                let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
                let left_out = left_out(options, &names).unwrap_or_else(|error| {
                    wrong.get_or_insert(error);
                    Vec::new()
                });
                let field = |name: &str| {
                    let name = Ident::with_quote_and_span('"', path[0].span, name);
                    let path: Vec<Ident> = path.iter().cloned().chain([name.clone()]).collect();
                    SelectItem::ExprWithAlias { expr: column(&path), alias: name }
                };
                names.into_iter().filter(|one| !left_out.iter().any(|name| name == one)).map(field).collect()
            });
            let items: Vec<SelectItem> = items.collect();
            select.projection = items;
        });
    });
    wrong.map_or(Ok(is_changed), Err)
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

/// What stands before `.*`, and behind it.
fn path_of(item: &SelectItem) -> Option<(Vec<Ident>, &ast::WildcardAdditionalOptions)> {
    use ast::SelectItemQualifiedWildcardKind::ObjectName;
    match item {
        SelectItem::QualifiedWildcard(ObjectName(name), options) => {
            let path: Option<Vec<Ident>> = name.0.iter().map(|part| part.as_ident().cloned()).collect();
            path.map(|path| (path, options))
        }
        _ => None,
    }
}

/// The fields of a row that are left out. The parser takes no other changes behind a star.
fn left_out(options: &ast::WildcardAdditionalOptions, fields: &[&str]) -> Result<Vec<String>, RelationalError> {
    let Some(except) = &options.opt_except else { return Ok(Vec::new()) };
    let named = std::iter::once(&except.first_element).chain(&except.additional_elements).map(|ident| {
        let left_out = text(std::slice::from_ref(ident));
        if fields.contains(&left_out.as_str()) {
            return Ok(left_out);
        }
        let known = |field: &&str| KnownColumn { name: (*field).to_owned(), inputs: Vec::new() };
        let start = ident.span.start;
        Err(RelationalError {
            problem: Problem::UnknownColumn(left_out, fields.iter().map(known).collect()),
            place: (start.line > 0).then_some((start.line, start.column)),
            hint: None,
        })
    });
    named.collect()
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
