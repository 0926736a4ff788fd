//! A line of epochs: successive checkpoints, of which the newest intact one is in force.
//!
//! An epoch is one *pack*, an object with all pieces written for it, and one *manifest*, which names the packs it needs
//! and which of their pieces are still live. The manifest is written last: with it the epoch exists, without it nothing
//! has changed. Pieces that did not change stay where they are, so an epoch costs only what is new. The live pieces of
//! a pack that holds few of them are moved to the next pack. A pack that no retained manifest names is deleted.
//!
//! What must hold: whatever fails at whatever step, the newest committed epoch can be restored, and if its bytes are
//! damaged, the one before. In a line whose names are independent of each other ([`Epochs::open_apart`]) only the
//! damaged names fall back, and the next epoch contains them as they were restored.

mod fill;
mod manifest;
mod pack;
mod piece;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::{StorageError, Store};
use manifest::Manifest;
use pack::{Entry, Pack};

pub use piece::Piece;

/// A pack whose live share of bytes is below this is emptied into the next one.
const LIVE_SHARE_MIN: f64 = 0.3;

/// The most bytes that one epoch moves from old packs, beyond the bytes it writes itself.
const TAKEN_OVER_BYTES_MAX: u64 = 64 << 20;

/// Settings of a line of epochs.
#[derive(Clone, Copy, Debug)]
pub struct EpochSettings {
    /// How many epochs are kept, at least one. The older ones serve if the newest is damaged.
    pub retained: usize,
}

/// The content of a checkpoint.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// What belongs to the whole epoch, such as the positions of sources.
    pub note: serde_json::Value,
    /// What has changed since the previous epoch.
    pub pieces: Vec<Piece>,
    /// The names whose pieces are not needed any more.
    pub dropped: Vec<String>,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The number of the epoch.
    pub epoch: u64,
    /// Bytes written, including those moved from older packs.
    pub written_bytes: u64,
    /// Bytes that a restart would read.
    pub live_bytes: u64,
}

/// A restored epoch.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The epoch's number.
    pub epoch: u64,
    /// Its note.
    pub note: serde_json::Value,
    /// Its pieces by name; the pieces of one name in the order in which they apply.
    pub pieces: BTreeMap<String, Vec<Bytes>>,
    /// The names whose pieces come from an older epoch, with the note of that epoch. The next epoch contains these
    /// pieces again, unless a whole piece is written under the name.
    pub older: BTreeMap<String, serde_json::Value>,
}

/// The pieces of a name, from an older epoch.
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
    /// Whether the names are independent of each other.
    is_apart: bool,
    /// Replacements for damaged pieces of the newest epoch, until there is another epoch.
    older: BTreeMap<String, Older>,
    /// The number of the next epoch.
    next: u64,
    /// The epochs that are kept, oldest first.
    retained: VecDeque<Manifest>,
    /// The packs that the newest retained epoch needs, by the number of the epoch that wrote them.
    packs: BTreeMap<u64, Pack>,
    /// Why newer epochs than the newest retained one could not be used.
    problems: Vec<String>,
    /// What another process has written of this line since it was opened. After that this process writes nothing more.
    taken: Option<String>,
}

impl Epochs {
    /// Finds the newest epoch of a line whose bytes are all intact. Changes nothing.
    ///
    /// # Errors
    /// The store cannot be read. Damage is not an error as long as an older epoch is intact, or there was none: see
    /// [`Epochs::problems`].
    pub fn open(store: Arc<Store>, line: &str, settings: EpochSettings) -> Result<Self, StorageError> {
        Self::find(store, line, settings, false)
    }

