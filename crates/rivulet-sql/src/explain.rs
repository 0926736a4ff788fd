//! `EXPLAIN`: an application in words. It tells what exists once for all its queries, and what each query has of its
//! own.

use std::fmt::Write;

use arrow::datatypes::Schema;

use crate::application::{Application, SourceInput, TableIndex};
use crate::shown::shown_address;
use crate::statement::FormatSpec;
use crate::value::{column_type_name, format_us, type_name};

/// The application in words: parameters, input, time, operators in order, output.
/// `window` is the window that results come from, if any; `steps` says what each operator of the dataflow does.
pub(crate) fn explain(
    application: &Application,
    window: Option<&str>,
    emit_on_change: bool,
    steps: &[Vec<String>],
) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(application, window, emit_on_change, steps, &mut text);
    text
}

fn write(
    application: &Application,
    window: Option<&str>,
    emit_on_change: bool,
    steps: &[Vec<String>],
    out: &mut String,
) -> std::fmt::Result {
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
                Some(default) => format!("default {default}"),
            };
            [format!("${}", parameter.name), type_name(&parameter.data_type), note]
        })
        .collect();
    table(out, &rows)?;
    let deciding: Vec<String> =
        application.deciding_parameters.iter().map(|&one| format!("${}", application.parameters[one].name)).collect();
    match deciding.as_slice() {
        [] => writeln!(out, "  computed once for all queries")?,
        names => writeln!(out, "  computed once for queries that are equal in {}", names.join(", "))?,
    }

    for input in &application.inputs {
        let address = input.address.to_string();
        let format = format_text(&input.format);
        writeln!(out, "\ninput {} from {}, format {format}", input.name, shown_address(&address))?;
        let rows: Vec<[String; 3]> =
            columns(&input.schema, |index, nullable| match (input.event_time == Some(index), nullable) {
                (true, _) => "event time",
                _ if input.topic.whole == Some(index) => "the topic",
                _ if input.topic.levels.contains(&index) => "a level of the topic",
                _ if input.source.as_ref().is_some_and(|source| is_of_source(source, index)) => "not in the payload",
                (false, false) => "not null",
                (false, true) => "",
            });
        table(out, &rows)?;
        if let Some(source) = &input.source {
            match (&source.key, &source.key_field) {
                (None, _) => writeln!(out, "  each query reads every event")?,
                (Some(key), None) => writeln!(out, "  a query reads the events with the key {}", key.template)?,
                (Some(key), Some((field, _))) => {
                    writeln!(out, "  a query reads the events whose field {field} is {}", key.template)?;
                }
            }
        }
        for (name, expression) in &input.computed {
            writeln!(out, "  {name} is {expression}")?;
        }
        let computed = input.computed_event_time.map(|place| input.computed[place].0.as_str());
        let event_time = match input.event_time.map(|column| input.schema.field(column).name().as_str()).or(computed) {
            Some(column) => format!("event time is {column}"),
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
        if let Some(durability) = input.durability {
            writeln!(out, "  durability: {}", durability.name())?;
        }
        for (what, address) in [("late rows", &input.late), ("dead letters", &input.dead_letter)] {
            match address {
                Some(address) => writeln!(out, "  {what}: counted, and sent to {address}")?,
                None => writeln!(out, "  {what}: counted")?,
            }
        }
    }

    if let Some(found) = &application.matching {
        let (column, parameter) =
            (application.inputs[0].schema.field(found.column).name(), &application.parameters[found.parameter].name);
        writeln!(out, "  many queries on one topic: found by {column} in an index of ${parameter}")?;
    }

    if !application.tables.is_empty() {
        writeln!(out, "\ntables (one for all queries)")?;
        let rows: Vec<[String; 3]> = application
            .tables
            .iter()
            .map(|one| {
                let rows = one.table.rows().columns().num_rows();
                let cost = match &one.index {
                    TableIndex::None => format!("scans {rows} rows for each event"),
                    TableIndex::Key(key) => format!("finds rows by {key} in a hash index"),
                    TableIndex::Places { latitude, longitude } => {
                        format!("finds rows near a place by {latitude}, {longitude} in an index")
                    }
                };
                [one.table.name().to_owned(), format!("{rows} rows"), cost]
            })
            .collect();
        table(out, &rows)?;
    }

    writeln!(out, "\ndataflow (one for all queries)")?;
    for (index, (operator, step)) in application.dataflow.operators().iter().zip(steps).enumerate() {
        let description = operator.describe();
        let state = if operator.is_stateful() { ", with state" } else { "" };
        let from = match index {
            0 if application.inputs.len() > 1 => "from the inputs".to_owned(),
            0 => "from the input".to_owned(),
            _ => format!("forward from {index}"),
        };
        writeln!(out, "  {}. {}{state} ({from})", index + 1, description.operator)?;
        for (what, lines) in [("shared", step), ("per query", &description.per_slot)] {
            for (number, line) in lines.iter().enumerate() {
                let label = if number == 0 { format!("{what}:") } else { String::new() };
                writeln!(out, "     {label:<11}{line}")?;
            }
        }
    }

    let when = match (window, emit_on_change) {
        (None, false) => "a row for each row that passes".to_owned(),
        (None, true) => "a row that passes, when it differs from the last one".to_owned(),
        (Some(window), false) => format!("a row for each key when a window of {window} closes"),
        (Some(window), true) => {
            format!("a row for each key when a window of {window} closes and it differs from the last one")
        }
    };
    for output in &application.outputs {
        let name = output.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        write!(out, "\noutput{name} to {}", shown_address(&output.address.to_string()))?;
        match output.format.name.is_empty() {
            true => writeln!(out)?,
            false => writeln!(out, ", format {}", format_text(&output.format))?,
        }
        if !output.options.is_empty() {
            // Only the names are shown: a value may be a secret of the connector.
            let names: Vec<&str> = output.options.iter().map(|option| option.name.as_str()).collect();
            writeln!(out, "  with {}", names.join(", "))?;
        }
        if let Some(condition) = &output.condition {
            writeln!(out, "  when {condition}")?;
        }
    }
    writeln!(out, "  {when}")?;
    table(out, &columns(&application.outputs[0].schema, |_, _| ""))
}

fn columns(schema: &Schema, note: impl Fn(usize, bool) -> &'static str) -> Vec<[String; 3]> {
    schema
        .fields()
        .iter()
        .enumerate()
        .map(|(index, field)| {
            [field.name().clone(), column_type_name(field), note(index, field.is_nullable()).to_owned()]
        })
        .collect()
}

/// Writes rows with aligned columns.
fn table(out: &mut String, rows: &[[String; 3]]) -> std::fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    for [name, data_type, note] in rows {
        let line = format!("  {name:<first$}  {data_type:<second$}  {note}");
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Whether the source gives a column, and not the payload.
fn is_of_source(source: &SourceInput, index: usize) -> bool {
    source.columns.iter().any(|column| column.column == index)
}

fn format_text(format: &FormatSpec) -> String {
    if format.options.is_empty() {
        return format.name.clone();
    }
    let options: Vec<String> = format.options.iter().map(|(name, value)| format!("{name} => {value}")).collect();
    format!("{} ({})", format.name, options.join(", "))
}
