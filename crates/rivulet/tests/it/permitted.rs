//! What statements may reach: the hosts by where the server listens and whether it has accounts, and the files by
//! tenant.

use std::fs;
use std::sync::Arc;

use rivulet::config::{Config, FilesConfig};
use rivulet::engine::{Engine, Extensions};
use rivulet::service::{
    Access, Action, Authorizer, Caller, Credentials, ErrorKind, Refused, Resource, ServiceError, Session,
};
use rivulet_connectors::reach::{AllowedHosts, KEY_OF_LISTENERS, KEY_OF_TENANTS, Reach};
use tempfile::TempDir;

use super::engine::configuration;
use super::support::wait_until;

/// Knows one token, and lets nobody in without it.
struct OneToken;

impl Authorizer for OneToken {
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        match credentials.secret {
            Some(b"token") => Ok(Caller::local_operator()),
            _ => Err(Refused::default()),
        }
    }

    fn may_everything(&self, _caller: &Caller) -> bool {
        true
    }

    fn may(&self, _caller: &Caller, _action: Action, _resource: Resource<'_>) -> Result<(), Refused> {
        Ok(())
    }
}

fn with_accounts() -> Extensions {
    Extensions { access: Some(Arc::new(Access::new(Arc::new(OneToken)))), ..Extensions::default() }
}

fn execute(session: &Session<'_>, statement: &str) -> Result<(), ServiceError> {
    session.execute(statement).pop().expect("an answer").map(drop)
}

/// A statement for each way to a broker.
fn to_brokers(host: &str) -> [String; 5] {
    let application = "CREATE APPLICATION a (id TEXT) INPUT r (n BIGINT)";
    [
        format!("CREATE SOURCE one (n BIGINT) FROM 'kafka:{host}:9092/x' FORMAT JSON"),
        format!("CREATE SINK two TO 'kafka:{host}:9092/x' FORMAT JSON"),
        format!("CREATE SOURCE three (n BIGINT) FROM 'mqtt:x' FORMAT JSON WITH (broker => 'mqtt://{host}')"),
        format!("CREATE SINK four TO 'mqtt:x' FORMAT JSON WITH (broker => 'mqtts://{host}')"),
        format!(
            "{application} FROM 'mqtt:in/{{id}}' FORMAT JSON OUTPUT 'kafka:{host}:9092/x' FORMAT JSON AS SELECT n FROM r"
        ),
    ]
}

#[test]
fn brokers_of_this_machine_are_for_a_server_that_only_this_machine_reaches() {
    let all_addresses = "0.0.0.0:8080".parse().unwrap();
    for (name, address, extensions, tenant, is_allowed) in [
        ("the default", None, Extensions::default(), "default", true),
        ("on a network", Some(all_addresses), with_accounts(), "default", false),
        ("with accounts", None, with_accounts(), "default", false),
        ("another tenant", None, Extensions::default(), "acme", false),
    ] {
        let folder = TempDir::new().unwrap();
        let mut config = Config { reach: Reach::default(), ..configuration(folder.path()) };
        config.http_address = address.unwrap_or(config.http_address);
        let engine = Engine::open_with(config, extensions).unwrap();
        let service: &dyn rivulet::service::Service = &*engine;
        let session = service.session(Caller::new(tenant, "ann"));
        for host in ["127.0.0.1", "localhost", "[::1]"] {
            for statement in to_brokers(host) {
                let done = execute(&session, &statement);
                let is_refused = done.as_ref().is_err_and(|error| {
                    error.message.contains("out of reach")
                        && error.hint.as_ref().is_some_and(|hint| hint.contains("hosts.allow"))
                });
                // What is declared already is refused for that.
                let is_there = done
                    .as_ref()
                    .is_err_and(|error| error.kind == ErrorKind::AlreadyExists || error.message.contains("already"));
                assert_eq!(is_refused, !is_allowed, "{name}: {statement}: {done:?}");
                assert!(done.is_ok() || is_refused || is_there, "{name}: {statement}: {done:?}");
            }
        }
        for host in ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "0.0.0.0"] {
            for statement in to_brokers(host) {
                let error = execute(
                    &session,
                    &statement
                        .replace("CREATE SOURCE ", "CREATE SOURCE other_")
                        .replace("CREATE SINK ", "CREATE SINK other_")
                        .replace("CREATE APPLICATION ", "CREATE APPLICATION other_"),
                )
                .expect_err(&statement);
                assert!(error.message.contains("out of reach"), "{name}: {statement}: {error}");
            }
        }
        drop(session);
        rivulet::service::Service::shutdown(&*engine).unwrap();
    }
}

