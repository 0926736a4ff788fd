//! Statements without the secrets in the options of their sources and sinks, so that they can be shown.

use std::borrow::Cow;

use crate::lexer;
use crate::statement::Name;
use crate::{Literal, Position, Statement, parse_stored};

/// Returns the text of a `CREATE SOURCE` or `CREATE SINK` with the values of its options replaced by `shown`. Its
/// arguments are the connector, whether it is a sink, and the name and value of the option. A text that is not
/// understood is not shown at all.
pub fn shown_statement(text: &str, shown: impl for<'v> Fn(&str, bool, &str, &'v str) -> Cow<'v, str>) -> String {
    let statement = parse_stored(text).ok().map(|stored| stored.statement);
    let (address, options, is_sink) = match &statement {
        Some(Statement::CreateSource(create)) if create.unread.is_none() => (&create.address, &create.options, false),
        Some(Statement::CreateSink(create)) if create.unread.is_none() => (&create.address, &create.options, true),
        _ => return "(this version does not understand the statement)".into(),
    };
    lexer::with_values(text, options.iter().filter_map(|option| hidden(address, is_sink, option, &shown)))
}

/// Does the same with the text of a `CREATE APPLICATION`. A text that is not understood, for example one of another
/// version, is shown as it is if it names topics only.
pub fn shown_application(text: &str, shown: impl for<'v> Fn(&str, bool, &str, &'v str) -> Cow<'v, str>) -> String {
    let Ok(Statement::CreateApplication(create)) = parse_stored(text).map(|stored| stored.statement) else {
        return match ["kafka:", "http:", "https:"].iter().any(|connector| text.to_ascii_lowercase().contains(connector))
        {
            true => "(this version does not understand the statement)".into(),
            false => text.to_owned(),
        };
    };
    let inputs = create.inputs.iter().filter_map(|input| Some((&input.address.as_ref()?.0, false, &input.options)));
    let outputs = create.outputs.iter().filter_map(|output| Some((&output.address.as_ref()?.0, true, &output.options)));
    let values = inputs.chain(outputs).flat_map(|(address, is_sink, options)| {
        options.iter().filter_map(|option| hidden(address, is_sink, option, &shown)).collect::<Vec<_>>()
    });
    lexer::with_values(text, values)
}

/// Returns the position of an option's value and what is shown instead. `None` if the value itself is shown.
fn hidden(
    address: &str,
    is_sink: bool,
    (name, value, position): &(Name, Literal, Position),
    shown: &impl for<'v> Fn(&str, bool, &str, &'v str) -> Cow<'v, str>,
) -> Option<(Position, String)> {
    let connector = address.split(':').next().unwrap_or_default();
    let value = match value {
        Literal::Text(text) => text.clone(),
        other => other.to_string(),
    };
    let seen = shown(connector, is_sink, &name.text, &value);
    (seen != value).then(|| (*position, format!("'{}'", seen.replace('\'', "''"))))
}
