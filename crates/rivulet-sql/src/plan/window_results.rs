//! Expressions over the output of windows: keys, bounds and aggregates.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DataFusionError};
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast;

use super::aggregate::{Aggregate, place_of};
use super::check::BOUNDS;
use super::expression::{ExpressionPlanner, parameter_fields};
use super::types::cast_to;
use super::walk::start;
use super::window::EventTime;
use crate::value::TIMESTAMP;
use crate::{Position, SqlError};

/// A planned column or condition, over the columns before the last projection.
pub(super) struct Computed {
    pub(super) expression: Expr,
    pub(super) data_type: DataType,
    pub(super) position: Position,
    /// The marks of JSON of its values.
    pub(super) marks: HashMap<String, String>,
}

impl Computed {
    /// A column without marks.
    pub(super) fn new(expression: Expr, data_type: DataType, position: Position) -> Self {
        Self { expression, data_type, position, marks: HashMap::new() }
    }

    /// The column, with the marks that its values have over the columns of `planner`.
    pub(super) fn marked(self, planner: &ExpressionPlanner) -> Self {
        let field = planner.field_of(&self.expression, "", &self.data_type);
        Self { marks: field.metadata().clone(), ..self }
    }
}

/// A key of GROUP BY.
pub(super) struct Key {
    /// Its column.
    pub(super) field: Field,
    /// The expression as planned, before coercion. Equal expressions in the SELECT are recognised by it.
    pub(super) meaning: Expr,
    pub(super) expression: Expr,
    pub(super) position: Position,
}

impl Key {
    /// The name of its column.
    pub(super) fn name(&self) -> &String {
        self.field.name()
    }
}

/// Plans expressions over the output of windows.
pub(super) struct WindowResults<'a> {
    /// Over rows, bounds and aggregates: resolves names before it is known which of them are keys.
    all: ExpressionPlanner,
    /// Over keys, bounds and aggregates.
    results: ExpressionPlanner,
    keys: &'a [Key],
    /// The columns of aggregates with an unsigned type; the language has no such type.
    unsigned: Vec<String>,
    /// The columns of single rows, which do not exist behind the aggregation.
    row_columns: Vec<String>,
    event_time: Option<String>,
}

/// The type in the language for a type.
fn signed(data_type: &DataType) -> DataType {
    if *data_type == DataType::UInt64 { DataType::Int64 } else { data_type.clone() }
}

impl<'a> WindowResults<'a> {
    /// Makes a planner. `row_fields` are the columns of single rows, the arrival and the parameters; `histories` are
    /// the columns that history functions have added.
    pub(super) fn new(
        event_time: &EventTime,
        row_fields: &[Field],
        parameter_schema: &SchemaRef,
        keys: &'a [Key],
        aggregates: &[Aggregate],
        histories: &[Field],
    ) -> Result<Self, SqlError> {
        let bounds = BOUNDS.map(|(bound, _)| Field::new(bound, TIMESTAMP, false));
        let marked = BOUNDS.map(|(bound, marked)| {
            let is_column = row_fields.iter().any(|field| field.name() == bound);
            Field::new(if is_column { marked } else { bound }, TIMESTAMP, false)
        });
        let all = row_fields.iter().cloned().chain(marked);
        let all =
            all.chain(aggregates.iter().map(|one| one.field.clone().with_data_type(signed(one.field.data_type()))));
        let all = all.chain(histories.iter().cloned());
        let key_fields = keys.iter().map(|key| key.field.clone());
        let results = key_fields.chain(bounds).chain(aggregates.iter().map(|one| one.field.clone()));
        let results = results.chain(histories.iter().cloned()).chain(parameter_fields(parameter_schema));
        Ok(Self {
            all: ExpressionPlanner::new(all.collect())?,
            results: ExpressionPlanner::new(results.collect())?,
            keys,
            unsigned: aggregates
                .iter()
                .filter(|one| *one.field.data_type() == DataType::UInt64)
                .map(|one| one.column.clone())
                .collect(),
            row_columns: row_fields
                .iter()
                .map(|field| field.name())
                .filter(|name| !name.starts_with('$'))
                .cloned()
                .collect(),
            event_time: match event_time {
                EventTime::Column(name) => Some(name.clone()),
                _ => None,
            },
        })
    }

    /// Plans a checked expression whose aggregates are columns already.
    pub(super) fn plan(&self, expression: &ast::Expr, fallback: Position) -> Result<Computed, SqlError> {
        let (planned, _) = self.all.plan(expression, fallback)?;
        let mut stray = None;
        let planned = planned
            .transform_down(|node| {
                if let Some(key) = self.keys.iter().find(|key| key.meaning == node) {
                    let column = Expr::Column(Column::new_unqualified(key.name()));
                    return Ok(Transformed::new(column, true, TreeNodeRecursion::Jump));
                }
                if let Expr::Column(column) = &node
                    && self.unsigned.contains(&column.name)
                {
                    let signed = cast_to(node, &DataType::UInt64, &DataType::Int64);
                    return Ok(Transformed::new(signed, true, TreeNodeRecursion::Jump));
                }
                if let Expr::Column(column) = &node
                    && let Some((bound, _)) = BOUNDS.iter().find(|(_, marked)| *marked == column.name)
                {
                    let bound = Expr::Column(Column::new_unqualified(*bound));
                    return Ok(Transformed::new(bound, true, TreeNodeRecursion::Jump));
                }
                if let Expr::Column(column) = &node
                    && self.row_columns.contains(&column.name)
                {
                    stray = Some(column.name.clone());
                    return Ok(Transformed::new(node, false, TreeNodeRecursion::Stop));
                }
                Ok(Transformed::no(node))
            })
            .map_err(|error: DataFusionError| SqlError::new(fallback, error.strip_backtrace()))?
            .data;
        let position = start(expression).or(fallback);
        if let Some(name) = stray {
            let position = place_of(expression, &name).map_or(position, |found| found.position.or(position));
            let error =
                SqlError::new(position, format!("the column '{name}' is neither in GROUP BY nor in an aggregate"));
            return Err(if BOUNDS.iter().any(|(bound, _)| *bound == name) {
                let hint =
                    format!("{name} alone is the bound of this window; of its rows, write last_value(input.{name})");
                error.hint(hint)
            } else if Some(&name) == self.event_time.as_ref() {
                error.hint(format!("select window_start or window_end, or last_value({name})"))
            } else {
                error.hint(format!("add it to GROUP BY, or write for example last_value({name})"))
            });
        }
        let (expression, data_type) = self.results.coerce_planned(planned, position)?;
        Ok(Computed::new(expression, data_type, position).marked(&self.results))
    }
}
