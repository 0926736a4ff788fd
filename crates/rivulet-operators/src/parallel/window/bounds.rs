//! The arithmetic of windows that follow from a row's time alone.

use super::KeyedWindowKind;

/// The bound of event times, some 70,000 years from the epoch in both directions. Within it no sum of times and lengths
/// leaves 64 bits.
pub(crate) const TIME_US_MAX: i64 = i64::MAX / 4;

/// Windows `[start, end)` whose starts are a slide apart. Each is as long as its width or, if windows grow, at most
/// that long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The distance between starts.
    slide_us: i64,
    pub(crate) width_us: i64,
    offset_us: i64,
    /// By how much windows grow; for other windows, their width.
    step_us: i64,
    /// The length of a pane: every window holds a pane as a whole or not at all.
    pub(crate) pane_us: i64,
}

impl Bounds {
    /// The bounds of windows of this kind, if they follow from a row's time.
    pub(crate) fn of(kind: &KeyedWindowKind) -> Option<Self> {
        Some(match *kind {
            KeyedWindowKind::Tumble { width_us, offset_us } => {
                Self { slide_us: width_us, width_us, offset_us, step_us: width_us, pane_us: width_us }
            }
            KeyedWindowKind::Hop { slide_us, width_us, offset_us } => {
                Self { slide_us, width_us, offset_us, step_us: width_us, pane_us: divisor(slide_us, width_us) }
            }
            KeyedWindowKind::Cumulate { step_us, width_us, offset_us } => {
                Self { slide_us: width_us, width_us, offset_us, step_us, pane_us: step_us }
            }
            _ => return None,
        })
    }

    /// Whether a window is one pane.
    pub(crate) fn is_tumbling(&self) -> bool {
        self.pane_us == self.width_us && self.slide_us == self.width_us
    }

    pub(crate) fn is_growing(&self) -> bool {
        self.step_us < self.width_us
    }

    /// The start of the pane that holds this time.
    pub(crate) fn pane_start(&self, time_us: i64) -> i64 {
        time_us - (time_us - self.offset_us).rem_euclid(self.pane_us)
    }

    /// The end of the first window that holds the pane which begins here, if any window does.
    pub(crate) fn first_end(&self, pane_start_us: i64) -> i64 {
        let pane_end_us = pane_start_us + self.pane_us;
        match self.is_growing() {
            true => pane_end_us,
            // The next end of a window. Ends are a slide apart.
            false => pane_end_us + (self.offset_us + self.width_us - pane_end_us).rem_euclid(self.slide_us),
        }
    }

    /// The same, but only for windows that end after `closed_us`.
    pub(crate) fn first_end_after(&self, pane_start_us: i64, closed_us: i64) -> i64 {
        let end_us = self.first_end(pane_start_us);
        if end_us > closed_us {
            return end_us;
        }
        let step_us = self.next_end(0);
        end_us + ((closed_us - end_us) / step_us + 1) * step_us
    }

    /// The end of the next window.
    pub(crate) fn next_end(&self, end_us: i64) -> i64 {
        end_us + if self.is_growing() { self.step_us } else { self.slide_us }
    }

    /// The start of the window that ends here.
    pub(crate) fn start_of(&self, end_us: i64) -> i64 {
        match self.is_growing() {
            true => end_us - 1 - (end_us - 1 - self.offset_us).rem_euclid(self.width_us),
            false => end_us - self.width_us,
        }
    }

    /// The windows that hold this time, by ascending end.
    pub(crate) fn windows_of(&self, time_us: i64, mut each: impl FnMut(i64, i64)) {
        let mut end_us = self.first_end(self.pane_start(time_us));
        loop {
            let start_us = self.start_of(end_us);
            if start_us > time_us {
                return;
            }
            each(start_us, end_us);
            end_us = self.next_end(end_us);
        }
    }
}

/// The greatest common divisor.
pub(super) fn divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn windows_are_those_that_hold_the_time(
            time in -200i64..200, slide in 1i64..20, width in 1i64..20, offset in -30i64..30, steps in 1i64..6,
        ) {
            let hop = Bounds::of(&KeyedWindowKind::Hop { slide_us: slide, width_us: width, offset_us: offset }).unwrap();
            let mut found = Vec::new();
            hop.windows_of(time, |start, end| found.push((start, end)));
            let all = (-300..300).map(|n| offset + n * slide).map(|start| (start, start + width));
            let expected: Vec<_> = all.filter(|(start, end)| (*start..*end).contains(&time)).collect();
            prop_assert_eq!(found, expected);

            let kind = KeyedWindowKind::Cumulate { step_us: slide, width_us: slide * steps, offset_us: offset };
            let cumulate = Bounds::of(&kind).unwrap();
            let mut found = Vec::new();
            cumulate.windows_of(time, |start, end| found.push((start, end)));
            let all = (-300..300).map(|n| offset + n * slide * steps);
            let all = all.flat_map(|start| (1..=steps).map(move |step| (start, start + step * slide)));
            let expected: Vec<_> = all.filter(|(start, end)| (*start..*end).contains(&time)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
