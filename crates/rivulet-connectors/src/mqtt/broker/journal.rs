//! The state that outlives the process: sessions, the messages that wait for them, and retained messages, as a sequence
//! of changes.
//!
//! Each change is a record. A [`Record::Session`] describes a whole session and replaces everything known of it. So
//! earlier records are not needed any more once all that is kept was written again. A message is written once, with all
//! the sessions that it waits for.
//!
//! ```text
//! record   kind 1 | fields
//! ```
//!
//! Numbers are little-endian; texts and lists have their length in front, 4 bytes. What must hold: decoding is safe for
//! any bytes.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use rivulet_dataflow::LogPosition;
use tokio::sync::Notify;

use super::super::codec::Qos;
use super::incoming::Unreleased;
use super::message::{Identifiers, Manner, OfGroup};

/// Whether a journal has room for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It has room.
    Free,
    /// It will have room when the disk has caught up.
    Wait,
    /// It will have room when an operator has repaired the disk.
    Broken,
}

/// A log of the state that the broker must not forget. Its records survive a crash once they are durable.
pub trait Journal: Send + Sync {
    /// Appends a record and returns its position; `None` if there is no room. A record that `may_exceed` the bound of
    /// the disk makes room for others, later.
    fn append(&self, record: &[u8], may_exceed: bool) -> Option<LogPosition>;

    /// Whether a record of some megabytes would be accepted now.
    fn room(&self) -> Room;

    /// Whether a record that may exceed the bound of the disk would be accepted now.
    fn can_rewrite(&self) -> bool;

    /// The position of the next record.
    fn next(&self) -> LogPosition;

    /// The highest position that is on disk, together with all positions before it.
    fn durable(&self) -> LogPosition;

    /// Notified each time [`Journal::durable`] has grown.
    fn committed(&self) -> &Notify;

    /// Bytes on disk.
    fn disk_bytes(&self) -> u64;

    /// The bound of the bytes on disk: beyond it only records that may exceed it are accepted.
    fn bytes_max(&self) -> u64;

    /// Says that records before this position are not needed any more. Returns whether they are gone: a reader may
    /// still hold them.
    fn forget_before(&self, position: LogPosition) -> bool;

    /// Reads all records, in order.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn read(&self, take: &mut dyn FnMut(LogPosition, &[u8])) -> Result<(), String>;
}

/// The number of a session in the journal. It is never reused.
pub(super) type SessionNumber = u64;

/// The number of a message in the journal. It is never reused.
pub(super) type MessageNumber = u64;

/// A message of QoS 2 with the session that published it.
pub(super) type Taken = (SessionNumber, Unreleased);

/// A subscription of a session, with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subscribed<'b> {
    pub(super) filter: &'b str,
    pub(super) qos: Qos,
    pub(super) no_local: bool,
    pub(super) retain_as_published: bool,
    pub(super) identifier: Option<u32>,
    /// Whether retained messages that existed when it was made are still on their way.
    pub(super) wants_retained: bool,
}

/// How long a session lasts, and the address of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lasting {
    pub(super) expiry_s: u32,
    /// Since when it has had no connection, microseconds since the epoch; 0 while it has one.
    pub(super) away_since_us: i64,
    pub(super) address: IpAddr,
}

impl Lasting {
    /// How much longer the session is kept without a connection, where `expiry_s_max` limits the whole time; zero if
    /// its time is over.
    pub(super) fn left(&self, expiry_s_max: u32, now_us: i64) -> Duration {
        let away_us = if self.away_since_us == 0 { 0 } else { now_us.saturating_sub(self.away_since_us) };
        let away = Duration::from_micros(away_us.try_into().unwrap_or(0));
        Duration::from_secs(u64::from(self.expiry_s.min(expiry_s_max))).saturating_sub(away)
    }
}

/// A message with everything known of it except its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body<'b> {
    pub(super) number: MessageNumber,
    /// Whether it is the retained message of its topic from here on.
    pub(super) is_retained: bool,
    pub(super) qos: Qos,
    pub(super) retain: bool,
    /// When it expires, microseconds since the epoch; 0 for never.
    pub(super) expires_at_us: i64,
    pub(super) topic: &'b [u8],
    pub(super) payload: &'b [u8],
    pub(super) properties: &'b [u8],
}

