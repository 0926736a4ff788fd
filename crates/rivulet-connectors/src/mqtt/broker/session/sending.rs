//! The messages of QoS 1 and 2 on their way to the client of a session: first in a queue, then in flight until the
//! client has acknowledged them.
//!
//! A message of QoS 2 is in flight until its PUBREC; from then on only its packet identifier is kept, until the
//! PUBCOMP. What must hold: a message that was sent keeps its packet identifier until it is acknowledged, across
//! connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use rivulet_dataflow::LogPosition;

use super::super::super::codec::{self, Qos};
use super::super::incoming::{UNRELEASED_BYTES, Unreleased};
use super::super::journal::{MessageNumber, UnderWay};
use super::super::link::Offered;
use super::super::message::{Delivery, Manner, Message, OfGroup};
use super::super::stats::Counters;
use super::queued::{Queued, Received};
use super::{QueueBounds, Session};

impl Session {
    /// Delivers a message that is just being published. `None` if it does not wait for the client's acknowledgement;
    /// otherwise the packet identifier with which it was sent, 0 if it was not sent yet.
    #[inline]
    pub(in super::super) fn deliver(
        &mut self,
        delivery: &mut Delivery<'_>,
        manner: Manner,
        bounds: QueueBounds,
        counters: &mut Counters,
    ) -> Option<u16> {
        if manner.qos == Qos::AtMostOnce {
            let link = self.link.as_mut()?;
            match link.deliver(delivery, manner, 0) {
                Offered::Taken => counters.messages_out += 1,
                Offered::TooLarge => counters.drops.too_large += 1,
                Offered::Full if self.share.is_full() => counters.drops.memory_full += 1,
                Offered::Full => counters.drops.slow_subscriber += 1,
            }
            return None;
        }
        if self.queue.is_empty() && self.has_window() && !self.is_out_of_memory(delivery.memory_bytes()) {
            let packet_id = self.next_packet_id();
            if let Some(link) = self.link.as_mut()
                && link.deliver(delivery, manner, packet_id) == Offered::Taken
            {
                counters.messages_out += 1;
                self.last_packet_id = packet_id;
                let message = delivery.keep();
                self.hold(&message);
                self.note_sent(&message, manner, packet_id);
                self.in_flight.push_back(Queued { message, manner, packet_id, is_again: false });
                return Some(packet_id);
            }
        }
        let is_taken = self.has_room(delivery.memory_bytes(), bounds, counters);
        is_taken.then(|| {
            self.wait(delivery.keep(), manner);
            self.pump(counters);
            0
        })
    }

    /// Adds a message of QoS 1 or 2 that has waited for another session. Returns whether there is room for it.
    pub(in super::super) fn add(
        &mut self,
        message: Arc<Message>,
        manner: Manner,
        bounds: QueueBounds,
        counters: &mut Counters,
    ) -> bool {
        let is_taken = self.has_room(message.memory_bytes(), bounds, counters);
        if is_taken {
            self.wait(message, manner);
            self.pump(counters);
        }
        is_taken
    }

    /// Gives restored messages of shared subscriptions their groups, which the journal does not have. Of several copies
    /// of a message each is for another group.
    pub(in super::super) fn name_groups(&mut self, groups_of: impl Fn(&[u8]) -> Vec<u32>) {
        let mut copies: HashMap<*const Message, usize> = HashMap::new();
        for Queued { message, manner, .. } in self.queue.iter_mut().filter(|queued| queued.manner.is_shared) {
            let copy = copies.entry(Arc::as_ptr(message)).or_default();
            manner.group = OfGroup(groups_of(&message.topic).get(*copy).copied());
            *copy += 1;
        }
    }

    /// Offers the messages of shared subscriptions that another session may get, in their order, by their topic and
    /// group. They count for this session no longer; [`Session::take_off`] must be called next.
    pub(in super::super) fn offer_shared(
        &mut self,
        goes: impl Fn(&[u8], OfGroup) -> bool,
    ) -> Vec<(Arc<Message>, Manner)> {
        let waiting = self.in_flight.iter().chain(&self.queue);
        let offered = waiting.filter(|queued| queued.may_go() && goes(&queued.message.topic, queued.manner.group));
        let offered: Vec<_> = offered.map(|queued| (queued.message.clone(), queued.manner)).collect();
        for (message, _) in &offered {
            self.release(message);
        }
        offered
    }

