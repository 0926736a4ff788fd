//! Saves sessions, and keeps the journal short: when it has become long, all that is kept is written once more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_dataflow::LogPosition;

use super::super::addresses::SessionKey;
use super::super::clients::LOOKED_AT;
use super::super::journal::{Lasting, Record, Room};
use super::super::message::Message;
use super::super::retained::Retained;
use super::Core;
use super::saving::{REWRITTEN_BYTES_MAX, Rewriting, Rewritten, Stage, save_forgotten};

/// The most retained messages that are removed before other tasks have their turn.
const FORGOTTEN_MAX: usize = 256;

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

    /// Removes some retained messages at and below a level of topics. Returns whether none is left; `None` if there is
    /// no room to save that the next one is removed.
    pub(in super::super) fn forget_retained(&mut self, level: &str) -> Option<bool> {
        self.look_for_room_to_save();
        for _ in 0..FORGOTTEN_MAX {
            let Some(topic) = self.retained.first_below(level) else { return Some(true) };
            if !self.has_room_to_save() || save_forgotten(&mut self.saving, &topic) == 0 && self.saving.is_some() {
                return None;
            }
            self.retained.remove(&topic);
        }
        Some(false)
    }

    /// Ends the sessions of a tenant among the next [`LOOKED_AT`] from a number on, those with a connection when it
    /// ends. Returns where the rest begins.
    pub(in super::super) fn forget_sessions(&mut self, tenant: &str, from: usize) -> Option<usize> {
        let end = self.sessions.end().min(from + LOOKED_AT);
        for key in (from..end).map(|key| key as u32) {
            let Some(session) = self.sessions.get_mut(key) else { continue };
            if session.client_id.split_once('\0').is_none_or(|(of, _)| of != tenant) {
                continue;
            }
            session.expiry_s = 0;
            match session.link.is_some() {
                true => self.save_session(key),
                false => self.remove_session(key),
            }
        }
        (end < self.sessions.end()).then_some(end)
    }

    /// Asks the journal again whether it has room; called when other tasks have had their turn.
    pub(super) fn look_for_room_to_save(&mut self) {
        if let Some(saving) = &mut self.saving
            && saving.room != Room::Free
        {
            saving.room = saving.journal.room();
        }
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

    /// Writes the records that were held back.
    pub(in super::super) fn save_rest(&mut self) {
        if let Some(saving) = &mut self.saving {
            saving.write_acknowledged();
        }
    }

    /// Records that the process stops in order, and which messages it may have sent. To be called behind everything
    /// else.
    pub(in super::super) fn save_stopped(&mut self) {
        self.save_rest();
        let Some(saving) = &mut self.saving else { return };
        let saved = self.sessions.iter().filter(|(_, session)| session.saved_as > 0);
        let sent = saved.map(|(_, session)| (session.saved_as, session.sent_first())).filter(|(_, sent)| *sent > 0);
        let record = Record::Stopped { sent: sent.collect() };
        saving.append(true, |out| record.encode(out));
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
            under_way: session.under_way(),
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

/// Whether a message is the retained one of its topic.
pub(super) fn is_retained(retained: &Retained, message: &Arc<Message>) -> bool {
    retained.get(&message.topic).is_some_and(|retained| Arc::ptr_eq(retained, message))
}
