//! Fuzzes `catalog`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::catalog::TARGET.run)(bytes));
