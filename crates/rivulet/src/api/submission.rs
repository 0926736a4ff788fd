//! Reads a submitted query from JSON without building a map: names and values are borrowed from the text, parameters
//! of a whole batch lie in one list.
//!
//! `{"name": "kims_ac", "application": "ac_control", "parameters": {"home": "42", "target": 22.5}}`

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::service::{Parameter, ParameterValue};

use super::types::ErrorDetail;

/// The most parameters of one query.
const PARAMETERS_MAX: usize = 256;

/// A submitted query; its parameters are a range of the list given to [`parse`].
#[derive(Debug, PartialEq)]
pub(super) struct Submission<'a> {
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) application: Cow<'a, str>,
    pub(super) parameters: Range<usize>,
    pub(super) label: Option<Cow<'a, str>>,
}

/// Other values for a query; its parameters are a range of the list given to [`parse_change`].
#[derive(Debug, PartialEq)]
pub(super) struct Change<'a> {
    pub(super) parameters: Range<usize>,
    /// `Some(None)` where it is to be none.
    pub(super) label: Option<Option<Cow<'a, str>>>,
}

/// Reads one submission and appends its parameters to the list; leaves the list as it was on errors.
pub(super) fn parse<'a>(json: &'a [u8], parameters: &mut Vec<Parameter<'a>>) -> Result<Submission<'a>, ErrorDetail> {
    read(json, parameters, &SUBMISSION).map(|(fields, parameters)| Submission {
        name: fields.name.flatten(),
        application: fields.application.unwrap_or_default(),
        parameters,
        label: fields.label.flatten(),
    })
}

/// Reads other values for a query and appends them to the list; leaves the list as it was on errors.
pub(super) fn parse_change<'a>(json: &'a [u8], parameters: &mut Vec<Parameter<'a>>) -> Result<Change<'a>, ErrorDetail> {
    read(json, parameters, &CHANGE).map(|(fields, parameters)| Change { parameters, label: fields.label })
}

/// What an object may have.
struct Form {
    fields: &'static [&'static str],
    /// The field that it must have.
    must_have: Option<&'static str>,
    hint: &'static str,
}

const SUBMISSION: Form = Form {
    fields: &["name", "application", "parameters", "label"],
    must_have: Some("application"),
    hint: "a query is {\"name\": ..., \"application\": ..., \"parameters\": {...}, \"label\": ...}; name and label may be left out",
};

const CHANGE: Form = Form {
    fields: &["parameters", "label"],
    must_have: None,
    hint: "a change is {\"parameters\": {...}, \"label\": ...}; what is left out stays, and a label that is null is taken away",
};

fn read<'a>(
    json: &'a [u8],
    parameters: &mut Vec<Parameter<'a>>,
    form: &Form,
) -> Result<(Fields<'a>, Range<usize>), ErrorDetail> {
    let start = parameters.len();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let read = FieldsSeed { parameters, form }
        .deserialize(&mut deserializer)
        .and_then(|fields| deserializer.end().map(|()| fields));
    match read {
        Ok(fields) => Ok((fields, start..parameters.len())),
        Err(error) => {
            parameters.truncate(start);
            Err(detail(&error, form))
        }
    }
}

/// A JSON error as an error of the API. Its text ends with a position, which has fields of its own.
fn detail(error: &serde_json::Error, form: &Form) -> ErrorDetail {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let message = text.strip_suffix(&position).unwrap_or(&text);
    // An n that does not begin `null`.
    let message = if message == "expected ident" { "expected value" } else { message };
    let message = if error.is_data() { message.to_owned() } else { format!("not JSON: {message}") };
    let number = |number: usize| u32::try_from(number).ok().filter(|&number| number > 0);
    let hint = if error.is_data() { form.hint } else { "the text must be one JSON object" };
    ErrorDetail {
        kind: "invalid".into(),
        message,
        line: number(error.line()),
        column: number(error.column()),
        hint: Some(hint.into()),
    }
}

/// The fields that are there.
#[derive(Default)]
struct Fields<'a> {
    name: Option<Option<Cow<'a, str>>>,
    application: Option<Cow<'a, str>>,
    label: Option<Option<Cow<'a, str>>>,
}

