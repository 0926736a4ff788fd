//! HTTPS, MQTT over TLS, client certificates, and certificates that change while the server runs.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use rivulet::engine::{Engine, Extensions};
use rivulet::http_client::{Client, ClientError};
use rivulet::service::{Access, Action, Authorizer, Caller, Credentials, Refused, Resource, Service};
use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::mqtt::{self, ClientOptions, Router};
use rivulet_connectors::tls::{ClientCertificates, ClientTls, Fault, NameKind, ServerTls};
use serde_json::Value;
use tempfile::TempDir;

use super::authority::{Authority, Identity};
use super::engine::{configuration, open};
use super::server::{Server, free_port, rivulet, said, wait};
use super::support::{AsOperator, MemoryService, TestServer, WAIT_MAX, exchange, request};

fn text(path: &Path) -> String {
    path.to_str().expect("a path").to_owned()
}

/// A server whose API has this certificate, and which may have more settings.
fn serve(folder: &Path, identity: &Identity, settings: &[(&str, String)]) -> Server {
    let mqtt = free_port();
    let mut all = vec![
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_HTTP_TLS_CERTIFICATE_FILE", text(&identity.0)),
        ("RIVULET_HTTP_TLS_KEY_FILE", text(&identity.1)),
    ];
    all.extend_from_slice(settings);
    Server::spawn(folder, mqtt, &all)
}

/// A command that asks the server for its status, at this address.
fn status(scheme: &str, server: &Server, options: &[&str]) -> Command {
    let mut command = rivulet();
    let url = format!("{scheme}://localhost:{}", server.http.port());
    command.args(["status", "--json", "--server", &url]).args(options);
    command
}

/// What this command says when it fails.
fn refusal(mut command: Command) -> String {
    let output = command.output().expect("the command");
    assert!(!output.status.success(), "{}", said(&output));
    said(&output)
}

fn wait_until_trusted(server: &Server, authority: &Authority) {
    wait("the server to be ready", || {
        status("https", server, &["--ca", &text(&authority.file)]).output().is_ok_and(|output| output.status.success())
    });
}

#[test]
fn commands_trust_the_authority_they_are_told_and_say_what_is_wrong_otherwise() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let identity = authority.server("api");
    let server = serve(folder.path(), &identity, &[]);
    wait_until_trusted(&server, &authority);
    let ready = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(ready.contains(" is ready at https://127.0.0.1"), "{ready}");
    let mut by_variable = status("https", &server, &[]);
    assert!(by_variable.env("RIVULET_CA", &authority.file).output().unwrap().status.success());
    // By way of the other client, which sends and receives at the same time.
    let mut bulk = rivulet();
    let empty = text(&folder.path().join("empty.ndjson"));
    fs::write(&empty, "").unwrap();
    let url = format!("https://localhost:{}", server.http.port());
    bulk.args(["query", "bulk", &empty, "--server", &url, "--ca", &text(&authority.file)]);
    let output = bulk.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));

    let said = refusal(status("https", &server, &[]));
    assert!(said.contains("signed by an authority that is not trusted") && said.contains("--ca"), "{said}");
    let said = refusal(status("http", &server, &[]));
    assert!(said.contains("this port speaks HTTPS") && said.contains("write https://"), "{said}");
    let missing = text(&folder.path().join("none.pem"));
    let said = refusal(status("https", &server, &["--ca", &missing]));
    assert!(said.contains("none.pem") && said.contains("-----BEGIN"), "{said}");
    let said = refusal(status("https", &server, &["--cert", &missing]));
    assert!(said.contains("only one of --cert and --key"), "{said}");

    // New certificates count for the connections that come after them.
    let ca = text(&authority.file);
    for (expected, other) in [
        ("the server's certificate is for another name", authority.other_server("other")),
        ("the server's certificate has expired", authority.expired_server("expired")),
    ] {
        fs::copy(&other.0, &identity.0).unwrap();
        fs::copy(&other.1, &identity.1).unwrap();
        wait(expected, || {
            let output = status("https", &server, &["--ca", &ca]).output().unwrap();
            !output.status.success() && super::server::said(&output).contains(expected)
        });
    }
}

