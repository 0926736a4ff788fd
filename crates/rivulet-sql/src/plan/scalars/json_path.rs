//! `json_value(text, path)`, `json_query(text, path)`, `json_exists(text, path)`, `json_length(text, path)`: what a
//! text in JSON has at a path such as `$.radio.antennas[0]`.
//!
//! The path is read when the query is planned. A text is read as far as its values have to be told apart, and nothing
//! is copied but what is returned. A text that is no JSON has nothing at any path.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanBuilder, Int64Builder, StringArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue, internal_err, plan_err};
use datafusion_expr::Expr;
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::simplify::ExprSimplifyResult;
use rivulet_operators::{each_element, element_text};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::function::Function;

/// The functions, for the catalog.
pub(super) fn functions() -> [Function; 4] {
    [Which::Value, Which::Query, Which::Exists, Which::Length].map(|which| {
        let function = which.function(which.name(), 2);
        function.rewritten(move |arguments, _context| which.with_path(&arguments))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// A string, number or truth value, as text.
    Value,
    /// Anything, as JSON.
    Query,
    /// Whether a value is there.
    Exists,
    /// The number of elements of an array, or of members of an object.
    Length,
}

impl Which {
    const fn name(self) -> &'static str {
        match self {
            Self::Value => "json_value",
            Self::Query => "json_query",
            Self::Exists => "json_exists",
            Self::Length => "json_length",
        }
    }

    fn function(self, name: impl Into<String>, texts: usize) -> Function {
        let returns = match self {
            Self::Value | Self::Query => DataType::Utf8,
            Self::Exists => DataType::Boolean,
            Self::Length => DataType::Int64,
        };
        let function = Function::new(name, [vec![DataType::Utf8; texts]], returns);
        if self == Self::Query { function.returning_json() } else { function }
    }

    /// The function of one path, which takes the text alone.
    fn with_path(self, arguments: &[Expr]) -> Result<ExprSimplifyResult> {
        let name = self.name();
        let [text, Expr::Literal(ScalarValue::Utf8(Some(path)), _)] = arguments else {
            return plan_err!("the path of {name} must be a constant, such as '$.radio.rssi'");
        };
        let steps = match steps(path) {
            Ok(steps) => steps,
            Err(why) => return plan_err!("'{path}' is no path of {name}: {why}"),
        };
        let function = self.function(format!("{name} '{path}'"), 1).computed(move |columns| match columns {
            [texts] => Ok(self.of(texts.as_string::<i32>(), &steps)),
            _ => internal_err!("{name} takes one text"),
        });
        let call = ScalarFunction::new_udf(function.into(), vec![text.clone()]);
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(call)))
    }

    fn of(self, texts: &StringArray, path: &[Step]) -> ArrayRef {
        let rows = texts.len();
        let found = texts.iter().map(|text| text.and_then(|text| at(text, path)));
        match self {
            Self::Value => {
                let mut values = StringBuilder::with_capacity(rows, rows * 8);
                found.for_each(|found| values.append_option(found.and_then(plain)));
                Arc::new(values.finish())
            }
            Self::Query => {
                let mut values = StringBuilder::with_capacity(rows, rows * 16);
                found.for_each(|found| values.append_option(found.filter(|json| *json != "null")));
                Arc::new(values.finish())
            }
            Self::Exists => {
                let mut values = BooleanBuilder::with_capacity(rows);
                texts.iter().zip(found).for_each(|(text, found)| values.append_option(text.map(|_| found.is_some())));
                Arc::new(values.finish())
            }
            Self::Length => {
                let mut values = Int64Builder::with_capacity(rows);
                found.for_each(|found| values.append_option(found.and_then(length)));
                Arc::new(values.finish())
            }
        }
    }
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Element(usize),
}

/// Reads a path: `$.name`, `$."a name"`, `$['a name']`, `$[0]`, one behind the other; `$` and the first dot may be left
/// out.
fn steps(path: &str) -> Result<Vec<Step>, String> {
    let (mut steps, mut rest) = (Vec::new(), path.trim());
    let begins_with_name = match rest.strip_prefix('$') {
        Some(behind) => {
            rest = behind;
            false
        }
        None => !rest.starts_with(['[', '.']),
    };
    let quoted = |text: &str, quote: char| -> Result<(String, usize), String> {
        match text[1..].find(quote) {
            Some(end) => Ok((text[1..=end].to_owned(), end + 2)),
            None => Err(format!("the name behind {quote} is not closed")),
        }
    };
    while !rest.is_empty() {
        let first = rest.chars().next().unwrap_or_default();
        if first == '[' {
            let inside = rest[1..].trim_start();
            let (step, behind) = match inside.chars().next() {
                Some(quote @ ('"' | '\'')) => {
                    let (name, length) = quoted(inside, quote)?;
                    (Step::Member(name), &inside[length..])
                }
                _ => {
                    let digits = inside.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(inside.len());
                    let index = inside[..digits].parse();
                    let index = index.map_err(|_| "brackets take the index of an element, from 0, or a quoted name")?;
                    (Step::Element(index), &inside[digits..])
                }
            };
            steps.push(step);
            rest = behind.trim_start().strip_prefix(']').ok_or("a bracket is not closed")?;
            continue;
        }
        let is_first_name = steps.is_empty() && begins_with_name;
        let name = match rest.strip_prefix('.') {
            Some(behind) => behind,
            None if is_first_name => rest,
            None => return Err(format!("expected '.' or '[' in front of '{rest}'")),
        };
        if name.starts_with('"') {
            let (name_text, length) = quoted(name, '"')?;
            steps.push(Step::Member(name_text));
            rest = &name[length..];
            continue;
        }
        let end = name.find(['.', '[', ']', '*', '?', '@', '"', '\'', ' ']).unwrap_or(name.len());
        let (word, behind) = name.split_at(end);
        match behind.chars().next() {
            _ if word.is_empty() => return Err("a name is missing; a path leads to one value, as $.radio.rssi".into()),
            None | Some('.' | '[') => {}
            Some(sign) => return Err(format!("'{sign}' stands in a name; write the name in double quotes")),
        }
        steps.push(Step::Member(word.to_owned()));
        rest = behind;
    }
    Ok(steps)
}

