//! The rights of a user, as they are asked for: from memory, without a lock and without allocation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use super::names::FullName;
use super::resource::{Action, Resource, ResourceKind};
use crate::like::like;

/// What a user may do. Rights never change: others take their place, and these say so.
#[derive(Debug)]
pub struct Rights {
    user: FullName,
    /// Everything in the user's tenant; in the default tenant, the whole server.
    all: bool,
    grants: Vec<Grant>,
    is_outdated: AtomicBool,
    lessened: Arc<Ending>,
}

/// Something that ends once.
#[derive(Debug, Default)]
struct Ending {
    is_over: AtomicBool,
    bell: Notify,
}

impl Ending {
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    async fn wait(&self) {
        loop {
            let mut rung = std::pin::pin!(self.bell.notified());
            // From here on no ring is missed.
            rung.as_mut().enable();
            if self.is_over() {
                return;
            }
            rung.await;
        }
    }
}

/// A right over the names that fit a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What it allows.
    pub actions: Vec<Action>,
    /// The kind of what it is about.
    pub kind: ResourceKind,
    /// A pattern as for LIKE; of topics a filter of MQTT in which `%c` stands for the id of the client. `None` stands
    /// for every name.
    pub pattern: Option<String>,
}

impl Rights {
    /// The rights of a user.
    pub fn new(user: FullName, all: bool, grants: Vec<Grant>) -> Self {
        Self { user, all, grants, is_outdated: AtomicBool::new(false), lessened: Arc::default() }
    }

    /// Whose they are.
    pub fn user(&self) -> &FullName {
        &self.user
    }

    /// Whether the user may do everything on this server.
    pub fn has_server(&self) -> bool {
        administers_server(&self.user, self.all)
    }

    /// Whether others have taken their place, or the user was dropped.
    pub fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Acquire)
    }

    /// Puts other rights in their place.
    pub fn replace(&self, mut others: Self) -> Self {
        let is_kept = |grant: &Grant| {
            let allows_same = |other: &Grant| {
                let has = |action| other.actions.contains(action);
                other.kind == grant.kind && other.pattern == grant.pattern && grant.actions.iter().all(has)
            };
            others.grants.iter().any(allows_same)
        };
        let are_kept = others.all || (!self.all && self.grants.iter().all(is_kept));
        self.is_outdated.store(true, Ordering::Release);
        // Whoever has logged in with the first of them is told when any of those that follow allow less.
        match are_kept {
            true => others.lessened = self.lessened.clone(),
            false => self.lessened.end(),
        }
        others
    }

    /// The user was dropped.
    pub fn end(&self) {
        self.is_outdated.store(true, Ordering::Release);
        self.lessened.end();
    }

    /// Whether others have taken their place that allow less.
    pub fn are_lessened(&self) -> bool {
        self.lessened.is_over()
    }

    /// Completes when others have taken their place that allow less.
    pub async fn lessened(&self) {
        self.lessened.wait().await;
    }

    /// Whether they allow an action, of an MQTT client of this id if it is one.
    pub fn allow(&self, action: Action, resource: Resource<'_>, client_id: Option<&str>) -> bool {
        if self.has_server() {
            return true;
        }
        let is_default = self.user.tenant.is_default();
        let may_be_had = match resource.kind {
            // Topics are one space for all tenants; those of a tenant begin with its name.
            ResourceKind::Topic if !is_default => {
                resource.name.is_some_and(|topic| is_below(topic, self.user.tenant.as_str()))
            }
            ResourceKind::Tenant => false,
            // A backup and a checkpoint have the data of every tenant.
            ResourceKind::Server => is_default || action != Action::Administer,
            // Who changes accounts could give itself every right.
            ResourceKind::User => self.all,
            _ => true,
        };
        may_be_had && (self.all || self.grants.iter().any(|grant| grant.allows(action, resource, client_id)))
    }

    /// A literal level below which they allow every client of the user to publish everything, if there is one. For what
    /// is not below it, [`Rights::allow`] has to be asked.
    pub fn publishes_below(&self) -> Option<&str> {
        let tenant = &self.user.tenant;
        if self.all {
            return (!tenant.is_default()).then(|| tenant.as_str());
        }
        let topics = self
            .grants
            .iter()
            .filter(|grant| grant.kind == ResourceKind::Topic && grant.actions.contains(&Action::Publish));
        let mut levels = topics.filter_map(|grant| grant.pattern.as_deref()?.strip_suffix("/#"));
        levels.find(|level| {
            let is_literal = !level.starts_with('$') && !level.contains(['+', '#']) && !level.contains(CLIENT);
            is_literal && (tenant.is_default() || is_below(level, tenant.as_str()))
        })
    }
}

