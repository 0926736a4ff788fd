//! Statements as they may be shown: what options of sources and sinks hold that is secret does not stand in them.

use std::borrow::Cow;

use crate::lexer;
use crate::statement::Name;
use crate::{Literal, Position, Statement, parse_stored};

/// The text of a `CREATE SOURCE` or `CREATE SINK` with the values of its options as `shown` gives them, by connector,
/// whether it is a sink, name and value. A text that is not understood is not shown at all.
pub fn shown_statement(text: &str, shown: impl for<'v> Fn(&str, bool, &str, &'v str) -> Cow<'v, str>) -> String {
    let statement = parse_stored(text).ok().map(|stored| stored.statement);
    let (address, options, is_sink) = match &statement {
        Some(Statement::CreateSource(create)) if create.unread.is_none() => (&create.address, &create.options, false),
        Some(Statement::CreateSink(create)) if create.unread.is_none() => (&create.address, &create.options, true),
        _ => return "(this version does not understand the statement)".into(),
    };
    let connector = address.split(':').next().unwrap_or_default();
    let hidden = |(name, value, position): &(Name, Literal, Position)| {
        let value = match value {
            Literal::Text(text) => text.clone(),
            other => other.to_string(),
        };
        let seen = shown(connector, is_sink, &name.text, &value);
        (seen != value).then(|| (*position, format!("'{}'", seen.replace('\'', "''"))))
    };
    lexer::with_values(text, options.iter().filter_map(hidden))
}
