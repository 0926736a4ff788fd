//! The clients of a broker, as they are listed.
//!
//! What must hold: the lock is held for some sessions at a time, however many there are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::core::Core;
use super::session::Session;

/// How many sessions are looked at while the lock is held: some tenths of a millisecond.
pub(super) const LOOKED_AT: usize = 4_096;

/// Which clients to list.
#[derive(Clone, Debug)]
pub struct ClientFilter {
    /// Only those of this tenant; `None` for all.
    pub tenant: Option<String>,
    /// Only those whose id begins with this.
    pub prefix: String,
    /// Only those after this [`ClientInfo::place`].
    pub after: String,
    /// At most so many.
    pub limit: usize,
}

impl ClientFilter {
    fn wants(&self, session: &Session) -> bool {
        let (scope, id) = session.client_id.rsplit_once('\0').unwrap_or(("", &session.client_id));
        let tenant = scope.split('\0').next().unwrap_or_default();
        self.tenant.as_ref().is_none_or(|wanted| wanted == tenant)
            && id.starts_with(&self.prefix)
            && *session.client_id > *self.after
    }
}

/// A client that has a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its place in the list: by tenant, user and id.
    pub place: String,
    /// Its user and the user's tenant, if it did not log in as who may do everything.
    pub user: Option<[String; 2]>,
    /// Its id.
    pub client_id: String,
    /// Where it is, or was last; of IPv6 the network.
    pub address: IpAddr,
    /// Whether it is connected. If not, its session waits for it.
    pub is_connected: bool,
    /// The number of its subscriptions.
    pub subscriptions: usize,
    /// Messages of QoS 1 and 2 that wait for it or its acknowledgement.
    pub waiting_messages: usize,
}

impl Core {
    /// Looks at the next [`LOOKED_AT`] sessions from a number on, and returns where the rest begins. Those that the
    /// filter wants go to a page, which keeps the first of them.
    pub(super) fn list_clients(
        &self,
        page: &mut BTreeMap<Box<str>, ClientInfo>,
        from: usize,
        filter: &ClientFilter,
    ) -> Option<usize> {
        let end = self.sessions.end().min(from + LOOKED_AT);
        let sessions = (from..end).filter_map(|key| self.sessions.get(key as u32));
        for session in sessions.filter(|session| filter.wants(session)) {
            let id = &session.client_id;
            if page.len() >= filter.limit && page.last_key_value().is_none_or(|(last, _)| id >= last) {
                continue;
            }
            page.insert(id.clone(), self.client_info(session));
            if page.len() > filter.limit {
                page.pop_last();
            }
        }
        (end < self.sessions.end()).then_some(end)
    }

    fn client_info(&self, session: &Session) -> ClientInfo {
        let (scope, id) = session.client_id.rsplit_once('\0').unwrap_or(("", &session.client_id));
        ClientInfo {
            place: session.client_id.to_string(),
            user: scope.split_once('\0').map(|(tenant, user)| [tenant, user].map(str::to_owned)),
            client_id: id.to_owned(),
            address: self.addresses.address(session.address),
            is_connected: session.link.is_some(),
            subscriptions: session.subscriptions.len(),
            waiting_messages: session.waiting(),
        }
    }
}
