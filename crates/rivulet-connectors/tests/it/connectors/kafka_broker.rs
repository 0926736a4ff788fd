//! A real broker for tests: Apache Kafka, started from its published jars, which can be killed and started again.

use std::fs;
use std::io::{Write, stderr};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rivulet_testing_ports::free_port;

/// How long the broker may take to start.
const START_MAX: Duration = Duration::from_secs(120);

/// A broker on free ports with a folder of its own. It ends with the program.
pub(crate) struct Broker {
    pub(crate) address: String,
    jars: PathBuf,
    properties: PathBuf,
    process: Child,
    _folder: tempfile::TempDir,
}

/// Where `cargo xtask test` puts the jars; it marks them when all are there.
fn jars() -> Option<PathBuf> {
    let folder = match std::env::var_os("RIVULET_KAFKA_JARS") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cache/rivulet-kafka-4.3.1"),
    };
    folder.join("complete").is_file().then_some(folder)
}

fn java(jars: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx400m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
    command.arg(jars.join("*")).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The user of a broker that asks for one.
pub(crate) const USER: &str = "kim";
pub(crate) const PASSWORD: &str = "rose-garden";

impl Broker {
    /// A broker, or a word that there is none and the test is skipped. Where everything is tested there has to be one.
    pub(crate) fn start_or_skip() -> Option<Self> {
        Self::start_with_or_skip("", "", &[])
    }

    /// One that also listens with TLS, at the address that is returned, and asks for [`USER`] there. `identity` is a
    /// file with its key and its certificate.
    pub(crate) fn start_secure_or_skip(identity: &Path) -> Option<(Self, String)> {
        let address = format!("127.0.0.1:{}", free_port());
        let listener = "listener.name.sasl_ssl";
        let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
        let plain = "org.apache.kafka.common.security.plain.PlainLoginModule required";
        let lines = format!(
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL\n\
             sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN\n\
             {listener}.scram-sha-256.sasl.jaas.config={scram}\n{listener}.scram-sha-512.sasl.jaas.config={scram}\n\
             {listener}.plain.sasl.jaas.config={plain} user_{USER}=\"{PASSWORD}\";\n\
             {listener}.ssl.keystore.type=PEM\n{listener}.ssl.keystore.location={}\n",
            identity.display()
        );
        let users = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
            .map(|mechanism| format!("{mechanism}=[name={USER},password={PASSWORD}]"));
        let broker = Self::start_with_or_skip(&format!(",SASL_SSL://{address}"), &lines, &users)?;
        Some((broker, address))
    }

    fn start_with_or_skip(listeners: &str, lines: &str, users: &[String]) -> Option<Self> {
        let jars = jars();
        if jars.is_none() {
            const MISSING: &str = "the jars of Kafka are not there; `cargo xtask test` fetches them where Maven is";
            assert!(std::env::var_os("CI").is_none(), "{MISSING}");
            _ = writeln!(stderr(), "skipped: {MISSING}");
        }
        jars.as_deref().map(|jars| Self::start(jars, listeners, lines, users))
    }

    fn start(jars: &Path, listeners: &str, lines: &str, users: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, controller) = (free_port(), free_port());
        let properties = folder.path().join("server.properties");
        let logs = folder.path().join("logs");
        // A broker that was killed may register again when its session has ended, after nine seconds by default.
        fs::write(
            &properties,
            format!(
                "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
                 listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}\n\
                 controller.listener.names=CONTROLLER\nlog.dirs={}\nnum.partitions=3\n\
                 offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
                 transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
                 transaction.state.log.num.partitions=1\n\
                 group.initial.rebalance.delay.ms=0\nmessage.max.bytes=1000000\n\
                 broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=200\n{lines}",
                logs.display()
            ),
        )
        .unwrap();
        let path = properties.to_str().unwrap();
        let mut format = vec!["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", path];
        users.iter().for_each(|user| format.extend(["--add-scram", user]));
        let formatted = java(jars, &format).status().expect("java is there");
        assert!(formatted.success(), "the broker's folder is formatted: {formatted}");
        let (address, process) = (format!("127.0.0.1:{port}"), run(jars, &properties));
        let broker = Self { address, jars: jars.to_owned(), properties, process, _folder: folder };
        broker.wait();
        broker
    }

    fn wait(&self) {
        let deadline = Instant::now() + START_MAX;
        while TcpStream::connect(&self.address).is_err() {
            assert!(Instant::now() < deadline, "the broker does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it where it was.
    pub(crate) fn start_again(&mut self) {
        self.process = run(&self.jars, &self.properties);
        self.wait();
    }
}

fn run(jars: &Path, properties: &Path) -> Child {
    java(jars, &["kafka.Kafka", properties.to_str().unwrap()]).spawn().expect("java is there")
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
