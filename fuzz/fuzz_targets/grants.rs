//! Fuzzes `grants`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::grants::TARGET.run)(bytes));
