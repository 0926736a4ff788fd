//! What the demo shows while it runs: one block that is drawn over itself on a terminal, one line every few seconds
//! elsewhere.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::DemoReport;
use crate::service::{LiveResult, Status};

/// How many alerts stay on the screen: with them the block has 21 lines, and a small terminal 24.
const ALERTS_SHOWN: usize = 8;
/// The longest line of the block, in characters.
const LINE_CHARACTERS_MAX: usize = 79;
/// Between the two a line that is wider than the terminal is cut, not wrapped (DECAWM): there are as many rows to draw
/// over as lines were written, however narrow the terminal is.
const CUT_LINES: (&str, &str) = ("\x1b[?7l", "\x1b[?7h");
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

    pub(super) fn draw(&mut self, elapsed: Duration, status: &Status, alerts: Vec<(String, Arc<LiveResult>)>) {
        let total = &status.total;
        let seconds = self.last.0.elapsed().as_secs_f64().max(0.001);
        let rate = |now: u64, before: u64| (now.saturating_sub(before)) as f64 / seconds;
        let (events_per_s, alerts_per_s) = (rate(total.events, self.last.1), rate(total.results, self.last.2));
        for (topic, result) in alerts {
            self.alerts.push_back(format!("{topic}  {}", result.text));
            if self.alerts.len() > ALERTS_SHOWN {
                self.alerts.pop_front();
            }
        }
        if !self.is_terminal && self.last_line.is_some_and(|last| last.elapsed() < LINE_PERIOD) {
            return;
        }
        self.last = (Instant::now(), total.events, total.results);
        let counted = format!(
            "{:>4} s  queries {}  events/s {events_per_s:.0}  alerts/s {alerts_per_s:.1}",
            elapsed.as_secs(),
            status.queries_running,
        );
        let measured = format!(
            "processing p50 {} p99 {}  memory {}",
            microseconds(total.processing.p50_us),
            microseconds(total.processing.p99_us),
            status.memory_rss_bytes.map_or_else(|| "-".into(), |bytes| format!("{} MB", bytes / 1_000_000)),
        );
        let mut text = String::new();
        if self.is_terminal {
            if self.drawn_lines > 0 {
                let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn_lines);
            }
            let lines = self.block([counted, format!("        {measured}")], status);
            self.drawn_lines = lines.len();
            text.push_str(CUT_LINES.0);
            lines.iter().for_each(|line| {
                let _ = writeln!(text, "{line}");
            });
            text.push_str(CUT_LINES.1);
        } else {
            self.last_line = Some(Instant::now());
            let _ = writeln!(text, "{counted}  {measured}");
            self.alerts.drain(..).for_each(|alert| {
                let _ = writeln!(text, "        {alert}");
            });
        }
        print(&text);
    }

    /// The lines of the block, none of them longer than [`LINE_CHARACTERS_MAX`].
    fn block(&self, summary: [String; 2], status: &Status) -> Vec<String> {
        let row = |cells: [String; 7]| {
            let [name, queries, events, batch, alerts, p50, p99] = cells;
            format!("{name:<20}{queries:>8}{events:>12}{batch:>8}{alerts:>10}{p50:>10}{p99:>10}")
        };
        let mut lines = vec![
            format!("Rivulet demo: simulated homes publish to the MQTT broker at {}", self.broker),
            format!("  the API is at http://{}/api/docs, Ctrl-C ends the demo", self.http),
            String::new(),
        ];
        lines.extend(summary);
        lines.push(String::new());
        lines.push(row(["application", "queries", "events", "batch", "alerts", "p50", "p99"].map(str::to_owned)));
        lines.extend(status.applications.iter().map(|one| {
            row([
                one.name.clone(),
                one.queries_running.to_string(),
                one.events.to_string(),
                format!("{:.1}", one.batch_rows_mean),
                one.results.to_string(),
                microseconds(one.processing.p50_us),
                microseconds(one.processing.p99_us),
            ])
        }));
        lines.push(String::new());
        lines.push("some of the results:".into());
        lines.extend(self.alerts.iter().map(|alert| format!("  {alert}")));
        lines.extend((self.alerts.len()..ALERTS_SHOWN).map(|_| String::new()));
        for line in &mut lines {
            if let Some((end, _)) = line.char_indices().nth(LINE_CHARACTERS_MAX) {
                line.truncate(end);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::ApplicationStatus;

    #[test]
    fn the_block_fits_a_small_terminal() {
        let address = SocketAddr::from(([127, 0, 0, 1], 18830));
        let mut view = View::new(true, address, address);
        view.alerts.extend((0..ALERTS_SHOWN).map(|number| format!("homes/{number}/é  {}", "x".repeat(200))));
        let one = ApplicationStatus {
            name: "heart_rate_alerts".into(),
            queries_running: 250_000,
            events: 1_000_000_000,
            batch_rows_mean: 4_096.0,
            results: 10_000_000,
            ..ApplicationStatus::default()
        };
        let status = Status { applications: vec![one; 4], ..Status::default() };
        let lines = view.block(["x".repeat(97), String::new()], &status);
        assert!(lines.len() < 24, "{} lines", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() < 80), "{lines:#?}");
        let row = lines.iter().find(|line| line.starts_with("heart")).expect("a row");
        assert!(row.contains(" 1000000000 ") && row.ends_with('-'), "nothing of the table is cut: {row}");
    }
}
