//! `rivulet completions`: scripts for shells.

use std::io;

use clap_complete::{Shell, generate};

use super::error::CliError;

/// Arguments of `rivulet completions`.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArguments {
    /// The shell; for bash: `source <(rivulet completions bash)`
    shell: Shell,
}

/// Prints the script for the command line with this definition.
pub(super) fn run(arguments: &CompletionsArguments, definition: &mut clap::Command) -> Result<(), CliError> {
    // Through memory, because the generator panics where a pipe is closed.
    let mut script = Vec::new();
    generate(arguments.shell, definition, "rivulet", &mut script);
    Ok(io::Write::write_all(&mut io::stdout().lock(), &script)?)
}
