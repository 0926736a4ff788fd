//! A disk in memory that loses whatever a disk may lose.
//!
//! It keeps the content of a file (the page cache) apart from what is on the platter. A sync moves content to the
//! platter. A loss of power takes all or part of what was not synced: of each file it leaves a prefix of the writes,
//! with the last one torn, or any of them; of each folder it leaves any of the added and removed names. The end of the
//! process alone takes nothing, but what it leaves unsynced can still be lost later.
//!
//! The disk can be full, fail to sync, and go off at any operation: from then on nothing works until
//! [`SimulatedDisk::after_crash`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_storage::{Disk, DiskFile};

/// What has gone wrong, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Writes that found no room.
    pub full: u64,
    /// Syncs that failed.
    pub sync: u64,
    /// Operations during which the machine or the process ended.
    pub cut_short: u64,
    /// Writes, and changes of names, that a loss of power took.
    pub lost: u64,
    /// Writes of which a loss of power left a part.
    pub torn: u64,
}

/// How an engine ends without being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// `kill -9`: all written content remains, synced or not.
    Process,
    /// The loss of power.
    Power,
}

/// Ways in which the disk lies, to test that this is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lies {
    /// A sync of a file in this folder does nothing.
    pub syncs_nothing_in: Option<&'static str>,
    /// A sync of a folder does nothing.
    pub forgets_names: bool,
}

/// A handle to the disk; all clones are handles to the same disk.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

type FileNumber = u64;

struct State {
    /// The file of each name, and what it would be after a loss of power.
    names: BTreeMap<PathBuf, FileNumber>,
    synced_names: BTreeMap<PathBuf, FileNumber>,
    folders: BTreeSet<PathBuf>,
    synced_folders: BTreeSet<PathBuf>,
    files: BTreeMap<FileNumber, FileState>,
    next: FileNumber,
    random: StdRng,
    /// The number of operations that still work; `None` for any number.
    left: Option<u64>,
    is_full: bool,
    /// Whether syncs fail.
    fails_to_sync: bool,
    /// Whether files cannot be read.
    fails_to_read: bool,
    lies: Lies,
    faults: DiskFaults,
    operations: u64,
    /// What happens during the next sync of a file.
    meanwhile: Option<(PathBuf, Box<dyn FnOnce() + Send>)>,
}

#[derive(Clone, Default)]
struct FileState {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    SetLen(usize),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => {
                if to.len() < at + bytes.len() {
                    to.resize(at + bytes.len(), 0);
                }
                to[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Self::SetLen(length) => to.resize(*length, 0),
        }
    }
}

impl FileState {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.bytes);
        self.unsynced.push(change);
    }

    fn sync(&mut self) {
        self.synced.clone_from(&self.bytes);
        self.unsynced.clear();
    }

    /// Keeps only what a loss of power leaves.
    fn lose(&mut self, random: &mut StdRng, faults: &mut DiskFaults) {
        let changes = std::mem::take(&mut self.unsynced);
        if random.random_bool(0.5) {
            let kept = random.random_range(0..=changes.len());
            changes[..kept].iter().for_each(|change| change.apply(&mut self.synced));
            faults.lost += (changes.len() - kept) as u64;
            if let Some(Change::Write { at, bytes }) = changes.get(kept) {
                let part = bytes[..random.random_range(0..=bytes.len())].to_vec();
                faults.torn += u64::from(!part.is_empty());
                Change::Write { at: *at, bytes: part }.apply(&mut self.synced);
            }
        } else {
            // Their order is not defined.
            for change in &changes {
                match random.random_bool(0.5) {
                    true => change.apply(&mut self.synced),
                    false => faults.lost += 1,
                }
            }
        }
        self.bytes.clone_from(&self.synced);
    }

    /// Fails a sync: any part of the content may be on the platter, and the system takes all of it for written.
    fn fail_to_sync(&mut self, random: &mut StdRng) {
        for change in std::mem::take(&mut self.unsynced) {
            if random.random_bool(0.5) {
                change.apply(&mut self.synced);
            }
        }
    }
}

fn off() -> io::Error {
    io::Error::other("the machine is off")
}

fn missing(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no {}", path.display()))
}

impl State {
    /// Called before each operation that changes something; returns false if everything ends during this operation.
    fn begin(&mut self) -> io::Result<bool> {
        self.operations += 1;
        match &mut self.left {
            Some(0) => Err(off()),
            Some(left) => {
                *left -= 1;
                let is_whole = *left > 0;
                self.faults.cut_short += u64::from(!is_whole);
                Ok(is_whole)
            }
            None => Ok(true),
        }
    }

