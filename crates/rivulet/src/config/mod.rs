//! What the server runs with: one TOML file, overridden by environment variables, overridden by the command line.
//!
//! Every value knows where it came from, so that `rivulet config` can say it and an error can point at it. A key that
//! does not exist is an error in the file and on the command line; in the environment it is a warning, because other
//! software puts variables there by itself (Kubernetes adds `RIVULET_PORT` for a service that is called `rivulet`).

mod broker_url;
mod jwt;
mod keys;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rivulet_connectors::http_server::Origins;
use rivulet_connectors::mqtt::BrokerLimits;
use rivulet_connectors::reach::{self, AllowedHosts, Reach};
use rivulet_connectors::tls::{ClientCertificates, ClientTls, NameKind, ServerTls};
use rivulet_operators::application::Input;
use rivulet_runtime::{Numa, WorkerSettings};
use rivulet_sql::Durability;
use rivulet_storage::{BucketName, Credentials, Place, S3Settings};
use toml::de::{DeTable, DeValue};

use broker_url::broker_url;
use jwt::is_safe_url;
pub use jwt::{JwtConfig, JwtKeys};
pub use keys::{KEYS, Key, Kind, Value, environment_names};
use keys::{Written, dollars, times_of_day};

/// The file that is read when no other is named and it exists.
pub const FILE_NAME: &str = "rivulet.toml";

/// The folder of checkpoints in a data folder, unless it is configured otherwise.
pub const CHECKPOINTS: &str = "checkpoints";

/// The folder of the audit in a data folder, unless it is configured otherwise.
const AUDIT: &str = "audit";

/// Where checkpoints lie: the key.
const FOLDER: &str = "checkpoint.folder";

/// The function that is a burst worker: the key.
const FUNCTION: &str = "burst.lambda.function";

/// What every program that uses a bucket or a function takes from the environment, where it is not said otherwise, by
/// the end of the key; `{}` is the service. The first of a key that is there counts.
const AWS_VARIABLES: [(&str, &str); 13] = [
    ("endpoint", "AWS_ENDPOINT_URL_{}"),
    ("endpoint", "AWS_ENDPOINT_URL"),
    ("region", "AWS_REGION"),
    ("region", "AWS_DEFAULT_REGION"),
    ("access_key_id", "AWS_ACCESS_KEY_ID"),
    ("secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    ("session_token", "AWS_SESSION_TOKEN"),
    ("role_arn", "AWS_ROLE_ARN"),
    ("web_identity_token_file", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    ("sts_endpoint", "AWS_ENDPOINT_URL_STS"),
    ("container_credentials", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    ("container_credentials", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ("container_token_file", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
];

/// What says who asks. Once one of them is set, none is taken from the environment of other programs.
const AWS_CREDENTIALS: [&str; 5] =
    ["access_key_id", "role_arn", "web_identity_token_file", "container_credentials", "instance_role"];

/// Variables of this prefix that are no keys: they belong to commands.
const OTHER_VARIABLES: [&str; 8] = [
    "RIVULET_CONFIG",
    "RIVULET_SERVER",
    "RIVULET_HISTORY",
    "RIVULET_TOKEN",
    "RIVULET_TOKEN_FILE",
    "RIVULET_CA",
    "RIVULET_CERT",
    "RIVULET_KEY",
];

/// The configuration in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Folder of the catalog.
    pub data_dir: PathBuf,
    /// Where the REST API listens.
    pub http_address: SocketAddr,
    /// What the REST API keeps to.
    pub http: HttpConfig,
    /// Whether users whose logins fail are slowed down.
    pub slows_logins: bool,
    /// Open files that connections leave for everything else, if they can.
    pub files_reserved: usize,
    /// Where other servers link to this one, if they may.
    pub link: Option<LinkConfig>,
    /// The embedded broker, if it runs.
    pub embedded: Option<EmbeddedBrokerConfig>,
    /// The external broker, if one is used.
    pub broker: Option<BrokerConfig>,
    /// How tasks of queries go to burst workers.
    pub burst: BurstConfig,
    /// Threads that run tasks, and how.
    pub workers: WorkerSettings,
    /// Most events of one batch; `None` for the usual bound. No key sets it: a trial and a measurement do.
    pub batch_rows_max: Option<usize>,
    /// Most events waiting in front of a task.
    pub inbox_rows_max: usize,
    /// Most bytes waiting in front of a task.
    pub inbox_bytes_max: usize,
    /// The limits of tenants that have none of their own: those that are set, by the name below `tenants`.
    pub tenant_limits: Vec<(&'static str, u64)>,
    /// Resident memory from which on queries are refused; `None` for no bound.
    pub memory_bytes_max: Option<u64>,
    /// After how much silence the state of a query goes to disk; `None` for never.
    pub spill_after: Option<Duration>,
    /// Most bytes of the state of silent queries on disk.
    pub spill_bytes_max: u64,
    /// When and where the state of queries is saved, if it is.
    pub checkpoint: Option<CheckpointConfig>,
    /// Whether queries may begin with empty state where that place has none of theirs. For one start, so it is no key.
    pub accepts_empty_checkpoints: bool,
    /// How long a server may take to stop; `None` for as long as it takes.
    pub stop_limit: Option<Duration>,
    /// How long a server that is told to stop goes on as before, but for saying that it is not ready.
    pub stop_delay: Duration,
    /// What of inputs survives the end of the server.
    pub durability: DurabilityConfig,
    /// Most bytes of a reference table, in its file and in memory.
    pub table_bytes_max: usize,
    /// Which files statements may name.
    pub files: FilesConfig,
    /// Most bytes of results waiting for a broker.
    pub outbound_bytes_max: usize,
    /// Quality of service of published results, 0 or 1.
    pub sink_qos: u8,
    /// The hosts that statements may reach.
    pub reach: Reach,
    /// The hosts that statements of tenants may reach in the place of those, by the tenant's name; `*` stands for other
    /// tenants than the default one.
    pub reach_of_tenants: BTreeMap<String, AllowedHosts>,
    /// Whether published results are retained.
    pub sink_retain: bool,
    /// What is logged: `off`, `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: String,
    /// Whether log lines are JSON.
    pub log_json: bool,
    /// The record of what callers do, if it is kept.
    pub audit: Option<AuditConfig>,
    /// Who issues JSON Web Tokens for users of this server, if anybody does.
    pub jwt: Option<JwtConfig>,
}

/// An address at which the server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The key of the address.
    pub key: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// The section of the keys of its certificate.
    section: &'static str,
    /// Whether it speaks TLS.
    pub has_tls: bool,
    /// Whether clients give the user name and password of the configuration.
    pub asks_for_password: bool,
}

impl Config {
    /// The addresses at which the server listens.
    fn listeners(&self) -> Vec<Listener> {
        let (key, has_tls) = ("http.address", self.http.tls.is_some());
        let http = Listener { key, address: self.http_address, section: "http", has_tls, asks_for_password: false };
        let of_broker = self.embedded.iter().flat_map(|broker| {
            let (has_tls, asks_for_password) = (broker.tls.is_some(), broker.credentials.is_some());
            let at = |key, address| Listener { key, address, section: "mqtt.embedded", has_tls, asks_for_password };
            let websocket = broker.websocket.as_ref().map(|one| at("mqtt.embedded.websocket.address", one.address));
            [Some(at("mqtt.embedded.address", broker.address)), websocket].into_iter().flatten()
        });
        let of_links = self.link.iter().map(|link| {
            let (key, has_tls) = ("link.address", link.tls.is_some());
            Listener { key, address: link.address, section: "link", has_tls, asks_for_password: false }
        });
        std::iter::once(http).chain(of_broker).chain(of_links).collect()
    }

    /// Those that other machines reach.
    pub fn public_listeners(&self) -> impl Iterator<Item = Listener> {
        self.listeners().into_iter().filter(|listener| !listener.address.ip().is_loopback())
    }
}

/// Where other servers link to this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The address.
    pub address: SocketAddr,
    /// The certificate; without it, links are not encrypted.
    pub tls: Option<ServerTls>,
}

/// How tasks of queries go to burst workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BurstConfig {
    /// The least number of instances of the operators of a query that may burst: so many parts of it may move.
    pub instances: usize,
    /// After how long without a connection a worker is lost.
    pub lost_after: Duration,
    /// How long a worker may take to answer before it is lost.
    pub answer_max: Duration,
    /// How long before the end of a worker whose time is limited its tasks come back.
    pub margin: Duration,
    /// When the server moves tasks by itself.
    pub policy: BurstPolicyConfig,
    /// The function of a cloud that is a burst worker, if there is one.
    pub lambda: Option<LambdaConfig>,
}

/// When the server moves tasks of queries to burst workers and back by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstPolicyConfig {
    /// Whether it moves tasks by its load.
    pub is_automatic: bool,
    /// Tasks go out if the workers together are busy for more of their time.
    pub out_above_percent: usize,
    /// Tasks come back if the workers would be busy for less of their time with them.
    pub in_below_percent: usize,
    /// For how long that must be so, and the rest after a move that failed, microseconds.
    pub slack_us: i64,
    /// From when to when all tasks that may go are away on each day, in its minutes, UTC.
    pub schedule: Option<(u16, u16)>,
}

/// A function of AWS Lambda that is a burst worker. Amounts of money are in 10^-12 dollars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LambdaConfig {
    /// Its name.
    pub function: String,
    /// Its region.
    pub region: String,
    /// Where it is invoked: a URL without a path.
    pub endpoint: String,
    /// The key, its secret, and the token that belongs to a key for some hours.
    pub key: (String, Secret, Option<Secret>),
    /// The door for links, as functions reach it, and whether it speaks TLS.
    pub connect: (String, bool),
    /// Most functions at a time.
    pub workers_max: usize,
    /// Memory of each, in MB.
    pub memory_mb: usize,
    /// How long a function may take.
    pub limit: Duration,
    /// How many are kept warm, and how often they are invoked for that.
    pub warm: (usize, Duration),
    /// The price of a second with 1,024 MB.
    pub price_gb_s: u64,
    /// The most that functions may cost on a day.
    pub cost_max: u64,
}

