//! Joins of two inputs on equal keys.
//!
//! Both sides keep their rows ([`side`]) under numbers of keys that they share, so one look-up serves a row to find
//! partners and to be found by them. Only columns that are needed are kept. [`operator`] finds pairs, [`state`] exports
//! and imports state.

mod operator;
mod side;
mod state;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::utils::collect_columns;

use super::keys::KeyPlan;
use super::rows::RowStore;
use super::time_to_live::{span_text, state_text};
use super::{check_columns, check_time};
use rivulet_dataflow::{Description, Operator, OperatorFactory, StateFrame};

use crate::PlanError;
use crate::expression::{Expressions, is_condition};

/// The plan of a join.
#[derive(Clone, Debug)]
pub struct KeyedJoinSpec {
    /// The columns of input 0.
    pub left: SchemaRef,
    /// The columns of input 1.
    pub right: SchemaRef,
    /// The columns that must be equal, left and right. Without columns, every row meets every other. Null is equal to
    /// nothing, unless [`KeyedJoin::with_equal_nulls`] says so.
    pub keys: Vec<(usize, usize)>,
    /// Which rows come out.
    pub kind: KeyedJoinKind,
    /// A further condition on pairs, over the columns of left and then right.
    pub residual: Option<Arc<dyn PhysicalExpr>>,
    /// The time after which rows of a side can meet no new row.
    pub expiry: [Option<Expiry>; 2],
    /// For a side without expiry: how long after its own event time a row is remembered, by the watermark, in
    /// microseconds; `None`: for ever.
    pub state_ttl_us: Option<i64>,
    /// The output columns, as indices of the columns of left and then right. Semi and anti joins have only columns of
    /// left.
    pub output: Vec<usize>,
}

/// Which rows come out of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedJoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and rows of the left side without partner.
    Left,
    /// Pairs, and rows of the right side without partner.
    Right,
    /// Pairs, and rows of both sides without partner.
    Full,
    /// Rows of the left side with a partner.
    LeftSemi,
    /// Rows of the left side without partner.
    LeftAnti,
}

/// When a row can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// A column of times of its side.
    pub column: usize,
    /// In microseconds. The row is no longer needed when the watermark is greater than the column's value plus this.
    pub after_us: i64,
}

/// Joins rows of two inputs; see [`KeyedJoinSpec`].
///
/// A pair has the later event time of its two rows. In an outer or anti join, a row without partner comes out when it
/// expires, with the time of its expiry as event time, and is then final. If rows of its side never expire, it comes
/// out at once, with its own event time, and is retracted when a partner comes.
///
/// A row that is forgotten because of [`KeyedJoinSpec::state_ttl_us`] meets no later row; its results are not
/// retracted. If rows expire by their condition, the partners of a late row may be forgotten already. So a late row is
/// refused, if it is known what late is ([`KeyedJoin::with_lateness`]).
#[derive(Clone)]
pub struct KeyedJoin {
    plan: Arc<JoinPlan>,
}

/// The plan that all instances share.
pub(crate) struct JoinPlan {
    spec: KeyedJoinSpec,
    keys: [KeyPlan; 2],
    /// The columns of each side that are kept.
    kept: [Vec<usize>; 2],
    /// The residual over the columns that it uses, and for each of these its side and its index among the kept columns.
    residual: Option<(Expressions, Vec<(usize, usize)>)>,
    /// For each output column, its side and its index among the kept columns.
    columns: Vec<(usize, usize)>,
    output: SchemaRef,
    /// A row of a side is late when the watermark is greater than the time that this gives.
    late: [Option<Expiry>; 2],
    /// No partner of a side's row expires before the time that this gives.
    reach: [Option<Expiry>; 2],
    /// Whether null is equal to null.
    nulls_are_equal: bool,
}

