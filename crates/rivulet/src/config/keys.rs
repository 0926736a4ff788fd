//! Every configuration key: its kind, its default and what it is for. One list: the file, the environment and the
//! command line are all read by it, and `rivulet config` prints by it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use rivulet_bench::policies::NAMES;
use rivulet_connectors::http_server::is_host_list;
use rivulet_runtime::{Consume, Policy};
use toml::Spanned;
use toml::de::DeValue;

/// One configuration key.
#[derive(Debug)]
pub struct Key {
    /// Its name with dots, as in the file: `http.address`.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// The value in force where none is given, as text; `None` where the key is then not set (or depends on others).
    pub default: Option<&'static str>,
    /// What it is for, in a few words: see [`Key::meaning`].
    help: &'static str,
}

impl Key {
    /// What it is for, and what its values mean where they have words of their own.
    pub fn meaning(&self) -> String {
        if self.kind != Kind::Policy {
            return self.help.to_owned();
        }
        let policies = Policy::ALL.map(|policy| format!("{} ({})", policy.name, policy.help));
        format!("{}: {}", self.help, policies.join(", "))
    }

    /// Whether a running server takes a new value when it is told to read its configuration again, by SIGHUP.
    pub fn reloads(&self) -> bool {
        RELOADED.contains(&self.name)
    }
}

/// What values a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// Text that is never shown.
    Secret,
    /// A path, relative to the folder the server is started in.
    Path,
    /// Paths: in the file a list of texts or one text, elsewhere with `:` between them.
    Paths,
    /// Texts by name: in the file a table, elsewhere `name=text` with `;` between.
    TextByName,
    /// `host:port` of this machine.
    Address,
    /// Names of hosts with commas between, or `*`.
    Hosts,
    /// `mqtt://host:port` or `mqtts://host:port`.
    BrokerUrl,
    /// `true` or `false`.
    Switch,
    /// A whole number in a range, both ends included.
    Count(u64, u64),
    /// A number of bytes in a range, both ends included; may be written as text with KiB, MiB or GiB.
    Bytes(u64, u64),
    /// One of these.
    Choice(&'static [&'static str]),
    /// From when to when on each day: `08:00-09:30`.
    TimesOfDay,
    /// An amount of money: [`dollars`].
    Dollars,
    /// The name of a [`Policy`].
    Policy,
    /// `all`, `half` or a number: [`Consume`].
    Consume,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The highest limit of a tenant.
const LIMIT: u64 = 1 << 53;

