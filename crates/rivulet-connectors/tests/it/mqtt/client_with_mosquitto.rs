//! Our client against Mosquitto.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rivulet_connectors::mqtt::{PublishBatch, PublishOptions, Publisher, Qos, Version};

use super::support::*;

const VERSIONS: [Version; 2] = [Version::V3, Version::V5];

#[tokio::test]
async fn receives_and_sends_in_both_versions_and_qualities() {
    let Some(mosquitto) = Mosquitto::start(&[]) else { return };
    for version in VERSIONS {
        for qos in [Qos::AtMostOnce, Qos::AtLeastOnce] {
            let (router, inbox) = router(&["home/7/t", "home/+/t", "echo/#"]);
            let client = client(router.clone(), &mosquitto.address(), |options| {
                options.version = version;
                options.qos = qos;
            });
            client.subscribe(["home/+/t", "echo/#"]).unwrap();
            until_subscribed(&client).await;
            // Back through the broker: what we publish is what we receive.
            let publisher = client.publisher();
            for number in 0..500 {
                publish(&publisher, "echo/x", &format!("{number}"), qos);
            }
            publish(&publisher, "home/7/t", "seven", qos);
            publish(&publisher, "home/8/t", "eight", qos);
            publish(&publisher, "garden", "nobody's", qos);
            until("everything came back", || inbox.len() >= 503).await;
            let texts = inbox.texts();
            let numbers: Vec<String> = (0..500).map(|number| number.to_string()).collect();
            assert_eq!(texts[..500], numbers[..], "{version:?} {qos:?}");
            assert_eq!(inbox.slots()[500..], [0, 1, 1]);
            until("everything is acknowledged", || client.status().queued_messages == 0).await;
            let status = client.status();
            assert!(status.connected && status.last_error.is_none());
            assert_eq!((status.messages_in, status.messages_out), (502, 503));
            assert_eq!(client.shutdown(WAIT_MAX).await, 0);
        }
    }
}

