//! Arrays, maps and records of Avro as values with parts.

use super::schema::{AvroSchema, Node};
use super::walk::{DEPTH_MAX, Walk, boolean, branch, each_item, symbol, text};
use crate::formats::binary::Bytes;
use crate::formats::fault::{Fault, Problem};
use crate::formats::parts::{Part, PartWriter, field_named};

/// The first part that cannot be read from values of the type: its path and what it is. `None` if all can.
pub(super) fn unsuited(schema: &AvroSchema, node: &Node, part: &Part, path: &str) -> Option<(String, &'static str)> {
    let itself = || Some((path.to_owned(), part.name()));
    match (node, part) {
        (Node::Null, _) => None,
        (Node::Union(branches), _) => branches.iter().find_map(|branch| unsuited(schema, branch, part, path)),
        (_, Part::Any) => {
            if holds_json(schema, node, &mut Vec::new()) {
                None
            } else {
                itself()
            }
        }
        (Node::Array(items), Part::Array(element)) => unsuited(schema, items, element, &format!("{path}[]")),
        (Node::Map(values), Part::Map(value)) => unsuited(schema, values, value, &format!("{path}['']")),
        (Node::Record(number), Part::Row(fields)) => fields.iter().find_map(|(name, part)| {
            let path = format!("{path}.{name}");
            match schema.record(*number).iter().find(|(field, _)| field == name) {
                Some((_, node)) => unsuited(schema, node, part, &path),
                None => Some((path, "field")),
            }
        }),
        (Node::Boolean, Part::Boolean)
        | (Node::Integer, Part::Integer | Part::Float)
        | (Node::Float | Node::Double, Part::Float)
        | (Node::String | Node::Bytes | Node::Fixed(_) | Node::Enum(_), Part::Text) => None,
        _ => itself(),
    }
}

/// Whether all values of the type have one form in JSON: times and decimals have none.
fn holds_json(schema: &AvroSchema, node: &Node, seen: &mut Vec<usize>) -> bool {
    match node {
        Node::Time(_) | Node::TimeOfDay(_) | Node::Decimal { .. } => false,
        Node::Union(branches) => branches.iter().all(|branch| holds_json(schema, branch, seen)),
        Node::Array(inner) | Node::Map(inner) => holds_json(schema, inner, seen),
        Node::Record(number) if seen.contains(number) => true,
        Node::Record(number) => {
            seen.push(*number);
            schema.record(*number).iter().all(|(_, node)| holds_json(schema, node, seen))
        }
        _ => true,
    }
}

impl Walk<'_> {
    /// Reads a value as the part and appends it.
    pub(super) fn part(
        &self,
        bytes: &mut Bytes<'_>,
        node: &Node,
        part: &Part,
        depth: usize,
        writer: &mut PartWriter,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let node = branch(bytes, node)?;
        let at = bytes.at();
        let refused = |problem| Fault::new(problem, at);
        writer.check(out).map_err(refused)?;
        if depth > DEPTH_MAX {
            return Err(refused(Problem::BinaryDepth));
        }
        let appended = match (node, part) {
            (Node::Null, _) => {
                out.extend_from_slice(b"null");
                Ok(())
            }
            (Node::Boolean, _) => part.append_boolean(boolean(bytes)?, out),
            (Node::Integer, _) => part.append_integer(bytes.zigzag()?, out),
            (Node::Float, _) => part.append_float(f64::from(f32::from_le_bytes(bytes.array()?)), out),
            (Node::Double, _) => part.append_float(f64::from_le_bytes(bytes.array()?), out),
            (Node::String | Node::Bytes, _) => part.append_text(text(bytes)?, out),
            (Node::Fixed(size), _) => part.append_text(bytes.take(*size)?, out),
            (Node::Enum(symbols), _) => part.append_text(symbol(bytes, symbols)?.as_bytes(), out),
            (Node::Array(items), Part::Array(_) | Part::Any) => {
                let element: &Part = if let Part::Array(element) = part { element } else { part };
                out.push(b'[');
                each_item(bytes, |bytes| {
                    // No element ends with the bracket that begins an array.
                    out.extend_from_slice(if out.last() == Some(&b'[') { b"" } else { b"," });
                    self.part(bytes, items, element, depth + 1, writer, out)
                })?;
                out.push(b']');
                Ok(())
            }
            (Node::Map(values), Part::Map(_) | Part::Any) => {
                let value: &Part = if let Part::Map(value) = part { value } else { part };
                let mut map = writer.open_map(out);
                each_item(bytes, |bytes| {
                    let at = bytes.at();
                    let key = std::str::from_utf8(text(bytes)?).map_err(|_| Fault::new(Problem::InvalidUtf8, at))?;
                    writer.open_member(&mut map, key, out);
                    self.part(bytes, values, value, depth + 1, writer, out)?;
                    writer.close_member(out);
                    Ok(())
                })?;
                writer.close_map(map, out);
                Ok(())
            }
            (Node::Record(number), Part::Row(fields)) => {
                let (row, mut next) = (writer.open_row(fields.len(), out), 0);
                for (name, node) in self.schema.record(*number) {
                    let Some(field) = field_named(fields, name.as_bytes(), next) else {
                        self.skip(bytes, node, depth + 1)?;
                        continue;
                    };
                    next = field + 1;
                    let begin = out.len();
                    self.part(bytes, node, &fields[field].1, depth + 1, writer, out)?;
                    writer.set_field(&row, field, begin, out);
                }
                writer.close_row(row, fields, out);
                Ok(())
            }
            (Node::Record(number), Part::Any) => {
                let mut map = writer.open_map(out);
                for (name, node) in self.schema.record(*number) {
                    writer.open_member(&mut map, name, out);
                    self.part(bytes, node, part, depth + 1, writer, out)?;
                    writer.close_member(out);
                }
                writer.close_map(map, out);
                Ok(())
            }
            _ => Err(Problem::BinaryBranch),
        };
        appended.map_err(refused)
    }
}
