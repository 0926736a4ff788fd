//! The streams between two processes, over one connection after the other.
//!
//! What must hold: while both processes live, each element that was pushed comes out of the other side once, and in its
//! order, however often the connection breaks. A stream that nobody takes from holds up no other, and takes no more
//! memory than its options say.
//!
//! A stream that is kept in memory ([`Session::open`]) keeps a buffer until the other side has taken it. One that is
//! kept in a store ([`Session::open_stored`]) outlives the processes: whoever takes it says after which buffer it goes
//! on ([`Session::accept`]), the session asks for that one and those after it ([`Session::wants`]), and the store keeps
//! a buffer until it is durable on the other side ([`Event::Durable`]).

use std::collections::{BTreeMap, VecDeque};
use std::panic::catch_unwind;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::convert::try_schema_from_flatbuffer_bytes;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use rivulet_dataflow::Element;

use crate::connection::Connection;
use crate::frame::{self, Frame, Kind};
use crate::inbound::{Buffer, Inbound, ReceiveOptions};
use crate::outbound::{Outbound, STORED, Taken};
use crate::packer::{Packed, SendOptions};
use crate::{Received, StreamId, WireError};

/// No more is put into a connection while so many bytes wait there.
const TO_SEND_BYTES_MAX: usize = 256 << 10;

/// The most streams that another side may have.
const STREAMS_MAX: usize = 1_024;

/// The longest name of a stream, in bytes.
const NAME_BYTES_MAX: usize = 1_024;

/// What the other side has said of a stream of this side.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It takes a stream of this side.
    Accepted {
        /// The stream.
        stream: StreamId,
        /// The last buffer that it has taken of that from an earlier process, and its checksum.
        after: Option<(u64, u64)>,
    },
    /// A stream of the other side has something to be taken where nothing was, or does not go on.
    Arrived {
        /// The stream.
        stream: Received,
    },
    /// It does not take a stream of this side, or not at present.
    Refused {
        /// The stream.
        stream: StreamId,
        /// Why.
        why: String,
    },
    /// It has made durable what it has taken of a stream of this side.
    Durable {
        /// The stream.
        stream: StreamId,
        /// The number of the last buffer of that.
        number: u64,
    },
}

/// A stream that the other side wants to send.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What it is known by here; no other stream ever is.
    pub stream: Received,
    /// Its name.
    pub name: String,
    /// The columns of its rows.
    pub schema: SchemaRef,
    /// The number of the store that keeps it; `None` if it is kept in memory.
    pub store: Option<u64>,
}

/// The streams between this process and another one.
#[derive(Default)]
pub struct Session {
    connection: Option<Connection>,
    /// The streams that this side sends, and the number of the next one.
    outbound: BTreeMap<StreamId, Outbound>,
    next: StreamId,
    /// The streams that the other side sends, the number of the next one, and which is which on this connection.
    inbound: BTreeMap<Received, Inbound>,
    next_received: u64,
    by_id: BTreeMap<StreamId, Received>,
    events: VecDeque<Event>,
    /// The stream that is sent first in this turn.
    turn: StreamId,
}

