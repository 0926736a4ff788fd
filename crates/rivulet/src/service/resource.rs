//! What callers ask for: an action on a resource.

use std::fmt;

use rivulet_sql::{Declared, ObjectKind};

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// See definitions, states and counters, without results and payloads.
    Read,
    /// Create, replace, pause, resume, refresh or drop. An application is changed together with its queries.
    Change,
    /// Receive results of a query, messages of a topic, or rows of a source, view or table, also by a query or view
    /// that reads them; see the last result of a query, and its last refused payload or row.
    Subscribe,
    /// Publish to a topic of the embedded broker; let queries write to a sink.
    Publish,
    /// Make a checkpoint, or a backup, which has the data of every caller; change accounts.
    Administer,
}

impl Action {
    /// Its name in the record of what callers do.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Change => "change",
            Self::Subscribe => "subscribe",
            Self::Publish => "publish",
            Self::Administer => "administer",
        }
    }

    /// The words after `may` in messages.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Change => "change",
            Self::Subscribe => "subscribe to",
            Self::Publish => "publish to",
            Self::Administer => "administer",
        }
    }
}

/// The kinds of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// An application.
    Application,
    /// A query of an application, or a big query.
    Query,
    /// A reference table.
    Table,
    /// A source of big queries.
    Source,
    /// A sink of big queries.
    Sink,
    /// A view over sources.
    View,
    /// A secret. To read one is to name it in an option; its value is never shown.
    Secret,
    /// A topic of the embedded broker. To subscribe, the name is a filter, which may have wildcards.
    Topic,
    /// The server: its status, metrics, checkpoints and backups. It has no name.
    Server,
    /// A user of the caller's tenant, with its tokens and rights.
    User,
    /// A tenant with its users.
    Tenant,
}

impl From<ObjectKind> for ResourceKind {
    fn from(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::Application => Self::Application,
            ObjectKind::Query => Self::Query,
            ObjectKind::Table => Self::Table,
            ObjectKind::Declared(Declared::Source) => Self::Source,
            ObjectKind::Declared(Declared::Sink) => Self::Sink,
            ObjectKind::Declared(Declared::View) => Self::View,
        }
    }
}

impl ResourceKind {
    /// Its name in the record of what callers do.
    pub fn name(self) -> &'static str {
        self.singular_and_plural().0
    }

    fn singular_and_plural(self) -> (&'static str, &'static str) {
        match self {
            Self::Application => ("application", "applications"),
            Self::Query => ("query", "queries"),
            Self::Table => ("table", "tables"),
            Self::Source => ("source", "sources"),
            Self::Sink => ("sink", "sinks"),
            Self::View => ("view", "views"),
            Self::Secret => ("secret", "secrets"),
            Self::Topic => ("topic", "topics"),
            Self::Server => ("server", "the server"),
            Self::User => ("user", "users"),
            Self::Tenant => ("tenant", "tenants"),
        }
    }
}

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resource<'a> {
    /// Its kind.
    pub kind: ResourceKind,
    /// Its name within the caller's tenant, never an id. `None` stands for a list of the kind, and for a query that
    /// gets its name from the server.
    pub name: Option<&'a str>,
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (singular, plural) = self.kind.singular_and_plural();
        match self.name {
            Some(name) => write!(f, "the {singular} '{name}'"),
            None => f.write_str(plural),
        }
    }
}
