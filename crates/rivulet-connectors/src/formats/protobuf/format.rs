//! The type of the messages of a format, and the frames around them.

use prost_reflect::MessageDescriptor;

use crate::formats::binary::{Bytes, Framing, append_zigzag};
use crate::formats::fault::{Fault, Problem};

/// A type of messages, and how payloads are framed.
#[derive(Clone, Debug)]
pub struct ProtobufFormat {
    pub(super) message: MessageDescriptor,
    pub(super) framing: Framing,
}

impl ProtobufFormat {
    /// Skips the frame of a message.
    pub(super) fn skip_frame(framing: Framing, bytes: &mut Bytes<'_>) -> Result<(), Fault> {
        framing.skip(bytes)?;
        if framing == Framing::None {
            return Ok(());
        }
        // The frame says which message of the file it is; it is assumed to be the given one.
        let at = bytes.at();
        let count = bytes.zigzag()?;
        if !(0..=64).contains(&count) {
            return Err(Fault::new(Problem::BinaryFrame, at));
        }
        (0..count).try_for_each(|_| bytes.zigzag().map(|_| ()))
    }

    /// The frame of a message.
    pub(super) fn frame(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        self.framing.append(&mut frame);
        if self.framing != Framing::None {
            // The path in the file's descriptor has a field number before each index.
            let indices: Vec<i32> = self.message.path().iter().skip(1).step_by(2).copied().collect();
            match indices.as_slice() {
                // The index of the first message of a file has a short form.
                [0] => append_zigzag(0, &mut frame),
                indices => {
                    append_zigzag(indices.len() as i64, &mut frame);
                    indices.iter().for_each(|&index| append_zigzag(i64::from(index), &mut frame));
                }
            }
        }
        frame
    }
}
