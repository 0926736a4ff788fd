//! The streams of one moved task, as both halves of it see them.
//!
//! A task that may move has a *ticket*, which names its streams: `$burst#TICKET/0` and so on carry its elements, by
//! channel, and `$burst#TICKET/words` what is said about them. Each side sends streams of these names. A side is done
//! with a ticket when it drops its [`LinkPipe`]: that closes its streams, and the other side's pipe is lost.
//!
//! What must hold: a stream is taken from the process that the ticket was given to, and from no other. No lock that is
//! taken here under the lock of a session is held while a session is locked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use rivulet_connectors::links::{Asked, Compression, Decoder, Links, Outgoing, Peer, Received, SendOptions, WireError};
use rivulet_dataflow::Element;
use rivulet_runtime::{Pipe, PipeError, Waker, Word};

use super::message;
use crate::service::BURST_STREAMS;

/// How the names of the streams of [`Control`](super::message::Control) words begin. A number follows that the worker
/// draws each time that it begins anew: the server answers by a stream of the same name.
pub(super) const CONTROL: &str = "$burst#control/";

/// What is gathered of a stream before it is sent, unless it is flushed.
pub(super) const SEND: SendOptions =
    SendOptions { buffer_bytes: 256 << 10, flush_us: 1_000, compression: Compression::None };

/// What a stream of a ticket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Channel(usize),
    Words,
}

/// The name of a stream.
fn name(ticket: u64, what: What) -> String {
    match what {
        What::Channel(channel) => format!("{BURST_STREAMS}#{ticket:016x}/{channel}"),
        What::Words => format!("{BURST_STREAMS}#{ticket:016x}/words"),
    }
}

/// The ticket of a stream with this name, and what it carries.
pub(super) fn named(stream: &str) -> Option<(u64, What)> {
    let (ticket, what) = stream.strip_prefix(BURST_STREAMS)?.strip_prefix('#')?.split_once('/')?;
    let what = if what == "words" { What::Words } else { What::Channel(what.parse().ok()?) };
    Some((u64::from_str_radix(ticket, 16).ok()?, what))
}

/// A stream that comes in.
#[derive(Default)]
pub(super) struct Inbound {
    stream: OnceLock<Received>,
    /// Whether something of it may wait.
    is_ready: AtomicBool,
    /// The rest of the buffer that was taken last.
    rest: Mutex<Option<Decoder>>,
}

impl Inbound {
    pub(super) fn of(stream: Received) -> Self {
        Self { stream: stream.into(), is_ready: true.into(), rest: Mutex::default() }
    }

    pub(super) fn stream(&self) -> Option<Received> {
        self.stream.get().copied()
    }

    pub(super) fn arrived(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    fn has_some(&self) -> bool {
        self.is_ready.load(Ordering::Acquire) || self.rest.lock().is_some()
    }

    /// The next element, if one waits.
    ///
    /// # Errors
    /// The stream does not go on, or what came is no element.
    pub(super) fn next(&self, peer: &Peer) -> Result<Option<Element>, PipeError> {
        let wrong = |error: WireError| PipeError::Wrong(error.to_string());
        let mut rest = self.rest.lock();
        loop {
            if let Some(element) = rest.as_mut().map_or(Ok(None), Decoder::next_element).map_err(wrong)? {
                return Ok(Some(element));
            }
            *rest = None;
            let Some(stream) = self.stream() else { return Ok(None) };
            if !self.is_ready.swap(false, Ordering::AcqRel) {
                return Ok(None);
            }
            match peer.take(stream) {
                Some(buffer) => {
                    // It is asked once more in any case: only then does this buffer count as taken.
                    self.arrived();
                    *rest = Some(buffer.elements().map_err(wrong)?);
                }
                None if peer.has(stream) => return Ok(None),
                None => {
                    // Whoever asks again is told again.
                    self.arrived();
                    return Err(PipeError::Lost("the other side has closed its streams".into()));
                }
            }
        }
    }
}

/// What comes in for a ticket. It outlives the pipe where a session is locked, so nothing happens when it is dropped.
pub(super) struct Ends {
    channels: Vec<Inbound>,
    words: Inbound,
    /// The columns of each channel.
    schemas: Vec<SchemaRef>,
    lost: OnceLock<String>,
    waker: Mutex<Option<Waker>>,
}

impl Ends {
    fn inbound(&self, what: What) -> Option<&Inbound> {
        match what {
            What::Channel(channel) => self.channels.get(channel),
            What::Words => Some(&self.words),
        }
    }

