//! A log against a list in memory, through crashes that cut or damage its files anywhere.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn settings() -> LogSettings {
    LogSettings { segment_bytes: 400, commit_interval: Duration::ZERO, ..LogSettings::default() }
}

fn record(payload: &[u8]) -> Record<'_> {
    Record { position: 0, arrival_us: 5, client: b"kim", packet_id: 7, topic: b"a/b", payload }
}

fn append(log: &Log, payload: &[u8]) -> Appended {
    log.append(&record(payload), false, |_| true)
}

fn read_all(log: &Log, from: u64) -> (Vec<(u64, Vec<u8>)>, Read) {
    let mut all = Vec::new();
    let read = log.read(from, u64::MAX, &mut |record| {
        all.push((record.position, record.payload.to_vec()));
        true
    });
    (all, read.unwrap())
}

/// The files of the segments.
fn files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    files.sort();
    files
}

#[test]
fn what_is_durable_is_there_after_reopening_and_positions_go_on() {
    let folder = TempDir::new().unwrap();
    let (log, found) = Log::open(folder.path(), settings()).unwrap();
    assert_eq!((found.first, found.next), (1, 1));
    assert_eq!(read_all(&log, 0).1, Read { next: 1, ..Read::default() }, "nothing was lost of a new log");
    for n in 0..100u8 {
        assert_eq!(append(&log, &[n; 20]), Appended::At(u64::from(n) + 1));
    }
    assert_eq!(log.append(&record(b"no"), false, |_| false), Appended::NotTaken);
    assert!(log.wait_durable(100, Duration::from_secs(60)));
    assert_eq!(log.close(), 0);
    assert_eq!(append(&log, b"late"), Appended::Full, "a closed log takes nothing");
    drop(log);
    let (log, found) = Log::open(folder.path(), settings()).unwrap();
    assert_eq!(found, Found { first: 1, next: 101, ..Found::default() });
    let (all, read) = read_all(&log, 41);
    assert_eq!((all.len(), all[0].clone()), (60, (41, vec![40; 20])));
    assert_eq!(read, Read { records: 60, next: 101, ..Read::default() });
    assert_eq!(append(&log, b"next"), Appended::At(101));
    log.pass(200);
    assert_eq!((append(&log, b"behind"), log.next()), (Appended::At(201), 202));
    assert!(log.wait_durable(201, Duration::from_secs(60)));
    assert_eq!(read_all(&log, 101).0.len(), 2);
}

#[test]
fn a_segment_that_was_being_begun_is_passed_over() {
    for left in [0, 3, 10, segment::HEADER_BYTES] {
        let folder = TempDir::new().unwrap();
        let (log, _) = Log::open(folder.path(), settings()).unwrap();
        assert_eq!(append(&log, b"one"), Appended::At(1));
        log.close();
        drop(log);
        // The name reached the disk, and a part of the header, with zeros in place of a frame.
        let name = folder.path().join(format!("{:020}-{:016x}.log", 2, 9));
        let mut bytes = fs::read(&files(folder.path())[0]).unwrap();
        bytes[left..].fill(0);
        fs::write(&name, &bytes).unwrap();
        assert_eq!(inspect(folder.path()).unwrap().found.next, 2);
        let (log, found) = Log::open(folder.path(), settings()).unwrap();
        assert_eq!((found.next, found.problems.len(), read_all(&log, 1).0.len()), (2, 0, 1), "{left} bytes");
        assert_eq!(append(&log, b"two"), Appended::At(2));
        assert!(log.wait_durable(2, Duration::from_secs(60)));
        assert_eq!(read_all(&log, 1).0.len(), 2);
    }
}

#[test]
fn segments_that_are_not_needed_go() {
    let folder = TempDir::new().unwrap();
    let (log, _) = Log::open(folder.path(), settings()).unwrap();
    for n in 1..=50 {
        assert_eq!(append(&log, &[0; 100]), Appended::At(n));
        assert!(log.wait_durable(n, Duration::from_secs(60)));
    }
    let before = log.stats();
    log.forget_before(30);
    let stats = log.stats();
    assert!(stats.segments < before.segments && stats.disk_bytes < before.disk_bytes);
    assert!(stats.first <= 30 && stats.first > 25, "{stats:?}");
    let on_disk: u64 = files(folder.path()).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert_eq!((on_disk, files(folder.path()).len() as u64), (stats.disk_bytes, stats.segments));
    assert_eq!(read_all(&log, 30).0.len(), 21);
    assert_eq!(read_all(&log, 1).1, Read { records: 51 - stats.first, next: 51, ..Read::default() });
    log.forget_before(u64::MAX);
    assert_eq!(log.stats().segments, 1, "the last one is written to");
    assert_eq!(stats.commits, 50);
}

