//! One test program for the crate: each links DataFusion.

mod aggregates_oracle;
mod allocations;
mod common;
mod end_of_silence;
mod history_behind_window;
mod join_model;
mod lookup_model;
mod parallel;
mod pattern_model;
mod slot_host;
mod window_behaviour;
mod window_model;
mod windows_over_windows;
