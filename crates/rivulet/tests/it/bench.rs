//! `rivulet bench`: every event is accounted for in every model, a failure is reported and affects nothing else, and
//! recovery is measured.

use std::io::{Write, stderr};
use std::process::Command;

use serde_json::Value;

use super::server::{rivulet, said};

/// The report of a run that succeeds.
fn bench(arguments: &[&str]) -> Value {
    let output = rivulet().args(["bench", "many", "--json"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The same with a limit of the shell before it; the exit code too.
fn bench_with(limit: &str, arguments: &str) -> (Option<i32>, Value) {
    let program = env!("CARGO_BIN_EXE_rivulet");
    let script = format!("{limit}; exec '{program}' bench many --json {arguments}");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
    (output.status.code(), report)
}

fn assert_accounted(run: &Value) {
    assert!(run["events_sent"].as_u64() > Some(0), "{run}");
    assert_eq!(run["events_sent"], run["events_processed"], "{run}");
    assert_eq!((&run["events_dropped"], &run["failure"]), (&Value::from(0), &Value::Null), "{run}");
}

#[test]
#[ignore = "slow"]
fn every_model_processes_every_event() {
    let models = "group,group-rows,tp+nc,tp+n,tp,tpq+nc,tpq+n,tpq";
    let report = bench(&["--queries", "60", "--duration", "1s", "--model", models]);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    runs.iter().for_each(assert_accounted);
}

#[test]
fn a_step_that_fails_is_a_row_and_the_others_are_measured() {
    let page = tempfile::NamedTempFile::new().unwrap();
    let arguments = format!("--queries 300 --duration 1s --model tp,group --html {}", page.path().display());
    let (code, report) = bench_with("ulimit -n 400", &arguments);
    assert_eq!(code, Some(1));
    let failure = report["runs"][0]["failure"].as_str().unwrap();
    assert!(failure.contains("there is no connection left") && failure.contains("ulimit -n"), "{failure}");
    assert_eq!((&report["runs"][0]["queries"], &report["runs"][0]["queries_capacity"]), (&300.into(), &0.into()));
    assert_accounted(&report["runs"][1]);
    let page = std::fs::read_to_string(page.path()).unwrap();
    assert!(page.contains("<td>failed") && page.contains("there is no connection left"));
}

#[test]
fn threads_are_refused_before_the_system_has_none() {
    // Whoever is not root is bound by the limit itself, with all that runs of the same user.
    let user = Command::new("id").arg("-u").output().unwrap();
    if user.stdout.trim_ascii() != b"0" {
        _ = writeln!(stderr(), "skipped: not root");
        return;
    }
    let (code, report) = bench_with("ulimit -u 100", "--queries 300 --duration 1s --model tpq+nc,tp+nc");
    assert_eq!(code, Some(1));
    let failure = report["runs"][0]["failure"].as_str().unwrap();
    assert!(failure.contains("the system allows 75") && failure.contains("--model group"), "{failure}");
    assert_accounted(&report["runs"][1]);
}

#[test]
fn of_a_shared_topic_every_event_comes_out_once() {
    let report = bench(&["--shared-topic", "--queries", "50", "--duration", "1s"]);
    assert_accounted(&report);
    assert_eq!(report["events_sent"], report["results_received"]);
    assert!(report["result_latency_us_p99"].is_number(), "{report}");
}

#[test]
fn events_come_in_by_every_door() {
    let report = bench(&["--queries", "60", "--duration", "1s", "--door", "client,broker,accounts"]);
    let runs = report["runs"].as_array().unwrap();
    runs.iter().for_each(assert_accounted);
    let doors: Vec<&str> = runs.iter().map(|run| run["door"].as_str().unwrap()).collect();
    assert_eq!(doors, ["client", "broker", "accounts"]);
    assert!(runs[2]["run"].as_str().unwrap().ends_with("accounts 1/s"), "{report}");
}

#[test]
fn a_large_run_is_shrunk_as_a_whole() {
    let shrunk = ["--apps", "6000", "--queries", "20000", "--duration", "200s", "--scale", "0.01"];
    let report = bench(&shrunk);
    assert_eq!((&report["applications"], &report["queries"]), (&60.into(), &200.into()), "{report}");
    assert_accounted(&report);
    for count in ["mqtt_cpu_s", "workers_cpu_s", "context_switches", "page_faults"] {
        assert!(report[count].is_number(), "{count} in {report}");
    }
}

#[test]
#[ignore = "slow"]
fn rates_are_swept_at_a_constant_number_of_events() {
    let report = bench(&["--rate-sweep", "--queries", "1000", "--duration", "1s"]);
    let queries: Vec<u64> =
        report["runs"].as_array().unwrap().iter().map(|run| run["queries"].as_u64().unwrap()).collect();
    assert_eq!(queries, [1_000, 100, 10, 1, 1, 1]);
}

#[test]
fn what_makes_no_run_is_refused_at_once() {
    for (arguments, message) in [
        (&["--scale", "0"][..], "--scale is not above 0 and at most 1"),
        (&["--rate=-1"], "a rate is not a positive number"),
        (&["--applications", "ac_control,device_readings"], "reads one topic for all queries"),
        (&["--applications", "nothing"], "there is no application 'nothing'"),
        (&["--shared-topic", "--apps", "15"], "cannot be used with"),
        (&["--door", "accounts", "--qos", "1"], "publishes to the server itself"),
    ] {
        let output = rivulet().args(["bench", "many"]).args(arguments).output().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains(message), "{}", said(&output));
    }
}

#[test]
fn a_killed_server_is_found_to_work_again_with_the_state_that_it_had() {
    let arguments = ["bench", "recovery", "--json", "--queries", "300", "--keys", "5000"];
    let output = rivulet().args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{report}");
    for row in rows {
        assert!(row["state_bytes"].as_u64() > Some(10_000), "{row}");
        assert!(row["working_s"].as_f64() >= row["ready_s"].as_f64(), "{row}");
    }
    let what = rows[0]["what"].as_str().unwrap();
    assert!(!what.contains(" 0 of them"), "{what}");
}

#[test]
fn queries_are_created_and_changed_in_bulk_and_each_answer_is_checked() {
    let arguments = ["bench", "bulk", "--json", "--queries", "3000", "--durability", "checkpoint,log"];
    let output = rivulet().args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let whats: Vec<&str> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    let steps = ["created", "changed", "changed in another order", "unchanged"];
    assert_eq!(whats, [steps, steps].concat(), "{report}");
    assert!(rows.iter().all(|row| row["of_created"].as_f64() > Some(0.0)), "{report}");
}

#[test]
fn a_receiver_that_is_slow_or_silent_or_dead_costs_no_other_an_event() {
    let rates =
        ["--queries", "200", "--rate", "4", "--duration", "4s", "--slow", "500ms", "--set", "inbox.rows_max=200"];
    let output = rivulet().args(["bench", "webhooks", "--json"]).args(rates).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{report}");
    for row in rows {
        assert!(row["events"].as_u64() > Some(100) && row["latency_us_p50"].as_u64() > Some(0), "{report}");
        assert_eq!((&row["lost"], &row["again"]), (&0.into(), &0.into()), "{report}");
    }
}

#[test]
fn a_tenant_that_goes_wild_costs_another_one_no_event() {
    let quiet = ["--queries", "20", "--rate", "200", "--duration", "1s", "--rounds", "1", "--wild-width", "2"];
    let limits = ["--limits", "queries => 10, big_queries => 2, streams => 1, requests_per_second => 100"];
    let output = rivulet().args(["bench", "tenants", "--json"]).args(quiet).args(limits).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        assert_eq!((&row["events"], &row["lost"]), (&200.into(), &0.into()), "{report}");
        assert!(row["p99_ratio"].as_f64() > Some(0.0), "{report}");
    }
    let kinds: Vec<Option<&str>> = rows.iter().map(|row| row["wild"].as_str()).collect();
    let all = ["queries", "big-queries", "sessions", "tables", "files", "events"].map(Some);
    assert_eq!((kinds[0], &kinds[1..]), (None, &all[..]), "{report}");
    for (kind, deed) in [(1, "requests"), (1, "refused"), (3, "requests"), (4, "requests"), (6, "messages")] {
        assert!(rows[kind]["deeds"][deed].as_u64() > Some(0), "{deed} of {kind} in {report}");
    }
}

#[test]
fn every_experiment_of_the_relay_has_its_figures_and_loses_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("relay.html");
    let small = ["--message-bytes", "100", "--buffer-kib", "4", "--duration", "200ms", "--jobs", "1,3"];
    let arguments = ["bench", "relay", "--json", "--experiment", "n1,n2,n4,n5,n6", "--html", page.to_str().unwrap()];
    let output = rivulet().args(arguments).args(small).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let experiments: Vec<&str> = runs.iter().map(|run| run["experiment"].as_str().unwrap()).collect();
    assert_eq!(experiments, ["n1", "n2", "n2", "n4", "n5", "n5", "n5", "n5", "n6", "n6"]);
    for run in runs {
        assert_eq!((&run["message_bytes"], &run["buffer_kib"], &run["lost"]), (&100.into(), &4.into(), &0.into()));
        for figure in [
            "messages_per_s",
            "ceiling_messages_per_s",
            "latency_us_p50",
            "latency_us_p99",
            "allocations_per_message",
            "context_switches_per_million",
            "voluntary_switches_per_million",
            "nonvoluntary_switches_per_million",
            "relay_ns_per_message",
            "relay_rss_bytes_max",
        ] {
            assert!(run[figure].is_number(), "{figure} in {run}");
        }
    }
    let of = |name: &str| runs.iter().map(|run| run[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("is_individual").iter().filter(|one| **one == true).count(), 1);
    assert_eq!((&of("jobs")[8..], &of("rate_mbit")[3..5]), (&[1.into(), 3.into()][..], &[Value::Null, 100.into()][..]));
    let costs: Vec<u64> =
        runs[3]["steps"].as_array().unwrap().iter().map(|step| step["cost_ms"].as_u64().unwrap()).collect();
    assert_eq!(costs, [0, 1, 2, 3, 2, 1, 0]);
    let samples = runs[3]["samples"].as_array().unwrap();
    assert!(samples.len() >= 7 && samples.iter().all(|one| one["relay_rss_bytes"].as_u64() > Some(1 << 20)));
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["<h2>n1</h2>", "99th percentile", "<h2>n4</h2>", "resident memory", "100 B, 4 KiB, debs, auto"] {
        assert!(page.contains(part), "{part} in {page}");
    }
}
