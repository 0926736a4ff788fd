//! Conditions that no row fulfils, and one row of nothing.
//!
//! `HAVING false` over a global aggregate must give no row. But the optimizer pushes a condition that names no column
//! below the aggregate, which then gives one row: of nothing. So the input of such a condition is replaced by a plan
//! that gives no row wherever it stands: the columns of the input, all null, over a source of which no row is taken.
//! The source stays, because a query without a source could not run. A join under such a condition has no pairs, and
//! what remains of it needs no key.
//!
//! There is also the reverse: a global aggregate of which only its one row is used. The optimizer turns it into a row
//! without columns. That row needs a source again.

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, Result, ScalarValue};
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::planner::ContextProvider;
use datafusion_expr::utils::{COUNT_STAR_EXPANSION, split_conjunction};
use datafusion_expr::{Expr, Join, JoinType, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

use crate::catalog::Catalog;
use crate::unions::with_own_names;

/// Replaces plans under a condition that is constantly false or null. A plan with a global aggregate or a join becomes
/// one without rows. If it is the condition of a join, the join becomes what remains without pairs.
#[derive(Debug)]
pub(crate) struct NothingFulfils;

impl OptimizerRule for NothingFulfils {
    fn name(&self) -> &str {
        "nothing_fulfils"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let replaced = match &plan {
            LogicalPlan::Filter(filter) if is_never(&filter.predicate) && must_be_replaced(&filter.input)? => {
                nothing_of(&filter.input)?
            }
            LogicalPlan::Join(join) if join.filter.as_ref().is_some_and(is_never) => without_pairs(join, &plan)?,
            _ => None,
        };
        Ok(match replaced {
            Some(replaced) => Transformed::yes(replaced),
            None => Transformed::no(plan),
        })
    }
}

/// Whether no row fulfils a condition.
fn is_never(predicate: &Expr) -> bool {
    let is_never = |part: &&Expr| match part {
        Expr::Literal(ScalarValue::Boolean(value), _) => *value != Some(true),
        Expr::Literal(value, _) => value.is_null(),
        _ => false,
    };
    split_conjunction(predicate).iter().any(is_never)
}

/// Whether a plan has an aggregate that gives a row even without input rows, or a join, which would be left without its
/// key.
fn must_be_replaced(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|plan| {
        Ok(match plan {
            LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
            LogicalPlan::Join(_) => true,
            _ => false,
        })
    })
}

/// Returns a plan with the columns of `plan` and without rows; `None` if it reads no source.
fn nothing_of(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let Some(source) = first_scan(plan, |_| true)? else { return Ok(None) };
    let empty = LogicalPlanBuilder::from(source).filter(lit(false))?.build()?;
    with_columns(empty, plan, |_| false).map(Some)
}

/// The first scan of a plan for whose relation `is_such` holds.
pub(crate) fn first_scan(plan: &LogicalPlan, is_such: impl Fn(&str) -> bool) -> Result<Option<LogicalPlan>> {
    let mut found = None;
    plan.apply_with_subqueries(|plan| {
        if let LogicalPlan::TableScan(scan) = plan
            && is_such(scan.table_name.table())
        {
            found = Some(plan.clone());
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// What remains of a join if no two rows are a pair.
fn without_pairs(join: &Join, plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let (left, right) = (join.left.as_ref(), join.right.as_ref());
    let width = left.schema().fields().len();
    let alone = |side: &LogicalPlan| {
        let is_left = std::ptr::eq(side, left);
        with_columns(side.clone(), plan, |place| (place < width) == is_left)
    };
    Ok(match join.join_type {
        JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi => nothing_of(plan)?,
        JoinType::Left => Some(alone(left)?),
        JoinType::Right => Some(alone(right)?),
        JoinType::Full => {
            let both = LogicalPlanBuilder::from(alone(left)?).union(alone(right)?)?.build()?;
            let both = with_own_names(both)?.data;
            let named = plan.schema().iter().enumerate().map(|(place, (qualifier, field))| {
                let column = Expr::Column(Column::from(both.schema().qualified_field(place)));
                column.alias_qualified(qualifier.cloned(), field.name())
            });
            let named = named.collect::<Vec<_>>();
            Some(LogicalPlanBuilder::from(both).project(named)?.build()?)
        }
        JoinType::LeftAnti => Some(left.clone()),
        JoinType::RightAnti => Some(right.clone()),
        JoinType::LeftMark | JoinType::RightMark => None,
    })
}

/// The rows of `input` with the columns of `plan`. Where `is_own` holds for an index, the next column of `input` is
/// used; the other columns are null.
fn with_columns(input: LogicalPlan, plan: &LogicalPlan, is_own: impl Fn(usize) -> bool) -> Result<LogicalPlan> {
    let mut own = input.schema().columns().into_iter();
    let columns = plan.schema().iter().enumerate().map(|(place, (qualifier, field))| {
        match is_own(place).then(|| own.next()).flatten() {
            Some(column) => Ok(Expr::Column(column)),
            None => {
                let null = Expr::Literal(ScalarValue::try_new_null(field.data_type())?, None);
                Ok(null.alias_qualified(qualifier.cloned(), field.name()))
            }
        }
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    LogicalPlanBuilder::from(input).project(columns)?.build()
}

/// Replaces a row without columns by that of an aggregate over no rows of `source`.
pub(crate) fn with_one_row(plan: LogicalPlan, source: &LogicalPlan, catalog: &Catalog) -> Result<LogicalPlan> {
    plan.transform_up(|node| match node {
        LogicalPlan::EmptyRelation(ref nothing) if nothing.produce_one_row && nothing.schema.fields().is_empty() => {
            let Some(count) = catalog.get_aggregate_meta("count") else { return Ok(Transformed::no(node)) };
            let rows = vec![lit(COUNT_STAR_EXPANSION)];
            let count = AggregateFunction::new_udf(count, rows, false, None, vec![], None);
            let row = LogicalPlanBuilder::from(source.clone())
                .filter(lit(false))?
                .aggregate(Vec::<Expr>::new(), vec![Expr::AggregateFunction(count)])?
                .project(Vec::<Expr>::new())?
                .build()?;
            Ok(Transformed::yes(row))
        }
        other => Ok(Transformed::no(other)),
    })
    .map(|transformed| transformed.data)
}
