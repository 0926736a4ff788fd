//! The last message of each topic, retained for later subscribers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use super::message::Message;
use super::system::SYSTEM;
use super::tenants::{Held, Tenant, Tenants};

/// The number of messages that are checked for expiry in one go.
const EXPIRE_MAX: usize = 10_000;

type Messages = BTreeMap<Box<[u8]>, Kept>;

/// A retained message, and the tenant that it counts for.
#[derive(Debug)]
struct Kept {
    message: Arc<Message>,
    tenant: Option<Arc<Tenant>>,
}

/// The retained messages, by topic, bounded in number and bytes.
#[derive(Debug)]
pub(super) struct Retained {
    messages: Messages,
    /// What the broker says of itself, below `$SYS/`. It counts for no bound, and is not kept.
    system: Messages,
    bytes: usize,
    messages_max: usize,
    bytes_max: usize,
    /// Expired messages were removed from the topics before this one.
    expired_to: Vec<u8>,
}

/// An iteration over the retained messages that a filter matches, in order of topic.
#[derive(Debug)]
pub(super) struct Walk {
    /// A valid filter.
    filter: Box<str>,
    /// All topics below this one were visited.
    from: Vec<u8>,
}

/// The result of a step of a [`Walk`].
pub(super) enum Step {
    /// A message that matches. The next step finds it again unless it is [passed](Walk::pass).
    At(Arc<Message>),
    /// The given number of steps is used up.
    Paused,
    /// There is no further message.
    Over,
}

impl Walk {
    pub(super) fn new(filter: &str) -> Self {
        // Only topics count that begin like the filter, up to the level of its first wildcard. The '/' in front of a
        // '#' does not belong to that: 'a/#' matches 'a'.
        let literal = &filter[..filter.find(['+', '#']).unwrap_or(filter.len())];
        let prefix = if filter.ends_with('#') { literal.strip_suffix('/').unwrap_or(literal) } else { literal };
        Self { filter: filter.into(), from: prefix.into() }
    }

    /// The filter.
    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    /// Continues behind a topic.
    pub(super) fn pass(&mut self, topic: &[u8]) {
        self.from.clear();
        self.from.extend_from_slice(topic);
        self.from.push(0);
    }

    /// Its memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        // `from` may be longer than the filter, but only one walk of a session is under way at a time.
        size_of::<Self>() + 2 * self.filter.len()
    }
}

impl Retained {
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Self {
        Self {
            messages: BTreeMap::new(),
            system: BTreeMap::new(),
            bytes: 0,
            messages_max,
            bytes_max,
            expired_to: Vec::new(),
        }
    }

