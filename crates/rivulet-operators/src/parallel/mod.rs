//! The keyed operators of big queries: one query, parallel instances, each with all rows of its keys.
//!
//! What they have in common, and what must hold:
//! - **Rows of different upstream instances interleave arbitrarily**, out of order within the watermark. Results depend
//!   neither on the interleaving (as multisets), nor on how rows are cut into batches. If an order decides (a rank, a
//!   first value), rows that are equal in it are distinguished by their content, never by their arrival.
//! - **Time is the watermark's.** A window `[start, end)` closes when the watermark reaches `end`. A row that comes for
//!   a closed window is refused as late. The end of the input is the watermark `i64::MAX`.
//! - **A row may retract an equal one** ([`Batch::retracts`](rivulet_dataflow::Batch::retracts)). A retraction carries
//!   the event time of the row that it retracts, and an operator retracts only rows that it has emitted.
//! - **Work is by batch, not by row.** The keys of a batch become numbers in one pass; states are flat arrays by
//!   number, and each aggregate is one loop over the batch; kept rows are stored in columns.
//! - State is exported and imported by the hashes of keys. Rows must go to instances by the same hashes
//!   ([`key_hashes`]). This module does not know how many key groups they fall into.
//!
//! In reading order: [`window`], [`aggregate`], [`join`], [`top_n`], [`over`], [`assign_windows`], [`set_event_time`],
//! [`require_values`]; and [`computed`], which works on rows of a source before any operator sees them.

pub mod window;
pub mod aggregate;
pub mod join;
pub mod top_n;
pub mod over;
pub mod assign_windows;
pub mod computed;
pub mod set_event_time;
pub(crate) mod frame;
pub mod require_values;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod order;
pub(crate) mod parts;
pub(crate) mod rows;
pub(crate) mod saved_rows;
pub(crate) mod sorted_rows;
pub(crate) mod texts;
pub(crate) mod time_to_live;
pub(crate) mod words;

use arrow::datatypes::{DataType, Schema, TimeUnit};

pub use aggregate::{KeyedAggregate, KeyedAggregateSpec};
pub use assign_windows::AssignWindows;
pub use computed::ComputedColumns;
pub use join::{Expiry, KeyedJoin, KeyedJoinKind, KeyedJoinSpec};
pub use keys::key_hashes;
pub use order::SortKey;
pub use over::{KeyedOver, KeyedOverSpec, Lag, OverFrame, Versions};
pub use require_values::RequireValues;
pub use set_event_time::SetEventTime;
pub use top_n::{Ranking, TopN, TopNSpec};
pub use window::{KeyedWindow, KeyedWindowKind, KeyedWindowSpec, Phase, ROWS_MAX};

use crate::PlanError;

/// About how many rows an output batch has.
pub(crate) const OUTPUT_ROWS: usize = 8192;

/// The type of columns with times.
pub(crate) const TIME: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// Fails unless `schema` has all these columns.
fn check_columns(
    schema: &Schema,
    columns: impl IntoIterator<Item = usize>,
    what: &'static str,
) -> Result<(), PlanError> {
    match columns.into_iter().find(|&column| column >= schema.fields().len()) {
        Some(index) => Err(PlanError::Column { index, what, problem: "there is no such column".into() }),
        None => Ok(()),
    }
}

/// Fails unless `column` of `schema` holds times in microseconds.
fn check_time(schema: &Schema, column: usize, what: &'static str) -> Result<(), PlanError> {
    check_columns(schema, [column], what)?;
    match schema.field(column).data_type() {
        found if *found == TIME => Ok(()),
        found => {
            let problem = format!("its type is {found}, not TIMESTAMP");
            Err(PlanError::Column { index: column, what, problem })
        }
    }
}
