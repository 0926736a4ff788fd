//! Aggregates over the rows up to each row: `avg(value) OVER (ROWS 4 PRECEDING)`.
//!
//! Each remembered row is a pane of one row, in the layout of the panes of windows, and its words are remembered
//! values like any others. The panes are merged for each row; there are few.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;
use datafusion_physical_expr::PhysicalExpr;

use super::value::Value;
use crate::aggregate::given;
use crate::aggregate::layout::{FixedUpdates, Layout, Prepared};
use crate::aggregate::object::SUM_OVERFLOW;
use crate::{AggregateSpec, PlanError};

/// Why a result is refused whose rows are more than a pane can count.
const TOO_MANY_ROWS: &str = "there are too many rows to count";

/// An aggregate over a moving range of rows.
pub(super) struct Over {
    layout: Layout,
    /// The first of its expressions, among those of all aggregates.
    first: usize,
    expressions: usize,
    /// How many rows before each count; `None`: all.
    preceding: Option<usize>,
}

impl Over {
    /// Plans an aggregate, and returns the expressions that it needs; `first` is the place of the first one.
    pub(super) fn new(
        aggregate: &AggregateSpec,
        preceding: Option<usize>,
        schema: &Schema,
        first: usize,
    ) -> Result<(Self, Vec<Arc<dyn PhysicalExpr>>), PlanError> {
        let (layout, expressions) = Layout::new(std::slice::from_ref(aggregate), schema, 0)?;
        if !layout.objects.is_empty() {
            let problem = "over earlier rows it would remember their values".to_owned();
            return Err(PlanError::Expression { expression: aggregate.text(), problem });
        }
        Ok((Self { layout, first, expressions: expressions.len(), preceding }, expressions))
    }

    /// The type of its results.
    pub(super) fn data_type(&self) -> &DataType {
        &self.layout.results[0].data_type
    }

    /// The number of remembered values.
    pub(super) fn values(&self) -> usize {
        self.layout.entry_words * self.preceding.map_or(1, |rows| rows + 1)
    }

    /// The arguments of the rows of a batch; `columns` are those of all aggregates.
    pub(super) fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, ArrowError> {
        self.layout.prepare(&columns[self.first..self.first + self.expressions])
    }

