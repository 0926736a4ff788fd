//! What statements of a tenant may reach: files and hosts outside of the process, and secrets.
//!
//! Also the topics of applications, which belong to tenants where clients have to log in.
//!
//! What must hold: every [`ConnectorContext`] that the engine gives to a connector is made here, so no statement has
//! more rights than its tenant. Tenants other than the default one share no folder unless the configuration names one
//! for all. What their files take is bounded, and leaves room on the disk for the server.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::connector::{self, ConnectorContext};
use rivulet_connectors::files::{Files, Room};
use rivulet_connectors::reach::{AllowedHosts, KEY_OF_LISTENERS, Reach};
use rivulet_runtime::Share;

use super::links::ServerLinks;
use super::reserve::free_bytes;
use super::topics::Topics;
use crate::config::Config;
use crate::data_folder::{FILES, TENANTS, restored, set_aside};
use crate::secrets::Secrets;
use crate::service::{Access, ErrorKind, Limit, Quota, ServiceError, Tenant};

/// What stands in `files.allow` for the name of the tenant.
const TENANT: &str = "{tenant}";

/// What stands in `hosts.tenants` for the tenants that are not named there.
const OTHER_TENANTS: &str = "*";

/// The rights of statements.
pub(super) struct Permitted {
    config: Arc<Config>,
    access: Arc<Access>,
    secrets: Arc<Secrets>,
    links: ServerLinks,
    /// The files of tenants that have named any. Folders are resolved once.
    files: Mutex<HashMap<Tenant, Files>>,
    hosts: Mutex<Hosts>,
    /// As in [`ConnectorContext`].
    restored: String,
}

/// The hosts that statements may reach.
struct Hosts {
    all: Reach,
    /// In the place of those, by tenant.
    of_tenants: BTreeMap<String, AllowedHosts>,
    /// What was given to connectors, by tenant and whether clients have to log in. Connections that they make later are
    /// to the hosts that are allowed by then.
    given: HashMap<(Tenant, bool), Reach>,
}

impl Permitted {
    /// Fails if the folders of the default tenant cannot be used.
    pub(super) fn new(
        config: &Arc<Config>,
        access: &Arc<Access>,
        secrets: &Arc<Secrets>,
        links: ServerLinks,
    ) -> Result<Self, ServiceError> {
        let (config, access, secrets) = (config.clone(), access.clone(), secrets.clone());
        let (all, of_tenants) = (config.reach.clone(), config.reach_of_tenants.clone());
        let hosts = Mutex::new(Hosts { all, of_tenants, given: HashMap::new() });
        let restored = restored::mark(&config.data_dir).map_err(|error| {
            let folder = config.data_dir.display();
            ServiceError::new(ErrorKind::Unavailable, format!("cannot read whether {folder} was restored: {error}"))
        })?;
        let permitted = Self { config, access, secrets, links, files: Mutex::default(), hosts, restored };
        let own = Tenant::default();
        let files = permitted.files_of(&own)?;
        permitted.files.lock().insert(own, files);
        Ok(permitted)
    }

    /// What connectors find in this process for a tenant.
    pub(super) fn host(&self, tenant: &Tenant) -> ConnectorContext {
        let (own, of) = (self.secrets.clone(), tenant.clone());
        let secrets = connector::Secrets::found_by(move |name| own.value(&of.named(name)));
        ConnectorContext {
            files: self.files(tenant),
            reach: self.reach(tenant),
            secrets,
            links: Some(self.links.of(tenant)),
            restored: self.restored.clone(),
            ..ConnectorContext::default()
        }
    }

    /// The links to other servers.
    pub(super) fn links(&self) -> &ServerLinks {
        &self.links
    }

    /// Checks that an application of a tenant reads and writes topics of the tenant. Statements are checked before; but
    /// an earlier version may have registered it, with topics that its queries name.
    pub(super) fn check_topics(&self, tenant: &Tenant, topics: &Topics) -> Result<(), ServiceError> {
        let other = topics.named().map(ToString::to_string).find(|topic| !self.access.is_topic_of(tenant, topic));
        match other {
            None => Ok(()),
            Some(topic) => {
                let message = format!("its topic '{topic}' is not one of the tenant '{tenant}'");
                Err(ServiceError::new(ErrorKind::Forbidden, message)
                    .with_hint(format!("write the addresses of its topics, 'mqtt:{tenant}/...'")))
            }
        }
    }

