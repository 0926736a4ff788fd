//! `rivulet burst`: the program as a function of AWS Lambda, and what emulates Lambda to try that out.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use tokio::net::TcpListener;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::burst::lambda::emulator::{self, Settings};

use super::error::CliError;
use super::signals::{first_signal, say};

/// The name that the program of a custom runtime has.
const BOOTSTRAP: &str = "bootstrap";

/// What Lambda takes: a zip that is uploaded as it is, and all that comes out of it, in bytes.
const ZIP_MAX: u64 = 50 << 20;
const UNZIPPED_MAX: usize = 250 << 20;

/// The version of glibc of the runtime `provided.al2023`: 2. and this.
const GLIBC: u32 = 34;

/// What to do about functions.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(super) enum BurstCommand {
    /// Write this program as the zip of a function of AWS Lambda
    Package(PackageArguments),
    /// Emulate the part of AWS Lambda that burst workers need
    Emulate(Box<Settings>),
}

/// Arguments of `rivulet burst package`.
#[derive(Debug, Args)]
pub(super) struct PackageArguments {
    /// The file to write
    #[arg(default_value = "function.zip")]
    file: PathBuf,
}

pub(super) fn run(command: BurstCommand) -> Result<(), CliError> {
    match command {
        BurstCommand::Package(arguments) => package(&arguments.file),
        BurstCommand::Emulate(settings) => emulate(*settings),
    }
}

fn failed(what: &str) -> impl Fn(io::Error) -> CliError {
    move |error| CliError::new(format!("{what}: {error}"))
}

fn package(path: &Path) -> Result<(), CliError> {
    if !cfg!(target_os = "linux") {
        return Err(CliError::new("functions run on Linux, and this program does not").with_hint("run it on Linux"));
    }
    let program = std::env::current_exe().and_then(fs::read).map_err(failed("cannot read this program"))?;
    if program.len() > UNZIPPED_MAX {
        return Err(CliError::new("Lambda takes no function of more than 250 MiB")
            .with_hint("use the program of a release, which is smaller, or strip this one"));
    }
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated).unix_permissions(0o755);
    let write = || {
        let mut zip = ZipWriter::new(File::create(path)?);
        zip.start_file(BOOTSTRAP, options)?;
        zip.write_all(&program)?;
        zip.finish()?.metadata()
    };
    let bytes = write().map_err(failed(&format!("cannot write {}", path.display())))?.len();
    say(&format!(
        "{}: {} MiB, {} MiB unzipped, version {}, for the runtime provided.al2023 on {}",
        path.display(),
        bytes.div_ceil(1 << 20),
        program.len().div_ceil(1 << 20),
        env!("CARGO_PKG_VERSION"),
        if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" }
    ));
    if bytes > ZIP_MAX {
        say("it is larger than 50 MiB: give it to Lambda by a bucket of S3");
    }
    if let Some(minor) = glibc(&program).filter(|&minor| minor > GLIBC) {
        say(&format!(
            "it needs glibc 2.{minor}, and that runtime has 2.{GLIBC}: use a program that was built for less"
        ));
    }
    Ok(())
}

/// The newest version 2.x of glibc that a program needs, if it needs any.
fn glibc(program: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let behind = program.windows(NAME.len() + 2).filter_map(|window| window.strip_prefix(NAME));
    let minor = |digits: &[u8]| std::str::from_utf8(digits).ok()?.trim_end_matches(['.', '\0']).parse().ok();
    behind.filter_map(minor).max()
}

fn emulate(settings: Settings) -> Result<(), CliError> {
    let folder = std::env::temp_dir().join(format!("rivulet-function-{}", std::process::id()));
    let program = match (&settings.zip, &settings.program) {
        (Some(zip), _) => unpack(zip, &folder).map_err(failed(&format!("cannot use {}", zip.display())))?,
        (None, Some(program)) => program.clone(),
        (None, None) => std::env::current_exe().map_err(failed("cannot find this program"))?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed("no runtime"))?;
    let done = runtime.block_on(async {
        let listener = TcpListener::bind(settings.listen).await?;
        say(&format!("emulates AWS Lambda at http://{}", listener.local_addr()?));
        emulator::serve(listener, (settings, program), first_signal(None)).await
    });
    let _ = fs::remove_dir_all(&folder);
    done.map_err(failed("the emulator cannot listen"))
}

/// Unpacks the program of a function into a folder.
fn unpack(zip: &Path, folder: &Path) -> io::Result<PathBuf> {
    ZipArchive::new(File::open(zip)?)?.extract(folder)?;
    let program = folder.join(BOOTSTRAP);
    program.metadata().map(|_| program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_needs_of_glibc_is_found() {
        assert_eq!(glibc(b"..GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_2.9\0"), Some(17));
        assert_eq!(glibc(b"#!/bin/sh"), None);
    }
}
