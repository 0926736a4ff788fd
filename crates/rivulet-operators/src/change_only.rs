//! EMIT ON CHANGE: a row goes on only if it differs from the last row of the same slot and key. If a slot has
//! [`SLOT_KEYS_MAX`] keys, rows of further keys are refused, because their last row could not be remembered.

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt16Array, UInt32Array};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::row::Rows;
use std::sync::Arc;

use rivulet_dataflow::{
    Address, Batch, Context, Control, Description, Element, KeyHash, Operator, OperatorError, OperatorFactory, Reason,
    Slot, StateError, StateFrame, StateSelection, fetch, fetch_ahead,
};

use crate::PlanError;
use crate::keyed::{Keyed, SLOT_KEYS_MAX, grow, key_fields};
use crate::row_bytes::RowBytes;

const OPERATOR: &str = "change only";
const VERSION: u32 = 1;

/// Passes rows that differ, in the compared columns, from the last passed row with the same slot and keys.
///
/// Null equals null and NaN equals NaN. Only the first `output_columns` columns go out: keys may be hidden columns
/// behind them.
#[derive(Clone, Debug)]
pub struct ChangeOnly {
    input: SchemaRef,
    keys: Arc<[usize]>,
    compare: Arc<[usize]>,
    output: SchemaRef,
}

impl ChangeOnly {
    /// Makes an operator over rows with the columns of `input`; `keys` and `compare` are indices of its columns.
    pub fn new(
        input: SchemaRef,
        keys: Vec<usize>,
        compare: Vec<usize>,
        output_columns: usize,
    ) -> Result<Self, PlanError> {
        let columns = input.fields().len();
        if let Some(&index) = keys.iter().chain(&compare).find(|&&index| index >= columns) {
            return Err(PlanError::Column { index, what: "the input", problem: "there is no such column".into() });
        }
        if output_columns > columns {
            let problem = format!("{output_columns} columns cannot go out of {columns}");
            return Err(PlanError::Column { index: output_columns, what: "the output", problem });
        }
        encoder(&input, &keys)?;
        encoder(&input, &compare)?;
        let output = Arc::new(input.project(&(0..output_columns).collect::<Vec<_>>()).expect("the columns exist"));
        Ok(Self { input, keys: keys.into(), compare: compare.into(), output })
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.output
    }
}

fn encoder(input: &Schema, columns: &[usize]) -> Result<RowBytes, PlanError> {
    RowBytes::new(columns.iter().map(|&column| input.field(column).data_type()))
}

impl OperatorFactory for ChangeOnly {
    fn create(&self) -> Box<dyn Operator> {
        let encoder = |columns| encoder(&self.input, columns).expect("the types are checked when the plan is made");
        let (key_bytes, compare_bytes) = (encoder(&self.keys), encoder(&self.compare));
        Box::new(ChangeOnlyOperator {
            key_rows: key_bytes.buffer(),
            compare_rows: compare_bytes.buffer(),
            key_bytes,
            compare_bytes,
            plan: self.clone(),
            last: Keyed::new(!self.keys.is_empty()),
            key_hashes: Vec::new(),
            heap_bytes: 0,
        })
    }

    fn describe(&self) -> Description {
        let names = |columns: &[usize]| {
            columns.iter().map(|&column| self.input.field(column).name().as_str()).collect::<Vec<_>>().join(", ")
        };
        let mut shared = vec![format!("compares {}", names(&self.compare))];
        if !self.keys.is_empty() {
            shared.push(format!("by {}", names(&self.keys)));
        }
        let what = if self.keys.is_empty() { "the last row" } else { "the last row of each key" };
        Description { operator: "emit on change".into(), shared, per_slot: vec![what.into()] }
    }

    fn state(&self) -> Option<Address> {
        let names = |columns: &[usize]| columns.iter().map(|&column| self.input.field(column).name().clone()).collect();
        Some(Address { keys: names(&self.keys), rest: names(&self.compare), ..Address::of(OPERATOR) })
    }

