//! What connectors say about themselves. Checks, errors and the reference are made of this and of nothing else.

use std::fmt;
use std::path::PathBuf;

use arrow::datatypes::Schema;
use rivulet_dataflow::{Sink, Source};

use super::{ConnectorError, FinalUpTo, Options, SinkSpec, SourceSpec};
use crate::files::Files;

/// Which way rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Rows come from there.
    Source,
    /// Rows go there.
    Sink,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Sink => "sink",
        })
    }
}

/// A connector: what stands before the colon of an address.
#[derive(Debug)]
pub struct ConnectorDescription {
    /// The name.
    pub name: &'static str,
    /// What it connects with, in a sentence.
    pub summary: &'static str,
    /// What stands behind the colon.
    pub address: &'static str,
    /// What it is as a source, if it is one.
    pub source: Option<DirectionDescription>,
    /// What it is as a sink, if it is one.
    pub sink: Option<DirectionDescription>,
    /// Statements that use it.
    pub example: &'static str,
    /// How it is opened.
    pub open: Opening,
}

/// How a connector is opened, with options that have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// As a source.
    pub source: Option<OpenSource>,
    /// As a sink.
    pub sink: Option<OpenSink>,
    /// The columns it brings itself for this address, if it does ([`super::Connectors::declared_schema`]).
    pub columns: Option<OwnColumns>,
    /// What is looked at when it is declared.
    pub check: Check,
    /// Up to where the results of a query are final, of a sink that keeps account of that itself
    /// ([`super::Connectors::final_up_to`]).
    pub final_up_to: Option<AskFinal>,
    /// The one file that the result of a query replaces when the query ends, of a sink that may be such a file.
    pub replaced: Option<ReplacedFile>,
    /// What its messages have beside their payload, of a source that inputs of applications may read.
    pub messages: Option<Messages>,
    /// Whether addresses are paths of files and folders on this machine.
    pub address_is_path: bool,
    /// How an address is made for each row, of a sink that knows the query of each.
    pub by_row: Option<ByRow>,
}

/// How the addresses of rows are made.
#[derive(Clone, Copy, Debug)]
pub struct ByRow {
    /// Appends the value of a parameter that is a part of an address; an error says what keeps it from being one.
    pub value: fn(&str, &mut String) -> Result<(), &'static str>,
    /// Fails if the address of a row is none, or may not be reached.
    pub check: fn(&SinkSpec) -> Result<(), ConnectorError>,
}

/// What the messages of a source have beside their payload: the options that name columns of it.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// The key, as text.
    pub key: Option<&'static str>,
    /// When a message was sent.
    pub time: Option<&'static str>,
    /// Where a message stands, if it can be read there again.
    pub place: Option<MessagePlace>,
    /// Whether its senders wait until an event is safe ([`Source::confirm`]).
    pub is_confirmed: bool,
}

/// The options that name the columns which say where a message stands, both `Int64`.
#[derive(Clone, Copy, Debug)]
pub struct MessagePlace {
    /// The number of its partition.
    pub partition: &'static str,
    /// Its offset there; they ascend, maybe with gaps.
    pub offset: &'static str,
    /// Has the positions of a source ([`Source::position`]) go on in a partition at an offset, if they are not there
    /// yet.
    pub go_on: fn(positions: &mut Vec<Option<String>>, partition: i64, offset: i64),
}

impl Opening {
    /// Neither a source nor a sink; to be completed.
    pub const NONE: Self = Self {
        source: None,
        sink: None,
        columns: None,
        check: Check::NONE,
        final_up_to: None,
        replaced: None,
        messages: None,
        address_is_path: false,
        by_row: None,
    };
}

/// What a connector looks at in a declaration, beside names of options and formats, before anything is opened: nothing
/// outside of the statement.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Of a source, with all its columns.
    pub source: Option<CheckSource>,
    /// Of a sink, whose columns may not be known yet: the schema is empty then.
    pub sink: Option<CheckSink>,
}

impl Check {
    /// Nothing more.
    pub const NONE: Self = Self { source: None, sink: None };
}

/// The columns of an address, which may be one of these files; an error where it would bring them and cannot be read.
pub type OwnColumns = fn(address: &str, files: &Files) -> Result<Option<Schema>, ConnectorError>;

/// Fails if it can be seen already that a source cannot be opened as it is declared.
pub type CheckSource = fn(&SourceSpec, &Options) -> Result<(), ConnectorError>;

/// The same of a sink.
pub type CheckSink = fn(&SinkSpec, &Options) -> Result<(), ConnectorError>;

/// Opens the partitions of a source, about as many as are wanted.
pub type OpenSource = fn(&SourceSpec, &Options, usize) -> Result<Vec<Box<dyn Source>>, ConnectorError>;

/// Opens one of so many instances of a sink.
pub type OpenSink = fn(&SinkSpec, &Options, Instance) -> Result<Box<dyn Sink>, ConnectorError>;

