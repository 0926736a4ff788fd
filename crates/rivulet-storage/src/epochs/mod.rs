//! A line of epochs: checkpoints that follow each other, of which the newest whole one counts.
//!
//! An epoch is one *pack*, an object with all pieces that were written then, and one *manifest*, which names the packs
//! that are needed and which of their pieces still count. The manifest is written last: with it the epoch is there,
//! without it nothing has changed. Pieces that did not change stay where they are, so an epoch costs what is new. A
//! pack that holds little that counts is emptied into the next one; what no retained manifest names is deleted.
//!
//! What must hold: whatever happens at whatever step, the newest epoch that was committed can be restored, and if its
//! bytes are damaged, the one before. Where pieces of different names have nothing to do with each other
//! ([`Epochs::open_apart`]), only those names go back of which something is damaged, and the next epoch has them as
//! they were found.

mod manifest;
mod pack;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::{StorageError, Store};
use manifest::Manifest;
use pack::{Entry, Pack};

/// A pack of which less than this share counts is emptied into the next.
const LIVE_SHARE_MIN: f64 = 0.3;

/// So many bytes are taken over from old packs by one epoch at most, beyond what it writes itself.
const TAKEN_OVER_BYTES_MAX: u64 = 64 << 20;

/// How a line of epochs is kept.
#[derive(Clone, Copy, Debug)]
pub struct EpochSettings {
    /// How many epochs are kept, at least one: those before the newest are for the case that it is damaged.
    pub retained: usize,
}

/// What a checkpoint consists of.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// What belongs to the whole of it, such as the positions of sources.
    pub note: serde_json::Value,
    /// What has changed since the epoch before.
    pub pieces: Vec<Piece>,
    /// The names of pieces that are not needed any more.
    pub dropped: Vec<String>,
}

/// Something that is restored by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    name: String,
    /// Whether it is applied behind what was written under this name before, rather than in its place.
    is_delta: bool,
    bytes: Bytes,
    /// XXH3, 64 bits, of that.
    checksum: u64,
}

impl Piece {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The checksum of what it says.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// What stands in the place of what was written under this name before.
    pub fn whole(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let (name, bytes) = (name.into(), bytes.into());
        Self { name, is_delta: false, checksum: xxh3_64(&bytes), bytes }
    }

    /// What applies behind what was written under this name before.
    pub fn delta(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        Self { is_delta: true, ..Self::whole(name, bytes) }
    }
}

/// What an epoch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its number.
    pub epoch: u64,
    /// Bytes that were written, those that were taken over from older packs included.
    pub written_bytes: u64,
    /// Bytes of all that a restart would read.
    pub live_bytes: u64,
}

/// What was found of a line of epochs.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The epoch's number.
    pub epoch: u64,
    /// Its note.
    pub note: serde_json::Value,
    /// Its pieces: name by name, those of one name in the order in which they apply.
    pub pieces: BTreeMap<String, Vec<Bytes>>,
    /// The names among them whose pieces come from an epoch before, with what that says beside its pieces. The next
    /// epoch has these pieces again, unless something whole is written under their name.
    pub older: BTreeMap<String, serde_json::Value>,
}

/// The pieces of a name as they were in an older epoch.
#[derive(Clone, Debug)]
struct Older {
    note: serde_json::Value,
    pieces: Vec<(Entry, Bytes)>,
}

/// A line of epochs in a store.
#[derive(Debug)]
pub struct Epochs {
    store: Arc<Store>,
    line: String,
    settings: EpochSettings,
    /// Whether names have nothing to do with each other.
    is_apart: bool,
    /// What stands in the place of pieces of the newest epoch that are damaged, until there is another.
    older: BTreeMap<String, Older>,
    /// The number of the next epoch.
    next: u64,
    /// The epochs that are kept, oldest first.
    retained: VecDeque<Manifest>,
    /// The packs of the newest of them, by the number of the epoch that wrote them.
    packs: BTreeMap<u64, Pack>,
    /// Why newer epochs than the newest of these could not be used.
    problems: Vec<String>,
    /// What another process has written of this line since it was opened: then this one writes nothing more.
    taken: Option<String>,
}

