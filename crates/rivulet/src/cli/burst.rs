//! `rivulet burst`: the program as a function of AWS Lambda, and what emulates Lambda to try that out.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use tokio::net::TcpListener;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::burst::lambda::emulator::{self, Settings};

use super::error::CliError;
use super::signals::{first_signal, say};

/// What to do about functions.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(super) enum BurstCommand {
    /// Write this program as the zip of a function of AWS Lambda
    Package {
        /// The file to write
        #[arg(default_value = "function.zip")]
        file: PathBuf,
    },
    /// Emulate the part of AWS Lambda that burst workers need, with this program as the function
    Emulate(Settings),
}

pub(super) fn run(command: BurstCommand) -> Result<(), CliError> {
    let (done, what) = match command {
        BurstCommand::Package { file } => (package(&file), format!("cannot write {}", file.display())),
        BurstCommand::Emulate(settings) => (emulate(settings), "cannot emulate Lambda".into()),
    };
    done.map_err(|error| CliError::new(format!("{what}: {error}")))
}

fn package(path: &Path) -> io::Result<()> {
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated).unix_permissions(0o755);
    let program = std::env::current_exe()?;
    say(&format!("packs {} ...", program.display()));
    // A zip that is not whole has another name.
    let partial = path.with_added_extension("partial");
    let mut zip = ZipWriter::new(File::create(&partial)?);
    zip.start_file("bootstrap", options)?;
    io::copy(&mut File::open(program)?, &mut zip)?;
    zip.finish()?.sync_all()?;
    std::fs::rename(partial, path)?;
    let (version, machine) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    say(&format!("{}: version {version}, for the runtime provided.al2023 on {machine}", path.display()));
    Ok(())
}

fn emulate(settings: Settings) -> io::Result<()> {
    let program = std::env::current_exe()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(settings.listen).await?;
        say(&format!("emulates AWS Lambda at http://{}", listener.local_addr()?));
        emulator::serve(listener, (settings, program), first_signal(None)).await
    })
}
