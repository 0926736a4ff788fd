//! What is on disk of a stream until the other side has made it durable.
//!
//! What must hold:
//! - A buffer is sent once it is on disk, so that its number never means another one.
//! - Where rows are to arrive exactly once, a buffer is sent once a checkpoint covers it. After a crash, what came
//!   after the last checkpoint is computed again, perhaps in another order; what is on disk of that is void, and goes
//!   without its rows.
//! - Memory and disk are bounded: without room the sink is given no more.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arrow::datatypes::Schema;
use parking_lot::Mutex;
use rivulet_dataflow::Element;
use rivulet_storage::log::{Appended, Log, LogSettings, Record};
use rivulet_storage::{Disk, StorageError};
use rivulet_wire::{Packed, Packer, SendOptions, WireError};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_64;

use super::peer::{Machine, Outgoing, Peer, Store};

/// How many times a row may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// At least once: rows since the last checkpoint come twice after a crash.
    AtLeastOnce,
    /// Exactly once: rows are sent with the checkpoint that covers them.
    ExactlyOnce,
}

/// How a spool is kept.
#[derive(Clone, Copy, Debug)]
pub struct SpoolOptions {
    /// How rows become buffers.
    pub send: SendOptions,
    /// How many times a row may arrive.
    pub delivery: Delivery,
    /// The most bytes on disk.
    pub bytes_max: u64,
    /// Whether the oldest rows are dropped when it is full.
    pub drops_oldest: bool,
}

impl SpoolOptions {
    /// The size of a file of the log.
    fn segment_bytes(&self) -> u64 {
        (self.bytes_max / 8).clamp(SEGMENT_BYTES.0, SEGMENT_BYTES.1)
    }
}

/// What a checkpoint says of a spool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    spool: u64,
    /// The last buffer that the checkpoint covers.
    to: u64,
}

/// What is known of a spool beside its log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Saved {
    number: u64,
    /// What tells the columns of its rows.
    columns: u64,
    /// The last buffer that is durable on the other side, or was dropped, and the rows up to its end.
    acked: u64,
    acked_rows: u64,
    /// Where rows are to arrive exactly once: the last buffer that a checkpoint covers. Those after it are not sent.
    covered: u64,
    /// Void buffers: the first and the last of each run.
    voids: Vec<(u64, u64)>,
    /// Whether the other side has other rows under its number, so that it is opened with another one.
    #[serde(default)]
    is_parted: bool,
}

/// The spools of a process by their folders: two of one folder would write the same files.
pub type OpenSpools = Mutex<BTreeMap<PathBuf, Weak<Spool>>>;

/// A buffer: its number, the rows up to its end, and its bytes.
type Kept = (u64, u64, Vec<u8>);

/// The most bytes of buffers that were written last and are kept in memory, beside one buffer.
const RECENT_BYTES_MAX: usize = 2 << 20;

/// The most bytes that wait for the disk, beside one buffer.
const GATHERED_BYTES_MAX: usize = 16 << 20;

/// The sizes of a file of the log. No rows are taken while as much waits for the disk.
const SEGMENT_BYTES: (u64, u64) = (64 << 10, 4 << 20);

/// The name of the file beside the log, and how often it is written.
const SAVED: &str = "spool.json";
const SAVED_EVERY: Duration = Duration::from_secs(1);

/// The buffers of a stream on disk.
pub struct Spool {
    folder: PathBuf,
    number: u64,
    log: Log,
    options: SpoolOptions,
    machine: Machine,
    inner: Mutex<Inner>,
    /// Held while what is known is saved.
    saving: Mutex<()>,
    /// Something gathers, may be sent or is to be saved; or it is over.
    stirred: Notify,
}

struct Inner {
    packer: Packer,
    /// Rows so far.
    rows: u64,
    /// Buffers for which the log had no room.
    pending: VecDeque<(u64, Vec<u8>)>,
    /// The buffers that were written last.
    recent: VecDeque<Kept>,
    recent_bytes: usize,
    /// The buffers that were read last, and the first and last number of these.
    read: VecDeque<Kept>,
    read_range: (u64, u64),
    /// The last buffer that was handed over.
    handed: u64,
    saved: Saved,
    is_changed: bool,
    is_over: bool,
    /// Why nothing is sent, if the other side has other rows of these numbers.
    problem: Option<String>,
    /// The same if the disk cannot be read at present.
    unreadable: Option<String>,
}

