//! Subqueries in conditions and results, before the optimizer makes joins of them.
//!
//! The optimizer pulls conditions that name columns of the outer query up to a join: a semi or anti join for `EXISTS`
//! and `IN`, a left join for a subquery that stands for a value. Here a subquery is rewritten so that this is correct:
//! - An aggregate without GROUP BY gives a row even without input rows. The semi join would group it by the columns
//!   that were pulled up, and then there is no row. So `EXISTS` and `IN` over such an aggregate become comparisons with
//!   its values ([`one_row`]). The optimizer completes these where no row is found.
//! - `EXISTS` and `IN` that are not under AND, and `NOT IN` where null may come, become counts of rows.
//! - A comparison of a value of the outer query with itself becomes a check for null.
//! - A column that is compared with the outer query gets a name of its own where its name is that of another input's.
//! - The first row in an order becomes the greatest of one ([`first_row`](mod@first_row)).
//! - Conditions that cannot be pulled up without changing the result are refused ([`reach`]).

mod first_row;
mod nulls;
mod one_row;
mod reach;

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, ExprSchema, Result, ScalarValue, TableReference};
use datafusion_expr::expr::{AggregateFunction, Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion_expr::utils::{COUNT_STAR_EXPANSION, conjunction, split_conjunction};
use datafusion_expr::{
    AggregateUDF, BinaryExpr, Distinct, Expr, Filter, JoinType, LogicalPlan, LogicalPlanBuilder, Operator, Projection,
    Subquery, WindowUDF, lit, not, when,
};

use crate::limits::limits;
use first_row::first_row;
use nulls::{is_never_null, rejects_null};
use one_row::{OneRow, one_row, subquery};
use reach::{Root, check_reach};

/// The name of a subquery whose values are compared. The name is not visible outside of that subquery.
const COMPARED: &str = "__compared";

/// Whether there are subqueries in the expressions of a plan.
pub(crate) fn has_any(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        let mut is_there = false;
        node.apply_expressions(|expression| {
            is_there = is_there || has_subquery(expression);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(is_there)
    })
}

/// The functions of these names, of which subqueries become calls.
pub(crate) struct Functions {
    pub(crate) count: Arc<AggregateUDF>,
    pub(crate) max: Arc<AggregateUDF>,
    pub(crate) row_number: Arc<WindowUDF>,
}

/// Rewrites the subqueries of a plan.
pub(crate) fn rewrite(plan: LogicalPlan, functions: &Functions) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| rewrite_node(node, functions)).map(|transformed| transformed.data)
}

fn rewrite_node(node: LogicalPlan, functions: &Functions) -> Result<Transformed<LogicalPlan>> {
    let node = match node {
        LogicalPlan::Filter(filter) => with_own_names(match without_self_equality(&filter.predicate) {
            Some(predicate) => Filter::try_new(predicate, filter.input)?,
            None => filter,
        })?,
        other => other,
    };
    match node {
        LogicalPlan::Filter(filter) if has_subquery(&filter.predicate) => {
            rewrite_filter(&filter.predicate, filter.input.clone(), functions)
        }
        // A condition in ON of an inner join may as well be a condition on the joined rows.
        LogicalPlan::Join(mut join)
            if join.join_type == JoinType::Inner && join.filter.as_ref().is_some_and(has_subquery) =>
        {
            let conjuncts = join.filter.iter().flat_map(split_conjunction).cloned();
            let (above, kept): (Vec<Expr>, Vec<Expr>) = conjuncts.partition(has_subquery);
            join.filter = conjunction(kept);
            let above = conjunction(above).unwrap_or_else(|| lit(true));
            rewrite_filter(&above, Arc::new(LogicalPlan::Join(join)), functions)
        }
        LogicalPlan::Projection(projection) if projection.expr.iter().any(has_subquery) => {
            let rewriter = Rewriter { functions, outer: &projection.input, known: Vec::new() };
            let expressions = projection.expr.iter().map(|expression| {
                let rewritten = rewriter.value(expression.clone())?;
                // The column keeps its name.
                let name = expression.schema_name().to_string();
                Ok(if rewritten.schema_name().to_string() == name { rewritten } else { rewritten.alias(name) })
            });
            let expressions = expressions.collect::<Result<Vec<_>>>()?;
            let input = projection.input.clone();
            Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(expressions, input)?)))
        }
        // The optimizer pulls columns up through a projection, but not through a name.
        LogicalPlan::SubqueryAlias(alias) if !alias.input.all_out_ref_exprs().is_empty() => {
            let input = Arc::unwrap_or_clone(alias.input);
            Ok(Transformed::yes(named(input, &alias.alias)?))
        }
        // The order of its rows does not change which rows a subquery has.
        LogicalPlan::Subquery(mut subquery) => match subquery.subquery.as_ref() {
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                subquery.subquery = sort.input.clone();
                Ok(Transformed::yes(LogicalPlan::Subquery(subquery)))
            }
            _ => Ok(Transformed::no(LogicalPlan::Subquery(subquery))),
        },
        other => Ok(Transformed::no(other)),
    }
}

