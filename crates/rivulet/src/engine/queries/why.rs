//! Why a query gives its results or none, in sentences: the most likely reason first.
//!
//! A sentence says what was seen, and what would have to happen. It names topics, columns and times of the query. Of
//! other queries it says only how many events they had.

use std::collections::BTreeMap;

use rivulet_connectors::connector::{Condition, Direction};
use rivulet_dataflow::suggest::nearest;
use rivulet_dataflow::{Reason, Seconds};
use rivulet_operators::application::{Application, Input};
use rivulet_runtime::GroupMetrics;

use super::nulls::{sentence, silence};
use crate::counted::counted;
use crate::service::{BigQueryInfo, EndHealth, InputActivity, QueryActivity, QueryState, StepActivity};
use crate::times::{ago, at, span};

/// The most topics that are named because they resemble one of the query.
const ALIKE_MAX: usize = 3;

/// A clock that differs by this much is worth a sentence.
const CLOCK_DIFFERS_US: i64 = 3_600_000_000;

const SECOND_US: i64 = 1_000_000;

/// Counting that is no older has begun with the question.
const FIRST_US: i64 = SECOND_US;

/// What is known of the server.
pub(in crate::engine) struct ServerFacts {
    /// Why messages cannot come or go; `None` if they can.
    pub(in crate::engine) broker_problem: Option<String>,
    /// Topics of messages that no query reads, if they may be named.
    pub(in crate::engine) strays: Vec<String>,
}

/// The facts from which the sentences about a query are made.
pub(super) struct Facts<'a> {
    pub(super) name: &'a str,
    pub(super) state: QueryState,
    pub(super) server: ServerFacts,
    /// Its application, and the metrics of all its queries, if the query runs.
    pub(super) application: Option<(&'a Application, &'a GroupMetrics)>,
    /// Problems of those of its sources that are not topics.
    pub(super) sources: Vec<String>,
    /// Problems of those of its outputs that are not topics.
    pub(super) outputs: Vec<String>,
    /// Whether receivers of its own, if it has any, have taken all its results.
    pub(super) all_arrive: bool,
    /// That its application is behind in the log, in a sentence.
    pub(super) behind: Option<String>,
    /// Whether it is older than the run of the server.
    pub(super) is_restored: bool,
    /// The number of parts in which it runs.
    pub(super) parts: u64,
    pub(super) activity: Option<&'a QueryActivity>,
    /// Its null parameters that a condition compares with.
    pub(super) compared_nulls: Vec<String>,
}

/// Why a query of an application gives its results or none.
pub(super) fn why(facts: &Facts<'_>) -> Vec<String> {
    let name = rivulet_sql::name_in_sql(facts.name);
    match facts.state {
        QueryState::Running => {}
        QueryState::Paused => {
            return vec![format!("the query is paused, and gets no events; RESUME QUERY {name} lets it go on")];
        }
        _ => return vec!["the query does not run; SHOW APPLICATIONS and the server's log say why".into()],
    }
    let mut all: Vec<String> = Vec::new();
    if let (Some(activity), Some((application, metrics))) = (facts.activity, facts.application) {
        let one = Sentences {
            application,
            activity,
            strays: &facts.server.strays,
            compared_nulls: &facts.compared_nulls,
            is_restored: facts.is_restored,
        };
        all.extend(facts.outputs.iter().map(|problem| format!("its results do not arrive: {problem}")));
        all.extend(facts.behind.clone());
        all.extend(one.works(facts.outputs.is_empty() && facts.all_arrive));
        all.extend(facts.server.broker_problem.as_ref().map(|problem| format!("no message can come or go: {problem}")));
        all.extend(facts.sources.iter().cloned());
        all.extend(one.waits());
        let losses = losses(metrics);
        // Events that are left in the log or lost came, too.
        if facts.behind.is_none() && losses.is_none() {
            all.extend(one.silent_inputs(metrics.events));
        }
        all.extend(one.spilled());
        all.extend(one.refused());
        all.extend(one.times());
        all.extend(activity.null_columns.iter().map(sentence));
        all.extend(one.stopped_rows());
        all.extend(silence(one.compared_nulls).filter(|_| activity.results == 0));
        all.extend(one.windows());
        all.extend(one.asks_again().filter(|_| activity.results == 0));
        if all.is_empty() {
            all.push(format!("{} came, and none of them has given a result yet", counted(activity.events(), "event")));
        }
        all.extend(losses);
    } else if facts.parts > 1 {
        all.push(format!(
            "the query has more events than one worker can process, and runs in {} parts; its events are counted with \
             its application: rivulet status",
            facts.parts
        ));
    }
    all
}

