//! Options of all generators, and the columns that a statement reads from one.

use std::time::Duration;

use arrow::datatypes::Schema;
use rivulet_connectors::connector::options::shortened;
use rivulet_connectors::connector::{
    ConnectorError, EVENT_TIME_KEY, OptionDescription, OptionKind, Options, SourceSpec,
};
use rivulet_connectors::formats::parse_time;
use rivulet_dataflow::Source;

use super::schedule::{RateShape, Schedule};
use super::source::{GeneratedSource, Maker, Pace};
use super::walk::{Part, Pattern, Walk, is_disorder};

/// The options of every generator.
pub(super) const COMMON_OPTIONS: [OptionDescription; 13] = [
    OptionDescription {
        name: "events",
        kind: OptionKind::Integer { min: 0, max: i64::MAX },
        default: Some("0"),
        help: "After how many events the stream ends; 0 is never. Events that this source jumps over count.",
    },
    OptionDescription {
        name: "rate",
        kind: OptionKind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("0"),
        help: "Events a second by the clock; 0 is as fast as they are taken.",
    },
    OptionDescription {
        name: "event_rate",
        kind: OptionKind::Integer { min: 1, max: 1_000_000_000 },
        default: None,
        help: "Events for each second of event time: the rate, or 10000 where that is 0.",
    },
    OptionDescription {
        name: "seed",
        kind: OptionKind::Integer { min: 0, max: i64::MAX },
        default: Some("1"),
        help: "Another seed is another stream.",
    },
    OptionDescription {
        name: "base_time",
        kind: OptionKind::Text,
        default: Some("2015-07-15"),
        help: "The event time of the first event, or `now`.",
    },
    OptionDescription {
        name: "disorder",
        kind: OptionKind::Integer { min: 1, max: 1_000_000 },
        default: Some("1"),
        help: "So many events at a time come in a wrong order; 1 is in order.",
    },
    OptionDescription {
        name: "shape",
        kind: OptionKind::Choice(&["constant", "square", "sine", "bursty", "burst"]),
        default: Some("constant"),
        help: "How the rate changes: not at all; every half period; along a cosine in ten steps; in the last fifth of every period; once, \
               after `shape_period`.",
    },
    OptionDescription {
        name: "shape_factor",
        kind: OptionKind::Integer { min: 1, max: 1_000 },
        default: Some("5"),
        help: "The changed rate as a multiple of the first.",
    },
    OptionDescription {
        name: "shape_period",
        kind: OptionKind::Duration,
        default: Some("10 minutes"),
        help: "When the change of the rate begins again; for `burst`, when it begins.",
    },
    OptionDescription {
        name: "shape_length",
        kind: OptionKind::Duration,
        default: Some("1 minute"),
        help: "For `burst`, how long it lasts.",
    },
    OptionDescription {
        name: "burst",
        kind: OptionKind::Duration,
        default: None,
        help: "With a rate, all events of so much time come together, at its end; without it, each comes at its own time.",
    },
    OptionDescription {
        name: "block",
        kind: OptionKind::Integer { min: 1, max: 1_000_000 },
        default: None,
        help: "How many events a partition takes at a time; without it, 8192, or those of a millisecond where there is a rate.",
    },
    OptionDescription {
        name: "partitions",
        kind: OptionKind::Integer { min: 1, max: 1_024 },
        default: None,
        help: "How many partitions make events side by side; without it, as many as the query wants.",
    },
];

/// These options, and behind them the options of one generator.
pub(super) const fn with_common<const OWN: usize, const ALL: usize>(
    own: [OptionDescription; OWN],
) -> [OptionDescription; ALL] {
    assert!(ALL == COMMON_OPTIONS.len() + OWN, "there is a place for each");
    let mut all = [COMMON_OPTIONS[0]; ALL];
    let mut place = 0;
    while place < ALL {
        all[place] = match place < COMMON_OPTIONS.len() {
            true => COMMON_OPTIONS[place],
            false => own[place - COMMON_OPTIONS.len()],
        };
        place += 1;
    }
    all
}

/// Events per second of event time, if nothing says how many.
const EVENT_RATE: i64 = 10_000;
/// Positions that a partition takes at a time.
const BLOCK: u64 = 8_192;

/// The given options that every generator has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StreamOptions {
    pub(super) events: u64,
    pub(super) rate: Option<f64>,
    pub(super) event_rate: f64,
    pub(super) seed: u64,
    pub(super) base_us: i64,
    pub(super) disorder: u64,
    pub(super) shape: RateShape,
    pub(super) block: u64,
    burst: Option<Duration>,
    partitions: Option<usize>,
}

