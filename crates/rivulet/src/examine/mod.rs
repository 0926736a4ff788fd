//! The content of a data folder, whether it is intact, and what to do if it is not: for `rivulet doctor`.
//!
//! What must hold: nothing is changed, and a folder that a server has closed properly gives no problem.

mod big_queries;
mod broker;
mod finding;
mod log;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rivulet_runtime::Saved;
use rivulet_storage::{EpochSettings, Epochs, Place, Store};

use crate::catalog::{self, ApplicationNumber, Catalog, CatalogError, StoredApplication, StoredStatement};
use crate::counted::counted;
use crate::data_folder::home::refusal_of_place;
use crate::data_folder::{LOG, MQTT, lines};
use crate::engine::saved;

use finding::{good, notice, problem};

pub use big_queries::SavedQuery;
pub use finding::{Finding, Level};

/// Examines a data folder whose checkpoints are in `checkpoints`. Nothing is changed, except that a catalog that was
/// not closed is repaired as a server would do.
pub fn examine(folder: &Path, checkpoints: &Place) -> Examination {
    let only = |finding| Examination { findings: vec![finding], big_queries: Vec::new() };
    let mut findings = Vec::new();
    match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => {
            let text = format!("{} is not a folder", folder.display());
            return only(problem("folder", text, "name the data folder of a server with --data-dir"));
        }
        Err(error) => {
            let text = format!("{} cannot be looked into: {error}", folder.display());
            return only(problem("folder", text, "name the data folder of a server with --data-dir"));
        }
    }
    let catalog = examine_catalog(folder, checkpoints, &mut findings);
    let applications = catalog.as_ref().map(|catalog| &catalog.applications);
    let replayed_from = examine_checkpoints(checkpoints, applications, &mut findings);
    // Checkpoints that are not those of the catalog, or that a server changes meanwhile, say nothing about its log.
    let is_at_home = catalog.as_ref().is_some_and(|catalog| catalog.is_at_home);
    let statements = catalog.as_ref().map(|catalog| catalog.statements.as_slice());
    let big_queries = big_queries::examine(checkpoints, statements, &mut findings);
    log::examine(&folder.join(LOG), is_at_home.then_some(replayed_from), &mut findings);
    broker::examine(&folder.join(MQTT), &mut findings);
    Examination { findings, big_queries }
}

/// The findings about a data folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// In words, in the order in which a server reads the data.
    pub findings: Vec<Finding>,
    /// The checkpoints of big queries, by number.
    pub big_queries: Vec<SavedQuery>,
}

/// What the catalog has about data that is saved elsewhere.
struct Known {
    /// Whether the checkpoints are at a place where a server would start with them.
    is_at_home: bool,
    applications: Applications,
    statements: Vec<StoredStatement>,
}

/// By number, each with its replaced versions.
type Applications = BTreeMap<ApplicationNumber, (StoredApplication, Vec<StoredApplication>)>;

fn examine_catalog(folder: &Path, checkpoints: &Place, findings: &mut Vec<Finding>) -> Option<Known> {
    let path = folder.join(catalog::FILE_NAME);
    if !path.is_file() {
        let text = format!("there is no catalog {}", path.display());
        if let Some(epoch) = epoch_of_catalog(checkpoints) {
            let advice = format!("a server that starts here takes the one in {checkpoints}, of its epoch {epoch}");
            findings.push(notice("catalog", text, &advice));
            return None;
        }
        findings.push(problem(
            "catalog",
            text,
            "a server that starts here begins with nothing; is it the right folder?",
        ));
        return None;
    }
    let read = Catalog::open(folder).and_then(|catalog| {
        let mut of_applications: BTreeMap<ApplicationNumber, u64> = BTreeMap::new();
        let queries = catalog.scan_queries(|query| *of_applications.entry(query.application).or_default() += 1)?;
        let with_versions = |one: StoredApplication| catalog.versions(one.number).map(|versions| (one, versions));
        let applications = catalog.applications()?.into_iter().map(with_versions).collect::<Result<Vec<_>, _>>()?;
        let home = refusal_of_place(folder, checkpoints, &catalog).map(|refused| {
            let hint = refused.hint.unwrap_or_default();
            problem("checkpoints", format!("no server starts so: {}", refused.message), hint)
        });
        Ok((applications, of_applications, queries, catalog.tables()?.len(), catalog.statements()?, home))
    });
    let (applications, of_applications, queries, tables, statements, home) = match read {
        Ok(read) => read,
        Err(error) => {
            let advice = match &error {
                CatalogError::Locked { .. } => {
                    "stop the server to have its data looked at; a running one says itself how it is (rivulet status, /health/ready)".into()
                }
                other => other.hint(),
            };
            findings.push(problem("catalog", error.to_string(), advice));
            return None;
        }
    };
    findings.push(good(
        "catalog",
        format!(
            "the catalog is whole: {}, {}, {}, {} of big queries",
            counted(applications.len() as u64, "application"),
            counted(queries, "query"),
            counted(tables as u64, "table"),
            counted(statements.len() as u64, "statement")
        ),
    ));
    let is_at_home = home.is_none();
    findings.extend(home);
    let applications: Applications = applications.into_iter().map(|one| (one.0.number, one)).collect();
    for (application, _) in applications.values() {
        if application.kind != rivulet_sql::SQL {
            let name = application.name.in_log();
            findings.push(notice(
                "catalog",
                format!("the application '{name}' is code of the kind '{}', which was not examined", application.kind),
                "it runs on a server that loads this kind of code",
            ));
            continue;
        }
        if let Err(error) = rivulet_sql::parse_stored(&application.text()) {
            let name = application.name.in_log();
            findings.push(problem(
                "catalog",
                format!("this version does not understand the application '{name}': {}", error.message),
                "use the version that it was registered with, or register it under another name as this version wants it",
            ));
        }
    }
    let orphans: u64 = of_applications.iter().filter(|(of, _)| !applications.contains_key(of)).map(|(_, n)| n).sum();
    if orphans > 0 {
        findings.push(problem(
            "catalog",
            format!("there is no application for {}", counted(orphans, "query")),
            "restore a backup; these queries do not run",
        ));
    }
    Some(Known { is_at_home, applications, statements })
}

