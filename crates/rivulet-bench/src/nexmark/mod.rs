//! NEXMark: the queries over the stream of an online auction. Their SQL is in `nexmark/` beside this crate's `src/`.
//!
//! - [`queries`]: the queries, and the script of one over a generator or over files;
//! - [`corpus`]: the stream, and how it is written to files.

pub mod corpus;
pub mod queries;

pub use corpus::{FileFormat, Stream, write_side_input, write_stream};
pub use queries::{BURST_QUERIES, Input, Output, QUERIES, Query, query};