struct FieldsSeed<'l, 'a> {
    parameters: &'l mut Vec<Parameter<'a>>,
    form: &'l Form,
}

impl<'a> DeserializeSeed<'a> for FieldsSeed<'_, 'a> {
    type Value = Fields<'a>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for FieldsSeed<'_, 'a> {
    type Value = Fields<'a>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a query as a JSON object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let (mut fields, mut has_parameters) = (Fields::default(), false);
        while let Some(Text(field)) = map.next_key()? {
            if !self.form.fields.contains(&field.as_ref()) {
                let known = self
                    .form
                    .fields
                    .split_last()
                    .map_or_else(String::new, |(last, first)| format!("{} and {last}", first.join(", ")));
                return Err(M::Error::custom(format_args!("there is no field {field}, only {known}")));
            }
            match field.as_ref() {
                "name" if fields.name.is_none() => {
                    fields.name = Some(map.next_value::<Option<Text<'a>>>()?.map(|text| text.0));
                }
                "application" if fields.application.is_none() => {
                    fields.application = Some(map.next_value::<Text<'a>>()?.0);
                }
                "parameters" if !has_parameters => {
                    map.next_value_seed(ParametersSeed { parameters: self.parameters })?;
                    has_parameters = true;
                }
                "label" if fields.label.is_none() => {
                    fields.label = Some(map.next_value::<Option<Text<'a>>>()?.map(|text| text.0));
                }
                _ => return Err(M::Error::custom(format_args!("the field {field} is there twice"))),
            }
        }
        match self.form.must_have.filter(|_| fields.application.is_none()) {
            Some(missing) => Err(M::Error::custom(format_args!("the field {missing} is missing"))),
            None => Ok(fields),
        }
    }
}

struct ParametersSeed<'l, 'a> {
    parameters: &'l mut Vec<Parameter<'a>>,
}

impl<'a> DeserializeSeed<'a> for ParametersSeed<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for ParametersSeed<'_, 'a> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("parameter values as a JSON object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let start = self.parameters.len();
        while let Some(Text(name)) = map.next_key()? {
            let before = &self.parameters[start..];
            if before.len() == PARAMETERS_MAX {
                return Err(M::Error::custom(format_args!("more than {PARAMETERS_MAX} parameters")));
            }
            if before.iter().any(|(other, _)| *other == name) {
                return Err(M::Error::custom(format_args!("the parameter {name} is there twice")));
            }
            let Scalar(value) = map.next_value()?;
            self.parameters.push((name, value));
        }
        Ok(())
    }
}

/// Text, borrowed unless it has escapes.
struct Text<'a>(Cow<'a, str>);

impl<'a> Deserialize<'a> for Text<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'a> Visitor<'a> for TextVisitor {
            type Value = Text<'a>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("text")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A parameter's value.
struct Scalar<'a>(ParameterValue<'a>);