#[test]
fn a_server_without_tls_is_told_from_one_with_it() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    let said = refusal(status("https", &server, &[]));
    assert!(said.contains("the server does not speak TLS on this port"), "{said}");
}

#[test]
fn certificates_are_read_again_when_they_change_and_broken_ones_are_not_used() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (Authority::new(folder.path(), "first"), Authority::new(folder.path(), "second"));
    let (api, broker) = (first.server("api"), first.server("broker"));
    let server = serve(
        folder.path(),
        &api,
        &[
            ("RIVULET_MQTT_EMBEDDED_TLS_CERTIFICATE_FILE", text(&broker.0)),
            ("RIVULET_MQTT_EMBEDDED_TLS_KEY_FILE", text(&broker.1)),
        ],
    );
    wait_until_trusted(&server, &first);
    let url = format!("https://localhost:{}", server.http.port());
    let client = |authority: &Authority| {
        let tls = ClientTls { ca_file: Some(authority.file.clone()), identity: None };
        Client::with(&url, None, &tls).expect("an address")
    };
    let open = client(&first);
    let _: Value = open.get("/api/v1/status", &[]).expect("the status");
    let log = || fs::read_to_string(folder.path().join("log")).unwrap();

    fs::write(&api.0, "-----BEGIN nothing").unwrap();
    fs::write(&broker.1, "no key").unwrap();
    for listener in ["the REST API", "the embedded broker"] {
        wait("both to say so", || log().contains(&format!("the certificates of {listener} stay as they were")));
    }
    let metrics = scrape(&url, &first);
    assert!(metrics.contains("\nrivulet_tls_files_refused_total 2\n"), "{metrics}");
    assert!(reaches_broker(&server, &first), "the earlier certificate is in force");

    let (other_api, other_broker) = (second.server("other_api"), second.server("other_broker"));
    for (from, to) in [(&other_api, &api), (&other_broker, &broker)] {
        fs::copy(&from.0, &to.0).unwrap();
        fs::copy(&from.1, &to.1).unwrap();
    }
    wait("the API to have its new certificate", || client(&second).get::<Value>("/api/v1/status", &[]).is_ok());
    wait("the broker to have its new certificate", || reaches_broker(&server, &second));
    let refused = client(&first).get::<Value>("/api/v1/status", &[]).unwrap_err();
    assert!(matches!(refused, ClientError::Tls { fault: Fault::UnknownIssuer, .. }), "{refused}");
    let _: Value = open.get("/api/v1/status", &[]).expect("a connection of before stays");
    assert!(!reaches_broker(&server, &first));
}

/// The metrics of a server.
fn scrape(url: &str, authority: &Authority) -> String {
    let tls = ClientTls { ca_file: Some(authority.file.clone()), identity: None };
    let config = ureq::Agent::config_builder().tls_config(tls.for_requests().unwrap()).build();
    config.new_agent().get(format!("{url}/metrics")).call().unwrap().body_mut().read_to_string().unwrap()
}

/// Whether the broker lets in a client that trusts only this authority.
fn reaches_broker(server: &Server, authority: &Authority) -> bool {
    let tls = ClientTls { ca_file: Some(authority.file.clone()), identity: None };
    connect_to_broker(server.mqtt.port(), tls).is_ok()
}

