//! A parameter may stand wherever an expression may: as each argument of every function it gives what the constant
//! gives. Where a function needs a constant, the application is refused when it is created, and the error says where
//! and what to write.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use rivulet_dataflow::SlotTable;

use super::nulls::{Case, FUNCTIONS, OPERATORS, argument, filled, literal};
use super::{Columns, Path, REFUSED, constant, none_of, process_with, scalar, shown};
use crate::parse_application;
use crate::plan::plan_application;

/// Calls with arguments that the tables of functions have as a part of the call.
const MORE: &[Case] = &[
    ("date_bin($1, $2)", &["~1 minute", "@2026-11-21 08:30:30"], "2026-11-21T08:30:00", &[]),
    ("date_bin($1, $2, $3)", &["~1 hour", "@2026-11-21 08:45:00", "@2026-01-01 00:30:00"], "2026-11-21T08:30:00", &[]),
    ("to_timestamp($1, $2)", &["'21.11.2026 08:30'", "'%d.%m.%Y %H:%M'"], "2026-11-21T08:30:00", &[]),
    ("to_timestamp_seconds($1, $2)", &["'21.11.2026 08:30'", "'%d.%m.%Y %H:%M'"], "2026-11-21T08:30:00", &[]),
    ("to_timestamp_millis($1, $2)", &["'21.11.2026 08:30'", "'%d.%m.%Y %H:%M'"], "2026-11-21T08:30:00", &[]),
    ("to_timestamp_micros($1, $2)", &["'21.11.2026 08:30'", "'%d.%m.%Y %H:%M'"], "2026-11-21T08:30:00", &[]),
    ("to_timestamp_nanos($1, $2)", &["'21.11.2026 08:30'", "'%d.%m.%Y %H:%M'"], "2026-11-21T08:30:00", &[]),
    ("to_date($1, $2)", &["'21.11.2026'", "'%d.%m.%Y'"], "2026-11-21", &[]),
    ("to_time($1, $2)", &["'08.30'", "'%H.%M'"], "08:30:00", &[]),
    ("to_unixtime($1, $2)", &["'21.11.1970 00:00:00'", "'%d.%m.%Y %H:%M:%S'"], "27993600", &[]),
    ("to_char($1, $2)", &["@2026-11-21", "'%Y'"], "2026", &[]),
    ("from_unixtime($1, $2)", &["60", "'yyyy'"], "1970", &[]),
    ("to_timestamp($1)", &["60.25"], "1970-01-01T00:01:00.250", &[]),
    ("regexp_count($1, $2, $3, $4)", &["'aBa'", "'b'", "1", "'i'"], "1", &[]),
    ("regexp_instr($1, $2, $3, $4, $5)", &["'aBa'", "'b'", "1", "1", "'i'"], "2", &[]),
    ("regexp_match($1, $2, $3) IS NULL", &["'abc'", "'B'", "'i'"], "false", &[]),
    ("concat_ws($1, $2, $3)", &["'-'", "'a'", "'b'"], "a-b", &[]),
    ("encode($1, $2)", &["'ab'", "'base64'"], "YWI=", &[]),
    ("$1 + $2", &["@2026-11-21", "~1 hour"], "2026-11-21T01:00:00", &[]),
    ("$1 AT TIME ZONE $2", &["@2026-07-01", "'Europe/Berlin'"], "2026-07-01T02:00:00", &[]),
    ("EXTRACT(HOUR FROM $1)", &["@2026-11-21 08:30:30"], "8", &[]),
];

/// The result of an expression over no columns, with a parameter `p` of this type and value.
fn with_parameter(expression: &str, (type_name, text): (&str, &str)) -> Result<String, String> {
    let create = format!(
        "CREATE APPLICATION a (p {type_name}) INPUT t (id BIGINT) FROM 'mqtt:in' FORMAT JSON \
         OUTPUT 'mqtt:out' FORMAT JSON AS SELECT id,\n{expression} AS x FROM t"
    );
    let application =
        parse_application(&create).and_then(|create| plan_application(&create)).map_err(|error| error.to_string())?;
    let value = scalar(type_name, Some(text));
    let schema = Arc::new(Schema::new(vec![Field::new("p", value.data_type(), true)]));
    let parameters = arrow::array::RecordBatch::try_new(schema.clone(), vec![value.to_array().unwrap()]).unwrap();
    let mut found = REFUSED.to_owned();
    let rows = Columns::default().batch(&application.row_schema);
    let mut chain = application.dataflow.chain();
    let elements = vec![rivulet_dataflow::Element::Batch(rows)];
    process_with(SlotTable::new(schema), &parameters, &mut chain, elements, |batch, row| {
        found = shown(batch.column(1), row);
    });
    Ok(found)
}

#[test]
fn a_parameter_is_equal_to_the_constant_or_is_refused_when_the_application_is_created() {
    let mut problems = Vec::new();
    for (template, arguments, ..) in FUNCTIONS.iter().chain(OPERATORS).chain(MORE) {
        let literals: Vec<String> = arguments.iter().map(|one| literal(one)).collect();
        let with_constants = filled(template, &literals);
        let expected =
            constant(Path::Application, &with_constants).unwrap_or_else(|error| panic!("{with_constants}: {error}"));
        for place in 0..arguments.len() {
            let mut literals = literals.clone();
            literals[place] = "$p".to_owned();
            let expression = filled(template, &literals);
            match with_parameter(&expression, argument(arguments[place])) {
                Ok(found) if found == expected => {}
                Ok(found) => problems.push(format!("{expression} is {found}, and {expected} with the constant")),
                Err(error) if error.contains("at line 2, column") && error.contains("hint: ") => {}
                Err(error) => problems.push(format!("{expression} is refused without help: {error}")),
            }
        }
    }
    none_of(problems);
}