    fn is_off(&self) -> bool {
        self.left == Some(0)
    }

    fn file(&mut self, number: FileNumber) -> io::Result<&mut FileState> {
        self.files.get_mut(&number).ok_or_else(off)
    }

    fn write(&mut self, number: FileNumber, bytes: &[u8], at: u64) -> io::Result<()> {
        let is_whole = self.begin()?;
        let at = at as usize;
        let grows = at + bytes.len() > self.file(number)?.bytes.len();
        if is_whole && !(self.is_full && grows) {
            self.file(number)?.change(Change::Write { at, bytes: bytes.to_vec() });
            return Ok(());
        }
        let part = self.random.random_range(0..=bytes.len());
        self.file(number)?.change(Change::Write { at, bytes: bytes[..part].to_vec() });
        if !is_whole {
            return Err(off());
        }
        self.faults.full += 1;
        Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on the disk"))
    }

    fn set_len(&mut self, number: FileNumber, length: u64) -> io::Result<()> {
        let is_whole = self.begin()?;
        if self.is_full && length > self.file(number)?.bytes.len() as u64 {
            self.faults.full += 1;
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on the disk"));
        }
        self.file(number)?.change(Change::SetLen(length as usize));
        if is_whole { Ok(()) } else { Err(off()) }
    }

    fn sync(&mut self, number: FileNumber, path: &Path) -> io::Result<()> {
        if !self.begin()? {
            return Err(off());
        }
        if self.fails_to_sync {
            self.faults.sync += 1;
            let file = self.files.get_mut(&number).ok_or_else(off)?;
            file.fail_to_sync(&mut self.random);
            return Err(io::Error::other("the disk does not answer"));
        }
        if !self.lies.syncs_nothing_in.is_some_and(|folder| path.starts_with(folder)) {
            self.file(number)?.sync();
        }
        Ok(())
    }

    /// Puts the names directly in a folder on the platter as they are in memory.
    fn sync_folder(&mut self, folder: &Path) -> io::Result<()> {
        if !self.begin()? {
            return Err(off());
        }
        if !self.folders.contains(folder) {
            return Err(missing(folder));
        }
        if self.lies.forgets_names {
            return Ok(());
        }
        let is_inside = |path: &Path| path.parent() == Some(folder);
        self.synced_names.retain(|path, _| !is_inside(path));
        let now = self.names.iter().filter(|(path, _)| is_inside(path));
        self.synced_names.extend(now.map(|(path, number)| (path.clone(), *number)));
        let now = self.folders.iter().filter(|path| is_inside(path));
        self.synced_folders.extend(now.cloned());
        Ok(())
    }

    /// Takes all or part of what was not synced.
    fn lose_power(&mut self) {
        let Self { names, synced_names, folders, synced_folders, files, random, faults, .. } = self;
        let all: BTreeSet<PathBuf> = names.keys().chain(synced_names.keys()).cloned().collect();
        for path in all {
            let (now, before) = (names.get(&path).copied(), synced_names.get(&path).copied());
            if now != before && random.random_bool(0.5) {
                match now {
                    Some(now) => drop(synced_names.insert(path, now)),
                    None => drop(synced_names.remove(&path)),
                }
            } else {
                faults.lost += u64::from(now != before);
            }
        }
        for folder in folders.iter() {
            // Outer folders come first.
            let is_there = folder.parent().is_none_or(|outer| outer == Path::new("") || synced_folders.contains(outer));
            if is_there && !synced_folders.contains(folder) {
                match random.random_bool(0.5) {
                    true => drop(synced_folders.insert(folder.clone())),
                    false => faults.lost += 1,
                }
            }
        }
        // What is in a folder that is gone is gone, whatever was synced of it.
        for folder in std::mem::take(synced_folders) {
            if folder.parent().is_none_or(|outer| outer == Path::new("") || synced_folders.contains(outer)) {
                synced_folders.insert(folder);
            }
        }
        let is_there =
            |path: &PathBuf| path.parent().is_none_or(|outer| outer == Path::new("") || synced_folders.contains(outer));
        synced_names.retain(|path, _| is_there(path));
        names.clone_from(synced_names);
        folders.clone_from(synced_folders);
        files.values_mut().for_each(|file| file.lose(random, faults));
        let named: BTreeSet<FileNumber> = names.values().copied().collect();
        files.retain(|number, _| named.contains(number));
    }
}

