//! What the broker is told, and which messages are copies.

use proptest::prelude::*;

use super::super::super::codec::{decode_v5, split_frame};
use super::*;

type Questions = Vec<(u16, Vec<String>)>;

/// Returns the filters of SUBSCRIBEs (with their packet identifiers) and of UNSUBSCRIBEs, all of which the broker
/// confirms.
fn sent(subscriptions: &mut Subscriptions) -> (Questions, Vec<String>) {
    let (on, off) = questions(subscriptions);
    // The broker answers.
    off.iter().for_each(|(packet_id, _)| assert!(subscriptions.unsubscribed(*packet_id)));
    (on, off.into_iter().flat_map(|(_, filters)| filters).collect())
}

/// The same with packet identifiers for both; nothing is answered.
fn questions(subscriptions: &mut Subscriptions) -> (Questions, Questions) {
    let mut bytes = Vec::new();
    subscriptions.encode(Version::V5, Qos::AtLeastOnce, &mut bytes).unwrap();
    let (mut on, mut off, mut rest) = (Vec::new(), Vec::new(), &bytes[..]);
    while let Some(frame) = split_frame(rest, usize::MAX).unwrap() {
        match decode_v5(&frame).unwrap() {
            v5::Packet::Subscribe(packet) => {
                let filters = packet.topic_filters.iter().map(|(filter, _)| filter.to_string()).collect();
                on.push((packet.packet_id.get(), filters));
            }
            v5::Packet::Unsubscribe(packet) => {
                off.push((packet.packet_id.get(), packet.topic_filters.iter().map(ToString::to_string).collect()));
            }
            other => panic!("{other:?}"),
        }
        rest = &rest[frame.whole.len()..];
    }
    (on, off)
}

#[test]
fn the_broker_hears_of_the_first_and_the_last_user() {
    let mut subscriptions = Subscriptions::default();
    assert!(subscriptions.add("a/+"));
    assert!(!subscriptions.add("a/+"));
    let (on, _) = sent(&mut subscriptions);
    assert_eq!(on[0].1, ["a/+"]);
    assert!(subscriptions.answered(on[0].0, &[None]).unwrap().refused.is_empty());
    assert!(subscriptions.all_granted());
    assert!(!subscriptions.remove("a/+"));
    assert!(subscriptions.remove("a/+"));
    assert_eq!(sent(&mut subscriptions).1, ["a/+"]);
    assert!(!subscriptions.remove("a/+"));
}

#[test]
fn a_session_that_is_remembered_is_not_asked_for_again() {
    let mut subscriptions = Subscriptions::default();
    subscriptions.add("granted");
    let (on, _) = sent(&mut subscriptions);
    subscriptions.answered(on[0].0, &[None]);
    subscriptions.add("asked");
    sent(&mut subscriptions);
    subscriptions.connected(true, true);
    assert_eq!(sent(&mut subscriptions).0[0].1, ["asked"]);
    subscriptions.connected(false, true);
    let (on, _) = sent(&mut subscriptions);
    assert_eq!(on[0].1.len(), 2);
}

#[test]
fn refusals_are_reported_and_asked_again_on_the_next_connection() {
    let mut subscriptions = Subscriptions::default();
    subscriptions.add("secret");
    let (on, _) = sent(&mut subscriptions);
    let answer = subscriptions.answered(on[0].0, &[Some("not authorized".into())]).unwrap();
    assert_eq!(answer.refused, [("secret".to_owned(), "not authorized".to_owned())]);
    assert_eq!(subscriptions.refused(10).len(), 1);
    assert!(subscriptions.answered(on[0].0, &[None]).is_none(), "an answer without a question");
    subscriptions.connected(true, true);
    assert_eq!(sent(&mut subscriptions).0[0].1, ["secret"]);
}

#[test]
fn many_filters_go_out_in_packets_of_bounded_size_and_number() {
    let mut subscriptions = Subscriptions::default();
    for number in 0..100_000 {
        subscriptions.add(&format!("home/{number}/temperature"));
    }
    let mut seen = 0;
    loop {
        let (on, _) = sent(&mut subscriptions);
        if on.is_empty() {
            break;
        }
        assert!(on.len() <= UNANSWERED_MAX);
        for (packet_id, filters) in on {
            assert!(filters.len() <= FILTERS_AT_ONCE && packet_id >= FIRST_PACKET_ID);
            seen += filters.len();
            subscriptions.answered(packet_id, &vec![None; filters.len()]).unwrap();
        }
    }
    assert_eq!(seen, 100_000);
    assert!(subscriptions.all_granted());
}

fn message_for(identifiers: &[u32]) -> Vec<u8> {
    let mut properties = Vec::new();
    identifiers.iter().for_each(|&identifier| properties::push_subscription_identifier(identifier, &mut properties));
    properties
}

