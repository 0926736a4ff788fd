//! Clients of the embedded broker over HTTP.

use axum::Json;
use rivulet_connectors::mqtt::{ClientFilter, ClientInfo};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::call::{Authenticated, Parameters, page_limit};
use super::error::ApiError;

/// Which clients to list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ClientParameters {
    /// Only those whose id begins with this.
    #[serde(default)]
    pub prefix: String,
    /// The `next` of the page before.
    #[serde(default)]
    pub after: String,
    /// At most so many: 100 unless told, 1000 at most.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
}

/// A page of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(super) struct ClientPage {
    /// Clients by tenant, user and id.
    pub clients: Vec<Client>,
    /// The `after` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A client of the embedded broker that has a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(super) struct Client {
    /// Its id.
    #[schema(example = "sensor-17")]
    pub id: String,
    /// Its user, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The tenant of its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Where it is, or was last; of IPv6 the network.
    pub address: String,
    /// Whether it is connected. If not, its session waits for it.
    pub connected: bool,
    /// The number of its subscriptions.
    pub subscriptions: u64,
    /// Messages of QoS 1 and 2 that wait for it or its acknowledgement.
    pub waiting_messages: u64,
}

impl From<ClientInfo> for Client {
    fn from(info: ClientInfo) -> Self {
        let [tenant, user] = info.user.map_or([None, None], |user| user.map(Some));
        Self {
            id: info.client_id,
            user,
            tenant,
            address: info.address.to_string(),
            connected: info.is_connected,
            subscriptions: info.subscriptions as u64,
            waiting_messages: info.waiting_messages as u64,
        }
    }
}

/// List the clients of the embedded broker
///
/// A page of at most 1000, with those whose sessions wait for them. Its `next` is the `after` of the page that follows.
#[utoipa::path(
    get, path = "/api/v1/clients", tag = "server",
    params(ClientParameters),
    responses((status = 200, description = "A page of clients", body = ClientPage)),
)]
pub(super) async fn list_clients(
    api: Authenticated,
    Parameters(ClientParameters { prefix, after, limit }): Parameters<ClientParameters>,
) -> Result<Json<ClientPage>, ApiError> {
    let limit = page_limit(limit)?;
    let filter = ClientFilter { tenant: None, prefix, after, limit: limit + 1 };
    let mut found = api.blocking(move |session| session.clients(filter)).await??;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|last| last.place.clone());
    Ok(Json(ClientPage { clients: found.into_iter().map(Client::from).collect(), next }))
}
