//! Fuzzes `mqtt_topics`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::mqtt_topics::TARGET.run)(bytes));
