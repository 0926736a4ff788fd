//! Where events come from and where results go, and their formats. This module does not know which connectors and
//! formats exist.

use std::fmt;

use super::Literal;

/// An address with placeholders for parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The part before the first colon, in lower case.
    pub connector: String,
    /// The part after the first colon, as written.
    pub template: String,
    /// The template, cut at its placeholders.
    pub parts: Vec<Part>,
    /// Line and column of the address in the text of the application, from 1; zeros if it is not in the text.
    pub position: (u32, u32),
}

/// A piece of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Literal text.
    Text(String),
    /// The value of the parameter with this index.
    Parameter(usize),
}

impl Address {
    /// The parameters the address uses, in order of their appearance.
    pub fn parameters(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts.iter().filter_map(|part| match part {
            Part::Parameter(index) => Some(*index),
            Part::Text(_) => None,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.connector, self.template)
    }
}

/// `FORMAT name [(option => value, ...)]`. The planner does not know which formats exist, except that one has changes.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatSpec {
    /// The name of the format, in lower case.
    pub name: String,
    /// Its options, names in lower case.
    pub options: Vec<(String, Literal)>,
    /// Line and column of the format's name in the text of the application, from 1; zeros if it is not in the text.
    pub position: (u32, u32),
}

impl FormatSpec {
    /// Whether rows in this format may take back others.
    pub fn has_changes(&self) -> bool {
        self.name.trim().eq_ignore_ascii_case("debezium")
    }
}
