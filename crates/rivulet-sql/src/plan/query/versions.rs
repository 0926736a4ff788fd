//! Joins with versions: `JOIN rates FOR SYSTEM_TIME AS OF o.ts`. The rows of both sides become rows of one form, so
//! that they can wait for their turn together.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::{DFSchema, DataFusionError, ScalarValue};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Expr, Join, LogicalPlan};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, case, is_not_null, lit};
use rivulet_operators::NamedExpression;
use rivulet_operators::parallel::{self, KeyedJoinKind, KeyedOver, KeyedOverSpec, OverFrame, SortKey};
use rivulet_relational::Versions;
use rivulet_relational::functions::SYSTEM_TIME;

use super::bounds::{LEFT, RIGHT};
use super::chosen::Chosen;
use super::columns::{place_in, used_columns};
use super::error::{VERSIONS_EXAMPLE, not_yet, place_of, refused, versions_alone};
use super::join::{JoinedBy, Sided};
use super::lower::Lowering;
use super::stream::{Partition, Place, Stream};
use crate::{Position, SqlError};

/// The places of the columns of both sides in rows of the common form: the keys, the time, whether the row is a
/// version, and the other columns of left and then right.
struct CommonForm {
    /// For each side, the places of its columns in its own rows, and in the common form.
    places: [Vec<(usize, usize)>; 2],
    schema: SchemaRef,
    keys: usize,
}

impl CommonForm {
    fn new(sides: [&Side; 2]) -> Self {
        let field = |side: usize, place: usize| sides[side].stream.schema.field(place).clone().with_nullable(true);
        let mut fields: Vec<Field> = sides[LEFT].keys.iter().map(|&key| field(LEFT, key)).collect();
        fields.push(field(LEFT, sides[LEFT].time));
        fields.push(Field::new("is version", DataType::Boolean, true));
        let places = [LEFT, RIGHT].map(|side| {
            let leading = sides[side].keys.iter().copied().chain([sides[side].time]).enumerate();
            let mut places: Vec<(usize, usize)> = leading.map(|(place, own)| (own, place)).collect();
            for &own in &sides[side].needed {
                if !places.iter().any(|(known, _)| *known == own) {
                    places.push((own, fields.len()));
                    fields.push(field(side, own));
                }
            }
            places
        });
        Self { places, schema: Arc::new(Schema::new(fields)), keys: sides[LEFT].keys.len() }
    }

    fn time(&self) -> usize {
        self.keys
    }

    fn is_version(&self) -> usize {
        self.keys + 1
    }

    fn place(&self, side: usize, own: usize) -> Option<usize> {
        self.places[side].iter().find(|(known, _)| *known == own).map(|(_, place)| *place)
    }

    /// The columns of a side's rows in this form.
    fn columns(&self, side: usize, stream: &Stream) -> Result<Vec<NamedExpression>, DataFusionError> {
        let columns = self.schema.fields().iter().enumerate().map(|(place, field)| {
            let own = self.places[side].iter().find(|(_, common)| *common == place);
            let value: Arc<dyn PhysicalExpr> = match own {
                Some(&(own, _)) => Arc::new(Column::new(stream.schema.field(own).name(), own)),
                None if place == self.is_version() => lit(side == RIGHT),
                None => lit(ScalarValue::try_from(field.data_type())?),
            };
            Ok(NamedExpression::new(field.name(), value))
        });
        columns.collect()
    }
}

/// What is known of the join before its operator is made.
struct VersionJoin<'j, 'p> {
    join: &'j Sided<'p>,
    versions: Chosen<'p, Arc<LogicalPlan>>,
    /// The time for which versions are asked, a column of the left side.
    time: &'p Expr,
    /// The other conditions of the join.
    conditions: Vec<&'p Expr>,
    /// The columns that come out or are in conditions: those of the left plan, and those of the stream of versions.
    needed: [BTreeSet<usize>; 2],
    position: Position,
}

impl<'p> VersionJoin<'_, 'p> {
    fn schema(&self, side: usize) -> &'p DFSchema {
        self.join.plans[side].schema()
    }

    fn keys(&self, side: usize) -> Vec<&'p Expr> {
        self.join.on.iter().map(|pair| pair[side]).collect()
    }
}

