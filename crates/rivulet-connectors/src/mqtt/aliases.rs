//! Topic aliases of a peer: numbers that stand for topics, on one connection (MQTT 5, 3.3.2.3.4).

use super::codec::{CodecError, Publish};
use super::properties::copy_properties_without_alias;

/// The most bytes of the topics that have an alias.
const TOPIC_BYTES_MAX: usize = 64 << 10;

/// The aliases that the peer of a connection has set.
#[derive(Debug)]
pub(super) struct Aliases {
    /// How many the peer was told that it may set.
    max: u16,
    /// The topic of each alias from 1 on; empty if it is not set.
    topics: Vec<Box<[u8]>>,
    /// Kept so that the memory is reused.
    properties: Vec<u8>,
}

impl Aliases {
    pub(super) fn new(max: u16) -> Self {
        Self { max, topics: Vec::new(), properties: Vec::new() }
    }

    /// Notes or replaces the alias of a message, whose properties are checked. Returns the message with its topic and
    /// without the alias, which means nothing on other connections.
    ///
    /// # Errors
    /// The alias is not one that the peer may use.
    #[cold]
    pub(super) fn resolve<'a>(&'a mut self, publish: &Publish<'a>, alias: u16) -> Result<Publish<'a>, CodecError> {
        if alias == 0 || alias > self.max {
            return Err(CodecError::TopicAlias("it is not among those that were offered"));
        }
        let place = usize::from(alias) - 1;
        if !publish.topic.is_empty() {
            if self.topics.len() <= place {
                self.topics.resize(place + 1, Box::default());
            }
            self.topics[place] = publish.topic.into();
            if self.topics.iter().map(|topic| topic.len()).sum::<usize>() > TOPIC_BYTES_MAX {
                return Err(CodecError::TopicAlias("topics with an alias have more than 64 KiB together"));
            }
        }
        let topic = self.topics.get(place).map_or(&[][..], |topic| topic);
        if topic.is_empty() {
            return Err(CodecError::TopicAlias("it stands for no topic"));
        }
        self.properties.clear();
        copy_properties_without_alias(publish.properties, &mut self.properties);
        Ok(Publish { topic, properties: &self.properties, ..*publish })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_stands_for_the_last_topic_that_came_with_it() {
        let mut aliases = Aliases::new(2);
        // An alias between two user properties.
        let user = [0x26, 0, 1, b'a', 0, 1, b'b'];
        let with_alias = |alias: u8| [&user[..], &[0x23, 0, alias], &user].concat();
        let mut resolved = |topic: &'static str, alias: u8| {
            let properties = with_alias(alias);
            let publish = Publish { topic: topic.as_bytes(), properties: &properties, ..Publish::default() };
            let resolved = aliases.resolve(&publish, u16::from(alias)).ok()?;
            assert_eq!(resolved.properties, [user, user].concat());
            Some(String::from_utf8(resolved.topic.to_vec()).unwrap())
        };
        assert_eq!(resolved("", 1), None);
        assert_eq!(resolved("a", 2).as_deref(), Some("a"));
        assert_eq!((resolved("", 2).as_deref(), resolved("", 1)), (Some("a"), None));
        assert_eq!(resolved("b", 2).as_deref(), Some("b"));
        assert_eq!(resolved("", 2).as_deref(), Some("b"));
        assert_eq!((resolved("c", 0), resolved("c", 3)), (None, None));
    }

    #[test]
    fn the_memory_of_aliases_is_bounded() {
        let (mut aliases, topic) = (Aliases::new(16), vec![b'x'; 40_000]);
        let publish = Publish { topic: &topic, properties: &[0x23, 0, 1], ..Publish::default() };
        assert!(aliases.resolve(&publish, 1).is_ok() && aliases.resolve(&publish, 1).is_ok());
        assert!(aliases.resolve(&publish, 2).is_err());
    }
}
