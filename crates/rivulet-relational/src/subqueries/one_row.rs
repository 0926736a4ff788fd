//! Subqueries of at most one row: over an aggregate without GROUP BY, or without FROM. The row becomes expressions over
//! the outer query. In these, each aggregate is a subquery of its own that stands for a value.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Column, DFSchema, Result, ScalarValue, Spans};
use datafusion_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion_expr::{Aggregate, Distinct, Expr, LogicalPlan, Projection, Subquery, lit, when};

use crate::error::RelationalError;
use crate::limits::limits;

/// The row of such a subquery.
pub(super) struct OneRow {
    /// Its columns, over the outer query.
    columns: Vec<Expr>,
    /// The condition for the row to exist; null means that it does not.
    condition: Option<Expr>,
    /// Whether the row always exists and uses the outer query only inside the aggregate. Then the optimizer handles the
    /// subquery as it is.
    pub(super) is_plain: bool,
}

impl OneRow {
    /// Whether the row exists: true or false.
    pub(super) fn is_there(&self) -> Expr {
        self.condition.clone().map_or_else(|| lit(true), Expr::is_true)
    }

    /// Whether a value is equal to the first column; false if there is no row.
    pub(super) fn is_equal(&self, value: &Expr) -> Expr {
        let equal = value.clone().eq(self.columns[0].clone());
        match &self.condition {
            None => equal,
            Some(condition) => case(condition, equal, lit(false)),
        }
    }

    /// The first column; null if there is no row.
    pub(super) fn value(&self) -> Expr {
        let column = self.columns[0].clone();
        match &self.condition {
            None => column,
            Some(condition) => case(condition, column, lit(ScalarValue::Null)),
        }
    }
}

fn case(condition: &Expr, then: Expr, otherwise: Expr) -> Expr {
    when(condition.clone(), then).otherwise(otherwise).expect("a CASE of one condition has nothing wrong")
}

/// The row of a subquery whose form allows at most one row; `None` for other subqueries. `outer` are the columns of the
/// query around it.
pub(super) fn one_row(plan: &LogicalPlan, outer: &DFSchema) -> Result<Option<OneRow>> {
    let below = |input: &LogicalPlan| one_row(input, outer);
    Ok(match plan {
        LogicalPlan::EmptyRelation(nothing) if nothing.produce_one_row => {
            Some(OneRow { columns: Vec::new(), condition: None, is_plain: false })
        }
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
            let columns = (0..aggregate.aggr_expr.len()).map(|place| value_of(aggregate, place));
            Some(OneRow { columns: columns.collect::<Result<_>>()?, condition: None, is_plain: true })
        }
        LogicalPlan::SubqueryAlias(alias) => below(&alias.input)?,
        LogicalPlan::Distinct(Distinct::All(input)) => below(input)?.map(|row| OneRow { is_plain: false, ..row }),
        LogicalPlan::Projection(projection) => match below(&projection.input)? {
            Some(row) => {
                let schema = projection.input.schema();
                let columns = projection.expr.iter().map(|one| over_outer(one, schema, &row, outer));
                let is_plain = row.is_plain && !plan.contains_outer_reference();
                Some(OneRow { columns: columns.collect::<Result<_>>()?, is_plain, ..row })
            }
            None => None,
        },
        LogicalPlan::Filter(filter) => match below(&filter.input)? {
            Some(row) => {
                let condition = over_outer(&filter.predicate, filter.input.schema(), &row, outer)?;
                Some(row.such_as(condition))
            }
            None => None,
        },
        LogicalPlan::Limit(limit) => match (below(&limit.input)?, limits(limit)?) {
            (Some(row), Some((0, None | Some(1..)))) => Some(OneRow { is_plain: false, ..row }),
            (Some(row), Some(_)) => Some(row.such_as(lit(false))),
            _ => None,
        },
        _ => None,
    })
}

impl OneRow {
    fn such_as(self, condition: Expr) -> Self {
        let both = match self.condition {
            Some(first) => first.and(condition),
            None => condition,
        };
        Self { condition: Some(both), is_plain: false, ..self }
    }
}

/// Makes a subquery of a plan.
pub(super) fn subquery(plan: LogicalPlan) -> Subquery {
    let outer_ref_columns = plan.all_out_ref_exprs();
    Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: Spans::new() }
}

/// Makes one of the aggregates a subquery of its own.
fn value_of(aggregate: &Aggregate, place: usize) -> Result<Expr> {
    let one = Aggregate::try_new(aggregate.input.clone(), vec![], vec![aggregate.aggr_expr[place].clone()])?;
    let column = Expr::Column(Column::from(one.schema.qualified_field(0)));
    let value = Projection::try_new(vec![column], Arc::new(LogicalPlan::Aggregate(one)))?;
    Ok(Expr::ScalarSubquery(subquery(LogicalPlan::Projection(value))))
}

/// Turns an expression over the row into one over the outer query.
fn over_outer(expression: &Expr, schema: &DFSchema, row: &OneRow, outer: &DFSchema) -> Result<Expr> {
    let expression = expression.clone().unalias();
    expression
        .transform(|node| match node {
            Expr::Column(column) => {
                let place = schema.index_of_column(&column)?;
                Ok(Transformed::yes(row.columns[place].clone()))
            }
            Expr::OuterReferenceColumn(_, column) if outer.has_column(&column) => {
                Ok(Transformed::yes(Expr::Column(column)))
            }
            Expr::ScalarSubquery(Subquery { ref outer_ref_columns, .. })
            | Expr::Exists(Exists { subquery: Subquery { ref outer_ref_columns, .. }, .. })
            | Expr::InSubquery(InSubquery { subquery: Subquery { ref outer_ref_columns, .. }, .. })
            | Expr::SetComparison(SetComparison { subquery: Subquery { ref outer_ref_columns, .. }, .. })
                if !outer_ref_columns.is_empty() =>
            {
                let what = "a subquery that names the result of an aggregate of the subquery around it";
                Err(RelationalError::new(format!("{what} is not supported yet")).boxed())
            }
            other => Ok(Transformed::no(other)),
        })
        .map(|transformed| transformed.data)
}
