//! The clients of a broker.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::TopicPartitionList;

use super::properties;
use crate::connector::{ConnectorError, Options};

/// The name of the connector.
pub(super) const NAME: &str = "kafka";

/// How long opening waits for the broker.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// The pause before a group is asked again for its offsets.
const COMMITTED_PAUSE: Duration = Duration::from_millis(200);

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

/// The offsets that a group has committed. It is asked again while its answer, or that of a partition, is an error that
/// passes, up to the time limit of opening.
pub(super) fn committed(
    consumer: &BaseConsumer,
    wanted: &TopicPartitionList,
    passes: impl Fn(&KafkaError) -> bool,
) -> KafkaResult<TopicPartitionList> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    loop {
        let found = consumer.committed_offsets(wanted.clone(), OPEN_TIMEOUT).and_then(|found| {
            found.elements().iter().try_for_each(|partition| partition.error())?;
            Ok(found)
        });
        if !found.as_ref().is_err_and(&passes) || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(COMMITTED_PAUSE);
    }
}