    /// Takes off the messages that another session has got, of those that were offered with the same `goes`. The others
    /// keep their places.
    pub(in super::super) fn take_off(&mut self, goes: impl Fn(&[u8], OfGroup) -> bool, are_taken: &[bool]) {
        let mut are_taken = are_taken.iter();
        let mut kept = Vec::new();
        let mut stays = |queued: &Queued| {
            let was_offered = queued.may_go() && goes(&queued.message.topic, queued.manner.group);
            let is_taken = was_offered && are_taken.next().is_some_and(|is_taken| *is_taken);
            if was_offered && !is_taken {
                kept.push(queued.message.clone());
            }
            !is_taken
        };
        self.in_flight.retain(&mut stays);
        self.queue.retain(&mut stays);
        self.count_queue();
        for message in &kept {
            self.hold(message);
        }
    }

    /// Drops the messages that wait for the client, in flight too, and do not stay. `stays` is given the topic, and
    /// whether the message may have been sent. Returns them. The packet identifiers of those that were sent are free.
    pub(in super::super) fn drop_refused(&mut self, mut stays: impl FnMut(&[u8], bool) -> bool) -> Vec<Arc<Message>> {
        let mut dropped = Vec::new();
        let mut is_kept = |queued: &Queued| {
            let is_kept = stays(&queued.message.topic, queued.packet_id > 0 || queued.is_again);
            if !is_kept {
                dropped.push(queued.message.clone());
            }
            is_kept
        };
        self.in_flight.retain(&mut is_kept);
        self.queue.retain(&mut is_kept);
        if !dropped.is_empty() {
            self.count_queue();
        }
        for message in &dropped {
            self.release(message);
        }
        dropped
    }

    /// Counts the queue anew, after messages were taken out of it.
    fn count_queue(&mut self) {
        self.queue_bytes = self.queue.iter().map(|queued| queued.message.memory_bytes()).sum();
        self.resent = self.queue.iter().filter(|queued| queued.packet_id > 0).count();
    }

    /// Adds a message to the end of the queue.
    pub(super) fn wait(&mut self, message: Arc<Message>, manner: Manner) {
        self.push_queue(Queued { message, manner, packet_id: 0, is_again: false });
    }

    /// Adds a message that waited for the client in an earlier process. `is_again` says whether that may have sent it.
    /// `packet_id` is 0 if it is not known.
    pub(in super::super) fn restore(&mut self, message: Arc<Message>, manner: Manner, packet_id: u16, is_again: bool) {
        self.resent += usize::from(packet_id > 0);
        self.push_queue(Queued { message, manner, packet_id, is_again });
    }

    /// How many of the messages that are saved may have been sent: the first ones that wait.
    pub(in super::super) fn sent_first(&self) -> u64 {
        let saved = self.in_flight.iter().chain(&self.queue).filter(|queued| queued.message.number() > 0);
        let is_sent = |queued: &Queued| queued.packet_id > 0 || queued.is_again;
        (1..).zip(saved).filter(|(_, queued)| is_sent(queued)).last().map_or(0, |(number, _)| number)
    }

    /// Notes a message of QoS 2 that was sent, if the journal has to know.
    fn note_sent(&mut self, message: &Arc<Message>, manner: Manner, packet_id: u16) {
        if manner.qos == Qos::ExactlyOnce && self.saved_as > 0 {
            self.sent.push((message.clone(), packet_id));
        }
    }

    /// The messages of QoS 2 that were sent since the last time, by their numbers in the journal, each with its packet
    /// identifier.
    pub(in super::super) fn take_sent(&mut self) -> Vec<(MessageNumber, u16)> {
        let sent = self.sent.drain(..).map(|(message, packet_id)| (message.number(), packet_id));
        sent.filter(|(number, _)| *number > 0).collect()
    }

