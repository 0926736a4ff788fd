//! Errors of sources and sinks before their first row.

use super::option::Direction;
use crate::formats::FormatError;

/// Why a source or sink cannot be opened. It displays the problem and, on a line of its own, a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectorError {
    /// No connector has this name.
    #[error("there is no connector '{name}'\nhint: {hint}")]
    UnknownConnector {
        /// The name given.
        name: String,
        /// The nearest name, or all names.
        hint: String,
    },
    /// The connector does not have this direction.
    #[error("'{connector}:' is no {direction}\nhint: {hint}")]
    Direction {
        /// The connector.
        connector: &'static str,
        /// The requested direction.
        direction: Direction,
        /// What to do.
        hint: String,
    },
    /// Inputs of applications cannot read it.
    #[error("an input of an application cannot read '{connector}:'\nhint: {hint}")]
    NoInput {
        /// The connector.
        connector: &'static str,
        /// What to do.
        hint: String,
    },
    /// The connector has no such option.
    #[error("'{connector}:' as a {direction} has no option '{option}'\nhint: {hint}")]
    UnknownOption {
        /// The connector.
        connector: &'static str,
        /// The requested direction.
        direction: Direction,
        /// The option given.
        option: String,
        /// The nearest name, or all names.
        hint: String,
    },
    /// An option has an invalid value, is given twice, or is missing.
    #[error("the option '{option}' of '{connector}:' {problem}\nhint: {hint}")]
    Option {
        /// The connector.
        connector: &'static str,
        /// The option.
        option: String,
        /// The problem: the rest of a sentence that begins with the option.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// The part of the address behind the colon is not understood.
    #[error("'{}' {problem}\nhint: {hint}", whole_address(connector, address))]
    Address {
        /// The connector.
        connector: &'static str,
        /// The address given.
        address: String,
        /// The problem: the rest of a sentence that begins with the address.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// The format does not exist, or the columns do not suit it.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The connector cannot use the format.
    #[error("'{connector}:' cannot use the format {format}\nhint: {hint}")]
    FormatUse {
        /// The connector.
        connector: &'static str,
        /// The format.
        format: String,
        /// What to do.
        hint: String,
    },
    /// The result of the query changes, and the sink only appends.
    #[error("the result of the query changes, and '{connector}:' cannot take rows back\nhint: {hint}")]
    Changes {
        /// The connector.
        connector: &'static str,
        /// What to do.
        hint: String,
    },
    /// The outside world refuses: a missing file, a port in use, a broker that does not answer.
    #[error("cannot open '{connector}:{address}': {problem}\nhint: {hint}")]
    Open {
        /// The connector.
        connector: &'static str,
        /// The address given.
        address: String,
        /// The error from outside.
        problem: String,
        /// What to do.
        hint: String,
    },
}

impl ConnectorError {
    /// [`ConnectorError::Address`].
    pub(crate) fn address(
        connector: &'static str,
        address: &str,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::Address { connector, address: address.to_owned(), problem: problem.into(), hint: hint.into() }
    }

    /// [`ConnectorError::Open`].
    pub(crate) fn open(
        connector: &'static str,
        address: &str,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::Open { connector, address: address.to_owned(), problem: problem.into(), hint: hint.into() }
    }
}

/// An address as SQL has it, with its connector in front unless it names its protocol itself (`https://...`).
pub fn whole_address(connector: &str, address: &str) -> String {
    let has_protocol = ["http://", "https://"].iter().any(|protocol| address.starts_with(protocol));
    if has_protocol { address.to_owned() } else { format!("{connector}:{address}") }
}
