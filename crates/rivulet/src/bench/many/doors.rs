//! The generator and the server of a step, connected as a door has it.

use std::collections::BTreeSet;

use rivulet_bench::generator::handle::GeneratorHandle;
use rivulet_bench::workload::Workload;
use serde_json::Value;

use super::options::{Door, ManyOptions, Variant};
use crate::bench::load::start_generator;
use crate::bench::process::{EMBEDDED_ADDRESS, ServerProcess, free_port};

/// Starts both.
pub(super) fn start(
    options: &ManyOptions,
    variant: Variant,
    workload: &Workload,
    command: &[&str],
    settings: &[(&str, &str)],
) -> Result<(GeneratorHandle, ServerProcess), String> {
    if variant.door == Door::Client {
        let has_own_connections = variant.model.has_own_connections();
        let generator = start_generator(options.external_broker, has_own_connections, options.qos, &[])?;
        let broker =
            options.external_broker.or(generator.address()).ok_or("the generator does not say where it listens")?;
        return Ok((generator, ServerProcess::start(command, Some(broker), settings)?));
    }
    if variant.model.has_own_connections() {
        return Err("queries with connections of their own are clients of a broker\nhint: leave out --door".into());
    }
    let door = free_port()?;
    let address = door.to_string();
    let settings = [settings, &[(EMBEDDED_ADDRESS, address.as_str())]].concat();
    let mut server = ServerProcess::start(command, None, &settings)?;
    let mut users: Vec<(String, String)> = publishers(workload).into_iter().map(|user| (user, "-".into())).collect();
    if variant.door == Door::Accounts {
        let admin = token(&mut server, "CREATE USER admin ADMIN; CREATE TOKEN FOR admin")?;
        server.log_in(&admin);
        for (user, password) in &mut users {
            let script =
                format!("CREATE USER {user}; GRANT publish ON TOPIC '%u/#' TO {user}; CREATE TOKEN FOR {user}");
            *password = token(&mut server, &script)?;
        }
    }
    let generator = start_generator(Some(door), false, options.qos, &users)?;
    Ok((generator, server))
}

/// The first levels of the topics of a workload: each is a user that publishes below its own name.
fn publishers(workload: &Workload) -> BTreeSet<String> {
    let filters = workload.input_filters();
    filters.iter().map(|filter| filter.split('/').next().unwrap_or_default().to_owned()).collect()
}

/// Runs a script that ends with the creation of a token; the token.
fn token(server: &mut ServerProcess, script: &str) -> Result<String, String> {
    let answer: Value = serde_json::from_str(&server.post("/api/v1/sql", script.as_bytes())?)
        .map_err(|error| format!("the server's answer about accounts: {error}"))?;
    let last = answer["results"].as_array().and_then(|results| results.last());
    let token = last.and_then(|result| result["rows"][0][0].as_str());
    token.map(str::to_owned).ok_or_else(|| "the server has made no token".to_owned())
}
