//! UNNEST: an event with several values in a text becomes several rows, in order.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Builder, RecordBatch, StringBuilder, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{
    Batch, Context, Description, Element, Operator, OperatorError, OperatorFactory, Reason, Refused,
};

use crate::PlanError;
use crate::expression::{Expressions, sql};

/// The most values into which one event is unnested. An event with more is refused.
pub const ELEMENTS_MAX: usize = 10_000;

/// The most bytes of other columns that the parts of one event carry together. An event with more is refused.
pub const EVENT_BYTES_MAX: usize = 64 << 20;

/// From this many rows on a batch is emitted, so that many events with many values do not become one batch.
const OUTPUT_ROWS_MAX: usize = 1 << 14;

/// From this many bytes on a batch is emitted. Far below 2 GiB, where the offsets of a column of text end.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Splits a text of each row at a delimiter, and repeats the row for each part with the part in a further column. A row
/// whose text or delimiter is null, or whose text is empty, gives no rows. An empty delimiter splits nothing. A row
/// with more than [`ELEMENTS_MAX`] parts, or whose parts would carry more than [`EVENT_BYTES_MAX`], is refused
/// ([`Reason::Expression`]).
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use arrow::datatypes::{DataType, Field, Schema};
/// use datafusion_physical_expr::expressions::{Column, lit};
/// use rivulet_operators::Unnest;
///
/// let input = Schema::new(vec![Field::new("readings", DataType::Utf8, true)]);
/// let text = Arc::new(Column::new("readings", 0));
/// let unnest = Unnest::new(&input, &Schema::empty(), vec![], text, lit(","), "reading", Some("number")).unwrap();
/// let names: Vec<_> = unnest.output_schema().fields().iter().map(|field| field.name().clone()).collect();
/// assert_eq!(names, ["readings", "reading", "number"]);
/// ```
#[derive(Clone, Debug)]
pub struct Unnest {
    /// Text and delimiter.
    expressions: Arc<Expressions>,
    /// The columns of the input that are repeated.
    carried: Vec<usize>,
    numbered: bool,
    output: SchemaRef,
    text: String,
}

impl Unnest {
    /// Makes an operator over rows with the columns of `input`; `text` and `delimiter` are compiled against
    /// [`Expressions::evaluation_schema`]`(input, parameter_schema, parameters)`. The output columns are those of the
    /// input, `element` (`Utf8`), and `number` (`Int64`, from 1) if it has a name.
    pub fn new(
        input: &Schema,
        parameter_schema: &Schema,
        parameters: Vec<usize>,
        text: Arc<dyn PhysicalExpr>,
        delimiter: Arc<dyn PhysicalExpr>,
        element: &str,
        number: Option<&str>,
    ) -> Result<Self, PlanError> {
        let shown = format!("unnest(string_to_array({}, {}))", sql(&text), sql(&delimiter));
        let expressions = Expressions::new(input, parameter_schema, parameters, vec![text, delimiter])?;
        for field in expressions.fields() {
            if !field.data_type().is_string() && *field.data_type() != DataType::Null {
                let problem = format!("only text is split, and this has type {}", field.data_type());
                return Err(PlanError::Expression { expression: field.name().clone(), problem });
            }
        }
        let element = Arc::new(Field::new(element, DataType::Utf8, false));
        let number = number.map(|number| Arc::new(Field::new(number, DataType::Int64, false)));
        let numbered = number.is_some();
        let fields: Vec<_> = input.fields().iter().cloned().chain([element]).chain(number).collect();
        let carried = (0..input.fields().len()).collect();
        let output = Arc::new(Schema::new(fields));
        Ok(Self { expressions: Arc::new(expressions), carried, numbered, output, text: shown })
    }

    /// The same, but it repeats only the columns of the input whose names are used later. This matters above all for
    /// the split text, which is long and seldom used again.
    pub fn carrying(mut self, is_used: impl Fn(&str) -> bool) -> Self {
        let (carried, added) = self.output.fields().split_at(self.carried.len());
        let is_kept: Vec<bool> = carried.iter().map(|field| is_used(field.name())).collect();
        let kept = carried.iter().zip(&is_kept).filter(|(_, is_kept)| **is_kept).map(|(field, _)| field);
        let output = Schema::new(kept.chain(added).cloned().collect::<Vec<_>>());
        let mut is_kept = is_kept.into_iter();
        self.carried.retain(|_| is_kept.next().unwrap_or(false));
        self.output = Arc::new(output);
        self
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.output
    }
}

impl OperatorFactory for Unnest {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(UnnestOperator { plan: self.clone(), rows: Vec::new(), bytes: 0 })
    }

    fn describe(&self) -> Description {
        Description {
            operator: "unnest".into(),
            shared: vec![self.text.clone()],
            per_slot: self.expressions.parameter_names(),
        }
    }

    fn is_stateful(&self) -> bool {
        false
    }
}

