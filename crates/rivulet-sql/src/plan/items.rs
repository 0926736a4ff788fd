//! The columns of a SELECT as written: their names, texts and positions, with `*` expanded.

use arrow::datatypes::{DataType, Schema};
use datafusion_sql::sqlparser::ast;
use rivulet_dataflow::held_type;

use super::check::Scope;
use super::walk::start;
use crate::address::list;
use crate::parse::name_of;
use crate::statement::{Name, Select};
use crate::{Position, SqlError};

/// The most columns a SELECT may have.
const RESULTS_MAX: usize = 1024;

/// A column of the SELECT: its name, its expression, its text, and its position.
pub(super) struct Item {
    pub(super) name: String,
    pub(super) expression: ast::Expr,
    /// The text as written, with the name.
    pub(super) text: String,
    pub(super) position: Position,
}

impl Item {
    fn new(name: String, expression: &ast::Expr, position: Position) -> Self {
        let is_column = matches!(expression, ast::Expr::Identifier(column) if name_of(column).text == name);
        let text = if is_column { name.clone() } else { format!("{expression} AS {name}") };
        Self { name, expression: expression.clone(), text, position }
    }
}

/// Returns the columns of the SELECT with their names. `*` becomes `columns`: those of the input and of the tables.
pub(super) fn items(
    projection: &[ast::SelectItem],
    fallback: Position,
    scope: &Scope<'_>,
    columns: &Schema,
) -> Result<Vec<Item>, SqlError> {
    let declared = || columns.fields().iter().map(|field| field.name().as_str());
    let mut items: Vec<Item> = Vec::new();
    let mut push = |item: Item| {
        if items.iter().any(|other| other.name == item.name) {
            return Err(SqlError::new(item.position, format!("two columns of the SELECT are called '{}'", item.name))
                .hint("give one of them another name with AS"));
        }
        items.push(item);
        if items.len() > RESULTS_MAX {
            return Err(SqlError::new(fallback, format!("a SELECT has at most {RESULTS_MAX} columns")));
        }
        Ok(())
    };
    for (index, item) in projection.iter().enumerate() {
        match item {
            ast::SelectItem::UnnamedExpr(expression) => {
                let position = start(expression).or(fallback);
                let name = natural_name(expression).unwrap_or_else(|| format!("column{}", index + 1));
                push(Item::new(name, expression, position))?;
            }
            ast::SelectItem::ExprWithAlias { expr, alias } => {
                let Name { text, position } = name_of(alias);
                if text.is_empty() {
                    return Err(SqlError::new(position, "a column needs a name"));
                }
                let position = start(expr).or(position);
                push(Item::new(text, expr, position))?;
            }
            ast::SelectItem::Wildcard(options) => {
                let position = Position::from(options.wildcard_token.0.span).or(fallback);
                check_wildcard(options, scope, position)?;
                for name in without(options, declared(), scope)? {
                    let identifier = ast::Ident::with_quote_and_span('"', options.wildcard_token.0.span, name);
                    push(Item::new(scope.plain_name(name).to_owned(), &ast::Expr::Identifier(identifier), position))?;
                }
            }
            ast::SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(table), options) => {
                let span = ast::Spanned::span(table);
                let named = match table.0.as_slice() {
                    [ast::ObjectNamePart::Identifier(identifier)] => Some(name_of(identifier).text),
                    _ => None,
                };
                let is_table = scope.tables.iter().any(|table| Some(&table.name) == named.as_ref());
                if !is_table && named.as_deref() != Some(scope.alias.unwrap_or(scope.input)) {
                    if let Some((path, fields)) = row_of(table, scope, columns) {
                        check_wildcard(options, scope, span.into())?;
                        for name in without(options, fields.iter().map(String::as_str), scope)? {
                            let field = ast::Ident::with_quote_and_span('"', span, name);
                            let path = path.iter().cloned().chain([field]).collect();
                            push(Item::new(name.to_owned(), &ast::Expr::CompoundIdentifier(path), span.into()))?;
                        }
                        continue;
                    }
                    return Err(SqlError::new(span, format!("unknown input '{table}'"))
                        .did_you_mean(Some(scope.alias.unwrap_or(scope.input))));
                }
                check_wildcard(options, scope, span.into())?;
                let table = named.filter(|_| is_table);
                let of_table = declared().filter(|name| scope.table_of(name) == table.as_deref());
                for name in without(options, of_table, scope)? {
                    let identifier = ast::Ident::with_quote_and_span('"', span, name);
                    push(Item::new(
                        scope.plain_name(name).to_owned(),
                        &ast::Expr::Identifier(identifier),
                        span.into(),
                    ))?;
                }
            }
            other => {
                let position = Position::from(ast::Spanned::span(other)).or(fallback);
                return Err(SqlError::new(position, "this form of a column is not supported yet"));
            }
        }
    }
    Ok(items)
}

