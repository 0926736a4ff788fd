//! Tests of the house itself: the layers, the map, the absence of what must be absent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

/// The layers of ARCHITECTURE.md: a crate depends only on crates of a lower layer. Development crates stand apart: they
/// use what they need, and nothing but tests and the binary uses them.
const LAYERS: &[(&str, u32)] = &[
    ("rivulet-dataflow", 0),
    ("rivulet-wire", 1),
    ("rivulet-storage", 1),
    ("rivulet-operators", 2),
    ("rivulet-relational", 2),
    ("rivulet-runtime", 2),
    ("rivulet-connectors", 2),
    ("rivulet-sql", 3),
    ("rivulet-bench", 3),
    ("rivulet", 4),
    ("rivulet-testing", 5),
    ("rivulet-simulation", 6),
    ("rivulet-testing-ports", 5),
    ("rivulet-testing-s3", 5),
    ("rivulet-fuzz", 5),
];

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The crates in `crates/`, by name, with the Rivulet crates each depends on outside of tests. Folders that git does
/// not know are left out.
pub(crate) fn crates() -> BTreeMap<String, Vec<String>> {
    let listed = Command::new("git").args(["ls-files", "crates/*/Cargo.toml"]).current_dir(root()).output().unwrap();
    let manifests = String::from_utf8(listed.stdout).unwrap();
    manifests
        .lines()
        .filter(|path| path.matches('/').count() == 2)
        .map(|path| {
            let manifest = read(path);
            let dependencies = manifest
                .split("[dependencies]")
                .nth(1)
                .unwrap_or_default()
                .lines()
                .take_while(|line| !line.starts_with('['))
                .filter_map(|line| line.split(['.', ' ', '=']).next())
                .filter(|name| name.starts_with("rivulet"))
                .map(str::to_owned)
                .collect();
            (path.split('/').nth(1).unwrap().to_owned(), dependencies)
        })
        .collect()
}

#[test]
fn arrows_between_crates_only_point_down() {
    let layer = |name: &str| {
        LAYERS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("crate {name} has no layer")).1
    };
    let crates = crates();
    assert!(crates.len() >= 7, "the crates were found: {crates:?}");
    for (name, dependencies) in &crates {
        for dependency in dependencies {
            assert!(layer(dependency) < layer(name), "{name} may not depend on {dependency}");
        }
    }
}

#[test]
fn operators_and_nouns_have_no_sockets_and_no_runtime() {
    for name in ["rivulet-dataflow", "rivulet-operators", "rivulet-relational", "rivulet-sql", "rivulet-wire"] {
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--package", name, "--edges", "normal", "--prefix", "none"])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let tree = String::from_utf8(tree.stdout).unwrap();
        // tokio itself comes in with DataFusion's parts; what does I/O in it is mio and socket2.
        for absent in ["mio ", "socket2 ", "rustls ", "rivulet-runtime ", "rivulet-connectors "] {
            assert!(!tree.lines().any(|line| line.starts_with(absent)), "{name} reaches {absent}");
        }
    }
}