#[test]
fn a_file_that_was_deleted_is_missed_wherever_it_stood() {
    for place in ["first", "middle", "last"] {
        let folder = TempDir::new().unwrap();
        let (log, _) = Log::open(folder.path(), settings()).unwrap();
        for n in 1..=50 {
            assert_eq!(append(&log, &[0; 100]), Appended::At(n));
            assert!(log.wait_durable(n, Duration::from_secs(60)));
        }
        drop(log);
        let whole = inspect(folder.path()).unwrap();
        assert_eq!((whole.found.problems.len(), whole.gaps.len(), whole.records), (0, 0, 50));
        let files = files(folder.path());
        fs::remove_file(match place {
            "first" => &files[0],
            "middle" => &files[files.len() / 2],
            _ => &files[files.len() - 1],
        })
        .unwrap();
        let found = inspect(folder.path()).unwrap();
        let told = (found.found.problems.len(), found.gaps.len(), found.found.first > 1);
        assert_eq!(told, (usize::from(place == "last"), usize::from(place == "middle"), place == "first"), "{place}");

        let (log, opened) = Log::open(folder.path(), settings()).unwrap();
        assert_eq!((opened.first, opened.next), (found.found.first, found.found.next), "{place}");
        assert_eq!(opened.problems, found.found.problems, "{place}");
        assert_eq!(read_all(&log, 1).1.lost, if place == "middle" { 50 - found.records } else { 0 }, "{place}");
        assert_eq!(append(&log, b"next"), Appended::At(found.found.next), "no position is used again");
        assert!(log.wait_durable(found.found.next, Duration::from_secs(60)));
        drop(log);
        assert!(Log::open(folder.path(), settings()).unwrap().1.problems.is_empty(), "it is said once");
    }
}

#[test]
fn what_somebody_copies_stays_as_it_is_while_the_log_goes_on() {
    let (folder, copy) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (log, _) = Log::open(folder.path(), settings()).unwrap();
    let write = |from: u64, to: u64| {
        (from..=to).for_each(|n| assert_eq!(append(&log, &[n as u8; 100]), Appended::At(n)));
        assert!(log.wait_durable(to, Duration::from_secs(60)));
    };
    write(1, 9);
    let held = log.hold();
    write(10, 30);
    log.forget_before(u64::MAX);
    for (path, bytes) in held.files() {
        let whole = fs::read(path).unwrap();
        fs::write(copy.path().join(path.file_name().unwrap()), &whole[..*bytes as usize]).unwrap();
    }
    drop(held);
    log.forget_before(u64::MAX);
    assert_eq!(log.stats().segments, 1);
    let (copied, found) = Log::open(copy.path(), settings()).unwrap();
    assert_eq!(found, Found { first: 1, next: 10, ..Found::default() }, "whole frames, and all of them");
    assert_eq!(read_all(&copied, 1).1, Read { records: 9, next: 10, ..Read::default() });
}

#[test]
fn an_inspection_says_what_an_opening_would_find() {
    let folder = TempDir::new().unwrap();
    {
        let (log, _) = Log::open(folder.path(), settings()).unwrap();
        for n in 1..=20 {
            assert_eq!(append(&log, &[0; 100]), Appended::At(n));
            assert!(log.wait_durable(n, Duration::from_secs(60)));
        }
    }
    let whole = inspect(folder.path()).unwrap();
    assert_eq!((&whole.found, whole.records), (&Found { first: 1, next: 21, ..Found::default() }, 20));
    assert_eq!(whole.segments, files(folder.path()).len() as u64);
    let last = files(folder.path()).pop().unwrap();
    let mut bytes = fs::read(&last).unwrap();
    bytes.extend_from_slice(b"begun");
    fs::write(&last, bytes).unwrap();
    let first = files(folder.path()).remove(0);
    let mut bytes = fs::read(&first).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    fs::write(&first, bytes).unwrap();
    let inspected = inspect(folder.path()).unwrap();
    assert_eq!(inspected.found.torn_bytes, 5);
    assert!(!inspected.found.problems.is_empty() && inspected.records < 20, "{inspected:?}");
    let unchanged = inspect(folder.path()).unwrap();
    assert_eq!(inspected, unchanged, "nothing is changed");
}

