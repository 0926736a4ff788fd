//! Stream operators over Arrow and DataFusion expressions.
//!
//! Every operator here serves all queries of a group at once: rows carry their slot, parameters are gathered by slot as
//! columns, and state is kept as columns by slot. Expressions are DataFusion's physical expressions. Windows and
//! aggregates are our own, because each query has its own event clock.
//!
//! The invariant of this crate: no operator spawns, sleeps, reads a clock or opens a socket.
//!
//! In reading order:
//! - [`application`]: what the engine runs, whatever its language ([`application::Application`]);
//! - [`expression`]: compiled expressions evaluated over rows and parameters ([`Expressions`]);
//! - [`assign_time`]: where a row's event time comes from, and the limit on the future ([`AssignTime`]);
//! - [`filter`] and [`project`]: WHERE, HAVING and SELECT ([`Filter`], [`Project`]);
//! - [`aggregate`]: the aggregate functions, their states and how states merge ([`AggregateFunction`],
//!   [`AggregateSpec`]);
//! - [`window`]: windows by time, session and count, with a watermark per slot ([`WindowAggregate`], [`WindowSpec`]);
//! - [`rank`]: the rank of a row among the rows of its window ([`Rank`]);
//! - [`change_only`]: EMIT ON CHANGE ([`ChangeOnly`]);
//! - [`lookup`]: rows of a reference table for each event ([`Lookup`], [`Table`]);
//! - [`history`]: what a row says about the rows before it ([`History`]);
//! - [`join`]: joins of two inputs ([`Join`]);
//! - [`route`]: to which outputs a row goes ([`Route`]);
//! - [`matching`]: which queries on one topic a row can concern ([`Match`], [`MatchIndex`]);
//! - [`pattern`]: sequences of rows, MATCH_RECOGNIZE ([`PatternMatch`], [`PatternSpec`]);
//! - [`unnest`]: several rows from one ([`Unnest`]);
//! - [`model`]: trees and linear models that are read from files ([`Model`]);
//! - [`parallel`]: the keyed operators of big queries, whose instances run side by side ([`parallel::KeyedWindow`],
//!   ...);
//! - [`error`]: what a plan can get wrong ([`PlanError`]).
//!
//! Each operator file holds a factory (plain public fields or a checked constructor), which implements
//! [`rivulet_dataflow::OperatorFactory`] and serves any number of groups.

pub mod application;
pub mod expression;
pub mod assign_time;
pub mod filter;
pub mod project;
pub mod aggregate;
pub mod window;
pub mod rank;
pub mod change_only;
pub mod lookup;
pub mod history;
pub mod join;
pub mod route;
pub mod matching;
pub mod pattern;
pub mod elements;
pub mod model;
pub mod unnest;
pub mod parallel;
pub mod error;
mod keyed;
mod paged;
mod row_bytes;
#[cfg(test)]
mod testing;

pub use aggregate::{AggregateFunction, AggregateSpec, DECIMAL_DIGITS, LAST_VALUES_MAX};
pub use assign_time::{AssignTime, INPUT_COLUMN, InputTime};
pub use change_only::ChangeOnly;
pub use elements::{ElementColumn, each_element, each_member, element_number, element_text};
pub use error::{LengthError, PlanError};
pub use expression::{Expressions, NamedExpression};
pub use filter::Filter;
pub use history::{History, HistoryColumn, HistoryFunction};
pub use join::{JOIN_ROWS_MAX, Join, JoinKind, JoinSide, JoinSpec, Offset};
pub use lookup::{
    EARTH_RADIUS_M, Find, Lookup, LookupResults, LookupSpec, Nearby, OrderKey, Table, TableAggregate, TableFunction,
};
pub use matching::{Comparison, Match, MatchIndex, MatchKey, match_keys};
pub use model::Model;
pub use pattern::{
    Aggregate as PatternAggregate, KeyedPattern, MatchCondition, Navigation, Pattern, PatternMatch, PatternSpec,
    PatternVariable, Skip, Source,
};
pub use project::Project;
pub use rank::{Rank, RankFunction, RankSpec};
pub use route::{OUTPUT_BITS_COLUMN, Route};
pub use unnest::Unnest;
pub use window::{Lengths, WindowAggregate, WindowAggregateSpec, WindowSpec, check_lengths};
