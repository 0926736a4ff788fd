//! Settings of the server under measurement.

use crate::config::{KEYS, environment_names};

/// A configuration key and its value, as an environment variable.
pub(crate) fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write the key, =, and the value")?;
    match KEYS.iter().any(|known| known.name == key) {
        true => Ok((environment_names(key)[0].clone(), value.to_owned())),
        false => Err(format!("there is no configuration key '{key}'; `rivulet config` shows them all")),
    }
}
