//! Code that tests of several crates share.
//!
//! - [`group`]: an application's group stepped by a test, with a clock that the test moves ([`TestGroup`]);
//! - [`page`]: generated pages of the book;
//! - [`answer`]: results in a form that can be compared, and the known answers of NEXMark ([`Answer`], [`Expected`]);
//! - [`corpus`]: the streams for which these are known;
//! - [`comparison`]: small queries of many kinds and the answers of another engine;
//! - [`random`]: random applications, parameters and events ([`random::RandomApplication`]).
//!
//! The invariant: no product crate depends on this one outside of tests.

pub mod answer;
pub mod comparison;
pub mod corpus;
pub mod group;
pub mod page;
pub mod random;

pub use answer::{Answer, Expected};
pub use group::TestGroup;
