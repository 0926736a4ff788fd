//! Reference tables over HTTP.

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;

use super::call::{Authenticated, Name};
use super::error::ApiError;
use super::types::{ErrorAnswer, Table, TableList};

/// List the reference tables
#[utoipa::path(
    get, path = "/api/v1/tables", tag = "tables",
    responses((status = 200, description = "Tables by name", body = TableList)),
)]
pub(super) async fn list_tables(api: Authenticated) -> Result<Json<TableList>, ApiError> {
    let tables = api.blocking(|session| session.tables()).await??;
    Ok(Json(TableList { tables }))
}

/// Create a reference table
///
/// The body is one CREATE TABLE statement; its file is read by the server. The same text again does nothing.
#[utoipa::path(
    post, path = "/api/v1/tables", tag = "tables",
    request_body(content = String, content_type = "text/plain"),
    responses((status = 200, description = "The table", body = Table)),
)]
pub(super) async fn create_table(api: Authenticated, body: Body) -> Result<Json<Table>, ApiError> {
    let sql = api.read_sql(body).await?;
    let table = api.blocking(move |session| session.create_table(&sql)).await??;
    Ok(Json(table))
}

/// Show a reference table
#[utoipa::path(
    get, path = "/api/v1/tables/{name}", tag = "tables",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The table", body = Table)),
)]
pub(super) async fn show_table(api: Authenticated, Name(name): Name) -> Result<Json<Table>, ApiError> {
    let table = api.blocking(move |session| session.table(&name)).await??;
    Ok(Json(table))
}

/// Drop a reference table
#[utoipa::path(
    delete, path = "/api/v1/tables/{name}", tag = "tables",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 204, description = "Dropped"),
        (status = "default", description = "An error; a conflict if applications use it", body = ErrorAnswer),
    ),
)]
pub(super) async fn drop_table(api: Authenticated, Name(name): Name) -> Result<StatusCode, ApiError> {
    api.blocking(move |session| session.drop_table(&name)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Load the file of a reference table again
///
/// Queries go on; a file that cannot be read changes nothing.
#[utoipa::path(
    post, path = "/api/v1/tables/{name}/refresh", tag = "tables",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The table", body = Table),
        (status = "default", description = "An error; the rows are those from before", body = ErrorAnswer),
    ),
)]
pub(super) async fn refresh_table(api: Authenticated, Name(name): Name) -> Result<Json<Table>, ApiError> {
    let table = api.blocking(move |session| session.refresh_table(&name)).await??;
    Ok(Json(table))
}
