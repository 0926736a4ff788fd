//! Where and when something was measured.

use std::fs;

use serde::Serialize;

/// What a figure means nothing without.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Circumstances {
    /// When it began, in UTC: `2026-11-21 08:30:00`.
    pub began: String,
    /// Version of Rivulet.
    pub version: String,
    /// The command line.
    pub command: String,
    /// Cores that may be used.
    pub cores: usize,
    /// The processor's name; empty where the system does not tell.
    pub processor: String,
    /// The kernel's version; empty where the system does not tell.
    pub kernel: String,
}

impl Circumstances {
    /// Those of this process, now.
    pub fn now() -> Self {
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let began = arrow::array::TimestampSecondArray::from(vec![since.as_secs() as i64]);
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Self {
            began: arrow::util::display::array_value_to_string(&began, 0).unwrap_or_default().replace('T', " "),
            version: env!("CARGO_PKG_VERSION").into(),
            command: format!("rivulet {}", arguments.join(" ")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
            kernel: kernel.trim().to_owned(),
        }
    }
}
