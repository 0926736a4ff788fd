//! What feeds the queries of a run: for each query its sensor and its topic, 32 bytes and the topic's text.

use std::hint::black_box;

use crate::digits::write_integer;
use crate::random::Random;
use crate::streams::{PAYLOAD_BYTES_MAX, Stream};
use crate::workload::Workload;

/// The most queries one feed serves: their topics stay below 4 GiB.
pub const QUERIES_MAX: u32 = 16_000_000;

/// What an event takes to say whose it is, at most.
const DEVICE_BYTES_MAX: usize = 24;

/// The sensors and topics of queries `0..queries()`.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    entries: Vec<Entry>,
    /// All topics end to end; a topic ends where the next one starts.
    topics: Vec<u8>,
    payload: Vec<u8>,
    /// Whether all topics are one, so that an event must say whose it is.
    names_device: bool,
}

/// Side by side, because an event needs both and finds neither in a cache.
#[derive(Debug)]
struct Entry {
    stream: Stream,
    topic_start: u32,
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Feed {
    /// The feed of the first `queries` queries (at most [`QUERIES_MAX`]) of a workload.
    pub(crate) fn new(workload: &Workload, queries: u32) -> Self {
        let queries = queries.min(QUERIES_MAX);
        let mut entries = Vec::with_capacity(queries as usize);
        // Topics of the workload have 25 bytes in the mean.
        let mut topics = Vec::with_capacity(queries as usize * 26);
        for number in 0..u64::from(queries) {
            let topic_start = u32::try_from(topics.len()).expect("the topics of QUERIES_MAX queries fit");
            entries.push(Entry { stream: workload.stream(number), topic_start });
            workload.write_input_topic(number, &mut topics);
        }
        topics.shrink_to_fit();
        let payload = Vec::with_capacity(PAYLOAD_BYTES_MAX + DEVICE_BYTES_MAX);
        Self { entries, topics, payload, names_device: workload.shares_topic() }
    }

    /// The number of queries.
    pub(crate) fn queries(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Where the events of a query are published.
    #[inline]
    pub(crate) fn topic(&self, query: u32) -> &[u8] {
        let query = query as usize;
        let start = self.entries[query].topic_start as usize;
        let end = self.entries.get(query + 1).map_or(self.topics.len(), |next| next.topic_start as usize);
        &self.topics[start..end]
    }

    /// Brings what several queries need into the caches together, before [`Feed::next`] needs it one by one: these
    /// loads do not wait for each other.
    #[inline]
    pub(crate) fn warm(&self, queries: impl Iterator<Item = u32> + Clone) {
        for query in queries.clone() {
            black_box(self.entries[query as usize].topic_start);
        }
        for query in queries {
            black_box(self.topic(query).first());
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
        (self.topic(query), &self.payload)
    }

    /// Memory held, in bytes.
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
        let mut feed = Feed::new(&workload, 10_000);
        let mut random = Random::new(71);
        for query in [0, 1, 4321, 9_999] {
            let expected = workload.query(query.into());
            let (topic, payload) = feed.next(query, 1_763_712_345_678_901, &mut random, 1.0);
            assert_eq!(topic, expected.input_topic.as_bytes());
            assert!(serde_json::from_slice::<serde_json::Value>(payload).unwrap().is_object());
        }
        let shared = WorkloadOptions { applications: vec!["device_readings".into()], ..WorkloadOptions::default() };
        let mut shared = Feed::new(&Workload::new(shared).unwrap(), 50);
        let (topic, payload) = shared.next(42, 1_763_712_345_678_901, &mut random, 1.0);
        assert_eq!(topic, b"devices/readings");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(payload).unwrap()["device"], "42");

        let per_query = feed.memory_bytes() as f64 / f64::from(feed.queries());
        assert!(per_query < 70.0, "{per_query}");
    }
}