impl KeyedJoin {
    /// Checks a specification.
    ///
    /// # Errors
    /// Columns that do not exist, keys of different types, an expiry by a column without times, a residual that is not
    /// a condition.
    pub fn new(spec: KeyedJoinSpec) -> Result<Self, PlanError> {
        check_columns(&spec.left, spec.keys.iter().map(|key| key.0), "the left key")?;
        check_columns(&spec.right, spec.keys.iter().map(|key| key.1), "the right key")?;
        for &(left, right) in &spec.keys {
            let (left, right) = (spec.left.field(left), spec.right.field(right));
            if left.data_type() != right.data_type() {
                return Err(PlanError::Operator {
                    operator: "join",
                    problem: format!(
                        "'{}' has type {}, but '{}' has type {}",
                        left.name(),
                        left.data_type(),
                        right.name(),
                        right.data_type()
                    ),
                    hint: "cast one of them to the type of the other".into(),
                });
            }
        }
        for (schema, expiry) in [&spec.left, &spec.right].into_iter().zip(&spec.expiry) {
            if let Some(expiry) = expiry {
                check_time(schema, expiry.column, "the expiry")?;
            }
        }
        let both = joined_schema(&spec.left, &spec.right);
        let columns = match spec.kind {
            KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti => spec.left.fields().len(),
            _ => both.fields().len(),
        };
        if let Some(&index) = spec.output.iter().find(|&&column| column >= columns) {
            return Err(PlanError::Column {
                index,
                what: "the join's output",
                problem: "there is no such column".into(),
            });
        }
        if let Some(residual) = &spec.residual {
            let checked = Expressions::new(&both, &Schema::empty(), vec![], vec![residual.clone()])?;
            let field = &checked.fields()[0];
            if !is_condition(field.data_type()) {
                let problem = format!("a condition is true or false, and this has type {}", field.data_type());
                return Err(PlanError::Expression { expression: field.name().clone(), problem });
            }
        }
        let pads = [
            matches!(spec.kind, KeyedJoinKind::Right | KeyedJoinKind::Full),
            matches!(spec.kind, KeyedJoinKind::Left | KeyedJoinKind::Full),
        ];
        let fields: Vec<Field> = spec
            .output
            .iter()
            .map(|&column| {
                let field = both.field(column).clone();
                let is_padded = pads[usize::from(column >= spec.left.fields().len())];
                let is_nullable = field.is_nullable() || is_padded;
                field.with_nullable(is_nullable)
            })
            .collect();
        let output = Arc::new(Schema::new(fields));
        let plan = JoinPlan::new(spec, &both, output)?;
        Ok(Self { plan: Arc::new(plan) })
    }

    /// Says when rows of a side are late: if they come when the watermark is greater than their column's value plus
    /// `after_us`.
    ///
    /// # Errors
    /// Columns that hold no times.
    pub fn with_lateness(mut self, late: [Option<Expiry>; 2]) -> Result<Self, PlanError> {
        for (schema, late) in [&self.plan.spec.left, &self.plan.spec.right].into_iter().zip(&late) {
            if let Some(late) = late {
                check_time(schema, late.column, "the time")?;
            }
        }
        let is_forgetful = self.plan.spec.expiry.iter().any(Option::is_some);
        if let Some(plan) = Arc::get_mut(&mut self.plan).filter(|_| is_forgetful) {
            plan.late = late;
        }
        Ok(self)
    }

    /// Says which rows a side's rows can meet, according to the condition: rows that expire no earlier than at their
    /// column's value plus `after_us`. So a row need not look at all rows that are kept for its key.
    ///
    /// # Errors
    /// Columns that hold no times.
    pub fn with_reach(mut self, reach: [Option<Expiry>; 2]) -> Result<Self, PlanError> {
        for (side, schema) in [&self.plan.spec.left, &self.plan.spec.right].into_iter().enumerate() {
            if let Some(reach) = reach[side] {
                check_time(schema, reach.column, "the reach")?;
            }
        }
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            // If a side's rows do not expire by the condition, their expiry does not say which rows they can meet.
            let expiry = plan.spec.expiry;
            plan.reach = [expiry[1].and(reach[0]), expiry[0].and(reach[1])];
        }
        Ok(self)
    }

    /// Makes nulls in keys equal to each other.
    #[must_use]
    pub fn with_equal_nulls(mut self) -> Self {
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            plan.nulls_are_equal = true;
        }
        self
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }
}

