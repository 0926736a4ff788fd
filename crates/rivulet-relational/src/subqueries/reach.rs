//! How far up the conditions of a subquery that name columns of the outer query may be pulled. The steps above them
//! must give the same rows if the conditions are applied after them. The optimizer does not check this.

use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchema, JoinType, Result};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{BinaryExpr, Cast, Expr, LogicalPlan, Operator};

use crate::error::RelationalError;

/// The name of a barrier: no condition is pulled up over it.
const LIMIT: &str = "LIMIT or OFFSET";

/// What a subquery stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    /// A value: an aggregate without GROUP BY at its top is completed where no row is found.
    Value,
    /// Rows.
    Rows,
}

/// Fails if a subquery names columns of the outer query in a place from which they cannot be pulled up.
pub(super) fn check_reach(plan: &LogicalPlan, root: Root, outer: &DFSchema) -> Result<()> {
    if plan.all_out_ref_exprs().is_empty() {
        return Ok(());
    }
    Reach { outer, above: Vec::new() }.walk(plan, Way { root: Some(root), ..Way::default() })
}

/// Fails if a subquery that stands for a value may give more than one row for a row of the outer query.
pub(super) fn check_is_value(plan: &LogicalPlan) -> Result<()> {
    // For ranks, the operators know how many rows there can be.
    let is_ranked = plan.exists(|node| Ok(matches!(node, LogicalPlan::Window(_))))?;
    let is_correlated = !plan.all_out_ref_exprs().is_empty();
    if plan.max_rows().is_some_and(|rows| rows <= 1) || is_ranked && !is_correlated {
        return Ok(());
    }
    let mut inner = plan;
    while let LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Filter(_) = inner {
        inner = inner.inputs()[0];
    }
    if let (LogicalPlan::Aggregate(aggregate), true) = (inner, is_correlated) {
        // A key that is equal to an expression of the outer query has one value for it.
        let mut equal: Vec<&Expr> = Vec::new();
        aggregate.input.apply(|node| {
            if let LogicalPlan::Filter(filter) = node {
                equal.extend(split_conjunction(&filter.predicate).into_iter().filter_map(equal_to_outer));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !aggregate.aggr_expr.is_empty() && aggregate.group_expr.iter().all(|key| equal.contains(&key)) {
            return Ok(());
        }
    }
    let mut place = None;
    plan.apply(|node| {
        node.apply_expressions(|expression| {
            place = place.or_else(|| place_of(expression));
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    let hint = match inner {
        LogicalPlan::Aggregate(aggregate) if !aggregate.aggr_expr.is_empty() => {
            "leave GROUP BY out, or compare each of its keys with = to a column of the outer query"
        }
        _ => "aggregate in it, for example SELECT max(...)",
    };
    let error = RelationalError::new("a subquery that stands for a value may give more than one row");
    Err(RelationalError { place, ..error }.hint(hint).boxed())
}

/// The steps between a node and the top of its subquery.
#[derive(Clone, Copy, Default)]
struct Way {
    /// What the subquery stands for, as long as only names are above.
    root: Option<Root>,
    /// The step above over which no condition may be pulled.
    barrier: Option<&'static str>,
    /// Whether an aggregate is above. Over it, only equalities may be pulled.
    is_grouped: bool,
}

struct Reach<'a> {
    outer: &'a DFSchema,
    /// The columns of the nodes above.
    above: Vec<&'a DFSchema>,
}

impl<'a> Reach<'a> {
    fn walk(&mut self, plan: &'a LogicalPlan, way: Way) -> Result<()> {
        self.above.push(plan.schema());
        let walked = self.node(plan, way);
        self.above.pop();
        walked
    }

    fn node(&mut self, plan: &'a LogicalPlan, way: Way) -> Result<()> {
        let inner = Way { root: None, ..way };
        let behind = |barrier: &'static str| Way { barrier: way.barrier.or(Some(barrier)), ..inner };
        match plan {
            LogicalPlan::Filter(filter) => {
                for conjunct in split_conjunction(&filter.predicate).into_iter().filter(|one| one.contains_outer()) {
                    self.conjunct(conjunct, way)?;
                }
                self.walk(&filter.input, inner)
            }
            LogicalPlan::SubqueryAlias(alias) => self.walk(&alias.input, way),
            LogicalPlan::Projection(projection) => {
                self.nothing_outer(plan, "in the SELECT of a subquery")?;
                self.walk(&projection.input, way)
            }
            LogicalPlan::Aggregate(aggregate) => {
                self.nothing_outer(plan, "in GROUP BY or an aggregate of a subquery")?;
                let below = match (aggregate.group_expr.is_empty(), way.root) {
                    (true, Some(Root::Value)) | (false, _) => Way { is_grouped: true, ..inner },
                    (true, _) => behind("an aggregate without GROUP BY"),
                };
                self.walk(&aggregate.input, below)
            }
            LogicalPlan::Join(join) => {
                self.nothing_outer(plan, "in ON of a join of a subquery")?;
                let sides = match join.join_type {
                    JoinType::Inner => [inner, inner],
                    JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
                        [inner, behind("an outer, semi or anti join")]
                    }
                    JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                        [behind("an outer, semi or anti join"), inner]
                    }
                    JoinType::Full => [behind("a full join"); 2],
                };
                self.walk(&join.left, sides[0])?;
                self.walk(&join.right, sides[1])
            }
            LogicalPlan::Distinct(_) => self.each_input(plan, inner, "in DISTINCT"),
            LogicalPlan::Sort(_) => self.each_input(plan, behind("ORDER BY"), "in ORDER BY of a subquery"),
            LogicalPlan::Limit(_) => self.each_input(plan, behind(LIMIT), "in LIMIT of a subquery"),
            LogicalPlan::Window(_) => self.each_input(plan, behind("a function OVER"), "in OVER of a subquery"),
            LogicalPlan::Union(_) => self.each_input(plan, behind("UNION"), "in UNION"),
            LogicalPlan::Extension(_) => self.each_input(plan, behind("a window"), "in a window of a subquery"),
            other => self.each_input(other, behind("this step"), "in this place of a subquery"),
        }
    }

    fn each_input(&mut self, plan: &'a LogicalPlan, way: Way, place: &str) -> Result<()> {
        self.nothing_outer(plan, place)?;
        plan.inputs().into_iter().try_for_each(|input| self.walk(input, way))
    }

    /// Checks a condition of WHERE or HAVING that names columns of the outer query.
    fn conjunct(&self, conjunct: &'a Expr, way: Way) -> Result<()> {
        let mut names: Vec<&Column> = Vec::new();
        conjunct.apply(|node| {
            if let Expr::OuterReferenceColumn(_, column) = node {
                names.push(column);
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        for name in names {
            if !self.outer.has_column(name) {
                let what = format!(
                    "'{}' is a column of a query further out than the one around this subquery",
                    name.flat_name()
                );
                return Err(refused(conjunct, format!("{what}, which is not supported yet"))
                    .hint("select the column in the query between, and name it there")
                    .boxed());
            }
            let is_same = |schema: &&DFSchema| {
                schema
                    .iter()
                    .any(|(qualifier, field)| qualifier == name.relation.as_ref() && *field.name() == name.name)
            };
            if self.above.iter().any(is_same) {
                let what = format!("'{}' is a column of the outer query and of the subquery", name.flat_name());
                return Err(refused(conjunct, what)
                    .hint("give one of the inputs another name: FROM t AS other")
                    .boxed());
            }
        }
        if let Some(barrier) = way.barrier {
            let hint = match barrier {
                LIMIT => "leave it out: the rows of a stream have no order in which they are counted",
                _ => "select the columns that are compared, and compare them in the WHERE of the subquery itself",
            };
            let what = format!("a condition on the outer query below {barrier} is not supported yet");
            return Err(refused(conjunct, what).hint(hint).boxed());
        }
        if way.is_grouped && equal_to_outer(conjunct).is_none() {
            let what = "an aggregate over rows that are not found by an equality with the outer query";
            let hint = match conjunct {
                Expr::BinaryExpr(BinaryExpr { op: Operator::Eq, .. }) => {
                    "on one side of = there must be a column of the subquery, on the other the outer query alone; \
                     or join, and aggregate then"
                }
                _ => "compare a column of the subquery with = to the outer query; or join, and aggregate then",
            };
            return Err(refused(conjunct, format!("{what} is not supported yet")).hint(hint).boxed());
        }
        Ok(())
    }

    /// Fails if a node's own expressions name columns of the outer query.
    fn nothing_outer(&self, plan: &LogicalPlan, place: &str) -> Result<()> {
        plan.apply_expressions(|expression| match expression.contains_outer() {
            true => Err(refused(expression, format!("a column of the outer query {place} is not supported yet"))
                .hint("name it in the WHERE of the subquery, or outside of the subquery")
                .boxed()),
            false => Ok(TreeNodeRecursion::Continue),
        })
        .map(drop)
    }
}

/// The column of the subquery that a condition equates with an expression of the outer query alone.
pub(super) fn equal_to_outer(conjunct: &Expr) -> Option<&Expr> {
    fn column(one: &Expr) -> Option<&Expr> {
        match one {
            Expr::Column(_) => Some(one),
            Expr::Cast(Cast { expr, .. }) => column(expr),
            _ => None,
        }
    }
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = conjunct else { return None };
    let is_outer = |one: &Expr| one.contains_outer() && !one.any_column_refs();
    column(left).filter(|_| is_outer(right)).or_else(|| column(right).filter(|_| is_outer(left)))
}

/// The place of the first column of an expression, if known.
fn place_of(expression: &Expr) -> Option<(u64, u64)> {
    let mut place = None;
    let found = expression.apply(|node| {
        if let Expr::Column(column) | Expr::OuterReferenceColumn(_, column) = node
            && let Some(span) = column.spans().first()
        {
            place = Some((span.start.line, span.start.column));
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(found.is_ok(), "nothing is wrong with a look at columns");
    place
}

/// An error about an expression, at the place of its first column.
pub(super) fn refused(expression: &Expr, message: impl Into<String>) -> RelationalError {
    RelationalError { place: place_of(expression), ..RelationalError::new(message) }
}
