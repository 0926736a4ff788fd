//! UNNEST: an event with several values in a text becomes several rows, in order.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Builder, RecordBatch, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{
    Batch, Context, Description, Element, Operator, OperatorError, OperatorFactory, Reason, Refused,
};

use crate::PlanError;
use crate::expression::{Expressions, sql};

/// The most values that one event is unnested into; one with more is refused.
pub const ELEMENTS_MAX: usize = 10_000;

/// From how many rows on a batch is emitted, so that many events with many values do not become one batch.
const OUTPUT_ROWS_MAX: usize = 1 << 14;

/// Splits a text of each row at a delimiter, and repeats the row for each part with the part in a further column. A row
/// whose text or delimiter is null, or whose text is empty, gives none; an empty delimiter splits nothing. A row with more
/// than [`ELEMENTS_MAX`] parts is refused ([`Reason::Expression`]).
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
    numbered: bool,
    output: SchemaRef,
    text: String,
}

impl Unnest {
    /// An operator over rows with the columns of `input`; `text` and `delimiter` are compiled against
    /// [`Expressions::evaluation_schema`]`(input, parameter_schema, parameters)`. What comes out are the columns of the
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
        Ok(Self { expressions: Arc::new(expressions), numbered, output: Arc::new(Schema::new(fields)), text: shown })
    }

    /// The columns that come out.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.output
    }
}

impl OperatorFactory for Unnest {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(UnnestOperator { plan: self.clone(), rows: Vec::new() })
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
    /// For each row on its way out the row it comes from, kept for its memory.
    rows: Vec<u32>,
}

impl Operator for UnnestOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        let (batch, columns) = self.plan.expressions.evaluate(batch, context)?;
        let columns = columns.iter().map(|column| cast(column, &DataType::Utf8)).collect::<Result<Vec<_>, _>>()?;
        let (texts, delimiters) = (columns[0].as_string::<i32>(), columns[1].as_string::<i32>());
        let (mut elements, mut numbers) = (StringBuilder::new(), Int64Builder::new());
        for row in 0..batch.rows() {
            if texts.is_null(row) || delimiters.is_null(row) || texts.value(row).is_empty() {
                continue;
            }
            let (text, delimiter) = (texts.value(row), delimiters.value(row));
            if parts(text, delimiter).nth(ELEMENTS_MAX).is_some() {
                context.refusals.refuse(batch.slots[row], Reason::Expression, batch.arrival_us[row], || {
                    let detail = format!(
                        "the text has more than {ELEMENTS_MAX} parts\nhint: send them in several events, or check the \
                         delimiter"
                    );
                    (detail, Refused::Row(Box::new(batch.slice(row, 1))))
                });
                continue;
            }
            for (index, part) in parts(text, delimiter).enumerate() {
                self.rows.push(row as u32);
                elements.append_value(part);
                numbers.append_value(index as i64 + 1);
            }
            if self.rows.len() >= OUTPUT_ROWS_MAX {
                self.emit(&batch, &mut elements, &mut numbers, context)?;
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
        let rows = batch.take(&self.rows)?;
        self.rows.clear();
        let element: ArrayRef = Arc::new(elements.finish());
        let number: ArrayRef = Arc::new(numbers.finish());
        let columns = rows.columns.columns().iter().cloned().chain([element]);
        let columns = columns.chain(self.plan.numbered.then_some(number)).collect();
        context.emit(rows.with_columns(RecordBatch::try_new(self.plan.output.clone(), columns)?));
        Ok(())
    }
}

/// The parts of a text; all of it where the delimiter is empty.
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
        let rows: Vec<(u32, i64)> = (0..texts.len() as i64).map(|row| (0, row)).collect();
        let rows = batch(&rows, vec![Arc::new(StringArray::from(texts))]);
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        factory.create().process(Element::Batch(rows), &mut context).unwrap();
        let read = |batch: &Batch, row: usize| {
            let number = batch.column(2).as_primitive::<Int64Type>().value(row);
            (batch.event_time_us[row], batch.column(1).as_string::<i32>().value(row).to_owned(), number)
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

    #[test]
    fn only_text_is_split() {
        let input = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
        let number = Arc::new(Column::new("n", 0));
        let error = Unnest::new(&input, &Schema::empty(), vec![], number, lit(","), "x", None).unwrap_err();
        assert!(error.to_string().contains("only text"), "{error}");
    }
}
