//! Big queries: a relational plan to a parallel dataflow of operators.
//!
//! The relational planner ([`rivulet_relational`]) resolves names and types and says what is to be computed. This
//! module decides by which operators. Windows wait until it is clear what needs them: an aggregate makes them itself,
//! and only other operators that use them get them as columns. Columns of the plan are indices in the rows of a step,
//! so that renaming and reordering cost nothing.
//!
//! In reading order: `stream`: what is known of the rows that leave a step; `lower`: the plan node by node; `union`,
//! `aggregate`, `join`, `bounds`, `lookup`, `over`, `unnest`: other nodes; `output`: the last step;
//! `builder`: operators and edges, each once; `columns`: what expressions use; `computed`: columns that a source
//! computes; `relations`, `aggregates`, `scalars`, `calls`: what names mean; `error`: errors in our words; `culprit`:
//! which expression has the error.

mod aggregate;
mod aggregates;
mod bounds;
mod builder;
mod calls;
mod columns;
mod computed;
mod culprit;
mod error;
mod join;
mod letters;
mod lists;
mod lookup;
mod lower;
mod output;
mod over;
mod relations;
pub(super) mod scalars;
mod stream;
mod union;
mod unnest;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion_expr::LogicalPlan;
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_dataflow::{Dataflow, NodeId};
use rivulet_operators::Table;
use rivulet_operators::parallel::ComputedColumns;
use rivulet_relational::parts::selects;
use rivulet_relational::{Catalog, RelationalError};

use super::arithmetic::fold_constants;
use super::functions::REGISTRY;
use super::with_room;
use crate::scope::{Relation, Scope, SinkDeclaration, SourceDeclaration};
use crate::statement::BigQuery;
use crate::{Position, SqlError};
use builder::Builder;
use lower::Lowering;
use relations::{ReferenceTable, SourceTable};

pub(crate) use computed::plan as plan_computed;
pub(crate) use letters::check as check_letters;
pub use letters::letter_schema;

/// A planned big query.
pub struct QueryPlan {
    /// The sources that it reads, each once; [`rivulet_dataflow::Work::Source`] is an index in this list.
    pub sources: Vec<PlannedSource>,
    /// The reference tables in which it looks rows up.
    pub tables: Vec<Arc<Table>>,
    /// The operators, from the sources to the one sink.
    pub dataflow: Dataflow,
    /// Its output.
    pub output: PlannedOutput,
    /// The sinks of refused rows. They have the indices of [`rivulet_dataflow::Work::Sink`] from 1 on, and take rows of
    /// [`letter_schema`].
    pub letters: Vec<Arc<SinkDeclaration>>,
    /// What each operator does, by node. It uses the indices of columns, because several columns may have one name.
    pub(crate) identities: BTreeMap<NodeId, String>,
    /// For each stateful operator, whether it may retract rows. Any other operator may if its inputs may.
    pub(crate) changes: BTreeMap<NodeId, bool>,
}

/// A source that a query reads.
#[derive(Clone, Debug)]
pub struct PlannedSource {
    /// The source.
    pub declaration: Arc<SourceDeclaration>,
    /// The columns that are read, in ascending order: declared ones, and behind these computed ones.
    pub columns: Vec<usize>,
    /// The index of the event time among these columns.
    pub event_time: Option<usize>,
    /// The declared columns that the source must read, in ascending order.
    pub asked: Vec<usize>,
    /// Makes `columns` from the columns that are asked. Without it, both are the same.
    pub computed: Option<Arc<ComputedColumns>>,
}

/// The output of a query.
#[derive(Clone, Debug)]
pub struct PlannedOutput {
    /// The sink; without one, results go to the caller.
    pub sink: Option<Arc<SinkDeclaration>>,
    /// The columns.
    pub schema: SchemaRef,
    /// Whether rows may be retracted.
    pub changes: bool,
    /// Columns whose values identify a row, if there are such.
    pub key: Option<Vec<usize>>,
    /// The outermost ORDER BY, for the final result of bounded input.
    pub order: Vec<SortKey>,
    /// How many of the columns are selected. The columns behind them are there only for ORDER BY.
    pub selected: usize,
    /// The outermost LIMIT, for the final result of bounded input.
    pub limit: Option<usize>,
    /// The outermost OFFSET, for the final result of bounded input.
    pub offset: usize,
}

impl PlannedOutput {
    /// The columns that are selected.
    pub fn selected_schema(&self) -> SchemaRef {
        match self.selected == self.schema.fields().len() {
            true => self.schema.clone(),
            false => Arc::new(Schema::new(self.schema.fields()[..self.selected].to_vec())),
        }
    }
}

/// A column of ORDER BY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The index of the column.
    pub column: usize,
    /// Whether the greatest value comes first.
    pub descending: bool,
    /// Whether null comes first.
    pub nulls_first: bool,
}

impl fmt::Debug for QueryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryPlan")
            .field("sources", &self.sources)
            .field("dataflow", &self.dataflow)
            .field("output", &self.output)
            .finish_non_exhaustive()
    }
}

/// Plans a query over what is in scope.
pub fn plan_query(query: &BigQuery, scope: &Scope) -> Result<QueryPlan, SqlError> {
    with_room(query.position, || plan_here(query, scope, true))
}

/// Does the same for a query that writes nowhere: the rows that it refuses are counted, but do not go to the sinks that
/// its sources name for them.
pub fn plan_look(query: &BigQuery, scope: &Scope) -> Result<QueryPlan, SqlError> {
    with_room(query.position, || plan_here(query, scope, false))
}

