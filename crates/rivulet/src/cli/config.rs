//! `rivulet config`: what is in force, and where each value comes from.

use std::io::{self, Write};
use std::path::PathBuf;

use rivulet_storage::Place;
use serde_json::{Map, json};

use crate::config::{self, CHECKPOINTS, FlagValue, KEYS, Loaded, Setting, Sources, Values, environment_names};

use super::error::CliError;
use super::options::Global;
use super::output::{colours, paint, print_json, table};

/// Options that override the configuration file and the environment.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Overrides {
    /// Configuration file; `rivulet.toml` in the present folder by default
    #[arg(long, env = "RIVULET_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of the catalog, the log of events and, unless checkpoint.folder says otherwise, the checkpoints
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<String>,
    /// Where the REST API listens
    #[arg(long, value_name = "ADDRESS")]
    http_address: Option<String>,
    /// Where the embedded MQTT broker listens
    #[arg(long, value_name = "ADDRESS")]
    mqtt_address: Option<String>,
    /// External MQTT broker to use instead of the embedded one
    #[arg(long, value_name = "URL")]
    mqtt_broker_url: Option<String>,
    /// Processing threads
    #[arg(long, value_name = "COUNT")]
    workers: Option<String>,
    /// What is logged: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Set any configuration key
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Overrides {
    /// Reads the configuration from file, environment and these options, and prints its warnings.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub(super) fn load(&self) -> Result<Loaded, CliError> {
        check(config::read(&self.sources()?)?)
    }

    /// Where the configuration is read from.
    ///
    /// # Errors
    /// A `--set` without a value.
    pub(super) fn sources(&self) -> Result<Sources, CliError> {
        let mut flags = Vec::new();
        for (key, flag, value) in [
            ("data_dir", "--data-dir", &self.data_dir),
            ("http.address", "--http-address", &self.http_address),
            ("mqtt.embedded.address", "--mqtt-address", &self.mqtt_address),
            ("mqtt.broker.url", "--mqtt-broker-url", &self.mqtt_broker_url),
            ("workers", "--workers", &self.workers),
            ("log.level", "--log-level", &self.log_level),
        ] {
            if let Some(value) = value {
                flags.push(FlagValue { key: key.into(), value: value.clone(), flag: flag.into() });
            }
        }
        for assignment in &self.set {
            let (key, value) = assignment.split_once('=').ok_or_else(|| {
                CliError::new(format!("--set {assignment} has no value")).with_hint("write --set key=value")
            })?;
            flags.push(FlagValue { key: key.trim().into(), value: value.trim().into(), flag: "--set".into() });
        }
        let environment = std::env::vars_os().collect();
        Ok(Sources { file: self.config.clone(), environment, flags })
    }
}

/// Where the data of a stopped server is: where `rivulet serve` with the same options and environment would look.
#[derive(Debug, clap::Args)]
pub(super) struct Folders {
    /// Configuration file of the server; `rivulet.toml` in the present folder by default
    #[arg(long, env = "RIVULET_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Its data folder, if that is not the configured one. Its checkpoints are there too, unless checkpoint.folder says
    /// otherwise
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<String>,
    /// Set any configuration key, such as checkpoint.folder
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Folders {
    /// Whether an option names any of them.
    pub(super) fn are_named(&self) -> bool {
        self.config.is_some() || self.data_dir.is_some() || !self.set.is_empty()
    }

    /// The data folder, and where the checkpoints are.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub(super) fn find(&self) -> Result<(PathBuf, Place), CliError> {
        let Self { config, data_dir, set } = self;
        let (config, data_dir, set) = (config.clone(), data_dir.clone(), set.clone());
        let config = Overrides { config, data_dir, set, ..Overrides::default() }.load()?.config;
        let in_data_dir = || Place::Folder(config.data_dir.join(CHECKPOINTS));
        let checkpoints = config.checkpoint.map_or_else(in_data_dir, |one| one.place);
        Ok((config.data_dir, checkpoints))
    }
}

/// The configuration that the values make, with its warnings printed.
fn check(values: Values) -> Result<Loaded, CliError> {
    let loaded = values.check()?;
    for warning in &loaded.warnings {
        eprintln!("{} {warning}", paint("1;33", "warning:", colours(&io::stderr())));
    }
    Ok(loaded)
}

/// Arguments of `rivulet config`.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigArguments {
    /// List every key with its environment variable instead, and whether a running server reads it again on SIGHUP
    #[arg(long)]
    keys: bool,
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn run(global: Global, arguments: &ConfigArguments) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    if arguments.keys {
        let rows = KEYS.iter().map(|key| {
            let [variable, _] = environment_names(key.name);
            let reloads = if key.reloads() { "yes" } else { "-" };
            [key.name.into(), variable, key.default.unwrap_or("-").into(), reloads.into(), key.meaning()]
        });
        writeln!(out, "{}", table(["key", "environment variable", "default", "reloads", "meaning"], &[], rows))?;
        return Ok(());
    }
    // Shown even if the values do not make a configuration: that is when people look.
    let values = config::read(&arguments.overrides.sources()?)?;
    print(global, &values.settings(), &mut out)?;
    check(values).map(drop)
}

fn print(global: Global, settings: &[Setting], out: &mut impl Write) -> Result<(), CliError> {
    let reloads = |setting: &Setting| KEYS.iter().any(|key| key.name == setting.key && key.reloads());
    if global.json {
        let settings: Map<_, _> = settings
            .iter()
            .map(|setting| {
                let value = setting.value.as_ref().map(config::Value::to_json);
                (
                    setting.key.to_owned(),
                    json!({"value": value, "origin": setting.origin.to_string(), "reloads": reloads(setting)}),
                )
            })
            .collect();
        return print_json(out, &settings);
    }
    // What is printed is a configuration file, except for what is hidden.
    let lines: Vec<(String, String)> = settings
        .iter()
        .map(|setting| {
            let reloads = if reloads(setting) { ", read again on SIGHUP" } else { "" };
            match &setting.value {
                Some(value) => (format!("{} = {value}", setting.key), format!("{}{reloads}", setting.origin)),
                None => (format!("# {}", setting.key), format!("not set{reloads}")),
            }
        })
        .collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
    for (line, origin) in lines {
        writeln!(out, "{line:width$}  # {origin}")?;
    }
    Ok(())
}
