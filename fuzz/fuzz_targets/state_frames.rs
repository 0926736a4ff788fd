//! Fuzzes `state_frames`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::state_frames::TARGET.run)(bytes));
