//! `rivulet bench nexmark`, `hibench`, `riot` and `debs`: that what is measured is the whole input, that files and
//! generators are the same input, that results are those that are known, and that a query that fails is a row of the
//! report.

use serde_json::Value;

use super::server::{rivulet, said};
use super::sql_answers::{answer, files, rows};

/// The report of a run; whether it succeeded.
fn bench(arguments: &[&str]) -> (bool, Value) {
    let output = rivulet().args(["bench", "--json"]).args(arguments).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
    (output.status.success(), report)
}

#[test]
fn files_and_generators_give_the_same_events_and_results() {
    let options = ["nexmark", "--query", "q2,q5,q3", "--events", "100000", "--parallelism", "2"];
    let (succeeded, generated) = bench(&options);
    assert!(succeeded, "{generated}");
    let (succeeded, read) = bench(&[&options[..], &["--source", "file"]].concat());
    assert!(succeeded, "{read}");
    for (place, (name, events)) in [("q2", 92_000), ("q5", 92_000), ("q3", 8_000)].into_iter().enumerate() {
        let (generated, read) = (&generated["queries"][place], &read["queries"][place]);
        assert_eq!((&generated["query"], &generated["events"]), (&name.into(), &events.into()), "{generated}");
        assert_eq!((&generated["events"], &generated["results"]), (&read["events"], &read["results"]), "{name}");
        assert_eq!(generated["refused"], Value::Object(serde_json::Map::new()), "{generated}");
        assert!(generated["results"].as_u64() > Some(0) && generated["events_per_s_per_core"].as_f64() > Some(0.0));
        assert!(generated["rss_peak_bytes"].as_u64() > Some(1 << 20), "{generated}");
    }
}

#[test]
fn every_policy_gives_the_same_results() {
    let events_and_results = |policy: &str| {
        let options = ["nexmark", "--query", "q3,q5", "--events", "50000", "--parallelism", "3", "--policy", policy];
        let (succeeded, report) = bench(&options);
        assert!(succeeded && report["policy"] == policy, "{report}");
        [0, 1].map(|place| ["events", "results"].map(|count| report["queries"][place][count].as_u64()))
    };
    let expected = events_and_results("group");
    assert!(expected.iter().flatten().all(|count| *count > Some(0)), "{expected:?}");
    for policy in ["congestion"].into_iter().chain(rivulet_bench::policies::NAMES) {
        assert_eq!(events_and_results(policy), expected, "{policy}");
    }
}

#[test]
fn an_unknown_policy_is_refused_with_those_that_there_are() {
    let output = rivulet().args(["bench", "nexmark", "--policy", "shortest"]).output().unwrap();
    assert!(!output.status.success());
    let said = said(&output);
    assert!(said.contains("'shortest' is no scheduling policy; there are group"), "{said}");
    assert!(said.contains("and to compare with random"), "{said}");
}

#[test]
fn latency_is_measured_at_a_rate() {
    let options = ["nexmark", "--query", "q0", "--events", "20000", "--rate", "20000"];
    let (succeeded, report) = bench(&options);
    assert!(succeeded, "{report}");
    let query = &report["queries"][0];
    assert!(query["elapsed_s"].as_f64() > Some(0.9), "{query}");
    assert!(query["latency_us_p50"].as_u64() <= query["latency_us_p99"].as_u64(), "{query}");
    assert!(query["latency_us_p99"].as_u64() < Some(500_000), "{query}");
}

#[test]
fn every_workload_reads_all_records() {
    let (succeeded, report) =
        bench(&["hibench", "--events", "50000", "--ips", "100", "--event-rate", "1000", "--window", "10"]);
    assert!(succeeded, "{report}");
    let queries = report["queries"].as_array().unwrap();
    let names: Vec<_> = queries.iter().map(|query| query["query"].as_str().unwrap()).collect();
    assert_eq!(names, ["identity", "repartition", "wordcount", "fixwindow 10 s"]);
    assert!(queries.iter().all(|query| query["events"] == 50_000), "{report}");
    assert_eq!((&queries[0]["results"], &queries[1]["results"]), (&50_000.into(), &50_000.into()));
    // Each of a hundred addresses in each of five windows.
    assert_eq!(queries[3]["results"], 500);
}

#[test]
fn what_takes_too_long_is_given_up() {
    let (succeeded, report) =
        bench(&["nexmark", "--query", "q0", "--events", "1000000", "--rate", "1000", "--timeout", "1s"]);
    assert!(!succeeded);
    let failure = report["queries"][0]["failure"].as_str().unwrap();
    assert!(failure.contains("had not ended after 1 s") && failure.contains("hint:"), "{failure}");
}