impl BurstPolicyConfig {
    /// Whether the server moves tasks by itself.
    pub(crate) fn decides(&self) -> bool {
        self.is_automatic || self.schedule.is_some()
    }
}

/// The record of what callers do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The folder of its files.
    pub folder: PathBuf,
    /// Whether reads, accepted logins and subscriptions are recorded too.
    pub reads: bool,
    /// Most bytes of a file.
    pub file_bytes_max: u64,
    /// Most files.
    pub files_max: usize,
    /// Whether changes are refused while it cannot be written.
    pub required: bool,
}

/// What the REST API keeps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Names with commas between under which it is asked besides localhost and its address; `*` is every name.
    pub hosts: String,
    /// The certificate of the REST API; without it, it speaks plain HTTP.
    pub tls: Option<ServerTls>,
    /// Most connections at a time.
    pub connections_max: usize,
    /// How many of them, and of the clients that watch results, one address may have, in percent.
    pub address_share_percent: usize,
    /// How long the head of a request may take, and how long a connection may wait for its next request.
    pub head_timeout: Duration,
    /// How long each KiB of a body may take, and how long a client may take for each KiB of its answer.
    pub body_timeout: Duration,
    /// Most memory of requests and of answers that are not yet sent.
    pub bytes_max: usize,
    /// Most memory of live results that wait for their readers.
    pub results_bytes_max: usize,
    /// The proxies that say whose requests they pass on.
    pub trusted_proxies: AllowedHosts,
}

/// Which files statements may name that come over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesConfig {
    /// Below these folders; below the folder of the data folder that is there for this, if there is none.
    pub allow: Vec<PathBuf>,
    /// What belongs to the server, and no statement may name.
    pub kept: Vec<PathBuf>,
    /// What files that statements write leave free on the disk of the data folder.
    pub free_bytes_min: u64,
}

/// When and where the state of queries is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// How often what changed is saved; `None` for only when asked, and when the server stops.
    pub interval: Option<Duration>,
    /// Where.
    pub place: Place,
    /// How many checkpoints are kept, the newest included.
    pub retained: usize,
}

/// What of inputs survives the end of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurabilityConfig {
    /// Of those that do not say it themselves.
    pub default: Durability,
    /// Most bytes of the log of events.
    pub log_bytes_max: u64,
    /// The least time between two waits for the disk.
    pub commit_interval: Duration,
}

impl DurabilityConfig {
    /// That of an input.
    pub(crate) fn of(&self, input: &Input) -> Durability {
        input.durability.unwrap_or(self.default)
    }
}

/// The embedded broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedBrokerConfig {
    /// Where it listens.
    pub address: SocketAddr,
    /// User name and password its clients must give; anybody may connect without.
    pub credentials: Option<(String, Secret)>,
    /// Its certificate; without it, it speaks plain MQTT.
    pub tls: Option<ServerTls>,
    /// MQTT over WebSocket, if it listens for that.
    pub websocket: Option<WebSocketConfig>,
    /// How much clients may take up.
    pub limits: BrokerLimits,
    /// The largest message of a client.
    pub message_bytes_max: usize,
    /// The proxies that say whose connections they pass on.
    pub trusted_proxies: AllowedHosts,
    /// Whether sessions and retained messages outlive the process.
    pub keeps_sessions: bool,
}

/// MQTT over WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketConfig {
    /// Where the embedded broker listens for it.
    pub address: SocketAddr,
    /// Names with commas between under which it is asked besides localhost and its address: those of the REST API.
    pub hosts: String,
    /// The web pages that may connect.
    pub origins: Origins,
}

/// The external broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The authorities to trust and the certificate to show, if TLS is spoken.
    pub tls: Option<ClientTls>,
    /// User name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<Secret>,
    /// Client id; to be generated without.
    pub client_id: Option<String>,
    /// Whether to speak MQTT 5; otherwise 3.1.1.
    pub version_5: bool,
    /// Highest quality of service of subscriptions, 0 or 1.
    pub qos: u8,
    /// The largest message of the broker.
    pub message_bytes_max: usize,
}