#[test]
fn bounds_hold_and_room_comes_back() {
    let folder = TempDir::new().unwrap();
    let bounded = LogSettings { bytes_max: 3_100, ..settings() };
    let (log, _) = Log::open(folder.path(), bounded).unwrap();
    let mut taken = 0;
    while let Appended::At(position) = append(&log, &[0; 100]) {
        taken = position;
        assert!(log.wait_durable(position, Duration::from_secs(60)));
    }
    let stats = log.stats();
    assert!(
        (10..30).contains(&taken) && stats.disk_bytes <= 3_100 + segment::HEADER_BYTES as u64 && stats.refused == 1,
        "{stats:?}"
    );
    let beyond = log.append(&record(&[0; 100]), true, |_| true);
    assert_eq!(beyond, Appended::At(taken + 1), "what is in the way of making room");
    assert!(log.wait_durable(taken + 1, Duration::from_secs(60)) && log.is_full());
    log.forget_before(taken + 1);
    assert_eq!(append(&log, &[0; 100]), Appended::At(taken + 2));
    // A record larger than the whole limit.
    assert_eq!(append(&log, &[0; 4_000]), Appended::Full);
}

#[test]
fn the_end_of_the_log_is_what_came_last() {
    let folder = TempDir::new().unwrap();
    let (log, _) = Log::open(folder.path(), settings()).unwrap();
    for arrival_us in 0..100 {
        let record = Record { arrival_us, ..record(b"some payload") };
        assert!(matches!(log.append(&record, false, |_| true), Appended::At(_)));
        assert!(log.wait_durable(log.next() - 1, Duration::from_secs(60)));
    }
    let mut last = Vec::new();
    log.read_end(30, u64::MAX, &mut |record| last.push(record.arrival_us)).unwrap();
    assert_eq!(last, (69..100).collect::<Vec<_>>());
    last.clear();
    log.read_end(i64::MAX, 10, &mut |record| last.push(record.arrival_us)).unwrap();
    assert!(
        (10..20).contains(&last.len()) && last.last() == Some(&99),
        "as many as were asked for and the rest of a segment: {last:?}"
    );
}

/// A segment with one frame for each payload, as a process leaves it that could not make the last frame durable.
fn write_segment(folder: &Path, first: u64, payloads: &[&[u8]]) {
    let mut open = segment::Open::create(&RealDisk, folder, first, first + 7).unwrap();
    for (position, payload) in (first..).zip(payloads) {
        let mut frame = Frame::default();
        frame.push(&Record { position, ..record(payload) });
        frame.seal(open.salt);
        open.write(frame.bytes()).unwrap();
        open.sync(frame.len()).unwrap();
    }
}

#[test]
fn what_was_given_up_for_the_next_segment_is_not_read() {
    let folder = TempDir::new().unwrap();
    write_segment(folder.path(), 1, &[b"one", b"given up"]);
    write_segment(folder.path(), 2, &[b"two", b"three"]);
    let (log, found) = Log::open(folder.path(), settings()).unwrap();
    assert_eq!((found.first, found.next), (1, 4));
    let expected = [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()];
    let (all, read) = read_all(&log, 1);
    assert_eq!((all.into_iter().map(|(_, payload)| payload).collect::<Vec<_>>(), read.lost), (expected.to_vec(), 0));
}

/// A disk that refuses to sync folders on demand.
#[derive(Debug, Default)]
struct RefusingDisk(AtomicBool);

impl Disk for RefusingDisk {
    fn make_folder(&self, folder: &Path) -> std::io::Result<()> {
        RealDisk.make_folder(folder)
    }

