//! Writes the core's changes to its journal, and keeps the journal short.
//!
//! What must hold: if a session that outlives its connection, or the retained messages, hold a message, then the broker
//! confirms the message only when the journal has it on disk. The positions that are returned here say when that is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rivulet_dataflow::{Clock, LogPosition};

use super::super::addresses::SessionKey;
use super::super::journal::{
    Body, Journal, Lasting, MessageNumber, Record, Room, SessionNumber, Subscribed, encode_acknowledged, encode_message,
};
use super::super::message::{Manner, Message};
use super::super::retained::Retained;
use super::{Core, Subscription};

/// The number of acknowledgements that are written together; they need not be on disk soon.
const ACKNOWLEDGED_MAX: usize = 256;

/// The bytes that are rewritten before other tasks have their turn.
const REWRITTEN_BYTES_MAX: u64 = 256 << 10;

/// The bytes that a journal may have beyond twice its needed size before it is rewritten.
const SPARE_BYTES: u64 = 64 << 20;

/// The journal, and what was written to it.
pub(super) struct Saving {
    pub(super) journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    pub(super) next_session: SessionNumber,
    pub(super) next_message: MessageNumber,
    /// Whether it has room for records; asked after each record.
    room: Room,
    /// The sessions that the message being published waits for.
    waits_for: Vec<(SessionNumber, Manner)>,
    acknowledged: Vec<(SessionNumber, MessageNumber)>,
    rewriting: Option<Rewriting>,
    /// The size of the journal after it was last rewritten.
    rewritten_bytes: u64,
    /// The bytes that a journal may have beyond twice that size.
    pub(super) spare_bytes: u64,
    /// Changes for which it had no room.
    pub(super) unsaved: u64,
    /// Kept so that the memory is reused.
    record: Vec<u8>,
}

/// The rewriting of everything that is kept, so that earlier records can be forgotten.
struct Rewriting {
    /// Records before this position are to be forgotten.
    before: LogPosition,
    stage: Stage,
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

enum Stage {
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
            acknowledged: Vec::new(),
            rewriting: None,
            rewritten_bytes: 0,
            spare_bytes: SPARE_BYTES,
            unsaved: 0,
            record: Vec::new(),
        }
    }

    /// Appends the record that `encode` writes. Returns its position, 0 if there was no room.
    fn append(&mut self, may_exceed: bool, encode: impl FnOnce(&mut Vec<u8>)) -> LogPosition {
        self.record.clear();
        encode(&mut self.record);
        let position = self.journal.append(&self.record, may_exceed);
        self.record.shrink_to(REWRITTEN_BYTES_MAX as usize);
        self.room = self.journal.room();
        self.unsaved += u64::from(position.is_none());
        position.unwrap_or(0)
    }

    fn write(&mut self, record: &Record<'_>) -> LogPosition {
        self.append(false, |out| record.encode(out))
    }

    /// Writes a message with the sessions in `waits_for`, and gives it a number if it has none.
    fn write_message(
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
        let position = self.append(may_exceed, |out| encode_message(&body, waits_for, out));
        if position > 0 {
            message.number.store(number, Ordering::Relaxed);
            message.saved_at.store(position, Ordering::Relaxed);
        }
        position
    }

    /// Records the end of a session. Its other records are not needed any more then, so there is room for this one even
    /// in a full journal.
    fn write_end(&mut self, session: SessionNumber) {
        self.append(true, |out| Record::Ended { session }.encode(out));
    }

    /// Whether the journal is to be rewritten: it is twice as long as after the last time, or near its bound. It must
    /// have grown meanwhile; otherwise a journal with much to keep would be rewritten without end.
    fn is_long(&self) -> bool {
        let (bytes, bytes_max) = (self.journal.disk_bytes(), self.journal.bytes_max());
        let grown = self.rewritten_bytes + self.spare_bytes;
        bytes > (grown + self.rewritten_bytes).min(bytes_max / 2).max(grown) || bytes >= bytes_max
    }

    /// A moment as microseconds since the epoch; 0 for never.
    fn wall_clock(&self, at: Option<Instant>) -> i64 {
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
}

impl Core {
    /// Whether messages of QoS 1, messages to be retained, and subscriptions may be processed: there is room to save
    /// them.
    pub(in super::super) fn has_room_to_save(&self) -> bool {
        self.saving.as_ref().is_none_or(|saving| saving.room == Room::Free)
    }

    /// Whether that room will come without repairs. If an operator has to repair the disk first, results are published
    /// without waiting for it.
    pub(in super::super) fn will_have_room_to_save(&self) -> bool {
        self.saving.as_ref().is_some_and(|saving| saving.room == Room::Wait)
    }

