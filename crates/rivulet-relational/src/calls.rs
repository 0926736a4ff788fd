//! Which functions a query calls, so that those that are not there are refused by name before anything is planned.

use datafusion_sql::sqlparser::ast::{self, Spanned};

use crate::walk::{Node, look};

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name in lower case.
    pub name: String,
    /// The line and column where it stands, counted from 1; zeros if that is not known.
    pub place: (u64, u64),
    /// Whether `OVER (...)` follows.
    pub is_over: bool,
}

/// The functions that a query calls, except for those with a syntax of their own.
pub fn calls(query: &ast::Query) -> Vec<Call> {
    let mut found = Vec::new();
    let collected = look(query, &mut |node| {
        if let Node::Expr(ast::Expr::Function(function)) = node {
            let start = function.name.span().start;
            found.push(Call {
                name: function.name.to_string().trim_matches('"').to_lowercase(),
                place: (start.line, start.column),
                is_over: function.over.is_some(),
            });
        }
        Ok(())
    });
    debug_assert!(collected.is_ok(), "nothing is wrong with a call here");
    found
}
