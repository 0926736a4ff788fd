//! Code that tests of several crates share.
//!
//! - [`group`]: an application's group stepped by a test, with a clock that the test moves ([`TestGroup`]);
//! - [`page`]: generated pages of the book;
//! - [`random`]: random applications, parameters and events ([`random::RandomApplication`]).
//!
//! The invariant: no product crate depends on this one outside of tests.

pub mod group;
pub mod page;
pub mod random;

pub use group::TestGroup;