#[test]
fn operators_read_no_clock_and_start_no_thread() {
    for name in ["rivulet-dataflow", "rivulet-operators", "rivulet-sql", "rivulet-wire"] {
        let folder = format!("crates/{name}/src");
        for path in rust_files(&root().join(folder)) {
            let text = std::fs::read_to_string(&path).unwrap();
            for absent in ["thread::spawn", "thread::sleep", "Instant::now", "SystemTime::now", "std::net", "tokio::"] {
                assert!(!text.contains(absent), "{} uses {absent}", path.display());
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is() {
    for folder in ["crates", "xtask"] {
        for path in rust_files(&root().join(folder)) {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("//!"), "{} does not open with `//!`", path.display());
        }
    }
}

#[test]
fn every_crate_has_a_section_on_the_map() {
    let map = read("ARCHITECTURE.md");
    for name in crates().keys() {
        assert!(map.contains(&format!("### `{name}`")), "ARCHITECTURE.md has no section `{name}`");
    }
}

/// A path on these pages may leave out its beginning, as long as the rest is the end of one path only.
#[test]
fn every_file_on_the_map_is_there_once() {
    let listed = Command::new("git").args(["ls-files"]).current_dir(root()).output().unwrap();
    let files = String::from_utf8(listed.stdout).unwrap();
    let mut problems = Vec::new();
    for page in ["ARCHITECTURE.md", "docs/adding.md", "docs/papers.md"] {
        let text = prose(&read(page)).collect::<Vec<_>>().join("\n");
        for path in text.split('`').skip(1).step_by(2).filter(|word| word.contains('/') || word.ends_with(".rs")) {
            if !path.chars().all(|one| one.is_ascii_alphanumeric() || "/_-.".contains(one)) {
                continue;
            }
            let found: BTreeSet<&str> = files.lines().filter_map(|file| found_in(file, path)).collect();
            if found.len() != 1 && !found.contains(path) {
                problems.push(format!("{page} names {path}, which is one of {found:?}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// `Pool::place` on these pages is a function, a constant, a field or a variant of a type, in one file.
#[test]
fn every_part_of_a_type_on_the_map_is_there() {
    let texts: Vec<String> = rust_files(&root().join("crates")).iter().map(read).collect();
    let mut problems = Vec::new();
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/adding.md", "docs/papers.md", "docs/glossary.md"] {
        let text = prose(&read(page)).collect::<Vec<_>>().join("\n");
        for code in text.split('`').skip(1).step_by(2) {
            let Some((of, part)) = code.split_once("::").filter(|(of, _)| of.starts_with(char::is_uppercase)) else {
                continue;
            };
            let has_type = |text: &str| {
                ["struct", "enum", "trait"].iter().any(|word| text.contains(&format!("{word} {of} ")))
                    || text.contains(&format!("impl {of} "))
            };
            let has_part = |text: &str| {
                [format!("fn {part}("), format!("fn {part}<"), format!("const {part}:"), format!("    pub {part}:")]
                    .iter()
                    .any(|begin| text.contains(begin))
                    || text.contains(&format!("    {part}("))
                    || text.contains(&format!("    {part},"))
            };
            if !texts.iter().any(|text| has_type(text) && has_part(text)) {
                problems.push(format!("{page} names {code}"));
            }
        }
    }
    assert!(problems.is_empty(), "the code has no such thing:\n{}", problems.join("\n"));
}

/// The file, or the folder above it, whose path ends with `path`.
fn found_in<'f>(file: &'f str, path: &str) -> Option<&'f str> {
    if !path.ends_with('/') {
        return (file == path || file.ends_with(&format!("/{path}"))).then_some(file);
    }
    let place = if file.starts_with(path) { 0 } else { file.find(&format!("/{path}"))? + 1 };
    Some(&file[..place + path.len()])
}

#[test]
fn the_first_page_counts_right() {
    let readme = read("README.md");
    let number_before = |words: &str| {
        let before = readme.split_once(words).unwrap_or_else(|| panic!("README.md does not say{words}")).0;
        let digits = before.rsplit(|one: char| !one.is_ascii_digit()).next().unwrap();
        digits.parse::<usize>().unwrap_or_else(|_| panic!("README.md has no number before{words}"))
    };
    let examples = ["examples", "examples/recipes"].iter().flat_map(|folder| root().join(folder).read_dir().unwrap());
    let examples = examples.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "sql"));
    assert_eq!(number_before(" applications, [recipes]"), examples.count());
    let functions = read("docs/reference/functions.md");
    let callable = functions.split("\n## Refused").next().unwrap().matches("\n### ").count();
    assert!(number_before(", most with examples |") <= callable, "{callable} functions can be called");
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--package", "rivulet", "--edges", "normal,build", "--prefix", "none"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let package = |line: &str| line.split(' ').take(2).map(str::to_owned).collect::<Vec<_>>();
    let crates = tree.lines().map(package).collect::<BTreeSet<_>>().len();
    let told = number_before(" crates and OpenSSL");
    assert!(told.abs_diff(crates) <= 15, "README.md has some {told} crates compiled, and there are {crates}");
}

#[test]
fn first_pages_are_short() {
    for (page, words_max) in [("README.md", 900), ("ARCHITECTURE.md", 2000)] {
        let words = read(page).split_whitespace().count();
        assert!(words <= words_max, "{page} has {words} words, and at most {words_max} are allowed");
    }
}

#[test]
fn lines_of_documents_have_at_most_120_columns() {
    let mut problems = Vec::new();
    for page in &pages() {
        for (number, line) in read(page).lines().enumerate() {
            let columns = line.chars().count();
            // A row of a table of measurements is as long as it is.
            let is_measured = page.starts_with("bench/") && line.starts_with('|');
            if columns > 120 && !is_measured {
                problems.push(format!("{page}, line {}: {columns} columns", number + 1));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Tables and what stands between fences keep their form.
#[test]
fn lines_of_comments_have_at_most_120_columns() {
    let mut problems = Vec::new();
    for file in ["crates", "xtask"].iter().flat_map(|folder| rust_files(&root().join(folder))) {
        let mut is_fenced = false;
        for (number, line) in read(&file).lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let text = comment.trim_start_matches(['/', '!']).trim_start();
            is_fenced ^= text.starts_with("```");
            if line.chars().count() > 120 && !is_fenced && !text.starts_with('|') {
                problems.push(format!("{}, line {}", file.display(), number + 1));
            }
        }
    }
    assert!(problems.is_empty(), "comments of more than 120 columns:\n{}", problems.join("\n"));
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let mut problems = Vec::new();
    for page in &pages() {
        let folder = root().join(page).parent().unwrap().to_owned();
        let is_in_book = page.starts_with("docs/") && !page.starts_with("docs/decisions/");
        for target in links(&read(page)) {
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if path.is_empty() { root().join(page) } else { folder.join(path) };
            if !file.exists() {
                problems.push(format!("{page} links to {path}, which is not there"));
            } else if !anchor.is_empty() && !anchors(&std::fs::read_to_string(&file).unwrap()).contains(anchor) {
                problems.push(format!("{page} links to {target}, which has no such heading"));
            } else if is_in_book
                && !file.canonicalize().unwrap().starts_with(root().canonicalize().unwrap().join("docs"))
            {
                problems.push(format!("{page} links to {path}, which is not in the book"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_page_of_the_book_is_in_its_contents() {
    let contents: BTreeSet<String> = links(&read("docs/SUMMARY.md")).collect();
    for page in pages() {
        let Some(name) = page.strip_prefix("docs/").filter(|name| !name.starts_with("decisions/")) else { continue };
        assert!(name == "SUMMARY.md" || contents.contains(name), "docs/SUMMARY.md has no link to {name}");
    }
}

#[test]
fn every_decision_is_in_their_list() {
    let listed: BTreeSet<String> = links(&read("docs/decisions/README.md")).collect();
    for page in pages() {
        let Some(name) = page.strip_prefix("docs/decisions/").filter(|name| *name != "README.md") else { continue };
        assert!(listed.contains(name), "docs/decisions/README.md has no link to {name}");
        let text = read(&page);
        for part in ["**Context.**", "**Decision.**", "**Price.**", "**Status.**"] {
            assert!(text.contains(part), "{page} has no {part}");
        }
    }
}

/// Each attack in the list is followed by the name of its test, in backquotes on a line of its own. So is each asset
/// and each door of the threat model.
#[test]
fn every_attack_has_a_test() {
    let named = |page: &str| -> Vec<String> {
        let lines = page.lines().filter_map(|line| line.strip_prefix("  `")?.strip_suffix('`').map(str::to_owned));
        lines.collect()
    };
    let page = read("docs/attacks.md");
    let (mut names, attacks) = (named(&page), page.lines().filter(|line| line.starts_with("- ")).count());
    assert!(attacks >= 60 && names.len() == attacks, "{attacks} attacks, {} names of tests", names.len());
    let model = read("SECURITY.md");
    let of_model = named(&model);
    assert!(of_model.len() >= 20, "assets and doors have tests: {of_model:?}");
    names.extend(of_model);
    let mut tests = BTreeSet::new();
    for file in rust_files(&root().join("crates")) {
        let text = read(&file);
        let mut is_test = false;
        for line in text.lines().map(str::trim_start) {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            // Tests of properties stand in a macro, and have the attribute too.
            let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            if let Some(name) = function.filter(|_| is_test).and_then(|rest| rest.split(['(', '<']).next()) {
                tests.insert(name.to_owned());
                is_test = false;
            }
        }
    }
    let missing: Vec<&String> = names.iter().filter(|name| !tests.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/attacks.md and SECURITY.md name tests that are not there: {missing:?}");
}

/// The Markdown files that git knows, by their paths.
pub(crate) fn pages() -> Vec<String> {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let pages: Vec<String> = listed.lines().map(str::to_owned).collect();
    assert!(pages.len() > 50, "the pages were found: {pages:?}");
    pages
}

/// The lines of a page that are no code.
pub(crate) fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// What a page links to in this repository.
fn links(page: &str) -> impl Iterator<Item = String> + use<> {
    let text = prose(page).collect::<Vec<_>>().join("\n");
    let targets: Vec<String> =
        text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect();
    targets.into_iter().filter(|target| !target.contains("://"))
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for heading in prose(page).filter(|line| line.starts_with('#')) {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchor: String = text.chars().filter(|one| one.is_alphanumeric() || "-_".contains(*one)).collect();
        let same = (1..).map(|number| format!("{anchor}-{number}")).find(|other| !found.contains(other));
        found.insert(if found.contains(&anchor) { same.unwrap() } else { anchor });
    }
    found
}

#[test]
fn fuzzers_are_built_of_the_same_versions() {
    // Otherwise `cargo xtask fuzz` compiles DataFusion once more, and fuzzes what is not shipped.
    let versions = |path: &str| -> Vec<String> {
        let text = read(path);
        let packages = text.split("[[package]]").skip(1);
        packages.map(|package| package.lines().skip(1).take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let workspace = versions("Cargo.lock");
    let own = ["libfuzzer-sys", "arbitrary", "rivulet-fuzz-programs"].map(|name| format!("name = \"{name}\""));
    for package in versions("fuzz/Cargo.lock") {
        let is_own = own.iter().any(|name| package.starts_with(name));
        assert!(
            is_own || workspace.contains(&package),
            "fuzz/Cargo.lock has another version than Cargo.lock: {package}\n\
             hint: cp Cargo.lock fuzz/ && cd fuzz && cargo update --workspace"
        );
    }
}

pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}