impl Spool {
    /// Opens the spool of rows with these columns in a folder of the links' disk, as the checkpoint says from which its
    /// query goes on. `prepared` may be about other spools too, or about none.
    ///
    /// # Errors
    /// The folder cannot be used, another spool writes there, or rows with other columns wait there.
    pub fn open(
        (machine, open): (&Machine, &OpenSpools),
        folder: &Path,
        schema: &Schema,
        options: SpoolOptions,
        prepared: &[Prepared],
    ) -> io::Result<Arc<Self>> {
        let machine = machine.clone();
        let mut open = open.lock();
        open.retain(|_, spool| spool.strong_count() > 0);
        if open.get(folder).and_then(Weak::upgrade).is_some_and(|spool| spool.is_in_use()) {
            return Err(io::Error::other("an earlier version is about to leave what waits to be sent"));
        }
        let settings = LogSettings {
            bytes_max: options.bytes_max,
            segment_bytes: options.segment_bytes(),
            gathered_bytes_max: GATHERED_BYTES_MAX,
            commit_interval: Duration::from_micros(options.send.flush_us.clamp(1_000, 100_000).unsigned_abs()),
        };
        let log = match machine.is_stepped {
            true => Log::stepped(machine.disk.clone(), folder, settings),
            false => Log::open(folder, settings),
        };
        let (log, found) = log.map_err(io::Error::other)?;
        let saved = match machine.disk.read(&folder.join(SAVED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            saved => saved.ok().and_then(|bytes| serde_json::from_slice::<Saved>(&bytes).ok()),
        };
        let end = found.next - 1;
        let mut saved = saved.unwrap_or_else(|| Saved { acked: found.first - 1, ..Saved::default() });
        saved.acked = saved.acked.min(end);
        let columns = xxh3_64(format!("{:?}", schema.fields()).as_bytes());
        let has_other_columns = saved.columns != columns && saved.number != 0;
        if has_other_columns && saved.acked < end {
            return Err(io::Error::other("rows with other columns wait to be sent: let them leave first"));
        }
        let known = prepared.iter().find(|prepared| prepared.spool == saved.number);
        if known.is_none() && !prepared.is_empty() {
            tracing::warn!("{} is not what its checkpoint was made with: rows that waited are gone", folder.display());
        }
        let mut last = end;
        if options.delivery == Delivery::ExactlyOnce {
            let covered = known.map_or(0, |prepared| prepared.to).max(saved.covered);
            last = covered.clamp(saved.acked, end);
            saved.voids.extend((last < end).then_some((last + 1, end)));
            // Void buffers are sent without rows, so that no number is left out.
            saved.covered = end;
        } else {
            saved.covered = u64::MAX;
        }
        // The numbers of buffers that are gone may come again, with other rows: nobody must know them.
        if saved.number == 0 || saved.is_parted || has_other_columns || found.next == 1 || !found.problems.is_empty() {
            (saved.number, saved.is_parted) = ((machine.random)() >> 1 | 1, false);
        }
        saved.columns = columns;
        let (number, handed, acked_rows) = (saved.number, saved.acked, saved.acked_rows);
        let mut inner = Inner {
            packer: Packer::new(options.send),
            rows: 0,
            pending: VecDeque::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            read: VecDeque::new(),
            read_range: (1, 0),
            handed,
            saved,
            is_changed: false,
            is_over: false,
            problem: None,
            unreadable: None,
        };
        inner.rows = inner.rows_to(last, &log).unwrap_or(acked_rows).max(acked_rows);
        save(&*machine.disk, folder, &inner.saved)?;
        let spool = Arc::new(Self {
            folder: folder.to_owned(),
            number,
            log,
            options,
            machine,
            inner: Mutex::new(inner),
            saving: Mutex::default(),
            stirred: Notify::new(),
        });
        open.insert(folder.to_owned(), Arc::downgrade(&spool));
        Ok(spool)
    }

    /// Whether anything may yet be written, behind what is being saved.
    fn is_in_use(&self) -> bool {
        let _saving = self.saving.lock();
        !self.inner.lock().is_over
    }

    fn now_us(&self) -> i64 {
        self.machine.clock.steady_us()
    }

    /// Adds an element.
    ///
    /// # Errors
    /// Columns of a type that no stream has.
    pub fn push(&self, element: &Element) -> Result<(), WireError> {
        let inner = &mut *self.inner.lock();
        let was_empty = inner.packer.bytes() == 0;
        let Inner { packer, rows, pending, .. } = inner;
        let pushed = packer.push(element, self.now_us(), &mut |packed| pend(packed, rows, pending));
        self.append(inner);
        if was_empty && inner.packer.bytes() > 0 {
            self.stirred.notify_one();
        }
        pushed
    }

    /// Writes the buffers that wait, as far as there is room.
    fn append(&self, inner: &mut Inner) {
        while let Some((rows, payload)) = inner.pending.front() {
            // Nobody else uses the log, so what a record has beside its payload means what it means here.
            let record = Record {
                position: 0,
                arrival_us: self.machine.clock.now_us(),
                client: &rows.to_le_bytes(),
                packet_id: 0,
                topic: &[],
                payload,
            };
            let Appended::At(position) = self.log.append(&record, true, |_| true) else { return };
            let Some((rows, payload)) = inner.pending.pop_front() else { return };
            inner.recent_bytes += payload.len();
            inner.recent.push_back((position, rows, payload));
            while inner.recent_bytes > RECENT_BYTES_MAX && inner.recent.len() > 1 {
                let (_, _, payload) = inner.recent.pop_front().unwrap_or_default();
                inner.recent_bytes -= payload.len();
            }
        }
    }

    /// Makes a buffer of what has gathered for long enough, and returns when to come again. While nothing can be sent
    /// it gathers for longer: each buffer takes room on disk.
    fn tick(&self, is_linked: bool) -> Duration {
        const LONG: Duration = Duration::from_secs(60);
        let patience_us = if is_linked { 0 } else { 1_000_000 };
        let (inner, now_us) = (&mut *self.inner.lock(), self.now_us() - patience_us);
        let Inner { packer, rows, pending, .. } = inner;
        packer.tick(now_us, &mut |packed| pend(packed, rows, pending));
        self.append(inner);
        let due_us = inner.packer.due_us();
        due_us.map_or(LONG, |due_us| Duration::from_micros((due_us - now_us).clamp(100, 60_000_000).unsigned_abs()))
    }

    /// Whether there is room for more.
    pub fn has_room(&self) -> bool {
        let may_grow = self.options.drops_oldest || self.log.disk_bytes() < self.options.bytes_max;
        // What waits for the disk goes into one file, and a file is dropped as a whole.
        let gathers_more = (self.log.gathered_bytes() as u64) < self.options.segment_bytes();
        may_grow && gathers_more && self.inner.lock().pending.is_empty()
    }

    /// Drops the oldest buffers if it is full and may do so; returns how many rows that were.
    pub fn make_room(&self) -> u64 {
        if !self.options.drops_oldest || self.log.disk_bytes() < self.options.bytes_max {
            return 0;
        }
        let stats = self.log.stats();
        let inner = &mut *self.inner.lock();
        let before = inner.saved.acked_rows;
        if stats.segments > 1 {
            self.forget_to(inner, self.log.file_end(stats.first) - 1);
        }
        inner.saved.acked_rows.saturating_sub(before)
    }

    /// Why nothing can be written or sent at present, if that is so.
    pub fn problem(&self) -> Option<String> {
        if self.log.is_broken()
            && let Some(problem) = self.log.stats().problem
        {
            return Some(format!("what waits to be sent cannot be written: {problem}"));
        }
        if !self.options.drops_oldest && self.log.disk_bytes() >= self.options.bytes_max {
            let bytes = self.options.bytes_max;
            return Some(format!("{bytes} bytes wait, which is all that spool_bytes_max allows: the query waits"));
        }
        let inner = self.inner.lock();
        inner.problem.clone().or_else(|| inner.unreadable.clone())
    }

    /// Whether all that was pushed is on disk. What gathers becomes a buffer for that.
    pub fn is_on_disk(&self) -> bool {
        let inner = &mut *self.inner.lock();
        let Inner { packer, rows, pending, .. } = inner;
        packer.seal(&mut |packed| pend(packed, rows, pending));
        self.append(inner);
        inner.pending.is_empty() && self.log.durable() + 1 >= self.log.next()
    }

    /// What a checkpoint has to say of it, which is on disk.
    pub fn prepare(&self) -> Prepared {
        Prepared { spool: self.number, to: self.log.durable() }
    }

    /// A checkpoint is durable that says this of spools: what it covers may be sent.
    pub fn commit(&self, prepared: &[Prepared]) {
        let inner = &mut *self.inner.lock();
        let prepared = prepared.iter().find(|prepared| prepared.spool == self.number);
        if let Some(prepared) = prepared.filter(|prepared| prepared.to > inner.saved.covered) {
            inner.saved.covered = prepared.to;
            inner.is_changed = true;
            self.stirred.notify_one();
        }
    }

    /// Its number, which no other store has.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.log.disk_bytes()
    }

