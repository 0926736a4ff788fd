//! Which rows of a table an event finds, and the checked plan of a lookup.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;

use super::aggregate::TableAggregate;
use super::table::Table;
use crate::PlanError;
use crate::expression::sql;

/// Which rows of a table an event finds.
#[derive(Clone, Debug)]
pub enum Find {
    /// The rows for which a condition is true.
    Scan {
        /// The limit to nearby rows, which an index of places finds. Without it every row is tried.
        nearby: Option<Nearby>,
        /// The condition. Without it all rows are found.
        condition: Option<Arc<dyn PhysicalExpr>>,
        /// The order of the found rows. Without it, and for rows that are equal in it, the order is that of the table.
        order: Vec<OrderKey>,
        /// The most rows that an event finds: a BIGINT made of parameters and constants. Null means no limit, and so
        /// does `None`.
        limit: Option<Arc<dyn PhysicalExpr>>,
    },
    /// The rows whose column has a value, found in a hash index. Null equals nothing.
    Key {
        /// The column of the table.
        column: usize,
        /// The value, of the type of the column.
        value: Arc<dyn PhysicalExpr>,
        /// Whether an event that finds nothing still gives a row, with nulls (LEFT JOIN).
        keeps_unmatched: bool,
    },
}

/// Says that only rows near a place can be found: either no row farther away passes the condition, or the nearest rows
/// come first and the limit cuts off the rest. Distance is that of `haversine_m`.
#[derive(Clone, Debug)]
pub struct Nearby {
    /// The table's columns of latitude and longitude, DOUBLEs in degrees.
    pub columns: [usize; 2],
    /// The event's latitude and longitude.
    pub place: [Arc<dyn PhysicalExpr>; 2],
    /// How many metres away rows may be, a DOUBLE. Without it there is no condition and there is a limit, and the
    /// distance is the first key of the order, ascending with nulls last.
    pub radius: Option<Arc<dyn PhysicalExpr>>,
}

/// A key of ORDER BY.
#[derive(Clone, Debug)]
pub struct OrderKey {
    /// The expression by which rows are ordered.
    pub expression: Arc<dyn PhysicalExpr>,
    /// Whether the greatest comes first.
    pub descending: bool,
    /// Whether null comes first.
    pub nulls_first: bool,
}

/// A checked lookup.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) table: Arc<Table>,
    pub(super) parameters: Vec<usize>,
    pub(super) find: Find,
    /// Latitude and longitude of the event, and the radius or the limit.
    pub(super) nearby: PairExpressions,
    pub(super) condition: PairExpressions,
    /// The keys of ORDER BY, then the limit if there is one.
    pub(super) order: PairExpressions,
    pub(super) results: PairExpressions,
    pub(super) aggregates: Option<Vec<TableAggregate>>,
    pub(super) output: SchemaRef,
    pub(super) parameter_names: Vec<String>,
}

/// Expressions over pairs of an event and a row of the table, and the columns that they use.
#[derive(Debug)]
pub(super) struct PairExpressions {
    pub(super) expressions: Vec<Arc<dyn PhysicalExpr>>,
    pub(super) columns: Vec<PairColumn>,
    pub(super) schema: SchemaRef,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PairColumn {
    /// A column of the event.
    Event(usize),
    /// A column of the table.
    Table(usize),
    /// One of the used parameters of the event's query.
    Parameter(usize),
}

impl PairExpressions {
    /// Takes expressions compiled against `schema`: `events` columns of the event, `table` columns of the table,
    /// parameters.
    pub(super) fn new(
        expressions: Vec<Arc<dyn PhysicalExpr>>,
        schema: &Schema,
        events: usize,
        table: usize,
    ) -> Result<Self, PlanError> {
        let mut used: Vec<usize> = Vec::new();
        let narrowed = expressions
            .into_iter()
            .map(|expression| {
                let text = sql(&expression);
                let narrow = expression.transform_down(|node| {
                    let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
                    let place = used.iter().position(|&one| one == column.index()).unwrap_or_else(|| {
                        used.push(column.index());
                        used.len() - 1
                    });
                    Ok(Transformed::yes(Arc::new(Column::new(column.name(), place)) as Arc<dyn PhysicalExpr>))
                });
                narrow.data().map_err(|error| PlanError::Expression { expression: text, problem: error.to_string() })
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(&index) = used.iter().find(|&&index| index >= schema.fields().len()) {
            return Err(PlanError::Column { index, what: "the lookup", problem: "there is no such column".into() });
        }
        let column = |&index: &usize| match index {
            _ if index < events => PairColumn::Event(index),
            _ if index < events + table => PairColumn::Table(index - events),
            _ => PairColumn::Parameter(index - events - table),
        };
        // A row that was not found has nulls in every column.
        let fields = used.iter().map(|&index| schema.field(index).clone().with_nullable(true));
        Ok(Self {
            expressions: narrowed,
            columns: used.iter().map(column).collect(),
            schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
        })
    }
}
