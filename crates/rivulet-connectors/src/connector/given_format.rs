//! The format of a declaration, for connectors that use JSON by default.

use super::{ConnectorError, FormatText};
use crate::files::Files;
use crate::formats::RowFormat;

/// The format that was given, or JSON.
pub(super) fn format_or_json(given: Option<&FormatText>, files: &Files) -> Result<RowFormat, ConnectorError> {
    let Some((name, options)) = given else { return Ok(RowFormat::parse("JSON", [], files)?) };
    let options = options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    Ok(RowFormat::parse(name, options, files)?)
}

/// The same if each of `pieces` ("messages", "bodies") stands alone, so that there can be no header.
pub(super) fn format_of_pieces(
    connector: &'static str,
    given: Option<&FormatText>,
    pieces: &str,
    files: &Files,
) -> Result<RowFormat, ConnectorError> {
    let format = format_or_json(given, files)?;
    match format.has_header() {
        false => Ok(format),
        true => Err(ConnectorError::FormatUse {
            connector,
            format: "CSV with a header".into(),
            hint: format!("{pieces} have none; leave the option 'header' out"),
        }),
    }
}
