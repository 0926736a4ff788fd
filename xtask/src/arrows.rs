//! A test of the house: within a crate, code uses code one way, so that it reads from top to bottom. A file is used by
//! those above it, and uses those below it; so is a module of the top level, with all of its files. A file that only
//! passes names on (`pub use`) uses none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::root;
use crate::tidy::{crates, rust_files};

/// Crates whose modules of the top level still have circles. A crate without circles may not be named here.
const MODULES_WITH_CIRCLES: &[&str] = &[];

/// Crates whose files still have circles. A crate without circles may not be named here.
const FILES_WITH_CIRCLES: &[&str] = &[];

/// By file (or module) the others that it uses, each with one of the names that it uses there.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn arrows_between_modules_point_one_way() {
    let modules_of = |source: &Path| {
        let top = |file: &str| file.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
        let mut modules = Arrows::new();
        for (file, used) in arrows_of(source) {
            let others = used.into_keys().map(|other| (top(&other), format!("in {file}")));
            modules.entry(top(&file)).or_default().extend(others.filter(|(other, _)| *other != top(&file)));
        }
        modules.retain(|module, _| !["lib", "main"].contains(&module.as_str()));
        modules
    };
    check("modules", modules_of, MODULES_WITH_CIRCLES);
}

#[test]
fn arrows_between_files_point_one_way() {
    check("files", arrows_of, FILES_WITH_CIRCLES);
}

fn check(what: &str, arrows_of: impl Fn(&Path) -> Arrows, with_circles: &[&str]) {
    let wrong = crates().into_keys().filter_map(|name| {
        let circles = circles(&arrows_of(&root().join("crates").join(&name).join("src")));
        match (with_circles.contains(&name.as_str()), circles.is_empty()) {
            (true, false) | (false, true) => None,
            (true, true) => Some(format!("{what} of {name} have no circles any more: do not name it here")),
            (false, false) => Some(format!("{what} of {name} use each other in a circle:\n{}", circles.join("\n"))),
        }
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}\nhint: move what both sides use into a file below both", wrong.join("\n"));
}

/// What is left of the arrows, in words, after all nodes are taken away that use none of the others, or are used by
/// none.
fn circles(arrows: &Arrows) -> Vec<String> {
    let mut left: BTreeSet<&String> = arrows.keys().collect();
    loop {
        let uses = |node: &String| arrows[node].keys().any(|used| left.contains(used));
        let is_used = |node: &String| left.iter().any(|other| arrows[*other].contains_key(node));
        let next: BTreeSet<&String> = left.iter().copied().filter(|node| uses(node) && is_used(node)).collect();
        if next.len() == left.len() {
            break;
        }
        left = next;
    }
    let of = |node: &&String| {
        let used = arrows[*node].iter().filter(|(used, _)| left.contains(used));
        used.map(|(used, name)| format!("  {node} -> {used}: {name}")).collect::<Vec<_>>()
    };
    left.iter().flat_map(of).collect()
}

/// A path in code, by its parts.
type Parts = Vec<String>;

/// The code of a module outside of its tests.
struct Module {
    file: String,
    uses: Vec<Use>,
    /// The paths in the code, outside of `use`.
    paths: BTreeSet<Parts>,
    /// The names that are declared here.
    declared: BTreeSet<String>,
}

/// One name of a `use`.
struct Use {
    is_public: bool,
    path: Parts,
    /// What it is called here; `*` for all names of a module.
    name: String,
}

struct Crate(BTreeMap<Parts, Module>);

/// The arrows between files, of the code outside of tests.
fn arrows_of(source: &Path) -> Arrows {
    let has_library = source.join("lib.rs").exists();
    let files = rust_files(source).into_iter().map(|path| {
        let file = path.strip_prefix(source).unwrap().display().to_string();
        (file, std::fs::read_to_string(&path).unwrap())
    });
    arrows_between(files.filter(|(file, _)| !(is_test(file) || has_library && file == "main.rs")))
}

/// The arrows between files with these names and texts.
fn arrows_between(files: impl Iterator<Item = (String, String)>) -> Arrows {
    let modules = files.map(|(file, text)| {
        let parts = file.trim_end_matches(".rs").split('/').map(str::to_owned);
        let parts: Parts = parts.filter(|part| !["mod", "lib", "main"].contains(&part.as_str())).collect();
        (parts, Module::read(file, &code_of(&text)))
    });
    let all = Crate(modules.collect());
    all.0.iter().map(|(place, module)| (module.file.clone(), all.arrows_from(place, module))).collect()
}

impl Module {
    fn read(file: String, code: &str) -> Self {
        let (mut uses, mut paths, mut declared) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut is_public = false;
        let mut rest = code;
        while let Some(start) = rest.find(|one: char| one.is_alphanumeric() || one == '_') {
            let is_lifetime = rest[..start].ends_with('\'');
            let (path, behind) = path_at(&rest[start..]);
            rest = behind;
            if is_lifetime {
                continue;
            }
            match path[0].as_str() {
                // Of `pub(in crate::module)`, the path is no use.
                "pub" => {
                    is_public = true;
                    rest =
                        rest.strip_prefix('(').and_then(|inside| inside.split_once(')')).map_or(rest, |(_, rest)| rest);
                    continue;
                }
                "use" => {
                    let (tree, behind) = rest.split_once(';').unwrap_or((rest, ""));
                    let tree: String = tree.split_whitespace().collect::<Vec<_>>().join(" ");
                    names(&tree, &mut Vec::new(), is_public, &mut uses);
                    rest = behind;
                }
                "struct" | "enum" | "trait" | "fn" | "type" | "const" | "static" | "union" | "mod" => {
                    let text = rest.trim_start();
                    let end = text.find(|one: char| !(one.is_alphanumeric() || one == '_')).unwrap_or(text.len());
                    declared.insert(text[..end].to_owned());
                    rest = &text[end..];
                }
                _ => {
                    paths.insert(path);
                }
            }
            is_public = false;
        }
        Self { file, uses, paths, declared }
    }
}

/// The path at the beginning of a text, and the text behind it.
fn path_at(text: &str) -> (Parts, &str) {
    let (mut parts, mut rest) = (Vec::new(), text);
    loop {
        let end = rest.find(|one: char| !(one.is_alphanumeric() || one == '_')).unwrap_or(rest.len());
        parts.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(next) if next.starts_with(|one: char| one.is_alphanumeric() || one == '_') => rest = next,
            _ => return (parts, rest),
        }
    }
}

