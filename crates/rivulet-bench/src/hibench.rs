//! HiBench's streaming workloads over visits of web pages.

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Each record, unchanged.
    Identity,
    /// Each record, unchanged, distributed to the instances behind a single source.
    Repartition,
    /// The number of visits from each address so far.
    Wordcount,
    /// The number of visits from each address in tumbling windows.
    Fixwindow,
}

/// The settings of the generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visits {
    /// The number of records.
    pub events: u64,
    /// Records per second of event time.
    pub event_rate: u64,
    /// Records per second by the clock; 0 for as fast as they are taken.
    pub rate: u64,
    /// The number of different addresses of visitors.
    pub ips: u64,
}

impl Default for Visits {
    /// Ten million records of a hundred thousand addresses in a hundred seconds of event time.
    fn default() -> Self {
        Self { events: 10_000_000, event_rate: 100_000, rate: 0, ips: 100_000 }
    }
}

const GENERATOR: &str = include_str!("../hibench/generator.sql");

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 4] = [Self::Identity, Self::Repartition, Self::Wordcount, Self::Fixwindow];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Repartition => "repartition",
            Self::Wordcount => "wordcount",
            Self::Fixwindow => "fixwindow",
        }
    }

    /// Whether it has windows.
    pub fn has_window(self) -> bool {
        self == Self::Fixwindow
    }

    /// The whole script. `window_s` is the length of windows in seconds, if there are any.
    pub fn script(self, visits: &Visits, window_s: u32) -> String {
        let Visits { events, event_rate, rate, ips } = visits;
        let mut options = format!("events => {events}, event_rate => {event_rate}, rate => {rate}, ips => {ips}");
        if self == Self::Repartition {
            options.push_str(", partitions => 1");
        }
        let text = match self {
            Self::Identity | Self::Repartition => include_str!("../hibench/identity.sql"),
            Self::Wordcount => include_str!("../hibench/wordcount.sql"),
            Self::Fixwindow => include_str!("../hibench/fixwindow.sql"),
        };
        let sources = GENERATOR.replace("{options}", &options);
        let text = text.replace("{window_s}", &window_s.to_string());
        format!("{sources}\nCREATE SINK results TO 'blackhole:';\n\n{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_no_placeholder_left() {
        for workload in Workload::ALL {
            let script = workload.script(&Visits::default(), 30);
            assert!(!script.contains('{') && script.contains("INSERT INTO results"), "{script}");
            assert_eq!(script.contains("INTERVAL '30' SECOND"), workload.has_window());
        }
    }
}
