//! A connection of one source or sink, on a thread of its own.
//!
//! What must hold: opening waits for the broker's answer for a bounded time. The end takes a bounded time for the
//! messages on their way, and blocks no other code meanwhile.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::connection::MqttConnection;
use crate::clock::SystemClock;
use crate::mqtt::{Client, ClientOptions, Publisher, Router};

/// How long opening waits for the broker.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// How long the end waits for messages on their way.
const FINISH_MAX: Duration = Duration::from_secs(10);
/// How long opening waits when it is known why there is no connection: the broker may be just about to start.
const OPEN_ERROR_MAX: Duration = Duration::from_secs(2);
/// The interval at which the state of the connection is checked meanwhile.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// A connection that is maintained until this is dropped.
pub(super) struct Link {
    router: Arc<Router>,
    client: Arc<Client>,
    turning: Mutex<Turning>,
}

/// The thread of a connection. If this is dropped, the thread ends by itself.
struct Turning {
    /// Ends the thread, within this time; `None` when it was told to end.
    stop: Option<oneshot::Sender<Duration>>,
    /// The thread returns the number of messages that were not sent; `None` when that is known.
    thread: Option<JoinHandle<usize>>,
}

impl Link {
    /// Connects, and waits until the broker has accepted the connection.
    pub(super) fn open(options: ClientOptions) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no thread can be started: {error}"))?;
        let router = Arc::new(Router::new());
        let client = {
            let _entered = runtime.enter();
            let client = Client::start(options, router.clone(), Arc::new(SystemClock));
            Arc::new(client.map_err(|error| error.to_string())?)
        };
        let (stop, stopped) = oneshot::channel();
        let running = client.clone();
        let thread = thread::Builder::new().name("mqtt source or sink".into()).spawn(move || {
            runtime.block_on(async {
                // A dropped sender means stop as well, at once.
                let limit = stopped.await.unwrap_or(Duration::ZERO);
                running.shutdown(limit).await
            })
        });
        let thread = thread.map_err(|error| format!("no thread can be started: {error}"))?;
        let link = Self { router, client, turning: Mutex::new(Turning { stop: Some(stop), thread: Some(thread) }) };
        link.wait_until(|status| status.connected.then_some(Ok(())))?;
        Ok(link)
    }

    /// Checks the state of the connection until there is an answer.
    fn wait_until(
        &self,
        answer: impl Fn(&crate::mqtt::ClientStatus) -> Option<Result<(), String>>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let status = self.client.status();
            if let Some(answer) = answer(&status) {
                return answer;
            }
            let patience = if status.last_error.is_some() { OPEN_ERROR_MAX } else { OPEN_MAX };
            if begun.elapsed() >= patience {
                return Err(status.last_error.unwrap_or_else(|| "the broker does not answer".into()));
            }
            thread::sleep(LOOK_PERIOD);
        }
    }
}

impl MqttConnection for Link {
    fn router(&self) -> &Arc<Router> {
        &self.router
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        self.client.publisher()
    }

    fn problem(&self) -> Option<String> {
        self.client.status().problem()
    }

    fn subscribe(&self, filter: &str) {
        if let Err(error) = self.client.subscribe([filter]) {
            // The filter was checked when the source was opened.
            tracing::error!("a subscription was not made (a defect): {error}");
        }
    }

    fn unsubscribe(&self, filter: &str) {
        self.client.unsubscribe([filter]);
    }

    fn await_subscription(&self, filter: &str) -> Result<(), String> {
        self.wait_until(|status| {
            let refused = status.refused_subscriptions.iter().find(|(refused, _)| refused == filter);
            match refused {
                Some((_, reason)) => Some(Err(format!("the broker refuses the subscription: {reason}"))),
                None => status.subscribed.then_some(Ok(())),
            }
        })
    }

    fn finish(&self) {
        if let Some(stop) = self.turning.lock().stop.take() {
            // If there is no receiver any more, the thread has ended already.
            let _ = stop.send(FINISH_MAX);
        }
    }

    fn is_finished(&self) -> Result<bool, String> {
        let ended = self.turning.lock().thread.take_if(|thread| thread.is_finished());
        let Some(thread) = ended else { return Ok(self.turning.lock().thread.is_none()) };
        match thread.join().unwrap_or_else(|_| self.client.status().queued_messages) {
            0 => Ok(true),
            left => {
                let why = self.client.status().last_error.unwrap_or_else(|| "the broker takes too long".into());
                Err(format!("{left} messages were not sent: {why}"))
            }
        }
    }
}
