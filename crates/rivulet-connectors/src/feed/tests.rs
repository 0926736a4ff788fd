//! Topics of keys, the fields and arrays of payloads, and what is noted of a source; and a whole feed over a source
//! that is told what to give.

use std::collections::VecDeque;

use arrow::array::ArrayRef;
use rivulet_dataflow::{Inbox, LoggedEvent, Push, Slot, SourceError};

use super::*;
use crate::connector::MessagePlace;
use crate::mqtt::router::Route;
use crate::mqtt::template::{Direction, Template};
use crate::mqtt::topic::level_text;

fn layout(key: KeyFrom, has_columns: bool) -> FeedLayout {
    let prefix = FeedLayout::prefix("t\0a/b", "in");
    FeedLayout { prefix, key, splits: true, has_columns, needs: (false, false) }
}

#[test]
fn a_key_is_one_level_whatever_it_says() {
    let texts = ["42", "site/7", "+43 1", "#", "100%", "%2F", "{x}", "a\0b", "caf\u{e9}", ""];
    let of_message = layout(KeyFrom::Message, false);
    for text in texts {
        let template = Template::parse(&of_message.route("{key}"), &["key"], Direction::Key).unwrap();
        let route = template.bind(|_| text).unwrap();
        assert_eq!([(route.clone(), String::new())], *of_message.messages("", Some(text), 0, 0), "{text}");
        let level = route.rsplit('/').next().unwrap();
        assert_eq!(level_text(level), text);
        assert!(!crate::mqtt::topic::is_wildcard(&route), "{route}");
    }
    // Clients cannot publish there, and no query can name it.
    assert!(crate::mqtt::topic::check_topic(of_message.prefix.as_bytes()).is_err());
    assert!(crate::mqtt::topic::check_filter(&of_message.prefix).is_err());
    assert!(!crate::mqtt::topic::matches(b"#", of_message.prefix.as_bytes()));
}

