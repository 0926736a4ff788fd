//! How time is cut, and the arithmetic of windows that follow from a row's time alone.

use arrow::datatypes::Schema;

use crate::PlanError;
use crate::parallel::check_time;
use crate::parallel::time_to_live::span_text;
use crate::window::check_panes;

/// How time is cut. Lengths are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedWindowKind {
    /// Windows one after the other.
    Tumble {
        /// The length.
        width_us: i64,
        /// By how much windows begin later than at a multiple of their length.
        offset_us: i64,
    },
    /// Overlapping windows (or windows with gaps, if the slide is longer than the width).
    Hop {
        /// The distance between starts.
        slide_us: i64,
        /// The length.
        width_us: i64,
        /// By how much windows begin later than at a multiple of the slide.
        offset_us: i64,
    },
    /// Windows that grow by a step until they have their whole width, and then begin anew.
    Cumulate {
        /// By how much each window is longer than the previous one. It divides the width.
        step_us: i64,
        /// The length of the longest.
        width_us: i64,
        /// By how much windows begin later than at a multiple of the width.
        offset_us: i64,
    },
    /// From a row of a key to its last row before a pause.
    Session {
        /// The length of the pause. A session ends this long after its last row.
        gap_us: i64,
    },
    /// Rows carry their window, because they come from another window operator.
    Attached {
        /// The column with the start.
        start: usize,
        /// The column with the end.
        end: usize,
    },
    /// Tumbling windows by the clock instead of event time.
    ProcessingTumble {
        /// The length.
        width_us: i64,
    },
    /// A number of rows of a key, in the order in which they come to an instance. Rows of different upstream instances
    /// have no fixed order.
    Count {
        /// The number of rows of a window.
        rows: u32,
        /// How many rows later the next window begins: at most as many as a window has.
        slide_rows: u32,
    },
}

impl KeyedWindowKind {
    /// The window as `EXPLAIN` shows it.
    pub(crate) fn text(&self, input: &Schema) -> String {
        let seconds = span_text;
        let offset = |us: i64| if us == 0 { String::new() } else { format!(", offset {}", seconds(us)) };
        match *self {
            Self::Tumble { width_us, offset_us } => format!("tumble({}{})", seconds(width_us), offset(offset_us)),
            Self::Hop { slide_us, width_us, offset_us } => {
                format!("hop({}, {}{})", seconds(slide_us), seconds(width_us), offset(offset_us))
            }
            Self::Cumulate { step_us, width_us, offset_us } => {
                format!("cumulate({}, {}{})", seconds(step_us), seconds(width_us), offset(offset_us))
            }
            Self::Session { gap_us } => format!("session({})", seconds(gap_us)),
            Self::Attached { start, end } => {
                format!("windows of the rows ({}, {})", input.field(start).name(), input.field(end).name())
            }
            Self::ProcessingTumble { width_us } => format!("tumble({}) by the clock", seconds(width_us)),
            Self::Count { rows, slide_rows } if rows == slide_rows => format!("count_window({rows})"),
            Self::Count { rows, slide_rows } => format!("count_window({rows}, {slide_rows})"),
        }
    }

    /// Checks the lengths, and the columns from which they are read.
    ///
    /// # Errors
    /// Lengths that no window can have, windows of too many panes, columns that hold no times.
    pub fn check(&self, input: &Schema) -> Result<(), PlanError> {
        let fail = |problem: &str, hint: &str| Err(PlanError::operator("window", problem, hint));
        match *self {
            Self::Attached { start, end } => {
                check_time(input, start, "the window's start")?;
                return check_time(input, end, "the window's end");
            }
            Self::Count { rows, slide_rows } => {
                return match (1..=rows).contains(&slide_rows) && rows <= ROWS_MAX {
                    true => Ok(()),
                    false => fail(
                        "the slide is not between 1 and the number of rows, or that is more than a million",
                        "write for example count_window(100, 10): rows, then slide",
                    ),
                };
            }
            Self::Cumulate { step_us, width_us, .. } if step_us > 0 && width_us % step_us != 0 => {
                return fail(
                    "the width is not a multiple of the step",
                    "write for example a step of 1 minute and a width of 1 hour",
                );
            }
            _ => {}
        }
        let lengths = match *self {
            Self::Tumble { width_us, .. } | Self::ProcessingTumble { width_us } => [width_us, width_us],
            Self::Hop { slide_us, width_us, .. } => [slide_us, width_us],
            Self::Cumulate { step_us, width_us, .. } => [step_us, width_us],
            Self::Session { gap_us } => [gap_us, gap_us],
            Self::Attached { .. } | Self::Count { .. } => [1, 1],
        };
        if !lengths.iter().all(|length| (1..=LENGTH_US_MAX).contains(length)) {
            return fail(
                "a length is not between 1 microsecond and 100 years",
                "write for example INTERVAL '10 seconds'",
            );
        }
        let panes = Bounds::of(self).map_or(1, |bounds| bounds.width_us / bounds.pane_us);
        Ok(check_panes(panes, false)?)
    }
}

/// The most rows of a window.
pub const ROWS_MAX: u32 = 1_000_000;

/// The longest window: a hundred years. So ends of windows stay far from the ends of time.
const LENGTH_US_MAX: i64 = 100 * 366 * 24 * 3600 * 1_000_000;

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