    /// Changes the bounds. Messages beyond them stay.
    pub(super) fn set_bounds(&mut self, messages_max: usize, bytes_max: usize) {
        (self.messages_max, self.bytes_max) = (messages_max, bytes_max);
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a tenant may have no further message of this size.
    pub(super) fn is_full_for(&self, tenant: Option<&Arc<Tenant>>, bytes: usize, tenants: &Tenants) -> bool {
        tenants.has_share(tenant, Held::RetainedMessages, 1, self.messages_max)
            || tenants.has_share(tenant, Held::RetainedBytes, bytes, self.bytes_max)
    }

    /// The message of a topic.
    pub(super) fn get(&self, topic: &[u8]) -> Option<&Arc<Message>> {
        self.messages.get(topic).map(|kept| &kept.message)
    }

    /// Replaces what the broker says of itself on a topic. Returns false if it has said so before.
    pub(super) fn tell(&mut self, message: &Arc<Message>) -> bool {
        let told = self.system.get(&message.topic).is_some_and(|told| told.message.payload == message.payload);
        if !told {
            self.system.insert(message.topic.clone(), Kept { message: message.clone(), tenant: None });
        }
        !told
    }

    /// The messages among which those of a filter are. No wildcard matches the first level of topics of the broker.
    fn store(&self, filter: &str) -> &Messages {
        if filter.starts_with(SYSTEM) { &self.system } else { &self.messages }
    }

    /// Whether no message can match a filter.
    pub(super) fn has_none(&self, filter: &str) -> bool {
        self.store(filter).is_empty()
    }

    /// The messages from a topic on, in order of topic.
    pub(super) fn from(&self, topic: &[u8]) -> impl Iterator<Item = (&[u8], &Arc<Message>)> {
        let from = (Bound::Included(topic), Bound::Unbounded);
        self.messages.range::<[u8], _>(from).map(|(topic, kept)| (&**topic, &kept.message))
    }

    /// The first topic at or below a level that has a message.
    pub(super) fn first_below(&self, level: &str) -> Option<Box<[u8]>> {
        let below = [level.as_bytes(), b"/"].concat();
        let of_level = || self.messages.get_key_value(level.as_bytes()).map(|(topic, _)| topic.clone());
        let first = self.from(&below).next().map(|(topic, _)| topic).filter(|topic| topic.starts_with(&below));
        of_level().or_else(|| first.map(Box::from))
    }

    /// Removes the message of a topic. Returns whether there was one.
    pub(super) fn remove(&mut self, topic: &[u8]) -> bool {
        let Some(Kept { message, tenant }) = self.messages.remove(topic) else { return false };
        let bytes = message.memory_bytes();
        self.bytes -= bytes;
        if let Some(tenant) = tenant {
            tenant.subtract(Held::RetainedMessages, 1);
            tenant.subtract(Held::RetainedBytes, bytes);
            tenant.subtract(Held::Memory, bytes);
        }
        true
    }

    /// Replaces the message of a topic, which counts for the tenant. If there is no room, returns false; the topic's
    /// last message is gone then. What the tenant has already is not looked at.
    pub(super) fn insert(&mut self, message: Arc<Message>, tenant: Option<Arc<Tenant>>) -> bool {
        // An old value must not stay where a newer one was published.
        self.remove(&message.topic);
        let bytes = message.memory_bytes();
        if self.messages.len() >= self.messages_max || self.bytes + bytes > self.bytes_max {
            return false;
        }
        self.bytes += bytes;
        if let Some(tenant) = &tenant {
            tenant.add(Held::RetainedMessages, 1);
            tenant.add(Held::RetainedBytes, bytes);
            tenant.add(Held::Memory, bytes);
        }
        self.messages.insert(message.topic.clone(), Kept { message, tenant });
        true
    }

    /// Makes steps of a walk until a message matches, and subtracts them from `steps`.
    ///
    /// A step is a look-up in the ordered topics. Where a topic does not match, the walk continues at the next one that
    /// may match, so all topics below a level that does not match are skipped together.
    pub(super) fn step(&self, walk: &mut Walk, steps: &mut usize, now: Instant) -> Step {
        while let Some(left) = steps.checked_sub(1) {
            *steps = left;
            let from = (Bound::Included(&walk.from[..]), Bound::Unbounded);
            let Some((topic, Kept { message, .. })) = self.store(&walk.filter).range::<[u8], _>(from).next() else {
                return Step::Over;
            };
            match seek(walk.filter.as_bytes(), topic) {
                Seek::Matches if message.is_expired(now) => walk.pass(topic),
                Seek::Matches => return Step::At(message.clone()),
                Seek::Next => walk.pass(topic),
                Seek::GoTo(next) => {
                    debug_assert!(next[..] > topic[..], "a walk goes forward");
                    walk.from = next;
                }
                Seek::Over => return Step::Over,
            }
        }
        Step::Paused
    }

    /// Removes expired messages of some topics; the next call continues with the topics behind them.
    pub(super) fn expire(&mut self, now: Instant) {
        let from = (Bound::Included(&self.expired_to[..]), Bound::Unbounded);
        let mut topics = self.messages.range::<[u8], _>(from);
        let mut expired = Vec::new();
        for (topic, kept) in topics.by_ref().take(EXPIRE_MAX) {
            if kept.message.is_expired(now) {
                expired.push(topic.clone());
            }
        }
        self.expired_to = topics.next().map_or(Vec::new(), |(topic, _)| topic.to_vec());
        for topic in expired {
            self.remove(&topic);
        }
    }
}

/// Where to look next, given the first topic from some point on.
#[derive(Debug, PartialEq, Eq)]
enum Seek {
    /// The topic matches.
    Matches,
    /// It does not match; the topic behind it may.
    Next,
    /// No topic below this one matches.
    GoTo(Vec<u8>),
    /// No later topic matches.
    Over,
}

/// Compares a valid filter with a topic, level by level. Topics are ordered by their bytes, so topics with the same
/// first levels are adjacent.
fn seek(filter: &[u8], topic: &[u8]) -> Seek {
    if topic.first() == Some(&b'$') && matches!(filter.first(), Some(b'+' | b'#')) {
        // A wildcard does not match a first level that begins with '$'.
        return Seek::GoTo(vec![b'$' + 1]);
    }
    // The offset of the level in the topic; `None` behind the last.
    let mut level = Some(0);
    for wanted in filter.split(|&byte| byte == b'/') {
        if wanted == b"#" {
            return Seek::Matches;
        }
        let Some(start) = level else { return Seek::Next };
        let end = topic[start..].iter().position(|&byte| byte == b'/').map(|at| start + at);
        let found = &topic[start..end.unwrap_or(topic.len())];
        if wanted != b"+" && wanted != found {
            return seek_level(&topic[..start], wanted, topic);
        }
        level = end.map(|end| end + 1);
    }
    match level {
        None => Seek::Matches,
        Some(below) => behind(&topic[..below]),
    }
}

/// Where to look for the level `wanted` below `above` (empty, or with a '/' at its end), given that `topic` has another
/// level there.
fn seek_level(above: &[u8], wanted: &[u8], topic: &[u8]) -> Seek {
    let mut next = [above, wanted].concat();
    if topic < &next[..] {
        return Seek::GoTo(next);
    }
    // Topics that begin with the level and have another character behind it may come before the topics below it: 'a-b'
    // before 'a/b'.
    next.push(b'/');
    if topic < &next[..] {
        return Seek::GoTo(next);
    }
    behind(above)
}

/// Behind all topics that begin with `above`, which is empty or ends with a '/'.
fn behind(above: &[u8]) -> Seek {
    match above.split_last() {
        Some((_, levels)) => Seek::GoTo([levels, &[b'/' + 1]].concat()),
        None => Seek::Over,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::super::codec::Publish;
    use super::super::super::topic;
    use super::*;

    fn message(topic: &str, payload: &str, expires_at: Option<Instant>) -> Arc<Message> {
        let publish =
            Publish { topic: topic.as_bytes(), payload: payload.as_bytes(), retain: true, ..Publish::default() };
        Arc::new(Message::of(&publish, expires_at))
    }

    /// The topics of a walk that pauses every few steps, and the number of its steps.
    fn walk(retained: &Retained, filter: &str, now: Instant) -> (Vec<String>, usize) {
        let (mut walk, mut topics, mut total) = (Walk::new(filter), Vec::new(), 0);
        loop {
            let mut steps = 3;
            let step = retained.step(&mut walk, &mut steps, now);
            total += 3 - steps;
            match step {
                Step::At(message) => {
                    topics.push(String::from_utf8(message.topic.to_vec()).unwrap());
                    walk.pass(&message.topic);
                }
                Step::Paused => {}
                Step::Over => return (topics, total),
            }
        }
    }

    fn topics(retained: &Retained, filter: &str, now: Instant) -> Vec<String> {
        walk(retained, filter, now).0
    }

    #[test]
    fn filters_find_what_they_match() {
        let now = Instant::now();
        let mut retained = Retained::new(100, 1 << 20);
        for topic in ["home", "home/1/t", "home/2/t", "home/2/h", "homes/1/t", "$own/x", "garden"] {
            assert!(retained.insert(message(topic, "x", None), None));
        }
        assert_eq!(topics(&retained, "home/+/t", now), ["home/1/t", "home/2/t"]);
        assert_eq!(topics(&retained, "home/#", now), ["home", "home/1/t", "home/2/h", "home/2/t"]);
        assert_eq!(topics(&retained, "garden", now), ["garden"]);
        assert_eq!(topics(&retained, "+/2/+", now), ["home/2/h", "home/2/t"]);
        assert_eq!(topics(&retained, "#", now).len(), 6);
        assert_eq!(topics(&retained, "$own/#", now), ["$own/x"]);
        assert!(topics(&retained, "cellar", now).is_empty());
    }

    #[test]
    fn what_cannot_match_is_passed_over() {
        let now = Instant::now();
        let mut retained = Retained::new(100_000, 64 << 20);
        for (home, room) in (0..100).flat_map(|home| (0..100).map(move |room| (home, room))) {
            assert!(retained.insert(message(&format!("home{home}/room{room}/temperature"), "x", None), None));
        }
        for (filter, found, steps_max) in
            [("+/cellar/#", 0, 300), ("home7/+/humidity", 0, 310), ("+/room7/temperature", 100, 400), ("x/#", 0, 2)]
        {
            let (topics, steps) = walk(&retained, filter, now);
            assert!(topics.len() == found && steps <= steps_max, "{filter}: {} in {steps} steps", topics.len());
        }
    }

    #[test]
    fn bounds_hold_and_the_bytes_are_counted_right() {
        let now = Instant::now();
        let mut retained = Retained::new(2, 1 << 20);
        assert!(retained.insert(message("a", "first", None), None) && retained.insert(message("b", "x", None), None));
        assert!(!retained.insert(message("c", "x", None), None));
        assert!(retained.insert(message("a", "second", Some(now + Duration::from_secs(1))), None));
        assert_eq!(retained.len(), 2);
        let later = now + Duration::from_secs(2);
        assert_eq!(topics(&retained, "#", now).len(), 2);
        assert_eq!(topics(&retained, "#", later), ["b"]);
        retained.expire(later);
        assert!(retained.remove("b".as_bytes()) && !retained.remove("b".as_bytes()));
        assert_eq!((retained.len(), retained.bytes()), (0, 0));
        let mut small = Retained::new(10, 300);
        assert!(!small.insert(message("a", &"x".repeat(400), None), None));
        assert_eq!(small.bytes(), 0);
    }

    #[test]
    fn what_is_worthless_goes_some_at_a_time() {
        let now = Instant::now();
        let later = now + Duration::from_secs(2);
        let mut retained = Retained::new(100_000, 64 << 20);
        for number in 0..2 * EXPIRE_MAX + 5 {
            let expires_at = (number % 2 == 0).then_some(now + Duration::from_secs(1));
            assert!(retained.insert(message(&format!("{number:06}"), "x", expires_at), None));
        }
        for left in [EXPIRE_MAX + EXPIRE_MAX / 2 + 5, EXPIRE_MAX + 5, EXPIRE_MAX + 2, EXPIRE_MAX + 2] {
            retained.expire(later);
            assert_eq!(retained.len(), left);
        }
    }

    /// Levels that are close to each other in the order of bytes.
    fn level() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["", "a", "a-", "a0", "aa", "b", "$a", "$"])
    }

    proptest! {
        #[test]
        fn a_walk_finds_what_a_look_at_each_topic_finds(
            stored in prop::collection::vec(prop::collection::vec(level(), 1..4), 0..40),
            filter in prop::collection::vec(prop_oneof![2 => level().boxed(), 1 => Just("+").boxed()], 1..4),
            has_hash in any::<bool>(),
        ) {
            let mut retained = Retained::new(1000, 1 << 20);
            let mut all: Vec<String> = stored.iter().map(|levels| levels.join("/")).collect();
            all.retain(|topic| !topic.is_empty());
            all.iter().for_each(|topic| assert!(retained.insert(message(topic, "x", None), None)));
            let filter = filter.join("/") + if has_hash { "/#" } else { "" };
            prop_assume!(!filter.is_empty());
            all.sort();
            all.dedup();
            all.retain(|topic| topic::matches(filter.as_bytes(), topic.as_bytes()));
            prop_assert_eq!(topics(&retained, &filter, Instant::now()), all);
        }
    }
}
