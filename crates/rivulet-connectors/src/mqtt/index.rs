//! Finds the values that belong to a topic: exact topics in a hash table, wildcard filters in a trie.
//!
//! Both the engine's routes and the broker's subscriptions are kept here. An exact topic costs 16 bytes of hash and the
//! value, not its text: with a keyed 128-bit hash, two of a billion topics collide with a probability below 10^-20, and
//! without the key nobody can construct a collision.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::mem;

use hashbrown::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::exact::{ExactTable, Key, key_of};
use super::topic;

/// The number of tables for exact topics, a power of two. With several tables, no single growth moves a million entries
/// while all readers wait.
const SHARDS: usize = 64;

/// The number of values from which a list becomes a set.
const LIST_MAX: usize = 32;

/// The root of the trie.
const ROOT: u32 = 0;

/// A map from topics and filters to sets of values.
///
/// `T` is small and plain: an exact topic costs 16 bytes beside it, plus the empty slots of a hash table.
#[derive(Debug)]
pub struct TopicIndex<T> {
    seed: u64,
    /// The first value of each exact topic; the flag of an entry says that there are more.
    shards: Vec<ExactTable<T>>,
    /// The second and later values of exact topics.
    more: HashMap<Key, Values<T>, foldhash::fast::RandomState>,
    /// The nodes of the trie; the first is its root.
    nodes: Vec<Node<T>>,
    free_nodes: Vec<u32>,
    exact_len: usize,
    wildcard_len: usize,
}

/// A set of values: a list while it is short.
#[derive(Debug)]
enum Values<T> {
    List(Vec<T>),
    Set(HashSet<T, foldhash::fast::RandomState>),
}

impl<T: Copy + Eq + Hash> Values<T> {
    const EMPTY: Self = Self::List(Vec::new());

    /// Returns whether the value is new.
    fn insert(&mut self, value: T) -> bool {
        match self {
            Self::List(list) if list.contains(&value) => false,
            Self::List(list) if list.len() < LIST_MAX => {
                list.push(value);
                true
            }
            Self::List(list) => {
                *self = Self::Set(mem::take(list).into_iter().chain([value]).collect());
                true
            }
            Self::Set(set) => set.insert(value),
        }
    }

    /// Returns whether the value was present.
    fn remove(&mut self, value: &T) -> bool {
        match self {
            Self::List(list) => match list.iter().position(|held| held == value) {
                Some(position) => {
                    list.swap_remove(position);
                    true
                }
                None => false,
            },
            Self::Set(set) => set.remove(value),
        }
    }

