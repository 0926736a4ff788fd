//! What statements may reach: the files by tenant.

use std::fs;

use rivulet::config::{Config, FilesConfig};
use rivulet::engine::Engine;
use rivulet::service::{Caller, ServiceError, Session};
use tempfile::TempDir;

use super::engine::configuration;

fn execute(session: &Session<'_>, statement: &str) -> Result<(), ServiceError> {
    session.execute(statement).pop().expect("an answer").map(drop)
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
