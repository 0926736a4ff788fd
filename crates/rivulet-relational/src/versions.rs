//! `FOR SYSTEM_TIME AS OF o.ts` behind the name of a stream: of each of its keys, the row that was the newest at the
//! time of the row that is joined.
//!
//! DataFusion's planner would ignore the clause. So the stream becomes a node, [`Versions`], below which no condition
//! moves: a condition on versions must not choose another version. [`rewrite_plan`] puts the time into the condition of
//! the join, as a call of [`SYSTEM_TIME`] with a column of either side, so that it is resolved and kept like any other
//! condition.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion_common::{Column, DFSchemaRef, DataFusionError, JoinType, Result, Span, Spans, TableReference};
use datafusion_expr::planner::RelationPlannerContext;
use datafusion_expr::utils::{conjunction, split_conjunction};
use datafusion_expr::{Expr, Extension, Filter, Join, LogicalPlan, SubqueryAlias, UserDefinedLogicalNodeCore};
use datafusion_sql::sqlparser::ast::{self, Ident, Spanned, TableFactor};

use crate::check::name_of;
use crate::error::RelationalError;
use crate::functions::{SYSTEM_TIME, system_time};
use crate::nodes::compare_by_parts;
use crate::times::TIMESTAMP;
use crate::walk::{NodeMut, change_query};

const EXAMPLE: &str = "write FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON r.currency = o.currency";

/// The rows of a stream as versions: a row is valid from its event time until the next row of its key.
#[derive(Clone, Debug)]
pub struct Versions {
    /// The rows.
    pub input: Arc<LogicalPlan>,
    /// The time for which versions are asked, as written.
    time: ast::Expr,
    place: Option<(u64, u64)>,
    /// Whether the time is in the condition of a join above.
    is_joined: bool,
}

impl Versions {
    fn parts(&self) -> (&LogicalPlan, &ast::Expr, bool) {
        (&self.input, &self.time, self.is_joined)
    }

    fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    fn fail(&self, message: &str) -> DataFusionError {
        RelationalError { place: self.place, ..RelationalError::new(message) }.hint(EXAMPLE).boxed()
    }

    /// The column of the rows at the left that the time names.
    fn time_of(&self, join: &Join) -> Result<Column> {
        let name = |ident: &Ident| match ident.quote_style {
            Some(_) => ident.value.clone(),
            None => ident.value.to_lowercase(),
        };
        let named = match &self.time {
            ast::Expr::Identifier(column) => Column::new_unqualified(name(column)),
            ast::Expr::CompoundIdentifier(parts) if parts.len() == 2 => {
                Column::new(Some(TableReference::bare(name(&parts[0]))), name(&parts[1]))
            }
            _ => return Err(self.fail("FOR SYSTEM_TIME AS OF names the event time of the rows that are joined")),
        };
        let schema = join.left.schema();
        let found = schema.index_of_column(&named).map_err(|error| {
            let error = RelationalError::from(error);
            RelationalError { place: error.place.or(self.place), ..error }.boxed()
        })?;
        if *schema.field(found).data_type() != TIMESTAMP {
            return Err(self.fail("the time of FOR SYSTEM_TIME AS OF must be a TIMESTAMP"));
        }
        let span = Span::try_from_sqlparser_span(self.time.span());
        Ok(Column::from(schema.qualified_field(found)).with_spans(span.map_or_else(Spans::new, |span| {
            let mut spans = Spans::new();
            spans.add_span(span);
            spans
        })))
    }
}

/// Removes the clause behind names of tables: these are looked up as they are.
pub(crate) fn rewrite_query(query: &mut ast::Query, is_table: impl Fn(&str) -> bool) {
    change_query(query, &mut |node, _| {
        if let NodeMut::TableFactor(TableFactor::Table { name, version, .. }) = node
            && is_table(&name_of(name))
        {
            *version = None;
        }
    });
}

/// Plans a stream with the clause as the node, without its alias.
pub(crate) fn plan(
    stream: TableFactor,
    time: ast::Expr,
    context: &mut dyn RelationPlannerContext,
) -> Result<LogicalPlan> {
    let start = time.span().start;
    let place = (start.line > 0).then_some((start.line, start.column));
    let input = Arc::new(context.plan(stream)?);
    Ok(Versions { input, time, place, is_joined: false }.into_plan())
}

