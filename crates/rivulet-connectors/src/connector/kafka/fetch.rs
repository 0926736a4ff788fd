//! The thread that reads messages and hands them over, by partition.
//!
//! What must hold: the waiting messages of a partition are bounded, and if there are too many, only that partition is
//! paused; the consumer polls always, so that its group does not consider it dead. An offset is stored for the group
//! when its message was taken, not before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};

use super::block::Block;
use super::queue::{Queue, Shared};
use super::start::{Begin, Reading};
use crate::connector::Health;
use crate::connector::intake::BYTES_AT_ONCE;

/// The number of messages that are taken before they are handed over.
const ROUND_MESSAGES: usize = 8192;

/// How long one poll waits for a message, and so how long stopping takes.
const POLL: Duration = Duration::from_millis(50);

/// The same while a partition is paused: it goes on when its messages have been taken, and nothing signals that.
const POLL_PAUSED: Duration = Duration::from_millis(5);

/// The interval at which a member of a group checks which partitions are its own.
const ASSIGNMENT_INTERVAL: Duration = Duration::from_millis(500);

/// How long a member waits for its group to assign partitions. A member without a partition by then may get none: there
/// may be more members than partitions.
const ASSIGNMENT_PATIENCE: Duration = Duration::from_secs(10);

/// This long after the library reported a problem, the problem counts as over.
const TROUBLE_LASTS: Duration = Duration::from_secs(60);

/// A partition of the topic.
struct Lane {
    queue: Arc<Queue>,
    /// Messages of this round.
    block: Block,
    /// The offset where reading ends, if it does, and whether it has ended.
    end: Option<i64>,
    has_ended: bool,
    is_paused: bool,
}

/// Begins to read in a thread of its own. Returns the queues of the partitions, in the order of `reading`.
pub(super) fn start(reading: Reading, health: Arc<Health>) -> (Vec<Arc<Queue>>, Arc<Shared>) {
    let shared = Arc::<Shared>::default();
    // In a group it is known only later which partitions are ours.
    let is_known = !reading.is_member();
    let queues: Vec<Arc<Queue>> = reading.begins.iter().map(|begin| Queue::new(begin.partition, is_known)).collect();
    let lanes = reading.begins.iter().zip(&queues).map(|(begin, queue)| (begin.partition, Lane::new(begin, queue)));
    let fetcher = Fetcher {
        lanes: lanes.collect(),
        shared: shared.clone(),
        handed: 0,
        round_bytes: 0,
        begun: Instant::now(),
        assignment_seen: None,
        queue_bytes_max: Queue::bytes_max(queues.len()),
        health,
        troubled: None,
        reading,
    };
    if let Err(error) = std::thread::Builder::new().name("kafka source".into()).spawn(move || fetcher.run()) {
        shared.fail(error.to_string());
    }
    (queues, shared)
}

impl Lane {
    fn new(begin: &Begin, queue: &Arc<Queue>) -> Self {
        let (end, has_ended) = (begin.end, begin.messages == Some(0));
        if has_ended {
            queue.end();
        }
        Self { queue: queue.clone(), block: Block::default(), end, has_ended, is_paused: false }
    }
}

struct Fetcher {
    reading: Reading,
    shared: Arc<Shared>,
    /// By the number of the partition.
    lanes: HashMap<i32, Lane>,
    /// The number of messages that were handed over.
    handed: u64,
    /// The number of bytes taken in this round.
    round_bytes: usize,
    begun: Instant,
    /// When it was last checked which partitions are ours.
    assignment_seen: Option<Instant>,
    /// A partition with more bytes waiting is not read.
    queue_bytes_max: usize,
    health: Arc<Health>,
    /// When the library last reported a problem, unless messages came since.
    troubled: Option<Instant>,
}

impl Fetcher {
    fn run(mut self) {
        while self.shared.is_wanted() && !self.lanes.values().all(|lane| lane.has_ended) {
            store_offsets(&self.reading, &self.shared);
            self.look_at_assignment();
            let filled = self.fill();
            self.hand_over();
            // The library reports again and again that a broker is away, and reports nothing when the broker is back
            // without messages.
            if self.troubled.is_some_and(|at| at.elapsed() >= TROUBLE_LASTS) {
                self.recover();
            }
            if let Err(problem) = filled {
                self.health.fail(&problem);
                self.shared.fail(problem);
                break;
            }
            self.pause_and_resume();
        }
        finish(&self.reading, &self.shared, self.handed);
    }

    /// In a group, tells the queues which partitions are ours; new partitions of the topic get a queue.
    fn look_at_assignment(&mut self) {
        if !self.reading.is_member() || self.assignment_seen.is_some_and(|seen| seen.elapsed() < ASSIGNMENT_INTERVAL) {
            return;
        }
        self.assignment_seen = Some(Instant::now());
        // While the group decides, the assignment is asked for again in a moment.
        let Ok(assignment) = self.reading.consumer.assignment() else { return };
        let ours: Vec<i32> = assignment.elements().iter().map(|element| element.partition()).collect();
        for &partition in &ours {
            self.lane(partition);
        }
        self.lanes.iter().for_each(|(partition, lane)| lane.queue.set_ours(ours.contains(partition)));
        if !ours.is_empty() || self.begun.elapsed() >= ASSIGNMENT_PATIENCE {
            self.shared.set_assigned();
        }
    }

