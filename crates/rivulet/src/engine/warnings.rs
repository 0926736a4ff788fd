//! What its owner should know of an application that is registered and runs: what it promises, and this server's configuration does not keep.

use rivulet_dataflow::Seconds;
use rivulet_sql::{Application, Input};

use super::{Engine, Running};
use crate::config::Config;

impl Engine {
    /// Says in words what of this application is probably a mistake.
    pub(super) fn warnings_of(&self, application: &Application) -> Vec<String> {
        let logged = application.inputs.iter().filter(|input| self.is_logged(input));
        logged.filter_map(|input| broker_forgets(&self.config, input)).collect()
    }
}

/// An input whose events are in the log once they have come, from a broker that keeps nothing while this server is away.
fn broker_forgets(config: &Config, input: &Input) -> Option<String> {
    let broker = config.broker.as_ref()?;
    let (why, key) = match (&broker.client_id, broker.qos) {
        (None, _) => (
            "mqtt.broker.client_id is not set, so the external broker forgets this server with each connection",
            "mqtt.broker.client_id",
        ),
        (Some(_), 0) => {
            ("mqtt.broker.qos is 0, so the external broker sends nothing again", "mqtt.broker.qos to \"1\"")
        }
        (Some(_), _) => return None,
    };
    Some(format!(
        "the input '{}' has durability 'log', and {why}: what is published while the server is away or the connection is down does not come; set {key}",
        input.name
    ))
}

/// The sources or inputs with times that are most likely seconds that were taken for milliseconds, with their names.
pub(super) fn named(names: &[String], seconds: &[Seconds]) -> Vec<(String, Seconds)> {
    let found = names.iter().zip(seconds).filter(|(_, seconds)| seconds.rows > 0);
    found.map(|(name, seconds)| (name.clone(), *seconds)).collect()
}

impl Running {
    /// What its owner should know, with what has shown since it runs.
    pub(super) fn warnings(&self) -> Vec<String> {
        let seconds = named(&self.outputs.inputs, &self.outputs.seconds.lock());
        let of_times = seconds.iter().map(|(input, seconds)| format!("input '{input}': {seconds}"));
        self.warnings.iter().cloned().chain(of_times).collect()
    }

    /// By input, events whose times are most likely seconds that were taken for milliseconds.
    pub(super) fn times_in_seconds(&self) -> Vec<(String, u64)> {
        let seconds = named(&self.outputs.inputs, &self.outputs.seconds.lock());
        seconds.into_iter().map(|(input, seconds)| (input, seconds.rows)).collect()
    }

    /// An answer about it, with its warnings.
    pub(super) fn answer(&self, text: String) -> String {
        self.warnings.iter().fold(text, |text, warning| format!("{text}\nwarning: {warning}"))
    }

    /// Has the log say them too.
    pub(super) fn log_warnings(&self) {
        self.warnings.iter().for_each(|warning| tracing::warn!(application = self.application.name, "{warning}"));
    }
}
