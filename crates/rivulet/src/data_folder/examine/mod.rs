//! The content of a data folder, whether it is intact, and what to do if it is not: for `rivulet doctor`.
//!
//! What must hold: nothing is changed, and a folder that a server has closed properly gives no problem.

mod big_queries;
mod broker;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rivulet_runtime::Saved;
use rivulet_storage::log::{Inspected, inspect};
use rivulet_storage::{EpochSettings, Epochs, Place, Store};

use super::{CHECKPOINTS, LOG, MQTT};
use crate::catalog::{self, ApplicationNumber, Catalog, CatalogError, StoredApplication, StoredStatement};
use crate::counted::counted;
use crate::engine::{checkpoint_home, saved, saved_catalog};
use crate::service::ServiceError;

pub use big_queries::SavedQuery;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Good,
    /// Worth knowing.
    Notice,
    /// Something is lost, or a server cannot use it.
    Problem,
}

impl Level {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Notice => "notice",
            Self::Problem => "problem",
        }
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// Its subject: `folder`, `catalog`, `checkpoints`, `big queries`, `log`, `broker`.
    pub about: &'static str,
    /// What was found, in a sentence without a full stop.
    pub text: String,
    /// What to do about it.
    pub advice: Option<String>,
}

fn good(about: &'static str, text: String) -> Finding {
    Finding { level: Level::Good, about, text, advice: None }
}

fn notice(about: &'static str, text: String, advice: &str) -> Finding {
    Finding { level: Level::Notice, about, text, advice: Some(advice.to_owned()) }
}

fn problem(about: &'static str, text: String, advice: impl Into<String>) -> Finding {
    Finding { level: Level::Problem, about, text, advice: Some(advice.into()) }
}

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
    examine_log(&folder.join(LOG), is_at_home.then_some(replayed_from), &mut findings);
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

/// The error with which a server would refuse the place of checkpoints at its start; `None` if it would start.
pub(super) fn refusal_of_place(folder: &Path, checkpoints: &Place, catalog: &Catalog) -> Option<ServiceError> {
    let store = match checkpoints {
        // Opening it would make the folder.
        Place::Folder(folder) if !folder.is_dir() => None,
        // If it cannot be opened, that is reported when the checkpoints are examined.
        place => Some(Store::open(place).ok()?),
    };
    checkpoint_home::find((store.as_ref(), checkpoints), catalog, &folder.join(CHECKPOINTS), false).err()
}

