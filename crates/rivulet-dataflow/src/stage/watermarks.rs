//! The watermark of several streams together: the lowest of those that are not idle.

/// The watermarks of several channels.
#[derive(Debug)]
pub struct Watermarks {
    channels: Vec<Channel>,
    /// The highest common watermark so far.
    reached_us: Option<i64>,
    open: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Channel {
    /// The watermark; `i64::MIN` before the first.
    At(i64),
    /// The channel is idle, and nothing waits for it. The watermark that it had.
    Idle(i64),
    /// The channel has ended.
    Ended,
}

impl Watermarks {
    /// Makes the watermarks of this many channels, all open and before their first watermark.
    pub fn new(channels: usize) -> Self {
        Self { channels: vec![Channel::At(i64::MIN); channels], reached_us: None, open: channels }
    }

    /// Sets the common watermark that is already reached, whatever the channels say.
    pub fn begin_at(&mut self, reached_us: Option<i64>) {
        self.reached_us = reached_us;
    }

    /// Sets the watermark of a channel, which is not idle any more. A lower watermark than before is ignored.
    pub fn advance(&mut self, channel: usize, watermark_us: i64) {
        self.channels[channel] = match self.channels[channel] {
            Channel::At(before) | Channel::Idle(before) => Channel::At(before.max(watermark_us)),
            Channel::Ended => Channel::Ended,
        };
    }

    /// Marks a channel as idle. Returns whether it was not idle before.
    pub fn idle(&mut self, channel: usize) -> bool {
        let Channel::At(watermark_us) = self.channels[channel] else { return false };
        self.channels[channel] = Channel::Idle(watermark_us);
        true
    }

    /// Marks a channel as not idle.
    pub fn wake(&mut self, channel: usize) {
        if let Channel::Idle(watermark_us) = self.channels[channel] {
            self.channels[channel] = Channel::At(watermark_us);
        }
    }

    /// Marks a channel as ended.
    pub fn end(&mut self, channel: usize) {
        if self.channels[channel] != Channel::Ended {
            self.channels[channel] = Channel::Ended;
            self.open -= 1;
        }
    }

    /// Whether a channel has ended.
    pub fn is_ended(&self, channel: usize) -> bool {
        self.channels[channel] == Channel::Ended
    }

    /// Whether all channels have ended.
    pub fn has_ended(&self) -> bool {
        self.open == 0
    }

    /// Whether all open channels are idle.
    pub fn is_idle(&self) -> bool {
        self.open > 0 && !self.channels.iter().any(|channel| matches!(channel, Channel::At(_)))
    }

    /// The common watermark, if it has risen since the last call.
    pub fn advanced(&mut self) -> Option<i64> {
        let of = |wanted: fn(&Channel) -> Option<i64>| self.channels.iter().filter_map(wanted);
        let waited_for = of(|channel| match channel {
            Channel::At(watermark_us) => Some(*watermark_us),
            Channel::Idle(_) | Channel::Ended => None,
        });
        // If all channels are idle, the furthest one counts: nothing holds it up.
        let furthest = || {
            of(|channel| match channel {
                Channel::Idle(watermark_us) => Some(*watermark_us),
                Channel::At(_) | Channel::Ended => None,
            })
            .max()
        };
        let lowest = waited_for.min().or_else(furthest)?;
        if lowest == i64::MIN || self.reached_us.is_some_and(|reached_us| lowest <= reached_us) {
            return None;
        }
        self.reached_us = Some(lowest);
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
    fn who_is_silent_holds_nobody_up_and_comes_back() {
        let mut watermarks = Watermarks::new(2);
        watermarks.advance(0, 10);
        watermarks.idle(1);
        assert_eq!(watermarks.advanced(), Some(10));
        watermarks.advance(0, 12);
        watermarks.idle(0);
        assert_eq!((watermarks.is_idle(), watermarks.advanced()), (true, Some(12)));
        watermarks.wake(1);
        watermarks.advance(0, 50);
        assert_eq!(watermarks.advanced(), None, "the one that woke has not said how far it is");
        watermarks.advance(1, 7);
        assert_eq!(watermarks.advanced(), None, "its time lies behind what was promised");
        watermarks.advance(1, 40);
        assert_eq!(watermarks.advanced(), Some(40));
    }

    #[test]
    fn the_end_is_reached_when_all_have_ended() {
        let mut watermarks = Watermarks::new(2);
        watermarks.advance(1, 4);
        watermarks.end(0);
        watermarks.end(0);
        assert_eq!((watermarks.advanced(), watermarks.has_ended()), (Some(4), false));
        watermarks.end(1);
        assert!(watermarks.has_ended() && !watermarks.is_idle());
    }
}