    /// Rows that were pushed, and those that are durable on the other side or were dropped.
    pub fn rows(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.rows, inner.saved.acked_rows)
    }

    /// How long the oldest row on disk has been waiting, if one waits.
    pub fn oldest(&self) -> Option<Duration> {
        let (first, mut arrival_us) = (self.inner.lock().saved.acked + 1, None);
        let take = &mut |record: Record<'_>| {
            arrival_us = Some(record.arrival_us);
            false
        };
        self.log.read(first, self.log.file_end(first), take).ok()?;
        let waited_us = self.machine.clock.now_us().saturating_sub(arrival_us?);
        Some(Duration::from_micros(u64::try_from(waited_us).unwrap_or_default()))
    }

    /// Whether all is durable on the other side.
    pub fn is_done(&self) -> bool {
        let inner = self.inner.lock();
        inner.packer.bytes() == 0 && inner.pending.is_empty() && inner.saved.acked + 1 >= self.log.next()
    }

    /// Forgets the buffers up to this one.
    fn forget_to(&self, inner: &mut Inner, number: u64) {
        let number = number.min(self.log.durable());
        if number > inner.saved.acked {
            let rows = inner.rows_to(number, &self.log).unwrap_or_default();
            (inner.saved.acked, inner.saved.acked_rows) = (number, rows.max(inner.saved.acked_rows));
            inner.handed = inner.handed.max(number);
            inner.saved.voids.retain(|(_, last)| *last >= number);
            inner.is_changed = true;
            self.stirred.notify_one();
        }
        self.log.forget_before(inner.saved.acked + 1);
    }

    /// The other side has other rows under these numbers: more under them would be lost there.
    fn part(&self, inner: &mut Inner) {
        let problem = "the other server has other rows of this stream: this server was set back, or a copy of it sends \
                       too. Its rows wait, and are sent when it is started again";
        inner.problem = Some(problem.into());
        (inner.saved.is_parted, inner.is_changed) = (true, true);
        self.stirred.notify_one();
    }

    /// One turn of [`keep`]; returns when to come again.
    fn turn(&self, peer: &Weak<Peer>) -> Duration {
        let peer = peer.upgrade();
        let due = self.tick(peer.as_ref().is_some_and(|peer| peer.is_connected()));
        peer.iter().for_each(|peer| peer.wake());
        due
    }

    /// The same for links without a thread; with `saves` also what [`keep`] does now and then.
    pub(super) fn keep_once(&self, peer: &Weak<Peer>, saves: bool) {
        self.turn(peer);
        self.log.commit();
        if saves {
            self.save_changed(false);
        }
    }

    /// Writes what is to be written, and nothing after that.
    fn end(&self) {
        self.log.close();
        self.save_changed(true);
        self.stirred.notify_one();
    }

    /// Saves what has changed, which waits for the disk. After the last time nothing is changed any more.
    fn save_changed(&self, is_last: bool) {
        let _one_at_a_time = self.saving.lock();
        let changed = {
            let inner = &mut *self.inner.lock();
            let is_changed = (std::mem::take(&mut inner.is_changed) || is_last) && !inner.is_over;
            inner.is_over |= is_last;
            is_changed.then(|| inner.saved.clone())
        };
        if let Some(Err(error)) = changed.map(|saved| save(&*self.machine.disk, &self.folder, &saved)) {
            tracing::warn!("{} cannot be written: {error}", self.folder.display());
        }
    }
}

