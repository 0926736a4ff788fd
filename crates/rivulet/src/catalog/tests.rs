//! Tests of the catalog in one process; `kill -9` is tested in `tests/it/catalog_crash.rs`.

use std::fs;

use redb::TableDefinition;
use tempfile::TempDir;

use crate::service::{Parameter, ParameterValue};

use super::tables::QUOTAS;
use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn parameters(home: u64) -> Vec<Parameter<'static>> {
    vec![
        ("home".into(), ParameterValue::Text(home.to_string().into())),
        ("target".into(), ParameterValue::Float(21.5)),
        ("rooms".into(), ParameterValue::Int(-3)),
        ("night".into(), ParameterValue::Bool(true)),
        ("note".into(), ParameterValue::Null),
    ]
}

/// Inserts `count` queries of application 0, named by their index, and returns the id of the first.
fn insert(catalog: &Catalog, count: u64) -> QueryId {
    let names: Vec<String> = (0..count).map(|place| format!("home_{place}")).collect();
    let parameters: Vec<_> = (0..count).map(parameters).collect();
    let queries: Vec<NewQuery<'_>> = names
        .iter()
        .zip(&parameters)
        .map(|(name, parameters)| NewQuery { application: 0, name, parameters, label: None })
        .collect();
    catalog.insert_queries(&queries, None).expect("an insert")
}

fn ids(catalog: &Catalog) -> Vec<(QueryId, bool)> {
    let mut ids = Vec::new();
    let count = catalog.scan_queries(|query| ids.push((query.id, query.paused))).expect("a scan");
    assert_eq!(count, ids.len() as u64);
    assert_eq!(count, catalog.queries_count().expect("a count"));
    ids
}

#[test]
fn what_was_stored_is_there_after_reopening() {
    let folder = folder();
    let path = folder.path().join("made/on/demand");
    let catalog = Catalog::open(&path).expect("a new catalog");
    assert_eq!(
        catalog
            .insert_application(NewApplication::sql("ac_control", "aa", "CREATE APPLICATION ac_control"))
            .expect("insert"),
        0
    );
    assert_eq!(
        catalog.insert_application(NewApplication::sql("heart", "bb", "CREATE APPLICATION heart")).expect("insert"),
        1
    );
    let first = insert(&catalog, 3);
    catalog.set_paused(&[first + 1], true, None).expect("a pause");
    drop(catalog);

    let catalog = Catalog::open(&path).expect("the same catalog");
    let applications = catalog.applications().expect("applications");
    assert_eq!(
        applications.iter().map(|application| application.name.name.as_str()).collect::<Vec<_>>(),
        ["ac_control", "heart"]
    );
    assert_eq!(applications[1].bytes, b"CREATE APPLICATION heart");
    assert_eq!((applications[1].number, applications[1].id.as_str()), (1, "bb"));
    let mut seen = 0;
    catalog
        .scan_queries(|query| {
            assert_eq!(query.id, first + seen);
            assert_eq!(query.name, format!("home_{seen}"));
            assert_eq!(query.parameters, parameters(seen));
            assert_eq!(query.paused, seen == 1);
            seen += 1;
        })
        .expect("a scan");
    assert_eq!(seen, 3);
    let read = catalog.read_query(first + 1, |query| (query.name.to_owned(), query.paused, query.parameters.len()));
    assert_eq!(read.expect("a read"), Some(("home_1".to_owned(), true, 5)));
    assert_eq!(catalog.read_query(99, |_| ()).expect("a read"), None);
}

#[test]
fn pauses_and_removals_touch_only_what_they_name() {
    let catalog = Catalog::in_memory().expect("a catalog");
    let first = insert(&catalog, 6);
    catalog.set_paused(&[first, first + 2, first + 5], true, None).expect("pauses");
    catalog.set_paused(&[first + 2, first + 3], false, None).expect("resumes");
    catalog.remove_queries(&[first, first + 4, 999]).expect("removals");
    assert_eq!(ids(&catalog), [(first + 1, false), (first + 2, false), (first + 3, false), (first + 5, true)]);
}

