//! Compiled expressions, evaluated over a batch and the parameters of its rows' queries.
//!
//! An expression sees one flat row: the input columns, then the parameters it uses. The parameters are gathered by slot
//! once for all expressions of an operator call, so `value > $target` is one vectorised comparison however many queries
//! the batch holds. A row on which an expression fails is refused; the other rows go on.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_empty_array, new_null_array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion_common::DataFusionError;
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::{PhysicalExpr, utils::collect_columns};
use rivulet_dataflow::{Batch, Context, OperatorError, Reason};

use crate::PlanError;

/// An expression and the name of the column that it computes.
#[derive(Clone, Debug)]
pub struct NamedExpression {
    /// The name of the output column.
    pub name: String,
    /// The expression, compiled against [`Expressions::evaluation_schema`].
    pub expression: Arc<dyn PhysicalExpr>,
}

impl NamedExpression {
    /// Makes a pair of an expression and its name.
    pub fn new(name: impl Into<String>, expression: Arc<dyn PhysicalExpr>) -> Self {
        Self { name: name.into(), expression }
    }
}

/// Several expressions over the same columns, evaluated together.
#[derive(Clone, Debug)]
pub struct Expressions {
    schema: SchemaRef,
    input_columns: usize,
    parameters: Arc<[usize]>,
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    fields: Vec<Field>,
    /// Whether any expression uses a parameter. If none does, nothing is gathered.
    uses_parameters: bool,
}

impl Expressions {
    /// Returns the columns that expressions are compiled against: those of `input`, then for each of `parameters`
    /// (indices of `parameter_schema`) a column named `$` and the parameter's name.
    ///
    /// # Panics
    /// If the index of a parameter is not in `parameter_schema`.
    pub fn evaluation_schema(input: &Schema, parameter_schema: &Schema, parameters: &[usize]) -> SchemaRef {
        let gathered = parameters.iter().map(|&parameter| {
            let field = parameter_schema.field(parameter);
            Arc::new(Field::new(format!("${}", field.name()), field.data_type().clone(), true))
        });
        Arc::new(Schema::new(input.fields().iter().cloned().chain(gathered).collect::<Vec<_>>()))
    }

