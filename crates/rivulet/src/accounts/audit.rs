//! The record of what callers do: JSON lines in files that are replaced by size, in a folder for each tenant.
//!
//! What must hold: nobody waits for the disk. Entries wait in a bounded queue for a thread that writes them. Those for
//! which there is no room, because the disk is full or too slow, are counted, and the log of the server tells it. Texts
//! of clients are cut, so that the queue takes a bounded amount of memory.
//!
//! Nobody pushes out the last evidence about others: each folder keeps its equal share. What was refused, failed or
//! only looked at, and comes again in the same words, is counted for a minute; each change has a line. When the files
//! take more than they may, the folder that takes the most loses its oldest file.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
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
use crate::data_folder::{TENANTS, set_aside};
use crate::service::{Action, AuditEntry, Auditor, Caller, ErrorKind, LoginProof, Origin, ServiceError, Tenant};
use crate::times::at;

/// The file of a folder that is written now. Those before it have the time at which they ended in their names.
const FILE_NAME: &str = "audit.jsonl";

/// The folder for logins that were refused.
const LOGINS: &str = "logins";

/// Entries that wait to be written. About 300 bytes each, and some KiB with the longest texts.
const QUEUE_MAX: usize = 16_384;

/// The longest text of a client in an entry, in characters.
const TEXT_CHARACTERS_MAX: usize = 500;

/// How many may wait while changes are made, if none is to be without an entry: some are asked for at the same time.
const QUEUE_ADMITS: usize = QUEUE_MAX - 1_024;

/// How long repeats are counted until a line tells of them.
const COUNTED_FOR: Duration = Duration::from_secs(60);

/// The most entries of which repeats are counted. Others are written each time.
const COUNTED_MAX: usize = 1_024;

/// The most refused logins of which repeats are counted, in places of their own. Of others the address is left out.
const LOGINS_COUNTED_MAX: usize = 1_024;

/// The most files that are open.
const OPEN_MAX: usize = 64;

/// How often the counts are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(10);

/// How much of the newest files of a folder is read for the last entries.
const READ_MAX: u64 = 1 << 20;

/// How many folders are read for the last entries of all tenants: those that were written last.
const FOLDERS_READ_MAX: usize = 16;

/// How often a disk that fails is tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// The record of one server.
pub(crate) struct AuditLog {
    config: AuditConfig,
    /// `None` once it is closed.
    queue: Mutex<Option<SyncSender<Line>>>,
    state: Arc<State>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The folder of an entry below that of the audit, and its line. Without a line the folder gets another name.
type Line = (String, Vec<u8>);

#[derive(Default)]
struct State {
    lost: AtomicU64,
    is_failing: AtomicBool,
    is_closing: AtomicBool,
    /// How many entries are in the queue.
    queued: AtomicUsize,
    repeats: Mutex<Repeats>,
}

/// How often entries came again since their line, by folder and line without its time.
#[derive(Default)]
struct Repeats {
    /// When the first of them came.
    since: Option<Instant>,
    counts: HashMap<(String, String), usize>,
    /// How many of these are refused logins.
    logins: usize,
}

impl Repeats {
    /// Counts an entry if there is a line of it already.
    fn has(&mut self, key: &(String, String)) -> bool {
        self.counts.get_mut(key).is_some_and(|count| {
            *count += 1;
            true
        })
    }

    /// Has repeats of an entry counted that has its line now.
    fn put(&mut self, key: (String, String)) {
        self.since.get_or_insert_with(Instant::now);
        self.logins += usize::from(key.0 == LOGINS);
        self.counts.insert(key, 0);
    }

    /// Whether there is no place for another entry of this folder.
    fn is_full(&self, folder: &str) -> bool {
        match folder {
            LOGINS => self.logins >= LOGINS_COUNTED_MAX,
            _ => self.counts.len() - self.logins >= COUNTED_MAX,
        }
    }

    /// The lines about what came again, once its minute is over or at the end.
    fn take(&mut self, at_end: bool) -> Vec<Line> {
        if !at_end && self.since.is_none_or(|since| since.elapsed() < COUNTED_FOR) {
            return Vec::new();
        }
        (self.since, self.logins) = (None, 0);
        let again = self.counts.drain().filter(|(_, count)| *count > 0);
        again.map(|((folder, fields), count)| (folder, dated(&fields, &format!(",\"repeats\":{count}")))).collect()
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
        let mut writer = Writer { config: config.clone(), state: state.clone(), folders: None };
        let thread = std::thread::Builder::new().name("rivulet-audit".into()).spawn(move || writer.run(&entries))?;
        let (queue, thread) = (Mutex::new(Some(queue)), Mutex::new(Some(thread)));
        Ok(Arc::new(Self { config: config.clone(), queue, state, thread }))
    }

