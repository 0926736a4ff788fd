//! Sources and reference tables in the form that the relational planner scans.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion_expr::{LogicalPlan, TableSource};
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

/// The name of a reference table that a plan reads, if it reads any.
pub(super) fn table_within(plan: &LogicalPlan) -> Option<&str> {
    match plan {
        LogicalPlan::TableScan(scan) => scan.source.downcast_ref().map(|ReferenceTable(table)| table.name()),
        other => other.inputs().into_iter().find_map(table_within),
    }
}
