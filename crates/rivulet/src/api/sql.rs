//! SQL scripts over HTTP.

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;

use super::call::Authenticated;
use super::error::{ApiError, status_of};
use super::types::{ErrorAnswer, SqlAnswer};

/// Run an SQL script
///
/// The answer has a result for each statement that ran. The script stops at the first error; what ran before it stays.
#[utoipa::path(
    post, path = "/api/v1/sql", tag = "sql",
    request_body(content = String, content_type = "text/plain", example = "SHOW APPLICATIONS; SHOW QUERIES LIMIT 20;"),
    responses(
        (status = 200, description = "Every statement ran", body = SqlAnswer),
        (status = "4XX", description = "A statement was refused; the results before it are there", body = SqlAnswer),
        (status = 401, description = "The credentials are wrong or missing", body = ErrorAnswer),
        (
            status = 403, body = ErrorAnswer,
            description = "Another site's page asks, or the caller may not run a statement",
        ),
        (status = 421, description = "The request is for another host", body = ErrorAnswer),
    ),
)]
pub(super) async fn run_script(api: Authenticated, body: Body) -> Result<(StatusCode, Json<SqlAnswer>), ApiError> {
    let script = match api.read_sql(body).await {
        Ok(script) if script.trim_start().starts_with('{') => {
            return refused(
                ApiError::invalid("the body is JSON, and a script is sent as it is")
                    .with_hint("send the SQL itself as text/plain: curl --data-binary 'SHOW QUERIES;'"),
            );
        }
        Ok(script) => script,
        Err(error) => return refused(error),
    };
    let outcomes = api.blocking(move |session| session.execute(&script)).await?;
    let mut answer = SqlAnswer::default();
    let mut status = StatusCode::OK;
    for outcome in outcomes {
        match outcome {
            Ok(result) => answer.results.push(result),
            Err(error) => {
                status = status_of(error.kind);
                answer.statements_not_run = error.statements_not_run as u64;
                answer.error = Some(error.into());
                break;
            }
        }
    }
    Ok((status, Json(answer)))
}

/// A script of which nothing was run. What the sender did wrong is answered as a wrong statement is.
fn refused(error: ApiError) -> Result<(StatusCode, Json<SqlAnswer>), ApiError> {
    match error.status.is_client_error() {
        true => Ok((error.status, Json(SqlAnswer { error: Some(error.detail), ..Default::default() }))),
        false => Err(error),
    }
}
