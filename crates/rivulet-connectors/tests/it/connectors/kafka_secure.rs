//! `kafka:` over TLS, with passwords: a real broker that asks for both.

use std::fs;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use rivulet_dataflow::Batch;

use super::kafka_broker::{Broker, PASSWORD, USER};
use super::support::{batch, drain, fill, options, sink, source, source_error};
use crate::authority::Authority;

fn rows(count: i64) -> Batch {
    batch(vec![("n", Arc::new(Int64Array::from_iter_values(0..count)) as ArrayRef)])
}

/// A user, and how it proves that.
fn login(mechanism: &str, password: &str, authorities: &str) -> Vec<(String, String)> {
    options(&[
        ("properties.security.protocol", "sasl_ssl"),
        ("properties.sasl.mechanism", mechanism),
        ("properties.sasl.username", USER),
        ("properties.sasl.password", password),
        ("properties.ssl.ca.location", authorities),
    ])
}

#[test]
fn a_broker_is_verified_and_verifies_users() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let (certificate, key) = authority.server("kafka");
    let identity = folder.path().join("identity.pem");
    fs::write(&identity, fs::read_to_string(key).unwrap() + &fs::read_to_string(certificate).unwrap()).unwrap();
    let Some((_broker, address)) = Broker::start_secure_or_skip(&identity) else { return };
    let authorities = authority.file.to_str().unwrap();
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let topic = format!("kafka:{address}/{}", mechanism.to_lowercase());
        let mut to = sink(&topic, rows(1).columns.schema());
        to.options = login(mechanism, PASSWORD, authorities);
        fill(&to, &[rows(1_000)]).unwrap();
        let mut from = source(&topic, "n BIGINT");
        from.options = login(mechanism, PASSWORD, authorities);
        from.options.extend(options(&[("bounded", "true")]));
        assert_eq!(drain(&from, 1).unwrap().rows.len(), 1_000, "{mechanism}");
    }
    let other = Authority::new(folder.path(), "other");
    let mut from = source(&format!("kafka:{address}/plain"), "n BIGINT");
    for (password, authorities, expected) in [
        ("a-guess", authorities, "uthentication"),
        (PASSWORD, other.file.to_str().unwrap(), "certificate verify failed"),
    ] {
        from.options = login("SCRAM-SHA-256", password, authorities);
        let error = source_error(&from);
        assert!(error.contains(expected) && !error.contains(password), "{error}");
    }
}
