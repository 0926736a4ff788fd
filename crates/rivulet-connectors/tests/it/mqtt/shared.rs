//! Shared subscriptions, and subscriptions of one session that overlap.

use rivulet_connectors::mqtt::Version;
use rivulet_connectors::mqtt::Version::{V3, V5};

use super::probe::Probe;
use super::support::*;

const VERSIONS: [Version; 2] = [V3, V5];

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// The payloads of the messages among what was seen.
fn payloads(seen: Vec<String>) -> Vec<String> {
    seen.iter().filter_map(|seen| Some(seen.strip_prefix("message ")?.split('\'').nth(1)?.to_owned())).collect()
}

#[test]
fn members_share_each_message_fairly_and_in_order() {
    for version in VERSIONS {
        for qos in 0..=2 {
            let (router, inbox) = router(&["t/+"]);
            let broker = BrokerThread::start(router, |_| {});
            let connect = |client| Probe::connect(broker.port(), version, client, |_| {});
            let mut sensor = connect("sensor");
            sensor.publish("t/a", "retained", 1, true);
            let mut members: Vec<Probe> = ["a", "b", "c"].into_iter().map(connect).collect();
            for member in &mut members {
                member.subscribe(&[("$share/group/t/+", qos)]);
            }
            let mut other = connect("other");
            other.subscribe(&[("$share/other/t/#", qos), ("t/#", qos)]);
            for number in numbers(0..30) {
                sensor.publish("t/a", &number, qos, false);
            }
            let shares: Vec<Vec<String>> = members.iter_mut().map(|member| payloads(member.take())).collect();
            for share in &shares {
                assert_eq!(share.len(), 10, "each has its share, and no member gets what was retained: {shares:?}");
                assert!(share.is_sorted_by_key(|text| text.parse::<usize>().unwrap()), "{shares:?}");
            }
            let mut all = shares.concat();
            all.sort_by_key(|text| text.parse::<usize>().unwrap());
            assert_eq!(all, numbers(0..30));
            // The other group has all of them, and so has the subscription beside it, which gets the retained one too.
            assert_eq!(payloads(other.take()).len(), 61);
            assert_eq!(inbox.len(), 31, "queries are no members");
            // A member that ends its subscription gets nothing more.
            members[0].unsubscribe("$share/group/t/+");
            for number in numbers(0..4) {
                sensor.publish("t/a", &number, qos, false);
            }
            let counts: Vec<usize> = members.iter_mut().map(|member| payloads(member.take()).len()).collect();
            assert_eq!(counts, [0, 2, 2]);
        }
    }
}

#[test]
fn a_member_that_goes_leaves_its_messages_to_the_others() {
    for version in VERSIONS {
        for (ends, leaves) in [(true, 1), (false, 1), (true, 2), (false, 2)] {
            let (router, _) = router(&[]);
            let broker = BrokerThread::start(router, |options| options.limits.in_flight_max = 2);
            let mut sensor = Probe::connect(broker.port(), version, "sensor", |_| {});
            let connect = |client: &str| {
                Probe::connect(broker.port(), version, client, |request| {
                    (request.clean, request.expiry_s) = if ends { (true, 0) } else { (false, 60) };
                })
            };
            let mut lazy = connect("lazy");
            lazy.acknowledges = false;
            lazy.subscribe(&[("$share/group/t", leaves), ("own", leaves)]);
            for number in numbers(0..5) {
                sensor.publish("t", &number, leaves, false);
            }
            sensor.publish("own", "mine", leaves, false);
            assert_eq!(payloads(lazy.take()), ["0", "1"], "two are in flight, three wait");
            let mut busy = connect("busy");
            busy.subscribe(&[("$share/group/t", 2)]);
            assert_eq!(payloads(busy.take()), Vec::<String>::new());
            drop(lazy);
            block_until("it has gone", || broker.broker().stats().connections == 2);
            // What was sent with QoS 2 stays with the member, or goes with its session.
            let expected = if leaves == 1 { numbers(0..5) } else { numbers(2..5) };
            let mut got = Vec::new();
            block_until("the other member gets them", || {
                got.extend(payloads(busy.take()));
                got.len() >= expected.len()
            });
            assert_eq!(got, expected, "{version:?} {ends} {leaves}");
            let mut lazy = connect("lazy");
            let left: &[&str] = match (ends, leaves) {
                (true, _) => &[],
                (false, 1) => &["mine"],
                (false, _) => &["0", "1", "mine"],
            };
            let mut kept = Vec::new();
            block_until("it gets what is its own", || {
                kept.extend(payloads(lazy.take()));
                kept.len() >= left.len()
            });
            assert_eq!(kept, left);
        }
    }
}

