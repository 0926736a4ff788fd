//! Live results of a query, and of a SELECT that runs for the request alone, as server-sent events.

use std::any::Any;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::Stream;
use futures_util::stream::unfold;
use rivulet_connectors::http_server::{Counted, share_of};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::service::{Access, Caller, LiveResult, LiveStream, Resource, ResourceKind};

use super::call::{Authenticated, Name, Parameters, Stop, WATCH_MAX};
use super::error::ApiError;
use super::types::WatchParameters;

/// Proxies cut connections that say nothing; a comment line is sent so often.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Watch the results of a query
///
/// Server-sent events: `result` with a result as JSON, `lost` with the number of results that were skipped because the
/// client was too slow (or readers of all queries were, and there was no memory left), `end` when there will be no
/// more, with the reason: `limit`, `dropped` (the query was), `stopping` (the server is) or
/// `forbidden` (the caller's token has ended, or its right was revoked).
#[utoipa::path(
    get, path = "/api/v1/queries/{name}/results", tag = "queries",
    params(("name" = String, Path, description = "Its name"), WatchParameters),
    responses((status = 200, description = "Events, from now on", body = String, content_type = "text/event-stream")),
)]
pub(super) async fn watch_results(
    api: Authenticated,
    Name(name): Name,
    Parameters(WatchParameters { limit }): Parameters<WatchParameters>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let permit = api.watch_permit()?;
    let login = api.watched_login(Some(name.clone()));
    let results = api.blocking(move |session| session.results(&name)).await??;
    let watch = Watch {
        login,
        results,
        next: None,
        left: limit.unwrap_or(u64::MAX),
        ended: false,
        stop: api.stop.clone(),
        selection: None,
        _permit: permit,
    };
    Ok(Sse::new(unfold(watch, Watch::next)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Watch the rows of a SELECT
///
/// The body is one SELECT without INTO, over sources, views and files (`FROM 'data/readings.jsonl'`, whose columns are
/// those that a sample of it has), an application's input or output (`app.readings`, `app.output`), the results of a
/// query (its name) or a topic (`"mqtt:home/+/temperature"`). Over tables alone the result is complete: it may have an
/// ORDER BY and aggregates, and every row comes. It runs as long as the request, and takes nothing from
/// queries that read the same. Server-sent events as of the results of a query, and
/// `refused` with what was refused so far: `rows`, `reasons` and an `example`; `end` says `ended` (the input has),
/// `failed: ` and the error, `limit`, `stopping` or `forbidden`.
#[utoipa::path(
    post, path = "/api/v1/select", tag = "sql",
    params(WatchParameters),
    request_body(content = String, content_type = "text/plain", example = "SELECT device, value FROM readings"),
    responses((status = 200, description = "Events, from now on", body = String, content_type = "text/event-stream")),
)]
pub(super) async fn watch_select(
    api: Authenticated,
    Parameters(WatchParameters { limit }): Parameters<WatchParameters>,
    body: Body,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let permit = api.watch_permit()?;
    let sql = api.read_sql(body).await?;
    let login = api.watched_login(None);
    let selection = api.blocking(move |session| session.select(&sql)).await??;
    let watch = Watch {
        login,
        results: selection.rows,
        next: None,
        left: limit.unwrap_or(u64::MAX),
        ended: false,
        stop: api.stop.clone(),
        selection: Some((selection.end, selection._running)),
        _permit: permit,
    };
    Ok(Sse::new(unfold(watch, Watch::next)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

impl Authenticated {
    fn watched_login(&self, query: Option<String>) -> WatchedLogin {
        let access = self.access();
        WatchedLogin { changes: access.changes(), access, caller: self.caller().clone(), query }
    }

    fn watch_permit(&self) -> Result<WatchPermit, ApiError> {
        let permits = &self.bounds.watch_permits;
        let permit = permits.clone().try_acquire_owned().ok();
        let max = self.bounds.watch_max.load(Ordering::Relaxed);
        let permit = permit.filter(|_| WATCH_MAX - permits.available_permits() <= max).ok_or_else(|| {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", "too many clients watch results")
                .with_hint("subscribe to the query's output topic at the broker instead, or raise http.connections_max")
        })?;
        let share = share_of(max, self.bounds.address_share_percent.load(Ordering::Relaxed));
        let watchers = &self.bounds.watchers;
        if self.address().is_some_and(|address| watchers.is_full(address, share)) {
            let message = "too many clients of this address watch results";
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", message)
                .with_hint("http.address_share_percent says how many one address may have"));
        }
        let stream = self.access().quotas().of(self.caller().tenant()).stream()?;
        Ok((permit, self.address().map(|address| watchers.count(address)), stream))
    }
}

/// The caller of a stream, whose login may end, or whose right may be revoked.
struct WatchedLogin {
    access: Arc<Access>,
    caller: Caller,
    /// The query that is watched; `None` for a SELECT, which ends with the first right that is revoked.
    query: Option<String>,
    changes: Option<tokio::sync::watch::Receiver<u64>>,
}

impl WatchedLogin {
    /// Completes when the caller may not watch any more.
    async fn ended(&mut self) {
        loop {
            if self.has_ended() {
                return;
            }
            let Some(changes) = &mut self.changes else { return std::future::pending().await };
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn has_ended(&self) -> bool {
        if !self.access.holds(&self.caller) {
            return true;
        }
        match &self.query {
            Some(query) => {
                let resource = Resource { kind: ResourceKind::Query, name: Some(query) };
                !self.access.may_still_subscribe(&self.caller, resource)
            }
            None => self.caller.login().is_some_and(|login| login.rights.are_lessened()),
        }
    }
}

/// A place among all clients that watch, one among those of the client's address, and one among those of its tenant.
type WatchPermit = (OwnedSemaphorePermit, Option<Counted>, LiveStream);

/// Of a SELECT, why there are no more rows, and what ends it when this goes.
type Selected = (Arc<OnceLock<String>>, Box<dyn Any + Send + Sync>);

struct Watch {
    login: WatchedLogin,
    results: Receiver<Arc<LiveResult>>,
    /// A result that waits because a loss before it is told first.
    next: Option<Arc<LiveResult>>,
    left: u64,
    ended: bool,
    stop: Stop,
    /// Of a SELECT.
    selection: Option<Selected>,
    _permit: WatchPermit,
}

impl Watch {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        let received = if self.left == 0 {
            Err("limit".to_owned())
        } else if let Some(result) = self.next.take() {
            Ok(Ok(result))
        } else {
            tokio::select! {
                received = self.results.recv() => match received {
                    Ok(result) if result.skipped > 0 => {
                        let skipped = result.skipped;
                        self.next = Some(result).filter(|result| !result.text.is_empty());
                        Ok(Err(skipped))
                    }
                    Ok(result) => Ok(Ok(result)),
                    Err(RecvError::Lagged(count)) => Ok(Err(count)),
                    Err(RecvError::Closed) => Err(match &self.selection {
                        None => "dropped".to_owned(),
                        Some((end, _)) => end.get().cloned().unwrap_or_else(|| "ended".to_owned()),
                    }),
                },
                () = self.stop.stopped() => Err("stopping".to_owned()),
                () = self.login.ended() => Err("forbidden".to_owned()),
            }
        };
        let event = match received {
            Ok(Ok(result)) if result.is_note => Event::default().event("refused").data(&result.text),
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