struct UnnestOperator {
    plan: Unnest,
    /// For each output row, the input row that it comes from. The buffer is kept to reuse its memory.
    rows: Vec<u32>,
    /// About how many bytes the collected rows have.
    bytes: usize,
}

impl Operator for UnnestOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        // Rows that a failed call has left must not come out of this call.
        self.rows.clear();
        self.bytes = 0;
        let (batch, columns) = self.plan.expressions.evaluate(batch, context)?;
        let columns = columns.iter().map(|column| cast(column, &DataType::Utf8)).collect::<Result<Vec<_>, _>>()?;
        let (texts, delimiters) = (columns[0].as_string::<i32>(), columns[1].as_string::<i32>());
        let (mut elements, mut numbers) = (StringBuilder::new(), Int64Builder::new());
        for row in 0..batch.rows() {
            if texts.is_null(row) || delimiters.is_null(row) || texts.value(row).is_empty() {
                continue;
            }
            let (text, delimiter) = (texts.value(row), delimiters.value(row));
            let count = parts(text, delimiter).take(ELEMENTS_MAX + 1).count();
            let carried_bytes = self.carried_bytes(&batch, row);
            let is_too_many = count > ELEMENTS_MAX;
            if is_too_many || count.saturating_mul(carried_bytes) > EVENT_BYTES_MAX {
                context.refusals.refuse(batch.slots[row], Reason::Expression, batch.arrival_us[row], || {
                    let detail = match is_too_many {
                        true => format!(
                            "the text has more than {ELEMENTS_MAX} parts\nhint: send them in several events, or check \
                             the delimiter"
                        ),
                        false => format!(
                            "each of the {count} parts of the text carries {carried_bytes} bytes of other columns\n\
                             hint: leave long columns out of the SELECT, or send the parts in several events"
                        ),
                    };
                    (detail, Refused::Row(Box::new(batch.slice(row, 1))))
                });
                continue;
            }
            for (index, part) in parts(text, delimiter).enumerate() {
                self.rows.push(row as u32);
                self.bytes += carried_bytes + part.len();
                elements.append_value(part);
                numbers.append_value(index as i64 + 1);
                if self.rows.len() >= OUTPUT_ROWS_MAX || self.bytes >= OUTPUT_BYTES_MAX {
                    self.emit(&batch, &mut elements, &mut numbers, context)?;
                }
            }
        }
        self.emit(&batch, &mut elements, &mut numbers, context)
    }
}

impl UnnestOperator {
    fn emit(
        &mut self,
        batch: &Batch,
        elements: &mut StringBuilder,
        numbers: &mut Int64Builder,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let rows = UInt32Array::from(self.rows.clone());
        let carried = self.plan.carried.iter().map(|&column| take(batch.column(column), &rows, None));
        let mut columns = carried.collect::<Result<Vec<_>, _>>()?;
        columns.push(Arc::new(elements.finish()));
        let number: ArrayRef = Arc::new(numbers.finish());
        columns.extend(self.plan.numbered.then_some(number));
        context.emit(Batch::new(
            self.rows.iter().map(|&row| batch.slots[row as usize]).collect(),
            self.rows.iter().map(|&row| batch.event_time_us[row as usize]).collect(),
            self.rows.iter().map(|&row| batch.arrival_us[row as usize]).collect(),
            RecordBatch::try_new(self.plan.output.clone(), columns)?,
        ));
        self.rows.clear();
        self.bytes = 0;
        Ok(())
    }

    /// How many bytes of other columns each part of a row carries.
    fn carried_bytes(&self, batch: &Batch, row: usize) -> usize {
        self.plan.carried.iter().map(|&column| value_bytes(batch.column(column), row)).sum()
    }
}

/// The number of bytes of a value.
fn value_bytes(column: &ArrayRef, row: usize) -> usize {
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value_length(row) as usize,
        other => match other.primitive_width() {
            Some(width) => width,
            None => column.slice(row, 1).to_data().get_slice_memory_size().unwrap_or(0),
        },
    }
}

