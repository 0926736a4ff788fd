//! Key groups: the hash ranges of keys in which state is saved, moved and divided among instances.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

/// The low bits of the hash of a key, as many as any division into key groups uses. Operators keep these bits beside
/// their state and do not know key groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(u16);

impl KeyHash {
    /// The hash of a key given as bytes: XXH3 (64 bits, seed 0), which is stable across versions, machines and
    /// processes, as a storage format needs.
    pub fn of(key: &[u8]) -> Self {
        Self::of_hash(xxh3_64(key))
    }

    /// From the hash of the key's columns ([`hash_keys`](crate::hash_keys)).
    pub fn of_hash(hash: u64) -> Self {
        Self(hash as u16)
    }

    /// From its bits. For saved state these are the key group, which is made of the same bits.
    pub fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The bits.
    pub fn bits(self) -> u16 {
        self.0
    }
}

/// One of the hash ranges of a dataflow's [`KeyGroups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyGroup(u16);

impl KeyGroup {
    /// The key group with this number, as state frames store it.
    pub fn from_index(index: u16) -> Self {
        Self(index)
    }

    /// Its number, below [`KeyGroups::count`].
    pub fn index(self) -> u16 {
        self.0
    }
}

/// How keys are divided among key groups. The division belongs to the dataflow and is saved with its state: instances
/// with different divisions would look for state in different places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyGroups {
    count: u16,
}

impl Default for KeyGroups {
    /// 256 key groups.
    fn default() -> Self {
        Self::new(256)
    }
}

impl KeyGroups {
    /// The name under which the hash of keys is saved.
    pub const HASH: &str = "xxh3";

    /// This number of key groups.
    ///
    /// # Panics
    /// Unless `count` is a power of two: a key group is the low bits of a hash.
    pub const fn new(count: u16) -> Self {
        assert!(count.is_power_of_two(), "the number of key groups is a power of two");
        Self { count }
    }

    /// The number of key groups.
    pub fn count(self) -> u16 {
        self.count
    }

    /// The key group of a key.
    pub fn of(self, hash: KeyHash) -> KeyGroup {
        KeyGroup(hash.0 & (self.count - 1))
    }

    /// Which of `instances` parallel instances has the state of this key group. Each instance has a contiguous range.
    ///
    /// # Panics
    /// If there are no instances.
    pub fn instance(self, key_group: KeyGroup, instances: usize) -> usize {
        assert!(instances > 0, "there is at least one instance");
        // A shift divides by the power of two: this runs for every row that is sent by its key.
        (usize::from(key_group.0) * instances) >> self.count.trailing_zeros()
    }

    /// The range of key groups of one of `instances` parallel instances.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn range_of(self, instance: usize, instances: usize) -> Range<u16> {
        assert!(instance < instances, "instance {instance} is one of {instances}");
        let first = |instance: usize| (instance * usize::from(self.count)).div_ceil(instances) as u16;
        first(instance)..first(instance + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_group_is_in_the_range_of_its_instance_alone() {
        for (key_groups, instances) in [256, 128, 32_768].into_iter().zip([&[1, 2, 3, 7, 64, 256, 300][..], &[3], &[5]])
        {
            let key_groups = KeyGroups::new(key_groups);
            for &instances in instances {
                for index in 0..key_groups.count() {
                    let of = key_groups.instance(KeyGroup(index), instances);
                    let having = (0..instances).filter(|&one| key_groups.range_of(one, instances).contains(&index));
                    assert_eq!(having.collect::<Vec<_>>(), [of], "key group {index} of {instances} instances");
                }
            }
        }
    }

    #[test]
    fn the_hash_is_a_storage_format() {
        // These values are on disks: to change them is to change the format.
        let key_groups = KeyGroups::default();
        assert_eq!(KeyHash::of(b"").bits(), 0x94c2);
        assert_eq!(key_groups.of(KeyHash::of(b"")).index(), 0xc2);
        assert_eq!(KeyHash::of(b"home/42"), KeyHash::of(b"home/42"));
        let used: std::collections::HashSet<_> =
            (0..10_000u32).map(|key| key_groups.of(KeyHash::of(&key.to_le_bytes()))).collect();
        assert_eq!(used.len(), usize::from(key_groups.count()));
    }

    #[test]
    fn the_key_group_of_saved_state_is_that_of_its_key() {
        for key_groups in [KeyGroups::default(), KeyGroups::new(16), KeyGroups::new(32_768)] {
            let key_group = key_groups.of(KeyHash::of(b"home/42"));
            assert_eq!(key_groups.of(KeyHash::from_bits(key_group.index())), key_group);
        }
    }
}
