//! Makes a column the event time of its rows, where a query changes to another time.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Schema, TimestampMicrosecondType};
use rivulet_dataflow::{Address, Context, Description, Element, Operator, OperatorError, OperatorFactory, Reason};

use super::check_time;
use crate::PlanError;

/// Sets the event time of every row to the value of a column. A row where it is null is refused.
#[derive(Clone, Debug)]
pub struct SetEventTime {
    column: usize,
    name: String,
}

impl SetEventTime {
    /// Makes an operator over rows with the columns of `input`.
    ///
    /// # Errors
    /// A column that holds no times in microseconds.
    pub fn new(input: &Schema, column: usize) -> Result<Self, PlanError> {
        check_time(input, column, "the event time")?;
        Ok(Self { column, name: input.field(column).name().clone() })
    }
}

impl OperatorFactory for SetEventTime {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(SetEventTimeOperator { column: self.column })
    }

    fn describe(&self) -> Description {
        Description { operator: "set event time".into(), shared: vec![self.name.clone()], per_slot: vec![] }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

struct SetEventTimeOperator {
    column: usize,
}

impl Operator for SetEventTimeOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(mut batch) = element else { return Ok(()) };
        let column = batch.column(self.column).clone();
        let times = column.as_primitive::<TimestampMicrosecondType>();
        if times.null_count() == 0 {
            batch.event_time_us = times.values().clone();
            context.emit(batch);
            return Ok(());
        }
        for row in (0..batch.rows()).filter(|&row| times.is_null(row)) {
            context.refusals.refuse_row(None, &batch, row, Reason::Expression, || {
                "a row's event time is null\nhint: filter with WHERE ... IS NOT NULL".into()
            });
        }
        let kept: Vec<u32> = (0..batch.rows() as u32).filter(|&row| times.is_valid(row as usize)).collect();
        let mut batch = batch.take(&kept)?;
        batch.event_time_us = kept.iter().map(|&row| times.value(row as usize)).collect();
        context.emit(batch);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, TimestampMicrosecondArray};
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    #[test]
    fn the_column_becomes_the_event_time_and_null_is_refused() {
        let input = batch(&[(0, 1), (0, 2)], vec![Arc::new(TimestampMicrosecondArray::from(vec![Some(70), None]))]);
        let operator = SetEventTime::new(input.columns.schema_ref(), 0).unwrap();
        let table = parameter_table("p", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        operator.create().process(Element::Batch(input), &mut context).unwrap();
        assert_eq!(output[0].event_time_us.as_ref(), &[70]);
        assert_eq!(refusals.counted(Reason::Expression), 1);
    }
}
