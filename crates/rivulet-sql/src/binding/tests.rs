//! Binding: which values fit, which do not, and that a failed row leaves nothing behind.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type, IntervalMonthDayNanoType, TimestampMicrosecondType};

use super::*;
use crate::{parse_application, plan_application};

fn application() -> Application {
    let text =
        "CREATE APPLICATION a (home TEXT, target DOUBLE DEFAULT 24.0, n BIGINT DEFAULT 3, on_off BOOLEAN DEFAULT NULL,
            since TIMESTAMP DEFAULT TIMESTAMP '1970-01-01 00:00:00', span INTERVAL DEFAULT INTERVAL '5 minutes')
        INPUT t (ts TIMESTAMP EVENT TIME, v DOUBLE) FROM 'mqtt:{home}/t' FORMAT JSON OUTPUT FORMAT JSON
        AS SELECT count(*) FROM t GROUP BY tumble(ts, $span)";
    plan_application(&parse_application(text).unwrap()).unwrap()
}

fn required() -> [(&'static str, ParamValue<'static>); 2] {
    [("home", ParamValue::Text("h")), ("output", ParamValue::Text("mqtt:out/x"))]
}

#[test]
fn values_are_bound_with_their_types_and_defaults() {
    let application = application();
    let mut rows = ParameterRows::new(&application);
    rows.push([
        ("home", ParamValue::Text("42")),
        ("target", ParamValue::Integer(20)),
        ("n", ParamValue::Float(7.0)),
        ("on_off", ParamValue::Boolean(true)),
        ("since", ParamValue::Integer(2)),
        ("span", ParamValue::Text("1 minute")),
        ("output", ParamValue::Text("mqtt:home/42")),
    ])
    .unwrap();
    // Another order, and defaults for missing parameters.
    rows.push([("output", ParamValue::Text("plain")), ("home", ParamValue::Text("ü"))]).unwrap();
    assert_eq!(rows.rows(), 2);
    let batch = rows.finish();
    assert_eq!(batch.schema(), application.parameter_schema);
    assert_eq!(batch.column(0).as_string::<i32>().iter().collect::<Vec<_>>(), [Some("42"), Some("ü")]);
    assert_eq!(batch.column(1).as_primitive::<Float64Type>().values().as_ref(), [20.0, 24.0]);
    assert_eq!(batch.column(2).as_primitive::<Int64Type>().values().as_ref(), [7, 3]);
    assert_eq!(batch.column(3).as_boolean().iter().collect::<Vec<_>>(), [Some(true), None]);
    assert_eq!(batch.column(4).as_primitive::<TimestampMicrosecondType>().values().as_ref(), [2000, 0]);
    let spans: Vec<i64> = batch
        .column(5)
        .as_primitive::<IntervalMonthDayNanoType>()
        .values()
        .iter()
        .map(|span| span.nanoseconds)
        .collect();
    assert_eq!(spans, [60_000_000_000, 300_000_000_000]);
    assert_eq!(batch.column(6).as_string::<i32>().iter().collect::<Vec<_>>(), [Some("home/42"), Some("plain")]);
    // The collector starts anew.
    assert_eq!(rows.rows(), 0);
    rows.push(required()).unwrap();
    assert_eq!(rows.finish().num_rows(), 1);
    assert_eq!(rows.finish().num_rows(), 0);
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_leaves_no_row() {
    let application = application();
    let mut rows = ParameterRows::new(&application);
    rows.push(required()).unwrap();
    let home = ("home", ParamValue::Text("h"));
    let output = ("output", ParamValue::Text("o"));
    let long = "x".repeat(70_000);
    type Case<'a> = (Vec<(&'a str, ParamValue<'a>)>, Option<&'a str>, &'a str);
    let cases: Vec<Case<'_>> = vec![
        (
            vec![home, output, ("targt", ParamValue::Integer(1))],
            Some("targt"),
            "unknown parameter 'targt'\nhint: did you mean 'target'?",
        ),
        (
            vec![home, output, ("fuse", ParamValue::Text("none"))],
            Some("fuse"),
            "unknown parameter 'fuse'\nhint: fuse is an option of CREATE QUERY ... AS SELECT: the operators of an application always run together",
        ),
        (
            vec![home, output, ("target", ParamValue::Text("x"))],
            Some("target"),
            "the parameter 'target' is DOUBLE, and the text 'x' is not",
        ),
        (
            vec![home, output, ("target", ParamValue::Text("22.5"))],
            Some("target"),
            "the parameter 'target' is DOUBLE, and the text '22.5' is not\nhint: write the number without quotes",
        ),
        (
            vec![home, output, ("n", ParamValue::Float(1.5))],
            Some("n"),
            "the parameter 'n' is BIGINT, and 1.5 is not\nhint: give a whole number",
        ),
        (
            vec![output, ("home", ParamValue::Integer(42))],
            Some("home"),
            "the parameter 'home' is TEXT, and 42 is not\nhint: write it as text: '42'",
        ),
        (
            vec![home, output, ("span", ParamValue::Integer(5))],
            Some("span"),
            "the parameter 'span' is INTERVAL, and 5 is not\nhint: give the unit: write for example '30 seconds' or '5 minutes'",
        ),
        (
            vec![home, output, ("span", ParamValue::Text("soon"))],
            Some("span"),
            "the parameter 'span' is INTERVAL, and the text 'soon' is not\nhint: write for example '30 seconds' or '5 minutes'",
        ),
        (
            vec![home, output, ("since", ParamValue::Boolean(true))],
            Some("since"),
            "the parameter 'since' is TIMESTAMP, and true is not",
        ),
        (vec![home, home, output], Some("home"), "the parameter 'home' is given twice"),
        (vec![home], Some("output"), "a value for output is missing\nhint: expected a TEXT for 'output'"),
        (vec![], Some("home"), "values for home and output are missing\nhint: expected a TEXT for 'home'"),
        (
            vec![output, ("home", ParamValue::Null)],
            Some("home"),
            "the parameter 'home' is part of an address and cannot be NULL",
        ),
        (
            vec![output, ("home", ParamValue::Text(""))],
            Some("home"),
            "the parameter 'home' is part of an address and cannot be empty",
        ),
        (
            vec![home, ("output", ParamValue::Text("mqtt:"))],
            Some("output"),
            "the parameter 'output' is part of an address and cannot be empty",
        ),
        (
            vec![output, ("home", ParamValue::Text(&long))],
            Some("home"),
            "the parameter 'home' has 70000 bytes, and at most 65535 are allowed",
        ),
    ];
    for (values, parameter, message) in cases {
        let error = rows.push(values.iter().copied()).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(error.parameter.as_deref(), parameter, "{message}");
        assert_eq!(rows.rows(), 1);
    }
    rows.push([home, output, ("target", ParamValue::Null)]).unwrap();
    let batch = rows.finish();
    assert_eq!(batch.num_rows(), 2);
    assert!(batch.column(1).is_null(1) && batch.column(1).is_valid(0));
    assert_eq!(batch.column(0).as_string::<i32>().iter().collect::<Vec<_>>(), [Some("h"), Some("h")]);
}

