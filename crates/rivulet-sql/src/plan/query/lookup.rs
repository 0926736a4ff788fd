//! Joins with reference tables: each row is looked up when it comes.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use rivulet_dataflow::EdgeKind;
use rivulet_operators::parallel::KeyedJoinKind;
use rivulet_operators::{Find, Lookup, LookupResults, LookupSpec, NamedExpression, Table};

use super::chosen::Chosen;
use super::columns::{unaliased, used_columns};
use super::error::{not_yet, place_of, refused};
use super::join::Sided;
use super::lower::Lowering;
use super::relations::ReferenceTable;
use super::stream::{Place, Stream};
use crate::{Position, SqlError};

/// Returns the table that a node reads, with the indices of the columns.
fn table_of(node: &LogicalPlan) -> Option<(Arc<Table>, Vec<usize>)> {
    let LogicalPlan::TableScan(scan) = node else { return None };
    let ReferenceTable(table) = scan.source.downcast_ref()?;
    let all = || (0..table.schema().fields().len()).collect();
    Some((table.clone(), scan.projection.clone().unwrap_or_else(all)))
}

impl Lowering {
    /// Plans the join as a lookup, if one side is a reference table.
    pub(super) fn lookup(
        &mut self,
        join: &Sided<'_>,
        wanted: &BTreeSet<usize>,
        position: Position,
    ) -> Result<Option<Stream>, SqlError> {
        let (table_side, table) = match (Chosen::of(join.plans[0], &table_of), Chosen::of(join.plans[1], &table_of)) {
            (None, None) => return Ok(None),
            (_, Some(table)) => (1, table),
            (Some(table), None) => (0, table),
        };
        let name = table.relation.name().to_owned();
        let keeps_unmatched = match (join.kind, table_side) {
            (KeyedJoinKind::Inner, _) => false,
            (KeyedJoinKind::Left, 1) | (KeyedJoinKind::Right, 0) => true,
            (KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti, _) => {
                let hint = match join.kind {
                    KeyedJoinKind::LeftAnti => {
                        "join it: FROM source LEFT JOIN table ON table.key = source.key WHERE table.key IS NULL"
                    }
                    _ => "join it: SELECT ... FROM source JOIN table ON table.key = source.key",
                };
                // Only in these joins is null equal to null.
                let what = match (join.nulls_are_equal, join.kind) {
                    (true, KeyedJoinKind::LeftAnti) => "EXCEPT",
                    (true, _) => "INTERSECT",
                    (false, _) => "IN or EXISTS",
                };
                return Err(not_yet(position, &format!("{what} over the table '{name}'")).hint(hint));
            }
            _ => {
                return Err(refused(position, format!("the rows of the table '{name}' would come without partner"))
                    .hint("an outer join keeps the rows of the source: FROM source LEFT JOIN table ON ..."));
            }
        };
        if join.nulls_are_equal {
            return Err(not_yet(position, "a join with a table in which null equals null").hint(
                "write = instead of IS NOT DISTINCT FROM; where null is to find a row, give both sides a value for it",
            ));
        }
        let plan = join.plans[1 - table_side];
        let (schema, table_schema) = (plan.schema(), join.plans[table_side].schema());
        let offsets = match table_side {
            0 => [0, table_schema.fields().len()],
            _ => [schema.fields().len(), 0],
        };
        // Indices in the columns of the rows, and in those of the table's plan.
        let [table_offset, offset] = offsets;
        let within =
            |column: usize, offset: usize, columns: usize| column.checked_sub(offset).filter(|one| *one < columns);
        let mut used: BTreeSet<usize> =
            wanted.iter().filter_map(|&column| within(column, offset, schema.fields().len())).collect();
        let of_rows = join.on.iter().map(|pair| pair[1 - table_side]);
        used.extend(used_columns(of_rows.chain(join.filter), schema));
        let stream = self.lower(plan, &used)?;
        let stream = self.builder.with_windows(stream)?;
        if stream.changes {
            return Err(not_yet(position, "a lookup of rows that may be taken back")
                .hint("look rows up before they are aggregated"));
        }

        // One equality finds rows by the index. Everything else is a condition on the rows that were found.
        let width = stream.schema.fields().len();
        let table_column = |expression: &Expr| match unaliased(expression) {
            Expr::Column(column) => table_schema.maybe_index_of_column(column).map(|place| table.columns[place]),
            _ => None,
        };
        let key = join.on.iter().position(|pair| table_column(pair[table_side]).is_some());
        let mut conditions: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        let both = Schema::new(
            stream.schema.fields().iter().chain(table.relation.schema().fields()).cloned().collect::<Vec<_>>(),
        );
        for (place, pair) in join.on.iter().enumerate().filter(|(place, _)| Some(*place) != key) {
            let sides = [self.physical(pair[1 - table_side], schema, &stream)?, {
                let columns: Vec<Place> = table.columns.iter().map(|column| Place::Column(width + column)).collect();
                self.builder.physical(pair[table_side], table_schema, &columns, &both)?
            }];
            let [one, other] = sides;
            let equal = datafusion_physical_expr::expressions::binary(one, datafusion_expr::Operator::Eq, other, &both);
            conditions.push(equal.map_err(|_| not_yet(place_of(join.on[place][0]).or(position), "this equality"))?);
        }
        if let Some(filter) = join.filter {
            let plans = [schema.as_ref(), table_schema.as_ref()];
            let joined = plans[usize::from(table_side == 0)]
                .join(plans[usize::from(table_side == 1)])
                .map_err(|error| SqlError::new(position, crate::plan::message::plain_message(&error)))?;
            let of_table = table.columns.iter().map(|column| Place::Column(width + column));
            let columns: Vec<Place> = match table_side {
                0 => of_table.chain(stream.columns.iter().copied()).collect(),
                _ => stream.columns.iter().copied().chain(of_table).collect(),
            };
            for conjunct in split_conjunction(filter) {
                conditions.push(self.builder.physical(conjunct, &joined, &columns, &both)?);
            }
        }
        for (condition, over, columns) in &table.conditions {
            let columns: Vec<Place> = columns.iter().map(|column| Place::Column(width + column)).collect();
            conditions.push(self.builder.physical(condition, over, &columns, &both)?);
        }
        if keeps_unmatched && (key.is_none() || !conditions.is_empty()) {
            return Err(not_yet(position, "a LEFT JOIN with a table on more than one equality").hint(
                "leave the rows out where the table is made, by a CREATE TABLE with those alone; or leave LEFT out",
            ));
        }

        let needed: BTreeSet<usize> = wanted
            .iter()
            .filter_map(|&column| within(column, table_offset, table.columns.len()))
            .map(|column| table.columns[column])
            .collect();
        let is_condition_of_find = key.is_none();
        let in_conditions = conditions.iter().flat_map(datafusion_physical_expr::utils::collect_columns);
        let in_conditions = in_conditions.filter_map(|column| column.index().checked_sub(width));
        let mut found: BTreeSet<usize> = needed.clone();
        if !is_condition_of_find {
            found.extend(in_conditions);
        }
        let found: Vec<usize> = found.into_iter().collect();
        let results: Vec<NamedExpression> = found
            .iter()
            .map(|&column| {
                let name = table.relation.schema().field(column).name();
                NamedExpression::new(name, Arc::new(Column::new(name, width + column)))
            })
            .collect();
        let condition = datafusion_physical_expr::conjunction_opt(conditions.iter().cloned());
        let find = match key {
            Some(key) => {
                let value = self.physical(join.on[key][1 - table_side], schema, &stream)?;
                let column = table_column(join.on[key][table_side]).expect("the key is a column of the table");
                Find::Key { column, value, keeps_unmatched }
            }
            None => Find::Scan { nearby: None, condition: condition.clone(), order: Vec::new(), limit: None },
        };
        let what = format!("{name} {find:?} {found:?}");
        let spec = LookupSpec {
            input: stream.schema.clone(),
            parameter_schema: Arc::new(Schema::empty()),
            parameters: vec![],
            table: table.relation.clone(),
            find,
            results: LookupResults::Rows(results),
        };
        let lookup = Lookup::new(spec).map_err(|error| crate::plan::defect(error, position))?;
        let rows: SchemaRef = lookup.output_schema().clone();
        let inputs = [(stream.node, 0, EdgeKind::Forward)];
        let node = self.builder.operator("lookup", &what, lookup, rows.clone(), &inputs);
        if !self.tables.iter().any(|known| Arc::ptr_eq(known, &table.relation)) {
            self.tables.push(table.relation.clone());
        }

        let new = |column: usize| found.iter().position(|one| *one == column).map(|place| width + place);
        let of_table = table.columns.iter().map(|&column| new(column).map_or(Place::Absent, Place::Column));
        let columns: Vec<Place> = match table_side {
            0 => of_table.chain(stream.columns.iter().copied()).collect(),
            _ => stream.columns.iter().copied().chain(of_table).collect(),
        };
        let joined = Stream { node, schema: rows, columns, key: None, ..stream };
        match condition.filter(|_| !is_condition_of_find) {
            None => Ok(Some(joined)),
            Some(condition) => {
                let moved = moved(condition, |column| if column < width { Some(column) } else { new(column - width) })
                    .ok_or_else(|| not_yet(position, "this condition"))?;
                self.builder.filter(&joined, moved).map(Some)
            }
        }
    }
}

/// Returns the expression with new indices for its columns.
fn moved(expression: Arc<dyn PhysicalExpr>, place: impl Fn(usize) -> Option<usize>) -> Option<Arc<dyn PhysicalExpr>> {
    use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
    let mut is_whole = true;
    let moved = expression.transform_down(|node| {
        let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        match place(column.index()) {
            Some(index) => Ok(Transformed::yes(Arc::new(Column::new(column.name(), index)) as Arc<dyn PhysicalExpr>)),
            None => {
                is_whole = false;
                Ok(Transformed::no(node))
            }
        }
    });
    moved.data().ok().filter(|_| is_whole)
}
