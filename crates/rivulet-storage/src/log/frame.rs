//! The encoding of frames and records. One commit writes one frame, which is complete or absent.
//!
//! ```text
//! frame   magic 4 | body bytes 4 | first position 8 | records 4 | check of these 4 | check of the body 8 | body
//! record  arrival 8 | packet id 2 | kind 1 | client bytes 2 | topic bytes 2 | payload bytes 4 | client | topic | payload
//! ```
//!
//! Numbers are little-endian. Checks are XXH3, seeded with the salt of the segment: the payload of a client may look
//! like a frame, but no client knows the salt.
//!
//! What must hold: any bytes may be read here, and only records that were written come out.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The first bytes of a frame.
const MAGIC: [u8; 4] = *b"RvF1";

/// The size of a frame's header.
pub(super) const HEADER_BYTES: usize = 32;

/// The size of a record without its texts.
const RECORD_BYTES: usize = 19;

/// No log reaches this position in the life of a machine. A higher one is damage, and counting on from it would
/// overflow.
pub(super) const POSITION_END: u64 = u64::MAX / 2;

/// The only kind of record: a message.
const MESSAGE: u8 = 0;

/// A message in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'b> {
    /// Its position: 1, 2, 3, ...
    pub position: u64,
    /// When it reached the engine, microseconds since the Unix epoch.
    pub arrival_us: i64,
    /// The name of the client that sent it; empty if that does not matter.
    pub client: &'b [u8],
    /// The packet identifier under which the client waits for an acknowledgement; 0 if it does not wait.
    pub packet_id: u16,
    /// Its topic.
    pub topic: &'b [u8],
    /// Its payload.
    pub payload: &'b [u8],
}

impl Record<'_> {
    /// The size of the record in the log, in bytes.
    pub fn logged_bytes(&self) -> usize {
        RECORD_BYTES + self.client.len() + self.topic.len() + self.payload.len()
    }

    /// Whether the lengths of its parts can be encoded.
    pub(super) fn is_writable(&self) -> bool {
        let short = usize::from(u16::MAX);
        self.client.len() <= short && self.topic.len() <= short && self.logged_bytes() <= (u32::MAX / 2) as usize
    }
}

/// A frame to which records are appended.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    /// Empty, or the header and the records behind it.
    bytes: Vec<u8>,
    first: u64,
    records: u32,
}

impl Frame {
    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The position of the first record.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The position behind the last record.
    pub(super) fn next(&self) -> u64 {
        self.first + u64::from(self.records)
    }

    /// Whether the frame has room for one more record of this size.
    pub(super) fn has_room(&self, record_bytes: usize, bytes_max: usize) -> bool {
        self.is_empty() || self.bytes.len() + record_bytes <= bytes_max
    }

    /// Appends a record. The first may have any position; the positions of the others are consecutive.
    pub(super) fn push(&mut self, record: &Record<'_>) {
        if self.is_empty() {
            self.first = record.position;
            self.bytes.resize(HEADER_BYTES, 0);
        }
        debug_assert_eq!(record.position, self.next(), "positions in a frame follow one another");
        let out = &mut self.bytes;
        out.extend_from_slice(&record.arrival_us.to_le_bytes());
        out.extend_from_slice(&record.packet_id.to_le_bytes());
        out.push(MESSAGE);
        out.extend_from_slice(&(record.client.len() as u16).to_le_bytes());
        out.extend_from_slice(&(record.topic.len() as u16).to_le_bytes());
        out.extend_from_slice(&(record.payload.len() as u32).to_le_bytes());
        out.extend_from_slice(record.client);
        out.extend_from_slice(record.topic);
        out.extend_from_slice(record.payload);
        self.records += 1;
    }

    /// The records, in order.
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        records_in(self.bytes.get(HEADER_BYTES..).unwrap_or_default(), self.first)
    }

    /// The bytes of the frame, once it is sealed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes the header for a segment with this salt.
    pub(super) fn seal(&mut self, salt: u64) {
        let body = &self.bytes[HEADER_BYTES..];
        let (body_bytes, body_check) = (body.len() as u32, xxh3_64_with_seed(body, salt));
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&body_bytes.to_le_bytes());
        header[8..16].copy_from_slice(&self.first.to_le_bytes());
        header[16..20].copy_from_slice(&self.records.to_le_bytes());
        let check = xxh3_64_with_seed(&header[..20], salt) as u32;
        header[20..24].copy_from_slice(&check.to_le_bytes());
        header[24..].copy_from_slice(&body_check.to_le_bytes());
        self.bytes[..HEADER_BYTES].copy_from_slice(&header);
    }

    /// Removes the records, and frees memory beyond `bytes_kept`.
    pub(super) fn clear(&mut self, bytes_kept: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(bytes_kept);
        self.records = 0;
    }
}