/// Text that does not show itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself. Take care where it goes.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(hidden)")
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file, and line and column in it, from 1.
    File(PathBuf, usize, usize),
    /// The environment variable.
    Environment(String),
    /// The command-line flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File(path, line, column) => write!(formatter, "{}:{line}:{column}", path.display()),
            Self::Environment(name) => formatter.write_str(name),
            Self::Flag(name) => formatter.write_str(name),
        }
    }
}

/// One key with the value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// Its value; `None` if it is not set.
    pub value: Option<Value>,
    /// Where the value came from.
    pub origin: Origin,
}

/// Where to read from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file named by the user: it must exist. Without one, [`FILE_NAME`] is read if it exists.
    pub file: Option<PathBuf>,
    /// Environment variables; those without the prefix `RIVULET_` are passed over.
    pub environment: Vec<(OsString, OsString)>,
    /// Values from the command line.
    pub flags: Vec<FlagValue>,
}

/// A value from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagValue {
    /// The key it sets.
    pub key: String,
    /// The value as text.
    pub value: String,
    /// The flag, for messages: `--http-address`.
    pub flag: String,
}

/// The configuration and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The configuration in force.
    pub config: Config,
    /// Every key with its value, in the order of [`KEYS`].
    pub settings: Vec<Setting>,
    /// What is probably a mistake, but no error.
    pub warnings: Vec<String>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser said.
        message: String,
    },
    /// There is no such key.
    #[error("{place}: there is no key {key}")]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it is.
        place: Origin,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// Earlier versions had this key.
    #[error("{place}: there is no key {key} any more")]
    RemovedKey {
        /// The key.
        key: &'static str,
        /// Where it is.
        place: Origin,
        /// What to do instead.
        hint: &'static str,
    },
    /// The value is not of the key's kind.
    #[error("{place}: {key} is {found}, expected {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// Where the value is.
        place: Origin,
        /// The value as written; hidden where it could be a secret.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// Values that are right by themselves do not go together.
    #[error("{message}")]
    Contradiction {
        /// What does not go together.
        message: String,
        /// What to do.
        hint: String,
    },
}

impl ConfigError {
    /// What to do about it, in one sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::File { .. } => "check the path given with --config or RIVULET_CONFIG".into(),
            Self::Syntax { .. } => "the file is TOML: key = value lines under [section] lines".into(),
            Self::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean {nearest}?"),
            Self::RemovedKey { hint, .. } => (*hint).to_owned(),
            Self::Value { key: "scheduler.policy", found, .. } if keys::is_policy_for_comparison(found) => {
                keys::COMPARED.to_owned()
            }
            Self::UnknownKey { .. } | Self::Value { .. } => "`rivulet config --keys` lists every key".into(),
            Self::Contradiction { hint, .. } => hint.clone(),
        }
    }
}

/// Reads and checks the configuration.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    read(sources)?.check()
}

/// Reads the configuration: every value is right by itself, and nothing more is known.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn read(sources: &Sources) -> Result<Values, ConfigError> {
    let mut values = Values::default();
    for key in KEYS {
        if let Some(default) = key.default {
            values.set(key, &Written::Text(default), Origin::Default)?;
        }
    }
    let file = match &sources.file {
        Some(path) => Some(path.clone()),
        None => Path::new(FILE_NAME).exists().then(|| PathBuf::from(FILE_NAME)),
    };
    if let Some(path) = file {
        let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::File { path: path.clone(), source })?;
        values.read_file(&path, &text)?;
        values.file = Some(path);
    }
    values.read_environment(&sources.environment)?;
    for FlagValue { key, value, flag } in &sources.flags {
        let origin = Origin::Flag(flag.clone());
        not_removed(|removed| removed == key, &origin)?;
        let key = KEYS.iter().find(|known| known.name == key).ok_or_else(|| ConfigError::UnknownKey {
            key: key.clone(),
            place: origin.clone(),
            nearest: keys::nearest(key),
        })?;
        values.set(key, &Written::Text(value), origin)?;
    }
    values.complete(&sources.environment)?;
    Ok(values)
}

/// Refuses a key that earlier versions had.
fn not_removed(is_meant: impl Fn(&str) -> bool, place: &Origin) -> Result<(), ConfigError> {
    match keys::REMOVED.iter().find(|(key, _)| is_meant(key)) {
        Some(&(key, hint)) => Err(ConfigError::RemovedKey { key, place: place.clone(), hint }),
        None => Ok(()),
    }
}

/// Values by key, the later source overriding the earlier.
#[derive(Debug, Default)]
pub struct Values {
    values: BTreeMap<&'static str, (Value, Origin)>,
    warnings: Vec<String>,
    /// The file that was read.
    file: Option<PathBuf>,
}

impl Values {
    fn set(&mut self, key: &'static Key, written: &Written<'_>, origin: Origin) -> Result<(), ConfigError> {
        let value = key.kind.check(written).map_err(|expected| ConfigError::Value {
            key: key.name,
            place: origin.clone(),
            found: match (key.kind, written) {
                (Kind::Secret | Kind::BrokerUrl, _) => "not valid".into(),
                (_, Written::Text(text)) => format!("{text:?}"),
                (_, Written::Toml(DeValue::String(text))) => format!("{text:?}"),
                (_, Written::Toml(DeValue::Integer(integer))) => integer.as_str().into(),
                (_, Written::Toml(DeValue::Float(float))) => float.as_str().into(),
                (_, Written::Toml(DeValue::Boolean(on))) => on.to_string(),
                (_, Written::Toml(other)) => format!("of type {}", other.type_str()),
            },
            expected,
        })?;
        self.values.insert(key.name, (value, origin));
        Ok(())
    }

