//! Keys as numbers: the rows of a batch get the numbers of their keys in one pass.
//!
//! A key of one column of fixed width is a word, and a key of two such columns is two words. A text (or, for any other
//! columns, their bytes in Arrow's row format) is 16 bytes: up to 15 bytes are stored there directly; for longer ones,
//! the length, a part of the hash, and a position in an arena. So a look-up touches the table and one further cache
//! line, and seldom anything else. Null is a key like any other; the few keys with a null in them are kept apart.
//!
//! Numbers are dense and used again once their key is removed.

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;
use arrow::row::Rows;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use rivulet_dataflow::{KeyHash, hash_keys};
use std::hash::BuildHasher;
use std::sync::Arc;

use super::parts::Parts;
use super::words::{column_of, key_words_of, width_of};
use crate::PlanError;
use crate::aggregate::dense::RowSet;
use crate::paged::Paged;
use crate::row_bytes::RowBytes;

/// Marks the absence of a number.
pub(crate) const NONE: u32 = u32::MAX;

/// Returns the hashes of the keys in these columns ([`KeyHash::bits`]). They decide to which instance a row goes, and
/// its state with it. Rows without key columns have one key.
///
/// # Errors
/// Columns of types that cannot be a key.
pub fn key_hashes(columns: &[ArrayRef], rows: usize) -> Result<Vec<u16>, ArrowError> {
    let mut hashes = Vec::new();
    hash_keys(columns, rows, &mut hashes)?;
    Ok(hashes.into_iter().map(|hash| KeyHash::of_hash(hash).bits()).collect())
}

/// The columns that are a key, and the form in which it is looked up. All indices of an operator share one plan.
pub(crate) struct KeyPlan {
    columns: Vec<usize>,
    types: Vec<DataType>,
    form: Form,
    /// Both sides of a join share it: rows of one converter are not valid for another.
    row_bytes: Arc<RowBytes>,
    hasher: Hasher,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// All rows have one key.
    Unit,
    Word,
    Pair,
    Text,
    Bytes,
}

/// Hashes that are good enough for a table and cost one multiplication. They do not leave the process.
#[derive(Clone)]
struct Hasher {
    seeds: [u64; 2],
    bytes: RandomState,
}

impl Hasher {
    #[inline]
    fn word(&self, word: u64) -> u64 {
        folded(word ^ self.seeds[0], self.seeds[1])
    }

    #[inline]
    fn pair(&self, pair: u128) -> u64 {
        let first = folded(pair as u64 ^ self.seeds[0], self.seeds[1]);
        folded((pair >> 64) as u64 ^ first, self.seeds[0] | 1)
    }

    fn bytes(&self, bytes: &[u8]) -> u64 {
        self.bytes.hash_one(bytes)
    }
}

#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl KeyPlan {
    /// Plans the key of these columns of `schema`.
    pub(crate) fn new(schema: &Schema, columns: &[usize]) -> Result<Self, PlanError> {
        let types: Vec<DataType> = columns.iter().map(|&column| schema.field(column).data_type().clone()).collect();
        let is_text = |data_type: &DataType| data_type.is_string();
        let form = match &types[..] {
            [] => Form::Unit,
            [one] if width_of(one).is_some() => Form::Word,
            [one] if is_text(one) => Form::Text,
            [one, other] if width_of(one).is_some() && width_of(other).is_some() => Form::Pair,
            _ => Form::Bytes,
        };
        let bytes = RandomState::default();
        let seeds = [bytes.hash_one(1u64), bytes.hash_one(2u64) | 1];
        let row_bytes = Arc::new(RowBytes::new(types.iter())?);
        Ok(Self { columns: columns.to_vec(), types, form, row_bytes, hasher: Hasher { seeds, bytes } })
    }

    /// Plans the keys of two inputs that share an index. The columns have equal types, those of `schema` for `columns`.
    pub(crate) fn pair(schema: &Schema, columns: &[usize], others: &[usize]) -> Result<[Self; 2], PlanError> {
        let first = Self::new(schema, columns)?;
        let second = Self {
            columns: others.to_vec(),
            types: first.types.clone(),
            form: first.form,
            row_bytes: first.row_bytes.clone(),
            hasher: first.hasher.clone(),
        };
        Ok([first, second])
    }

    /// The indices of the columns.
    pub(crate) fn places(&self) -> &[usize] {
        &self.columns
    }

    /// Makes an index without keys, with room for about `keys`.
    pub(crate) fn index(&self, keys: usize) -> KeyIndex {
        KeyIndex {
            hasher: self.hasher.clone(),
            table: Parts::with_capacity(keys),
            store: match self.form {
                Form::Unit => Store::Unit(false),
                Form::Word => Store::Words(Paged::with_capacity(keys)),
                Form::Pair => Store::Pairs(Paged::with_capacity(keys)),
                Form::Text | Form::Bytes => {
                    Store::Views(Views { views: Paged::with_capacity(keys), ..Views::default() })
                }
            },
            exceptions: HashMap::default(),
            masks: HashMap::default(),
            free: Vec::new(),
        }
    }

    /// The number of columns of the key.
    pub(crate) fn len(&self) -> usize {
        self.columns.len()
    }
}

