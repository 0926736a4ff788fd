//! Tests of reading, overriding and checking the configuration.

use std::fs;

use rivulet_runtime::Policy;

use super::*;

struct Fixture {
    folder: tempfile::TempDir,
    sources: Sources,
}

impl Fixture {
    fn new(file: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("rivulet.toml");
        fs::write(&path, file).expect("a file");
        Self { folder, sources: Sources { file: Some(path), ..Sources::default() } }
    }

    fn environment(mut self, name: &str, value: &str) -> Self {
        self.sources.environment.push((name.into(), value.into()));
        self
    }

    fn flag(mut self, key: &str, value: &str) -> Self {
        self.sources.flags.push(FlagValue { key: key.into(), value: value.into(), flag: "--set".into() });
        self
    }

    fn load(&self) -> Result<Loaded, ConfigError> {
        load(&self.sources)
    }

    /// The error's text with the temporary folder cut out, and its hint.
    fn error(&self) -> (String, String) {
        let error = self.load().expect_err("a configuration with a mistake");
        (error.to_string().replace(&format!("{}/", self.folder.path().display()), ""), error.hint())
    }
}

fn setting<'a>(loaded: &'a Loaded, key: &str) -> &'a Setting {
    loaded.settings.iter().find(|setting| setting.key == key).expect("a known key")
}

#[test]
fn nothing_configured_is_the_embedded_broker() {
    let loaded = Fixture::new("").load().expect("the defaults");
    let config = &loaded.config;
    assert_eq!(config.data_dir, Path::new("rivulet-data"));
    assert_eq!(config.http_address.to_string(), "127.0.0.1:8080");
    let embedded = config.embedded.as_ref().expect("the embedded broker");
    assert_eq!(embedded.address.to_string(), "127.0.0.1:1883");
    assert_eq!((&embedded.credentials, &embedded.tls, embedded.limits.connections_max), (&None, &None, 10_000));
    assert_eq!((embedded.limits.memory_bytes_max, embedded.limits.address_share_percent), (1 << 30, 50));
    assert_eq!(config.broker, None);
    assert!(config.workers.threads >= 1);
    assert_eq!((config.inbox_rows_max, config.inbox_bytes_max), (65536, 16 << 20));
    assert!(loaded.settings.iter().all(|setting| setting.origin == Origin::Default));
    assert_eq!(loaded.settings.len(), KEYS.len());
    assert_eq!(loaded.warnings, [""; 0]);
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let fixture = Fixture::new("workers = 3\n\n[http]\naddress = \"127.0.0.1:1\"\n[inbox]\nbytes_max = \"1 MiB\"\n")
        .environment("RIVULET_HTTP_ADDRESS", "127.0.0.1:2")
        .environment("RIVULET_INBOX__ROWS_MAX", "7")
        .environment("PATH", "/bin")
        .flag("http.address", "localhost:3");
    let loaded = fixture.load().expect("a configuration");
    assert_eq!(loaded.config.http_address.to_string(), "127.0.0.1:3");
    assert_eq!(setting(&loaded, "http.address").origin, Origin::Flag("--set".into()));
    assert_eq!(loaded.config.inbox_rows_max, 7);
    assert_eq!(setting(&loaded, "inbox.rows_max").origin.to_string(), "RIVULET_INBOX__ROWS_MAX");
    assert_eq!(loaded.config.inbox_bytes_max, 1 << 20);
    assert!(setting(&loaded, "inbox.bytes_max").origin.to_string().ends_with("rivulet.toml:6:1"));
    assert_eq!(loaded.config.workers.threads, 3);
    assert!(setting(&loaded, "workers").origin.to_string().ends_with("rivulet.toml:1:1"));
}

