//! What a client of our broker may have, and what comes to it piece by piece.

use rivulet_connectors::mqtt::Version;

use super::probe::Probe;
use super::support::*;

const VERSIONS: [Version; 2] = [Version::V3, Version::V5];

#[test]
fn a_new_subscriber_gets_all_retained_messages_however_many() {
    const MESSAGES: usize = 300;
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut publisher = Probe::connect(broker.port(), Version::V3, "publisher", |_| {});
    let payload = "x".repeat(60_000);
    for number in 0..MESSAGES {
        publisher.publish(&format!("home/{number:03}"), &payload, 1, true);
    }
    for (version, qos) in VERSIONS.into_iter().flat_map(|version| [(version, 0), (version, 1)]) {
        let mut probe = Probe::connect(broker.port(), version, "reader", |_| {});
        probe.subscribe(&[("home/#", qos)]);
        for number in 0..MESSAGES {
            let seen = probe.next().expect("a message");
            assert!(seen.starts_with(&format!("message home/{number:03} 'xx")), "{version:?} {qos}: {:.40}", seen);
        }
        assert_eq!(probe.take(), [""; 0]);
    }
    let stats = broker.broker().stats();
    assert_eq!(stats.dropped, Default::default());
}

#[test]
fn others_are_served_while_one_looks_through_all_retained_messages() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut publisher = Probe::connect(broker.port(), Version::V5, "publisher", |_| {});
    for number in 0..20_000 {
        publisher.publish(&format!("{number}/x"), "x", if number % 1000 == 0 { 1 } else { 0 }, true);
    }
    let mut greedy = Probe::connect(broker.port(), Version::V5, "greedy", |_| {});
    let filters: Vec<String> = (0..3000).map(|number| format!("+/y{number}")).collect();
    let filters: Vec<(&str, u8)> = filters.iter().map(|filter| (&filter[..], 0)).chain([("0/x", 0)]).collect();
    greedy.subscribe(&filters);
    // Its last filter has its turn when all retained messages were looked at 3000 times.
    for number in 0..100 {
        publisher.subscribe(&[("hello", 0)]);
        publisher.publish("hello", &number.to_string(), 1, false);
        assert_eq!(publisher.take(), [format!("message hello '{number}' qos 0")]);
    }
    assert_eq!(greedy.take(), [""; 0], "it is not through yet");
    assert_eq!(broker.broker().stats().dropped, Default::default());
}

#[test]
fn what_goes_beyond_a_bound_is_refused_with_the_reason() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |options| {
        (options.session_subscriptions_max, options.subscriptions_max, options.sessions_max) = (2, 6, 3);
    });
    let port = broker.port();
    let filters = [("a", 0), ("b", 0), ("c", 0)];
    let mut first = Probe::connect(port, Version::V5, "first", |_| {});
    assert_eq!(first.subscribe(&filters), "subscribed [GrantedQos0, GrantedQos0, QuotaExceeded]");
    let mut second = Probe::connect(port, Version::V3, "second", |_| {});
    assert_eq!(second.subscribe(&filters), "subscribed [Success(AtMostOnce), Failure, Failure]", "half for an address");
    let _third = Probe::connect(port, Version::V3, "third", |_| {});
    for (version, answer) in [(Version::V3, "refused 0x3"), (Version::V5, "refused 0x97")] {
        assert_eq!(Probe::try_connect(port, version, "fourth", |_| {}).1, answer);
    }
    assert_eq!(broker.broker().stats().dropped.subscriptions_refused, 3);
}