/// The keys of a batch's rows. It is kept from batch to batch to reuse its memory.
#[derive(Default)]
pub(crate) struct BatchKeys {
    hashes: Vec<u64>,
    values: Values,
    /// For each of two columns, the rows in which it is null. Keys that are bytes do not need this: the bytes say it.
    nulls: [Option<NullBuffer>; 2],
    has_nulls: bool,
    rows: Option<Rows>,
}

#[derive(Default)]
enum Values {
    #[default]
    Unit,
    Words(arrow::buffer::ScalarBuffer<u64>),
    Pairs(Vec<u128>),
    /// Views, and the array that holds the long texts.
    Texts(Vec<u128>, StringArray),
    Bytes(Vec<u128>),
}

impl BatchKeys {
    /// Reads the keys of a batch.
    pub(crate) fn read(&mut self, plan: &KeyPlan, columns: &[ArrayRef]) -> Result<(), ArrowError> {
        let keys: Vec<ArrayRef> = plan.columns.iter().map(|&column| columns[column].clone()).collect();
        self.read_keys(plan, &keys)
    }

    /// The same, given only the columns of the key.
    pub(crate) fn read_keys(&mut self, plan: &KeyPlan, keys: &[ArrayRef]) -> Result<(), ArrowError> {
        let hasher = &plan.hasher;
        self.nulls = [None, None];
        self.hashes.clear();
        match plan.form {
            Form::Unit => self.values = Values::Unit,
            Form::Word => {
                let words = key_words_of(&keys[0]);
                self.hashes.extend(words.iter().map(|&word| hasher.word(word)));
                self.values = Values::Words(words);
                self.nulls[0] = keys[0].logical_nulls();
            }
            Form::Pair => {
                let words = [key_words_of(&keys[0]), key_words_of(&keys[1])];
                let mut pairs = match std::mem::take(&mut self.values) {
                    Values::Pairs(pairs) => pairs,
                    _ => Vec::new(),
                };
                pairs.clear();
                let both = words[0].iter().zip(&words[1][..]);
                pairs.extend(both.map(|(&a, &b)| u128::from(a) | u128::from(b) << 64));
                self.hashes.extend(pairs.iter().map(|&pair| hasher.pair(pair)));
                self.values = Values::Pairs(pairs);
                self.nulls = [keys[0].logical_nulls(), keys[1].logical_nulls()];
            }
            Form::Text => {
                let texts = match keys[0].data_type() {
                    DataType::Utf8 => keys[0].as_string::<i32>().clone(),
                    _ => cast(&keys[0], &DataType::Utf8)?.as_string::<i32>().clone(),
                };
                let mut views = self.take_views();
                let (offsets, bytes) = (texts.value_offsets(), texts.value_data());
                for row in 0..texts.len() {
                    let (view, hash) = view_of(hasher, bytes, offsets[row] as usize, offsets[row + 1] as usize, row);
                    views.push(view);
                    self.hashes.push(hash);
                }
                self.nulls[0] = texts.nulls().cloned();
                self.values = Values::Texts(views, texts);
            }
            Form::Bytes => {
                let mut rows = self.rows.take().unwrap_or_else(|| plan.row_bytes.buffer());
                plan.row_bytes.encode(keys, &mut rows)?;
                let mut views = self.take_views();
                for (row, bytes) in rows.iter().enumerate() {
                    let bytes = bytes.data();
                    let (view, hash) = view_of(hasher, bytes, 0, bytes.len(), row);
                    views.push(view);
                    self.hashes.push(hash);
                }
                self.rows = Some(rows);
                self.values = Values::Bytes(views);
            }
        }
        self.nulls.iter_mut().for_each(|nulls| *nulls = nulls.take().filter(|nulls| nulls.null_count() > 0));
        self.has_nulls = self.nulls.iter().any(Option::is_some);
        Ok(())
    }

