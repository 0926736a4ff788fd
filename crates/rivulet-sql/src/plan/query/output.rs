//! The last step of a query: its columns, with their names, in types that formats and sinks know.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, cast};
use rivulet_dataflow::{EdgeKind, Work, held_type, is_json, map_value};
use rivulet_operators::NamedExpression;
use rivulet_operators::parallel::RequireValues;
use rivulet_relational::Planned;

use super::error::refused;
use super::lower::Lowering;
use super::planned::{PlannedOutput, SortKey};
use super::stream::{Partition, Place, Stream};
use crate::SqlError;
use crate::plan::types::outgoing_type;
use crate::scope::SinkDeclaration;
use crate::statement::Name;
use crate::value::{column_type_name, declared_type_name, type_name};

impl Lowering {
    /// Adds the last projection and the sink. `written` are the names of columns that the text computes and does not
    /// name.
    pub(super) fn finish(
        &mut self,
        stream: Stream,
        planned: &Planned,
        written: &[Option<String>],
        sink: Option<(&Name, Arc<SinkDeclaration>)>,
    ) -> Result<PlannedOutput, SqlError> {
        let Planned { plan, order, selected, limit, offset } = planned;
        let stream = self.builder.with_windows(stream)?;
        if let Some((name, _)) = &sink
            && (!order.is_empty() || limit.is_some() || *offset > 0)
        {
            let said = match order.is_empty() {
                true if limit.is_none() => "OFFSET",
                true => "LIMIT",
                false => "ORDER BY",
            };
            return Err(refused(
                name.position,
                format!("a sink takes rows as they come, and '{name}' cannot take {said}"),
            )
            .hint("leave it out, or keep the first rows as they change: ORDER BY x LIMIT 10"));
        }
        let fields = plan.schema().fields();
        let wanted = match &sink {
            Some((name, sink)) => sink.schema.as_ref().map(|schema| (name, schema)),
            None => None,
        };
        if let Some((name, schema)) = wanted
            && schema.fields().len() != fields.len()
        {
            let counted = |columns: usize| format!("{columns} column{}", if columns == 1 { "" } else { "s" });
            return Err(refused(
                name.position,
                format!(
                    "the sink '{name}' has {}, and the query gives {}",
                    counted(schema.fields().len()),
                    counted(fields.len())
                ),
            )
            .hint("columns go to the sink by their place: select as many as it has"));
        }
        let names = match wanted {
            Some((_, schema)) => schema.fields().iter().map(|field| field.name().clone()).collect(),
            None => different(fields.iter().enumerate().map(|(place, field)| {
                let written = written.get(place).and_then(Option::as_deref);
                // Names of functions may be written in any case; a column that got a number keeps it.
                let is_other = |written: &&str| {
                    let (written, name) = (written.to_lowercase(), field.name().to_lowercase());
                    !name.starts_with(&written)
                };
                written.filter(is_other).unwrap_or(field.name())
            })),
        };
        let mut columns = Vec::with_capacity(fields.len());
        let mut places = Vec::with_capacity(fields.len());
        for (index, (field, name)) in fields.iter().zip(&names).enumerate() {
            let Place::Column(place) = stream.columns[index] else {
                return Err(refused(
                    self.position(),
                    format!("'{}' is PROCTIME(), which has no value by itself", field.name()),
                )
                .hint("leave it out of the result; it is the time of a window"));
            };
            places.push(place);
            let found = stream.schema.field(place).data_type();
            if let Some((name, schema)) = wanted
                && let Some(column) = schema.fields().get(index)
                && let Some(held) = held_type(column)
                && !found.is_null()
            {
                check_parts((name, column, &held), (field.name(), stream.schema.field(place)))?;
            }
            let target = self.target(found, field.name(), wanted.map(|(name, schema)| (*name, schema)), index)?;
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(stream.schema.field(place).name(), place));
            let expression = match *found == target {
                true => column,
                false => cast(column, &stream.schema, target)
                    .map_err(|error| SqlError::new(self.position(), crate::plan::message::plain_message(&error)))?,
            };
            columns.push(NamedExpression::new(name, expression));
        }
        let is_same = columns.len() == stream.schema.fields().len()
            && columns.iter().enumerate().all(|(place, column)| {
                let same_place = column.expression.downcast_ref::<Column>().is_some_and(|one| one.index() == place);
                same_place && *stream.schema.field(place).name() == column.name
            });
        let (node, schema) = match is_same {
            true => (stream.node, stream.schema.clone()),
            false => self.builder.project_node(&stream, columns)?,
        };
        let required: Vec<usize> = match wanted {
            Some((_, wanted)) => {
                let may_lack = |column: &usize| !wanted.field(*column).is_nullable() && fields[*column].is_nullable();
                (0..fields.len()).filter(may_lack).collect()
            }
            None => Vec::new(),
        };
        let node = match required.is_empty() {
            true => node,
            false => {
                let require =
                    RequireValues::new(&schema, required.clone()).map_err(|error| self.builder.failed(error))?;
                let inputs = [(node, 0, EdgeKind::Forward)];
                self.builder.operator("require values", &required, require, schema.clone(), &inputs)
            }
        };
        let position_of = |column: &usize| places.iter().position(|place| place == column);
        let key: Option<Vec<usize>> = stream.key.as_ref().and_then(|key| key.iter().map(position_of).collect());
        // A sink that keeps the newest row of a key must get all rows of the key in one instance.
        let edge = match &key {
            Some(key) if sink.is_some() && stream.changes && !is_divided_by(&stream, &places, key) => {
                match key.is_empty() {
                    true => EdgeKind::Gather,
                    false => EdgeKind::Hash(key.clone()),
                }
            }
            _ => EdgeKind::Forward,
        };
        let end = self.builder.dataflow.add(Work::Sink(0), schema.clone());
        self.builder.dataflow.connect(node, end, 0, edge);
        let order = order.iter().map(|key| SortKey {
            column: key.column,
            descending: key.descending,
            nulls_first: key.nulls_first,
        });
        Ok(PlannedOutput {
            sink: sink.map(|(_, sink)| sink),
            schema,
            changes: stream.changes,
            key,
            order: order.collect(),
            selected: *selected,
            limit: *limit,
            offset: *offset,
        })
    }

    /// The output type of a column.
    fn target(
        &self,
        found: &DataType,
        column: &str,
        sink: Option<(&Name, &SchemaRef)>,
        index: usize,
    ) -> Result<DataType, SqlError> {
        let Some((name, schema)) = sink else {
            return outgoing_type(found).ok_or_else(|| {
                refused(self.position(), format!("the column '{column}' is {}, which cannot go out", type_name(found)))
                    .hint("convert it with CAST(... AS TEXT)")
            });
        };
        let target = schema.field(index).data_type();
        match widens(found, target) {
            true => Ok(target.clone()),
            false => Err(refused(
                name.position,
                format!(
                    "the column '{}' of the sink '{name}' is {}, and '{column}' is {}",
                    schema.field(index).name(),
                    declared_type_name(target),
                    declared_type_name(found)
                ),
            )
            .hint("convert it with CAST")),
        }
    }
}

