//! A syntax tree to an optimized plan.
//!
//! The rules of the optimizer are chosen: rules that only say the same in fewer rows and columns, or turn subqueries
//! into joins. Rules that assume that all rows have come are left out (limits and sorts inside plans, empty relations).
//! So is the rule that replaces one aggregate by two (`SingleDistinctToGroupBy`), which would turn an append-only
//! result into a changing one.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchemaRef, DataFusionError, Result};
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::planner::ContextProvider;
use datafusion_expr::{Expr, FetchType, LogicalPlan, Projection, SkipType, Sort, SubqueryAlias, WindowUDF};
use datafusion_optimizer::analyzer::type_coercion::TypeCoercion;
use datafusion_optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion_optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion_optimizer::eliminate_duplicated_expr::EliminateDuplicatedExpr;
use datafusion_optimizer::eliminate_outer_join::EliminateOuterJoin;
use datafusion_optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion_optimizer::optimize_projections::OptimizeProjections;
use datafusion_optimizer::optimize_unions::OptimizeUnions;
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::replace_distinct_aggregate::ReplaceDistinctWithAggregate;
use datafusion_optimizer::scalar_subquery_to_join::ScalarSubqueryToJoin;
use datafusion_optimizer::simplify_expressions::SimplifyExpressions;
use datafusion_optimizer::{Analyzer, Optimizer, OptimizerConfig, OptimizerContext, OptimizerRule};
use datafusion_sql::planner::SqlToRel;
use datafusion_sql::sqlparser::ast;

use crate::aliases::OtherNames;
use crate::catalog::{Catalog, ViewSource};
use crate::check::check;
use crate::clauses::{inner_limit, limit, offset, start};
use crate::comparisons;
use crate::conditions::{ConstantsOnTheRight, PushDownConditions};
use crate::decimals;
use crate::earlier_frames;
use crate::error::{Problem, RelationalError, TWO_COLUMNS};
use crate::fields;
use crate::functions::LAG;
use crate::group_window;
use crate::grouping_sets;
use crate::limits;
use crate::marks;
use crate::names;
use crate::nothing::{NothingFulfils, first_scan, with_one_row};
use crate::null_safe::{MarkNullSafeKeys, without_marks};
use crate::order;
use crate::spelling::spell_out;
use crate::stars;
use crate::subqueries::{self, Functions};
use crate::unions;
use crate::unnest;
use crate::versions;
use crate::walk::{NodeMut, change_expression, change_query};
use crate::whole_partitions;

/// The most passes of the rules, as long as they change the plan.
const PASSES_MAX: usize = 4;

/// The largest view that is optimized alone, in steps and expressions together.
const OPTIMIZED_VIEW_MAX: usize = 200;

/// The largest query with the views that it reads, in steps and expressions together.
const STEPS_MAX: usize = 20_000;

/// The most steps of a query above one another.
const DEPTH_MAX: usize = 2_000;

/// An optimized query, without ORDER BY, LIMIT and OFFSET at its top.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan.
    pub plan: LogicalPlan,
    /// ORDER BY at the top, as indices of columns.
    pub order: Vec<SortColumn>,
    /// The number of selected columns. Further columns behind them serve only for ordering.
    pub selected: usize,
    /// LIMIT at the top.
    pub limit: Option<usize>,
    /// OFFSET at the top.
    pub offset: usize,
}

/// A column of ORDER BY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortColumn {
    /// The index of the column.
    pub column: usize,
    /// Whether the greatest comes first.
    pub descending: bool,
    /// Whether null comes first.
    pub nulls_first: bool,
}

/// Plans a query over the relations of the catalog. Rows that go to a sink go there as they come, so a LIMIT with an
/// order at the top is then treated like one inside a query.
pub fn plan(query: &ast::Query, catalog: &Catalog, goes_to_sink: bool) -> Result<Planned, RelationalError> {
    let (mut plan, mut limit, mut offset) = (translate(query, catalog)?, None, 0);
    if goes_to_sink {
        plan = limits::rewrite_top(plan, &row_number(catalog))?;
    }
    if let LogicalPlan::Limit(top) = plan {
        let located = |error: DataFusionError| RelationalError::from(error).located(query);
        (limit, offset) =
            match (top.get_skip_type().map_err(located)?, top.get_fetch_type().map_err(located)?) {
                (SkipType::Literal(skip), FetchType::Literal(fetch)) => (fetch, skip),
                (SkipType::Literal(_), _) => {
                    let error = RelationalError::new("LIMIT takes a whole number");
                    return Err(RelationalError { place: limit_place(query, false), ..error }
                        .hint("write for example LIMIT 10"));
                }
                _ => {
                    let error = RelationalError::new("OFFSET takes a whole number");
                    return Err(RelationalError { place: limit_place(query, true), ..error }
                        .hint("write for example OFFSET 10"));
                }
            };
        plan = Arc::unwrap_or_clone(top.input);
    }
    let selected = plan.schema().fields().len();
    // Columns that are sorted by and not selected stand behind the selected ones, and are removed again above the sort.
    let is_column = |(one, column): (&Expr, Column)| matches!(one, Expr::Column(one) if *one == column);
    if let LogicalPlan::Projection(top) = &plan
        && let LogicalPlan::Sort(sort) = top.input.as_ref()
        && top.expr.iter().zip(sort.input.schema().columns()).all(is_column)
    {
        plan = LogicalPlan::Sort(sort.clone());
    }
    let mut order = Vec::new();
    if let LogicalPlan::Sort(sort) = plan {
        let (sorted, keys) = with_keys(sort)?;
        (plan, order) = (sorted, keys);
    }
    let plan = optimize(plan, catalog).map_err(|error| error.located(query))?;
    refuse_limit(&plan, inner_limit(query), query)?;
    Ok(Planned { plan, order, selected, limit, offset })
}

