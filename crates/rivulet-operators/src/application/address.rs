//! Where events come from and where results go, and how they are written there. Which connectors and formats there are
//! is not known here.

use std::fmt;

use super::Literal;

/// An address with placeholders for parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// What stands before the first colon, in lower case.
    pub connector: String,
    /// What stands after it, as written.
    pub template: String,
    /// The template cut at its placeholders.
    pub parts: Vec<Part>,
    /// Line and column where it stands in the text of the application, from 1; zeros if it stands in none.
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

/// `FORMAT name [(option => value, ...)]`. The planner does not know what formats there are.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatSpec {
    /// The name of the format, in lower case.
    pub name: String,
    /// Its options, names in lower case.
    pub options: Vec<(String, Literal)>,
    /// Line and column where the format's name stands in the text of the application, from 1; zeros if it stands in
    /// none.
    pub position: (u32, u32),
}
