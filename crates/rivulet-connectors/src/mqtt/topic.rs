//! Topics and filters: which are valid, and which filter matches which topic.

use std::borrow::Cow;
use std::str;

/// The most bytes a topic or filter may have.
pub const TOPIC_BYTES_MAX: usize = 65_535;

/// The most levels a filter may have. It bounds the depth of the trie that holds filters.
pub const FILTER_LEVELS_MAX: usize = 200;

/// The beginning of the routes of events that come from other sources than MQTT: their key is in the place of a topic.
/// No client can publish to such a topic and no query can name it, because it has a NUL; no wildcard matches it,
/// because it begins with `$`.
pub const SOURCE_MARK: &str = "$\0";

/// Appends a text as one level of a topic that begins with [`SOURCE_MARK`]: characters with a meaning in topics are
/// written as `%` and two digits.
#[inline]
pub fn push_level(text: &str, out: &mut Vec<u8>) {
    let means = |byte: u8| matches!(byte, b'+' | b'#' | b'/' | b'%' | b'{' | b'}' | 0);
    if !text.bytes().any(means) {
        return out.extend_from_slice(text.as_bytes());
    }
    for byte in text.bytes() {
        match means(byte) {
            true => out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
            false => out.push(byte),
        }
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// The text of a level that [`push_level`] has written.
pub fn level_text(level: &str) -> Cow<'_, str> {
    if !level.contains('%') {
        return level.into();
    }
    let mut bytes = Vec::with_capacity(level.len());
    let mut rest = level.bytes();
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16)).unwrap_or_default() as u8;
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' { digit(rest.next()) << 4 | digit(rest.next()) } else { byte });
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// A topic that a peer has sent, for the log: its first bytes, in quotes, with escapes for what would not stay there.
pub(super) fn in_log(topic: &[u8]) -> String {
    const BYTES_MAX: usize = 200;
    let shown = String::from_utf8_lossy(&topic[..topic.len().min(BYTES_MAX)]);
    format!("{shown:?}{}", if topic.len() > BYTES_MAX { "..." } else { "" })
}

/// Why a topic or filter is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// It is empty.
    #[error("the topic is empty\nhint: a topic has at least one character, for example 'home/42/temperature'")]
    Empty,
    /// It is longer than the protocol can express.
    #[error("the topic has {bytes} bytes\nhint: a topic has at most 65535 bytes")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is not a text.
    #[error("the topic is not UTF-8 at byte {position}\nhint: topics are text; put binary data into the payload")]
    NotUtf8 {
        /// The first byte that is not UTF-8.
        position: usize,
    },
    /// It contains a NUL character.
    #[error("the topic '{topic}' contains a NUL character at byte {position}\nhint: leave it out")]
    Nul {
        /// The topic.
        topic: String,
        /// The byte position.
        position: usize,
    },
    /// A topic (not a filter) contains a wildcard.
    #[error(
        "the topic '{topic}' contains the wildcard '{wildcard}' at byte {position}\nhint: '+' and '#' may stand in what is subscribed to, not in what is published to"
    )]
    Wildcard {
        /// The topic.
        topic: String,
        /// `+` or `#`.
        wildcard: char,
        /// The byte position.
        position: usize,
    },
    /// A `+` shares its level with other characters.
    #[error(
        "in the filter '{filter}' the '+' at byte {position} does not stand alone in its level\nhint: write 'a/+/b', not 'a/x+/b'"
    )]
    PlusNotAlone {
        /// The filter.
        filter: String,
        /// The byte position.
        position: usize,
    },
    /// A `#` is not the whole last level.
    #[error(
        "in the filter '{filter}' the '#' at byte {position} is not the whole last level\nhint: write 'a/#', not 'a/#/b' or 'a#'"
    )]
    HashNotLast {
        /// The filter.
        filter: String,
        /// The byte position.
        position: usize,
    },
    /// A filter has too many levels.
    #[error("the filter '{filter}' has more than 200 levels\nhint: use '#' for the last levels")]
    TooManyLevels {
        /// The filter.
        filter: String,
    },
}

