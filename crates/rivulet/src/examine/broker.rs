//! The data of the embedded broker: its journal of sessions and retained messages.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rivulet_connectors::mqtt::{JournalContents, JournalSummary};
use rivulet_storage::log::read_closed;

use super::finding::{Finding, good, notice, problem};
use super::log::{inspected, torn};
use crate::counted::counted;

const ABOUT: &str = "broker";

/// The advice if parts of the journal are damaged or missing.
const DAMAGED: &str = "a start takes what is whole: sessions, subscriptions and messages that stood in the damaged \
     part are lost, their clients subscribe anew, and retained messages come again when they are published; look at \
     the disk, or restore a backup";

/// Examines the journal in its folder, if there is one.
pub(super) fn examine(folder: &Path, findings: &mut Vec<Finding>) {
    if !folder.exists() {
        return;
    }
    let advice = "let the user that runs the server read it; with the folder moved away, the broker begins without \
         sessions and retained messages";
    let Some(inspected) = inspected(ABOUT, folder, advice, findings) else { return };
    let found = &inspected.found;
    let mut contents = JournalContents::default();
    let read = match read_closed(folder, found.next, &mut |record| contents.take(record.payload)) {
        Ok(read) => read,
        Err(error) => {
            findings.push(problem(ABOUT, error.to_string(), advice));
            return;
        }
    };
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as i64);
    let JournalSummary { sessions, waiting, retained, missing, unreadable } = contents.finish(now_us);
    let (files, bytes) = (inspected.segments, inspected.bytes);
    let text = format!(
        "the journal has {}, {}: {}, {}, {}",
        counted(files, "file"),
        counted(bytes, "byte"),
        counted(sessions, "session"),
        counted(waiting, "waiting message"),
        counted(retained, "retained message")
    );
    findings.push(good(ABOUT, text));
    if found.torn_bytes > 0 {
        let text = torn(found.torn_bytes);
        findings.push(notice(ABOUT, text, "the next start cuts them off; nothing of that was acknowledged"));
    }
    let nothing_lost = "nothing is lost: none of that was acknowledged from there";
    findings.extend(inspected.notices.iter().map(|text| notice(ABOUT, text.clone(), nothing_lost)));
    findings.extend(found.problems.iter().map(|text| problem(ABOUT, text.clone(), DAMAGED)));
    if read.lost > 0 {
        let text = format!("{} in the middle of the journal cannot be read", counted(read.lost, "change"));
        findings.push(problem(ABOUT, text, DAMAGED));
    }
    if missing > 0 {
        let text = format!("the journal lacks {} that should wait or be retained", counted(missing, "message"));
        findings.push(problem(ABOUT, text, DAMAGED));
    }
    if unreadable > 0 {
        let text = format!("this version does not understand {}", counted(unreadable, "change"));
        let advice = "a later version may have written them: start that one, or these changes are lost";
        findings.push(problem(ABOUT, text, advice));
    }
}
