//! Our broker, with Mosquitto's clients.

use std::path::{Path, PathBuf};

use rivulet_connectors::mqtt::{Broker, BrokerOptions, Qos};
use rivulet_connectors::tls::ServerTls;

use super::support::*;

/// `mosquitto_pub` and `mosquitto_sub`, if they are installed.
fn programs() -> Option<(PathBuf, PathBuf)> {
    Some((program("mosquitto_pub")?, program("mosquitto_sub")?))
}

fn until_listening(broker: &Broker, subscriptions: usize) {
    block_until("the client is subscribed", || broker.stats().subscriptions == subscriptions);
}

/// What a client printed when it has ended.
fn lines(mut listening: Running) -> Vec<String> {
    block_until("the client ends", || listening.0.try_wait().unwrap().is_some());
    let mut text = String::new();
    std::io::Read::read_to_string(listening.0.stdout.as_mut().unwrap(), &mut text).unwrap();
    text.lines().map(str::to_owned).collect()
}

const VERSIONS: [&str; 3] = ["mqttv31", "mqttv311", "mqttv5"];

#[test]
fn messages_go_from_client_to_client_and_to_the_engine() {
    let Some((publish_program, subscribe_program)) = programs() else { return };
    for version in VERSIONS {
        for qos in ["0", "1", "2"] {
            let (router, inbox) = router(&["home/+/t"]);
            let broker = BrokerThread::start(router, |_| {});
            let port = broker.port().to_string();
            let common = ["-p", &port, "-V", version, "-q", qos];
            let listening = Running::start(
                &subscribe_program,
                &[&common[..], &["-t", "home/#", "-t", "none", "-F", "%t %p %q %r", "-C", "2", "-W", "10"]].concat(),
            );
            until_listening(broker.broker(), 2);
            for (topic, payload) in [("home/1/t", "one"), ("garden", "nobody's"), ("home/2/h", "two")] {
                let sent = run_blocking(&publish_program, &[&common[..], &["-t", topic, "-m", payload]].concat());
                assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
            }
            assert_eq!(
                lines(listening),
                [format!("home/1/t one {qos} 0"), format!("home/2/h two {qos} 0")],
                "{version}"
            );
            assert_eq!(inbox.texts(), ["one"]);
            let stats = broker.broker().stats();
            assert_eq!((stats.messages_in, stats.messages_out, stats.dropped), (3, 2, Default::default()));
            block_until("sessions end with their connections", || broker.broker().stats().sessions == 0);
        }
    }
}

#[test]
fn retained_messages_wait_for_subscribers_and_can_be_removed() {
    let Some((publish_program, subscribe_program)) = programs() else { return };
    let (router, inbox) = router(&["config/#"]);
    let broker = BrokerThread::start(router, |_| {});
    let port = broker.port().to_string();
    for (topic, payload) in [("config/a", "1"), ("config/b", "2"), ("config/a", "3")] {
        assert!(
            run_blocking(&publish_program, &["-p", &port, "-r", "-q", "1", "-t", topic, "-m", payload])
                .status
                .success()
        );
    }
    let listen = |version, filter, count| {
        let arguments = ["-p", &port, "-V", version, "-t", filter, "-F", "%t %p %r", "-C", count, "-W", "10"];
        lines(Running::start(&subscribe_program, &arguments))
    };
    assert_eq!(listen("mqttv311", "config/#", "2"), ["config/a 3 1", "config/b 2 1"]);
    assert_eq!(listen("mqttv5", "config/+", "2"), ["config/a 3 1", "config/b 2 1"]);
    assert!(run_blocking(&publish_program, &["-p", &port, "-r", "-t", "config/a", "-n"]).status.success());
    assert_eq!(listen("mqttv311", "config/#", "1"), ["config/b 2 1"]);
    assert_eq!(broker.broker().stats().retained_messages, 1);
    assert_eq!(inbox.texts(), ["1", "2", "3", ""]);
}

#[test]
fn a_will_is_published_when_its_client_dies_but_not_when_it_leaves() {
    let Some((_, subscribe_program)) = programs() else { return };
    let (router, inbox) = router(&["wills/+"]);
    let broker = BrokerThread::start(router, |_| {});
    let port = broker.port().to_string();
    for version in VERSIONS {
        let with_will = |topic: &str, limit: &[&str]| {
            let arguments = ["-p", &port, "-V", version, "-t", "x", "--will-topic", topic, "--will-payload", version];
            Running::start(&subscribe_program, &[&arguments[..], limit].concat())
        };
        let connections = broker.broker().stats().connections;
        let mut dies = with_will("wills/dead", &[]);
        block_until("it is there", || broker.broker().stats().connections == connections + 1);
        dies.0.kill().unwrap();
        block_until("the will reaches the engine", || inbox.contains(version));
        let before = inbox.len();
        lines(with_will("wills/alive", &["-E"]));
        block_until("it has left", || broker.broker().stats().connections == connections);
        assert_eq!(inbox.len(), before, "{version}: leaving is no death");
    }
}