/// A part of a topic that is the value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopicPart {
    /// The whole topic.
    Whole,
    /// The level with this index.
    Level(usize),
    /// Everything from the level with this index on; empty if the topic ends before it.
    Rest(usize),
    /// The level with this index, as [`push_level`] has written it; null if it is empty.
    Key(usize),
}

impl TopicPart {
    /// The parts that the wildcards of a filter match, in their order.
    pub fn of_wildcards(filter: &str) -> Vec<Self> {
        let wildcard = |(place, level)| match level {
            "+" => Some(Self::Level(place)),
            "#" => Some(Self::Rest(place)),
            _ => None,
        };
        filter.split('/').enumerate().filter_map(wildcard).collect()
    }

    /// Returns this part of a topic.
    pub fn of(self, topic: &str) -> &str {
        match self {
            Self::Whole => topic,
            Self::Level(place) | Self::Key(place) => topic.split('/').nth(place).unwrap_or_default(),
            Self::Rest(place) => topic.splitn(place + 1, '/').nth(place).unwrap_or_default(),
        }
    }

    /// Returns this part of the topic of an event. Topics that are not text were refused on receipt.
    pub(crate) fn of_bytes(self, topic: &[u8]) -> &str {
        self.of(std::str::from_utf8(topic).unwrap_or_default())
    }
}

/// Checks the bytes of a topic that is published to.
#[inline]
pub fn check_topic(topic: &[u8]) -> Result<&str, TopicError> {
    // Nearly every topic passes this test: plain ASCII without special characters.
    let plain = topic.iter().all(|&byte| byte.is_ascii() && !matches!(byte, 0 | b'+' | b'#'));
    if plain && !topic.is_empty() && topic.len() <= TOPIC_BYTES_MAX {
        return str::from_utf8(topic).map_err(|error| TopicError::NotUtf8 { position: error.valid_up_to() });
    }
    check_topic_slowly(topic)
}

#[cold]
fn check_topic_slowly(topic: &[u8]) -> Result<&str, TopicError> {
    let text = check_text(topic)?;
    match text.find(['+', '#']) {
        None => Ok(text),
        Some(position) => Err(TopicError::Wildcard {
            topic: text.to_owned(),
            wildcard: char::from(text.as_bytes()[position]),
            position,
        }),
    }
}

/// Checks the rules that apply to topics and filters alike.
fn check_text(topic: &[u8]) -> Result<&str, TopicError> {
    if topic.is_empty() {
        return Err(TopicError::Empty);
    }
    if topic.len() > TOPIC_BYTES_MAX {
        return Err(TopicError::TooLong { bytes: topic.len() });
    }
    let text = str::from_utf8(topic).map_err(|error| TopicError::NotUtf8 { position: error.valid_up_to() })?;
    match text.find('\0') {
        None => Ok(text),
        Some(position) => Err(TopicError::Nul { topic: text.to_owned(), position }),
    }
}

/// Checks a filter that is subscribed to; a topic without wildcards is a filter too.
pub fn check_filter(filter: &str) -> Result<(), TopicError> {
    check_text(filter.as_bytes())?;
    let mut position = 0;
    let mut levels = filter.split('/').peekable();
    let mut count = 0;
    while let Some(level) = levels.next() {
        count += 1;
        if let Some(at) = level.find('#')
            && (level != "#" || levels.peek().is_some())
        {
            return Err(TopicError::HashNotLast { filter: filter.to_owned(), position: position + at });
        }
        if let Some(at) = level.find('+')
            && level != "+"
        {
            return Err(TopicError::PlusNotAlone { filter: filter.to_owned(), position: position + at });
        }
        position += level.len() + 1;
    }
    if count > FILTER_LEVELS_MAX {
        return Err(TopicError::TooManyLevels { filter: filter.to_owned() });
    }
    Ok(())
}