#[test]
fn ids_and_numbers_are_never_given_twice() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let number = catalog.insert_application(NewApplication::sql("a", "1", "")).expect("insert");
    let first = insert(&catalog, 10);
    catalog
        .remove_application(&Tenant::default().named("a"), &(first..first + 10).collect::<Vec<_>>())
        .expect("a removal");
    drop(catalog);
    let catalog = Catalog::open(folder.path()).expect("the same catalog");
    assert_eq!(ids(&catalog), []);
    assert_eq!(catalog.applications().expect("applications"), []);
    assert_eq!(insert(&catalog, 1), first + 10);
    assert_eq!(catalog.insert_application(NewApplication::sql("a", "1", "")).expect("insert"), number + 1);
}

#[test]
fn an_application_stored_twice_is_refused_and_changes_nothing() {
    let catalog = Catalog::in_memory().expect("a catalog");
    catalog.insert_application(NewApplication::sql("a", "1", "first")).expect("insert");
    assert!(matches!(
        catalog.insert_application(NewApplication::sql("a", "2", "second")),
        Err(CatalogError::Corrupt { .. })
    ));
    let applications = catalog.applications().expect("applications");
    assert_eq!(applications.len(), 1);
    assert_eq!(applications[0].bytes, b"first");
}

#[test]
fn two_servers_on_one_catalog() {
    let folder = folder();
    let first = Catalog::open(folder.path()).expect("a catalog");
    let error = Catalog::open(folder.path()).expect_err("a second server");
    assert!(matches!(&error, CatalogError::Locked { folder: named } if named == folder.path()), "{error:?}");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    assert!(error.hint().contains("RIVULET_DATA_DIR"), "{}", error.hint());
    drop(first);
    Catalog::open(folder.path()).expect("the lock is gone with the first server");
}

#[test]
fn read_only_file_and_folder() {
    let folder = folder();
    drop(Catalog::open(folder.path()).expect("a catalog"));
    let file = folder.path().join(FILE_NAME);
    let set_read_only = |path: &Path, read_only: bool| {
        let mut permissions = fs::metadata(path).expect("metadata").permissions();
        permissions.set_readonly(read_only);
        fs::set_permissions(path, permissions).expect("permissions");
    };
    set_read_only(&file, true);
    let error = Catalog::open(folder.path()).expect_err("a read-only file");
    assert!(matches!(&error, CatalogError::ReadOnly { path } if *path == file), "{error:?}");
    fs::remove_file(&file).expect("removal");

    set_read_only(folder.path(), true);
    let error = Catalog::open(folder.path()).expect_err("a read-only folder");
    assert!(matches!(&error, CatalogError::ReadOnly { path } if path == folder.path()), "{error:?}");
    set_read_only(folder.path(), false);
}

#[test]
fn a_folder_that_is_a_file() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, "not a folder").expect("a file");
    let error = Catalog::open(&path).expect_err("a file in the place of the folder");
    assert!(matches!(error, CatalogError::Folder { .. }), "{error:?}");
    fs::create_dir_all(folder.path().join("data").join(FILE_NAME)).expect("a folder");
    let error = Catalog::open(&folder.path().join("data")).expect_err("a folder in the place of the file");
    assert!(matches!(error, CatalogError::Corrupt { .. }), "{error:?}");
}

#[test]
fn a_later_version_is_left_alone() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    catalog
        .write(|transaction| {
            transaction.open_table(META)?.insert(META_FORMAT_VERSION, FORMAT_VERSION + 7)?;
            Ok(())
        })
        .expect("a write");
    drop(catalog);
    let error = Catalog::open(folder.path()).expect_err("a later version");
    let CatalogError::LaterVersion { found, supported, .. } = error else { panic!("{error:?}") };
    assert_eq!((found, supported), (FORMAT_VERSION + 7, FORMAT_VERSION));
}