impl Epochs {
    /// Looks for the newest epoch of a line that is whole, down to its last byte. Nothing is changed yet.
    ///
    /// # Errors
    /// The store cannot be read. Damage is no error as long as an older epoch is whole, or there was none: see
    /// [`Epochs::problems`].
    pub fn open(store: Arc<Store>, line: &str, settings: EpochSettings) -> Result<Self, StorageError> {
        Self::find(store, line, settings, false)
    }

    /// The same for a line in which each name stands for itself: of the newest epoch only the names are given up of
    /// which a piece is damaged. Those are as in the newest older epoch that has them whole, or gone where there is
    /// none.
    ///
    /// # Errors
    /// As [`Epochs::open`] has.
    pub fn open_apart(store: Arc<Store>, line: &str, settings: EpochSettings) -> Result<Self, StorageError> {
        Self::find(store, line, settings, true)
    }

    fn find(store: Arc<Store>, line: &str, settings: EpochSettings, is_apart: bool) -> Result<Self, StorageError> {
        let mut epochs = Self {
            store,
            line: line.to_owned(),
            settings,
            is_apart,
            older: BTreeMap::new(),
            next: 1,
            retained: VecDeque::new(),
            packs: BTreeMap::new(),
            problems: Vec::new(),
            taken: None,
        };
        let mut numbers: BTreeSet<u64> = BTreeSet::new();
        for (name, _) in epochs.store.list(line)? {
            let number = manifest::number_of(line, &name);
            // A pack without a manifest leaves its number free, but nothing is lost by not using it.
            epochs.next = epochs.next.max(number.or(pack::number_of(line, &name)).map_or(0, |number| number + 1));
            numbers.extend(number);
        }
        // The names that are damaged in the newest epoch and not found in an older one yet.
        let mut wanted = BTreeSet::new();
        for &number in numbers.iter().rev().take(epochs.settings.retained.max(1)) {
            let is_newest = epochs.retained.is_empty();
            match epochs.load(number, is_newest) {
                Ok((manifest, mut packs)) => {
                    if is_newest {
                        wanted = epochs.give_up_damaged(number, &mut packs);
                        epochs.packs = packs;
                    } else if !wanted.is_empty() {
                        epochs.find_older(&manifest, &packs, &mut wanted)?;
                    }
                    epochs.retained.push_front(manifest);
                }
                // What cannot be read now is not damaged: to begin with an older one would lose what is between.
                Err(error @ (StorageError::Version { .. } | StorageError::Remote { .. })) => return Err(error),
                // One that is older than a whole one is not needed.
                Err(_) if !is_newest => {}
                // What cannot be read now is not damaged: to begin with an older one would lose what is between.
                Err(error) if !error.is_damage() => return Err(error),
                Err(error) => epochs.problems.push(format!("epoch {number} cannot be used: {error}")),
            }
        }
        for name in wanted {
            epochs.problems.push(format!("no epoch that is kept has '{name}' whole: it is lost"));
        }
        Ok(epochs)
    }

    /// The manifest of an epoch and its packs; with `checks` every byte that counts is read. Where each name stands for
    /// itself, damaged pieces are no error and are to be looked for.
    fn load(&self, number: u64, checks: bool) -> Result<(Manifest, BTreeMap<u64, Pack>), StorageError> {
        let name = manifest::name(&self.line, number);
        let manifest = Manifest::from_bytes(&name, &self.store.get(&name)?)?;
        if manifest.epoch != number {
            return Err(StorageError::damaged(&name, format!("it is the manifest of epoch {}", manifest.epoch)));
        }
        let mut packs = BTreeMap::new();
        for used in &manifest.packs {
            let mut pack = Pack::open(&self.store, &self.line, used.epoch)?;
            pack.keep(used)?;
            if checks {
                match pack.read_live(&self.store, |_, _| ()) {
                    Err(error) if self.is_apart && error.is_damage() => pack.find_damage(&self.store)?,
                    read => read?,
                }
            }
            packs.insert(used.epoch, pack);
        }
        Ok((manifest, packs))
    }