#[test]
fn an_external_broker_takes_the_place_of_the_embedded_one() {
    let fixture =
        Fixture::new("mqtt.broker.url = \"mqtts://example.org\"\nmqtt.broker.version = \"3.1.1\"\nmqtt.broker.qos = 0");
    let loaded = fixture.load().expect("a configuration");
    assert_eq!(loaded.config.embedded, None);
    let broker = loaded.config.broker.expect("the broker");
    assert_eq!(
        (broker.host.as_str(), broker.port, broker.tls.is_some(), broker.version_5, broker.qos),
        ("example.org", 8883, true, false, 0)
    );

    let both = Fixture::new("[mqtt]\nbroker.url = \"mqtt://h\"\nembedded.enabled = true").load().expect("both brokers");
    assert!(both.config.embedded.is_some() && both.config.broker.is_some());
    let (message, hint) = Fixture::new("mqtt.embedded.enabled = false").error();
    assert!(message.contains("no MQTT broker"), "{message}");
    assert!(hint.contains("mqtt.broker.url"), "{hint}");
}

#[test]
fn a_burst_policy_that_cannot_work_is_refused() {
    for (file, message, hint) in [
        (
            "burst.in_below_percent = 80\nburst.out_above_percent = 80",
            "burst.in_below_percent is 80, and burst.out_above_percent is 80",
            "tasks would go and come for ever: set the first below the second",
        ),
        (
            "burst.policy = \"auto\"",
            "burst.policy or burst.schedule moves tasks, and link.address is not set",
            "set link.address, which burst workers dial, or leave both as they are",
        ),
        (
            "burst.schedule = \"08:00-09:30\"",
            "burst.policy or burst.schedule moves tasks, and link.address is not set",
            "set link.address, which burst workers dial, or leave both as they are",
        ),
    ] {
        assert_eq!(Fixture::new(file).error(), (message.to_owned(), hint.to_owned()), "{file}");
    }
    let burst = |file: &str| Fixture::new(file).load().expect("a configuration").config.burst.policy;
    assert!(!burst("").decides());
    let auto = burst("link.address = \"127.0.0.1:0\"\nburst.policy = \"auto\"\nburst.slack_s = 3");
    assert!(auto.decides() && auto.is_automatic && auto.schedule.is_none());
    assert_eq!((auto.out_above_percent, auto.in_below_percent, auto.slack_us), (80, 50, 3_000_000));
    let scheduled = burst("link.address = \"127.0.0.1:0\"\nburst.schedule = \"08:00-09:30\"");
    assert!(scheduled.decides() && !scheduled.is_automatic && scheduled.schedule == Some((480, 570)));
}