/// What is under way between a session and its client with QoS 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnderWay {
    /// Messages that were sent, with their packet identifiers.
    pub(super) sent: Vec<(MessageNumber, u16)>,
    /// Packet identifiers of messages that the client has.
    pub(super) released: Vec<u16>,
    /// Messages of the client that it has not released.
    pub(super) incoming: Vec<Unreleased>,
    /// The last packet identifier that was used.
    pub(super) last_packet_id: u16,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record<'b> {
    /// The whole state of a session, which replaces everything known of it. The messages wait in this order.
    Session {
        session: SessionNumber,
        client_id: &'b str,
        lasting: Lasting,
        subscriptions: Vec<Subscribed<'b>>,
        queue: Vec<(MessageNumber, Manner)>,
        under_way: UnderWay,
    },
    /// A session got or lost its connection.
    Lasting { session: SessionNumber, lasting: Lasting },
    /// A session has ended.
    Ended { session: SessionNumber },
    /// A session has subscribed.
    Subscribed { session: SessionNumber, subscribed: Subscribed<'b> },
    /// A session has ended a subscription.
    Unsubscribed { session: SessionNumber, filter: &'b str },
    /// A message waits for these sessions, behind the messages that wait for them already. With QoS 2, `taken` is the
    /// session that published it, with its packet identifier.
    Message { body: Body<'b>, waits_for: Vec<(SessionNumber, Manner)>, taken: Option<Taken> },
    /// A session has published a message of QoS 2 that need not be kept.
    Taken { taken: Taken },
    /// A client has released a message of QoS 2 that it had published.
    Released { session: SessionNumber, packet_id: u16 },
    /// Messages of QoS 2 were sent, or are about to be.
    Sent { session: SessionNumber, messages: Vec<(MessageNumber, u16)> },
    /// A client has a message of QoS 2.
    Received { session: SessionNumber, message: MessageNumber, packet_id: u16 },
    /// A client has forgotten the packet identifier of a message of QoS 2.
    Completed { session: SessionNumber, packet_id: u16 },
    /// A known message waits for one more session, behind the messages that wait for it already.
    Waits { session: SessionNumber, message: MessageNumber, manner: Manner },
    /// Messages that were acknowledged.
    Acknowledged { messages: Vec<(SessionNumber, MessageNumber)> },
    /// A topic has no retained message any more.
    Forgotten { topic: &'b [u8] },
    /// The process has stopped in order. Of the messages that wait for a session, so many may have been sent: the first
    /// ones. For sessions that are not named none was. It holds if no record follows.
    Stopped { sent: Vec<(SessionNumber, u64)> },
}

mod kind {
    /// A session of an earlier version, which had nothing under way.
    pub(super) const SESSION_WITHOUT_QOS_2: u8 = 1;
    pub(super) const LASTING: u8 = 2;
    pub(super) const ENDED: u8 = 3;
    pub(super) const SUBSCRIBED: u8 = 4;
    pub(super) const UNSUBSCRIBED: u8 = 5;
    pub(super) const MESSAGE: u8 = 6;
    pub(super) const ACKNOWLEDGED: u8 = 7;
    pub(super) const FORGOTTEN: u8 = 8;
    pub(super) const WAITS: u8 = 9;
    pub(super) const TAKEN: u8 = 10;
    pub(super) const RELEASED: u8 = 11;
    pub(super) const SENT: u8 = 12;
    pub(super) const RECEIVED: u8 = 13;
    pub(super) const COMPLETED: u8 = 14;
    /// The fields of `TAKEN`, then those of `MESSAGE`.
    pub(super) const TAKEN_MESSAGE: u8 = 15;
    pub(super) const SESSION: u8 = 16;
    pub(super) const STOPPED: u8 = 17;
}

impl<'b> Record<'b> {
    /// Appends the record as bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Session { session, client_id, lasting, subscriptions, queue, under_way } => {
                out.push(kind::SESSION);
                push_u64(*session, out);
                push_text(client_id.as_bytes(), out);
                push_lasting(lasting, out);
                push_length(subscriptions.len(), out);
                subscriptions.iter().for_each(|subscribed| push_subscribed(subscribed, out));
                push_pairs(queue, out);
                push_under_way(under_way, out);
            }
            Self::Lasting { session, lasting } => {
                out.push(kind::LASTING);
                push_u64(*session, out);
                push_lasting(lasting, out);
            }
            Self::Ended { session } => {
                out.push(kind::ENDED);
                push_u64(*session, out);
            }
            Self::Subscribed { session, subscribed } => {
                out.push(kind::SUBSCRIBED);
                push_u64(*session, out);
                push_subscribed(subscribed, out);
            }
            Self::Unsubscribed { session, filter } => {
                out.push(kind::UNSUBSCRIBED);
                push_u64(*session, out);
                push_text(filter.as_bytes(), out);
            }
            Self::Message { body, waits_for, taken } => encode_message(body, waits_for, *taken, out),
            Self::Taken { taken } => {
                out.push(kind::TAKEN);
                push_taken(taken, out);
            }
            Self::Released { session, packet_id } => {
                out.push(kind::RELEASED);
                push_u64(*session, out);
                push_packet_id(*packet_id, out);
            }
            Self::Sent { session, messages } => {
                out.push(kind::SENT);
                push_u64(*session, out);
                push_sent(messages, out);
            }
            Self::Received { session, message, packet_id } => {
                out.push(kind::RECEIVED);
                push_u64(*session, out);
                push_u64(*message, out);
                push_packet_id(*packet_id, out);
            }
            Self::Completed { session, packet_id } => {
                out.push(kind::COMPLETED);
                push_u64(*session, out);
                push_packet_id(*packet_id, out);
            }
            Self::Waits { session, message, manner } => {
                out.push(kind::WAITS);
                push_u64(*session, out);
                push_pair(&(*message, *manner), out);
            }
            Self::Acknowledged { messages } => encode_acknowledged(messages, out),
            Self::Forgotten { topic } => {
                out.push(kind::FORGOTTEN);
                push_text(topic, out);
            }
            Self::Stopped { sent } => {
                out.push(kind::STOPPED);
                push_numbers(sent, out);
            }
        }
    }

    /// Decodes a record from all of these bytes.
    pub(super) fn decode(bytes: &'b [u8]) -> Option<Self> {
        let mut rest = bytes;
        let rest = &mut rest;
        let [kind] = take(rest)?;
        let record = match kind {
            kind::SESSION_WITHOUT_QOS_2 | kind::SESSION => Self::Session {
                session: take_u64(rest)?,
                client_id: take_str(rest)?,
                lasting: take_lasting(rest)?,
                subscriptions: take_list(rest, take_subscribed)?,
                queue: take_list(rest, take_pair)?,
                under_way: match kind {
                    kind::SESSION => take_under_way(rest)?,
                    _ => UnderWay::default(),
                },
            },
            kind::LASTING => Self::Lasting { session: take_u64(rest)?, lasting: take_lasting(rest)? },
            kind::ENDED => Self::Ended { session: take_u64(rest)? },
            kind::SUBSCRIBED => Self::Subscribed { session: take_u64(rest)?, subscribed: take_subscribed(rest)? },
            kind::UNSUBSCRIBED => Self::Unsubscribed { session: take_u64(rest)?, filter: take_str(rest)? },
            kind::MESSAGE => {
                Self::Message { body: take_body(rest)?, waits_for: take_list(rest, take_pair)?, taken: None }
            }
            kind::TAKEN_MESSAGE => {
                let taken = Some(take_taken(rest)?);
                Self::Message { body: take_body(rest)?, waits_for: take_list(rest, take_pair)?, taken }
            }
            kind::TAKEN => Self::Taken { taken: take_taken(rest)? },
            kind::RELEASED => Self::Released { session: take_u64(rest)?, packet_id: take_packet_id(rest)? },
            kind::SENT => Self::Sent { session: take_u64(rest)?, messages: take_list(rest, take_sent)? },
            kind::RECEIVED => {
                Self::Received { session: take_u64(rest)?, message: take_u64(rest)?, packet_id: take_packet_id(rest)? }
            }
            kind::COMPLETED => Self::Completed { session: take_u64(rest)?, packet_id: take_packet_id(rest)? },
            kind::ACKNOWLEDGED => Self::Acknowledged { messages: take_list(rest, take_numbers)? },
            kind::WAITS => {
                let (session, (message, manner)) = (take_u64(rest)?, take_pair(rest)?);
                Self::Waits { session, message, manner }
            }
            kind::FORGOTTEN => Self::Forgotten { topic: take_text(rest)? },
            kind::STOPPED => Self::Stopped { sent: take_list(rest, take_numbers)? },
            _ => return None,
        };
        rest.is_empty().then_some(record)
    }
}

