//! Statements without the secrets in the options and addresses of their sources and sinks, so that they can be shown.

use std::borrow::Cow;

use crate::address::DEFAULT_CONNECTOR;
use crate::application::ShownOption;
use crate::lexer;
use crate::statement::Name;
use crate::{Literal, Position, Statement, parse_stored};

/// What is shown instead of a text in which the secrets cannot be found.
pub(crate) const NOT_UNDERSTOOD: &str = "(this version does not understand the statement)";

/// Returns the text of a `CREATE SOURCE` or `CREATE SINK` with the values of its options replaced by `shown`. A
/// text that is not understood is not shown at all.
pub fn shown_statement(text: &str, shown: &ShownOption<'_>) -> String {
    let statement = parse_stored(text).ok().map(|stored| stored.statement);
    let (address, options, is_sink) = match &statement {
        Some(Statement::CreateSource(create)) if create.unread.is_none() => (&create.address, &create.options, false),
        Some(Statement::CreateSink(create)) if create.unread.is_none() => (&create.address, &create.options, true),
        _ => return NOT_UNDERSTOOD.into(),
    };
    let text = lexer::with_values(text, options.iter().filter_map(|option| hidden(address, is_sink, option, shown)));
    with_address(text, address)
}

/// An address as it may be shown. The values behind the `?` of a URL may be tokens.
pub fn shown_address(address: &str) -> Cow<'_, str> {
    let Some((place, query)) = address.split_once('?').filter(|_| address.starts_with("http")) else {
        return address.into();
    };
    let hidden = |one: &str| one.split_once('=').map_or("***".to_owned(), |(name, _)| format!("{name}=***"));
    format!("{place}?{}", query.split('&').map(hidden).collect::<Vec<_>>().join("&")).into()
}

/// A text with the address as it may be shown.
fn with_address(text: String, address: &str) -> String {
    let quoted = |address: &str| format!("'{}'", address.replace('\'', "''"));
    match shown_address(address) {
        Cow::Borrowed(_) => text,
        Cow::Owned(shown) => text.replace(&quoted(address), &quoted(&shown)),
    }
}

/// Does the same with the text of a `CREATE APPLICATION`. A text that is not understood, for example one of another
/// version, is shown as it is if its addresses are topics only.
pub(crate) fn shown_application(text: &str, shown: &ShownOption<'_>) -> String {
    let Ok(Statement::CreateApplication(create)) = parse_stored(text).map(|stored| stored.statement) else {
        return match names_connector(text) {
            true => NOT_UNDERSTOOD.into(),
            false => text.to_owned(),
        };
    };
    let inputs =
        create.inputs.iter().filter_map(|input| Some((input.address.as_ref()?.0.as_str(), false, &input.options)));
    // Topics that queries name may be those of another broker.
    let outputs = create.outputs.iter().map(|output| {
        let address = output.address.as_ref().map_or(DEFAULT_CONNECTOR, |(address, _)| address.as_str());
        (address, true, &output.options)
    });
    let values = inputs.chain(outputs).flat_map(|(address, is_sink, options)| {
        options.iter().filter_map(|option| hidden(address, is_sink, option, shown)).collect::<Vec<_>>()
    });
    let text = lexer::with_values(text, values);
    let inputs = create.inputs.iter().filter_map(|input| input.address.as_ref());
    let addresses = inputs.chain(create.outputs.iter().filter_map(|output| output.address.as_ref()));
    addresses.fold(text, |text, (address, _)| with_address(text, address))
}

/// Whether any quoted text begins like the address of a connector, other than that of topics, or of a broker.
fn names_connector(text: &str) -> bool {
    text.split('\'').skip(1).any(|quoted| {
        let name = quoted.split(|one: char| !one.is_ascii_alphanumeric()).next().unwrap_or_default();
        let is_address = !name.is_empty() && quoted[name.len()..].starts_with(':');
        let is_broker = quoted[name.len()..].starts_with("://");
        is_address && (is_broker || !name.eq_ignore_ascii_case(DEFAULT_CONNECTOR))
    })
}

/// Returns the position of an option's value and what is shown instead. `None` if the value itself is shown.
fn hidden(
    address: &str,
    is_sink: bool,
    (name, value, position): &(Name, Literal, Position),
    shown: &ShownOption<'_>,
) -> Option<(Position, String)> {
    let connector = address.split(':').next().unwrap_or_default();
    let value = match value {
        // The statement has its name alone.
        Literal::Secret(_) => return None,
        Literal::Text(text) => text.clone(),
        other => other.to_string(),
    };
    let seen = shown(connector, is_sink, &name.text, &value);
    (seen != value).then(|| (*position, format!("'{}'", seen.replace('\'', "''"))))
}