/// Adds the names of the tree of a `use` behind the path `before`.
fn names(tree: &str, before: &mut Parts, is_public: bool, uses: &mut Vec<Use>) {
    let depth = before.len();
    let tree = tree.trim();
    if let Some(inside) = tree.strip_prefix('{').and_then(|tree| tree.strip_suffix('}')) {
        let (mut open, mut start) = (0, 0);
        for (place, one) in inside.char_indices().chain([(inside.len(), ',')]) {
            match one {
                '{' => open += 1,
                '}' => open -= 1,
                ',' if open == 0 => {
                    names(&inside[start..place], before, is_public, uses);
                    start = place + 1;
                }
                _ => {}
            }
        }
    } else if let Some((part, rest)) = tree.split_once("::").filter(|(part, _)| !part.is_empty()) {
        before.push(part.to_owned());
        names(rest, before, is_public, uses);
    } else if !tree.is_empty() {
        let (last, alias) = tree.split_once(" as ").map_or((tree, None), |(last, alias)| (last, Some(alias)));
        before.extend((!["self", "*"].contains(&last)).then(|| last.to_owned()));
        let name = if last == "*" { "*" } else { alias.unwrap_or(before.last().map_or("", |last| last)) };
        uses.push(Use { is_public, path: before.clone(), name: name.to_owned() });
    }
    before.truncate(depth);
}

impl Crate {
    /// The files that a module uses, each with a name that it uses there.
    fn arrows_from(&self, place: &Parts, module: &Module) -> BTreeMap<String, String> {
        let mut arrows = BTreeMap::new();
        let mut add = |path: &Parts| {
            let found = self.find(path, 0).map(|found| &self.0[&found].file);
            if let Some(found) = found.filter(|found| **found != module.file) {
                arrows.entry(found.clone()).or_insert_with(|| path.last().cloned().unwrap_or_default());
            }
        };
        for one in module.uses.iter().filter(|one| !one.is_public) {
            let path = self.absolute(place, &one.path).filter(|path| one.name == "*" || !self.0.contains_key(path));
            path.iter().for_each(&mut add);
        }
        for path in &module.paths {
            let (first, rest) = path.split_first().expect("a path has a part");
            let used = module.uses.iter().find(|one| one.name == *first);
            let path = match used {
                Some(used) => self.absolute(place, &used.path).map(|path| [path.as_slice(), rest].concat()),
                None if rest.is_empty() => None,
                None => self.absolute(place, path),
            };
            // A variable may have the name of a module.
            path.iter().filter(|path| !rest.is_empty() || !self.0.contains_key(*path)).for_each(&mut add);
        }
        arrows
    }

    /// A path from the root of the crate; `None` if it leads out of it.
    fn absolute(&self, place: &Parts, path: &Parts) -> Option<Parts> {
        let mut module = place.clone();
        let mut rest = path.as_slice();
        match rest.first()?.as_str() {
            "crate" => return Some(rest[1..].to_vec()),
            "self" => rest = &rest[1..],
            "super" => {}
            child => {
                module.push(child.to_owned());
                return self.0.contains_key(&module).then(|| [place.as_slice(), rest].concat());
            }
        }
        while rest.first().is_some_and(|part| part == "super") {
            module.pop();
            rest = &rest[1..];
        }
        module.extend_from_slice(rest);
        Some(module)
    }

