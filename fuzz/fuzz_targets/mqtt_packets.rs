//! Fuzzes `mqtt_packets`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::mqtt_packets::TARGET.run)(bytes));
