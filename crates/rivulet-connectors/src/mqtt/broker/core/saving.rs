//! Writes changes of the core to its journal.
//!
//! What must hold: if a session that outlives its connection, or the retained messages, hold a message, then the broker
//! confirms the message only when the journal has it on disk. The positions that are returned here say when that is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rivulet_dataflow::{Clock, LogPosition};

use super::super::addresses::SessionKey;
use super::super::journal::{
    Body, Journal, MessageNumber, Record, Room, SessionNumber, Subscribed, Taken, encode_acknowledged, encode_message,
};
use super::super::message::{Manner, Message};

/// The number of acknowledgements that are written together; they need not be on disk soon.
const ACKNOWLEDGED_MAX: usize = 256;

/// The bytes that are rewritten before other tasks have their turn.
pub(super) const REWRITTEN_BYTES_MAX: u64 = 256 << 10;

/// The bytes that a journal may have beyond twice its needed size before it is rewritten.
const SPARE_BYTES: u64 = 64 << 20;

/// The journal, and what was written to it.
pub(super) struct Saving {
    pub(super) journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    pub(super) next_session: SessionNumber,
    pub(super) next_message: MessageNumber,
    /// Whether it has room for records; asked after each record.
    pub(super) room: Room,
    /// The sessions that the message being published waits for.
    waits_for: Vec<(SessionNumber, Manner)>,
    /// The session and the packet identifier of the message being published, if it has QoS 2.
    pub(super) taken: Option<Taken>,
    acknowledged: Vec<(SessionNumber, MessageNumber)>,
    pub(super) rewriting: Option<Rewriting>,
    /// The size of the journal after it was last rewritten.
    pub(super) rewritten_bytes: u64,
    /// The bytes that a journal may have beyond twice that size.
    pub(super) spare_bytes: u64,
    /// Changes for which it had no room.
    pub(super) unsaved: u64,
    /// Kept so that the memory is reused.
    record: Vec<u8>,
}

/// The rewriting of everything that is kept, so that earlier records can be forgotten.
pub(super) struct Rewriting {
    /// Records before this position are to be forgotten.
    pub(super) before: LogPosition,
    pub(super) stage: Stage,
}

/// What is left to do for rewriting a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Rewritten {
    /// Nothing, for now.
    Nothing,
    /// There is more to write, when other tasks have had their turn.
    More,
    /// There is more to do, when the journal has more on disk.
    Waits,
}

pub(super) enum Stage {
    /// Sessions from this number on are to be written.
    Sessions(SessionKey),
    /// Retained messages from this topic on are to be written.
    Retained(Vec<u8>),
    /// All is written up to this position.
    Written(LogPosition),
}

impl Saving {
    pub(super) fn new(journal: Arc<dyn Journal>, clock: Arc<dyn Clock>) -> Self {
        let room = journal.room();
        Self {
            journal,
            clock,
            next_session: 1,
            next_message: 1,
            room,
            waits_for: Vec::new(),
            taken: None,
            acknowledged: Vec::new(),
            rewriting: None,
            rewritten_bytes: 0,
            spare_bytes: SPARE_BYTES,
            unsaved: 0,
            record: Vec::new(),
        }
    }

    /// Appends the record that `encode` writes. Returns its position, 0 if there was no room.
    pub(super) fn append(&mut self, may_exceed: bool, encode: impl FnOnce(&mut Vec<u8>)) -> LogPosition {
        self.record.clear();
        encode(&mut self.record);
        let position = self.journal.append(&self.record, may_exceed);
        self.record.shrink_to(REWRITTEN_BYTES_MAX as usize);
        self.room = self.journal.room();
        self.unsaved += u64::from(position.is_none());
        position.unwrap_or(0)
    }

    pub(super) fn write(&mut self, record: &Record<'_>) -> LogPosition {
        self.append(false, |out| record.encode(out))
    }

    /// Writes a message with the sessions in `waits_for`, and gives it a number if it has none.
    pub(super) fn write_message(
        &mut self,
        message: &Message,
        is_retained: bool,
        waits_for: &[(SessionNumber, Manner)],
        may_exceed: bool,
    ) -> LogPosition {
        let number = match message.number() {
            0 => {
                self.next_message += 1;
                self.next_message - 1
            }
            known => known,
        };
        let body = Body {
            number,
            is_retained,
            qos: message.qos,
            retain: message.retain,
            expires_at_us: self.wall_clock(message.expires_at),
            topic: &message.topic,
            payload: &message.payload,
            properties: &message.properties,
        };
        let taken = self.taken.take();
        let position = self.append(may_exceed, |out| encode_message(&body, waits_for, taken, out));
        if position > 0 {
            message.number.store(number, Ordering::Relaxed);
            message.saved_at.store(position, Ordering::Relaxed);
        }
        position
    }

    /// Records the end of a session. Its other records are not needed any more then, so there is room for this one even
    /// in a full journal.
    pub(super) fn write_end(&mut self, session: SessionNumber) {
        self.append(true, |out| Record::Ended { session }.encode(out));
    }

    /// The position of the last record.
    pub(super) fn last(&self) -> LogPosition {
        self.journal.next().saturating_sub(1)
    }

    /// The position of the last record if it is not on disk yet; otherwise 0.
    pub(super) fn undurable_end(&self) -> LogPosition {
        Some(self.last()).filter(|last| *last > self.journal.durable()).unwrap_or(0)
    }

