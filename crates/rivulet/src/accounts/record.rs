//! Users, and limits of tenants, as they are saved: JSON, one text for each. A field that is added later has a default,
//! so that every earlier record is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::service::{Action, FullName, Grant, Limit, Limits, ResourceKind, Rights, administers_server};

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UserRecord {
    /// Seconds since the epoch.
    pub(super) created_s: u64,
    /// Whether it has all rights.
    #[serde(default)]
    pub(super) all: bool,
    #[serde(default)]
    pub(super) grants: Vec<GrantRecord>,
    #[serde(default)]
    pub(super) tokens: Vec<TokenRecord>,
    /// The hash of its password, as a PHC string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) password: Option<String>,
}

/// A right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GrantRecord {
    /// Some of [`rivulet_sql::GRANT_ACTIONS`], in that order.
    pub(super) actions: Vec<String>,
    /// One of [`rivulet_sql::GRANT_KINDS`].
    pub(super) kind: String,
    /// As it was written; `None` for every name.
    pub(super) pattern: Option<String>,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TokenRecord {
    /// 16 hex digits.
    pub(super) id: String,
    /// SHA-256 of its text, in hex digits.
    pub(super) hash: String,
    /// Seconds since the epoch, as all times here.
    pub(super) created_s: u64,
    #[serde(default)]
    pub(super) expires_s: Option<u64>,
    #[serde(default)]
    pub(super) last_used_s: Option<u64>,
    /// Whether the user has got it for its password, with which it ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) by_password: bool,
}

/// What stands for the user's name in the filter of a topic.
const USER: &str = "%u";

impl UserRecord {
    pub(super) fn rights(&self, user: &FullName) -> Rights {
        let grants = self.grants.iter().filter_map(|grant| grant.grant(&user.name)).collect();
        Rights::new(user.clone(), self.all, grants)
    }

    /// Whether a user of this name administers the server, and has a password or such a token for that.
    pub(super) fn can_administer(&self, user: &FullName, is_token: impl FnMut(&TokenRecord) -> bool) -> bool {
        administers_server(user, self.all) && (self.password.is_some() || self.tokens.iter().any(is_token))
    }
}

impl GrantRecord {
    /// The right of a user of this name; `None` for words that this version does not know, which then allow nothing.
    fn grant(&self, user: &str) -> Option<Grant> {
        let kind = kind_of(&self.kind)?;
        let actions = self.actions.iter().filter_map(|action| action_of(action)).collect();
        let pattern = self.pattern.as_ref().map(|pattern| match kind {
            ResourceKind::Topic => pattern.replace(USER, user),
            _ => pattern.clone(),
        });
        Some(Grant { actions, kind, pattern })
    }
}

pub(super) fn kind_of(word: &str) -> Option<ResourceKind> {
    use ResourceKind::{Application, Query, Secret, Server, Sink, Source, Table, Topic, View};
    let kinds = [Application, Query, Table, Source, Sink, View, Secret, Topic, Server];
    rivulet_sql::GRANT_KINDS.iter().zip(kinds).find(|(known, _)| **known == word).map(|(_, kind)| kind)
}

pub(super) fn action_of(word: &str) -> Option<Action> {
    use Action::{Administer, Change, Publish, Read, Subscribe};
    let actions = [Read, Change, Subscribe, Publish, Administer];
    rivulet_sql::GRANT_ACTIONS.iter().zip(actions).find(|(known, _)| **known == word).map(|(_, action)| action)
}

/// The limits in a catalog. What a later version has added is left out, and limits nothing.
pub(super) fn read_limits(text: &str) -> Result<Limits, serde_json::Error> {
    let mut limits = Limits::default();
    for (name, most) in serde_json::from_str::<BTreeMap<String, u64>>(text)? {
        match Limit::named(&name) {
            Some(limit) => limits.set(limit, Some(most)),
            None => tracing::warn!(limit = name, "a limit of a tenant is not known to this version, and left out"),
        }
    }
    Ok(limits)
}

