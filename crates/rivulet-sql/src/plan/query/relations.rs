//! Sources and reference tables in the form that the relational planner scans.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion_expr::TableSource;
use rivulet_operators::Table;

use crate::scope::SourceDeclaration;

/// A source, for the relational planner.
pub(super) struct SourceTable(pub(super) Arc<SourceDeclaration>);

impl TableSource for SourceTable {
    fn schema(&self) -> SchemaRef {
        self.0.schema.clone()
    }
}

/// A reference table, for the relational planner.
pub(super) struct ReferenceTable(pub(super) Arc<Table>);

impl TableSource for ReferenceTable {
    fn schema(&self) -> SchemaRef {
        self.0.schema().clone()
    }
}
