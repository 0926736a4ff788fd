//! Export and import of window state.
//!
//! A frame has one row for each cell, that is for each slot and key: `slot`, `key_group`, the key columns, `is_cell`
//! (false in a row that carries only the clock of a slot without open cells), the slot's lengths and clock, the panes
//! as words, what successive windows share of them, and their objects as bytes. The clock stands in every row of a
//! slot, so that rows can be selected freely.
//!
//! Version 2 counts rows in 32 bits and numbers panes. Version 1 is no longer read.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanArray, Int64Array, ListArray, RecordBatch, UInt16Array,
    UInt32Array, UInt64Array, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt64Type};
use hashbrown::HashSet;
use rivulet_dataflow::{KeyHash, SLOTS_MAX, Slot, StateError, StateFrame, StateSelection, fetch_ahead};

use super::cells::{CellParts, NEVER, ObjectDeque, SlotLengths};
use super::length::{Lengths, TIME_MAX_US, WindowSpec};
use super::panes::{PANES_APART_MAX, PaneNumber};
use super::plan::Plan;
use super::rules::{Windows, first_open_end_us};
use super::shared::{Shared, shares_panes};
use crate::aggregate::object::Object;
use crate::keyed::key_fields;
use crate::row_bytes::RowBytes;

pub(super) const OPERATOR: &str = "window";
const VERSION: u32 = 2;
/// The first byte of the objects of a cell.
const OBJECTS_VERSION: u8 = 1;
/// The key of the frame's metadata that says what the words of a pane mean.
const LAYOUT: &str = "rivulet.window_layout";

/// The slot or cell that a row of a frame comes from.
struct Exported {
    slot: usize,
    key_hash: u16,
    cell: Option<usize>,
}

pub(super) fn export(
    windows: &Windows,
    row_bytes: &RowBytes,
    selection: &StateSelection,
) -> Result<StateFrame, StateError> {
    let (cells, plan) = (&windows.cells, &windows.plan);
    let mut exported: Vec<Exported> = Vec::new();
    let mut clocks: Vec<Exported> = Vec::new();
    let add_slot = |slot: usize| {
        let Some(state) = cells.slots.get(slot).filter(|_| cells.lengths(slot) != SlotLengths::Absent) else { return };
        let has_clock = state.max_ts_us != i64::MIN || state.watermark_us != i64::MIN;
        let mut cell = cells.first(slot);
        let mut has_cells = false;
        while let Some(place) = cell {
            let key_hash = match plan.keys {
                0 => cells.slot_key_hash(slot),
                _ => KeyHash::of(cells.key(place)).bits(),
            };
            let touched = plan.keys > 0 || has_clock || cells.row_number(place) > 0;
            if touched && selection.selects_key(KeyHash::from_bits(key_hash)) {
                exported.push(Exported { slot, key_hash, cell: Some(place) });
                has_cells = true;
            }
            cell = cells.next(place);
        }
        if plan.keys > 0 && has_clock && !has_cells {
            // The clock serves all keys of the slot, whatever their key groups.
            clocks.push(Exported { slot, key_hash: cells.slot_key_hash(slot), cell: None });
        }
    };
    selection.for_each_slot(cells.slots.len(), add_slot);
    let with_cells = exported.len();
    let mut rows = exported;
    rows.append(&mut clocks);

    let slots: Vec<Slot> = rows.iter().map(|row| row.slot as Slot).collect();
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt32Array::from(slots)),
        Arc::new(UInt16Array::from_iter_values(rows.iter().map(|row| row.key_hash))),
    ];
    if plan.keys > 0 {
        let keys = rows.iter().filter_map(|row| row.cell).map(|cell| cells.key(cell));
        for column in row_bytes.decode(keys)? {
            let nulls = new_null_array(column.data_type(), rows.len() - with_cells);
            columns.push(concat(&[&column, &nulls])?);
        }
    }
    let lengths = |row: &Exported| match cells.lengths(row.slot) {
        SlotLengths::Known(lengths) => lengths,
        _ => Lengths { width: 0, slide: 0, pane: 0, offset: 0, cumulates: false },
    };
    let slot = |row: &Exported| &cells.slots[row.slot];
    // Panes are most of the state: they are copied once, into memory of the right size.
    let words_of = |row: &Exported| row.cell.map_or(&[][..], |cell| cells.panes(cell).entries());
    let lengths_in_words = || rows.iter().map(|row| words_of(row).len());
    let total: usize = lengths_in_words().sum();
    if i32::try_from(total).is_err() {
        return Err(StateError::Mismatch(format!(
            "{total} words of window state do not fit a frame\nhint: export the slots in several parts"
        )));
    }
    let mut words = Vec::with_capacity(total);
    for (index, row) in rows.iter().enumerate() {
        let slot_of = |row: usize| rows[row].slot;
        fetch_ahead(index, rows.len(), |row| cells.fetch_slot(slot_of(row)), |row| cells.fetch_panes(slot_of(row)));
        words.extend_from_slice(words_of(row));
    }
    let panes = ListArray::new(
        words_field(),
        OffsetBuffer::from_lengths(lengths_in_words()),
        Arc::new(UInt64Array::from(words)),
        None,
    );
    let mut objects = BinaryBuilder::new();
    for row in &rows {
        match row.cell.and_then(|cell| cells.objects(cell)) {
            Some(deque) => objects.append_value(encode_objects(deque)),
            None => objects.append_null(),
        }
    }
    let shared = rows.iter().map(|row| row.cell.and_then(|cell| cells.shared(cell)).map_or(&[][..], Shared::words));
    let shared = ListArray::new(
        words_field(),
        OffsetBuffer::from_lengths(shared.clone().map(<[u64]>::len)),
        Arc::new(UInt64Array::from(shared.flatten().copied().collect::<Vec<_>>())),
        None,
    );
    let numbers = rows.iter().map(|row| row.cell.map_or(0, |cell| cells.row_number(cell)));
    columns.extend([
        Arc::new(rows.iter().map(|row| Some(row.cell.is_some())).collect::<BooleanArray>()) as ArrayRef,
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| lengths(row).width))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| lengths(row).slide))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| slot(row).max_ts_us))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| slot(row).last_arrival_us))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| slot(row).watermark_us))),
        Arc::new(UInt64Array::from_iter_values(numbers)),
        Arc::new(panes),
        Arc::new(shared),
        Arc::new(objects.finish()),
    ]);
    if has_offset(plan) {
        columns.push(Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| lengths(row).offset))));
    }
    Ok(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(schema(plan), columns)?))
}

