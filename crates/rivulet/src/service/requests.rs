//! What is asked for: values of parameters, new queries, and changes of values.

use std::borrow::Cow;
use std::sync::Arc;

use rivulet_dataflow::QueryId;
use serde_json::Value;

/// A parameter's value as it was written, before it is converted to the declared type.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue<'a> {
    /// `NULL`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other finite number.
    Float(f64),
    /// Text; also how timestamps and intervals are written.
    Text(Cow<'a, str>),
}

impl ParameterValue<'static> {
    /// The value that JSON stands for; `None` for a list or an object.
    pub fn of_json(value: Value) -> Option<Self> {
        Some(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(number) => match number.as_i64() {
                Some(whole) => Self::Int(whole),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Self::Text(text.into()),
            Value::Array(_) | Value::Object(_) => return None,
        })
    }
}

impl ParameterValue<'_> {
    /// The value as JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::from(*value),
            Self::Float(value) => Value::from(*value),
            Self::Text(value) => Value::from(value.as_ref()),
        }
    }
}

/// A parameter's name and value. Borrowed from the request unless it was written with escapes.
pub type Parameter<'a> = (Cow<'a, str>, ParameterValue<'a>);

/// One query to be created.
#[derive(Clone, Copy, Debug)]
pub struct QueryRequest<'a> {
    /// Its name; generated if `None`.
    pub name: Option<&'a str>,
    /// Name or id of the application.
    pub application: &'a str,
    /// Parameter values by name, in the order written.
    pub parameters: &'a [Parameter<'a>],
    /// What it belongs to, for example a home: applications whose queries have a label in common are placed together.
    pub label: Option<&'a str>,
}

/// Other values for a query that runs.
#[derive(Clone, Copy, Debug)]
pub struct QueryChange<'a> {
    /// Its name.
    pub name: &'a str,
    /// Parameter values by name, in the order written. Parameters that are not named keep their values.
    pub parameters: &'a [Parameter<'a>],
    /// What it belongs to from now on, `Some(None)` for nothing; `None` to keep the label.
    pub label: Option<Option<&'a str>>,
    /// Name or id of the application that it must belong to. If given, these are all its values, as if it were
    /// submitted anew: parameters that are not named get their default.
    pub whole_of: Option<&'a str>,
}

/// A query whose values were changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alteration {
    /// Its number.
    pub id: QueryId,
    /// What changed; `None` if it had these values already.
    pub effect: Option<Arc<AlterationEffect>>,
    /// Why it will probably give no results from now on; `None` if it will.
    pub warning: Option<String>,
}

/// What changed with the values of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlterationEffect {
    /// The changed parameters on which no state depends.
    pub state_kept: Vec<String>,
    /// The changed parameters on which state depends. That state has begun anew.
    pub state_reset: Vec<String>,
    /// The operators that have begun anew, in words.
    pub begun_anew: Vec<String>,
}

impl Alteration {
    /// In a sentence, for users.
    pub fn text(&self, name: &str) -> String {
        let Some(effect) = &self.effect else {
            return format!("query {name} has these values already, nothing was done");
        };
        let mut text = format!("query {name} altered");
        if !effect.state_kept.is_empty() {
            text += &format!("; state is kept: {}", effect.state_kept.join(", "));
        }
        match (effect.state_reset.is_empty(), effect.begun_anew.is_empty()) {
            (true, _) => {}
            (false, true) => text += &format!("; reads other events: {}", effect.state_reset.join(", ")),
            (false, false) => {
                let (reset, begun) = (effect.state_reset.join(", "), effect.begun_anew.join("; "));
                text += &format!("; state begins anew: {reset} ({begun})");
            }
        }
        if let Some(warning) = &self.warning {
            text += &format!("\nwarning: {warning}");
        }
        text
    }
}