/// Subscribes to the waiting filters, which the broker grants. Returns the identifier of each packet with its filters.
fn grant(subscriptions: &mut Subscriptions) -> Vec<(u32, Vec<String>)> {
    let (on, _) = sent(subscriptions);
    let mut granted = Vec::new();
    for (packet_id, filters) in on {
        granted.push((subscriptions.filters[filters[0].as_str()].identifier, filters.clone()));
        subscriptions.answered(packet_id, &vec![None; filters.len()]).unwrap();
    }
    granted
}

#[test]
fn of_overlapping_filters_the_oldest_that_is_granted_decides() {
    let mut subscriptions = Subscriptions::default();
    ["home/1/t", "home/2/t", "garden/+"].into_iter().for_each(|filter| _ = subscriptions.add(filter));
    assert!(!subscriptions.has_overlaps());
    let old = grant(&mut subscriptions);
    assert_eq!(old.len(), 2, "filters without wildcards share a packet and its identifier");
    subscriptions.add("home/+/t");
    assert!(subscriptions.has_overlaps());
    let (exact, wide) = (old[1].0, subscriptions.last_identifier + 1);
    assert_eq!(old[1].1.len(), 2);
    let is_copy = |s: &Subscriptions, topic: &str, ids: &[u32]| s.is_copy(topic.as_bytes(), &message_for(ids));
    sent(&mut subscriptions);
    assert!(!is_copy(&subscriptions, "home/3/t", &[wide]), "the answer may come behind the message");
    subscriptions.connected(true, true);
    assert_eq!(grant(&mut subscriptions), [(wide, vec!["home/+/t".to_owned()])], "the same identifier as before");
    assert!(is_copy(&subscriptions, "home/1/t", &[wide]) && !is_copy(&subscriptions, "home/1/t", &[exact]));
    assert!(!is_copy(&subscriptions, "home/1/t", &[wide, exact]), "a broker that merges");
    assert!(!is_copy(&subscriptions, "home/3/t", &[wide]));
    assert!(!is_copy(&subscriptions, "home/1/t", &[]), "a broker that does not say");
    assert!(!is_copy(&subscriptions, "home/1/t", &[exact - 2]), "kept for another process");
    // Both copies are in flight while the older filter is removed.
    subscriptions.remove("home/1/t");
    assert!(is_copy(&subscriptions, "home/1/t", &[exact]) && !is_copy(&subscriptions, "home/1/t", &[wide]));
}

#[test]
fn without_identifiers_what_is_covered_is_not_subscribed_to() {
    let mut subscriptions = Subscriptions::default();
    subscriptions.connected(false, false);
    ["home/1/t", "home/+/t", "home/+/+", "garden"].into_iter().for_each(|filter| _ = subscriptions.add(filter));
    let (on, _) = sent(&mut subscriptions);
    assert_eq!(on.iter().map(|(_, filters)| filters.clone()).collect::<Vec<_>>(), [["garden", "home/+/+"]]);
    subscriptions.answered(on[0].0, &[None, Some("not authorized".into())]).unwrap();
    // The next widest filter takes its place.
    let (on, _) = sent(&mut subscriptions);
    assert_eq!(on[0].1, ["home/+/t"]);
    subscriptions.answered(on[0].0, &[None]).unwrap();
    assert!(sent(&mut subscriptions).0.is_empty() && subscriptions.partial_overlap().is_none());
    // A wider filter covers it as soon as it is granted, and uncovers it when it goes.
    subscriptions.add("home/#");
    let (on, off) = sent(&mut subscriptions);
    assert_eq!((on[0].1.as_slice(), off.len()), (&["home/#".to_owned()][..], 0));
    subscriptions.answered(on[0].0, &[None]).unwrap();
    assert_eq!(sent(&mut subscriptions).1, ["home/+/t"]);
    assert!(subscriptions.remove("home/#"));
    let (on, off) = sent(&mut subscriptions);
    assert_eq!((on[0].1.as_slice(), off), (&["home/+/t".to_owned()][..], vec!["home/#".to_owned()]));
    subscriptions.add("+/1/t");
    assert_eq!(subscriptions.partial_overlap().map(|(_, new)| new), Some("+/1/t"));
    subscriptions.connected(false, true);
    assert!(subscriptions.partial_overlap().is_none(), "with identifiers it does no harm");
}

#[test]
fn what_waits_is_never_more_than_there_is() {
    let mut subscriptions = Subscriptions::default();
    for number in 0..1000 {
        let filter = format!("a/{}", number % 10);
        assert!(subscriptions.add(&filter) && !subscriptions.remove(&filter), "the broker never heard of it");
    }
    assert!(subscriptions.to_subscribe.is_empty() && subscriptions.to_unsubscribe.is_empty());
    subscriptions.add("b");
    grant(&mut subscriptions);
    for _ in 0..1000 {
        assert!(subscriptions.remove("b") && subscriptions.add("b"));
        grant(&mut subscriptions);
    }
    assert!(subscriptions.to_unsubscribe.is_empty() && subscriptions.granted.len() == 1);
}

