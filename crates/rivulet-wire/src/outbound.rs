//! A stream that this side sends, and its buffers until the other side needs them no more.

use std::collections::VecDeque;

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::Element;

use crate::frame::{self, Kind};
use crate::packer::{Packed, Packer, SendOptions};
use crate::{StreamId, WireError};

/// What the other side has taken of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Rows.
    pub rows: u64,
    /// Bytes, as they were sent.
    pub bytes: u64,
}

/// The number of a store has this bit, as no stream has that is kept in memory.
pub(crate) const STORED: u64 = 1 << 63;

/// Where the buffers of a stream are until the other side needs them no more.
enum Kept {
    /// Here, until the other side has taken them. What gathers is here too.
    Here(Box<Packer>),
    /// In a store with this number, which outlives the process. Here are those that are under way.
    InStore(u64),
}

/// A buffer as a frame, and its rows.
struct Buffered {
    frame: Vec<u8>,
    rows: u64,
}

pub(crate) struct Outbound {
    pub(crate) name: String,
    pub(crate) schema: SchemaRef,
    kept: Kept,
    /// No more bytes than that wait to be sent, but for one buffer.
    unsent_bytes_max: usize,
    /// The process that took it last: another one knows nothing of it.
    taker: Option<u64>,
    /// Whether it goes on, on this connection.
    is_open: bool,
    queue: Queue,
    /// Bytes that were sent on this connection, and that may be.
    sent_bytes: u64,
    granted_bytes: u64,
    taken: Taken,
}

/// Buffers that the other side is not known to have taken.
struct Queue {
    id: StreamId,
    frames: VecDeque<Buffered>,
    /// The number of the first one; 0 if that is up to the store.
    first: u64,
    /// How many of them need not be sent on this connection any more.
    sent: usize,
    /// Bytes of the others, and of all.
    unsent_bytes: usize,
    bytes: usize,
    /// Memory to be used again.
    spare: Vec<Vec<u8>>,
}

/// So many pieces of memory are kept to be used again.
const SPARE_MAX: usize = 8;

/// So many bytes of a stream that is stored are under way.
const STORED_BYTES_MAX: usize = 8 << 20;

/// However small buffers are, so many bytes of them may wait to be sent.
const UNSENT_BYTES_MIN: usize = 256 << 10;

impl Queue {
    /// The number of the next buffer.
    fn next(&self) -> u64 {
        self.first.saturating_add(self.frames.len() as u64)
    }

    fn add(&mut self, Packed { codec, raw_bytes, rows, payload }: Packed<'_>) {
        let number = self.next();
        let mut frame = self.spare.pop().unwrap_or_default();
        frame::write(&mut frame, Kind::Data, self.id, number, |out| {
            out.extend_from_slice(payload);
            (codec, raw_bytes)
        });
        self.unsent_bytes += frame.len();
        self.bytes += frame.len();
        self.frames.push_back(Buffered { frame, rows });
    }

    /// So many of the frames need not be sent.
    fn resume_at(&mut self, sent: usize) {
        self.sent = sent;
        self.unsent_bytes = self.frames.iter().skip(sent).map(|buffered| buffered.frame.len()).sum();
    }

    /// The place of a buffer among those that are here, or after them.
    fn place_of(&self, number: u64) -> Result<usize, WireError> {
        let place = number.checked_sub(self.first).filter(|place| *place <= self.frames.len() as u64);
        place.map(|place| place as usize).ok_or(WireError::Broken("that it wants a buffer which is not there"))
    }
}

impl Outbound {
    /// A stream whose buffers are kept here.
    pub(crate) fn new(name: String, schema: SchemaRef, id: StreamId, options: SendOptions) -> Self {
        let unsent_bytes_max = options.buffer_bytes.max(UNSENT_BYTES_MIN);
        Self { unsent_bytes_max, ..Self::of(name, schema, id, Kept::Here(Box::new(Packer::new(options)))) }
    }

    /// A stream whose buffers are in a store with this number.
    pub(crate) fn stored(name: String, schema: SchemaRef, id: StreamId, store: u64) -> Self {
        Self::of(name, schema, id, Kept::InStore(store))
    }

    fn of(name: String, schema: SchemaRef, id: StreamId, kept: Kept) -> Self {
        let (frames, spare) = (VecDeque::new(), Vec::new());
        Self {
            name,
            schema,
            kept,
            unsent_bytes_max: UNSENT_BYTES_MIN,
            taker: None,
            is_open: false,
            queue: Queue { id, frames, first: 1, sent: 0, unsent_bytes: 0, bytes: 0, spare },
            sent_bytes: 0,
            granted_bytes: 0,
            taken: Taken::default(),
        }
    }

    /// What tells it from others of its name, also in another process if it is stored.
    pub(crate) fn incarnation(&self) -> u64 {
        match self.kept {
            // The numbers of streams of this side are never used again.
            Kept::Here(_) => u64::from(self.queue.id),
            Kept::InStore(store) => store | STORED,
        }
    }

    fn gathered_bytes(&self) -> usize {
        match &self.kept {
            Kept::Here(packer) => packer.bytes(),
            Kept::InStore(_) => 0,
        }
    }