impl JoinPlan {
    fn new(spec: KeyedJoinSpec, both: &Schema, output: SchemaRef) -> Result<Self, PlanError> {
        let lefts = spec.left.fields().len();
        let side_of = |column: usize| if column < lefts { (0, column) } else { (1, column - lefts) };
        let mut used: Vec<usize> = match &spec.residual {
            Some(residual) => collect_columns(residual).into_iter().map(|column| column.index()).collect(),
            None => vec![],
        };
        used.sort_unstable();
        used.dedup();
        let mut kept = [Vec::new(), Vec::new()];
        for (side, column) in spec.output.iter().chain(&used).map(|&column| side_of(column)) {
            kept[side].push(column);
        }
        for &(left, right) in &spec.keys {
            kept[0].push(left);
            kept[1].push(right);
        }
        for (side, kept) in kept.iter_mut().enumerate() {
            kept.extend(spec.expiry[side].map(|expiry| expiry.column));
            kept.sort_unstable();
            kept.dedup();
        }
        let place = |column: usize| {
            let (side, column) = side_of(column);
            (side, kept[side].binary_search(&column).expect("the column is kept"))
        };
        let residual = match &spec.residual {
            None => None,
            Some(residual) => {
                let narrowed = Schema::new(used.iter().map(|&column| both.field(column).clone()).collect::<Vec<_>>());
                let moved = residual.clone().transform(|node| {
                    let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
                    let index = used.binary_search(&column.index()).expect("the column is used");
                    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(column.name(), index));
                    Ok(Transformed::yes(column))
                });
                let moved = moved.map_err(|error| PlanError::Expression {
                    expression: crate::expression::sql(residual),
                    problem: error.strip_backtrace(),
                })?;
                let expressions = Expressions::new(&narrowed, &Schema::empty(), vec![], vec![moved.data])?;
                Some((expressions, used.iter().map(|&column| place(column)).collect()))
            }
        };
        // Both sides share the numbers of keys, so their keys are looked up in one form.
        let keys = KeyPlan::pair(
            &spec.left,
            &spec.keys.iter().map(|key| key.0).collect::<Vec<_>>(),
            &spec.keys.iter().map(|key| key.1).collect::<Vec<_>>(),
        )?;
        let columns = spec.output.iter().map(|&column| place(column)).collect();
        let (late, reach, nulls_are_equal) = ([None; 2], [None; 2], false);
        let plan = Self { keys, residual, columns, output, kept, spec, late, reach, nulls_are_equal };
        plan.stores()?;
        Ok(plan)
    }

    /// Makes empty stores for both sides.
    fn stores(&self) -> Result<[RowStore; 2], PlanError> {
        Ok([RowStore::new(&self.spec.left, &self.kept[0])?, RowStore::new(&self.spec.right, &self.kept[1])?])
    }

    /// Whether a row cannot have a partner because a column of its key is null.
    fn is_alone(&self, keys: &[&ArrayRef], row: usize) -> bool {
        !self.nulls_are_equal && keys.iter().any(|column| column.is_null(row))
    }

    /// The time at which a row of a side is no longer needed; [`i64::MAX`] for never. `time_us` returns the value of a
    /// column of the row.
    fn expires_us(&self, side: usize, event_time_us: i64, time_us: impl FnOnce(usize) -> Option<i64>) -> i64 {
        let (time_us, after_us) = match (self.spec.expiry[side], self.spec.state_ttl_us) {
            (Some(expiry), _) => (time_us(expiry.column), expiry.after_us),
            (None, Some(ttl_us)) => (Some(event_time_us), ttl_us),
            (None, None) => (None, 0),
        };
        time_us.map_or(i64::MAX, |time_us| time_us.saturating_add(after_us))
    }

    /// Whether rows of a side come out if they have no partner.
    fn pads(&self, side: usize) -> bool {
        match self.spec.kind {
            KeyedJoinKind::Inner | KeyedJoinKind::LeftSemi => false,
            KeyedJoinKind::Left | KeyedJoinKind::LeftAnti => side == 0,
            KeyedJoinKind::Right => side == 1,
            KeyedJoinKind::Full => true,
        }
    }

    /// Whether pairs come out.
    fn gives_pairs(&self) -> bool {
        !matches!(self.spec.kind, KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti)
    }

    /// Whether it matters how many partners the rows of a side have.
    fn counts(&self, side: usize) -> bool {
        self.pads(side) || (self.spec.kind == KeyedJoinKind::LeftSemi && side == 0)
    }
}

/// The columns of left, then those of right.
pub(crate) fn joined_schema(left: &Schema, right: &Schema) -> Schema {
    Schema::new(left.fields().iter().chain(right.fields()).cloned().collect::<Vec<_>>())
}

impl OperatorFactory for KeyedJoin {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(operator::JoinOperator::new(self.plan.clone()))
    }

    fn describe(&self) -> Description {
        let spec = &self.plan.spec;
        let kind = match spec.kind {
            KeyedJoinKind::Inner => "inner",
            KeyedJoinKind::Left => "left",
            KeyedJoinKind::Right => "right",
            KeyedJoinKind::Full => "full",
            KeyedJoinKind::LeftSemi => "left semi",
            KeyedJoinKind::LeftAnti => "left anti",
        };
        let mut shared = vec![kind.to_owned()];
        shared.extend(spec.keys.iter().map(|&(left, right)| {
            let equals = if self.plan.nulls_are_equal { "is not distinct from" } else { "=" };
            format!("{} {equals} {}", spec.left.field(left).name(), spec.right.field(right).name())
        }));
        shared.extend(spec.residual.as_ref().map(crate::expression::sql));
        for ((schema, expiry), side) in [&spec.left, &spec.right].into_iter().zip(spec.expiry).zip(["left", "right"]) {
            shared.push(match expiry {
                Some(expiry) => {
                    let name = schema.field(expiry.column).name();
                    let after = match expiry.after_us {
                        0 => String::new(),
                        us if us < 0 => format!(" - {}", span_text(us.saturating_neg())),
                        us => format!(" + {}", span_text(us)),
                    };
                    format!("{side} rows until {name}{after}")
                }
                None => format!("{side} {}", state_text(spec.state_ttl_us, "a row's event time")),
            });
        }
        Description { operator: "join".into(), shared, per_slot: vec![] }
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        state::keys(&self.plan, frame)
    }
}
