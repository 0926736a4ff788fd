//! The reference tables of the base applications: the content of `examples/data`, and its origin.

use std::io;
use std::path::Path;

use crate::applications::BaseApplication;

/// The files in `examples/data` by their paths in the scripts, which begin in `examples`.
const FILES: [(&str, &str); 3] = [
    ("data/stations.csv", include_str!("../../../examples/data/stations.csv")),
    ("data/lots.csv", include_str!("../../../examples/data/lots.csv")),
    ("data/places.csv", include_str!("../../../examples/data/places.csv")),
];

/// A reference table that must exist before the application that looks events up in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// The `CREATE TABLE` statement of the script.
    statement: &'static str,
    /// The path in the statement.
    path: &'static str,
    content: &'static str,
}

impl TableSpec {
    /// The table of a base application, if it has one.
    pub(crate) fn of(base: &BaseApplication) -> Option<Self> {
        const BEGIN: &str = "\nCREATE TABLE ";
        let start = base.script.find(BEGIN)? + 1;
        let length = base.script[start..].find(';').expect("a statement ends") + 1;
        let statement = &base.script[start..start + length];
        let (path, content) =
            FILES.into_iter().find(|(path, _)| statement.contains(path)).expect("the file of a table is in the list");
        Some(Self { statement, path, content })
    }

    /// Writes the rows to a file in `folder`, and returns the statement that creates the table from it.
    pub fn write(&self, folder: &Path) -> io::Result<String> {
        let name = Path::new(self.path).file_name().expect("the path is one of a file");
        let file = folder.join(name);
        std::fs::write(&file, self.content)?;
        Ok(self.statement.replace(self.path, &file.display().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::random::Random;
    use crate::streams::{random_place_in_beijing, random_place_in_porto};

    /// Writes places with names of some kinds, and with prices if there is a range for them.
    fn places(
        seed: u64,
        count: u32,
        kinds: &[&str],
        place: fn(&mut Random) -> (f64, f64),
        prices: Option<(f64, f64)>,
    ) -> String {
        let mut random = Random::new(seed);
        let mut text = format!("name,lat,lon{}\n", if prices.is_some() { ",price" } else { "" });
        for number in 1..=count {
            let (latitude, longitude) = place(&mut random);
            let kind = kinds[random.below(kinds.len() as u64) as usize];
            write!(text, "{kind} {number},{latitude:.6},{longitude:.6}").unwrap();
            if let Some((lowest, highest)) = prices {
                write!(text, ",{:.3}", random.between(lowest, highest)).unwrap();
            }
            text.push('\n');
        }
        text
    }

    #[test]
    fn the_files_are_what_their_seeds_give() {
        let kinds = ["Museum", "Park", "Cafe", "Temple", "Market"];
        let expected = [
            places(12, 200, &["Station"], random_place_in_porto, Some((1.3, 2.1))),
            places(13, 300, &["Lot"], random_place_in_porto, None),
            places(14, 1000, &kinds, random_place_in_beijing, None),
        ];
        for ((path, content), expected) in FILES.into_iter().zip(expected) {
            if std::env::var_os("RIVULET_UPDATE").is_some() {
                let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is"))
                    .join("../../examples");
                std::fs::write(root.join(path), &expected).unwrap();
            } else {
                assert!(content == expected, "{path} is not what its seed gives: run with RIVULET_UPDATE=1");
            }
        }
    }
}
