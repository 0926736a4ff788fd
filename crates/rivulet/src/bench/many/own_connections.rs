//! Two connections for each query, one for its events and one for its results: what engines do that share nothing. For
//! comparison with them only; Rivulet has one connection for everybody.
//!
//! A query runs as a task of its own here, so a connection for the results of each task is one for each query.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::mqtt::{Client, ClientError, ClientOptions, PublishBatch, Publisher, RoomCallback, Router};
use rivulet_dataflow::QueryId;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::engine::client_options;
use crate::engine::stepped::Network;
use crate::service::{ErrorKind, ServiceError};

/// Open files that are left to everything else: the catalog, the API, its clients.
const OTHER_FILES: usize = 200;

/// The connections of the queries, worked by one thread.
pub(super) struct OwnConnections {
    /// But for the client's id, which must not be the same twice.
    options: ClientOptions,
    runtime: Handle,
    /// Ends the thread.
    turning: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
    attached: OnceLock<Attached>,
    sources: Mutex<HashMap<QueryId, Client>>,
    /// The number of the next connection for results.
    next: AtomicU64,
}

/// What is known once the engine has begun to start.
struct Attached {
    router: Arc<Router>,
    /// Of no query.
    common: Client,
    /// The most queries: the system bounds open files.
    queries_max: usize,
}

impl OwnConnections {
    /// Connections to the external broker of this configuration, if it has one.
    pub(super) fn new(config: &Config) -> io::Result<Option<Arc<Self>>> {
        let Some(broker) = &config.broker else { return Ok(None) };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        // A dropped sender means stop as well.
        let turn = move || {
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name("rivulet-mqtt".into()).spawn(turn)?;
        Ok(Some(Arc::new(Self {
            options: client_options(broker, config.outbound_bytes_max),
            runtime: handle,
            turning: Mutex::new(Some((stop, thread))),
            attached: OnceLock::new(),
            sources: Mutex::default(),
            next: AtomicU64::new(0),
        })))
    }

    /// Whether the system allows connections for so many queries.
    pub(super) fn admit(&self, queries: usize) -> Result<(), ServiceError> {
        let most = self.attached().queries_max;
        if queries <= most {
            return Ok(());
        }
        let message =
            format!("there is no connection left for this query: the limit of open files allows {most} queries");
        Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint(
            "this model takes two of them for each query: raise `ulimit -n`, or take a model that shares one (+n)",
        ))
    }

    /// Connects the sources of queries; `topics` says for each where its events come from. The broker need not be there
    /// yet.
    pub(super) fn begin(&self, queries: &[QueryId], topics: &[Vec<String>]) {
        let router = &self.attached().router;
        for (&query, topics) in queries.iter().zip(topics) {
            match self.connect(&format!("source-{query}"), router) {
                Ok(source) => {
                    if let Err(error) = source.subscribe(topics.iter().map(String::as_str)) {
                        // Topics were checked when the query was bound.
                        tracing::error!(query, "a subscription was not made (a defect): {error}");
                    }
                    self.sources.lock().insert(query, source);
                }
                Err(error) => tracing::error!(query, "a query has no connections: {error}"),
            }
        }
    }

    /// Ends the sources of queries.
    pub(super) fn end(&self, queries: &[QueryId]) {
        let mut sources = self.sources.lock();
        queries.iter().for_each(|query| drop(sources.remove(query)));
    }

    fn attached(&self) -> &Attached {
        self.attached.get().expect("the engine attaches it before anything else")
    }

    fn connect(&self, name: &str, router: &Arc<Router>) -> Result<Client, ClientError> {
        let _entered = self.runtime.enter();
        let client_id = format!("{}-{name}", self.options.client_id);
        Client::start(ClientOptions { client_id, ..self.options.clone() }, router.clone(), Arc::new(SystemClock))
    }
}

impl Network for OwnConnections {
    fn attach(&self, router: &Arc<Router>) -> Result<(), ServiceError> {
        let common = self.connect("common", router);
        let common = common.map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()))?;
        // By now the process may open as many files as it will be allowed to.
        let files_max = files_max(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default());
        let queries_max = files_max.saturating_sub(OTHER_FILES) / 2;
        // It is called once.
        let _ = self.attached.set(Attached { router: router.clone(), common, queries_max });
        Ok(())
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        self.attached().common.publisher()
    }

    fn publisher_of_task(&self) -> Arc<dyn Publisher> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        match self.connect(&format!("sink-{number}"), &self.attached().router) {
            Ok(client) => Arc::new(OwnSink { publisher: client.publisher(), _client: client }),
            Err(error) => {
                tracing::error!("a task has no connection for its results: {error}");
                self.publisher()
            }
        }
    }

    fn stop(&self) {
        self.sources.lock().clear();
        if let Some((stop, thread)) = self.turning.lock().take() {
            // If nobody listens any more, the thread has ended already.
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

/// A connection for results, which ends with its task.
struct OwnSink {
    publisher: Arc<dyn Publisher>,
    _client: Client,
}

impl Publisher for OwnSink {
    fn submit(&self, batch: &mut PublishBatch) {
        self.publisher.submit(batch);
    }

    fn has_room(&self) -> bool {
        self.publisher.has_room()
    }

    fn on_room(&self, callback: RoomCallback) {
        self.publisher.on_room(callback);
    }

    fn next(&self) -> u64 {
        self.publisher.next()
    }

    fn first_left(&self) -> u64 {
        self.publisher.first_left()
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