    /// Takes a stream that the other side wants to send.
    ///
    /// # Errors
    /// It is not one of these.
    pub(super) fn accept(&self, what: What, stream: Received, schema: &SchemaRef) -> Result<(), String> {
        let expected = match what {
            What::Channel(channel) => self.schemas.get(channel).cloned(),
            What::Words => Some(message::schema()),
        };
        let inbound = self.inbound(what).filter(|_| expected.as_ref() == Some(schema));
        let inbound = inbound.ok_or("it has other columns than the task")?;
        inbound.stream.set(stream).map_err(|_| "it came before")?;
        inbound.arrived();
        Ok(())
    }

    fn wake(&self) {
        let waker = self.waker.lock().clone();
        waker.into_iter().for_each(|waker| waker());
    }
}

/// A pipe over the streams of two processes.
pub struct LinkPipe {
    peer: Arc<Peer>,
    sends: Vec<Outgoing>,
    says: Outgoing,
    ends: Arc<Ends>,
    /// The channel that is asked first.
    turn: AtomicUsize,
    waits_for_room: AtomicBool,
    has_pushed: AtomicBool,
}

impl LinkPipe {
    /// Opens the streams of this side. `sends` and `takes` have the columns of each channel.
    pub(super) fn open(
        links: &Links,
        peer: &Arc<Peer>,
        ticket: u64,
        sends: Vec<SchemaRef>,
        takes: Vec<SchemaRef>,
    ) -> Self {
        let open = |what, schema| links.open_to(peer, name(ticket, what), schema, SEND);
        let ends = Ends {
            channels: takes.iter().map(|_| Inbound::default()).collect(),
            words: Inbound::default(),
            schemas: takes,
            lost: OnceLock::new(),
            waker: Mutex::default(),
        };
        let (turn, waits_for_room, has_pushed) = Default::default();
        Self {
            peer: peer.clone(),
            sends: sends
                .into_iter()
                .enumerate()
                .map(|(channel, schema)| open(What::Channel(channel), schema))
                .collect(),
            says: open(What::Words, message::schema()),
            ends: Arc::new(ends),
            turn,
            waits_for_room,
            has_pushed,
        }
    }

    /// Sets what is called when the task has something to do.
    pub(crate) fn wake_by(&self, waker: Waker) {
        *self.ends.waker.lock() = Some(waker);
        self.ends.wake();
    }

    /// The other side will not answer any more.
    pub(crate) fn lose(&self, why: &str) {
        let _ = self.ends.lost.set(why.to_owned());
        self.ends.wake();
    }

    /// Whether the other side has closed its streams or takes none of this side, or is lost.
    pub(super) fn is_over(&self) -> bool {
        let is_closed = match self.ends.words.stream() {
            Some(stream) => !self.peer.has(stream),
            // It was done with the ticket before it had sent anything.
            None => self.peer.is_connected() && self.says.problem().is_some(),
        };
        self.ends.lost.get().is_some() || is_closed
    }

    fn may_push(&self) -> bool {
        self.sends.iter().all(Outgoing::has_room)
    }

    fn look_for_room(&self) {
        if self.waits_for_room.load(Ordering::Acquire)
            && self.may_push()
            && self.waits_for_room.swap(false, Ordering::AcqRel)
        {
            self.ends.wake();
        }
    }

    fn check(&self) -> Result<(), PipeError> {
        self.ends.lost.get().map_or(Ok(()), |why| Err(PipeError::Lost(why.clone())))
    }

    /// The next element of a stream, unless the other side is lost: that is for good.
    fn next(&self, inbound: &Inbound) -> Result<Option<Element>, PipeError> {
        self.check()?;
        let next = inbound.next(&self.peer);
        next.inspect_err(|error| _ = self.ends.lost.set(error.to_string()))
    }
}

impl Drop for LinkPipe {
    /// Not called while the session is locked.
    fn drop(&mut self) {
        let streams = self.ends.channels.iter().chain([&self.ends.words]).filter_map(Inbound::stream);
        streams.for_each(|stream| self.peer.forget(stream));
    }
}

impl Pipe for LinkPipe {
    fn has_room(&self) -> bool {
        if self.may_push() || self.ends.lost.get().is_some() {
            return true;
        }
        self.waits_for_room.store(true, Ordering::Release);
        // There may have been room before it was noted that somebody waits.
        self.may_push()
    }

    fn push(&self, channel: usize, element: &Element) -> Result<(), PipeError> {
        self.check()?;
        self.has_pushed.store(true, Ordering::Release);
        let stream =
            self.sends.get(channel).ok_or_else(|| PipeError::Wrong(format!("there is no channel {channel}")))?;
        stream.push(element).map_err(|error| PipeError::Wrong(error.to_string()))
    }

