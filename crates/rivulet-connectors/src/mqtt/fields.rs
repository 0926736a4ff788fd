//! The fields of a packet, read one after the other, each checked as the protocol requires.

use super::wire::{CodecError, split_prefixed, split_variable_length};

/// The rest of a packet's body, or of properties.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

const CUT: CodecError = CodecError::Malformed("the packet is cut short");

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, CodecError> {
        let (&byte, rest) = self.0.split_first().ok_or(CUT)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u16, CodecError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(CUT)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*bytes))
    }

    pub(super) fn packet_id(&mut self) -> Result<u16, CodecError> {
        match self.number()? {
            0 => Err(CodecError::Malformed("packet identifier 0")),
            id => Ok(id),
        }
    }

    /// Bytes with their length in front.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], CodecError> {
        let (bytes, rest) = split_prefixed(self.0).ok_or(CUT)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, CodecError> {
        check_text(self.bytes()?)
    }

    /// Properties without their length; their content is not checked.
    pub(super) fn properties(&mut self) -> Result<&'a [u8], CodecError> {
        let (length, rest) =
            split_variable_length(self.0).ok_or(CodecError::Malformed("the length of the properties is broken"))?;
        let (properties, rest) =
            rest.split_at_checked(length).ok_or(CodecError::Malformed("the properties are cut short"))?;
        self.0 = rest;
        Ok(properties)
    }

    /// Checks that nothing is left.
    pub(super) fn end(&self) -> Result<(), CodecError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(CodecError::Malformed("the packet is longer than its content")),
        }
    }
}

/// A text is UTF-8, which has no surrogates, and has no U+0000 (MQTT 5, 1.5.4).
pub(super) fn check_text(bytes: &[u8]) -> Result<&str, CodecError> {
    let text = std::str::from_utf8(bytes).map_err(|_| CodecError::Malformed("a text is not UTF-8"))?;
    match bytes.contains(&0) {
        true => Err(CodecError::Malformed(NUL)),
        false => Ok(text),
    }
}

/// The message for a text with U+0000.
pub(super) const NUL: &str = "a text contains U+0000";