/// The epoch in which the catalog was saved in an object store, if it was.
fn epoch_of_catalog(checkpoints: &Place) -> Option<u64> {
    let Place::S3(_) = checkpoints else { return None };
    let store = Arc::new(Store::open(checkpoints).ok()?);
    Epochs::open(store, lines::CATALOG, EpochSettings { retained: usize::MAX }).ok()?.newest()
}

/// Examines the checkpoints. Returns the position from which on the newest one needs the log, if it has one.
fn examine_checkpoints(place: &Place, applications: Option<&Applications>, findings: &mut Vec<Finding>) -> Option<u64> {
    const ABOUT: &str = "checkpoints";
    if matches!(place, Place::Folder(folder) if !folder.is_dir()) {
        let text = format!("there are no checkpoints in {place}");
        findings.push(notice(
            ABOUT,
            text,
            "queries begin without state; as it should be where checkpoint.enabled is false",
        ));
        return None;
    }
    let advice = "the server starts with the newest one that is whole, of each application by itself; without any, its queries begin without state";
    // This only reads, so the number of retained epochs does not matter.
    let settings = EpochSettings { retained: usize::MAX };
    let read = Store::open(place).and_then(|store| {
        let epochs = Epochs::open_apart(Arc::new(store), lines::APPLICATIONS, settings)?;
        Ok((epochs.problems().to_vec(), epochs.restore()?))
    });
    let (problems, restored) = match read {
        Ok(read) => read,
        Err(error) => {
            // An error with a hint of its own is not damage.
            let text = error.to_string();
            let (text, hint) = text.split_once("\nhint: ").unwrap_or((&text, advice));
            findings.push(problem(ABOUT, text.to_owned(), hint));
            return None;
        }
    };
    findings.extend(problems.into_iter().map(|text| problem(ABOUT, text, advice)));
    let Some(restored) = restored else {
        let text = format!("{place} has no checkpoint of applications");
        findings.push(notice(ABOUT, text, "queries begin without state"));
        return None;
    };
    let (mut queries, mut bytes) = (0, 0);
    for (name, pieces) in &restored.pieces {
        bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if saved::outputs_number_of(name).is_some() {
            continue;
        }
        let Some(number) = saved::number_of(name) else {
            findings.push(notice(
                ABOUT,
                format!("nobody knows what '{name}' is"),
                "a later version may have written it",
            ));
            continue;
        };
        let application = applications.and_then(|applications| applications.get(&number));
        if application.is_none() && applications.is_some() {
            let text = format!("there is state of application {number}, which the catalog does not have");
            findings.push(notice(
                ABOUT,
                text,
                "it goes with the next checkpoint; right after DROP APPLICATION this is usual",
            ));
            continue;
        }
        let name = application.map_or_else(|| number.to_string(), |(application, _)| application.name.in_log());
        let (id, captured) = match saved::read_pieces(pieces) {
            Ok(read) => read,
            Err(error) => {
                let text = format!("the state of application {name} does not begin as it should: {error}");
                findings.push(problem(ABOUT, text, "its queries begin without state; an older backup may have it"));
                continue;
            }
        };
        if let Some((application, versions)) = application
            && application.id != id
            && !versions.iter().any(|version| version.id == id)
        {
            let text = format!("the state of application {name} was saved for another text");
            findings.push(match versions.len() < catalog::VERSIONS_MAX {
                true => problem(ABOUT, text, "put the catalog in place that was there when it was saved"),
                false => notice(
                    ABOUT,
                    text,
                    "the catalog has forgotten that text; the next checkpoint with queries replaces this state",
                ),
            });
        }
        match Saved::read(captured).and_then(|saved| saved.check().map(|()| saved)) {
            Ok(saved) => queries += saved.queries(),
            Err(error) => {
                let text = format!("the state of application {name} cannot be read: {error}");
                findings.push(problem(ABOUT, text, "its queries begin without state; an older backup may have it"));
            }
        }
    }
    let epoch = restored.epoch;
    let (queries, bytes) = (counted(queries as u64, "query"), counted(bytes, "byte"));
    let text = format!("checkpoint {epoch} in {place} is whole: {queries} with state, {bytes}");
    findings.push(good(ABOUT, text));
    let position = |note: &serde_json::Value| note.get(saved::POSITION).and_then(serde_json::Value::as_u64);
    restored.older.values().chain([&restored.note]).filter_map(position).min()
}