/// Fails unless the values of a column of results have parts that may be those of a sink's column.
fn check_parts(
    (name, column, held): (&Name, &Field, &DataType),
    (result, found): (&str, &Field),
) -> Result<(), SqlError> {
    let known = held_type(found);
    let is_any_list = matches!(held, DataType::List(element) if is_json(element));
    let may_go = match &known {
        Some(known) => goes_into(&part(known), &part(held)),
        None => is_any_list && is_json(found),
    };
    if may_go {
        return Ok(());
    }
    let (kind, hint) = match held {
        DataType::List(_) => ("an array", ARRAYS),
        DataType::Map(..) => ("a map", MAPS),
        _ => ("a row", ROWS),
    };
    let (what, hint) = match known {
        Some(known) if std::mem::discriminant(&known) == std::mem::discriminant(held) => match held {
            DataType::List(_) => {
                (format!("is {}", column_type_name(found)), "convert the elements before they become an array")
            }
            _ => (format!("is {}", column_type_name(found)), "convert the parts before they are put together"),
        },
        Some(_) => (format!("is {}", column_type_name(found)), hint),
        None if is_json(found) => ("may have elements of other types".to_owned(), hint),
        None => ("is none".to_owned(), hint),
    };
    let kind = match is_json(found) {
        true => column_type_name(column),
        false => kind.to_owned(),
    };
    let message = format!("the column '{}' of the sink '{name}' is {kind}, and '{result}' {what}", column.name());
    Err(refused(name.position, message).hint(hint))
}

fn part(held: &DataType) -> Field {
    Field::new("", held.clone(), true)
}

/// Whether each value of one part may be one of the other as it is written.
fn goes_into(found: &Field, wanted: &Field) -> bool {
    match (found.data_type(), wanted.data_type()) {
        _ if is_json(wanted) => true,
        _ if is_json(found) => false,
        (DataType::List(found), DataType::List(wanted)) => goes_into(found, wanted),
        (DataType::Map(found, _), DataType::Map(wanted, _)) => {
            map_value(found).zip(map_value(wanted)).is_some_and(|(found, wanted)| goes_into(found, wanted))
        }
        (DataType::Struct(found), DataType::Struct(wanted)) => {
            let same =
                |(found, wanted): (&FieldRef, &FieldRef)| found.name() == wanted.name() && goes_into(found, wanted);
            found.len() == wanted.len() && found.iter().zip(wanted).all(same)
        }
        (found, wanted) if found.is_nested() || wanted.is_nested() => false,
        (found, wanted) => widens(found, wanted) && found.is_numeric() == wanted.is_numeric(),
    }
}