    fn take(&self) -> Result<Option<(usize, Element)>, PipeError> {
        self.check()?;
        let (channels, turn) = (&self.ends.channels, self.turn.load(Ordering::Relaxed));
        for channel in (0..channels.len()).map(|place| (turn + place) % channels.len()) {
            if let Some(element) = self.next(&channels[channel])? {
                self.turn.store(channel + 1, Ordering::Relaxed);
                return Ok(Some((channel, element)));
            }
        }
        Ok(None)
    }

    fn say(&self, word: Word) -> Result<(), PipeError> {
        self.check()?;
        let said = self.says.push(&message::row_of(&word)?);
        self.says.flush();
        said.map_err(|error| PipeError::Wrong(error.to_string()))
    }

    fn heard(&self) -> Result<Option<Word>, PipeError> {
        self.next(&self.ends.words)?.map(|element| message::word_of(&element)).transpose()
    }

    fn has_some(&self) -> bool {
        let mut all = self.ends.channels.iter().chain([&self.ends.words]);
        self.ends.lost.get().is_some() || all.any(Inbound::has_some)
    }

    fn flush(&self) {
        if self.has_pushed.swap(false, Ordering::AcqRel) {
            self.sends.iter().for_each(Outgoing::flush);
        }
    }
}

/// A pipe, and what comes in for it.
type Known = (Arc<Ends>, Weak<LinkPipe>);

/// The pipes of a process, by their tickets.
#[derive(Default)]
pub(super) struct Pipes {
    by_ticket: Mutex<BTreeMap<u64, Known>>,
    /// The ticket of each stream that comes in, by the place of its peer in memory and its number there.
    by_stream: Mutex<BTreeMap<(usize, Received), (u64, What)>>,
}

impl Pipes {
    pub(super) fn add(&self, ticket: u64, pipe: &Arc<LinkPipe>) {
        self.by_ticket.lock().insert(ticket, (pipe.ends.clone(), Arc::downgrade(pipe)));
    }

    /// Forgets the pipes that were dropped.
    pub(super) fn tidy(&self) {
        let mut by_ticket = self.by_ticket.lock();
        by_ticket.retain(|_, (_, pipe)| pipe.strong_count() > 0);
        self.by_stream.lock().retain(|_, (ticket, _)| by_ticket.contains_key(ticket));
    }

    /// Whether there is a pipe with a ticket.
    pub(super) fn knows(&self, ticket: u64) -> bool {
        self.by_ticket.lock().contains_key(&ticket)
    }

    /// Takes a stream of a peer, which the caller knows to have the ticket. Called while its session is locked.
    ///
    /// # Errors
    /// As [`Ends::accept`].
    pub(super) fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<(), String> {
        let (ticket, what) = named(&asked.name).ok_or("it has no ticket")?;
        let ends = self.by_ticket.lock().get(&ticket).map(|(ends, _)| ends.clone()).ok_or("nobody has this ticket")?;
        ends.accept(what, asked.stream, &asked.schema)?;
        self.by_stream.lock().insert((Arc::as_ptr(peer).addr(), asked.stream), (ticket, what));
        Ok(())
    }

    /// Something of a stream waits, or it does not go on. Returns what the stream carries.
    pub(super) fn arrived(&self, peer: &Arc<Peer>, stream: Received) -> Option<What> {
        let (ticket, what) = self.by_stream.lock().get(&(Arc::as_ptr(peer).addr(), stream)).copied()?;
        let ends = self.by_ticket.lock().get(&ticket).map(|(ends, _)| ends.clone())?;
        ends.inbound(what)?.arrived();
        ends.wake();
        Some(what)
    }

    /// Streams may have room.
    pub(super) fn look_for_room(&self) {
        let pipes: Vec<_> = self.by_ticket.lock().values().filter_map(|(_, pipe)| pipe.upgrade()).collect();
        pipes.iter().for_each(|pipe| pipe.look_for_room());
    }
}

/// Says a word to the other side.
pub(super) fn say(stream: &Outgoing, word: &message::Control) {
    // Its columns are those of messages.
    let _ = stream.push(&word.row());
    stream.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_stream_it_is() {
        for what in [What::Channel(0), What::Channel(12), What::Words] {
            assert_eq!(named(&name(u64::MAX - 1, what)), Some((u64::MAX - 1, what)));
        }
        for other in ["$burst#control/1", "$burst", "$burst#1", "$burst#x/0", "$burst#1/", "orders#1/0"] {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