    /// Asks the journal again whether it has room; called when other tasks have had their turn.
    pub(super) fn look_for_room_to_save(&mut self) {
        if let Some(saving) = &mut self.saving
            && saving.room != Room::Free
        {
            saving.room = saving.journal.room();
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

    /// Saves a message for the sessions that were [noted](Core::note_waiting), and for the retained messages. Returns
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

    /// Records that a session has begun, got or lost its connection, or has another expiry.
    pub(super) fn save_session(&mut self, key: SessionKey) {
        let Some(saving) = &mut self.saving else { return };
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.expiry_s == 0 {
            // The session ends with its connection, and so with the process.
            let number = std::mem::take(&mut session.saved_as);
            if number > 0 {
                saving.write_end(number);
            }
            return;
        }
        if session.saved_as > 0 {
            let lasting = self.lasting(key);
            let Some((saving, session)) = self.saving.as_mut().zip(self.sessions.get(key)) else { return };
            saving.write(&Record::Lasting { session: session.saved_as, lasting });
            return;
        }
        session.saved_as = saving.next_session;
        saving.next_session += 1;
        if self.write_session(key, false) == 0
            && let Some(session) = self.sessions.get_mut(key)
        {
            // The session was not saved, so no record may refer to it. It is saved when it subscribes.
            session.saved_as = 0;
        }
    }

    /// Records that a session has ended.
    pub(super) fn save_end(saving: &mut Option<Saving>, session: SessionNumber) {
        if session > 0
            && let Some(saving) = saving
        {
            saving.write_end(session);
        }
    }

    /// Records that a session has subscribed. Returns the position that must be durable before the client gets its
    /// answer.
    pub(super) fn save_subscribed(&mut self, key: SessionKey, number: u32, filter: &str) -> LogPosition {
        if self.sessions.get(key).is_some_and(|session| session.saved_as == 0 && session.expiry_s > 0) {
            // There was no room when the session began.
            self.save_session(key);
        }
        let Some(saving) = &mut self.saving else { return 0 };
        let Some(session) = self.sessions.get(key).filter(|session| session.saved_as > 0) else { return 0 };
        let Some(subscription) = self.subscriptions.get(number) else { return 0 };
        let subscribed = subscription.subscribed(filter, session.wants_retained(number));
        saving.write(&Record::Subscribed { session: session.saved_as, subscribed })
    }

    /// Records that a retained message waits for a session that has subscribed.
    pub(super) fn save_waits(saving: &mut Option<Saving>, session: SessionNumber, message: &Message, manner: Manner) {
        let Some(saving) = saving.as_mut().filter(|_| session > 0) else { return };
        let before = saving.rewriting.as_ref().map_or(0, |rewriting| rewriting.before);
        if message.number() == 0 || message.saved_at.load(Ordering::Relaxed) < before {
            // The message's record is about to be forgotten, and the session may have been rewritten already.
            saving.write_message(message, true, &[(session, manner)], false);
        } else {
            saving.write(&Record::Waits { session, message: message.number(), manner });
        }
    }

    /// Records that no more retained messages are on their way to a subscription.
    pub(super) fn save_walked(
        saving: &mut Option<Saving>,
        session: SessionNumber,
        subscription: Option<&Subscription>,
        filter: &str,
    ) {
        if session > 0
            && let Some((saving, subscription)) = saving.as_mut().zip(subscription)
        {
            saving.write(&Record::Subscribed { session, subscribed: subscription.subscribed(filter, false) });
        }
    }

    /// Records that a session has ended a subscription.
    pub(super) fn save_unsubscribed(saving: &mut Option<Saving>, session: SessionNumber, filter: &str) -> LogPosition {
        match saving {
            Some(saving) if session > 0 => saving.write(&Record::Unsubscribed { session, filter }),
            _ => 0,
        }
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

    /// Writes the records that were held back.
    pub(in super::super) fn save_rest(&mut self) {
        if let Some(saving) = &mut self.saving {
            saving.write_acknowledged();
        }
    }

    /// The lifetime of a session, as it is saved.
    fn lasting(&self, key: SessionKey) -> Lasting {
        let session = self.sessions.get(key).expect("it is there");
        let away_since_us = match (&self.saving, session.ends_at) {
            (Some(saving), Some(ends_at)) => {
                saving.wall_clock(Some(ends_at)).saturating_sub(i64::from(session.expiry_s) * 1_000_000).max(1)
            }
            _ => 0,
        };
        let address = self.addresses.address(session.address);
        Lasting { expiry_s: session.expiry_s, away_since_us, address }
    }

    /// Writes all of a session except the bodies of messages.
    fn write_session(&mut self, key: SessionKey, may_exceed: bool) -> LogPosition {
        let lasting = self.lasting(key);
        let Some((saving, session)) = self.saving.as_mut().zip(self.sessions.get(key)) else { return 0 };
        // Acknowledged messages are not in the queue any more, and must not be taken out of it once more.
        saving.write_acknowledged();
        let subscriptions = session.subscriptions.iter().filter_map(|(filter, &number)| {
            let wants_retained = session.wants_retained(number);
            self.subscriptions.get(number).map(|subscription| subscription.subscribed(filter, wants_retained))
        });
        let record = Record::Session {
            session: session.saved_as,
            client_id: &session.client_id,
            lasting,
            subscriptions: subscriptions.collect(),
            queue: session
                .messages()
                .map(|(message, manner)| (message.number(), manner))
                .filter(|(number, _)| *number > 0)
                .collect(),
        };
        saving.append(may_exceed, |out| record.encode(out))
    }

    /// Rewrites a part of what is kept if the journal has become long, so that its beginning can be forgotten.
    pub(in super::super) fn rewrite_some(&mut self) -> Rewritten {
        self.look_for_room_to_save();
        let Some(saving) = &mut self.saving else { return Rewritten::Nothing };
        if saving.rewriting.is_none() && saving.is_long() {
            let before = saving.journal.next();
            saving.rewriting = Some(Rewriting { before, stage: Stage::Sessions(0) });
        }
        let Some(Rewriting { before, stage }) = saving.rewriting.take() else { return Rewritten::Nothing };
        let unsaved = saving.unsaved;
        let next = match stage {
            Stage::Sessions(key) => self.rewrite_sessions(key, before),
            Stage::Retained(from) => self.rewrite_retained(from, before),
            Stage::Written(position) if saving.journal.durable() < position => Some(Stage::Written(position)),
            // A backup may hold the records; this is tried again after the next commit, or a second later.
            Stage::Written(position) if !saving.journal.forget_before(before) => Some(Stage::Written(position)),
            Stage::Written(_) => {
                saving.rewritten_bytes = saving.journal.disk_bytes();
                None
            }
        };
        let Some((saving, stage)) = self.saving.as_mut().zip(next) else { return Rewritten::Nothing };
        let was_refused = saving.unsaved > unsaved;
        let waits = matches!(stage, Stage::Written(_)) || !saving.journal.can_rewrite() || was_refused;
        saving.rewriting = Some(Rewriting { before, stage });
        if waits { Rewritten::Waits } else { Rewritten::More }
    }

    fn rewrite_sessions(&mut self, mut key: SessionKey, before: LogPosition) -> Option<Stage> {
        let mut bytes = 0;
        while (key as usize) < self.sessions.end() {
            let Some((saving, session)) = self.saving.as_mut().zip(self.sessions.get(key)) else {
                key += 1;
                continue;
            };
            if session.saved_as > 0 {
                for (message, _) in session.messages() {
                    if message.number() > 0 && message.saved_at.load(Ordering::Relaxed) >= before {
                        continue;
                    }
                    if bytes > REWRITTEN_BYTES_MAX || !saving.journal.can_rewrite() {
                        // The messages of this session that were written already are skipped the next time.
                        return Some(Stage::Sessions(key));
                    }
                    bytes += message.memory_bytes() as u64;
                    if saving.write_message(message, is_retained(&self.retained, message), &[], true) == 0 {
                        return Some(Stage::Sessions(key));
                    }
                }
                if bytes > REWRITTEN_BYTES_MAX || !saving.journal.can_rewrite() {
                    return Some(Stage::Sessions(key));
                }
                bytes += 1000;
                if self.write_session(key, true) == 0 {
                    return Some(Stage::Sessions(key));
                }
            }
            key += 1;
        }
        Some(Stage::Retained(Vec::new()))
    }

    fn rewrite_retained(&mut self, from: Vec<u8>, before: LogPosition) -> Option<Stage> {
        let saving = self.saving.as_mut()?;
        let mut bytes = 0;
        for (topic, message) in self.retained.from(&from) {
            bytes += 100;
            if bytes > REWRITTEN_BYTES_MAX || !saving.journal.can_rewrite() {
                return Some(Stage::Retained(topic.to_vec()));
            }
            if message.number() == 0 || message.saved_at.load(Ordering::Relaxed) < before {
                bytes += message.memory_bytes() as u64;
                if saving.write_message(message, true, &[], true) == 0 {
                    return Some(Stage::Retained(topic.to_vec()));
                }
            }
        }
        Some(Stage::Written(saving.journal.next() - 1))
    }
}

impl Saving {
    fn write_acknowledged(&mut self) {
        if !self.acknowledged.is_empty() {
            let acknowledged = std::mem::take(&mut self.acknowledged);
            self.append(false, |out| encode_acknowledged(&acknowledged, out));
            self.acknowledged = acknowledged;
            self.acknowledged.clear();
        }
    }
}

/// Whether a message is the retained one of its topic.
fn is_retained(retained: &Retained, message: &Arc<Message>) -> bool {
    retained.get(&message.topic).is_some_and(|retained| Arc::ptr_eq(retained, message))
}

impl Subscription {
    fn subscribed<'f>(&self, filter: &'f str, wants_retained: bool) -> Subscribed<'f> {
        let Self { qos, no_local, retain_as_published, identifier, .. } = *self;
        Subscribed { filter, qos, no_local, retain_as_published, identifier, wants_retained }
    }
}
