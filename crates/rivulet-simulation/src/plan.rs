//! The plan of one simulation, made before it runs: everything follows from one seed. Each step is independent, so that
//! steps can be left out to find those that matter.

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::disk::Crash;
use crate::model::Kind;

/// A simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed that it was made from.
    pub seed: u64,
    /// How many clients send; device `d` belongs to client `d % clients`.
    pub clients: usize,
    /// The most events in the inbox of a task.
    pub inbox_rows_max: usize,
    /// The size of a segment of the log, in bytes.
    pub segment_bytes: u64,
    /// The queries.
    pub queries: Vec<QueryPlan>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// A query.
#[derive(Clone, Copy, Debug)]
pub struct QueryPlan {
    /// Its number, which stays the same when other queries are left out.
    pub number: usize,
    /// What it computes.
    pub kind: Kind,
    /// The events that it reads.
    pub reads: Reads,
    /// Its bound.
    pub low: i32,
    /// Whether it is created by a step and not at the beginning.
    pub comes_later: bool,
}

/// What a query reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The events of a device.
    Device(usize),
    /// The results of the query with this number; nothing if that query was left out.
    Query(usize),
}

/// A step. If it is about one of several things, a number chooses among those that exist at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A device measures a value, and its client sends it.
    Send {
        /// Which device.
        device: usize,
        /// The measured value.
        value: i32,
        /// The time since the device's previous event, in seconds.
        gap_s: u8,
    },
    /// The engine reads messages of a client.
    Deliver {
        /// Which client.
        client: usize,
        /// How many messages.
        messages: u8,
    },
    /// A client gets the acknowledgements that are due.
    Acknowledge {
        /// Which client.
        client: usize,
    },
    /// A connection ends, everything in flight on it is lost, and its client connects again.
    Disconnect {
        /// Which client.
        client: usize,
    },
    /// A ready task runs until it is done, or for one batch.
    Run {
        /// Chooses the task.
        choose: u16,
        /// Whether it runs for one batch only.
        is_short: bool,
    },
    /// Time passes.
    Tick {
        /// How much, in milliseconds.
        by_ms: u16,
    },
    /// If all messages are acknowledged, so much time passes that no client repeats any of them.
    Rest,
    /// The log is written.
    Commit,
    /// A checkpoint is made.
    Checkpoint,
    /// A part of the log is replayed, if it has to be.
    Replay {
        /// The most events.
        events: u8,
        /// Whether the whole rest may be replayed.
        ends: bool,
    },
    /// Half of the queries of a task move to another task, or two tasks are merged.
    Rebalance {
        /// Chooses the group, and the task.
        choose: u16,
        /// Whether two tasks are merged.
        merges: bool,
    },
    /// There is no room for results, or there is room again.
    Receivers {
        /// Whether there is no room.
        are_away: bool,
    },
    /// The disk is full, or has room again.
    Disk {
        /// Whether it is full.
        is_full: bool,
    },
    /// Syncs fail, or work again.
    Syncs {
        /// Whether they fail.
        fail: bool,
    },
    /// A query is created that did not exist at the beginning.
    Create {
        /// Which one.
        query: usize,
    },
    /// A query is paused, or resumed.
    Pause {
        /// Which one.
        query: usize,
        /// Whether it is paused.
        is_paused: bool,
    },
    /// A query gets another bound.
    Alter {
        /// Which one.
        query: usize,
        /// Its bound from now on.
        low: i32,
    },
    /// All queries of an application get another bound, with one call.
    AlterAll {
        /// One of its queries.
        query: usize,
        /// Their bound from now on.
        low: i32,
    },
    /// The engine reads a message of a client while it writes the next change of its queries to the catalog.
    Meanwhile {
        /// Which client.
        client: usize,
    },
    /// A query is dropped.
    Drop {
        /// Which one.
        query: usize,
    },
    /// The engine ends after this number of disk operations, during the last one.
    Crash {
        /// How it ends.
        crash: Crash,
        /// The number of operations; 0 ends it at once.
        operations: u16,
    },
    /// The engine is stopped and started.
    Restart,
}

/// The most steps in one simulation.
const STEPS_MAX: usize = 320;
const QUERIES_MAX: usize = 9;
const CHAINED_MAX: usize = 4;

/// All measured values are less than this.
pub const VALUE_END: i32 = 80;