/// Puts the times of versions into the conditions of their joins.
pub(crate) fn rewrite_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) => match asked(&join.right) {
            Some(versions) => joined(versions.clone(), join).map(Transformed::yes),
            None => Ok(Transformed::no(LogicalPlan::Join(join))),
        },
        other => Ok(Transformed::no(other)),
    })?;
    let plan = rewritten.data;
    plan.apply_with_subqueries(|node| match asked(node) {
        Some(versions) => {
            Err(versions.fail("FOR SYSTEM_TIME AS OF stands in a JOIN, behind the rows whose time it names"))
        }
        None => Ok(TreeNodeRecursion::Continue),
    })?;
    Ok(plan)
}

/// Removes what the optimizer has inferred of the conditions with times: by the keys of joins it writes them for
/// columns of other inputs, where they say nothing.
pub(crate) fn without_inferred(plan: LogicalPlan) -> Result<LogicalPlan> {
    let is_inferred = |one: &Expr| matches!(one, Expr::ScalarFunction(call) if call.func.name() == SYSTEM_TIME);
    let others = |condition: &Expr| {
        let conjuncts = split_conjunction(condition);
        let all = conjuncts.len();
        let others: Vec<Expr> = conjuncts.into_iter().filter(|one| !is_inferred(one)).cloned().collect();
        (others.len() < all).then(|| conjunction(others))
    };
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Filter(filter) => match others(&filter.predicate) {
            None => Ok(Transformed::no(LogicalPlan::Filter(filter))),
            Some(None) => Ok(Transformed::yes(Arc::unwrap_or_clone(filter.input))),
            Some(Some(left)) => Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(left, filter.input)?))),
        },
        LogicalPlan::Join(join) if !is_of_versions(&join.right) => match join.filter.as_ref().and_then(others) {
            Some(filter) => Ok(Transformed::yes(LogicalPlan::Join(Join { filter, ..join }))),
            None => Ok(Transformed::no(LogicalPlan::Join(join))),
        },
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|transformed| transformed.data)
}

/// Whether a plan only chooses rows and columns of versions.
fn is_of_versions(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::SubqueryAlias(_) | LogicalPlan::Projection(_) | LogicalPlan::Filter(_) => {
            plan.inputs().into_iter().any(is_of_versions)
        }
        LogicalPlan::Extension(extension) => extension.node.as_any().is::<Versions>(),
        _ => false,
    }
}

/// The versions that a plan is, if nothing has resolved their time yet.
fn asked(plan: &LogicalPlan) -> Option<&Versions> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => asked(&alias.input),
        LogicalPlan::Extension(extension) => {
            extension.node.as_any().downcast_ref::<Versions>().filter(|versions| !versions.is_joined)
        }
        _ => None,
    }
}

fn joined(versions: Versions, join: Join) -> Result<LogicalPlan> {
    if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        return Err(versions.fail(&format!(
            "FOR SYSTEM_TIME AS OF in a {} JOIN is not supported yet",
            join.join_type.to_string().to_uppercase()
        )));
    }
    let time = versions.time_of(&join)?;
    // A column that the condition names is read anyway.
    let right = join.right.schema();
    let conditions = join.on.iter().map(|(_, right)| right).chain(&join.filter);
    let named = conditions.flat_map(Expr::column_refs).find_map(|column| right.maybe_index_of_column(column));
    let of_version = Expr::Column(Column::from(right.qualified_field(named.unwrap_or(0))));
    let is_of_time = system_time().call(vec![Expr::Column(time), of_version]);
    let resolved = Versions { is_joined: true, ..versions }.into_plan();
    let right = match &*join.right {
        LogicalPlan::SubqueryAlias(alias) => {
            LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(resolved), alias.alias.clone())?)
        }
        _ => resolved,
    };
    let filter = conjunction(join.filter.into_iter().chain([is_of_time]));
    Ok(LogicalPlan::Join(Join { right: Arc::new(right), filter, ..join }))
}

compare_by_parts!(Versions);

impl UserDefinedLogicalNodeCore for Versions {
    fn name(&self) -> &str {
        "Versions"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    /// A condition on versions is none on the rows among which the newest is a version.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        self.input.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Versions: as of {}", self.time)
    }

    fn with_exprs_and_inputs(&self, _expressions: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let input = inputs.into_iter().next();
        let input = input.ok_or_else(|| DataFusionError::Internal("versions have one input".into()))?;
        Ok(Self { input: Arc::new(input), ..self.clone() })
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}
