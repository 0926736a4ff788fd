//! MATCH_RECOGNIZE in FROM: the node for the matches of a row pattern. What a pattern means is known by the crate that
//! plans its operator; here it has columns.

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema};
use datafusion_common::{DFSchema, DFSchemaRef, DataFusionError, Result, TableReference};
use datafusion_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::error::RelationalError;
use crate::nodes::compare_by_parts;

/// The name of the function that stands for a row pattern: `row_pattern(t, 0)` has the matches of the first pattern of
/// the query in `t`.
pub const ROW_PATTERN: &str = "row_pattern";

/// A row pattern of a query.
pub trait RowPattern: fmt::Debug + Send + Sync {
    /// Returns the columns of the matches in rows of these columns, and the indices of the columns that it reads.
    ///
    /// # Errors
    /// The pattern does not fit the rows.
    fn columns(&self, rows: &Schema) -> Result<(Vec<FieldRef>, Vec<usize>), RelationalError>;

    /// The pattern itself, for the crate that plans it.
    fn as_any(&self) -> &dyn Any;
}

/// The matches of a row pattern.
#[derive(Clone, Debug)]
pub struct Matches {
    /// The rows.
    pub input: Arc<LogicalPlan>,
    /// The pattern.
    pub pattern: Arc<dyn RowPattern>,
    /// The columns of the input that the pattern reads.
    pub used: Vec<usize>,
    schema: DFSchemaRef,
}

impl Matches {
    pub(crate) fn new(input: Arc<LogicalPlan>, pattern: Arc<dyn RowPattern>) -> Result<Self> {
        let (columns, used) = pattern.columns(input.schema().as_arrow()).map_err(RelationalError::boxed)?;
        let fields: Vec<(Option<TableReference>, FieldRef)> = columns.into_iter().map(|field| (None, field)).collect();
        let schema = Arc::new(DFSchema::new_with_metadata(fields, input.schema().metadata().clone())?);
        Ok(Self { input, pattern, used, schema })
    }

    pub(crate) fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// A pattern is only equal to itself.
    fn parts(&self) -> (&LogicalPlan, *const ()) {
        (&self.input, Arc::as_ptr(&self.pattern).cast())
    }
}

compare_by_parts!(Matches);

impl UserDefinedLogicalNodeCore for Matches {
    fn name(&self) -> &str {
        "Matches"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    /// A condition on matches is none on rows.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Matches: {:?}", self.pattern)
    }

    fn with_exprs_and_inputs(&self, _expressions: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let input = inputs.into_iter().next();
        let input = input.ok_or_else(|| DataFusionError::Internal("matches have one input".into()))?;
        Self::new(Arc::new(input), self.pattern.clone())
    }

    fn necessary_children_exprs(&self, _output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![self.used.clone()])
    }
}