/// The rows of a side, and the places of its keys among them.
struct Side {
    stream: Stream,
    keys: Vec<usize>,
    /// The column of the time from which a version holds, or for which one is asked.
    time: usize,
    /// For each column of the left plan or of the stream of versions, its place.
    columns: Vec<Place>,
    /// The places that come out or are in conditions.
    needed: BTreeSet<usize>,
}

impl Side {
    fn new(stream: Stream, keys: Vec<usize>, time: usize, columns: Vec<Place>, needed: &BTreeSet<usize>) -> Self {
        let place = |&column: &usize| match columns[column] {
            Place::Column(place) => Some(place),
            _ => None,
        };
        let needed = needed.iter().filter_map(place).collect();
        Self { stream, keys, time, columns, needed }
    }
}

impl Lowering {
    /// Plans the join as one with versions, if its right side is a stream with FOR SYSTEM_TIME AS OF.
    pub(super) fn version_join(
        &mut self,
        join: &Sided<'_>,
        whole: &Join,
        wanted: &BTreeSet<usize>,
        position: Position,
    ) -> Result<Option<Stream>, SqlError> {
        let Some(versions) = Chosen::of(join.plans[RIGHT], &versions_of) else { return Ok(None) };
        let conditions = join.filter.into_iter().flat_map(split_conjunction);
        let is_time = |one: &&Expr| matches!(one, Expr::ScalarFunction(call) if call.func.name() == SYSTEM_TIME);
        // The optimizer may have written it twice.
        let (asked, conditions): (Vec<&Expr>, Vec<&Expr>) = conditions.partition(is_time);
        let (Some(Expr::ScalarFunction(asked)), true) =
            (asked.first(), matches!(join.kind, KeyedJoinKind::Inner | KeyedJoinKind::Left))
        else {
            return Err(versions_alone(position));
        };
        if join.on.is_empty() {
            return Err(refused(position, "FOR SYSTEM_TIME AS OF needs the key of the versions").hint(VERSIONS_EXAMPLE));
        }
        if join.nulls_are_equal {
            let what = "FOR SYSTEM_TIME AS OF by a key that may be null";
            return Err(not_yet(position, what).hint("write = instead of IS NOT DISTINCT FROM"));
        }
        let left_fields = join.plans[LEFT].schema().fields().len();
        let used = |side: usize| used_columns(conditions.iter().copied(), join.plans[side].schema());
        let mut of_left: BTreeSet<usize> = wanted.iter().copied().filter(|column| *column < left_fields).collect();
        of_left.extend(used(LEFT));
        let of_right = wanted.iter().filter_map(|column| column.checked_sub(left_fields)).chain(used(RIGHT));
        let mut of_versions: BTreeSet<usize> = of_right.map(|column| versions.columns[column]).collect();
        for (condition, schema, columns) in &versions.conditions {
            of_versions.extend(used_columns([*condition], schema).into_iter().map(|column| columns[column]));
        }
        let needed = [of_left, of_versions];
        let join = VersionJoin { join, versions, time: &asked.args[0], conditions, needed, position };
        let left = self.asking_rows(&join)?;
        let right = self.version_rows(&join)?;
        for (&one, &other) in left.keys.iter().zip(&right.keys) {
            if left.stream.schema.field(one).data_type() != right.stream.schema.field(other).data_type() {
                return Err(refused(position, "the key of FOR SYSTEM_TIME AS OF has another type on either side")
                    .hint("convert one of them with CAST"));
            }
        }
        let (met, of_versions, first) = self.with_versions(&join, &left, &right)?;

        let mut all: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        for condition in &join.conditions {
            all.push(self.physical(condition, &whole.schema, &met)?);
        }
        for (condition, schema, columns) in &join.versions.conditions {
            let columns: Vec<Place> = columns.iter().map(|&column| of_versions[column]).collect();
            all.push(self.builder.physical(condition, schema, &columns, &met.schema)?);
        }
        match datafusion_physical_expr::conjunction_opt(all) {
            None => Ok(Some(met)),
            Some(condition) if join.join.kind == KeyedJoinKind::Inner => self.builder.filter(&met, condition).map(Some),
            Some(condition) => self.without_others(met, first, &condition, position).map(Some),
        }
    }

