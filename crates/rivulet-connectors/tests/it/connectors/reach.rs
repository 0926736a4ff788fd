//! Connectors against hosts that statements may not reach: no connection is made, whatever the host is called.

use std::net::TcpListener;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use rivulet_connectors::connector::{ConnectorContext, Connectors};
use rivulet_connectors::reach::{AllowedHosts, KEY, Reach};
use rivulet_dataflow::Batch;

use super::support::{batch, drain, fill, flush_until, options, sink, sink_error, source, source_error};

/// A number that systems resolve to 127.0.0.1. It is no address in the words of a URL, so only the look at the address
/// that is connected to can refuse it.
const DECIMAL: &str = "2130706433";

fn rows() -> Batch {
    batch(vec![("n", Arc::new(Int64Array::from_iter_values(0..3)) as ArrayRef)])
}

fn allowing(list: &str) -> ConnectorContext {
    let hosts = AllowedHosts::listed(list, KEY).unwrap();
    ConnectorContext {
        reach: Reach { posts: hosts.clone(), brokers: hosts, ..Reach::default() },
        ..ConnectorContext::of_user()
    }
}

/// The default of a server that others can reach.
fn not_this_machine() -> ConnectorContext {
    ConnectorContext { reach: Reach::default(), ..ConnectorContext::of_user() }
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[test]
fn kafka_connects_to_no_address_that_may_not_be_reached() {
    let (listener, port) = listener();
    let spec = |host: &str, allowed: ConnectorContext| {
        let mut spec = sink(&format!("kafka:{host}:{port}/x"), rows().columns.schema());
        spec.host = ConnectorContext { health: Arc::default(), ..allowed };
        spec
    };
    for host in ["127.0.0.1", "localhost", "[::1]", "example.org:9092,127.0.0.1"] {
        let error = Connectors::OWN.check_sink(&spec(host, not_this_machine())).unwrap_err().to_string();
        assert!(error.contains("out of reach") && error.contains("hosts.allow"), "{host}: {error}");
    }
    // As a name it is none that would be refused.
    let refused = spec(DECIMAL, not_this_machine());
    Connectors::OWN.check_sink(&refused).unwrap();
    let health = refused.host.health.clone();
    let mut opened = Connectors::OWN.open_sink(&refused, 0, 1).unwrap();
    opened.write(&rows()).unwrap();
    let is_refused = |error: &String| error.contains("Permission denied");
    flush_until(&mut *opened, &health, |health| health.last_error.as_ref().is_some_and(is_refused));
    assert!(listener.accept().is_err(), "nothing has connected");
    // The same with the right to it.
    let allowed = spec(DECIMAL, allowing(DECIMAL));
    let health = allowed.host.health.clone();
    let mut opened = Connectors::OWN.open_sink(&allowed, 0, 1).unwrap();
    opened.write(&rows()).unwrap();
    flush_until(&mut *opened, &health, |_| listener.accept().is_ok());
}

#[test]
fn mqtt_connects_to_no_address_that_may_not_be_reached() {
    let (listener, port) = listener();
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"] {
        let mut spec = source("mqtt:a", "n BIGINT");
        spec.format = Some(("JSON".into(), Vec::new()));
        spec.options = options(&[("broker", &format!("mqtt://{host}:{port}"))]);
        spec.host = not_this_machine();
        let error = Connectors::OWN.check_source(&spec).unwrap_err().to_string();
        assert!(error.contains("out of reach") && error.contains("hosts.allow"), "{host}: {error}");
    }
    let broker = format!("mqtt://{DECIMAL}:{port}");
    let mut from = source("mqtt:a", "n BIGINT");
    from.format = Some(("JSON".into(), Vec::new()));
    from.options = options(&[("broker", &broker)]);
    from.host = not_this_machine();
    Connectors::OWN.check_source(&from).unwrap();
    let error = source_error(&from);
    assert!(error.contains("does not connect to '2130706433'") && error.contains("hosts.allow"), "{error}");
    let mut to = sink("mqtt:a", rows().columns.schema());
    to.options = options(&[("broker", &broker)]);
    to.host = not_this_machine();
    assert!(sink_error(&to).contains("does not connect to '2130706433'"));
    assert!(listener.accept().is_err(), "nothing has connected");
}

/// A broker tells its clients where it is, and may say anything. `address` is that of a topic at 127.0.0.1.
pub(crate) fn what_a_kafka_broker_tells_is_looked_at(address: &str) {
    fill(&sink(address, rows().columns.schema()), &[rows()]).unwrap();
    let by_name = address.replace("127.0.0.1", "localhost");
    let spec = |allowed: &str| {
        let mut spec = source(&by_name, "n BIGINT");
        spec.options = options(&[("bounded", "true")]);
        spec.host = allowing(allowed);
        spec
    };
    // Its name is allowed, and the address that it tells is not.
    let error = source_error(&spec("localhost"));
    assert!(error.contains("cannot open 'kafka:localhost"), "{error}");
    assert_eq!(drain(&spec("localhost, 127.0.0.1"), 1).unwrap().sorted(), ["0", "1", "2"]);
}