fn save(disk: &dyn Disk, folder: &Path, saved: &Saved) -> io::Result<()> {
    let beside = folder.join("spool.tmp");
    let file = disk.create(&beside)?;
    file.write_at(&serde_json::to_vec(saved)?, 0)?;
    file.sync()?;
    disk.rename(&beside, &folder.join(SAVED))?;
    disk.sync_folder(folder)
}

/// Notes a buffer that is to be written.
fn pend(packed: Packed<'_>, rows: &mut u64, pending: &mut VecDeque<(u64, Vec<u8>)>) {
    let mut payload = Vec::new();
    packed.write(&mut payload);
    *rows += packed.rows;
    pending.push_back((*rows, payload));
}

impl Inner {
    /// The rows up to the end of a buffer, if it is there.
    fn rows_to(&mut self, number: u64, log: &Log) -> Option<u64> {
        // Rows of void buffers do not count.
        let mut number = number;
        while let Some((first, _)) = self.run_of_voids(number) {
            number = first - 1;
        }
        match number == self.saved.acked {
            true => Some(self.saved.acked_rows),
            false => self.find(number, log).ok()?.map(|(_, rows, _)| *rows),
        }
    }

    /// The run of void buffers that has this number.
    fn run_of_voids(&self, number: u64) -> Option<(u64, u64)> {
        self.saved.voids.iter().copied().find(|(first, last)| (*first..=*last).contains(&number))
    }

