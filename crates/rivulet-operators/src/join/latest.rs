//! The join with the latest row. Of each side that the other side reads, it keeps one row for each key.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt8Array, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt8Type};
use rivulet_dataflow::{
    Batch, Context, Control, Element, HELD_KEYS_MAX, Holding, KeyHash, Operator, OperatorError, Reason, Slot,
    StateError, StateFrame, StateSelection, fetch, fetch_ahead,
};

use super::encoded::{Encoded, Joined, refuse, state_fields};
use super::plan::Plan;
use crate::keyed::{Keyed, SLOT_KEYS_MAX};

pub(super) const OPERATOR: &str = "latest_join";
const VERSION: u32 = 1;

pub(super) struct LatestJoin {
    plan: Arc<Plan>,
    drives: [bool; 2],
    encoded: Encoded,
    joined: Joined,
    store: Store,
}

/// The latest rows of all keys.
struct Store {
    keyed: Keyed<Latest>,
    /// The bytes of keys and rows.
    heap_bytes: usize,
}

/// The latest rows of one key.
#[derive(Default)]
struct Latest {
    /// The key group of the key, or, without keys, that of the query.
    key_hash: u16,
    sides: [Option<Kept>; 2],
}

struct Kept {
    time_us: i64,
    bytes: Box<[u8]>,
}