/// Checks the filter of a route, which may begin with [`SOURCE_MARK`].
pub(super) fn check_route(filter: &str) -> Result<(), TopicError> {
    check_filter(filter.strip_prefix(SOURCE_MARK).unwrap_or(filter))
}

/// Whether a valid filter can match more than one topic.
pub fn is_wildcard(filter: &str) -> bool {
    filter.bytes().any(|byte| matches!(byte, b'+' | b'#'))
}

/// Whether a valid filter matches a valid topic.
///
/// A `+` or `#` in the first level does not match topics that begin with `$` (MQTT 5, 4.7.2).
pub fn matches(filter: &[u8], topic: &[u8]) -> bool {
    if topic.first() == Some(&b'$') && matches!(filter.first(), Some(b'+' | b'#')) {
        return false;
    }
    let mut levels = topic.split(|&byte| byte == b'/');
    for wanted in filter.split(|&byte| byte == b'/') {
        if wanted == b"#" {
            // A '#' matches the parent level too: 'a/#' matches 'a'.
            return true;
        }
        match levels.next() {
            Some(level) if wanted == b"+" || wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// Whether a valid filter matches every topic that another one matches. (It finds that `#` covers `+/#`, but not the
/// reverse, which also holds.)
pub fn covers(wide: &str, narrow: &str) -> bool {
    if narrow.starts_with('$') && wide.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = narrow.split('/');
    for wanted in wide.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some("#") | None => return false,
            Some(level) if wanted == "+" || wanted == level => {}
            Some(_) => return false,
        }
    }
    levels.next().is_none()
}

/// Whether there are topics that two valid filters both match.
pub fn overlap(a: &str, b: &str) -> bool {
    let is_hidden = |system: &str, other: &str| system.starts_with('$') && other.starts_with(['+', '#']);
    if is_hidden(a, b) || is_hidden(b, a) {
        return false;
    }
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            // A '#' matches the parent level too.
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some(a), Some(b)) if a == b || a == "+" || b == "+" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter() -> impl Strategy<Value = String> {
        let level = prop_oneof![Just("a"), Just("b"), Just("$s"), Just("+")];
        (proptest::collection::vec(level, 1..4), any::<bool>())
            .prop_map(|(levels, hash)| levels.join("/") + if hash { "/#" } else { "" })
    }

    #[test]
    fn a_topic_in_the_log_is_one_short_line() {
        assert_eq!(in_log("büro/1".as_bytes()), "\"büro/1\"");
        assert_eq!(in_log(b"a\"\n\x1b[2J\xff"), "\"a\\\"\\n\\u{1b}[2J\u{fffd}\"");
        let long = in_log(&[b'\r'; 65_535]);
        assert_eq!(long, format!("\"{}\"...", "\\r".repeat(200)));
    }

    /// Every topic of up to four levels.
    fn topics() -> Vec<String> {
        let levels = ["a", "b", "$s", "x"];
        let mut topics: Vec<String> = levels.iter().map(ToString::to_string).collect();
        let mut last = topics.clone();
        for _ in 0..3 {
            last = last.iter().flat_map(|topic| levels.iter().map(move |level| format!("{topic}/{level}"))).collect();
            topics.extend_from_slice(&last);
        }
        topics
    }

    proptest! {
        #[test]
        fn what_covers_and_overlaps_is_what_matches_the_topics(a in filter(), b in filter()) {
            let matching = |filter: &str| -> std::collections::BTreeSet<String> {
                topics().into_iter().filter(|topic| matches(filter.as_bytes(), topic.as_bytes())).collect()
            };
            let (of_a, of_b) = (matching(&a), matching(&b));
            prop_assert_eq!(covers(&a, &b), of_a.is_superset(&of_b), "{} {}", &a, &b);
            prop_assert_eq!(overlap(&a, &b), !of_a.is_disjoint(&of_b), "{} {}", &a, &b);
        }
    }

    #[test]
    fn filters_match_as_the_standard_says() {
        let cases = [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a/b/c", "a/b", false),
            ("a/+/c", "a/b/c", true),
            ("a/+/c", "a//c", true),
            ("a/+", "a", false),
            ("+", "a", true),
            ("+", "/a", false),
            ("+/+", "/a", true),
            ("/+", "/a", true),
            ("#", "a/b/c", true),
            ("a/#", "a", true),
            ("a/#", "a/", true),
            ("a/#", "ab", false),
            ("a/b/#", "a/b/c/d", true),
            ("+/b/#", "a/b", true),
            ("#", "$SYS/uptime", false),
            ("+/uptime", "$SYS/uptime", false),
            ("$SYS/#", "$SYS/uptime", true),
            ("$SYS/+", "$SYS/uptime", true),
            ("a/+", "a/$b", true),
        ];
        for (filter, topic, expected) in cases {
            assert!(check_filter(filter).is_ok() && check_topic(topic.as_bytes()).is_ok());
            assert_eq!(matches(filter.as_bytes(), topic.as_bytes()), expected, "{filter} {topic}");
        }
    }

    #[test]
    fn broken_filters_are_refused_with_their_position() {
        let position = |filter: &str| match check_filter(filter).unwrap_err() {
            TopicError::PlusNotAlone { position, .. }
            | TopicError::HashNotLast { position, .. }
            | TopicError::Nul { position, .. } => position,
            other => panic!("{other}"),
        };
        assert_eq!(position("a/x+/b"), 3);
        assert_eq!(position("a/+x"), 2);
        assert_eq!(position("a/#/b"), 2);
        assert_eq!(position("a/b#"), 3);
        assert_eq!(position("a\0"), 1);
        assert_eq!(check_filter(""), Err(TopicError::Empty));
        assert!(check_filter(&"a/".repeat(FILTER_LEVELS_MAX - 1)).is_ok());
        assert!(matches!(check_filter(&"+/".repeat(FILTER_LEVELS_MAX)), Err(TopicError::TooManyLevels { .. })));
        assert!(matches!(check_filter(&"a".repeat(65_536)), Err(TopicError::TooLong { bytes: 65_536 })));
    }

    #[test]
    fn topics_have_no_wildcards_and_are_text() {
        assert_eq!(check_topic("häuser/42".as_bytes()), Ok("häuser/42"));
        assert!(matches!(check_topic(b"a/+/b"), Err(TopicError::Wildcard { wildcard: '+', position: 2, .. })));
        assert!(matches!(check_topic(b"a/#"), Err(TopicError::Wildcard { wildcard: '#', .. })));
        assert_eq!(check_topic(b"a\xff"), Err(TopicError::NotUtf8 { position: 1 }));
        assert!(matches!(check_topic(b"a\0b"), Err(TopicError::Nul { position: 1, .. })));
        assert_eq!(check_topic(b""), Err(TopicError::Empty));
        assert!(check_topic(b"+").unwrap_err().to_string().contains("hint:"));
    }

    #[test]
    fn wildcards_stand_for_parts_of_topics() {
        let parts = TopicPart::of_wildcards("home/+/room/+/#");
        let of = |topic: &'static str| parts.iter().map(|part| part.of(topic)).collect::<Vec<_>>();
        assert_eq!(of("home/7/room/bath/temperature/mean"), ["7", "bath", "temperature/mean"]);
        assert_eq!(of("home/7/room/bath"), ["7", "bath", ""], "'#' stands for nothing as well");
        assert_eq!(of("home//room//"), ["", "", ""]);
        assert_eq!(TopicPart::of_wildcards("home/7/a+b"), []);
        assert_eq!(TopicPart::of_wildcards("#")[0].of("a/b"), "a/b");
        assert_eq!(TopicPart::Whole.of("a/b"), "a/b");
    }
}