    fn take_views(&mut self) -> Vec<u128> {
        match std::mem::take(&mut self.values) {
            Values::Texts(mut views, _) | Values::Bytes(mut views) => {
                views.clear();
                views
            }
            _ => Vec::new(),
        }
    }

    /// The bytes of a key that is too long for a view.
    #[inline]
    fn long(&self, row: usize) -> &[u8] {
        match (&self.values, &self.rows) {
            (Values::Texts(_, texts), _) => texts.value(row).as_bytes(),
            (_, Some(rows)) => rows.row(row).data(),
            _ => &[],
        }
    }

    /// Which columns of a row's key are null, as bits.
    #[inline]
    fn mask(&self, row: usize) -> u8 {
        let is_null = |nulls: &Option<NullBuffer>| u8::from(nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)));
        is_null(&self.nulls[0]) | is_null(&self.nulls[1]) << 1
    }

    /// A key with nulls, in the form in which it is kept apart: zero where it is null.
    fn exception(&self, row: usize) -> (u8, u128) {
        let mask = self.mask(row);
        let value = match &self.values {
            Values::Pairs(pairs) if mask == 1 => pairs[row] >> 64 << 64,
            Values::Pairs(pairs) if mask == 2 => u128::from(pairs[row] as u64),
            _ => 0,
        };
        (mask, value)
    }
}

const LONG: u128 = 0xff << 120;
const PLACE_BITS: u32 = 40;
const PLACE: u128 = (1 << PLACE_BITS) - 1;

/// The view of the bytes from `start` to `end`, and its hash. The view of a long text refers to row `row` for now.
#[inline]
fn view_of(hasher: &Hasher, bytes: &[u8], start: usize, end: usize, row: usize) -> (u128, u64) {
    let length = end - start;
    if length > 15 {
        let hash = hasher.bytes(&bytes[start..end]);
        let view = LONG | u128::from(length as u32) << 88 | u128::from(hash >> 16) << PLACE_BITS | row as u128;
        return (view, hash);
    }
    let low = match bytes.get(start..start + 16) {
        // One load and a mask are faster than copying a variable number of bytes.
        Some(block) => {
            let block = u128::from_le_bytes(block.try_into().expect("16 bytes"));
            block & ((1u128 << (8 * length)) - 1)
        }
        None => {
            let mut block = [0; 16];
            block[..length].copy_from_slice(&bytes[start..end]);
            u128::from_le_bytes(block)
        }
    };
    let view = low | (length as u128) << 120;
    (view, hasher.pair(view))
}

/// The numbers of keys.
pub(crate) struct KeyIndex {
    hasher: Hasher,
    table: Parts<u32>,
    store: Store,
    /// Keys with nulls: a mask of the null columns, and the rest of the key.
    exceptions: HashMap<(u8, u128), u32, RandomState>,
    masks: HashMap<u32, u8, RandomState>,
    free: Vec<u32>,
}

enum Store {
    /// Whether the only possible key has been seen.
    Unit(bool),
    Words(Paged<u64>),
    Pairs(Paged<u128>),
    Views(Views),
}

/// Texts or bytes: up to 15 bytes in the view, longer ones in an arena.
#[derive(Default)]
struct Views {
    views: Paged<u128>,
    arena: Vec<u8>,
    /// How many bytes of the arena are unused.
    garbage: usize,
}

