//! The languages in which applications may be written: for each kind of code its loader. Code of a kind without a
//! loader stays in the catalog.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rivulet_connectors::connector::Direction;
use rivulet_dataflow::panic_text;
use rivulet_operators::application::{Application, CodeLoader, LoadError, Tables};
use rivulet_sql::{DEFAULT_CONNECTOR, SQL, SqlLoader, is_input_option};

use crate::catalog::StoredApplication;
use crate::run::CONNECTORS;
use crate::service::{ErrorKind, ServiceError};

/// The loaders of applications' code, by kind. SQL is always among them.
#[derive(Clone)]
pub struct Languages {
    loaders: BTreeMap<&'static str, Arc<dyn CodeLoader>>,
}

impl Default for Languages {
    fn default() -> Self {
        Self { loaders: BTreeMap::new() }.with(SQL, SqlLoader)
    }
}

impl Languages {
    /// The same languages, and `loader` for code of this kind.
    #[must_use]
    pub fn with(mut self, kind: &'static str, loader: impl CodeLoader + 'static) -> Self {
        self.loaders.insert(kind, Arc::new(loader));
        self
    }

    /// Makes an application from its code.
    pub(crate) fn load(&self, kind: &str, bytes: &[u8], tables: &Tables) -> Result<Application, ServiceError> {
        let Some(loader) = self.loaders.get(kind) else {
            let kinds = self.loaders.keys().copied().collect::<Vec<_>>().join(", ");
            return Err(ServiceError::invalid(format!("no code of the kind '{kind}' is known"))
                .with_hint(format!("this server loads: {kinds}")));
        };
        // Code that makes its loader panic must not prevent the start of a server.
        let loaded = catch_unwind(AssertUnwindSafe(|| loader.load(bytes, tables)));
        let application = loaded.map_err(|panic| {
            ServiceError::invalid(format!("code of the kind '{kind}' cannot be loaded: {}", panic_text(&*panic)))
        })??;
        if application.kind != kind {
            // After a restart another loader would read it.
            let message = format!("what loads the kind '{kind}' has made an application of '{}'", application.kind);
            return Err(ServiceError::new(ErrorKind::Internal, message));
        }
        Ok(application)
    }

    /// The same for new code, which may not use a spelling that only earlier versions accepted.
    pub(super) fn load_new(&self, kind: &str, bytes: &[u8], tables: &Tables) -> Result<Application, ServiceError> {
        let application = self.load(kind, bytes, tables)?;
        match self.loaders.get(kind).and_then(|loader| loader.warnings(bytes).into_iter().next()) {
            Some(outdated) => Err(ServiceError::invalid(outdated)),
            None => Ok(application),
        }
    }

    /// The same for code in the catalog.
    pub(super) fn load_stored(&self, stored: &StoredApplication, tables: &Tables) -> Result<Application, ServiceError> {
        self.load(&stored.kind, &stored.bytes, tables)
    }

    /// Whether the code of an application names a reference table.
    pub(super) fn names_table(&self, stored: &StoredApplication, table: &str) -> bool {
        let names = self.loaders.get(&*stored.kind).map(|loader| loader.table_names(&stored.bytes));
        names.is_some_and(|names| names.iter().any(|name| name == table))
    }

    /// The code of an application as users see it: without the secrets of its sources and outputs. Only the loader can
    /// find these, so code without a loader is not shown.
    pub(super) fn shown(&self, kind: &str, bytes: &[u8]) -> String {
        let shown = self
            .loaders
            .get(kind)
            .and_then(|loader| catch_unwind(AssertUnwindSafe(|| loader.shown(bytes, &shown_option))).ok());
        shown.unwrap_or_else(|| format!("({} bytes of {kind})", bytes.len()))
    }
}

/// The value of an option of an input or output as users see it.
fn shown_option<'v>(connector: &str, is_output: bool, name: &str, value: &'v str) -> Cow<'v, str> {
    match is_output {
        true => CONNECTORS.shown_option(connector, Direction::Sink, name, value),
        false if is_input_option(name) || connector == DEFAULT_CONNECTOR => value.into(),
        false => CONNECTORS.shown_option(connector, Direction::Source, name, value),
    }
}

impl From<LoadError> for ServiceError {
    fn from(error: LoadError) -> Self {
        Self { hint: error.hint, ..Self::invalid(error.message).at_place(error.position) }
    }
}