/// Connects an MQTT client over TLS; the error says why it could not.
fn connect_to_broker(port: u16, tls: ClientTls) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut options = ClientOptions::new(format!("mqtts://localhost:{port}").parse().unwrap());
        options.tls = tls;
        let client = mqtt::Client::start(options, Arc::new(Router::new()), Arc::new(SystemClock)).unwrap();
        let deadline = tokio::time::Instant::now() + WAIT_MAX;
        loop {
            let status = client.status();
            match (status.connected, status.last_error) {
                (true, _) => return Ok(()),
                (false, Some(error)) => return Err(error),
                (false, None) => {
                    assert!(tokio::time::Instant::now() < deadline, "the client is neither in nor refused")
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
}

#[test]
fn browsers_are_told_to_stay_with_https_but_not_at_localhost() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let (certificate, key) = authority.server("api");
    let settings = [("http.tls.certificate_file", text(&certificate)), ("http.tls.key_file", text(&key))];
    let settings = settings.each_ref().map(|(key, value)| (*key, value.as_str()));
    let secure = TestServer::start_with(Arc::new(MemoryService::default()), &settings);
    let plain = TestServer::start(Arc::new(MemoryService::default()));
    let tls = ClientTls { ca_file: Some(authority.file.clone()), identity: None };
    let config = ureq::Agent::config_builder().tls_config(tls.for_requests().unwrap()).build();
    let agent = config.new_agent();
    let header = |url: String| {
        let answer = agent.get(url).call().expect("an answer");
        answer.headers().get("strict-transport-security").map(|value| value.to_str().unwrap().to_owned())
    };
    let port = secure.address.port();
    assert_eq!(header(format!("https://127.0.0.1:{port}/health/live")).as_deref(), Some("max-age=31536000"));
    assert_eq!(header(format!("https://localhost:{port}/health/live")), None);
    assert_eq!(header(format!("http://{}/health/live", plain.address)), None);
    // A client that takes the port for one of plain HTTP.
    let (status, answer) = exchange(secure.address, &request("GET", "/health/live", "authorization: Bearer x\r\n", ""));
    assert_eq!(status, 400);
    assert!(answer.contains("this port speaks HTTPS"), "{answer}");
}

#[test]
fn a_handshake_that_takes_too_long_ends() {
    let folder = TempDir::new().unwrap();
    let (certificate, key) = Authority::new(folder.path(), "authority").server("api");
    let settings = [("http.tls.certificate_file", text(&certificate)), ("http.tls.key_file", text(&key))];
    let mut settings: Vec<_> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    settings.push(("http.head_timeout_s", "1"));
    let server = TestServer::start_with(Arc::new(MemoryService::default()), &settings);
    for begin in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00"] {
        let mut connection = TcpStream::connect(server.address).unwrap();
        connection.set_read_timeout(Some(WAIT_MAX)).unwrap();
        connection.write_all(begin).unwrap();
        let ended = connection.read(&mut [0; 16]);
        let is_closed = match &ended {
            Ok(count) => *count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(is_closed, "{begin:?}: {ended:?}");
    }
}

/// Lets in clients by their certificate, and notes what each has shown.
#[derive(Default)]
struct ByCertificate(Mutex<Vec<Option<String>>>);

impl Authorizer for ByCertificate {
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        self.0.lock().unwrap().push(credentials.certificate.map(str::to_owned));
        credentials.certificate.map(|name| Caller::new("default", name)).ok_or_else(Refused::default)
    }

    fn may_everything(&self, _: &Caller) -> bool {
        true
    }

    fn may(&self, _: &Caller, _: Action, _: Resource<'_>) -> Result<(), Refused> {
        Ok(())
    }
}

