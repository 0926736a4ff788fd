//! A value with parts, read from the JSON in which it is held, for encoders of formats that have such values.
//!
//! The value is a run of items; its inner values stand behind it, in order. The fields of a row are in the order in
//! which they are declared, null where there is none. The buffers are kept from one value to the next.

use super::fault::{Fault, Problem};
use super::json::{DEPTH_MAX, Reader};
use super::number::not_finite;
use super::parts::{Part, field_named};

/// The value that was read last.
#[derive(Default)]
pub(crate) struct Tape {
    items: Vec<Item>,
    texts: Vec<u8>,
    /// Where in the text the fields of rows that are being read begin, those of inner rows last.
    fields: Vec<Option<usize>>,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    /// Where the text begins and ends.
    Text(usize, usize),
    /// The number of its elements, and the item behind the last.
    Array(usize, usize),
    /// The number of its keys, each before its value, and the item behind the last.
    Map(usize, usize),
    /// The item behind the last field.
    Row(usize),
}

/// A value on a tape.
#[derive(Clone, Copy)]
pub(crate) struct Value<'t> {
    tape: &'t Tape,
    at: usize,
}

/// What a value is. Maps give a key and its value by turns.
pub(crate) enum Held<'t> {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(&'t str),
    Array(usize, Values<'t>),
    Map(usize, Values<'t>),
    Row(Values<'t>),
}

/// Values that follow each other.
#[derive(Clone)]
pub(crate) struct Values<'t> {
    tape: &'t Tape,
    at: usize,
    end: usize,
}

impl Tape {
    /// Reads the value of this type that a text is. A text that is no such value is read as an empty one: an array or a
    /// map without values, a row of nulls.
    pub(crate) fn read(&mut self, text: &str, part: &Part) -> Value<'_> {
        self.clear();
        let mut reader = Reader::new(text.as_bytes());
        reader.skip_whitespace();
        let read = self.value(&mut reader, part, 0).and_then(|()| reader.finish());
        if read.is_err() || matches!(self.items[..], [Item::Null]) {
            self.clear();
            self.items.push(match part {
                Part::Array(_) => Item::Array(0, 1),
                Part::Map(_) => Item::Map(0, 1),
                Part::Row(fields) => Item::Row(1 + fields.len()),
                _ => Item::Null,
            });
            if let Part::Row(fields) = part {
                self.items.extend(fields.iter().map(|_| Item::Null));
            }
        }
        Value { tape: self, at: 0 }
    }

    fn clear(&mut self) {
        self.items.clear();
        self.texts.clear();
        self.fields.clear();
    }

    fn value(&mut self, reader: &mut Reader<'_>, part: &Part, depth: usize) -> Result<(), Fault> {
        let at = reader.offset();
        let refused = |problem| Fault::new(problem, at);
        if reader.take_null() {
            self.items.push(Item::Null);
            return Ok(());
        }
        let item = match part {
            Part::Boolean => Item::Boolean(reader.boolean()?),
            Part::Integer => {
                let (number, text) = reader.number(Problem::ExpectedNumber)?;
                Item::Integer(number.to_i64(text).map_err(refused)?)
            }
            Part::Float if reader.peek() == b'"' => {
                let start = self.texts.len();
                reader.string_into(&mut self.texts)?;
                let value = not_finite(&self.texts[start..]);
                self.texts.truncate(start);
                Item::Float(value.ok_or(refused(Problem::ExpectedNumber))?)
            }
            Part::Float => {
                let (number, text) = reader.number(Problem::ExpectedNumber)?;
                Item::Float(number.to_f64(text).map_err(refused)?)
            }
            Part::Text | Part::Any if reader.peek() == b'"' => self.text(reader)?,
            Part::Text => return Err(refused(Problem::ExpectedString)),
            // Other values than texts are given as they are written.
            Part::Any => {
                reader.skip_value(depth)?;
                let start = self.texts.len();
                self.texts.extend_from_slice(reader.since(at));
                Item::Text(start, self.texts.len())
            }
            _ if depth >= DEPTH_MAX => return Err(refused(Problem::TooDeep)),
            _ if reader.peek() != part.begin().0 => return Err(refused(part.begin().1)),
            Part::Array(element) => return self.array(reader, element, depth + 1),
            Part::Map(value) => return self.map(reader, value, depth + 1),
            Part::Row(fields) => return self.row(reader, fields, depth + 1),
        };
        self.items.push(item);
        Ok(())
    }

    fn text(&mut self, reader: &mut Reader<'_>) -> Result<Item, Fault> {
        let start = self.texts.len();
        reader.string_into(&mut self.texts)?;
        Ok(Item::Text(start, self.texts.len()))
    }

    fn array(&mut self, reader: &mut Reader<'_>, element: &Part, depth: usize) -> Result<(), Fault> {
        let (place, mut count) = (self.items.len(), 0);
        self.items.push(Item::Null);
        let mut another = reader.enter(b']');
        while another {
            self.value(reader, element, depth)?;
            count += 1;
            another = reader.another(b']')?;
        }
        self.items[place] = Item::Array(count, self.items.len());
        Ok(())
    }

    fn map(&mut self, reader: &mut Reader<'_>, value: &Part, depth: usize) -> Result<(), Fault> {
        let (place, mut count) = (self.items.len(), 0);
        self.items.push(Item::Null);
        let mut another = reader.enter(b'}');
        while another {
            let key = self.key(reader)?;
            self.items.push(key);
            self.value(reader, value, depth)?;
            count += 1;
            another = reader.another(b'}')?;
        }
        self.items[place] = Item::Map(count, self.items.len());
        Ok(())
    }

    /// Takes a key and the colon behind it.
    fn key(&mut self, reader: &mut Reader<'_>) -> Result<Item, Fault> {
        let start = self.texts.len();
        let span = reader.key(&mut self.texts)?;
        if self.texts.len() == start {
            self.texts.extend_from_slice(span.of(reader.payload(), &[]));
        }
        Ok(Item::Text(start, self.texts.len()))
    }

    fn row(&mut self, reader: &mut Reader<'_>, fields: &[(String, Part)], depth: usize) -> Result<(), Fault> {
        let (place, first, texts) = (self.items.len(), self.fields.len(), self.texts.len());
        self.items.push(Item::Null);
        self.fields.resize(first + fields.len(), None);
        let (mut next, mut another) = (0, reader.enter(b'}'));
        while another {
            self.key(reader)?;
            let field = field_named(fields, &self.texts[texts..], next);
            self.texts.truncate(texts);
            if let Some(field) = field {
                self.fields[first + field] = Some(reader.offset());
                next = field + 1;
            }
            reader.skip_value(depth)?;
            another = reader.another(b'}')?;
        }
        for (field, (_, part)) in fields.iter().enumerate() {
            match self.fields[first + field] {
                Some(at) => self.value(&mut Reader::at(reader.payload(), at), part, depth)?,
                None => self.items.push(Item::Null),
            }
        }
        self.fields.truncate(first);
        self.items[place] = Item::Row(self.items.len());
        Ok(())
    }
}

