//! Decides which consumer reads which partitions of a topic, from where, and to where if reading is bounded.

use std::sync::Arc;

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;

use super::client::{OPEN_TIMEOUT, Reader, Settings, asked, committed, consumer, why};
use super::properties;
use crate::connector::{ConnectorError, Options};
use crate::files::Files;
use crate::formats::parse_time;

/// What brokers answer while they move a group or a partition among them, and while they start.
const MOVES: [RDKafkaErrorCode; 5] = [
    RDKafkaErrorCode::CoordinatorLoadInProgress,
    RDKafkaErrorCode::CoordinatorNotAvailable,
    RDKafkaErrorCode::NotCoordinator,
    RDKafkaErrorCode::LeaderNotAvailable,
    RDKafkaErrorCode::NotLeaderForPartition,
];

fn moves(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(|code| MOVES.contains(&code))
}

/// What one consumer reads.
pub(super) struct Reading {
    /// The consumer: its partitions are assigned already, or its group assigns them.
    pub(super) consumer: Arc<Reader>,
    pub(super) topic: String,
    /// Whether offsets are stored for the group.
    pub(super) has_group: bool,
    /// Whether reading ends.
    pub(super) is_bounded: bool,
    /// Its partitions, or those that its group may assign to it.
    pub(super) begins: Vec<Begin>,
}

impl Reading {
    /// Whether the group assigns its partitions, which may change.
    pub(super) fn is_member(&self) -> bool {
        self.has_group && !self.is_bounded
    }
}

/// A partition of a query that goes on: the next offset, and the offset at which reading ends, if it does.
pub(super) type Resumed = (i32, Option<i64>, Option<i64>);

/// Makes the positions of a source go on in a partition at an offset, unless they are beyond it already.
pub(super) fn go_on(positions: &mut Vec<Option<String>>, partition: i64, offset: i64) {
    let Ok(partition) = i32::try_from(partition) else { return };
    let write = |resumed: Resumed| serde_json::to_string(&resumed).ok();
    for position in positions.iter_mut() {
        let read = position.as_deref().and_then(|text| serde_json::from_str::<Resumed>(text).ok());
        let Some((known, at, end)) = read.filter(|(known, ..)| *known == partition) else { continue };
        if at.is_none_or(|at| at < offset) {
            *position = write((known, Some(offset), end));
        }
        return;
    }
    positions.push(write((partition, Some(offset), None)));
}

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) partition: i32,
    /// The offset where reading begins, if it is known.
    pub(super) begin: Option<i64>,
    /// The offset where reading ends, if it does, and the number of messages up to it.
    pub(super) end: Option<i64>,
    pub(super) messages: Option<u64>,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Earliest,
    Latest,
    /// Milliseconds since the epoch.
    Time(i64),
}

impl Start {
    /// Reads the declared beginning.
    pub(super) fn parse(options: &Options) -> Result<Self, ConnectorError> {
        let text = options.text("start").unwrap_or("earliest").trim();
        match (text.to_ascii_lowercase().as_str(), parse_time(text)) {
            ("earliest", _) => Ok(Self::Earliest),
            ("latest", _) => Ok(Self::Latest),
            (_, Some(_)) if options.text("group").is_some() => {
                Err(options.wrong("start", "cannot be a time with a group", "leave one of them out"))
            }
            (_, Some(time_us)) => Ok(Self::Time(time_us.div_euclid(1000))),
            (_, None) => Err(options.wrong(
                "start",
                format!("cannot be '{text}'"),
                "it is earliest, latest or a time, as 2026-11-21T08:30:00Z",
            )),
        }
    }
}

/// Divides the topic. `failed` makes an error from the broker's answer.
pub(super) fn plan(
    topic: &str,
    options: &Options,
    mut settings: Settings,
    partitions_wanted: usize,
    resumed: &[Resumed],
    files: &Files,
    failed: &dyn Fn(String) -> ConnectorError,
) -> Result<Vec<Reading>, ConnectorError> {
    let start = Start::parse(options)?;
    let is_bounded = options.boolean("bounded");
    let group = options.text("group");
    let config = &mut settings.config;
    // For partitions without an offset, or with one that is gone.
    config.set("auto.offset.reset", if start == Start::Latest { "latest" } else { "earliest" });
    match group {
        Some(group) => config.set("group.id", group).set("enable.auto.commit", "true"),
        // The library requires a name even if it is not used.
        None => config.set("group.id", "rivulet").set("enable.auto.commit", "false"),
    };
    properties::set(config, options, files)?;
    let first = consumer(&settings, options)?;
    let partitions = partitions_of(&first, topic).map_err(failed)?;
    if group.is_some() && !is_bounded {
        // One member, whatever partitions it gets: all tasks take messages of them anyway.
        commit_for_group(&first, topic, resumed).map_err(|error| failed(error.to_string()))?;
        first.subscribe(&[topic]).map_err(|error| failed(error.to_string()))?;
        let offset_of = |wanted: i32| resumed.iter().find(|(partition, ..)| *partition == wanted).and_then(|one| one.1);
        let begins = partitions.iter().map(|&partition| {
            let begin = offset_of(partition);
            Begin { partition, begin, end: None, messages: None }
        });
        let begins = begins.collect();
        let consumer = Arc::new(first);
        return Ok(vec![Reading { consumer, topic: topic.into(), has_group: true, is_bounded, begins }]);
    }
    let count = partitions_wanted.min(partitions.len());
    let mut consumers = vec![first];
    for _ in 1..count {
        consumers.push(consumer(&settings, options)?);
    }
    let mut begins =
        begins(&consumers[0], topic, &partitions, start, group.is_some()).map_err(|error| failed(error.to_string()))?;
    if is_bounded && !resumed.is_empty() {
        // The other partitions have come to their end.
        begins.retain(|(partition, _)| resumed.iter().any(|(resumed, ..)| resumed == partition));
    }
    for (partition, begin) in &mut begins {
        if let Some(&(_, offset, _)) = resumed.iter().find(|(resumed, ..)| resumed == partition) {
            *begin = offset.map_or(*begin, Offset::Offset);
        } else if !resumed.is_empty() {
            // The partition was added while the query did not run.
            *begin = Offset::Beginning;
        }
    }
    consumers
        .into_iter()
        .enumerate()
        .map(|(index, consumer)| {
            let mine: Vec<(i32, Offset)> = begins.iter().copied().skip(index).step_by(count).collect();
            assign(consumer, topic, &mine, resumed, group.is_some(), is_bounded)
                .map_err(|error| failed(error.to_string()))
        })
        .collect()
}

