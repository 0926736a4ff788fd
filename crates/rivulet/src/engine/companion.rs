//! What accompanies queries outside of the engine.

use rivulet_dataflow::QueryId;
use rivulet_operators::application::Application;
use rivulet_runtime::GroupParts;

use super::languages::Languages;
use crate::service::ServiceError;

/// What accompanies queries outside of the engine. Engines that Rivulet is compared with have it: threads and
/// connections for each query. A server has none. No application is replaced where there is one, because it would not
/// know what the new version reads. It is no quota of a tenant: it is told the number of all queries, whoever has them.
pub trait Companion: Send + Sync {
    /// Whether there can be this many queries. An error refuses the newest query before the catalog records it.
    ///
    /// # Errors
    /// The means for this many are missing.
    fn admit(&self, queries: usize) -> Result<(), ServiceError>;

    /// Queries read topics from now on: for each query one topic per input.
    fn begin(&self, queries: &[QueryId], topics: &[Vec<String>]);

    /// Queries stop reading.
    fn end(&self, queries: &[QueryId]);

    /// Changes how the group of an application works, which shares nothing with other groups. Code is loaded by these
    /// languages.
    fn regroup(&self, _languages: &Languages, _application: &Application, parts: GroupParts) -> GroupParts {
        parts
    }
}
