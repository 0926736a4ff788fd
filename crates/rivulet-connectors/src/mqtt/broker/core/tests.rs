//! The broker's state without sockets: sessions, windows, wills, bounds.

use super::super::super::codec::split_frame;
use super::*;

fn core(change: impl FnOnce(&mut BrokerOptions)) -> Core {
    let mut options = BrokerOptions::new("127.0.0.1:0".parse().unwrap());
    change(&mut options);
    Core::new(&options)
}

fn connect(core: &mut Core, client_id: &str, clean_start: bool, expiry_s: u32) -> (SessionKey, Arc<Outbox>, bool) {
    let outbox = Arc::new(Outbox::new(1000));
    let request = ConnectRequest {
        client_id,
        version: Version::V5,
        clean_start,
        expiry_s,
        receive_max: 2,
        packet_bytes_max: usize::MAX,
        will: None,
    };
    let mut was_present = false;
    let key = core.connect(request, &outbox, |_, _| {}, |present, _, _| was_present = present).unwrap();
    (key, outbox, was_present)
}

fn subscribe(core: &mut Core, key: SessionKey, filter: &str, qos: Qos) -> u8 {
    let request = SubscribeRequest {
        filter,
        qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Always,
        identifier: None,
    };
    let mut code = 0;
    core.subscribe(key, &[request], |codes, _| code = codes[0]);
    code
}

fn publish(core: &mut Core, payload: &[u8], qos: Qos) {
    core.publish(&Publish { topic: b"t", payload, qos, ..Publish::default() }, None, None);
}

/// The payloads sent, with their packet identifiers and whether they are marked as sent again.
fn sent(outbox: &Outbox) -> Vec<(Vec<u8>, u16, bool)> {
    let mut bytes = Vec::new();
    outbox.take(&mut bytes);
    let (mut rest, mut sent) = (&bytes[..], Vec::new());
    while let Some(frame) = split_frame(rest, usize::MAX).unwrap() {
        let publish = Publish::decode(Version::V5, frame.first_byte, frame.body).unwrap();
        sent.push((publish.payload.to_vec(), publish.packet_id, publish.duplicate));
        rest = &rest[frame.whole.len()..];
    }
    sent
}

#[test]
fn the_window_is_kept_and_a_session_survives_its_connection() {
    let mut core = core(|_| {});
    let (key, outbox, present) = connect(&mut core, "c", false, 60);
    assert!(!present);
    subscribe(&mut core, key, "t", Qos::AtLeastOnce);
    for payload in [b"1", b"2", b"3"] {
        publish(&mut core, payload, Qos::AtLeastOnce);
    }
    let first = sent(&outbox);
    assert_eq!(first.len(), 2, "the client takes two at a time");
    core.acknowledge(key, first[0].1);
    assert_eq!(sent(&outbox)[0].0, b"3");
    assert!(core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None }));
    publish(&mut core, b"4", Qos::AtLeastOnce);
    publish(&mut core, b"lost", Qos::AtMostOnce);
    let (key, outbox, present) = connect(&mut core, "c", false, 60);
    assert!(present);
    let again = sent(&outbox);
    assert_eq!(again, [(b"2".to_vec(), first[1].1, true), (b"3".to_vec(), 3, true)]);
    core.acknowledge(key, again[0].1);
    core.acknowledge(key, again[1].1);
    assert_eq!(sent(&outbox).iter().map(|(payload, _, _)| &payload[..]).collect::<Vec<_>>(), [b"4"]);
    core.acknowledge(key, 4);
    assert_eq!(core.stats(0).waiting_messages, 0);
}

#[test]
fn a_full_outbox_holds_back_qos_1_and_drops_qos_0() {
    let mut core = core(|options| options.session_queue_messages_max = 3);
    let (key, outbox, _) = connect(&mut core, "c", true, 0);
    subscribe(&mut core, key, "t", Qos::AtLeastOnce);
    let large = [b'x'; 900];
    publish(&mut core, &large, Qos::AtMostOnce);
    publish(&mut core, &large, Qos::AtMostOnce);
    assert_eq!(core.counters.slow_subscriber, 1);
    for _ in 0..5 {
        publish(&mut core, &large, Qos::AtLeastOnce);
    }
    assert_eq!(core.counters.session_queue_full, 2);
    assert_eq!(sent(&outbox).len(), 1);
    assert!(outbox.is_starved.load(std::sync::atomic::Ordering::SeqCst));
    core.pump(key, &outbox);
    assert_eq!(sent(&outbox).len(), 1);
    core.pump(key, &outbox);
    assert_eq!(sent(&outbox).len(), 1);
    core.acknowledge(key, 1);
    assert_eq!(sent(&outbox).len(), 1);
}