#[test]
fn mistakes_are_named_with_their_place() {
    for (file, message, hint) in [
        ("\nhttp.adress = \"x\"", "rivulet.toml:2:6: there is no key http.adress", "did you mean http.address?"),
        ("[htp]\naddress = 1", "rivulet.toml:1:2: there is no key htp", "`rivulet config --keys` lists every key"),
        ("address = 1", "rivulet.toml:1:1: there is no key address", "did you mean http.address?"),
        (
            "[http]\naddress = 8080",
            "rivulet.toml:2:1: http.address is 8080, expected an address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"",
            "`rivulet config --keys` lists every key",
        ),
        (
            "workers = \"2\"",
            "rivulet.toml:1:1: workers is \"2\", expected a whole number from 1 to 1024",
            "`rivulet config --keys` lists every key",
        ),
        (
            "sink.retain = \"yes\"",
            "rivulet.toml:1:6: sink.retain is \"yes\", expected true or false",
            "`rivulet config --keys` lists every key",
        ),
        (
            "log = { level = \"loud\" }",
            "rivulet.toml:1:9: log.level is \"loud\", expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
            "`rivulet config --keys` lists every key",
        ),
        (
            "[workers]\ncount = 2",
            "rivulet.toml:1:2: workers is of type table, expected a whole number from 1 to 1024",
            "`rivulet config --keys` lists every key",
        ),
    ] {
        assert_eq!(Fixture::new(file).error(), (message.to_owned(), hint.to_owned()), "{file}");
    }
    let (message, _) = Fixture::new("workers = 2\nhttp = = 3").error();
    assert!(message.starts_with("rivulet.toml:2:8: "), "{message}");
    let (message, _) = Fixture::new("").environment("RIVULET_WORKERS", "many").error();
    assert_eq!(message, "RIVULET_WORKERS: workers is \"many\", expected a whole number from 1 to 1024");
    for (value, found) in [("\"quarter\"", "\"quarter\""), ("0", "0"), ("true", "true")] {
        let (message, _) = Fixture::new(&format!("scheduler.consume = {value}")).error();
        let expected = format!("scheduler.consume is {found}, expected all, half, or a number of events from 1 on");
        assert!(message.ends_with(&expected), "{message}");
    }
    let policies = Policy::ALL.map(|policy| format!("\"{}\"", policy.name)).join(", ");
    for fixture in [
        Fixture::new("[mqtt]\nbroker.url = \"mqtt://h\"\nbroker.connections = \"per-query\""),
        Fixture::new("[scheduler]\nshare_code = false"),
        Fixture::new("scheduler.policy = \"pool\""),
        Fixture::new("scheduler.policy = \"least-latency\""),
        Fixture::new("").environment("RIVULET_SCHEDULER__TASK_QUERIES_MAX", "1"),
        Fixture::new("").environment("RIVULET_SCHEDULER_POLICY", "dedicated"),
        Fixture::new("").flag("scheduler.batch_rows_max", "0"),
    ] {
        let (message, hint) = fixture.error();
        assert!(message.contains("any more") || message.ends_with(&policies), "{message}");
        assert!(hint.starts_with("remove it: `rivulet bench many --model`"), "{message}: {hint}");
    }
    let (message, hint) = Fixture::new("").flag("worker", "2").error();
    assert_eq!((message.as_str(), hint.as_str()), ("--set: there is no key worker", "did you mean workers?"));
}

#[test]
fn how_much_a_task_takes_is_a_word_or_a_number() {
    use rivulet_runtime::Consume;
    let consume = |fixture: Fixture| fixture.load().expect("a configuration").config.workers.consume;
    assert_eq!(consume(Fixture::new("")), Consume::All);
    assert_eq!(consume(Fixture::new("scheduler.consume = \"half\"")), Consume::Half);
    let fifty = Consume::AtMost(50.try_into().expect("not zero"));
    assert_eq!(consume(Fixture::new("scheduler.consume = 50")), fifty);
    assert_eq!(consume(Fixture::new("scheduler.consume = \"50\"")), fifty);
    assert_eq!(consume(Fixture::new("").environment("RIVULET_SCHEDULER_CONSUME", "50")), fifty);
}

#[test]
fn a_named_file_must_exist() {
    let mut fixture = Fixture::new("");
    fixture.sources.file = Some(fixture.folder.path().join("other.toml"));
    let (message, hint) = fixture.error();
    assert!(message.starts_with("cannot read the configuration file other.toml"), "{message}");
    assert!(hint.contains("--config"));
}

#[test]
fn unknown_variables_are_warnings_and_double_ones_errors() {
    let fixture = Fixture::new("").environment("RIVULET_PORT_8080_TCP", "x").environment("RIVULET_SERVER", "http://h");
    let warnings = fixture.load().expect("a configuration").warnings;
    assert_eq!(warnings, ["the environment variable RIVULET_PORT_8080_TCP is no configuration key and is not used"]);
    let fixture = Fixture::new("").environment("RIVULET_LOG_LEVEL", "warn").environment("RIVULET_LOG__LEVEL", "info");
    assert_eq!(fixture.error().0, "RIVULET_LOG_LEVEL and RIVULET_LOG__LEVEL both set log.level");
}