impl SimulatedDisk {
    /// Returns an empty disk. The seed decides what it loses.
    pub fn new(seed: u64, lies: Lies) -> Self {
        Self(Arc::new(Mutex::new(State {
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            folders: BTreeSet::new(),
            synced_folders: BTreeSet::new(),
            files: BTreeMap::new(),
            next: 1,
            random: StdRng::seed_from_u64(seed),
            left: None,
            is_full: false,
            fails_to_sync: false,
            fails_to_read: false,
            lies,
            faults: DiskFaults::default(),
            operations: 0,
            meanwhile: None,
        })))
    }

    /// Calls `meanwhile` during the next sync of a file, instead of what was set before.
    pub(crate) fn at_sync(&self, meanwhile: Option<(PathBuf, Box<dyn FnOnce() + Send>)>) {
        self.0.lock().meanwhile = meanwhile;
    }

    /// Makes the disk go off after this number of operations. The last of them is done in part.
    pub fn go_off_after(&self, operations: u64) {
        self.0.lock().left = Some(operations);
    }

    /// Cancels [`Self::go_off_after`] if the disk is still on.
    pub fn stay_on(&self) {
        let mut state = self.0.lock();
        if !state.is_off() {
            state.left = None;
        }
    }

    /// Whether it has gone off.
    pub fn is_off(&self) -> bool {
        self.0.lock().is_off()
    }

    /// Makes the disk full, or gives it room again.
    pub fn set_full(&self, is_full: bool) {
        self.0.lock().is_full = is_full;
    }

    /// Makes syncs fail, or work again.
    pub fn fail_to_sync(&self, fails: bool) {
        self.0.lock().fails_to_sync = fails;
    }

    /// Makes files unreadable, or readable again.
    pub fn fail_to_read(&self, fails: bool) {
        self.0.lock().fails_to_read = fails;
    }

    /// Whether it works, and is not about to go off.
    pub(crate) fn is_well(&self) -> bool {
        self.0.lock().left.is_none() && !self.is_sick()
    }

    /// Whether it is full, or syncs or reads fail.
    pub fn is_sick(&self) -> bool {
        let state = self.0.lock();
        state.is_full || state.fails_to_sync || state.fails_to_read
    }

    /// Makes the disk what the next process finds.
    pub fn after_crash(&self, crash: Crash) {
        let mut state = self.0.lock();
        state.left = None;
        if crash == Crash::Power {
            state.lose_power();
        }
    }

    /// What has gone wrong so far.
    pub fn faults(&self) -> DiskFaults {
        self.0.lock().faults
    }

    /// The number of operations so far that change anything.
    pub fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    /// Opens a file for reading and writing; makes it if it does not exist.
    pub(crate) fn open_or_create(&self, path: &Path) -> io::Result<SimulatedFile> {
        let mut state = self.0.lock();
        if state.is_off() {
            return Err(off());
        }
        let number = match state.names.get(path) {
            Some(number) => *number,
            None => {
                let number = state.make(path)?;
                // A catalog syncs its folder too.
                state.synced_names.insert(path.to_owned(), number);
                number
            }
        };
        Ok(SimulatedFile { disk: self.clone(), path: path.to_owned(), number })
    }

    /// Makes a folder as a library does that does not consider losses of power.
    pub(crate) fn make_unsynced_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        if !state.begin()? {
            return Err(off());
        }
        state.folders.extend(folder.ancestors().filter(|outer| *outer != Path::new("")).map(Path::to_owned));
        Ok(())
    }

    /// The files in a folder, and their sizes.
    pub(crate) fn files(&self, folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
        let state = self.0.lock();
        if state.is_off() {
            return Err(off());
        }
        if !state.folders.contains(folder) {
            return Err(missing(folder));
        }
        let inside = state.names.iter().filter(|(path, _)| path.parent() == Some(folder));
        Ok(inside.map(|(path, number)| (path.clone(), state.files[number].bytes.len() as u64)).collect())
    }

    /// Gives a file another name, which must not exist yet.
    pub(crate) fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        if !state.begin()? {
            return Err(off());
        }
        let number = *state.names.get(from).ok_or_else(|| missing(from))?;
        if state.names.contains_key(to) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is there", to.display())));
        }
        state.names.insert(to.to_owned(), number);
        Ok(())
    }
}

impl State {
    fn make(&mut self, path: &Path) -> io::Result<FileNumber> {
        if path.parent().is_some_and(|folder| folder != Path::new("") && !self.folders.contains(folder)) {
            return Err(missing(path));
        }
        let number = self.next;
        self.next += 1;
        self.files.insert(number, FileState::default());
        self.names.insert(path.to_owned(), number);
        Ok(number)
    }
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        let files =
            state.names.iter().map(|(path, number)| (path, state.files.get(number).map_or(0, |file| file.bytes.len())));
        f.debug_map().entries(files).finish()
    }
}