    /// What a tenant may have and use.
    pub(super) fn quota(&self, tenant: &Tenant) -> Arc<Quota> {
        self.access.quotas().of(tenant)
    }

    /// The share of the workers' time that a tenant has; `None` for the default tenant, whose share is that of all that
    /// is of no other.
    pub(super) fn share(&self, tenant: &Tenant) -> Option<Arc<Share>> {
        (!tenant.is_default()).then(|| self.quota(tenant).share().clone())
    }

    /// The files that statements of a tenant may name; none if its folder cannot be used.
    pub(super) fn files(&self, tenant: &Tenant) -> Files {
        if let Some(files) = self.files.lock().get(tenant) {
            return files.clone();
        }
        match self.files_of(tenant) {
            Ok(files) => self.files.lock().entry(tenant.clone()).or_insert(files).clone(),
            Err(error) => {
                tracing::error!(tenant = tenant.as_str(), "statements of a tenant may name no files: {error}");
                Files::default()
            }
        }
    }

    /// The hosts that statements of a tenant may reach.
    fn reach(&self, tenant: &Tenant) -> Reach {
        let key = (tenant.clone(), self.access.has_accounts());
        let hosts = &mut *self.hosts.lock();
        if let Some(given) = hosts.given.get(&key) {
            return given.clone();
        }
        let reach = self.reach_of(hosts, &key).live();
        hosts.given.insert(key, reach.clone());
        reach
    }

    fn reach_of(&self, hosts: &Hosts, (tenant, has_accounts): &(Tenant, bool)) -> Reach {
        let mut reach = hosts.all.clone();
        // Without accounts, and where only this machine reaches the server, a statement is of a local user, who can
        // reach the brokers of this machine anyway. Receivers of HTTP may be named by customers of that user.
        let is_local = tenant.is_default() && self.config.http_address.ip().is_loopback();
        if reach.brokers == AllowedHosts::default() && is_local && !has_accounts {
            reach.brokers = AllowedHosts::with_loopback();
        }
        let of_others = || hosts.of_tenants.get(OTHER_TENANTS).filter(|_| !tenant.is_default());
        if let Some(own) = hosts.of_tenants.get(tenant.as_str()).or_else(of_others) {
            (reach.posts, reach.brokers) = (own.clone(), own.clone());
        }
        // A port of this machine is a door that only its operator opens.
        if !tenant.is_default() && reach.listeners == AllowedHosts::everything() {
            reach.listeners = AllowedHosts::none(KEY_OF_LISTENERS);
        }
        reach
    }

    /// Has statements reach the hosts of another configuration, and connectors that are open with the next connection.
    pub(super) fn take_over(&self, config: &Config) {
        let hosts = &mut *self.hosts.lock();
        (hosts.all, hosts.of_tenants) = (config.reach.clone(), config.reach_of_tenants.clone());
        for (key, given) in &hosts.given {
            given.replace(self.reach_of(hosts, key));
        }
    }

    /// Fails if a folder of a tenant's own has anything in it: the next tenant of its name would have it.
    pub(super) fn check_has_no_files(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        for folder in self.own_folders(tenant).chain([self.exchange_folder(tenant)]) {
            let first = fs::read_dir(&folder).and_then(|mut entries| entries.next().transpose());
            match first {
                Ok(None) => {}
                Ok(Some(_)) => {
                    let message = format!("the tenant '{tenant}' has files in {}", folder.display());
                    return Err(ServiceError::new(ErrorKind::Conflict, message).with_hint(
                        "move all that is in this folder away or delete it: a later tenant of this name would have it",
                    ));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let message = format!("cannot look for files in {}: {error}", folder.display());
                    return Err(ServiceError::new(ErrorKind::Unavailable, message)
                        .with_hint("let the server read this folder, or remove it"));
                }
            }
        }
        Ok(())
    }

    /// Measures the files of tenants, of which that is limited, so that those count no more that were removed.
    pub(super) fn measure_files(&self) {
        for quota in self.access.quotas().all() {
            if quota.most(Limit::FileBytes).is_some() {
                let tenant = quota.tenant();
                let folders = self.own_folders(tenant).chain([self.exchange_folder(tenant)]);
                quota.measure(Limit::FileBytes, folders.map(|folder| bytes_below(&folder)).sum());
            }
        }
    }

