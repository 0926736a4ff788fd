//! Errors of formats before their first payload.

use arrow::datatypes::DataType;
use rivulet_dataflow::suggest::nearest;

/// A format that does not exist, or columns that do not suit it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No format has this name.
    #[error("unknown format '{name}'\nhint: the formats are {}", names.join(", "))]
    UnknownFormat {
        /// The name given.
        name: String,
        /// The names of all formats.
        names: &'static [&'static str],
    },
    /// The format has no such option.
    #[error("format {format} has no option '{option}'\nhint: {}", options_hint(options, option))]
    UnknownOption {
        /// The format.
        format: &'static str,
        /// The option given.
        option: String,
        /// The keys of its options.
        options: &'static [&'static str],
    },
    /// A CSV delimiter that cannot be one.
    #[error(
        "'{value}' cannot be a delimiter\nhint: give one ASCII character other than a quote or a line break, or 'tab'"
    )]
    Delimiter {
        /// The value given.
        value: String,
    },
    /// Options or columns do not suit the format.
    #[error("format {format} {problem}\nhint: {hint}")]
    Setting {
        /// The format.
        format: &'static str,
        /// What is wrong: the rest of a sentence that begins with the format.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// The format cannot have this number of columns.
    #[error("format {format} does not go with {count} columns\nhint: {hint}")]
    Columns {
        /// The format.
        format: &'static str,
        /// The number of columns declared.
        count: usize,
        /// What to do.
        hint: &'static str,
    },
    /// The format cannot have this column.
    #[error("format {format} cannot have the column '{column}' of type {data_type}\nhint: {hint}")]
    Column {
        /// The format.
        format: &'static str,
        /// The column.
        column: String,
        /// Its type.
        data_type: DataType,
        /// What to do.
        hint: String,
    },
    /// The format cannot have this event time column.
    #[error("format {format} cannot take the event time from the column '{column}'\nhint: {hint}")]
    EventTime {
        /// The format.
        format: &'static str,
        /// The column.
        column: String,
        /// What to do.
        hint: &'static str,
    },
}

impl FormatError {
    /// [`FormatError::Setting`].
    pub(crate) fn setting(format: &'static str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Setting { format, problem: problem.into(), hint: hint.into() }
    }
}

fn options_hint(options: &[&str], option: &str) -> String {
    match (options, nearest(option, options.iter().copied())) {
        ([], _) => "it has none".into(),
        (_, Some(near)) => format!("did you mean '{near}'?"),
        (options, None) => format!("its options are {}", options.join(", ")),
    }
}
