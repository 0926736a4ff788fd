//! Generated pages of `docs/reference`: compared with the file, or written if `RIVULET_UPDATE` is set (`cargo xtask
//! docs`).
//!
//! It uses only the standard library, so that crates below this one can include it as a file.

use std::path::{Path, PathBuf};

/// The longest line of a Markdown file, in characters.
const COLUMNS_MAX: usize = 120;

/// The folder of the workspace.
pub fn root() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this")).join("../..")
}

/// Compares a generated text with the file `docs/reference/NAME`, or writes the file if `RIVULET_UPDATE` is set.
///
/// # Panics
///
/// If they differ, or the file cannot be written.
pub fn check(name: &str, generated: &str) {
    let path = root().join("docs/reference").join(name);
    if std::env::var_os("RIVULET_UPDATE").is_some() {
        std::fs::write(&path, generated).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let ends = found.lines().zip(generated.lines()).find(|(one, other)| one != other);
    assert!(found == generated, "docs/reference/{name} is stale; `cargo xtask docs` writes it again: {ends:?}");
}

/// Returns a page in Markdown with its paragraphs and list items broken into lines of at most [`COLUMNS_MAX`]
/// characters. Code, tables and headings stay as they are.
pub fn wrapped(page: &str) -> String {
    let mut out = String::with_capacity(page.len() + page.len() / 50);
    let mut is_code = false;
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || line.starts_with(['|', '#', '<']) {
            out.push_str(line);
        } else {
            wrap(line, &mut out);
        }
        out.push('\n');
    }
    out
}

fn wrap(line: &str, out: &mut String) {
    let text = line.trim_start();
    let indent = line.len() - text.len() + if text.starts_with("- ") { 2 } else { 0 };
    let mut rest = line.to_owned();
    while rest.chars().count() > COLUMNS_MAX {
        let is_break = |(at, one): &(usize, char)| *one == ' ' && *at > indent;
        let spaces = || rest.char_indices().enumerate().filter(|(_, place)| is_break(place));
        let fits = spaces().take_while(|(column, _)| *column <= COLUMNS_MAX).last();
        let Some((_, (at, _))) = fits.or_else(|| spaces().next()) else { break };
        out.push_str(rest[..at].trim_end());
        out.push('\n');
        rest = format!("{}{}", " ".repeat(indent), rest[at..].trim_start());
    }
    out.push_str(&rest);
}
