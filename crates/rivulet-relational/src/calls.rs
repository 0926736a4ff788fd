//! Which functions a query calls, so that unknown functions are refused by name before anything is planned.

use datafusion_sql::sqlparser::ast::{self, Spanned};

use crate::functions::WINDOWS;
use crate::matches::ROW_PATTERN;
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

/// The parts of a name in FROM, as the planner looks it up, and its line and column.
type Relation = (Vec<String>, (u64, u64));

/// Returns the names in FROM: the parts of each name, and its line and column. Names that the query defines in WITH are
/// among them, and so are those that windows and row patterns read: whoever asks for rights must know all of them.
pub fn relations(query: &ast::Query) -> Vec<Relation> {
    let mut found = Vec::new();
    let collected = look(query, &mut |node| {
        if let Node::TableFactor(ast::TableFactor::Table { name, args, .. }) = node {
            match args {
                None => found.push(relation(name.0.iter().filter_map(ast::ObjectNamePart::as_ident))),
                Some(args) => add_arguments(name, &args.args, &mut found),
            }
        }
        Ok(())
    });
    debug_assert!(collected.is_ok(), "nothing is wrong with a name here");
    found
}

/// A name as the planner spells it.
fn relation<'i>(parts: impl Iterator<Item = &'i ast::Ident>) -> Relation {
    let mut place = None;
    let parts = parts.map(|part| {
        place = place.or(Some((part.span.start.line, part.span.start.column)));
        match part.quote_style {
            None => part.value.to_ascii_lowercase(),
            Some(_) => part.value.clone(),
        }
    });
    (parts.collect(), place.unwrap_or_default())
}

/// Adds the relations that are arguments of a window or a row pattern. Subqueries among them are found by themselves.
fn add_arguments(name: &ast::ObjectName, arguments: &[ast::FunctionArg], found: &mut Vec<Relation>) {
    let name = name.to_string().to_lowercase();
    if name != ROW_PATTERN && !WINDOWS.contains(&name.as_str()) {
        return;
    }
    for argument in arguments {
        let (ast::FunctionArg::Named { arg, .. }
        | ast::FunctionArg::ExprNamed { arg, .. }
        | ast::FunctionArg::Unnamed(arg)) = argument;
        if let ast::FunctionArgExpr::Expr(value) = arg {
            add_argument(value, found);
        }
    }
}

fn add_argument(value: &ast::Expr, found: &mut Vec<Relation>) {
    match value {
        ast::Expr::Identifier(name) => found.push(relation(std::iter::once(name))),
        ast::Expr::CompoundIdentifier(names) => found.push(relation(names.iter())),
        ast::Expr::Nested(inner) => add_argument(inner, found),
        ast::Expr::Function(ast::Function { name, args: ast::FunctionArguments::List(list), .. }) => {
            add_arguments(name, &list.args, found);
        }
        _ => {}
    }
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
