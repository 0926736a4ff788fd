//! Sources of big queries that need no external system: streams of benchmarks and of simulated sensors, at a rate or as
//! fast as they are taken.
//!
//! What must hold: an event is a pure function of the seed and its number, so that a stream is the same whatever its
//! partitions, its batches and the columns that are read.
//!
//! - [`nexmark`], [`hibench`], [`riot`], [`debs`], [`sensors`]: the streams, each a connector;
//! - [`options`]: the options of all of them; [`schedule`]: when event n happens; [`walk`]: which partition makes it;
//! - [`source`]: all of that as a source; [`random`], [`text`]: the content of columns.

mod hibench;
mod nexmark;
mod riot;
mod debs;
mod sensors;
mod options;
mod random;
mod schedule;
mod source;
mod text;
mod walk;

use rivulet_connectors::connector::ConnectorDescription;

/// The generators as connectors, for a process that adds them to its own connectors.
pub static CONNECTORS: [ConnectorDescription; 5] =
    [nexmark::CONNECTOR, hibench::CONNECTOR, riot::CONNECTOR, debs::CONNECTOR, sensors::CONNECTOR];