#[test]
fn tables_are_added_to_a_catalog_of_the_first_version() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    catalog.insert_application(NewApplication::sql("old", "id", "CREATE APPLICATION old")).expect("stored");
    catalog
        .write(|transaction| {
            transaction.delete_table(TABLES)?;
            transaction.delete_table(STATEMENTS)?;
            transaction.delete_table(PAUSED_STATEMENTS)?;
            transaction.delete_table(FAILED_STATEMENTS)?;
            transaction.open_table(META)?.insert(META_FORMAT_VERSION, 1)?;
            Ok(())
        })
        .expect("a write");
    drop(catalog);
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    assert_eq!(catalog.tables().expect("tables"), []);
    catalog.insert_table(&Tenant::default().named("rooms"), "CREATE TABLE rooms").expect("stored");
    catalog.insert_table(&Tenant::default().named("lots"), "CREATE TABLE lots").expect("stored");
    catalog.remove_table(&Tenant::default().named("lots")).expect("removed");
    drop(catalog);
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    assert_eq!(catalog.tables().expect("tables"), [(Tenant::default().named("rooms"), "CREATE TABLE rooms".into())]);
    assert_eq!(catalog.applications().expect("applications").len(), 1);
}

#[test]
fn users_of_a_catalog_before_passwords_and_quotas_are_read_as_they_are() {
    let folder = folder();
    let ann = Tenant::default().named("ann");
    let record = r#"{"created_s":1795000000,"all":true,"grants":[],"tokens":[]}"#;
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    catalog.put_users(&[(&ann, Some(record))]).expect("stored");
    catalog
        .write(|transaction| {
            transaction.delete_table(QUOTAS)?;
            transaction.open_table(META)?.insert(META_FORMAT_VERSION, 9)?;
            Ok(())
        })
        .expect("a write");
    drop(catalog);
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    assert_eq!(catalog.users().expect("users"), [(ann.clone(), record.to_owned())]);
    assert!(catalog.quotas().expect("quotas").is_empty());
    // The version before would not see a password, and must not open the doors.
    let format = catalog.look(|transaction| {
        let meta = transaction.open_table(META)?;
        Ok(meta.get(META_FORMAT_VERSION)?.map(|version| version.value()))
    });
    assert_eq!(format.expect("a format"), Some(FORMAT_VERSION));
}

#[test]
fn a_pause_of_a_statement_is_kept_and_goes_with_it() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let first = catalog.insert_statement(&Tenant::default(), "CREATE SOURCE s").expect("stored");
    let second = catalog.insert_statement(&Tenant::default(), "CREATE QUERY q").expect("stored");
    catalog.set_statement_paused(second, true).expect("paused");
    drop(catalog);
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let paused = |catalog: &Catalog| -> Vec<(u64, bool)> {
        catalog.statements().expect("statements").into_iter().map(|one| (one.number, one.paused)).collect()
    };
    assert_eq!(paused(&catalog), [(first, false), (second, true)]);
    catalog.set_statement_paused(second, false).expect("resumed");
    assert_eq!(paused(&catalog), [(first, false), (second, false)]);
    catalog.set_statement_paused(second, true).expect("paused");
    catalog.remove_statement(second).expect("removed");
    let third = catalog.insert_statement(&Tenant::default(), "CREATE QUERY r").expect("stored");
    assert_eq!(paused(&catalog), [(first, false), (third, false)]);
    assert!(third > second, "no number is used again: what was saved under it is of another");
    catalog.remove_statement(third).expect("removed");
    drop(catalog);
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    assert_eq!(catalog.statement_next().expect("a number"), third + 1, "also after a restart");
    assert_eq!(catalog.insert_statement(&Tenant::default(), "CREATE QUERY r").expect("stored"), third + 1);
}

#[test]
fn garbage_and_foreign_files_are_damaged_catalogs() {
    let folder = folder();
    let file = folder.path().join(FILE_NAME);
    fs::write(&file, b"this is not a catalog, it is a text that somebody saved here".repeat(200)).expect("a file");
    let error = Catalog::open(folder.path()).expect_err("garbage");
    assert!(matches!(error, CatalogError::Corrupt { .. }), "{error:?}");
    assert!(error.hint().contains("backup"));
    fs::remove_file(&file).expect("removal");

    let foreign = redb::Database::create(&file).expect("a database");
    let transaction = foreign.begin_write().expect("a transaction");
    transaction.open_table(TableDefinition::<u64, u64>::new("theirs")).expect("a table");
    transaction.commit().expect("a commit");
    drop(foreign);
    let error = Catalog::open(folder.path()).expect_err("somebody else's database");
    assert!(matches!(error, CatalogError::Corrupt { .. }), "{error:?}");
}