#[test]
fn fields_are_keys_and_arrays_are_several_messages() {
    for (payload, key) in [
        (r#"{"a": {"device": "x"}, "device": "7"}"#, Some("7")),
        (r#"{"device": 7}"#, Some("7")),
        (r#"{"device": -7, "more": [1, {"b": null}]}"#, Some("-7")),
        (r#"{"device": true}"#, Some("true")),
        (r#"{"device": "a\"b\u00e9"}"#, Some("a\"b\u{e9}")),
        (r#"{"device": 1, "device": 2}"#, Some("2")),
        (r#"{"device": null}"#, None),
        (r#"{"device": [7]}"#, None),
        (r#"{"Device": "7"}"#, None),
        (r#"["device"]"#, None),
        ("7", None),
        ("true", None),
        (r#""device""#, None),
        (r#"{"device": "7""#, None),
        ("", None),
    ] {
        assert_eq!(key_in(payload, "device").as_deref(), key, "{payload}");
    }
    let objects = |payload: &str| {
        let mut objects = Vec::new();
        for_each_object(payload, |object| objects.push(object.to_owned()));
        objects
    };
    assert_eq!(objects(r#" [{"a": [1, 2]} , {"b": "],["}] "#), [r#"{"a": [1, 2]}"#, r#"{"b": "],["}"#]);
    assert_eq!(objects(r#"{"a": 1}"#), [r#"{"a": 1}"#]);
    assert_eq!(objects("[1, \"x\"]"), ["1", "\"x\""]);
    assert_eq!(objects("[]"), [""; 0]);
    for broken in ["[{}", "[{},]", "{]", ""] {
        assert_eq!(objects(broken), [broken]);
    }
}

#[test]
fn a_payload_without_a_key_is_refused_with_what_is_wrong() {
    let check = layout(KeyFrom::Field("device".into()), false).check().expect("a check");
    for payload in [r#"{"device": 7}"#, r#"[{"device": "a"}, {"device": true}]"#, "[]"] {
        assert_eq!(check(payload), Ok(()), "{payload}");
    }
    for (payload, problem) in [
        ("", "it is no JSON: EOF"),
        ("warm", "it is no JSON: expected value at line 1 column 1"),
        (r#"{"device": 7"#, "it is no JSON: EOF"),
        (r#"{"device": 7} {"device": 8}"#, "it is no JSON: trailing characters at line 1"),
        ("7", "it has no field 'device'"),
        (r#"{"device": ""}"#, "it has no field 'device'"),
        (r#"{"device": null}"#, "it has no field 'device'"),
        (r#"[{"device": 1}, {"n": 1}, 7]"#, "element 2 has no field 'device'"),
    ] {
        let error = check(payload).expect_err(payload);
        assert!(error.starts_with(problem), "{payload}: {error}");
    }
    for key in [KeyFrom::Nothing, KeyFrom::Message] {
        assert!(layout(key, false).check().is_none(), "any payload has the key of its message, or needs none");
    }
}

const MESSAGES: Messages = Messages {
    key: Some("key_column"),
    time: None,
    place: Some(MessagePlace { partition: "partition_column", offset: "offset_column", go_on }),
    is_confirmed: true,
    needs_log: false,
};

/// Positions are written `partition:offset`.
fn go_on(positions: &mut Vec<Option<String>>, partition: i64, offset: i64) {
    let beginning = format!("{partition}:");
    positions.retain(|one| one.as_ref().is_none_or(|text| !text.starts_with(&beginning)));
    positions.push(Some(format!("{beginning}{offset}")));
}

#[test]
fn what_went_into_the_router_is_noted_by_partition() {
    let mut noted = Noted::begin(vec![Some("0:5".into()), Some("1:0".into())]);
    [(0, 7), (2, 1), (0, 8)].into_iter().for_each(|place| noted.went(place));
    assert_eq!(noted.positions(&MESSAGES), ["1:0", "0:9", "2:2"].map(|text| Some(text.to_owned())));
    let mut after = Noted::default();
    after.succeed(&noted);
    assert_eq!(after.positions(&MESSAGES), noted.positions(&MESSAGES));
    let known: [(&[u8], _); 2] =
        [(b"\xfe7/ab\x003:12", LoggedPlace::At("7/ab", 3, 12)), (b"\xfe7/ab\x00", LoggedPlace::Begins("7/ab"))];
    for (client, place) in known {
        assert_eq!(LoggedPlace::read(client), Some(place));
        let mut written = Vec::new();
        place.write(&mut written);
        assert_eq!(written, client);
    }
    for other in [&b""[..], b"client", b"\xffq-1", b"\xfe7/ab", b"\xfe7\x00x:1"] {
        assert_eq!(LoggedPlace::read(other), None, "{other:?}");
    }
}

/// A source that gives the messages it is told to.
struct Told {
    batches: VecDeque<RecordBatch>,
    confirmed: Arc<Mutex<usize>>,
}

impl Source for Told {
    fn poll(&mut self, _: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        Ok(match self.batches.pop_front() {
            Some(columns) => Polled::Rows { columns, retracts: None, arrival_us: now_us },
            None => Polled::Nothing(IDLE),
        })
    }

    fn confirm(&mut self) {
        *self.confirmed.lock() += 1;
    }
}

/// An inbox that takes a number of events, and no more.
struct Small {
    room: usize,
    taken: Mutex<Vec<(Slot, String)>>,
}

impl Inbox for Small {
    fn push(&self, slot: Slot, _: i64, payload: &[u8]) -> Push {
        let mut taken = self.taken.lock();
        if taken.len() == self.room {
            return Push::Full;
        }
        taken.push((slot, String::from_utf8(payload.to_vec()).unwrap()));
        Push::Taken
    }

    fn has_room(&self, _: Slot, _: usize) -> bool {
        self.taken.lock().len() < self.room
    }

    fn push_logged(&self, event: LoggedEvent<'_>, _: bool) -> Push {
        self.push(event.slot, event.arrival_us, event.payload)
    }
}

fn rows(messages: &[(&str, i64, &str)]) -> RecordBatch {
    let columns: [(&str, ArrayRef); 4] = [
        (PAYLOAD_COLUMN, Arc::new(StringArray::from_iter_values(messages.iter().map(|one| one.2)))),
        (KEY_COLUMN, Arc::new(StringArray::from_iter_values(messages.iter().map(|one| one.0)))),
        (PARTITION_COLUMN, Arc::new(Int64Array::from(vec![0; messages.len()]))),
        (OFFSET_COLUMN, Arc::new(Int64Array::from_iter_values(messages.iter().map(|one| one.1)))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn a_full_inbox_holds_the_source_up_and_nothing_is_lost() {
    let confirmed = Arc::new(Mutex::new(0));
    let batch = rows(&[("a", 10, "1"), ("b", 11, "2"), ("a", 12, "3"), ("c", 13, "4"), ("a", 15, "5")]);
    let source = Told { batches: [batch].into(), confirmed: confirmed.clone() };
    let (router, noted) = (Router::new(), Arc::<Mutex<Noted>>::default());
    let layout = layout(KeyFrom::Message, false);
    let mut feed = Feed {
        sources: vec![Box::new(source)],
        turn: 0,
        messages: MESSAGES,
        layout: layout.clone(),
        id: "7/x".into(),
        noted: noted.clone(),
        rows: None,
        ready: Ready::default(),
        under_way: UnderWay::new(Duration::MAX),
        confirms: true,
        logged_to: 0,
    };
    let small = Arc::new(Small { room: 2, taken: Mutex::default() });
    let inbox = router.register_inbox(small.clone());
    let filter = layout.route("a");
    router.add(&[Route { filter: &filter, inbox, slot: 7 }]).unwrap();
    assert_eq!(feed.turn(&router, 1), Turned::GoesOn);
    assert!(matches!(feed.turn(&router, 2), Turned::Waits(_)));
    assert!(feed.confirm(&router), "there is nothing to wait for");
    assert_eq!(noted.lock().positions(&MESSAGES), [Some("0:14".to_owned())], "all before the one that waits");
    let counts = noted.lock().counts();
    assert_eq!((counts.events, counts.unwanted, counts.full_waits, *confirmed.lock()), (4, 2, 1, 1));
    small.taken.lock().clear();
    assert_eq!(feed.turn(&router, 3), Turned::GoesOn);
    assert_eq!(noted.lock().positions(&MESSAGES), [Some("0:16".to_owned())]);
    assert_eq!(*small.taken.lock(), [(7, "5".to_owned())]);
    assert_eq!((feed.turn(&router, 4), *confirmed.lock()), (Turned::Waits(IDLE), 2));
    assert!(feed.confirm(&router) && *confirmed.lock() == 3);
}