/// Every key, in the order in which they are printed.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    Key { name: "data_dir", kind: Kind::Path, default: Some("rivulet-data"), help: "folder of the catalog, the log of events and, unless checkpoint.folder says otherwise, the checkpoints" },
    Key { name: "http.address", kind: Kind::Address, default: Some("127.0.0.1:8080"), help: "where the REST API listens" },
    Key { name: "http.hosts", kind: Kind::Hosts, default: None, help: "names, with commas between, under which the REST API is asked besides localhost and its address, or * for every name; requests for other names are refused, because a web page may have its own name lead here (DNS rebinding)" },
    Key { name: "http.tls.certificate_file", kind: Kind::Path, default: None, help: "certificate chain in PEM; with it the REST API speaks HTTPS; read again when it changes" },
    Key { name: "http.tls.key_file", kind: Kind::Path, default: None, help: "private key of the certificate in PEM" },
    Key { name: "http.tls.client_ca_file", kind: Kind::Path, default: None, help: "authorities of clients in PEM; with it clients are asked for a certificate" },
    Key { name: "http.tls.client_certificates", kind: Kind::Choice(&["required", "optional"]), default: Some("required"), help: "whether a client without a certificate is refused, where clients are asked for one" },
    Key { name: "http.tls.client_name", kind: Kind::Choice(&["cn", "dns", "uri"]), default: Some("cn"), help: "which name in its certificate tells who a client is: the common name of the subject (cn), or the only alternative name of a kind" },
    Key { name: "http.connections_max", kind: Kind::Count(2, 1_000_000), default: Some("2048"), help: "most connections to the REST API; where there are more, those that wait longest for their client give way; half of them, and at most 1,024, may watch results" },
    Key { name: "http.address_share_percent", kind: Kind::Count(1, 100), default: Some("50"), help: "how many of the connections to the REST API, and of the clients that watch results, one address may have, in percent; loopback addresses may have all; 100 where all clients come through one proxy on another machine" },
    Key { name: "http.head_timeout_s", kind: Kind::Count(1, 86_400), default: Some("30"), help: "how long the head of a request may take, and how long a connection may wait for its next request" },
    Key { name: "http.body_timeout_s", kind: Kind::Count(1, 86_400), default: Some("30"), help: "how long each KiB of a request's body may take, and how long a client may take for each KiB of its answer" },
    Key { name: "http.bytes_max", kind: Kind::Bytes(MIB, 4 * GIB), default: Some("256 MiB"), help: "most memory of requests: their bodies, what reading those takes (700 times an SQL text of up to 256 KiB), and answers that are not yet sent; more requests are answered with 503; a quarter of memory.bytes_max where that is less" },
    Key { name: "http.results_bytes_max", kind: Kind::Bytes(64 * KIB, 64 * GIB), default: Some("64 MiB"), help: "most memory of live results that wait for their readers; of what does not fit, a reader is told how much it was" },
    Key { name: "http.trusted_proxies", kind: Kind::Text, default: None, help: "addresses and networks (10.0.0.0/8), with commas between, of proxies in front of the REST API: of their requests the last address in X-Forwarded-For that is none of theirs is the client's" },
    Key { name: "link.address", kind: Kind::Address, default: None, help: "where this server listens for links of other servers, whose streams sources read as 'link:STREAM'; it does not by default" },
    Key { name: "link.tls.certificate_file", kind: Kind::Path, default: None, help: "certificate chain in PEM; with it links to this server are encrypted; read again when it changes" },
    Key { name: "link.tls.key_file", kind: Kind::Path, default: None, help: "private key of the certificate in PEM" },
    Key { name: "link.tls.client_ca_file", kind: Kind::Path, default: None, help: "authorities of clients in PEM; with it clients are asked for a certificate" },
    Key { name: "link.tls.client_certificates", kind: Kind::Choice(&["required", "optional"]), default: Some("required"), help: "whether a client without a certificate is refused, where clients are asked for one" },
    Key { name: "link.tls.client_name", kind: Kind::Choice(&["cn", "dns", "uri"]), default: Some("cn"), help: "which name in its certificate tells who a client is: the common name of the subject (cn), or the only alternative name of a kind" },
    Key { name: "burst.instances", kind: Kind::Count(1, 1024), default: Some("4"), help: "in how many parts at least the operators of a query WITH (burst => true) run, so that as many may go to burst workers" },
    Key { name: "burst.lost_after_ms", kind: Kind::Count(100, 3_600_000), default: Some("2000"), help: "after how long without a connection a burst worker is lost" },
    Key { name: "burst.answer_s_max", kind: Kind::Count(1, 3_600), default: Some("10"), help: "how long a burst worker may take to answer before it is lost" },
    Key { name: "burst.margin_s", kind: Kind::Count(0, 3_600), default: Some("20"), help: "how long before the end of a burst worker whose time is limited its tasks come back" },
    Key { name: "burst.policy", kind: Kind::Choice(&["manual", "auto"]), default: Some("manual"), help: "who moves tasks of queries WITH (burst => true) to burst workers and back: statements only (manual), or also the server, by its load (auto)" },
    Key { name: "burst.out_above_percent", kind: Kind::Count(1, 99), default: Some("80"), help: "the server sends tasks out if its workers are busy for more of their time" },
    Key { name: "burst.in_below_percent", kind: Kind::Count(0, 99), default: Some("50"), help: "tasks come back if the workers would be busy for less of their time with them; less than burst.out_above_percent" },
    Key { name: "burst.slack_s", kind: Kind::Count(1, 3_600), default: Some("10"), help: "how long the load must be low before tasks come back; also the rest after a failed move, and a tenth of the rest after a statement that moves tasks" },
    Key { name: "burst.schedule", kind: Kind::TimesOfDay, default: None, help: "from when to when on each day, in UTC, all tasks that may go are on burst workers, whatever the policy" },
    Key { name: "burst.cost_max", kind: Kind::Dollars, default: Some("1"), help: "most dollars a day, in UTC, for functions of burst.lambda; a function is invoked only if the rest of the budget covers its longest run" },
    Key { name: "burst.lambda.function", kind: Kind::Text, default: None, help: "name of the function of AWS Lambda that has the zip of `rivulet burst package`; if set, the server starts burst workers when the connected ones have no room" },
    Key { name: "burst.lambda.region", kind: Kind::Text, default: None, help: "its region; AWS_REGION, AWS_DEFAULT_REGION or us-east-1 by default" },
    Key { name: "burst.lambda.endpoint", kind: Kind::Text, default: None, help: "where functions are invoked: that of `rivulet burst emulate`, or a private one; AWS_ENDPOINT_URL_LAMBDA, AWS_ENDPOINT_URL or that of Amazon's region by default" },
    Key { name: "burst.lambda.access_key_id", kind: Kind::Text, default: None, help: "access key ID; default: AWS_ACCESS_KEY_ID with its secret and session token" },
    Key { name: "burst.lambda.secret_access_key", kind: Kind::Secret, default: None, help: "the secret of this key" },
    Key { name: "burst.lambda.secret_access_key_file", kind: Kind::Path, default: None, help: "file that holds this secret" },
    Key { name: "burst.lambda.session_token", kind: Kind::Secret, default: None, help: "session token of temporary credentials; the server does not renew them" },
    Key { name: "burst.lambda.connect", kind: Kind::Text, default: None, help: "host:port at which functions reach the door for links; link.address by default" },
    Key { name: "burst.lambda.workers_max", kind: Kind::Count(1, 1_000), default: Some("8"), help: "most functions at a time" },
    Key { name: "burst.lambda.memory_mb", kind: Kind::Count(128, 10_240), default: Some("1769"), help: "memory of the function; sets its price, and one task at a time per 1,769 MB (one core)" },
    Key { name: "burst.lambda.limit_s", kind: Kind::Count(1, 900), default: Some("300"), help: "longest run of a function, more than burst.margin_s; a shorter timeout of the function itself wins" },
    Key { name: "burst.lambda.warm", kind: Kind::Count(0, 1_000), default: Some("0"), help: "how many functions are kept warm, which is paid for, while queries run WITH (burst => true)" },
    Key { name: "burst.lambda.warm_s", kind: Kind::Count(1, 3_600), default: Some("240"), help: "how often these are invoked for that" },
    Key { name: "burst.lambda.price_gb_s", kind: Kind::Dollars, default: Some("0.0000166667"), help: "dollars for a second with 1,024 MB, as Amazon publishes them for the region; each invocation is 0.0000002 more" },
    Key { name: "connections.files_reserved", kind: Kind::Count(0, 1_000_000), default: Some("256"), help: "how many of the files that the process may have open, at most half, are for checkpoints, the log and queries; of the others, MQTT clients may take half, and clients of the REST API and of HTTP sources a quarter each" },
    Key { name: "logins.slow_down", kind: Kind::Switch, default: Some("true"), help: "whether a user whose logins fail at an address waits there, longer and longer up to a minute; right tokens are let in at once in any case" },
    Key { name: "mqtt.embedded.enabled", kind: Kind::Switch, default: None, help: "whether the embedded broker runs; by default when mqtt.broker.url is not set" },
    Key { name: "mqtt.embedded.address", kind: Kind::Address, default: Some("127.0.0.1:1883"), help: "where the embedded broker listens" },
    Key { name: "mqtt.embedded.username", kind: Kind::Text, default: None, help: "user name its clients must give" },
    Key { name: "mqtt.embedded.password", kind: Kind::Secret, default: None, help: "password its clients must give" },
    Key { name: "mqtt.embedded.password_file", kind: Kind::Path, default: None, help: "file that holds this password" },
    Key { name: "mqtt.embedded.tls.certificate_file", kind: Kind::Path, default: None, help: "certificate chain in PEM; with it the embedded broker speaks TLS; read again when it changes" },
    Key { name: "mqtt.embedded.tls.key_file", kind: Kind::Path, default: None, help: "private key of the certificate in PEM" },
    Key { name: "mqtt.embedded.tls.client_ca_file", kind: Kind::Path, default: None, help: "authorities of clients in PEM; with it clients are asked for a certificate" },
    Key { name: "mqtt.embedded.tls.client_certificates", kind: Kind::Choice(&["required", "optional"]), default: Some("required"), help: "whether a client without a certificate is refused, where clients are asked for one" },
    Key { name: "mqtt.embedded.tls.client_name", kind: Kind::Choice(&["cn", "dns", "uri"]), default: Some("cn"), help: "which name in its certificate tells who a client is: the common name of the subject (cn), or the only alternative name of a kind" },
    Key { name: "mqtt.embedded.websocket.address", kind: Kind::Address, default: None, help: "where the embedded broker listens for MQTT over WebSocket, at the path /mqtt, with the same TLS; it does not by default" },
    Key { name: "mqtt.embedded.websocket.origins", kind: Kind::Text, default: None, help: "web pages that may connect there, with commas between (https://app.example.org), or * for all; by default those of the listener's own host and port" },
    Key { name: "mqtt.embedded.trusted_proxies", kind: Kind::Text, default: None, help: "addresses and networks, with commas between, of proxies in front of the embedded broker: their connections have to begin with a header of the PROXY protocol, version 1 or 2, which names the client's address" },
    Key { name: "mqtt.embedded.connections_max", kind: Kind::Count(1, 1_000_000), default: Some("10000"), help: "most clients at a time; fewer where the process may not open as many files" },
    Key { name: "mqtt.embedded.message_bytes_max", kind: Kind::Bytes(128 * KIB, 256 * MIB), default: Some("4 MiB"), help: "largest message of a client, with its topic and properties; a larger one is refused and counted, and its client stays" },
    Key { name: "mqtt.embedded.sessions_max", kind: Kind::Count(1, 10_000_000), default: Some("100000"), help: "most sessions, with and without a connection; one more ends the oldest without a connection of the same address, or, if there is none, of the address with the most sessions" },
    Key { name: "mqtt.embedded.session_expiry_s_max", kind: Kind::Count(0, 4_294_967_295), default: Some("86400"), help: "longest time for which a session is kept without a connection" },
    Key { name: "mqtt.embedded.session_queue_messages_max", kind: Kind::Count(1, 10_000_000), default: Some("10000"), help: "most messages of QoS 1 and 2 that wait for one session" },
    Key { name: "mqtt.embedded.session_queue_bytes_max", kind: Kind::Bytes(KIB, 64 * GIB), default: Some("8 MiB"), help: "their most bytes" },
    Key { name: "mqtt.embedded.in_flight_max", kind: Kind::Count(1, 65_535), default: Some("256"), help: "most messages of QoS 1 and 2 that are sent to one client and not acknowledged; the client may ask for fewer" },
    Key { name: "mqtt.embedded.receive_max", kind: Kind::Count(1, 65_535), default: Some("8192"), help: "most messages of QoS 2 that one client may have sent and not released; a client of MQTT 5 is told it as the receive maximum" },
    Key { name: "mqtt.embedded.topic_aliases_max", kind: Kind::Count(0, 1024), default: Some("16"), help: "most topic aliases of one client in each direction" },
    Key { name: "mqtt.embedded.keep_alive_s_max", kind: Kind::Count(0, 65_535), default: Some("0"), help: "longest keep alive of a client of MQTT 5, which is told it if it asks for more or for none; 0 lets clients choose" },
    Key { name: "mqtt.embedded.system_interval_s", kind: Kind::Count(0, 86_400), default: Some("10"), help: "time between two messages on the topics below `$SYS/broker/`; 0 for no such topics" },
    Key { name: "mqtt.embedded.subscriptions_max", kind: Kind::Count(1, 100_000_000), default: Some("1000000"), help: "most subscriptions of all sessions together" },
    Key { name: "mqtt.embedded.session_subscriptions_max", kind: Kind::Count(1, 100_000_000), default: Some("10000"), help: "most subscriptions of one session" },
    Key { name: "mqtt.embedded.retained_messages_max", kind: Kind::Count(0, 100_000_000), default: Some("1000000"), help: "most retained messages" },
    Key { name: "mqtt.embedded.retained_bytes_max", kind: Kind::Bytes(0, 64 * GIB), default: Some("256 MiB"), help: "their most bytes" },
    Key { name: "mqtt.embedded.memory_bytes_max", kind: Kind::Bytes(MIB, 64 * 1024 * GIB), default: None, help: "most memory of connections, sessions, what waits for them, and retained messages; by default a quarter of memory.bytes_max, or 1 GiB where that is not set" },
    Key { name: "mqtt.embedded.persistence", kind: Kind::Switch, default: Some("true"), help: "whether retained messages, and sessions that outlive their connection with what waits for them, are kept in the data folder" },
    Key { name: "mqtt.embedded.address_share_percent", kind: Kind::Count(1, 100), default: Some("50"), help: "how much of the embedded broker's memory and subscriptions the clients of one address may have" },
    Key { name: "mqtt.embedded.tenant_share_percent", kind: Kind::Count(1, 100), default: Some("50"), help: "how much of the embedded broker's connections, sessions, subscriptions, memory and retained messages one tenant may have, but for the default tenant" },
    Key { name: "mqtt.broker.url", kind: Kind::BrokerUrl, default: None, help: "external broker to use" },
    Key { name: "mqtt.broker.username", kind: Kind::Text, default: None, help: "user name at the external broker" },
    Key { name: "mqtt.broker.password", kind: Kind::Secret, default: None, help: "password at the external broker" },
    Key { name: "mqtt.broker.password_file", kind: Kind::Path, default: None, help: "file that holds this password" },
    Key { name: "mqtt.broker.client_id", kind: Kind::Text, default: None, help: "client id at the external broker; generated by default" },
    Key { name: "mqtt.broker.version", kind: Kind::Choice(&["3.1.1", "5"]), default: Some("5"), help: "version of MQTT" },
    Key { name: "mqtt.broker.qos", kind: Kind::Choice(&["0", "1"]), default: Some("1"), help: "highest quality of service of subscriptions" },
    Key { name: "mqtt.broker.message_bytes_max", kind: Kind::Bytes(128 * KIB, 256 * MIB), default: Some("16 MiB"), help: "largest message of the external broker, with its topic and properties; a larger one is passed over and counted" },
    Key { name: "mqtt.broker.ca_file", kind: Kind::Path, default: None, help: "certificate authorities in PEM for mqtts; the usual public ones by default" },
    Key { name: "mqtt.broker.certificate_file", kind: Kind::Path, default: None, help: "client certificate to show to the external broker with mqtts, in PEM" },
    Key { name: "mqtt.broker.key_file", kind: Kind::Path, default: None, help: "private key of the client certificate in PEM" },
    Key { name: "workers", kind: Kind::Count(1, 1024), default: None, help: "processing threads; as many as cores by default" },
    Key { name: "scheduler.policy", kind: Kind::Policy, default: Some("group"), help: "which task a worker runs next" },
    Key { name: "scheduler.time_slice_ms", kind: Kind::Count(1, 60_000), default: Some("20"), help: "how long a worker stays with a task while others wait" },
    Key { name: "scheduler.consume", kind: Kind::Consume, default: Some("all"), help: "how much of what waits for a task it takes before its worker looks for the next: all, half of it, or at most so many events or rows" },
    Key { name: "scheduler.balance_period_s", kind: Kind::Count(0, 86_400), default: Some("5"), help: "how often load is evened out between workers; 0 for never" },
    Key { name: "scheduler.cut_above_percent", kind: Kind::Count(0, 100), default: Some("95"), help: "which part of a worker's time a single query may need before several workers share it, if its application can be cut; 0 for never" },
    Key { name: "scheduler.pin_workers", kind: Kind::Switch, default: Some("false"), help: "whether each worker thread stays on one core" },
    Key { name: "scheduler.numa", kind: Kind::Choice(&["auto", "off"]), default: Some("auto"), help: "whether notice is taken of memory nodes (NUMA): on a machine with several, workers stay on a core each, and what belongs together stays on a node" },
    Key { name: "inbox.rows_max", kind: Kind::Count(1, 1 << 30), default: Some("65536"), help: "most events waiting in front of a task" },
    Key { name: "inbox.bytes_max", kind: Kind::Bytes(KIB, 2 * GIB), default: Some("16 MiB"), help: "most bytes waiting in front of a task" },
    Key { name: "memory.bytes_max", kind: Kind::Bytes(16 * MIB, 64 * 1024 * GIB), default: None, help: "most resident memory at which queries are still created, and big queries with much state still run; no bound by default" },
    Key { name: "memory.spill_after_s", kind: Kind::Count(0, 31_536_000), default: Some("0"), help: "after how much silence the state of a query goes to disk until its next event; 0 for never" },
    Key { name: "memory.spill_bytes_max", kind: Kind::Bytes(MIB, 64 * 1024 * GIB), default: Some("8 GiB"), help: "most disk space for the state of silent queries, in the data folder" },
    Key { name: "checkpoint.enabled", kind: Kind::Switch, default: Some("true"), help: "whether the state of queries is saved, and comes back after a restart" },
    Key { name: "checkpoint.interval_s", kind: Kind::Count(0, 86_400), default: Some("10"), help: "how often what changed is saved; 0 for only when asked, and when the server stops" },
    Key { name: "checkpoint.folder", kind: Kind::Path, default: None, help: "where checkpoints lie: a folder, or s3://bucket/prefix; checkpoints in the data folder by default" },
    Key { name: "checkpoint.s3.endpoint", kind: Kind::Text, default: None, help: "https://host:port of the object store; AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or that of Amazon's region by default" },
    Key { name: "checkpoint.s3.region", kind: Kind::Text, default: None, help: "region of the bucket; AWS_REGION, AWS_DEFAULT_REGION or us-east-1 by default" },
    Key { name: "checkpoint.s3.access_key_id", kind: Kind::Text, default: None, help: "who asks; AWS_ACCESS_KEY_ID, with what belongs to it, by default" },
    Key { name: "checkpoint.s3.secret_access_key", kind: Kind::Secret, default: None, help: "the secret of this key" },
    Key { name: "checkpoint.s3.secret_access_key_file", kind: Kind::Path, default: None, help: "file that holds this secret" },
    Key { name: "checkpoint.s3.session_token", kind: Kind::Secret, default: None, help: "what belongs to a key that is given for some hours only; it is not renewed" },
    Key { name: "checkpoint.s3.session_token_file", kind: Kind::Path, default: None, help: "file that holds this token" },
    Key { name: "checkpoint.s3.role_arn", kind: Kind::Text, default: None, help: "role whose keys are used, and renewed, instead of a key: that of a token (of Kubernetes, for instance); AWS_ROLE_ARN by default" },
    Key { name: "checkpoint.s3.web_identity_token_file", kind: Kind::Path, default: None, help: "file that holds the token that stands for this role; AWS_WEB_IDENTITY_TOKEN_FILE by default" },
    Key { name: "checkpoint.s3.sts_endpoint", kind: Kind::Text, default: None, help: "https://host:port of the service that gives keys for the token; AWS_ENDPOINT_URL_STS or that of Amazon's region by default" },
    Key { name: "checkpoint.s3.container_credentials", kind: Kind::Text, default: None, help: "where a container asks for the keys of its role, which are renewed: a path (Amazon's ECS) or a URL (EKS); AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or AWS_CONTAINER_CREDENTIALS_FULL_URI by default" },
    Key { name: "checkpoint.s3.container_token_file", kind: Kind::Path, default: None, help: "file that holds the token that is shown at this URL; AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE by default" },
    Key { name: "checkpoint.s3.instance_role", kind: Kind::Switch, default: Some("false"), help: "whether the keys of the role of this machine (Amazon's EC2) are used, and renewed" },
    Key { name: "checkpoint.s3.allow_http", kind: Kind::Switch, default: Some("false"), help: "whether the endpoint may be http://, where everybody on the way can read and change what is saved" },
    Key { name: "checkpoint.s3.ca_file", kind: Kind::Path, default: None, help: "certificate authorities in PEM of the endpoint and other servers named here; the usual public ones by default" },
    Key { name: "checkpoint.s3.timeout_s", kind: Kind::Count(1, 600), default: Some("10"), help: "how long the object store may be silent before a request is given up" },
    Key { name: "checkpoint.retained", kind: Kind::Count(1, 100), default: Some("3"), help: "checkpoints that are kept: those before the newest are for the case that it is damaged" },
    Key { name: "durability.default", kind: Kind::Choice(&["none", "checkpoint", "log"]), default: Some("checkpoint"), help: "what of inputs that do not say it survives the end of the server: none, checkpoint (state as last saved), log (also every event that was acknowledged)" },
    Key { name: "durability.log_bytes_max", kind: Kind::Bytes(MIB, 64 * 1024 * GIB), default: Some("8 GiB"), help: "most disk space of the log of events, in the data folder; when it is used up nothing more is received, except up to 256 MiB that results on their way out wait for" },
    Key { name: "durability.commit_interval_ms", kind: Kind::Count(0, 1_000), default: Some("1"), help: "how long events at most gather, while many come, before the log waits for the disk" },
    Key { name: "table.bytes_max", kind: Kind::Bytes(KIB, 2 * GIB), default: Some("256 MiB"), help: "most bytes of a reference table, in its file and in memory" },
    Key { name: "files.allow", kind: Kind::Paths, default: None, help: "folders below which statements may read and write files; {tenant} in them is the tenant of the caller; relative paths begin in the first of them; by default the folder files of the data folder, and of other tenants one of their own in its folder tenants" },
    Key { name: "files.free_bytes_min", kind: Kind::Bytes(0, 64 * 1024 * GIB), default: Some("256 MiB"), help: "what files that statements write leave free on the disk of the data folder, for the log and the checkpoints of the server" },
    Key { name: "hosts.allow", kind: Kind::Text, default: None, help: "hosts that statements may connect to, with HTTP, Kafka and MQTT, with commas between: names, *.example.org for the names below one, addresses, networks (10.0.0.0/8), or * for every host; by default every host but this machine, link-local addresses and the metadata services of clouds; brokers may be on this machine while http.address is a loopback address and there are no accounts" },
    Key { name: "hosts.tenants", kind: Kind::TextByName, default: None, help: "the same as hosts.allow for a tenant, in its place and in that of sink.http_allow: [hosts.tenants] acme = \"kafka.acme.example, 10.0.0.0/8\"; \"*\" stands for the tenants that are not named, but for default; nothing in quotes allows no host" },
    Key { name: "hosts.listen", kind: Kind::Text, default: None, help: "addresses of this machine at which http: sources may listen, with commas between: addresses, networks, or * for every address; by default every address, and none for other tenants than the default one" },
    Key { name: "outbound.bytes_max", kind: Kind::Bytes(KIB, 64 * GIB), default: Some("64 MiB"), help: "most bytes of results waiting for a broker" },
    Key { name: "sink.http_allow", kind: Kind::Text, default: None, help: "the same as hosts.allow for HTTP sinks and outputs alone, in its place" },
    Key { name: "sink.qos", kind: Kind::Choice(&["0", "1"]), default: Some("0"), help: "quality of service of published results" },
    Key { name: "sink.retain", kind: Kind::Switch, default: Some("false"), help: "whether published results are retained" },
    Key { name: "stop.delay_s", kind: Kind::Count(0, 3_600), default: Some("0"), help: "how long a server that is told to stop works on while /health/ready says that it is stopping, so that who asks that sends no more requests" },
    Key { name: "stop.limit_s", kind: Kind::Count(0, 3_600), default: Some("60"), help: "how long stopping may take behind that; then the process ends as if it were killed, which loses nothing that was acknowledged by inputs with durability log; 0 for no limit" },
    Key { name: "audit.enabled", kind: Kind::Switch, default: Some("true"), help: "whether changes, refused logins and refused requests are recorded, once clients have to log in" },
    Key { name: "audit.folder", kind: Kind::Path, default: None, help: "where the audit's files are; the folder audit of the data folder by default" },
    Key { name: "audit.reads", kind: Kind::Switch, default: Some("false"), help: "whether reads, accepted logins and subscriptions are recorded too" },
    Key { name: "audit.file_bytes_max", kind: Kind::Bytes(64 * KIB, 64 * GIB), default: Some("64 MiB"), help: "most bytes of a file of the audit; then another one begins" },
    Key { name: "audit.files_max", kind: Kind::Count(1, 10_000), default: Some("10"), help: "all files of the audit take so many times audit.file_bytes_max; the tenant that has most of it loses its oldest file" },
    Key { name: "audit.required", kind: Kind::Switch, default: Some("false"), help: "whether changes are refused while the audit cannot be written" },
    Key { name: "tenants.applications", kind: Kind::Count(0, LIMIT), default: None, help: "most applications of a tenant; this and the other limits below tenants are those of tenants, other than the default one, that have none of their own (ALTER TENANT)" },
    Key { name: "tenants.queries", kind: Kind::Count(0, LIMIT), default: None, help: "most queries of applications" },
    Key { name: "tenants.big_queries", kind: Kind::Count(0, LIMIT), default: None, help: "most big queries" },
    Key { name: "tenants.workers", kind: Kind::Count(1, LIMIT), default: None, help: "most workers on which one big query runs; counts for those that are started from then on" },
    Key { name: "tenants.streams", kind: Kind::Count(0, LIMIT), default: None, help: "most readers of live results and SELECT at a time" },
    Key { name: "tenants.requests_per_second", kind: Kind::Count(1, LIMIT), default: None, help: "most HTTP requests a second; those beyond are answered with 429" },
    Key { name: "tenants.events_per_second", kind: Kind::Count(1, LIMIT), default: None, help: "most messages a second that MQTT clients publish; beyond it their connections are read more slowly" },
    Key { name: "tenants.bytes_per_second", kind: Kind::Bytes(1, LIMIT), default: None, help: "most bytes a second that MQTT clients send; beyond it their connections are read more slowly" },
    Key { name: "tenants.bytes_out_per_second", kind: Kind::Bytes(1, LIMIT), default: None, help: "most bytes a second that MQTT clients get; what is beyond waits for them as for slow clients" },
    Key { name: "tenants.state_bytes", kind: Kind::Bytes(1, LIMIT), default: None, help: "most memory of queries and reference tables; beyond it nothing is created, and while queries hold that much, MQTT clients are not read" },
    Key { name: "tenants.log_bytes", kind: Kind::Bytes(1, LIMIT), default: None, help: "most bytes of events in the log that no checkpoint has yet; beyond it MQTT clients are not read" },
    Key { name: "tenants.file_bytes", kind: Kind::Bytes(1, LIMIT), default: None, help: "most bytes of files in the folders of a tenant; beyond it its sinks write nothing" },
    Key { name: "tenants.weight", kind: Kind::Count(1, 10_000), default: None, help: "weight of a tenant's share of the workers' time where those of several have work; 100 without it" },
    Key { name: "jwt.issuer", kind: Kind::Text, default: None, help: "who issues JSON Web Tokens (JWT) that users log in with, as its tokens name it (iss)" },
    Key { name: "jwt.audience", kind: Kind::Text, default: None, help: "whom its tokens must be for (aud): the name that it has for this server" },
    Key { name: "jwt.keys_file", kind: Kind::Path, default: None, help: "file with the public keys of the issuer, a JSON Web Key Set; read again when it changes" },
    Key { name: "jwt.keys_url", kind: Kind::Text, default: None, help: "the same at a URL, of https or of this machine; fetched every five minutes, and when a token names another key" },
    Key { name: "jwt.keys_ca_file", kind: Kind::Path, default: None, help: "certificate authorities in PEM of this URL; the usual public ones by default" },
    Key { name: "jwt.tenant", kind: Kind::Text, default: Some("default"), help: "the tenant whose users the issuer knows" },
    Key { name: "jwt.user_claim", kind: Kind::Text, default: Some("sub"), help: "which claim of a token is the name of the user" },
    Key { name: "jwt.leeway_s", kind: Kind::Count(0, 600), default: Some("60"), help: "how many seconds the issuer's clock and this server's may differ" },
    Key { name: "log.level", kind: Kind::Choice(&["off", "error", "warn", "info", "debug", "trace"]), default: Some("info"), help: "what is logged" },
    Key { name: "log.format", kind: Kind::Choice(&["text", "json"]), default: Some("text"), help: "how it is logged" },
];