/// Appends a [`Record::Message`].
pub(super) fn encode_message(
    body: &Body<'_>,
    waits_for: &[(SessionNumber, Manner)],
    taken: Option<Taken>,
    out: &mut Vec<u8>,
) {
    match taken {
        None => out.push(kind::MESSAGE),
        Some(taken) => {
            out.push(kind::TAKEN_MESSAGE);
            push_taken(&taken, out);
        }
    }
    push_u64(body.number, out);
    out.push(body.qos.level() | u8::from(body.retain) << 2 | u8::from(body.is_retained) << 3);
    out.extend_from_slice(&body.expires_at_us.to_le_bytes());
    [body.topic, body.payload, body.properties].into_iter().for_each(|text| push_text(text, out));
    push_pairs(waits_for, out);
}

/// Appends a [`Record::Acknowledged`].
pub(super) fn encode_acknowledged(messages: &[(SessionNumber, MessageNumber)], out: &mut Vec<u8>) {
    out.push(kind::ACKNOWLEDGED);
    push_numbers(messages, out);
}

fn push_numbers(numbers: &[(u64, u64)], out: &mut Vec<u8>) {
    push_length(numbers.len(), out);
    for (first, second) in numbers {
        push_u64(*first, out);
        push_u64(*second, out);
    }
}