/// The value at a path, as it is written; `None` if there is none, or if the text is no JSON.
fn at<'a>(text: &'a str, path: &[Step]) -> Option<&'a str> {
    // This reads the text to its end, so that what follows reads JSON.
    let mut found = serde_json::from_str::<&RawValue>(text).ok()?.get();
    for step in path {
        found = match step {
            Step::Member(name) if found.starts_with('{') => {
                Member(name).deserialize(&mut serde_json::Deserializer::from_str(found)).ok()??.get()
            }
            Step::Element(index) if found.starts_with('[') => {
                let (mut number, mut element) = (0, None);
                each_element(found, |one| {
                    element = element.or((number == *index).then_some(one));
                    number += 1;
                });
                element?
            }
            _ => return None,
        };
    }
    Some(found)
}

/// A string without its quotes, a number or a truth value as it is written.
fn plain(value: &str) -> Option<Cow<'_, str>> {
    if value.starts_with(['{', '[']) { None } else { element_text(value) }
}

/// The number of elements of an array, or of members of an object.
fn length(value: &str) -> Option<i64> {
    let mut count = 0;
    let is_counted = match value.starts_with('{') {
        true => serde_json::Deserializer::from_str(value).deserialize_map(Members(&mut count)).is_ok(),
        false => each_element(value, |_| count += 1),
    };
    is_counted.then_some(count)
}

/// Counts the members of an object.
struct Members<'c>(&'c mut i64);

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            *self.0 += 1;
        }
        Ok(())
    }
}

/// Finds the member with this name. Of several it is the last.
struct Member<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_it) = members.next_key_seed(Is(self.0))? {
            if is_it {
                found = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Whether a key is this name.
struct Is<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, path: &str) -> Option<String> {
        at(text, &steps(path).unwrap()).and_then(plain).map(Cow::into_owned)
    }

    #[test]
    fn a_path_leads_to_a_value() {
        let text = r#" {"a": {"b": [10, {"c d": "x\n"}], "b.c": true}, "e": null, "a": {"n": 1.50}} "#;
        assert_eq!(value(text, "$.a.n").as_deref(), Some("1.50"), "the last member of a name, as it is written");
        let text = r#"{"a": {"b": [10, {"c d": "x\n"}], "b.c": true, "e": null, "": 0}}"#;
        for path in ["$.a.b[1].\"c d\"", "a.b[1]['c d']", ".a.b[ 1 ][\"c d\"]", "$['a'].b[1].\"c d\""] {
            assert_eq!(value(text, path).as_deref(), Some("x\n"), "{path}");
        }
        assert_eq!(value(text, "a.\"b.c\"").as_deref(), Some("true"));
        assert_eq!(value(text, "a.\"\"").as_deref(), Some("0"));
        for nothing in ["$", "a", "a.e", "a.b", "a.b[2]", "a.b[0].c", "a[0]", "b", "a.B"] {
            assert_eq!(value(text, nothing), None, "{nothing}");
        }
        assert_eq!(value("7", "$").as_deref(), Some("7"));
        assert_eq!(value("1e999", "$").as_deref(), Some("1e999"));
    }

    #[test]
    fn what_is_no_json_has_nothing() {
        for text in ["", "{", "{\"a\": 1", "{\"a\": 1} x", "{\"a\": 01}", "{'a': 1}", "\"\\ud800\"", "nan"] {
            assert_eq!(value(text, "$.a"), None, "{text}");
            assert_eq!(value(text, "$"), None, "{text}");
        }
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(at(&deep, &steps("$[0][0]").unwrap()).is_some(), "depth costs no stack");
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for (path, why) in [
            ("$.", "a name is missing"),
            ("$..a", "a name is missing"),
            ("$.a[*]", "index of an element"),
            ("$.a[-1]", "index of an element"),
            ("$.*", "a name is missing"),
            ("$.a b", "write the name in double quotes"),
            ("$.a[?(@.b > 1)]", "index of an element"),
            ("$a", "expected '.' or '['"),
            ("$.\"a", "not closed"),
            ("$[0", "not closed"),
            ("$['a'", "not closed"),
            ("$[99999999999999999999]", "index of an element"),
            ("$.a]", "write the name"),
        ] {
            let error = steps(path).unwrap_err();
            assert!(error.contains(why), "{path}: {error}");
        }
    }

    #[test]
    fn elements_and_members_are_counted() {
        let count = |text: &str| at(text, &[]).and_then(length);
        let counts = [count("[1, [2, 3]]"), count("{\"a\": 1, \"b\": {}}"), count("[]"), count("7"), count("null")];
        assert_eq!(counts, [Some(2), Some(2), Some(0), None, None]);
    }
}
