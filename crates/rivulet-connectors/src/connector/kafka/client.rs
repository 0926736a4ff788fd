//! The clients of a broker, and which hosts they connect to.
//!
//! What must hold: a client connects to no host that statements may not reach, also where a broker has told it of that
//! host, or a name has led to another address by then. The library asks [`connect`] for each of its connections, which
//! it makes after the callback was set: before that it knows no broker.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{self, sockaddr, sockaddr_in, sockaddr_in6};
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::bindings::{rd_kafka_brokers_add, rd_kafka_conf, rd_kafka_conf_set_connect_cb};
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode;

use super::properties;
use crate::connector::{ConnectorError, Options};
use crate::reach::AllowedHosts;

/// The name of the connector.
pub(super) const NAME: &str = "kafka";

/// How long opening waits for the broker.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// The most events that are looked at for the reason why a broker does not answer.
const EVENTS_MAX: usize = 100;

/// The pause before a broker is asked again.
const ASKED_PAUSE: Duration = Duration::from_millis(200);

/// The settings of a client, and where it may connect to.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The properties, without the brokers: see the head of this file.
    pub(super) config: ClientConfig,
    /// The first brokers, with commas between.
    brokers: String,
    pub(super) reach: AllowedHosts,
}

/// The context of a consumer.
pub(super) struct Reading {
    reach: AllowedHosts,
    /// What the library has said last of its connections.
    problem: Mutex<Option<String>>,
}

impl ClientContext for Reading {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    /// The library connects again by itself.
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!("Kafka: {error}: {reason}");
        let mut problem = self.problem.lock();
        // "All brokers are away" says less than the reason why one of them is.
        match error {
            KafkaError::Global(RDKafkaErrorCode::AllBrokersDown) => _ = problem.get_or_insert(reason.to_owned()),
            _ => *problem = Some(reason.to_owned()),
        }
    }
}

impl ConsumerContext for Reading {}

/// A consumer that keeps to the hosts that may be reached.
pub(super) type Reader = BaseConsumer<Reading>;

/// The context of a client of this connector.
pub(super) trait Bounded: ClientContext {
    /// The hosts that the client may connect to.
    fn reach(&self) -> &AllowedHosts;
}

impl Bounded for Reading {
    fn reach(&self) -> &AllowedHosts {
        &self.reach
    }
}

impl Settings {
    pub(super) fn new(config: ClientConfig, brokers: &str, reach: &AllowedHosts) -> Self {
        Self { config, brokers: brokers.to_owned(), reach: reach.clone() }
    }

    /// A consumer with these settings.
    pub(super) fn consumer(&self) -> Result<Reader, KafkaError> {
        let context = Reading { reach: self.reach.clone(), problem: Mutex::default() };
        let consumer = BaseConsumer::from_config_and_context(&self.config, context)?;
        self.introduce(consumer.client()).map(|()| consumer)
    }

    /// A producer with these settings.
    pub(super) fn producer<C: Bounded + ProducerContext>(&self, context: C) -> Result<ThreadedProducer<C>, KafkaError> {
        let producer = ThreadedProducer::from_config_and_context(&self.config, context)?;
        self.introduce(producer.client()).map(|()| producer)
    }

    /// Tells a new client of the brokers, once it asks before it connects.
    fn introduce<C: Bounded>(&self, client: &Client<C>) -> Result<(), KafkaError> {
        let refused = |why: &str| KafkaError::ClientCreation(why.to_owned());
        let brokers = CString::new(self.brokers.as_str()).map_err(|_| refused("the brokers have a zero byte"))?;
        let client = client.native_ptr();
        // SAFETY: the client lives as long as this call. Its settings are those that its threads read when they
        // connect, and without a broker none connects, so nothing reads the callback while it is set. The client holds
        // the context, a `C` that the library has as its opaque value, until the library's client is destroyed.
        let added = unsafe {
            rd_kafka_conf_set_connect_cb(rd_kafka_conf(client).cast_mut(), Some(connect::<C>));
            rd_kafka_brokers_add(client, brokers.as_ptr())
        };
        if added > 0 { Ok(()) } else { Err(refused("the address names no broker")) }
    }
}

