//! Words that are no names, and names as they are written in SQL.

use std::borrow::Cow;

/// Words that cannot be names without quotes, because they have a meaning where a name may stand.
pub(crate) const RESERVED: [&str; 34] = [
    "select", "from", "where", "group", "by", "having", "order", "limit", "union", "as", "and", "or", "not", "null",
    "case", "when", "then", "else", "end", "create", "true", "false", "in", "is", "like", "between", "cast",
    "interval", "distinct", "join", "on", "exists", "emit", "if",
];

/// A name as it is written in SQL: in double quotes where it needs them.
///
/// ```
/// assert_eq!(rivulet_sql::name_in_sql("kims_ac"), "kims_ac");
/// assert_eq!(rivulet_sql::name_in_sql("Kim's \"AC\""), "\"Kim's \"\"AC\"\"\"");
/// assert_eq!(rivulet_sql::name_in_sql("select"), "\"select\"");
/// ```
pub fn name_in_sql(name: &str) -> Cow<'_, str> {
    let is_plain = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && name.chars().all(|other| other.is_ascii_lowercase() || other.is_ascii_digit() || other == '_')
        && !RESERVED.contains(&name);
    if is_plain { Cow::Borrowed(name) } else { Cow::Owned(format!("\"{}\"", name.replace('"', "\"\""))) }
}
