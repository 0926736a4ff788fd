//! SELECT: computes the columns that go on.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use rivulet_dataflow::{Address, Context, Description, Element, Operator, OperatorError, OperatorFactory};

use crate::PlanError;
use crate::expression::{Expressions, NamedExpression};

/// Replaces the columns of every row by computed columns. Slots and times stay.
#[derive(Clone, Debug)]
pub struct Project {
    expressions: Arc<Expressions>,
    output: SchemaRef,
}

impl Project {
    /// Makes a projection to `columns`, compiled against [`Expressions::evaluation_schema`].
    pub fn new(
        input: &Schema,
        parameter_schema: &Schema,
        parameters: Vec<usize>,
        columns: Vec<NamedExpression>,
    ) -> Result<Self, PlanError> {
        let (names, expressions): (Vec<_>, Vec<_>) =
            columns.into_iter().map(|column| (column.name, column.expression)).unzip();
        let expressions = Expressions::new(input, parameter_schema, parameters, expressions)?;
        let fields: Vec<Field> = expressions
            .fields()
            .iter()
            .zip(names)
            // For later operators every computed column may hold nulls: an expression that wrongly claims that it
            // cannot be null must not fail the whole batch.
            .map(|(field, name)| field.clone().with_name(name).with_nullable(true))
            .collect();
        Ok(Self { expressions: Arc::new(expressions), output: Arc::new(Schema::new(fields)) })
    }

    /// The same, with the marks of these columns: that they are JSON or arrays may be known where the expressions do
    /// not say it.
    #[must_use]
    pub fn marked_like<'f>(mut self, columns: impl IntoIterator<Item = &'f Field>) -> Self {
        let output = self.output.fields().iter().zip(columns);
        let output = output.map(|(field, like)| field.as_ref().clone().with_metadata(like.metadata().clone()));
        self.output = Arc::new(Schema::new(output.collect::<Vec<_>>()));
        self
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.output
    }
}

impl OperatorFactory for Project {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(ProjectOperator { expressions: self.expressions.clone(), output: self.output.clone() })
    }

    fn describe(&self) -> Description {
        let shared = self.expressions.fields().iter().zip(self.output.fields());
        Description {
            operator: "project".into(),
            shared: shared
                .map(|(expression, column)| match expression.name() == column.name() {
                    true => column.name().clone(),
                    false => format!("{} AS {}", expression.name(), column.name()),
                })
                .collect(),
            per_slot: self.expressions.parameter_names(),
        }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

struct ProjectOperator {
    expressions: Arc<Expressions>,
    output: SchemaRef,
}

impl Operator for ProjectOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        let (batch, columns) = self.expressions.evaluate(batch, context)?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
        let columns = RecordBatch::try_new_with_options(self.output.clone(), columns, &options)?;
        context.emit(batch.with_columns(columns));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Float64Array};
    use arrow::datatypes::DataType;
    use datafusion_expr::Operator as Sql;
    use datafusion_physical_expr::expressions::{binary, lit};
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::expression::column;
    use crate::testing::{batch, parameter_table, process_context};

    #[test]
    fn columns_are_computed_and_named() {
        let input = Schema::new(vec![Field::new("value", DataType::Float64, true)]);
        let parameters = Schema::new(vec![Field::new("offset", DataType::Float64, true)]);
        let schema = Expressions::evaluation_schema(&input, &parameters, &[0]);
        let sum = binary(column(&schema, 0), Sql::Plus, column(&schema, 1), &schema).unwrap();
        let columns = vec![
            NamedExpression::new("corrected", sum),
            NamedExpression::new("value", column(&schema, 0)),
            NamedExpression::new("kind", lit("t")),
        ];
        let project = Project::new(&input, &parameters, vec![0], columns).unwrap();
        let names: Vec<_> = project.output_schema().fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["corrected", "value", "kind"]);
        assert_eq!(project.describe().shared[0], "value + $offset AS corrected");
        assert_eq!(project.describe().shared[1], "value");

        let table = parameter_table("offset", Arc::new(Float64Array::from(vec![1.0, -1.0])));
        let rows = batch(&[(1, 10), (0, 11)], vec![Arc::new(Float64Array::from(vec![5.0, 5.0]))]);
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        project.create().process(Element::Batch(rows), &mut context).unwrap();
        assert_eq!(output[0].column(0).as_ref(), &Float64Array::from(vec![4.0, 6.0]) as &dyn Array);
        assert_eq!(output[0].slots.as_ref(), &[1, 0]);
        assert_eq!(output[0].columns.schema_ref(), project.output_schema());
    }
}
