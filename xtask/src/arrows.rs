//! A test of the house: within a crate, modules of the top level use each other one way. A module is used by those
//! above it, and uses those below it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::root;
use crate::tidy::{crates, rust_files};

/// Crates that still have circles. A crate without circles may not be named here.
const WITH_CIRCLES: &[&str] = &[];

/// By module the modules that it uses, each with one of its files that does.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn arrows_between_modules_point_one_way() {
    for name in crates().keys() {
        let arrows = arrows_of(&root().join("crates").join(name).join("src"));
        let circles = circles(&arrows);
        match WITH_CIRCLES.contains(&name.as_str()) {
            true => assert!(!circles.is_empty(), "{name} has no circles any more: it is not to be named here"),
            false => assert!(
                circles.is_empty(),
                "modules of {name} use each other in a circle:\n{}\n\
                 hint: move what both sides use into a module below both",
                circles.join("\n")
            ),
        }
    }
}

/// The arrows between modules of the top level, of the code outside of tests.
fn arrows_of(source: &Path) -> Arrows {
    let files: Vec<_> =
        rust_files(source).into_iter().filter(|path| !is_test(path.strip_prefix(source).unwrap())).collect();
    let parts = |path: &Path| -> Vec<String> {
        let path = path.strip_prefix(source).unwrap().with_extension("");
        let parts = path.iter().map(|part| part.to_str().unwrap().to_owned());
        parts.filter(|part| !["mod", "lib", "main"].contains(&part.as_str())).collect()
    };
    let modules: BTreeSet<String> = files.iter().filter_map(|path| parts(path).into_iter().next()).collect();
    let exports = std::fs::read_to_string(source.join("lib.rs")).map(|text| exports(&code_of(&text), &modules));
    let exports = exports.unwrap_or_default();
    let mut arrows: Arrows = modules.iter().map(|module| (module.clone(), BTreeMap::new())).collect();
    for path in &files {
        let parts = parts(path);
        let Some(module) = parts.first() else { continue };
        let code = code_of(&std::fs::read_to_string(path).unwrap());
        let from_here = "super::".repeat(parts.len());
        let paths = code.match_indices("crate::").chain(code.match_indices(&from_here));
        for (place, prefix) in paths {
            let before = code[..place].chars().next_back();
            if before.is_some_and(|before| before.is_alphanumeric() || "_:$".contains(before)) {
                continue;
            }
            for name in heads(&code[place + prefix.len()..]) {
                let used = if modules.contains(&name) { Some(&name) } else { exports.get(&name) };
                if let Some(used) = used.filter(|used| *used != module) {
                    let file = path.strip_prefix(source).unwrap().display().to_string();
                    arrows.get_mut(module).unwrap().entry(used.clone()).or_insert(file);
                }
            }
        }
    }
    arrows
}

/// What is left of the arrows, in words, after all modules are taken away that use none of the others, or are used by
/// none.
fn circles(arrows: &Arrows) -> Vec<String> {
    let mut left: BTreeSet<&String> = arrows.keys().collect();
    loop {
        let uses = |module: &String| arrows[module].keys().any(|used| left.contains(used));
        let is_used = |module: &String| left.iter().any(|other| arrows[*other].contains_key(module));
        let next: BTreeSet<&String> = left.iter().copied().filter(|module| uses(module) && is_used(module)).collect();
        if next.len() == left.len() {
            break;
        }
        left = next;
    }
    let of = |module: &&String| {
        let used = arrows[*module].iter().filter(|(used, _)| left.contains(used));
        used.map(|(used, file)| format!("  {module} -> {used}, in {file}")).collect::<Vec<_>>()
    };
    left.iter().flat_map(of).collect()
}

/// The modules whose names `lib.rs` gives out as its own.
fn exports(code: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let uses = code.split(';').filter_map(|statement| statement.split_once("use ").map(|(_, path)| path.trim()));
    let own = uses.filter_map(|path| Some((path.split_once("::")?, path)));
    let own = own.filter(|((module, _), _)| modules.contains(*module));
    let names = own.flat_map(|((module, rest), _)| {
        let words = rest.split(|character: char| !(character.is_alphanumeric() || character == '_'));
        words.map(move |name| (name.to_owned(), module.to_owned()))
    });
    names.collect()
}

/// The first name of a path, or of each path in braces.
fn heads(path: &str) -> Vec<String> {
    let word = |text: &str| text.chars().take_while(|one| one.is_alphanumeric() || *one == '_').collect::<String>();
    let Some(inside) = path.strip_prefix('{') else { return vec![word(path)] };
    let (mut depth, mut heads) = (0, vec![word(inside.trim_start())]);
    for (place, character) in inside.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(word(inside[place + 1..].trim_start())),
            _ => {}
        }
    }
    heads
}

/// The code of a file without its comments and without the tests at its foot.
fn code_of(text: &str) -> String {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
}

fn is_test(path: &Path) -> bool {
    path.iter().any(|part| part.to_str().is_some_and(|part| part.trim_end_matches(".rs").ends_with("tests")))
}
