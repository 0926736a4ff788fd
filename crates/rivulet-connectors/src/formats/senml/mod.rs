//! SenML in JSON: Sensor Measurement Lists (RFC 8428), and the older form `{"e":[...],"bt":...}` of its drafts.
//!
//! A pack becomes rows in one of two ways: a row for each record ([`rows`]), or one row for the whole pack with a
//! column for each record name ([`pivot`]).

mod encoder;
mod pack;
mod pivot;
mod rows;

pub(crate) use encoder::SenMlEncoder;
pub(crate) use pivot::PivotParser;
pub(crate) use rows::{COLUMNS, RecordParser};

/// How long a record's name (base name included) or unit may be. A base name is repeated for every record, so without
/// a bound a pack could give many times its size.
pub(crate) const NAME_BYTES_MAX: usize = 512;