#[test]
fn passwords_come_from_a_file_the_url_or_a_value_and_are_never_shown() {
    let fixture = Fixture::new("mqtt.broker.url = \"mqtt://h\"\nmqtt.broker.username = \"kim\"");
    let path = fixture.folder.path().join("password");
    fs::write(&path, "rose\n").expect("a file");
    let fixture = fixture.environment("RIVULET_MQTT_BROKER_PASSWORD_FILE", path.to_str().expect("a path in Unicode"));
    let loaded = fixture.load().expect("a configuration");
    assert_eq!(
        loaded.config.broker.as_ref().and_then(|broker| broker.password.as_ref()).map(Secret::reveal),
        Some("rose")
    );
    assert!(!format!("{loaded:?}").contains("rose"));

    let in_url = Fixture::new("mqtt.broker.url = \"mqtt://kim:rose@[::1]:99\"").load().expect("a configuration");
    assert!(!format!("{in_url:?}").contains("rose"));
    let broker = in_url.config.broker.as_ref().expect("the broker");
    assert_eq!((broker.host.as_str(), broker.port, broker.username.as_deref()), ("::1", 99, Some("kim")));
    assert_eq!(broker.password.as_ref().map(Secret::reveal), Some("rose"));
    let shown: Vec<String> =
        in_url.settings.iter().filter_map(|setting| Some(setting.value.as_ref()?.to_string())).collect();
    assert!(!shown.join(" ").contains("rose"), "{shown:?}");

    let (message, _) = Fixture::new("mqtt.broker.url = \"http://kim:rose@h\"").error();
    assert!(message.contains("expected a URL such as") && !message.contains("rose"), "{message}");
    let (message, _) = Fixture::new("mqtt.embedded.username = \"kim\"").error();
    assert!(message.starts_with("only one of mqtt.embedded.username and"), "{message}");
    let (message, _) = fixture.environment("RIVULET_MQTT_BROKER_PASSWORD", "x").error();
    assert_eq!(message, "mqtt.broker.password and mqtt.broker.password_file are both set");
}

#[test]
fn values_that_do_not_go_together() {
    let (message, _) = Fixture::new("[mqtt.embedded.tls]\nkey_file = \"k\"").error();
    assert!(message.contains("mqtt.embedded.tls.certificate_file"), "{message}");
    let (message, _) = Fixture::new("[http.tls]\nclient_ca_file = \"c\"").error();
    assert!(message.contains("http.tls.certificate_file"), "{message}");
    let (message, hint) = Fixture::new("mqtt.broker = { url = \"mqtt://h\", ca_file = \"c\" }").error();
    assert!(message.contains("does not ask for TLS") && hint.contains("mqtts://"), "{message}");
    let (message, _) = Fixture::new("http.address = \"127.0.0.1:1883\"").error();
    assert!(message.contains("are both 127.0.0.1:1883"), "{message}");
    let (message, _) = Fixture::new("mqtt.embedded.websocket.address = \"127.0.0.1:1883\"").error();
    assert_eq!(message, "mqtt.embedded.address and mqtt.embedded.websocket.address are both 127.0.0.1:1883");
    let (message, _) = Fixture::new("mqtt.embedded.websocket.origins = \"https://a\"").error();
    assert!(message.starts_with("only one of mqtt.embedded.websocket.address and"), "{message}");
    let websocket = "mqtt.embedded.websocket = { address = \"127.0.0.1:0\", origins = \"https://a, b\" }";
    let (message, _) = Fixture::new(websocket).error();
    assert_eq!(message, "'b' in mqtt.embedded.websocket.origins is no origin of a web page");
    let loaded = Fixture::new("mqtt.broker.qos = 1").load().expect("a configuration");
    assert!(
        loaded.warnings[0].ends_with("mqtt.broker.qos has no effect, because that broker is not in use"),
        "{:?}",
        loaded.warnings
    );
}

