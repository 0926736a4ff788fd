//! MATCH_RECOGNIZE: the planner of row patterns is that of applications, over the columns of a relation.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use datafusion_physical_expr::expressions::Column;
use datafusion_sql::sqlparser::ast;
use rivulet_dataflow::EdgeKind;
use rivulet_operators::NamedExpression;
use rivulet_relational::matches::{Matches, RowPattern};
use rivulet_relational::{Problem, RelationalError};

use super::error::{defect, not_yet, refused};
use super::lower::Lowering;
use super::stream::{Partition, Place, Stream};
use crate::SqlError;
use crate::parse::name_of;
use crate::plan::check::Scope;
use crate::plan::pattern::{PatternPlanner, PlannedPattern};
use crate::plan::window::EventTime;
use crate::statement::MatchClause;

/// A row pattern, for the relational planner.
pub(super) struct PatternOf(pub(super) Arc<MatchClause>);

impl fmt::Debug for PatternOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pattern at {}", self.0.position)
    }
}

impl PatternOf {
    /// Plans the pattern over rows of these columns.
    fn plan(&self, rows: &Schema, event_time: Option<&EventTime>) -> Result<PlannedPattern, SqlError> {
        let fields: Vec<Field> = rows.fields().iter().map(|field| field.as_ref().clone()).collect();
        let scope = Scope {
            input: "the input",
            alias: None,
            columns: fields.iter().map(|field| field.name().as_str()).collect(),
            parameters: &[],
            windowed: false,
            tables: &[],
            in_table: false,
        };
        let parameter_schema: SchemaRef = Arc::new(Schema::empty());
        let planner = PatternPlanner {
            clause: &self.0,
            event_time,
            clock: None,
            parameter_schema: &parameter_schema,
            scope: &scope,
            fields: &fields,
        };
        planner.plan().map(|(planned, _)| planned)
    }
}

impl RowPattern for PatternOf {
    fn columns(&self, rows: &Schema) -> Result<(Vec<FieldRef>, Vec<usize>), RelationalError> {
        let planned = self.plan(rows, None).map_err(|error| {
            let place = Some((error.line as u64, error.column as u64)).filter(|(line, _)| *line > 0);
            RelationalError { problem: Problem::Other(error.message), place, hint: error.hint }
        })?;
        let of_order = self.0.order_by.iter().filter_map(|key| match &key.expr {
            ast::Expr::Identifier(name) => Some(name_of(name).text),
            _ => None,
        });
        let names: Vec<String> = planned.columns.into_iter().chain(of_order).collect();
        let fields = rows.fields().iter().enumerate();
        let used = fields.filter(|(_, field)| names.contains(field.name())).map(|(column, _)| column);
        Ok((planned.measure.output_schema().fields().iter().cloned().collect(), used.collect()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Lowering {
    pub(super) fn matches(&mut self, matches: &Matches) -> Result<Stream, SqlError> {
        let Some(pattern) = matches.pattern.as_any().downcast_ref::<PatternOf>() else {
            return Err(not_yet(self.position(), "this pattern"));
        };
        let position = pattern.0.position;
        let stream = self.lower(&matches.input, &matches.used.iter().copied().collect())?;
        let stream = self.builder.with_windows(stream)?;
        if stream.changes {
            return Err(not_yet(position, "MATCH_RECOGNIZE over rows that may be taken back")
                .hint("find matches in rows as they come from their source, or in results of windows"));
        }
        let end = stream.window.map(|window| window.end);
        let end = end.filter(|&end| stream.bound_of(end).is_some_and(|bound| bound >= 0));
        let Some(time) = stream.time.or(end) else {
            return Err(refused(position, "MATCH_RECOGNIZE needs rows with an event time, by which they are in order")
                .hint("declare it in the source: ts TIMESTAMP EVENT TIME"));
        };
        let stream = self.builder.with_event_time(stream, time)?;

        // The columns by their names in the query, because the pattern is planned by names.
        let input = matches.input.schema();
        let mut names = Vec::with_capacity(matches.used.len());
        let mut kept = Vec::with_capacity(matches.used.len());
        for &column in &matches.used {
            let Place::Column(place) = stream.columns[column] else {
                return Err(refused(position, "PROCTIME() has no value in a pattern"));
            };
            let value = Arc::new(Column::new(stream.schema.field(place).name(), place));
            names.push(NamedExpression::new(input.field(column).name(), value));
            kept.push(place);
        }
        let time_name = kept.iter().position(|place| *place == time).map(|at| names[at].name.clone());
        let time_name = time_name.unwrap_or_else(|| stream.schema.field(time).name().clone());
        let (node, schema) = self.builder.project_node(&stream, names)?;
        let rows = stream.rearranged(node, schema.clone(), &kept);

        let planned = pattern.plan(&schema, Some(&EventTime::Column(time_name)))?;
        let find = planned.find.keyed(self.state_ttl_us).map_err(|error| defect(error, position))?;
        let found = planned.find.output_schema().clone();
        let mut keys = Vec::with_capacity(pattern.0.partition_by.len());
        for (number, key) in pattern.0.partition_by.iter().enumerate() {
            let field = found.field(number);
            match schema.index_of(field.name()) {
                Ok(column) if schema.field(column).data_type() == field.data_type() => keys.push(column),
                _ => {
                    return Err(not_yet(position, &format!("PARTITION BY {key}, which is no number, text or time,"))
                        .hint("convert it in a subquery with CAST"));
                }
            }
        }
        let what = format!("{keys:?} {:?} {:?}", planned.find_step, planned.measure_step);
        let (edge, divided) = self.builder.edge(&rows, &keys);
        let node = self.builder.operator("pattern", &what, find, found, &[(rows.node, 0, edge)]);
        self.builder.changes.insert(node, false);
        self.builder.divide(node, &keys, &divided);
        let schema = planned.measure.output_schema().clone();
        let inputs = [(node, 0, EdgeKind::Forward)];
        let node = self.builder.operator("measures", &what, planned.measure, schema.clone(), &inputs);
        let of_key = |column: &usize| keys.iter().position(|key| key == column);
        let partition = match &divided {
            Partition::Keys(columns) => {
                columns.iter().map(of_key).collect::<Option<Vec<_>>>().map_or(Partition::Any, Partition::Keys)
            }
            other => other.clone(),
        };
        Ok(Stream {
            node,
            columns: (0..schema.fields().len()).map(Place::Column).collect(),
            schema,
            // A match comes out when no later row can change it, however old its rows are then.
            time: None,
            bounds: Vec::new(),
            pending: None,
            window: None,
            changes: false,
            partition,
            key: None,
            is_small: false,
        })
    }
}
