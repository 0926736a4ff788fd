//! The operator of history functions: what it remembers, and how it computes a row's columns.

use std::mem::{size_of, size_of_val};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, RecordBatch, RecordBatchOptions, UInt16Array, UInt32Array,
};
use arrow::compute::cast;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::Rows;
use rivulet_dataflow::times::{at, span};
use rivulet_dataflow::{
    Batch, Context, Control, Element, KeyHash, Operator, OperatorError, Reason, Slot, StateError, StateFrame,
    StateSelection, fetch, fetch_ahead,
};

use super::plan::{Kind, Plan, PlannedColumn};
use super::value::{Builder, Value, Values};
use crate::keyed::{Keyed, SLOT_KEYS_MAX, key_fields};
use crate::row_bytes::RowBytes;

pub(super) const OPERATOR: &str = "history";
const VERSION: u32 = 1;

pub(super) struct HistoryOperator {
    plan: Arc<Plan>,
    key_bytes: RowBytes,
    /// The keys of the current batch. The buffer is kept to reuse its memory.
    key_rows: Rows,
    /// Without keys, by slot: the key group of the query; `None` until its first row.
    key_hashes: Vec<Option<u16>>,
    /// Without keys, by slot: the remembered values, as many as the plan says.
    slots: Vec<Value>,
    /// The panes of the aggregates of a row. The buffer is kept to reuse its memory.
    panes: Vec<u64>,
    /// With keys: the remembered values of each key.
    keyed: Keyed<Box<[Value]>>,
    key_heap_bytes: usize,
}

/// A computed column of a batch.
enum Computed {
    Values(Builder),
    /// For each row the window of its aggregate.
    Windows(Vec<u64>),
}