    /// The arguments as updates of panes.
    pub(super) fn updates<'a>(&self, arguments: &'a Prepared) -> FixedUpdates<'a> {
        self.layout.fixed_updates(arguments)
    }

    /// Adds a row to the remembered ones, and the window of the row to `windows`. `panes` is memory to work in.
    pub(super) fn add(
        &self,
        updates: &FixedUpdates<'_>,
        (row, time_us): (usize, i64),
        memory: &mut [Value],
        panes: &mut Vec<u64>,
        windows: &mut Vec<u64>,
    ) {
        let words = self.layout.entry_words.max(1);
        let word = |value: &Value| if let Value::Word(word) = value { *word } else { 0 };
        panes.clear();
        match (&memory[0], self.preceding) {
            (Value::Word(_), None) => panes.extend(memory.iter().map(word)),
            _ => panes.extend_from_slice(&self.layout.empty_entry),
        }
        updates.update(panes, row, time_us);
        // The newest pane is the first. Places of rows that have not come yet are null.
        memory.rotate_right(words);
        memory.iter_mut().zip(&*panes).for_each(|(value, word)| *value = Value::Word(*word));
        panes.clear();
        let known = memory.chunks_exact(words).rev().filter(|pane| pane[0] != Value::Null);
        known.for_each(|pane| panes.extend(pane.iter().map(word)));
        let start = windows.len();
        windows.extend_from_slice(&self.layout.empty_window);
        self.layout.merge(&mut windows[start..], panes);
    }

    /// The results for these windows. Those that cannot be computed are null, and their indices and the reasons are
    /// added to `failed`.
    pub(super) fn results(
        &self,
        windows: &[u64],
        failed: &mut Vec<(usize, &'static str)>,
    ) -> Result<ArrayRef, ArrowError> {
        let result = &self.layout.results[0];
        let windows = || windows.chunks_exact(self.layout.dense_words().max(1));
        let uncounted = windows().enumerate().filter(|(_, window)| !self.layout.is_counted(window));
        failed.extend(uncounted.map(|(row, _)| (row, TOO_MANY_ROWS)));
        given(result.column(windows(), |row| failed.push((row, SUM_OVERFLOW))), &result.data_type)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{Array, AsArray, Float64Array, Int64Array};
    use arrow::datatypes::{Field, Float64Type, Int64Type};
    use datafusion_expr::Operator as Comparison;
    use datafusion_physical_expr::expressions::{binary, lit};
    use proptest::prelude::*;
    use rivulet_dataflow::{
        Batch, Element, Operator, OperatorFactory, Reason, Refusals, Slot, StateFrame, StateSelection,
    };

    use super::*;
    use crate::AggregateFunction;
    use crate::expression::{NamedExpression, column};
    use crate::history::{History, HistoryColumn, HistoryFunction};
    use crate::testing::{batch, parameter_table, process_context};

    /// slot, event time, value, key
    type TestRow = (Slot, i64, Option<f64>, i64);

    /// The sum over three rows, the minimum of what is positive of two rows, and the number of all rows.
    type Found = (Option<f64>, Option<f64>, i64);

    fn input() -> Schema {
        Schema::new(vec![Field::new("value", DataType::Float64, true), Field::new("key", DataType::Int64, true)])
    }

    fn over(function: AggregateFunction, preceding: Option<usize>, is_filtered: bool) -> HistoryFunction {
        let value = || column(&input(), 0);
        let arguments = if function == AggregateFunction::Count { vec![] } else { vec![value()] };
        let filter = is_filtered.then(|| binary(value(), Comparison::Gt, lit(0.0), &input()).unwrap());
        HistoryFunction::Over { aggregate: AggregateSpec { name: "a".into(), function, arguments, filter }, preceding }
    }

    fn history(functions: Vec<HistoryFunction>, is_keyed: bool) -> Result<History, PlanError> {
        let columns = functions.into_iter().map(|function| HistoryColumn { name: function.to_string(), function });
        let keys = is_keyed.then(|| NamedExpression::new("key", column(&input(), 1))).into_iter().collect();
        History::new(&input(), &Schema::empty(), vec![], keys, columns.collect())
    }

    fn three(is_keyed: bool) -> History {
        let functions = vec![
            over(AggregateFunction::Sum, Some(2), false),
            over(AggregateFunction::Min, Some(1), true),
            over(AggregateFunction::Count, None, false),
        ];
        history(functions, is_keyed).unwrap().in_order_of_time()
    }

    fn rows(rows: &[TestRow]) -> Batch {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(rows.iter().map(|row| row.2).collect::<Float64Array>()),
            Arc::new(rows.iter().map(|row| Some(row.3)).collect::<Int64Array>()),
        ];
        batch(&rows.iter().map(|row| (row.0, row.1)).collect::<Vec<_>>(), columns)
    }

    /// The results, and how many rows were late.
    fn process(operator: &mut dyn Operator, given: &[TestRow]) -> (Vec<Found>, u64) {
        let table = parameter_table("p", Arc::new(Int64Array::from(vec![1, 2, 3])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        operator.process(Element::Batch(rows(given)), &mut context).unwrap();
        let read = |batch: &Batch, row: usize| {
            let float = |index: usize| {
                let values = batch.column(index).as_primitive::<Float64Type>();
                values.is_valid(row).then(|| values.value(row))
            };
            (float(2), float(3), batch.column(4).as_primitive::<Int64Type>().value(row))
        };
        let found = output.iter().flat_map(|batch| (0..batch.rows()).map(move |row| read(batch, row))).collect();
        (found, refusals.counted(Reason::Late))
    }

    /// Computes each result from all earlier rows.
    fn model(all: &[TestRow], is_keyed: bool) -> (Vec<Found>, u64) {
        let mut before: HashMap<(Slot, i64), Vec<TestRow>> = HashMap::new();
        let (mut found, mut late) = (Vec::new(), 0);
        for row in all {
            let known = before.entry((row.0, if is_keyed { row.3 } else { 0 })).or_default();
            if known.last().is_some_and(|last| last.1 > row.1) {
                late += 1;
                continue;
            }
            known.push(*row);
            let values = |rows: usize| known.iter().rev().take(rows).filter_map(|row| row.2);
            let sum = values(3).next().map(|_| values(3).sum());
            let least = values(2).filter(|value| *value > 0.0).min_by(f64::total_cmp);
            found.push((sum, least, known.len() as i64));
        }
        (found, late)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn results_are_those_of_the_model_however_rows_are_cut_and_state_is_moved(
            raw in prop::collection::vec((0..3u32, 0..40i64, prop::option::weighted(0.8, -3..5i8), 0..2i64), 0..60),
            cuts in prop::collection::vec((0..60usize, any::<bool>()), 0..8),
            is_keyed in any::<bool>(),
        ) {
            let times = raw.iter().enumerate();
            let times = times.map(|(index, row)| (row.0, index as i64 + row.1 / 10, row.2.map(f64::from), row.3));
            let all: Vec<TestRow> = times.collect();
            let factory = three(is_keyed);
            let (mut operator, mut found, mut late, mut done) = (factory.create(), Vec::new(), 0, 0);
            let mut cuts = cuts;
            cuts.sort_unstable();
            for (at, moves) in cuts.into_iter().chain([(all.len(), false)]) {
                let at = at.clamp(done, all.len());
                let (some, refused) = process(operator.as_mut(), &all[done..at]);
                (late, done) = (late + refused, at);
                found.extend(some);
                if moves {
                    let frame = operator.export_state(&StateSelection::Slots(vec![0, 1, 2])).unwrap().unwrap();
                    operator = factory.create();
                    operator.import_state(&StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap()).unwrap();
                }
            }
            prop_assert_eq!((found, late), model(&all, is_keyed));
        }
    }

    #[test]
    fn a_late_row_says_its_time_and_how_late_it_is() {
        let table = parameter_table("p", Arc::new(Int64Array::from(vec![1, 2, 3])));
        let (mut refusals, mut output) = (Refusals::new(1), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        let given = rows(&[(0, 200_000_000, Some(1.0), 0), (0, 20_000_000, Some(1.0), 0)]);
        three(false).create().process(Element::Batch(given), &mut context).unwrap();
        let detail = &refusals.records()[0].detail;
        assert!(detail.contains("its own, 1970-01-01T00:00:20Z, is 3 minutes behind"), "{detail}");
    }

    #[test]
    fn what_would_need_all_values_or_too_many_rows_is_refused_when_planning() {
        for (function, preceding, problem) in [
            (AggregateFunction::Median, Some(3), "would remember their values"),
            (AggregateFunction::Sum, Some(101), "looks back 101 rows"),
        ] {
            let error = history(vec![over(function, preceding, false)], false).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
