//! Joins on equal keys. What their condition says about times decides when rows expire. Also lookups in reference
//! tables.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion_common::tree_node::TreeNode;
use datafusion_common::{DFSchema, JoinType, NullEquality};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::EdgeKind;
use rivulet_operators::parallel::{KeyedJoin, KeyedJoinKind, KeyedJoinSpec};

use super::bounds::{LEFT, RIGHT, Sides, bounds_of_expiring, bounds_of_pairs, forgetting, lateness};
use super::broadcast::Broadcast;
use super::columns::used_columns;
use super::error::{not_yet, place_of, refused};
use super::lower::Lowering;
use super::relations::table_within;
use super::stream::{Attached, Partition, Place, Stream};
use crate::SqlError;

/// The error for a join without an equality.
pub(super) const NO_EQUALITY: &str = "a join without an equality would pair every row with every other";

/// A join, with its sides in the order of the operator.
pub(super) struct Sided<'p> {
    pub(super) plans: [&'p LogicalPlan; 2],
    /// Pairs of expressions that must be equal.
    pub(super) on: Vec<[&'p Expr; 2]>,
    pub(super) filter: Option<&'p Expr>,
    pub(super) kind: KeyedJoinKind,
    /// Whether null is equal to null in `on`.
    pub(super) nulls_are_equal: bool,
}

impl Lowering {
    pub(super) fn join(&mut self, join: &Join, wanted: &BTreeSet<usize>) -> Result<Stream, SqlError> {
        let position = join.on.first().map(|(left, _)| place_of(left)).unwrap_or_default();
        let position = position.or(join.filter.as_ref().map(place_of).unwrap_or_default()).or(self.position());
        let (kind, is_swapped) = match join.join_type {
            JoinType::Inner => (KeyedJoinKind::Inner, false),
            JoinType::Left => (KeyedJoinKind::Left, false),
            JoinType::Right => (KeyedJoinKind::Right, false),
            JoinType::Full => (KeyedJoinKind::Full, false),
            JoinType::LeftSemi => (KeyedJoinKind::LeftSemi, false),
            JoinType::LeftAnti => (KeyedJoinKind::LeftAnti, false),
            JoinType::RightSemi => (KeyedJoinKind::LeftSemi, true),
            JoinType::RightAnti => (KeyedJoinKind::LeftAnti, true),
            JoinType::LeftMark | JoinType::RightMark => {
                return Err(not_yet(position, "EXISTS or IN (SELECT ...) beside OR")
                    .hint("write it as a condition of its own, joined by AND"));
            }
        };
        if join.null_aware {
            return Err(not_yet(position, "NOT IN (SELECT ...) where either side may be null")
                .hint("write NOT EXISTS (SELECT 1 FROM ... WHERE ... = ...)"));
        }
        // What counts rows would read the table by itself.
        let value = [&join.left, &join.right].into_iter().find(|side| is_value(side));
        if let Some(name) = value.and_then(|side| table_within(side)) {
            return Err(not_yet(position, &format!("a subquery over the table '{name}' in this place")).hint(
                "rows are looked up by IN, EXISTS or NOT EXISTS as conditions of their own, by NOT IN where both columns \
                 are NOT NULL, and by JOIN table ON table.key = source.key",
            ));
        }
        let on = join.on.iter().map(|(left, right)| if is_swapped { [right, left] } else { [left, right] }).collect();
        let (left, right): (&LogicalPlan, &LogicalPlan) = (&join.left, &join.right);
        let plans = if is_swapped { [right, left] } else { [left, right] };
        let nulls_are_equal = join.null_equality == NullEquality::NullEqualsNull;
        let sided = Sided { plans, on, filter: join.filter.as_ref(), kind, nulls_are_equal };
        if let Some(stream) = self.lookup(&sided, wanted, position)? {
            return Ok(stream);
        }
        match self.version_join(&sided, join, wanted, position)? {
            Some(stream) => Ok(stream),
            None => self.keyed_join(&sided, join, wanted, position),
        }
    }

    fn keyed_join(
        &mut self,
        join: &Sided<'_>,
        whole: &Join,
        wanted: &BTreeSet<usize>,
        position: crate::Position,
    ) -> Result<Stream, SqlError> {
        let schemas: [&DFSchema; 2] = [join.plans[0].schema(), join.plans[1].schema()];
        let is_half = matches!(join.kind, KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti);
        let left_fields = schemas[LEFT].fields().len();
        // The columns that are needed of each side, as indices in its columns.
        let asked = |side: usize| -> BTreeSet<usize> {
            wanted
                .iter()
                .filter_map(|&column| match side {
                    LEFT => (column < left_fields).then_some(column),
                    _ => column.checked_sub(left_fields).filter(|_| !is_half),
                })
                .collect()
        };
        let mut streams = Vec::with_capacity(2);
        let mut keys: Vec<Vec<usize>> = Vec::with_capacity(2);
        for side in [LEFT, RIGHT] {
            let mut used = asked(side);
            used.extend(used_columns(join.on.iter().map(|pair| pair[side]).chain(join.filter), schemas[side]));
            // Of OVER () both sides are the same rows, so a row brings its aggregates with it.
            let gives_at_once = !rivulet_relational::are_partitions(join.plans[side]);
            let gave_at_once = std::mem::replace(&mut self.gives_at_once, gives_at_once);
            let stream = self.lower(join.plans[side], &used)?;
            self.gives_at_once = gave_at_once;
            let stream = self.builder.with_windows(stream)?;
            let expressions: Vec<&Expr> = join.on.iter().map(|pair| pair[side]).collect();
            let kept: BTreeSet<usize> = used
                .iter()
                .filter_map(|column| match stream.columns[*column] {
                    Place::Column(place) => Some(place),
                    _ => None,
                })
                .collect();
            let (stream, places) = self.with_expressions(stream, &expressions, schemas[side], Some(&kept))?;
            streams.push(stream);
            keys.push(places);
        }
        let [left, right]: [Stream; 2] = streams.try_into().expect("a join has two sides");
        let pairs: Vec<(usize, usize)> = keys[LEFT].iter().copied().zip(keys[RIGHT].iter().copied()).collect();
        let sides = Sides { schemas, streams: [&left, &right] };
        let mut constraints = sides.constraints(join.filter.into_iter().flat_map(split_conjunction));
        pairs.iter().for_each(|&(one, other)| constraints.extend(sides.equality(one, other)));
        let forgetting = [LEFT, RIGHT].map(|side| forgetting(side, &constraints, sides.streams));
        // If each row meets only rows of a limited span of time, all rows may be joined in one instance.
        let is_limited = forgetting.iter().all(Option::is_some);
        if pairs.is_empty() && !is_limited && !right.is_one_row() && !left.is_one_row() {
            if join.plans.iter().any(|plan| is_value(plan)) {
                return Err(refused(position, "a subquery that stands for a value may give more than one row")
                    .hint("aggregate in it, for example SELECT max(...)"));
            }
            return Err(refused(position, NO_EQUALITY).hint(hint_of_equality(join.filter, schemas, is_half)));
        }
        let expiries = forgetting.map(|side| side.map(|side| side.expiry));
        let reach = [RIGHT, LEFT].map(|other| forgetting[other].map(|other| other.reach));

        let residual = join.filter.map(|filter| self.residual(filter, schemas, [&left, &right])).transpose()?;
        // The output columns, and for each column of the plan its index among them.
        let width = left.schema.fields().len();
        let place_of_column = |column: usize| {
            let (side, logical) = if column < left_fields { (LEFT, column) } else { (RIGHT, column - left_fields) };
            match (side, if side == LEFT { left.columns[logical] } else { right.columns[logical] }) {
                (LEFT, Place::Column(place)) => Some(place),
                (_, Place::Column(place)) => Some(width + place),
                _ => None,
            }
        };
        let mut output: Vec<usize> = wanted.iter().filter_map(|&column| place_of_column(column)).collect();
        output.extend(left.window.iter().flat_map(|window| window.start.into_iter().chain([window.end])));
        output.sort_unstable();
        output.dedup();
        // Rows without columns still count, but a batch is easier to make with one column.
        if output.is_empty() && width > 0 {
            output.push(0);
        }
        let spec = KeyedJoinSpec {
            left: left.schema.clone(),
            right: right.schema.clone(),
            keys: pairs.clone(),
            kind: join.kind,
            residual,
            expiry: expiries,
            state_ttl_us: self.state_ttl_us,
            output: output.clone(),
        };
        let mut what =
            format!("{:?} {:?} {:?} {:?} {:?}", spec.kind, spec.keys, spec.residual, spec.expiry, spec.output);
        let mut keyed = KeyedJoin::new(spec)
            .and_then(|join| join.with_lateness([lateness(&left), lateness(&right)]))
            .and_then(|join| join.with_reach(reach))
            .map(|join| join.with_one_row([left.is_one_row(), right.is_one_row()]))
            .map_err(|error| crate::plan::defect(error, position))?;
        if join.nulls_are_equal {
            keyed = keyed.with_equal_nulls();
            what.push_str(" nulls are equal");
        }
        let schema = keyed.output_schema().clone();
        let forgets = expiries.iter().any(Option::is_some);
        let broadcast = Broadcast::of(&keyed, join.kind, [&left, &right], &pairs).filter(|_| !forgets);
        let ([to_left, to_right], joined_by) = match &broadcast {
            Some(broadcast) => {
                keyed = keyed.with_everywhere(broadcast.side, broadcast.divided_by.clone());
                (broadcast.edges(), None)
            }
            None => self.join_edges(&left, &right, &pairs),
        };
        let inputs = [(left.node, 0, to_left), (right.node, 1, to_right)];
        let node = self.builder.operator("join", &what, keyed, schema.clone(), &inputs);

        let new = |place: usize| output.iter().position(|old| *old == place);
        let columns = (0..whole.schema.fields().len()).map(|column| {
            let place = wanted.contains(&column).then(|| place_of_column(column)).flatten();
            place.and_then(new).map_or(Place::Absent, Place::Column)
        });
        let final_rows = |side: usize| expiries[side].is_some();
        let changes = left.changes
            || right.changes
            || match join.kind {
                KeyedJoinKind::Inner | KeyedJoinKind::LeftSemi => false,
                KeyedJoinKind::Left | KeyedJoinKind::LeftAnti => !final_rows(LEFT),
                KeyedJoinKind::Right => !final_rows(RIGHT),
                KeyedJoinKind::Full => !(final_rows(LEFT) && final_rows(RIGHT)),
            };
        self.builder.changes.insert(node, changes);
        let divided = match (&joined_by, &broadcast) {
            (Some(JoinedBy::Keys(order)), _) => Some(order.clone()),
            (_, Some(broadcast)) => Some((0..broadcast.divided_by.len()).collect()),
            _ => None,
        };
        if let Some(divided) = divided {
            self.builder.dataflow.divide(node, divided);
        }
        let partition = match joined_by {
            Some(JoinedBy::One) => Partition::One,
            Some(JoinedBy::Keys(order)) => {
                let columns = order.iter().map(|&key| {
                    let (one, other) = (new(pairs[key].0), new(width + pairs[key].1));
                    match join.kind {
                        KeyedJoinKind::Inner => one.or(other),
                        KeyedJoinKind::Left | KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti => one,
                        KeyedJoinKind::Right => other,
                        KeyedJoinKind::Full => None,
                    }
                });
                columns.collect::<Option<Vec<_>>>().map_or(Partition::Any, Partition::Keys)
            }
            None => broadcast.map_or(Partition::Any, |broadcast| {
                let first = if broadcast.side == LEFT { width } else { 0 };
                broadcast.partition.moved(|column| new(first + column))
            }),
        };
        let bounds = match join.kind {
            KeyedJoinKind::Inner if !changes => {
                let streams = [&left, &right];
                let of_left = bounds_of_pairs(LEFT, &constraints, streams);
                let of_right = bounds_of_pairs(RIGHT, &constraints, streams);
                let moved = of_right.into_iter().map(|(column, bound)| (width + column, bound));
                of_left.into_iter().chain(moved).filter_map(|(column, bound)| Some((new(column)?, bound))).collect()
            }
            // Rows of these sides are emitted on arrival. If a partner comes later, they are emitted again, and are
            // late then.
            KeyedJoinKind::Left | KeyedJoinKind::LeftAnti if changes => {
                left.bounds.iter().filter_map(|&(column, bound)| Some((new(column)?, bound))).collect()
            }
            KeyedJoinKind::Right if changes => {
                right.bounds.iter().filter_map(|&(column, bound)| Some((new(width + column)?, bound))).collect()
            }
            // A row without a partner comes out when it expires, as late as the latest pair.
            KeyedJoinKind::Left | KeyedJoinKind::LeftAnti => {
                let expiring = bounds_of_expiring(LEFT, expiries[LEFT], &constraints, [&left, &right]);
                expiring.into_iter().filter_map(|(column, bound)| Some((new(column)?, bound))).collect()
            }
            KeyedJoinKind::Right => {
                let expiring = bounds_of_expiring(RIGHT, expiries[RIGHT], &constraints, [&left, &right]);
                expiring.into_iter().filter_map(|(column, bound)| Some((new(width + column)?, bound))).collect()
            }
            _ => Vec::new(),
        };
        // Rows that are joined by their window stay rows of that window.
        let shares_window =
            left.window.zip(right.window).is_some_and(|(one, other)| pairs.contains(&(one.end, other.end)));
        let window =
            left.window.filter(|_| shares_window && !matches!(join.kind, KeyedJoinKind::Right | KeyedJoinKind::Full));
        let window = window
            .and_then(|window| Some(Attached { start: window.start.and_then(new), end: new(window.end)?, ..window }));
        Ok(Stream {
            node,
            schema,
            columns: columns.collect(),
            time: None,
            bounds,
            pending: None,
            window,
            changes,
            partition,
            key: joined_key(join.kind, &left, &right, &pairs, width).and_then(|key| key.into_iter().map(new).collect()),
            is_small: false,
        })
    }

    /// The rest of the condition, without the equalities, over the columns of left and then right.
    fn residual(
        &self,
        filter: &Expr,
        schemas: [&DFSchema; 2],
        streams: [&Stream; 2],
    ) -> Result<Arc<dyn PhysicalExpr>, SqlError> {
        let position = place_of(filter).or(self.position());
        let both = schemas[LEFT].join(schemas[RIGHT]).map_err(|error| {
            SqlError::new(position, crate::plan::message::plain_message(&error))
                .hint("give the inputs of the join different names: FROM bids AS a JOIN bids AS b ON ...")
        })?;
        let width = streams[LEFT].schema.fields().len();
        let moved = streams[RIGHT].columns.iter().map(|place| match place {
            Place::Column(column) => Place::Column(width + column),
            other => *other,
        });
        let columns: Vec<Place> = streams[LEFT].columns.iter().copied().chain(moved).collect();
        let fields = streams[LEFT].schema.fields().iter().chain(streams[RIGHT].schema.fields()).cloned();
        let rows = arrow::datatypes::Schema::new(fields.collect::<Vec<_>>());
        self.builder.physical(filter, &both, &columns, &rows)
    }

    /// Returns the edges that bring rows with equal keys together, and which of the keys are used for that.
    pub(super) fn join_edges(
        &self,
        left: &Stream,
        right: &Stream,
        pairs: &[(usize, usize)],
    ) -> ([EdgeKind; 2], Option<JoinedBy>) {
        if pairs.is_empty() {
            return ([EdgeKind::Gather, EdgeKind::Gather], Some(JoinedBy::One));
        }
        if left.partition == Partition::One && right.partition == Partition::One {
            return ([EdgeKind::Forward, EdgeKind::Forward], Some(JoinedBy::One));
        }
        // The keys by which one side is already partitioned, in its order.
        let divided = |stream: &Stream, side: usize| match &stream.partition {
            Partition::Keys(columns) => columns
                .iter()
                .map(|column| pairs.iter().position(|pair| [pair.0, pair.1][side] == *column))
                .collect::<Option<Vec<usize>>>(),
            _ => None,
        };
        let hash = |side: usize, order: &[usize]| {
            EdgeKind::Hash(order.iter().map(|&key| [pairs[key].0, pairs[key].1][side]).collect())
        };
        match (divided(left, LEFT), divided(right, RIGHT)) {
            (Some(one), Some(other)) if one == other => {
                ([EdgeKind::Forward, EdgeKind::Forward], Some(JoinedBy::Keys(one)))
            }
            (Some(order), _) => ([EdgeKind::Forward, hash(RIGHT, &order)], Some(JoinedBy::Keys(order))),
            (None, Some(order)) => ([hash(LEFT, &order), EdgeKind::Forward], Some(JoinedBy::Keys(order))),
            (None, None) => {
                let order: Vec<usize> = (0..pairs.len()).collect();
                ([hash(LEFT, &order), hash(RIGHT, &order)], Some(JoinedBy::Keys(order)))
            }
        }
    }
}

/// A hint for a join without an equality that finds partners. Its condition may have an equality that does not help.
fn hint_of_equality(filter: Option<&Expr>, schemas: [&DFSchema; 2], is_half: bool) -> &'static str {
    let is_equality = |one: &Expr| {
        let is_equal = matches!(one, Expr::BinaryExpr(BinaryExpr { op: Operator::Eq, .. }));
        is_equal && schemas.iter().all(|schema| !used_columns([one], schema).is_empty())
    };
    let has_equality = |one: &Expr| one.exists(|part| Ok(is_equality(part))).unwrap_or(false);
    let is_or = |one: &Expr| matches!(one, Expr::BinaryExpr(BinaryExpr { op: Operator::Or, .. }));
    let with_equality: Vec<&Expr> =
        filter.into_iter().flat_map(split_conjunction).filter(|one| has_equality(one)).collect();
    match with_equality.first() {
        Some(one) if is_equality(one) => {
            "each side of = must name columns of one input alone: a.key = b.key + 1 instead of a.key - b.key = 1"
        }
        Some(one) if is_or(one) => {
            "no equality holds for all alternatives of the OR: write a query for each, with UNION ALL between them, \
             and leave out in each the rows that those before it give"
        }
        Some(_) => "an equality finds partners if it stands by itself, or joined to other conditions by AND",
        None if is_half => "compare with the outer query: WHERE b.key = a.key, with further conditions behind AND",
        None => {
            "join ON a.key = b.key, with further conditions behind AND; without an equality only rows of one time \
             meet: b.ts BETWEEN a.ts AND a.ts + INTERVAL '1 minute'"
        }
    }
}

