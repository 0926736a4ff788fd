//! Transactions: everything that all instances of a sink write between two checkpoints becomes visible together, or not
//! at all.
//!
//! First a checkpoint becomes durable, then the transaction that belongs to it is committed. A crash between the two
//! leaves a checkpoint whose rows were aborted. So each transaction commits, with its rows, the number of its
//! checkpoint, as the offset of a consumer group that has no consumers: the *marker*. A restart reads it
//! ([`final_up_to`]) and goes on from the checkpoint that it names, which is the newest one or the one before. Rows and
//! marker are committed together or not at all, because they are one transaction.
//!
//! What must hold: nothing is written while a transaction is committed. Before the marker is read, no producer of an
//! earlier run can commit any more: opening a transactional identifier shuts out the producers that had it. A marker
//! counts only for the line of checkpoints that it was written for.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::consumer::{Consumer, ConsumerGroupMetadata};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};

use super::client::{OPEN_TIMEOUT, Reader, Settings, committed};
use super::producer::{Context, OpenError};
use crate::connector::instances::Instances;
use crate::connector::{FinalUpTo, Health};

/// The time limit of one request of a commit, after which it is checked whether the commit is still wanted; and the
/// pause before the next request.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
const COMMIT_PAUSE: Duration = Duration::from_millis(200);

/// How long the abort of a transaction waits for the broker.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The partition of the topic that the marker is an offset of. Any would do; every topic has this one.
const MARKER_PARTITION: i32 = 0;

/// The longest time that a transaction may stay open, in milliseconds: the default of `transaction.timeout.ms`.
pub(super) const TIMEOUT_MS: &str = "300000";

/// What a checkpoint stores of a sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Prepared {
    /// The identity of the line of checkpoints, unique.
    line: String,
    /// The newest checkpoint whose transaction was committed by then.
    final_up_to: Option<u64>,
}

/// The metadata beside the number of the marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    line: String,
    /// Whether the query has come to the end of its input.
    has_ended: bool,
}

/// The topic of transactions, and their name.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The settings of the producer, including its transactional identifier.
    pub(super) settings: Settings,
    /// The identifier, which is also the name of the marker's group.
    pub(super) id: String,
    pub(super) topic: String,
    pub(super) health: Arc<Health>,
}

/// The producer that all instances of a sink share.
pub(super) struct Transactions {
    producer: ThreadedProducer<Context>,
    group: ConsumerGroupMetadata,
    id: String,
    topic: String,
    line: String,
    is_open: AtomicBool,
    /// Whether a commit is no longer waited for.
    is_given_up: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest checkpoint whose transaction was committed, or is being committed.
    begun: Option<u64>,
    /// The newest checkpoint whose transaction was committed.
    final_up_to: Option<u64>,
    is_committing: bool,
    /// The number of instances that have not come to their end, and whether the commit of the last transaction has
    /// begun.
    to_finish: usize,
    is_ending: bool,
    failed: Option<String>,
}

/// The transactions of open sinks, by their identifier.
static OPEN: Instances<Transactions> = Instances::new();

impl Place {
    /// Makes a producer, which shuts out all others of the same identifier. Their open transaction is aborted, or
    /// committed if its commit had begun.
    fn producer(&self) -> Result<ThreadedProducer<Context>, OpenError> {
        let context = Context::new(&self.health, &self.settings.reach);
        let producer = self.settings.producer(context).map_err(OpenError::Kafka)?;
        // A topic that is created when it is first requested is created now: the marker is an offset of it.
        let deadline = Instant::now() + OPEN_TIMEOUT;
        loop {
            let metadata = producer.client().fetch_metadata(Some(&self.topic), OPEN_TIMEOUT);
            let metadata = metadata.map_err(OpenError::Kafka)?;
            let found = metadata.topics().iter().find(|found| found.name() == self.topic);
            match found.map(|found| (found.error(), found.partitions().is_empty())) {
                Some((None, false)) => break,
                _ if Instant::now() < deadline => thread::sleep(COMMIT_PAUSE),
                Some((Some(error), _)) => {
                    return Err(OpenError::Transaction(RDKafkaErrorCode::from(error).to_string()));
                }
                _ => return Err(OpenError::Transaction("there is no such topic".into())),
            }
        }
        let begun = producer.init_transactions(OPEN_TIMEOUT);
        begun.map_err(|error| OpenError::Transaction(problem(&error)))?;
        Ok(producer)
    }

