//! Changes to intact files, as a disk, a crash or a stranger may make them.

use std::collections::BTreeMap;

use crate::input::Input;

/// Files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The most changes that one input makes.
const EDITS_MAX: usize = 16;

/// Changes files as the input says, until the input ends. Returns whether any file was changed.
pub fn apply(files: &mut Files, input: &mut Input<'_>) -> bool {
    let before = files.clone();
    let names: Vec<String> = files.keys().cloned().collect();
    for _ in 0..EDITS_MAX {
        if input.is_empty() || names.is_empty() {
            break;
        }
        let (operation, name) = (input.byte(), &names[input.below(names.len())]);
        let other = files.get(&names[input.below(names.len())]).cloned().unwrap_or_default();
        let Some(file) = files.get_mut(name) else { continue };
        edit(file, operation, &other, input);
        if operation % 8 == 7 {
            files.remove(name);
        }
    }
    *files != before
}

/// Changes the content of one file.
fn edit(file: &mut Vec<u8>, operation: u8, other: &[u8], input: &mut Input<'_>) {
    let at = input.short() % (file.len() + 1);
    match operation % 8 {
        0 => file.truncate(at),
        1 => {
            if let Some(byte) = file.get_mut(at) {
                *byte ^= input.byte().max(1);
            }
        }
        2 => {
            let piece = input.piece();
            let end = (at + piece.len()).min(file.len());
            file.splice(at..end, piece.iter().copied());
        }
        3 => {
            file.splice(at..at, input.piece().iter().copied());
        }
        4 => {
            let end = (at + 1 + input.below(64)).min(file.len());
            file.drain(at..end);
        }
        5 => {
            let end = (at + input.short()).min(file.len());
            file[at..end].fill(0);
        }
        6 => *file = other.to_vec(),
        // The caller removes the file, because it has all of them.
        _ => {}
    }
}
