//! Fuzzes `mqtt_broker`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::mqtt_broker::TARGET.run)(bytes));