    fn only_compares(&self) -> bool {
        true
    }
}

struct ChangeOnlyOperator {
    plan: ChangeOnly,
    key_bytes: RowBytes,
    compare_bytes: RowBytes,
    /// The keys of the current batch. The buffer is kept to reuse its memory.
    key_rows: Rows,
    compare_rows: Rows,
    /// The last passed row of each slot and key.
    last: Keyed<Box<[u8]>>,
    /// Without keys: by slot, the key group of the query. It is 0 until the slot is announced.
    key_hashes: Vec<u16>,
    /// The bytes of all remembered rows and keys.
    heap_bytes: usize,
}

impl Operator for ChangeOnlyOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) if !batch.is_empty() => self.process_batch(&batch, context),
            Element::Control(Control::AddSlots(slots)) => {
                for slot in slots {
                    let query = context.slots.query(slot).unwrap_or_default();
                    self.grow(slot);
                    self.key_hashes[slot as usize] = KeyHash::of(&query.to_le_bytes()).bits();
                }
                Ok(())
            }
            Element::Control(Control::RemoveSlots(slots)) => {
                slots.into_iter().for_each(|slot| self.remove_slot(slot));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let (mut slots, mut key_hashes, mut keys, mut last) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let add_slot = |slot: usize| {
            for (key, row) in self.last.of_slot(slot) {
                let key_hash = match self.plan.keys.is_empty() {
                    true => self.key_hashes[slot],
                    false => KeyHash::of(key).bits(),
                };
                if selection.selects_key(KeyHash::from_bits(key_hash)) {
                    slots.push(slot as Slot);
                    key_hashes.push(key_hash);
                    keys.push(key);
                    last.push(&**row);
                }
            }
        };
        selection.for_each_slot(self.last.slots(), add_slot);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from(slots)), Arc::new(UInt16Array::from(key_hashes))];
        if !self.plan.keys.is_empty() {
            columns.extend(self.key_bytes.decode(keys.into_iter())?);
        }
        if !self.plan.compare.is_empty() {
            columns.extend(self.compare_bytes.decode(last.into_iter())?);
        }
        Ok(Some(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(self.state_schema(), columns)?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.last.begin_import();
        let imported = self.import(frame);
        self.last.end_import();
        imported
    }

    fn memory_bytes(&self) -> usize {
        self.heap_bytes
            + self.last.memory_bytes()
            + self.key_hashes.capacity() * 2
            + self.key_rows.size()
            + self.compare_rows.size()
            + self.key_bytes.memory_bytes()
            + self.compare_bytes.memory_bytes()
    }
}

impl ChangeOnlyOperator {
    fn import(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let mismatch = "the last rows belong to other columns than are compared here";
        frame.expect_rows(OPERATOR, VERSION, &self.state_schema(), mismatch)?;
        self.encode(&frame.rows.columns()[2..])?;
        frame.slots().iter().for_each(|&slot| self.remove_slot(slot));
        let (keys, compare) = (std::mem::replace(&mut self.key_rows, self.key_bytes.buffer()), &self.compare_rows);
        let rows: Vec<Box<[u8]>> = (0..frame.rows.num_rows())
            .map(|row| match self.plan.compare.is_empty() {
                true => Box::default(),
                false => compare.row(row).data().into(),
            })
            .collect();
        for (row, last) in rows.into_iter().enumerate() {
            let slot = frame.slots()[row];
            self.grow(slot);
            let key = if self.plan.keys.is_empty() {
                if self.key_hashes[slot as usize] == 0 {
                    self.key_hashes[slot as usize] = frame.key_groups()[row];
                }
                &[]
            } else {
                keys.row(row).data()
            };
            if self.changes(slot, key, &last).is_none() {
                return Err(StateError::Corrupt("there are too many keys".into()));
            }
        }
        self.key_rows = keys;
        Ok(())
    }