/// Opens and reads everything, as a server does at start.
fn open_and_scan(folder: &Path) -> Result<u64, CatalogError> {
    let catalog = Catalog::open(folder)?;
    catalog.applications()?;
    catalog.scan_queries(|query| assert!(!query.name.is_empty()))
}

#[test]
fn a_truncated_file_is_noticed_wherever_it_was_cut() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    catalog.insert_application(NewApplication::sql("a", "1", "sql")).expect("insert");
    for _ in 0..20 {
        insert(&catalog, 1000);
    }
    drop(catalog);
    let file = folder.path().join(FILE_NAME);
    let whole = fs::read(&file).expect("the file");
    assert_eq!(open_and_scan(folder.path()).expect("the whole file"), 20_000);
    // From an empty file, and a header cut in half, to a missing last page.
    for length in [0, 1, 100, 4095, 4096, 8192, whole.len() / 3, whole.len() / 2, whole.len() - 4096, whole.len() - 1] {
        fs::write(&file, &whole[..length]).expect("a truncated file");
        let error = open_and_scan(folder.path()).expect_err("a truncated file");
        assert!(matches!(error, CatalogError::Corrupt { .. }), "cut at {length} of {}: {error:?}", whole.len());
    }
}

#[test]
fn overwritten_pages_are_noticed_or_harmless_but_never_a_panic() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    insert(&catalog, 3000);
    drop(catalog);
    let file = folder.path().join(FILE_NAME);
    let whole = fs::read(&file).expect("the file");
    let mut noticed = 0;
    for page in 0..whole.len() / 4096 {
        for garbage in [0x00_u8, 0xff, 0x5a] {
            let mut damaged = whole.clone();
            damaged[page * 4096..(page + 1) * 4096].fill(garbage);
            fs::write(&file, &damaged).expect("a damaged file");
            match open_and_scan(folder.path()) {
                Err(CatalogError::Corrupt { .. }) => noticed += 1,
                // A page that is not in use may have any content.
                Ok(count) => assert_eq!(count, 3000),
                Err(error) => panic!("page {page} filled with {garbage:#x}: {error:?}"),
            }
        }
    }
    assert!(noticed > 20, "only {noticed} damaged pages were noticed");
}

#[test]
fn scattered_damage_is_noticed_or_harmless_but_never_a_panic() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    insert(&catalog, 3000);
    drop(catalog);
    let file = folder.path().join(FILE_NAME);
    let whole = fs::read(&file).expect("the file");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..30 {
        let mut damaged = whole.clone();
        for _ in 0..2000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let place = 4096 + (random >> 8) as usize % (damaged.len() - 4096);
            damaged[place] ^= random as u8;
        }
        fs::write(&file, &damaged).expect("a damaged file");
        match open_and_scan(folder.path()) {
            Err(CatalogError::Corrupt { .. }) | Ok(_) => {}
            Err(error) => panic!("round {round}: {error:?}"),
        }
    }
}

#[test]
fn the_failure_of_a_statement_is_kept_and_goes_with_it() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let number = catalog.insert_statement(&Tenant::default(), "CREATE QUERY q").expect("stored");
    catalog.set_statement_failure(number, Some(&"ö".repeat(3 * FAILURE_CHARACTERS_MAX))).expect("remembered");
    drop(catalog);
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let failure = |catalog: &Catalog| catalog.statements().expect("statements").pop().expect("one").failure;
    assert_eq!(failure(&catalog), Some("ö".repeat(FAILURE_CHARACTERS_MAX)));
    catalog.set_statement_failure(number, None).expect("forgotten");
    assert_eq!(failure(&catalog), None);
    catalog.set_statement_failure(number, Some("the broker is gone")).expect("remembered");
    catalog.remove_statement(number).expect("removed");
    catalog.insert_statement(&Tenant::default(), "CREATE QUERY r").expect("stored");
    assert_eq!(failure(&catalog), None, "a number that is used again has not failed");
}

