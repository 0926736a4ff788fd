//! The same as `assign_time`, for an application with several inputs, whose rows come mixed in one batch. Each input
//! has its own column with the event time, and its own limit on the future.

use arrow::array::{Array, AsArray, BooleanArray, TimestampMicrosecondArray};
use arrow::datatypes::{Schema, SchemaRef, UInt8Type};
use rivulet_dataflow::{Context, Description, Element, InputIndex, Operator, OperatorError, OperatorFactory};

use crate::PlanError;
use crate::assign_time::{ARRIVAL_COLUMN, is_accepted, output_schema, refuse, with_arrival};

/// The name of the column with the number of the input by which a row came (`UInt8`). Names of the inputs' columns have
/// a point, so none of them has this name.
pub const INPUT_COLUMN: &str = "input";

/// Sets each row's event time and refuses rows from the future, by the rules of its input. The first column of the rows
/// ([`INPUT_COLUMN`]) holds the number of their input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignTimes {
    /// The rules of each input.
    pub inputs: Vec<InputTime>,
    /// Whether a column [`ARRIVAL_COLUMN`] is appended behind the columns of the inputs.
    pub append_arrival_column: bool,
}

/// Where the event times of one input come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputTime {
    /// The `Timestamp(Microsecond, None)` column with the event time, as an index of the columns of all inputs. Without
    /// one, the arrival is the event time.
    pub event_time_column: Option<usize>,
    /// How far an event time may lie after the arrival, in microseconds.
    pub future_limit_us: i64,
}

impl AssignTimes {
    /// Returns the output columns for these input columns, or why an event time column does not serve.
    pub fn output_schema(&self, input: &Schema) -> Result<SchemaRef, PlanError> {
        let columns = self.inputs.iter().filter_map(|input| input.event_time_column);
        output_schema(input, columns, self.append_arrival_column)
    }
}

impl OperatorFactory for AssignTimes {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(AssignTimesOperator { plan: self.clone() })
    }

    fn describe(&self) -> Description {
        let times = self.inputs.iter().enumerate().map(|(number, input)| match input.event_time_column {
            Some(column) => format!(
                "input {number}: event time from column {column}, future limit {} ms",
                input.future_limit_us / 1000
            ),
            None => format!("input {number}: event time is arrival time"),
        });
        let mut shared: Vec<String> = times.collect();
        if self.append_arrival_column {
            shared.push(format!("adds {ARRIVAL_COLUMN}"));
        }
        Description { operator: "assign time".into(), shared, per_slot: Vec::new() }
    }

    fn is_stateful(&self) -> bool {
        false
    }
}

struct AssignTimesOperator {
    plan: AssignTimes,
}

impl Operator for AssignTimesOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(mut batch) = element else { return Ok(()) };
        let defect = |what: &str| OperatorError::new(format!("rows of several inputs without {what}"));
        let inputs = batch.column(0).as_primitive_opt::<UInt8Type>().ok_or_else(|| defect("their input"))?.clone();
        let times = self.plan.inputs.iter().map(|input| {
            let Some(column) = input.event_time_column else { return Ok(None) };
            let times = batch.columns.columns().get(column).and_then(|column| column.as_primitive_opt());
            times.cloned().map(Some).ok_or_else(|| defect("an event time"))
        });
        let times = times.collect::<Result<Vec<Option<TimestampMicrosecondArray>>, OperatorError>>()?;
        let rule = |input: InputIndex| {
            let input = usize::from(input);
            self.plan.inputs.get(input).map(|rule| (rule, times[input].as_ref())).ok_or_else(|| defect("a known input"))
        };
        let mut event_times_us: Vec<i64> = Vec::with_capacity(batch.rows());
        let mut keep: Vec<bool> = Vec::with_capacity(batch.rows());
        for (row, (&input, &arrival_us)) in inputs.values().iter().zip(batch.arrival_us.iter()).enumerate() {
            let (rule, times) = rule(input)?;
            let time_us = match times {
                Some(times) => times.is_valid(row).then(|| times.value(row)),
                None => Some(arrival_us),
            };
            let is_kept = times.is_none() || is_accepted(time_us, arrival_us, rule.future_limit_us);
            if !is_kept {
                refuse(&batch, row, Some(input), time_us, rule.future_limit_us, context);
            }
            event_times_us.push(time_us.unwrap_or(arrival_us));
            keep.push(is_kept);
        }
        batch.event_time_us = event_times_us.into();
        if keep.contains(&false) {
            batch = batch.filter(&BooleanArray::from(keep))?;
        }
        let inputs = batch.column(0).as_primitive::<UInt8Type>();
        let arrival_us = batch.arrival_us.first().copied().unwrap_or_default();
        context.refusals.note_times(Some(inputs.values()), &batch.event_time_us, arrival_us);
        if self.plan.append_arrival_column {
            let schema = self.plan.output_schema(batch.columns.schema_ref());
            let schema = schema.map_err(|error| OperatorError::new(error.to_string()))?;
            batch = with_arrival(&batch, schema)?;
        }
        context.emit(batch);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, UInt8Array};
    use arrow::datatypes::TimestampMicrosecondType;
    use rivulet_dataflow::{Reason, Refusals};

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    #[test]
    fn each_input_has_its_own_time() {
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0, 0])));
        let (mut refusals, mut output) = (Refusals::new(8), Vec::new());
        let time = |event_time_column, future_limit_us| InputTime { event_time_column, future_limit_us };
        let plan = AssignTimes {
            inputs: vec![time(Some(1), 5), time(None, 0), time(Some(2), 50)],
            append_arrival_column: true,
        };
        let first = TimestampMicrosecondArray::from(vec![Some(90), Some(106), None, None, None]);
        let third = TimestampMicrosecondArray::from(vec![None, None, None, Some(106), None]);
        let inputs = UInt8Array::from(vec![0, 0, 1, 2, 2]);
        let rows = batch(
            &[(0, 100), (0, 100), (1, 100), (1, 100), (1, 100)],
            vec![Arc::new(inputs), Arc::new(first), Arc::new(third)],
        );
        let mut context = process_context(&table, &mut refusals, &mut output);
        plan.create().process(Element::Batch(rows), &mut context).unwrap();
        assert_eq!(output[0].event_time_us.as_ref(), &[90, 100, 106]);
        assert_eq!(output[0].column(3).as_primitive::<TimestampMicrosecondType>().values().as_ref(), &[100, 100, 100]);
        let refused: Vec<_> = refusals.records().iter().map(|one| (one.input, one.reason)).collect();
        assert_eq!(refused, [(Some(0), Reason::Future), (Some(2), Reason::Decode)]);
    }
}