/// Whether a condition compares a value of the outer query with itself. When the optimizer pulls conditions up, it
/// takes such a condition for true, although it is null if the value is null.
fn equals_itself(condition: &Expr) -> bool {
    matches!(condition, Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right })
        if left == right && condition.contains_outer())
}

/// The condition of a filter with comparisons of a value with itself replaced; `None` if it has none.
fn without_self_equality(condition: &Expr) -> Option<Expr> {
    let conjuncts = split_conjunction(condition);
    let has_one = conjuncts.iter().any(|one| equals_itself(one));
    let spelled = conjuncts.into_iter().map(|one| match one {
        Expr::BinaryExpr(compared) if equals_itself(one) => compared.left.as_ref().clone().is_not_null(),
        other => other.clone(),
    });
    if has_one { conjunction(spelled) } else { None }
}

/// When the optimizer pulls conditions up, it finds their columns by name alone, and takes the first one of that name.
/// So a column that has the name of an earlier input's gets a name of its own.
fn with_own_names(filter: Filter) -> Result<LogicalPlan> {
    let schema = filter.input.schema();
    let mut renamed: Vec<Expr> = Vec::new();
    let conjuncts = split_conjunction(&filter.predicate).into_iter().map(|one| match one.contains_outer() {
        false => Ok(one.clone()),
        true => one
            .clone()
            .transform(|node| match &node {
                Expr::Column(column) => {
                    let place = schema.index_of_column(column)?;
                    if schema.fields().iter().position(|field| *field.name() == column.name) == Some(place) {
                        return Ok(Transformed::no(node));
                    }
                    let own = Column::new(Some(COMPARED), format!("${}_{place}", column.name));
                    let own = own.with_spans(column.spans().clone());
                    let named = node.clone().alias_qualified(own.relation.clone(), own.name());
                    if !renamed.contains(&named) {
                        renamed.push(named);
                    }
                    Ok(Transformed::yes(Expr::Column(own)))
                }
                _ => Ok(Transformed::no(node)),
            })
            .map(|transformed| transformed.data),
    });
    let predicate = conjunction(conjuncts.collect::<Result<Vec<_>>>()?);
    match predicate {
        Some(predicate) if !renamed.is_empty() => {
            let columns = schema.columns().into_iter().map(Expr::Column).chain(renamed).collect();
            let rows = Projection::try_new(columns, filter.input)?;
            Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(LogicalPlan::Projection(rows)))?))
        }
        _ => Ok(LogicalPlan::Filter(filter)),
    }
}

/// Gives rows a name by a projection.
fn named(input: LogicalPlan, name: &TableReference) -> Result<LogicalPlan> {
    let columns = input.schema().iter().map(|(qualifier, field)| {
        Expr::Column(Column::from((qualifier, field))).alias_qualified(Some(name.clone()), field.name())
    });
    let columns = columns.collect::<Vec<_>>();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input))?))
}