fn push_u64(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn push_packet_id(packet_id: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&packet_id.to_le_bytes());
}

fn push_taken((session, Unreleased { packet_id, position }): &Taken, out: &mut Vec<u8>) {
    push_u64(*session, out);
    push_packet_id(*packet_id, out);
    push_u64(*position, out);
}

fn push_sent(sent: &[(MessageNumber, u16)], out: &mut Vec<u8>) {
    push_length(sent.len(), out);
    for (message, packet_id) in sent {
        push_u64(*message, out);
        push_packet_id(*packet_id, out);
    }
}

fn push_under_way(UnderWay { sent, released, incoming, last_packet_id }: &UnderWay, out: &mut Vec<u8>) {
    push_sent(sent, out);
    push_length(released.len(), out);
    released.iter().for_each(|&packet_id| push_packet_id(packet_id, out));
    push_length(incoming.len(), out);
    for unreleased in incoming {
        push_packet_id(unreleased.packet_id, out);
        push_u64(unreleased.position, out);
    }
    push_packet_id(*last_packet_id, out);
}

fn push_length(length: usize, out: &mut Vec<u8>) {
    let length = u32::try_from(length).expect("texts and lists are bounded far below");
    out.extend_from_slice(&length.to_le_bytes());
}

fn push_text(text: &[u8], out: &mut Vec<u8>) {
    push_length(text.len(), out);
    out.extend_from_slice(text);
}

fn push_lasting(lasting: &Lasting, out: &mut Vec<u8>) {
    out.extend_from_slice(&lasting.expiry_s.to_le_bytes());
    out.extend_from_slice(&lasting.away_since_us.to_le_bytes());
    let address = match lasting.address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    out.extend_from_slice(&address.octets());
}

fn push_subscribed(subscribed: &Subscribed<'_>, out: &mut Vec<u8>) {
    let Subscribed { filter, qos, no_local, retain_as_published, identifier, wants_retained } = *subscribed;
    push_text(filter.as_bytes(), out);
    out.push(
        qos.level() | u8::from(no_local) << 2 | u8::from(retain_as_published) << 3 | u8::from(wants_retained) << 4,
    );
    out.extend_from_slice(&identifier.unwrap_or(0).to_le_bytes());
}

