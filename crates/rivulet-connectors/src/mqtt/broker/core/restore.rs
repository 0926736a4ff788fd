//! Restores sessions and retained messages from the journal of an earlier process.
//!
//! The journal is read twice: first to find which messages are still needed, then to load those alone. So memory only
//! holds what is kept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use rivulet_dataflow::{Clock, LogPosition};

use super::super::super::codec::{Publish, Qos};
use super::super::addresses::SessionKey;
use super::super::incoming::{LOST, Unreleased};
use super::super::journal::{
    Body, Journal, Lasting, MessageNumber, Record, SessionNumber, Subscribed, Taken, UnderWay, encode_acknowledged,
};
use super::super::message::{Manner, Message};
use super::super::seats::SeatCounts;
use super::super::session::Session;
use super::super::subscriptions::{Subscription, Wanted};
use super::saving::{self, Saving};
use super::{Core, Done};

/// The state that the records describe together.
#[derive(Default)]
struct Found {
    sessions: HashMap<SessionNumber, FoundSession>,
    retained: HashMap<Box<[u8]>, MessageNumber>,
    /// The highest numbers that were found.
    session_max: SessionNumber,
    message_max: MessageNumber,
    unreadable: u64,
    /// If the process stopped in order, how many messages of each session it may have sent.
    stopped: Option<HashMap<SessionNumber, u64>>,
}

struct FoundSession {
    client_id: Box<str>,
    lasting: Lasting,
    subscriptions: HashMap<Box<str>, Options>,
    queue: VecDeque<(MessageNumber, Manner)>,
    /// The packet identifiers of messages of QoS 2 that were sent.
    sent: HashMap<MessageNumber, u16>,
    released: VecDeque<u16>,
    incoming: HashMap<u16, Unreleased>,
    /// The position in the log of events of the last message that was released, by packet identifier.
    done: Done,
    last_packet_id: u16,
}

impl FoundSession {
    fn acknowledged(&mut self, message: MessageNumber) {
        if let Some(index) = self.queue.iter().position(|(number, _)| *number == message) {
            self.queue.remove(index);
        }
        self.sent.remove(&message);
    }
}

/// A subscription without its filter.
struct Options {
    qos: Qos,
    no_local: bool,
    retain_as_published: bool,
    identifier: Option<u32>,
    wants_retained: bool,
}

impl Options {
    fn of(subscribed: &Subscribed<'_>) -> (Box<str>, Self) {
        let Subscribed { filter, qos, no_local, retain_as_published, identifier, wants_retained } = *subscribed;
        (filter.into(), Self { qos, no_local, retain_as_published, identifier, wants_retained })
    }
}

