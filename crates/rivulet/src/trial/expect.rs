//! Compares results with those that a file expects: one JSON object per line, with `payload` and, if they matter,
//! `topic` and `time`. The JSON output of a trial is such a file; its lines that are not results are ignored.
//!
//! The order counts within a topic; if the file has no topics, among all results. Numbers are equal if they differ by
//! less than a billionth.

use serde_json::Value;

use super::event::{parse_time_us, time_text};
use super::report::Report;
use crate::service::ServiceError;

/// An expected result.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    line: usize,
    topic: Option<String>,
    payload: Value,
    time_us: Option<i64>,
}

impl Expected {
    /// Reads a line of a file; `None` for a line that is not a result.
    ///
    /// # Errors
    /// It is not a JSON object, or a field of it is unknown or invalid.
    pub fn parse(text: &str, line: usize) -> Result<Option<Self>, ServiceError> {
        let wrong = |message: &str| {
            ServiceError::invalid(format!("line {line} of the expected results {message}"))
                .with_hint("write {\"topic\": \"...\", \"payload\": {...}}, and \"time\" if it matters")
        };
        if text.trim().is_empty() {
            return Ok(None);
        }
        let Ok(Value::Object(mut object)) = serde_json::from_str::<Value>(text) else {
            return Err(wrong("is no JSON object"));
        };
        if object.remove("kind").is_some_and(|kind| kind != "result") {
            return Ok(None);
        }
        let Some(payload) = object.remove("payload") else { return Err(wrong("has no payload")) };
        let topic = match object.remove("topic") {
            None => None,
            Some(Value::String(topic)) => Some(topic),
            Some(_) => return Err(wrong("has a topic that is no text")),
        };
        let time_us = match object.remove("time") {
            None => None,
            Some(Value::String(text)) => Some(parse_time_us(&text).map_err(|_| wrong("has a time that is none"))?),
            Some(_) => return Err(wrong("has a time that is no text")),
        };
        match object.keys().next() {
            Some(other) => Err(wrong(&format!("has a field '{other}'"))),
            None => Ok(Some(Self { line, topic, payload, time_us })),
        }
    }
}

/// An actual result.
struct Found<'a> {
    time_us: i64,
    payload: &'a [u8],
}

/// The first difference between actual and expected results, in words; `None` if there is none.
pub fn difference(expected: &[Expected], reports: &[Report]) -> Option<String> {
    let are_topics_known = expected.iter().all(|one| one.topic.is_some());
    let topic_of = |topic: &str| if are_topics_known { topic.to_owned() } else { String::new() };
    let mut topics: Vec<String> = Vec::new();
    let mut note = |topic: String| {
        if !topics.contains(&topic) {
            topics.push(topic)
        }
    };
    expected.iter().for_each(|one| note(topic_of(one.topic.as_deref().unwrap_or_default())));
    let results = || {
        reports.iter().filter_map(|report| match report {
            Report::Result { time_us, topic, payload } => Some((topic, Found { time_us: *time_us, payload })),
            _ => None,
        })
    };
    results().for_each(|(topic, _)| note(topic_of(topic)));
    topics.iter().find_map(|topic| {
        let expected: Vec<&Expected> =
            expected.iter().filter(|one| topic_of(one.topic.as_deref().unwrap_or_default()) == *topic).collect();
        let found: Vec<Found<'_>> =
            results().filter(|(one, _)| topic_of(one) == *topic).map(|(_, found)| found).collect();
        let of_topic = if topic.is_empty() { String::new() } else { format!(" of {topic}") };
        difference_of(&of_topic, &expected, &found)
    })
}

