//! The record of what callers do: JSON lines in files that are replaced by size.
//!
//! What must hold: nobody waits for the disk. Entries wait in a bounded queue for a thread that writes them. Those for
//! which there is no room, because the disk is full or too slow, are counted, and the log of the server tells it.
//! Clients without credentials, of whom there may be any number, get one line for an address and minute. Texts of
//! clients are cut, so that the queue takes a bounded amount of memory.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rivulet_connectors::logins::network;
use serde_json::{Map, Value, json};

use super::token;
use crate::catalog::OWNER_ONLY;
use crate::config::AuditConfig;
use crate::service::{Action, AuditEntry, Auditor, ErrorKind, LoginProof, Origin, ServiceError};
use crate::times::at;

/// The file that is written now. Those before it have the time at which they ended in their names.
const FILE_NAME: &str = "audit.jsonl";

/// Entries that wait to be written. About 300 bytes each, and some KiB with the longest texts.
const QUEUE_MAX: usize = 16_384;

/// The longest text of a client in an entry, in characters.
const TEXT_CHARACTERS_MAX: usize = 500;

/// How many may wait while changes are made, if none is to be without an entry: some are asked for at the same time.
const QUEUE_ADMITS: usize = QUEUE_MAX - 1_024;

/// How long clients without credentials are counted until a line tells of them.
const COUNTED_FOR: Duration = Duration::from_secs(60);

/// The most addresses of which they are counted one by one. Others are counted together.
const ADDRESSES_MAX: usize = 1_024;

/// How often the counts are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(10);

/// How much of the newest files is read for the last entries.
const READ_MAX: u64 = 1 << 20;

/// How often a disk that fails is tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// The record of one server.
pub(crate) struct AuditLog {
    config: AuditConfig,
    /// `None` once it is closed.
    queue: Mutex<Option<SyncSender<Vec<u8>>>>,
    state: Arc<State>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    lost: AtomicU64,
    is_failing: AtomicBool,
    is_closing: AtomicBool,
    /// How many entries are in the queue.
    queued: AtomicUsize,
    anonymous: Mutex<Anonymous>,
}

impl State {
    /// The lines about clients without credentials whose time is over, or about all of them.
    fn counted(&self, all: bool) -> Vec<Vec<u8>> {
        let counts = self.anonymous.lock().take(all).into_iter();
        let line = |(origin, (count, refused))| {
            let (caller, action, resource, statement) = (None, None, None, None);
            audit_line(&AuditEntry { caller, origin, action, resource, count, statement, refused: Some(refused) })
        };
        counts.map(line).collect()
    }
}