/// The numbers of the topic's partitions.
fn partitions_of(consumer: &Reader, topic: &str) -> Result<Vec<i32>, String> {
    let metadata = consumer.fetch_metadata(Some(topic), OPEN_TIMEOUT).map_err(|error| why(consumer, &error))?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    match found.map(|found| (found.error(), found.partitions())) {
        Some((None, partitions)) if !partitions.is_empty() => {
            let mut numbers: Vec<i32> = partitions.iter().map(|partition| partition.id()).collect();
            numbers.sort_unstable();
            Ok(numbers)
        }
        Some((Some(error), _)) => Err(RDKafkaErrorCode::from(error).to_string()),
        _ => Err(format!("there is no topic '{topic}'")),
    }
}

/// The offset where reading begins, for each partition.
fn begins(
    consumer: &Reader,
    topic: &str,
    partitions: &[i32],
    start: Start,
    has_group: bool,
) -> KafkaResult<Vec<(i32, Offset)>> {
    let all = |offset| Ok(partitions.iter().map(|&partition| (partition, offset)).collect());
    match start {
        _ if has_group => {
            let mut wanted = TopicPartitionList::new();
            partitions.iter().for_each(|&partition| _ = wanted.add_partition(topic, partition));
            let committed = committed(consumer, &wanted, moves)?;
            let fallback = if start == Start::Latest { Offset::End } else { Offset::Beginning };
            let begin = |partition: i32| match committed.find_partition(topic, partition).map(|one| one.offset()) {
                Some(Offset::Offset(offset)) => Offset::Offset(offset),
                _ => fallback,
            };
            Ok(partitions.iter().map(|&partition| (partition, begin(partition))).collect())
        }
        Start::Earliest => all(Offset::Beginning),
        Start::Latest => all(Offset::End),
        Start::Time(time_ms) => {
            let mut wanted = TopicPartitionList::new();
            for &partition in partitions {
                wanted.add_partition_offset(topic, partition, Offset::Offset(time_ms))?;
            }
            let found = asked(moves, || consumer.offsets_for_times(wanted.clone(), OPEN_TIMEOUT))?;
            // If no message is as new as that time, reading begins at the end.
            let begin = |partition: i32| match found.find_partition(topic, partition).map(|one| one.offset()) {
                Some(Offset::Offset(offset)) => Offset::Offset(offset),
                _ => Offset::End,
            };
            Ok(partitions.iter().map(|&partition| (partition, begin(partition))).collect())
        }
    }
}

/// Makes the group begin where a query goes on. If other members of the group are at work, they go on where they are.
fn commit_for_group(consumer: &Reader, topic: &str, resumed: &[Resumed]) -> KafkaResult<()> {
    let mut offsets = TopicPartitionList::new();
    for &(partition, offset, _) in resumed {
        if let Some(offset) = offset {
            offsets.add_partition_offset(topic, partition, Offset::Offset(offset))?;
        }
    }
    match offsets.count() {
        0 => Ok(()),
        _ => consumer.commit(&offsets, CommitMode::Sync),
    }
}

/// Makes a consumer read these partitions.
fn assign(
    consumer: Reader,
    topic: &str,
    begins: &[(i32, Offset)],
    resumed: &[Resumed],
    has_group: bool,
    is_bounded: bool,
) -> KafkaResult<Reading> {
    let mut assignment = TopicPartitionList::new();
    let mut read = Vec::with_capacity(begins.len());
    for &(partition, begin) in begins {
        let (mut begin, mut end) = (begin, None);
        if is_bounded || begin == Offset::End {
            let (low, high) = asked(moves, || consumer.fetch_watermarks(topic, partition, OPEN_TIMEOUT))?;
            // The end is that of now, not that of when reading begins; for a query that goes on, it is the end that was
            // fixed then.
            let high = resumed.iter().find(|(resumed, ..)| *resumed == partition).and_then(|one| one.2).unwrap_or(high);
            let from = match begin {
                Offset::Offset(offset) => offset.max(low).min(high),
                Offset::End => high,
                _ => low,
            };
            begin = Offset::Offset(from);
            end = is_bounded.then_some((high, u64::try_from(high - from).unwrap_or(0)));
        }
        let (end, messages) = (end.map(|(end, _)| end), end.map(|(_, messages)| messages));
        if messages != Some(0) {
            assignment.add_partition_offset(topic, partition, begin)?;
        }
        let begin = match begin {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        };
        read.push(Begin { partition, begin, end, messages });
    }
    consumer.assign(&assignment)?;
    Ok(Reading { consumer: Arc::new(consumer), topic: topic.into(), has_group, is_bounded, begins: read })
}