    /// Has a line written. Returns whether there was room for it; otherwise it is lost.
    fn queue(&self, line: Line) -> bool {
        let queue = self.queue.lock();
        self.state.queued.fetch_add(1, Ordering::Relaxed);
        let is_queued = queue.as_ref().is_some_and(|queue| queue.try_send(line).is_ok());
        if !is_queued {
            self.state.queued.fetch_sub(1, Ordering::Relaxed);
            if self.state.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::error!(
                    "entries of the audit are lost, because its files are not written as fast as they come"
                );
            }
        }
        is_queued
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
        let is_counted = is_look || entry.refused.is_some() || entry.failed.is_some();
        let key = (folder_of(entry.caller.map(Caller::tenant)), fields(entry));
        let mut repeats = self.state.repeats.lock();
        if is_counted && repeats.has(&key) {
            return;
        }
        // Strangers may have any number of addresses.
        if let (None, true, Some(Origin { address: Some(_), .. })) =
            (entry.caller, repeats.is_full(&key.0), entry.origin)
        {
            drop(repeats);
            let origin = entry.origin.map(|origin| Origin { address: None, ..origin });
            return self.note(&AuditEntry { origin, ..*entry });
        }
        let is_queued = self.queue((key.0.clone(), dated(&key.1, "")));
        if is_queued && is_counted && (entry.caller.is_none() || !repeats.is_full(&key.0)) {
            repeats.put(key);
        }
    }

    fn note_anonymous(&self, origin: Option<Origin>, refused: &'static str) {
        let origin = origin.map(|origin| Origin { address: origin.address.map(network), ..origin });
        let (caller, action, resource, statement) = (None, None, None, None);
        self.note(&AuditEntry {
            caller,
            origin,
            action,
            resource,
            count: 1,
            statement,
            refused: Some(refused),
            failed: None,
        });
    }

    fn set_aside(&self, tenant: &Tenant) {
        self.queue((folder_of(Some(tenant)), Vec::new()));
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

    fn last(&self, tenant: Option<&Tenant>, limit: usize) -> io::Result<Vec<Value>> {
        if let Some(tenant) = tenant {
            return last_of(&self.config.folder.join(folder_of(Some(tenant))), limit);
        }
        // Those that were written last, first: what is older than enough entries of others is not read.
        let written = |folder: PathBuf| {
            let written_us = std::fs::metadata(folder.join(FILE_NAME)).map_or(0, |known| written_us(&known));
            (at(written_us), folder)
        };
        let mut folders: Vec<_> = folders(&self.config.folder)?.into_iter().map(written).collect();
        folders.sort_by(|one, other| other.cmp(one));
        let mut last: Vec<Value> = Vec::new();
        for (written, folder) in folders.into_iter().take(FOLDERS_READ_MAX) {
            if limit.checked_sub(1).and_then(|at| last.get(at)).is_some_and(|one| one["time"].as_str() > Some(&written))
            {
                break;
            }
            last.extend(last_of(&folder, limit)?);
            last.sort_by(|one, other| other["time"].as_str().cmp(&one["time"].as_str()));
        }
        last.truncate(limit);
        Ok(last)
    }
}

/// When a file was written, in microseconds since 1970.
fn written_us(known: &std::fs::Metadata) -> i64 {
    known.mtime().saturating_mul(1_000_000).saturating_add(known.mtime_nsec() / 1_000)
}

/// The folder of the entries of a tenant, or of those of no caller.
fn folder_of(tenant: Option<&Tenant>) -> String {
    match tenant {
        None => LOGINS.to_owned(),
        Some(tenant) if tenant.is_default() => String::new(),
        Some(tenant) => format!("{TENANTS}/{}", tenant.file_name()),
    }
}

/// All folders that have entries.
fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let tenants = match std::fs::read_dir(folder.join(TENANTS)) {
        Ok(tenants) => tenants.collect::<io::Result<Vec<_>>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let of_tenants = tenants.into_iter().map(|tenant| tenant.path()).filter(|path| path.is_dir());
    Ok([folder.to_owned(), folder.join(LOGINS)].into_iter().chain(of_tenants).collect())
}

/// The last entries of a folder, newest first.
fn last_of(folder: &Path, limit: usize) -> io::Result<Vec<Value>> {
    // It may be gone by now, or not be there yet.
    let open = |path: &Path| match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    // Opened before the others are listed, of which it may be one a moment later.
    let present = open(&folder.join(FILE_NAME))?;
    let number = present.as_ref().map(|file| file.metadata().map(|known| known.ino())).transpose()?;
    let (mut last, mut left) = (Vec::new(), READ_MAX);
    let mut files = earlier_files(folder)?;
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
        last.extend(lines.take(limit - last.len()));
        if last.len() >= limit || left == 0 {
            break;
        }
    }
    Ok(last)
}

