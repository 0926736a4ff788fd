//! Groups, tasks and workers with a decoder of digits, an operator that numbers the events of each query, and a sink
//! that keeps what it is given.

mod away;
mod checkpoints;
mod cut;
mod examine;
mod flows;
mod groups;
mod moves;
mod policies;
mod silences;
mod spill;
mod support;
mod shared_slots;