#[test]
fn a_session_that_is_kept_gets_what_it_missed() {
    let Some((publish_program, subscribe_program)) = programs() else { return };
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let port = broker.port().to_string();
    for (version, expiry) in [("mqttv311", &[][..]), ("mqttv5", &["-x", "60"][..])] {
        let common = ["-p", &port, "-V", version, "-i", version, "-c", "-q", "1", "-t", "kept"];
        let sessions = broker.broker().stats().sessions;
        let first = Running::start(&subscribe_program, &[&common[..], expiry, &["-E"]].concat());
        lines(first);
        block_until("it has gone, and its session stays", || {
            let stats = broker.broker().stats();
            (stats.connections, stats.sessions) == (0, sessions + 1)
        });
        for payload in ["1", "2", "3"] {
            assert!(
                run_blocking(&publish_program, &["-p", &port, "-q", "1", "-t", "kept", "-m", payload]).status.success()
            );
        }
        assert!(broker.broker().stats().waiting_messages >= 3);
        let second = Running::start(&subscribe_program, &[&common[..], expiry, &["-C", "3", "-W", "10"]].concat());
        assert_eq!(lines(second), ["1", "2", "3"], "{version}");
    }
}

#[test]
fn users_and_tls() {
    let Some((publish_program, _)) = programs() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (authority, certificate_file, key_file) = certificates(folder.path());
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, move |options| {
        options.listeners[0].tls = Some(ServerTls::new(certificate_file, key_file));
        options.users = vec![("kim".into(), "secret".into())];
    });
    let port = broker.port().to_string();
    for version in VERSIONS {
        let publish = |login: &[&str], trust: &[&str]| {
            let message = ["-h", "localhost", "-p", &port, "-V", version, "-q", "1", "-t", "t", "-m", version];
            run_blocking(&publish_program, &[&message[..], login, trust].concat()).status.success()
        };
        let trust = ["--cafile", authority.to_str().unwrap()];
        assert!(publish(&["-u", "kim", "-P", "secret"], &trust), "{version}");
        assert!(!publish(&["-u", "kim", "-P", "guess"], &trust), "a wrong password");
        assert!(!publish(&[], &trust), "no password");
        assert!(!publish(&["-u", "kim", "-P", "secret"], &[]), "no TLS");
    }
    assert_eq!(inbox.texts(), VERSIONS);
    assert_eq!(broker.broker().stats().dropped.logins_refused, 6);
}

#[test]
fn other_users_and_another_certificate_are_taken_over_while_it_runs() {
    let Some((publish_program, _)) = programs() else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = folders.each_ref().map(|folder| certificates(folder.path()));
    let tls = |files: &(PathBuf, PathBuf, PathBuf)| Some(ServerTls::new(&files.1, &files.2));
    let (router, inbox) = router(&["t"]);
    let certificate = tls(&first);
    let broker = BrokerThread::start(router, move |options| {
        options.listeners[0].tls = certificate;
        options.users = vec![("kim".into(), "secret".into())];
    });
    let port = broker.port().to_string();
    let publish = |user: &str, authority: &Path| {
        let message = ["-h", "localhost", "-p", &port, "-q", "1", "-t", "t", "-m", user, "-u", user, "-P", "secret"];
        let trust = ["--cafile", authority.to_str().unwrap()];
        run_blocking(&publish_program, &[&message[..], &trust].concat()).status.success()
    };
    assert!(publish("kim", &first.0) && !publish("alex", &first.0));
    let mut options = BrokerOptions::new(([127, 0, 0, 1], 0).into());
    options.listeners[0].tls = tls(&second);
    options.users = vec![("alex".into(), "secret".into())];
    broker.broker().take_over(options.clone()).unwrap();
    assert!(publish("alex", &second.0));
    assert!(!publish("kim", &second.0), "a user that is gone");
    assert!(!publish("alex", &first.0), "the certificate of before");
    // What cannot be used changes nothing.
    options.listeners[0].tls = Some(ServerTls::new("none.pem", &first.2));
    options.users.clear();
    assert!(broker.broker().take_over(options).unwrap_err().to_string().contains("none.pem"));
    assert!(publish("alex", &second.0) && !publish("kim", &second.0));
    assert_eq!(inbox.texts(), ["kim", "alex", "alex"]);
}

#[test]
fn results_of_the_engine_reach_subscribers_and_other_queries() {
    let Some((_, subscribe_program)) = programs() else { return };
    let (router, inbox) = router(&["out/+"]);
    let broker = BrokerThread::start(router, |_| {});
    let port = broker.port().to_string();
    for version in VERSIONS {
        for qos in [Qos::AtMostOnce, Qos::AtLeastOnce] {
            let listening = Running::start(
                &subscribe_program,
                &["-p", &port, "-V", version, "-q", "1", "-t", "out/#", "-v", "-C", "1000", "-W", "10"],
            );
            until_listening(broker.broker(), 1);
            let before = inbox.len();
            for number in 0..1000 {
                publish(&broker.broker().publisher(), &format!("out/{number}"), "x", qos);
            }
            let lines = lines(listening);
            let expected = (0..1000).map(|number| format!("out/{number} x"));
            assert!(lines.iter().eq(expected.collect::<Vec<_>>().iter()), "{version} {qos:?}");
            assert_eq!(inbox.len() - before, 1000);
            block_until("it has gone", || broker.broker().stats().connections == 0);
        }
    }
}
