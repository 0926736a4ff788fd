//! The log of events.

use std::path::Path;

use rivulet_storage::log::{Inspected, inspect};

use super::finding::{Finding, good, notice, problem};
use crate::counted::counted;

/// Reads the files of a log. Returns `None` if that cannot be done, which is a problem; `advice` is for errors that
/// have no hint.
pub(super) fn inspected(
    about: &'static str,
    folder: &Path,
    advice: &str,
    findings: &mut Vec<Finding>,
) -> Option<Inspected> {
    inspect(folder)
        .map_err(|error| {
            let text = error.to_string();
            let (text, hint) = text.split_once("\nhint: ").unwrap_or((&text, advice));
            findings.push(problem(about, text.to_owned(), hint));
        })
        .ok()
}

/// The sentence about bytes that were being written when the server ended.
pub(super) fn torn(bytes: u64) -> String {
    format!("the server ended while it wrote the last {}", counted(bytes, "byte"))
}

/// Examines the log. `from` is the position from which on checkpoints need it; the outer `None` means that this is
/// unknown, the inner one that no checkpoint has any events.
pub(super) fn examine(folder: &Path, from: Option<Option<u64>>, findings: &mut Vec<Finding>) {
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