#[test]
fn the_name_in_a_client_certificate_tells_who_calls_over_http_and_mqtt() {
    let folder = TempDir::new().unwrap();
    let (own, foreign) = (Authority::new(folder.path(), "own"), Authority::new(folder.path(), "foreign"));
    let (certificate, key) = own.server("server");
    let (kim, eve) = (own.client("kim"), foreign.client("eve"));
    for (required, word) in [(true, "required"), (false, "optional")] {
        let authorizer = Arc::new(ByCertificate::default());
        let extensions =
            Extensions { access: Some(Arc::new(Access::new(authorizer.clone()))), ..Extensions::default() };
        let mut config = configuration(folder.path());
        config.data_dir = folder.path().join(word);
        let clients = ClientCertificates { ca_file: own.file.clone(), required, name: NameKind::Uri };
        let tls = ServerTls { clients: Some(clients), ..ServerTls::new(&certificate, &key) };
        config.embedded.as_mut().expect("a broker").tls = Some(tls);
        let engine = Engine::open_with(config, extensions).expect("an engine");
        let mqtt = engine.embedded_broker_address().expect("a broker").port();
        let service: Arc<dyn Service> = engine;
        let [certificate, key, authorities] = [&certificate, &key, &own.file].map(|path| text(path));
        let server = TestServer::start_with(
            service,
            &[
                ("http.tls.certificate_file", &certificate),
                ("http.tls.key_file", &key),
                ("http.tls.client_ca_file", &authorities),
                ("http.tls.client_certificates", word),
                ("http.tls.client_name", "cn"),
            ],
        );
        let url = format!("https://localhost:{}", server.address.port());
        let with = |identity: Option<&(PathBuf, PathBuf)>| ClientTls {
            ca_file: Some(own.file.clone()),
            identity: identity.cloned(),
        };
        let ask = |identity: Option<&(PathBuf, PathBuf)>| {
            Client::with(&url, None, &with(identity)).unwrap().get::<Value>("/api/v1/status", &[])
        };
        let shown = || std::mem::take(&mut *authorizer.0.lock().unwrap());

        ask(Some(&kim)).expect("a known client");
        assert_eq!(shown(), [Some("kim".to_owned())]);
        connect_to_broker(mqtt, with(Some(&kim))).expect("a known client");
        assert_eq!(shown(), [Some("urn:kim".to_owned())]);

        let refused = ask(Some(&eve)).expect_err("a client of another authority");
        assert!(matches!(refused, ClientError::Tls { fault: Fault::CertificateRefused, .. }), "{refused:?}");
        assert!(connect_to_broker(mqtt, with(Some(&eve))).is_err());
        assert_eq!(shown(), []);

        let refused = ask(None).expect_err("a client without a certificate");
        let broker_refused = connect_to_broker(mqtt, with(None)).expect_err("a client without a certificate");
        if required {
            assert!(matches!(refused, ClientError::Tls { fault: Fault::CertificateRequired, .. }), "{refused:?}");
            assert!(broker_refused.contains("the server asks for a client certificate"), "{broker_refused}");
            assert_eq!(shown(), []);
        } else {
            // They come as far as the authorizer.
            assert!(matches!(refused, ClientError::Refused(_)), "{refused:?}");
            assert_eq!(shown(), [None, None]);
        }
    }
}

#[test]
fn a_certificate_with_the_name_of_a_user_logs_in_as_that_user() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let (certificate, key) = authority.server("server");
    let engine = open(folder.path());
    let run = |statement: &str| engine.operator().execute(statement).pop().expect("an answer").expect(statement);
    ["CREATE USER kim", "GRANT read ON TABLE TO kim", "CREATE USER admin ADMIN"]
        .into_iter()
        .for_each(|one| drop(run(one)));
    // From now on every door asks for a login.
    let token = run("CREATE TOKEN FOR admin").rows[0][0].as_str().expect("a token").to_owned();
    let settings = [
        ("http.tls.certificate_file", text(&certificate)),
        ("http.tls.key_file", text(&key)),
        ("http.tls.client_ca_file", text(&authority.file)),
    ];
    let settings = settings.each_ref().map(|(key, value)| (*key, value.as_str()));
    let server = TestServer::start_with(engine.clone(), &settings);
    let url = format!("https://localhost:{}", server.address.port());
    let client = |name: &str, token: Option<&str>| {
        let tls = ClientTls { ca_file: Some(authority.file.clone()), identity: Some(authority.client(name)) };
        Client::with(&url, token, &tls).expect("an address")
    };
    let kind = |error: ClientError| match error {
        ClientError::Refused(error) => error.kind,
        other => panic!("{other}"),
    };
    let kim = client("kim", None);
    kim.get::<Value>("/api/v1/tables", &[]).expect("what the user may");
    assert_eq!(kind(kim.get::<Value>("/api/v1/users", &[]).unwrap_err()), "forbidden");
    for stranger in [client("nobody", None), client("acme_kim", None), client("kim", Some("of-nobody"))] {
        assert_eq!(kind(stranger.get::<Value>("/api/v1/tables", &[]).unwrap_err()), "unauthenticated");
    }
    client("kim", Some(&token)).run_script("DROP USER kim").expect("a token goes before a certificate");
    assert_eq!(kind(kim.get::<Value>("/api/v1/tables", &[]).unwrap_err()), "unauthenticated");
}