impl Found {
    fn apply(&mut self, record: Record<'_>) {
        self.stopped = None;
        match record {
            Record::Stopped { sent } => self.stopped = Some(sent.into_iter().collect()),
            Record::Session { session, client_id, lasting, subscriptions, queue, under_way } => {
                self.session_max = self.session_max.max(session);
                let UnderWay { sent, released, incoming, last_packet_id } = under_way;
                let found = FoundSession {
                    client_id: client_id.into(),
                    lasting,
                    subscriptions: subscriptions.iter().map(Options::of).collect(),
                    queue: queue.into(),
                    sent: sent.into_iter().collect(),
                    released: released.into(),
                    incoming: incoming.into_iter().map(|unreleased| (unreleased.packet_id, unreleased)).collect(),
                    done: HashMap::new(),
                    last_packet_id,
                };
                self.sessions.insert(session, found);
            }
            Record::Lasting { session, lasting } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.lasting = lasting;
                }
            }
            Record::Ended { session } => {
                self.session_max = self.session_max.max(session);
                self.sessions.remove(&session);
            }
            Record::Subscribed { session, subscribed } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.subscriptions.extend([Options::of(&subscribed)]);
                }
            }
            Record::Unsubscribed { session, filter } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.subscriptions.remove(filter);
                }
            }
            Record::Message { body, waits_for, taken } => {
                taken.into_iter().for_each(|taken| self.take(taken));
                self.message_max = self.message_max.max(body.number);
                if body.is_retained {
                    self.retained.insert(body.topic.into(), body.number);
                }
                for (session, manner) in waits_for {
                    // A change of a session before its full record is included in that record.
                    if let Some(session) = self.sessions.get_mut(&session) {
                        session.queue.push_back((body.number, manner));
                    }
                }
            }
            Record::Waits { session, message, manner } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.queue.push_back((message, manner));
                }
            }
            Record::Acknowledged { messages } => {
                for (session, message) in messages {
                    if let Some(session) = self.sessions.get_mut(&session) {
                        session.acknowledged(message);
                    }
                }
            }
            Record::Taken { taken } => self.take(taken),
            Record::Released { session, packet_id } => {
                if let Some(session) = self.sessions.get_mut(&session)
                    && let Some(unreleased) = session.incoming.remove(&packet_id)
                    && unreleased.position != LOST
                {
                    session.done.insert(packet_id, unreleased.position);
                }
            }
            Record::Sent { session, messages } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.last_packet_id = messages.last().map_or(session.last_packet_id, |(_, last)| *last);
                    session.sent.extend(messages);
                }
            }
            Record::Received { session, message, packet_id } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.acknowledged(message);
                    session.released.push_back(packet_id);
                }
            }
            Record::Completed { session, packet_id } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.released.retain(|released| *released != packet_id);
                }
            }
            Record::Forgotten { topic } => {
                self.retained.remove(topic);
            }
        }
    }

    fn take(&mut self, (session, unreleased): Taken) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.incoming.insert(unreleased.packet_id, unreleased);
        }
    }

    /// Takes out older sessions of clients that have a newer one: there may have been no room to record their end. No
    /// client gets the messages that wait for them, and the journal may have them no more.
    fn take_older(&mut self) -> Vec<SessionNumber> {
        let mut newest: HashMap<Box<str>, SessionNumber> = HashMap::new();
        for (&number, session) in &self.sessions {
            let newest = newest.entry(session.client_id.clone()).or_default();
            *newest = number.max(*newest);
        }
        let is_older = |number: &SessionNumber, session: &mut FoundSession| newest[&session.client_id] != *number;
        self.sessions.extract_if(is_older).map(|(number, _)| number).collect()
    }
}

/// The contents of a journal, read without a broker: how much it holds, and how much of it cannot be used.
///
/// Give all records in order to [`JournalContents::take`], then call [`JournalContents::finish`].
#[derive(Default)]
pub struct JournalContents {
    found: Found,
    bodies: HashSet<MessageNumber>,
}

/// The result of [`JournalContents`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalSummary {
    /// Sessions that have not ended and whose time is not over; of each client only the newest.
    pub sessions: u64,
    /// Messages that wait for sessions, each counted for each of its sessions.
    pub waiting: u64,
    /// Retained messages.
    pub retained: u64,
    /// Messages that wait or are retained, but have no record.
    pub missing: u64,
    /// Records that this version cannot read.
    pub unreadable: u64,
}

impl JournalContents {
    /// Takes the next record.
    pub fn take(&mut self, record: &[u8]) {
        match Record::decode(record) {
            Some(record) => {
                if let Record::Message { body, .. } = &record {
                    self.bodies.insert(body.number);
                }
                self.found.apply(record);
            }
            None => self.found.unreadable += 1,
        }
    }

    /// The summary of all records, for a broker that starts at this moment. The broker's limit on how long it keeps
    /// sessions is not known here.
    pub fn finish(self, now_us: i64) -> JournalSummary {
        let Self { mut found, bodies } = self;
        found.take_older();
        found.sessions.retain(|_, session| !session.lasting.left(u32::MAX, now_us).is_zero());
        let queued = found.sessions.values().flat_map(|session| session.queue.iter().map(|(number, _)| *number));
        let waiting = queued.clone().count() as u64;
        let is_missing = |number: &MessageNumber| !bodies.contains(number);
        let missing = queued.chain(found.retained.values().copied()).filter(is_missing).count() as u64;
        JournalSummary {
            sessions: found.sessions.len() as u64,
            waiting,
            retained: found.retained.len() as u64,
            missing,
            unreadable: found.unreadable,
        }
    }
}

