//! The sensors that feed the queries of a run. Each query has a sensor and a topic: 32 bytes and the text of the topic.
//! A query with two inputs has one sensor for both, and two topics.

use std::hint::black_box;

use crate::digits::write_integer;
use crate::random::Random;
use crate::streams::{PAYLOAD_BYTES_MAX, Reading, Stream};
use crate::workload::Workload;

/// The most queries whose sensors one generator has: their topics stay below 4 GiB.
pub const QUERIES_MAX: u32 = 16_000_000;

/// The most bytes of an event that name its device.
const DEVICE_BYTES_MAX: usize = 24;

/// Separates the two topics of a query; no topic of the workload contains it.
const BETWEEN_TOPICS: u8 = b' ';

/// The sensors and topics of queries `0..queries()`.
#[derive(Debug, Default)]
pub(crate) struct Sensors {
    entries: Vec<Entry>,
    /// All topics one after the other; those of a query end where those of the next one start.
    topics: Vec<u8>,
    /// The number of topics.
    topic_count: u32,
    payload: Vec<u8>,
    /// Whether all queries have the same topic, so that an event must name its device.
    names_device: bool,
}

/// Both are side by side, because an event needs both and finds neither in a cache.
#[derive(Debug)]
struct Entry {
    stream: Stream,
    topic_start: u32,
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Sensors {
    /// Makes the sensors of the first `queries` queries (at most [`QUERIES_MAX`]) of a workload.
    pub(crate) fn new(workload: &Workload, queries: u32) -> Self {
        let queries = queries.min(QUERIES_MAX);
        let mut entries = Vec::with_capacity(queries as usize);
        // Topics of the workload have 25 bytes on average.
        let mut topics = Vec::with_capacity(queries as usize * 26);
        let mut topic_count = queries;
        for number in 0..u64::from(queries) {
            let topic_start = u32::try_from(topics.len()).expect("the topics of QUERIES_MAX queries fit");
            entries.push(Entry { stream: workload.stream(number), topic_start });
            workload.write_input_topic(number, &mut topics);
            let end = topics.len();
            topics.push(BETWEEN_TOPICS);
            workload.write_second_topic(number, &mut topics);
            match topics.len() - end {
                1 => topics.truncate(end),
                _ => topic_count += 1,
            }
        }
        topics.shrink_to_fit();
        let payload = Vec::with_capacity(PAYLOAD_BYTES_MAX + DEVICE_BYTES_MAX);
        Self { entries, topics, topic_count, payload, names_device: workload.shares_topic() }
    }

    /// The number of queries.
    pub(crate) fn queries(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The number of topics that the queries read.
    pub(crate) fn topic_count(&self) -> u32 {
        self.topic_count
    }

    /// The one or two topics to which the events of a query are published.
    pub(crate) fn topics(&self, query: u32) -> impl Iterator<Item = &[u8]> {
        self.written_topics(query).split(|&byte| byte == BETWEEN_TOPICS)
    }

    #[inline]
    fn written_topics(&self, query: u32) -> &[u8] {
        let query = query as usize;
        let start = self.entries[query].topic_start as usize;
        let end = self.entries.get(query + 1).map_or(self.topics.len(), |next| next.topic_start as usize);
        &self.topics[start..end]
    }

    /// The topic to which a reading of a query's sensor is published.
    #[inline]
    fn topic_of(&self, query: u32, reading: &Reading) -> &[u8] {
        match reading {
            Reading::HerdPosition { is_dog, .. } => {
                let topic = self.topics(query).nth(usize::from(!is_dog));
                topic.expect("only queries with two topics are fed by a herd")
            }
            _ => self.written_topics(query),
        }
    }

    /// Loads the data of several queries into the caches together, before [`Sensors::next`] needs them one by one:
    /// these loads do not wait for each other.
    #[inline]
    pub(crate) fn warm(&self, queries: impl Iterator<Item = u32> + Clone) {
        for query in queries.clone() {
            black_box(self.entries[query as usize].topic_start);
        }
        for query in queries {
            black_box(self.written_topics(query).first());
        }
    }

    /// Takes the next reading of a query's sensor; returns the topic and the payload, whose `ts` is `time_us`
    /// (microseconds since the epoch).
    #[inline]
    pub(crate) fn next(
        &mut self,
        query: u32,
        time_us: i64,
        random: &mut Random,
        episode_factor: f32,
    ) -> (&[u8], &[u8]) {
        self.payload.clear();
        let reading = self.entries[query as usize].stream.next_with_episodes(random, episode_factor);
        reading.write_json(time_us, &mut self.payload);
        if self.names_device {
            self.payload.pop();
            self.payload.extend_from_slice(b",\"device\":\"");
            write_integer(query.into(), &mut self.payload);
            self.payload.extend_from_slice(b"\"}");
        }
        (self.topic_of(query, &reading), &self.payload)
    }

    /// The memory it holds, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.topics.capacity() + self.payload.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::WorkloadOptions;

    #[test]
    fn every_query_has_its_topic_and_little_memory() {
        let workload = Workload::new(WorkloadOptions::default()).unwrap();
        let mut sensors = Sensors::new(&workload, 10_000);
        let mut random = Random::new(71);
        for query in [0, 1, 4321, 9_999] {
            let expected = workload.query(query.into());
            let (topic, payload) = sensors.next(query, 1_763_712_345_678_901, &mut random, 1.0);
            assert_eq!(topic, expected.input_topic.as_bytes());
            assert!(serde_json::from_slice::<serde_json::Value>(payload).unwrap().is_object());
        }
        let shared = WorkloadOptions { applications: vec!["device_readings".into()], ..WorkloadOptions::default() };
        let mut shared = Sensors::new(&Workload::new(shared).unwrap(), 50);
        let (topic, payload) = shared.next(42, 1_763_712_345_678_901, &mut random, 1.0);
        assert_eq!(topic, b"devices/readings");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(payload).unwrap()["device"], "42");

        let herds = WorkloadOptions { applications: vec!["animal_care".into()], ..WorkloadOptions::default() };
        let mut herds = Sensors::new(&Workload::new(herds).unwrap(), 3);
        assert_eq!((herds.queries(), herds.topic_count(), sensors.topic_count()), (3, 6, 10_000));
        for topic in ["herd/1/dog", "herd/1/animal/1", "herd/1/dog"] {
            assert_eq!(herds.next(1, 1_763_712_345_678_901, &mut random, 1.0).0, topic.as_bytes());
        }
        assert_eq!(herds.topics(2).map(<[u8]>::len).collect::<Vec<_>>(), [10, 15]);

        let per_query = sensors.memory_bytes() as f64 / f64::from(sensors.queries());
        assert!(per_query < 70.0, "{per_query}");
    }
}