struct Sentences<'a> {
    application: &'a Application,
    activity: &'a QueryActivity,
    strays: &'a [String],
    compared_nulls: &'a [String],
    is_restored: bool,
}

impl Sentences<'_> {
    /// Since when events are counted.
    fn since(&self) -> String {
        let ago = ago(self.activity.now_us, self.activity.counted_since_us);
        match (self.activity.is_from_start, self.activity.is_from_change) {
            (true, _) if self.is_restored => format!("since the server was started {ago}"),
            (true, _) => format!("since the query was started {ago}"),
            (_, true) => format!("since the query got other values {ago}"),
            _ => format!("since counting began {ago}"),
        }
    }

    /// Until when events are counted, and when a further question has an answer.
    fn asks_again(&self) -> Option<String> {
        let activity = self.activity;
        let until = at(activity.counted_until_us?);
        let again = match (activity.window_us, activity.next_timer_us) {
            (Some((_, Some(_))), Some(timer_us)) if timer_us > activity.now_us && timer_us != i64::MAX => {
                format!("ask again after {}, when the window closes", at(timer_us.saturating_add(SECOND_US)))
            }
            _ => "ask again after the next events".into(),
        };
        Some(format!("{again}; events are counted until {until}"))
    }

    fn works(&self, arrives: bool) -> Option<String> {
        let activity = self.activity;
        let last_us = activity.last_result_us?;
        let last = activity.last_result.as_ref().map(|last| format!(", the last one {last}")).unwrap_or_default();
        let results = counted(activity.results, "result");
        let works = if arrives { "it works: a result came" } else { "the last result was made" };
        Some(format!("{works} {}; {results} {}{last}", ago(activity.now_us, last_us), self.since()))
    }

    fn waits(&self) -> Option<String> {
        let waiting = self.activity.waiting;
        (waiting > 0).then(|| format!("{} wait to be processed", counted(waiting, "event")))
    }

    fn spilled(&self) -> Option<String> {
        let text = "no event has come for so long that its state waits on disk; the next event brings it back";
        self.activity.is_spilled.then(|| text.into())
    }

    /// Inputs that have received no event.
    fn silent_inputs(&self, events_of_application: u64) -> Vec<String> {
        let silent: Vec<&InputActivity> = self.activity.inputs.iter().filter(|input| input.events == 0).collect();
        silent.into_iter().map(|input| self.silent_input(input, events_of_application)).collect()
    }

    fn silent_input(&self, input: &InputActivity, events_of_application: u64) -> String {
        let topic = &input.topic;
        if let Some(events) = input.topic_events.filter(|&events| events > 0) {
            let events = counted(events, "event");
            return format!("{events} came on {topic}, and WHERE lets none of them through for this query");
        }
        if self.is_first_question() {
            let mut text = format!(
                "its events are counted from this question on, for its application has many queries: what came on \
                 {topic} before is not known"
            );
            text.push_str(&self.before());
            return text;
        }
        let since = self.since();
        let mut text = match self.activity.inputs.len() {
            1 => format!("no event has come on {topic} {since}"),
            _ => format!("the input {} has had no event on {topic} {since}", input.name),
        };
        if self.activity.inputs.len() > 1 && self.activity.results == 0 {
            text.push_str(", and what comes of both inputs waits for it");
        }
        let others = events_of_application.saturating_sub(self.activity.events());
        if self.activity.is_from_start && others > 0 && self.activity.inputs.len() == 1 {
            let others = counted(others, "event");
            text.push_str(&format!("; other queries of {} had {others}: compare the topics", self.application.name));
        }
        let alike = alike(topic, self.strays);
        if !alike.is_empty() {
            text.push_str(&format!("; messages that no query reads came on {}", alike.join(", ")));
        }
        text.push_str(&self.before());
        text
    }

    /// Whether nothing can have been counted yet.
    fn is_first_question(&self) -> bool {
        let activity = self.activity;
        let is_counted = activity.is_from_start || activity.is_from_change;
        !is_counted && activity.now_us.saturating_sub(activity.counted_since_us) < FIRST_US
    }

    /// The end of a sentence about a query that has given results before it was counted.
    fn before(&self) -> String {
        match self.activity.results_ever {
            Some(ever) if ever > self.activity.results => {
                format!("; the query has given {} before", counted(ever, "result"))
            }
            _ => String::new(),
        }
    }

    fn refused(&self) -> Option<String> {
        let (refused, events) = (self.activity.refused_rows(), self.activity.events());
        if refused == 0 {
            return None;
        }
        let mut text = match refused {
            _ if refused < events => format!("{refused} of {} were refused", counted(events, "event")),
            1 => "the only event was refused".into(),
            _ if refused == events => format!("all {refused} events were refused"),
            _ => format!("{refused} rows of {} were refused", counted(events, "event")),
        };
        text.push_str(&format!(" ({})", reasons(&self.activity.refused)));
        if let Some(last) = &self.activity.last_refusal {
            let (detail, hint) = last.detail.split_once("\nhint: ").unwrap_or((&last.detail, ""));
            let hint = if hint.is_empty() { String::new() } else { format!("; {hint}") };
            let what = if last.is_row { "row" } else { "payload" };
            let of = match self.activity.refused.len() {
                1 => String::new(),
                _ => format!("the last one, {}: ", last.reason),
            };
            text.push_str(&format!(": {of}{detail}{hint}; last {what}: {}", last.content));
        }
        Some(text)
    }

    /// The clock of the events differs from the server's.
    fn times(&self) -> Option<String> {
        let (time_us, arrival_us) = self.activity.last_event_time_us?;
        let behind_us = arrival_us.saturating_sub(time_us);
        if behind_us < CLOCK_DIFFERS_US {
            return None;
        }
        let (events, span) = (counted(self.activity.events(), "event"), span(behind_us));
        let text = format!("{events} came; the time of the last one, {}, is {span} behind the clock", at(time_us));
        match Seconds::are(time_us, arrival_us) {
            true => Some(format!(
                "{text}: a TIMESTAMP that is a number counts milliseconds since 1970, and this is probably one of \
                 seconds; send milliseconds or a text such as '2026-01-31T12:00:00Z', or declare the unit"
            )),
            false => Some(text),
        }
    }

    /// The first operator that rows have reached and no row has left.
    fn stopped_rows(&self) -> Option<String> {
        let steps = &self.activity.steps;
        let left = |place: usize| steps.get(place + 1).map_or(self.activity.results, |next| next.rows);
        let place = (0..steps.len()).find(|&place| steps[place].rows > 0 && left(place) == 0)?;
        let (rows, operator) = (counted(steps[place].rows, "row"), steps[place].operator.as_str());
        let window = steps[..place].iter().rposition(|step| step.operator == "window aggregate");
        let is_project = |step: &StepActivity| step.operator == "project";
        let is_of_outer = window.is_some_and(|window| steps[window..place].iter().any(is_project));
        let refused = self.activity.refused_rows();
        match operator {
            _ if refused >= steps[place].rows => None,
            "filter" if is_of_outer => Some(format!("{rows} came from the inner SELECT, and the outer one kept none")),
            "filter" if self.is_qualify(place) && window.is_none() => {
                Some(format!("{} came, QUALIFY kept none", counted(steps[place].rows, "event")))
            }
            "filter" if self.is_qualify(place) => Some(format!("{rows} came to QUALIFY, which kept none")),
            "filter" if window.is_some() => Some(format!("{rows} came to HAVING, which kept none")),
            "filter" => Some(format!("{} came, WHERE kept none", counted(steps[place].rows, "event"))),
            "latest join" | "interval join" => self.unjoined(&rows),
            // The sentences about windows cover the others.
            "window aggregate" => self.rows_of().or_else(|| self.unopened(place, &rows)),
            "pattern" => Some(format!("{rows} came to MATCH_RECOGNIZE, and none has completed a match")),
            "emit on change" => Some(format!("{rows} came to EMIT ON CHANGE, and none differs from the one before")),
            "lookup" => Some(format!("{rows} were looked up, and no row of the table belongs to any")),
            other => Some(format!("{rows} came to '{other}', and none has left it yet")),
        }
    }

    /// Whether the filter at this place is QUALIFY: it stands behind what compares rows, and is of the same SELECT.
    fn is_qualify(&self, place: usize) -> bool {
        let before = self.activity.steps[..place].last();
        before.is_some_and(|step| ["history", "rank"].contains(&step.operator.as_str()))
    }

    /// Rows that have found no partner.
    fn unjoined(&self, rows: &str) -> Option<String> {
        let sides = self.activity.joined_sides?;
        if self.activity.inputs.iter().any(|input| input.events == 0) {
            // The sentence about the input says that.
            return None;
        }
        let least = self.least();
        Some(format!(
            "{rows} came to the join, and none has found a partner ({least}{} and {} wait): compare the keys and times \
             of ON",
            sides[0], sides[1]
        ))
    }

    /// The words before a number that is only a lower bound.
    fn least(&self) -> &'static str {
        if self.activity.has_more_keys { "at least " } else { "" }
    }

    /// A window of a state that no row has opened.
    fn unopened(&self, place: usize, rows: &str) -> Option<String> {
        let window = self.application.code.steps(place).first()?;
        let is_unopened = window.starts_with("state_window(") && self.activity.window_us.is_none();
        is_unopened
            .then(|| format!("{rows} came to {window}, and none has opened a window: its first condition was not met"))
    }

    /// A window of rows that is not full.
    fn rows_of(&self) -> Option<String> {
        let (rows, of) = self.activity.rows_of?;
        Some(format!("{rows} of {of} rows have come that make the window close"))
    }

    fn windows(&self) -> Option<String> {
        let activity = self.activity;
        let (start_us, end_us) = activity.window_us?;
        let Some(end_us) = end_us else {
            let open = match activity.open_windows {
                0 | 1 => format!("a window is open since {}; it closes", at(start_us)),
                keys => format!(
                    "windows of {}{keys} keys are open, the first since {}; one closes",
                    self.least(),
                    at(start_us)
                ),
            };
            return Some(format!("{open} with a row for which the second condition of state_window is true"));
        };
        let from_to = format!("from {} to {}", at(start_us), at(end_us));
        let mut text = match activity.open_windows {
            0 | 1 => format!("a window is open, {from_to}"),
            keys => format!("windows of {}{keys} keys are open; the first, {from_to},", self.least()),
        };
        let inputs = &self.application.inputs;
        let most = |of: fn(&Input) -> i64| inputs.iter().map(of).max().unwrap_or(0);
        let (lateness_us, idle_us) = (most(|input| input.lateness_us), most(|input| input.idle_timeout_us));
        let due = activity.next_timer_us.filter(|&due_us| due_us > activity.now_us);
        let due = due.map(|due_us| format!(", which is at {}", at(due_us))).unwrap_or_default();
        let verb = if activity.open_windows > 1 { " closes" } else { "; it closes" };
        if inputs.iter().all(|input| input.event_time.is_none()) {
            text.push_str(&format!("{verb} when the server's clock has come to its end{due}"));
        } else {
            // An event may be late by the lateness, and the silence must last until the clock has passed the newest
            // event time.
            let closes_us = end_us.saturating_add(lateness_us);
            let missing_us = activity.clock_us.map_or(0, |newest_us| closes_us.saturating_sub(newest_us));
            let silence = span(missing_us.max(idle_us));
            let closes = at(closes_us);
            text.push_str(&format!(
                "{verb} when an event comes with a time from {closes} on, or when none has come for {silence}{due}"
            ));
            if let Some(watermark_us) = activity.watermark_us {
                text.push_str(&format!("; its watermark stands at {}", at(watermark_us)));
            }
        }
        Some(text)
    }
}

