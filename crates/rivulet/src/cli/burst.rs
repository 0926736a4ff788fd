//! `rivulet burst`: the program as a function of AWS Lambda, and what emulates Lambda to try that out.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    Emulate(EmulateArguments),
}

/// Arguments of `rivulet burst package`.
#[derive(Debug, Args)]
pub(super) struct PackageArguments {
    /// The file to write
    #[arg(default_value = "rivulet-burst.zip")]
    file: PathBuf,
}

/// Arguments of `rivulet burst emulate`.
#[derive(Debug, Args)]
pub(super) struct EmulateArguments {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:9001")]
    listen: SocketAddr,
    /// The name of the function
    #[arg(long, default_value = "rivulet-burst")]
    function: String,
    /// The zip of the function [default: this program]
    #[arg(long)]
    zip: Option<PathBuf>,
    /// A program that is the function [default: this program]
    #[arg(long, conflicts_with = "zip")]
    program: Option<PathBuf>,
    /// The key that requests have to be signed with; its secret is AWS_SECRET_ACCESS_KEY, or the same word
    #[arg(long, env = "AWS_ACCESS_KEY_ID", default_value = "emulated", hide_env_values = true)]
    access_key_id: String,
    /// The region that they have to be for
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// How long an instance takes to start
    #[arg(long, default_value_t = 0)]
    cold_ms: u64,
    /// How many events there may be at a time
    #[arg(long, default_value_t = 1_000)]
    concurrency: usize,
    /// Refuses one of so many requests
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    throttle_every: Option<u64>,
    /// How long an event may take before its instance is ended
    #[arg(long, default_value_t = 900)]
    time_limit_s: u64,
    /// Most bytes of an event or an answer
    #[arg(long, default_value_t = 6 << 20)]
    payload_max: usize,
    /// After how long without an event an instance is ended
    #[arg(long, default_value_t = 300)]
    idle_s: u64,
}

pub(super) fn run(command: BurstCommand) -> Result<(), CliError> {
    match command {
        BurstCommand::Package(arguments) => package(&arguments.file),
        BurstCommand::Emulate(arguments) => emulate(arguments),
    }
}

fn failed(what: &str) -> impl Fn(io::Error) -> CliError {
    move |error| CliError::new(format!("{what}: {error}"))
}

fn package(path: &Path) -> Result<(), CliError> {
    let program = std::env::current_exe().and_then(fs::read).map_err(failed("cannot read this program"))?;
    let program = stripped(program).ok_or_else(|| {
        CliError::new("functions run on Linux, and this program does not").with_hint("run the command on Linux")
    })?;
    let cannot_write = format!("cannot write {}", path.display());
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated).unix_permissions(0o755);
    let mut zip = ZipWriter::new(File::create(path).map_err(failed(&cannot_write))?);
    zip.start_file(BOOTSTRAP, options).map_err(io::Error::from).map_err(failed(&cannot_write))?;
    zip.write_all(&program).map_err(failed(&cannot_write))?;
    let file = zip.finish().map_err(io::Error::from).map_err(failed(&cannot_write))?;
    let bytes = file.metadata().map_err(failed(&cannot_write))?.len();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" };
    say(&format!(
        "{}: {} MiB, {} MiB unzipped, version {}, for the runtime provided.al2023 on {architecture}",
        path.display(),
        mib(bytes),
        mib(program.len() as u64),
        env!("CARGO_PKG_VERSION")
    ));
    if bytes > ZIP_MAX {
        say(&format!("it is larger than {} MiB: give it to Lambda by a bucket of S3", mib(ZIP_MAX)));
    }
    if let Some(minor) = glibc(&program).filter(|&minor| minor > GLIBC) {
        say(&format!(
            "it needs glibc 2.{minor}, and that runtime has 2.{GLIBC}: package a program that was built for less"
        ));
    }
    match program.len() > UNZIPPED_MAX {
        true => Err(CliError::new("Lambda takes no function of more than 250 MiB")
            .with_hint("package the program of a release: those are smaller")),
        false => Ok(()),
    }
}

/// The parts of a program that are loaded when it runs: without symbols and what helps to look for defects. `None` if
/// it is no program of 64-bit Linux.
fn stripped(mut program: Vec<u8>) -> Option<Vec<u8>> {
    let number = |program: &[u8], at: usize, bytes: usize| {
        let digits = program.get(at..at.checked_add(bytes)?)?.iter().rev();
        usize::try_from(digits.fold(0_u64, |number, &byte| number << 8 | u64::from(byte))).ok()
    };
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let [table, size, count] = [(0x20, 8), (0x36, 2), (0x38, 2)].map(|(at, bytes)| number(&program, at, bytes));
    let (table, size, count) = (table?, size?, count?);
    let mut end = table + size * count;
    for entry in (0..count).map(|index| table + size * index) {
        end = end.max(number(&program, entry + 0x08, 8)?.checked_add(number(&program, entry + 0x20, 8)?)?);
    }
    program.truncate(end);
    // There is no table of sections any more: its place, the number of its entries and the entry of names.
    program.get_mut(0x28..0x30)?.fill(0);
    program.get_mut(0x3c..0x40)?.fill(0);
    Some(program)
}

/// The newest version 2.x of glibc that a program needs, if it needs any.
fn glibc(program: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let behind = program.windows(NAME.len() + 2).filter_map(|window| window.strip_prefix(NAME));
    let minor = |digits: &[u8]| std::str::from_utf8(digits).ok()?.trim_end_matches(['.', '\0']).parse().ok();
    behind.filter_map(minor).max()
}

fn emulate(arguments: EmulateArguments) -> Result<(), CliError> {
    let folder = std::env::temp_dir().join(format!("rivulet-function-{}", std::process::id()));
    let program = match (&arguments.zip, arguments.program) {
        (Some(zip), _) => unpack(zip, &folder).map_err(failed(&format!("cannot use {}", zip.display())))?,
        (None, Some(program)) => program,
        (None, None) => std::env::current_exe().map_err(failed("cannot find this program"))?,
    };
    let id = arguments.access_key_id;
    let secret = std::env::var("AWS_SECRET_ACCESS_KEY").unwrap_or_else(|_| id.clone());
    let settings = Settings {
        function: arguments.function,
        program,
        key: (id, secret),
        region: arguments.region,
        cold: Duration::from_millis(arguments.cold_ms),
        concurrency: arguments.concurrency,
        throttle_every: arguments.throttle_every,
        time_limit: Duration::from_secs(arguments.time_limit_s),
        payload_max: arguments.payload_max,
        idle: Duration::from_secs(arguments.idle_s),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed("no runtime"))?;
    let done = runtime.block_on(async {
        let listener = TcpListener::bind(arguments.listen).await?;
        say(&format!("emulates AWS Lambda at http://{}", listener.local_addr()?));
        emulator::serve(listener, settings, first_signal(None)).await
    });
    let _ = fs::remove_dir_all(&folder);
    done.map_err(failed(&format!("cannot listen at {}", arguments.listen)))
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
    fn only_what_is_loaded_of_a_program_stays() {
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let once = stripped(program.clone()).unwrap();
        assert!(once.len() <= program.len() && stripped(once.clone()).unwrap() == once);
        assert!(glibc(&once).is_none_or(|minor| minor < 100));
        assert_eq!(glibc(b"..GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_2.9\0"), Some(17));
        for wrong in [&b"#!/bin/sh"[..], b"\x7fELF\x02\x01", &program[..0x39], &program[..100]] {
            assert_eq!(stripped(wrong.to_vec()), None);
        }
    }
}