/// The columns of a frame.
fn schema(plan: &Plan) -> SchemaRef {
    let mut fields = key_fields(plan.key_fields.iter().map(Field::data_type));
    fields.push(Field::new("is_cell", DataType::Boolean, false));
    for name in ["width", "slide", "max_ts_us", "last_arrival_us", "watermark_us"] {
        fields.push(Field::new(name, DataType::Int64, false));
    }
    fields.push(Field::new("row_number", DataType::UInt64, false));
    fields.push(Field::new("panes", DataType::List(words_field()), false));
    fields.push(Field::new("shared", DataType::List(words_field()), false));
    fields.push(Field::new("objects", DataType::Binary, true));
    if has_offset(plan) {
        fields.push(Field::new("offset", DataType::Int64, false));
    }
    let kind = match plan.window.unshifted() {
        WindowSpec::Tumble { .. } | WindowSpec::Hop { .. } | WindowSpec::Shifted { .. } => "panes",
        WindowSpec::Cumulate { .. } => "steps",
        WindowSpec::Session { .. } => "sessions",
        WindowSpec::Count { .. } => "blocks",
        WindowSpec::State => "states",
    };
    let layout = format!("{kind} {}", plan.layout.fingerprint());
    Arc::new(Schema::new_with_metadata(fields, [(LAYOUT.to_owned(), layout)].into()))
}

/// Whether a frame has a column with the offsets of windows. Without offsets, frames are the same as before offsets
/// existed.
fn has_offset(plan: &Plan) -> bool {
    plan.window.offset().is_some()
}

fn words_field() -> Arc<Field> {
    Arc::new(Field::new_list_field(DataType::UInt64, true))
}

fn encode_objects(deque: &ObjectDeque) -> Vec<u8> {
    let mut bytes = vec![OBJECTS_VERSION];
    deque.iter().flatten().for_each(|object| object.encode(&mut bytes));
    bytes
}

