//! Fuzzes `burst`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::burst::TARGET.run)(bytes));