impl<'a> Deserialize<'a> for Scalar<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;
        impl<'a> Visitor<'a> for ScalarVisitor {
            type Value = Scalar<'a>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, number, boolean or null as a parameter's value")
            }

            fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
                Ok(Scalar(ParameterValue::Null))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
                Ok(Scalar(ParameterValue::Bool(value)))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
                Ok(Scalar(ParameterValue::Int(value)))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
                let value =
                    i64::try_from(value).map_err(|_| E::custom(format_args!("the number {value} is too large")))?;
                Ok(Scalar(ParameterValue::Int(value)))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
                Ok(Scalar(ParameterValue::Float(value)))
            }

            fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Self::Value, E> {
                Ok(Scalar(ParameterValue::Text(Cow::Borrowed(text))))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Scalar(ParameterValue::Text(Cow::Owned(text.to_owned()))))
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(json: &str) -> (String, Option<u32>) {
        let mut parameters = Vec::new();
        let error = parse(json.as_bytes(), &mut parameters).expect_err(json);
        assert_eq!(parameters, [], "{json}");
        (error.message, error.column)
    }

    #[test]
    fn texts_are_borrowed_and_values_keep_their_type() {
        let json =
            br#"{"parameters": {"home": "42", "target": 22.5, "rooms": -3, "night": true, "note": null, "tab": "\t"},
                        "name": "kims_ac", "application": "ac_control", "label": "home 42"}"#;
        let mut parameters = vec![("earlier".into(), ParameterValue::Null)];
        let submission = parse(json, &mut parameters).expect("a submission");
        assert!(matches!(submission.name, Some(Cow::Borrowed("kims_ac"))));
        assert!(matches!(submission.application, Cow::Borrowed("ac_control")));
        assert!(matches!(submission.label, Some(Cow::Borrowed("home 42"))));
        assert_eq!(submission.parameters, 1..7);
        assert!(matches!(&parameters[1], (Cow::Borrowed("home"), ParameterValue::Text(Cow::Borrowed("42")))));
        let values: Vec<_> = parameters[2..].iter().map(|(_, value)| value.clone()).collect();
        assert_eq!(
            values,
            [
                ParameterValue::Float(22.5),
                ParameterValue::Int(-3),
                ParameterValue::Bool(true),
                ParameterValue::Null,
                ParameterValue::Text("\t".into()),
            ]
        );
    }

    #[test]
    fn name_and_parameters_may_be_left_out() {
        for json in [r#"{"application":"a"}"#, r#" {"name":null,"application":"a","parameters":{},"label":null} "#] {
            let submission = parse(json.as_bytes(), &mut Vec::new()).expect(json);
            assert_eq!(submission, Submission { name: None, application: "a".into(), parameters: 0..0, label: None });
        }
    }

    #[test]
    fn of_a_change_what_is_left_out_is_told_from_null() {
        for (json, label) in [
            (r#"{"parameters":{"limit":30}}"#, None),
            (r#"{"label":null,"parameters":{"limit":30}}"#, Some(None)),
            (r#"{"parameters":{"limit":30},"label":"home 42"}"#, Some(Some(Cow::Borrowed("home 42")))),
        ] {
            let mut parameters = Vec::new();
            assert_eq!(
                parse_change(json.as_bytes(), &mut parameters),
                Ok(Change { parameters: 0..1, label }),
                "{json}"
            );
        }
        let error = parse_change(br#"{"name":"q"}"#, &mut Vec::new()).expect_err("a name stays");
        assert_eq!(error.message, "there is no field name, only parameters and label");
        assert!(error.hint.is_some_and(|hint| hint.starts_with("a change is")));
    }

    #[test]
    fn mistakes_are_named_with_their_column() {
        for (json, message, column) in [
            ("{", "not JSON: EOF while parsing an object", 1),
            (r#"{"application":"a"} x"#, "not JSON: trailing characters", 21),
            ("[]", "invalid type: sequence, expected a query as a JSON object", 0),
            (r#"{"name":"n"}"#, "the field application is missing", 12),
            (r#"{"application":7}"#, "invalid type: integer `7`, expected text", 16),
            (r#"{"app":"a"}"#, "there is no field app, only name, application, parameters and label", 6),
            (r#"{"name":"n","name":"m"}"#, "the field name is there twice", 18),
            (r#"{"label":"n","label":null}"#, "the field label is there twice", 20),
            (r#"{"parameters":{"x":1,"x":2}}"#, "the parameter x is there twice", 24),
            (r#"{"parameters":{"x":18446744073709551615}}"#, "the number 18446744073709551615 is too large", 39),
            (
                r#"{"parameters":{"x":1,"y":[]}}"#,
                "invalid type: sequence, expected a text, number, boolean or null as a parameter's value",
                27,
            ),
            (r#"{"parameters":{"x":NaN}}"#, "not JSON: expected value", 20),
        ] {
            assert_eq!(error(json), (message.to_owned(), Some(column).filter(|&column| column > 0)), "{json}");
        }
        let invalid_utf8 = parse(b"{\"application\":\"\xff\"}", &mut Vec::new()).expect_err("not UTF-8");
        assert_eq!(invalid_utf8.message, "not JSON: invalid unicode code point");
        let many: Vec<String> = (0..=PARAMETERS_MAX).map(|place| format!("\"p{place}\":0")).collect();
        assert_eq!(error(&format!("{{\"parameters\":{{{}}}}}", many.join(","))).0, "more than 256 parameters");
        assert!(error(&"[".repeat(100_000)).0.starts_with("invalid type"), "nesting must not exhaust the stack");
    }
}
