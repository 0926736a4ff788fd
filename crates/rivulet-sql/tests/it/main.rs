//! Behaviour of the planner, seen from outside: statements in, errors or results out.

mod explain;
mod nearby;
mod slt;
mod soup;
