//! SQL queries to optimized relational plans: DataFusion's planner and optimizer, with windows of streams as nodes of
//! their own.
//!
//! The invariant of this crate: it knows no operator, no source and no connector, only names, columns and functions
//! from a [`Catalog`]; and it uses no rule of the optimizer that assumes an input with an end.
//!
//! In reading order:
//! - [`planning`]: a syntax tree to a plan ([`plan`]), and what is removed from its top ([`Planned`]);
//! - [`catalog`]: what names stand for ([`Catalog`]);
//! - [`window`]: the node that gives rows their windows ([`WindowTable`], [`WindowKind`]);
//! - [`table_function`]: `TUMBLE(t, DESCRIPTOR(ts), ...)` in FROM;
//! - [`unnest`]: `UNNEST(array)` in FROM, and the node for it ([`Elements`]);
//! - [`versions`]: `FOR SYSTEM_TIME AS OF`, and the node for it ([`Versions`]);
//! - [`matches`]: the node for the matches of a row pattern ([`Matches`], [`RowPattern`]);
//! - [`group_window`]: `tumble(ts, ...)` and `count_window(100)` in GROUP BY;
//! - [`functions`]: functions that stand for something until the plan is made ([`functions::proctime`]);
//! - [`calls`]: which functions a query calls ([`calls::calls`]);
//! - [`expression`]: single expressions ([`ExpressionPlanner`]), as applications have them;
//! - [`parts`]: the SELECTs of a query one by one, to find the expression that is wrong;
//! - `times`: units, zones and roundings of times, spelled out as calls, and elements of arrays (`subscripts`);
//! - `spelling`: casts with all the details of their types; `row_values`: comparisons of rows, part by part;
//!   `within_group`: the order of an aggregate's values, put into its call; `similar`: patterns of SIMILAR TO;
//! - `grouping_sets`: GROUPING SETS, ROLLUP and CUBE; `limits`: LIMIT inside a query; `whole_partitions`: aggregates
//!   `OVER ()`; `earlier_frames`: frames that end before their own row;
//! - `order`: ORDER BY by the number of a column; `subqueries`: subqueries that the optimizer turns into joins;
//!   `nothing`: conditions that no row fulfils, and one row of nothing; `unions`: their columns have names of their
//!   own; `conditions`: how far conditions are pushed down; `null_safe`: keys of joins for which null equals null;
//! - `check`: refuses what would be ignored; `clauses`: errors about clauses, in our words; `located`: the place
//!   of an error; `comparisons`: refuses
//!   comparisons of types that do not go together; `decimals`: number literals beside decimals; `aliases`: inputs that
//!   have the name of a column; `fields`: columns that are fields of objects; `names`: computed columns that would have
//!   one name; `stars`: all fields of a row; `walk`: walks over syntax trees;
//! - `nodes`: what our nodes of plans have in common;
//! - [`error`]: what is wrong and where ([`RelationalError`]).

pub mod planning;
pub mod catalog;
mod nodes;
pub mod window;
pub mod table_function;
pub mod unnest;
pub mod versions;
pub mod matches;
pub mod group_window;
pub mod functions;
pub mod calls;
pub mod expression;
pub mod parts;
mod row_values;
mod within_group;
mod similar;
mod spelling;
mod aliases;
mod check;
mod clauses;
mod conditions;
mod comparisons;
mod grouping_sets;
mod limits;
mod located;
mod marks;
mod decimals;
mod fields;
mod names;
mod nothing;
mod null_safe;
mod order;
mod stars;
mod subqueries;
mod subscripts;
mod times;
mod unions;
mod walk;
mod whole_partitions;
mod earlier_frames;
pub mod error;

pub use catalog::Catalog;
pub use check::check_expression;
pub use error::{KnownColumn, Problem, RelationalError};
pub use expression::ExpressionPlanner;
pub use matches::{Matches, RowPattern};
pub use names::written;
pub use planning::{Planned, PlannedView, SortColumn, plan, plan_view};
pub use spelling::spell_out_times;
pub use subscripts::{member_of, row_of_parts};
pub use unnest::{Elements, columns_of};
pub use versions::Versions;
pub use whole_partitions::are_partitions;
pub use window::{WindowKind, WindowTable};