impl Session {
    /// Goes on over a connection, whose other side is known and may send.
    pub fn attach(&mut self, connection: Connection) {
        self.detach();
        self.connection = Some(connection);
        let streams: Vec<StreamId> = self.outbound.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.say_open(stream));
        self.say(Kind::Opened, 0, 0, &[]);
    }

    /// The connection is gone.
    pub fn detach(&mut self) {
        self.connection = None;
        self.by_id.clear();
        self.outbound.values_mut().for_each(Outbound::interrupt);
        for inbound in self.inbound.values_mut() {
            (inbound.id, inbound.unheard) = (None, 0);
            if let Err(why_not) = &mut inbound.taker {
                *why_not = None;
            }
        }
    }

    /// The connection, if there is one: what is to be sent is there.
    pub fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    /// The number of the other side's process; 0 without a connection.
    fn run(&self) -> u64 {
        self.connection.as_ref().and_then(Connection::them).map_or(0, |them| them.run)
    }

    /// Opens a stream of this side. Elements may be pushed when the other side has accepted it.
    pub fn open(&mut self, name: String, schema: SchemaRef, options: SendOptions) -> StreamId {
        self.begin(|stream| Outbound::new(name, schema, stream, options))
    }

    /// Opens a stream of this side whose buffers are in a store with this number, which no other store has. The store
    /// is asked for them: see [`Session::wants`].
    pub fn open_stored(&mut self, name: String, schema: SchemaRef, store: u64) -> StreamId {
        self.begin(|stream| Outbound::stored(name, schema, stream, store))
    }

    fn begin(&mut self, outbound: impl FnOnce(StreamId) -> Outbound) -> StreamId {
        let stream = self.next;
        self.next += 1;
        self.outbound.insert(stream, outbound(stream));
        self.say_open(stream);
        stream
    }

    /// The streams of which buffers are wanted from their stores, each with the number of the first one; 0 if the store
    /// decides.
    pub fn wants(&self) -> Vec<(StreamId, u64)> {
        let wants = |(stream, outbound): (&StreamId, &Outbound)| Some((*stream, outbound.wants()?));
        self.outbound.iter().filter_map(wants).collect()
    }

    /// Hands over a buffer with its number from the store of a stream, if it is still wanted. Returns whether the one
    /// after it is.
    pub fn supply(&mut self, stream: StreamId, number: u64, packed: Packed<'_>) -> bool {
        self.outbound.get_mut(&stream).is_some_and(|outbound| outbound.supply(number, packed))
    }

    /// Ends a stream of this side. What it has not sent is lost.
    pub fn close(&mut self, stream: StreamId) {
        self.outbound.remove(&stream);
        self.say(Kind::Close, stream, 0, &[]);
    }

    /// Whether an element may be pushed to a stream of this side.
    pub fn has_room(&self, stream: StreamId) -> bool {
        self.outbound.get(&stream).is_some_and(Outbound::has_room)
    }

    /// What the other side is known to have taken of a stream of this side, and whether that is all.
    pub fn taken(&self, stream: StreamId) -> (Taken, bool) {
        self.outbound.get(&stream).map(Outbound::taken).unwrap_or_default()
    }

    /// Pushes an element to a stream of this side, which has room.
    ///
    /// # Errors
    /// Columns of a type that no stream has.
    pub fn push(&mut self, stream: StreamId, element: &Element, now_us: i64) -> Result<(), WireError> {
        self.outbound.get_mut(&stream).map_or(Ok(()), |outbound| outbound.push(element, now_us))
    }

    /// Sends what was pushed to a stream of this side without waiting for more.
    pub fn flush(&mut self, stream: StreamId) {
        self.outbound.get_mut(&stream).into_iter().for_each(Outbound::seal);
    }

    /// What the other side has said since the last call.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the other side wants to send a stream of which nobody has said anything.
    pub fn has_asked(&self) -> bool {
        self.inbound.values().any(|inbound| inbound.id.is_some() && matches!(inbound.taker, Err(None)))
    }

    /// The streams that the other side wants to send and nobody takes: each is to be accepted, or refused for now.
    pub fn asked(&self) -> Vec<Asked> {
        let asked = self.inbound.iter().filter(|(_, inbound)| inbound.id.is_some() && inbound.taker.is_err());
        let asked = asked.map(|(stream, Inbound { name, schema, incarnation: (_, number), .. })| Asked {
            stream: *stream,
            name: name.clone(),
            schema: schema.clone(),
            store: (number & STORED != 0).then_some(number & !STORED),
        });
        asked.collect()
    }

    /// Takes a stream that the other side wants to send; one that is stored after the buffer with this number and
    /// checksum, if it was taken before.
    pub fn accept(&mut self, stream: Received, after: Option<(u64, u64)>, options: ReceiveOptions) {
        if let Some(inbound) = self.inbound.get_mut(&stream) {
            inbound.taker = Ok(options);
            if inbound.incarnation.1 & STORED != 0 {
                inbound.go_on_at(after.map(|(number, _)| number.saturating_add(1)));
            }
            self.say_accept(stream, after.map(|(_, checksum)| checksum));
        }
    }

    /// Tells the other side why a stream is not taken, or not any more. It may be accepted later, and goes on then.
    pub fn refuse(&mut self, stream: Received, why: &str) {
        let Some(inbound) = self.inbound.get_mut(&stream) else { return };
        if inbound.taker.as_ref().err().and_then(Option::as_deref) != Some(why) {
            inbound.taker = Err(Some(why.to_owned()));
            if let Some(id) = inbound.id {
                self.say(Kind::Refuse, id, 0, why.as_bytes());
            }
        }
    }

    /// Says that a stream of the other side is durable up to this buffer.
    pub fn confirm(&mut self, stream: Received, number: u64) {
        if let Some(inbound) = self.inbound.get_mut(&stream) {
            inbound.durable = number;
        }
    }

    /// The next buffer of a stream of the other side; `None` if none waits. The buffer before counts as taken.
    pub fn take(&mut self, stream: Received) -> Option<Buffer> {
        let inbound = self.inbound.get_mut(&stream)?;
        let taken = inbound.take();
        if inbound.is_over() {
            self.inbound.remove(&stream);
        }
        taken
    }

    /// Whether a stream of the other side goes on, or something of it waits.
    pub fn is_there(&self, stream: Received) -> bool {
        self.inbound.contains_key(&stream)
    }

    /// Bytes of a stream of the other side that wait to be taken.
    pub fn waiting_bytes(&self, stream: Received) -> u64 {
        self.inbound.get(&stream).map_or(0, Inbound::bytes)
    }

    /// Whether a buffer of a stream of the other side was handed out and does not count as taken yet.
    pub fn is_handed(&self, stream: Received) -> bool {
        self.inbound.get(&stream).is_some_and(Inbound::is_handed)
    }

    /// Forgets a stream of the other side, and what waits of it.
    pub fn abandon(&mut self, stream: Received) {
        self.inbound.remove(&stream);
    }

    /// Whether nothing of the other side waits to be taken.
    pub fn is_idle(&self) -> bool {
        self.inbound.values().all(|inbound| inbound.bytes() == 0)
    }

    /// Takes in what was received on the connection.
    ///
    /// # Errors
    /// It is not what the other side may send: the connection should be ended.
    pub fn receive(&mut self, mut bytes: &[u8], now_us: i64) -> Result<(), WireError> {
        while let Some(connection) = &mut self.connection
            && !bytes.is_empty()
        {
            if let Some(frame) = connection.receive(&mut bytes, now_us)? {
                self.handle(frame)?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, frame: Frame) -> Result<(), WireError> {
        let Frame { kind, stream, number, .. } = frame;
        let run = self.run();
        match kind {
            Kind::Hello | Kind::Bye => return Err(WireError::Broken("twice who it is")),
            Kind::Alive => {}
            Kind::Open => self.opened(stream, number, &frame.payload)?,
            Kind::Opened => {
                // Those of an earlier process, or that were closed meanwhile, end when all of them is taken.
                let mut over = Vec::new();
                self.inbound.retain(|stream, inbound| {
                    inbound.is_closed |= inbound.id.is_none();
                    over.extend(inbound.is_over().then_some(*stream));
                    !inbound.is_over()
                });
                over.into_iter().try_for_each(|stream| self.say_event(Event::Arrived { stream }))?;
            }
            Kind::Close => {
                if let Some(received) = self.by_id.remove(&stream)
                    && let Some(inbound) = self.inbound.get_mut(&received)
                {
                    (inbound.id, inbound.unheard, inbound.is_closed) = (None, 0, true);
                    if inbound.is_over() {
                        self.inbound.remove(&received);
                    }
                    self.say_event(Event::Arrived { stream: received })?;
                }
            }
            Kind::Data => {
                let received = self.by_id.get(&stream).ok_or(WireError::Broken("rows of a stream that is not open"))?;
                let stream = *received;
                // One that was abandoned is refused, which the other side may not know yet.
                if let Some(inbound) = self.inbound.get_mut(&stream) {
                    let was_empty = inbound.bytes() == 0;
                    inbound.receive(frame)?;
                    if was_empty && inbound.bytes() > 0 {
                        self.say_event(Event::Arrived { stream })?;
                    }
                }
            }
            Kind::Goes => {
                let inbound = self.by_id.get(&stream).and_then(|received| self.inbound.get_mut(received));
                let Some(inbound) = inbound else { return Ok(()) };
                let unheard = inbound.unheard.checked_sub(1);
                inbound.unheard = unheard.ok_or(WireError::Broken("that it has heard what nobody said"))?;
            }
            Kind::Accept | Kind::Grant => {
                // It may have been closed meanwhile.
                let Some(outbound) = self.outbound.get_mut(&stream) else { return Ok(()) };
                if kind == Kind::Accept {
                    outbound.accept(run, number)?;
                    self.say(Kind::Goes, stream, 0, &[]);
                    let checksum = frame.payload.as_slice().try_into().ok().map(u64::from_le_bytes);
                    let after = checksum.map(|checksum| (number.saturating_sub(1), checksum));
                    return self.say_event(Event::Accepted { stream, after });
                }
                let payload = frame.payload.as_slice().try_into();
                let bytes = payload.map_err(|_| WireError::Broken("a number that is cut"))?;
                outbound.grant(number, u64::from_le_bytes(bytes))?;
            }
            Kind::Refuse => {
                if let Some(outbound) = self.outbound.get_mut(&stream) {
                    outbound.interrupt();
                    self.say_event(Event::Refused { stream, why: frame.text() })?;
                }
            }
            Kind::Durable => self.say_event(Event::Durable { stream, number })?,
        }
        Ok(())
    }

    fn say_event(&mut self, event: Event) -> Result<(), WireError> {
        if self.events.len() >= 4 * STREAMS_MAX {
            return Err(WireError::Broken("more than can be listened to"));
        }
        self.events.push_back(event);
        Ok(())
    }

    /// The other side wants to send a stream, or to go on with one.
    fn opened(&mut self, id: StreamId, incarnation: u64, payload: &[u8]) -> Result<(), WireError> {
        let cut = WireError::Broken("a stream whose name or columns cannot be read");
        let (length, rest) = payload.split_first_chunk().ok_or_else(|| cut.clone())?;
        let (name, schema) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(|| cut.clone())?;
        let name = str::from_utf8(name).ok().filter(|name| name.len() <= NAME_BYTES_MAX).ok_or_else(|| cut.clone())?;
        if self.by_id.contains_key(&id) {
            return Err(WireError::Broken("a stream with the number of another one"));
        }
        let incarnation = (self.run(), incarnation);
        let mut same = self.inbound.iter().filter(|(_, inbound)| inbound.incarnation == incarnation);
        if let Some((&known, _)) = same.find(|(_, inbound)| inbound.id.is_none() && inbound.name == name) {
            self.by_id.insert(id, known);
            let inbound = self.inbound.get_mut(&known).expect("it was found above");
            inbound.open(id);
            match &mut inbound.taker {
                Ok(_) => self.say_accept(known, None),
                Err(why_not) => *why_not = None,
            }
            return Ok(());
        }
        if self.inbound.values().any(|inbound| inbound.id.is_some() && inbound.name == name) {
            self.say(Kind::Refuse, id, 0, b"another stream of the same process has this name");
        } else if self.inbound.len() >= STREAMS_MAX {
            self.say(Kind::Refuse, id, 0, b"the process sends too many streams");
        } else {
            let schema = schema_of(schema).ok_or(cut)?;
            let stream = Received(self.next_received);
            self.next_received += 1;
            let mut inbound = Inbound::new(incarnation, name.to_owned(), schema);
            inbound.open(id);
            self.inbound.insert(stream, inbound);
            self.by_id.insert(id, stream);
        }
        Ok(())
    }

    fn say_open(&mut self, stream: StreamId) {
        let Some(outbound) = self.outbound.get(&stream).filter(|_| self.connection.is_some()) else { return };
        let mut payload = (outbound.name.len() as u32).to_le_bytes().to_vec();
        payload.extend_from_slice(outbound.name.as_bytes());
        payload.extend_from_slice(&bytes_of(&outbound.schema));
        let incarnation = outbound.incarnation();
        self.say(Kind::Open, stream, incarnation, &payload);
    }

    fn say_accept(&mut self, stream: Received, checksum: Option<u64>) {
        let Some(inbound) = self.inbound.get_mut(&stream) else { return };
        if let Some(id) = inbound.id {
            inbound.open(id);
            inbound.unheard += 1;
            let next = inbound.next();
            let payload = checksum.map_or_else(Vec::new, |checksum| checksum.to_le_bytes().to_vec());
            self.say(Kind::Accept, id, next, &payload);
        }
    }

    fn say(&mut self, kind: Kind, stream: StreamId, number: u64, payload: &[u8]) {
        if let Some(connection) = &mut self.connection {
            frame::write_small(&mut connection.out, kind, stream, number, payload);
        }
    }

    /// Does what is due, and fills the connection: see [`Connection::to_send`]. To be called after all other calls, and
    /// at [`Session::due_us`].
    ///
    /// # Errors
    /// Nothing was heard for too long: the connection should be ended.
    pub fn tick(&mut self, now_us: i64) -> Result<(), WireError> {
        self.outbound.values_mut().for_each(|outbound| outbound.tick(now_us));
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let streams = self.by_id.len();
        for (id, received) in &self.by_id {
            let Some(inbound) = self.inbound.get_mut(received) else { continue };
            if let Some((untaken, bytes)) = inbound.grant(streams) {
                frame::write_small(&mut connection.out, Kind::Grant, *id, untaken, &bytes.to_le_bytes());
            }
            if let Some(number) = inbound.tell_durable() {
                frame::write_small(&mut connection.out, Kind::Durable, *id, number, &[]);
            }
        }
        // One buffer of each stream after the other.
        let mut idle = 0;
        while idle < self.outbound.len() && connection.to_send().len() < TO_SEND_BYTES_MAX {
            let in_turn = self.outbound.range_mut(self.turn..).next();
            let Some((stream, outbound)) = in_turn else {
                self.turn = 0;
                continue;
            };
            self.turn = stream + 1;
            match outbound.next_frame() {
                Some(frame) => {
                    connection.out.extend_from_slice(frame);
                    idle = 0;
                }
                None => idle += 1,
            }
        }
        connection.tick(now_us)
    }

    /// When to call [`Session::tick`] at the latest, microseconds.
    pub fn due_us(&self) -> i64 {
        let of_streams = self.outbound.values().filter_map(Outbound::due_us);
        of_streams.chain(self.connection.as_ref().map(Connection::due_us)).min().unwrap_or(i64::MAX)
    }
}

/// A schema as Arrow's message.
fn bytes_of(schema: &Schema) -> Vec<u8> {
    let (options, mut dictionaries) = (IpcWriteOptions::default(), DictionaryTracker::new(true));
    let generator = IpcDataGenerator::default();
    generator.schema_to_bytes_with_dictionary_tracker(schema, &mut dictionaries, &options).ipc_message
}

/// The schema in such a message. Arrow panics where a message is whole and its types are none.
fn schema_of(bytes: &[u8]) -> Option<SchemaRef> {
    let read = catch_unwind(|| try_schema_from_flatbuffer_bytes(bytes));
    read.ok()?.ok().map(Arc::new)
}
