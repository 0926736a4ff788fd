//! `rivulet bench`: how much this machine carries. Small queries are measured from outside: a server in a process of
//! its own, driven over its ordinary interfaces by a generator in another. Big queries are measured each in a process
//! of its own.

mod policies;
pub mod many;
pub mod bulk;
pub mod burst;
pub mod nexmark;
pub mod hibench;
pub mod riot;
pub mod debs;
pub mod recovery;
pub mod relay;
pub mod streams;
pub mod tenants;
pub mod webhooks;
mod load;
mod process;
mod received;
pub mod report;
mod setting;
mod usage;

pub use usage::Usage;

pub(crate) use bulk::durability;
pub(crate) use load::GENERATOR_USERS;
pub use many::{Door, ManyOptions, ManyReport, Model, StepReport, Variant, run_many};
pub(crate) use policies::policy;
pub(crate) use setting::setting;
