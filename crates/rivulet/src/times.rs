//! Times and spans of time, in what people read.

pub(crate) use rivulet_dataflow::times::{at, span};

/// How long ago a time is, in whole seconds or more.
pub(crate) fn ago(now_us: i64, time_us: i64) -> String {
    format!("{} ago", span(now_us.saturating_sub(time_us) / 1_000_000 * 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_a_second_ago_is_now() {
        assert_eq!(ago(1_900_000, 1_000_000), "0 seconds ago");
        assert_eq!(ago(121_000_000, 500_000), "2 minutes ago");
    }
}
