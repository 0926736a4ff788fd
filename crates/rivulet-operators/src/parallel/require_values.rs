//! NOT NULL: rows with a null in a column that must not be null are refused and counted.
//!
//! A retraction has the same nulls as the row that it retracts, so either both go on or neither.

use std::sync::Arc;

use arrow::array::Array;
use arrow::datatypes::{Schema, SchemaRef};
use rivulet_dataflow::{Address, Context, Description, Element, Operator, OperatorError, OperatorFactory, Reason};

use super::check_columns;
use crate::PlanError;

/// Refuses rows in which one of the given columns is null.
#[derive(Clone, Debug)]
pub struct RequireValues {
    schema: SchemaRef,
    columns: Arc<[usize]>,
}

impl RequireValues {
    /// Makes an operator over rows with the columns of `input`, of which those at the indices `columns` must not be
    /// null.
    ///
    /// # Errors
    /// Columns that do not exist.
    pub fn new(input: &SchemaRef, columns: Vec<usize>) -> Result<Self, PlanError> {
        check_columns(input, columns.iter().copied(), "NOT NULL")?;
        Ok(Self { schema: input.clone(), columns: columns.into() })
    }
}

impl OperatorFactory for RequireValues {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(self.clone())
    }

    fn describe(&self) -> Description {
        let names = self.columns.iter().map(|&column| self.schema.field(column).name().clone());
        Description { operator: "not null".into(), shared: names.collect(), per_slot: vec![] }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

impl Operator for RequireValues {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        if self.columns.iter().all(|&column| batch.column(column).null_count() == 0) {
            context.emit(batch);
            return Ok(());
        }
        let mut kept: Vec<u32> = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            match self.columns.iter().find(|&&column| batch.column(column).is_null(row)) {
                None => kept.push(row as u32),
                Some(&column) => {
                    context.refusals.refuse_row(None, &batch, row, Reason::Expression, || refusal(&self.schema, column))
                }
            }
        }
        if !kept.is_empty() {
            context.emit(batch.take(&kept)?);
        }
        Ok(())
    }
}

fn refusal(schema: &Schema, column: usize) -> String {
    let name = schema.field(column).name();
    format!(
        "'{name}' is null, and the sink declares it NOT NULL\nhint: filter with WHERE ... IS NOT NULL, or give COALESCE({name}, ...)"
    )
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field};
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::testing::{batch, parameter_table, process_context};

    #[test]
    fn rows_with_a_null_are_refused_and_the_others_go_on() {
        let field = |name| Field::new(name, DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![field("free"), field("needed")]));
        let columns = [vec![None, Some(2), Some(3)], vec![Some(1), None, Some(3)]];
        let columns = columns.map(|column| Arc::new(Int64Array::from(column)) as _);
        let table = parameter_table("p", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(1), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        let input = batch(&[(0, 1), (0, 2), (0, 3)], columns.to_vec());
        let require = RequireValues::new(&schema, vec![1]).unwrap();
        require.create().process(Element::Batch(input), &mut context).unwrap();
        assert_eq!(output[0].event_time_us.as_ref(), &[1, 3]);
        assert_eq!(refusals.counted(Reason::Expression), 1);
        assert!(refusals.records()[0].detail.contains("'needed' is null"), "{}", refusals.records()[0].detail);
        assert!(RequireValues::new(&schema, vec![2]).is_err());
    }
}