/// Refused rows by reason: the reason alone if there is only one, else all, the most frequent first.
pub(in crate::engine) fn reasons(refused: &BTreeMap<String, u64>) -> String {
    let mut refused: Vec<(&String, &u64)> = refused.iter().collect();
    if let [(reason, _)] = refused[..] {
        return reason.clone();
    }
    refused.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
    refused.iter().map(|(reason, rows)| format!("{rows} {reason}")).collect::<Vec<_>>().join(", ")
}

/// The topics that were probably meant where `topic` stands, or the other way round, at most three: those with more or
/// fewer levels at an end, and those with a level that is written a little differently. A topic with another number is
/// that of another device, which is none of this query's business.
fn alike<'t>(topic: &str, others: &'t [String]) -> Vec<&'t str> {
    let levels = |topic: &'_ str| topic.split('/').filter(|level| !level.is_empty()).map(str::to_owned).collect();
    let own: Vec<String> = levels(topic);
    let is_alike = |other: &&str| {
        let other: Vec<String> = levels(other);
        let (short, long) = if own.len() < other.len() { (&own, &other) } else { (&other, &own) };
        match short.len() == long.len() {
            true => {
                let differing = own.iter().zip(&other).filter(|(own, other)| own != other);
                differing.clone().count() <= 1 && differing.clone().all(|(own, other)| is_near(own, other))
            }
            false => !short.is_empty() && (long.starts_with(short) || long.ends_with(short)),
        }
    };
    let others = others.iter().map(String::as_str).filter(|&other| other != topic);
    others.filter(is_alike).take(ALIKE_MAX).collect()
}

