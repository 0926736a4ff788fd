//! Avro schemas as a tree of nodes, with named types by number.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Schema};
use serde_json::{Value, json};

use crate::formats::parts::Part;

/// How deep types may be nested. Named types may contain themselves, so that values are bounded on their own.
const DEPTH_MAX: usize = 64;

/// A type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Boolean,
    /// `int` and `long`, which are written alike.
    Integer,
    Float,
    Double,
    Bytes,
    String,
    /// A time, and how many microseconds its unit has, or how many of its units a microsecond has.
    Time(TimeUnit),
    /// A time of day.
    TimeOfDay(TimeUnit),
    /// Big-endian two's complement in bytes, or in so many of them, of at most `precision` digits.
    Decimal {
        fixed: Option<usize>,
        precision: u32,
        scale: i32,
    },
    Fixed(usize),
    Enum(Vec<String>),
    Array(Box<Node>),
    Map(Box<Node>),
    Union(Vec<Node>),
    /// The record with this number.
    Record(usize),
}

/// Units of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    Days,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl TimeUnit {
    /// A count of these units since the epoch in microseconds.
    pub(super) fn to_us(self, value: i64) -> Option<i64> {
        match self {
            Self::Days => value.checked_mul(86_400_000_000),
            Self::Milliseconds => value.checked_mul(1000),
            Self::Microseconds => Some(value),
            Self::Nanoseconds => Some(value.div_euclid(1000)),
        }
    }

    /// Microseconds since the epoch as a count of these units.
    pub(super) fn of_us(self, time_us: i64) -> i64 {
        match self {
            Self::Days => time_us.div_euclid(86_400_000_000),
            Self::Milliseconds => time_us.div_euclid(1000),
            Self::Microseconds => time_us,
            // Times are within the years 1 to 9999; beyond the years 1678 to 2262 there is no such count, and the
            // nearest has to do.
            Self::Nanoseconds => time_us.saturating_mul(1000),
        }
    }
}

/// A record: its fields, in order.
pub(super) type Fields = Vec<(String, Node)>;

/// A schema whose values are records.
#[derive(Clone, Debug)]
pub(super) struct AvroSchema {
    records: Vec<Fields>,
    root: usize,
    text: String,
}

impl AvroSchema {
    /// Reads a schema.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut names = Names::default();
        match names.node(&value, "", 0)? {
            Node::Record(root) => {
                let records = names.records.into_iter().map(Option::unwrap_or_default).collect();
                Ok(Self { records, root, text: text.to_owned() })
            }
            _ => Err("it is no record".into()),
        }
    }

    /// The schema that columns suggest: a record with a field for each, null where that may be.
    pub(super) fn of_columns(columns: &Schema) -> Result<Self, String> {
        let (mut fields, mut records) = (Vec::with_capacity(columns.fields().len()), 0);
        for field in columns.fields() {
            let name = name_of(field.name())?;
            let plain = match crate::formats::cells::written_as(field.data_type()) {
                _ if let Some(part) = Part::of_column(field) => suggested(&part, &mut records)?,
                Some(DataType::Boolean) => json!("boolean"),
                Some(DataType::Int64)
                    if matches!(field.data_type(), DataType::Int8 | DataType::Int16 | DataType::Int32) =>
                {
                    json!("int")
                }
                Some(DataType::Int64 | DataType::UInt64) => json!("long"),
                Some(DataType::Float32) => json!("float"),
                Some(DataType::Date32) => json!({"type": "int", "logicalType": "date"}),
                Some(DataType::Time64(_)) => json!({"type": "long", "logicalType": "time-micros"}),
                Some(DataType::Decimal128(precision, scale)) => {
                    json!({"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale})
                }
                Some(DataType::Float64) => json!("double"),
                Some(DataType::Timestamp(..)) => json!({"type": "long", "logicalType": "timestamp-micros"}),
                _ => json!("string"),
            };
            let kind = if field.is_nullable() { json!(["null", plain]) } else { plain };
            fields.push(json!({"name": name, "type": kind}));
        }
        Self::parse(&json!({"type": "record", "name": "row", "fields": fields}).to_string())
    }

    /// The schema as it was given.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The fields of the record that a payload is.
    pub(super) fn root(&self) -> &Fields {
        &self.records[self.root]
    }

    /// The fields of a record.
    pub(super) fn record(&self, number: usize) -> &Fields {
        &self.records[number]
    }
}

/// The name, if a field may have it.
fn name_of(name: &str) -> Result<&str, String> {
    let is_first = |first: char| first.is_ascii_alphabetic() || first == '_';
    match name.starts_with(is_first) && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_') {
        true => Ok(name),
        false => Err(format!("cannot call a field '{name}'")),
    }
}

