//! The results of the engine: they are counted, and their latency is measured if they have the time of their event.

use crate::latency::LatencyHistogram;
use crate::sender::epoch_us;

/// The field with the time of an event.
const TIME: &[u8] = b"\"ts\":";

/// Messages received from an engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Results {
    pub(super) received: u64,
    /// Payload bytes.
    pub(super) bytes: u64,
    /// The time from the event, which the result repeats, until now.
    pub(super) latency: LatencyHistogram,
}

impl Results {
    /// Counts one message.
    pub(super) fn take(&mut self, payload: &[u8]) {
        self.received += 1;
        self.bytes += payload.len() as u64;
        if let Some(time_us) = time_us(payload) {
            self.latency.record_us(epoch_us() - time_us);
        }
    }
}

/// Returns the time in the field `ts` of a JSON object, which is in milliseconds since the epoch, as microseconds.
fn time_us(payload: &[u8]) -> Option<i64> {
    let start = payload.windows(TIME.len()).position(|window| window == TIME)? + TIME.len();
    let length = payload[start..].iter().position(|byte| b",}".contains(byte))?;
    let milliseconds: f64 = std::str::from_utf8(&payload[start..start + length]).ok()?.trim().parse().ok()?;
    Some((milliseconds * 1e3).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_as_engines_write_them() {
        for payload in [
            &br#"{"ts":1763712345678.901,"value":1}"#[..],
            br#"{"device":"4","ts": 1763712345678.901}"#,
            br#"{"ts":1.763712345678901E12}"#,
        ] {
            assert_eq!(time_us(payload), Some(1_763_712_345_678_901));
        }
        for payload in [&b""[..], b"{\"ts\":", b"{\"ts\":\"noon\"}", b"{\"action\":\"cool\"}"] {
            assert_eq!(time_us(payload), None);
        }
    }

    #[test]
    fn messages_without_a_time_are_counted_all_the_same() {
        let mut results = Results::default();
        results.take(b"{\"action\":\"cool\"}");
        results.take(format!("{{\"ts\":{}}}", epoch_us() as f64 / 1e3 - 5.0).as_bytes());
        assert_eq!((results.received, results.latency.count()), (2, 1));
        assert!(results.latency.percentile_us(50.0) >= 4_900);
    }
}