impl Core {
    /// Takes over the state that an earlier process left in the journal, and writes to the journal from here on. The
    /// log of events has the positions before `log_end`.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(in super::super) fn restore(
        &mut self,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
        log_end: LogPosition,
    ) -> Result<(), String> {
        let mut found = Found::default();
        journal.read(&mut |_, bytes| match Record::decode(bytes) {
            Some(record) => found.apply(record),
            None => found.unreadable += 1,
        })?;
        let ended = found.take_older();
        let mut saving = Saving::new(journal.clone(), clock);
        let mut messages: HashMap<MessageNumber, Option<Arc<Message>>> = HashMap::new();
        let queued = found.sessions.values().flat_map(|session| session.queue.iter().map(|(number, _)| *number));
        messages.extend(queued.chain(found.retained.values().copied()).map(|number| (number, None)));
        journal.read(&mut |position, bytes| {
            if let Some(Record::Message { body, .. }) = Record::decode(bytes)
                && let Some(message) = messages.get_mut(&body.number)
            {
                match message {
                    Some(message) => message.saved_at.store(position, Ordering::Relaxed),
                    None => *message = Some(self.restored(&saving, &body, position)),
                }
            }
        })?;
        saving.next_session = found.session_max + 1;
        saving.next_message = found.message_max + 1;
        if found.stopped.is_some() {
            // From here on messages may be sent, whatever else is recorded of that.
            saving.append(true, |out| encode_acknowledged(&[], out));
        }
        self.saving = Some(saving);
        let mut lost = found.unreadable;
        for number in found.retained.values() {
            match messages.get(number) {
                Some(Some(message)) => {
                    let tenant = self.tenants.of_topic(&message.topic);
                    self.retained.insert(message.clone(), tenant);
                }
                _ => lost += 1,
            }
        }
        ended.into_iter().for_each(|number| saving::save_end(&mut self.saving, number));
        let mut sessions: Vec<_> = found.sessions.into_iter().collect();
        // A session that had a connection when the process ended counts as without connection from now on.
        let now_us = i64::MAX;
        sessions.sort_by_key(|(number, session)| match session.lasting.away_since_us {
            0 => (now_us, *number),
            at => (at, *number),
        });
        for (number, session) in sessions {
            let sent = found.stopped.as_ref().map_or(u64::MAX, |stopped| stopped.get(&number).copied().unwrap_or(0));
            lost += self.restore_session(number, session, sent, &messages, log_end);
        }
        let (sessions, retained) = (self.sessions.len(), self.retained.len());
        if sessions + retained > 0 {
            let waiting = self.stats(SeatCounts::default()).waiting_messages;
            tracing::info!(
                sessions,
                waiting,
                retained,
                "the embedded broker has its sessions and retained messages back"
            );
        }
        if lost > 0 {
            tracing::error!(messages = lost, "messages of the embedded broker were lost: its journal is damaged");
        }
        Ok(())
    }

    /// Whether a client had released the message of QoS 2 at a position in the log of events: then it does not send it
    /// again. Known until the broker is open.
    pub(in super::super) fn is_done(&self, client: &[u8], packet_id: u16, position: LogPosition) -> bool {
        let client = std::str::from_utf8(client).ok().filter(|_| !self.done.is_empty());
        let done = client.and_then(|client| self.done.get(client)).and_then(|done| done.get(&packet_id));
        done.is_some_and(|&done| done >= position)
    }

    /// Gives the messages of a restored session their groups.
    fn name_groups(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key).filter(|session| session.has_shared()) else { return };
        let groups = self.groups_of(session, |_| true);
        if let Some(session) = self.sessions.get_mut(key) {
            session.name_groups(|topic| {
                let mut found = Vec::new();
                groups.for_each(topic, |&group| found.push(group));
                found.sort_unstable();
                found
            });
        }
    }

    fn restored(&self, saving: &Saving, body: &Body<'_>, position: LogPosition) -> Arc<Message> {
        let Body { number, qos, retain, expires_at_us, topic, payload, properties, .. } = *body;
        let expires_at = (expires_at_us != 0).then(|| Instant::now() + saving.left(expires_at_us));
        let publish = Publish { topic, payload, properties, qos, retain, ..Publish::default() };
        let message = Message::of(&publish, expires_at).counted_in(&self.memory);
        message.number.store(number, Ordering::Relaxed);
        message.saved_at.store(position, Ordering::Relaxed);
        Arc::new(message)
    }

    /// Restores a session, unless its time is over. The first `sent_first` of its messages may have been sent. Returns
    /// the number of its messages that were not found.
    fn restore_session(
        &mut self,
        number: SessionNumber,
        found: FoundSession,
        sent_first: u64,
        messages: &HashMap<MessageNumber, Option<Arc<Message>>>,
        log_end: LogPosition,
    ) -> u64 {
        let FoundSession { client_id, lasting, subscriptions, queue, .. } = found;
        let FoundSession { sent, released, incoming, done, last_packet_id, .. } = found;
        let expiry_s = lasting.expiry_s.min(self.bounds.session_expiry_s_max);
        let Some(saving) = &self.saving else { return 0 };
        let left = lasting.left(expiry_s, saving.now_us());
        if left.is_zero() {
            saving::save_end(&mut self.saving, number);
            return 0;
        }
        let tenant = self.tenants.of_client(&client_id);
        let address = self.addresses.enter(lasting.address, tenant.as_ref(), &self.memory);
        let share = self.addresses.get_mut(address).share.clone();
        let mut session = Session::new(&client_id, address, share);
        (session.saved_as, session.expiry_s, session.ends_at) = (number, expiry_s, Some(Instant::now() + left));
        let mut lost = 0;
        for (place, (number, manner)) in (0..).zip(queue) {
            match messages.get(&number) {
                Some(Some(message)) => {
                    let packet_id = sent.get(&number).copied().unwrap_or(0);
                    session.restore(message.clone(), manner, packet_id, packet_id > 0 || place < sent_first);
                }
                _ => lost += 1,
            }
        }
        // The log will use the positions again that it lost, and these messages are not there then.
        if let Some(saving) = &mut self.saving {
            let restored = incoming.values().map(|before| (before, before.restored(log_end)));
            for (_, after) in restored.filter(|(before, after)| before.position >= log_end && *before != after) {
                let taken = (number, after);
                saving.append(true, |out| Record::Taken { taken }.encode(out));
            }
        }
        session.restore_under_way(released, incoming.into_values(), last_packet_id, log_end);
        let key = self.sessions.insert(session);
        if !done.is_empty() {
            self.done.insert(client_id.clone(), done);
        }
        self.by_client_id.insert(client_id, key);
        let waits_as = self.addresses.wait(address, key);
        let Some(session) = self.sessions.get_mut(key) else { return lost };
        session.waits_as = Some(waits_as);
        for (filter, options) in subscriptions {
            let Options { qos, no_local, retain_as_published, identifier, wants_retained } = options;
            let subscription =
                Subscription { session: key, qos, no_local, retain_as_published, identifier, group: None };
            let added =
                Wanted::parse(&filter).and_then(|wanted| self.add_subscription(key, wanted, &filter, subscription));
            if let Some((number, session)) = added.zip(self.sessions.get_mut(key))
                && wants_retained
            {
                session.begin_walk(number, &filter, qos, identifier);
            }
        }
        self.name_groups(key);
        if lasting.away_since_us == 0 {
            // Its time runs from here on, however often the process starts.
            self.save_session(key);
        }
        lost
    }
}