impl Plan {
    /// Makes the plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let random = &mut random;
        let devices = random.random_range(1..4);
        let kinds: Vec<Kind> =
            (0..random.random_range(1..4)).map(|_| Kind::ALL[random.random_range(0..Kind::ALL.len())]).collect();
        let mut queries: Vec<QueryPlan> = Vec::new();
        for number in 0..random.random_range(1..QUERIES_MAX) {
            // Some queries are equal and share a slot.
            let again = queries.get(random.random_range(0..QUERIES_MAX)).filter(|_| random.random_bool(0.3)).copied();
            let query = again.unwrap_or_else(|| QueryPlan {
                number,
                kind: kinds[random.random_range(0..kinds.len())],
                reads: Reads::Device(random.random_range(0..devices)),
                low: random.random_range(0..50),
                comes_later: false,
            });
            queries.push(QueryPlan { number, comes_later: random.random_bool(0.3), ..query });
        }
        for _ in 0..random.random_range(0..CHAINED_MAX) {
            let read: Vec<usize> = queries.iter().filter(|one| one.kind.is_chained()).map(|one| one.number).collect();
            if let Some(&read) = read.get(random.random_range(0..QUERIES_MAX)) {
                queries.push(QueryPlan {
                    number: queries.len(),
                    kind: [Kind::Relay, Kind::Sums][random.random_range(0..2)],
                    reads: Reads::Query(read),
                    low: random.random_range(0..30),
                    comes_later: false,
                });
            }
        }
        let clients = random.random_range(1..3);
        let (has_crashes, has_disk_faults) = (random.random_bool(0.85), random.random_bool(0.4));
        let steps = (0..random.random_range(20..STEPS_MAX))
            .map(|_| Step::new(random, devices, clients, queries.len(), has_crashes, has_disk_faults))
            .collect();
        Self {
            seed,
            clients,
            inbox_rows_max: [4, 16, 1_000][random.random_range(0..3)],
            segment_bytes: [300, 2_000, 1 << 20][random.random_range(0..3)],
            queries,
            steps,
        }
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        let of_queries = self.queries.iter().filter_map(|query| match query.reads {
            Reads::Device(device) => Some(device),
            Reads::Query(_) => None,
        });
        let of_steps = self.steps.iter().filter_map(|step| match step {
            Step::Send { device, .. } => Some(*device),
            _ => None,
        });
        of_queries.chain(of_steps).max().map_or(1, |last| last + 1)
    }
}

impl Step {
    fn new(
        random: &mut StdRng,
        devices: usize,
        clients: usize,
        queries: usize,
        has_crashes: bool,
        has_disk_faults: bool,
    ) -> Self {
        let client = random.random_range(0..clients);
        match random.random_range(0..114) {
            0..24 => Self::Send {
                device: random.random_range(0..devices),
                value: random.random_range(-10..VALUE_END),
                gap_s: random.random_range(0..6),
            },
            24..46 => Self::Deliver { client, messages: random.random_range(1..5) },
            46..62 => Self::Run { choose: random.random(), is_short: random.random_bool(0.3) },
            62..70 => Self::Commit,
            70..77 => Self::Acknowledge { client },
            77 => Self::Tick { by_ms: random.random_range(1..300) },
            78 => Self::Rest,
            79..83 => Self::Checkpoint,
            83..87 => Self::Replay { events: random.random_range(0..6), ends: random.random_bool(0.4) },
            87..90 => Self::Rebalance { choose: random.random(), merges: random.random_bool(0.4) },
            90..92 => Self::Disconnect { client },
            92 => Self::Receivers { are_away: random.random_bool(0.5) },
            93 if has_disk_faults => Self::Disk { is_full: random.random_bool(0.4) },
            94 if has_disk_faults => Self::Syncs { fail: random.random_bool(0.3) },
            95 => Self::Drop { query: random.random_range(0..queries) },
            96..99 if has_crashes => Self::Crash {
                crash: if random.random_bool(0.6) { Crash::Power } else { Crash::Process },
                operations: [0, 4, 30][random.random_range(0..3)] + random.random_range(0..6),
            },
            99 if has_crashes => Self::Restart,
            100..102 => Self::Create { query: random.random_range(0..queries) },
            102..104 => Self::Pause { query: random.random_range(0..queries), is_paused: true },
            104..106 => Self::Pause { query: random.random_range(0..queries), is_paused: false },
            106..109 => Self::Alter { query: random.random_range(0..queries), low: random.random_range(0..50) },
            109 => Self::AlterAll { query: random.random_range(0..queries), low: random.random_range(0..50) },
            110..114 => Self::Meanwhile { client },
            _ => Self::Commit,
        }
    }
}

impl fmt::Display for QueryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reads {
            Reads::Device(device) => write!(f, "{} of device {device} with {}", self.kind.name(), self.low),
            Reads::Query(query) => write!(f, "{} of the results of q{query} with {}", self.kind.name(), self.low),
        }
    }
}
