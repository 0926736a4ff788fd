//! Joins with reference tables: each row is looked up when it comes.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion_common::DataFusionError;
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Expr, LogicalPlan, Operator};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, binary, case, lit};
use rivulet_dataflow::EdgeKind;
use rivulet_operators::parallel::KeyedJoinKind;
use rivulet_operators::{
    Find, Lookup, LookupResults, LookupSpec, NamedExpression, Table, TableAggregate, TableFunction,
};

use super::chosen::Chosen;
use super::columns::{unaliased, used_columns};
use super::error::{not_yet, place_of, refused};
use super::join::Sided;
use super::lower::Lowering;
use super::relations::ReferenceTable;
use super::stream::{Place, Stream};
use crate::plan::message::plain_message;
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
        // IN and EXISTS: only whether a row of the table is found.
        let is_half = matches!(join.kind, KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti);
        let keeps_unmatched = match (join.kind, table_side) {
            (KeyedJoinKind::Inner, _) => false,
            (KeyedJoinKind::Left, 1) | (KeyedJoinKind::Right, 0) => true,
            (KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti, 1) if !join.nulls_are_equal => false,
            (KeyedJoinKind::LeftAnti, 1) => {
                return Err(not_yet(position, &format!("EXCEPT over the table '{name}'"))
                    .hint("write WHERE NOT EXISTS (SELECT 1 FROM table WHERE table.key = source.key)"));
            }
            (KeyedJoinKind::LeftSemi, 1) => {
                return Err(not_yet(position, &format!("INTERSECT over the table '{name}'"))
                    .hint("write WHERE source.key IN (SELECT key FROM table)"));
            }
            _ => {
                let hint = match is_half {
                    true => "the source stands outside: FROM source WHERE source.key IN (SELECT key FROM table)",
                    false => "an outer join keeps the rows of the source: FROM source LEFT JOIN table ON ...",
                };
                return Err(
                    refused(position, format!("the rows of the table '{name}' would come without partner")).hint(hint)
                );
            }
        };
        if join.nulls_are_equal {
            return Err(not_yet(position, "a join with a table in which null equals null").hint(
                "write = instead of IS NOT DISTINCT FROM; where null is to find a row, give both sides a value for it",
            ));
        }
        let failed = |error: DataFusionError| SqlError::new(position, plain_message(&error));
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
            let equal = binary(one, Operator::Eq, other, &both);
            conditions.push(equal.map_err(|_| not_yet(place_of(join.on[place][0]).or(position), "this equality"))?);
        }
        if let Some(filter) = join.filter {
            let plans = [schema.as_ref(), table_schema.as_ref()];
            let joined =
                plans[usize::from(table_side == 0)].join(plans[usize::from(table_side == 1)]).map_err(failed)?;
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
        let mut what = format!("{name} {find:?} {found:?}");
        let results = match is_half {
            false => LookupResults::Rows(results),
            true => {
                // Of the rows with the key, those count for which the conditions are true.
                let argument = condition.clone().filter(|_| !is_condition_of_find);
                let argument = argument.map(|condition| case(None, vec![(condition, lit(1_i64))], None));
                let argument = argument.transpose().map_err(failed)?;
                what.push_str(&format!(" number of rows {argument:?}"));
                let name = format!("rows of {name}");
                LookupResults::Aggregates(vec![TableAggregate { name, function: TableFunction::Count, argument }])
            }
        };
        let spec = LookupSpec {
            input: stream.schema.clone(),
            parameter_schema: Arc::new(Schema::empty()),
            parameters: vec![],
            table: table.relation.clone(),
            find,
            results,
        };
        let lookup = Lookup::new(spec).map_err(|error| crate::plan::defect(error, position))?;
        let rows: SchemaRef = lookup.output_schema().clone();
        let inputs = [(stream.node, 0, EdgeKind::Forward)];
        let node = self.builder.operator("lookup", &what, lookup, rows.clone(), &inputs);
        if !self.tables.iter().any(|known| Arc::ptr_eq(known, &table.relation)) {
            self.tables.push(table.relation.clone());
        }

        if is_half {
            let operator = if join.kind == KeyedJoinKind::LeftAnti { Operator::Eq } else { Operator::Gt };
            let number: Arc<dyn PhysicalExpr> = Arc::new(Column::new(rows.field(width).name(), width));
            let condition = binary(number, operator, lit(0_i64), &rows).map_err(failed)?;
            return self.builder.filter(&Stream { node, schema: rows, ..stream }, condition).map(Some);
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
