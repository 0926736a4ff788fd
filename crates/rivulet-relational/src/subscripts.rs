//! Parts of values, and values of parts, spelled out as the calls of functions: `array[1]`, `map['key']`,
//! `points[1].x`, `ROW(a, b)`.

use datafusion_sql::sqlparser::ast::{
    AccessExpr, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Subscript,
};

use crate::times::{call, taken, text};

/// The function of a part of a value.
pub(crate) const PART: &str = "array_element";

/// The function of an object with these fields.
pub(crate) const ROW: &str = "named_struct";

/// Whether this is all that may stand behind a value with parts.
pub(crate) fn is_parts(chain: &[AccessExpr]) -> bool {
    chain.iter().all(|access| {
        matches!(access, AccessExpr::Subscript(Subscript::Index { .. }) | AccessExpr::Dot(Expr::Identifier(_)))
    })
}

/// Spells out one expression.
pub(crate) fn spell_out(expression: &mut Expr) {
    match expression {
        Expr::CompoundFieldAccess { root, access_chain } if is_parts(access_chain) => {
            let chain = std::mem::take(access_chain);
            *expression = chain.into_iter().fold(taken(root), |whole, access| match (whole, access) {
                (whole, AccessExpr::Subscript(Subscript::Index { index })) => call(PART, vec![whole, index]),
                // A name before all numbers and keys may be that of a column.
                (Expr::Identifier(first), AccessExpr::Dot(Expr::Identifier(name))) => {
                    Expr::CompoundIdentifier(vec![first, name])
                }
                (Expr::CompoundIdentifier(mut names), AccessExpr::Dot(Expr::Identifier(name))) => {
                    names.push(name);
                    Expr::CompoundIdentifier(names)
                }
                (whole, AccessExpr::Dot(Expr::Identifier(name))) => call(PART, vec![whole, text(&name_of(&name))]),
                (whole, _) => whole,
            });
        }
        Expr::Function(function) => {
            let name = function.name.to_string().to_lowercase();
            let FunctionArguments::List(list) = &mut function.args else { return };
            let is_plain = list.clauses.is_empty() && list.duplicate_treatment.is_none() && function.over.is_none();
            if !matches!(name.as_str(), "row" | "struct") || !is_plain {
                return;
            }
            let values = list.args.iter_mut().map(|argument| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
                _ => None,
            });
            let Some(values) = values.collect::<Option<Vec<_>>>() else { return };
            let fields = values.into_iter().enumerate().flat_map(|(place, value)| {
                let name = match &*value {
                    Expr::Identifier(name) => Some(name),
                    Expr::CompoundIdentifier(names) => names.last(),
                    _ => None,
                };
                // The last part of a column that is one.
                let name = name.map(name_of).and_then(|name| name.rsplit('.').next().map(str::to_owned));
                [text(&name.unwrap_or_else(|| format!("c{place}"))), taken(value)]
            });
            *expression = call(ROW, fields.collect());
        }
        _ => {}
    }
}

/// Puts the parts of the column `name`, which are columns themselves (`"radio.rssi"`), together into one object: what
/// the name means where it is no column. `None` if it has no parts. `input` stands before the names of the columns.
pub fn row_of_parts<'c>(name: &str, input: &[Ident], columns: impl Iterator<Item = &'c str> + Clone) -> Option<Expr> {
    let prefix = format!("{name}.");
    let mut fields: Vec<&str> = Vec::new();
    for rest in columns.clone().filter_map(|column| column.strip_prefix(&prefix)) {
        let field = rest.split('.').next().unwrap_or(rest);
        if !fields.contains(&field) {
            fields.push(field);
        }
    }
    let values = fields.iter().flat_map(|field| {
        let part = format!("{prefix}{field}");
        let value = match columns.clone().any(|column| column == part) {
            true => {
                let column = Ident::with_quote('"', &part);
                match input {
                    [] => Some(Expr::Identifier(column)),
                    input => Some(Expr::CompoundIdentifier(input.iter().cloned().chain([column]).collect())),
                }
            }
            false => row_of_parts(&part, input, columns.clone()),
        };
        value.map(|value| [text(field), value])
    });
    let values: Vec<Expr> = values.flatten().collect();
    (!values.is_empty()).then(|| call(ROW, values))
}

/// Makes a value's part: the member of a map or row with this name.
pub fn member_of(whole: Expr, name: &Ident) -> Expr {
    call(PART, vec![whole, text(&name_of(name))])
}

fn name_of(name: &Ident) -> String {
    match name.quote_style {
        None => name.value.to_lowercase(),
        Some(_) => name.value.clone(),
    }
}
