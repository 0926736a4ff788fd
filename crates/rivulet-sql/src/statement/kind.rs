//! The kinds of what SHOW lists, and DESCRIBE and DROP name.

/// What statements list, describe and drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// An application.
    Application,
    /// A query of an application, or a big query.
    Query,
    /// A reference table.
    Table,
    /// A declaration for big queries.
    Declared(Declared),
}

/// The kinds of declarations for big queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// A source.
    Source,
    /// A sink.
    Sink,
    /// A view.
    View,
}

impl ObjectKind {
    /// All of them, as statements list their words.
    pub(crate) const ALL: [Self; 6] = [
        Self::Application,
        Self::Query,
        Self::Table,
        Self::Declared(Declared::Source),
        Self::Declared(Declared::Sink),
        Self::Declared(Declared::View),
    ];

    /// Its name in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Query => "query",
            Self::Table => "table",
            Self::Declared(what) => what.word(),
        }
    }
}

impl Declared {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Source, Self::Sink, Self::View];

    /// Its name in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Sink => "sink",
            Self::View => "view",
        }
    }

    /// Whether a SELECT names it in FROM. Sources and views share their names; sinks have names of their own.
    pub fn is_read(self) -> bool {
        self != Self::Sink
    }
}