    /// Makes expressions over columns of `input` and, behind them, the parameters with the indices `parameters` of the
    /// slot table's schema `parameter_schema`.
    pub fn new(
        input: &Schema,
        parameter_schema: &Schema,
        parameters: Vec<usize>,
        expressions: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Self, PlanError> {
        if let Some(&index) = parameters.iter().find(|&&parameter| parameter >= parameter_schema.fields().len()) {
            return Err(PlanError::Column { index, what: "the parameters", problem: "there is no such column".into() });
        }
        let schema = Self::evaluation_schema(input, parameter_schema, &parameters);
        let input_columns = input.fields().len();
        let mut uses_parameters = false;
        let mut fields = Vec::with_capacity(expressions.len());
        for expression in &expressions {
            let fail = |problem: String| PlanError::Expression { expression: sql(expression), problem };
            for column in collect_columns(expression) {
                if column.index() >= schema.fields().len() {
                    return Err(fail(format!("there is no column {}", column.index())));
                }
                uses_parameters |= column.index() >= input_columns;
            }
            let data_type = expression.data_type(&schema).map_err(|error| fail(error.to_string()))?;
            let nullable = expression.nullable(&schema).map_err(|error| fail(error.to_string()))?;
            // The metadata of a field (for example that it is JSON) is kept.
            let found = expression.return_field(&schema).map_err(|error| fail(error.to_string()))?;
            fields.push(Field::new(sql(expression), data_type, nullable).with_metadata(found.metadata().clone()));
        }
        Ok(Self { schema, input_columns, parameters: parameters.into(), expressions, fields, uses_parameters })
    }

    /// Makes expressions over the parameters alone: column i is parameter i of the slot table's schema.
    pub fn over_parameters(
        parameter_schema: &Schema,
        expressions: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Self, PlanError> {
        Self::new(&Schema::empty(), parameter_schema, (0..parameter_schema.fields().len()).collect(), expressions)
    }

    /// The type and nullability of each expression's values; the name is the expression's text.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The columns over which the expressions are evaluated.
    pub(crate) fn input_schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The number of expressions.
    pub fn len(&self) -> usize {
        self.expressions.len()
    }

    /// Whether there is no expression.
    pub fn is_empty(&self) -> bool {
        self.expressions.is_empty()
    }

    /// The names of the parameters that the expressions use, with a leading `$`.
    pub fn parameter_names(&self) -> Vec<String> {
        let mut used: Vec<usize> = self
            .expressions
            .iter()
            .flat_map(collect_columns)
            .map(|column| column.index())
            .filter(|&index| index >= self.input_columns)
            .collect();
        used.sort_unstable();
        used.dedup();
        used.into_iter().map(|index| self.schema.field(index).name().clone()).collect()
    }

    /// Whether the expression at an index uses the parameter of this name.
    pub(crate) fn uses_parameter(&self, place: usize, name: &str) -> bool {
        let is_it = |index: usize| {
            index >= self.input_columns && self.schema.field(index).name().strip_prefix('$') == Some(name)
        };
        collect_columns(&self.expressions[place]).iter().any(|column| is_it(column.index()))
    }

    /// Evaluates every expression over every row. Returns one array for each expression, with one value for each row
    /// that is left.
    ///
    /// Rows on which an expression fails are refused ([`Reason::Expression`]) and are missing from the returned batch.
    /// It returns an error if the batch does not have the declared columns.
    pub fn evaluate(&self, batch: Batch, context: &mut Context<'_>) -> Result<(Batch, Vec<ArrayRef>), OperatorError> {
        self.evaluate_first(self.expressions.len(), batch, context)
    }

    /// The same, except for the expressions behind the first `required` ones. Where one of these fails, its value is
    /// null, the failure is counted as a refusal, and the row stays for the other expressions.
    pub(crate) fn evaluate_or_null(
        &self,
        required: usize,
        batch: Batch,
        context: &mut Context<'_>,
    ) -> Result<(Batch, Vec<ArrayRef>), OperatorError> {
        if self.expressions.is_empty() || batch.is_empty() {
            return self.evaluate(batch, context);
        }
        let rows = self.evaluation_batch(&batch, context)?;
        if let Ok(columns) = evaluate_rows(&self.expressions, &rows) {
            return Ok((batch, columns));
        }
        let (batch, mut columns) = self.evaluate_first(required, batch, context)?;
        let rows = self.evaluation_batch(&batch, context)?;
        // A row is counted once, however many expressions fail on it.
        let mut is_counted = vec![false; batch.rows()];
        for (expression, field) in self.expressions.iter().zip(&self.fields).skip(required) {
            let mut pieces: Vec<ArrayRef> = vec![new_empty_array(field.data_type())];
            for (range, result) in bisect(std::slice::from_ref(expression), &rows) {
                pieces.push(match result {
                    Ok(mut values) => values.swap_remove(0),
                    Err(error) => {
                        for row in range.clone().filter(|&row| !std::mem::replace(&mut is_counted[row], true)) {
                            refuse(&batch, row, &error, context);
                        }
                        new_null_array(field.data_type(), range.len())
                    }
                });
            }
            let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
            columns.push(concat(&pieces)?);
        }
        Ok((batch, columns))
    }

    /// Evaluates the first `count` expressions. Rows on which one of them fails are refused.
    pub(crate) fn evaluate_first(
        &self,
        count: usize,
        batch: Batch,
        context: &mut Context<'_>,
    ) -> Result<(Batch, Vec<ArrayRef>), OperatorError> {
        if count == 0 || batch.is_empty() {
            let empty = self.fields[..count].iter().map(|field| new_empty_array(field.data_type())).collect();
            return Ok((batch, empty));
        }
        let rows = self.evaluation_batch(&batch, context)?;
        match self.evaluate_each(count, &rows, |row, error| refuse(&batch, row, error, context))? {
            (None, columns) => Ok((batch, columns)),
            (Some(kept), columns) => Ok((batch.take(&kept)?, columns)),
        }
    }

    /// Evaluates the first `count` expressions over the rows that they see, and calls `refuse` for each row on which
    /// one of them fails. Returns the columns and, if rows failed, the indices of the other rows.
    pub(crate) fn evaluate_each(
        &self,
        count: usize,
        rows: &RecordBatch,
        mut refuse: impl FnMut(usize, &DataFusionError),
    ) -> Result<(Option<Vec<u32>>, Vec<ArrayRef>), ArrowError> {
        let (expressions, fields) = (&self.expressions[..count], &self.fields[..count]);
        let failed = match evaluate_rows(expressions, rows) {
            Ok(columns) => return Ok((None, columns)),
            Err(error) if rows.num_rows() == 1 => vec![(0..1, Err(error))],
            Err(_) => bisect(expressions, rows),
        };
        let mut kept: Vec<u32> = Vec::with_capacity(rows.num_rows());
        let mut pieces: Vec<Vec<ArrayRef>> = Vec::new();
        for (range, result) in failed {
            match result {
                Ok(columns) => {
                    kept.extend(range.start as u32..range.end as u32);
                    pieces.push(columns);
                }
                Err(error) => refuse(range.start, &error),
            }
        }
        let columns = (0..count).map(|index| {
            let parts: Vec<&dyn Array> = pieces.iter().map(|piece| piece[index].as_ref()).collect();
            match parts.is_empty() {
                true => Ok(new_empty_array(fields[index].data_type())),
                false => concat(&parts),
            }
        });
        Ok((Some(kept), columns.collect::<Result<_, _>>()?))
    }

    /// Evaluates expressions made by [`Expressions::over_parameters`] for each row of `parameters`, which has the slot
    /// table's schema. Each row has its own result: the values of all expressions as arrays of one row, or the error.
    pub(crate) fn evaluate_parameters(&self, parameters: &RecordBatch) -> Vec<RowsOrError> {
        let options = RecordBatchOptions::new().with_row_count(Some(parameters.num_rows()));
        let columns = self.parameters.iter().map(|&parameter| parameters.column(parameter).clone()).collect();
        match RecordBatch::try_new_with_options(self.schema.clone(), columns, &options) {
            Ok(rows) if rows.num_rows() == 0 => Vec::new(),
            Ok(rows) => bisect(&self.expressions, &rows),
            Err(error) => {
                let error = DataFusionError::Internal(format!("the parameters do not fit the plan: {error}"));
                vec![(0..parameters.num_rows(), Err(error))]
            }
        }
    }

    /// Makes the batch that the expressions see: the input columns and the gathered parameters.
    fn evaluation_batch(&self, batch: &Batch, context: &Context<'_>) -> Result<RecordBatch, OperatorError> {
        if batch.columns.num_columns() != self.input_columns {
            return Err(OperatorError::new(format!(
                "a batch of {} columns came to expressions over {}",
                batch.columns.num_columns(),
                self.input_columns
            )));
        }
        if !self.uses_parameters {
            // The expressions use no column behind those of the input, so the batch serves as it is.
            return Ok(batch.columns.clone());
        }
        let gathered = self.parameters.iter().map(|&parameter| context.slots.gather(parameter, &batch.slots));
        let columns = batch.columns.columns().iter().cloned().chain(gathered).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

fn evaluate_rows(expressions: &[Arc<dyn PhysicalExpr>], rows: &RecordBatch) -> Result<Vec<ArrayRef>, DataFusionError> {
    expressions.iter().map(|expression| expression.evaluate(rows)?.into_array_of_size(rows.num_rows())).collect()
}

/// Halves the rows until every piece either succeeds or is one failing row. The pieces come in row order and cover all
/// rows. A batch of n rows is evaluated at most 2n - 1 times.
fn bisect(expressions: &[Arc<dyn PhysicalExpr>], rows: &RecordBatch) -> Vec<RowsOrError> {
    let mut done = Vec::new();
    let mut open = Vec::new();
    open.push(0..rows.num_rows());
    while let Some(range) = open.pop() {
        match evaluate_rows(expressions, &rows.slice(range.start, range.len())) {
            Err(_) if range.len() > 1 => {
                let middle = range.start + range.len() / 2;
                open.push(middle..range.end);
                open.push(range.start..middle);
            }
            result => done.push((range, result)),
        }
    }
    done
}

/// A range of rows that succeeded together, or one row that failed (all rows, if the columns do not fit at all).
pub(crate) type RowsOrError = (std::ops::Range<usize>, Result<Vec<ArrayRef>, DataFusionError>);

/// The expression as SQL text, for `EXPLAIN` and errors.
pub fn sql(expression: &Arc<dyn PhysicalExpr>) -> String {
    struct Sql<'a>(&'a dyn PhysicalExpr);
    impl fmt::Display for Sql<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt_sql(f)
        }
    }
    Sql(expression.as_ref()).to_string()
}

/// A reference to a column by index, the most frequent expression.
///
/// # Panics
/// If the schema has no such column.
pub fn column(schema: &Schema, index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(schema.field(index).name(), index))
}

