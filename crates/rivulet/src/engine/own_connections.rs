//! Two connections for each query, one for its events and one for its results: what engines do that share nothing. For
//! comparison with them only; Rivulet has one connection for everybody.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{Client, ClientOptions, Publisher, Router};
use rivulet_dataflow::{Clock, QueryId};
use tokio::runtime::Handle;

/// Open files that are left to everything else: the catalog, the API, its clients.
const OTHER_FILES: usize = 200;

/// The connections of the queries, worked by the thread that works the common one.
pub(super) struct OwnConnections {
    /// But for the client's id, which must not be the same twice.
    options: ClientOptions,
    router: Arc<Router>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    /// The most queries: the system bounds open files.
    queries_max: usize,
    clients: Mutex<HashMap<QueryId, Pair>>,
}

struct Pair {
    source: Client,
    sink: Client,
}

impl OwnConnections {
    pub(super) fn new(options: ClientOptions, router: Arc<Router>, clock: Arc<dyn Clock>, runtime: Handle) -> Self {
        let files_max = files_max(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default());
        let queries_max = files_max.saturating_sub(OTHER_FILES) / 2;
        Self { options, router, clock, runtime, queries_max, clients: Mutex::default() }
    }

    /// How many more queries can have connections, and how many can in all.
    pub(super) fn queries_left(&self) -> (usize, usize) {
        (self.queries_max.saturating_sub(self.clients.lock().len()), self.queries_max)
    }

    /// Connects queries; `topics` says for each where its events come from. The broker need not be there yet.
    pub(super) fn connect(&self, queries: &[QueryId], topics: &[Vec<String>]) {
        let _entered = self.runtime.enter();
        for (&query, topics) in queries.iter().zip(topics) {
            let start = |kind: &str| {
                let client_id = format!("{}-{kind}-{query}", self.options.client_id);
                let options = ClientOptions { client_id, ..self.options.clone() };
                Client::start(options, self.router.clone(), self.clock.clone())
            };
            let started = start("source").and_then(|source| Ok(Pair { source, sink: start("sink")? }));
            match started {
                Ok(pair) => {
                    if let Err(error) = pair.source.subscribe(topics.iter().map(String::as_str)) {
                        // Topics were checked when the query was bound.
                        tracing::error!(query, "a subscription was not made (a defect): {error}");
                    }
                    self.clients.lock().insert(query, pair);
                }
                Err(error) => tracing::error!(query, "a query has no connections: {error}"),
            }
        }
    }

    /// Ends the connections of queries.
    pub(super) fn disconnect(&self, queries: &[QueryId]) {
        let mut clients = self.clients.lock();
        queries.iter().for_each(|query| drop(clients.remove(query)));
    }

    /// Ends all of them.
    pub(super) fn disconnect_all(&self) {
        self.clients.lock().clear();
    }

    /// Where the results of a query are handed over, if it is connected.
    pub(super) fn publisher(&self, query: QueryId) -> Option<Arc<dyn Publisher>> {
        self.clients.lock().get(&query).map(|pair| pair.sink.publisher())
    }
}

/// How many files this process may have open, from its `/proc/self/limits`; very many where that is not known.
fn files_max(limits: &str) -> usize {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_the_soft_one() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 20000                files\n";
        assert_eq!((files_max(limits), files_max("")), (1024, usize::MAX));
    }
}
