//! The files that an address means: one file, a folder with everything in it, or a pattern with `*` and `?`.
//!
//! What must hold: paths are in the order of their names, whatever the file system's order; hidden files, whose names
//! begin with a dot or an underscore, are ignored (writers use such names for unfinished files).

use std::ffi::OsStr;
use std::fs::{DirEntry, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use super::error::unreadable;
use crate::connector::{ConnectorError, SourceSpec};
use crate::files::Files;

/// The most files that a source may have. Their names are held in memory.
const FILES_MAX: usize = 1_000_000;

/// The greatest depth of nested folders.
const DEPTH_MAX: usize = 32;

/// Locates the files that a checkpoint names: it may name them as the statement does.
pub(super) fn locate_all<'p>(
    spec: &SourceSpec,
    paths: impl Iterator<Item = &'p mut PathBuf>,
) -> Result<(), ConnectorError> {
    for path in paths {
        *path = spec.host.files.locate(&*path).map_err(|error| unreadable(&spec.address, &error))?;
    }
    Ok(())
}

/// Whether the address is a pattern and not a path.
pub(super) fn is_pattern(address: &str) -> bool {
    address.contains(['*', '?'])
}

/// The folder that is searched, or all of an address without patterns.
pub(super) fn without_patterns(address: &str) -> &str {
    match address.find(['*', '?']) {
        Some(first) => address[..first].rfind('/').map_or("", |end| &address[..=end]),
        None => address,
    }
}

/// The files that an address means.
#[derive(Debug)]
pub(super) struct Found {
    /// The files, in order.
    pub(super) files: Vec<PathBuf>,
    /// Why the first unreadable entry of a folder was skipped.
    pub(super) passed_over: Option<io::Error>,
}

/// Finds the files that may be read.
pub(super) fn expand(address: &str, allowed: &Files) -> io::Result<Found> {
    let mut found = Found { files: Vec::new(), passed_over: None };
    if is_pattern(address) {
        let mut start = PathBuf::new();
        let mut patterns = Vec::new();
        for component in Path::new(address).components() {
            match component {
                Component::Normal(name) if !patterns.is_empty() || is_pattern(&name.to_string_lossy()) => {
                    patterns.push(name.to_string_lossy().into_owned());
                }
                other => start.push(other),
            }
        }
        matching(&allowed.locate(start)?, &patterns, allowed, &mut found)?;
    } else {
        collect(&allowed.locate(address)?, 0, allowed, &mut found)?;
    }
    found.files.sort();
    Ok(found)
}

impl Found {
    /// Whether an entry may be read. It was not requested by name, so it is skipped if it may not.
    fn may_read(&mut self, entry: &DirEntry, allowed: &Files) -> bool {
        match allowed.entry(entry) {
            Ok(_) => true,
            Err(error) => {
                self.passed_over.get_or_insert(error);
                false
            }
        }
    }
}

/// Adds the files that match the patterns, one pattern for each level below `folder`.
fn matching(folder: &Path, patterns: &[String], allowed: &Files, found: &mut Found) -> io::Result<()> {
    let [pattern, rest @ ..] = patterns else { return collect(folder, 0, allowed, found) };
    let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = match std::fs::read_dir(listed) {
        Ok(entries) => entries,
        // A file where the pattern needs a folder does not match, nor does a folder that is gone meanwhile.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound) => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if matches(pattern.as_bytes(), name.as_encoded_bytes())
            && (!is_hidden(&name) || pattern.starts_with(['.', '_']))
            && found.may_read(&entry, allowed)
        {
            matching(&folder.join(&name), rest, allowed, found)?;
        }
    }
    Ok(())
}

