//! `rivulet backup` and `rivulet restore`: everything of a server that does not run, as one file.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::json;

use crate::data_folder::archive::{ArchiveError, Contents, back_up, restore};

use super::Global;
use super::config::Folders;
use super::error::CliError;
use super::output::{bytes, print_json};

/// Arguments of `rivulet backup`.
#[derive(Debug, clap::Args)]
pub(super) struct BackupArguments {
    /// The file to write; one that is there is replaced once the new one is whole
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    folders: Folders,
}

/// Arguments of `rivulet restore`.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreArguments {
    /// A file that `rivulet backup` has written
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The data folder to make; it must not be there, or be empty
    #[arg(long, value_name = "FOLDER")]
    data_dir: PathBuf,
}

pub(super) fn run_backup(global: Global, arguments: &BackupArguments) -> Result<(), CliError> {
    let (folder, checkpoints) = arguments.folders.find()?;
    let contents = back_up(&folder, &checkpoints, &arguments.file).map_err(refused)?;
    say(global, "written to", &arguments.file, contents)
}

pub(super) fn run_restore(global: Global, arguments: &RestoreArguments) -> Result<(), CliError> {
    let contents = restore(&arguments.file, &arguments.data_dir).map_err(refused)?;
    say(global, "restored to", &arguments.data_dir, contents)
}

fn refused(error: ArchiveError) -> CliError {
    CliError::new(error.to_string()).with_hint(error.hint())
}

fn say(global: Global, done: &str, place: &std::path::Path, contents: Contents) -> Result<(), CliError> {
    let Contents { files, bytes: size } = contents;
    let mut out = io::stdout().lock();
    if global.json {
        return print_json(&mut out, &json!({ "place": place.display().to_string(), "files": files, "bytes": size }));
    }
    writeln!(out, "{files} files, {}, {done} {}", bytes(size), place.display())?;
    Ok(())
}
