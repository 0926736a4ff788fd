//! The memory of the process: how much is in use, and how much more may be taken.
//!
//! The measure is the resident set, because machines and containers limit that. It is read when it matters, once for
//! each batch of new queries; that takes some microseconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Config;
use crate::service::{ErrorKind, ServiceError};

/// The assumed memory of a new query besides its parameters: its share of all tables, with room for them to grow, and a
/// little state.
const QUERY_BYTES: u64 = 512;

/// The part of the bound, in percent, from which on memory is short: silent queries are spilled sooner.
const PRESSED_PERCENT: u64 = 80;

/// The configured bound. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct MemoryBound {
    /// `u64::MAX` if there is none.
    bytes_max: Arc<AtomicU64>,
    spills: bool,
}

impl MemoryBound {
    pub(super) fn new(config: &Config) -> Self {
        Self::of(config.memory_bytes_max, config.spill_after.is_some())
    }

    fn of(bytes_max: Option<u64>, spills: bool) -> Self {
        Self { bytes_max: Arc::new(AtomicU64::new(bytes_max.unwrap_or(u64::MAX))), spills }
    }

    /// The bound, in bytes.
    pub(super) fn bytes_max(&self) -> Option<u64> {
        Some(self.bytes_max.load(Ordering::Relaxed)).filter(|&bytes_max| bytes_max < u64::MAX)
    }

    /// Changes the bound.
    pub(super) fn set_bytes_max(&self, bytes_max: Option<u64>) {
        self.bytes_max.store(bytes_max.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether memory is short.
    pub(super) fn is_pressed(&self) -> bool {
        let resident = || memory_rss_bytes().unwrap_or(0);
        self.bytes_max().is_some_and(|bytes_max| resident() >= bytes_max / 100 * PRESSED_PERCENT)
    }

    /// The bound, if more memory than that is in use.
    pub(super) fn exceeded(&self) -> Option<u64> {
        self.bytes_max().filter(|&bytes_max| memory_rss_bytes().is_some_and(|resident| resident > bytes_max))
    }

    /// How much more memory may be used, in bytes, if there is a bound.
    pub(super) fn left(&self) -> Option<u64> {
        let resident = || memory_rss_bytes().unwrap_or(0);
        self.bytes_max().map(|bytes_max| bytes_max.saturating_sub(resident()))
    }

    /// Refuses `queries` more queries with `parameter_bytes` of parameters if they would not fit.
    pub(super) fn admit(&self, queries: usize, parameter_bytes: usize) -> Result<(), ServiceError> {
        let Some(bytes_max) = self.bytes_max() else { return Ok(()) };
        // If the system does not give this figure, no bound can be kept.
        let Some(resident) = memory_rss_bytes() else { return Ok(()) };
        self.check(bytes_max, resident, queries as u64 * QUERY_BYTES + parameter_bytes as u64)
    }

    fn check(&self, bytes_max: u64, resident: u64, needed: u64) -> Result<(), ServiceError> {
        if resident + needed <= bytes_max {
            return Ok(());
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let message = format!(
            "no memory for further queries or longer values: {} of {} MiB are in use, and {} MiB would be needed",
            mib(resident),
            mib(bytes_max),
            mib(needed)
        );
        let hint = match self.spills {
            true => "raise memory.bytes_max, lower memory.spill_after_s, or drop queries",
            false => "raise memory.bytes_max, have silent queries wait on disk (memory.spill_after_s), or drop queries",
        };
        Err(ServiceError::new(ErrorKind::LimitReached, message).with_hint(hint))
    }
}

/// Resident memory of this process, from the kernel.
pub(super) fn memory_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_refused_once_they_would_not_fit() {
        let bound = MemoryBound::of(Some(100 << 20), false);
        let check = |resident_mib: u64, needed_mib: u64| bound.check(100 << 20, resident_mib << 20, needed_mib << 20);
        assert!(check(90, 10).is_ok());
        let error = check(90, 11).unwrap_err();
        assert_eq!(error.kind, ErrorKind::LimitReached);
        assert!(error.message.contains("90 of 100 MiB are in use, and 11 MiB would be needed"), "{error}");
        assert!(error.hint.unwrap().contains("memory.spill_after_s"));
        assert!(MemoryBound::of(None, false).admit(1 << 40, 0).is_ok());
        assert!(MemoryBound::of(Some(1), false).admit(1, 0).is_err());
        assert!(MemoryBound::of(Some(1), false).is_pressed());
        bound.set_bytes_max(None);
        assert!(bound.bytes_max().is_none() && bound.admit(1 << 40, 0).is_ok());
        assert!(memory_rss_bytes().unwrap() > 1 << 20);
    }
}