/// Whether a condition may have this type.
pub(crate) fn is_condition(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Boolean | DataType::Null)
}

pub(crate) fn refuse(batch: &Batch, row: usize, error: &DataFusionError, context: &mut Context<'_>) {
    context.refusals.refuse_row(None, batch, row, Reason::Expression, || error.strip_backtrace());
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use datafusion_expr::Operator;
    use datafusion_physical_expr::expressions::{binary, lit};
    use rivulet_dataflow::Refusals;
    use rivulet_dataflow::Refused;

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    fn schemas() -> (Schema, Schema) {
        (
            Schema::new(vec![Field::new("v", DataType::Int64, true)]),
            Schema::new(vec![Field::new("divisor", DataType::Int64, true)]),
        )
    }

    /// `v / $divisor`, which fails where the divisor is zero.
    fn quotient() -> Expressions {
        let (input, parameters) = schemas();
        let schema = Expressions::evaluation_schema(&input, &parameters, &[0]);
        let quotient = binary(column(&schema, 0), Operator::Divide, column(&schema, 1), &schema).unwrap();
        Expressions::new(&input, &parameters, vec![0], vec![quotient]).unwrap()
    }

    #[test]
    fn parameters_are_those_of_the_rows_query() {
        let table = parameter_table("divisor", Arc::new(Int64Array::from(vec![1, 2, 5])));
        let rows = batch(&[(0, 1), (2, 2), (1, 3)], vec![Arc::new(Int64Array::from(vec![10, 10, 10]))]);
        let mut refusals = Refusals::new(0);
        let mut output = Vec::new();
        let (_, columns) = quotient().evaluate(rows, &mut process_context(&table, &mut refusals, &mut output)).unwrap();
        assert_eq!(columns[0].as_ref(), &Int64Array::from(vec![10, 2, 5]) as &dyn Array);
    }

    #[test]
    fn a_failing_row_is_refused_and_the_others_go_on() {
        let table = parameter_table("divisor", Arc::new(Int64Array::from(vec![1, 0])));
        let slots: Vec<(u32, i64)> = (0..100).map(|row| (u32::from(row % 10 == 3), row)).collect();
        let values = Int64Array::from_iter_values(0..100);
        let mut refusals = Refusals::new(100);
        let mut output = Vec::new();
        let (kept, columns) = quotient()
            .evaluate(batch(&slots, vec![Arc::new(values)]), &mut process_context(&table, &mut refusals, &mut output))
            .unwrap();
        let expected: Vec<i64> = (0..100).filter(|row| row % 10 != 3).collect();
        assert_eq!(columns[0].as_primitive::<Int64Type>().values().as_ref(), expected);
        assert_eq!(kept.event_time_us.as_ref(), expected);
        assert_eq!(refusals.counted(Reason::Expression), 10);
        assert!(refusals.records()[0].detail.contains("Divide by zero"), "{}", refusals.records()[0].detail);
        let Refused::Row(row) = &refusals.records()[1].content else { panic!("a row is kept as a row") };
        assert_eq!(row.event_time_us.as_ref(), &[13]);
    }

    #[test]
    fn a_scalar_is_expanded_and_no_parameter_is_gathered() {
        let (input, parameters) = schemas();
        let constant = Expressions::new(&input, &parameters, vec![0], vec![lit(7i64)]).unwrap();
        assert!(constant.parameter_names().is_empty());
        assert_eq!(quotient().parameter_names(), ["$divisor"]);
        // The table has no slot: gathering from it would panic.
        let table = parameter_table("divisor", Arc::new(Int64Array::from(Vec::<i64>::new())));
        let rows = batch(&[(0, 1), (1, 2)], vec![Arc::new(Int64Array::from(vec![1, 2]))]);
        let mut refusals = Refusals::new(0);
        let mut output = Vec::new();
        let (_, columns) = constant.evaluate(rows, &mut process_context(&table, &mut refusals, &mut output)).unwrap();
        assert_eq!(columns[0].as_ref(), &Int64Array::from(vec![7, 7]) as &dyn Array);
    }

    #[test]
    fn a_column_that_does_not_exist_is_found_when_planning() {
        let (input, parameters) = schemas();
        let beyond: Arc<dyn PhysicalExpr> = Arc::new(Column::new("x", 9));
        let error = Expressions::new(&input, &parameters, vec![], vec![beyond]).unwrap_err();
        assert!(error.to_string().contains("no column 9"), "{error}");
        let error = Expressions::new(&input, &parameters, vec![4], vec![]).unwrap_err();
        assert!(matches!(error, PlanError::Column { index: 4, .. }), "{error}");
    }

    #[test]
    fn an_expression_that_fails_is_null_and_its_row_stays() {
        let schema = Schema::new(vec![Field::new("v", DataType::Int64, false)]);
        let divided = |by| binary(lit(100i64), Operator::Divide, by, &schema).unwrap();
        let v = || column(&schema, 0);
        let less = binary(v(), Operator::Minus, lit(5i64), &schema).unwrap();
        let expressions = vec![divided(v()), divided(less), v()];
        let expressions = Expressions::new(&schema, &Schema::empty(), vec![], expressions).unwrap();
        let rows = batch(&[(0, 1), (0, 2), (0, 3)], vec![Arc::new(Int64Array::from(vec![10, 5, 0]))]);
        let table = parameter_table("p", Arc::new(Int64Array::from(vec![0])));
        for (required, kept, refused) in [(0, vec![1, 2, 3], 2), (1, vec![1, 2], 2)] {
            let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
            let context = &mut process_context(&table, &mut refusals, &mut output);
            let (batch, columns) = expressions.evaluate_or_null(required, rows.clone(), context).unwrap();
            assert_eq!(batch.event_time_us.as_ref(), kept);
            let values = |at: usize| columns[at].as_primitive::<Int64Type>().iter().collect::<Vec<_>>();
            assert_eq!(values(0), [vec![Some(10), Some(20)], vec![None; 1 - required]].concat());
            assert_eq!(values(1), [vec![Some(20), None], vec![Some(-20); 1 - required]].concat());
            assert_eq!(values(2), [vec![Some(10), Some(5)], vec![Some(0); 1 - required]].concat());
            assert_eq!(refusals.counted(Reason::Expression), refused);
        }
    }
}