    /// A consumer of the marker's group.
    fn consumer(&self) -> Result<Reader, OpenError> {
        let mut settings = self.settings.clone();
        for of_producers in PRODUCER_PROPERTIES {
            settings.config.remove(of_producers);
        }
        settings.config.set("group.id", &self.id).set("enable.auto.commit", "false");
        settings.consumer().map_err(OpenError::Kafka)
    }

    /// The marker and its metadata, when no transaction can change it any more.
    fn marker(&self) -> Result<Option<(u64, String)>, OpenError> {
        let mut wanted = TopicPartitionList::new();
        wanted.add_partition(&self.topic, MARKER_PARTITION);
        let found = committed(&self.consumer()?, &wanted, |_| true);
        let found = found.map_err(|error| OpenError::Transaction(error.to_string()))?;
        let Some(place) = found.find_partition(&self.topic, MARKER_PARTITION) else { return Ok(None) };
        let Offset::Offset(offset) = place.offset() else { return Ok(None) };
        Ok(u64::try_from(offset).ok().map(|epoch| (epoch, place.metadata().to_owned())))
    }
}

/// How an operator sets the marker.
const SET_BY: &str = "set the offset of the sink's consumer group, with kafka-consumer-groups --reset-offsets,";

/// Properties that are set for producers and mean nothing to a consumer.
const PRODUCER_PROPERTIES: [&str; 7] = [
    "transactional.id",
    "transaction.timeout.ms",
    "enable.idempotence",
    "partitioner",
    "linger.ms",
    "queue.buffering.max.messages",
    "queue.buffering.max.kbytes",
];

/// Up to which checkpoint results are final, for a query whose newest checkpoint has this.
pub(super) fn final_up_to(place: &Place, prepared: &[String]) -> Result<FinalUpTo, OpenError> {
    let Some(prepared) = parsed(prepared)? else { return Ok(FinalUpTo::Any) };
    // An earlier run that may still work for this query is shut out before its marker is read.
    drop(place.producer()?);
    final_by(place.marker()?, &prepared).map_err(|problem| {
        OpenError::Transaction(format!(
            "{problem}\nhint: set the offset of the consumer group '{}' for partition {MARKER_PARTITION} of the topic, with \
             kafka-consumer-groups --reset-offsets, to the number of the checkpoint up to which results are in the topic; or drop the query and \
             create it again to begin anew",
            place.id
        ))
    })
}

fn final_by(marker: Option<(u64, String)>, prepared: &Prepared) -> Result<FinalUpTo, String> {
    // A marker that was set by hand has no metadata, and counts.
    let marker = marker.and_then(|(epoch, note)| match serde_json::from_str::<Note>(&note) {
        Ok(note) => (note.line == prepared.line).then_some((epoch, note.has_ended)),
        Err(_) => note.is_empty().then_some((epoch, false)),
    });
    match (marker, prepared.final_up_to) {
        (Some((_, true)), _) => Ok(FinalUpTo::Ended),
        (Some((epoch, false)), _) => Ok(FinalUpTo::Epoch { number: epoch, set_by: SET_BY }),
        (None, None) => Ok(FinalUpTo::Nothing),
        (None, Some(final_up_to)) => Err(format!(
            "the broker does not say any more up to which checkpoint results are final; that of checkpoint {final_up_to} were. It forgets that \
             offsets.retention.minutes after a query has stopped"
        )),
    }
}

/// What the instances of a sink have stated for a checkpoint; they all state the same.
fn parsed(prepared: &[String]) -> Result<Option<Prepared>, OpenError> {
    let Some(text) = prepared.iter().find(|text| !text.is_empty()) else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|error| {
        OpenError::Transaction(format!("a checkpoint has a transaction '{text}', which is not understood: {error}"))
    })
}

