//! Where a row's event time comes from, and how far it may lie in the future.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use rivulet_dataflow::times::span;
use rivulet_dataflow::{
    Batch, Context, Description, Element, InputIndex, Operator, OperatorError, OperatorFactory, Reason,
};

use crate::PlanError;

/// The name of the implicit column that holds a row's arrival time.
pub const ARRIVAL_COLUMN: &str = "arrival_time";

/// The type of every column of times: microseconds since the Unix epoch.
pub const TIME_TYPE: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// Sets each row's event time, refuses rows from the future, and appends the arrival as a column if it is used.
///
/// A row is refused ([`Reason::Future`]) if its event time is later than its arrival by more than `future_limit_us`: a
/// device with a wrong clock must not be able to move a watermark years ahead. A row without event time is refused
/// ([`Reason::Decode`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignTime {
    /// The `Timestamp(Microsecond, None)` column with the event time. Without one, the arrival is the event time.
    pub event_time_column: Option<usize>,
    /// How far an event time may lie after the arrival, in microseconds.
    pub future_limit_us: i64,
    /// Whether a column [`ARRIVAL_COLUMN`] is appended behind the columns of the input.
    pub append_arrival_column: bool,
}

impl AssignTime {
    /// Returns the output columns for these input columns, or why the event time column does not serve.
    pub fn output_schema(&self, input: &Schema) -> Result<SchemaRef, PlanError> {
        output_schema(input, self.event_time_column, self.append_arrival_column)
    }
}

/// Returns `input`, with the arrival behind it if it is to be appended, or why one of the columns is not an event time.
pub(crate) fn output_schema(
    input: &Schema,
    event_time_columns: impl IntoIterator<Item = usize>,
    append_arrival_column: bool,
) -> Result<SchemaRef, PlanError> {
    for index in event_time_columns {
        let fail = |problem: String| PlanError::Column { index, what: "the input", problem };
        let field = input.fields().get(index).ok_or_else(|| fail("there is no such column".into()))?;
        if *field.data_type() != TIME_TYPE {
            return Err(fail(format!("an event time has type TIMESTAMP, this has {}", field.data_type())));
        }
    }
    let arrival = append_arrival_column.then(|| Arc::new(Field::new(ARRIVAL_COLUMN, TIME_TYPE, false)));
    Ok(Arc::new(Schema::new(input.fields().iter().cloned().chain(arrival).collect::<Vec<_>>())))
}

/// Returns the same rows with their arrival as a further column.
pub(crate) fn with_arrival(batch: &Batch, schema: SchemaRef) -> Result<Batch, OperatorError> {
    let arrival = TimestampMicrosecondArray::new(batch.arrival_us.clone(), None);
    let columns = batch.columns.columns().iter().cloned();
    let columns = RecordBatch::try_new(schema, columns.chain([Arc::new(arrival) as _]).collect())?;
    Ok(batch.with_columns(columns))
}

impl OperatorFactory for AssignTime {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(AssignTimeOperator { plan: self.clone(), schema: None })
    }

    fn describe(&self) -> Description {
        let mut shared = match self.event_time_column {
            Some(column) => vec![
                format!("event time from column {column}"),
                format!("future limit {} ms", self.future_limit_us / 1000),
            ],
            None => vec!["event time is arrival time".into()],
        };
        if self.append_arrival_column {
            shared.push(format!("adds {ARRIVAL_COLUMN}"));
        }
        Description { operator: "assign time".into(), shared, per_slot: Vec::new() }
    }

    fn is_stateful(&self) -> bool {
        false
    }
}

struct AssignTimeOperator {
    plan: AssignTime,
    /// Input and output columns of the last batch. All batches of an input have the same columns.
    schema: Option<(SchemaRef, SchemaRef)>,
}

impl Operator for AssignTimeOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(mut batch) = element else { return Ok(()) };
        if let Some(column) = self.plan.event_time_column {
            let times = batch
                .columns
                .columns()
                .get(column)
                .and_then(|column| column.as_primitive_opt::<TimestampMicrosecondType>())
                .ok_or_else(|| OperatorError::new(format!("column {column} does not hold event times")))?
                .clone();
            batch.event_time_us = times.values().clone();
            let future_limit_us = self.plan.future_limit_us;
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
        } else {
            batch.event_time_us = batch.arrival_us.clone();
        }
        if self.plan.append_arrival_column {
            let schema = self.output_schema(batch.columns.schema_ref())?;
            batch = with_arrival(&batch, schema)?;
        }
        context.emit(batch);
        Ok(())
    }
}

/// Whether the row has an event time, and this lies no farther after the arrival than the limit.
pub(crate) fn is_accepted(time_us: Option<i64>, arrival_us: i64, future_limit_us: i64) -> bool {
    time_us.is_some_and(|time_us| time_us <= arrival_us.saturating_add(future_limit_us))
}

/// Refuses a row whose event time was not accepted.
pub(crate) fn refuse(
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
    use arrow::array::Int64Array;
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    fn run(plan: &AssignTime, rows: Batch) -> (Vec<Batch>, Refusals) {
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0, 0])));
        let (mut refusals, mut output) = (Refusals::new(8), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        plan.create().process(Element::Batch(rows), &mut context).unwrap();
        (output, refusals)
    }

    #[test]
    fn event_time_comes_from_the_column_and_the_future_is_refused() {
        let plan = AssignTime { event_time_column: Some(0), future_limit_us: 5, append_arrival_column: true };
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
        let plan = AssignTime { event_time_column: None, future_limit_us: 0, append_arrival_column: false };
        let (output, refusals) = run(&plan, batch(&[(0, 100)], vec![Arc::new(Int64Array::from(vec![1]))]));
        assert_eq!(output[0].event_time_us.as_ref(), &[100]);
        assert_eq!(output[0].columns.num_columns(), 1);
        assert!(refusals.is_empty());
    }

    #[test]
    fn the_column_must_hold_times() {
        let plan = AssignTime { event_time_column: Some(0), future_limit_us: 5, append_arrival_column: false };
        let error = plan.output_schema(&Schema::new(vec![Field::new("n", DataType::Int64, true)])).unwrap_err();
        assert!(error.to_string().contains("TIMESTAMP"), "{error}");
        assert!(plan.output_schema(&Schema::empty()).is_err());
    }
}
