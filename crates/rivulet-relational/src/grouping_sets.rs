//! `GROUPING SETS`, `ROLLUP` and `CUBE`: the union of an aggregate for each set of keys, with null for the keys that a
//! set does not have. `GROUPING(a, b)` is a number in each of them.
//!
//! Each aggregate works as if it were written alone: with its windows, its state and the bound of that state. Their
//! input is computed once.

use std::sync::Arc;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, Result, ScalarValue};
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::utils::{COUNT_STAR_EXPANSION, grouping_set_to_exprlist, powerset};
use datafusion_expr::{Aggregate, AggregateUDF, Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder, Projection, lit};
use datafusion_sql::sqlparser::ast;

use crate::clauses::{first_expression, start};
use crate::error::RelationalError;
use crate::functions::GROUPING;
use crate::group_window::is_window;
use crate::unions::with_own_names;
use crate::walk::{Node, look, look_at_expression};

/// The most sets of keys.
const SETS_MAX: usize = 64;

/// Fails at a window inside a set of keys: all sets have the same windows.
pub(crate) fn check(query: &ast::Query) -> Result<(), RelationalError> {
    look(query, &mut |node| match node {
        Node::Expr(ast::Expr::GroupingSets(sets) | ast::Expr::Rollup(sets) | ast::Expr::Cube(sets)) => {
            sets.iter().flatten().try_for_each(|key| {
                look_at_expression(key, &mut |node| match node {
                    Node::Expr(key) if is_window(key) => {
                        let what = "a window inside of GROUPING SETS, ROLLUP or CUBE is not supported yet";
                        let hint = "write it beside: GROUP BY ROLLUP (a, b), tumble(ts, INTERVAL '1 minute')";
                        Err(RelationalError { place: start(key), ..RelationalError::new(what) }.hint(hint))
                    }
                    _ => Ok(()),
                })
            })
        }
        _ => Ok(()),
    })
}

/// Replaces aggregates with sets of keys by aggregates with plain keys. `count` is the aggregate of that name.
pub(crate) fn rewrite_plan(
    plan: LogicalPlan,
    count: &Arc<AggregateUDF>,
    query: &ast::Query,
) -> Result<LogicalPlan, RelationalError> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) => {
            let has_sets = matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]);
            match has_sets || aggregate.aggr_expr.iter().any(|one| grouped(one).is_some()) {
                true => united(&aggregate, count, query).map(Transformed::yes),
                false => Ok(Transformed::no(LogicalPlan::Aggregate(aggregate))),
            }
        }
        other => Ok(Transformed::no(other)),
    });
    Ok(rewritten?.data)
}

/// The arguments of `GROUPING(...)`.
fn grouped(expression: &Expr) -> Option<&[Expr]> {
    match expression {
        Expr::Alias(alias) => grouped(&alias.expr),
        Expr::AggregateFunction(call) if call.func.name() == GROUPING => Some(&call.params.args),
        _ => None,
    }
}

/// The sets of keys.
fn sets_of(keys: &[Expr]) -> Result<Vec<Vec<&Expr>>> {
    Ok(match keys {
        [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] => sets.iter().map(|set| set.iter().collect()).collect(),
        [Expr::GroupingSet(GroupingSet::Rollup(keys))] => {
            (0..=keys.len()).rev().map(|length| keys[..length].iter().collect()).collect()
        }
        // This is more than the bound in any case, and too many sets to list.
        [Expr::GroupingSet(GroupingSet::Cube(keys))] if keys.len() > SETS_MAX.ilog2() as usize => {
            vec![Vec::new(); SETS_MAX + 1]
        }
        [Expr::GroupingSet(GroupingSet::Cube(keys))] => powerset(keys)?,
        keys => vec![keys.iter().collect()],
    })
}