/// The keys whose values a running server can change: see [`Key::reloads`].
const RELOADED: &[&str] = &[
    "http.hosts",
    "http.tls.certificate_file",
    "http.tls.key_file",
    "http.tls.client_ca_file",
    "http.tls.client_certificates",
    "http.tls.client_name",
    "http.connections_max",
    "http.address_share_percent",
    "http.head_timeout_s",
    "http.body_timeout_s",
    "logins.slow_down",
    "mqtt.embedded.username",
    "mqtt.embedded.password",
    "mqtt.embedded.password_file",
    "mqtt.embedded.tls.certificate_file",
    "mqtt.embedded.tls.key_file",
    "mqtt.embedded.tls.client_ca_file",
    "mqtt.embedded.tls.client_certificates",
    "mqtt.embedded.tls.client_name",
    "mqtt.embedded.connections_max",
    "mqtt.embedded.sessions_max",
    "mqtt.embedded.session_expiry_s_max",
    "mqtt.embedded.session_queue_messages_max",
    "mqtt.embedded.session_queue_bytes_max",
    "mqtt.embedded.in_flight_max",
    "mqtt.embedded.subscriptions_max",
    "mqtt.embedded.session_subscriptions_max",
    "mqtt.embedded.retained_messages_max",
    "mqtt.embedded.retained_bytes_max",
    "mqtt.embedded.memory_bytes_max",
    "mqtt.embedded.address_share_percent",
    "mqtt.embedded.tenant_share_percent",
    "jwt.issuer",
    "jwt.audience",
    "jwt.keys_file",
    "jwt.keys_url",
    "jwt.keys_ca_file",
    "jwt.tenant",
    "jwt.user_claim",
    "jwt.leeway_s",
    "memory.bytes_max",
    "table.bytes_max",
    "hosts.allow",
    "hosts.tenants",
    "hosts.listen",
    "sink.http_allow",
    "stop.delay_s",
    "stop.limit_s",
    "tenants.applications",
    "tenants.queries",
    "tenants.big_queries",
    "tenants.workers",
    "tenants.streams",
    "tenants.requests_per_second",
    "tenants.events_per_second",
    "tenants.bytes_per_second",
    "tenants.bytes_out_per_second",
    "tenants.state_bytes",
    "tenants.log_bytes",
    "tenants.file_bytes",
    "tenants.weight",
    "log.level",
];

