//! Behaviour of the planner, seen from outside: statements in, errors or results out.

mod explain;
mod slt;
mod soup;
