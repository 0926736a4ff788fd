//! The dashboard and the alerts of `packaging/`, in a Prometheus that asks a running server.

use std::collections::BTreeSet;
use std::io::{Write, stderr};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::server::{Server, free_port, wait};

/// Where Debian's package has it.
const PROGRAM: &str = "/usr/bin/prometheus";

/// Metrics whose figures the server must have in this test; of others only the names are there.
const WITH_FIGURES: [&str; 5] = [
    "rivulet_queries",
    "rivulet_memory_rss_bytes",
    "rivulet_worker_load",
    "rivulet_big_query_rows_in_total",
    "rivulet_broker_dropped_total",
];

struct Prometheus {
    process: Child,
    url: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    fn start(folder: &Path, server: &Server, alerts: &Path) -> Self {
        let address: SocketAddr = free_port();
        let target = server.url().trim_start_matches("http://").to_owned();
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 2s, evaluation_interval: 2s }}\nrule_files: [{alerts:?}]\n\
             scrape_configs: [{{ job_name: rivulet, static_configs: [{{ targets: ['{target}'] }}] }}]\n"
        );
        std::fs::write(&config, text).expect("a configuration");
        let mut command = Command::new(PROGRAM);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("figures").display()));
        command.arg(format!("--web.listen-address={address}")).stdout(Stdio::null()).stderr(Stdio::null());
        Self { process: command.spawn().expect("it starts"), url: format!("http://{address}/api/v1") }
    }

    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Option<Value> {
        let asked = ureq::get(format!("{}/{path}", self.url)).query_pairs(parameters.iter().copied());
        let text = asked.call().ok()?.body_mut().read_to_string().ok()?;
        serde_json::from_str::<Value>(&text).ok().map(|mut answer| answer["data"].take())
    }
}

/// The metrics that an expression names.
fn named(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|one: char| !one.is_alphanumeric() && one != '_');
    words.filter(|word| word.starts_with("rivulet_"))
}

#[test]
fn every_metric_of_the_dashboard_and_of_the_alerts_exists() {
    if !Path::new(PROGRAM).exists() {
        assert!(std::env::var_os("CI").is_none(), "CI installs Prometheus");
        _ = writeln!(stderr(), "skipped: prometheus is not installed");
        return;
    }
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the package is"));
    let packaging = package.join("../../packaging").canonicalize().expect("the folder");
    let folder = TempDir::new().expect("a folder");
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION warm (home TEXT) INPUT t (celsius DOUBLE) FROM 'mqtt:homes/{home}/t' FORMAT JSON
         OUTPUT 'mqtt:homes/{home}/warm' FORMAT JSON AS SELECT celsius FROM t WHERE celsius > 20;
         CREATE QUERY at_home FROM APPLICATION warm WITH (home => 'a');
         CREATE SOURCE bid FROM 'nexmark:bid' WITH (rate => 1000); CREATE SINK counted TO 'blackhole:';
         CREATE QUERY bids AS SELECT auction, price FROM bid INTO counted",
    );
    let prometheus = Prometheus::start(folder.path(), &server, &packaging.join("prometheus-alerts.yml"));
    let has_figures = |metric: &str| {
        let found = prometheus.ask("query", &[("query", metric)]);
        found.is_some_and(|found| found["result"].as_array().is_some_and(|series| !series.is_empty()))
    };
    wait("figures", || WITH_FIGURES.iter().all(|metric| has_figures(metric)));

    let known = prometheus.ask("metadata", &[]).expect("what is known of metrics");
    let known: BTreeSet<&str> = known.as_object().expect("metrics").keys().map(String::as_str).collect();
    let rules = prometheus.ask("rules", &[("type", "alert")]).expect("the alerts");
    let rules = rules["groups"][0]["rules"].as_array().expect("alerts").clone();
    assert!(rules.len() >= 15, "{rules:?}");
    let dashboard = std::fs::read_to_string(packaging.join("grafana-dashboard.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let of_panels = targets.map(|target| {
        let text = target["expr"].as_str().expect("an expression");
        text.replace("$__rate_interval", "1m").replace("$instance", ".*")
    });
    let of_panels: Vec<String> = of_panels.collect();
    assert!(of_panels.len() >= 25, "{of_panels:?}");
    let of_alerts = rules.iter().map(|rule| rule["query"].as_str().expect("an expression").to_owned());
    for expression in of_panels.into_iter().chain(of_alerts) {
        let answer = prometheus.ask("query", &[("query", &expression)]);
        assert!(answer.is_some_and(|answer| answer["result"].is_array()), "it cannot be computed: {expression}");
        for metric in named(&expression) {
            let family = ["_total", "_bucket"].iter().find_map(|end| metric.strip_suffix(end));
            let is_known = known.contains(metric) || family.is_some_and(|family| known.contains(family));
            assert!(is_known, "there is no {metric}, which is named in {expression}");
        }
    }
    // Alerts that nothing would ever raise, or that are wrong, would show an error here.
    wait("the alerts to be computed", || {
        let rules = prometheus.ask("rules", &[("type", "alert")]).unwrap_or_default();
        let rules = rules["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        !rules.is_empty() && rules.iter().all(|rule| rule["health"] == "ok")
    });
    let is_down = |alert: &Value| alert["labels"]["alertname"] == "RivuletDown";
    drop(server);
    wait("an alert", || {
        let raised = prometheus.ask("alerts", &[]).unwrap_or_default();
        raised["alerts"].as_array().is_some_and(|alerts| alerts.iter().any(is_down))
    });
}