    fn read_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let place_of = |offset: usize| {
            let before = String::from_utf8_lossy(&text.as_bytes()[..offset.min(text.len())]);
            let line_start = before.rfind('\n').map_or(0, |end| end + 1);
            (1 + before.matches('\n').count(), 1 + before[line_start..].chars().count())
        };
        let document = DeTable::parse(text).map_err(|error| {
            let (line, column) = place_of(error.span().map_or(0, |span| span.start));
            ConfigError::Syntax { path: path.to_path_buf(), line, column, message: error.message().to_owned() }
        })?;
        // Sections still to look into, with the key so far; nesting is bounded by the known keys.
        let mut sections = vec![(String::new(), document.get_ref())];
        while let Some((prefix, section)) = sections.pop() {
            for (name, value) in section {
                let full =
                    if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
                let (line, column) = place_of(name.span().start);
                let origin = Origin::File(path.to_path_buf(), line, column);
                not_removed(|removed| removed == full, &origin)?;
                if let Some(key) = KEYS.iter().find(|key| key.name == full) {
                    self.set(key, &Written::Toml(value.get_ref()), origin)?;
                    continue;
                }
                let is_section =
                    KEYS.iter().any(|key| key.name.strip_prefix(&full).is_some_and(|rest| rest.starts_with('.')));
                match value.get_ref() {
                    DeValue::Table(table) if is_section => sections.push((full, table)),
                    _ => {
                        let nearest = keys::nearest(&full);
                        return Err(ConfigError::UnknownKey { key: full, place: origin, nearest });
                    }
                }
            }
        }
        Ok(())
    }

    fn read_environment(&mut self, environment: &[(OsString, OsString)]) -> Result<(), ConfigError> {
        let mut variables: Vec<(&str, &OsString)> = environment
            .iter()
            .filter_map(|(name, value)| Some((name.to_str()?, value)))
            .filter(|(name, _)| name.starts_with("RIVULET_") && !OTHER_VARIABLES.contains(name))
            .collect();
        variables.sort_unstable_by_key(|(name, _)| *name);
        let mut set_by: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, value) in variables {
            let origin = Origin::Environment(name.to_owned());
            not_removed(|removed| environment_names(removed).iter().any(|known| known == name), &origin)?;
            let Some(key) = KEYS.iter().find(|key| environment_names(key.name).iter().any(|known| known == name))
            else {
                self.warnings.push(format!("the environment variable {name} is no configuration key and is not used"));
                continue;
            };
            if let Some(other) = set_by.insert(key.name, name) {
                let message = format!("{other} and {name} both set {}", key.name);
                return Err(contradiction(message, format!("unset {other}")));
            }
            // Text that is not Unicode is no value of any kind; the replacement is for the message.
            let text = value.to_string_lossy();
            self.set(key, &Written::Text(&text), origin)?;
        }
        Ok(())
    }

    /// Adds the defaults that depend on other values.
    fn complete(&mut self, environment: &[(OsString, OsString)]) -> Result<(), ConfigError> {
        let has_broker = self.values.contains_key("mqtt.broker.url");
        self.values.entry("mqtt.embedded.enabled").or_insert((Value::Switch(!has_broker), Origin::Default));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.values.entry("workers").or_insert((Value::Count(cores as u64), Origin::Default));
        if self.text(FOLDER).is_some_and(|place| place.starts_with(BucketName::SCHEME)) {
            self.complete_aws("checkpoint.s3.region", "S3", environment)?;
        }
        if self.values.contains_key(FUNCTION) {
            self.complete_aws("burst.lambda.region", "LAMBDA", environment)?;
        }
        Ok(())
    }

    /// Takes what is not set of a bucket or a function from where every program that uses one looks for it.
    fn complete_aws(
        &mut self,
        region: &'static str,
        service: &str,
        environment: &[(OsString, OsString)],
    ) -> Result<(), ConfigError> {
        let name_of = |end: &str| region.replace("region", end);
        let is_set = |name: String| self.values.get(&*name).is_some_and(|(_, origin)| *origin != Origin::Default);
        let has_credentials = AWS_CREDENTIALS.iter().any(|end| is_set(name_of(end)));
        for (end, variable) in AWS_VARIABLES {
            let (name, variable) = (name_of(end), variable.replace("{}", service));
            let is_place = end.ends_with("endpoint") || end == "region";
            let is_set = self.values.contains_key(&*name) || self.values.contains_key(format!("{name}_file").as_str());
            // A secret belongs to its key: they come from one place.
            if is_set || (has_credentials && !is_place) {
                continue;
            }
            let given = environment.iter().find(|(known, value)| *known == *variable && !value.is_empty());
            let Some(key) = KEYS.iter().find(|key| key.name == name) else { continue };
            if let Some((_, value)) = given {
                self.set(key, &Written::Text(&value.to_string_lossy()), Origin::Environment(variable))?;
            }
        }
        self.values.entry(region).or_insert((Value::Text("us-east-1".into()), Origin::Default));
        Ok(())
    }

    /// Every key with its value, in the order of [`KEYS`].
    pub fn settings(&self) -> Vec<Setting> {
        let setting = |key: &Key| match self.values.get(key.name).cloned() {
            Some((value, origin)) => Setting { key: key.name, value: Some(value), origin },
            None => Setting { key: key.name, value: None, origin: Origin::Default },
        };
        KEYS.iter().map(setting).collect()
    }

    /// Checks what must go together, reads the files of passwords and builds the configuration.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(mut self) -> Result<Loaded, ConfigError> {
        let has_broker = self.values.contains_key("mqtt.broker.url");
        let embedded_runs = self.switch("mqtt.embedded.enabled");
        if !embedded_runs && !has_broker {
            let message = "there is no MQTT broker: mqtt.embedded.enabled is false and mqtt.broker.url is not set";
            return Err(contradiction(message, "set mqtt.broker.url, or remove mqtt.embedded.enabled"));
        }
        for (prefix, unused) in [("mqtt.embedded.", !embedded_runs), ("mqtt.broker.", !has_broker)] {
            for (key, (_, origin)) in &self.values {
                if unused && key.starts_with(prefix) && *origin != Origin::Default && *key != "mqtt.embedded.enabled" {
                    self.warnings.push(format!("{origin}: {key} has no effect, because that broker is not in use"));
                }
            }
        }
        let [low, high] = ["burst.in_below_percent", "burst.out_above_percent"].map(|key| self.number(key));
        if low >= high {
            let message = format!("burst.in_below_percent is {low}, and burst.out_above_percent is {high}");
            return Err(contradiction(message, "tasks would go and come for ever: set the first below the second"));
        }
        let is_automatic = self.text("burst.policy").as_deref() == Some("auto");
        let [has_door, is_scheduled] = ["link.address", "burst.schedule"].map(|key| self.values.contains_key(key));
        if !has_door && (is_automatic || is_scheduled) {
            let message = "burst.policy or burst.schedule moves tasks, and link.address is not set";
            return Err(contradiction(
                message,
                "set link.address, which burst workers dial, or leave both as they are",
            ));
        }
        let is_logged = self.text("durability.default").as_deref() == Some("log");
        if is_logged && !self.switch("checkpoint.enabled") {
            let hint = "without checkpoints the log of events only grows, until nothing more is received: set one of \
                        them otherwise";
            return Err(contradiction("durability.default is log, and checkpoint.enabled is false", hint));
        }
        if is_logged && self.bound("checkpoint.interval_s").is_none() {
            self.warnings.push(
                "durability.default is log, and checkpoint.interval_s is 0: the log of events grows until a checkpoint is asked for"
                    .into(),
            );
        }
        if is_logged && has_broker {
            if !self.values.contains_key("mqtt.broker.client_id") {
                let why = "the broker forgets with the connection what was not acknowledged";
                self.warnings.push(format!("durability.default is log, and mqtt.broker.client_id is not set: {why}"));
            }
            if self.text("mqtt.broker.qos").as_deref() == Some("0") {
                let why = "the broker sends nothing again";
                self.warnings.push(format!("durability.default is log, and mqtt.broker.qos is 0: {why}"));
            }
        }
        let (reach, reach_of_tenants) = (self.reach()?, self.reach_of_tenants()?);
        let link = self.link()?;
        let config = Config {
            data_dir: self.text("data_dir").unwrap_or_default().into(),
            http_address: self.address("http.address"),
            http: self.http()?,
            slows_logins: self.switch("logins.slow_down"),
            files_reserved: self.number("connections.files_reserved"),
            embedded: if embedded_runs { Some(self.embedded()?) } else { None },
            broker: self.broker()?,
            burst: BurstConfig {
                instances: self.number("burst.instances"),
                lost_after: Duration::from_millis(self.number("burst.lost_after_ms") as u64),
                answer_max: Duration::from_secs(self.number("burst.answer_s_max") as u64),
                margin: Duration::from_secs(self.number("burst.margin_s") as u64),
                policy: BurstPolicyConfig {
                    is_automatic,
                    out_above_percent: high,
                    in_below_percent: low,
                    slack_us: self.number("burst.slack_s") as i64 * 1_000_000,
                    schedule: self.text("burst.schedule").and_then(|text| times_of_day(&text)),
                },
                lambda: self.lambda(link.as_ref())?,
            },
            link,
            workers: WorkerSettings {
                threads: self.number("workers"),
                policy: self.text("scheduler.policy").unwrap_or_default().parse().unwrap_or_default(),
                time_slice: Duration::from_millis(self.number("scheduler.time_slice_ms") as u64),
                consume: self.text("scheduler.consume").unwrap_or_default().parse().unwrap_or_default(),
                balance_period: self.bound("scheduler.balance_period_s").map(|s| Duration::from_secs(s as u64)),
                cut_above_percent: self.bound("scheduler.cut_above_percent").map(|percent| percent as u32),
                pins: self.switch("scheduler.pin_workers"),
                numa: if self.text("scheduler.numa").as_deref() == Some("off") { Numa::Off } else { Numa::Auto },
            },
            batch_rows_max: None,
            inbox_rows_max: self.number("inbox.rows_max"),
            inbox_bytes_max: self.number("inbox.bytes_max"),
            tenant_limits: self.tenant_limits(),
            memory_bytes_max: self.bytes("memory.bytes_max"),
            spill_after: self.bound("memory.spill_after_s").map(|s| Duration::from_secs(s as u64)),
            spill_bytes_max: self.number("memory.spill_bytes_max") as u64,
            checkpoint: if self.switch("checkpoint.enabled") { Some(self.checkpoint()?) } else { None },
            accepts_empty_checkpoints: false,
            stop_limit: self.bound("stop.limit_s").map(|s| Duration::from_secs(s as u64)),
            stop_delay: Duration::from_secs(self.number("stop.delay_s") as u64),
            durability: DurabilityConfig {
                default: {
                    let written = self.text("durability.default").unwrap_or_default();
                    Durability::ALL.into_iter().find(|one| one.name() == written).unwrap_or(Durability::Checkpoint)
                },
                log_bytes_max: self.number("durability.log_bytes_max") as u64,
                commit_interval: Duration::from_millis(self.number("durability.commit_interval_ms") as u64),
            },
            table_bytes_max: self.number("table.bytes_max"),
            files: self.files(),
            outbound_bytes_max: self.number("outbound.bytes_max"),
            reach,
            reach_of_tenants,
            sink_qos: u8::from(self.text("sink.qos").as_deref() == Some("1")),
            sink_retain: self.switch("sink.retain"),
            log_level: self.text("log.level").unwrap_or_default(),
            log_json: self.text("log.format").as_deref() == Some("json"),
            audit: self.switch("audit.enabled").then(|| self.audit()),
            jwt: self.jwt()?,
        };
        listen_apart(&config.listeners())?;
        self.warn_of_plain(&config);
        Ok(Loaded { config, settings: self.settings(), warnings: self.warnings })
    }

    fn http(&self) -> Result<HttpConfig, ConfigError> {
        let memory = self.bytes("memory.bytes_max");
        let share = memory.map_or(usize::MAX, |bytes| usize::try_from(bytes / 4).unwrap_or(usize::MAX));
        let seconds = |key: &str| Duration::from_secs(self.number(key) as u64);
        Ok(HttpConfig {
            hosts: self.text("http.hosts").unwrap_or_default(),
            tls: self.tls("http.tls")?,
            connections_max: self.number("http.connections_max"),
            address_share_percent: self.number("http.address_share_percent"),
            head_timeout: seconds("http.head_timeout_s"),
            body_timeout: seconds("http.body_timeout_s"),
            bytes_max: self.number("http.bytes_max").min(share),
            results_bytes_max: self.number("http.results_bytes_max").min(share),
            trusted_proxies: self.proxies("http.trusted_proxies")?,
        })
    }

    /// The certificates of the listener whose keys begin so.
    fn tls(&self, prefix: &str) -> Result<Option<ServerTls>, ConfigError> {
        let [certificate_key, key_key, ca_key] =
            ["certificate_file", "key_file", "client_ca_file"].map(|name| format!("{prefix}.{name}"));
        let authorities = self.text(&ca_key);
        let (certificate, key) = match (self.text(&certificate_key), self.text(&key_key)) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if authorities.is_none() => return Ok(None),
            (None, None) => return Err(both(&ca_key, &certificate_key)),
            _ => return Err(both(&certificate_key, &key_key)),
        };
        let choice = |name: &str| self.text(&format!("{prefix}.{name}")).unwrap_or_default();
        let name = NameKind::ALL.into_iter().find(|(_, word)| *word == choice("client_name"));
        let clients = authorities.map(|ca_file| ClientCertificates {
            ca_file: ca_file.into(),
            required: choice("client_certificates") == "required",
            name: name.map_or(NameKind::CommonName, |(kind, _)| kind),
        });
        Ok(Some(ServerTls { clients, ..ServerTls::new(certificate, key) }))
    }

    /// Warns of listeners that other machines can reach without TLS. It is no error: a proxy in front may have the
    /// certificate.
    fn warn_of_plain(&mut self, config: &Config) {
        for Listener { key, address, section, .. } in config.public_listeners().filter(|listener| !listener.has_tls) {
            self.warnings.push(format!(
                "{key} is {address}, and {section}.tls.certificate_file is not set: everybody on the way can read and \
                 change what is sent there, unless a proxy in front of it speaks TLS"
            ));
        }
    }

    fn audit(&self) -> AuditConfig {
        let in_data_dir = || PathBuf::from(self.text("data_dir").unwrap_or_default()).join(AUDIT);
        AuditConfig {
            folder: self.text("audit.folder").map_or_else(in_data_dir, PathBuf::from),
            reads: self.switch("audit.reads"),
            file_bytes_max: self.number("audit.file_bytes_max") as u64,
            files_max: self.number("audit.files_max"),
            required: self.switch("audit.required"),
        }
    }

    /// The issuer of JSON Web Tokens.
    fn jwt(&self) -> Result<Option<JwtConfig>, ConfigError> {
        const KEYS_OF_ISSUER: [&str; 5] =
            ["jwt.issuer", "jwt.audience", "jwt.keys_file", "jwt.keys_url", "jwt.keys_ca_file"];
        let [issuer, audience, file, url, ca] = KEYS_OF_ISSUER;
        let Some(first) = KEYS_OF_ISSUER.into_iter().find(|key| self.text(key).is_some()) else { return Ok(None) };
        let needed = |key: &str| self.text(key).filter(|text| !text.is_empty()).ok_or_else(|| both(first, key));
        let keys = match (self.text(file), self.text(url)) {
            (Some(_), Some(_)) => {
                return Err(contradiction(format!("{file} and {url} are both set"), "remove one of them"));
            }
            (Some(path), None) => JwtKeys::File(path.into()),
            (None, Some(at)) if is_safe_url(&at) => JwtKeys::Url { url: at, ca_file: self.text(ca).map(PathBuf::from) },
            (None, Some(at)) => {
                let message = format!("{url} is {at:?}, which is no https URL of a host and a port");
                let hint = "keys are fetched over https, or over http from this machine (http://127.0.0.1/...)";
                return Err(contradiction(message, hint));
            }
            (None, None) => return Err(both(first, url)),
        };
        Ok(Some(JwtConfig {
            issuer: needed(issuer)?,
            audience: needed(audience)?,
            keys,
            tenant: self.text("jwt.tenant").unwrap_or_default(),
            user_claim: self.text("jwt.user_claim").unwrap_or_default(),
            leeway_s: self.number("jwt.leeway_s") as u64,
        }))
    }

    /// The hosts that statements may reach.
    fn reach(&self) -> Result<Reach, ConfigError> {
        let listed = |key: &'static str| self.text(key).map(|list| hosts_of(&list, key, key)).transpose();
        let (all, posts) = (listed(reach::KEY)?, listed("sink.http_allow")?);
        let listeners = listed(reach::KEY_OF_LISTENERS)?.unwrap_or_else(AllowedHosts::everything);
        let brokers = all.clone().unwrap_or_default();
        Ok(Reach { posts: posts.or(all).unwrap_or_default(), brokers, listeners })
    }

    /// The proxies of a list; none without one.
    fn proxies(&self, key: &'static str) -> Result<AllowedHosts, ConfigError> {
        let list = self.text(key).unwrap_or_default();
        let proxies = AllowedHosts::listed(&list, key);
        let is_address = |entry: &str| entry.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok());
        match list.split(',').map(str::trim).find(|entry| !entry.is_empty() && !is_address(entry)) {
            None => proxies,
            Some(entry) => Err(entry.to_owned()),
        }
        .map_err(|entry| {
            let hint = "write addresses, \"10.0.0.7, 2001:db8::7\", and networks, \"10.0.0.0/8\"";
            contradiction(format!("'{entry}' in {key} is no address and no network"), hint)
        })
    }

    /// The hosts that statements of tenants may reach in the place of those.
    fn reach_of_tenants(&self) -> Result<BTreeMap<String, AllowedHosts>, ConfigError> {
        let Some((Value::TextByName(lists), _)) = self.values.get(reach::KEY_OF_TENANTS) else {
            return Ok(BTreeMap::new());
        };
        let hosts = |(tenant, list): (&String, &String)| {
            let key = reach::KEY_OF_TENANTS;
            Ok((tenant.clone(), hosts_of(list, key, &format!("{key}.{tenant}"))?))
        };
        lists.iter().map(hosts).collect()
    }

    /// What statements may name, and what not: all that the configuration names as the server's own, and the file
    /// itself.
    fn files(&self) -> FilesConfig {
        let allow = match self.values.get("files.allow") {
            Some((Value::Paths(paths), _)) => paths.iter().map(PathBuf::from).collect(),
            _ => Vec::new(),
        };
        let is_folder = |path: &str| !path.starts_with(BucketName::SCHEME);
        let own = KEYS.iter().filter(|key| key.kind == Kind::Path).filter_map(|key| self.text(key.name));
        let own = own.filter(|path| is_folder(path)).map(PathBuf::from);
        let free_bytes_min = self.number("files.free_bytes_min") as u64;
        FilesConfig { allow, kept: own.chain(self.file.clone()).collect(), free_bytes_min }
    }

    fn checkpoint(&mut self) -> Result<CheckpointConfig, ConfigError> {
        let place = match self.text(FOLDER) {
            Some(address) if address.starts_with(BucketName::SCHEME) => Place::S3(self.bucket(&address)?),
            Some(address) if is_like_a_url(&address) => return Err(no_folder(&address)),
            Some(folder) => Place::Folder(folder.into()),
            None => Place::Folder(PathBuf::from(self.text("data_dir").unwrap_or_default()).join(CHECKPOINTS)),
        };
        if matches!(place, Place::Folder(_)) {
            for (key, (_, origin)) in &self.values {
                if key.starts_with("checkpoint.s3.") && *origin != Origin::Default {
                    self.warnings.push(format!("{origin}: {key} has no effect, because {FOLDER} names no bucket"));
                }
            }
        }
        Ok(CheckpointConfig {
            interval: self.bound("checkpoint.interval_s").map(|s| Duration::from_secs(s as u64)),
            place,
            retained: self.number("checkpoint.retained"),
        })
    }

    /// How the bucket at an address is reached.
    fn bucket(&self, address: &str) -> Result<S3Settings, ConfigError> {
        let name = BucketName::parse(address).map_err(|problem| {
            let hint = "write s3://bucket or s3://bucket/prefix, or the path of a folder";
            contradiction(format!("{FOLDER} is no bucket: {problem}"), hint)
        })?;
        let Some(credentials) = self.s3_credentials()? else {
            let hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or checkpoint.s3.access_key_id and \
                        checkpoint.s3.secret_access_key_file; or a role: checkpoint.s3.role_arn, container_credentials \
                        or instance_role";
            return Err(contradiction(format!("{FOLDER} is {address}, and there are no credentials for it"), hint));
        };
        let settings = S3Settings {
            name,
            endpoint: self.text("checkpoint.s3.endpoint"),
            region: self.text("checkpoint.s3.region").unwrap_or_default(),
            credentials,
            allows_http: self.switch("checkpoint.s3.allow_http"),
            ca_file: self.text("checkpoint.s3.ca_file").map(PathBuf::from),
            timeout: Duration::from_secs(self.number("checkpoint.s3.timeout_s") as u64),
        };
        settings.check().map_err(|(message, hint)| contradiction(message, hint))?;
        Ok(settings)
    }

    /// Who asks a bucket: the first that is set of a key, a role by a token, a container's and a machine's.
    fn s3_credentials(&self) -> Result<Option<Credentials>, ConfigError> {
        let text = |name: &str| self.text(&format!("checkpoint.s3.{name}"));
        let path = |name: &str| text(name).map(PathBuf::from);
        let key = (text("access_key_id"), self.secret("checkpoint.s3.secret_access_key")?);
        if let (Some(access_key_id), Some(secret)) = key {
            let session_token = self.secret("checkpoint.s3.session_token")?.map(|token| token.reveal().to_owned());
            let secret_access_key = secret.reveal().to_owned();
            return Ok(Some(Credentials::Key { access_key_id, secret_access_key, session_token }));
        } else if key.0.is_some() || key.1.is_some() {
            return Ok(None);
        }
        if let (Some(role_arn), Some(token_file)) = (text("role_arn"), path("web_identity_token_file")) {
            let sts_endpoint = text("sts_endpoint");
            return Ok(Some(Credentials::WebIdentity { role_arn, token_file, sts_endpoint }));
        }
        Ok(match (text("container_credentials"), path("container_token_file")) {
            (Some(path), _) if path.starts_with('/') => Some(Credentials::Task { path }),
            (Some(url), Some(token_file)) => Some(Credentials::Pod { url, token_file }),
            _ => self.switch("checkpoint.s3.instance_role").then_some(Credentials::Instance { endpoint: None }),
        })
    }

    fn link(&self) -> Result<Option<LinkConfig>, ConfigError> {
        let tls = self.tls("link.tls")?;
        match self.values.get("link.address") {
            Some((Value::Address(address), _)) => Ok(Some(LinkConfig { address: *address, tls })),
            _ if tls.is_some() => Err(both("link.tls.certificate_file", "link.address")),
            _ => Ok(None),
        }
    }

    /// The function that is a burst worker, which dials the door for links.
    fn lambda(&self, link: Option<&LinkConfig>) -> Result<Option<LambdaConfig>, ConfigError> {
        let Some(function) = self.text(FUNCTION) else { return Ok(None) };
        let key = |name: &str| format!("burst.lambda.{name}");
        let (text, number) = (|name: &str| self.text(&key(name)), |name: &str| self.number(&key(name)));
        let Some(link) = link else { return Err(both(FUNCTION, "link.address")) };
        let (Some(id), Some(secret)) = (text("access_key_id"), self.secret(&key("secret_access_key"))?) else {
            let hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or these keys of burst.lambda";
            return Err(contradiction(format!("{FUNCTION} is {function}, and there are no credentials for it"), hint));
        };
        let region = text("region").unwrap_or_default();
        let endpoint = text("endpoint").unwrap_or_else(|| format!("https://lambda.{region}.amazonaws.com"));
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let connect = text("connect").unwrap_or_else(|| link.address.to_string());
        let (door, limit_s) = (link.address.ip(), number("limit_s"));
        // An endpoint without TLS is on this machine, and so are its functions.
        let is_here = endpoint.starts_with("http:");
        let is_url = is_safe_url(&endpoint) && endpoint.matches('/').count() == 2 && !endpoint.contains(['?', '@']);
        let place =
            connect.rsplit_once(':').filter(|(host, port)| !host.contains(['/', ' ']) && port.parse::<u16>().is_ok());
        let is_name = function.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let reaches = text("connect").is_some() || !(door.is_unspecified() || (door.is_loopback() && !is_here));
        let is_long = limit_s > self.number("burst.margin_s");
        let checks = [
            (is_name, FUNCTION, &function, "write its name alone, without account, region and version"),
            (is_url, "burst.lambda.endpoint", &endpoint, "write https:// and a host; http:// is for this machine only"),
            (reaches, "link.address", &connect, "set burst.lambda.connect to a host and a port that lead there"),
            (place.is_some(), "burst.lambda.connect", &connect, "write HOST:PORT, without http://"),
            (is_long, "burst.lambda.limit_s", &limit_s.to_string(), "write more than burst.margin_s, or no task goes"),
        ];
        if let Some((_, name, value, hint)) = checks.into_iter().find(|(fits, ..)| !*fits) {
            return Err(contradiction(format!("{name} is {value}, which functions cannot use"), hint));
        }
        let price = |key: &str| self.text(key).and_then(|text| dollars(&text)).unwrap_or_default();
        Ok(Some(LambdaConfig {
            function,
            region,
            endpoint,
            key: (id, secret, self.secret(&key("session_token"))?),
            connect: (connect, link.tls.is_some()),
            workers_max: number("workers_max"),
            memory_mb: number("memory_mb"),
            limit: Duration::from_secs(limit_s as u64),
            warm: (number("warm"), Duration::from_secs(number("warm_s") as u64)),
            price_gb_s: price("burst.lambda.price_gb_s"),
            cost_max: price("burst.cost_max"),
        }))
    }

    fn embedded(&self) -> Result<EmbeddedBrokerConfig, ConfigError> {
        let credentials = match (self.text("mqtt.embedded.username"), self.password("mqtt.embedded")?) {
            (Some(username), Some(password)) => Some((username, password)),
            (None, None) => None,
            _ => return Err(both("mqtt.embedded.username", "mqtt.embedded.password or mqtt.embedded.password_file")),
        };
        Ok(EmbeddedBrokerConfig {
            address: self.address("mqtt.embedded.address"),
            credentials,
            tls: self.tls("mqtt.embedded.tls")?,
            websocket: self.websocket()?,
            limits: BrokerLimits {
                connections_max: self.number("mqtt.embedded.connections_max"),
                sessions_max: self.number("mqtt.embedded.sessions_max"),
                session_expiry_s_max: self.number("mqtt.embedded.session_expiry_s_max") as u32,
                session_queue_messages_max: self.number("mqtt.embedded.session_queue_messages_max"),
                session_queue_bytes_max: self.number("mqtt.embedded.session_queue_bytes_max"),
                in_flight_max: self.number("mqtt.embedded.in_flight_max") as u16,
                receive_max: self.number("mqtt.embedded.receive_max") as u16,
                topic_aliases_max: self.number("mqtt.embedded.topic_aliases_max") as u16,
                keep_alive_s_max: self.number("mqtt.embedded.keep_alive_s_max") as u16,
                system_interval_s: self.number("mqtt.embedded.system_interval_s") as u32,
                subscriptions_max: self.number("mqtt.embedded.subscriptions_max"),
                session_subscriptions_max: self.number("mqtt.embedded.session_subscriptions_max"),
                retained_messages_max: self.number("mqtt.embedded.retained_messages_max"),
                retained_bytes_max: self.number("mqtt.embedded.retained_bytes_max"),
                memory_bytes_max: match (self.bytes("mqtt.embedded.memory_bytes_max"), self.bytes("memory.bytes_max")) {
                    (Some(bytes), _) => bytes as usize,
                    (None, Some(all)) => all as usize / 4,
                    (None, None) => 1 << 30,
                },
                address_share_percent: self.number("mqtt.embedded.address_share_percent"),
                tenant_share_percent: self.number("mqtt.embedded.tenant_share_percent"),
            },
            message_bytes_max: self.number("mqtt.embedded.message_bytes_max"),
            trusted_proxies: self.proxies("mqtt.embedded.trusted_proxies")?,
            keeps_sessions: self.switch("mqtt.embedded.persistence"),
        })
    }

    fn websocket(&self) -> Result<Option<WebSocketConfig>, ConfigError> {
        const ADDRESS: &str = "mqtt.embedded.websocket.address";
        const ORIGINS: &str = "mqtt.embedded.websocket.origins";
        let origins = self.text(ORIGINS);
        let Some((Value::Address(address), _)) = self.values.get(ADDRESS) else {
            return if origins.is_none() { Ok(None) } else { Err(both(ADDRESS, ORIGINS)) };
        };
        let origins = origins.map_or_else(|| Ok(Origins::default()), |list| Origins::listed(&list));
        let origins = origins.map_err(|entry| {
            let hint = "write scheme, host and port as a browser shows them, https://app.example.org:8443, or *";
            contradiction(format!("'{entry}' in {ORIGINS} is no origin of a web page"), hint)
        })?;
        let hosts = self.text("http.hosts").unwrap_or_default();
        Ok(Some(WebSocketConfig { address: *address, hosts, origins }))
    }

    /// A number of bytes that need not be set.
    fn bytes(&self, key: &str) -> Option<u64> {
        match self.values.get(key) {
            Some((Value::Bytes(bytes), _)) => Some(*bytes),
            _ => None,
        }
    }

    fn broker(&self) -> Result<Option<BrokerConfig>, ConfigError> {
        let Some((Value::BrokerUrl(url), _)) = self.values.get("mqtt.broker.url") else { return Ok(None) };
        let Some(url) = broker_url(url) else { unreachable!("the URL was checked when it was set") };
        let mut username = self.text("mqtt.broker.username");
        let mut password = self.password("mqtt.broker")?;
        if let Some((url_username, url_password)) = url.credentials {
            if username.is_some() || password.is_some() {
                let message = "mqtt.broker.url holds a user name, and mqtt.broker.username or a password is set too";
                return Err(contradiction(message, "remove the user name from the URL"));
            }
            username = Some(url_username);
            password = url_password.map(Secret);
        }
        if password.is_some() && username.is_none() {
            return Err(both("mqtt.broker.username", "the password of mqtt.broker"));
        }
        let tls_keys = ["mqtt.broker.ca_file", "mqtt.broker.certificate_file", "mqtt.broker.key_file"];
        let [ca_file, certificate, key] = tls_keys.map(|key| self.text(key).map(PathBuf::from));
        if let Some(key) = tls_keys.into_iter().find(|key| !url.tls && self.values.contains_key(key)) {
            let message = format!("{key} is set, but mqtt.broker.url does not ask for TLS");
            return Err(contradiction(message, format!("write mqtts:// instead of mqtt://, or remove {key}")));
        }
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(both(tls_keys[1], tls_keys[2])),
        };
        Ok(Some(BrokerConfig {
            host: url.host,
            port: url.port,
            tls: url.tls.then_some(ClientTls { ca_file, identity }),
            username,
            password,
            client_id: self.text("mqtt.broker.client_id"),
            version_5: self.text("mqtt.broker.version").as_deref() == Some("5"),
            qos: u8::from(self.text("mqtt.broker.qos").as_deref() == Some("1")),
            message_bytes_max: self.number("mqtt.broker.message_bytes_max"),
        }))
    }

    /// The password of `prefix`, given itself or in a file.
    fn password(&self, prefix: &str) -> Result<Option<Secret>, ConfigError> {
        self.secret(&format!("{prefix}.password"))
    }

    /// What a key holds that is not shown, given itself or in a file.
    fn secret(&self, plain: &str) -> Result<Option<Secret>, ConfigError> {
        let file = format!("{plain}_file");
        let given = match self.values.get(plain) {
            Some((Value::Secret(password), _)) => Some(Secret(password.clone())),
            _ => None,
        };
        let Some(path) = self.text(&file).map(PathBuf::from) else { return Ok(given) };
        if given.is_some() {
            return Err(contradiction(format!("{plain} and {file} are both set"), format!("remove {plain}")));
        }
        let content = std::fs::read_to_string(&path).map_err(|error| {
            let hint = "the file must exist and be readable for the user that runs the server";
            contradiction(format!("cannot read {} of {file}: {error}", path.display()), hint)
        })?;
        Ok(Some(Secret(content.trim_end_matches(['\r', '\n']).to_owned())))
    }

    fn text(&self, key: &str) -> Option<String> {
        match self.values.get(key) {
            Some((Value::Text(text), _)) => Some(text.clone()),
            _ => None,
        }
    }

    fn switch(&self, key: &str) -> bool {
        matches!(self.values.get(key), Some((Value::Switch(true), _)))
    }

    fn tenant_limits(&self) -> Vec<(&'static str, u64)> {
        let limits = KEYS.iter().filter_map(|key| Some((key.name, key.name.strip_prefix("tenants.")?)));
        let set = limits.filter_map(|(key, limit)| match self.values.get(key) {
            Some((Value::Count(most) | Value::Bytes(most), _)) => Some((limit, *most)),
            _ => None,
        });
        set.collect()
    }

    /// A bound where 0 means that there is none.
    fn bound(&self, key: &str) -> Option<usize> {
        Some(self.number(key)).filter(|&bound| bound > 0)
    }

    fn number(&self, key: &str) -> usize {
        match self.values.get(key) {
            Some((Value::Count(number) | Value::Bytes(number), _)) => usize::try_from(*number).unwrap_or(usize::MAX),
            _ => unreachable!("{key} has a default"),
        }
    }

    fn address(&self, key: &str) -> SocketAddr {
        match self.values.get(key) {
            Some((Value::Address(address), _)) => *address,
            _ => unreachable!("{key} has a default"),
        }
    }
}