/// Limits as the catalog has them; `None` if there are none.
pub(super) fn limits_text(limits: &Limits) -> Option<String> {
    (!limits.is_empty()).then(|| serde_json::to_string(&limits.by_name()).expect("they are names and numbers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What versions have written, one for each change of the form. Lines are added and never changed.
    const SAVED: [&str; 3] = [
        r#"{"created_s":1795000000}"#,
        r#"{"created_s":1795000000,"all":true,"grants":[{"actions":["read","subscribe"],"kind":"query",
            "pattern":"home-7-%"},{"actions":["administer"],"kind":"server","pattern":null}],
            "tokens":[{"id":"00000000000000a1","hash":"ab","created_s":1,"expires_s":2,"last_used_s":null}]}"#,
        r#"{"created_s":1795000000,"password":"$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$aGFzaA",
            "tokens":[{"id":"00000000000000a1","hash":"ab","created_s":1,"expires_s":2,"by_password":true}]}"#,
    ];

    #[test]
    fn what_every_version_saved_is_read() {
        let read = SAVED.map(|text| serde_json::from_str::<UserRecord>(text).expect(text));
        assert_eq!(read[0], UserRecord { created_s: 1_795_000_000, ..UserRecord::default() });
        assert!(read[2].password.is_some() && read[2].tokens[0].by_password && !read[1].tokens[0].by_password);
        assert!(read[1].all && read[1].grants.len() == 2 && read[1].tokens[0].expires_s == Some(2));
        for record in read {
            let text = serde_json::to_string(&record).expect("text");
            assert_eq!(serde_json::from_str::<UserRecord>(&text).expect("a record"), record);
        }
    }

    #[test]
    fn every_word_of_a_grant_means_something() {
        assert!(rivulet_sql::GRANT_KINDS.iter().all(|word| kind_of(word).is_some()));
        assert!(rivulet_sql::GRANT_ACTIONS.iter().all(|word| action_of(word).is_some()));
    }

    /// What versions have written, one for each change of the form. Lines are added and never changed.
    const SAVED_LIMITS: [&str; 4] = [
        "{}",
        r#"{"applications":10,"big_queries":0,"bytes_out_per_second":9,"bytes_per_second":8,"events_per_second":5000,
            "log_bytes":1048576,"queries":1000,"requests_per_second":7,"state_bytes":1073741824,"streams":50,
            "workers":4}"#,
        r#"{"applications":10,"big_queries":0,"bytes_out_per_second":9,"bytes_per_second":8,"events_per_second":5000,
            "log_bytes":1048576,"queries":1000,"requests_per_second":7,"state_bytes":1073741824,"streams":50,
            "weight":200,"workers":4}"#,
        r#"{"applications":10,"big_queries":0,"bytes_out_per_second":9,"bytes_per_second":8,"events_per_second":5000,
            "file_bytes":4096,"log_bytes":1048576,"queries":1000,"requests_per_second":7,"state_bytes":1073741824,
            "streams":50,"weight":200,"workers":4}"#,
    ];

    #[test]
    fn limits_that_every_version_saved_are_read_limits() {
        let [none, before, weighted, all] = SAVED_LIMITS.map(|text| read_limits(text).expect(text));
        assert!(none.is_empty() && limits_text(&none).is_none());
        assert_eq!((before.get(Limit::Workers), before.get(Limit::Weight)), (Some(4), None));
        assert_eq!((weighted.get(Limit::Weight), weighted.get(Limit::FileBytes)), (Some(200), None));
        assert!(Limit::ALL.iter().all(|limit| all.get(*limit).is_some()));
        assert_eq!((all.get(Limit::Queries), all.get(Limit::BigQueries)), (Some(1000), Some(0)));
        assert_eq!(read_limits(&limits_text(&all).expect("text")).expect("limits"), all);
        let later = read_limits(r#"{"queries":1,"quanta":2}"#).expect("of a later version");
        assert_eq!(later.by_name(), BTreeMap::from([("queries", 1)]));
        assert!(read_limits(r#"{"queries":"many"}"#).is_err());
    }
}
