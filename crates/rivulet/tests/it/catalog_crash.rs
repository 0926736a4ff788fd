//! `kill -9` during bulk inserts: everything that was acknowledged exists afterwards.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rivulet::catalog::{Catalog, NewQuery};
use rivulet::service::{Parameter, ParameterValue, Tenant};

/// Set in the child, which inserts until it is killed.
const CHILD_FOLDER: &str = "RIVULET_TEST_CATALOG_FOLDER";

const BATCH_ROWS: u64 = 512;

fn parameters(place: u64) -> [Parameter<'static>; 2] {
    [
        ("home".into(), ParameterValue::Text(place.to_string().into())),
        ("target".into(), ParameterValue::Float(place as f64)),
    ]
}

/// Inserts batches for ever and prints how many rows were acknowledged.
fn insert_until_killed(folder: &Path) -> ! {
    let catalog = Catalog::open(folder).expect("the catalog");
    let mut next = catalog.queries_count().expect("a count");
    loop {
        let names: Vec<String> = (next..next + BATCH_ROWS).map(|place| format!("home_{place}")).collect();
        let values: Vec<_> = (next..next + BATCH_ROWS).map(parameters).collect();
        let queries: Vec<NewQuery<'_>> = names
            .iter()
            .zip(&values)
            .map(|(name, parameters)| NewQuery { application: 3, name, parameters, label: None })
            .collect();
        let first = catalog.insert_queries(&queries, None).expect("an insert");
        if first.is_multiple_of(3) {
            catalog.set_paused(&[first], true, None).expect("a pause");
        }
        next += BATCH_ROWS;
        println!("acknowledged {next}");
    }
}

#[test]
fn kill_9_loses_nothing_that_was_acknowledged() {
    if let Some(folder) = std::env::var_os(CHILD_FOLDER) {
        insert_until_killed(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for round in 1..=4_u64 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "catalog_crash::kill_9_loses_nothing_that_was_acknowledged", "--nocapture"])
            .env(CHILD_FOLDER, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a child");
        let mut acknowledged = 0;
        let mut batches = 0;
        let mut killed = false;
        // To the end of its output: what it wrote before it died counts.
        for line in BufReader::new(child.stdout.take().expect("its output")).lines() {
            let line = line.expect("a line");
            // The harness prints the name of the test before the first line.
            let Some((_, rows)) = line.split_once("acknowledged ") else { continue };
            acknowledged = rows.parse().expect("a number");
            batches += 1;
            if batches == 5 * round && !killed {
                child.kill().expect("SIGKILL");
                killed = true;
            }
        }
        child.wait().expect("its end");
        assert!(killed, "the child ended by itself");

        let catalog = Catalog::open(folder.path()).expect("the catalog after the crash");
        let mut seen = 0;
        let count = catalog
            .scan_queries(|query| {
                assert_eq!(query.application, 3);
                assert_eq!(query.name, format!("home_{seen}"));
                assert_eq!(query.parameters, parameters(seen));
                seen += 1;
            })
            .expect("a scan");
        assert!(count >= acknowledged, "{count} rows are there, {acknowledged} were acknowledged");
        assert_eq!(count % BATCH_ROWS, 0, "a batch is there whole or not at all");
    }
}

/// Pages of the catalog's file that are damaged, each for itself.
const DAMAGED: usize = 48;

#[test]
fn whatever_page_is_damaged_it_is_said_and_no_signal_ends_the_process() {
    const PAGE_BYTES: usize = 4096;
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::open(folder.path()).expect("a catalog");
    let values = parameters(1);
    for number in 0..40 {
        let (name, label) = (format!("home_{number}"), Some("a label"));
        let query = NewQuery { application: 3, name: &name, parameters: &values, label };
        catalog.insert_queries(&[query], Some(number)).expect("an insert");
        catalog
            .insert_statement(&Tenant::default(), &format!("CREATE VIEW v{number} AS SELECT 1"))
            .expect("a statement");
    }
    drop(catalog);
    let file = folder.path().join(rivulet::catalog::FILE_NAME);
    let whole = std::fs::read(&file).expect("the file");
    let pages = whole.len() / PAGE_BYTES;
    // Those that have anything.
    let used: Vec<usize> = (0..pages)
        .filter(|page| whole[page * PAGE_BYTES..(page + 1) * PAGE_BYTES].iter().any(|byte| *byte != 0))
        .collect();
    for (count, &page) in used.iter().enumerate().take(DAMAGED) {
        let mut damaged = whole.clone();
        let other = used[(count * 5 + 1) % used.len()];
        damaged.copy_within(other * PAGE_BYTES..(other + 1) * PAGE_BYTES, page * PAGE_BYTES);
        std::fs::write(&file, &damaged).expect("it is written");
        let ended = super::server::rivulet().arg("doctor").arg("--data-dir").arg(folder.path()).output();
        let ended = ended.expect("it ends");
        let said = format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(ended.status.code().is_some(), "page {page} with what {other} had: {:?} {said}", ended.status);
        assert!(!said.contains("panicked") && !said.trim().is_empty(), "page {page} with what {other} had: {said}");
    }
}