impl StreamOptions {
    pub(super) fn from(options: &Options) -> Result<Self, ConnectorError> {
        let integer = |name| options.integer(name).unwrap_or(0).unsigned_abs();
        let rate = options.integer("rate").filter(|&rate| rate > 0);
        let event_rate = options.integer("event_rate").or(rate).unwrap_or(EVENT_RATE);
        let disorder = integer("disorder");
        if !is_disorder(disorder) {
            let problem = format!("cannot be {disorder}");
            return Err(options.wrong("disorder", problem, "multiples of 953 would leave events out"));
        }
        let factor = options.integer("shape_factor").unwrap_or(1) as f64;
        let [period, length] = ["shape_period", "shape_length"].map(|name| options.duration(name).unwrap_or_default());
        let shape = match options.text("shape") {
            Some("square") => RateShape::Square { factor, period },
            Some("sine") => RateShape::Sine { factor, period },
            Some("bursty") => RateShape::Bursty { factor, period },
            Some("burst") => RateShape::Burst { factor, start: period, length },
            _ => RateShape::Constant,
        };
        // A period without events would never end.
        if shape != RateShape::Constant
            && period.as_secs_f64() * (event_rate.min(rate.unwrap_or(i64::MAX)) as f64) < 100.0
        {
            let problem = "is too short for this rate";
            return Err(options.wrong("shape_period", problem, "at least a hundred events fit into one"));
        }
        let block = match (options.integer("block"), rate) {
            (Some(block), _) => block.unsigned_abs(),
            (None, None) => BLOCK,
            (None, Some(rate)) => (rate.unsigned_abs() / 1_000).clamp(1, BLOCK),
        };
        Ok(Self {
            events: match integer("events") {
                0 => u64::MAX,
                events => events,
            },
            rate: rate.map(|rate| rate as f64),
            event_rate: event_rate as f64,
            seed: integer("seed"),
            base_us: base_us(options)?,
            disorder,
            shape,
            block,
            burst: options.duration("burst"),
            partitions: options.count("partitions"),
        })
    }

    /// Makes the partitions of a stream with the events of this pattern. Partitions of a query that continues start
    /// where they were.
    ///
    /// # Errors
    ///
    /// A checkpoint is not understood.
    pub(super) fn partitions<M: Maker + 'static>(
        &self,
        connector: &'static str,
        spec: &SourceSpec,
        pattern: Pattern,
        wanted: usize,
        maker: impl Fn() -> M,
    ) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
        let part = |partition, partitions| Part {
            events: self.events,
            disorder: self.disorder,
            block: self.block,
            partition,
            partitions,
            pattern,
        };
        let source = |walk, started_us| {
            let schedule = |rate| Schedule::new(rate, self.shape).in_bursts(self.burst.unwrap_or_default());
            let pace = self.rate.map(|rate| Pace::new(schedule(rate), started_us));
            Box::new(GeneratedSource::new(walk, maker(), pace)) as Box<dyn Source>
        };
        if let Some(resumed) = spec.resumed::<(u64, u64, u64, u64, Option<i64>)>(connector)? {
            let sources = resumed.into_iter().map(|(partition, partitions, next, block_end, started_us)| {
                source(Walk::at(part(partition, partitions.max(1)), (next, block_end)), started_us)
            });
            return Ok(sources.collect());
        }
        let partitions = self.partitions.unwrap_or(wanted).max(1) as u64;
        Ok((0..partitions).map(|partition| source(Walk::new(part(partition, partitions)), None)).collect())
    }
}

fn base_us(options: &Options) -> Result<i64, ConnectorError> {
    let text = options.text("base_time").unwrap_or_default().trim();
    if text.eq_ignore_ascii_case("now") {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // The clock in whole seconds, so that sources which are opened one after the other mostly agree.
        return Ok(now.map_or(0, |now| now.as_secs() as i64 * 1_000_000));
    }
    parse_time(text).ok_or_else(|| {
        let problem = format!("cannot be '{}'", rivulet_connectors::connector::options::shortened(text));
        options.wrong("base_time", problem, "write a time as '2015-07-15T00:00:00Z', or 'now'")
    })
}

/// The indices, among a generator's own columns, of those that are read. Declared columns are found by name, in any
/// order.
pub(super) fn choose_columns(
    connector: &'static str,
    spec: &SourceSpec,
    own: &Schema,
) -> Result<Vec<usize>, ConnectorError> {
    let wrong = |problem: String, hint: String| ConnectorError::Address {
        connector,
        address: spec.address.clone(),
        problem,
        hint,
    };
    let mut places = Vec::with_capacity(spec.columns.len());
    for (place, declared) in spec.schema.fields().iter().enumerate() {
        let Ok(own_place) = own.index_of(declared.name()) else {
            let names = own.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
            return Err(wrong(format!("has no column '{}'", declared.name()), format!("its columns are {names}")));
        };
        let field = own.field(own_place);
        if field.data_type() != declared.data_type() || (field.is_nullable() && !declared.is_nullable()) {
            let problem = format!("has the column '{}' with another type than declared", declared.name());
            return Err(wrong(problem, "leave the columns out: it brings its own".into()));
        }
        if spec.columns.contains(&place) {
            places.push(own_place);
        }
    }
    Ok(places)
}

/// Refuses any text behind the colon in the address of a generator that has one stream.
pub(super) fn expect_one_stream(
    connector: &'static str,
    spec: &SourceSpec,
    problem: &str,
) -> Result<(), ConnectorError> {
    match spec.address.trim().is_empty() {
        true => Ok(()),
        false => Err(ConnectorError::Address {
            connector,
            address: shortened(&spec.address),
            problem: problem.into(),
            hint: format!("there is one only: write '{connector}:'"),
        }),
    }
}

/// A schema that says which column is the event time.
pub(super) fn with_event_time(schema: Schema, column: &str) -> Schema {
    let metadata = [(EVENT_TIME_KEY.to_owned(), column.to_owned())];
    schema.with_metadata(metadata.into())
}
