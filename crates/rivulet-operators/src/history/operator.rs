//! The operator of `history`: what it remembers, and how it computes a row's columns.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
    UInt16Array, UInt32Array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::Rows;
use rivulet_dataflow::{
    Batch, Context, Control, Element, KeyGroup, Operator, OperatorError, Reason, Refused, Slot, StateError, StateFrame,
    StateSelection,
};

use super::{Kind, Plan, PlannedColumn};
use crate::aggregate::Storage;
use crate::keyed::Keyed;
use crate::row_bytes::{RowBytes, canonical_float};

/// The most slots of one operator; state that names a higher one is corrupt.
const SLOTS_MAX: usize = 1 << 26;
const OPERATOR: &str = "history";
const VERSION: u32 = 1;

/// A remembered value.
#[derive(Clone, Debug, Default, PartialEq)]
enum Value {
    #[default]
    Null,
    /// The bits of a number, time or boolean.
    Word(u64),
    Text(Box<str>),
}

impl Value {
    /// The value in a row of an array whose type is that of the storage.
    fn read(array: &ArrayRef, storage: Storage, row: usize) -> Self {
        if array.is_null(row) {
            return Self::Null;
        }
        match storage {
            Storage::Float => Self::Word(array.as_primitive::<Float64Type>().value(row).to_bits()),
            Storage::Text => Self::Text(array.as_string::<i32>().value(row).into()),
            _ => Self::Word(array.as_primitive::<Int64Type>().value(row) as u64),
        }
    }

    /// An array whose type is that of the storage.
    fn array<'a>(values: impl Iterator<Item = &'a Self>, storage: Storage) -> ArrayRef {
        let word = |value: &Self| match value {
            Self::Word(word) => Some(*word),
            _ => None,
        };
        match storage {
            Storage::Float => Arc::new(values.map(|value| word(value).map(f64::from_bits)).collect::<Float64Array>()),
            Storage::Text => Arc::new(
                values
                    .map(|value| match value {
                        Self::Text(text) => Some(&**text),
                        _ => None,
                    })
                    .collect::<StringArray>(),
            ),
            _ => Arc::new(values.map(|value| word(value).map(|word| word as i64)).collect::<Int64Array>()),
        }
    }

    /// Whether SQL would put both into one group.
    fn equals(&self, other: &Self, storage: Storage) -> bool {
        match (self, other) {
            (Self::Word(a), Self::Word(b)) if storage == Storage::Float => {
                canonical_float(f64::from_bits(*a)).to_bits() == canonical_float(f64::from_bits(*b)).to_bits()
            }
            _ => self == other,
        }
    }

    fn heap_bytes(&self) -> usize {
        if let Self::Text(text) = self { text.len() } else { 0 }
    }
}

/// What is remembered of a slot or key: nothing until its first row.
type Memory = Box<[Value]>;

pub(super) struct HistoryOperator {
    plan: Arc<Plan>,
    key_bytes: RowBytes,
    /// The keys of the batch at hand, kept for their memory.
    key_rows: Rows,
    /// Without keys, by slot: the key group of the query, and what is remembered.
    slots: Vec<(u16, Memory)>,
    keyed: Keyed<Memory>,
    key_heap_bytes: usize,
}

/// The values of a computed column.
enum Computed {
    Values(Vec<Value>),
    Flags(Vec<bool>),
}