/// A checked row of a frame.
struct Imported {
    slot: usize,
    key_hash: u16,
    row: usize,
    is_cell: bool,
    lengths: Lengths,
    clock: [i64; 3],
    row_number: u64,
    panes: Vec<u64>,
    shared: Shared,
    objects: ObjectDeque,
}

pub(super) fn import(windows: &mut Windows, row_bytes: &RowBytes, frame: &StateFrame) -> Result<(), StateError> {
    let plan = &windows.plan;
    frame.expect(OPERATOR, VERSION)?;
    if frame.version < VERSION {
        return Err(StateError::Mismatch(format!(
            "window state of version {} is not read any more\nhint: start without it; windows fill again",
            frame.version
        )));
    }
    let expected = schema(plan);
    let frame = &*brought_up(plan, frame, &expected)?;
    let found = frame.rows.schema_ref();
    if found.fields() != expected.fields() || found.metadata().get(LAYOUT) != expected.metadata().get(LAYOUT) {
        return Err(StateError::Mismatch(format!(
            "the state belongs to other keys or aggregates: it has {:?}, this window aggregation {:?}",
            found.metadata().get(LAYOUT),
            expected.metadata().get(LAYOUT)
        )));
    }
    // Everything is checked before anything is changed.
    let rows = (0..frame.rows.num_rows()).map(|row| read_row(plan, frame, row)).collect::<Result<Vec<_>, _>>()?;
    let keys = plan.keys;
    let mut key_rows = row_bytes.buffer();
    if keys > 0 {
        row_bytes.encode(&frame.rows.columns()[2..2 + keys], &mut key_rows)?;
    }
    let mut seen = HashSet::new();
    for row in rows.iter().filter(|row| row.is_cell) {
        let key: &[u8] = if keys > 0 { key_rows.row(row.row).data() } else { &[] };
        if !seen.insert((row.slot, key)) {
            return Err(corrupt(format!("row {}: slot {} has the same key twice", row.row, row.slot)));
        }
    }
    let cells = &mut windows.cells;
    let mut slots: Vec<(usize, u16)> = rows.iter().map(|row| (row.slot, row.key_hash)).collect();
    slots.sort_unstable();
    slots.dedup_by_key(|slot| slot.0);
    for &(slot, key_hash) in &slots {
        // A slot in use keeps the key group of its query. Rows of keyed cells carry the key group of the key.
        let known = cells.slots.get(slot).filter(|_| cells.lengths(slot) != SlotLengths::Absent).is_some();
        let key_hash = if known { cells.slot_key_hash(slot) } else { key_hash };
        cells.remove_slot(slot);
        cells.add_slot(slot, None, key_hash);
    }
    for row in rows {
        let cells = &mut windows.cells;
        let key_hash = cells.slot_key_hash(row.slot);
        cells.add_slot(row.slot, Some(row.lengths), key_hash);
        let state = &mut cells.slots[row.slot];
        // If several instances had different keys of the slot, one instance may have seen a later time without having
        // any window to close.
        let [max_ts_us, last_arrival_us, watermark_us] = row.clock;
        state.max_ts_us = state.max_ts_us.max(max_ts_us);
        state.last_arrival_us = state.last_arrival_us.max(last_arrival_us);
        state.watermark_us = state.watermark_us.max(watermark_us);
        if !row.is_cell {
            continue;
        }
        let key: &[u8] = if keys > 0 { key_rows.row(row.row).data() } else { &[] };
        let cell = match keys {
            0 => row.slot,
            _ => cells.create(row.slot, key).ok_or_else(|| corrupt("there are too many keys".into()))?,
        };
        cells.set_row_number(cell, row.row_number);
        let entry_words = plan.layout.entry_words;
        if !row.shared.words().is_empty() {
            cells.put_shared(cell, row.shared);
        }
        let CellParts { panes, objects, heap_bytes, .. } = cells.parts(cell);
        for (index, entry) in row.panes.chunks_exact(entry_words).enumerate() {
            panes.insert(index, entry, heap_bytes);
        }
        if let Some(objects) = objects {
            *objects = row.objects;
        }
        if let Some(first) = row.panes.get(..entry_words) {
            let next_end_us = match plan.window {
                WindowSpec::Count { .. } | WindowSpec::State => NEVER,
                WindowSpec::Session { .. } => first[1] as i64 + row.lengths.width,
                _ => {
                    let start_us = PaneNumber::of(first[0]).start_us(row.clock[0], row.lengths.pane);
                    first_open_end_us(start_us, row.lengths, row.clock[2])
                }
            };
            let state = &mut cells.slots[row.slot];
            state.next_end_us = state.next_end_us.min(next_end_us);
        }
    }
    slots.iter().for_each(|&(slot, _)| windows.set_deadline(slot));
    Ok(())
}

