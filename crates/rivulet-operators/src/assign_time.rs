//! Where a row's event time comes from, and how far it may lie in the future.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit, UInt8Type};
use rivulet_dataflow::times::span;
use rivulet_dataflow::{
    Address, Batch, Context, Description, Element, InputIndex, Operator, OperatorError, OperatorFactory, Reason,
};

use crate::PlanError;

/// The name of the implicit column that holds a row's arrival time.
pub const ARRIVAL_COLUMN: &str = "arrival_time";

/// The type of every column of times: microseconds since the Unix epoch.
pub const TIME_TYPE: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// The name of the column with the number of the input by which a row came (`UInt8`). Names of the inputs' columns have
/// a point, so none of them has this name.
pub const INPUT_COLUMN: &str = "input";

/// Sets each row's event time, refuses rows from the future, and appends the arrival as a column if it is used.
///
/// A row is refused ([`Reason::Future`]) if its event time is later than its arrival by more than the limit of its
/// input: a device with a wrong clock must not be able to move a watermark years ahead. A row without event time is
/// refused ([`Reason::Decode`]).
///
/// Rows of several inputs come mixed in one batch. Their first column ([`INPUT_COLUMN`]) is the number of their input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignTime {
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

impl AssignTime {
    /// Returns the output columns for these input columns, or why an event time column does not serve.
    pub fn output_schema(&self, input: &Schema) -> Result<SchemaRef, PlanError> {
        for index in self.inputs.iter().filter_map(|input| input.event_time_column) {
            let fail = |problem: String| PlanError::Column { index, what: "the input", problem };
            let field = input.fields().get(index).ok_or_else(|| fail("there is no such column".into()))?;
            if *field.data_type() != TIME_TYPE {
                return Err(fail(format!("an event time has type TIMESTAMP, this has {}", field.data_type())));
            }
        }
        let arrival = self.append_arrival_column.then(|| Arc::new(Field::new(ARRIVAL_COLUMN, TIME_TYPE, false)));
        Ok(Arc::new(Schema::new(input.fields().iter().cloned().chain(arrival).collect::<Vec<_>>())))
    }
}

impl OperatorFactory for AssignTime {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(AssignTimeOperator { plan: self.clone(), schema: None })
    }

    fn describe(&self) -> Description {
        let times = self.inputs.iter().enumerate().map(|(number, input)| match input.event_time_column {
            Some(column) => format!(
                "input {number}: event time from column {column}, future limit {} ms",
                input.future_limit_us / 1000
            ),
            None => format!("input {number}: event time is arrival time"),
        });
        let arrival = self.append_arrival_column.then(|| format!("adds {ARRIVAL_COLUMN}"));
        Description { operator: "assign time".into(), shared: times.chain(arrival).collect(), per_slot: Vec::new() }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

struct AssignTimeOperator {
    plan: AssignTime,
    /// Input and output columns of the last batch. All batches have the same columns.
    schema: Option<(SchemaRef, SchemaRef)>,
}

impl Operator for AssignTimeOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        let mut batch = match self.plan.inputs.as_slice() {
            [input] => of_one(input, batch, context)?,
            inputs => of_several(inputs, batch, context)?,
        };
        if self.plan.append_arrival_column {
            let schema = self.output_schema(batch.columns.schema_ref())?;
            let arrival = TimestampMicrosecondArray::new(batch.arrival_us.clone(), None);
            let columns = batch.columns.columns().iter().cloned();
            let columns = RecordBatch::try_new(schema, columns.chain([Arc::new(arrival) as _]).collect())?;
            batch = batch.with_columns(columns);
        }
        context.emit(batch);
        Ok(())
    }
}

/// Rows of one input with their event times, without those that are refused.
fn of_one(input: &InputTime, mut batch: Batch, context: &mut Context<'_>) -> Result<Batch, OperatorError> {
    let InputTime { event_time_column: Some(column), future_limit_us } = *input else {
        batch.event_time_us = batch.arrival_us.clone();
        return Ok(batch);
    };
    let times = times(&batch, column)?;
    batch.event_time_us = times.values().clone();
    let time_us = |row: usize| times.is_valid(row).then(|| times.value(row));
    let accepted = |row: usize| is_accepted(time_us(row), batch.arrival_us[row], future_limit_us);
    if !(0..batch.rows()).all(accepted) {
        let keep: BooleanArray = (0..batch.rows()).map(|row| Some(accepted(row))).collect();
        for row in (0..batch.rows()).filter(|&row| !keep.value(row)) {
            refuse(&batch, row, None, time_us(row), future_limit_us, context);
        }
        batch = batch.filter(&keep)?;
    }
    let arrival_us = batch.arrival_us.first().copied().unwrap_or_default();
    context.refusals.note_times(None, &batch.event_time_us, arrival_us);
    Ok(batch)
}

