//! Streams of NEXMark for which the answers of all queries are known.

use rivulet_bench::nexmark::Stream;

/// A stream for which the answers of all queries are known.
#[derive(Clone, Copy, Debug)]
pub struct Corpus {
    /// Its name.
    pub name: &'static str,
    /// What is special about it.
    pub description: &'static str,
    events: u64,
    event_rate: u64,
    seed: u64,
    base_time: &'static str,
    disorder: u64,
}

/// All of them. If results depend on which of two events came first, the events of a stream have different times, to
/// the millisecond.
pub static CORPORA: [Corpus; 3] = [
    Corpus {
        name: "in_order",
        description: "eight minutes, half of them before midnight, in order",
        events: 50_000,
        event_rate: 100,
        seed: 1,
        base_time: "2015-07-14T23:56:00Z",
        disorder: 1,
    },
    Corpus {
        name: "disordered",
        description: "the same length, with events up to three seconds out of order",
        events: 50_000,
        event_rate: 100,
        seed: 2,
        base_time: "2015-07-14T23:56:00Z",
        disorder: 300,
    },
    Corpus {
        name: "sparse",
        description: "an event a second from the evening to the next morning: most windows have few rows",
        events: 40_000,
        event_rate: 1,
        seed: 3,
        base_time: "2015-07-14T18:30:00Z",
        disorder: 4,
    },
];

impl Corpus {
    /// Returns the settings of the generator.
    pub fn stream(&self) -> Stream {
        Stream {
            events: self.events,
            event_rate: self.event_rate,
            rate: 0,
            seed: self.seed,
            base_time: self.base_time.into(),
            disorder: self.disorder,
        }
    }
}
