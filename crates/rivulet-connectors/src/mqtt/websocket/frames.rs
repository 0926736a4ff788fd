//! The frames of a WebSocket (RFC 6455), as a server reads them.
//!
//! What must hold: the bytes that come out do not depend on how those that go in were cut. A frame is passed on while
//! it arrives, so its length takes no memory; at most a frame's head and the content of one control frame are kept.

/// Opcodes of frames.
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The bit of a frame that ends its message, and the three that only extensions use.
const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;

/// The bit that says that a frame is masked; those of clients have to be.
const MASKED: u8 = 0x80;

/// The longest head: two bytes, a length of eight and a mask of four.
const HEAD_BYTES_MAX: usize = 14;

/// The longest content of a control frame.
const CONTROL_BYTES_MAX: u64 = 125;

/// Codes with which a connection is closed.
pub const NORMAL: u16 = 1000;
const PROTOCOL_ERROR: u16 = 1002;
const UNSUPPORTED: u16 = 1003;

/// Why bytes are no frames that a broker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// They break the protocol.
    #[error("a WebSocket frame against the protocol: {0}")]
    Protocol(&'static str),
    /// A message is text, and MQTT is binary.
    #[error("a WebSocket message of text, where MQTT takes binary ones")]
    Text,
}

impl FrameError {
    /// The code with which the connection is closed.
    pub fn code(self) -> u16 {
        match self {
            Self::Protocol(_) => PROTOCOL_ERROR,
            Self::Text => UNSUPPORTED,
        }
    }
}

#[derive(Clone, Copy)]
struct Frame {
    opcode: u8,
    is_final: bool,
    /// The bytes of its content that have not come yet.
    left: u64,
    /// The mask, turned so that its first byte is for the next byte of the content.
    mask: [u8; 4],
}

/// Takes frames apart.
#[derive(Default)]
pub struct Frames {
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    /// The frame whose head is whole.
    frame: Option<Frame>,
    /// The content of a control frame.
    control: Vec<u8>,
    /// Whether a message of several frames has begun.
    in_message: bool,
    /// The frames that answer the last ping and the close.
    answer: Vec<u8>,
    is_closed: bool,
}

impl Frames {
    /// Takes the bytes that have come next, and leaves the content of binary messages at their beginning. Returns its
    /// length.
    ///
    /// # Errors
    /// [`FrameError`]; then nothing more is to be read.
    pub fn take(&mut self, bytes: &mut [u8]) -> Result<usize, FrameError> {
        let (mut from, mut to) = (0, 0);
        while from < bytes.len() && !self.is_closed {
            let Some(frame) = &mut self.frame else {
                self.head[self.head_bytes] = bytes[from];
                self.head_bytes += 1;
                from += 1;
                self.frame = self.whole_head()?;
                self.end_frame()?;
                continue;
            };
            let count = usize::try_from(frame.left).unwrap_or(usize::MAX).min(bytes.len() - from);
            let content = &mut bytes[from..from + count];
            for piece in content.chunks_mut(4) {
                piece.iter_mut().zip(frame.mask).for_each(|(byte, mask)| *byte ^= mask);
            }
            frame.mask.rotate_left(count % 4);
            frame.left -= count as u64;
            if frame.opcode & 8 == 0 {
                bytes.copy_within(from..from + count, to);
                to += count;
            } else {
                self.control.extend_from_slice(content);
            }
            from += count;
            self.end_frame()?;
        }
        Ok(to)
    }

    /// The frame whose head has come, once it is whole.
    fn whole_head(&mut self) -> Result<Option<Frame>, FrameError> {
        let head = &self.head[..self.head_bytes];
        let &[first, second, ref rest @ ..] = head else { return Ok(None) };
        let (is_final, opcode, code) = (first & FINAL != 0, first & 0x0f, second & !MASKED);
        let wrong = |problem| Err(FrameError::Protocol(problem));
        if first & RESERVED != 0 {
            return wrong("it uses an extension");
        }
        if second & MASKED == 0 {
            return wrong("a client's frame is not masked");
        }
        match opcode {
            TEXT => return Err(FrameError::Text),
            CONTINUATION if !self.in_message => return wrong("it continues no message"),
            BINARY if self.in_message => return wrong("it begins a message within another one"),
            CONTINUATION | BINARY => {}
            CLOSE | PING | PONG if is_final && u64::from(code) <= CONTROL_BYTES_MAX => {}
            CLOSE | PING | PONG => return wrong("a control frame is too long, or not whole"),
            _ => return wrong("it is of an unknown kind"),
        }
        let length_bytes = match code {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if rest.len() < length_bytes + 4 {
            return Ok(None);
        }
        let (length, mask) = rest.split_at(length_bytes);
        let left = match length_bytes {
            0 => u64::from(code),
            _ => length.iter().fold(0, |length, &byte| length << 8 | u64::from(byte)),
        };
        let is_shortest = match length_bytes {
            0 => true,
            2 => left > CONTROL_BYTES_MAX,
            _ => left > u64::from(u16::MAX) && left >> 63 == 0,
        };
        if !is_shortest {
            return wrong("its length is not written as it has to be");
        }
        self.head_bytes = 0;
        Ok(Some(Frame { opcode, is_final, left, mask: mask.try_into().unwrap_or_default() }))
    }

    /// Notes the end of a frame that has come whole.
    fn end_frame(&mut self) -> Result<(), FrameError> {
        let Some(Frame { opcode, is_final, .. }) = self.frame.take_if(|frame| frame.left == 0) else { return Ok(()) };
        let control = std::mem::take(&mut self.control);
        match opcode {
            CONTINUATION | BINARY => self.in_message = !is_final,
            PING => {
                // A client that asks again before it was answered gets one answer.
                self.answer.clear();
                push_head(PONG, control.len(), &mut self.answer);
                self.answer.extend_from_slice(&control);
            }
            CLOSE if control.len() == 1 => return Err(FrameError::Protocol("a close with half a code")),
            CLOSE => {
                self.is_closed = true;
                let code = control.first_chunk().map_or(NORMAL, |code| u16::from_be_bytes(*code));
                push_close(code, &mut self.answer);
            }
            _ => {}
        }
        Ok(())
    }

    /// Appends the frames that are to be sent in answer to what has come.
    pub fn take_answer(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.answer);
    }

