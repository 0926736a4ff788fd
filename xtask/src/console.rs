//! The files of the console, which the program carries: made from `console/src` by Node, and in the repository, so that
//! nobody needs Node to build the program.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{root, which};

/// Makes the files anew; with `checks` in another folder, and fails if those in the repository differ.
pub(crate) fn make(checks: bool) -> Result<(), String> {
    if which("npm").is_none() {
        return Err("npm is not installed\nhint: apt-get install nodejs npm".into());
    }
    let folder = root().join("console");
    run(
        Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]),
        &folder,
    )?;
    let mut build = Command::new("node");
    build.arg("build.mjs");
    if !checks {
        return run(&mut build, &folder);
    }
    let made = std::env::temp_dir().join(format!("rivulet-console-{}", std::process::id()));
    let compared = run(build.arg(&made), &folder).and_then(|()| compare(&folder.join("dist"), &made));
    let _ = fs::remove_dir_all(&made);
    compared
}

fn run(command: &mut Command, folder: &Path) -> Result<(), String> {
    eprintln!("+ {command:?}");
    let status = command.current_dir(folder).status().map_err(|error| format!("{command:?} cannot run: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed ({status})")) }
}

fn compare(kept: &Path, made: &Path) -> Result<(), String> {
    let files = |folder: &Path| -> Result<Vec<(String, Vec<u8>)>, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, fs::read(&path).map_err(failed)?));
        }
        files.sort();
        Ok(files)
    };
    match files(kept)? == files(made)? {
        true => Ok(()),
        false => Err("console/dist is not what console/src makes\nhint: cargo xtask console".into()),
    }
}