    /// A buffer that has rows and that the other side may lack, if it is there.
    ///
    /// # Errors
    /// The disk cannot be read at present.
    fn packed(&mut self, number: u64, log: &Log) -> Result<Option<Packed<'_>>, StorageError> {
        if number <= self.saved.acked || self.run_of_voids(number).is_some() {
            return Ok(None);
        }
        Ok(self.find(number, log)?.and_then(|(_, _, payload)| Packed::read(payload).ok()))
    }

    /// A buffer that is on disk, if it is there.
    ///
    /// # Errors
    /// The disk cannot be read at present.
    fn find(&mut self, number: u64, log: &Log) -> Result<Option<&Kept>, StorageError> {
        if let Some(place) = place(&self.recent, number) {
            return Ok(self.recent.get(place));
        }
        if !(self.read_range.0..=self.read_range.1).contains(&number) {
            (self.read_range, self.read) = ((1, 0), VecDeque::new());
            let read = &mut self.read;
            let outcome = log.read(number, log.file_end(number), &mut |record| {
                let rows = record.client.try_into().map_or(0, u64::from_le_bytes);
                read.push_back((record.position, rows, record.payload.to_vec()));
                true
            })?;
            // Not what has become durable since.
            self.read_range = (number, outcome.next.saturating_sub(1));
        }
        Ok(place(&self.read, number).and_then(|place| self.read.get(place)))
    }
}

/// The place of a buffer among others.
fn place(kept: &VecDeque<Kept>, number: u64) -> Option<usize> {
    kept.binary_search_by_key(&number, |(number, ..)| *number).ok()
}