/// The parts of a text; the whole text if the delimiter is empty.
fn parts<'t>(text: &'t str, delimiter: &str) -> impl Iterator<Item = &'t str> {
    let whole = delimiter.is_empty().then_some(text);
    let split = (!delimiter.is_empty()).then(|| text.split(delimiter));
    whole.into_iter().chain(split.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::Int64Type;
    use datafusion_physical_expr::expressions::{Column, lit};
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    fn unnest(texts: Vec<Option<&str>>, delimiter: &str) -> (Vec<(i64, String, i64)>, u64) {
        let input = Schema::new(vec![Field::new("c0", DataType::Utf8, true)]);
        let text = Arc::new(Column::new("c0", 0));
        let factory =
            Unnest::new(&input, &Schema::empty(), vec![], text, lit(delimiter), "element", Some("number")).unwrap();
        let factory = factory.carrying(|_| false);
        let rows: Vec<(u32, i64)> = (0..texts.len() as i64).map(|row| (0, row)).collect();
        let rows = batch(&rows, vec![Arc::new(StringArray::from(texts))]);
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        factory.create().process(Element::Batch(rows), &mut context).unwrap();
        let read = |batch: &Batch, row: usize| {
            let number = batch.column(1).as_primitive::<Int64Type>().value(row);
            (batch.event_time_us[row], batch.column(0).as_string::<i32>().value(row).to_owned(), number)
        };
        let found = output.iter().flat_map(|batch| (0..batch.rows()).map(move |row| read(batch, row))).collect();
        (found, refusals.counted(Reason::Expression))
    }

    #[test]
    fn each_part_is_a_row_in_order() {
        let (found, _) = unnest(vec![Some("1, 2"), None, Some(""), Some("x,,y"), Some("z")], ",");
        let expected = [(0, "1", 1), (0, " 2", 2), (3, "x", 1), (3, "", 2), (3, "y", 3), (4, "z", 1)];
        assert_eq!(found, expected.map(|(time, part, number)| (time, part.to_owned(), number)));
        assert_eq!(unnest(vec![Some("a,b")], "").0, [(0, "a,b".to_owned(), 1)]);
    }

    #[test]
    fn too_many_parts_are_refused_and_harm_no_other() {
        let many = ",".repeat(ELEMENTS_MAX);
        let just = ",".repeat(ELEMENTS_MAX - 1);
        let (found, refused) = unnest(vec![Some("a"), Some(&many), Some(&just), Some(&just), Some("b")], ",");
        assert_eq!((found.len(), refused), (2 * ELEMENTS_MAX + 2, 1));
        assert_eq!(found.last().unwrap().1, "b");
    }

    /// An operator over a text and a note, and a batch of these.
    fn with_note(rows: Vec<(&str, &str)>) -> (Unnest, Batch) {
        let fields = ["c0", "c1"].map(|name| Field::new(name, DataType::Utf8, true));
        let text = Arc::new(Column::new("c0", 0));
        let plan = Unnest::new(&Schema::new(fields.to_vec()), &Schema::empty(), vec![], text, lit(","), "part", None);
        let columns = [rows.iter().map(|row| row.0).collect::<Vec<_>>(), rows.iter().map(|row| row.1).collect()];
        let columns = columns.map(|column| -> ArrayRef { Arc::new(StringArray::from(column)) });
        let rows: Vec<(u32, i64)> = (0..rows.len() as i64).map(|row| (0, row)).collect();
        (plan.unwrap(), batch(&rows, columns.to_vec()))
    }

    /// The number of rows of each output batch of an operator, and the number of refused rows.
    fn run(operator: &mut dyn Operator, batch: Batch) -> (Vec<usize>, u64) {
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        operator.process(Element::Batch(batch), &mut context).unwrap();
        (output.iter().map(Batch::rows).collect(), refusals.counted(Reason::Expression))
    }

    #[test]
    fn what_every_part_would_carry_has_a_bound() {
        let (many, few, note) = (",".repeat(ELEMENTS_MAX - 1), ",".repeat(99), "n".repeat(100_000));
        let (plan, rows) = with_note(vec![("a", ""), (&many, &note), (&few, &note), ("b", "")]);
        // 10,000 times the note would be a gigabyte; 100 times go on in pieces of 4 MiB.
        let plan = plan.carrying(|name| name == "c1");
        let (found, refused) = run(&mut *plan.create(), rows.clone());
        assert_eq!((found, refused), (vec![43, 42, 17], 1));
        // Columns that are not used later are not carried.
        let plan = plan.carrying(|_| false);
        let names: Vec<_> = plan.output_schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["part"]);
        assert_eq!(run(&mut *plan.create(), rows), (vec![10_102], 0));
    }

    #[test]
    fn a_call_that_failed_leaves_nothing_behind() {
        let (plan, rows) = with_note(vec![("a,b", "")]);
        let mut operator = UnnestOperator { plan, rows: vec![7, 8], bytes: 9 };
        assert_eq!(run(&mut operator, rows), (vec![2], 0));
    }

    #[test]
    fn only_text_is_split() {
        let input = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
        let number = Arc::new(Column::new("n", 0));
        let error = Unnest::new(&input, &Schema::empty(), vec![], number, lit(","), "x", None).unwrap_err();
        assert!(error.to_string().contains("only text"), "{error}");
    }
}