#[test]
fn the_messages_of_each_group_go_to_a_member_of_that_group() {
    for ends in [true, false] {
        let (router, _) = router(&[]);
        let broker = BrokerThread::start(router, |options| options.limits.in_flight_max = 2);
        let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
        let connect = |client: &str| {
            Probe::connect(broker.port(), V5, client, |request| {
                (request.clean, request.expiry_s) = if ends { (true, 0) } else { (false, 60) };
            })
        };
        let mut both = connect("both");
        both.acknowledges = false;
        both.subscribe(&[("$share/one/t/a", 1), ("$share/two/t/+", 1), ("$share/three/t/#", 1)]);
        for number in numbers(0..5) {
            sensor.publish("t/a", &number, 1, false);
        }
        let mut members = ["one/t/a", "two/t/+", "three/t/#"].map(|filter| {
            let mut member = connect(filter.split('/').next().unwrap());
            member.subscribe(&[(&format!("$share/{filter}"), 1)]);
            member
        });
        drop(both);
        block_until("it has gone", || broker.broker().stats().connections == 4);
        for member in &mut members {
            let mut got = Vec::new();
            block_until("the member gets them", || {
                got.extend(payloads(member.take()));
                got.len() >= 5
            });
            assert_eq!(got, numbers(0..5), "each group gets each message once: {ends}");
        }
    }
}

#[test]
fn messages_wait_for_a_member_that_comes_back_if_there_is_no_other() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let stay = || Probe::connect(broker.port(), V5, "m", |request| (request.clean, request.expiry_s) = (false, 60));
    let mut member = stay();
    member.subscribe(&[("$share/group/t", 1)]);
    drop(member);
    let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
    sensor.publish("t", "waits", 1, false);
    assert_eq!(payloads(stay().take()), ["waits"]);
}

#[test]
fn names_and_filters_of_groups_are_checked() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut probe = Probe::connect(broker.port(), V5, "a", |_| {});
    assert_eq!(
        probe.subscribe(&[("$share/g", 0), ("$share//t", 0), ("$share/+/t", 0), ("$share/g/t#", 0), ("$share/g/t", 2)]),
        "subscribed [TopicFilterInvalid, TopicFilterInvalid, TopicFilterInvalid, TopicFilterInvalid, GrantedQos2]"
    );
    assert_eq!(probe.unsubscribe("$share/g/t"), "unsubscribed [Success]");
    assert_eq!(probe.unsubscribe("$share/g/t"), "unsubscribed [NoSubscriptionExisted]");
}

#[test]
fn a_session_gets_one_copy_for_all_its_subscriptions() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut reader = Probe::connect(broker.port(), V5, "reader", |_| {});
    for (identifier, filter, qos) in [(7, "t/+", 0), (8, "t/a", 1), (9, "t/#", 2)] {
        // SUBSCRIBE with a subscription identifier.
        let body = [&[0, 1, 2, 0x0b, identifier, 0, 3][..], filter.as_bytes(), &[qos]].concat();
        reader.send(&[&[0x82, body.len() as u8][..], &body].concat());
    }
    reader.take();
    let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
    sensor.publish("t/a", "x", 2, false);
    sensor.publish("t/b", "y", 1, false);
    let mut seen = reader.take();
    seen.retain(|seen| seen.starts_with("message"));
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].starts_with("message t/a 'x' qos 2 properties ["), "{seen:?}");
    for identifier in ["0b, 07", "0b, 08", "0b, 09"] {
        assert!(seen[0].contains(identifier), "{seen:?}");
    }
    assert!(seen[1].starts_with("message t/b 'y' qos 1") && !seen[1].contains("0b, 08"), "{seen:?}");
}
