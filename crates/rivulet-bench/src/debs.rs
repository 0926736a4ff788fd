//! The DEBS 2012 challenge: how long valves of manufacturing equipment take to answer their sensors, with an alarm
//! where one takes longer than before; and the mean power of a minute.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::path::Path;

/// Readings of the challenge: time, and electrical power of the main phases 1 to 3.
pub const SAMPLE: &str = include_str!("../debs/sample.csv");

/// The job, as views over the source `readings`. The last one is `monitored`.
pub const MONITOR: &str = include_str!("../debs/monitor.sql");

/// How far apart readings are, milliseconds.
const READING_MS: u64 = 10;
/// Readings of the 24 hours that an answer is compared with.
const DAY: u64 = 24 * 3_600 * 1_000 / READING_MS;

/// A sensor and the valve that answers it. Times are in readings.
pub(crate) struct Pair {
    name: &'static str,
    /// How far apart the changes of the sensor are.
    period: u64,
    /// After how long the valve answers change number k of the sensor; less than the period.
    delay: fn(u64) -> u64,
}

/// The schedule by which sensors and valves change.
pub(crate) static PAIRS: [Pair; 3] = [
    Pair { name: "A", period: 500, delay: |_| 20 },
    Pair { name: "B", period: 700, delay: |k| 30 + (k % 10_000 + 500) / 1_000 },
    Pair { name: "C", period: 1_100, delay: |k| if k < 50 { 50 } else { 52 } },
];

impl Pair {
    /// Whether the sensor is on at a reading, or the valve.
    pub(crate) fn is_on(&self, is_valve: bool, reading: u64) -> bool {
        let (changes, since) = (reading / self.period, reading % self.period);
        let waits = is_valve && changes > 0 && since < (self.delay)(changes - 1);
        (changes - u64::from(waits)) % 2 == 1
    }
}

/// Jobs that run side by side, each over so many readings. `sink` says as SQL where the answers go, with `{job}` in the
/// place of the number of the job, from 1 on.
pub fn script(jobs: usize, readings: u64, sink: &str) -> String {
    let options = format!("events => {readings}, event_rate => 100, base_time => '1970-01-01', partitions => 1");
    let mut script = format!("CREATE SOURCE readings FROM 'debs:' WITH ({options});\n{MONITOR}");
    for job in 1..=jobs {
        let sink = sink.replace("{job}", &job.to_string());
        script.push_str(&format!("CREATE SINK answers_{job} TO {sink};\n"));
        script.push_str(&format!("CREATE QUERY job_{job} AS SELECT * FROM monitored INTO answers_{job};\n"));
    }
    script
}

/// What a job must give over so many readings, sorted: the pair, when the sensor changed and after how long its valve
/// did, both in milliseconds, and whether that is an alarm.
pub fn expected(readings: u64) -> Vec<String> {
    let mut answers = Vec::new();
    for pair in &PAIRS {
        // The delays of the last day of which each is shorter than all later ones: the first is the shortest.
        let mut shortest: VecDeque<(u64, u64)> = VecDeque::new();
        for k in 0.. {
            let (sensor, delay) = ((k + 1) * pair.period, (pair.delay)(k));
            let valve = sensor + delay;
            if valve >= readings {
                break;
            }
            while shortest.back().is_some_and(|&(_, other)| other >= delay) {
                shortest.pop_back();
            }
            shortest.push_back((valve, delay));
            while shortest.front().is_some_and(|&(at, _)| at + DAY < valve) {
                shortest.pop_front();
            }
            let is_alarm = 100 * delay > 101 * shortest[0].1;
            answers.push(format!("{},{},{},{is_alarm}", pair.name, sensor * READING_MS, delay * READING_MS));
        }
    }
    answers.sort_unstable();
    answers
}

/// The same of what it gave, as CSV.
pub fn answers(texts: &str) -> Vec<String> {
    let answer = |line: &str| line.splitn(5, ',').take(4).collect::<Vec<_>>().join(",");
    let mut answers: Vec<String> = texts.lines().map(answer).collect();
    answers.sort_unstable();
    answers
}

/// The script that reads [`SAMPLE`] from `sample.csv` in a folder, and writes mean powers to `averages.csv` there.
pub fn averages(folder: &Path) -> String {
    include_str!("../debs/averages.sql").replace("{folder}", &folder.display().to_string().replace('\'', "''"))
}

/// Whether these are the mean powers that must come out.
pub fn is_golden(averages: &str) -> bool {
    let numbers = |line: &str| line.split(',').map_while(|cell| cell.parse().ok()).collect::<Vec<f64>>();
    let golden = include_str!("../debs/golden_avg.csv").lines().skip(1).map(numbers);
    let mut rows: Vec<Vec<f64>> = averages.lines().map(numbers).collect();
    rows.sort_unstable_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    // Counts and sums are whole, so this is exact for them; means were rounded to six digits.
    let is_close = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-6;
    let is_equal = |one: &[f64], other: &[f64]| one.len() == other.len() && one.iter().zip(other).all(is_close);
    rows.len() == golden.clone().count() && rows.iter().zip(golden).all(|(row, right)| is_equal(row, &right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_begin_and_end_where_they_must() {
        let has = |expected: &[String], answer: &str| expected.iter().any(|one| one == answer);
        let short = expected(100_000);
        // The changes up to the last one that is answered.
        assert_eq!(short.len(), 199 + 142 + 90);
        assert_eq!(short.iter().filter(|one| one.ends_with("true")).count(), 40);
        assert!(has(&short, "C,550000,500,false") && has(&short, "C,561000,520,true"));
        let long = expected(9_000_000);
        assert!(has(&long, "B,3500000,300,false") && has(&long, "B,3507000,310,true"));
        // The last answer of 500 ms is a day old.
        assert!(has(&long, "C,86944000,520,true") && has(&long, "C,86955000,520,false"));
        assert!(!long.iter().any(|one| one.starts_with('A') && one.ends_with("true")));
    }

    #[test]
    fn answers_are_compared_without_their_line_and_in_any_order() {
        let texts = "B,7000,300,false,,,1\nA,5000,200,false,,,1\n";
        assert_eq!(answers(texts), ["A,5000,200,false", "B,7000,300,false"]);
        assert_eq!(expected(731), ["A,5000,200,false", "B,7000,300,false"]);
        assert_eq!(expected(730), ["A,5000,200,false"]);
    }

    #[test]
    fn golden_means_are_golden_and_others_are_not() {
        let golden = include_str!("../debs/golden_avg.csv").split_once('\n').unwrap().1;
        let turned: String = golden.lines().rev().map(|line| format!("{line}\n")).collect();
        assert!(is_golden(golden) && is_golden(&turned));
        for other in [golden.replacen("52210", "52211", 1), golden.replacen(",4,", ",", 1), format!("{golden}1,2\n")] {
            assert!(!is_golden(&other));
        }
    }

    #[test]
    fn scripts_have_their_jobs_and_no_placeholder_left() {
        let script = script(2, 7, "'file:/tmp/{job}.csv' FORMAT CSV");
        assert!(script.contains("'file:/tmp/2.csv'") && script.contains("job_2 AS") && !script.contains("job_3"));
        assert!(!script.contains('{') && !averages(Path::new("/tmp/it's")).contains('{'));
    }
}
