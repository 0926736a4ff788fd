//! Topics, filters and templates, a line each. What the index finds is what matches one by one, and that is what a
//! reference says that goes by the standard's words; what covers and overlaps agrees with what matches; what a template
//! binds is found by the template's filter.

use std::collections::BTreeSet;

use rivulet_connectors::mqtt::topic::{
    FILTER_LEVELS_MAX, check_filter, check_topic, covers, is_wildcard, matches, overlap,
};
use rivulet_connectors::mqtt::{Direction, Template, TopicIndex};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "mqtt_topics",
    run,
    words: &["+", "#", "/", "$SYS", "{a}", "{b}", "home/", "mqtt:", "\n", "\n+/", "\n#"],
    mutations: 8_000,
};

/// The most lines that are read.
const LINES_MAX: usize = 40;

fn run(bytes: &[u8]) {
    let lines: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').take(LINES_MAX).collect();
    let texts: Vec<&str> = lines.iter().filter_map(|line| std::str::from_utf8(line).ok()).collect();
    for line in &lines {
        if let Ok(topic) = check_topic(line) {
            check_filter(topic).ok().filter(|()| !is_wildcard(topic)).or_else(|| {
                assert!(topic.split('/').count() > FILTER_LEVELS_MAX, "a topic is a filter: {topic:?}");
                Some(())
            });
        }
    }
    let filters: Vec<&str> = texts.iter().copied().filter(|text| check_filter(text).is_ok()).collect();
    let topics: Vec<&str> = texts.iter().copied().filter(|text| check_topic(text.as_bytes()).is_ok()).collect();
    filters_and_topics(&filters, &topics);
    for template in &texts {
        for direction in [Direction::Input, Direction::Output] {
            bound(template, direction, &texts);
        }
    }
}

fn filters_and_topics(filters: &[&str], topics: &[&str]) {
    let mut index = TopicIndex::new();
    for (number, filter) in filters.iter().enumerate() {
        assert!(index.insert(filter, number), "no value is there twice");
    }
    let found = |index: &TopicIndex<usize>, topic: &str| {
        let mut found = Vec::new();
        index.for_each(topic.as_bytes(), |&number| found.push(number));
        let once: BTreeSet<usize> = found.iter().copied().collect();
        assert_eq!(once.len(), found.len(), "each value is found once");
        once
    };
    for topic in topics {
        let expected: BTreeSet<usize> = (0..filters.len()).filter(|&number| standard(filters[number], topic)).collect();
        for (number, filter) in filters.iter().enumerate() {
            assert_eq!(
                matches(filter.as_bytes(), topic.as_bytes()),
                expected.contains(&number),
                "{filter:?} {topic:?}"
            );
        }
        assert_eq!(found(&index, topic), expected, "{topic:?}");
        for a in &expected {
            for (b, other) in filters.iter().enumerate() {
                match expected.contains(&b) {
                    true => assert!(overlap(filters[*a], other), "{:?} {other:?} {topic:?}", filters[*a]),
                    false => assert!(!covers(other, filters[*a]), "{other:?} {:?} {topic:?}", filters[*a]),
                }
            }
        }
    }
    for (number, filter) in filters.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        assert!(index.remove(filter, number), "it is there");
    }
    for topic in topics {
        assert!(found(&index, topic).iter().all(|number| number % 2 == 1), "what was removed is not found");
    }
    for (number, filter) in filters.iter().enumerate().filter(|(number, _)| number % 2 == 1) {
        assert!(index.remove(filter, number), "it is there");
    }
    assert!(index.is_empty());
}

/// Whether a filter matches a topic (MQTT 5, 4.7).
pub(super) fn standard(filter: &str, topic: &str) -> bool {
    fn levels(filter: &[&str], topic: &[&str]) -> bool {
        match (filter, topic) {
            (["#"], _) => true,
            ([], []) => true,
            ([wanted, filter @ ..], [level, topic @ ..]) => {
                (wanted == level || *wanted == "+") && levels(filter, topic)
            }
            _ => false,
        }
    }
    let (wanted, given): (Vec<&str>, Vec<&str>) = (filter.split('/').collect(), topic.split('/').collect());
    !(topic.starts_with('$') && filter.starts_with(['+', '#'])) && levels(&wanted, &given)
}

fn bound(text: &str, direction: Direction, values: &[&str]) {
    let Ok(template) = Template::parse(text, &["a", "b"], direction) else { return };
    let again = Template::parse(&template.to_string(), &["a", "b"], direction).expect("it is shown as it was written");
    assert_eq!(again, template);
    for value in values.iter().take(4) {
        let Ok(topic) = template.bind(|_| value) else { continue };
        let mut written = String::new();
        template.write(&mut written, |_, out| out.push_str(value));
        assert_eq!(written, topic);
        check_filter(&topic).ok().unwrap_or_else(|| {
            assert!(direction == Direction::Output && topic.split('/').count() > FILTER_LEVELS_MAX, "{topic:?}");
        });
        let Some(filter) = template.filter() else { continue };
        if check_topic(topic.as_bytes()).is_ok() && !filter.starts_with('+') {
            assert!(matches(filter.as_bytes(), topic.as_bytes()), "{filter:?} of {text:?} matches {topic:?}");
        }
    }
}