#[test]
fn what_is_given_up_is_said_until_the_broker_confirms_it() {
    let mut subscriptions = Subscriptions::default();
    ["a", "b", "c"].into_iter().for_each(|filter| _ = subscriptions.add(filter));
    grant(&mut subscriptions);
    ["a", "b"].into_iter().for_each(|filter| _ = subscriptions.remove(filter));
    assert_eq!(questions(&mut subscriptions).1[0].1, ["a", "b"]);
    // The filter comes back, and the connection breaks before the broker answers.
    subscriptions.add("b");
    subscriptions.connected(true, true);
    let (on, off) = questions(&mut subscriptions);
    assert_eq!((&on[0].1[..], &off[0].1[..]), (&["b".to_owned()][..], &["a".to_owned()][..]));
    assert!(subscriptions.unsubscribed(off[0].0) && !subscriptions.unsubscribed(off[0].0));
    subscriptions.connected(true, true);
    assert!(questions(&mut subscriptions).1.is_empty());
    // Without a session the broker knows nothing.
    subscriptions.remove("c");
    questions(&mut subscriptions);
    subscriptions.connected(false, true);
    assert!(questions(&mut subscriptions).1.is_empty());
}

#[test]
fn what_was_covered_is_not_given_up_while_it_is_asked_for() {
    let mut subscriptions = Subscriptions::default();
    subscriptions.connected(false, false);
    subscriptions.add("a/b");
    grant(&mut subscriptions);
    subscriptions.add("a/+");
    let (on, _) = questions(&mut subscriptions);
    subscriptions.answered(on[0].0, &[None]).unwrap();
    // The broker is about to be told that 'a/b' is covered; on the next connection it supports identifiers.
    subscriptions.connected(true, true);
    let (on, off) = questions(&mut subscriptions);
    assert_eq!((on.len(), off.len()), (2, 0));
}

#[test]
fn of_several_pairs_that_overlap_in_part_one_is_told_as_long_as_there_is_one() {
    let mut subscriptions = Subscriptions::default();
    subscriptions.connected(false, false);
    ["a/+", "+/b", "c/+", "+/d"].into_iter().for_each(|filter| _ = subscriptions.add(filter));
    assert_eq!(subscriptions.partial_overlap(), Some(("a/+", "+/b")));
    subscriptions.remove("a/+");
    assert!(matches!(subscriptions.partial_overlap(), Some((a, b)) if topic::overlap(a, b)));
    subscriptions.remove("c/+");
    assert!(subscriptions.partial_overlap().is_none());
}

#[test]
fn many_wildcards_are_compared_with_few_others() {
    let mut subscriptions = Subscriptions::default();
    for number in 0..10_000 {
        subscriptions.add(&format!("home/{number}/+"));
    }
    assert!(!subscriptions.has_overlaps() && subscriptions.comparisons < 100_000, "{}", subscriptions.comparisons);
    subscriptions.add("home/77/t");
    assert!(subscriptions.has_overlaps());
    // If the beginnings of filters do not tell them apart, the search for overlaps is bounded.
    let mut subscriptions = Subscriptions::default();
    for number in 0..10_000 {
        subscriptions.add(&format!("home/+/{number}"));
    }
    assert!(subscriptions.has_overlaps() && subscriptions.comparisons == COMPARISONS_MAX);
    for number in 0..10_000 {
        subscriptions.remove(&format!("home/+/{number}"));
    }
    subscriptions.add("home/#");
    assert!(!subscriptions.has_overlaps());
}

fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![Just("a"), Just("b"), Just(""), Just("$s"), Just("+")];
    (proptest::collection::vec(level, 1..4), any::<bool>())
        .prop_map(|(levels, hash)| levels.join("/") + if hash { "/#" } else { "" })
        .prop_filter("a filter", |filter| !filter.is_empty())
}

proptest! {
    #[test]
    fn candidates_miss_nothing(filters in proptest::collection::vec(filter(), 2..20)) {
        let mut subscriptions = Subscriptions::default();
        filters.iter().for_each(|filter| _ = subscriptions.add(filter));
        for one in &filters {
            let overlapping = filters.iter().any(|other| other != one && topic::overlap(one, other));
            prop_assert_eq!(subscriptions.find_overlapping(one, |_| true).is_some(), overlapping, "{}", one);
            for other in filters.iter().filter(|other| topic::is_wildcard(other) && topic::covers(other, one)) {
                prop_assert!(wider_candidates(&subscriptions.wildcards, one).any(|wide| **wide == **other));
                prop_assert!(narrower_candidates(&subscriptions.filters, other).any(|(narrow, _)| **narrow == **one));
            }
        }
    }
}
