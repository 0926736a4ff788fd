//! UNNEST: an event with several values in an array or map becomes several rows, in order.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Builder, RecordBatch, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{
    Address, Batch, Context, Description, Element, Operator, OperatorError, OperatorFactory, Reason,
};

use crate::PlanError;
use crate::elements::{ElementColumn, each_element, each_member};
use crate::expression::{Expressions, sql};

/// The most values into which one event is unnested. An event with more is refused.
pub const ELEMENTS_MAX: usize = 10_000;

/// The most bytes of other columns that the elements of one event carry together. An event with more is refused.
pub const EVENT_BYTES_MAX: usize = 64 << 20;

/// From this many rows on a batch is emitted, so that many events with many values do not become one batch.
const OUTPUT_ROWS_MAX: usize = 1 << 14;

/// From this many bytes on a batch is emitted. Far below 2 GiB, where the offsets of a column of text end.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Repeats each row for each element of an array in JSON, with the element in a further column. The elements of an
/// array of rows may be divided into their fields, and the entries of a map are into key and value. A row whose array
/// is null or empty gives no rows. A row with more than [`ELEMENTS_MAX`] elements, or whose elements would carry more
/// than [`EVENT_BYTES_MAX`], is refused, and so is a text that is no array ([`Reason::Expression`]).
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use arrow::datatypes::{DataType, Field, Schema};
/// use datafusion_physical_expr::expressions::Column;
/// use rivulet_operators::Unnest;
///
/// let input = Schema::new(vec![Field::new("readings", DataType::Utf8, true)]);
/// let array = Arc::new(Column::new("readings", 0));
/// let element = Field::new("reading", DataType::Float64, true);
/// let unnest = Unnest::new(&input, &Schema::empty(), vec![], array, None, vec![element], Some("number")).unwrap();
/// let names: Vec<_> = unnest.output_schema().fields().iter().map(|field| field.name().clone()).collect();
/// assert_eq!(names, ["readings", "reading", "number"]);
/// ```
#[derive(Clone, Debug)]
pub struct Unnest {
    /// The array.
    expressions: Arc<Expressions>,
    /// The columns of the input that are repeated.
    carried: Vec<usize>,
    /// The columns of an element.
    elements: Vec<Field>,
    division: Arc<Division>,
    numbered: bool,
    output: SchemaRef,
    text: String,
}

/// How an element becomes columns.
#[derive(Clone, Debug)]
enum Division {
    Whole,
    /// Into the key and the value of an entry of a map.
    Entry,
    /// Into the fields of a row with these names.
    Fields(Vec<String>),
}

impl Unnest {
    /// Makes an operator over rows with the columns of `input`; `array` is compiled against
    /// [`Expressions::evaluation_schema`]`(input, parameter_schema, parameters)`. The output columns are those of the
    /// input, `elements`, and `number` (`Int64`, from 1) if it has a name. Elements are of type `Utf8`, `Int64`,
    /// `Float64` or `Boolean`, or marked as JSON. The array holds values of type `held`: entries of a `Map` are key and
    /// value, and elements that are a `Struct` may be as many columns as it has fields.
    pub fn new(
        input: &Schema,
        parameter_schema: &Schema,
        parameters: Vec<usize>,
        array: Arc<dyn PhysicalExpr>,
        held: Option<&DataType>,
        elements: Vec<Field>,
        number: Option<&str>,
    ) -> Result<Self, PlanError> {
        let shown = format!("unnest({})", sql(&array));
        let expressions = Expressions::new(input, parameter_schema, parameters, vec![array])?;
        for field in expressions.fields() {
            if !field.data_type().is_string() && *field.data_type() != DataType::Null {
                let problem = format!("only an array in JSON has elements, and this has type {}", field.data_type());
                return Err(PlanError::Expression { expression: field.name().clone(), problem });
            }
        }
        let division = match held {
            Some(DataType::Map(..)) => Division::Entry,
            Some(DataType::List(element)) if let DataType::Struct(fields) = element.data_type() => {
                match elements.len() == fields.len() && elements.len() > 1 {
                    true => Division::Fields(fields.iter().map(|field| field.name().clone()).collect()),
                    false => Division::Whole,
                }
            }
            _ => Division::Whole,
        };
        let division = Arc::new(division);
        let number = number.map(|number| Arc::new(Field::new(number, DataType::Int64, false)));
        let numbered = number.is_some();
        let added = elements.iter().cloned().map(Arc::new);
        let fields: Vec<_> = input.fields().iter().cloned().chain(added).chain(number).collect();
        let carried = (0..input.fields().len()).collect();
        let output = Arc::new(Schema::new(fields));
        let expressions = Arc::new(expressions);
        Ok(Self { expressions, carried, elements, division, numbered, output, text: shown })
    }

    /// The same, but it repeats only the columns of the input whose names are used later. This matters above all for
    /// the array, which is long and seldom used again.
    pub fn carrying(self, is_used: impl Fn(&str) -> bool) -> Self {
        let names: Vec<String> = self.output.fields().iter().map(|field| field.name().clone()).collect();
        self.carrying_columns(|column| is_used(&names[column]))
    }

