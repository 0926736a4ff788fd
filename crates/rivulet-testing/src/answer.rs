//! Results in a form that can be compared: rows as text, without an order, with nine digits of floating-point numbers.
//!
//! Of a result with changes, the final rows count: a retracted row is as if it had never been there. Small known
//! answers are kept in full. Of others, the number of rows, a sum of their hashes, and some rows as a sample are kept.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use arrow::buffer::BooleanBuffer;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use xxhash_rust::xxh3::xxh3_64;

/// Separates the cells of a row.
const SEPARATOR: char = '|';
/// A cell without a value.
const NULL: &str = "\\N";
/// Answers of at most this number of bytes are kept in full.
const FULL_BYTES_MAX: usize = 3_000;
/// Of other answers, rows with at most this number of bytes together are kept.
const SOME_BYTES_MAX: usize = 1_000;
/// The query with windows by the clock.
const BY_THE_CLOCK: &str = "q12";
/// The most differences in a message.
const SHOWN_MAX: usize = 5;

/// A result: rows, and how often each occurs.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    rows: BTreeMap<String, i64>,
    line: String,
}

impl Answer {
    /// Adds the rows of a batch, or removes those that are marked as retractions.
    ///
    /// # Errors
    ///
    /// A column has values that cannot be written as text.
    pub fn add(&mut self, batch: &RecordBatch, retracts: Option<&BooleanBuffer>) -> Result<(), ArrowError> {
        let options = FormatOptions::new()
            .with_null(NULL)
            .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.6f"))
            .with_display_error(false);
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let mut cell = String::new();
        for row in 0..batch.num_rows() {
            self.line.clear();
            for (place, column) in columns.iter().enumerate() {
                if place > 0 {
                    self.line.push(SEPARATOR);
                }
                cell.clear();
                column.value(row).write(&mut cell)?;
                push_canonical(&cell, &mut self.line);
            }
            let sign = if retracts.is_some_and(|marked| marked.value(row)) { -1 } else { 1 };
            self.count(sign);
        }
        Ok(())
    }

    /// Adds the rows of a text in the form that DuckDB writes: a row on each line behind the first, with cells
    /// separated by `|`.
    pub fn of_text(text: &str) -> Self {
        let mut answer = Self::default();
        for line in text.lines().skip(1) {
            answer.line.clear();
            for (place, cell) in line.split(SEPARATOR).enumerate() {
                if place > 0 {
                    answer.line.push(SEPARATOR);
                }
                push_canonical(if cell == "\"\"" { "" } else { cell }, &mut answer.line);
            }
            answer.count(1);
        }
        answer
    }

    /// Counts the current line.
    fn count(&mut self, sign: i64) {
        match self.rows.get_mut(&self.line) {
            Some(count) if *count + sign == 0 => _ = self.rows.remove(&self.line),
            Some(count) => *count += sign,
            None => _ = self.rows.insert(self.line.clone(), sign),
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> i64 {
        self.rows.values().sum()
    }

    /// A sum of the hashes of all rows, independent of their order.
    fn digest(&self) -> u64 {
        let each = self.rows.iter().map(|(row, count)| xxh3_64(row.as_bytes()).wrapping_mul(*count as u64));
        each.fold(0, u64::wrapping_add)
    }

    /// Sums the numbers of each key, for rows that begin with a key and a number.
    fn sums(&self) -> Result<Self, String> {
        let mut sums = BTreeMap::new();
        for (row, count) in &self.rows {
            let mut cells = row.split(SEPARATOR);
            let key_and_number = cells.next().zip(cells.next().and_then(|number| number.parse::<i64>().ok()));
            let (key, number) = key_and_number.ok_or_else(|| format!("not a key and a number: {row}"))?;
            *sums.entry(key.to_owned()).or_insert(0) += number * count;
        }
        let rows = sums.into_iter().map(|(key, sum)| (format!("{key}{SEPARATOR}{sum}"), 1));
        Ok(Self { rows: rows.collect(), line: String::new() })
    }

    /// The sorted rows, each as often as it occurs.
    fn lines(&self) -> impl Iterator<Item = &str> {
        let each = self.rows.iter().flat_map(|(row, &count)| std::iter::repeat_n(row, count.max(0) as usize));
        each.map(String::as_str)
    }

    /// The result as a known answer, in the form of a section of its file.
    pub fn section(&self, query: &str) -> String {
        let bytes = self.lines().map(|line| line.len() + 1).sum::<usize>();
        let bytes_max = if bytes <= FULL_BYTES_MAX { FULL_BYTES_MAX } else { SOME_BYTES_MAX };
        let mut section = format!("## {query} rows {} digest {:016x}\n", self.rows(), self.digest());
        let head = section.len();
        for line in self.lines() {
            if section.len() - head + line.len() + 1 > bytes_max {
                break;
            }
            section.push_str(line);
            section.push('\n');
        }
        section
    }
}

/// Appends a cell in the form in which cells are compared.
fn push_canonical(cell: &str, out: &mut String) {
    let bytes = cell.as_bytes();
    let looks_like_number = bytes.first().is_some_and(|first| first.is_ascii_digit() || matches!(first, b'-' | b'.'));
    if looks_like_number && bytes.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        if let Ok(number) = cell.parse::<f64>() {
            // Engines add in different orders. There is one zero.
            let number = if number == 0.0 { 0.0 } else { number };
            out.push_str(&format!("{number:.8e}"));
            return;
        }
        // A time is written without trailing zeros.
        if bytes.len() > 20 && bytes[4] == b'-' && bytes[19] == b'.' {
            out.push_str(cell.trim_end_matches('0').trim_end_matches('.'));
            return;
        }
    }
    out.push_str(cell);
}

/// A known answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The number of rows.
    pub rows: i64,
    digest: u64,
    /// All rows, or the first ones.
    some: Vec<&'static str>,
    /// Whether the windows of the result depend on the clock, so that only their sums are known.
    is_of_sums: bool,
}