/// The type that a part suggests, whose own parts may be null. Records have numbers in their names, from 1.
fn suggested(part: &Part, records: &mut usize) -> Result<Value, String> {
    Ok(match part {
        Part::Boolean => json!("boolean"),
        Part::Integer => json!("long"),
        Part::Float => json!("double"),
        Part::Text | Part::Any => json!("string"),
        Part::Array(element) => json!({"type": "array", "items": ["null", suggested(element, records)?]}),
        Part::Map(value) => json!({"type": "map", "values": ["null", suggested(value, records)?]}),
        Part::Row(row) => {
            *records += 1;
            let (name, mut fields) = (format!("row{records}"), Vec::with_capacity(row.len()));
            for (name, part) in row {
                fields.push(json!({"name": name_of(name)?, "type": ["null", suggested(part, records)?]}));
            }
            json!({"type": "record", "name": name, "fields": fields})
        }
    })
}

#[derive(Default)]
struct Names {
    records: Vec<Option<Fields>>,
    /// Types by their full names.
    known: HashMap<String, Node>,
}

impl Names {
    fn node(&mut self, value: &Value, namespace: &str, depth: usize) -> Result<Node, String> {
        if depth > DEPTH_MAX {
            return Err(format!("it is nested deeper than {DEPTH_MAX} levels"));
        }
        match value {
            Value::String(name) => self.named(name, namespace),
            Value::Array(branches) => {
                let branches: Vec<Node> =
                    branches.iter().map(|branch| self.node(branch, namespace, depth + 1)).collect::<Result<_, _>>()?;
                match branches.iter().any(|branch| matches!(branch, Node::Union(_))) {
                    true => Err("a union stands directly in a union".into()),
                    false => Ok(Node::Union(branches)),
                }
            }
            Value::Object(_) => self.object(value, namespace, depth),
            other => Err(format!("{other} is no type")),
        }
    }

    fn named(&self, name: &str, namespace: &str) -> Result<Node, String> {
        Ok(match name {
            "null" => Node::Null,
            "boolean" => Node::Boolean,
            "int" | "long" => Node::Integer,
            "float" => Node::Float,
            "double" => Node::Double,
            "bytes" => Node::Bytes,
            "string" => Node::String,
            _ => {
                let found = self.known.get(&full_name(name, namespace)).or_else(|| self.known.get(name));
                found.cloned().ok_or_else(|| format!("the type '{name}' is not known"))?
            }
        })
    }

