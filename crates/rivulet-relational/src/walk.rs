//! Walks over syntax trees. The trees have hundreds of types, and each walk is compiled for all of them. So there is
//! one walk that looks and one that changes; what they do is behind a pointer.

use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{Expr, Query, TableFactor, Visit, VisitMut, Visitor, VisitorMut};

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
    match query.visit(&mut Look(see)) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// The same for an expression and its parts.
pub(crate) fn look_at_expression(
    expression: &Expr,
    see: &mut dyn FnMut(Node<'_>) -> Result<(), RelationalError>,
) -> Result<(), RelationalError> {
    match expression.visit(&mut Look(see)) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
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