/// Converts panes of an earlier layout to that of this version.
fn brought_up<'f>(plan: &Plan, frame: &'f StateFrame, expected: &SchemaRef) -> Result<Cow<'f, StateFrame>, StateError> {
    let layout = &plan.layout;
    let (Some(earlier), Some(name)) = (&layout.earlier, expected.metadata().get(LAYOUT)) else {
        return Ok(Cow::Borrowed(frame));
    };
    let found = frame.rows.schema_ref();
    if found.fields() != expected.fields()
        || found.metadata().get(LAYOUT) != Some(&earlier.named(&layout.fingerprint(), name))
    {
        return Ok(Cow::Borrowed(frame));
    }
    let mut columns = frame.rows.columns().to_vec();
    let panes = columns.len() - 3 - usize::from(has_offset(plan));
    // The shared part is a word and then a pane.
    for (column, header) in [(panes, 0), (panes + 1, 1)] {
        let old = columns[column].as_list::<i32>().clone();
        if old.null_count() > 0 || old.values().null_count() > 0 {
            return Err(corrupt("a word of a pane is missing".into()));
        }
        let now = old.iter().flatten().map(|words| {
            let words = words.as_primitive::<UInt64Type>().values().to_vec();
            let (first, entries) = words.split_at(header.min(words.len()));
            match entries.len() % earlier.entry_words {
                0 => Ok([first, &earlier.entries(entries)].concat()),
                _ => Err(corrupt("the panes are incomplete".into())),
            }
        });
        let now = now.collect::<Result<Vec<Vec<u64>>, StateError>>()?;
        let offsets = OffsetBuffer::from_lengths(now.iter().map(Vec::len));
        columns[column] =
            Arc::new(ListArray::new(words_field(), offsets, Arc::new(UInt64Array::from(now.concat())), None));
    }
    let rows = RecordBatch::try_new(expected.clone(), columns)?;
    Ok(Cow::Owned(StateFrame { rows, ..frame.clone() }))
}

fn corrupt(what: String) -> StateError {
    StateError::Corrupt(what)
}