/// What to do about keys and values that made the server work as those do that it is compared with.
pub(super) const COMPARED: &str =
    "remove it: `rivulet bench many --model` and `rivulet bench nexmark --policy` compare with engines that work so";

/// Keys of earlier versions, and what to do about each.
pub(super) const REMOVED: &[(&str, &str)] = &[
    ("mqtt.broker.connections", COMPARED),
    ("scheduler.task_queries_max", COMPARED),
    ("scheduler.batch_rows_max", COMPARED),
    ("scheduler.share_code", COMPARED),
];

/// Whether a value in quotes, as an error shows it, is a policy of another engine; earlier versions could be configured
/// with some of these.
pub(super) fn is_policy_for_comparison(found: &str) -> bool {
    let name = found.trim_matches('"');
    NAMES.contains(&name) || name == "dedicated"
}

/// The environment variable of a key: `RIVULET_` and the key in capitals with `_` for each dot. Where that reads badly,
/// `__` for each dot is the same: `RIVULET_MQTT_BROKER_PASSWORD_FILE` and `RIVULET_MQTT__BROKER__PASSWORD_FILE`.
pub fn environment_names(key: &str) -> [String; 2] {
    ["_", "__"].map(|separator| format!("RIVULET_{}", key.replace('.', separator).to_uppercase()))
}

