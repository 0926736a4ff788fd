//! SQL queries to optimized relational plans: DataFusion's planner and optimizer, with windows of streams as nodes of
//! their own.
//!
//! The invariant of this crate is an absence: it knows no operator, no source and no connector, only names, columns and
//! functions that it is given in a [`Catalog`]; and no rule of the optimizer is in force that supposes an input with an
//! end.
//!
//! In reading order:
//! - [`planning`]: a syntax tree to a plan ([`plan`]), and what is taken off its top ([`Planned`]);
//! - [`catalog`]: what names stand for ([`Catalog`]);
//! - [`window`]: the node that gives rows their windows ([`WindowTable`], [`WindowKind`]);
//! - [`table_function`]: `TUMBLE(t, DESCRIPTOR(ts), ...)` in FROM;
//! - [`group_window`]: `tumble(ts, ...)` and `count_window(100)` in GROUP BY;
//! - [`functions`]: functions that stand for something until the plan is made ([`functions::proctime`]);
//! - [`calls`]: which functions a query calls ([`calls::calls`]);
//! - [`expression`]: expressions by themselves ([`ExpressionPlanner`]): those of applications;
//! - [`parts`]: the SELECTs of a query one by one, to say which expression of them is wrong;
//! - [`times`]: units, zones and roundings of times, spelled out as calls;
//! - `spelling`: casts with all the details of their types;
//! - `grouping_sets`: GROUPING SETS, ROLLUP and CUBE; `limits`: LIMIT inside of a query; `whole_partitions`: aggregates
//!   `OVER ()`;
//! - `order`: ORDER BY by places; `subqueries`: what the optimizer is to make joins of; `nothing`: conditions that
//!   nothing fulfils, and one row of nothing; `unions`: their columns have names of their own; `conditions`: how far
//!   conditions go down;
//! - `check`: what is refused, because it would be ignored; `clauses`: what the planner below says of clauses, in our
//!   words; `comparisons`: because its types do not go together; `decimals`: numbers beside them; `aliases`: inputs
//!   that have the name of a column; `fields`: columns that are fields of objects;
//!   `walk`: over syntax trees;
//! - [`error`]: what is wrong and where ([`RelationalError`]).

pub mod planning;
pub mod catalog;
pub mod window;
pub mod table_function;
pub mod group_window;
pub mod functions;
pub mod calls;
pub mod expression;
pub mod parts;
mod spelling;
mod aliases;
mod check;
mod clauses;
mod conditions;
mod comparisons;
mod grouping_sets;
mod limits;
mod decimals;
mod fields;
mod nothing;
mod order;
mod subqueries;
pub mod times;
mod unions;
mod walk;
mod whole_partitions;
pub mod error;

pub use catalog::Catalog;
pub use check::check_expression;
pub use error::{KnownColumn, Problem, RelationalError};
pub use expression::ExpressionPlanner;
pub use planning::{Planned, PlannedView, SortColumn, plan, plan_view};
pub use window::{WindowKind, WindowTable};
