//! Colours for people.

use std::io::IsTerminal;

/// Whether to colour what is written to `stream`.
pub(super) fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Text in a colour (an SGR code such as `1;31`), if wanted.
pub(super) fn paint(code: &str, text: &str, wanted: bool) -> String {
    if wanted { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}
