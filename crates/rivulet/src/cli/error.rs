//! The one error type of the command line, and how it looks.

use std::io::{self, Write};
use std::process::ExitCode;

use rivulet_connectors::connector::is_reader_gone;
use rivulet_sql::{Position, excerpt};

use crate::api::ListenError;
use crate::api::types::{ErrorAnswer, ErrorDetail};
use crate::config::ConfigError;
use crate::http_client::ClientError;
use crate::service::ServiceError;

use super::paint::paint;

/// Why a command failed: what was wrong, where, and what to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CliError {
    message: String,
    hint: Option<String>,
    /// What else there is to know.
    note: Option<Box<str>>,
    /// What kind of thing it is, as in answers of the API; `failed` without.
    kind: Option<Box<str>>,
    /// Line and column, from 1.
    position: Option<(u32, u32)>,
    /// The text that the position is in.
    source: Option<String>,
    /// Nothing is left to say: it was said already, or nobody listens.
    silent: bool,
    /// Whether that nobody listens, which is no failure: `rivulet query list | head`.
    closed: bool,
}

impl CliError {
    /// An error with only a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// The error with what to do about it.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The error with what else there is to know.
    #[must_use]
    pub fn with_note(self, note: impl Into<Box<str>>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// The error with the text that its position is in, if it has one.
    #[must_use]
    pub fn in_source(self, source: &str) -> Self {
        Self { source: Some(source.to_owned()), ..self }
    }

    /// The error where its line comes from, if that is known: `place` says for a line the name of its place, the text
    /// there, and the line in this text.
    #[must_use]
    pub fn in_place<'t>(self, place: impl FnOnce(u32) -> Option<(&'t str, &'t str, u32)>) -> Self {
        let Some((line, column)) = self.position else { return self };
        let Some((name, text, line)) = place(line) else { return self };
        let message = format!("{}, at {name}", self.message);
        Self { message, position: Some((line, column)), ..self.in_source(text) }
    }

    /// What was wrong.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Whether the server is not there, or not any more.
    pub fn is_unavailable(&self) -> bool {
        self.kind.as_deref() == Some("unavailable")
    }

    /// A command line that is none, with what is wrong of what the parser says.
    pub(super) fn usage(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let said = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let message = said.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { kind: Some("usage".into()), ..Self::new(message) }.with_hint("--help says what there is")
    }

    /// A failure whose message was printed already.
    pub fn reported() -> Self {
        Self { silent: true, ..Self::default() }
    }

    /// The exit code that goes with it.
    pub fn exit_code(&self) -> ExitCode {
        if self.closed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Prints it, with the place it is about.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn print(&self, out: &mut impl Write, colours: bool) -> io::Result<()> {
        if self.silent {
            return Ok(());
        }
        writeln!(out, "{} {}", paint("1;31", "error:", colours), self.message)?;
        if let Some((line, column)) = self.position {
            let source = self.source.as_deref();
            match source.and_then(|source| excerpt(source, Position { line, column })) {
                Some((text, indent)) => {
                    let number = line.to_string();
                    let margin = " ".repeat(number.len());
                    writeln!(out, "{margin}--> line {line}, column {column}")?;
                    writeln!(out, "{number} | {text}")?;
                    writeln!(out, "{margin} | {indent}{}", paint("1;31", "^", colours))?;
                }
                None => writeln!(out, "  at line {line}, column {column}")?,
            }
        }
        if let Some(hint) = &self.hint {
            writeln!(out, "{} {hint}", paint("1;36", "hint:", colours))?;
        }
        if let Some(note) = &self.note {
            writeln!(out, "{} {note}", paint("1", "note:", colours))?;
        }
        Ok(())
    }

    /// Prints it as the API answers with it: `{"error":{"kind":...,"message":...}}`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        if self.silent {
            return Ok(());
        }
        let error = ErrorDetail {
            kind: self.kind.as_deref().unwrap_or("failed").to_owned(),
            message: self.message.clone(),
            line: self.position.map(|(line, _)| line),
            column: self.position.map(|(_, column)| column),
            hint: self.hint.clone(),
        };
        serde_json::to_writer(&mut *out, &ErrorAnswer { error })?;
        writeln!(out)
    }
}

fn position(line: Option<u32>, column: Option<u32>) -> Option<(u32, u32)> {
    line.filter(|&line| line > 0).map(|line| (line, column.unwrap_or(1).max(1)))
}

impl From<ErrorDetail> for CliError {
    fn from(error: ErrorDetail) -> Self {
        let position = position(error.line, error.column);
        Self { message: error.message, hint: error.hint, kind: Some(error.kind.into()), position, ..Self::default() }
    }
}

impl From<ServiceError> for CliError {
    fn from(error: ServiceError) -> Self {
        if is_reader_gone(&error.message) {
            return io::Error::from(io::ErrorKind::BrokenPipe).into();
        }
        ErrorDetail::from(error).into()
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(detail) => detail.into(),
            error => Self {
                kind: error.is_unavailable().then(|| "unavailable".into()),
                message: error.to_string(),
                hint: error.hint(),
                ..Self::default()
            },
        }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::new(error.to_string()).with_hint(error.hint())
    }
}

impl From<ListenError> for CliError {
    fn from(error: ListenError) -> Self {
        Self::new(error.to_string()).with_hint(error.hint())
    }
}

/// Writing to standard output failed.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        let closed = error.kind() == io::ErrorKind::BrokenPipe;
        Self { message: error.to_string(), silent: closed, closed, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(error: &CliError) -> String {
        let mut out = Vec::new();
        error.print(&mut out, false).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_caret_stands_under_the_column() {
        let error =
            ServiceError::invalid("there is no column temprature").at(2, 9).with_hint("did you mean temperature?");
        let source = "CREATE …\n\tSELECT temprature FROM t";
        assert_eq!(
            printed(&CliError::from(error.clone()).in_source(source)),
            "error: there is no column temprature\n --> line 2, column 9\n2 | \tSELECT temprature FROM t\n  | \t       ^\n\
             hint: did you mean temperature?\n"
        );
        assert_eq!(
            printed(&CliError::from(error)),
            "error: there is no column temprature\n  at line 2, column 9\nhint: did you mean temperature?\n"
        );
    }

    #[test]
    fn a_position_outside_the_text_is_only_told() {
        let error = CliError::from(ServiceError::invalid("the text ends early").at(9, 1)).in_source("one line");
        assert_eq!(printed(&error), "error: the text ends early\n  at line 9, column 1\n");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let error = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(printed(&error), "");
        assert_eq!(format!("{:?}", error.exit_code()), format!("{:?}", ExitCode::SUCCESS));
    }
}