fn read_row(plan: &Plan, frame: &StateFrame, row: usize) -> Result<Imported, StateError> {
    let fail = |what: &str| corrupt(format!("row {row} of the window state: {what}"));
    let columns = &frame.rows.columns()[2 + plan.keys..];
    let required = frame.rows.columns()[..2].iter().chain(&columns[..9]);
    if required.clone().any(|column| column.is_null(row)) {
        return Err(fail("a value is missing"));
    }
    let integer = |index: usize| columns[index].as_primitive::<Int64Type>().value(row);
    let slot = frame.slots()[row] as usize;
    if slot >= SLOTS_MAX {
        return Err(fail("the slot number is too high"));
    }
    let is_cell = columns[0].as_boolean().value(row);
    let lengths = Lengths::new(integer(1), integer(2), !plan.window.is_time())
        .and_then(|lengths| match plan.window.unshifted() {
            WindowSpec::Cumulate { .. } => lengths.cumulating(),
            _ => Ok(lengths),
        })
        .and_then(|lengths| plan.check(lengths))
        .map_err(|error| fail(&format!("the lengths do not work: {error}")))?;
    let lengths = match has_offset(plan) {
        true if columns[10].is_null(row) => return Err(fail("a value is missing")),
        true => lengths.shifted(integer(10)),
        false => lengths,
    };
    let clock = [integer(3), integer(4), integer(5)];
    if clock[0] != i64::MIN && !(-TIME_MAX_US..=TIME_MAX_US).contains(&clock[0]) {
        return Err(fail("the clock is out of range"));
    }
    let row_number = columns[6].as_primitive::<UInt64Type>().value(row);
    let words = |index: usize| {
        let words = columns[index].as_list::<i32>().value(row);
        match words.null_count() {
            0 => Ok(words.as_primitive::<UInt64Type>().values().to_vec()),
            _ => Err(fail("a word of a pane is missing")),
        }
    };
    let panes = words(7)?;
    let entry_words = plan.layout.entry_words;
    if panes.len() % entry_words != 0 || (!is_cell && !panes.is_empty()) {
        return Err(fail("the panes are incomplete"));
    }
    let shared = Shared::from_words(&words(8)?, panes.len() / entry_words, &plan.layout)
        .filter(|shared| {
            let can_share = is_cell && plan.window.is_time() && shares_panes(lengths);
            can_share || shared.words().is_empty()
        })
        .ok_or_else(|| fail("what the windows share does not belong to the panes"))?;
    check_panes(plan, &panes, lengths, clock, row_number).map_err(fail)?;
    let mut objects = ObjectDeque::new();
    if is_cell && !plan.layout.objects.is_empty() {
        let column = columns[9].as_binary::<i32>();
        let mut bytes = if column.is_null(row) { &[] } else { column.value(row) };
        match bytes.split_off_first() {
            Some(&OBJECTS_VERSION) => {}
            Some(&found) if found > OBJECTS_VERSION => {
                return Err(StateError::Version {
                    operator: OPERATOR.into(),
                    found: found.into(),
                    known: OBJECTS_VERSION.into(),
                });
            }
            _ => return Err(fail("the objects are missing")),
        }
        for _ in 0..panes.len() / entry_words {
            let pane = plan.layout.objects.iter().map(|state| Object::decode(state.kind, &mut bytes));
            objects.push_back(pane.collect::<Option<_>>().ok_or_else(|| fail("the objects are broken"))?);
        }
        if !bytes.is_empty() {
            return Err(fail("there are more objects than panes"));
        }
    }
    let key_hash = frame.key_groups()[row];
    Ok(Imported { slot, key_hash, row, is_cell, lengths, clock, row_number, panes, shared, objects })
}

/// Checks what the loop over rows relies on: entries are sorted, aligned, and still open.
fn check_panes(
    plan: &Plan,
    panes: &[u64],
    lengths: Lengths,
    [max_ts_us, _, watermark_us]: [i64; 3],
    row_number: u64,
) -> Result<(), &'static str> {
    let in_range = |time: u64| (-TIME_MAX_US..=TIME_MAX_US).contains(&(time as i64));
    let entries = || panes.chunks_exact(plan.layout.entry_words);
    let start_us = |entry: &[u64]| PaneNumber::of(entry[0]).start_us(max_ts_us, lengths.pane);
    let sorted = match plan.window {
        WindowSpec::Session { .. } => entries().is_sorted_by(|a, b| (a[1] as i64) + lengths.width <= b[0] as i64),
        WindowSpec::Count { .. } | WindowSpec::State => entries().is_sorted_by(|a, b| a[0] < b[0]),
        _ => entries().is_sorted_by(|a, b| start_us(a) < start_us(b)),
    };
    let sound = entries().all(|entry| match plan.window {
        WindowSpec::Count { .. } => {
            row_number <= i64::MAX as u64 && entry[0] <= row_number / lengths.pane as u64 && in_range(entry[2])
        }
        WindowSpec::State => entry[0] == 0 && row_number > 0 && in_range(entry[1]) && in_range(entry[2]),
        WindowSpec::Session { .. } => {
            in_range(entry[0])
                && in_range(entry[1])
                && entry[0] as i64 <= entry[1] as i64
                // By arrival, the clock may have leapt over the end.
                && (plan.arrival_time || entry[1] as i64 + lengths.width > watermark_us)
        }
        _ => {
            let start_us = start_us(entry);
            // The start of the newest window that begins no later than the pane must reach over it.
            max_ts_us != i64::MIN
                && in_range(start_us as u64)
                && start_us.abs_diff(max_ts_us) / lengths.pane as u64 <= PANES_APART_MAX as u64
                && start_us.rem_euclid(lengths.slide) < lengths.width
                && first_open_end_us(start_us, lengths, watermark_us) != NEVER
        }
    });
    match (sorted, sound) {
        (true, true) => Ok(()),
        (false, _) => Err("the panes are out of order"),
        (_, false) => Err("a pane is out of place"),
    }
}
