//! `rivulet backup` and `rivulet restore`: everything of a server as one file, whether it runs or not.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use crate::accounts::{Accounts, EndedLogins};
use crate::catalog::Catalog;
use crate::counted::counted;
use crate::data_folder::archive::{ArchiveError, Contents, back_up, inside_of, receive, restore_changed};

use super::config::Folders;
use super::error::CliError;
use super::options::{Global, TokenSource};
use super::output::{bytes, colours, paint, print_json};

/// Arguments of `rivulet backup`.
#[derive(Debug, clap::Args)]
pub(super) struct BackupArguments {
    /// The file to write; one that is there is replaced once the new one is whole
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    folders: Folders,
    /// Have the running server at this address make it, while it goes on; that of RIVULET_SERVER if no folder is named
    #[arg(long, value_name = "URL", conflicts_with_all = ["data_dir", "config", "set"])]
    server: Option<String>,
    #[command(flatten)]
    token: TokenSource,
}

/// Arguments of `rivulet restore`.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreArguments {
    /// A file that `rivulet backup` has written
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What is made: neither the data folder nor the place of the checkpoints may have anything in it
    #[command(flatten)]
    folders: Folders,
    /// Let the tokens and passwords in the backup count again, also those that were dropped, rotated or changed since
    /// it was made
    #[arg(long)]
    keep_tokens: bool,
}

pub(super) fn run_backup(global: Global, arguments: &BackupArguments) -> Result<(), CliError> {
    let mut notices = Vec::new();
    // As for other commands, unless a folder is named here.
    let of_environment = || std::env::var("RIVULET_SERVER").ok().filter(|_| !arguments.folders.are_named());
    let contents = match arguments.server.clone().or_else(of_environment) {
        Some(server) => {
            let client = arguments.token.client(&server)?;
            receive(&arguments.file, |out| -> Result<(), CliError> {
                notices = client.download("/api/v1/backup", out)?;
                Ok(())
            })?
        }
        None => {
            let (folder, checkpoints) = arguments.folders.find()?;
            back_up(&folder, &checkpoints, &arguments.file)?
        }
    };
    say(global, "written to", &arguments.file, contents, &notices)
}

pub(super) fn run_restore(global: Global, arguments: &RestoreArguments) -> Result<(), CliError> {
    let (folder, checkpoints) = arguments.folders.find()?;
    let mut ended = EndedLogins::default();
    let contents = restore_changed(&arguments.file, &folder, &checkpoints, |restored| {
        if !arguments.keep_tokens {
            let accounts = Accounts::open(Arc::new(Catalog::open(restored)?));
            ended = accounts.and_then(|accounts| accounts.end_logins()).map_err(ArchiveError::Change)?;
        }
        Ok(())
    })?;
    let is_apart = inside_of(&folder, &checkpoints).is_none();
    let apart = is_apart.then(|| format!("its checkpoints are in {checkpoints}"));
    let EndedLogins { tokens, passwords } = ended;
    let named = [(tokens, "token"), (passwords, "password")];
    let ended: Vec<String> =
        named.iter().filter(|(count, _)| *count > 0).map(|(count, what)| counted(*count as u64, what)).collect();
    let ended = (!ended.is_empty()).then(|| {
        format!(
            "{} of the backup do not count any more, because some may have been dropped or changed since it was made: \
             make a token for an administrator with `rivulet token create NAME --data-dir {}`, or remove what was \
             restored and restore it with --keep-tokens",
            ended.join(" and "),
            folder.display()
        )
    });
    let notices: Vec<String> = apart.into_iter().chain(ended).collect();
    say(global, "restored to", &folder, contents, &notices)
}

impl From<ArchiveError> for CliError {
    fn from(error: ArchiveError) -> Self {
        Self::new(error.to_string()).with_hint(error.hint())
    }
}

fn say(
    global: Global,
    done: &str,
    place: &std::path::Path,
    contents: Contents,
    notices: &[String],
) -> Result<(), CliError> {
    let Contents { files, bytes: size } = contents;
    let mut out = io::stdout().lock();
    if global.json {
        let place = place.display().to_string();
        return print_json(&mut out, &json!({ "place": place, "files": files, "bytes": size, "notices": notices }));
    }
    notices.iter().for_each(|notice| eprintln!("{} {notice}", paint("1;33", "notice:", colours(&io::stderr()))));
    writeln!(out, "{}, {}, {done} {}", counted(files, "file"), bytes(size), place.display())?;
    Ok(())
}