    /// Whether the journal is to be rewritten: it is twice as long as after the last time, or near its bound. It must
    /// have grown meanwhile; otherwise a journal with much to keep would be rewritten without end.
    pub(super) fn is_long(&self) -> bool {
        let (bytes, bytes_max) = (self.journal.disk_bytes(), self.journal.bytes_max());
        let grown = self.rewritten_bytes + self.spare_bytes;
        bytes > (grown + self.rewritten_bytes).min(bytes_max / 2).max(grown) || bytes >= bytes_max
    }

    /// A moment as microseconds since the epoch; 0 for never.
    pub(super) fn wall_clock(&self, at: Option<Instant>) -> i64 {
        let Some(at) = at else { return 0 };
        let left = at.saturating_duration_since(Instant::now());
        self.clock.now_us().saturating_add(i64::try_from(left.as_micros()).unwrap_or(i64::MAX)).max(1)
    }

    /// The time until a moment of the wall clock; zero if it has passed.
    pub(super) fn left(&self, at_us: i64) -> Duration {
        Duration::from_micros(at_us.saturating_sub(self.clock.now_us()).try_into().unwrap_or(0))
    }

    /// The present time of the wall clock.
    pub(super) fn now_us(&self) -> i64 {
        self.clock.now_us()
    }

    pub(super) fn write_acknowledged(&mut self) {
        if !self.acknowledged.is_empty() {
            let acknowledged = std::mem::take(&mut self.acknowledged);
            self.append(false, |out| encode_acknowledged(&acknowledged, out));
            self.acknowledged = acknowledged;
            self.acknowledged.clear();
        }
    }
}

/// Notes that the message being published waits for a session.
#[inline]
pub(super) fn note_waiting(saving: &mut Option<Saving>, session: SessionNumber, manner: Manner) {
    if session > 0
        && let Some(saving) = saving
    {
        saving.waits_for.push((session, manner));
    }
}

/// Saves a message for the sessions that were [noted](note_waiting), and for the retained messages. Returns
/// the position that must be durable before the message is confirmed to its publisher; 0 if there is none.
pub(super) fn save_message(saving: &mut Option<Saving>, message: &Message, is_retained: bool) -> LogPosition {
    let Some(saving) = saving else { return 0 };
    let waits_for = std::mem::take(&mut saving.waits_for);
    let position = saving.write_message(message, is_retained, &waits_for, false);
    saving.waits_for = waits_for;
    saving.waits_for.clear();
    position
}

/// Whether the message being published waits for a session that is saved.
#[inline]
pub(super) fn waits(saving: &Option<Saving>) -> bool {
    saving.as_ref().is_some_and(|saving| !saving.waits_for.is_empty())
}

/// Records that a topic has no retained message any more.
pub(super) fn save_forgotten(saving: &mut Option<Saving>, topic: &[u8]) -> LogPosition {
    saving.as_mut().map_or(0, |saving| saving.write(&Record::Forgotten { topic }))
}

/// Records that a session has ended.
pub(super) fn save_end(saving: &mut Option<Saving>, session: SessionNumber) {
    if session > 0
        && let Some(saving) = saving
    {
        saving.write_end(session);
    }
}

/// Records that a message waits for one more session.
pub(super) fn save_waits(
    saving: &mut Option<Saving>,
    session: SessionNumber,
    message: &Message,
    is_retained: bool,
    manner: Manner,
) {
    let Some(saving) = saving.as_mut().filter(|_| session > 0) else { return };
    let before = saving.rewriting.as_ref().map_or(0, |rewriting| rewriting.before);
    if message.number() == 0 || message.saved_at.load(Ordering::Relaxed) < before {
        // The message's record is about to be forgotten, and the session may have been rewritten already.
        saving.write_message(message, is_retained, &[(session, manner)], false);
    } else {
        saving.write(&Record::Waits { session, message: message.number(), manner });
    }
}

/// Records that no more retained messages are on their way to a subscription.
pub(super) fn save_walked(saving: &mut Option<Saving>, session: SessionNumber, subscribed: Option<Subscribed<'_>>) {
    if session > 0
        && let Some((saving, subscribed)) = saving.as_mut().zip(subscribed)
    {
        saving.write(&Record::Subscribed { session, subscribed });
    }
}

/// Records that a session has ended a subscription.
pub(super) fn save_unsubscribed(saving: &mut Option<Saving>, session: SessionNumber, filter: &str) -> LogPosition {
    save_change(saving, session, &Record::Unsubscribed { session, filter })
}

/// Records that a client has acknowledged a message. After a crash it may get the message once more, so
/// acknowledgements are collected and written together.
pub(super) fn save_acknowledged(saving: &mut Option<Saving>, session: SessionNumber, message: MessageNumber) {
    if session > 0
        && message > 0
        && let Some(saving) = saving
    {
        saving.acknowledged.push((session, message));
        if saving.acknowledged.len() >= ACKNOWLEDGED_MAX {
            saving.write_acknowledged();
        }
    }
}

/// Records a message of QoS 2 that a session has published, unless it was recorded with the message.
pub(super) fn save_taken(saving: &mut Option<Saving>) -> LogPosition {
    let Some(saving) = saving else { return 0 };
    saving.taken.take().map_or(0, |taken| saving.write(&Record::Taken { taken }))
}

/// Records a change of a session that is saved. Returns its position; 0 if there is none.
pub(super) fn save_change(saving: &mut Option<Saving>, session: SessionNumber, change: &Record<'_>) -> LogPosition {
    match saving {
        Some(saving) if session > 0 => saving.write(change),
        _ => 0,
    }
}