#[test]
fn topologies_of_riotbench_are_golden_before_they_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("riot.html");
    let options = ["riot", "--topology", "etl,pred", "--curve", "fused", "--rates", "500,1000", "--no-search"];
    let more = ["--duration", "1s", "--html", page.to_str().unwrap()];
    let (succeeded, report) = bench(&[&options[..], &more].concat());
    assert!(succeeded && report["is_golden"] == true, "{report}");
    assert_eq!(report["golden"], serde_json::json!({ "etl": true, "pred": true }));
    let curves = report["curves"].as_array().unwrap();
    let kinds: Vec<_> = curves.iter().map(|curve| (&curve["topology"], &curve["fuse"], &curve["cpus"])).collect();
    assert_eq!(kinds, [(&"etl".into(), &"auto".into(), &1.into()), (&"pred".into(), &"auto".into(), &1.into())]);
    for curve in curves {
        assert_eq!((&curve["input_per_s"], &curve["sink_per_input"]), (&1_000.into(), &2.0.into()), "{curve}");
        assert_eq!((&curve["policy"], &curve["is_saturation"]), (&"group".into(), &false.into()));
        assert_eq!(curve["points"].as_array().unwrap().len(), 2);
        assert!(curve["latency_us_p50"].as_u64() > Some(0) && curve["cpu_us_per_event"].as_f64() > Some(0.0));
        assert!(curve["utilisation_cv"].as_f64() > Some(0.0), "{curve}");
        let source = &curve["operators"][0];
        assert!(source["operator"].as_str().unwrap().starts_with("1.1 source"), "{source}");
        assert_eq!(source["rows_out"].as_u64().map(|rows| rows >= 1_000), Some(true), "{source}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Results are golden") && page.contains("<h2>pred on 1 core</h2>"), "{page}");
}

#[test]
fn an_unknown_topology_or_curve_is_refused_with_those_that_there_are() {
    for (options, said_so) in [
        (["--topology", "train"], "the topologies are etl, stats, pred"),
        (["--curve", "storm"], "the curves are fused, congestion, random, least-latency, least-memory, thread-each"),
        (["--consume", "some"], "all, half, or a number of events"),
        (["--cpus", "0"], "0 is not in 1..=1024"),
    ] {
        let output = rivulet().args(["bench", "riot"]).args(options).output().unwrap();
        assert!(!output.status.success() && said(&output).contains(said_so), "{}", said(&output));
    }
}

/// In pair A four answers, one of them an alarm, and the line through all of them. In pair B a change of the sensor
/// takes the place of one that has no answer yet.
#[test]
fn the_job_of_the_challenge_has_its_alarm_and_its_line() {
    let changes: [(u64, usize); 12] = [
        (1_000, 0),
        (1_200, 3),
        (2_000, 1),
        (3_000, 1),
        (3_100, 4),
        (3_300, 4),
        (6_000, 0),
        (6_200, 3),
        (11_000, 0),
        (11_210, 3),
        (16_000, 0),
        (16_200, 3),
    ];
    let (mut bits, mut lines) = ([0; 6], vec!["0,0,0,0,0,0,0".to_owned()]);
    for (at_ms, bit) in changes {
        bits[bit] = 1 - bits[bit];
        lines.push(format!("{at_ms},{}", bits.map(|bit| bit.to_string()).join(",")));
    }
    let columns = (5..=10).map(|bit| format!("bm{bit:02} BOOLEAN")).collect::<Vec<_>>().join(", ");
    let columns = format!("ts TIMESTAMP EVENT TIME, {columns}");
    let (_folder, source) = files(&[("readings", &columns, &lines.join(" "))]);
    let script = format!("{source} {} SELECT * FROM monitored", rivulet_bench::debs::MONITOR);
    for parallelism in [1, 2] {
        let answered = answer(&script, parallelism).unwrap_or_else(|error| panic!("{error}\n{script}"));
        let rows: Vec<Vec<String>> =
            rows(&answered).iter().map(|row| row.split('|').map(str::to_owned).collect()).collect();
        let answers: Vec<String> = rows.iter().map(|row| row[..4].join("|")).collect();
        let expected =
            ["A|1000|200|false", "A|11000|210|true", "A|16000|200|false", "A|6000|200|false", "B|3000|300|false"];
        assert_eq!(answers, expected, "at parallelism {parallelism}");
        let number = |cell: &str| cell.parse::<f64>().unwrap();
        let [slope, intercept, n] = [4, 5, 6].map(|cell| number(&rows[2][cell]));
        assert!((slope - 0.0002).abs() < 1e-9 && (intercept - 200.8).abs() < 1e-6 && n == 4.0, "{rows:?}");
        assert_eq!(answered.refused, 0);
    }
}

#[test]
fn jobs_of_the_challenge_run_side_by_side_and_every_answer_is_right() {
    let (succeeded, report) = bench(&["debs", "--jobs", "1,3", "--duration", "100ms", "--parallelism", "2"]);
    assert!(succeeded && report["is_golden"] == true, "{report}");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| run["jobs"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)]);
    for run in runs {
        assert_eq!((&run["is_equal"], &run["alarms"]), (&true.into(), &run["alarms_expected"]), "{run}");
        assert!(run["alarms"].as_u64() >= Some(40), "{run}");
        for figure in ["readings_per_s", "readings_per_s_per_core", "readings_per_s_per_job", "cpu_us_per_reading"] {
            assert!(run[figure].as_f64() > Some(0.0), "{figure} in {run}");
        }
    }
}