    /// The same by the indices of the columns.
    pub fn carrying_columns(mut self, is_used: impl Fn(usize) -> bool) -> Self {
        let (carried, added) = self.output.fields().split_at(self.carried.len());
        let kept = carried.iter().enumerate().filter(|(column, _)| is_used(*column)).map(|(_, field)| field);
        let output = Schema::new(kept.chain(added).cloned().collect::<Vec<_>>());
        self.carried.retain(|&column| is_used(column));
        self.output = Arc::new(output);
        self
    }

    /// The indices of the columns of the input that are repeated.
    pub fn carried(&self) -> &[usize] {
        &self.carried
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

    fn state(&self) -> Option<Address> {
        None
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
        let arrays = cast(&columns[0], &DataType::Utf8)?;
        let arrays = arrays.as_string::<i32>();
        let mut elements: Vec<ElementColumn> = self.plan.elements.iter().map(ElementColumn::new).collect();
        let mut numbers = Int64Builder::new();
        let division = self.plan.division.clone();
        for row in (0..batch.rows()).filter(|&row| arrays.is_valid(row)) {
            let text = arrays.value(row);
            let mut count = 0;
            let is_array = division.each(text, |_, _| count += 1);
            let carried_bytes = self.carried_bytes(&batch, row);
            let is_too_many = count > ELEMENTS_MAX;
            if !is_array || is_too_many || count.saturating_mul(carried_bytes) > EVENT_BYTES_MAX {
                context.refusals.refuse_row(None, &batch, row, Reason::Expression, || match (is_array, is_too_many) {
                    (false, _) => {
                        "the text is no array in JSON\nhint: write string_to_array(text, ',') for a text with \
                                   a delimiter"
                            .into()
                    }
                    (true, true) => format!(
                        "the array has more than {ELEMENTS_MAX} elements\nhint: send them in several events, or check \
                         the delimiter"
                    ),
                    (true, false) => format!(
                        "each of the {count} elements of the array carries {carried_bytes} bytes of other columns\n\
                         hint: leave long columns out of the SELECT, or send the elements in several events"
                    ),
                });
                continue;
            }
            let mut number = 0;
            let mut failed = Ok(());
            division.each(text, |key, element| {
                if failed.is_err() {
                    return;
                }
                number += 1;
                self.rows.push(row as u32);
                self.bytes += carried_bytes + key.map_or(0, str::len) + element.len();
                division.push(key, element, &mut elements);
                numbers.append_value(number);
                if self.rows.len() >= OUTPUT_ROWS_MAX || self.bytes >= OUTPUT_BYTES_MAX {
                    failed = self.emit(&batch, &mut elements, &mut numbers, context);
                }
            });
            failed?;
        }
        self.emit(&batch, &mut elements, &mut numbers, context)
    }
}

impl Division {
    /// Calls `take` with each element, and with its key if it is an entry of a map. Returns whether the text is an
    /// array, or a map.
    fn each<'t>(&self, text: &'t str, mut take: impl FnMut(Option<&str>, &'t str)) -> bool {
        match self {
            Self::Entry => each_member(text, |key, value| take(Some(&key), value)),
            Self::Whole | Self::Fields(_) => each_element(text, |element| take(None, element)),
        }
    }

    /// Appends an element to its columns.
    fn push(&self, key: Option<&str>, element: &str, columns: &mut [ElementColumn]) {
        match (self, key, columns) {
            (Self::Entry, Some(key), [keys, values]) => {
                keys.push_text(key);
                values.push(Some(element));
            }
            (Self::Fields(names), _, columns) => {
                for (name, column) in names.iter().zip(columns) {
                    let mut found = None;
                    each_member(element, |key, value| found = if key == name.as_str() { Some(value) } else { found });
                    column.push(found);
                }
            }
            (_, _, columns) => columns.iter_mut().for_each(|column| column.push(Some(element))),
        }
    }
}

impl UnnestOperator {
    fn emit(
        &mut self,
        batch: &Batch,
        elements: &mut [ElementColumn],
        numbers: &mut Int64Builder,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let rows = UInt32Array::from(self.rows.clone());
        let carried = self.plan.carried.iter().map(|&column| take(batch.column(column), &rows, None));
        let mut columns = carried.collect::<Result<Vec<_>, _>>()?;
        columns.extend(elements.iter_mut().map(ElementColumn::finish));
        let number: ArrayRef = Arc::new(numbers.finish());
        columns.extend(self.plan.numbered.then_some(number));
        let retracts = batch.retracts.as_ref();
        let retracts = retracts.map(|marks| self.rows.iter().map(|&row| marks.value(row as usize)).collect());
        let rows = Batch::new(
            self.rows.iter().map(|&row| batch.slots[row as usize]).collect(),
            self.rows.iter().map(|&row| batch.event_time_us[row as usize]).collect(),
            self.rows.iter().map(|&row| batch.arrival_us[row as usize]).collect(),
            RecordBatch::try_new(self.plan.output.clone(), columns)?,
        );
        context.emit(rows.with_retracts(retracts as Option<BooleanBuffer>));
        self.rows.clear();
        self.bytes = 0;
        Ok(())
    }

