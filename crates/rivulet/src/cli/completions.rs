//! `rivulet completions`: scripts for shells.

use std::io;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::Arguments;
use super::error::CliError;

/// Arguments of `rivulet completions`.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArguments {
    /// The shell; for bash: `source <(rivulet completions bash)`
    shell: Shell,
}

pub(super) fn run(arguments: &CompletionsArguments) -> Result<(), CliError> {
    // Through memory, because the generator panics where a pipe is closed.
    let mut script = Vec::new();
    generate(arguments.shell, &mut Arguments::command(), "rivulet", &mut script);
    Ok(io::Write::write_all(&mut io::stdout().lock(), &script)?)
}