    /// Whether the client has closed the WebSocket.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }
}

/// Appends the head of a frame from a server, which is final and not masked.
fn push_head(opcode: u8, length: usize, out: &mut Vec<u8>) {
    out.push(FINAL | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ 0..126), _) => out.push(length),
        (_, Ok(length)) => {
            out.push(126);
            out.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// Appends the head of a binary message.
pub(super) fn push_binary_head(length: usize, out: &mut Vec<u8>) {
    push_head(BINARY, length, out);
}

/// Appends a frame that closes the WebSocket.
pub(super) fn push_close(code: u16, out: &mut Vec<u8>) {
    push_head(CLOSE, 2, out);
    out.extend_from_slice(&code.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's frame.
    fn frame(first: u8, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        push_head(0, content.len(), &mut out);
        out[0] = first;
        out[1] |= MASKED;
        let mask = [0x5a, 0x01, 0xff, 0x80];
        out.extend_from_slice(&mask);
        out.extend(content.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        out
    }

    /// What comes out of bytes that are cut into pieces of this size, and all answers.
    fn read(bytes: &[u8], piece_bytes: usize) -> (Vec<u8>, Vec<u8>, Result<bool, FrameError>) {
        let (mut frames, mut content, mut answers) = (Frames::default(), Vec::new(), Vec::new());
        for piece in bytes.chunks(piece_bytes) {
            let mut piece = piece.to_vec();
            match frames.take(&mut piece) {
                Ok(count) => content.extend_from_slice(&piece[..count]),
                Err(error) => return (content, answers, Err(error)),
            }
            frames.take_answer(&mut answers);
        }
        (content, answers, Ok(frames.is_closed()))
    }

    #[test]
    fn content_does_not_depend_on_cuts() {
        let long: Vec<u8> = (0..70_000_u32).map(|number| number as u8).collect();
        let sent = [
            frame(FINAL | BINARY, b"one"),
            frame(BINARY, b"tw"),
            frame(FINAL | PING, b"are you there"),
            frame(CONTINUATION, b""),
            frame(FINAL, b"o"),
            frame(FINAL | PONG, b""),
            frame(FINAL | BINARY, &long[..200]),
            frame(FINAL | BINARY, &long),
            frame(FINAL | CLOSE, &[0x03, 0xe8, b'b', b'y', b'e']),
            b"what follows the end".to_vec(),
        ]
        .concat();
        let expected = [b"onetwo", &long[..200], &long].concat();
        let mut answers = vec![FINAL | PONG, 13];
        answers.extend_from_slice(b"are you there\x88\x02\x03\xe8");
        for piece_bytes in [1, 2, 3, 5, 7, 64, 4_096, sent.len()] {
            let read = read(&sent, piece_bytes);
            assert!(read == (expected.clone(), answers.clone(), Ok(true)), "pieces of {piece_bytes} bytes");
        }
    }

    #[test]
    fn what_breaks_the_protocol_is_refused() {
        let mut unmasked = frame(FINAL | BINARY, b"x");
        unmasked[1] &= !MASKED;
        let masked_head = |rest: &[u8]| [&[FINAL | BINARY], rest, &[0; 4]].concat();
        for (bytes, code) in [
            (unmasked, PROTOCOL_ERROR),
            (frame(FINAL | TEXT, b"text"), UNSUPPORTED),
            (frame(FINAL | 0x40 | BINARY, b"x"), PROTOCOL_ERROR),
            (frame(FINAL | 3, b"x"), PROTOCOL_ERROR),
            (frame(FINAL, b"x"), PROTOCOL_ERROR),
            ([frame(BINARY, b"x"), frame(FINAL | BINARY, b"y")].concat(), PROTOCOL_ERROR),
            (frame(PING, b"x"), PROTOCOL_ERROR),
            (frame(FINAL | PING, &[0; 126]), PROTOCOL_ERROR),
            (frame(FINAL | CLOSE, &[3]), PROTOCOL_ERROR),
            (masked_head(&[MASKED | 126, 0, 125]), PROTOCOL_ERROR),
            (masked_head(&[MASKED | 127, 0, 0, 0, 0, 0, 0, 255, 255]), PROTOCOL_ERROR),
            (masked_head(&[MASKED | 127, 128, 0, 0, 0, 0, 0, 0, 0]), PROTOCOL_ERROR),
        ] {
            for piece_bytes in [1, bytes.len()] {
                let (.., end) = read(&bytes, piece_bytes);
                assert_eq!(end.map_err(FrameError::code), Err(code), "{:?}", &bytes[..4]);
            }
        }
    }
}
