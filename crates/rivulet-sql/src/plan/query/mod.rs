//! Big queries: a relational plan to a parallel dataflow of operators.
//!
//! The relational planner ([`rivulet_relational`]) resolves names and types and says what is to be computed. This
//! module decides by which operators. Windows wait until it is clear what needs them: an aggregate makes them itself,
//! and only other operators that use them get them as columns. Columns of the plan are indices in the rows of a step,
//! so that renaming and reordering cost nothing.
//!
//! In reading order: `planned`: what comes of it; `stream`: what is known of the rows that leave a step; `lower`: the
//! plan node by node; `union`, `aggregate`, `join`, `broadcast`, `bounds`, `lookup`, `versions`, `over`, `unnest`,
//! `matches`: other nodes; `output`: the last step; `apart`: the part of a query that runs in one of two servers;
//! `builder`: operators and edges, each once; `columns`: what expressions use; `chosen`: what is chosen of a relation;
//! `computed`: columns that a source computes; `relations`,
//! `aggregates`, `calls`: what names mean; `error`: errors in our words; `culprit`: which expression has the error.

mod aggregate;
mod aggregates;
mod apart;
mod bounds;
mod broadcast;
mod builder;
mod calls;
mod chosen;
mod columns;
mod computed;
mod culprit;
mod error;
mod join;
mod letters;
mod lists;
mod lookup;
mod lower;
mod matches;
mod output;
mod over;
mod planned;
mod relations;
mod stream;
mod union;
mod unnest;
mod versions;

use std::sync::Arc;

use datafusion_expr::LogicalPlan;
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_relational::parts::selects;
use rivulet_relational::{Catalog, RelationalError, RowPattern};

use super::constants::fold_constants;
use super::functions::REGISTRY;
use super::scalars::predict;
use super::with_room;
use crate::scope::{Relation, Scope};
use crate::statement::{BigQuery, PREDICT};
use crate::{Position, SqlError};
use apart::Part;
use builder::Builder;
use lower::Lowering;
use matches::PatternOf;
use relations::{ReferenceTable, SourceTable};

pub(crate) use computed::plan as plan_computed;
pub(crate) use letters::check as check_letters;
pub use letters::letter_schema;
pub use planned::{PlannedOutput, PlannedSource, QueryPlan, SortKey};

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
    let catalog = catalog(scope, query);
    let planned = rivulet_relational::plan(query.query()?, &catalog, sink.is_some())
        .map_err(|error| failed(error, query, &catalog, scope))?;
    let mut lowering = Lowering::new(&planned.plan, query.position, query.state_ttl_us)?;
    lowering.is_burst = query.is_burst;
    lowering.part = match &sink {
        _ if lowering.sources.iter().any(|source| source.declaration.is_partial) => Part::States,
        Some((_, sink)) if sink.is_partial => Part::Rows,
        _ => Part::Whole,
    };
    let stream = lowering.lower(&planned.plan, &Lowering::all(&planned.plan));
    let stream = stream.map_err(|error| at_its_join(error, query))?;
    let written = rivulet_relational::written(query.query()?, planned.selected);
    let mut output = lowering.finish(stream, &planned, &written, sink)?;
    let Lowering { part, divided, builder, sources, .. } = &mut lowering;
    apart::cut(*part, divided, builder, sources, &mut output)?;
    let Builder { mut dataflow, identities, changes, .. } = lowering.builder;
    let letters = match has_letters {
        true => letters::add(&mut dataflow, &lowering.sources, query.sink.as_ref(), scope)?,
        false => Vec::new(),
    };
    let names: Vec<&str> = lowering.sources.iter().map(|source| source.declaration.name.text.as_str()).collect();
    let versions: Vec<String> = scope.models().iter().map(|(_, model)| format!(" {:016x}", model.version())).collect();
    let dataflow = dataflow.with_fuse(query.fuse.unwrap_or_default()).with_addresses(&names, &identities, &versions);
    let (sources, tables, is_burst) = (lowering.sources, lowering.tables, query.is_burst);
    Ok(QueryPlan { sources, tables, dataflow, output, letters, is_burst, identities, changes, versions })
}

/// Plans a view and makes sure that it can be run, so that errors are reported here and not at each use. A long view is
/// not checked here: it is only optimized with the query that reads it.
pub(crate) fn plan_view(query: &BigQuery, scope: &Scope) -> Result<LogicalPlan, SqlError> {
    with_room(query.position, || plan_view_here(query, scope))
}

fn plan_view_here(query: &BigQuery, scope: &Scope) -> Result<LogicalPlan, SqlError> {
    calls::check(query)?;
    let catalog = catalog(scope, query);
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
fn catalog(scope: &Scope, query: &BigQuery) -> Arc<Catalog> {
    let patterns = query.patterns().iter().map(|clause| Arc::new(PatternOf(clause.clone())) as Arc<dyn RowPattern>);
    let predict = (PREDICT.to_owned(), predict(scope.models()));
    let scalars = REGISTRY.scalars().chain([predict]);
    let catalog = Catalog::new(scalars, aggregates::aggregates(), fold_constants);
    let mut catalog = catalog.with_patterns(patterns.collect());
    for (name, relation) in scope.relations() {
        match relation {
            Relation::Source(source) => catalog.add(name, Arc::new(SourceTable(source.clone()))),
            Relation::Table(table) => catalog.add_table(name, Arc::new(ReferenceTable(table.clone()))),
            Relation::View(view) => catalog.add_view(name, view.plan.clone()),
        }
    }
    Arc::new(catalog)
}
