//! `rivulet backup` and `rivulet restore`: everything of a server as one file, whether it runs or not.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::json;

use crate::data_folder::archive::{ArchiveError, Contents, back_up, receive, restore};
use crate::http_client::Client;

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
    /// Have the running server at this address make it, while it goes on
    #[arg(long, value_name = "URL", conflicts_with_all = ["data_dir", "config"])]
    server: Option<String>,
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
    let contents = match &arguments.server {
        Some(server) => {
            let client = Client::new(server)?;
            receive(&arguments.file, |out| client.download("/api/v1/backup", out).map_err(CliError::from))?
        }
        None => {
            let (folder, checkpoints) = arguments.folders.find()?;
            back_up(&folder, &checkpoints, &arguments.file)?
        }
    };
    say(global, "written to", &arguments.file, contents)
}

pub(super) fn run_restore(global: Global, arguments: &RestoreArguments) -> Result<(), CliError> {
    let contents = restore(&arguments.file, &arguments.data_dir)?;
    say(global, "restored to", &arguments.data_dir, contents)
}

impl From<ArchiveError> for CliError {
    fn from(error: ArchiveError) -> Self {
        Self::new(error.to_string()).with_hint(error.hint())
    }
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