    fn list(&self, folder: &Path) -> std::io::Result<Vec<(PathBuf, u64)>> {
        RealDisk.list(folder)
    }

    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        RealDisk.read(path)
    }

    fn create(&self, path: &Path) -> std::io::Result<Box<dyn crate::DiskFile>> {
        RealDisk.create(path)
    }

    fn open(&self, path: &Path) -> std::io::Result<Box<dyn crate::DiskFile>> {
        RealDisk.open(path)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        RealDisk.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> std::io::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(std::io::Error::other("not now")),
            false => RealDisk.sync_folder(folder),
        }
    }
}

#[test]
fn a_segment_that_went_is_named_to_nobody() {
    let folder = TempDir::new().unwrap();
    write_segment(folder.path(), 1, &[b"one"]);
    // A segment begun by an earlier process, without a frame: the next frame begins a segment in its place.
    write_segment(folder.path(), 2, &[]);
    let disk = Arc::new(RefusingDisk::default());
    let small = LogSettings { segment_bytes: 0, ..settings() };
    let (log, found) = Log::stepped(disk.clone(), folder.path(), small).unwrap();
    assert_eq!((found.next, append(&log, b"two")), (2, Appended::At(2)));
    for (refuses, count) in [(true, 1), (true, 1), (false, 2)] {
        disk.0.store(refuses, Ordering::Relaxed);
        assert_eq!(log.commit(), !refuses);
        assert_eq!(read_all(&log, 1).0.len(), count);
        let named: Vec<PathBuf> = log.hold().files().iter().map(|(path, _)| path.clone()).collect();
        assert!(named.iter().all(|path| path.exists()), "{named:?}");
    }
    let on_disk: u64 = files(folder.path()).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert_eq!((on_disk, files(folder.path()).len() as u64), (log.stats().disk_bytes, log.stats().segments));
    assert_eq!(Log::stepped(disk, folder.path(), small).unwrap().1.next, 3);
}

/// What is being written, and what gathers meanwhile, is read while the disk does not answer.
#[test]
fn what_is_not_on_disk_yet_is_read_from_memory() {
    let (folder, disk) = (TempDir::new().unwrap(), Arc::new(RefusingDisk::default()));
    let (log, _) = Log::stepped(disk.clone(), folder.path(), settings()).unwrap();
    let pending = |from: u64, until: u64, at_most: usize| {
        let mut all = Vec::new();
        let next = log.read_pending(from, until, &mut |record| {
            let is_taken = all.len() < at_most;
            is_taken.then(|| all.push((record.position, record.payload.to_vec())));
            is_taken
        });
        (all.into_iter().map(|(position, payload)| (position, payload[0])).collect::<Vec<_>>(), next)
    };
    let offer = |payload: &[u8]| assert!(matches!(append(&log, payload), Appended::At(_)));
    offer(b"a");
    assert!(log.commit());
    assert_eq!(pending(1, 9, 9), (vec![], 1), "it is on disk");
    assert_eq!(pending(2, 9, 9), (vec![], 2));
    offer(&[b'b'; 500]);
    // A full segment cannot be followed by another one.
    disk.0.store(true, Ordering::Relaxed);
    assert!(log.commit());
    [b"c", b"d"].into_iter().for_each(|one| offer(one));
    assert!(!log.commit());
    offer(b"e");
    let all = [(3, b'c'), (4, b'd'), (5, b'e')];
    assert_eq!(pending(3, 9, 9), (all.to_vec(), 6));
    assert_eq!(pending(4, 5, 9), (all[1..2].to_vec(), 5));
    assert_eq!(pending(3, 9, 1), (all[..1].to_vec(), 4));
    assert_eq!(pending(2, 9, 9), (vec![], 2), "not with a gap");
    assert_eq!((log.durable(), read_all(&log, 1).1), (2, Read { records: 2, next: 3, ..Read::default() }));
    disk.0.store(false, Ordering::Relaxed);
    assert!(log.commit());
    assert_eq!((pending(3, 9, 9), read_all(&log, 3).0.len()), ((vec![], 3), 3));
}

