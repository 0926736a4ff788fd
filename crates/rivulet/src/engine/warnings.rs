//! Warnings of a running application, for cases in which its owner would otherwise wait in vain.
//!
//! What must hold: there is at most one warning of each kind, or one of each input, however many queries there are; and
//! each is written to the log once.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_dataflow::{Reason, Seconds, Slot, SlotTable};
use rivulet_operators::application::{Application, Input};
use rivulet_runtime::GroupMetrics;

use super::applications::Applications;
use super::queries::why::{losses, reasons};
use super::running::Running;
use super::threads::Threads;
use super::topics::write_topic;
use crate::counted::counted;
use crate::times::span;

/// There is no warning of silence before this time: devices may be slow.
const SILENCE_MIN: Duration = Duration::from_secs(60);

/// How often the thread checks for new warnings.
const LOOK_PERIOD: Duration = Duration::from_secs(10);

/// Starts a thread that writes new warnings to the log.
pub(super) fn watch(applications: &Arc<Applications>, threads: &Arc<Threads>) -> io::Result<()> {
    let applications = applications.clone();
    threads.start("rivulet-warnings", LOOK_PERIOD, move || {
        applications.running().iter().for_each(|running| running.log_new_warnings());
    })
}

/// The subject of a warning: a bit; inputs have one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Times that are seconds; the sink that sees the first writes this to the log.
    Seconds,
    Refused,
    Clocks,
    Silence,
    Lost,
    Input(usize),
    Source(usize),
}

impl Kind {
    fn bit(self) -> u64 {
        1 << match self {
            Self::Seconds => 0,
            Self::Refused => 1,
            Self::Clocks => 2,
            Self::Silence => 3,
            Self::Lost => 4,
            Self::Input(input) => (5 + input).min(47),
            Self::Source(source) => (48 + source).min(63),
        }
    }
}

/// Among so many slots a query is looked for whose topic is an example.
const EXAMPLE_SLOTS: Slot = 64;

/// After this text a warning quotes a refusal.
const LAST_BECAUSE: &str = "; the last one because of ";

/// Whether any of these warnings quotes the content of an event.
pub(super) fn have_contents(warnings: &[String]) -> bool {
    warnings.iter().any(|warning| warning.contains(LAST_BECAUSE))
}

/// Removes the quoted content of events from warnings.
pub(super) fn hide_contents(warnings: &mut [String]) {
    for warning in warnings {
        let quoted = warning.find(LAST_BECAUSE).map(|at| at + LAST_BECAUSE.len());
        if let Some(colon) = quoted.and_then(|at| Some(at + warning[at..].find(": ")?)) {
            warning.truncate(colon);
        }
    }
}

/// The figures of an application.
struct Seen<'a> {
    application: &'a Application,
    metrics: &'a GroupMetrics,
    seconds: &'a [(String, Seconds)],
    last_refusal: Option<&'a str>,
    queries: u64,
    runs_for: Duration,
    /// What each input reads; asked for only where nothing has come.
    read: &'a dyn Fn() -> Vec<String>,
}

impl Running {
    /// The warnings for its owner, including those that have come up since it runs. `metrics` are those of its group.
    pub(super) fn warnings(&self, metrics: &GroupMetrics) -> Vec<String> {
        let shown = self.shown(metrics).into_iter().map(|(_, text)| text);
        let of_sources = self.sources().iter().filter_map(|reader| reader.warning());
        let standing = self.outputs.health().filter_map(|output| output.stands_still());
        let left_out = self.outputs.health().filter_map(|output| output.left_out());
        self.warnings
            .iter()
            .cloned()
            .chain(standing)
            .chain(self.behind())
            .chain(left_out)
            .chain(shown)
            .chain(of_sources)
            .collect()
    }

