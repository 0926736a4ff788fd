//! The log of events, whose files were changed while no process had it open. Opened again, it gives records as they
//! were written, each at its position and in order, and continues behind them. Forged frames with right checks may be
//! read, and do no harm.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rivulet_storage::StorageError;
use rivulet_storage::log::{Appended, Log, LogSettings, Record};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::edits::{self, Files};
use crate::input::Input;
use crate::{Target, scratch};

/// See the module.
pub const TARGET: Target = Target { name: "event_log", run, words: &["RvF1", "RivLog\u{0}\u{0}"], mutations: 1_000 };

const RECORDS: u64 = 24;

/// How long the log's own thread may take.
const WAIT_MAX: Duration = Duration::from_secs(20);

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (folder, mut files) = (scratch::folder(), whole().clone());
    let is_forged = input.byte() % 4 == 1;
    if is_forged {
        forge(&mut files, &mut input);
    }
    edits::apply(&mut files, &mut input);
    // Only the last file is looked through at a start: when it is gone, and others stand under names that are not
    // theirs, positions are given out again.
    let is_exact = !is_forged && whole().iter().filter(|(name, bytes)| files.get(*name) != Some(*bytes)).count() <= 1;
    write(folder.path(), &files);
    // A file of another version, or a file that is no segment, is an error.
    let Ok((log, found)) = Log::open(folder.path(), settings()) else { return };
    assert!(found.next >= 1 && found.first <= found.next);
    // So is an older one of another version.
    let Some(before) = read(&log, is_forged) else { return };
    assert!(before.last_key_value().is_none_or(|(&last, _)| last < found.next), "positions go on behind what is there");
    let new = record(found.next);
    let appended = log.append(&borrowed(&new, 0), false, |position| position == found.next);
    assert_eq!(appended, Appended::At(found.next));
    assert!(log.wait_durable(found.next, WAIT_MAX), "{:?}", log.stats());
    log.read_end(1_000_000, u64::MAX, &mut |_| {}).expect("the log can be read");
    drop(log);
    let (log, _) = Log::open(folder.path(), settings()).expect("it was opened before");
    let after = read(&log, is_forged).expect("it could be read before");
    if is_exact {
        assert_eq!(after.get(&found.next), Some(&new), "what is durable is read back");
        assert_eq!(after.range(..found.next).collect::<Vec<_>>(), before.iter().collect::<Vec<_>>());
    }
}

/// Small segments, so that there are several.
fn settings() -> LogSettings {
    LogSettings { bytes_max: 1 << 20, segment_bytes: 300, gathered_bytes_max: 1 << 16, commit_interval: Duration::ZERO }
}

/// A record without its position.
type Content = (i64, u16, Vec<u8>, Vec<u8>, Vec<u8>);

fn record(position: u64) -> Content {
    let text = |length: u64| vec![b'a' + (position % 26) as u8; length as usize];
    (position as i64 * 1_000, position as u16, text(position % 3), text(1 + position % 5), text(position * 7 % 40))
}

fn borrowed((arrival_us, packet_id, client, topic, payload): &Content, position: u64) -> Record<'_> {
    Record { position, arrival_us: *arrival_us, client, packet_id: *packet_id, topic, payload }
}

/// All records by position; `None` if a file is of another version.
fn read(log: &Log, is_forged: bool) -> Option<BTreeMap<u64, Content>> {
    let mut records = BTreeMap::new();
    let mut last = 0;
    let read = log.read(0, u64::MAX, &mut |one| {
        assert!(one.position > last || is_forged, "{} behind {last}", one.position);
        last = one.position;
        let content = (one.arrival_us, one.packet_id, one.client.to_vec(), one.topic.to_vec(), one.payload.to_vec());
        if !is_forged {
            assert_eq!(content, record(one.position), "what is read is what was written");
        }
        records.insert(one.position, content);
        true
    });
    let read = match read {
        Err(StorageError::Version { .. }) => return None,
        read => read.expect("what is damaged is passed over"),
    };
    assert!(is_forged || read.records == records.len() as u64);
    Some(records)
}

/// The files of an intact log.
fn whole() -> &'static Files {
    static WHOLE: OnceLock<Files> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let folder = scratch::folder();
        let (log, _) = Log::open(folder.path(), settings()).expect("a log can be made");
        for position in 1..=RECORDS {
            let content = record(position);
            assert_eq!(log.append(&borrowed(&content, 0), false, |_| true), Appended::At(position));
            // Some frames have two records.
            assert!(position % 3 == 1 || log.wait_durable(position, WAIT_MAX));
        }
        drop(log);
        let files = std::fs::read_dir(folder.path()).expect("the folder is there");
        let files: Files = files
            .map(|entry| {
                let path = entry.expect("the folder can be listed").path();
                (
                    path.file_name().expect("it has a name").to_string_lossy().into_owned(),
                    std::fs::read(&path).expect("it can be read"),
                )
            })
            .collect();
        assert!(files.len() > 2, "there are several segments");
        files
    })
}

fn write(folder: &Path, files: &Files) {
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).expect("the file can be written");
    }
}

/// Appends a frame to a segment that has right checks, whatever it says: they begin with the salt, which is in the
/// name.
fn forge(files: &mut Files, input: &mut Input<'_>) {
    let name = files.keys().nth(input.below(files.len())).cloned().unwrap_or_default();
    let mut number = || {
        let number = u64::from_le_bytes(std::array::from_fn(|_| input.byte()));
        // Near the ends of what there is.
        if number % 3 == 0 { u64::MAX - number % 7 } else { number % 64 }
    };
    let (first, records) = (number(), number() as u32);
    let body = input.piece();
    let mut frame = b"RvF1".to_vec();
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&first.to_le_bytes());
    frame.extend_from_slice(&records.to_le_bytes());
    let salt = name.split(['-', '.']).nth(1).and_then(|salt| u64::from_str_radix(salt, 16).ok()).unwrap_or_default();
    let check = xxh3_64_with_seed(&frame, salt) as u32;
    frame.extend_from_slice(&check.to_le_bytes());
    frame.extend_from_slice(&xxh3_64_with_seed(body, salt).to_le_bytes());
    frame.extend_from_slice(body);
    if let Some(file) = files.get_mut(&name) {
        file.extend_from_slice(&frame);
    }
}
