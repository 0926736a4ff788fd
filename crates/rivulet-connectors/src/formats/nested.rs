//! Arrays, maps and rows read from JSON.
//!
//! What must hold: each part is of its declared type, or null; a payload with another one is refused. The value is held
//! as [`parts`](super::parts) says; only the elements of an array of numbers or texts are held as they are sent.

use super::fault::{Fault, Problem};
use super::json::{Reader, append_integer, append_json_string};
use super::number::no_number;
use super::parts::{Part, PartWriter, append_float};

/// Buffers for values that are read, empty between uses.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Strings that are written with escapes, decoded.
    strings: Vec<u8>,
    pub(super) writer: PartWriter,
}

impl Buffers {
    /// Takes the value of a type with parts that begins here, and appends it to `out`.
    pub(crate) fn read(&mut self, reader: &mut Reader<'_>, part: &Part, out: &mut Vec<u8>) -> Result<(), Fault> {
        // A value that was refused may have left what was read of it.
        self.strings.clear();
        self.writer.begin(reader.payload().len(), out);
        match part {
            Part::Array(element) => self.array(reader, element, 1, out),
            part => self.value(reader, part, 1, false, out),
        }
    }

    /// Takes an array; `depth` counts the containers that are open around its elements.
    fn array(&mut self, reader: &mut Reader<'_>, element: &Part, depth: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.push(b'[');
        let mut another = reader.enter(b']');
        while another {
            self.value(reader, element, depth, depth == 1, out)?;
            another = reader.another(b']')?;
            out.extend_from_slice(if another { b"," } else { b"" });
        }
        out.push(b']');
        Ok(())
    }

    /// Takes a value. A number or text is appended as it was sent if `as_sent`.
    fn value(
        &mut self,
        reader: &mut Reader<'_>,
        part: &Part,
        depth: usize,
        as_sent: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let at = reader.offset();
        self.writer.check(out).map_err(|problem| Fault::new(problem, at))?;
        if reader.take_null() {
            out.extend_from_slice(b"null");
            return Ok(());
        }
        let refused = |problem| Fault::new(problem, at);
        match part {
            Part::Integer => {
                let (number, text) = reader.number(Problem::ExpectedNumber)?;
                let value = number.to_i64(text).map_err(refused)?;
                append_integer(value.unsigned_abs(), value < 0, out);
            }
            Part::Float if reader.peek() == b'"' => {
                let span = reader.string_span(&mut self.strings)?;
                let problem = no_number(span.of(reader.payload(), &self.strings), Problem::ExpectedNumber);
                return Err(refused(problem));
            }
            Part::Float => {
                let (number, text) = reader.number(Problem::ExpectedNumber)?;
                let value = number.to_f64(text).map_err(refused)?;
                match as_sent {
                    true => out.extend_from_slice(text),
                    false => append_float(value, out),
                }
            }
            Part::Boolean => {
                reader.boolean()?;
                out.extend_from_slice(reader.since(at));
            }
            Part::Text if reader.peek() != b'"' => return Err(refused(Problem::ExpectedString)),
            Part::Text => self.string(reader, as_sent, out)?,
            Part::Any => {
                reader.skip_value(depth)?;
                out.extend_from_slice(reader.since(at));
            }
            Part::Array(_) | Part::Map(_) | Part::Row(_) if reader.peek() != part.begin().0 => {
                return Err(refused(part.begin().1));
            }
            Part::Array(element) => self.array(reader, element, depth + 1, out)?,
            Part::Map(value) => self.map(reader, value, depth, out)?,
            Part::Row(fields) => self.row(reader, fields, depth, out)?,
        }
        Ok(())
    }

    /// Takes a string.
    fn string(&mut self, reader: &mut Reader<'_>, as_sent: bool, out: &mut Vec<u8>) -> Result<(), Fault> {
        let at = reader.offset();
        reader.string_span(&mut self.strings)?;
        match self.strings.is_empty() || as_sent {
            true => out.extend_from_slice(reader.since(at)),
            false => append_text(&self.strings, at, out)?,
        }
        self.strings.clear();
        Ok(())
    }

    /// Takes an object with any keys.
    fn map(&mut self, reader: &mut Reader<'_>, value: &Part, depth: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
        let mut map = self.writer.open_map(out);
        let mut another = reader.enter(b'}');
        while another {
            let at = reader.offset();
            let span = reader.key(&mut self.strings)?;
            let key = std::str::from_utf8(span.of(reader.payload(), &self.strings));
            let key = key.map_err(|_| Fault::new(Problem::InvalidUtf8, at))?;
            self.writer.open_member(&mut map, key, out);
            self.strings.clear();
            self.value(reader, value, depth + 1, false, out)?;
            self.writer.close_member(out);
            another = reader.another(b'}')?;
        }
        self.writer.close_map(map, out);
        Ok(())
    }

    /// Takes an object with these fields. As with columns, a key that is a field but for the case of its letters means
    /// that one, unless it has a value. Other keys are left out.
    fn row(
        &mut self,
        reader: &mut Reader<'_>,
        fields: &[(String, Part)],
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let row = self.writer.open_row(fields.len(), out);
        let mut another = reader.enter(b'}');
        while another {
            let span = reader.key(&mut self.strings)?;
            let key = span.of(reader.payload(), &self.strings);
            let field = fields.iter().position(|(name, _)| name.as_bytes() == key).or_else(|| {
                let is_variant = |name: &str| name.as_bytes().eq_ignore_ascii_case(key);
                let found = fields.iter().position(|(name, _)| is_variant(name));
                found.filter(|field| !self.writer.is_set(&row, *field))
            });
            self.strings.clear();
            match field {
                Some(field) => {
                    let begin = out.len();
                    self.value(reader, &fields[field].1, depth + 1, false, out)?;
                    self.writer.set_field(&row, field, begin, out);
                }
                None => reader.skip_value(depth + 1)?,
            }
            another = reader.another(b'}')?;
        }
        self.writer.close_row(row, fields, out);
        Ok(())
    }
}

/// Appends a decoded string, which was read at `at`.
fn append_text(text: &[u8], at: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    let text = std::str::from_utf8(text).map_err(|_| Fault::new(Problem::InvalidUtf8, at))?;
    append_json_string(text, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(part: &Part, text: &str) -> Result<String, Problem> {
        let (mut reader, mut out) = (Reader::new(text.as_bytes()), b"before".to_vec());
        // What a refused value leaves in the buffers harms no other.
        let mut buffers = Buffers { strings: b"x".to_vec(), writer: PartWriter::default() };
        buffers.writer.open_row(1, b"");
        let read = buffers.read(&mut reader, part, &mut out).and_then(|()| reader.finish());
        read.map(|()| String::from_utf8(out.split_off(6)).unwrap()).map_err(|fault| fault.problem())
    }

    fn row() -> Part {
        let of = |name: &str, part| (name.to_owned(), part);
        Part::Row(vec![of("a", Part::Integer), of("b \"", Part::Text), of("", Part::Map(Box::new(Part::Boolean)))])
    }

    #[test]
    fn maps_have_their_keys_in_order() {
        let map = Part::Map(Box::new(Part::Float));
        for (text, expected) in [
            ("{}", "{}"),
            (r#"{ "a" : 1.50 , "b":null}"#, r#"{"a":1.5,"b":null}"#),
            (r#"{"b":1e3,"\u0061":-0.0}"#, r#"{"a":0.0,"b":1000.0}"#),
            (r#"{"b":1,"a":2,"b":3,"ab":4,"a":5}"#, r#"{"a":5.0,"ab":4.0,"b":3.0}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2.0}"#),
            (r#"{"é\n":1,"":2}"#, r#"{"":2.0,"é\n":1.0}"#),
        ] {
            assert_eq!(read(&map, text).as_deref(), Ok(expected), "{text}");
        }
        let inner = Part::Map(Box::new(Part::Map(Box::new(Part::Integer))));
        let text = r#"{"z":{"b":1,"a":2},"y":{"d":3,"c":4},"z":{"f":5,"e":6}}"#;
        assert_eq!(read(&inner, text).as_deref(), Ok(r#"{"y":{"c":4,"d":3},"z":{"e":6,"f":5}}"#));
    }

    #[test]
    fn rows_have_the_declared_fields() {
        for (text, expected) in [
            ("{}", r#"{"a":null,"b \"":null,"":null}"#),
            (
                r#"{"":{"x":true,"w":false},"other":[{}],"b \"":"\u0041\n","a":7}"#,
                r#"{"a":7,"b \"":"A\n","":{"w":false,"x":true}}"#,
            ),
            (r#"{"a":1,"a":2,"b \"":"\\"}"#, r#"{"a":2,"b \"":"\\","":null}"#),
            (r#"{"A":1,"B \"":"x","A":"y"}"#, r#"{"a":1,"b \"":"x","":null}"#),
            (r#"{"A":1,"a":2}"#, r#"{"a":2,"b \"":null,"":null}"#),
        ] {
            assert_eq!(read(&row(), text).as_deref(), Ok(expected), "{text}");
        }
        let rows = Part::Array(Box::new(row()));
        let two = r#"[{"a":1},null,{"b \"":"x"}]"#;
        let expected = r#"[{"a":1,"b \"":null,"":null},null,{"a":null,"b \"":"x","":null}]"#;
        assert_eq!(read(&rows, two).as_deref(), Ok(expected));
        let any = Part::Map(Box::new(Part::Any));
        assert_eq!(read(&any, r#"{"b":[1, {}],"a": "x"}"#).as_deref(), Ok(r#"{"a":"x","b":[1, {}]}"#));
        let arrays = Part::Array(Box::new(Part::Array(Box::new(Part::Float))));
        assert_eq!(read(&arrays, "[[1],[],[2.50]]").as_deref(), Ok("[[1.0],[],[2.5]]"));
    }

    #[test]
    fn other_values_are_refused() {
        let map = Part::Map(Box::new(Part::Integer));
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100));
        for (part, text, problem) in [
            (&map, r#"{"a":1.5}"#, Problem::ExpectedInteger),
            (&map, r#"{"a":"1"}"#, Problem::ExpectedNumber),
            (&map, r#"{"a":{}}"#, Problem::ExpectedNumber),
            (&Part::Map(Box::new(Part::Float)), r#"{"a":"-Infinity"}"#, Problem::NotFinite),
            (&Part::Map(Box::new(Part::Float)), r#"{"a":"1"}"#, Problem::ExpectedNumber),
            (&map, r#"{"a":1"#, Problem::ExpectedCommaOrBrace),
            (&map, r#"{"a" 1}"#, Problem::ExpectedColon),
            (&map, r#"{a:1}"#, Problem::ExpectedKey),
            (&row(), r#"{"":[]}"#, Problem::ExpectedObject),
            (&row(), r#"{"a":true}"#, Problem::ExpectedNumber),
            (&row(), r#"{"other":tru}"#, Problem::ExpectedValue),
            (&Part::Map(Box::new(Part::Array(Box::new(Part::Text)))), r#"{"a":"x"}"#, Problem::ExpectedArray),
            (&Part::Map(Box::new(Part::Any)), deep.as_str(), Problem::TooDeep),
        ] {
            assert_eq!(read(part, text), Err(problem), "{text}");
        }
    }

    #[test]
    fn small_payloads_do_not_become_large_values() {
        let fields = (0..100).map(|number| (format!("a rather long name {number}"), Part::Integer));
        let rows = Part::Array(Box::new(Part::Row(fields.collect())));
        let empty = |count| format!("[{}]", vec!["{}"; count].join(","));
        assert!(read(&rows, &empty(1_000)).is_ok_and(|text| text.len() > 2_000_000));
        assert_eq!(read(&rows, &empty(10_000)), Err(Problem::TooLargeValue));
    }
}