    /// Writes to the log what has come up since the application runs, once.
    pub(super) fn log_new_warnings(&self) {
        for (kind, text) in self.shown(&self.group.metrics()) {
            let was_said = self.warned.said.fetch_or(kind.bit(), Ordering::Relaxed) & kind.bit() != 0;
            if !was_said && kind != Kind::Seconds {
                tracing::warn!(application = self.full_name().in_log(), "{text}");
            }
        }
        for (place, text) in self.sources().iter().enumerate().filter_map(|(place, one)| Some((place, one.warning()?)))
        {
            let bit = Kind::Source(place).bit();
            if self.warned.said.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                tracing::warn!(application = self.full_name().in_log(), "{text}");
            }
        }
    }

    fn shown(&self, metrics: &GroupMetrics) -> Vec<(Kind, String)> {
        let seconds = self.seconds_by_input();
        let last_refusal = self.outputs.last_refusal.lock().clone();
        // While it is behind nobody knows what has come for them.
        let queries = self.queries_running.load(Ordering::Relaxed) * u64::from(self.behind().is_none());
        shown(&Seen {
            application: &self.application,
            metrics,
            seconds: &seconds,
            last_refusal: last_refusal.as_deref(),
            queries,
            runs_for: self.warned.begun.elapsed(),
            read: &|| self.read_by_inputs(queries),
        })
    }

    /// What each input reads, with the topic of a query: who looks at a warning knows topics, and not parameters.
    fn read_by_inputs(&self, queries: u64) -> Vec<String> {
        let topics_of = |table: &SlotTable, slot: Slot| {
            let mut topics = vec![String::new(); self.topics.inputs.len()];
            for (topics, topic) in self.topics.inputs.iter().zip(&mut topics) {
                write_topic(&topics.events, table, slot, topic);
            }
            topics
        };
        let slots: Vec<Slot> = (0..self.group.slots().min(EXAMPLE_SLOTS)).collect();
        let example = self.group.with_queries(&slots, topics_of).into_iter().flatten().next().unwrap_or_default();
        let inputs = self.application.inputs.iter().enumerate();
        inputs.map(|(place, input)| read_by(input, example.get(place).map(String::as_str), queries)).collect()
    }
}

fn shown(seen: &Seen<'_>) -> Vec<(Kind, String)> {
    let Seen { application, metrics, seconds, last_refusal, queries, runs_for, read } = *seen;
    let of_seconds = seconds.iter().map(|(input, seconds)| (Kind::Seconds, format!("input '{input}': {seconds}")));
    let mut all: Vec<(Kind, String)> = of_seconds.collect();
    let events = metrics.events;
    let lost = [Reason::Removed, Reason::Overflow].map(|reason| metrics.refused[reason as usize]);
    let refused = metrics.refused.iter().sum::<u64>() - lost.iter().sum::<u64>();
    if events > 0 && refused >= events && metrics.results == 0 {
        let last = last_refusal.map(|last| format!("{LAST_BECAUSE}{last}")).unwrap_or_default();
        let all_of_them =
            if events == 1 { "the only event was".to_owned() } else { format!("all {events} events were") };
        let by_reason = Reason::ALL.into_iter().filter(|reason| ![Reason::Removed, Reason::Overflow].contains(reason));
        let by_reason = by_reason.map(|reason| (reason.name().to_owned(), metrics.refused[reason as usize]));
        let by_reason: BTreeMap<String, u64> = by_reason.filter(|(_, rows)| *rows > 0).collect();
        let reasons = if by_reason.len() > 1 { format!(" ({})", reasons(&by_reason)) } else { String::new() };
        all.push((Kind::Refused, format!("{all_of_them} refused{reasons}{last}")));
    }
    if metrics.clock_differs > 0 && metrics.clock_differs * 2 >= events && seconds.is_empty() {
        all.push((
            Kind::Clocks,
            format!(
                "{} of {} have times more than an hour from the server's clock: look at the clocks of the devices, \
                 and at the unit of the times",
                metrics.clock_differs,
                counted(events, "event"),
            ),
        ));
    }
    all.extend(losses(metrics).map(|text| (Kind::Lost, text)));
    if queries == 0 || runs_for < SILENCE_MIN {
        return all;
    }
    let inputs = &application.inputs;
    let span = span(i64::try_from(runs_for.as_micros()).unwrap_or(i64::MAX));
    if events == 0 {
        let queries = counted(queries, "query");
        let text = format!(
            "no event has come for its {queries} in the {span} since it was started: is {} right?",
            read().join(" or ")
        );
        all.push((Kind::Silence, text));
        return all;
    }
    if inputs.len() > 1 {
        let events_of = |input: usize| metrics.inputs.get(input).copied().unwrap_or(0);
        for (place, input) in inputs.iter().enumerate().filter(|(place, _)| events_of(*place) == 0) {
            let (name, read) = (&input.name, &read()[place]);
            let text = format!(
                "the input '{name}' has had no event in {span}, others had {events}: what needs it waits; is {read} \
                 right?"
            );
            all.push((Kind::Input(place), text));
        }
    }
    all
}

