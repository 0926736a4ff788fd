//! What the broker is told, and which messages are copies.

use super::super::super::codec::{decode_v5, split_frame};
use super::*;

/// What is sent: filters subscribed to (with their packet identifiers) and filters given up.
fn sent(subscriptions: &mut Subscriptions) -> (Vec<(u16, Vec<String>)>, Vec<String>) {
    let mut bytes = Vec::new();
    subscriptions.encode(Version::V5, Qos::AtLeastOnce, &mut bytes).unwrap();
    let (mut on, mut off, mut rest) = (Vec::new(), Vec::new(), &bytes[..]);
    while let Some(frame) = split_frame(rest, usize::MAX).unwrap() {
        match decode_v5(&frame).unwrap() {
            v5::Packet::Subscribe(packet) => {
                let filters = packet.topic_filters.iter().map(|(filter, _)| filter.to_string()).collect();
                on.push((packet.packet_id.get(), filters));
            }
            v5::Packet::Unsubscribe(packet) => off.extend(packet.topic_filters.iter().map(ToString::to_string)),
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

/// Subscribes to what waits, and has it granted. Returns the identifier of each packet with its filters.
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
    // Both copies are under way while the older one goes.
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
    // The next widest takes its place.
    let (on, _) = sent(&mut subscriptions);
    assert_eq!(on[0].1, ["home/+/t"]);
    subscriptions.answered(on[0].0, &[None]).unwrap();
    assert!(sent(&mut subscriptions).0.is_empty() && subscriptions.partial_overlap().is_none());
    // A wider one takes it over as soon as it is granted, and gives it back when it goes.
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
