//! NEXMark: the queries over the stream of an online auction, the streams for which their answers are known, and those
//! answers.
//!
//! The SQL is in `nexmark/` beside this crate's `src/`. An independent engine computed the answers (`cargo xtask
//! oracle`), and they are committed; comparing with them does not need that engine.
//!
//! - [`queries`]: the queries, and the script of one over a generator or over files;
//! - [`corpus`]: streams of known content, and how they are written to files;
//! - [`answer`]: results in a form that can be compared, and the known ones.

pub mod answer;
pub mod corpus;
pub mod queries;

pub use answer::{Answer, Expected};
pub use corpus::{CORPORA, Corpus, FileFormat, Stream, write_side_input, write_stream};
pub use queries::{Input, Output, QUERIES, Query, query};