/// Adds a file, or all files in a folder.
fn collect(path: &Path, depth: usize, allowed: &Files, found: &mut Found) -> io::Result<()> {
    // Asked before anything is opened: opening a pipe waits for its other end.
    let kind = std::fs::metadata(path)?;
    if kind.is_file() {
        if found.files.len() >= FILES_MAX {
            return Err(io::Error::other(format!("there are more than {FILES_MAX} files")));
        }
        found.files.push(path.to_owned());
        return Ok(());
    }
    if !kind.is_dir() {
        let what = format!("{} is neither a file nor a folder", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    if depth >= DEPTH_MAX {
        return Err(io::Error::other(format!("folders are nested more than {DEPTH_MAX} deep at {}", path.display())));
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if is_hidden(&entry.file_name()) || !found.may_read(&entry, allowed) {
            continue;
        }
        match collect(&entry.path(), depth + 1, allowed, found) {
            // Files come and go while a folder is read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // An entry that is neither a file nor a folder was not requested by name.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            other => other?,
        }
    }
    Ok(())
}

fn is_hidden(name: &OsStr) -> bool {
    matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_'))
}

/// Whether `name` matches `pattern`, in which `*` stands for any characters and `?` for one byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // Where to go on if the part behind the last `*` turns out not to match: the `*` then matches one more byte.
    let mut retry: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at + 1, in_name));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => match retry {
                Some((after_star, taken)) => {
                    at = after_star;
                    in_name = taken + 1;
                    retry = Some((after_star, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// The device and number of a file, and its creation time if it is known: numbers are reused.
pub(super) type Identity = (u64, u64, Option<SystemTime>);

/// What distinguishes a file from another with the same name.
#[cfg(unix)]
pub(super) fn identity(metadata: &Metadata) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino(), metadata.created().ok()))
}

/// On other systems only a file that is cut short is noticed while it is followed.
#[cfg(not(unix))]
pub(super) fn identity(_metadata: &Metadata) -> Option<Identity> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let is = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        assert!(is("*.csv", "a.csv") && is("*", "") && is("a?c*", "abc") && is("*a*b", "xaxbab"));
        assert!(!is("*.csv", "a.csv.gz") && !is("a?c", "ac") && !is("", "a") && !is("*a*b", "xaxba"));
    }

    #[test]
    fn folders_and_patterns_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["b/2.csv", "b/1.csv", "a/1.csv", "a/1.json", "a/.hidden.csv", "a/_temporary/1.csv", "c.csv"] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let found = |address: &str| -> Vec<String> {
            let files = expand(folder.path().join(address).to_str().unwrap(), &Files::of_user()).unwrap().files;
            let name = |file: &PathBuf| file.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned();
            files.iter().map(name).collect()
        };
        assert_eq!(found(""), ["a/1.csv", "a/1.json", "b/1.csv", "b/2.csv", "c.csv"]);
        assert_eq!(found("*/1.csv"), ["a/1.csv", "b/1.csv"]);
        assert_eq!(found("?"), ["a/1.csv", "a/1.json", "b/1.csv", "b/2.csv"]);
        assert_eq!(found("*.csv"), ["c.csv"]);
        assert_eq!(found("b/1.csv"), ["b/1.csv"]);
        assert_eq!(found("x*/1.csv"), [""; 0]);
        assert_eq!(expand("no/such/file", &Files::of_user()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    #[test]
    fn what_may_not_be_read_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for path in ["in/a.csv", "in/own/b.csv", "out/c.csv"] {
            std::fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            std::fs::write(at(path), "x").unwrap();
        }
        std::os::unix::fs::symlink(at("out"), at("in/link")).unwrap();
        std::os::unix::fs::symlink(at("out/c.csv"), at("in/c.csv")).unwrap();
        let allowed = Files::below(&[at("in")], &[at("in/own")], &at("in/files"), None).unwrap();
        for address in ["", "*", "*/*.csv", "?.csv"] {
            let found = expand(address, &allowed).unwrap();
            assert!(found.files.iter().all(|file| *file == at("in/a.csv").canonicalize().unwrap()), "{found:?}");
            assert!(found.passed_over.is_some(), "{address}");
        }
        for address in ["../out", "link/c.csv", "c.csv", "own", "../*/c.csv"] {
            assert_eq!(expand(address, &allowed).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{address}");
        }
    }
}