impl Views {
    #[inline]
    fn long(&self, view: u128) -> &[u8] {
        let start = (view & PLACE) as usize;
        &self.arena[start..start + (view >> 88) as u32 as usize]
    }

    fn hash(&self, hasher: &Hasher, view: u128) -> u64 {
        if view >= LONG { hasher.bytes(self.long(view)) } else { hasher.pair(view) }
    }

    fn add(&mut self, view: u128, long: &[u8]) -> u128 {
        if view < LONG {
            return view;
        }
        let place = self.arena.len() as u128;
        assert!(place <= PLACE, "fewer than 2^40 bytes of keys");
        self.arena.extend_from_slice(long);
        view & !PLACE | place
    }

    /// The bytes of a key, whose view as bytes is `block`.
    fn bytes<'a>(&'a self, view: u128, block: &'a [u8; 16]) -> &'a [u8] {
        if view >= LONG { self.long(view) } else { &block[..(view >> 120) as usize] }
    }
}

impl KeyIndex {
    /// One more than the highest number.
    pub(crate) fn numbers(&self) -> usize {
        match &self.store {
            Store::Unit(seen) => usize::from(*seen),
            Store::Words(words) => words.len(),
            Store::Pairs(pairs) => pairs.len(),
            Store::Views(views) => views.views.len(),
        }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.numbers() - self.free.len()
    }

    /// Writes the numbers of the keys of these rows to `numbers`. New keys get a number.
    pub(crate) fn assign(&mut self, keys: &BatchKeys, rows: &RowSet<'_>, numbers: &mut Vec<u32>) {
        numbers.clear();
        numbers.reserve(rows.len());
        if keys.has_nulls {
            rows.for_each(|_, row| numbers.push(self.assign_one(keys, row)));
            return;
        }
        let Self { hasher, table, store, free, .. } = self;
        match (store, &keys.values) {
            (Store::Unit(seen), _) => {
                *seen = true;
                numbers.resize(rows.len(), 0);
            }
            (Store::Words(known), Values::Words(words)) => rows.for_each(|_, row| {
                let word = words[row];
                let entry = table.entry(
                    keys.hashes[row],
                    |&at| known[at as usize] == word,
                    |&at| hasher.word(known[at as usize]),
                );
                numbers.push(*entry.or_insert_with(|| put(known, free, word)).get());
            }),
            (Store::Pairs(known), Values::Pairs(pairs)) => rows.for_each(|_, row| {
                let pair = pairs[row];
                let entry = table.entry(
                    keys.hashes[row],
                    |&at| known[at as usize] == pair,
                    |&at| hasher.pair(known[at as usize]),
                );
                numbers.push(*entry.or_insert_with(|| put(known, free, pair)).get());
            }),
            (Store::Views(known), Values::Texts(views, _) | Values::Bytes(views)) => rows.for_each(|_, row| {
                let view = views[row];
                let entry = table.entry(
                    keys.hashes[row],
                    |&at| is_same(known, known.views[at as usize], view, || keys.long(row)),
                    |&at| known.hash(hasher, known.views[at as usize]),
                );
                let entry = entry.or_insert_with(|| {
                    let view = known.add(view, keys.long(row));
                    put(&mut known.views, free, view)
                });
                numbers.push(*entry.get());
            }),
            _ => unreachable!("an index is used with keys of its own plan"),
        }
    }

    /// Returns the number of a row's key, which may have nulls. A new key gets a number.
    fn assign_one(&mut self, keys: &BatchKeys, row: usize) -> u32 {
        if keys.mask(row) == 0 {
            let single = BatchRow { keys, row };
            return match single.find(self) {
                NONE => single.insert(self),
                number => number,
            };
        }
        let exception = keys.exception(row);
        if let Some(&number) = self.exceptions.get(&exception) {
            return number;
        }
        let Self { store, free, .. } = self;
        let number = match store {
            Store::Words(words) => put(words, free, 0),
            Store::Pairs(pairs) => put(pairs, free, exception.1),
            Store::Views(views) => put(&mut views.views, free, 0),
            Store::Unit(_) => 0,
        };
        self.exceptions.insert(exception, number);
        self.masks.insert(number, exception.0);
        number
    }