/// A checked value. It shows no secrets, whether by `Display`, `Debug` or JSON.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// Text, a path or a choice.
    Text(String),
    /// Paths.
    Paths(Vec<String>),
    /// Texts by name.
    TextByName(BTreeMap<String, String>),
    /// Text that is not to be shown.
    Secret(String),
    /// A broker's URL, whose password is not to be shown.
    BrokerUrl(String),
    /// A switch.
    Switch(bool),
    /// A count.
    Count(u64),
    /// A number of bytes.
    Bytes(u64),
    /// An address.
    Address(SocketAddr),
}

impl Value {
    /// The value as JSON; secrets are hidden.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Paths(paths) => paths.as_slice().into(),
            Self::TextByName(texts) => serde_json::json!(texts),
            Self::Secret(_) => "(hidden)".into(),
            Self::BrokerUrl(url) => hide_password(url).into(),
            Self::Switch(on) => (*on).into(),
            Self::Count(number) | Self::Bytes(number) => (*number).into(),
            Self::Address(address) => address.to_string().into(),
        }
    }
}

/// As it would be written in the file; secrets are hidden.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => {
                let (divisor, unit) = match bytes {
                    _ if bytes % GIB == 0 => (GIB, "GiB"),
                    _ if bytes % MIB == 0 => (MIB, "MiB"),
                    _ if bytes % KIB == 0 => (KIB, "KiB"),
                    _ => return write!(formatter, "{bytes}"),
                };
                write!(formatter, "\"{} {unit}\"", bytes / divisor)
            }
            Self::TextByName(texts) => {
                let entry = |(name, text)| format!("{} = {}", Self::Text(name), Self::Text(text));
                let entries: Vec<String> = texts.clone().into_iter().map(entry).collect();
                write!(formatter, "{{ {} }}", entries.join(", "))
            }
            // JSON text is TOML text, as far as these values go.
            other => write!(formatter, "{}", other.to_json()),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A value as it was written, before it is checked.