#[test]
fn broker_urls() {
    for wrong in [
        "",
        "host",
        "http://h",
        "mqtt://",
        "mqtt://h:x",
        "mqtt://h:0",
        "mqtt://h:99999",
        "mqtt://h/path",
        "mqtt://[::1",
        "mqtt://[x]",
    ] {
        assert!(broker_url(wrong).is_none(), "{wrong}");
    }
    let url = broker_url("mqtt://host/").expect("a URL");
    assert_eq!((url.host.as_str(), url.port, url.tls), ("host", 1883, false));
}

#[test]
fn a_log_needs_checkpoints_to_be_cut_off_by() {
    let (message, hint) = Fixture::new("durability.default = \"log\"\ncheckpoint.enabled = false").error();
    assert!(message.contains("durability.default is log, and checkpoint.enabled is false"), "{message}");
    assert!(hint.contains("nothing more is received"), "{hint}");
    let loaded =
        Fixture::new("durability.default = \"log\"\ncheckpoint.interval_s = 0").load().expect("it can be meant");
    assert!(
        loaded.warnings.iter().any(|warning| warning.contains("until a checkpoint is asked for")),
        "{:?}",
        loaded.warnings
    );
    assert!(Fixture::new("durability.default = \"log\"").load().expect("the usual").warnings.is_empty());
}

/// A configuration with checkpoints in a bucket, as far as it is in the file.
fn bucket(file: &str) -> Fixture {
    Fixture::new(&format!("[checkpoint]\nfolder = \"s3://state/plant 7\"\n{file}"))
}

fn s3(loaded: &Loaded) -> &S3Settings {
    match &loaded.config.checkpoint.as_ref().expect("checkpoints").place {
        Place::S3(settings) => settings,
        Place::Folder(folder) => panic!("{}", folder.display()),
    }
}

fn key(id: &str, secret: &str, token: Option<&str>) -> Credentials {
    let session_token = token.map(str::to_owned);
    Credentials::Key { access_key_id: id.into(), secret_access_key: secret.into(), session_token }
}

#[test]
fn checkpoints_go_to_a_bucket_with_the_usual_variables() {
    let loaded = bucket("")
        .environment("AWS_ACCESS_KEY_ID", "kim")
        .environment("AWS_SECRET_ACCESS_KEY", "rose")
        .environment("AWS_SESSION_TOKEN", "tulip")
        .environment("AWS_DEFAULT_REGION", "eu-west-1")
        .load()
        .expect("a configuration");
    let settings = s3(&loaded);
    assert_eq!((settings.name.to_string().as_str(), settings.region.as_str()), ("s3://state/plant 7", "eu-west-1"));
    assert_eq!((&settings.endpoint, settings.allows_http), (&None, false));
    assert_eq!(settings.credentials, key("kim", "rose", Some("tulip")));
    assert_eq!(setting(&loaded, "checkpoint.s3.region").origin.to_string(), "AWS_DEFAULT_REGION");
    let shown = format!("{loaded:?}");
    assert!(!shown.contains("rose") && !shown.contains("tulip"), "{shown}");
    // Who has other checkpoints has nothing to do with these variables.
    let loaded = Fixture::new("").environment("AWS_ACCESS_KEY_ID", "kim").load().expect("a configuration");
    assert_eq!(setting(&loaded, "checkpoint.s3.access_key_id").value, None);
}

