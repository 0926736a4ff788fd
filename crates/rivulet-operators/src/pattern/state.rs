//! Export and import of the searches of a slot.
//!
//! A frame has one row for each partition: `slot`, `key_group`, the key columns, `is_partition` (false in a row that
//! carries only the clock of a slot without partitions), the slot's clock, and the rows that the partition keeps with
//! the position of the first row of its match. Partial matches are not written: they follow from the rows, and are
//! found again when the next row or tick comes. The clock stands in every row of a slot, so that rows can be selected
//! freely.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, RecordBatch, UInt16Array, UInt32Array, UInt64Array,
    new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt64Type};
use hashbrown::HashSet;
use rivulet_dataflow::{KeyHash, SLOTS_MAX, Slot, StateError, StateFrame, StateSelection};

use super::partition::Partition;
use super::plan::Plan;
use super::slots::{Known, SlotState, Slots};
use super::spec::{MATCH_ROWS_MAX, SLOT_ROWS_MAX};
use crate::history::value::{Builder, Value, Values};
use crate::keyed::key_fields;
use crate::row_bytes::RowBytes;
use crate::window::length::TIME_MAX_US;

pub(super) const OPERATOR: &str = "pattern";
const VERSION: u32 = 1;
/// The key of the frame's metadata that holds the pattern and its conditions.
const PATTERN: &str = "rivulet.pattern";
/// The columns with the numbers of a slot and of a partition.
const CLOCK: [&str; 4] = ["max_ts_us", "last_arrival_us", "watermark_us", "within_us"];
const SEARCH: [&str; 4] = ["start", "ready", "matches", "failed_before"];

/// The slot or partition that a row of a frame comes from.
struct Exported<'a> {
    slot: usize,
    key_hash: u16,
    partition: Option<(&'a [u8], &'a Partition)>,
}

pub(super) fn export(
    slots: &Slots,
    key_bytes: &RowBytes,
    selection: &StateSelection,
) -> Result<StateFrame, StateError> {
    let plan = &slots.plan;
    let keyed = !plan.key_fields.is_empty();
    let (mut rows, mut clocks): (Vec<Exported<'_>>, Vec<Exported<'_>>) = (Vec::new(), Vec::new());
    let selects = |key_hash: u16| selection.selects_key(KeyHash::from_bits(key_hash));
    let add_slot = |slot: usize| {
        let Some(state) = slots.states.get(slot).filter(|state| state.known != Known::Absent) else { return };
        let before = rows.len();
        for (key, partition) in slots.partitions.of_slot(slot) {
            let key_hash = if keyed { KeyHash::of(key).bits() } else { state.key_hash };
            if selects(key_hash) {
                rows.push(Exported { slot, key_hash, partition: Some((key, partition)) });
            }
        }
        let has_clock = state.max_ts_us != i64::MIN || state.watermark_us != i64::MIN;
        if rows.len() == before && has_clock && (keyed || selects(state.key_hash)) {
            // The clock serves all keys of the slot, whatever their key groups.
            clocks.push(Exported { slot, key_hash: state.key_hash, partition: None });
        }
    };
    selection.for_each_slot(slots.states.len(), add_slot);
    let with_partitions = rows.len();
    rows.append(&mut clocks);

    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.slot as Slot))),
        Arc::new(UInt16Array::from_iter_values(rows.iter().map(|row| row.key_hash))),
    ];
    if keyed {
        for column in key_bytes.decode(rows.iter().filter_map(|row| row.partition).map(|(key, _)| key))? {
            let nulls = new_null_array(column.data_type(), rows.len() - with_partitions);
            columns.push(concat(&[&column, &nulls])?);
        }
    }
    columns.push(Arc::new(rows.iter().map(|row| Some(row.partition.is_some())).collect::<BooleanArray>()));
    let clock = |index: usize, row: &Exported<'_>| {
        let state = &slots.states[row.slot];
        [state.max_ts_us, state.last_arrival_us, state.watermark_us, state.within_us][index]
    };
    for index in 0..CLOCK.len() {
        columns.push(Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| clock(index, row)))));
    }
    let partitions: Vec<_> = rows.iter().map(|row| row.partition.map(|(_, partition)| partition)).collect();
    columns.extend(search_columns(plan, &partitions)?);
    Ok(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(schema(plan), columns)?))
}

