//! Tables and numbers for people.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::error::CliError;
pub(super) use super::paint::{colours, paint};
use crate::times::span;

/// A table without lines; the columns named in `numeric` are aligned right.
pub(super) fn table<const COLUMNS: usize>(
    headers: [&str; COLUMNS],
    numeric: &[usize],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    render(headers.into_iter().map(str::to_owned).collect(), numeric, rows.into_iter().map(Vec::from))
}

/// The rows of an SQL result as a table.
pub(super) fn result_table(columns: &[String], rows: &[Vec<Value>]) -> String {
    let is_numeric = |column: &usize| {
        let mut values = rows.iter().filter_map(|row| row.get(*column)).filter(|value| !value.is_null()).peekable();
        values.peek().is_some() && values.all(Value::is_number)
    };
    let numeric: Vec<usize> = (0..columns.len()).filter(is_numeric).collect();
    render(columns.to_vec(), &numeric, rows.iter().map(|row| row.iter().map(cell).collect()))
}

/// What is shown of the result of a statement that shows or describes: not the columns that are null in every row, and
/// of properties not those that are null.
pub(super) fn shown(columns: &[String], rows: &[Vec<Value>]) -> (Vec<String>, Vec<Vec<Value>>) {
    if columns == ["property", "value"] {
        let has_value = |row: &&Vec<Value>| row.get(1).is_none_or(|value| !value.is_null());
        return (columns.to_vec(), rows.iter().filter(has_value).cloned().collect());
    }
    let said = columns_that_say(columns.len(), rows, Value::is_null);
    let pick = |row: &Vec<Value>| said.iter().filter_map(|&place| row.get(place).cloned()).collect();
    (said.iter().map(|&place| columns[place].clone()).collect(), rows.iter().map(pick).collect())
}

/// The columns of which a row says anything; all of them where there are no rows.
pub(super) fn columns_that_say<T>(columns: usize, rows: &[Vec<T>], is_nothing: impl Fn(&T) -> bool) -> Vec<usize> {
    let says =
        |place: &usize| rows.is_empty() || rows.iter().any(|row| row.get(*place).is_some_and(|one| !is_nothing(one)));
    (0..columns).filter(says).collect()
}

/// What stands for a value that there is not.
pub(super) const NOTHING: &str = "-";

/// A table of as many columns as there are headers.
pub(super) fn render(headers: Vec<String>, numeric: &[usize], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(headers);
    table.add_rows(rows);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numeric.contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A JSON value as a cell: text without quotes.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => NOTHING.into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints JSON on a line.
pub(super) fn print_json(out: &mut impl Write, value: &impl Serialize) -> Result<(), CliError> {
    serde_json::to_writer(&mut *out, value).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// A number of bytes with a unit.
pub(super) fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Microseconds with a unit; from an hour on a whole number of it.
pub(super) fn duration_us(duration_us: u64) -> String {
    match duration_us {
        0..1_000 => format!("{duration_us} us"),
        1_000..1_000_000 => format!("{:.1} ms", duration_us as f64 / 1e3),
        1_000_000..3_600_000_000 => format!("{:.1} s", duration_us as f64 / 1e6),
        _ => span(i64::try_from(duration_us).unwrap_or(i64::MAX)),
    }
}

/// A time in hours, minutes and seconds.
pub(super) fn uptime(uptime_ms: u64) -> String {
    let seconds = uptime_ms / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_have_no_lines_and_numbers_stand_right() {
        let rows = [vec![json!("kims_ac"), json!(7)], vec![json!("x"), json!(1200)], vec![json!(null), json!(null)]];
        assert_eq!(
            result_table(&["name".into(), "events".into()], &rows),
            "name     events\nkims_ac       7\nx          1200\n-             -"
        );
        assert_eq!(table(["a", "b"], &[], [["1".into(), "2".into()]]), "a  b\n1  2");
    }

    #[test]
    fn what_is_null_everywhere_is_not_shown() {
        let columns = ["name", "label", "events"].map(str::to_owned);
        let rows = [vec![json!("a"), json!(null), json!(7)], vec![json!("b"), json!(null), json!(null)]];
        let table = |columns: &[String], rows: &[Vec<Value>]| {
            let (columns, rows) = shown(columns, rows);
            result_table(&columns, &rows)
        };
        assert_eq!(table(&columns, &rows), "name  events\na          7\nb          -");
        assert_eq!(table(&columns, &[]), "name  label  events");
        let rows = [vec![json!("name"), json!("a")], vec![json!("output"), json!(null)]];
        assert_eq!(table(&["property".into(), "value".into()], &rows), "property  value\nname      a");
    }

    #[test]
    fn quantities_have_units() {
        assert_eq!([bytes(0), bytes(1023), bytes(1536), bytes(5 << 30)], ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
        assert_eq!([duration_us(999), duration_us(1500), duration_us(2_500_000)], ["999 us", "1.5 ms", "2.5 s"]);
        assert_eq!([duration_us(95_435_147_600_000), duration_us(7_200_000_000)], ["3 years", "2 hours"]);
        assert_eq!(
            [uptime(59_999), uptime(61_000), uptime(3_660_000), uptime(90_000_000)],
            ["59s", "1m 1s", "1h 1m", "1d 1h"]
        );
    }
}
