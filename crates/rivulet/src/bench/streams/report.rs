//! What queries took, for people and machines.

use rivulet_bench::Circumstances;
use serde_json::{Value, json};

use super::job::{Outcome, Settings};

/// The outcomes of one command.
#[derive(Clone, Debug)]
pub struct StreamsReport {
    /// Where and when.
    pub circumstances: Circumstances,
    /// How the queries were run.
    pub settings: Settings,
    /// Where the events came from, and how many there were.
    pub input: String,
    /// Each query with what it took, or why it came to no end.
    pub queries: Vec<(String, Result<Outcome, String>)>,
}

impl Outcome {
    /// Events a second, by the clock.
    pub fn events_per_s(&self) -> f64 {
        self.events as f64 / self.elapsed_s.max(1e-9)
    }

    /// Events a second of processor time: what one core carries.
    pub fn events_per_s_per_core(&self) -> f64 {
        self.events as f64 / self.cpu_s.max(1e-4)
    }

    fn to_json(&self) -> Value {
        let refused: serde_json::Map<_, _> =
            self.refused.iter().map(|(reason, rows)| (reason.clone(), json!(rows))).collect();
        let mut value = json!({
            "events": self.events,
            "elapsed_s": self.elapsed_s,
            "cpu_s": self.cpu_s,
            "events_per_s": self.events_per_s().round(),
            "events_per_s_per_core": self.events_per_s_per_core().round(),
            "results": self.results,
            "refused": refused,
            "rss_peak_bytes": self.rss_peak_bytes,
        });
        if let Some([p50, _, p99, max]) = self.latency_us {
            value["latency_us_p50"] = json!(p50);
            value["latency_us_p99"] = json!(p99);
            value["latency_us_max"] = json!(max);
        }
        value
    }
}

impl StreamsReport {
    /// How many queries came to no end.
    pub fn failed(&self) -> usize {
        self.queries.iter().filter(|(_, outcome)| outcome.is_err()).count()
    }

    /// As an object.
    pub fn to_json(&self) -> Value {
        let queries = self.queries.iter().map(|(name, outcome)| {
            let mut value = match outcome {
                Ok(outcome) => outcome.to_json(),
                Err(reason) => json!({ "failure": reason }),
            };
            value["query"] = json!(name);
            value
        });
        json!({
            "circumstances": self.circumstances,
            "parallelism": self.settings.parallelism,
            "policy": self.settings.policy,
            "consume": self.settings.consume,
            "input": self.input,
            "queries": queries.collect::<Vec<_>>(),
        })
    }

    /// Why queries failed, a line for each.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.queries.iter().filter_map(|(name, outcome)| {
            let reason = outcome.as_ref().err()?.trim_start_matches("error: ");
            Some(format!("{name}: {}", reason.split_whitespace().collect::<Vec<_>>().join(" ")))
        })
    }

    /// The rows of a table: query, events, seconds, processor seconds, events a second, the same for each core,
    /// results, refused rows, memory, and latencies if the rows had a rate.
    pub fn rows(&self) -> impl Iterator<Item = [String; 10]> {
        self.queries.iter().map(|(name, outcome)| {
            let mut row: [String; 10] = std::array::from_fn(|_| String::new());
            row[0].clone_from(name);
            match outcome {
                Err(_) => row[1] = "failed".to_owned(),
                Ok(outcome) => {
                    row[1] = grouped(outcome.events);
                    row[2] = format!("{:.2}", outcome.elapsed_s);
                    row[3] = format!("{:.2}", outcome.cpu_s);
                    row[4] = grouped(outcome.events_per_s() as u64);
                    row[5] = grouped(outcome.events_per_s_per_core() as u64);
                    row[6] = grouped(outcome.results);
                    row[7] = grouped(outcome.refused.iter().map(|(_, rows)| rows).sum());
                    row[8] = format!("{}", outcome.rss_peak_bytes >> 20);
                    row[9] = outcome.latency_us.map_or_else(String::new, |[p50, _, p99, _]| {
                        format!("{:.1} / {:.1}", p50 as f64 / 1_000.0, p99 as f64 / 1_000.0)
                    });
                }
            }
            row
        })
    }
}

/// A number with commas between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_one_core_carries_and_what_failed() {
        let outcome = Outcome {
            events: 1_000_000,
            results: 7,
            refused: vec![("late".into(), 3)],
            elapsed_s: 0.5,
            cpu_s: 0.8,
            rss_peak_bytes: 64 << 20,
            latency_us: Some([1_500, 10_000, 20_000, 30_000]),
            ..Outcome::default()
        };
        let report = StreamsReport {
            circumstances: Circumstances::default(),
            settings: Settings { parallelism: 2, policy: "group".into(), consume: "all".into() },
            input: "generator".into(),
            queries: vec![("q1".into(), Ok(outcome)), ("q2".into(), Err("no such column\nhint: look".into()))],
        };
        let json = report.to_json();
        assert_eq!(
            (&json["queries"][0]["events_per_s"], &json["queries"][0]["events_per_s_per_core"]),
            (&json!(2e6), &json!(1.25e6))
        );
        assert_eq!(
            (&json["queries"][0]["refused"]["late"], &json["queries"][0]["latency_us_p99"]),
            (&json!(3), &json!(20_000))
        );
        assert_eq!(json["queries"][1]["failure"], "no such column\nhint: look");
        let rows: Vec<_> = report.rows().collect();
        assert_eq!(
            rows[0],
            ["q1", "1,000,000", "0.50", "0.80", "2,000,000", "1,250,000", "7", "3", "64", "1.5 / 20.0"]
        );
        assert_eq!((rows[1][0].as_str(), rows[1][1].as_str(), report.failed()), ("q2", "failed", 1));
        assert_eq!(report.failures().collect::<Vec<_>>(), ["q2: no such column hint: look"]);
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1_000, 12_345_678].map(grouped), ["0", "999", "1,000", "12,345,678"]);
    }
}
