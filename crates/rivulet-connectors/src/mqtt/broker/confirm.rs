//! Answers to a client that wait until the journal has on disk what they promise.
//!
//! A PUBACK waits if a session that outlives its connection, or the retained messages, hold the message; a SUBACK waits
//! if such a session subscribes. PUBACKs keep their order, so they are known by their count: each that must wait is
//! stored with its number and its position. Without a journal nothing waits.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_dataflow::LogPosition;
use tokio::sync::Notify;

use super::journal::Journal;
use super::outbox::Outbox;

/// The most bytes of answers that may wait; beyond this the client is not read any more.
const HELD_BYTES_MAX: usize = 256 << 10;

/// The answers to one client on their way to its outbox.
pub(super) struct Answers {
    outbox: Arc<Outbox>,
    journal: Option<Arc<dyn Journal>>,
    /// What waits, and the counts; `None` before the first that is counted: most clients only listen.
    state: Mutex<Option<Box<State>>>,
    /// Notified when something begins to wait.
    filled: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The number of PUBACKs expected since the connection began, and of those sent.
    expected: u64,
    passed: u64,
    /// PUBACKs that must wait: the number of each and the position that it waits for.
    marks: VecDeque<(u64, LogPosition)>,
    /// PUBACKs that were handed over and not sent yet.
    held: Vec<u8>,
    /// Other answers, each with the position that it waits for.
    answers: VecDeque<(LogPosition, Vec<u8>)>,
    answer_bytes: usize,
}

impl Answers {
    pub(super) fn new(outbox: Arc<Outbox>, journal: Option<Arc<dyn Journal>>) -> Self {
        Self { outbox, journal, state: Mutex::default(), filled: Notify::new() }
    }

    /// Expects the next PUBACK, which must wait until the journal is durable up to `saved_at`; 0 if it need not wait.
    pub(super) fn expect(&self, saved_at: LogPosition) {
        if self.journal.is_some() {
            let mut state = self.state.lock();
            let state = state.get_or_insert_default();
            state.expected += 1;
            if saved_at > 0 {
                let number = state.expected;
                state.marks.push_back((number, saved_at));
            }
        }
    }

    /// Sends PUBACKs, which come in their order, and empties `acknowledgements`.
    pub(super) fn acknowledge(&self, acknowledgements: &mut Vec<u8>) {
        if acknowledgements.is_empty() {
            return;
        }
        let Some(journal) = &self.journal else { return self.outbox.answer(|out| out.append(acknowledgements)) };
        let mut state = self.state.lock();
        let state = state.get_or_insert_default();
        state.held.append(acknowledgements);
        if state.release(journal.durable(), &self.outbox) {
            self.filled.notify_one();
        }
    }

    /// Sends another answer when the journal is durable up to `saved_at`.
    pub(super) fn answer(&self, saved_at: LogPosition, write: impl FnOnce(&mut Vec<u8>)) {
        match &self.journal {
            Some(journal) if saved_at > journal.durable() => {
                let mut answer = Vec::new();
                write(&mut answer);
                let mut state = self.state.lock();
                let state = state.get_or_insert_default();
                state.answer_bytes += answer.len();
                state.answers.push_back((saved_at, answer));
                self.filled.notify_one();
            }
            _ => self.outbox.answer(write),
        }
    }

    /// Whether so many answers wait that the client should not be read any more.
    pub(super) fn is_full(&self) -> bool {
        let waits = |state: &State| state.held.len() + state.answer_bytes;
        self.journal.is_some() && self.state.lock().as_deref().map_or(0, waits) > HELD_BYTES_MAX
    }

    /// Sends waiting answers as the journal becomes durable, for as long as it is polled.
    pub(super) async fn serve(&self) {
        let Some(journal) = &self.journal else { return std::future::pending().await };
        loop {
            {
                let mut committed = std::pin::pin!(journal.committed().notified());
                // Enabled before looking, so that no commit from here on is missed.
                committed.as_mut().enable();
                let release = |state: &mut Box<State>| state.release(journal.durable(), &self.outbox);
                let is_waiting = self.state.lock().as_mut().is_some_and(release);
                if is_waiting {
                    committed.await;
                    continue;
                }
            }
            self.filled.notified().await;
        }
    }
}

impl State {
    /// Sends the answers that need not wait any more. Returns whether any still waits.
    fn release(&mut self, durable: LogPosition, outbox: &Outbox) -> bool {
        let mut end = 0;
        while let Some(&length) = self.held.get(end + 1) {
            let number = self.passed + 1;
            if let Some(&(_, saved_at)) = self.marks.front().filter(|(marked, _)| *marked == number) {
                if saved_at > durable {
                    break;
                }
                self.marks.pop_front();
            }
            self.passed = number;
            // A PUBACK has a reason code at most, so its length is one byte.
            end += 2 + usize::from(length);
        }
        if end > 0 {
            outbox.answer(|out| out.extend(self.held.drain(..end)));
        }
        while let Some((_, answer)) = self.answers.pop_front_if(|(saved_at, _)| *saved_at <= durable) {
            self.answer_bytes -= answer.len();
            outbox.answer(|out| out.extend_from_slice(&answer));
        }
        !self.held.is_empty() || !self.answers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::codec::encode_puback;
    use super::super::journal::tests::MemoryJournal;
    use super::super::memory::Memory;
    use super::*;

    fn sent(outbox: &Outbox) -> Vec<u8> {
        let mut bytes = Vec::new();
        outbox.take(&mut bytes);
        bytes
    }

    #[test]
    fn acknowledgements_wait_for_the_journal_in_their_order() {
        let outbox = Arc::new(Outbox::new(1000, Memory::new(1 << 20, 100, 100).share(None)));
        let journal = Arc::new(MemoryJournal::default());
        let answers = Answers::new(outbox.clone(), Some(journal.clone()));
        let puback = |packet_id, reason| {
            let mut bytes = Vec::new();
            encode_puback(packet_id, reason, &mut bytes);
            bytes
        };
        for saved_at in [0, 5, 0, 7] {
            answers.expect(saved_at);
        }
        // The second comes later than expected, as when it waits for the log of events.
        answers.acknowledge(&mut puback(1, 0));
        assert_eq!(sent(&outbox), puback(1, 0));
        journal.set_durable(6);
        answers.acknowledge(&mut [puback(2, 0x10), puback(3, 0), puback(4, 0)].concat());
        assert_eq!(sent(&outbox), [puback(2, 0x10), puback(3, 0)].concat());
        answers.answer(8, |out| out.extend_from_slice(b"later"));
        answers.answer(6, |out| out.extend_from_slice(b"now"));
        assert_eq!(sent(&outbox), b"now");
        journal.set_durable(8);
        answers.expect(0);
        answers.acknowledge(&mut puback(5, 0));
        assert_eq!(sent(&outbox), [&puback(4, 0)[..], &puback(5, 0), b"later"].concat());
        assert!(!answers.is_full());
    }
}