fn push_pairs(pairs: &[(u64, Manner)], out: &mut Vec<u8>) {
    push_length(pairs.len(), out);
    pairs.iter().for_each(|pair| push_pair(pair, out));
}

/// The first identifier has its place always, 0 for none; the flags have the number of further ones.
fn push_pair((number, manner): &(u64, Manner), out: &mut Vec<u8>) {
    push_u64(*number, out);
    let mut identifiers = manner.identifiers.iter();
    let first = identifiers.next().unwrap_or(0);
    let more = manner.identifiers.iter().count().saturating_sub(1) as u8;
    out.push(manner.qos.level() | u8::from(manner.retain) << 2 | u8::from(manner.is_shared) << 3 | more << 4);
    [first].into_iter().chain(identifiers).for_each(|identifier| out.extend_from_slice(&identifier.to_le_bytes()));
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

fn take_numbers(bytes: &mut &[u8]) -> Option<(u64, u64)> {
    Some((take_u64(bytes)?, take_u64(bytes)?))
}

fn take_u16(bytes: &mut &[u8]) -> Option<u16> {
    take(bytes).map(u16::from_le_bytes)
}

/// No packet has the identifier 0.
fn take_packet_id(bytes: &mut &[u8]) -> Option<u16> {
    take_u16(bytes).filter(|&packet_id| packet_id > 0)
}

fn take_unreleased(bytes: &mut &[u8]) -> Option<Unreleased> {
    Some(Unreleased { packet_id: take_packet_id(bytes)?, position: take_u64(bytes)? })
}

fn take_taken(bytes: &mut &[u8]) -> Option<Taken> {
    Some((take_u64(bytes)?, take_unreleased(bytes)?))
}

fn take_sent(bytes: &mut &[u8]) -> Option<(MessageNumber, u16)> {
    Some((take_u64(bytes)?, take_packet_id(bytes)?))
}

fn take_under_way(bytes: &mut &[u8]) -> Option<UnderWay> {
    Some(UnderWay {
        sent: take_list(bytes, take_sent)?,
        released: take_list(bytes, take_packet_id)?,
        incoming: take_list(bytes, take_unreleased)?,
        // 0 before the first.
        last_packet_id: take_u16(bytes)?,
    })
}

fn take_text<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = u32::from_le_bytes(take(bytes)?) as usize;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(text)
}

fn take_str<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
    std::str::from_utf8(take_text(bytes)?).ok()
}

fn take_list<'b, T>(bytes: &mut &'b [u8], each: impl Fn(&mut &'b [u8]) -> Option<T>) -> Option<Vec<T>> {
    let length = u32::from_le_bytes(take(bytes)?);
    // Memory grows with the elements that are present, not with the stated length.
    (0..length).map(|_| each(bytes)).collect()
}

fn take_lasting(bytes: &mut &[u8]) -> Option<Lasting> {
    Some(Lasting {
        expiry_s: u32::from_le_bytes(take(bytes)?),
        away_since_us: i64::from_le_bytes(take(bytes)?),
        address: IpAddr::V6(Ipv6Addr::from(take::<16>(bytes)?)).to_canonical(),
    })
}

fn take_subscribed<'b>(bytes: &mut &'b [u8]) -> Option<Subscribed<'b>> {
    let filter = take_str(bytes)?;
    let [flags] = take(bytes)?;
    let identifier = u32::from_le_bytes(take(bytes)?);
    Some(Subscribed {
        filter,
        qos: Qos::from_level(flags & 0b11)?,
        no_local: flags & 0b100 != 0,
        retain_as_published: flags & 0b1000 != 0,
        identifier: (identifier > 0).then_some(identifier),
        wants_retained: flags & 0b1_0000 != 0,
    })
}

fn take_pair(bytes: &mut &[u8]) -> Option<(u64, Manner)> {
    let number = take_u64(bytes)?;
    let [flags] = take(bytes)?;
    let mut identifiers = Identifiers::default();
    for _ in 0..=flags >> 4 {
        match u32::from_le_bytes(take(bytes)?) {
            0 => {}
            identifier => identifiers = identifiers.with(identifier)?,
        }
    }
    let qos = Qos::from_level(flags & 0b11)?;
    Some((
        number,
        Manner {
            qos,
            retain: flags & 0b100 != 0,
            is_shared: flags & 0b1000 != 0,
            group: OfGroup::default(),
            identifiers,
        },
    ))
}

