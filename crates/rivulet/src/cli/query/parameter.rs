//! Parameter values from the command line, where everything is text: the declared type decides what `42` is.

use serde_json::Value;

use crate::api::types::ParameterDeclaration;
use crate::cli::error::CliError;

/// Reads `name=value`. `NULL` is null; write `name='NULL'` for the text.
pub(super) fn parse(assignment: &str, declared: &[ParameterDeclaration]) -> Result<(String, Value), CliError> {
    let (name, text) = assignment.split_once('=').ok_or_else(|| {
        CliError::new(format!("the parameter {assignment} has no value")).with_hint("write name=value")
    })?;
    let (name, text) = (name.trim(), text.trim());
    // Unknown names go to the server as they are: it says best what is wrong.
    let data_type =
        declared.iter().find(|parameter| parameter.name == name).map(|parameter| parameter.data_type.as_str());
    let value = match data_type {
        _ if text == "NULL" => Ok(Value::Null),
        Some("BIGINT") => text.parse::<i64>().map(Value::from).map_err(|_| "a whole number"),
        Some("DOUBLE") => number(text).ok_or("a number"),
        Some("BOOLEAN") => text.to_ascii_lowercase().parse().map(Value::Bool).map_err(|_| "true or false"),
        _ => Ok(Value::from(unquoted(text))),
    }
    .map_err(|expected| {
        let type_name = data_type.unwrap_or("TEXT");
        CliError::new(format!("the parameter {name} is {text:?}, expected {expected} ({type_name})"))
    })?;
    Ok((name.to_owned(), value))
}

fn number(text: &str) -> Option<Value> {
    // A whole number stays one, so that it comes back as it was written.
    let whole = text.parse::<i64>().map(Value::from);
    whole.ok().or_else(|| serde_json::Number::from_f64(text.parse().ok()?).map(Value::Number))
}

/// Text without the single quotes around it, if it has them.
fn unquoted(text: &str) -> String {
    match text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        Some(inner) => inner.replace("''", "'"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_declared_type_decides() {
        let declared: Vec<ParameterDeclaration> =
            [("home", "TEXT"), ("rooms", "BIGINT"), ("target", "DOUBLE"), ("night", "BOOLEAN"), ("gap", "INTERVAL")]
                .map(|(name, data_type)| ParameterDeclaration {
                    name: name.into(),
                    data_type: data_type.into(),
                    default: None,
                })
                .into();
        for (assignment, value) in [
            ("home=007", json!("007")),
            ("home='it''s'", json!("it's")),
            ("home=a=b", json!("a=b")),
            ("home=NULL", json!(null)),
            ("home='NULL'", json!("NULL")),
            ("rooms=-3", json!(-3)),
            ("target=22", json!(22)),
            ("target = 22.5", json!(22.5)),
            ("night=True", json!(true)),
            ("gap=5 minutes", json!("5 minutes")),
            ("unknown=1", json!("1")),
        ] {
            assert_eq!(parse(assignment, &declared).expect(assignment).1, value, "{assignment}");
        }
        for wrong in ["home", "rooms=3.5", "rooms=", "target=warm", "target=NaN", "night=1"] {
            assert!(parse(wrong, &declared).is_err(), "{wrong}");
        }
    }
}
