//! RIoTBench's ETL, STATS and PRED as EdgeWise ran them: how many events a second they carry at EdgeWise's latencies,
//! fused, and operator by operator under one policy after the other.
//!
//! What must hold: nothing is measured of a topology whose results are not golden.
//!
//! - this file: the topologies and their scripts; [`golden`]: what must come out;
//! - [`curves`]: what is run in which order; [`report`], [`page`]: what came of it.

mod curves;
mod golden;
mod measured;
mod page;
mod report;
mod trace;

use std::io;
use std::path::Path;

pub use curves::{RiotOptions, Run, run_riot};
pub use golden::check;
pub use measured::{Measured, Task};
pub use page::html;
pub use report::{Curve, Point, RiotReport};

/// A topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Readings are cleaned, completed and annotated.
    Etl,
    /// Statistics of readings are kept.
    Stats,
    /// Readings are classified and predicted.
    Pred,
}

/// How events come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// How many there are.
    pub events: u64,
    /// How many there are a second; 0 for as fast as they are taken.
    pub rate: u32,
    /// How far apart they come in bursts; 0 if each comes at its own time.
    pub burst_ms: u64,
}

/// How operators are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Its name.
    pub name: &'static str,
    /// Whether operators are fused: `auto` or `none`.
    pub fuse: &'static str,
    /// Which task a worker runs next.
    pub policy: &'static str,
}

/// Fused, and operator by operator under each policy.
pub const FORMS: [Form; 6] = [
    Form { name: "fused", fuse: "auto", policy: "group" },
    Form { name: "congestion", fuse: "none", policy: "congestion" },
    Form { name: "random", fuse: "none", policy: "random" },
    Form { name: "least-latency", fuse: "none", policy: "least-latency" },
    Form { name: "least-memory", fuse: "none", policy: "least-memory" },
    Form { name: "thread-each", fuse: "none", policy: "thread-each" },
];

impl Topology {
    /// All topologies.
    pub const ALL: [Self; 3] = [Self::Etl, Self::Stats, Self::Pred];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etl => "etl",
            Self::Stats => "stats",
            Self::Pred => "pred",
        }
    }

    /// The 99th percentile of latencies that is borne, milliseconds.
    pub fn bound_ms(self) -> u64 {
        match self {
            Self::Etl => 50,
            Self::Stats | Self::Pred => 100,
        }
    }

    /// Rates of the paper: its lowest, one between, its highest.
    pub fn paper_rates(self) -> [u32; 3] {
        match self {
            Self::Etl => [600, 1_000, 1_500],
            Self::Stats => [60, 200, 500],
            Self::Pred => [200, 1_000, 2_200],
        }
    }

    /// Over how many passes of the trace the golden results are.
    pub fn golden_passes(self) -> u64 {
        match self {
            Self::Etl => 1,
            Self::Stats | Self::Pred => 20,
        }
    }

    /// The whole script, with the files of [`write_files`] in `folder`. `sink` is where results go, as SQL.
    pub fn script(self, replay: Replay, fuse: &str, folder: &Path, sink: &str) -> String {
        let Replay { events, rate, burst_ms } = replay;
        let burst = if burst_ms > 0 { format!(", burst => '{burst_ms} ms'") } else { String::new() };
        let options = format!("events => {events}, rate => {rate}, event_rate => 1000, partitions => 1{burst}");
        // Not said where it is the default, so that it is the query of a user who has never heard of it.
        let with = if fuse == "auto" { String::new() } else { format!("\nWITH (fuse => '{fuse}')") };
        let text = match self {
            Self::Etl => include_str!("../../riot/etl.sql"),
            Self::Stats => include_str!("../../riot/stats.sql"),
            Self::Pred => include_str!("../../riot/pred.sql"),
        };
        let folder = folder.display().to_string().replace('\'', "''");
        let text = text.replace("{options}", &options).replace("{folder}", &folder).replace("{with}", &with);
        format!("CREATE SINK results TO {sink};\n{text}")
    }
}

/// Writes the files that scripts read.
///
/// # Errors
/// A file cannot be written.
pub fn write_files(folder: &Path) -> io::Result<()> {
    let sensors = include_str!("../../riot/city-metadata.txt").replace(':', ",");
    std::fs::write(folder.join("sensors.csv"), sensors)?;
    std::fs::write(folder.join("air_class.json"), include_str!("../../riot/air_class.json"))?;
    std::fs::write(folder.join("air_quality.json"), include_str!("../../riot/air_quality.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_no_placeholder_left() {
        for topology in Topology::ALL {
            for fuse in ["auto", "none"] {
                let replay = Replay { events: 7, rate: 1_000, burst_ms: 100 };
                let script = topology.script(replay, fuse, Path::new("/tmp/it's"), "'blackhole:'");
                for placeholder in ["{options}", "{folder}", "{with}"] {
                    assert!(!script.contains(placeholder), "{script}");
                }
                assert!(script.contains("events => 7, rate => 1000") && script.contains("burst => '100 ms'"));
                assert_eq!(script.contains("fuse"), fuse == "none");
            }
        }
    }
}
