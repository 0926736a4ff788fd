//! The way through the bytes of a record, by its schema.

use super::schema::{AvroSchema, Node};
use crate::formats::binary::Bytes;
use crate::formats::fault::{Fault, Problem};

/// How deep the values of a payload may be nested.
pub(super) const DEPTH_MAX: usize = 64;

pub(super) struct Walk<'s> {
    pub(super) schema: &'s AvroSchema,
}

impl Walk<'_> {
    /// Skips a value.
    pub(super) fn skip(&self, bytes: &mut Bytes<'_>, node: &Node, depth: usize) -> Result<(), Fault> {
        if depth > DEPTH_MAX {
            return Err(bytes.fault(Problem::BinaryDepth));
        }
        match node {
            Node::Null => {}
            Node::Boolean => _ = bytes.take(1)?,
            Node::Integer | Node::Time(_) | Node::TimeOfDay(_) | Node::Enum(_) => _ = bytes.varint()?,
            Node::Float => _ = bytes.take(4)?,
            Node::Double => _ = bytes.take(8)?,
            Node::Bytes | Node::String | Node::Decimal { fixed: None, .. } => _ = text(bytes)?,
            Node::Fixed(size) | Node::Decimal { fixed: Some(size), .. } => _ = bytes.take(*size)?,
            Node::Union(_) => {
                let branch = branch(bytes, node)?;
                self.skip(bytes, branch, depth + 1)?;
            }
            Node::Record(number) => {
                for (_, field) in self.schema.record(*number) {
                    self.skip(bytes, field, depth + 1)?;
                }
            }
            Node::Array(items) => self.skip_blocks(bytes, items, false, depth)?,
            Node::Map(values) => self.skip_blocks(bytes, values, true, depth)?,
        }
        Ok(())
    }

    /// Skips the blocks of an array or a map.
    fn skip_blocks(&self, bytes: &mut Bytes<'_>, items: &Node, has_keys: bool, depth: usize) -> Result<(), Fault> {
        loop {
            let count = bytes.zigzag()?;
            if count == 0 {
                return Ok(());
            }
            // A negative count says that the length of the block follows.
            if count < 0 {
                text(bytes)?;
                continue;
            }
            for _ in 0..count {
                let before = bytes.at();
                if has_keys {
                    text(bytes)?;
                }
                self.skip(bytes, items, depth + 1)?;
                // Items without a byte are not skipped one by one: a few bytes could claim any number of them.
                if bytes.at() == before {
                    break;
                }
            }
        }
    }
}

/// The branch of a union that follows; any other type itself.
#[inline]
pub(super) fn branch<'n>(bytes: &mut Bytes<'_>, node: &'n Node) -> Result<&'n Node, Fault> {
    let Node::Union(branches) = node else { return Ok(node) };
    let at = bytes.at();
    let index = bytes.zigzag()?;
    usize::try_from(index)
        .ok()
        .and_then(|index| branches.get(index))
        .ok_or_else(|| Fault::new(Problem::BinaryBranch, at))
}

/// Bytes behind their length.
#[inline]
pub(super) fn text<'p>(bytes: &mut Bytes<'p>) -> Result<&'p [u8], Fault> {
    let at = bytes.at();
    let length = usize::try_from(bytes.zigzag()?).map_err(|_| Fault::new(Problem::BinaryLength, at))?;
    bytes.take(length)
}

/// Calls `each` for each item of an array, or entry of a map.
pub(super) fn each_item<'p>(
    bytes: &mut Bytes<'p>,
    mut each: impl FnMut(&mut Bytes<'p>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    loop {
        let count = bytes.zigzag()?;
        if count == 0 {
            return Ok(());
        }
        // A negative count says that the length of the block follows, for readers that skip it.
        if count < 0 {
            bytes.zigzag()?;
        }
        for _ in 0..count.unsigned_abs() {
            let at = bytes.at();
            each(bytes)?;
            // A few bytes could claim any number of items without a byte.
            if bytes.at() == at {
                return Err(Fault::new(Problem::BinaryLength, at));
            }
        }
    }
}

/// A truth value.
#[inline]
pub(super) fn boolean(bytes: &mut Bytes<'_>) -> Result<bool, Fault> {
    let at = bytes.at();
    match bytes.array()? {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(Fault::new(Problem::BinaryBranch, at)),
    }
}

/// The symbol of an enum.
#[inline]
pub(super) fn symbol<'n>(bytes: &mut Bytes<'_>, symbols: &'n [String]) -> Result<&'n str, Fault> {
    let at = bytes.at();
    let symbol = usize::try_from(bytes.zigzag()?).ok().and_then(|index| symbols.get(index));
    symbol.map(String::as_str).ok_or_else(|| Fault::new(Problem::BinaryBranch, at))
}
