//! What the demo shows while it runs: one block that is drawn over itself on a terminal, one line every few seconds
//! elsewhere.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::DemoReport;
use crate::service::Status;

/// How many alerts stay on the screen.
const ALERTS_SHOWN: usize = 8;
/// Where there is no terminal, how often a line is written.
const LINE_PERIOD: Duration = Duration::from_secs(2);

/// The live view.
pub(super) struct View {
    is_terminal: bool,
    http: SocketAddr,
    broker: SocketAddr,
    /// Lines drawn last time, to be drawn over.
    drawn_lines: usize,
    alerts: VecDeque<String>,
    /// When, and how many events and results there were then.
    last: (Instant, u64, u64),
    last_line: Option<Instant>,
}

impl View {
    pub(super) fn new(is_terminal: bool, http: SocketAddr, broker: SocketAddr) -> Self {
        Self {
            is_terminal,
            http,
            broker,
            drawn_lines: 0,
            alerts: VecDeque::new(),
            last: (Instant::now(), 0, 0),
            last_line: None,
        }
    }

    pub(super) fn draw(&mut self, elapsed: Duration, status: &Status, alerts: Vec<(String, Arc<str>)>) {
        let total = &status.total;
        let seconds = self.last.0.elapsed().as_secs_f64().max(0.001);
        let rate = |now: u64, before: u64| (now.saturating_sub(before)) as f64 / seconds;
        let (events_per_s, alerts_per_s) = (rate(total.events, self.last.1), rate(total.results, self.last.2));
        for (topic, result) in alerts {
            self.alerts.push_back(format!("{topic}  {result}"));
            if self.alerts.len() > ALERTS_SHOWN {
                self.alerts.pop_front();
            }
        }
        if !self.is_terminal && self.last_line.is_some_and(|last| last.elapsed() < LINE_PERIOD) {
            return;
        }
        self.last = (Instant::now(), total.events, total.results);
        let summary = format!(
            "{:>4} s  queries {}  events/s {events_per_s:.0}  alerts/s {alerts_per_s:.1}  processing p50 {} p99 {}  memory {}",
            elapsed.as_secs(),
            status.queries_running,
            microseconds(total.processing.p50_us),
            microseconds(total.processing.p99_us),
            status.memory_rss_bytes.map_or_else(|| "-".into(), |bytes| format!("{} MB", bytes / 1_000_000)),
        );
        let mut text = String::new();
        if self.is_terminal {
            if self.drawn_lines > 0 {
                let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn_lines);
            }
            let lines = self.block(&summary, status);
            self.drawn_lines = lines.len();
            lines.iter().for_each(|line| {
                let _ = writeln!(text, "{line}");
            });
        } else {
            self.last_line = Some(Instant::now());
            let _ = writeln!(text, "{summary}");
            self.alerts.drain(..).for_each(|alert| {
                let _ = writeln!(text, "        {alert}");
            });
        }
        print(&text);
    }

    fn block(&self, summary: &str, status: &Status) -> Vec<String> {
        let mut lines = vec![
            format!("Rivulet demo: simulated homes publish to the MQTT broker at {}", self.broker),
            format!("  the API is at http://{}/api/docs, Ctrl-C ends the demo", self.http),
            String::new(),
            summary.to_owned(),
            String::new(),
            format!(
                "{:<24}{:>10}{:>12}{:>12}{:>10}{:>12}{:>12}",
                "application", "queries", "events", "batch mean", "alerts", "p50", "p99"
            ),
        ];
        for one in &status.applications {
            lines.push(format!(
                "{:<24}{:>10}{:>12}{:>12.1}{:>10}{:>12}{:>12}",
                one.name,
                one.queries_running,
                one.events,
                one.batch_rows_mean,
                one.results,
                microseconds(one.processing.p50_us),
                microseconds(one.processing.p99_us),
            ));
        }
        lines.push(String::new());
        lines.push("some of the results:".into());
        lines.extend(self.alerts.iter().map(|alert| format!("  {}", alert.chars().take(110).collect::<String>())));
        lines.extend((self.alerts.len()..ALERTS_SHOWN).map(|_| String::new()));
        lines
    }

    pub(super) fn finish(&mut self, report: &DemoReport) {
        let total = &report.status.total;
        let refused: u64 = total.refused.iter().map(|(_, count)| count).sum();
        print(&format!(
            "\n{} queries, submitted at {:.0} a second. {} events sent, {} processed, {} refused, {} results.\n\
             Latency from a sensor's reading to the end of its processing: median {}, 99 % within {}.\n",
            report.queries,
            report.submit_per_s,
            report.events_sent,
            total.events,
            refused,
            total.results,
            microseconds(total.end_to_end.p50_us),
            microseconds(total.end_to_end.p99_us),
        ));
    }
}

/// A time for people.
fn microseconds(time_us: Option<u64>) -> String {
    match time_us {
        None => "-".into(),
        Some(us) if us < 1_000 => format!("{us} us"),
        Some(us) if us < 1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        Some(us) => format!("{:.1} s", us as f64 / 1e6),
    }
}

fn print(text: &str) {
    // A reader that went away (`rivulet demo | head`) is no reason to fail.
    let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
}