    /// The lane of a partition, which may be new in the topic.
    fn lane(&mut self, partition: i32) -> &mut Lane {
        self.lanes.entry(partition).or_insert_with(|| {
            let queue = Queue::new(partition, true);
            self.shared.add(queue.clone());
            Lane::new(&Begin { partition, begin: None, end: None, messages: None }, &queue)
        })
    }

    /// Takes messages until there are none or the round is full. Waits only for the first message: reading the clock
    /// and waiting costs more than a message.
    fn fill(&mut self) -> Result<(), String> {
        let is_paused = self.lanes.values().any(|lane| lane.is_paused);
        let mut wait = if is_paused { POLL_PAUSED } else { POLL };
        self.round_bytes = 0;
        let consumer = self.reading.consumer.clone();
        for _ in 0..ROUND_MESSAGES {
            match consumer.poll(wait) {
                None => return Ok(()),
                Some(Ok(message)) => {
                    wait = Duration::ZERO;
                    if self.troubled.is_some() {
                        self.recover();
                    }
                    self.take(&message);
                    if self.round_bytes >= BYTES_AT_ONCE {
                        return Ok(());
                    }
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    // All messages that existed at the start are before the present end; the last offset may have had
                    // no message.
                    if let Some(lane) = self.lanes.get_mut(&partition) {
                        lane.has_ended |= lane.end.is_some();
                    }
                }
                Some(Err(error)) => match is_final(&error) {
                    true => return Err(error.to_string()),
                    false => {
                        self.troubled = Some(Instant::now());
                        self.health.retry(&error.to_string());
                        return Ok(());
                    }
                },
            }
        }
        Ok(())
    }

    fn recover(&mut self) {
        self.troubled = None;
        self.health.recover();
    }

    fn take(&mut self, message: &BorrowedMessage<'_>) {
        let (partition, offset) = (message.partition(), message.offset());
        if !self.lanes.get(&partition).is_some_and(|lane| lane.queue.is_ours()) {
            // The group has just assigned its partitions; those that came with this one are looked up at once.
            self.assignment_seen = None;
            self.look_at_assignment();
        }
        let lane = self.lane(partition);
        // A new assignment of the group undoes pauses: pausing is due again.
        lane.is_paused = false;
        if lane.has_ended {
            return;
        }
        if let Some(end) = lane.end {
            lane.has_ended = offset + 1 >= end;
            if offset >= end {
                return;
            }
        }
        let before = lane.block.weight();
        lane.block.push(message);
        self.round_bytes += lane.block.weight() - before;
    }

    /// Hands over the messages of this round.
    fn hand_over(&mut self) {
        for lane in self.lanes.values_mut() {
            if lane.block.messages() > 0 {
                self.handed += lane.block.messages() as u64;
                lane.queue.push(std::mem::take(&mut lane.block));
            }
            if lane.has_ended {
                lane.queue.end();
            }
        }
    }

    /// Pauses partitions with too much waiting, and resumes those with less than half of that.
    fn pause_and_resume(&mut self) {
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        for (&partition, lane) in &mut self.lanes {
            let bytes = lane.queue.bytes();
            if !lane.is_paused && bytes > self.queue_bytes_max {
                pause.add_partition(&self.reading.topic, partition);
                lane.is_paused = true;
            } else if lane.is_paused && bytes < self.queue_bytes_max / 2 {
                resume.add_partition(&self.reading.topic, partition);
                lane.is_paused = false;
            }
        }
        // A partition that went to another member meanwhile cannot be paused and brings nothing.
        if pause.count() > 0
            && let Err(error) = self.reading.consumer.pause(&pause)
        {
            tracing::debug!(topic = self.reading.topic, "Kafka: not paused: {error}");
        }
        if resume.count() > 0
            && let Err(error) = self.reading.consumer.resume(&resume)
        {
            tracing::debug!(topic = self.reading.topic, "Kafka: not resumed: {error}");
        }
    }
}

/// Stores the offsets of messages that were taken, so that the library commits them.
fn store_offsets(reading: &Reading, shared: &Shared) {
    if !reading.has_group {
        return;
    }
    for (partition, offset) in shared.take_offsets() {
        // A partition that went to another member meanwhile has nothing to store; that member reads again from the
        // committed offset.
        if let Err(error) = reading.consumer.store_offset(&reading.topic, partition, offset - 1) {
            tracing::debug!(topic = reading.topic, partition, "Kafka: offset not stored: {error}");
        }
    }
}

/// Commits the offsets of the last messages that were taken, of those handed over.
fn finish(reading: &Reading, shared: &Shared, handed: u64) {
    if !reading.has_group {
        return;
    }
    // The last messages handed over are still taken while a source reads.
    while shared.is_wanted() && shared.messages.load(Ordering::Acquire) < handed {
        std::thread::sleep(POLL);
    }
    store_offsets(reading, shared);
    match reading.consumer.commit_consumer_state(CommitMode::Sync) {
        Ok(()) | Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
        Err(error) => tracing::warn!(topic = reading.topic, "Kafka: offsets not committed: {error}"),
    }
}

/// Whether another attempt will not help.
fn is_final(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::*;
    match error {
        KafkaError::MessageConsumptionFatal(_) => true,
        KafkaError::MessageConsumption(code) | KafkaError::Global(code) => matches!(
            code,
            UnknownTopicOrPartition
                | UnknownTopic
                | UnknownPartition
                | TopicAuthorizationFailed
                | GroupAuthorizationFailed
                | ClusterAuthorizationFailed
                | SaslAuthenticationFailed
                | Authentication
                | UnsupportedSASLMechanism
                | Fatal
        ),
        _ => false,
    }
}
