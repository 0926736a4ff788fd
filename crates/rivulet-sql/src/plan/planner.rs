//! What the parts of a SELECT are planned with: what it reads, the names in it, and its columns before them.

use arrow::datatypes::{Field, SchemaRef};
use datafusion_common::Column;
use datafusion_expr::Expr;
use rivulet_operators::Filter;

use super::check::{Scope, WINDOW_END, WINDOW_START};
use super::defect;
use super::expression::{Compiler, ExpressionPlanner};
use super::lookup::PlannedLookup;
use super::source::Source;
use super::unnest::PlannedUnnest;
use crate::statement::Select;
use crate::{Position, SqlError};

/// Plans the parts of one SELECT.
pub(super) struct SelectPlanner<'a> {
    pub(super) select: &'a Select,
    pub(super) source: &'a Source<'a>,
    pub(super) parameter_schema: &'a SchemaRef,
    pub(super) scope: Scope<'a>,
    /// Plans over single rows: the columns of the input, the arrival, and the parameters.
    pub(super) rows: ExpressionPlanner,
    pub(super) row_fields: Vec<Field>,
    pub(super) lookups: &'a [PlannedLookup],
    pub(super) unnest: Option<&'a PlannedUnnest>,
    /// Whether there are windows over the results.
    pub(super) is_windowed: bool,
}

impl SelectPlanner<'_> {
    /// Whether rows of one batch stay in one. Lookups and UNNEST may cut it.
    pub(super) fn keeps_batches(&self) -> bool {
        self.lookups.is_empty() && self.unnest.is_none()
    }

    /// Whether a column tells only the time of a window.
    pub(super) fn is_bound(&self, column: &str) -> bool {
        let of_results = self.source.results.as_ref().filter(|_| !self.scope.windowed);
        (self.scope.windowed && [WINDOW_START, WINDOW_END].contains(&column))
            || of_results.is_some_and(|results| results.bounds.iter().any(|bound| bound == column))
    }

    /// Whether an expression is computed only from the bounds of windows.
    pub(super) fn is_made_of_bounds(&self, expression: &Expr) -> bool {
        let columns = expression.column_refs();
        let is_bound = |column: &&Column| self.is_bound(&column.name);
        columns.iter().any(is_bound) && columns.iter().all(|column| is_bound(column) || column.name.starts_with('$'))
    }

    pub(super) fn filter(&self, columns: &SchemaRef, condition: Expr, position: Position) -> Result<Filter, SqlError> {
        let compiler = Compiler::new(columns, self.parameter_schema, [&condition])?;
        let condition = compiler.compile(condition, position)?;
        Filter::new(columns, self.parameter_schema, compiler.parameters, condition)
            .map_err(|error| defect(error, position))
    }
}
