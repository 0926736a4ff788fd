//! WHERE and HAVING: rows for which a condition is true go on.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Schema};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Address, Context, Description, Element, Operator, OperatorError, OperatorFactory};

use crate::PlanError;
use crate::expression::{Expressions, is_condition};

/// Passes the rows for which the condition is true; null counts as false, as in SQL.
#[derive(Clone, Debug)]
pub struct Filter {
    condition: Arc<Expressions>,
}

impl Filter {
    /// Makes a filter on `condition`, compiled against [`Expressions::evaluation_schema`].
    pub fn new(
        input: &Schema,
        parameter_schema: &Schema,
        parameters: Vec<usize>,
        condition: Arc<dyn PhysicalExpr>,
    ) -> Result<Self, PlanError> {
        let condition = Expressions::new(input, parameter_schema, parameters, vec![condition])?;
        let field = &condition.fields()[0];
        if !is_condition(field.data_type()) {
            return Err(PlanError::Expression {
                expression: field.name().clone(),
                problem: format!("a condition is true or false, this has type {}", field.data_type()),
            });
        }
        Ok(Self { condition: Arc::new(condition) })
    }
}

impl OperatorFactory for Filter {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(FilterOperator { condition: self.condition.clone() })
    }

    fn describe(&self) -> Description {
        Description {
            operator: "filter".into(),
            shared: self.condition.fields().iter().map(|field| field.name().clone()).collect(),
            per_slot: self.condition.parameter_names(),
        }
    }

    fn state(&self) -> Option<Address> {
        None
    }

    fn only_compares(&self) -> bool {
        true
    }
}

struct FilterOperator {
    condition: Arc<Expressions>,
}

impl Operator for FilterOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        let (batch, mut columns) = self.condition.evaluate(batch, context)?;
        let keep = columns.pop().expect("one array for each expression");
        if *keep.data_type() == DataType::Null {
            return Ok(());
        }
        match keep.as_boolean().true_count() {
            0 => {}
            kept if kept == batch.rows() => context.emit(batch),
            _ => context.emit(batch.filter(keep.as_boolean())?),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Float64Array;
    use arrow::datatypes::Field;
    use datafusion_expr::Operator as Sql;
    use datafusion_physical_expr::expressions::{binary, lit};
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::expression::column;
    use crate::testing::{batch, parameter_table, process_context};

    fn schemas() -> (Schema, Schema) {
        (
            Schema::new(vec![Field::new("value", DataType::Float64, true)]),
            Schema::new(vec![Field::new("target", DataType::Float64, true)]),
        )
    }

    #[test]
    fn each_row_is_measured_by_the_parameter_of_its_query() {
        let (input, parameters) = schemas();
        let schema = Expressions::evaluation_schema(&input, &parameters, &[0]);
        let condition = binary(column(&schema, 0), Sql::Gt, column(&schema, 1), &schema).unwrap();
        let filter = Filter::new(&input, &parameters, vec![0], condition).unwrap();
        assert_eq!(filter.describe().per_slot, ["$target"]);

        let table = parameter_table("target", Arc::new(Float64Array::from(vec![Some(20.0), Some(30.0), None])));
        let values = Float64Array::from(vec![Some(25.0), Some(25.0), Some(31.0), None, Some(99.0)]);
        let rows = batch(&[(0, 1), (1, 2), (1, 3), (0, 4), (2, 5)], vec![Arc::new(values)]);
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        filter.create().process(Element::Batch(rows), &mut context).unwrap();
        // A null value and a null parameter make the condition null: the row does not pass.
        assert_eq!(output[0].event_time_us.as_ref(), &[1, 3]);
    }

    #[test]
    fn a_condition_is_boolean() {
        let (input, parameters) = schemas();
        let error = Filter::new(&input, &parameters, vec![], lit(1i64)).unwrap_err();
        assert!(error.to_string().contains("true or false"), "{error}");
    }
}
