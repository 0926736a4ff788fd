//! The queries of NEXMark, and the script of one of them.

use std::path::Path;

use super::corpus::{FileFormat, Stream};

/// A query of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Its name, such as `q5`.
    pub name: &'static str,
    /// The statements. The last one writes the results into the sink `results`.
    pub text: &'static str,
    /// The streams that it reads.
    pub streams: &'static [&'static str],
}

macro_rules! queries {
    ($prefix:literal: $($name:literal reads $($stream:literal)+;)+) => {
        [$(Query {
            name: $name,
            text: include_str!(concat!("../../nexmark/", $prefix, $name, ".sql")),
            streams: &[$($stream),+],
        }),+]
    };
}

/// All queries. `q5_sliding` is `q5` with windows of a minute every second.
pub static QUERIES: [Query; 25] = queries! {
    "":
    "q0" reads "bid";
    "q1" reads "bid";
    "q2" reads "bid";
    "q3" reads "auction" "person";
    "q4" reads "auction" "bid";
    "q5" reads "bid";
    "q5_sliding" reads "bid";
    "q6" reads "auction" "bid";
    "q7" reads "bid";
    "q8" reads "auction" "person";
    "q9" reads "auction" "bid";
    "q10" reads "bid";
    "q11" reads "bid";
    "q12" reads "bid";
    "q13" reads "bid";
    "q14" reads "bid";
    "q15" reads "bid";
    "q16" reads "bid";
    "q17" reads "bid";
    "q18" reads "bid";
    "q19" reads "bid";
    "q20" reads "auction" "bid";
    "q21" reads "bid";
    "q22" reads "bid";
    "q23" reads "auction" "bid" "person";
};

/// Those of the experiments with bursts. Their windows have `{window}` seconds and end every second; their results are
/// final.
pub static BURST_QUERIES: [Query; 6] = queries! {
    "burst_":
    "q1" reads "bid";
    "q4" reads "auction" "bid";
    "q5" reads "bid";
    "q6" reads "auction" "bid";
    "q7" reads "bid";
    "q8" reads "auction" "person";
};

/// The query of this name.
pub fn query(name: &str) -> Option<&'static Query> {
    QUERIES.iter().find(|query| query.name == name)
}

/// Where the streams come from.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Generated in the process.
    Generator(&'a Stream),
    /// Read from files in a folder, `bid.csv` and so on.
    Files(&'a Path, FileFormat),
}

/// Where the results go.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// To the caller: the last statement is a bare SELECT.
    Caller,
    /// To a sink: the text behind TO in its statement, such as `'blackhole:'`.
    Sink(&'a str),
}

const GENERATOR: &str = include_str!("../../nexmark/generator.sql");
const FILES: &str = include_str!("../../nexmark/files.sql");
const INSERT: &str = "INSERT INTO results\n";

impl Query {
    /// Returns the whole script. `side_input` is the file of the table in which q13 looks bids up; other queries do not
    /// use it.
    pub fn script(&self, input: Input<'_>, output: Output<'_>, side_input: &Path) -> String {
        let sources = match input {
            Input::Generator(stream) => GENERATOR.replace("{options}", &stream.options()),
            Input::Files(folder, format) => FILES
                .replace("{folder}", &quoted(folder))
                .replace("{ending}", format.ending())
                .replace("{format}", format.name()),
        };
        let text = self.text.replace("{side_input}", &quoted(side_input));
        match output {
            Output::Caller => format!("{sources}\n{}", text.replace(INSERT, "")),
            Output::Sink(sink) => format!("{sources}\nCREATE SINK results TO {sink};\n\n{text}"),
        }
    }

    /// The statements before the last one.
    pub fn views(&self) -> &'static str {
        self.text.split_once(INSERT).map_or("", |(views, _)| views)
    }

    /// The SELECT by itself.
    pub fn select(&self) -> &'static str {
        self.text.split_once(INSERT).map_or(self.text, |(_, select)| select).trim_end().trim_end_matches(';')
    }
}

/// A path in the form of a text in SQL.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace('\'', "''")
}

#[cfg(test)]
mod tests {
    use super::super::corpus::STREAMS;
    use super::*;

    #[test]
    fn every_query_says_what_it_reads_and_inserts_once() {
        for query in QUERIES.iter().chain(&BURST_QUERIES) {
            assert_eq!(query.text.matches(INSERT).count(), 1, "{}", query.name);
            for stream in STREAMS {
                let words = query.text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                // At these places the names of streams are no names of columns.
                let mut words = words.filter(|word| !word.is_empty()).peekable();
                let mut is_read = false;
                while let Some(word) = words.next() {
                    is_read |= ["FROM", "JOIN", "TABLE"].contains(&word) && words.peek() == Some(&stream);
                }
                assert_eq!(is_read, query.streams.contains(&stream), "{} and {stream}", query.name);
            }
        }
    }

    #[test]
    fn scripts_have_no_placeholder_left() {
        for query in &QUERIES {
            let side_input = Path::new("/tmp/it's.csv");
            let generated =
                query.script(Input::Generator(&Stream::default()), Output::Sink("'blackhole:'"), side_input);
            let read = query.script(Input::Files(Path::new("/data"), FileFormat::Json), Output::Caller, side_input);
            for script in [&generated, &read] {
                assert!(!script.contains('{'), "{script}");
            }
            assert!(generated.contains("CREATE SINK results TO 'blackhole:';"));
            assert!(!read.contains("results") && read.contains("'file:/data/bid.json'"));
        }
        assert!(
            query("q13")
                .unwrap()
                .script(Input::Files(Path::new("x"), FileFormat::Csv), Output::Caller, Path::new("it's"))
                .contains("it''s")
        );
    }
}
