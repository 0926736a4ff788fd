//! Secrets: values of options that statements name and do not contain.
//!
//! What must hold: a secret stands only for an option whose value is never shown. Its value is looked up when a source
//! or sink is checked or opened, with each connection of a link, and with each request to an HTTP receiver. So it is
//! kept nowhere else.

use std::fmt;
use std::sync::Arc;

use super::error::ConnectorError;
use super::option::{OptionDescription, OptionKind};
use super::options::find;

/// The first character of an option's text that names a secret.
const MARK: char = '\0';

/// The text of an option whose value is the secret of this name.
pub fn secret_named(name: &str) -> String {
    format!("{MARK}{name}")
}

/// The secrets of a tenant, by name. By default there are none.
#[derive(Clone, Default)]
pub struct Secrets(Option<Arc<Find>>);

/// The value of a secret of this name.
type Find = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Secrets {
    /// The secrets that `find` finds.
    pub fn found_by(find: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(find)))
    }

    /// The present value of the secret with this name.
    pub fn get(&self, name: &str) -> Option<String> {
        self.0.as_ref().and_then(|find| find(name))
    }

    /// Whether the text of an option names a secret.
    pub(super) fn is_named_by(text: &str) -> bool {
        text.starts_with(MARK)
    }

    /// The present value of an option with this text; `None` if it names a secret that is gone.
    pub(super) fn value_of(&self, text: &str) -> Option<String> {
        text.strip_prefix(MARK).map_or_else(|| Some(text.to_owned()), |secret| self.get(secret))
    }

    /// The options with the values of the secrets that they name.
    pub(super) fn put_into(
        &self,
        connector: &'static str,
        described: &'static [OptionDescription],
        given: &[(String, String)],
    ) -> Result<Vec<(String, String)>, ConnectorError> {
        let value_of = |(option, text): &(String, String)| {
            let Some(secret) = text.strip_prefix(MARK) else { return Ok((option.clone(), text.clone())) };
            let wrong = |problem: String, hint: &str| {
                let (option, hint) = (option.clone(), hint.to_owned());
                Err(ConnectorError::Option { connector, option, problem, hint })
            };
            let kind = find(described, &option.trim().to_ascii_lowercase()).map(|(option, rest)| option.kind.of(rest));
            match (kind, self.get(secret)) {
                // Another value than that of a secret would be in errors and descriptions. An unknown option is an
                // error of its own.
                (Some(Some(kind)), _) if kind != OptionKind::Secret => {
                    let hint = "a secret is for an option that is not shown: a password, a token, a header";
                    wrong("cannot be a secret".into(), hint)
                }
                (_, Some(value)) => Ok((option.clone(), value)),
                (_, None) => wrong(
                    format!("names the secret '{secret}', and there is none"),
                    "CREATE SECRET makes it, or `rivulet secret create NAME --from-file FILE`",
                ),
            }
        };
        given.iter().map(value_of).collect()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::{Connectors, Direction};

    #[test]
    fn a_secret_stands_only_for_what_is_not_shown() {
        let secrets = Secrets::found_by(|name| (name == "known").then(|| "rose".to_owned()));
        let put = |connector: &str, option: &str, secret: &str| {
            let connector = Connectors::OWN.all().find(|one| one.name == connector).unwrap();
            let described = connector.direction(Direction::Sink).unwrap().options;
            let given = [(option.to_owned(), secret_named(secret))];
            secrets.put_into(connector.name, described, &given).map_err(|error| error.to_string())
        };
        for (connector, option) in [
            ("http", "headers.authorization"),
            ("kafka", "properties.sasl.password"),
            ("kafka", "properties.ssl.key.pem"),
            ("mqtt", "password"),
        ] {
            assert_eq!(put(connector, option, "known"), Ok(vec![(option.into(), "rose".into())]));
            let error = put(connector, option, "other").unwrap_err();
            assert!(error.contains("the secret 'other', and there is none\nhint: CREATE SECRET"), "{error}");
        }
        for (connector, option) in [
            ("http", "timeout"),
            ("kafka", "properties.client.id"),
            ("kafka", "properties.ssl.ca.location"),
            ("mqtt", "broker"),
            ("file", "append"),
        ] {
            let error = put(connector, option, "known").unwrap_err();
            assert!(error.contains("cannot be a secret\nhint: ") && !error.contains("rose"), "{error}");
        }
        assert!(!format!("{secrets:?}").contains("rose"));
    }
}
