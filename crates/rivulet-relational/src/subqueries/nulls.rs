//! Which columns of a plan are never null: by their declaration, or by a condition that null does not fulfil.

use datafusion_common::{Column, JoinType, NullEquality};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{BinaryExpr, Distinct, Expr, ExprSchemable, LogicalPlan, Operator as Op};

/// Whether an expression over the rows of a plan is never null.
pub(super) fn is_never_null(expression: &Expr, plan: &LogicalPlan) -> bool {
    let is_declared = matches!(expression.nullable(plan.schema()), Ok(false));
    is_declared || matches!(plain(expression), Expr::Column(column) if is_filled(column, plan))
}

/// Whether a condition is never true for a row in which an expression is null.
pub(super) fn rejects_null(condition: &Expr, expression: &Expr) -> bool {
    let is_it = |one: &Expr| plain(one) == plain(expression);
    match condition {
        Expr::IsNotNull(one) => is_it(one),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let is_comparison = matches!(op, Op::Eq | Op::NotEq | Op::Lt | Op::LtEq | Op::Gt | Op::GtEq);
            is_comparison && (is_it(left) || is_it(right))
        }
        Expr::Between(between) => is_it(&between.expr),
        Expr::Like(like) => is_it(&like.expr),
        Expr::InList(list) => is_it(&list.expr),
        _ => false,
    }
}

/// The expression without names.
fn plain(expression: &Expr) -> &Expr {
    match expression {
        Expr::Alias(alias) => plain(&alias.expr),
        other => other,
    }
}

fn is_filled(column: &Column, plan: &LogicalPlan) -> bool {
    let expression = || Expr::Column(column.clone());
    match plan {
        LogicalPlan::Filter(filter) => {
            split_conjunction(&filter.predicate).iter().any(|one| rejects_null(one, &expression()))
                || is_never_null(&expression(), &filter.input)
        }
        LogicalPlan::Projection(projection) => match plan.schema().maybe_index_of_column(column) {
            Some(place) => is_never_null(&projection.expr[place], &projection.input),
            None => false,
        },
        LogicalPlan::SubqueryAlias(alias) => match plan.schema().maybe_index_of_column(column) {
            Some(place) => {
                is_never_null(&Expr::Column(Column::from(alias.input.schema().qualified_field(place))), &alias.input)
            }
            None => false,
        },
        LogicalPlan::Aggregate(aggregate) => match plan.schema().maybe_index_of_column(column) {
            Some(place) => aggregate
                .group_expr
                .get(place)
                .is_some_and(|key| !matches!(key, Expr::GroupingSet(_)) && is_never_null(key, &aggregate.input)),
            None => false,
        },
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            let is_key = |(left, right): &(Expr, Expr)| plain(left) == &expression() || plain(right) == &expression();
            let of_filter = join.filter.iter().flat_map(split_conjunction).any(|one| rejects_null(one, &expression()));
            let of_side = |side: &LogicalPlan| side.schema().has_column(column) && is_filled(column, side);
            let is_key = join.null_equality == NullEquality::NullEqualsNothing && join.on.iter().any(is_key);
            is_key || of_filter || of_side(&join.left) || of_side(&join.right)
        }
        LogicalPlan::Distinct(Distinct::All(input)) => is_never_null(&expression(), input),
        LogicalPlan::Sort(sort) => is_never_null(&expression(), &sort.input),
        LogicalPlan::Limit(limit) => is_never_null(&expression(), &limit.input),
        _ => false,
    }
}