#[derive(Debug)]
pub(super) enum Written<'a> {
    /// In the environment or on the command line, where everything is text.
    Text(&'a str),
    /// In the file.
    Toml(&'a DeValue<'a>),
}

impl Kind {
    /// Checks a value; the error says what was expected.
    pub(super) fn check(self, written: &Written<'_>) -> Result<Value, String> {
        self.parse(written).ok_or_else(|| self.expected())
    }

    fn parse(self, written: &Written<'_>) -> Option<Value> {
        // The file has types: a number in quotes is a mistake there, and a word without quotes does not parse at all.
        let text = match (self, written) {
            (_, Written::Text(text)) => *text,
            (Self::Switch, Written::Toml(DeValue::Boolean(on))) => return Some(Value::Switch(*on)),
            (Self::Count(..), Written::Toml(DeValue::String(_))) => return None,
            (
                Self::Count(..) | Self::Bytes(..) | Self::Choice(_) | Self::Consume | Self::Dollars,
                Written::Toml(DeValue::Integer(integer)),
            ) if integer.radix() == 10 => integer.as_str(),
            (Self::Dollars, Written::Toml(DeValue::Float(float))) => float.as_str(),
            (Self::Switch, _) => return None,
            (Self::Paths, Written::Toml(DeValue::Array(paths))) => {
                let path = |path: &Spanned<DeValue<'_>>| path.get_ref().as_str().map(str::to_owned);
                return paths.iter().map(path).collect::<Option<Vec<_>>>().and_then(paths_of);
            }
            (Self::TextByName, Written::Toml(DeValue::Table(table))) => {
                let entry = |(name, text): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                    let name: &Cow<'_, str> = name.get_ref();
                    Some((name.to_string(), text.get_ref().as_str()?.to_owned()))
                };
                return table.iter().map(entry).collect::<Option<_>>().map(Value::TextByName);
            }
            (_, Written::Toml(DeValue::String(text))) => text.as_ref(),
            _ => return None,
        };
        match self {
            Self::TextByName => {
                let entry = |entry: &str| {
                    let (name, text) = entry.split_once('=')?;
                    (!name.trim().is_empty()).then(|| (name.trim().to_owned(), text.trim().to_owned()))
                };
                let entries = text.split(';').filter(|entry| !entry.trim().is_empty()).map(entry);
                entries.collect::<Option<_>>().map(Value::TextByName)
            }
            Self::Paths => paths_of(text.split(':').map(str::to_owned).collect()),
            Self::Text | Self::Path => (!text.is_empty()).then(|| Value::Text(text.to_owned())),
            Self::Secret => (!text.is_empty()).then(|| Value::Secret(text.to_owned())),
            Self::Address => {
                let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
                numeric.as_deref().unwrap_or(text).parse().ok().map(Value::Address)
            }
            Self::Hosts => is_host_list(text).then(|| Value::Text(text.to_owned())),
            Self::BrokerUrl => super::broker_url(text).map(|_| Value::BrokerUrl(text.to_owned())),
            Self::Switch => match text {
                "true" | "1" | "on" | "yes" => Some(Value::Switch(true)),
                "false" | "0" | "off" | "no" => Some(Value::Switch(false)),
                _ => None,
            },
            Self::Count(least, most) => {
                let number = text.replace('_', "").parse().ok()?;
                (least..=most).contains(&number).then_some(Value::Count(number))
            }
            Self::Bytes(least, most) => {
                let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
                let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
                    "" | "b" => 1,
                    "kib" => KIB,
                    "mib" => MIB,
                    "gib" => GIB,
                    _ => return None,
                };
                let number: u64 = digits.trim_end().replace('_', "").parse().ok()?;
                let bytes = number.checked_mul(unit)?;
                (least..=most).contains(&bytes).then_some(Value::Bytes(bytes))
            }
            Self::TimesOfDay => times_of_day(text).map(|_| Value::Text(text.to_owned())),
            Self::Dollars => dollars(text).map(|_| Value::Text(text.to_owned())),
            Self::Choice(choices) => {
                choices.iter().find(|choice| **choice == text).map(|choice| Value::Text((*choice).to_owned()))
            }
            Self::Consume => {
                text.replace('_', "").parse::<Consume>().ok().map(|consume| Value::Text(consume.to_string()))
            }
            Self::Policy => text.parse::<&Policy>().ok().map(|policy| Value::Text(policy.name.to_owned())),
        }
    }

    /// What was expected, for an error message.
    fn expected(self) -> String {
        match self {
            Self::Text | Self::Secret => "text in quotes, not empty".into(),
            Self::Path => "a path in quotes, not empty".into(),
            Self::Paths => {
                "a list of paths such as [\"/srv/rivulet\", \"data\"], or /srv/rivulet:data outside of the file".into()
            }
            Self::TextByName => {
                "texts by name, such as { acme = \"10.0.0.0/8\" }, or acme=10.0.0.0/8;other=* outside of the file"
                    .into()
            }
            Self::Address => "an address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"".into(),
            Self::Hosts => "names without scheme and port, such as \"rivulet.example.org, rivulet\", or \"*\"".into(),
            Self::BrokerUrl => "a URL such as \"mqtt://host:1883\" or \"mqtts://host:8883\"".into(),
            Self::Switch => "true or false".into(),
            Self::Count(least, most) => format!("a whole number from {least} to {most}"),
            Self::Bytes(least, most) => format!(
                "a number of bytes from {} to {}, such as 65536 or \"64 MiB\"",
                Value::Bytes(least).to_string().replace('"', ""),
                Value::Bytes(most).to_string().replace('"', "")
            ),
            Self::TimesOfDay => "two times of the day such as \"08:00-09:30\"".into(),
            Self::Dollars => "dollars such as 2.50, up to 1000000".into(),
            Self::Choice(choices) => one_of(choices),
            Self::Consume => Consume::EXPECTED.into(),
            Self::Policy => one_of(&Policy::ALL.map(|policy| policy.name)),
        }
    }
}