/// Whether two levels of topics are probably meant to be the same.
fn is_near(one: &str, other: &str) -> bool {
    let digits = |level: &str| level.chars().filter(char::is_ascii_digit).collect::<String>();
    let number = |level: &str| digits(level).trim_start_matches('0').to_owned();
    let (shorter, longer) = if one.len() < other.len() { (one, other) } else { (other, one) };
    number(one) == number(other)
        && (nearest(one, [other]).is_some() || nearest(other, [one]).is_some() || longer.starts_with(shorter))
}

/// That an application has lost events.
pub(in crate::engine) fn losses(metrics: &GroupMetrics) -> Option<String> {
    let events = metrics.refused[Reason::Overflow as usize];
    let text = "were dropped or given up since the application was started: its inbox or the log was full, or a file of \
                the log cannot be read";
    (events > 0).then(|| format!("{} {text}", counted(events, "event")))
}

/// Why a big query gives its results or none.
pub(in crate::engine) fn why_big(query: &BigQueryInfo) -> Vec<String> {
    let mut all = Vec::new();
    match query.state {
        QueryState::Paused => all.push("the query is paused, and reads nothing".into()),
        QueryState::Ended => all.push("its input has come to its end".into()),
        _ => {}
    }
    all.extend(query.reason.clone());
    if query.state != QueryState::Running {
        return all;
    }
    let refused: u64 = query.refused.values().sum();
    let sources = query.sources.join(", ");
    let sink = query.health.iter().find(|end| end.direction == Direction::Sink);
    let left_out = sink.and_then(EndHealth::left_out);
    let works = left_out.is_none() && query.health.iter().all(|end| end.condition == Condition::Ok);
    all.extend(left_out);
    let went = format!("{} went to {}", counted(query.rows_out, "row"), query.sink);
    match (query.rows_out, works) {
        (0, _) => {}
        (_, true) => all.insert(0, format!("it works: {went}")),
        // What does not work is the reason, and comes first.
        (_, false) => all.push(format!("{went} before")),
    }
    if query.rows_in == 0 && refused == 0 {
        all.push(format!("no row has come from {sources} since the query was started"));
    }
    if refused > 0 {
        let last = query.refusal.as_ref().map(|refusal| format!(": {refusal}")).unwrap_or_default();
        let were = if refused == 1 { "was" } else { "were" };
        all.push(format!("{} {were} refused ({}){last}", counted(refused, "row"), reasons(&query.refused)));
    }
    if query.rows_in > 0 && query.rows_out == 0 {
        let came = counted(query.rows_in, "row");
        let waiting = sink.map_or(0, |sink| sink.waiting_rows);
        all.push(match (query.watermark_us, query.watermark_lag_us) {
            _ if waiting > 0 => {
                format!(
                    "{came} came; the sink {} keeps {}, and has delivered none",
                    query.sink,
                    counted(waiting, "row")
                )
            }
            (Some(watermark_us), lag_us) => {
                let lag = lag_us.and_then(|lag_us| i64::try_from(lag_us).ok()).map(span);
                let lag = lag.map(|lag| format!(", {lag} behind the clock")).unwrap_or_default();
                format!("{came} came and none has given a result; the watermark stands at {}{lag}", at(watermark_us))
            }
            (None, _) => format!(
                "{came} came and none has given a result; there is no watermark yet: one of {sources} has had no row"
            ),
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_that_were_probably_meant_are_alike_and_those_of_strangers_are_not() {
        let topics = |topics: &[&str]| topics.iter().map(|&topic| topic.to_owned()).collect::<Vec<_>>();
        for (other, expected) in [
            ("home/7/temprature", true),
            ("Home/7/Temperature", false),
            ("home/7/Temperature", true),
            ("home/07/temperature", true),
            ("home/7/temp", true),
            ("/home/7/temperature", true),
            ("home/7/temperature/raw", true),
            ("house/home/7/temperature", true),
            ("home/8/temperature", false),
            ("home/17/temperature", false),
            ("home/7/humidity", false),
            ("home/9", false),
            ("x/y", false),
        ] {
            assert_eq!(!alike("home/7/temperature", &topics(&[other])).is_empty(), expected, "{other}");
        }
        assert_eq!(alike("a/b", &topics(&["a", "a/b/c", "z/a/b", "a/b/d"])), ["a", "a/b/c", "z/a/b"]);
    }
}