#[test]
fn many_names_of_one_row_do_not_make_the_memory_of_the_order_grow() {
    let application = application();
    let mut rows = ParameterRows::new(&application);
    let error = rows.push(std::iter::repeat_n(("home", ParamValue::Text("h")), 1000)).unwrap_err();
    assert!(error.to_string().contains("given twice"));
    assert!(rows.order.len() <= application.parameters.len());
}

#[test]
fn window_lengths_are_checked_row_by_row() {
    let application = application();
    let mut rows = ParameterRows::new(&application);
    for span in ["1 minute", "0 seconds", "-5 minutes", "1 month"] {
        rows.push(required().into_iter().chain([("span", ParamValue::Text(span))])).unwrap();
    }
    rows.push(required().into_iter().chain([("span", ParamValue::Null)])).unwrap();
    let results = application.check(&rows.finish());
    assert_eq!(results.len(), 5);
    assert!(results[0].is_ok());
    for result in &results[1..] {
        let error = result.as_ref().unwrap_err();
        assert_eq!(error.parameter.as_deref(), Some("span"));
        assert!(error.hint.is_some(), "{error}");
    }
    assert!(results[1].as_ref().unwrap_err().message.contains("greater than zero"));
}

#[test]
fn a_slide_longer_than_the_window_is_refused_query_by_query() {
    let text = "CREATE APPLICATION a (slide INTERVAL, span INTERVAL) INPUT t (ts TIMESTAMP EVENT TIME) FROM 'mqtt:t' FORMAT JSON
        OUTPUT 'mqtt:o' FORMAT JSON AS SELECT count(*) FROM t GROUP BY hop(ts, $slide, $span)";
    let application = plan_application(&parse_application(text).unwrap()).unwrap();
    let mut rows = ParameterRows::new(&application);
    for (slide, span) in [("1 second", "30 seconds"), ("30 seconds", "1 second"), ("5 s", "5 s")] {
        rows.push([("slide", ParamValue::Text(slide)), ("span", ParamValue::Text(span))]).unwrap();
    }
    let results = application.check(&rows.finish());
    assert!(results[0].is_ok() && results[2].is_ok());
    assert_eq!(
        results[1].as_ref().unwrap_err().to_string(),
        "the slide 30 s is longer than the width 1 s, so rows would be lost\nhint: did you swap them? write hop(ts, slide, width)"
    );
}

#[test]
fn an_application_without_parameters_still_counts_rows() {
    let text = "CREATE APPLICATION a INPUT t (v DOUBLE) FROM 'mqtt:t' FORMAT JSON OUTPUT 'mqtt:o' FORMAT JSON AS SELECT v FROM t";
    let application = plan_application(&parse_application(text).unwrap()).unwrap();
    let mut rows = ParameterRows::new(&application);
    rows.push([]).unwrap();
    rows.push([]).unwrap();
    let error = rows.push([("x", ParamValue::Null)]).unwrap_err();
    assert_eq!(error.to_string(), "unknown parameter 'x'\nhint: the application has no parameters");
    let batch = rows.finish();
    assert_eq!((batch.num_rows(), batch.num_columns()), (2, 0));
    assert_eq!(application.check(&batch), [Ok(()), Ok(())]);
    assert!(Arc::ptr_eq(&batch.schema(), &application.parameter_schema));
}
