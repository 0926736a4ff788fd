//! Bursts: tasks of a big query that run in other processes for a while, the burst workers.
//!
//! In reading order: `moves`: what of a query may go, how it gets there, and whether that pays.

pub(crate) mod moves;