/// How many came from where, and why they were refused.
type Counts = BTreeMap<Option<Origin>, (usize, &'static str)>;

/// Clients without credentials that no line tells of yet.
#[derive(Default)]
struct Anonymous {
    /// When the first of them came.
    since: Option<Instant>,
    counts: Counts,
}

impl Anonymous {
    fn add(&mut self, origin: Option<Origin>, refused: &'static str) {
        self.since.get_or_insert_with(Instant::now);
        let mut origin = origin.map(|origin| Origin { address: origin.address.map(network), ..origin });
        if self.counts.len() >= ADDRESSES_MAX && !self.counts.contains_key(&origin) {
            origin = origin.map(|origin| Origin { address: None, ..origin });
        }
        self.counts.entry(origin).or_insert((0, refused)).0 += 1;
    }

    fn take(&mut self, all: bool) -> Counts {
        if !all && self.since.is_none_or(|since| since.elapsed() < COUNTED_FOR) {
            return Counts::new();
        }
        self.since = None;
        std::mem::take(&mut self.counts)
    }
}

impl AuditLog {
    /// Begins the record. Its folder is made with the first entry.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(config: &AuditConfig) -> io::Result<Arc<Self>> {
        let (queue, entries) = sync_channel(QUEUE_MAX);
        let state = Arc::<State>::default();
        let mut writer = Writer { config: config.clone(), state: state.clone(), file: None };
        let thread = std::thread::Builder::new().name("rivulet-audit".into()).spawn(move || writer.run(&entries))?;
        let (queue, thread) = (Mutex::new(Some(queue)), Mutex::new(Some(thread)));
        Ok(Arc::new(Self { config: config.clone(), queue, state, thread }))
    }

    /// Writes what waits, and ends.
    pub(crate) fn close(&self) {
        self.state.is_closing.store(true, Ordering::Release);
        drop(self.queue.lock().take());
        if let Some(thread) = self.thread.lock().take() {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Auditor for AuditLog {
    fn note(&self, entry: &AuditEntry<'_>) {
        let is_look = matches!(entry.action, None | Some(Action::Read | Action::Subscribe | Action::Publish));
        if is_look && entry.refused.is_none() && !self.config.reads {
            return;
        }
        let line = audit_line(entry);
        let queue = self.queue.lock();
        self.state.queued.fetch_add(1, Ordering::Relaxed);
        let is_queued = queue.as_ref().is_some_and(|queue| queue.try_send(line).is_ok());
        if !is_queued {
            self.state.queued.fetch_sub(1, Ordering::Relaxed);
        }
        if !is_queued && self.state.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!("entries of the audit are lost, because its files are not written as fast as they come");
        }
    }

    fn note_anonymous(&self, origin: Option<Origin>, refused: &'static str) {
        self.state.anonymous.lock().add(origin, refused);
    }

    fn admits_changes(&self) -> Result<(), ServiceError> {
        if !self.config.required {
            return Ok(());
        }
        let message = if self.state.is_failing.load(Ordering::Acquire) {
            "the audit cannot be written, and audit.required says that no change is made without it"
        } else if self.state.queued.load(Ordering::Relaxed) >= QUEUE_ADMITS {
            let message = "the audit is not written as fast as it comes, and audit.required says that no change is \
                           made without it";
            return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint("try again in some seconds"));
        } else {
            return Ok(());
        };
        Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint(format!(
            "make room for {}; the log of the server says what is wrong",
            self.config.folder.display()
        )))
    }

    fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Relaxed)
    }

    fn last(&self, tenant: Option<&str>, limit: usize) -> io::Result<Vec<Value>> {
        // It may be gone by now, or not be there yet.
        let open = |path: &Path| match File::open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        // Opened before the others are listed, of which it may be one a moment later.
        let present = open(&self.config.folder.join(FILE_NAME))?;
        let number = present.as_ref().map(|file| file.metadata().map(|known| known.ino())).transpose()?;
        let (mut last, mut left) = (Vec::new(), READ_MAX);
        let mut files = earlier_files(&self.config.folder)?;
        let mut next = present;
        loop {
            let Some(mut file) = next.take() else {
                let Some(path) = files.pop() else { break };
                next = open(&path)?.filter(|file| file.metadata().map(|known| known.ino()).ok() != number);
                continue;
            };
            let from = file.metadata()?.len().saturating_sub(left);
            file.seek(SeekFrom::Start(from))?;
            let mut text = Vec::new();
            left -= file.take(left).read_to_end(&mut text)? as u64;
            // The first line may be cut, and no JSON then.
            let lines = text.rsplit(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
            last.extend(lines.filter(|line: &Value| tenant.is_none_or(|tenant| line["tenant"] == tenant)));
            if last.len() >= limit || left == 0 {
                break;
            }
        }
        last.truncate(limit);
        Ok(last)
    }
}

/// The line of an entry as it is written: JSON, with a line break behind it.
pub fn audit_line(entry: &AuditEntry<'_>) -> Vec<u8> {
    let mut line = line(entry).to_string().into_bytes();
    line.push(b'\n');
    line
}

fn line(entry: &AuditEntry<'_>) -> Value {
    let now_us = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let mut line = Map::new();
    let mut put = |name: &str, value: Value| drop(line.insert(name.to_owned(), value));
    put("time", json!(at(i64::try_from(now_us).unwrap_or(i64::MAX))));
    if let Some(caller) = entry.caller {
        put("tenant", json!(caller.tenant().as_str()));
        put("user", json!(caller.name()));
        if let Some(login) = caller.login() {
            match &login.token.proof {
                LoginProof::Token(id) => put("token", json!(token::id_text(*id))),
                LoginProof::Password => put("by", json!("password")),
                LoginProof::Certificate => put("by", json!("certificate")),
                LoginProof::Jwt { issuer, subject } => {
                    put("by", json!("jwt"));
                    put("issuer", json!(issuer));
                    put("subject", json!(subject));
                }
            }
        }
        if let Some(client) = caller.client_id() {
            put("client", json!(cut(client)));
        }
    }
    if let Some(origin) = entry.origin {
        put("door", json!(origin.door));
        if let Some(address) = origin.address {
            put("address", json!(address.to_string()));
        }
    }
    put("action", json!(entry.action.map_or("login", Action::name)));
    if let Some(resource) = entry.resource {
        put("kind", json!(resource.kind.name()));
        if let Some(name) = resource.name {
            put("name", json!(cut(name)));
        }
    }
    if entry.count != 1 {
        put("count", json!(entry.count));
    }
    if let Some(statement) = entry.statement {
        put("statement", json!(statement));
    }
    put("allowed", json!(entry.refused.is_none()));
    if let Some(why) = entry.refused {
        put("why", json!(cut(why)));
    }
    Value::Object(line)
}