/// The hosts of a list, which `shown` names.
fn hosts_of(list: &str, key: &'static str, shown: &str) -> Result<AllowedHosts, ConfigError> {
    AllowedHosts::listed(list, key).map_err(|entry| {
        let hint = "write names, *.example.org, addresses and networks (10.0.0.0/8) with commas between, or *";
        contradiction(format!("'{entry}' in {shown} is no host"), hint)
    })
}

/// Refuses two listeners at the same address.
fn listen_apart(listeners: &[Listener]) -> Result<(), ConfigError> {
    for (index, Listener { key, address, .. }) in listeners.iter().enumerate() {
        let other = listeners[..index].iter().find(|other| other.address == *address);
        if let Some(other) = other.filter(|_| address.port() != 0) {
            let message = format!("{} and {key} are both {address}", other.key);
            return Err(contradiction(message, "give one of them another port"));
        }
    }
    Ok(())
}

/// Whether a text begins as an address with a scheme does, or as one of a bucket that somebody has begun. A single
/// letter may be a drive.
fn is_like_a_url(text: &str) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.len() > 1
            && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    let begins_with = |end: &str| text.split_once(end).map(|(scheme, _)| scheme);
    begins_with(":/").is_some_and(is_scheme) || begins_with(":").is_some_and(|scheme| scheme.eq_ignore_ascii_case("s3"))
}

/// An address that names neither a folder nor a bucket. What was meant is in the hint, where that can be known.
fn no_folder(address: &str) -> ConfigError {
    let (scheme, rest) = address.split_once(':').unwrap_or((address, ""));
    let rest = rest.trim_start_matches('/');
    let hint = match scheme.to_ascii_lowercase().as_str() {
        "s3" | "s3a" | "s3n" if !rest.is_empty() => format!("write {}{rest}", BucketName::SCHEME),
        "file" => format!("write the path itself: /{rest}"),
        _ => {
            "write s3://bucket or s3://bucket/prefix for an object store that speaks S3, or the path of a folder".into()
        }
    };
    let message = format!("{FOLDER} is {address:?}, which is neither a folder nor a bucket");
    contradiction(message, format!("{hint}; a folder that is really called so is ./{address}"))
}

fn both(one: &str, other: &str) -> ConfigError {
    contradiction(format!("only one of {one} and {other} is set"), "set both or neither")
}

fn contradiction(message: impl Into<String>, hint: impl Into<String>) -> ConfigError {
    ConfigError::Contradiction { message: message.into(), hint: hint.into() }
}

#[cfg(test)]
mod tests;