impl Operator for LatestJoin {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.process_batch(batch, context),
            Element::Control(Control::RemoveSlots(slots)) => {
                slots.into_iter().for_each(|slot| self.store.remove_slot(slot));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn holding(&self, slot: Slot) -> Option<Holding> {
        let (mut sides, mut keys) = ([0; 2], self.store.keyed.of_slot(slot as usize));
        for (_, latest) in keys.by_ref().take(HELD_KEYS_MAX) {
            for (side, kept) in sides.iter_mut().zip(&latest.sides) {
                *side += u64::from(kept.is_some());
            }
        }
        Some(Holding { sides: Some(sides), has_more_keys: keys.next().is_some(), ..Holding::default() })
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let (mut slots, mut key_hashes, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        let (mut numbers, mut times_us) = (Vec::new(), Vec::new());
        let mut sides: [Vec<&[u8]>; 2] = Default::default();
        let add_slot = |slot: usize| {
            for (key, latest) in self.store.keyed.of_slot(slot) {
                if !selection.selects_key(KeyHash::from_bits(latest.key_hash)) {
                    continue;
                }
                for (number, kept) in latest.sides.iter().enumerate() {
                    let Some(kept) = kept else { continue };
                    slots.push(slot as Slot);
                    key_hashes.push(latest.key_hash);
                    keys.push(key);
                    numbers.push(number as u8);
                    times_us.push(kept.time_us);
                    sides[number].push(&kept.bytes);
                    sides[1 - number].push(self.encoded.null(1 - number));
                }
            }
        };
        selection.for_each_slot(self.store.keyed.slots(), add_slot);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from(slots)), Arc::new(UInt16Array::from(key_hashes))];
        if !self.plan.key_types.is_empty() {
            columns.extend(self.encoded.decode_keys(keys.into_iter())?);
        }
        columns.push(Arc::new(UInt8Array::from(numbers)));
        columns.push(Arc::new(Int64Array::from(times_us)));
        for (side, rows) in sides.into_iter().enumerate() {
            columns.extend(self.encoded.decode_side(side, rows.into_iter())?);
        }
        Ok(Some(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(self.state_schema(), columns)?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect_rows(OPERATOR, VERSION, &self.state_schema(), "the rows belong to another join than this")?;
        let corrupt = |what: &str| StateError::Corrupt(what.to_owned());
        let columns = frame.rows.columns();
        let keys = self.plan.key_types.len();
        let (own, sides) = columns[2 + keys..].split_at(2);
        if own.iter().any(|column| column.null_count() > 0) {
            return Err(corrupt("a side or time of a row is missing"));
        }
        let numbers = own[0].as_primitive::<UInt8Type>();
        if numbers.values().iter().any(|&one| one > 1) {
            return Err(corrupt("a side has too high a number"));
        }
        let times_us = own[1].as_primitive::<Int64Type>();
        let (left, right) = sides.split_at(self.plan.side_types[0].len());
        let (key_rows, side_rows) = self.encoded.encode_state(&columns[2..2 + keys], [left, right])?;
        frame.slots().iter().for_each(|&slot| self.store.remove_slot(slot));
        for row in 0..frame.rows.num_rows() {
            let (slot, side) = (frame.slots()[row], usize::from(numbers.value(row)));
            let key: &[u8] = if keys > 0 { key_rows.row(row).data() } else { &[] };
            let place = self.store.place(slot, key, || frame.key_groups()[row]);
            let place = place.ok_or_else(|| corrupt("there are too many keys"))?;
            self.store.put(place, side, times_us.value(row), side_rows[side].row(row).data());
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.store.keyed.memory_bytes() + self.store.heap_bytes + self.encoded.memory_bytes()
    }
}

impl LatestJoin {
    pub(super) fn new(plan: Arc<Plan>, drives: [bool; 2]) -> Self {
        let encoded = Encoded::new(&plan);
        let store = Store { keyed: Keyed::new(!plan.key_types.is_empty()), heap_bytes: 0 };
        Self { plan, drives, encoded, joined: Joined::default(), store }
    }

    fn process_batch(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let (batch, keys) = self.plan.expressions.evaluate(batch, context)?;
        if batch.is_empty() {
            return Ok(());
        }
        let Self { plan, drives, encoded, joined, store } = self;
        joined.begin();
        encoded.encode(plan, &batch, &keys)?;
        for (row, &slot) in batch.slots.iter().enumerate() {
            let first = |row: usize| {
                context.slots.fetch_query(batch.slots[row]);
                store.keyed.fetch_slot(batch.slots[row]);
            };
            let second = |row: usize| {
                let latest = store.keyed.of_slot_alone(batch.slots[row]);
                latest.iter().flat_map(|latest| latest.sides.iter().flatten()).for_each(|kept| fetch(&*kept.bytes));
            };
            fetch_ahead(row, batch.rows(), first, second);
            // Rows of a query that is gone must not leave state behind for the slot's next query.
            let Some(query) = context.slots.query(slot) else { continue };
            let (input, time_us) = (encoded.input(row), batch.event_time_us[row]);
            let side = usize::from(input != plan.sides[0].input);
            let bytes = encoded.side(side, row);
            let (mut place, mut is_latest) = (None, true);
            if let Some(key) = encoded.key(plan, row) {
                place = store.keyed.find(slot, key);
                // The row is kept for the rows of the other side.
                if drives[1 - side] {
                    let key_hash = || match plan.key_types.is_empty() {
                        true => KeyHash::of(&query.to_le_bytes()).bits(),
                        false => KeyHash::of(key).bits(),
                    };
                    place = store.place(slot, key, key_hash);
                    let Some(place) = place else {
                        let detail = || {
                            format!(
                                "there are too many keys: a query has at most {SLOT_KEYS_MAX}\nhint: join by a column \
                                 with fewer values"
                            )
                        };
                        refuse(&batch, row, input, Reason::Expression, detail, context);
                        continue;
                    };
                    is_latest = store.put(place, side, time_us, bytes);
                }
            }
            if !drives[side] || !is_latest {
                continue;
            }
            let partner = place.and_then(|place| store.keyed.value(place).sides[1 - side].as_ref());
            let partner = match partner {
                Some(kept) => &*kept.bytes,
                None if plan.keeps_unmatched && side == 0 => encoded.null(1),
                None => continue,
            };
            let sides = if side == 0 { [bytes, partner] } else { [partner, bytes] };
            joined.push((slot, time_us, batch.arrival_us[row]), sides, plan, encoded, context)?;
        }
        joined.finish(plan, encoded, context)
    }

    fn state_schema(&self) -> SchemaRef {
        let own = [Field::new("side", DataType::UInt8, false), Field::new("time_us", DataType::Int64, false)];
        Arc::new(Schema::new(state_fields(&self.plan, own)))
    }
}

impl Store {
    /// Returns the index of a key, and adds the key if it is new; `None` if there are too many.
    fn place(&mut self, slot: Slot, key: &[u8], key_hash: impl FnOnce() -> u16) -> Option<u32> {
        if let Some(place) = self.keyed.find(slot, key) {
            return Some(place);
        }
        let place = self.keyed.create(slot, key)?;
        self.keyed.value_mut(place).key_hash = key_hash();
        self.heap_bytes += key.len();
        Some(place)
    }

    /// Keeps a row unless a later one is kept. Returns whether it keeps the row.
    fn put(&mut self, place: u32, side: usize, time_us: i64, bytes: &[u8]) -> bool {
        match &mut self.keyed.value_mut(place).sides[side] {
            Some(kept) if kept.time_us > time_us => return false,
            Some(kept) => {
                kept.time_us = time_us;
                if kept.bytes.len() == bytes.len() {
                    kept.bytes.copy_from_slice(bytes);
                } else {
                    self.heap_bytes -= kept.bytes.len();
                    self.heap_bytes += bytes.len();
                    kept.bytes = bytes.into();
                }
            }
            empty => {
                self.heap_bytes += bytes.len();
                *empty = Some(Kept { time_us, bytes: bytes.into() });
            }
        }
        true
    }

    fn remove_slot(&mut self, slot: Slot) {
        self.keyed.remove_slot(slot, |key, latest| {
            self.heap_bytes -= key.len() + latest.sides.iter().flatten().map(|kept| kept.bytes.len()).sum::<usize>();
        });
    }
}
