//! The session of a browser: who that is, by a cookie that no script of a page can read.
//!
//! What the cookie is, [`super::cookies`] says.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::Clock;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::call::{Authenticated, MaybeAuthenticated, Parameters, Visitor};
use super::cookies::name;
use super::error::ApiError;
use super::passwords::{NewLogin, from_secret_json, token_of};
use crate::service::{Action, ResourceKind, Session};

/// A login that begins a session: a user with a password, or a token. Neither is shown, in logs neither.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSession {
    /// The user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "alice")]
    pub user: Option<String>,
    /// The user's tenant; the default tenant without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Password)]
    pub password: Option<String>,
    /// A token, in place of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Password)]
    pub token: Option<String>,
}

/// Who asks, and what a page may offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionInfo {
    /// Version of Rivulet.
    #[schema(example = "0.1.0")]
    pub version: String,
    /// The server's clock, milliseconds since 1970.
    pub now_ms: i64,
    /// Whether one has to log in.
    pub has_accounts: bool,
    /// The user; absent if nobody has logged in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What the user may do.
    pub may: SessionRights,
}

/// What a user may do, as far as a page offers it or leaves it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(super) struct SessionRights {
    /// Read the status of the server.
    pub status: bool,
    /// See and change accounts.
    pub accounts: bool,
    /// Try an application, and whatever else is for who administers the server.
    pub server: bool,
    /// Read what was asked about.
    pub read: bool,
    /// Change it.
    pub change: bool,
    /// Read its results.
    pub subscribe: bool,
}

/// What a page is about.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionParameters {
    /// Its name. Without it, all of the kind is asked about.
    pub name: Option<String>,
    /// Its kind.
    #[serde(default)]
    #[param(inline)]
    pub of: PageOf,
}

/// A kind of what pages are about.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PageOf {
    /// Queries, the big ones too.
    #[default]
    Query,
    /// Applications.
    Application,
}

/// Who asks
///
/// Without a login, where one is needed: nobody.
#[utoipa::path(
    get, path = "/api/v1/session", tag = "accounts",
    params(SessionParameters),
    responses((status = 200, description = "The user, and what a page may offer", body = SessionInfo)),
)]
pub(super) async fn show_session(
    caller: MaybeAuthenticated,
    Parameters(SessionParameters { name, of }): Parameters<SessionParameters>,
) -> Result<Json<SessionInfo>, ApiError> {
    let info = SessionInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        now_ms: SystemClock.now_us() / 1_000,
        has_accounts: true,
        ..SessionInfo::default()
    };
    let MaybeAuthenticated::Known(api) = caller else { return Ok(Json(info)) };
    let kind = match of {
        PageOf::Query => ResourceKind::Query,
        PageOf::Application => ResourceKind::Application,
    };
    let may = move |session: &Session<'_>| SessionRights {
        status: session.sees_problems(),
        accounts: session.may(Action::Administer, ResourceKind::User, None),
        server: session.may(Action::Administer, ResourceKind::Server, None),
        read: session.may(Action::Read, kind, name.as_deref()),
        change: session.may(Action::Change, kind, name.as_deref()),
        subscribe: session.may(Action::Subscribe, kind, name.as_deref()),
    };
    let (has_accounts, caller) = (api.access().has_accounts(), api.caller());
    Ok(Json(SessionInfo {
        has_accounts,
        user: has_accounts.then(|| caller.name().to_owned()),
        tenant: has_accounts.then(|| caller.tenant().to_string()),
        may: api.looking(may).await?,
        ..info
    }))
}

/// Begin a session
///
/// The cookie of the answer stands for the token in later requests that have the header `X-Rivulet-Console`. The
/// session ends with the browser, with the token, or by `DELETE`.
#[utoipa::path(
    post, path = "/api/v1/session", tag = "accounts",
    request_body = NewSession,
    responses((status = 204, description = "The session has begun")),
)]
pub(super) async fn begin_session(
    visitor: Visitor,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(header::HeaderName, String); 1]), ApiError> {
    let text = visitor.read_text(body).await?;
    let form = r#"{"user": "...", "password": "..."} or {"token": "..."}"#;
    let token = match from_secret_json(&text, form)? {
        NewSession { token: Some(token), user: None, password: None, tenant: None } => {
            visitor.check_token(token.clone().into_bytes()).await?;
            token
        }
        NewSession { user: Some(user), password: Some(password), tenant, token: None } => {
            token_of(&visitor, NewLogin { user, tenant, password }).await?.1.0.token
        }
        _ => {
            let error = ApiError::invalid("a session begins with a user and a password, or with a token");
            return Err(error.with_hint(format!("send {form}")));
        }
    };
    let secure = if visitor.is_encrypted() { "; Secure" } else { "" };
    Ok((StatusCode::NO_CONTENT, cookie(&headers, &format!("{token}; Path=/; HttpOnly; SameSite=Strict{secure}"))))
}

/// End a session
///
/// The browser forgets its cookie, also with an error. A token that was made for a password ends; one that the session
/// began with stays.
#[utoipa::path(
    delete, path = "/api/v1/session", tag = "accounts",
    responses((status = 204, description = "The session has ended")),
)]
pub(super) async fn end_session(
    caller: Result<Authenticated, ApiError>,
    headers: HeaderMap,
) -> ([(header::HeaderName, String); 1], Response) {
    let ended = async {
        let api = match caller {
            Ok(api) => api,
            // The session has ended by itself.
            Err(error) if error.status == StatusCode::UNAUTHORIZED => return Ok(()),
            Err(error) => return Err(error),
        };
        let (access, caller) = (api.access(), api.caller().clone());
        Ok::<_, ApiError>(api.blocking(move |_| access.end_login(&caller)).await??)
    };
    let answer = ended.await.map_or_else(IntoResponse::into_response, |()| StatusCode::NO_CONTENT.into_response());
    (cookie(&headers, "; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"), answer)
}

fn cookie(headers: &HeaderMap, value: &str) -> [(header::HeaderName, String); 1] {
    [(header::SET_COOKIE, format!("{}={value}", name(headers)))]
}
