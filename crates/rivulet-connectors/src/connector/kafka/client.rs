//! The clients of a broker.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfig;
use rdkafka::error::KafkaError;

use super::properties;
use crate::connector::{ConnectorError, Options};

/// The name of the connector.
pub(super) const NAME: &str = "kafka";

/// How long opening waits for the broker.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// A client with these settings.
pub(super) fn client<C: FromClientConfig>(config: &ClientConfig, options: &Options) -> Result<C, ConnectorError> {
    config.create().map_err(|error: KafkaError| {
        config_problem(options, &error)
            .unwrap_or_else(|| options.wrong("properties.*", format!("do not suit: {error}"), PROPERTY_HINT))
    })
}

const PROPERTY_HINT: &str = "the names and values are those of librdkafka's CONFIGURATION.md";

/// Turns the error into one about a property, if it is one.
pub(super) fn config_problem(options: &Options, error: &KafkaError) -> Option<ConnectorError> {
    let KafkaError::ClientConfig(_, problem, name, value) = error else { return None };
    let value = properties::shown(name, value);
    Some(options.wrong(&properties::full_name(name), format!("cannot be '{value}': {problem}"), PROPERTY_HINT))
}