#[test]
fn a_statement_is_replaced_in_its_place_and_has_not_failed_then() {
    let folder = folder();
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let number = catalog.insert_statement(&Tenant::default(), "CREATE QUERY q").expect("stored");
    catalog.insert_statement(&Tenant::default(), "CREATE SOURCE s").expect("stored");
    catalog.set_statement_failure(number, Some("a reason")).expect("remembered");
    catalog.set_statement_paused(number, true).expect("paused");
    catalog.replace_statement(number, "CREATE OR REPLACE QUERY q").expect("replaced");
    assert!(catalog.replace_statement(number + 7, "CREATE QUERY r").is_err(), "there is none in its place");
    drop(catalog);
    let statements = Catalog::open(folder.path()).expect("a catalog").statements().expect("statements");
    let first = &statements[0];
    assert_eq!((first.number, first.sql.as_str(), statements.len()), (number, "CREATE OR REPLACE QUERY q", 2));
    assert_eq!((first.paused, &first.failure), (true, &None));
}

/// A file on a disk that is full while the switch is on.
#[derive(Debug)]
struct FullDisk(redb::backends::FileBackend, std::sync::Arc<std::sync::atomic::AtomicBool>);

impl FullDisk {
    fn has_room(&self) -> std::io::Result<()> {
        match self.1.load(std::sync::atomic::Ordering::Acquire) {
            true => Err(std::io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl redb::StorageBackend for FullDisk {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.has_room().and_then(|()| self.0.set_len(len))
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.has_room().and_then(|()| self.0.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.has_room().and_then(|()| self.0.write(offset, data))
    }
}

#[test]
fn a_disk_that_was_full_is_written_again_when_there_is_room() {
    let folder = folder();
    let path = folder.path().join(FILE_NAME);
    let is_full = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (file, switch) = (path.clone(), is_full.clone());
    let open = move || {
        let opened = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&file);
        let backend = redb::backends::FileBackend::new(opened?)?;
        Ok(redb::Builder::new().create_with_backend(FullDisk(backend, switch.clone()))?)
    };
    let catalog = Catalog::with_storage(path, open).expect("a catalog");
    insert(&catalog, 10);
    is_full.store(true, std::sync::atomic::Ordering::Release);
    for _ in 0..3 {
        let error = catalog.insert_table(&Tenant::default().named("rooms"), "CREATE TABLE rooms").expect_err("no room");
        assert!(matches!(error, CatalogError::Full { .. } | CatalogError::Storage { .. }), "{error:?}");
        assert!(catalog.check_writable().is_err());
    }
    is_full.store(false, std::sync::atomic::Ordering::Release);
    catalog.insert_table(&Tenant::default().named("lots"), "CREATE TABLE lots").expect("there is room again");
    catalog.check_writable().expect("written");
    assert_eq!(catalog.queries_count().expect("a count"), 10);
    assert_eq!(catalog.tables().expect("tables").len(), 1);
}

#[test]
fn a_version_takes_the_place_of_another_which_is_remembered() {
    let folder = TempDir::new().expect("a folder");
    {
        let catalog = Catalog::open(folder.path()).expect("a catalog");
        let number = catalog.insert_application(NewApplication::sql("a", "1", "first")).expect("insert");
        catalog.insert_application(NewApplication::sql("b", "9", "other")).expect("insert");
        let parameters = [("x".into(), ParameterValue::Int(1)), ("y".into(), ParameterValue::Int(2))];
        let query = NewQuery { application: number, name: "q", parameters: &parameters, label: Some("home") };
        let id = catalog.insert_queries(&[query], None).expect("insert");
        catalog.replace_application(NewApplication::sql("a", "2", "second"), &["x"], [id, id + 7]).expect("replaced");
        catalog
            .read_query(id, |query| {
                assert_eq!((query.name, query.label, query.parameters), ("q", Some("home"), &parameters[1..]));
            })
            .expect("read");
        for version in 3..10 {
            catalog
                .replace_application(NewApplication::sql("a", &version.to_string(), "later"), &[], [])
                .expect("replaced");
        }
        assert!(matches!(
            catalog.replace_application(NewApplication::sql("c", "1", ""), &[], []),
            Err(CatalogError::Corrupt { .. })
        ));
    }
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let now = catalog.applications().expect("read");
    assert_eq!((now[0].number, now[0].id.as_str(), now[1].id.as_str()), (0, "9", "9"), "one has had nine versions");
    let ids: Vec<String> = catalog.versions(0).expect("read").into_iter().map(|version| version.id).collect();
    assert_eq!(ids, ["5", "6", "7", "8"], "the last ones, oldest first");
    catalog.remove_application(&Tenant::default().named("a"), &[]).expect("removed");
    assert!(catalog.versions(0).expect("read").is_empty());
}

#[test]
fn each_tenant_has_names_of_its_own_and_what_earlier_formats_stored_is_of_the_default_one() {
    let folder = folder();
    let (own, acme) = (Tenant::default(), Tenant::new("acme"));
    {
        let catalog = Catalog::open(folder.path()).expect("a catalog");
        catalog.insert_application(NewApplication::sql("a", "1", "own")).expect("stored");
        catalog.insert_table(&own.named("rooms"), "CREATE TABLE rooms").expect("stored");
        catalog.insert_statement(&own, "CREATE SOURCE s").expect("stored");
        let as_before = |transaction: &WriteTransaction| {
            // These are the bytes of all earlier formats.
            assert!(transaction.open_table(APPLICATIONS)?.get("a")?.is_some());
            assert!(transaction.open_table(TABLES)?.get("rooms")?.is_some());
            assert_eq!(
                transaction.open_table(STATEMENTS)?.get(0)?.map(|sql| sql.value().to_owned()).unwrap(),
                "CREATE SOURCE s"
            );
            transaction.open_table(META)?.insert(META_FORMAT_VERSION, 7)?;
            Ok(())
        };
        catalog.write(as_before).expect("written");
    }
    let catalog = Catalog::open(folder.path()).expect("it is read");
    let of_acme = NewApplication { tenant: &acme, ..NewApplication::sql("a", "1", "other") };
    let number = catalog.insert_application(of_acme).expect("the name is free");
    catalog.replace_application(NewApplication { id: "2", ..of_acme }, &[], []).expect("replaced");
    catalog.insert_table(&acme.named("rooms"), "CREATE TABLE rooms").expect("stored");
    let statement = catalog.insert_statement(&acme, "CREATE QUERY q").expect("stored");
    catalog.replace_statement(statement, "CREATE QUERY q AS SELECT").expect("replaced");
    drop(catalog);
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let applications = |catalog: &Catalog| -> Vec<(FullName, String)> {
        catalog.applications().expect("applications").into_iter().map(|one| (one.name, one.id)).collect()
    };
    assert_eq!(applications(&catalog), [(acme.named("a"), "2".into()), (own.named("a"), "1".into())]);
    assert_eq!(catalog.versions(number).expect("versions").len(), 1);
    let tables: Vec<FullName> = catalog.tables().expect("tables").into_iter().map(|(name, _)| name).collect();
    assert_eq!(tables, [acme.named("rooms"), own.named("rooms")]);
    let statements = catalog.statements().expect("statements").into_iter().map(|one| (one.tenant, one.sql));
    let expected = [(own.clone(), "CREATE SOURCE s".into()), (acme.clone(), "CREATE QUERY q AS SELECT".into())];
    assert_eq!(statements.collect::<Vec<_>>(), expected);
    catalog.remove_application(&acme.named("a"), &[]).expect("removed");
    catalog.remove_table(&acme.named("rooms")).expect("removed");
    assert_eq!(applications(&catalog), [(own.named("a"), "1".into())]);
    assert_eq!(catalog.tables().expect("tables"), [(own.named("rooms"), "CREATE TABLE rooms".into())]);
    let damage = |transaction: &WriteTransaction| {
        transaction.open_table(TABLES)?.insert("\u{0}99:acme", "CREATE TABLE rooms")?;
        Ok(())
    };
    catalog.write(damage).expect("written");
    assert!(matches!(catalog.tables(), Err(CatalogError::Corrupt { .. })));
}