fn rewrite_filter(
    predicate: &Expr,
    input: Arc<LogicalPlan>,
    functions: &Functions,
) -> Result<Transformed<LogicalPlan>> {
    let known = split_conjunction(predicate);
    let rewriter = Rewriter { functions, outer: &input, known: known.clone() };
    let mut conjuncts = Vec::with_capacity(known.len());
    for conjunct in known {
        rewriter.conjunct(conjunct, &mut conjuncts)?;
    }
    let predicate = conjunction(conjuncts).unwrap_or_else(|| lit(true));
    Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, input)?)))
}

/// Whether an expression has a subquery in it.
fn has_subquery(expression: &Expr) -> bool {
    let is_subquery = |one: &Expr| {
        Ok(matches!(one, Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)))
    };
    expression.exists(is_subquery).unwrap_or(false)
}

/// If an expression asks whether a value is among those of a subquery: the value, the subquery, and whether the
/// question is negated.
fn membership(expression: &Expr) -> Option<(&Expr, &Subquery, bool)> {
    let (value, found, negated) = match expression {
        Expr::InSubquery(InSubquery { expr, subquery, negated }) => (expr, subquery, *negated),
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => match (op, quantifier) {
            (Operator::Eq, SetQuantifier::Any) => (expr, subquery, false),
            (Operator::NotEq, SetQuantifier::All) => (expr, subquery, true),
            _ => return None,
        },
        _ => return None,
    };
    (!has_subquery(value)).then_some((value.as_ref(), found, negated))
}

/// Rewrites the subqueries of one step.
struct Rewriter<'a> {
    functions: &'a Functions,
    /// The rows for which a subquery is evaluated.
    outer: &'a LogicalPlan,
    /// Further conditions that are true for these rows, wherever the result matters.
    known: Vec<&'a Expr>,
}