/// A segment of version 1: its checks have no secret seed, and its header has no check.
fn write_version_1(folder: &Path, first: u64, payloads: &[&[u8]]) -> PathBuf {
    use xxhash_rust::xxh3::xxh3_64;
    let mut bytes = b"RivLog\0\0".to_vec();
    bytes.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&first.to_le_bytes());
    for (position, payload) in (first..).zip(payloads) {
        let mut body = 5i64.to_le_bytes().to_vec();
        body.extend_from_slice(&[7, 0, 0, 3, 0, 3, 0]);
        body.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        body.extend_from_slice(b"kima/b");
        body.extend_from_slice(payload);
        let mut header = b"RvF1".to_vec();
        header.extend_from_slice(&(body.len() as u32).to_le_bytes());
        header.extend_from_slice(&position.to_le_bytes());
        header.extend_from_slice(&1u32.to_le_bytes());
        header.extend_from_slice(&(xxh3_64(&header) as u32).to_le_bytes());
        header.extend_from_slice(&xxh3_64(&body).to_le_bytes());
        bytes.extend([header, body].concat());
    }
    let path = folder.join(format!("{first:020}.log"));
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn what_version_1_has_written_is_read_and_gone_on_with() {
    let folder = TempDir::new().unwrap();
    write_version_1(folder.path(), 1, &[b"one", b"two"]);
    write_version_1(folder.path(), 3, &[b"three"]);
    assert_eq!(inspect(folder.path()).unwrap().found, Found { first: 1, next: 4, ..Found::default() });
    let (log, found) = Log::open(folder.path(), settings()).unwrap();
    assert_eq!(found, Found { first: 1, next: 4, ..Found::default() });
    for n in 4..20 {
        assert_eq!(append(&log, &[n; 30]), Appended::At(n.into()));
        assert!(log.wait_durable(n.into(), Duration::from_secs(60)));
    }
    drop(log);
    let (log, found) = Log::open(folder.path(), settings()).unwrap();
    assert_eq!((found.next, read_all(&log, 1).1), (20, Read { records: 19, next: 20, ..Read::default() }));
    assert!(files(folder.path()).len() > 3);
}

