//! The file of spilled state: blocks of bytes that are written once, read, and freed.
//!
//! Freed space is used again, so the file is about as large as its content. The file has no name and disappears with
//! the process, however the process ends: the state in memory would be lost then as well.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The unit of space, so that a freed block fits another one.
const UNIT_BYTES: u64 = 4_096;

/// The place of a block in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    offset: u64,
    bytes: u32,
}

/// A file of blocks, for all groups of a process.
pub(crate) struct SpillFile {
    file: File,
    bytes_max: u64,
    space: Mutex<Space>,
}

/// The used and free space of the file.
#[derive(Debug, Default)]
struct Space {
    /// The end of the last block.
    end: u64,
    /// The free extents before that, offset and length. No two are adjacent.
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
}

impl SpillFile {
    /// Makes a file in `folder`, and the folder if it does not exist. The file never holds more than `bytes_max`.
    pub(crate) fn create(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        // A process may make several files at the same time.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        std::fs::create_dir_all(folder)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("spill-{}-{number}.tmp", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Self { file, bytes_max, space: Mutex::default() })
    }

    /// Writes a block. It is not forced to disk, because it need not survive a crash.
    pub(crate) fn write(&self, block: &[u8]) -> io::Result<Extent> {
        let bytes = u32::try_from(block.len()).map_err(|_| io::Error::other("a block is larger than 4 GiB"))?;
        let offset = self.space.lock().take(rounded(bytes), self.bytes_max).ok_or_else(|| {
            io::Error::new(io::ErrorKind::StorageFull, format!("the spill file has reached {} bytes", self.bytes_max))
        })?;
        let extent = Extent { offset, bytes };
        match self.file.write_all_at(block, offset) {
            Ok(()) => Ok(extent),
            Err(error) => {
                self.free(extent);
                Err(error)
            }
        }
    }

    /// Reads a block.
    pub(crate) fn read(&self, extent: Extent) -> io::Result<Vec<u8>> {
        let mut block = vec![0; extent.bytes as usize];
        self.file.read_exact_at(&mut block, extent.offset)?;
        Ok(block)
    }

    /// Frees a block.
    pub(crate) fn free(&self, extent: Extent) {
        let mut space = self.space.lock();
        let before = space.end;
        space.give(extent.offset, rounded(extent.bytes));
        if space.end < before {
            // If the file cannot be truncated, its space is used again all the same. Under the lock, so that no block
            // is written there meanwhile.
            let _ = self.file.set_len(space.end);
        }
    }

    /// The bytes that blocks occupy.
    pub(crate) fn used_bytes(&self) -> u64 {
        let space = self.space.lock();
        space.end - space.free_bytes
    }
}

fn rounded(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(UNIT_BYTES)
}

impl Space {
    /// The first free extent with room for `bytes`.
    fn take(&mut self, bytes: u64, end_max: u64) -> Option<u64> {
        let found = self.free.iter().find(|(_, room)| **room >= bytes).map(|(&offset, &room)| (offset, room));
        match found {
            Some((offset, room)) => {
                self.free.remove(&offset);
                if room > bytes {
                    self.free.insert(offset + bytes, room - bytes);
                }
                self.free_bytes -= bytes;
                Some(offset)
            }
            None if self.end + bytes <= end_max => {
                self.end += bytes;
                Some(self.end - bytes)
            }
            None => None,
        }
    }

    fn give(&mut self, mut offset: u64, mut bytes: u64) {
        self.free_bytes += bytes;
        if let Some(behind) = self.free.remove(&(offset + bytes)) {
            bytes += behind;
        }
        if let Some((&before, &room)) = self.free.range(..offset).next_back()
            && before + room == offset
        {
            self.free.remove(&before);
            (offset, bytes) = (before, room + bytes);
        }
        if offset + bytes == self.end {
            self.end = offset;
            self.free_bytes -= bytes;
        } else {
            self.free.insert(offset, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn blocks_never_overlap_and_space_is_used_again(
            steps in prop::collection::vec((any::<bool>(), 1..30_000u32, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut space = Space::default();
            let mut blocks: Vec<(u64, u64)> = Vec::new();
            for (takes, bytes, index) in steps {
                if takes || blocks.is_empty() {
                    let bytes = rounded(bytes);
                    if let Some(offset) = space.take(bytes, 1 << 20) {
                        blocks.push((offset, bytes));
                    }
                } else {
                    let (offset, bytes) = blocks.swap_remove(index.index(blocks.len()));
                    space.give(offset, bytes);
                }
                let mut sorted = blocks.clone();
                sorted.sort_unstable();
                prop_assert!(sorted.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                let used: u64 = blocks.iter().map(|block| block.1).sum();
                prop_assert_eq!(space.end - space.free_bytes, used);
                prop_assert_eq!(space.end, sorted.last().map_or(0, |last| last.0 + last.1));
                prop_assert_eq!(space.free_bytes, space.free.values().sum::<u64>());
                prop_assert!(space.end <= 1 << 20);
            }
        }
    }

    #[test]
    fn what_is_written_is_read_and_a_full_file_is_an_error() {
        let folder = std::env::temp_dir().join(format!("rivulet-spill-file-{}", std::process::id()));
        let file = SpillFile::create(&folder, 3 * UNIT_BYTES).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the file has no name");
        let mut written = HashMap::new();
        for number in 0..3u8 {
            written.insert(number, file.write(&[number; 100]).unwrap());
        }
        assert_eq!(file.write(b"one more").unwrap_err().kind(), io::ErrorKind::StorageFull);
        for (number, extent) in &written {
            assert_eq!(file.read(*extent).unwrap(), [*number; 100]);
        }
        file.free(written[&1]);
        let again = file.write(b"in its place").unwrap();
        assert_eq!((again.offset, file.read(again).unwrap()), (UNIT_BYTES, b"in its place".to_vec()));
        [written[&0], again, written[&2]].into_iter().for_each(|extent| file.free(extent));
        assert_eq!((file.used_bytes(), file.file.metadata().unwrap().len()), (0, 0));
        std::fs::remove_dir(folder).unwrap();
    }
}
