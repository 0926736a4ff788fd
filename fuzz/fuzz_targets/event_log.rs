//! Fuzzes `event_log`; see there.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (rivulet_fuzz::targets::event_log::TARGET.run)(bytes));