    #[cfg(test)]
    /// Writes the numbers of the keys of these rows to `numbers`; [`NONE`] for unknown keys.
    pub(crate) fn find(&self, keys: &BatchKeys, rows: &RowSet<'_>, numbers: &mut Vec<u32>) {
        numbers.clear();
        numbers.reserve(rows.len());
        rows.for_each(|_, row| {
            numbers.push(match keys.has_nulls && keys.mask(row) != 0 {
                true => self.exceptions.get(&keys.exception(row)).copied().unwrap_or(NONE),
                false => BatchRow { keys, row }.find(self),
            });
        });
    }

    /// Forgets the key with this number.
    pub(crate) fn remove(&mut self, number: u32) {
        let at = number as usize;
        self.free.push(number);
        if let Some(mask) = self.masks.remove(&number) {
            let value = match &self.store {
                Store::Pairs(pairs) => pairs[at],
                _ => 0,
            };
            self.exceptions.remove(&(mask, value));
            return;
        }
        let hash = match &self.store {
            Store::Unit(_) => {
                self.free.pop();
                self.store = Store::Unit(false);
                return;
            }
            Store::Words(words) => self.hasher.word(words[at]),
            Store::Pairs(pairs) => self.hasher.pair(pairs[at]),
            Store::Views(views) => views.hash(&self.hasher, views.views[at]),
        };
        self.table.remove(hash, |&known| known == number);
        if let Store::Views(views) = &mut self.store
            && views.views[at] >= LONG
        {
            views.garbage += (views.views[at] >> 88) as u32 as usize;
            views.views[at] = 0;
            self.collect_garbage();
        }
    }

    /// Compacts the long keys once half of their arena is unused.
    fn collect_garbage(&mut self) {
        let Store::Views(views) = &mut self.store else { return };
        if views.garbage < 1 << 16 || views.garbage * 2 < views.arena.len() {
            return;
        }
        let mut arena = Vec::with_capacity(views.arena.len() - views.garbage);
        for at in 0..views.views.len() {
            let view = views.views[at];
            if view >= LONG {
                let place = arena.len() as u128;
                arena.extend_from_slice(views.long(view));
                views.views[at] = view & !PLACE | place;
            }
        }
        (views.arena, views.garbage) = (arena, 0);
    }

    /// The columns of the keys with these numbers.
    pub(crate) fn columns(&self, plan: &KeyPlan, numbers: &[u32]) -> Result<Vec<ArrayRef>, ArrowError> {
        let nulls = |bit: u8| {
            (!self.masks.is_empty())
                .then(|| {
                    numbers
                        .iter()
                        .map(|number| self.masks.get(number).is_none_or(|mask| mask & bit == 0))
                        .collect::<NullBuffer>()
                })
                .filter(|nulls| nulls.null_count() > 0)
        };
        Ok(match &self.store {
            Store::Unit(_) => vec![],
            Store::Words(words) => {
                let values = numbers.iter().map(|&number| words[number as usize]).collect();
                vec![column_of(&plan.types[0], values, nulls(1))]
            }
            Store::Pairs(pairs) => {
                let first = numbers.iter().map(|&number| pairs[number as usize] as u64).collect();
                let second = numbers.iter().map(|&number| (pairs[number as usize] >> 64) as u64).collect();
                vec![column_of(&plan.types[0], first, nulls(1)), column_of(&plan.types[1], second, nulls(2))]
            }
            Store::Views(views) if plan.form == Form::Bytes => {
                let views_of = || numbers.iter().map(|&number| views.views[number as usize]);
                let blocks: Vec<[u8; 16]> = views_of().map(u128::to_le_bytes).collect();
                plan.row_bytes.decode(views_of().zip(&blocks).map(|(view, block)| views.bytes(view, block)))?
            }
            Store::Views(views) => {
                let mut bytes: Vec<u8> = Vec::with_capacity(numbers.len() * 16);
                let mut ends = Vec::with_capacity(numbers.len() + 1);
                ends.push(0);
                for &number in numbers {
                    let view = views.views[number as usize];
                    bytes.extend_from_slice(views.bytes(view, &view.to_le_bytes()));
                    let end = i32::try_from(bytes.len());
                    ends.push(end.map_err(|_| ArrowError::ComputeError("keys of a batch reach 2 GiB".into()))?);
                }
                let texts = StringArray::try_new(OffsetBuffer::new(ends.into()), bytes.into(), nulls(1))?;
                let texts: ArrayRef = Arc::new(texts);
                vec![match &plan.types[0] {
                    DataType::Utf8 => texts,
                    other => cast(&texts, other)?,
                }]
            }
        })
    }