/// Connects a socket of a client, if the address may be reached. Returns 0 or the number of the error. `node` is the
/// broker's host and port, as they were given or as a broker told them.
unsafe extern "C" fn connect<C: Bounded>(
    socket: c_int,
    address: *const sockaddr,
    length: c_int,
    node: *const c_char,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see `Settings::introduce`; the library gives an address of this length, and a text that ends with zero.
    let (context, node) = unsafe { (&*context.cast::<C>(), CStr::from_ptr(node).to_string_lossy()) };
    let host = node.rsplit_once(':').map_or(&*node, |(host, _)| host);
    // SAFETY: as above.
    let Some(ip) = (unsafe { ip_of(address) }) else { return libc::EAFNOSUPPORT };
    if let Err(refused) = context.reach().check(host, ip) {
        tracing::warn!("Kafka: {refused}");
        return libc::EACCES;
    }
    // SAFETY: as above.
    match unsafe { libc::connect(socket, address, length.cast_unsigned()) } {
        0 => 0,
        _ if Errno::last() == Errno::EINPROGRESS => 0,
        _ => Errno::last_raw(),
    }
}

/// The address of a socket; `None` if it is of another family.
///
/// # Safety
/// The pointer is to an address of the size that its family has.
unsafe fn ip_of(address: *const sockaddr) -> Option<IpAddr> {
    // SAFETY: the family says which type it is.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// Logs what the library says.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel::{Alert, Critical, Debug, Emerg, Error, Info, Notice, Warning};
    match level {
        // Health says that a broker cannot be reached; each attempt would be a line here.
        _ if facility == "FAIL" => tracing::debug!("librdkafka: {facility} {message}"),
        // It does not know its brokers from the beginning.
        _ if message.contains("No `bootstrap.servers` configured") => {}
        Emerg | Alert | Critical | Error => tracing::error!("librdkafka: {facility} {message}"),
        Warning => tracing::warn!("librdkafka: {facility} {message}"),
        Notice | Info => tracing::info!("librdkafka: {facility} {message}"),
        Debug => tracing::debug!("librdkafka: {facility} {message}"),
    }
}

/// A consumer with these settings.
pub(super) fn consumer(settings: &Settings, options: &Options) -> Result<Reader, ConnectorError> {
    settings.consumer().map_err(|error: KafkaError| {
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

/// Why a consumer that is being opened got no answer: the error, and what the library says of its connections, such as
/// a password or a certificate that was refused.
pub(super) fn why(consumer: &Reader, error: &KafkaError) -> String {
    for _ in 0..EVENTS_MAX {
        // The library tells of them when it is asked for messages, of which there are none yet.
        drop(consumer.poll(Duration::ZERO));
    }
    match consumer.context().problem.lock().take() {
        Some(problem) => format!("{error}: {problem}"),
        None => error.to_string(),
    }
}

/// What a broker answers. It is asked again while the answer is an error that passes, up to the time limit of opening.
pub(super) fn asked<T>(
    passes: impl Fn(&KafkaError) -> bool,
    mut ask: impl FnMut() -> KafkaResult<T>,
) -> KafkaResult<T> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    loop {
        let answer = ask();
        if !answer.as_ref().is_err_and(&passes) || Instant::now() >= deadline {
            return answer;
        }
        thread::sleep(ASKED_PAUSE);
    }
}

/// The offsets that a group has committed; asked as [`asked`] does, also if the answer of a partition is an error.
pub(super) fn committed(
    consumer: &Reader,
    wanted: &TopicPartitionList,
    passes: impl Fn(&KafkaError) -> bool,
) -> KafkaResult<TopicPartitionList> {
    asked(passes, || {
        let found = consumer.committed_offsets(wanted.clone(), OPEN_TIMEOUT)?;
        found.elements().iter().try_for_each(|partition| partition.error())?;
        Ok(found)
    })
}
