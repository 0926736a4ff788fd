//! `rivulet checkpoint`: saves the state of queries now.

use std::io::{self, Write};

use crate::api::types::Checkpoint;
use crate::counted::counted;

use super::error::CliError;
use super::options::{Connection, Global};
use super::output::{bytes, print_json};

/// Arguments of `rivulet checkpoint`.
#[derive(Debug, clap::Args)]
pub(super) struct CheckpointArguments {
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(global: Global, arguments: &CheckpointArguments) -> Result<(), CliError> {
    let made: Checkpoint = arguments.connection.client()?.post_text("/api/v1/checkpoint", "")?;
    let mut out = io::stdout().lock();
    if global.json {
        return print_json(&mut out, &made);
    }
    let Checkpoint { epoch, queries, big_queries, written_bytes, live_bytes, duration_ms } = made;
    let of_big = if big_queries == 0 { String::new() } else { format!(" and {}", counted(big_queries, "big query")) };
    let (written, live) = (bytes(written_bytes), bytes(live_bytes));
    match written_bytes {
        0 => writeln!(out, "checkpoint {epoch}: nothing has changed since")?,
        _ => writeln!(
            out,
            "checkpoint {epoch}: {}{of_big}, {written} written in {duration_ms} ms, {live} in all",
            counted(queries, "query")
        )?,
    }
    Ok(())
}
