//! Columns of a source that are computed from its declared ones: `event AS to_timestamp(ts / 1000) EVENT TIME`.
//!
//! They are planned in the same way as those of applications. To operators behind the source they are ordinary columns.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::utils::{collect_columns, reassign_expr_columns};
use rivulet_operators::NamedExpression;
use rivulet_operators::parallel::ComputedColumns;

use crate::SqlError;
use crate::plan::expression::Compiler;
use crate::plan::source::computed::plan_over;
use crate::plan::types::outgoing_type;
use crate::plan::{defect, with_room};
use crate::scope::SourceDeclaration;
use crate::statement::{ComputedColumn, Name};

/// Columns, and for each the expression that computes it.
type Planned = (Vec<Field>, Vec<Arc<dyn PhysicalExpr>>);

/// Returns the computed columns, and the expressions that compute them, over the indices of the declared columns.
pub(crate) fn plan(source: &Name, written: &[ComputedColumn], declared: &Schema) -> Result<Planned, SqlError> {
    with_room(source.position, || {
        let none: SchemaRef = Arc::new(Schema::empty());
        let planned = plan_over(written, &source.text, declared, (&[], &none), outgoing_type)?;
        let compiler = Compiler::new(declared, &none, planned.iter().map(|column| &column.expression))?;
        let compiled = planned.iter().map(|column| compiler.compile(column.expression.clone(), column.position));
        let compiled = compiled.collect::<Result<Vec<_>, SqlError>>()?;
        Ok((planned.iter().map(|column| column.field.clone()).collect(), compiled))
    })
}

/// Returns the declared columns that a source must read so that its rows have `columns`, in ascending order; and what
/// computes `columns` from them, if any of these is computed.
pub(super) fn asked(
    source: &SourceDeclaration,
    columns: &[usize],
) -> Result<(Vec<usize>, Option<Arc<ComputedColumns>>), SqlError> {
    let declared = source.declared.fields().len();
    if columns.iter().all(|column| *column < declared) {
        return Ok((columns.to_vec(), None));
    }
    let expression = |column: usize| -> Arc<dyn PhysicalExpr> {
        match column.checked_sub(declared) {
            Some(computed) => source.computed[computed].clone(),
            None => Arc::new(Column::new(source.schema.field(column).name(), column)),
        }
    };
    let used: BTreeSet<usize> = columns
        .iter()
        .flat_map(|&column| collect_columns(&expression(column)).into_iter().map(|column| column.index()))
        .collect();
    let asked: Vec<usize> = used.into_iter().collect();
    let input = source.schema.project(&asked).expect("the columns are those of the source");
    let placed = |column: &usize| {
        let placed = reassign_expr_columns(expression(*column), &input)
            .map_err(|error| SqlError::new(source.name.position, crate::plan::message::plain_message(&error)))?;
        Ok(NamedExpression::new(source.schema.field(*column).name(), placed))
    };
    let placed = columns.iter().map(placed).collect::<Result<Vec<_>, SqlError>>()?;
    let computed = ComputedColumns::new(&input, placed).map_err(|error| defect(error, source.name.position))?;
    Ok((asked, Some(Arc::new(computed))))
}
