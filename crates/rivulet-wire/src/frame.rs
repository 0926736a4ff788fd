//! Frames: what a connection carries, each with its length, a number and a checksum.
//!
//! A connection begins with [`GREETING`] from each side: a mark, and the version of all that follows.

use arrow::buffer::{Buffer, MutableBuffer};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::WireError;
use crate::compression::Codec;

/// The version of the wire.
pub const VERSION: u16 = 1;

const MARK: &[u8; 6] = b"RVWIRE";

/// The first bytes from each side.
pub(crate) const GREETING: [u8; 8] = {
    let [low, high] = VERSION.to_le_bytes();
    [MARK[0], MARK[1], MARK[2], MARK[3], MARK[4], MARK[5], low, high]
};

const HEADER_BYTES: usize = 32;
const GUARD_AT: usize = 6;
const CHECKSUM_AT: usize = 24;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Who speaks, as JSON. The first frame from each side.
    Hello = 1,
    /// The connection ends, and why: text.
    Bye = 2,
    /// Nothing but that the sender lives.
    Alive = 3,
    /// A stream begins, or goes on after another connection. Number: what tells it from others of its name. Payload:
    /// the length of its name, name, and schema.
    Open = 4,
    /// The receiver takes a stream. Number: the buffer that it wants next; 0 if that may be any. Payload: the checksum
    /// of the one before, if the receiver has taken that from an earlier process.
    Accept = 5,
    /// The receiver does not take a stream at present, and why: text.
    Refuse = 6,
    /// A buffer of elements. Number: its place in the stream: 1, 2, 3, ...
    Data = 7,
    /// The receiver has taken the buffers before `number`. Payload: how many bytes may be sent on this connection.
    Grant = 8,
    /// The receiver has made all durable up to the buffer `number`.
    Durable = 9,
    /// A stream does not go on.
    Close = 10,
    /// All streams that go on were opened.
    Opened = 11,
    /// The sender has heard an `Accept`: the buffers after this one are those that were asked for by it.
    Goes = 12,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::Bye,
        Self::Alive,
        Self::Open,
        Self::Accept,
        Self::Refuse,
        Self::Data,
        Self::Grant,
        Self::Durable,
        Self::Close,
        Self::Opened,
        Self::Goes,
    ];
}

/// A frame that was received.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) codec: Codec,
    pub(crate) stream: u32,
    /// The number of bytes of the payload before it was compressed.
    pub(crate) raw_bytes: usize,
    pub(crate) number: u64,
    pub(crate) payload: Buffer,
}

impl Frame {
    /// Its bytes on the connection.
    pub(crate) fn bytes(&self) -> u64 {
        (HEADER_BYTES + self.payload.len()) as u64
    }

    /// The payload as text for people, of any bytes.
    pub(crate) fn text(&self) -> String {
        const BYTES_MAX: usize = 1_024;
        let text = String::from_utf8_lossy(&self.payload[..self.payload.len().min(BYTES_MAX)]);
        text.chars().map(|one| if one.is_control() { ' ' } else { one }).collect()
    }
}

