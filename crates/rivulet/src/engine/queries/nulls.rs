//! Parameters and columns that are null: no comparison with null is true, so a condition keeps no row, and the query
//! gives no results.

use rivulet_dataflow::Tally;
use rivulet_operators::application::{Application, Input};
use serde_json::Value;

use crate::counted::{counted, noun};
use crate::service::NullColumn;

/// What a condition contains that was written with null in mind.
const FOR_NULLS: [&str; 6] = [" is ", "coalesce(", "nvl(", "nvl2(", "ifnull(", "case "];

/// The null parameters that a WHERE or HAVING compares with, unless the condition is written for nulls.
pub(super) fn compared_with(application: &Application, is_null: impl Fn(&str) -> bool) -> Vec<String> {
    let mut compared = Vec::new();
    for (place, factory) in application.dataflow.operators().iter().enumerate() {
        let described = factory.describe();
        let is_for_nulls = |step: &String| {
            let step = step.to_lowercase();
            FOR_NULLS.iter().any(|one| step.contains(one))
        };
        if described.operator == "filter" && !application.code.steps(place).iter().any(is_for_nulls) {
            let names = described.per_slot.iter().map(|name| name.trim_start_matches('$').to_owned());
            compared.extend(names.filter(|name| is_null(name)));
        }
    }
    compared.dedup();
    compared
}

/// A sentence that these parameters give no results; `None` if there are no such parameters.
pub(super) fn silence(compared: &[String]) -> Option<String> {
    let verb = if compared.len() == 1 { "is" } else { "are" };
    let parameters = noun(compared.len() as u64, "parameter");
    let names = compared.join(", ");
    let text = || {
        format!(
            "the {parameters} {names} {verb} NULL, and no comparison with NULL is true: a condition that needs one \
                 keeps no row"
        )
    };
    (!compared.is_empty()).then(text)
}

/// The most fields of a payload that are named.
const FIELDS_MAX: usize = 16;

/// The declared columns that were null in all decoded rows, and that a condition or an aggregate reads; or that are
/// selected, where payloads have a field of another name instead. `operators` are the names of the operators.
pub(super) fn null_columns(application: &Application, tally: &Tally, operators: &[String]) -> Vec<NullColumn> {
    let (inputs, values) = (&application.inputs, &tally.values);
    // Rows of several inputs have the number of their input first, and all columns side by side.
    let mut place = usize::from(inputs.len() > 1);
    let columns = inputs.iter().map(|input| input.schema.fields().len()).sum::<usize>();
    if values.rows == 0 || values.seen.len() != place + columns {
        return Vec::new();
    }
    let times = operators.iter().position(|name| name.starts_with("assign time")).unwrap_or(0);
    // What is only selected may be null, unless its name is wrong. Computed columns stand before the times.
    let reads = operators.iter().enumerate().filter(|(step, name)| *step < times || *name != "project");
    let texts: Vec<&String> = reads.flat_map(|(step, _)| application.code.steps(step)).collect();
    let mut found = Vec::new();
    for (number, input) in inputs.iter().enumerate() {
        let came = match inputs.len() {
            1 => values.rows,
            _ => tally.inputs.get(number).map_or(0, |came| came.rows),
        };
        for field in input.schema.fields() {
            let is_null = !values.seen[place];
            place += 1;
            if came == 0 || !is_null {
                continue;
            }
            let instead = if inputs.len() == 1 { fields_instead(input, field.name(), &values.payload) } else { None };
            let is_renamed = || instead.iter().flatten().any(|field| !is_declared(input, field));
            if texts.iter().any(|text| names(text, field.name())) || is_renamed() {
                found.push(NullColumn { name: field.name().clone(), rows: came, instead: instead.unwrap_or_default() });
            }
        }
    }
    found
}

/// Whether a step in SQL names a column.
fn names(step: &str, column: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_' || character == '$';
    step.match_indices(column).any(|(start, found)| {
        let behind = &step[start + found.len()..];
        !step[..start].ends_with(is_part) && !behind.starts_with(is_part)
    })
}

/// Whether a field of payloads, or a part of it, is a column.
fn is_declared(input: &Input, field: &str) -> bool {
    let first = |name: &str| name.split('.').next().unwrap_or(name).to_lowercase();
    input.schema.fields().iter().any(|column| first(column.name()) == field.to_lowercase())
}

/// The fields of a payload that does not have the field of a column; `None` if it has, or if that is not known.
fn fields_instead(input: &Input, column: &str, payload: &[u8]) -> Option<Vec<String>> {
    if input.format.name != "json" {
        return None;
    }
    let Ok(Value::Object(fields)) = serde_json::from_slice(payload) else { return None };
    let first = column.split('.').next().unwrap_or(column);
    let is_field = |name: &&String| name.eq_ignore_ascii_case(column) || name.eq_ignore_ascii_case(first);
    if fields.keys().any(|name| is_field(&name)) {
        return None;
    }
    let shown = fields.keys().take(FIELDS_MAX).map(|name| {
        let characters = name.chars().filter(|character| !character.is_control());
        characters.take(64).collect()
    });
    Some(shown.collect())
}

/// A sentence about columns that were null in all events.
pub(super) fn sentence(column: &NullColumn) -> String {
    let NullColumn { name, rows, instead } = column;
    let events = match rows {
        1 => "the only event".to_owned(),
        rows => format!("all {}", counted(*rows, "event")),
    };
    match instead.is_empty() {
        true => format!("{name} was null in {events}"),
        false => {
            format!("{name} was null in {events}: the last payload has no field '{name}', but {}", instead.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_part_of_another_one() {
        for (step, expected) in [
            ("avg(celsius) > 30", true),
            ("celsius", true),
            ("r.celsius > 1", true),
            ("celsius_max > 1 AND $celsius > 2", false),
            ("\"radio.celsius\" > 1", true),
        ] {
            assert_eq!(names(step, "celsius"), expected, "{step}");
        }
    }
}