/// Whether a side of a join is what the optimizer makes of a scalar subquery.
fn is_value(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::SubqueryAlias(alias) if alias.alias.table().starts_with("__scalar_sq"))
}

/// How matching rows come to the same instance.
pub(super) enum JoinedBy {
    /// By these keys, in this order.
    Keys(Vec<usize>),
    /// There is only one instance.
    One,
}

/// The columns that identify a row of the result, as indices in left and then right.
fn joined_key(
    kind: KeyedJoinKind,
    left: &Stream,
    right: &Stream,
    pairs: &[(usize, usize)],
    width: usize,
) -> Option<Vec<usize>> {
    let is_one = |stream: &Stream, side: usize| {
        let is_joined = |column: &usize| pairs.iter().any(|pair| [pair.0, pair.1][side] == *column);
        stream.key.as_ref().is_some_and(|key| key.iter().all(is_joined))
    };
    let of_left = || left.key.clone();
    let of_right = || right.key.as_ref().map(|key| key.iter().map(|column| width + column).collect::<Vec<_>>());
    match kind {
        KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti => of_left(),
        KeyedJoinKind::Inner | KeyedJoinKind::Left if is_one(right, RIGHT) => of_left(),
        KeyedJoinKind::Inner | KeyedJoinKind::Right if is_one(left, LEFT) => of_right(),
        KeyedJoinKind::Inner => Some(of_left()?.into_iter().chain(of_right()?).collect()),
        _ => None,
    }
}
