//! Where events come from and where results go: `connector:rest`, with `{parameter}` placeholders in the rest.
//!
//! Only the form is checked here. This crate does not know which connectors exist and what their addresses look like.
//! The engine checks that when it registers an application, and uses the position for its message.

use crate::{Position, SqlError, suggest};

pub use rivulet_operators::application::{Address, Part};

/// The connector of addresses that a query gives in the implicit parameters `input` and `output`.
pub const DEFAULT_CONNECTOR: &str = "mqtt";

/// The longest address, in bytes. An MQTT topic has at most 65,535, but no script needs such a long one.
const ADDRESS_BYTES_MAX: usize = 4096;

/// Reads an address. `parameters` are the names of the declared parameters, by index.
pub(crate) fn parse_address(text: &str, position: Position, parameters: &[&str]) -> Result<Address, SqlError> {
    let error = |message: String| SqlError::new(position, message);
    let shape = "an address is written 'connector:rest', for example 'mqtt:home/{home}/temperature'";
    if text.len() > ADDRESS_BYTES_MAX {
        return Err(error(format!("an address has at most {ADDRESS_BYTES_MAX} bytes, this one {}", text.len())));
    }
    if text.chars().any(char::is_control) {
        return Err(error("an address has no control characters".into()));
    }
    let Some((connector, template)) = text.split_once(':') else {
        return Err(error(format!("'{text}' does not say which connector to use")).hint(shape));
    };
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.chars().all(|character| character.is_ascii_alphanumeric() || "_-".contains(character))
    };
    if !is_name(connector) {
        return Err(error(format!("'{connector}' is not the name of a connector")).hint(shape));
    }
    if template.is_empty() {
        return Err(error(format!("the address '{text}' says nothing after '{connector}:'")).hint(shape));
    }
    Ok(Address {
        connector: connector.to_ascii_lowercase(),
        template: template.to_owned(),
        parts: cut(template, position, parameters)?,
        position: position.into(),
    })
}

/// Reads a key of messages, as text with placeholders.
pub(crate) fn parse_key(text: &str, position: Position, parameters: &[&str]) -> Result<Address, SqlError> {
    if text.is_empty() || text.len() > ADDRESS_BYTES_MAX {
        return Err(SqlError::new(position, format!("a key has 1 to {ADDRESS_BYTES_MAX} bytes"))
            .hint("write key => '{device}', with a parameter of the application"));
    }
    let of_key = |error: SqlError| SqlError { message: error.message.replace("the address", "the key"), ..error };
    let parts = cut(text, position, parameters).map_err(of_key)?;
    Ok(Address { connector: String::new(), template: text.to_owned(), parts, position: position.into() })
}

/// Returns the address that consists only of the parameter `index`, called `name`.
pub(crate) fn address_of_parameter(name: &str, index: usize, position: Position) -> Address {
    Address {
        connector: DEFAULT_CONNECTOR.to_owned(),
        template: format!("{{{name}}}"),
        parts: vec![Part::Parameter(index)],
        position: position.into(),
    }
}

fn cut(template: &str, position: Position, parameters: &[&str]) -> Result<Vec<Part>, SqlError> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some(brace) = rest.find(['{', '}']) {
        let (text, after) = rest.split_at(brace);
        let Some((name, tail)) = after.strip_prefix('{').and_then(|after| after.split_once('}')) else {
            return Err(SqlError::new(position, format!("the braces in '{template}' do not match"))
                .hint("a placeholder is written '{parameter}'"));
        };
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        let folded = name.to_lowercase();
        let Some(index) = parameters.iter().position(|parameter| *parameter == name || *parameter == folded) else {
            let error = SqlError::new(position, format!("unknown parameter '{{{name}}}' in the address '{template}'"));
            return Err(match suggest::nearest(name, parameters.iter().copied()) {
                Some(near) => error.did_you_mean(Some(format!("{{{near}}}"))),
                None if parameters.is_empty() => error.hint("declare it after the application's name: (home TEXT)"),
                None => error.hint(format!("declared are {}", list(parameters))),
            });
        };
        parts.push(Part::Parameter(index));
        rest = tail;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

/// The names as a list in words: `a, b and c`.
pub(crate) fn list(names: &[impl AsRef<str>]) -> String {
    match names {
        [] => String::new(),
        [only] => only.as_ref().to_owned(),
        [first @ .., last] => {
            let first: Vec<&str> = first.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", first.join(", "), last.as_ref())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, SqlError> {
        parse_address(text, Position { line: 2, column: 7 }, &["home", "room"])
    }

    #[test]
    fn an_address_is_cut_at_its_placeholders() {
        let address = parse("MQTT:home/{home}/{Room}/x:y").unwrap();
        assert_eq!(address.connector, "mqtt");
        assert_eq!(
            address.parts,
            [
                Part::Text("home/".into()),
                Part::Parameter(0),
                Part::Text("/".into()),
                Part::Parameter(1),
                Part::Text("/x:y".into())
            ]
        );
        assert_eq!(address.parameters().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(address.to_string(), "mqtt:home/{home}/{Room}/x:y");
        assert_eq!(parse("mqtt:plain").unwrap().parts, [Part::Text("plain".into())]);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "home/x", ":x", "mqtt:", "a b:x", "mqtt:{home", "mqtt:home}", "mqtt:{}", "mqtt:{a{b}}", "m:\n"]
        {
            let error = parse(text).unwrap_err();
            assert_eq!((error.line, error.column), (2, 7), "{text}: {error}");
        }
        assert_eq!(parse("mqtt:{hmoe}/x").unwrap_err().hint.as_deref(), Some("did you mean '{home}'?"));
        assert_eq!(parse("mqtt:{zebra}").unwrap_err().hint.as_deref(), Some("declared are home and room"));
    }
}