#[tokio::test]
async fn hears_ordinary_clients_and_is_heard_by_them() {
    let (Some(mosquitto), Some(publish_program), Some(subscribe_program)) =
        (Mosquitto::start(&[]), program("mosquitto_pub"), program("mosquitto_sub"))
    else {
        return;
    };
    let port = mosquitto.port.to_string();
    let (router, inbox) = router(&["in/#"]);
    let client = client(router, &mosquitto.address(), |_| {});
    client.subscribe(["in/#"]).unwrap();
    until_subscribed(&client).await;
    let sent = run(
        &publish_program,
        &["-p", &port, "-V", "5", "-q", "1", "-t", "in/a", "-m", "hello", "-D", "PUBLISH", "user-property", "k", "v"],
    )
    .await;
    assert!(sent.status.success());
    until("the message of an ordinary client", || inbox.contains("hello")).await;
    let listening = Running::start(&subscribe_program, &["-p", &port, "-t", "out/+", "-v", "-C", "1", "-W", "10"]);
    // It is subscribed as soon as one of many tries reaches it.
    let publisher = client.publisher();
    let lines = tokio::select! {
        lines = listening.lines() => lines,
        () = async {
            loop {
                publish(&publisher, "out/b", "answer", Qos::AtMostOnce);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        } => unreachable!(),
    };
    assert_eq!(lines, ["out/b answer"]);
}

#[tokio::test]
async fn logs_in_with_a_password() {
    let (Some(_), Some(passwords)) = (program("mosquitto"), program("mosquitto_passwd")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passwords");
    let made = Command::new(passwords).arg("-b").arg("-c").arg(&file).args(["kim", "p@ss"]).status().unwrap();
    assert!(made.success());
    let Some(mosquitto) = Mosquitto::start_in(folder, &[&format!("password_file {}", file.display())]) else { return };
    for version in VERSIONS {
        let (router, _) = router(&[]);
        let right = client(router.clone(), &format!("mqtt://kim:p%40ss@127.0.0.1:{}", mosquitto.port), |options| {
            options.version = version;
        });
        until("the right password is let in", || right.status().connected).await;
        let wrong = client(router, &format!("mqtt://kim:secret@127.0.0.1:{}", mosquitto.port), |options| {
            options.version = version;
        });
        until("the wrong password is refused", || wrong.status().last_error.is_some()).await;
        let error = wrong.status().last_error.unwrap();
        assert!(error.contains("refuses") && error.contains("check user and password"), "{error}");
        assert!(!error.contains("secret"));
    }
}

#[tokio::test]
async fn speaks_tls_and_trusts_only_the_given_authority() {
    if program("mosquitto").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (authority, certificate, key) = certificates(folder.path());
    let lines = [format!("certfile {}", certificate.display()), format!("keyfile {}", key.display())];
    let Some(mosquitto) = Mosquitto::start_in(folder, &[&lines[0], &lines[1]]) else { return };
    let (router, inbox) = router(&["t"]);
    let secure = client(router.clone(), &format!("mqtts://localhost:{}", mosquitto.port), |options| {
        options.tls.ca_file = Some(authority);
    });
    secure.subscribe(["t"]).unwrap();
    until_subscribed(&secure).await;
    for number in 0..100 {
        publish(&secure.publisher(), "t", &number.to_string(), Qos::AtLeastOnce);
    }
    until("messages over TLS", || inbox.len() == 100).await;
    let distrustful = client(router, &format!("mqtts://localhost:{}", mosquitto.port), |_| {});
    until("an unknown authority is refused", || distrustful.status().last_error.is_some()).await;
    let error = distrustful.status().last_error.unwrap();
    assert!(error.contains("TLS failed") && error.contains("hint:"), "{error}");
}

#[tokio::test]
async fn survives_the_death_of_the_broker() {
    let Some(mut mosquitto) = Mosquitto::start(&[]) else { return };
    for version in VERSIONS {
        let (router, inbox) = router(&["t"]);
        let client = client(router, &mosquitto.address(), |options| options.version = version);
        client.subscribe(["t"]).unwrap();
        until_subscribed(&client).await;
        publish(&client.publisher(), "t", "before", Qos::AtMostOnce);
        until("a message before", || inbox.contains("before")).await;
        mosquitto.kill();
        until("the loss is noticed", || !client.status().connected).await;
        assert!(client.status().last_error.is_some());
        // Results wait; subscriptions may change meanwhile.
        publish(&client.publisher(), "t", "meanwhile", Qos::AtLeastOnce);
        client.subscribe(["other", "t"]).unwrap();
        client.unsubscribe(["t"]);
        assert_eq!(client.status().queued_messages, 1);
        assert!(mosquitto.restart());
        until_subscribed(&client).await;
        until("everything that waited is sent", || client.status().queued_messages == 0).await;
        publish(&client.publisher(), "t", "after", Qos::AtMostOnce);
        until("a message after", || inbox.contains("after")).await;
        let status = client.status();
        assert_eq!((status.reconnects, status.gaps, status.subscriptions), (1, 1, 2), "{version:?}");
    }
}

#[tokio::test]
async fn a_kept_session_has_no_gap() {
    let Some(mosquitto) = Mosquitto::start(&[]) else { return };
    for version in VERSIONS {
        let (router, inbox) = router(&["t"]);
        let start = |qos| {
            let router = router.clone();
            client(router, &mosquitto.address(), move |options| {
                options.version = version;
                options.qos = qos;
                options.clean_session = false;
                options.client_id = format!("keeper-{version:?}");
            })
        };
        let first = start(Qos::AtLeastOnce);
        first.subscribe(["t"]).unwrap();
        until_subscribed(&first).await;
        first.shutdown(WAIT_MAX).await;
        let other = client(router.clone(), &mosquitto.address(), |_| {});
        publish(&other.publisher(), "t", "while away", Qos::AtLeastOnce);
        until("it is acknowledged", || other.status().messages_out == 1 && other.status().queued_messages == 0).await;
        assert!(!inbox.contains("while away"));
        let second = start(Qos::AtLeastOnce);
        second.subscribe(["t"]).unwrap();
        until("what came while away", || inbox.contains("while away")).await;
        // A namesake throws it out for a moment: the session is there when it comes back, so nothing is missing.
        let probe = super::probe::Probe::connect(mosquitto.port, version, &format!("keeper-{version:?}"), |request| {
            request.clean = false;
            request.expiry_s = 60;
        });
        drop(probe);
        until("it is back", || second.status().reconnects >= 1 && second.status().connected).await;
        assert_eq!(second.status().gaps, 0);
        until_subscribed(&second).await;
    }
}

/// Hands a message to a publisher that the broker is to retain.
fn retain(publisher: &Arc<dyn Publisher>, topic: &str, payload: &str) {
    let mut batch = PublishBatch::new();
    let options = PublishOptions { qos: Qos::AtLeastOnce, retain: true, ..PublishOptions::default() };
    batch.push(topic, payload.as_bytes(), options).unwrap();
    publisher.submit(&mut batch);
}

/// Throws a client out for a moment by a namesake, and waits until it is back.
async fn cut(mosquitto: &Mosquitto, client: &rivulet_connectors::mqtt::Client, id: &str, version: Version) {
    let before = client.status().reconnects;
    let (port, id) = (mosquitto.port, id.to_owned());
    let namesake = move || {
        super::probe::Probe::connect(port, version, &id, |request| {
            request.clean = false;
            request.expiry_s = 60;
        })
    };
    drop(tokio::task::spawn_blocking(namesake).await.unwrap());
    until("it is back", || client.status().reconnects > before && client.status().connected).await;
    until_subscribed(client).await;
}

#[tokio::test]
async fn a_retained_message_counts_once_and_never_for_what_is_younger() {
    let Some(mosquitto) = Mosquitto::start(&[]) else { return };
    let sender = client(router(&[]).0, &mosquitto.address(), |_| {});
    for (version, is_kept) in VERSIONS.into_iter().flat_map(|version| [(version, false), (version, true)]) {
        let (router, inbox) = router(&["old/#", "new/#", "end"]);
        let id = format!("reader-{version:?}-{is_kept}");
        let start = || {
            let client = client(router.clone(), &mosquitto.address(), |options| {
                options.version = version;
                options.qos = Qos::AtLeastOnce;
                options.clean_session = !is_kept;
                options.client_id = id.clone();
            });
            client.subscribe(["end", "new/+"]).unwrap();
            client
        };
        for number in 0..20 {
            retain(&sender.publisher(), &format!("old/{number}"), "old");
        }
        until("all is retained", || sender.status().queued_messages == 0).await;
        let reader = start();
        // As when applications are created one by one; some filters cover others.
        for number in 0..20 {
            reader.subscribe([&*format!("old/{number}")]).unwrap();
            until_subscribed(&reader).await;
        }
        reader.subscribe(["old/+"]).unwrap();
        until_subscribed(&reader).await;
        retain(&sender.publisher(), "new/1", "once");
        until("the message that is published now", || inbox.contains("once")).await;
        for _ in 0..3 {
            cut(&mosquitto, &reader, &id, version).await;
        }
        reader.shutdown(WAIT_MAX).await;
        let reader = start();
        until_subscribed(&reader).await;
        publish(&sender.publisher(), "end", "end", Qos::AtLeastOnce);
        until("the end", || inbox.contains("end")).await;
        assert_eq!(inbox.texts(), ["once", "end"], "{version:?}, kept: {is_kept}");
        reader.shutdown(WAIT_MAX).await;
        retain(&sender.publisher(), "new/1", "");
        until("none is retained", || sender.status().queued_messages == 0).await;
    }
}

#[tokio::test]
async fn a_message_that_is_too_large_is_passed_over_counted_and_does_not_come_again() {
    let Some(mosquitto) = Mosquitto::start(&["max_inflight_messages 1"]) else { return };
    let sender = client(router(&[]).0, &mosquitto.address(), |_| {});
    // Beyond the bound that is the default.
    let large = "x".repeat((16 << 20) + 1);
    for (version, qos) in
        VERSIONS.into_iter().flat_map(|version| [Qos::AtMostOnce, Qos::AtLeastOnce].map(|qos| (version, qos)))
    {
        let (router, inbox) = router(&["t"]);
        let id = format!("reader-{version:?}-{qos:?}");
        let start = || {
            let client = client(router.clone(), &mosquitto.address(), |options| {
                options.version = version;
                options.qos = qos;
                options.clean_session = false;
                options.client_id = id.clone();
            });
            client.subscribe(["t"]).unwrap();
            client
        };
        let reader = start();
        until_subscribed(&reader).await;
        publish(&sender.publisher(), "t", &large, Qos::AtLeastOnce);
        publish(&sender.publisher(), "t", "after", Qos::AtLeastOnce);
        until("the message behind it", || inbox.contains("after")).await;
        let status = reader.status();
        assert_eq!(
            (status.too_large_events, status.reconnects),
            (1, 0),
            "{version:?} {qos:?}: {:?}",
            status.last_error
        );
        // It was answered, so the broker does not send it again.
        reader.shutdown(WAIT_MAX).await;
        let reader = start();
        until_subscribed(&reader).await;
        publish(&sender.publisher(), "t", "later", Qos::AtLeastOnce);
        until("a later message", || inbox.contains("later")).await;
        assert_eq!(
            (reader.status().too_large_events, inbox.texts()),
            (0, vec!["after".to_owned(), "later".to_owned()])
        );
        reader.shutdown(WAIT_MAX).await;
    }
}

#[tokio::test]
async fn a_full_inbox_stops_reading_and_nothing_is_lost_or_doubled() {
    let Some(mosquitto) = Mosquitto::start(&["max_queued_messages 0", "max_inflight_messages 0"]) else { return };
    for version in VERSIONS {
        let (router, inbox) = router(&["t", "+"]);
        let client = client(router.clone(), &mosquitto.address(), |options| {
            options.version = version;
            options.qos = Qos::AtLeastOnce;
        });
        client.subscribe(["t"]).unwrap();
        until_subscribed(&client).await;
        inbox.limit(101);
        let sender = super::support::client(router, &mosquitto.address(), |_| {});
        for number in 0..5000 {
            publish(&sender.publisher(), "t", &number.to_string(), Qos::AtLeastOnce);
        }
        until("the inbox is full for a while", || inbox.refusals() > 3).await;
        assert_eq!(inbox.len(), 101);
        inbox.limit(usize::MAX);
        until("all of it", || inbox.len() == 10_000).await;
        // Each of the two routes has every event once, in order.
        for slot in 0..2 {
            let slots = inbox.slots();
            let numbers: Vec<String> =
                inbox.texts().into_iter().zip(slots).filter(|(_, of)| *of == slot).map(|(text, _)| text).collect();
            assert!(numbers.iter().eq((0..5000).map(|number| number.to_string()).collect::<Vec<_>>().iter()));
        }
        assert_eq!(client.status().deadlock_events, 0);
    }
}

/// How often an event came that matches three filters, and events that match one each.
async fn copies_through(mosquitto: &Mosquitto, version: Version, filters: &[&str], topics: &[&str]) -> Vec<usize> {
    let (router, inbox) = router(&["home/+/+"]);
    let client = client(router.clone(), &mosquitto.address(), |options| {
        options.version = version;
        options.qos = Qos::AtLeastOnce;
    });
    client.subscribe(filters.iter().copied()).unwrap();
    until_subscribed(&client).await;
    // A filter that is subscribed to later, as when an application is registered while others run.
    client.subscribe(["home/1/temperature"]).unwrap();
    until_subscribed(&client).await;
    let sender = super::support::client(router, &mosquitto.address(), |_| {});
    for topic in topics.iter().chain(&["home/last/temperature"]) {
        publish(&sender.publisher(), topic, topic, Qos::AtLeastOnce);
    }
    until("the last", || inbox.contains("home/last/temperature")).await;
    // A copy of the last one would come before what is sent now.
    publish(&sender.publisher(), "home/last/temperature", "end", Qos::AtLeastOnce);
    until("the end", || inbox.contains("end")).await;
    assert_eq!(client.shutdown(WAIT_MAX).await, 0);
    let texts = inbox.texts();
    topics.iter().map(|topic| texts.iter().filter(|text| text == topic).count()).collect()
}

#[tokio::test]
async fn overlapping_filters_bring_an_event_once() {
    let topics = ["home/1/temperature", "home/2/temperature", "home/1/humidity"];
    // In part: each of the two matches topics that the other does not.
    let in_part = ["home/+/temperature", "home/1/+"];
    let covered = ["home/+/temperature", "home/+/+"];
    let Some(mosquitto) = Mosquitto::start(&[]) else { return };
    for filters in [in_part, covered] {
        assert_eq!(copies_through(&mosquitto, Version::V5, &filters, &topics).await, [1, 1, 1], "{filters:?}");
        assert_eq!(copies_through(&mosquitto, Version::V3, &filters, &topics).await, [1, 1, 1], "{filters:?}");
    }
    // In version 3.1.1 a broker may send copies without a sign. Filters that others cover are not subscribed to, so
    // there are none; of those that overlap in part the user is told.
    let mosquitto = Mosquitto::start(&["allow_duplicate_messages true"]).expect("it started before");
    for filters in [in_part, covered] {
        assert_eq!(copies_through(&mosquitto, Version::V5, &filters, &topics).await, [1, 1, 1], "{filters:?}");
    }
    assert_eq!(copies_through(&mosquitto, Version::V3, &covered, &topics).await, [1, 1, 1]);
    let (router, _) = router(&[]);
    let client = client(router, &mosquitto.address(), |options| options.version = Version::V3);
    client.subscribe(in_part).unwrap();
    until_subscribed(&client).await;
    assert!(client.status().partial_overlap.is_some());
}