static ANSWERS: [(&str, &str); 3] = [
    ("in_order", include_str!("../answers/in_order.txt")),
    ("disordered", include_str!("../answers/disordered.txt")),
    ("sparse", include_str!("../answers/sparse.txt")),
];

impl Expected {
    /// Returns the answer of a query over a corpus, by their names. For q12, whose windows depend on the clock, it is
    /// the number of bids of each bidder in all windows together.
    pub fn of(query: &str, corpus: &str) -> Option<Self> {
        let (_, text) = ANSWERS.iter().find(|(name, _)| *name == corpus)?;
        Some(Self { is_of_sums: query == BY_THE_CLOCK, ..Self::in_text(text, query)? })
    }

    /// Returns the answer under this name in a list of [sections](Answer::section).
    pub fn in_text(text: &'static str, query: &str) -> Option<Self> {
        text.split("## ").find_map(|section| {
            let mut lines = section.lines();
            let mut head = lines.next()?.split(' ');
            if head.next()? != query {
                return None;
            }
            let (Some("rows"), rows, Some("digest"), digest) = (head.next(), head.next()?, head.next(), head.next()?)
            else {
                return None;
            };
            let (rows, digest) = (rows.parse().ok()?, u64::from_str_radix(digest, 16).ok()?);
            Some(Self { rows, digest, some: lines.collect(), is_of_sums: false })
        })
    }

    /// Checks that a result is this answer.
    ///
    /// # Errors
    ///
    /// What differs, in words.
    pub fn check(&self, answer: &Answer) -> Result<(), String> {
        match self.is_of_sums {
            true => self.check_rows(&answer.sums()?),
            false => self.check_rows(answer),
        }
    }

    fn check_rows(&self, answer: &Answer) -> Result<(), String> {
        if let Some((row, count)) = answer.rows.iter().find(|(_, count)| **count < 0) {
            return Err(format!("a row was taken back {} times more often than it came: {row}", -count));
        }
        if (answer.rows(), answer.digest()) == (self.rows, self.digest) {
            return Ok(());
        }
        let mut message = format!("{} rows instead of {}", answer.rows(), self.rows);
        let is_full = self.some.len() as i64 == self.rows;
        let missing = self.some.iter().filter(|row| !answer.rows.contains_key(**row)).take(SHOWN_MAX);
        missing.for_each(|row| message.push_str(&format!("\nmissing:    {row}")));
        let unexpected = answer.rows.keys().filter(|row| is_full && !self.some.contains(&row.as_str())).take(SHOWN_MAX);
        unexpected.for_each(|row| message.push_str(&format!("\nunexpected: {row}")));
        if !is_full {
            message.push_str("\nonly some rows of the answer are known in full; the first of the result:");
            answer.lines().take(SHOWN_MAX).for_each(|row| message.push_str(&format!("\n            {row}")));
        }
        Err(message)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray};

