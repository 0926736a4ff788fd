//! How many files the process may open, and for what.

use rivulet_connectors::descriptors;

use crate::config::{Config, KEYS};

/// Lets the process open as many files as the system allows it, and shares them out: what is reserved, at most half, is
/// for checkpoints, the log and queries; of the rest, clients of MQTT may take half, and clients of the REST API and of
/// HTTP sources a quarter each, so that no crowd keeps the others out. The log says so if it is less than was
/// configured. Returns the keys of which less holds, with what holds.
pub(super) fn share_open_files(config: &mut Config) -> Vec<(&'static str, usize)> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let mut lowered = Vec::new();
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return lowered };
    // A system that does not allow what it said leaves the limit as it was.
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let quarter = ((limit - config.files_reserved.min(limit / 2)) / 4).max(2);
    // Connections that have given way hold their descriptors until they are closed.
    let (quarter, half) = (descriptors::connections_within(quarter), descriptors::connections_within(2 * quarter));
    descriptors::OF_HTTP_SOURCES.bound(quarter);
    let http = ("http.connections_max", &mut config.http.connections_max, quarter);
    let mqtt =
        config.embedded.as_mut().map(|mqtt| ("mqtt.embedded.connections_max", &mut mqtt.limits.connections_max, half));
    for (key, connections_max, share) in std::iter::once(http).chain(mqtt) {
        if *connections_max > share {
            let default = KEYS.iter().find(|known| known.name == key).and_then(|known| known.default);
            if default != Some(connections_max.to_string().as_str()) {
                tracing::info!("{key} is {share} and not {connections_max}: this process may open {limit} files");
            }
            *connections_max = share;
            lowered.push((key, share));
        }
    }
    lowered
}