impl Transactions {
    /// The transactions of a sink with this many instances: opened by the first instance and found by the others.
    pub(super) fn open(
        place: &Place,
        instance: usize,
        instances: usize,
        prepared: &[String],
    ) -> Result<Arc<Self>, OpenError> {
        if instance > 0 {
            return OPEN
                .find(&place.id)
                .ok_or_else(|| OpenError::Transaction("another query has opened the same identifier".into()));
        }
        let prepared = parsed(prepared)?;
        let producer = place.producer()?;
        let group = place.consumer()?.group_metadata();
        let group = group.ok_or_else(|| OpenError::Transaction("the consumer group has no name".into()))?;
        // Earlier checkpoints of the line were made final when the query was told from where to go on.
        let (line, final_up_to) = match prepared {
            Some(Prepared { line, final_up_to }) => (line, final_up_to),
            None => (format!("{:016x}", RandomState::new().build_hasher().finish()), None),
        };
        let opened = Arc::new(Self {
            producer,
            group,
            id: place.id.clone(),
            topic: place.topic.clone(),
            line,
            is_open: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            state: Mutex::new(State { final_up_to, to_finish: instances, ..State::default() }),
        });
        OPEN.put(&place.id, &opened);
        Ok(opened)
    }

    /// The producer.
    pub(super) fn producer(&self) -> &ThreadedProducer<Context> {
        &self.producer
    }

