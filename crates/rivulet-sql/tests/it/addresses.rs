//! The addresses of all kinds of state, as `addresses.txt` says them: they are saved, so each stays as it is. With
//! `RIVULET_UPDATE=1` in the environment they are written anew: whoever changes one makes checkpoints unreadable that
//! have it, so only lines that are new may differ.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rivulet_dataflow::address::place;
use rivulet_sql::{Model, parse_application, plan_application};

use super::query_plans::{planned, run, scope};

const INPUTS: [&str; 2] = [
    "INPUT t (ts TIMESTAMP EVENT TIME, k TEXT, v DOUBLE, n BIGINT) FROM 'mqtt:t/{id}' FORMAT JSON",
    "INPUT u (ts TIMESTAMP EVENT TIME, k TEXT, v DOUBLE) FROM 'mqtt:u/{id}' FORMAT JSON",
];

fn crates() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is")).join("..")
}

/// The addresses of a statement's plan, one a line.
fn addresses(statement: &str) -> Vec<String> {
    let json = |address: &_| serde_json::to_string(address).unwrap();
    match statement.split_once("application: ") {
        Some((_, select)) => {
            let inputs = INPUTS[..if select.contains("u.v") { 2 } else { 1 }].join(" ");
            let text =
                format!("CREATE APPLICATION a (id TEXT) {inputs} OUTPUT 'mqtt:o/{{id}}' FORMAT JSON AS {select}");
            let create = parse_application(&text).unwrap_or_else(|error| panic!("{}", error.render(&text)));
            let planned = plan_application(&create).unwrap_or_else(|error| panic!("{}", error.render(&text)));
            planned.dataflow.addresses().iter().flatten().map(|one| json(&**one)).collect()
        }
        None => planned(statement).dataflow.addresses().iter().flatten().map(|one| json(&**one)).collect(),
    }
}

#[test]
fn every_address_stays_as_it_is() {
    let path = crates().join("rivulet-sql/tests/it/addresses.txt");
    let written = std::fs::read_to_string(&path).unwrap();
    let mut found = String::new();
    for statement in written.lines().filter(|line| !line.is_empty() && !line.starts_with('{')) {
        let addresses = addresses(statement);
        assert!(!addresses.is_empty(), "no state: {statement}");
        writeln!(found, "{statement}\n{}\n", addresses.join("\n")).unwrap();
    }
    if std::env::var_os("RIVULET_UPDATE").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert!(written == found, "RIVULET_UPDATE=1 writes them anew\n{found}");
    // The names of the kinds, as the operators' files have them.
    let kind = regex::Regex::new(r#"const (?:OPERATOR|STATE): &str = "([^"]+)""#).unwrap();
    let mut folders = vec![crates().join("rivulet-operators/src")];
    let mut kinds = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let text = std::fs::read_to_string(path).unwrap();
                    kinds.extend(kind.captures_iter(&text).map(|found| found[1].to_owned()));
                }
            }
        }
    }
    kinds.retain(|kind| !found.contains(&format!(r#"{{"kind":"{kind}","#)));
    assert!(kinds.is_empty(), "no statement in {} has state of these kinds: {kinds:?}", path.display());
}

/// Which aggregate counts the rows of which model is known also if both models are others.
#[test]
fn the_versions_of_models_tell_equal_operators_apart_only_exactly() {
    let of_versions = |leaf: &str| {
        let model = |inputs: &str| {
            let text = format!(r#"{{"kind": "tree", "inputs": [{inputs}], "nodes": [{{"leaf": "{leaf}"}}]}}"#);
            Arc::new(Model::parse(text.as_bytes()).unwrap())
        };
        let mut scope = scope();
        scope.add_models([("a.json".to_owned(), model(r#""x""#)), ("b.json".to_owned(), model(r#""x", "y""#))]);
        let counts = ["predict('a.json', price)", "predict('b.json', price, auction)"]
            .map(|call| format!("SELECT count(*) AS n FROM bid WHERE {call} = 'GOOD'"));
        let plan = run(&counts.join(" UNION ALL "), &mut scope).unwrap().unwrap();
        plan.dataflow.addresses().iter().flatten().filter(|one| !one.is_transient).cloned().collect::<Vec<_>>()
    };
    let (before, after) = (of_versions("GOOD"), of_versions("BAD"));
    assert_eq!((before.len(), before[0].is_like(&before[1])), (2, true));
    assert!(before.iter().zip(&after).all(|(before, after)| before.exact != after.exact));
    let before: Vec<_> = before.iter().map(|one| &**one).collect();
    let after: Vec<_> = after.into_iter().map(Some).collect();
    assert_eq!(place(&before, &after), Ok(vec![Some(0), Some(1)]));
}
