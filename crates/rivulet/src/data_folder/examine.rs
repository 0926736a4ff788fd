//! What is in a data folder, whether it is whole, and what to do where it is not: for `rivulet doctor`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rivulet_runtime::Saved;
use rivulet_storage::{EpochSettings, Epochs, Store};

use super::LOG;
use crate::catalog::{self, ApplicationNumber, Catalog, StoredApplication};
use crate::engine::saved;

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

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it is about: `folder`, `catalog`, `checkpoints`, `log`.
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

/// Looks at a data folder whose checkpoints are in `checkpoints`. Nothing is changed, but a catalog that was not closed is repaired as a
/// server would do.
pub fn examine(folder: &Path, checkpoints: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => {
            let text = format!("{} is not a folder", folder.display());
            return vec![problem("folder", text, "name the data folder of a server with --data-dir")];
        }
        Err(error) => {
            let text = format!("{} cannot be looked into: {error}", folder.display());
            return vec![problem("folder", text, "name the data folder of a server with --data-dir")];
        }
    }
    let applications = examine_catalog(folder, &mut findings);
    examine_checkpoints(checkpoints, applications.as_ref(), &mut findings);
    examine_log(&folder.join(LOG), &mut findings);
    findings
}

type Applications = BTreeMap<ApplicationNumber, StoredApplication>;

fn examine_catalog(folder: &Path, findings: &mut Vec<Finding>) -> Option<Applications> {
    let path = folder.join(catalog::FILE_NAME);
    if !path.is_file() {
        let text = format!("there is no catalog {}", path.display());
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
        Ok((catalog.applications()?, of_applications, queries, catalog.tables()?.len(), catalog.statements()?.len()))
    });
    let (applications, of_applications, queries, tables, statements) = match read {
        Ok(read) => read,
        Err(error) => {
            findings.push(problem("catalog", error.to_string(), error.hint()));
            return None;
        }
    };
    findings.push(good(
        "catalog",
        format!(
            "the catalog is whole: {} applications, {queries} queries, {tables} tables, {statements} statements of big queries",
            applications.len()
        ),
    ));
    let applications: Applications = applications.into_iter().map(|one| (one.number, one)).collect();
    for application in applications.values() {
        if let Err(error) = rivulet_sql::parse_script(&application.sql) {
            findings.push(problem(
                "catalog",
                format!("this version does not understand the application '{}': {}", application.name, error.message),
                "use the version that it was registered with, or register it under another name as this version wants it",
            ));
        }
    }
    let orphans: u64 = of_applications.iter().filter(|(of, _)| !applications.contains_key(of)).map(|(_, n)| n).sum();
    if orphans > 0 {
        findings.push(problem(
            "catalog",
            format!("{orphans} queries belong to no application"),
            "restore a backup; these queries do not run",
        ));
    }
    Some(applications)
}

fn examine_checkpoints(folder: &Path, applications: Option<&Applications>, findings: &mut Vec<Finding>) {
    const ABOUT: &str = "checkpoints";
    if !folder.is_dir() {
        let text = format!("there are no checkpoints in {}", folder.display());
        findings.push(notice(
            ABOUT,
            text,
            "queries begin without state; as it should be where checkpoint.enabled is false",
        ));
        return;
    }
    let advice = "the server starts with the newest one that is whole; without any, queries begin without state";
    // Only what is looked at counts, not how many are kept.
    let settings = EpochSettings { retained: usize::MAX };
    let read = Store::folder(folder).and_then(|store| {
        let epochs = Epochs::open(Arc::new(store), saved::LINE, settings)?;
        Ok((epochs.problems().to_vec(), epochs.restore()?))
    });
    let (problems, restored) = match read {
        Ok(read) => read,
        Err(error) => {
            findings.push(problem(ABOUT, error.to_string(), advice));
            return;
        }
    };
    findings.extend(problems.into_iter().map(|text| problem(ABOUT, text, advice)));
    let Some(restored) = restored else {
        let text = format!("{} has no checkpoint of applications", folder.display());
        findings.push(notice(ABOUT, text, "queries begin without state"));
        return;
    };
    let (mut queries, mut bytes) = (0, 0);
    for (name, pieces) in &restored.pieces {
        bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
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
        let name = application.map_or_else(|| number.to_string(), |application| application.name.clone());
        let parts: Option<Vec<(&str, &[u8])>> = pieces.iter().map(|piece| saved::read_piece(piece)).collect();
        let Some(parts) = parts else {
            let text = format!("the state of application {name} does not begin as it should");
            findings.push(problem(ABOUT, text, "its queries begin without state; an older backup may have it"));
            continue;
        };
        if let Some(application) = application
            && parts.last().is_some_and(|(id, _)| *id != application.id)
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
    let text = format!("checkpoint {epoch} is whole: {queries} queries with state, {bytes} bytes");
    findings.push(good(ABOUT, text));
}

fn examine_log(folder: &Path, findings: &mut Vec<Finding>) {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            let text = format!("{} cannot be looked into: {error}", folder.display());
            findings.push(problem("log", text, "let the user that runs the server read it"));
            return;
        }
    };
    let sizes: Vec<u64> = entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).collect();
    findings.push(good("log", format!("{} files, {} bytes", sizes.len(), sizes.iter().sum::<u64>())));
}
