//! The catalog's file, changed while nobody had it open, and records in it of any bytes. Each call is answered or
//! refused; what is read of a file that was not changed is what was written.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use redb::TableDefinition;
use rivulet::accounts::Accounts;
use rivulet::catalog::{Catalog, FILE_NAME, NewApplication, NewQuery};
use rivulet::service::{Authorizer, Credentials, ParameterValue, Tenant};

use crate::edits::{self, Files};
use crate::input::Input;
use crate::{Target, scratch};

/// See the module.
pub const TARGET: Target = Target {
    name: "catalog",
    run,
    words: &["redb", "queries", "applications", "users", "{\"created_s\":1,\"all\":true,\"tokens\":[{\"id\":\""],
    mutations: 300,
};

const QUERIES: TableDefinition<u64, &[u8]> = TableDefinition::new("queries");
const APPLICATIONS: TableDefinition<&str, &[u8]> = TableDefinition::new("applications");
const USERS: TableDefinition<&str, &str> = TableDefinition::new("users");

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (folder, mut files) = (scratch::folder(), whole().clone());
    let has_records = input.byte() % 2 == 1;
    let is_changed = !has_records && edits::apply(&mut files, &mut input);
    for (name, bytes) in &files {
        std::fs::write(folder.path().join(name), bytes).expect("the file can be written");
    }
    if has_records {
        put_records(&folder.path().join(FILE_NAME), &mut input);
    }
    let Ok(catalog) = Catalog::open(folder.path()) else {
        assert!(is_changed, "a file that was not changed can be opened");
        return;
    };
    let mut queries = 0;
    let scanned = catalog.scan_queries(|query| queries += 1 + query.parameters.len());
    let applications = catalog.applications();
    let _ = (catalog.tables(), catalog.statements(), catalog.queries_count());
    let _ = catalog.read_query(2, |query| query.name.len());
    if !is_changed && !has_records {
        scanned.expect("it can be read");
        assert_eq!((queries, applications.expect("it can be read").len()), (4, 1));
    }
    let new = NewQuery { application: 1, name: "new", parameters: &[], label: None };
    if let Ok(first) = catalog.insert_queries(&[new], None) {
        let name = catalog.read_query(first, |query| query.name.to_owned());
        assert!(is_changed || name.is_ok_and(|name| name.as_deref() == Some("new")), "what was inserted is there");
    }
    // Whoever gets in by a damaged record is not the operator.
    if let Ok(accounts) = Accounts::open(Arc::new(catalog)) {
        let in_force = accounts.are_in_force();
        let credentials = Credentials { secret: Some(bytes), ..Credentials::default() };
        assert_eq!(accounts.authenticate(&credentials).is_ok(), !in_force);
    }
}

/// The file of a catalog that is whole.
fn whole() -> &'static Files {
    static WHOLE: OnceLock<Files> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let folder = scratch::folder();
        let catalog = Catalog::open(folder.path()).expect("a catalog can be made");
        let application =
            catalog.insert_application(NewApplication::sql("a", "id", "CREATE APPLICATION a")).expect("there is room");
        let parameters = [("p".into(), ParameterValue::Float(1.5)), ("x".into(), ParameterValue::Text("y".into()))];
        let query = |name, label| NewQuery { application, name, parameters: &parameters, label };
        catalog.insert_queries(&[query("q", Some("home"))], None).expect("there is room");
        catalog.insert_queries(&[NewQuery { parameters: &[], ..query("r", None) }], None).expect("there is room");
        catalog
            .insert_statement(&Tenant::default(), "CREATE SOURCE s (v DOUBLE) FROM 'file:x'")
            .expect("there is room");
        let record = r#"{"created_s":1,"grants":[{"actions":["read"],"kind":"query","pattern":"a%"}],"tokens":[]}"#;
        catalog.put_users(&[(&Tenant::new("acme").named("ann"), Some(record))]).expect("there is room");
        drop(catalog);
        let bytes = std::fs::read(folder.path().join(FILE_NAME)).expect("it can be read");
        Files::from([(FILE_NAME.to_owned(), bytes)])
    })
}

/// Writes records with whatever bytes.
fn put_records(file: &Path, input: &mut Input<'_>) {
    let database = redb::Database::open(file).expect("the file is whole");
    let transaction = database.begin_write().expect("nobody else writes");
    {
        let mut queries = transaction.open_table(QUERIES).expect("the table is there");
        queries.insert(2, input.piece()).expect("there is room");
        let mut applications = transaction.open_table(APPLICATIONS).expect("the table is there");
        applications.insert("b", input.piece()).expect("there is room");
        let mut users = transaction.open_table(USERS).expect("the table is there");
        users.insert("ann", &*String::from_utf8_lossy(input.piece())).expect("there is room");
    }
    transaction.commit().expect("there is room");
}
