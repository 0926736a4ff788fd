//! The watermark of several streams together: the lowest of those that have not ended.

/// The watermarks of several channels.
#[derive(Debug)]
pub struct Watermarks {
    /// The watermark of each channel, `i64::MIN` before the first; `None` if the channel has ended.
    channels: Vec<Option<i64>>,
    /// The highest common watermark so far.
    reached_us: Option<i64>,
}

impl Watermarks {
    /// Makes the watermarks of this many channels, all open and before their first watermark.
    pub fn new(channels: usize) -> Self {
        Self { channels: vec![Some(i64::MIN); channels], reached_us: None }
    }

    /// Sets the common watermark that is already reached, whatever the channels say.
    pub fn begin_at(&mut self, reached_us: Option<i64>) {
        self.reached_us = reached_us;
    }

    /// Sets the watermark of a channel. A lower watermark than before is ignored.
    pub fn advance(&mut self, channel: usize, watermark_us: i64) {
        if let Some(before_us) = &mut self.channels[channel] {
            *before_us = watermark_us.max(*before_us);
        }
    }

    /// Marks a channel as ended.
    pub fn end(&mut self, channel: usize) {
        self.channels[channel] = None;
    }

    /// Whether a channel has ended.
    pub fn is_ended(&self, channel: usize) -> bool {
        self.channels[channel].is_none()
    }

    /// Whether all channels have ended.
    pub fn has_ended(&self) -> bool {
        self.channels.iter().all(Option::is_none)
    }

    /// The common watermark, if it has risen since the last call.
    pub fn advanced(&mut self) -> Option<i64> {
        let lowest_us = self.channels.iter().copied().flatten().min()?;
        if lowest_us == i64::MIN || self.reached_us.is_some_and(|reached_us| lowest_us <= reached_us) {
            return None;
        }
        self.reached_us = Some(lowest_us);
        self.reached_us
    }

    /// The highest common watermark so far.
    pub fn reached_us(&self) -> Option<i64> {
        self.reached_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_counts_and_time_never_goes_back() {
        let mut watermarks = Watermarks::new(2);
        watermarks.advance(0, 10);
        assert_eq!(watermarks.advanced(), None, "nothing is known of the other");
        watermarks.advance(1, 5);
        assert_eq!(watermarks.advanced(), Some(5));
        watermarks.advance(1, 3);
        watermarks.advance(0, 20);
        assert_eq!(watermarks.advanced(), None);
        watermarks.advance(1, 30);
        assert_eq!((watermarks.advanced(), watermarks.reached_us()), (Some(20), Some(20)));
    }

    #[test]
    fn the_end_is_reached_when_all_have_ended() {
        let mut watermarks = Watermarks::new(2);
        watermarks.advance(1, 4);
        watermarks.end(0);
        watermarks.end(0);
        assert_eq!((watermarks.advanced(), watermarks.has_ended()), (Some(4), false));
        watermarks.end(1);
        assert!(watermarks.has_ended());
    }
}