/// The files were written by a server of version 1, in November 2026. A change of the format adds a folder and leaves
/// this one unchanged.
#[test]
fn the_files_of_a_server_of_version_1_are_read() {
    let folder = TempDir::new().unwrap();
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    for file in files(&Path::new(&package).join("tests/data/log-1")) {
        fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let (log, found) = Log::open(folder.path(), settings()).unwrap();
    assert_eq!(found, Found { first: 1, next: 4, ..Found::default() });
    let mut all = Vec::new();
    log.read(1, u64::MAX, &mut |one| {
        assert_eq!((one.client, one.topic, one.packet_id), (&b"kim"[..], &b"in/a"[..], 0));
        all.push(String::from_utf8(one.payload.to_vec()).unwrap());
        true
    })
    .unwrap();
    assert_eq!(all, [r#"{"n":1}"#, r#"{"n":20}"#, r#"{"n":300}"#]);
}

#[test]
fn a_damaged_header_costs_nothing() {
    for version in [1, 2] {
        for at in 0..segment::HEADER_BYTES {
            let folder = TempDir::new().unwrap();
            match version {
                1 => drop(write_version_1(folder.path(), 1, &[b"one", b"two"])),
                _ => write_segment(folder.path(), 1, &[b"one", b"two"]),
            }
            let file = files(folder.path()).remove(0);
            let mut bytes = fs::read(&file).unwrap();
            // A header of version 1 has no check, and a flipped version number may be a valid one.
            if version == 1 && (at >= 24 || (8..12).contains(&at)) {
                continue;
            }
            bytes[at] ^= 0x41;
            fs::write(&file, bytes).unwrap();
            let (log, found) = Log::open(folder.path(), settings()).unwrap();
            assert_eq!((found.next, read_all(&log, 1).0.len()), (3, 2), "version {version}, byte {at}");
        }
    }
}

#[test]
fn a_later_version_is_refused_and_not_taken_for_damage() {
    let folder = TempDir::new().unwrap();
    let path = write_version_1(folder.path(), 1, &[]);
    let mut bytes = fs::read(&path).unwrap();
    bytes.resize(100, 7);
    bytes[8] = 9;
    fs::write(&path, bytes).unwrap();
    let error = Log::open(folder.path(), settings()).unwrap_err();
    assert!(matches!(error, StorageError::Version { found: 9, known: 2, .. }), "{error:?}");
}

#[test]
fn what_a_client_makes_look_like_a_frame_is_none() {
    let folder = TempDir::new().unwrap();
    // A forged frame inside a payload, with a position that could be the next but one.
    let forged = fs::read(write_version_1(folder.path(), 9, &[b"forged"])).unwrap()[24..].to_vec();
    fs::remove_file(files(folder.path()).remove(0)).unwrap();
    let (log, _) = Log::open(folder.path(), settings()).unwrap();
    assert_eq!((append(&log, b"one"), log.wait_durable(1, Duration::from_secs(60))), (Appended::At(1), true));
    assert_eq!((append(&log, &forged), log.wait_durable(2, Duration::from_secs(60))), (Appended::At(2), true));
    drop(log);
    // The frame that contains the payload is torn.
    let file = files(folder.path()).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(forged.len()).position(|window| window == forged).unwrap();
    bytes[at - 1] ^= 1;
    fs::write(&file, bytes).unwrap();
    let (log, found) = Log::open(folder.path(), settings()).unwrap();
    assert_eq!((found.next, read_all(&log, 1).0.len()), (2, 1));
}

#[test]
fn a_lost_end_is_counted_and_reading_ends() {
    let folder = TempDir::new().unwrap();
    write_segment(folder.path(), 1, &[b"one", b"two"]);
    let (log, _) = Log::open(folder.path(), settings()).unwrap();
    // A checkpoint knows higher positions.
    log.pass(7);
    assert_eq!(read_all(&log, 2).1, Read { records: 1, next: 8, lost: 5, lost_from: 3, lost_to: 8 });
    assert_eq!(read_all(&log, 8).1, Read { records: 0, next: 8, ..Read::default() });
}

/// On a disk that is really full, where a file system may be mounted.
#[test]
fn a_full_disk_is_waited_for() {
    let folder = TempDir::new().unwrap();
    let mount = |arguments: &[&str]| {
        let done = std::process::Command::new(arguments[0]).args(&arguments[1..]).arg(folder.path()).output();
        done.is_ok_and(|output| output.status.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs"]) {
        eprintln!("no file system can be mounted here; nothing was tested");
        return;
    }
    let ballast = folder.path().join("ballast");
    fs::write(&ballast, [0; 40_000]).unwrap();
    let log_folder = folder.path().join("log");
    let small = LogSettings { gathered_bytes_max: 20_000, segment_bytes: 8_000, ..settings() };
    let (log, _) = Log::open(&log_folder, small).unwrap();
    let mut taken = Vec::new();
    let begun = Instant::now();
    // Appends until the disk is full, and then the memory.
    while log.stats().problem.is_none() || log.next() as usize == taken.len() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", log.stats());
        let payload = vec![taken.len() as u8; 1_000];
        match append(&log, &payload) {
            Appended::At(_) => taken.push(payload),
            _ if log.stats().problem.is_some() => break,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let stats = log.stats();
    assert!(stats.problem.as_ref().is_some_and(|problem| problem.contains("no room")), "{stats:?}");
    assert!(stats.durable < taken.len() as u64 && stats.failures > 0);
    // A crash now would leave exactly the records reported as durable.
    let copy = TempDir::new().unwrap();
    for file in files(&log_folder) {
        fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    let (crashed, found) = Log::open(copy.path(), small).unwrap();
    assert!(found.next > stats.durable, "{found:?}");
    drop(crashed);
    fs::remove_file(&ballast).unwrap();
    assert!(log.wait_durable(taken.len() as u64, Duration::from_secs(60)));
    assert_eq!(log.stats().problem, None);
    let (all, read) = read_all(&log, 1);
    assert_eq!((all.into_iter().map(|(_, payload)| payload).collect::<Vec<_>>(), read.lost), (taken, 0));
    drop(log);
    assert!(mount(&["umount"]));
}

#[derive(Clone, Debug)]
enum Step {
    /// Append records of these sizes.
    Append(Vec<usize>),
    /// Wait until all records are durable.
    Wait,
    /// Forget all positions below this fraction of them.
    Forget(f64),
    /// The process ends now. The last file is cut at this fraction of what a crash may take, or a bit of any file is
    /// flipped.
    Crash { cut: f64, flip: Option<(f64, f64)> },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(0..300usize, 1..20).prop_map(Step::Append),
        2 => Just(Step::Wait),
        1 => (0.0..1.0).prop_map(Step::Forget),
        2 => (0.0..1.0, prop::option::weighted(0.3, (0.0..1.0, 0.0..1.0)))
            .prop_map(|(cut, flip)| Step::Crash { cut, flip }),
    ]
}

/// Copies the files as a crash leaves them.
fn crash(log: Log, from: &Path, cut: f64, flip: Option<(f64, f64)>) -> TempDir {
    let durable = log.durable();
    let copy = TempDir::new().unwrap();
    for file in files(from) {
        fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    drop(log);
    let all = files(copy.path());
    if let Some(last) = all.last() {
        let bytes = fs::read(last).unwrap();
        // Durable records are on disk; any part of the others may be.
        let mut end = 0;
        let segment = segment::list(&RealDisk, copy.path()).unwrap().pop().expect("it has the name of one");
        if let Ok(body) = segment::body(&segment, &bytes) {
            let begin = bytes.len() - body.bytes.len();
            let mut parts = body.frames();
            end = begin.min(bytes.len());
            while let Some(part) = parts.next() {
                if matches!(part, Part::Frame(frame) if frame.next() <= durable + 1) {
                    end = begin + parts.at();
                }
            }
        }
        let kept = end + ((bytes.len() - end) as f64 * cut) as usize;
        fs::write(last, &bytes[..kept]).unwrap();
    }
    if let (Some((file, at)), false) = (flip, all.is_empty()) {
        let file = &all[(file * all.len() as f64) as usize];
        let mut bytes = fs::read(file).unwrap();
        if !bytes.is_empty() {
            let at = (at * bytes.len() as f64) as usize;
            bytes[at] ^= 0x10;
            fs::write(file, bytes).unwrap();
        }
    }
    copy
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn through_crashes_it_is_a_list(steps in prop::collection::vec(step(), 1..25)) {
        let mut folder = TempDir::new().unwrap();
        let mut log = Log::open(folder.path(), settings()).unwrap().0;
        // The records appended, by position, and the position up to which they must survive.
        let mut model: std::collections::BTreeMap<u64, Vec<u8>> = Default::default();
        let mut forgotten = 1;
        // Damage stays, unless the same bit is flipped again, which restores the record.
        let mut is_damaged = false;
        let mut unread = model.clone();
        for step in steps {
            match step {
                Step::Append(sizes) => for (n, bytes) in sizes.into_iter().enumerate() {
                    let payload = vec![n as u8; bytes];
                    let Appended::At(position) = append(&log, &payload) else { panic!("there is room") };
                    prop_assert!(model.insert(position, payload).is_none());
                },
                Step::Wait => prop_assert!(log.wait_durable(log.next() - 1, Duration::from_secs(60))),
                Step::Forget(part) => {
                    forgotten = forgotten.max((log.next() as f64 * part) as u64);
                    log.forget_before(forgotten);
                }
                Step::Crash { cut, flip } => {
                    let durable = log.durable();
                    let next_folder = crash(log, folder.path(), cut, flip);
                    let (opened, found) = Log::open(next_folder.path(), settings()).unwrap();
                    (log, folder) = (opened, next_folder);
                    let (all, read) = read_all(&log, 1);
                    for (position, payload) in &all {
                        let known = model.get(position).or_else(|| unread.get(position));
                        prop_assert_eq!(known, Some(payload), "at {}", position);
                    }
                    is_damaged |= flip.is_some();
                    if !is_damaged {
                        prop_assert!(found.next > durable && found.problems.is_empty() && read.lost == 0);
                        prop_assert_eq!(all.len(), model.range(log.stats().first..found.next).count());
                    }
                    // A checkpoint that knows higher positions reports them.
                    log.pass(durable);
                    let next = log.next();
                    prop_assert!(next > durable);
                    let left: Vec<u64> = all.iter().map(|(position, _)| *position).collect();
                    let gone = model.iter().filter(|(position, _)| is_damaged && left.binary_search(position).is_err());
                    unread.extend(gone.map(|(position, payload)| (*position, payload.clone())));
                    model.retain(|position, _| left.binary_search(position).is_ok());
                    model.retain(|position, _| *position < next);
                }
            }
        }
    }
}
