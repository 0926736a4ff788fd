//! The subscriptions of all sessions, by number and by topic, and the groups of shared subscriptions.
//!
//! A group is what `$share/NAME/FILTER` names: its members get each message once together (MQTT 5, 4.8.2). Clients of
//! other scopes have other groups of the same name.

use hashbrown::HashMap;

use super::super::codec::{Publish, Qos};
use super::super::index::TopicIndex;
use super::super::topic;
use super::addresses::SessionKey;
use super::journal::Subscribed;
use super::message::{Identifiers, Manner, OfGroup};
use super::slab::Slab;

/// A session's subscription to a filter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscription {
    pub(super) session: SessionKey,
    pub(super) qos: Qos,
    pub(super) no_local: bool,
    pub(super) retain_as_published: bool,
    pub(super) identifier: Option<u32>,
    /// The group that it is a member of.
    pub(super) group: Option<GroupKey>,
}

impl Subscription {
    /// How it gets a message.
    pub(super) fn manner(&self, publish: &Publish<'_>) -> Manner {
        Manner {
            qos: self.qos.min(publish.qos),
            retain: self.retain_as_published && publish.retain,
            is_shared: false,
            group: OfGroup::default(),
            identifiers: Identifiers::from(self.identifier),
        }
    }

    pub(super) fn subscribed<'f>(&self, filter: &'f str, wants_retained: bool) -> Subscribed<'f> {
        let Self { qos, no_local, retain_as_published, identifier, .. } = *self;
        Subscribed { filter, qos, no_local, retain_as_published, identifier, wants_retained }
    }
}

/// The number of a group. It is reused when the group has no member any more.
pub(super) type GroupKey = u32;

/// The most members of a group: for each message they may all be asked whether they have room.
const MEMBERS_MAX: usize = 1000;

/// The bit of a number in the index that says that it is that of a group.
const IS_GROUP: u32 = 1 << 31;

/// What begins the filter of a shared subscription.
const SHARE: &str = "$share/";

/// The filter of a SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted<'f> {
    /// All of it.
    text: &'f str,
    pub(super) is_shared: bool,
    /// The filter that topics match.
    pub(super) filter: &'f str,
}

impl<'f> Wanted<'f> {
    /// Reads a filter; `None` if it is not valid.
    pub(super) fn parse(text: &'f str) -> Option<Self> {
        let (is_shared, filter) = match text.strip_prefix(SHARE) {
            None => (false, text),
            Some(rest) => {
                let (name, filter) = rest.split_once('/')?;
                if name.is_empty() || name.contains(['+', '#']) {
                    return None;
                }
                (true, filter)
            }
        };
        topic::check_filter(filter).ok()?;
        Some(Self { text, is_shared, filter })
    }
}

/// The members of a shared subscription, which take turns.
struct Group {
    /// Its name in [`Subscriptions::by_name`].
    name: Box<str>,
    members: Vec<u32>,
    /// The member whose turn is next.
    next: usize,
}

/// How soon a session would get a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Readiness {
    /// When it is connected again.
    Away,
    /// When it has acknowledged others.
    Busy,
    /// At once.
    Ready,
}

/// A receiver of the messages of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// The subscription with this number.
    One(u32),
    /// One member of the group with this number.
    Group(GroupKey),
}

/// All subscriptions.
pub(super) struct Subscriptions {
    rows: Slab<Subscription>,
    index: TopicIndex<u32>,
    groups: Slab<Group>,
    by_name: HashMap<Box<str>, GroupKey, foldhash::fast::RandomState>,
}