/// What an input reads; of queries that each read a topic of their own, that of one as an example.
fn read_by(input: &Input, example: Option<&str>, queries: u64) -> String {
    let template = &input.address.template;
    match &input.source {
        None => match example.filter(|topic| !topic.is_empty() && *topic != template) {
            Some(topic) if queries == 1 => format!("the topic {topic}"),
            Some(topic) => format!("the topic {template}, as {topic},"),
            None => format!("the topic {template}"),
        },
        Some(source) => match &source.key {
            Some(key) => format!("{} with the key {}", input.address, key.template),
            None => input.address.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application(inputs: &str) -> Application {
        let text = format!(
            "CREATE APPLICATION one () {inputs} OUTPUT 'mqtt:out' FORMAT JSON AS SELECT a.v FROM a{}",
            if inputs.contains("INPUT b") { " LEFT JOIN LATEST(b) ON a.v = b.v" } else { "" }
        );
        rivulet_sql::plan_application(&rivulet_sql::parse_application(&text).unwrap()).unwrap()
    }

    #[test]
    fn the_topic_of_a_query_is_named_and_not_its_template() {
        let text = "CREATE APPLICATION one (win TEXT) INPUT a (v BIGINT) FROM 'mqtt:win/{win}' FORMAT JSON \
                    OUTPUT 'mqtt:out' FORMAT JSON AS SELECT v FROM a";
        let one = rivulet_sql::plan_application(&rivulet_sql::parse_application(text).unwrap()).unwrap();
        let read = |example, queries| read_by(&one.inputs[0], example, queries);
        assert_eq!(read(Some("win/7"), 1), "the topic win/7");
        assert_eq!(read(Some("win/7"), 3), "the topic win/{win}, as win/7,");
        assert_eq!(read(None, 3), "the topic win/{win}");
    }

    #[test]
    fn silence_is_told_after_a_while_and_of_each_input() {
        let one = application("INPUT a (v BIGINT) FROM 'mqtt:a' FORMAT JSON");
        let two =
            application("INPUT a (v BIGINT) FROM 'mqtt:a' FORMAT JSON INPUT b (v BIGINT) FROM 'mqtt:b' FORMAT JSON");
        let texts = |application: &Application, events: u64, queries: u64, seconds: u64| -> Vec<String> {
            let metrics = GroupMetrics { events, inputs: vec![events], results: events, ..GroupMetrics::default() };
            let runs_for = Duration::from_secs(seconds);
            let read = || application.inputs.iter().map(|input| read_by(input, None, queries)).collect();
            let (seconds, last_refusal) = (&[], None);
            let seen = Seen { application, metrics: &metrics, seconds, last_refusal, queries, runs_for, read: &read };
            shown(&seen).into_iter().map(|(_, text)| text).collect()
        };
        assert_eq!(texts(&one, 0, 3, 59), [""; 0]);
        assert_eq!(texts(&one, 0, 0, 600), [""; 0], "without queries nothing can come");
        assert_eq!(
            texts(&one, 0, 3, 600),
            ["no event has come for its 3 queries in the 10 minutes since it was started: is the topic a right?"]
        );
        assert_eq!(texts(&one, 1, 3, 600), [""; 0]);
        let of_b = texts(&two, 7, 1, 600);
        assert!(of_b.len() == 1 && of_b[0].starts_with("the input 'b' has had no event in 10 minutes"), "{of_b:?}");
    }
}