/// The text, or the begin of a long one.
fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(TEXT_CHARACTERS_MAX) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// The files before the present one, oldest first; none if there is no folder yet.
fn earlier_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("audit-") && name.ends_with(".jsonl")
        })
        .collect();
    files.sort();
    Ok(files)
}

/// Writes the files.
struct Writer {
    config: AuditConfig,
    state: Arc<State>,
    /// The file, and how many bytes it has.
    file: Option<(File, u64)>,
}

impl Writer {
    fn run(&mut self, entries: &Receiver<Vec<u8>>) {
        let mut waiting: VecDeque<Vec<u8>> = VecDeque::new();
        let mut has_ended = false;
        loop {
            if waiting.is_empty() {
                waiting.extend(self.state.counted(has_ended));
            }
            let Some(next) = waiting.front() else {
                if has_ended {
                    return;
                }
                match entries.recv_timeout(LOOK_PERIOD) {
                    Ok(line) => {
                        self.state.queued.fetch_sub(1, Ordering::Relaxed);
                        waiting.push_back(line);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => has_ended = true,
                }
                continue;
            };
            let Err(error) = self.write(next) else {
                waiting.pop_front();
                if self.state.is_failing.swap(false, Ordering::AcqRel) {
                    tracing::info!("the audit is written again");
                }
                continue;
            };
            self.file = None;
            if !self.state.is_failing.swap(true, Ordering::AcqRel) {
                let folder = self.config.folder.display();
                tracing::error!("the audit in {folder} is not written, and entries are lost if that lasts: {error}");
            }
            if self.state.is_closing.load(Ordering::Acquire) {
                let left = waiting.len() + entries.try_iter().count() + self.state.counted(true).len();
                self.state.lost.fetch_add(left as u64, Ordering::Relaxed);
                return;
            }
            // The queue holds what comes meanwhile.
            std::thread::sleep(RETRY_PERIOD);
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let path = self.config.folder.join(FILE_NAME);
        let is_full = |bytes: u64| bytes > 0 && bytes + line.len() as u64 > self.config.file_bytes_max;
        if self.file.as_ref().is_some_and(|(_, bytes)| is_full(*bytes)) {
            self.file = None;
            self.replace(&path)?;
        }
        if self.file.is_none() {
            std::fs::create_dir_all(&self.config.folder)?;
            let file = OpenOptions::new().create(true).append(true).mode(OWNER_ONLY).open(&path)?;
            let bytes = file.metadata()?.len();
            self.file = Some((file, bytes));
        }
        let Some((file, bytes)) = &mut self.file else { return Ok(()) };
        let before = *bytes;
        // A line that is written in part is taken back, so that every line is whole.
        file.write_all(line).inspect_err(|_| drop(file.set_len(before)))?;
        *bytes += line.len() as u64;
        Ok(())
    }

    /// Gives the present file a name of its own, and removes the oldest files.
    fn replace(&self, path: &Path) -> io::Result<()> {
        let now_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let named = |number: u128| self.config.folder.join(format!("audit-{number:015}.jsonl"));
        let free = (now_ms..).map(named).find(|name| !name.exists()).expect("some name is free");
        std::fs::rename(path, free)?;
        let files = earlier_files(&self.config.folder)?;
        let kept = self.config.files_max.saturating_sub(1);
        let surplus = files.len().saturating_sub(kept);
        files[..surplus].iter().try_for_each(std::fs::remove_file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Caller;

    fn entry(caller: &Caller) -> AuditEntry<'_> {
        AuditEntry {
            caller: Some(caller),
            origin: None,
            action: Some(Action::Change),
            resource: None,
            count: 1,
            statement: Some("DROP QUERY q"),
            refused: None,
        }
    }

    #[test]
    fn long_texts_of_clients_are_cut() {
        let caller = Caller::new("acme", "ann");
        // What is not text takes the most.
        let (name, why) = ("\u{1}".repeat(1 << 20), "é".repeat(1 << 20));
        let resource = Some(crate::service::Resource { kind: crate::service::ResourceKind::Query, name: Some(&name) });
        let line = audit_line(&AuditEntry { resource, refused: Some(&why), ..entry(&caller) });
        assert!(line.len() < 8 << 10, "{} bytes", line.len());
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert!(line["why"].as_str().is_some_and(|why| why.ends_with("éé...")), "{line}");
    }

    fn files(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).into_iter().flatten();
        let mut names: Vec<String> =
            names.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_replaced_by_size_and_so_many_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let config = AuditConfig {
            folder: folder.path().join("audit"),
            reads: false,
            file_bytes_max: 1_000,
            files_max: 3,
            required: true,
        };
        let caller = Caller::new("acme", "ann");
        let log = AuditLog::start(&config).unwrap();
        log.note(&AuditEntry { action: Some(Action::Read), ..entry(&caller) });
        for _ in 0..100 {
            log.note(&entry(&caller));
        }
        assert!(log.admits_changes().is_ok());
        log.close();
        let names = files(&config.folder);
        assert_eq!((names.len(), names.last().map(String::as_str)), (3, Some(FILE_NAME)), "{names:?}");
        let ([all, few], none) = ([1_000, 2].map(|limit| log.last(None, limit).unwrap()), log.last(Some("zoo"), 9));
        assert_eq!((few, none.unwrap()), (all[..2].to_vec(), Vec::new()));
        assert!(all.is_sorted_by(|one, other| one["time"].as_str() >= other["time"].as_str()));
        assert_eq!(log.last(Some("acme"), 1_000).unwrap(), all);
        let mut lines = 0;
        for name in names {
            let text = std::fs::read_to_string(config.folder.join(name)).unwrap();
            assert!(text.len() <= 1_000);
            for line in text.lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!(
                    (&line["tenant"], &line["user"], &line["allowed"]),
                    (&json!("acme"), &json!("ann"), &json!(true))
                );
                assert_eq!(line["action"], "change");
                lines += 1;
            }
        }
        assert!((10..100).contains(&lines), "{lines}");
        assert_eq!(all.len(), lines);
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn a_disk_that_cannot_be_written_is_told_and_stops_changes_only_if_it_is_to() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("audit");
        // A file where the folder should be.
        std::fs::write(&blocked, "").unwrap();
        let config =
            AuditConfig { folder: blocked.clone(), reads: false, file_bytes_max: 1_000, files_max: 3, required: true };
        let caller = Caller::new("acme", "ann");
        let log = AuditLog::start(&config).unwrap();
        log.note(&entry(&caller));
        let begun = std::time::Instant::now();
        while log.admits_changes().is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::remove_file(&blocked).unwrap();
        while log.admits_changes().is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        log.close();
        assert_eq!(files(&blocked), [FILE_NAME]);
        log.note(&entry(&caller));
        assert_eq!(log.lost(), 1, "behind its end");
    }

    #[test]
    fn clients_without_credentials_get_one_line_for_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let config = AuditConfig {
            folder: folder.path().to_owned(),
            reads: false,
            file_bytes_max: 1 << 20,
            files_max: 3,
            required: true,
        };
        let log = AuditLog::start(&config).unwrap();
        let origin =
            |number: u32| Some(Origin { address: Some(std::net::Ipv4Addr::from(number).into()), door: "http" });
        (0..1_000).for_each(|_| log.note_anonymous(origin(7), "none"));
        log.note_anonymous(origin(8), "none");
        assert!(log.admits_changes().is_ok());
        log.state.queued.store(QUEUE_MAX, Ordering::Relaxed);
        let refused = log.admits_changes().unwrap_err();
        assert!(refused.message.contains("as fast as it comes"), "{refused:?}");
        log.close();
        let text = std::fs::read_to_string(config.folder.join(FILE_NAME)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!((&lines[0]["address"], &lines[0]["count"]), (&json!("0.0.0.7"), &json!(1_000)));
        assert_eq!((&lines[1]["address"], &lines[1]["count"]), (&json!("0.0.0.8"), &Value::Null));
        let mut anonymous = Anonymous::default();
        (0..5_000).for_each(|number| anonymous.add(origin(number), "none"));
        assert!(anonymous.take(false).is_empty(), "the minute is not over");
        let counts = anonymous.take(true);
        assert_eq!(counts.len(), ADDRESSES_MAX + 1);
        assert_eq!(counts.values().map(|(count, _)| count).sum::<usize>(), 5_000);
    }
}
