//! To which of several outputs a row goes, by a condition for each output.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Address, Context, Description, Element, Operator, OperatorError, OperatorFactory};

use crate::PlanError;
use crate::expression::{Expressions, is_condition};

/// The name of the column that says to which outputs a row goes (`UInt32`, the lowest bit for the first output).
pub const OUTPUT_BITS_COLUMN: &str = "$outputs";

/// Appends the column [`OUTPUT_BITS_COLUMN`]. A row goes to every output whose condition is true (null counts as
/// false), and to every output without condition. A row that goes to no output is dropped.
#[derive(Clone, Debug)]
pub struct Route {
    conditions: Arc<Expressions>,
    /// For each condition, its output.
    outputs: Arc<[u32]>,
    /// The bits of outputs without condition.
    always: u32,
    output: SchemaRef,
}

impl Route {
    /// Makes a route from the condition of each output, compiled against [`Expressions::evaluation_schema`]. At most 32
    /// outputs.
    pub fn new(
        input: &Schema,
        parameter_schema: &Schema,
        parameters: Vec<usize>,
        conditions: Vec<Option<Arc<dyn PhysicalExpr>>>,
    ) -> Result<Self, PlanError> {
        if conditions.len() > u32::BITS as usize {
            let problem = "there are more than 32 outputs".to_owned();
            return Err(PlanError::Column { index: conditions.len(), what: "the outputs", problem });
        }
        let (mut outputs, mut always, mut given) = (Vec::new(), 0, Vec::new());
        for (output, condition) in (0..).zip(conditions) {
            match condition {
                Some(condition) => {
                    outputs.push(output);
                    given.push(condition);
                }
                None => always |= 1 << output,
            }
        }
        let conditions = Expressions::new(input, parameter_schema, parameters, given)?;
        if let Some(field) = conditions.fields().iter().find(|field| !is_condition(field.data_type())) {
            return Err(PlanError::Expression {
                expression: field.name().clone(),
                problem: format!("a condition is true or false, this has type {}", field.data_type()),
            });
        }
        let bits = Arc::new(Field::new(OUTPUT_BITS_COLUMN, DataType::UInt32, false));
        let output = Arc::new(Schema::new(input.fields().iter().cloned().chain([bits]).collect::<Vec<_>>()));
        Ok(Self { conditions: Arc::new(conditions), outputs: outputs.into(), always, output })
    }
}

impl OperatorFactory for Route {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(RouteOperator { plan: self.clone() })
    }

    fn describe(&self) -> Description {
        Description {
            operator: "route".into(),
            shared: self.conditions.fields().iter().map(|field| field.name().clone()).collect(),
            per_slot: self.conditions.parameter_names(),
        }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

struct RouteOperator {
    plan: Route,
}

impl Operator for RouteOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        let (batch, columns) = self.plan.conditions.evaluate(batch, context)?;
        let mut bits = vec![self.plan.always; batch.rows()];
        for (column, output) in columns.iter().zip(&*self.plan.outputs) {
            if *column.data_type() == DataType::Null {
                continue;
            }
            let is_true = column.as_boolean();
            for row in is_true.values().set_indices().filter(|&row| is_true.is_valid(row)) {
                bits[row] |= 1 << output;
            }
        }
        let keep = bits.contains(&0).then(|| BooleanArray::from_iter(bits.iter().map(|&bits| Some(bits != 0))));
        let columns = batch.columns.columns().iter().cloned().chain([Arc::new(UInt32Array::from(bits)) as _]);
        let routed = batch.with_columns(RecordBatch::try_new(self.plan.output.clone(), columns.collect())?);
        context.emit(match keep {
            Some(keep) => routed.filter(&keep)?,
            None => routed,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::UInt32Type;
    use datafusion_expr::Operator as Comparison;
    use datafusion_physical_expr::expressions::binary;
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::expression::column;
    use crate::testing::{batch, parameter_table, process_context};

    fn bits(conditions: impl Fn(&Schema) -> Vec<Option<Arc<dyn PhysicalExpr>>>) -> Vec<u32> {
        let input = Schema::new(vec![Field::new("c0", DataType::Int64, true)]);
        let parameters = Schema::new(vec![Field::new("limit", DataType::Int64, true)]);
        let evaluation = Expressions::evaluation_schema(&input, &parameters, &[0]);
        let route = Route::new(&input, &parameters, vec![0], conditions(&evaluation)).unwrap();
        let table = parameter_table("limit", Arc::new(Int64Array::from(vec![2, 5])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let values = Int64Array::from(vec![Some(1), Some(3), Some(3), None]);
        let rows = batch(&[(0, 0), (0, 0), (1, 0), (0, 0)], vec![Arc::new(values)]);
        route.create().process(Element::Batch(rows), &mut process_context(&table, &mut refusals, &mut output)).unwrap();
        output.iter().flat_map(|batch| batch.column(1).as_primitive::<UInt32Type>().values().to_vec()).collect()
    }

    fn above(schema: &Schema) -> Option<Arc<dyn PhysicalExpr>> {
        Some(binary(column(schema, 0), Comparison::Gt, column(schema, 1), schema).unwrap())
    }

    #[test]
    fn a_row_goes_wherever_its_condition_holds() {
        let below = |schema: &Schema| binary(column(schema, 0), Comparison::Lt, column(schema, 1), schema).unwrap();
        assert_eq!(bits(|schema| vec![above(schema), None, Some(below(schema))]), [0b110, 0b011, 0b110, 0b010]);
        assert_eq!(bits(|schema| vec![above(schema)]), [1], "what goes nowhere is left out");
        assert_eq!(bits(|_| vec![None, None]), [3, 3, 3, 3]);
    }
}