/// Two different times of the day, in its minutes.
pub(super) fn times_of_day(text: &str) -> Option<(u16, u16)> {
    let minute = |text: &str| {
        let time = format!("{}:00", text.trim()).parse::<toml::value::Datetime>().ok()?.time?;
        Some(u16::from(time.hour) * 60 + u16::from(time.minute))
    };
    let (from, to) = text.split_once('-')?;
    Some((minute(from)?, minute(to)?)).filter(|(from, to)| from != to)
}

/// An amount in dollars up to a million, in 10^-12 dollars.
pub(super) fn dollars(text: &str) -> Option<u64> {
    let amount = text.parse::<f64>().ok().filter(|amount| (0.0..=1e6).contains(amount))?;
    Some((amount * 1e12).round() as u64)
}

fn one_of(choices: &[&str]) -> String {
    let quoted: Vec<_> = choices.iter().map(|choice| format!("\"{choice}\"")).collect();
    format!("one of {}", quoted.join(", "))
}

/// At least one path, and none that is empty.
fn paths_of(paths: Vec<String>) -> Option<Value> {
    (!paths.is_empty() && paths.iter().all(|path| !path.is_empty())).then_some(Value::Paths(paths))
}

/// A URL with the password between `:` and `@` replaced.
fn hide_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:(hidden)@{host}"),
            None => url.to_owned(),
        },
        None => url.to_owned(),
    }
}

