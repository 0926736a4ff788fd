//! Adds windows to rows as columns, without an aggregation.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{Field, Schema, SchemaRef, TimestampMicrosecondType};
use rivulet_dataflow::{
    Address, Batch, Context, Description, Element, Operator, OperatorError, OperatorFactory, Reason,
};

use super::window::{Bounds, KeyedWindowKind};
use super::{OUTPUT_ROWS, TIME, check_time};
use crate::PlanError;
use crate::window::{WINDOW_END, WINDOW_START};

/// Emits each row once for each of its windows, with the columns `window_start` and `window_end` behind its own. The
/// event time of the row becomes the last microsecond of the window. A row whose time is null has no window and is
/// refused.
#[derive(Clone, Debug)]
pub struct AssignWindows {
    bounds: Bounds,
    time_column: usize,
    output: SchemaRef,
    text: String,
}

impl AssignWindows {
    /// Makes an operator over rows with the columns of `input`; `window` is a `Tumble`, `Hop` or `Cumulate` over
    /// `time_column`.
    ///
    /// # Errors
    /// A column that holds no times, or another kind of window.
    pub fn new(input: SchemaRef, window: KeyedWindowKind, time_column: usize) -> Result<Self, PlanError> {
        check_time(&input, time_column, "the time")?;
        window.check(&input)?;
        let Some(bounds) = Bounds::of(&window) else {
            let problem = format!("windows of this kind are known only when they close: {}", window.text(&input));
            let hint = "use TUMBLE, HOP or CUMULATE, or group by the window";
            return Err(PlanError::operator("assign windows", problem, hint));
        };
        let added = [WINDOW_START, WINDOW_END].map(|name| Arc::new(Field::new(name, TIME, false)));
        let output = Arc::new(Schema::new(input.fields().iter().cloned().chain(added).collect::<Vec<_>>()));
        let text = window.text(&input);
        Ok(Self { bounds, time_column, output, text })
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.output
    }
}