/// The line of an entry as it is written: JSON, with a line break behind it.
pub fn audit_line(entry: &AuditEntry<'_>) -> Vec<u8> {
    dated(&fields(entry), "")
}

/// The line with these fields, which are a JSON object, with the present time in front and more at the end.
fn dated(fields: &str, more: &str) -> Vec<u8> {
    let now_us = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let time = at(i64::try_from(now_us).unwrap_or(i64::MAX));
    let fields = fields.strip_prefix('{').and_then(|fields| fields.strip_suffix('}')).unwrap_or(fields);
    format!("{{\"time\":\"{time}\",{fields}{more}}}\n").into_bytes()
}

/// The entry as JSON, without its time.
fn fields(entry: &AuditEntry<'_>) -> String {
    let mut line = Map::new();
    let mut put = |name: &str, value: Value| drop(line.insert(name.to_owned(), value));
    if let Some(caller) = entry.caller {
        put("tenant", json!(caller.tenant().as_str()));
        put("user", json!(caller.name()));
        if caller.is_operator_in_tenant() {
            put("operator", json!(true));
        }
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
    if let Some(kind) = entry.failed {
        put("failed", json!(kind.name()));
    }
    Value::Object(line).to_string()
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
    /// `None` until the disk was looked at.
    folders: Option<Folders>,
}

/// What the folders have on disk.
#[derive(Default)]
struct Folders {
    /// How many bytes the files of each folder have.
    bytes: BTreeMap<String, u64>,
    /// The files that are written, as far as they are open, and how many bytes they have.
    open: HashMap<String, (File, u64)>,
}

impl Writer {
    fn run(&mut self, entries: &Receiver<Line>) {
        let mut waiting: VecDeque<Line> = VecDeque::new();
        let mut has_ended = false;
        loop {
            if waiting.is_empty() {
                waiting.extend(self.state.repeats.lock().take(has_ended));
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
            self.folders = None;
            if !self.state.is_failing.swap(true, Ordering::AcqRel) {
                let folder = self.config.folder.display();
                tracing::error!("the audit in {folder} is not written, and entries are lost if that lasts: {error}");
            }
            if self.state.is_closing.load(Ordering::Acquire) {
                let left = waiting.len() + entries.try_iter().count() + self.state.repeats.lock().take(true).len();
                self.state.lost.fetch_add(left as u64, Ordering::Relaxed);
                return;
            }
            // The queue holds what comes meanwhile.
            std::thread::sleep(RETRY_PERIOD);
        }
    }

    fn write(&mut self, (folder, line): &Line) -> io::Result<()> {
        let Self { config, folders, .. } = self;
        let path = config.folder.join(folder);
        if line.is_empty() {
            // What is on disk is looked at again.
            *folders = None;
            return if path.exists() { set_aside(&path).map(drop) } else { Ok(()) };
        }
        let folders = match folders {
            Some(folders) => folders,
            None => folders.insert(Folders::of(&config.folder)?),
        };
        let len = line.len() as u64;
        let all_max = config.file_bytes_max.saturating_mul(config.files_max as u64);
        folders.bytes.entry(folder.clone()).or_default();
        // Half of a share, so that a folder that loses a file keeps another.
        let file_max = config.file_bytes_max.min(all_max / folders.bytes.len() as u64 / 2);
        if folders.open.get(folder).is_some_and(|(_, bytes)| *bytes > 0 && bytes + len > file_max) {
            folders.open.remove(folder);
            end_file(&path)?;
        }
        folders.make_room(&config.folder, all_max.saturating_sub(len))?;
        if !folders.open.contains_key(folder) {
            if folders.open.len() >= OPEN_MAX {
                folders.open.clear();
            }
            std::fs::create_dir_all(&path)?;
            let path = path.join(FILE_NAME);
            let file = OpenOptions::new().create(true).append(true).mode(OWNER_ONLY).open(path)?;
            let bytes = file.metadata()?.len();
            folders.open.insert(folder.clone(), (file, bytes));
        }
        let Some((file, bytes)) = folders.open.get_mut(folder) else { return Ok(()) };
        let before = *bytes;
        // A line that is written in part is taken back, so that every line is whole.
        file.write_all(line).inspect_err(|_| drop(file.set_len(before)))?;
        *bytes += len;
        *folders.bytes.entry(folder.clone()).or_default() += len;
        Ok(())
    }
}

impl Folders {
    /// What is on disk.
    fn of(folder: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        for path in folders(folder)? {
            let mut bytes = 0;
            for file in earlier_files(&path)?.into_iter().chain([path.join(FILE_NAME)]) {
                bytes += std::fs::metadata(file).map_or(0, |known| known.len());
            }
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
            found.bytes.insert(name, bytes);
        }
        found.bytes.retain(|_, bytes| *bytes > 0);
        Ok(found)
    }

    /// Removes the oldest file of the folder that has the most bytes, until no more than those are left.
    fn make_room(&mut self, folder: &Path, bytes_max: u64) -> io::Result<()> {
        while self.bytes.values().sum::<u64>() > bytes_max {
            let Some((name, bytes)) = self.bytes.iter_mut().max_by_key(|(_, bytes)| **bytes) else { break };
            let path = folder.join(name);
            let mut files = earlier_files(&path)?;
            if files.is_empty() && path.join(FILE_NAME).exists() {
                self.open.remove(name);
                end_file(&path)?;
                files = earlier_files(&path)?;
            }
            // Somebody has removed them.
            let Some(oldest) = files.first() else {
                *bytes = 0;
                continue;
            };
            let removed = std::fs::metadata(oldest)?.len();
            std::fs::remove_file(oldest)?;
            *bytes = bytes.saturating_sub(removed);
        }
        Ok(())
    }
}

/// Gives the present file of a folder a name of its own.
fn end_file(folder: &Path) -> io::Result<()> {
    let now_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let named = |number: u128| folder.join(format!("audit-{number:015}.jsonl"));
    let free = (now_ms..).map(named).find(|name| !name.exists()).expect("some name is free");
    std::fs::rename(folder.join(FILE_NAME), free)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(caller: &Caller) -> AuditEntry<'_> {
        AuditEntry {
            caller: Some(caller),
            origin: None,
            action: Some(Action::Change),
            resource: None,
            count: 1,
            statement: Some("DROP QUERY q"),
            refused: None,
            failed: None,
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
        let names = names.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".jsonl")).collect();
        names.sort();
        names
    }

    fn config(folder: &Path, file_bytes_max: u64) -> AuditConfig {
        AuditConfig { folder: folder.join("audit"), reads: false, file_bytes_max, files_max: 3, required: true }
    }

    #[test]
    fn files_are_replaced_by_size_and_so_many_bytes_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), 1_000);
        let caller = Caller::new("acme", "ann");
        let log = AuditLog::start(&config).unwrap();
        log.note(&AuditEntry { action: Some(Action::Read), ..entry(&caller) });
        for _ in 0..100 {
            log.note(&entry(&caller));
        }
        assert!(log.admits_changes().is_ok());
        log.close();
        let (acme, zoo) = (Tenant::new("acme"), Tenant::new("zoo"));
        let own = config.folder.join(folder_of(Some(&acme)));
        let names = files(&own);
        assert_eq!(names.last().map(String::as_str), Some(FILE_NAME), "{names:?}");
        let ([all, few], none) = ([1_000, 2].map(|limit| log.last(None, limit).unwrap()), log.last(Some(&zoo), 9));
        assert_eq!((few, none.unwrap()), (all[..2].to_vec(), Vec::new()));
        assert!(all.is_sorted_by(|one, other| one["time"].as_str() >= other["time"].as_str()));
        assert_eq!(log.last(Some(&acme), 1_000).unwrap(), all);
        let (mut lines, mut bytes) = (0, 0);
        for name in names {
            let text = std::fs::read_to_string(own.join(name)).unwrap();
            assert!(text.len() <= 1_000);
            bytes += text.len();
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
        assert!((2_000..=3_000).contains(&bytes), "{bytes}");
        assert!((10..100).contains(&lines), "each change has a line: {lines}");
        assert_eq!(all.len(), lines);
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn who_does_much_pushes_out_nobodys_evidence_but_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), 2_000);
        let callers = [Caller::new("default", "root"), Caller::new("acme", "ann"), Caller::new("zoo", "bob")];
        // Restarted between, so that what is there already counts too.
        for round in 0..3 {
            let log = AuditLog::start(&config).unwrap();
            if round == 0 {
                callers.iter().for_each(|caller| log.note(&entry(caller)));
                log.note_anonymous(None, "none");
            }
            (0..200).for_each(|_| log.note(&entry(&callers[2])));
            log.close();
            assert_eq!(log.lost(), 0);
        }
        let log = AuditLog::start(&config).unwrap();
        let of = |tenant: &str| log.last(Some(&Tenant::new(tenant)), 1_000).unwrap();
        assert_eq!((of("default").len(), of("acme").len()), (1, 1));
        assert!(of("zoo").len() > 10, "{:?}", of("zoo"));
        let found = Folders::of(&config.folder).unwrap();
        assert_eq!(found.bytes.len(), 4, "{:?}", found.bytes);
        assert!(found.bytes.values().sum::<u64>() <= 6_000, "{:?}", found.bytes);
        let all = log.last(None, 1_000).unwrap();
        assert_eq!(all.len(), of("zoo").len() + 3);
        // With more folders each has less, and those that had more lose first, the file that is written too.
        for number in 0..20 {
            log.note(&entry(&Caller::new(&format!("t{number}"), "eve")));
        }
        log.close();
        let found = Folders::of(&config.folder).unwrap();
        assert!(found.bytes.values().sum::<u64>() <= 6_000, "{:?}", found.bytes);
        assert_eq!(log.last(Some(&Tenant::new("t19")), 9).unwrap().len(), 1);
        // The next tenant of a name gets nothing of the one before. The operator still does.
        let log = AuditLog::start(&config).unwrap();
        log.set_aside(&Tenant::new("t19"));
        log.note(&entry(&Caller::new("t19", "next")));
        log.close();
        let of_next = log.last(Some(&Tenant::new("t19")), 9).unwrap();
        assert_eq!(of_next.iter().map(|line| line["user"].clone()).collect::<Vec<_>>(), ["next"]);
        assert!(log.last(None, 1_000).unwrap().iter().any(|line| line["tenant"] == "t19" && line["user"] == "eve"));
    }

    #[test]
    fn what_is_refused_again_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::start(&config(folder.path(), 1 << 20)).unwrap();
        let (ann, acme) = (Caller::new("acme", "ann"), Tenant::new("acme"));
        (0..5_000).for_each(|_| log.note(&AuditEntry { refused: Some("no right"), ..entry(&ann) }));
        log.note(&AuditEntry { refused: Some("no right"), ..entry(&Caller::new("acme", "bob")) });
        log.close();
        let last = log.last(Some(&acme), 10).unwrap();
        let shown: Vec<(&Value, &Value)> = last.iter().map(|line| (&line["user"], &line["repeats"])).collect();
        let (ann, bob) = (&json!("ann"), &json!("bob"));
        assert_eq!(shown, [(ann, &json!(4_999)), (bob, &Value::Null), (ann, &Value::Null)], "newest first");
        assert!(last.iter().all(|line| line["statement"] == "DROP QUERY q" && line["time"].is_string()), "{last:?}");
    }

    #[test]
    fn a_disk_that_cannot_be_written_is_told_and_stops_changes_only_if_it_is_to() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("audit");
        // A file where the folder should be.
        std::fs::write(&blocked, "").unwrap();
        let config = config(folder.path(), 1_000);
        let caller = Caller::new("default", "ann");
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
    fn clients_without_credentials_get_a_line_for_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), 1 << 20);
        let log = AuditLog::start(&config).unwrap();
        let origin =
            |number: u32| Some(Origin { address: Some(std::net::Ipv4Addr::from(number).into()), door: "http" });
        (0..1_000).for_each(|_| log.note_anonymous(origin(7), "none"));
        log.note_anonymous(origin(8), "none");
        assert!(log.admits_changes().is_ok());
        // Beyond so many addresses the others are one line together.
        (100..5_100).for_each(|number| log.note_anonymous(origin(number), "none"));
        assert!(log.state.repeats.lock().take(false).is_empty(), "the minute is not over");
        log.state.queued.store(QUEUE_MAX, Ordering::Relaxed);
        let refused = log.admits_changes().unwrap_err();
        assert!(refused.message.contains("as fast as it comes"), "{refused:?}");
        log.close();
        assert_eq!(log.lost(), 0);
        let text = std::fs::read_to_string(config.folder.join(LOGINS).join(FILE_NAME)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let repeats = |address: Value| {
            let found = lines.iter().filter(|line| line["address"] == address);
            found.map(|line| line["repeats"].as_u64()).collect::<Vec<_>>()
        };
        assert_eq!(repeats(json!("0.0.0.7")), [None, Some(999)]);
        assert_eq!(repeats(json!("0.0.0.8")), [None]);
        let others = 5_000 - (LOGINS_COUNTED_MAX as u64 - 2);
        assert_eq!(repeats(Value::Null), [None, Some(others - 1)]);
        assert_eq!(lines.len(), LOGINS_COUNTED_MAX + 3);
    }
}
