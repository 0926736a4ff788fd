//! Fuzzes `mqtt_journal`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::mqtt_journal::TARGET.run)(bytes));