/// Whether a user administers the server, and not only a tenant. `all` says whether it has all rights.
pub(crate) fn administers_server(user: &FullName, all: bool) -> bool {
    all && user.tenant.is_default()
}

/// Whether a token that ends at this time, if ever, has expired. Times are seconds since the epoch.
pub(crate) fn has_expired(expires_s: Option<u64>, now_s: u64) -> bool {
    expires_s.is_some_and(|expires_s| expires_s <= now_s)
}

/// Whether a topic or filter is below a level, which is literal in both, or that level itself: a filter `level/#`
/// includes it.
pub(crate) fn is_below(topic: &str, level: &str) -> bool {
    topic.strip_prefix(level).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Grant {
    fn allows(&self, action: Action, resource: Resource<'_>, client_id: Option<&str>) -> bool {
        if resource.kind != self.kind || !self.actions.contains(&action) {
            return false;
        }
        match (&self.pattern, resource.name) {
            (None, _) => true,
            // A list has every name, and a name that the server will give is any.
            (Some(_), None) => false,
            (Some(pattern), Some(topic)) if self.kind == ResourceKind::Topic => {
                covers(pattern, topic, action == Action::Subscribe, client_id)
            }
            (Some(pattern), Some(name)) => like(name, pattern),
        }
    }
}

/// Whether all topics of `topic`, which is a filter if `is_filter`, are among those of the filter `granted`. In it `%c`
/// stands for the id of the client.
fn covers(granted: &str, topic: &str, is_filter: bool, client_id: Option<&str>) -> bool {
    // As in MQTT: wildcards at the begin mean no topics of the broker itself.
    if topic.starts_with('$') && !granted.starts_with('$') {
        return false;
    }
    let (mut granted, mut topic) = (granted.split('/'), topic.split('/'));
    loop {
        match (granted.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some("+"), Some(level)) => {
                if is_filter && level == "#" {
                    return false;
                }
            }
            (Some(own), Some(level)) => {
                let is_wild = is_filter && (level == "+" || level == "#");
                if is_wild || !is_level(own, level, client_id) {
                    return false;
                }
            }
        }
    }
}

/// Whether a level of a topic is a granted one.
fn is_level(granted: &str, level: &str, client_id: Option<&str>) -> bool {
    let Some((before, behind)) = granted.split_once(CLIENT) else { return granted == level };
    // An id with these characters would be a wildcard, or several levels.
    let id = client_id.filter(|id| !id.is_empty() && !id.contains(['+', '#', '/']));
    let own = level.strip_prefix(before).and_then(|level| level.strip_suffix(behind));
    id.is_some() && own == id
}

/// What stands for the id of the client in a granted filter.
const CLIENT: &str = "%c";

/// What somebody has shown to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginProof {
    /// The token of this id, which is no secret.
    Token(u64),
    /// The user's password.
    Password,
    /// The certificate of a connection.
    Certificate,
    /// A JSON Web Token.
    Jwt {
        /// Who has issued it.
        issuer: Arc<str>,
        /// Whom the issuer means.
        subject: String,
    },
}

/// A token, or what stands in its place, that somebody has logged in with.
#[derive(Debug)]
pub struct LoginToken {
    /// What was shown.
    pub proof: LoginProof,
    /// When it ends, in seconds since the epoch; `u64::MAX` for never.
    pub expires_s: AtomicU64,
    /// When it was last used, in seconds since the epoch; 0 for never.
    pub last_used_s: AtomicU64,
    ending: Ending,
}

impl LoginToken {
    /// One that has not ended.
    pub fn new(proof: LoginProof, expires_s: Option<u64>, last_used_s: Option<u64>) -> Self {
        Self {
            proof,
            expires_s: AtomicU64::new(expires_s.unwrap_or(u64::MAX)),
            last_used_s: AtomicU64::new(last_used_s.unwrap_or(0)),
            ending: Ending::default(),
        }
    }

    /// Whether it was dropped, or has expired and that was noticed.
    pub fn has_ended(&self) -> bool {
        self.ending.is_over()
    }

    /// It is worth nothing from now on.
    pub fn end(&self) {
        self.ending.end();
    }

    /// Completes when it has ended.
    pub async fn ended(&self) {
        self.ending.wait().await;
    }