    fn pop(&mut self) -> Option<T> {
        match self {
            Self::List(list) => list.pop(),
            Self::Set(set) => {
                let value = set.iter().next().copied()?;
                set.remove(&value);
                Some(value)
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::List(list) => list.is_empty(),
            Self::Set(set) => set.is_empty(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Set(set) => set.len(),
        }
    }

    #[inline]
    fn for_each(&self, each: &mut impl FnMut(&T)) {
        match self {
            Self::List(list) => list.iter().for_each(each),
            Self::Set(set) => set.iter().for_each(each),
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::List(list) => list.capacity() * size_of::<T>(),
            Self::Set(set) => set.allocation_size(),
        }
    }
}

/// A level of wildcard filters.
#[derive(Debug)]
struct Node<T> {
    children: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    /// The child for `+`.
    plus: Option<u32>,
    /// Values of filters that end here.
    here: Values<T>,
    /// Values of filters that end with a `#` below this node.
    below: Values<T>,
}

impl<T: Copy + Eq + Hash> Node<T> {
    fn empty() -> Self {
        Self { children: HashMap::default(), plus: None, here: Values::EMPTY, below: Values::EMPTY }
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.plus.is_none() && self.here.is_empty() && self.below.is_empty()
    }
}

impl<T: Copy + Default + Eq + Hash> Default for TopicIndex<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy + Default + Eq + Hash> TopicIndex<T> {
    /// An empty index with a random key.
    pub fn new() -> Self {
        Self {
            seed: RandomState::new().build_hasher().finish(),
            shards: (0..SHARDS).map(|_| ExactTable::default()).collect(),
            more: HashMap::default(),
            nodes: vec![Node::empty()],
            free_nodes: Vec::new(),
            exact_len: 0,
            wildcard_len: 0,
        }
    }

    /// The number of (topic or filter, value) pairs.
    pub fn len(&self) -> usize {
        self.exact_len + self.wildcard_len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of pairs whose filter has a wildcard.
    pub fn wildcards(&self) -> usize {
        self.wildcard_len
    }

    /// Reserves memory for `additional` exact topics, so that inserting them does not grow the tables.
    pub fn reserve(&mut self, additional: usize) {
        // The shards fill evenly, within a few standard deviations.
        let share = additional / SHARDS;
        let share = share + 4 * share.isqrt();
        for shard in &mut self.shards {
            shard.reserve(share);
        }
    }

    #[inline]
    fn key(&self, topic: &[u8]) -> Key {
        key_of(xxh3_128_with_seed(topic, self.seed))
    }

    /// The table of a key. The table itself uses the first half of the key, so the shard is taken from the second.
    #[inline]
    fn shard(key: &Key) -> usize {
        (key[1] >> 1) as usize % SHARDS
    }

    /// Adds a value to a valid topic or filter. Returns whether it is new there.
    pub fn insert(&mut self, filter: &str, value: T) -> bool {
        let inserted;
        if topic::is_wildcard(filter) {
            inserted = self.insert_wildcard(filter, value);
            self.wildcard_len += usize::from(inserted);
        } else {
            inserted = self.insert_exact(filter.as_bytes(), value);
            self.exact_len += usize::from(inserted);
        }
        inserted
    }

    fn insert_exact(&mut self, topic: &[u8], value: T) -> bool {
        let key = self.key(topic);
        let shard = &mut self.shards[Self::shard(&key)];
        let Some(entry) = shard.get_mut(&key) else {
            shard.insert(key, value);
            return true;
        };
        if entry.value == value {
            return false;
        }
        entry.set_flag(true);
        self.more.entry(key).or_insert(Values::EMPTY).insert(value)
    }

    fn insert_wildcard(&mut self, filter: &str, value: T) -> bool {
        let mut node = ROOT;
        for level in filter.split('/') {
            match level {
                "#" => return self.nodes[node as usize].below.insert(value),
                "+" => {
                    node = match self.nodes[node as usize].plus {
                        Some(child) => child,
                        None => {
                            let child = self.allocate_node();
                            self.nodes[node as usize].plus = Some(child);
                            child
                        }
                    };
                }
                level => {
                    node = match self.nodes[node as usize].children.get(level.as_bytes()) {
                        Some(&child) => child,
                        None => {
                            let child = self.allocate_node();
                            self.nodes[node as usize].children.insert(level.as_bytes().into(), child);
                            child
                        }
                    };
                }
            }
        }
        self.nodes[node as usize].here.insert(value)
    }

    fn allocate_node(&mut self) -> u32 {
        if let Some(node) = self.free_nodes.pop() {
            return node;
        }
        let node = u32::try_from(self.nodes.len()).expect("fewer than 2^32 levels of filters fit into memory");
        self.nodes.push(Node::empty());
        node
    }

    /// The number of values of exactly this topic or filter.
    pub fn len_at(&self, filter: &str) -> usize {
        if topic::is_wildcard(filter) {
            return self.at_wildcard(filter).map_or(0, Values::len);
        }
        let key = self.key(filter.as_bytes());
        match self.shards[Self::shard(&key)].get(&key) {
            Some(entry) if entry.flag() => 1 + self.more.get(&key).map_or(0, Values::len),
            Some(_) => 1,
            None => 0,
        }
    }

    /// The values of exactly this topic or filter.
    pub fn values_at(&self, filter: &str) -> Vec<T> {
        let mut values = Vec::new();
        let mut each = |value: &T| values.push(*value);
        if topic::is_wildcard(filter) {
            if let Some(here) = self.at_wildcard(filter) {
                here.for_each(&mut each);
            }
            return values;
        }
        let key = self.key(filter.as_bytes());
        if let Some(entry) = self.shards[Self::shard(&key)].get(&key) {
            each(&entry.value);
            if let Some(more) = self.more.get(&key).filter(|_| entry.flag()) {
                more.for_each(&mut each);
            }
        }
        values
    }

    fn at_wildcard(&self, filter: &str) -> Option<&Values<T>> {
        let mut node = &self.nodes[ROOT as usize];
        for level in filter.split('/') {
            let child = match level {
                "#" => return Some(&node.below),
                "+" => node.plus,
                level => node.children.get(level.as_bytes()).copied(),
            };
            node = &self.nodes[child? as usize];
        }
        Some(&node.here)
    }

    /// Removes a value from a topic or filter. Returns whether it was present.
    pub fn remove(&mut self, filter: &str, value: T) -> bool {
        let removed;
        if topic::is_wildcard(filter) {
            removed = self.remove_wildcard(filter, value);
            self.wildcard_len -= usize::from(removed);
        } else {
            removed = self.remove_exact(filter.as_bytes(), value);
            self.exact_len -= usize::from(removed);
        }
        removed
    }

    fn remove_exact(&mut self, topic: &[u8], value: T) -> bool {
        let key = self.key(topic);
        let shard = &mut self.shards[Self::shard(&key)];
        let Some(entry) = shard.get_mut(&key) else { return false };
        let Some(more) = self.more.get_mut(&key).filter(|_| entry.flag()) else {
            let is_there = entry.value == value;
            if is_there {
                shard.remove(&key);
            }
            return is_there;
        };
        let removed = if entry.value == value {
            entry.value = more.pop().expect("a list of further values is not empty");
            true
        } else {
            more.remove(&value)
        };
        if more.is_empty() {
            self.more.remove(&key);
            entry.set_flag(false);
        }
        removed
    }

    fn remove_wildcard(&mut self, filter: &str, value: T) -> bool {
        // The way down, used to prune nodes that become empty: for each step the parent and the level.
        let mut path: Vec<(u32, &str)> = Vec::new();
        let mut node = ROOT;
        let mut removed = None;
        for level in filter.split('/') {
            let here = &mut self.nodes[node as usize];
            let child = match level {
                "#" => {
                    removed = Some(here.below.remove(&value));
                    break;
                }
                "+" => here.plus,
                level => here.children.get(level.as_bytes()).copied(),
            };
            let Some(child) = child else { return false };
            path.push((node, level));
            node = child;
        }
        let removed = removed.unwrap_or_else(|| self.nodes[node as usize].here.remove(&value));
        while self.nodes[node as usize].is_empty()
            && let Some((parent, level)) = path.pop()
        {
            self.nodes[node as usize] = Node::empty();
            self.free_nodes.push(node);
            let parent_node = &mut self.nodes[parent as usize];
            if level == "+" {
                parent_node.plus = None;
            } else {
                parent_node.children.remove(level.as_bytes());
            }
            node = parent;
        }
        removed
    }

    /// Prefetches the memory that [`TopicIndex::for_each`] will look at first.
    #[inline]
    pub fn prefetch(&self, topic: &[u8]) {
        let key = self.key(topic);
        self.shards[Self::shard(&key)].prefetch(&key);
    }

    /// Calls `each` with every value whose topic is `topic` or whose filter matches it. A value that was added under
    /// several matching filters occurs several times.
    #[inline]
    pub fn for_each(&self, topic: &[u8], mut each: impl FnMut(&T)) {
        if self.exact_len > 0 {
            let key = self.key(topic);
            if let Some(entry) = self.shards[Self::shard(&key)].get(&key) {
                each(&entry.value);
                if entry.flag()
                    && let Some(more) = self.more.get(&key)
                {
                    more.for_each(&mut each);
                }
            }
        }
        if self.wildcard_len > 0 {
            self.for_each_wildcard(topic, &mut each);
        }
    }

    fn for_each_wildcard(&self, topic: &[u8], each: &mut impl FnMut(&T)) {
        let root = &self.nodes[ROOT as usize];
        if topic.first() == Some(&b'$') {
            // No wildcard in the first level matches such a topic.
            let (level, rest) = split_level(topic);
            if let Some(&child) = root.children.get(level) {
                self.walk(child, rest, each);
            }
        } else {
            self.walk(ROOT, Some(topic), each);
        }
    }

    /// The recursion is bounded by the trie, which has at most `FILTER_LEVELS_MAX` levels however many the topic has.
    fn walk(&self, node: u32, rest: Option<&[u8]>, each: &mut impl FnMut(&T)) {
        let node = &self.nodes[node as usize];
        node.below.for_each(each);
        let Some(rest) = rest else {
            node.here.for_each(each);
            return;
        };
        let (level, rest) = split_level(rest);
        if let Some(&child) = node.children.get(level) {
            self.walk(child, rest, each);
        }
        if let Some(child) = node.plus {
            self.walk(child, rest, each);
        }
    }

    /// Memory held, in bytes, without the allocator's own overhead.
    pub fn memory_bytes(&self) -> usize {
        let node_bytes = |node: &Node<T>| {
            node.children.allocation_size()
                + node.children.keys().map(|level| level.len()).sum::<usize>()
                + node.here.memory_bytes()
                + node.below.memory_bytes()
        };
        self.shards.iter().map(ExactTable::memory_bytes).sum::<usize>()
            + self.more.allocation_size()
            + self.more.values().map(Values::memory_bytes).sum::<usize>()
            + self.nodes.capacity() * size_of::<Node<T>>()
            + self.nodes.iter().map(node_bytes).sum::<usize>()
    }
}

/// The first level of a topic, and the text behind its `/`, if there is one.
fn split_level(topic: &[u8]) -> (&[u8], Option<&[u8]>) {
    match topic.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&topic[..slash], Some(&topic[slash + 1..])),
        None => (topic, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(index: &TopicIndex<u32>, topic: &str) -> Vec<u32> {
        let mut values = Vec::new();
        index.for_each(topic.as_bytes(), |&value| values.push(value));
        values.sort_unstable();
        values
    }

    #[test]
    fn an_exact_topic_holds_a_set_of_values() {
        let mut index = TopicIndex::new();
        for value in 0..100 {
            assert!(index.insert("a/b", value));
            assert!(!index.insert("a/b", value));
        }
        assert_eq!(found(&index, "a/b"), (0..100).collect::<Vec<_>>());
        for value in 0..100 {
            assert!(index.remove("a/b", value), "{value}");
            assert!(!index.remove("a/b", value));
            assert_eq!(found(&index, "a/b"), (value + 1..100).collect::<Vec<_>>());
        }
        assert!(index.is_empty() && index.more.is_empty());
    }

    #[test]
    fn empty_branches_of_the_trie_are_pruned() {
        let mut index = TopicIndex::new();
        for filter in ["a/+/c", "a/#", "+/+/+", "#", "a/b/+"] {
            index.insert(filter, 1u32);
            index.insert(filter, 2);
        }
        for filter in ["a/+/c", "a/#", "+/+/+", "#", "a/b/+"] {
            assert!(index.remove(filter, 1) && index.remove(filter, 2) && !index.remove(filter, 2));
        }
        assert!(index.is_empty());
        assert_eq!(index.nodes.len() - index.free_nodes.len(), 1, "only the root is left");
    }

    #[test]
    fn a_route_takes_few_bytes() {
        let mut index = TopicIndex::new();
        index.reserve(100_000);
        for value in 0..100_000u64 {
            index.insert(&format!("home/{value}/temperature"), value);
        }
        let bytes = index.memory_bytes() / 100_000;
        assert!(bytes <= 36, "{bytes} bytes a route");
        let mut growing = TopicIndex::new();
        for value in 0..100_000u64 {
            growing.insert(&format!("home/{value}/temperature"), value);
        }
        let bytes = growing.memory_bytes() / 100_000;
        assert!(bytes <= 48, "{bytes} bytes a route");
    }

    fn level() -> impl Strategy<Value = &'static str> {
        prop_oneof![Just("a"), Just("b"), Just("$s"), Just("")]
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop_oneof![3 => level(), 1 => Just("+")];
        (proptest::collection::vec(level, 1..4), any::<bool>())
            .prop_map(|(levels, hash)| levels.join("/") + if hash { "/#" } else { "" })
            .prop_filter("an empty filter is none", |filter| topic::check_filter(filter).is_ok())
    }

    fn topic_text() -> impl Strategy<Value = String> {
        proptest::collection::vec(level(), 1..5)
            .prop_map(|levels| levels.join("/"))
            .prop_filter("an empty topic is none", |topic| !topic.is_empty())
    }

    proptest! {
        #[test]
        fn finds_what_matching_one_by_one_finds(
            changes in proptest::collection::vec((filter(), 0u32..4, any::<bool>()), 0..60),
            topics in proptest::collection::vec(topic_text(), 1..10),
        ) {
            let mut index = TopicIndex::new();
            let mut model = std::collections::BTreeSet::new();
            for (filter, value, add) in changes {
                if add {
                    prop_assert_eq!(index.insert(&filter, value), model.insert((filter, value)));
                } else {
                    prop_assert_eq!(index.remove(&filter, value), model.remove(&(filter, value)));
                }
            }
            prop_assert_eq!(index.len(), model.len());
            for text in topics {
                let mut expected: Vec<u32> = model
                    .iter()
                    .filter(|(filter, _)| topic::matches(filter.as_bytes(), text.as_bytes()))
                    .map(|(_, value)| *value)
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(found(&index, &text), expected, "{}", text);
            }
        }
    }
}
