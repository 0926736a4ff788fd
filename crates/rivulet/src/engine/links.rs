//! The links of this server to other ones, and the door for those of others.

use std::sync::{Arc, OnceLock, Weak};

use rivulet_connectors::links::{Links, Listener, Listening};
use rivulet_connectors::tls::{Certificates, Prepared};
use rivulet_runtime::Workers;

use super::threads::Bell;
use crate::burst::roster::Roster;
use crate::config::Config;
use crate::data_folder::SPOOLS;
use crate::service::{Access, ErrorKind, LinkAccess, ServiceError, Tenant};

/// The links of a server.
pub(super) struct ServerLinks {
    links: Arc<Links>,
    roster: Arc<Roster>,
    /// Rings when a burst worker has said something.
    pub(super) burst_news: Arc<Bell>,
    /// The door, if others may link to this server. It closes when this is dropped.
    door: Option<Listener>,
}

impl ServerLinks {
    /// The links of the server with this identity. Listens where that is configured.
    ///
    /// # Errors
    /// A certificate cannot be used, or the port is in use.
    pub(super) fn start(
        config: &Config,
        access: &Arc<Access>,
        server: &str,
        workers: &Arc<Workers>,
    ) -> Result<Self, ServiceError> {
        let blocked = Arc::downgrade(workers);
        let waiting = Arc::<OnceLock<Weak<Roster>>>::default();
        let with_roster = waiting.clone();
        let on_room = move || {
            blocked.upgrade().iter().for_each(|workers| workers.retry_blocked());
            with_roster.get().and_then(Weak::upgrade).iter().for_each(|roster| roster.look_for_room());
        };
        let links = Arc::new(Links::new(server, Some(config.data_dir.join(SPOOLS)), Some(Arc::new(on_room))));
        let (burst_news, lost_after) = (Arc::<Bell>::default(), config.burst.lost_after);
        let rung = burst_news.clone();
        let lost_after_us = i64::try_from(lost_after.as_micros()).unwrap_or(i64::MAX);
        let scope = Tenant::default().to_string();
        let roster = Roster::new(&links, &scope, lost_after_us, Arc::new(move || rung.ring()));
        let roster = roster.map_err(|problem| ServiceError::new(ErrorKind::Unavailable, problem))?;
        let _ = waiting.set(Arc::downgrade(&roster));
        let door = config.link.as_ref().map(|link| {
            let prepared = Prepared::read(link.tls.as_ref())
                .map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()))?;
            let listening = Listening {
                address: link.address,
                certificates: Certificates::new("links", prepared),
                authorizer: Arc::new(LinkAccess(access.clone())),
            };
            links.listen(listening).map_err(|error| {
                let message = format!("cannot listen for links at {}: {error}", link.address);
                ServiceError::new(ErrorKind::Unavailable, message)
                    .with_hint("set link.address to an address of this machine that is free")
            })
        });
        let door = door.transpose()?;
        if let (Some(door), Some(link)) = (&door, &config.link) {
            tracing::info!(address = %door.address(), tls = link.tls.is_some(), "the door for links is open");
        }
        Ok(Self { door, roster, burst_news, links })
    }

    /// Whether others may link to this server.
    pub(super) fn has_door(&self) -> bool {
        self.door.is_some()
    }

    /// The burst workers. They are of the default tenant, whose administrators are those of the server.
    pub(super) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Forgets what waits to be sent of a query that is gone.
    pub(super) fn forget(&self, server: &str, query: &str) {
        self.links.forget(server, query);
    }

    /// The links as statements of a tenant use them, and the scope of its streams.
    pub(super) fn of(&self, tenant: &Tenant) -> (Arc<Links>, String) {
        (self.links.clone(), tenant.to_string())
    }
}