    /// Whether it has expired by this time.
    pub fn is_expired_at(&self, now_s: u64) -> bool {
        has_expired(Some(self.expires_s.load(Ordering::Acquire)), now_s)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tenant;
    use super::*;

    #[test]
    fn a_granted_filter_covers_what_is_within_it() {
        for (granted, topic, publish, subscribe) in [
            ("home/7/#", "home/7", true, true),
            ("home/7/#", "home/7/a/b", true, true),
            ("home/7/#", "home/7/#", true, true),
            ("home/7/#", "home/8/a", false, false),
            ("home/7/#", "home/+/a", false, false),
            ("home/7/#", "home/#", false, false),
            ("home/7/#", "#", false, false),
            ("home/7/#", "+/7/a", false, false),
            ("home/+/t", "home/7/t", true, true),
            ("home/+/t", "home/+/t", true, true),
            ("home/+/t", "home/#", false, false),
            ("home/+/t", "home/7", false, false),
            ("home/+/t", "home/7/t/x", false, false),
            ("home/+", "home/#", true, false),
            ("#", "a/b", true, true),
            ("#", "#", true, true),
            ("#", "$SYS/a", false, false),
            ("+/a", "$SYS/a", false, false),
            ("$SYS/#", "$SYS/a", true, true),
            ("a", "a", true, true),
            ("a", "a/b", false, false),
            ("a", "+", false, false),
            ("in/%c/t", "in/d-1/t", true, true),
            ("in/%c/t", "in/d-2/t", false, false),
            ("in/%c/t", "in/+/t", false, false),
            ("in/x-%c.y/t", "in/x-d-1.y/t", true, true),
            ("in/x-%c.y/t", "in/x-d-1/t", false, false),
        ] {
            assert_eq!(covers(granted, topic, false, Some("d-1")), publish, "publish {topic} with {granted}");
            assert_eq!(covers(granted, topic, true, Some("d-1")), subscribe, "subscribe {topic} with {granted}");
        }
        for id in [None, Some(""), Some("#"), Some("+"), Some("a/b")] {
            for topic in ["in//t", "in/#/t", "in/+/t", "in/a/b/t"] {
                assert!(!covers("in/%c/t", topic, true, id), "{id:?} {topic}");
            }
        }
    }

    #[test]
    fn everything_of_a_tenant_is_neither_the_server_nor_a_topic_of_another() {
        let of = |tenant: &str| Rights::new(Tenant::new(tenant).named("ann"), true, Vec::new());
        let (acme, own) = (of("acme"), of("default"));
        for (action, kind, name, may) in [
            (Action::Change, ResourceKind::Query, Some("q"), true),
            (Action::Administer, ResourceKind::User, Some("bob"), true),
            (Action::Read, ResourceKind::Server, None, true),
            (Action::Administer, ResourceKind::Server, None, false),
            (Action::Administer, ResourceKind::Tenant, Some("acme"), false),
            (Action::Publish, ResourceKind::Topic, Some("acme/a"), true),
            (Action::Publish, ResourceKind::Topic, Some("acme"), true),
            (Action::Publish, ResourceKind::Topic, Some("acme2/a"), false),
            (Action::Subscribe, ResourceKind::Topic, Some("acme/#"), true),
            (Action::Subscribe, ResourceKind::Topic, Some("+/a"), false),
            (Action::Subscribe, ResourceKind::Topic, Some("#"), false),
        ] {
            let resource = Resource { kind, name };
            assert_eq!(acme.allow(action, resource, None), may, "{action:?} {resource}");
            assert!(own.allow(action, resource, None), "{action:?} {resource}");
        }
    }

    #[test]
    fn below_a_level_every_topic_may_be_published() {
        let with = |tenant: &str, patterns: &[&str]| {
            let grants = patterns.iter().map(|pattern| Grant {
                actions: vec![Action::Publish],
                kind: ResourceKind::Topic,
                pattern: Some((*pattern).to_owned()),
            });
            Rights::new(Tenant::new(tenant).named("ann"), false, grants.collect())
        };
        for (tenant, patterns, level) in [
            ("default", &["home/7/#"] as &[&str], Some("home/7")),
            ("default", &["home/+/t", "in/%c/#", "a/+/#", "#", "$SYS/#", "home/8", "home/7/#"], Some("home/7")),
            ("default", &["home/7"], None),
            ("acme", &["home/7/#"], None),
            ("acme", &["acme2/#", "acme/#"], Some("acme")),
        ] {
            let rights = with(tenant, patterns);
            assert_eq!(rights.publishes_below(), level, "{tenant} {patterns:?}");
            for topic in level.iter().flat_map(|level| [level.to_string(), format!("{level}/a/b"), format!("{level}/")])
            {
                let resource = Resource { kind: ResourceKind::Topic, name: Some(&topic) };
                assert!(rights.allow(Action::Publish, resource, None), "{topic} with {patterns:?}");
            }
        }
        let all = |tenant: &str| Rights::new(Tenant::new(tenant).named("ann"), true, Vec::new());
        assert_eq!(all("acme").publishes_below(), Some("acme"));
        assert_eq!(all("default").publishes_below(), None, "there is no level of everything");
    }
}