/// The same for rows of several inputs.
fn of_several(rules: &[InputTime], mut batch: Batch, context: &mut Context<'_>) -> Result<Batch, OperatorError> {
    let defect = |what: &str| OperatorError::new(format!("rows of several inputs without {what}"));
    let inputs = batch.column(0).as_primitive_opt::<UInt8Type>().ok_or_else(|| defect("their input"))?.clone();
    let times = rules.iter().map(|rule| rule.event_time_column.map(|column| times(&batch, column)).transpose());
    let times = times.collect::<Result<Vec<Option<TimestampMicrosecondArray>>, OperatorError>>()?;
    let mut event_times_us: Vec<i64> = Vec::with_capacity(batch.rows());
    let mut keep: Vec<bool> = Vec::with_capacity(batch.rows());
    for (row, (&input, &arrival_us)) in inputs.values().iter().zip(batch.arrival_us.iter()).enumerate() {
        let rule = rules.get(usize::from(input)).ok_or_else(|| defect("a known input"))?;
        let times = times[usize::from(input)].as_ref();
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
    Ok(batch)
}

/// The event times in a column.
fn times(batch: &Batch, column: usize) -> Result<TimestampMicrosecondArray, OperatorError> {
    let found = batch.columns.columns().get(column).and_then(|column| column.as_primitive_opt());
    found.cloned().ok_or_else(|| OperatorError::new(format!("column {column} does not hold event times")))
}

/// Whether the row has an event time, and this lies no farther after the arrival than the limit.
fn is_accepted(time_us: Option<i64>, arrival_us: i64, future_limit_us: i64) -> bool {
    time_us.is_some_and(|time_us| time_us <= arrival_us.saturating_add(future_limit_us))
}

/// Refuses a row whose event time was not accepted.
fn refuse(
    batch: &Batch,
    row: usize,
    input: Option<InputIndex>,
    time_us: Option<i64>,
    future_limit_us: i64,
    context: &mut Context<'_>,
) {
    let reason = if time_us.is_some() { Reason::Future } else { Reason::Decode };
    context.refusals.refuse_row(input, batch, row, reason, || {
        match time_us {
            Some(time_us) => format!(
                "the event time is {} after the arrival, and {} are allowed\nhint: check the device's clock, or raise future_limit",
                span(time_us.saturating_sub(batch.arrival_us[row])),
                span(future_limit_us)
            ),
            None => "the event time is missing".into(),
        }
    });
}

impl AssignTimeOperator {
    fn output_schema(&mut self, input: &SchemaRef) -> Result<SchemaRef, OperatorError> {
        if let Some((known, output)) = &self.schema
            && (Arc::ptr_eq(known, input) || known == input)
        {
            return Ok(output.clone());
        }
        let output = self.plan.output_schema(input).map_err(|error| OperatorError::new(error.to_string()))?;
        self.schema = Some((input.clone(), output.clone()));
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, UInt8Array};
    use arrow::datatypes::TimestampMicrosecondType;
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    fn plan(event_time_column: Option<usize>, future_limit_us: i64, append_arrival_column: bool) -> AssignTime {
        AssignTime { inputs: vec![InputTime { event_time_column, future_limit_us }], append_arrival_column }
    }

    fn run(plan: &AssignTime, rows: Batch) -> (Vec<Batch>, Refusals) {
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0, 0])));
        let (mut refusals, mut output) = (Refusals::new(8), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        plan.create().process(Element::Batch(rows), &mut context).unwrap();
        (output, refusals)
    }

    #[test]
    fn event_time_comes_from_the_column_and_the_future_is_refused() {
        let plan = plan(Some(0), 5, true);
        let times = TimestampMicrosecondArray::from(vec![Some(90), Some(105), Some(106), None, Some(i64::MAX)]);
        let rows = batch(&[(0, 100), (1, 100), (0, 100), (1, 100), (1, 100)], vec![Arc::new(times)]);
        let (output, refusals) = run(&plan, rows);
        assert_eq!(output[0].event_time_us.as_ref(), &[90, 105]);
        assert_eq!(output[0].arrival_us.as_ref(), &[100, 100]);
        assert_eq!(output[0].columns.schema().field(1).name(), ARRIVAL_COLUMN);
        assert_eq!(output[0].column(1).as_primitive::<TimestampMicrosecondType>().values().as_ref(), &[100, 100]);
        assert_eq!((refusals.counted(Reason::Future), refusals.counted(Reason::Decode)), (2, 1));
        assert!(refusals.records()[0].detail.contains("hint:"));
    }

    #[test]
    fn without_a_column_the_arrival_is_the_event_time() {
        let plan = plan(None, 0, false);
        let (output, refusals) = run(&plan, batch(&[(0, 100)], vec![Arc::new(Int64Array::from(vec![1]))]));
        assert_eq!(output[0].event_time_us.as_ref(), &[100]);
        assert_eq!(output[0].columns.num_columns(), 1);
        assert!(refusals.is_empty());
    }

    #[test]
    fn the_column_must_hold_times() {
        let plan = plan(Some(0), 5, false);
        let error = plan.output_schema(&Schema::new(vec![Field::new("n", DataType::Int64, true)])).unwrap_err();
        assert!(error.to_string().contains("TIMESTAMP"), "{error}");
        assert!(plan.output_schema(&Schema::empty()).is_err());
    }

    #[test]
    fn each_input_has_its_own_time() {
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0, 0])));
        let (mut refusals, mut output) = (Refusals::new(8), Vec::new());
        let time = |event_time_column, future_limit_us| InputTime { event_time_column, future_limit_us };
        let plan = AssignTime {
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