/// The epoch in which the catalog was saved in an object store, if it was.
fn epoch_of_catalog(checkpoints: &Place) -> Option<u64> {
    let Place::S3(_) = checkpoints else { return None };
    let store = Arc::new(Store::open(checkpoints).ok()?);
    Epochs::open(store, saved_catalog::LINE, EpochSettings { retained: usize::MAX }).ok()?.newest()
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
        let epochs = Epochs::open_apart(Arc::new(store), saved::LINE, settings)?;
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
        let parts: Result<Vec<(&str, &[u8])>, _> = pieces.iter().map(|piece| saved::read_piece(piece)).collect();
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) => {
                let text = format!("the state of application {name} does not begin as it should: {error}");
                findings.push(problem(ABOUT, text, "its queries begin without state; an older backup may have it"));
                continue;
            }
        };
        if let Some((application, versions)) = application
            && let Some((id, _)) = parts.last()
            && application.id != *id
            && !versions.iter().any(|version| version.id == *id)
        {
            let text = format!("the state of application {name} was saved for another text");
            findings.push(problem(
                ABOUT,
                text,
                "register the text that it was saved for, or its queries begin without state",
            ));
        }
        match Saved::read(parts.iter().map(|(_, captured)| *captured)).and_then(|saved| saved.check().map(|()| saved)) {
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

/// Reads the files of a log. Returns `None` if that cannot be done, which is a problem; `advice` is for errors that
/// have no hint.
fn inspected(about: &'static str, folder: &Path, advice: &str, findings: &mut Vec<Finding>) -> Option<Inspected> {
    inspect(folder)
        .map_err(|error| {
            let text = error.to_string();
            let (text, hint) = text.split_once("\nhint: ").unwrap_or((&text, advice));
            findings.push(problem(about, text.to_owned(), hint));
        })
        .ok()
}

/// The sentence about bytes that were being written when the server ended.
fn torn(bytes: u64) -> String {
    format!("the server ended while it wrote the last {}", counted(bytes, "byte"))
}

/// Examines the log. `from` is the position from which on checkpoints need it; the outer `None` means that this is
/// unknown, the inner one that no checkpoint has any events.
fn examine_log(folder: &Path, from: Option<Option<u64>>, findings: &mut Vec<Finding>) {
    const ABOUT: &str = "log";
    const LOST: &str = "files of the log were deleted: what was in them and in no checkpoint is lost";
    if !folder.exists() {
        if let Some(from) = from.flatten().filter(|&from| from > 1) {
            let text = format!("the checkpoint asks for the events from position {from} on, and there is no log");
            findings.push(problem(ABOUT, text, LOST));
        }
        return;
    }
    let advice = "let the user that runs the server read it; a file that is damaged from its beginning may be moved \
         away, its events are lost";
    let Some(inspected) = inspected(ABOUT, folder, advice, findings) else { return };
    let found = &inspected.found;
    let (files, bytes) = (counted(inspected.segments, "file"), counted(inspected.bytes, "byte"));
    let records = inspected.records;
    match records {
        0 => findings.push(good(ABOUT, format!("{files}, {bytes}, and no events in them"))),
        _ => {
            let (first, last) = (found.first, found.next.saturating_sub(1));
            let text = format!("{files}, {bytes}: {}, at positions {first} to {last}", counted(records, "event"));
            findings.push(good(ABOUT, text));
            if let Some(from) = from {
                let replayed = from.map_or(records, |from| found.next.saturating_sub(from.max(first)).min(records));
                let text = match replayed {
                    0 => "the checkpoint has all of them: a start replays none".to_owned(),
                    _ => format!(
                        "a start replays the last {replayed} of them, which came after the checkpoint, or knows that it has them"
                    ),
                };
                findings.push(good(ABOUT, text));
            }
        }
    }
    if let Some(from) = from {
        let asks = match from {
            Some(from) => format!("the checkpoint asks for the events from position {from} on"),
            None => "no checkpoint has any events".to_owned(),
        };
        let from = from.unwrap_or(1);
        if from < found.first && inspected.segments > 0 {
            let text = format!("{asks}, and the log begins at {}", found.first);
            findings.push(problem(ABOUT, text, LOST));
        }
        if from > found.next {
            let text = format!("{asks}, and the log ends before {}", found.next);
            findings.push(problem(ABOUT, text, LOST));
        }
    }
    for &(first, last) in &inspected.gaps {
        let text = format!("there are no events with positions {first} to {last}");
        findings.push(match from.is_some_and(|from| from.unwrap_or(1) <= last) {
            true => problem(ABOUT, text, LOST),
            // No checkpoint needs these events, or a server skipped the positions because a checkpoint had events up to
            // there.
            false => notice(ABOUT, text, "no checkpoint asks for them, so nothing is lost"),
        });
    }
    if found.torn_bytes > 0 {
        findings.push(notice(
            ABOUT,
            torn(found.torn_bytes),
            "the next start cuts them off; none of these events was acknowledged, so nothing is lost",
        ));
    }
    for text in &inspected.notices {
        findings.push(notice(ABOUT, text.clone(), "nothing is lost: none of that was acknowledged from there"));
    }
    for text in &found.problems {
        let advice = "the disk has changed what was written: events in it that no checkpoint has are lost; look at the disk, or restore a backup";
        findings.push(problem(ABOUT, text.clone(), advice));
    }
}