/// The row that a name before `.*` is, if it is one, and its fields: those of a value, or the columns that are its
/// parts.
fn row_of(name: &ast::ObjectName, scope: &Scope<'_>, columns: &Schema) -> Option<(Vec<ast::Ident>, Vec<String>)> {
    let path: Vec<ast::Ident> = name.0.iter().map(|part| part.as_ident().cloned()).collect::<Option<_>>()?;
    let names: Vec<String> = path.iter().map(|ident| name_of(ident).text).collect();
    let is_own = names.len() > 1 && names[0] == scope.alias.unwrap_or(scope.input);
    let row = names[usize::from(is_own)..].join(".");
    let column = columns.fields().iter().find(|column| *column.name() == row);
    if let Some(DataType::Struct(fields)) = column.and_then(|column| held_type(column)) {
        return Some((path, fields.iter().map(|field| field.name().clone()).collect()));
    }
    let mut fields: Vec<String> = Vec::new();
    for column in columns.fields() {
        let part = column.name().strip_prefix(&row).and_then(|rest| rest.strip_prefix('.'));
        let field = part.and_then(|part| part.split('.').next()).filter(|field| !fields.iter().any(|one| one == field));
        fields.extend(field.map(str::to_owned));
    }
    (!fields.is_empty()).then_some((path, fields))
}

fn check_wildcard(
    options: &ast::WildcardAdditionalOptions,
    scope: &Scope<'_>,
    position: Position,
) -> Result<(), SqlError> {
    let plain = options.opt_ilike.is_none()
        && options.opt_exclude.is_none()
        && options.opt_replace.is_none()
        && options.opt_rename.is_none();
    if !plain {
        return Err(SqlError::new(position, "'*' with changes is not supported yet").hint("name the columns"));
    }
    if scope.windowed {
        return Err(SqlError::new(position, "'*' cannot be selected from a window")
            .hint("select aggregates, the keys of GROUP BY, window_start and window_end"));
    }
    Ok(())
}

/// The columns that `*` stands for, without those that `EXCEPT (...)` behind it names.
pub(super) fn without<'c>(
    options: &ast::WildcardAdditionalOptions,
    columns: impl Iterator<Item = &'c str>,
    scope: &Scope<'_>,
) -> Result<Vec<&'c str>, SqlError> {
    let mut columns: Vec<&str> = columns.collect();
    let Some(except) = &options.opt_except else { return Ok(columns) };
    let names: Vec<&str> = columns.iter().map(|column| scope.plain_name(column)).collect();
    for name in [&except.first_element].into_iter().chain(&except.additional_elements).map(name_of) {
        if !names.contains(&name.text.as_str()) {
            let hint = format!("'*' has the columns {}", list(&names));
            let error = SqlError::new(name.position, format!("unknown column '{name}'"));
            return Err(error.suggest(&name.text, names, hint));
        }
        columns.retain(|column| scope.plain_name(column) != name.text);
    }
    Ok(columns)
}

pub(super) fn item_expression(item: &ast::SelectItem) -> Option<(&ast::Expr, Option<&ast::Ident>)> {
    match item {
        ast::SelectItem::UnnamedExpr(expression) => Some((expression, None)),
        ast::SelectItem::ExprWithAlias { expr, alias } => Some((expr, Some(alias))),
        _ => None,
    }
}

/// The expression that has the alias `name` in the SELECT.
pub(super) fn aliased<'a>(select: &'a Select, name: &str) -> Option<&'a ast::Expr> {
    select
        .projection
        .iter()
        .filter_map(item_expression)
        .find_map(|(expression, alias)| alias.filter(|alias| name_of(alias).text == name).map(|_| expression))
}

/// The name of a column without AS: that of its column or function.
pub(super) fn natural_name(expression: &ast::Expr) -> Option<String> {
    match expression {
        ast::Expr::Identifier(identifier) => Some(name_of(identifier).text),
        ast::Expr::CompoundIdentifier(identifiers) => identifiers.last().map(|last| name_of(last).text),
        ast::Expr::Value(value) => match &value.value {
            ast::Value::Placeholder(name) => Some(name.trim_start_matches('$').to_lowercase()),
            _ => None,
        },
        ast::Expr::Function(function) => match function.name.0.as_slice() {
            [ast::ObjectNamePart::Identifier(identifier)] => Some(name_of(identifier).text),
            _ => None,
        },
        ast::Expr::Nested(inner) | ast::Expr::Cast { expr: inner, .. } => natural_name(inner),
        ast::Expr::Case { .. } => Some("case".to_owned()),
        _ => None,
    }
}
