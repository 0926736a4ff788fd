//! Walks over syntax trees. The trees have hundreds of types, and each walk is compiled for all of them. So there is
//! one walk that looks and one that changes; what they do is behind a pointer.

use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{Expr, Ident, Query, TableFactor, Visit, VisitMut, Visitor, VisitorMut};

use crate::error::RelationalError;

/// A node that is shown.
pub(crate) enum Node<'a> {
    Query(&'a Query),
    TableFactor(&'a TableFactor),
    Expr(&'a Expr),
}

/// Shows every query, table factor and expression of a query, parents first, until `look` returns an error.
pub(crate) fn look(
    query: &Query,
    see: &mut dyn FnMut(Node<'_>) -> Result<(), RelationalError>,
) -> Result<(), RelationalError> {
    query.visit(&mut Look(see)).break_value().map_or(Ok(()), Err)
}

/// The same for an expression and its parts.
pub(crate) fn look_at_expression(
    expression: &Expr,
    see: &mut dyn FnMut(Node<'_>) -> Result<(), RelationalError>,
) -> Result<(), RelationalError> {
    expression.visit(&mut Look(see)).break_value().map_or(Ok(()), Err)
}

/// A name as it is written, and its place.
pub(crate) struct Written {
    pub(crate) text: String,
    pub(crate) place: Option<(u64, u64)>,
}

/// The first name of a column in a query for which `is_it` holds.
pub(crate) fn first_name(query: &Query, is_it: impl Fn(&[Ident]) -> bool) -> Option<Written> {
    let mut found = None;
    see(query, &mut |node| {
        let idents = match node {
            Node::Expr(Expr::Identifier(ident)) => std::slice::from_ref(ident),
            Node::Expr(Expr::CompoundIdentifier(idents)) => idents,
            _ => return,
        };
        if found.is_none() && is_it(idents) {
            let place = idents.first().map(|ident| (ident.span.start.line, ident.span.start.column));
            found = Some(Written { text: text(idents), place: place.filter(|(line, _)| *line > 0) });
        }
    });
    found
}

/// The parts of a name, with dots.
pub(crate) fn text(idents: &[Ident]) -> String {
    idents.iter().map(|ident| ident.value.as_str()).collect::<Vec<_>>().join(".")
}

/// Calls `see` for every part of a query.
pub(crate) fn see(query: &Query, see: &mut dyn FnMut(Node<'_>)) {
    let seen = look(query, &mut |node| {
        see(node);
        Ok(())
    });
    debug_assert!(seen.is_ok(), "nothing is wrong with a look");
}

struct Look<'f>(&'f mut dyn FnMut(Node<'_>) -> Result<(), RelationalError>);

impl Look<'_> {
    fn see(&mut self, node: Node<'_>) -> ControlFlow<RelationalError> {
        match (self.0)(node) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl Visitor for Look<'_> {
    type Break = RelationalError;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<RelationalError> {
        self.see(Node::Query(query))
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<RelationalError> {
        self.see(Node::TableFactor(factor))
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<RelationalError> {
        self.see(Node::Expr(expression))
    }
}

/// A node that may be changed.
pub(crate) enum NodeMut<'a> {
    /// A query, before its parts.
    Query(&'a mut Query),
    /// An item of FROM, before its parts.
    TableFactor(&'a mut TableFactor),
    /// An expression, after its parts.
    Expr(&'a mut Expr),
}

/// Shows every query, table factor and expression of a query, to be changed. An expression is shown with the number of
/// queries around it.
pub(crate) fn change_query(query: &mut Query, change: &mut dyn FnMut(NodeMut<'_>, usize)) {
    let _ = VisitMut::visit(query, &mut Change { change, depth: 0 });
}

/// The same for an expression and its parts.
pub(crate) fn change_expression(expression: &mut Expr, change: &mut dyn FnMut(NodeMut<'_>, usize)) {
    let _ = VisitMut::visit(expression, &mut Change { change, depth: 0 });
}

struct Change<'f> {
    change: &'f mut dyn FnMut(NodeMut<'_>, usize),
    depth: usize,
}

impl VisitorMut for Change<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        (self.change)(NodeMut::Query(query), self.depth);
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        (self.change)(NodeMut::TableFactor(factor), self.depth);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        (self.change)(NodeMut::Expr(expression), self.depth);
        ControlFlow::Continue(())
    }
}
