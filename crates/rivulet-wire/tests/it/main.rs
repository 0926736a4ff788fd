//! The wire as its users see it.

mod elements;
mod sessions;
