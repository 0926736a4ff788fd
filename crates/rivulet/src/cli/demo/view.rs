//! What the demo shows while it runs: one block that is drawn over itself on a terminal, one line every few seconds
//! elsewhere.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::report::DemoReport;
use crate::service::{LiveResult, Status};

/// How many alerts stay on the screen: with them the block has 21 lines, and a small terminal 24.
const ALERTS_SHOWN: usize = 8;
/// The longest line of the block, in characters, where the terminal does not say how wide it is.
const LINE_CHARACTERS: usize = 79;
/// The narrowest line: a terminal that has less cuts it.
const LINE_CHARACTERS_MIN: usize = 40;
/// What the columns of a row take behind its name.
const COLUMNS_CHARACTERS: usize = 58;
/// What stands for the fields of a result that have no room.
const MORE_FIELDS: &str = ", …}";
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
    /// Topics and results.
    alerts: VecDeque<(String, Arc<LiveResult>)>,
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
        for alert in alerts {
            self.alerts.push_back(alert);
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
            // One less: some terminals go to the next line when the last column is written.
            let characters = columns().map_or(LINE_CHARACTERS, |columns| columns.saturating_sub(1));
            let lines = self.block([counted, format!("        {measured}")], status, characters);
            self.drawn_lines = lines.len();
            text.push_str(CUT_LINES.0);
            lines.iter().for_each(|line| {
                let _ = writeln!(text, "{line}");
            });
            text.push_str(CUT_LINES.1);
        } else {
            if self.last_line.replace(Instant::now()).is_none() {
                self.where_it_is().iter().for_each(|line| {
                    let _ = writeln!(text, "{line}");
                });
            }
            let _ = writeln!(text, "{counted}  {measured}");
            self.alerts.drain(..).for_each(|(topic, result)| {
                let _ = writeln!(text, "        {topic}  {}", result.text);
            });
        }
        print(&text);
    }

    fn where_it_is(&self) -> [String; 2] {
        [
            format!("Rivulet demo: simulated homes publish to the MQTT broker at {}", self.broker),
            format!("  look at it in a browser: http://{}; Ctrl-C ends the demo", self.http),
        ]
    }

    /// The lines of the block, none of them longer than so many characters.
    fn block(&self, summary: [String; 2], status: &Status, characters: usize) -> Vec<String> {
        let characters = characters.max(LINE_CHARACTERS_MIN);
        let name_characters = characters.saturating_sub(COLUMNS_CHARACTERS).clamp(20, 40);
        let row = |cells: [String; 7]| {
            let [name, queries, events, batch, alerts, p50, p99] = cells;
            format!("{name:<name_characters$}{queries:>8}{events:>12}{batch:>8}{alerts:>10}{p50:>10}{p99:>10}")
        };
        let mut lines = self.where_it_is().to_vec();
        lines.push(String::new());
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
        lines.extend(self.alerts.iter().map(|(topic, result)| {
            let room = characters.saturating_sub(topic.chars().count() + 4);
            format!("  {topic}  {}", shortened(&result.text, room))
        }));
        lines.extend((self.alerts.len()..ALERTS_SHOWN).map(|_| String::new()));
        for line in &mut lines {
            if let Some((end, _)) = line.char_indices().nth(characters) {
                line.truncate(end);
            }
        }
        lines
    }

    pub(super) fn finish(&mut self, report: &DemoReport) {
        let total = &report.status.total;
        let refused: u64 = total.refused.values().sum();
        print(&format!(
            "\n{} queries, submitted at {:.0} a second. {} events sent, {} processed, {} refused, {} results.\n\
             Latency from a sensor's reading to the end of its processing: median {}, 99 % within {}.\n\
             {TRY_NEXT}",
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

/// What is said at the end.
const TRY_NEXT: &str = "
What to try next:
  rivulet demo --queries 100000                   ten times as many
  rivulet serve                                   a server of your own; its console: http://127.0.0.1:8080
  rivulet sql                                     then, in a second terminal: SQL with completion by Tab
  rivulet app register examples/ac_control.sql    one of the applications in examples/
  rivulet bench many                              how many queries this machine carries
";

/// A JSON object in so many characters: the fields that fit.
fn shortened(object: &str, characters_max: usize) -> Cow<'_, str> {
    if object.chars().count() <= characters_max {
        return Cow::Borrowed(object);
    }
    let (mut depth, mut is_text, mut is_escaped, mut end) = (0, false, false, None);
    let room = characters_max.saturating_sub(MORE_FIELDS.chars().count());
    for (at, one) in object.char_indices().take(room + 1) {
        match one {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_text,
            '"' => is_text = !is_text,
            _ if is_text => {}
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 1 => end = Some(at),
            _ => {}
        }
    }
    Cow::Owned(end.map_or_else(|| "{…}".to_owned(), |end| format!("{}{MORE_FIELDS}", &object[..end])))
}

/// How many columns the terminal has that standard output goes to.
fn columns() -> Option<usize> {
    let mut size = nix::libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call writes what it is asked for into `size`, which is of the type that it expects.
    let answered = unsafe { nix::libc::ioctl(nix::libc::STDOUT_FILENO, nix::libc::TIOCGWINSZ, &raw mut size) };
    (answered == 0 && size.ws_col > 0).then(|| size.ws_col.into())
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

    fn view() -> View {
        let address = SocketAddr::from(([127, 0, 0, 1], 18830));
        let mut view = View::new(true, address, address);
        let result = |text: String| Arc::new(LiveResult { text, ..LiveResult::default() });
        view.alerts.extend((0..ALERTS_SHOWN).map(|number| {
            let text = format!("{{\"é\":1,\"room\":\"a, b\",\"all\":[1,2],\"last\":\"{}\"}}", "x".repeat(200));
            (format!("homes/{number}/é"), result(text))
        }));
        view
    }

    #[test]
    fn the_block_fits_the_terminal() {
        let one = ApplicationStatus {
            name: "heart_rate_alerts".into(),
            queries_running: 250_000,
            events: 1_000_000_000,
            batch_rows_mean: 4_096.0,
            results: 10_000_000,
            ..ApplicationStatus::default()
        };
        let status = Status { applications: vec![one; 4], ..Status::default() };
        for (characters, alert) in [
            (79, "  homes/0/é  {\"é\":1,\"room\":\"a, b\",\"all\":[1,2], …}"),
            (45, "  homes/0/é  {\"é\":1,\"room\":\"a, b\", …}"),
            (20, "  homes/0/é  {\"é\":1,\"room\":\"a, b\", …}"),
        ] {
            let lines = view().block(["x".repeat(297), String::new()], &status, characters);
            assert!(lines.len() < 24, "{} lines", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= characters.max(40)), "{lines:#?}");
            assert!(lines.iter().any(|line| line == alert), "{alert} is not in {lines:#?}");
            let row = lines.iter().find(|line| line.starts_with("heart")).expect("a row");
            assert!(characters < 79 || row.contains(" 1000000000 ") && row.ends_with('-'), "it is cut: {row}");
        }
        let lines = view().block([String::new(), String::new()], &status, 300);
        assert!(lines.iter().any(|line| line.ends_with("xxx\"}")), "a wide terminal shows all: {lines:#?}");
    }

    #[test]
    fn what_to_try_next_are_commands() {
        let commands = TRY_NEXT.lines().filter_map(|line| line.trim_start().split_once("  "));
        let commands: Vec<&str> = commands.map(|(command, _)| command).collect();
        assert_eq!(commands.len(), 5);
        for command in commands {
            let parsed = crate::cli::definition().try_get_matches_from(command.split(' '));
            assert!(parsed.is_ok(), "{command}: {parsed:?}");
        }
    }
}