    /// The rows that ask for versions.
    fn asking_rows(&mut self, join: &VersionJoin<'_, '_>) -> Result<Side, SqlError> {
        let (schema, position) = (join.schema(LEFT), place_of(join.time).or(join.position));
        let mut used = join.needed[LEFT].clone();
        used.extend(used_columns(join.keys(LEFT).into_iter().chain([join.time]), schema));
        let stream = self.lower(join.join.plans[LEFT], &used)?;
        let stream = self.builder.with_windows(stream)?;
        refuse_changes(&stream, position)?;
        let Some(Place::Column(time)) = place_in(join.time, schema, &stream) else {
            return Err(refused(position, "versions have times of events, not of the clock"));
        };
        let stream = self.with_time(stream, time, join.time)?;
        let (stream, keys) = self.with_expressions(stream, &join.keys(LEFT), schema, None)?;
        let columns = stream.columns.clone();
        Ok(Side::new(stream, keys, time, columns, &join.needed[LEFT]))
    }

    /// The versions. Those without a key are nobody's.
    fn version_rows(&mut self, join: &VersionJoin<'_, '_>) -> Result<Side, SqlError> {
        let (schema, position) = (join.schema(RIGHT), join.position);
        let mut used = join.needed[RIGHT].clone();
        used.extend(used_columns(join.keys(RIGHT), schema).into_iter().map(|column| join.versions.columns[column]));
        let stream = self.lower(&join.versions.relation, &used)?;
        let stream = self.builder.with_windows(stream)?;
        refuse_changes(&stream, position)?;
        let end = stream.window.map(|window| window.end);
        let end = end.filter(|&end| stream.bound_of(end).is_some_and(|bound| bound >= 0));
        let Some(time) = stream.time.or(end) else {
            return Err(refused(
                position,
                "the rows of FOR SYSTEM_TIME AS OF have no event time, from which they hold",
            )
            .hint("declare it in their source: ts TIMESTAMP EVENT TIME"));
        };
        let stream = self.builder.with_event_time(stream, time)?;
        let of_relation = stream.columns.clone();
        let columns = join.versions.columns.iter().map(|&column| of_relation[column]).collect();
        let stream = Stream { columns, ..stream };
        let (mut stream, keys) = self.with_expressions(stream, &join.keys(RIGHT), schema, None)?;
        for &key in &keys {
            let field = stream.schema.field(key);
            if field.is_nullable() {
                let is_key = is_not_null(Arc::new(Column::new(field.name(), key)));
                stream = self.builder.filter(&stream, is_key.map_err(|error| failed(&error, position))?)?;
            }
        }
        Ok(Side::new(stream, keys, time, of_relation, &join.needed[RIGHT]))
    }