#[test]
fn statements_listen_where_the_operator_allows_it() {
    let loopback = AllowedHosts::listed("127.0.0.1", KEY_OF_LISTENERS).unwrap();
    for (listeners, tenant, host, is_allowed) in [
        (None, "default", "0.0.0.0", true),
        (None, "acme", "127.0.0.1", false),
        (Some(loopback.clone()), "default", "127.0.0.1", true),
        (Some(loopback.clone()), "default", "0.0.0.0", false),
        (Some(loopback.clone()), "acme", "127.0.0.1", true),
        (Some(loopback), "acme", "[::]", false),
    ] {
        let folder = TempDir::new().unwrap();
        let mut config = configuration(folder.path());
        config.reach.listeners = listeners.unwrap_or(config.reach.listeners);
        let engine = Engine::open(config).unwrap();
        let service: &dyn rivulet::service::Service = &*engine;
        let session = service.session(Caller::new(tenant, "ann"));
        for statement in [
            format!("CREATE SOURCE s (n BIGINT) FROM 'http:{host}:9/x' FORMAT JSON"),
            format!(
                "CREATE APPLICATION a (id TEXT) INPUT r (n BIGINT) FROM 'http:{host}:9/x' FORMAT JSON \
                 OUTPUT 'mqtt:o/{{id}}' FORMAT JSON AS SELECT n FROM r"
            ),
        ] {
            let done = execute(&session, &statement);
            let is_refused = done.as_ref().is_err_and(|error| {
                error.message.contains("may not be listened at") && error.to_string().contains("hosts.listen")
            });
            assert_eq!((done.is_ok(), is_refused), (is_allowed, !is_allowed), "{tenant} {statement}: {done:?}");
        }
        drop(session);
        rivulet::service::Service::shutdown(&*engine).unwrap();
    }
}

#[test]
fn tenants_have_folders_of_their_own() {
    let folder = TempDir::new().unwrap();
    let config = configuration(folder.path());
    let config = Config { files: FilesConfig { allow: Vec::new(), ..config.files }, ..config };
    let data = config.data_dir.clone();
    let engine = Engine::open(config).unwrap();
    let service: &dyn rivulet::service::Service = &*engine;
    let session = |tenant: &str| service.session(Caller::new(tenant, "ann"));
    let table = |path: &str| format!("CREATE OR REPLACE TABLE t (id TEXT) FROM 'file:{path}' FORMAT CSV");
    // The first statement that names a file makes the folder.
    for tenant in ["acme", "../acme"] {
        let missing = execute(&session(tenant), &table("rooms.csv")).unwrap_err();
        assert!(missing.message.contains("rooms.csv"), "{missing}");
    }
    for (path, content) in [
        ("files/rooms.csv", "of the operator"),
        ("tenants/acme/files/rooms.csv", "of acme"),
        ("tenants/%2e%2e%2facme/files/rooms.csv", "of another"),
    ] {
        fs::write(data.join(path), content).unwrap();
    }
    for tenant in ["default", "acme", "../acme"] {
        execute(&session(tenant), &table("rooms.csv")).unwrap();
    }
    let at = |path: &str| data.join(path).display().to_string();
    for (tenant, path) in [
        ("acme", at("files/rooms.csv")),
        ("acme", at("tenants/%2e%2e%2facme/files/rooms.csv")),
        ("acme", "../../../files/rooms.csv".to_owned()),
        ("acme", at("catalog.redb")),
        ("acme", "/etc/passwd".to_owned()),
        ("default", at("tenants/acme/files/rooms.csv")),
        ("default", "../tenants/acme/files/rooms.csv".to_owned()),
        ("default", "../secrets".to_owned()),
    ] {
        let error = execute(&session(tenant), &table(&path)).unwrap_err();
        assert!(error.message.contains("may not be used"), "{tenant} {path}: {error}");
        for statement in [
            format!("CREATE SOURCE s (id TEXT) FROM 'file:{path}' FORMAT CSV"),
            format!("CREATE SINK k TO 'file:{path}' FORMAT CSV"),
            format!("DESCRIBE '{path}'"),
        ] {
            let error = execute(&session(tenant), &statement).expect_err(&statement);
            assert!(error.message.contains("may not be used"), "{tenant} {statement}: {error}");
        }
    }
    rivulet::service::Service::shutdown(&*engine).unwrap();
}