fn take_body<'b>(bytes: &mut &'b [u8]) -> Option<Body<'b>> {
    let number = take_u64(bytes)?;
    let [flags] = take(bytes)?;
    Some(Body {
        number,
        is_retained: flags & 0b1000 != 0,
        qos: Qos::from_level(flags & 0b11)?,
        retain: flags & 0b100 != 0,
        expires_at_us: i64::from_le_bytes(take(bytes)?),
        topic: take_text(bytes)?,
        payload: take_text(bytes)?,
        properties: take_text(bytes)?,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;

    /// A journal whose durable part a test can choose.
    #[derive(Default)]
    pub(in super::super) struct MemoryJournal {
        records: Mutex<Vec<(LogPosition, Vec<u8>)>>,
        next: AtomicU64,
        durable: AtomicU64,
        committed: Notify,
        /// None if it is 0.
        bytes_max: AtomicU64,
        is_broken: AtomicBool,
        is_held: AtomicBool,
    }

    impl MemoryJournal {
        pub(in super::super) fn set_durable(&self, position: LogPosition) {
            self.durable.store(position, Ordering::SeqCst);
        }

        pub(in super::super) fn set_bytes_max(&self, bytes_max: u64) {
            self.bytes_max.store(bytes_max, Ordering::SeqCst);
        }

        /// Makes it keep records that may be forgotten, as a backup does.
        pub(in super::super) fn set_held(&self, is_held: bool) {
            self.is_held.store(is_held, Ordering::SeqCst);
        }

        /// Makes it refuse all records.
        pub(in super::super) fn set_broken(&self, is_broken: bool) {
            self.is_broken.store(is_broken, Ordering::SeqCst);
        }

        fn is_full(&self) -> bool {
            self.bytes_max() < u64::MAX && self.disk_bytes() >= self.bytes_max()
        }

        /// The journal after a crash: the records up to this position.
        pub(in super::super) fn crashed_at(&self, position: LogPosition) -> Self {
            let mut records = self.records.lock().clone();
            records.retain(|(at, _)| *at <= position);
            let next = AtomicU64::new(position);
            Self { records: Mutex::new(records), next, durable: AtomicU64::new(position), ..Self::default() }
        }
    }

    impl Journal for MemoryJournal {
        fn append(&self, record: &[u8], may_exceed: bool) -> Option<LogPosition> {
            if !self.can_rewrite() || !may_exceed && self.is_full() {
                return None;
            }
            let position = self.next.fetch_add(1, Ordering::SeqCst) + 1;
            self.records.lock().push((position, record.to_vec()));
            Some(position)
        }

        fn room(&self) -> Room {
            match self.can_rewrite() {
                true if self.is_full() => Room::Wait,
                true => Room::Free,
                false => Room::Broken,
            }
        }

        fn can_rewrite(&self) -> bool {
            !self.is_broken.load(Ordering::SeqCst)
        }

        fn next(&self) -> LogPosition {
            self.next.load(Ordering::SeqCst) + 1
        }

        fn durable(&self) -> LogPosition {
            self.durable.load(Ordering::SeqCst)
        }

        fn committed(&self) -> &Notify {
            &self.committed
        }

        fn disk_bytes(&self) -> u64 {
            self.records.lock().iter().map(|(_, record)| record.len() as u64).sum()
        }

        fn bytes_max(&self) -> u64 {
            match self.bytes_max.load(Ordering::SeqCst) {
                0 => u64::MAX,
                bound => bound,
            }
        }

        fn forget_before(&self, position: LogPosition) -> bool {
            if self.is_held.load(Ordering::SeqCst) {
                return false;
            }
            self.records.lock().retain(|(at, _)| *at >= position);
            true
        }

        fn read(&self, take: &mut dyn FnMut(LogPosition, &[u8])) -> Result<(), String> {
            self.records.lock().iter().for_each(|(position, record)| take(*position, record));
            Ok(())
        }
    }

    fn records() -> Vec<Record<'static>> {
        let identifiers = Identifiers::from(Some(7));
        let manner =
            Manner { qos: Qos::AtLeastOnce, retain: true, is_shared: false, group: OfGroup::default(), identifiers };
        let shared = Manner { qos: Qos::ExactlyOnce, is_shared: true, ..manner };
        let joined = Manner { identifiers: identifiers.with(8).unwrap().with(300).unwrap(), ..manner };
        let unreleased = Unreleased { packet_id: 7, position: 12 };
        let lasting = Lasting { expiry_s: 60, away_since_us: 5, address: "10.0.0.1".parse().unwrap() };
        let subscribed = Subscribed {
            filter: "a/#",
            qos: Qos::AtLeastOnce,
            no_local: true,
            retain_as_published: false,
            identifier: None,
            wants_retained: true,
        };
        let body = Body {
            number: 9,
            is_retained: true,
            qos: Qos::AtLeastOnce,
            retain: false,
            expires_at_us: -1,
            topic: b"a/b",
            payload: b"x",
            properties: b"",
        };
        vec![
            Record::Session {
                session: 1,
                client_id: "kim",
                lasting,
                subscriptions: vec![subscribed, subscribed],
                queue: vec![(9, manner)],
                under_way: UnderWay {
                    sent: vec![(9, 1), (10, 2)],
                    released: vec![7],
                    incoming: vec![unreleased, unreleased],
                    last_packet_id: 8,
                },
            },
            Record::Lasting { session: 1, lasting: Lasting { address: "2001:db8::1".parse().unwrap(), ..lasting } },
            Record::Ended { session: u64::MAX },
            Record::Subscribed { session: 1, subscribed },
            Record::Unsubscribed { session: 1, filter: "a/#" },
            Record::Message { body, waits_for: vec![(1, manner)], taken: None },
            Record::Message { body, waits_for: vec![(1, manner)], taken: Some((3, unreleased)) },
            Record::Taken { taken: (3, unreleased) },
            Record::Released { session: 3, packet_id: 7 },
            Record::Sent { session: 3, messages: vec![(9, 1), (10, 2)] },
            Record::Received { session: 3, message: 9, packet_id: 1 },
            Record::Completed { session: 3, packet_id: 1 },
            Record::Message { body, waits_for: vec![(1, joined), (2, shared)], taken: None },
            Record::Waits { session: 2, message: 9, manner },
            Record::Waits { session: 2, message: 9, manner: joined },
            Record::Acknowledged { messages: vec![(1, 9), (2, 9)] },
            Record::Forgotten { topic: b"a/b" },
            Record::Stopped { sent: vec![(1, 2), (3, 1)] },
        ]
    }

    #[test]
    fn what_was_written_is_read_and_no_part_of_it_is_taken_for_the_whole() {
        for record in records() {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert_eq!(Record::decode(&bytes), Some(record));
            assert!((0..bytes.len()).all(|end| Record::decode(&bytes[..end]).is_none()));
            bytes.push(0);
            assert_eq!(Record::decode(&bytes), None);
        }
    }

    #[test]
    fn a_session_of_an_earlier_version_is_read() {
        let bytes = [
            &[1][..],
            &1u64.to_le_bytes(),
            &[3, 0, 0, 0, b'k', b'i', b'm'],
            &60u32.to_le_bytes(),
            &5i64.to_le_bytes(),
            &std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
            &[0; 4],
            // One message waits, with QoS 1 and no subscription identifier.
            &[1, 0, 0, 0],
            &9u64.to_le_bytes(),
            &[1, 0, 0, 0, 0],
        ]
        .concat();
        let Some(Record::Session { client_id, queue, under_way, .. }) = Record::decode(&bytes) else { panic!() };
        let manner = Manner {
            qos: Qos::AtLeastOnce,
            retain: false,
            is_shared: false,
            group: OfGroup::default(),
            identifiers: Identifiers::default(),
        };
        assert_eq!((client_id, queue, under_way), ("kim", vec![(9, manner)], UnderWay::default()));
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..19) {
            let _ = Record::decode(&[&[kind], &bytes[..]].concat());
        }
    }
}
