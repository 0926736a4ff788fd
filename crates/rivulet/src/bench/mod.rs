//! `rivulet bench`: how much this machine carries, measured from outside: a server in a process of its own, driven over its
//! ordinary interfaces by a generator in another.

pub mod many;
mod process;
mod usage;

pub use usage::Usage;

pub use many::{ManyOptions, ManyReport, Model, StepReport, Variant, run_many};