#[test]
fn a_folder_may_name_the_tenant() {
    let folder = TempDir::new().unwrap();
    let config = configuration(folder.path());
    let allow = vec![folder.path().join("of-{tenant}")];
    let config = Config { files: FilesConfig { allow, ..config.files }, ..config };
    let engine = Engine::open(config).unwrap();
    let service: &dyn rivulet::service::Service = &*engine;
    for tenant in ["default", "acme"] {
        let session = service.session(Caller::new(tenant, "ann"));
        let own = folder.path().join(format!("of-{tenant}/rooms.csv"));
        let _ = execute(&session, "CREATE TABLE t (id TEXT) FROM 'file:rooms.csv' FORMAT CSV");
        fs::write(own, "a").unwrap();
        execute(&session, "CREATE TABLE t (id TEXT) FROM 'file:rooms.csv' FORMAT CSV").unwrap();
    }
    let session = service.session(Caller::new("acme", "ann"));
    let error = execute(&session, "CREATE TABLE u (id TEXT) FROM 'file:../of-default/rooms.csv' FORMAT CSV");
    assert!(error.unwrap_err().message.contains("may not be used"));
    drop(session);
    rivulet::service::Service::shutdown(&*engine).unwrap();
}

#[test]
fn hosts_are_by_tenant_and_another_configuration_counts_for_what_is_open() {
    let folder = TempDir::new().unwrap();
    let list = |list: &str| AllowedHosts::listed(list, KEY_OF_TENANTS).unwrap();
    let mut config = Config { reach: Reach::default(), ..configuration(folder.path()) };
    let of_tenants = [("acme", "127.0.0.1, hooks.example.org"), ("closed", ""), ("*", "10.0.0.0/8")];
    config.reach_of_tenants = of_tenants.map(|(tenant, hosts)| (tenant.to_owned(), list(hosts))).into();
    let engine = Engine::open(config.clone()).unwrap();
    let service: &dyn rivulet::service::Service = &*engine;
    let mut number = 0;
    let mut check = |tenant: &str, host: &str, may: bool| {
        number += 1;
        for statement in [
            format!("CREATE SINK k{number} TO 'kafka:{host}:9092/x' FORMAT JSON"),
            format!("CREATE SINK h{number} TO 'http:{host}:9/x' FORMAT JSON"),
            format!("CREATE SINK m{number} TO 'mqtt:x' FORMAT JSON WITH (broker => 'mqtt://{host}')"),
        ] {
            let done = execute(&service.session(Caller::new(tenant, "ann")), &statement);
            let is_refused = done.as_ref().is_err_and(|error| error.message.contains("out of reach"));
            assert_eq!((done.is_ok(), is_refused), (may, !may), "{tenant}: {statement}: {done:?}");
            if let (false, Err(error)) = (tenant == "default", done) {
                assert!(error.hint.is_some_and(|hint| hint.contains("hosts.tenants")), "{tenant}: {statement}");
            }
        }
    };
    // What one may reach that is allowed everywhere else, and the other way round.
    for (tenant, host, may) in [
        ("acme", "127.0.0.1", true),
        ("acme", "hooks.example.org", true),
        ("acme", "10.0.0.7", false),
        ("closed", "10.0.0.7", false),
        ("other", "10.0.0.7", true),
        ("other", "93.184.216.34", false),
        ("default", "93.184.216.34", true),
        ("default", "169.254.169.254", false),
    ] {
        check(tenant, host, may);
    }
    config.reach = Reach { brokers: list("127.0.0.1"), posts: list("127.0.0.1"), ..Reach::default() };
    config.reach_of_tenants = [("acme".to_owned(), list("10.0.0.7"))].into();
    service.take_over(&config).unwrap();
    for (tenant, host, may) in [
        ("acme", "127.0.0.1", false),
        ("acme", "10.0.0.7", true),
        ("closed", "127.0.0.1", true),
        ("other", "10.0.0.7", false),
    ] {
        check(tenant, host, may);
    }
    rivulet::service::Service::shutdown(&*engine).unwrap();
}

#[test]
fn a_host_that_is_not_allowed_any_more_gets_no_further_connection() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("rows.jsonl"), "{\"n\":1}\n").unwrap();
    let mut config = configuration(folder.path());
    let engine = Engine::open(config.clone()).unwrap();
    let service: &dyn rivulet::service::Service = &*engine;
    let session = service.session(Caller::local_operator());
    // Nobody listens there.
    let sink = "CREATE SINK away TO 'http:127.0.0.1:1/hook' FORMAT JSON";
    let source =
        format!("CREATE SOURCE rows (n BIGINT) FROM 'file:{}/rows.jsonl' FORMAT JSON", folder.path().display());
    for statement in [&source, sink, "CREATE QUERY q AS SELECT n FROM rows INTO away"] {
        execute(&session, statement).unwrap();
    }
    let says = |what: &str| service.problems().iter().any(|problem| problem.contains(what));
    wait_until("it cannot connect", || says("refused"));
    config.reach.posts = AllowedHosts::listed("hooks.example.org", "hosts.allow").unwrap();
    service.take_over(&config).unwrap();
    wait_until("it may not connect", || says("hosts.allow does not have it"));
    drop(session);
    rivulet::service::Service::shutdown(&*engine).unwrap();
}