impl<'t> Value<'t> {
    /// What the value is.
    pub(crate) fn held(self) -> Held<'t> {
        let Self { tape, at } = self;
        let inner = |end| Values { tape, at: at + 1, end };
        match tape.items[at] {
            Item::Null => Held::Null,
            Item::Boolean(value) => Held::Boolean(value),
            Item::Integer(value) => Held::Integer(value),
            Item::Float(value) => Held::Float(value),
            // What a reader of JSON takes as a string is UTF-8.
            Item::Text(start, end) => Held::Text(std::str::from_utf8(&tape.texts[start..end]).unwrap_or_default()),
            Item::Array(count, end) => Held::Array(count, inner(end)),
            Item::Map(count, end) => Held::Map(count, inner(end)),
            Item::Row(end) => Held::Row(inner(end)),
        }
    }

    /// Whether the value is null.
    pub(crate) fn is_null(self) -> bool {
        matches!(self.tape.items[self.at], Item::Null)
    }
}

impl<'t> Iterator for Values<'t> {
    type Item = Value<'t>;

    fn next(&mut self) -> Option<Value<'t>> {
        let Self { tape, at, end } = *self;
        if at >= end {
            return None;
        }
        self.at = match tape.items[at] {
            Item::Array(_, end) | Item::Map(_, end) | Item::Row(end) => end,
            _ => at + 1,
        };
        Some(Value { tape, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(value: Value<'_>) -> String {
        let all = |values: Values<'_>| values.map(shown).collect::<Vec<_>>().join(" ");
        match value.held() {
            Held::Null => "null".into(),
            Held::Boolean(value) => value.to_string(),
            Held::Integer(value) => value.to_string(),
            Held::Float(value) => format!("{value:?}"),
            Held::Text(text) => format!("{text:?}"),
            Held::Array(count, values) => format!("{count}[{}]", all(values)),
            Held::Map(count, values) => format!("{count}{{{}}}", all(values)),
            Held::Row(values) => format!("({})", all(values)),
        }
    }

    #[test]
    fn values_are_read_by_their_types() {
        let of = |name: &str, part| (name.to_owned(), part);
        let row = Part::Row(vec![of("n", Part::Integer), of("b\n", Part::Boolean), of("any", Part::Any)]);
        let map = |part| Part::Map(Box::new(part));
        let array = |part| Part::Array(Box::new(part));
        let mut tape = Tape::default();
        for (part, text, expected) in [
            (array(Part::Float), r#"[1.5,null,"-Infinity",2]"#, "4[1.5 null -inf 2.0]"),
            (array(Part::Any), r#"["a\n",{"b":[1]},2,null]"#, r#"4["a\n" "{\"b\":[1]}" "2" null]"#),
            (map(array(Part::Text)), r#"{"a":["x","\"é"],"b\t":[]}"#, r#"2{"a" 2["x" "\"é"] "b\t" 0[]}"#),
            (row.clone(), r#"{"n":1,"b\n":true,"any":{"n":2}}"#, r#"(1 true "{\"n\":2}")"#),
            (row.clone(), r#" {"other":[{}],"any":"x","n":null,"n":7} "#, r#"(7 null "x")"#),
            (array(map(row.clone())), r#"[{"k":{"b\n":false}},{}]"#, r#"2[1{"k" (null false null)} 0{}]"#),
            // What is no such value is an empty one.
            (array(Part::Integer), "[1,2.5]", "0[]"),
            (map(Part::Text), r#"{"a":1}"#, "0{}"),
            (row.clone(), r#"{"n":"x"}"#, "(null null null)"),
            (row, "{} {}", "(null null null)"),
            (map(Part::Text), "null", "0{}"),
        ] {
            assert_eq!(shown(tape.read(text, &part)), expected, "{text}");
        }
        let deep = (0..100).fold(Part::Integer, |part, _| array(part));
        assert_eq!(shown(tape.read(&format!("{}{}", "[".repeat(100), "]".repeat(100)), &deep)), "0[]");
    }
}