    /// Returns the rows with their versions, the places of the columns of the stream of versions, and the place of the
    /// first of them.
    fn with_versions(
        &mut self,
        join: &VersionJoin<'_, '_>,
        left: &Side,
        right: &Side,
    ) -> Result<(Stream, Vec<Place>, usize), SqlError> {
        let form = CommonForm::new([left, right]);
        let mut sides = Vec::with_capacity(2);
        for (number, side) in [left, right].into_iter().enumerate() {
            let columns = form.columns(number, &side.stream).map_err(|error| failed(&error, join.position))?;
            let (node, schema) = self.builder.project_node(&side.stream, columns)?;
            let leading: Vec<usize> = side.keys.iter().copied().chain([side.time]).collect();
            sides.push(side.stream.rearranged(node, schema, &leading));
        }
        let keys: Vec<usize> = (0..form.keys).collect();
        let pairs: Vec<(usize, usize)> = keys.iter().map(|&key| (key, key)).collect();
        let (edges, joined_by) = self.join_edges(&sides[LEFT], &sides[RIGHT], &pairs);

        let of_side = |number: usize, side: &Side| {
            side.needed.iter().filter_map(|&own| form.place(number, own)).collect::<BTreeSet<usize>>()
        };
        let mut rows = of_side(LEFT, left);
        rows.insert(form.time());
        let rows: Vec<usize> = rows.into_iter().collect();
        let of_version: Vec<usize> = of_side(RIGHT, right).into_iter().collect();
        let ascending = |column| SortKey { column, descending: false, nulls_first: false };
        let is_version = form.is_version();
        let spec = KeyedOverSpec {
            input: form.schema.clone(),
            partition: keys.clone(),
            // A version holds for rows of its own time.
            order: vec![ascending(form.time()), SortKey { descending: true, ..ascending(is_version) }],
            frame: OverFrame::Rows { preceding: Some(0) },
            aggregates: Vec::new(),
            lags: Vec::new(),
            input_retracts: false,
            state_ttl_us: self.state_ttl_us,
        };
        let keeps_unmatched = join.join.kind == KeyedJoinKind::Left;
        let versions =
            parallel::Versions { is_version, columns: rows.clone(), of_version: of_version.clone(), keeps_unmatched };
        let what = format!("{keys:?} {versions:?}");
        let over = KeyedOver::new(spec).and_then(|over| over.with_versions(versions));
        let over = over.map_err(|error| crate::plan::defect(error, join.position))?;
        let schema = over.output_schema().clone();
        let inputs: Vec<_> = sides.iter().zip(edges).map(|(side, edge)| (side.node, 0, edge)).collect();
        let node = self.builder.operator("as of", &what, over, schema.clone(), &inputs);
        self.builder.changes.insert(node, false);

        let new_row = |place: usize| rows.iter().position(|row| *row == place);
        let partition = match joined_by {
            Some(JoinedBy::Keys(order)) => {
                self.builder.dataflow.divide(node, order.clone());
                order.into_iter().map(new_row).collect::<Option<Vec<_>>>().map_or(Partition::Any, Partition::Keys)
            }
            Some(JoinedBy::One) => Partition::One,
            None => Partition::Any,
        };
        let place_of_row = |own: usize| form.place(LEFT, own).and_then(new_row);
        let of_left = |place: &Place| match *place {
            Place::Column(own) => place_of_row(own).map_or(Place::Absent, Place::Column),
            other => other,
        };
        let of_right = |place: &Place| match *place {
            Place::Column(own) => {
                let common = form.place(RIGHT, own);
                let place = common.and_then(|common| of_version.iter().position(|column| *column == common));
                place.map_or(Place::Absent, |place| Place::Column(rows.len() + place))
            }
            _ => Place::Absent,
        };
        let time = new_row(form.time());
        let key = left.stream.key.as_ref();
        let met = Stream {
            node,
            schema,
            columns: left.columns.iter().map(of_left).chain(right.stream.columns.iter().map(of_right)).collect(),
            time,
            // Rows have waited. Other times of theirs may be behind the watermark.
            bounds: time.map(|time| (time, 0)).into_iter().collect(),
            pending: None,
            window: None,
            changes: false,
            partition,
            key: key.and_then(|key| key.iter().map(|&own| place_of_row(own)).collect()),
            is_small: false,
        };
        Ok((met, right.columns.iter().map(of_right).collect(), rows.len()))
    }

    /// Returns the rows with null in the place of a version that does not fulfil the condition. Its columns are those
    /// from `first` on.
    fn without_others(
        &mut self,
        joined: Stream,
        first: usize,
        condition: &Arc<dyn PhysicalExpr>,
        position: Position,
    ) -> Result<Stream, SqlError> {
        let columns = joined.schema.fields().iter().enumerate().map(|(place, field)| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), place));
            let value = match place < first {
                true => column,
                false => case(None, vec![(condition.clone(), column)], None)?,
            };
            Ok(NamedExpression::new(field.name(), value))
        });
        let columns: Result<Vec<_>, DataFusionError> = columns.collect();
        let columns = columns.map_err(|error| failed(&error, position))?;
        let (node, schema) = self.builder.project_node(&joined, columns)?;
        Ok(Stream { node, schema, ..joined })
    }
}

/// Returns the stream that a node takes for versions, with the indices of its columns.
fn versions_of(node: &LogicalPlan) -> Option<(Arc<LogicalPlan>, Vec<usize>)> {
    let LogicalPlan::Extension(extension) = node else { return None };
    let versions = extension.node.as_any().downcast_ref::<Versions>()?;
    Some((versions.input.clone(), (0..versions.input.schema().fields().len()).collect()))
}

fn refuse_changes(stream: &Stream, position: Position) -> Result<(), SqlError> {
    match stream.changes {
        true => Err(not_yet(position, "FOR SYSTEM_TIME AS OF with rows that may be taken back")
            .hint("join rows as they come from their sources, or results of windows, and aggregate behind the join")),
        false => Ok(()),
    }
}

fn failed(error: &DataFusionError, position: Position) -> SqlError {
    SqlError::new(position, crate::plan::message::plain_message(error))
}
