//! The directions of a connector, and the description of an option.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The direction in which rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Rows come from the connector.
    Source,
    /// Rows go to the connector.
    Sink,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Sink => "sink",
        })
    }
}

/// An option of a connector.
#[derive(Clone, Copy, Debug)]
pub struct OptionDescription {
    /// The name; a name that ends in `.*` stands for all names with that beginning.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: OptionKind,
    /// The value if it is not given; `None` if there is no default.
    pub default: Option<&'static str>,
    /// Its effect, in a sentence or two.
    pub help: &'static str,
}

/// The kind of values that an option accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// `true` or `false`.
    Boolean,
    /// A whole number within these bounds.
    Integer {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// A time span above zero, as `500 ms` or `1 minute`.
    Duration,
    /// A number of bytes above zero, as `64 MiB`.
    Bytes,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Names separated by commas.
    Names,
    /// Any text.
    Text,
    /// Text that is never shown.
    Secret,
    /// The address of a broker, whose password is not shown.
    Broker,
    /// The path of a file that is read.
    File,
    /// For an option that stands for several names: the texts allowed for the `*`, and the kind of their values. Others
    /// are refused.
    Among(&'static [(&'static str, OptionKind)]),
}

impl OptionKind {
    /// The kind of the values of one name. `rest` is the text for the `*` of the option, if it has one; `None` if that
    /// text is not allowed.
    pub(crate) fn of(self, rest: Option<&str>) -> Option<Self> {
        match (self, rest) {
            (Self::Among(names), Some(rest)) => names.iter().find(|(name, _)| *name == rest).map(|(_, kind)| *kind),
            _ => Some(self),
        }
    }
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("true or false"),
            Self::Integer { min, max: i64::MAX } => write!(f, "a whole number from {min}"),
            Self::Integer { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Duration => f.write_str("a time span, as '500 ms' or '1 minute'"),
            Self::Bytes => f.write_str("a number of bytes, as '64 MiB'"),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::Names => f.write_str("names with commas between"),
            Self::Text => f.write_str("text"),
            Self::Secret => f.write_str("text that is not shown"),
            Self::Broker => f.write_str("an address whose password is not shown"),
            Self::File => f.write_str("the path of a file"),
            Self::Among(_) => f.write_str("by name"),
        }
    }
}