impl Subscriptions {
    pub(super) fn new() -> Self {
        Self { rows: Slab::new(), index: TopicIndex::new(), groups: Slab::new(), by_name: HashMap::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Subscription> {
        self.rows.get(number)
    }

    /// Replaces the options of a subscription.
    pub(super) fn replace(&mut self, number: u32, subscription: Subscription) {
        if let Some(old) = self.rows.get_mut(number) {
            *old = Subscription { group: old.group, ..subscription };
        }
    }

    /// Prefetches the memory that [`Subscriptions::find`] will look at first.
    #[inline]
    pub(super) fn prefetch(&self, topic: &[u8]) {
        if !self.index.is_empty() {
            self.index.prefetch(topic);
        }
    }

    /// Adds all receivers of a topic.
    #[inline]
    pub(super) fn find(&self, topic: &[u8], found: &mut Vec<Receiver>) {
        self.index.for_each(topic, |&number| {
            found.push(match number & IS_GROUP {
                0 => Receiver::One(number),
                _ => Receiver::Group(number ^ IS_GROUP),
            });
        });
    }

    /// Adds a subscription of a client of this scope, and returns its number; `None` if its group is full.
    pub(super) fn insert(&mut self, wanted: Wanted<'_>, scope: &str, mut subscription: Subscription) -> Option<u32> {
        if !wanted.is_shared {
            let number = self.rows.insert(subscription);
            debug_assert!(number < IS_GROUP, "subscriptions are bounded far below");
            self.index.insert(wanted.filter, number);
            return Some(number);
        }
        let name = format!("{scope}\0{}", wanted.text);
        let key = match self.by_name.get(&*name) {
            Some(&key) => key,
            None => {
                let name: Box<str> = name.into();
                let key = self.groups.insert(Group { name: name.clone(), members: Vec::new(), next: 0 });
                self.by_name.insert(name, key);
                self.index.insert(wanted.filter, key | IS_GROUP);
                key
            }
        };
        let group = self.groups.get_mut(key).filter(|group| group.members.len() < MEMBERS_MAX)?;
        subscription.group = Some(key);
        let number = self.rows.insert(subscription);
        group.members.push(number);
        Some(number)
    }

    /// Removes a subscription, given its filter as it was subscribed to.
    pub(super) fn remove(&mut self, number: u32, filter: &str) {
        let Some(subscription) = self.rows.remove(number) else { return };
        let Some(key) = subscription.group else {
            self.index.remove(filter, number);
            return;
        };
        let Some(group) = self.groups.get_mut(key) else { return };
        if let Some(place) = group.members.iter().position(|&member| member == number) {
            group.members.remove(place);
            group.next -= usize::from(place < group.next);
        }
        if group.members.is_empty()
            && let Some(group) = self.groups.remove(key)
            && let Some(wanted) = Wanted::parse(filter)
        {
            self.by_name.remove(&group.name);
            self.index.remove(wanted.filter, key | IS_GROUP);
        }
    }

    /// Whether a group has a member that counts.
    pub(super) fn has_member(&self, group: GroupKey, counts: impl Fn(&Subscription) -> bool) -> bool {
        let members = self.groups.get(group).map_or(&[][..], |group| &group.members);
        members.iter().filter_map(|&number| self.rows.get(number)).any(counts)
    }

    /// The member of a group that gets the next message: of those that get it soonest the one whose turn it is.
    /// `readiness` is `None` for members that do not count.
    pub(super) fn pick(
        &mut self,
        group: GroupKey,
        readiness: impl Fn(&Subscription) -> Option<Readiness>,
    ) -> Option<Subscription> {
        let Group { members, next, .. } = self.groups.get_mut(group)?;
        let mut best: Option<(Readiness, usize)> = None;
        for step in 0..members.len() {
            let place = (*next + step) % members.len();
            if let Some(found) = self.rows.get(members[place]).and_then(&readiness)
                && best.is_none_or(|(known, _)| found > known)
            {
                best = Some((found, place));
                if found == Readiness::Ready {
                    break;
                }
            }
        }
        let (_, place) = best?;
        *next = place + 1;
        self.rows.get(members[place]).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(session: SessionKey) -> Subscription {
        Subscription {
            session,
            qos: Qos::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            identifier: None,
            group: None,
        }
    }

    #[test]
    fn a_shared_filter_names_a_group() {
        let parsed = |text| Wanted::parse(text).map(|wanted| (wanted.is_shared, wanted.filter));
        assert_eq!(parsed("a/+"), Some((false, "a/+")));
        assert_eq!(parsed("$share/g/a/+"), Some((true, "a/+")));
        assert_eq!(parsed("$share/g//"), Some((true, "/")));
        assert_eq!(parsed("$share"), Some((false, "$share")));
        for invalid in ["$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a", "$share/g/a#"] {
            assert_eq!(parsed(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn members_take_turns_and_the_ready_ones_come_first() {
        let mut all = Subscriptions::new();
        let wanted = Wanted::parse("$share/g/t").unwrap();
        let numbers: Vec<u32> = (1..=3).map(|session| all.insert(wanted, "", subscription(session)).unwrap()).collect();
        all.insert(wanted, "another scope", subscription(9)).unwrap();
        let mut found = Vec::new();
        all.find(b"t", &mut found);
        let groups: Vec<GroupKey> =
            found.iter().map(|one| if let Receiver::Group(key) = one { *key } else { 99 }).collect();
        assert_eq!(groups.len(), 2, "scopes are apart");
        let group = all.get(numbers[0]).unwrap().group.unwrap();
        let mut pick = |readiness: fn(SessionKey) -> Option<Readiness>| {
            all.pick(group, |member| readiness(member.session)).map(|one| one.session)
        };
        assert_eq!([(); 4].map(|()| pick(|_| Some(Readiness::Ready))), [Some(1), Some(2), Some(3), Some(1)]);
        assert_eq!(pick(|session| Some(if session == 1 { Readiness::Busy } else { Readiness::Away })), Some(1));
        assert_eq!(pick(|session| (session == 3).then_some(Readiness::Away)), Some(3));
        assert_eq!(pick(|_| None), None);
        for number in numbers {
            all.remove(number, "$share/g/t");
        }
        found.clear();
        all.find(b"t", &mut found);
        assert_eq!((found.len(), all.len()), (1, 1));
    }
}
