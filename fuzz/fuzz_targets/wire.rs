//! Fuzzes `wire`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::wire::TARGET.run)(bytes));