/// Returns what a query names in FROM: the parts of each name, in lower case unless quoted, and its position.
///
/// # Errors
///
/// The query is a stored text that could not be read.
pub fn relations_of(query: &BigQuery) -> Result<Vec<(Vec<String>, Position)>, SqlError> {
    let found = rivulet_relational::calls::relations(query.query()?);
    Ok(found.into_iter().map(|(parts, place)| (parts, Position::from(place).or(query.position))).collect())
}

fn plan_here(query: &BigQuery, scope: &Scope, has_letters: bool) -> Result<QueryPlan, SqlError> {
    let sink = output::sink_of(query.sink.as_ref(), scope)?;
    calls::check(query)?;
    let catalog = catalog(scope);
    let planned = rivulet_relational::plan(query.query()?, &catalog, sink.is_some())
        .map_err(|error| failed(error, query, &catalog, scope))?;
    let mut lowering = Lowering::new(&planned.plan, query.position, query.state_ttl_us)?;
    let stream = lowering.lower(&planned.plan, &Lowering::all(&planned.plan));
    let stream = stream.map_err(|error| at_its_join(error, query))?;
    let output = lowering.finish(stream, &planned, sink)?;
    let Builder { mut dataflow, identities, changes, .. } = lowering.builder;
    let letters = match has_letters {
        true => letters::add(&mut dataflow, &lowering.sources, query.sink.as_ref(), scope)?,
        false => Vec::new(),
    };
    Ok(QueryPlan { sources: lowering.sources, tables: lowering.tables, dataflow, output, letters, identities, changes })
}

/// Plans a view and makes sure that it can be run, so that errors are reported here and not at each use. A long view is
/// not checked here: it is only optimized with the query that reads it.
pub(crate) fn plan_view(query: &BigQuery, scope: &Scope) -> Result<LogicalPlan, SqlError> {
    with_room(query.position, || plan_view_here(query, scope))
}

fn plan_view_here(query: &BigQuery, scope: &Scope) -> Result<LogicalPlan, SqlError> {
    calls::check(query)?;
    let catalog = catalog(scope);
    let view = rivulet_relational::plan_view(query.query()?, &catalog)
        .map_err(|error| failed(error, query, &catalog, scope))?;
    if view.is_optimized && !needs_its_reader(&view.plan) {
        let lowered = Lowering::new(&view.plan, query.position, None)?.lower(&view.plan, &Lowering::all(&view.plan));
        lowered.map_err(|error| at_its_join(error, query))?;
    }
    Ok(view.plan)
}

/// Converts an error of the relational planner, with its position and in our words.
fn failed(error: RelationalError, query: &BigQuery, catalog: &Arc<Catalog>, scope: &Scope) -> SqlError {
    let culprit = query.query().ok().and_then(|tree| culprit::find(&error, tree, catalog, query.position));
    culprit.unwrap_or_else(|| error::relational(error, scope, query.position))
}

/// Gives an error about a join without a condition the position of the join, which no expression has.
fn at_its_join(error: SqlError, query: &BigQuery) -> SqlError {
    if error.message != join::NO_EQUALITY || error.position() != query.position {
        return error;
    }
    let position = query.query().ok().and_then(|tree| bare_join(tree, &query.joins)).unwrap_or(query.position);
    SqlError { line: position.line, column: position.column, ..error }
}

/// The position of the first join without a condition: the word JOIN, or the relation behind a comma. Joins of tables
/// come first, because a subquery may have one row, which is no mistake.
fn bare_join(query: &ast::Query, joins: &[Position]) -> Option<Position> {
    use ast::{JoinConstraint as Constraint, JoinOperator as Join};
    let mut found: Vec<(bool, Position)> = Vec::new();
    for (select, _) in selects(query) {
        let is_table = |relation: &ast::TableFactor| matches!(relation, ast::TableFactor::Table { .. });
        let by_comma = select.from.iter().skip(1).map(|from| &from.relation);
        found.extend(by_comma.map(|relation| (!is_table(relation), relation.span().into())));
        for join in select.from.iter().flat_map(|from| &from.joins) {
            let (Join::CrossJoin(Constraint::None) | Join::Join(Constraint::None) | Join::Inner(Constraint::None)) =
                join.join_operator
            else {
                continue;
            };
            let relation = Position::from(join.relation.span());
            let word = joins.iter().rfind(|&&word| word < relation);
            found.push((!is_table(&join.relation), word.copied().unwrap_or(relation)));
        }
    }
    found.into_iter().filter(|(_, position)| position.is_known()).min().map(|(_, position)| position)
}

/// Whether a view may only run inside a query that reads it. For example, the query limits its ranks, or looks up in
/// its table.
fn needs_its_reader(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Filter(_) => {
            plan.inputs().into_iter().any(needs_its_reader)
        }
        LogicalPlan::Window(_) => true,
        LogicalPlan::TableScan(scan) => scan.source.is::<ReferenceTable>(),
        _ => false,
    }
}

/// The names that queries may use.
fn catalog(scope: &Scope) -> Arc<Catalog> {
    let mut catalog = Catalog::new(REGISTRY.scalars(), aggregates::aggregates(), fold_constants);
    for (name, relation) in scope.relations() {
        match relation {
            Relation::Source(source) => catalog.add(name, Arc::new(SourceTable(source.clone()))),
            Relation::Table(table) => catalog.add_table(name, Arc::new(ReferenceTable(table.clone()))),
            Relation::View(view) => catalog.add_view(name, view.plan.clone()),
        }
    }
    Arc::new(catalog)
}
