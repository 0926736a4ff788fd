//! Small queries of many kinds over small files, and the answers of another engine, so that the expected results do not
//! depend on our own reading of SQL.
//!
//! Queries, data and answers are in `comparison/` beside this crate's `src/`. `cargo xtask oracle` computes the answers
//! again.

use std::path::Path;
use std::{fs, io};

use crate::answer::Expected;

static QUERIES: &str = include_str!("../comparison/queries.sql");
static ANSWERS: &str = include_str!("../comparison/answers.txt");
static DECLARE: &str = include_str!("../comparison/declare.sql");
static FILES: [(&str, &str); 3] = [
    ("a.csv", include_str!("../comparison/a.csv")),
    ("b.csv", include_str!("../comparison/b.csv")),
    ("tags.csv", include_str!("../comparison/tags.csv")),
];

/// The mark before the name of a query.
const HEAD: &str = "-- # ";
/// The mark before the text for the other engine.
const ORACLE: &str = "-- oracle\n";

/// A query.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub select: &'static str,
    /// Its text for DuckDB.
    pub oracle: &'static str,
}

impl Comparison {
    /// Returns the script that declares the files in `folder` and runs the query.
    pub fn script(&self, folder: &Path) -> String {
        format!("{}\n{};", DECLARE.replace("{folder}", &folder.display().to_string()), self.select)
    }

    /// The known answer.
    pub fn expected(&self) -> Option<Expected> {
        Expected::in_text(ANSWERS, &self.key())
    }

    /// Its name in the list of answers, which is one word.
    pub fn key(&self) -> String {
        self.name.replace(' ', "_")
    }
}

/// All queries.
pub fn comparisons() -> impl Iterator<Item = Comparison> {
    QUERIES.split(HEAD).skip(1).map(|block| {
        let (name, text) = block.split_once('\n').unwrap_or((block, ""));
        let (select, oracle) = text.split_once(ORACLE).unwrap_or((text, text));
        Comparison { name, select: select.trim(), oracle: oracle.trim() }
    })
}

/// Writes the files that the queries read.
///
/// # Errors
/// They cannot be written.
pub fn write_files(folder: &Path) -> io::Result<()> {
    FILES.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_query_has_a_name_of_its_own_and_an_answer() {
        let mut names = HashSet::new();
        for comparison in comparisons() {
            assert!(names.insert(comparison.key()), "{} is there twice", comparison.name);
            assert!(!comparison.select.is_empty() && !comparison.select.contains(';'), "{}", comparison.name);
            let expected = comparison.expected().unwrap_or_else(|| panic!("no answer of {}", comparison.name));
            let may_be_empty = comparison.name.contains("nothing");
            assert!(expected.rows > 0 || may_be_empty, "{} shows nothing", comparison.name);
        }
        assert!(names.len() >= 60, "{} queries", names.len());
    }
}