impl Store for Spool {
    fn read(&self, from: u64, take: &mut dyn FnMut(u64, Packed<'_>) -> bool) {
        let inner = &mut *self.inner.lock();
        if inner.problem.is_some() {
            return;
        }
        let from = if from == 0 { inner.saved.acked + 1 } else { from };
        if from > self.log.next() {
            return self.part(inner);
        }
        // The other side has all before it.
        inner.handed = inner.handed.max(from - 1);
        inner.unreadable = None;
        for number in from..=self.log.durable().min(inner.saved.covered) {
            // What should be there and is not was lost with the disk, which is told where it is noticed.
            let goes_on = match inner.packed(number, &self.log) {
                Ok(packed) => take(number, packed.unwrap_or(Packed::EMPTY)),
                // It is tried again.
                Err(error) => {
                    inner.unreadable = Some(format!("what waits to be sent cannot be read: {error}"));
                    return;
                }
            };
            inner.handed = inner.handed.max(number);
            if !goes_on {
                return;
            }
        }
    }

    fn verify(&self, number: u64, checksum: u64) {
        let inner = &mut *self.inner.lock();
        // 0: the other side has taken nothing of it itself.
        let packed = inner.packed(number, &self.log).ok().flatten().filter(|_| checksum != 0);
        if packed.is_some_and(|packed| packed.checksum() != checksum) {
            self.part(inner);
        }
    }

    fn forget(&self, number: u64) {
        let inner = &mut *self.inner.lock();
        // Nobody can have more than was handed over.
        let number = number.min(inner.handed);
        if !inner.is_over && inner.problem.is_none() {
            self.forget_to(inner, number);
        }
    }
}

/// A stream whose buffers are in a spool, until it is dropped.
pub struct Spooled {
    /// The spool.
    pub spool: Arc<Spool>,
    outgoing: Outgoing,
}

impl Spooled {
    pub(super) fn new(spool: Arc<Spool>, outgoing: Outgoing) -> Self {
        Self { spool, outgoing }
    }

    /// Bytes that the other side has taken since the start.
    pub fn sent_bytes(&self) -> u64 {
        self.outgoing.taken().0.bytes
    }

    /// As [`Outgoing::attempts`].
    pub fn attempts(&self) -> u64 {
        self.outgoing.attempts()
    }

    /// Why nothing is written or sent at present, if that is so.
    pub fn problem(&self) -> Option<String> {
        self.spool.problem().or_else(|| self.outgoing.problem())
    }

    /// Removes its files: all is durable on the other side, and no more comes.
    pub fn remove(self) {
        let folder = self.spool.folder.clone();
        drop(self);
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            tracing::warn!("{} cannot be removed: {error}", folder.display());
        }
    }
}

impl Drop for Spooled {
    /// Nothing is written after that, by whoever has the spool: another one may open the folder.
    fn drop(&mut self) {
        self.spool.end();
    }
}

