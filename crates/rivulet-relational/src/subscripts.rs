//! An element of an array, `array[1]`, spelled out as the call of a function.

use datafusion_sql::sqlparser::ast::{AccessExpr, Expr, Subscript};

use crate::times::{call, taken};

/// Whether this is all that may stand behind an array.
pub(crate) fn is_elements(chain: &[AccessExpr]) -> bool {
    chain.iter().all(|access| matches!(access, AccessExpr::Subscript(Subscript::Index { .. })))
}

/// Spells out one expression.
pub(crate) fn spell_out(expression: &mut Expr) {
    if let Expr::CompoundFieldAccess { root, access_chain } = expression
        && is_elements(access_chain)
    {
        let places = std::mem::take(access_chain).into_iter().filter_map(|access| match access {
            AccessExpr::Subscript(Subscript::Index { index }) => Some(index),
            _ => None,
        });
        *expression = places.fold(taken(root), |array, place| call("array_element", vec![array, place]));
    }
}
