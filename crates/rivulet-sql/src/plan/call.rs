//! The name of a call and the number of its arguments.

use std::ops::RangeInclusive;

use datafusion_sql::sqlparser::ast;

use crate::parse::name_of;
use crate::{Position, SqlError};

/// The name of the function in a checked call.
pub(super) fn call_name(call: &ast::Function) -> String {
    match call.name.0.as_slice() {
        [ast::ObjectNamePart::Identifier(identifier)] => name_of(identifier).text,
        _ => String::new(),
    }
}

/// Fails if the call `name`, which is written like `usage`, has the wrong number of arguments.
pub(super) fn check_argument_count(
    name: &str,
    found: usize,
    takes: RangeInclusive<usize>,
    usage: &str,
    position: Position,
) -> Result<(), SqlError> {
    if takes.contains(&found) {
        return Ok(());
    }
    let (least, most) = takes.into_inner();
    let takes = if least == most { format!("{least}") } else { format!("{least} or {most}") };
    let message = format!("{name} takes {takes} argument{}, and {}", plural(most), given(found));
    Err(SqlError::new(position, message).hint(usage_hint(usage)))
}

pub(super) fn usage_hint(usage: &str) -> String {
    format!("write for example {usage}")
}

/// `1 is given`, `2 are given`, for messages.
pub(super) fn given(number: usize) -> String {
    format!("{number} {} given", if number == 1 { "is" } else { "are" })
}

fn plural(number: usize) -> &'static str {
    if number == 1 { "" } else { "s" }
}