/// A complete frame found among bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'b> {
    /// The position of its first record.
    pub(super) first: u64,
    records: u32,
    body: &'b [u8],
}

/// What is found at a place among bytes.
enum At<'b> {
    Frame(Found<'b>),
    /// No frame, or one that was not written in full.
    Nothing,
}

impl<'b> Found<'b> {
    /// The position behind its last record.
    pub(super) fn next(&self) -> u64 {
        self.first + u64::from(self.records)
    }

    fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// The records, in order.
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'b>> {
        records_in(self.body, self.first)
    }
}

fn records_in(mut rest: &[u8], mut position: u64) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let (record, after) = decode_record(rest, position)?;
        (rest, position) = (after, position + 1);
        Some(record)
    })
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

/// Decodes the record at the begin of the bytes; returns it and the bytes behind it, or `None` if there is no record.
pub(super) fn decode_record(bytes: &[u8], position: u64) -> Option<(Record<'_>, &[u8])> {
    let mut rest = bytes;
    let arrival_us = i64::from_le_bytes(take(&mut rest)?);
    let packet_id = u16::from_le_bytes(take(&mut rest)?);
    let [kind] = take(&mut rest)?;
    let client_bytes = usize::from(u16::from_le_bytes(take(&mut rest)?));
    let topic_bytes = usize::from(u16::from_le_bytes(take(&mut rest)?));
    let payload_bytes = u32::from_le_bytes(take(&mut rest)?) as usize;
    let (client, rest) = rest.split_at_checked(client_bytes)?;
    let (topic, rest) = rest.split_at_checked(topic_bytes)?;
    let (payload, rest) = rest.split_at_checked(payload_bytes)?;
    (kind == MESSAGE).then_some((Record { position, arrival_us, client, packet_id, topic, payload }, rest))
}

/// The frame at the begin of the bytes, of a segment with this salt, if none of its positions is lower than `lowest`.
fn frame_at(bytes: &[u8], salt: u64, lowest: u64) -> At<'_> {
    let found = || {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let number =
            |from: usize| u32::from_le_bytes([header[from], header[from + 1], header[from + 2], header[from + 3]]);
        if header[..4] != MAGIC || xxh3_64_with_seed(&header[..20], salt) as u32 != number(20) {
            return None;
        }
        let body = rest.get(..number(4) as usize)?;
        let (first, records) = (u64::from(number(8)) | u64::from(number(12)) << 32, number(16));
        let body_check = u64::from(number(24)) | u64::from(number(28)) << 32;
        let is_whole = records > 0 && (lowest..POSITION_END).contains(&first);
        let frame = Found { first, records, body };
        (is_whole && xxh3_64_with_seed(body, salt) == body_check && frame.records().count() == records as usize)
            .then_some(frame)
    };
    found().map_or(At::Nothing, At::Frame)
}

/// Divides bytes into frames and what lies between them.
pub(super) struct Frames<'b> {
    bytes: &'b [u8],
    salt: u64,
    /// The lowest position that the next frame may have: positions grow.
    lowest: u64,
    at: usize,
}

/// A part of the bytes.
#[derive(Debug)]
pub(super) enum Part<'b> {
    /// A complete frame.
    Frame(Found<'b>),
    /// Bytes that are no frame, up to the next frame or the end.
    Garbage {
        /// Their number.
        bytes: usize,
        /// Whether no frame follows.
        is_last: bool,
    },
}

impl<'b> Frames<'b> {
    /// The parts of a segment with this salt.
    pub(super) fn new(bytes: &'b [u8], salt: u64) -> Self {
        Self { bytes, salt, lowest: 1, at: 0 }
    }

    /// How many bytes have been read.
    pub(super) fn at(&self) -> usize {
        self.at
    }
}

impl<'b> Iterator for Frames<'b> {
    type Item = Part<'b>;

