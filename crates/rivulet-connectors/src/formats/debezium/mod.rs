//! Debezium: the changes of the rows of a table, in JSON, as Debezium's connectors write them.
//!
//! A change is an object with `before` and `after`, which are the row as it was and as it is, and `op`: `c` for a row
//! that was created, `r` for one that was read at the start, `u` for one that was updated, `d` for one that was
//! deleted. The object may be the member `payload` beside `schema`, as converters with schemas write it.
//!
//! What must hold: a change is taken as a whole or refused as a whole, so that a row is never taken back without its
//! successor.

mod decoder;
mod encoder;

pub(crate) use decoder::DebeziumParser;
pub(crate) use encoder::DebeziumEncoder;

/// The name of the format.
pub(crate) const NAME: &str = "DEBEZIUM";
