//! DataFusion's messages in our words.

use datafusion_common::DataFusionError;

use crate::lexer::lower_first;

/// DataFusion's message without its prefixes and its advice for its own users, and with our names of types.
pub(super) fn plain_message(error: &DataFusionError) -> String {
    plain_text(&error.strip_backtrace())
}

/// Does the same with the text of a message.
pub(super) fn plain_text(text: &str) -> String {
    /// Longer names first: some contain others.
    const TYPES: [(&str, &str); 25] = [
        ("Time64(Nanosecond)", "TIME"),
        ("Time64(ns)", "TIME"),
        ("Interval(MonthDayNano)", "INTERVAL"),
        ("Timestamp(Microsecond, None)", "TIMESTAMP"),
        ("Timestamp(µs)", "TIMESTAMP"),
        ("Timestamp(ns)", "TIMESTAMP"),
        ("Duration(µs)", "INTERVAL"),
        ("Decimal128", "DECIMAL"),
        ("Decimal256", "DECIMAL"),
        ("LargeUtf8", "TEXT"),
        ("Utf8View", "TEXT"),
        ("Utf8", "TEXT"),
        ("UInt64", "BIGINT"),
        ("UInt32", "BIGINT"),
        ("UInt16", "BIGINT"),
        ("UInt8", "BIGINT"),
        ("Int64", "BIGINT"),
        ("Int32", "INT"),
        ("Int16", "SMALLINT"),
        ("Int8", "TINYINT"),
        ("Float64", "DOUBLE"),
        ("Float32", "DOUBLE"),
        ("Float16", "DOUBLE"),
        ("Boolean", "BOOLEAN"),
        ("Date32", "DATE"),
    ];
    if let Some(message) = regular_expression_problem(text) {
        return message;
    }
    let mut message = text.lines().next().unwrap_or_default();
    for prefix in [
        "Error during planning: ",
        "This feature is not implemented: ",
        "Execution error: ",
        "Schema error: ",
        "Arrow error: ",
        "Cast error: ",
        "Parser error: ",
        "Invalid argument error: ",
    ] {
        message = message.strip_prefix(prefix).unwrap_or(message);
    }
    if ["Internal error", "Expr", "Span", "DataFusion", "{ "].into_iter().any(|word| message.contains(word)) {
        return "this expression is not supported".to_owned();
    }
    let mut message = lower_first(message.trim_end_matches('.'));
    if let Some(said) = constant_problem(&message) {
        message = said;
    }
    for (theirs, ours) in TYPES {
        message = message.replace(theirs, ours);
    }
    /// Types that have no name in the language.
    const FOREIGN: [&str; 8] =
        ["Timestamp(", "Duration(", "Interval(", "Decimal", "List(", "Struct(", "Binary", "Dictionary("];
    if FOREIGN.into_iter().any(|name| message.contains(name)) {
        return "this expression is not supported".to_owned();
    }
    message
}

/// DataFusion's messages about constants, in fewer words.
fn constant_problem(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix("error parsing timestamp from ") {
        return Some(format!("{} is not a timestamp", rest.split_once(": ")?.0));
    }
    if let Some(rest) = message.strip_prefix("cannot cast string ") {
        let (text, data_type) = rest.strip_suffix(" type")?.rsplit_once(" to value of ")?;
        return Some(format!("{text} cannot be converted to {data_type}"));
    }
    if message.starts_with("column in ORDER BY must be in GROUP BY") {
        return Some("ORDER BY over aggregates of a SELECT DISTINCT is not supported yet".to_owned());
    }
    if message.contains("The subquery should only return one column") {
        return Some("a subquery that is compared has one column".to_owned());
    }
    if let Some((from, to)) = message.strip_prefix("unsupported CAST from ").and_then(|rest| rest.split_once(" to ")) {
        return Some(format!("{from} cannot be converted to {to}"));
    }
    let overflow = message.strip_prefix("arithmetic overflow: Overflow happened on: ")?;
    Some(format!("the result of {overflow} is out of range"))
}

/// Shortens the message about a regular expression that cannot be read. It has several lines: the expression, the place
/// in it, and what is wrong.
fn regular_expression_problem(text: &str) -> Option<String> {
    let (_, lines) = text.split_once("regex parse error:\n")?;
    let problem = lines.lines().find_map(|line| line.strip_prefix("error: "))?;
    let pattern = lines.lines().next().unwrap_or_default().trim_start();
    // An expression of several lines is shown with line numbers.
    let named = if pattern.starts_with("~~~") { "this".to_owned() } else { format!("'{pattern}'") };
    Some(format!("{named} is not a regular expression: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_in_messages_have_their_names_in_sql() {
        let shown = |message: &str| plain_message(&DataFusionError::Plan(message.to_owned()));
        assert_eq!(
            shown("No function takes Utf8, Float64 and Timestamp(µs)."),
            "no function takes TEXT, DOUBLE and TIMESTAMP"
        );
        assert_eq!(shown("Cannot add Interval(MonthDayNano) to Int64"), "cannot add INTERVAL to BIGINT");
        assert_eq!(shown("Cannot add List(Int64) to Boolean"), "this expression is not supported");
    }
}
