//! Inputs that have the name of a column: `FROM a AS v WHERE EXISTS (SELECT 1 FROM b WHERE b.id = v.id)`, where `b` has
//! a column `v`.
//!
//! DataFusion's planner looks for a column of that name in the subquery before it looks for an input of that name in
//! the queries around it. Columns have no parts, so the input is meant. It gets a name that no column has, everywhere
//! in the query. A name that is hidden by the same name further inside is still hidden.

use datafusion_sql::sqlparser::ast::{self, Ident, ObjectName, ObjectNamePart, SelectItem, TableFactor};
use datafusion_sql::sqlparser::tokenizer::Span;

use crate::check::name_of;
use crate::error::RelationalError;
use crate::walk::{NodeMut, change_expression, change_query};

/// The new names of inputs, and their names in the query.
#[derive(Default)]
pub(crate) struct OtherNames(Vec<(String, String)>);

impl OtherNames {
    /// Gives another name to all inputs of a query that are called `name`. Returns false if there is none.
    pub(crate) fn give(&mut self, name: &str, query: &mut ast::Query) -> bool {
        // An input that was renamed is found, so the name means a part of one of its columns.
        if self.0.iter().any(|(given, _)| given == name) {
            return false;
        }
        let text = query.to_string();
        let mut other = format!("${name}");
        while text.contains(&other) {
            other.insert(0, '$');
        }
        let (mut renamed, mut rename) = (query.clone(), Rename { from: name, to: &other, is_found: false });
        change_query(&mut renamed, &mut |node, _| rename.change(node));
        let is_found = rename.is_found;
        if is_found {
            *query = renamed;
            self.0.push((other, name.to_owned()));
        }
        is_found
    }

    /// Returns the error with the names as they are written in the query.
    pub(crate) fn taken_back(&self, error: RelationalError) -> RelationalError {
        // The last name first: it may replace an earlier new name.
        self.0.iter().rev().fold(error, |error, (other, name)| error.with_names(|text| text.replace(other, name)))
    }
}

struct Rename<'n> {
    from: &'n str,
    to: &'n str,
    is_found: bool,
}

impl Rename<'_> {
    fn change(&mut self, node: NodeMut<'_>) {
        match node {
            NodeMut::Query(query) => self.selects(&mut query.body),
            NodeMut::TableFactor(factor) => self.input(factor),
            NodeMut::Expr(expression) => {
                self.column(expression);
            }
        }
    }

    fn selects(&self, body: &mut ast::SetExpr) {
        match body {
            ast::SetExpr::Select(select) => select.projection.iter_mut().for_each(|item| self.item(item)),
            ast::SetExpr::SetOperation { left, right, .. } => {
                self.selects(left);
                self.selects(right);
            }
            _ => {}
        }
    }

    /// A selected item keeps its name: the name of a column is without its input, and any other name is the text of the
    /// item.
    fn item(&self, item: &mut SelectItem) {
        use ast::SelectItemQualifiedWildcardKind::ObjectName as Star;
        match item {
            SelectItem::QualifiedWildcard(Star(ObjectName(parts)), _) => {
                if let [ObjectNamePart::Identifier(input)] = parts.as_mut_slice() {
                    self.ident(input);
                }
            }
            SelectItem::UnnamedExpr(expression) if !matches!(expression, ast::Expr::CompoundIdentifier(_)) => {
                let written = expression.to_string();
                let mut is_changed = false;
                change_expression(expression, &mut |node, depth| {
                    if let (NodeMut::Expr(part), 0) = (node, depth) {
                        is_changed |= self.column(part);
                    }
                });
                if is_changed {
                    let alias = Ident::with_quote('"', written);
                    *item = SelectItem::ExprWithAlias { expr: expression.clone(), alias };
                }
            }
            _ => {}
        }
    }

    fn input(&mut self, factor: &mut TableFactor) {
        match factor {
            TableFactor::Table { name, alias: alias @ None, args: None, .. } if name_of(name) == self.from => {
                let name = self.other(name.0.first().and_then(ObjectNamePart::as_ident));
                *alias = Some(ast::TableAlias { explicit: true, name, columns: Vec::new(), at: None });
                self.is_found = true;
            }
            TableFactor::Table { alias: Some(alias), .. }
            | TableFactor::Derived { alias: Some(alias), .. }
            | TableFactor::TableFunction { alias: Some(alias), .. }
            | TableFactor::Function { alias: Some(alias), .. }
            | TableFactor::NestedJoin { alias: Some(alias), .. } => self.is_found |= self.ident(&mut alias.name),
            _ => {}
        }
    }

    /// Renames the input of a column. Returns whether the expression is a column of such an input.
    fn column(&self, expression: &mut ast::Expr) -> bool {
        match expression {
            ast::Expr::CompoundIdentifier(idents) => self.ident(&mut idents[0]),
            _ => false,
        }
    }

    fn ident(&self, ident: &mut Ident) -> bool {
        let is_it = match ident.quote_style {
            None => ident.value.to_lowercase() == self.from,
            Some(_) => ident.value == self.from,
        };
        if is_it {
            *ident = self.other(Some(ident));
        }
        is_it
    }

    /// The new name, at the place of the written one.
    fn other(&self, written: Option<&Ident>) -> Ident {
        let span = written.map_or_else(Span::empty, |ident| ident.span);
        Ident::with_quote_and_span('"', span, self.to)
    }
}