    /// The same for a line whose names are independent of each other. Only names with a damaged piece fall back to the
    /// newest older epoch in which all their pieces are intact; a name without such an epoch is dropped.
    ///
    /// # Errors
    /// As [`Epochs::open`].
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
            // A pack without a manifest would leave its number free; the number is skipped all the same.
            epochs.next = epochs.next.max(number.or(pack::number_of(line, &name)).map_or(0, |number| number + 1));
            numbers.extend(number);
        }
        // The names that are damaged in the newest epoch and not found intact in an older one yet.
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
                // An epoch that cannot be read now is not damaged: to fall back to an older one would lose the changes
                // in between.
                Err(error @ (StorageError::Version { .. } | StorageError::Remote { .. })) => return Err(error),
                // An epoch older than an intact one is not needed.
                Err(_) if !is_newest => {}
                Err(error) if !error.is_damage() => return Err(error),
                Err(error) => epochs.problems.push(format!("epoch {number} cannot be used: {error}")),
            }
        }
        for name in wanted {
            epochs.problems.push(format!("no epoch that is kept has '{name}' whole: it is lost"));
        }
        Ok(epochs)
    }

    /// The manifest of an epoch and its packs; with `checks` every live byte is read. In a line of independent names,
    /// damaged pieces are not an error: the caller looks for them.
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

    /// Removes the names with damaged pieces from the packs of an epoch, reports them as problems and returns them.
    fn give_up_damaged(&mut self, number: u64, packs: &mut BTreeMap<u64, Pack>) -> BTreeSet<String> {
        let found: BTreeMap<String, String> = packs.values_mut().flat_map(Pack::take_damage).collect();
        let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
        packs.values_mut().for_each(|pack| pack.forget(&names));
        packs.retain(|_, pack| pack.live_bytes() > 0);
        self.problems
            .extend(found.iter().map(|(name, error)| format!("'{name}' of epoch {number} cannot be used: {error}")));
        found.into_keys().collect()
    }

    /// Takes over the wanted names that are intact in an older epoch.
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
                // The name does not exist in the older epoch: it has nothing to fall back to.
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

    /// The line of an epoch, if this object makes the epoch exist (its manifest); other objects of an epoch do not
    /// count without it.
    pub fn line_of(object: &str) -> Option<&str> {
        let line = object.rsplit_once('/')?.0;
        manifest::number_of(line, object).map(|_| line)
    }

    /// Bytes that a restart would read.
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

    /// The note of the newest epoch.
    pub fn note(&self) -> Option<&serde_json::Value> {
        self.retained.back().map(|manifest| &manifest.note)
    }

    /// The retained epochs, oldest first, each with its note.
    pub fn kept(&self) -> impl Iterator<Item = (u64, &serde_json::Value)> {
        self.retained.iter().map(|manifest| (manifest.epoch, &manifest.note))
    }

    /// Why newer epochs could not be used, in words.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The newest epoch; `None` if there is none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn restore(&self) -> Result<Option<Restored>, StorageError> {
        let Some(manifest) = self.retained.back() else { return Ok(None) };
        // Others act upon what is restored, so it has to outlive a loss of power. Whoever wrote it may have failed just
        // before that.
        self.packs.values().try_for_each(|pack| pack.make_durable(&self.store))?;
        self.store.make_durable(&manifest::name(&self.line, manifest.epoch))?;
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

    /// Goes back to a retained epoch, or with `None` to before all of them: later epochs are deleted, and their numbers
    /// are not used again. Returns false, with nothing changed, if that epoch does not exist.
    ///
    /// # Errors
    /// The epoch is damaged, or the store fails; some of the later epochs may be deleted then. Nothing is deleted while
    /// the store is held.
    pub fn go_back(&mut self, to: Option<u64>) -> Result<bool, StorageError> {
        if to.is_some_and(|to| self.retained.iter().all(|manifest| manifest.epoch != to)) {
            return Ok(false);
        }
        self.check_deletable()?;
        let packs = match to {
            Some(to) => self.load(to, true)?.1,
            None => BTreeMap::new(),
        };
        // The newest goes first, so a crash always leaves a valid line.
        while let Some(newest) = self.newest().filter(|&newest| to.is_none_or(|to| newest > to)) {
            self.store.delete(&manifest::name(&self.line, newest))?;
            self.retained.pop_back();
        }
        self.packs = packs;
        self.older.clear();
        Ok(true)
    }

    /// Writes an epoch. When this returns, a restart finds it, even after a loss of power.
    ///
    /// # Errors
    /// The error of the store. The previous epoch stays in force, and the same pieces may be offered again.
    pub fn commit(&mut self, epoch: Epoch) -> Result<Committed, StorageError> {
        let Epoch { note, pieces, dropped } = epoch;
        if let Some(what) = &self.taken {
            return Err(StorageError::Taken { what: what.clone() });
        }
        let number = self.next;
        // The number is used up whatever happens: parts of the epoch may be in the store.
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
        // The packs no longer have these pieces, and the epoch that has them will be deleted in time.
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

    /// A process that has met another one on its line stops writing: its next number may be one that the other has
    /// passed, and it might delete what the other needs.
    fn note_taken(&mut self, error: StorageError) -> StorageError {
        if let StorageError::Taken { what } = &error {
            self.taken = Some(what.clone());
        }
        error
    }

    /// The checksums of the [`Piece`]s of the newest epoch by name. Of several pieces of a name the last one counts.
    pub fn checksums(&self) -> BTreeMap<&str, u64> {
        let mut live: Vec<&Entry> = self.packs.values().flat_map(Pack::live).collect();
        live.sort_by_key(|entry| entry.written);
        live.into_iter().map(|entry| (entry.name.as_str(), entry.checksum)).collect()
    }

    /// Deletes objects that no retained epoch needs. What cannot be deleted now is tried again the next time.
    fn clean(&mut self) {
        while self.retained.len() > self.settings.retained.max(1) {
            self.retained.pop_front();
        }
        let manifests: BTreeSet<u64> = self.retained.iter().map(|manifest| manifest.epoch).collect();
        let packs: BTreeSet<u64> =
            self.retained.iter().flat_map(|manifest| manifest.packs.iter().map(|used| used.epoch)).collect();
        // A backup that reads the whole store needs every object it has listed; the next epoch cleans up.
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
        // Manifests go first: a manifest that exists always has its packs.
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

    /// Whether objects may be deleted now that cannot be deleted later: a backup needs every object it has listed.
    fn check_deletable(&self) -> Result<(), StorageError> {
        if !self.store.is_held() {
            return Ok(());
        }
        let source = std::io::Error::new(std::io::ErrorKind::ResourceBusy, "a backup is being made");
        Err(StorageError::Io { what: format!("cannot delete {}/{}", self.store.place(), self.line), source })
    }

    /// Deletes the whole line, whose application or query no longer exists.
    ///
    /// # Errors
    /// Something could not be deleted, or must not be deleted now.
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