    /// The bytes of a key that is one text.
    pub(crate) fn key_bytes(&self, number: u32) -> Box<[u8]> {
        match &self.store {
            Store::Views(views) => {
                let view = views.views[number as usize];
                views.bytes(view, &view.to_le_bytes()).into()
            }
            _ => Box::default(),
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let store = match &self.store {
            Store::Unit(_) => 0,
            Store::Words(words) => words.memory_bytes(),
            Store::Pairs(pairs) => pairs.memory_bytes(),
            Store::Views(views) => views.views.memory_bytes() + views.arena.capacity(),
        };
        store + self.table.memory_bytes() + self.free.capacity() * 4
    }
}

/// A single row whose key has no null.
struct BatchRow<'a> {
    keys: &'a BatchKeys,
    row: usize,
}

impl BatchRow<'_> {
    #[inline]
    fn find(&self, index: &KeyIndex) -> u32 {
        let (keys, row) = (self.keys, self.row);
        let found = match (&index.store, &keys.values) {
            (Store::Unit(seen), _) => return if *seen { 0 } else { NONE },
            (Store::Words(known), Values::Words(words)) => {
                index.table.find(keys.hashes[row], |&at| known[at as usize] == words[row])
            }
            (Store::Pairs(known), Values::Pairs(pairs)) => {
                index.table.find(keys.hashes[row], |&at| known[at as usize] == pairs[row])
            }
            (Store::Views(known), Values::Texts(views, _) | Values::Bytes(views)) => {
                let same = |&at: &u32| is_same(known, known.views[at as usize], views[row], || keys.long(row));
                index.table.find(keys.hashes[row], same)
            }
            _ => unreachable!("an index is used with keys of its own plan"),
        };
        found.copied().unwrap_or(NONE)
    }

    fn insert(&self, index: &mut KeyIndex) -> u32 {
        let (keys, row) = (self.keys, self.row);
        let KeyIndex { hasher, table, store, free, .. } = index;
        let number = match (&mut *store, &keys.values) {
            (Store::Words(known), Values::Words(words)) => put(known, free, words[row]),
            (Store::Pairs(known), Values::Pairs(pairs)) => put(known, free, pairs[row]),
            (Store::Views(known), Values::Texts(views, _) | Values::Bytes(views)) => {
                let view = known.add(views[row], keys.long(row));
                put(&mut known.views, free, view)
            }
            _ => unreachable!("an index is used with keys of its own plan"),
        };
        table.insert_unique(keys.hashes[row], number, |&at| match &*store {
            Store::Unit(_) => 0,
            Store::Words(words) => hasher.word(words[at as usize]),
            Store::Pairs(pairs) => hasher.pair(pairs[at as usize]),
            Store::Views(views) => views.hash(hasher, views.views[at as usize]),
        });
        number
    }
}

/// Whether a known key equals that of a row.
#[inline]
fn is_same<'a>(known: &Views, view: u128, other: u128, long: impl FnOnce() -> &'a [u8]) -> bool {
    if view < LONG {
        return view == other;
    }
    view >> PLACE_BITS == other >> PLACE_BITS && known.long(view) == long()
}

