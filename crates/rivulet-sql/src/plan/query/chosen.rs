//! A side of a join that only chooses rows and columns of one relation.

use datafusion_common::DFSchema;
use datafusion_expr::{Expr, LogicalPlan};

use super::columns::unaliased;

/// The relation, and what is chosen of it.
pub(super) struct Chosen<'p, T> {
    pub(super) relation: T,
    /// For each column of the plan, the index of the relation's column.
    pub(super) columns: Vec<usize>,
    /// Conditions on its rows alone, each with the schema of its columns and their indices in the relation.
    pub(super) conditions: Vec<(&'p Expr, &'p DFSchema, Vec<usize>)>,
}

impl<'p, T> Chosen<'p, T> {
    /// Returns what a plan chooses, if it does nothing else. `relation` finds the relation in a node, with its columns
    /// that the node has.
    pub(super) fn of(
        plan: &'p LogicalPlan,
        relation: &impl Fn(&'p LogicalPlan) -> Option<(T, Vec<usize>)>,
    ) -> Option<Self> {
        match plan {
            LogicalPlan::SubqueryAlias(alias) => Self::of(&alias.input, relation),
            LogicalPlan::Projection(projection) => {
                let inner = Self::of(&projection.input, relation)?;
                let schema = projection.input.schema();
                let column = |one: &Expr| match unaliased(one) {
                    Expr::Column(column) => inner.columns.get(schema.maybe_index_of_column(column)?).copied(),
                    _ => None,
                };
                let columns = projection.expr.iter().map(column).collect::<Option<Vec<_>>>()?;
                Some(Self { columns, ..inner })
            }
            LogicalPlan::Filter(filter) => {
                let mut inner = Self::of(&filter.input, relation)?;
                inner.conditions.push((&filter.predicate, filter.input.schema(), inner.columns.clone()));
                Some(inner)
            }
            node => {
                let (relation, columns) = relation(node)?;
                Some(Self { relation, columns, conditions: Vec::new() })
            }
        }
    }
}
