//! The committed inputs of all fuzzers.

use std::path::{Path, PathBuf};

/// An input of a fuzzer.
pub(super) struct Input {
    /// The fuzzer's.
    pub(super) target: String,
    /// The target and the file.
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

impl Input {
    /// The input, its first half, and the input with a bit changed in its middle.
    pub(super) fn forms(&self) -> [Vec<u8>; 3] {
        let mut changed = self.bytes.clone();
        let middle = self.bytes.len() / 2;
        if let Some(byte) = changed.get_mut(middle) {
            *byte ^= 0x80;
        }
        [self.bytes.clone(), self.bytes[..middle].to_vec(), changed]
    }

    /// Whether it is of one of these fuzzers.
    pub(super) fn is_of(&self, targets: &[&str]) -> bool {
        targets.contains(&self.target.as_str())
    }
}

/// All of them, by name.
pub(super) fn inputs() -> Vec<Input> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    let folder = Path::new(&package).join("../../fuzz/corpus");
    let mut inputs = Vec::new();
    for target in entries(&folder) {
        for file in entries(&target) {
            let text = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
            let (target, name) = (text(&target), text(&file));
            let bytes = std::fs::read(&file).expect("an input");
            inputs.push(Input { name: format!("{target}/{name}"), target, bytes });
        }
    }
    assert!(inputs.len() > 150, "{} inputs", inputs.len());
    inputs
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}
