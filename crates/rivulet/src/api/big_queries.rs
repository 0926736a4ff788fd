//! Big queries over HTTP. One that is there is shown, paused, resumed and dropped under `/api/v1/queries`, as every
//! query.

use axum::Json;
use axum::body::Body;

use super::call::{Authenticated, Name};
use super::error::ApiError;
use super::types::{BigQueryCreated, BigQueryList, Dataflow};

/// List the big queries
///
/// With what they have read and written. `/api/v1/queries` lists them among all queries, in pages.
#[utoipa::path(
    get, path = "/api/v1/big-queries", tag = "queries",
    responses((status = 200, description = "Big queries by name", body = BigQueryList)),
)]
pub(super) async fn list_big_queries(api: Authenticated) -> Result<Json<BigQueryList>, ApiError> {
    let big_queries = api.blocking(|session| session.big_queries()).await??;
    Ok(Json(BigQueryList { big_queries }))
}

/// Show the dataflow of a big query
///
/// Its nodes as `EXPLAIN QUERY` numbers them, and where the rows of each come from. `/api/v1/status?operators=true`
/// says what each operator does.
#[utoipa::path(
    get, path = "/api/v1/big-queries/{name}/dataflow", tag = "queries",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The nodes", body = Dataflow)),
)]
pub(super) async fn show_dataflow(api: Authenticated, Name(name): Name) -> Result<Json<Dataflow>, ApiError> {
    let nodes = api.blocking(move |session| session.dataflow(&name)).await??;
    Ok(Json(Dataflow { nodes }))
}

/// Create a big query
///
/// The body is one `CREATE QUERY name AS SELECT ... INTO sink` statement, or `CREATE OR REPLACE QUERY` for a new
/// version of one that runs. Its sources, sink and views are created by a script at `/api/v1/sql` before. The query is
/// shown, paused, resumed and dropped at `/api/v1/queries/{name}`; a checkpoint at `/api/v1/checkpoint` saves it too.
#[utoipa::path(
    post, path = "/api/v1/big-queries", tag = "queries",
    request_body(
        content = String, content_type = "text/plain",
        example = "CREATE QUERY per_device AS SELECT device, count(*) AS n FROM readings GROUP BY device INTO counts",
    ),
    responses((status = 200, description = "The query", body = BigQueryCreated)),
)]
pub(super) async fn create_big_query(api: Authenticated, body: Body) -> Result<Json<BigQueryCreated>, ApiError> {
    let sql = api.read_sql(body).await?;
    let (query, message) = api.blocking(move |session| session.create_big_query(&sql)).await??;
    Ok(Json(BigQueryCreated { query, message }))
}
