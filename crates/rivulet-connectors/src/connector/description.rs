//! The descriptions of connectors. Checks, errors and the reference are made from these alone.

use std::fmt;
use std::path::PathBuf;

use arrow::datatypes::Schema;
use rivulet_dataflow::{Sink, Source};

use super::error::ConnectorError;
use super::option::{Direction, OptionDescription};
use super::options::Options;
use super::spec::{FinalUpTo, SinkSpec, SourceSpec};
use crate::files::Files;

/// A connector, named by the part of an address before the colon.
#[derive(Debug)]
pub struct ConnectorDescription {
    /// The name.
    pub name: &'static str,
    /// What it connects to, in a sentence.
    pub summary: &'static str,
    /// The form of the part of an address behind the colon.
    pub address: &'static str,
    /// Its description as a source, if it is one.
    pub source: Option<DirectionDescription>,
    /// Its description as a sink, if it is one.
    pub sink: Option<DirectionDescription>,
    /// Statements that use it.
    pub example: &'static str,
    /// How it is opened.
    pub open: Opening,
}

/// How a connector is opened, with checked options.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// As a source.
    pub source: Option<OpenSource>,
    /// As a sink.
    pub sink: Option<OpenSink>,
    /// The columns that it brings itself for an address, if any ([`super::Connectors::declared_schema`]).
    pub columns: Option<OwnColumns>,
    /// What is checked when it is declared.
    pub check: Check,
    /// The checkpoint up to which the results of a query are final, for a sink that keeps account of that itself
    /// ([`super::Connectors::final_up_to`]).
    pub final_up_to: Option<AskFinal>,
    /// The one file that the result of a query replaces when the query ends, for a sink that may be such a file.
    pub replaced: Option<ReplacedFile>,
    /// What its messages have beside their payload, for a source that inputs of applications may read.
    pub messages: Option<Messages>,
    /// Whether addresses are paths of files and folders on this machine.
    pub address_is_path: bool,
    /// The options that bind an open source to its process. Without them its partitions may go on in another process,
    /// each from its position. `None` if the source is bound in any case.
    pub bound_by: Option<&'static [&'static str]>,
    /// How an address is made for each row, for a sink that knows the query of each row.
    pub by_row: Option<ByRow>,
}

/// How the addresses of rows are made.
#[derive(Clone, Copy, Debug)]
pub struct ByRow {
    /// Appends the value of a parameter that is a part of an address; the error says why it cannot be one.
    pub value: fn(&str, &mut String) -> Result<(), &'static str>,
    /// Fails if the address of a row is invalid, or may not be reached.
    pub check: fn(&SinkSpec) -> Result<(), ConnectorError>,
    /// The number of rows in what the sink has prepared for a checkpoint; 0 if that is not understood.
    pub prepared_rows: fn(&str) -> usize,
    /// The most that waits for one receiver that takes nothing, in words, if rows beyond that are left out.
    pub waiting_max: Option<&'static str>,
}

/// What the messages of a source have beside their payload: the options that name columns for it.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// The key, as text.
    pub key: Option<&'static str>,
    /// When a message was sent.
    pub time: Option<&'static str>,
    /// The position of a message, if it can be read again there.
    pub place: Option<MessagePlace>,
    /// Whether its senders wait until an event is safe ([`Source::confirm`]).
    pub is_confirmed: bool,
    /// Whether it is promised to senders that an event is safe once it is confirmed, so that it has to be in the log on
    /// a server that has one.
    pub needs_log: bool,
}

/// The options that name the columns with the position of a message, both `Int64`.
#[derive(Clone, Copy, Debug)]
pub struct MessagePlace {
    /// The number of its partition.
    pub partition: &'static str,
    /// Its offset in the partition; offsets ascend, maybe with gaps.
    pub offset: &'static str,
    /// Makes the positions of a source ([`Source::position`]) go on in a partition at an offset, unless they are beyond
    /// it already.
    pub go_on: fn(positions: &mut Vec<Option<String>>, partition: i64, offset: i64),
}

impl Opening {
    /// Neither a source nor a sink; to be completed by struct update.
    pub const NONE: Self = Self {
        source: None,
        sink: None,
        columns: None,
        check: Check::NONE,
        final_up_to: None,
        replaced: None,
        messages: None,
        address_is_path: false,
        bound_by: None,
        by_row: None,
    };
}

