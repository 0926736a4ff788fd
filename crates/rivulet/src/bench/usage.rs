//! What a server under measurement uses: CPU time by kind of thread, context switches and page faults as the kernel
//! counts them for everybody, and the processor's own counters where it has any.

use std::fs;
use std::ops::Sub;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// Clock ticks a second in /proc, the same on every Linux that Rust runs on.
const TICKS_PER_S: f64 = 100.0;

/// The kinds of threads, by what their names begin with; the kernel cuts names to 15 bytes.
const KINDS: [&str; 3] = ["rivulet-mqtt", "rivulet-worker", "rivulet-timer"];

/// What a process has used, or has used since another reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time of the whole process, in seconds.
    pub cpu_s: f64,
    /// Of the thread that receives, routes and sends.
    pub mqtt_cpu_s: f64,
    /// Of the workers.
    pub workers_cpu_s: f64,
    /// Of the thread that looks at timers.
    pub timer_cpu_s: f64,
    /// Context switches of the threads that live.
    pub context_switches: u64,
    /// Those of them that the kernel forced.
    pub involuntary_switches: u64,
    /// Page faults, those that waited for a disk included.
    pub page_faults: u64,
    /// Misses of the last cache, in user space; `None` where the kernel offers no counter.
    pub cache_misses: Option<u64>,
    /// Instructions, in user space; `None` where the kernel offers no counter.
    pub instructions: Option<u64>,
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        let counted = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            cpu_s: self.cpu_s - earlier.cpu_s,
            mqtt_cpu_s: self.mqtt_cpu_s - earlier.mqtt_cpu_s,
            workers_cpu_s: self.workers_cpu_s - earlier.workers_cpu_s,
            timer_cpu_s: self.timer_cpu_s - earlier.timer_cpu_s,
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
            page_faults: self.page_faults.saturating_sub(earlier.page_faults),
            cache_misses: counted(self.cache_misses, earlier.cache_misses),
            instructions: counted(self.instructions, earlier.instructions),
        }
    }
}

/// Reads what a process uses.
pub(super) struct Meter {
    process_id: u32,
    cache_misses: Option<Counter>,
    instructions: Option<Counter>,
}

impl Meter {
    /// Begins to count. To be made right after the process was started: the processor's counters cover its first thread
    /// and those that are started from then on.
    pub(super) fn new(process_id: u32) -> Self {
        let counter = |event: Hardware| {
            let mut counter = Builder::new(event).observe_pid(process_id as i32).inherit(true).build().ok()?;
            counter.enable().ok()?;
            Some(counter)
        };
        Self {
            process_id,
            cache_misses: counter(Hardware::CACHE_MISSES),
            instructions: counter(Hardware::INSTRUCTIONS),
        }
    }

    /// What was used so far.
    pub(super) fn read(&mut self) -> Usage {
        let process = format!("/proc/{}", self.process_id);
        let (cpu_s, page_faults) = times(&fs::read_to_string(format!("{process}/stat")).unwrap_or_default());
        let mut usage = Usage {
            cpu_s,
            page_faults,
            cache_misses: self.cache_misses.as_mut().and_then(|counter| counter.read().ok()),
            instructions: self.instructions.as_mut().and_then(|counter| counter.read().ok()),
            ..Usage::default()
        };
        let Ok(threads) = fs::read_dir(format!("{process}/task")) else { return usage };
        for thread in threads.flatten() {
            let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let name = read("comm");
            let of_kind = match KINDS.iter().position(|kind| name.starts_with(kind)) {
                Some(0) => Some(&mut usage.mqtt_cpu_s),
                Some(1) => Some(&mut usage.workers_cpu_s),
                Some(_) => Some(&mut usage.timer_cpu_s),
                None => None,
            };
            if let Some(cpu_s) = of_kind {
                *cpu_s += on_cpu_s(&read("schedstat"));
            }
            let status = read("status");
            let count = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
            };
            let involuntary = count("nonvoluntary_ctxt_switches:");
            usage.involuntary_switches += involuntary;
            usage.context_switches += involuntary + count("voluntary_ctxt_switches:");
        }
        usage
    }
}

/// CPU time in seconds from the `schedstat` of a thread, to the nanosecond: the ticks of `stat` are nothing where
/// thousands of threads have run for less than one each.
fn on_cpu_s(schedstat: &str) -> f64 {
    schedstat.split_ascii_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// CPU time in seconds and page faults, from the `stat` of a process.
fn times(stat: &str) -> (f64, u64) {
    // The name may hold anything; behind its last parenthesis the fields begin with the third.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    ((field(14) + field(15)) as f64 / TICKS_PER_S, field(10) + field(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 500 0 3 0 250 50 0 0 20 0 4 0 100 1000 10";
        assert_eq!(times(stat), (3.0, 503));
        assert_eq!(times(""), (0.0, 0));
        assert_eq!((on_cpu_s("2500000000 17 4\n"), on_cpu_s("")), (2.5, 0.0));
    }

    #[test]
    fn what_is_not_counted_is_not_zero() {
        let now = Usage { cpu_s: 2.0, context_switches: 9, cache_misses: Some(5), ..Usage::default() };
        let then = Usage { cpu_s: 0.5, context_switches: 4, cache_misses: Some(1), ..Usage::default() };
        let used = now - then;
        assert_eq!((used.cpu_s, used.context_switches, used.cache_misses), (1.5, 5, Some(4)));
        assert_eq!(used.instructions, None);
    }

    #[test]
    fn this_process_uses_something() {
        let mut meter = Meter::new(std::process::id());
        let usage = meter.read();
        assert!(usage.page_faults > 0 && usage.context_switches > 0);
    }
}
