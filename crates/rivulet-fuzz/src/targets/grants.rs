//! Rights: a user's name, a client's id, then a pattern and names, a line each. A right over topics allows to publish
//! what its filter matches by the standard, and to subscribe to what lies within that; a right over names is LIKE of
//! the standard. A user of a tenant gets at no topic of others.

use rivulet::service::{Action, Grant, Resource, ResourceKind, Rights, Tenant};
use rivulet_connectors::mqtt::topic::{check_filter, check_topic, is_wildcard};

use super::mqtt_topics::standard;
use crate::Target;
use crate::reference::like;

/// See the module.
pub const TARGET: Target = Target {
    name: "grants",
    run,
    words: &["+", "#", "/", "%c", "%u", "%", "_", "\\", "acme/", "$SYS/", "\n", "\nhome/", "a%b"],
    mutations: 8_000,
};

/// The most names, and the longest name and pattern in bytes: the reference is slow.
const NAMES_MAX: usize = 20;
const BYTES_MAX: usize = 200;

fn run(bytes: &[u8]) {
    let lines = bytes.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    let mut lines = lines.filter(|line| line.len() <= BYTES_MAX);
    let (client, pattern) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let names: Vec<&str> = lines.take(NAMES_MAX).collect();
    for tenant in ["default", "acme"] {
        let rights = |kind| {
            let actions = vec![Action::Read, Action::Publish, Action::Subscribe];
            let grant = Grant { actions, kind, pattern: Some(pattern.to_owned()) };
            Rights::new(Tenant::new(tenant).named("ann"), false, vec![grant])
        };
        let (topics, queries) = (rights(ResourceKind::Topic), rights(ResourceKind::Query));
        for name in &names {
            let query = Resource { kind: ResourceKind::Query, name: Some(name) };
            assert_eq!(queries.allow(Action::Read, query, None), like(name, pattern), "{name:?} LIKE {pattern:?}");
            let topic = Resource { kind: ResourceKind::Topic, name: Some(name) };
            assert!(!queries.allow(Action::Publish, topic, Some(client)), "another kind");
        }
        check_topics(&topics, tenant, (pattern, client), &names);
    }
}

fn check_topics(rights: &Rights, tenant: &str, (pattern, client): (&str, &str), names: &[&str]) {
    let may = |action, name: &str| {
        let resource = Resource { kind: ResourceKind::Topic, name: Some(name) };
        rights.allow(action, resource, Some(client))
    };
    let is_own = |name: &str| tenant == "default" || name == tenant || name.starts_with(&format!("{tenant}/"));
    let topics: Vec<&str> = names.iter().copied().filter(|name| check_topic(name.as_bytes()).is_ok()).collect();
    // Patterns that are no filters are refused when they are granted.
    let is_filter = check_filter(&of_client(pattern, "x")).is_ok();
    // An id with these characters would be a wildcard or several levels, and stands nowhere.
    let is_id = !client.is_empty() && !client.contains(['+', '#', '/']);
    let is_usable = is_id || !pattern.contains("%c");
    let filter = of_client(pattern, client);
    for topic in &topics {
        let allowed = may(Action::Publish, topic);
        assert!(!allowed || is_own(topic), "{topic:?} is not of {tenant}");
        if is_filter {
            let expected = is_own(topic) && is_usable && standard(&filter, topic);
            assert_eq!(allowed, expected, "{topic:?} with {pattern:?} of {client:?}");
        }
    }
    for wanted in names.iter().filter(|name| check_filter(name).is_ok()) {
        let allowed = may(Action::Subscribe, wanted);
        assert!(!allowed || is_own(wanted), "{wanted:?} is not of {tenant}");
        if !is_wildcard(wanted) {
            assert_eq!(allowed, may(Action::Publish, wanted), "a filter without wildcards is a topic: {wanted:?}");
        }
        for topic in topics.iter().filter(|topic| allowed && standard(wanted, topic)) {
            assert!(may(Action::Publish, topic), "{topic:?} comes by {wanted:?}, and is not within {pattern:?}");
        }
    }
}

/// The filter for a client, whose id stands in a level once.
fn of_client(pattern: &str, client: &str) -> String {
    pattern.split('/').map(|level| level.replacen("%c", client, 1)).collect::<Vec<_>>().join("/")
}
