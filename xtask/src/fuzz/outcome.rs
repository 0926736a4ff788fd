//! What libFuzzer says while it runs, and what is said of it.

use std::fmt::Write;
use std::path::PathBuf;

/// How a run of one target went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) target: String,
    pub(super) seconds: u64,
    pub(super) executions: u64,
    /// Branches of our own code that were taken.
    pub(super) edges: u64,
    /// Inputs of which each takes a way that no other does.
    pub(super) inputs: u64,
    /// The input that has ended it.
    pub(super) finding: Option<PathBuf>,
}

impl Outcome {
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// Takes in a line of libFuzzer's, such as
    /// `#4096 pulse  cov: 812 ft: 2203 corp: 101/5kb lim: 164 exec/s: 2048 rss: 80Mb`.
    pub(super) fn read(&mut self, line: &str) {
        if let Some((_, path)) = line.split_once("Test unit written to ") {
            // One that was only slow has failed nothing.
            if !path.contains("/slow-unit-") {
                self.finding = Some(PathBuf::from(path.trim()));
            }
            return;
        }
        let Some((executions, rest)) = line.strip_prefix('#').and_then(|line| line.split_once(char::is_whitespace))
        else {
            return;
        };
        let Ok(executions) = executions.parse() else { return };
        self.executions = executions;
        let mut words = rest.split_whitespace();
        while let Some(word) = words.next() {
            let mut number = || words.next()?.split('/').next()?.parse().ok();
            match word {
                "cov:" => self.edges = number().unwrap_or(self.edges),
                "corp:" => self.inputs = number().unwrap_or(self.inputs),
                _ => {}
            }
        }
    }

    /// Adds what happened in a further run of the same target.
    pub(super) fn add(&mut self, later: Self) {
        self.executions += later.executions;
        self.edges = self.edges.max(later.edges);
        self.inputs = self.inputs.max(later.inputs);
        self.finding = later.finding;
    }

    /// For programs, in one line.
    pub(super) fn to_json(&self) -> String {
        let Self { target, seconds, executions, edges, inputs, finding } = self;
        let finding = match finding {
            Some(path) => format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\"")),
            None => "null".to_owned(),
        };
        format!(
            "{{\"target\":\"{target}\",\"seconds\":{seconds},\"executions\":{executions},\"edges\":{edges},\"inputs\":{inputs},\"finding\":{finding}}}"
        )
    }
}

/// The runs of several targets, for people.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let width = outcomes.iter().map(|one| one.target.len()).max().unwrap_or(0).max("target".len());
    let mut table = format!(
        "{:width$}  {:>8}  {:>12}  {:>7}  {:>7}  finding\n",
        "target", "seconds", "executions", "edges", "inputs"
    );
    for Outcome { target, seconds, executions, edges, inputs, finding } in outcomes {
        let finding = finding.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string());
        let _ = writeln!(table, "{target:width$}  {seconds:>8}  {executions:>12}  {edges:>7}  {inputs:>7}  {finding}");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_is_read() {
        let mut outcome = Outcome { target: "csv".into(), seconds: 7, ..Outcome::default() };
        for line in [
            "INFO: Seed: 42",
            "#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 40Mb",
            "#4096\tpulse  cov: 812 ft: 2203 corp: 101/5kb lim: 164 exec/s: 2048 rss: 80Mb",
            "# no number",
            "artifact_prefix='a/'; Test unit written to a/slow-unit-1",
        ] {
            outcome.read(line);
        }
        assert_eq!((outcome.executions, outcome.edges, outcome.inputs), (4096, 812, 101));
        assert_eq!(outcome.finding, None);
        outcome.read("artifact_prefix='a/'; Test unit written to a/crash-\"1");
        assert_eq!(
            outcome.to_json(),
            r#"{"target":"csv","seconds":7,"executions":4096,"edges":812,"inputs":101,"finding":"a/crash-\"1"}"#
        );
        let table = table(&[outcome]);
        assert!(table.lines().nth(1).unwrap().starts_with("csv            7          4096"), "{table}");
    }
}
