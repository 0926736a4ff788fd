//! Applications over HTTP.

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;

use rivulet_sql::StateWish;

use crate::service::Code;

use super::call::{Authenticated, Name, Parameters};
use super::error::ApiError;
use super::types::{Application, ApplicationList, DropParameters, ErrorAnswer, Explanation, RegisterParameters};

/// List the applications
#[utoipa::path(
    get, path = "/api/v1/applications", tag = "applications",
    responses((status = 200, description = "Applications by name", body = ApplicationList)),
)]
pub(super) async fn list_applications(api: Authenticated) -> Result<Json<ApplicationList>, ApiError> {
    let applications = api.blocking(|session| session.applications()).await??;
    Ok(Json(ApplicationList { applications }))
}

/// Register an application
///
/// The body is one CREATE APPLICATION statement, or code in another `language`. The same text again returns the same
/// application. With `replace` another text of the same name is a new version, which takes over the queries with their
/// state.
#[utoipa::path(
    post, path = "/api/v1/applications", tag = "applications",
    params(RegisterParameters),
    request_body(content = String, content_type = "text/plain"),
    responses((status = 200, description = "The application", body = Application)),
)]
pub(super) async fn create_application(
    api: Authenticated,
    Parameters(RegisterParameters { replace, discard_state, language }): Parameters<RegisterParameters>,
    body: Body,
) -> Result<Json<Application>, ApiError> {
    if discard_state && !replace {
        return Err(
            ApiError::invalid("discard_state needs replace").with_hint("write ?replace=true&discard_state=true")
        );
    }
    let replaces = replace.then_some(if discard_state { StateWish::Discard } else { StateWish::Keep });
    let registered = match language.filter(|language| language != rivulet_sql::SQL) {
        None => {
            let sql = api.read_sql(body).await?;
            api.blocking(move |session| session.create_application(Code::Statement(&sql), replaces)).await?
        }
        Some(kind) => {
            let code = api.read_bytes(body).await?;
            api.blocking(move |session| session.create_application(Code::Of(&kind, &code.0), replaces)).await?
        }
    };
    Ok(Json(registered?))
}

/// Show an application
#[utoipa::path(
    get, path = "/api/v1/applications/{name}", tag = "applications",
    params(("name" = String, Path, description = "Its name or id")),
    responses((status = 200, description = "The application", body = Application)),
)]
pub(super) async fn show_application(api: Authenticated, Name(name): Name) -> Result<Json<Application>, ApiError> {
    Ok(Json(api.blocking(move |session| session.application(&name)).await??))
}

/// Drop an application
#[utoipa::path(
    delete, path = "/api/v1/applications/{name}", tag = "applications",
    params(("name" = String, Path, description = "Its name"), DropParameters),
    responses(
        (status = 204, description = "Dropped"),
        (status = "default", description = "An error; a conflict if it has queries", body = ErrorAnswer),
    ),
)]
pub(super) async fn drop_application(
    api: Authenticated,
    Name(name): Name,
    Parameters(DropParameters { cascade }): Parameters<DropParameters>,
) -> Result<StatusCode, ApiError> {
    api.blocking(move |session| session.drop_application(&name, cascade)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Explain an application
///
/// Its dataflow in words: what its queries share, and what each has of its own.
#[utoipa::path(
    get, path = "/api/v1/applications/{name}/explain", tag = "applications",
    params(("name" = String, Path, description = "Its name or id")),
    responses((status = 200, description = "The dataflow", body = Explanation)),
)]
pub(super) async fn explain_application(api: Authenticated, Name(name): Name) -> Result<Json<Explanation>, ApiError> {
    let explanation = api.blocking(move |session| session.explain(&name)).await??;
    Ok(Json(Explanation { explanation }))
}