    use super::*;

    fn batch(rows: &[(i64, Option<f64>, &str, i64)]) -> RecordBatch {
        let columns: [(&str, ArrayRef); 4] = [
            ("n", Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>())),
            ("f", Arc::new(rows.iter().map(|row| row.1).collect::<Float64Array>())),
            ("t", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.2)))),
            ("ts", Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.3)))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
    }

    fn answer(rows: &[(i64, Option<f64>, &str, i64)]) -> Answer {
        let mut answer = Answer::default();
        answer.add(&batch(rows), None).unwrap();
        answer
    }

    /// The same rows as another engine writes them.
    const TEXT: &str = "n|f|t|ts\n1|0.30000000000000004|a b|2015-07-15 00:00:00.01\n-2|\\N||2015-07-15 00:00:01\n";

    fn rows() -> [(i64, Option<f64>, &'static str, i64); 2] {
        [(-2, None, "", 1_436_918_401_000_000), (1, Some(0.3), "a b", 1_436_918_400_010_000)]
    }

    fn expected(answer: &Answer) -> Expected {
        let some = answer.section("q").lines().skip(1).map(|line| &*line.to_owned().leak()).collect();
        Expected { rows: answer.rows(), digest: answer.digest(), some, is_of_sums: false }
    }

    #[test]
    fn order_last_digits_and_writing_play_no_part() {
        let known = expected(&Answer::of_text(TEXT));
        assert_eq!(known.check(&answer(&rows())), Ok(()));
        let mut parts = Answer::default();
        rows().iter().rev().for_each(|row| parts.add(&batch(&[*row]), None).unwrap());
        assert_eq!(known.check(&parts), Ok(()));
    }

    #[test]
    fn differences_are_found_and_shown() {
        let known = expected(&answer(&rows()));
        let [first, second] = rows();
        let problem = known.check(&answer(&[first, (second.0, Some(0.300_001), second.2, second.3)])).unwrap_err();
        assert!(
            problem.contains("missing:    1|3.00000000e-1|a b|") && problem.contains("unexpected: 1|3.00001"),
            "{problem}"
        );
        assert!(known.check(&answer(&[first, first])).unwrap_err().starts_with("2 rows instead of 2\nmissing"));
        assert!(known.check(&answer(&[first, second, second])).unwrap_err().starts_with("3 rows instead of 2"));
    }

    #[test]
    fn windows_by_the_clock_are_known_by_their_sums() {
        let known = Expected { is_of_sums: true, ..expected(&Answer::of_text("k|n\n7|5\n8|1\n")) };
        let windows = |text: &str| known.check(&Answer::of_text(&format!("k|n|start|end\n{text}")));
        assert_eq!(windows("7|2|0|10\n8|1|0|10\n7|3|10|20\n"), Ok(()));
        assert_eq!(
            windows("7|2|0|10\n8|1|0|10\n7|2|10|20\n").unwrap_err(),
            "2 rows instead of 2\nmissing:    7|5\nunexpected: 7|4"
        );
        assert!(windows("x\n").unwrap_err().starts_with("not a key"));
    }

    #[test]
    fn a_row_that_is_taken_back_was_never_there() {
        let known = expected(&answer(&rows()[..1]));
        let mut changing = answer(&rows());
        changing.add(&batch(&rows()), Some(&BooleanBuffer::from(vec![false, true]))).unwrap();
        changing.add(&batch(&rows()[..1]), Some(&BooleanBuffer::from(vec![true]))).unwrap();
        assert_eq!(known.check(&changing), Ok(()));
        changing.add(&batch(&rows()[1..]), Some(&BooleanBuffer::from(vec![true]))).unwrap();
        assert!(
            known.check(&changing).unwrap_err().starts_with("a row was taken back 1 times more often than it came: 1|")
        );
    }

    #[test]
    fn answers_of_all_queries_are_known() {
        for corpus in &crate::corpus::CORPORA {
            for query in &rivulet_bench::nexmark::QUERIES {
                let expected = Expected::of(query.name, corpus.name);
                let expected = expected.unwrap_or_else(|| panic!("no answer of {} over {}", query.name, corpus.name));
                assert!(expected.rows > 0, "{} over {} shows nothing", query.name, corpus.name);
                assert!(expected.some.len() as i64 <= expected.rows);
            }
        }
        assert_eq!(Expected::of("q0", "unknown"), None);
    }
}