#[test]
fn sessions_end_in_time_and_take_their_subscriptions_with_them() {
    let mut core = core(|_| {});
    let (key, outbox, _) = connect(&mut core, "c", true, 10);
    subscribe(&mut core, key, "a/#", Qos::AtMostOnce);
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    core.keep_house(Instant::now() + Duration::from_secs(9));
    assert_eq!((core.stats(0).sessions, core.index.len()), (1, 1));
    core.keep_house(Instant::now() + Duration::from_secs(11));
    assert_eq!((core.stats(0).sessions, core.index.len(), core.subscriptions.len()), (0, 0, 0));
}

#[test]
fn a_client_id_is_taken_over_and_the_old_connection_told() {
    let mut core = core(|_| {});
    let (key, old, _) = connect(&mut core, "c", false, 60);
    subscribe(&mut core, key, "t", Qos::AtMostOnce);
    let (new_key, new, present) = connect(&mut core, "c", false, 60);
    assert!(present && new_key == key);
    assert!(old.take(&mut Vec::new()), "the old connection is closed");
    assert!(!core.disconnected(key, &old, Goodbye { is_graceful: false, expiry_s: None }));
    publish(&mut core, b"x", Qos::AtMostOnce);
    assert_eq!((sent(&new).len(), core.stats(0).connections), (1, 1));
}

#[test]
fn a_delayed_will_waits_for_its_time_or_the_end_of_the_session() {
    let message = Arc::new(Message::of(&Publish { topic: b"will", ..Publish::default() }, None));
    for (delay_s, expiry_s, due_after_s) in [(0, 60, 0), (5, 60, 5), (60, 5, 5), (5, 0, 0)] {
        let mut core = core(|_| {});
        let (key, outbox, _) = connect(&mut core, "c", true, expiry_s);
        core.sessions.get_mut(key).unwrap().will = Some(Will { message: message.clone(), delay_s });
        core.disconnected(key, &outbox, Goodbye { is_graceful: false, expiry_s: None });
        if due_after_s > 0 {
            core.keep_house(Instant::now() + Duration::from_secs(due_after_s - 1));
            assert!(core.wills.is_empty(), "{delay_s} {expiry_s}");
            core.keep_house(Instant::now() + Duration::from_secs(due_after_s + 1));
        }
        assert_eq!(core.wills.len(), 1, "{delay_s} {expiry_s}");
    }
}

#[test]
fn wills_that_find_no_place_are_counted() {
    let mut core = core(|_| {});
    let large =
        Arc::new(Message::of(&Publish { topic: b"will", payload: &[b'x'; 1 << 20], ..Publish::default() }, None));
    for _ in 0..100 {
        core.push_will(large.clone());
    }
    assert_eq!((core.wills.len(), core.counters.wills_full), (63, 37), "63 MiB and some bytes each");
    while core.take_will().is_some() {}
    assert_eq!(core.will_bytes, 0);
    let small = Arc::new(Message::of(&Publish { topic: b"will", ..Publish::default() }, None));
    for _ in 0..=WILLS_MAX {
        core.push_will(small.clone());
    }
    assert_eq!((core.wills.len(), core.counters.wills_full), (WILLS_MAX, 38));
}

#[test]
fn shared_and_broken_filters_and_too_many_are_refused() {
    let mut core = core(|options| options.subscriptions_max = 1);
    let (key, _, _) = connect(&mut core, "c", true, 0);
    assert_eq!(subscribe(&mut core, key, "$share/g/a", Qos::AtMostOnce), suback::SHARED_NOT_SUPPORTED);
    assert_eq!(subscribe(&mut core, key, "a/#/b", Qos::AtMostOnce), suback::FILTER_INVALID);
    assert_eq!(subscribe(&mut core, key, "a", Qos::ExactlyOnce), 1);
    assert_eq!(subscribe(&mut core, key, "b", Qos::AtMostOnce), suback::QUOTA_EXCEEDED);
    assert!(core.unsubscribe(key, "a") && !core.unsubscribe(key, "a"));
    assert_eq!(subscribe(&mut core, key, "b", Qos::AtMostOnce), 0);
}

#[test]
fn when_sessions_are_full_the_oldest_without_connection_goes() {
    let mut core = core(|options| options.sessions_max = 2);
    let (first, outbox, _) = connect(&mut core, "first", false, 60);
    core.disconnected(first, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    let _second = connect(&mut core, "second", false, 60);
    let _third = connect(&mut core, "third", false, 60);
    assert_eq!(core.counters.sessions_evicted, 1);
    let request = ConnectRequest {
        client_id: "fourth",
        version: Version::V3,
        clean_start: true,
        expiry_s: 0,
        receive_max: 1,
        packet_bytes_max: 1000,
        will: None,
    };
    assert!(core.connect(request, &Arc::new(Outbox::new(100)), |_, _| {}, |_, _, _| {}).is_none());
}
