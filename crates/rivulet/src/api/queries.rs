//! Queries over HTTP, one at a time; many at once are in [`super::bulk`].

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;

use crate::service::{QueryChange, QueryFilter, QueryRequest, ServiceError, generated_name};

use super::call::{Authenticated, Name, Parameters, page_limit};
use super::error::ApiError;
use super::submission::{parse, parse_change};
use super::types::{self, ListParameters, QueryAltered, QueryCreated, QueryPage, QueryPatch, QuerySubmission};

/// Submit a query
///
/// The answer comes when the query is durable.
#[utoipa::path(
    post, path = "/api/v1/queries", tag = "queries",
    request_body = QuerySubmission,
    responses((status = 201, description = "The query was created", body = QueryCreated)),
)]
pub(super) async fn submit_query(api: Authenticated, body: Body) -> Result<(StatusCode, Json<QueryCreated>), ApiError> {
    let json = api.read_text(body).await?;
    let created = api
        .blocking(move |session| {
            let mut parameters = Vec::new();
            let submission = parse(json.as_bytes(), &mut parameters)
                .map_err(|detail| ApiError::of(StatusCode::BAD_REQUEST, detail))?;
            let request = QueryRequest {
                name: submission.name.as_deref(),
                application: &submission.application,
                parameters: &parameters,
                label: submission.label.as_deref(),
            };
            let answer = session.submit(&[request]).pop();
            let id = answer.ok_or_else(|| ApiError::internal("the query was not answered"))??;
            let name = submission.name.as_deref().map_or_else(|| generated_name(id), str::to_owned);
            Ok::<_, ApiError>(QueryCreated { id, name })
        })
        .await??;
    Ok((StatusCode::CREATED, Json(created)))
}

/// List queries
///
/// A page of at most 1000, ordered by name. Its `next` is the `after` of the page that follows.
#[utoipa::path(
    get, path = "/api/v1/queries", tag = "queries",
    params(ListParameters),
    responses((status = 200, description = "A page of queries by name", body = QueryPage)),
)]
pub(super) async fn list_queries(
    api: Authenticated,
    Parameters(ListParameters { application, like, label, after, limit }): Parameters<ListParameters>,
) -> Result<Json<QueryPage>, ApiError> {
    let limit = page_limit(limit).map_err(|error| {
        error.with_hint("leave limit out, or write limit=100; to read on, send the field next of a page as after")
    })?;
    // One more than asked for shows whether there is a next page.
    let filter = QueryFilter { application, like, label, after, limit: limit + 1 };
    let mut found = api.blocking(move |session| session.queries(&filter)).await??;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = if has_more { found.last().map(|query| query.name.clone()) } else { None };
    Ok(Json(QueryPage { queries: found.into_iter().map(types::Query::from).collect(), next }))
}

/// Show a query
///
/// With what became of its events, and why it gives what it gives. What becomes of them is counted for ten minutes
/// from then on; for an application with a few queries from their start.
#[utoipa::path(
    get, path = "/api/v1/queries/{name}", tag = "queries",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The query", body = types::Query)),
)]
pub(super) async fn show_query(api: Authenticated, Name(name): Name) -> Result<Json<types::Query>, ApiError> {
    let query = api.blocking(move |session| session.describe_query(&name)).await??;
    Ok(Json(query.into()))
}

/// Give a query other values
///
/// It goes on running. Parameters that are left out keep their value, and a label that is null is taken away. Events
/// that were received before are processed with the values before, those behind with the others. The answer comes when
/// that is durable, and says which state the query keeps.
#[utoipa::path(
    patch, path = "/api/v1/queries/{name}", tag = "queries",
    params(("name" = String, Path, description = "Its name")),
    request_body = QueryPatch,
    responses((status = 200, description = "The query has the values", body = QueryAltered)),
)]
pub(super) async fn alter_query(
    api: Authenticated,
    Name(name): Name,
    body: Body,
) -> Result<Json<QueryAltered>, ApiError> {
    let json = api.read_text(body).await?;
    let altered = api
        .blocking(move |session| {
            let mut parameters = Vec::new();
            let change = parse_change(json.as_bytes(), &mut parameters)
                .map_err(|detail| ApiError::of(StatusCode::BAD_REQUEST, detail))?;
            let label = change.label.as_ref().map(Option::as_deref);
            let change = QueryChange { name: &name, parameters: &parameters, label, whole_of: None };
            let answer = session.alter(&[change]).pop();
            let altered = answer.ok_or_else(|| ApiError::internal("the change was not answered"))??;
            Ok::<_, ApiError>(QueryAltered::new(&name, &altered))
        })
        .await??;
    Ok(Json(altered))
}

/// Drop a query
#[utoipa::path(
    delete, path = "/api/v1/queries/{name}", tag = "queries",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "Dropped")),
)]
pub(super) async fn drop_query(api: Authenticated, Name(name): Name) -> Result<StatusCode, ApiError> {
    no_content(api.blocking(move |session| session.drop_query(&name)).await?)
}

/// Pause a query
///
/// It keeps its state and gets no events. Pausing a paused query does nothing.
#[utoipa::path(
    post, path = "/api/v1/queries/{name}/pause", tag = "queries",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "Paused")),
)]
pub(super) async fn pause_query(api: Authenticated, Name(name): Name) -> Result<StatusCode, ApiError> {
    no_content(api.blocking(move |session| session.pause(&name)).await?)
}

/// Resume a query
///
/// Resuming a running query does nothing.
#[utoipa::path(
    post, path = "/api/v1/queries/{name}/resume", tag = "queries",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "Running")),
)]
pub(super) async fn resume_query(api: Authenticated, Name(name): Name) -> Result<StatusCode, ApiError> {
    no_content(api.blocking(move |session| session.resume(&name)).await?)
}

fn no_content(done: Result<(), ServiceError>) -> Result<StatusCode, ApiError> {
    done.map(|()| StatusCode::NO_CONTENT).map_err(ApiError::from)
}
