//! Columns that are computed from those of a source before anything else is done with its rows, so that their event
//! time may be one of them.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion_physical_expr::expressions::Column;
use rivulet_dataflow::{Batch, Polled, Reason, Refusals, Refused, Source, SourceError};

use crate::PlanError;
use crate::expression::{Expressions, NamedExpression};

/// Computes the columns of rows from those of a source.
#[derive(Debug)]
pub struct ComputedColumns {
    expressions: Expressions,
    output: SchemaRef,
}

impl ComputedColumns {
    /// Checks the columns, which are computed over those of `input`.
    ///
    /// # Errors
    /// An expression that does not fit these columns.
    pub fn new(input: &Schema, columns: Vec<NamedExpression>) -> Result<Self, PlanError> {
        let fields: Vec<(String, Option<bool>)> = columns
            .iter()
            .map(|column| {
                let plain = column.expression.downcast_ref::<Column>();
                (column.name.clone(), plain.map(|plain| input.field(plain.index()).is_nullable()))
            })
            .collect();
        let expressions = columns.into_iter().map(|column| column.expression).collect();
        let expressions = Expressions::new(input, &Schema::empty(), Vec::new(), expressions)?;
        let fields = fields.into_iter().zip(expressions.fields()).map(|((name, is_nullable), expression)| {
            // A computed column may be null, whatever the expression says. An operator that needs a value refuses the
            // row.
            expression.clone().with_name(name).with_nullable(is_nullable.unwrap_or(true))
        });
        let output = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Ok(Self { expressions, output })
    }

    /// Returns a source with these columns instead of its own.
    pub fn over(self: &Arc<Self>, source: Box<dyn Source>) -> Box<dyn Source> {
        Box::new(ComputedSource { source, columns: self.clone() })
    }

    /// Computes the columns of the rows, and keeps the marks of those that retract others. Rows on which an expression
    /// fails are refused.
    fn of(
        &self,
        rows: &RecordBatch,
        retracts: Option<BooleanBuffer>,
        arrival_us: i64,
        refusals: &mut Refusals,
    ) -> Result<(RecordBatch, Option<BooleanBuffer>), ArrowError> {
        let (kept, columns) = self.expressions.evaluate_each(self.expressions.len(), rows, |row, error| {
            refusals.refuse(0, Reason::Expression, arrival_us, || {
                let at = || ScalarBuffer::from(vec![arrival_us]);
                let mark = retracts.as_ref().map(|marks| marks.slice(row, 1));
                let row = Batch::new(vec![0].into(), at(), at(), rows.slice(row, 1)).with_retracts(mark);
                (error.strip_backtrace(), Refused::Row(Box::new(row)))
            });
        })?;
        let retracts = match (retracts, &kept) {
            (Some(marks), Some(kept)) => Some(kept.iter().map(|&row| marks.value(row as usize)).collect()),
            (marks, _) => marks,
        };
        let count = RecordBatchOptions::new().with_row_count(Some(kept.map_or(rows.num_rows(), |kept| kept.len())));
        Ok((RecordBatch::try_new_with_options(self.output.clone(), columns, &count)?, retracts))
    }
}

struct ComputedSource {
    source: Box<dyn Source>,
    columns: Arc<ComputedColumns>,
}

impl Source for ComputedSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let (columns, retracts, arrival_us) = match self.source.poll(rows_max, now_us, refusals)? {
            Polled::Rows { columns, retracts, arrival_us } => (columns, retracts, arrival_us),
            other => return Ok(other),
        };
        let (columns, retracts) = match columns.num_rows() {
            0 => return Ok(Polled::Nothing(Duration::ZERO)),
            _ => self.columns.of(&columns, retracts, arrival_us, refusals),
        }
        .map_err(|error| SourceError(error.to_string()))?;
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(Duration::ZERO),
            _ => Polled::Rows { columns, retracts, arrival_us },
        })
    }

    fn found(&mut self) -> Vec<Box<dyn Source>> {
        self.source.found().into_iter().map(|source| self.columns.over(source)).collect()
    }

    fn is_live(&self) -> bool {
        self.source.is_live()
    }

    fn holds_rows(&self) -> bool {
        self.source.holds_rows()
    }

    fn set_paused(&mut self, is_paused: bool) {
        self.source.set_paused(is_paused);
    }

    fn position(&mut self) -> Option<String> {
        self.source.position()
    }

    fn confirm(&mut self) {
        self.source.confirm();
    }

    fn progress(&self) -> Option<(u64, u64)> {
        self.source.progress()
    }

    fn is_bounded(&self) -> bool {
        self.source.is_bounded()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type};
    use datafusion_expr::Operator;
    use datafusion_physical_expr::expressions::{binary, lit};

    use super::*;
    use crate::expression::column;

    struct Once(Option<RecordBatch>);

    impl Source for Once {
        fn poll(&mut self, _: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
            let rows = self.0.take().map(|columns| Polled::Rows { columns, retracts: None, arrival_us: now_us });
            Ok(rows.unwrap_or(Polled::End))
        }
    }

    #[test]
    fn a_row_on_which_an_expression_fails_is_refused_with_its_values() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let quotient = binary(lit(12i64), Operator::Divide, column(&schema, 0), &schema).unwrap();
        let columns = vec![NamedExpression::new("n", column(&schema, 0)), NamedExpression::new("q", quotient)];
        let columns = Arc::new(ComputedColumns::new(&schema, columns).unwrap());
        let rows: ArrayRef = Arc::new(Int64Array::from(vec![3, 0, 4]));
        let rows = RecordBatch::try_new(schema, vec![rows]).unwrap();
        let mut source = columns.over(Box::new(Once(Some(rows.clone()))));
        let mut refusals = Refusals::new(10);
        let Ok(Polled::Rows { columns: found, arrival_us: 7, .. }) = source.poll(10, 7, &mut refusals) else {
            panic!("rows")
        };
        assert_eq!(found.column(1).as_primitive::<Int64Type>().values().as_ref(), [4, 3]);
        assert_eq!(found.schema().field(0), rows.schema().field(0));
        assert!(matches!(source.poll(10, 8, &mut refusals), Ok(Polled::End)));
        assert_eq!(refusals.counted(Reason::Expression), 1);
        let Refused::Row(row) = &refusals.records()[0].content else { panic!("a row") };
        assert_eq!(row.column(0).as_primitive::<Int64Type>().value(0), 0);
        // If no row is left, the source was still not silent.
        let mut source = columns.over(Box::new(Once(Some(rows.slice(1, 1)))));
        assert!(matches!(source.poll(10, 9, &mut refusals), Ok(Polled::Nothing(wait)) if wait.is_zero()));
    }
}