    fn next(&mut self) -> Option<Part<'b>> {
        let rest = &self.bytes[self.at..];
        if rest.is_empty() {
            return None;
        }
        if let At::Frame(frame) = frame_at(rest, self.salt, self.lowest) {
            self.at += frame.bytes();
            self.lowest = frame.next();
            return Some(Part::Frame(frame));
        }
        // A header has a check of its own, so the search for the next frame does not read the bytes many times.
        let begins = rest.windows(MAGIC.len()).enumerate().skip(1).filter(|(_, window)| *window == MAGIC);
        let next =
            begins.map(|(at, _)| at).find(|&at| matches!(frame_at(&rest[at..], self.salt, self.lowest), At::Frame(_)));
        let bytes = next.unwrap_or(rest.len());
        self.at += bytes;
        Some(Part::Garbage { bytes, is_last: next.is_none() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SALT: u64 = 77;

    fn frame(first: u64, payloads: &[&[u8]]) -> Vec<u8> {
        salted(SALT, first, payloads)
    }

    fn salted(salt: u64, first: u64, payloads: &[&[u8]]) -> Vec<u8> {
        let mut frame = Frame::default();
        for (position, payload) in (first..).zip(payloads) {
            let record = Record { position, arrival_us: -7, client: b"kim", packet_id: 3, topic: b"a/b", payload };
            frame.push(&record);
        }
        frame.seal(salt);
        frame.bytes().to_vec()
    }

    fn positions(bytes: &[u8]) -> Vec<u64> {
        let of = |part: Part<'_>| match part {
            Part::Frame(frame) => frame.records().map(|record| record.position).collect(),
            Part::Garbage { .. } => Vec::new(),
        };
        Frames::new(bytes, SALT).flat_map(of).collect()
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = [frame(5, &[b"one", b""]), frame(7, &[b"three"])].concat();
        let mut frames = Frames::new(&bytes, SALT);
        let Some(Part::Frame(first)) = frames.next() else { panic!("a frame") };
        let records: Vec<_> = first.records().collect();
        let expected = |position, payload| Record {
            position,
            arrival_us: -7,
            client: b"kim",
            packet_id: 3,
            topic: b"a/b",
            payload,
        };
        assert_eq!(records, [expected(5, &b"one"[..]), expected(6, b"")]);
        assert_eq!((first.next(), positions(&bytes)), (7, vec![5, 6, 7]));
    }

    #[test]
    fn behind_damage_reading_goes_on() {
        let (one, two) = (frame(1, &[b"RvF1", b"x"]), frame(3, &[b"y"]));
        let mut bytes = [one.clone(), two].concat();
        bytes[one.len() - 1] ^= 1;
        assert_eq!(positions(&bytes), [3]);
        let parts: Vec<Part<'_>> = Frames::new(&bytes, SALT).collect();
        assert!(matches!(parts[0], Part::Garbage { bytes, is_last: false } if bytes == one.len()));
        let cut = &bytes[..bytes.len() - 1];
        assert!(matches!(Frames::new(cut, SALT).next(), Some(Part::Garbage { is_last: true, .. })));
    }

    #[test]
    fn positions_only_grow() {
        let mut bytes = [frame(8, &[b"x"]), frame(7, &[b"y"]), frame(9, &[b"z"])].concat();
        assert_eq!(positions(&bytes), [8, 9]);
        // A payload that is an old frame, inside a damaged frame.
        let old = frame(2, &[b"old"]);
        bytes = [frame(5, &[b"x"]), frame(6, &[&old]), frame(7, &[b"y"])].concat();
        let payload = bytes.windows(old.len()).position(|window| window == old).expect("it is there");
        bytes[payload - 1] ^= 1;
        assert_eq!(positions(&bytes), [5, 7]);
    }

    #[test]
    fn what_a_client_takes_for_a_frame_is_none() {
        // Inside a damaged frame, with a position that is possible.
        for salt in [0, SALT + 1] {
            let forged = salted(salt, 6, &[b"forged"]);
            let mut bytes = [frame(5, &[b"x", &forged]), frame(7, &[b"y"])].concat();
            let payload = bytes.windows(forged.len()).position(|window| window == forged).expect("it is there");
            bytes[payload - 1] ^= 1;
            assert_eq!(positions(&bytes), [7]);
        }
        assert!(Frames::new(&frame(5, &[b"x"]), SALT + 1).all(|part| matches!(part, Part::Garbage { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let read: usize = Frames::new(&bytes, SALT).map(|part| match part {
                Part::Frame(frame) => frame.bytes(),
                Part::Garbage { bytes, .. } => bytes,
            }).sum();
            prop_assert_eq!(read, bytes.len());
            if let Some((record, rest)) = decode_record(&bytes, 1) {
                prop_assert_eq!(record.logged_bytes() + rest.len(), bytes.len());
            }
        }
    }
}
