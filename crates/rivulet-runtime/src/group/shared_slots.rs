//! Which queries are equal, and which slot the last one of them has.

use std::hash::BuildHasher;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;
use rivulet_dataflow::{Slot, SlotTable};

/// The most queries that share a slot. Further ones begin another slot, so that a query that leaves is found quickly.
pub(super) const QUERIES_MAX: usize = 64;

/// Finds slots that queries may share, by the parameters in which the queries must be equal. Locked only with the list
/// of free slots locked.
pub(super) struct SharedSlots {
    converter: RowConverter,
    /// The indices of those parameters.
    parameters: Vec<usize>,
    hasher: RandomState,
    /// For each combination of values the slot used last, with the hash of the values.
    pub(super) slots: HashTable<(u32, Slot)>,
}

impl SharedSlots {
    /// For a group in which queries are equal if these `parameters` are.
    pub(super) fn new(schema: &SchemaRef, parameters: Vec<usize>) -> Mutex<Self> {
        let fields = parameters.iter().map(|&parameter| schema.field(parameter).data_type().clone());
        // A row needs at least one column.
        let fields = fields.chain(parameters.is_empty().then_some(DataType::Null)).map(SortField::new).collect();
        let converter = RowConverter::new(fields).expect("parameters have types that can be compared");
        Mutex::new(Self { converter, parameters, hasher: RandomState::default(), slots: HashTable::new() })
    }

    /// The values that must be equal, of each row of parameters.
    pub(super) fn keys(&self, rows: &RecordBatch) -> Rows {
        let columns: Vec<ArrayRef> = match self.parameters.as_slice() {
            [] => vec![new_null_array(&DataType::Null, rows.num_rows())],
            parameters => parameters.iter().map(|&parameter| rows.column(parameter).clone()).collect(),
        };
        self.converter.convert_columns(&columns).expect("parameters have the types of their declaration")
    }

    fn hash(&self, key: &[u8]) -> u32 {
        self.hasher.hash_one(key) as u32
    }

    /// Prevents further queries from joining these slots, each with its row in `table`.
    pub(super) fn forget(&mut self, slots: impl Iterator<Item = Slot>, table: &SlotTable, rows: &[Slot]) {
        let keys = self.keys(&table.parameters(rows));
        for (slot, key) in slots.zip(&keys) {
            let hash = self.hash(key.as_ref());
            if let Ok(entry) = self.slots.find_entry(spread(hash), |&(_, known)| known == slot) {
                entry.remove();
            }
        }
    }

    /// Makes a slot the one that equal queries join, in place of the slot before.
    pub(super) fn put(&mut self, hash: u32, slot: Slot, before: Option<Slot>) {
        match self.slots.find_mut(spread(hash), |&(_, known)| Some(known) == before) {
            Some(entry) => *entry = (hash, slot),
            None => {
                self.slots.insert_unique(spread(hash), (hash, slot), |&(hash, _)| spread(hash));
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.allocation_size() + self.converter.size()
    }
}

/// Spreads a hash over all 64 bits, which the table uses.
pub(super) fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Equal queries of one batch.
pub(super) struct Together {
    pub(super) hash: u32,
    /// Their rows in the batch.
    pub(super) rows: Vec<u32>,
    /// The last slot of equal queries.
    pub(super) before: Option<Slot>,
    /// That slot, if they join it.
    pub(super) shared: Option<Slot>,
    /// Whether their state is about to be restored.
    pub(super) is_restored: bool,
}

impl Together {
    /// The rows, divided by the slot that they share.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u32]> {
        self.rows.chunks(QUERIES_MAX)
    }
}

/// Groups rows with equal keys, in the order of the first row of each. Restored queries are grouped only with those
/// that they shared a slot with.
pub(super) fn put_together(shared_slots: &SharedSlots, keys: &Rows, shared: &[Option<u64>]) -> Vec<Together> {
    let mut kinds: Vec<Together> = Vec::new();
    let mut by_key: HashTable<usize> = HashTable::with_capacity(keys.num_rows());
    for row in 0..keys.num_rows() {
        let hash = shared_slots.hash(keys.row(row).as_ref());
        let is_same = |&kind: &usize| {
            let first = kinds[kind].rows[0] as usize;
            shared[first] == shared[row] && keys.row(first) == keys.row(row)
        };
        match by_key.find(spread(hash), is_same) {
            Some(&kind) => kinds[kind].rows.push(row as u32),
            None => {
                let is_restored = shared[row].is_some();
                kinds.push(Together { hash, rows: vec![row as u32], before: None, shared: None, is_restored });
                by_key.insert_unique(spread(hash), kinds.len() - 1, |&kind| spread(kinds[kind].hash));
            }
        }
    }
    kinds
}