    /// Gives the folder of a tenant in the data folder a name that no tenant's folder has, if it has files. Returns
    /// that folder.
    pub(super) fn set_aside_files(&self, tenant: &Tenant) -> Result<Option<PathBuf>, ServiceError> {
        let folder = self.exchange_folder(tenant);
        let Some(own) = folder.parent().filter(|_| !tenant.is_default()) else { return Ok(None) };
        if fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) {
            return set_aside(own).map(Some).map_err(|error| {
                let message = format!("cannot rename the folder {}: {error}", own.display());
                ServiceError::new(ErrorKind::Unavailable, message)
            });
        }
        Ok(None)
    }

    /// Forgets the rights of a tenant that was dropped. The next one of its name has its own.
    pub(super) fn forget(&self, tenant: &Tenant) {
        self.files.lock().remove(tenant);
        self.hosts.lock().given.retain(|(of, _), _| of != tenant);
    }

    /// The folder of a tenant in the data folder.
    fn exchange_folder(&self, tenant: &Tenant) -> PathBuf {
        let data_dir = &self.config.data_dir;
        match tenant.is_default() {
            true => data_dir.join(FILES),
            false => data_dir.join(TENANTS).join(tenant.file_name()).join(FILES),
        }
    }

    /// The folders of `files.allow` that are for one tenant alone.
    fn own_folders(&self, tenant: &Tenant) -> impl Iterator<Item = PathBuf> {
        let folders = self.config.files.allow.iter().map(|written| (of_tenant(written, tenant), written));
        folders.filter(|(path, written)| path != *written).map(|(path, _)| path)
    }

    fn files_of(&self, tenant: &Tenant) -> Result<Files, ServiceError> {
        let Config { data_dir, files, .. } = &*self.config;
        let folder = self.exchange_folder(tenant);
        let allowed: Vec<PathBuf> = files.allow.iter().map(|path| of_tenant(path, tenant)).collect();
        for folder in self.own_folders(tenant).chain(allowed.is_empty().then(|| folder.clone())) {
            fs::create_dir_all(&folder).map_err(|error| {
                let message = format!("cannot make the folder {}: {error}", folder.display());
                ServiceError::new(ErrorKind::Unavailable, message)
            })?;
        }
        let kept: Vec<_> = std::iter::once(data_dir).chain(&files.kept).cloned().collect();
        let room =
            TenantRoom { quota: self.quota(tenant), data_dir: data_dir.clone(), free_bytes_min: files.free_bytes_min };
        Files::below(&allowed, &kept, &folder, Some(Arc::new(room))).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("a folder of files.allow cannot be used: {error}"))
        })
    }
}

/// What files of a tenant may take.
#[derive(Debug)]
struct TenantRoom {
    quota: Arc<Quota>,
    data_dir: PathBuf,
    free_bytes_min: u64,
}

impl Room for TenantRoom {
    fn take(&self, bytes: u64) -> io::Result<()> {
        let refused = |text: String| Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        if let Some(free) = free_bytes(&self.data_dir).filter(|free| *free < self.free_bytes_min.saturating_add(bytes))
        {
            return refused(format!(
                "the disk of the data folder has {free} bytes left, and files.free_bytes_min keeps {} for the server\n\
                 hint: make room on that disk",
                self.free_bytes_min
            ));
        }
        self.quota.take_measured(Limit::FileBytes, bytes).or_else(|error| refused(error.text()))
    }
}

/// The bytes of all files in a folder and those below it. What cannot be read counts for nothing.
fn bytes_below(folder: &Path) -> u64 {
    let (mut bytes, mut folders) = (0, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(known) if known.is_dir() => folders.push(entry.path()),
                Ok(known) => bytes += known.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

/// A folder of `files.allow`, for a tenant.
fn of_tenant(path: &Path, tenant: &Tenant) -> PathBuf {
    match path.to_str().filter(|path| path.contains(TENANT)) {
        Some(path) => path.replace(TENANT, &tenant.file_name()).into(),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_tenant_is_its_own() {
        let path = |path: &str| of_tenant(Path::new(path), &Tenant::new("a/b"));
        assert_eq!(path("/srv/{tenant}/in"), Path::new("/srv/a%2fb/in"));
        assert_eq!(path("/srv/all"), Path::new("/srv/all"));
    }
}