fn difference_of(of_topic: &str, expected: &[&Expected], found: &[Found<'_>]) -> Option<String> {
    let shown =
        |found: &Found<'_>| format!("{}  at {}", String::from_utf8_lossy(found.payload), time_text(found.time_us));
    let wanted = |one: &Expected| {
        let time = one.time_us.map_or_else(String::new, |time_us| format!("  at {}", time_text(time_us)));
        format!("{}{time}  (line {})", one.payload, one.line)
    };
    let counts = format!("expected are {}, found {}", expected.len(), found.len());
    (0..expected.len().max(found.len())).find_map(|place| {
        let number = place + 1;
        match (expected.get(place), found.get(place)) {
            (Some(one), Some(other)) => {
                let what = differing(one, other)?;
                let (one, other) = (wanted(one), shown(other));
                Some(format!("result {number}{of_topic} differs in {what}\n- {one}\n+ {other}"))
            }
            (Some(one), None) => Some(format!("result {number}{of_topic} is missing: {counts}\n- {}", wanted(one))),
            (None, Some(other)) => {
                Some(format!("result {number}{of_topic} is one too many: {counts}\n+ {}", shown(other)))
            }
            (None, None) => None,
        }
    })
}

/// How a result differs from the expected one; `None` if it does not.
fn differing(expected: &Expected, found: &Found<'_>) -> Option<String> {
    let payload = match serde_json::from_slice(found.payload) {
        Ok(payload) => payload,
        Err(_) => Value::String(String::from_utf8_lossy(found.payload).into_owned()),
    };
    if let (Value::Object(one), Value::Object(other)) = (&expected.payload, &payload) {
        let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(*name)));
        let differs = |name: &&String| match (one.get(*name), other.get(*name)) {
            (Some(one), Some(other)) => !are_equal(one, other),
            _ => true,
        };
        if let Some(name) = names.into_iter().find(differs) {
            return Some(format!("'{name}'"));
        }
    } else if !are_equal(&expected.payload, &payload) {
        return Some("its payload".into());
    }
    // Files have times to the millisecond.
    let is_then = |time_us: i64| time_us.div_euclid(1_000) == found.time_us.div_euclid(1_000);
    (!expected.time_us.is_none_or(is_then)).then(|| "its time".into())
}

fn are_equal(one: &Value, other: &Value) -> bool {
    /// Sums of the same numbers in another order differ by less.
    const RELATIVE: f64 = 1e-9;
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (one.as_f64(), other.as_f64()) {
            (Some(x), Some(y)) => one == other || (x - y).abs() <= RELATIVE * x.abs().max(y.abs()),
            _ => one == other,
        },
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| are_equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let is_in_other =
                |(name, value): (&String, &Value)| other.get(name).is_some_and(|other| are_equal(value, other));
            one.len() == other.len() && one.iter().all(is_in_other)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(lines: &[&str]) -> Vec<Expected> {
        let parsed = lines.iter().enumerate().map(|(place, line)| Expected::parse(line, place + 1).unwrap());
        parsed.flatten().collect()
    }

    fn result(topic: &str, payload: &str) -> Report {
        Report::Result { time_us: 1_500, topic: topic.into(), payload: payload.into() }
    }

    #[test]
    fn the_order_counts_within_a_topic() {
        let found = [result("b", r#"{"v":2}"#), result("a", r#"{"v":0.30000000000000004,"w":[1]}"#), result("b", "x")];
        let same = [
            r#"{"kind":"result","topic":"a","payload":{"w":[1],"v":0.3}}"#,
            r#"{"kind":"nothing","line":3}"#,
            r#"{"topic":"b","payload":{"v":2},"time":"1970-01-01T00:00:00.001Z"}"#,
            r#"{"topic":"b","payload":"x"}"#,
        ];
        assert_eq!(difference(&expected(&same), &found), None);
        let other_order = [same[0], same[3], same[2]];
        let text = difference(&expected(&other_order), &found).unwrap();
        assert!(text.starts_with("result 1 of b differs in its payload\n- \"x\"  (line 2)\n+ {\"v\":2}  at"), "{text}");
    }

    #[test]
    fn the_first_difference_is_told() {
        let found = [result("a", r#"{"v":1,"w":2}"#)];
        for (lines, what) in [
            (&[r#"{"payload":{"v":1,"w":3}}"#][..], "result 1 differs in 'w'"),
            (&[r#"{"payload":{"v":1,"w":2,"x":0}}"#], "result 1 differs in 'x'"),
            (&[r#"{"payload":{"v":1,"w":2},"time":"1970-01-01T00:00:00.002Z"}"#], "result 1 differs in its time"),
            (&[], "result 1 of a is one too many: expected are 0, found 1"),
            (&[r#"{"payload":{"v":1,"w":2}}"#, r#"{"payload":{}}"#], "result 2 is missing: expected are 2, found 1"),
        ] {
            let text = difference(&expected(lines), &found).unwrap();
            assert!(text.starts_with(what), "{text}");
        }
        for wrong in ["7", r#"{"topic":"a"}"#, r#"{"payload":1,"time":"noon"}"#, r#"{"payload":1,"tpoic":"a"}"#] {
            assert!(Expected::parse(wrong, 1).is_err(), "{wrong}");
        }
    }
}