    /// Whether more may be pushed: not before the other side has taken it a first time.
    pub(crate) fn has_room(&self) -> bool {
        self.taker.is_some() && self.gathered_bytes() + self.queue.unsent_bytes < self.unsent_bytes_max
    }

    /// What the other side is known to have taken, and whether that is all that is here.
    pub(crate) fn taken(&self) -> (Taken, bool) {
        (self.taken, self.gathered_bytes() == 0 && self.queue.frames.is_empty())
    }

    /// Adds an element to one that is kept here.
    pub(crate) fn push(&mut self, element: &Element, now_us: i64) -> Result<(), WireError> {
        match (&mut self.kept, &mut self.queue) {
            (Kept::Here(packer), queue) => packer.push(element, now_us, &mut |packed| queue.add(packed)),
            (Kept::InStore(_), _) => Ok(()),
        }
    }

    /// Makes a frame of what has gathered.
    pub(crate) fn seal(&mut self) {
        if let (Kept::Here(packer), queue) = (&mut self.kept, &mut self.queue) {
            packer.seal(&mut |packed| queue.add(packed));
        }
    }

    /// Makes a frame of what has gathered for long enough.
    pub(crate) fn tick(&mut self, now_us: i64) {
        if let (Kept::Here(packer), queue) = (&mut self.kept, &mut self.queue) {
            packer.tick(now_us, &mut |packed| queue.add(packed));
        }
    }

    /// When to call [`Outbound::tick`].
    pub(crate) fn due_us(&self) -> Option<i64> {
        match &self.kept {
            Kept::Here(packer) => packer.due_us(),
            Kept::InStore(_) => None,
        }
    }

    /// The number of the buffer that is wanted of its store; 0 if any may be the first.
    pub(crate) fn wants(&self) -> Option<u64> {
        let has_room = self.queue.unsent_bytes < self.unsent_bytes_max && self.queue.bytes < STORED_BYTES_MAX;
        (matches!(self.kept, Kept::InStore(_)) && self.is_open && has_room).then(|| self.queue.next())
    }

    /// Takes over a buffer of its store, if it is the one that is wanted. Returns whether the next one is.
    pub(crate) fn supply(&mut self, number: u64, packed: Packed<'_>) -> bool {
        if self.wants().is_none_or(|wanted| ![0, number].contains(&wanted)) {
            return false;
        }
        if self.queue.first == 0 {
            self.queue.first = number;
        }
        self.queue.add(packed);
        self.wants().is_some()
    }

    /// The next frame to be sent, if the other side has given room for it.
    pub(crate) fn next_frame(&mut self) -> Option<&[u8]> {
        if !self.is_open || self.sent_bytes >= self.granted_bytes {
            return None;
        }
        let queue = &mut self.queue;
        let Buffered { frame, .. } = queue.frames.get(queue.sent)?;
        queue.sent += 1;
        self.sent_bytes += frame.len() as u64;
        queue.unsent_bytes -= frame.len();
        Some(frame)
    }

    /// The other side does not take it, or the connection is gone. What is kept stays.
    pub(crate) fn interrupt(&mut self) {
        self.is_open = false;
        self.queue.resume_at(0);
        (self.sent_bytes, self.granted_bytes) = (0, 0);
    }

    /// A process takes the stream, and wants this buffer next; 0 if that may be any.
    pub(crate) fn accept(&mut self, taker: u64, next: u64) -> Result<(), WireError> {
        let place = match (self.queue.place_of(next), &self.kept) {
            (Ok(place), _) if next > 0 => place,
            // Its store has it, or knows which is the first.
            (_, Kept::InStore(_)) => {
                self.queue.frames.clear();
                (self.queue.first, self.queue.bytes) = (next, 0);
                0
            }
            (_, Kept::Here(_)) if next == 0 => 0,
            (place, Kept::Here(_)) => place?,
        };
        self.interrupt();
        self.queue.resume_at(place);
        self.is_open = true;
        self.taker = Some(taker);
        Ok(())
    }

    /// The other side has taken all buffers before this one; 0 if it has taken none. So many bytes may be sent on this
    /// connection.
    pub(crate) fn grant(&mut self, untaken: u64, bytes: u64) -> Result<(), WireError> {
        self.granted_bytes = self.granted_bytes.max(bytes);
        let queue = &mut self.queue;
        // Where a stored stream was opened anew, the other side may still take what came before.
        let taken = if untaken <= queue.first { 0 } else { queue.place_of(untaken)? };
        if taken > queue.sent {
            return Err(WireError::Broken("that it has taken a buffer which was not sent"));
        }
        queue.first += taken as u64;
        queue.sent -= taken;
        for Buffered { mut frame, rows } in queue.frames.drain(..taken) {
            self.taken.rows += rows;
            self.taken.bytes += frame.len() as u64;
            queue.bytes -= frame.len();
            if queue.spare.len() < SPARE_MAX {
                frame.clear();
                queue.spare.push(frame);
            }
        }
        Ok(())
    }
}
