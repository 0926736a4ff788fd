//! Sources and reference tables as what the relational planner scans.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion_expr::{LogicalPlan, TableSource};
use rivulet_operators::Table;

use crate::scope::{Relation, Scope, SourceDeclaration};

/// A source, to the relational planner.
pub(super) struct SourceTable(pub(super) Arc<SourceDeclaration>);

impl TableSource for SourceTable {
    fn schema(&self) -> SchemaRef {
        self.0.schema.clone()
    }
}

/// A reference table, to the relational planner.
pub(super) struct ReferenceTable(pub(super) Arc<Table>);

impl TableSource for ReferenceTable {
    fn schema(&self) -> SchemaRef {
        self.0.schema().clone()
    }
}

/// A view, whose plan takes the place of its name.
struct ViewTable {
    plan: Arc<LogicalPlan>,
    schema: SchemaRef,
}

impl TableSource for ViewTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn get_logical_plan(&self) -> Option<std::borrow::Cow<'_, LogicalPlan>> {
        Some(std::borrow::Cow::Borrowed(&self.plan))
    }
}

/// What may stand in FROM, by name.
pub(super) fn relations(scope: &Scope) -> impl Iterator<Item = (&str, Arc<dyn TableSource>)> {
    scope.relations().map(|(name, relation)| {
        let table: Arc<dyn TableSource> = match relation {
            Relation::Source(source) => Arc::new(SourceTable(source.clone())),
            Relation::Table(table) => Arc::new(ReferenceTable(table.clone())),
            Relation::View(view) => {
                Arc::new(ViewTable { plan: view.plan.clone(), schema: Arc::new(view.plan.schema().as_arrow().clone()) })
            }
        };
        (name, table)
    })
}