/// The expressions that give arrays.
const ARRAYS: &str =
    "select a column that is an array, string_to_array, or array_agg or json_array of values of one type";

/// The expressions that give maps.
const MAPS: &str = "select a column that is a map, or map('key', value, ...) with values of one type";

/// The expressions that give rows.
const ROWS: &str = "select named_struct('field', value, ...) with these fields in this order";

/// Whether rows with equal keys, which are indices in the result, are in one instance.
fn is_divided_by(stream: &Stream, places: &[usize], key: &[usize]) -> bool {
    match &stream.partition {
        Partition::Any => false,
        Partition::Keys(columns) => columns.iter().all(|column| key.iter().any(|&key| places[key] == *column)),
        Partition::One => true,
    }
}

/// Whether values of one type may go into a column of another as they are, because each value has the same meaning
/// there.
fn widens(found: &DataType, target: &DataType) -> bool {
    let is_number = |data_type: &DataType| data_type.is_numeric() || data_type.is_decimal();
    match target {
        _ if found == target || found.is_null() => true,
        // A value that does not fit fewer bits or digits is an error of its row.
        DataType::Int64 | DataType::Int32 | DataType::Int16 | DataType::Int8 => found.is_integer(),
        DataType::Float64 | DataType::Float32 => is_number(found),
        DataType::Decimal128(_, to) => match found {
            DataType::Decimal128(_, from) => from <= to,
            other => other.is_integer(),
        },
        DataType::Date32 => *found == DataType::Date64,
        DataType::Time64(_) => matches!(found, DataType::Time32(_) | DataType::Time64(_)),
        DataType::Utf8 => outgoing_type(found).is_some(),
        DataType::Timestamp(..) => matches!(found, DataType::Timestamp(_, None) | DataType::Date32 | DataType::Date64),
        _ => false,
    }
}

/// Makes names different: a name that came before gets a number.
fn different<'n>(names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::new();
    names
        .map(|name| {
            let mut different = name.to_owned();
            let mut number = 0;
            while !taken.insert(different.clone()) {
                number += 1;
                different = format!("{name}_{number}");
            }
            different
        })
        .collect()
}

/// Returns the sink of a query, if the query names one.
pub(super) fn sink_of<'q>(
    name: Option<&'q Name>,
    scope: &crate::Scope,
) -> Result<Option<(&'q Name, Arc<SinkDeclaration>)>, SqlError> {
    let Some(name) = name else { return Ok(None) };
    if let Some(sink) = scope.sink(&name.text) {
        return Ok(Some((name, sink.clone())));
    }
    let error = SqlError::new(name.position, format!("there is no sink '{name}'"));
    let names: Vec<&str> = scope.sinks().map(|sink| sink.name.text.as_str()).collect();
    let hint = match scope.source(&name.text) {
        Some(_) => format!("'{name}' is a source: rows come from it"),
        None => format!("declare it: CREATE SINK {name} TO 'connector:rest' FORMAT JSON"),
    };
    Err(error.suggest(&name.text, names, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_come_twice_are_numbered() {
        let names = ["id", "name", "id", "id_1", "id"];
        assert_eq!(different(names.into_iter()), ["id", "name", "id_1", "id_1_1", "id_2"]);
    }

    #[test]
    fn what_goes_into_a_sink_unasked_loses_nothing() {
        use crate::value::TIMESTAMP;
        let (integer, float, text) = (DataType::Int64, DataType::Float64, DataType::Utf8);
        for (found, target) in [(&integer, &float), (&integer, &text), (&TIMESTAMP, &text), (&DataType::Null, &integer)]
        {
            assert!(widens(found, target), "{found} to {target}");
        }
        let decimal = |scale| DataType::Decimal128(10, scale);
        assert!(widens(&decimal(2), &decimal(4)) && widens(&integer, &decimal(2)) && widens(&decimal(2), &text));
        assert!(!widens(&decimal(4), &decimal(2)) && !widens(&float, &decimal(2)) && !widens(&decimal(0), &integer));
        assert!(widens(&integer, &DataType::Int16) && !widens(&TIMESTAMP, &DataType::Date32));
        for (found, target) in [
            (&float, &integer),
            (&integer, &TIMESTAMP),
            (&TIMESTAMP, &integer),
            (&integer, &DataType::Boolean),
            (&text, &integer),
        ] {
            assert!(!widens(found, target), "{found} to {target}");
        }
    }
}
