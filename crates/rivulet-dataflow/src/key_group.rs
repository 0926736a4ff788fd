//! Key groups: the fixed hash ranges of keys in which state is saved, moved and rescaled.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

/// The number of key groups. Part of the storage format: changing it makes old state unreadable.
pub const KEY_GROUPS: u16 = 256;

/// One of the [`KEY_GROUPS`] hash ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyGroup(u16);

impl KeyGroup {
    /// The key group of a key given as bytes. The hash is XXH3 (64 bits, seed 0), which is stable across versions,
    /// machines and processes, as a storage format needs.
    pub fn of(key: &[u8]) -> Self {
        Self((xxh3_64(key) % u64::from(KEY_GROUPS)) as u16)
    }

    /// The key group of a key whose columns have this hash ([`hash_keys`](crate::hash_keys)).
    pub fn of_hash(hash: u64) -> Self {
        Self((hash % u64::from(KEY_GROUPS)) as u16)
    }

    /// Which of `instances` parallel instances has the state of this key group: each has a contiguous range.
    ///
    /// # Panics
    /// If there are no instances.
    pub fn instance(self, instances: usize) -> usize {
        assert!(instances > 0, "there is at least one instance");
        usize::from(self.0) * instances / usize::from(KEY_GROUPS)
    }

    /// The numbers of the key groups whose state one of `instances` parallel instances has.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn range_of(instance: usize, instances: usize) -> Range<u16> {
        assert!(instance < instances, "instance {instance} is one of {instances}");
        let first = |instance: usize| (instance * usize::from(KEY_GROUPS)).div_ceil(instances) as u16;
        first(instance)..first(instance + 1)
    }

    /// The key group with this number, as state frames store it.
    pub fn from_index(index: u16) -> Self {
        Self(index % KEY_GROUPS)
    }

    /// The number of this key group, below [`KEY_GROUPS`].
    pub fn index(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_group_is_in_the_range_of_its_instance_alone() {
        for instances in [1, 2, 3, 7, 64, 256, 300] {
            for index in 0..KEY_GROUPS {
                let of = KeyGroup(index).instance(instances);
                let having = (0..instances).filter(|&one| KeyGroup::range_of(one, instances).contains(&index));
                assert_eq!(having.collect::<Vec<_>>(), [of], "key group {index} of {instances} instances");
            }
        }
    }

    #[test]
    fn the_hash_is_a_storage_format() {
        // These values are on disks: a change here is a change of format.
        assert_eq!(KeyGroup::of(b"").index(), (0x2d06_8005_38d3_94c2_u64 % 256) as u16);
        assert_eq!(KeyGroup::of(b"home/42"), KeyGroup::of(b"home/42"));
        let used: std::collections::HashSet<_> = (0..10_000u32).map(|k| KeyGroup::of(&k.to_le_bytes())).collect();
        assert_eq!(used.len(), usize::from(KEY_GROUPS));
    }
}