    fn object(&mut self, value: &Value, namespace: &str, depth: usize) -> Result<Node, String> {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let kind = value.get("type").ok_or("an object has no 'type'")?;
        let Some(kind) = kind.as_str() else { return self.node(kind, namespace, depth + 1) };
        let own_namespace = text("namespace").unwrap_or(namespace);
        let name = || match text("name") {
            Some(name) => Ok(full_name(name, own_namespace)),
            None => Err(format!("a type '{kind}' has no name")),
        };
        match kind {
            "record" | "error" => {
                let name = name()?;
                let number = self.records.len();
                self.records.push(None);
                // Known before its fields are: it may contain itself.
                self.known.insert(name.clone(), Node::Record(number));
                let inner = name.rsplit_once('.').map_or("", |(namespace, _)| namespace).to_owned();
                let fields = value
                    .get("fields")
                    .and_then(Value::as_array)
                    .ok_or(format!("the record '{name}' has no fields"))?;
                let mut read = Vec::with_capacity(fields.len());
                for field in fields {
                    let field_name = field.get("name").and_then(Value::as_str).ok_or("a field has no name")?;
                    let node = field.get("type").ok_or(format!("the field '{field_name}' has no type"))?;
                    read.push((field_name.to_owned(), self.node(node, &inner, depth + 1)?));
                }
                self.records[number] = Some(read);
                Ok(Node::Record(number))
            }
            "enum" => {
                let symbols = value.get("symbols").and_then(Value::as_array).ok_or("an enum has no symbols")?;
                let symbols = symbols.iter().map(|one| one.as_str().map(str::to_owned).ok_or("a symbol is no text"));
                let node = Node::Enum(symbols.collect::<Result<_, _>>()?);
                self.known.insert(name()?, node.clone());
                Ok(node)
            }
            "fixed" => {
                let size = value.get("size").and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok());
                let size = size.ok_or("a fixed type has no size")?;
                let node = match text("logicalType") {
                    Some("decimal") => decimal_of(value, Some(size))?,
                    _ => Node::Fixed(size),
                };
                self.known.insert(name()?, node.clone());
                Ok(node)
            }
            "array" => {
                let items = value.get("items").ok_or("an array has no items")?;
                Ok(Node::Array(Box::new(self.node(items, namespace, depth + 1)?)))
            }
            "map" => {
                let values = value.get("values").ok_or("a map has no values")?;
                Ok(Node::Map(Box::new(self.node(values, namespace, depth + 1)?)))
            }
            _ => Ok(match (self.named(kind, namespace)?, text("logicalType")) {
                (Node::Integer, Some("date")) => Node::Time(TimeUnit::Days),
                (Node::Integer, Some("timestamp-millis" | "local-timestamp-millis")) => {
                    Node::Time(TimeUnit::Milliseconds)
                }
                (Node::Integer, Some("timestamp-micros" | "local-timestamp-micros")) => {
                    Node::Time(TimeUnit::Microseconds)
                }
                (Node::Integer, Some("timestamp-nanos" | "local-timestamp-nanos")) => Node::Time(TimeUnit::Nanoseconds),
                (Node::Integer, Some("time-millis")) => Node::TimeOfDay(TimeUnit::Milliseconds),
                (Node::Integer, Some("time-micros")) => Node::TimeOfDay(TimeUnit::Microseconds),
                (Node::Bytes, Some("decimal")) => decimal_of(value, None)?,
                // What a reader does not know, it passes by.
                (node, _) => node,
            }),
        }
    }
}

fn full_name(name: &str, namespace: &str) -> String {
    if namespace.is_empty() || name.contains('.') { name.to_owned() } else { format!("{namespace}.{name}") }
}

fn decimal_of(value: &Value, fixed: Option<usize>) -> Result<Node, String> {
    let precision = value.get("precision").and_then(Value::as_u64).and_then(|precision| u32::try_from(precision).ok());
    Ok(Node::Decimal { fixed, precision: precision.unwrap_or(38), scale: scale_of(value)? })
}

fn scale_of(value: &Value) -> Result<i32, String> {
    let scale = value.get("scale").unwrap_or(&json!(0)).as_i64();
    scale
        .filter(|scale| (0..=100).contains(scale))
        .map(|scale| scale as i32)
        .ok_or("the scale of a decimal is no number up to 100".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_resolved_in_their_namespaces() {
        let schema = AvroSchema::parse(
            r#"{"type": "record", "name": "A", "namespace": "x", "fields": [
                {"name": "next", "type": ["null", "A"]},
                {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["p", "q"]}},
                {"name": "other", "type": "x.K"},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                {"name": "size", "type": {"type": "int", "logicalType": "no-such"}}
            ]}"#,
        )
        .unwrap();
        let kind = Node::Enum(vec!["p".into(), "q".into()]);
        let expected = [
            ("next", Node::Union(vec![Node::Null, Node::Record(0)])),
            ("kind", kind.clone()),
            ("other", kind),
            ("at", Node::Time(TimeUnit::Milliseconds)),
            ("size", Node::Integer),
        ];
        assert_eq!(*schema.root(), expected.map(|(name, node)| (name.to_owned(), node)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let problem = |text: &str| AvroSchema::parse(text).unwrap_err();
        assert_eq!(problem(r#""string""#), "it is no record");
        assert!(problem("{").contains("EOF"));
        assert_eq!(problem(r#"{"type": "record", "name": "a"}"#), "the record 'a' has no fields");
        let unknown = r#"{"type": "record", "name": "a", "fields": [{"name": "x", "type": "b"}]}"#;
        assert_eq!(problem(unknown), "the type 'b' is not known");
        let deep = format!("{}\"int\"{}", r#"{"type": "array", "items": "#.repeat(100), "}".repeat(100));
        let deep = format!(r#"{{"type": "record", "name": "a", "fields": [{{"name": "x", "type": {deep}}}]}}"#);
        assert!(problem(&deep).contains("deeper than 64"));
    }
}