    /// Begins a transaction unless one is open; to be called before a message is written.
    pub(super) fn begin(&self) -> Result<(), KafkaError> {
        if self.is_open.load(Ordering::Acquire) {
            return Ok(());
        }
        // One of the instances does it, and the others wait for that moment.
        let _state = self.state.lock();
        if !self.is_open.load(Ordering::Acquire) {
            self.producer.begin_transaction()?;
            self.is_open.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Notes that a message could not be written, so the transaction cannot be committed.
    pub(super) fn fail(&self, problem: &str) {
        self.state.lock().failed.get_or_insert_with(|| problem.to_owned());
    }

    /// What a checkpoint is to store.
    pub(super) fn prepared(&self) -> String {
        let prepared = Prepared { line: self.line.clone(), final_up_to: self.state.lock().final_up_to };
        serde_json::to_string(&prepared).expect("texts and numbers are always JSON")
    }

    /// Begins to commit the transaction of a checkpoint, unless another instance has done so.
    pub(super) fn commit(self: &Arc<Self>, epoch: u64) {
        let mut state = self.state.lock();
        if state.begun < Some(epoch) && !state.is_ending {
            self.start(&mut state, epoch, false);
        }
    }

    /// Notes that an instance will write nothing more. The last instance begins to commit the rest.
    pub(super) fn finish(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.to_finish = state.to_finish.saturating_sub(1);
        if state.to_finish == 0 && !state.is_ending {
            state.is_ending = true;
            let epoch = state.begun.or(state.final_up_to).unwrap_or(0);
            self.start(&mut state, epoch, true);
        }
    }

    /// Whether no commit is under way. Fails if a commit failed.
    pub(super) fn is_committed(&self) -> Result<bool, String> {
        let state = self.state.lock();
        state.failed.clone().map_or(Ok(!state.is_committing), Err)
    }

    fn start(self: &Arc<Self>, state: &mut State, epoch: u64, has_ended: bool) {
        (state.begun, state.is_committing) = (Some(epoch), true);
        let this = self.clone();
        let commit = move || {
            let outcome = this.commit_until(epoch, has_ended);
            let mut state = this.state.lock();
            state.is_committing = false;
            match outcome {
                Ok(()) => {
                    this.is_open.store(false, Ordering::Release);
                    state.final_up_to = Some(epoch);
                }
                Err(problem) => state.failed = Some(problem),
            }
        };
        if let Err(error) = thread::Builder::new().name("kafka commit".into()).spawn(commit) {
            state.failed = Some(format!("no thread: {error}"));
        }
    }

    /// Commits the transaction, with the marker.
    fn commit_until(&self, epoch: u64, has_ended: bool) -> Result<(), String> {
        let failed =
            |error: &KafkaError| format!("the transaction of checkpoint {epoch} was not committed: {}", problem(error));
        self.begin().map_err(|error| failed(&error))?;
        let note = Note { line: self.line.clone(), has_ended };
        let note = serde_json::to_string(&note).expect("texts are always JSON");
        let mut marker = TopicPartitionList::new();
        let mut place = marker.add_partition(&self.topic, MARKER_PARTITION);
        place.set_metadata(note);
        let offset = Offset::Offset(i64::try_from(epoch).unwrap_or(i64::MAX));
        place.set_offset(offset).map_err(|error| failed(&error))?;
        self.insist(|| self.producer.send_offsets_to_transaction(&marker, &self.group, COMMIT_TIMEOUT))
            .and_then(|()| self.insist(|| self.producer.commit_transaction(COMMIT_TIMEOUT)))
            .map_err(|error| failed(&error))
    }

    /// Repeats a request until the broker answers; it may be away for a while. The transaction's timeout bounds how
    /// long.
    fn insist(&self, ask: impl Fn() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
        let health = self.producer.context().health();
        loop {
            match ask() {
                Err(error) if is_passing(&error) && !self.is_given_up.load(Ordering::Acquire) => {
                    health.retry(&format!("a transaction is not committed yet: {}", problem(&error)));
                    thread::sleep(COMMIT_PAUSE);
                }
                Ok(()) => {
                    health.recover();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Notes that a commit is no longer waited for.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }
}

impl Drop for Transactions {
    /// An open transaction is aborted, so that readers of committed messages need not wait until it times out.
    fn drop(&mut self) {
        if self.is_open.load(Ordering::Acquire)
            && let Err(error) = self.producer.abort_transaction(ABORT_TIMEOUT)
        {
            tracing::debug!(id = self.id, "Kafka: a transaction is left to time out: {}", problem(&error));
        }
    }
}

/// Whether the same request may succeed a moment later.
fn is_passing(error: &KafkaError) -> bool {
    match error {
        KafkaError::Transaction(error) => error.is_retriable() && !error.txn_requires_abort() && !error.is_fatal(),
        KafkaError::Flush(code) => *code == RDKafkaErrorCode::OperationTimedOut,
        _ => false,
    }
}

/// The problem, in words of the broker or the library.
fn problem(error: &KafkaError) -> String {
    match error {
        KafkaError::Transaction(error) => error.string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(epoch: u64, line: &str, has_ended: bool) -> Option<(u64, String)> {
        Some((epoch, serde_json::to_string(&Note { line: line.into(), has_ended }).unwrap()))
    }

    #[test]
    fn a_marker_counts_for_the_line_that_it_was_written_for() {
        let first = Prepared { line: "a".into(), final_up_to: None };
        let later = Prepared { line: "a".into(), final_up_to: Some(6) };
        assert_eq!(final_by(marker(7, "a", false), &later), Ok(FinalUpTo::Epoch { number: 7, set_by: SET_BY }));
        assert_eq!(final_by(marker(7, "a", true), &later), Ok(FinalUpTo::Ended));
        // The marker of a query of the same name, which was dropped.
        assert_eq!(final_by(marker(57, "b", false), &first), Ok(FinalUpTo::Nothing));
        assert_eq!(final_by(None, &first), Ok(FinalUpTo::Nothing));
        assert_eq!(
            final_by(Some((5, String::new())), &later),
            Ok(FinalUpTo::Epoch { number: 5, set_by: SET_BY }),
            "set by hand"
        );
        for lost in [None, marker(57, "b", false)] {
            assert!(final_by(lost, &later).unwrap_err().contains("that of checkpoint 6 were"));
        }
    }

    #[test]
    fn what_a_checkpoint_remembers_is_read_back() {
        let prepared = Prepared { line: "a".into(), final_up_to: Some(6) };
        let text = serde_json::to_string(&prepared).unwrap();
        assert_eq!(parsed(&[String::new(), text]).ok(), Some(Some(prepared)));
        assert_eq!(parsed(&[]).ok(), Some(None));
        assert!(
            matches!(parsed(&["{".into()]), Err(OpenError::Transaction(problem)) if problem.contains("not understood"))
        );
    }
}