fn united(aggregate: &Aggregate, count: &Arc<AggregateUDF>, query: &ast::Query) -> Result<LogicalPlan> {
    let sets = sets_of(&aggregate.group_expr)?;
    if sets.len() > SETS_MAX {
        let is_sets =
            |one: &ast::Expr| matches!(one, ast::Expr::GroupingSets(_) | ast::Expr::Rollup(_) | ast::Expr::Cube(_));
        let error = RelationalError::new(format!("more than {SETS_MAX} sets of keys in GROUP BY"));
        let error = RelationalError { place: first_expression(query, is_sets), ..error };
        return Err(error.hint("list those that are wanted: GROUPING SETS ((a, b), (a), ())").boxed());
    }
    let keys = grouping_set_to_exprlist(&aggregate.group_expr)?;
    let branches = sets.iter().map(|set| branch(aggregate, &keys, set, count, query));
    let mut branches = branches.collect::<Result<Vec<_>>>()?.into_iter();
    let first = branches.next().unwrap_or_else(|| LogicalPlan::Aggregate(aggregate.clone()));
    if branches.len() == 0 {
        return Ok(first);
    }
    let mut all = LogicalPlanBuilder::from(first);
    for branch in branches {
        all = all.union(branch)?;
    }
    let all = with_own_names(all.build()?)?.data;
    // For the plan above, the columns keep their names.
    let named = aggregate.schema.iter().enumerate().map(|(place, (qualifier, field))| {
        let column = Expr::Column(Column::from(all.schema().qualified_field(place)));
        column.alias_qualified(qualifier.cloned(), field.name())
    });
    let named = named.collect::<Vec<_>>();
    Ok(LogicalPlan::Projection(Projection::try_new(named, Arc::new(all))?))
}

/// The aggregate of one set of keys, with the columns of all sets.
fn branch(
    aggregate: &Aggregate,
    keys: &[&Expr],
    set: &[&Expr],
    count: &Arc<AggregateUDF>,
    query: &ast::Query,
) -> Result<LogicalPlan> {
    let mut own: Vec<Expr> = Vec::with_capacity(set.len());
    for key in set {
        if !own.contains(key) {
            own.push((*key).clone());
        }
    }
    let mut calls: Vec<Expr> = aggregate.aggr_expr.iter().filter(|one| grouped(one).is_none()).cloned().collect();
    // The set without keys has one row, even if no aggregate is computed.
    if own.is_empty() && calls.is_empty() {
        let rows = vec![lit(COUNT_STAR_EXPANSION)];
        let counted = AggregateFunction::new_udf(count.clone(), rows, false, None, vec![], None);
        calls.push(Expr::AggregateFunction(counted));
    }
    let is_in_set = |key: &Expr| own.contains(key);
    let rows = Aggregate::try_new(aggregate.input.clone(), own.clone(), calls)?;
    let column = |place: usize| Expr::Column(Column::from(rows.schema.qualified_field(place)));
    let mut fields = aggregate.schema.iter();
    let mut columns = Vec::with_capacity(aggregate.schema.fields().len());
    for (key, (qualifier, field)) in keys.iter().zip(&mut fields) {
        let value = match own.iter().position(|one| one == *key) {
            Some(place) => column(place),
            None => Expr::Literal(ScalarValue::try_new_null(field.data_type())?, None),
        };
        columns.push(value.alias_qualified(qualifier.cloned(), field.name()));
    }
    if matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)])
        && let Some((qualifier, field)) = fields.next()
    {
        // This column of DataFusion is not used, because GROUPING becomes a number.
        let zero = Expr::Literal(ScalarValue::new_zero(field.data_type())?, None);
        columns.push(zero.alias_qualified(qualifier.cloned(), field.name()));
    }
    let mut place = own.len();
    for (call, (qualifier, field)) in aggregate.aggr_expr.iter().zip(fields) {
        let value = match grouped(call) {
            Some(asked) => lit(grouping(asked, keys, is_in_set, query)?),
            None => {
                place += 1;
                column(place - 1)
            }
        };
        columns.push(value.alias_qualified(qualifier.cloned(), field.name()));
    }
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(LogicalPlan::Aggregate(rows)))?))
}

/// Returns a bit for each argument of GROUPING, the last argument in the lowest bit: 1 if the set does not have the
/// key.
fn grouping(asked: &[Expr], keys: &[&Expr], is_in_set: impl Fn(&Expr) -> bool, query: &ast::Query) -> Result<i64> {
    if asked.is_empty() || asked.len() > 63 || asked.iter().any(|one| !keys.contains(&one)) {
        let is_call = |one: &ast::Expr| matches!(one, ast::Expr::Function(call) if call.name.to_string().eq_ignore_ascii_case(GROUPING));
        let error = RelationalError::new("GROUPING takes keys of GROUP BY");
        let error = RelationalError { place: first_expression(query, is_call), ..error };
        return Err(error.hint("write for example GROUPING(a) behind GROUP BY ROLLUP (a, b)").boxed());
    }
    Ok(asked.iter().fold(0, |bits, key| bits << 1 | i64::from(!is_in_set(key))))
}
