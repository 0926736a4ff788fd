//! Messages kept for later subscribers, the last of each topic.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use super::super::topic;
use super::message::Message;

/// The retained messages, by topic, bounded in number and bytes.
#[derive(Debug)]
pub(super) struct Retained {
    messages: BTreeMap<Box<[u8]>, Arc<Message>>,
    bytes: usize,
    messages_max: usize,
    bytes_max: usize,
}

impl Retained {
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Self {
        Self { messages: BTreeMap::new(), bytes: 0, messages_max, bytes_max }
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the message of a topic.
    pub(super) fn remove(&mut self, topic: &[u8]) {
        if let Some(message) = self.messages.remove(topic) {
            self.bytes -= message.memory_bytes();
        }
    }

    /// Keeps a message in place of the last of its topic. Returns false, with the topic's last message gone, if there is no room.
    pub(super) fn insert(&mut self, message: Arc<Message>) -> bool {
        // An old value must not stay where a newer one was published.
        self.remove(&message.topic);
        if self.messages.len() >= self.messages_max || self.bytes + message.memory_bytes() > self.bytes_max {
            return false;
        }
        self.bytes += message.memory_bytes();
        self.messages.insert(message.topic.clone(), message);
        true
    }

    /// The messages whose topic matches a valid filter, in order of topic.
    pub(super) fn matching(&self, filter: &str, now: Instant) -> Vec<Arc<Message>> {
        let is_good = |message: &&Arc<Message>| !message.is_expired(now);
        if !topic::is_wildcard(filter) {
            return self.messages.get(filter.as_bytes()).filter(is_good).cloned().into_iter().collect();
        }
        // Only topics that begin like the filter, up to the level of its first wildcard. The '/' in front of a '#' does not
        // belong to that: 'a/#' matches 'a'.
        let literal = &filter[..filter.find(['+', '#']).unwrap_or(filter.len())];
        let prefix = if filter.ends_with('#') { literal.strip_suffix('/').unwrap_or(literal) } else { literal };
        let prefix = prefix.as_bytes();
        self.messages
            .range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(topic, _)| topic.starts_with(prefix))
            .filter(|(topic, _)| topic::matches(filter.as_bytes(), topic))
            .map(|(_, message)| message)
            .filter(is_good)
            .cloned()
            .collect()
    }

    /// Forgets what is worthless by now.
    pub(super) fn expire(&mut self, now: Instant) {
        self.messages.retain(|_, message| {
            let is_expired = message.is_expired(now);
            if is_expired {
                self.bytes -= message.memory_bytes();
            }
            !is_expired
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::codec::Publish;
    use super::*;

    fn message(topic: &str, payload: &str, expires_at: Option<Instant>) -> Arc<Message> {
        let publish =
            Publish { topic: topic.as_bytes(), payload: payload.as_bytes(), retain: true, ..Publish::default() };
        Arc::new(Message::of(&publish, expires_at))
    }

    fn topics(retained: &Retained, filter: &str, now: Instant) -> Vec<String> {
        let messages = retained.matching(filter, now);
        messages.iter().map(|message| String::from_utf8(message.topic.to_vec()).unwrap()).collect()
    }

    #[test]
    fn filters_find_what_they_match() {
        let now = Instant::now();
        let mut retained = Retained::new(100, 1 << 20);
        for topic in ["home", "home/1/t", "home/2/t", "home/2/h", "homes/1/t", "$SYS/x", "garden"] {
            assert!(retained.insert(message(topic, "x", None)));
        }
        assert_eq!(topics(&retained, "home/+/t", now), ["home/1/t", "home/2/t"]);
        assert_eq!(topics(&retained, "home/#", now), ["home", "home/1/t", "home/2/h", "home/2/t"]);
        assert_eq!(topics(&retained, "garden", now), ["garden"]);
        assert_eq!(topics(&retained, "+/2/+", now), ["home/2/h", "home/2/t"]);
        assert_eq!(topics(&retained, "#", now).len(), 6);
        assert_eq!(topics(&retained, "$SYS/#", now), ["$SYS/x"]);
        assert!(topics(&retained, "cellar", now).is_empty());
    }

    #[test]
    fn bounds_hold_and_the_bytes_are_counted_right() {
        let now = Instant::now();
        let mut retained = Retained::new(2, 1 << 20);
        assert!(retained.insert(message("a", "first", None)) && retained.insert(message("b", "x", None)));
        assert!(!retained.insert(message("c", "x", None)));
        assert!(retained.insert(message("a", "second", Some(now + Duration::from_secs(1)))));
        assert_eq!(retained.len(), 2);
        let later = now + Duration::from_secs(2);
        assert_eq!(topics(&retained, "#", now).len(), 2);
        assert_eq!(topics(&retained, "#", later), ["b"]);
        retained.expire(later);
        retained.remove("b".as_bytes());
        assert_eq!((retained.len(), retained.bytes()), (0, 0));
        let mut small = Retained::new(10, 300);
        assert!(!small.insert(message("a", &"x".repeat(400), None)));
        assert_eq!(small.bytes(), 0);
    }
}