/// The remembered values of a slot or key, and whether there were none until now.
type Memory<'a> = (&'a mut [Value], bool);

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

    fn key_hashes(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(Batch, Vec<u16>), OperatorError> {
        let (batch, keys) = self.plan.expressions.evaluate_first(self.plan.key_types.len(), batch, context)?;
        let key_hashes = self.key_bytes.key_hashes(&keys, &mut self.key_rows)?;
        Ok((batch, key_hashes))
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let (mut slots, mut key_hashes, mut keys, mut memories) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let add_slot = |slot: usize| {
            let mut add = |key_hash: u16, key, memory| {
                if selection.selects_key(KeyHash::from_bits(key_hash)) {
                    slots.push(slot as Slot);
                    key_hashes.push(key_hash);
                    keys.push(key);
                    memories.push(memory);
                }
            };
            if let Some(Some(key_hash)) = self.key_hashes.get(slot) {
                add(*key_hash, &[][..], &self.slots[self.places(slot)]);
            }
            self.keyed.of_slot(slot).for_each(|(key, memory)| add(KeyHash::of(key).bits(), key, memory));
        };
        selection.for_each_slot(self.key_hashes.len().max(self.keyed.slots()), add_slot);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from(slots)), Arc::new(UInt16Array::from(key_hashes))];
        if self.is_keyed() {
            columns.extend(self.key_bytes.decode(keys.into_iter())?);
        }
        for (index, storage) in self.plan.state.iter().enumerate() {
            let mut values = Builder::values(*storage, memories.len());
            memories.iter().for_each(|memory| values.push(&memory[index]));
            columns.push(values.finish());
        }
        Ok(Some(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(self.state_schema(), columns)?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.keyed.begin_import();
        let imported = self.import(frame);
        self.keyed.end_import();
        imported
    }

    fn memory_bytes(&self) -> usize {
        let texts = |memory: &[Value]| memory.iter().map(Value::heap_bytes).sum::<usize>();
        let keyed = (0..self.keyed.slots()).flat_map(|slot| self.keyed.of_slot(slot));
        self.slots.capacity() * size_of::<Value>()
            + texts(&self.slots)
            + self.key_hashes.capacity() * size_of::<Option<u16>>()
            + keyed.map(|(_, memory)| size_of_val(&**memory) + texts(memory)).sum::<usize>()
            + self.keyed.memory_bytes()
            + self.key_heap_bytes
            + self.panes.capacity() * size_of::<u64>()
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
            key_hashes: Vec::new(),
            slots: Vec::new(),
            panes: Vec::new(),
            keyed: Keyed::new(true),
            key_heap_bytes: 0,
        }
    }

    fn import(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let mismatch = "the remembered values belong to other columns than these";
        frame.expect_rows(OPERATOR, VERSION, &self.state_schema(), mismatch)?;
        let columns = frame.rows.columns();
        let keys = self.plan.key_types.len();
        let mut key_rows = self.key_bytes.buffer();
        if keys > 0 {
            self.key_bytes.encode(&columns[2..2 + keys], &mut key_rows)?;
        }
        frame.slots().iter().for_each(|&slot| self.remove_slot(slot));
        let values = columns[2 + keys..].iter().zip(&self.plan.state);
        let values: Vec<_> = values.map(|(column, storage)| Values::new(column, *storage)).collect();
        for row in 0..frame.rows.num_rows() {
            let key: &[u8] = if keys > 0 { key_rows.row(row).data() } else { &[] };
            let (memory, _) = self
                .memory(frame.slots()[row], key, || frame.key_groups()[row])
                .ok_or_else(|| StateError::Corrupt("there are too many keys".into()))?;
            values.iter().zip(memory).for_each(|(values, value)| values.store(row, value));
        }
        Ok(())
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
        let (arguments, of_overs) = arguments.split_at(plan.targets.len());
        let mut key_rows = std::mem::replace(&mut self.key_rows, self.key_bytes.buffer());
        if !keys.is_empty() {
            self.key_bytes.encode(keys, &mut key_rows)?;
        }
        let arguments = arguments.iter().zip(&plan.targets);
        let arguments = arguments
            .map(|(argument, target)| Ok(Values::new(&cast(argument, &target.data_type())?, *target)))
            .collect::<Result<Vec<_>, ArrowError>>()?;
        let rows = batch.rows();
        let of_overs: Vec<_> = plan.overs.iter().map(|over| over.prepare(of_overs)).collect::<Result<_, _>>()?;
        let updates: Vec<_> = plan.overs.iter().zip(&of_overs).map(|(over, values)| over.updates(values)).collect();
        let computed = plan.columns.iter().map(|column| match column.kind {
            Kind::Lag(_) | Kind::Extreme(_) => Computed::Values(Builder::values(plan.targets[column.argument], rows)),
            Kind::Changed | Kind::Hysteresis => Computed::Values(Builder::Flags(BooleanBufferBuilder::new(rows))),
            Kind::Over(_) => Computed::Windows(Vec::new()),
        });
        let mut computed: Vec<Computed> = computed.collect();
        let mut panes = std::mem::take(&mut self.panes);
        let mut keep = BooleanBufferBuilder::new(rows);
        for (row, &slot) in batch.slots.iter().enumerate() {
            let first = |row: usize| {
                context.slots.fetch_query(batch.slots[row]);
                self.fetch_slot(batch.slots[row]);
            };
            fetch_ahead(row, batch.rows(), first, |_| {});
            let key: &[u8] = if keys.is_empty() { &[] } else { key_rows.row(row).data() };
            // Rows of a query that is gone must not leave state behind for the slot's next query.
            let memory = match context.slots.query(slot) {
                None => None,
                Some(query) => {
                    let memory = self.memory(slot, key, || KeyHash::of(&query.to_le_bytes()).bits());
                    if memory.is_none() {
                        context.refusals.refuse_row(None, &batch, row, Reason::Expression, || {
                            format!(
                                "there are too many keys: a query has at most {SLOT_KEYS_MAX}\nhint: use a column with \
                                 fewer values as the key"
                            )
                        });
                    }
                    memory
                }
            };
            let time_us = batch.event_time_us[row];
            let memory = memory.and_then(|(memory, is_first)| {
                let Some(place) = plan.last_time else { return Some((memory, is_first)) };
                if let Value::Word(last_us) = memory[place]
                    && time_us < last_us as i64
                {
                    context.refusals.refuse_row(None, &batch, row, Reason::Late, || {
                        format!(
                            "it came behind a later row, and these are in order of event time: its own, {}, is {} \
                             behind\nhint: without ORDER BY rows are in order of arrival",
                            at(time_us),
                            span((last_us as i64).saturating_sub(time_us))
                        )
                    });
                    return None;
                }
                memory[place] = Value::Word(time_us as u64);
                Some((memory, is_first))
            });
            keep.append(memory.is_some());
            let Some((memory, is_first)) = memory else { continue };
            for (column, computed) in plan.columns.iter().zip(&mut computed) {
                match (column.kind, computed) {
                    (Kind::Over(index), Computed::Windows(windows)) => {
                        let (over, updates) = (&plan.overs[index], &updates[index]);
                        let memory = &mut memory[column.state..column.state + over.values()];
                        over.add(updates, (row, time_us), memory, &mut panes, windows);
                    }
                    (_, Computed::Values(values)) => {
                        column.compute(&arguments[column.argument..], row, is_first, memory, values);
                    }
                    _ => unreachable!("each kind has its form"),
                }
            }
        }
        self.key_rows = key_rows;
        self.panes = panes;
        let keep = BooleanArray::new(keep.finish(), None);
        if !keep.has_true() {
            return Ok(());
        }
        let batch = if keep.has_false() { batch.filter(&keep)? } else { batch };
        let mut columns = batch.columns.columns().to_vec();
        let mut failed = Vec::new();
        let fields = &plan.output.fields()[plan.input_columns..];
        for ((computed, column), field) in computed.into_iter().zip(&plan.columns).zip(fields) {
            let found = match (computed, column.kind) {
                (Computed::Windows(windows), Kind::Over(index)) => plan.overs[index].results(&windows, &mut failed)?,
                (Computed::Values(values), _) => values.finish(),
                _ => unreachable!("each kind has its form"),
            };
            columns.push(cast(&found, field.data_type())?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
        let mut made = batch.with_columns(RecordBatch::try_new_with_options(plan.output.clone(), columns, &options)?);
        failed.sort_unstable();
        failed.dedup_by_key(|(row, _)| *row);
        if !failed.is_empty() {
            let mut keep = vec![true; batch.rows()];
            for (row, why) in failed {
                keep[row] = false;
                context.refusals.refuse_row(None, &batch, row, Reason::Expression, || why.to_owned());
            }
            made = made.filter(&BooleanArray::from(keep))?;
        }
        context.emit(made);
        Ok(())
    }

    /// The range of a slot's values in `slots`.
    fn places(&self, slot: usize) -> Range<usize> {
        let values = self.plan.state.len();
        slot * values..(slot + 1) * values
    }

    /// Fetches the data of a slot into the cache.
    fn fetch_slot(&self, slot: Slot) {
        self.key_hashes.get(slot as usize).into_iter().for_each(fetch);
        self.slots.get(self.places(slot as usize).start).into_iter().for_each(fetch);
    }

    /// The remembered values of a slot's key; `None` if there are too many keys.
    fn memory(&mut self, slot: Slot, key: &[u8], key_hash: impl FnOnce() -> u16) -> Option<Memory<'_>> {
        if self.is_keyed() {
            let found = self.keyed.find(slot, key);
            let place = match found {
                Some(place) => place,
                None => {
                    let place = self.keyed.create(slot, key)?;
                    self.key_heap_bytes += key.len();
                    *self.keyed.value_mut(place) = vec![Value::Null; self.plan.state.len()].into();
                    place
                }
            };
            return Some((self.keyed.value_mut(place), found.is_none()));
        }
        let places = self.places(slot as usize);
        if places.end > self.slots.len() {
            self.slots.resize(places.end, Value::Null);
            self.key_hashes.resize(slot as usize + 1, None);
        }
        let known = &mut self.key_hashes[slot as usize];
        let is_first = known.is_none();
        known.get_or_insert_with(key_hash);
        Some((&mut self.slots[places], is_first))
    }

    fn remove_slot(&mut self, slot: Slot) {
        if let Some(key_hash) = self.key_hashes.get_mut(slot as usize) {
            *key_hash = None;
            let places = self.places(slot as usize);
            self.slots[places].fill(Value::Null);
        }
        self.keyed.remove_slot(slot, |key, _| self.key_heap_bytes -= key.len());
    }

    fn state_schema(&self) -> SchemaRef {
        let mut fields = key_fields(&self.plan.key_types);
        let values = self.plan.state.iter().enumerate();
        fields.extend(values.map(|(index, storage)| Field::new(format!("value_{index}"), storage.data_type(), true)));
        Arc::new(Schema::new(fields))
    }
}