    /// What is under way with QoS 2.
    pub(in super::super) fn under_way(&self) -> UnderWay {
        let messages = self.in_flight.iter().chain(&self.queue);
        let sent = messages.filter(|queued| queued.packet_id > 0 && queued.manner.qos == Qos::ExactlyOnce);
        UnderWay {
            sent: sent.map(|queued| (queued.message.number(), queued.packet_id)).collect(),
            released: self.released.iter().copied().collect(),
            incoming: self.incoming.iter().copied().collect(),
            last_packet_id: self.last_packet_id,
        }
    }

    /// Takes over what was under way with an earlier process, beside messages.
    pub(in super::super) fn restore_under_way(
        &mut self,
        released: impl IntoIterator<Item = u16>,
        incoming: impl IntoIterator<Item = Unreleased>,
        last_packet_id: u16,
        log_end: LogPosition,
    ) {
        self.released.extend(released);
        for unreleased in incoming {
            self.incoming.restore(unreleased, log_end);
            self.add_bytes(UNRELEASED_BYTES);
        }
        // The process may have used some more identifiers, and the client may have messages under them.
        self.last_packet_id = if last_packet_id > 0 { last_packet_id.wrapping_add(u16::MAX / 2) } else { 0 };
    }

    /// All messages that wait for the client, in order.
    pub(in super::super) fn messages(&self) -> impl Iterator<Item = (&Arc<Message>, Manner)> {
        self.in_flight.iter().chain(&self.queue).map(|queued| (&queued.message, queued.manner))
    }

    /// The number of messages that wait for the client, sent or not.
    pub(in super::super) fn waiting(&self) -> usize {
        self.queue.len() + self.in_flight.len() + self.released.len()
    }

    /// Whether one more message may be in flight.
    pub(super) fn has_window(&self) -> bool {
        self.link.as_ref().is_some_and(|link| self.in_flight.len() + self.released.len() < link.terms.window)
    }

    /// The next packet identifier that is not in use; there are far more identifiers than messages in flight.
    fn next_packet_id(&self) -> u16 {
        let of_queue = || self.queue.iter().filter(|queued| queued.packet_id > 0).take(self.resent);
        let is_used = |id| {
            self.in_flight.iter().chain(of_queue()).any(|queued| queued.packet_id == id) || self.released.contains(&id)
        };
        let mut id = self.last_packet_id;
        loop {
            id = id.checked_add(1).unwrap_or(1);
            if !is_used(id) {
                return id;
            }
        }
    }

    /// Whether a message of this size may wait.
    pub(in super::super) fn may_wait(&self, bytes: usize, bounds: QueueBounds) -> bool {
        !self.is_queue_full(bytes, bounds) && !self.is_out_of_memory(bytes)
    }

    fn is_queue_full(&self, bytes: usize, bounds: QueueBounds) -> bool {
        // A single message always has room, however large.
        let is_full = self.queue.len() >= bounds.messages_max || self.queue_bytes + bytes > bounds.bytes_max;
        is_full && !self.queue.is_empty()
    }

    /// Whether a message of this size may wait. One that may not is dropped and counted.
    fn has_room(&self, bytes: usize, bounds: QueueBounds, counters: &mut Counters) -> bool {
        if self.is_queue_full(bytes, bounds) {
            counters.drops.session_queue_full += 1;
            return false;
        }
        if self.is_out_of_memory(bytes) {
            counters.drops.memory_full += 1;
            return false;
        }
        true
    }

    fn push_queue(&mut self, queued: Queued) {
        self.queue_bytes += queued.message.memory_bytes();
        self.hold(&queued.message);
        self.queue.push_back(queued);
    }

    /// Sends queued messages as far as the window and the connection allow.
    pub(in super::super) fn pump(&mut self, counters: &mut Counters) {
        let now = Instant::now();
        while self.has_window()
            && let Some(queued) = self.queue.front()
        {
            let packet_id = if queued.packet_id > 0 { queued.packet_id } else { self.next_packet_id() };
            let Some((link, queued)) = self.link.as_mut().zip(self.queue.front()) else { return };
            let Queued { message, manner, is_again, .. } = queued;
            let is_sent = match message.is_expired(now) {
                true => {
                    counters.drops.expired += 1;
                    false
                }
                false => match link.offer(message, *manner, (packet_id, *is_again)) {
                    Offered::Taken => true,
                    Offered::Full => return link.outbox.set_starved(),
                    Offered::TooLarge => {
                        counters.drops.too_large += 1;
                        false
                    }
                },
            };
            let Some(queued) = self.queue.pop_front() else { return };
            self.queue_bytes -= queued.message.memory_bytes();
            self.resent -= usize::from(queued.packet_id > 0);
            if is_sent {
                counters.messages_out += 1;
                if queued.packet_id == 0 {
                    self.last_packet_id = packet_id;
                }
                self.note_sent(&queued.message, queued.manner, packet_id);
                self.in_flight.push_back(Queued { packet_id, ..queued });
            } else {
                self.release(&queued.message);
            }
        }
    }