/// The sorted rows, and the columns by which they are sorted. A sort key that is not a column becomes one.
fn with_keys(sort: Sort) -> Result<(LogicalPlan, Vec<SortColumn>), RelationalError> {
    let schema = sort.input.schema().clone();
    let mut columns: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
    let mut order = Vec::with_capacity(sort.expr.len());
    for key in sort.expr {
        let column = match &key.expr {
            Expr::Column(column) => schema.index_of_column(column)?,
            computed => {
                let mut name = computed.schema_name().to_string();
                if columns.iter().any(|one| one.qualified_name().1 == name) {
                    name = format!("$order_{}", order.len());
                }
                columns.push(computed.clone().alias(name));
                columns.len() - 1
            }
        };
        order.push(SortColumn { column, descending: !key.asc, nulls_first: key.nulls_first });
    }
    if columns.len() == schema.fields().len() {
        return Ok((Arc::unwrap_or_clone(sort.input), order));
    }
    Ok((LogicalPlan::Projection(Projection::try_new(columns, sort.input)?), order))
}

/// Fails if there is a LIMIT that is not at the top; `place` is the place of its number.
fn refuse_limit(plan: &LogicalPlan, place: Option<(u64, u64)>, query: &ast::Query) -> Result<(), RelationalError> {
    let mut found = None;
    plan.apply(|node| {
        if let LogicalPlan::Limit(limit) = node {
            found = Some(limit.fetch.is_some());
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let (what, hint) = match found {
        None => return Ok(()),
        Some(true) => (
            "LIMIT inside of a query needs an ORDER BY, which says which rows there are",
            "write for example ORDER BY ts DESC LIMIT 10",
        ),
        Some(false) => (
            "OFFSET inside of a query needs a LIMIT: all other rows would have to be numbered",
            "write for example ORDER BY ts DESC LIMIT 10 OFFSET 10",
        ),
    };
    let place = if found == Some(false) { offset(query) } else { place };
    Err(RelationalError { place, ..RelationalError::new(what) }.hint(hint))
}

/// The place of the number of LIMIT or of OFFSET.
fn limit_place(query: &ast::Query, is_offset: bool) -> Option<(u64, u64)> {
    match query.limit_clause.as_ref()? {
        ast::LimitClause::LimitOffset { offset: Some(offset), .. } if is_offset => start(&offset.value),
        ast::LimitClause::LimitOffset { limit: Some(limit), .. } => start(limit),
        ast::LimitClause::OffsetCommaLimit { offset, .. } if is_offset => start(offset),
        ast::LimitClause::OffsetCommaLimit { limit, .. } => start(limit),
        _ => None,
    }
}

/// A planned view: a query that other queries read by a name.
#[derive(Clone, Debug)]
pub struct PlannedView {
    /// The plan that takes the place of the name.
    pub plan: LogicalPlan,
    /// Whether it is already optimized. Then a view that cannot run is found while its text is at hand. A long view is
    /// optimized only together with the query that reads it: to begin anew with each view of a chain would take time
    /// quadratic in the length of the chain.
    pub is_optimized: bool,
}

/// Plans a view.
pub fn plan_view(query: &ast::Query, catalog: &Catalog) -> Result<PlannedView, RelationalError> {
    let plan = limits::rewrite_top(translate(query, catalog)?, &row_number(catalog))?;
    match size(&plan, OPTIMIZED_VIEW_MAX) {
        Some(_) => {
            let plan = optimize(plan, catalog).map_err(|error| error.located(query))?;
            refuse_limit(&plan, limit(query), query)?;
            Ok(PlannedView { plan, is_optimized: true })
        }
        None => Ok(PlannedView { plan, is_optimized: false }),
    }
}

/// Returns the number of steps and expressions of a plan, and how many steps are above one another; `None` if either is
/// more than `most`.
fn size(plan: &LogicalPlan, most: usize) -> Option<(usize, usize)> {
    let (mut steps, mut deepest, mut waiting) = (0, 0, vec![(plan, 1)]);
    while let Some((plan, depth)) = waiting.pop() {
        steps += 1;
        plan.apply_expressions(|expression| {
            expression.apply(|_| {
                steps += 1;
                Ok(if steps > most { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })
        .ok()?;
        deepest = deepest.max(depth);
        if steps > most || deepest > most {
            return None;
        }
        waiting.extend(plan.inputs().into_iter().map(|input| (input, depth + 1)));
    }
    Some((steps, deepest))
}

fn translate(query: &ast::Query, catalog: &Catalog) -> Result<LogicalPlan, RelationalError> {
    check(query)?;
    let (mut query, mut inputs) = (query.clone(), OtherNames::default());
    // The loop ends: an input that has got another name is not found under its own name again, and the same holds for a
    // column by its fields. A computed column is named once, and a row that is spelled
    // out is.
    loop {
        let error = match translate_as_named(&query, catalog) {
            Ok(plan) => return Ok(plan),
            Err(error) => error,
        };
        let is_renamed = match &error.problem {
            Problem::FieldOfColumn(name) => inputs.give(name.split('.').next().unwrap_or(name), &mut query),
            Problem::UnknownColumn(name, columns) => fields::name_column(name, columns, &mut query),
            Problem::DuplicateColumn(..) => names::make_keys_different(&mut query),
            Problem::Other(message) if message.starts_with(TWO_COLUMNS) => names::make_keys_different(&mut query),
            Problem::Foreign(message) => {
                names::make_different(message, &mut query)
                    || stars::spell_out(message, &mut query, |row| schema_of(row, catalog).ok())?
            }
            _ => false,
        };
        if !is_renamed {
            return Err(inputs.taken_back(error.located(&query)));
        }
    }
}

fn translate_as_named(query: &ast::Query, catalog: &Catalog) -> Result<LogicalPlan, RelationalError> {
    let mut query = query.clone();
    spelled_out(|spell_out| change_query(&mut query, spell_out))?;
    group_window::check(&query, catalog)?;
    grouping_sets::check(&query)?;
    let written = query.clone();
    group_window::rewrite_query(&mut query);
    order::rewrite_query(&mut query);
    unnest::rewrite_query(&mut query);
    versions::rewrite_query(&mut query, |name| catalog.is_table(name));
    let statement = ast::Statement::Query(Box::new(query));
    let plan = SqlToRel::new(catalog).sql_statement_to_plan(statement)?;
    let aggregate = |name: &str| catalog.get_aggregate_meta(name).expect("the language has it");
    let functions = Functions { count: aggregate("count"), max: aggregate("max"), row_number: row_number(catalog) };
    let plan = versions::rewrite_plan(unnest::rewrite_plan(plan)?)?;
    let plan = grouping_sets::rewrite_plan(plan, &functions.count, &written)?;
    let plan = group_window::rewrite_plan(plan)?;
    comparisons::check(&plan)?;
    let plan = decimals::rewrite_plan(plan)?;
    let plan = whole_partitions::rewrite_plan(plan)?;
    let lag = catalog.get_window_meta(LAG).expect("the language has lag");
    let plan = order::rewrite_plan(earlier_frames::rewrite_plan(plan, &lag)?)?;
    let plan = limits::rewrite_below(plan, &functions.row_number)?;
    let plan = unions::rewrite_plan(plan)?;
    let plan = marks::rewrite_plan(plan)?;
    let plan = unions::with_common_marks(plan)?;
    if !subqueries::has_any(&plan)? {
        return with_views(plan);
    }
    Ok(subqueries::rewrite(with_views(plan)?, &functions)?)
}

fn row_number(catalog: &Catalog) -> Arc<WindowUDF> {
    catalog.get_window_meta("row_number").expect("the language has row_number")
}

/// Replaces the names of views by their plans.
fn with_views(plan: LogicalPlan) -> Result<LogicalPlan, RelationalError> {
    let put = |node| match node {
        LogicalPlan::TableScan(scan) => match scan.source.downcast_ref::<ViewSource>() {
            Some(view) => {
                let named = SubqueryAlias::try_new(view.plan.clone(), scan.table_name.clone())?;
                // The plan of the view has the plans of its own views already.
                Ok(Transformed::new(LogicalPlan::SubqueryAlias(named), true, TreeNodeRecursion::Jump))
            }
            None => Ok(Transformed::no(LogicalPlan::TableScan(scan))),
        },
        other => Ok(Transformed::no(other)),
    };
    let plan = plan.transform_down_with_subqueries(put)?.data;
    match size(&plan, STEPS_MAX) {
        Some((_, depth)) if depth <= DEPTH_MAX => Ok(plan),
        _ => Err(RelationalError::new(format!(
            "with its views this is a query of more than {STEPS_MAX} steps, or of more than {DEPTH_MAX} one behind the other"
        ))
        .hint("write what the first views come to into a sink, and read from there")),
    }
}

/// Returns the columns of a query.
pub(crate) fn schema_of(query: &ast::Query, catalog: &Catalog) -> Result<DFSchemaRef, RelationalError> {
    Ok(translate(query, catalog)?.schema().clone())
}

/// Spells out an expression and those in it.
pub(crate) fn spell_out_expression(expression: &mut ast::Expr) -> Result<(), RelationalError> {
    spelled_out(|spell_out| change_expression(expression, spell_out))
}

/// Spells out everything that a walk shows.
fn spelled_out(walk: impl FnOnce(&mut dyn FnMut(NodeMut<'_>, usize))) -> Result<(), RelationalError> {
    let (mut found, mut copied) = (None, 0);
    walk(&mut |node, _| {
        let NodeMut::Expr(expression) = node else { return };
        let place = start(expression);
        if let (Err(error), None) = (spell_out(expression, &mut copied), &found) {
            found = Some(RelationalError { place, ..error });
        }
    });
    found.map_or(Ok(()), Err)
}

fn optimize(plan: LogicalPlan, catalog: &Catalog) -> Result<LogicalPlan, RelationalError> {
    let analyzer = Analyzer::with_rules(vec![Arc::new(TypeCoercion::new())]);
    let plan = analyzer.execute_and_check(plan, &catalog.options, |_, _| {})?;
    let plan = with_folded_constants(plan, catalog)?;
    let context = OptimizerContext::new_with_config_options(catalog.options.clone()).with_max_passes(PASSES_MAX as u8);
    let source = first_scan(&plan, |name| !catalog.is_table(name))?;
    let plan = Optimizer::with_rules(rules()).optimize(plan, &context, |_, _| {})?;
    let plan = versions::without_inferred(without_marks(plan)?)?;
    let plan = match source {
        Some(source) => with_one_row(plan, &source, catalog)?,
        None => plan,
    };
    Ok(without_idle_filters(plan)?)
}

fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    vec![
        Arc::new(OptimizeUnions::new()),
        Arc::new(ReplaceDistinctWithAggregate::new()),
        Arc::new(DecorrelatePredicateSubquery::new()),
        // Before anything is simplified: a value that is not found is null, even if its column never is.
        Arc::new(ScalarSubqueryToJoin::new()),
        Arc::new(SimplifyExpressions::new()),
        // Before a condition of ON gets into WHERE.
        Arc::new(ConstantsOnTheRight),
        Arc::new(NothingFulfils),
        Arc::new(MarkNullSafeKeys),
        Arc::new(ExtractEquijoinPredicate::new()),
        Arc::new(EliminateDuplicatedExpr::new()),
        Arc::new(EliminateCrossJoin::new()),
        Arc::new(EliminateOuterJoin::new()),
        Arc::new(PushDownConditions::new()),
        Arc::new(OneName),
        Arc::new(OptimizeProjections::new()),
    ]
}

/// Does arithmetic over constants. Columns keep their names, which follow from the text of the query.
fn with_folded_constants(plan: LogicalPlan, catalog: &Catalog) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        node.map_expressions(|expression| {
            let name = names.save(&expression);
            Ok((catalog.fold)(expression)?.update_data(|folded| name.restore(folded)))
        })
    })
    .map(|transformed| transformed.data)
}

/// Removes a name under another name: a view that only names another view is as short as that view.
#[derive(Debug)]
struct OneName;

impl OptimizerRule for OneName {
    fn name(&self) -> &str {
        "one_name"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::SubqueryAlias(outer) => match outer.input.as_ref() {
                LogicalPlan::SubqueryAlias(inner) => {
                    let named = SubqueryAlias::try_new(inner.input.clone(), outer.alias)?;
                    Ok(Transformed::yes(LogicalPlan::SubqueryAlias(named)))
                }
                _ => Ok(Transformed::no(LogicalPlan::SubqueryAlias(outer))),
            },
            other => Ok(Transformed::no(other)),
        }
    }
}

/// Removes conditions that are always true.
fn without_idle_filters(plan: LogicalPlan) -> Result<LogicalPlan> {
    let keep = |plan| match plan {
        LogicalPlan::Filter(filter) if is_true(&filter.predicate) => {
            Ok(Transformed::yes(Arc::unwrap_or_clone(filter.input)))
        }
        other => Ok(Transformed::no(other)),
    };
    plan.transform_up(keep).map(|transformed| transformed.data)
}

fn is_true(predicate: &Expr) -> bool {
    use datafusion_common::ScalarValue;
    matches!(predicate, Expr::Literal(ScalarValue::Boolean(Some(true)), _))
}