/// The columns of searches: how far each is, and the rows that it keeps.
pub(super) fn search_columns(plan: &Plan, partitions: &[Option<&Partition>]) -> Result<Vec<ArrayRef>, StateError> {
    let mut columns: Vec<ArrayRef> = Vec::new();
    let search = |index: usize, partition: &Option<&Partition>| {
        partition.map_or(0, |one| {
            let first = one.rows.first_position();
            [one.start - first, one.ready - first, one.matches, one.failed_before.saturating_sub(first)][index]
        })
    };
    for index in 0..SEARCH.len() {
        columns.push(Arc::new(UInt64Array::from_iter_values(partitions.iter().map(|one| search(index, one)))));
    }
    let kept = || {
        let partitions = partitions.iter().flatten();
        partitions.flat_map(|one| (one.rows.first_position()..one.rows.end()).map(|position| one.rows.row(position)))
    };
    let lengths = || partitions.iter().map(|one| one.map_or(0, |one| one.rows.len()));
    if i32::try_from(lengths().sum::<usize>()).is_err() {
        return Err(StateError::Mismatch(
            "too many rows for one frame\nhint: export the slots in several parts".into(),
        ));
    }
    let list = |name: &str, values: ArrayRef| -> ArrayRef {
        let field = Arc::new(Field::new(name, values.data_type().clone(), true));
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths()), values, None))
    };
    columns.push(list("time_us", Arc::new(Int64Array::from_iter_values(kept().map(|(time_us, ..)| time_us)))));
    columns.push(list("holds", Arc::new(UInt64Array::from_iter_values(kept().map(|(_, holds, _)| holds)))));
    let mut values: Vec<Builder> = plan.storages.iter().map(|storage| Builder::values(*storage, 0)).collect();
    for (_, _, row) in kept() {
        row.zip(&mut values).for_each(|(value, builder)| builder.push(value));
    }
    columns.extend(values.into_iter().map(|builder| list("value", builder.finish())));
    Ok(columns)
}

/// The fields of [`search_columns`].
pub(super) fn search_fields(plan: &Plan) -> Vec<Field> {
    let mut fields: Vec<Field> = SEARCH.iter().map(|name| Field::new(*name, DataType::UInt64, false)).collect();
    let list = |name: String, item: &str, data_type: DataType| {
        Field::new(name, DataType::List(Arc::new(Field::new(item, data_type, true))), false)
    };
    fields.push(list("times_us".into(), "time_us", DataType::Int64));
    fields.push(list("holds".into(), "holds", DataType::UInt64));
    let values = plan.storages.iter().enumerate();
    fields.extend(values.map(|(index, storage)| list(format!("values_{index}"), "value", storage.data_type())));
    fields
}

/// The columns of a frame.
fn schema(plan: &Plan) -> SchemaRef {
    let mut fields = key_fields(plan.key_fields.iter().map(Field::data_type));
    fields.push(Field::new("is_partition", DataType::Boolean, false));
    fields.extend(CLOCK.iter().map(|name| Field::new(*name, DataType::Int64, false)));
    fields.extend(search_fields(plan));
    Arc::new(Schema::new_with_metadata(fields, [(PATTERN.to_owned(), plan.text.clone())].into()))
}

pub(super) fn import(slots: &mut Slots, key_bytes: &RowBytes, frame: &StateFrame) -> Result<(), StateError> {
    let plan = &slots.plan;
    frame.expect(OPERATOR, VERSION)?;
    let (expected, found) = (schema(plan), frame.rows.schema_ref());
    if found.fields() != expected.fields() || found.metadata().get(PATTERN) != expected.metadata().get(PATTERN) {
        return Err(StateError::Mismatch("the state belongs to another pattern than this".into()));
    }
    // Everything is checked before anything is changed.
    let rows = (0..frame.rows.num_rows()).map(|row| read_row(plan, frame, row)).collect::<Result<Vec<_>, _>>()?;
    let keys = plan.key_fields.len();
    let mut key_rows = key_bytes.buffer();
    if keys > 0 {
        key_bytes.encode(&frame.rows.columns()[2..2 + keys], &mut key_rows)?;
    }
    let key = |row: usize| -> &[u8] { if keys > 0 { key_rows.row(row).data() } else { &[] } };
    let mut seen = HashSet::new();
    for (row, (slot, _, partition)) in rows.iter().enumerate() {
        if partition.is_some() && !seen.insert((*slot, key(row))) {
            return Err(corrupt(&format!("slot {slot} has the same partition twice")));
        }
    }
    for (slot, ..) in &rows {
        slots.make_room(*slot);
        // A slot in use keeps the key group of its query. Rows of partitions carry the key group of the key.
        let before = slots.states[*slot as usize];
        slots.remove_slot(*slot);
        slots.states[*slot as usize].key_hash = before.key_hash;
        slots.states[*slot as usize].known = before.known;
    }
    for (row, (slot, clock, partition)) in rows.into_iter().enumerate() {
        let state = &mut slots.states[slot as usize];
        if state.known == Known::Absent {
            state.key_hash = frame.key_groups()[row];
            state.known = Known::Usable;
        }
        let [max_ts_us, last_arrival_us, watermark_us, within_us] = clock;
        // If several instances had different partitions of the slot, one instance may have seen a later time without
        // having anything due.
        *state = SlotState {
            max_ts_us: state.max_ts_us.max(max_ts_us),
            last_arrival_us: state.last_arrival_us.max(last_arrival_us),
            watermark_us: state.watermark_us.max(watermark_us),
            within_us,
            ..*state
        };
        if let Some(partition) = partition {
            state.due_us = state.due_us.min(partition.due_us(within_us, &slots.arrival_leaps));
            state.rows += partition.rows.len() as u32;
            let place = slots.partitions.create(slot, key(row)).ok_or_else(|| corrupt("there are too many keys"))?;
            slots.key_heap_bytes += key(row).len();
            *slots.partitions.value_mut(place) = partition;
        }
        slots.set_deadline(slot);
    }
    Ok(())
}