/// Makes buffers of what has gathered for long enough, saves what has changed, and wakes the link when there is more on
/// disk.
pub(super) async fn keep(spool: Arc<Spool>, peer: Weak<Peer>) {
    let mut saved = Instant::now();
    loop {
        let (committed, stirred) = (spool.log.committed().notified(), spool.stirred.notified());
        let mut due = spool.turn(&peer);
        let (is_over, is_changed) = {
            let inner = spool.inner.lock();
            (inner.is_over, inner.is_changed)
        };
        if is_over {
            return;
        }
        if is_changed && saved.elapsed() < SAVED_EVERY {
            due = due.min(SAVED_EVERY);
        } else if is_changed {
            saved = Instant::now();
            let spool = spool.clone();
            let _ = tokio::task::spawn_blocking(move || spool.save_changed(false)).await;
        }
        tokio::select! {
            () = committed => {}
            () = stirred => {}
            () = tokio::time::sleep(due) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::buffer::Buffer;
    use rivulet_dataflow::Batch;
    use rivulet_wire::Decoder;
    use tempfile::TempDir;

    use super::*;

    const ONCE: SpoolOptions = SpoolOptions {
        send: SendOptions { buffer_bytes: 1, flush_us: 1_000, compression: rivulet_wire::Compression::None },
        delivery: Delivery::ExactlyOnce,
        bytes_max: 64 << 20,
        drops_oldest: false,
    };

    fn open(folder: &Path, columns: &Schema, options: SpoolOptions, prepared: &[Prepared]) -> io::Result<Arc<Spool>> {
        Spool::open((&Machine::real(), &OpenSpools::default()), folder, columns, options, prepared)
    }

    /// A row with this number, which is a buffer by itself.
    fn row(number: i64) -> Element {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![number]));
        let columns = RecordBatch::try_from_iter([("n", column)]).unwrap();
        Element::Batch(Batch::new(vec![0].into(), vec![0].into(), vec![0].into(), columns))
    }

    fn columns() -> Schema {
        let Element::Batch(batch) = row(0) else { unreachable!() };
        batch.columns.schema().as_ref().clone()
    }

    fn push(spool: &Spool, numbers: std::ops::Range<i64>) {
        numbers.for_each(|number| spool.push(&row(number)).unwrap());
        let until = Instant::now() + Duration::from_secs(60);
        while !spool.is_on_disk() {
            assert!(Instant::now() < until, "the disk");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What is handed over from a buffer on: the number of each, and of its row if it has one.
    fn read(spool: &Spool, from: u64) -> Vec<(u64, Option<i64>)> {
        let mut read = Vec::new();
        spool.read(from, &mut |number, packed| {
            let mut bytes = Vec::new();
            packed.write(&mut bytes);
            let Element::Batch(batch) = row(0) else { unreachable!() };
            // After the head; nothing is compressed here.
            let mut decoder = Decoder::new(Buffer::from(&bytes[13..]), batch.columns.schema());
            let row = decoder.next_element().unwrap().map(|element| {
                let Element::Batch(batch) = element else { panic!("{element:?}") };
                batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap().value(0)
            });
            read.push((number, row));
            true
        });
        read
    }

    #[test]
    fn what_no_checkpoint_covers_is_not_sent_and_is_void_after_a_crash() {
        let folder = TempDir::new().unwrap();
        let spool = open(folder.path(), &columns(), ONCE, &[]).unwrap();
        push(&spool, 0..3);
        assert_eq!(read(&spool, 0), []);
        let prepared = spool.prepare();
        push(&spool, 3..5);
        let number = spool.number();
        // The process dies when the checkpoint is durable, and before it is told so.
        drop(spool);
        let spool = open(folder.path(), &columns(), ONCE, std::slice::from_ref(&prepared)).unwrap();
        assert_eq!((spool.number(), spool.rows()), (number, (3, 0)));
        push(&spool, 13..15);
        let first = [(1, Some(0)), (2, Some(1)), (3, Some(2)), (4, None), (5, None)];
        assert_eq!(read(&spool, 0), first);
        assert_eq!(read(&spool, 4), first[3..]);
        // A second crash, whose checkpoint is the same.
        drop(spool);
        let spool = open(folder.path(), &columns(), ONCE, &[prepared]).unwrap();
        push(&spool, 23..25);
        let prepared = spool.prepare();
        spool.commit(&[prepared]);
        let all = [&first[..], &[(6, None), (7, None), (8, Some(23)), (9, Some(24))]].concat();
        assert_eq!(read(&spool, 0), all);
        assert_eq!(spool.rows(), (5, 0));
        spool.forget(8);
        assert_eq!((spool.rows(), spool.is_done()), ((5, 4), false));
        assert_eq!(read(&spool, 0), [(9, Some(24))]);
        spool.forget(9);
        assert!(spool.is_done());
        spool.end();
        let spool = open(folder.path(), &columns(), ONCE, &[]).unwrap();
        assert_eq!((spool.number(), spool.rows(), spool.is_done()), (number, (5, 5), true));
    }

    #[test]
    fn what_is_on_disk_is_sent_again_and_a_spool_that_is_gone_has_another_number() {
        let folder = TempDir::new().unwrap();
        let options = SpoolOptions { delivery: Delivery::AtLeastOnce, ..ONCE };
        let spool = open(folder.path(), &columns(), options, &[]).unwrap();
        push(&spool, 0..4);
        assert_eq!(read(&spool, 3), [(3, Some(2)), (4, Some(3))]);
        spool.forget(2);
        // Nobody can have what was not handed over.
        spool.forget(100);
        assert!(spool.is_done());
        assert_eq!(spool.oldest(), None);
        push(&spool, 4..6);
        std::thread::sleep(Duration::from_millis(2));
        assert!(spool.oldest() > Some(Duration::ZERO));
        let number = spool.number();
        spool.end();
        let other = Schema::new(vec![arrow::datatypes::Field::new("other", arrow::datatypes::DataType::Utf8, true)]);
        assert!(open(folder.path(), &other, options, &[]).is_err(), "rows with other columns wait");
        let spool = open(folder.path(), &columns(), options, &[]).unwrap();
        assert_eq!((spool.number(), read(&spool, 0)), (number, vec![(5, Some(4)), (6, Some(5))]));
        drop(spool);
        std::fs::remove_dir_all(folder.path()).unwrap();
        let spool = open(folder.path(), &columns(), options, &[]).unwrap();
        assert_ne!(spool.number(), number);
        assert_eq!((spool.rows(), read(&spool, 0)), ((0, 0), vec![]));
    }

    #[test]
    fn a_spool_that_was_set_back_sends_nothing_under_numbers_that_the_other_side_has() {
        let folder = TempDir::new().unwrap();
        let options = SpoolOptions { delivery: Delivery::AtLeastOnce, ..ONCE };
        let spool = open(folder.path(), &columns(), options, &[]).unwrap();
        push(&spool, 0..4);
        // The other side has eight.
        assert_eq!(read(&spool, 9), []);
        assert!(spool.problem().is_some_and(|problem| problem.contains("set back")));
        push(&spool, 4..10);
        spool.forget(8);
        assert_eq!((read(&spool, 9), spool.rows()), (vec![], (10, 0)));
        let number = spool.number();
        spool.end();
        let spool = open(folder.path(), &columns(), options, &[]).unwrap();
        assert_ne!(spool.number(), number);
        let numbers: Vec<Option<i64>> = read(&spool, 0).into_iter().map(|(_, row)| row).collect();
        assert_eq!(numbers, (0..10).map(Some).collect::<Vec<_>>());
        assert_eq!(spool.problem(), None);
    }

    #[test]
    fn two_copies_of_a_spool_are_told_apart_by_the_last_buffer_that_the_other_side_has() {
        let (folder, copy) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let options = SpoolOptions { delivery: Delivery::AtLeastOnce, ..ONCE };
        let open = |folder: &TempDir| open(folder.path(), &columns(), options, &[]).unwrap();
        let spool = open(&folder);
        push(&spool, 0..3);
        spool.end();
        for file in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let (spool, copy) = (open(&folder), open(&copy));
        push(&spool, 3..5);
        push(&copy, 13..15);
        let checksum_of = |number| {
            let mut checksum = 0;
            spool.read(number, &mut |_, packed| {
                checksum = packed.checksum();
                false
            });
            checksum
        };
        // What both have, and what is not there any more, is the same.
        for number in [0, 2] {
            copy.verify(number, checksum_of(2));
        }
        assert_eq!((copy.number(), copy.problem()), (spool.number(), None));
        spool.verify(4, checksum_of(4));
        copy.verify(4, checksum_of(4));
        assert_eq!((spool.problem(), copy.problem().is_some()), (None, true));
        assert_eq!((read(&spool, 5), read(&copy, 5)), (vec![(5, Some(4))], vec![]));
    }

    #[test]
    fn a_full_spool_waits_or_drops_the_oldest_and_counts_them() {
        let large = || {
            Element::Batch({
                let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
                let columns = RecordBatch::try_from_iter([("n", column)]).unwrap();
                let zeros = || vec![0; 100_000].into();
                Batch::new(vec![0; 100_000].into(), zeros(), zeros(), columns)
            })
        };
        for drops_oldest in [false, true] {
            let folder = TempDir::new().unwrap();
            let send = SendOptions { buffer_bytes: 64 << 20, ..ONCE.send };
            let options = SpoolOptions { send, delivery: Delivery::AtLeastOnce, bytes_max: 10 << 20, drops_oldest };
            let spool = open(folder.path(), &columns(), options, &[]).unwrap();
            let (mut written, mut dropped) = (0, 0);
            while written < 10 && spool.has_room() {
                spool.push(&large()).unwrap();
                push(&spool, 0..0);
                written += 1;
                dropped += spool.make_room();
            }
            assert_eq!((written == 10, dropped > 0), (drops_oldest, drops_oldest), "{written} {dropped}");
            assert_eq!(spool.problem().is_some(), !drops_oldest);
            assert_eq!(spool.rows(), (written * 100_000, dropped));
            let mut rows = 0;
            spool.read(0, &mut |_, packed| {
                rows += packed.rows;
                true
            });
            assert_eq!(rows, written * 100_000 - dropped, "what is left is sent");
        }
    }
}
