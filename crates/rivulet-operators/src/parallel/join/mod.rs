//! Joins of two inputs on equal keys.
//!
//! Both sides keep their rows ([`side`]) under numbers of keys that they share, so one look-up serves a row to find
//! partners and to be found by them. Only columns that are needed are kept. [`operator`] finds pairs, [`state`] exports
//! and imports state.

mod operator;
mod plan;
mod side;
mod state;

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::datatypes::{Field, Schema, SchemaRef};

pub use self::plan::{Expiry, KeyedJoinKind, KeyedJoinSpec};

use self::plan::JoinPlan;
use super::time_to_live::{span_text, state_text};
use super::{check_columns, check_time};
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory, StateFrame};

use crate::PlanError;
use crate::expression::{Expressions, is_condition};

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
                let [one, other] = [left, right].map(|key| format!("'{}' has type {}", key.name(), key.data_type()));
                let hint = "cast one of them to the type of the other";
                return Err(PlanError::operator("join", format!("{one}, but {other}"), hint));
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

    /// Says which sides have at most one row at a time. [`KeyedJoinSpec::state_ttl_us`] does not apply to it: it may be
    /// as old as the query.
    #[must_use]
    pub fn with_one_row(mut self, sides: [bool; 2]) -> Self {
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            plan.keeps = sides;
        }
        self
    }

    /// Says that every instance gets all rows of a side. The rows of the other side are divided by these columns of it,
    /// which are among those that are [kept](KeyedJoin::kept). That is right if no row of the side comes out alone, and
    /// none expires: then all instances have the same ones.
    #[must_use]
    pub fn with_everywhere(mut self, side: usize, divided_by: Vec<usize>) -> Self {
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            plan.everywhere = Some((side, divided_by));
        }
        self
    }

    /// The columns of a side that are kept, ascending.
    pub fn kept(&self, side: usize) -> &[usize] {
        &self.plan.kept[side]
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }
}

/// The columns of left, then those of right.
pub(crate) fn joined_schema(left: &Schema, right: &Schema) -> Schema {
    Schema::new(left.fields().iter().chain(right.fields()).cloned().collect::<Vec<_>>())
}

impl OperatorFactory for KeyedJoin {
    fn create(&self) -> Box<dyn Operator> {
        self.create_instance(0)
    }

    fn create_instance(&self, instance: usize) -> Box<dyn Operator> {
        Box::new(operator::JoinOperator::new(self.plan.clone(), instance == 0))
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
        for (place, side) in ["left", "right"].into_iter().enumerate() {
            let (schema, expiry) = ([&spec.left, &spec.right][place], spec.expiry[place]);
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
                None => format!("{side} {}", state_text(self.plan.state_ttl_us(place), "a row's event time")),
            });
        }
        Description { operator: "join".into(), shared, per_slot: vec![] }
    }

    fn state(&self) -> Option<Address> {
        let spec = &self.plan.spec;
        let equals = if self.plan.nulls_are_equal { "is" } else { "=" };
        let key = |&(left, right): &(usize, usize)| {
            format!("{} {equals} {}", spec.left.field(left).name(), spec.right.field(right).name())
        };
        // Saved, so they stay as they are.
        let kind = match spec.kind {
            KeyedJoinKind::Inner => "Inner",
            KeyedJoinKind::Left => "Left",
            KeyedJoinKind::Right => "Right",
            KeyedJoinKind::Full => "Full",
            KeyedJoinKind::LeftSemi => "LeftSemi",
            KeyedJoinKind::LeftAnti => "LeftAnti",
        };
        let rest = vec![kind.to_owned()];
        Some(Address { keys: spec.keys.iter().map(key).collect(), rest, ..Address::of(state::OPERATOR) })
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        state::keys(&self.plan, frame)
    }

    fn everywhere(&self, frame: &StateFrame) -> Option<BooleanArray> {
        state::everywhere(&self.plan, frame)
    }
}