/// Stores a key under a free number.
#[inline]
fn put<T>(known: &mut Paged<T>, free: &mut Vec<u32>, key: T) -> u32 {
    match free.pop() {
        Some(number) => {
            known[number as usize] = key;
            number
        }
        None => {
            let number = known.len();
            assert!(number < NONE as usize, "fewer than 2^32 keys in one instance");
            known.push(key);
            number as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, Int64Array};
    use arrow::datatypes::Field;
    use proptest::prelude::*;

    use super::*;

    fn plan(columns: &[ArrayRef]) -> KeyPlan {
        let fields: Vec<Field> =
            columns.iter().map(|column| Field::new("k", column.data_type().clone(), true)).collect();
        let places: Vec<usize> = (0..columns.len()).collect();
        KeyPlan::new(&Schema::new(fields), &places).unwrap()
    }

    fn text(number: u8) -> Option<String> {
        match number % 5 {
            0 => None,
            1 => Some(String::new()),
            2 => Some(format!("{number}")),
            3 => Some(format!("15 bytes of {number:03}")),
            _ => Some(format!("a text that is longer than 15 bytes: {number}")),
        }
    }

    proptest! {
        #[test]
        fn numbers_are_as_equal_as_keys(
            numbers in prop::collection::vec((any::<u8>(), 0..4u8), 1..200),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let words: ArrayRef =
                Arc::new(numbers.iter().map(|n| (n.0 % 7 != 0).then_some(i64::from(n.0 / 8))).collect::<Int64Array>());
            let floats: ArrayRef =
                Arc::new(numbers.iter().map(|n| (n.1 != 0).then_some(f64::from(n.1) - 2.0)).collect::<Float64Array>());
            let texts: ArrayRef = Arc::new(numbers.iter().map(|n| text(n.0)).collect::<StringArray>());
            for columns in [
                vec![words.clone()],
                vec![floats.clone()],
                vec![texts.clone()],
                vec![words.clone(), floats.clone()],
                vec![texts.clone(), floats.clone()],
                vec![],
            ] {
                let plan = plan(&columns);
                let mut keys = BatchKeys::default();
                keys.read(&plan, &columns).unwrap();
                let mut index = plan.index(0);
                let mut assigned = Vec::new();
                index.assign(&keys, &RowSet::Range(0..numbers.len()), &mut assigned);
                let mut again = Vec::new();
                let list: Vec<u32> = (0..numbers.len() as u32).collect();
                index.find(&keys, &RowSet::List(&list), &mut again);
                prop_assert_eq!(&assigned, &again);
                let back = index.columns(&plan, &assigned).unwrap();
                prop_assert_eq!(&back, &columns);
                // Removed keys are not found, other keys still are, and numbers are used again.
                let mut gone: Vec<u32> = removed.iter().map(|at| assigned[at.index(assigned.len())]).collect();
                gone.sort_unstable();
                gone.dedup();
                gone.iter().for_each(|&number| index.remove(number));
                index.find(&keys, &RowSet::Range(0..numbers.len()), &mut again);
                for (&before, &after) in assigned.iter().zip(&again) {
                    prop_assert_eq!(after, if gone.contains(&before) { NONE } else { before });
                }
                let capacity = index.numbers();
                index.assign(&keys, &RowSet::Range(0..numbers.len()), &mut again);
                prop_assert!(index.numbers() <= capacity.max(1));
                prop_assert_eq!(&index.columns(&plan, &again).unwrap(), &columns);
            }
        }
    }

    #[test]
    fn long_keys_give_their_memory_back() {
        let texts = |from: u32| -> Vec<ArrayRef> {
            let texts = (from..from + 1000).map(|n| Some(format!("a key of more than {n:0100} bytes")));
            vec![Arc::new(texts.collect::<StringArray>())]
        };
        let plan = plan(&texts(0));
        let (mut index, mut keys, mut numbers) = (plan.index(0), BatchKeys::default(), Vec::new());
        let mut most = 0;
        for round in 0..50 {
            keys.read(&plan, &texts(round * 1000)).unwrap();
            index.assign(&keys, &RowSet::Range(0..1000), &mut numbers);
            assert_eq!(&index.columns(&plan, &numbers).unwrap(), &texts(round * 1000));
            numbers.iter().for_each(|&number| index.remove(number));
            most = most.max(index.memory_bytes());
        }
        assert!(most < 2_000_000 && index.len() == 0, "{most}");
    }
}
