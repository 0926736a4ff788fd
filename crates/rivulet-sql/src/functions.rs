//! The functions in words, for `SHOW FUNCTIONS` and `DESCRIBE FUNCTION`.
//!
//! The words come from the generated reference, `docs/reference/functions.md`, so that server and documents say the
//! same. Tests compute its examples, and check that it has every function.

use std::sync::LazyLock;

/// A function that may be called, or one that is known and refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionDescription {
    /// The name.
    pub name: String,
    /// Its other names.
    pub other_names: Vec<String>,
    /// Its kind: the section of the reference.
    pub kind: String,
    /// How it is called.
    pub calls: Vec<String>,
    /// What it returns, or why it is refused.
    pub description: String,
    /// Calls and their results.
    pub examples: Vec<String>,
}

const REFERENCE: &str = include_str!("../../../docs/reference/functions.md");

/// All functions: by kind, then by name.
pub fn functions() -> &'static [FunctionDescription] {
    static ALL: LazyLock<Vec<FunctionDescription>> = LazyLock::new(|| read(REFERENCE));
    &ALL
}

/// Returns the function with this name or other name, in lower case.
pub fn function(name: &str) -> Option<&'static FunctionDescription> {
    functions().iter().find(|one| one.name == name || one.other_names.iter().any(|other| other == name))
}

/// Reads the functions of a page: it has a second-level heading for each kind and a third-level one for each function.
fn read(page: &str) -> Vec<FunctionDescription> {
    let mut all: Vec<FunctionDescription> = Vec::new();
    let mut kind = "";
    // Blocks are paragraphs, and lists whose items may continue on further lines.
    for block in page.split("\n\n") {
        let block = block.trim();
        if let Some(name) = block.strip_prefix("### ") {
            all.push(FunctionDescription {
                name: name.to_owned(),
                other_names: Vec::new(),
                kind: kind.to_owned(),
                calls: Vec::new(),
                description: String::new(),
                examples: Vec::new(),
            });
        } else if let Some(heading) = block.strip_prefix("## ") {
            kind = heading;
        } else if let Some(one) = all.last_mut().filter(|one| one.kind == kind && !block.starts_with('|')) {
            match block.starts_with("- ") {
                true => one.examples.extend(block.split("\n- ").map(|item| joined(item.trim_start_matches("- ")))),
                false => one.describe(&joined(block)),
            }
        }
    }
    all
}

impl FunctionDescription {
    /// Reads the first paragraph: how the function is called, what it returns, and its other names.
    fn describe(&mut self, paragraph: &str) {
        let (text, others) = paragraph.split_once(" Other names: ").unwrap_or((paragraph, ""));
        let (calls, description) = text.split_once("`: ").unwrap_or(("", text));
        let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        self.calls = quoted(&format!("{calls}`"));
        self.other_names = quoted(others);
        self.description = description.to_owned();
    }
}

/// A text on one line.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_what_the_reference_says() {
        let abs = function("abs").expect("it is there");
        assert_eq!((abs.kind.as_str(), abs.calls.as_slice()), ("Numbers", &["abs(numeric_expression)".to_owned()][..]));
        assert_eq!(abs.examples, ["`abs((-5))` is `5`", "`abs((-5.5))` is `5.5`"]);
        let mean = function("mean").expect("another name of avg");
        assert_eq!((mean.name.as_str(), mean.description.as_str()), ("avg", "The mean."));
        assert_eq!(function("percentile_cont").expect("it is there").calls.len(), 2);
        assert!(function("nonsense").is_none());
    }
}