impl Operator for HistoryOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.process_batch(batch, context),
            Element::Control(Control::RemoveSlots(slots)) => {
                slots.into_iter().for_each(|slot| self.remove_slot(slot));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let (mut slots, mut key_groups, mut keys, mut memories) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut add_slot = |slot: usize| {
            let mut add = |key_group: u16, key, memory| {
                if !matches!(selection, StateSelection::KeyGroups(range) if !range.contains(&key_group)) {
                    slots.push(slot as Slot);
                    key_groups.push(key_group);
                    keys.push(key);
                    memories.push(memory);
                }
            };
            if let Some((key_group, memory)) = self.slots.get(slot).filter(|(_, memory)| !memory.is_empty()) {
                add(*key_group, &[][..], memory);
            }
            self.keyed.of_slot(slot).for_each(|(key, memory)| add(KeyGroup::of(key).index(), key, memory));
        };
        match selection {
            StateSelection::Slots(slots) => slots.iter().for_each(|&slot| add_slot(slot as usize)),
            _ => (0..self.slots.len().max(self.keyed.slots())).for_each(add_slot),
        }
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from(slots)), Arc::new(UInt16Array::from(key_groups))];
        if self.is_keyed() {
            columns.extend(self.key_bytes.decode(keys.into_iter())?);
        }
        for (index, storage) in self.plan.state.iter().enumerate() {
            columns.push(Value::array(memories.iter().map(|memory| &memory[index]), *storage));
        }
        Ok(Some(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(self.state_schema(), columns)?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect(OPERATOR, VERSION)?;
        if frame.rows.schema_ref().fields() != self.state_schema().fields() {
            return Err(StateError::Mismatch("the remembered values belong to other columns than these".into()));
        }
        let columns = frame.rows.columns();
        if columns[..2].iter().any(|column| column.null_count() > 0) {
            return Err(StateError::Corrupt("a slot or key group is missing".into()));
        }
        if frame.slots().iter().any(|&slot| slot as usize >= SLOTS_MAX) {
            return Err(StateError::Corrupt("a slot number is too high".into()));
        }
        let keys = self.plan.key_types.len();
        let mut key_rows = self.key_bytes.buffer();
        if keys > 0 {
            self.key_bytes.encode(&columns[2..2 + keys], &mut key_rows)?;
        }
        frame.slots().iter().for_each(|&slot| self.remove_slot(slot));
        for row in 0..frame.rows.num_rows() {
            let key: &[u8] = if keys > 0 { key_rows.row(row).data() } else { &[] };
            let values = columns[2 + keys..].iter().zip(&self.plan.state);
            let values = values.map(|(column, storage)| Value::read(column, *storage, row)).collect();
            let (slot, key_group) = (frame.slots()[row], frame.key_groups()[row]);
            *self
                .memory(slot, key, key_group)
                .ok_or_else(|| StateError::Corrupt("there are too many keys".into()))? = values;
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        let of =
            |memory: &Memory| size_of::<Value>() * memory.len() + memory.iter().map(Value::heap_bytes).sum::<usize>();
        let keyed = (0..self.keyed.slots()).flat_map(|slot| self.keyed.of_slot(slot));
        self.slots.iter().map(|(_, memory)| of(memory)).sum::<usize>()
            + keyed.map(|(_, memory)| of(memory)).sum::<usize>()
            + self.slots.capacity() * size_of::<(u16, Memory)>()
            + self.keyed.memory_bytes()
            + self.key_heap_bytes
            + self.key_rows.size()
            + self.key_bytes.memory_bytes()
    }
}

impl HistoryOperator {
    pub(super) fn new(plan: Arc<Plan>) -> Self {
        let key_bytes =
            RowBytes::new(plan.key_types.iter()).expect("the types of keys are checked when the plan is made");
        Self {
            plan,
            key_rows: key_bytes.buffer(),
            key_bytes,
            slots: Vec::new(),
            keyed: Keyed::default(),
            key_heap_bytes: 0,
        }
    }

    fn is_keyed(&self) -> bool {
        !self.plan.key_types.is_empty()
    }

    fn process_batch(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let (batch, columns) = self.plan.expressions.evaluate(batch, context)?;
        if batch.is_empty() {
            return Ok(());
        }
        let plan = self.plan.clone();
        let (keys, arguments) = columns.split_at(plan.key_types.len());
        let mut key_rows = std::mem::replace(&mut self.key_rows, self.key_bytes.buffer());
        if !keys.is_empty() {
            self.key_bytes.encode(keys, &mut key_rows)?;
        }
        let arguments = arguments
            .iter()
            .zip(&plan.targets)
            .map(|(argument, target)| cast(argument, &target.data_type()))
            .collect::<Result<Vec<_>, ArrowError>>()?;
        let rows = batch.rows();
        let mut computed: Vec<Computed> = plan
            .columns
            .iter()
            .map(|column| match column.kind {
                Kind::Lag(_) => Computed::Values(Vec::with_capacity(rows)),
                Kind::Changed | Kind::Hysteresis => Computed::Flags(Vec::with_capacity(rows)),
            })
            .collect();
        let mut keep = Vec::with_capacity(rows);
        for (row, &slot) in batch.slots.iter().enumerate() {
            let key: &[u8] = if keys.is_empty() { &[] } else { key_rows.row(row).data() };
            // Rows of a query that is gone must not leave state behind for the slot's next query.
            let memory = match context.slots.query(slot) {
                None => None,
                Some(query) => {
                    let memory = self.memory(slot, key, KeyGroup::of(&query.to_le_bytes()).index());
                    if memory.is_none() {
                        context.refusals.refuse(slot, Reason::Expression, batch.arrival_us[row], || {
                            let hint =
                                "there are too many keys at once\nhint: use a column with fewer values as the key";
                            (hint.into(), Refused::Row(Box::new(batch.slice(row, 1))))
                        });
                    }
                    memory
                }
            };
            keep.push(memory.is_some());
            let Some(memory) = memory else { continue };
            let is_first = memory.is_empty();
            if is_first {
                *memory = vec![Value::Null; plan.state.len()].into();
            }
            for (column, computed) in plan.columns.iter().zip(&mut computed) {
                column.compute(&plan, &arguments, row, is_first, memory, computed);
            }
        }
        self.key_rows = key_rows;
        if !keep.contains(&true) {
            return Ok(());
        }
        let keep = BooleanArray::from(keep);
        let batch = if keep.true_count() < rows { batch.filter(&keep)? } else { batch };
        let mut columns = batch.columns.columns().to_vec();
        for ((column, computed), field) in
            plan.columns.iter().zip(computed).zip(&plan.output.fields()[plan.input_columns..])
        {
            columns.push(match computed {
                Computed::Flags(flags) => Arc::new(BooleanArray::from(flags)),
                Computed::Values(values) => {
                    cast(&Value::array(values.iter(), plan.targets[column.argument]), field.data_type())?
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
        context.emit(batch.with_columns(RecordBatch::try_new_with_options(plan.output.clone(), columns, &options)?));
        Ok(())
    }

    /// What is remembered of a slot's key, empty if that is new; `None` if there are too many keys.
    fn memory(&mut self, slot: Slot, key: &[u8], key_group: u16) -> Option<&mut Memory> {
        if self.is_keyed() {
            let place = match self.keyed.find(slot, key) {
                Some(place) => place,
                None => {
                    let place = self.keyed.create(slot, key)?;
                    self.key_heap_bytes += key.len();
                    place
                }
            };
            return Some(self.keyed.value_mut(place));
        }
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, Default::default);
        }
        let (known_group, memory) = &mut self.slots[slot];
        if memory.is_empty() {
            *known_group = key_group;
        }
        Some(memory)
    }

    fn remove_slot(&mut self, slot: Slot) {
        if let Some(memory) = self.slots.get_mut(slot as usize) {
            *memory = Default::default();
        }
        self.keyed.remove_slot(slot, |key, _| self.key_heap_bytes -= key.len());
    }

    fn state_schema(&self) -> SchemaRef {
        let mut fields =
            vec![Field::new("slot", DataType::UInt32, false), Field::new("key_group", DataType::UInt16, false)];
        let keys = self.plan.key_types.iter().enumerate();
        fields.extend(keys.map(|(index, data_type)| Field::new(format!("key_{index}"), data_type.clone(), true)));
        let values = self.plan.state.iter().enumerate();
        fields.extend(values.map(|(index, storage)| Field::new(format!("value_{index}"), storage.data_type(), true)));
        Arc::new(Schema::new(fields))
    }
}

impl PlannedColumn {
    /// Computes the column for a row and remembers what the next row needs.
    fn compute(
        &self,
        plan: &Plan,
        arguments: &[ArrayRef],
        row: usize,
        is_first: bool,
        memory: &mut [Value],
        computed: &mut Computed,
    ) {
        let storage = plan.targets[self.argument];
        let value = |argument: usize| Value::read(&arguments[self.argument + argument], storage, row);
        match (self.kind, computed) {
            (Kind::Lag(rows), Computed::Values(values)) => {
                let last = &mut memory[self.state..self.state + rows];
                last.rotate_right(1);
                values.push(std::mem::replace(&mut last[0], value(0)));
            }
            (Kind::Changed, Computed::Flags(flags)) => {
                let (value, last) = (value(0), &mut memory[self.state]);
                flags.push(is_first || !value.equals(last, storage));
                *last = value;
            }
            (Kind::Hysteresis, Computed::Flags(flags)) => {
                let state = &mut memory[self.state];
                if let (Value::Word(value), Value::Word(low), Value::Word(high)) = (value(0), value(1), value(2)) {
                    let [value, low, high] = [value, low, high].map(f64::from_bits);
                    if value >= high {
                        *state = Value::Word(1);
                    } else if value <= low {
                        *state = Value::Word(0);
                    }
                }
                flags.push(*state == Value::Word(1));
            }
            _ => unreachable!("each kind computes columns of its form"),
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion_physical_expr::PhysicalExpr;
    use datafusion_physical_expr::expressions::{Column, lit};
    use proptest::prelude::*;
    use rivulet_dataflow::{OperatorFactory, Refusals};

    use super::*;
    use crate::expression::{Expressions, NamedExpression};
    use crate::history::{History, HistoryColumn, HistoryFunction};
    use crate::testing::{batch, parameter_table, process_context};

    /// slot, value, text, key
    type TestRow = (Slot, Option<f64>, Option<&'static str>, i64);

    /// What comes out of a row: `lag(value, 2)`, `lag(text, 1)`, `changed(value)`, `hysteresis(value, -1, $high)`.
    type Result4 = (Option<f64>, Option<String>, bool, bool);

    fn input() -> Schema {
        Schema::new(vec![
            Field::new("value", DataType::Float64, true),
            Field::new("text", DataType::Utf8, true),
            Field::new("key", DataType::Int64, true),
        ])
    }

    fn parameters() -> Schema {
        Schema::new(vec![Field::new("high", DataType::Int64, true)])
    }

    fn history(keyed: bool) -> History {
        let column = |index: usize| -> Arc<dyn PhysicalExpr> {
            let schema = Expressions::evaluation_schema(&input(), &parameters(), &[0]);
            Arc::new(Column::new(schema.field(index).name(), index))
        };
        let named = |name: &str, function| HistoryColumn { name: name.into(), function };
        let columns = vec![
            named("before", HistoryFunction::Lag { value: column(0), rows: 2 }),
            named("text_before", HistoryFunction::Lag { value: column(1), rows: 1 }),
            named("is_other", HistoryFunction::Changed { value: column(0) }),
            named("on", HistoryFunction::Hysteresis { value: column(0), low: lit(-1.0), high: column(3) }),
        ];
        let keys = if keyed { vec![NamedExpression::new("key", column(2))] } else { vec![] };
        History::new(&input(), &parameters(), vec![0], keys, columns).unwrap()
    }

    fn table() -> rivulet_dataflow::SlotTable {
        parameter_table("high", Arc::new(Int64Array::from(vec![1, 2, 3])))
    }

    fn rows(rows: &[TestRow]) -> Batch {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(rows.iter().map(|row| row.1).collect::<Float64Array>()),
            Arc::new(rows.iter().map(|row| row.2).collect::<StringArray>()),
            Arc::new(rows.iter().map(|row| Some(row.3)).collect::<Int64Array>()),
        ];
        batch(&rows.iter().enumerate().map(|(time, row)| (row.0, time as i64)).collect::<Vec<_>>(), columns)
    }

    fn process(operator: &mut dyn Operator, element: Element) -> Vec<Result4> {
        let (table, mut refusals, mut output) = (table(), Refusals::new(0), Vec::new());
        operator.process(element, &mut process_context(&table, &mut refusals, &mut output)).unwrap();
        assert!(refusals.is_empty());
        let read = |batch: &Batch, row: usize| {
            let number = batch.column(3).as_primitive::<Float64Type>();
            let text = batch.column(4).as_string::<i32>();
            (
                number.is_valid(row).then(|| number.value(row)),
                text.is_valid(row).then(|| text.value(row).to_owned()),
                batch.column(5).as_boolean().value(row),
                batch.column(6).as_boolean().value(row),
            )
        };
        output.iter().flat_map(|batch| (0..batch.rows()).map(move |row| read(batch, row))).collect()
    }

    /// Computed for each row from all rows before it.
    fn model(rows: &[TestRow], keyed: bool) -> Vec<Result4> {
        let of = |index: usize| {
            let row = rows[index];
            let same = |other: &&TestRow| other.0 == row.0 && (!keyed || other.3 == row.3);
            let before: Vec<&TestRow> = rows[..index].iter().filter(same).collect();
            let high = f64::from(row.0 + 1);
            let decisive = before.iter().copied().chain([&row]).rev();
            let on = decisive.filter_map(|row| row.1).find(|value| *value >= high || *value <= -1.0);
            (
                before.iter().rev().nth(1).and_then(|row| row.1),
                before.last().and_then(|row| row.2).map(str::to_owned),
                before.last().is_none_or(|last| last.1 != row.1),
                on.is_some_and(|value| value >= high),
            )
        };
        (0..rows.len()).map(of).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn columns_are_those_of_the_model_however_rows_are_cut_and_state_is_moved(
            raw in prop::collection::vec(
                (
                    0..3u32,
                    prop::option::weighted(0.8, -3..5i8),
                    prop::sample::select(vec![None, Some(""), Some("a longer text than eight"), Some("b")]),
                    0..2i64,
                ),
                0..60,
            ),
            cuts in prop::collection::vec((0..60usize, any::<bool>()), 0..8),
            keyed in any::<bool>(),
        ) {
            let all: Vec<TestRow> = raw.into_iter().map(|row| (row.0, row.1.map(f64::from), row.2, row.3)).collect();
            let factory = history(keyed);
            let (mut operator, mut found, mut done) = (factory.create(), Vec::new(), 0);
            let mut cuts = cuts;
            cuts.sort_unstable();
            for (at, moves) in cuts.into_iter().chain([(all.len(), false)]) {
                let at = at.clamp(done, all.len());
                found.extend(process(operator.as_mut(), Element::Batch(rows(&all[done..at]))));
                done = at;
                if moves {
                    let parts = [0..100, 100..256].map(|groups| {
                        let part = operator.export_state(&StateSelection::KeyGroups(groups)).unwrap().unwrap();
                        StateFrame::from_bytes(&part.to_bytes().unwrap()).unwrap()
                    });
                    let slots = operator.export_state(&StateSelection::Slots(vec![0, 1, 2])).unwrap().unwrap();
                    let in_parts: usize = parts.iter().map(|part| part.rows.num_rows()).sum();
                    prop_assert_eq!(in_parts, slots.rows.num_rows());
                    operator = factory.create();
                    operator.import_state(&slots).unwrap();
                }
            }
            prop_assert_eq!(found, model(&all, keyed));
        }
    }

    #[test]
    fn nan_is_no_change_and_a_null_of_hysteresis_keeps_it() {
        let mut operator = history(false).create();
        let values = [Some(f64::NAN), Some(-f64::NAN), None, None, Some(1.0), None, Some(0.0), Some(-0.0), Some(-1.0)];
        let all: Vec<TestRow> = values.iter().map(|value| (0, *value, None, 0)).collect();
        let found = process(operator.as_mut(), Element::Batch(rows(&all)));
        let (changed, on): (Vec<bool>, Vec<bool>) = found.iter().map(|row| (row.2, row.3)).unzip();
        assert_eq!(changed, [true, false, true, false, true, true, true, false, true]);
        assert_eq!(on, [false, false, false, false, true, true, true, true, false]);
    }

    #[test]
    fn a_removed_slot_leaves_nothing_to_its_successor() {
        for keyed in [false, true] {
            let mut operator = history(keyed).create();
            let two = rows(&[(0, Some(5.0), Some("a text"), 1), (1, Some(5.0), None, 1)]);
            process(operator.as_mut(), Element::Batch(two.clone()));
            process(operator.as_mut(), Element::Control(Control::RemoveSlots(vec![0, 2])));
            let found = process(operator.as_mut(), Element::Batch(two));
            assert_eq!(found, [(None, None, true, true), (None, None, false, true)]);
            process(operator.as_mut(), Element::Control(Control::RemoveSlots(vec![0, 1])));
            let frame = operator.export_state(&StateSelection::All).unwrap().unwrap();
            assert_eq!(frame.rows.num_rows(), 0);
        }
    }

    #[test]
    fn wrong_arguments_are_refused_when_planning() {
        let lag = |rows, value| {
            let function = HistoryFunction::Lag { value, rows };
            History::new(&input(), &parameters(), vec![], vec![], vec![HistoryColumn { name: "c".into(), function }])
        };
        assert!(lag(1, lit(1.0)).is_ok());
        let error = lag(0, lit(1.0)).err().unwrap().to_string();
        assert!(error.contains("0 rows") && error.contains("hint:"), "{error}");
        let text = || lit("text");
        let function = HistoryFunction::Hysteresis { value: text(), low: text(), high: text() };
        let columns = vec![HistoryColumn { name: "c".into(), function }];
        let error = History::new(&input(), &parameters(), vec![], vec![], columns).err().unwrap().to_string();
        assert!(error.contains("does not take an argument of type Utf8"), "{error}");
    }

    #[test]
    fn state_of_other_columns_is_refused() {
        let frame = history(false).create().export_state(&StateSelection::All).unwrap().unwrap();
        assert!(matches!(history(true).create().import_state(&frame), Err(StateError::Mismatch(_))));
    }
}
