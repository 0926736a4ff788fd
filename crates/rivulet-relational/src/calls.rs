//! Which functions a query calls, so that unknown functions are refused by name before anything is planned.

use datafusion_sql::sqlparser::ast::{self, Spanned};

use crate::walk::{Node, look};

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name in lower case.
    pub name: String,
    /// The line and column of the call, counted from 1; zeros if that is not known.
    pub place: (u64, u64),
    /// Whether `OVER (...)` follows.
    pub is_over: bool,
    /// Whether `FILTER (...)` or `WITHIN GROUP (...)` follows.
    pub is_filtered: bool,
    /// Whether `DISTINCT` stands before the arguments.
    pub is_distinct: bool,
    /// Whether there are arguments.
    pub has_arguments: bool,
    /// Whether an argument is `*`.
    pub has_star: bool,
}

/// Returns the names in FROM: the parts of each name, and its line and column. Names that the query defines in WITH are
/// among them.
pub fn relations(query: &ast::Query) -> Vec<(Vec<String>, (u64, u64))> {
    let mut found = Vec::new();
    let collected = look(query, &mut |node| {
        if let Node::TableFactor(ast::TableFactor::Table { name, args: None, .. }) = node {
            let parts = name.0.iter().filter_map(ast::ObjectNamePart::as_ident);
            let parts = parts.map(|part| match part.quote_style {
                None => part.value.to_lowercase(),
                Some(_) => part.value.clone(),
            });
            let start = name.span().start;
            found.push((parts.collect(), (start.line, start.column)));
        }
        Ok(())
    });
    debug_assert!(collected.is_ok(), "nothing is wrong with a name here");
    found
}

/// Returns the calls of functions in a query, except for functions with a syntax of their own.
pub fn calls(query: &ast::Query) -> Vec<Call> {
    let mut found = Vec::new();
    let collected = look(query, &mut |node| {
        if let Node::Expr(ast::Expr::Function(function)) = node {
            let start = function.name.span().start;
            found.push(Call {
                name: function.name.to_string().trim_matches('"').to_lowercase(),
                place: (start.line, start.column),
                is_over: function.over.is_some(),
                is_filtered: function.filter.is_some() || !function.within_group.is_empty(),
                has_arguments: matches!(
                    &function.args,
                    ast::FunctionArguments::List(list) if !list.args.is_empty()
                ),
                has_star: matches!(
                    &function.args,
                    ast::FunctionArguments::List(list) if list.args.iter().any(|argument| matches!(
                        argument,
                        ast::FunctionArg::Unnamed(
                            ast::FunctionArgExpr::Wildcard | ast::FunctionArgExpr::QualifiedWildcard(_)
                        )
                    ))
                ),
                is_distinct: matches!(
                    &function.args,
                    ast::FunctionArguments::List(list)
                        if matches!(list.duplicate_treatment, Some(ast::DuplicateTreatment::Distinct))
                ),
            });
        }
        Ok(())
    });
    debug_assert!(collected.is_ok(), "nothing is wrong with a call here");
    found
}