/// Appends a frame whose payload `write` appends. `write` returns the codec and the bytes before it was applied.
pub(crate) fn write(
    out: &mut Vec<u8>,
    kind: Kind,
    stream: u32,
    number: u64,
    write: impl FnOnce(&mut Vec<u8>) -> (Codec, usize),
) {
    let begin = out.len();
    out.resize(begin + HEADER_BYTES, 0);
    let (codec, raw_bytes) = write(out);
    let payload_bytes = out.len() - begin - HEADER_BYTES;
    let (header, payload) = out[begin..].split_at_mut(HEADER_BYTES);
    header[0..4].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    header[4..6].copy_from_slice(&[kind as u8, codec as u8]);
    header[8..12].copy_from_slice(&stream.to_le_bytes());
    header[12..16].copy_from_slice(&(raw_bytes as u32).to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    let guard = guard(header);
    header[GUARD_AT..GUARD_AT + 2].copy_from_slice(&guard);
    let checksum = checksum(&header[..CHECKSUM_AT], payload);
    header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
}

/// Appends a frame with this payload.
pub(crate) fn write_small(out: &mut Vec<u8>, kind: Kind, stream: u32, number: u64, payload: &[u8]) {
    write(out, kind, stream, number, |out| {
        out.extend_from_slice(payload);
        (Codec::Plain, payload.len())
    });
}

/// A checksum of the header alone: a receiver that believes a wrong length waits for bytes that never come.
fn guard(header: &[u8]) -> [u8; 2] {
    let [low, high, ..] = (xxh3_64(&header[..GUARD_AT]) ^ xxh3_64(&header[GUARD_AT + 2..CHECKSUM_AT])).to_le_bytes();
    [low, high]
}

fn checksum(header: &[u8], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(header);
    hash.update(payload);
    hash.digest()
}

/// Cuts what is received into frames.
pub(crate) struct Reader {
    /// The greeting or the header that is being read.
    head: [u8; HEADER_BYTES],
    head_filled: usize,
    is_greeted: bool,
    /// The payload that is being read, and its length.
    payload: Option<(MutableBuffer, usize)>,
}

/// The most bytes of a buffer, and of what it becomes.
const BUFFER_BYTES_MAX: usize = 256 << 20;

/// The most bytes of the payload of any other frame.
const SMALL_BYTES_MAX: usize = 64 << 10;

const CHANGED: WireError = WireError::Broken("a frame that is not as it was sent");

impl Reader {
    pub(crate) fn new() -> Self {
        Self { head: [0; HEADER_BYTES], head_filled: 0, is_greeted: false, payload: None }
    }

    /// Takes bytes from the front of `bytes` until a frame is complete; `None` if they end before. Only a sender that
    /// `is_known` may send large ones.
    ///
    /// # Errors
    /// The bytes are not of this version of the wire, or not as they were sent.
    pub(crate) fn read(&mut self, bytes: &mut &[u8], is_known: bool) -> Result<Option<Frame>, WireError> {
        if !self.is_greeted {
            if !self.fill_head(GREETING.len(), bytes) {
                return Ok(None);
            }
            let version = u16::from_le_bytes([self.head[6], self.head[7]]);
            match self.head.starts_with(MARK) {
                true if version == VERSION => (self.is_greeted, self.head_filled) = (true, 0),
                true => return Err(WireError::Version { ours: VERSION, theirs: version }),
                false => return Err(WireError::Stranger),
            }
        }
        if self.payload.is_none() {
            if !self.fill_head(HEADER_BYTES, bytes) {
                return Ok(None);
            }
            if self.head[GUARD_AT..GUARD_AT + 2] != guard(&self.head) {
                return Err(CHANGED);
            }
            let (length, raw_bytes) = (self.word(0), self.word(12));
            let largest = length.max(raw_bytes);
            let may_be_large = is_known && self.head[4] == Kind::Data as u8;
            let bytes_max = if may_be_large { BUFFER_BYTES_MAX } else { SMALL_BYTES_MAX };
            if largest > bytes_max {
                return Err(WireError::TooLarge { bytes: largest as u64, bytes_max: bytes_max as u64 });
            }
            self.payload = Some((MutableBuffer::new(length), length));
        }
        let Some((payload, length)) = &mut self.payload else { return Ok(None) };
        let (now, rest) = bytes.split_at(bytes.len().min(*length - payload.len()));
        payload.extend_from_slice(now);
        *bytes = rest;
        if payload.len() < *length {
            return Ok(None);
        }
        let payload: Buffer = std::mem::replace(payload, MutableBuffer::new(0)).into();
        (self.payload, self.head_filled) = (None, 0);
        let said = u64::from_le_bytes(self.head[CHECKSUM_AT..].try_into().expect("eight bytes"));
        if said != checksum(&self.head[..CHECKSUM_AT], &payload) {
            return Err(CHANGED);
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == self.head[4]);
        Ok(Some(Frame {
            kind: kind.ok_or(WireError::Broken("a frame of no known kind"))?,
            codec: Codec::of(self.head[5])?,
            stream: self.word(8) as u32,
            raw_bytes: self.word(12),
            number: u64::from_le_bytes(self.head[16..24].try_into().expect("eight bytes")),
            payload,
        }))
    }

    /// Fills the head up to so many bytes; false if there are not enough.
    fn fill_head(&mut self, length: usize, bytes: &mut &[u8]) -> bool {
        let (now, rest) = bytes.split_at(bytes.len().min(length - self.head_filled));
        self.head[self.head_filled..self.head_filled + now.len()].copy_from_slice(now);
        self.head_filled += now.len();
        *bytes = rest;
        self.head_filled == length
    }

    fn word(&self, at: usize) -> usize {
        u32::from_le_bytes(self.head[at..at + 4].try_into().expect("four bytes")) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> Vec<u8> {
        let mut out = GREETING.to_vec();
        write_small(&mut out, Kind::Hello, 0, 0, b"{}");
        write_small(&mut out, Kind::Data, 7, 1, &[9; 1000]);
        write_small(&mut out, Kind::Alive, 0, 0, b"");
        out
    }

    /// Reads what comes in pieces of so many bytes.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<Frame>, WireError> {
        let (mut reader, mut frames) = (Reader::new(), Vec::new());
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                frames.extend(reader.read(&mut piece, true)?);
            }
        }
        Ok(frames)
    }

    #[test]
    fn frames_come_back_however_they_are_cut() {
        for piece in [1, 3, 8, 39, 40, 41, 5000] {
            let frames = read(&sent(), piece).unwrap();
            let seen: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.stream, frame.number)).collect();
            assert_eq!(seen, [(Kind::Hello, 0, 0), (Kind::Data, 7, 1), (Kind::Alive, 0, 0)], "{piece} at a time");
            assert_eq!(frames[1].payload.as_slice(), [9; 1000]);
        }
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is() {
        let sent = sent();
        for bit in 0..sent.len() * 8 {
            let mut flipped = sent.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Also in a length: nobody waits for bytes that never come.
            assert!(read(&flipped, 5000).is_err_and(|error| !error.to_string().is_empty()), "bit {bit}");
        }
    }

    #[test]
    fn strangers_other_versions_and_large_frames_are_refused() {
        assert_eq!(read(b"GET / HTTP/1.1\r\n", 5000).unwrap_err(), WireError::Stranger);
        let mut later = sent();
        later[6] = 2;
        assert_eq!(read(&later, 5000).unwrap_err(), WireError::Version { ours: 1, theirs: 2 });
        let mut large = GREETING.to_vec();
        write_small(&mut large, Kind::Open, 7, 1, &[9; 65_537]);
        let too_large = WireError::TooLarge { bytes: 65_537, bytes_max: 65_536 };
        assert_eq!(read(&large, 5000).unwrap_err(), too_large);
        // A buffer may be large, from somebody who is known.
        let mut buffer = GREETING.to_vec();
        write_small(&mut buffer, Kind::Data, 7, 1, &[9; 65_537]);
        assert_eq!(read(&buffer, 5000).unwrap().len(), 1);
        assert_eq!(Reader::new().read(&mut &buffer[..], false).unwrap_err(), too_large);
    }
}