/// What a connector checks in a declaration, beside the names of options and formats, before anything is opened. The
/// checks look at nothing outside of the statement.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The check of a source, with all its columns.
    pub source: Option<CheckSource>,
    /// The check of a sink. If its columns are not known yet, the schema is empty.
    pub sink: Option<CheckSink>,
}

impl Check {
    /// No further checks.
    pub const NONE: Self = Self { source: None, sink: None };
}

/// The columns of an address, which may be one of these files; an error if the address should have columns and they
/// cannot be read.
pub type OwnColumns = fn(address: &str, files: &Files) -> Result<Option<Schema>, ConnectorError>;

/// Fails if it is known already that a source cannot be opened as it is declared.
pub type CheckSource = fn(&SourceSpec, &Options) -> Result<(), ConnectorError>;

/// The same for a sink.
pub type CheckSink = fn(&SinkSpec, &Options) -> Result<(), ConnectorError>;

/// Opens the partitions of a source, about as many as requested.
pub type OpenSource = fn(&SourceSpec, &Options, usize) -> Result<Vec<Box<dyn Source>>, ConnectorError>;

/// Opens one of the parallel instances of a sink.
pub type OpenSink = fn(&SinkSpec, &Options, Instance) -> Result<Box<dyn Sink>, ConnectorError>;

/// Asks a sink up to which checkpoint results are final.
pub type AskFinal = fn(&SinkSpec, &Options) -> Result<FinalUpTo, ConnectorError>;

/// The file that a result replaces.
pub type ReplacedFile = fn(&SinkSpec, &Options) -> Option<PathBuf>;

/// One of the parallel instances of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its number, from 0.
    pub number: usize,
    /// The number of instances.
    pub of: usize,
}

impl ConnectorDescription {
    /// The description of the connector in one direction, if it has that direction.
    pub fn direction(&self, direction: Direction) -> Option<&DirectionDescription> {
        match direction {
            Direction::Source => self.source.as_ref(),
            Direction::Sink => self.sink.as_ref(),
        }
    }

    /// Checks the options that were given in one direction.
    pub(crate) fn check_options(
        &self,
        direction: Direction,
        given: &[(String, String)],
    ) -> Result<Options, ConnectorError> {
        let described = self.direction(direction).map_or(&[][..], |one| one.options);
        Options::check(self.name, direction, described, given)
    }
}

/// One direction of a connector.
#[derive(Debug)]
pub struct DirectionDescription {
    /// Its behaviour: partitions, back-pressure, when rows become final.
    pub help: &'static str,
    /// The formats that it accepts, the default first; empty if rows are not written at all.
    pub formats: &'static [&'static str],
    /// The guarantee for rows after a crash of a server that makes checkpoints, case by case: the case (empty for all
    /// others) and its guarantee. Empty if nothing is read or written.
    pub guarantees: &'static [(&'static str, Guarantee)],
    /// Its options.
    pub options: &'static [OptionDescription],
}

/// How often a row counts, or how often a receiver has it, after a crash; the stronger guarantees first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    /// Once.
    ExactlyOnce,
    /// At least once, with a key by which duplicates are recognised.
    OncePerKey,
    /// Rows since the last checkpoint come again.
    AtLeastOnce,
    /// Rows since the last checkpoint are lost.
    AtMostOnce,
    /// Some may be lost, and some may come again.
    None,
}

impl Guarantee {
    /// All guarantees, the stronger ones first.
    pub const ALL: [Self; 5] = [Self::ExactlyOnce, Self::OncePerKey, Self::AtLeastOnce, Self::AtMostOnce, Self::None];

    /// The guarantee from a source with this one to a sink.
    #[must_use]
    pub fn through(self, sink: Self) -> Self {
        // A row that is not read again is not written again either.
        self.max(sink)
    }

    /// The meaning, in a sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "what came of each row is there once",
            Self::OncePerKey => {
                "what was sent since the last checkpoint may come again, with the `Idempotency-Key` that it had"
            }
            Self::AtLeastOnce => "what was written since the last checkpoint may come again",
            Self::AtMostOnce => {
                "what was read since the last checkpoint is lost, and nothing comes again but what waited for its \
                 receiver at that checkpoint"
            }
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