/// The known key that `name` was probably meant to be, if one is near enough.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    // `address` for `http.address` is a forgotten section.
    let is_last_part = |key: &&Key| key.name.rsplit('.').next() == Some(name);
    let names = KEYS.iter().map(|key| key.name);
    KEYS.iter().find(is_last_part).map(|key| key.name).or_else(|| rivulet_sql::nearest(name, names))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn text(kind: Kind, text: &str) -> Option<Value> {
        kind.parse(&Written::Text(text))
    }

    #[test]
    fn no_two_keys_share_an_environment_variable() {
        let mut names = HashSet::new();
        for key in KEYS {
            let both: HashSet<_> = environment_names(key.name).into_iter().collect();
            for name in both {
                assert!(names.insert(name.clone()), "{name} stands for two keys");
            }
        }
        assert_eq!(
            environment_names("mqtt.broker.ca_file"),
            ["RIVULET_MQTT_BROKER_CA_FILE", "RIVULET_MQTT__BROKER__CA_FILE"]
        );
    }

    #[test]
    fn every_key_that_reloads_is_one() {
        let known = |name: &&str| KEYS.iter().any(|key| key.name == *name);
        assert_eq!(RELOADED.iter().find(|name| !known(name)), None);
    }

    #[test]
    fn every_default_is_a_value_of_its_kind() {
        for key in KEYS {
            if let Some(default) = key.default {
                assert!(text(key.kind, default).is_some(), "{} = {default}", key.name);
            }
        }
    }

    #[test]
    fn bytes_are_read_and_printed_with_units() {
        let kind = Kind::Bytes(1, GIB);
        for (written, bytes, printed) in [
            ("65536", 65536, "\"64 KiB\""),
            ("64 MiB", 64 * MIB, "\"64 MiB\""),
            ("1gib", GIB, "\"1 GiB\""),
            ("1_000", 1000, "1000"),
        ] {
            let value = text(kind, written).expect("a value");
            assert_eq!(value, Value::Bytes(bytes));
            assert_eq!(value.to_string(), printed);
        }
        for wrong in ["", "0", "2 GiB", "1 MB", "MiB", "-1", "1.5 MiB", "99999999999999999999 GiB"] {
            assert_eq!(text(kind, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn texts_by_name_are_read_and_printed() {
        let read = text(Kind::TextByName, "acme = a.example, 10.0.0.0/8; * = ;").expect("a value");
        assert_eq!(read.to_string(), "{ \"*\" = \"\", \"acme\" = \"a.example, 10.0.0.0/8\" }");
        for wrong in ["acme", "=a", "acme=a;b"] {
            assert_eq!(text(Kind::TextByName, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn dollars_are_read_exactly() {
        let read = ["0", "2.5", "0.0000166667", "1000000", "0.000000000001"].map(dollars);
        assert_eq!(read, [0, 2_500_000_000_000, 16_666_700, 1_000_000_000_000_000_000, 1].map(Some));
        for wrong in ["", ".", "-1", "1000000.1", "99999999", "NaN", "$1", "1,5"] {
            assert_eq!(dollars(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_of_the_day_are_read() {
        assert_eq!(times_of_day("08:00-09:30"), Some((480, 570)));
        assert_eq!(times_of_day("23:00 - 00:59"), Some((1_380, 59)));
        for wrong in [
            "",
            "8-9",
            "08:00-9:30",
            "08:00",
            "08:00-08:00",
            "24:00-01:00",
            "08:60-09:00",
            "08:00-09:00-10:00",
            "+8:00-09:30",
            "008:00-09:30",
        ] {
            assert_eq!(text(Kind::TimesOfDay, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn secrets_are_never_printed() {
        assert_eq!(Value::Secret("rose".into()).to_string(), "\"(hidden)\"");
        let url = |url: &str| Value::BrokerUrl(url.into()).to_string();
        assert_eq!(url("mqtt://kim:rose@host"), "\"mqtt://kim:(hidden)@host\"");
        assert_eq!(url("mqtt://kim:ro@se@host"), "\"mqtt://kim:(hidden)@host\"");
        assert_eq!(url("mqtt://host:1883"), "\"mqtt://host:1883\"");
    }

    #[test]
    fn misspelled_keys_find_their_neighbour() {
        assert_eq!(nearest("http.adress"), Some("http.address"));
        assert_eq!(nearest("datadir"), Some("data_dir"));
        assert_eq!(nearest("rows_max"), Some("inbox.rows_max"));
        assert_eq!(nearest("kitchen.sink.colour"), None);
    }
}