impl PlannedColumn {
    /// Computes the column for a row and remembers what the next row needs. `arguments` begin with those of this
    /// column.
    fn compute(&self, arguments: &[Values], row: usize, is_first: bool, memory: &mut [Value], computed: &mut Builder) {
        match self.kind {
            Kind::Lag(rows) => {
                let last = &mut memory[self.state..self.state + rows];
                last.rotate_right(1);
                computed.push(&last[0]);
                arguments[0].store(row, &mut last[0]);
            }
            Kind::Changed => {
                let last = &mut memory[self.state];
                let changed = is_first || !arguments[0].equals(row, last);
                if changed {
                    arguments[0].store(row, last);
                }
                computed.push(&Value::Word(changed.into()));
            }
            Kind::Hysteresis => {
                let state = &mut memory[self.state];
                let [value, low, high] = [0, 1, 2].map(|argument: usize| arguments[argument].float(row));
                if let (Some(value), Some(low), Some(high)) = (value, low, high) {
                    if value >= high {
                        *state = Value::Word(1);
                    } else if value <= low {
                        *state = Value::Word(0);
                    }
                }
                computed.push(state);
            }
            Kind::Extreme(extreme) => {
                extreme.compute(arguments, row, &mut memory[self.state..self.state + extreme.values()], computed);
            }
            Kind::Over(_) => unreachable!("it has windows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, Float64Array, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Float64Type};
    use datafusion_physical_expr::PhysicalExpr;
    use datafusion_physical_expr::expressions::{Column, lit};
    use proptest::prelude::*;
    use rivulet_dataflow::{KeyGroups, OperatorFactory, Refusals};

    use super::*;
    use crate::expression::{Expressions, NamedExpression};
    use crate::history::{History, HistoryColumn, HistoryFunction};
    use crate::testing::{batch, parameter_table, process_context};

    /// slot, value, text, key
    type TestRow = (Slot, Option<f64>, Option<&'static str>, i64);

    /// The output of a row: `lag(value, 2)`, `lag(text, 1)`, `changed(value)`, `hysteresis(value, -1, $high)`.
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

    /// Computes the output of each row from all earlier rows.
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
                        let selection = StateSelection::KeyGroups(KeyGroups::default(), groups);
                        let part = operator.export_state(&selection).unwrap().unwrap();
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
    fn rows_of_a_query_with_too_many_keys_are_refused_and_counted() {
        let mut operator = history(true).create();
        let ever_new: Vec<TestRow> = (0..SLOT_KEYS_MAX as i64).map(|key| (0, None, None, key)).collect();
        process(operator.as_mut(), Element::Batch(rows(&ever_new)));
        let (table, mut refusals, mut output) = (table(), Refusals::new(1), Vec::new());
        let batch = rows(&[(0, None, None, -1), (1, None, None, -1), (0, None, None, 7)]);
        let mut context = process_context(&table, &mut refusals, &mut output);
        operator.process(Element::Batch(batch), &mut context).unwrap();
        assert_eq!(output[0].slots.to_vec(), [1, 0]);
        assert_eq!((refusals.counted(Reason::Expression), refusals.records()[0].slot), (1, 0));
        assert!(refusals.records()[0].detail.contains("at most 100000"), "{}", refusals.records()[0].detail);
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