    /// The module in which a path from the root ends, also if modules pass the name on. `None` if the name is of
    /// another crate.
    fn find(&self, path: &Parts, depth: usize) -> Option<Parts> {
        let mut module = Parts::new();
        for (index, part) in path.iter().enumerate() {
            let child = [module.as_slice(), std::slice::from_ref(part)].concat();
            if self.0.contains_key(&child) {
                module = child;
                continue;
            }
            let Some(here) = self.0.get(&module).filter(|_| depth < 8) else { break };
            if here.declared.contains(part) {
                break;
            }
            let mut named = here.uses.iter().filter(|one| one.name == *part).peekable();
            if named.peek().is_some() {
                let path_here = named.find_map(|one| self.absolute(&module, &one.path))?;
                return self.find(&[path_here.as_slice(), &path[index + 1..]].concat(), depth + 1);
            }
            let all = here.uses.iter().filter(|one| one.name == "*");
            let mut all = all.filter_map(|one| self.find(&self.absolute(&module, &one.path)?, depth + 1));
            let found = all.find(|one| self.0[one].declared.contains(part));
            return found.or(Some(module));
        }
        Some(module)
    }
}

/// The code of a file without comments, the contents of strings, and the tests at its foot.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(one) = rest.chars().next() {
        let is_name = code.ends_with(|one: char| one.is_alphanumeric() || one == '_');
        let raw = rest.strip_prefix('r').map(|behind| behind.trim_start_matches('#')).filter(|_| !is_name);
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(inside) = raw.and_then(|raw| raw.strip_prefix('"')) {
            let start = rest.len() - inside.len();
            let end = format!("\"{}", "#".repeat(start - 2));
            inside.find(&end).map_or(rest.len(), |found| start + found + end.len())
        } else if one == '"' {
            let mut is_escaped = false;
            let end = rest[1..].find(|one| {
                let ends = one == '"' && !is_escaped;
                is_escaped = one == '\\' && !is_escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 2)
        } else if let Some(quote) = ["'\"'", "'\\\"'"].iter().find(|quote| rest.starts_with(**quote)) {
            quote.len()
        } else {
            code.push(one);
            rest = &rest[one.len_utf8()..];
            continue;
        };
        rest = &rest[length..];
        code.push(' ');
    }
    let tests = code.match_indices("#[cfg(test)]").find(|(place, mark)| {
        let behind = code[place + mark.len()..].trim_start();
        behind
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ")
            .strip_prefix("mod ")
            .is_some_and(|name| name.split(['{', ';']).next() != name.split(';').next())
    });
    let end = tests.map_or(code.len(), |(place, _)| place);
    code.truncate(end);
    code
}

fn is_test(file: &str) -> bool {
    file.split('/').any(|part| part.trim_end_matches(".rs").ends_with("tests"))
}

#[test]
fn circles_are_found_through_names_that_are_passed_on() {
    let arrows = |files: &[(&str, &str)]| {
        let arrows = arrows_between(files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())));
        let used = arrows.iter().flat_map(|(file, used)| used.keys().map(move |other| format!("{file} -> {other}")));
        (used.collect::<Vec<_>>().join(", "), circles(&arrows).len())
    };
    let lib = ("lib.rs", "pub mod a;\nmod b;\npub use b::inner::{Thing as Other};\nuse outside::tool;");
    let inner = "pub struct Thing;\nfn name() { let text = \"crate::a::use_it // \"; /* super::super::a::x */ }\n";
    let b = ("b/mod.rs", "pub mod inner;\npub(in crate::a) use inner::*;");
    assert_eq!(
        arrows(&[
            lib,
            ("a.rs", "use crate::{Other, tool};\nuse crate::b::{self};\nfn a() {}"),
            b,
            ("b/inner.rs", inner)
        ]),
        ("a.rs -> b/inner.rs".to_owned(), 0)
    );
    let uses_a = format!("{inner}fn more() {{ super::super::a::a() }}");
    assert_eq!(
        arrows(&[lib, ("a.rs", "use crate::b::Thing;\npub fn a() {}"), b, ("b/inner.rs", &uses_a)]),
        ("a.rs -> b/inner.rs, b/inner.rs -> a.rs".to_owned(), 2)
    );
    let only_tests = format!("{inner}#[cfg(test)]\nmod tests {{ use crate::a; fn t() {{ a::a() }} }}");
    assert_eq!(
        arrows(&[lib, ("a.rs", "fn a(x: crate::b::Thing) {}"), b, ("b/inner.rs", &only_tests)]),
        ("a.rs -> b/inner.rs".to_owned(), 0)
    );
    // A lifetime declares nothing.
    let lib = ("lib.rs", "pub mod a;\nmod b;\npub use b::Thing;\nfn thing() -> &'static Thing { a::a() }");
    assert_eq!(
        arrows(&[lib, ("a.rs", "use crate::Thing;\npub fn a() {}"), ("b.rs", "pub struct Thing;")]),
        ("a.rs -> b.rs, lib.rs -> a.rs, lib.rs -> b.rs".to_owned(), 0)
    );
}