    /// How many bytes of other columns each element of a row carries.
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

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::Int64Type;
    use datafusion_physical_expr::expressions::Column;
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    fn array_of(elements: usize) -> String {
        format!("[{}]", vec!["7"; elements].join(","))
    }

    fn unnest(arrays: Vec<Option<&str>>) -> (Vec<(i64, Option<String>, i64)>, u64) {
        let input = Schema::new(vec![Field::new("c0", DataType::Utf8, true)]);
        let array = Arc::new(Column::new("c0", 0));
        let element = Field::new("element", DataType::Utf8, true);
        let factory =
            Unnest::new(&input, &Schema::empty(), vec![], array, None, vec![element], Some("number")).unwrap();
        let factory = factory.carrying(|_| false);
        let rows: Vec<(u32, i64)> = (0..arrays.len() as i64).map(|row| (0, row)).collect();
        let rows = batch(&rows, vec![Arc::new(StringArray::from(arrays))]);
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        factory.create().process(Element::Batch(rows), &mut context).unwrap();
        let read = |batch: &Batch, row: usize| {
            let number = batch.column(1).as_primitive::<Int64Type>().value(row);
            let elements = batch.column(0).as_string::<i32>();
            let element = elements.is_valid(row).then(|| elements.value(row).to_owned());
            (batch.event_time_us[row], element, number)
        };
        let found = output.iter().flat_map(|batch| (0..batch.rows()).map(move |row| read(batch, row))).collect();
        (found, refusals.counted(Reason::Expression))
    }

    #[test]
    fn each_element_is_a_row_in_order() {
        let arrays =
            vec![Some(r#"["1", " 2"]"#), None, Some("[]"), Some(r#"["x\"",null,[1, {"a": 2}]]"#), Some("[3.5]")];
        let (found, refused) = unnest(arrays);
        let expected = [
            (0, Some("1"), 1),
            (0, Some(" 2"), 2),
            (3, Some("x\""), 1),
            (3, None, 2),
            (3, Some(r#"[1, {"a": 2}]"#), 3),
            (4, Some("3.5"), 1),
        ];
        assert_eq!(found, expected.map(|(time, element, number)| (time, element.map(str::to_owned), number)));
        assert_eq!(refused, 0);
    }

    #[test]
    fn what_is_no_array_is_refused_and_harms_no_other() {
        let (found, refused) = unnest(vec![Some(""), Some("[1"), Some("{}"), Some("[1] 2"), Some("[1]"), Some("1,2")]);
        assert_eq!((found.len(), refused), (1, 5));
    }

    #[test]
    fn too_many_elements_are_refused_and_harm_no_other() {
        let (many, just) = (array_of(ELEMENTS_MAX + 1), array_of(ELEMENTS_MAX));
        let (found, refused) = unnest(vec![Some("[1]"), Some(&many), Some(&just), Some(&just), Some("[2]")]);
        assert_eq!((found.len(), refused), (2 * ELEMENTS_MAX + 2, 1));
        assert_eq!(found.last().unwrap().1.as_deref(), Some("2"));
    }

    /// An operator over an array and a note, and a batch of these.
    fn with_note(rows: Vec<(&str, &str)>) -> (Unnest, Batch) {
        let fields = ["c0", "c1"].map(|name| Field::new(name, DataType::Utf8, true));
        let (array, element) = (Arc::new(Column::new("c0", 0)), Field::new("part", DataType::Utf8, true));
        let plan =
            Unnest::new(&Schema::new(fields.to_vec()), &Schema::empty(), vec![], array, None, vec![element], None);
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
    fn what_every_element_would_carry_has_a_bound() {
        let (many, few, note) = (array_of(ELEMENTS_MAX), array_of(100), "n".repeat(100_000));
        let (plan, rows) = with_note(vec![("[1]", ""), (&many, &note), (&few, &note), ("[2]", "")]);
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
        let (plan, rows) = with_note(vec![("[1,2]", "")]);
        let mut operator = UnnestOperator { plan, rows: vec![7, 8], bytes: 9 };
        assert_eq!(run(&mut operator, rows), (vec![2], 0));
    }

    #[test]
    fn elements_of_a_row_that_is_taken_back_are_taken_back() {
        let (plan, rows) = with_note(vec![("[1,2]", ""), ("[3]", "")]);
        let rows = rows.with_retracts(Some(BooleanBuffer::from(vec![false, true])));
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        plan.create().process(Element::Batch(rows), &mut context).unwrap();
        let marks: Vec<bool> = (0..3).map(|row| output[0].is_retraction(row)).collect();
        assert_eq!(marks, [false, false, true]);
    }

    #[test]
    fn only_arrays_have_elements() {
        let input = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
        let (number, element) = (Arc::new(Column::new("n", 0)), Field::new("x", DataType::Utf8, true));
        let error = Unnest::new(&input, &Schema::empty(), vec![], number, None, vec![element], None).unwrap_err();
        assert!(error.to_string().contains("only an array"), "{error}");
    }
}