    /// Removes a message of this quality of service from those in flight.
    fn take_in_flight(&mut self, packet_id: u16, qos: Qos) -> Option<Queued> {
        let is_it = |queued: &Queued| queued.packet_id == packet_id && queued.manner.qos == qos;
        let queued = self.in_flight.remove(self.in_flight.iter().position(is_it)?)?;
        self.release(&queued.message);
        Some(queued)
    }

    /// Sends more after the client has answered.
    fn go_on(&mut self, counters: &mut Counters) {
        if !self.queue.is_empty() {
            self.pump(counters);
        }
        if let Some(link) = &self.link
            && self.queue.is_empty()
            && !self.walks.is_empty()
        {
            link.outbox.ask_for_more();
        }
    }

    /// Handles a PUBACK; one for a message that was not sent is ignored. Returns the message's number in the journal, 0
    /// if it is not there.
    pub(in super::super) fn acknowledge(&mut self, packet_id: u16, counters: &mut Counters) -> u64 {
        let Some(queued) = self.take_in_flight(packet_id, Qos::AtLeastOnce) else { return 0 };
        self.go_on(counters);
        queued.message.number()
    }

    /// Handles a PUBREC.
    pub(in super::super) fn received(&mut self, packet_id: u16, is_refused: bool, counters: &mut Counters) -> Received {
        let Some(queued) = self.take_in_flight(packet_id, Qos::ExactlyOnce) else {
            return match self.released.contains(&packet_id) {
                true => Received::Taken(0),
                false => Received::Unknown,
            };
        };
        let number = queued.message.number();
        if is_refused {
            self.go_on(counters);
            return Received::Refused(number);
        }
        self.released.push_back(packet_id);
        Received::Taken(number)
    }

    /// Handles a PUBCOMP. Returns whether it was expected.
    pub(in super::super) fn completed(&mut self, packet_id: u16, counters: &mut Counters) -> bool {
        let Some(place) = self.released.iter().position(|&released| released == packet_id) else { return false };
        self.released.remove(place);
        self.go_on(counters);
        true
    }

    /// The packet identifiers of messages of QoS 2 that the client has received and not completed.
    pub(in super::super) fn released(&self) -> &VecDeque<u16> {
        &self.released
    }

    /// Sends the PUBREL of each of them to a client that is back.
    pub(in super::super) fn release_again(&self) {
        let Some(link) = &self.link else { return };
        for &packet_id in &self.released {
            link.outbox.answer(|out| codec::encode_pubrel(packet_id, true, out));
        }
    }

    /// Resumes sending messages when the client is back: first those that it has not answered, then those that have
    /// come meanwhile.
    pub(in super::super) fn resume(&mut self, counters: &mut Counters) {
        let Some(link) = &mut self.link else { return };
        // If the window is smaller than last time, the messages beyond it go back to the queue.
        while self.in_flight.len() + self.released.len() > link.terms.window
            && let Some(queued) = self.in_flight.pop_back()
        {
            self.queue_bytes += queued.message.memory_bytes();
            self.resent += 1;
            self.queue.push_front(Queued { is_again: true, ..queued });
        }
        let mut too_large = Vec::new();
        self.in_flight.retain(|Queued { message, manner, packet_id, .. }| {
            let is_sent = link.send_again(message, *manner, *packet_id);
            if !is_sent {
                too_large.push(message.clone());
            }
            is_sent
        });
        for message in too_large {
            counters.drops.too_large += 1;
            self.release(&message);
        }
        self.pump(counters);
        if let Some(link) = &self.link
            && !self.walks.is_empty()
        {
            link.outbox.ask_for_more();
        }
    }
}