/// Reads and checks a row of a frame: the slot, its clock, and the partition.
fn read_row(plan: &Plan, frame: &StateFrame, row: usize) -> Result<(Slot, [i64; 4], Option<Partition>), StateError> {
    let columns = frame.rows.columns();
    let mut rest = columns[2 + plan.key_fields.len()..].iter();
    let mut next = || rest.next().expect("the columns are those of the schema");
    let slot = frame.slots()[row];
    if slot as usize >= SLOTS_MAX {
        return Err(corrupt("a slot number is too high"));
    }
    let is_partition = next().as_boolean().value(row);
    let clock: [i64; 4] = std::array::from_fn(|_| next().as_primitive::<Int64Type>().value(row));
    if clock[3] <= 0 {
        return Err(corrupt("a match lasts no time"));
    }
    if !is_partition {
        return Ok((slot, clock, None));
    }
    let kept_max = (MATCH_ROWS_MAX + plan.rows_before + 1).min(SLOT_ROWS_MAX);
    let first = 2 + plan.key_fields.len() + 1 + CLOCK.len();
    Ok((slot, clock, Some(read_partition(plan, &columns[first..], row, kept_max)?)))
}

/// Reads and checks a partition from [`search_columns`]. It keeps at most `rows_max` rows.
pub(super) fn read_partition(
    plan: &Plan,
    columns: &[ArrayRef],
    row: usize,
    rows_max: usize,
) -> Result<Partition, StateError> {
    let mut rest = columns.iter();
    let mut next = || rest.next().expect("the columns are those of the schema");
    let [start, ready, matches, failed_before]: [u64; 4] =
        std::array::from_fn(|_| next().as_primitive::<UInt64Type>().value(row));
    let times_us = next().as_list::<i32>().value(row);
    let times_us = times_us.as_primitive::<Int64Type>();
    let holds = next().as_list::<i32>().value(row);
    let holds = holds.as_primitive::<UInt64Type>();
    let values: Vec<(ArrayRef, Values)> = plan
        .storages
        .iter()
        .map(|storage| {
            let values = next().as_list::<i32>().value(row);
            (values.clone(), Values::new(&values, *storage))
        })
        .collect();
    let rows = times_us.len();
    let same_length = holds.len() == rows && values.iter().all(|(array, _)| array.len() == rows);
    let bits = 1u64.checked_shl(plan.names.len() as u32).map_or(u64::MAX, |bit| bit - 1);
    let fits = same_length
        && rows <= rows_max
        && start <= rows as u64
        && ready <= rows as u64
        && start <= ready
        && times_us.null_count() == 0
        && holds.null_count() == 0
        && holds.values().iter().all(|&holds| holds & !bits == 0)
        && times_us.values().windows(2).all(|two| two[0] <= two[1])
        && times_us.values().iter().all(|time_us| (-TIME_MAX_US..=TIME_MAX_US).contains(time_us));
    if !fits {
        return Err(corrupt("the rows of a partition do not fit the pattern"));
    }
    let mut partition = Partition::new(plan.storages.len());
    for index in 0..rows {
        let of_row = values.iter().map(|(_, values)| {
            let mut value = Value::Null;
            values.store(index, &mut value);
            value
        });
        partition.rows.insert(times_us.value(index), holds.value(index), of_row);
    }
    (partition.matches, partition.failed_before) = (matches, failed_before);
    partition.restart(start, ready);
    Ok(partition)
}

fn corrupt(what: &str) -> StateError {
    StateError::Corrupt(what.to_owned())
}