impl OperatorFactory for AssignWindows {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(AssignWindowsOperator { plan: self.clone(), unfinished: None })
    }

    fn describe(&self) -> Description {
        Description { operator: "assign windows".into(), shared: vec![self.text.clone()], per_slot: vec![] }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

struct AssignWindowsOperator {
    plan: AssignWindows,
    /// A batch, and the index up to which its rows have been emitted.
    unfinished: Option<(Batch, usize)>,
}

impl AssignWindowsOperator {
    fn emit(
        &self,
        batch: &Batch,
        rows: &[u32],
        windows: Vec<(i64, i64)>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let is_all = rows.len() == batch.rows() && rows.iter().enumerate().all(|(at, &row)| at == row as usize);
        let mut taken = if is_all { batch.clone() } else { batch.take(rows)? };
        let (starts, ends): (Vec<i64>, Vec<i64>) = windows.into_iter().unzip();
        taken.event_time_us = ends.iter().map(|end_us| end_us - 1).collect();
        let mut columns: Vec<ArrayRef> = taken.columns.columns().to_vec();
        columns.push(Arc::new(TimestampMicrosecondArray::from(starts)));
        columns.push(Arc::new(TimestampMicrosecondArray::from(ends)));
        taken.columns = RecordBatch::try_new(self.plan.output.clone(), columns)?;
        context.emit(taken);
        Ok(())
    }
}

impl AssignWindowsOperator {
    /// Emits rows until there are enough of them.
    fn continue_batch(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Some((batch, first)) = self.unfinished.take() else { return Ok(()) };
        let column = batch.column(self.plan.time_column).clone();
        let times = column.as_primitive::<TimestampMicrosecondType>();
        let (mut rows, mut windows) = (Vec::with_capacity(batch.rows()), Vec::with_capacity(batch.rows()));
        for row in first..batch.rows() {
            if rows.len() >= OUTPUT_ROWS {
                self.emit(&batch, &rows, windows, context)?;
                self.unfinished = Some((batch, row));
                return Ok(());
            }
            if times.is_null(row) {
                context.refusals.refuse_row(None, &batch, row, Reason::Expression, || {
                    "a row without a time is in no window\nhint: filter with WHERE ... IS NOT NULL".into()
                });
                continue;
            }
            self.plan.bounds.windows_of(times.value(row), |start_us, end_us| {
                rows.push(row as u32);
                windows.push((start_us, end_us));
            });
        }
        match rows.is_empty() {
            true => Ok(()),
            false => self.emit(&batch, &rows, windows, context),
        }
    }
}

impl Operator for AssignWindowsOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        // The rest of an unfinished batch is emitted before anything else.
        while self.has_more() {
            self.continue_batch(context)?;
        }
        let Element::Batch(batch) = element else { return Ok(()) };
        self.unfinished = Some((batch, 0));
        self.continue_batch(context)
    }

    fn has_more(&self) -> bool {
        self.unfinished.is_some()
    }

    fn go_on(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.continue_batch(context)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::DataType;
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    fn assigned(window: KeyedWindowKind, times: Vec<Option<i64>>) -> (Vec<(i64, i64, i64)>, u64) {
        let rows: Vec<(u32, i64)> = times.iter().map(|_| (0, 7)).collect();
        let input = batch(&rows, vec![Arc::new(TimestampMicrosecondArray::from(times))]);
        let operator = AssignWindows::new(input.columns.schema(), window, 0).unwrap();
        let table = parameter_table("p", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        let mut operator = operator.create();
        operator.process(Element::Batch(input), &mut context).unwrap();
        assert!(!operator.has_more());
        let mut found = Vec::new();
        for batch in &output {
            let value = |column: usize, row| batch.column(column).as_primitive::<TimestampMicrosecondType>().value(row);
            found.extend((0..batch.rows()).map(|row| (value(0, row), value(1, row), value(2, row))));
            assert!((0..batch.rows()).all(|row| batch.event_time_us[row] == value(2, row) - 1));
        }
        (found, refusals.counted(Reason::Expression))
    }

    #[test]
    fn every_window_of_a_row_gives_a_row() {
        let hop = KeyedWindowKind::Hop { slide_us: 2, width_us: 5, offset_us: 1 };
        assert_eq!(assigned(hop, vec![Some(5), None]).0, [(5, 1, 6), (5, 3, 8), (5, 5, 10)]);
        assert_eq!(assigned(hop, vec![Some(5), None]).1, 1);
        let cumulate = KeyedWindowKind::Cumulate { step_us: 2, width_us: 6, offset_us: 0 };
        assert_eq!(assigned(cumulate, vec![Some(-3)]).0, [(-3, -6, -2), (-3, -6, 0)]);
        let gaps = KeyedWindowKind::Hop { slide_us: 10, width_us: 3, offset_us: 0 };
        assert_eq!(assigned(gaps, vec![Some(12), Some(13)]).0, [(12, 10, 13)]);
    }

    #[test]
    fn the_windows_of_many_rows_come_in_parts() {
        let input = batch(&[(0, 7); 100], vec![Arc::new(TimestampMicrosecondArray::from(vec![0; 100]))]);
        let hop = KeyedWindowKind::Hop { slide_us: 1, width_us: 1_000, offset_us: 0 };
        let plan = AssignWindows::new(input.columns.schema(), hop, 0).unwrap();
        let table = parameter_table("p", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output, mut rows) = (Refusals::new(0), Vec::new(), 0);
        let mut operator = plan.create();
        operator.process(Element::Batch(input), &mut process_context(&table, &mut refusals, &mut output)).unwrap();
        while !output.is_empty() {
            let part: usize = output.drain(..).map(|batch| batch.rows()).sum();
            assert!(part < OUTPUT_ROWS + 1_000, "{part} rows at once");
            rows += part;
            if operator.has_more() {
                operator.go_on(&mut process_context(&table, &mut refusals, &mut output)).unwrap();
            }
        }
        assert_eq!(rows, 100 * 1_000);
    }

    #[test]
    fn a_session_cannot_be_assigned() {
        let input = Arc::new(Schema::new(vec![Field::new("ts", TIME, true), Field::new("v", DataType::Int64, true)]));
        let session = KeyedWindowKind::Session { gap_us: 5 };
        assert!(AssignWindows::new(input.clone(), session, 0).unwrap_err().to_string().contains("hint:"));
        assert!(AssignWindows::new(input, KeyedWindowKind::Tumble { width_us: 5, offset_us: 0 }, 1).is_err());
    }
}
