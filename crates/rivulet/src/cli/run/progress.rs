//! How far a query is, on standard error, while somebody looks.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use rivulet_runtime::FlowReport;

use crate::bench::streams::report::grouped as count;
use crate::counted::noun;
use crate::run::RunReport;

/// Nothing is shown of what is over sooner.
const SHOWN_FROM: Duration = Duration::from_millis(500);

/// A line that is written over and over.
pub(super) struct Progress {
    begun: Instant,
    is_terminal: bool,
    is_quiet: bool,
    is_shown: bool,
    last: (Instant, u64),
    rate: f64,
}

impl Progress {
    pub(super) fn new(is_quiet: bool) -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            is_terminal: io::stderr().is_terminal(),
            is_quiet,
            is_shown: false,
            last: (now, 0),
            rate: 0.0,
        }
    }

    pub(super) fn show(&mut self, report: &FlowReport) {
        let now = Instant::now();
        let seconds = (now - self.last.0).as_secs_f64();
        if seconds >= 0.5 {
            self.rate = (report.rows_in - self.last.1) as f64 / seconds;
            self.last = (now, report.rows_in);
        }
        if self.is_quiet || !self.is_terminal || now - self.begun < SHOWN_FROM {
            return;
        }
        let part = match report.progress {
            Some((done, all)) => format!("{:3.0} %  ", 100.0 * done as f64 / all as f64),
            None => String::new(),
        };
        let rows = format!(
            "{} {} read, {} a second, {} written",
            count(report.rows_in),
            noun(report.rows_in, "row"),
            count(self.rate as u64),
            count(report.rows_out)
        );
        eprint!("\r{part}{rows}\x1b[K");
        let _ = io::stderr().flush();
        self.is_shown = true;
    }

    /// Takes the line away.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            eprint!("\r\x1b[K");
            let _ = io::stderr().flush();
        }
    }

    /// What the query did, in a line.
    pub(super) fn finish(&self, name: &str, report: &RunReport) {
        if self.is_quiet {
            return;
        }
        let seconds = report.elapsed.as_secs_f64();
        let rate = report.flow.rows_in as f64 / seconds.max(1e-6);
        let stopped = if report.was_stopped { ", stopped: windows that were open are not in the result" } else { "" };
        eprintln!(
            "{name}: {} {} read in {seconds:.2} s ({} a second), {} written{stopped}",
            count(report.flow.rows_in),
            noun(report.flow.rows_in, "row"),
            count(rate as u64),
            count(report.flow.rows_out),
        );
    }
}
