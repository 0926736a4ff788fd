//! Live results of a query as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::service::LiveResult;

use super::error::ApiError;
use super::types::{ErrorAnswer, WatchParameters};
use super::{Authenticated, Name, Stop};

/// Proxies cut connections that say nothing; a comment line is sent so often.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Watch the results of a query
///
/// Server-sent events: `result` with a result as JSON, `lost` with the number of results that were skipped because the
/// client was too slow (or readers of all queries were, and there was no memory left), `end` when there will be no
/// more, with the reason: `limit`, `dropped` (the query was) or
/// `stopping` (the server is).
#[utoipa::path(
    get, path = "/api/v1/queries/{name}/results", tag = "queries",
    params(("name" = String, Path, description = "Its name"), WatchParameters),
    responses(
        (status = 200, description = "Events, from now on", body = String, content_type = "text/event-stream"),
        (status = "default", description = "An error", body = ErrorAnswer),
    ),
)]
pub(super) async fn watch_results(
    api: Authenticated,
    Name(name): Name,
    parameters: Result<Query<WatchParameters>, QueryRejection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let Query(WatchParameters { limit }) = parameters?;
    let permit = Arc::clone(&api.bounds.watch_permits).try_acquire_owned().map_err(|_| {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", "too many clients watch results")
            .with_hint("subscribe to the query's output topic at the broker instead")
    })?;
    let results = api.blocking(move |session| session.results(&name)).await??;
    let watch = Watch {
        results,
        next: None,
        left: limit.unwrap_or(u64::MAX),
        ended: false,
        stop: api.stop.clone(),
        _permit: permit,
    };
    Ok(Sse::new(unfold(watch, Watch::next)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

struct Watch {
    results: Receiver<Arc<LiveResult>>,
    /// A result that waits because a loss before it is told first.
    next: Option<Arc<LiveResult>>,
    left: u64,
    ended: bool,
    stop: Stop,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        let received = if self.left == 0 {
            Err("limit")
        } else if let Some(result) = self.next.take() {
            Ok(Ok(result))
        } else {
            tokio::select! {
                received = self.results.recv() => match received {
                    Ok(result) if result.skipped > 0 => {
                        let skipped = result.skipped;
                        self.next = Some(result);
                        Ok(Err(skipped))
                    }
                    Ok(result) => Ok(Ok(result)),
                    Err(RecvError::Lagged(count)) => Ok(Err(count)),
                    Err(RecvError::Closed) => Err("dropped"),
                },
                () = self.stop.stopped() => Err("stopping"),
            }
        };
        let event = match received {
            Ok(Ok(result)) => {
                self.left -= 1;
                Event::default().event("result").data(&result.text)
            }
            Ok(Err(count)) => Event::default().event("lost").data(count.to_string()),
            Err(reason) => {
                self.ended = true;
                Event::default().event("end").data(reason)
            }
        };
        Some((Ok(event), self))
    }
}