    fn process_batch(&mut self, batch: &Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let pick = |columns: &[usize]| -> Vec<ArrayRef> {
            columns.iter().map(|&column| batch.column(column).clone()).collect()
        };
        let columns = [pick(&self.plan.keys), pick(&self.plan.compare)].concat();
        self.encode(&columns)?;
        let (keys, compare) = (self.take_keys(), self.take_compare());
        let mut keep = Vec::with_capacity(batch.rows());
        for (row, &slot) in batch.slots.iter().enumerate() {
            let first = |row: usize| {
                context.slots.fetch_query(batch.slots[row]);
                self.last.fetch_slot(batch.slots[row]);
            };
            let second = |row: usize| {
                self.last.of_slot_alone(batch.slots[row]).into_iter().for_each(|last| fetch(&**last));
            };
            fetch_ahead(row, batch.rows(), first, second);
            let key = keys.as_ref().map_or(&[][..], |keys| keys.row(row).data());
            let values = compare.as_ref().map_or(&[][..], |compare| compare.row(row).data());
            // Rows of a query that is gone must not leave state behind for the slot's next query.
            let is_kept = context.slots.query(slot).is_some()
                && self.changes(slot, key, values).unwrap_or_else(|| {
                    context.refusals.refuse_row(None, batch, row, Reason::Expression, || {
                        format!(
                            "EMIT ON CHANGE remembers at most {SLOT_KEYS_MAX} keys of a query\nhint: group by a column with fewer values"
                        )
                    });
                    false
                });
            keep.push(is_kept);
        }
        if let Some(keys) = keys {
            self.key_rows = keys;
        }
        if let Some(compare) = compare {
            self.compare_rows = compare;
        }
        if !keep.contains(&true) {
            return Ok(());
        }
        let output = &self.plan.output;
        let columns = batch.columns.columns()[..output.fields().len()].to_vec();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
        let passed = batch.with_columns(RecordBatch::try_new_with_options(output.clone(), columns, &options)?);
        context.emit(match keep.contains(&false) {
            true => passed.filter(&BooleanArray::from(keep))?,
            false => passed,
        });
        Ok(())
    }

    /// Encodes the columns, of which the keys come first and then the compared ones.
    fn encode(&mut self, columns: &[ArrayRef]) -> Result<(), arrow::error::ArrowError> {
        let (keys, compare) = columns.split_at(self.plan.keys.len());
        if !keys.is_empty() {
            self.key_bytes.encode(keys, &mut self.key_rows)?;
        }
        if !compare.is_empty() {
            self.compare_bytes.encode(compare, &mut self.compare_rows)?;
        }
        Ok(())
    }

    fn take_keys(&mut self) -> Option<Rows> {
        (!self.plan.keys.is_empty()).then(|| std::mem::replace(&mut self.key_rows, self.key_bytes.buffer()))
    }

    fn take_compare(&mut self) -> Option<Rows> {
        (!self.plan.compare.is_empty()).then(|| std::mem::replace(&mut self.compare_rows, self.compare_bytes.buffer()))
    }

    /// Whether these values differ from the last ones. Keeps them as the last ones. `None` if there are too many keys.
    fn changes(&mut self, slot: Slot, key: &[u8], values: &[u8]) -> Option<bool> {
        let (place, is_new) = match self.last.find(slot, key) {
            Some(place) => (place, false),
            None => (self.last.create(slot, key)?, true),
        };
        if !is_new && **self.last.value(place) == *values {
            return Some(false);
        }
        if is_new {
            self.grow(slot);
            self.heap_bytes += key.len();
        }
        put(self.last.value_mut(place), values, &mut self.heap_bytes);
        Some(true)
    }

    fn grow(&mut self, slot: Slot) {
        grow(&mut self.key_hashes, slot as usize + 1, || 0);
    }

    fn remove_slot(&mut self, slot: Slot) {
        self.last.remove_slot(slot, |key, last| self.heap_bytes -= key.len() + last.len());
    }

    fn state_schema(&self) -> SchemaRef {
        let type_of = |&column: &usize| self.plan.input.field(column).data_type();
        let mut fields = key_fields(self.plan.keys.iter().map(type_of));
        let last = self.plan.compare.iter().map(type_of).enumerate();
        fields.extend(last.map(|(index, one)| Field::new(format!("last_{index}"), one.clone(), true)));
        Arc::new(Schema::new(fields))
    }
}

