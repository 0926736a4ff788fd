//! Fuzzes `nested_payloads`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::nested_payloads::TARGET.run)(bytes));
