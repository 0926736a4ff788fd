//! Behaviour of the planner, seen from outside: statements in, errors or results out.

mod addresses;
mod apart;
mod explain;
mod hints;
mod names;
mod nearby;
mod oracle;
mod query_plans;
mod slt;
mod soup;
mod wrong;