    /// Takes the names out of the packs of an epoch of which pieces were found damaged; returns them, and it is said.
    fn give_up_damaged(&mut self, number: u64, packs: &mut BTreeMap<u64, Pack>) -> BTreeSet<String> {
        let found: BTreeMap<String, String> = packs.values_mut().flat_map(Pack::take_damage).collect();
        let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
        packs.values_mut().for_each(|pack| pack.forget(&names));
        packs.retain(|_, pack| pack.live_bytes() > 0);
        self.problems
            .extend(found.iter().map(|(name, error)| format!("'{name}' of epoch {number} cannot be used: {error}")));
        found.into_keys().collect()
    }

    /// Takes over what an older epoch has whole of the names that are wanted.
    fn find_older(
        &mut self,
        manifest: &Manifest,
        packs: &BTreeMap<u64, Pack>,
        wanted: &mut BTreeSet<String>,
    ) -> Result<(), StorageError> {
        for name in std::mem::take(wanted) {
            let mut read: Vec<(Entry, Bytes)> = Vec::new();
            let found = packs.values().try_for_each(|pack| {
                pack.read_named(&self.store, &name, |entry, bytes| read.push((entry.clone(), bytes)))
            });
            match found {
                // An application that came later has nothing to go back to.
                Ok(()) if read.is_empty() => drop(wanted.insert(name)),
                Ok(()) => {
                    read.sort_by_key(|(entry, _)| entry.written);
                    self.problems.push(format!("'{name}' is as it was in epoch {}", manifest.epoch));
                    self.older.insert(name, Older { note: manifest.note.clone(), pieces: read });
                }
                Err(error) if error.is_damage() => drop(wanted.insert(name)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The lines below a folder of a store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn lines(store: &Store, below: &str) -> Result<BTreeSet<String>, StorageError> {
        let names = store.list(below)?.into_iter().map(|(name, _)| name);
        Ok(names.filter_map(|name| Some(name.rsplit_once('/')?.0.to_owned())).collect())
    }

    /// The line with an epoch that is there by this object, if it is one of those by which epochs are: without it
    /// nothing else of an epoch counts.
    pub fn line_of(object: &str) -> Option<&str> {
        let line = object.rsplit_once('/')?.0;
        manifest::number_of(line, object).map(|_| line)
    }

    /// Bytes of all that a restart would read.
    pub fn live_bytes(&self) -> u64 {
        self.packs.values().map(Pack::live_bytes).sum()
    }

    /// The number of the newest epoch.
    pub fn newest(&self) -> Option<u64> {
        self.retained.back().map(|manifest| manifest.epoch)
    }

    /// The number of the epoch that [`Epochs::commit`] makes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// What the newest epoch says beside its pieces.
    pub fn note(&self) -> Option<&serde_json::Value> {
        self.retained.back().map(|manifest| &manifest.note)
    }

    /// The epochs that are kept, oldest first, each with what it says beside its pieces.
    pub fn kept(&self) -> impl Iterator<Item = (u64, &serde_json::Value)> {
        self.retained.iter().map(|manifest| (manifest.epoch, &manifest.note))
    }

    /// Why newer epochs could not be used, in words.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// What the newest epoch says; `None` if there was none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn restore(&self) -> Result<Option<Restored>, StorageError> {
        let Some(manifest) = self.retained.back() else { return Ok(None) };
        let mut read: Vec<(Entry, Bytes)> = Vec::new();
        for pack in self.packs.values() {
            pack.read_live(&self.store, |entry, bytes| read.push((entry.clone(), bytes)))?;
        }
        read.sort_by_key(|(entry, _)| entry.written);
        let mut pieces: BTreeMap<String, Vec<Bytes>> = BTreeMap::new();
        for (entry, bytes) in read {
            pieces.entry(entry.name).or_default().push(bytes);
        }
        for (name, older) in &self.older {
            pieces.insert(name.clone(), older.pieces.iter().map(|(_, bytes)| bytes.clone()).collect());
        }
        let older = self.older.iter().map(|(name, older)| (name.clone(), older.note.clone())).collect();
        Ok(Some(Restored { epoch: manifest.epoch, note: manifest.note.clone(), pieces, older }))
    }

    /// Goes back to an epoch that is kept, or to before all of them: those behind it are deleted, and it is the newest.
    /// Numbers are not given out again. False, with nothing changed, if that epoch is not there.
    ///
    /// # Errors
    /// The epoch is damaged, or the store does not do what it is asked for; some of those behind it may be deleted
    /// then. Nothing is while somebody holds the store.
    pub fn go_back(&mut self, to: Option<u64>) -> Result<bool, StorageError> {
        if to.is_some_and(|to| self.retained.iter().all(|manifest| manifest.epoch != to)) {
            return Ok(false);
        }
        self.check_deletable()?;
        let packs = match to {
            Some(to) => self.load(to, true)?.1,
            None => BTreeMap::new(),
        };
        // The newest first: whatever is left after a crash is a line.
        while let Some(newest) = self.newest().filter(|&newest| to.is_none_or(|to| newest > to)) {
            self.store.delete(&manifest::name(&self.line, newest))?;
            self.retained.pop_back();
        }
        self.packs = packs;
        self.older.clear();
        Ok(true)
    }

    /// Makes an epoch. When this returns, it is the one that a restart finds, also after the loss of power.
    ///
    /// # Errors
    /// Whatever the store says. The epoch before is in force then, and the same pieces may be offered again.
    pub fn commit(&mut self, epoch: Epoch) -> Result<Committed, StorageError> {
        let Epoch { note, pieces, dropped } = epoch;
        if let Some(what) = &self.taken {
            return Err(StorageError::Taken { what: what.clone() });
        }
        let number = self.next;
        // Whatever becomes of this epoch, its number is used up: half of it may be there.
        self.next += 1;
        let mut packs = self.packs.clone();
        let replaced: BTreeSet<&str> = pieces
            .iter()
            .filter(|piece| !piece.is_delta)
            .map(|piece| piece.name.as_str())
            .chain(dropped.iter().map(String::as_str))
            .collect();
        packs.values_mut().for_each(|pack| pack.forget(&replaced));
        let mut taken_over = Vec::new();
        let mut taken_over_bytes = 0;
        for pack in packs.values_mut() {
            let live_bytes = pack.live_bytes();
            let is_sparse = (live_bytes as f64) < LIVE_SHARE_MIN * pack.bytes() as f64;
            if is_sparse && taken_over_bytes + live_bytes <= TAKEN_OVER_BYTES_MAX {
                pack.read_live(&self.store, |entry, bytes| taken_over.push((entry.clone(), bytes)))?;
                taken_over_bytes += live_bytes;
                pack.forget_all();
            }
        }
        packs.retain(|_, pack| pack.live_bytes() > 0);
        // The packs do not have these any more, and the epoch that does goes by and by.
        let older = self.older.iter().filter(|(name, _)| !replaced.contains(name.as_str()));
        taken_over.extend(older.flat_map(|(_, older)| older.pieces.iter().cloned()));
        let mut written_bytes = 0;
        if !pieces.is_empty() || !taken_over.is_empty() {
            let new = pieces.into_iter().map(|piece| (Entry::new(&piece, number), piece.bytes));
            let pack = Pack::write(&self.store, &self.line, number, taken_over.into_iter().chain(new));
            let pack = pack.map_err(|error| self.note_taken(error))?;
            written_bytes += pack.bytes();
            packs.insert(number, pack);
        }
        let used = packs.iter().map(|(&epoch, pack)| pack.used(epoch)).collect();
        let manifest = Manifest { epoch: number, note, packs: used };
        let bytes = manifest.to_bytes();
        written_bytes += bytes.len() as u64;
        let put = self.store.put(&manifest::name(&self.line, number), vec![bytes]);
        put.map_err(|error| self.note_taken(error))?;
        self.retained.push_back(manifest);
        self.packs = packs;
        self.problems.clear();
        self.older.clear();
        self.clean();
        Ok(Committed { epoch: number, written_bytes, live_bytes: self.live_bytes() })
    }

    /// Whoever has met another process on its line keeps off it: its next number may be one that the other has passed,
    /// and what it would tidy up is what the other needs.
    fn note_taken(&mut self, error: StorageError) -> StorageError {
        if let StorageError::Taken { what } = &error {
            self.taken = Some(what.clone());
        }
        error
    }

    /// What [`Piece`]s the newest epoch has, by name with their checksums. Of a name with several the last one counts.
    pub fn checksums(&self) -> BTreeMap<&str, u64> {
        let mut live: Vec<&Entry> = self.packs.values().flat_map(Pack::live).collect();
        live.sort_by_key(|entry| entry.written);
        live.into_iter().map(|entry| (entry.name.as_str(), entry.checksum)).collect()
    }

    /// Deletes what no epoch that is kept needs. What cannot be deleted now is tried again the next time.
    fn clean(&mut self) {
        while self.retained.len() > self.settings.retained.max(1) {
            self.retained.pop_front();
        }
        let manifests: BTreeSet<u64> = self.retained.iter().map(|manifest| manifest.epoch).collect();
        let packs: BTreeSet<u64> =
            self.retained.iter().flat_map(|manifest| manifest.packs.iter().map(|used| used.epoch)).collect();
        // Who reads all of the store, for a backup, wants what it has seen; the next epoch tidies up behind it.
        if self.store.is_held() {
            return;
        }
        let Ok(listed) = self.store.list(&self.line) else { return };
        let newest = self.newest().unwrap_or(0);
        let later = listed.iter().map(|(name, _)| name).find(|name| {
            manifest::number_of(&self.line, name)
                .or(pack::number_of(&self.line, name))
                .is_some_and(|number| number > newest)
        });
        if let Some(later) = later {
            tracing::error!("another process makes checkpoints in {}: it has written {later}", self.store.place());
            self.taken = Some(format!("{}/{later}", self.store.place()));
            return;
        }
        // Manifests first: one that is there has its packs.
        let old = |number: Option<u64>, kept: &BTreeSet<u64>| number.is_some_and(|number| !kept.contains(&number));
        let (of_manifests, of_packs): (Vec<_>, Vec<_>) = listed
            .into_iter()
            .map(|(name, _)| name)
            .filter(|name| {
                old(manifest::number_of(&self.line, name), &manifests) || old(pack::number_of(&self.line, name), &packs)
            })
            .partition(|name| manifest::number_of(&self.line, name).is_some());
        for name in of_manifests.iter().chain(&of_packs) {
            if let Err(error) = self.store.delete(name) {
                tracing::warn!("an old checkpoint stays for now: {error}");
                break;
            }
        }
    }

    /// Whether something may be deleted now that does not wait: who reads all of the store wants what it has seen.
    fn check_deletable(&self) -> Result<(), StorageError> {
        if !self.store.is_held() {
            return Ok(());
        }
        let source = std::io::Error::new(std::io::ErrorKind::ResourceBusy, "a backup is being made");
        Err(StorageError::Io { what: format!("cannot delete {}/{}", self.store.place(), self.line), source })
    }

    /// Deletes the whole line: what it belonged to is not there any more.
    ///
    /// # Errors
    /// Something could not be deleted, or must not be now.
    pub fn delete(self) -> Result<(), StorageError> {
        let mut names: Vec<String> = self.store.list(&self.line)?.into_iter().map(|(name, _)| name).collect();
        if !names.is_empty() {
            self.check_deletable()?;
        }
        names.sort_by_key(|name| manifest::number_of(&self.line, name).is_none());
        names.iter().try_for_each(|name| self.store.delete(name))
    }
}

#[cfg(test)]
mod tests;
