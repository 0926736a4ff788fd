//! The checkpoints of big queries: one line for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rivulet_sql::Statement;
use rivulet_storage::{Place, Store};

use super::finding::{Finding, good, notice, problem};
use crate::catalog::StoredStatement;
use crate::counted::counted;
use crate::data_folder::lines;
use crate::engine::saved_queries::{self, Examined};
use crate::service::FullName;

const ABOUT: &str = "big queries";

/// The checkpoints of a big query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedQuery {
    /// Its number in the catalog.
    pub number: u64,
    /// Its name; `None` if the catalog does not have it.
    pub name: Option<String>,
    /// The newest intact checkpoint; `None` if there is none.
    pub epoch: Option<u64>,
    /// Its age, if it has the time when it was made.
    pub age_ms: Option<u64>,
    /// Bytes that a restart would read.
    pub bytes: u64,
    /// Whether it has come to the end of its input.
    pub has_ended: bool,
    /// Its damaged parts.
    pub problems: Vec<String>,
}

/// Examines the checkpoints of big queries: those of `statements` in the catalog, if the catalog can be read, and all
/// others.
pub(super) fn examine(
    place: &Place,
    statements: Option<&[StoredStatement]>,
    findings: &mut Vec<Finding>,
) -> Vec<SavedQuery> {
    findings.extend(statements.unwrap_or_default().iter().filter_map(failed));
    let known: BTreeMap<u64, (FullName, u64)> = statements.unwrap_or_default().iter().filter_map(query_of).collect();
    let exists = !matches!(place, Place::Folder(folder) if !folder.is_dir());
    let store = exists.then(|| Store::open(place).ok()).flatten().map(Arc::new);
    let mut numbers = match store.as_ref().map(|store| lines::numbers(store)).transpose() {
        Ok(numbers) => numbers.unwrap_or_default(),
        // That the place cannot be read was reported for the checkpoints of applications.
        Err(_) => return Vec::new(),
    };
    numbers.extend(known.keys());
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as i64);
    let mut all = Vec::with_capacity(numbers.len());
    for number in numbers {
        let examined = store.as_ref().map(|store| saved_queries::examine(store, number)).transpose();
        let known = known.get(&number);
        let about =
            known.map_or_else(|| format!("query number {number}"), |(name, _)| format!("query '{}'", name.in_log()));
        let examined = match examined {
            Ok(examined) => examined,
            Err(error) => {
                let text = error.to_string();
                let (text, hint) = text.split_once("\nhint: ").unwrap_or((&text, "look at the disk"));
                findings.push(problem(ABOUT, format!("{about}: {text}"), hint));
                continue;
            }
        };
        let is_of_another =
            |one: &Examined| known.is_some_and(|(_, text)| one.text.is_some_and(|noted| noted != *text));
        let one = examined.filter(|one| !is_of_another(one));
        let (epoch, has_ended) = one.as_ref().map_or((None, false), |one| (one.epoch, one.has_ended));
        let saved = SavedQuery {
            number,
            name: known.map(|(name, _)| name.in_log()),
            epoch,
            age_ms: one.as_ref().and_then(|one| u64::try_from(now_ms - one.made_ms?).ok()),
            bytes: one.as_ref().map_or(0, |one| one.bytes),
            has_ended,
            problems: one.map(|one| one.problems).unwrap_or_default(),
        };
        findings.push(finding(&about, &saved, statements.is_some()));
        all.push(saved);
    }
    all
}

/// The finding for a query that a start does not run, because an error has ended it or it may end the server.
fn failed(stored: &StoredStatement) -> Option<Finding> {
    let (_, (name, _)) = query_of(stored)?;
    let text = format!("query '{}' does not run: {}", name.in_log(), stored.failure.as_ref()?);
    let name = rivulet_sql::name_in_sql(&name.name);
    Some(notice(ABOUT, text, &format!("mend what is wrong, then start it with RESUME QUERY {name}, or drop it")))
}

/// Number, name and checksum of the text of the query that a statement creates.
fn query_of(stored: &StoredStatement) -> Option<(u64, (FullName, u64))> {
    match rivulet_sql::parse_stored(&stored.sql).ok()?.statement {
        Statement::CreateBigQuery(create) => {
            let checksum = saved_queries::checksum(&create.query.text);
            Some((stored.number, (stored.tenant.named(create.name.text), checksum)))
        }
        _ => None,
    }
}

fn finding(about: &str, saved: &SavedQuery, is_catalog_known: bool) -> Finding {
    let SavedQuery { name, epoch, age_ms, bytes, has_ended, problems, .. } = saved;
    let bytes = counted(*bytes, "byte");
    let at = age_ms.map_or_else(String::new, |age_ms| format!(" was made {} ago and", ago(age_ms)));
    match (epoch, problems.as_slice()) {
        (Some(epoch), []) if name.is_none() && is_catalog_known => notice(
            ABOUT,
            format!("there is a checkpoint {epoch} of {about}, which the catalog does not have, {bytes}"),
            "it goes at the next start of the server",
        ),
        (Some(epoch), []) => {
            let end = if *has_ended { "; it has come to the end of its input, and does not run again" } else { "" };
            good(ABOUT, format!("{about}: its checkpoint {epoch}{at} is whole, {bytes}{end}"))
        }
        (None, []) => {
            notice(ABOUT, format!("{about}: there is no checkpoint of it"), "it begins from the start of its sources")
        }
        (epoch, problems) => {
            let goes_on = epoch.map_or_else(
                || "it begins anew".to_owned(),
                |epoch| format!("if it can be read, it goes on from checkpoint {epoch}"),
            );
            let text = format!("{about}: damaged: {}", problems.join("; "));
            problem(
                ABOUT,
                text,
                format!("{goes_on}, and what was written since then may come twice; an older backup may have it"),
            )
        }
    }
}

/// A time span in its largest unit.
fn ago(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examine::finding::Level;

    fn saved() -> SavedQuery {
        let name = Some("means".to_owned());
        SavedQuery {
            number: 3,
            name,
            epoch: Some(12),
            age_ms: Some(150_000),
            bytes: 99,
            has_ended: false,
            problems: Vec::new(),
        }
    }

    #[test]
    fn each_is_said_to_be_whole_or_what_is_wrong() {
        let said = |saved: SavedQuery| {
            let Finding { level, text, .. } = finding("query 'means'", &saved, true);
            (level, text)
        };
        let (level, text) = said(saved());
        assert_eq!(level, Level::Good);
        assert_eq!(text, "query 'means': its checkpoint 12 was made 2 min ago and is whole, 99 bytes");
        assert!(said(SavedQuery { has_ended: true, age_ms: None, ..saved() }).1.contains("checkpoint 12 is whole"));
        assert_eq!(said(SavedQuery { name: None, ..saved() }).0, Level::Notice);
        assert_eq!(said(SavedQuery { epoch: None, ..saved() }).0, Level::Notice);
        let problems = vec!["epoch 13 cannot be used".to_owned()];
        assert_eq!(said(SavedQuery { problems, ..saved() }).0, Level::Problem);
    }

    #[test]
    fn time_spans_are_in_their_largest_unit() {
        for (ms, text) in
            [(0, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (7_200_000, "2 h"), (200_000_000, "2 days")]
        {
            assert_eq!(ago(ms), text);
        }
    }
}