#[test]
fn what_is_set_of_a_bucket_wins_over_the_usual_variables() {
    let fixture = bucket(
        "s3.endpoint = \"http://minio:9000\"\ns3.allow_http = true\ns3.region = \"here\"\ns3.access_key_id = \"lee\"\ns3.timeout_s = 3\n",
    );
    let file = fixture.folder.path().join("secret");
    fs::write(&file, "lily\n").expect("a file");
    let loaded = fixture
        .environment("AWS_ENDPOINT_URL", "https://elsewhere")
        .environment("AWS_REGION", "eu-west-1")
        .environment("AWS_ACCESS_KEY_ID", "kim")
        .environment("AWS_SECRET_ACCESS_KEY", "rose")
        .environment("AWS_SESSION_TOKEN", "tulip")
        .flag("checkpoint.s3.secret_access_key_file", file.to_str().expect("a path"))
        .load()
        .expect("a configuration");
    let settings = s3(&loaded);
    assert_eq!((settings.endpoint.as_deref(), settings.region.as_str()), (Some("http://minio:9000"), "here"));
    assert_eq!(settings.credentials, key("lee", "lily", None));
    assert_eq!(settings.timeout, Duration::from_secs(3));
}

#[test]
fn a_bucket_is_asked_in_a_role_where_there_is_no_key() {
    let kubernetes = || {
        bucket("")
            .environment("AWS_ROLE_ARN", "arn:aws:iam::1:role/rivulet")
            .environment("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token")
    };
    let credentials = |fixture: Fixture| s3(&fixture.load().expect("a configuration")).credentials.clone();
    let web = |sts_endpoint: Option<&str>| Credentials::WebIdentity {
        role_arn: "arn:aws:iam::1:role/rivulet".into(),
        token_file: "/var/run/token".into(),
        sts_endpoint: sts_endpoint.map(str::to_owned),
    };
    assert_eq!(credentials(kubernetes()), web(None));
    assert_eq!(credentials(kubernetes().environment("AWS_ENDPOINT_URL_STS", "https://sts")), web(Some("https://sts")));
    let with_key = kubernetes().environment("AWS_ACCESS_KEY_ID", "kim").environment("AWS_SECRET_ACCESS_KEY", "rose");
    assert_eq!(credentials(with_key), key("kim", "rose", None));
    let task = bucket("").environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/1");
    assert_eq!(credentials(task), Credentials::Task { path: "/v2/credentials/1".into() });
    let url = "http://169.254.170.23/v1/credentials";
    let pod = bucket("")
        .environment("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
        .environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/var/run/token");
    assert_eq!(credentials(pod), Credentials::Pod { url: url.into(), token_file: "/var/run/token".into() });
    // What is set here wins over the environment of other programs.
    let machine = bucket("s3.instance_role = true\n").environment("AWS_ACCESS_KEY_ID", "kim");
    assert_eq!(credentials(machine), Credentials::Instance { endpoint: None });
    let (text, hint) = bucket("").environment("AWS_ROLE_ARN", "arn:aws:iam::1:role/rivulet").error();
    assert!(text.contains("no credentials") && hint.contains("checkpoint.s3.role_arn"), "{text}: {hint}");
    let (text, hint) = kubernetes().environment("AWS_ENDPOINT_URL_STS", "http://sts").error();
    assert!(text.contains("sts_endpoint http://sts is not encrypted") && hint.contains("allow_http"), "{text}: {hint}");
    let (text, _) = bucket("s3.instance_role = true\ns3.access_key_id = \"lee\"\n").error();
    assert!(text.contains("no credentials"), "half a key is not left aside: {text}");
}

#[test]
fn a_bucket_that_cannot_be_used_is_said() {
    let with_key = |file: &str| {
        bucket(file).environment("AWS_ACCESS_KEY_ID", "kim").environment("AWS_SECRET_ACCESS_KEY", "rose").error()
    };
    let (text, hint) = bucket("").error();
    assert!(text.contains("no credentials") && hint.contains("AWS_ACCESS_KEY_ID"), "{text}: {hint}");
    let (text, hint) = with_key("s3.endpoint = \"http://minio:9000\"\n");
    assert!(text.contains("not encrypted") && hint.contains("allow_http"), "{text}: {hint}");
    let (text, _) = with_key("s3.region = \"a/b\"\n");
    assert!(text.contains("no name of a region"), "{text}");
    let (text, hint) = Fixture::new("checkpoint.folder = \"s3://A\"\n").error();
    assert!(text.contains("no name of a bucket") && hint.contains("s3://bucket"), "{text}: {hint}");
    for (written, right) in [
        ("s3:/state/a", "write s3://state/a"),
        ("s3:state/a", "write s3://state/a"),
        ("S3://state", "write s3://state"),
        ("s3a://state/a", "write s3://state/a"),
        ("s3:/", "write s3://bucket"),
        ("file:///var/lib/a", "write the path itself: /var/lib/a"),
        ("gs://state", "for an object store that speaks S3"),
        ("https://minio:9000/state", "for an object store that speaks S3"),
    ] {
        let (text, hint) = Fixture::new(&format!("checkpoint.folder = \"{written}\"\n")).error();
        assert!(text.contains(written) && text.contains("neither a folder nor a bucket"), "{text}");
        assert!(hint.contains(right) && hint.contains(&format!("./{written}")), "{written}: {hint}");
    }
    for folder in ["C:/data", "./s3:/a", "/mnt/s3://a", "a:b", "~/checkpoints"] {
        assert!(Fixture::new(&format!("checkpoint.folder = \"{folder}\"\n")).load().is_ok(), "{folder}");
    }
    let loaded = Fixture::new("checkpoint.s3.region = \"here\"\n").load().expect("a configuration");
    assert!(loaded.warnings.iter().any(|warning| warning.contains("has no effect")), "{:?}", loaded.warnings);
}

#[test]
fn a_function_is_configured_with_the_usual_variables_and_what_does_not_fit_is_said() {
    let function = |file: &str| {
        Fixture::new(&format!("[link]\naddress = \"192.0.2.1:7117\"\n[burst]\ncost_max = 2.5\n{file}"))
            .environment("AWS_REGION", "eu-central-1")
            .environment("AWS_ACCESS_KEY_ID", "kim")
            .environment("AWS_SECRET_ACCESS_KEY", "rose")
    };
    let named = "[burst.lambda]\nfunction = \"f\"\n";
    let here = function(&format!("{named}endpoint = \"http://127.0.0.1:9001\"")).flag("link.address", "127.0.0.1:1");
    assert!(here.load().is_ok());
    let loaded = function(named).load().expect("a configuration");
    let lambda = loaded.config.burst.lambda.expect("a function");
    assert_eq!(
        (lambda.endpoint.as_str(), lambda.connect.0.as_str()),
        ("https://lambda.eu-central-1.amazonaws.com", "192.0.2.1:7117")
    );
    assert_eq!((lambda.key.0.as_str(), lambda.key.1.reveal(), lambda.cost_max), ("kim", "rose", 2_500_000_000_000));
    assert_eq!(function("").load().expect("a configuration").config.burst.lambda, None);
    for (fixture, message, hint) in [
        (function("[burst.lambda]\nfunction = \"a:b\""), "burst.lambda.function is a:b, which", "its name alone"),
        (
            function(&format!("{named}endpoint = \"127.0.0.1:9001\"")),
            "burst.lambda.endpoint is 127.0.0.1:9001",
            "https://",
        ),
        (function(&format!("{named}endpoint = \"http://192.0.2.1:9001\"")), "endpoint is http://192.0.2.1", "https://"),
        (
            function(&format!("{named}endpoint = \"https://server.example/x\"")),
            "endpoint is https://server",
            "https://",
        ),
        (function(&format!("{named}connect = \"server.example\"")), "connect is server.example, which", "HOST:PORT"),
        (function(&format!("{named}connect = \"http://server.example:1\"")), "connect is http://server.", "HOST:PORT"),
        (function(&format!("{named}limit_s = 20")), "burst.lambda.limit_s is 20, which", "burst.margin_s"),
        (function(named).flag("link.address", "127.0.0.1:1"), "link.address is 127.0.0.1:1", "burst.lambda.connect"),
        (
            function(named).flag("link.address", "0.0.0.0:1"),
            "0.0.0.0:1, which functions cannot use",
            "burst.lambda.connect",
        ),
        (function(&format!("{named}access_key_id = \"lee\"")), "there are no credentials for it", "AWS_ACCESS_KEY_ID"),
        (Fixture::new(named), "only one of burst.lambda.function and link.address is set", "set both"),
        (function(&format!("{named}price_gb_s = \"free\"")), "expected dollars such as 2.50", "--keys"),
    ] {
        let (said, told) = fixture.error();
        assert!(said.contains(message) && told.contains(hint), "{said}: {told}");
    }
}

#[test]
fn folders_of_files_are_a_list_and_the_files_of_the_server_are_never_among_them() {
    let allowed = |fixture: Fixture| fixture.load().expect("a configuration").config.files.allow;
    let folders = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(allowed(Fixture::new("")), folders(&[]));
    assert_eq!(allowed(Fixture::new("files.allow = \"/srv\"")), folders(&["/srv"]));
    assert_eq!(allowed(Fixture::new("files.allow = [\"/srv\", \"a b\"]")), folders(&["/srv", "a b"]));
    let both = Fixture::new("files.allow = [\"/srv\"]").environment("RIVULET_FILES_ALLOW", "/a:b");
    assert_eq!(allowed(both), folders(&["/a", "b"]));
    let loaded = Fixture::new("").flag("files.allow", "/a:b").load().expect("a configuration");
    assert_eq!(setting(&loaded, "files.allow").value.as_ref().expect("a value").to_string(), "[\"/a\",\"b\"]");
    for wrong in ["\"\"", "[]", "[\"a\", \"\"]", "[1]", "7", "true", "\"/a::b\""] {
        let (error, _) = Fixture::new(&format!("files.allow = {wrong}")).error();
        assert!(error.contains("files.allow") && error.contains("expected a list of paths"), "{wrong}: {error}");
    }
    let fixture = Fixture::new(
        "data_dir = \"/d\"\ncheckpoint.folder = \"/c\"\n[mqtt.embedded.tls]\ncertificate_file = \"/e\"\nkey_file = \"/k\"",
    );
    let kept = fixture.load().expect("a configuration").config.files.kept;
    let own = fixture.folder.path().join("rivulet.toml");
    for path in [Path::new("/d"), Path::new("/c"), Path::new("/e"), Path::new("/k"), &own] {
        assert!(kept.iter().any(|kept| kept == path), "{} in {kept:?}", path.display());
    }
}

#[test]
fn hosts_of_tenants_are_a_table() {
    let hosts = |loaded: &Loaded| loaded.config.reach_of_tenants.keys().cloned().collect::<Vec<_>>();
    let written = "[hosts]\nallow = \"10.0.0.1\"\n[hosts.tenants]\nacme = \"kafka.example\"\n\"*\" = \"\"\n";
    let loaded = Fixture::new(written).load().expect("a configuration");
    assert_eq!(hosts(&loaded), ["*", "acme"]);
    let shown = setting(&loaded, "hosts.tenants").value.as_ref().expect("a value").to_string();
    assert_eq!(shown, "{ \"*\" = \"\", \"acme\" = \"kafka.example\" }");
    let loaded = Fixture::new("").environment("RIVULET_HOSTS_TENANTS", "acme=a.example,10.0.0.0/8;other=*").load();
    assert_eq!(hosts(&loaded.expect("a configuration")), ["acme", "other"]);
    let (error, hint) = Fixture::new("[hosts.tenants]\nacme = \"a b\"\n").error();
    assert_eq!(error, "'a b' in hosts.tenants.acme is no host");
    assert!(hint.contains("networks"), "{hint}");
    let (error, _) = Fixture::new("[hosts]\ntenants = 1\n").error();
    assert!(error.contains("rivulet.toml:2:1: hosts.tenants is 1, expected texts by name"), "{error}");
}