/// Replaces remembered bytes, in the same memory if the length is the same.
fn put(last: &mut Box<[u8]>, values: &[u8], heap_bytes: &mut usize) {
    if last.len() == values.len() {
        last.copy_from_slice(values);
    } else {
        *heap_bytes = *heap_bytes - last.len() + values.len();
        *last = values.into();
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, Int64Array, StringArray};
    use arrow::datatypes::DataType;
    use rivulet_dataflow::{KeyGroups, Refusals, SlotTable};

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("action", DataType::Utf8, true),
            Field::new("level", DataType::Float64, true),
            Field::new("room", DataType::Utf8, true),
        ]))
    }

    fn table() -> SlotTable {
        parameter_table("unused", Arc::new(Int64Array::from(vec![0; 4])))
    }

    /// Slot, time, action, level, room.
    type TestRow<'a> = (Slot, i64, Option<&'a str>, Option<f64>, &'a str);

    fn rows(rows: &[TestRow<'_>]) -> Batch {
        batch(
            &rows.iter().map(|row| (row.0, row.1)).collect::<Vec<_>>(),
            vec![
                Arc::new(rows.iter().map(|row| row.2).collect::<StringArray>()),
                Arc::new(rows.iter().map(|row| row.3).collect::<Float64Array>()),
                Arc::new(rows.iter().map(|row| Some(row.4)).collect::<StringArray>()),
            ],
        )
    }

    fn run(operator: &mut dyn Operator, element: Element) -> Vec<i64> {
        let (table, mut refusals, mut output) = (table(), Refusals::new(0), Vec::new());
        operator.process(element, &mut process_context(&table, &mut refusals, &mut output)).unwrap();
        output.iter().flat_map(|batch| batch.event_time_us.to_vec()).collect()
    }

    #[test]
    fn null_equals_null_and_nan_equals_nan() {
        let factory = ChangeOnly::new(schema(), vec![], vec![0, 1], 2).unwrap();
        let mut operator = factory.create();
        let nan = Some(f64::NAN);
        let batch = rows(&[
            (1, 10, None, None, ""),
            (1, 11, None, None, ""),
            (1, 12, None, nan, ""),
            (2, 13, None, nan, ""),
            (1, 14, None, nan.map(|nan| -nan), ""),
            (1, 15, Some(""), nan, ""),
            (1, 16, Some("on"), Some(0.0), ""),
            (1, 17, Some("on"), Some(-0.0), ""),
        ]);
        assert_eq!(run(operator.as_mut(), Element::Batch(batch)), [10, 12, 13, 15, 16]);
        assert_eq!(factory.output_schema().fields().len(), 2);
    }

    #[test]
    fn each_key_has_its_own_last_row_across_batches() {
        let mut operator = ChangeOnly::new(schema(), vec![2], vec![0], 1).unwrap().create();
        let passed = |operator: &mut dyn Operator, time, action, room| {
            !run(operator, Element::Batch(rows(&[(3, time, Some(action), None, room)]))).is_empty()
        };
        let operator = operator.as_mut();
        assert!(passed(operator, 1, "on", "kitchen"));
        assert!(passed(operator, 2, "on", "hall"));
        assert!(!passed(operator, 3, "on", "kitchen"));
        assert!(passed(operator, 4, "off and more", "kitchen"));
        assert!(!passed(operator, 5, "on", "hall"));
        assert!(passed(operator, 6, "on", "kitchen"));
    }

    #[test]
    fn rows_of_a_query_with_too_many_keys_are_refused_and_counted() {
        let mut operator = ChangeOnly::new(schema(), vec![2], vec![0], 1).unwrap().create();
        let rooms: Vec<String> = (0..=SLOT_KEYS_MAX).map(|room| room.to_string()).collect();
        let ever_new: Vec<TestRow<'_>> = rooms.iter().map(|room| (0, 1, Some("on"), None, room.as_str())).collect();
        run(operator.as_mut(), Element::Batch(rows(&ever_new[..SLOT_KEYS_MAX])));
        let (table, mut refusals, mut output) = (table(), Refusals::new(1), Vec::new());
        let mut last = vec![ever_new[SLOT_KEYS_MAX]; 2];
        last[1].0 = 1;
        last.push((0, 1, Some("off"), None, "7"));
        let mut context = process_context(&table, &mut refusals, &mut output);
        operator.process(Element::Batch(rows(&last)), &mut context).unwrap();
        assert_eq!(output[0].slots.to_vec(), [1, 0], "another query, and a key that is known");
        assert_eq!((refusals.counted(Reason::Expression), refusals.records()[0].slot), (1, 0));
        assert!(refusals.records()[0].detail.contains("hint:"), "{}", refusals.records()[0].detail);
    }

    #[test]
    fn removed_slots_are_forgotten_with_their_memory() {
        for keys in [vec![], vec![2]] {
            let mut operator = ChangeOnly::new(schema(), keys, vec![0], 1).unwrap().create();
            let batch = rows(&[(0, 1, Some("on"), None, "a"), (1, 2, Some("on"), None, "b")]);
            assert_eq!(run(operator.as_mut(), Element::Batch(batch.clone())).len(), 2);
            run(operator.as_mut(), Element::Control(Control::RemoveSlots(vec![0, 3])));
            assert_eq!(run(operator.as_mut(), Element::Batch(batch)), [1]);
        }
    }

    #[test]
    fn a_query_that_is_gone_leaves_nothing_behind() {
        let mut operator = ChangeOnly::new(schema(), vec![], vec![0], 1).unwrap().create();
        let mut table = table();
        table.retire(&[1]);
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        operator.process(Element::Batch(rows(&[(1, 1, Some("on"), None, "")])), &mut context).unwrap();
        assert!(output.is_empty());
        assert_eq!(operator.export_state(&StateSelection::All).unwrap().unwrap().rows.num_rows(), 0);
    }

    #[test]
    fn state_moves_by_slot_and_key_group() {
        for keys in [vec![], vec![2]] {
            let factory = ChangeOnly::new(schema(), keys, vec![0, 1], 2).unwrap();
            let mut first = factory.create();
            run(first.as_mut(), Element::Control(Control::AddSlots(vec![0, 1, 2])));
            let batch = rows(&[(0, 1, Some("on"), None, "a"), (1, 2, None, Some(2.0), "b"), (2, 3, None, None, "c")]);
            run(first.as_mut(), Element::Batch(batch.clone()));

            let mut second = factory.create();
            let slots = first.export_state(&StateSelection::Slots(vec![0, 2])).unwrap().unwrap();
            let slots = StateFrame::from_bytes(&slots.to_bytes().unwrap()).unwrap();
            second.import_state(&slots).unwrap();
            assert_eq!(run(second.as_mut(), Element::Batch(batch.clone())), [2]);

            let mut third = factory.create();
            for range in [0..100, 100..256] {
                let selection = StateSelection::KeyGroups(KeyGroups::default(), range);
                let part = first.export_state(&selection).unwrap().unwrap();
                third.import_state(&part).unwrap();
            }
            assert!(run(third.as_mut(), Element::Batch(batch)).is_empty());
        }
    }

    #[test]
    fn state_of_other_columns_is_refused() {
        let first = ChangeOnly::new(schema(), vec![], vec![0], 1).unwrap().create();
        let frame = first.export_state(&StateSelection::All).unwrap().unwrap();
        let mut second = ChangeOnly::new(schema(), vec![], vec![1], 1).unwrap().create();
        assert!(matches!(second.import_state(&frame), Err(StateError::Mismatch(_))));
        assert!(ChangeOnly::new(schema(), vec![9], vec![], 1).is_err());
        assert!(ChangeOnly::new(schema(), vec![], vec![], 4).is_err());
    }
}
