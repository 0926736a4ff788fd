//! `rivulet doctor`: looks at the data folder of a server that does not run, and explains what it finds.

use std::io::{self, Write};

use serde_json::json;

use crate::examine::{Examination, Finding, Level, SavedQuery, examine};

use super::config::Folders;
use super::error::CliError;
use super::options::Global;
use super::output::{colours, paint, print_json};

/// Arguments of `rivulet doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct DoctorArguments {
    #[command(flatten)]
    folders: Folders,
}

pub(super) fn run(global: Global, arguments: &DoctorArguments) -> Result<(), CliError> {
    let (folder, checkpoints) = arguments.folders.find()?;
    let Examination { findings, big_queries } = examine(&folder, &checkpoints);
    let problems = findings.iter().filter(|finding| finding.level == Level::Problem).count();
    let mut out = io::stdout().lock();
    if global.json {
        let findings: Vec<_> = findings
            .iter()
            .map(|Finding { level, about, text, advice }| {
                json!({ "level": level.name(), "about": about, "text": text, "advice": advice })
            })
            .collect();
        let big_queries: Vec<_> = big_queries.iter().map(saved_query).collect();
        let report = json!({
            "folder": folder.display().to_string(),
            "problems": problems,
            "findings": findings,
            "big_queries": big_queries,
        });
        print_json(&mut out, &report)?;
    } else {
        let wanted = colours(&io::stdout());
        writeln!(out, "{}", folder.display())?;
        for Finding { level, about, text, advice } in &findings {
            let code = match level {
                Level::Good => "32",
                Level::Notice => "33",
                Level::Problem => "1;31",
            };
            writeln!(out, "{:7} {about}: {text}", paint(code, level.name(), wanted))?;
            if let Some(advice) = advice {
                writeln!(out, "        {advice}")?;
            }
        }
    }
    match problems {
        0 => Ok(()),
        // The report has said it.
        _ => Err(CliError::reported()),
    }
}

fn saved_query(one: &SavedQuery) -> serde_json::Value {
    let SavedQuery { number, name, epoch, age_ms, bytes, has_ended, problems } = one;
    json!({
        "number": number, "query": name, "epoch": epoch, "age_ms": age_ms, "bytes": bytes, "has_ended": has_ended,
        "damaged": !problems.is_empty(), "problems": problems,
    })
}
