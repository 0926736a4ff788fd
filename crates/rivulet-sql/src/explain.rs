//! `EXPLAIN`: an application in words. What exists once for all its queries, and what each query has of its own.

use std::fmt::Write;

use arrow::datatypes::{IntervalMonthDayNano, Schema};
use datafusion_common::ScalarValue;

use crate::application::Application;
use crate::statement::FormatSpec;
use crate::value::{Literal, format_us, interval_us, type_name};

/// The application in words: parameters, input, time, operators in order, output.
pub fn explain(application: &Application) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(application, &mut text);
    text
}

fn write(application: &Application, out: &mut String) -> std::fmt::Result {
    writeln!(out, "application {}", application.name)?;
    writeln!(out, "id          {}", application.id)?;

    writeln!(out, "\nparameters (a column each; a row for each query)")?;
    if application.parameters.is_empty() {
        writeln!(out, "  none")?;
    }
    let rows: Vec<[String; 3]> = application
        .parameters
        .iter()
        .map(|parameter| {
            let note = match &parameter.default {
                None if parameter.is_address => "required, an address".to_owned(),
                None => "required".to_owned(),
                Some(default) => format!("default {}", scalar(default)),
            };
            [format!("${}", parameter.name), type_name(&parameter.data_type), note]
        })
        .collect();
    table(out, &rows)?;

    let input = &application.input;
    writeln!(out, "\ninput {} from {}, format {}", input.name, input.address, format_text(&input.format))?;
    let rows: Vec<[String; 3]> =
        columns(&input.schema, |index, nullable| match (input.event_time == Some(index), nullable) {
            (true, _) => "event time",
            (false, false) => "not null",
            (false, true) => "",
        });
    table(out, &rows)?;
    let event_time = match input.event_time {
        Some(column) => format!("event time is {}", input.schema.field(column).name()),
        None => "event time is the arrival".to_owned(),
    };
    writeln!(
        out,
        "  time: {event_time}; lateness {}, idle timeout {}, future limit {}",
        format_us(input.lateness_us),
        format_us(input.idle_timeout_us),
        format_us(input.future_limit_us)
    )?;
    writeln!(out, "  full inbox: {}", input.overflow.name())?;
    for (what, address) in [("late rows", &input.late), ("dead letters", &input.dead_letter)] {
        match address {
            Some(address) => writeln!(out, "  {what}: counted, and sent to {address}")?,
            None => writeln!(out, "  {what}: counted")?,
        }
    }

    writeln!(out, "\ndataflow (one for all queries)")?;
    let dataflow = &application.dataflow;
    for (index, node) in dataflow.nodes().iter().enumerate() {
        let description = node.factory.describe();
        let edges: Vec<String> = dataflow
            .edges()
            .iter()
            .filter(|edge| edge.to == index)
            .map(|edge| format!("{} from {}", edge.kind, edge.from + 1))
            .collect();
        let state = if node.factory.is_stateful() { ", with state" } else { "" };
        let from = if edges.is_empty() { "from the input".to_owned() } else { edges.join(", ") };
        writeln!(out, "  {}. {}{state} ({from})", index + 1, description.operator)?;
        for (what, lines) in [("shared", &description.shared), ("per query", &description.per_slot)] {
            for (number, line) in lines.iter().enumerate() {
                let label = if number == 0 { format!("{what}:") } else { String::new() };
                writeln!(out, "     {label:<11}{}", with_readable_intervals(line))?;
            }
        }
    }

    let output = &application.output;
    let when = match (&application.window, application.emit_on_change) {
        (None, false) => "a row for each row that passes".to_owned(),
        (None, true) => "a row that passes, when it differs from the last one".to_owned(),
        (Some(window), false) => format!("a row for each key when a window of {window} closes"),
        (Some(window), true) => {
            format!("a row for each key when a window of {window} closes and it differs from the last one")
        }
    };
    writeln!(out, "\noutput to {}, format {}", output.address, format_text(&output.format))?;
    writeln!(out, "  {when}")?;
    table(out, &columns(&output.schema, |_, _| ""))
}

/// Arrow shows a constant interval as `IntervalMonthDayNano { months: 0, days: 0, nanoseconds: 1000000000 }`.
fn with_readable_intervals(line: &str) -> String {
    const START: &str = "IntervalMonthDayNano { ";
    let mut readable = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(START) {
        readable.push_str(before);
        let Some((fields, behind)) = after.split_once(" }") else {
            readable.push_str(START);
            rest = after;
            continue;
        };
        let number = |name: &str| {
            let field = fields.split(", ").find_map(|field| field.strip_prefix(name)?.strip_prefix(": "));
            field.and_then(|digits| digits.parse::<i64>().ok())
        };
        let part = |name: &str| number(name).and_then(|value| i32::try_from(value).ok());
        match (part("months"), part("days"), number("nanoseconds")) {
            (Some(months), Some(days), Some(nanoseconds)) => {
                readable.push_str(&literal(&Literal::Interval(IntervalMonthDayNano { months, days, nanoseconds })));
            }
            _ => readable.push_str(&format!("{START}{fields} }}")),
        }
        rest = behind;
    }
    readable.push_str(rest);
    readable
}

fn columns(schema: &Schema, note: impl Fn(usize, bool) -> &'static str) -> Vec<[String; 3]> {
    schema
        .fields()
        .iter()
        .enumerate()
        .map(|(index, field)| {
            [field.name().clone(), type_name(field.data_type()), note(index, field.is_nullable()).to_owned()]
        })
        .collect()
}

/// Rows with their columns under each other.
fn table(out: &mut String, rows: &[[String; 3]]) -> std::fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    for [name, data_type, note] in rows {
        let line = format!("  {name:<first$}  {data_type:<second$}  {note}");
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn format_text(format: &FormatSpec) -> String {
    if format.options.is_empty() {
        return format.name.clone();
    }
    let options: Vec<String> =
        format.options.iter().map(|(name, value)| format!("{name} => {}", literal(value))).collect();
    format!("{} ({})", format.name, options.join(", "))
}

fn literal(value: &Literal) -> String {
    match value {
        Literal::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Literal::Interval(interval) => match interval_us(*interval) {
            Some(span_us) => format!("INTERVAL '{}'", format_us(span_us)),
            None => format!("INTERVAL '{} months'", interval.months),
        },
        other => other.as_value().describe(),
    }
}

fn scalar(value: &ScalarValue) -> String {
    match value {
        value if value.is_null() => "NULL".to_owned(),
        ScalarValue::Utf8(Some(text)) => format!("'{}'", text.replace('\'', "''")),
        ScalarValue::IntervalMonthDayNano(Some(interval)) => literal(&Literal::Interval(*interval)),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_inside_of_expressions_are_readable() {
        let shown = |months, days, nanoseconds| {
            with_readable_intervals(&format!("hop({:?}, $w)", IntervalMonthDayNano { months, days, nanoseconds }))
        };
        assert_eq!(shown(0, 0, 30_000_000_000), "hop(INTERVAL '30 s', $w)");
        assert_eq!(shown(0, 2, 0), "hop(INTERVAL '2 d', $w)");
        assert_eq!(shown(3, 0, 0), "hop(INTERVAL '3 months', $w)");
        assert_eq!(with_readable_intervals("a IntervalMonthDayNano { x"), "a IntervalMonthDayNano { x");
        assert_eq!(with_readable_intervals("nothing to do"), "nothing to do");
    }
}