/// Asks a sink up to where results are final.
pub type AskFinal = fn(&SinkSpec, &Options) -> Result<FinalUpTo, ConnectorError>;

/// The file that a result replaces.
pub type ReplacedFile = fn(&SinkSpec, &Options) -> Option<PathBuf>;

/// Which of the parallel instances of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// From 0.
    pub number: usize,
    /// How many there are.
    pub of: usize,
}

impl ConnectorDescription {
    /// The connector in one direction, if it goes that way.
    pub fn direction(&self, direction: Direction) -> Option<&DirectionDescription> {
        match direction {
            Direction::Source => self.source.as_ref(),
            Direction::Sink => self.sink.as_ref(),
        }
    }
}

/// One direction of a connector.
#[derive(Debug)]
pub struct DirectionDescription {
    /// How it behaves: partitions, back-pressure, what becomes final when.
    pub help: &'static str,
    /// The formats it takes, the default one first; none if rows are not written at all.
    pub formats: &'static [&'static str],
    /// What holds of rows after a crash of a server that makes checkpoints, case by case: in which case, empty for all
    /// others, and what then. Nothing where nothing is read or written.
    pub guarantees: &'static [(&'static str, Guarantee)],
    /// Its options.
    pub options: &'static [OptionDescription],
}

/// How often a row counts, or is there for a receiver, after a crash; the stronger ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    /// Once.
    ExactlyOnce,
    /// At least once, with a key that tells which are the same.
    OncePerKey,
    /// Those since the last checkpoint come again.
    AtLeastOnce,
    /// Those since the last checkpoint are lost.
    AtMostOnce,
    /// Some may be lost, and some may come again.
    None,
}

impl Guarantee {
    /// All of them, the stronger ones first.
    pub const ALL: [Self; 5] = [Self::ExactlyOnce, Self::OncePerKey, Self::AtLeastOnce, Self::AtMostOnce, Self::None];

    /// What holds from a source to a sink.
    #[must_use]
    pub fn through(self, sink: Self) -> Self {
        // What is not read again is not written again either.
        self.max(sink)
    }

    /// What it means, in a sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "what came of each row is there once",
            Self::OncePerKey => {
                "what was sent since the last checkpoint may come again, with the `Idempotency-Key` that it had"
            }
            Self::AtLeastOnce => "what was written since the last checkpoint may come again",
            Self::AtMostOnce => "what was read since the last checkpoint is lost, and nothing comes again",
            Self::None => "what was written since the last checkpoint may come again, and some of it may be lost",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ExactlyOnce => "exactly once",
            Self::OncePerKey => "once by key",
            Self::AtLeastOnce => "at least once",
            Self::AtMostOnce => "at most once",
            Self::None => "none",
        })
    }
}

/// An option of a connector.
#[derive(Clone, Copy, Debug)]
pub struct OptionDescription {
    /// The name; one that ends in `.*` stands for all names with that beginning.
    pub name: &'static str,
    /// What its values are.
    pub kind: OptionKind,
    /// What holds without it; `None` if nothing does.
    pub default: Option<&'static str>,
    /// What it does, in a sentence or two.
    pub help: &'static str,
}

/// What values an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// `true` or `false`.
    Boolean,
    /// A whole number within these bounds.
    Integer {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// A time span above zero, as `500 ms` or `1 minute`.
    Duration,
    /// A number of bytes above zero, as `64 MiB`.
    Bytes,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Names with commas between.
    Names,
    /// Anything.
    Text,
    /// Text that is not shown to anybody.
    Secret,
    /// The address of a broker, whose password is not shown.
    Broker,
    /// The path of a file that is read.
    File,
    /// Of an option that stands for several names: those that may stand for the `*`, and what their values are. Others
    /// are refused.
    Among(&'static [(&'static str, OptionKind)]),
}

impl OptionKind {
    /// What the values of the name `rest` are, which stands for the `*` of the option if it has one; `None` if it may
    /// not.
    pub(crate) fn of(self, rest: Option<&str>) -> Option<Self> {
        match (self, rest) {
            (Self::Among(names), Some(rest)) => names.iter().find(|(name, _)| *name == rest).map(|(_, kind)| *kind),
            _ => Some(self),
        }
    }
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("true or false"),
            Self::Integer { min, max: i64::MAX } => write!(f, "a whole number from {min}"),
            Self::Integer { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Duration => f.write_str("a time span, as '500 ms' or '1 minute'"),
            Self::Bytes => f.write_str("a number of bytes, as '64 MiB'"),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::Names => f.write_str("names with commas between"),
            Self::Text => f.write_str("text"),
            Self::Secret => f.write_str("text that is not shown"),
            Self::Broker => f.write_str("an address whose password is not shown"),
            Self::File => f.write_str("the path of a file"),
            Self::Among(_) => f.write_str("by name"),
        }
    }
}