impl Rewriter<'_> {
    /// Rewrites a condition under AND, of which only its truth matters. Adds conditions that together say the same.
    fn conjunct(&self, condition: &Expr, conjuncts: &mut Vec<Expr>) -> Result<()> {
        let (condition, is_negated) = match condition {
            Expr::Not(inner) => (inner.as_ref(), true),
            other => (other, false),
        };
        match condition {
            Expr::Exists(Exists { subquery, negated }) => {
                conjuncts.push(self.exists_row(&subquery.subquery, *negated != is_negated)?);
            }
            other => match membership(other) {
                Some((value, found, negated)) => {
                    self.is_in_row(value, found, negated != is_negated, conjuncts)?;
                }
                None => {
                    let value = self.value(other.clone())?;
                    conjuncts.push(if is_negated { not(value) } else { value });
                }
            },
        }
        Ok(())
    }

    /// Rewrites `EXISTS`, or `NOT EXISTS`, under AND.
    fn exists_row(&self, plan: &LogicalPlan, negated: bool) -> Result<Expr> {
        if let Some(row) = self.one_row(plan)? {
            let found = self.checked(row.is_there())?;
            return Ok(if negated { not(found) } else { found });
        }
        let Some(rows) = rows_of_exists(plan)? else { return Ok(lit(negated)) };
        if rows.all_out_ref_exprs().is_empty() {
            return self.counted(rows.clone(), negated);
        }
        check_reach(rows, Root::Rows, self.outer.schema())?;
        Ok(Expr::Exists(Exists { subquery: subquery(rows.clone()), negated }))
    }

    /// Rewrites `IN`, or `NOT IN`, under AND.
    fn is_in_row(&self, value: &Expr, found: &Subquery, negated: bool, conjuncts: &mut Vec<Expr>) -> Result<()> {
        let plan = found.subquery.as_ref();
        if let Some(row) = self.one_row(plan)? {
            let equal = self.checked(row.is_equal(value))?;
            conjuncts.push(if negated { not(equal) } else { equal });
            return Ok(());
        }
        let compared = self.compared(value, plan)?;
        if !negated {
            // The optimizer supports IN, except if the compared value has no column of the outer query, or if the
            // subquery names the outer query.
            let is_plain = !value.column_refs().is_empty() && !plan.contains_outer_reference();
            if is_plain {
                check_reach(plan, Root::Rows, self.outer.schema())?;
                let found = subquery(plan.clone());
                conjuncts.push(Expr::InSubquery(InSubquery::new(Box::new(value.clone()), found, false)));
            } else {
                conjuncts.push(self.exists_row(&compared.equal()?, false)?);
            }
            return Ok(());
        }
        // No row is equal; and no row is null; and if the value is null, there is no row at all.
        conjuncts.push(self.exists_row(&compared.equal()?, true)?);
        if !compared.is_never_null {
            conjuncts.push(self.counted(compared.null()?, true)?);
        }
        if !self.is_never_null(value) {
            conjuncts.push(value.clone().is_not_null().or(self.counted(compared.rows.clone(), true)?));
        }
        Ok(())
    }

    /// Replaces the subqueries of an expression in any place by values.
    fn value(&self, expression: Expr) -> Result<Expr> {
        expression
            .transform_down(|node| {
                if let Some((value, found, negated)) = membership(&node) {
                    let is_in = self.is_in(value, found)?;
                    let replaced = if negated { not(is_in) } else { is_in };
                    return Ok(Transformed::new(replaced, true, TreeNodeRecursion::Jump));
                }
                if let Expr::ScalarSubquery(Subquery { subquery: plan, .. }) = &node
                    && let Some(first) = first_row(plan, &self.functions.max, &self.functions.row_number)?
                {
                    let first = self.checked(Expr::ScalarSubquery(subquery(first)))?;
                    return Ok(Transformed::new(first, true, TreeNodeRecursion::Jump));
                }
                let replaced = match &node {
                    Expr::Exists(Exists { subquery, negated }) => {
                        let plan = &subquery.subquery;
                        let exists = match (self.one_row(plan)?, rows_of_exists(plan)?) {
                            (Some(row), _) => self.checked(row.is_there())?,
                            (None, None) => lit(false),
                            (None, Some(rows)) => self.counted(rows.clone(), false)?,
                        };
                        if *negated { not(exists) } else { exists }
                    }
                    Expr::SetComparison(SetComparison { expr, op, quantifier, .. }) => {
                        let what = format!("{op} {quantifier} (SELECT ...) is not supported yet");
                        return Err(reach::refused(expr, what)
                            .hint("compare with SELECT min(...) or max(...), or write EXISTS or IN")
                            .boxed());
                    }
                    Expr::ScalarSubquery(Subquery { subquery: plan, .. }) => match self.one_row(plan)? {
                        Some(row) if !row.is_plain => self.checked(row.value())?,
                        row => {
                            if row.is_none() {
                                reach::check_is_value(plan)?;
                            }
                            check_reach(plan, Root::Value, self.outer.schema())?;
                            return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
                        }
                    },
                    Expr::InSubquery(InSubquery { expr, .. }) => {
                        let what = "IN (SELECT ...) of something that is a subquery itself is not supported yet";
                        return Err(reach::refused(expr, what).hint("join the subquery on the left in FROM").boxed());
                    }
                    _ => return Ok(Transformed::no(node)),
                };
                Ok(Transformed::new(replaced, true, TreeNodeRecursion::Jump))
            })
            .map(|transformed| transformed.data)
    }

    /// Whether a value is among those of a subquery: true, false or null.
    fn is_in(&self, value: &Expr, found: &Subquery) -> Result<Expr> {
        let plan = found.subquery.as_ref();
        if let Some(row) = self.one_row(plan)? {
            return self.checked(row.is_equal(value));
        }
        let compared = self.compared(value, plan)?;
        let null = || lit(ScalarValue::Boolean(None));
        let mut case = when(self.counted(compared.equal()?, false)?, lit(true));
        if !compared.is_never_null {
            case.when(self.counted(compared.null()?, false)?, null());
        }
        if !self.is_never_null(value) {
            case.when(value.clone().is_null().and(self.counted(compared.rows.clone(), false)?), null());
        }
        case.otherwise(lit(false))
    }

    /// Whether a subquery has rows; if `negated`, whether it has none.
    fn counted(&self, rows: LogicalPlan, negated: bool) -> Result<Expr> {
        let one = vec![lit(COUNT_STAR_EXPANSION)];
        let count = AggregateFunction::new_udf(self.functions.count.clone(), one, false, None, vec![], None);
        let counted = LogicalPlanBuilder::from(rows)
            .aggregate(Vec::<Expr>::new(), vec![Expr::AggregateFunction(count)])?
            .build()?;
        let name = Expr::Column(Column::from(counted.schema().qualified_field(0)));
        let counted = LogicalPlanBuilder::from(counted).project(vec![name])?.build()?;
        check_reach(&counted, Root::Value, self.outer.schema())?;
        let count = Expr::ScalarSubquery(subquery(counted));
        Ok(if negated { count.eq(lit(0_i64)) } else { count.gt(lit(0_i64)) })
    }

    /// Returns an expression if its subqueries can be joined to the outer query.
    fn checked(&self, expression: Expr) -> Result<Expr> {
        expression.apply(|node| {
            if let Expr::ScalarSubquery(Subquery { subquery, .. }) = node {
                check_reach(subquery, Root::Value, self.outer.schema())?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(expression)
    }

    fn one_row(&self, plan: &LogicalPlan) -> Result<Option<OneRow>> {
        one_row(plan, self.outer.schema())
    }

    fn is_never_null(&self, value: &Expr) -> bool {
        is_never_null(value, self.outer) || self.known.iter().any(|one| rejects_null(one, value))
    }

    /// Returns a subquery's rows with the value they are compared to.
    fn compared(&self, value: &Expr, plan: &LogicalPlan) -> Result<Compared> {
        let outer = self.outer.schema();
        let value = value
            .clone()
            .transform(|node| match node {
                Expr::Column(column) => {
                    let field = outer.field_from_column(&column)?.clone();
                    Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
                }
                other => Ok(Transformed::no(other)),
            })?
            .data;
        // The selected expression may name the outer query, too.
        let plan = if let LogicalPlan::Distinct(Distinct::All(input)) = plan { input } else { plan };
        if let LogicalPlan::Projection(projection) = plan
            && plan.contains_outer_reference()
        {
            let (rows, column) = (projection.input.as_ref().clone(), projection.expr[0].clone().unalias());
            return Ok(Compared { value, rows, column, is_never_null: false });
        }
        let first = Column::from(plan.schema().qualified_field(0));
        let is_never_null = is_never_null(&Expr::Column(first), plan);
        let rows = named(plan.clone(), &TableReference::bare(COMPARED))?;
        let column = Expr::Column(Column::from(rows.schema().qualified_field(0)));
        Ok(Compared { value, rows, column, is_never_null })
    }
}

/// The rows of a subquery, of which one column is compared with a value of the outer query.
struct Compared {
    /// The value, over columns of the outer query.
    value: Expr,
    rows: LogicalPlan,
    column: Expr,
    is_never_null: bool,
}

impl Compared {
    /// The rows that are equal to the value.
    fn equal(&self) -> Result<LogicalPlan> {
        self.such_as(self.column.clone().eq(self.value.clone()))
    }

    /// The rows whose column is null.
    fn null(&self) -> Result<LogicalPlan> {
        self.such_as(self.column.clone().is_null())
    }

    /// The condition goes into one filter with that of the rows: the optimizer loses what it has pulled out of a filter
    /// below another one.
    fn such_as(&self, condition: Expr) -> Result<LogicalPlan> {
        let (predicate, input) = match &self.rows {
            LogicalPlan::Filter(filter) => (filter.predicate.clone().and(condition), filter.input.clone()),
            rows => (condition, Arc::new(rows.clone())),
        };
        Ok(LogicalPlan::Filter(Filter::try_new(predicate, input)?))
    }
}

/// The part of a subquery that decides whether it has rows, without steps that only say which columns, how often or how
/// many; `None` if it never has rows.
fn rows_of_exists(plan: &LogicalPlan) -> Result<Option<&LogicalPlan>> {
    match plan {
        LogicalPlan::Projection(projection) => rows_of_exists(&projection.input),
        LogicalPlan::Distinct(Distinct::All(input)) => rows_of_exists(input),
        LogicalPlan::Limit(limit) => match limits(limit)? {
            Some((_, Some(0))) => Ok(None),
            Some((0, _)) => rows_of_exists(&limit.input),
            _ => Ok(Some(plan)),
        },
        other => Ok(Some(other)),
    }
}