impl Disk for SimulatedDisk {
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        if !state.begin()? {
            return Err(off());
        }
        for outer in folder.ancestors().filter(|outer| *outer != Path::new("")) {
            state.folders.insert(outer.to_owned());
            state.synced_folders.insert(outer.to_owned());
        }
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
        let mut found = self.files(folder)?;
        let state = self.0.lock();
        let inside = state.folders.iter().filter(|path| path.parent() == Some(folder));
        found.extend(inside.map(|path| (path.clone(), 0)));
        Ok(found)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.0.lock();
        if state.is_off() {
            return Err(off());
        }
        if state.fails_to_read {
            return Err(io::Error::other("the disk does not answer"));
        }
        let number = state.names.get(path).ok_or_else(|| missing(path))?;
        Ok(state.files[number].bytes.clone())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.lock();
        if !state.begin()? {
            return Err(off());
        }
        let number = match state.names.get(path).copied() {
            Some(number) => {
                state.file(number)?.change(Change::SetLen(0));
                number
            }
            None => state.make(path)?,
        };
        Ok(Box::new(SimulatedFile { disk: self.clone(), path: path.to_owned(), number }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let state = self.0.lock();
        if state.is_off() {
            return Err(off());
        }
        let number = *state.names.get(path).ok_or_else(|| missing(path))?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), path: path.to_owned(), number }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let is_whole = state.begin()?;
        state.names.remove(path).ok_or_else(|| missing(path))?;
        if is_whole { Ok(()) } else { Err(off()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let is_whole = state.begin()?;
        let number = state.names.remove(from).ok_or_else(|| missing(from))?;
        state.names.insert(to.to_owned(), number);
        if is_whole { Ok(()) } else { Err(off()) }
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.0.lock().sync_folder(folder)
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct SimulatedFile {
    disk: SimulatedDisk,
    path: PathBuf,
    number: FileNumber,
}

impl SimulatedFile {
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        let mut state = self.disk.0.lock();
        if state.is_off() {
            return Err(off());
        }
        Ok(state.file(self.number)?.bytes.len() as u64)
    }

    pub(crate) fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        if state.is_off() {
            return Err(off());
        }
        let at = at as usize;
        let found = state.file(self.number)?.bytes.get(at..at + out.len());
        out.copy_from_slice(found.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }
}

impl DiskFile for SimulatedFile {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.disk.0.lock().write(self.number, bytes, at)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk.0.lock().set_len(self.number, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let meanwhile = self.disk.0.lock().meanwhile.take_if(|(path, _)| *path == self.path);
        // Without the lock: it may use the disk.
        if let Some((_, meanwhile)) = meanwhile {
            meanwhile();
        }
        self.disk.0.lock().sync(self.number, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_takes_what_was_not_synced_and_the_end_of_a_process_does_not() {
        let (folder, path) = (Path::new("f"), Path::new("f/a"));
        let mut left = BTreeSet::new();
        for seed in 0..50 {
            let disk = SimulatedDisk::new(seed, Lies::default());
            disk.make_folder(folder).unwrap();
            let file = disk.create(path).unwrap();
            file.write_at(b"synced", 0).unwrap();
            file.sync().unwrap();
            disk.sync_folder(folder).unwrap();
            file.write_at(b"not yet", 6).unwrap();
            disk.after_crash(Crash::Process);
            assert_eq!(disk.read(path).unwrap(), b"syncednot yet");
            disk.after_crash(Crash::Power);
            let found = disk.read(path).unwrap();
            assert!(b"syncednot yet".starts_with(&found[..]) && found.len() >= 6);
            left.insert(found.len());
        }
        assert!(left.len() > 3, "{left:?}");
    }

    #[test]
    fn it_goes_off_in_the_middle_of_an_operation() {
        let disk = SimulatedDisk::new(1, Lies::default());
        disk.make_folder(Path::new("f")).unwrap();
        let file = disk.create(Path::new("f/a")).unwrap();
        disk.go_off_after(2);
        assert!(file.write_at(b"one", 0).is_ok());
        assert!(file.write_at(b"two", 3).is_err() && disk.is_off() && file.sync().is_err());
        disk.after_crash(Crash::Process);
        assert!(disk.read(Path::new("f/a")).unwrap().starts_with(b"one"));
    }
}
